//! The transports between the kernel and the process that answers: `/dev/fuse`, and io_uring where the kernel offers it.

mod support;

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    process::{Command, Stdio},
    sync::Barrier,
    thread,
};

use rustix::{fs::OFlags, io::Errno};
use support::{Bench, TRIES, with_aligned};

/// A way to the kernel, with the option that selects it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Device,
    IoUring,
}

impl Transport {
    fn option(self) -> &'static str {
        match self {
            Transport::Device => "no_io_uring",
            Transport::IoUring => "io_uring",
        }
    }
}

/// Returns the transports that this kernel has.
fn transports() -> Vec<Transport> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let offered = read("/sys/module/fuse/parameters/enable_uring").trim() == "Y";
    let allowed = read("/proc/sys/kernel/io_uring_disabled").trim() == "0";
    match offered && allowed {
        true => vec![Transport::Device, Transport::IoUring],
        false => {
            eprintln!(
                "skipped over io_uring: the parameter enable_uring of the module fuse is not Y, or io_uring is disabled"
            );
            vec![Transport::Device]
        }
    }
}

/// Mounts an image of 256 MiB over a transport, and checks that the transport is used.
fn mounted(transport: Transport) -> Bench {
    let mut bench = Bench::new(256, &["-O", "extra_attr,inode_checksum,sb_checksum,inode_crtime"]);
    mount(&mut bench, transport);
    bench
}

fn mount(bench: &mut Bench, transport: Transport) {
    bench.mount(&format!("allow_other,{}", transport.option()));
    bench.path("no such file").symlink_metadata().unwrap_err();
    // One ring keeps the entries, and each worker has another one.
    match transport {
        Transport::Device => assert_eq!(rings(bench), 0),
        Transport::IoUring => assert!(rings(bench) >= 2, "{} rings", rings(bench)),
    }
}

/// Returns the number of rings of the process that answers.
fn rings(bench: &Bench) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", bench.pid())).unwrap();
    let is_ring = |path: &Path| fs::read_link(path).is_ok_and(|file| file.ends_with("anon_inode:[io_uring]"));
    files.filter(|file| file.as_ref().is_ok_and(|file| is_ring(&file.path()))).count()
}

#[test]
fn every_kind_of_request_works_over_each_transport() {
    needs_fuse!();
    for transport in transports() {
        let mut bench = mounted(transport);
        fs::create_dir_all(bench.path("dir/below")).unwrap();
        let long = "n".repeat(255);
        for name in ["a", &long] {
            fs::write(bench.path(&format!("dir/{name}")), name).unwrap();
            assert_eq!(fs::read_to_string(bench.path(&format!("dir/{name}"))).unwrap(), name);
        }
        let target = "t/".repeat(1500);
        std::os::unix::fs::symlink(&target, bench.path("link")).unwrap();
        assert_eq!(fs::read_link(bench.path("link")).unwrap(), Path::new(&target));
        for bytes in [0, 1, 3000] {
            xattr::set(bench.path("dir/a"), "user.value", &vec![b'v'; bytes]).unwrap();
            assert_eq!(xattr::get(bench.path("dir/a"), "user.value").unwrap().unwrap().len(), bytes);
        }
        assert_eq!(xattr::list(bench.path("dir/a")).unwrap().count(), 1);
        xattr::remove(bench.path("dir/a"), "user.value").unwrap();
        assert_eq!(xattr::get(bench.path("dir/a"), "user.value").unwrap(), None);
        fs::rename(bench.path("dir/a"), bench.path("dir/below/b")).unwrap();
        fs::hard_link(bench.path("dir/below/b"), bench.path("c")).unwrap();
        (0..500).for_each(|number| drop(File::create(bench.path(&format!("dir/below/{number}"))).unwrap()));
        assert_eq!(fs::read_dir(bench.path("dir/below")).unwrap().count(), 501);
        bench.shell("chattr +d c; lsattr c; mkfifo fifo; fallocate -l 1M c; cp --reflink=never c copy; truncate -s 5 copy");
        bench.shell("stat -f . > /dev/null; touch -d 2001-02-03 copy; chmod 600 copy; sync -f .; rm -r dir/below; rm fifo");
        assert_eq!(fs::metadata(bench.path("copy")).unwrap().len(), 5);
        bench.unmount_clean();
        mount(&mut bench, transport);
        assert_eq!(fs::read(bench.path("c")).unwrap()[..2], *b"a\0");
        bench.unmount_clean();
    }
}

#[test]
fn data_is_the_same_over_each_transport() {
    needs_fuse!();
    for transport in transports() {
        let mut bench = mounted(transport);
        let content: Vec<u8> = (0..12_345_678_u32).map(|number| (number / 3 % 251) as u8).collect();
        fs::write(bench.path("file"), &content).unwrap();
        File::open(bench.path("file")).unwrap().sync_all().unwrap();
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(bench.path("file"))
            .unwrap();
        with_aligned(1 << 20, |buffer| {
            direct.read_exact_at(buffer, 4096).unwrap();
            assert!(buffer == &content[4096..][..1 << 20]);
            buffer.fill(9);
            direct.write_all_at(buffer, 8192).unwrap();
        });
        bench.shell(
            "python3 - <<'END'\nimport mmap, os\nf = os.open('file', os.O_RDWR)\nm = mmap.mmap(f, 0)\nm[5:9] = b'mmap'\nm.flush()\nEND",
        );
        drop(direct);
        let check = |bench: &Bench| {
            let mut seen = Vec::new();
            File::open(bench.path("file")).unwrap().read_to_end(&mut seen).unwrap();
            let mut wanted = content.clone();
            wanted[8192..][..1 << 20].fill(9);
            wanted[5..9].copy_from_slice(b"mmap");
            assert!(seen == wanted);
        };
        check(&bench);
        bench.unmount_clean();
        mount(&mut bench, transport);
        check(&bench);
        bench.unmount_clean();
    }
}

#[test]
fn many_threads_are_answered_over_each_transport() {
    needs_fuse!();
    for transport in transports() {
        let mut bench = mounted(transport);
        thread::scope(|scope| {
            for number in 0..32 {
                let bench = &bench;
                scope.spawn(move || {
                    let dir = bench.path(&format!("{number}"));
                    fs::create_dir(&dir).unwrap();
                    for round in 0..20 {
                        let path = dir.join(round.to_string());
                        let content = vec![number as u8; 1000 * (round + 1)];
                        fs::write(&path, &content).unwrap();
                        if round % 7 == 0 {
                            File::open(&path).unwrap().sync_data().unwrap();
                        }
                        assert!(fs::read(&path).unwrap() == content);
                        fs::rename(&path, dir.join("renamed")).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 32);
        bench.unmount_clean();
    }
}

/// Number of rounds of each thread that waits for write-backs.
const ROUNDS: usize = 1;

/// Answers that wait for the kernel's write-back keep their entries of io_uring, and the writes need other ones. All threads
/// run on one processor, whose queue has fewer entries than there are threads, and ask while a large file is written back.
#[test]
fn more_waiting_answers_than_entries_block_nobody() {
    const THREADS: usize = 280;
    needs_fuse!("taskset");
    for transport in transports() {
        let mut bench = Bench::new(256, &[]);
        let mut on_one = Command::new("taskset");
        on_one.args(["-c", "0"]);
        bench.try_mount_with(on_one, transport.option()).unwrap();
        fs::write(bench.path("direct"), vec![1; THREADS * 4096]).unwrap();
        File::open(bench.path("direct")).unwrap().sync_all().unwrap();
        fs::read(bench.path("direct")).unwrap();
        let barrier = Barrier::new(THREADS);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (bench, barrier) = (&bench, &barrier);
                scope.spawn(move || wait_for_write_backs(bench, barrier, number));
            }
        });
        assert!(fs::read(bench.path("direct")).unwrap() == vec![ROUNDS as u8; THREADS * 4096]);
        bench.unmount_clean();
    }
}

/// Asks for a hole in a file that the kernel has not written back, and writes directly to one that it has cached.
fn wait_for_write_backs(bench: &Bench, barrier: &Barrier, number: usize) {
    let mut processors = rustix::thread::CpuSet::new();
    processors.set(0);
    rustix::thread::sched_setaffinity(None, &processors).unwrap();
    let mut file = File::create(bench.path(&format!("{number}"))).unwrap();
    let bytes = if number == 0 { 16 << 20 } else { 10_000 };
    for round in 1..=ROUNDS {
        file.write_all(&vec![7; bytes]).unwrap();
        barrier.wait();
        match first_hole(&file) {
            Ok(hole) => assert_eq!(hole, (round * bytes) as u64),
            Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::AGAIN.raw_os_error())),
        }
        file.seek(SeekFrom::End(0)).unwrap();
        let direct = OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(bench.path("direct"))
            .unwrap();
        with_aligned(4096, |buffer| {
            buffer.fill(round as u8);
            direct.write_all_at(buffer, number as u64 * 4096).unwrap();
        });
    }
}

fn first_hole(file: &File) -> std::io::Result<u64> {
    Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(0))?)
}

#[test]
fn a_busy_mount_can_be_ended_over_each_transport() {
    needs_fuse!();
    for transport in transports() {
        for end in ["umount", "TERM", "kill", "abort"] {
            let mut bench = mounted(transport);
            fs::write(bench.path("synced"), "kept").unwrap();
            File::open(bench.path("synced")).unwrap().sync_all().unwrap();
            let mut load = Command::new("bash")
                .args([
                    "-c",
                    "cd \"$0\"; for w in 1 2 3; do (n=0; while echo $n > f$w-$((n % 50)) && \
                    dd if=/dev/zero of=big$w bs=1M count=3 2> /dev/null; do n=$((n+1)); done) & done; wait",
                ])
                .arg(bench.path(""))
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let has_begun = || fs::read_dir(bench.path("")).is_ok_and(|names| names.count() > 20);
            let begun = (0..TRIES).any(|_| {
                thread::sleep(std::time::Duration::from_millis(10));
                has_begun()
            });
            assert!(begun, "the load does nothing");
            match end {
                "umount" => {
                    assert!(Command::new("umount").arg("-l").arg(bench.path("")).status().unwrap().success());
                    thread::sleep(std::time::Duration::from_millis(100));
                }
                "TERM" => bench.signal("TERM"),
                "kill" => bench.crash(),
                _ => {
                    if let Err(error) = bench.abort() {
                        eprintln!("skipped: the connection cannot be aborted: {error}");
                    }
                    assert!(Command::new("umount").arg("-l").arg(bench.path("")).status().unwrap().success());
                }
            }
            // Its loops end with their subshells, if they have not ended by errors.
            let _ = Command::new("pkill").args(["-9", "-P", &load.id().to_string()]).status();
            load.wait().unwrap();
            if end != "kill" {
                bench.wait_for_end();
            }
            mount(&mut bench, transport);
            assert_eq!(fs::read_to_string(bench.path("synced")).unwrap(), "kept", "{end}");
            bench.unmount_clean();
        }
    }
}

#[test]
fn a_mount_without_memory_for_io_uring_uses_the_device() {
    needs_fuse!("prlimit");
    if !transports().contains(&Transport::IoUring) {
        return;
    }
    let mut bench = Bench::new(64, &[]);
    // The entries do not fit into this address space, and all else does.
    let mut limited = Command::new("prlimit");
    limited.args(["--as=120000000", "--"]).env("MALLOC_ARENA_MAX", "1");
    bench.try_mount_with(limited, "io_uring,threads=2,cache=4M").unwrap();
    fs::write(bench.path("file"), "x").unwrap();
    assert_eq!((rings(&bench), fs::read_to_string(bench.path("file")).unwrap()), (0, "x".to_string()));
    let messages = bench.unmount_and_hear();
    assert!(messages.contains("/dev/fuse"), "{messages}");
    bench.assert_clean();
}

/// The thread that keeps the entries then answers itself.
#[test]
fn a_mount_without_files_for_further_rings_answers_all_requests() {
    needs_fuse!("prlimit");
    if !transports().contains(&Transport::IoUring) {
        return;
    }
    let mut bench = Bench::new(256, &[]);
    mount(&mut bench, Transport::IoUring);
    let files = fs::read_dir(format!("/proc/{}/fd", bench.pid())).unwrap();
    let numbers = files.filter_map(|file| file.ok()?.file_name().into_string().ok()?.parse::<u32>().ok());
    let used: Vec<u32> = numbers.collect();
    let limit = format!("--nofile={}", (0..).find(|number| !used.contains(number)).unwrap());
    let before = rings(&bench);
    assert!(
        Command::new("prlimit").args(["--pid", &bench.pid().to_string(), &limit]).status().unwrap().success()
    );
    thread::scope(|scope| {
        for number in 0..8 {
            let bench = &bench;
            scope.spawn(move || {
                let path = bench.path(&number.to_string());
                let content = vec![number; 3 << 20];
                fs::write(&path, &content).unwrap();
                File::open(&path).unwrap().sync_all().unwrap();
                assert!(fs::read(&path).unwrap() == content);
            });
        }
    });
    assert_eq!(rings(&bench), before);
    bench.unmount_clean();
}

#[test]
fn a_mount_that_shall_use_io_uring_tells_why_it_does_not() {
    needs_fuse!();
    for (options, is_told) in [("", false), ("io_uring", true), ("no_io_uring", false)] {
        let mut bench = Bench::new(64, &[]);
        bench.mount(options);
        fs::write(bench.path("file"), "x").unwrap();
        let has_rings = rings(&bench) > 0;
        let messages = bench.unmount_and_hear();
        assert_eq!(messages.contains("/dev/fuse"), is_told && !has_rings, "{options}: {messages}");
    }
}
