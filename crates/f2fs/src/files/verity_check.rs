//! Checks of whole sealed files: from the root hash down, so that each damaged place is found once.

use std::ops::Range;

use super::{Files, verity::Sealed};
use crate::{Error, Result, units::Ino};

/// Maximum number of bytes of content that are read at once.
const RUN_BYTES: u64 = 1 << 20;

/// A part of a sealed file that was checked.
#[derive(Debug)]
pub enum SealedPart {
    /// This range of the content matches the Merkle tree, in bytes.
    Whole(Range<u64>),
    /// A damaged place.
    Damaged(SealedDamage),
}

/// A place of a sealed file that does not match what is above it, or cannot be read.
#[derive(Debug)]
pub struct SealedDamage {
    /// The place.
    pub place: SealedPlace,
    /// The range of the content that is damaged or cannot be checked because of it, in bytes.
    pub content: Range<u64>,
    /// The error of reading it, or `None` if it was read and does not match the block above it.
    pub error: Option<Error>,
}

/// A place of a sealed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealedPlace {
    /// The descriptor, or its attribute.
    Descriptor,
    /// A block of the Merkle tree. Level 0 is the one above the content.
    Tree {
        /// The level.
        level: usize,
        /// Number of the block in its level.
        block: u64,
    },
    /// Blocks of the content.
    Content,
}

/// The receiver of the parts of a check.
pub(crate) type Visit<'v> = dyn FnMut(SealedPart) + 'v;

impl Files {
    /// Checks all content of a sealed file, and its tree. Returns false if the file is not sealed.
    pub(crate) fn check_sealed(&self, ino: Ino, visit: &mut Visit<'_>) -> Result<bool> {
        let inode = self.nodes.inode(ino)?;
        let size = inode.head().size.get();
        let opened = self.verity(&inode).and_then(|found| match found {
            Some(descriptor) => self.sealed(&inode, descriptor).map(Some),
            None => Ok(None),
        });
        let sealed = match opened {
            Ok(Some(sealed)) => sealed,
            Ok(None) => return Ok(false),
            Err(error) if is_damage(&error) => {
                damaged(visit, SealedPlace::Descriptor, 0..size, Some(error));
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let root_hash = sealed.descriptor.root_hash.clone();
        match sealed.shape.levels() {
            0 => self.check_content(&sealed, 0, &root_hash, visit)?,
            levels => self.check_tree(&sealed, (levels - 1, 0), &root_hash, visit)?,
        }
        Ok(true)
    }

    /// Checks a block of the tree, by its level and number, and everything below it.
    fn check_tree(
        &self,
        sealed: &Sealed<'_>,
        (level, block): (usize, u64),
        wanted: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let (parameters, shape) = (&sealed.descriptor.parameters, &sealed.shape);
        let mut bytes = vec![0; parameters.block_bytes()];
        let read = self.read_past_end(sealed.inode, sealed.tree + shape.offset(level, block), &mut bytes);
        let error = match read {
            Ok(()) if parameters.hash(&bytes) == wanted => None,
            Ok(()) => {
                self.record_mismatch(sealed, level + 1, block);
                Some(None)
            }
            Err(error) if is_damage(&error) => Some(Some(error)),
            Err(error) => return Err(error),
        };
        if let Some(error) = error {
            let content = shape.content(level, block);
            let content = content.start..content.end.min(sealed.descriptor.data_bytes);
            damaged(visit, SealedPlace::Tree { level, block }, content, error);
            return Ok(());
        }
        let first = block * shape.arity();
        if level == 0 {
            return self.check_content(sealed, first, &bytes, visit);
        }
        let hashes = bytes.chunks_exact(parameters.algorithm.digest_bytes());
        (first..shape.blocks(level - 1))
            .zip(hashes)
            .try_for_each(|(child, hash)| self.check_tree(sealed, (level - 1, child), hash, visit))
    }

    /// Records that the volume has damage: readers of this block get an error.
    fn record_mismatch(&self, sealed: &Sealed<'_>, level: usize, block: u64) {
        let _ = self.mismatch::<()>(sealed, level, block);
    }

    /// Checks blocks of the content from `first` on against their hashes, at most up to the end of the file.
    fn check_content(
        &self,
        sealed: &Sealed<'_>,
        first: u64,
        hashes: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let parameters = &sealed.descriptor.parameters;
        let (block_bytes, size) = (parameters.block_bytes() as u64, sealed.descriptor.data_bytes);
        let per_run = (RUN_BYTES / block_bytes) as usize;
        let hashes: Vec<&[u8]> = hashes.chunks_exact(parameters.algorithm.digest_bytes()).collect();
        for (run, hashes) in hashes.chunks(per_run).enumerate() {
            let first = first + (run * per_run) as u64;
            let blocks = size.div_ceil(block_bytes).saturating_sub(first).min(hashes.len() as u64);
            if blocks == 0 {
                break;
            }
            let hashes = &hashes[..blocks as usize];
            // Where the run as a whole cannot be read, its blocks are read one by one.
            if self.check_blocks(sealed, first, hashes, visit).is_err() {
                for (block, hash) in (first..).zip(hashes) {
                    let Err(error) = self.check_blocks(sealed, block, &[hash], visit) else { continue };
                    if !is_damage(&error) {
                        return Err(error);
                    }
                    let start = block * block_bytes;
                    damaged(visit, SealedPlace::Content, start..size.min(start + block_bytes), Some(error));
                }
            }
        }
        Ok(())
    }

    /// Reads blocks of the content and checks each against its hash. After an error of reading, nothing has been told.
    fn check_blocks(
        &self,
        sealed: &Sealed<'_>,
        first: u64,
        hashes: &[&[u8]],
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let parameters = &sealed.descriptor.parameters;
        let (block_bytes, size) = (parameters.block_bytes() as u64, sealed.descriptor.data_bytes);
        let start = first * block_bytes;
        let end = (start + hashes.len() as u64 * block_bytes).min(size);
        // Zeroes follow the end of the file in its last block, whatever is on the device.
        let mut bytes = vec![0; hashes.len() * block_bytes as usize];
        self.read_past_end(sealed.inode, start, &mut bytes[..(end - start) as usize])?;
        for ((block, hash), bytes) in (first..).zip(hashes).zip(bytes.chunks_exact(block_bytes as usize)) {
            let content = block * block_bytes..size.min((block + 1) * block_bytes);
            match parameters.hash(bytes) == *hash {
                true => visit(SealedPart::Whole(content)),
                false => {
                    self.record_mismatch(sealed, 0, block);
                    damaged(visit, SealedPlace::Content, content, None);
                }
            }
        }
        Ok(())
    }
}

fn damaged(visit: &mut Visit<'_>, place: SealedPlace, content: Range<u64>, error: Option<Error>) {
    visit(SealedPart::Damaged(SealedDamage { place, content, error }));
}

/// Returns true if an error is a property of the volume, and not of the keys at hand.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Io { .. })
}
