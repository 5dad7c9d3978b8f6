//! The background process of `flashkit mount`: started by hand, by mount(8) and from fstab, and its end.
//! fsck.f2fs judges the resulting volume.

mod support;

use std::{
    fs::{self, File},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use block::FileDevice;
use f2fs::{
    engine::{Engine, Options},
    units::Nid,
};
use support::place::{PATIENCE, PROGRAM, Place, skipped, skipped_for_users, succeeded};

/// Held while /dev/fuse is open to all users.
static FUSE_FOR_ALL: Mutex<()> = Mutex::new(());

/// Runs a script with the program installed as a helper of mount(8), which searches only /sbin. The change is
/// visible only to the script.
fn with_helper(place: &Place, script: &str) -> Output {
    let prepared = format!(
        "mount --make-rprivate /
         sbin=$(readlink -f /sbin)
         mkdir real helpers
         mount --bind $sbin real
         ln -s $PWD/real/* helpers/
         ln -sf {PROGRAM} helpers/mount.fuse.flashkit
         ln -sf {PROGRAM} helpers/mount.fuseblk.flashkit
         mount --bind helpers $sbin
         ended() {{ flock --timeout 60 image true; }}
         {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-euo", "pipefail", "-c", &prepared]).current_dir(place.0.path());
    command.output().expect("unshare is installed")
}

#[test]
fn mount_8_calls_the_program_by_type_and_by_fstab() {
    if skipped() {
        return;
    }
    let place = Place::new(64);
    let run = with_helper(
        &place,
        "mount -t fuse.flashkit -o noatime,active_logs=4 image mnt
         echo by type > mnt/file
         grep -q \" $PWD/mnt .*noatime.* fuse[a-z]*.flashkit \" /proc/self/mountinfo
         ! mount -t fuse.flashkit image mnt 2> refused
         grep -q \"mounted at $PWD/mnt\" refused
         umount mnt; ended; fsck.f2fs --dry-run -f image > fsck
         echo \"$PWD/image $PWD/mnt fuse.flashkit noauto,nofail,user,x-systemd.automount,allow_other,ro 0 0\" > fstab
         mount -T fstab $PWD/mnt
         test \"$(cat mnt/file)\" = 'by type'
         ! touch mnt/new 2> /dev/null
         fusermount3 -u mnt; ended
         mount -r -t fuse.flashkit image mnt
         ! touch mnt/new 2> /dev/null
         umount mnt; ended
         sed -i s/,ro// fstab
         mount -T fstab mnt
         touch mnt/new
         mount -o remount,ro mnt
         ! touch mnt/newer 2> /dev/null
         mount -o remount,rw,noatime mnt
         touch mnt/newer
         grep -q \" $PWD/mnt .*noatime.* fuse[a-z]*.flashkit \" /proc/self/mountinfo
         umount mnt; ended
         ! mount -t fuse.flashkit -o unheard_of image mnt 2> refused
         grep -q 'see flashkit mount --help' refused
         ! mount -t fuse.flashkit fstab mnt 2> refused
         grep -qi f2fs refused
         ! mountpoint -q mnt",
    );
    succeeded(&run);
    place.assert_clean();
}

#[test]
fn ordinary_users_mount_their_own_images() {
    if skipped() || skipped_for_users() {
        return;
    }
    let _alone = FUSE_FOR_ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let place = Place::new(64);
    let script = format!(
        "chmod 755 .; chown -R 65534 image mnt
         # Cargo's directory may be root's alone.
         cp {PROGRAM} flashkit; chmod 755 flashkit
         trap \"chmod $(stat -c %a /dev/fuse) /dev/fuse\" EXIT; chmod 666 /dev/fuse
         as='setpriv --reuid 65534 --regid 65534 --clear-groups'
         ./flashkit chown 65534:65534 image:/
         # Options unknown to a helper are refused, not dropped.
         if $as ./flashkit mount -o nosymfollow image mnt; then
             grep ' nosymfollow\\|,nosymfollow' /proc/self/mountinfo; $as fusermount3 -u mnt
         fi
         $as ./flashkit mount image mnt
         $as bash -c 'head -c 3000000 /dev/urandom > mnt/noise; cp mnt/noise mnt/copy; sync mnt/copy'
         $as cmp mnt/noise mnt/copy
         ! ls mnt 2> /dev/null
         $as fusermount3 -u mnt"
    );
    let run = Command::new("bash").args(["-euc", &script]).current_dir(place.0.path()).output();
    succeeded(&run.expect("bash is installed"));
    place.wait_for_end();
    place.assert_clean();
}

/// Files of root and others in the user's own image.
#[test]
fn squash_gives_ordinary_users_everything_in_their_images() {
    if skipped() || skipped_for_users() {
        return;
    }
    let _alone = FUSE_FOR_ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let place = Place::new(64);
    let script = format!(
        "mkdir -p tree/etc tree/home/pi; echo secret > tree/etc/shadow; chmod 600 tree/etc/shadow; chmod 755 tree
         echo old > tree/home/pi/note; chown -R 1000:1000 tree/home/pi; chmod 700 tree/home/pi
         {PROGRAM} import -q tree image; {PROGRAM} chown 0:0 image:/
         chmod 755 .; chown -R 65534 image mnt
         # Cargo's directory may be root's alone.
         cp {PROGRAM} flashkit; chmod 755 flashkit
         trap \"chmod $(stat -c %a /dev/fuse) /dev/fuse\" EXIT; chmod 666 /dev/fuse
         as='setpriv --reuid 65534 --regid 65534 --clear-groups'
         $as ./flashkit mount image mnt
         if $as cat mnt/etc/shadow 2> /dev/null; then exit 1; fi
         $as fusermount3 -u mnt
         $as ./flashkit mount -o squash image mnt
         test \"$($as stat -c %u:%g mnt mnt/etc/shadow mnt/home/pi/note | sort -u)\" = 65534:65534
         test \"$($as cat mnt/etc/shadow)\" = secret
         $as bash -c 'echo more >> mnt/etc/shadow; echo new > mnt/home/pi/new; mkdir mnt/etc/d; mv mnt/home/pi/note mnt/'
         $as chmod 640 mnt/etc/shadow; $as chown 65534:65534 mnt/etc/shadow
         if $as chown 65534:0 mnt/etc/shadow 2> /dev/null; then exit 1; fi
         $as fusermount3 -u mnt"
    );
    let run = Command::new("bash").args(["-euc", &script]).current_dir(place.0.path()).output();
    succeeded(&run.expect("bash is installed"));
    place.wait_for_end();
    place.assert_clean();
    for (path, owner, mode) in [
        ("/", "0:0", "0755"),
        ("/etc/shadow", "0:0", "0640"),
        ("/etc/d", "0:0", "0755"),
        ("/home/pi/new", "1000:1000", "0644"),
        ("/note", "1000:1000", "0644"),
    ] {
        let stat = support::ok(place.0.path(), &["stat", "--json", &format!("image:{path}")]);
        let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
        assert_eq!(
            (format!("{}:{}", stat["uid"], stat["gid"]), &stat["mode"]),
            (owner.into(), &mode.into()),
            "{path}"
        );
    }
}

/// Damage is reported where a user will see it: once on the terminal of a foreground mount, and again at the
/// next mount.
#[test]
fn damage_is_reported_once_in_each_mount() {
    if skipped() {
        return;
    }
    let place = Place::new(96);
    place.mount();
    fs::write(place.path("damaged"), vec![7; 8 << 20]).unwrap();
    place.unmount();
    support::damage(&place.image(), "damaged");

    let mut command = Command::new(PROGRAM);
    command.args(["mount", "--foreground"]).args([place.image(), place.dir()]).stderr(Stdio::piped());
    let mount = command.spawn().expect("it starts");
    let started = Instant::now();
    while !place.is_mounted() {
        assert!(started.elapsed() < PATIENCE, "it is not mounted");
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..2 {
        let error = fs::read(place.path("damaged")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::UCLEAN.raw_os_error()), "{error}");
    }
    fs::write(place.path("new"), "x").unwrap();
    succeeded(&Command::new("umount").arg(place.dir()).output().expect("there is umount"));
    let ended = mount.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{told}");
    let image = place.image();
    assert!(told.contains(&format!("flashkit fsck {}\n", image.display())), "{told}");
    assert_eq!(told.matches("found damage").count(), 1, "{told}");

    let again = place.call_mount("ro");
    succeeded(&again);
    let told = String::from_utf8(again.stderr).unwrap();
    assert!(told.contains("damage was found earlier") && told.contains("flashkit fsck"), "{told}");
    place.unmount();
}

/// As `ls` of the image does.
#[test]
fn a_listing_of_a_directory_without_dots_ends_with_an_error() {
    if skipped() {
        return;
    }
    let place = Place::new(64);
    place.mount();
    for dir in ["dir", "sound"] {
        fs::create_dir(place.path(dir)).unwrap();
        for n in 0..1000 {
            File::create(place.path(&format!("{dir}/{n}"))).unwrap();
        }
    }
    place.unmount();
    support::remove_dots(&place.image(), "dir");
    place.mount();
    // The second time, the kernel has the names.
    for _ in 0..2 {
        let (names, errors): (Vec<_>, Vec<_>) =
            fs::read_dir(place.path("dir")).unwrap().take(2000).partition(Result::is_ok);
        assert_eq!(names.len(), 1000);
        let error = errors.into_iter().next().expect("the end is an error").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::UCLEAN.raw_os_error()), "{error}");
        let sound: std::io::Result<Vec<_>> = fs::read_dir(place.path("sound")).unwrap().collect();
        assert_eq!(sound.unwrap().len(), 1000);
    }
    place.unmount();
}

#[test]
fn signals_end_a_mount_cleanly_even_under_load() {
    if skipped() {
        return;
    }
    let place = Place::new(256);
    for (round, signal) in ["INT", "TERM", "HUP"].into_iter().enumerate() {
        place.mount();
        fs::write(place.path(signal), signal).unwrap();
        let script =
            "cd \"$0\"; n=0; while mkdir d$n && echo $n > d$n/f && mv d$n/f f$n; do n=$((n+1)); done";
        let mut load =
            Command::new("bash").args(["-c", script]).arg(place.dir()).stderr(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while !place.path("f30").exists() {
            assert!(started.elapsed() < PATIENCE, "the load is too slow to be one");
            std::thread::sleep(Duration::from_millis(10));
        }
        place.signal(signal);
        place.wait_for_end();
        let _ = load.kill();
        load.wait().unwrap();
        assert!(!place.is_mounted());
        place.assert_clean();
        place.mount();
        assert_eq!(fs::read_to_string(place.path(signal)).unwrap(), signal);
        assert!(fs::read_dir(place.dir()).unwrap().count() > 30 + round);
        succeeded(&Command::new("sh").args(["-c", "rm -r \"$0\"/*"]).arg(place.dir()).output().unwrap());
        place.unmount();
        place.assert_clean();
    }
}

#[test]
fn a_mount_without_a_waiting_caller_ends_again() {
    if skipped() {
        return;
    }
    let place = Place::new(64);
    let (reader, writer) = UnixStream::pair().unwrap();
    drop(reader);
    // The background process of a `flashkit mount` that was interrupted before the volume was mounted.
    let mut command = Command::new(PROGRAM);
    command.args(["mount", "--stays"]).args([place.image(), place.dir()]).stdout(OwnedFd::from(writer));
    let run = command.output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    let left = fs::read_dir(place.dir()).map(Iterator::count);
    let _ = Command::new("umount").arg("-l").arg(place.dir()).stderr(Stdio::null()).status();
    assert_eq!(left.unwrap(), 0, "no dead mount is left");
    assert!(run.status.code() == Some(1) && said.contains("the caller did not wait"), "{said}");
    place.assert_clean();
}

/// A foreground mount prints the reason why writing has stopped, and ends with a failure. A background mount
/// writes it to the machine's log.
#[test]
fn the_reason_for_stopped_writes_is_reported() {
    if skipped() {
        return;
    }
    let place = Place::new(96);
    let host = place.0.path().join("host");
    let script = format!(
        "mkdir host; mount -t tmpfs -o size=4M tmpfs host; cp --sparse=always image host/image
         {PROGRAM} mount -f host/image mnt 2> said & pid=$!
         until mountpoint -q mnt; do sleep 0.01; done
         ! LC_ALL=C dd if=/dev/urandom of=mnt/big bs=1M count=16 conv=fsync 2> dd
         umount mnt; wait $pid || echo $? > status"
    );
    let run = Command::new("bash").args(["-euc", &script]).current_dir(place.0.path()).output().unwrap();
    let _ = Command::new("umount").arg("-l").arg(host).status();
    succeeded(&run);
    let error = fs::read_to_string(place.0.path().join("dd")).unwrap();
    assert!(error.lines().next().is_some_and(|first| first.contains("No space left")), "{error}");
    let said = fs::read_to_string(place.0.path().join("said")).unwrap();
    assert_eq!(said.matches("writing has stopped").count(), 1, "{said}");
    assert!(said.contains("No space left") && said.contains("could not be unmounted cleanly"), "{said}");
    assert_eq!(fs::read_to_string(place.0.path().join("status")).unwrap().trim(), "1");
}

/// A volume whose files cannot be reached is not mounted.
#[test]
fn a_volume_without_a_root_is_not_mounted() {
    if skipped() {
        return;
    }
    let place = Place::new(64);
    let volume = Engine::open(
        Arc::new(FileDevice::open(place.image(), block::OpenOptions::default()).unwrap()),
        Options::read_only(),
    );
    let volume = volume.unwrap();
    let root = volume.nat_entry(Nid(volume.superblock().root_ino.0)).unwrap().addr;
    drop(volume);
    let image = File::options().write(true).open(place.image()).unwrap();
    image.write_all_at(&[0xA5; 4096], u64::from(root.0) << 12).unwrap();
    let refused = place.call_mount("");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("corrupt node 3") && said.contains("flashkit fsck"), "{said}");
}

#[test]
fn a_second_writer_is_refused() {
    if skipped() {
        return;
    }
    let place = Place::new(64);
    place.mount();
    let refused = place.call_mount("");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(&format!("mounted at {}", place.dir().display())), "{said}");
    for verb in [&["mkdir", "image:/dir"][..], &["mkfs", "-f", "image"], &["gc", "image"]] {
        let run = Command::new(PROGRAM).args(verb).current_dir(place.0.path()).output().unwrap();
        assert_eq!(run.status.code(), Some(1), "{verb:?}");
    }
    place.unmount();
    place.assert_clean();
}

/// As shells complete the name of a directory.
#[test]
fn a_mount_in_the_foreground_takes_a_directory_with_a_slash() {
    if skipped() {
        return;
    }
    for end in ["/", "/."] {
        let place = Place::new(64);
        let mut dir = place.dir().into_os_string();
        dir.push(end);
        let mut command = Command::new(PROGRAM);
        let mut mount = command.args(["mount", "-f"]).arg(place.image()).arg(dir).spawn().expect("it starts");
        let (sender, answers) = mpsc::channel();
        let path = place.dir();
        std::thread::spawn(move || {
            while !block::mounts().expect("there is /proc").iter().any(|mount| mount.dir == path) {
                std::thread::sleep(Duration::from_millis(5));
            }
            sender.send(fs::read_dir(path).map(|names| names.count()))
        });
        let names = answers.recv_timeout(PATIENCE);
        if names.is_err() {
            let _ = mount.kill();
        }
        assert_eq!(names.expect("an answer of the mount").expect("it is sound"), 0);
        succeeded(&Command::new("umount").arg(place.dir()).output().expect("there is umount"));
        assert!(mount.wait().expect("it ends").success());
    }
}
