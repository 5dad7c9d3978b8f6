//! The public operations on names: directories, creation, removal, renaming.

use std::borrow::Cow;

use super::{
    DirCursor, Engine, Found, NewNode, PathEnd, RenameMode, XattrMode,
    transaction::{Step, Transaction},
};
use crate::{
    Error, Result,
    engine::FinalSymlink,
    format::{FileType, xattr::index},
    names::{Names, NextEntries, SeenBlocks},
    units::Ino,
};

/// Maximum length of a path in bytes, including the terminating NUL. Linux accepts no longer symbolic link
/// target, and reads it from one page.
const PATH_MAX: usize = 4096;

impl Engine {
    /// Returns the inode that a name of a directory refers to.
    ///
    /// # Errors
    /// [`Error::NotFound`], and those of [`find_entry`](Self::find_entry).
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.names().lookup(dir, name)
    }

    /// Returns the entry of a directory with this name, if there is one.
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; [`Error::NameTooLong`]; [`Error::Invalid`] for a name that is no UTF-8 in a
    /// directory that requires it; those of [reading](Engine#errors). Damage is an error only if it may hide the
    /// name.
    pub fn find_entry(&self, dir: Ino, name: &[u8]) -> Result<Option<Found>> {
        self.names().find_entry(dir, name)
    }

    /// Returns the entries of a directory in their order on the device, including "." and "..", from a cookie
    /// on; 0 is the start.
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; those of [reading](Engine#errors) for the inode. Damage of the content is told by
    /// the iteration.
    pub fn entries(&self, dir: Ino, cookie: u64) -> Result<DirCursor<'_>> {
        self.names().entries(dir, cookie)
    }

    /// Returns the entries of a directory from a cookie on, as a further part of a walk that has met some blocks. An
    /// earlier part gives them by [`DirCursor::into_seen`].
    ///
    /// # Errors
    /// Those of [`entries`](Self::entries).
    pub fn further_entries(&self, dir: Ino, cookie: u64, seen: SeenBlocks) -> Result<DirCursor<'_>> {
        self.names().further_entries(dir, cookie, seen)
    }

    /// Returns the entry areas of a directory with their block numbers: all blocks except holes, or the
    /// inline area.
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; those of [reading](Engine#errors) for the inode. Damage of the content is told by
    /// the iteration.
    pub fn directory_areas(
        &self,
        dir: Ino,
    ) -> Result<impl Iterator<Item = Result<(u64, Cow<'_, [u8]>)>> + '_> {
        self.names().directory_areas(dir)
    }

    /// Returns true if a directory has no entries except "." and "..".
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; those of [reading](Engine#errors).
    pub fn is_empty_dir(&self, dir: Ino) -> Result<bool> {
        self.names().is_empty_dir(dir)
    }

    /// The entries of the first area (a block, or the inode) of a directory that has some at or after a cookie, and the
    /// cookie behind that area; `None` at the end. A caller that keeps the cookie and the seen blocks holds nothing of
    /// the volume between two areas. Damage is an error in the place of the entries that it costs.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], and the errors of reading the inode.
    pub(crate) fn next_entries(
        &self,
        dir: Ino,
        cookie: u64,
        seen: &mut SeenBlocks,
    ) -> Result<Option<NextEntries>> {
        self.names().next_entries(dir, cookie, seen)
    }

    /// Returns the target of a symbolic link. An encrypted target is decrypted, or else encoded, as Linux
    /// shows it without the key.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything but a symbolic link; those of [reading](Engine#errors).
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.names().read_link(ino)
    }

    /// Looks up the inode at a path from the root. Symbolic links are followed within the volume.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`] if the path leads through a file, [`Error::TooManySymlinks`]
    /// for more than 40, [`Error::NameTooLong`]; those of [reading](Engine#errors).
    pub fn resolve(&self, path: &[u8], link: FinalSymlink) -> Result<Ino> {
        self.names().resolve(path, link)
    }

    /// Like [`resolve`](Self::resolve), but starts at a directory. A path with a leading slash starts at the
    /// root.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`] if the path leads through a file, [`Error::TooManySymlinks`]
    /// for more than 40, [`Error::NameTooLong`]; those of [reading](Engine#errors).
    pub fn resolve_from(&self, dir: Ino, path: &[u8], link: FinalSymlink) -> Result<Ino> {
        self.names().resolve_from(dir, path, link)
    }

    /// Like [`resolve`](Self::resolve), but also returns the directory whose entry led to the inode; `None`
    /// for the root and after `..`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`] if the path leads through a file, [`Error::TooManySymlinks`]
    /// for more than 40, [`Error::NameTooLong`]; those of [reading](Engine#errors).
    pub fn resolve_with_parent(&self, path: &[u8], link: FinalSymlink) -> Result<(Ino, Option<Ino>)> {
        self.names().resolve_with_parent(path, link)
    }

    /// Resolves the directory that the last name of a path is in, or is to be in, and gives it with that name. Slashes at
    /// the end of the path do not count.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the root directory, which has no name; those of [`resolve`](Self::resolve) for the path
    /// before the name.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(Ino, &'p [u8])> {
        self.names().resolve_parent(path)
    }

    /// Resolves an entry that is to be removed, renamed or linked: gives its directory, its name, its inode and the kind of
    /// that. A symbolic link at the end of the path is not followed.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no entry; [`Error::NotDirectory`] if a slash follows the name of anything but a
    /// directory, a link to one included; those of [`resolve_parent`](Self::resolve_parent).
    pub fn resolve_entry<'p>(&self, path: &'p [u8]) -> Result<(Ino, &'p [u8], Ino, FileType)> {
        self.names().resolve_entry(path)
    }

    /// Resolves a path for a file that is made where it is missing, as open(2) with `O_CREAT` does: a symbolic link whose
    /// target is missing leads to the place of the target.
    ///
    /// # Errors
    /// [`Error::IsDirectory`] if a slash follows a missing name; [`Error::TooManySymlinks`]; those of
    /// [`resolve_parent`](Self::resolve_parent).
    pub fn resolve_to_create(&self, path: &[u8]) -> Result<PathEnd> {
        self.names().resolve_to_create(path)
    }

    /// Holds an inode, for example while it is open, so that it outlives its last name.
    pub fn hold(&mut self, ino: Ino) {
        self.names_mut().hold(ino)
    }
}

impl Transaction<'_> {
    /// Makes the directories of a path that are missing, each as `new` has it, and gives the last one. Links to directories
    /// are followed.
    ///
    /// # Errors
    /// [`Error::Exists`] if a file that is no directory is in the way; those of [`create_for`](Self::create_for).
    /// Directories that were made before an error stay.
    pub fn create_dir_all(mut self, path: &[u8], new: &NewNode, umask: u16) -> Result<Ino> {
        let mut dir = self.engine().superblock().root_ino;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            dir = match self.engine().resolve_from(dir, name, FinalSymlink::Follow) {
                Ok(found) if !self.engine().inode(found)?.is_directory() => return Err(Error::Exists),
                Ok(found) => found,
                Err(Error::NotFound) => self.make_in(dir, name, new, umask)?,
                Err(error) => return Err(error),
            };
        }
        Ok(dir)
    }

    /// Creates an inode of any type under a name. Use [`symlink`](Self::symlink) for a symbolic link, which
    /// needs a target.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotDirectory`]; [`Error::NotFound`] if the directory was removed;
    /// [`Error::NameTooLong`]; [`Error::Invalid`] for an impossible name or mode; [`Error::NotPermitted`] in an
    /// immutable directory; [`Error::NoKey`], [`Error::OtherKey`] or [`Error::NoNonces`] in an encrypted one;
    /// [`Error::NoSpace`], [`Error::NoInodes`] and [`Error::Quota`]; those of [every change](Engine#errors). Nothing is made then.
    pub fn create(mut self, dir: Ino, name: &[u8], new: &NewNode) -> Result<Ino> {
        self.step()?.names().create(dir, name, new)
    }

    /// Creates a file without a name (`O_TMPFILE`) and holds it. [`release`](Self::release) removes it,
    /// unless it has been [linked](Self::link) by then. It inherits from the directory `dir`.
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; [`Error::NotPermitted`] in an immutable directory; [`Error::NoKey`], [`Error::OtherKey`] or
    /// [`Error::NoNonces`] in an encrypted one; [`Error::NoSpace`], [`Error::NoInodes`] and [`Error::Quota`]; those of [every change](Engine#errors).
    pub fn create_nameless(mut self, dir: Ino, new: &NewNode) -> Result<Ino> {
        self.step()?.names().create_nameless(dir, new)
    }

    /// Adds a name to an inode.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotPermitted`] for a directory and for an immutable or append-only inode;
    /// [`Error::TooManyLinks`]; [`Error::NotFound`] for an inode that was removed; [`Error::OtherProject`];
    /// [`Error::NoKey`], [`Error::OtherKey`] or [`Error::OtherPolicy`] in an encrypted directory; [`Error::NoSpace`];
    /// those of [every change](Engine#errors).
    pub fn link(mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        self.step()?.names().link(ino, dir, name)
    }

    /// Removes the name of an inode that is not a directory. The inode is removed with its last name, or with
    /// its last [`release`](Self::release) if it is held.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::IsDirectory`]; [`Error::NotPermitted`] if the inode or the directory is
    /// immutable or append-only; those of [every change](Engine#errors).
    pub fn unlink(mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.step()?.names().unlink(dir, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotDirectory`]; [`Error::NotEmpty`]; [`Error::Invalid`] for `.`;
    /// [`Error::NotPermitted`] if one of the two is immutable or append-only; those of [every
    /// change](Engine#errors).
    pub fn remove_dir(mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.step()?.names().remove_dir(dir, name)
    }

    /// Renames an inode, in the same or to another directory.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Exists`] with [`RenameMode::NoReplace`]; [`Error::IsDirectory`],
    /// [`Error::NotDirectory`] and [`Error::NotEmpty`] for a target that cannot be replaced; [`Error::Invalid`] for
    /// `.` and `..`, and for a directory that would move into itself; [`Error::NotPermitted`];
    /// [`Error::OtherProject`]; [`Error::NoKey`], [`Error::OtherKey`] or [`Error::OtherPolicy`] out of and into an
    /// encrypted directory; [`Error::NoSpace`]; those of [every change](Engine#errors).
    pub fn rename(
        mut self,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.step()?.names().rename(from_dir, from, to_dir, to, mode)
    }

    /// Like [`rename`](Self::rename), but creates a new inode, not a directory, under the old name. Both
    /// changes are atomic, also with respect to checkpoints. If both names refer to the same inode, nothing
    /// is moved or created.
    ///
    /// # Errors
    /// Those of [`rename`](Self::rename) and of [`create`](Self::create).
    pub fn rename_leaving(
        mut self,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        mode: RenameMode,
        new: &NewNode,
    ) -> Result<()> {
        self.step()?.names().rename_leaving((from_dir, from), (to_dir, to), mode, new)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a target that is empty or has a zero in it; [`Error::NameTooLong`] for a target of
    /// 4096 bytes or more, of 4094 in an encrypted directory; those of [`create`](Self::create).
    pub fn symlink(mut self, dir: Ino, name: &[u8], target: &[u8], new: &NewNode) -> Result<Ino> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::Invalid("the target of a link must not be empty or contain a NUL".into()));
        }
        if target.len() >= PATH_MAX {
            return Err(Error::NameTooLong);
        }
        let mode = FileType::Symlink.mode_bits() | new.mode & 0o7777;
        let mut step = self.step()?;
        step.names().check_target(dir, target)?;
        let ino = step.names().create(dir, name, &NewNode { mode, ..new.clone() })?;
        let written = match step.names().stored_target(ino, target).map(Cow::into_owned) {
            Ok(stored) => step.files().write_content(ino, 0, &stored),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            step.renew()?;
            step.names().unlink(dir, name)?;
            return Err(error);
        }
        Ok(ino)
    }

    /// Undoes one [`hold`](Engine::hold). The last release removes an inode without a name.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors). The inode stays an orphan then, which the next checkpoint or mount
    /// removes.
    pub fn release(mut self, ino: Ino) -> Result<()> {
        if self.end_hold(ino) {
            // The checkpoint that the upkeep may have written can have removed it already.
            self.step()?.names().evict_released(ino)?;
        }
        Ok(())
    }

    /// Cuts a part of at most `bytes` bytes off a large regular file without a name that is held once, so that its
    /// [`release`](Self::release) has less to do at once. Returns false if there is nothing to cut off.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn shrink_nameless(mut self, ino: Ino, bytes: u64) -> Result<bool> {
        if !self.engine().names().is_held_once(ino) {
            return Ok(false);
        }
        self.step()?.files().shrink(ino, 0, bytes)
    }

    /// Creates an inode as the system call does. In a set-group-id directory it gets the directory's group.
    /// Its permissions are limited by the directory's default ACL or, without one, by `umask`.
    ///
    /// # Errors
    /// Those of [`create`](Self::create), and [`Error::Corrupt`] if the default ACL of the directory is damaged.
    pub fn create_for(mut self, dir: Ino, name: &[u8], new: &NewNode, umask: u16) -> Result<Ino> {
        self.make_in(dir, name, new, umask)
    }

    /// Creates a file without a name as the system call does; see [`create_nameless`](Self::create_nameless).
    ///
    /// # Errors
    /// Those of [`create_nameless`](Self::create_nameless), and [`Error::Corrupt`] if the default ACL of the
    /// directory is damaged.
    pub fn create_nameless_for(mut self, dir: Ino, new: &NewNode, umask: u16) -> Result<Ino> {
        let undo = |step: &mut Step<'_>, ino: Ino| match step.names().release(ino) {
            true => step.renew().and_then(|()| step.names().evict_released(ino)),
            false => Ok(()),
        };
        self.make_for(dir, new, umask, |names, new| names.create_nameless(dir, new), undo)
    }

    /// Creates an inode with a name, its permissions and ACLs.
    fn make_in(&mut self, dir: Ino, name: &[u8], new: &NewNode, umask: u16) -> Result<Ino> {
        let undo = |step: &mut Step<'_>, ino: Ino| {
            step.renew()?;
            match step.engine().inode(ino)?.is_directory() {
                true => step.names().remove_dir(dir, name),
                false => step.names().unlink(dir, name),
            }
        };
        self.make_for(dir, new, umask, |names, new| names.create(dir, name, new), undo)
    }

    /// Creates an inode with its permissions and ACLs. If an ACL cannot be stored, `undo` removes the inode
    /// that `make` created.
    fn make_for(
        &mut self,
        dir: Ino,
        new: &NewNode,
        umask: u16,
        make: impl FnOnce(&mut Names, &NewNode) -> Result<Ino>,
        undo: impl FnOnce(&mut Step<'_>, Ino) -> Result<()>,
    ) -> Result<Ino> {
        let (new, default) = self.engine().names().inherit(dir, new)?;
        let mut step = self.step()?;
        let Some(default) = default else {
            return make(step.names(), &NewNode { mode: new.mode & !(umask & 0o777), ..new });
        };
        let (access, mode) = default.for_new(new.mode);
        let ino = make(step.names(), &NewNode { mode, ..new })?;
        let lists = [
            (index::ACL_ACCESS, Some(&access).filter(|access| !access.is_mode_only())),
            (
                index::ACL_DEFAULT,
                Some(&default).filter(|_| FileType::from_mode(mode) == Some(FileType::Directory)),
            ),
        ];
        for (index, acl) in lists {
            let Some(acl) = acl else { continue };
            let value = acl.to_disk();
            if let Err(error) = step.names().change_xattr(ino, index, b"", Some(&value), XattrMode::Set) {
                undo(&mut step, ino)?;
                return Err(error);
            }
        }
        Ok(ino)
    }

    /// Creates a symbolic link as the system call does; see [`create_for`](Self::create_for).
    ///
    /// # Errors
    /// Those of [`symlink`](Self::symlink).
    pub fn symlink_for(self, dir: Ino, name: &[u8], target: &[u8], new: &NewNode) -> Result<Ino> {
        let (new, _) = self.engine().names().inherit(dir, new)?;
        self.symlink(dir, name, target, &new)
    }
}
