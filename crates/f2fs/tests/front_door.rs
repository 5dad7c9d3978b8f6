//! The front door: volumes by paths.

mod support;

use std::{
    io::{self, Read, Seek, SeekFrom, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use f2fs::{
    Error, File, FileOptions, FileType, OpenOptions, Place, Result, Volume,
    device::{Device, FileDevice, FileDeviceOptions, Geometry, MemoryDevice},
    engine::{Caller, Options},
    mkfs,
    units::Time,
};
use support::NOW;

const SIZE_BYTES: u64 = 64 << 20;

fn options() -> mkfs::Options {
    mkfs::Options::new([0x5A; 16])
}

/// A new volume in memory, and its device.
fn make() -> (Volume, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(SIZE_BYTES));
    let volume = OpenOptions::new().clock(|| NOW).make(device.clone(), &options()).expect("the size fits");
    (volume, device)
}

fn reopen(device: &Arc<MemoryDevice>) -> Volume {
    OpenOptions::new().write().clock(|| NOW).open(device.clone()).expect("the volume opens")
}

/// A device that refuses writes on demand.
struct Switch {
    inner: MemoryDevice,
    refuses: AtomicBool,
}

impl Switch {
    fn make() -> (Volume, Arc<Switch>) {
        let switch =
            Arc::new(Switch { inner: MemoryDevice::new(SIZE_BYTES), refuses: AtomicBool::new(false) });
        let volume = OpenOptions::new().clock(|| NOW).make(switch.clone(), &options()).unwrap();
        (volume, switch)
    }

    fn refuse(&self) {
        self.refuses.store(true, Ordering::SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        match self.refuses.load(Ordering::SeqCst) {
            true => Err(io::Error::other("worn out")),
            false => Ok(()),
        }
    }
}

impl Device for Switch {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.check()?;
        self.inner.write(offset_bytes, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.check()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

/// The names of a directory, sorted.
fn names(volume: &Volume, path: &str) -> Vec<Vec<u8>> {
    let entries = volume.read_dir(path).expect("the directory opens");
    let mut names: Vec<Vec<u8>> =
        entries.map(|entry| entry.expect("the entry is whole").file_name().to_vec()).collect();
    names.sort();
    names
}

#[test]
fn content_and_names_come_back_after_a_close() {
    let (volume, device) = make();
    volume.create_dir_all("/a/b/c").unwrap();
    volume.create_dir_all("a/b/c").unwrap();
    volume.write("/a/b/c/file", "old and long").unwrap();
    volume.write("/a/b/c/file", "new").unwrap();
    volume.symlink("b/c/file", "/a/link").unwrap();
    volume.hard_link("/a/b/c/file", "/second").unwrap();
    volume.rename("/a/b/c/file", "/a/moved").unwrap();
    volume.close().unwrap();

    let volume = Volume::open(device).unwrap();
    assert_eq!(volume.read("/a/moved").unwrap(), b"new");
    assert_eq!(volume.read_to_string("second").unwrap(), "new");
    assert_eq!(volume.metadata("/second").unwrap().links(), 2);
    assert_eq!(volume.read_link("/a/link").unwrap(), b"b/c/file");
    assert_eq!(names(&volume, "/"), [&b"a"[..], b"second"]);
    assert!(matches!(volume.read("/a/link"), Err(Error::NotFound)));
    assert!(!volume.exists("/a/link").unwrap() && volume.exists("/a/b/c/").unwrap());
    assert!(volume.symlink_metadata("/a/link").unwrap().is_symlink());
}

#[test]
fn a_path_never_leaves_the_volume() {
    let (volume, _) = make();
    volume.create_dir("/dir").unwrap();
    volume.write("/file", "x").unwrap();
    volume.symlink("../../../../file", "/dir/up").unwrap();
    volume.symlink("/../file", "/dir/absolute").unwrap();
    for path in
        ["../../file", "/../file", "/dir/../file", "dir/up", "/dir/absolute", "//./file", "/dir/./../file"]
    {
        assert_eq!(volume.read(path).unwrap(), b"x", "{path}");
    }
    assert!(matches!(volume.read("/file/"), Err(Error::NotDirectory)));
    assert!(matches!(volume.read("/file/../file"), Err(Error::NotDirectory)));
    assert!(matches!(volume.read("/"), Err(Error::IsDirectory)));
    assert!(matches!(volume.read(""), Err(Error::IsDirectory)));
    volume.close().unwrap();
}

#[test]
fn symbolic_links_in_a_circle_end() {
    let (volume, _) = make();
    volume.symlink("b", "/a").unwrap();
    volume.symlink("a", "/b").unwrap();
    volume.symlink("self/x", "/self").unwrap();
    for path in ["/a", "/b", "/self", "/a/file"] {
        assert!(matches!(volume.read(path), Err(Error::TooManySymlinks)), "{path}");
        assert!(matches!(volume.write(path, ""), Err(Error::TooManySymlinks)), "{path}");
    }
    assert_eq!(volume.read_link("/a").unwrap(), b"b");
    for n in 0..40 {
        volume.symlink(format!("l{}", n + 1), format!("/l{n}")).unwrap();
    }
    // The last link leads to nothing: a write makes its target, as open(2) does.
    volume.write("/l0", "end").unwrap();
    assert_eq!(volume.read("/l40").unwrap(), b"end");
    assert_eq!(volume.read("/l0").unwrap(), b"end");
    volume.symlink("l0", "/one_more").unwrap();
    assert!(matches!(volume.read("/one_more"), Err(Error::TooManySymlinks)));
    volume.close().unwrap();
}

#[test]
fn names_are_bytes() {
    let (volume, device) = make();
    let name: &[u8] = b"/\xff\xfe \n\x01\\";
    volume.write(name, "1").unwrap();
    let longest = [b"/", vec![b'n'; 255].as_slice()].concat();
    volume.write(&longest, "2").unwrap();
    assert!(matches!(volume.write([b"/", vec![b'n'; 256].as_slice()].concat(), ""), Err(Error::NameTooLong)));
    assert!(matches!(volume.write(b"/a\0b", ""), Err(Error::Invalid(_))));
    volume.close().unwrap();
    let volume = Volume::open(device).unwrap();
    assert_eq!(names(&volume, "/"), [longest[1..].to_vec(), name[1..].to_vec()]);
    assert_eq!(volume.read(name).unwrap(), b"1");
}

#[test]
fn large_sparse_files_are_written_and_read_by_position() {
    let (volume, device) = make();
    let far = 3u64 << 40;
    let mut file = FileOptions::new().read().write().create_new().open(&volume, "/sparse").unwrap();
    file.write_all(b"front").unwrap();
    file.seek(SeekFrom::Start(far)).unwrap();
    file.write_all(b"back").unwrap();
    assert_eq!(file.seek(SeekFrom::End(-4)).unwrap(), far);
    assert_eq!(file.seek(SeekFrom::Current(-1)).unwrap(), far - 1);
    let mut buf = [9; 8];
    assert_eq!(file.read(&mut buf).unwrap(), 5, "a read ends with the file");
    assert_eq!(&buf[..5], b"\0back");
    assert!(file.seek(SeekFrom::Current(i64::MIN)).is_err());
    assert_eq!(file.read_at(&mut buf, 3).unwrap(), 8);
    assert_eq!(&buf, b"nt\0\0\0\0\0\0");
    file.write_at(b"F", 0).unwrap();
    assert_eq!(file.stream_position().unwrap(), far + 4, "positioned access leaves the position");
    assert!(matches!(volume.read("/sparse"), Err(Error::Invalid(_))), "3 TiB are not read at once");
    assert!(matches!(file.set_len(u64::MAX), Err(Error::FileTooLarge)));
    file.set_len(3).unwrap();
    file.sync_all().unwrap();
    drop(file);
    volume.abandon();
    let volume = Volume::open(device).unwrap();
    assert_eq!(volume.read("/sparse").unwrap(), b"Fro", "the fsync is durable without a close");
}

#[test]
fn content_of_many_megabytes_streams_through_a_file() {
    let (volume, device) = make();
    let content: Vec<u8> = (0..8u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    io::copy(&mut &content[..], &mut volume.create_file("/big").unwrap()).unwrap();
    volume.close().unwrap();
    let volume = Volume::open(device).unwrap();
    assert!(volume.read("/big").unwrap() == content);
    let mut read = Vec::new();
    volume.open_file("/big").unwrap().read_to_end(&mut read).unwrap();
    assert!(read == content);
}

#[test]
fn files_are_opened_as_their_options_say() {
    let (volume, _) = make();
    let open = |options: FileOptions, path: &str| options.open(&volume, path).map(drop);
    let new = FileOptions::new;
    assert!(matches!(open(new(), "/f"), Err(Error::Invalid(_))));
    assert!(matches!(open(new().read().create(), "/f"), Err(Error::Invalid(_))));
    assert!(matches!(open(new().append().truncate(), "/f"), Err(Error::Invalid(_))));
    assert!(matches!(open(new().write(), "/f"), Err(Error::NotFound)));
    assert!(matches!(open(new().write().create(), "/f/"), Err(Error::IsDirectory)));
    open(new().write().create_new().permissions(0o4777), "/f").unwrap();
    assert_eq!(volume.metadata("/f").unwrap().permissions(), 0o4755, "the umask takes the group's write");
    assert!(matches!(open(new().write().create_new(), "/f"), Err(Error::Exists)));
    volume.symlink("nowhere", "/dangling").unwrap();
    assert!(matches!(open(new().write().create_new(), "/dangling"), Err(Error::Exists)));
    assert!(matches!(open(new().read(), "/"), Err(Error::IsDirectory)));

    let file = volume.open_file("/f").unwrap();
    assert!(matches!(file.write_at(b"x", 0), Err(Error::NotPermitted)));
    let mut log = new().append().open(&volume, "/f").unwrap();
    assert!(matches!(log.read_at(&mut [0], 0), Err(Error::NotPermitted)));
    log.write_all(b"1").unwrap();
    volume.write("/f", "other").unwrap();
    log.write_all(b"2").unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"other2");
    drop((file, log));
    volume.close().unwrap();
}

#[test]
fn an_open_file_outlives_its_name() {
    let (volume, device) = make();
    volume.write("/f", "content").unwrap();
    let before = volume.space().unwrap().free_inodes;
    let file = volume.open_file("/f").unwrap();
    volume.remove_file("/f").unwrap();
    assert!(matches!(volume.metadata("/f"), Err(Error::NotFound)));
    let mut buf = [0; 7];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 7);
    assert_eq!(&buf, b"content");
    drop(file);
    assert!(volume.space().unwrap().free_inodes > before, "the inode goes with the last handle");
    volume.close().unwrap();
    assert_eq!(names(&Volume::open(device).unwrap(), "/"), [b""; 0]);
}

#[test]
fn several_threads_share_a_volume() {
    let (volume, device) = make();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let volume = &volume;
            scope.spawn(move || {
                volume.create_dir(format!("/{n}")).unwrap();
                for file in 0..20 {
                    let path = format!("/{n}/{file}");
                    volume.write(&path, &path).unwrap();
                    assert_eq!(volume.read_to_string(&path).unwrap(), path);
                }
            });
        }
    });
    volume.close().unwrap();
    let volume = Volume::open(device).unwrap();
    assert_eq!(volume.walk("/").unwrap().filter(Result::is_ok).count(), 84);
}

#[test]
fn directories_can_change_while_they_are_listed() {
    let (volume, _) = make();
    volume.create_dir("/d").unwrap();
    for n in 0..500 {
        volume.write(format!("/d/{n}"), "").unwrap();
    }
    let mut seen = 0;
    for entry in volume.read_dir("/d").unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.file_type().unwrap(), FileType::Regular);
        assert_eq!(entry.metadata().unwrap().ino(), entry.ino());
        volume.remove_file([b"/d/", entry.file_name()].concat()).unwrap();
        assert!(matches!(entry.metadata(), Err(Error::NotFound)));
        seen += 1;
    }
    assert_eq!(seen, 500);
    let listing = volume.read_dir("/d").unwrap();
    volume.remove_dir("/d").unwrap();
    assert_eq!(listing.count(), 0, "a removed directory has no entries");
    volume.close().unwrap();
}

#[test]
fn directories_are_made_and_removed_as_std_fs_does() {
    let (volume, _) = make();
    volume.create_dir_all("/a/b/c/").unwrap();
    volume.write("/a/b/file", "").unwrap();
    volume.symlink("/a", "/link").unwrap();
    volume.symlink("b", "/a/inside").unwrap();
    assert!(matches!(volume.create_dir("/"), Err(Error::Exists)));
    assert!(matches!(volume.create_dir("/a/"), Err(Error::Exists)));
    assert!(matches!(volume.create_dir("/none/x"), Err(Error::NotFound)));
    assert!(matches!(volume.create_dir_all("/a/b/file/x"), Err(Error::Exists)));
    volume.create_dir_all("/link/b/new").unwrap();
    assert!(matches!(volume.remove_dir("/a"), Err(Error::NotEmpty)));
    assert!(matches!(volume.remove_dir("/link"), Err(Error::NotDirectory)));
    assert!(matches!(volume.remove_dir("/"), Err(Error::Invalid(_))));
    assert!(matches!(volume.remove_file("/a"), Err(Error::IsDirectory)));
    assert!(matches!(volume.rename("/a", "/a/b/x"), Err(Error::Invalid(_))));
    assert!(matches!(volume.remove_dir_all("/a/b/file"), Err(Error::NotDirectory)));
    volume.remove_dir_all("/link").unwrap();
    assert!(volume.exists("/a/b").unwrap(), "a link is not followed");
    volume.remove_dir_all("/a").unwrap();
    assert_eq!(names(&volume, "/"), [b""; 0]);
    volume.close().unwrap();
}

#[test]
fn attributes_are_set_by_path() {
    let (volume, device) = make();
    volume.write("/f", "").unwrap();
    volume.symlink("f", "/l").unwrap();
    volume.set_permissions("/l", 0o6751).unwrap();
    volume.set_xattr("/l", "user.note", b"\0value").unwrap();
    volume.set_xattr("/f", "security.capability", [1; 20]).unwrap();
    volume.set_owner("/l", Some(7), None).unwrap();
    volume.set_symlink_owner("/l", None, Some(9)).unwrap();
    let time = Time { seconds: -1, nanoseconds: 5 };
    let file = FileOptions::new().write().open(&volume, "/f").unwrap();
    file.set_modified(time).unwrap();
    drop(file);
    assert!(matches!(volume.set_xattr("/f", "other.x", ""), Err(Error::Unsupported(_))));
    assert!(matches!(volume.get_xattr("/f", "user.none"), Err(Error::NoAttribute)));
    volume.close().unwrap();
    let volume = Volume::open(device).unwrap();
    let (file, link) = (volume.metadata("/l").unwrap(), volume.symlink_metadata("/l").unwrap());
    assert_eq!((file.uid(), file.gid(), file.permissions()), (7, 0, 0o751), "chown(2) takes the set-ID bits");
    assert_eq!((link.uid(), link.gid()), (0, 9));
    assert_eq!(file.modified(), time);
    assert_eq!(volume.list_xattrs("/l").unwrap(), [b"user.note"], "chown(2) takes the capabilities");
    assert_eq!(volume.get_xattr("/f", "user.note").unwrap(), b"\0value");
}

#[test]
fn new_entries_belong_to_the_owner_in_the_options() {
    let device = Arc::new(MemoryDevice::new(SIZE_BYTES));
    let how = OpenOptions::new().clock(|| NOW).owner(10, 20).umask(0o077);
    let volume = how.make(device, &options()).unwrap();
    volume.create_dir("/d").unwrap();
    volume.write("/d/f", "").unwrap();
    volume.symlink("f", "/d/l").unwrap();
    for (path, permissions) in [("/d", 0o700), ("/d/f", 0o600), ("/d/l", 0o777)] {
        let facts = volume.symlink_metadata(path).unwrap();
        assert_eq!((facts.uid(), facts.gid(), facts.permissions()), (10, 20, permissions), "{path}");
        assert_eq!(facts.modified(), NOW);
    }
    volume.close().unwrap();
}

#[test]
fn a_volume_opened_for_reading_refuses_changes() {
    let (volume, device) = make();
    volume.write("/f", "x").unwrap();
    volume.close().unwrap();
    let before = device.to_vec();
    let volume = Volume::open(device.clone()).unwrap();
    assert!(volume.read_only_reason().unwrap().is_some());
    assert!(matches!(volume.write("/f", "y"), Err(Error::ReadOnly(_))));
    assert!(matches!(volume.create_dir("/d"), Err(Error::ReadOnly(_))));
    assert!(matches!(FileOptions::new().write().open(&volume, "/f"), Err(Error::ReadOnly(_))));
    assert!(matches!(volume.sync(), Err(Error::ReadOnly(_))));
    volume.close().expect("nothing is lost");
    assert!(device.to_vec() == before);
    let volume = Volume::from_bytes(&before).unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"x");
}

#[test]
fn opening_for_writing_fails_if_the_volume_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    support::mkfs(&path, SIZE_BYTES, &["-O", "ro"]);
    let write = || OpenOptions::new().write().clock(|| NOW);
    let error = write().open_path(&path).unwrap_err();
    assert!(matches!(&error, Error::ReadOnly(reason) if reason.contains("ro")), "{error}");
    let volume = write().read_only_if_needed().open_path(&path).unwrap();
    assert!(volume.read_only_reason().unwrap().is_some());
    volume.close().unwrap();

    assert!(matches!(OpenOptions::new().write().open_path(&path), Err(Error::Invalid(_))), "no clock");
    let missing = Volume::open_path(folder.path().join("none")).unwrap_err();
    assert!(matches!(&missing, Error::Host { path, .. } if path.ends_with("none")), "{missing}");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    assert!(matches!(Volume::open_path(&path), Err(Error::NotF2fs(_))));
}

#[test]
fn an_image_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let write = || OpenOptions::new().write().clock(|| NOW);
    let volume = write().make_file(&path, SIZE_BYTES, &options()).unwrap();
    let is_busy = |result: Result<Volume>| matches!(result, Err(Error::Host { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy);
    assert!(is_busy(write().open_path(&path)));
    assert!(is_busy(write().read_only_if_needed().open_path(&path)));
    assert!(is_busy(Volume::open_path(&path)), "a reader beside a writer has to ask for it");
    OpenOptions::new().beside_writer().open_path(&path).unwrap().close().unwrap();
    let again = OpenOptions::new().clock(|| NOW).make_file(&path, SIZE_BYTES, &options());
    assert!(matches!(again, Err(Error::Host { .. })), "an existing file is not replaced");
    volume.write("/f", "").unwrap();
    volume.close().unwrap();
    write().open_path(&path).unwrap().close().unwrap();
    support::assert_clean(&path);

    let small = folder.path().join("small");
    let refused = OpenOptions::new().clock(|| NOW).make_file(&small, 1 << 20, &options());
    assert!(matches!(refused, Err(Error::Invalid(_))));
    assert!(!small.exists(), "a file that became no volume is removed");
}

#[test]
fn devices_of_the_host_can_be_opened_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(SIZE_BYTES)).unwrap();
    let device = FileDevice::open(&path, FileDeviceOptions { write: true, direct: false }).unwrap();
    let volume = OpenOptions::new().clock(|| NOW).make(Arc::new(device), &options()).unwrap();
    volume.write("/f", "x").unwrap();
    volume.close().unwrap();
    support::assert_clean(&path);
}

#[test]
fn dropping_a_changed_volume_writes_the_changes() {
    let (volume, device) = make();
    volume.write("/f", "x").unwrap();
    drop(volume);
    let volume = reopen(&device);
    assert_eq!(volume.read("/f").unwrap(), b"x");
    volume.write("/f", "y").unwrap();
    volume.abandon();
    assert_eq!(Volume::open(device).unwrap().read("/f").unwrap(), b"x", "an abandoned change is gone");
}

#[test]
fn a_drop_that_loses_changes_calls_the_hook() {
    let (volume, switch) = Switch::make();
    volume.close().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let volume = OpenOptions::new()
        .write()
        .clock(|| NOW)
        .on_loss(move |error| hear.lock().unwrap().push(error.to_string()))
        .open(switch.clone())
        .unwrap();
    volume.write("/f", "x").unwrap();
    switch.refuse();
    drop(volume);
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].contains("worn out"), "{told:?}");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a volume was dropped with changes that could not be written")]
fn a_drop_that_is_the_first_to_lose_changes_panics_in_debug_builds() {
    let (volume, switch) = Switch::make();
    volume.write("/f", "x").unwrap();
    switch.refuse();
    drop(volume);
}

#[test]
fn closing_after_a_failed_write_reports_lost_changes() {
    let (volume, switch) = Switch::make();
    volume.write("/before", "x").unwrap();
    volume.sync().unwrap();
    volume.write("/after", "y").unwrap();
    switch.refuse();
    assert!(matches!(volume.sync(), Err(Error::Io { .. })));
    assert!(matches!(volume.write("/more", "z"), Err(Error::ReadOnly(_))));
    assert_eq!(volume.read("/after").unwrap(), b"y", "reads continue");
    let error = volume.close().unwrap_err();
    assert!(matches!(&error, Error::ReadOnly(reason) if reason.contains("worn out")), "{error}");

    let volume = Volume::open(switch.clone()).unwrap();
    assert_eq!(names(&volume, "/"), [b"before"]);
    // A caller that was told before may drop the volume.
    let (volume, switch) = Switch::make();
    volume.write("/f", "x").unwrap();
    switch.refuse();
    assert!(volume.sync().is_err());
    drop(volume);
}

#[test]
fn a_panic_in_an_operation_ends_the_use_of_the_volume() {
    let (volume, device) = make();
    volume.write("/f", "x").unwrap();
    volume.sync().unwrap();
    volume.write("/f", "half").unwrap();
    let panicked = std::thread::scope(|scope| {
        let run = || {
            let _engine = volume.engine_mut().unwrap();
            panic!("in the middle of a change");
        };
        scope.spawn(run).join().is_err()
    });
    assert!(panicked);
    assert!(matches!(volume.read("/f"), Err(Error::Invalid(_))));
    assert!(matches!(volume.close(), Err(Error::Invalid(_))));
    assert_eq!(Volume::open(device).unwrap().read("/f").unwrap(), b"x", "the device is whole");
}

#[test]
fn the_engine_is_reachable_from_the_front_door() {
    let (volume, device) = make();
    volume.write("/f", "x").unwrap();
    let ino = volume.metadata("/f").unwrap().ino();
    volume.engine_mut().unwrap().begin(Caller::ADMIN).write(ino, 1, b"y").unwrap();
    assert_eq!(volume.engine().unwrap().stat(ino).unwrap().size, 2);
    let mut engine = volume.into_engine().unwrap();
    engine.unmount().unwrap();
    let volume = Volume::from(engine);
    assert_eq!(volume.read("/f").unwrap(), b"xy");
    volume.close().unwrap();
    drop(device);
}

/// First byte of the slot numbers' names in a block of a directory (4 KiB), and the size of a name.
const NAMES_AT: u64 = 4096 - 214 * 8;
/// Inode number of the entry in a slot of such a block.
const fn ino_at(slot: u64) -> u64 {
    30 + 11 * slot + 4
}

/// A volume with the directories `/d` and `/d/sub`, `/d/0` to `/d/9`, whose entries lie in blocks; with the number of `/d`
/// and the place of its first block on the device, in bytes.
fn with_directory_block() -> (Arc<MemoryDevice>, u32, u64) {
    let device = Arc::new(MemoryDevice::new(SIZE_BYTES));
    let engine = Options { inline_dentry: false, ..Options::new(|| NOW) };
    let volume = OpenOptions::from(engine).make(device.clone(), &options()).unwrap();
    volume.create_dir_all("/d/sub").unwrap();
    for n in 0..10 {
        volume.write(format!("/d/{n}"), "").unwrap();
    }
    volume.sync().unwrap();
    let dir = volume.metadata("/d").unwrap().ino();
    let extent = volume.engine().unwrap().next_extent(dir, 0).unwrap().expect("it has a block");
    volume.close().unwrap();
    (device, dir.0, extent.physical.expect("it lies on the device"))
}

#[test]
fn damage_of_a_directory_is_reported_with_its_place_and_hides_only_the_damaged_part() {
    let (device, dir, block) = with_directory_block();
    // Slots 0 and 1 are the dots.
    device.write(block + NAMES_AT + 8 * 3, b"/").unwrap();
    let volume = Volume::open(device).unwrap();
    let (whole, damaged): (Vec<_>, Vec<_>) = volume.read_dir("/d").unwrap().partition(Result::is_ok);
    assert_eq!((whole.len(), damaged.len()), (10, 1));
    let error = damaged.into_iter().next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Corrupt { at: Place::Dir(ino, 0), .. } if ino.0 == dir), "{error}");
    let losses: Vec<Error> = volume.walk("/").unwrap().filter_map(Result::err).collect();
    assert!(matches!(&losses[..], [Error::Lost { path, .. }] if path == b"d"), "{losses:?}");
}

#[test]
fn directories_that_contain_one_another_end_walks_and_removals() {
    let (device, dir, block) = with_directory_block();
    device.write(block + ino_at(2), &dir.to_le_bytes()).unwrap();
    let volume = Volume::open(device.clone()).unwrap();
    let (entries, losses): (Vec<_>, Vec<_>) = volume.walk("/").unwrap().partition(Result::is_ok);
    assert_eq!((entries.len(), losses.len()), (12, 1));
    let loss = losses.into_iter().next().unwrap().unwrap_err();
    assert_eq!(loss.to_string(), format!("d/sub: corrupt inode {dir}: the directory contains itself"));
    drop(volume);
    let volume = reopen(&device);
    assert!(matches!(volume.remove_dir_all("/d"), Err(Error::Lost { path, .. }) if path == b"sub"));
    volume.abandon();
}

#[test]
fn errors_of_streams_hold_the_error_of_the_volume() {
    let (volume, _) = make();
    volume.write("/f", "").unwrap();
    let mut file: File<'_> = volume.open_file("/f").unwrap();
    let error = file.write(b"x").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let inner = error.into_inner().expect("the volume's error");
    assert!(matches!(inner.downcast_ref(), Some(Error::NotPermitted)));
    drop(file);
    volume.close().unwrap();
}
