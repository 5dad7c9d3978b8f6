//! Releasing and reserving the blocks that compression saves in a file, in parts.
//!
//! *Invariant*: no checkpoint is written between two parts. On the device the saved blocks of a file are either all
//! reserved or all released: the mark of a cluster counts as a block only in the first case.

use super::{
    Files,
    map::{PART_ADDRS, RUN_ADDRS},
    map_write::Slot,
};
use crate::{
    Error, Place, Result,
    format::inode::inline,
    units::{BlockAddr, Ino},
};

/// Number of dirty pages whose clusters one part writes.
const PART_PAGES: usize = 32;

/// The blocks that compression saves in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedBlocks {
    /// They stay reserved for the file.
    Reserved,
    /// They are free for other files.
    Released,
}

/// A change of the saved blocks of a file in progress.
#[derive(Debug)]
pub struct SavedChange {
    ino: Ino,
    to: SavedBlocks,
    stage: Stage,
    /// The clusters that were found.
    clusters: Vec<Slot>,
    /// Number of `clusters` that are changed.
    changed: usize,
    /// Number of saved blocks of all clusters.
    blocks: u64,
}

/// The stage of a [`SavedChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Writes the dirty pages of the file.
    Pages,
    /// Searches for clusters from this block on.
    Search(u64),
    /// Changes the clusters.
    Change,
}

impl Files {
    /// Begins to release or to reserve the saved blocks of a file.
    pub(crate) fn begin_saved_change(&self, ino: Ino, to: SavedBlocks) -> Result<SavedChange> {
        let (from, stage) = match to {
            SavedBlocks::Released => (SavedBlocks::Reserved, Stage::Pages),
            SavedBlocks::Reserved => (SavedBlocks::Released, Stage::Search(0)),
        };
        self.compressed_file(ino, from)?;
        Ok(SavedChange { ino, to, stage, clusters: Vec::new(), changed: 0, blocks: 0 })
    }

    /// Does the next part. Returns the number of saved blocks after the last one. Nothing else may change between two parts.
    pub(crate) fn go_on_with_saved_change(&mut self, change: &mut SavedChange) -> Result<Option<u64>> {
        match change.stage {
            Stage::Pages => {
                let pages = self.pages.blocks_of(change.ino, 0, u64::MAX);
                for block in pages.iter().take(PART_PAGES) {
                    self.write_cluster(change.ino, *block)?;
                }
                if pages.len() <= PART_PAGES {
                    change.stage = Stage::Search(0);
                }
            }
            Stage::Search(from) => {
                let (found, next) = self.compressed_clusters(change.ino, from, PART_ADDRS)?;
                for slot in &found {
                    change.blocks += self.unwritten_addrs(slot)?;
                }
                change.clusters.extend(found);
                change.stage = next.map_or(Stage::Change, Stage::Search);
                if next.is_none() && change.to == SavedBlocks::Reserved {
                    // All of them, or none.
                    drop(self.segments().reserve(change.blocks)?);
                    self.nodes.admit(change.ino, change.blocks)?;
                }
            }
            Stage::Change => {
                let addrs = change.clusters.first().map_or(1, |slot| slot.left as u64);
                let end = change.clusters.len().min(change.changed + (PART_ADDRS / addrs).max(1) as usize);
                while change.changed < end {
                    if let Err(error) = self.change_cluster(change, change.changed, change.to) {
                        self.undo_saved_change(change);
                        return Err(error);
                    }
                    change.changed += 1;
                }
                if end == change.clusters.len() {
                    self.end_saved_change(change)?;
                    return Ok(Some(change.blocks));
                }
            }
        }
        Ok(None)
    }

    /// The number of addresses of a cluster that refer to no block on the device.
    fn unwritten_addrs(&self, slot: &Slot) -> Result<u64> {
        let node = self.nodes.node(slot.nid)?;
        Ok(node.addrs(slot.index..slot.index + slot.left).filter(|addr| !addr.is_real()).count() as u64)
    }

    /// Takes back what is changed after an error, as far as possible. The changed nodes are in memory.
    fn undo_saved_change(&mut self, change: &SavedChange) {
        let back = match change.to {
            SavedBlocks::Released => SavedBlocks::Reserved,
            SavedBlocks::Reserved => SavedBlocks::Released,
        };
        for cluster in 0..change.changed {
            // The error that is returned is the first one.
            let _ = self.change_cluster(change, cluster, back);
        }
    }

    /// Releases or reserves the saved blocks of one cluster.
    fn change_cluster(&mut self, change: &SavedChange, cluster: usize, to: SavedBlocks) -> Result<()> {
        let (ino, slot) = (change.ino, &change.clusters[cluster]);
        let saved = self.unwritten_addrs(slot)?;
        let (before, after) = match to {
            SavedBlocks::Released => (BlockAddr::NEW, BlockAddr::NULL),
            SavedBlocks::Reserved => (BlockAddr::NULL, BlockAddr::NEW),
        };
        let space = match to {
            SavedBlocks::Released => None,
            SavedBlocks::Reserved => Some(self.segments().reserve(saved)?),
        };
        let node = self.nodes.node_mut(slot.nid)?;
        for index in slot.index..slot.index + slot.left {
            if node.addr(index) == before {
                node.set_addr(index, after);
            }
        }
        let Some(_space) = space else {
            self.change_saved(ino, saved, 0)?;
            return self.uncount_file_blocks(ino, saved);
        };
        self.change_saved(ino, 0, saved)?;
        self.segments_mut().count_blocks(saved);
        self.add_blocks(ino, saved)
    }

    fn end_saved_change(&mut self, change: &SavedChange) -> Result<()> {
        let now = self.disk().time();
        let inode = self.nodes.inode_mut(change.ino)?;
        match change.to {
            SavedBlocks::Released => inode.head_mut().inline |= inline::COMPRESS_RELEASED,
            SavedBlocks::Reserved => inode.head_mut().inline &= !inline::COMPRESS_RELEASED,
        }
        inode.set_ctime(now);
        Ok(())
    }

    /// Returns the address slots of the compressed clusters of a file from block `from` on, and the block to continue at or
    /// `None` at the end. Examines about `most` addresses.
    pub(super) fn compressed_clusters(
        &self,
        ino: Ino,
        from: u64,
        most: u64,
    ) -> Result<(Vec<Slot>, Option<u64>)> {
        let inode = self.nodes.inode(ino)?;
        let size = inode.layout().cluster_blocks();
        let end = inode.head().size.get().div_ceil(self.geometry().block_size.bytes() as u64);
        let mut found = Vec::new();
        let (mut at, mut examined) = (from, 0);
        while at < end && examined < most {
            let run = self.run(&inode, at, end)?;
            if run.addr == BlockAddr::COMPRESS {
                let slot = self.mapped_slot(ino, at)?;
                if at % size as u64 != 0 {
                    return Err(Error::corrupt(Place::File(ino, at), "a cluster that begins inside another"));
                }
                found.push(Slot { left: size, ..slot });
                at += size as u64;
                examined += size as u64;
            } else {
                examined += (run.blocks.end - at).min(RUN_ADDRS);
                at = run.blocks.end;
            }
        }
        Ok((found, (at < end).then_some(at)))
    }
}
