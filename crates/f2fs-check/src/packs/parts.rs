//! The parts of a pack: journals, orphans, summaries of the logs, maps of the NAT.

use f2fs::{
    Place,
    engine::{Geometry, RawPack},
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, Flags},
        nat::NatEntry,
        sit::{ENTRY_BYTES, SegmentType, SitEntry},
        summary::{Compact, Journal, Summary},
        superblock::{Features, Superblock},
    },
    units::{Ino, Nid, SegNo},
};

use super::text;
use crate::{Finding, Kind, Report};

/// The bytes of a pack and the numbers that divide them.
pub(super) struct Parts<'a> {
    pub geometry: &'a Geometry,
    pub sb: &'a Superblock,
    pub number: u8,
    pub checkpoint: &'a Checkpoint,
    /// The blocks of the pack.
    pub bytes: &'a [u8],
}

type Journals = (Vec<(Nid, NatEntry)>, Vec<(SegNo, [u8; ENTRY_BYTES])>);

impl Parts<'_> {
    fn summary_bytes(&self) -> &[u8] {
        &self.bytes[self.checkpoint.summaries_start as usize * self.sb.block_size.bytes()..]
    }

    pub(super) fn journals(&self, report: &mut Report) -> Journals {
        let (layout, at) = (self.geometry.summary, Place::Checkpoint(self.number));
        let size = self.sb.block_size.bytes();
        let summaries = self.summary_bytes();
        let (nat, sit) = match self.checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => summaries[..2 * layout.journal_bytes()].split_at(layout.journal_bytes()),
            false => {
                let journal = |n: usize| Summary::journal_of(&summaries[n * size..], layout);
                (journal(SegmentType::HotData.index()), journal(SegmentType::ColdData.index()))
            }
        };
        let mut nat = Journal::parse_nat(nat, layout, self.number).unwrap_or_else(|error| {
            report.add(Finding::new(Kind::NatJournal, at, text(&error)));
            Vec::new()
        });
        nat.retain(|(nid, _)| {
            let fits = *nid != Nid::NULL && *nid < self.geometry.nids_end();
            if !fits {
                let known = format!("an entry for {nid}, the NAT ends at {}", self.geometry.nids_end());
                report.add(Finding::new(Kind::NatJournal, at, known));
            }
            fits
        });
        nat.sort_by_key(|(nid, _)| *nid);
        if let Some(twice) = nat.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let known = format!("two entries for {}", twice[0].0);
            report.add(Finding::new(Kind::NatJournal, at, known));
        }
        (nat, self.sit_journal(sit, report))
    }

    fn sit_journal(&self, bytes: &[u8], report: &mut Report) -> Vec<(SegNo, [u8; ENTRY_BYTES])> {
        let at = Place::Checkpoint(self.number);
        let count = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let room = self.geometry.summary.sit_journal_entries();
        if count > room {
            let known = format!("{count} entries in the SIT journal, room for {room}");
            report.add(Finding::new(Kind::SitJournal, at, known));
            return Vec::new();
        }
        let width = 4 + ENTRY_BYTES;
        let entries = bytes[2..].chunks_exact(width).take(count);
        let entries = entries.map(|entry| {
            let key = u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
            (SegNo(key), entry[4..].try_into().expect("an entry's bytes"))
        });
        let (mut good, bad): (Vec<_>, Vec<_>) =
            entries.partition(|(segment, _)| segment.0 < self.geometry.segments);
        if !bad.is_empty() {
            // Other content is in place of the journal.
            good.retain(|(segment, bytes)| SitEntry::check(bytes, *segment).is_ok());
        }
        for (segment, _) in bad {
            let known = format!("an entry for {segment} of {}", self.geometry.segments);
            report.add(Finding::new(Kind::SitJournal, at, known));
        }
        good
    }

    pub(super) fn orphans(&self, report: &mut Report) -> Vec<Ino> {
        let mut orphans = Vec::new();
        if self.checkpoint.flags.has(Flags::ORPHAN_PRESENT) {
            let size = self.sb.block_size.bytes();
            let range =
                size * (1 + self.sb.cp_payload as usize)..size * self.checkpoint.summaries_start as usize;
            for block in self.bytes[range].chunks_exact(size) {
                // The number of entries follows the reserved word and the two numbers of the block.
                let at = size - 8;
                let count = u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes")) as usize;
                let room = self.sb.block_size.orphans();
                if count > room {
                    let known = format!("{count} entries in an orphan block, at most {room}");
                    report.add(Finding::new(Kind::OrphanBlock, Place::Checkpoint(self.number), known));
                    continue;
                }
                let inos = block.chunks_exact(4).take(count);
                orphans.extend(inos.map(|ino| Ino(u32::from_le_bytes(ino.try_into().expect("four bytes")))));
            }
        }
        orphans.sort_unstable();
        orphans.dedup();
        orphans
    }

    pub(super) fn summaries(&self, data_blocks: usize) -> [Option<Summary>; 6] {
        if self.sb.features.has(Features::RO) {
            // A read-only volume is never cleaned, and needs no summaries.
            return Default::default();
        }
        let (layout, size) = (self.geometry.summary, self.sb.block_size.bytes());
        let bytes = self.summary_bytes();
        let block = |n: usize| &bytes[n * size..(n + 1) * size];
        let data = match self.checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => {
                let used = self.checkpoint.data_summary_entries();
                Compact::parse(&bytes[..data_blocks * size], layout, used).summaries
            }
            false => [0, 1, 2].map(|n| Summary::parse(block(n), layout)),
        };
        let nodes = match self.checkpoint.has_node_summaries() {
            true => [0, 1, 2].map(|n| Some(Summary::parse(block(data_blocks + n), layout))),
            false => [None, None, None],
        };
        let [a, b, c] = data.map(Some);
        let [d, e, f] = nodes;
        [a, b, c, d, e, f]
    }

    pub(super) fn written_kilobytes(&self, data_blocks: usize) -> u64 {
        let size = self.sb.block_size.bytes();
        let hot = self.summary_bytes().get(data_blocks * size..(data_blocks + 1) * size);
        let hot = hot.filter(|_| self.checkpoint.has_node_summaries());
        hot.map_or(0, |block| Journal::parse_written(Summary::journal_of(block, self.geometry.summary)))
    }

    /// Reads the full and empty maps at the end of the pack's segment. Linux ignores them where the version
    /// beside them is another.
    pub(super) fn nat_bits(&self, raw: &RawPack) -> Option<(Vec<u8>, Vec<u8>)> {
        if !self.checkpoint.flags.has(Flags::NAT_BITS) {
            return None;
        }
        let (size, map) = (self.sb.block_size.bytes(), self.sb.nat_blocks() as usize / 8);
        let start = (BLOCKS_PER_SEGMENT as usize).checked_sub((2 * map + 8).div_ceil(size))? as u32;
        if start < self.checkpoint.pack_blocks {
            return None;
        }
        let bytes = raw.blocks(start..BLOCKS_PER_SEGMENT).ok()?;
        let stored = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let version = self.checkpoint.version.0 | u64::from(self.checkpoint.crc) << 32;
        (stored == version).then(|| (bytes[8..8 + map].to_vec(), bytes[8 + map..8 + 2 * map].to_vec()))
    }
}
