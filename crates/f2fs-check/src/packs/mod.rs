//! The checkpoint packs: heads, copies, journals, summaries of the logs, orphans.

mod comparison;
mod parts;

use std::{borrow::Cow, collections::BTreeMap};

use f2fs::{
    Error, Place,
    engine::{Geometry, Io, RawPack},
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, Flags, LogPosition, PackEnd, PackStart, RESERVED_NIDS, newest},
        nat::NatEntry,
        node::NodeFooter,
        sit::SegmentType,
        summary::Summary,
        superblock::{Features, Superblock},
    },
    units::{BlockAddr, CheckpointVer, Ino, Nid, SegNo},
};

use crate::{
    Certainty, Finding, Kind, Loss, Report,
    reader::{read_block, read_runs},
};
use comparison::Comparison;
use parts::Parts;

/// Content of the pack that counts.
pub struct Pack {
    /// Number of the pack.
    pub number: u8,
    /// Its head.
    pub checkpoint: Checkpoint,
    /// The end that is damaged, if one is.
    pub damaged_end: Option<DamagedEnd>,
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
    /// The newest version among the heads and copies in the other pack that carry their checksum.
    pub other_version: Option<CheckpointVer>,
}

/// The damaged one of a pack's two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedEnd {
    /// Its place.
    pub at: BlockAddr,
    /// The block that restores it: the other end.
    pub block: Box<[u8]>,
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
    let raws = [0, 1].map(|number| RawPack::read(io, geometry, number));
    let pack = Packs { io, geometry, sb, raws }.choose(report)?;
    flags(&pack, sb.features, report);
    Some(pack)
}

/// Returns true if the version of a damaged pack is certainly that of its whole head or copy, or if its head is zeroes, as
/// resize.f2fs leaves it.
fn is_old(raw: &RawPack) -> bool {
    let is_confirmed = |version| raw.newest_copy().is_some_and(|(_, copy)| copy.version == version);
    raw.end(0).is_ok()
        || raw.start().is_some_and(|start| is_confirmed(start.version))
        || raw.blocks(0..1).is_ok_and(|head| head.iter().all(|byte| *byte == 0))
}

fn text(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.to_string(),
        error => error.to_string(),
    }
}

/// A pack that was complete: its end is written last.
struct Complete {
    number: u8,
    head: PackEnd,
    /// The end that is damaged, if one is, and the finding that restores it.
    damaged: Option<(DamagedEnd, Finding)>,
}

impl Complete {
    /// Returns true if the pack can be used beside a newer one. A copy in a pack whose head is damaged may be left from an
    /// earlier checkpoint.
    fn precedes(&self, newer: &Complete) -> bool {
        self.damaged.is_none() || self.head.version.0.wrapping_add(1) == newer.head.version.0
    }
}

/// Both packs, and what leads from them to their tables.
struct Packs<'a> {
    io: &'a Io,
    geometry: &'a Geometry,
    sb: &'a Superblock,
    raws: [RawPack; 2],
}

impl Packs<'_> {
    fn raw(&self, number: u8) -> &RawPack {
        &self.raws[usize::from(number)]
    }

    /// Reads the pack that counts: the newest complete one whose numbers are possible. If an end of it is
    /// damaged, Linux falls back to the older pack; here that counts only if its tables give more.
    fn choose(&self, report: &mut Report) -> Option<Pack> {
        let [mut newer, mut older] = [0, 1].map(|number| self.complete(number));
        let version = |pack: &Option<Complete>| pack.as_ref().map(|complete| complete.head.version);
        if newest(version(&newer), version(&older)) == Some(1) {
            std::mem::swap(&mut newer, &mut older);
        }
        if let (Some(new), Some(old)) = (&newer, &older) {
            // The packs take turns. Another version at the end of a pack is left from an earlier volume on the device.
            let is_next = new.head.version.0 == old.head.version.0.wrapping_add(1);
            if new.damaged.is_some() && old.damaged.is_none() && !is_next {
                newer = older.take();
            }
        }
        let Some(newer) = newer.or_else(|| self.without_end()) else {
            for number in [0, 1] {
                let error = self.raw(number).whole().expect_err("no pack is complete");
                report.add(Finding::new(Kind::PackUnreadable, Place::Checkpoint(number), text(&error)));
            }
            return None;
        };
        let older = older.filter(|older| older.precedes(&newer));
        if let Some(better) = older.as_ref().filter(|older| self.gives_more(older, &newer, report)) {
            return self.take(better, report);
        }
        let pack = self.take(&newer, report);
        match (pack, older) {
            (None, Some(older)) => {
                report.lose(Loss::Checkpoint);
                self.take(&older, report)
            }
            (pack, _) => {
                if let Some(finding) = self.broken(1 - newer.number, newer.head.version) {
                    if finding.certainty == Certainty::Unclear {
                        report.lose(Loss::Checkpoint);
                    }
                    report.add(finding);
                }
                pack
            }
        }
    }

    /// Returns a pack if it has its end. A damaged head comes back from there, and a damaged end from the head.
    fn complete(&self, number: u8) -> Option<Complete> {
        let raw = self.raw(number);
        let error = match raw.whole() {
            Ok(head) => {
                let whole = || Complete { number, head, damaged: None };
                return Some(self.with_replaced_head(number, head).unwrap_or_else(whole));
            }
            Err(error) => error,
        };
        let stored = raw.end(0).ok();
        if let Some(complete) = stored.and_then(|head| self.with_damaged_end(number, head, &error)) {
            return Some(complete);
        }
        // The end is written last: one that is newer than the head proves that the head is an old one.
        let is_newest = |copy: &PackEnd| stored.is_none_or(|head| copy.version.is_after(head.version));
        let (block, head) = raw.newest_copy().filter(|(_, copy)| is_newest(copy))?;
        self.with_head_of_copy((number, block), head, &text(&error))
    }

    /// Returns a pack whose head comes back from a copy at its end.
    fn with_head_of_copy(&self, (number, copy): (u8, u32), head: PackEnd, known: &str) -> Option<Complete> {
        let known = format!("{known}; the copy of its head at its end is whole, and newest");
        let finding = Finding::new(Kind::PackUnreadable, Place::Checkpoint(number), known)
            .repaired_by("copy the end of the pack over its head")
            .with_certainty(Certainty::Certain);
        let block = self.raw(number).blocks(copy..copy + 1).ok()?.into();
        let end = DamagedEnd { at: self.geometry.pack(number), block };
        Some(Complete { number, head, damaged: Some((end, finding)) })
    }

    /// Returns a pack with the head of an earlier, longer one, whose end still lies behind its own: then it has a copy of the
    /// checkpoint that follows that in the other pack.
    fn with_replaced_head(&self, number: u8, head: PackEnd) -> Option<Complete> {
        let between = self.raw(1 - number).whole().ok()?.version.0;
        if between != head.version.0.wrapping_add(1) {
            return None;
        }
        let (block, copy) = self.raw(number).newest_copy()?;
        // A volume that was there before may have left a copy of this number, too.
        let is_proven = copy.version.0 == between.wrapping_add(1) && self.is_followed(1 - number);
        let known = format!("it begins with version {}", head.version.0);
        if is_proven { self.with_head_of_copy((number, block), copy, &known) } else { None }
    }

    /// Returns a pack whose head is whole and whose end is damaged, if the end begins with the version of the head: it is
    /// written after all else is durable, so the checkpoint is whole, even if a power cut tore that last write. A node that
    /// was written after the checkpoint proves the same.
    fn with_damaged_end(&self, number: u8, head: PackEnd, error: &Error) -> Option<Complete> {
        let raw = self.raw(number);
        let last = head.pack_blocks - 1;
        let start = PackStart::parse(raw.blocks(last..last + 1).ok()?);
        let is_begun = (start.version, start.pack_blocks) == (head.version, head.pack_blocks);
        // Behind the head of an earlier checkpoint lies a newer copy, and the nodes of that time.
        let is_replaced = raw.newest_version().is_some_and(|version| version.is_after(head.version));
        let proof = match raw.end(last).is_err() && is_begun {
            true => "the end of the pack has the version of its head, which is whole",
            false if !is_replaced && self.is_followed(number) => {
                "its head is whole, and nodes were written after this checkpoint"
            }
            false => return None,
        };
        let known = format!("{}; {proof}", text(error));
        let finding = Finding::new(Kind::PackUnreadable, Place::Checkpoint(number), known)
            .repaired_by("copy the head of the pack over its end")
            .with_certainty(Certainty::Likely);
        Some(Complete { number, head, damaged: Some((self.end_of_head(number, head)?, finding)) })
    }

    /// Returns true if nodes that an fsync wrote after the checkpoint lie where the log of a pack goes on. They have its
    /// version and the checksum of its head.
    fn is_followed(&self, number: u8) -> bool {
        let head = self.raw(number).blocks(0..1 + self.sb.cp_payload);
        let checkpoint = head.and_then(|head| Checkpoint::check(head, self.sb, number));
        let Ok(checkpoint) = checkpoint else { return false };
        let LogPosition { segment, offset, .. } = checkpoint.logs[SegmentType::WarmNode.index()];
        if checkpoint.flags.has(Flags::NOCRC_RECOVERY) || segment.0 >= self.geometry.segments {
            return false;
        }
        let rest = (offset..BLOCKS_PER_SEGMENT as u16).map(|at| (self.geometry.block(segment, at), ()));
        let mut is_followed = false;
        read_runs(self.io, rest, |_, (), bytes| {
            let footer = bytes.ok().map(NodeFooter::of);
            is_followed |= footer.is_some_and(|footer| checkpoint.is_written_after(footer.cp_ver));
        });
        is_followed
    }

    /// The end of a pack as its head restores it.
    fn end_of_head(&self, number: u8, head: PackEnd) -> Option<DamagedEnd> {
        let at = BlockAddr(self.geometry.pack(number).0 + head.pack_blocks - 1);
        Some(DamagedEnd { at, block: self.raw(number).blocks(0..1).ok()?.into() })
    }

    /// Returns the newest pack that has only its head, if no pack has its end: it may be unfinished. A pack that is
    /// certainly unfinished is left out.
    fn without_end(&self) -> Option<Complete> {
        let head = |number: u8| {
            let raw = self.raw(number);
            let head = raw.end(0).ok()?;
            // The end is written last: an older one is that of an earlier checkpoint.
            let is_unfinished =
                raw.end(head.pack_blocks - 1).is_ok_and(|copy| head.version.is_after(copy.version));
            (!is_unfinished).then_some(head)
        };
        let heads = [0, 1].map(head);
        let number = newest(heads[0].map(|head| head.version), heads[1].map(|head| head.version))?;
        let (raw, head) = (self.raw(number), heads[usize::from(number)]?);
        let known = format!("{}; the end of no pack is whole", text(&raw.whole().err()?));
        let finding = Finding::new(Kind::PackUnreadable, Place::Checkpoint(number), known)
            .repaired_by("take the pack as complete, and copy its head over its end")
            .with_certainty(Certainty::Unclear);
        Some(Complete { number, head, damaged: Some((self.end_of_head(number, head)?, finding)) })
    }

    /// Returns true if the tables of the older pack give more than those of a newer one with a damaged end, and reports
    /// that.
    fn gives_more(&self, older: &Complete, newer: &Complete, report: &mut Report) -> bool {
        if newer.damaged.is_none() {
            return false;
        }
        let [from, to] = [older, newer].map(|complete| self.read(complete, &mut Report::default()));
        let (Some(from), Some(to)) = (from, to) else { return false };
        let volume = (self.io, self.geometry, self.sb);
        let Comparison { newer_nodes, older_nodes } = comparison::compare(volume, [from, to]);
        if older_nodes <= newer_nodes {
            return false;
        }
        let known = format!(
            "an end of it is damaged, and its tables do not fit the nodes: {older_nodes} nodes are missing or older than \
             in pack {}, {newer_nodes} are newer",
            older.number
        );
        let finding = Finding::new(Kind::PackUnreadable, Place::Checkpoint(newer.number), known);
        report.add(finding.with_certainty(Certainty::Unclear));
        report.lose(Loss::Checkpoint);
        true
    }

    /// Tells a pack that a power cut left unfinished from a damaged one: it has the version that follows `good`. `None`
    /// for a whole pack. One that is certainly older than `good` is as harmless: the next checkpoint overwrites both.
    fn broken(&self, number: u8, good: CheckpointVer) -> Option<Finding> {
        let raw = self.raw(number);
        let error = raw.whole().err()?;
        let next = raw.start().map(|start| start.version).filter(|it| it.0 == good.0.wrapping_add(1));
        let was_complete = next.is_some_and(|version| raw.has_copy(version));
        let follows = next.is_some() && !was_complete;
        // The pack may have been complete, and newer: then the older one lacks its changes.
        let is_newer = was_complete || raw.newest_version().is_some_and(|version| version.is_after(good));
        let (kind, certainty) = match (follows, is_newer) {
            (true, _) => (Kind::PackUnfinished, Certainty::Likely),
            (false, true) => (Kind::PackUnreadable, Certainty::Unclear),
            (false, false) if is_old(raw) => (Kind::PackUnfinished, Certainty::Certain),
            (false, false) => (Kind::PackUnreadable, Certainty::Certain),
        };
        Some(Finding::new(kind, Place::Checkpoint(number), text(&error)).with_certainty(certainty))
    }

    /// Reads a pack, and reports that an end of it is restored.
    fn take(&self, complete: &Complete, report: &mut Report) -> Option<Pack> {
        if let Some((_, finding)) = &complete.damaged {
            report.add(finding.clone());
        }
        self.read(complete, report)
    }

    fn read(&self, complete: &Complete, report: &mut Report) -> Option<Pack> {
        let (number, sb) = (complete.number, self.sb);
        let (raw, at, size) = (self.raw(number), Place::Checkpoint(number), sb.block_size.bytes());
        let damaged_end = complete.damaged.as_ref().map(|(end, _)| end.clone());
        let bytes = match &damaged_end {
            Some(end) if end.at == self.geometry.pack(number) => {
                raw.blocks(1..complete.head.pack_blocks).map(|rest| [&end.block[..], rest].concat().into())
            }
            _ => raw.blocks(0..complete.head.pack_blocks).map(Cow::Borrowed),
        };
        let checkpoint = bytes.and_then(|bytes| {
            let head = bytes.get(..size * (1 + sb.cp_payload as usize));
            let head = head.ok_or_else(|| Error::corrupt(at, "the pack is too short for its payload"))?;
            let checkpoint = Checkpoint::check(head, sb, number)?;
            let data_blocks = checkpoint.data_summary_blocks(self.geometry.summary);
            let wanted = data_blocks + 3 * usize::from(checkpoint.has_node_summaries());
            if ((checkpoint.pack_blocks - 1 - checkpoint.summaries_start) as usize) < wanted {
                let what = format!("the pack is too short for the {wanted} blocks of its summaries");
                return Err(Error::corrupt(at, what));
            }
            Ok((bytes, checkpoint, data_blocks))
        });
        let (bytes, checkpoint, data_blocks) = match checkpoint {
            Ok(read) => read,
            Err(error) => {
                report.add(Finding::new(Kind::CheckpointInvalid, at, text(&error)));
                return None;
            }
        };
        let parts = Parts { geometry: self.geometry, sb, number, checkpoint: &checkpoint, bytes: &bytes };
        let before = report.count(Kind::NatJournal);
        let (mut nat_journal, sit_journal) = parts.journals(report);
        if report.count(Kind::NatJournal) > before {
            self.keep_confirmed(&mut nat_journal);
        }
        Some(Pack {
            number,
            damaged_end,
            nat_journal,
            sit_journal,
            orphans: parts.orphans(report),
            summaries: parts.summaries(data_blocks),
            written_kilobytes: parts.written_kilobytes(data_blocks),
            nat_bits: parts.nat_bits(raw),
            other_version: self.raw(1 - number).newest_version(),
            checkpoint,
        })
    }

    /// Drops the entries of a damaged NAT journal whose blocks are not those of their nodes: the table counts instead.
    fn keep_confirmed(&self, journal: &mut Vec<(Nid, NatEntry)>) {
        let is_confirmed = |nid: Nid, entry: NatEntry| {
            let block = read_block(self.io, entry.addr);
            let footer = block.map(|block| NodeFooter::of(&block));
            footer.is_ok_and(|footer| (footer.nid, footer.ino) == (nid, entry.ino))
        };
        journal.retain(|(nid, entry)| {
            let is_named = nid.0 >= RESERVED_NIDS && !entry.is_free();
            !is_named || self.geometry.in_main(entry.addr) && is_confirmed(*nid, *entry)
        });
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
