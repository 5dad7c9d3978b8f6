//! Nodes of which the NAT does not name the block that their log wrote last.
//!
//! Each block of nodes names the block that its log takes next. Those that lead to the place where a log goes on, one behind the
//! other, were written by it before the checkpoint, in this order. So the last one of a node is the newest, unless the node
//! has a block of a later checkpoint elsewhere. The journals have no checksum: older ones in the place of the newest, of NAT
//! and SIT at once, fit each other, and name and mark the blocks that the nodes had before.

use std::collections::BTreeMap;

use f2fs::{
    Place,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::{Flags, LogPosition},
        nat::NatEntry,
        node::{NodeBlock, NodeFooter},
        sit::SegmentType,
    },
    units::{BlockAddr, Nid},
};

use crate::{
    Certainty, Finding, Kind,
    adopt::{Sources, is_possible},
    reader::read_runs,
    table::fact,
};

/// The newest block of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    /// Address that the NAT has; `None` if it has no entry.
    pub stored: Option<BlockAddr>,
    /// The right entry.
    pub entry: NatEntry,
    /// Number of checkpoints since the block was written.
    pub age: u32,
}

impl Newest {
    /// Returns the finding about the entry.
    pub fn finding(&self, nid: Nid) -> Finding {
        let addr = self.entry.addr;
        let known = match self.stored {
            Some(stored) => {
                format!(
                    "it names {stored}; the log of the node wrote it at {addr} after that, and before the checkpoint"
                )
            }
            None => format!("it is free; the log of the node wrote it at {addr} before the checkpoint"),
        };
        Finding::new(Kind::NatAddress, Place::Nat(nid), known)
            .repaired_by(format!("set the address to {addr}"))
            .with_certainty(Certainty::Likely)
    }
}

/// The blocks that the logs of nodes wrote last before the checkpoint, in the order of each log.
pub struct Written(Vec<(BlockAddr, NodeFooter)>);

impl Written {
    /// Reads the segments of the logs.
    pub fn read(sources: Sources<'_>) -> Written {
        if sources.checkpoint.flags.has(Flags::DISABLED) {
            return Written(Vec::new());
        }
        let logs = SegmentType::ALL.into_iter().filter(|log| log.is_node());
        let logs = logs.map(|log| sources.checkpoint.logs[log.index()]);
        Written(logs.flat_map(|log| written(sources, log)).collect())
    }

    /// The nodes of which the NAT names another block that is older. `found` are entries that it lacks.
    pub fn newer(&self, sources: Sources<'_>, found: &BTreeMap<Nid, NatEntry>) -> BTreeMap<Nid, Newest> {
        let table = sources.table;
        let mut newer = BTreeMap::new();
        for (nid, (addr, footer)) in self.last() {
            let entry = table.find(nid).filter(|entry| !table.has(*entry, fact::BROKEN));
            let Some(entry) = entry.filter(|_| !found.contains_key(&nid)) else { continue };
            let stored = table.addr(entry);
            if stored != addr && self.is_older(sources, (nid, stored), footer) {
                let right = NatEntry { version: table.version(entry), ino: footer.ino, addr };
                newer.insert(nid, Newest { stored: Some(stored), entry: right, age: age(sources, footer) });
            }
        }
        newer
    }

    /// The nodes without an entry, whether they are in use or were removed.
    pub fn absent(&self, sources: Sources<'_>, found: &BTreeMap<Nid, NatEntry>) -> BTreeMap<Nid, Newest> {
        let absent = self.last().into_iter().filter(|(nid, _)| {
            let entry = sources.table.find(*nid);
            entry.is_none() && !found.contains_key(nid)
        });
        let newest = |(nid, (addr, footer)): (Nid, (BlockAddr, NodeFooter))| {
            let entry = NatEntry { version: 0, ino: footer.ino, addr };
            (nid, Newest { stored: None, entry, age: age(sources, footer) })
        };
        absent.map(newest).collect()
    }

    /// The last block of each node.
    fn last(&self) -> BTreeMap<Nid, (BlockAddr, NodeFooter)> {
        let mut last: BTreeMap<Nid, (BlockAddr, NodeFooter)> = BTreeMap::new();
        for (addr, footer) in &self.0 {
            // A node may have been in two logs.
            if last.get(&footer.nid).is_none_or(|(_, other)| other.cp_ver as u32 <= footer.cp_ver as u32) {
                last.insert(footer.nid, (*addr, *footer));
            }
        }
        last
    }

    /// Returns true if the block that the NAT names has the node, and was written before the block with this footer.
    fn is_older(&self, sources: Sources<'_>, (nid, stored): (Nid, BlockAddr), footer: NodeFooter) -> bool {
        let Sources { io, geometry, .. } = sources;
        if !geometry.in_main(stored) {
            return false;
        }
        let block = io.read_block(stored, Place::Node(nid, stored));
        let Some(before) = block.ok().map(|block| NodeFooter::of(&block)).filter(|it| it.nid == nid) else {
            return false;
        };
        let age = (footer.cp_ver as u32).wrapping_sub(before.cp_ver as u32);
        let is_before = (1..=u32::MAX / 2).contains(&age);
        is_before || age == 0 && self.0.iter().any(|(addr, _)| *addr == stored)
    }
}

/// Number of checkpoints since a node was written.
fn age(sources: Sources<'_>, footer: NodeFooter) -> u32 {
    (sources.checkpoint.version.0 as u32).wrapping_sub(footer.cp_ver as u32)
}

/// The blocks that lead to the place where a log goes on. One in the holes of a used segment leaves blocks out.
fn written(sources: Sources<'_>, log: LogPosition) -> Vec<(BlockAddr, NodeFooter)> {
    let Sources { io, geometry, format, .. } = sources;
    let is_usable = log.segment.0 < geometry.segments && u32::from(log.offset) <= BLOCKS_PER_SEGMENT;
    if log.mode.is_ssr() || !is_usable {
        return Vec::new();
    }
    let blocks = (0..log.offset).map(|offset| (geometry.block(log.segment, offset), ()));
    let mut nodes = Vec::new();
    read_runs(io, blocks, |addr, (), bytes| {
        let node = bytes.ok().and_then(|bytes| {
            let footer = NodeFooter::of(bytes);
            let node = NodeBlock::check(format, bytes.into(), footer.nid, footer.ino, addr);
            node.ok().filter(|_| is_possible(geometry, footer.nid)).map(|_| footer)
        });
        nodes.push((addr, node));
    });
    let (mut next, mut least) = (geometry.next_block(log), 1);
    let leads_on = |(addr, footer): (BlockAddr, Option<NodeFooter>)| {
        let age = age(sources, footer?);
        let fits = footer?.next_addr == next && (least..=u32::MAX / 2).contains(&age);
        (next, least) = (addr, age);
        Some((addr, footer?)).filter(|_| fits)
    };
    let mut run: Vec<_> = nodes.into_iter().rev().map_while(leads_on).collect();
    run.reverse();
    run
}
