//! The public operations on nodes.

use std::sync::Arc;

use super::Engine;
use crate::{
    Result,
    format::{nat::NatEntry, node::NodeBlock},
    units::{Ino, Nid},
};

impl Engine {
    /// The current NAT entry of a node.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn nat_entry(&self, nid: Nid) -> Result<NatEntry> {
        self.nodes().nat_entry(nid)
    }

    /// Returns a node, checked against its NAT entry; see [`NodeBlock::check`].
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn node(&self, nid: Nid) -> Result<Arc<NodeBlock>> {
        self.nodes().node(nid)
    }

    /// Returns an inode; a node of any other kind is an error.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn inode(&self, ino: Ino) -> Result<Arc<NodeBlock>> {
        self.nodes().inode(ino)
    }

    /// Returns true if a nid belongs to an inode. A stale handle may name a nid that does not; that is no
    /// damage.
    ///
    /// # Errors
    /// Those of [reading](Engine#errors).
    pub fn is_inode(&self, ino: Ino) -> Result<bool> {
        self.nodes().is_inode(ino)
    }

    /// Reads inodes that are not in memory yet, adjacent ones at once, as far as the node cache keeps them until
    /// they are used. One that cannot be read is left for its own turn.
    pub fn read_inodes_ahead(&self, inos: impl IntoIterator<Item = Ino>) {
        self.nodes().read_inodes_ahead(inos);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::{Counted, Device, MemoryDevice};

    use super::*;
    use crate::{
        Place,
        engine::{Caller, NewNode, Options},
        format::{sit::SegmentType, summary::Owner},
        mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
        units::{BlockAddr, Nid, Time},
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
        let mut volume = NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, options())
            .and_then(NewVolume::finish)
            .unwrap();
        let root = volume.superblock().root_ino;
        let name = |n| format!("file{n}").into_bytes();
        let inos = (0..FILES)
            .map(|n| volume.begin(Caller::ADMIN).create(root, &name(n), &NewNode::new(0o100_644)).unwrap())
            .collect();
        volume.unmount().unwrap();
        (device, inos)
    }

    #[test]
    fn inodes_of_a_listing_are_read_in_few_long_requests() {
        let (device, inos) = with_many_files();
        let counted = Arc::new(Counted::new(device));
        let volume = Engine::open(counted.clone(), options()).unwrap();
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
        let volume = Engine::open(counted.clone(), small).unwrap();
        let most = volume.nodes().ahead_max();
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
        let volume = Engine::open(device.clone(), options()).unwrap();
        let addr = volume.nat_entry(inos[7].into()).unwrap().addr;
        device.write(u64::from(addr.0) << 12, &[0xA5; 4096]).unwrap();
        volume.read_inodes_ahead(inos.iter().copied().chain([Ino(0), Ino(u32::MAX)]));
        assert!(!volume.io().met_damage(), "it was not requested yet");
        assert!(volume.stat(inos[7]).is_err() && volume.io().met_damage());
        assert!(volume.stat(inos[8]).is_ok());
    }

    #[test]
    fn a_write_to_an_address_forgets_the_cached_block_there() {
        let (device, _) = with_many_files();
        let mut volume = Engine::open(device, options()).unwrap();
        let at = Place::Inode(volume.superblock().root_ino);
        let owner = Owner { nid: Nid(3), version: 0, offset: 0 };
        volume.admit_change().unwrap();
        let bytes = |with| vec![with; 4096];
        let segments = volume.segments_mut();
        let _space = segments.reserve(4).unwrap();
        let first = segments.append(SegmentType::HotData, owner, &bytes(1)).unwrap();
        let next = BlockAddr(first.0 + 1);
        assert!(segments.dir_block(next, at).is_ok() && segments.cached_dir_block(next).is_some());
        assert_eq!(segments.append(SegmentType::HotData, owner, &bytes(2)).unwrap(), next);
        assert!(segments.cached_dir_block(next).is_none(), "a log took the address");
        segments.write_logs().unwrap();
        assert_eq!(*segments.dir_block(next, at).unwrap(), *bytes(2));
        segments.write_in_place(next, at, &bytes(3)).unwrap();
        assert_eq!(*segments.dir_block(next, at).unwrap(), *bytes(3));
        let third = BlockAddr(next.0 + 1);
        assert!(segments.dir_block(third, at).is_ok());
        segments.append_through(SegmentType::HotData, |_| owner, &bytes(4)).unwrap();
        assert_eq!(*segments.dir_block(third, at).unwrap(), *bytes(4));
    }
}
