//! Devices that refuse writes: synced data stays readable, and with `OnError::Continue` no data is lost.

mod cleaning;
mod eviction;
mod label;
mod late_writes;
mod reads;
mod writes;

#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use block::{Counted, Device, Fault, Faulty, MemoryDevice, Overlay, Recording, Survivors, Verb, power_cut};
use f2fs::{
    Error, Result,
    engine::{
        Caller, Cleaned, Engine, FileSize, InPlace, NewNode, OnError, Options, Policy, QuotaLimits,
        RenameMode, SetAttr, SyncScope, XattrMode,
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
        let Ok(ino) = volume.begin(Caller::ADMIN).create(ROOT, &name, &NewNode::new(FILE)) else {
            return false;
        };
        if volume.begin(Caller::ADMIN).write(ino, 0, &[n; 30_000]).is_err() {
            return false;
        }
        if !make_durable(volume, &|volume| volume.fsync(ino, SyncScope::Everything)) {
            return false;
        }
        if n % 2 == 1 && !make_durable(volume, &Engine::checkpoint) {
            return false;
        }
        if volume.begin(Caller::ADMIN).write(ino, 5000, &[n + 100; 100]).is_err() {
            return false;
        }
        if !make_durable(volume, &|volume| volume.fsync(ino, SyncScope::Data)) {
            return false;
        }
    }
    if volume.begin(Caller::ADMIN).unlink(ROOT, b"a").is_err() {
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
        volume.begin(Caller::ADMIN).create(ROOT, format!("other{n}").as_bytes(), &own(FILE)).unwrap();
    }
    for name in [&b"big"[..], b"held", b"gone"] {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, name, &own(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 1200 * 4096]).unwrap();
        volume.begin(Caller::ADMIN).set_xattr(ino, b"user.long", &[1; 3500], XattrMode::Set).unwrap();
    }
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &own(0o040_755)).unwrap();
    for n in 0..300 {
        volume.begin(Caller::ADMIN).create(dir, format!("name{n}").as_bytes(), &own(FILE)).unwrap();
    }
    let packed = volume.begin(Caller::ADMIN).create(ROOT, b"packed", &own(FILE)).unwrap();
    let compressed = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(packed, &compressed).unwrap();
    volume.begin(Caller::ADMIN).write(packed, 0, &[1; 16 * 4096]).unwrap();
    let limits = QuotaLimits { inodes_hard: 10_000, ..QuotaLimits::default() };
    volume.begin(Caller::ADMIN).set_quota_limits(QuotaKind::User, 1000, limits).unwrap();
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
