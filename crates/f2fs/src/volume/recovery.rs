//! Roll-forward recovery of fsynced files when a volume is opened, and removal of orphan inodes.
//!
//! The nodes written after the last checkpoint form a chain. It starts at the position of the warm node log;
//! each node contains the address of the next one, and all carry the version of the checkpoint. Each file
//! with an fsync mark in the chain is recovered up to its last marked node. (Linux,
//! `f2fs_recover_fsync_data`.)
//!
//! *Invariants*: until the checkpoint that ends recovery is durable, neither the chain nor a block that it
//! refers to is overwritten, so a power cut during recovery only leads to another recovery. These blocks are
//! protected in the SIT, like the fsynced blocks of the current session. The chain is finite: a walk stops
//! when it meets an address again.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use block::Overlay;
use rustc_hash::FxHashSet;

use super::{Access, Io, Volume, checkpoint::Reason, map_write::Slot};
use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT, FileType, bits,
        block_size::NODE_FOOTER_BYTES,
        checkpoint::Flags,
        hash::name_hash,
        inode::{advise, flag, inline},
        node::{NodeBlock, NodeFooter, XATTR_NODE_OFFSET},
        node_path::NodeKind,
        sit::{SegmentType, ValidMap},
        summary::Owner,
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};

/// Size in bytes of the hash that follows the name in an inode if the directory is encrypted and casefolded.
const HASH_BYTES: usize = 4;

/// The nodes that were written after the last checkpoint.
#[derive(Default)]
struct Chain {
    /// Addresses of the nodes, in the order in which they were written.
    addrs: Vec<BlockAddr>,
    /// The files to recover.
    files: BTreeMap<Ino, ChainFile>,
    /// Blocks that must not be overwritten, by segment: the chain, the block after its end, and the blocks
    /// that it refers to.
    needed: BTreeMap<SegNo, Needed>,
}

/// The blocks of a segment that recovery needs.
struct Needed {
    map: ValidMap,
    /// True if nodes of the chain are among them.
    has_nodes: bool,
}

impl Chain {
    fn need(&mut self, (segment, offset): (SegNo, u16), is_node: bool) {
        let needed = self.needed.entry(segment).or_insert(Needed { map: [0; 64], has_nodes: false });
        bits::set_msb(&mut needed.map, usize::from(offset), true);
        needed.has_nodes |= is_node;
    }
}

/// A file with a marked node in the chain; the numbers are indexes into the chain.
#[derive(Default, Clone, Copy)]
struct ChainFile {
    /// The last marked node.
    last: usize,
    /// The first marked node, an inode with the dentry mark, if the file is not in the checkpoint.
    birth: Option<usize>,
    /// The last inode with the dentry mark.
    name: Option<usize>,
}

impl Volume {
    /// Returns true if the block at the start of the chain is a node written after the checkpoint, by its
    /// footer.
    pub(super) fn has_chain(&self) -> Result<bool> {
        let (addr, size) = (self.chain_start(), self.geometry.block_size.bytes());
        if !self.geometry.in_main(addr) {
            return Ok(false);
        }
        let footer = self.io.read_bytes(addr, Place::Block(addr), size - NODE_FOOTER_BYTES..size)?;
        Ok(self.checkpoint.is_written_after(NodeFooter::of(&footer).cp_ver))
    }

    /// Recovers fsynced files and removes orphans. It then writes a checkpoint, unless the volume was
    /// unmounted cleanly and there is nothing to do. The new version is needed because later nodes of the old
    /// version may exist even if the first one was lost, and the chain of this session must not run into
    /// them.
    ///
    /// # Errors
    /// If there are fsynced changes to recover but roll-forward is disabled (Linux refuses as well): new
    /// nodes would mix with the old chain.
    pub(super) fn recover(&mut self) -> Result<()> {
        let has_chain = self.has_chain()?;
        if has_chain && !self.options.roll_forward {
            let what = "the volume has fsyncs after its last checkpoint; without roll-forward it can be opened \
                        only for reading";
            return Err(Error::Invalid(what.into()));
        }
        let chain = self.wanted_chain(has_chain)?;
        let is_clean = self.checkpoint.flags.has(Flags::UMOUNT) && self.orphans.is_empty() && !has_chain;
        if chain.addrs.is_empty() && !is_clean {
            self.start()?;
            self.write_checkpoint(Reason::Sync)?;
        }
        self.take_over(&chain)
    }

    fn remove_orphan(&mut self, ino: Ino) -> Result<()> {
        self.inode_mut(ino)?.head_mut().links.set(0);
        self.evict(ino)
    }

    /// Recovers in memory only, without writing to the device.
    pub(super) fn recover_in_memory(&mut self) -> Result<()> {
        let chain = self.wanted_chain(self.has_chain()?)?;
        let reason = std::mem::replace(&mut self.access, Access::ReadWrite);
        let below = self.io.device().clone();
        self.io = Arc::new(Io::new(Arc::new(Overlay::new(below)), self.geometry.block_size));
        self.take_over(&chain)?;
        self.access = reason;
        Ok(())
    }

    fn wanted_chain(&self, has_chain: bool) -> Result<Chain> {
        match self.options.roll_forward && has_chain {
            true => self.read_chain(),
            false => Ok(Chain::default()),
        }
    }

    /// Recovers a chain, removes orphans, and writes a checkpoint if there was anything to do.
    fn take_over(&mut self, chain: &Chain) -> Result<()> {
        if chain.addrs.is_empty() && self.orphans.is_empty() {
            return Ok(());
        }
        self.start()?;
        self.changed = true;
        self.recovering = Some(FxHashSet::default());
        if !chain.addrs.is_empty() {
            let mut fresh = FxHashSet::default();
            for (segment, Needed { map, has_nodes }) in &chain.needed {
                let kind = if *has_nodes { SegmentType::WarmNode } else { SegmentType::WarmData };
                if self.sit.segment(&self.io, *segment)?.is_free() {
                    fresh.insert(*segment);
                }
                self.sit.protect(&self.io, *segment, map, kind)?;
            }
            self.recovering = Some(fresh);
            for kind in SegmentType::ALL {
                match self.open_segment(kind, false) {
                    // No free segment is left: continue in the holes that the chain leaves in the log's
                    // segment.
                    Err(Error::NoSpace { .. }) => self.fill_holes(kind)?,
                    result => result?,
                }
            }
        }
        for ino in self.orphans.clone() {
            let result = self.remove_orphan(ino);
            match self.io.noted(result) {
                Ok(()) => {}
                // It stays in the orphan list and affects nothing else.
                Err(error) if self.stays_in_place(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.recover_files(chain)?;
        self.write_checkpoint(Reason::Sync)?;
        self.recovering = None;
        Ok(())
    }

    /// Lets a log continue in the holes of its current segment (SSR).
    fn fill_holes(&mut self, kind: SegmentType) -> Result<()> {
        let log = self.logs.get(kind);
        let hole = self.sit.segment(&self.io, log.segment)?.next_hole(log.offset);
        let log = self.logs.get_mut(kind);
        (log.fills_holes, log.offset) = (true, hole.unwrap_or(BLOCKS_PER_SEGMENT as u16));
        Ok(())
    }

    fn chain_start(&self) -> BlockAddr {
        let log = self.checkpoint.logs[SegmentType::WarmNode.index()];
        self.geometry.block(log.segment, log.offset)
    }

    /// The chain's node at an address, or `None` at the end of the chain: another block, or a node that was
    /// torn by a power cut, so that its fsync never returned.
    fn chain_node(&self, addr: BlockAddr) -> Result<Option<NodeBlock>> {
        if !self.geometry.in_main(addr) {
            return Ok(None);
        }
        let bytes = self.io.read_block(addr, Place::Block(addr))?;
        let footer = NodeFooter::of(&bytes);
        if !self.checkpoint.is_written_after(footer.cp_ver) {
            return Ok(None);
        }
        Ok(NodeBlock::check(self.format, bytes, footer.nid, footer.ino, addr).ok())
    }

    fn read_chain(&self) -> Result<Chain> {
        let mut chain = Chain::default();
        let mut seen = FxHashSet::default();
        let mut addr = self.chain_start();
        while seen.insert(addr) {
            let Some(node) = self.chain_node(addr)? else { break };
            let footer = node.footer();
            chain.need(self.geometry.position(addr), true);
            let holds_addrs = match NodeKind::of(self.geometry.block_size, footer.offset) {
                Some(NodeKind::Inode) => has_map(&node),
                Some(NodeKind::Direct { .. }) => true,
                _ => false,
            };
            if holds_addrs {
                let named = node.addrs(0..node.addr_count()).filter(|addr| self.geometry.in_main(*addr));
                named.for_each(|addr| chain.need(self.geometry.position(addr), false));
            }
            self.note_mark(&mut chain, &node, footer)?;
            chain.addrs.push(addr);
            addr = footer.next_addr;
        }
        if self.geometry.in_main(addr) {
            // A node at this address would be taken for a part of the chain.
            chain.need(self.geometry.position(addr), true);
        }
        Ok(chain)
    }

    /// Records a marked node before it is added to `chain`.
    fn note_mark(&self, chain: &mut Chain, node: &NodeBlock, footer: NodeFooter) -> Result<()> {
        if !footer.fsync {
            return Ok(());
        }
        let place = chain.addrs.len();
        let names = footer.dentry && node.is_inode();
        let file = match chain.files.entry(footer.ino) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(vacant) => {
                let in_range = footer.ino.0 >= self.superblock.root_ino.0
                    && Nid::from(footer.ino) < self.geometry.nids_end();
                let exists = in_range
                    && !self.nat.get(&self.io, footer.ino.into())?.is_free()
                    && !self.orphans.contains(&footer.ino);
                if !in_range || !(exists || names) {
                    return Ok(());
                }
                let birth = (!exists).then_some(place);
                vacant.insert(ChainFile { birth, ..ChainFile::default() })
            }
        };
        file.last = place;
        if names {
            file.name = Some(place);
        }
        Ok(())
    }

    /// Recovers the files of the chain.
    fn recover_files(&mut self, chain: &Chain) -> Result<()> {
        let node_at = |volume: &Volume, place: usize| -> Result<NodeBlock> {
            let addr = chain.addrs[place];
            let ended = || Error::corrupt(Place::Block(addr), "a node changed while it was recovered");
            volume.chain_node(addr)?.ok_or_else(ended)
        };
        for (ino, file) in &chain.files {
            if let Some(place) = file.birth {
                self.recover_birth(*ino, &node_at(self, place)?)?;
            }
        }
        for place in 0..chain.addrs.len() {
            let node = node_at(self, place)?;
            let ino = node.ino();
            let Some(file) = chain.files.get(&ino).filter(|file| place <= file.last) else { continue };
            if self.nat.get(&self.io, ino.into())?.is_free() {
                // A later file of the same name has replaced it.
                continue;
            }
            if node.is_inode() {
                self.recover_attributes(ino, &node)?;
                if file.name == Some(place) {
                    self.recover_name(ino, &node)?;
                }
            }
            self.recover_content(ino, &node)?;
            if self.nodes.dirty_count() > self.most_pages() {
                self.write_nodes()?;
            }
        }
        Ok(())
    }

    /// Creates a file that is not in the checkpoint, without content and without a name.
    fn recover_birth(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        let mut node = from.clone();
        let has_map = has_map(&node);
        clear_content(&mut node, has_map);
        let head = node.head_mut();
        head.size.set(0);
        head.blocks.set(1);
        head.links.set(1);
        head.xattr_nid.set(0);
        node.inline_xattrs_mut().fill(0);
        self.add_node(node)?;
        self.inode_mut(ino)?;
        Ok(())
    }

    /// Recovers the attributes of an inode (Linux, `recover_inode`).
    fn recover_attributes(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        let source = from.head().clone();
        let project = from.project();
        let inode = self.inode_mut(ino)?;
        if inode.head().mode.get() & !0o7777 != source.mode.get() & !0o7777 {
            return Err(Error::corrupt(Place::Inode(ino), "a later copy of the inode has another file type"));
        }
        let kept = inline::PIN;
        let head = inode.head_mut();
        head.mode = source.mode;
        head.uid = source.uid;
        head.gid = source.gid;
        head.size = source.size;
        head.atime = source.atime;
        head.mtime = source.mtime;
        head.ctime = source.ctime;
        head.atime_nsec = source.atime_nsec;
        head.mtime_nsec = source.mtime_nsec;
        head.ctime_nsec = source.ctime_nsec;
        head.advise = source.advise;
        head.flags = source.flags;
        head.pino = source.pino;
        head.namelen = source.namelen;
        head.name = source.name;
        head.inline = head.inline & !kept | source.inline & kept;
        if let Some(project) = project {
            inode.set_project(project);
        }
        Ok(())
    }

    /// Enters a file under its name and unlinks any other inode of that name.
    fn recover_name(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        let dir = Ino(from.head().pino.get());
        let name = from.last_name().to_vec();
        let parent = self.directory(dir)?;
        if name.is_empty() || parent.head().links.get() == 0 {
            return Err(Error::corrupt(Place::Inode(ino), format!("its name cannot be entered into {dir}")));
        }
        let encrypted = parent.has_advise(advise::ENCRYPT);
        let hash = if encrypted && parent.has_flag(flag::CASEFOLD) {
            let bytes = &from.head().name[name.len()..];
            let hash = bytes.first_chunk::<HASH_BYTES>();
            u32::from_le_bytes(
                *hash.ok_or_else(|| Error::corrupt(Place::Inode(ino), "a name without its hash"))?,
            )
        } else if encrypted {
            name_hash(&name)
        } else {
            self.wanted(&parent, &name)?.expect("the name is not empty").hash()
        };
        let wanted = super::dir::Wanted::Exact { hash, name: &name };
        let found = self.search(&parent, &wanted)?;
        drop(parent);
        if let Some(found) = found {
            if found.ino == ino {
                return Ok(());
            }
            self.leave(dir, &found)?;
            let victim_is_dir = self.inode(found.ino)?.is_directory();
            if victim_is_dir {
                // Linux lets an fsynced file take the name of a directory that has entries in the checkpoint.
                // The inodes of these entries are then lost, in Linux (`recover_dentry`) as here.
                self.add_links(dir, -1)?;
                self.add_links(found.ino, -1)?;
            }
            self.drop_link(found.ino)?;
        }
        let kind = self.inode(ino)?.file_type();
        self.enter_with_hash(dir, hash, &name, ino, kind)?;
        // A read-only volume has no clock.
        if self.options.read_only { Ok(()) } else { self.touch_dir(dir) }
    }

    /// Recovers the content of a node: inline data, xattrs and addresses (Linux, `do_recover_data`).
    fn recover_content(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        if from.footer().offset == XATTR_NODE_OFFSET {
            return self.recover_xattr_node(ino, from);
        }
        if from.is_inode() {
            self.recover_inline_xattrs(ino, from)?;
            if self.recover_inline_data(ino, from)? || !has_map(from) {
                return Ok(());
            }
        }
        let layout = self.inode(ino)?.layout();
        let kind = NodeKind::of(self.geometry.block_size, from.footer().offset);
        let Some(first) = kind.and_then(|kind| kind.first_block(&layout)) else { return Ok(()) };
        let count =
            if from.is_inode() { layout.addrs().min(from.addr_count()) } else { layout.direct_addrs() };
        for index in 0..count {
            self.recover_address(ino, first + index as u64, from.addr(index))?;
        }
        Ok(())
    }

    fn recover_address(&mut self, ino: Ino, block: u64, to: BlockAddr) -> Result<()> {
        let slot = self.slot(ino, block)?;
        let now = match slot {
            Some(slot) => self.node(slot.nid)?.addr(slot.index),
            None => BlockAddr::NULL,
        };
        if now == to {
            return Ok(());
        }
        if now != BlockAddr::NULL {
            self.free_blocks(ino, block..block + 1)?;
        }
        if to == BlockAddr::NULL {
            return Ok(());
        }
        let inode = self.inode(ino)?;
        let log = self.geometry.block_size.log();
        let grows = !inode.has_advise(advise::KEEP_SIZE) && inode.head().size.get() <= block << log;
        drop(inode);
        if grows {
            self.inode_mut(ino)?.head_mut().size.set((block + 1) << log);
        }
        let slot = self.make_slot(ino, block)?;
        if to.is_real() {
            self.take_recovered(ino, block, slot, to, now == BlockAddr::NULL)?;
        } else if to != BlockAddr::NEW {
            return Err(Error::corrupt(
                Place::File(ino, block),
                "compressed clusters are not rolled forward",
            ));
        }
        self.drop_extent(ino)?;
        self.node_mut(slot.nid)?.set_addr(slot.index, to);
        self.count_blocks(1);
        self.add_blocks(ino, 1)
    }

    /// Assigns a block written after the checkpoint to a file.
    fn take_recovered(
        &mut self,
        ino: Ino,
        block: u64,
        slot: Slot,
        addr: BlockAddr,
        is_new: bool,
    ) -> Result<()> {
        if !self.geometry.in_main(addr) {
            return Err(Error::corrupt(Place::File(ino, block), format!("{addr} is not in the main area")));
        }
        let (segment, offset) = self.geometry.position(addr);
        let entry = self.sit.segment(&self.io, segment)?;
        if bits::msb(&entry.map, usize::from(offset)) {
            self.take_from_owner(addr, segment, offset)?;
            if bits::msb(&self.sit.segment(&self.io, segment)?.map, usize::from(offset)) {
                let what = format!("{addr} belongs to a node of another inode");
                return Err(Error::corrupt(Place::File(ino, block), what));
            }
        }
        let kind = match entry.valid_blocks {
            0 if is_new => SegmentType::ColdData,
            0 => SegmentType::WarmData,
            _ if entry.kind.is_node() => {
                let what = format!("{addr} is in a segment of nodes");
                return Err(Error::corrupt(Place::File(ino, block), what));
            }
            _ => entry.kind,
        };
        self.sit.take(&self.io, addr, kind, self.now)?;
        let version = self.nat.get(&self.io, slot.nid)?.version;
        self.set_owner(segment, offset, Owner { nid: slot.nid, version, offset: slot.index as u16 })
    }

    /// Takes a block away from its old owner, because it now belongs to another one.
    fn take_from_owner(&mut self, addr: BlockAddr, segment: SegNo, offset: u16) -> Result<()> {
        let at = Place::Ssa(segment);
        let owner = self.summary(segment)?.owners[usize::from(offset)];
        let node = self.node(owner.nid)?;
        let index = usize::from(owner.offset);
        let holds =
            (!node.is_inode() || has_map(&node)) && index < node.addr_count() && node.addr(index) == addr;
        if !holds {
            return Err(Error::corrupt(at, format!("{addr} is valid, but not in {}", owner.nid)));
        }
        let (ino, footer) = (node.ino(), node.footer());
        drop(node);
        let layout = self.inode(ino)?.layout();
        let first =
            NodeKind::of(self.geometry.block_size, footer.offset).and_then(|kind| kind.first_block(&layout));
        let first = first.ok_or_else(|| Error::corrupt(at, format!("{} holds no addresses", owner.nid)))?;
        let block = first + index as u64;
        self.free_blocks(ino, block..block + 1)
    }

    /// Records the owner of a block in the summary of its segment.
    pub(super) fn set_owner(&mut self, segment: SegNo, offset: u16, owner: Owner) -> Result<()> {
        let kinds = SegmentType::ALL.into_iter();
        if let Some(kind) = kinds.into_iter().find(|kind| self.logs.get(*kind).segment == segment) {
            self.logs.get_mut(kind).summary.owners[usize::from(offset)] = owner;
            return Ok(());
        }
        let mut summary = self.summary_to_change(segment)?;
        summary.is_node = false;
        summary.owners[usize::from(offset)] = owner;
        self.summaries.insert(segment, summary);
        Ok(())
    }

    fn recover_inline_xattrs(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        let (bit, area) = (from.head().inline & inline::XATTR, from.inline_xattrs().to_vec());
        if from.xattr_nid() == Nid::NULL {
            self.drop_xattr_node(ino)?;
        }
        let inode = self.inode_mut(ino)?;
        if inode.head().inline & inline::XATTR != bit {
            return Err(Error::corrupt(
                Place::Inode(ino),
                "its space for inline xattrs has appeared or disappeared",
            ));
        }
        let room = inode.inline_xattrs_mut();
        if room.len() != area.len() {
            return Err(Error::corrupt(Place::Inode(ino), "its space for inline xattrs has another size"));
        }
        room.copy_from_slice(&area);
        Ok(())
    }

    fn recover_xattr_node(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        self.drop_xattr_node(ino)?;
        let cold = !self.inode(ino)?.is_directory();
        let nid = self.add_child_node(ino, XATTR_NODE_OFFSET, cold)?;
        self.node_mut(nid)?.payload_mut().copy_from_slice(from.payload());
        self.inode_mut(ino)?.head_mut().xattr_nid.set(nid.0);
        self.add_blocks(ino, 1)
    }

    fn drop_xattr_node(&mut self, ino: Ino) -> Result<()> {
        if let Some(nid) = self.xattr_node(ino)? {
            self.remove_node(nid)?;
            self.inode_mut(ino)?.head_mut().xattr_nid.set(0);
            self.drop_blocks(ino, 1)?;
        }
        Ok(())
    }

    /// Recovers inline data, or its absence. Returns true if the inode now holds the whole content (Linux,
    /// `f2fs_recover_inline_data`).
    fn recover_inline_data(&mut self, ino: Ino, from: &NodeBlock) -> Result<bool> {
        let was = self.inode(ino)?.has_inline(inline::DATA);
        let is = from.has_inline(inline::DATA);
        if is && !was {
            self.free_from(ino, 0)?;
        }
        let inode = self.inode_mut(ino)?;
        if was && !is {
            inode.inline_area_mut().fill(0);
            inode.head_mut().inline &= !(inline::DATA | inline::DATA_EXIST);
        }
        if is {
            let bits = from.head().inline & (inline::DATA | inline::DATA_EXIST);
            inode.head_mut().inline |= bits;
            let area = inode.inline_area_mut();
            let source = from.inline_area();
            if area.len() != source.len() {
                return Err(Error::corrupt(Place::Inode(ino), "its space for inline data has another size"));
            }
            area.copy_from_slice(source);
        }
        Ok(is)
    }
}

/// Returns true if the address area of an inode holds block addresses.
fn has_map(node: &NodeBlock) -> bool {
    node.is_inode()
        && !node.has_inline(inline::DATA | inline::DENTRY)
        && matches!(node.file_type(), FileType::Regular | FileType::Directory | FileType::Symlink)
}

/// Removes the content of an inode block.
fn clear_content(node: &mut NodeBlock, has_map: bool) {
    if has_map {
        for index in 0..node.addr_count() {
            node.set_addr(index, BlockAddr::NULL);
        }
    } else if node.has_inline(inline::DATA) {
        node.inline_area_mut().fill(0);
    }
    for child in 0..node.child_count() {
        node.set_child(child, Nid::NULL);
    }
    let head = node.head_mut();
    head.inline &= !(inline::DATA | inline::DATA_EXIST);
    head.extent.len.set(0);
}
