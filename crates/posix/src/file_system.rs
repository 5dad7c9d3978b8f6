//! Implements each operation of a mounted file system on a volume.
//!
//! *Invariants*: reads take the volume's lock shared, changes take it exclusively. Readers can enter while
//! the device flushes or discards, and between small batches of cleaned blocks. No lock is held while an
//! answer is on its way, except a shared one while a read is [spliced](FileSystem::with_ranges). Inode numbers are
//! those of F2FS.

mod atimes;
mod attributes;
mod content;
mod durability;
#[cfg(test)]
mod faults;
mod growth;
mod ioctls;
mod keys;
mod listing;
mod names;
mod permissions;
mod rest;
mod settings;
mod shown_owner;
mod verity;
#[cfg(test)]
mod watched;
mod xattrs;

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use block::FileDevice;
use f2fs::{
    engine::{Discards, Engine, Stat, Upkeep},
    format::superblock::Features,
    units::Ino,
};

use crate::{
    Errno,
    credentials::Capability,
    errno,
    inodes::Inodes,
    listings::Listings,
    pending_atimes::PendingAtimes,
    volume_lock::{Reading, VolumeLock, Writing},
};

pub use crate::credentials::Credentials;
pub use attributes::{Change, TimesFrom};
pub use content::{OpenFor, OpenMode, WriteMode, WriteOrigin};
pub use f2fs::engine::{Limits, SyncScope};
use keys::KeyUsers;
pub use rest::Call;
pub use settings::{Atime, FsyncMode, SelinuxLabels, Settings};
pub use shown_owner::ShownOwner;
pub use xattrs::GroupIdBit;

/// Result of an operation.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// The file system of one mount.
pub struct FileSystem {
    /// Empty after [`unmount`](Self::unmount).
    volume: VolumeLock,
    /// Pending discards; others after the volume has grown.
    discards: Mutex<Arc<Discards>>,
    /// Access times that wait for the next writer.
    pending_atimes: PendingAtimes,
    /// The device that holds the volume, if it is a single file.
    image: Weak<FileDevice>,
    /// The volume supports quota limits.
    has_quota: bool,
    inodes: Inodes,
    listings: Listings,
    /// The users of the keys that programs have added.
    key_users: KeyUsers,
    settings: Settings,
    /// True after a remount to read-only, until the next change. It changes under the exclusive lock of the volume.
    is_resting: AtomicBool,
    /// Number of remounts to read-only so far. It changes under the exclusive lock of the volume.
    rests: AtomicU64,
    /// Number of requests so far. If two values are equal, no request came in between. Work of the front end,
    /// and calls that the kernel answers from its cache, do not count.
    requests: AtomicU64,
    /// Message of the first panic in an operation.
    fault: OnceLock<String>,
    /// The outcome of the unmount.
    end: OnceLock<End>,
}

/// The outcome of an unmount.
#[derive(Debug, Clone, Default)]
struct End {
    met_damage: bool,
    failure: Option<String>,
    unmount_error: Option<String>,
}

impl FileSystem {
    /// Creates the file system on an open volume. `image` is the volume's device, if it is a single file.
    pub fn new(mut volume: Engine, image: Weak<FileDevice>, settings: Settings) -> FileSystem {
        volume.set_upkeep(Upkeep::ByCaller);
        FileSystem {
            has_quota: volume.superblock().features.has(Features::QUOTA),
            discards: Mutex::new(volume.discards().clone()),
            volume: VolumeLock::new(volume),
            pending_atimes: PendingAtimes::default(),
            image,
            inodes: Inodes::default(),
            listings: Listings::default(),
            key_users: KeyUsers::default(),
            settings,
            is_resting: AtomicBool::new(false),
            rests: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            fault: OnceLock::new(),
            end: OnceLock::new(),
        }
    }

    /// The discards that wait.
    fn discards(&self) -> Arc<Discards> {
        self.discards.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the inode number of the root directory.
    pub fn root(&self) -> Result<Ino> {
        Ok(self.read_lock()?.superblock().root_ino)
    }

    /// Locks the volume for reading.
    pub fn read_lock(&self) -> Result<Reading<'_>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.quiet_read_lock()
    }

    /// Locks the volume for a change that is subject to quota limits.
    pub fn write_lock(&self) -> Result<Writing<'_>> {
        self.lock(Limits::Enforced)
    }

    /// Locks the volume for a change on behalf of a caller. An administrator may exceed quota limits.
    fn write_lock_for(&self, caller: Credentials) -> Result<Writing<'_>> {
        self.lock(self.limits_for(caller))
    }

    /// Returns the quota limits that hold for a caller.
    pub fn limits_for(&self, caller: Credentials) -> Limits {
        let is_exempt = !self.has_quota || caller.has(Capability::SysResource);
        if is_exempt { Limits::Exempt } else { Limits::Enforced }
    }

    fn lock(&self, limits: Limits) -> Result<Writing<'_>> {
        let mut volume = self.lock_unprepared(limits)?;
        self.end_rest();
        self.prepare_change(&mut volume)?;
        Ok(volume)
    }

    /// Locks the volume for a change that frees space, such as a removal. That the upkeep finds no space does not keep it from
    /// doing so.
    fn lock_to_free(&self, limits: Limits) -> Result<Writing<'_>> {
        let mut volume = self.lock_unprepared(limits)?;
        self.end_rest();
        self.prepare_to_free(&mut volume)?;
        Ok(volume)
    }

    /// Locks the volume for a change in memory, which a volume that takes no changes admits as well.
    fn lock_without_upkeep(&self) -> Result<Writing<'_>> {
        self.lock_unprepared(Limits::Exempt)
    }

    /// Locks the volume without doing what is due before a change on the device.
    fn lock_unprepared(&self, limits: Limits) -> Result<Writing<'_>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.volume.write(f2fs::engine::Caller { limits })
    }

    /// Does what is due before a change: applies pending access times, and does the upkeep.
    fn prepare_change(&self, volume: &mut Writing<'_>) -> Result<()> {
        self.apply_pending_atimes(volume);
        // Done last, so that no upkeep is due when the caller's change begins.
        let upkeep = volume.begin_upkeep();
        self.settle(volume, upkeep).map_err(to_errno)
    }

    /// Does what is due before a change that frees space. That the upkeep finds no space is not an error.
    fn prepare_to_free(&self, volume: &mut Writing<'_>) -> Result<()> {
        match self.prepare_change(volume) {
            Err(Errno::NOSPC) => Ok(()),
            done => done,
        }
    }

    /// Locks the volume for reading without counting a request.
    fn quiet_read_lock(&self) -> Result<Reading<'_>> {
        self.volume.read()
    }

    /// Locks the volume for work of the file system itself, without counting a request. It applies no access times and
    /// does no upkeep.
    fn quiet_write_lock(&self) -> Result<Writing<'_>> {
        self.volume.write(f2fs::engine::Caller::ADMIN)
    }

    /// Returns true if the volume accepts changes. The call does not count as a request.
    pub fn is_writable(&self) -> bool {
        self.quiet_read_lock().is_ok_and(|volume| volume.read_only_reason().is_none())
    }

    /// Returns true if damage was found while reading. The call does not count as a request, and works after
    /// the unmount.
    pub fn met_damage(&self) -> bool {
        let met = |volume: Reading<'_>| volume.io().met_damage();
        self.quiet_read_lock().map_or_else(|_| self.end.get().is_some_and(|end| end.met_damage), met)
    }

    /// Returns the reason why the volume accepts no more changes or could not be left clean. The call does
    /// not count as a request, and works after the unmount.
    pub fn failure(&self) -> Option<String> {
        if self.volume.is_poisoned() {
            return Some(self.broken_off());
        }
        let reason = |volume: Reading<'_>| volume.read_only_reason().map(str::to_string);
        self.quiet_read_lock().map_or_else(|_| self.end.get()?.failure.clone(), reason)
    }

    /// Returns the errno for the loss of changes that were accepted: in place of `EROFS`, that of the write to the device
    /// which failed and stopped all others. A program that wrote before should learn that the device is full, for instance.
    pub fn cause_of_loss(&self, errno: Errno) -> Errno {
        let cause = |volume: Reading<'_>| volume.write_failure().map(errno::of_failure);
        match errno {
            Errno::ROFS => self.quiet_read_lock().ok().and_then(cause).unwrap_or(errno),
            other => other,
        }
    }

    /// Records the message of a panic in an operation.
    pub fn record_fault(&self, message: String) {
        // The first one is kept, because it may be the cause of later ones.
        let _ = self.fault.set(message);
    }

    /// Returns the message of the first panic in an operation.
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Returns the message for a volume that is unusable because a change was interrupted halfway.
    fn broken_off(&self) -> String {
        let fault = self.fault().unwrap_or("a panic");
        format!("an internal error interrupted a change: {fault}; the next mount has all synced changes")
    }

    /// Returns the error of the [unmount](Self::unmount), even if it was reported to another caller before.
    pub fn unmount_error(&self) -> Option<&str> {
        self.end.get()?.unmount_error.as_deref()
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns true if a file is open for writing. The kernel may then have data and a size that are not
    /// written back yet.
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.inodes.has_writer(ino)
    }

    /// Returns the number of files open for writing that were closed so far. If two values are equal, every file that
    /// had a writer in between has it still.
    pub fn closed_writers(&self) -> u64 {
        self.inodes.closed_writers()
    }

    /// Returns all files that are open for writing.
    pub fn open_for_writing(&self) -> Vec<Ino> {
        self.inodes.open_for_writing()
    }

    /// Returns the number of writers that have their turn or wait for it.
    pub fn waiting_writers(&self) -> u64 {
        self.volume.writers()
    }
}

/// Refuses writes to files sealed with fs-verity.
fn refuse_sealed(stat: &Stat) -> Result<()> {
    if stat.sealed { Err(Errno::PERM) } else { Ok(()) }
}

fn to_errno(error: f2fs::Error) -> Errno {
    errno::of(&error)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use block::{Device, MemoryDevice};
    use f2fs::{
        engine::{NewNode, Options},
        format::FileType,
        mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
        units::{Nid, Time},
    };

    use super::*;

    /// Formats an empty volume with the given features.
    pub(crate) fn format(device: &Arc<MemoryDevice>, features: &str) -> Engine {
        let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
        let features = mkfs::parse_features(features).unwrap();
        let plan = Plan::new(&mkfs::Options { features, ..mkfs::Options::new([7; 16]) }, &[size]).unwrap();
        let new = NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, Options::new(Time::default))
            .unwrap();
        new.finish().unwrap()
    }

    pub(crate) fn mounted(volume: Engine) -> FileSystem {
        FileSystem::new(volume, Weak::new(), Settings::default())
    }

    #[test]
    fn a_damaged_file_without_a_name_does_not_lose_other_files_data() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let options = || Options::new(Time::default);
        let mut volume = format(&device, "");
        let root = volume.superblock().root_ino;
        let ino = volume
            .begin(f2fs::engine::Caller::ADMIN)
            .create(root, b"gone", &NewNode::new(0o100_644))
            .unwrap();
        // At this offset it has a separate node, which is not read before the file is freed.
        volume.begin(f2fs::engine::Caller::ADMIN).write(ino, 4 << 20, b"x").unwrap();
        volume.unmount().unwrap();
        let node = Nid(volume.inode(ino).unwrap().child(0).0);
        let addr = volume.nat_entry(node).unwrap().addr;
        drop(volume);
        device.write(u64::from(addr.0) << 12, &[0xA5; 4096]).unwrap();

        let fs = mounted(Engine::open(device.clone(), options()).unwrap());
        let caller = Credentials { uid: 0, gid: 0, pid: 0 };
        fs.lookup(root, b"gone").unwrap();
        fs.unlink(root, b"gone").unwrap();
        fs.create(caller, root, b"new", 0o100_644, 0, None).unwrap();
        assert!(fs.unmount().is_err(), "it is damaged");
        fs.unmount().unwrap();
        assert!(fs.unmount_error().unwrap().contains("corrupt"), "it is reported, and nothing else is wrong");
        let volume = Engine::open(device, options()).unwrap();
        assert!(volume.lookup(root, b"new").is_ok() && volume.lookup(root, b"gone").is_err());
    }

    #[test]
    fn synchronous_directories_do_not_report_errors_of_other_files() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let mut volume = format(&device, "");
        let root = volume.superblock().root_ino;
        let ino = volume
            .begin(f2fs::engine::Caller::ADMIN)
            .create(root, b"file", &NewNode::new(0o100_644))
            .unwrap();
        volume.begin(f2fs::engine::Caller::ADMIN).write(ino, 4 << 20, b"x").unwrap();
        let name = |n: u32| format!("other{n}").into_bytes();
        let others: Vec<_> = (0..1000)
            .map(|n| {
                volume
                    .begin(f2fs::engine::Caller::ADMIN)
                    .create(root, &name(n), &NewNode::new(0o100_644))
                    .unwrap()
            })
            .collect();
        volume.unmount().unwrap();
        let node = Nid(volume.inode(ino).unwrap().child(0).0);
        let addr = volume.nat_entry(node).unwrap().addr;
        drop(volume);

        let small = Options { cache_bytes: 128 << 10, ..Options::new(Time::default) };
        let volume = Engine::open(device.clone(), small).unwrap();
        let settings = Settings { dirsync: true, ..Settings::default() };
        let fs = FileSystem::new(volume, Weak::new(), settings);
        let caller = Credentials { uid: 0, gid: 0, pid: 0 };
        fs.write(caller, ino, 4 << 20, b"y", WriteMode::default()).unwrap();
        // The data is still in memory; the node that is to hold its address is evicted and then damaged on
        // the device.
        for other in others {
            fs.stat(other).unwrap();
        }
        device.write(u64::from(addr.0) << 12, &[0xA5; 4096]).unwrap();
        fs.create(caller, root, b"new", FileType::Directory.mode_bits() | 0o755, 0, None).unwrap();
        assert_eq!(fs.fsync(ino, SyncScope::Everything), Err(Errno::UCLEAN), "a sync of the file fails");
        drop(fs);
        let volume = Engine::open(device, Options::new(Time::default)).unwrap();
        assert!(volume.lookup(root, b"new").is_ok(), "it is durable");
    }
}
