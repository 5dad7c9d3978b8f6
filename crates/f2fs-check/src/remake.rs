//! Inodes whose block is lost, made anew from the blocks that name them.
//!
//! The summary of a block of data names the inode or the node with its address, and the index there. Each node of
//! addresses names its inode and its place in the file. So the content of a file survives its inode, and so do the names in
//! directories. Its owner, times, permissions, attributes and exact size do not. The entries of an inline directory do not
//! either: an empty one takes its place, and its children enter it under the names that they carry.

use std::{collections::BTreeMap, sync::Arc};

use f2fs::{
    format::{
        BLOCKS_PER_SEGMENT, FileType, dir_hash,
        inode::{Compression, INLINE_XATTR_WORDS, InodeLayout, advise, inline},
        node::{NodeBlock, NodeFooter, XATTR_NODE_OFFSET},
        node_path::NodeKind,
        superblock::Features,
    },
    units::{BlockAddr, Ino, Nid},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Certainty, Finding, Fix, Loss,
    checker::{Checker, ODD_MAX},
    clusters::{Shown, shapes},
    forms::Form,
    inodes::ALGORITHM,
    kinds::SYMLINK_PERMISSIONS,
    layouts::{Fit, Holders, Layout},
    reader::parse_node,
    segments::{Content, Contents},
    table::fact,
};

/// Permissions of a file that is made anew.
const FILE_PERMISSIONS: u16 = 0o600;
/// Permissions of a directory that is made anew.
const DIRECTORY_PERMISSIONS: u16 = 0o700;
/// Permissions of the root directory, if it is made anew.
const ROOT_PERMISSIONS: u16 = 0o755;
/// Maximum number of blocks of all lost inodes; each takes about 20 bytes of memory. With more, the volume is not repaired.
const ADDRS_MAX: usize = 1 << 20;
/// Byte offset of the mode in an inode.
const MODE_AT: usize = 0;

/// Blocks of the smallest clusters.
const SMALLEST_CLUSTER: usize = 4;

/// The name of an inode that is invalid or lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Kind of the inode, according to the entry or to its content.
    pub kind: FileType,
    /// The directory; `None` if only the content tells the kind, or if the directory is lost, too.
    pub dir: Option<Ino>,
    /// The name, if it is not encrypted.
    pub name: Option<Box<[u8]>>,
    /// True if its directory is encrypted.
    pub is_in_encrypted: bool,
}

/// Inodes whose block is lost, with the findings: at most [`ODD_MAX`].
#[derive(Debug, Default)]
pub struct LostInodes(Vec<(Nid, Finding)>);

impl LostInodes {
    /// Adds an inode.
    ///
    /// # Errors
    /// The finding, if there are too many; a volume with so many findings of a kind is not repaired.
    pub fn add(&mut self, nid: Nid, finding: Finding) -> Result<(), Finding> {
        if self.0.len() >= ODD_MAX {
            return Err(finding);
        }
        self.0.push((nid, finding));
        Ok(())
    }
}

/// Blocks that name a lost inode.
#[derive(Debug, Default)]
pub struct Remains {
    /// Blocks of data by the index of their address in the inode; `None` if several name it.
    pub addrs: BTreeMap<u16, Option<BlockAddr>>,
    /// Further nodes with addresses or numbers of nodes.
    nodes: Vec<Nid>,
}

impl Remains {
    /// Returns true if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.addrs.is_empty() && self.nodes.is_empty()
    }

    /// The first block of data.
    pub fn first_block(&self) -> Option<BlockAddr> {
        self.addrs.get(&0).copied().flatten()
    }

    /// The first block of data, if nothing else is left.
    pub fn only_block(&self) -> Option<BlockAddr> {
        self.first_block().filter(|_| self.addrs.len() == 1 && self.nodes.is_empty())
    }
}

/// Returns true if a change makes a directory in place of a lost one.
pub fn makes_directory(fix: &Fix) -> bool {
    let Fix::Inode(_, bytes) = fix else { return false };
    let mode = bytes[MODE_AT..MODE_AT + 2].try_into().expect("two bytes");
    FileType::from_mode(u16::from_le_bytes(mode)) == Some(FileType::Directory)
}

impl Checker<'_> {
    /// Notes the layout of an inode with addresses, if it is a regular file.
    pub fn note_layout(&mut self, inode: &NodeBlock) {
        if inode.file_type() == FileType::Regular && inode.compression().is_none() {
            self.layouts.note(inode);
        }
    }

    /// Has the fields of invalid inodes restored, and makes lost inodes anew, or has their numbers freed if nothing is left of
    /// them. The segments in `old` blocks of the SIT tell nothing.
    pub fn remake_inodes(&mut self, old: &FxHashSet<u32>) {
        self.conclude_kinds();
        let nodes = self.table.iter().filter(|(_, entry)| self.table.has(*entry, fact::INVALID));
        let invalid: Vec<Ino> = nodes.map(|(nid, _)| Ino::from(nid)).collect();
        if invalid.is_empty() && self.lost_inodes.0.is_empty() {
            return;
        }
        let doubtful = self.invalid.keys().map(|ino| Nid::from(*ino));
        let nids: Vec<Nid> = self.lost_inodes.0.iter().map(|(nid, _)| *nid).chain(doubtful).collect();
        let mut remains = self.remains(&nids, old);
        self.name_by_remains(&remains);
        for ino in invalid {
            self.conclude_invalid(ino, remains.get(&ino.into()));
        }
        let LostInodes(lost) = std::mem::take(&mut self.lost_inodes);
        for (nid, finding) in lost {
            let ino = Ino::from(nid);
            let remains = remains.remove(&nid).unwrap_or_default();
            let form = self.form(ino, &remains);
            match self.remade(ino, &form, &remains) {
                Some((inode, fit)) => self.put_remade(finding, inode, fit, form),
                None => self.free_lost(nid, finding, &form),
            }
        }
        self.remove_noted_names();
    }

    /// Frees a lost inode that does not come back.
    fn free_lost(&mut self, nid: Nid, mut finding: Finding, form: &Form) {
        if let Form::Freed(freed) = form {
            let (known, loss) = freed.told();
            finding.known += known;
            loss.into_iter().for_each(|loss| self.lose(loss));
        }
        self.free_node(nid, finding);
    }

    fn put_remade(&mut self, mut finding: Finding, mut inode: NodeBlock, fit: Fit, form: Form) {
        let ino = inode.ino();
        for addr in inode.addrs(0..inode.layout().addrs()).filter(|addr| addr.is_real()) {
            self.segments.claim(addr, Content::Data);
        }
        let named = self.named.get(&ino).cloned();
        let repair = match form {
            Form::Ciphertext(name) => {
                finding.known +=
                    "; its content is encrypted, or looks so, and its encryption context is lost with it";
                inode.set_last_name(Ino(0), &name);
                inode.seal();
                if let Some(dir) = named.and_then(|named| named.dir) {
                    self.note_removal(dir, ino, 0);
                }
                self.lose(Loss::Context);
                let name = f2fs::printable::name(&name).into_owned();
                format!("keep its blocks, as they are stored, as \"{name}\" in lost+found")
            }
            _ if inode.has_inline(inline::DENTRY) => {
                if self.has_encryption() && !self.parents.plain.contains(&ino) {
                    finding.known += "; if it was encrypted, its encryption context is lost with it";
                }
                "make an empty directory in its place, for the inodes that name it as their parent".into()
            }
            Form::Plain(kind @ (FileType::Fifo | FileType::Socket)) => {
                format!("make a {} in its place, and clear its owner, times and attributes", kind.name())
            }
            _ => {
                "make an inode for the blocks that name it, and clear its owner, times and attributes".into()
            }
        };
        if fit == Fit::Doubtful {
            finding.known += "; files of the volume have inline xattrs of several sizes, and nothing tells that of this \
                              one: its content behind the inode's own blocks may be shifted";
        }
        self.report.add(finding.repaired_by(repair).with_certainty(Certainty::Unclear));
        self.fix(Fix::Inode(ino, inode.bytes().to_vec()));
        self.lose(Loss::Attributes);
        self.quotas.give_up();
    }

    /// The blocks of data of a lost inode, from its first nodes if there are more than `blocks_max`: many nodes can name one
    /// block.
    pub fn blocks_of(&mut self, remains: &Remains, blocks_max: u64) -> Vec<BlockAddr> {
        let mut blocks: Vec<BlockAddr> = remains.addrs.values().flatten().copied().collect();
        for nid in &remains.nodes {
            if blocks.len() as u64 >= blocks_max {
                break;
            }
            let addrs = self.direct_addrs(*nid).unwrap_or_default();
            blocks.extend(addrs.into_iter().filter(|addr| self.geometry.in_main(*addr)));
        }
        blocks
    }

    /// Number of blocks of the main area.
    pub fn volume_blocks(&self) -> u64 {
        u64::from(self.geometry.segments) * u64::from(BLOCKS_PER_SEGMENT)
    }

    /// The addresses in a node, if it is a direct one.
    fn direct_addrs(&mut self, nid: Nid) -> Option<Vec<BlockAddr>> {
        let (offset, bytes) = self.node_bytes(nid)?;
        let kind = NodeKind::of(self.geometry.block_size, offset);
        let words = bytes.chunks_exact(4).take(self.geometry.block_size.node_addrs());
        let words = words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
        matches!(kind, Some(NodeKind::Direct { .. })).then(|| words.map(BlockAddr).collect())
    }

    /// Collects what is left of lost inodes.
    fn remains(&mut self, lost: &[Nid], old: &FxHashSet<u32>) -> FxHashMap<Nid, Remains> {
        let mut remains: FxHashMap<Nid, Remains> = FxHashMap::default();
        remains.extend(lost.iter().map(|nid| (*nid, Remains::default())));
        let mut count = 0;
        for segment in self.segments.all() {
            if old.contains(&self.sit_block(segment)) || self.segments.content(segment) == Some(Content::Node)
            {
                continue;
            }
            for addr in self.segments.unused(segment) {
                let owned =
                    self.summaries.owner(&self.io, addr).filter(|owned| owned.content == Content::Data);
                let Some(owner) = owned.map(|owned| owned.owner) else { continue };
                let version = self.table.find(owner.nid).map(|entry| self.table.version(entry));
                let Some(remains) = remains.get_mut(&owner.nid).filter(|_| version == Some(owner.version))
                else {
                    continue;
                };
                if count == ADDRS_MAX {
                    // What is left out would be freed.
                    self.report.drop_fix();
                    continue;
                }
                count += 1;
                remains.addrs.entry(owner.offset).and_modify(|other| *other = None).or_insert(Some(addr));
            }
        }
        for (nid, entry) in self.table.iter() {
            let owner = Nid::from(self.table.ino(entry));
            // The next check attaches the xattr node.
            let is_xattrs = self.table.own_offset(entry) == XATTR_NODE_OFFSET;
            if owner != nid && !is_xattrs && !self.table.has(entry, fact::BROKEN) {
                if let Some(remains) = remains.get_mut(&owner) {
                    remains.nodes.push(nid);
                }
            }
        }
        remains
    }

    /// Makes an inode of what is left of it. `None` if that is nothing, or if its layout cannot be told.
    fn remade(&mut self, ino: Ino, form: &Form, remains: &Remains) -> Option<(NodeBlock, Fit)> {
        let kind = match form {
            Form::Plain(kind) => *kind,
            Form::Symlink(_) => FileType::Symlink,
            Form::Ciphertext(_) => FileType::Regular,
            Form::Freed(_) => return None,
        };
        let is_root = ino == self.superblock.root_ino;
        let permissions = match kind {
            FileType::Directory if is_root => ROOT_PERMISSIONS,
            FileType::Directory => DIRECTORY_PERMISSIONS,
            FileType::Symlink => SYMLINK_PERMISSIONS,
            _ => FILE_PERMISSIONS,
        };
        let mode = kind.mode_bits() | permissions;
        let needs_blocks = match kind {
            FileType::Fifo | FileType::Socket => false,
            // Linux mounts no volume whose root directory is inline.
            FileType::Directory => is_root || !remains.is_empty(),
            _ => true,
        };
        if !needs_blocks {
            return Some((self.without_blocks(ino, mode, kind)?, Fit::Agrees));
        }
        if remains.is_empty() {
            return None;
        }
        let used = remains.addrs.keys().last().map_or(0, |index| index.saturating_add(1));
        let holders = match remains.nodes.iter().any(|nid| self.direct_addrs(*nid).is_some()) {
            true => Holders::FurtherNodes,
            false => Holders::Inode,
        };
        let (layout, fit) = self.layouts.choose(used, holders, self.format.features);
        let mut inode = self.empty_inode(ino, mode, 0, layout)?;
        if usize::from(used) > inode.layout().addrs() {
            return None;
        }
        for (index, addr) in &remains.addrs {
            inode.set_addr(usize::from(*index), addr.unwrap_or(BlockAddr::NULL));
        }
        if kind == FileType::Regular && self.format.features.has(Features::COMPRESSION) {
            self.compress(&mut inode, remains);
        }
        let layout = inode.layout();
        if inode.compression().is_none() && self.has_marks(remains) {
            return None;
        }
        for (place, nid) in self.children(remains) {
            inode.set_child(place, nid);
        }
        let end = self.end_of(remains, &layout);
        let head = inode.head_mut();
        head.size.set(match form {
            Form::Symlink(bytes) => *bytes,
            _ => end << self.geometry.block_size.log(),
        });
        head.advise |= advise::LOST_PINO;
        if kind == FileType::Directory {
            // A depth that is too small would hide names.
            let level = dir_hash::level_of(end.saturating_sub(1), head.dir_level);
            head.current_depth.set(level.map_or(dir_hash::DEPTH_MAX, |(level, _)| level + 1));
        }
        inode.seal();
        Some((inode, fit))
    }

    /// Returns true if nodes of a lost inode have marks of compressed clusters.
    fn has_marks(&mut self, remains: &Remains) -> bool {
        remains
            .nodes
            .iter()
            .any(|nid| self.direct_addrs(*nid).is_some_and(|addrs| addrs.contains(&BlockAddr::COMPRESS)))
    }

    /// The nodes that a lost inode named itself, with their places in it.
    pub fn children(&mut self, remains: &Remains) -> Vec<(usize, Nid)> {
        let n = self.geometry.block_size.node_addrs() as u32;
        let places = [1, 2, 3, 4 + n, 5 + 2 * n];
        let place = |nid: &Nid| {
            let (offset, _) = self.node_bytes(*nid)?;
            Some((places.iter().position(|own| *own == offset)?, *nid))
        };
        remains.nodes.iter().filter_map(place).collect()
    }

    /// Number of blocks up to the last one that is left of a lost inode with this layout, or to the end of its cluster.
    pub fn end_of(&mut self, remains: &Remains, layout: &InodeLayout) -> u64 {
        let mut end = remains.addrs.keys().last().map_or(0, |index| u64::from(*index) + 1);
        for nid in &remains.nodes {
            let Some((offset, bytes)) = self.node_bytes(*nid) else { continue };
            let Some(kind @ NodeKind::Direct { .. }) = NodeKind::of(self.geometry.block_size, offset) else {
                continue;
            };
            let words = bytes.chunks_exact(4).take(layout.direct_addrs());
            let addrs = words.map(|word| BlockAddr(u32::from_le_bytes(word.try_into().expect("four bytes"))));
            let last = addrs.enumerate().rfind(|(_, addr)| addr.is_real());
            let blocks = kind.first_block(layout).zip(last).map(|(first, (last, _))| first + last as u64 + 1);
            end = end.max(blocks.unwrap_or(0));
        }
        end.next_multiple_of(layout.cluster_blocks() as u64)
    }

    /// The block of a node, with the offset in its footer.
    fn node_bytes(&mut self, nid: Nid) -> Option<(u32, Arc<[u8]>)> {
        let addr = self.table.find(nid).map(|entry| self.table.addr(entry))?;
        let bytes = self.cache.block(&self.io, addr).ok()?;
        Some((NodeFooter::of(&bytes).offset, bytes))
    }

    /// Sets the compression of a file as its clusters show it. The marks of those in the inode are lost with it; those in
    /// further nodes are there.
    fn compress(&mut self, inode: &mut NodeBlock, remains: &Remains) {
        if inode.layout().addrs_at() <= ALGORITHM + 1 {
            return;
        }
        let addrs: Vec<BlockAddr> = inode.addrs(0..inode.layout().addrs()).collect();
        let unmarked = self.trials.unmarked(&self.io, &addrs);
        let settings = unmarked.as_ref().map(|unmarked| unmarked.settings);
        let Some(settings) = settings.or_else(|| self.compression_of_nodes(remains)) else {
            // They come back as they are stored, with holes.
            shapes(&addrs, SMALLEST_CLUSTER).for_each(|_| self.lose(Loss::Cluster));
            return;
        };
        inode.set_compression(Some(settings));
        let layout = inode.layout();
        if addrs[layout.addrs()..].iter().any(|addr| addr.is_real()) {
            // Compressed files use no address there.
            inode.set_compression(None);
            return;
        }
        let blocks = 1usize << settings.log_cluster_blocks;
        let marks = unmarked.map_or(Vec::new(), |unmarked| unmarked.marks);
        let undecodable = shapes(&addrs, blocks).filter(|(at, _)| !marks.contains(at));
        undecodable.for_each(|_| self.lose(Loss::Cluster));
        for at in marks.into_iter().filter(|at| at + blocks <= layout.addrs()) {
            inode.set_addr(at, BlockAddr::COMPRESS);
            // The blocks that compression saves are reserved.
            let saved = (at + 1..at + blocks).skip_while(|at| addrs[*at].is_real());
            saved.for_each(|at| inode.set_addr(at, BlockAddr::NEW));
        }
    }

    /// The compression that the marks in further nodes of a file show.
    fn compression_of_nodes(&mut self, remains: &Remains) -> Option<Compression> {
        for nid in &remains.nodes {
            let addrs = self.direct_addrs(*nid).unwrap_or_default();
            if let Shown::Settings(algorithm, log) = self.trials.shown(&self.io, &addrs, None) {
                return Some(Compression { algorithm, log_cluster_blocks: log, ..Compression::default() });
            }
        }
        None
    }

    /// Makes an inode without blocks. The next check enters the dots of a directory.
    fn without_blocks(&self, ino: Ino, mode: u16, kind: FileType) -> Option<NodeBlock> {
        let content = if kind == FileType::Directory { inline::DENTRY } else { 0 };
        let mut inode = self.empty_inode(ino, mode, content, self.layouts.usual())?;
        let bytes = if kind == FileType::Directory { inode.layout().inline_bytes() as u64 } else { 0 };
        let head = inode.head_mut();
        head.size.set(bytes);
        head.advise |= advise::LOST_PINO;
        inode.seal();
        Some(inode)
    }

    /// Makes an inode without content, with this layout and these marks of inline content.
    fn empty_inode(&self, ino: Ino, mode: u16, content: u8, layout: Option<Layout>) -> Option<NodeBlock> {
        let features = self.format.features;
        if features.has(Features::FLEXIBLE_INLINE_XATTR) && !features.has(Features::EXTRA_ATTR) {
            // No inode has a layout under such a superblock.
            return None;
        }
        let inline = layout.map_or(inline::XATTR, |layout| layout.inline) | content;
        let inode = NodeBlock::new_inode(self.format, ino, mode, inline, INLINE_XATTR_WORDS as u16);
        let mut bytes = inode.bytes().to_vec();
        if let Some(layout) = layout.filter(|_| features.has(Features::EXTRA_ATTR)) {
            layout.put(&mut bytes);
        }
        parse_node(self.format, &bytes, ino.into(), BlockAddr::NULL).0.ok()
    }
}

#[cfg(test)]
mod tests {
    use f2fs::Place;

    use super::*;
    use crate::Kind;

    #[test]
    fn the_list_of_lost_inodes_is_bounded() {
        let mut lost = LostInodes::default();
        let finding = || Finding::new(Kind::NatAddress, Place::Nat(Nid(5)), "");
        for nid in 0..ODD_MAX as u32 {
            lost.add(Nid(nid), finding()).expect("there is space");
        }
        assert_eq!(lost.add(Nid(9), finding()), Err(finding()));
    }
}
