//! Shared zones for the warm data log and the warm node log.
//!
//! A zone corresponds to the unit that a card keeps open. An fsync that writes data to one zone and nodes to
//! another makes the card switch between them twice. A long-used volume has no completely free zone, but it
//! has zones with holes for data beside a free section or beside holes for nodes. The node log may take free
//! sections down to those that cleaning needs: fsyncs write the same nodes again and again, so the next
//! checkpoint frees most of their blocks.
//!
//! On a volume with many free sections, a stream can leave the data log in a zone without space for the node log. The
//! fsyncs that follow would be in two zones until one of the two segments is full ([`Segments::end_separation`]).

use super::{Segments, sit::Prefree};
use crate::{
    Result,
    disk::{ActiveLogs, Mode},
    format::{BLOCKS_PER_SEGMENT, checkpoint::AllocMode, sit::SegmentType},
    units::{BlockAddr, SecNo, SegNo},
};

/// Maximum number of data blocks per fsync for which moving both logs pays off.
const FEW_BLOCKS: u32 = 8;
/// Minimum number of free blocks for each of the two logs; with fewer they would soon have to move again.
const LEAST_ROOM: u16 = 16;

/// Number of blocks that a card copies in the time that an fsync in two zones takes longer than one in a single zone: two
/// unit switches of 2.1 ms each, and 0.36 ms for a block.
const BLOCKS_PER_FSYNC: u32 = 12;

/// Returns true if the logs leave the rest of their segments, `left_blocks` together, to share a zone. The card keeps the
/// old content of the rest, and copies it once its spare blocks are used up. Nobody knows how many fsyncs will follow. So
/// the logs move when `fsyncs_apart`, the number of fsyncs in two zones so far, have cost as much as the move: whatever
/// follows, this costs at most twice as much as the right decision.
fn pays_to_move(fsyncs_apart: u32, left_blocks: u32) -> bool {
    fsyncs_apart.saturating_mul(BLOCKS_PER_FSYNC) >= left_blocks
}

/// A segment in which a log could continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogPlacement {
    room: u16,
    segment: SegNo,
    mode: AllocMode,
}

/// The best segments of a zone for the two logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ZonePlacement {
    data: Option<LogPlacement>,
    nodes: Option<LogPlacement>,
}

/// Permission for each log to take a free section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FreeSectionUse {
    data: bool,
    nodes: bool,
}

impl ZonePlacement {
    /// The number of blocks available to each of the two logs; `None` if it is too small.
    fn room(&self) -> Option<u16> {
        let room = self.data?.room.min(self.nodes?.room);
        (room >= LEAST_ROOM).then_some(room)
    }

    /// Adds a free section.
    fn add_free(&mut self, segment: SegNo, free_use: FreeSectionUse) {
        let place = Some(LogPlacement { room: BLOCKS_PER_SEGMENT as u16, segment, mode: AllocMode::Append });
        if free_use.nodes && self.nodes.is_none_or(|nodes| nodes.mode.is_ssr()) {
            self.nodes = place;
        } else if free_use.data && self.data.is_none_or(|data| data.mode.is_ssr()) {
            self.data = place;
        }
    }

    /// Adds a segment of type `kind` with `room` free blocks.
    fn add_holes(&mut self, segment: SegNo, room: u16, kind: SegmentType) {
        let place = if kind.is_node() { &mut self.nodes } else { &mut self.data };
        if place.is_none_or(|place| place.room < room) {
            *place = Some(LogPlacement { room, segment, mode: AllocMode::Ssr });
        }
    }
}

impl Segments {
    /// Returns true if it is worthwhile to look for a zone that both logs can share.
    fn may_colocate(&self) -> bool {
        self.disk.geometry().sections_per_zone > 1
            && self.disk.options().active_logs == ActiveLogs::Six
            && self.since_fsync_blocks <= FEW_BLOCKS
            && !self.turnover.no_zone
    }

    /// Counts an fsync whose data and nodes were in two zones, and moves the logs into one zone if there were many: the node
    /// log to the data log, or the data log to the node log, or both to a free zone. Returns the address at which the node
    /// log continues, if it moved.
    pub(super) fn end_separation(&mut self) -> Result<Option<BlockAddr>> {
        if self.since_fsync_blocks > FEW_BLOCKS || self.disk.options().active_logs != ActiveLogs::Six {
            return Ok(None);
        }
        self.fsyncs_apart = self.fsyncs_apart.saturating_add(1);
        let [(nodes, nodes_left), (data, data_left)] =
            [SegmentType::WarmNode, SegmentType::WarmData].map(|kind| {
                let log = self.logs.get(kind);
                (log.segment, BLOCKS_PER_SEGMENT - u32::from(log.offset))
            });
        let unavailable = self.unavailable_segments();
        if pays_to_move(self.fsyncs_apart, nodes_left) {
            if let Some(segment) =
                self.section_beside(data, &unavailable)?.filter(|it| self.try_claim_segment(*it))
            {
                self.enter_segment(SegmentType::WarmNode, segment, AllocMode::Append)?;
                return Ok(Some(self.disk.geometry().block(segment, 0)));
            }
        }
        if pays_to_move(self.fsyncs_apart, data_left) {
            if let Some(segment) =
                self.section_beside(nodes, &unavailable)?.filter(|it| self.try_claim_segment(*it))
            {
                self.enter_segment(SegmentType::WarmData, segment, AllocMode::Append)?;
                return Ok(None);
            }
        }
        if !pays_to_move(self.fsyncs_apart, nodes_left + data_left) {
            return Ok(None);
        }
        let from = self.disk.geometry().section_of(data);
        let Some(first) = self.free_zone(SegmentType::WarmData, from, &unavailable)? else { return Ok(None) };
        let Some(second) = self.disk.geometry().zone_of(first).nth(1) else { return Ok(None) };
        let [segment, beside] =
            [first, second].map(|section| SegNo(section.0 * self.disk.geometry().segments_per_section));
        if !self.try_claim_segment(segment) || !self.try_claim_segment(beside) {
            return Ok(None);
        }
        self.enter_segment(SegmentType::WarmData, segment, AllocMode::Append)?;
        self.enter_segment(SegmentType::WarmNode, beside, AllocMode::Append)?;
        Ok(Some(self.disk.geometry().block(beside, 0)))
    }

    /// Moves the two logs that fsyncs use into one zone. Returns the address at which the node log continues,
    /// if it moved.
    pub(super) fn colocate_logs(&mut self) -> Result<Option<BlockAddr>> {
        if !self.may_colocate() {
            return Ok(None);
        }
        let unavailable = self.unavailable_segments();
        let free_use = self.free_use(&unavailable)?;
        // Move the node log to the zone of the data log if possible.
        let data = self.logs.get(SegmentType::WarmData).segment;
        let beside = self.placement(self.disk.geometry().section_of(data), &unavailable, free_use)?.nodes;
        if let Some(nodes) = beside.filter(|nodes| nodes.room >= LEAST_ROOM) {
            return match self.try_claim_segment(nodes.segment) {
                true => self.go_on_at(nodes).map(Some),
                false => Ok(None),
            };
        }
        match self.shared_zone(&unavailable, free_use)? {
            // Discards of them have just begun. The logs share a zone later.
            Some((data, nodes))
                if !self.try_claim_segment(data.segment) || !self.try_claim_segment(nodes.segment) =>
            {
                Ok(None)
            }
            Some((data, nodes)) => {
                self.enter_segment(SegmentType::WarmData, data.segment, data.mode)?;
                self.go_on_at(nodes).map(Some)
            }
            None => {
                self.turnover.no_zone = true;
                Ok(None)
            }
        }
    }

    /// Finds a segment with holes for the data log when free sections are short and fsyncs write few blocks:
    /// in the zone of the node log, or in a zone to which the node log can move.
    pub(super) fn holes_to_colocate(&mut self, unavailable: &[SegNo]) -> Result<Option<SegNo>> {
        if !self.may_colocate() {
            return Ok(None);
        }
        let free_use = self.free_use(unavailable)?;
        let nodes = self.logs.get(SegmentType::WarmNode).segment;
        let beside = self.placement(self.disk.geometry().section_of(nodes), unavailable, free_use)?.data;
        if let Some(data) = beside.filter(|data| data.room >= LEAST_ROOM && data.mode.is_ssr()) {
            return Ok(Some(data.segment));
        }
        let zone = self.shared_zone(unavailable, free_use)?;
        Ok(zone.map(|(data, _)| data).filter(|data| data.mode.is_ssr()).map(|data| data.segment))
    }

    fn go_on_at(&mut self, nodes: LogPlacement) -> Result<BlockAddr> {
        self.enter_segment(SegmentType::WarmNode, nodes.segment, nodes.mode)?;
        Ok(self.disk.geometry().block(nodes.segment, self.logs.get(SegmentType::WarmNode).offset))
    }

    fn free_use(&mut self, unavailable: &[SegNo]) -> Result<FreeSectionUse> {
        let free = self.sit.free_sections(self.disk.io(), unavailable)?;
        Ok(FreeSectionUse {
            data: free > self.reserved_sections().saturating_add(1),
            nodes: free > self.least_to_colocate() + 1 + self.waiting_sections(),
        })
    }

    /// Number of free sections down to which the node log takes one to join the data log. With [`Mode::Lfs`], cleaning would
    /// have to copy the blocks of the segment that it leaves.
    fn least_to_colocate(&self) -> u32 {
        match self.disk.options().mode {
            Mode::Adaptive => self.least_free_sections(),
            Mode::Lfs => self.reserved_sections(),
        }
    }

    /// Finds the zone with most room for both logs, and returns the segments for data and for nodes.
    fn shared_zone(
        &mut self,
        unavailable: &[SegNo],
        free_use: FreeSectionUse,
    ) -> Result<Option<(LogPlacement, LogPlacement)>> {
        let mut best = (None, None);
        for first in
            (0..self.disk.geometry().sections).step_by(self.disk.geometry().sections_per_zone as usize)
        {
            let placement = self.placement(SecNo(first), unavailable, free_use)?;
            if placement.room() > best.0 {
                best = (placement.room(), placement.data.zip(placement.nodes));
            }
        }
        Ok(best.1)
    }

    /// The best segments for the two logs in the zone of a section.
    fn placement(
        &mut self,
        section: SecNo,
        unavailable: &[SegNo],
        free_use: FreeSectionUse,
    ) -> Result<ZonePlacement> {
        let mut placement = ZonePlacement::default();
        for section in self.disk.geometry().zone_of(section) {
            let is_free =
                self.sit.is_section_free(self.disk.io(), section, unavailable, Prefree::Excluded)?;
            for number in self.disk.geometry().segments_of(section) {
                if is_free {
                    placement.add_free(number, free_use);
                    break;
                }
                let segment = self.sit.segment(self.disk.io(), number)?;
                let may_fill = self.disk.options().mode == Mode::Adaptive && !self.sit.is_disabled(number);
                if segment.valid_blocks > 0 && may_fill && !unavailable.contains(&number) {
                    let room = BLOCKS_PER_SEGMENT as u16 - segment.protected_blocks;
                    placement.add_holes(number, room, segment.kind);
                }
            }
        }
        Ok(placement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_move_when_the_fsyncs_in_two_zones_have_cost_as_much() {
        assert!(!pays_to_move(0, 1) && pays_to_move(0, 0));
        assert!(!pays_to_move(42, 512) && pays_to_move(43, 512) && pays_to_move(1, 12));
        assert!(pays_to_move(u32::MAX, 1024));
    }

    #[test]
    fn a_zone_has_room_for_both_or_none() {
        let mut placement = ZonePlacement::default();
        placement.add_holes(SegNo(1), 100, SegmentType::WarmData);
        assert_eq!(placement.room(), None);
        placement.add_holes(SegNo(2), LEAST_ROOM - 1, SegmentType::WarmNode);
        assert_eq!(placement.room(), None, "not worth it");
        placement.add_holes(SegNo(3), 90, SegmentType::WarmNode);
        placement.add_holes(SegNo(4), 80, SegmentType::WarmNode);
        assert_eq!((placement.room(), placement.nodes.unwrap().segment), (Some(90), SegNo(3)));
    }

    #[test]
    fn nodes_take_the_first_free_section_and_data_another() {
        let mut placement = ZonePlacement::default();
        placement.add_holes(SegNo(1), 500, SegmentType::WarmNode);
        placement.add_free(SegNo(2), FreeSectionUse { data: false, nodes: false });
        assert_eq!(placement.nodes.unwrap().segment, SegNo(1));
        let free_use = FreeSectionUse { data: true, nodes: true };
        (3..6).for_each(|number| placement.add_free(SegNo(number), free_use));
        let [nodes, data] = [placement.nodes, placement.data].map(Option::unwrap);
        assert_eq!((nodes.segment, data.segment, placement.room()), (SegNo(3), SegNo(4), Some(512)));
        assert!(!nodes.mode.is_ssr() && !data.mode.is_ssr());
    }
}
