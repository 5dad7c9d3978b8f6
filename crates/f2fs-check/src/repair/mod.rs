//! Repair of a volume: planned over an overlay, then written as one commit.
//!
//! [`plan`] checks the volume, applies the [fixes](crate::Fix) of the findings to an overlay, and checks again,
//! until a check finds nothing. The device is not written meanwhile. Nodes and directory blocks are changed in
//! place in the overlay (`edits`); names and quota files are changed by the engine (`names`). Then
//! `transfer` computes the writes that lead from the device to the overlay by one checkpoint. [`Plan::apply`]
//! performs them; a power cut at any of them leaves the old volume or the repaired one. Nodes that fsyncs wrote
//! after the checkpoint are rolled forward first, by the engine, as a mount does; that is a checkpoint of its own.
//!
//! [`Undo`] has the bytes that a plan overwrites.

mod census;
mod corrected;
mod edits;
mod log_segments;
mod logs;
mod moves;
mod names;
mod pack;
mod recover;
pub(crate) mod set_aside;
mod space;
mod superblock_copies;
mod table_blocks;
mod tables;
mod transfer;
mod undo;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use block::{Device, Overlay, Request, Verb, replay};
use f2fs::{
    Place, Result,
    format::superblock::Features,
    units::{Ino, Time},
};

pub use undo::{Undo, UndoError};

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Progress, Report, Severity,
    bitmap::Bitmap,
    checker::{Counts, ODD_MAX, examine, examine_after},
    memory::{self, Work},
    nat::clear_erased_entries,
    packs::DamagedEnd,
    remake::makes_directory,
    segments::{Contents, Segments},
};
use names::Renamed;
use transfer::{Changes, State};

/// Maximum number of checks. Each repairs the findings that the repairs of the last one uncovered; of a block with many
/// owners, each separates one.
const ROUNDS: usize = 24;
/// Kinds whose repair concerns only the superblocks.
const SUPERBLOCK_KINDS: [Kind; 6] = [
    Kind::SuperblockMagic,
    Kind::SuperblockChecksum,
    Kind::SuperblockInvalid,
    Kind::SuperblocksDiffer,
    Kind::ErrorsRecorded,
    Kind::QuotaFeature,
];
/// Kinds after whose repair a directory may have other blocks. Changes of its blocks wait for the next round.
const DOUBTFUL_OWNERS: [Kind; 5] =
    [Kind::BlockAddress, Kind::BlockTwice, Kind::InlineReserved, Kind::InodeChecksum, Kind::InodeInvalid];
/// Features of volumes that are not repaired: the rules of their devices or layouts are others.
const NOT_REPAIRED: [Features; 3] = [Features::RO, Features::BLKZONED, Features::DEVICE_ALIAS];

/// The result of planning.
#[derive(Debug)]
pub enum Planned {
    /// There is nothing to repair.
    Clean(Report),
    /// These writes repair the volume.
    Repair(Plan),
    /// The volume cannot be repaired.
    Refused(Refusal),
}

/// The reason why a volume cannot be repaired.
#[derive(Debug)]
pub struct Refusal {
    /// The findings.
    pub report: Report,
    /// The reason, as a sentence.
    pub reason: String,
}

/// A planned repair.
#[derive(Debug)]
pub struct Plan {
    /// The result of the first check.
    pub report: Report,
    /// Findings that the repair of earlier ones uncovers, and that the plan repairs, too.
    pub uncovered: Vec<Finding>,
    /// Losses that the repair cannot avoid, as sentences.
    pub losses: Vec<String>,
    requests: Vec<Request>,
}

impl Plan {
    /// The lowest certainty of a repair in the plan.
    pub fn certainty(&self) -> Certainty {
        if !self.losses.is_empty() {
            return Certainty::Unclear;
        }
        let errors = |finding: &&Finding| finding.kind.severity() == Severity::Error;
        let all = self.report.findings().iter().chain(&self.uncovered).filter(errors);
        all.map(|finding| finding.certainty).min().unwrap_or(Certainty::Certain)
    }

    /// The writes and flushes, in their order.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Number of bytes that the plan writes.
    pub fn written_bytes(&self) -> u64 {
        self.requests.iter().map(|request| request.length_bytes).sum()
    }

    /// Performs the writes.
    ///
    /// # Errors
    /// Errors of the device. It then has the old volume or the repaired one.
    pub fn apply(&self, device: &dyn Device) -> std::io::Result<()> {
        for request in &self.requests {
            match (request.verb, &request.data) {
                (Verb::Write, Some(data)) => device.write(request.offset_bytes, data)?,
                (Verb::Flush, _) => device.flush()?,
                _ => {}
            }
        }
        device.flush()
    }
}

/// Plans the repair of the volume on a device, and only reads from it. The caller concatenates the devices of a
/// volume on several first ([`f2fs::engine::join`]). `now` is the time for new inodes.
///
/// # Errors
/// Those of [`check`](crate::check).
pub fn plan(device: &Arc<dyn Device>, now: Time, progress: &mut dyn FnMut(Progress)) -> Result<Planned> {
    let (report, segments) = examine(device.clone(), Counts::Stored, progress)?;
    if report.is_clean() {
        return Ok(Planned::Clean(report));
    }
    // One copy is whole at any time, and all other writes follow those of the first one.
    let mut requests = if report.fixes().contains(&Fix::TakeSecondSuperblock) {
        superblock_copies::second_over_first(device)?
    } else if report.fixes().contains(&Fix::CountExtensions) {
        superblock_copies::with_counted_extensions(device)?
    } else if report.fixes().contains(&Fix::MendNewestPack) {
        set_aside::mended(device).map(|mended| mended.requests).unwrap_or_default()
    } else {
        return plan_by_first(device, (report, segments), now, progress);
    };
    let state: Arc<dyn Device> = over(device, &requests)?;
    let mut planned = plan_by_first(&state, (report, segments), now, progress)?;
    if let Planned::Repair(plan) = &mut planned {
        requests.append(&mut plan.requests);
        plan.requests = requests;
    }
    Ok(planned)
}

/// Plans the repair of a volume whose first usable superblock counts.
fn plan_by_first(
    device: &Arc<dyn Device>,
    (report, segments): (Report, Option<Segments>),
    now: Time,
    progress: &mut dyn FnMut(Progress),
) -> Result<Planned> {
    if let Some(reason) = refusal(device, &report) {
        return Ok(Planned::Refused(Refusal { report, reason }));
    }
    let Some(segments) = segments else {
        let reason = "without a superblock and a checkpoint nothing can be repaired".into();
        return Ok(Planned::Refused(Refusal { report, reason }));
    };
    let planning = Planning {
        device,
        now,
        progress,
        losses: Vec::new(),
        lost: BTreeMap::new(),
        links: BTreeMap::new(),
        uncovered: BTreeMap::new(),
    };
    planning.run(report, segments)
}

/// A state: a device with requests over it.
pub(crate) fn over(device: &Arc<dyn Device>, requests: &[Request]) -> Result<State> {
    let state = Arc::new(Overlay::new(device.clone()));
    replay(requests, &*state).map_err(|source| f2fs::Error::Io { at: Place::Volume, source })?;
    Ok(state)
}

/// The reason why a volume with these findings is not repaired.
fn refusal(device: &Arc<dyn Device>, report: &Report) -> Option<String> {
    if let Some(reason) = report.ended_early.as_ref().or(report.obstacle.as_ref()) {
        return Some(reason.clone());
    }
    for kind in [Kind::FeatureUnknown, Kind::FeatureNeeds, Kind::ResizeUnfinished, Kind::CheckpointDisabled] {
        if report.count(kind) > 0 {
            let remedy = kind.repair().trim_start_matches("none: ");
            return Some(format!("{} [{}] has to be resolved first: {remedy}", kind.rule(), kind.name()));
        }
    }
    let tables = tables::Tables::read(device.clone()).ok()?;
    let features = tables.superblock.features;
    let only_superblocks = only_superblocks(report);
    let refused = NOT_REPAIRED.into_iter().find(|feature| features.has(*feature) && !only_superblocks)?;
    let names: Vec<&str> = refused.names().collect();
    Some(format!("volumes with the feature {} are not repaired yet", names.join(", ")))
}

fn only_superblocks(report: &Report) -> bool {
    let mut errors = report.counts().filter(|(kind, _)| kind.severity() == Severity::Error);
    errors.all(|(kind, _)| SUPERBLOCK_KINDS.contains(&kind))
}

/// Returns true if the pack that does not count is damaged, and a new checkpoint can overwrite it. The volume is sound beside
/// it, but fsck.f2fs and Linux read it, too, and complain.
fn has_overwritable_pack(device: &Arc<dyn Device>, report: &Report) -> bool {
    let has_refused = |features: Features| NOT_REPAIRED.into_iter().any(|refused| features.has(refused));
    report.count(Kind::PackUnfinished) > 0
        && tables::Tables::read(device.clone()).is_ok_and(|tables| !has_refused(tables.superblock.features))
}

/// The findings that stay, if they are others than at first, and the reason.
type Stopped = (Option<Report>, String);

/// The state that a repair begins with: its device, the blocks in use, and its segments according to the last check.
struct Origin<'a> {
    start: &'a Arc<dyn Device>,
    used: &'a Bitmap,
    segments: &'a Segments,
}

/// The result of one round.
struct Round {
    /// The requests that lead from the beginning to the new state.
    requests: Vec<Request>,
    /// Inodes whose fields cannot be restored.
    freed_inodes: u64,
    /// Inodes whose size cannot be restored.
    resized_inodes: u64,
    /// Inodes with content of a file that their checksums do not confirm.
    unconfirmed_contents: u64,
    /// Inodes whose other fields their checksums do not confirm.
    unconfirmed_inodes: u64,
    /// Names that were taken out of a directory and could not be entered again, and inodes that moved to lost+found.
    renamed: Renamed,
}

/// Names in directories, in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Changes of directories wait for a later round.
    Kept,
    /// They are changed.
    Changed,
}

struct Planning<'a> {
    device: &'a Arc<dyn Device>,
    now: Time,
    progress: &'a mut dyn FnMut(Progress),
    losses: Vec<String>,
    lost: BTreeMap<Loss, u64>,
    /// Files whose link count was set: the number at first, and the last one.
    links: BTreeMap<Ino, (u32, u32)>,
    uncovered: BTreeMap<(Kind, String), Finding>,
}

impl Planning<'_> {
    fn run(mut self, report: Report, segments: Segments) -> Result<Planned> {
        let mut requests = Vec::new();
        let needs_checkpoint = !only_superblocks(&report);
        if needs_checkpoint || has_overwritable_pack(self.device, &report) {
            requests = match self.rounds(&report, segments) {
                Ok(Ok(requests)) => requests,
                _ if !needs_checkpoint => {
                    // The superblocks alone are repaired.
                    self.lost.clear();
                    self.losses.clear();
                    Vec::new()
                }
                Ok(Err((left, reason))) => {
                    return Ok(Planned::Refused(Refusal { report: left.unwrap_or(report), reason }));
                }
                Err(error) => {
                    let reason = format!("the repair cannot be completed: {error}");
                    return Ok(Planned::Refused(Refusal { report, reason }));
                }
            };
        }
        requests.extend(superblock_copies::requests(self.device, report.fixes())?);
        let last = over(self.device, &requests)?;
        let (left, _) = examine(last, Counts::Computed, self.progress)?;
        if !left.is_clean() {
            return Ok(Planned::Refused(Refusal { reason: remaining(&left), report: left }));
        }
        let missing = missing_names(&self.links);
        if missing > 0 {
            *self.lost.entry(Loss::Entry).or_default() += missing;
        }
        let uncovered = self.uncovered.into_values().collect();
        let mut losses = self.losses;
        losses.extend(self.lost.iter().map(|(loss, count)| loss.sentence(*count)));
        Ok(Planned::Repair(Plan { report, uncovered, losses, requests }))
    }

    /// Repairs and checks in turn. Returns the requests, or the findings that stay and a reason.
    fn rounds(&mut self, first: &Report, segments: Segments) -> Result<Result<Vec<Request>, Stopped>> {
        memory::ensure(segments.geometry(), Work::Repair)?;
        let mut before = restored_end(self.device)?;
        let mut start: Arc<dyn Device> = self.device.clone();
        if !before.is_empty() {
            start = over(&start, &before)?;
        }
        if first.losses().contains_key(&Loss::Checkpoint) {
            // Later checks see a volume without that pack.
            self.lost.insert(Loss::Checkpoint, 1);
        }
        let rolled = recover::roll_forward(&start, first, &segments, self.now);
        self.losses.extend(rolled.losses);
        let earlier = (!rolled.requests.is_empty()).then_some(&segments);
        if !rolled.requests.is_empty() {
            start = over(&start, &rolled.requests)?;
            before.extend(rolled.requests);
        }
        let (mut report, mut segments) = match before.is_empty() {
            true => (first.clone(), segments),
            false => match examine_after(start.clone(), Counts::Stored, earlier, self.progress)? {
                (mut report, Some(segments)) => {
                    report.lose_as(first);
                    self.note(first, &report);
                    (report, segments)
                }
                (report, None) => {
                    let reason =
                        "the volume cannot be read after roll-forward, or with the restored checkpoint";
                    return Ok(Err((Some(report), reason.into())));
                }
            },
        };
        let used = segments.in_use();
        let mut requests = Vec::new();
        let mut is_stuck = false;
        for _ in 0..ROUNDS {
            if let Some(reason) = too_much(&report) {
                return Ok(Err((Some(report), reason)));
            }
            let mut postpones = !is_stuck && has_doubtful_owners(&report);
            if postpones {
                report.drop_fixes(changes_directories);
            }
            let origin = Origin { start: &start, used: &used, segments: &segments };
            let mut round = self.round(&origin, &requests, &report)?;
            if round.renamed.refused > 0 && !is_stuck {
                // Other repairs may let the engine enter them.
                postpones = true;
                report.drop_fixes(changes_directories);
                round = self.round(&origin, &requests, &report)?;
            }
            self.note_losses(&report, &round, if postpones { Names::Kept } else { Names::Changed });
            requests = std::mem::take(&mut round.requests);
            let state = over(&start, &requests)?;
            let (next, blocks) = examine(state, Counts::Computed, self.progress)?;
            if only_superblocks(&next) {
                before.extend(requests);
                return Ok(Ok(before));
            }
            let Some(blocks) = blocks else {
                return Ok(Err((None, "the repaired tables cannot be read".into())));
            };
            is_stuck = postpones && report.findings() == next.findings();
            if !is_stuck && is_same(&report, &next) {
                return Ok(Err((Some(next.clone()), remaining(&next) + &lacking_space(&round.renamed))));
            }
            self.note(first, &next);
            (report, segments) = (next, blocks);
        }
        let reason = remaining(&report);
        Ok(Err((Some(report), reason)))
    }

    /// Makes the changes of one round, over the state that `requests` lead to.
    fn round(&mut self, origin: &Origin<'_>, requests: &[Request], report: &Report) -> Result<Round> {
        let Origin { start, used, segments } = *origin;
        let state = over(start, requests)?;
        let changes = self.edit(&state, report, segments, used)?;
        let mut requests = transfer::transfer(start, used, &state, &changes)?;
        let state = over(start, &requests)?;
        let renamed = self.rename(&state, report);
        if renamed.is_some() {
            requests = transfer::transfer(start, used, &state, &Changes::default())?;
        }
        let renamed = renamed.unwrap_or_default();
        let Changes { freed_inodes, resized_inodes, unconfirmed_contents, unconfirmed_inodes, .. } = changes;
        Ok(Round {
            requests,
            freed_inodes,
            resized_inodes,
            unconfirmed_contents,
            unconfirmed_inodes,
            renamed,
        })
    }

    fn edit(
        &mut self,
        state: &State,
        report: &Report,
        segments: &Segments,
        used: &Bitmap,
    ) -> Result<Changes> {
        let mut changes = edits::apply(state, report.fixes(), segments, used)?;
        changes.nat_blocks = lost_nat_blocks(state, report)?;
        Ok(changes)
    }

    /// Has the engine change names. Quota files follow when nothing else is wrong. Returns `None` if there was
    /// nothing to do.
    fn rename(&mut self, state: &State, report: &Report) -> Option<Renamed> {
        let quota = [Kind::QuotaUsage, Kind::QuotaFile, Kind::QuotaInode];
        let others = |(kind, _): &(Kind, u64)| {
            kind.severity() == Severity::Error && !quota.contains(kind) && !SUPERBLOCK_KINDS.contains(kind)
        };
        let only_quota = !report.counts().any(|count| others(&count));
        let is_due = |fix: &&Fix| names::is_change(fix) && (only_quota || !matches!(fix, Fix::Quota { .. }));
        let fixes: Vec<Fix> = report.fixes().iter().filter(is_due).cloned().collect();
        if fixes.is_empty() {
            return None;
        }
        Some(names::apply(state.clone(), &fixes, self.now))
    }

    /// Adds the losses that the changes of a round bring.
    fn note_losses(&mut self, report: &Report, round: &Round, names: Names) {
        for (loss, count) in report.losses().iter().filter(|(loss, _)| **loss != Loss::Checkpoint) {
            let lost = self.lost.entry(*loss).or_default();
            match loss {
                // These names are still there.
                Loss::Name | Loss::Entry if names == Names::Kept => {}
                // Each check finds the limits lost, until the last round replaces the files.
                Loss::Limits => *lost = (*lost).max(*count),
                _ => *lost += count,
            }
        }
        for (ino, (stored, found)) in report.links() {
            self.links.entry(*ino).or_insert((*stored, *found)).1 = *found;
        }
        self.lost.retain(|_, count| *count > 0);
        let of_round = [
            (Loss::Node, round.freed_inodes),
            (Loss::Size, round.resized_inodes),
            (Loss::Inline, round.unconfirmed_contents),
            (Loss::Unconfirmed, round.unconfirmed_inodes),
            (Loss::Entry, round.renamed.refused),
            (Loss::Place, round.renamed.moved),
        ];
        for (loss, count) in of_round {
            if count > 0 {
                *self.lost.entry(loss).or_default() += count;
            }
        }
    }

    /// Notes the findings that the first check did not have, or that have another repair now or a less certain one.
    fn note(&mut self, first: &Report, next: &Report) {
        for finding in next.findings().iter().filter(|finding| finding.kind.severity() == Severity::Error) {
            let is_told = |known: &Finding| {
                (known.kind, known.at, &known.repair) == (finding.kind, finding.at, &finding.repair)
                    && known.certainty <= finding.certainty
            };
            if !first.findings().iter().any(is_told) {
                let key = (finding.kind, finding.at.to_string());
                let noted = self.uncovered.entry(key).or_insert_with(|| finding.clone());
                noted.certainty = noted.certainty.min(finding.certainty);
            }
        }
    }
}

/// Number of names that files counted at first and do not have in the end. A round may find names that one before it missed.
fn missing_names(links: &BTreeMap<Ino, (u32, u32)>) -> u64 {
    links.values().map(|(first, last)| u64::from(first.saturating_sub(*last))).sum()
}

/// The reason not to repair a volume with more damage than a check keeps track of: what is not tracked would be
/// freed.
fn too_much(report: &Report) -> Option<String> {
    if report.dropped_fixes() > 0 {
        return Some(format!("{} changes are more than a repair can keep track of", report.dropped_fixes()));
    }
    let (kind, count) = report.counts().find(|(_, count)| *count >= ODD_MAX as u64)?;
    Some(format!("{count} findings of the kind {} are more than a repair can keep track of", kind.name()))
}

/// Returns the requests that restore a damaged head of the newest pack from the copy at its end, or the copy from the
/// head if no pack has a whole end. One block is written that counts before as damaged, so a power cut leaves this
/// state or the restored one.
fn restored_end(device: &Arc<dyn Device>) -> Result<Vec<Request>> {
    let tables = tables::Tables::read(device.clone())?;
    let log = tables.geometry.block_size.log();
    let requests = tables.pack.damaged_end.map(|DamagedEnd { at, block }| {
        [transfer::write_at(u64::from(at.0) << log, &block), transfer::flush()]
    });
    Ok(requests.into_iter().flatten().collect())
}

/// Returns true if a block may belong to another owner than the directory that names it, or if a directory comes back with
/// its entries.
fn has_doubtful_owners(report: &Report) -> bool {
    DOUBTFUL_OWNERS.into_iter().any(|kind| report.count(kind) > 0)
        || report.fixes().iter().any(makes_directory)
}

/// Returns true if a change follows from the entries of directories. A name that was taken out of its area is entered in the
/// same round, or stays where it is.
fn changes_directories(fix: &Fix) -> bool {
    matches!(
        fix,
        Fix::Data(..) | Fix::InlineData(..) | Fix::Root | Fix::Attach(_) | Fix::Enter { .. } | Fix::Orphan(_)
    )
}

/// Blocks of the NAT that a check could not read, or that have erased entries.
fn lost_nat_blocks(state: &State, report: &Report) -> Result<BTreeSet<u32>> {
    if report.count(Kind::TableUnreadable) == 0 && report.count(Kind::NatAddress) == 0 {
        return Ok(BTreeSet::new());
    }
    let tables = tables::Tables::read(state.clone())?;
    let is_lost =
        |index: &u32| tables.nat_block(*index).is_none_or(|mut block| clear_erased_entries(&mut block) > 0);
    Ok((0..tables.geometry.nat_blocks()).filter(is_lost).collect())
}

/// Returns true if two checks have the same findings.
fn is_same(one: &Report, other: &Report) -> bool {
    one.findings() == other.findings() && one.fixes() == other.fixes()
}

fn remaining(report: &Report) -> String {
    let kinds = report.counts().filter(|(kind, _)| kind.severity() == Severity::Error);
    let kinds: Vec<&str> = kinds.map(|(kind, _)| kind.name()).collect();
    format!("no repair is known for: {}", kinds.join(", "))
}

/// The end of a reason, if names could not be entered for want of space.
fn lacking_space(renamed: &Renamed) -> String {
    match renamed.lacking_space {
        0 => String::new(),
        count => {
            format!("; the volume has no space for {count} names: free some by a mount that deletes files")
        }
    }
}

#[cfg(test)]
mod tests {
    use f2fs::units::BlockAddr;

    use super::*;

    #[test]
    fn more_damage_than_is_tracked_is_refused() {
        let mut report = Report::default();
        for _ in 0..ODD_MAX - 1 {
            report.add(Finding::new(Kind::DirSecondName, Place::Inode(Ino(5)), ""));
        }
        assert_eq!(too_much(&report), None);
        report.add(Finding::new(Kind::DirSecondName, Place::Inode(Ino(5)), ""));
        assert!(too_much(&report).is_some());
    }

    #[test]
    fn changes_that_were_not_kept_are_refused() {
        let mut report = Report::default();
        report.fix(Fix::Data(BlockAddr(9), 0, vec![0; 64 << 20]));
        assert_eq!(too_much(&report), None);
        report.fix(Fix::Data(BlockAddr(9), 0, vec![0]));
        assert!(too_much(&report).is_some());
    }
}
