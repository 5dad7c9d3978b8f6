//! A file under construction beside its final place.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use f2fs_tree::{DirSink, Owners};
use tempfile::{TempDir, TempPath};

use crate::{interrupt, output};

/// An unfinished file of the host, in its own directory beside its final place. Dropping it removes the remains.
pub struct Unfinished {
    folder: PathBuf,
    dir: TempDir,
    /// Name of the file, in both directories.
    name: OsString,
}

impl Unfinished {
    /// Makes the directory in which the file becomes complete.
    pub fn new(path: &Path, name: &OsStr) -> Result<Arc<Unfinished>> {
        let dir = tempfile::Builder::new()
            .prefix(output::HIDDEN)
            .tempdir_in(path)
            .map_err(output::without_path)
            .with_context(|| path.display().to_string())?;
        let unfinished = Arc::new(Unfinished { folder: path.to_path_buf(), dir, name: name.to_owned() });
        let interrupted = Arc::downgrade(&unfinished);
        interrupt::clean_up(move || {
            if let Some(unfinished) = interrupted.upgrade() {
                // The file may already be in its final place.
                let _ = fs::remove_dir_all(unfinished.dir.path());
            }
        });
        Ok(unfinished)
    }

    /// Returns true if another entry has the final name.
    pub fn is_taken(&self) -> bool {
        self.folder.join(&self.name).symlink_metadata().is_ok()
    }

    /// Returns the sink that writes the file.
    pub fn sink(&self) -> Result<DirSink> {
        Ok(DirSink::new(self.dir.path(), Owners::permitted())?)
    }

    fn complete(&self) -> io::Result<TempPath> {
        TempPath::try_from_path(self.dir.path().join(&self.name))
    }

    /// Moves the file to its final place, if the name is free.
    pub fn finish(&self) -> io::Result<()> {
        self.complete()?.persist_noclobber(self.folder.join(&self.name)).map_err(io::Error::from)
    }

    /// Moves the file to its final place, in place of another one.
    pub fn replace(&self) -> io::Result<()> {
        self.complete()?.persist(self.folder.join(&self.name)).map_err(io::Error::from)
    }
}
