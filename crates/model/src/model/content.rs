//! Operations that change the content of files.

use f2fs::{format::inode::flag, units::Time};
use guest::op::Allocate;
use rustix::io::Errno;

use super::{Body, CLUSTER_LOG, Data, Id, Model, Result};

impl Model {
    pub(super) fn write(&mut self, id: Id, offset: u64, data: &[u8], now: Time) -> Result {
        let rules = self.rules;
        if self.file(id)?.released {
            return Err(Errno::PERM);
        }
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        if data.is_empty() {
            return Ok(());
        }
        if end > self.bytes_max(id) {
            return Err(Errno::FBIG);
        }
        let inode = self.change(id);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::File(file) = &mut inode.body else { unreachable!("it is a file") };
        file.put(rules.block_bytes, offset, data);
        file.size = file.size.max(end);
        Ok(())
    }

    pub(super) fn truncate(&mut self, id: Id, size: u64, now: Time) -> Result {
        let rules = self.rules;
        let released = self.file(id)?.released;
        if size > self.bytes_max(id) {
            return Err(Errno::FBIG);
        }
        if released && size % (rules.block_bytes << CLUSTER_LOG) != 0 {
            return Err(Errno::INVAL);
        }
        let inode = self.change(id);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::File(file) = &mut inode.body else { unreachable!("it is a file") };
        if size <= file.size {
            file.zero(rules.block_bytes, size, u64::MAX);
        }
        file.size = size;
        file.released &= size > 0;
        Ok(())
    }

    /// Releases the blocks that compression saves in a file.
    pub(super) fn release(&mut self, path: &[u8], now: Time) -> Result {
        self.change_compressed(path, |file| !file.released, now)?.released = true;
        Ok(())
    }

    /// Reserves the blocks of [`release`](Self::release) again.
    pub(super) fn reserve(&mut self, path: &[u8], now: Time) -> Result {
        self.change_compressed(path, |file| file.released, now)?.released = false;
        Ok(())
    }

    /// Returns the compressed file at a path for a change, if the change is possible for it.
    fn change_compressed(
        &mut self,
        path: &[u8],
        is_possible: impl FnOnce(&Data) -> bool,
        now: Time,
    ) -> Result<&mut Data> {
        let id = self.find(path)?;
        let compressed = self.inode(id).flags & flag::COMPRESS != 0;
        let inode = self.change(id);
        match &mut inode.body {
            Body::File(file) if compressed && is_possible(file) => {
                inode.ctime = now;
                Ok(file)
            }
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn allocate(&mut self, id: Id, how: Allocate, offset: u64, length: u64, now: Time) -> Result {
        let rules = self.rules;
        let Data { size, released, .. } = *self.file(id)?;
        if released {
            return Err(Errno::PERM);
        }
        if matches!(how, Allocate::Collapse | Allocate::Insert) {
            if rules.is_encrypted() || self.inodes[&id].flags & flag::COMPRESS != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            if (offset | length) % rules.block_bytes != 0 {
                return Err(Errno::INVAL);
            }
        }
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        let too_far = match how {
            Allocate::Collapse if end >= size => return Err(Errno::INVAL),
            Allocate::Insert if offset >= size => return Err(Errno::INVAL),
            Allocate::Insert => size.checked_add(length).is_none_or(|end| end > self.bytes_max(id)),
            _ => end > self.bytes_max(id),
        };
        if too_far {
            return Err(Errno::FBIG);
        }
        let inode = self.change(id);
        (inode.mtime, inode.ctime) = (now, now);
        let Body::File(file) = &mut inode.body else { unreachable!("it is a file") };
        match how {
            Allocate::Extend | Allocate::KeepSize => {
                file.reserve(rules.block_bytes, offset, end);
                if how == Allocate::Extend {
                    file.size = file.size.max(end);
                }
            }
            Allocate::Punch => file.zero(rules.block_bytes, offset, end),
            Allocate::Zero => {
                file.zero(rules.block_bytes, offset, end);
                file.reserve(rules.block_bytes, offset, end);
                file.size = file.size.max(end);
            }
            Allocate::Collapse => {
                let (start, end) = (offset / rules.block_bytes, end / rules.block_bytes);
                file.shift(rules.block_bytes, |block| match block {
                    block if block < start => Some(block),
                    block => (block >= end).then(|| block - (end - start)),
                });
                file.size -= length;
            }
            Allocate::Insert => {
                let (start, end) = (offset / rules.block_bytes, end / rules.block_bytes);
                file.shift(rules.block_bytes, |block| {
                    Some(if block < start { block } else { block + (end - start) })
                });
                file.size += length;
            }
        }
        Ok(())
    }

    fn bytes_max(&self, id: Id) -> u64 {
        match self.inodes[&id].flags & flag::COMPRESS {
            0 => self.rules.file_bytes_max,
            _ => self.rules.compressed_bytes_max,
        }
    }
}
