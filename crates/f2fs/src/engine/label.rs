//! The volume label, which is stored in the superblock.

use super::{
    Engine,
    pending::{PendingSync, Then, Work},
    read_superblock,
};
use crate::{
    Result,
    disk::{read_raw_superblock, superblock_copies},
    format::superblock,
};

/// A label change that goes to both copies of the superblock.
pub(super) struct NewLabel {
    label: String,
    /// Writes still to be done, the next one last: a copy and its content. The valid copy is written after the other, so that
    /// one copy is intact at any time.
    writes: Vec<(u8, Vec<u8>)>,
}

impl Engine {
    /// Changes the label durably: after a power cut, the label is either the old or the new one. The label has at most
    /// 512 UTF-16 units and no NUL.
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
        let mut raw = read_raw_superblock(&**self.io().device(), valid)?;
        superblock::set_label(&mut raw, label);
        superblock::seal(&mut raw);
        let mut writes = Vec::new();
        for copy in [1 - valid, valid] {
            let versions = superblock_copies::versions(self.io(), copy, &raw)?;
            writes.extend(versions.into_iter().map(|bytes| (copy, bytes)));
        }
        writes.reverse();
        self.write_label(NewLabel { label: label.into(), writes })
    }

    /// Does the next write of a change of the label.
    pub(super) fn write_label(&mut self, mut new: NewLabel) -> Result<Option<PendingSync>> {
        let Some((copy, bytes)) = new.writes.pop() else {
            self.disk_mut().set_label(new.label);
            return Ok(None);
        };
        if let Err(error) = superblock_copies::put(self.io(), copy, &bytes) {
            self.read_label();
            return Err(error);
        }
        Ok(Some(self.pending(Work::Flush, Then::WriteLabel(new))))
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
