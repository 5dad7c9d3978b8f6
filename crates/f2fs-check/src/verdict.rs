//! Conclusions that need the whole volume: wrong addresses, summaries, the SIT, and the sums.

use f2fs::{
    Place,
    format::{
        BLOCKS_PER_SEGMENT, bits,
        checkpoint::LogPosition,
        sit::{self, SegmentType},
        superblock::Features,
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Slot,
    addresses::{Doubt, Odd},
    checker::{Checker, Counts, ODD_MAX},
    inodes::{BLOCKS, EXTENT, SAVED_BLOCKS},
    segments::{Content, Contents},
    table::{Entry, fact},
};

/// Blocks of a segment without an owner in the summary, from which on the summary is taken for lost.
const BLANK_MIN: usize = 8;
/// Nodes without a mark, from which on the block of the SIT is taken for an old one.
const UNMARKED_MIN: usize = 8;

/// Losses of blocks, which a wrong count of blocks would tell again.
const BLOCK_LOSSES: [Loss; 5] = [Loss::DirBlock, Loss::Address, Loss::Block, Loss::Copy, Loss::Cluster];

impl Checker<'_> {
    /// Checks that the logs go on at free blocks.
    pub fn check_logs(&mut self) {
        if self.superblock.features.has(Features::RO) {
            return;
        }
        for kind in SegmentType::ALL {
            let LogPosition { segment, offset, mode } = self.checkpoint.logs[kind.index()];
            let (valid, _) = self.segments.maps(segment);
            let end = if mode.is_ssr() { offset + 1 } else { BLOCKS_PER_SEGMENT as u16 };
            if let Some(used) = (offset..end).find(|at| bits::msb(valid, usize::from(*at))) {
                let known = format!("the {kind} log goes on at block {offset}; block {used} is in use");
                self.add(Kind::LogPosition, Place::Sit(segment), known);
            }
        }
    }

    /// Draws all conclusions.
    pub fn conclude(&mut self) {
        self.conclude_nodes();
        self.conclude_unreadable();
        self.conclude_lost();
        let old = self.old_sit_blocks();
        self.remake_inodes(&old);
        let mut unused = self.find_originals(&old);
        self.find_displaced(&old, &mut unused);
        self.find_emptied(&old, &mut unused);
        self.clear_freed(&unused);
        self.conclude_displaced(&mut unused);
        self.conclude_addresses();
        self.conclude_summaries();
        self.conclude_segments(unused);
        self.conclude_counts();
        self.conclude_sums();
    }

    /// Collects the valid blocks that nothing names, by segment. A block whose summary names an odd address
    /// is the original of that address, unless the block of the SIT that marks it is old.
    fn find_originals(&mut self, old: &FxHashSet<u32>) -> Vec<(SegNo, Vec<BlockAddr>)> {
        let mut unused = Vec::new();
        for segment in self.segments.all() {
            let mut blocks = self.segments.unused(segment);
            let is_old = old.contains(&self.sit_block(segment));
            let is_doubtful = self.segments.contradicts_itself(segment);
            blocks.retain(|addr| {
                if is_old {
                    return true;
                }
                let Some(owned) = self.summaries.owner(&self.io, *addr) else { return true };
                let Some(odd) = self.odd.get_mut(&(owned.owner.nid, owned.owner.offset)) else { return true };
                // Other content in a block of the SIT marks old blocks.
                if is_doubtful && matches!(odd.doubt, Doubt::Summary(..) | Doubt::Unmarked) {
                    return true;
                }
                // A segment of nodes has no data.
                if odd.original.is_some() || self.segments.content(segment) == Some(Content::Node) {
                    return true;
                }
                odd.original = Some(*addr);
                false
            });
            if !blocks.is_empty() {
                unused.push((segment, blocks));
            }
        }
        unused
    }

    /// The blocks of the SIT that do not mark many nodes that the NAT names, or did not before a roll-forward.
    fn old_sit_blocks(&mut self) -> FxHashSet<u32> {
        let mut unmarked: FxHashMap<u32, usize> = FxHashMap::default();
        for segment in self.segments.all() {
            if self.segments.content(segment) == Some(Content::Node) {
                let (valid, claimed) = self.segments.maps(segment);
                let missing =
                    valid.iter().zip(claimed).map(|(valid, claimed)| (claimed & !valid).count_ones());
                *unmarked.entry(self.sit_block(segment)).or_default() += missing.sum::<u32>() as usize;
            }
        }
        let old = unmarked.into_iter().filter(|(_, count)| *count >= UNMARKED_MIN);
        self.segments.old.extend(old.map(|(block, _)| block));
        self.segments.old.clone()
    }

    /// Index of the block of the SIT that has a segment's entry.
    pub fn sit_block(&self, segment: SegNo) -> u32 {
        sit::position(segment, self.geometry.block_size).0
    }

    /// Decides on the odd addresses and on the blocks with two owners.
    fn conclude_addresses(&mut self) {
        let mut all: Vec<((Nid, u16), Odd)> = self.odd.drain().collect();
        all.sort_by_key(|(key, _)| (key.0.0, key.1));
        self.keep_where_summaries_are_blank(&mut all);
        for (_, odd) in &all {
            let Some(original) = odd.original else { continue };
            let known = format!("it names {}; the summary of {original} names this place", odd.addr);
            let finding = Finding::new(Kind::BlockAddress, Place::File(odd.ino, odd.block), known)
                .repaired_by(format!("set the address to {original}"));
            self.report.add(finding.with_certainty(self.certainty_of_original(odd)));
            self.report.fix(Fix::Node(odd.slot, original.0.to_le_bytes().to_vec()));
            self.note_change_of_map(odd.ino);
            self.give_up(odd);
            self.segments.claim(original, Content::Data);
        }
        let (overwritten, filled) = (overwritten_sectors(&all), self.files_with_filled_holes(&all));
        for (_, odd) in all.into_iter().filter(|(_, odd)| odd.original.is_none()) {
            let is_overwritten = overwritten.contains(&sector_of(&odd));
            if let Some(evidence) = self.evidence_of_hole(&odd, &filled) {
                self.give_up(&odd);
                self.restore_hole(&odd, &evidence);
                continue;
            }
            match &odd.doubt {
                Doubt::Outside => {
                    let known = format!("it names {}, outside the main area", odd.addr);
                    self.clear_address(&odd, known);
                }
                Doubt::Summary(_, what) if is_overwritten => {
                    self.give_up(&odd);
                    let known = format!(
                        "it names {}, whose summary {what}, and addresses beside it lie outside the main area",
                        odd.addr
                    );
                    self.clear_address(&odd, known);
                }
                _ if self.shared.release(odd.addr, odd.slot) => {
                    self.separate(odd.addr, odd.slot);
                    let known = format!(
                        "block {} of {} and another owner name it; the summary does not confirm the first",
                        odd.block, odd.ino
                    );
                    self.add(Kind::BlockTwice, Place::Block(odd.addr), known);
                }
                Doubt::Summary(kind, what) => self.summary_fault(*kind, odd.addr, what),
                // Without another block for the place, the address counts.
                Doubt::NodeLog | Doubt::Unmarked | Doubt::Older(_) => {}
            }
        }
        self.separate_owners();
    }

    /// Returns the certainty that an address is wrong and that its original is right.
    fn certainty_of_original(&self, odd: &Odd) -> Certainty {
        match odd.doubt {
            // The file may have reserved the place anew.
            Doubt::Outside if odd.addr == BlockAddr::NEW => Certainty::Likely,
            Doubt::Outside | Doubt::Summary(..) => Certainty::Certain,
            // Nothing tells the content of a block that the SIT marks and that has no other owner.
            Doubt::NodeLog if self.segments.is_valid(odd.addr) && !self.shared.contains(odd.addr) => {
                Certainty::Likely
            }
            Doubt::NodeLog => Certainty::Certain,
            // An old block of the SIT looks the same.
            Doubt::Unmarked => Certainty::Unclear,
            Doubt::Older(certainty) => certainty,
        }
    }

    /// Takes back that an address claimed a block.
    fn give_up(&mut self, odd: &Odd) {
        if self.geometry.in_main(odd.addr)
            && !self.shared.release(odd.addr, odd.slot)
            && !self.segments.is_valid(odd.addr)
        {
            self.segments.unclaim(odd.addr, Content::Data);
        }
    }

    /// Has an address cleared whose block nothing tells.
    fn clear_address(&mut self, odd: &Odd, known: String) {
        self.note_change_of_map(odd.ino);
        self.add(Kind::BlockAddress, Place::File(odd.ino, odd.block), known);
        self.fix(Fix::Node(odd.slot, vec![0; 4]));
        *self.cleared.entry(odd.ino).or_default() += 1;
    }

    /// Keeps addresses of blocks in segments whose summary tells no owner of many blocks: the summary is lost, and a block
    /// that names the place may be an old one.
    fn keep_where_summaries_are_blank(&mut self, all: &mut [((Nid, u16), Odd)]) {
        let is_blank = |odd: &Odd| {
            let tells_nothing = odd.owner == Nid::NULL || self.table.find(odd.owner).is_none();
            let needs_summary = matches!(odd.doubt, Doubt::Summary(..) | Doubt::Unmarked);
            needs_summary && tells_nothing && !self.shared.contains(odd.addr)
        };
        let mut blank: FxHashMap<SegNo, usize> = FxHashMap::default();
        for (_, odd) in all.iter().filter(|(_, odd)| is_blank(odd)) {
            *blank.entry(self.geometry.position(odd.addr).0).or_default() += 1;
        }
        let lost = |odd: &Odd| {
            blank.get(&self.geometry.position(odd.addr).0).is_some_and(|count| *count >= BLANK_MIN)
        };
        let mut freed = 0;
        for (_, odd) in all.iter_mut().filter(|(_, odd)| is_blank(odd) && lost(odd)) {
            let original = odd.original.take();
            freed += usize::from(original.is_some() && matches!(odd.doubt, Doubt::Unmarked));
        }
        // Neither the summary nor the SIT confirms the addresses that are kept.
        (0..freed).for_each(|_| self.lose(Loss::Block));
    }

    fn conclude_summaries(&mut self) {
        let mut faults: Vec<_> = self.faults.drain().collect();
        faults.sort_by_key(|(key, _)| *key);
        for ((segment, kind), fault) in faults {
            let more =
                if fault.count > 1 { format!("; {} entries are wrong", fault.count) } else { String::new() };
            self.add(kind, Place::Ssa(SegNo(segment)), format!("{}{more}", fault.first));
        }
        let mut footers: Vec<(u32, u16)> = self.footers.drain().collect();
        footers.sort_unstable();
        for (segment, count) in footers.into_iter().map(|(segment, count)| (SegNo(segment), count)) {
            // A few blocks that differ from the others have a wrong owner, which is another finding.
            if u32::from(count) * 2 > u32::from(self.segments.claims(segment)) {
                let content = self.segments.content(segment).map_or("none", Content::name);
                let known = format!("the footer says the opposite of its blocks, which are {content}");
                self.add(Kind::SummaryFooter, Place::Ssa(segment), known);
                self.fix(Fix::Summary(segment));
            }
        }
        let mut unreadable = std::mem::take(&mut self.summaries.unreadable);
        unreadable.sort_unstable();
        unreadable.dedup();
        for segment in unreadable {
            self.add(Kind::SummaryUnreadable, Place::Ssa(segment), "it cannot be read");
            self.fix(Fix::Summary(segment));
        }
    }

    fn conclude_segments(&mut self, unused: Vec<(SegNo, Vec<BlockAddr>)>) {
        for segment in self.segments.all() {
            let (valid, claimed) = self.segments.maps(segment);
            let set = |map: &[u8]| map.iter().map(|byte| byte.count_ones()).sum::<u32>();
            let (marked, named) = (set(valid), set(claimed));
            let unmarked = |at: &usize| bits::msb(claimed, *at) && !bits::msb(valid, *at);
            let missing: Vec<usize> = match valid == claimed {
                true => Vec::new(),
                false => (0..BLOCKS_PER_SEGMENT as usize).filter(unmarked).collect(),
            };
            let count = u32::from(self.segments.count(segment));
            // A count that fits the blocks in use is right, and the map is wrong.
            let count_is_wrong = count != marked && (valid == claimed || count != named);
            let at = Place::Sit(segment);
            if let Some(first) = missing.first() {
                let known =
                    format!("block {first} is in use and not marked; so are {} blocks", missing.len());
                self.add(Kind::SitUnmarked, at, known);
            }
            if count_is_wrong {
                self.add(Kind::SitCount, at, format!("{count} valid blocks, {marked} bits set"));
            }
            self.check_type(segment);
        }
        self.conclude_mixed();
        for (segment, blocks) in unused {
            let (_, offset) = self.geometry.position(blocks[0]);
            let owner = self.summaries.owner(&self.io, blocks[0]);
            let owner =
                owner.map_or(String::new(), |owned| format!("; its summary names {}", owned.owner.nid));
            let known = format!(
                "{} blocks are marked and not in use, the first is block {offset}{owner}",
                blocks.len()
            );
            self.add(Kind::SitUnused, Place::Sit(segment), known);
        }
    }

    /// Compares the type of a segment with its blocks, and with the log in it.
    fn check_type(&mut self, segment: SegNo) {
        let at = Place::Sit(segment);
        let Some(kind) = self.segments.kind(segment) else {
            return self.add(Kind::SitType, at, "the type is none of 0 to 5");
        };
        let is_other = |content: Content| kind.is_node() != (content == Content::Node);
        if let Some(content) = self.segments.content(segment).filter(|content| is_other(*content)) {
            self.add(Kind::SitType, at, format!("the type is {kind}, the blocks are {}", content.name()));
        } else if let Some(content) =
            self.segments.typed_content(segment).filter(|content| is_other(*content))
        {
            let known = format!(
                "it is empty, first in its section, and of type {kind}; the section has {}",
                content.name()
            );
            let finding = Finding::new(Kind::SectionMixed, at, known);
            self.report.add(finding.repaired_by("set the type by the blocks of the section"));
        } else if let Some(log) = self.log_in(segment).filter(|log| *log != kind) {
            self.add(Kind::SitType, at, format!("the type is {kind}, the {log} log lies in it"));
        }
    }

    /// The log in a segment, if one is there.
    pub fn log_in(&self, segment: SegNo) -> Option<SegmentType> {
        let is_read_only = self.superblock.features.has(Features::RO);
        SegmentType::ALL.into_iter().find(|kind| {
            // Volumes that are only read have two logs.
            let counts = !is_read_only || matches!(kind, SegmentType::HotData | SegmentType::HotNode);
            counts && self.checkpoint.logs[kind.index()].segment == segment
        })
    }

    /// Compares i_blocks with the blocks that were found, less those whose addresses are `cleared`. Where it counts more,
    /// addresses of the file are gone, or it is wrong. The loss of files in `unclear` is told.
    fn conclude_block_counts(&mut self, cleared: &FxHashMap<Ino, u32>, unclear: &[Ino], skipped: u16) {
        let cleared_of = |ino: Ino| cleared.get(&ino).copied().unwrap_or(0);
        let is_wrong = |(nid, entry): &(Nid, Entry)| {
            let ino = Ino::from(*nid);
            // An inode that is older than its file may name nodes that the file has given up, too.
            let skipped = if self.outdated.freed.count(ino) > 0 { skipped & !fact::TAINTED } else { skipped };
            self.table.ino(*entry) == ino
                && !self.table.has(*entry, skipped)
                && !self.missing_marks.changed_maps.contains(&ino)
                && self.table.blocks_left(*entry) != 0u32.wrapping_sub(cleared_of(ino))
        };
        let wrong: Vec<(Nid, Entry)> = self.table.iter().filter(is_wrong).collect();
        for (nid, entry) in wrong {
            let ino = Ino::from(nid);
            let (left, cleared) = (self.table.blocks_left(entry), cleared_of(ino));
            let stored = self.inode_of(ino).map_or(0, |inode| inode.head().blocks.get());
            let found = u64::from((stored as u32).wrapping_sub(left).wrapping_sub(cleared));
            let lacking = stored.saturating_sub(found).saturating_sub(cleared.into());
            let is_told = unclear.binary_search(&ino).is_ok();
            let freed = self.outdated.freed.count(ino);
            let is_older = self.table.has(entry, fact::TAINTED) || (1..=freed).contains(&lacking);
            if is_older {
                self.outdated.freed.note_older(ino);
            } else if !is_told {
                (0..lacking).take(ODD_MAX).for_each(|_| self.lose(Loss::Address));
            }
            let known = format!("i_blocks {stored}, {found} found");
            let finding = Finding::new(Kind::BlockCount, Place::Inode(ino), known);
            self.report.add(match is_told || lacking > 0 {
                true => finding.with_certainty(Certainty::Unclear),
                false => finding,
            });
            self.fix(Fix::Node(Slot { nid, at: BLOCKS }, found.to_le_bytes().to_vec()));
        }
    }

    /// Compares the counts in inodes with the blocks that were found.
    fn conclude_counts(&mut self) {
        let skipped = fact::BROKEN | fact::INVALID | fact::TAINTED;
        let unclear = self.conclude_missing_marks(skipped);
        let cleared = std::mem::take(&mut self.cleared);
        self.outdated.cleared_blocks = cleared.values().map(|count| u64::from(*count)).sum();
        self.conclude_block_counts(&cleared, &unclear, skipped);
        self.lose_cleared(cleared, skipped);
        self.conclude_extents();
        self.conclude_freed();
        self.conclude_sizes();
        let mut saved: Vec<(Ino, i64)> = self.saved.drain().filter(|(_, left)| *left != 0).collect();
        saved.sort_unstable();
        for (ino, left) in saved {
            let tainted = self.table.find(ino.into()).is_some_and(|entry| self.table.has(entry, skipped));
            if !tainted && !self.missing_marks.changed_maps.contains(&ino) {
                let stored = self.inode_of(ino).and_then(|inode| inode.saved_blocks()).unwrap_or(0) as i64;
                let known = format!("i_compr_blocks {stored}, {} found", stored - left);
                self.add_count(Kind::SavedBlocks, ino, known, &unclear);
                let found = u64::try_from(stored - left).unwrap_or(0);
                self.fix(Fix::Node(Slot { nid: ino.into(), at: SAVED_BLOCKS }, found.to_le_bytes().to_vec()));
            }
        }
    }

    /// Counts cleared addresses as lost blocks: those of an inode as far as its i_blocks counts blocks that were not found.
    /// An inode with a fact in `skipped` does not count them.
    fn lose_cleared(&mut self, all: FxHashMap<Ino, u32>, skipped: u16) {
        for (ino, cleared) in all {
            let entry = self.table.find(ino.into()).filter(|entry| !self.table.has(*entry, skipped));
            // The number wraps if more were found, and cleared addresses are among them.
            let missing = entry.map(|entry| self.table.blocks_left(entry).wrapping_add(cleared));
            let lost = missing.filter(|missing| *missing <= cleared).unwrap_or(cleared);
            (0..lost).for_each(|_| self.lose(Loss::Address));
        }
    }

    /// Reports extents with blocks that have no address.
    fn conclude_extents(&mut self) {
        let mut extents: Vec<(Ino, u32)> = self.extents.drain().filter(|(_, left)| *left > 0).collect();
        extents.sort_unstable();
        for (ino, left) in extents {
            let skipped = fact::BROKEN | fact::INVALID | fact::TAINTED;
            let entry = self.table.find(ino.into()).filter(|entry| !self.table.has(*entry, skipped));
            if entry.is_some() {
                let known = format!("{left} blocks of its extent have no address");
                self.add(Kind::Extent, Place::Inode(ino), known);
                self.fix(Fix::Node(Slot { nid: ino.into(), at: EXTENT }, vec![0; 12]));
            }
        }
    }

    /// Compares the sums in the checkpoint with what was found.
    fn conclude_sums(&mut self) {
        let inodes =
            self.table.iter().filter(|(nid, entry)| self.table.ino(*entry) == Ino::from(*nid)).count();
        let found = self.report.sums.nodes;
        self.report.sums.nodes = self.table.len() as u64;
        self.report.sums.inodes = inodes as u64;
        let at = Place::Checkpoint(self.pack);
        let nodes = u64::from(self.checkpoint.valid_nodes);
        if nodes != self.report.sums.nodes {
            let known = format!("valid_node_count {nodes}, {} found", self.report.sums.nodes);
            self.add(Kind::CountNodes, at, known);
        }
        let inodes = u64::from(self.checkpoint.valid_inodes);
        if inodes != self.report.sums.inodes {
            let known = format!("valid_inode_count {inodes}, {} found", self.report.sums.inodes);
            self.add(Kind::CountInodes, at, known);
        }
        self.lose_missing(found, nodes, inodes);
        if self.are_nodes_known() && self.checkpoint.valid_blocks != self.report.sums.blocks {
            self.conclude_block_sum(at);
        }
        self.conclude_free(at);
    }

    /// Tells that the checkpoint counts other blocks than the nodes name. With an old block of the SIT, an old node looks like the
    /// newest: then only the count tells of the blocks that its file has got or given up since.
    fn conclude_block_sum(&mut self, at: Place) {
        let (counted, found) = (self.checkpoint.valid_blocks, self.report.sums.blocks);
        let known = format!("valid_block_count {counted}, {found} found");
        let finding = Finding::new(Kind::CountBlocks, at, known);
        let losses = self.report.losses();
        let told: u64 = BLOCK_LOSSES.iter().filter_map(|loss| losses.get(loss)).sum();
        let untold = match self.outdated.counts() {
            // A lost node has any number of them.
            Counts::Stored if !losses.contains_key(&Loss::Node) => {
                let restored = found + self.missing_marks.restored_blocks;
                counted.abs_diff(restored).saturating_sub(told + self.outdated.cleared_blocks)
            }
            _ => 0,
        };
        let loss = if found > counted { Loss::Freed } else { Loss::Address };
        (0..untold).take(ODD_MAX).for_each(|_| self.lose(loss));
        self.report.add(match untold {
            0 => finding,
            _ => finding.with_certainty(Certainty::Unclear),
        });
    }

    /// Counts nodes as lost that the NAT or a parent names and of which no block was found, and those of which only the
    /// checkpoint has the number, because the NAT journal was lost. Entries of a damaged block of the NAT may name more
    /// nodes than there were: of `nodes` according to the checkpoint, `found` were found, and others are made anew.
    fn lose_missing(&mut self, found: u64, nodes: u64, inodes: u64) {
        let mut lost = self.unfound_nodes;
        // One wrong number in the checkpoint leaves the other right.
        if inodes > self.report.sums.inodes {
            lost += nodes.saturating_sub(self.report.sums.nodes);
        }
        if let Some(missing) = nodes.checked_sub(found) {
            let is_made = |fix: &&Fix| matches!(fix, Fix::Inode(..) | Fix::Direct { .. });
            let made = self.report.fixes().iter().filter(is_made).count() as u64;
            lost = lost.min(missing.saturating_sub(made));
        }
        (0..lost).take(ODD_MAX).for_each(|_| self.lose(Loss::Node));
    }

    fn conclude_free(&mut self, at: Place) {
        let mut free = [0u32; 2];
        for segment in self.segments.all().filter(|segment| self.log_in(*segment).is_none()) {
            let (valid, claimed) = self.segments.maps(segment);
            free[0] += u32::from(valid.iter().all(|byte| *byte == 0));
            free[1] += u32::from(claimed.iter().all(|byte| *byte == 0));
        }
        self.report.sums.free_segments = free[1].into();
        let stored = self.checkpoint.free_segments;
        // Where the map of a segment is wrong, the count may fit either.
        if !free.contains(&stored) {
            self.add(Kind::CountFree, at, format!("free_segment_count {stored}, {} found", free[1]));
        }
    }
}

/// The sector of an address: its node, and the number of the sector there.
fn sector_of(odd: &Odd) -> (Nid, usize) {
    (odd.slot.nid, odd.slot.at / block::ATOMIC_BYTES)
}

/// Sectors of nodes with more addresses that are wrong for certain than others that a summary contradicts: other content
/// was written over them. Where a summary is lost, the addresses are right.
fn overwritten_sectors(all: &[((Nid, u16), Odd)]) -> FxHashSet<(Nid, usize)> {
    let mut votes: FxHashMap<(Nid, usize), i32> = FxHashMap::default();
    for (_, odd) in all {
        let vote = match odd.doubt {
            Doubt::Unmarked | Doubt::Older(_) => 0,
            _ if odd.original.is_some() => 1,
            Doubt::Outside => 1,
            Doubt::Summary(..) => -1,
            Doubt::NodeLog => 0,
        };
        *votes.entry(sector_of(odd)).or_default() += vote;
    }
    votes.into_iter().filter(|(_, votes)| *votes > 0).map(|(sector, _)| sector).collect()
}
