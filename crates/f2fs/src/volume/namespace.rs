//! Namespace operations: create, link, unlink and rename inodes.
//!
//! *Invariant*: each operation checks everything that may make it fail, space included, before it changes
//! anything.

use super::{Volume, dir::Found};
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        inode::{DeviceNumber, INLINE_XATTR_WORDS, advise, flag, inline},
        node::NodeBlock,
        orphan,
    },
    units::{Ino, Nid, Time},
};

/// Maximum length of a path in bytes, including the terminating NUL. Linux accepts no longer symbolic link
/// target, and reads it from one page.
const PATH_MAX: usize = 4096;

/// Parameters of a new inode.
#[derive(Debug, Clone)]
pub struct NewNode {
    /// File type and permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for a device node.
    pub device: Option<DeviceNumber>,
    /// Timestamps; `None` for the current time.
    pub times: Option<Times>,
}

impl NewNode {
    /// Creates parameters for an inode with this mode, owned by root, with the current time.
    pub fn new(mode: u16) -> NewNode {
        NewNode { mode, uid: 0, gid: 0, device: None, times: None }
    }
}

/// The timestamps of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Creation, if the volume stores it.
    pub crtime: Time,
}

impl Times {
    /// Creates timestamps that are all `time`.
    pub fn all(time: Time) -> Times {
        Times { atime: time, ctime: time, mtime: time, crtime: time }
    }
}

/// Treatment of the target of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replace an existing target.
    #[default]
    Replace,
    /// Fail if the target exists.
    NoReplace,
    /// Exchange source and target.
    Exchange,
}

impl Volume {
    /// Creates an inode of any type under a name. Use [`symlink`](Self::symlink) for a symbolic link, which
    /// needs a target.
    pub fn create(&mut self, dir: Ino, name: &[u8], new: &NewNode) -> Result<Ino> {
        self.begin()?;
        let kind = FileType::from_mode(new.mode)
            .ok_or_else(|| Error::Invalid(format!("mode {:#o} has no known file type", new.mode).into()))?;
        self.check_change(dir, name)?;
        if self.find_entry(dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        if self.inode(dir)?.has_advise(advise::ENCRYPT) {
            return Err(Error::NoKey);
        }
        self.require_entry_space(dir, name, 2)?;
        let project = inherited_project(&*self.inode(dir)?);
        // A directory without inline entries starts with one block.
        let first = u64::from(kind == FileType::Directory && !self.options.inline_dentry);
        self.admit_new([new.uid, new.gid, project], first)?;
        let ino = Ino(self.take_nid()?.0);
        let node = self.new_inode(ino, dir, name, kind, new)?;
        self.add_node(node)?;
        let entered = match kind {
            FileType::Directory => self.fill_new_dir(ino, dir),
            _ => Ok(()),
        };
        if let Err(error) = entered.and_then(|()| self.enter(dir, name, ino, kind)) {
            self.evict(ino)?;
            return Err(error);
        }
        self.note_name(dir, name, Some(ino))?;
        let now = new.times.map_or_else(|| self.time(), |times| times.mtime);
        let parent = self.inode_mut(dir)?;
        if kind == FileType::Directory {
            let links = parent.head().links.get();
            parent.head_mut().links.set(links.saturating_add(1));
        }
        parent.set_mtime(now);
        parent.set_ctime(now);
        Ok(ino)
    }

    /// Creates a file without a name (`O_TMPFILE`) and holds it. [`release`](Self::release) removes it,
    /// unless it has been [linked](Self::link) by then. It inherits from the directory `dir`.
    pub fn create_nameless(&mut self, dir: Ino, new: &NewNode) -> Result<Ino> {
        self.begin()?;
        let inode = self.directory(dir)?;
        if inode.has_flag(flag::IMMUTABLE) {
            return Err(Error::NotPermitted);
        }
        if inode.has_advise(advise::ENCRYPT) {
            return Err(Error::NoKey);
        }
        let project = inherited_project(&inode);
        drop(inode);
        self.require_orphans_fit()?;
        self.require_space(2)?;
        self.admit_new([new.uid, new.gid, project], 0)?;
        let ino = Ino(self.take_nid()?.0);
        let mode = FileType::Regular.mode_bits() | new.mode & 0o7777;
        let mut node = self.new_inode(ino, dir, b"", FileType::Regular, &NewNode { mode, ..new.clone() })?;
        node.head_mut().links.set(0);
        self.add_node(node)?;
        self.orphans.insert(ino);
        self.hold(ino);
        Ok(ino)
    }

    /// Creates a symbolic link.
    pub fn symlink(&mut self, dir: Ino, name: &[u8], target: &[u8], new: &NewNode) -> Result<Ino> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid("the target of a link must not be empty or contain a NUL".into()));
        }
        if target.len() >= PATH_MAX {
            return Err(Error::NameTooLong);
        }
        let mode = FileType::Symlink.mode_bits() | new.mode & 0o7777;
        let ino = self.create(dir, name, &NewNode { mode, ..new.clone() })?;
        if let Err(error) = self.write_content(ino, 0, target) {
            self.unlink(dir, name)?;
            return Err(error);
        }
        Ok(ino)
    }

    /// Adds a name to an inode.
    pub fn link(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        self.begin()?;
        self.check_change(dir, name)?;
        let inode = self.inode(ino)?;
        let kind = inode.file_type();
        if kind == FileType::Directory || inode.has_flag(flag::IMMUTABLE | flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        if inode.head().links.get() == u32::MAX {
            return Err(Error::TooManyLinks);
        }
        if inode.head().links.get() == 0 && (!self.orphans.contains(&ino) || self.leaving.contains(&ino)) {
            return Err(Error::NotFound);
        }
        drop(inode);
        if self.find_entry(dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        self.check_project(dir, ino)?;
        self.require_entry_space(dir, name, 0)?;
        self.enter(dir, name, ino, kind)?;
        self.since_checkpoint.note_link(dir);
        if self.is_durable(ino)? {
            // Recovery would find the inode under its earlier name; if that name is removed, this one is like
            // any other new name.
            self.since_checkpoint.renamed.insert(ino);
        }
        let now = self.time();
        let inode = self.inode_mut(ino)?;
        let links = inode.head().links.get();
        inode.head_mut().links.set(links + 1);
        inode.set_last_name(dir, name);
        inode.head_mut().advise &= !advise::LOST_PINO;
        inode.set_ctime(now);
        if self.orphans.remove(&ino) {
            // The last checkpoint may list it as an orphan, and roll-forward skips orphans.
            self.since_checkpoint.renamed.extend([ino, dir]);
        }
        self.touch_dir(dir)
    }

    /// Removes the name of an inode that is not a directory. The inode is removed with its last name, or with
    /// its last [`release`](Self::release) if it is held.
    pub fn unlink(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.begin()?;
        self.check_change(dir, name)?;
        let found = self.find_entry(dir, name)?.ok_or(Error::NotFound)?;
        let inode = self.inode(found.ino)?;
        if inode.is_directory() {
            return Err(Error::IsDirectory);
        }
        if inode.has_flag(flag::IMMUTABLE | flag::APPEND) || self.inode(dir)?.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        self.require_orphan_room(found.ino)?;
        let stays = inode.head().links.get() > 1;
        let loses_name = stays && inode.last_name() == name && inode.head().pino.get() == dir.0;
        drop(inode);
        let folds = self.inode(dir)?.has_flag(flag::CASEFOLD);
        if (stays || folds) && self.is_durable(found.ino)? {
            // Recovery brings the name back. A new file of that name would then take the last link of the old
            // one, even if other links have been created since. A new name that differs only in case would
            // stand beside it.
            self.since_checkpoint.renamed.insert(dir);
        }
        if loses_name {
            // Recovery would enter the inode under the name that is being removed.
            self.inode_mut(found.ino)?.head_mut().advise |= advise::LOST_PINO;
        }
        self.leave(dir, &found)?;
        self.note_name(dir, name, None)?;
        self.touch_dir(dir)?;
        self.drop_link(found.ino)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.begin()?;
        self.check_change(dir, name)?;
        if name == b"." {
            return Err(Error::Invalid("`.` cannot be removed".into()));
        }
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        let found = self.find_entry(dir, name)?.ok_or(Error::NotFound)?;
        let inode = self.directory(found.ino)?;
        if inode.has_flag(flag::IMMUTABLE | flag::APPEND) || self.inode(dir)?.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        drop(inode);
        if !self.is_empty_dir(found.ino)? {
            return Err(Error::NotEmpty);
        }
        self.require_orphan_room(found.ino)?;
        if self.nat.is_checkpointed(&self.io, found.ino.into())? {
            // Recovery brings the directory back with its content; a new file must not take its name.
            self.since_checkpoint.renamed.insert(dir);
        }
        self.leave(dir, &found)?;
        self.note_name(dir, name, None)?;
        self.touch_dir(dir)?;
        self.add_links(dir, -1)?;
        self.add_links(found.ino, -1)?;
        self.drop_link(found.ino)
    }

    /// Renames an inode, in the same or to another directory.
    pub fn rename(
        &mut self,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.begin()?;
        self.move_name((from_dir, from), (to_dir, to), mode, &mut None)
    }

    /// Like [`rename`](Self::rename), but creates a new inode, not a directory, under the old name. Both
    /// changes are atomic, also with respect to checkpoints. If both names refer to the same inode, nothing
    /// is moved or created.
    pub fn rename_leaving(
        &mut self,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        mode: RenameMode,
        new: &NewNode,
    ) -> Result<()> {
        self.begin()?;
        let kind =
            FileType::from_mode(new.mode).filter(|kind| *kind != FileType::Directory).ok_or_else(|| {
                Error::Invalid(
                    format!("mode {:#o} has no file type of a file without a name", new.mode).into(),
                )
            })?;
        if mode == RenameMode::Exchange {
            return Err(Error::Invalid("a file without a name cannot be exchanged with another".into()));
        }
        self.check_change(from_dir, from)?;
        self.check_change(to_dir, to)?;
        let source = self.find_entry(from_dir, from)?.ok_or(Error::NotFound)?;
        if self.find_entry(to_dir, to)?.is_some_and(|target| target.ino == source.ino) {
            return self.move_name((from_dir, from), (to_dir, to), mode, &mut None);
        }
        self.require_entry_space(to_dir, to, 1)?;
        let (new, _) = self.inherit(from_dir, new)?;
        let project = inherited_project(&*self.inode(from_dir)?);
        self.admit_new([new.uid, new.gid, project], 0)?;
        let ino = Ino(self.take_nid()?.0);
        let node = self.new_inode(ino, from_dir, from, kind, &new)?;
        self.add_node(node)?;
        let mut left = Some((ino, kind));
        if let Err(error) = self.move_name((from_dir, from), (to_dir, to), mode, &mut left) {
            if left.is_some() {
                self.evict(ino)?;
            }
            return Err(error);
        }
        self.note_name(from_dir, from, Some(ino))
    }

    /// Moves a name. `left` is the inode that gets the old name, if any; it is set to `None` once it has been
    /// entered.
    fn move_name(
        &mut self,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        mode: RenameMode,
        left: &mut Option<(Ino, FileType)>,
    ) -> Result<()> {
        self.check_change(from_dir, from)?;
        self.check_change(to_dir, to)?;
        if [from, to].iter().any(|name| matches!(*name, b"." | b"..")) {
            return Err(Error::Invalid("`.` and `..` cannot be renamed".into()));
        }
        let source = self.find_entry(from_dir, from)?.ok_or(Error::NotFound)?;
        let target = self.find_entry(to_dir, to)?;
        let moved = self.inode(source.ino)?;
        let (kind, moved_is_dir) = (moved.file_type(), moved.is_directory());
        let fixed = |node: &NodeBlock| node.has_flag(flag::IMMUTABLE | flag::APPEND);
        if fixed(&moved) || self.inode(from_dir)?.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        drop(moved);
        self.check_project(to_dir, source.ino)?;
        if let (RenameMode::Exchange, Some(target)) = (mode, &target) {
            self.check_project(from_dir, target.ino)?;
        }
        if moved_is_dir && self.is_ancestor(source.ino, to_dir)? {
            return Err(Error::Invalid("a directory cannot be moved into itself".into()));
        }
        for dir in [from_dir, to_dir] {
            if self.inode(dir)?.has_advise(advise::ENCRYPT) {
                return Err(Error::NoKey);
            }
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (RenameMode::Exchange, Some(target)) => {
                if fixed(&*self.inode(target.ino)?) || self.inode(to_dir)?.has_flag(flag::APPEND) {
                    return Err(Error::NotPermitted);
                }
                let other = self.inode(target.ino)?;
                let (other_kind, other_is_dir) = (other.file_type(), other.is_directory());
                drop(other);
                if other_is_dir && self.is_ancestor(target.ino, from_dir)? {
                    return Err(Error::Invalid("a directory cannot be moved into itself".into()));
                }
                if source.ino == target.ino {
                    return Ok(());
                }
                self.ready_to_move(source.ino, from_dir, &source, to_dir)?;
                self.ready_to_move(target.ino, to_dir, &target, from_dir)?;
                self.set_target(from_dir, &source, target.ino, other_kind)?;
                self.set_target(to_dir, &target, source.ino, kind)?;
                self.moved(source.ino, moved_is_dir, from_dir, to_dir, to)?;
                self.moved(target.ino, other_is_dir, to_dir, from_dir, from)?;
            }
            (_, Some(target)) => {
                if source.ino == target.ino {
                    return Ok(());
                }
                let victim = self.inode(target.ino)?;
                let victim_is_dir = victim.is_directory();
                if fixed(&victim) || self.inode(to_dir)?.has_flag(flag::APPEND) {
                    return Err(Error::NotPermitted);
                }
                drop(victim);
                match (moved_is_dir, victim_is_dir) {
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    (true, true) if !self.is_empty_dir(target.ino)? => return Err(Error::NotEmpty),
                    _ => {}
                }
                self.require_orphan_room(target.ino)?;
                self.ready_to_move(source.ino, from_dir, &source, to_dir)?;
                self.set_target(to_dir, &target, source.ino, kind)?;
                self.leave_to(from_dir, &source, left)?;
                self.moved(source.ino, moved_is_dir, from_dir, to_dir, to)?;
                if victim_is_dir {
                    self.add_links(to_dir, -1)?;
                    self.add_links(target.ino, -1)?;
                }
                self.drop_link(target.ino)?;
            }
            (_, None) => {
                self.require_entry_space(to_dir, to, 0)?;
                self.ready_to_move(source.ino, from_dir, &source, to_dir)?;
                // Entering a name may convert an inline directory to blocks, so the source entry must be
                // looked up again.
                let shifts = from_dir == to_dir && self.inode(from_dir)?.has_inline(inline::DENTRY);
                self.enter(to_dir, to, source.ino, kind)?;
                let source = match shifts {
                    true => self.find_entry(from_dir, from)?.ok_or(Error::NotFound)?,
                    false => source,
                };
                self.leave_to(from_dir, &source, left)?;
                self.moved(source.ino, moved_is_dir, from_dir, to_dir, to)?;
            }
        }
        self.touch_dir(from_dir)?;
        self.touch_dir(to_dir)
    }

    /// Reads everything that moving an inode out of a directory changes, so that a read error cannot leave
    /// the move half done.
    fn ready_to_move(&mut self, ino: Ino, from_dir: Ino, found: &Found, to_dir: Ino) -> Result<()> {
        self.ready_entry(from_dir, found)?;
        if from_dir != to_dir && self.inode(ino)?.is_directory() {
            if let Some(dots) = self.find_entry(ino, b"..")? {
                self.ready_entry(ino, &dots)?;
            }
        }
        Ok(())
    }

    /// Returns an error if a directory passes on a project other than that of the inode (Linux, `f2fs_link`).
    fn check_project(&self, dir: Ino, ino: Ino) -> Result<()> {
        let dir = self.inode(dir)?;
        if dir.has_flag(flag::PROJECT_INHERIT) && dir.project() != self.inode(ino)?.project() {
            return Err(Error::OtherProject);
        }
        Ok(())
    }

    /// Holds an inode, for example while it is open, so that it outlives its last name.
    pub fn hold(&mut self, ino: Ino) {
        self.leaving.remove(&ino);
        *self.held.entry(ino).or_default() += 1;
    }

    /// Cuts a part of at most `bytes` bytes off a large regular file without a name that is held once, so that its
    /// [`release`](Self::release) has less to do at once. Returns false if there is nothing to cut off.
    pub fn shrink_nameless(&mut self, ino: Ino, bytes: u64) -> Result<bool> {
        if !self.orphans.contains(&ino) || self.held.get(&ino) != Some(&1) {
            return Ok(false);
        }
        self.begin()?;
        let inode = self.inode(ino)?;
        let (size, allocated) = (inode.head().size.get(), inode.head().blocks.get());
        let is_plain = inode.file_type() == FileType::Regular
            && !inode.has_inline(inline::DATA)
            && inode.compression().is_none();
        drop(inode);
        if !is_plain || size <= bytes || allocated << self.geometry.block_size.log() <= bytes {
            return Ok(false);
        }
        self.set_size(ino, (size - 1) / bytes * bytes)?;
        Ok(true)
    }

    /// Undoes one [`hold`](Self::hold). The last release removes an inode without a name.
    pub fn release(&mut self, ino: Ino) -> Result<()> {
        let Some(count) = self.held.get_mut(&ino) else { return Ok(()) };
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        self.held.remove(&ino);
        if self.orphans.contains(&ino) && self.read_only_reason().is_none() {
            self.leaving.insert(ino);
            self.begin()?;
            // The checkpoint that `begin` may have written can have removed it already.
            if self.leaving.contains(&ino) {
                self.let_go(ino)?;
            }
        }
        Ok(())
    }

    /// Removes an orphan inode that is no longer in use. If that fails, it stays an orphan: a damaged one
    /// waits for fsck, any other is retried before the next checkpoint.
    fn let_go(&mut self, ino: Ino) -> Result<()> {
        let result = self.evict(ino);
        let is_waiting = result.as_ref().is_err_and(|error| !matches!(error, Error::Corrupt { .. }));
        match is_waiting && self.orphans.contains(&ino) {
            true => self.leaving.insert(ino),
            false => self.leaving.remove(&ino),
        };
        self.io.noted(result)
    }

    /// Retries, before a checkpoint, to remove the inodes that could not be removed earlier.
    pub(super) fn let_go_of_leaving(&mut self) -> Result<()> {
        for ino in self.leaving.clone() {
            match self.let_go(ino) {
                Err(error) if !self.stays_in_place(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The xattr node of an inode that is to be removed; it must belong to the inode.
    pub(super) fn xattr_node(&self, ino: Ino) -> Result<Option<Nid>> {
        let nid = self.inode(ino)?.xattr_nid();
        if nid == Nid::NULL {
            return Ok(None);
        }
        let owner = self.nat.get(&self.io, nid)?.ino;
        if owner != ino || nid == ino.into() {
            let what = format!("its xattr node {nid} belongs to {owner}");
            return Err(Error::corrupt(Place::Xattr(ino), what));
        }
        Ok(Some(nid))
    }

    /// Removes an inode with all its blocks and nodes. A damaged inode keeps the parts that cannot be removed
    /// and becomes an orphan.
    pub(super) fn evict(&mut self, ino: Ino) -> Result<()> {
        if self.require_orphans_fit().is_ok() {
            self.orphans.insert(ino);
        }
        let inode = self.inode(ino)?;
        let has_map = !inode.has_inline(inline::DATA | inline::DENTRY)
            && matches!(inode.file_type(), FileType::Regular | FileType::Directory | FileType::Symlink);
        // An inode that was held over a checkpoint may not have changed since.
        self.note_charge(&inode);
        drop(inode);
        self.pages.discard(ino, 0, u64::MAX);
        if has_map {
            self.free_from(ino, 0)?;
        }
        if let Some(xattr_nid) = self.xattr_node(ino)? {
            self.remove_node(xattr_nid)?;
            self.inode_mut(ino)?.head_mut().xattr_nid.set(Nid::NULL.0);
        }
        self.remove_node(ino.into())?;
        self.orphans.remove(&ino);
        self.forget_names(ino);
        Ok(())
    }

    /// Creates the inode block of a new inode that is named `name` in `dir`.
    pub(super) fn new_inode(
        &mut self,
        ino: Ino,
        dir: Ino,
        name: &[u8],
        kind: FileType,
        new: &NewNode,
    ) -> Result<NodeBlock> {
        let parent = self.inode(dir)?;
        let flags = Volume::inherited_flags(&parent, kind);
        let compressed = self.inherits_compression(&parent, kind, name);
        let project = inherited_project(&parent);
        drop(parent);
        let mut node = self.blank_inode(ino, kind, new);
        node.head_mut().flags.set(flags);
        node.set_project(project);
        node.set_last_name(dir, name);
        match compressed {
            Some(true) if node.saved_blocks().is_some() => {
                node.head_mut().inline &= !inline::DATA;
                node.set_compression(Some(self.options.compression));
            }
            Some(false) => node.head_mut().flags.set(flags | flag::NOCOMPRESS),
            _ => {}
        }
        if kind == FileType::Regular {
            node.head_mut().advise |=
                temperature(&self.superblock.cold_extensions, &self.superblock.hot_extensions, name);
        }
        Ok(node)
    }

    /// Creates an inode block with all fields that do not depend on its directory and name.
    pub(super) fn blank_inode(&mut self, ino: Ino, kind: FileType, new: &NewNode) -> NodeBlock {
        let options = &self.options;
        let mut bits = 0;
        match kind {
            FileType::Regular | FileType::Symlink if options.inline_data => bits |= inline::DATA,
            // Linux refuses to mount a volume whose root directory has no blocks (`f2fs_fill_super`).
            FileType::Directory if options.inline_dentry && ino != self.superblock.root_ino => {
                bits |= inline::DENTRY;
            }
            _ => {}
        }
        let words = if options.inline_xattr { INLINE_XATTR_WORDS as u16 } else { 0 };
        if options.inline_xattr {
            bits |= inline::XATTR;
        }
        let mut node = NodeBlock::new_inode(self.format, ino, new.mode, bits, words);
        let times = new.times.unwrap_or_else(|| Times::all((self.options.clock)()));
        let generation = self.generation(ino);
        let head = node.head_mut();
        head.uid.set(new.uid);
        head.gid.set(new.gid);
        head.generation.set(generation);
        node.set_atime(times.atime);
        node.set_ctime(times.ctime);
        node.set_mtime(times.mtime);
        node.set_crtime(times.crtime);
        if let (Some(device), FileType::CharDevice | FileType::BlockDevice) = (new.device, kind) {
            node.set_device_number(device);
        }
        node
    }

    /// The generation number, which distinguishes an inode from earlier ones with the same number. It depends
    /// on the seed only, so that runs are reproducible.
    fn generation(&mut self, ino: Ino) -> u32 {
        let version = self.nat.get(&self.io, ino.into()).map_or(0, |entry| entry.version);
        let mut mixed = self.options.seed ^ u64::from(ino.0) << 8 ^ u64::from(version);
        // SplitMix64's finaliser.
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) as u32
    }

    /// Returns an error if removing the last name of `ino` would make one orphan more than the checkpoint has
    /// room for.
    fn require_orphan_room(&self, ino: Ino) -> Result<()> {
        if self.held.contains_key(&ino) { self.require_orphans_fit() } else { Ok(()) }
    }

    /// Returns an error if the checkpoint has no room for one more orphan.
    fn require_orphans_fit(&self) -> Result<()> {
        if self.orphans.len() >= orphan::most(self.superblock.cp_payload, self.geometry.block_size) {
            return Err(Error::no_space(self.geometry.block_size, 1, 0));
        }
        Ok(())
    }

    /// Drops one link of an inode. Without links the inode is removed, or becomes an orphan if it is held.
    pub(super) fn drop_link(&mut self, ino: Ino) -> Result<()> {
        self.add_links(ino, -1)?;
        let now = self.time();
        self.inode_mut(ino)?.set_ctime(now);
        if self.inode(ino)?.head().links.get() > 0 {
            return Ok(());
        }
        if self.held.contains_key(&ino) {
            self.orphans.insert(ino);
            return Ok(());
        }
        match self.let_go(ino) {
            // The name has been removed nevertheless.
            Err(error) if self.stays_in_place(&error) => Ok(()),
            result => result,
        }
    }

    pub(super) fn add_links(&mut self, ino: Ino, change: i32) -> Result<()> {
        let head = self.inode_mut(ino)?.head_mut();
        let links = head.links.get().saturating_add_signed(change);
        head.links.set(links);
        Ok(())
    }

    /// Updates a moved inode: its own record of its name and parent, and its `..`.
    fn moved(&mut self, ino: Ino, is_dir: bool, from_dir: Ino, to_dir: Ino, to: &[u8]) -> Result<()> {
        // Roll-forward recovers new names but not the removal of old ones, so the result must not depend on
        // the old name.
        self.since_checkpoint.renamed.extend([ino, from_dir, to_dir]);
        let now = self.time();
        let inode = self.inode_mut(ino)?;
        inode.set_last_name(to_dir, to);
        inode.head_mut().advise &= !advise::LOST_PINO;
        inode.set_ctime(now);
        if is_dir && from_dir != to_dir {
            if let Some(dots) = self.find_entry(ino, b"..")? {
                self.set_target(ino, &dots, to_dir, FileType::Directory)?;
            }
            self.add_links(from_dir, -1)?;
            self.add_links(to_dir, 1)?;
        }
        Ok(())
    }

    pub(super) fn touch_dir(&mut self, dir: Ino) -> Result<()> {
        let now = self.time();
        let inode = self.inode_mut(dir)?;
        inode.set_mtime(now);
        inode.set_ctime(now);
        Ok(())
    }
}

/// The project that a directory passes on to new entries.
fn inherited_project(dir: &NodeBlock) -> u32 {
    if dir.has_flag(flag::PROJECT_INHERIT) { dir.project().unwrap_or(0) } else { 0 }
}

/// The temperature hint that a file's name gives (Linux, `set_file_temperature`).
fn temperature(cold: &[String], hot: &[String], name: &[u8]) -> u8 {
    let has = |list: &[String]| list.iter().any(|extension| has_extension(name, extension.as_bytes()));
    if has(cold) {
        advise::COLD
    } else if has(hot) {
        advise::HOT
    } else {
        0
    }
}

/// Returns true if a name has an extension that begins with `extension`, in any case and at any dot but a
/// leading one: `a.jpg` and `a.JPEG` match `jp`, `a.mp3.part` matches `mp3`.
fn has_extension(name: &[u8], extension: &[u8]) -> bool {
    if extension == b"*" {
        return true;
    }
    if name.len() < extension.len() + 2 {
        return false;
    }
    (1..name.len() - extension.len())
        .any(|at| name[at] == b'.' && name[at + 1..at + 1 + extension.len()].eq_ignore_ascii_case(extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_found_as_linux_finds_them() {
        let has = |name: &str, extension: &str| has_extension(name.as_bytes(), extension.as_bytes());
        assert!(has("a.jpg", "jp") && has("a.JPEG", "jp") && has("film.mp4.part", "mp"));
        assert!(!has(".jpg", "jp") && !has("jpg", "jp") && !has("a.png", "jp") && !has("a.jp", "jpg"));
        assert!(has("a.so", "so") && has("x", "*"));
        assert_eq!(temperature(&["mp".into()], &["db".into()], b"x.db"), advise::HOT);
        assert_eq!(temperature(&["mp".into()], &["db".into()], b"x.db.mp3"), advise::COLD);
        assert_eq!(temperature(&["mp".into()], &["db".into()], b"x"), 0);
    }
}
