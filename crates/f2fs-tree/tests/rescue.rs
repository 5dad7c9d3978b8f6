//! Export of damaged volumes: if one block is damaged, everything arrives except the content of that block.
//!
//! Each case damages one block of a chosen kind, exports with `keep_going` and compares the result with the
//! tree before. The test's own walk through nodes and maps determines the content of each block. Each run
//! covers every kind of block and of damage; `RESCUE_SEEDS` asks for more cases.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use block::{Device, Fault, Faulty, MemoryDevice, Overlay, Rng, Verb};
use f2fs::{
    Error, Place, Result,
    engine::{ActiveLogs, Caller, Engine, NewNode, Options, SetAttr, XattrMode},
    format::{
        BlockSize, TableCopy,
        dentry::Dentries,
        inode::{Algorithm, Compression, DeviceNumber, flag, inline},
        nat,
        xattr::entries,
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};
use f2fs_tree::{Entry, ExportOptions, Kind, Loss, Metadata, Sink, VolumeSource, export};

mod support;

const ROOT: Ino = Ino(3);
const BLOCK: u64 = 4096;
const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
/// Number of cases of a run: every kind of block with every kind of damage, three times.
const CASES: u64 = 3 * KINDS.len() as u64 * DAMAGES.len() as u64;

/// Further seeds, with cases in which a directory gets another one's block with names of its own.
const FURTHER_SEEDS: [u64; 4] = [246, 311, 1806, 2391];

type Path = Vec<u8>;

/// The kinds of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BlockKind {
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

const KINDS: [BlockKind; 13] = [
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

/// The kinds of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Zeroes,
    Noise,
    BitFlip,
    OtherBlock,
    Unreadable,
}

const DAMAGES: [Damage; 5] =
    [Damage::Zeroes, Damage::Noise, Damage::BitFlip, Damage::OtherBlock, Damage::Unreadable];

/// The part of the tree in a block.
#[derive(Debug, Clone, Default)]
struct Holds {
    /// These paths and everything below them.
    below: BTreeSet<Path>,
    /// Unexpected names may appear in these directories.
    new_names: BTreeSet<Path>,
    /// Blocks of the content of these files.
    content: Vec<(Path, Range<u64>)>,
    /// Attributes of these paths, except the named ones.
    xattrs: Vec<(Path, BTreeSet<Vec<u8>>)>,
}

impl Holds {
    fn add(&mut self, other: &Holds) {
        self.below.extend(other.below.iter().cloned());
        self.new_names.extend(other.new_names.iter().cloned());
        self.content.extend(other.content.iter().cloned());
        self.xattrs.extend(other.xattrs.iter().cloned());
    }

    fn has_all_of(&self, path: &[u8]) -> bool {
        ancestors(path).any(|above| self.below.contains(above))
    }

    /// Returns true if the loss of a path may be reported.
    fn touches(&self, path: &[u8]) -> bool {
        self.has_all_of(path)
            || self.new_names.contains(path)
            || ancestors(path).skip(1).any(|above| self.new_names.contains(above))
            || self.content.iter().any(|(of, _)| of == path)
            || self.xattrs.iter().any(|(of, _)| of == path)
    }
}

/// Returns a path and the paths of its parent directories.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |path| match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => Some(&path[..slash]),
        None => (!path.is_empty()).then_some(&path[..0]),
    })
}

/// A tree in memory.
#[derive(Default)]
struct Tree {
    nodes: BTreeMap<Path, Node>,
    last: Path,
}

struct Node {
    kind: Kind,
    meta: Metadata,
    /// Blocks that are not all zeroes.
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Sink for Tree {
    fn entry(&mut self, entry: &Entry) -> Result<bool> {
        let kind = match &entry.kind {
            Kind::File { size, .. } => Kind::File { size: *size, data: None },
            kind => kind.clone(),
        };
        let node = Node { kind, meta: entry.meta.clone(), blocks: BTreeMap::new() };
        self.last = entry.path.clone();
        assert!(self.nodes.insert(entry.path.clone(), node).is_none(), "{:?} comes twice", entry.path);
        if let Some(parent) = ancestors(&entry.path).nth(1) {
            assert_eq!(self.nodes.get(parent).map(|node| &node.kind), Some(&Kind::Directory));
        }
        Ok(true)
    }

    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let node = self.nodes.get_mut(&self.last).expect("the last entry");
        let mut at = offset;
        while at < offset + bytes.len() as u64 {
            let end = (at / BLOCK * BLOCK + BLOCK).min(offset + bytes.len() as u64);
            let part = &bytes[(at - offset) as usize..(end - offset) as usize];
            if part.iter().any(|byte| *byte != 0) {
                let block = node.blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
                block[(at % BLOCK) as usize..][..part.len()].copy_from_slice(part);
            }
            at = end;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn losses(&mut self) -> Vec<Loss> {
        Vec::new()
    }
}

impl Tree {
    /// Returns a node; for a hard link, the node of its first name.
    fn get(&self, path: &[u8]) -> Option<&Node> {
        let node = self.nodes.get(path)?;
        match &node.kind {
            Kind::HardLink { to } => self.nodes.get(to),
            _ => Some(node),
        }
    }

    /// Returns the differences of this tree from another that `holds` does not explain.
    fn unexplained(&self, after: &Tree, holds: &Holds) -> Vec<String> {
        let mut found = Vec::new();
        for path in self.nodes.keys().filter(|path| !holds.has_all_of(path)) {
            let name = String::from_utf8_lossy(path);
            match (self.get(path), after.get(path)) {
                (Some(was), Some(is)) => {
                    found
                        .extend(node_differences(path, was, is, holds).map(|what| format!("{name}: {what}")));
                }
                _ => found.push(format!("{name}: is missing")),
            }
        }
        for path in after.nodes.keys().filter(|path| !self.nodes.contains_key(*path)) {
            let is_known = holds.has_all_of(path)
                || ancestors(path).any(|own| {
                    let parent = ancestors(own).nth(1);
                    !self.nodes.contains_key(own) && parent.is_some_and(|dir| holds.new_names.contains(dir))
                });
            if !is_known {
                found.push(format!("{}: is new", String::from_utf8_lossy(path)));
            }
        }
        found
    }

    fn is_same(&self, after: &Tree) -> bool {
        self.unexplained(after, &Holds::default()).is_empty()
    }
}

fn node_differences<'a>(
    path: &'a [u8],
    was: &'a Node,
    is: &'a Node,
    holds: &'a Holds,
) -> impl Iterator<Item = String> + 'a {
    let kept = holds.xattrs.iter().find(|(of, _)| of == path).map(|(_, kept)| kept);
    let bare = |node: &Node| {
        let mut meta = node.meta.clone();
        meta.xattrs.retain(|xattr| kept.is_none_or(|kept| kept.contains(&xattr.name)));
        meta
    };
    let kind = (was.kind != is.kind).then(|| format!("{:?} was {:?}", is.kind, was.kind));
    let meta = (bare(was) != bare(is)).then(|| format!("{:?} was {:?}", bare(is), bare(was)));
    let numbers: BTreeSet<u64> = was.blocks.keys().chain(is.blocks.keys()).copied().collect();
    let changed = numbers.into_iter().filter(|number| was.blocks.get(number) != is.blocks.get(number));
    let content = changed
        .filter(move |number| !holds.content.iter().any(|(of, range)| of == path && range.contains(number)))
        .map(|number| format!("block {number} differs"));
    kind.into_iter().chain(meta).chain(content)
}

/// Returns bytes that are not all zeroes, and differ from block to block.
fn noise(rng: &mut Rng, bytes: usize) -> Vec<u8> {
    let mut all: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    all.truncate(bytes);
    all
}

/// Makes a device with a volume that has every kind of block.
fn make() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    let features = [
        "extra_attr",
        "inode_checksum",
        "sb_checksum",
        "compression",
        "flexible_inline_xattr",
        "inode_crtime",
    ];
    support::format_on(device.clone(), &features, BlockSize::B4K).unmount().expect("it is written");
    let compression =
        Compression { algorithm: Algorithm::Lz4, log_cluster_blocks: 2, checksum: true, level: 0 };
    let options =
        Options { compression, active_logs: ActiveLogs::default(), ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options).expect("the volume opens");
    fill(&mut volume).expect("everything fits");
    // Both checkpoints have the same tree.
    volume.checkpoint().expect("it is written");
    volume
        .begin(Caller::ADMIN)
        .set_attr(ROOT, &SetAttr { uid: Some(0), ..SetAttr::default() })
        .expect("nothing changes");
    volume.unmount().expect("it is written");
    device
}

fn fill(volume: &mut Engine) -> Result<()> {
    let mut rng = Rng::new(1);
    let file = |volume: &mut Engine, dir: Ino, name: &[u8], bytes: &[u8]| -> Result<Ino> {
        let ino = volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(FILE))?;
        volume.begin(Caller::ADMIN).write(ino, 0, bytes)?;
        Ok(ino)
    };
    file(volume, ROOT, b"inline", b"a few bytes")?;
    file(volume, ROOT, b"blocks", &noise(&mut rng, 40_000))?;
    let direct = file(volume, ROOT, b"direct", &noise(&mut rng, 1200 << 12))?;
    volume.begin(Caller::ADMIN).set_xattr(direct, b"user.inline", b"1", XattrMode::Set)?;
    // Beyond the direct nodes, in both indirect ones and below the double indirect one.
    let far = volume.begin(Caller::ADMIN).create(ROOT, b"far", &NewNode::new(FILE))?;
    for block in [5, 2000, 4000, 6000, 600_000, 1_200_000, 2_090_000, 2_091_500, 4_000_000] {
        volume.begin(Caller::ADMIN).write(far, block * BLOCK, &noise(&mut rng, 9000))?;
    }
    let compressed = volume.begin(Caller::ADMIN).create(ROOT, b"compressed", &NewNode::new(DIR))?;
    volume
        .begin(Caller::ADMIN)
        .set_attr(compressed, &SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() })?;
    for n in 0..3u8 {
        let text: Vec<u8> = (0..60_000u32).map(|at| (at / 7 + u32::from(n)) as u8 & 0x1F).collect();
        file(volume, compressed, &[b'c', b'0' + n], &text)?;
    }
    let plain = noise(&mut rng, 30_000);
    file(volume, compressed, b"noise", &plain)?;
    // Directories of blocks, on several levels, with enough inodes for several blocks of the NAT.
    let mut inside = ROOT;
    for level in 0..4u8 {
        inside = volume.begin(Caller::ADMIN).create(inside, &[b'd', b'0' + level], &NewNode::new(DIR))?;
        for n in 0..350 {
            file(
                volume,
                inside,
                format!("name-{level}-{n:04}").as_bytes(),
                format!("{level} {n}").as_bytes(),
            )?;
        }
        for n in 0..3 {
            let sub = volume.begin(Caller::ADMIN).create(
                inside,
                format!("sub{n}").as_bytes(),
                &NewNode::new(DIR),
            )?;
            let own = file(volume, sub, b"own", &noise(&mut rng, 5000))?;
            volume.begin(Caller::ADMIN).link(own, ROOT, format!("link-{level}-{n}").as_bytes())?;
            volume.begin(Caller::ADMIN).symlink(sub, b"symlink", b"../name", &NewNode::new(0o120_777))?;
        }
    }
    for (dir, name) in [(ROOT, b"attributes"), (inside, b"ATTRIBUTES")] {
        let ino = volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(DIR))?;
        let below = file(volume, ino, b"below", b"it")?;
        for ino in [ino, below] {
            volume.begin(Caller::ADMIN).set_xattr(ino, b"user.small", b"inline", XattrMode::Set)?;
            volume.begin(Caller::ADMIN).set_xattr(
                ino,
                b"user.large",
                &noise(&mut rng, 1500),
                XattrMode::Set,
            )?;
            volume.begin(Caller::ADMIN).set_xattr(
                ino,
                b"user.larger",
                &noise(&mut rng, 1600),
                XattrMode::Set,
            )?;
        }
    }
    volume.begin(Caller::ADMIN).symlink(ROOT, b"long", &[b'x'; 4000], &NewNode::new(0o120_777))?;
    volume.begin(Caller::ADMIN).create(ROOT, b"fifo", &NewNode::new(0o010_600))?;
    let device = Some(DeviceNumber { major: 8, minor: 300 });
    volume.begin(Caller::ADMIN).create(ROOT, b"block", &NewNode { device, ..NewNode::new(0o060_600) })?;
    Ok(())
}

/// Every used block, with its part of the tree.
struct Blocks {
    of_kind: BTreeMap<BlockKind, Vec<(BlockAddr, Holds)>>,
    /// Parts of the tree in each node.
    of_nodes: BTreeMap<Nid, Holds>,
    paths: BTreeMap<Ino, Vec<Path>>,
}

impl Blocks {
    fn of(volume: &Engine) -> Blocks {
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

/// Returns the device with one block damaged.
fn damaged(
    device: &Arc<dyn Device>,
    addr: BlockAddr,
    damage: Damage,
    others: &[BlockAddr],
    rng: &mut Rng,
) -> Arc<dyn Device> {
    let at = u64::from(addr.0) * BLOCK;
    let mut bytes = vec![0; BLOCK as usize];
    device.read(at, &mut bytes).expect("in memory");
    match damage {
        Damage::Unreadable => {
            let range = at..at + BLOCK;
            return Arc::new(Faulty::new(device.clone(), vec![Fault::ErrorIn { verb: Verb::Read, range }]));
        }
        Damage::Zeroes => bytes.fill(0),
        Damage::Noise => bytes = noise(rng, BLOCK as usize),
        Damage::BitFlip => bytes[rng.below(BLOCK) as usize] ^= 1 << rng.below(8),
        Damage::OtherBlock => {
            let other = others[rng.below(others.len() as u64) as usize];
            device.read(u64::from(other.0) * BLOCK, &mut bytes).expect("in memory");
        }
    }
    let damaged = Overlay::new(device.clone());
    damaged.write(at, &bytes).expect("in memory");
    Arc::new(damaged)
}

/// Exports everything that can be read. Returns the tree and the paths of the losses.
fn rescue(device: Arc<dyn Device>) -> Result<(Tree, Vec<Path>)> {
    let volume = Engine::open(device, Options::read_only())?;
    let mut source = VolumeSource::new(&volume, ROOT, b"")?;
    let (mut tree, mut lost) = (Tree::default(), Vec::new());
    let mut note = |error: &Error| match error {
        Error::Lost { path, .. } => lost.push(path.clone()),
        other => panic!("a loss without a path: {other}"),
    };
    let options = ExportOptions { keep_going: true, lost: Some(&mut note), ..ExportOptions::default() };
    let done = export(&mut source, &mut tree, options)?;
    assert_eq!(done.losses as usize, lost.len());
    Ok((tree, lost))
}

#[test]
fn one_damaged_block_loses_only_its_content() {
    let device = make();
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a good volume");
    let blocks = Blocks::of(&volume);
    let (before, lost) = rescue(device.clone()).expect("a good volume");
    assert!(lost.is_empty() && before.nodes.len() > 1400, "{} entries", before.nodes.len());
    let found: Vec<BlockKind> = blocks.of_kind.keys().copied().collect();
    let mut wanted = KINDS.to_vec();
    wanted.sort();
    assert_eq!(found, wanted, "the volume has every kind of block");
    let cases = std::env::var("RESCUE_SEEDS").map_or(CASES, |cases| cases.parse().expect("a number"));
    let (mut failures, mut changed, mut told) = (Vec::new(), 0, 0);
    for seed in (0..cases).chain(FURTHER_SEEDS) {
        let mut rng = Rng::new(seed);
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        let damage = DAMAGES[(seed / KINDS.len() as u64 % DAMAGES.len() as u64) as usize];
        let of_kind = &blocks.of_kind[&kind];
        let (addr, holds) = &of_kind[rng.below(of_kind.len() as u64) as usize];
        let others: Vec<BlockAddr> =
            of_kind.iter().map(|(other, _)| *other).filter(|other| other != addr).collect();
        let name = format!("seed {seed}: {damage:?} in {addr} ({kind:?})");
        match rescue(damaged(&device, *addr, damage, &others, &mut rng)) {
            Err(error) if holds.below.contains(&b""[..]) => drop(error),
            Err(error) => failures.push(format!("{name}: {error}")),
            Ok((after, lost)) => {
                let unexplained = before.unexplained(&after, holds);
                failures.extend(unexplained.into_iter().take(5).map(|what| format!("{name}: {what}")));
                let elsewhere = lost.iter().find(|path| !holds.touches(path));
                failures.extend(elsewhere.map(|path| {
                    format!("{name}: told of {}, which is elsewhere", String::from_utf8_lossy(path))
                }));
                let is_same = before.is_same(&after);
                if damage == Damage::Unreadable && !is_same && lost.is_empty() {
                    failures.push(format!("{name}: the loss is not reported"));
                }
                changed += u64::from(!is_same);
                told += u64::from(!lost.is_empty());
            }
        }
    }
    println!("{cases} damaged volumes: {changed} trees with losses, {told} told of");
    assert!(failures.is_empty(), "{} failures:\n  {}", failures.len(), failures.join("\n  "));
    assert!(changed > cases / 3, "the damage must be felt: {changed} of {cases}");
}
