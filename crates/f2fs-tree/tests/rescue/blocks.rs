//! The used blocks of a volume, each with its part of the tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use f2fs::{
    Place,
    engine::Engine,
    format::{BlockSize, TableCopy, dentry::Dentries, inode::inline, nat, xattr::entries},
    units::{BlockAddr, Ino, Nid, SegNo},
};

use crate::{
    ROOT,
    tree::{Holds, Path},
};

/// The kinds of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockKind {
    Superblock,
    Checkpoint,
    Sit,
    Nat,
    Ssa,
    DirectoryInode,
    FileInode,
    DirectNode,
    IndirectNode,
    XattrNode,
    FileData,
    ClusterData,
    DirectoryData,
}

pub const KINDS: [BlockKind; 13] = [
    BlockKind::Superblock,
    BlockKind::Checkpoint,
    BlockKind::Sit,
    BlockKind::Nat,
    BlockKind::Ssa,
    BlockKind::DirectoryInode,
    BlockKind::FileInode,
    BlockKind::DirectNode,
    BlockKind::IndirectNode,
    BlockKind::XattrNode,
    BlockKind::FileData,
    BlockKind::ClusterData,
    BlockKind::DirectoryData,
];

/// Every used block, with its part of the tree.
pub struct Blocks {
    pub of_kind: BTreeMap<BlockKind, Vec<(BlockAddr, Holds)>>,
    /// Parts of the tree in each node.
    of_nodes: BTreeMap<Nid, Holds>,
    paths: BTreeMap<Ino, Vec<Path>>,
}

impl Blocks {
    pub fn of(volume: &Engine) -> Blocks {
        let mut blocks =
            Blocks { of_kind: BTreeMap::new(), of_nodes: BTreeMap::new(), paths: BTreeMap::new() };
        let mut pending = vec![(ROOT, Vec::new())];
        while let Some((ino, path)) = pending.pop() {
            let inode = volume.inode(ino).expect("sound");
            blocks.paths.entry(ino).or_default().push(path.clone());
            for entry in
                inode.is_directory().then(|| volume.entries(ino, 0).expect("sound")).into_iter().flatten()
            {
                let entry = entry.expect("sound");
                if entry.name != b"." && entry.name != b".." {
                    pending.push((entry.ino, below(&path, &entry.name)));
                }
            }
        }
        for (ino, paths) in blocks.paths.clone() {
            blocks.inode(volume, ino, &paths);
        }
        blocks.tables(volume);
        blocks
    }

    fn push(&mut self, kind: BlockKind, addr: BlockAddr, holds: Holds) {
        self.of_kind.entry(kind).or_default().push((addr, holds));
    }

    fn node(&mut self, volume: &Engine, kind: BlockKind, nid: Nid, holds: Holds) {
        self.of_nodes.entry(nid).or_default().add(&holds);
        self.push(kind, volume.nat_entry(nid).expect("sound").addr, holds);
    }

    fn inode(&mut self, volume: &Engine, ino: Ino, paths: &[Path]) {
        let inode = volume.inode(ino).expect("sound");
        let is_dir = inode.is_directory();
        let all = Holds { below: paths.iter().cloned().collect(), ..Holds::default() };
        let kind = if is_dir { BlockKind::DirectoryInode } else { BlockKind::FileInode };
        self.node(volume, kind, ino.into(), all);
        if inode.xattr_nid() != Nid::NULL {
            let inline = inode.inline_xattrs();
            let own = entries(inline, Place::Volume).expect("sound").map_while(|entry| entry.ok());
            let kept: BTreeSet<Vec<u8>> = own.filter_map(|entry| entry.full_name()).collect();
            let xattrs = paths.iter().map(|path| (path.clone(), kept.clone())).collect();
            let holds = Holds { xattrs, ..Holds::default() };
            self.node(volume, BlockKind::XattrNode, inode.xattr_nid(), holds);
        }
        if inode.has_inline(inline::DATA | inline::DENTRY) || inode.head().mode.get() & 0o170_000 == 0o060_000
        {
            return;
        }
        let layout = inode.layout();
        let (direct, children) = (layout.direct_addrs() as u64, layout.children() as u64);
        self.addrs(volume, ino, (0..layout.addrs()).map(|n| inode.addr(n)), 0);
        let first = layout.addrs() as u64;
        let places = [
            (0, first, 0),
            (1, first + direct, 0),
            (2, first + 2 * direct, 1),
            (3, first + (2 + children) * direct, 1),
            (4, first + (2 + 2 * children) * direct, 2),
        ];
        for (child, start, depth) in places {
            self.tree(volume, ino, inode.child(child), start, depth, (direct, children));
        }
    }

    /// Adds a node of a file's map, `depth` levels above its direct nodes.
    fn tree(&mut self, volume: &Engine, ino: Ino, nid: Nid, start: u64, depth: u32, of: (u64, u64)) {
        if nid == Nid::NULL {
            return;
        }
        let (direct, children) = of;
        let each = direct * children.pow(depth.saturating_sub(1));
        let count = if depth == 0 { direct } else { each * children };
        let node = volume.node(nid).expect("sound");
        let holds = self.content(volume, ino, start..start + count);
        let kind = if depth == 0 { BlockKind::DirectNode } else { BlockKind::IndirectNode };
        self.node(volume, kind, nid, holds);
        if depth == 0 {
            self.addrs(volume, ino, (0..direct as usize).map(|n| node.addr(n)), start);
            return;
        }
        for n in 0..children {
            self.tree(volume, ino, node.child(n as usize), start + n * each, depth - 1, of);
        }
    }

    /// Returns blocks of a file or directory as parts of the tree.
    fn content(&self, volume: &Engine, ino: Ino, range: Range<u64>) -> Holds {
        let paths = &self.paths[&ino];
        let inode = volume.inode(ino).expect("sound");
        if inode.head().mode.get() & 0o170_000 == 0o120_000 {
            return Holds { below: paths.iter().cloned().collect(), ..Holds::default() };
        }
        if !inode.is_directory() {
            let content = paths.iter().map(|path| (path.clone(), range.clone())).collect();
            return Holds { content, ..Holds::default() };
        }
        let mut holds = Holds { new_names: paths.iter().cloned().collect(), ..Holds::default() };
        for area in volume.directory_areas(ino).expect("sound") {
            let (block, bytes) = area.expect("sound");
            for entry in Dentries::new(&*bytes, Place::Volume).entries() {
                let name = entry.expect("sound").name.to_vec();
                if range.contains(&block) && name != b"." && name != b".." {
                    holds.below.insert(below(&paths[0], &name));
                }
            }
        }
        holds
    }

    fn addrs(&mut self, volume: &Engine, ino: Ino, addrs: impl Iterator<Item = BlockAddr>, start: u64) {
        let inode = volume.inode(ino).expect("sound");
        let mut cluster = None;
        for (block, addr) in (start..).zip(addrs) {
            if addr == BlockAddr::COMPRESS {
                cluster = Some(block..block + inode.layout().cluster_blocks() as u64);
            }
            cluster = cluster.filter(|cluster| cluster.contains(&block));
            if !addr.is_real() {
                continue;
            }
            let kind = match &cluster {
                _ if inode.is_directory() => BlockKind::DirectoryData,
                Some(_) => BlockKind::ClusterData,
                None => BlockKind::FileData,
            };
            let range = cluster.clone().unwrap_or(block..block + 1);
            let holds = self.content(volume, ino, range);
            self.push(kind, addr, holds);
        }
    }

    /// Adds the blocks outside the main area.
    fn tables(&mut self, volume: &Engine) {
        let geometry = volume.geometry();
        let nodes = self.of_nodes.clone();
        let mut journal = Holds::default();
        for index in 0..geometry.nat_blocks() {
            let mut holds = Holds::default();
            for (nid, own) in &nodes {
                if nat::position(*nid, BlockSize::B4K).0 == index {
                    holds.add(own);
                }
            }
            journal.add(&holds);
            if !holds.below.is_empty() {
                let copy = TableCopy::current(&volume.last_checkpoint().nat_bitmap, index);
                self.push(BlockKind::Nat, geometry.nat_block(index, copy), holds);
            }
        }
        for index in 0..geometry.sit_blocks() {
            let copy = TableCopy::current(&volume.last_checkpoint().sit_bitmap, index);
            self.push(BlockKind::Sit, geometry.sit_block(index, copy), Holds::default());
        }
        for segment in (0..geometry.segments).map(SegNo) {
            self.push(BlockKind::Ssa, geometry.summary_block(segment).0, Holds::default());
        }
        self.push(BlockKind::Superblock, BlockAddr(0), Holds::default());
        self.push(BlockKind::Superblock, BlockAddr(1), Holds::default());
        for pack in [0, 1] {
            let start = geometry.pack(pack);
            let last = volume.last_checkpoint().pack_blocks - 1;
            self.push(BlockKind::Checkpoint, start, Holds::default());
            self.push(BlockKind::Checkpoint, BlockAddr(start.0 + last), Holds::default());
        }
    }
}

fn below(dir: &[u8], name: &[u8]) -> Path {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}
