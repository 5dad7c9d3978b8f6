//! Nodes whose NAT entry names no block of theirs, and the search for their blocks.

use std::collections::BTreeMap;

use f2fs::{
    Place,
    format::node::NodeFooter,
    units::{BlockAddr, Nid},
};

use crate::{
    Certainty, Finding, Fix, Kind,
    checker::{Checker, ODD_MAX},
    reader::read_runs,
    table::fact,
};

/// Nodes without a usable address.
pub struct Lost {
    /// The nodes to search for, with the address in the NAT.
    wanted: BTreeMap<Nid, BlockAddr>,
    /// Nodes that were searched in vain, or that are too many to search for.
    gone: Vec<(Nid, BlockAddr)>,
}

impl Lost {
    /// Begins with the nodes whose address is outside the main area.
    pub fn new(outside: Vec<(Nid, BlockAddr)>) -> Lost {
        let mut lost = Lost { wanted: BTreeMap::new(), gone: Vec::new() };
        outside.into_iter().for_each(|(nid, addr)| lost.add(nid, addr));
        lost
    }

    /// Adds a node.
    pub fn add(&mut self, nid: Nid, addr: BlockAddr) {
        if self.wanted.len() < ODD_MAX {
            self.wanted.insert(nid, addr);
        } else {
            self.gone.push((nid, addr));
        }
    }

    /// Returns true if no node stayed without a block.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.gone.is_empty()
    }
}

impl Checker<'_> {
    /// Searches the valid blocks that nothing names for lost nodes, and checks those that are found.
    pub fn find_lost(&mut self) {
        if self.lost.wanted.is_empty() {
            return;
        }
        let io = self.io.clone();
        for segment in self.segments.all() {
            if self.segments.kind(segment).is_some_and(|kind| !kind.is_node()) {
                continue;
            }
            let unused = self.segments.unused(segment);
            let unused = unused.into_iter().map(|addr| (addr, ()));
            read_runs(&io, unused, |addr, (), bytes| {
                let Ok(bytes) = bytes else { return };
                let nid = NodeFooter::of(bytes).nid;
                let Some(stored) = self.lost.wanted.remove(&nid) else { return };
                let Some(entry) = self.table.find(nid) else { return };
                let known = format!("it names {stored}; the node lies at {addr}");
                let finding = Finding::new(Kind::NatAddress, Place::Nat(nid), known)
                    .repaired_by(format!("set the address to {addr}"));
                self.report.add(finding.with_certainty(Certainty::Certain));
                self.report.fix(Fix::Nat { nid, ino: self.table.ino(entry), addr });
                self.table.set_addr(entry, addr);
                self.table.forget(entry, fact::BROKEN);
                self.check_node(nid, addr, Ok(bytes));
            });
        }
    }

    /// Reports the nodes that were not found.
    pub fn conclude_lost(&mut self) {
        let wanted = std::mem::take(&mut self.lost.wanted);
        self.lost.gone.extend(wanted);
        for (nid, addr) in self.lost.gone.clone() {
            let twin = self.geometry.in_main(addr) && self.segments.is_claimed(addr);
            let known = match (twin, self.geometry.in_main(addr)) {
                (true, _) => format!("it names {addr}, which holds another node or data"),
                (false, true) => format!("it names {addr}, which does not hold the node"),
                (false, false) => format!("it names {addr}, outside the main area"),
            };
            let known = format!("{known}; no block of the node was found");
            let finding = Finding::new(Kind::NatAddress, Place::Nat(nid), known);
            self.replace_or_free(nid, finding.repaired_by("free the nid"));
        }
    }
}
