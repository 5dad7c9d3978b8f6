//! A file under construction beside its final place.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use f2fs_tree::{DirSink, Owners, make_private};
use rustix::{
    fs::{AtFlags, Mode, OFlags, RenameFlags, open, renameat, renameat_with, statat, unlinkat},
    io::Errno,
};

use crate::{interrupt, output};

/// An unfinished file of the host, in its own directory beside its final place, which no other user may write
/// to. All operations use handles, so other users with write access to the folder cannot redirect them.
/// Dropping it removes the remains.
pub struct Unfinished {
    path: PathBuf,
    folder: OwnedFd,
    dir: OwnedFd,
    /// Name of the directory.
    dir_name: OsString,
    /// Name of the file, in both directories.
    name: OsString,
}

impl Unfinished {
    /// Makes the directory in which the file becomes complete.
    pub fn new(path: &Path, name: &OsStr) -> Result<Arc<Unfinished>> {
        let shown = || path.display().to_string();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(path, flags, Mode::empty()).with_context(shown)?;
        let leaf = |path: &Path| path.file_name().unwrap_or_default().to_owned();
        let (dir, temporary) = tempfile::Builder::new()
            .prefix(output::HIDDEN)
            .make_in(path, |path| make_private(&folder, leaf(path).as_ref()))
            .map_err(output::without_path)
            .with_context(shown)?
            .into_parts();
        // From here on, the directory is removed through the handles.
        let dir_name = leaf(&temporary.keep().with_context(shown)?);
        let path = path.to_path_buf();
        let unfinished = Arc::new(Unfinished { path, folder, dir, dir_name, name: name.to_owned() });
        let interrupted = Arc::downgrade(&unfinished);
        interrupt::clean_up(move || {
            if let Some(unfinished) = interrupted.upgrade() {
                unfinished.remove();
            }
        });
        Ok(unfinished)
    }

    /// Returns true if another entry has the final name.
    pub fn is_taken(&self) -> bool {
        statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Returns the sink that writes the file.
    pub fn sink(&self) -> Result<DirSink> {
        let dir = self.dir.try_clone().with_context(|| self.path.display().to_string())?;
        Ok(DirSink::at(dir, &self.path, Owners::permitted())?)
    }

    /// Moves the file to its final place, if the name is free.
    pub fn finish(&self) -> io::Result<()> {
        match renameat_with(&self.dir, &self.name, &self.folder, &self.name, RenameFlags::NOREPLACE) {
            // The host's file system does not know the flag. The caller has checked that the name is free.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => self.replace(),
            done => Ok(done?),
        }
    }

    /// Moves the file to its final place, in place of another one.
    pub fn replace(&self) -> io::Result<()> {
        Ok(renameat(&self.dir, &self.name, &self.folder, &self.name)?)
    }

    fn remove(&self) {
        // The file may already be in its final place.
        let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
        let _ = unlinkat(&self.folder, &self.dir_name, AtFlags::REMOVEDIR);
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.remove();
    }
}
