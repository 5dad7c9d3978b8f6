//! The end of a mount by umount, a signal or a crash, and the state of the volume afterwards.

mod support;

use std::{
    fs::{self, File},
    io::Write,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use support::{Bench, TRIES};

#[test]
fn signals_leave_a_clean_volume() {
    needs_fuse!();
    for signal in ["TERM", "INT"] {
        let mut bench = Bench::mounted(64);
        fs::create_dir(bench.path("dir")).unwrap();
        fs::write(bench.path("dir/file"), signal).unwrap();
        bench.signal(signal);
        bench.wait_for_end();
        assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 0, "nothing is mounted any more");
        bench.assert_clean();
        bench.mount("");
        assert_eq!(fs::read_to_string(bench.path("dir/file")).unwrap(), signal);
        bench.unmount();
    }
}

#[test]
fn without_checkpoints_the_volume_returns_to_its_old_state() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let (old, new) = (vec![1; 4 << 20], vec![2; 4 << 20]);
    fs::write(bench.path("kept"), &old).unwrap();
    fs::write(bench.path("removed"), "still there").unwrap();
    bench.unmount_clean();
    bench.mount("checkpoint=disable");
    fs::remove_file(bench.path("removed")).unwrap();
    // Without reuse of freed space this is far more than the volume holds.
    let mut refused = None;
    for round in 0..30 {
        let written = File::create(bench.path("kept")).and_then(|mut file| {
            file.write_all(&new)?;
            file.sync_all()
        });
        if let Err(error) = written {
            refused = Some((round, error.kind()));
            break;
        }
    }
    assert!(matches!(refused, Some((2.., std::io::ErrorKind::StorageFull))), "{refused:?}");
    bench.shell("! fstrim . 2> /dev/null");
    bench.unmount_clean();
    bench.mount("");
    assert!(fs::read(bench.path("kept")).unwrap() == old);
    assert_eq!(fs::read_to_string(bench.path("removed")).unwrap(), "still there");
    bench.unmount_clean();
}

#[test]
fn the_volume_is_clean_when_umount_returns() {
    needs_fuse!();
    let mut bench = Bench::mounted(256);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    if !mounts.lines().any(|line| line.contains(bench.path("").to_str().unwrap()) && line.contains("fuseblk"))
    {
        return eprintln!("skipped: no loop devices here, so umount does not wait");
    }
    for round in 0..5 {
        fs::create_dir(bench.path(&format!("dir{round}"))).unwrap();
        for number in 0..200 {
            fs::write(bench.path(&format!("dir{round}/{number}")), vec![7; number * 100]).unwrap();
        }
        let open_and_gone = File::create(bench.path("gone")).unwrap();
        fs::remove_file(bench.path("gone")).unwrap();
        drop(open_and_gone);
        bench.call_umount();
        // Neither the check nor the next mount waits for the old process.
        bench.assert_clean();
        let next = bench.mounted.take();
        bench.mount("");
        assert_eq!(fs::read_dir(bench.path(&format!("dir{round}"))).unwrap().count(), 200);
        assert!(next.unwrap().wait().unwrap().success());
    }
    bench.unmount_clean();
}

#[test]
fn a_mount_waits_for_a_program_that_is_closing_the_image() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    fs::write(bench.path("file"), "kept").unwrap();
    bench.unmount();
    let how = block::OpenOptions { write: true, direct: false };
    let writer = block::FileDevice::open(bench.image(), how).unwrap();
    let lets_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(writer);
    });
    bench.mount("");
    lets_go.join().unwrap();
    assert_eq!(fs::read_to_string(bench.path("file")).unwrap(), "kept");
    bench.unmount_clean();
}

#[test]
fn write_protected_images_are_mounted_read_only() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    fs::write(bench.path("file"), "kept").unwrap();
    bench.unmount();
    let Ok(device) = block::LoopDevice::attach_read_only(&bench.image()) else {
        return eprintln!("skipped: no loop devices here");
    };
    let mut protected = Bench::empty();
    fs::remove_file(protected.image()).ok();
    std::os::unix::fs::symlink(device.path(), protected.image()).unwrap();
    protected.mount("");
    assert_eq!(fs::read_to_string(protected.path("file")).unwrap(), "kept");
    let refused = fs::write(protected.path("file"), "changed").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    protected.unmount();
    drop(device);
    bench.assert_clean();
}

#[test]
fn a_signal_ends_a_mount_in_use_and_keeps_its_writes() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let mut file = File::create(bench.path("file")).unwrap();
    file.write_all(b"written and not synced").unwrap();
    let open_and_gone = File::create(bench.path("gone")).unwrap();
    fs::remove_file(bench.path("gone")).unwrap();
    bench.signal("TERM");
    bench.wait_for_end();
    assert!(file.write_all(b"too late").and_then(|()| file.sync_all()).is_err());
    drop((file, open_and_gone));
    bench.assert_clean();
    bench.mount("");
    assert_eq!(fs::read_to_string(bench.path("file")).unwrap(), "written and not synced");
    assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 1);
    bench.unmount();
}

#[test]
fn unmounting_under_load_leaves_a_clean_volume() {
    needs_fuse!();
    let mut bench = Bench::mounted(256);
    let mut load = Command::new("bash")
        .args(["-c", "cd \"$0\"; n=0; while echo $n > f$((n % 50)) && mkdir d$n && mv f$((n % 50)) d$n/; do n=$((n+1)); done"])
        .arg(bench.path(""))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while fs::read_dir(bench.path("")).unwrap().count() <= 10 {
        assert!(started.elapsed() < Duration::from_secs(60), "the load is too slow to be one");
        std::thread::sleep(Duration::from_millis(50));
    }
    let busy = Command::new("umount").arg(bench.path("")).stderr(Stdio::null()).status().unwrap();
    assert!(!busy.success(), "it is a working directory");
    let lazy = Command::new("umount").arg("-l").arg(bench.path("")).status().unwrap();
    assert!(lazy.success());
    std::thread::sleep(Duration::from_millis(200));
    load.kill().unwrap();
    load.wait().unwrap();
    bench.wait_for_end();
    bench.assert_clean();
    bench.mount("");
    assert!(fs::read_dir(bench.path("")).unwrap().count() > 10);
    bench.unmount_clean();
}

#[test]
fn a_signal_leaves_other_mounts_on_top_alone() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: others are root here");
    }
    let mut bench = Bench::mounted(64);
    fs::write(bench.path("file"), "written and not synced").unwrap();
    bench.shell("mount -t tmpfs tmpfs .");
    fs::write(bench.path("theirs"), "x").unwrap();
    bench.signal("TERM");
    bench.wait_for_end();
    let theirs = fs::read_to_string(bench.path("theirs"));
    // Unmounts the tmpfs, and what is left of ours.
    for _ in 0..2 {
        let _ = Command::new("umount").arg("-l").arg(bench.path("")).stderr(Stdio::null()).status();
    }
    assert_eq!(theirs.unwrap(), "x");
    bench.assert_clean();
    bench.mount("");
    assert_eq!(fs::read_to_string(bench.path("file")).unwrap(), "written and not synced");
    bench.unmount_clean();
}

#[test]
fn a_signal_ends_a_mount_wherever_it_is() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root moves mounts");
    }
    let mut bench = Bench::mounted(64);
    let other = bench.beside("other");
    fs::create_dir(&other).unwrap();
    bench.shell(&format!("mount --bind . {}", other.display()));
    bench.call_umount();
    fs::write(other.join("file"), "x").unwrap();
    bench.signal("TERM");
    bench.wait_for_end();
    let left = fs::read_dir(&other).map(Iterator::count);
    let _ = Command::new("umount").arg("-l").arg(&other).stderr(Stdio::null()).status();
    assert_eq!(left.unwrap(), 0, "it is mounted no more");
    bench.assert_clean();
}

#[test]
fn synced_data_survives_a_crash() {
    needs_fuse!();
    let mut bench = Bench::mounted(128);
    fs::create_dir(bench.path("dir")).unwrap();
    File::open(bench.path("dir")).unwrap().sync_all().unwrap();
    for number in 0..40 {
        let mut file = File::create(bench.path(&format!("dir/synced{number}"))).unwrap();
        file.write_all(format!("{number} ").repeat(number * 100 + 1).as_bytes()).unwrap();
        file.sync_all().unwrap();
        fs::write(bench.path(&format!("dir/unsynced{number}")), "may go").unwrap();
    }
    bench.crash();
    for round in 0..2 {
        bench.mount("");
        for number in 0..40 {
            let content = fs::read_to_string(bench.path(&format!("dir/synced{number}"))).unwrap();
            assert!(content == format!("{number} ").repeat(number * 100 + 1), "round {round}, file {number}");
        }
        fs::write(bench.path(&format!("after{round}")), "the mount still works").unwrap();
        bench.unmount_clean();
    }
}

#[test]
fn synchronous_directories_survive_a_crash() {
    needs_fuse!();
    let mut bench = Bench::new(128, &[]);
    // One case for each way to ask for it.
    for (options, dir, prepare) in [
        ("dirsync", "a", ""),
        ("sync", "b", ""),
        ("async", "c", "chattr +D c; sync -f ."),
        ("async", "d", "chattr +S d; sync -f ."),
    ] {
        bench.mount(&format!("{options},checkpoint_interval=1000"));
        bench.shell(&format!("mkdir {dir}; touch {dir}/gone {dir}/old; sync -f .; {prepare}"));
        let script =
            "mkdir dir; touch file; mknod fifo p; ln -s target link; ln file name; mv old new; rm gone";
        bench.shell(&format!("cd {dir}; {script}"));
        bench.crash();
        bench.mount("");
        assert_eq!(
            bench.shell(&format!("ls {dir} | xargs")),
            "dir fifo file link name new\n",
            "{options} {prepare}"
        );
        bench.unmount_clean();
    }
}

#[test]
fn a_mount_killed_during_its_end_releases_the_kernel() {
    needs_fuse!();
    // Otherwise every process that waits for the mount would block for ever, and so would every sync(2) on
    // the machine.
    for round in 0..10 {
        let mut bench = Bench::mounted(128);
        let mut in_use = File::create(bench.path("in use")).unwrap();
        in_use.write_all(&vec![7; 16 << 20]).unwrap();
        for number in 0..100 {
            fs::write(bench.path(&format!("f{number}")), [7; 5000]).unwrap();
        }
        let mut in_use = Some(in_use);
        if round % 2 == 0 {
            in_use.take();
        }
        bench.signal("TERM");
        std::thread::sleep(Duration::from_millis(6 * round));
        bench.kill();
        // The unmount may have finished before the kill or not.
        let _ = Command::new("umount").arg("-l").arg(bench.path("")).stderr(Stdio::null()).status();
        // While a program has a file of the dead mount open, the kernel keeps the loop device in exclusive
        // use.
        drop(in_use);
        bench.mount("");
        assert!(bench.path("f99").exists() || fs::read_dir(bench.path("")).is_ok());
        bench.unmount_clean();
    }
}

#[test]
fn the_last_process_of_a_mount_namespace_releases_the_kernel() {
    needs_fuse!("unshare");
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: a new namespace needs root");
    }
    let mut bench = Bench::new(64, &[]);
    for _ in 0..3 {
        bench.mount_apart();
        // The mount is visible only in that namespace, so it cannot be unmounted from here.
        bench.kill();
    }
    bench.mount("");
    bench.unmount_clean();
}

#[test]
fn a_checkpoint_is_written_without_a_sync() {
    needs_fuse!();
    let mut bench = Bench::new(64, &[]);
    bench.mount("checkpoint_interval=1");
    fs::create_dir(bench.path("dir")).unwrap();
    fs::write(bench.path("dir/file"), "in time").unwrap();
    let is_on_image = || {
        let device = block::FileDevice::open(bench.image(), block::OpenOptions::default()).ok()?;
        let volume = f2fs::engine::Engine::open(Arc::new(device), f2fs::engine::Options::read_only()).ok()?;
        let ino = volume.resolve(b"dir/file", f2fs::engine::FinalSymlink::NoFollow).ok()?;
        let mut content = [0; 7];
        volume.read(ino, 0, &mut content).ok()?;
        (content == *b"in time").then_some(())
    };
    let in_time = (0..TRIES).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        is_on_image()
    });
    assert!(in_time.is_some(), "no checkpoint was written");
    bench.crash();
    bench.mount("");
    assert_eq!(fs::read_to_string(bench.path("dir/file")).unwrap(), "in time");
    bench.unmount_clean();
}

#[test]
fn syncs_from_many_threads_all_count() {
    needs_fuse!();
    let mut bench = Bench::mounted(256);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let bench = &bench;
            scope.spawn(move || {
                for number in 0..25 {
                    let mut file = File::create(bench.path(&format!("f{thread}-{number}"))).unwrap();
                    file.write_all(&[thread as u8; 5000]).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    eprintln!("200 files with an fsync each took {:?}", started.elapsed());
    bench.crash();
    bench.mount("");
    for (thread, number) in (0..8).flat_map(|thread| (0..25).map(move |number| (thread, number))) {
        assert!(fs::read(bench.path(&format!("f{thread}-{number}"))).unwrap() == [thread as u8; 5000]);
    }
    bench.unmount_clean();
}

#[test]
fn a_file_size_limit_fails_writes_and_keeps_synced_data() {
    needs_fuse!("prlimit");
    let mut bench = Bench::new(64, &["-O", "extra_attr"]);
    let limit = 40 << 20;
    let mut limited = Command::new("prlimit");
    limited.args([&format!("--fsize={limit}"), "--"]);
    bench.mount_with(limited);
    let kept = vec![3; 1 << 20];
    fs::write(bench.path("kept"), &kept).unwrap();
    File::open(bench.path("kept")).and_then(|file| file.sync_all()).unwrap();
    let said = bench.shell("dd if=/dev/zero of=large bs=1M count=45 conv=fsync status=none 2>&1 || true");
    assert!(said.contains("dd:"), "the writer gets the error: {said}");
    // The process still answers; an unhandled SIGXFSZ would have killed it.
    fs::read_dir(bench.path("")).unwrap();
    bench.call_umount();
    let run = bench.mounted.take().unwrap().wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.code().is_some_and(|code| code != 0), "{}: {messages}", run.status);
    assert!(messages.contains("writing has stopped"), "{messages}");
    bench.mount("");
    assert!(fs::read(bench.path("kept")).unwrap() == kept);
    bench.unmount_clean();
}
