//! Devices that refuse writes: synced data stays readable, and with `OnError::Continue` no data is lost.

mod support;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use block::{Counted, Device, Fault, Faulty, MemoryDevice, Recording, Survivors, Verb, power_cut};
use f2fs::{
    Error, Result,
    engine::{
        Cleaned, Engine, FileSize, InPlace, NewNode, OnError, Options, Policy, QuotaLimits, RenameMode,
        SetAttr, SyncScope, XattrMode,
    },
    format::{BlockSize, TableCopy, checkpoint::Flags, inode::flag, quota::QuotaKind},
    units::{BlockAddr, Ino},
};
use model::setup::{copy, load, store};
use support::NOW;

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;

/// Runs the tests' work on a volume: files are written, synced one by one, overwritten, removed.
fn work(volume: &mut Engine, mut on_error: impl FnMut(&Engine, &Error) -> bool) -> bool {
    let mut make_durable = |volume: &mut Engine, sync: &dyn Fn(&mut Engine) -> Result<()>| loop {
        match sync(volume) {
            Ok(()) => return true,
            Err(error) if on_error(volume, &error) => {}
            Err(_) => return false,
        }
    };
    for n in 0..6u8 {
        let name = [b'a' + n];
        let Ok(ino) = volume.create(ROOT, &name, &NewNode::new(FILE)) else { return false };
        if volume.write(ino, 0, &[n; 30_000]).is_err() {
            return false;
        }
        if !make_durable(volume, &|volume| volume.fsync(ino, SyncScope::Everything)) {
            return false;
        }
        if n % 2 == 1 && !make_durable(volume, &Engine::checkpoint) {
            return false;
        }
        if volume.write(ino, 5000, &[n + 100; 100]).is_err() {
            return false;
        }
        if !make_durable(volume, &|volume| volume.fsync(ino, SyncScope::Data)) {
            return false;
        }
    }
    if volume.unlink(ROOT, b"a").is_err() {
        return false;
    }
    make_durable(volume, &Engine::unmount)
}

fn check(volume: &Engine) {
    assert!(matches!(volume.lookup(ROOT, b"a"), Err(Error::NotFound)));
    for n in 1..6u8 {
        let mut wanted = vec![n; 30_000];
        wanted[5000..5100].fill(n + 100);
        let ino = volume.lookup(ROOT, &[b'a' + n]).unwrap();
        let mut bytes = vec![0; 40_000];
        assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), 30_000);
        assert!(bytes[..30_000] == wanted, "{n}");
    }
}

fn fresh(path: &Path) -> Vec<u8> {
    support::mkfs(path, 52 << 20, &["-O", "extra_attr,inode_checksum"]);
    std::fs::read(path).unwrap()
}

fn open(device: Arc<dyn Device>, on_error: OnError) -> Engine {
    open_for(device, on_error, None)
}

fn open_for(device: Arc<dyn Device>, on_error: OnError, write_through_bytes: Option<usize>) -> Engine {
    let options = Options { on_error, write_through_bytes, ..Options::new(|| NOW) };
    Engine::open(device, options).expect("the volume opens")
}

/// If any single write fails once, the work succeeds in the end, as without the failure.
#[test]
fn a_write_that_fails_once_is_repeated() {
    repeats_what_fails_once(None);
    repeats_what_fails_once(Some(1));
}

fn repeats_what_fails_once(write_through_bytes: Option<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = fresh(&path);
    let (mut nth, mut failures, mut stopped) = (0, 0, 0);
    loop {
        let fault = Fault::ErrorAt { verb: Verb::Write, nth };
        let device = Arc::new(Counted::new(Faulty::new(MemoryDevice::from_bytes(&image), vec![fault])));
        let mut volume = open_for(device.clone(), OnError::Continue, write_through_bytes);
        let mut failed = false;
        let done = work(&mut volume, |volume, error| {
            assert!(matches!(error, Error::Io { .. }), "write {nth}: {error}");
            failed = true;
            volume.read_only_reason().is_none()
        });
        failures += u64::from(failed);
        if done {
            check(&volume);
            drop(volume);
            let mut bytes = vec![0; image.len()];
            device.inner().inner().read(0, &mut bytes).unwrap();
            std::fs::write(&path, &bytes).unwrap();
            support::assert_clean(&path);
            check(&support::open_read_only(&path));
        } else {
            // Only the last block of a checkpoint cannot be repeated.
            assert!(volume.read_only_reason().is_some(), "write {nth}");
            stopped += 1;
        }
        // Reported or not, a repeated write adds one to the number of writes.
        if done && device.counts().writes <= nth {
            break;
        }
        nth += 1;
    }
    assert!(failures > 30 && (4..=6).contains(&stopped), "{stopped} of {failures} ({nth})");
}

/// A checkpoint that failed at any of its writes is repeated. If the power fails meanwhile, the previous one
/// is valid, with all its tables.
#[test]
fn a_checkpoint_that_is_tried_again_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = {
        let device = Arc::new(MemoryDevice::from_bytes(&fresh(&path)));
        let mut volume = open(device.clone(), OnError::Continue);
        // More changes than the journals can hold.
        for n in 0..140 {
            let ino = volume.create(ROOT, format!("old {n}").as_bytes(), &NewNode::new(FILE)).unwrap();
            volume.write(ino, 0, &[1; 40_000]).unwrap();
        }
        volume.unmount().unwrap();
        device.to_vec()
    };
    let (mut nth, mut cuts) = (0, 0);
    loop {
        let fault = Fault::ErrorAt { verb: Verb::Write, nth };
        let faulty = Faulty::new(MemoryDevice::from_bytes(&image), vec![fault]);
        let device = Arc::new(Recording::with_data(faulty));
        let mut volume = open(device.clone(), OnError::Continue);
        for n in 0..140 {
            volume.unlink(ROOT, format!("old {n}").as_bytes()).unwrap();
        }
        volume.checkpoint().unwrap_err();
        if volume.read_only_reason().is_some() {
            // This is the checkpoint's last block, which cannot be repeated.
            break;
        }
        let before = device.trace().len();
        for n in 0..60 {
            volume.create(ROOT, format!("new {n}").as_bytes(), &NewNode::new(FILE)).unwrap();
        }
        volume.checkpoint().unwrap();
        let trace = device.take_trace();
        for at in before..trace.len() {
            let left = Arc::new(MemoryDevice::from_bytes(&image));
            power_cut(&trace, at, &Survivors::All, &*left).unwrap();
            let mut volume = open(left.clone(), OnError::ReadOnly);
            // The count includes the two dots.
            let count = volume.entries(ROOT, 0).unwrap().count();
            assert!([142, 62].contains(&count), "write {nth}, cut after {at}: {count} entries");
            volume.unmount().unwrap();
            std::fs::write(&path, left.to_vec()).unwrap();
            support::assert_clean(&path);
            cuts += 1;
        }
        nth += 1;
    }
    assert!(nth > 3 && cuts > 10, "{nth} writes failed, {cuts} cuts");
}

#[test]
fn a_flush_that_fails_ends_changes() {
    let dir = tempfile::tempdir().unwrap();
    let image = fresh(&dir.path().join("image"));
    for on_error in [OnError::ReadOnly, OnError::Continue] {
        let fault = Fault::ErrorAt { verb: Verb::Flush, nth: 2 };
        let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&image), vec![fault]));
        let mut volume = open(device, on_error);
        assert!(!work(&mut volume, |volume, _| volume.read_only_reason().is_none()));
        assert!(volume.read_only_reason().is_some());
        assert!(matches!(volume.create(ROOT, b"more", &NewNode::new(FILE)), Err(Error::ReadOnly(_))));
    }
}

/// Unwritten data can be read although the device accepts no more writes, and synced data survives.
#[test]
fn data_that_cannot_be_written_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = fresh(&path);
    for on_error in [OnError::ReadOnly, OnError::Continue] {
        // From some time on, everything except the checkpoints and the tables refuses writes: the device is
        // worn out.
        let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&image), Vec::new()));
        let mut volume = open(device.clone(), on_error);
        let synced = volume.create(ROOT, b"synced", &NewNode::new(FILE)).unwrap();
        volume.write(synced, 0, &[1; 100_000]).unwrap();
        volume.fsync(synced, SyncScope::Everything).unwrap();
        drop(volume);
        let mut bytes = vec![0; image.len()];
        device.inner().read(0, &mut bytes).unwrap();

        let all = Fault::ErrorIn { verb: Verb::Write, range: 0..image.len() as u64 };
        let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&image), vec![all]));
        let mut volume = open(device, on_error);
        let ino = volume.create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
        let mut written = 0;
        while written < 3000 && volume.write(ino, written * 4096, &[2; 4096]).is_ok() {
            written += 1;
        }
        assert!(written > 200, "{written}");
        let mut block = [0; 4096];
        for n in [0, 100, written - 1] {
            volume.read(ino, n * 4096, &mut block).unwrap();
            assert!(block == [2; 4096], "{on_error:?}, block {n} of {written}");
        }
        let told = volume.fsync(ino, SyncScope::Everything);
        assert!(matches!(told, Err(Error::Io { .. } | Error::ReadOnly(_))), "{told:?}");
        assert_eq!(volume.read_only_reason().is_some(), on_error == OnError::ReadOnly);
        drop(volume);

        let volume = open(Arc::new(MemoryDevice::from_bytes(&bytes)), on_error);
        let mut content = vec![0; 100_000];
        volume.read(synced, 0, &mut content).unwrap();
        assert!(content == [1; 100_000]);
    }
}

/// If a block of a file cannot be read, an insertion ends half-way, and moved blocks are still in the file.
#[test]
fn an_insertion_that_fails_half_way_loses_nothing() {
    const BLOCKS: u64 = 600;
    let dir = tempfile::tempdir().unwrap();
    let image = fresh(&dir.path().join("image"));
    let device = MemoryDevice::from_bytes(&image);
    let device = Arc::new(device);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let block = |n: u64| vec![n as u8 | 1; 4096];
    for n in 0..BLOCKS {
        volume.write(ino, n * 4096, &block(n)).unwrap();
    }
    volume.unmount().unwrap();
    let bad = volume.address(&volume.inode(ino).unwrap(), 20).unwrap();
    drop(volume);
    let mut bytes = vec![0; image.len()];
    device.read(0, &mut bytes).unwrap();
    let at = u64::from(bad.0) * 4096;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + 4096 };
    let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&bytes), vec![fault]));
    let mut volume = open(device, OnError::ReadOnly);
    assert!(matches!(volume.insert_range(ino, 0, 300 * 4096), Err(Error::Io { .. })));
    let mut found = vec![0; 4096];
    for n in (0..BLOCKS).filter(|n| *n != 20) {
        let is_at = |volume: &Engine, place: u64, found: &mut [u8]| {
            matches!(volume.read(ino, place * 4096, found), Ok(4096)) && *found == block(n)
        };
        let there = is_at(&volume, n, &mut found) || is_at(&volume, n + 300, &mut found);
        assert!(there, "block {n}");
    }
}

/// Blocks reserved past a file's end stay reserved if a write there fails.
#[test]
fn a_failed_write_releases_only_its_own_reservation() {
    let dir = tempfile::tempdir().unwrap();
    let image = fresh(&dir.path().join("image"));
    let device = Arc::new(MemoryDevice::from_bytes(&image));
    let mut volume = open(device.clone(), OnError::Continue);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &[1; 4096 + 100]).unwrap();
    volume.allocate_range(ino, 0, 1 << 20, FileSize::Stays).unwrap();
    volume.unmount().unwrap();
    let bad = volume.address(&volume.inode(ino).unwrap(), 0).unwrap();
    drop(volume);
    let at = u64::from(bad.0) * 4096;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + 4096 };
    let device = Arc::new(Faulty::new(MemoryDevice::from_bytes(&device.to_vec()), vec![fault]));
    let mut volume = open(device, OnError::Continue);
    let blocks = volume.stat(ino).unwrap().sectors;
    assert!(matches!(volume.write(ino, 200, &[2; 100]), Err(Error::Io { .. })));
    assert_eq!((volume.stat(ino).unwrap().sectors, volume.stat(ino).unwrap().size), (blocks, 4096 + 100));
}

/// A bad sector under a block that is always overwritten in place delays only that block. Changes of other
/// files become durable, and a caller that syncs this file gets the error.
#[test]
fn a_bad_sector_under_one_file_does_not_stop_checkpoints() {
    let options = || Options { in_place: InPlace::Always, ..Options::new(|| NOW) };
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(inner.clone(), &[], BlockSize::B4K);
    let bad = volume.create(ROOT, b"bad", &NewNode::new(FILE)).unwrap();
    volume.write(bad, 0, &[1; 20_000]).unwrap();
    volume.unmount().unwrap();
    let addr = volume.address(&volume.inode(bad).unwrap(), 0).unwrap();
    drop(volume);
    let range = u64::from(addr.0) * 4096..(u64::from(addr.0) + 1) * 4096;
    let fault = Fault::ErrorIn { verb: Verb::Write, range };
    let device = Arc::new(Faulty::new(inner.clone(), vec![fault]));

    let mut volume = Engine::open(device, options()).unwrap();
    volume.write(bad, 10, &[2; 100]).unwrap();
    let good = volume.create(ROOT, b"good", &NewNode::new(FILE)).unwrap();
    volume.write(good, 0, &[3; 9000]).unwrap();
    assert!(matches!(volume.fsync(bad, SyncScope::Everything), Err(Error::Io { .. })));
    volume.fsync(good, SyncScope::Everything).unwrap();
    assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })), "not all of it is durable");
    assert!(volume.read_only_reason().is_none());
    volume.write(good, 0, &[4; 9000]).unwrap();
    assert!(matches!(volume.unmount(), Err(Error::Io { .. })), "the error is reported");
    drop(volume);

    let volume = Engine::open(inner, options()).unwrap();
    let mut bytes = vec![0; 9000];
    assert_eq!(volume.read(good, 0, &mut bytes).unwrap(), 9000);
    assert!(bytes == [4; 9000]);
    assert_eq!(volume.read(bad, 0, &mut bytes).unwrap(), 9000);
    assert!(bytes == [1; 9000]);
}

/// The section most worth cleaning has a bad sector and cannot be cleaned. Others are cleaned instead.
#[test]
fn a_bad_sector_keeps_only_its_own_section_from_being_cleaned() {
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(inner.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &vec![1; 2500 * 4096]).unwrap();
    // One block of a segment stays, 24 of the next, 76 of another.
    for hole in [0..100, 101..1000, 1100..2400] {
        volume.punch_hole(ino, hole.start * 4096, (hole.end - hole.start) * 4096).unwrap();
    }
    volume.unmount().unwrap();
    let bad = u64::from(volume.address(&volume.inode(ino).unwrap(), 100).unwrap().0) * 4096;
    drop(volume);
    let fault = Fault::ErrorIn { verb: Verb::Read, range: bad..bad + 4096 };
    let mut volume = open(Arc::new(Faulty::new(inner.clone(), vec![fault])), OnError::ReadOnly);
    let cleaned = volume.clean(1, Policy::Greedy).unwrap();
    assert_eq!((cleaned.sections, cleaned.moved_blocks), (1, 24));
    // Without another section, the caller gets the error.
    while let Ok(cleaned) = volume.clean(1, Policy::Greedy) {
        assert!(cleaned.sections > 0);
    }
    volume.unmount().unwrap();
    drop(volume);
    let volume = open(inner, OnError::ReadOnly);
    let mut found = vec![0; 100 * 4096];
    volume.read(ino, 1000 * 4096, &mut found).unwrap();
    assert!(found == [1; 100 * 4096]);
    volume.read(ino, 100 * 4096, &mut found[..4096]).unwrap();
    assert!(found[..4096] == [1; 4096]);
}

/// A device on which some places cannot be read for a time.
struct Scratched {
    inner: MemoryDevice,
    bad: Mutex<Vec<u64>>,
    /// Number of reads until one fails.
    until: Mutex<Option<u64>>,
    /// True if all later requests fail, too.
    goes_on: Mutex<bool>,
    /// Number of failed reads.
    failed: Mutex<u64>,
    refuses_writes: Mutex<bool>,
}

impl Scratched {
    fn new(inner: MemoryDevice) -> Arc<Scratched> {
        Arc::new(Scratched {
            inner,
            bad: Mutex::default(),
            until: Mutex::default(),
            goes_on: Mutex::default(),
            failed: Mutex::default(),
            refuses_writes: Mutex::default(),
        })
    }

    /// Makes these blocks unreadable from now on.
    fn set(&self, blocks: &[BlockAddr]) {
        *self.bad.lock().unwrap() = blocks.iter().map(|addr| u64::from(addr.0) * 4096).collect();
    }
}

impl Device for Scratched {
    fn geometry(&self) -> block::Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let range = offset_bytes..offset_bytes + buf.len() as u64;
        let mut until = self.until.lock().unwrap();
        let now = *until == Some(0);
        if !now || !*self.goes_on.lock().unwrap() {
            *until = until.and_then(|reads| reads.checked_sub(1));
        }
        match now || self.bad.lock().unwrap().iter().any(|bad| *bad < range.end && range.start < bad + 4096) {
            true => {
                *self.failed.lock().unwrap() += 1;
                Err(std::io::Error::other("a scratch"))
            }
            false => self.inner.read(offset_bytes, buf),
        }
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> std::io::Result<()> {
        match *self.refuses_writes.lock().unwrap() {
            true => Err(std::io::Error::other("a lock")),
            false => self.inner.write(offset_bytes, buf),
        }
    }

    fn flush(&self) -> std::io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> std::io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

/// Makes files of all kinds, and many others so that a small cache drops unused ones.
fn crowded(path: &Path) -> MemoryDevice {
    support::mkfs(path, 100 << 20, &["-O", "extra_attr,inode_checksum,project_quota,quota,compression"]);
    let mut volume = support::open(path);
    let own = |mode| NewNode { uid: 1000, gid: 1000, ..NewNode::new(mode) };
    for n in 0..400 {
        volume.create(ROOT, format!("other{n}").as_bytes(), &own(FILE)).unwrap();
    }
    for name in [&b"big"[..], b"held", b"gone"] {
        let ino = volume.create(ROOT, name, &own(FILE)).unwrap();
        volume.write(ino, 0, &vec![1; 1200 * 4096]).unwrap();
        volume.set_xattr(ino, b"user.long", &[1; 3500], XattrMode::Set).unwrap();
    }
    let dir = volume.create(ROOT, b"dir", &own(0o040_755)).unwrap();
    for n in 0..300 {
        volume.create(dir, format!("name{n}").as_bytes(), &own(FILE)).unwrap();
    }
    let packed = volume.create(ROOT, b"packed", &own(FILE)).unwrap();
    let compressed = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.set_attr(packed, &compressed).unwrap();
    volume.write(packed, 0, &[1; 16 * 4096]).unwrap();
    let limits = QuotaLimits { inodes_hard: 10_000, ..QuotaLimits::default() };
    volume.set_quota_limits(QuotaKind::User, 1000, limits).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(path);
    load(path).unwrap()
}

/// Opens a volume with little memory.
fn open_small(device: Arc<dyn Device>) -> Result<Engine> {
    Engine::open(device, small_options())
}

fn small_options() -> Options {
    Options { cache_bytes: 128 << 10, on_error: OnError::Continue, ..Options::new(|| NOW) }
}

/// Reads enough other nodes to evict all earlier ones from a small cache: nine adjacent inodes for each of
/// the sixteen shards of the node cache.
fn forget(volume: &Engine) {
    let first = volume.lookup(ROOT, b"other100").unwrap();
    for n in 0..9 * 16 {
        volume.stat(Ino(first.0 + n)).unwrap();
    }
}

type Step = fn(&mut Engine) -> Result<()>;

/// All operations of a volume. The cache is emptied before each.
const STEPS: &[Step] = &[
    |volume| {
        let ino = volume.create(ROOT, b"new", &NewNode { uid: 1000, ..NewNode::new(FILE) })?;
        volume.write(ino, 0, &vec![2; 1000 * 4096])
    },
    |volume| volume.write(volume.lookup(ROOT, b"big")?, 1100 * 4096 + 5, &[2; 5]),
    |volume| volume.write(volume.lookup(ROOT, b"packed")?, 5 * 4096 + 5, &[2; 5]),
    |volume| {
        let ino = volume.lookup(ROOT, b"held")?;
        volume.unlink(ROOT, b"held")?;
        volume.hold(ino);
        Ok(())
    },
    |volume| volume.fsync(volume.lookup(ROOT, b"big")?, SyncScope::Everything),
    |volume| volume.unlink(ROOT, b"gone"),
    |volume| volume.truncate(volume.lookup(ROOT, b"new")?, 20_000),
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.rename(dir, b"name7", ROOT, b"name7", RenameMode::Replace)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.link(volume.lookup(dir, b"name8")?, ROOT, b"link")
    },
    |volume| volume.write(volume.lookup(ROOT, b"big")?, 1150 * 4096 + 5, &[2; 5]),
    |volume| {
        // The second call has more to write.
        let ino = volume.lookup(ROOT, b"new")?;
        volume.write(ino, volume.stat(ino)?.size, &[2; 50_000])?;
        volume.checkpoint()
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        let new = NewNode { uid: 1000, ..NewNode::new(0o020_000) };
        volume.rename_leaving((dir, b"name9"), (ROOT, b"name9"), RenameMode::Replace, &new)
    },
    |volume| {
        let set = SetAttr { uid: Some(5), project: Some(7), ..SetAttr::default() };
        volume.set_attr(volume.lookup(ROOT, b"big")?, &set)
    },
    |volume| volume.set_xattr(volume.lookup(ROOT, b"other3")?, b"user.long", &[2; 3000], XattrMode::Set),
    |volume| volume.remove_xattr(volume.lookup(ROOT, b"big")?, b"user.long"),
    |volume| volume.punch_hole(volume.lookup(ROOT, b"big")?, 900 * 4096, 200 * 4096),
    |volume| volume.write(volume.lookup(ROOT, b"new")?, 50_000, &[3; 50_000]),
    |volume| volume.collapse_range(volume.lookup(ROOT, b"big")?, 4096, 10 * 4096),
    |volume| volume.insert_range(volume.lookup(ROOT, b"big")?, 4096, 1000 * 4096),
    |volume| volume.zero_range(volume.lookup(ROOT, b"big")?, 1500 * 4096 + 7, 3000 * 4096, FileSize::Grows),
    |volume| volume.allocate_range(volume.lookup(ROOT, b"other5")?, 5000, 2000 * 4096, FileSize::Stays),
    |volume| volume.symlink(ROOT, b"symlink", &[b'x'; 4000], &NewNode::new(0o777)).map(drop),
    |volume| volume.create(ROOT, b"sub", &NewNode::new(0o040_755)).map(drop),
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.rename(dir, b"name17", ROOT, b"other6", RenameMode::Exchange)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.rename(ROOT, b"sub", dir, b"sub", RenameMode::Replace)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.rename(dir, b"name18", ROOT, b"other7", RenameMode::Replace)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.remove_dir(dir, b"sub")
    },
    |volume| volume.release_saved(volume.lookup(ROOT, b"packed")?).map(drop),
    |volume| volume.reserve_saved(volume.lookup(ROOT, b"packed")?).map(drop),
    |volume| volume.write(volume.lookup(ROOT, b"packed")?, 3 * 4096, &[5; 9 * 4096]),
    |volume| volume.punch_hole(volume.lookup(ROOT, b"packed")?, 5 * 4096, 4096),
    |volume| volume.fsync(volume.lookup(ROOT, b"packed")?, SyncScope::Everything),
    |volume| volume.truncate(volume.lookup(ROOT, b"packed")?, 7 * 4096 + 9),
    |volume| {
        let new = NewNode { uid: 1000, gid: 1000, ..NewNode::new(FILE) };
        let ino = volume.create_nameless(ROOT, &new)?;
        let linked = volume.link(ino, ROOT, b"nameless");
        volume.release(ino)?;
        linked
    },
    |volume| {
        let limits = QuotaLimits { inodes_hard: 9_000, ..QuotaLimits::default() };
        volume.set_quota_limits(QuotaKind::Group, 1000, limits)
    },
    |volume| volume.clean(1, Policy::Greedy).map(drop),
    Engine::unmount,
];

/// If any single read fails once, the second call succeeds, and no data is lost.
#[test]
fn a_read_that_fails_once_leaves_no_operation_half_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = crowded(&path);
    let (mut nth, mut failures) = (0, 0);
    let mut bad = Vec::new();
    loop {
        let device = Scratched::new(copy(&image).unwrap());
        let mut volume = open_small(device.clone()).unwrap();
        let held = volume.lookup(ROOT, b"held").unwrap();
        let mut left = Some(nth);
        let mut told = String::from("no error is reported");
        let mut run = |volume: &mut Engine, name: String, step: &dyn Fn(&mut Engine) -> Result<()>| {
            forget(volume);
            *device.until.lock().unwrap() = left;
            let result = step(volume);
            left = device.until.lock().unwrap().take();
            let Err(error) = result else { return };
            failures += 1;
            told = format!("{name}: {error}");
            if !matches!(error, Error::Io { .. }) {
                bad.push(format!("read {nth}, {told}"));
            }
            match step(volume) {
                Ok(()) | Err(Error::Exists | Error::NotFound | Error::NoAttribute) => {}
                Err(error) => bad.push(format!("read {nth}, {told}, again: {error}")),
            }
        };
        for (n, step) in STEPS.iter().enumerate() {
            run(&mut volume, format!("step {n}"), step);
            if n == 10 {
                run(&mut volume, "release".into(), &|volume| volume.release(held));
            }
        }
        let ended = left.is_some();
        if !volume.orphans().is_empty() {
            bad.push(format!("read {nth}, {told}: {:?}", volume.orphans()));
        }
        let volume_flags = volume.last_checkpoint().flags;
        drop(volume);
        store(&device.inner, &path).unwrap();
        if let Err(error) = model::fsck::fsck_image(&path) {
            bad.push(format!("read {nth}, {told}: {error:#}"));
        }
        if volume_flags.has(Flags::QUOTA_NEED_FSCK) {
            bad.push(format!("read {nth}, {told}: quota"));
        }
        if ended {
            break;
        }
        nth += 1;
    }
    assert!(bad.is_empty(), "{failures} failures of {nth}: {}", bad.join("\n"));
}

/// An inode that could not be evicted when its last user closed it is removed with the next checkpoint. Its
/// space is not lost to the session.
#[test]
fn an_inode_that_could_not_be_evicted_is_evicted_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let before = volume.counters();
    for name in [&b"held"[..], b"gone"] {
        let ino = volume.lookup(ROOT, name).unwrap();
        let nid = volume.inode(ino).unwrap().child(0);
        let node = volume.nat_entry(nid).unwrap().addr;
        if name == b"held" {
            volume.hold(ino);
            volume.unlink(ROOT, name).unwrap();
            forget(&volume);
            device.set(&[node]);
            assert!(matches!(volume.release(ino), Err(Error::Io { .. })));
        } else {
            forget(&volume);
            device.set(&[node]);
            // The name is gone, as requested.
            volume.unlink(ROOT, name).unwrap();
        }
        assert!(matches!(volume.lookup(ROOT, name), Err(Error::NotFound)));
        // Other changes do not wait for the failed eviction.
        volume.create(ROOT, &[name, b"2"].concat(), &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        assert!(volume.orphans().contains(&ino));
        device.set(&[]);
        volume.create(ROOT, &[name, b"3"].concat(), &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        assert!(volume.orphans().is_empty());
    }
    let after = volume.counters();
    // Gone: two files of 1200 blocks, each with an inode, a node of addresses and one of attributes. New:
    // four inodes.
    assert_eq!(before.valid_blocks - after.valid_blocks, 2 * 1203 - 4);
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// An unused inode that stays only because it could not be removed gets no name again. A caller that opens it
/// keeps it.
#[test]
fn an_inode_that_could_not_be_evicted_gets_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let [held, gone] = [&b"held"[..], b"gone"].map(|name| volume.lookup(ROOT, name).unwrap());
    let nodes = [held, gone].map(|ino| {
        let nid = volume.inode(ino).unwrap().child(0);
        volume.nat_entry(nid).unwrap().addr
    });
    forget(&volume);
    device.set(&nodes);
    volume.unlink(ROOT, b"held").unwrap();
    volume.unlink(ROOT, b"gone").unwrap();
    device.set(&[]);
    assert!(matches!(volume.link(gone, ROOT, b"back"), Err(Error::NotFound)));
    volume.hold(held);
    volume.checkpoint().unwrap();
    assert!(volume.is_inode(held).unwrap() && !volume.is_inode(gone).unwrap());
    volume.release(held).unwrap();
    volume.checkpoint().unwrap();
    assert!(!volume.is_inode(held).unwrap());
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// If names leave their inode for several blocks and one of the blocks finds no place, all names are still
/// found.
#[test]
fn names_that_find_no_space_stay_in_their_inode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let over = volume.create(ROOT, b"over", &NewNode::new(FILE)).unwrap();
    let dirs: Vec<Ino> = (0..200)
        .map(|n| volume.create(ROOT, format!("dir{n}").as_bytes(), &NewNode::new(0o040_755)).unwrap())
        .collect();
    volume.unmount().unwrap();
    let levels: Vec<BlockAddr> =
        dirs.iter().map(|dir| volume.nat_entry((*dir).into()).unwrap().addr).collect();
    drop(volume);
    // The directory level becomes 3, so the first level has 2^3 buckets.
    const DIR_LEVEL: u64 = 347;
    for addr in levels {
        let mut block = [0; 4096];
        let at = u64::from(addr.0) * 4096;
        device.read(at, &mut block).unwrap();
        block[DIR_LEVEL as usize] = 3;
        device.write(at, &block).unwrap();
    }
    let options = Options { checkpoint_when_asked: true, in_place: InPlace::Never, ..Options::new(|| NOW) };
    let mut volume = Engine::open(device.clone(), options).unwrap();
    volume.write(over, 0, &[1]).unwrap();
    while volume.write(over, 0, &[1; 1 << 20]).is_ok() {}
    while volume.write(over, 0, &[1; 4096]).is_ok() {}
    let name = |n: usize| format!("{n} and so that few of them fit into an inode, many letters more, {n}");
    let full = dirs.into_iter().find_map(|dir| {
        let before = volume.counters();
        for n in 0..22 {
            let blocks = volume.stat(dir).unwrap().sectors;
            if let Err(error) = volume.link(over, dir, name(n).as_bytes()) {
                assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                return Some((dir, n, before.valid_blocks, blocks));
            }
        }
        None
    });
    let (dir, names, valid_blocks, blocks) = full.expect("the log of directories ends, too");
    for n in 0..names {
        assert_eq!(volume.lookup(dir, name(n).as_bytes()).unwrap(), over);
    }
    assert_eq!(volume.entries(dir, 0).unwrap().count(), names + 2);
    assert_eq!((volume.counters().valid_blocks, volume.stat(dir).unwrap().sectors), (valid_blocks, blocks));
    volume.unmount().unwrap();
    drop(volume);
    store(&device, &path).unwrap();
    support::assert_clean(&path);
}

/// If a move that removes an inode fails, and later reads fail too, the removed inode is gone.
#[test]
fn a_failed_move_leaves_no_inode_without_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = crowded(&path);
    // Name 9 is in the first block of the directory, and name 250 in a later one.
    for (name, leaves) in [(&b"name9"[..], true), (b"name250", true), (b"name250", false)] {
        let mut failures = 0;
        for nth in 0.. {
            let device = Scratched::new(copy(&image).unwrap());
            let mut volume = open_small(device.clone()).unwrap();
            let from = volume.lookup(ROOT, b"dir").unwrap();
            forget(&volume);
            *device.until.lock().unwrap() = Some(nth);
            *device.goes_on.lock().unwrap() = true;
            let moved = if leaves {
                let new = NewNode::new(0o020_000);
                volume.rename_leaving((from, name), (ROOT, name), RenameMode::Replace, &new)
            } else {
                volume.rename(from, name, ROOT, name, RenameMode::Replace)
            };
            *device.until.lock().unwrap() = None;
            let moved = moved.is_ok();
            failures += u32::from(!moved);
            let is_left = volume.lookup(from, name).is_ok();
            assert_eq!((volume.lookup(ROOT, name).is_ok(), is_left), (moved, !moved || leaves), "read {nth}");
            volume.unmount().unwrap();
            drop(volume);
            store(&device.inner, &path).unwrap();
            support::assert_clean(&path);
            if moved {
                break;
            }
        }
        assert!(failures > 3);
    }
}

/// Data in memory that is written last, at unmount, does not prevent the unmount.
#[test]
fn late_writes_leave_a_clean_volume() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = crowded(&path);
    let mut late = 0;
    for nth in 0..20 {
        let device = Scratched::new(copy(&image).unwrap());
        let mut volume = open_small(device.clone()).unwrap();
        let ino = volume.lookup(ROOT, b"packed").unwrap();
        volume.write(ino, 5 * 4096 + 5, &[2; 5]).unwrap();
        *device.until.lock().unwrap() = Some(nth);
        let ended = volume.unmount();
        let failed = device.until.lock().unwrap().take().is_none();
        if ended.is_ok() {
            assert!(volume.last_checkpoint().flags.has(Flags::UMOUNT), "read {nth}");
            assert!(volume.dirty_page(ino, 5).is_none());
            late += u32::from(failed);
        }
    }
    assert!(late > 0);
}

/// Makes a volume with a file of which one block stays in each of `segments` segments, and `last` in the last
/// one. Returns the addresses of the single blocks.
fn leave_one_of_each_segment(device: &Arc<Scratched>, segments: u64, last: u64) -> (Ino, Vec<BlockAddr>) {
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &vec![1; segments as usize * 512 * 4096]).unwrap();
    let addr_of = |volume: &Engine, block| volume.address(&volume.inode(ino).unwrap(), block).unwrap();
    let offset_of = |volume: &Engine, block| volume.geometry().position(addr_of(volume, block)).1;
    let first = (0..512).find(|block| offset_of(&volume, *block) == 0).unwrap();
    for n in 0..segments - 1 {
        let stay = if n == segments - 2 { last } else { 1 };
        let start = first + n * 512;
        volume.punch_hole(ino, (start + stay) * 4096, (512 - stay) * 4096).unwrap();
    }
    volume.unmount().unwrap();
    (ino, (0..segments - 2).map(|n| addr_of(&volume, first + n * 512)).collect())
}

/// Any number of sections that cannot be emptied do not prevent others from being cleaned. If space runs
/// short, operations on other files do not get their error.
#[test]
fn many_bad_sectors_do_not_stop_the_cleaning_of_other_sections() {
    const SEGMENTS: u64 = 60;
    let device = Scratched::new(MemoryDevice::new(256 << 20));
    let (_, bad) = leave_one_of_each_segment(&device, SEGMENTS, 100);
    device.set(&bad);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let mut emptied = 0;
    for _ in 0..SEGMENTS {
        emptied += volume.clean(1, Policy::Greedy).map_or(0, |cleaned| cleaned.sections);
    }
    assert!(emptied > 0, "the one with a hundred blocks");
    // Without another section, the caller gets the error.
    assert!(matches!(volume.clean(1, Policy::Greedy), Err(Error::Io { .. })));
    volume.unmount().unwrap();
}

/// On a nearly full volume, each operation that opened a segment cleans sections. A bad sector in one of them
/// is not an error of an operation on another file.
#[test]
fn a_bad_sector_does_not_fail_a_writer_that_needs_space() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    // Half of the nodes are freed again, so that only segments of nodes can be cleaned. Data fills its own
    // segments.
    let name = |n: u32| format!("file{n}");
    let inos: Vec<Ino> =
        (0..4000).map(|n| volume.create(ROOT, name(n).as_bytes(), &NewNode::new(FILE)).unwrap()).collect();
    volume.checkpoint().unwrap();
    for n in (1..4000).step_by(2) {
        volume.unlink(ROOT, name(n).as_bytes()).unwrap();
    }
    volume.unmount().unwrap();
    let mut bad = BTreeMap::new();
    for ino in inos.iter().step_by(2) {
        let addr = volume.nat_entry((*ino).into()).unwrap().addr;
        bad.insert(volume.geometry().position(addr).0, addr);
    }
    drop(volume);
    device.set(&bad.into_values().collect::<Vec<_>>());
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let full = volume.create(ROOT, b"full", &NewNode::new(FILE)).unwrap();
    let refused = (0..).find_map(|n| volume.write(full, n * 4096, &[1; 4096]).err()).unwrap();
    assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
    assert!(volume.read_only_reason().is_none());
    volume.unmount().unwrap();
}

/// Content or names that have to leave their inode are still found if there is no place for them.
#[test]
fn content_without_space_outside_its_inode_stays_there() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    // Freed blocks cannot be used again, so free segments run out.
    let options = Options { checkpoint_when_asked: true, in_place: InPlace::Never, ..Options::new(|| NOW) };
    let mut volume = Engine::open(device, options).unwrap();
    let over = volume.create(ROOT, b"over", &NewNode::new(FILE)).unwrap();
    let small = volume.create(ROOT, b"small", &NewNode::new(FILE)).unwrap();
    volume.write(small, 0, &[7; 1000]).unwrap();
    let dirs: Vec<Ino> = (0..600)
        .map(|n| volume.create(ROOT, format!("dir{n}").as_bytes(), &NewNode::new(0o040_755)).unwrap())
        .collect();
    while volume.write(over, 0, &[1; 1 << 20]).is_ok() {}
    while volume.write(over, 0, &[1; 4096]).is_ok() {}
    assert!(volume.free_user_blocks() > 1000);
    assert!(matches!(volume.write(small, 5000, &[8; 10]), Err(Error::NoSpace { .. })));
    let mut found = [0; 2000];
    assert_eq!(volume.read(small, 0, &mut found).unwrap(), 1000);
    assert!(found[..1000] == [7; 1000]);

    // The log of directories has a segment of its own. Each of these directories takes one block of it.
    let name = |n: usize| format!("{n} and so that few of them fit into an inode, many letters more, {n}");
    let full = dirs.into_iter().find_map(|dir| {
        let mut refused = |n| volume.link(over, dir, name(n).as_bytes()).err();
        let (n, error) = (0..22).find_map(|n| Some((n, refused(n)?)))?;
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        Some((dir, n))
    });
    let (dir, names) = full.expect("that ends, too");
    for n in 0..names {
        assert_eq!(volume.lookup(dir, name(n).as_bytes()).unwrap(), over);
    }
    assert_eq!(volume.entries(dir, 0).unwrap().count(), names + 2);
}

/// An orphan that cannot be read does not prevent opening the volume, and is removed once it can be read.
#[test]
fn a_volume_with_an_unreadable_orphan_opens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let ino = volume.lookup(ROOT, b"held").unwrap();
    let node = volume.inode(ino).unwrap().child(0);
    volume.hold(ino);
    volume.unlink(ROOT, b"held").unwrap();
    volume.checkpoint().unwrap();
    device.set(&[volume.nat_entry(node).unwrap().addr]);
    drop(volume);
    for read_only in [true, false] {
        let options = if read_only { Options::read_only() } else { Options::new(|| NOW) };
        let volume = Engine::open(device.clone(), options).unwrap();
        assert!(volume.orphans().contains(&ino));
    }
    device.set(&[]);
    let mut volume = open_small(device.clone()).unwrap();
    assert!(volume.orphans().is_empty());
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// Data written to a file stays in memory while the node of its block cannot be read. Other files are
/// written.
#[test]
fn a_node_that_cannot_be_read_does_not_stop_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let big = volume.lookup(ROOT, b"big").unwrap();
    let node = volume.inode(big).unwrap().child(0);
    let node = volume.nat_entry(node).unwrap().addr;
    for n in 0..5 {
        volume.write(big, (1100 + n) * 4096 + 5, &[2; 5]).unwrap();
    }
    forget(&volume);
    device.set(&[node]);
    let new = volume.create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
    volume.write(new, 0, &[3; 5000]).unwrap();
    volume.link(new, ROOT, b"second").unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })));
    assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })), "not all of it is durable");
    assert!(volume.read_only_reason().is_none());
    let there = Engine::open(Arc::new(copy(&device.inner).unwrap()), Options::read_only()).unwrap();
    let mut found = [0; 5000];
    assert_eq!(there.read(there.lookup(ROOT, b"second").unwrap(), 0, &mut found).unwrap(), 5000);
    assert!(found == [3; 5000]);
    drop(there);
    device.set(&[]);
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
    let volume = support::open_read_only(&path);
    volume.read(big, 1104 * 4096, &mut found[..4096]).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [2; 5]);
}

/// An fsync that needs a checkpoint also reports data that the checkpoint could not write.
#[test]
fn an_fsync_by_checkpoint_reports_data_that_stayed_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let big = volume.lookup(ROOT, b"big").unwrap();
    let node = volume.nat_entry(volume.inode(big).unwrap().child(0)).unwrap().addr;
    volume.link(big, ROOT, b"second").unwrap();
    volume.write(big, 1100 * 4096 + 5, &[2; 5]).unwrap();
    forget(&volume);
    device.set(&[node]);
    assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })));
    assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })), "it still waits");
    device.set(&[]);
    volume.fsync(big, SyncScope::Everything).unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(|| NOW)).unwrap();
    let mut found = [0; 4096];
    volume.read(big, 1100 * 4096, &mut found).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [2; 5]);
}

/// Data that an fsync by checkpoint wrote late is reported. If the fsync's own checkpoint failed, the data is
/// in the next one.
#[test]
fn late_writes_of_an_fsync_are_in_the_next_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = crowded(&path);
    for links in [1, 2] {
        let device = Scratched::new(copy(&image).unwrap());
        let options = Options { in_place: InPlace::Never, ..small_options() };
        let mut volume = Engine::open(device.clone(), options).unwrap();
        let big = volume.lookup(ROOT, b"big").unwrap();
        let node = volume.nat_entry(volume.inode(big).unwrap().child(0)).unwrap().addr;
        if links == 2 {
            volume.link(big, ROOT, b"second").unwrap();
        }
        volume.write(big, 1100 * 4096 + 5, &[2; 5]).unwrap();
        forget(&volume);
        device.set(&[node]);
        volume.checkpoint().unwrap_err();
        device.set(&[]);
        *device.refuses_writes.lock().unwrap() = true;
        assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })));
        assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })), "it still waits");
        assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })), "it still waits");
        *device.refuses_writes.lock().unwrap() = false;
        volume.checkpoint().unwrap();
        drop(volume);
        let volume = Engine::open(device, Options::new(|| NOW)).unwrap();
        let mut found = [0; 4096];
        volume.read(big, 1100 * 4096, &mut found).unwrap();
        assert!(found[..5] == [1; 5] && found[5..10] == [2; 5], "{links} links");
    }
}

/// A block whose in-place overwrite failed during the checkpoint and succeeds right after it is flushed.
#[test]
fn late_writes_in_place_are_flushed() {
    let options = || Options { in_place: InPlace::Always, ..Options::new(|| NOW) };
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(inner.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &[1; 20_000]).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let fault = Fault::ErrorAt { verb: Verb::Write, nth: 0 };
    let device = Arc::new(Recording::with_data(Faulty::new(copy(&inner).unwrap(), vec![fault])));
    let mut volume = Engine::open(device.clone(), options()).unwrap();
    volume.write(ino, 10, &[2; 100]).unwrap();
    volume.checkpoint().unwrap();
    drop(volume);
    let trace = device.take_trace();
    let left = copy(&inner).unwrap();
    power_cut(&trace, trace.len(), &Survivors::None, &left).unwrap();
    let volume = Engine::open(Arc::new(left), options()).unwrap();
    let mut found = [0; 100];
    volume.read(ino, 10, &mut found).unwrap();
    assert!(found == [2; 100]);
}

/// A block whose overwrite the device refuses repeatedly causes no checkpoints in between.
#[test]
fn a_failed_overwrite_in_place_causes_no_checkpoint() {
    let options = || Options { in_place: InPlace::Always, ..Options::new(|| NOW) };
    let inner = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(inner.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &[1; 20_000]).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let volume = Engine::open(inner.clone(), Options::read_only()).unwrap();
    let start = volume.address(&volume.inode(ino).unwrap(), 0).unwrap().0 * 4096;
    drop(volume);
    let fault = Fault::ErrorIn { verb: Verb::Write, range: start.into()..(start + 4096).into() };
    let mut volume = Engine::open(Arc::new(Faulty::new(inner, vec![fault])), options()).unwrap();
    volume.write(ino, 10, &[2; 100]).unwrap();
    assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })));
    let version = volume.last_checkpoint().version;
    for _ in 0..2 {
        assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })));
        assert_eq!(volume.last_checkpoint().version, version);
    }
}

/// A repeated unmount reports the unwritten data again.
#[test]
fn every_unmount_reports_data_that_stays_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let big = volume.lookup(ROOT, b"big").unwrap();
    let node = volume.nat_entry(volume.inode(big).unwrap().child(0)).unwrap().addr;
    volume.write(big, 1100 * 4096 + 5, &[2; 5]).unwrap();
    forget(&volume);
    device.set(&[node]);
    for _ in 0..2 {
        assert!(matches!(volume.unmount(), Err(Error::Io { .. })));
    }
    device.set(&[]);
    volume.unmount().unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::UMOUNT));
    drop(volume);
    let volume = Engine::open(device, Options::read_only()).unwrap();
    let mut found = [0; 4096];
    volume.read(big, 1100 * 4096, &mut found).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [2; 5]);
}

/// An inode that cannot be read delays no more than any other node.
#[test]
fn an_inode_that_cannot_be_read_does_not_stop_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let big = volume.lookup(ROOT, b"big").unwrap();
    volume.write(big, 1100 * 4096 + 5, &[2; 5]).unwrap();
    volume.fsync(volume.lookup(ROOT, b"other0").unwrap(), SyncScope::Everything).unwrap();
    volume.write(big, 1100 * 4096 + 5, &[3; 5]).unwrap();
    forget(&volume);
    device.set(&[volume.nat_entry(big.into()).unwrap().addr]);
    let new = volume.create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
    volume.link(new, ROOT, b"second").unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })), "not all of it is durable");
    device.set(&[]);
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
    let mut found = [0; 4096];
    support::open_read_only(&path).read(big, 1100 * 4096, &mut found).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [3; 5]);
}

/// The previous content of an opened compressed cluster exists only in memory, so every checkpoint writes it.
/// It is written before the nodes that would have to be read for it, so that a bad sector under those does
/// not delay the checkpoint.
#[test]
fn an_opened_cluster_is_in_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let device = Scratched::new(crowded(&dir.path().join("image")));
    let mut volume = open_small(device.clone()).unwrap();
    let packed = volume.lookup(ROOT, b"packed").unwrap();
    let first = volume.create(ROOT, b"first", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.punch_hole(packed, 5 * 4096, 4096).unwrap();
    assert!(volume.dirty_page(packed, 4).is_some());
    // This many changed nodes trigger write-back, and an fsync sends all pending runs.
    for n in 0..20 {
        let other = volume.lookup(ROOT, format!("other{n}").as_bytes()).unwrap();
        volume.set_attr(other, &SetAttr { uid: Some(1), ..SetAttr::default() }).unwrap();
    }
    volume.write(first, 0, &[1]).unwrap();
    volume.fsync(first, SyncScope::Everything).unwrap();
    forget(&volume);
    let holds = |device: &Scratched, hole: bool| {
        let volume = Engine::open(Arc::new(copy(&device.inner).unwrap()), Options::read_only()).unwrap();
        let mut found = [0; 16 * 4096];
        volume.read(packed, 0, &mut found).unwrap();
        let is_hole = found[5 * 4096..6 * 4096] == [0; 4096];
        is_hole == hole && (0..16).all(|n| n == 5 || found[n * 4096..(n + 1) * 4096] == [1; 4096])
    };
    assert!(holds(&device, false));
    device.set(&[volume.nat_entry(packed.into()).unwrap().addr]);
    let second = volume.create(ROOT, b"second", &NewNode::new(FILE)).unwrap();
    volume.link(second, ROOT, b"third").unwrap();
    volume.fsync(second, SyncScope::Everything).unwrap();
    assert!(holds(&device, true));
}

/// Data written late, while other data is still unwritten, is in the next checkpoint.
#[test]
fn late_writes_are_in_the_next_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let [big, held] = [&b"big"[..], b"held"].map(|name| volume.lookup(ROOT, name).unwrap());
    let [first, second] = [big, held].map(|ino| {
        let nid = volume.inode(ino).unwrap().child(0);
        volume.nat_entry(nid).unwrap().addr
    });
    for ino in [big, held] {
        volume.write(ino, 1100 * 4096 + 5, &[2; 5]).unwrap();
    }
    forget(&volume);
    device.set(&[first, second]);
    volume.checkpoint().unwrap_err();
    device.set(&[second]);
    for _ in 0..2 {
        volume.checkpoint().unwrap_err();
    }
    drop(volume);
    let volume = Engine::open(device, Options::new(|| NOW)).unwrap();
    let mut found = [0; 4096];
    volume.read(big, 1100 * 4096, &mut found).unwrap();
    assert!(found[5..10] == [2; 5]);
}

/// The same holds if cleaning wrote it and found no section to clean.
#[test]
fn blocks_moved_by_cleaning_are_in_the_next_checkpoint() {
    let device = Scratched::new(MemoryDevice::new(100 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &vec![1; 1000 * 4096]).unwrap();
    for n in 0..400 {
        volume.create(ROOT, format!("other{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    volume.unmount().unwrap();
    drop(volume);
    let mut volume = open_small(device.clone()).unwrap();
    let node = volume.nat_entry(volume.inode(ino).unwrap().child(0)).unwrap().addr;
    volume.write(ino, 990 * 4096 + 5, &[2; 5]).unwrap();
    forget(&volume);
    device.set(&[node]);
    volume.checkpoint().unwrap_err();
    device.set(&[]);
    assert_eq!(volume.clean(1, Policy::Greedy).unwrap(), Cleaned::default());
    volume.checkpoint().unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(|| NOW)).unwrap();
    let mut found = [0; 4096];
    volume.read(ino, 990 * 4096, &mut found).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [2; 5]);
}

/// Neither an unreadable quota file nor an unreadable inode prevents other changes.
#[test]
fn unreadable_quota_files_and_inodes_stop_no_other_operation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let quota = volume.quota_ino(QuotaKind::User).unwrap();
    let quota = volume.address(&volume.inode(quota).unwrap(), 0).unwrap();
    device.set(&[quota]);
    let first = volume.create(ROOT, b"first", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    // This many changed nodes trigger write-back, and an fsync sends all pending runs.
    for name in (0..20).map(|n| format!("other{n}")) {
        let other = volume.lookup(ROOT, name.as_bytes()).unwrap();
        volume.set_attr(other, &SetAttr { uid: Some(1), ..SetAttr::default() }).unwrap();
    }
    volume.write(first, 0, &[1]).unwrap();
    volume.fsync(first, SyncScope::Everything).unwrap();
    let changed = volume.lookup(ROOT, b"other0").unwrap();
    forget(&volume);
    device.set(&[quota, volume.nat_entry(changed.into()).unwrap().addr]);
    for n in 0..3 {
        volume.create(ROOT, format!("new{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
    }
    device.set(&[]);
    volume.unmount().unwrap();
    assert!(!volume.last_checkpoint().flags.has(Flags::QUOTA_NEED_FSCK));
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// In idle time only a few sections are tried at once, and once all have been tried, none until the next
/// checkpoint.
#[test]
fn idle_cleaning_tries_few_bad_sectors_at_once() {
    let device = Scratched::new(MemoryDevice::new(128 << 20));
    let (ino, bad) = leave_one_of_each_segment(&device, 20, 2);
    device.set(&bad);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let clean = |volume: &mut Engine| {
        let before = *device.failed.lock().unwrap();
        let cleaned = volume.clean_a_little(Policy::Greedy).is_ok_and(|cleaned| cleaned.sections > 0);
        (cleaned, *device.failed.lock().unwrap() - before)
    };
    let mut steps = Vec::new();
    while steps.last().is_none_or(|(cleaned, _)| !cleaned) {
        steps.push(clean(&mut volume));
        assert!(steps.len() < 20, "{steps:?}");
    }
    assert!(steps.iter().all(|(_, failed)| *failed <= 4) && steps.len() > 4, "{steps:?}");
    // The last of them was followed by a checkpoint.
    let again: Vec<_> = (0..10).map(|_| clean(&mut volume)).collect();
    assert_eq!(again.iter().map(|(_, failed)| failed).sum::<u64>(), bad.len() as u64, "{again:?}");
    device.set(&[]);
    assert_eq!(clean(&mut volume), (false, 0));
    volume.write(ino, 0, &[2]).unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(clean(&mut volume), (true, 0));
    volume.unmount().unwrap();
}

/// A checkpoint may discard freed blocks; the device need not support it.
#[test]
fn a_failed_discard_is_not_a_failed_write() {
    let fault = Fault::ErrorIn { verb: Verb::Discard, range: 0..u64::MAX };
    let device = Arc::new(Faulty::new(MemoryDevice::new(64 << 20), vec![fault]));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let options = Options { discard: true, ..Options::new(|| NOW) };
    let mut volume = Engine::open(device, options).unwrap();
    for n in 0..3 {
        let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.write(ino, 0, &[n; 100_000]).unwrap();
        volume.checkpoint().unwrap();
        volume.unlink(ROOT, b"file").unwrap();
        volume.checkpoint().unwrap();
        assert!(volume.discards().blocks() > 0);
        assert!(matches!(volume.discards().issue(), Err(Error::Io { .. })));
        assert!(volume.discards().is_empty(), "the others are not read from the device");
    }
    assert!(matches!(volume.trim(1), Err(Error::Io { .. })), "reading it fails");
    assert!(volume.read_only_reason().is_none());
}

/// If the summary of a segment cannot be read, holes of other segments are filled.
#[test]
fn an_unreadable_summary_does_not_stop_the_filling_of_holes() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let (ino, singles) = leave_one_of_each_segment(&device, 8, 1);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let summary_of = |addr: &BlockAddr| {
        let geometry = volume.geometry();
        geometry.summary_block(geometry.position(*addr).0).0
    };
    device.set(&singles[1..].iter().map(summary_of).collect::<Vec<_>>());
    let mut written = 0;
    let refused = loop {
        match volume.write(ino, (10_000 + written) * 4096, &[2; 4096]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoSpace { .. }), "{written} blocks: {refused}");
    volume.unmount().unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// Holes stay unused only as long as the device does not answer.
#[test]
fn holes_are_filled_once_their_summaries_can_be_read() {
    let device = Scratched::new(MemoryDevice::new(128 << 20));
    let (ino, singles) = leave_one_of_each_segment(&device, 24, 1);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    let summary_of = |addr: &BlockAddr| {
        let geometry = volume.geometry();
        geometry.summary_block(geometry.position(*addr).0).0
    };
    let fill = |volume: &mut Engine, from: u64| {
        let block = |n: &u64| volume.write(ino, (10_000 + n) * 4096, &[2; 4096]).is_ok();
        (from..from + 20_000).take_while(block).count() as u64
    };
    device.set(&singles.iter().map(summary_of).collect::<Vec<_>>());
    let mut before = 0;
    for _ in 0..6 {
        before += fill(&mut volume, before);
        // Each log must be able to continue.
        assert!(matches!(volume.checkpoint(), Ok(()) | Err(Error::NoSpace { .. })));
        assert_eq!(volume.read_only_reason(), None);
    }
    device.set(&[]);
    let after = fill(&mut volume, before);
    assert!(after > 8 * 400, "{before} blocks before, {after} after");
    volume.unmount().unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// Numbers for new inodes come from the readable blocks of the NAT.
#[test]
fn files_are_made_despite_a_bad_sector_in_the_node_table() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    for n in 0..500 {
        volume.create(ROOT, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    volume.unmount().unwrap();
    let table = TableCopy::BOTH.map(|copy| volume.geometry().nat_block(1, copy));
    drop(volume);
    device.set(&table);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    for n in 500..600 {
        volume.create(ROOT, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    volume.unmount().unwrap();
}

/// A volume that was not unmounted can be opened although a block beside its logs of nodes cannot be read.
#[test]
fn a_volume_with_a_bad_sector_beside_a_log_opens() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let mut files = (0..10).map(|n| {
        let name = format!("{n}");
        volume.create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap()
    });
    let ino = files.by_ref().last().unwrap();
    drop(files);
    volume.checkpoint().unwrap();
    let node = volume.nat_entry(ino.into()).unwrap().addr;
    drop(volume);
    for bad in [BlockAddr(node.0 + 100), node] {
        device.set(&[bad]);
        let mut volume = open(device.clone(), OnError::ReadOnly);
        let name = format!("beside {bad}");
        volume.create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
    }
}

/// Recovery does not read the summary of a segment that was free, because everything in it is new.
#[test]
fn recovery_reads_no_summary_of_free_segments() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.write(ino, 0, &[1; 5 << 20]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let geometry = *volume.geometry();
    let addr = volume.address(&volume.inode(ino).unwrap(), 800).unwrap();
    let (segment, _) = geometry.position(addr);
    drop(volume);
    device.set(&[geometry.summary_block(segment).0]);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    assert_eq!(volume.stat(ino).unwrap().size, 5 << 20);
    device.set(&[]);
    let summary = volume.summary(segment).unwrap();
    assert!(!summary.is_node && summary.owners[usize::from(geometry.position(addr).1)].nid.0 > 0);
    volume.unmount().unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// If a block of the segment table cannot be read, names whose blocks lie there stay. Removed names do not
/// return together with one that cannot be removed, and no checkpoint waits for it.
#[test]
fn names_whose_blocks_cannot_be_freed_are_not_changed() {
    const TABLE_SEGMENTS: u32 = 55;
    let device = Scratched::new(MemoryDevice::new(512 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    // A file of this kind shares a log with directories, and moves that log to segments in another block of
    // the segment table.
    let heavy = volume.create(ROOT, b"heavy.db", &NewNode::new(FILE)).unwrap();
    let mut at = 0;
    let mut fill_past = |volume: &mut Engine, segment: u32| loop {
        volume.write(heavy, at, &vec![1; 1 << 20]).unwrap();
        at += 1 << 20;
        let addr = volume.address(&volume.inode(heavy).unwrap(), at / 4096 - 1).unwrap();
        if volume.geometry().position(addr).0.0 > segment {
            break;
        }
    };
    fill_past(&mut volume, TABLE_SEGMENTS);
    let dir = volume.create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    let name = |n: u32| format!("{n} and so that few of them fit into a block, very many letters more {n}");
    for n in 0..200 {
        volume.create(dir, name(n).as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    fill_past(&mut volume, 2 * TABLE_SEGMENTS);
    // A file with another log moves that log out of this block of the table, too.
    let cold = volume.create(ROOT, b"cold.jpg", &NewNode::new(FILE)).unwrap();
    volume.write(cold, 0, &vec![1; 2 << 20]).unwrap();
    volume.unmount().unwrap();
    let logs = volume.last_checkpoint().logs;
    assert!(logs.iter().all(|log| log.segment.0 / TABLE_SEGMENTS != 1));
    let bad = TableCopy::BOTH.map(|copy| volume.geometry().sit_block(1, copy));
    drop(volume);

    let mut volume = open(device.clone(), OnError::Continue);
    device.set(&bad);
    let mut refused = 0;
    for n in 0..200 {
        match volume.unlink(dir, name(n).as_bytes()) {
            Ok(()) => {}
            Err(Error::Io { .. }) => refused += 1,
            Err(error) => panic!("{n}: {error}"),
        }
    }
    let left: Vec<Ino> = volume.entries(dir, 0).unwrap().map(|entry| entry.unwrap().ino).skip(2).collect();
    assert_eq!(left.len(), refused);
    left.into_iter().for_each(|ino| assert_eq!(volume.stat(ino).unwrap().links, 1));
    for n in 200..400 {
        match volume.create(dir, name(n).as_bytes(), &NewNode::new(FILE)) {
            Ok(_) => {}
            Err(Error::Io { .. }) => refused += 1,
            Err(error) => panic!("{n}: {error}"),
        }
    }
    assert!(refused > 0, "some go there");
    volume.checkpoint().unwrap();
    device.set(&[]);
    for n in 0..400 {
        match volume.unlink(dir, name(n).as_bytes()) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => panic!("{n}: {error}"),
        }
    }
    assert!(volume.is_empty_dir(dir).unwrap());
    volume.unmount().unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}
