//! Block allocation: the decision on where a new block goes, and its effect on logs, segments and
//! summaries.

use super::{
    Segment, Segments,
    replace::FsyncMark,
    sit::{Facts, Prefree},
};
use crate::{
    Error, Result,
    disk::{ActiveLogs, Mode},
    format::{
        BLOCKS_PER_SEGMENT, FileType,
        checkpoint::AllocMode,
        sit::SegmentType,
        summary::{Owner, Summary},
    },
    units::{BlockAddr, SecNo, SegNo},
};

/// Number of summaries of left segments at which they are written together.
const SUMMARIES_MAX: usize = 256;

/// Number of SSR segments with unreadable summaries after which a search fails: each may take seconds. The
/// next search leaves them out. A checkpoint has to find a segment, so its search has no limit.
const TRIES: usize = 4;

/// Maximum number of zones examined in the search for a completely free one.
const ZONES_TRIED: usize = 16;

/// Chooses between a free section and SSR for a log whose segment is full. SSR starts once only the reserved
/// sections are free, so that cleaning always has room to work in. (Linux, `f2fs_need_SSR`, starts at twice
/// the reserve; on small volumes that is always.) With [`Mode::Lfs`] it never starts.
pub(super) fn next_mode(mode: Mode, free_sections: u32, reserved_sections: u32) -> AllocMode {
    match mode {
        Mode::Adaptive if free_sections <= reserved_sections => AllocMode::Ssr,
        Mode::Adaptive | Mode::Lfs => AllocMode::Append,
    }
}

/// Returns the other one of the two logs that an fsync writes: data of files, and the nodes with its
/// addresses.
fn partner(kind: SegmentType) -> Option<SegmentType> {
    match kind {
        SegmentType::WarmData => Some(SegmentType::WarmNode),
        SegmentType::WarmNode => Some(SegmentType::WarmData),
        _ => None,
    }
}

/// Returns true if the data log leaves the rest of its segment to join the node log in another zone, or the
/// other way round. While most of the volume is free and a quarter of the segment is used, sharing a zone is
/// worth more than space. (A database writes two to three blocks of data for each node, a new file up to two
/// nodes for each block of data.) SSR fills the rest of the segment when free sections run short.
fn leaves_early(offset: u16, free_sections: u32, sections: u32) -> bool {
    u32::from(offset) >= BLOCKS_PER_SEGMENT / 4 && is_mostly_free(free_sections, sections)
}

/// Returns true if more than half of the sections are free, so that sharing a zone is worth more than space.
fn is_mostly_free(free_sections: u32, sections: u32) -> bool {
    free_sections > sections / 2
}

/// Number of fsyncs during one segment of nodes from which data and nodes are kept in one zone. With data and
/// nodes in two zones, a card switches units twice for each fsync. If a log leaves a zone before its end, the
/// card keeps the zone's old content and moves it once its spare blocks are used up: up to three quarters of
/// a segment, which takes as long as this number of fsyncs in two zones (2.1 ms for a switch, 0.36 ms for a
/// block). Without fsyncs, both logs are written in long runs, and sharing a zone gains nothing.
const FSYNCS_LEAST: u16 = 32;

/// Returns true if data and nodes of files should share a zone. `synced` is the number of nodes that fsyncs
/// wrote to the segment of the node log.
fn should_colocate(synced: u16) -> bool {
    synced >= FSYNCS_LEAST
}

/// Maps the log that fits a block of a file of type `file` best to one of the active logs (Linux,
/// `__get_segment_type`).
pub(crate) fn log_for_data(active: ActiveLogs, best: SegmentType, file: FileType) -> SegmentType {
    match active {
        ActiveLogs::Six => best,
        ActiveLogs::Four if file == FileType::Directory => SegmentType::HotData,
        ActiveLogs::Four => SegmentType::ColdData,
        ActiveLogs::Two => SegmentType::HotData,
    }
}

/// Maps the log that fits a node best to one of the active logs (Linux, `__get_segment_type`).
pub(crate) fn log_for_node(active: ActiveLogs, best: SegmentType) -> SegmentType {
    match active {
        ActiveLogs::Six => best,
        ActiveLogs::Four if best == SegmentType::WarmNode => SegmentType::WarmNode,
        ActiveLogs::Four => SegmentType::ColdNode,
        ActiveLogs::Two => SegmentType::HotNode,
    }
}

/// The sort of segments whose holes a search considers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holes {
    /// Segments with valid blocks.
    InUse,
    /// Prefree segments. The next checkpoint frees them completely, so they are filled only if there is nothing else.
    Prefree,
}

impl Holes {
    fn are_in(self, segment: &Segment) -> bool {
        match self {
            Holes::InUse => segment.valid_blocks > 0,
            Holes::Prefree => segment.is_prefree(),
        }
    }
}

/// An allocated block, which must be [written](Self::written): one that is dropped instead is a panic.
#[derive(Debug)]
#[must_use = "the block is valid and has no content yet"]
pub(super) struct Allocated {
    /// Its address.
    pub addr: BlockAddr,
    /// The next address of the log, null if the log is full. Node footers carry it for roll-forward recovery.
    pub next: BlockAddr,
}

impl Allocated {
    /// Adds the block behind this one, or behind the last one that was added. They are written together.
    pub(super) fn join(&mut self, behind: Allocated) {
        self.next = behind.next;
        std::mem::forget(behind);
    }

    /// Returns the address for the log, which gets the content in the same call.
    pub(super) fn written(self) -> BlockAddr {
        let addr = self.addr;
        std::mem::forget(self);
        addr
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "{} is allocated and not written", self.addr);
    }
}

impl Segments {
    /// Allocates the next block of a log. The caller gives its content to the log.
    pub(super) fn allocate(&mut self, kind: SegmentType, owner: Owner) -> Result<Allocated> {
        let kind = self.log_with_room(kind)?;
        // `mark_changed` is not called when pages are written that the last checkpoint could not write.
        self.changed = true;
        let now = self.disk.mounted_seconds();
        let log = self.logs.get_mut(kind);
        let addr = self.disk.geometry().block(log.segment, log.offset);
        let block = match self.turnover.borrowed.contains(&log.segment) {
            true => self.sit.invalid_block(self.disk.io(), addr)?,
            false => self.sit.free_block(self.disk.io(), addr)?,
        };
        self.sit.take(block, kind, now);
        self.since_fsync_blocks =
            self.since_fsync_blocks.saturating_add(u32::from(kind == SegmentType::WarmData));
        log.summary.owners[usize::from(log.offset)] = owner;
        log.offset = match log.mode {
            AllocMode::Ssr => {
                let hole = self.sit.segment(self.disk.io(), log.segment)?.next_hole(log.offset + 1);
                hole.unwrap_or(BLOCKS_PER_SEGMENT as u16)
            }
            AllocMode::Append => log.offset + 1,
        };
        if log.is_full() {
            // This block is allocated all the same. The next allocation tries again.
            let _opened = self.open_segment(kind, Prefree::Excluded);
        }
        let log = self.logs.get(kind);
        let next = match log.is_full() {
            true => BlockAddr::NULL,
            false => self.disk.geometry().block(log.segment, log.offset),
        };
        Ok(Allocated { addr, next })
    }

    /// As [`allocate`](Self::allocate), for a node. The node log may go on beside the data log when an fsync has marked a
    /// node.
    pub(super) fn allocate_node(
        &mut self,
        kind: SegmentType,
        owner: Owner,
        mark: FsyncMark,
    ) -> Result<Allocated> {
        let mut place = self.allocate(kind, owner)?;
        if mark == FsyncMark::Set {
            self.logs.get_mut(kind).synced += 1;
            // This only improves speed. The node already has its block and must be written there in any case.
            match self.colocate_nodes() {
                Ok(next) => place.next = next.unwrap_or(place.next),
                Err(_) => self.turnover.no_zone = true,
            }
            self.since_fsync_blocks = 0;
        }
        if kind == SegmentType::WarmNode {
            self.turnover.chain_ended |= place.next == BlockAddr::NULL;
        }
        Ok(place)
    }

    /// Keeps the logs out of the section that is being cleaned, and lets them into all others.
    pub(crate) fn set_cleaning(&mut self, section: Option<SecNo>) {
        let segments = section.map(|section| self.disk.geometry().segments_of(section));
        self.avoid = segments.into_iter().flatten().collect();
    }

    /// The *unavailable* segments, which no log may open now.
    pub(super) fn unavailable_segments(&self) -> Vec<SegNo> {
        self.unavailable_segments_with(&self.discarded_segments())
    }

    /// The unavailable segments as long as discards of `discarded` are in flight.
    fn unavailable_segments_with(&self, discarded: &[SegNo]) -> Vec<SegNo> {
        [&self.logs.segments(), &*self.avoid, &*self.unreadable, discarded].concat()
    }

    /// Returns the log that allocates the next block for `kind`, and opens a segment if it is full. Recovery
    /// needs few blocks but may find no free segment; it then uses another log for nodes, or for data. An
    /// fsync must not do so, because its nodes form a chain in one log.
    fn log_with_room(&mut self, kind: SegmentType) -> Result<SegmentType> {
        if !self.logs.get(kind).is_full() {
            return Ok(kind);
        }
        let opened = self.open_segment(kind, Prefree::Excluded);
        if matches!(opened, Err(Error::NoSpace { .. })) && self.recovering.is_some() {
            let has_room =
                |other: &SegmentType| other.is_node() == kind.is_node() && !self.logs.get(*other).is_full();
            if let Some(other) = SegmentType::ALL.into_iter().find(has_room) {
                return Ok(other);
            }
        }
        opened.map(|()| kind)
    }

    /// Opens the next segment of a log.
    pub(super) fn open_segment(&mut self, kind: SegmentType, prefree: Prefree) -> Result<()> {
        let (old, synced) = (self.logs.get(kind).segment, self.logs.get(kind).synced);
        let mut tries = 0;
        let (segment, mode) = loop {
            let discarded = self.discarded_segments();
            let unavailable = self.unavailable_segments_with(&discarded);
            let next = match self.next_of_section(old, &unavailable)? {
                Some(next) => Some((next, AllocMode::Append)),
                None => self.find_segment(kind, old, &unavailable, prefree)?,
            };
            let Some((segment, mode)) = next else {
                if tries == 0 && !self.unreadable.is_empty() {
                    // Summaries that could not be read before may be readable now.
                    self.unreadable.clear();
                    continue;
                }
                if !discarded.is_empty() {
                    // They are free once their discards have ended, which may be the case by now.
                    self.discards.wait();
                    continue;
                }
                return Err(Error::no_space(self.disk.geometry().block_size, 1, self.free_user_blocks()));
            };
            if !self.try_claim_segment(segment) {
                // A discard of it has just begun. Another segment does as well.
                continue;
            }
            let entered = self.enter_segment(kind, segment, mode);
            if !matches!(entered, Err(Error::Io { .. })) || self.logs.get(kind).segment != old {
                break entered.map(|()| (segment, mode))?;
            }
            // The summary of the segment cannot be read. Another segment with holes does as well.
            self.unreadable.push(segment);
            tries += 1;
            if tries == TRIES && prefree == Prefree::Excluded {
                return entered;
            }
        };
        if kind == SegmentType::WarmNode && !mode.is_ssr() && should_colocate(synced) {
            self.colocate_data(segment)?;
        }
        Ok(())
    }

    /// Moves the data log into the zone of `nodes`, the node log's new segment, if it should leave its own
    /// zone.
    fn colocate_data(&mut self, nodes: SegNo) -> Result<()> {
        let log = self.logs.get(SegmentType::WarmData);
        let (segment, offset, mode) = (log.segment, log.offset, log.mode);
        if mode.is_ssr() || self.share_zone(nodes, segment) {
            return Ok(());
        }
        match self.section_to_follow(offset, nodes)? {
            Some(segment) if self.try_claim_segment(segment) => {
                self.enter_segment(SegmentType::WarmData, segment, AllocMode::Append)
            }
            _ => Ok(()),
        }
    }

    /// Moves the node log into the zone of the data log, which had to leave the zone that they shared.
    /// Returns the address at which the node log continues if it moved. The nodes of fsyncs form a chain in
    /// which each footer holds the address of the next node, so the caller has allocated a node and not yet
    /// written it. While few sections are free, both logs may move (see `colocate_logs`).
    fn colocate_nodes(&mut self) -> Result<Option<BlockAddr>> {
        let [nodes, data] = [SegmentType::WarmNode, SegmentType::WarmData].map(|kind| self.logs.get(kind));
        if self.disk.geometry().sections_per_zone == 1 || self.share_zone(nodes.segment, data.segment) {
            self.fsyncs_apart = 0;
            return Ok(None);
        }
        let (is_ssr, colocate) = (nodes.mode.is_ssr() || data.mode.is_ssr(), should_colocate(nodes.synced));
        let (offset, data) = (nodes.offset, data.segment);
        if is_ssr || !is_mostly_free(self.free_sections()?, self.disk.geometry().sections) {
            return self.colocate_logs();
        }
        let follow = if colocate { self.section_to_follow(offset, data)? } else { None };
        match follow.filter(|segment| self.try_claim_segment(*segment)) {
            Some(segment) => {
                self.enter_segment(SegmentType::WarmNode, segment, AllocMode::Append)?;
                Ok(Some(self.disk.geometry().block(segment, 0)))
            }
            None => self.end_separation(),
        }
    }

    fn share_zone(&self, one: SegNo, other: SegNo) -> bool {
        let mut zone = self.disk.geometry().zone_of(self.disk.geometry().section_of(one));
        zone.any(|section| section == self.disk.geometry().section_of(other))
    }

    /// Returns a segment in the zone of `there` for a log at `offset` of its own segment, if the log should
    /// leave that.
    fn section_to_follow(&mut self, offset: u16, there: SegNo) -> Result<Option<SegNo>> {
        if self.disk.geometry().sections_per_zone == 1 {
            return Ok(None);
        }
        let unavailable = self.unavailable_segments();
        let free_sections = self.sit.free_sections(self.disk.io(), &unavailable)?;
        match leaves_early(offset, free_sections, self.disk.geometry().sections) {
            true => self.section_beside(there, &unavailable),
            false => Ok(None),
        }
    }

    /// Returns the first segment of a free section in the zone of `segment`.
    pub(super) fn section_beside(&mut self, segment: SegNo, unavailable: &[SegNo]) -> Result<Option<SegNo>> {
        if self.disk.geometry().sections_per_zone == 1 {
            return Ok(None);
        }
        for section in self.disk.geometry().zone_of(self.disk.geometry().section_of(segment)) {
            if self.sit.is_section_free(self.disk.io(), section, unavailable, Prefree::Excluded)? {
                return Ok(Some(SegNo(section.0 * self.disk.geometry().segments_per_section)));
            }
        }
        Ok(None)
    }

    /// Moves a log from its segment to `segment`.
    pub(super) fn enter_segment(&mut self, kind: SegmentType, segment: SegNo, mode: AllocMode) -> Result<()> {
        let old = self.logs.get(kind).segment;
        self.claim_segment(segment);
        let (summary, offset) = match mode {
            AllocMode::Ssr => {
                let hole = self
                    .sit
                    .segment(self.disk.io(), segment)?
                    .next_hole(0)
                    .expect("it was chosen for its holes");
                (self.summary_to_change(segment)?, hole)
            }
            AllocMode::Append => (Summary::empty(kind), 0),
        };
        self.sit.set_kind(self.disk.io(), segment, kind)?;
        (self.opened_segment, self.spare_sections) = (true, None);
        let log = self.logs.get_mut(kind);
        let left = std::mem::replace(&mut log.summary, summary);
        (log.segment, log.offset, log.mode, log.synced) = (segment, offset, mode, 0);
        log.summary.is_node = kind.is_node();
        self.summaries.insert(old, left);
        if self.summaries.len() >= SUMMARIES_MAX {
            // On failure they stay in memory, and the checkpoint tries again.
            let result = self.write_summaries();
            self.pushed(result)?;
        }
        Ok(())
    }

    /// Returns the segment after `old` if it is free and in the same section.
    fn next_of_section(&mut self, old: SegNo, unavailable: &[SegNo]) -> Result<Option<SegNo>> {
        let next = SegNo(old.0 + 1);
        let same_section = self.disk.geometry().section_of(next) == self.disk.geometry().section_of(old);
        let free = same_section
            && next.0 < self.disk.geometry().segments
            && !unavailable.contains(&next)
            && !self.sit.is_disabled(next)
            && self.sit.segment(self.disk.io(), next)?.is_free();
        Ok(free.then_some(next))
    }

    fn find_segment(
        &mut self,
        kind: SegmentType,
        old: SegNo,
        unavailable: &[SegNo],
        prefree: Prefree,
    ) -> Result<Option<(SegNo, AllocMode)>> {
        let free_sections = self.sit.free_sections(self.disk.io(), unavailable)?;
        let mode = self.disk.options().mode;
        if next_mode(mode, free_sections, self.reserved_sections()) == AllocMode::Ssr {
            let shared = match kind {
                SegmentType::WarmData => self.holes_to_colocate(unavailable)?,
                _ => None,
            };
            if let Some(segment) = shared {
                return Ok(Some((segment, AllocMode::Ssr)));
            }
            if let Some(segment) = self.find_holes(kind, unavailable, Holes::InUse)? {
                return Ok(Some((segment, AllocMode::Ssr)));
            }
        }
        if let Some(partner) = partner(kind) {
            let log = self.logs.get(partner);
            let (there, offset) = (log.segment, log.offset);
            let colocate = should_colocate(self.logs.get(SegmentType::WarmNode).synced);
            let nodes = kind == SegmentType::WarmNode;
            // If the data log is about to leave its segment, the node log opens a zone that the data log
            // joins.
            let begins =
                colocate && nodes && leaves_early(offset, free_sections, self.disk.geometry().sections);
            let zones: &[SegNo] = match (colocate, nodes) {
                (true, true) if begins => &[],
                // If there is no room, the node log opens a zone that the data log may join.
                (true, true) => &[there],
                (true, false) => &[there, old],
                // Both zones are filled before another is opened: a card would have to keep the old content
                // of the rest.
                (false, _) => &[old, there],
            };
            for zone in zones {
                if let Some(segment) = self.section_beside(*zone, unavailable)? {
                    return Ok(Some((segment, AllocMode::Append)));
                }
            }
        }
        let from = self.disk.geometry().section_of(SegNo((old.0 + 1) % self.disk.geometry().segments));
        let section = match self.free_zone(kind, from, unavailable)? {
            Some(section) => Some(section),
            None => self.sit.find_free_section(self.disk.io(), from, unavailable, prefree)?,
        };
        match section {
            Some(section) => {
                Ok(Some((SegNo(section.0 * self.disk.geometry().segments_per_section), AllocMode::Append)))
            }
            None => Ok(self.find_last_holes(kind, unavailable)?.map(|segment| (segment, AllocMode::Ssr))),
        }
    }

    /// Finds a segment for SSR after all others: no section is free. With [`Mode::Lfs`], only recovery gets one; without the
    /// few blocks that it takes, the volume could not be opened.
    fn find_last_holes(&mut self, kind: SegmentType, unavailable: &[SegNo]) -> Result<Option<SegNo>> {
        match (self.disk.options().mode, &self.recovering) {
            (Mode::Adaptive, _) => self.find_holes(kind, unavailable, Holes::Prefree),
            (Mode::Lfs, None) => Ok(None),
            (Mode::Lfs, Some(_)) => match self.find_holes(kind, unavailable, Holes::InUse)? {
                Some(segment) => Ok(Some(segment)),
                None => self.find_holes(kind, unavailable, Holes::Prefree),
            },
        }
    }

    /// Returns the first section of a completely free zone, if `kind` is one of the two logs of fsyncs.
    /// Examines at most [`ZONES_TRIED`] zones.
    pub(super) fn free_zone(
        &mut self,
        kind: SegmentType,
        from: SecNo,
        unavailable: &[SegNo],
    ) -> Result<Option<SecNo>> {
        if self.disk.geometry().sections_per_zone == 1 || partner(kind).is_none() {
            return Ok(None);
        }
        let mut from = from;
        for _ in 0..ZONES_TRIED {
            let Some(found) =
                self.sit.find_free_section(self.disk.io(), from, unavailable, Prefree::Excluded)?
            else {
                break;
            };
            let mut zone = self.disk.geometry().zone_of(found);
            let first = zone.next().expect("a zone has a section");
            let mut is_free =
                self.sit.is_section_free(self.disk.io(), first, unavailable, Prefree::Excluded)?;
            let mut last = first;
            for section in zone {
                is_free = is_free
                    && self.sit.is_section_free(self.disk.io(), section, unavailable, Prefree::Excluded)?;
                last = section;
            }
            if is_free {
                return Ok(Some(first));
            }
            from = SecNo((last.0 + 1) % self.disk.geometry().sections);
        }
        Ok(None)
    }

    /// Returns the segment for SSR with the fewest valid blocks: one of the log's own type, else one of
    /// another type that holds nodes or data alike.
    fn find_holes(
        &mut self,
        kind: SegmentType,
        unavailable: &[SegNo],
        holes: Holes,
    ) -> Result<Option<SegNo>> {
        const FULL: u16 = BLOCKS_PER_SEGMENT as u16;
        let rank = |same_kind: bool, valid_blocks: u16, number: SegNo| {
            (valid_blocks < FULL).then_some((same_kind, std::cmp::Reverse((valid_blocks, number))))
        };
        let most = |first: SegNo, facts: &Facts| {
            if holes == Holes::Prefree {
                return if facts.empty > 0 { rank(true, 0, first) } else { None };
            }
            let alike = SegmentType::ALL.into_iter().filter(|other| other.is_node() == kind.is_node());
            let least = alike.map(|other| facts.least_valid[other.index()]).min()?;
            let own = facts.least_valid[kind.index()];
            rank(true, own, first).or_else(|| rank(false, least, first))
        };
        self.sit.best_segment(self.disk.io(), most, |number, segment| {
            let fits = segment.kind.is_node() == kind.is_node()
                && holes.are_in(segment)
                && !unavailable.contains(&number);
            let has_hole = fits && segment.next_hole(0).is_some();
            if has_hole { rank(segment.kind == kind, segment.valid_blocks, number) } else { None }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::sit::SegmentType::*;

    #[test]
    fn blocks_go_to_the_logs_that_are_active() {
        let (data, nodes) = ([HotData, WarmData, ColdData], [HotNode, WarmNode, ColdNode]);
        let data_in = |active| data.map(|best| log_for_data(active, best, FileType::Regular));
        let nodes_in = |active| nodes.map(|best| log_for_node(active, best));
        assert_eq!((data_in(ActiveLogs::Six), nodes_in(ActiveLogs::Six)), (data, nodes));
        assert_eq!(
            (data_in(ActiveLogs::Four), nodes_in(ActiveLogs::Four)),
            ([ColdData; 3], [ColdNode, WarmNode, ColdNode])
        );
        assert_eq!(log_for_data(ActiveLogs::Four, HotData, FileType::Directory), HotData);
        assert_eq!((data_in(ActiveLogs::Two), nodes_in(ActiveLogs::Two)), ([HotData; 3], [HotNode; 3]));
    }

    #[test]
    fn data_leaves_its_segment_early_only_with_enough_free_sections() {
        assert!(leaves_early(128, 51, 100) && leaves_early(500, 100, 100));
        assert!(!leaves_early(127, 100, 100) && !leaves_early(500, 50, 100));
    }

    #[test]
    fn data_and_nodes_share_a_zone_only_if_fsyncs_gain_by_it() {
        assert!(should_colocate(32) && !should_colocate(31));
    }

    #[test]
    fn holes_are_filled_when_free_sections_run_short() {
        assert_eq!(next_mode(Mode::Adaptive, 11, 10), AllocMode::Append);
        assert_eq!(next_mode(Mode::Adaptive, 10, 10), AllocMode::Ssr);
        assert_eq!(next_mode(Mode::Lfs, 0, 10), AllocMode::Append);
    }
}
