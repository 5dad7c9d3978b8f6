//! Sealed files (fs-verity): content is checked against the Merkle tree while it is read, and files are sealed.
//!
//! *Invariant*: no byte of a sealed file is given out before the path from its block to the root hash of the descriptor has
//! been checked. A checked block of the tree is kept, and ends later paths.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use rustc_hash::FxHashMap;

use super::Files;
use crate::{
    Error, Place, Result,
    format::{
        inode::{advise, flag},
        node::NodeBlock,
        superblock::Features,
        verity::{self, Descriptor, Location, Parameters, Shape},
        xattr::index,
    },
    units::Ino,
};

/// Maximum number of checked blocks of trees in memory, each of at most 64 KiB and mostly of 4 KiB.
const CHECKED_MAX: usize = 256;
/// Bytes of content that are read at once to hash them; a multiple of every block of a tree.
const HASHED_BYTES: u64 = 1 << 20;

/// Checked blocks of Merkle trees.
#[derive(Default)]
pub(super) struct CheckedBlocks(Mutex<FxHashMap<BlockId, Arc<Vec<u8>>>>);

/// The digest of a file, and the level and number of a block of its tree. Another file with the digest has the same tree.
type BlockId = (Vec<u8>, usize, u64);

/// A sealed file, to check its content.
pub(super) struct Sealed<'i> {
    pub(super) inode: &'i NodeBlock,
    pub(super) descriptor: Descriptor,
    pub(super) shape: Shape,
    /// Offset of the tree in the file, in bytes.
    pub(super) tree: u64,
    digest: Vec<u8>,
}

impl Files {
    /// Returns the descriptor of a sealed file; `None` if the file is not sealed.
    pub(crate) fn verity(&self, inode: &NodeBlock) -> Result<Option<Descriptor>> {
        if !inode.has_advise(advise::VERITY) {
            return Ok(None);
        }
        let bad = |what: String| self.damage(Place::Xattr(inode.ino()), what);
        let place = self.nodes.stored_xattr(inode, index::VERITY, verity::ATTRIBUTE)?;
        let Some(place) = place else {
            return bad("a sealed file without a verity descriptor".into()).map(Some);
        };
        let location = match Location::parse(&place) {
            Ok(location)
                if location.bytes as usize <= verity::STORED_BYTES_MAX
                    && location.offset < i64::MAX as u64 =>
            {
                location
            }
            Ok(location) => return bad(format!("a verity descriptor of {} bytes", location.bytes)).map(Some),
            Err(what) => return bad(what).map(Some),
        };
        let mut bytes = vec![0; location.bytes as usize];
        self.read_past_end(inode, location.offset, &mut bytes)?;
        match Descriptor::parse(&bytes) {
            Ok(found) if found.data_bytes == inode.head().size.get() => Ok(Some(found)),
            Ok(found) => {
                bad(format!("a verity descriptor of a file of {} bytes", found.data_bytes)).map(Some)
            }
            Err(what) => bad(what).map(Some),
        }
    }

    pub(super) fn damage<T>(&self, at: Place, what: String) -> Result<T> {
        self.disk().io().record_corruption(Err(Error::corrupt(at, what)))
    }

    /// Fills `buf`, which ends inside the file, with checked content of a sealed file.
    pub(super) fn read_checked(&self, inode: &NodeBlock, offset: u64, buf: &mut [u8]) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let descriptor = self.verity(inode)?.expect("the caller has found it sealed");
        let sealed = self.sealed(inode, descriptor)?;
        let block_bytes = sealed.descriptor.parameters.block_bytes() as u64;
        let (end, size) = (offset + buf.len() as u64, inode.head().size.get());
        let (first, last) = (offset / block_bytes, end.div_ceil(block_bytes));
        // Zeroes follow the end of the file in its last block, whatever is on the device.
        let mut blocks = vec![0; ((last - first) * block_bytes) as usize];
        let there = (last * block_bytes).min(size) - first * block_bytes;
        self.read_past_end(inode, first * block_bytes, &mut blocks[..there as usize])?;
        for (bytes, block) in blocks.chunks_exact(block_bytes as usize).zip(first..) {
            self.check_block(&sealed, 0, block, bytes)?;
        }
        let from = (offset - first * block_bytes) as usize;
        buf.copy_from_slice(&blocks[from..from + buf.len()]);
        Ok(())
    }

    pub(super) fn sealed<'i>(&self, inode: &'i NodeBlock, descriptor: Descriptor) -> Result<Sealed<'i>> {
        let shape = Shape::new(&descriptor.parameters, descriptor.data_bytes);
        let tree = verity::tree_offset(descriptor.data_bytes);
        let end = |(tree, shape): (u64, &Shape)| tree.checked_add(shape.bytes());
        let is_possible = tree.zip(shape.as_ref()).and_then(end).is_some_and(|end| end < i64::MAX as u64);
        let (Some(shape), Some(tree), true) = (shape, tree, is_possible) else {
            return self.damage(Place::Xattr(inode.ino()), "a verity tree that is too large".into());
        };
        let digest = descriptor.digest();
        Ok(Sealed { inode, descriptor, shape, tree, digest })
    }

    /// Checks a block against the block of the tree above it. `level` counts from the data, which is level 0, upwards.
    fn check_block(&self, sealed: &Sealed<'_>, level: usize, block: u64, bytes: &[u8]) -> Result<()> {
        let digest_bytes = sealed.descriptor.parameters.algorithm.digest_bytes();
        let hash = sealed.descriptor.parameters.hash(bytes);
        let is_right = if level == sealed.shape.levels() {
            hash == sealed.descriptor.root_hash
        } else {
            let above = self.tree_block(sealed, level, block / sealed.shape.arity())?;
            let at = (block % sealed.shape.arity()) as usize * digest_bytes;
            above[at..at + digest_bytes] == hash
        };
        if is_right {
            return Ok(());
        }
        self.mismatch(sealed, level, block)
    }

    /// Returns the error of a block that does not match the block above it, and records the damage. `level` counts from the
    /// data, which is level 0.
    pub(super) fn mismatch<T>(&self, sealed: &Sealed<'_>, level: usize, block: u64) -> Result<T> {
        let (log, ino) = (self.disk().superblock().block_size.log(), sealed.inode.ino());
        let log_block = sealed.descriptor.parameters.log_block_bytes;
        let (offset, what) = match level {
            0 => (block << log_block, "content that does not match the verity tree".to_owned()),
            _ => (
                sealed.tree + sealed.shape.offset(level - 1, block),
                format!(
                    "block {block} in level {} of the verity tree does not match the one above it",
                    level - 1
                ),
            ),
        };
        self.damage(Place::File(ino, offset >> log), what)
    }

    /// Returns a checked block of the tree.
    fn tree_block(&self, sealed: &Sealed<'_>, level: usize, block: u64) -> Result<Arc<Vec<u8>>> {
        let id = (sealed.digest.clone(), level, block);
        let known = || self.checked.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = known().get(&id) {
            return Ok(bytes.clone());
        }
        let mut bytes = vec![0; sealed.descriptor.parameters.block_bytes()];
        self.read_past_end(sealed.inode, sealed.tree + sealed.shape.offset(level, block), &mut bytes)?;
        self.check_block(sealed, level + 1, block, &bytes)?;
        let (bytes, mut known) = (Arc::new(bytes), known());
        if known.len() >= CHECKED_MAX {
            known.clear();
        }
        known.insert(id, bytes.clone());
        Ok(bytes)
    }

    /// Reads from the Merkle tree of a sealed file as it is stored, at most up to its end, and returns the number of bytes.
    pub(crate) fn read_tree(&self, inode: &NodeBlock, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Some(descriptor) = self.verity(inode)? else { return Err(Error::NoAttribute) };
        let sealed = self.sealed(inode, descriptor)?;
        let rest = sealed.shape.bytes().saturating_sub(offset);
        let length = buf.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        if length > 0 {
            self.read_past_end(inode, sealed.tree + offset, &mut buf[..length])?;
        }
        Ok(length)
    }

    /// Checks that a file can be sealed with a tree.
    pub(crate) fn check_sealing(&self, ino: Ino, parameters: &Parameters, signature: &[u8]) -> Result<()> {
        parameters.check().map_err(|what| Error::Invalid(what.into()))?;
        if signature.len() > verity::SIGNATURE_BYTES_MAX {
            let (length, most) = (signature.len(), verity::SIGNATURE_BYTES_MAX);
            return Err(Error::Invalid(
                format!("a signature of {length} bytes, at most {most} are possible").into(),
            ));
        }
        if !self.disk().superblock().features.has(Features::VERITY) {
            let what = "fs-verity without the feature; flashkit tune -O verity adds it";
            return Err(Error::Unsupported(what.into()));
        }
        let inode = self.nodes.inode(ino)?;
        if inode.has_advise(advise::VERITY) {
            return Err(Error::Exists);
        }
        drop(inode);
        let inode = self.writable_file(ino)?;
        if inode.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        if inode.compression().is_some() {
            return Err(Error::Unsupported("sealing a compressed file".into()));
        }
        let size = inode.head().size.get();
        let shape = Shape::new(parameters, size);
        let end = verity::tree_offset(size).zip(shape).map(|(tree, shape)| tree + shape.bytes());
        let end = end.ok_or(Error::FileTooLarge)?;
        self.end_of(&inode, end, (verity::DESCRIPTOR_BYTES + signature.len()) as u64).map(drop)
    }

    /// Writes past the end of a file, which does not grow. Until it is sealed, its mark says that this is to be cut off.
    pub(crate) fn write_beyond(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let (log, end) = (self.geometry().block_size.log(), offset + data.len() as u64);
        let _space = self.reserve(ino, offset >> log..end.div_ceil(1 << log))?;
        // A chain of fsynced nodes may have the last of these blocks, from which roll-forward would derive the size.
        self.nodes.since_checkpoint_mut().note_renamed([ino]);
        self.nodes.inode_mut(ino)?.head_mut().advise |= advise::TRUNC;
        self.leave_inline(ino)?;
        let kind = self.log_of_data(&*self.nodes.inode(ino)?);
        self.write_blocks(ino, offset, data, kind)
    }

    /// Returns the hashes of the blocks in a range of bytes of a file, also past its end. Zeroes follow the range in its
    /// last block.
    pub(crate) fn hash_range(
        &self,
        ino: Ino,
        parameters: &Parameters,
        mut range: Range<u64>,
    ) -> Result<Vec<u8>> {
        let inode = self.nodes.inode(ino)?;
        let (block_bytes, mut hashes) = (parameters.block_bytes(), Vec::new());
        while range.start < range.end {
            let there = HASHED_BYTES.min(range.end - range.start) as usize;
            let mut bytes = vec![0; there.next_multiple_of(block_bytes)];
            self.read_past_end(&inode, range.start, &mut bytes[..there])?;
            hashes.extend(bytes.chunks_exact(block_bytes).flat_map(|bytes| parameters.hash(bytes)));
            range.start += there as u64;
        }
        Ok(hashes)
    }
}
