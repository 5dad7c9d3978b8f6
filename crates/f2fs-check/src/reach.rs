//! Nodes that the tree of directories names, on a volume whose NAT and SIT are lost.
//!
//! A directory in use names exactly the inodes in use below it, and an inode in use its nodes. A removed inode that is still
//! on the device is named by none of them.

use f2fs::{
    Place,
    format::{
        BLOCKS_PER_SEGMENT,
        block_size::INODE_NIDS,
        dentry::Dentries,
        inode::inline,
        node::{NodeBlock, XATTR_NODE_OFFSET},
        node_path::NodeKind,
    },
    units::{BlockAddr, Ino, Nid},
};
use rustc_hash::FxHashSet;

use crate::{
    adopt::{Sources, is_possible},
    inodes::has_map,
    names::is_dot,
};

/// A walk from the inodes that need no name to all nodes that they lead to.
pub struct Reach<'a, A> {
    sources: Sources<'a>,
    /// The address of a node, if one is known.
    address: A,
    /// Nodes that were read.
    pub reached: FxHashSet<Nid>,
    /// Named nodes without an address, apart from inodes.
    pub missing_nodes: FxHashSet<Nid>,
    /// Named inodes without an address.
    pub missing_inodes: FxHashSet<Nid>,
    /// Blocks of directories that may still be read.
    budget: u64,
}

impl<'a, A: Fn(Nid) -> Option<BlockAddr>> Reach<'a, A> {
    /// Walks from `roots`. Reads at most as many blocks of directories as the volume has.
    pub fn from(sources: Sources<'a>, roots: &[Ino], address: A) -> Reach<'a, A> {
        let budget = u64::from(sources.geometry.segments) * u64::from(BLOCKS_PER_SEGMENT);
        let mut reach = Reach {
            sources,
            address,
            reached: FxHashSet::default(),
            missing_nodes: FxHashSet::default(),
            missing_inodes: FxHashSet::default(),
            budget,
        };
        let mut pending: Vec<Ino> = roots.to_vec();
        let mut seen: FxHashSet<Ino> = roots.iter().copied().collect();
        while let Some(ino) = pending.pop() {
            reach.visit(ino, &mut |child| {
                if is_possible(sources.geometry, child.into()) && seen.insert(child) {
                    pending.push(child);
                }
            });
        }
        reach
    }

    /// Visits an inode and its nodes. `found` receives the inodes that a directory names.
    fn visit(&mut self, ino: Ino, found: &mut dyn FnMut(Ino)) {
        let Some(inode) = self.node(ino.into(), ino, 0) else { return };
        self.node(inode.xattr_nid(), ino, XATTR_NODE_OFFSET);
        let is_directory = inode.is_directory();
        if is_directory && inode.has_inline(inline::DENTRY) {
            names(inode.inline_area(), found);
        }
        if !has_map(&inode) {
            return;
        }
        let size = self.sources.geometry.block_size;
        let n = size.node_addrs() as u32;
        if is_directory {
            self.names_in(inode.addrs(0..inode.layout().addrs()), found);
        }
        let offsets = [1, 2, 3, 4 + n, 5 + 2 * n];
        let mut pending: Vec<(Nid, u32)> =
            (0..INODE_NIDS).map(|index| inode.child(index)).zip(offsets).collect();
        while let Some((nid, offset)) = pending.pop() {
            let Some(node) = self.node(nid, ino, offset) else { continue };
            let words = node.bytes().chunks_exact(4).take(n as usize);
            let words = words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
            let step = match NodeKind::of(size, offset) {
                Some(NodeKind::Indirect) => 1,
                Some(NodeKind::DoubleIndirect) => n + 1,
                Some(NodeKind::Direct { .. }) if is_directory => {
                    self.names_in(words.map(BlockAddr), found);
                    continue;
                }
                _ => continue,
            };
            pending.extend((0..n).zip(words).map(|(index, word)| (Nid(word), offset + 1 + index * step)));
        }
    }

    /// Reads a node of an inode at an offset, unless it was read before.
    fn node(&mut self, nid: Nid, ino: Ino, offset: u32) -> Option<NodeBlock> {
        let Sources { io, geometry, format, .. } = self.sources;
        if !is_possible(geometry, nid) || self.reached.contains(&nid) {
            return None;
        }
        let Some(addr) = (self.address)(nid) else {
            let missing = if offset == 0 { &mut self.missing_inodes } else { &mut self.missing_nodes };
            missing.insert(nid);
            return None;
        };
        let bytes = io.read_block(addr, Place::Node(nid, addr)).ok()?;
        let node = NodeBlock::check(format, bytes, nid, ino, addr).ok()?;
        if node.footer().offset != offset {
            return None;
        }
        self.reached.insert(nid);
        Some(node)
    }

    /// Passes on the inodes that blocks of a directory name.
    fn names_in(&mut self, blocks: impl Iterator<Item = BlockAddr>, found: &mut dyn FnMut(Ino)) {
        let Sources { io, geometry, .. } = self.sources;
        for addr in blocks.filter(|addr| geometry.in_main(*addr)) {
            if self.budget == 0 {
                return;
            }
            self.budget -= 1;
            if let Ok(block) = io.read_block(addr, Place::Block(addr)) {
                names(&block, found);
            }
        }
    }
}

/// Passes on the inodes that an area of a directory names.
fn names(area: &[u8], found: &mut dyn FnMut(Ino)) {
    for entry in Dentries::new(area, Place::Volume).entries().flatten() {
        if !is_dot(entry.name) {
            found(entry.ino);
        }
    }
}
