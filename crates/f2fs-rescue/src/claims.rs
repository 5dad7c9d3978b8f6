//! The owner of each block, if several files claim it.
//!
//! A block belongs to one file. After damage, two of the selected inodes may name it: one of them is old, and
//! its block has been reused. The block's summary decides, then the age of the claim.

use f2fs::units::{BlockAddr, Nid};
use rustc_hash::FxHashMap;

use crate::{
    Progress, Stage,
    bitmap::Bitmap,
    nodes::{Inode, Nodes},
    pieces::pieces,
    summaries::{Owned, Summaries},
    versions::{Version, fact},
};

/// Inodes between two reports of progress.
const REPORT: usize = 256;

/// A claim on a block: the greater one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    /// True for files that were not removed.
    is_present: bool,
    /// True if the block's summary names the claimant.
    is_named: bool,
    /// True if the claimant's inode or node is the one of the NAT. A file may be an image with nodes of its own.
    is_confirmed: bool,
    /// True for nodes: their content confirms that they are nodes.
    is_node: bool,
    cp: u32,
    ctime: u32,
    /// The claimant: address of its inode, node and index.
    inode: u32,
    nid: u32,
    index: u16,
}

/// All claims on the blocks of a volume.
pub(crate) struct Claims {
    claimed: Bitmap,
    /// Blocks with several claims, and the best one.
    contested: FxHashMap<u32, Option<Claim>>,
}

impl Claims {
    /// Collects the claims of inodes, given by the indices of their versions.
    pub(crate) fn collect(
        nodes: Nodes<'_>,
        summaries: &Summaries,
        inodes: &[u32],
        progress: &mut dyn FnMut(Progress),
    ) -> Claims {
        let mut claims =
            Claims { claimed: Bitmap::new(nodes.shape.blocks.end), contested: FxHashMap::default() };
        let bytes = nodes.shape.block_size().bytes() as u64;
        // In the order of their addresses.
        let mut order = inodes.to_vec();
        order.sort_unstable_by_key(|index| nodes.versions.get(*index).addr());
        for group in nodes.versions.groups() {
            claims.claimed.set(nodes.versions.get(group.start).addr());
        }
        let mut report = |done: usize| {
            let (done_bytes, total_bytes) = (done as u64 * bytes, order.len() as u64 * bytes);
            progress(Progress { stage: Stage::Owners, done_bytes, total_bytes });
        };
        for (done, index) in order.iter().enumerate() {
            if done % REPORT == 0 {
                report(done);
            }
            for_each_addr(nodes, *index, |_, addr, _, _| {
                if claims.claimed.set(addr) {
                    claims.contested.insert(addr.0, None);
                }
            });
        }
        report(order.len());
        if !claims.contested.is_empty() {
            claims.decide(nodes, summaries, &order);
        }
        claims
    }

    fn decide(&mut self, nodes: Nodes<'_>, summaries: &Summaries, order: &[u32]) {
        for group in nodes.versions.groups() {
            let version = nodes.versions.get(group.start);
            if let Some(best) = self.contested.get_mut(&version.addr().0) {
                let owner = summaries.owner(nodes.shape, version.addr());
                let is_named = matches!(owner, Some(Owned::Node(owner)) if owner.nid.0 == version.nid);
                *best = (*best).max(Some(Claim { is_named, ..node_claim(version) }));
            }
        }
        for index in order {
            for_each_addr(nodes, *index, |inode, addr, nid, index| {
                if let Some(best) = self.contested.get_mut(&addr.0) {
                    let owner = summaries.owner(nodes.shape, addr);
                    let is_named = matches!(owner, Some(Owned::Data(owner))
                        if owner.nid == nid && owner.offset == index);
                    *best = (*best).max(Some(Claim { is_named, ..claim(inode, nid, index) }));
                }
            });
        }
    }

    /// Returns true if a block belongs to another claimant than this place of a file.
    pub(crate) fn is_of_another(&self, inode: &Inode, addr: BlockAddr, nid: Nid, index: u16) -> bool {
        let Some(Some(best)) = self.contested.get(&addr.0) else { return false };
        (best.inode, best.nid, best.index) != (inode.version.addr().0, nid.0, index)
    }
}

/// Returns the claim of a place of a file that no summary names.
fn claim(inode: &Inode, nid: Nid, index: u16) -> Claim {
    let version = inode.version;
    Claim {
        is_present: !version.has(fact::REMOVED | fact::FREED),
        is_named: false,
        is_confirmed: version.is_confirmed(),
        is_node: false,
        cp: version.cp,
        ctime: version.ctime,
        inode: version.addr().0,
        nid: nid.0,
        index,
    }
}

/// Returns the claim of a node that no summary names.
fn node_claim(version: &Version) -> Claim {
    Claim {
        is_present: !version.is_inode() || !version.has(fact::REMOVED | fact::FREED),
        is_named: false,
        is_confirmed: version.is_confirmed(),
        is_node: !version.has(fact::DENIED),
        cp: version.cp,
        ctime: version.ctime,
        inode: version.addr().0,
        nid: version.nid,
        index: u16::MAX,
    }
}

/// Calls `each` with every block that an inode claims.
fn for_each_addr(nodes: Nodes<'_>, index: u32, mut each: impl FnMut(&Inode, BlockAddr, Nid, u16)) {
    let Ok(inode) = nodes.inode(index) else { return };
    for piece in &pieces(nodes, &inode).all {
        piece.for_each_addr(|addr, nid, index| each(&inode, addr, nid, index));
    }
}
