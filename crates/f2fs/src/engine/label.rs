//! The volume label, which is stored in the superblock.

use zerocopy::FromBytes;

use super::{
    Engine,
    pending::{PendingSync, Then, Work},
    read_superblock,
};
use crate::{
    Place, Result,
    format::superblock::{self, raw},
    units::BlockAddr,
};

/// A label change that goes to both copies of the superblock.
pub(super) struct NewLabel {
    label: String,
    /// The superblock with the new label.
    bytes: Vec<u8>,
    /// Copies still to be written, the next one last. The valid copy is written after the other, so that one
    /// copy is intact at any time.
    copies: Vec<u8>,
}

impl Engine {
    /// Changes the label durably: after a power cut, the label is either the old or the new one. A torn
    /// sector is detected if superblocks have checksums. The label has at most 512 UTF-16 units and no NUL.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a label that is too long or has a NUL; those of [every
    /// change](Engine#errors).
    pub fn set_label(&mut self, label: &str) -> Result<()> {
        let pending = self.begin_set_label(label)?;
        self.complete(pending)
    }

    /// Begins to [change the label](Self::set_label).
    ///
    /// # Errors
    /// Those of [`set_label`](Self::set_label).
    pub fn begin_set_label(&mut self, label: &str) -> Result<Option<PendingSync>> {
        superblock::check_label(label)?;
        self.start()?;
        let (_, valid) = read_superblock(&**self.io().device(), self.io().device().geometry().size_bytes)?;
        let mut block = self.io().read_block(BlockAddr(valid.into()), Place::Superblock(valid))?.into_vec();
        let bytes = &mut block[superblock::OFFSET..][..superblock::BYTES];
        let raw = raw::Superblock::mut_from_bytes(bytes).expect("it has the struct's size");
        superblock::set_label(raw, label);
        superblock::seal(raw);
        let bytes = bytes.to_vec();
        self.write_label(NewLabel { label: label.into(), bytes, copies: vec![valid, 1 - valid] })
    }

    /// Writes the next copy of the superblock.
    pub(super) fn write_label(&mut self, mut new: NewLabel) -> Result<Option<PendingSync>> {
        let Some(copy) = new.copies.pop() else {
            self.disk_mut().set_label(new.label);
            return Ok(None);
        };
        if let Err(error) = self.write_copy(copy, &new.bytes) {
            self.read_label();
            return Err(error);
        }
        Ok(Some(self.pending(Work::Flush, Then::WriteLabel(new))))
    }

    fn write_copy(&self, copy: u8, bytes: &[u8]) -> Result<()> {
        let (addr, at) = (BlockAddr(copy.into()), Place::Superblock(copy));
        let mut block = self.io().read_block(addr, at)?;
        block[superblock::OFFSET..][..superblock::BYTES].copy_from_slice(bytes);
        self.io().write(addr, at, &block)
    }

    /// Takes the label from the copy of the superblock that counts, after a write or a flush has failed: the device may have
    /// written what it reports as failed. If no copy can be read, the volume refuses changes.
    pub(super) fn read_label(&mut self) {
        match read_superblock(&**self.io().device(), self.io().device().geometry().size_bytes) {
            Ok((superblock, _)) => self.disk_mut().set_label(superblock.label),
            Err(error) => {
                self.disk_mut().refuse_changes(format!("the superblock could not be read back: {error}"));
            }
        }
    }
}
