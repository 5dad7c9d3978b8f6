//! Implements each operation of a mounted file system on a volume.
//!
//! *Invariants*: reads take the volume's lock shared, changes take it exclusively. Readers can enter while
//! the device flushes or discards, and between small batches of cleaned blocks. No lock is held while an
//! answer is on its way, except a shared one while a read is [spliced](FileSystem::with_ranges). Inode numbers are
//! those of F2FS.

mod content;
mod durability;
mod listing;
mod permissions;

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicU64, Ordering},
};

use block::FileDevice;
use f2fs::{
    format::{
        FileType,
        inode::{DeviceNumber, flag},
        superblock::Features,
        xattr,
    },
    units::{Ino, Time},
    volume::{
        Discards, NewNode, Policy, RenameMode, SET_GID, SetAttr, Space, Stat, Upkeep, Volume, XattrMode,
        without_privilege,
    },
};
use rustix::fs::RenameFlags;

use crate::{
    Errno,
    caller::Capability,
    errno,
    flusher::Flusher,
    inodes::Inodes,
    ioctl::{self, Request},
    pending_atimes::{self, PendingAtimes},
    volume_lock::{Reading, VolumeLock, Writing},
};

pub use crate::caller::Caller;
pub use content::{OpenMode, WriteMode, WriteOrigin};

/// Result of an operation.
pub type Answer<T> = std::result::Result<T, Errno>;

/// The extended attribute that holds the access ACL.
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Age in seconds at which `relatime` renews an access time.
const DAY: i64 = 24 * 60 * 60;

/// Quota limits that hold for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limits {
    /// Those of the volume.
    #[default]
    Enforced,
    /// None: an administrator may exceed them, and some volumes have none.
    Exempt,
}

/// When reading updates access times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// If the access time is not later than the last change, or is a day old (Linux, `relatime_need_update`).
    #[default]
    Relative,
    /// At the first read after each open.
    Strict,
    /// Never.
    Never,
}

/// Guarantees of fsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsyncMode {
    /// Those of POSIX.
    #[default]
    Posix,
    /// In addition, all earlier renames become durable.
    Strict,
    /// Only the order: the device is not flushed.
    NoBarrier,
}

/// The options that affect operations.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// When reading updates access times.
    pub atime: Atime,
    /// Reading a directory updates its access time, too.
    pub dir_atime: bool,
    /// Guarantees of fsync.
    pub fsync: FsyncMode,
    /// Changes of all directories are synchronous.
    pub dirsync: bool,
    /// Checkpoints are written. Otherwise all changes are dropped at the end.
    pub checkpoints: bool,
    /// The volume is not changed.
    pub read_only: bool,
    /// Selection of the sections that are cleaned in idle times.
    pub cleaning: Policy,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            atime: Atime::default(),
            dir_atime: true,
            fsync: FsyncMode::default(),
            dirsync: false,
            checkpoints: true,
            read_only: false,
            cleaning: Policy::CostBenefit,
        }
    }
}

/// The changes of one SETATTR request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change {
    /// New size in bytes.
    pub size: Option<u64>,
    /// All other attributes.
    pub set: SetAttr,
    /// The truncation clears the set-user-id and set-group-id bits.
    pub drops_privilege: bool,
    /// Origin of the times.
    pub times: TimesFrom,
}

/// Origin of the times of a [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimesFrom {
    /// There are none, or they accompany another change.
    #[default]
    Elsewhere,
    /// All of them are the current time, as `touch` sets them.
    Now,
    /// A caller sets at least one of them to an explicit value, or leaves one out (utimensat(2)).
    Caller,
    /// Either a caller or the kernel's cache: the kernel writes back the times of a file that is not open for
    /// writing.
    CallerOrCache,
}

/// The file system of one mount.
pub struct FileSystem {
    /// Empty after [`unmount`](Self::unmount).
    volume: VolumeLock,
    /// Pending discards.
    discards: Arc<Discards>,
    /// Access times that wait for the next writer.
    pending_atimes: PendingAtimes,
    /// The device that holds the volume, if it is a single file.
    image: Weak<FileDevice>,
    /// The volume supports quota limits.
    has_quota: bool,
    inodes: Inodes,
    flusher: Flusher,
    settings: Settings,
    /// Number of requests so far. If two values are equal, the volume was idle in between.
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
    pub fn new(mut volume: Volume, image: Weak<FileDevice>, settings: Settings) -> FileSystem {
        volume.set_upkeep(Upkeep::ByCaller);
        FileSystem {
            has_quota: volume.superblock().features.has(Features::QUOTA),
            discards: volume.discards().clone(),
            volume: VolumeLock::new(volume),
            pending_atimes: PendingAtimes::default(),
            image,
            inodes: Inodes::default(),
            flusher: Flusher::default(),
            settings,
            requests: AtomicU64::new(0),
            fault: OnceLock::new(),
            end: OnceLock::new(),
        }
    }

    /// Returns the inode number of the root directory.
    pub fn root(&self) -> Answer<Ino> {
        Ok(self.read_lock()?.superblock().root_ino)
    }

    /// Locks the volume for reading.
    pub fn read_lock(&self) -> Answer<Reading<'_>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.quiet_read_lock()
    }

    /// Locks the volume for a change that is subject to quota limits.
    pub fn write_lock(&self) -> Answer<Writing<'_>> {
        self.lock(Limits::Enforced)
    }

    /// Locks the volume for a change on behalf of a caller. An administrator may exceed quota limits.
    fn write_lock_for(&self, caller: Caller) -> Answer<Writing<'_>> {
        self.lock(self.limits_for(caller))
    }

    /// Returns the quota limits that hold for a caller.
    pub fn limits_for(&self, caller: Caller) -> Limits {
        let is_exempt = !self.has_quota || caller.has(Capability::SysResource);
        if is_exempt { Limits::Exempt } else { Limits::Enforced }
    }

    fn lock(&self, limits: Limits) -> Answer<Writing<'_>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut volume = self.quiet_write_lock()?;
        self.apply_pending_atimes(&mut volume);
        // Done last, so that no upkeep is due when the caller's change begins.
        let upkeep = volume.begin_upkeep();
        self.settle(&mut volume, upkeep).map_err(to_errno)?;
        volume.set_privileged(limits == Limits::Exempt);
        Ok(volume)
    }

    /// Locks the volume for reading without counting a request.
    fn quiet_read_lock(&self) -> Answer<Reading<'_>> {
        self.volume.read()
    }

    fn quiet_write_lock(&self) -> Answer<Writing<'_>> {
        self.volume.write()
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

    /// Returns all files that are open for writing.
    pub fn open_for_writing(&self) -> Vec<Ino> {
        self.inodes.open_for_writing()
    }

    // Names.

    /// Looks up a name in a directory and takes a lookup reference on the inode for the kernel. The name `.`
    /// means the inode `dir` itself, which may be of any type; NFS handles are resolved that way.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Answer<Stat> {
        let volume = self.read_lock()?;
        let found = match name {
            b"." if !volume.is_inode(dir).map_err(to_errno)? => return Err(Errno::NOENT),
            b"." => Ok(dir),
            _ => volume.lookup(dir, name),
        };
        let stat = found.and_then(|ino| volume.stat(ino)).map_err(to_errno)?;
        if name == b"." && stat.links == 0 {
            // An inode without links is freed with its last reference, which may happen now. New references
            // are refused (open_by_handle_at(2)).
            return Err(Errno::NOENT);
        }
        self.add_reference(&stat);
        Ok(self.pending_atimes.seen(stat))
    }

    /// Takes a lookup reference for the kernel. The caller holds the volume's lock, so that `stat` is
    /// current.
    fn add_reference(&self, stat: &Stat) {
        self.inodes.add_lookup(stat.ino);
        if !stat.has_xattrs {
            self.inodes.mark_without_xattrs(stat.ino);
        }
    }

    /// Returns true if the kernel may cache the names of a directory. It must not in casefolded directories,
    /// where one name has several spellings.
    pub fn names_are_exact(&self, dir: Ino) -> bool {
        self.read_lock()
            .is_ok_and(|volume| volume.inode(dir).is_ok_and(|inode| !inode.has_flag(flag::CASEFOLD)))
    }

    /// Returns true if the kernel may cache that a name does not exist. It must not if directories can become
    /// casefolded: a file created afterwards also has spellings that were looked up in vain before.
    pub fn negative_entries_last(&self) -> bool {
        self.read_lock().is_ok_and(|volume| !volume.superblock().features.has(Features::CASEFOLD))
    }

    /// Drops lookup references that the kernel gives back. Calls `gone` if none is left; a new one can only be
    /// taken afterwards.
    pub fn forget(&self, ino: Ino, lookups: u64, gone: impl FnOnce()) {
        if self.inodes.forget(ino, lookups, gone) {
            // FORGET has no answer; an error of the volume shows in the next request.
            let _ = self.release(ino);
        }
    }

    /// Creates an inode of any type but a symbolic link, and takes a lookup reference on it.
    pub fn create(
        &self,
        caller: Caller,
        dir: Ino,
        name: &[u8],
        mode: u16,
        umask: u16,
        device: Option<DeviceNumber>,
    ) -> Answer<Stat> {
        let volume = self.write_lock_for(caller)?;
        let mode = permissions::mode_of_new(&volume, caller, dir, mode)?;
        let new = NewNode { uid: caller.uid, gid: caller.gid, device, ..NewNode::new(mode) };
        self.finish_creation(volume, Some(dir), |volume| volume.create_for(dir, name, &new, umask))
    }

    /// Creates a file without a name (O_TMPFILE) and takes a lookup reference on it. The file is freed with
    /// the last reference unless it has a name by then.
    pub fn create_nameless(&self, caller: Caller, dir: Ino, mode: u16, umask: u16) -> Answer<Stat> {
        let volume = self.write_lock_for(caller)?;
        let mode = permissions::mode_of_new(&volume, caller, dir, mode)?;
        let new = NewNode { uid: caller.uid, gid: caller.gid, ..NewNode::new(mode) };
        self.finish_creation(volume, None, |volume| {
            let ino = volume.create_nameless_for(dir, &new, umask)?;
            self.inodes.mark_held(ino);
            Ok(ino)
        })
    }

    /// Creates a symbolic link and takes a lookup reference on it.
    pub fn symlink(&self, caller: Caller, dir: Ino, name: &[u8], target: &[u8]) -> Answer<Stat> {
        let new = NewNode { uid: caller.uid, gid: caller.gid, ..NewNode::new(0o777) };
        self.finish_creation(self.write_lock_for(caller)?, Some(dir), |volume| {
            volume.symlink_for(dir, name, target, &new)
        })
    }

    /// Adds a name to an inode and takes a lookup reference on it.
    pub fn link(&self, caller: Caller, ino: Ino, dir: Ino, name: &[u8]) -> Answer<Stat> {
        self.finish_creation(self.write_lock_for(caller)?, Some(dir), |volume| {
            volume.link(ino, dir, name).map(|()| ino)
        })
    }

    fn finish_creation(
        &self,
        mut volume: Writing<'_>,
        dir: Option<Ino>,
        make: impl FnOnce(&mut Volume) -> f2fs::Result<Ino>,
    ) -> Answer<Stat> {
        let ino = make(&mut volume).map_err(to_errno)?;
        self.sync_names(&mut volume, dir)?;
        let stat = volume.stat(ino).map_err(to_errno)?;
        self.add_reference(&stat);
        Ok(stat)
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Answer<()> {
        let mut volume = self.write_lock()?;
        self.hold_target(&mut volume, dir, name)?;
        volume.unlink(dir, name).map_err(to_errno)?;
        self.sync_names(&mut volume, [dir])
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Answer<()> {
        let mut volume = self.write_lock()?;
        self.hold_target(&mut volume, dir, name)?;
        volume.remove_dir(dir, name).map_err(to_errno)?;
        self.sync_names(&mut volume, [dir])
    }

    /// Renames an inode. With RENAME_WHITEOUT, a whiteout (a character device 0:0) takes the old name.
    pub fn rename(
        &self,
        caller: Caller,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Answer<()> {
        let leaves_whiteout = flags.contains(RenameFlags::WHITEOUT);
        let mode = match flags & !RenameFlags::WHITEOUT {
            RenameFlags::NOREPLACE => RenameMode::NoReplace,
            RenameFlags::EXCHANGE if !leaves_whiteout => RenameMode::Exchange,
            flags if flags.is_empty() => RenameMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        let mut volume = self.write_lock_for(caller)?;
        if mode == RenameMode::Replace {
            self.hold_target(&mut volume, to_dir, to)?;
        }
        let renamed = if leaves_whiteout {
            let device = Some(DeviceNumber { major: 0, minor: 0 });
            let whiteout = NewNode::new(FileType::CharDevice.mode_bits());
            let whiteout = NewNode { uid: caller.uid, gid: caller.gid, device, ..whiteout };
            volume.rename_leaving((from_dir, from), (to_dir, to), mode, &whiteout)
        } else {
            volume.rename(from_dir, from, to_dir, to, mode)
        };
        renamed.map_err(to_errno)?;
        self.sync_names(&mut volume, [from_dir, to_dir])
    }

    /// Called before a name is removed. If the inode loses its last link, it is held until the kernel drops
    /// its references.
    fn hold_target(&self, volume: &mut Volume, dir: Ino, name: &[u8]) -> Answer<()> {
        let Some(found) = volume.find_entry(dir, name).map_err(to_errno)? else { return Ok(()) };
        let inode = volume.inode(found.ino).map_err(to_errno)?;
        let last = inode.is_directory() || inode.head().links.get() <= 1;
        drop(inode);
        if last && self.inodes.hold(found.ino) {
            volume.hold(found.ino);
        }
        Ok(())
    }

    /// Returns the target of a symbolic link. The kernel caches it, so each call is the first access since
    /// the kernel dropped it.
    pub fn read_link(&self, ino: Ino) -> Answer<Vec<u8>> {
        self.renew_atime(ino);
        self.read_lock()?.read_link(ino).map_err(to_errno)
    }

    // Attributes.

    /// Returns the attributes of an inode.
    pub fn stat(&self, ino: Ino) -> Answer<Stat> {
        let stat = self.read_lock()?.stat(ino).map_err(to_errno)?;
        Ok(self.pending_atimes.seen(stat))
    }

    /// Returns the space usage of the volume and its block size in bytes.
    pub fn space(&self) -> Answer<(Space, u32)> {
        let volume = self.read_lock()?;
        Ok((volume.space(), volume.geometry().block_size.bytes() as u32))
    }

    /// Changes the size and attributes of an inode. The kernel has checked the caller's permissions, but does
    /// not know immutable and append-only flags.
    pub fn change(&self, caller: Caller, ino: Ino, change: &Change) -> Answer<Stat> {
        let mut volume = self.write_lock_for(caller)?;
        let before = volume.stat(ino).map_err(to_errno)?;
        let Change { size, mut set, drops_privilege, times } = *change;
        let given = match times {
            TimesFrom::Elsewhere | TimesFrom::Now => false,
            TimesFrom::Caller => true,
            // For an inode that is not open for writing, the kernel's cached mtime equals ours. A different
            // one comes from a caller.
            TimesFrom::CallerOrCache => set.mtime != Some(before.mtime),
        };
        let owned = set.permissions.is_some() || set.uid.is_some() || set.gid.is_some() || size.is_some();
        // As in Linux (`may_setattr`).
        let refused = before.flags & (flag::IMMUTABLE | flag::APPEND) != 0 && (owned || given)
            || before.flags & flag::IMMUTABLE != 0 && times == TimesFrom::Now;
        if refused {
            return Err(Errno::PERM);
        }
        if let Some(size) = size {
            match before.kind {
                FileType::Regular => {}
                FileType::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
            refuse_sealed(&before)?;
            volume.truncate(ino, size).map_err(to_errno)?;
        }
        let gid = set.gid.unwrap_or(before.gid);
        set.permissions = set.permissions.map(|wanted| permissions::permissions_of(caller, gid, wanted));
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        // A request with at most a ctime is either a chown(2) that changes no ID, or what the kernel sends
        // before an allocation or a copy. Both clear the set-user-id and set-group-id bits.
        let only_status = size.is_none() && SetAttr { ctime: None, ..set } == SetAttr::default();
        let drops_privilege = (changes_owner || only_status) && before.kind != FileType::Directory
            || size.is_some() && drops_privilege;
        if drops_privilege && set.permissions.is_none() {
            set.permissions = without_privilege(before.mode, || caller.is_in(before.gid));
            if only_status && set.permissions.is_some() && !permissions::may_write(caller, &before) {
                return Err(Errno::PERM);
            }
        }
        if set.atime.is_some() {
            self.pending_atimes.drop_of(ino);
        }
        if only_status || set != SetAttr::default() {
            volume.set_attr(ino, &set).map_err(to_errno)?;
        }
        volume.stat(ino).map(|stat| self.pending_atimes.seen(stat)).map_err(to_errno)
    }

    /// Returns the number of writers that have their turn or wait for it.
    pub fn waiting_writers(&self) -> u64 {
        self.volume.writers()
    }

    /// Executes an ioctl. `writes` is true if the file was opened for writing.
    pub fn ioctl(&self, caller: Caller, ino: Ino, writes: bool, request: &Request) -> Answer<Vec<u8>> {
        let stat = self.stat(ino)?;
        let blocks = |blocks: u64| blocks.to_ne_bytes().to_vec();
        match *request {
            Request::ReleaseSaved => {
                // Unwritten data of other writers could not be written afterwards. (The same holds for
                // unsynced data of the caller: Linux writes it first, but here it is in the kernel's cache.)
                if self.inodes.writers(ino) > u32::from(writes) {
                    return Err(Errno::BUSY);
                }
                return self.write_lock()?.release_saved(ino).map(blocks).map_err(to_errno);
            }
            Request::ReserveSaved => {
                return self.write_lock_for(caller)?.reserve_saved(ino).map(blocks).map_err(to_errno);
            }
            Request::SetLabel(_) if !caller.has(Capability::SysAdmin) => {
                return Err(Errno::PERM);
            }
            Request::SetLabel(ref text) => return self.set_label(text).map(|()| Vec::new()),
            Request::Trim(range) => {
                return self.trim(caller, range, &|| false).map(|trimmed| range.done(trimmed));
            }
            Request::SetCompression { .. } if !writes => return Err(Errno::BADF),
            Request::SetCompression { algorithm, log_cluster_blocks } => {
                self.write_lock()?
                    .choose_compression(ino, algorithm, log_cluster_blocks)
                    .map_err(to_errno)?;
                return Ok(Vec::new());
            }
            Request::SetFlags(flags) | Request::SetExtended { flags, .. }
                if flags & !(flag::SHOWN | stat.flags) != 0 =>
            {
                return Err(Errno::OPNOTSUPP);
            }
            Request::GetSaved if stat.compression.is_none() => return Err(Errno::INVAL),
            Request::GetCompression if stat.compression.is_none() => return Err(Errno::NODATA),
            _ => {}
        }
        if let Some(set) = request.change(&stat) {
            let mut volume = self.write_lock_for(caller)?;
            let flags = volume.stat(ino).map_err(to_errno)?.flags;
            let protects = set.flags.is_some_and(|wanted| (wanted ^ flags) & ioctl::PROTECTING != 0);
            // The kernel checks this only for the generic ioctl numbers, and only since Linux 5.13
            // (`fileattr_set_prepare`).
            let owns = caller.uid == stat.uid || caller.has(Capability::Fowner);
            if !owns || protects && !caller.has(Capability::LinuxImmutable) {
                return Err(Errno::PERM);
            }
            volume.set_attr(ino, &set).map_err(to_errno)?;
            return Ok(Vec::new());
        }
        let volume = self.read_lock()?;
        Ok(request.answer(&stat, volume.superblock()))
    }

    /// Changes the volume's label to the text before the first zero byte.
    fn set_label(&self, text: &[u8]) -> Answer<()> {
        if !self.settings.checkpoints {
            // The label would stay while all other changes are dropped.
            return Err(Errno::OPNOTSUPP);
        }
        let text = text.split(|byte| *byte == 0).next().filter(|label| label.len() < text.len());
        let label = text.and_then(|text| std::str::from_utf8(text).ok()).ok_or(Errno::INVAL)?;
        let mut volume = self.write_lock()?;
        let pending = volume.begin_set_label(label);
        self.settle(&mut volume, pending).map_err(to_errno)
    }

    // Extended attributes.

    /// Returns the value of an extended attribute.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        check_xattr_name(name)?;
        if self.inodes.has_no_xattrs(ino) {
            // Programs such as ls(1) ask this for every file, and the kernel does not cache the answer.
            self.requests.fetch_add(1, Ordering::Relaxed);
            return Err(Errno::NODATA);
        }
        self.read_lock()?.get_xattr(ino, name).map_err(to_errno)
    }

    /// Returns the names of all extended attributes, each followed by a zero byte.
    pub fn list_xattrs(&self, caller: Caller, ino: Ino) -> Answer<Vec<u8>> {
        if self.inodes.has_no_xattrs(ino) {
            self.requests.fetch_add(1, Ordering::Relaxed);
            return Ok(Vec::new());
        }
        let names = self.read_lock()?.list_xattrs(ino).map_err(to_errno)?;
        let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
        let hides = names.iter().any(|name| is_trusted(name)) && !caller.has(Capability::SysAdmin);
        let mut list = Vec::new();
        for name in names.iter().filter(|name| !(hides && is_trusted(name))) {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    /// Sets an extended attribute. `drops_group_id` is true if setting the ACL clears the set-group-id bit.
    /// If the kernel does not say (`None`), the bit is cleared unless the caller is in the group (Linux,
    /// `posix_acl_update_mode`).
    pub fn set_xattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        drops_group_id: Option<bool>,
    ) -> Answer<()> {
        check_xattr_name(name)?;
        let mut volume = self.write_lock_for(caller)?;
        self.inodes.mark_with_xattrs(ino);
        volume.set_xattr(ino, name, value, mode).map_err(to_errno)?;
        let Stat { mode, gid, .. } = volume.stat(ino).map_err(to_errno)?;
        let loses = || name == ACL_ACCESS && mode & SET_GID != 0 && !caller.is_in(gid);
        if drops_group_id.unwrap_or_else(loses) {
            let set = SetAttr { permissions: Some(mode & 0o7777 & !SET_GID), ..SetAttr::default() };
            volume.set_attr(ino, &set).map_err(to_errno)?;
        }
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Answer<()> {
        check_xattr_name(name)?;
        match self.write_lock()?.remove_xattr(ino, name).map_err(to_errno) {
            // Removing an ACL that does not exist succeeds (Linux, `vfs_remove_acl`).
            Err(Errno::NODATA) if name.starts_with(b"system.posix_acl_") => Ok(()),
            done => done,
        }
    }

    // Access times.

    /// Renews the access time if the mount options and the inode call for it. Returns true if it was renewed.
    fn renew_atime(&self, ino: Ino) -> bool {
        let due = |volume: &Volume| {
            let stat = volume.stat(ino).ok().filter(|_| volume.read_only_reason().is_none())?;
            let stat = self.pending_atimes.seen(stat);
            let now = (volume.options().clock)();
            let wanted = match self.settings.atime {
                Atime::Never => false,
                Atime::Strict => true,
                Atime::Relative => is_relatively_old(&stat, now),
            };
            (wanted && stat.flags & (flag::NOATIME | flag::IMMUTABLE) == 0).then_some(now)
        };
        if self.settings.atime == Atime::Never {
            return false;
        }
        let Some(atime) = self.read_lock().ok().and_then(|volume| due(&volume)) else { return false };
        // Access times are best effort: a full volume can still be read. A reader does not wait for a writer
        // unless too many times are pending.
        self.pending_atimes.add(ino, atime)
            || !self.volume.has_writers() && self.write_lock().is_ok() && self.pending_atimes.add(ino, atime)
    }

    /// Applies the pending access times. Readers may enter during the upkeep that is due before each of them.
    fn apply_pending_atimes(&self, volume: &mut Writing<'_>) {
        if volume.read_only_reason().is_some() {
            return;
        }
        for _ in 0..pending_atimes::FILES_MAX {
            let Some((ino, atime)) = self.pending_atimes.take_one() else { return };
            let upkeep = volume.begin_upkeep();
            if self.settle(volume, upkeep).is_err() {
                // The change that follows meets the same error and returns it to its caller.
                return;
            }
            let _ = set_atime(volume, ino, atime);
        }
    }

    /// Applies the pending access times if no writer has done so. The call does not count as a request.
    pub fn apply_pending_atimes_in_background(&self) -> Answer<()> {
        if !self.pending_atimes.is_empty() {
            self.apply_pending_atimes(&mut self.quiet_write_lock()?);
        }
        Ok(())
    }
}

/// Sets the access time without a change of the ctime.
fn set_atime(volume: &mut Volume, ino: Ino, atime: Time) -> f2fs::Result<()> {
    let ctime = volume.stat(ino)?.ctime;
    volume.set_attr(ino, &SetAttr { atime: Some(atime), ctime: Some(ctime), ..SetAttr::default() })
}

/// Returns true if `relatime` renews the access time (Linux, `relatime_need_update`).
fn is_relatively_old(stat: &Stat, now: Time) -> bool {
    stat.atime <= stat.mtime || stat.atime <= stat.ctime || now.seconds - stat.atime.seconds >= DAY
}

/// Refuses invalid names of extended attributes, as the VFS does for in-kernel file systems.
fn check_xattr_name(name: &[u8]) -> Answer<()> {
    match name {
        b"user." | b"trusted." | b"security." => Err(Errno::INVAL),
        _ if xattr::split_name(name).is_none() => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    }
}

/// Refuses writes to files sealed with fs-verity.
fn refuse_sealed(stat: &Stat) -> Answer<()> {
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
        format::quota::QuotaKind,
        mkfs::{self, DeviceSize, NewVolume, Plan},
        units::Nid,
        volume::{Options, QuotaLimits},
    };

    use super::*;

    /// Formats an empty volume with the given features.
    pub(crate) fn format(device: &Arc<MemoryDevice>, features: &str) -> Volume {
        let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
        let features = mkfs::parse_features(features).unwrap();
        let plan = Plan::new(&mkfs::Options { features, ..mkfs::Options::new([7; 16]) }, &[size]).unwrap();
        let new = NewVolume::begin(device.clone(), &plan, true, Options::new(Time::default)).unwrap();
        new.finish().unwrap()
    }

    pub(crate) fn mounted(volume: Volume) -> FileSystem {
        FileSystem::new(volume, Weak::new(), Settings::default())
    }

    #[test]
    fn a_rename_whose_whiteout_is_refused_moves_nothing() {
        let mut volume = format(&Arc::new(MemoryDevice::new(64 << 20)), "extra_attr,quota");
        let root = volume.superblock().root_ino;
        let user = Caller { uid: 2000, gid: 2000, pid: 0 };
        let new = NewNode { uid: user.uid, gid: user.gid, ..NewNode::new(0o100_644) };
        let ino = volume.create(root, b"from", &new).unwrap();
        let limits = QuotaLimits { inodes_hard: 1, ..QuotaLimits::default() };
        volume.set_quota_limits(QuotaKind::User, user.uid, limits).unwrap();
        let fs = mounted(volume);
        let rename = |caller| fs.rename(caller, (root, b"from"), (root, b"to"), RenameFlags::WHITEOUT);
        assert_eq!(rename(user), Err(Errno::DQUOT));
        assert_eq!(fs.lookup(root, b"from").unwrap().ino, ino);
        assert_eq!(fs.lookup(root, b"to").map(|stat| stat.ino), Err(Errno::NOENT));
        rename(Caller { uid: 0, ..user }).unwrap();
        assert_eq!(fs.lookup(root, b"to").unwrap().ino, ino);
        assert_eq!(fs.lookup(root, b"from").unwrap().kind, FileType::CharDevice);
        // Two names of one inode: rename(2) does nothing.
        fs.link(user, ino, root, b"other").unwrap();
        let other = (root, &b"other"[..]);
        fs.rename(user, other, (root, b"to"), RenameFlags::WHITEOUT).unwrap();
        assert_eq!(fs.lookup(root, b"other").unwrap().ino, ino);
        fs.unmount().unwrap();
    }

    #[test]
    fn flags_that_no_volume_has_are_refused_in_both_forms() {
        let fs = mounted(format(&Arc::new(MemoryDevice::new(64 << 20)), "extra_attr,project_quota"));
        let caller = Caller { uid: 0, gid: 0, pid: 0 };
        let ino = fs.create(caller, fs.root().unwrap(), b"file", 0o100_644, 0, None).unwrap().ino;
        // FS_DAX_FL, in both encodings: in `struct fsxattr` it is FS_XFLAG_DAX.
        let mut extended = [0; 28];
        extended[..4].copy_from_slice(&0x8000_u32.to_ne_bytes());
        for (command, data) in [(0x4008_6602, &0x0200_0000_u32.to_ne_bytes()[..]), (0x401C_5820, &extended)] {
            let request = Request::parse(command, data).unwrap();
            assert_eq!(fs.ioctl(caller, ino, true, &request), Err(Errno::OPNOTSUPP), "{request:?}");
        }
        extended[..4].copy_from_slice(&0x80_u32.to_ne_bytes());
        let request = Request::parse(0x401C_5820, &extended).unwrap();
        fs.ioctl(caller, ino, true, &request).unwrap();
        assert_eq!(fs.stat(ino).unwrap().flags & flag::SHOWN, flag::NODUMP);
        fs.unmount().unwrap();
    }

    #[test]
    fn a_label_is_changed_on_the_device() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let fs = mounted(format(&device, "sb_checksum"));
        let root = fs.root().unwrap();
        let caller = |uid| Caller { uid, gid: uid, pid: 0 };
        let set = |uid, text: &[u8]| {
            let mut label = [0; 256];
            label[..text.len()].copy_from_slice(text);
            fs.ioctl(caller(uid), root, false, &Request::parse(0x4100_9432, &label).unwrap())
        };
        assert_eq!(set(1000, b"x"), Err(Errno::PERM));
        assert_eq!(set(0, &[b'x'; 256]), Err(Errno::INVAL));
        assert_eq!(set(0, b"\xff"), Err(Errno::INVAL));
        set(0, b"longer than the next").unwrap();
        set(0, "Bücher\0\0rest".as_bytes()).unwrap();
        let told = fs.ioctl(caller(1000), root, false, &Request::GetLabel).unwrap();
        assert_eq!(told.split(|byte| *byte == 0).next(), Some("Bücher".as_bytes()));
        assert_eq!(
            fs.ioctl(caller(1000), root, false, &Request::GetUuid).unwrap()[..],
            [&[16][..], &[7; 16]].concat()
        );
        drop(fs);
        // Both copies of the superblock have the new label.
        for damaged in [0, 1] {
            let volume = Volume::open(device.clone(), Options::new(Time::default)).unwrap();
            assert_eq!(volume.superblock().label, "Bücher");
            drop(volume);
            device.write(damaged << 12, &[0; 4096]).unwrap();
        }
        assert!(Volume::open(device, Options::new(Time::default)).is_err());
    }

    #[test]
    fn a_damaged_file_without_a_name_does_not_lose_other_files_data() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let options = || Options::new(Time::default);
        let mut volume = format(&device, "");
        let root = volume.superblock().root_ino;
        let ino = volume.create(root, b"gone", &NewNode::new(0o100_644)).unwrap();
        // At this offset it has a separate node, which is not read before the file is freed.
        volume.write(ino, 4 << 20, b"x").unwrap();
        volume.unmount().unwrap();
        let node = Nid(volume.inode(ino).unwrap().child(0).0);
        let addr = volume.nat_entry(node).unwrap().addr;
        drop(volume);
        device.write(u64::from(addr.0) << 12, &[0xA5; 4096]).unwrap();

        let fs = mounted(Volume::open(device.clone(), options()).unwrap());
        let caller = Caller { uid: 0, gid: 0, pid: 0 };
        fs.lookup(root, b"gone").unwrap();
        fs.unlink(root, b"gone").unwrap();
        fs.create(caller, root, b"new", 0o100_644, 0, None).unwrap();
        assert!(fs.unmount().is_err(), "it is damaged");
        fs.unmount().unwrap();
        assert!(fs.unmount_error().unwrap().contains("corrupt"), "it is reported, and nothing else is wrong");
        let volume = Volume::open(device, options()).unwrap();
        assert!(volume.lookup(root, b"new").is_ok() && volume.lookup(root, b"gone").is_err());
    }

    #[test]
    fn synchronous_directories_do_not_report_errors_of_other_files() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let mut volume = format(&device, "");
        let root = volume.superblock().root_ino;
        let ino = volume.create(root, b"file", &NewNode::new(0o100_644)).unwrap();
        volume.write(ino, 4 << 20, b"x").unwrap();
        let name = |n: u32| format!("other{n}").into_bytes();
        let others: Vec<_> =
            (0..1000).map(|n| volume.create(root, &name(n), &NewNode::new(0o100_644)).unwrap()).collect();
        volume.unmount().unwrap();
        let node = Nid(volume.inode(ino).unwrap().child(0).0);
        let addr = volume.nat_entry(node).unwrap().addr;
        drop(volume);

        let small = Options { cache_bytes: 128 << 10, ..Options::new(Time::default) };
        let volume = Volume::open(device.clone(), small).unwrap();
        let settings = Settings { dirsync: true, ..Settings::default() };
        let fs = FileSystem::new(volume, Weak::new(), settings);
        let caller = Caller { uid: 0, gid: 0, pid: 0 };
        fs.write(caller, ino, 4 << 20, b"y", WriteMode::default()).unwrap();
        // The data is still in memory; the node that is to hold its address is evicted and then damaged on
        // the device.
        for other in others {
            fs.stat(other).unwrap();
        }
        device.write(u64::from(addr.0) << 12, &[0xA5; 4096]).unwrap();
        fs.create(caller, root, b"new", FileType::Directory.mode_bits() | 0o755, 0, None).unwrap();
        assert_eq!(fs.fsync(ino, false), Err(Errno::UCLEAN), "a sync of the file fails");
        drop(fs);
        let volume = Volume::open(device, Options::new(Time::default)).unwrap();
        assert!(volume.lookup(root, b"new").is_ok(), "it is durable");
    }
}
