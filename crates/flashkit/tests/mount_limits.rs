//! Mounts of users who may have few processes or open files.

mod support;

use std::process::{Command, Output};

use support::place::{PATIENCE, PROGRAM, Place, skipped, skipped_for_users};

/// Users whose mounts are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    Root,
    /// An ordinary user without other processes, which would count.
    Ordinary,
}

/// Uid of the ordinary user.
const UID: u32 = 64_731;

/// Runs a script with the functions `mount_with`, which mounts with a limit of prlimit(1), and `gone`, which checks that
/// neither the mount nor a process of the user is left.
fn run(place: &Place, user: User, script: &str) -> Output {
    let (uid, start, unmount) = match user {
        User::Root => (0, "", "umount"),
        User::Ordinary => {
            (UID, "setpriv --reuid 64731 --regid 64731 --clear-groups", "$start fusermount3 -u")
        }
    };
    let prepared = format!(
        "mount --make-rprivate /
         mkdir dev; mount -t tmpfs none dev; mknod dev/fuse c 10 229; chmod 666 dev/fuse
         mount --bind dev/fuse /dev/fuse
         cp /etc/passwd passwd; echo limited:x:{uid}:{uid}::/:/bin/sh >> passwd
         mount --bind passwd /etc/passwd
         chmod 755 .; chown -R {uid} image mnt; cp {PROGRAM} flashkit; chmod 755 flashkit
         ./flashkit chown {uid}:{uid} image:/
         start='{start}'
         unmount() {{ {unmount} mnt; }}
         mount_with() {{ LC_ALL=C timeout {} $start prlimit --core=0 $1 ./flashkit mount image mnt 2> said; }}
         is_mounted() {{ grep -q \" $PWD/mnt \" /proc/self/mountinfo; }}
         gone() {{
             for n in $(seq 500); do
                 if ! pgrep -f $PWD/mnt > /dev/null && ! is_mounted; then return 0; fi
                 sleep 0.02
             done
             echo \"left with $1:\" $(pgrep -f $PWD/mnt -a); grep $PWD/mnt /proc/self/mountinfo; cat said; return 1
         }}
         {script}",
        PATIENCE.as_secs()
    );
    let mut command = Command::new("unshare");
    // Its shell reaps the processes that end, which count until then.
    command
        .args(["--mount", "--pid", "--fork", "--mount-proc", "bash", "-euo", "pipefail", "-c", &prepared])
        .current_dir(place.0.path());
    command.output().expect("unshare is installed")
}

/// Mounts under a range of limits. Each mount must work, or fail with a message and leave nothing. Returns the limits with
/// which it worked.
fn limits_that_suffice(user: User, limit: &str, limits: std::ops::Range<u32>, message: &str) -> Vec<u32> {
    let place = Place::new(64);
    let (from, to) = (limits.start, limits.end - 1);
    let run = run(
        &place,
        user,
        &format!(
            "for n in $(seq {from} {to}); do
                 if mount_with --{limit}=$n; then
                     is_mounted || {{ echo \"$n: it is not mounted\"; exit 1; }}
                     $start bash -c \"echo $n > mnt/file && sync mnt/file && grep -qx $n mnt/file\"
                     if ((n % 2)); then unmount; else pkill -TERM -f -- \"--stays.*$PWD/mnt\"; fi
                     echo $n
                 else
                     test $? = 1 || {{ echo \"$n: it ended by a panic or did not end\"; exit 1; }}
                     grep -q '{message}' said || {{ echo \"$n: $(cat said)\"; exit 1; }}
                     if grep -q panic said; then cat said; exit 1; fi
                 fi
                 gone $n
             done"
        ),
    );
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    place.assert_clean();
    said.lines().map(|line| line.parse().expect("a number")).collect()
}

/// A thread that was refused after the mount was announced left a mount that nobody answered.
#[test]
fn a_mount_that_gets_too_few_threads_fails_and_leaves_nothing() {
    if skipped() || skipped_for_users() {
        return;
    }
    let sufficed = limits_that_suffice(User::Ordinary, "nproc", 1..18, "ulimit -u");
    assert!(!sufficed.contains(&4) && sufficed.contains(&17), "{sufficed:?}");
}

/// `/dev/null` was opened after the mount was announced.
#[test]
fn a_mount_that_may_open_too_few_files_fails_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let sufficed =
        limits_that_suffice(User::Root, "nofile", 4..20, "Too many open files\\|No file descriptors");
    assert!(!sufficed.contains(&8) && sufficed.contains(&19), "{sufficed:?}");
}
