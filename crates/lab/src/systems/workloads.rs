//! Workloads on the engine in this process, with the page cache that a kernel would have for their files.
//!
//! Written data stays dirty, as in a page cache, until it is synced, until there is too much of it, or until
//! it expires; the data of a file removed before that is never written.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    path::Path,
};

use f2fs::{
    engine::{Caller, RenameMode, SyncScope},
    units::Ino,
};
use guest::{
    Bytes,
    workload::{Files, Stage, StepList, Workload},
};

use super::{
    engine::{Mounted, to_io},
    read_ahead::Pages,
};

/// Maximum number of files with cached pages. Of so many files a kernel would not keep pages, either.
const KEPT_FILES: usize = 4096;

/// Age at which dirty data expires (Linux, dirty_expire_interval).
const WAITS_NS: u64 = 30_000_000_000;

/// Runs a stage of a workload in a directory; returns the durations of its units.
pub(super) fn run(
    mounted: &mut Mounted,
    dir: &[u8],
    workload: &Workload,
    stage: Stage,
) -> io::Result<Vec<u64>> {
    run_on(mounted, dir, &mut |files| workload.run_on(stage, files))
}

/// Runs a stage of a list of steps in a directory; returns the durations of its units.
pub(super) fn run_list(
    mounted: &mut Mounted,
    dir: &[u8],
    list: &Bytes,
    stage: Stage,
) -> io::Result<Vec<u64>> {
    let list = list_at(list)?;
    run_on(mounted, dir, &mut |files| list.run_on(stage, files))
}

/// Reads a list of steps whose path is that in a guest that sees the host's files.
pub(super) fn list_at(path: &Bytes) -> io::Result<StepList> {
    let path = path.as_path();
    StepList::read(&Path::new("/").join(path.strip_prefix(guest::host::DIR).unwrap_or(path)))
}

/// Runs something on the files of a directory, and writes their dirty data at the end.
fn run_on(
    mounted: &mut Mounted,
    dir: &[u8],
    run: &mut dyn FnMut(&mut dyn Files) -> io::Result<Vec<u64>>,
) -> io::Result<Vec<u64>> {
    let mut files = EngineFiles {
        mounted,
        dir: dir.to_owned(),
        inodes: HashMap::new(),
        order: VecDeque::new(),
        waiting: BTreeMap::new(),
        waiting_bytes: 0,
    };
    let times = run(&mut files)?;
    // The next stage does not see the dirty data of this cache.
    files.write_all()?;
    Ok(times)
}

/// A directory of the engine, with the page cache of its files.
struct EngineFiles<'a> {
    mounted: &'a mut Mounted,
    dir: Vec<u8>,
    /// Files by path.
    inodes: HashMap<String, (Ino, Pages)>,
    /// Paths in the order of insertion.
    order: VecDeque<String>,
    /// Dirty data by file.
    waiting: BTreeMap<Ino, Waiting>,
    waiting_bytes: u64,
}

/// Dirty data of a file.
struct Waiting {
    since_ns: u64,
    /// Offsets and bytes, in the order in which they were written.
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Waiting {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

impl EngineFiles<'_> {
    fn at(&self, path: &str) -> Vec<u8> {
        match path {
            "" => self.dir.clone(),
            below => [&self.dir[..], b"/", below.as_bytes()].concat(),
        }
    }

    /// Returns the inode of a file. Makes the file if it is missing.
    fn find_or_make(&mut self, path: &str) -> io::Result<Ino> {
        self.find_with(path, |mounted, dir, name| mounted.create_file(dir, name))
    }

    /// Returns the inode of a file.
    fn find(&mut self, path: &str) -> io::Result<Ino> {
        self.find_with(path, |_, _, _| Err(io::ErrorKind::NotFound.into()))
    }

    fn find_with(
        &mut self,
        path: &str,
        missing: impl FnOnce(&mut Mounted, Ino, &[u8]) -> io::Result<Ino>,
    ) -> io::Result<Ino> {
        self.mounted.tick()?;
        if let Some((ino, _)) = self.inodes.get(path) {
            return Ok(*ino);
        }
        let (dir, name) = self.mounted.parent(&self.at(path))?;
        let ino = match self.mounted.volume.find_entry(dir, &name).map_err(to_io)? {
            Some(found) => found.ino,
            None => missing(self.mounted, dir, &name)?,
        };
        if self.order.len() >= KEPT_FILES {
            let oldest = self.order.pop_front().expect("there are that many");
            self.inodes.remove(&oldest);
        }
        let pages = Pages::new(self.mounted.memory_bytes);
        self.inodes.insert(path.to_owned(), (ino, pages));
        self.order.push_back(path.to_owned());
        Ok(ino)
    }

    /// Writes the dirty data of a file.
    fn write_file(&mut self, ino: Ino) -> io::Result<()> {
        let Some(waiting) = self.waiting.remove(&ino) else { return Ok(()) };
        self.waiting_bytes -= waiting.bytes();
        for (at, bytes) in waiting.pieces {
            self.mounted.volume.begin(Caller::ADMIN).write(ino, at, &bytes).map_err(to_io)?;
        }
        Ok(())
    }

    /// Writes the dirty data of the file or directory at a path, and returns its inode.
    fn write_file_at(&mut self, path: &str) -> io::Result<Ino> {
        self.mounted.tick()?;
        let ino = match self.inodes.get(path) {
            Some((ino, _)) => *ino,
            None => self.mounted.resolve(&self.at(path))?,
        };
        self.write_file(ino)?;
        Ok(ino)
    }

    /// Writes all dirty data in inode order, so that files created together are adjacent.
    fn write_all(&mut self) -> io::Result<()> {
        let inodes: Vec<Ino> = self.waiting.keys().copied().collect();
        inodes.into_iter().try_for_each(|ino| self.write_file(ino))
    }

    /// Writes expired data; all data if there is too much of it.
    fn write_due(&mut self) -> io::Result<()> {
        if self.waiting_bytes > self.mounted.dirty_bytes {
            return self.write_all();
        }
        let now_ns = self.mounted.disk.now_ns();
        let is_due = |waiting: &Waiting| now_ns - waiting.since_ns > WAITS_NS;
        let due: Vec<Ino> = self.waiting.iter().filter(|(_, it)| is_due(it)).map(|(ino, _)| *ino).collect();
        due.into_iter().try_for_each(|ino| self.write_file(ino))
    }

    /// Drops the dirty data of a file.
    fn give_up(&mut self, path: &str) -> io::Result<()> {
        let ino = match self.inodes.get(path) {
            Some((ino, _)) => *ino,
            None => self.mounted.resolve(&self.at(path))?,
        };
        if let Some(waiting) = self.waiting.remove(&ino) {
            self.waiting_bytes -= waiting.bytes();
        }
        Ok(())
    }

    fn forget(&mut self, path: &str) {
        if self.inodes.remove(path).is_some() {
            self.order.retain(|one| one != path);
        }
    }
}

impl Files for EngineFiles<'_> {
    fn make_dir(&mut self, path: &str) -> io::Result<()> {
        self.mounted.tick()?;
        self.mounted.make_dir_at(&self.at(path), 0o755)
    }

    fn write(&mut self, path: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        let ino = self.find_or_make(path)?;
        if let Some((_, pages)) = self.inodes.get_mut(path) {
            pages.forget(at, bytes.len());
        }
        let since_ns = self.mounted.disk.now_ns();
        let waiting = self.waiting.entry(ino).or_insert(Waiting { since_ns, pieces: Vec::new() });
        match waiting.pieces.last_mut() {
            Some((start, piece)) if *start + piece.len() as u64 == at => piece.extend_from_slice(bytes),
            _ => waiting.pieces.push((at, bytes.to_vec())),
        }
        self.waiting_bytes += bytes.len() as u64;
        self.write_due()
    }

    fn read(&mut self, path: &str, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let ino = self.find(path)?;
        self.write_file(ino)?;
        let volume = &self.mounted.volume;
        let size = volume.stat(ino).map_err(to_io)?.size;
        let (_, pages) = self.inodes.get_mut(path).expect("it was just found");
        let disk = &self.mounted.disk;
        pages.read(at, bytes, size, &mut |demand, at, buf| disk.fetch(volume, ino, demand, at, buf))?;
        disk.wait_until_ns(pages.ready_ns());
        Ok(())
    }

    fn truncate(&mut self, path: &str, size: u64) -> io::Result<()> {
        let ino = self.find_or_make(path)?;
        match size {
            0 => self.give_up(path)?,
            _ => self.write_file(ino)?,
        }
        self.forget(path);
        self.mounted.volume.begin(Caller::ADMIN).truncate(ino, size).map_err(to_io)
    }

    fn fsync(&mut self, path: &str) -> io::Result<()> {
        let ino = self.write_file_at(path)?;
        self.mounted.volume.fsync(ino, SyncScope::Everything).map_err(to_io)
    }

    fn fdatasync(&mut self, path: &str) -> io::Result<()> {
        let ino = self.write_file_at(path)?;
        self.mounted.volume.fsync(ino, SyncScope::Data).map_err(to_io)
    }

    /// The pages stay cached.
    fn close(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.mounted.tick()?;
        if self.mounted.resolve(&self.at(to)).is_ok() {
            self.give_up(to)?;
        }
        self.forget(from);
        self.forget(to);
        let (from_dir, from) = self.mounted.parent(&self.at(from))?;
        let (to_dir, to) = self.mounted.parent(&self.at(to))?;
        self.mounted
            .volume
            .begin(Caller::ADMIN)
            .rename(from_dir, &from, to_dir, &to, RenameMode::Replace)
            .map_err(to_io)
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        self.mounted.tick()?;
        self.give_up(path)?;
        self.forget(path);
        self.mounted.unlink(&self.at(path))
    }

    fn sync_all(&mut self) -> io::Result<()> {
        self.write_all()?;
        self.mounted.volume.checkpoint().map_err(to_io)
    }

    fn size(&mut self, path: &str) -> io::Result<u64> {
        let ino = self.find(path)?;
        self.write_file(ino)?;
        Ok(self.mounted.volume.stat(ino).map_err(to_io)?.size)
    }

    fn now_ns(&mut self) -> u64 {
        self.mounted.disk.now_ns()
    }
}
