//! One commit from one state of a volume to another.
//!
//! Both states have one superblock. The old state is that of a device, the new one that of an overlay on it; any code
//! may have written to the overlay. The commit writes only to places that the old checkpoint does not use: blocks of
//! the main area that changed at a place in use move, the blocks of NAT and SIT go to their other copies, and the
//! checkpoint goes to the other pack. The last block of the pack makes it count, after a flush. So a power cut at any
//! write leaves the old state or the new one. The old state reads summaries of segments without a log only to clean;
//! they are written first, and are right for both states.
//!
//! SIT, counts and summaries follow from a [census](super::census); the overlay's own do not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use block::{Device, Overlay, Request, Verb};
use f2fs::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT, TableCopy,
        checkpoint::LogPosition,
        nat::NatEntry,
        sit::SegmentType,
        summary::{Owner, Summary},
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};

use super::{
    census::{Census, Moving, Wanted},
    logs,
    moves::{self, Moved},
    pack,
    space::{Space, index},
    table_blocks,
    tables::Tables,
};
use crate::{
    bitmap::Bitmap,
    segments::{Content, Contents},
};

/// Maximum number of bytes of one write.
const RUN_BYTES: usize = 1 << 20;

/// A state over a device.
pub type State = Arc<Overlay<Arc<dyn Device>>>;

/// Changes of the new state that its tables do not have yet.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// Entries of the NAT.
    pub nat: BTreeMap<Nid, NatEntry>,
    /// Orphans to add.
    pub orphans: BTreeSet<Ino>,
    /// Orphans to remove.
    pub no_orphans: BTreeSet<Ino>,
    /// Segments whose summaries are computed anew.
    pub summaries: BTreeSet<SegNo>,
    /// Segments with nodes and data, and the ones that move to other segments.
    pub leaving: BTreeMap<SegNo, Content>,
    /// Blocks of the NAT that cannot be read, or that have erased entries.
    pub nat_blocks: BTreeSet<u32>,
    /// Number of inodes that are freed, because their fields cannot be restored.
    pub freed_inodes: u64,
    /// Number of inodes that have the largest possible size, because theirs is lost.
    pub resized_inodes: u64,
    /// Number of inodes with content of a file that get a new checksum, and that the stored one does not confirm.
    pub unconfirmed_contents: u64,
    /// Number of inodes that get a new checksum, and whose other fields the stored one does not confirm.
    pub unconfirmed_inodes: u64,
}

/// Returns the requests that lead from `start` to `after`. `used` are the blocks of the main area that `start`
/// uses.
///
/// # Errors
/// [`Error::NoSpace`] if blocks that have to move find no place; [`Error::Corrupt`] and [`Error::Io`] if a state
/// has no tables that can be read.
pub fn transfer(
    start: &Arc<dyn Device>,
    used: &Bitmap,
    after: &State,
    changes: &Changes,
) -> Result<Vec<Request>> {
    let old = Tables::read(start.clone())?;
    let mut new = Tables::read(after.clone())?;
    new.pack.override_nat(&changes.nat);
    let mut transfer = Transfer {
        changed: changed_blocks(&new, after),
        wanted: BTreeSet::new(),
        writes: BTreeMap::new(),
        old,
        new,
    };
    transfer.run(used, changes)
}

/// Blocks whose content differs from the old state's, by the pages of the overlay.
fn changed_blocks(new: &Tables, after: &State) -> BTreeSet<BlockAddr> {
    let log = new.geometry.block_size.log();
    let ranges = after.changed_ranges().into_iter();
    let blocks = ranges.flat_map(|range| range.start >> log..=(range.end - 1) >> log);
    let io = f2fs::engine::Io::new(after.base().clone(), new.geometry.block_size);
    blocks
        .filter_map(|block| u32::try_from(block).ok().map(BlockAddr))
        .filter(|addr| {
            let read = |io: &f2fs::engine::Io| io.read_block(*addr, Place::Block(*addr));
            match (read(&io), read(&new.io)) {
                (Ok(old), Ok(new)) => old != new,
                _ => true,
            }
        })
        .collect()
}

struct Transfer {
    old: Tables,
    new: Tables,
    changed: BTreeSet<BlockAddr>,
    /// Segments whose owners are needed.
    wanted: BTreeSet<SegNo>,
    /// The blocks to write before the pack.
    writes: BTreeMap<BlockAddr, Vec<u8>>,
}

impl Transfer {
    fn run(&mut self, used: &Bitmap, changes: &Changes) -> Result<Vec<Request>> {
        self.want_owners(changes);
        let geometry = self.new.geometry;
        let is_used = |addr: BlockAddr| used.get(index(&geometry, addr));
        let leaves = |addr: BlockAddr, content: Content| {
            changes.leaving.get(&geometry.position(addr).0) == Some(&content)
        };
        let moves = |addr: BlockAddr, content: Content| {
            leaves(addr, content) || self.changed.contains(&addr) && is_used(addr)
        };
        let wanted = Wanted { owners: &|segment| self.wanted.contains(&segment), moves: &moves };
        let mut census = Census::of(&self.new, &wanted);
        let moved = self.move_blocks(used, &mut census)?;
        self.write_changed(&census, &is_used, &moved)?;
        self.new.pack.override_nat(&moved.nat);
        let logs = logs::choose(&geometry, &census, &self.new.pack.checkpoint.logs);
        let logs = logs.ok_or_else(|| Error::no_space(geometry.block_size, 1, 0))?;
        self.write_summaries(&census, &logs);
        let mut next = self.old.pack.checkpoint.clone();
        next.sit_bitmap = table_blocks::sit([&self.old, &self.new], &census, &logs, &mut |addr, block| {
            self.writes.insert(addr, block);
        });
        let mut candidates = self.nat_candidates();
        candidates.extend(&changes.nat_blocks);
        next.nat_bitmap = table_blocks::nat(&self.old, &self.new, &candidates, &mut |addr, block| {
            self.writes.insert(addr, block);
        });
        next.logs = logs;
        next.valid_blocks = census.blocks;
        next.valid_nodes = census.nodes;
        next.valid_inodes = census.inodes;
        next.next_free_nid = self.new.pack.checkpoint.next_free_nid;
        next.free_segments = free_segments(&census, &logs, geometry.segments);
        if next.valid_blocks > next.user_blocks {
            return Err(Error::no_space(geometry.block_size, next.valid_blocks - next.user_blocks, 0));
        }
        let mut orphans: BTreeSet<Ino> = self.new.pack.orphans.iter().copied().collect();
        orphans.extend(&changes.orphans);
        orphans.retain(|ino| !changes.no_orphans.contains(ino));
        let orphans: Vec<Ino> = orphans.into_iter().collect();
        let summaries = self.log_summaries(&census, &logs);
        let pack = pack::encode(&self.old, next, &orphans, &summaries)?;
        Ok(self.requests(&pack))
    }

    /// Collects the segments whose owners are needed: those of the logs, and those with changes.
    fn want_owners(&mut self, changes: &Changes) {
        let geometry = self.new.geometry;
        self.wanted.extend(changes.summaries.iter().filter(|segment| segment.0 < geometry.segments));
        for tables in [&self.old, &self.new] {
            let logs = tables.pack.checkpoint.logs.iter().map(|log| log.segment);
            self.wanted.extend(logs.filter(|segment| segment.0 < geometry.segments));
        }
        let (ssa_start, _) = geometry.summary_block(SegNo(0));
        let main_start = geometry.block(SegNo(0), 0);
        for addr in &self.changed {
            if geometry.in_main(*addr) {
                self.wanted.insert(geometry.position(*addr).0);
            } else if *addr >= ssa_start && *addr < main_start {
                let per_block = (geometry.block_size.bytes() / geometry.summary.bytes()) as u32;
                let first = (addr.0 - ssa_start.0) * per_block;
                let segments = (first..first + per_block).filter(|segment| *segment < geometry.segments);
                self.wanted.extend(segments.map(SegNo));
            }
        }
    }

    /// Moves the blocks that changed at a place that the old state uses.
    fn move_blocks(&mut self, used: &Bitmap, census: &mut Census) -> Result<Moved> {
        let moving: Vec<Moving> = std::mem::take(&mut census.moving);
        let logs = &self.new.pack.checkpoint.logs;
        let mut space = Space::new(self.new.geometry, used, census.claimed.clone(), logs);
        moves::apply(&self.new, &moving, census, &mut space)
    }

    /// Takes over the other changed blocks that are in use, and the moved ones.
    fn write_changed(
        &mut self,
        census: &Census,
        is_used: &dyn Fn(BlockAddr) -> bool,
        moved: &Moved,
    ) -> Result<()> {
        for addr in &self.changed {
            if self.new.geometry.in_main(*addr) && census.is_claimed(*addr) && !is_used(*addr) {
                let block = self.new.io.read_block(*addr, Place::Block(*addr))?;
                self.writes.insert(*addr, block.into_vec());
            }
        }
        self.writes.extend(moved.blocks.iter().map(|(addr, block)| (*addr, block.clone())));
        Ok(())
    }

    /// Writes the summaries that differ from those on the device, except those of the logs.
    fn write_summaries(&mut self, census: &Census, logs: &[LogPosition; 6]) {
        let geometry = self.new.geometry;
        for (segment, owners) in &census.owners {
            if logs.iter().any(|log| log.segment == *segment) {
                continue;
            }
            let (addr, at) = geometry.summary_block(*segment);
            let old = self.old.io.read_block(addr, Place::Ssa(*segment)).ok();
            let mut block = match self.writes.get(&addr) {
                Some(block) => block.clone(),
                None => old.as_deref().map_or(vec![0; geometry.block_size.bytes()], <[u8]>::to_vec),
            };
            let bytes = &mut block[at..at + geometry.summary.bytes()];
            let mut summary = Summary::parse(bytes, geometry.summary);
            let is_node = census.content(*segment) == Some(Content::Node);
            // Only summaries of data have versions and indices.
            let is_same = |stored: Owner, right: Owner| match is_node {
                true => stored.nid == right.nid,
                false => stored == right,
            };
            let is_right = (0..BLOCKS_PER_SEGMENT as u16).all(|offset| {
                let claimed = census.is_claimed(geometry.block(*segment, offset));
                !claimed || is_same(summary.owners[usize::from(offset)], owners[usize::from(offset)])
            });
            if old.is_some() && is_right && summary.is_node == is_node {
                continue;
            }
            for offset in 0..BLOCKS_PER_SEGMENT as u16 {
                if census.is_claimed(geometry.block(*segment, offset)) {
                    summary.owners[usize::from(offset)] = owners[usize::from(offset)];
                }
            }
            summary.is_node = is_node;
            bytes.copy_from_slice(&summary.encode(geometry.summary, None));
            self.writes.insert(addr, block);
        }
    }

    /// Summaries of the logs' segments, for the pack.
    fn log_summaries(&self, census: &Census, logs: &[LogPosition; 6]) -> [Summary; 6] {
        SegmentType::ALL.map(|kind| {
            let mut summary = Summary::empty(kind);
            if let Some(owners) = census.owners.get(&logs[kind.index()].segment) {
                summary.owners.copy_from_slice(&owners[..]);
            }
            summary
        })
    }

    /// Blocks of the NAT that may differ: those with entries of a journal, and those that changed. The first
    /// one has the reserved entries.
    fn nat_candidates(&self) -> BTreeSet<u32> {
        let per_block = self.new.geometry.block_size.nat_entries() as u32;
        let journals = self.old.pack.nat_journal.iter().chain(&self.new.pack.nat_journal);
        let mut candidates: BTreeSet<u32> = journals.map(|(nid, _)| nid.0 / per_block).collect();
        candidates.insert(0);
        let blocks = 0..self.new.geometry.nat_blocks();
        candidates.extend(blocks.filter(|index| {
            let copies = TableCopy::BOTH.map(|copy| self.new.geometry.nat_block(*index, copy));
            copies.iter().any(|addr| self.changed.contains(addr))
                || self.old.nat_copy(*index) != self.new.nat_copy(*index)
        }));
        candidates
    }

    /// The requests in their order.
    fn requests(&self, pack: &pack::NewPack) -> Vec<Request> {
        let size = self.new.geometry.block_size;
        let mut requests = Vec::new();
        let mut run: Option<(BlockAddr, Vec<u8>)> = None;
        for (addr, block) in &self.writes {
            match &mut run {
                Some((first, bytes))
                    if first.index() + bytes.len() / size.bytes() == addr.index()
                        && bytes.len() < RUN_BYTES =>
                {
                    bytes.extend_from_slice(block);
                }
                _ => {
                    requests.extend(run.take().map(|(first, bytes)| write(first, &bytes, size)));
                    run = Some((*addr, block.clone()));
                }
            }
        }
        requests.extend(run.map(|(first, bytes)| write(first, &bytes, size)));
        requests.push(write(pack.start, &pack.blocks, size));
        requests.push(flush());
        let last = BlockAddr(pack.start.0 + (pack.blocks.len() / size.bytes()) as u32);
        requests.push(write(last, &pack.last, size));
        requests.push(flush());
        requests
    }
}

fn free_segments(census: &Census, logs: &[LogPosition; 6], segments: u32) -> u32 {
    let is_free = |segment: &SegNo| {
        census.content(*segment).is_none() && !logs.iter().any(|log| log.segment == *segment)
    };
    (0..segments).map(SegNo).filter(is_free).count() as u32
}

fn write(addr: BlockAddr, bytes: &[u8], size: f2fs::format::BlockSize) -> Request {
    write_at(u64::from(addr.0) << size.log(), bytes)
}

/// A write as a request.
pub fn write_at(offset_bytes: u64, bytes: &[u8]) -> Request {
    Request { verb: Verb::Write, offset_bytes, length_bytes: bytes.len() as u64, data: Some(bytes.into()) }
}

/// A flush as a request.
pub fn flush() -> Request {
    Request { verb: Verb::Flush, offset_bytes: 0, length_bytes: 0, data: None }
}
