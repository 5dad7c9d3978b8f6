//! Segments and sections with nodes and data.
//!
//! The logs of nodes and those of data fill separate sections. When Linux cleans a section, it takes the type of the first
//! segment for all segments, and stops checkpoints if a summary contradicts it.

use f2fs::{
    Place,
    format::{sit::SegmentType, superblock::Features},
    units::{SecNo, SegNo},
};

use crate::{
    Finding, Fix, Kind,
    checker::Checker,
    segments::{Content, Contents},
};

/// Kinds after whose repair a block may have another owner, or none.
const DOUBTFUL_BLOCKS: [Kind; 6] = [
    Kind::BlockAddress,
    Kind::BlockTwice,
    Kind::InlineReserved,
    Kind::InodeInvalid,
    Kind::NatAddress,
    Kind::NodeUnreached,
];

impl Checker<'_> {
    /// Reports segments and sections with nodes and data. While owners of blocks are not certain, one of them may not be
    /// there.
    pub fn conclude_mixed(&mut self) {
        if DOUBTFUL_BLOCKS.into_iter().any(|kind| self.report.count(kind) > 0) {
            return;
        }
        for section in (0..self.geometry.sections).map(SecNo) {
            let contents = self.segments.section_contents(section);
            if contents.0 > 0 && contents.1 > 0 {
                self.mixed(section, contents);
            }
        }
        if self.geometry.segments_per_section > 1 && !self.superblock.features.has(Features::RO) {
            self.check_sections_of_logs();
        }
    }

    /// Reports a section with nodes and data, or the segment that has both. Has the fewer ones moved.
    fn mixed(&mut self, section: SecNo, (nodes, data): (u64, u64)) {
        let fewer = if nodes > data { Content::Data } else { Content::Node };
        let mut whole = [false; 2];
        for segment in self.geometry.segments_of(section) {
            let (nodes, data) = self.segments.contents(segment);
            if nodes > 0 && data > 0 {
                let known = format!("{nodes} nodes and {data} blocks of data");
                self.add(Kind::SegmentMixed, Place::Sit(segment), known);
            } else {
                whole = [whole[0] || nodes > 0, whole[1] || data > 0];
            }
            // With a block of data move the node that has its address, and its inode.
            let blocks = if fewer == Content::Node { usize::from(nodes) } else { 3 * usize::from(data) };
            if blocks > 0 {
                let bytes = blocks * self.geometry.block_size.bytes();
                self.fix(Fix::MoveOut { segment, content: fewer, bytes });
            }
        }
        if whole == [true; 2] {
            let known = format!("{section} has {nodes} nodes and {data} blocks of data");
            self.add(Kind::SectionMixed, Place::Sit(self.geometry.first_segment(section)), known);
        }
    }

    /// Reports logs in a section with other blocks than theirs, or with a log of the other content.
    fn check_sections_of_logs(&mut self) {
        let mut logs: Vec<(SecNo, Content)> = Vec::new();
        for kind in SegmentType::ALL {
            let segment: SegNo = self.checkpoint.logs[kind.index()].segment;
            let (section, own) = (self.geometry.section_of(segment), Content::of(kind));
            let other = logs.iter().find(|(other, _)| *other == section).map(|(_, content)| *content);
            let content = self.segments.section_content(section).or(other);
            logs.push((section, own));
            if let Some(content) = content.filter(|content| *content != own) {
                let known = format!("the {kind} log lies in {section}, which is for {}", content.name());
                let finding = Finding::new(Kind::SectionMixed, Place::Sit(segment), known);
                self.report.add(finding.repaired_by("open another segment for the log"));
            }
        }
    }
}
