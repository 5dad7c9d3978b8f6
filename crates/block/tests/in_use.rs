//! Users of devices and image files, queried by every path that leads to the bytes, with real loop devices.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use flashkit_block::{FileDevice, InUse, LoopDevice, OpenOptions, in_use};

const READ: OpenOptions = OpenOptions { write: false, direct: false };
const WRITE: OpenOptions = OpenOptions { write: true, direct: false };

/// Makes a directory with a file in it. `None`, with a message, if the host has no loop devices.
fn scratch() -> Option<(tempfile::TempDir, PathBuf)> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = dir.path().join("image");
    File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("a new file");
    match LoopDevice::attach(&image) {
        Ok(_) => Some((dir, image)),
        Err(error) => {
            eprintln!("skipped: no loop devices here: {error}");
            None
        }
    }
}

fn attach(path: &Path) -> LoopDevice {
    LoopDevice::attach(path).expect("there are loop devices")
}

/// Opens a block device exclusively, as a mount does.
fn hold(path: &Path) -> File {
    File::options().read(true).custom_flags(libc::O_EXCL).open(path).expect("no other program has it")
}

#[track_caller]
fn refusal(path: &Path) -> InUse {
    let error = FileDevice::open(path, WRITE).expect_err("it is in use");
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
    error.get_ref().and_then(|why| why.downcast_ref::<InUse>()).expect("it names the user").clone()
}

fn is_held(user: &InUse, device: &LoopDevice) -> bool {
    let own = device.path().file_name().expect("a name").to_str();
    matches!(user, InUse::Held { name, .. } if Some(name.as_str()) == own)
}

#[test]
fn the_writer_of_a_file_keeps_out_those_of_its_loop_devices() {
    let Some((_dir, image)) = scratch() else { return };
    let before = attach(&image);
    let writer = FileDevice::open(&image, WRITE).expect("no program has it");
    let after = attach(&image);
    for device in [&before, &after] {
        assert_eq!(refusal(device.path()), InUse::Writer);
        assert!(FileDevice::open(device.path(), READ).expect("to read").writer().is_some());
    }
    // The kernel does not mount it either.
    let error = File::options().read(true).custom_flags(libc::O_EXCL).open(before.path()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    drop(writer);
    drop(FileDevice::open(before.path(), WRITE).expect("a free loop device"));
    drop(FileDevice::open(after.path(), WRITE).expect("a free loop device"));
    assert!(matches!(in_use(&image).expect("it exists"), Some(InUse::Loop(_))));
    assert_eq!(in_use(before.path()).expect("it exists"), None);
}

#[test]
fn the_writer_of_a_loop_device_keeps_out_those_of_its_file_and_of_others() {
    let Some((dir, image)) = scratch() else { return };
    let device = attach(&image);
    assert_eq!(in_use(device.path()).expect("it exists"), None);
    let writer = FileDevice::open(device.path(), WRITE).expect("no program has it");
    let hard_link = dir.path().join("link");
    fs::hard_link(&image, &hard_link).expect("a second name");
    let renamed = dir.path().join("renamed");
    fs::rename(&image, &renamed).expect("another name");
    let other = attach(&renamed);
    for path in [&hard_link, &renamed, other.path()] {
        assert!(is_held(&refusal(path), &device) || refusal(path) == InUse::Writer, "{:?}", refusal(path));
        let reader = FileDevice::open(path, READ).expect("to read");
        assert!(reader.writer().is_some_and(InUse::writes), "{:?}", reader.writer());
    }
    drop(writer);
    FileDevice::open(&renamed, WRITE).expect("it is free");
}

#[test]
fn an_exclusively_opened_device_is_found_by_each_name() {
    let Some((dir, image)) = scratch() else { return };
    let (device, other) = (attach(&image), attach(&image));
    let hard_link = dir.path().join("link");
    fs::hard_link(&image, &hard_link).expect("a second name");
    let on_top = attach(other.path());
    let holder = hold(device.path());
    for path in [device.path(), &image, &hard_link, other.path(), on_top.path()] {
        assert!(is_held(&refusal(path), &device), "{}: {:?}", path.display(), refusal(path));
        assert!(in_use(path).expect("it exists").is_some_and(|user| is_held(&user, &device)));
        assert!(
            FileDevice::open(path, READ)
                .expect("to read")
                .writer()
                .is_some_and(|user| is_held(user, &device))
        );
    }
    drop(holder);
    let writer = FileDevice::open(on_top.path(), WRITE).expect("all are free");
    assert!(matches!(refusal(&image), InUse::Writer | InUse::Held { .. }));
    drop(writer);
    FileDevice::open(&image, WRITE).expect("it is free");
}

#[test]
fn disjoint_parts_of_a_file_are_written_at_the_same_time() {
    let Some((_dir, image)) = scratch() else { return };
    let part = |offset: &str, size: &str| {
        let made = Command::new("losetup")
            .args(["--find", "--show", "--offset", offset, "--sizelimit", size])
            .arg(&image)
            .output()
            .expect("there is losetup");
        assert!(made.status.success(), "{made:?}");
        Attached(String::from_utf8(made.stdout).expect("text").trim().into())
    };
    let (first, second, both) = (part("0", "1M"), part("1M", "1M"), part("512K", "1M"));
    let (holder, writer) = (hold(&first.0), FileDevice::open(&second.0, READ).expect("to read"));
    assert_eq!(writer.writer(), None);
    assert!(matches!(refusal(&both.0), InUse::Held { .. }));
    drop((holder, writer));
    drop(FileDevice::open(&both.0, WRITE).expect("all are free"));
    drop((first, second, both));
}

/// A command to run at the end of a test, even if the test fails.
struct Undo<'a>(&'a mut Command);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let _ = self.0.status();
    }
}

/// A loop device made by losetup.
struct Attached(PathBuf);

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn partitions_and_their_disk_are_the_same_bytes() {
    let Some((_dir, image)) = scratch() else { return };
    // addpart announces the partitions, because no kernel knows every kind of table: 8 MiB each, at 1 MiB and
    // at 16 MiB.
    let script = "disk=$(losetup --find --show --partscan \"$0\"); echo $disk
                  addpart $disk 1 2048 16384 && addpart $disk 2 32768 16384";
    let made = Command::new("sh").args(["-c", script]).arg(&image).output().expect("there is a shell");
    let disk = Attached(String::from_utf8(made.stdout).expect("text").trim().into());
    let partition = |number: u32| PathBuf::from(format!("{}p{number}", disk.0.display()));
    if !partition(2).exists() {
        return eprintln!("skipped: no partitions here: {}", String::from_utf8_lossy(&made.stderr));
    }
    let writer = FileDevice::open(partition(1), WRITE).expect("it is free");
    let over_disk = attach(&image);
    for path in [&disk.0, &image, over_disk.path(), &partition(1)] {
        assert!(refusal(path).writes(), "{}", path.display());
    }
    assert_eq!(FileDevice::open(partition(2), READ).expect("to read").writer(), None);
    drop(writer);
    let holder = hold(&partition(2));
    assert!(matches!(refusal(&image), InUse::Held { .. }) && matches!(refusal(&disk.0), InUse::Held { .. }));
    assert_eq!(FileDevice::open(partition(1), READ).expect("to read").writer(), None);
    drop((holder, over_disk));
    FileDevice::open(&disk.0, WRITE).expect("all are free");
}

#[test]
fn a_mounted_loop_device_is_found_by_a_hard_link_and_by_a_second_loop_device() {
    let Some((dir, image)) = scratch() else { return };
    let at = dir.path().join("mnt");
    fs::create_dir(&at).expect("a new directory");
    let script = "mkfs.ext4 -q -F \"$0\" && mount -t ext4 -o loop \"$0\" \"$1\"";
    let made =
        Command::new("sh").args(["-c", script]).args([&image, &at]).output().expect("there is a shell");
    if !made.status.success() {
        return eprintln!("skipped: nothing can be mounted here: {}", String::from_utf8_lossy(&made.stderr));
    }
    let mut umount = Command::new("umount");
    let _until_the_end = Undo(umount.arg(&at));
    let link = dir.path().join("link");
    fs::hard_link(&image, &link).expect("a second name");
    let other = attach(&link);
    let mounted = InUse::Mounted { at: at.clone(), read_only: false };
    for path in [&image, &link, other.path()] {
        assert_eq!(in_use(path).expect("it exists"), Some(mounted.clone()));
        assert_eq!(refusal(path), mounted);
    }
}

#[test]
fn the_host_s_swap_is_found() {
    let Some((dir, image)) = scratch() else { return };
    let script = "chmod 600 \"$0\"; mkswap -q \"$0\" && swapon \"$0\"";
    let device = attach(&image);
    let made = Command::new("sh").args(["-c", script]).arg(device.path()).output().expect("there is a shell");
    if !made.status.success() {
        return eprintln!("skipped: no swapping here: {}", String::from_utf8_lossy(&made.stderr));
    }
    let mut swapoff = Command::new("swapoff");
    let _until_the_end = Undo(swapoff.arg(device.path()));
    let link = dir.path().join("link");
    fs::hard_link(&image, &link).expect("a second name");
    assert_eq!([refusal(&link), refusal(device.path())], [InUse::Swap, InUse::Swap]);
}

/// Opens a raw image by qemu-io until the returned program is killed. `None`, with a message, without qemu-io.
fn open_by_qemu(image: &Path, options: &[&str]) -> Option<Child> {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]).args(options).arg(image).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut qemu) = command.spawn() else {
        eprintln!("skipped: qemu-io is not installed");
        return None;
    };
    // An answer to a command shows that the image is open.
    qemu.stdin.as_mut().expect("a pipe").write_all(b"length\n").expect("it reads commands");
    let output = qemu.stdout.as_mut().expect("a pipe");
    let mut answer = String::new();
    BufReader::new(output).read_line(&mut answer).expect("it answers");
    Some(qemu)
}

#[test]
fn an_image_that_qemu_has_open_is_not_written() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = dir.path().join("image");
    File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("a new file");
    let Some(mut qemu) = open_by_qemu(&image, &[]) else { return };
    let user = refusal(&image);
    qemu.kill().and_then(|()| qemu.wait()).expect("it ends");
    assert_eq!(user, InUse::Writer);
    drop(FileDevice::open(&image, WRITE).expect("no program has it"));
}

#[test]
fn readers_are_told_that_qemu_writes_an_image() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = dir.path().join("image");
    File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("a new file");
    for (options, user) in [(&[][..], InUse::Writer), (&["-r"], InUse::Reader)] {
        let Some(mut qemu) = open_by_qemu(&image, options) else { return };
        let found = in_use(&image).expect("it exists");
        let writer =
            FileDevice::open(&image, OpenOptions::default()).expect("it can be read").writer().cloned();
        qemu.kill().and_then(|()| qemu.wait()).expect("it ends");
        assert_eq!((found, writer), (Some(user.clone()), Some(user).filter(InUse::writes)));
    }
    assert_eq!(in_use(&image).expect("it exists"), None);
}
