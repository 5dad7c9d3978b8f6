//! Two writers of one volume, by every path that leads to it; readers beside a writer; and mounts of block
//! devices.

use std::{fs::File, os::unix::fs::OpenOptionsExt, path::Path, process::Command};

const PROGRAM: &str = env!("CARGO_BIN_EXE_flashkit");

/// Functions and initial files of the scripts. Everything is removed when the script ends.
const PRELUDE: &str = r#"
    attach() { losetup --find --show "$@"; }
    # Runs a call that must fail with a message.
    refused() {
        local message="$1"; shift
        if "$@" > out 2> err; then echo "went through: $*"; exit 1; fi
        grep -q -- "$message" err || { echo "$*: $message: $(cat err)"; exit 1; }
    }
    same() { test "$1" = "$2" || { echo "not the same: '$1' and '$2'"; exit 1; }; }
    absent() { if "$@"; then echo "unexpected: $*"; exit 1; fi; }
    # The process that answers has ended.
    ended() { flock --timeout 60 "${1:-img}" true; }
    clean() {
        mountpoint -q m2 && umount -l m2
        mountpoint -q m1 && umount -l m1
        ended; ended
        for device in $(losetup -n -O NAME,BACK-FILE | grep "$PWD/" | cut -d' ' -f1); do losetup -d $device; done
    }
    trap clean EXIT
    mkdir m1 m2
    flashkit mkfs -q --size 64M img
"#;

/// Runs a script as root in a directory of its own. Skips it if the host has no loop devices or no FUSE.
fn run_script(script: &str) {
    let possible = rustix::process::geteuid().is_root()
        && Path::new("/dev/fuse").exists()
        && Command::new("losetup").arg("-f").output().is_ok_and(|run| run.status.success());
    if !possible {
        return eprintln!("skipped: this needs root, loop devices and /dev/fuse");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = format!("program={PROGRAM}\nflashkit() {{ $program \"$@\"; }}\n{PRELUDE}\n{script}");
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", &script]).current_dir(dir.path());
    let run = command.output().expect("there is bash");
    let (said, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{}: {said}{errors}", run.status);
}

#[test]
fn a_loop_device_of_a_mounted_image_is_refused() {
    run_script(
        "flashkit mount img m1
         touch m1/file
         loop=$(attach img)
         refused \"mounted at $PWD/m1\" flashkit mount $loop m2
         refused \"mounted at $PWD/m1\" flashkit cp img $loop:/copy
         refused \"mounted at $PWD/m1\" flashkit rm $loop:/file
         refused \"mounted at $PWD/m1\" flashkit mkfs -f $loop
         test -e m1/file
         umount m1; ended
         flashkit mount $loop m2
         test -e m2/file",
    );
}

#[test]
fn the_image_of_a_mounted_loop_device_is_refused_and_so_are_its_other_names() {
    run_script(
        "loop=$(attach img); other=$(attach img)
         ln img link
         mkdir elsewhere; mount --bind . elsewhere
         flashkit mount $loop m1
         later=$(attach link)
         for name in img link elsewhere/img $other $later; do
             refused \"mounted at $PWD/m1\" flashkit mount $name m2
             refused \"mounted at $PWD/m1\" flashkit mkdir $name:/dir
             refused \"mounted at $PWD/m1\" flashkit mkfs -f $name
         done
         umount elsewhere
         touch m1/file
         umount m1
         same \"$(flashkit ls $other)\" file",
    );
}

#[test]
fn a_hard_link_of_a_mounted_image_is_refused() {
    run_script(
        "ln img link
         flashkit mount img m1
         refused \"mounted at $PWD/m1\" flashkit mount link m2
         refused \"mounted at $PWD/m1\" flashkit mkdir link:/dir
         refused \"mounted at $PWD/m1\" flashkit mkfs -f link",
    );
}

#[test]
fn mkfs_refuses_a_hard_link_of_an_image_that_the_kernel_has_mounted() {
    run_script(
        "truncate -s 64M e.img; mkfs.ext4 -q e.img
         mount -o loop e.img m1 || { echo skipped: no ext4; exit 0; }
         ln e.img e2.img
         touch m1/file
         refused \"mounted at $PWD/m1; nothing was written\" flashkit mkfs e2.img -f
         umount m1
         fsck.ext4 -fn e.img > out",
    );
}

#[test]
fn an_image_of_an_exclusively_opened_loop_device_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let call =
        |verb: &[&str]| Command::new(PROGRAM).args(verb).current_dir(dir.path()).output().expect("it starts");
    assert!(call(&["mkfs", "-q", "--size", "64M", "img"]).status.success());
    std::fs::create_dir(dir.path().join("m1")).expect("a new directory");
    let device = match block::LoopDevice::attach(&dir.path().join("img")) {
        Ok(device) => device,
        Err(error) => return eprintln!("skipped: no loop devices here: {error}"),
    };
    // A mount in another namespace opens it like this.
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let holder =
        File::options().read(true).custom_flags(exclusively).open(device.path()).expect("it is free");
    for verb in [&["mkdir", "img:/dir"][..], &["mount", "img", "m1"], &["mkfs", "-f", "img"]] {
        let refused = call(verb);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && said.contains("in use as loop"), "{verb:?}: {said}");
    }
    drop(holder);
    assert!(call(&["mkdir", "img:/dir"]).status.success());
}

#[test]
fn a_free_loop_device_is_written_and_mounted() {
    run_script(
        "loop=$(attach img)
         flashkit mkfs -q -f $loop
         flashkit mkdir $loop:/dir
         flashkit cp /etc/passwd $loop:/dir/
         flashkit gc $loop > out
         flashkit trim $loop > out
         flashkit mount $loop m1; umount m1
         flashkit mkdir img:/other
         same \"$(flashkit ls $loop | tr '\\n' ' ')\" 'dir other '
         fsck.f2fs --dry-run -f $loop > out",
    );
}

#[test]
fn a_loop_device_that_stays_open_shows_what_was_written_to_its_image() {
    run_script(
        "loop=$(attach img)
         exec 9< $loop
         same \"$(flashkit ls $loop)\" ''
         flashkit mkdir img:/one
         same \"$(flashkit ls $loop)\" one
         flashkit mkdir $loop:/two
         flashkit mkdir img:/three
         flashkit mkdir $loop:/four
         same \"$(flashkit ls img | tr '\\n' ' ')\" 'four one three two '
         exec 9<&-
         fsck.f2fs --dry-run -f img > out",
    );
}

#[test]
fn readers_beside_a_writer_print_one_warning_on_standard_error() {
    run_script(
        "flashkit mount img m1; touch m1/file; sync -f m1
         loop=$(attach img)
         for name in img $loop; do
             for verb in ls info 'dump superblock' tree; do
                 flashkit $verb $name > out 2> err
                 same \"$(cat err)\" \"flashkit: $name: mounted at $PWD/m1: files may be shown old or half written\"
             done
             same \"$(flashkit ls $name 2> err)\" file
         done
         umount m1; ended
         flashkit ls img 2> err > out
         same \"$(cat err)\" ''",
    );
}

#[test]
fn only_a_read_only_mount_beside_a_writer_prints_a_warning() {
    run_script(
        "flashkit mount img m1; touch m1/file; sync -f m1
         flashkit mount -o ro img m2 2> err
         same \"$(cat err)\" \"flashkit: $PWD/img: mounted at $PWD/m1: files may be shown old or half written\"
         same \"$(ls m2)\" file
         umount m2; umount m1; ended

         loop=$(attach img)
         for name in img $loop; do
             flashkit mount -o ro $name m1 2> err; same \"$(cat err)\" ''
             flashkit mount -o ro $name m2 2> err; same \"$(cat err)\" ''
             same \"$(ls m1 m2 | grep -c file)\" 2
             refused \"mounted read-only at $PWD/m1\" flashkit mkdir img:/dir
             umount m1
             same \"$(ls m2)\" file
             umount m2; ended
         done
         flashkit mkdir img:/dir",
    );
}

#[test]
fn a_mounted_block_device_is_the_source_of_its_mount() {
    run_script(
        "loop=$(attach img)
         ln -s $loop link
         for name in $loop link; do
             flashkit mount $name m1
             same \"$(findmnt -no SOURCE,FSTYPE $loop | tr -s ' ')\" \"$loop fuseblk.flashkit\"
             same \"$(grep -c \"^$loop $PWD/m1 fuseblk.flashkit rw\" /proc/mounts)\" 1
             same \"$(lsblk -no MOUNTPOINT $loop)\" \"$PWD/m1\"
             same \"$(losetup -n -O NAME,BACK-FILE | grep -c \"$PWD/\")\" 1
             head -c 3000000 /dev/urandom > noise; cp noise m1/noise
             umount $loop
             # umount(8) waits until the volume is clean, and the device is closed then.
             flock --nonblock $loop true
             fsck.f2fs --dry-run -f $loop > out
             flashkit cat $loop:/noise | cmp - noise
             flashkit rm $loop:/noise
         done
         losetup -d $loop
         loop=$(attach --read-only img)
         flashkit mount $loop m1 2> err
         grep -q 'mounted read-only: .* is write-protected' err
         same \"$(findmnt -no SOURCE,FSTYPE m1 | tr -s ' ')\" \"$loop fuseblk.flashkit\"
         umount $loop",
    );
}

/// The kernel shows a second read-only mount of a device as the first one.
#[test]
fn read_only_mounts_of_one_block_device_have_each_its_own_process() {
    run_script(
        "flashkit mkdir img:/dir
         loop=$(attach img)
         for round in 1 2 3 4 5 6; do
             flashkit mount -o ro $loop m1 & first=$!
             flashkit mount -o ro $loop m2 & second=$!
             wait $first; wait $second
             same \"$(ls m1) $(ls m2)\" \"dir dir\"
             umount m1
             same \"$(ls m2)\" dir
             umount m2; ended $loop
         done
         flashkit mkdir $loop:/other",
    );
}

#[test]
fn a_mounted_block_device_is_discarded_and_written_while_it_is_mounted() {
    run_script(
        "loop=$(attach img)
         flashkit mount -o discard $loop m1
         for round in 1 2 3; do
             head -c 8000000 /dev/urandom > noise; cp noise m1/noise$round; sync -f m1
             test $round = 1 || rm m1/noise$((round - 1)); sync -f m1
         done
         fstrim m1
         cmp noise m1/noise3
         mount -o remount,ro m1 2> err || flashkit mount -o remount,ro $loop m1
         absent touch m1/new 2> err
         flashkit mount -o remount,rw $loop m1
         touch m1/new
         umount $loop
         flashkit cat img:/noise3 | cmp - noise
         fsck.f2fs --dry-run -f img > out",
    );
}

#[test]
fn a_partition_of_a_loop_device_is_mounted_and_keeps_out_writers_of_the_disk() {
    run_script(
        "truncate -s 200M disk
         loop=$(attach -P disk)
         # The kernel gets them by ioctl, because few kernels read every kind of table: 64 MiB each, at 1 MiB and at 80 MiB.
         addpart $loop 1 2048 131072 || true; addpart $loop 2 163840 131072 || true
         test -b ${loop}p2 || { echo skipped: no nodes of partitions; exit 0; }
         flashkit mkfs -q ${loop}p1; flashkit mkfs -q ${loop}p2
         flashkit mount ${loop}p1 m1
         same \"$(findmnt -no SOURCE,FSTYPE ${loop}p1 | tr -s ' ')\" \"${loop}p1 fuseblk.flashkit\"
         flashkit mount ${loop}p2 m2
         part=$(attach --offset 1M --sizelimit 64M disk)
         refused \"mounted at $PWD/m1\" flashkit mkdir $part:/dir
         refused \"mounted at $PWD/m\" flashkit mkfs -f $loop
         refused \"mounted at $PWD/m\" flashkit mkfs -f disk
         umount ${loop}p1 ${loop}p2
         flashkit mkdir $part:/dir
         same \"$(flashkit ls ${loop}p1)\" dir",
    );
}

#[test]
fn the_dead_mount_on_a_directory_is_named() {
    run_script(
        "$program mount -f img m1 & pid=$!
         until mountpoint -q m1; do sleep 0.02; done
         kill -KILL $pid; wait $pid || true
         refused \"umount .*m1\" flashkit mount img m1
         refused \"by a program that has ended; umount $PWD/m1\" flashkit mount img m2
         refused \"by a program that has ended; umount $PWD/m1\" flashkit mkdir img:/dir
         flashkit ls img 2> err; same \"$(cat err)\" ''
         umount m1
         flashkit mount img m1",
    );
}

#[test]
fn an_image_that_the_user_may_not_write_is_mounted_read_only() {
    run_script(
        "cp $(command -v setpriv) . 2> /dev/null || { echo skipped: no setpriv; exit 0; }
         helper=$(command -v fusermount3) && test -u $helper || { echo skipped: fusermount3 is for root alone; exit 0; }
         cp $program program; chmod 755 . program; chmod 444 img; chown 65534 m1
         mode=$(stat -c %a /dev/fuse); trap \"chmod $mode /dev/fuse; clean\" EXIT; chmod 666 /dev/fuse
         as='setpriv --reuid 65534 --regid 65534 --clear-groups'
         $as ./program mount img m1 2> err
         grep -q 'mounted read-only: .*img is write-protected' err
         $as fusermount3 -u m1",
    );
}

#[test]
fn a_missing_device_node_is_named() {
    run_script(
        "absent unshare --mount bash -c 'mount -t tmpfs tmpfs /dev && \"$@\" 2> err' - \
             $program mount img m1
         grep -q '/dev/null: ' err
         absent unshare --mount bash -c 'mount -t tmpfs tmpfs /dev && touch /dev/null && \"$@\" 2> err' - \
             $program mount img m1
         grep -q '/dev/fuse: ' err",
    );
}

#[test]
fn a_block_device_that_a_parent_has_locked_is_written_and_that_of_another_program_is_not() {
    run_script(
        "loop=$(attach img)
         flock $loop $program mkfs -q -f -l NEW $loop
         flock $loop $program info $loop > out 2> err
         same '' \"$(cat err)\"
         grep -q NEW out
         flock --no-fork $loop sleep 600 &
         while flock --nonblock $loop true; do :; done
         refused 'another program is writing to it' flashkit mkfs -q -f $loop
         kill $!; ended $loop
         refused 'another program is writing to it' flock img $program mkdir img:/dir",
    );
}
