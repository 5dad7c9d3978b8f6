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

use std::collections::{BTreeMap, btree_map::Entry};

use rustc_hash::FxHashSet;

use super::{Engine, checkpoint::Reason};
use crate::{
    Error, Place, Result,
    files::{clear_content, has_map},
    format::{
        bits,
        block_size::NODE_FOOTER_BYTES,
        checkpoint::Flags,
        inode::inline,
        node::{NodeBlock, NodeFooter, XATTR_NODE_OFFSET},
        node_path::NodeKind,
        sit::SegmentType,
    },
    segments::Needed,
    units::{BlockAddr, Ino, Nid, SegNo},
};

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

impl Chain {
    fn need(&mut self, (segment, offset): (SegNo, u16)) -> &mut Needed {
        let needed = self.needed.entry(segment).or_insert(Needed { map: [0; 64], has_nodes: false });
        bits::set_msb(&mut needed.map, usize::from(offset));
        needed
    }

    fn need_node(&mut self, position: (SegNo, u16)) {
        self.need(position).has_nodes = true;
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

impl Engine {
    /// Returns true if the block at the start of the chain is a node written after the checkpoint, by its
    /// footer. While checkpoints are disabled, the volume has no chain, as in Linux: it is as the checkpoint says.
    pub(super) fn has_chain(&self) -> Result<bool> {
        if self.disk().checkpoint().flags.has(Flags::DISABLED) {
            return Ok(false);
        }
        let (addr, size) = (self.chain_start(), self.geometry().block_size.bytes());
        if !self.geometry().in_main(addr) {
            return Ok(false);
        }
        let footer = self.io().read_bytes(addr, Place::Block(addr), size - NODE_FOOTER_BYTES..size)?;
        Ok(self.disk().checkpoint().is_written_after(NodeFooter::of(&footer).cp_ver))
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
        if has_chain && !self.options().roll_forward {
            let what = "the volume has fsyncs after its last checkpoint; without roll-forward it can be opened \
                        only for reading";
            return Err(Error::Invalid(what.into()));
        }
        let chain = if has_chain { self.read_chain()? } else { Chain::default() };
        let is_clean =
            self.disk().checkpoint().flags.has(Flags::UMOUNT) && self.orphans().is_empty() && !has_chain;
        if chain.addrs.is_empty() && !is_clean {
            self.start()?;
            self.write_checkpoint(Reason::Sync)?;
        }
        self.take_over(&chain)
    }

    /// Recovers in memory only, without writing to the device.
    pub(super) fn recover_in_memory(&mut self) -> Result<()> {
        let is_wanted = self.has_chain()? && self.options().roll_forward;
        let chain = if is_wanted { self.read_chain()? } else { Chain::default() };
        let reason = self.read_only_reason().unwrap_or_default().to_owned();
        // What this recovery frees is free in memory only. The device must keep it.
        self.discards().stop();
        self.disk_mut().write_to_memory();
        self.take_over(&chain)?;
        self.disk_mut().refuse_changes(reason);
        Ok(())
    }

    /// Recovers a chain, removes orphans, and writes a checkpoint if there was anything to do.
    fn take_over(&mut self, chain: &Chain) -> Result<()> {
        if chain.addrs.is_empty() && self.orphans().is_empty() {
            return Ok(());
        }
        self.start()?;
        let nothing = BTreeMap::new();
        let needed = if chain.addrs.is_empty() { &nothing } else { &chain.needed };
        self.segments_mut().begin_recovery(needed.iter())?;
        for ino in self.orphans().clone() {
            let result = self.names_mut().remove_orphan(ino);
            match self.io().record_corruption(result) {
                Ok(()) => {}
                // It stays in the orphan list and affects nothing else.
                Err(error) if self.disk().stays_in_place(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.recover_files(chain)?;
        self.write_checkpoint(Reason::Sync)?;
        self.segments_mut().end_recovery();
        Ok(())
    }

    fn chain_start(&self) -> BlockAddr {
        self.geometry().next_block(self.disk().checkpoint().logs[SegmentType::WarmNode.index()])
    }

    /// The chain's node at an address, or `None` at the end of the chain: another block, or a node that was
    /// torn by a power cut, so that its fsync never returned.
    fn chain_node(&self, addr: BlockAddr) -> Result<Option<NodeBlock>> {
        if !self.geometry().in_main(addr) {
            return Ok(None);
        }
        let bytes = self.io().read_block(addr, Place::Block(addr))?;
        let footer = NodeFooter::of(&bytes);
        if !self.disk().checkpoint().is_written_after(footer.cp_ver) {
            return Ok(None);
        }
        Ok(NodeBlock::check(self.disk().node_format(), bytes, footer.nid, footer.ino, addr).ok())
    }

    fn read_chain(&self) -> Result<Chain> {
        let mut chain = Chain::default();
        let mut seen = FxHashSet::default();
        let mut addr = self.chain_start();
        while seen.insert(addr) {
            let Some(node) = self.chain_node(addr)? else { break };
            let footer = node.footer();
            chain.need_node(self.geometry().position(addr));
            let holds_addrs = match NodeKind::of(self.geometry().block_size, footer.offset) {
                Some(NodeKind::Inode) => has_map(&node),
                Some(NodeKind::Direct { .. }) => true,
                _ => false,
            };
            if holds_addrs {
                let named = node.addrs(0..node.addr_count()).filter(|addr| self.geometry().in_main(*addr));
                for addr in named {
                    chain.need(self.geometry().position(addr));
                }
            }
            self.note_mark(&mut chain, &node, footer)?;
            chain.addrs.push(addr);
            addr = footer.next_addr;
        }
        if self.geometry().in_main(addr) {
            // A node at this address would be taken for a part of the chain.
            chain.need_node(self.geometry().position(addr));
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
                let in_range = footer.ino.0 >= self.superblock().root_ino.0
                    && Nid::from(footer.ino) < self.geometry().nids_end();
                let exists = in_range
                    && !self.nodes().nat_entry(footer.ino.into())?.is_free()
                    && !self.orphans().contains(&footer.ino);
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
        let node_at = |volume: &Engine, place: usize| -> Result<NodeBlock> {
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
            if self.nodes().nat_entry(ino.into())?.is_free() {
                // A later file of the same name has replaced it.
                continue;
            }
            if node.is_inode() {
                self.recover_attributes(ino, &node)?;
                if file.name == Some(place) {
                    self.names_mut().recover_name(ino, &node)?;
                }
            }
            self.recover_content(ino, &node)?;
            if self.nodes().dirty_count() > self.files().most_pages() {
                self.nodes_mut().write_nodes()?;
            }
        }
        Ok(())
    }

    /// Creates a file that is not in the checkpoint, without content and without a name.
    fn recover_birth(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        let mut node = from.clone();
        clear_content(&mut node);
        let head = node.head_mut();
        head.size.set(0);
        head.blocks.set(1);
        head.links.set(1);
        head.xattr_nid.set(0);
        node.inline_xattrs_mut().fill(0);
        self.nodes_mut().add_node(node)?;
        self.nodes_mut().inode_mut(ino)?;
        Ok(())
    }

    /// Recovers the attributes of an inode (Linux, `recover_inode`).
    fn recover_attributes(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        let source = from.head().clone();
        let project = from.project();
        let mut inode = NodeBlock::clone(&*self.nodes().inode(ino)?);
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
        // The flags may not fit the extra attributes, which stay.
        inode.check_layout(Place::Inode(ino))?;
        self.nodes_mut().inode_mut(ino)?.clone_from(&inode);
        Ok(())
    }

    /// Recovers the content of a node: inline data and xattrs, or addresses.
    fn recover_content(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        if from.footer().offset == XATTR_NODE_OFFSET {
            return self.names_mut().recover_xattr_node(ino, from);
        }
        if from.is_inode() {
            self.names_mut().recover_inline_xattrs(ino, from)?;
        }
        self.files_mut().recover_content(ino, from)
    }
}
