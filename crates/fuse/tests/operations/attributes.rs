//! Times, owners, modes, flags and extended attributes.

use std::path::Path;

use super::*;

#[test]
fn noseclabel_hides_and_keeps_the_labels_of_selinux() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let (label, other) = ("security.selinux", "security.other");
    fs::write(bench.path("file"), "content").unwrap();
    xattr::set(bench.path("file"), label, b"a:b:c").unwrap();
    xattr::set(bench.path("file"), other, b"seen").unwrap();
    bench.unmount_clean();
    bench.mount("noseclabel");
    let path = bench.path("file");
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::OPNOTSUPP.raw_os_error()));
    };
    let mut value = [0; 8];
    refused(rustix::fs::getxattr(&path, label, &mut value).map(drop).map_err(std::io::Error::from));
    refused(xattr::set(&path, label, b"x"));
    refused(xattr::remove(&path, label));
    assert_eq!(xattr::list(&path).unwrap().collect::<Vec<_>>(), [other]);
    assert_eq!(xattr::get(&path, other).unwrap().as_deref(), Some(&b"seen"[..]));
    bench.unmount_clean();
    bench.mount("noseclabel,seclabel");
    assert_eq!(xattr::get(bench.path("file"), label).unwrap().as_deref(), Some(&b"a:b:c"[..]));
    bench.unmount_clean();
}

#[test]
fn without_selinux_a_missing_label_is_not_supported_and_a_label_is_shown() {
    needs_fuse!();
    let label = "security.selinux";
    let missing = |bench: &Bench| {
        let errno = rustix::fs::getxattr(bench.path("without"), label, &mut [0; 8]).unwrap_err();
        assert!(xattr::get(bench.path("without"), "security.other").unwrap().is_none());
        errno
    };
    let mut bench = Bench::mounted(64);
    for name in ["with", "without"] {
        fs::write(bench.path(name), "content").unwrap();
    }
    xattr::set(bench.path("with"), label, b"a:b:c").unwrap();
    bench.unmount_clean();
    bench.mount("");
    let wanted = if Path::new("/sys/fs/selinux").exists() { Errno::NODATA } else { Errno::OPNOTSUPP };
    assert_eq!(missing(&bench), wanted);
    assert_eq!(xattr::get(bench.path("with"), label).unwrap().as_deref(), Some(&b"a:b:c"[..]));
    bench.unmount_clean();
    bench.mount("seclabel");
    assert_eq!(missing(&bench), Errno::NODATA);
    bench.unmount_clean();
}

#[test]
fn times_owners_and_modes_are_kept() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let path = bench.path("file");
    fs::write(&path, "x").unwrap();
    std::os::unix::fs::chown(&path, Some(1234), Some(70_000)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o4751)).unwrap();
    let times = |access: (i64, i64), change: (i64, i64)| Timestamps {
        last_access: Timespec { tv_sec: access.0, tv_nsec: access.1 as _ },
        last_modification: Timespec { tv_sec: change.0, tv_nsec: change.1 as _ },
    };
    rustix::fs::utimensat(CWD, &path, &times((-5, 999_999_999), (4_000_000_000, 1)), AtFlags::empty())
        .unwrap();
    symlink("file", bench.path("link")).unwrap();
    rustix::fs::utimensat(CWD, bench.path("link"), &times((7, 8), (9, 10)), AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
    through_the_image(&mut bench);
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (1234, 70_000, 0o4751));
    assert_eq!((stat.atime(), stat.atime_nsec()), (-5, 999_999_999));
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (4_000_000_000, 1));
    let link = fs::symlink_metadata(bench.path("link")).unwrap();
    assert_eq!((link.atime(), link.mtime(), link.mtime_nsec()), (7, 9, 10));

    // A change of owner clears the set-user-id bit, for root, too (Linux).
    std::os::unix::fs::chown(&path, Some(1), None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o751);
    // So does a write by a user without the capability to keep it.
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    bench.shell("setpriv --reuid 2000 --regid 2000 --clear-groups sh -c 'echo more >> file'");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    bench.shell("setpriv --reuid 2000 --regid 2000 --clear-groups truncate -s 1 file");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(&path, "later").unwrap();
    let after = fs::metadata(&path).unwrap();
    assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    bench.unmount_clean();
}

#[test]
fn rights_are_checked() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench.shell(
        "chmod 755 .; mkdir private shared sticky; chmod 700 private; chmod 2777 shared; chmod 1777 sticky
         chgrp 4000 shared; echo secret > file; chmod 600 file; echo mine > sticky/root",
    );
    let other = |script: &str| {
        let run = Command::new("setpriv")
            .args(["--reuid", "2000", "--regid", "2000", "--clear-groups", "bash", "-c", script])
            .current_dir(bench.path(""))
            .output()
            .unwrap();
        run.status.success()
    };
    assert!(!other("cat file") && !other("ls private") && !other("touch new") && !other("rm -f sticky/root"));
    assert!(!other("chmod 777 file") && !other("chown 2000 file"));
    assert!(other("umask 022; mkdir shared/dir && echo x > shared/dir/f && chmod 640 shared/dir/f"));
    let dir = fs::metadata(bench.path("shared/dir")).unwrap();
    assert_eq!((dir.uid(), dir.gid(), dir.mode() & 0o7777), (2000, 4000, 0o2755), "the group is inherited");
    let file = fs::metadata(bench.path("shared/dir/f")).unwrap();
    assert_eq!((file.gid(), file.mode() & 0o7777), (4000, 0o640));
    bench.unmount_clean();
}

#[test]
fn extended_attributes_and_access_lists_are_kept() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let path = bench.path("file");
    fs::write(&path, "x").unwrap();
    let big = noise(3000, 5);
    xattr::set(&path, "user.small", b"1").unwrap();
    xattr::set(&path, "user.big", &big).unwrap();
    xattr::set(&path, "user.empty", b"").unwrap();
    xattr::set(&path, "trusted.t", b"t").unwrap();
    xattr::set(&path, "security.s", b"s").unwrap();
    assert_eq!(
        xattr::remove(&path, "user.none").unwrap_err().raw_os_error(),
        Some(Errno::NODATA.raw_os_error())
    );
    let too_big = xattr::set(&path, "user.huge", &noise(8000, 1)).unwrap_err();
    assert_eq!(too_big.raw_os_error(), Some(Errno::TOOBIG.raw_os_error()));
    bench.shell(
        "mkdir dir; setfacl -m u:2000:rwx,g:3000:r-x,m::rwx dir; setfacl -d -m u:2000:rwx,o::--- dir
         umask 077; touch dir/file; mkdir dir/sub; setfacl -m u:5000:rw file; chmod 640 file",
    );
    through_the_image(&mut bench);
    assert_eq!(xattr::get(&path, "user.big").unwrap().as_deref(), Some(&big[..]));
    assert_eq!(xattr::get(&path, "user.empty").unwrap().as_deref(), Some(&b""[..]));
    let mut names: Vec<_> = xattr::list(&path).unwrap().map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(
        names,
        ["security.s", "system.posix_acl_access", "trusted.t", "user.big", "user.empty", "user.small"]
    );
    let acl = |name: &str| bench.shell(&format!("getfacl -cpnE {name}"));
    assert_eq!(acl("file"), "user::rw-\nuser:5000:rw-\ngroup::r--\nmask::r--\nother::---\n\n");
    // A default ACL overrides the umask.
    assert_eq!(acl("dir/file"), "user::rw-\nuser:2000:rwx\ngroup::r-x\nmask::rw-\nother::---\n\n");
    let default = "default:user::rwx\ndefault:user:2000:rwx\ndefault:group::r-x\ndefault:mask::rwx\ndefault:other::---\n\n";
    assert_eq!(
        acl("dir/sub"),
        format!("user::rwx\nuser:2000:rwx\ngroup::r-x\nmask::rwx\nother::---\n{default}")
    );
    // The kernel enforces the ACLs.
    bench
        .shell("setpriv --reuid 2000 --regid 2000 --clear-groups sh -c 'echo x > dir/file; touch dir/sub/y'");
    let refused = bench.shell("setpriv --reuid 2001 --regid 2001 --clear-groups cat dir/file 2>&1 || true");
    assert!(refused.contains("Permission denied"), "{refused}");
    bench.shell("setfacl -b file; getfacl -cp file | grep -vq mask; rm -r dir");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    bench.unmount_clean();
}

#[test]
fn inode_flags_have_their_effect() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench.shell("echo one > fixed; echo one > log; mkdir dir; chattr +i fixed; chattr +a log; chattr +i dir");
    through_the_image(&mut bench);
    let fails = |script: &str| {
        bench.shell(&format!("if ({script}) 2>/dev/null; then echo done; else echo refused; fi"))
    };
    for script in [
        "echo two > fixed",
        "echo two >> fixed",
        "rm -f fixed",
        "mv fixed moved",
        "ln fixed link",
        "chmod 777 fixed",
        "truncate -s 0 fixed",
        "setfattr -n user.a -v b fixed",
        "touch -d 2001-01-01 fixed",
        "touch dir/new",
        "echo two > log",
        "rm -f log",
        "truncate -s 0 log",
        // F2FS has no such flag.
        "chattr +j log",
    ] {
        assert_eq!(fails(script), "refused\n", "{script}");
    }
    // An exchange would remove a name from an append-only directory.
    bench.shell("mkdir logs; echo new > file; echo old > logs/file; chattr +a logs");
    let (outside, inside) = (bench.path("file"), bench.path("logs/file"));
    for (from, to) in [(&outside, &inside), (&inside, &outside)] {
        let exchanged = rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE);
        assert_eq!(exchanged, Err(Errno::PERM), "{from:?}");
    }
    bench.shell("chattr -a logs; rm -r logs");
    bench.shell("echo two >> log; test \"$(cat log)\" = $'one\\ntwo'");
    assert!(bench.shell("lsattr fixed log").contains("----i"));
    bench.shell("chattr -i fixed dir; chattr -a log; rm -r fixed log dir");
    bench.unmount_clean();
}

#[test]
fn times_of_protected_files_stay_as_on_linux() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench
        .shell("echo x > plain; echo x > fixed; echo x > log; mkdir dir; chattr +i fixed dir; chattr +a log");
    let nanoseconds = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let (now, omit) = (nanoseconds(rustix::fs::UTIME_NOW), nanoseconds(rustix::fs::UTIME_OMIT));
    let given = Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
    let set = |bench: &Bench, name: &str, atime, mtime| {
        let times = Timestamps { last_access: atime, last_modification: mtime };
        rustix::fs::utimensat(CWD, bench.path(name), &times, AtFlags::empty())
    };
    for _ in 0..2 {
        through_the_image(&mut bench);
        for (atime, mtime) in [
            (given, given),
            (given, now),
            (now, given),
            (given, omit),
            (omit, given),
            (now, omit),
            (omit, now),
        ] {
            for name in ["fixed", "log", "dir"] {
                assert_eq!(set(&bench, name, atime, mtime), Err(Errno::PERM), "{name}: {atime:?} {mtime:?}");
            }
            set(&bench, "plain", atime, mtime).unwrap();
        }
        // An append-only file accepts only both times set to the current time.
        assert_eq!(set(&bench, "fixed", now, now), Err(Errno::PERM));
        assert_eq!(set(&bench, "dir", now, now), Err(Errno::PERM));
        set(&bench, "log", now, now).unwrap();
        set(&bench, "plain", now, now).unwrap();
    }
    // Times that the kernel writes back are not explicit times of a caller.
    bench.shell("echo more >> log; sync log; chattr -i fixed; ln fixed linked; chattr +i fixed; sync fixed");
    bench.shell("chattr -i fixed dir; chattr -a log");
    bench.unmount_clean();
}

#[test]
fn an_access_changes_the_time_even_if_the_kernel_has_everything_cached() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let path = bench.path("file");
    let accessed = || fs::metadata(&path).unwrap().accessed().unwrap();
    // After this the content is in the page cache, and after the second stat(2) so are the attributes.
    fs::write(&path, "content").unwrap();
    let (written, known) = (accessed(), accessed());
    assert_eq!(written, known);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(fs::read(&path).unwrap(), b"content");
    let first = accessed();
    assert!(first > written, "{first:?}");
    // The access time is later than the last change now, and stays for a day.
    std::thread::sleep(Duration::from_millis(20));
    fs::read(&path).unwrap();
    assert_eq!(accessed(), first);
    bench.unmount_clean();
}

#[test]
fn times_stay_as_they_were_while_the_kernel_had_the_file() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    // Some of them are created in one clock tick and written back in the next.
    let names: Vec<String> = (0..200).map(|n| format!("file{n}")).collect();
    let times = |bench: &Bench| -> Vec<_> {
        let facts = names.iter().map(|name| fs::metadata(bench.path(name)).unwrap());
        facts.map(|facts| (facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec())).collect()
    };
    for name in &names {
        fs::write(bench.path(name), "content").unwrap();
    }
    let shown = times(&bench);
    through_the_image(&mut bench);
    assert_eq!(times(&bench), shown);
    bench.unmount_clean();
}

#[test]
fn attributes_that_do_not_fit_fail_as_on_linux() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let file = bench.path("file");
    fs::write(&file, "x").unwrap();
    let set = |name: &str, bytes: usize| {
        let done = xattr::set(&file, name, &vec![b'x'; bytes]);
        done.map_err(|error| error.raw_os_error().unwrap_or_default())
    };
    let [too_large, range, no_space] = [Errno::TOOBIG, Errno::RANGE, Errno::NOSPC].map(Errno::raw_os_error);
    for bytes in [5000, 65_536, 65_537] {
        assert_eq!(set("user.large", bytes), Err(too_large), "{bytes}");
    }
    assert_eq!(set(&format!("user.{}", "n".repeat(251)), 1), Err(range));
    set("user.large", 3000).unwrap();
    assert_eq!(set("user.more", 2000), Err(too_large));
    bench.shell("touch other; dd if=/dev/zero of=fill bs=1M conv=fsync status=none 2>/dev/null || true");
    bench.shell("dd if=/dev/zero of=rest bs=4k conv=fsync status=none 2>/dev/null || true");
    let full = (0..64).find_map(|n| {
        fs::write(bench.path(&format!("small{n}")), "x").err().map(|error| error.raw_os_error().unwrap())
    });
    assert_eq!(full, Some(no_space));
    let other = bench.path("other");
    let refused = (0..16).find_map(|n| xattr::set(&other, format!("user.{n}"), &[b'x'; 1000]).err());
    assert_eq!(refused.unwrap().raw_os_error(), Some(no_space));
    // A full volume still allows renames, also over an existing name.
    bench.shell("mv file moved; mv other moved; ln moved linked; test ! -e other; rm fill");
    bench.unmount_clean();
}

#[test]
fn writes_accepted_before_a_flag_is_set_are_kept() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench.shell(
        "touch log; chattr +a log; for n in 1 2 3; do echo $n >> log; done
         exec 3> fixed; echo before >&3; chattr +i fixed; exec 3>&-
         exec 4>> open; echo one >&4; chattr +a open; echo two >> open; echo three >&4; exec 4>&-
         echo before > anywhere; sync anywhere; exec 5<> anywhere; chattr +a anywhere; printf after >&5; exec 5>&-",
    );
    // Several requests, none of which begins where the previous one ended.
    let large = noise(3 << 20, 13);
    bench.shell("touch large; chattr +a large");
    for chunk in large.chunks(700_001) {
        let mut file = OpenOptions::new().append(true).open(bench.path("large")).unwrap();
        file.write_all(chunk).unwrap();
        file.sync_all().unwrap();
    }
    through_the_image(&mut bench);
    let content = |name: &str| fs::read_to_string(bench.path(name)).unwrap();
    assert_eq!(content("log"), "1\n2\n3\n");
    assert_eq!(content("fixed"), "before\n");
    assert_eq!(content("open"), "one\ntwo\nthree\n");
    assert_eq!(content("anywhere"), "aftere\n", "an open file is still usable");
    assert!(fs::read(bench.path("large")).unwrap() == large);

    // A program with an append-only file open for appending can clear O_APPEND; the kernel allows it.
    let mut file = OpenOptions::new().append(true).open(bench.path("log")).unwrap();
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty()).unwrap();
    file.write_all_at(b"forged", 0).unwrap();
    file.sync_all().unwrap_err();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"4\n").unwrap();
    drop(file);
    through_the_image(&mut bench);
    assert_eq!(fs::read_to_string(bench.path("log")).unwrap(), "1\n2\n3\n4\n");
    bench.unmount_clean();
}

#[test]
fn flags_are_changed_by_owners_and_administrators() {
    needs_fuse!("python3");
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: acting as another user needs root");
    }
    let mut bench = Bench::mounted(64);
    bench.shell("chmod 755 .; echo x > roots; chmod 666 roots; echo x > own; chown 2000 own");
    let ask = "
import fcntl, os, struct, sys
name, (user, number, flags) = sys.argv[1], (int(arg, 0) for arg in sys.argv[2:])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
try:
    fcntl.ioctl(os.open(name, os.O_RDONLY), number, struct.pack('II', flags, 0))
    print('done')
except PermissionError:
    print('refused')
";
    fs::write(bench.beside("flags.py"), ask).unwrap();
    let ask = |arguments: String| bench.shell(&format!("python3 ../flags.py {arguments}"));
    // The ioctl number of 32-bit programs, which the kernel passes on unchanged, and the usual one.
    for number in ["0x40046602", "0x40086602"] {
        for (name, flags, said) in [
            ("roots", "0x40", "refused\n"), // no dump
            ("roots", "0x10", "refused\n"), // immutable
            ("own", "0x10", "refused\n"),
            ("own", "0x20", "refused\n"), // append-only
            ("own", "0x40", "done\n"),
        ] {
            assert_eq!(ask(format!("{name} 2000 {number} {flags}")), said, "{number} {name} {flags}");
        }
        assert_eq!(ask(format!("own 0 {number} 0x50")), "done\n");
        assert_eq!(ask(format!("own 2000 {number} 0x40")), "refused\n");
        assert_eq!(ask(format!("own 0 {number} 0")), "done\n");
    }
    bench.unmount_clean();
}
