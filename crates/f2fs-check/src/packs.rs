//! The checkpoint packs: heads, copies, journals, summaries of the logs, orphans.

use std::collections::BTreeMap;

use f2fs::{
    Error, Place, Result,
    engine::{Geometry, Io},
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{AllocMode, Checkpoint, Flags, HEAD_BYTES, LogPosition, PackEnd, PackStart, newest},
        nat::NatEntry,
        sit::SegmentType,
        summary::{Compact, Journal, Summary},
        superblock::{Features, Superblock},
    },
    units::{BlockAddr, CheckpointVer, Ino, Nid, SegNo},
};

use crate::{Certainty, Finding, Kind, Report};

const DATA_LOGS: [SegmentType; 3] = [SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData];

/// Content of the pack that counts.
pub struct Pack {
    /// Number of the pack.
    pub number: u8,
    /// Its head.
    pub checkpoint: Checkpoint,
    /// NAT entries that override the table, sorted.
    pub nat_journal: Vec<(Nid, NatEntry)>,
    /// SIT entries that override the table.
    pub sit_journal: Vec<(SegNo, [u8; f2fs::format::sit::ENTRY_BYTES])>,
    /// Orphans, sorted.
    pub orphans: Vec<Ino>,
    /// Summaries of the logs; `None` where the pack has none.
    pub summaries: [Option<Summary>; 6],
    /// Kilobytes written to the volume, ever; 0 if the pack does not tell.
    pub written_kilobytes: u64,
    /// Full and empty map of the NAT, if the flag is set and the maps belong to this checkpoint.
    pub nat_bits: Option<(Vec<u8>, Vec<u8>)>,
}

impl Pack {
    /// Lets entries override those of the NAT, as a journal does.
    pub fn override_nat(&mut self, entries: &BTreeMap<Nid, NatEntry>) {
        let mut journal: BTreeMap<Nid, NatEntry> = self.nat_journal.drain(..).collect();
        journal.extend(entries);
        self.nat_journal = journal.into_iter().collect();
    }
}

/// Checks both packs and returns the one that counts.
pub fn check(io: &Io, geometry: &Geometry, sb: &Superblock, report: &mut Report) -> Option<Pack> {
    let ends = [0, 1].map(|pack| whole(io, geometry, sb, pack));
    let ends = restored(io, geometry, ends, report);
    let version = |pack: usize| ends[pack].as_ref().ok().map(|whole| whole.version);
    let Some(mut number) = newest(version(0), version(1)) else {
        for (pack, end) in (0..).zip(&ends) {
            let error = end.as_ref().expect_err("no pack is whole");
            report.add(Finding::new(Kind::PackUnreadable, Place::Checkpoint(pack), text(error)));
        }
        return None;
    };
    let other = 1 - number;
    let mut read = read_pack(io, geometry, sb, number, &ends, report);
    match &ends[usize::from(other)] {
        Err(error) => report.add(broken(io, geometry, other, version(number.into()), error)),
        Ok(_) if read.is_none() => {
            number = other;
            read = read_pack(io, geometry, sb, number, &ends, report);
        }
        Ok(_) => {}
    }
    let pack = read?;
    flags(&pack, sb.features, report);
    Some(pack)
}

fn text(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.to_string(),
        error => error.to_string(),
    }
}

/// A pack of which head and copy can be told.
#[derive(Debug)]
pub struct Whole {
    version: CheckpointVer,
    /// The end that is damaged, if one is.
    damaged: Option<DamagedEnd>,
}

/// The damaged one of a pack's two ends, and the block that restores it: the other end.
#[derive(Debug)]
enum DamagedEnd {
    Head(Box<[u8]>),
    Copy { at: BlockAddr, head: Box<[u8]> },
}

/// Verifies head and copy of a pack.
fn whole(io: &Io, geometry: &Geometry, sb: &Superblock, pack: u8) -> Result<Whole> {
    let (at, start) = (Place::Checkpoint(pack), geometry.pack(pack));
    let head = PackEnd::check(&io.read_block(start, at)?, sb.block_size, pack)?;
    let copy = BlockAddr(start.0 + head.pack_blocks - 1);
    let copy = PackEnd::check(&io.read_block(copy, at)?, sb.block_size, pack)?;
    if !head.matches(&copy) {
        let what = format!("it begins with version {} and ends with {}", head.version.0, copy.version.0);
        return Err(Error::corrupt(at, what));
    }
    Ok(Whole { version: head.version, damaged: None })
}

/// Restores the damaged head of the newest pack from the copy at the pack's end. The copy is written last, so the pack
/// was complete.
fn restored(
    io: &Io,
    geometry: &Geometry,
    mut ends: [Result<Whole>; 2],
    report: &mut Report,
) -> [Result<Whole>; 2] {
    for pack in [0, 1] {
        let this = usize::from(pack);
        let Err(error) = &ends[this] else { continue };
        let good = ends[1 - this].as_ref().ok().map(|whole| whole.version);
        let Some((version, copy)) = newest_copy(io, geometry, pack) else { continue };
        let is_newest = good.is_none_or(|good| version.is_after(good));
        if is_newest && !has_head(io, geometry, pack) {
            let known = format!("{}; the copy of its head at its end is whole, and newest", text(error));
            let finding = Finding::new(Kind::PackUnreadable, Place::Checkpoint(pack), known)
                .repaired_by("copy the end of the pack over its head");
            report.add(finding.with_certainty(Certainty::Certain));
            ends[this] = Ok(Whole { version, damaged: Some(DamagedEnd::Head(copy)) });
        }
    }
    if ends.iter().all(Result::is_err) {
        headed(io, geometry, &mut ends, report);
    }
    ends
}

/// Takes the newest pack that has only its head, if no pack has its end: it may be unfinished. A pack that is
/// certainly unfinished is left out.
fn headed(io: &Io, geometry: &Geometry, ends: &mut [Result<Whole>; 2], report: &mut Report) {
    let heads = [0, 1].map(|pack| {
        let end = |index: u32| {
            let addr = BlockAddr(geometry.pack(pack).0.checked_add(index)?);
            let block = io.read_block(addr, Place::Checkpoint(pack)).ok()?;
            Some((PackEnd::check(&block, geometry.block_size, pack).ok()?, block))
        };
        let (head, block) = end(0)?;
        // The end is written last: an older one is that of an earlier checkpoint.
        let copy = end(head.pack_blocks - 1);
        let is_unfinished = copy.is_some_and(|(copy, _)| head.version.is_after(copy.version));
        (!is_unfinished).then_some((head, block))
    });
    let version = |pack: usize| heads[pack].as_ref().map(|(end, _)| end.version);
    let Some(pack) = newest(version(0), version(1)) else { return };
    let this = usize::from(pack);
    let [first, second] = heads;
    let head = if pack == 0 { first } else { second };
    if let (Err(error), Some((end, head))) = (&ends[this], head) {
        let known = format!("{}; the end of no pack is whole", text(error));
        let finding = Finding::new(Kind::PackUnreadable, Place::Checkpoint(pack), known)
            .repaired_by("take the pack as complete, and copy its head over its end");
        report.add(finding.with_certainty(Certainty::Unclear));
        let at = BlockAddr(geometry.pack(pack).0 + end.pack_blocks - 1);
        ends[this] = Ok(Whole { version: end.version, damaged: Some(DamagedEnd::Copy { at, head }) });
    }
}

/// Returns true if the head of a pack carries its checksum.
fn has_head(io: &Io, geometry: &Geometry, pack: u8) -> bool {
    let block = io.read_block(geometry.pack(pack), Place::Checkpoint(pack));
    block.is_ok_and(|block| PackEnd::check(&block, geometry.block_size, pack).is_ok())
}

/// The newest copy of a head that lies where the head has the pack's end.
fn newest_copy(io: &Io, geometry: &Geometry, pack: u8) -> Option<(CheckpointVer, Box<[u8]>)> {
    let start = geometry.pack(pack);
    let copies = (1..BLOCKS_PER_SEGMENT).filter_map(|n| {
        let block = io.read_block(BlockAddr(start.0 + n), Place::Checkpoint(pack)).ok()?;
        let end = PackEnd::check(&block, geometry.block_size, pack).ok()?;
        (end.pack_blocks == n + 1).then_some((end.version, block))
    });
    copies.reduce(|one, other| if other.0.is_after(one.0) { other } else { one })
}

/// The place of a damaged end of the pack that counts, and the block that restores it.
pub fn damaged_end(io: &Io, geometry: &Geometry, sb: &Superblock) -> Option<(BlockAddr, Box<[u8]>)> {
    let ends = [0, 1].map(|pack| whole(io, geometry, sb, pack));
    let ends = restored(io, geometry, ends, &mut Report::default());
    let version = |pack: usize| ends[pack].as_ref().ok().map(|whole| whole.version);
    let number = newest(version(0), version(1))?;
    let [first, second] = ends;
    let end = if number == 0 { first } else { second };
    Some(match end.ok()?.damaged? {
        DamagedEnd::Head(copy) => (geometry.pack(number), copy),
        DamagedEnd::Copy { at, head } => (at, head),
    })
}

/// Returns true if a pack has the copy of its head, which is written last: then the pack was complete once.
fn has_copy(io: &Io, geometry: &Geometry, pack: u8, version: CheckpointVer) -> bool {
    let start = geometry.pack(pack);
    (1..BLOCKS_PER_SEGMENT).any(|n| {
        let block = io.read_bytes(BlockAddr(start.0 + n), Place::Checkpoint(pack), 0..HEAD_BYTES);
        block.is_ok_and(|bytes| {
            let copy = PackStart::parse(&bytes);
            copy.version == version && copy.pack_blocks == n + 1
        })
    })
}

/// The newest version among the heads and copies in a pack that carry their checksum.
pub fn newest_end(io: &Io, geometry: &Geometry, pack: u8) -> Option<CheckpointVer> {
    let start = geometry.pack(pack);
    let versions = (0..BLOCKS_PER_SEGMENT).filter_map(|n| {
        let block = io.read_block(BlockAddr(start.0 + n), Place::Checkpoint(pack)).ok()?;
        PackEnd::check(&block, geometry.block_size, pack).ok().map(|end| end.version)
    });
    versions.reduce(|one, other| if other.is_after(one) { other } else { one })
}

/// Tells a pack that a power cut left unfinished from a damaged one: it has the version that follows.
fn broken(io: &Io, geometry: &Geometry, pack: u8, good: Option<CheckpointVer>, error: &Error) -> Finding {
    let at = Place::Checkpoint(pack);
    let head = io.read_bytes(geometry.pack(pack), at, 0..HEAD_BYTES);
    let version = head.map(|bytes| PackStart::parse(&bytes).version);
    let follows = match (version, good) {
        (Ok(version), Some(good)) => {
            version.0 == good.0.wrapping_add(1) && !has_copy(io, geometry, pack, version)
        }
        _ => false,
    };
    let kind = if follows { Kind::PackUnfinished } else { Kind::PackUnreadable };
    // The pack may have been complete, and newer: then the older one lacks its changes.
    let is_newer = newest_end(io, geometry, pack).zip(good).is_some_and(|(end, good)| end.is_after(good));
    let certainty = match (follows, is_newer) {
        (true, _) => Certainty::Likely,
        (false, true) => Certainty::Unclear,
        (false, false) => Certainty::Certain,
    };
    Finding::new(kind, at, text(error)).with_certainty(certainty)
}

/// Reads a pack whose head and copy are whole, or restored.
fn read_pack(
    io: &Io,
    geometry: &Geometry,
    sb: &Superblock,
    number: u8,
    ends: &[Result<Whole>; 2],
    report: &mut Report,
) -> Option<Pack> {
    let at = Place::Checkpoint(number);
    let size = sb.block_size.bytes();
    let mut bytes = vec![0; size * BLOCKS_PER_SEGMENT as usize];
    let mut invalid = |what: String| {
        report.add(Finding::new(Kind::CheckpointInvalid, at, what));
        None
    };
    let whole = ends[usize::from(number)].as_ref().ok()?;
    let read = match &whole.damaged {
        Some(DamagedEnd::Head(copy)) => {
            bytes[..size].copy_from_slice(copy);
            io.read(BlockAddr(geometry.pack(number).0 + 1), at, &mut bytes[size..])
        }
        None | Some(DamagedEnd::Copy { .. }) => io.read(geometry.pack(number), at, &mut bytes),
    };
    if let Err(error) = read {
        return invalid(text(&error));
    }
    let head_bytes = size * (1 + sb.cp_payload as usize);
    let checkpoint = match Checkpoint::check(&bytes[..head_bytes], sb, number) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return invalid(text(&error)),
    };
    let data_blocks = data_summary_blocks(&checkpoint, geometry);
    let wanted = data_blocks + 3 * usize::from(checkpoint.has_node_summaries());
    if ((checkpoint.pack_blocks - 1 - checkpoint.summaries_start) as usize) < wanted {
        return invalid(format!("the pack is too short for the {wanted} blocks of its summaries"));
    }
    let parts = Parts { io, geometry, sb, number, checkpoint: &checkpoint, bytes: &bytes };
    let (nat_journal, sit_journal) = parts.journals(report);
    let orphans = parts.orphans(report);
    let summaries = parts.summaries(data_blocks);
    let nat_bits = parts.nat_bits();
    let written_kilobytes = parts.written_kilobytes(data_blocks);
    Some(Pack {
        number,
        written_kilobytes,
        nat_journal,
        sit_journal,
        orphans,
        summaries,
        nat_bits,
        checkpoint,
    })
}

/// Number of summary entries of a log that the compact form stores.
fn summary_entries(checkpoint: &Checkpoint, kind: SegmentType) -> usize {
    match checkpoint.logs[kind.index()] {
        LogPosition { mode: AllocMode::Ssr, .. } => BLOCKS_PER_SEGMENT as usize,
        LogPosition { offset, .. } => usize::from(offset),
    }
}

/// Number of blocks in a pack that hold the data summaries.
fn data_summary_blocks(checkpoint: &Checkpoint, geometry: &Geometry) -> usize {
    let entries = || DATA_LOGS.map(|kind| summary_entries(checkpoint, kind)).iter().sum();
    match checkpoint.flags.has(Flags::COMPACT_SUM) {
        true => geometry.summary.compact_blocks(entries()),
        false => DATA_LOGS.len(),
    }
}

/// The bytes of a pack and the numbers that divide them.
struct Parts<'a> {
    io: &'a Io,
    geometry: &'a Geometry,
    sb: &'a Superblock,
    number: u8,
    checkpoint: &'a Checkpoint,
    bytes: &'a [u8],
}

type Journals = (Vec<(Nid, NatEntry)>, Vec<(SegNo, [u8; f2fs::format::sit::ENTRY_BYTES])>);

impl Parts<'_> {
    fn summary_bytes(&self) -> &[u8] {
        &self.bytes[self.checkpoint.summaries_start as usize * self.sb.block_size.bytes()..]
    }

    fn journals(&self, report: &mut Report) -> Journals {
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

    fn sit_journal(
        &self,
        bytes: &[u8],
        report: &mut Report,
    ) -> Vec<(SegNo, [u8; f2fs::format::sit::ENTRY_BYTES])> {
        let at = Place::Checkpoint(self.number);
        let count = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let room = self.geometry.summary.sit_journal_entries();
        if count > room {
            let known = format!("{count} entries in the SIT journal, room for {room}");
            report.add(Finding::new(Kind::SitJournal, at, known));
            return Vec::new();
        }
        let width = 4 + f2fs::format::sit::ENTRY_BYTES;
        let entries = bytes[2..].chunks_exact(width).take(count);
        let entries = entries.map(|entry| {
            let key = u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
            (SegNo(key), entry[4..].try_into().expect("an entry's bytes"))
        });
        let (good, bad): (Vec<_>, Vec<_>) =
            entries.partition(|(segment, _)| segment.0 < self.geometry.segments);
        for (segment, _) in bad {
            let known = format!("an entry for {segment} of {}", self.geometry.segments);
            report.add(Finding::new(Kind::SitJournal, at, known));
        }
        good
    }

    fn orphans(&self, report: &mut Report) -> Vec<Ino> {
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

    fn summaries(&self, data_blocks: usize) -> [Option<Summary>; 6] {
        if self.sb.features.has(Features::RO) {
            // A read-only volume is never cleaned, and needs no summaries.
            return Default::default();
        }
        let (layout, size) = (self.geometry.summary, self.sb.block_size.bytes());
        let bytes = self.summary_bytes();
        let block = |n: usize| &bytes[n * size..(n + 1) * size];
        let data = match self.checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => {
                let used = DATA_LOGS.map(|kind| summary_entries(self.checkpoint, kind));
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

    fn written_kilobytes(&self, data_blocks: usize) -> u64 {
        let size = self.sb.block_size.bytes();
        let hot = self.summary_bytes().get(data_blocks * size..(data_blocks + 1) * size);
        let hot = hot.filter(|_| self.checkpoint.has_node_summaries());
        hot.map_or(0, |block| Journal::parse_written(Summary::journal_of(block, self.geometry.summary)))
    }

    /// Reads the full and empty maps at the end of the pack's segment. Linux ignores them where the version
    /// beside them is another.
    fn nat_bits(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        if !self.checkpoint.flags.has(Flags::NAT_BITS) {
            return None;
        }
        let (size, map) = (self.sb.block_size.bytes(), self.sb.nat_blocks() as usize / 8);
        let blocks = (2 * map + 8).div_ceil(size);
        let start = (BLOCKS_PER_SEGMENT as usize).checked_sub(blocks)?;
        if start < self.checkpoint.pack_blocks as usize {
            return None;
        }
        let first = BlockAddr(self.geometry.pack(self.number).0 + start as u32);
        let mut bytes = vec![0; blocks * size];
        self.io.read(first, Place::Checkpoint(self.number), &mut bytes).ok()?;
        let stored = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let version = self.checkpoint.version.0 | u64::from(self.checkpoint.crc) << 32;
        (stored == version).then(|| (bytes[8..8 + map].to_vec(), bytes[8 + map..8 + 2 * map].to_vec()))
    }
}

/// Findings that follow from the flags alone.
fn flags(pack: &Pack, features: Features, report: &mut Report) {
    let (flags, at) = (pack.checkpoint.flags, Place::Checkpoint(pack.number));
    let set = |of: [(Flags, &'static str); 2]| {
        of.into_iter().filter(|(flag, _)| flags.has(*flag)).map(|(_, name)| name).collect::<Vec<_>>()
    };
    let asks = set([(Flags::ERROR, "error"), (Flags::FSCK, "fsck")]);
    if !asks.is_empty() {
        report.add(Finding::new(Kind::CheckpointError, at, format!("flags: {}", asks.join(", "))));
    }
    if !flags.has(Flags::UMOUNT) {
        let known = format!("checkpoint {} was not written by an unmount", pack.checkpoint.version.0);
        report.add(Finding::new(Kind::NotUnmounted, at, known));
    }
    if flags.has(Flags::RESIZEFS) {
        report.add(Finding::new(Kind::ResizeUnfinished, at, "the flag resizefs is set"));
    }
    let disabled = set([(Flags::DISABLED, "disabled"), (Flags::DISABLED_QUICK, "disabled_quick")]);
    if !disabled.is_empty() {
        report.add(Finding::new(Kind::CheckpointDisabled, at, format!("flags: {}", disabled.join(", "))));
    }
    if flags.has(Flags::QUOTA_NEED_FSCK) && features.has(Features::QUOTA) {
        report.add(Finding::new(Kind::QuotaAsks, at, "the flag quota_need_fsck is set"));
    }
}
