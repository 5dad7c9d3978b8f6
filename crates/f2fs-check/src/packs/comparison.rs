//! Comparison of the nodes that two packs give.
//!
//! The head of a pack carries a checksum, its journals do not. A pack whose head is damaged may have damaged journals, too.
//! Then its NAT names blocks that nodes had before, and fewer nodes than the head counts: both show beside the NAT of the
//! older pack. Nodes that a pack finds by their own blocks are not lost with a block of its NAT.

use std::collections::BTreeMap;

use f2fs::{
    engine::{Geometry, Io},
    format::{node::NodeFooter, superblock::Superblock},
    units::{BlockAddr, Nid},
};
use rustc_hash::FxHashMap;

use super::Pack;
use crate::{Report, adopt, nat, reader::read_runs, segments::Segments, summaries::Summaries, table::Table};

/// Nodes of which one of two packs gives more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// Nodes that are newer in the newer pack, or that only this has.
    pub newer_nodes: u64,
    /// Nodes that the newer pack has lost, or that are newer in the older one.
    pub older_nodes: u64,
}

/// Compares the nodes that two packs give. A node that only the older pack has may have been removed: it counts as lost if
/// the newer pack has fewer nodes than its head says.
pub fn compare(
    (io, geometry, sb): (&Io, &Geometry, &Superblock),
    [older, mut newer]: [Pack; 2],
) -> Comparison {
    let counted = u64::from(newer.checkpoint.valid_nodes);
    let old = nat::read(io, geometry, &older, &mut Report::default(), &mut |_| {}).table;
    let new = nodes((io, geometry, sb), &mut newer);
    let address = |(nid, entry)| (nid, new.addr(entry));
    let differing = new.iter().map(address).filter_map(|(nid, addr)| {
        let earlier = old.find(nid).map(|entry| old.addr(entry));
        (earlier != Some(addr)).then_some((nid, addr, earlier))
    });
    let differing: Vec<(Nid, BlockAddr, Option<BlockAddr>)> = differing.collect();
    let now = ages(io, geometry, differing.iter().map(|(nid, addr, _)| (*addr, *nid)));
    let then = ages(io, geometry, differing.iter().filter_map(|(nid, _, earlier)| Some(((*earlier)?, *nid))));
    let lost = counted.saturating_sub(new.len() as u64);
    let mut comparison = Comparison { newer_nodes: 0, older_nodes: lost };
    for (nid, ..) in &differing {
        let (now, then) = (now.get(nid), then.get(nid));
        comparison.newer_nodes += u64::from(now > then);
        comparison.older_nodes += u64::from(now < then);
    }
    comparison
}

/// The nodes of a pack, with those that only their blocks tell.
fn nodes((io, geometry, sb): (&Io, &Geometry, &Superblock), pack: &mut Pack) -> Table {
    let read = |pack: &Pack| nat::read(io, geometry, pack, &mut Report::default(), &mut |_| {}).table;
    let (table, mut report) = (read(pack), Report::default());
    let segments = Segments::read(io, geometry, pack, &mut report, &mut |_| {});
    let mut summaries = Summaries::new(geometry, sb, &pack.checkpoint, pack.summaries.clone());
    let sources = adopt::Sources::of((io, geometry, sb), pack, &table, &segments);
    let lost = adopt::find(sources, &mut summaries, &mut report).entries;
    if lost.is_empty() {
        return table;
    }
    pack.override_nat(&lost);
    read(pack)
}

/// Checkpoint versions at which nodes were written, lower halves; without blocks that do not hold their node.
fn ages(io: &Io, geometry: &Geometry, nodes: impl Iterator<Item = (BlockAddr, Nid)>) -> FxHashMap<Nid, u32> {
    let nodes: BTreeMap<BlockAddr, Nid> = nodes.filter(|(addr, _)| geometry.in_main(*addr)).collect();
    let mut ages = FxHashMap::default();
    read_runs(io, nodes, |_, nid, bytes| {
        let footer = bytes.ok().map(NodeFooter::of).filter(|footer| footer.nid == nid);
        ages.extend(footer.map(|footer| (nid, footer.cp_ver as u32)));
    });
    ages
}
