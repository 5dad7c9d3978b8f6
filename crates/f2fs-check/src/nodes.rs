//! Node blocks in the order of their addresses: their identity, and the nodes that they name.
//!
//! Three structures tell which node a block holds: the NAT, the block's footer and the summary of its
//! segment. Where one of them contradicts the two others, the check reports it and goes on with the right
//! number, so that one wrong number is one finding. A checkpoint without an unmount has no summaries of the node
//! logs; in their segments the inode in the footer counts instead.

use f2fs::{
    Place, Result,
    format::{
        block_size::NODE_FOOTER_BYTES,
        node::{NodeFooter, XATTR_NODE_OFFSET},
        node_path::NodeKind,
    },
    units::{BlockAddr, Ino, Nid},
};
use rustc_hash::FxHashSet;

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Slot, Stage,
    adopt::is_possible,
    checker::{Checker, Fault, ODD_MAX},
    inodes::has_map,
    reader::{parse_node, read_block, read_runs},
    segments::Content,
    shared::Claim,
    table::{Entry, fact},
};

/// Nodes between two reports of progress.
const TELL_EVERY: u64 = 1024;

impl Checker<'_> {
    /// Checks all inodes.
    pub fn check_inodes(&mut self) {
        self.check_in_order(Stage::Inodes);
    }

    /// Checks all other nodes.
    pub fn check_nodes(&mut self) {
        self.check_in_order(Stage::Nodes);
    }

    fn check_in_order(&mut self, stage: Stage) {
        let wanted = |nid: Nid, entry: Entry| {
            let is_inode = self.table.ino(entry) == Ino::from(nid);
            is_inode == (stage == Stage::Inodes) && !self.table.has(entry, fact::BROKEN | fact::SEEN)
        };
        let nodes = self.table.iter().filter(|(nid, entry)| wanted(*nid, *entry));
        let mut order: Vec<(BlockAddr, Nid)> =
            nodes.map(|(nid, entry)| (self.table.addr(entry), nid)).collect();
        order.sort_unstable();
        let (io, total) = (self.io.clone(), order.len() as u64);
        let mut done = 0;
        read_runs(&io, order, |addr, nid, bytes| {
            if done % TELL_EVERY == 0 {
                self.tell(stage, done, total);
            }
            done += 1;
            self.check_node(nid, addr, bytes);
        });
        self.tell(stage, total, total);
    }

    /// Checks the block of a node.
    pub fn check_node(&mut self, nid: Nid, addr: BlockAddr, bytes: Result<&[u8]>) {
        let Some(entry) = self.table.find(nid) else { return };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                let finding = Finding::new(Kind::NodeUnreadable, Place::Node(nid, addr), error.to_string());
                if self.unreadable.len() >= ODD_MAX {
                    self.free_node(nid, finding);
                } else {
                    self.unreadable.push((nid, finding));
                }
                self.table.note(entry, fact::BROKEN);
                self.segments.claim(addr, Content::Node);
                return;
            }
        };
        let mut footer = NodeFooter::of(bytes);
        let owned = self.summaries.owner(&self.io, addr);
        if footer.nid != nid {
            let other = self.table.find(footer.nid).map(|other| self.table.addr(other));
            let is_confirmed = match owned {
                Some(owned) => owned.owner.nid == nid,
                None => footer.ino == self.table.ino(entry) || !is_possible(&self.geometry, footer.nid),
            };
            let is_lost = !is_confirmed
                || other == Some(addr)
                || is_blank(bytes)
                || self.is_no_inode(nid, entry, bytes);
            if is_lost || self.is_other_node(nid, entry, &footer) || self.is_no_map(nid, entry, bytes) {
                self.lost.add(nid, addr);
                self.table.note(entry, fact::BROKEN);
                return;
            }
            let others = if owned.is_some() { "NAT and summary say" } else { "the NAT says" };
            let known = format!("the footer says {}; {others} {nid}", footer.nid);
            self.add(Kind::FooterNid, Place::Node(nid, addr), known);
            footer.nid = nid;
        }
        self.table.note(entry, fact::SEEN);
        if self.segments.claim(addr, Content::Node) {
            self.claimed_again(addr, format!("{nid}"), None);
        }
        if let Some(owned) = owned {
            if owned.owner.nid != nid {
                let what = format!("names {}, the block is {nid}", owned.owner.nid);
                self.summary_fault(Kind::SummaryNid, addr, &what);
            }
            self.check_summary_footer(addr, owned.content, Content::Node);
        }
        self.check_owner(nid, entry, addr, &mut footer);
        self.check_offset(nid, entry, addr, &mut footer);
        let stored = NodeFooter::of(bytes);
        if (stored.nid, stored.ino, stored.offset) != (nid, footer.ino, footer.offset) {
            self.fix(Fix::Footer { nid, ino: footer.ino, offset: footer.offset });
            self.table.note(entry, fact::MENDED);
        }
        let mut copy: Box<[u8]> = bytes.into();
        footer.put(&mut copy);
        self.report.sums.nodes += 1;
        self.report.sums.blocks += 1;
        match footer.is_inode() {
            true => self.check_inode(nid, entry, addr, &copy),
            false => self.check_other(nid, entry, addr, &copy),
        }
    }

    /// Reports a node of which nothing is left, and has its number freed.
    pub fn free_node(&mut self, nid: Nid, finding: Finding) {
        self.report.add(finding);
        self.fix(Fix::Free(nid));
        match self.table.find(nid).is_some_and(|entry| self.table.has(entry, fact::SEEN)) {
            true => self.lose(Loss::Node),
            false => self.unfound_nodes += 1,
        }
    }

    /// Reports the nodes that cannot be read, and has them replaced or freed.
    pub fn conclude_unreadable(&mut self) {
        for (nid, finding) in std::mem::take(&mut self.unreadable) {
            self.replace_or_free(nid, finding);
        }
    }

    /// Reports a node whose block is lost. A node of addresses that its parent names is made anew: the summaries have the
    /// places of its blocks. Inodes follow when all nodes are known. Any other one is freed.
    pub fn replace_or_free(&mut self, nid: Nid, finding: Finding) {
        if self.table.find(nid).is_some_and(|entry| self.table.ino(entry) == Ino::from(nid)) {
            if let Err(finding) = self.lost_inodes.add(nid, finding) {
                self.free_node(nid, finding);
            }
            return;
        }
        let found = self.table.find(nid).filter(|entry| self.table.has(*entry, fact::REACHED));
        let place = found.map(|entry| (self.table.ino(entry), self.table.parent_offset(entry)));
        let kind = place.and_then(|(_, offset)| NodeKind::of(self.geometry.block_size, offset));
        let (Some((ino, offset)), Some(NodeKind::Direct { .. })) = (place, kind) else {
            return self.free_node(nid, finding);
        };
        let inode = self.inode_of(ino).filter(|inode| ino != Ino::from(nid) && has_map(inode));
        let (Some(inode), Some(entry)) = (inode, found) else { return self.free_node(nid, finding) };
        let repair = "make an empty node in its place, and restore its addresses by the summaries";
        self.report.add(finding.repaired_by(repair).with_certainty(Certainty::Likely));
        self.fix(Fix::Direct { nid, ino, offset, kind: inode.file_type() });
        self.table.note(entry, fact::EMPTIED);
    }

    /// Returns true if a block that should be an inode has neither the footer nor the fields of one: other content lies
    /// there.
    fn is_no_inode(&self, nid: Nid, entry: Entry, bytes: &[u8]) -> bool {
        let ino = Ino::from(nid);
        let is_inode = self.table.ino(entry) == ino;
        is_inode
            && NodeFooter::of(bytes).ino != ino
            && parse_node(self.format, &NodeFooter::with_inode(bytes, ino), nid, BlockAddr::NULL).0.is_err()
    }

    /// Returns true if a block that should have the addresses or nodes of a file has other content: its footer has the inode of
    /// no such node, and in no sector are more words that fit than words that do not.
    fn is_no_map(&self, nid: Nid, entry: Entry, bytes: &[u8]) -> bool {
        let ino = self.table.ino(entry);
        let has_xattrs =
            self.table.has(entry, fact::REACHED) && self.table.parent_offset(entry) == XATTR_NODE_OFFSET;
        if ino == Ino::from(nid) || NodeFooter::of(bytes).ino == ino || has_xattrs {
            return false;
        }
        let content = &bytes[..bytes.len() - NODE_FOOTER_BYTES];
        let mut unfit = 0;
        for sector in content.chunks(block::ATOMIC_BYTES) {
            let (mut good, mut bad) = (0, 0);
            for word in sector.chunks_exact(4) {
                let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
                let addr = BlockAddr(word);
                let child = self.table.find(Nid(word)).is_some_and(|child| self.table.ino(child) == ino);
                match addr {
                    BlockAddr::NULL | BlockAddr::NEW | BlockAddr::COMPRESS => {}
                    _ if child || self.segments.is_marked(addr) => good += 1,
                    _ => bad += 1,
                }
            }
            if good > bad {
                return false;
            }
            unfit += bad;
        }
        unfit > 0
    }

    /// Returns true if the footer of a block, which has another nid than the NAT, is that of another node as a whole: a write
    /// went to the wrong place. One wrong number leaves the others right, and a footer of zeroes or ones names no node.
    fn is_other_node(&self, nid: Nid, entry: Entry, footer: &NodeFooter) -> bool {
        if !is_possible(&self.geometry, footer.nid) {
            return false;
        }
        let other = self.table.find(footer.nid).filter(|other| self.table.ino(*other) == footer.ino);
        if footer.ino != self.table.ino(entry) {
            return footer.is_inode() || other.is_some();
        }
        if self.table.ino(entry) == Ino::from(nid) {
            return footer.offset != 0 && other.is_some();
        }
        let is_at = |entry: Entry| {
            self.table.has(entry, fact::REACHED).then(|| self.table.parent_offset(entry) == footer.offset)
        };
        let (own, others) = (is_at(entry), other.and_then(is_at));
        own == Some(false) && others == Some(true)
            || own != Some(true) && other.is_some_and(|other| self.holds(other, entry, footer))
    }

    /// Returns true if the NAT has another block for a node than for `entry`, with this whole footer: a block elsewhere is a
    /// stray copy of it.
    fn holds(&self, node: Entry, entry: Entry, footer: &NodeFooter) -> bool {
        let addr = self.table.addr(node);
        addr != self.table.addr(entry)
            && read_block(&self.io, addr).is_ok_and(|bytes| {
                let found = NodeFooter::of(&bytes);
                (found.nid, found.ino, found.offset) == (footer.nid, footer.ino, footer.offset)
            })
    }

    /// Compares the inode that the footer names with that of the NAT, and decides between them.
    fn check_owner(&mut self, nid: Nid, entry: Entry, addr: BlockAddr, footer: &mut NodeFooter) {
        let stored = self.table.ino(entry);
        if footer.ino == stored {
            return;
        }
        let is_inode = |ino: Ino| self.table.find_inode(ino).is_some();
        let claim = self.misclaims.get(&nid).copied();
        let footer_is_right = if stored.0 == nid.0 {
            footer.offset != 0 && is_inode(footer.ino)
        } else if footer.ino.0 == nid.0 {
            footer.offset == 0
        } else {
            let claimed = claim.is_some_and(|(ino, _)| ino == footer.ino);
            claimed || !self.table.has(entry, fact::REACHED) && is_inode(footer.ino)
        };
        if footer_is_right {
            let known = format!("it says {stored}; the node's footer says {}", footer.ino);
            self.add(Kind::NatInode, Place::Nat(nid), known);
            self.fix(Fix::Nat { nid, ino: footer.ino, addr });
            self.table.set_ino(entry, footer.ino);
            if let Some((_, offset)) = claim.filter(|(ino, _)| *ino == footer.ino) {
                self.misclaims.remove(&nid);
                self.reach(entry, offset, footer.ino);
            }
        } else {
            let known = format!("the footer says {}; the NAT says {stored}", footer.ino);
            self.add(Kind::FooterInode, Place::Node(nid, addr), known);
            footer.ino = stored;
        }
    }

    fn check_offset(&mut self, nid: Nid, entry: Entry, addr: BlockAddr, footer: &mut NodeFooter) {
        let at = Place::Node(nid, addr);
        if footer.is_inode() {
            if footer.offset != 0 {
                self.add(Kind::FooterOffset, at, format!("an inode with node offset {}", footer.offset));
                footer.offset = 0;
            }
            return;
        }
        if self.table.has(entry, fact::REACHED) {
            let parent = self.table.parent_offset(entry);
            let other = self.misclaims.get(&nid).copied();
            if other == Some((footer.ino, footer.offset)) {
                // Two parents name it, and the footer confirms the second.
                self.table.set_parent_offset(entry, footer.offset);
            } else if parent != footer.offset && !self.is_misplaced(nid, entry, footer.offset) {
                let known = format!("node offset {}; its parent names it at offset {parent}", footer.offset);
                self.add(Kind::FooterOffset, at, known);
                footer.offset = parent;
            }
        }
        self.table.set_own_offset(entry, footer.offset);
    }

    /// Checks the content of a node that is not an inode.
    fn check_other(&mut self, nid: Nid, entry: Entry, addr: BlockAddr, bytes: &[u8]) {
        let footer = NodeFooter::of(bytes);
        let size = self.geometry.block_size;
        match NodeKind::of(size, footer.offset) {
            Some(NodeKind::Direct { .. }) => self.check_direct(nid, entry, bytes),
            Some(kind @ (NodeKind::Indirect | NodeKind::DoubleIndirect)) => {
                let step = match kind {
                    NodeKind::Indirect => 1,
                    _ => size.node_addrs() as u32 + 1,
                };
                for (index, word) in (0..).zip(bytes.chunks_exact(4).take(size.node_addrs())) {
                    let child = Nid(u32::from_le_bytes(word.try_into().expect("four bytes")));
                    if child != Nid::NULL {
                        let offset = footer.offset + 1 + index * step;
                        let slot = Slot { nid, at: 4 * index as usize };
                        self.expect(child, offset, footer.ino, Place::Node(nid, addr), slot);
                    }
                }
            }
            Some(NodeKind::Xattr) => self.check_xattr_node(footer.ino, nid, bytes),
            Some(NodeKind::Inode) | None => {
                self.add(
                    Kind::FooterOffset,
                    Place::Node(nid, addr),
                    format!("node offset {}", footer.offset),
                );
            }
        }
    }

    /// Notes that a parent names a node, and checks that the node can be its child.
    pub fn expect(&mut self, child: Nid, offset: u32, ino: Ino, at: Place, slot: Slot) {
        let kind = if offset == XATTR_NODE_OFFSET { Kind::XattrNode } else { Kind::NodeChild };
        let bad = |what: String| Finding::new(kind, at, format!("child at offset {offset}: {what}"));
        let finding = match self.table.find(child) {
            None => bad(format!("{child} is not in use")),
            Some(entry) if self.table.ino(entry) == Ino::from(child) => {
                // The NAT may be wrong; then the footer tells later.
                self.misclaim(child, ino, offset);
                self.taint(ino);
                let _ = entry;
                bad(format!("{child} is an inode"))
            }
            Some(entry) if self.table.ino(entry) != ino => {
                let known = format!("{child} belongs to {}", self.table.ino(entry));
                self.misclaim(child, ino, offset);
                bad(known)
            }
            Some(entry) if self.table.has(entry, fact::REACHED) => {
                self.taint(ino);
                let known = format!(
                    "{child} is named at the offsets {} and {offset} of {ino}",
                    self.table.parent_offset(entry)
                );
                self.add(Kind::NodeTwice, at, known);
                self.misclaim(child, ino, offset);
                self.drop_second_parent(entry, offset, ino, slot);
                return;
            }
            Some(entry) => {
                self.doubt_place(child, offset, ino, slot);
                self.reach(entry, offset, ino);
                return;
            }
        };
        if self.bad_children.len() < ODD_MAX {
            self.bad_children.insert((ino, offset), (finding, slot));
        } else {
            self.report.add(finding);
            self.fix(Fix::Node(slot, vec![0; 4]));
            self.lose(Loss::Node);
        }
    }

    fn misclaim(&mut self, child: Nid, ino: Ino, offset: u32) {
        if self.misclaims.len() < ODD_MAX {
            self.misclaims.insert(child, (ino, offset));
        }
    }

    /// Notes that a parent of the right inode names a node.
    pub fn reach(&mut self, entry: Entry, offset: u32, ino: Ino) {
        self.table.note(entry, fact::REACHED);
        self.table.set_parent_offset(entry, offset);
        self.bad_children.remove(&(ino, offset));
        if let Some(inode) = self.table.find(ino.into()) {
            self.table.take_blocks(inode, 1);
        }
    }

    /// Notes that the sums of an inode cannot be relied on.
    pub fn taint(&mut self, ino: Ino) {
        if let Some(inode) = self.table.find(ino.into()) {
            self.table.note(inode, fact::TAINTED);
        }
    }

    /// Notes that two owners name a block.
    pub fn claimed_again(&mut self, addr: BlockAddr, claimant: String, slot: Option<Slot>) {
        if let Err(Claim { claimant, .. }) = self.shared.add(Claim { addr, claimant, slot }) {
            self.add(Kind::BlockTwice, Place::Block(addr), format!("{claimant} and another owner name it"));
        }
    }

    /// Counts a wrong entry of a summary.
    pub fn summary_fault(&mut self, kind: Kind, addr: BlockAddr, what: &str) {
        let (segment, offset) = self.geometry.position(addr);
        self.fix(Fix::Summary(segment));
        let is_new = !self.faults.contains_key(&(segment.0, kind));
        if is_new && self.faults.len() >= ODD_MAX {
            self.add(kind, Place::Ssa(segment), format!("the entry of block {offset} {what}"));
            return;
        }
        let first = || Fault { first: format!("the entry of block {offset} {what}"), count: 0 };
        self.faults.entry((segment.0, kind)).or_insert_with(first).count += 1;
    }

    /// Counts a block that contradicts the footer of its summary.
    pub fn check_summary_footer(&mut self, addr: BlockAddr, stated: Content, found: Content) {
        if stated != found {
            let (segment, _) = self.geometry.position(addr);
            if self.footers.len() < ODD_MAX || self.footers.contains_key(&segment.0) {
                let count = self.footers.entry(segment.0).or_default();
                *count = count.saturating_add(1);
            }
        }
    }

    /// Takes back that a block contradicts the footer of its summary.
    pub fn discount_footer(&mut self, addr: BlockAddr) {
        let owned = self.summaries.owner(&self.io, addr);
        let segment = self.geometry.position(addr).0;
        if let Some(count) = self
            .footers
            .get_mut(&segment.0)
            .filter(|_| owned.is_some_and(|owned| owned.content == Content::Node))
        {
            *count = count.saturating_sub(1);
        }
    }

    /// Reports nodes that no parent names, and offsets that contradict each other.
    pub fn conclude_nodes(&mut self) {
        let placed = self.conclude_places();
        let nodes: Vec<(Nid, Entry)> = self
            .table
            .iter()
            .filter(|(nid, entry)| self.table.ino(*entry) != Ino::from(*nid))
            .filter(|(_, entry)| {
                let reached = self.table.has(*entry, fact::REACHED);
                !reached || self.table.parent_offset(*entry) != self.table.own_offset(*entry)
            })
            .collect();
        let mut made = FxHashSet::default();
        for (nid, entry) in nodes {
            let (ino, addr) = (self.table.ino(entry), self.table.addr(entry));
            let own = self.table.own_offset(entry);
            let at = Place::Node(nid, addr);
            if self.table.has(entry, fact::BROKEN) || placed.contains(&nid) {
                continue;
            }
            if self.table.has(entry, fact::REACHED) {
                let parent = self.table.parent_offset(entry);
                self.add(
                    Kind::FooterOffset,
                    at,
                    format!("node offset {own}; its parent names it at {parent}"),
                );
                self.fix(Fix::Footer { nid, ino, offset: parent });
                continue;
            }
            let inode = self.table.find(ino.into());
            if inode.is_some_and(|inode| self.table.has(inode, fact::BROKEN | fact::INVALID)) {
                continue;
            }
            self.taint(ino);
            if let Some((mut finding, slot)) = self.bad_children.remove(&(ino, own)) {
                self.fix(Fix::Node(slot, nid.0.to_le_bytes().to_vec()));
                finding.known += &format!("; {nid} is the missing child");
                finding.repair = format!("name {nid} there").into();
                self.report.add(finding.with_certainty(Certainty::Certain));
            } else {
                let known = format!("no parent in {ino} names it; its footer says offset {own}");
                self.add(Kind::NodeUnreached, at, known);
                if self.outdated.attached.len() < ODD_MAX {
                    self.outdated.attached.insert(ino);
                }
                self.attach_node(nid, ino, own, &mut made);
            }
        }
        let mut rest: Vec<_> = self.bad_children.drain().collect();
        rest.sort_by_key(|(key, _)| (key.0.0, key.1));
        for ((ino, _), (finding, slot)) in rest {
            self.taint(ino);
            self.report.add(finding);
            self.fix(Fix::Node(slot, vec![0; 4]));
            self.lose(Loss::Node);
        }
    }
}

/// Returns true if a block has nothing but zeroes or ones: it was overwritten, trimmed or could not be read.
fn is_blank(bytes: &[u8]) -> bool {
    [0, 0xFF].iter().any(|blank| bytes.iter().all(|byte| byte == blank))
}
