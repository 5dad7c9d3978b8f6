//! The volume's label, which lies in the superblock.

use zerocopy::FromBytes;

use super::{Volume, read_superblock};
use crate::{
    Place, Result,
    format::superblock::{self, raw},
    units::BlockAddr,
};

impl Volume {
    /// Changes the label, durably: after a power cut it is the old one or the new one (a torn sector shows where superblocks
    /// have checksums). It has at most 512 UTF-16 units, and no NUL.
    pub fn set_label(&mut self, label: &str) -> Result<()> {
        superblock::check_label(label)?;
        self.start()?;
        let (_, valid) = read_superblock(&**self.io.device(), u64::MAX)?;
        let mut block = self.io.read_block(BlockAddr(valid.into()), Place::Superblock(valid))?.into_vec();
        let bytes = &mut block[superblock::OFFSET..][..superblock::BYTES];
        let raw = raw::Superblock::mut_from_bytes(bytes).expect("it has the struct's size");
        superblock::set_label(raw, label);
        superblock::seal(raw);
        let new = bytes.to_vec();
        // One copy is whole at any time: the one that counts goes last.
        for copy in [1 - valid, valid] {
            let (addr, at) = (BlockAddr(copy.into()), Place::Superblock(copy));
            let mut block = self.io.read_block(addr, at)?;
            block[superblock::OFFSET..][..superblock::BYTES].copy_from_slice(&new);
            self.io.write(addr, at, &block)?;
            let flushed = self.io.flush();
            self.fail_on_error(flushed)?;
        }
        self.superblock.label = label.into();
        Ok(())
    }
}
