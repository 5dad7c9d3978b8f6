//! Tests of panics in the device, of flushes that fail, of an upkeep that fails for a while, and of an unmount in the middle
//! of another request.

use std::{
    io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use block::{Device, Hooked, MemoryDevice, Verb};
use f2fs::{
    engine::{Engine, FileSize, NewNode, OnError, Options},
    format::checkpoint::Flags,
    units::{Ino, Nid, Time},
};
use rustix::fs::RenameFlags;

use super::{
    Change, FileSystem, Result, Settings, WriteMode,
    tests::{format, mounted},
};
use crate::{Credentials, Errno, OpenFor, SyncScope, ioctl::Request};

const ROOT_USER: Credentials = Credentials { uid: 0, gid: 0, pid: 0 };

/// A volume of `bytes` bytes with an empty file.
fn with_file(bytes: u64) -> (Arc<MemoryDevice>, Ino) {
    let device = Arc::new(MemoryDevice::new(bytes));
    let mut volume = format(&device, "");
    let root = volume.superblock().root_ino;
    let ino =
        volume.begin(f2fs::engine::Caller::ADMIN).create(root, b"file", &NewNode::new(0o100_644)).unwrap();
    volume.unmount().unwrap();
    (device, ino)
}

/// A volume with an empty file on a device whose flushes panic while the switch is on.
fn with_panics() -> (Arc<AtomicBool>, FileSystem, Ino) {
    let (inner, ino) = with_file(64 << 20);
    let switch = Arc::new(AtomicBool::new(false));
    let is_on = switch.clone();
    let device = Hooked::new(inner, move |verb, _| {
        assert!(verb != Verb::Flush || !is_on.load(Ordering::Relaxed), "a fault in a flush");
        Ok(())
    });
    let fs = mounted(Engine::open(Arc::new(device), Options::new(Time::default)).unwrap());
    (switch, fs, ino)
}

/// Calls `act` while flushes panic, and expects it to panic.
fn panics_in_a_flush<T>(switch: &AtomicBool, act: impl FnOnce() -> T) {
    switch.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(act)).is_err(), "it does not flush");
    switch.store(false, Ordering::Relaxed);
}

#[test]
fn after_a_panic_in_a_shared_flush_every_request_is_refused() {
    let (switch, fs, ino) = with_panics();
    let write = |data: &[u8]| fs.write(ROOT_USER, ino, 0, data, WriteMode::default()).unwrap();
    fs.lookup(fs.root().unwrap(), b"file").unwrap();
    assert_eq!(fs.get_xattr(ino, b"user.x"), Err(Errno::NODATA));
    // After a first fsync, the next one needs only a flush, which it shares with others.
    write(b"x");
    fs.fsync(ino, SyncScope::Everything).unwrap();
    write(b"y");
    panics_in_a_flush(&switch, || fs.fsync(ino, SyncScope::Everything));
    assert_eq!(fs.stat(ino).map(drop), Err(Errno::IO));
    assert_eq!(fs.get_xattr(ino, b"user.x"), Err(Errno::IO));
    assert_eq!(fs.list_xattrs(ROOT_USER, ino), Err(Errno::IO));
    assert_eq!(fs.fsync(ino, SyncScope::Everything), Err(Errno::IO));
    assert!(fs.failure().is_some());
    assert!(fs.unmount().is_err());
}

#[test]
fn an_unmount_after_one_that_panicked_fails() {
    let (switch, fs, ino) = with_panics();
    fs.write(ROOT_USER, ino, 0, b"x", WriteMode::default()).unwrap();
    panics_in_a_flush(&switch, || fs.unmount());
    assert!(fs.failure().is_some());
    assert!(fs.unmount().is_err(), "the volume was not left clean");
}

/// Fsyncs a file, and calls `act` with another one while the flush of that fsync runs, which then fails. Returns the result
/// of the fsync, that of `act`, and true if a checkpoint counts that was written since.
fn beside_a_flush_that_fails(
    act: impl FnOnce(&FileSystem, Ino) -> Result<()> + Send,
) -> (Result<()>, Result<()>, bool) {
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = format(&inner, "");
    let root = volume.superblock().root_ino;
    let [one, other] = [&b"one"[..], b"other"].map(|name| {
        volume.begin(f2fs::engine::Caller::ADMIN).create(root, name, &NewNode::new(0o100_644)).unwrap()
    });
    volume.checkpoint().unwrap();
    drop(volume);
    let ((begun, has_begun), (end, ended)) = (mpsc::channel(), mpsc::channel());
    let (holds_up, ended) = (Arc::new(AtomicBool::new(false)), Mutex::new(ended));
    let is_held_up = holds_up.clone();
    // Like a block device of Linux, it reports lost writes to one flush only: all others succeed.
    let device = Hooked::new(inner, move |verb, _| {
        if verb != Verb::Flush || !is_held_up.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        begun.send(()).unwrap();
        ended.lock().unwrap().recv().unwrap();
        Err(io::Error::other("lost writes"))
    });
    let fs = mounted(Engine::open(Arc::new(device), Options::new(Time::default)).unwrap());
    let write = |ino: Ino| fs.write(ROOT_USER, ino, 0, b"x", WriteMode::default()).unwrap();
    let version = || fs.quiet_read_lock().unwrap().last_checkpoint().version;
    let before = version();
    write(one);
    holds_up.store(true, Ordering::Relaxed);
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| fs.fsync(one, SyncScope::Everything));
        has_begun.recv().unwrap();
        write(other);
        let turns = fs.volume.reader_turns();
        let second = scope.spawn(|| act(&fs, other));
        // It lets readers in once it has written everything that its flush is for.
        while !second.is_finished() && fs.volume.reader_turns() == turns {
            thread::yield_now();
        }
        end.send(()).unwrap();
        (first.join().unwrap(), second.join().unwrap())
    });
    (first, second, version() != before)
}

#[test]
fn a_failed_flush_fails_every_fsync_whose_writes_it_may_have_lost() {
    let (first, second, _) = beside_a_flush_that_fails(|fs, other| fs.fsync(other, SyncScope::Everything));
    assert_eq!((first, second), (Err(Errno::IO), Err(Errno::IO)));
}

#[test]
fn a_checkpoint_does_not_count_after_a_flush_beside_it_has_failed() {
    let (first, second, is_new) = beside_a_flush_that_fails(|fs, _| fs.sync());
    assert_eq!((first, second, is_new), (Err(Errno::IO), Err(Errno::IO), false));
}

/// The reason why the upkeep of [`Failing`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// Two nodes are damaged.
    Nodes,
    /// The device finds no space when these nodes are read. This stands for all causes of a lack of space.
    NoSpace,
}

/// A volume with many dirty pages, whose upkeep fails until the damaged nodes are back on the device. It has the
/// inodes `held`, which has lost its name and is referenced, and `other`.
struct Failing {
    device: Arc<MemoryDevice>,
    /// Offsets in bytes of the blocks whose reads find no space.
    refused: Arc<Mutex<Vec<u64>>>,
    fs: FileSystem,
    /// Offset in bytes and content of each damaged node.
    nodes: Vec<(u64, Vec<u8>)>,
    held: Ino,
    other: Ino,
}

impl Failing {
    fn new() -> Failing {
        Failing::by(Damage::Nodes)
    }

    fn by(damage: Damage) -> Failing {
        const PAGES: &[u8] = &[1; 16 << 12];
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let mut volume = format(&device, "");
        let root = volume.superblock().root_ino;
        let mut create = |name: &[u8]| {
            volume.begin(f2fs::engine::Caller::ADMIN).create(root, name, &NewNode::new(0o100_644)).unwrap()
        };
        let (ino, held, other) = (create(b"file"), create(b"held"), create(b"other"));
        let fillers: Vec<_> = (0..1000).map(|n: u32| create(n.to_string().as_bytes())).collect();
        // At these offsets the addresses of the pages are in two separate nodes.
        let offsets = [4 << 20, 8 << 20];
        offsets
            .iter()
            .for_each(|offset| volume.begin(f2fs::engine::Caller::ADMIN).write(ino, *offset, PAGES).unwrap());
        volume.begin(f2fs::engine::Caller::ADMIN).write(held, 0, &[2; 1 << 20]).unwrap();
        volume.unmount().unwrap();
        let addr_of = |child| volume.nat_entry(Nid(volume.inode(ino).unwrap().child(child).0)).unwrap().addr;
        let nodes = [0, 1].map(|child| u64::from(addr_of(child).0) << 12);
        drop(volume);

        let small = Options { cache_bytes: 128 << 10, ..Options::new(Time::default) };
        let refused = Arc::new(Mutex::new(Vec::new()));
        let refuses = refused.clone();
        let hooked = Hooked::new(device.clone(), move |verb, range: Range<u64>| {
            let meets = |at: &u64| verb == Verb::Read && range.contains(at);
            match refuses.lock().unwrap().iter().any(meets) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        });
        let fs = mounted(Engine::open(Arc::new(hooked), small).unwrap());
        fs.lookup(root, b"held").unwrap();
        fs.unlink(root, b"held").unwrap();
        // One page more than may be dirty. The first eight stay dirty because their node cannot be read.
        let nodes = [(0, 8), (1, 1)].map(|(which, pages)| {
            for page in 0..pages {
                let offset = offsets[which] + (page << 12);
                fs.write(ROOT_USER, ino, offset, b"y", WriteMode::default()).unwrap();
            }
            // The node leaves the cache.
            for filler in &fillers {
                fs.stat(*filler).unwrap();
            }
            let mut node = vec![0; 4096];
            device.read(nodes[which], &mut node).unwrap();
            match damage {
                Damage::Nodes => device.write(nodes[which], &[0xA5; 4096]).unwrap(),
                Damage::NoSpace => refused.lock().unwrap().push(nodes[which]),
            }
            (nodes[which], node)
        });
        let wanted = if damage == Damage::Nodes { Errno::UCLEAN } else { Errno::NOSPC };
        assert_eq!(fs.write_lock().map(drop), Err(wanted), "the upkeep fails");
        Failing { device, refused, fs, nodes: nodes.into(), held, other }
    }

    fn mend(&self) {
        self.refused.lock().unwrap().clear();
        for (offset_bytes, node) in &self.nodes {
            self.device.write(*offset_bytes, node).unwrap();
        }
    }
}

#[test]
fn a_failed_upkeep_does_not_keep_an_inode_that_nobody_uses() {
    let failing = Failing::new();
    let Failing { fs, held, .. } = &failing;
    let free = || fs.space().unwrap().0.free_blocks;
    let before = free();
    fs.forget(*held, 1, || {});
    failing.mend();
    fs.sync().unwrap();
    assert!(free() >= before + (1 << 20) / 4096, "{} free blocks, {before} before", free());
    fs.unmount().unwrap();
}

#[test]
fn a_failed_upkeep_keeps_pending_access_times() {
    let failing = Failing::new();
    let Failing { fs, other, .. } = &failing;
    fs.pending_atimes.add(*other, Time { seconds: 5, nanoseconds: 0 });
    let seconds = || fs.stat(*other).unwrap().atime.seconds;
    fs.apply_pending_atimes_in_background().unwrap();
    assert_eq!(seconds(), 5, "it is still pending");
    failing.mend();
    fs.apply_pending_atimes_in_background().unwrap();
    assert!(fs.pending_atimes.is_empty());
    assert_eq!(seconds(), 5, "it is applied");
    fs.unmount().unwrap();
}

#[test]
fn an_unmount_frees_an_inode_whose_last_reference_is_being_dropped() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let fs = mounted(format(&device, ""));
    let root = fs.root().unwrap();
    let ino = fs.create(ROOT_USER, root, b"file", 0o100_644, 0, None).unwrap().ino;
    fs.unlink(root, b"file").unwrap();
    // The first half of `forget`; the unmount comes before the second one.
    assert!(fs.inodes.forget(ino, 1, || {}));
    fs.unmount().unwrap();
    // With an orphan, the volume would be shown as after its removal.
    let volume = Engine::open(device, Options::read_only()).unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::UMOUNT));
}

/// Mounts a volume of 2 GiB with an empty file. Writes fail while the switch is on, as on a sparse image on a full file
/// system of the host.
fn on_full_host(settings: Settings, on_error: OnError) -> (Arc<AtomicBool>, FileSystem, Ino) {
    let (inner, ino) = with_file(2 << 30);
    let is_full = Arc::new(AtomicBool::new(false));
    let switch = is_full.clone();
    let device = Hooked::new(inner, move |verb, _| {
        let fails = verb == Verb::Write && is_full.load(Ordering::Relaxed);
        if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    });
    let options = Options { cache_bytes: 128 << 10, on_error, ..Options::new(Time::default) };
    let volume = Engine::open(Arc::new(device), options).unwrap();
    (switch, FileSystem::new(volume, Weak::new(), settings), ino)
}

/// The parts of a long hole, and a rename over a file, free space as well.
#[test]
fn an_upkeep_that_finds_no_space_ends_no_long_hole_and_refuses_no_replacement() {
    let failing = Failing::by(Damage::NoSpace);
    let Failing { fs, other, .. } = &failing;
    let root = fs.root().unwrap();
    fs.allocate(ROOT_USER, *other, 0, 200 << 20, 3).unwrap();
    let request = Request::ReleaseSaved;
    // The answer is that of a volume without compression.
    assert_eq!(fs.ioctl(ROOT_USER, *other, OpenFor::Writing, &request).map(drop), Err(Errno::OPNOTSUPP));
    fs.rename(ROOT_USER, (root, b"0"), (root, b"other"), RenameFlags::empty()).unwrap();
    assert_eq!(fs.lookup(root, b"0").map(drop), Err(Errno::NOENT));
    failing.mend();
    fs.unmount().unwrap();
}

/// Removing files is the way out of a lack of space.
#[test]
fn an_upkeep_that_finds_no_space_refuses_no_removal() {
    let failing = Failing::by(Damage::NoSpace);
    let Failing { fs, other, .. } = &failing;
    let root = fs.root().unwrap();
    assert_eq!(fs.create(ROOT_USER, root, b"new", 0o100_644, 0, None).map(drop), Err(Errno::NOSPC));
    let shorten = Change { size: Some(0), ..Change::default() };
    fs.change(ROOT_USER, *other, &shorten).unwrap();
    fs.allocate(ROOT_USER, *other, 0, 4096, 3).unwrap();
    fs.unlink(root, b"other").unwrap();
    assert_eq!(fs.lookup(root, b"other").map(drop), Err(Errno::NOENT));
    failing.mend();
    fs.unmount().unwrap();
}

#[test]
fn a_file_without_a_name_whose_checkpoint_fails_is_freed() {
    let (is_full, fs, _) = on_full_host(Settings { dirsync: true, ..Settings::default() }, OnError::Continue);
    let root = fs.root().unwrap();
    is_full.store(true, Ordering::Relaxed);
    let made = fs.create_nameless(ROOT_USER, root, 0o100_644, 0, OpenFor::Writing);
    assert_eq!(made.map(drop), Err(Errno::NOSPC));
    assert!(fs.quiet_read_lock().unwrap().orphans().is_empty());
    assert!(fs.open_for_writing().is_empty());
    is_full.store(false, Ordering::Relaxed);
    let made = fs.create_nameless(ROOT_USER, root, 0o100_644, 0, OpenFor::Writing).unwrap();
    assert_eq!(fs.quiet_read_lock().unwrap().orphans().iter().collect::<Vec<_>>(), [&made.ino]);
    fs.unmount().unwrap();
}

/// Between the parts of a long allocation the upkeep is done, which may fail.
#[test]
fn an_allocation_that_fails_after_a_part_leaves_the_size() {
    let (is_full, fs, ino) = on_full_host(Settings::default(), OnError::ReadOnly);
    is_full.store(true, Ordering::Relaxed);
    assert!(fs.allocate(ROOT_USER, ino, 0, 1500 << 20, 0).is_err());
    let stat = fs.stat(ino).unwrap();
    assert!(stat.sectors > (64 << 20) / 512, "{} sectors", stat.sectors);
    assert_eq!(stat.size, 0);
}

/// The kernel writes back several parts of a file at once, and the last error counts.
#[test]
fn the_loss_of_accepted_data_has_the_errno_of_the_write_that_failed() {
    let (is_full, fs, ino) = on_full_host(Settings::default(), OnError::ReadOnly);
    assert_eq!(fs.cause_of_loss(Errno::ROFS), Errno::ROFS, "nothing has failed");
    is_full.store(true, Ordering::Relaxed);
    let write = |n: u64| fs.write(ROOT_USER, ino, n << 20, &[1; 1 << 20], WriteMode::default());
    let failed = (0..64).map(write).find_map(Result::err);
    assert_eq!(failed, Some(Errno::NOSPC));
    is_full.store(false, Ordering::Relaxed);
    let later = write(100).unwrap_err();
    assert_eq!((later, fs.cause_of_loss(later)), (Errno::ROFS, Errno::NOSPC));
    assert_eq!(fs.cause_of_loss(Errno::DQUOT), Errno::DQUOT);
}

/// With the bits, others could execute what is left as the owner.
#[test]
fn a_truncation_that_fails_half_way_has_cleared_the_set_user_id_bit() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let mut volume = format(&device, "");
    let root = volume.superblock().root_ino;
    let admin = f2fs::engine::Caller::ADMIN;
    let ino = volume.begin(admin).create(root, b"file", &NewNode::new(0o104_755)).unwrap();
    volume.begin(admin).allocate_range(ino, 0, 80 << 20, FileSize::Grows).unwrap();
    volume.unmount().unwrap();
    let addr = volume.nat_entry(Nid(volume.inode(ino).unwrap().child(0).0)).unwrap().addr;
    drop(volume);
    device.write(u64::from(addr.0) << 12, &[0xA5; 4096]).unwrap();
    let fs = mounted(Engine::open(device, Options::new(Time::default)).unwrap());
    let change = Change { size: Some(0), drops_privilege: true, ..Change::default() };
    assert_eq!(fs.change(ROOT_USER, ino, &change).map(drop), Err(Errno::UCLEAN));
    let stat = fs.stat(ino).unwrap();
    assert!(stat.size < 80 << 20, "a part is cut off: {} bytes", stat.size);
    assert_eq!(stat.mode & 0o7777, 0o755);
}
