//! Attributes of inodes, and the space of the volume.

use f2fs::{
    engine::{Engine, SetAttr, Space, Stat, without_privilege},
    format::{FileType, inode::flag},
    units::Ino,
};

use super::{Credentials, FileSystem, Result, durability::PART_BYTES, permissions, refuse_sealed, to_errno};
use crate::{Errno, volume_lock::Writing};

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

impl FileSystem {
    /// Returns the attributes of an inode.
    pub fn stat(&self, ino: Ino) -> Result<Stat> {
        let volume = self.read_lock()?;
        self.stat_in(&volume, ino)
    }

    /// Returns the attributes of an inode as the mount shows them.
    pub(super) fn stat_in(&self, volume: &Engine, ino: Ino) -> Result<Stat> {
        self.pending_atimes.stat(volume, ino).map(|stat| self.settings.owner.on(stat)).map_err(to_errno)
    }

    /// Returns the space usage of the volume and its block size in bytes.
    pub fn space(&self) -> Result<(Space, u32)> {
        let volume = self.read_lock()?;
        Ok((volume.space(), volume.geometry().block_size.bytes() as u32))
    }

    /// Changes the size and attributes of an inode. The kernel has checked the caller's permissions, but does
    /// not know immutable and append-only flags.
    pub fn change(&self, caller: Credentials, ino: Ino, change: &Change) -> Result<Stat> {
        let mut volume = match change.size {
            // It may free space.
            Some(_) => self.lock_to_free(self.limits_for(caller))?,
            None => self.write_lock_for(caller)?,
        };
        let before = self.stat_in(&volume, ino)?;
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
        if size.is_some() {
            match before.kind {
                FileType::Regular => {}
                FileType::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
            refuse_sealed(&before)?;
            if self.inodes.denies_writers(ino) {
                return Err(Errno::TXTBSY);
            }
        }
        let gid = set.gid.unwrap_or(before.gid);
        set.permissions = set.permissions.map(|wanted| permissions::permissions_of(caller, gid, wanted));
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        set = self.settings.owner.admit(set)?;
        // A request with at most a ctime is either a chown(2) that changes no ID, or what the kernel sends
        // before an allocation or a copy. Both clear the set-user-id and set-group-id bits.
        let only_status = size.is_none() && SetAttr { ctime: None, ..set } == SetAttr::default();
        let drops_privilege = (changes_owner || only_status) && before.kind != FileType::Directory
            || size.is_some() && drops_privilege;
        if drops_privilege && set.permissions.is_none() {
            set.permissions = without_privilege(before.mode, || caller.is_in(before.gid));
            let owns = caller.uid == before.uid;
            if only_status
                && set.permissions.is_some()
                && !owns
                && !self.may_write(&volume, caller, &before)?
            {
                return Err(Errno::PERM);
            }
        }
        if let Some(size) = size {
            // The bits go before the content changes: readers have turns within a long truncation.
            if let Some(permissions) = set.permissions.filter(|_| drops_privilege) {
                let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
                volume.begin().set_attr(ino, &set).map_err(to_errno)?;
            }
            self.truncate(&mut volume, ino, size)?;
        }
        if set.atime.is_some() {
            self.pending_atimes.drop_of(ino);
        }
        if only_status || set != SetAttr::default() {
            volume.begin().set_attr(ino, &set).map_err(to_errno)?;
        }
        self.stat_in(&volume, ino)
    }

    /// Sets the size of a file. A long part is cut off in parts, between which readers have the volume. A failed upkeep
    /// between them, which could concern other files, does not keep the file from becoming as short as it should.
    fn truncate(&self, volume: &mut Writing<'_>, ino: Ino, size: u64) -> Result<()> {
        let mut prepared = Ok(());
        while prepared.is_ok() && volume.begin().shorten(ino, size, PART_BYTES).map_err(to_errno)? {
            prepared = self.between_parts(volume);
        }
        volume.begin().truncate(ino, size).map_err(to_errno)
    }
}
