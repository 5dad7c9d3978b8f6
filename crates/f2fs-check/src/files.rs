//! The blocks of a directory or quota file, through its nodes.

use f2fs::{
    format::{
        node::{NodeBlock, NodeFooter},
        node_path::NodePath,
    },
    units::{BlockAddr, Nid},
};

use crate::{checker::Checker, inodes::has_map, table::fact};

impl Checker<'_> {
    /// Calls `each` with the addresses of a file, node by node, each with the first block of the file that they
    /// map. A node counts only at the place that its footer names, so that the walk ends.
    pub fn for_each_node(&mut self, inode: &NodeBlock, mut each: impl FnMut(&mut Self, u64, &[BlockAddr])) {
        if !has_map(inode) {
            return;
        }
        let layout = inode.layout();
        let own: Vec<BlockAddr> = inode.addrs(0..layout.addrs()).collect();
        each(self, 0, &own);
        let n = self.geometry.block_size.node_addrs() as u32;
        let mut pending: Vec<(Nid, u32)> = Vec::new();
        for (index, offset) in [1, 2, 3, 4 + n, 5 + 2 * n].into_iter().enumerate().rev() {
            pending.push((inode.child(index), offset));
        }
        while let Some((nid, offset)) = pending.pop() {
            let Some(block) = self.child_block(inode, nid, offset) else { continue };
            let words =
                || block.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
            use f2fs::format::node_path::NodeKind;
            let kind = NodeKind::of(self.geometry.block_size, offset);
            let step = match kind {
                Some(NodeKind::Indirect) => 1,
                Some(NodeKind::DoubleIndirect) => n + 1,
                Some(kind @ NodeKind::Direct { .. }) => {
                    let first = kind.first_block(&layout).expect("a direct node has addresses");
                    let addrs: Vec<BlockAddr> = words().take(layout.direct_addrs()).map(BlockAddr).collect();
                    each(self, first, &addrs);
                    continue;
                }
                _ => continue,
            };
            let children: Vec<(Nid, u32)> = (0..n)
                .zip(words())
                .filter(|(_, child)| *child != 0)
                .map(|(index, child)| (Nid(child), offset + 1 + index * step))
                .collect();
            pending.extend(children.into_iter().rev());
        }
    }

    /// Reads a node that belongs to an inode and lies at an offset.
    fn child_block(&mut self, inode: &NodeBlock, nid: Nid, offset: u32) -> Option<std::sync::Arc<[u8]>> {
        let entry = self.table.find(nid)?;
        if self.table.has(entry, fact::BROKEN) || self.table.ino(entry) != inode.ino() || nid == inode.nid() {
            return None;
        }
        // The checks of the nodes decided between parent and footer; the parent's word counts where it has one.
        let known = match self.table.has(entry, fact::REACHED) {
            true => self.table.parent_offset(entry),
            false => NodeFooter::of(&self.cache.block(&self.io, self.table.addr(entry)).ok()?).offset,
        };
        if known != offset {
            return None;
        }
        let addr = self.table.addr(entry);
        self.cache.block(&self.io, addr).ok()
    }

    /// Address of one block of a file; `None` if a node above it cannot be used.
    pub fn address_of(&mut self, inode: &NodeBlock, block: u64) -> Option<BlockAddr> {
        let path = NodePath::of(&inode.layout(), block)?;
        let mut holder: Option<std::sync::Arc<[u8]>> = None;
        for step in path.steps() {
            let nid = match &holder {
                None => inode.child(step.child),
                Some(bytes) => Nid(word(bytes, step.child)),
            };
            if nid == Nid::NULL {
                return Some(BlockAddr::NULL);
            }
            holder = Some(self.child_block(inode, nid, step.offset)?);
        }
        Some(match &holder {
            None => inode.addr(path.index),
            Some(bytes) => BlockAddr(word(bytes, path.index)),
        })
    }
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().expect("four bytes"))
}
