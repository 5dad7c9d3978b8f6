//! Read-ahead of the inodes of a directory listing.

use super::Volume;
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

impl Volume {
    /// Reads those of these inodes that are not cached, adjacent ones in one request, as far as the node
    /// cache can keep them until they are used. Read errors are ignored here; reading the inode itself
    /// reports them.
    pub fn read_inodes_ahead(&self, inos: impl IntoIterator<Item = Ino>) {
        let can_be = |nid: &Nid| *nid != Nid::NULL && *nid < self.geometry.nids_end();
        let missing =
            inos.into_iter().map(Nid::from).filter(can_be).filter(|nid| self.nodes.get(*nid).is_none());
        let mut wanted: Vec<(Nid, NatEntry)> = missing
            .take(self.nodes.ahead_max())
            .filter_map(|nid| Some((nid, self.nat.get(&self.io, nid).ok()?)))
            .filter(|(_, entry)| self.geometry.in_main(entry.addr))
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
        let size = self.geometry.block_size.bytes();
        let mut bytes = vec![0; (last.addr.0 - first.addr.0 + 1) as usize * size];
        if self.read_blocks(first.addr, Place::Nat(*nid), &mut bytes).is_err() {
            return;
        }
        for (nid, entry) in run {
            let at = (entry.addr.0 - first.addr.0) as usize * size;
            let block = bytes[at..at + size].into();
            if let Ok(node) = NodeBlock::check(self.format, block, *nid, entry.ino, entry.addr) {
                self.nodes.insert_clean(*nid, node.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::{Counted, Device, MemoryDevice};

    use super::*;
    use crate::{
        mkfs::{self, DeviceSize, NewVolume, Plan},
        units::Time,
        volume::{NewNode, Options},
    };

    const FILES: usize = 300;

    fn options() -> Options {
        Options::new(Time::default)
    }

    /// Creates a volume with a directory of many files and unmounts it.
    fn with_many_files() -> (Arc<MemoryDevice>, Vec<Ino>) {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
        let plan = Plan::new(&mkfs::Options::new([7; 16]), &[size]).unwrap();
        let mut volume =
            NewVolume::begin(device.clone(), &plan, true, options()).and_then(NewVolume::finish).unwrap();
        let root = volume.superblock().root_ino;
        let name = |n| format!("file{n}").into_bytes();
        let inos =
            (0..FILES).map(|n| volume.create(root, &name(n), &NewNode::new(0o100_644)).unwrap()).collect();
        volume.unmount().unwrap();
        (device, inos)
    }

    #[test]
    fn inodes_of_a_listing_are_read_in_few_long_requests() {
        let (device, inos) = with_many_files();
        let counted = Arc::new(Counted::new(device));
        let volume = Volume::open(counted.clone(), options()).unwrap();
        // This fills the NAT cache.
        volume.stat(inos[0]).unwrap();
        let reads = || counted.counts().reads;
        let before = reads();
        volume.read_inodes_ahead(inos.iter().rev().copied());
        let ahead = reads() - before;
        assert!((1..=FILES as u64 / 32).contains(&ahead), "{ahead} requests for {FILES} inodes");
        for ino in &inos {
            volume.stat(*ino).unwrap();
        }
        assert_eq!(reads() - before, ahead, "all are in memory");
        volume.read_inodes_ahead(inos);
        assert_eq!(reads() - before, ahead, "and stay there");
    }

    #[test]
    fn a_small_cache_is_not_flooded() {
        let (device, inos) = with_many_files();
        let counted = Arc::new(Counted::new(device));
        let small = Options { cache_bytes: 1 << 20, ..options() };
        let volume = Volume::open(counted.clone(), small).unwrap();
        let most = volume.nodes.ahead_max();
        volume.read_inodes_ahead(inos.iter().copied());
        let before = counted.counts().reads;
        for ino in &inos[..most] {
            volume.stat(*ino).unwrap();
        }
        assert_eq!(counted.counts().reads, before, "the first {most} are in memory");
    }

    #[test]
    fn a_damaged_inode_is_left_for_its_own_turn() {
        let (device, inos) = with_many_files();
        let volume = Volume::open(device.clone(), options()).unwrap();
        let addr = volume.nat_entry(inos[7].into()).unwrap().addr;
        device.write(u64::from(addr.0) << 12, &[0xA5; 4096]).unwrap();
        volume.read_inodes_ahead(inos.iter().copied().chain([Ino(0), Ino(u32::MAX)]));
        assert!(!volume.io().met_damage(), "it was not requested yet");
        assert!(volume.stat(inos[7]).is_err() && volume.io().met_damage());
        assert!(volume.stat(inos[8]).is_ok());
    }
}
