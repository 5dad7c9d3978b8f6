//! Attributes of inodes, and the space of the volume.

use f2fs::{
    engine::{SetAttr, Space, Stat, without_privilege},
    format::{FileType, inode::flag},
    units::Ino,
};

use super::{Caller, FileSystem, Result, durability::PART_BYTES, permissions, refuse_sealed, to_errno};
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
        self.pending_atimes.stat(&volume, ino).map_err(to_errno)
    }

    /// Returns the space usage of the volume and its block size in bytes.
    pub fn space(&self) -> Result<(Space, u32)> {
        let volume = self.read_lock()?;
        Ok((volume.space(), volume.geometry().block_size.bytes() as u32))
    }

    /// Changes the size and attributes of an inode. The kernel has checked the caller's permissions, but does
    /// not know immutable and append-only flags.
    pub fn change(&self, caller: Caller, ino: Ino, change: &Change) -> Result<Stat> {
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
            self.truncate(&mut volume, &before, size)?;
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
        self.pending_atimes.stat(&volume, ino).map_err(to_errno)
    }

    /// Changes the size of a file. A large file is shortened in parts, between which readers have the volume.
    fn truncate(&self, volume: &mut Writing<'_>, before: &Stat, size: u64) -> Result<()> {
        let step = part_of_truncation(before.size.saturating_sub(size), before.sectors * 512);
        let mut end = before.size;
        // Parts end at multiples of their length, so that none ends inside a compressed cluster.
        while end.saturating_sub(size) > step {
            end = (end - 1) / step * step;
            volume.truncate(before.ino, end.max(size)).map_err(to_errno)?;
            self.between_parts(volume)?;
        }
        volume.truncate(before.ino, size).map_err(to_errno)
    }
}

/// Returns the length of the parts in which `bytes` of a file are cut off: such that a part of evenly spread data
/// holds [`PART_BYTES`]. A sparse file would otherwise have too many.
fn part_of_truncation(bytes: u64, allocated_bytes: u64) -> u64 {
    let parts = allocated_bytes.div_ceil(PART_BYTES).max(1);
    (bytes / parts).max(PART_BYTES).next_multiple_of(PART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncation_has_about_as_many_parts_as_its_data_takes() {
        assert_eq!(part_of_truncation(10 << 30, 10 << 30), PART_BYTES);
        assert_eq!(part_of_truncation(16 << 40, 1 << 20), 16 << 40);
        assert_eq!(part_of_truncation(16 << 40, 2 * PART_BYTES), 8 << 40);
        assert_eq!(part_of_truncation(1, 0), PART_BYTES);
    }
}
