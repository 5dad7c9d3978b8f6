//! Read-ahead of the inodes of a directory listing.

use super::Nodes;
use crate::{
    Place,
    format::{nat::NatEntry, node::NodeBlock},
    units::{Ino, Nid},
};

/// Maximum number of unneeded blocks between two inodes that are read along: this costs less than another
/// command.
const GAP_BLOCKS_MAX: u32 = 8;
/// Maximum number of blocks in one read.
const RUN_BLOCKS_MAX: u32 = 128;

impl Nodes {
    /// Reads those of these inodes that are not cached, adjacent ones in one request, as far as the node
    /// cache can keep them until they are used. Read errors are ignored here; reading the inode itself
    /// reports them.
    pub(crate) fn read_inodes_ahead(&self, inos: impl IntoIterator<Item = Ino>) {
        let can_be = |nid: &Nid| *nid != Nid::NULL && *nid < self.disk().geometry().nids_end();
        let missing =
            inos.into_iter().map(Nid::from).filter(can_be).filter(|nid| self.cache.get(*nid).is_none());
        let mut wanted: Vec<(Nid, NatEntry)> = missing
            .take(self.cache.ahead_max())
            .filter_map(|nid| Some((nid, self.nat_entry(nid).ok()?)))
            .filter(|(_, entry)| self.disk().geometry().in_main(entry.addr))
            .collect();
        wanted.sort_unstable_by_key(|(nid, entry)| (entry.addr, *nid));
        wanted.dedup_by_key(|(_, entry)| entry.addr);
        let mut rest = &wanted[..];
        while let [(_, first), ..] = rest {
            let ends = |pair: &[(Nid, NatEntry)]| {
                let (before, next) = (pair[0].1.addr.0, pair[1].1.addr.0);
                next - before > GAP_BLOCKS_MAX || next - first.addr.0 >= RUN_BLOCKS_MAX
            };
            let count = rest.windows(2).position(ends).map_or(rest.len(), |at| at + 1);
            let (run, others) = rest.split_at(count);
            self.read_inode_run(run);
            rest = others;
        }
    }

    /// Reads inodes that are close together, in ascending order of address. A single inode is not worth
    /// reading ahead.
    fn read_inode_run(&self, run: &[(Nid, NatEntry)]) {
        let [(nid, first), .., (_, last)] = run else { return };
        let size = self.disk().geometry().block_size.bytes();
        let mut bytes = vec![0; (last.addr.0 - first.addr.0 + 1) as usize * size];
        if self.segments.read_blocks(first.addr, Place::Nat(*nid), &mut bytes).is_err() {
            return;
        }
        for (nid, entry) in run {
            let at = (entry.addr.0 - first.addr.0) as usize * size;
            let block = bytes[at..at + size].into();
            if let Ok(node) = NodeBlock::check(self.disk().node_format(), block, *nid, entry.ino, entry.addr)
            {
                self.cache.insert_clean(*nid, node.into());
            }
        }
    }
}
