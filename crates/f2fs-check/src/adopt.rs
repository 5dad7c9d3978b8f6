//! Nodes that the NAT has lost: their blocks are valid and carry their numbers, and the NAT names no valid block.
//!
//! In a sound volume, the valid blocks of node segments are those that the NAT names. Each other one is a node that
//! the NAT lost, if no summary contradicts the number in its footer: a block of the NAT was overwritten, or is old.
//! But a block of the SIT may be old, too, and then marks blocks of nodes that were removed. Nodes of which the NAT
//! names another block tell the two apart: the older block is that of the old table. A summary that contradicts most
//! footers of its segment is lost itself, and contradicts none.
//!
//! If NAT and SIT are both lost, no mark tells a node in use from a removed one. Then the numbers of nodes and inodes in the
//! checkpoint decide: as many nodes as they count come back, and more are a reason to refuse a repair.

mod misnamed;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use f2fs::{
    Place,
    engine::{Geometry, Io},
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Checkpoint, RESERVED_NIDS},
        nat::NatEntry,
        node::{NodeBlock, NodeFooter, NodeFormat},
        sit::{self, SegmentType},
        superblock::Superblock,
    },
    units::{BlockAddr, Nid, SegNo},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Finding, Fix, Kind, Report,
    bitmap::Bitmap,
    checker::ODD_MAX,
    packs::Pack,
    reader::read_runs,
    segments::Segments,
    summaries::{Owned, Summaries},
    superseded::{Newest, Written},
    table::{Table, fact},
};
use misnamed::Misnamed;

/// Nodes that the checkpoint counts and nothing names, from which on blocks without a mark are searched, too.
const MISSING_MIN: u64 = 8;
/// Checkpoints that a pack of the same place is older.
const RECENT: u32 = 2;
/// Footers that a summary contradicts, from which on it may be lost. One footer may be wrong itself.
const DENIED_MIN: usize = 2;
/// Byte offset of i_ctime.
const CTIME: usize = 40;

/// The structures that tell which nodes are in use.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// Access to the volume.
    pub io: &'a Io,
    /// The areas of the volume.
    pub geometry: &'a Geometry,
    /// The format of nodes.
    pub format: NodeFormat,
    /// The checkpoint that counts.
    pub checkpoint: &'a Checkpoint,
    /// The nodes that the NAT names.
    pub table: &'a Table,
    /// The blocks that the SIT marks.
    pub segments: &'a Segments,
    /// The NAT journal.
    pub journal: &'a [(Nid, NatEntry)],
}

impl<'a> Sources<'a> {
    /// Collects the structures of a volume.
    pub fn of(
        (io, geometry, superblock): (&'a Io, &'a Geometry, &Superblock),
        pack: &'a Pack,
        table: &'a Table,
        segments: &'a Segments,
    ) -> Sources<'a> {
        let format = NodeFormat::of(superblock);
        let journal = &pack.nat_journal;
        Sources { io, geometry, format, checkpoint: &pack.checkpoint, table, segments, journal }
    }
}

/// Entries that the NAT has lost.
#[derive(Debug, Default)]
pub struct Adopted {
    /// The entries.
    pub entries: BTreeMap<Nid, NatEntry>,
    /// Those nodes of which the NAT names an older block, or none, and a log has the newest one.
    pub newest: FxHashSet<Nid>,
}

/// Finds the nodes that the NAT has lost.
pub fn find(sources: Sources<'_>, summaries: &mut Summaries, report: &mut Report) -> Adopted {
    let mut search = Search::new(sources, summaries);
    let marked = search.marked();
    let mut found = BTreeMap::new();
    for (nid, Candidate { stored, entry, .. }) in marked {
        report.add(match search.misnamed.get(&nid) {
            Some(misnamed) => misnamed.finding(nid, stored, entry.addr),
            None => finding(nid, stored, entry.addr),
        });
        report.fix(Fix::Nat { nid, ino: entry.ino, addr: entry.addr });
        let index = search.index(entry.addr);
        search.named.set(index);
        found.insert(nid, entry);
    }
    let superseded = search.superseded(&found);
    let newest = superseded.keys().copied().collect();
    for (nid, newest) in superseded {
        report.add(newest.finding(nid));
        let NatEntry { ino, addr, .. } = newest.entry;
        report.fix(Fix::Nat { nid, ino, addr });
        let index = search.index(addr);
        search.named.set(index);
        found.insert(nid, newest.entry);
    }
    let unmarked = search.unmarked(&found);
    for (nid, Candidate { entry, .. }) in unmarked.nodes {
        let known =
            format!("no block is known; the node lies at {}, which the SIT does not mark", entry.addr);
        let finding = Finding::new(Kind::NatAddress, Place::Nat(nid), known);
        let finding = finding.repaired_by(format!("set the address to {}", entry.addr));
        report.add(finding.with_certainty(unmarked.certainty));
        report.fix(Fix::Nat { nid, ino: entry.ino, addr: entry.addr });
        found.insert(nid, entry);
    }
    report.obstacle = unmarked.obstacle;
    Adopted { entries: found, newest }
}

/// Returns true if a node of the volume can have this number.
pub fn is_possible(geometry: &Geometry, nid: Nid) -> bool {
    nid.0 >= RESERVED_NIDS && nid < geometry.nids_end()
}

/// Returns the finding of a node at `addr` for which the NAT has the address `stored`.
fn finding(nid: Nid, stored: BlockAddr, addr: BlockAddr) -> Finding {
    let (known, certainty) = match stored {
        BlockAddr::NULL => (format!("it is free; the node lies at {addr}"), Certainty::Likely),
        stored => {
            (format!("it names {stored}, which is not valid; the node lies at {addr}"), Certainty::Certain)
        }
    };
    Finding::new(Kind::NatAddress, Place::Nat(nid), known)
        .repaired_by(format!("set the address to {addr}"))
        .with_certainty(certainty)
}

/// A block with the footer of a node.
struct Found {
    addr: BlockAddr,
    footer: NodeFooter,
    /// Owner of the block according to the summary, if there is one.
    owner: Option<Nid>,
    /// The block is a node without a wrong checksum.
    is_whole: bool,
    /// Seconds of the last change of an inode.
    changed: u64,
}

impl Found {
    fn is_denied(&self) -> bool {
        self.owner.is_some_and(|owner| owner != self.footer.nid)
    }

    /// Lower half of the version of the checkpoint before it.
    fn age(&self) -> u32 {
        self.footer.cp_ver as u32
    }
}

/// A node that the NAT may have lost.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// Age, and what tells two blocks of one age apart.
    age: (u32, u64, BlockAddr),
    /// Address that the NAT has.
    stored: BlockAddr,
    entry: NatEntry,
}

/// Nodes in blocks that the SIT does not mark.
struct Unmarked {
    nodes: BTreeMap<Nid, Candidate>,
    certainty: Certainty,
    /// The reason not to repair the volume.
    obstacle: Option<String>,
}

/// Numbers of nodes and of inodes.
#[derive(Debug, Clone, Copy)]
struct Count {
    nodes: u64,
    inodes: u64,
}

struct Search<'a> {
    sources: Sources<'a>,
    summaries: &'a mut Summaries,
    /// Blocks that the NAT names.
    named: Bitmap,
    /// Entries that name the block of another node.
    misnamed: FxHashMap<Nid, Misnamed>,
    /// Number of candidates that were too many to keep.
    dropped: u64,
    /// Nodes that follow the checkpoint.
    after: After,
}

/// Nodes that were written after the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// No log goes on with a node: one with the version of the checkpoint was written before it, as by sload.f2fs.
    Nothing,
    /// A log goes on with nodes.
    Nodes,
}

impl<'a> Search<'a> {
    fn new(sources: Sources<'a>, summaries: &'a mut Summaries) -> Search<'a> {
        let bits = u64::from(sources.geometry.segments) * u64::from(BLOCKS_PER_SEGMENT);
        let (named, misnamed, after) = (Bitmap::new(bits), FxHashMap::default(), After::Nothing);
        let mut search = Search { sources, summaries, named, misnamed, dropped: 0, after };
        let table = sources.table;
        for (_, entry) in table.iter().filter(|(_, entry)| !table.has(*entry, fact::BROKEN)) {
            let index = search.index(table.addr(entry));
            search.named.set(index);
        }
        search.find_misnamed();
        search
    }

    fn index(&self, addr: BlockAddr) -> usize {
        let (segment, offset) = self.sources.geometry.position(addr);
        segment.index() * BLOCKS_PER_SEGMENT as usize + usize::from(offset)
    }

    /// Reads blocks, and returns those with a possible footer, and the number of others that are not empty.
    fn read(&mut self, blocks: impl IntoIterator<Item = BlockAddr>) -> (Vec<Found>, usize) {
        let Sources { io, geometry, format, .. } = self.sources;
        let summaries = &mut *self.summaries;
        let (mut found, mut others) = (Vec::new(), 0);
        read_runs(io, blocks.into_iter().map(|addr| (addr, ())), |addr, (), bytes| {
            let Ok(bytes) = bytes else { return };
            let footer = NodeFooter::of(bytes);
            if !is_possible(geometry, footer.nid) || footer.ino.0 < RESERVED_NIDS {
                others += usize::from(bytes.iter().any(|byte| *byte != bytes[0]));
                return;
            }
            let changed = u64::from_le_bytes(bytes[CTIME..CTIME + 8].try_into().expect("eight bytes"));
            found.push(Found {
                addr,
                footer,
                owner: summaries.owner(io, addr).map(|owned| owned.owner.nid),
                is_whole: NodeBlock::check(format, bytes.into(), footer.nid, footer.ino, addr).is_ok(),
                changed: if footer.is_inode() { changed } else { 0 },
            });
        });
        (found, others)
    }

    /// Nodes in those blocks of a segment that the SIT marks and no entry names.
    fn unnamed(&mut self, segment: SegNo) -> Vec<Found> {
        let segments = self.sources.segments;
        let unnamed = segments.marked(segment).filter(|addr| !self.named.get(self.index(*addr)));
        let unnamed: Vec<BlockAddr> = unnamed.collect();
        self.read(unnamed).0
    }

    /// Nodes in blocks that the SIT marks.
    fn marked(&mut self) -> BTreeMap<Nid, Candidate> {
        let Sources { table, segments, checkpoint, .. } = self.sources;
        let mut candidates = BTreeMap::new();
        for segment in segments.all() {
            if segments.kind(segment).is_none_or(|kind| !kind.is_node()) {
                continue;
            }
            let blocks = self.unnamed(segment);
            let is_lost = blocks.iter().any(Found::is_denied) && {
                let (all, _) = self.read(segments.marked(segment));
                is_summary_lost(&all)
            };
            for block in blocks {
                let is_owner = match block.owner {
                    Some(owner) => owner == block.footer.nid || is_lost,
                    // A checkpoint without an unmount has no summaries of the node logs. Nodes that fsyncs wrote after
                    // it have its version, and are rolled forward.
                    None => block.age() != checkpoint.version.0 as u32,
                };
                let is_misnamed = self.misnamed.contains_key(&block.footer.nid);
                let stored = match table.find(block.footer.nid) {
                    Some(entry) if segments.is_marked(table.addr(entry)) && !is_misnamed => continue,
                    Some(entry) => (table.version(entry), table.addr(entry)),
                    None => (0, BlockAddr::NULL),
                };
                if is_owner {
                    // The newest block counts.
                    self.offer(&mut candidates, &block, stored, (block.age(), 0, BlockAddr::NULL));
                }
            }
        }
        self.without_removed(candidates)
    }

    /// Keeps the newest block of a node.
    fn offer(
        &mut self,
        candidates: &mut BTreeMap<Nid, Candidate>,
        block: &Found,
        (version, stored): (u8, BlockAddr),
        age: (u32, u64, BlockAddr),
    ) {
        let NodeFooter { nid, ino, .. } = block.footer;
        let other = candidates.get(&nid);
        if other.is_none() && candidates.len() >= ODD_MAX {
            self.dropped += 1;
        } else if other.is_none_or(|other| other.age < age) {
            let entry = NatEntry { version, ino, addr: block.addr };
            candidates.insert(nid, Candidate { age, stored, entry });
        }
    }

    /// Leaves out nodes that only an old block of the SIT marks.
    fn without_removed(&mut self, mut candidates: BTreeMap<Nid, Candidate>) -> BTreeMap<Nid, Candidate> {
        let Sources { io, geometry, .. } = self.sources;
        let sit_block = |addr: BlockAddr| sit::position(geometry.position(addr).0, geometry.block_size).0;
        let mut votes: FxHashMap<u32, i64> = FxHashMap::default();
        candidates.retain(|nid, Candidate { age, stored, entry }| {
            let is_current = is_current(io, geometry, self.summaries, (*nid, *stored), age.0);
            if *stored != BlockAddr::NULL {
                *votes.entry(sit_block(entry.addr)).or_default() += if is_current { -1 } else { 1 };
            }
            !is_current
        });
        candidates.retain(|_, Candidate { stored, entry, .. }| {
            let is_old = votes.get(&sit_block(entry.addr)).is_some_and(|votes| *votes < 0);
            *stored != BlockAddr::NULL || !is_old
        });
        candidates
    }

    /// Returns true if the NAT names a block of a node in the main area.
    fn is_named(&self, nid: Nid) -> bool {
        let table = self.sources.table;
        table.find(nid).is_some_and(|entry| !table.has(entry, fact::BROKEN))
    }

    /// Numbers of the nodes that the checkpoint counts beyond those that are known.
    fn missing(&self, found: &BTreeMap<Nid, NatEntry>) -> Count {
        let Sources { table, checkpoint, .. } = self.sources;
        let named = table.iter().filter(|(_, entry)| !table.has(*entry, fact::BROKEN));
        let named = named.map(|(nid, entry)| (nid, table.ino(entry)));
        let adopted = found.iter().map(|(nid, entry)| (*nid, entry.ino));
        let adopted = adopted.filter(|(nid, _)| !self.is_named(*nid));
        let known = named.chain(adopted).fold(Count { nodes: 0, inodes: 0 }, |sum, (nid, ino)| Count {
            nodes: sum.nodes + 1,
            inodes: sum.inodes + u64::from(ino.0 == nid.0),
        });
        Count {
            nodes: u64::from(checkpoint.valid_nodes).saturating_sub(known.nodes),
            inodes: u64::from(checkpoint.valid_inodes).saturating_sub(known.inodes),
        }
    }

    /// Nodes of which the NAT does not name the block that their log wrote last. Some of those without an entry may have been
    /// removed since: they come back if the checkpoint counts just them, or if NAT and SIT are both older than the last nodes.
    fn superseded(&self, found: &BTreeMap<Nid, NatEntry>) -> BTreeMap<Nid, Newest> {
        let segments = self.sources.segments;
        let written = Written::read(self.sources);
        let mut superseded = written.newer(self.sources, found);
        let are_tables_old = superseded.values().any(|newest| !segments.is_marked(newest.entry.addr));
        let missing = self.missing(found);
        if !are_tables_old && missing.nodes == 0 {
            return superseded;
        }
        let mut absent = written.absent(self.sources, found);
        let inodes: FxHashSet<Nid> =
            absent.iter().filter(|(nid, newest)| newest.entry.ino.0 == nid.0).map(|(nid, _)| *nid).collect();
        // A node without its inode belongs to a removed file.
        absent.retain(|_, newest| {
            let inode = Nid::from(newest.entry.ino);
            inodes.contains(&inode) || self.is_named(inode) || found.contains_key(&inode)
        });
        if (absent.len() as u64, inodes.len() as u64) == (missing.nodes, missing.inodes) {
            superseded.extend(absent);
        } else if are_tables_old {
            superseded.extend(absent.into_iter().filter(|(_, newest)| newest.age <= RECENT));
        }
        superseded
    }

    /// Segments without a usable entry of the SIT; all of them if most nodes and inodes are missing.
    fn without_marks(&self, missing: Count) -> Vec<SegNo> {
        let Sources { segments, checkpoint, .. } = self.sources;
        let is_most = missing.nodes * 2 > checkpoint.valid_nodes.into()
            && missing.inodes * 2 > checkpoint.valid_inodes.into();
        segments.all().filter(|segment| is_most || segments.is_lost(*segment)).collect()
    }

    /// Nodes in blocks that the SIT does not mark, if the checkpoint counts more nodes than are known.
    fn unmarked(&mut self, found: &BTreeMap<Nid, NatEntry>) -> Unmarked {
        let missing = self.missing(found);
        let mut unmarked = Unmarked { nodes: BTreeMap::new(), certainty: Certainty::Likely, obstacle: None };
        if missing.nodes >= MISSING_MIN {
            self.after = self.nodes_after();
            let mut doubted = BTreeSet::new();
            for segment in self.without_marks(missing) {
                self.search_segment(segment, found, &mut unmarked, &mut doubted);
            }
            self.judge(missing, found, &mut unmarked, doubted);
        }
        if self.dropped > 0 && unmarked.obstacle.is_none() {
            unmarked.obstacle = Some(format!(
                "the NAT has lost {} blocks of nodes more than a repair can keep track of: bring the files back with \
                 `flashkit rescue`",
                self.dropped
            ));
        }
        unmarked
    }

    /// Tells by the places where the logs go on if nodes were written after the checkpoint.
    fn nodes_after(&self) -> After {
        let Sources { io, geometry, checkpoint, .. } = self.sources;
        let logs = SegmentType::ALL.into_iter().filter(|log| log.is_node());
        let mut next = logs.map(|log| geometry.next_block(checkpoint.logs[log.index()]));
        let goes_on = next.any(|addr| {
            let block = io.read_block(addr, Place::Block(addr));
            geometry.in_main(addr)
                && block.is_ok_and(|block| {
                    let footer = NodeFooter::of(&block);
                    is_possible(geometry, footer.nid) && checkpoint.is_written_after(footer.cp_ver)
                })
        });
        if goes_on { After::Nodes } else { After::Nothing }
    }

    /// Searches a segment for nodes that are not known. `doubted` receives those that something speaks against.
    fn search_segment(
        &mut self,
        segment: SegNo,
        found: &BTreeMap<Nid, NatEntry>,
        unmarked: &mut Unmarked,
        doubted: &mut BTreeSet<Nid>,
    ) {
        let Sources { geometry, checkpoint, table, .. } = self.sources;
        let blocks = (0..BLOCKS_PER_SEGMENT as u16).map(|offset| geometry.block(segment, offset));
        let blocks: Vec<BlockAddr> = blocks.filter(|addr| !self.named.get(self.index(*addr))).collect();
        let (blocks, others) = self.read(blocks);
        // In a segment of data, a block may look like a node.
        let is_lost = blocks.len() > others && is_summary_lost(&blocks);
        let after = self.after;
        let is_possible = |block: &Found| {
            let age = (checkpoint.version.0 as u32).wrapping_sub(block.age());
            age <= u32::MAX / 2
                && (after == After::Nothing || !checkpoint.is_written_after(block.footer.cp_ver))
        };
        for block in blocks.iter().filter(|block| is_possible(block)) {
            let nid = block.footer.nid;
            if self.is_named(nid) || found.contains_key(&nid) {
                continue;
            }
            if !block.is_whole || block.is_denied() && !is_lost {
                if doubted.len() < ODD_MAX {
                    doubted.insert(nid);
                }
                continue;
            }
            if unmarked.nodes.get(&nid).is_some_and(|other| other.age.0 == block.age()) {
                // Only the time and the place tell the newer one.
                unmarked.certainty = Certainty::Unclear;
            }
            let stored = table.find(nid);
            let stored = stored.map_or((0, BlockAddr::NULL), |it| (table.version(it), table.addr(it)));
            self.offer(&mut unmarked.nodes, block, stored, (block.age(), block.changed, block.addr));
        }
    }

    /// Compares the nodes that were found without a mark with the numbers in the checkpoint.
    fn judge(
        &self,
        missing: Count,
        found: &BTreeMap<Nid, NatEntry>,
        unmarked: &mut Unmarked,
        mut doubted: BTreeSet<Nid>,
    ) {
        let nodes = &mut unmarked.nodes;
        let inodes = nodes.iter().filter(|(nid, node)| node.entry.ino.0 == nid.0);
        let inodes: BTreeSet<Nid> = inodes.map(|(nid, _)| *nid).collect();
        // A node without its inode belongs to a removed file.
        nodes.retain(|_, Candidate { entry, .. }| {
            let inode = Nid::from(entry.ino);
            inodes.contains(&inode) || self.is_named(inode) || found.contains_key(&inode)
        });
        doubted.retain(|nid| !nodes.contains_key(nid));
        let (count, inodes) = (nodes.len() as u64, inodes.len() as u64);
        let is_short = missing.nodes.saturating_sub(count) >= MISSING_MIN;
        if count > missing.nodes || inodes > missing.inodes || is_short && !doubted.is_empty() {
            unmarked.obstacle = Some(format!(
                "NAT and SIT have lost {} nodes that the checkpoint counts, and of {} that lie on the device nothing tells \
                 which are in use: a repair would lose files; bring them back with `flashkit rescue`",
                missing.nodes,
                count + doubted.len() as u64,
            ));
            unmarked.nodes.clear();
        } else if count != missing.nodes {
            unmarked.certainty = Certainty::Unclear;
        }
    }
}

/// Returns true if a summary contradicts most footers of its segment.
fn is_summary_lost(blocks: &[Found]) -> bool {
    let denied = blocks.iter().filter(|block| block.is_denied()).count();
    let confirmed = blocks.iter().filter(|block| block.owner == Some(block.footer.nid)).count();
    denied >= DENIED_MIN && denied > confirmed
}

/// Returns true if the block that the NAT names holds the node, and is newer than one of the given age: then the SIT is
/// wrong, not the NAT. Of two blocks of one age, that of the NAT counts if its summary confirms it.
fn is_current(
    io: &Io,
    geometry: &Geometry,
    summaries: &mut Summaries,
    (nid, stored): (Nid, BlockAddr),
    age: u32,
) -> bool {
    if !geometry.in_main(stored) {
        return false;
    }
    let Ok(block) = io.read_block(stored, Place::Node(nid, stored)) else { return false };
    let footer = NodeFooter::of(&block);
    let is_owner = |owned: Owned| owned.owner.nid == nid;
    let is_newer = match (footer.cp_ver as u32).cmp(&age) {
        Ordering::Less => false,
        Ordering::Equal => summaries.owner(io, stored).is_some_and(is_owner),
        Ordering::Greater => true,
    };
    footer.nid == nid && is_newer
}
