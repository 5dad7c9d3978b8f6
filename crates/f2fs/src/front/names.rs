//! Making, removing and renaming by paths.

use super::Volume;
use crate::{
    Error, Result,
    engine::{Caller, FinalSymlink, RenameMode},
    format::FileType,
    walk::Walk,
};

/// Permissions of a directory that is made, before the umask.
const DIR_PERMISSIONS: u16 = 0o777;
/// Permissions of a symbolic link.
const LINK_PERMISSIONS: u16 = 0o777;

impl Volume {
    /// Makes an empty directory.
    ///
    /// # Errors
    /// [`Error::Exists`] if the name is taken, that of the root directory included; those of
    /// [`FileOptions::open`](super::FileOptions::open) for the path and for space.
    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let path = path.as_ref();
        if path.iter().all(|byte| *byte == b'/') {
            return Err(Error::Exists);
        }
        let (dir, name) = engine.resolve_parent(path)?;
        let new = self.new_files.node(FileType::Directory, DIR_PERMISSIONS);
        engine.begin(Caller::ADMIN).create_for(dir, name, &new, self.new_files.umask).map(drop)
    }

    /// Makes a directory and those above it that are missing. It is no error if it is there.
    ///
    /// # Errors
    /// [`Error::Exists`] if a file that is no directory is in the way; those of [`create_dir`](Self::create_dir).
    /// Directories that were made before an error stay.
    pub fn create_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let new = self.new_files.node(FileType::Directory, DIR_PERMISSIONS);
        self.engine_mut()?
            .begin(Caller::ADMIN)
            .create_dir_all(path.as_ref(), &new, self.new_files.umask)
            .map(drop)
    }

    /// Removes a name of a file or symbolic link. The file goes with its last name, or when nobody has it open.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::IsDirectory`]; [`Error::NotPermitted`] if the file or its directory is immutable or
    /// append-only; [`Error::ReadOnly`]; [`Error::Corrupt`] and [`Error::Io`] with the place.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let (dir, name, _, _) = engine.resolve_entry(path.as_ref())?;
        engine.begin(Caller::ADMIN).unlink(dir, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; [`Error::NotDirectory`]; [`Error::Invalid`] for the root directory and for a path that ends
    /// with `.`; those of [`remove_file`](Self::remove_file).
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let (dir, name) = engine.resolve_parent(path.as_ref())?;
        engine.begin(Caller::ADMIN).remove_dir(dir, name)
    }

    /// Removes a directory with everything in it. Symbolic links are removed and not followed; one at the end of the path
    /// is removed itself.
    ///
    /// # Errors
    /// [`Error::NotDirectory`] for any other file; [`Error::Lost`] with the path of the entry that is in the way, and its
    /// error, for an entry inside; those of [`remove_dir`](Self::remove_dir). What was removed before an error stays
    /// removed.
    pub fn remove_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let (dir, name, _, kind) = engine.resolve_entry(path.as_ref())?;
        match kind {
            FileType::Directory => {}
            FileType::Symlink => return engine.begin(Caller::ADMIN).unlink(dir, name),
            _ => return Err(Error::NotDirectory),
        }
        let mut walk = Walk::default();
        walk.remove(&mut engine, dir, name).map_err(|error| match walk.path() {
            b"" => error,
            inside => Error::lost(inside, error),
        })
    }

    /// Gives a file another name, in the same directory or another. A file of that name is replaced, and an empty
    /// directory by a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] for a directory that would move into itself, for the root directory, `.` and
    /// `..`; [`Error::IsDirectory`], [`Error::NotDirectory`] and [`Error::NotEmpty`] for a target that cannot be replaced;
    /// [`Error::OtherProject`]; those of [`remove_file`](Self::remove_file).
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let (from_dir, from_name, _, kind) = engine.resolve_entry(from.as_ref())?;
        let to = to.as_ref();
        if to.ends_with(b"/") && kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        let (to_dir, to_name) = engine.resolve_parent(to)?;
        engine.begin(Caller::ADMIN).rename(from_dir, from_name, to_dir, to_name, RenameMode::Replace)
    }

    /// The target of a symbolic link, as it is stored.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything but a symbolic link; those of [`metadata`](Self::metadata).
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let engine = self.engine()?;
        engine.read_link(engine.resolve(path.as_ref(), FinalSymlink::NoFollow)?)
    }

    /// Makes a symbolic link `link` that leads to `target`, which need not be there.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Invalid`] for a target that is empty or has a zero in it; [`Error::NameTooLong`] for
    /// one of 4096 bytes or more; those of [`create_dir`](Self::create_dir).
    pub fn symlink(&self, target: impl AsRef<[u8]>, link: impl AsRef<[u8]>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let (dir, name) = engine.resolve_parent(link.as_ref())?;
        let new = self.new_files.node(FileType::Symlink, LINK_PERMISSIONS);
        engine.begin(Caller::ADMIN).symlink_for(dir, name, target.as_ref(), &new).map(drop)
    }

    /// Gives a file one more name, `link`. A symbolic link at the end of `original` is linked itself.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, and for a file that is immutable or append-only; [`Error::Exists`];
    /// [`Error::TooManyLinks`]; [`Error::OtherProject`]; those of [`create_dir`](Self::create_dir).
    pub fn hard_link(&self, original: impl AsRef<[u8]>, link: impl AsRef<[u8]>) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let (_, _, ino, _) = engine.resolve_entry(original.as_ref())?;
        let (dir, name) = engine.resolve_parent(link.as_ref())?;
        engine.begin(Caller::ADMIN).link(ino, dir, name)
    }

    /// Returns true if the path leads to a file. A symbolic link whose target is missing leads to none.
    ///
    /// # Errors
    /// Those of [`metadata`](Self::metadata), except [`Error::NotFound`].
    pub fn exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        match self.engine()?.resolve(path.as_ref(), FinalSymlink::Follow) {
            Err(Error::NotFound) => Ok(false),
            found => found.map(|_| true),
        }
    }
}
