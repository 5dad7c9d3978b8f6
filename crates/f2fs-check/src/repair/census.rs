//! A census: all blocks in use and their owners, from the nodes that the NAT names.

use std::collections::BTreeMap;

use f2fs::{
    engine::Geometry,
    format::{
        BLOCKS_PER_SEGMENT,
        inode::inline,
        node::{NodeBlock, NodeFooter, NodeFormat},
        node_path::NodeKind,
        summary::Owner,
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};

use super::tables::Tables;
use crate::{
    Report, Slot,
    bitmap::Bitmap,
    inodes::{has_map, is_alias},
    nat,
    reader::{parse_node, read_runs},
    segments::{Content, Contents},
    table::{Entry, Table, fact},
};

/// Owners of the blocks of a segment.
pub type Owners = Box<[Owner; BLOCKS_PER_SEGMENT as usize]>;

/// A block that must move: it changed, and the old checkpoint uses its place; or its segment is for the other content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moving {
    /// A node.
    Node(Nid),
    /// A data block, whose address is at a place in a node.
    Data(Slot, Ino, BlockAddr),
}

/// All blocks in use.
pub struct Census {
    geometry: Geometry,
    /// Blocks in use.
    pub claimed: Bitmap,
    /// Nodes and data blocks of each segment.
    counts: Vec<(u16, u16)>,
    /// Owners of the blocks of the wanted segments.
    pub owners: BTreeMap<SegNo, Owners>,
    /// Blocks that must move.
    pub moving: Vec<Moving>,
    /// Blocks in use, reserved ones included.
    pub blocks: u64,
    /// Nodes in use.
    pub nodes: u32,
    /// Inodes in use.
    pub inodes: u32,
    /// Marks of compressed clusters, by inode.
    marks: BTreeMap<Ino, u64>,
    /// Inodes whose saved blocks are released: their marks are not counted.
    released: Vec<Ino>,
}

/// The questions that a census answers beside the counts.
pub struct Wanted<'a> {
    /// Segments whose owners are wanted.
    pub owners: &'a dyn Fn(SegNo) -> bool,
    /// Returns true for a block that must move if it is in use with this content.
    pub moves: &'a dyn Fn(BlockAddr, Content) -> bool,
}

impl Census {
    /// Counts the blocks of a state.
    pub fn of(tables: &Tables, wanted: &Wanted<'_>) -> Census {
        let geometry = tables.geometry;
        let mut report = Report::default();
        let nodes = nat::read(&tables.io, &geometry, &tables.pack, &mut report, &mut |_| {});
        let bits = u64::from(geometry.segments) * u64::from(BLOCKS_PER_SEGMENT);
        let mut census = Census {
            geometry,
            claimed: Bitmap::new(bits),
            counts: vec![(0, 0); geometry.segments as usize],
            owners: BTreeMap::new(),
            moving: Vec::new(),
            blocks: 0,
            nodes: 0,
            inodes: 0,
            marks: BTreeMap::new(),
            released: Vec::new(),
        };
        let table = nodes.table;
        let used = |(_, entry): &(Nid, Entry)| !table.has(*entry, fact::BROKEN);
        let mut order: Vec<(BlockAddr, Nid)> =
            table.iter().filter(used).map(|(nid, entry)| (table.addr(entry), nid)).collect();
        order.sort_unstable();
        let format = NodeFormat::of(&tables.superblock);
        read_runs(&tables.io, order, |addr, nid, bytes| {
            if let Ok(bytes) = bytes {
                census.node(&table, format, nid, addr, bytes, wanted);
            }
        });
        let marks = census.released.iter().filter_map(|ino| census.marks.get(ino));
        census.blocks -= marks.sum::<u64>();
        census
    }

    fn node(
        &mut self,
        table: &Table,
        format: NodeFormat,
        nid: Nid,
        addr: BlockAddr,
        bytes: &[u8],
        wanted: &Wanted<'_>,
    ) {
        let footer = NodeFooter::of(bytes);
        let version = table.find(nid).map_or(0, |entry| table.version(entry));
        self.nodes += 1;
        self.blocks += 1;
        self.claim(addr, Content::Node, Owner { nid, version: 0, offset: 0 }, wanted);
        if (wanted.moves)(addr, Content::Node) {
            self.moving.push(Moving::Node(nid));
        }
        if footer.is_inode() {
            self.inodes += 1;
            let (Ok(inode), _) = parse_node(format, bytes, nid, addr) else { return };
            self.inode(&inode, version, wanted);
        } else if let Some(NodeKind::Direct { .. }) = NodeKind::of(format.block_size, footer.offset) {
            let words = bytes.chunks_exact(4).take(format.block_size.node_addrs());
            let addrs = words.map(|word| BlockAddr(u32::from_le_bytes(word.try_into().expect("four bytes"))));
            let holder = Holder { nid, version, ino: footer.ino, starts_at: 0 };
            self.addresses(&holder, addrs, wanted);
        }
    }

    fn inode(&mut self, inode: &NodeBlock, version: u8, wanted: &Wanted<'_>) {
        let (nid, ino) = (inode.nid(), inode.ino());
        if inode.has_inline(inline::COMPRESS_RELEASED) {
            self.released.push(ino);
        }
        if is_alias(inode, inode.format().features) {
            let extent = inode.head().extent;
            for n in 0..extent.len.get() {
                let addr = BlockAddr(extent.blk.get().wrapping_add(n));
                if !self.geometry.in_main(addr) || self.is_claimed(addr) {
                    break;
                }
                self.blocks += 1;
                self.claim(addr, Content::Data, Owner { nid, version, offset: 0 }, wanted);
            }
            return;
        }
        if has_map(inode) {
            let layout = inode.layout();
            let holder = Holder { nid, version, ino, starts_at: layout.addrs_at() };
            self.addresses(&holder, inode.addrs(0..layout.addrs()), wanted);
        }
    }

    fn addresses(&mut self, holder: &Holder, addrs: impl Iterator<Item = BlockAddr>, wanted: &Wanted<'_>) {
        for (index, addr) in addrs.enumerate() {
            if addr == BlockAddr::NULL {
                continue;
            }
            self.blocks += 1;
            if addr == BlockAddr::COMPRESS {
                *self.marks.entry(holder.ino).or_default() += 1;
            }
            if !addr.is_real() || !self.geometry.in_main(addr) {
                continue;
            }
            let offset = u16::try_from(index).expect("a node has a few thousand addresses");
            let owner = Owner { nid: holder.nid, version: holder.version, offset };
            self.claim(addr, Content::Data, owner, wanted);
            if (wanted.moves)(addr, Content::Data) {
                let slot = Slot { nid: holder.nid, at: holder.starts_at + 4 * index };
                self.moving.push(Moving::Data(slot, holder.ino, addr));
            }
        }
    }

    fn claim(&mut self, addr: BlockAddr, content: Content, owner: Owner, wanted: &Wanted<'_>) {
        let (segment, offset) = self.geometry.position(addr);
        self.claimed.set(segment.index() * BLOCKS_PER_SEGMENT as usize + usize::from(offset));
        let counts = &mut self.counts[segment.index()];
        let count = if content == Content::Node { &mut counts.0 } else { &mut counts.1 };
        *count = count.saturating_add(1);
        if (wanted.owners)(segment) {
            let owners = self.owners.entry(segment);
            let owners = owners.or_insert_with(|| Box::new([Owner::default(); BLOCKS_PER_SEGMENT as usize]));
            owners[usize::from(offset)] = owner;
        }
    }

    /// Puts a block to a new place.
    pub fn relocate(&mut self, from: BlockAddr, to: BlockAddr, content: Content, owner: Owner) {
        let (segment, offset) = self.geometry.position(from);
        self.claimed.clear(segment.index() * BLOCKS_PER_SEGMENT as usize + usize::from(offset));
        let counts = &mut self.counts[segment.index()];
        let count = if content == Content::Node { &mut counts.0 } else { &mut counts.1 };
        *count = count.saturating_sub(1);
        self.claim(to, content, owner, &Wanted { owners: &|_| true, moves: &|_, _| false });
    }

    /// Returns true if a block is in use.
    pub fn is_claimed(&self, addr: BlockAddr) -> bool {
        let (segment, offset) = self.geometry.position(addr);
        self.claimed.get(segment.index() * BLOCKS_PER_SEGMENT as usize + usize::from(offset))
    }

    /// The map of a segment.
    pub fn map(&self, segment: SegNo) -> &[u8] {
        let bytes = BLOCKS_PER_SEGMENT as usize / 8;
        &self.claimed.bytes()[segment.index() * bytes..][..bytes]
    }
}

impl Contents for Census {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn contents(&self, segment: SegNo) -> (u16, u16) {
        self.counts[segment.index()]
    }
}

/// A node with addresses.
struct Holder {
    nid: Nid,
    version: u8,
    ino: Ino,
    starts_at: usize,
}
