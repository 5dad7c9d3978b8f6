//! Tests of requests through a mount that this process answers: panics, more writers than threads, and long
//! allocations.

use std::{
    fs::{self, File},
    io,
    path::Path,
    process::Command,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use block::{Device, Geometry, MemoryDevice};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options},
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::{Ino, Time},
};
use fuse_protocol::{CHANGING_MAX, ReadyThreads, contain};
use image::{Image, Source};
use posix::{Atime, Errno, FileSystem, OpenFor, OpenMode, Settings};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use crate::{
    Event, MountOptions, backend,
    background::Background,
    cache::{BeforeWrite, KernelCache, NO_VALIDITY, VALIDITY},
};

/// Formats an empty volume.
fn format(device: &Arc<MemoryDevice>) -> Engine {
    let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
    let plan = Plan::new(&mkfs::Options::new([7; 16]), &[size]).unwrap();
    let new =
        NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, Options::new(Time::default)).unwrap();
    new.finish().unwrap()
}

/// A device that panics in reads or writes on demand.
struct Panics {
    inner: Arc<MemoryDevice>,
    in_reads: AtomicBool,
    in_writes: AtomicBool,
    in_flushes: AtomicBool,
    /// True if flushes block until released, and the number of flushes that are blocked.
    holds_flushes: AtomicBool,
    held_flushes: AtomicUsize,
}

impl Panics {
    /// Blocks flushes.
    fn hold_flushes(&self) {
        self.holds_flushes.store(true, Ordering::SeqCst);
    }

    /// Releases blocked flushes, and blocks no more.
    fn release_flushes(&self) {
        self.holds_flushes.store(false, Ordering::SeqCst);
    }

    /// Returns the number of blocked flushes.
    fn held_flushes(&self) -> usize {
        self.held_flushes.load(Ordering::SeqCst)
    }
}

impl Device for Panics {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        assert!(!self.in_reads.load(Ordering::Relaxed), "a fault in a read");
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        assert!(!self.in_writes.load(Ordering::Relaxed), "a fault in a write");
        self.inner.write(offset_bytes, buf)
    }
    fn flush(&self) -> io::Result<()> {
        assert!(!self.in_flushes.load(Ordering::Relaxed), "a fault in a flush");
        self.held_flushes.fetch_add(1, Ordering::SeqCst);
        while self.holds_flushes.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        self.held_flushes.fetch_sub(1, Ordering::SeqCst);
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

/// A volume with a small and a long file on a [`Panics`] device.
fn with_files() -> (Arc<Panics>, Arc<FileSystem>, Ino) {
    with_files_on(64 << 20)
}

/// Bytes of a volume that has space even if the dirty pages of all programs on the machine count as its own.
const LARGE_BYTES: u64 = 1 << 40;

/// The same on a device of this size.
fn with_files_on(bytes: u64) -> (Arc<Panics>, Arc<FileSystem>, Ino) {
    let inner = Arc::new(MemoryDevice::new(bytes));
    let mut volume = format(&inner);
    let root = volume.superblock().root_ino;
    let small = volume.begin(Caller::ADMIN).create(root, b"small", &NewNode::new(0o100_644)).unwrap();
    volume.begin(Caller::ADMIN).write(small, 0, b"kept").unwrap();
    let long = volume.begin(Caller::ADMIN).create(root, b"long", &NewNode::new(0o100_644)).unwrap();
    volume.begin(Caller::ADMIN).write(long, 0, &[7; 1 << 20]).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let (in_reads, in_writes, in_flushes) = Default::default();
    let (holds_flushes, held_flushes) = Default::default();
    let device = Arc::new(Panics { inner, in_reads, in_writes, in_flushes, holds_flushes, held_flushes });
    let volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
    // So that reading a file changes nothing.
    let options = MountOptions { atime: Atime::Never, ..MountOptions::default() };
    let fs = FileSystem::new(volume, Weak::new(), Settings::from(&options));
    (device, Arc::new(fs), long)
}

/// Mounts a file system, calls `act`, unmounts it, and checks that all worker threads end.
fn while_mounted(fs: &Arc<FileSystem>, act: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let (image, mnt) = (dir.path().join("image"), dir.path().join("mnt"));
    File::create(&image).and_then(|file| file.set_len(1 << 20)).unwrap();
    fs::create_dir(&mnt).unwrap();
    let how = block::OpenOptions { write: true, ..block::OpenOptions::default() };
    let image = Image::open(&Source::parse(&image), how).unwrap();
    let options = MountOptions { threads: Some(2), ..MountOptions::default() };
    let session = backend::mount(fs.clone(), &image, &mnt, &options, "test").unwrap();
    let answers = thread::spawn(|| session.run(Arc::new(|_: &Event| ())));
    let mount = Unmounts(&mnt);
    act(&mnt);
    drop(mount);
    answers.join().unwrap().unwrap();
}

/// Unmounts on drop, so that a failed test leaves no mount behind.
struct Unmounts<'a>(&'a Path);

impl Drop for Unmounts<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn shell(dir: &Path, script: &str) -> String {
    let run = Command::new("sh").args(["-c", script]).current_dir(dir).output().unwrap();
    String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned()
}

fn can_mount() -> bool {
    let mounts = rustix::process::geteuid().is_root()
        && File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !mounts {
        eprintln!("skipped: /dev/fuse cannot be used here");
    }
    mounts
}

#[test]
fn after_a_panic_in_a_change_every_request_is_refused_and_the_mount_ends_with_an_error() {
    if !can_mount() {
        return;
    }
    let (device, fs, _) = with_files();
    while_mounted(&fs, |mnt| {
        assert_eq!(shell(mnt, "cat small"), "kept");
        device.in_writes.store(true, Ordering::Relaxed);
        for _ in 0..4 {
            // More often than there are worker threads.
            let said = shell(mnt, "echo new > new && sync new");
            assert!(said.contains("Input/output error"), "{said}");
        }
        assert!(shell(mnt, "cat long").contains("Input/output error"));
        assert!(fs.failure().is_some_and(|reason| reason.contains("a fault in a write")));
    });
    let error = fs.unmount().unwrap_err();
    assert!(error.to_string().contains("a fault in a write"), "{error}");
    device.in_writes.store(false, Ordering::Relaxed);
    let volume = Engine::open(device, Options::new(Time::default)).unwrap();
    assert!(volume.lookup(volume.superblock().root_ino, b"small").is_ok());
}

/// Readers may enter during a flush, so a panic in it poisons no lock over the volume.
#[test]
fn after_a_panic_in_a_flush_every_request_is_refused_and_the_end_reports_it() {
    let (device, fs, long) = with_files();
    let caller = posix::Credentials { uid: 0, gid: 0, pid: 0 };
    fs.write(caller, long, 0, b"x", Default::default()).unwrap();
    device.in_flushes.store(true, Ordering::Relaxed);
    fs.record_fault(contain(|| fs.sync()).unwrap_err());
    device.in_flushes.store(false, Ordering::Relaxed);
    assert_eq!(fs.write(caller, long, 0, b"y", Default::default()), Err(Errno::IO));
    assert_eq!(fs.sync(), Err(Errno::IO));
    assert_eq!(fs.stat(long).map(drop), Err(Errno::IO));
    assert!(!fs.is_writable());
    assert!(fs.failure().is_some_and(|reason| reason.contains("a fault in a flush")));
    assert!(fs.unmount().unwrap_err().to_string().contains("a fault in a flush"));
    assert!(Engine::open(device, Options::new(Time::default)).is_ok(), "the synced data is there");
}

#[test]
fn a_panic_in_a_read_fails_only_that_request_and_is_reported_at_the_end() {
    if !can_mount() {
        return;
    }
    let (device, fs, _) = with_files();
    while_mounted(&fs, |mnt| {
        assert_eq!(shell(mnt, "stat -c %s long").trim(), "1048576", "so its inode is in memory");
        device.in_reads.store(true, Ordering::Relaxed);
        for _ in 0..4 {
            assert!(shell(mnt, "cat long").contains("Input/output error"));
        }
        device.in_reads.store(false, Ordering::Relaxed);
        assert_eq!(shell(mnt, "cat long | wc -c; echo new > new && sync new").trim(), "1048576");
        assert!(fs.failure().is_none());
    });
    fs.unmount().unwrap();
    assert!(fs.unmount_error().is_some_and(|told| told.contains("a fault in a read")));
    let volume = Engine::open(device, Options::new(Time::default)).unwrap();
    assert!(volume.lookup(volume.superblock().root_ino, b"new").is_ok(), "it was left clean");
}

#[test]
fn a_panic_in_the_background_is_noticed() {
    let (device, fs, long) = with_files();
    fs.write(posix::Credentials { uid: 0, gid: 0, pid: 0 }, long, 0, b"x", Default::default()).unwrap();
    device.in_writes.store(true, Ordering::Relaxed);
    let options = MountOptions { checkpoint_interval: Duration::from_millis(1), ..MountOptions::default() };
    let ready = ReadyThreads::default();
    let report = Arc::new(|_: &Event| ());
    let background = Background::start(&ready, fs.clone(), &options, "image".into(), report).unwrap();
    let started = Instant::now();
    while fs.failure().is_none() {
        assert!(started.elapsed() < Duration::from_secs(60), "the panic is not noticed");
        thread::sleep(Duration::from_millis(20));
    }
    drop(background);
    assert!(fs.failure().is_some_and(|reason| reason.contains("a fault in a write")));
}

/// Waits up to a minute until the condition holds. Returns false on timeout.
fn comes_true(condition: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !condition() && started.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(10));
    }
    condition()
}

/// More writers than threads wait for a turn that lasts until a reader is done.
#[test]
fn readers_are_answered_while_more_writers_wait_than_there_are_threads() {
    if !can_mount() {
        return;
    }
    const WRITERS: usize = 200;
    let (device, fs, _) = with_files();
    let modes = |mnt: &Path| shell(mnt, "stat -c %a files/* | sort | uniq -c").trim().to_string();
    while_mounted(&fs, |mnt| {
        shell(mnt, &format!("mkdir files; cd files; touch $(seq {WRITERS}); stat -c %a * > /dev/null"));
        device.hold_flushes();
        let (has_read, fs) = (&AtomicBool::new(false), &fs);
        thread::scope(|scope| {
            scope.spawn(move || shell(mnt, "sync -f ."));
            assert!(comes_true(|| device.held_flushes() > 0));
            for n in 1..=WRITERS {
                let path = mnt.join(format!("files/{n}"));
                scope.spawn(move || {
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                    fs::set_permissions(path, mode).unwrap();
                });
            }
            // Waits until all threads that may handle changes do so; later changes are parked.
            assert!(comes_true(|| fs.waiting_writers() >= CHANGING_MAX as u64 - 1));
            thread::sleep(Duration::from_secs(1));
            scope.spawn(move || {
                assert_eq!(shell(mnt, "cat small; wc -c < long").trim(), "kept1048576");
                has_read.store(true, Ordering::SeqCst);
            });
            let is_read = comes_true(|| has_read.load(Ordering::SeqCst));
            device.release_flushes();
            assert!(is_read, "the reader waited for a writer");
        });
        assert_eq!(modes(mnt), format!("{WRITERS} 600"));
    });
    fs.unmount().unwrap();
}

/// The volume has 20 MiB for users, so space is short after a large allocation. The first of two allocations writes
/// back the dirty pages, and so takes their files from the set.
#[test]
fn a_second_allocation_waits_for_the_data_that_the_first_one_writes_back() {
    let (_, fs, long) = with_files();
    let cache = KernelCache::new(fs.clone());
    let caller = posix::Credentials { uid: 0, gid: 0, pid: 0 };
    let mode = OpenMode { open_for: OpenFor::Writing, ..OpenMode::default() };
    cache.open(caller, long, mode).unwrap();
    let large = 18 << 20;
    assert_eq!(cache.to_write_back_before_allocating(large), Some(vec![long]));
    assert_eq!(
        cache.to_write_back_before_allocating(large),
        Some(vec![]),
        "it is queued behind the first one"
    );
    let (_, fs, _) = with_files_on(LARGE_BYTES);
    assert_eq!(KernelCache::new(fs).to_write_back_before_allocating(1), None);
}

/// The mode of a new file is set before its first write, which then need not ask for attributes.
#[test]
fn a_known_writer_goes_on_after_a_change_of_attributes_and_an_unknown_one_is_asked_for() {
    let (_, fs, file) = with_files_on(LARGE_BYTES);
    let cache = KernelCache::new(fs.clone());
    let caller = posix::Credentials { uid: 0, gid: 0, pid: 0 };
    let validity = || cache.validity_after_change(&fs.stat(file).unwrap(), cache.now());
    cache.open(caller, file, OpenMode { open_for: OpenFor::Writing, ..OpenMode::default() }).unwrap();
    assert_eq!(validity(), NO_VALIDITY);
    let BeforeWrite::Accept(accepted) = cache.about_to_write(caller, file) else { panic!("there is space") };
    assert!(accepted > NO_VALIDITY && validity() == accepted);
    cache.close(file, OpenFor::Writing);
    assert_eq!(validity(), VALIDITY);
    cache.open(caller, file, OpenMode { open_for: OpenFor::Writing, ..OpenMode::default() }).unwrap();
    assert_eq!(validity(), NO_VALIDITY, "the next writer may be another one");
}

/// They may lack the blocks of its last data. The kernel would show them for as long as they are valid.
#[test]
fn attributes_that_were_read_before_the_last_writer_closed_its_file_are_not_cached() {
    let (_, fs, file) = with_files();
    let cache = KernelCache::new(fs.clone());
    let caller = posix::Credentials { uid: 0, gid: 0, pid: 0 };
    cache.open(caller, file, OpenMode { open_for: OpenFor::Writing, ..OpenMode::default() }).unwrap();
    let from = cache.now();
    let stat = fs.stat(file).unwrap();
    cache.close(file, OpenFor::Writing);
    assert_eq!(cache.attr_validity(&stat, from), NO_VALIDITY);
    let from = cache.now();
    assert_eq!(cache.attr_validity(&fs.stat(file).unwrap(), from), VALIDITY);
    let root = fs.stat(fs.root().unwrap()).unwrap();
    cache.open(caller, file, OpenMode { open_for: OpenFor::Writing, ..OpenMode::default() }).unwrap();
    cache.close(file, OpenFor::Writing);
    assert_eq!(cache.attr_validity(&root, from), VALIDITY, "directories have no writers");
}

/// The volume has 20 MiB for users, and space is short after the allocation.
#[test]
fn seeks_are_answered_while_an_allocation_waits_for_a_flush() {
    if !can_mount() {
        return;
    }
    let (device, fs, _) = with_files();
    while_mounted(&fs, |mnt| {
        let open = |name: &str| File::options().read(true).write(true).open(mnt.join(name)).unwrap();
        let (small, long) = (open("small"), open("long"));
        // So that there is something to flush.
        shell(mnt, "touch new");
        device.hold_flushes();
        let (has_found, fs) = (&AtomicBool::new(false), &fs);
        thread::scope(|scope| {
            scope.spawn(move || shell(mnt, "sync -f ."));
            assert!(comes_true(|| device.held_flushes() > 0));
            scope.spawn(|| fallocate(&long, FallocateFlags::empty(), 0, 14 << 20).unwrap());
            assert!(comes_true(|| fs.waiting_writers() > 1));
            scope.spawn(|| {
                assert_eq!(seek(&small, SeekFrom::Hole(0)), Ok(4));
                has_found.store(true, Ordering::SeqCst);
            });
            let is_found = comes_true(|| has_found.load(Ordering::SeqCst));
            device.release_flushes();
            assert!(is_found, "the seek waited for the allocation");
        });
        assert_eq!(long.metadata().unwrap().len(), 14 << 20);
    });
    fs.unmount().unwrap();
}
