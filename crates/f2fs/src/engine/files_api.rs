//! The public operations on the content of files. An operation on more than one piece begins each as a transaction of
//! its own, so that a checkpoint can free space between them.

use std::ops::Range;

use super::{
    Cluster, Engine, Extent, Hidden, Run, SavedBlocks, SavedChange, Seek, SeekPart, SeekTarget, SpaceCheck,
    transaction::{Step, Transaction},
};
use crate::{
    Error, Result,
    engine::FileSize,
    files::{pieces, write_pieces},
    format::{
        inode::{Algorithm, flag},
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};

/// The handling of mtime and ctime when data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stamp {
    /// The write sets them.
    Now,
    /// The caller sets them later.
    ByCaller,
}

impl Engine {
    /// Returns the run that starts at `block` and ends at `limit` at the latest. Blocks beyond the
    /// addressable range are a hole.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn run(&self, inode: &NodeBlock, block: u64, limit: u64) -> Result<Run> {
        self.files().run(inode, block, limit)
    }

    /// The address of one block of a file.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn address(&self, inode: &NodeBlock, block: u64) -> Result<BlockAddr> {
        self.files().address(inode, block)
    }

    /// Returns the storage of the cluster that contains `block`.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn cluster(&self, inode: &NodeBlock, block: u64) -> Result<Cluster> {
        self.files().cluster(inode, block)
    }

    /// Reads from a regular file, at most up to its end, and returns the number of bytes. Without the
    /// key of an encrypted file the result is [`Error::NoKey`]; see [`read_raw`](Self::read_raw).
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for a directory and [`Error::Invalid`] for anything else that is no regular file;
    /// [`Error::NoKey`] or [`Error::OtherKey`] for an encrypted file whose key is missing; those of
    /// [reading](Engine#errors).
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.files().read(ino, offset, buf)
    }

    /// Like [`read`](Self::read), but returns the encrypted bytes of an encrypted file. A compressed cluster of it has its
    /// stored blocks behind a block of zeroes: block n of the result is encrypted as block n of the file.
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for a directory and [`Error::Invalid`] for anything else that is no regular file;
    /// those of [reading](Engine#errors).
    pub fn read_raw(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.files().read_raw(ino, offset, buf)
    }

    /// Returns the first extent of a file at or after `offset`, or `None` if only a hole or the end of the
    /// file follows. An extent that contains `offset` is returned from `offset` on.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn next_extent(&self, ino: Ino, offset: u64) -> Result<Option<Extent>> {
        self.files().next_extent(ino, offset)
    }

    /// Like [`next_extent`](Self::next_extent); the error states the bytes that it hides, so that the caller
    /// can continue behind them.
    ///
    /// # Errors
    /// The error of [reading](Engine#errors) and the bytes that it hides.
    pub fn next_extent_or_hidden(&self, ino: Ino, offset: u64) -> Result<Option<Extent>, Hidden> {
        self.files().next_extent_or_hidden(ino, offset)
    }

    /// Returns the ranges on the device, in bytes and in order, that hold `length` bytes of a regular file
    /// from `offset` on, at most up to the end of the file. Returns `None` if the device does not hold all of
    /// them in readable form: holes, inline, compressed or encrypted data, and changes that are not written
    /// yet. The caller then uses [`read`](Self::read).
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for a directory and [`Error::Invalid`] for anything else that is no regular file;
    /// those of [reading](Engine#errors).
    pub fn ranges_on_device(&self, ino: Ino, offset: u64, length: u64) -> Result<Option<Vec<Range<u64>>>> {
        self.files().ranges_on_device(ino, offset, length)
    }

    /// Returns the offset of the first data at or after `offset` (`SEEK_DATA`), or `None` if no data follows.
    /// Reserved blocks are not data.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<Option<u64>> {
        self.files().seek(ino, SeekTarget::Data, offset)
    }

    /// Returns the offset of the first hole at or after `offset` (`SEEK_HOLE`), or `None` past the end. The
    /// end of the file counts as a hole. As in Linux, reserved blocks are neither holes nor data (see
    /// [`seek_data`](Self::seek_data)).
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<Option<u64>> {
        self.files().seek(ino, SeekTarget::Hole, offset)
    }

    /// Does the next part of a search for data or a hole, which examines some thousand addresses at most. A caller who shares
    /// the volume can let others in between two parts, also those who change the file: the result of a search is true only for
    /// the time of its last part.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn seek_part(&self, seek: &mut Seek) -> Result<SeekPart> {
        self.files().seek_part(seek)
    }

    /// The handling of the times when cached data is written.
    fn stamp_of_cache(&self) -> Stamp {
        if self.options().cache_has_times { Stamp::ByCaller } else { Stamp::Now }
    }

    /// Begins to check that a range of a regular file can be allocated, as
    /// [`allocate_range`](Transaction::allocate_range) does first. A caller that allocates it in parts asks for all of it before
    /// it begins. The check itself is done in parts by [`allocation_check_part`](Self::allocation_check_part).
    ///
    /// # Errors
    /// Those of `allocate_range`.
    pub fn begin_allocation_check(&self, ino: Ino, offset: u64, length: u64) -> Result<SpaceCheck> {
        self.files().begin_allocation_check(ino, offset, length)
    }

    /// Does the next part of a check, which examines some thousand addresses at most. Returns true if another part is left.
    /// A caller who shares the volume can let readers in between two parts, but nothing may change there.
    ///
    /// # Errors
    /// Those of [`allocate_range`](Transaction::allocate_range).
    pub fn allocation_check_part(&self, check: &mut SpaceCheck) -> Result<bool> {
        Ok(self.files().space_check_part(check)?.is_none())
    }

    /// Returns the number of blocks of a file that [`release_saved`](Self::release_saved) released. No stored
    /// count includes them.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn released_blocks(&self, ino: Ino) -> Result<u64> {
        self.files().released_blocks(ino)
    }
}

impl Transaction<'_> {
    /// Writes to a regular file, which grows if the data extends past its end.
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for a directory and [`Error::Invalid`] for anything else that is no regular file;
    /// [`Error::NoKey`] or [`Error::OtherKey`] for an encrypted file; [`Error::NotPermitted`] for
    /// an immutable, sealed or released file, and inside an append-only file;
    /// [`Error::FileTooLarge`]; [`Error::NoSpace`] and [`Error::Quota`], with nothing written; those of [every
    /// change](Engine#errors).
    pub fn write(mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let mut step = self.step()?;
        let inode = step.engine().files().writable_file(ino)?;
        if inode.has_flag(flag::APPEND) && offset < inode.head().size.get() {
            return Err(Error::NotPermitted);
        }
        drop(inode);
        step.put(ino, offset, data, Stamp::Now)
    }

    /// Writes cached data to a regular file, for a program that may have opened it before it became
    /// append-only. If the cache [holds the times](super::Options::cache_has_times), this leaves them alone, and the
    /// caller [sets](Self::set_attr) them.
    ///
    /// # Errors
    /// Those of [`write`](Self::write); an append-only file is no error.
    pub fn overwrite_cached(mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let mut step = self.step()?;
        drop(step.engine().files().writable_file(ino)?);
        let stamp = step.engine().stamp_of_cache();
        step.put(ino, offset, data, stamp)
    }

    /// Writes cached data to a regular file, for a cache that tracks changes in whole blocks. In an
    /// append-only file this does not append: existing bytes other than zero stay, and zeroes are replaced,
    /// in whichever order the blocks come. If the data differs from bytes that stay, the result is
    /// [`Error::NotPermitted`]. The times are handled as in [`overwrite_cached`](Self::overwrite_cached).
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn write_cached(mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let inode = self.engine().inode(ino)?;
        let (appends_only, size) = (inode.has_flag(flag::APPEND), inode.head().size.get());
        drop(inode);
        if !appends_only || offset >= size || data.is_empty() {
            return self.overwrite_cached(ino, offset, data);
        }
        let mut step = self.step()?;
        drop(step.engine().files().writable_file(ino)?);
        let mut merged = data.to_vec();
        let mut there = vec![0; data.len().min((size - offset).try_into().unwrap_or(usize::MAX))];
        let length = step.engine().read(ino, offset, &mut there)?;
        let mut changes = false;
        for (new, old) in merged.iter_mut().zip(&there[..length]).filter(|(_, old)| **old != 0) {
            changes |= new != old;
            *new = *old;
        }
        let stamp = step.engine().stamp_of_cache();
        step.put(ino, offset, &merged, stamp)?;
        if changes { Err(Error::NotPermitted) } else { Ok(()) }
    }

    /// Sets the size of a regular file. Content past it is removed; added content reads as zeroes.
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for a directory and [`Error::Invalid`] for anything else that is no regular file;
    /// [`Error::NoKey`] or [`Error::OtherKey`] for an encrypted file; [`Error::NotPermitted`] for
    /// an immutable, sealed or append-only file;
    /// [`Error::FileTooLarge`];
    /// [`Error::Invalid`] inside a cluster of a released file; those of [every change](Engine#errors).
    pub fn truncate(mut self, ino: Ino, size: u64) -> Result<()> {
        self.step()?.files().truncate(ino, size)
    }

    /// Cuts a part of at most `part_bytes` bytes off the end of a regular file that is about to be
    /// [truncated](Self::truncate) to `size`, so that a caller who shares the volume can let others in between two parts of
    /// a long truncation. Returns false if the truncation has at most one such part left. After a power cut between two
    /// parts, the file may have a size in between.
    ///
    /// # Errors
    /// Those of `truncate`, before anything is cut off.
    pub fn shorten(mut self, ino: Ino, size: u64, part_bytes: u64) -> Result<bool> {
        self.step()?.files().shorten(ino, size, part_bytes)
    }

    /// Punches a hole into a regular file: the range reads as zeroes, whole blocks of it are freed, and the
    /// size stays.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and [`Error::NotPermitted`] for an append-only file.
    pub fn punch_hole(mut self, ino: Ino, offset: u64, length: u64) -> Result<()> {
        let mut step = self.step()?;
        let end = step.files().check_hole(ino, offset, length)?;
        for piece in pieces(offset, end) {
            step.renew()?;
            step.files().punch(ino, piece.start, piece.end)?;
        }
        step.files().stamp(ino)
    }

    /// Reserves blocks for a range of a regular file; former holes read as zeroes.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn allocate_range(mut self, ino: Ino, offset: u64, length: u64, size: FileSize) -> Result<()> {
        let mut step = self.step()?;
        let end = step.files().check_allocation(ino, offset, length)?;
        for piece in pieces(offset, end) {
            step.renew()?;
            step.files().allocate_blocks(ino, piece.start, piece.end, size)?;
        }
        Ok(())
    }

    /// Makes a range of a regular file read as zeroes, with all its blocks reserved.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and [`Error::NotPermitted`] for an append-only file.
    pub fn zero_range(mut self, ino: Ino, offset: u64, length: u64, size: FileSize) -> Result<()> {
        let mut step = self.step()?;
        let end = step.files().check_hole(ino, offset, length)?;
        step.files().require_space(ino, offset, end)?;
        for piece in pieces(offset, end) {
            step.renew()?;
            step.files().punch(ino, piece.start, piece.end)?;
            step.files().allocate_blocks(ino, piece.start, piece.end, size)?;
        }
        Ok(())
    }

    /// Removes a range from a regular file: the content behind it moves to `offset`, and the file shrinks
    /// (Linux, `f2fs_collapse_range`). The range must consist of whole blocks and end before the end of the
    /// file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is not whole blocks, or does not end before the end of the file; those
    /// of [`write`](Self::write).
    pub fn collapse_range(mut self, ino: Ino, offset: u64, length: u64) -> Result<()> {
        let mut step = self.step()?;
        let shift = step.files().begin_collapse(ino, offset, length)?;
        for (blocks, to) in shift.moves() {
            step.free_space()?;
            step.files().move_blocks(ino, blocks, to)?;
        }
        step.files().set_size(ino, shift.new_size)?;
        step.files().stamp(ino)
    }

    /// Inserts a hole into a regular file: the content from `offset` on moves up by `length`, and the file
    /// grows (Linux, `f2fs_insert_range`). The range must consist of whole blocks, and `offset` must be
    /// before the end of the file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is not whole blocks, or does not start before the end of the file; those
    /// of [`write`](Self::write).
    pub fn insert_range(mut self, ino: Ino, offset: u64, length: u64) -> Result<()> {
        let mut step = self.step()?;
        let shift = step.files().begin_insert(ino, offset, length)?;
        for (blocks, to) in shift.moves() {
            step.free_space()?;
            step.files().move_blocks(ino, blocks, to)?;
        }
        step.files().stamp(ino)
    }

    /// Releases the blocks that compression saves in a file, and returns their number. From then on the file
    /// cannot be written, until [`reserve_saved`](Self::reserve_saved) or until it is truncated to size 0
    /// (Linux, `f2fs_release_compress_blocks`). The caller makes sure that the file is not open for writing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without the feature compression; [`Error::Invalid`] for a file that is not
    /// compressed, or is released already; [`Error::NotPermitted`] for an immutable or sealed file;
    /// [`Error::NoKey`] or [`Error::OtherKey`] for an encrypted one; those of [every change](Engine#errors).
    pub fn release_saved(mut self, ino: Ino) -> Result<u64> {
        self.change_saved(ino, SavedBlocks::Released)
    }

    /// Reserves the blocks again that [`release_saved`](Self::release_saved) released, and returns their
    /// number. The file can then be written. Without space for all of them, none is reserved.
    ///
    /// # Errors
    /// [`Error::NoSpace`] and [`Error::Quota`] without space for all blocks; those of
    /// [`release_saved`](Self::release_saved) for a file of another kind; those of [every change](Engine#errors).
    pub fn reserve_saved(mut self, ino: Ino) -> Result<u64> {
        self.change_saved(ino, SavedBlocks::Reserved)
    }

    fn change_saved(&mut self, ino: Ino, to: SavedBlocks) -> Result<u64> {
        let mut step = self.step()?;
        let mut change = step.files().begin_saved_change(ino, to)?;
        loop {
            if let Some(blocks) = step.files().go_on_with_saved_change(&mut change)? {
                return Ok(blocks);
            }
        }
    }

    /// Begins to [release](Self::release_saved) or to [reserve](Self::reserve_saved) the saved blocks of a file. The parts
    /// follow by [`saved_part`](Self::saved_part), so that a caller who shares the volume can let readers in between two of
    /// them.
    ///
    /// # Errors
    /// Those of `release_saved` and `reserve_saved`, before anything is changed.
    pub fn begin_saved_change(mut self, ino: Ino, to: SavedBlocks) -> Result<SavedChange> {
        self.step()?.files().begin_saved_change(ino, to)
    }

    /// Does the next part of a change of saved blocks. Returns their number after the last part. Until then the caller makes
    /// no other change of the volume and writes no checkpoint, because the state in between is not valid on the device.
    ///
    /// # Errors
    /// Those of `release_saved` and `reserve_saved`. The file then has its former state.
    pub fn saved_part(mut self, change: &mut SavedChange) -> Result<Option<u64>> {
        self.continued_step()?.files().go_on_with_saved_change(change)
    }

    /// Sets the algorithm and cluster size of a compressed file without content (Linux,
    /// `f2fs_ioc_set_compress_option`).
    ///
    /// # Errors
    /// [`Error::Invalid`] for clusters of an impossible size, [`Error::FileTooLarge`] for a file with content;
    /// those of [`release_saved`](Self::release_saved) for a file of another kind; those of [every
    /// change](Engine#errors).
    pub fn choose_compression(
        mut self,
        ino: Ino,
        algorithm: Algorithm,
        log_cluster_blocks: u8,
    ) -> Result<()> {
        self.step()?.files().choose_compression(ino, algorithm, log_cluster_blocks)
    }
}

impl Step<'_> {
    fn put(&mut self, ino: Ino, offset: u64, data: &[u8], stamp: Stamp) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.write_pieces(ino, offset, data)?;
        match stamp {
            Stamp::Now => self.files().stamp(ino),
            Stamp::ByCaller => Ok(()),
        }
    }

    /// Writes to a regular file in pieces. Between two pieces a checkpoint frees space, if changes do their own upkeep. If
    /// not all of it fits, nothing is written.
    fn write_pieces(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let files = self.engine().files();
        let end = files.end_of(&*self.engine().inode(ino)?, offset, data.len() as u64)?;
        if write_pieces(offset, end).nth(1).is_some() {
            files.require_space(ino, offset, end)?;
        }
        for piece in write_pieces(offset, end) {
            if piece.start > offset {
                self.renew()?;
            }
            let part = (piece.start - offset) as usize..(piece.end - offset) as usize;
            self.files().write_content(ino, piece.start, &data[part])?;
        }
        Ok(())
    }
}
