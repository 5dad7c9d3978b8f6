//! The check as a whole: its state, and the order of its parts.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use block::Device;
use f2fs::{
    Place, Result,
    engine::{Geometry, Io},
    format::{
        checkpoint::Checkpoint,
        node::{NodeBlock, NodeFormat},
        superblock::Superblock,
    },
    units::{BlockAddr, Ino, Nid},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Progress, Report, Severity, Slot, Stage,
    addresses::Odd,
    adopt,
    areas::Held,
    clusters::Trials,
    doubtful_names::DoubtfulNames,
    encryption::{Marks, Parents},
    layouts::Layouts,
    links::Directory,
    lost::Lost,
    memory::{self, Work},
    missing_marks::MissingMarks,
    nat,
    outdated::{Outdated, PastSize},
    packs,
    quotas::Quotas,
    reader::Cache,
    remake::{LostInodes, Named},
    repair::{
        self,
        set_aside::{self, Mended},
    },
    segments::Segments,
    shared::SharedBlocks,
    summaries::Summaries,
    superblocks,
    table::Table,
};

/// Blocks of nodes that are kept in memory.
const NODE_SLOTS: usize = 1024;
/// Maximum number of entries of each table for damage that may have one cause.
pub(crate) const ODD_MAX: usize = 1 << 16;

/// Checks the volume on a device, and only reads from it. The caller concatenates the devices of a volume on
/// several first ([`f2fs::engine::join`]). `progress` is called often.
///
/// # Errors
/// [`NotF2fs`](f2fs::Error::NotF2fs) if there is no volume. Damage and unreadable sectors are findings.
pub fn check(device: Arc<dyn Device>, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
    examine(device, Counts::Stored, progress).map(|(report, _)| report)
}

/// Like [`check`], by the superblock from which a volume is opened: the first usable one, even if the second fits the rest of
/// the volume better.
///
/// # Errors
/// Those of [`check`].
pub fn check_as_opened(device: Arc<dyn Device>, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
    examine_by_first(device, Counts::Stored, None, progress).map(|(report, _)| report)
}

/// Origin of the counts in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    /// The file system counted.
    Stored,
    /// A round of the repair counted what nodes name: the numbers are no evidence.
    Computed,
}

/// A report, and the blocks in use if the tables could be read.
type Examined = (Report, Option<Segments>);

/// Like [`check`]; also returns the blocks in use, if the tables could be read. If the superblocks differ, that counts by
/// which the rest of the volume has fewer faults.
pub(crate) fn examine(
    device: Arc<dyn Device>,
    counts: Counts,
    progress: &mut dyn FnMut(Progress),
) -> Result<Examined> {
    examine_after(device, counts, None, progress)
}

/// Like [`examine`], after a roll-forward over corrections by the `earlier` segments: what spoke against the SIT then speaks
/// against it now.
pub(crate) fn examine_after(
    device: Arc<dyn Device>,
    counts: Counts,
    earlier: Option<&Segments>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Examined> {
    let (mut first, segments) = examine_by_first(device.clone(), counts, earlier, progress)?;
    if counts == Counts::Stored && first.count(Kind::CheckpointInvalid) > 0 {
        if let Some(mended) = set_aside::mended(&device) {
            return examine_with_mended_pack(&device, &mended, first, progress);
        }
    }
    if first.ended_early.is_some() && segments.is_none() {
        return match superblocks::with_counted_extensions(&device) {
            Some(bytes) => {
                examine_with_extensions(superblocks::with_first(&device, &bytes)?, counts, first, progress)
            }
            None => Ok((first, segments)),
        };
    }
    if first.count(Kind::SuperblocksDiffer) == 0 {
        return Ok((first, segments));
    }
    let Some((other, checksums)) = superblocks::with_second(&device)? else { return Ok((first, segments)) };
    let (mut second, other_segments) = examine_by_first(other, counts, earlier, progress)?;
    let errors = |report: &Report| report.count_of(Severity::Error) - report.count(Kind::SuperblocksDiffer);
    let faults = |report: &Report| (report.ended_early.is_some(), errors(report));
    // With equal faults, that counts which more checksums confirm.
    match faults(&second).cmp(&faults(&first)).then(checksums) {
        Ordering::Less => {
            second.add(superblocks::second_counts(errors(&second), errors(&first)));
            second.fix(Fix::TakeSecondSuperblock);
            Ok((second, other_segments))
        }
        Ordering::Equal => {
            first.doubt(Kind::SuperblocksDiffer);
            Ok((first, segments))
        }
        Ordering::Greater => Ok((first, segments)),
    }
}

/// Examines a volume whose superblocks have impossible counts of extensions, on a device with a mended first one.
fn examine_with_extensions(
    device: Arc<dyn Device>,
    counts: Counts,
    unusable: Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<Examined> {
    let (mut report, segments) = examine_by_first(device, counts, None, progress)?;
    for finding in unusable.findings().iter().filter(|finding| finding.at == Place::Superblock(0)) {
        let finding = finding.clone().repaired_by("count the extensions in its lists");
        report.add(finding.with_certainty(Certainty::Likely));
    }
    report.fix(Fix::CountExtensions);
    Ok((report, segments))
}

/// Examines a volume whose newest pack has an impossible number, on a device where it has another one.
fn examine_with_mended_pack(
    device: &Arc<dyn Device>,
    mended: &Mended,
    unusable: Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<Examined> {
    let state = repair::over(device, &mended.requests)?;
    let (mut report, segments) = examine_by_first(state, Counts::Stored, None, progress)?;
    // A chain that is there proves the segment of its log.
    let loss = mended.loss.filter(|_| report.count(Kind::ChainPending) == 0);
    for finding in unusable.findings().iter().filter(|finding| finding.kind == Kind::CheckpointInvalid) {
        let finding = finding.clone().repaired_by(mended.repair);
        report.add(match loss {
            Some(_) => finding.with_certainty(Certainty::Unclear),
            None => finding,
        });
    }
    if let Some(loss) = loss {
        report.lose(loss);
    }
    report.fix(Fix::MendNewestPack);
    Ok((report, segments))
}

/// Examines a volume by its first usable superblock.
fn examine_by_first(
    device: Arc<dyn Device>,
    counts: Counts,
    earlier: Option<&Segments>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Examined> {
    let mut report = Report::default();
    let Some(superblock) = superblocks::check(&device, &mut report)? else {
        return Ok(ended_early(report, "no superblock is usable"));
    };
    let geometry = Geometry::of(&superblock);
    memory::ensure(&geometry, Work::Check)?;
    let io = Arc::new(Io::new(device, superblock.block_size));
    let Some(mut pack) = packs::check(&io, &geometry, &superblock, &mut report) else {
        return Ok(ended_early(report, "no checkpoint pack is usable"));
    };
    let mut nodes = nat::read(&io, &geometry, &pack, &mut report, progress);
    let segments = Segments::read(&io, &geometry, &pack, &mut report, progress).doubted_as(earlier);
    let mut summaries =
        Summaries::new(&geometry, &superblock, &pack.checkpoint, std::mem::take(&mut pack.summaries));
    let sources = adopt::Sources::of((&io, &geometry, &superblock), &pack, &nodes.table, &segments);
    let adopted = adopt::find(sources, &mut summaries, &mut report);
    if !adopted.entries.is_empty() {
        pack.override_nat(&adopted.entries);
        nodes = nat::read(&io, &geometry, &pack, &mut Report::default(), progress);
    }
    let mut checker = Checker {
        format: NodeFormat::of(&superblock),
        lost: Lost::new(nodes.lost),
        table: nodes.table,
        quotas: Quotas::new(&superblock),
        io,
        superblock,
        geometry,
        checkpoint: pack.checkpoint,
        pack: pack.number,
        orphans: pack.orphans,
        report,
        segments,
        summaries,
        cache: Cache::new(NODE_SLOTS),
        last_inode: None,
        odd: FxHashMap::default(),
        cleared: FxHashMap::default(),
        shared: SharedBlocks::default(),
        faults: FxHashMap::default(),
        footers: FxHashMap::default(),
        misclaims: FxHashMap::default(),
        doubtful_places: FxHashMap::default(),
        unreadable: Vec::new(),
        lost_inodes: LostInodes::default(),
        invalid: BTreeMap::new(),
        layouts: Layouts::default(),
        bad_children: FxHashMap::default(),
        saved: FxHashMap::default(),
        missing_marks: MissingMarks::default(),
        unlike_clusters: FxHashSet::default(),
        named: FxHashMap::default(),
        doubted_kinds: FxHashSet::default(),
        parents: Parents::default(),
        marks: Marks::default(),
        past_size: FxHashMap::default(),
        outdated: Outdated::new(counts, adopted.newest),
        trials: Trials::default(),
        doubtful_names: DoubtfulNames::default(),
        area_fixes: FxHashMap::default(),
        removals: FxHashMap::default(),
        dir_budget: u64::from(geometry.segments) << 10,
        unfound_nodes: 0,
        extents: FxHashMap::default(),
        swapped: FxHashMap::default(),
        directories: Vec::new(),
        progress,
    };
    checker.run();
    Ok((checker.report, Some(checker.segments)))
}

/// The result of a check that cannot go on.
fn ended_early(mut report: Report, reason: &str) -> Examined {
    report.ended_early = Some(reason.into());
    (report, None)
}

/// Wrong entries of one summary.
pub(crate) struct Fault {
    /// Text on the first one.
    pub first: String,
    /// Number of wrong entries.
    pub count: u64,
}

/// State of a check.
pub(crate) struct Checker<'a> {
    pub io: Arc<Io>,
    pub superblock: Superblock,
    pub geometry: Geometry,
    pub format: NodeFormat,
    pub checkpoint: Checkpoint,
    pub pack: u8,
    pub orphans: Vec<Ino>,
    pub report: Report,
    pub table: Table,
    pub segments: Segments,
    pub summaries: Summaries,
    pub quotas: Quotas,
    pub lost: Lost,
    /// Blocks of nodes that were read out of order.
    pub cache: Cache,
    /// The inode that was parsed last.
    pub last_inode: Option<Arc<NodeBlock>>,
    /// Addresses that something speaks against, by node and index.
    pub odd: FxHashMap<(Nid, u16), Odd>,
    /// Numbers of addresses that are cleared, because nothing tells their blocks, by inode.
    pub cleared: FxHashMap<Ino, u32>,
    /// Blocks that several owners name.
    pub shared: SharedBlocks,
    /// Wrong entries of summaries, by segment and kind.
    pub faults: FxHashMap<(u32, Kind), Fault>,
    /// Claims that contradict a summary's footer, by segment.
    pub footers: FxHashMap<u32, u16>,
    /// Nodes that a parent of another inode than the NAT's names: the inode, and the offset.
    pub misclaims: FxHashMap<Nid, (Ino, u32)>,
    /// Nodes that their parent may name at a wrong place, with that place.
    pub doubtful_places: FxHashMap<Nid, Slot>,
    /// Nodes that cannot be read, with the findings.
    pub unreadable: Vec<(Nid, Finding)>,
    /// Inodes whose block is lost, with the findings.
    pub lost_inodes: LostInodes,
    /// Inodes whose fields contradict each other, with the findings.
    pub invalid: BTreeMap<Ino, Finding>,
    /// Layouts of regular files that are neither inline nor compressed.
    pub layouts: Layouts,
    /// Unusable child numbers, by inode and offset of the missing child.
    pub bad_children: FxHashMap<(Ino, u32), (Finding, Slot)>,
    /// Of compressed files: i_compr_blocks minus the saved blocks found.
    pub saved: FxHashMap<Ino, i64>,
    /// Clusters of compressed files whose marks may be lost.
    pub missing_marks: MissingMarks,
    /// Files whose compression their clusters tell, and not their inode.
    pub unlike_clusters: FxHashSet<Ino>,
    /// Invalid and lost inodes, according to their names.
    pub named: FxHashMap<Ino, Named>,
    /// Inodes whose content contradicts their kind.
    pub doubted_kinds: FxHashSet<Ino>,
    /// Parents of inodes that tell if they are encrypted, on a volume with encryption.
    pub parents: Parents,
    /// Inodes whose marks of encryption do not fit their contexts.
    pub marks: Marks,
    /// Blocks with data past the size of a file.
    pub past_size: FxHashMap<Ino, PastSize>,
    /// Inodes that may be older than the blocks of their files.
    pub outdated: Outdated,
    /// Clusters that may still be decompressed.
    pub trials: Trials,
    /// Areas and names on which the sums decide.
    pub doubtful_names: DoubtfulNames,
    /// Numbers of the fixes of each area of entries, in their order.
    pub area_fixes: FxHashMap<Held, Vec<usize>>,
    /// Names to remove: directory, inode, and the number of its names that stay.
    pub removals: FxHashMap<(Ino, Ino), usize>,
    /// Blocks of directories that may still be read. Each directory is read twice, and again if names are removed; all
    /// together are not more than the volume has. Damaged nodes could make the walk longer.
    pub dir_budget: u64,
    /// Number of nodes that the NAT or a parent names and of which no block was found.
    pub unfound_nodes: u64,
    /// Blocks of extents that were not compared yet, by inode.
    pub extents: FxHashMap<Ino, u32>,
    /// First blocks of directories that others name, by the directories that they belong to.
    pub swapped: FxHashMap<Ino, BlockAddr>,
    /// All directories.
    pub directories: Vec<Directory>,
    progress: &'a mut dyn FnMut(Progress),
}

impl Checker<'_> {
    fn run(&mut self) {
        self.check_logs();
        self.note_special_inodes();
        self.check_inodes();
        self.find_lost();
        self.check_nodes();
        self.find_lost();
        self.check_directories();
        self.tell(Stage::Sums, 0, 1);
        self.conclude_marks();
        self.check_links();
        self.check_quotas();
        self.check_chain();
        self.conclude();
        self.tell(Stage::Sums, 1, 1);
    }

    /// Adds a change that repairs a finding.
    pub fn fix(&mut self, fix: Fix) {
        self.report.fix(fix);
    }

    /// Counts a loss that the changes bring.
    pub fn lose(&mut self, loss: Loss) {
        self.report.lose(loss);
    }

    /// Adds a finding with the usual repair of its kind.
    pub fn add(&mut self, kind: Kind, at: Place, known: impl Into<String>) {
        self.report.add(Finding::new(kind, at, known));
    }

    /// Reports progress.
    pub fn tell(&mut self, stage: Stage, done: u64, total: u64) {
        let bytes = self.geometry.block_size.bytes() as u64;
        let progress = Progress { stage, done_bytes: done * bytes, total_bytes: total * bytes };
        (self.progress)(progress);
    }
}
