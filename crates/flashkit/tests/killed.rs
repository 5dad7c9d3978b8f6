//! The end of a mount whose serving process is killed.

mod support;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, mpsc},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal},
};
use support::place::{PATIENCE, PROGRAM, Place, skipped, skipped_for_users};

/// Opens the connections of a process to the kernel once more. So they stay open when it is killed, as by a thread that
/// waits for the kernel's write-back.
fn connections_of(process: u32) -> Vec<OwnedFd> {
    let handle = rustix::process::pidfd_open(pid(process), PidfdFlags::empty()).expect("it lives");
    let is_connection =
        |fd: &fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|file| file == Path::new("/dev/fuse"));
    let open = fs::read_dir(format!("/proc/{process}/fd")).expect("it lives").map(Result::unwrap);
    let duplicate = |fd: fs::DirEntry| {
        let fd = fd.file_name().into_string().unwrap().parse().unwrap();
        rustix::process::pidfd_getfd(&handle, fd, PidfdGetfdFlags::empty()).unwrap()
    };
    let held: Vec<OwnedFd> = open.filter(is_connection).map(duplicate).collect();
    assert!(!held.is_empty(), "the mount has no connection");
    held
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(process as i32).expect("a process")
}

/// Returns the process that watches over another one, once it catches signals.
fn watcher_of(process: u32) -> u32 {
    let start = format!("flashkit\0mount\0--watches\0{process}\0");
    let is_it = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(&start)
    };
    let catches = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
        caught >> (Signal::USR1.as_raw() - 1) & 1 == 1
    };
    wait_for(|| {
        let entries = fs::read_dir("/proc").expect("there is /proc");
        let mut processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        processes.find(is_it).filter(catches)
    })
}

/// Calls `look` until it finds something.
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "it does not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Checks that the kernel answers for a mount which nobody serves.
fn assert_ended(path: PathBuf) {
    let (sender, answers) = mpsc::channel();
    std::thread::spawn(move || sender.send(fs::metadata(path).unwrap_err().raw_os_error()));
    let answer = answers.recv_timeout(PATIENCE).expect("an answer, although nobody serves the mount");
    let wanted = [Errno::NOTCONN, Errno::CONNABORTED].map(|errno| Some(errno.raw_os_error()));
    assert!(wanted.contains(&answer), "{answer:?}");
}

fn umount(place: &Place, flags: &[&str]) {
    // A process that another test has just forked holds copies of our files until it calls exec.
    wait_for(|| {
        let status = Command::new("umount").args(flags).arg(place.dir()).status().expect("there is umount");
        status.success().then_some(())
    });
}

#[test]
fn a_killed_mount_ends_although_its_connection_stays_open() {
    if skipped() {
        return;
    }
    let place = Place::new(64);
    for way in ["", "-l"] {
        place.mount();
        let dir = File::open(place.dir()).unwrap();
        let held = connections_of(place.daemon().expect("somebody answers"));
        if way == "-l" {
            umount(&place, &["-l"]);
        }
        place.signal("KILL");
        assert_ended(PathBuf::from(format!("/proc/self/fd/{}/missing", dir.as_raw_fd())));
        place.wait_for_end();
        drop((held, dir));
        if way.is_empty() {
            umount(&place, &[]);
        }
    }
    place.mount();
    place.unmount();
    place.assert_clean();
}

/// With the file system fusectl, as systemd mounts it, a user may end the own connections.
#[test]
fn a_killed_mount_of_an_ordinary_user_ends() {
    if skipped() || skipped_for_users() {
        return;
    }
    let place = Place::new(64);
    let script = format!(
        "mount --make-rprivate /
         mkdir dev; mount -t tmpfs none dev; mknod dev/fuse c 10 229; chmod 666 dev/fuse
         mount --bind dev/fuse /dev/fuse
         mount -t fusectl none /sys/fs/fuse/connections
         chmod 755 .; chown -R 65534 image mnt; cp {PROGRAM} flashkit; chmod 755 flashkit
         ./flashkit chown 65534:65534 image:/
         as='setpriv --reuid 65534 --regid 65534 --clear-groups'
         $as ./flashkit mount image mnt
         echo ready; read -r _
         LC_ALL=C $as timeout {} stat mnt/missing 2>&1 || echo $?
         $as fusermount3 -u mnt",
        PATIENCE.as_secs()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-euc", &script]).current_dir(place.0.path());
    let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(shell.stdout.take().expect("it is piped"));
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let held = connections_of(place.daemon().expect("somebody answers"));
    place.signal("KILL");
    shell.stdin.take().expect("it is piped").write_all(b"\n").unwrap();
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    drop(held);
    assert!(shell.wait().unwrap().success(), "{said}");
    assert!(said.contains("not connected") || said.contains("connection abort"), "{said}");
    place.wait_for_end();
}

/// A thread of the process waits in the kernel, which waits for the others.
#[test]
fn a_mount_that_is_killed_while_the_kernel_writes_back_ends() {
    if skipped() {
        return;
    }
    let place = Place::new(256);
    place.mount();
    let daemon = place.daemon().expect("somebody answers");
    let file = File::options().create_new(true).write(true).read(true).open(place.path("file")).unwrap();
    (&file).write_all(&vec![7; 64 << 20]).unwrap();
    let (sender, answers) = mpsc::channel();
    // The mount asks the kernel for its dirty pages first.
    std::thread::spawn(move || {
        let found = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0));
        drop(file);
        sender.send(found)
    });
    std::thread::sleep(Duration::from_millis(20));
    rustix::process::kill_process(pid(daemon), Signal::KILL).unwrap();
    // It may have been done before.
    let _ = answers.recv_timeout(PATIENCE).expect("the program goes on");
    place.wait_for_end();
    umount(&place, &[]);
    place.mount();
    place.unmount();
}

/// The key Ctrl-\ of a terminal sends SIGQUIT to the group of a foreground mount.
#[test]
fn signals_to_its_group_and_stray_ones_do_not_end_the_watcher() {
    if skipped() {
        return;
    }
    let place = Place::new(64);
    let mut command = Command::new(PROGRAM);
    command.args(["mount", "-f"]).args([place.image(), place.dir()]).current_dir(place.0.path());
    let mut mount = command.process_group(0).spawn().expect("it starts");
    let watcher = watcher_of(mount.id());
    wait_for(|| File::open(place.dir()).ok().filter(|_| place.is_mounted()));
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2] {
        rustix::process::kill_process(pid(watcher), signal).unwrap();
    }
    // It waits a second for the end of the mount before it takes SIGUSR1 for a stray one.
    std::thread::sleep(Duration::from_millis(1500));
    fs::write(place.path("file"), "x").expect("the mount goes on");
    let held = connections_of(mount.id());
    // Under nohup or in the background of a script, SIGQUIT may be ignored.
    rustix::process::kill_process_group(pid(mount.id()), Signal::KILL).unwrap();
    assert!(!mount.wait().unwrap().success());
    assert_ended(place.path("missing"));
    drop(held);
    umount(&place, &[]);
}

#[test]
fn a_watcher_that_comes_late_leaves_a_later_mount_alone() {
    if skipped() {
        return;
    }
    let place = Place::new(64);
    place.mount();
    let mounts = block::mounts().unwrap();
    let device = mounts.iter().find(|mount| mount.dir == place.dir()).expect("it is mounted").device;
    let (file, word) = fuse::Watched::open(&place.dir(), device).unwrap().into_parts();
    place.signal("KILL");
    place.wait_for_end();
    umount(&place, &[]);
    place.mount();
    // The new mount has the same number, unless another one has come first.
    fuse::Watched::from_parts(file, &word).expect("a word of it").abort().unwrap();
    fs::write(place.path("file"), "x").expect("the mount goes on");
    place.unmount();
    place.assert_clean();
}

#[test]
fn synced_data_survives_a_kill_under_load() {
    if skipped() {
        return;
    }
    let place = Place::new(256);
    let content = |writer: usize, number: usize| format!("{writer} {number} ").repeat(1 + number * 37 % 3000);
    let synced = Mutex::new(Vec::new());
    for round in 0..3 {
        place.mount();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (place, synced) = (&place, &synced);
                scope.spawn(move || {
                    let dir = place.path(&format!("{round}-{writer}"));
                    // Once the serving process is gone, every operation fails.
                    let mut write = |number: usize| -> std::io::Result<()> {
                        let name = dir.join(number.to_string());
                        let mut file = File::create(&name)?;
                        file.write_all(content(writer, number).as_bytes())?;
                        if number % 3 == 0 {
                            file.sync_all()?;
                            synced.lock().unwrap().push((round, writer, number));
                        }
                        if number % 10 == 9 {
                            fs::rename(&name, dir.join(format!("{number} renamed")))?;
                            fs::remove_file(dir.join((number - 1).to_string()))?;
                        }
                        Ok(())
                    };
                    let _ = fs::create_dir(&dir).map(|()| (0..).try_for_each(&mut write));
                });
            }
            let started = Instant::now();
            while synced.lock().unwrap().iter().filter(|one| one.0 == round).count() < 60 {
                assert!(started.elapsed() < PATIENCE, "the load is too slow to be one");
                std::thread::sleep(Duration::from_millis(5));
            }
            place.signal("KILL");
        });
        place.wait_for_end();
        assert!(Command::new("umount").arg("-l").arg(place.dir()).status().unwrap().success());
        place.mount();
        for (round, writer, number) in synced.lock().unwrap().iter() {
            let dir = place.path(&format!("{round}-{writer}"));
            let name = dir.join(number.to_string());
            let wanted = content(*writer, *number);
            // A synced file may have been renamed or removed later.
            let renamed = dir.join(format!("{number} renamed"));
            let removed = number % 10 == 8;
            let found = fs::read_to_string(&name).or_else(|_| fs::read_to_string(&renamed));
            match found {
                Ok(found) => assert!(found == wanted, "{name:?} differs from the synced data"),
                Err(error) => assert!(removed, "{name:?}: {error}"),
            }
        }
        place.unmount();
        place.assert_clean();
    }
}
