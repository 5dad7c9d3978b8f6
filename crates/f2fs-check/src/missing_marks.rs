//! Compressed clusters whose marks are lost.
//!
//! A direct node that has lost its addresses gets back those of blocks, and not the marks of clusters. A hole, blocks and a
//! hole have the shape of such a cluster, and an intact sparse file has them, too, even with content that can be
//! decompressed. The counts in the inode decide: i_blocks counts the mark and the blocks that compression saves,
//! i_compr_blocks the saved blocks alone. The marks are set if both lack exactly what all the clusters need. If i_compr_blocks
//! lacks something else, the clusters stay as they are, and a loss is told.

use f2fs::{
    Place,
    format::{
        inode::{advise, inline},
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Slot,
    checker::{Checker, ODD_MAX},
    table::fact,
};

/// A cluster whose mark may be lost.
#[derive(Debug, Clone, Copy)]
struct Unmarked {
    /// Place of its first address.
    slot: Slot,
    /// Block of the file.
    block: u64,
    /// Number of blocks with data.
    data: usize,
    /// Number of addresses.
    length: usize,
}

/// Clusters whose marks may be lost, of all files.
#[derive(Debug, Default)]
pub struct MissingMarks {
    /// By file, at most [`ODD_MAX`] of them.
    files: FxHashMap<Ino, Found>,
    /// Number of clusters of all files. At most [`ODD_MAX`] are kept.
    kept: usize,
    /// Compressed files of which addresses change. Their counts stay until the next check.
    pub changed_maps: FxHashSet<Ino>,
    /// Number of blocks that come back to the count of all blocks with the marks.
    pub restored_blocks: u64,
}

/// Clusters of a file whose marks may be lost: those that decompress. All, if the file is encrypted: nothing tells there.
#[derive(Debug, Default)]
struct Found {
    clusters: Vec<Unmarked>,
    /// Number of clusters that were too many to keep.
    dropped: u32,
    /// Number of blocks that i_blocks counts with the marks and not without.
    blocks: u32,
    /// Number of blocks that compression saves.
    saved: i64,
}

impl Found {
    /// Returns true if i_blocks and i_compr_blocks lack exactly what the clusters need. The number of blocks wraps if more were
    /// found than i_blocks counts: holes became reserved places, and so did the marks, which i_blocks then counts.
    fn is_confirmed(&self, blocks: u32, saved: i64) -> bool {
        let is_counted = self.blocks == blocks || self.blocks == 0 && blocks > u32::MAX / 2;
        self.saved == saved && is_counted && self.dropped == 0
    }
}

impl Checker<'_> {
    /// Notes a cluster without a mark, if it has the shape of a compressed one.
    pub fn note_unmarked(&mut self, inode: &NodeBlock, slot: Slot, block: u64, chunk: &[BlockAddr]) {
        let is_reserved = |addr: &BlockAddr| [BlockAddr::NULL, BlockAddr::NEW].contains(addr);
        let (Some(settings), Some((first, behind))) = (inode.compression(), chunk.split_first()) else {
            return;
        };
        let data = behind.iter().take_while(|addr| addr.is_real()).count();
        let has_shape = is_reserved(first) && data > 0 && behind[data..].iter().all(is_reserved);
        // Without i_compr_blocks, nothing decides.
        let is_counted = self.saved.contains_key(&inode.ino());
        if !has_shape || !is_counted || chunk.len() != inode.layout().cluster_blocks() {
            return;
        }
        let fits =
            inode.has_advise(advise::ENCRYPT) || self.trials.decodes(&self.io, &behind[..data], settings);
        let MissingMarks { files, kept, .. } = &mut self.missing_marks;
        if files.len() >= ODD_MAX && !files.contains_key(&inode.ino()) {
            return;
        }
        let found = files.entry(inode.ino()).or_default();
        if !fits {
            return;
        }
        let uncounted = chunk.iter().filter(|addr| **addr == BlockAddr::NULL).count();
        found.blocks = found.blocks.saturating_add(uncounted as u32);
        found.saved += (chunk.len() - data) as i64;
        if *kept < ODD_MAX {
            found.clusters.push(Unmarked { slot, block, data, length: chunk.len() });
            *kept += 1;
        } else {
            found.dropped += 1;
        }
    }

    /// Notes that an address of a file is changed. If the file is compressed, its counts have to stay until the next check:
    /// they tell if marks are missing.
    pub fn note_change_of_map(&mut self, ino: Ino) {
        if self.saved.contains_key(&ino) {
            self.missing_marks.changed_maps.insert(ino);
        }
    }

    /// Tells a loss if a block gets its place in a cluster without a mark back, and the file has released its saved blocks: no
    /// count tells if the mark is missing there.
    pub fn lose_unknown_mark(&mut self, inode: &NodeBlock, block: u64) {
        let length = inode.layout().cluster_blocks() as u64;
        let is_first = block % length == 0;
        if inode.compression().is_none() || !inode.has_inline(inline::COMPRESS_RELEASED) || is_first {
            return;
        }
        let first = self.address_of(inode, block / length * length);
        if first.is_none_or(|first| [BlockAddr::NULL, BlockAddr::NEW].contains(&first)) {
            self.lose(Loss::Cluster);
        }
    }

    /// Sets the marks of clusters that the counts in inodes confirm. Returns the compressed files that lack other ones: their
    /// loss is told.
    pub fn conclude_missing_marks(&mut self, skipped: u16) -> Vec<Ino> {
        let mut lacking: Vec<(Ino, i64)> =
            self.saved.iter().filter(|(_, left)| **left > 0).map(|(ino, left)| (*ino, *left)).collect();
        lacking.sort_unstable();
        let mut unclear = Vec::new();
        for (ino, saved) in lacking {
            let entry = self.table.find(ino.into()).filter(|entry| !self.table.has(*entry, skipped));
            let Some(entry) = entry.filter(|_| !self.missing_marks.changed_maps.contains(&ino)) else {
                continue;
            };
            let (blocks, found) = (self.table.blocks_left(entry), self.missing_marks.files.remove(&ino));
            match found {
                Some(found) if found.is_confirmed(blocks, saved) => {
                    found.clusters.iter().for_each(|cluster| self.set_mark(ino, cluster));
                    self.missing_marks.restored_blocks += u64::from(found.blocks);
                    self.table.note(entry, fact::TAINTED);
                }
                found if found.is_some() || (1..=u32::MAX / 2).contains(&blocks) => {
                    self.lose(Loss::Cluster);
                    unclear.push(ino);
                }
                _ => {}
            }
        }
        unclear
    }

    /// Has the mark of a cluster set, and the blocks reserved that compression saves.
    fn set_mark(&mut self, ino: Ino, cluster: &Unmarked) {
        let Unmarked { slot, block, data, length } = *cluster;
        let known = format!(
            "{data} blocks are those of a compressed cluster, which has no mark; the inode counts it"
        );
        self.report
            .add(Finding::new(Kind::Cluster, Place::File(ino, block), known).repaired_by("set the mark"));
        self.fix(Fix::Node(slot, BlockAddr::COMPRESS.0.to_le_bytes().to_vec()));
        let rest = Slot { at: slot.at + 4 * (1 + data), ..slot };
        self.fix(Fix::Node(rest, BlockAddr::NEW.0.to_le_bytes().repeat(length - 1 - data)));
    }

    /// Adds a finding on a count in an inode. It is not certain for files in `unclear`.
    pub fn add_count(&mut self, kind: Kind, ino: Ino, known: String, unclear: &[Ino]) {
        let finding = Finding::new(kind, Place::Inode(ino), known);
        let certainty = match unclear.binary_search(&ino) {
            Ok(_) => Certainty::Unclear,
            Err(_) => finding.certainty,
        };
        self.report.add(finding.with_certainty(certainty));
    }
}
