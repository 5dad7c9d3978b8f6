//! Changes of nodes and directory blocks, applied to an overlay.

use std::collections::{BTreeMap, BTreeSet};

use f2fs::{
    Error, Place, Result,
    format::{
        FileType,
        checkpoint::RESERVED_NIDS,
        inode::inline,
        nat::{self, NatEntry},
        node::{NodeBlock, NodeFooter, NodeFormat},
    },
    units::{BlockAddr, Ino, Nid},
};

use super::{
    moves::beside_log,
    space::Space,
    tables::Tables,
    transfer::{Changes, State},
};
use crate::{
    Fix, NewBlock, Slot,
    bitmap::Bitmap,
    mend::{self, Mended},
    reader::parse_node,
    segments::Content,
    segments::{Contents, Segments},
};

/// Applies the changes of nodes and blocks to a state in place. Returns the changes of its tables.
///
/// # Errors
/// [`Error::NoSpace`](f2fs::Error::NoSpace) if a new block finds no place; errors of the device.
pub fn apply(state: &State, fixes: &[Fix], segments: &Segments, used: &Bitmap) -> Result<Changes> {
    let tables = Tables::read(state.clone())?;
    let mut edits = Edits {
        format: NodeFormat::of(&tables.superblock),
        space: Space::new(tables.geometry, used, segments.in_use(), &tables.pack.checkpoint.logs),
        tables,
        segments,
        changes: Changes::default(),
        nodes: BTreeMap::new(),
        unsealed: BTreeSet::new(),
        footers: BTreeSet::new(),
        free_nids: Nid(0),
    };
    for fix in fixes {
        edits.note(fix);
    }
    for fix in fixes {
        match fix {
            Fix::Direct { nid, ino, offset, kind } => edits.make_node(*nid, *ino, *offset, *kind)?,
            Fix::Inode(ino, bytes) => edits.put_node((*ino).into(), *ino, bytes)?,
            _ => {}
        }
    }
    // The entries of the NAT have the addresses of the nodes.
    let nat = edits.changes.nat.clone();
    edits.tables.pack.override_nat(&nat);
    for fix in fixes {
        edits.apply(fix)?;
    }
    edits.finish()?;
    Ok(edits.changes)
}

struct Edits<'a> {
    tables: Tables,
    format: NodeFormat,
    segments: &'a Segments,
    space: Space<'a>,
    changes: Changes,
    /// Changed nodes.
    nodes: BTreeMap<Nid, Box<[u8]>>,
    /// Inodes whose checksum was wrong.
    unsealed: BTreeSet<Nid>,
    /// Nodes whose footers were wrong.
    footers: BTreeSet<Nid>,
    /// The nid from which the search for a free one goes on.
    free_nids: Nid,
}

impl Edits<'_> {
    /// Collects the changes of the tables.
    fn note(&mut self, fix: &Fix) {
        let changes = &mut self.changes;
        match *fix {
            Fix::Nat { nid, ino, addr } => {
                let version = self.tables.nat_entry(nid).version;
                changes.nat.insert(nid, NatEntry { version, ino, addr });
            }
            Fix::Free(nid) => self.free(nid),
            Fix::Summary(segment) => drop(changes.summaries.insert(segment)),
            Fix::MoveOut { segment, content, .. } => drop(changes.leaving.insert(segment, content)),
            Fix::Orphan(ino) => drop(changes.orphans.insert(ino)),
            Fix::NoOrphan(ino) => drop(changes.no_orphans.insert(ino)),
            _ => {}
        }
    }

    fn free(&mut self, nid: Nid) {
        let version = self.tables.nat_entry(nid).version.wrapping_add(1);
        self.changes.nat.insert(nid, NatEntry { version, ino: Ino(0), addr: BlockAddr::NULL });
    }

    fn apply(&mut self, fix: &Fix) -> Result<()> {
        match fix {
            Fix::Footer { nid, ino, offset } => {
                let kind = self.kind(*ino);
                self.footers.insert(*nid);
                if let Some(bytes) = self.node(*nid) {
                    let stored = NodeFooter::of(bytes);
                    // The log of a node follows from the mark, and Linux rolls only the warm one forward.
                    let cold = kind.map_or(stored.cold, |kind| kind != FileType::Directory);
                    NodeFooter { nid: *nid, ino: *ino, offset: *offset, cold, ..stored }.put(bytes);
                }
            }
            Fix::Node(slot, bytes) if bytes.is_empty() => {
                self.unsealed.insert(slot.nid);
                self.node(slot.nid);
            }
            Fix::Node(slot, bytes) | Fix::InlineData(slot, bytes) => self.put(*slot, bytes),
            Fix::Data(addr, at, bytes) => {
                let mut block = self.tables.io.read_block(*addr, Place::Block(*addr))?;
                block[*at..*at + bytes.len()].copy_from_slice(bytes);
                self.tables.io.write(*addr, Place::Block(*addr), &block)?;
            }
            Fix::Block(slot, content) => {
                let content = match content {
                    NewBlock::Copy(addr) => self.tables.io.read_block(*addr, Place::Block(*addr))?.into_vec(),
                    NewBlock::Bytes(bytes) => bytes.clone(),
                };
                let to = self.take(Content::Data)?;
                self.tables.io.write(to, Place::Block(to), &content)?;
                self.put(*slot, &to.0.to_le_bytes());
            }
            Fix::Indirect { slot, ino, offset } => self.make_indirect(*slot, *ino, *offset)?,
            Fix::Mend(ino, kind) => {
                let nid = Nid::from(*ino);
                let format = self.format;
                let Some(bytes) = self.node(nid) else { return Ok(()) };
                match mend::mend(bytes, format, *ino, *kind) {
                    Mended::Whole => {}
                    Mended::WithoutSize => self.changes.resized_inodes += 1,
                    Mended::Lost => {
                        self.nodes.remove(&nid);
                        self.free(nid);
                        self.changes.freed_inodes += 1;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a free block.
    fn take(&mut self, wanted: Content) -> Result<BlockAddr> {
        let segments = self.segments;
        let to = self.space.take(wanted, &|section| segments.section_content(section));
        to.ok_or_else(|| Error::no_space(self.tables.geometry.block_size, 1, 0))
    }

    /// Makes a node without children, and names it at a place in its parent.
    fn make_indirect(&mut self, slot: Slot, ino: Ino, offset: u32) -> Result<()> {
        let nid = self.free_nid().ok_or_else(|| Error::Invalid("the NAT has no free entry".into()))?;
        let kind = self.kind(ino).unwrap_or(FileType::Regular);
        self.make_node(nid, ino, offset, kind)?;
        self.put(slot, &nid.0.to_le_bytes());
        Ok(())
    }

    /// The kind of an inode, by its mode.
    fn kind(&mut self, ino: Ino) -> Option<FileType> {
        let bytes = self.node(ino.into())?;
        FileType::from_mode(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Makes an empty node, in a free block.
    fn make_node(&mut self, nid: Nid, ino: Ino, offset: u32, kind: FileType) -> Result<()> {
        self.put_node(nid, ino, NodeBlock::new(self.format, nid, ino, offset, kind).bytes())
    }

    /// Puts a node into a free block.
    fn put_node(&mut self, nid: Nid, ino: Ino, bytes: &[u8]) -> Result<()> {
        let addr = self.take(Content::Node)?;
        let version = self.tables.pack.checkpoint.node_version();
        let bytes = beside_log(self.format, nid, addr, bytes.to_vec(), version);
        self.tables.io.write(addr, Place::Node(nid, addr), &bytes)?;
        let version = self.tables.nat_entry(nid).version;
        self.changes.nat.insert(nid, NatEntry { version, ino, addr });
        Ok(())
    }

    /// The next free nid.
    fn free_nid(&mut self) -> Option<Nid> {
        let size = self.tables.geometry.block_size;
        let end = self.tables.geometry.nids_end();
        while self.free_nids < end {
            let (index, first) = nat::position(self.free_nids, size);
            let block = self.tables.nat_block(index)?;
            for slot in first..size.nat_entries() {
                let nid = self.free_nids;
                self.free_nids = Nid(nid.0 + 1);
                let is_free = nat::entry(&block, slot).is_free() && self.tables.nat_entry(nid).is_free();
                if nid.0 >= RESERVED_NIDS && nid < end && is_free && !self.changes.nat.contains_key(&nid) {
                    return Some(nid);
                }
            }
        }
        None
    }

    fn put(&mut self, slot: Slot, bytes: &[u8]) {
        if let Some(node) = self.node(slot.nid) {
            if let Some(part) = node.get_mut(slot.at..slot.at + bytes.len()) {
                part.copy_from_slice(bytes);
            }
        }
    }

    /// The block of a node, for changes; `None` for a node that is freed.
    fn node(&mut self, nid: Nid) -> Option<&mut Box<[u8]>> {
        if !self.nodes.contains_key(&nid) {
            let addr = self.tables.nat_entry(nid).addr;
            if !self.tables.geometry.in_main(addr) {
                return None;
            }
            let bytes = self.tables.io.read_block(addr, Place::Node(nid, addr)).ok()?;
            self.nodes.insert(nid, bytes);
        }
        self.nodes.get_mut(&nid)
    }

    /// Returns true if an inode, whose checksum is wrong, has content that nothing confirms. A damaged footer explains the
    /// checksum, unless the content reaches into its sector.
    fn has_doubtful_content(&self, inode: &NodeBlock) -> bool {
        let end = inode.layout().inline_range().start as u64 + inode.head().size.get();
        let footer_sector = (inode.bytes().len() - block::ATOMIC_BYTES) as u64;
        let is_explained = self.footers.contains(&inode.nid()) && end <= footer_sector;
        self.unsealed.contains(&inode.nid())
            && inode.has_inline(inline::DATA)
            && inode.has_inline(inline::DATA_EXIST)
            && !is_explained
    }

    /// Writes the changed nodes to their places in the overlay, inodes with their checksum.
    fn finish(&mut self) -> Result<()> {
        for (nid, bytes) in std::mem::take(&mut self.nodes) {
            let addr = self.tables.nat_entry(nid).addr;
            let (node, wrong_checksum) = parse_node(self.format, &bytes, nid, addr);
            // Restored fields may bring the checksum back; then the content and the other fields are right.
            if wrong_checksum.is_some() && self.unsealed.contains(&nid) {
                let has_doubtful_content = node.as_ref().is_ok_and(|inode| self.has_doubtful_content(inode));
                self.changes.unconfirmed_contents += u64::from(has_doubtful_content);
                // A damaged footer explains the checksum, and so may entries, which a later round restores.
                let has_entries = node.as_ref().is_ok_and(|inode| inode.has_inline(inline::DENTRY));
                let is_explained = has_entries || self.footers.contains(&nid);
                self.changes.unconfirmed_inodes += u64::from(!is_explained);
            }
            let bytes = node.as_ref().map_or(&bytes[..], |node| node.bytes());
            self.tables.io.write(addr, Place::Node(nid, addr), bytes)?;
        }
        Ok(())
    }
}
