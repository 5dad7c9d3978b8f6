//! Nodes that the NAT has lost: their blocks are valid and carry their numbers, and the NAT names no valid block.
//!
//! In a sound volume, the valid blocks of node segments are those that the NAT names. Each other one is a node that
//! the NAT lost, if no summary contradicts the number in its footer: a block of the NAT was overwritten, or is old.
//! But a block of the SIT may be old, too, and then marks blocks of nodes that were removed. Nodes of which the NAT
//! names another block tell the two apart: the older block is that of the old table.

use std::{cmp::Ordering, collections::BTreeMap};

use f2fs::{
    Place,
    engine::{Geometry, Io},
    format::{BLOCKS_PER_SEGMENT, checkpoint::RESERVED_NIDS, nat::NatEntry, node::NodeFooter, sit},
    units::{BlockAddr, CheckpointVer, Nid},
};
use rustc_hash::FxHashMap;

use crate::{
    Certainty, Finding, Fix, Kind, Report,
    bitmap::Bitmap,
    checker::ODD_MAX,
    reader::read_runs,
    segments::Segments,
    summaries::{Owned, Summaries},
    table::{Table, fact},
};

/// Finds the nodes that the NAT has lost, and returns their entries. `version` is that of the checkpoint.
pub fn find(
    io: &Io,
    geometry: &Geometry,
    version: CheckpointVer,
    table: &Table,
    segments: &Segments,
    summaries: &mut Summaries,
    report: &mut Report,
) -> BTreeMap<Nid, NatEntry> {
    let bits = u64::from(geometry.segments) * u64::from(BLOCKS_PER_SEGMENT);
    let mut named = Bitmap::new(bits);
    let index = |addr: BlockAddr| {
        let (segment, offset) = geometry.position(addr);
        segment.index() * BLOCKS_PER_SEGMENT as usize + usize::from(offset)
    };
    for (_, entry) in table.iter().filter(|(_, entry)| !table.has(*entry, fact::BROKEN)) {
        named.set(index(table.addr(entry)));
    }
    let mut candidates: BTreeMap<Nid, (u32, BlockAddr, NatEntry)> = BTreeMap::new();
    for segment in segments.all() {
        if segments.kind(segment).is_none_or(|kind| !kind.is_node()) {
            continue;
        }
        let unnamed = segments.marked(segment).filter(|addr| !named.get(index(*addr)));
        let unnamed: Vec<(BlockAddr, ())> = unnamed.map(|addr| (addr, ())).collect();
        read_runs(io, unnamed, |addr, (), bytes| {
            let Ok(bytes) = bytes else { return };
            let footer = NodeFooter::of(bytes);
            let is_owner = match summaries.owner(io, addr) {
                Some(owned) => owned.owner.nid == footer.nid,
                // A checkpoint without an unmount has no summaries of the node logs. Nodes that fsyncs wrote after it
                // have its version, and are rolled forward.
                None => footer.cp_ver as u32 != version.0 as u32,
            };
            if !is_possible(geometry, footer.nid)
                || !is_owner
                || footer.ino.0 < RESERVED_NIDS
                || candidates.len() >= ODD_MAX
            {
                return;
            }
            let stored = table.find(footer.nid);
            let (nat_version, stored) = match stored {
                Some(entry) if segments.is_marked(table.addr(entry)) => return,
                Some(entry) => (table.version(entry), table.addr(entry)),
                None => (0, BlockAddr::NULL),
            };
            // The lower half is the checkpoint's version; the newest block counts.
            let age = footer.cp_ver as u32;
            let entry = NatEntry { version: nat_version, ino: footer.ino, addr };
            if candidates.get(&footer.nid).is_none_or(|(other, ..)| *other < age) {
                candidates.insert(footer.nid, (age, stored, entry));
            }
        });
    }
    let sit_block = |addr: BlockAddr| sit::position(geometry.position(addr).0, geometry.block_size).0;
    let mut votes: FxHashMap<u32, i64> = FxHashMap::default();
    candidates.retain(|nid, (age, stored, entry)| {
        let is_current = is_current(io, geometry, summaries, (*nid, *stored), *age);
        if *stored != BlockAddr::NULL {
            *votes.entry(sit_block(entry.addr)).or_default() += if is_current { -1 } else { 1 };
        }
        !is_current
    });
    let mut found = BTreeMap::new();
    for (nid, (_, stored, entry)) in candidates {
        let is_old = votes.get(&sit_block(entry.addr)).is_some_and(|votes| *votes < 0);
        if stored == BlockAddr::NULL && is_old {
            continue;
        }
        report.add(finding(nid, stored, entry.addr));
        report.fix(Fix::Nat { nid, ino: entry.ino, addr: entry.addr });
        found.insert(nid, entry);
    }
    found
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
