//! The node address table: the address of each node.
//!
//! An entry has 9 bytes: version (u8), ino (le32), block address (le32). The table has two copies that
//! alternate segment by segment. The checkpoint's NAT bitmap says which copy of each block is valid.

use super::BlockSize;
use crate::units::{BlockAddr, Ino, Nid};

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 9;

/// Address and owner of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NatEntry {
    /// Counts how often the nid was freed; the summaries of the node's blocks carry the same number.
    pub version: u8,
    /// The inode that the node belongs to.
    pub ino: Ino,
    /// The node's block; [`BlockAddr::NULL`] if the nid is free.
    pub addr: BlockAddr,
}

impl NatEntry {
    /// Returns true if the nid is unused.
    #[must_use]
    pub const fn is_free(self) -> bool {
        self.addr.0 == 0
    }

    /// The entry in its 9 bytes.
    #[must_use]
    pub fn parse(bytes: &[u8; ENTRY_BYTES]) -> NatEntry {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        NatEntry { version: bytes[0], ino: Ino(word(1)), addr: BlockAddr(word(5)) }
    }

    /// The 9 bytes of the entry.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0] = self.version;
        bytes[1..5].copy_from_slice(&self.ino.0.to_le_bytes());
        bytes[5..9].copy_from_slice(&self.addr.0.to_le_bytes());
        bytes
    }
}

/// Returns the block of the table and the index in it of a nid's entry.
#[must_use]
pub fn position(nid: Nid, size: BlockSize) -> (u32, usize) {
    let per_block = u32::try_from(size.nat_entries()).expect("a block has few entries");
    (nid.0 / per_block, (nid.0 % per_block) as usize)
}

/// Entry `index` of a block of the table.
#[must_use]
pub fn entry(block: &[u8], index: usize) -> NatEntry {
    NatEntry::parse(slot(index, block).try_into().expect("an entry's bytes"))
}

/// Stores entry `index` of a block of the table.
pub fn set_entry(block: &mut [u8], index: usize, entry: NatEntry) {
    block[index * ENTRY_BYTES..][..ENTRY_BYTES].copy_from_slice(&entry.to_bytes());
}

fn slot(index: usize, block: &[u8]) -> &[u8] {
    &block[index * ENTRY_BYTES..][..ENTRY_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_at_byte_five() {
        let bytes = [9, 0x44, 0x33, 0x22, 0x11, 0x88, 0x77, 0x66, 0x55];
        let entry = NatEntry::parse(&bytes);
        assert_eq!((entry.version, entry.ino, entry.addr), (9, Ino(0x1122_3344), BlockAddr(0x5566_7788)));
        assert_eq!(entry.to_bytes(), bytes);
    }

    #[test]
    fn entries_do_not_cross_blocks() {
        assert_eq!(position(Nid(454), BlockSize::B4K), (0, 454));
        assert_eq!(position(Nid(455), BlockSize::B4K), (1, 0));
        assert_eq!(position(Nid(1820), BlockSize::B16K), (1, 0));
        let mut block = vec![0; 4096];
        let last = NatEntry { version: 1, ino: Ino(2), addr: BlockAddr(3) };
        set_entry(&mut block, 454, last);
        assert_eq!(entry(&block, 454), last);
        assert!(entry(&block, 453).is_free());
    }
}
