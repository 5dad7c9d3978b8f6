//! The space that a tree takes on a volume, counted before anything is written.
//!
//! The count follows the engine's rules block by block: which data lies inline, which nodes a file's map
//! needs, and into which bucket of a directory each name goes. For a new volume it is exact.

use std::ops::Range;

use f2fs::{
    Error, Result, engine,
    format::{
        FileType,
        acl::Acl,
        block_size::NODE_FOOTER_BYTES,
        dentry::{Dentries, slots_for},
        dir_hash,
        hash::name_hash,
        inode::{INLINE_XATTR_WORDS, InodeLayout, inline},
        node::{NodeBlock, NodeFormat},
        node_path::NodePath,
        superblock::{Features, Superblock},
        xattr::{self, index},
    },
    units::Ino,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Entry, Kind, Metadata,
    directories::{Directories, DirectoryId},
    path::{components, split},
};

/// Space that a tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Names, without the root.
    pub entries: u64,
    /// Bytes of data in files.
    pub bytes: u64,
    /// Blocks: nodes and data.
    pub blocks: u64,
    /// Nodes: inodes and the nodes below them.
    pub nodes: u64,
    /// Distinct owners and groups.
    pub ids: u64,
}

/// Capacity of a volume's inodes and directory blocks.
#[derive(Debug, Clone)]
pub(crate) struct Rooms {
    layout: InodeLayout,
    block_bytes: u64,
    /// Bytes for data in the inode; 0 if the volume does not store data inline.
    inline_data: u64,
    /// The same for files: 0 if new files may become compressed, because compressed files are never inline.
    inline_file_data: u64,
    /// Slots for names in the inode; 0 if the volume does not store names inline.
    inline_slots: usize,
    block_slots: usize,
    /// Bytes for attributes, without and with the xattr node.
    inline_xattrs: usize,
    all_xattrs: usize,
}

impl Rooms {
    /// Returns the capacity of inodes on a volume opened with these options.
    pub fn of(superblock: &Superblock, options: &engine::Options) -> Rooms {
        let (xattr_bit, words) = match options.inline_xattr {
            true => (inline::XATTR, INLINE_XATTR_WORDS as u16),
            false => (0, 0),
        };
        let mode = FileType::Regular.mode_bits();
        let format = NodeFormat::of(superblock);
        let inode = NodeBlock::new_inode(format, Ino(3), mode, inline::DATA | xattr_bit, words);
        let directory = NodeBlock::new_inode(format, Ino(3), mode, inline::DENTRY | xattr_bit, words);
        let block_bytes = superblock.block_size.bytes();
        let at = f2fs::Place::Volume;
        let slots = Dentries::new(directory.inline_area(), at).slots();
        let inline_xattrs = inode.inline_xattrs().len();
        let inline_data = if options.inline_data { inode.layout().inline_bytes() as u64 } else { 0 };
        let compresses =
            superblock.features.has(Features::COMPRESSION) && !options.compressed_extensions.is_empty();
        Rooms {
            layout: inode.layout(),
            block_bytes: block_bytes as u64,
            inline_data,
            inline_file_data: if compresses { 0 } else { inline_data },
            inline_slots: if options.inline_dentry { slots } else { 0 },
            block_slots: superblock.block_size.dentries(),
            inline_xattrs,
            all_xattrs: inline_xattrs + block_bytes - NODE_FOOTER_BYTES,
        }
    }

    /// Returns the number of xattr nodes (0 or 1) that an inode with this metadata needs. Fails if the
    /// attributes do not fit.
    pub fn xattr_nodes(&self, meta: &Metadata) -> Result<u64> {
        let mut entries = Vec::with_capacity(meta.xattrs.len());
        for xattr in &meta.xattrs {
            let (index, name) = xattr::split_name(&xattr.name)
                .ok_or_else(|| Error::Unsupported("extended attributes of this name space".into()))?;
            let value = match index {
                index::ACL_ACCESS | index::ACL_DEFAULT => Acl::from_system(&xattr.value)?.to_disk(),
                _ => xattr.value.clone(),
            };
            if name.len() > usize::from(u8::MAX) || value.len() > self.all_xattrs {
                return Err(too_large(name.len() + value.len(), self.all_xattrs));
            }
            entries.push((index, name, value));
        }
        let stream = xattr::build(entries.iter().map(|(index, name, value)| xattr::Entry {
            index: *index,
            name,
            value,
        }));
        match stream.len() {
            length if length > self.all_xattrs => Err(too_large(length, self.all_xattrs)),
            length => Ok(u64::from(length > self.inline_xattrs)),
        }
    }

    /// Returns true if a file of this size lies in its inode.
    pub fn is_inline(&self, size: u64) -> bool {
        size <= self.inline_data
    }

    /// Counts the nodes besides the inode that map these blocks of a file. The blocks must ascend.
    fn map_nodes(&self, blocks: impl Iterator<Item = Range<u64>>) -> Result<u64> {
        let (in_inode, direct) = (self.layout.addrs() as u64, self.layout.direct_addrs() as u64);
        let (mut last, mut nodes) = ([0u32; 3], 0);
        for range in blocks {
            let mut at = range.start.max(in_inode);
            while at < range.end {
                let path = NodePath::of(&self.layout, at).ok_or(Error::FileTooLarge)?;
                for (step, last) in path.steps().iter().zip(&mut last) {
                    // Offsets of nodes are nonzero and ascend with the blocks that they map.
                    nodes += u64::from(step.offset != *last);
                    *last = step.offset;
                }
                at += direct - (at - in_inode) % direct;
            }
        }
        Ok(nodes)
    }
}

fn too_large(bytes: usize, room: usize) -> Error {
    Error::Invalid(format!("extended attributes of {bytes} bytes; an inode has space for {room}").into())
}

/// Counts the space of a tree, entry by entry.
pub struct NeedCounter {
    rooms: Rooms,
    directories: Directories<Directory>,
    owners: FxHashSet<u32>,
    groups: FxHashSet<u32>,
    total: Need,
}

impl NeedCounter {
    /// Makes a counter for a volume with this superblock, opened with these options. It includes the root
    /// directory's inode from the start.
    pub fn new(superblock: &Superblock, options: &engine::Options) -> NeedCounter {
        let rooms = Rooms::of(superblock, options);
        // The root directory never lies in its inode.
        let root = Directory::in_blocks(&rooms);
        let directories = Directories::new(root);
        let total = Need { blocks: 1, nodes: 1, ..Need::default() };
        NeedCounter { rooms, directories, owners: FxHashSet::default(), groups: FxHashSet::default(), total }
    }

    /// Counts an entry and any parent directories that had no entry. A second entry of the same path is
    /// counted again, except for directories.
    pub fn add(&mut self, entry: &Entry) -> Result<()> {
        self.owners.insert(entry.meta.uid);
        self.groups.insert(entry.meta.gid);
        if matches!(entry.kind, Kind::Directory) && self.directories.find(&entry.path).is_some() {
            return self.add_nodes(self.rooms.xattr_nodes(&entry.meta)?);
        }
        let (parent, name) = split(&entry.path);
        let parent = self.parent(parent)?;
        self.enter(parent, name);
        if let Kind::HardLink { .. } = entry.kind {
            return Ok(());
        }
        self.add_nodes(1 + self.rooms.xattr_nodes(&entry.meta)?)?;
        match &entry.kind {
            Kind::Directory => drop(self.directories.insert(parent, name, Directory::new(&self.rooms))?),
            Kind::Symlink { target } => {
                let inside = self.rooms.is_inline(target.len() as u64);
                self.total.blocks +=
                    if inside { 0 } else { (target.len() as u64).div_ceil(self.rooms.block_bytes) };
            }
            Kind::File { size, data } => self.add_file(*size, data.as_deref())?,
            _ => {}
        }
        Ok(())
    }

    /// Returns the space of all entries added so far.
    pub fn need(&self) -> Result<Need> {
        let mut need = self.total;
        need.ids = (self.owners.len() + self.groups.len()) as u64;
        for directory in self.directories.values() {
            let (blocks, nodes) = directory.blocks(&self.rooms)?;
            need.blocks += blocks + nodes;
            need.nodes += nodes;
        }
        Ok(need)
    }

    fn add_nodes(&mut self, nodes: u64) -> Result<()> {
        self.total.nodes += nodes;
        self.total.blocks += nodes;
        Ok(())
    }

    fn add_file(&mut self, size: u64, data: Option<&[Range<u64>]>) -> Result<()> {
        let whole = [Range { start: 0, end: size }];
        let data = data.unwrap_or(&whole);
        self.total.bytes += data.iter().map(|range| range.end - range.start).sum::<u64>();
        if size <= self.rooms.inline_file_data {
            return Ok(());
        }
        let bytes = self.rooms.block_bytes;
        let mut end = 0;
        let blocks: Vec<Range<u64>> = data
            .iter()
            .map(|range| {
                // Ranges may share a block at their ends.
                let blocks = (range.start / bytes).max(end)..range.end.div_ceil(bytes);
                end = blocks.end;
                blocks
            })
            .filter(|blocks| !blocks.is_empty())
            .collect();
        self.total.blocks += blocks.iter().map(|range| range.end - range.start).sum::<u64>();
        let nodes = self.rooms.map_nodes(blocks.into_iter())?;
        self.add_nodes(nodes)
    }

    /// Returns the directory at a path, and counts its components that had no entry.
    fn parent(&mut self, path: &[u8]) -> Result<DirectoryId> {
        let mut at = DirectoryId::ROOT;
        for name in components(path) {
            at = match self.directories.child(at, name) {
                Some(child) => child,
                None => {
                    self.enter(at, name);
                    self.add_nodes(1)?;
                    self.directories.insert(at, name, Directory::new(&self.rooms))?
                }
            };
        }
        Ok(at)
    }

    fn enter(&mut self, directory: DirectoryId, name: &[u8]) {
        self.total.entries += 1;
        let directory = self.directories.get_mut(directory);
        directory.enter(&self.rooms, name_hash(name), slots_for(name.len()));
    }
}

/// The slots of one directory.
enum Directory {
    Inline(Slots),
    /// Slots by block number.
    Hashed(FxHashMap<u64, Slots>),
}

impl Directory {
    fn new(rooms: &Rooms) -> Directory {
        match rooms.inline_slots {
            0 => Directory::in_blocks(rooms),
            slots => Directory::Inline(Slots::with_dots(slots)),
        }
    }

    fn in_blocks(rooms: &Rooms) -> Directory {
        Directory::Hashed(FxHashMap::from_iter([(0, Slots::with_dots(rooms.block_slots))]))
    }

    fn enter(&mut self, rooms: &Rooms, hash: u32, count: usize) {
        if let Directory::Inline(slots) = self {
            if slots.take(count) {
                return;
            }
            // The names move to the first block and keep their slots.
            let mut first = std::mem::replace(slots, Slots::new(0));
            first.grow(rooms.block_slots);
            *self = Directory::Hashed(FxHashMap::from_iter([(0, first)]));
        }
        let Directory::Hashed(blocks) = self else { unreachable!("it has just left the inode") };
        for level in 0..dir_hash::DEPTH_MAX {
            for block in dir_hash::bucket(level, 0, hash) {
                let slots = blocks.entry(block).or_insert_with(|| Slots::new(rooms.block_slots));
                if slots.take(count) {
                    return;
                }
            }
        }
    }

    /// Returns the number of data blocks and of nodes that map them.
    fn blocks(&self, rooms: &Rooms) -> Result<(u64, u64)> {
        let Directory::Hashed(blocks) = self else { return Ok((0, 0)) };
        let mut numbers: Vec<u64> = blocks.keys().copied().collect();
        numbers.sort_unstable();
        let nodes = rooms.map_nodes(numbers.iter().map(|number| *number..number + 1))?;
        Ok((numbers.len() as u64, nodes))
    }
}

/// Used and free slots of a directory's block.
struct Slots {
    words: Box<[u64]>,
    count: usize,
    /// No run of this many free slots exists.
    not_free: usize,
}

impl Slots {
    fn new(count: usize) -> Slots {
        Slots { words: vec![0; count.div_ceil(64)].into(), count, not_free: count + 1 }
    }

    fn with_dots(count: usize) -> Slots {
        let mut slots = Slots::new(count);
        slots.take(1);
        slots.take(1);
        slots
    }

    fn grow(&mut self, count: usize) {
        let mut words = vec![0; count.div_ceil(64)];
        words[..self.words.len()].copy_from_slice(&self.words);
        *self = Slots { words: words.into(), count, not_free: count + 1 };
    }

    /// Takes the first `wanted` consecutive free slots. Returns `false` if there are none.
    fn take(&mut self, wanted: usize) -> bool {
        if wanted >= self.not_free {
            return false;
        }
        let mut run = 0;
        for slot in 0..self.count {
            run = if self.words[slot / 64] >> (slot % 64) & 1 == 1 { 0 } else { run + 1 };
            if run == wanted {
                for slot in slot + 1 - wanted..=slot {
                    self.words[slot / 64] |= 1 << (slot % 64);
                }
                return true;
            }
        }
        self.not_free = wanted;
        false
    }
}
