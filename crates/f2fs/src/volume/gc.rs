//! Cleaning: the valid blocks of a section move elsewhere, so that the section becomes free.
//!
//! *Invariants*: a moved block is copied, never changed; its old place stays as it is until a checkpoint counts, like
//! that of every block. What is moved goes where the logs go, but never into the section that is cleaned.

use super::{Volume, checkpoint::Reason};
use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT, bits,
        inode::inline,
        node::NodeBlock,
        node_path::NodeKind,
        sit::SegmentType,
        summary::{Owner, Summary},
    },
    units::{BlockAddr, Ino, SecNo, SegNo},
};

use super::{allocate::log_for, map_write::Slot, node_write::Marks, sit::Segment};

/// How a section to clean is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// The fewest valid blocks: quickest, for when space is needed now.
    #[default]
    Greedy,
    /// Few valid blocks that have not changed for long: best in the long run, for idle times.
    CostBenefit,
}

/// What cleaning did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Sections that were emptied.
    pub sections: u32,
    /// Blocks that were moved for that.
    pub moved_blocks: u64,
}

/// Sections that one operation cleans at most before it goes on.
const FOREGROUND_SECTIONS: u32 = 8;
/// Below so many free sections there is cleaning: each of the six logs can still open one, and two more.
const LEAST_FREE_SECTIONS: u32 = 8;
/// While holes are filled, a checkpoint is worth its blocks once it turns so many freed blocks into holes.
const FREED_BLOCKS: u64 = 2 * BLOCKS_PER_SEGMENT as u64;

/// Decides whether a checkpoint is written to make what was freed usable.
pub fn checkpoint_for_room(free_sections: u32, least: u32, reserved: u32, freed_blocks: u64) -> bool {
    (free_sections <= least && freed_blocks > 0)
        || (free_sections <= reserved && freed_blocks >= FREED_BLOCKS)
}

/// How worthwhile it is to clean a section: more is better. `valid_blocks` of `blocks` would have to be moved, and
/// the section last changed at `mtime` of `now`, in seconds of mounted time. (Rosenblum and Ousterhout's formula:
/// free space gained times age, by what it costs to read all and write the valid part.)
pub fn benefit(policy: Policy, valid_blocks: u32, blocks: u32, mtime: u64, now: u64) -> u64 {
    let free = u64::from(blocks - valid_blocks.min(blocks));
    match policy {
        Policy::Greedy => free,
        Policy::CostBenefit => {
            let age = now.saturating_sub(mtime).min(1 << 32) + 1;
            // Scaled, so that quotients below one still differ.
            (free << 8).saturating_mul(age) / (u64::from(blocks) + u64::from(valid_blocks))
        }
    }
}

impl Volume {
    /// Cleans up to `sections` sections, and writes a checkpoint so that they are free.
    pub fn clean(&mut self, sections: u32, policy: Policy) -> Result<Cleaned> {
        self.start()?;
        self.changed = true;
        let cleaned = self.clean_sections(sections, policy)?;
        if cleaned.sections > 0 {
            self.write_checkpoint(Reason::Sync)?;
        }
        Ok(cleaned)
    }

    /// Whether cleaning in idle times is worthwhile: more than half of what is free is in segments that are in use.
    pub fn is_fragmented(&self) -> bool {
        let all = u64::from(self.geometry.segments) * u64::from(BLOCKS_PER_SEGMENT);
        let free = all.saturating_sub(self.counters.valid_blocks);
        let whole = u64::from(self.checkpoint.free_segments) * u64::from(BLOCKS_PER_SEGMENT);
        whole < free / 2
    }

    /// Tells the device about everything that is free, in runs of at least `least_blocks`, and says how many blocks
    /// that were.
    pub fn trim(&mut self, least_blocks: u32) -> Result<u64> {
        self.start()?;
        // Only what the newest checkpoint does not need is free on the device.
        if self.changed {
            self.write_checkpoint(Reason::Sync)?;
        }
        let mut trimmed = 0;
        for number in (0..self.geometry.segments).map(SegNo) {
            let segment = self.sit.segment(&self.io, number)?.clone();
            let mut at = 0;
            while let Some(start) = segment.next_hole(at) {
                let taken = |n: u16| segment.next_hole(n) != Some(n);
                let end = (start..BLOCKS_PER_SEGMENT as u16)
                    .find(|n| taken(*n))
                    .unwrap_or(BLOCKS_PER_SEGMENT as u16);
                if u32::from(end - start) >= least_blocks.max(1) {
                    self.io.discard(self.geometry.block(number, start), u32::from(end - start))?;
                    trimmed += u64::from(end - start);
                }
                at = end;
            }
        }
        Ok(trimmed)
    }

    /// Sees that the logs find segments. A checkpoint gives back what only the last one needs; where that is not
    /// enough, sections are cleaned.
    pub(super) fn make_room(&mut self) -> Result<()> {
        if self.options.checkpoint_when_asked {
            return Ok(());
        }
        let least = LEAST_FREE_SECTIONS.min(self.reserved_sections());
        let free = self.free_sections()?;
        let freed = self.since_checkpoint.freed_blocks;
        if checkpoint_for_room(free, least, self.reserved_sections(), freed) {
            self.write_checkpoint(Reason::Sync)?;
            self.changed = true;
        }
        let missing = (least + 1).saturating_sub(self.free_sections()?).min(FOREGROUND_SECTIONS);
        if missing > 0 && self.clean_sections(missing, Policy::Greedy)?.sections > 0 {
            self.write_checkpoint(Reason::Sync)?;
            self.changed = true;
        }
        // What cleaning opened is no reason to look again.
        self.opened_segment = false;
        Ok(())
    }

    pub(super) fn free_sections(&mut self) -> Result<u32> {
        self.sit.free_sections(&self.io, &self.logs.segments())
    }

    fn clean_sections(&mut self, sections: u32, policy: Policy) -> Result<Cleaned> {
        // What waits in memory would only be moved twice.
        self.write_back()?;
        let mut cleaned = Cleaned::default();
        let mut tried = Vec::new();
        while cleaned.sections < sections && tried.len() < 4 * sections as usize {
            let Some(victim) = self.find_victim(policy, &tried)? else { break };
            tried.push(victim);
            self.avoid = self.geometry.segments_of(victim).collect();
            let result = self.clean_section(victim);
            self.avoid.clear();
            match result {
                Ok((moved, empty)) => {
                    cleaned.moved_blocks += moved;
                    cleaned.sections += u32::from(empty);
                }
                // There is nowhere to move to; what has been moved so far is free with the next checkpoint.
                Err(Error::NoSpace { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(cleaned)
    }

    /// The section that is most worth cleaning and was not tried.
    fn find_victim(&mut self, policy: Policy, tried: &[SecNo]) -> Result<Option<SecNo>> {
        let geometry = self.geometry;
        let current: Vec<SecNo> =
            self.logs.segments().iter().map(|segment| geometry.section_of(*segment)).collect();
        let per_section = geometry.segments_per_section;
        let (now, blocks) = (self.now, per_section * BLOCKS_PER_SEGMENT);
        let mut best: Option<(u64, SecNo)> = None;
        // The segments of a section come one after the other.
        let (mut valid, mut newest) = (0, 0);
        self.sit.for_each(&self.io, |number, segment: &Segment| {
            if number.0 % per_section == 0 {
                (valid, newest) = (0, 0);
            }
            valid += u32::from(segment.valid_blocks);
            newest = newest.max(segment.mtime);
            let section = geometry.section_of(number);
            let complete = number.0 % per_section == per_section - 1;
            if !complete
                || valid == 0
                || valid >= blocks
                || current.contains(&section)
                || tried.contains(&section)
            {
                return;
            }
            let gain = benefit(policy, valid, blocks, newest, now);
            if best.is_none_or(|(high, _)| gain > high) {
                best = Some((gain, section));
            }
        })?;
        Ok(best.map(|(_, section)| section))
    }

    /// Moves everything out of a section. Says how many blocks were moved, and whether nothing is left.
    fn clean_section(&mut self, section: SecNo) -> Result<(u64, bool)> {
        let (mut moved, mut left) = (0, 0);
        for number in self.geometry.segments_of(section) {
            let segment = self.sit.segment(&self.io, number)?.clone();
            if segment.valid_blocks == 0 {
                continue;
            }
            let summary = self.read_summary(number)?;
            if summary.is_node != segment.kind.is_node() {
                let what = format!("a summary of {} in a {} segment", kind_of(&summary), segment.kind);
                return Err(Error::corrupt(Place::Ssa(number), what));
            }
            for offset in (0..BLOCKS_PER_SEGMENT as u16).filter(|n| bits::msb(&segment.map, usize::from(*n)))
            {
                let owner = summary.owners[usize::from(offset)];
                let addr = self.geometry.block(number, offset);
                let done = match segment.kind.is_node() {
                    true => self.move_node(number, addr, owner)?,
                    false => self.move_data(number, addr, owner)?,
                };
                moved += u64::from(done);
                left += u64::from(!done);
            }
        }
        Ok((moved, left == 0))
    }

    fn move_node(&mut self, segment: SegNo, addr: BlockAddr, owner: Owner) -> Result<bool> {
        let entry = self.nat.get(&self.io, owner.nid)?;
        if entry.addr != addr {
            let what = format!("{addr} is valid, but {} is at {}", owner.nid, entry.addr);
            return Err(Error::corrupt(Place::Ssa(segment), what));
        }
        self.node_mut(owner.nid)?;
        self.write_node(owner.nid, Marks::default())?;
        Ok(true)
    }

    /// Moves a block of a file; `false` where the file is pinned.
    fn move_data(&mut self, segment: SegNo, addr: BlockAddr, owner: Owner) -> Result<bool> {
        let node = self.node(owner.nid)?;
        let (ino, index) = (node.ino(), usize::from(owner.offset));
        let block =
            self.block_of(&node, index)?.filter(|_| index < node.addr_count() && node.addr(index) == addr);
        let Some(block) = block else {
            let what = format!("{addr} is valid, but not address {index} of {}", owner.nid);
            return Err(Error::corrupt(Place::Ssa(segment), what));
        };
        drop(node);
        let inode = self.inode(ino)?;
        if inode.has_inline(inline::PIN) {
            return Ok(false);
        }
        let kind = log_for(self.options.active_logs, SegmentType::ColdData, inode.is_directory());
        // What is stored for a compressed cluster moves as it is, even where its content waits to be replaced.
        let whole = inode.compression().is_none();
        drop(inode);
        if whole && self.pages.get(ino, block).is_some() {
            self.write_page(ino, block, false)?;
            return Ok(true);
        }
        let mut bytes = vec![0; self.geometry.block_size.bytes()];
        self.read_block(addr, Place::File(ino, block), &mut bytes)?;
        let slot = Slot { nid: owner.nid, index, left: 1 };
        self.relocate(ino, slot, block, kind, &bytes)?;
        self.content_moves_out(ino)?;
        Ok(true)
    }

    /// The block of its file that an address of a node is for.
    pub(super) fn block_of(&self, node: &NodeBlock, index: usize) -> Result<Option<u64>> {
        let layout = self.inode(Ino(node.ino().0))?.layout();
        let kind = NodeKind::of(self.geometry.block_size, node.footer().offset);
        let first = kind.and_then(|kind| kind.first_block(&layout));
        Ok(first.map(|first| first + index as u64))
    }
}

fn kind_of(summary: &Summary) -> &'static str {
    if summary.is_node { "nodes" } else { "data" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_must_be_worth_its_blocks() {
        assert!(checkpoint_for_room(8, 8, 20, 1) && !checkpoint_for_room(8, 8, 20, 0));
        assert!(!checkpoint_for_room(15, 8, 20, 1000) && checkpoint_for_room(15, 8, 20, 1024));
        assert!(!checkpoint_for_room(21, 8, 20, 1 << 20));
    }

    #[test]
    fn greedy_looks_at_space_and_cost_benefit_also_at_age() {
        let greedy = |valid| benefit(Policy::Greedy, valid, 512, 0, 100);
        assert!(greedy(10) > greedy(11) && greedy(512) == 0);
        let weighed = |valid, mtime| benefit(Policy::CostBenefit, valid, 512, mtime, 100_000);
        assert!(weighed(10, 500) > weighed(11, 500));
        assert!(weighed(300, 0) > weighed(100, 99_990), "old and half full beats young and nearly empty");
        assert_eq!(weighed(512, 0), 0);
        assert!(benefit(Policy::CostBenefit, 1, 512, 900, 100) > 0, "a clock that went back does no harm");
    }
}
