//! Workloads in a directory of a mounted file system.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
};

use super::Files;
use crate::{overwrite::now_ns, room};

/// The directory, and its open files.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    open: HashMap<String, File>,
}

impl Dir {
    /// Uses an existing directory.
    pub fn new(path: PathBuf) -> Dir {
        Dir { path, open: HashMap::new() }
    }

    /// Returns an open file. Opens it if it is not, and makes it if it is missing.
    fn open_or_make(&mut self, path: &str) -> io::Result<&File> {
        self.open_with(path, OpenOptions::new().create(true))
    }

    /// Returns an open file. Opens it if it is not.
    fn open(&mut self, path: &str) -> io::Result<&File> {
        self.open_with(path, &mut OpenOptions::new())
    }

    fn open_with(&mut self, path: &str, options: &mut OpenOptions) -> io::Result<&File> {
        if !self.open.contains_key(path) {
            options.read(true).write(true).truncate(false);
            let file = room::wait_for(|| options.open(self.path.join(path)))?;
            self.open.insert(path.to_owned(), file);
        }
        Ok(&self.open[path])
    }

    /// Syncs an open file, or another file or directory.
    fn sync_with(&self, path: &str, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
        match self.open.get(path) {
            Some(file) => room::wait_for(|| sync(file)),
            None => {
                let file = File::open(self.path.join(path))?;
                room::wait_for(|| sync(&file))
            }
        }
    }
}

impl Files for Dir {
    fn make_dir(&mut self, path: &str) -> io::Result<()> {
        room::wait_for(|| fs::create_dir(self.path.join(path)))
    }

    fn write(&mut self, path: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.open_or_make(path)?;
        room::wait_for(|| file.write_all_at(bytes, at))
    }

    fn read(&mut self, path: &str, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.open(path)?.read_exact_at(bytes, at)
    }

    fn truncate(&mut self, path: &str, size: u64) -> io::Result<()> {
        let file = self.open_or_make(path)?;
        room::wait_for(|| file.set_len(size))
    }

    fn fsync(&mut self, path: &str) -> io::Result<()> {
        self.sync_with(path, File::sync_all)
    }

    fn fdatasync(&mut self, path: &str) -> io::Result<()> {
        self.sync_with(path, File::sync_data)
    }

    fn close(&mut self, path: &str) -> io::Result<()> {
        self.open.remove(path);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.open.remove(to);
        if let Some(file) = self.open.remove(from) {
            self.open.insert(to.to_owned(), file);
        }
        room::wait_for(|| fs::rename(self.path.join(from), self.path.join(to)))
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        self.open.remove(path);
        fs::remove_file(self.path.join(path))
    }

    fn sync_all(&mut self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.path)?)?)
    }

    fn size(&mut self, path: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path.join(path))?.len())
    }

    fn now_ns(&mut self) -> u64 {
        now_ns()
    }
}
