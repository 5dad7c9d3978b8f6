//! Filling a volume from a source, through the engine like any other user of it.
//!
//! Existing directories are merged into, everything else that is in the way is replaced. Nothing is lasting
//! before the caller's checkpoint: who drops the volume instead leaves the device's volume as it was.

use std::{collections::HashMap, ops::ControlFlow};

use super::{
    Entry, Kind, Metadata, Need, NeedCounter, Run, Source, Transform,
    need::{Rooms, split},
    show,
};
use crate::{
    Error, Result, Volume,
    format::FileType,
    units::Ino,
    volume::{NewNode, SetAttr, Times, XattrMode},
};

/// Bytes of a file that are read and written at once.
const RUN_BYTES: usize = 1 << 20;
/// Permissions of directories that have no entry of their own.
const IMPLIED_PERMISSIONS: u16 = 0o755;
/// Blocks that the engine wants to be free beyond what it takes, for the last entries and writes.
pub const SLACK_BLOCKS: u64 = 64;

/// How far a fill is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Entries that are there.
    pub entries: u64,
    /// Bytes of data that are there.
    pub bytes: u64,
    /// The entry that is being made.
    pub path: &'a [u8],
}

/// What a fill has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filled {
    /// Names, the root not counted.
    pub entries: u64,
    /// Bytes of data.
    pub bytes: u64,
}

/// How to fill.
#[derive(Default)]
pub struct FillOptions<'a> {
    /// Changes to the entries on their way.
    pub transform: Transform,
    /// Whether the directory that is filled becomes as the source's root: owner, permissions, times, attributes.
    pub root: bool,
    /// Told of every entry and every run of data.
    pub progress: Option<&'a mut dyn FnMut(Progress<'_>)>,
}

/// Counts what a source takes, for a volume with the superblock and options of `volume`.
pub fn count(
    source: &mut dyn Source,
    transform: &Transform,
    superblock: &crate::format::superblock::Superblock,
    options: &crate::volume::Options,
) -> Result<Need> {
    let mut counter = NeedCounter::new(superblock, options);
    count_rest(&mut counter, source, transform)?;
    counter.need()
}

fn count_rest(counter: &mut NeedCounter, source: &mut dyn Source, transform: &Transform) -> Result<()> {
    while let Some(mut entry) = source.next_entry()? {
        transform.apply(&mut entry)?;
        counter.add(&entry).map_err(|error| about(&entry.path, error))?;
    }
    Ok(())
}

/// Puts everything that a source has under the directory `into`. Where it does not fit,
/// [`Error::NoSpace`] says how much the whole of it needs.
pub fn fill(
    volume: &mut Volume,
    into: Ino,
    source: &mut dyn Source,
    mut options: FillOptions<'_>,
) -> Result<Filled> {
    let counter = NeedCounter::new(volume.superblock(), volume.options());
    let mut filler = Filler {
        rooms: Rooms::of(volume.superblock(), volume.options()),
        volume,
        directories: HashMap::from([(Vec::new(), Directory { ino: into, times: None })]),
        open: Vec::new(),
        filled: Filled::default(),
        buf: vec![0; RUN_BYTES],
    };
    let free_blocks = filler.volume.free_user_blocks();
    let mut counter = Some(counter);
    while let Some(mut entry) = source.next_entry()? {
        options.transform.apply(&mut entry)?;
        if let Some(counter) = &mut counter {
            counter.add(&entry).map_err(|error| about(&entry.path, error))?;
        }
        match filler.entry(&entry, source, &mut options) {
            Ok(()) => {}
            Err(error @ (Error::NoSpace { .. } | Error::NoInodes)) if counter.is_some() => {
                let mut counter = counter.take().expect("it is there");
                count_rest(&mut counter, source, &options.transform)?;
                let needed_blocks = counter.need()?.blocks + SLACK_BLOCKS;
                let block_size = filler.volume.superblock().block_size;
                // It may not be the blocks that are short.
                return Err(match needed_blocks > free_blocks {
                    true => Error::no_space(block_size, needed_blocks, free_blocks),
                    false => error,
                });
            }
            Err(error) => return Err(about(&entry.path, error)),
        }
    }
    filler.leave_until(|_| false)?;
    Ok(filler.filled)
}

/// An error about an entry, told with its path where it names no place itself.
fn about(path: &[u8], error: Error) -> Error {
    match error {
        Error::Corrupt { .. }
        | Error::Io { .. }
        | Error::Host { .. }
        | Error::NoSpace { .. }
        | Error::NoInodes => error,
        Error::Unsupported(what) => Error::Unsupported(format!("{what} ({})", show(path)).into()),
        other => Error::Invalid(format!("{}: {other}", show(path)).into()),
    }
}

/// A directory of the volume that entries may go to.
#[derive(Debug, Clone, Copy)]
struct Directory {
    ino: Ino,
    /// What its times are to be when all is in it, where the source has said so.
    times: Option<Times>,
}

struct Filler<'v> {
    volume: &'v mut Volume,
    rooms: Rooms,
    /// Every directory met so far, by path.
    directories: HashMap<Vec<u8>, Directory>,
    /// Paths of those whose times are due when the fill leaves them.
    open: Vec<Vec<u8>>,
    filled: Filled,
    buf: Vec<u8>,
}

impl Filler<'_> {
    fn entry(&mut self, entry: &Entry, source: &mut dyn Source, options: &mut FillOptions<'_>) -> Result<()> {
        self.rooms.xattr_nodes(&entry.meta)?;
        self.report(&entry.path, options);
        if entry.path.is_empty() {
            return self.root(entry, options.root);
        }
        let (parent, name) = split(&entry.path);
        self.leave_until(|open| is_under(parent, open))?;
        let dir = self.directory(parent)?;
        match &entry.kind {
            Kind::Directory => self.make_directory(dir, name, entry)?,
            Kind::HardLink { to } => self.hard_link(dir, name, to)?,
            _ => {
                let ino = self.make_file(dir, name, entry)?;
                self.set_xattrs(ino, &entry.meta)?;
                if let Kind::File { size, data } = &entry.kind {
                    self.content(ino, *size, data.is_some(), &entry.path, source, options)?;
                }
                self.set_times(ino, times(&entry.meta))?;
            }
        }
        self.filled.entries += 1;
        Ok(())
    }

    fn report(&self, path: &[u8], options: &mut FillOptions<'_>) {
        if let Some(progress) = &mut options.progress {
            progress(Progress { entries: self.filled.entries, bytes: self.filled.bytes, path });
        }
    }

    /// The source's own root.
    fn root(&mut self, entry: &Entry, applies: bool) -> Result<()> {
        if !matches!(entry.kind, Kind::Directory) {
            return Err(Error::NotDirectory);
        }
        let root = self.directories.get_mut(&b""[..]).expect("the root is always there");
        if !applies {
            return Ok(());
        }
        root.times = Some(times(&entry.meta));
        let ino = root.ino;
        self.set_owner(ino, &entry.meta)?;
        self.set_xattrs(ino, &entry.meta)?;
        if self.open.is_empty() {
            self.open.push(Vec::new());
        }
        Ok(())
    }

    /// The directory at a path; what is missing of it is made.
    fn directory(&mut self, path: &[u8]) -> Result<Ino> {
        if let Some(known) = self.directories.get(path).copied() {
            if known.times.is_some() && !self.open.iter().any(|open| open == path) {
                self.open.push(path.to_vec());
            }
            return Ok(known.ino);
        }
        let (parent, name) = split(path);
        let parent = self.directory(parent)?;
        let ino = match self.volume.lookup(parent, name) {
            Ok(ino) if self.volume.stat(ino)?.kind == FileType::Directory => ino,
            Ok(_) => return Err(Error::NotDirectory),
            Err(Error::NotFound) => {
                let mode = FileType::Directory.mode_bits() | IMPLIED_PERMISSIONS;
                self.filled.entries += 1;
                self.volume.create(parent, name, &NewNode::new(mode))?
            }
            Err(error) => return Err(error),
        };
        self.directories.insert(path.to_vec(), Directory { ino, times: None });
        Ok(ino)
    }

    fn make_directory(&mut self, dir: Ino, name: &[u8], entry: &Entry) -> Result<()> {
        let times = times(&entry.meta);
        let new = new_node(FileType::Directory, &entry.meta, times);
        let ino = match self.volume.create(dir, name, &new) {
            Err(Error::Exists) => {
                let there = self.volume.lookup(dir, name)?;
                if self.volume.stat(there)?.kind == FileType::Directory {
                    self.set_owner(there, &entry.meta)?;
                    self.clear_xattrs(there)?;
                    there
                } else {
                    self.volume.unlink(dir, name)?;
                    self.volume.create(dir, name, &new)?
                }
            }
            made => made?,
        };
        self.set_xattrs(ino, &entry.meta)?;
        self.directories.insert(entry.path.clone(), Directory { ino, times: Some(times) });
        // Its times are set once for all when the fill leaves it.
        if !self.open.contains(&entry.path) {
            self.open.push(entry.path.clone());
        }
        Ok(())
    }

    fn make_file(&mut self, dir: Ino, name: &[u8], entry: &Entry) -> Result<Ino> {
        match self.try_make_file(dir, name, entry) {
            Err(Error::Exists) => {
                self.make_way(dir, name)?;
                self.try_make_file(dir, name, entry)
            }
            made => made,
        }
    }

    fn try_make_file(&mut self, dir: Ino, name: &[u8], entry: &Entry) -> Result<Ino> {
        let (kind, device) = match &entry.kind {
            Kind::CharDevice(device) => (FileType::CharDevice, Some(*device)),
            Kind::BlockDevice(device) => (FileType::BlockDevice, Some(*device)),
            Kind::Fifo => (FileType::Fifo, None),
            Kind::Socket => (FileType::Socket, None),
            Kind::Symlink { .. } => (FileType::Symlink, None),
            _ => (FileType::Regular, None),
        };
        let new = NewNode { device, ..new_node(kind, &entry.meta, times(&entry.meta)) };
        match &entry.kind {
            Kind::Symlink { target } => self.volume.symlink(dir, name, target, &new),
            _ => self.volume.create(dir, name, &new),
        }
    }

    /// Removes what has a name that is needed. A directory must be empty.
    fn make_way(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        match self.volume.unlink(dir, name) {
            Err(Error::IsDirectory) => self.volume.remove_dir(dir, name),
            done => done,
        }
    }

    fn hard_link(&mut self, dir: Ino, name: &[u8], to: &[u8]) -> Result<()> {
        let missing = || Error::Invalid(format!("linked to {}, which is not there", show(to)).into());
        let (parent, target) = split(to);
        let target_dir = match self.directories.get(parent) {
            Some(known) => known.ino,
            None => return Err(missing()),
        };
        let ino = self.volume.lookup(target_dir, target).map_err(|error| match error {
            Error::NotFound => missing(),
            other => other,
        })?;
        let saved = self.volume.stat(ino)?;
        match self.volume.link(ino, dir, name) {
            Err(Error::Exists) if self.volume.lookup(dir, name)? == ino => return Ok(()),
            Err(Error::Exists) => {
                self.make_way(dir, name)?;
                self.volume.link(ino, dir, name)?;
            }
            linked => linked?,
        }
        // A link changes the inode's time of change, which the first name has brought along.
        self.volume.set_attr(ino, &SetAttr { ctime: Some(saved.ctime), ..SetAttr::default() })
    }

    fn content(
        &mut self,
        ino: Ino,
        size: u64,
        has_holes: bool,
        path: &[u8],
        source: &mut dyn Source,
        options: &mut FillOptions<'_>,
    ) -> Result<()> {
        if has_holes {
            self.volume.truncate(ino, size)?;
        }
        loop {
            // The buffer is lent to the source, while the volume is still ours.
            let mut buf = std::mem::take(&mut self.buf);
            let flow = self.run(ino, size, &mut buf, source);
            self.buf = buf;
            match flow? {
                ControlFlow::Continue(run) => self.filled.bytes += run.length as u64,
                ControlFlow::Break(()) => return Ok(()),
            }
            self.report(path, options);
        }
    }

    fn run(
        &mut self,
        ino: Ino,
        size: u64,
        buf: &mut [u8],
        source: &mut dyn Source,
    ) -> Result<ControlFlow<(), Run>> {
        let Some(run) = source.next_run(buf)? else { return Ok(ControlFlow::Break(())) };
        debug_assert!(run.offset + run.length as u64 <= size, "a source gives no more than the entry says");
        self.volume.write(ino, run.offset, &buf[..run.length])?;
        Ok(ControlFlow::Continue(run))
    }

    fn set_owner(&mut self, ino: Ino, meta: &Metadata) -> Result<()> {
        let set = SetAttr {
            permissions: Some(meta.permissions),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            ..SetAttr::default()
        };
        self.volume.set_attr(ino, &set)
    }

    fn set_xattrs(&mut self, ino: Ino, meta: &Metadata) -> Result<()> {
        for xattr in &meta.xattrs {
            self.volume.set_xattr(ino, &xattr.name, &xattr.value, XattrMode::Set)?;
        }
        Ok(())
    }

    fn clear_xattrs(&mut self, ino: Ino) -> Result<()> {
        for name in self.volume.list_xattrs(ino)? {
            self.volume.remove_xattr(ino, &name)?;
        }
        Ok(())
    }

    fn set_times(&mut self, ino: Ino, times: Times) -> Result<()> {
        let set = SetAttr {
            atime: Some(times.atime),
            mtime: Some(times.mtime),
            ctime: Some(times.ctime),
            ..SetAttr::default()
        };
        self.volume.set_attr(ino, &set)
    }

    /// Gives directories their times, the last opened first, until one that `stays`.
    fn leave_until(&mut self, stays: impl Fn(&[u8]) -> bool) -> Result<()> {
        while let Some(path) = self.open.pop() {
            if stays(&path) {
                self.open.push(path);
                break;
            }
            let directory = self.directories[&path];
            if let Some(times) = directory.times {
                self.set_times(directory.ino, times)?;
            }
        }
        Ok(())
    }
}

/// Whether a path is a directory or something below it.
fn is_under(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty()
        || path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn new_node(kind: FileType, meta: &Metadata, times: Times) -> NewNode {
    NewNode {
        mode: kind.mode_bits() | meta.permissions,
        uid: meta.uid,
        gid: meta.gid,
        device: None,
        times: Some(times),
    }
}

/// The times of an entry; what its source does not know is the time of its content.
fn times(meta: &Metadata) -> Times {
    Times {
        atime: meta.atime.unwrap_or(meta.mtime),
        ctime: meta.ctime.unwrap_or(meta.mtime),
        mtime: meta.mtime,
        crtime: meta.ctime.unwrap_or(meta.mtime),
    }
}
