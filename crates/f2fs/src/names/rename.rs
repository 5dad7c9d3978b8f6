//! Renaming.
//!
//! *Invariant*: a rename checks everything that may make it fail, space included, before it changes anything.

use super::{Names, NewNode, dir::Found, inherited_project};
use crate::{
    Error, Result,
    format::{
        FileType,
        inode::{flag, inline},
        node::NodeBlock,
    },
    units::Ino,
};

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

/// A rename whose names were looked up.
struct Move<'a> {
    from_dir: Ino,
    from: &'a [u8],
    to_dir: Ino,
    to: &'a [u8],
    /// The entry that moves.
    source: Found,
    /// The type of the inode that moves.
    kind: FileType,
    /// The entry that has the new name already.
    target: Option<Found>,
}

impl Names {
    /// Renames an inode, in the same or to another directory.
    pub(crate) fn rename(
        &mut self,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.move_name((from_dir, from), (to_dir, to), mode, &mut None)
    }

    /// Like [`rename`](Self::rename), but creates a new inode, not a directory, under the old name.
    pub(crate) fn rename_leaving(
        &mut self,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        mode: RenameMode,
        new: &NewNode,
    ) -> Result<()> {
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
        let stored = self.to_stored_name(&*self.nodes().inode(to_dir)?, to)?;
        let parent = self.nodes().inode(from_dir)?;
        let left_name = self.to_stored_name(&parent, from)?;
        let context = self.inherited_context(&parent, kind)?;
        let _space = self.reserve_entry(to_dir, &stored, 1 + u64::from(context.is_some()))?;
        let (new, _) = self.inherit(from_dir, new)?;
        let project = inherited_project(&parent);
        self.nodes().admit_new([new.uid, new.gid, project], 0)?;
        let ino = Ino(self.nodes_mut().take_nid()?.0);
        let mut node = self.new_inode(ino, from_dir, from, kind, &new)?;
        left_name.record(&mut node, &parent);
        drop(parent);
        self.add_new(node, context.as_deref())?;
        let mut left = Some((ino, kind));
        if let Err(error) = self.move_name((from_dir, from), (to_dir, to), mode, &mut left) {
            if left.is_some() {
                self.evict(ino)?;
            }
            return Err(error);
        }
        self.note_name(from_dir, from, Some(ino));
        Ok(())
    }

    /// Moves a name. `left` is the inode that gets the old name, if any; it is set to `None` once it has been
    /// entered.
    fn move_name(
        &mut self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        left: &mut Option<(Ino, FileType)>,
    ) -> Result<()> {
        let moving = self.check_move(from, to, mode)?;
        match (mode, &moving.target) {
            (RenameMode::NoReplace, Some(_)) => Err(Error::Exists),
            (RenameMode::Exchange, None) => Err(Error::NotFound),
            (RenameMode::Exchange, Some(target)) => self.exchange(&moving, target),
            (_, Some(target)) => self.move_over(&moving, target, left),
            (_, None) => self.move_to_new(&moving, left),
        }
    }

    /// Looks up the names of a rename, and returns an error if the source must not move to the new place.
    fn check_move<'a>(
        &self,
        (from_dir, from): (Ino, &'a [u8]),
        (to_dir, to): (Ino, &'a [u8]),
        mode: RenameMode,
    ) -> Result<Move<'a>> {
        self.check_change(from_dir, from)?;
        self.check_change(to_dir, to)?;
        if [from, to].iter().any(|name| matches!(*name, b"." | b"..")) {
            return Err(Error::Invalid("`.` and `..` cannot be renamed".into()));
        }
        let source = self.find_entry(from_dir, from)?.ok_or(Error::NotFound)?;
        let target = self.find_entry(to_dir, to)?;
        let moved = self.nodes().inode(source.ino)?;
        let kind = moved.file_type();
        if is_fixed(&moved) || self.nodes().inode(from_dir)?.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        drop(moved);
        self.check_project(to_dir, source.ino)?;
        if let (RenameMode::Exchange, Some(target)) = (mode, &target) {
            self.check_project(from_dir, target.ino)?;
        }
        if kind == FileType::Directory && self.is_ancestor(source.ino, to_dir)? {
            return Err(Error::Invalid("a directory cannot be moved into itself".into()));
        }
        self.check_encryption(
            from_dir,
            to_dir,
            &source,
            target.as_ref().filter(|_| mode == RenameMode::Exchange),
        )?;
        Ok(Move { from_dir, from, to_dir, to, source, kind, target })
    }

    /// Returns an error if encryption does not admit a move (Linux, `__fscrypt_prepare_rename`). `exchanged` is the entry
    /// that moves in the other direction.
    fn check_encryption(
        &self,
        from_dir: Ino,
        to_dir: Ino,
        source: &Found,
        exchanged: Option<&Found>,
    ) -> Result<()> {
        for dir in [from_dir, to_dir] {
            self.files.require_key(&*self.nodes().inode(dir)?)?;
        }
        if from_dir == to_dir {
            return Ok(());
        }
        self.check_policy(to_dir, source.ino)?;
        exchanged.map_or(Ok(()), |found| self.check_policy(from_dir, found.ino))
    }

    /// Exchanges the source with the target.
    fn exchange(&mut self, moving: &Move<'_>, target: &Found) -> Result<()> {
        let Move { from_dir, from, to_dir, to, ref source, kind, .. } = *moving;
        if is_fixed(&*self.nodes().inode(target.ino)?) || self.nodes().inode(to_dir)?.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        let other_kind = self.nodes().inode(target.ino)?.file_type();
        if other_kind == FileType::Directory && self.is_ancestor(target.ino, from_dir)? {
            return Err(Error::Invalid("a directory cannot be moved into itself".into()));
        }
        if source.ino == target.ino {
            return Ok(());
        }
        self.ready_to_move(source.ino, from_dir, source, to_dir)?;
        self.ready_to_move(target.ino, to_dir, target, from_dir)?;
        self.set_target(from_dir, source, target.ino, other_kind)?;
        self.set_target(to_dir, target, source.ino, kind)?;
        self.moved(source.ino, kind, from_dir, to_dir, to)?;
        self.moved(target.ino, other_kind, to_dir, from_dir, from)?;
        self.touch_dirs(moving)
    }

    /// Moves the source to a name that the target has, which loses it.
    fn move_over(
        &mut self,
        moving: &Move<'_>,
        target: &Found,
        left: &mut Option<(Ino, FileType)>,
    ) -> Result<()> {
        let Move { from_dir, to_dir, to, ref source, kind, .. } = *moving;
        if source.ino == target.ino {
            return Ok(());
        }
        let victim = self.nodes().inode(target.ino)?;
        let victim_kind = victim.file_type();
        if is_fixed(&victim) || self.nodes().inode(to_dir)?.has_flag(flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        drop(victim);
        match (kind, victim_kind) {
            (FileType::Directory, FileType::Directory) if !self.is_empty_dir(target.ino)? => {
                return Err(Error::NotEmpty);
            }
            (FileType::Directory, FileType::Directory) => {}
            (FileType::Directory, _) => return Err(Error::NotDirectory),
            (_, FileType::Directory) => return Err(Error::IsDirectory),
            _ => {}
        }
        self.require_orphan_room(target.ino)?;
        self.ready_to_move(source.ino, from_dir, source, to_dir)?;
        self.set_target(to_dir, target, source.ino, kind)?;
        self.leave_to(from_dir, source, left)?;
        self.moved(source.ino, kind, from_dir, to_dir, to)?;
        if victim_kind == FileType::Directory {
            self.add_links(to_dir, -1)?;
            self.add_links(target.ino, -1)?;
        }
        self.drop_link(target.ino)?;
        self.touch_dirs(moving)
    }

    /// Moves the source to a name that is free.
    fn move_to_new(&mut self, moving: &Move<'_>, left: &mut Option<(Ino, FileType)>) -> Result<()> {
        let Move { from_dir, from, to_dir, to, ref source, kind, .. } = *moving;
        let stored = self.to_stored_name(&*self.nodes().inode(to_dir)?, to)?;
        let _space = self.reserve_entry(to_dir, &stored, 0)?;
        self.ready_to_move(source.ino, from_dir, source, to_dir)?;
        // Entering a name may convert an inline directory to blocks, so the source entry must be
        // looked up again.
        let shifts = from_dir == to_dir && self.nodes().inode(from_dir)?.has_inline(inline::DENTRY);
        self.enter(to_dir, &stored, source.ino, kind)?;
        let shifted = match shifts {
            true => Some(self.find_entry(from_dir, from)?.ok_or(Error::NotFound)?),
            false => None,
        };
        self.leave_to(from_dir, shifted.as_ref().unwrap_or(source), left)?;
        self.moved(source.ino, kind, from_dir, to_dir, to)?;
        self.touch_dirs(moving)
    }

    fn touch_dirs(&mut self, moving: &Move<'_>) -> Result<()> {
        self.touch_dir(moving.from_dir)?;
        self.touch_dir(moving.to_dir)
    }

    /// Reads everything that moving an inode out of a directory changes, so that a read error cannot leave
    /// the move half done.
    fn ready_to_move(&mut self, ino: Ino, from_dir: Ino, found: &Found, to_dir: Ino) -> Result<()> {
        self.ready_entry(from_dir, found)?;
        if from_dir != to_dir && self.nodes().inode(ino)?.is_directory() {
            if let Some(dots) = self.find_entry(ino, b"..")? {
                self.ready_entry(ino, &dots)?;
            }
        }
        Ok(())
    }

    /// Returns an error if a directory passes on a project other than that of the inode (Linux, `f2fs_link`).
    pub(super) fn check_project(&self, dir: Ino, ino: Ino) -> Result<()> {
        let dir = self.nodes().inode(dir)?;
        if dir.has_flag(flag::PROJECT_INHERIT) && dir.project() != self.nodes().inode(ino)?.project() {
            return Err(Error::OtherProject);
        }
        Ok(())
    }

    /// Updates a moved inode: its own record of its name and parent, and its `..`.
    fn moved(&mut self, ino: Ino, kind: FileType, from_dir: Ino, to_dir: Ino, to: &[u8]) -> Result<()> {
        // Roll-forward recovers new names but not the removal of old ones, so the result must not depend on
        // the old name.
        self.nodes_mut().since_checkpoint_mut().note_renamed([ino, from_dir, to_dir]);
        let (now, parent) = (self.disk().time(), self.nodes().inode(to_dir)?);
        let stored = self.to_stored_name(&parent, to)?;
        let inode = self.nodes_mut().inode_mut(ino)?;
        stored.record(inode, &parent);
        inode.set_ctime(now);
        if kind == FileType::Directory && from_dir != to_dir {
            if let Some(dots) = self.find_entry(ino, b"..")? {
                self.set_target(ino, &dots, to_dir, FileType::Directory)?;
            }
            self.add_links(from_dir, -1)?;
            self.add_links(to_dir, 1)?;
        }
        Ok(())
    }
}

/// Returns true if an inode must keep its names.
fn is_fixed(node: &NodeBlock) -> bool {
    node.has_flag(flag::IMMUTABLE | flag::APPEND)
}
