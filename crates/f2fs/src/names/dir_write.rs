//! Changing directories: entering and removing names.

use super::{
    Names,
    dir::{Found, NameHash},
    dir_strays::Strays,
    encryption::{Naming, StoredName},
};
use crate::{
    Error, Place, Result,
    format::{
        FileType, NAME_MAX,
        dentry::{Dentries, Dentry, slots_for},
        dir_hash,
        inode::{flag, inline},
        node::NodeBlock,
        sit::SegmentType,
    },
    segments::Reservation,
    units::{BlockAddr, Ino},
};

use crate::files::{Page, Slot};

/// Maximum number of blocks that entering a name takes: the block of the inode or of a converted inline
/// directory, a new block of the directory, and the nodes that lead to it.
pub(crate) const ENTRY_BLOCKS: u64 = 6;

/// The check of the owner's quota for a new block of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuotaCheck {
    /// The quota still has to admit the block.
    Pending,
    /// It has admitted the block.
    Done,
}

impl Names {
    /// Records that a name of a directory was created for a new inode, or removed. This follows the change, and so cannot
    /// fail: a directory whose names cannot be told apart is recorded as a whole.
    pub(super) fn note_name(&mut self, dir: Ino, name: &[u8], ino: Option<Ino>) {
        match self.has_one_form_of_names(dir) {
            Ok(true) => self.nodes_mut().since_checkpoint_mut().note_name(dir, name, ino),
            Ok(false) | Err(_) => self.nodes_mut().since_checkpoint_mut().note_link(dir),
        }
    }

    /// Returns true if names of a directory that differ are those of different entries. In a casefolded directory, and in an
    /// encrypted one with and without its key, they may be the same.
    fn has_one_form_of_names(&self, dir: Ino) -> Result<bool> {
        let inode = self.nodes().inode(dir)?;
        Ok(!inode.has_flag(flag::CASEFOLD) && !matches!(self.naming(&inode)?, Naming::Hidden))
    }

    /// Checks that a directory may be changed and that a name is valid.
    pub(super) fn check_change(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let inode = self.directory(dir)?;
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Error::Invalid("a name must not be empty or contain a slash or NUL".into()));
        }
        check_writable(&inode)
    }

    /// Reserves space to enter a name and to allocate `more` other blocks. A name that fits into the existing
    /// blocks of the directory needs no space: files can still be moved and linked on a full volume.
    pub(super) fn reserve_entry(&self, dir: Ino, name: &StoredName, more: u64) -> Result<Reservation> {
        match self.segments().reserve(self.entry_blocks(dir)? + more) {
            Err(Error::NoSpace { .. }) if self.has_entry_room(dir, name)? => self.segments().reserve(more),
            result => result,
        }
    }

    /// Returns the maximum number of blocks that entering a name takes. When an inline directory with several
    /// buckets on level 0 is converted to blocks, each of its names may take a block and a node.
    fn entry_blocks(&self, dir: Ino) -> Result<u64> {
        let inode = self.directory(dir)?;
        if !inode.has_inline(inline::DENTRY) || inode.head().dir_level == 0 {
            return Ok(ENTRY_BLOCKS);
        }
        let entries = Dentries::new(inode.inline_area(), Place::Dir(dir, 0)).entries().count() as u64;
        Ok(ENTRY_BLOCKS + 2 * entries)
    }

    /// Returns true if a directory has room for a name without a new block.
    fn has_entry_room(&self, dir: Ino, name: &StoredName) -> Result<bool> {
        let inode = self.directory(dir)?;
        let slots = slots_for(name.bytes.len());
        if inode.has_inline(inline::DENTRY) {
            let area = Dentries::new(inode.inline_area(), Place::Dir(dir, 0));
            return Ok(area.room_for(slots).is_some());
        }
        for level in 0..self.depth(&inode)? {
            for block in dir_hash::bucket(level, inode.head().dir_level, name.hash) {
                // A missing block would be allocated before the next one is searched.
                let Some(bytes) = self.files.dir_block(&inode, block)? else { return Ok(false) };
                if Dentries::new(&*bytes, Place::Dir(dir, block)).room_for(slots).is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Enters a name that does not exist yet. The caller has [reserved](Self::reserve_entry) space for it.
    pub(super) fn enter(&mut self, dir: Ino, name: &StoredName, ino: Ino, kind: FileType) -> Result<()> {
        let (hash, name) = (name.hash, name.bytes.as_slice());
        if self.directory(dir)?.has_inline(inline::DENTRY) {
            let inode = self.nodes_mut().inode_mut(dir)?;
            let mut area = Dentries::new(inode.inline_area_mut(), Place::Dir(dir, 0));
            if let Some(slot) = area.room_for(slots_for(name.len())) {
                area.insert(slot, hash, ino, kind, name);
                return Ok(());
            }
            self.leave_inline_dir(dir)?;
        }
        self.enter_hashed(dir, hash, name, ino, kind, QuotaCheck::Pending)
    }

    /// Enters a name into the blocks of a directory.
    fn enter_hashed(
        &mut self,
        dir: Ino,
        hash: u32,
        name: &[u8],
        ino: Ino,
        kind: FileType,
        quota: QuotaCheck,
    ) -> Result<()> {
        let inode = self.directory(dir)?;
        let (depth, dir_level) = (self.depth(&inode)?, inode.head().dir_level);
        let source = NameHash::of(&inode);
        let own = source.hash(hash, name);
        if depth <= 1 && dir_level == 0 && source == NameHash::Stored && !self.dirs.knows(dir) {
            self.learn_first_level(&inode);
        }
        drop(inode);
        let slots = slots_for(name.len());
        for level in 0..dir_hash::DEPTH_MAX {
            let bucket = (u64::from(hash) % dir_hash::buckets(level, dir_level)) as u32;
            if self.dirs.is_full(dir, level, bucket, slots) {
                continue;
            }
            for block in dir_hash::bucket(level, dir_level, hash) {
                if quota == QuotaCheck::Pending && self.nodes().quota().has_limits() {
                    drop(self.files.reserve(dir, block..block + 1)?);
                }
                let bytes = self.dir_block_mut(dir, block)?;
                let mut area = Dentries::new(bytes, Place::Dir(dir, block));
                if let Some(slot) = area.room_for(slots) {
                    area.insert(slot, hash, ino, kind, name);
                    self.hints.note(dir, hash, block, slot);
                    self.dirs.entered(dir, own);
                    if own != hash {
                        self.strays.entered(dir, own, block);
                    }
                    self.grow_dir(dir, block, depth.max(level + 1))?;
                    return Ok(());
                }
            }
            self.dirs.set_full(dir, level, bucket, slots);
        }
        Err(Error::no_space(self.geometry().block_size, 1, self.segments().free_user_blocks()))
    }

    /// Indexes the names of a directory that has one level with one bucket. If the bucket cannot be read, its
    /// names are looked up without an index.
    fn learn_first_level(&mut self, inode: &NodeBlock) {
        let mut hashes = Vec::new();
        for block in dir_hash::bucket(0, 0, 0) {
            match self.files.dir_block(inode, block) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    for entry in Dentries::new(&*bytes, Place::Dir(inode.ino(), block)).entries() {
                        let Ok(entry) = entry else { return };
                        hashes.push(entry.hash);
                    }
                }
                Err(_) => return,
            }
        }
        self.dirs.learn(inode.ino(), hashes);
    }

    /// Reads the directory block that a change of this entry modifies.
    pub(super) fn ready_entry(&mut self, dir: Ino, found: &Found) -> Result<()> {
        if !self.nodes().inode(dir)?.has_inline(inline::DENTRY) {
            self.dir_block_mut(dir, found.block)?;
        }
        Ok(())
    }

    /// Removes an entry, and frees its block if the block has no other entry.
    pub(super) fn leave(&mut self, dir: Ino, found: &Found) -> Result<()> {
        let at = Place::Dir(dir, found.block);
        if self.nodes().inode(dir)?.has_inline(inline::DENTRY) {
            return Dentries::new(self.nodes_mut().inode_mut(dir)?.inline_area_mut(), at).remove(found.slot);
        }
        let inode = self.nodes().inode(dir)?;
        let (source, dir_level) = (NameHash::of(&inode), inode.head().dir_level);
        drop(inode);
        let mut area = Dentries::new(self.dir_block_mut(dir, found.block)?, at);
        let stored = area.raw(found.slot).hash.get();
        let entry = area.entries_from(found.slot).next().transpose()?;
        let hash = entry.map_or(stored, |entry| source.hash(stored, entry.name));
        area.remove(found.slot)?;
        let empty = area.is_empty_from(0);
        self.dirs.left(dir, hash, dir_hash::level_of(found.block, dir_level));
        if empty {
            self.files.free_blocks(dir, found.block..found.block + 1)?;
        }
        Ok(())
    }

    /// Removes an entry, or makes it refer to the inode that `left` puts under its name, which takes no new
    /// space.
    pub(super) fn leave_to(
        &mut self,
        dir: Ino,
        found: &Found,
        left: &mut Option<(Ino, FileType)>,
    ) -> Result<()> {
        let Some((ino, kind)) = *left else { return self.leave(dir, found) };
        self.set_target(dir, found, ino, kind)?;
        *left = None;
        Ok(())
    }

    /// Makes an entry refer to another inode.
    pub(super) fn set_target(&mut self, dir: Ino, found: &Found, ino: Ino, kind: FileType) -> Result<()> {
        let at = Place::Dir(dir, found.block);
        if self.nodes().inode(dir)?.has_inline(inline::DENTRY) {
            Dentries::new(self.nodes_mut().inode_mut(dir)?.inline_area_mut(), at)
                .set_target(found.slot, ino, kind);
        } else {
            Dentries::new(self.dir_block_mut(dir, found.block)?, at).set_target(found.slot, ino, kind);
        }
        Ok(())
    }

    /// Adds "." and ".." to a new directory, inline or in a block.
    pub(super) fn fill_new_dir(&mut self, dir: Ino, parent: Ino) -> Result<()> {
        let inode = self.nodes_mut().inode_mut(dir)?;
        if inode.has_inline(inline::DENTRY) {
            let capacity = inode.layout().inline_bytes() as u64;
            inode.head_mut().size.set(capacity);
            Dentries::new(inode.inline_area_mut(), Place::Dir(dir, 0)).insert_dots(dir, parent);
            return Ok(());
        }
        Dentries::new(self.dir_block_mut(dir, 0)?, Place::Dir(dir, 0)).insert_dots(dir, parent);
        self.dirs.learn(dir, [0, 0]);
        self.grow_dir(dir, 0, 1)
    }

    /// Moves the entries of an inline directory into blocks. If there is no space for one of the blocks, all
    /// entries stay inline.
    fn leave_inline_dir(&mut self, dir: Ino) -> Result<()> {
        let before = self.nodes().inode(dir)?;
        let old = Dentries::new(before.inline_area().to_vec(), Place::Dir(dir, 0));
        let entries = old.entries().collect::<Result<Vec<_>>>()?;
        self.nodes().admit(dir, if before.head().dir_level == 0 { 1 } else { 1 + entries.len() as u64 })?;
        let inode = self.nodes_mut().inode_mut(dir)?;
        inode.inline_area_mut().fill(0);
        inode.head_mut().inline &= !inline::DENTRY;
        inode.head_mut().size.set(0);
        let moved = self.move_entries(dir, &old, entries);
        if moved.is_err() {
            self.forget_names(dir);
            let freed = self.files.free_from(dir, 0);
            self.nodes_mut().inode_mut(dir)?.clone_from(&before);
            freed?;
        }
        moved
    }

    /// Moves the entries of a former inline directory into blocks; the directory has no blocks yet.
    fn move_entries(&mut self, dir: Ino, old: &Dentries<Vec<u8>>, entries: Vec<Dentry<'_>>) -> Result<()> {
        let inode = self.nodes().inode(dir)?;
        let (source, dir_level) = (NameHash::of(&inode), inode.head().dir_level);
        drop(inode);
        self.strays.learn(dir, Strays::new());
        self.dir_block_mut(dir, 0)?;
        if dir_level == 0 {
            let own = |entry: &Dentry<'_>| source.hash(entry.hash, entry.name);
            self.dirs.learn(dir, entries.iter().map(own));
            for entry in entries.iter().filter(|entry| own(entry) != entry.hash) {
                self.strays.entered(dir, own(entry), 0);
            }
            Dentries::new(self.dir_block_mut(dir, 0)?, Place::Dir(dir, 0)).copy_from(old);
            return self.grow_dir(dir, 0, 1);
        }
        // Level 0 has several buckets, and each name goes into its own. The dots, whose hash is 0, stay
        // first, in block 0.
        self.dirs.learn(dir, [0, 0]);
        let mut first = Dentries::new(self.dir_block_mut(dir, 0)?, Place::Dir(dir, 0));
        let mut rest = Vec::new();
        for entry in entries {
            let kind = entry.kind.unwrap_or(FileType::Regular);
            match entry.name {
                b"." | b".." => {
                    let slot = first.room_for(1).expect("an empty block has space");
                    first.insert(slot, entry.hash, entry.ino, kind, entry.name);
                }
                name => rest.push((entry.hash, name.to_vec(), entry.ino, kind)),
            }
        }
        self.grow_dir(dir, 0, 1)?;
        for (hash, name, ino, kind) in rest {
            self.enter_hashed(dir, hash, &name, ino, kind, QuotaCheck::Done)?;
        }
        Ok(())
    }

    /// Forgets the index and the stray names of a directory.
    pub(super) fn forget_names(&mut self, dir: Ino) {
        self.dirs.forget(dir);
        self.strays.forget(dir);
    }

    fn grow_dir(&mut self, dir: Ino, block: u64, depth: u32) -> Result<()> {
        let size = (block + 1) << self.geometry().block_size.log();
        let inode = self.nodes().inode(dir)?;
        let (old_size, old_depth) = (inode.head().size.get(), inode.head().current_depth.get());
        drop(inode);
        if size > old_size || depth > old_depth {
            let head = self.nodes_mut().inode_mut(dir)?.head_mut();
            head.size.set(size.max(old_size));
            head.current_depth.set(depth.max(old_depth));
        }
        Ok(())
    }

    /// Returns a block of a directory for a change, and allocates it if it is missing. The block is a dirty
    /// page, or still in the pending run of its log.
    fn dir_block_mut(&mut self, dir: Ino, block: u64) -> Result<&mut [u8]> {
        if self.files.dirty_page(dir, block).is_some() {
            return Ok(self.files.dirty_page_mut(dir, block).expect("it exists"));
        }
        let slot = self.files.make_slot(dir, block)?;
        let mut addr = self.nodes().node(slot.nid)?.addr(slot.index);
        if !addr.is_real() {
            addr = self.new_dir_block(dir, slot, block, addr)?;
        }
        if self.segments().pending(addr).is_some() {
            return Ok(self.segments_mut().pending_mut(addr).expect("it exists"));
        }
        // The block will be written elsewhere or released.
        self.segments_mut().check_release(addr)?;
        let page = match self.segments().cached_dir_block(addr) {
            Some(bytes) => Box::from(&*bytes),
            None => {
                let mut page = vec![0; self.geometry().block_size.bytes()].into_boxed_slice();
                self.segments().read_blocks(addr, Place::Dir(dir, block), &mut page)?;
                page
            }
        };
        self.files.insert_page(dir, block, Page { bytes: page, is_needed: true });
        Ok(self.files.dirty_page_mut(dir, block).expect("it was just inserted"))
    }

    fn new_dir_block(&mut self, dir: Ino, slot: Slot, block: u64, old: BlockAddr) -> Result<BlockAddr> {
        let kind = self.files.log_of_data(&*self.nodes().inode(dir)?);
        debug_assert_eq!(kind, SegmentType::HotData);
        let zeroes = vec![0; self.geometry().block_size.bytes()];
        let addr = self.files.relocate(dir, slot, block, kind, &zeroes)?;
        if old == BlockAddr::NULL {
            self.segments_mut().count_blocks(1);
            self.files.add_blocks(dir, 1)?;
        }
        Ok(addr)
    }

    /// Returns true if a directory `ino` is `dir` or one of its ancestors, so that it must not be moved
    /// there. A cycle of directories, which only a damaged volume has, is detected after about three times as
    /// many steps as there are directories in the cycle and before it (Brent's algorithm).
    pub(super) fn is_ancestor(&self, ino: Ino, dir: Ino) -> Result<bool> {
        let (mut at, mut mark) = (dir, dir);
        let (mut steps, mut most) = (0u64, 1);
        while at != ino {
            if at == self.superblock().root_ino {
                return Ok(false);
            }
            at = self.find_entry(at, b"..")?.ok_or(Error::NotFound)?.ino;
            steps += 1;
            if at == mark {
                let what = "its parent directories form a cycle";
                return self.io().record_corruption(Err(Error::corrupt(Place::Inode(dir), what)));
            }
            if steps == most {
                (mark, steps, most) = (at, 0, 2 * most);
            }
        }
        Ok(true)
    }

    /// Returns the flags that a new inode inherits from its directory (Linux, `f2fs_new_inode`).
    pub(super) fn inherited_flags(dir: &NodeBlock, kind: FileType) -> u32 {
        const INHERITED: u32 = flag::SYNC
            | flag::NODUMP
            | flag::NOATIME
            | flag::DIRSYNC
            | flag::PROJECT_INHERIT
            | flag::CASEFOLD;
        let flags = dir.head().flags.get() & INHERITED;
        match kind {
            FileType::Directory => flags | flag::INDEX,
            FileType::Regular => flags & !(flag::DIRSYNC | flag::PROJECT_INHERIT | flag::CASEFOLD),
            _ => flags & (flag::NODUMP | flag::NOATIME),
        }
    }
}

/// Fails if no name of a directory may change: it is removed, or immutable.
pub(super) fn check_writable(dir: &NodeBlock) -> Result<()> {
    if dir.head().links.get() == 0 {
        return Err(Error::NotFound);
    }
    if dir.has_flag(flag::IMMUTABLE) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}
