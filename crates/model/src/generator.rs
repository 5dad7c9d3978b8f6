//! Random operations that collide: few names, few directories, and sizes around every boundary of the format.

mod bursts;

use std::sync::Arc;

use block::Rng;
use f2fs::format::inode::flag;
use guest::{Bytes, Content, Op, op::Allocate};

use crate::model::{Body, Id, Model, ROOT};

/// Handles of files opened by name.
const NAMED_HANDLES: u32 = 4;
/// Handle of a file that was opened without a name, until it has one.
const NAMELESS: u32 = NAMED_HANDLES;
/// Maximum number of open handles.
pub const HANDLES: u32 = NAMED_HANDLES + 1;
/// Approximate maximum number of entries of a tree.
const INODES_MAX: usize = 600;
/// Number of operations for which the generator reuses its list of paths.
const TREE_AGE_MAX: u32 = 4;
/// Maximum depth of directories.
const DEPTH_MAX: usize = 12;

/// The mix of operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix {
    /// Maximum number of blocks of all contents.
    pub blocks_max: u64,
    /// Maximum size of a write in bytes.
    pub write_bytes_max: u64,
    /// True if files are written far from their start.
    pub far: bool,
    /// True if directories fold case.
    pub casefold: bool,
    /// True if files are compressed.
    pub compress: bool,
    /// True if the volume is filled up.
    pub fill: bool,
    /// Number of MiB of a file that the first operations write; 0 for none.
    pub first_mib: u64,
    /// Modes of fallocate that the volume supports.
    pub allocate: Vec<Allocate>,
    /// One of this many operations makes changes durable or reopens the volume; 0 for none.
    pub durable: u64,
    /// True if files are fsynced.
    pub fsync: bool,
    /// True if the volume is reopened during the sequence.
    pub remount: bool,
    /// True if some choices are of hundreds of operations: many names, many pieces of a file, many removals.
    pub bursts: bool,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            blocks_max: 2000,
            write_bytes_max: 64 << 10,
            far: true,
            casefold: false,
            compress: false,
            fill: false,
            first_mib: 0,
            allocate: vec![
                Allocate::Extend,
                Allocate::KeepSize,
                Allocate::Punch,
                Allocate::Zero,
                Allocate::Collapse,
                Allocate::Insert,
            ],
            durable: 40,
            fsync: false,
            remount: true,
            bursts: true,
        }
    }
}

/// Generator of operations.
#[derive(Debug, Clone)]
pub struct Generator {
    rng: Rng,
    mix: Mix,
    /// Remaining operations of a burst, last first.
    burst: Vec<Op>,
    /// Recent paths. Paths removed meanwhile are used once more.
    tree: Arc<Tree>,
    tree_age: u32,
}

impl Generator {
    /// Makes a generator whose operations depend only on `seed` and the models that it is given.
    pub fn new(seed: u64, mix: Mix) -> Generator {
        let compress = Op::Flags { path: "/".into(), set: flag::COMPRESS, clear: 0 };
        let first = (0..mix.first_mib).rev().map(|at| Op::Write {
            path: "/first".into(),
            offset: at << 20,
            content: Content::Noise { seed: seed.wrapping_add(at), length: 1 << 20 },
        });
        Generator {
            rng: Rng::new(seed),
            burst: first.chain(mix.compress.then_some(compress)).collect(),
            mix,
            tree: Arc::default(),
            tree_age: TREE_AGE_MAX,
        }
    }

    /// Returns the next operation.
    pub fn next(&mut self, model: &Model) -> Op {
        let op = match self.burst.pop() {
            Some(op) => op,
            None => self.choose(model),
        };
        match op {
            Op::Write { ref path, .. }
            | Op::Truncate { ref path, .. }
            | Op::Allocate { ref path, .. }
            | Op::Open { ref path, .. }
            | Op::Fsync { ref path, .. }
            | Op::Flags { ref path, .. }
                if is_special(model, path) =>
            {
                // Linux would follow the link, or wait for the other end of a FIFO.
                Op::Chown { path: path.clone(), uid: 7, gid: 9 }
            }
            // The path may have been a directory's when it was picked; these flags of a file with content
            // cannot be changed.
            Op::Flags { ref path, set, clear }
                if (set | clear) & (flag::COMPRESS | flag::NOCOMPRESS) != 0
                    && model.size_of(&path.0).is_some() =>
            {
                Op::Chown { path: path.clone(), uid: 7, gid: 9 }
            }
            // On Linux only files and directories have user attributes.
            Op::SetXattr { path, value, .. } if is_special(model, &path) => {
                Op::SetXattr { path, name: "trusted.special".into(), value }
            }
            op => op,
        }
    }

    fn choose(&mut self, model: &Model) -> Op {
        self.tree_age += 1;
        if self.tree_age > TREE_AGE_MAX {
            (self.tree, self.tree_age) = (Arc::new(Tree::of(model)), 0);
        }
        let tree = self.tree.clone();
        if self.mix.durable > 0 && self.rng.below(self.mix.durable) == 0 {
            return self.durable(model, &tree);
        }
        let crowded = tree.paths.len() > INODES_MAX;
        let full = !self.mix.fill && model.data_blocks() > self.mix.blocks_max;
        if crowded || full {
            return self.removal(model, &tree);
        }
        match self.rng.below(100) {
            0..=9 => Op::Write { path: self.new_path(&tree), offset: 0, content: self.content(4096) },
            10..=15 => Op::Mkdir { path: self.new_path(&tree), mode: self.mode() },
            16..=18 => Op::Mknod { path: self.new_path(&tree), mode: self.kind(), major: 8, minor: 70_000 },
            19..=21 => self.symlink(&tree),
            22..=25 => Op::Link { from: self.old_path(&tree), to: self.new_path(&tree) },
            26..=31 => Op::Unlink { path: self.old_path(&tree) },
            32..=34 => Op::Rmdir { path: self.pick(&tree.dirs).clone() },
            35..=41 => self.rename(&tree),
            42..=57 => self.write(model, &tree),
            58..=64 => self.truncate(model, &tree),
            65..=69 => self.allocate(model, &tree),
            70..=76 => self.set_xattr(&tree),
            77..=78 => self.remove_xattr(model, &tree),
            79..=81 => Op::Chmod { path: self.file(&tree), mode: self.mode() },
            82..=83 => Op::Chown { path: self.old_path(&tree), uid: self.id(), gid: self.id() },
            84..=85 => Op::Times {
                path: self.old_path(&tree),
                atime: (self.rng.below(1 << 33) as i64 - (1 << 31), self.rng.below(1_000_000_000) as u32),
                mtime: (self.rng.below(1 << 33) as i64 - (1 << 31), self.rng.below(1_000_000_000) as u32),
            },
            86..=87 => self.flags(model, &tree),
            88..=93 => self.handle(model, &tree),
            94..=95 if self.mix.fsync => self.fsync(model, &tree),
            96 if self.rng.chance(0.5) => self.nameless(&tree),
            96 if self.mix.bursts => self.many_names(&tree),
            97 if self.mix.bursts => self.many_writes(model, &tree),
            98 if self.mix.bursts => self.many_removals(model, &tree),
            _ => Op::Write {
                path: self.file(&tree),
                offset: 0,
                content: self.content(self.mix.write_bytes_max),
            },
        }
    }

    fn durable(&mut self, model: &Model, tree: &Tree) -> Op {
        let dir = || Bytes::from("/");
        match self.rng.below(8) {
            0..=1 if self.mix.remount => Op::Unmount { dir: dir() },
            2 if self.mix.remount => Op::DropCaches,
            5 => Op::Collect { path: dir() },
            3..=4 if self.mix.fsync => Op::Fsync { path: self.file(tree), data_only: false },
            6..=7 if self.mix.fsync => self.fsync(model, tree),
            _ => Op::Checkpoint { path: dir() },
        }
    }

    fn removal(&mut self, model: &Model, tree: &Tree) -> Op {
        match self.rng.below(4) {
            0 => self.truncate(model, tree),
            1 => Op::Rmdir { path: self.pick(&tree.dirs).clone() },
            2 if self.mix.bursts => self.many_removals(model, tree),
            _ => Op::Unlink { path: self.old_path(tree) },
        }
    }

    fn write(&mut self, model: &Model, tree: &Tree) -> Op {
        let path = self.file(tree);
        let offset = self.offset(model, &path);
        let most = if offset > 1 << 30 { 20_000 } else { self.mix.write_bytes_max };
        Op::Write { path, offset, content: self.content(most) }
    }

    fn truncate(&mut self, model: &Model, tree: &Tree) -> Op {
        let path = self.file(tree);
        let size = self.offset(model, &path);
        Op::Truncate { path, size }
    }

    fn allocate(&mut self, model: &Model, tree: &Tree) -> Op {
        let path = self.file(tree);
        if self.mix.compress && self.rng.chance(0.3) {
            let data = model.find(&path.0).ok().and_then(|id| model.inode(id).data());
            return match data.is_some_and(|data| data.released) {
                true => Op::Reserve { path },
                false => Op::Release { path },
            };
        }
        let offset = self.offset(model, &path);
        let length = 1 + self.length(self.mix.write_bytes_max * 4);
        let how = self.mix.allocate[self.rng.below(self.mix.allocate.len() as u64) as usize];
        let (mut offset, mut length) = (offset, length);
        let shifts = matches!(how, Allocate::Collapse | Allocate::Insert);
        if shifts && self.rng.chance(0.9) {
            let block_bytes = model.rules().block_bytes;
            (offset, length) =
                (offset / block_bytes * block_bytes, length.div_ceil(block_bytes) * block_bytes);
            let size = model.size_of(&path.0).unwrap_or(0);
            if self.rng.chance(0.7) && size > 2 * block_bytes {
                // Within the file, if possible.
                offset = self.rng.below(size / block_bytes - 1) * block_bytes;
                length = (1 + self.rng.below(8)) * block_bytes;
            }
        }
        Op::Allocate { path, how, offset, length }
    }

    fn rename(&mut self, tree: &Tree) -> Op {
        let from = self.old_path(tree);
        let to = if self.rng.chance(0.4) { self.old_path(tree) } else { self.new_path(tree) };
        match self.rng.below(4) {
            0 => Op::RenameNew { from, to },
            1 => Op::Exchange { from, to: self.old_path(tree) },
            _ => Op::Rename { from, to },
        }
    }

    fn symlink(&mut self, tree: &Tree) -> Op {
        let length = match self.rng.below(4) {
            0 => 1 + self.rng.below(60),
            1 => [3447, 3448, 3451, 3452, 3453, 3488, 3489, 4094, 4095, 4096][self.rng.below(10) as usize],
            _ => 1 + self.rng.below(300),
        };
        let byte = b'a' + self.rng.below(26) as u8;
        let target = match self.rng.chance(0.3) {
            true => self.name(),
            false => vec![byte; length as usize],
        };
        Op::Symlink { target: target.into(), path: self.new_path(tree) }
    }

    fn set_xattr(&mut self, tree: &Tree) -> Op {
        let length = match self.rng.below(6) {
            0 => 0,
            1 => self.rng.below(20),
            2 => 140 + self.rng.below(60),
            3 => [3800, 3900, 4000, 4050, 4072, 4200, 5000][self.rng.below(7) as usize] + self.rng.below(40),
            _ => self.rng.below(600),
        };
        let value = self.content_of(length);
        Op::SetXattr { path: self.old_path(tree), name: self.xattr_name(), value }
    }

    /// Removes an attribute, usually an existing one.
    fn remove_xattr(&mut self, model: &Model, tree: &Tree) -> Op {
        let path = self.old_path(tree);
        let there: Vec<Bytes> = match model.find(&path.0) {
            Ok(id) => model.inode(id).xattrs.keys().map(|name| Bytes(name.clone())).collect(),
            Err(_) => Vec::new(),
        };
        let name = match there.is_empty() || self.rng.chance(0.1) {
            true => self.xattr_name(),
            false => self.pick(&there).clone(),
        };
        Op::RemoveXattr { path, name }
    }

    fn flags(&mut self, model: &Model, tree: &Tree) -> Op {
        if self.mix.casefold && self.rng.chance(0.7) {
            let path = self.pick(&tree.dirs).clone();
            let folds = model.find(&path.0).is_ok_and(|id| model.inode(id).flags & flag::CASEFOLD != 0);
            let (set, clear) = if folds { (0, flag::CASEFOLD) } else { (flag::CASEFOLD, 0) };
            return Op::Flags { path, set, clear };
        }
        if self.mix.compress && self.rng.chance(0.4) {
            let (set, clear) = [
                (flag::COMPRESS, flag::NOCOMPRESS),
                (flag::COMPRESS, flag::NOCOMPRESS),
                (flag::NOCOMPRESS, flag::COMPRESS),
                (0, flag::COMPRESS),
            ][self.rng.below(4) as usize];
            return Op::Flags { path: self.pick(&tree.dirs).clone(), set, clear };
        }
        let bits = [flag::NODUMP, flag::NOATIME, flag::NODUMP | flag::NOATIME][self.rng.below(3) as usize];
        let (set, clear) = if self.rng.chance(0.5) { (bits, 0) } else { (0, bits) };
        Op::Flags { path: self.old_path(tree), set, clear }
    }

    fn handle(&mut self, model: &Model, tree: &Tree) -> Op {
        let handle = self.rng.below(NAMED_HANDLES.into()) as u32;
        match (model.open_files().get(&handle), self.rng.below(5)) {
            (None, _) => Op::Open { path: self.file(tree), handle },
            (Some(_), 0) => Op::Close { handle },
            (Some(_), 1) if self.mix.fsync => Op::FsyncOpen { handle },
            (Some(id), _) => {
                let offset = self.offset_in(model, Some(*id));
                let most = if offset > 1 << 30 { 20_000 } else { self.mix.write_bytes_max };
                Op::WriteOpen { handle, offset, content: self.content(most) }
            }
        }
    }

    fn fsync(&mut self, model: &Model, tree: &Tree) -> Op {
        let op = match self.rng.below(12) {
            0..=2 => {
                let path = self.file(tree);
                let offset = self.offset(model, &path);
                Op::Write { path, offset, content: self.content(20_000) }
            }
            3 => self.truncate(model, tree),
            4..=5 => self.allocate(model, tree),
            6 => [self.set_xattr(tree), self.remove_xattr(model, tree)][self.rng.below(2) as usize].clone(),
            7 => return self.nameless(tree),
            8..=9 => return self.journal(tree),
            _ => return Op::Fsync { path: self.file(tree), data_only: self.rng.chance(0.3) },
        };
        if let Op::Write { path, .. }
        | Op::Truncate { path, .. }
        | Op::Allocate { path, .. }
        | Op::SetXattr { path, .. }
        | Op::RemoveXattr { path, .. } = &op
        {
            self.burst.push(Op::Fsync { path: path.clone(), data_only: self.rng.chance(0.3) });
        }
        op
    }

    /// Returns a path that probably exists.
    fn old_path(&mut self, tree: &Tree) -> Bytes {
        match self.rng.below(20) {
            0 => self.new_path(tree),
            _ => self.pick(&tree.paths).clone(),
        }
    }

    /// Returns a path that may exist.
    fn new_path(&mut self, tree: &Tree) -> Bytes {
        let dir = match self.rng.below(30) {
            0 => self.pick(&tree.paths).clone(),
            1..=8 => "/".into(),
            _ => self.pick(&tree.dirs).clone(),
        };
        let deep = dir.0.iter().filter(|byte| **byte == b'/').count() >= DEPTH_MAX;
        let name = self.name();
        join(if deep { tree.root() } else { &dir }, &name)
    }

    /// Returns a path, usually of a regular file.
    fn file(&mut self, tree: &Tree) -> Bytes {
        match self.rng.below(20) {
            0 => self.pick(&tree.dirs).clone(),
            1 => {
                let dir = self.pick(&tree.dirs).clone();
                join(&dir, b"written")
            }
            _ if tree.files.is_empty() => "/first".into(),
            _ => self.pick(&tree.files).clone(),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        const FOLDING: [&str; 8] = ["name", "Name", "NAME", "nAmE", "grün", "GRÜN", "Straße", "STRASSE"];
        match self.rng.below(16) {
            0 => vec![b'l'; 255],
            1 => vec![b'm'; 1 + self.rng.below(255) as usize],
            2 if self.rng.chance(0.1) => vec![b'x'; 256],
            3 if self.mix.casefold => FOLDING[self.rng.below(8) as usize].into(),
            4 if self.mix.casefold => FOLDING[self.rng.below(4) as usize].into(),
            5 => format!("film{}.mp4", self.rng.below(4)).into_bytes(),
            _ => format!("n{}", self.rng.below(24)).into_bytes(),
        }
    }

    fn offset(&mut self, model: &Model, path: &Bytes) -> u64 {
        let id = model.find(&path.0).ok();
        self.offset_in(model, id)
    }

    /// Returns an offset in a file: near its end, near its data, or near a boundary of the format.
    fn offset_in(&mut self, model: &Model, id: Option<Id>) -> u64 {
        let rules = model.rules();
        let data = id.and_then(|id| model.inode(id).data());
        let size = data.map_or(0, |data| data.size);
        let near = |rng: &mut Rng, at: u64| match rng.below(5) {
            0 => at,
            1 => at.saturating_sub(1),
            2 => at + 1,
            _ => (at + rng.below(2 * rules.block_bytes)).saturating_sub(rules.block_bytes),
        };
        match self.rng.below(12) {
            0..=1 => 0,
            2..=3 => near(&mut self.rng, size),
            4..=5 => self.rng.below(size + 1),
            6 => near(&mut self.rng, 3488),
            7..=8 => self.rng.below(1 << 18),
            9 => {
                let edge = self.rng.below(300) * rules.block_bytes;
                near(&mut self.rng, edge)
            }
            _ if !self.mix.far => self.rng.below(1 << 20),
            _ => {
                // Ends of the inode's addresses, the direct nodes and each indirect node.
                let (own, direct, children) = match rules.block_bytes {
                    4096 => (923, 1018, 1018),
                    _ => (3995, 4090, 4090),
                };
                let own = own - [0, 9, 50, 59][self.rng.below(4) as usize];
                let edges = [
                    own,
                    own + direct,
                    own + 2 * direct,
                    own + 2 * direct + direct * children,
                    own + 2 * direct + 2 * direct * children,
                    rules.file_bytes_max / rules.block_bytes,
                ];
                let edge = edges[self.rng.below(edges.len() as u64) as usize];
                near(&mut self.rng, edge * rules.block_bytes)
            }
        }
    }

    fn content(&mut self, most: u64) -> Content {
        let length = self.length(most);
        self.content_of(length)
    }

    fn content_of(&mut self, length: u64) -> Content {
        match self.rng.below(4) {
            1 | 2 if self.mix.compress => Content::Fill { byte: self.rng.below(256) as u8, length },
            0 => Content::Fill { byte: self.rng.below(256) as u8, length },
            _ => Content::Noise { seed: self.rng.next_u64() >> 1, length },
        }
    }

    fn length(&mut self, most: u64) -> u64 {
        match self.rng.below(10) {
            0 => self.rng.below(10),
            1 => (4096 * (1 + self.rng.below(4))).min(most),
            2 => (3400 + self.rng.below(1400)).min(most),
            3 => self.rng.below(most + 1),
            _ => self.rng.below(most.min(12_000) + 1),
        }
    }

    fn xattr_name(&mut self) -> Bytes {
        match self.rng.below(8) {
            0 => "security.s".into(),
            1 => "trusted.overlay.opaque".into(),
            2 => format!("user.{}", "x".repeat(1 + self.rng.below(252) as usize)).into(),
            _ => format!("user.{}", self.rng.below(6)).into(),
        }
    }

    fn mode(&mut self) -> u32 {
        self.rng.below(0o10000) as u32
    }

    fn kind(&mut self) -> u32 {
        let kinds = [0o010_000, 0o020_000, 0o060_000, 0o140_000, 0o100_000, 0o100_000];
        kinds[self.rng.below(6) as usize] | self.mode()
    }

    fn id(&mut self) -> u32 {
        [0, 1000, 65_535, 65_536, u32::MAX - 1][self.rng.below(5) as usize]
    }

    fn pick<'t>(&mut self, paths: &'t [Bytes]) -> &'t Bytes {
        &paths[self.rng.below(paths.len() as u64) as usize]
    }
}

/// Returns true if a path exists and is neither a regular file nor a directory.
fn is_special(model: &Model, path: &Bytes) -> bool {
    let body = model.find(&path.0).map(|id| &model.inode(id).body);
    matches!(body, Ok(Body::Special(..) | Body::Symlink(_)))
}

/// All paths of a model.
#[derive(Debug, Default)]
struct Tree {
    paths: Vec<Bytes>,
    dirs: Vec<Bytes>,
    files: Vec<Bytes>,
}

impl Tree {
    fn of(model: &Model) -> Tree {
        let mut tree = Tree { paths: Vec::new(), dirs: Vec::new(), files: Vec::new() };
        let mut pending = vec![(Bytes::from("/"), ROOT)];
        while let Some((path, id)) = pending.pop() {
            match &model.inode(id).body {
                Body::Dir(dir) => {
                    pending.extend(dir.names.values().map(|(name, child)| (join(&path, name), *child)));
                    tree.dirs.push(path.clone());
                }
                Body::File(_) => tree.files.push(path.clone()),
                _ => {}
            }
            tree.paths.push(path);
        }
        // The root comes first and stays where it is, because few operations on it are wanted.
        tree
    }

    fn root(&self) -> &Bytes {
        &self.dirs[0]
    }
}

fn join(dir: &Bytes, name: &[u8]) -> Bytes {
    let slash: &[u8] = if dir.0.ends_with(b"/") { b"" } else { b"/" };
    Bytes([&dir.0, slash, name].concat())
}
