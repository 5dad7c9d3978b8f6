//! Common programs on a mounted volume. Each test is skipped with a message if its program is not installed.

mod support;

use std::fs;

use support::Bench;

#[test]
fn rsync_copies_there_and_back() {
    needs_fuse!("rsync");
    let mut bench = Bench::mounted(256);
    let source = bench.beside("source");
    fs::create_dir(&source).unwrap();
    let script = "
        cd ../source
        mkdir -p a/b/c; head -c 3000000 /dev/urandom > a/big; echo small > a/b/small; ln a/big a/b/hard
        ln -s ../big a/b/soft; ln -s nowhere dangling; mkfifo fifo; mknod dev c 5 300
        truncate -s 20M sparse; printf x | dd of=sparse bs=1 seek=15000000 conv=notrunc status=none
        for n in $(seq 300); do echo $n > a/b/c/file$n; done; touch -d '1965-03-04 05:06:07.123456789' a/b/old
        setfattr -n user.note -v text a/b/small; setfattr -n trusted.t -v v a; setfacl -m u:1234:rwx a/b
        setfacl -d -m g:77:r-x a/b/c; chown 1000:2000 a/b/small; chmod 6755 a/b/small
        rsync -aHAX --numeric-ids ../source/ ../mnt/there/
    ";
    bench.shell(script);
    bench.unmount_clean();
    bench.mount("");
    let differences = bench.shell(
        "rsync -aHAX --numeric-ids --checksum --dry-run --itemize-changes --delete ../source/ there/
         rsync -aHAX --numeric-ids there/ ../back/
         rsync -aHAX --numeric-ids --checksum --dry-run --itemize-changes --delete ../source/ ../back/
         test $(stat -c %h there/a/b/hard) = 2; test \"$(stat -c %y there/a/b/old)\" = \"$(stat -c %y ../source/a/b/old)\"",
    );
    assert_eq!(differences, "");
    bench.unmount_clean();
}

#[test]
fn git_clones_and_checks() {
    needs_fuse!("git");
    let mut bench = Bench::mounted(256);
    bench.shell(
        "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
         git init -q -b main ../origin; cd ../origin
         for n in $(seq 30); do mkdir -p dir$((n % 7)); head -c 20000 /dev/urandom | base64 > dir$((n % 7))/f$n; git add .; git commit -qm $n; done
         cd ../mnt; git clone -q --no-local ../origin clone; cd clone; git fsck --full --strict
         git checkout -q -b work main~10; git merge -q main; git gc -q --prune=now; git fsck --full; git status --porcelain",
    );
    bench.unmount_clean();
    bench.mount("");
    bench.shell("cd clone; git fsck --full; test -z \"$(git status --porcelain)\"; diff -r --exclude .git . ../../origin");
    bench.unmount();
}

#[test]
fn databases_stay_intact() {
    needs_fuse!("sqlite3");
    for journal in ["wal", "delete", "truncate", "persist"] {
        let mut bench = Bench::mounted(256);
        let fill = "create table if not exists t(k integer primary key, v text);
                    with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000)
                    insert or replace into t select abs(random()) % 20000, hex(randomblob(60)) from n;
                    delete from t where k % 7 = 0; vacuum;";
        let script = format!(
            "for n in 1 2 3 4; do sqlite3 db 'pragma journal_mode={journal}; pragma synchronous=full; {fill}' > /dev/null; done
             sqlite3 db 'pragma integrity_check'"
        );
        assert_eq!(bench.shell(&script), "ok\n");
        let rows = bench.shell("sqlite3 db 'select count(*), sum(k) from t'");
        bench.crash();
        bench.mount("");
        assert_eq!(bench.shell("sqlite3 db 'pragma integrity_check'"), "ok\n", "{journal}, after a crash");
        assert_eq!(
            bench.shell("sqlite3 db 'select count(*), sum(k) from t'"),
            rows,
            "{journal}: all was committed"
        );
        bench.unmount_clean();
    }
}

#[test]
fn fio_reads_back_its_own_data() {
    needs_fuse!("fio");
    let mut bench = Bench::mounted(512);
    let common =
        "--directory=. --size=24m --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting --minimal";
    for job in [
        "--name=buffered --rw=randwrite --bs=4k --ioengine=psync --numjobs=3 --end_fsync=1",
        "--name=mixed --rw=randrw --bsrange=512-64k --ioengine=psync --numjobs=2 --fsync=32",
        "--name=mapped --rw=randwrite --bs=4k --ioengine=mmap --numjobs=2",
        "--name=direct --rw=randwrite --bs=8k --ioengine=libaio --iodepth=8 --direct=1 --numjobs=2",
        "--name=sequential --rw=write --bs=1m --ioengine=psync --fdatasync=4",
    ] {
        bench.shell(&format!("fio {common} {job}"));
    }
    bench.unmount_clean();
}

#[test]
fn data_written_past_the_cache_is_read_through_it() {
    needs_fuse!("fio");
    let mut bench = Bench::mounted(64);
    bench.shell(
        "head -c 640k /dev/zero > file
         touch ../reading
         while test -e ../reading; do cat file > /dev/null; done & first=$!
         while test -e ../reading; do cat file > /dev/null; done & second=$!
         trap 'rm -f ../reading' EXIT
         for n in $(seq 65 84); do
             fio --name=w --filename=file --rw=write --bs=640k --size=640k --direct=1 --ioengine=libaio \
                 --iodepth=4 --overwrite=1 --invalidate=0 --buffer_pattern=$n --minimal > /dev/null
             byte=$(printf \\\\$(printf %o $n))
             test $(tr -d $byte < file | wc -c) = 0
         done
         rm ../reading; wait $first $second",
    );
    bench.unmount_clean();
}

#[test]
fn several_processes_at_once_leave_no_trace_of_one_another() {
    needs_fuse!();
    let mut bench = Bench::mounted(512);
    bench.shell(
        "work() {
             mkdir w$1; cd w$1
             for n in $(seq 60); do
                 mkdir d$n; head -c $((n * 997)) /dev/urandom > d$n/f; cp d$n/f d$n/g; ln d$n/f l$n; mv d$n/g g$n
                 cmp l$n g$n; truncate -s $((n * 500)) g$n; cmp -n $((n * 500)) l$n g$n
                 if test $((n % 3)) = 0; then rm -r d$n; fi
                 if test $((n % 10)) = 0; then sync g$n; fi
             done
         }
         for p in 1 2 3 4 5 6; do work $p & pids=\"${pids-} $!\"; done
         for pid in $pids; do wait $pid; done
         find . -type f | sort | xargs sha256sum > ../sums",
    );
    bench.unmount_clean();
    bench.mount("");
    bench.shell("sha256sum --quiet -c ../sums; rm -r w*");
    bench.unmount_clean();
}

#[test]
fn a_program_is_built_and_runs() {
    needs_fuse!("cc", "make");
    let mut bench = Bench::mounted(256);
    assert_eq!(
        bench.shell(
            "for n in $(seq 20); do echo \"int f$n(void) { return $n; }\" > f$n.c; done
             { for n in $(seq 20); do echo \"int f$n(void);\"; done; echo '#include <stdio.h>'; echo 'int main(void) { printf(\"%d\\n\", 0'
               for n in $(seq 20); do echo \"+ f$n()\"; done; echo '); }'; } > main.c
             printf 'sum: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n\\tcc -o $@ $^\\n' > Makefile
             make -s -j4; ./sum"
        ),
        "210\n"
    );
    bench.unmount_clean();
}
