//! The scan of a device for node blocks.

use std::ops::Range;

use block::data_ranges;
use f2fs::{
    Place,
    format::{FileType, NodeBlock, node::NodeFooter},
    units::{BlockAddr, Time},
};
use rustc_hash::FxHashMap;

use crate::{
    Map, Progress, Stage, Status,
    evidence::{Evidence, high_half, low_half},
    raw_node,
    shape::Shape,
    summaries::{Owned, Summaries},
    versions::{InodeFacts, Version, Versions, fact},
    volumes::Intervals,
};

/// Bytes of one request.
const RUN_BYTES: usize = 1 << 20;
/// Versions of a node that are kept when there are too many.
const KEPT: usize = 2;

/// Result of a scan.
#[derive(Default)]
pub(crate) struct Scanned {
    pub(crate) versions: Versions,
    /// Nodes that were fsynced after the checkpoint, as numbers of marked nodes by inode.
    pub(crate) marked: FxHashMap<u32, u32>,
    /// The checkpoints before the nodes.
    pub(crate) intervals: Intervals,
    /// The parts of the device that were read.
    pub(crate) map: Map,
    /// Blocks that could not be read.
    pub(crate) unreadable_blocks: u64,
    /// Newest version of a checkpoint in a footer.
    pub(crate) newest: u32,
    /// True if the table of versions was full.
    pub(crate) is_thinned: bool,
    /// True if the table is full of different nodes: further ones are left out.
    is_full: bool,
    /// True if nodes were left out because the table is full.
    pub(crate) has_left_out_nodes: bool,
    /// The last node block, and the volume that it belongs to.
    last: Option<(BlockAddr, Belonging)>,
}

/// Volume that a node belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Belonging {
    This,
    Other,
}

/// The scan.
pub(crate) struct Scan<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) evidence: Option<&'a Evidence>,
    pub(crate) summaries: &'a Summaries,
    /// Only versions of this checkpoint and of older ones count.
    pub(crate) as_of: Option<u32>,
    /// Maximum number of versions.
    pub(crate) versions_max: usize,
}

impl Scan<'_> {
    /// Reads the device, and collects every block that looks like a node.
    pub(crate) fn run(&self, progress: &mut dyn FnMut(Progress<'_>)) -> Scanned {
        let mut scanned = Scanned::default();
        let size = self.shape.block_size().bytes();
        let step = (RUN_BYTES / size) as u64;
        let mut buffer = vec![0; RUN_BYTES];
        let blocks = self.shape.blocks.clone();
        let total_bytes = (blocks.end - blocks.start) * size as u64;
        let mut tell = |scanned: &Scanned, next: u64| {
            let done_bytes = (next - blocks.start) * size as u64;
            progress(Progress { stage: Stage::Scan, done_bytes, total_bytes, map: &scanned.map });
        };
        let mut at = blocks.start;
        tell(&scanned, at);
        let bytes = blocks.start * size as u64..blocks.end * size as u64;
        // A hole has no nodes.
        for data in data_ranges(&**self.shape.io.device(), bytes) {
            let end = data.end.div_ceil(size as u64);
            self.skip(at..data.start / size as u64, &mut scanned);
            at = at.max(data.start / size as u64);
            while at < end {
                let count = step.min(end - at);
                self.read(address(at), &mut buffer[..count as usize * size], &mut scanned, &mut tell);
                at += count;
            }
        }
        self.skip(at..blocks.end, &mut scanned);
        tell(&scanned, blocks.end);
        scanned
    }

    /// Notes blocks of a hole as read.
    fn skip(&self, blocks: Range<u64>, scanned: &mut Scanned) {
        if blocks.start < blocks.end {
            let length = (blocks.end - blocks.start) << self.shape.block_size().log();
            let bytes = self.shape.bytes(address(blocks.start), length);
            scanned.map.skip_to(bytes.start, Status::Untried);
            scanned.map.push(bytes, Status::Read);
        }
    }

    /// Reads a run of blocks. A run that cannot be read is halved, down to single blocks. `tell` is called with the next
    /// block after each part whose state is known: on a failing device, each may take a minute.
    fn read(
        &self,
        first: BlockAddr,
        buffer: &mut [u8],
        scanned: &mut Scanned,
        tell: &mut dyn FnMut(&Scanned, u64),
    ) {
        let size = self.shape.block_size().bytes();
        let count = buffer.len() / size;
        let next = u64::from(first.0) + count as u64;
        let bytes = self.shape.bytes(first, buffer.len() as u64);
        if self.shape.io.read(first, Place::Block(first), buffer).is_ok() {
            scanned.map.skip_to(bytes.start, Status::Untried);
            scanned.map.push(bytes, Status::Read);
            for (addr, block) in (first.0..).zip(buffer.chunks_exact(size)) {
                self.block(BlockAddr(addr), block, scanned);
            }
            tell(scanned, next);
        } else if count == 1 {
            scanned.map.skip_to(bytes.start, Status::Untried);
            scanned.map.push(bytes, Status::Bad);
            scanned.unreadable_blocks += 1;
            tell(scanned, next);
        } else {
            let (left, right) = buffer.split_at_mut(count / 2 * size);
            self.read(first, left, scanned, tell);
            self.read(BlockAddr(first.0 + (count / 2) as u32), right, scanned, tell);
        }
    }

    fn block(&self, addr: BlockAddr, bytes: &[u8], scanned: &mut Scanned) {
        let shape = self.shape;
        let Some(footer) = raw_node::footer(bytes, shape.block_size(), shape.limits) else { return };
        if self.belonging(addr, &footer, scanned) == Belonging::Other {
            return;
        }
        if scanned.is_full {
            scanned.has_left_out_nodes = true;
            return;
        }
        let cp = low_half(footer.cp_ver);
        if self.as_of.is_some_and(|version| cp >= version) {
            return;
        }
        let Some(mut version) = version_of(shape, addr, &footer, bytes, cp) else { return };
        match self.summaries.owner(shape, addr) {
            Some(Owned::Node(owner)) if owner.nid == footer.nid => {}
            Some(_) => version.add(fact::DENIED),
            None => {}
        }
        if footer.fsync {
            let is_after = |evidence: &Evidence| evidence.checkpoint.is_written_after(footer.cp_ver);
            if self.evidence.is_some_and(is_after) {
                *scanned.marked.entry(footer.ino.0).or_default() += 1;
            }
        }
        self.note_interval(&footer, bytes, scanned);
        scanned.newest = scanned.newest.max(cp);
        scanned.versions.push(version);
        if scanned.versions.len() >= self.versions_max {
            scanned.is_thinned = true;
            scanned.versions.thin(KEPT);
            if scanned.versions.len() > self.versions_max / 2 {
                scanned.versions.thin(1);
            }
            // Thinning again would free little, and sort the whole table for it.
            scanned.is_full = scanned.versions.len() > self.versions_max / 8 * 7;
        }
    }

    /// Notes the checkpoint before a node.
    fn note_interval(&self, footer: &NodeFooter, bytes: &[u8], scanned: &mut Scanned) {
        let changed = footer.is_inode().then(|| {
            let head = raw_node::head(bytes);
            Time { seconds: head.ctime.get(), nanoseconds: head.ctime_nsec.get() }
        });
        scanned.intervals.add(footer.cp_ver, changed);
        if let Some(changed) = changed.filter(|_| footer.ino == self.shape.root()) {
            scanned.intervals.add_root(footer.cp_ver, changed);
        }
    }

    /// Decides which volume a node belongs to. The last node before a log goes on elsewhere does not tell; then it belongs to
    /// that of the node in front of it.
    fn belonging(&self, addr: BlockAddr, footer: &NodeFooter, scanned: &mut Scanned) -> Belonging {
        let before = scanned.last.filter(|(last, _)| last.0 + 1 == addr.0).map(|(_, volume)| volume);
        let belonging = match footer.next_addr {
            _ if self.shape.is_of_another(addr, footer) => Belonging::Other,
            next if next.0 == addr.0 + 1 => Belonging::This,
            _ => before.unwrap_or(Belonging::This),
        };
        scanned.last = Some((addr, belonging));
        belonging
    }
}

/// Address of a block of the device.
fn address(number: u64) -> BlockAddr {
    BlockAddr(u32::try_from(number).expect("addresses have 32 bits"))
}

/// Makes a version of a block with this footer; `None` if an inode's layout is impossible.
pub(crate) fn version_of(
    shape: &Shape,
    addr: BlockAddr,
    footer: &NodeFooter,
    bytes: &[u8],
    cp: u32,
) -> Option<Version> {
    if !footer.is_inode() {
        return Some(
            Version::node(footer.nid, footer.ino, footer.offset, addr, cp)
                .with_checksum(high_half(footer.cp_ver)),
        );
    }
    let check = |format| NodeBlock::check(format, bytes.into(), footer.nid, footer.ino, addr);
    let is_sound = shape.strict.is_none_or(|format| check(format).is_ok());
    let corrected = if is_sound { None } else { shape.corrected(bytes, footer.ino) };
    if corrected.is_none() && (!is_sound || shape.strict.is_none()) {
        check(shape.lenient).ok()?;
    }
    let bytes = corrected.as_deref().unwrap_or(bytes);
    let head = raw_node::head(bytes);
    let facts = InodeFacts {
        kind: FileType::from_mode(head.mode.get())?,
        ctime: low_half(head.ctime.get() as u64),
        generation: head.generation.get(),
        pino: head.pino.get(),
    };
    let mut version = Version::inode(footer.ino, facts, addr, cp);
    if !is_sound {
        version.add(fact::BAD_SUM);
    }
    Some(version)
}
