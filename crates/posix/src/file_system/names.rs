//! Names: lookup, creation, removal and renaming.

use f2fs::{
    engine::{Engine, NewNode, RenameMode, Stat},
    format::{
        FileType,
        inode::{DeviceNumber, advise, flag},
        superblock::Features,
    },
    units::Ino,
};
use rustix::fs::RenameFlags;

use super::{Credentials, FileSystem, Limits, Result, permissions, to_errno};
use crate::{Errno, OpenFor, volume_lock::Writing};

impl FileSystem {
    /// Looks up a name in a directory and takes a lookup reference on the inode for the kernel. The name `.`
    /// means the inode `dir` itself, which may be of any type; NFS handles are resolved that way.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Stat> {
        let volume = self.read_lock()?;
        let found = match name {
            b"." if !volume.is_inode(dir).map_err(to_errno)? => return Err(Errno::NOENT),
            b"." => Ok(dir),
            _ => volume.lookup(dir, name),
        };
        let stat = self.stat_in(&volume, found.map_err(to_errno)?)?;
        if name == b"." && stat.links == 0 {
            // An inode without links is freed with its last reference, which may happen now. New references
            // are refused (open_by_handle_at(2)).
            return Err(Errno::NOENT);
        }
        self.add_reference(&stat);
        Ok(stat)
    }

    /// Takes a lookup reference for the kernel. The caller holds the volume's lock, so that `stat` is
    /// current.
    pub(super) fn add_reference(&self, stat: &Stat) {
        self.inodes.add_lookup(stat.ino);
        if !stat.has_xattrs {
            self.inodes.mark_without_xattrs(stat.ino);
        }
    }

    /// Returns true if the kernel may cache the names of a directory. It must not in casefolded directories,
    /// where one name has several spellings, and in encrypted ones, where names change with the key.
    pub fn names_are_exact(&self, dir: Ino) -> bool {
        self.read_lock().is_ok_and(|volume| {
            volume
                .inode(dir)
                .is_ok_and(|inode| !inode.has_flag(flag::CASEFOLD) && !inode.has_advise(advise::ENCRYPT))
        })
    }

    /// Returns true if the kernel may cache that a name does not exist. It must not if directories can become
    /// casefolded or encrypted: a file created afterwards, or a key, brings names that were looked up in vain before.
    pub fn negative_entries_last(&self) -> bool {
        self.read_lock().is_ok_and(|volume| {
            let features = volume.superblock().features;
            !features.has(Features::CASEFOLD) && !features.has(Features::ENCRYPT)
        })
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
        caller: Credentials,
        dir: Ino,
        name: &[u8],
        mode: u16,
        umask: u16,
        device: Option<DeviceNumber>,
    ) -> Result<Stat> {
        let volume = self.write_lock_for(caller)?;
        let new = NewNode { device, ..self.new_node(&volume, caller, dir, mode)? };
        self.create_in(volume, (dir, name), &new, umask, None)
    }

    /// Creates a regular file, opens it, and takes a lookup reference on it. It is open before others have the volume again,
    /// so a key that is removed at this time is missing for both steps, or for none.
    pub fn create_open(
        &self,
        caller: Credentials,
        (dir, name): (Ino, &[u8]),
        mode: u16,
        umask: u16,
        open_for: OpenFor,
    ) -> Result<Stat> {
        let volume = self.write_lock_for(caller)?;
        let new = self.new_node(&volume, caller, dir, mode)?;
        self.create_in(volume, (dir, name), &new, umask, Some(open_for))
    }

    fn create_in(
        &self,
        volume: Writing<'_>,
        (dir, name): (Ino, &[u8]),
        new: &NewNode,
        umask: u16,
        open_for: Option<OpenFor>,
    ) -> Result<Stat> {
        self.finish_creation(volume, Some(dir), open_for, |volume| {
            let ino = volume.begin().create_for(dir, name, new, umask)?;
            self.pending_atimes.drop_of(ino);
            Ok(ino)
        })
    }

    /// Creates a file without a name (O_TMPFILE), opens it, and takes a lookup reference on it. The file is freed with
    /// the last reference unless it has a name by then.
    pub fn create_nameless(
        &self,
        caller: Credentials,
        dir: Ino,
        mode: u16,
        umask: u16,
        open_for: OpenFor,
    ) -> Result<Stat> {
        let volume = self.write_lock_for(caller)?;
        let new = self.new_node(&volume, caller, dir, mode)?;
        self.finish_creation(volume, None, Some(open_for), |volume| {
            let ino = volume.begin().create_nameless_for(dir, &new, umask)?;
            self.inodes.mark_held(ino);
            self.pending_atimes.drop_of(ino);
            Ok(ino)
        })
    }

    /// Creates a symbolic link and takes a lookup reference on it.
    pub fn symlink(&self, caller: Credentials, dir: Ino, name: &[u8], target: &[u8]) -> Result<Stat> {
        let volume = self.write_lock_for(caller)?;
        let (uid, gid) = self.settings.owner.of_new(&volume, caller, dir)?;
        let new = NewNode { uid, gid, ..NewNode::new(0o777) };
        self.finish_creation(volume, Some(dir), None, |volume| {
            let ino = volume.begin().symlink_for(dir, name, target, &new)?;
            self.pending_atimes.drop_of(ino);
            Ok(ino)
        })
    }

    /// Adds a name to an inode and takes a lookup reference on it.
    pub fn link(&self, caller: Credentials, ino: Ino, dir: Ino, name: &[u8]) -> Result<Stat> {
        self.finish_creation(self.write_lock_for(caller)?, Some(dir), None, |volume| {
            volume.begin().link(ino, dir, name).map(|()| ino)
        })
    }

    /// Returns the mode and the owner of a new inode in a directory.
    fn new_node(&self, volume: &Engine, caller: Credentials, dir: Ino, mode: u16) -> Result<NewNode> {
        let mode = permissions::mode_of_new(caller, mode, || self.stat_in(volume, dir))?;
        let (uid, gid) = self.settings.owner.of_new(volume, caller, dir)?;
        Ok(NewNode { uid, gid, ..NewNode::new(mode) })
    }

    /// Makes an inode, opens it if that is asked for, and makes its name durable if `dir` demands that.
    fn finish_creation(
        &self,
        mut volume: Writing<'_>,
        dir: Option<Ino>,
        open_for: Option<OpenFor>,
        make: impl FnOnce(&mut Writing<'_>) -> f2fs::Result<Ino>,
    ) -> Result<Stat> {
        let ino = make(&mut volume).map_err(to_errno)?;
        if let Some(open_for) = open_for {
            self.open_new(ino, open_for);
        }
        let synced = self.sync_names(&mut volume, dir);
        match synced.and_then(|()| self.stat_in(&volume, ino)) {
            Ok(stat) => {
                self.add_reference(&stat);
                Ok(stat)
            }
            Err(errno) => {
                // The kernel does not learn of the inode, and so never gives it back.
                if let Some(open_for) = open_for {
                    self.close(ino, open_for);
                }
                if self.inodes.forget(ino, 0, || {}) {
                    // The error that is returned is the first one.
                    let _ = volume.begin().release(ino);
                }
                Err(errno)
            }
        }
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let mut volume = self.lock_to_free(Limits::Enforced)?;
        self.hold_target(&mut volume, dir, name)?;
        volume.begin().unlink(dir, name).map_err(to_errno)?;
        self.sync_names(&mut volume, [dir])
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let mut volume = self.lock_to_free(Limits::Enforced)?;
        self.hold_target(&mut volume, dir, name)?;
        volume.begin().remove_dir(dir, name).map_err(to_errno)?;
        self.sync_names(&mut volume, [dir])
    }

    /// Renames an inode. With RENAME_WHITEOUT, a whiteout (a character device 0:0) takes the old name.
    pub fn rename(
        &self,
        caller: Credentials,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let leaves_whiteout = flags.contains(RenameFlags::WHITEOUT);
        let mode = match flags & !RenameFlags::WHITEOUT {
            RenameFlags::NOREPLACE => RenameMode::NoReplace,
            RenameFlags::EXCHANGE if !leaves_whiteout => RenameMode::Exchange,
            flags if flags.is_empty() => RenameMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        let mut volume = match mode {
            // It may free the target.
            RenameMode::Replace if !leaves_whiteout => self.lock_to_free(self.limits_for(caller))?,
            _ => self.write_lock_for(caller)?,
        };
        if mode == RenameMode::Replace {
            self.hold_target(&mut volume, to_dir, to)?;
        }
        let renamed = if leaves_whiteout {
            let device = Some(DeviceNumber { major: 0, minor: 0 });
            let whiteout = NewNode::new(FileType::CharDevice.mode_bits());
            let (uid, gid) = self.settings.owner.of_new(&volume, caller, from_dir)?;
            let whiteout = NewNode { uid, gid, device, ..whiteout };
            volume.begin().rename_leaving((from_dir, from), (to_dir, to), mode, &whiteout)
        } else {
            volume.begin().rename(from_dir, from, to_dir, to, mode)
        };
        renamed.map_err(to_errno)?;
        if leaves_whiteout {
            if let Ok(whiteout) = volume.lookup(from_dir, from) {
                self.pending_atimes.drop_of(whiteout);
            }
        }
        self.sync_names(&mut volume, [from_dir, to_dir])
    }

    /// Called before a name is removed. If the inode loses its last link, it is held until the kernel drops
    /// its references.
    fn hold_target(&self, volume: &mut Engine, dir: Ino, name: &[u8]) -> Result<()> {
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
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.renew_atime(ino);
        self.read_lock()?.read_link(ino).map_err(to_errno)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::MemoryDevice;
    use f2fs::{engine::QuotaLimits, format::quota::QuotaKind};

    use super::*;
    use crate::file_system::tests::{format, mounted};

    #[test]
    fn a_new_inode_does_not_get_the_pending_access_time_of_an_earlier_one() {
        let volume = format(&Arc::new(MemoryDevice::new(64 << 20)), "");
        let root = volume.superblock().root_ino;
        let fs = mounted(volume);
        let locked = fs.quiet_write_lock().unwrap();
        // They stay pending if the upkeep before them fails.
        for ino in (0..100).map(Ino).filter(|ino| *ino != root) {
            fs.pending_atimes.add(ino, f2fs::units::Time { seconds: 7, nanoseconds: 0 });
        }
        let made = fs.create_in(locked, (root, b"new"), &NewNode::new(0o100_644), 0, None).unwrap();
        assert!(made.ino < Ino(100));
        assert_eq!(fs.stat(made.ino).unwrap().atime.seconds, 0);
    }

    #[test]
    fn a_rename_whose_whiteout_is_refused_moves_nothing() {
        let mut volume = format(&Arc::new(MemoryDevice::new(64 << 20)), "extra_attr,quota");
        let root = volume.superblock().root_ino;
        let user = Credentials { uid: 2000, gid: 2000, pid: 0 };
        let new = NewNode { uid: user.uid, gid: user.gid, ..NewNode::new(0o100_644) };
        let ino = volume.begin(f2fs::engine::Caller::ADMIN).create(root, b"from", &new).unwrap();
        let limits = QuotaLimits { inodes_hard: 1, ..QuotaLimits::default() };
        volume
            .begin(f2fs::engine::Caller::ADMIN)
            .set_quota_limits(QuotaKind::User, user.uid, limits)
            .unwrap();
        let fs = mounted(volume);
        let rename = |caller| fs.rename(caller, (root, b"from"), (root, b"to"), RenameFlags::WHITEOUT);
        assert_eq!(rename(user), Err(Errno::DQUOT));
        assert_eq!(fs.lookup(root, b"from").unwrap().ino, ino);
        assert_eq!(fs.lookup(root, b"to").map(|stat| stat.ino), Err(Errno::NOENT));
        rename(Credentials { uid: 0, ..user }).unwrap();
        assert_eq!(fs.lookup(root, b"to").unwrap().ino, ino);
        assert_eq!(fs.lookup(root, b"from").unwrap().kind, FileType::CharDevice);
        // Two names of one inode: rename(2) does nothing.
        fs.link(user, ino, root, b"other").unwrap();
        let other = (root, &b"other"[..]);
        fs.rename(user, other, (root, b"to"), RenameFlags::WHITEOUT).unwrap();
        assert_eq!(fs.lookup(root, b"other").unwrap().ino, ino);
        fs.unmount().unwrap();
    }
}
