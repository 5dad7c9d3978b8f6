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
    /// False for a claimant of an earlier volume, whose summary may still be there.
    is_of_this_time: bool,
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

/// The claimant that has a block which several claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    addr: u32,
    /// Its inode, node and index, as in [`Claim`].
    inode: u32,
    nid: u32,
    index: u16,
}

/// The owners of the blocks of a volume that several claim, in the order of their addresses.
pub(crate) struct Claims(Vec<Owner>);

/// The best claims on some of these blocks, by their addresses.
type Best = FxHashMap<u32, Option<Claim>>;

/// Memory of one of them in bytes, with the room that a table leaves free.
const BEST_BYTES: usize = 64;

/// Minimum number of blocks that are decided at once.
const WINDOW_MIN: usize = 64;

impl Claims {
    /// Collects the claims of inodes, given by the indices of their versions. Blocks with several claims are decided in the
    /// order of their addresses, as many at once as `memory_bytes` hold.
    pub(crate) fn collect(
        nodes: Nodes<'_>,
        summaries: &Summaries,
        inodes: &[u32],
        memory_bytes: usize,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Claims {
        let blocks = nodes.shape.blocks.end;
        let (mut claimed, mut contested) = (Bitmap::new(blocks), Bitmap::new(blocks));
        let bytes = nodes.shape.block_size().bytes() as u64;
        // In the order of their addresses.
        let mut order = inodes.to_vec();
        order.sort_unstable_by_key(|index| nodes.versions.get(*index).addr());
        for group in nodes.versions.groups() {
            claimed.set(nodes.versions.get(group.start).addr());
        }
        let mut report = |done: usize| {
            let (done_bytes, total_bytes) = (done as u64 * bytes, order.len() as u64 * bytes);
            progress(Progress { stage: Stage::Owners, done_bytes, total_bytes, map: &nodes.shape.read });
        };
        for (done, index) in order.iter().enumerate() {
            if done % REPORT == 0 {
                report(done);
            }
            for_each_addr(nodes, *index, |_, addr, _, _| {
                if claimed.set(addr) {
                    contested.set(addr);
                }
            });
        }
        report(order.len());
        drop(claimed);
        let window = (memory_bytes / BEST_BYTES).max(WINDOW_MIN);
        let mut owners = Vec::new();
        let mut blocks = contested.blocks().peekable();
        while blocks.peek().is_some() {
            let mut best: Best = blocks.by_ref().take(window).map(|addr| (addr.0, None)).collect();
            decide(&mut best, nodes, summaries, &order);
            let before = owners.len();
            owners.extend(best.into_iter().filter_map(|(addr, best)| {
                best.map(|Claim { inode, nid, index, .. }| Owner { addr, inode, nid, index })
            }));
            owners[before..].sort_unstable_by_key(|owner| owner.addr);
        }
        Claims(owners)
    }

    /// Returns true if a block belongs to another claimant than this place of a file.
    pub(crate) fn is_of_another(&self, inode: &Inode, addr: BlockAddr, nid: Nid, index: u16) -> bool {
        let Ok(at) = self.0.binary_search_by_key(&addr.0, |owner| owner.addr) else { return false };
        let owner = self.0[at];
        (owner.inode, owner.nid, owner.index) != (inode.version.addr().0, nid.0, index)
    }
}

/// Finds the best claim on each of these blocks.
fn decide(best: &mut Best, nodes: Nodes<'_>, summaries: &Summaries, order: &[u32]) {
    for group in nodes.versions.groups() {
        let version = nodes.versions.get(group.start);
        if let Some(best) = best.get_mut(&version.addr().0) {
            let owner = summaries.owner(nodes.shape, version.addr());
            let is_named = matches!(owner, Some(Owned::Node(owner)) if owner.nid.0 == version.nid);
            *best = (*best).max(Some(Claim { is_named, ..node_claim(version) }));
        }
    }
    for index in order {
        for_each_addr(nodes, *index, |inode, addr, nid, index| {
            if let Some(best) = best.get_mut(&addr.0) {
                let owner = summaries.owner(nodes.shape, addr);
                let is_named = matches!(owner, Some(Owned::Data(owner))
                    if owner.nid == nid && owner.offset == index);
                *best = (*best).max(Some(Claim { is_named, ..claim(inode, nid, index) }));
            }
        });
    }
}

/// Returns the claim of a place of a file that no summary names.
fn claim(inode: &Inode, nid: Nid, index: u16) -> Claim {
    let version = inode.version;
    Claim {
        is_present: !version.has(fact::REMOVED | fact::FREED),
        is_of_this_time: !version.is_of_another_time(),
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
        is_of_this_time: version.has(fact::CONFIRMED) || !version.is_unmarked(),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::MemoryDevice;
    use f2fs::{OpenOptions, mkfs, units::Time};

    use crate::{Options, RemovedFiles, rescue::rescue};

    #[test]
    fn blocks_that_several_files_claim_are_decided_in_parts() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let options = mkfs::Options::new([0x5A; 16]);
        let volume =
            OpenOptions::new().clock(Time::default).make(device.clone(), &options).expect("a volume");
        for n in 0..9 {
            volume.write(format!("/old-{n}"), vec![7; 2 << 20]).expect("room");
        }
        volume.sync().expect("in memory");
        (0..9).for_each(|n| volume.remove_file(format!("/old-{n}")).expect("it is there"));
        // Others use the blocks again, and other numbers of inodes.
        for round in 0..3 {
            let path = |n: u32| format!("/new-{round}-{n}");
            let full =
                (0..).find(|n| volume.write(path(*n), vec![8; 60_000]).is_err()).expect("it is finite");
            (0..=full).for_each(|n| drop(volume.remove_file(path(n))));
        }
        volume.close().expect("in memory");
        let [at_once, in_parts] = [1 << 30, 1 << 17].map(|memory_bytes| {
            let options = Options { removed: RemovedFiles::Collect, memory_bytes, ..Options::default() };
            let rescue = rescue(device.clone(), &options, &mut |_| {}).expect("nodes");
            rescue.removed.expect("they were asked for").1.0
        });
        assert!(at_once.len() > 256, "{}", at_once.len());
        assert!(at_once.is_sorted_by_key(|owner| owner.addr));
        assert!(at_once == in_parts);
    }
}
