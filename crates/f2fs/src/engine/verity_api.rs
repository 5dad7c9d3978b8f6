//! The public operations on sealed files (fs-verity).

use super::{
    Engine,
    transaction::{Step, Transaction},
};
use crate::{
    Result,
    format::verity::{self, Descriptor, Location, Parameters, Shape},
    units::Ino,
};

/// Bytes of a tree that are made in one step.
const STEP_BYTES: usize = 1 << 20;

impl Engine {
    /// Returns the descriptor of a sealed file, which has its root hash and its digest; `None` if the file is not sealed.
    /// The content is checked when it is read.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the descriptor is damaged; those of [reading](Engine#errors).
    pub fn verity(&self, ino: Ino) -> Result<Option<Descriptor>> {
        self.files().verity(&*self.nodes().inode(ino)?)
    }
}

impl Transaction<'_> {
    /// Seals a regular file: makes its Merkle tree, from which on the content is checked when it is read, and can no longer
    /// be changed. The caller makes sure that the file is not open for writing. Returns the descriptor.
    ///
    /// The tree is made in several steps. After an error or a power cut the file is not sealed, and the next change of its
    /// size frees what there is of the tree.
    ///
    /// # Errors
    /// [`Error::Exists`](crate::Error::Exists) for a sealed file; [`Error::Invalid`](crate::Error::Invalid) for impossible
    /// parameters; [`Error::Unsupported`](crate::Error::Unsupported) without the feature, and for a compressed file;
    /// [`Error::NotPermitted`](crate::Error::NotPermitted) for an append-only or immutable file; those of
    /// [`write`](Self::write).
    pub fn seal(mut self, ino: Ino, parameters: &Parameters) -> Result<Descriptor> {
        let mut step = self.step()?;
        step.files().check_sealing(ino, parameters)?;
        let sealed = Self::make_tree(&mut step, ino, parameters);
        if sealed.is_err() {
            step.renew()?;
            step.files().cut_tree(ino)?;
        }
        sealed
    }

    fn make_tree(step: &mut Step<'_>, ino: Ino, parameters: &Parameters) -> Result<Descriptor> {
        let data_bytes = step.engine().inode(ino)?.head().size.get();
        let shape = Shape::new(parameters, data_bytes).expect("it was checked");
        let tree = verity::tree_offset(data_bytes).expect("it was checked");
        let digest_bytes = parameters.algorithm.digest_bytes();
        let mut root_hash = vec![0; digest_bytes];
        if shape.levels() == 0 && data_bytes > 0 {
            root_hash = step.files().hash_blocks(ino, parameters, 0, 1)?;
        }
        let per_step = (STEP_BYTES / parameters.block_bytes()) as u64;
        // The hashes of the level below: 32 or 64 bytes for each of its blocks.
        let mut below: Vec<u8> = Vec::new();
        for level in 0..shape.levels() {
            let mut hashes = Vec::new();
            for block in (0..shape.blocks(level)).step_by(per_step as usize) {
                step.renew()?;
                let count = per_step.min(shape.blocks(level) - block);
                let (first, most) = (block * shape.arity(), count * shape.arity());
                let mut bytes = match level {
                    0 => step.files().hash_blocks(ino, parameters, first, most)?,
                    _ => {
                        let start = first as usize * digest_bytes;
                        let end = below.len().min(start + most as usize * digest_bytes);
                        below[start..end].to_vec()
                    }
                };
                // Zeroes follow the last hash.
                bytes.resize(count as usize * parameters.block_bytes(), 0);
                step.files().write_beyond(ino, tree + shape.offset(level, block), &bytes)?;
                hashes.extend(
                    bytes.chunks_exact(parameters.block_bytes()).flat_map(|bytes| parameters.hash(bytes)),
                );
            }
            below = hashes;
        }
        if shape.levels() > 0 {
            root_hash = below;
        }
        let descriptor = Descriptor { parameters: parameters.clone(), data_bytes, root_hash };
        let location = Location { offset: tree + shape.bytes(), bytes: verity::DESCRIPTOR_BYTES as u32 };
        step.renew()?;
        step.files().write_beyond(ino, location.offset, &descriptor.to_bytes())?;
        step.names().store_verity(ino, &location)?;
        Ok(descriptor)
    }
}
