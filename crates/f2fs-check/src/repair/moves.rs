//! Blocks that move, because the old checkpoint uses their places.

use std::collections::{BTreeMap, BTreeSet};

use f2fs::{
    Error, Place, Result,
    format::{
        block_size::NODE_FOOTER_BYTES,
        nat::NatEntry,
        node::{NodeFooter, NodeFormat},
        summary::Owner,
    },
    units::{BlockAddr, Ino, Nid},
};

use super::{
    census::{Census, Moving},
    space::Space,
    tables::Tables,
};
use crate::{
    Slot,
    inodes::EXTENT,
    reader::parse_node,
    segments::{Content, Contents},
};

/// Byte offsets of the marks, the version and the next block in a footer.
const FOOTER_FLAG: usize = 8;
const FOOTER_VERSION: usize = 12;
const FOOTER_NEXT: usize = 20;
/// Marks of roll-forward in the footer.
const RECOVERY_MARKS: u8 = 0x6;

/// The blocks at their new places.
#[derive(Debug, Default)]
pub struct Moved {
    /// The blocks.
    pub blocks: BTreeMap<BlockAddr, Vec<u8>>,
    /// NAT entries of the nodes that moved.
    pub nat: BTreeMap<Nid, NatEntry>,
}

/// Moves blocks to free places, and the nodes that name them with them.
///
/// # Errors
/// [`Error::NoSpace`] if there is no free place; [`Error::Io`] if a block cannot be read.
pub fn apply(new: &Tables, moving: &[Moving], census: &mut Census, space: &mut Space<'_>) -> Result<Moved> {
    let mut nodes: BTreeSet<Nid> = BTreeSet::new();
    let mut data: Vec<(Slot, Ino, BlockAddr)> = Vec::new();
    for moving in moving {
        match *moving {
            Moving::Node(nid) => drop(nodes.insert(nid)),
            Moving::Data(slot, ino, addr) => {
                nodes.insert(slot.nid);
                // The inode may be freed; the next round frees its nodes.
                if new.geometry.in_main(new.nat_entry(ino.into()).addr) {
                    nodes.insert(ino.into());
                }
                data.push((slot, ino, addr));
            }
        }
    }
    let mut moves = Moves { new, census, space, moved: Moved::default() };
    let mut contents: BTreeMap<Nid, Vec<u8>> = BTreeMap::new();
    for nid in &nodes {
        contents.insert(*nid, moves.read(new.nat_entry(*nid).addr)?);
    }
    for (slot, ino, addr) in data {
        let to = moves.take(Content::Data)?;
        let content = moves.read(addr)?;
        moves.moved.blocks.insert(to, content);
        let version = new.nat_entry(slot.nid).version;
        let holder = contents.get_mut(&slot.nid).expect("the holder moves, too");
        let starts_at = starts_at(new, slot.nid, holder);
        holder[slot.at..slot.at + 4].copy_from_slice(&to.0.to_le_bytes());
        let offset = u16::try_from((slot.at - starts_at) / 4).expect("a node has a few thousand addresses");
        let owner = Owner { nid: slot.nid, version, offset };
        moves.census.relocate(addr, to, Content::Data, owner);
        // The extent may name the old place.
        if let Some(inode) = contents.get_mut(&ino.into()) {
            inode[EXTENT..EXTENT + 12].fill(0);
        }
    }
    for (nid, bytes) in contents {
        moves.node(nid, bytes)?;
    }
    Ok(moves.moved)
}

/// Byte offset of the first address in a node.
fn starts_at(new: &Tables, nid: Nid, bytes: &[u8]) -> usize {
    let footer = NodeFooter::of(bytes);
    if !footer.is_inode() {
        return 0;
    }
    let (inode, _) = parse_node(NodeFormat::of(&new.superblock), bytes, nid, BlockAddr::NULL);
    inode.map_or(0, |inode| inode.layout().addrs_at())
}

struct Moves<'a, 'b> {
    new: &'a Tables,
    census: &'a mut Census,
    space: &'a mut Space<'b>,
    moved: Moved,
}

impl Moves<'_, '_> {
    fn take(&mut self, content: Content) -> Result<BlockAddr> {
        let census = &*self.census;
        let found = self.space.take(content, &|section| census.section_content(section));
        found.ok_or_else(|| Error::no_space(self.new.geometry.block_size, 1, 0))
    }

    fn read(&self, addr: BlockAddr) -> Result<Vec<u8>> {
        Ok(self.new.io.read_block(addr, Place::Block(addr))?.into_vec())
    }

    /// Puts a node to a new place.
    fn node(&mut self, nid: Nid, bytes: Vec<u8>) -> Result<()> {
        let entry = self.new.nat_entry(nid);
        let to = self.take(Content::Node)?;
        let version = self.new.pack.checkpoint.node_version();
        let block = beside_log(NodeFormat::of(&self.new.superblock), nid, to, bytes, version);
        self.moved.blocks.insert(to, block);
        self.moved.nat.insert(nid, NatEntry { addr: to, ..entry });
        self.census.relocate(entry.addr, to, Content::Node, Owner { nid, version: 0, offset: 0 });
        Ok(())
    }
}

/// Returns the block of a node that gets a place which no log has: without marks of roll-forward and without a next block, since
/// roll-forward follows the log. It has the version of the checkpoint, as any node that was written after it: the newest version
/// of a node counts.
pub fn beside_log(
    format: NodeFormat,
    nid: Nid,
    addr: BlockAddr,
    mut bytes: Vec<u8>,
    version: u64,
) -> Vec<u8> {
    let footer = bytes.len() - NODE_FOOTER_BYTES;
    bytes[footer + FOOTER_FLAG] &= !RECOVERY_MARKS;
    bytes[footer + FOOTER_VERSION..footer + FOOTER_NEXT].copy_from_slice(&version.to_le_bytes());
    bytes[footer + FOOTER_NEXT..].fill(0);
    let (node, _) = parse_node(format, &bytes, nid, addr);
    node.map_or(bytes, |node| node.bytes().to_vec())
}
