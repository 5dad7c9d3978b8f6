//! The public operations on sealed files (fs-verity).

use std::{mem, ops::Range};

use super::{
    Engine,
    transaction::{Step, Transaction},
};
use crate::{
    Error, Result,
    files::{Files, SealedPart},
    format::verity::{self, Descriptor, Location, Parameters, Shape},
    units::Ino,
};

/// Bytes of content, or of a level of the tree, that are hashed in one step; a multiple of every block of a tree.
const STEP_HASHED_BYTES: u64 = 4 << 20;

impl Engine {
    /// Returns the descriptor of a sealed file, which has its root hash and its digest; `None` if the file is not sealed.
    /// The content is checked when it is read.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the descriptor is damaged; those of [reading](Engine#errors).
    pub fn verity(&self, ino: Ino) -> Result<Option<Descriptor>> {
        self.files().verity(&*self.nodes().inode(ino)?)
    }

    /// Reads from the Merkle tree of a sealed file as it is stored, unchecked, at most up to its end. Returns the number of
    /// bytes.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] for a file that is not sealed; those of [`verity`](Self::verity).
    pub fn read_verity_tree(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.files().read_tree(&*self.nodes().inode(ino)?, offset, buf)
    }

    /// Checks all content of a sealed file and its Merkle tree, from the root hash down, and tells each part to `visit`:
    /// ranges of the content that match, and each damaged place once. What is below a damaged block of the tree cannot be
    /// checked. Returns false if the file is not sealed.
    ///
    /// # Errors
    /// Errors of the keys of an encrypted file, as for [`require_key`](Self::require_key). Damage is told to `visit`; but
    /// an inode that cannot be read is an error.
    pub fn check_sealed(&self, ino: Ino, mut visit: impl FnMut(SealedPart)) -> Result<bool> {
        self.files().check_sealed(ino, &mut visit)
    }

    /// Begins to seal a regular file, of which the caller makes sure that it does not change meanwhile. The parts follow by
    /// [`Transaction::seal_part`]; `signature` is that of the digest, or empty.
    ///
    /// # Errors
    /// [`Error::Exists`](crate::Error::Exists) for a sealed file; [`Error::Invalid`](crate::Error::Invalid) for impossible
    /// parameters and a signature that is too long; [`Error::Unsupported`](crate::Error::Unsupported) without the feature,
    /// and for a compressed file; [`Error::NotPermitted`](crate::Error::NotPermitted) for an append-only or immutable file;
    /// [`Error::FileTooLarge`](crate::Error::FileTooLarge) if the tree has no place; those of [reading](Engine#errors).
    pub fn begin_sealing(&self, ino: Ino, parameters: &Parameters, signature: &[u8]) -> Result<Sealing> {
        self.files().check_sealing(ino, parameters, signature)?;
        let data_bytes = self.inode(ino)?.head().size.get();
        let shape = Shape::new(parameters, data_bytes).ok_or(Error::FileTooLarge)?;
        let tree = verity::tree_offset(data_bytes).ok_or(Error::FileTooLarge)?;
        Ok(Sealing {
            ino,
            parameters: parameters.clone(),
            signature: signature.to_vec(),
            data_bytes,
            shape,
            tree,
            level: 0,
            block: 0,
            hashes: Vec::new(),
        })
    }

    /// Hashes at most 4 MiB for the next [part](Transaction::seal_part), and returns true if the part is complete. A caller who
    /// shares the volume lets others have it in between, and changes it only for the part itself, which has no hashing left to
    /// do then.
    ///
    /// # Errors
    /// Those of [`read`](Self::read). The caller [gives the sealing up](Transaction::give_up_sealing).
    pub fn hash_part(&self, sealing: &mut Sealing) -> Result<bool> {
        sealing.hash_step(self.files())
    }
}

/// A file whose Merkle tree is being made.
#[derive(Debug)]
pub struct Sealing {
    ino: Ino,
    parameters: Parameters,
    signature: Vec<u8>,
    data_bytes: u64,
    shape: Shape,
    /// Offset of the tree in the file, in bytes.
    tree: u64,
    /// The next block of the tree.
    level: usize,
    block: u64,
    /// The first hashes of those that the next part stores.
    hashes: Vec<u8>,
}

impl Sealing {
    /// Bytes of content that have been hashed.
    #[must_use]
    pub fn hashed_bytes(&self) -> u64 {
        match self.level {
            0 => self.data_bytes.min(self.shape.content(0, self.block).start),
            _ => self.data_bytes,
        }
    }

    /// Number of blocks of the tree in the next part.
    fn part_blocks(&self) -> u64 {
        let block_bytes = self.parameters.block_bytes() as u64;
        let most = STEP_HASHED_BYTES / (self.shape.arity() * block_bytes);
        most.clamp(1, self.shape.blocks(self.level) - self.block)
    }

    /// Returns the bytes of the file whose hashes the next part stores; if the tree is complete, those of its root.
    fn part(&self) -> Range<u64> {
        if self.level == self.shape.levels() {
            return self.below(self.level, 0..1);
        }
        let (arity, end) = (self.shape.arity(), self.block + self.part_blocks());
        self.below(self.level, self.block * arity..end * arity)
    }

    /// Hashes one step of the next part, and returns true if that was the last.
    fn hash_step(&mut self, files: &Files) -> Result<bool> {
        let (part, digest_bytes) = (self.part(), self.parameters.algorithm.digest_bytes());
        if part.is_empty() {
            // The root hash of an empty file.
            self.hashes = vec![0; digest_bytes];
            return Ok(true);
        }
        let hashed = self.hashes.len() / digest_bytes * self.parameters.block_bytes();
        let start = part.start + hashed as u64;
        let end = part.end.min(start + STEP_HASHED_BYTES);
        self.hashes.extend(files.hash_range(self.ino, &self.parameters, start..end)?);
        Ok(end == part.end)
    }

    /// Makes the next part of the tree, or stores the descriptor behind it.
    fn advance(&mut self, step: &mut Step<'_>) -> Result<Option<Descriptor>> {
        // Its attributes may have changed since the last part.
        step.engine().files().check_sealing(self.ino, &self.parameters, &self.signature)?;
        if (self.level, self.block) == (0, 0) {
            // What is left of an earlier sealing would be neither content nor tree.
            step.files().finish_truncation(self.ino)?;
        }
        while !self.hash_step(step.engine().files())? {}
        let mut hashes = mem::take(&mut self.hashes);
        if self.level == self.shape.levels() {
            return self.store_descriptor(step, hashes).map(Some);
        }
        let count = self.part_blocks();
        // Zeroes follow the last hash.
        hashes.resize(count as usize * self.parameters.block_bytes(), 0);
        step.files().write_beyond(
            self.ino,
            self.tree + self.shape.offset(self.level, self.block),
            &hashes,
        )?;
        self.block += count;
        if self.block == self.shape.blocks(self.level) {
            (self.level, self.block) = (self.level + 1, 0);
        }
        Ok(None)
    }

    /// Returns the bytes of the file that have blocks of the level below this one, which may be the content. The blocks
    /// may pass the end of the level.
    fn below(&self, level: usize, blocks: Range<u64>) -> Range<u64> {
        let block_bytes = self.parameters.block_bytes() as u64;
        match level.checked_sub(1) {
            None => blocks.start * block_bytes..self.data_bytes.min(blocks.end * block_bytes),
            Some(below) => {
                let end = blocks.end.min(self.shape.blocks(below));
                let start = self.tree + self.shape.offset(below, blocks.start);
                start..start + (end - blocks.start) * block_bytes
            }
        }
    }

    fn store_descriptor(&self, step: &mut Step<'_>, root_hash: Vec<u8>) -> Result<Descriptor> {
        let descriptor = Descriptor {
            parameters: self.parameters.clone(),
            data_bytes: self.data_bytes,
            root_hash,
            signature: self.signature.clone(),
        };
        let stored = descriptor.to_stored();
        let location = Location { offset: self.tree + self.shape.bytes(), bytes: stored.len() as u32 };
        step.files().write_beyond(self.ino, location.offset, &stored)?;
        step.names().store_verity(self.ino, &location)?;
        Ok(descriptor)
    }
}

impl Transaction<'_> {
    /// Seals a regular file: makes its Merkle tree, from which on the content is checked when it is read, and can no longer
    /// be changed. The caller makes sure that the file is not open for writing. `signature` is that of the digest, or
    /// empty. Returns the descriptor.
    ///
    /// The tree is made in several steps. After an error or a power cut the file is not sealed, and its next change frees
    /// what there is of the tree.
    ///
    /// # Errors
    /// Those of [`Engine::begin_sealing`] and of [`write`](Self::write).
    pub fn seal(mut self, ino: Ino, parameters: &Parameters, signature: &[u8]) -> Result<Descriptor> {
        let mut step = self.step()?;
        let mut sealing = step.engine().begin_sealing(ino, parameters, signature)?;
        loop {
            if let Some(descriptor) = Self::advance(&mut step, &mut sealing)? {
                return Ok(descriptor);
            }
            step.renew()?;
        }
    }

    /// Does the next part of sealing a file, which begins with hashing unless [`hash_part`](Engine::hash_part) has done that.
    /// Returns the descriptor after the last part; until then the file is not sealed.
    ///
    /// # Errors
    /// Those of [`write`](Self::write). What there is of the tree is freed then, and the sealing has ended.
    pub fn seal_part(mut self, sealing: &mut Sealing) -> Result<Option<Descriptor>> {
        Self::advance(&mut self.step()?, sealing)
    }

    /// Ends the sealing of a file before its last part, and frees what there is of the tree. Blocks that are reserved past the
    /// end stay if no tree was begun.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn give_up_sealing(mut self, sealing: &Sealing) -> Result<()> {
        self.step()?.files().finish_truncation(sealing.ino)
    }

    fn advance(step: &mut Step<'_>, sealing: &mut Sealing) -> Result<Option<Descriptor>> {
        let done = sealing.advance(step);
        if done.is_err() {
            // What this cannot free, the next change of the file frees. The first error tells more.
            let _ = step.renew().and_then(|()| step.files().finish_truncation(sealing.ino));
        }
        done
    }
}
