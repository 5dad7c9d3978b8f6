//! Facts of every node in use, indexed by nid in little memory.
//!
//! A bitmap says which nids are in use; a sum for every 512 of them turns a nid into an index of dense
//! arrays. A node takes 18 bytes, an unused nid one bit.

use f2fs::{
    format::{FileType, nat::NatEntry},
    units::{BlockAddr, Ino, Nid},
};

use crate::bitmap::Bitmap;

/// Nids that share a sum.
const GROUP: usize = 512;

/// Maximum number of inodes that are returned together.
const INODES: usize = 1 << 14;

/// Facts of a node as bits.
pub mod fact {
    /// Code of the kind of file, of a checked inode.
    pub const KIND: u16 = 0x7;
    /// A parent names the node, or a directory entry names the inode.
    pub const REACHED: u16 = 0x8;
    /// The node has no usable block.
    pub const BROKEN: u16 = 0x10;
    /// The node's block was checked.
    pub const SEEN: u16 = 0x20;
    /// The inode is in the orphan list.
    pub const ORPHAN: u16 = 0x40;
    /// A finding makes the sums of the inode unreliable.
    pub const TAINTED: u16 = 0x80;
    /// The inode belongs to the volume and has no name: a quota file.
    pub const HIDDEN: u16 = 0x100;
    /// The inode's own fields are damaged.
    pub const INVALID: u16 = 0x200;
    /// The inode has a wrong checksum.
    pub const UNSEALED: u16 = 0x400;
    /// The node has no block any more, and becomes an empty node of addresses.
    pub const EMPTIED: u16 = 0x800;
    /// The footer of the node was damaged.
    pub const MENDED: u16 = 0x1000;
}

/// Facts of every node in use.
pub struct Table {
    present: Bitmap,
    sums: Vec<u32>,
    addr: Vec<u32>,
    ino: Vec<u32>,
    version: Vec<u8>,
    facts: Vec<u16>,
    /// Of an inode: i_blocks minus the blocks found. Of another node: its offset according to its parent.
    first: Vec<u32>,
    /// Of an inode: i_links minus the names found. Of another node: its offset according to its footer.
    second: Vec<u32>,
}

/// Index of a node in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(usize);

impl Table {
    /// Makes a table for nids below `end`.
    pub fn new(end: Nid) -> Table {
        Table {
            present: Bitmap::new(u64::from(end.0)),
            sums: Vec::new(),
            addr: Vec::new(),
            ino: Vec::new(),
            version: Vec::new(),
            facts: Vec::new(),
            first: Vec::new(),
            second: Vec::new(),
        }
    }

    /// Adds a node. Nids must ascend.
    pub fn push(&mut self, nid: Nid, entry: NatEntry, facts: u16) {
        self.fill_sums(nid.index());
        self.present.set(nid.index());
        self.addr.push(entry.addr.0);
        self.ino.push(entry.ino.0);
        self.version.push(entry.version);
        self.facts.push(facts);
    }

    /// Ends the additions.
    pub fn finish(&mut self) {
        self.fill_sums(self.present.bytes().len() * 8);
        self.first = vec![0; self.addr.len()];
        self.second = vec![0; self.addr.len()];
    }

    fn fill_sums(&mut self, nid: usize) {
        while self.sums.len() <= nid / GROUP {
            self.sums.push(u32::try_from(self.addr.len()).expect("nids have 32 bits"));
        }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.addr.len()
    }

    /// Finds a node.
    pub fn find(&self, nid: Nid) -> Option<Entry> {
        let at = nid.index();
        if !self.present.get(at) {
            return None;
        }
        let group = at / GROUP;
        let bytes = &self.present.bytes()[group * GROUP / 8..at / 8];
        let whole: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
        let partial = self.present.bytes()[at / 8] & !(0xFFu8 >> (at % 8));
        Some(Entry((self.sums[group] + whole + partial.count_ones()) as usize))
    }

    /// Finds an inode that is in use.
    pub fn find_inode(&self, ino: Ino) -> Option<Entry> {
        self.find(ino.into()).filter(|entry| self.ino(*entry) == ino)
    }

    /// Iterates over the nodes in the order of their nids.
    pub fn iter(&self) -> impl Iterator<Item = (Nid, Entry)> + '_ {
        self.iter_from(Nid(0))
    }

    /// Iterates over the nodes from a nid on, in the order of their nids.
    fn iter_from(&self, start: Nid) -> impl Iterator<Item = (Nid, Entry)> + '_ {
        let group = start.index() / GROUP;
        let first = self.sums.get(group).map_or(self.len(), |sum| *sum as usize);
        let skipped = group * GROUP / 8;
        let bytes = self.present.bytes().iter().enumerate().skip(skipped).filter(|(_, byte)| **byte != 0);
        let nids = bytes.flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & (0x80 >> bit) != 0).map(move |bit| Nid((at * 8 + bit) as u32))
        });
        nids.zip((first..).map(Entry)).filter(move |(nid, _)| *nid >= start)
    }

    /// Returns the next inodes from a nid on, in the order of their nids. A list of all would take much memory.
    pub fn inodes_from(&self, start: Nid) -> Vec<(Nid, Entry)> {
        let inodes = self.iter_from(start).filter(|(nid, entry)| self.ino(*entry) == Ino::from(*nid));
        inodes.take(INODES).collect()
    }

    /// Address of the node's block.
    pub fn addr(&self, entry: Entry) -> BlockAddr {
        BlockAddr(self.addr[entry.0])
    }

    /// Sets the address of the node's block.
    pub fn set_addr(&mut self, entry: Entry, addr: BlockAddr) {
        self.addr[entry.0] = addr.0;
    }

    /// Inode that the node belongs to.
    pub fn ino(&self, entry: Entry) -> Ino {
        Ino(self.ino[entry.0])
    }

    /// Sets the inode that the node belongs to.
    pub fn set_ino(&mut self, entry: Entry, ino: Ino) {
        self.ino[entry.0] = ino.0;
    }

    /// Version of the NAT entry.
    pub fn version(&self, entry: Entry) -> u8 {
        self.version[entry.0]
    }

    /// Returns true if the node has one of the facts.
    pub fn has(&self, entry: Entry, facts: u16) -> bool {
        self.facts[entry.0] & facts != 0
    }

    /// Adds facts.
    pub fn note(&mut self, entry: Entry, facts: u16) {
        self.facts[entry.0] |= facts;
    }

    /// Removes facts.
    pub fn forget(&mut self, entry: Entry, facts: u16) {
        self.facts[entry.0] &= !facts;
    }

    /// Kind of a checked inode.
    pub fn kind(&self, entry: Entry) -> Option<FileType> {
        FileType::from_dentry_code((self.facts[entry.0] & fact::KIND) as u8)
    }

    /// Sets the kind of a checked inode.
    pub fn set_kind(&mut self, entry: Entry, kind: FileType) {
        self.facts[entry.0] = self.facts[entry.0] & !fact::KIND | u16::from(kind.dentry_code());
    }

    /// Of an inode: i_blocks minus the blocks found so far.
    pub fn blocks_left(&self, entry: Entry) -> u32 {
        self.first[entry.0]
    }

    /// Subtracts blocks of an inode that were found; a negative number adds.
    pub fn take_blocks(&mut self, entry: Entry, blocks: u32) {
        self.first[entry.0] = self.first[entry.0].wrapping_sub(blocks);
    }

    /// Of an inode: i_links minus the names found so far.
    pub fn links_left(&self, entry: Entry) -> u32 {
        self.second[entry.0]
    }

    /// Subtracts names of an inode that were found.
    pub fn take_links(&mut self, entry: Entry, links: u32) {
        self.second[entry.0] = self.second[entry.0].wrapping_sub(links);
    }

    /// Of a node that is not an inode: its offset according to its parent.
    pub fn parent_offset(&self, entry: Entry) -> u32 {
        self.first[entry.0]
    }

    /// Sets the offset according to the parent.
    pub fn set_parent_offset(&mut self, entry: Entry, offset: u32) {
        self.first[entry.0] = offset;
    }

    /// Of a node that is not an inode: its offset according to its footer.
    pub fn own_offset(&self, entry: Entry) -> u32 {
        self.second[entry.0]
    }

    /// Sets the offset according to the footer.
    pub fn set_own_offset(&mut self, entry: Entry, offset: u32) {
        self.second[entry.0] = offset;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_their_numbers() {
        let mut table = Table::new(Nid(5000));
        let nids = [3, 4, 9, 511, 512, 513, 1500, 4999];
        for nid in nids {
            let entry = NatEntry { version: 1, ino: Ino(nid), addr: BlockAddr(nid * 10) };
            table.push(Nid(nid), entry, 0);
        }
        table.finish();
        for nid in 0..5000 {
            let found = table.find(Nid(nid)).map(|entry| table.addr(entry).0);
            assert_eq!(found, nids.contains(&nid).then_some(nid * 10));
        }
        assert_eq!(table.find(Nid(u32::MAX)), None);
        let listed: Vec<u32> = table.iter().map(|(nid, entry)| (nid.0, table.ino(entry).0).0).collect();
        assert_eq!(listed, nids);
        for start in 0..5000 {
            let rest: Vec<u32> =
                table.inodes_from(Nid(start)).iter().map(|(_, entry)| table.ino(*entry).0).collect();
            assert_eq!(rest, nids.iter().copied().filter(|nid| *nid >= start).collect::<Vec<_>>());
        }
    }
}
