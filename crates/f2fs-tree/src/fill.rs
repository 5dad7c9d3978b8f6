//! Filling a volume from a source, through the engine's ordinary operations.
//!
//! Existing directories are merged; any other existing entry of the same name is replaced. Nothing is durable
//! before the caller's checkpoint: a caller that drops the volume instead leaves the device's volume
//! unchanged.

use std::ops::ControlFlow;

use f2fs::{
    Error, Result,
    engine::{Caller, Engine, NewNode, SetAttr, Times, XattrMode},
    format::{FileType, inode::flag},
    printable,
    units::Ino,
};

use crate::{
    Entry, Kind, Metadata, Need, NeedCounter, Run, Source, Transform,
    directories::{Directories, DirectoryId},
    need::Rooms,
    path::{components, split},
};

/// Bytes of a file read and written at once.
const RUN_BYTES: usize = 1 << 20;
/// Permissions of directories without an entry of their own.
const IMPLIED_PERMISSIONS: u16 = 0o755;
/// Free blocks that the engine requires beyond the blocks it writes, for the last entries and writes.
pub const SLACK_BLOCKS: u64 = 64;

/// Progress of a fill or an export.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Entries completed.
    pub entries: u64,
    /// Bytes of data written.
    pub bytes: u64,
    /// Path of the current entry.
    pub path: &'a [u8],
}

/// Totals of a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filled {
    /// Names, without the root.
    pub entries: u64,
    /// Bytes of data.
    pub bytes: u64,
}

/// Options of a fill.
#[derive(Default)]
pub struct FillOptions<'a> {
    /// Changes applied to the entries.
    pub transform: Transform,
    /// True if the filled directory takes over the metadata of the source's root: owner, permissions, times
    /// and attributes.
    pub root: bool,
    /// Use of the blocks that the compression of a file saves.
    pub saved_space: SavedSpace,
    /// Called for every entry and every run of data.
    pub progress: Option<&'a mut dyn FnMut(Progress<'_>)>,
}

/// Use of the blocks that the compression of a file saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SavedSpace {
    /// They stay reserved for the file, which can be written.
    #[default]
    Reserved,
    /// They are free, and the file cannot be written.
    Released,
}

/// Counts the space that a source takes on a volume with this superblock, opened with these options.
pub fn count(
    source: &mut dyn Source,
    transform: &Transform,
    superblock: &f2fs::format::superblock::Superblock,
    options: &f2fs::engine::Options,
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

/// Copies a source's tree into the directory `into`. If it does not fit, [`Error::NoSpace`] states how much
/// space the whole tree needs.
pub fn fill(
    volume: &mut Engine,
    into: Ino,
    source: &mut dyn Source,
    mut options: FillOptions<'_>,
) -> Result<Filled> {
    let counter = NeedCounter::new(volume.superblock(), volume.options());
    let mut filler = Filler {
        rooms: Rooms::of(volume.superblock(), volume.options()),
        volume,
        directories: Directories::new(Directory { ino: into, times: None }),
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
                let mut counter = counter.take().expect("it exists");
                source.skip_data();
                count_rest(&mut counter, source, &options.transform)?;
                let needed_blocks = counter.need()?.blocks + SLACK_BLOCKS;
                let block_size = filler.volume.superblock().block_size;
                // Blocks may not be the resource that ran out.
                return Err(match needed_blocks > free_blocks {
                    true => Error::no_space(block_size, needed_blocks, free_blocks),
                    false => error,
                });
            }
            Err(error) => return Err(about(&entry.path, error)),
        }
    }
    filler.leave(&[])?;
    Ok(filler.filled)
}

/// Adds an entry's path to an error that names no location.
fn about(path: &[u8], error: Error) -> Error {
    match error {
        Error::Corrupt { .. }
        | Error::Io { .. }
        | Error::Host { .. }
        | Error::NoSpace { .. }
        | Error::NoInodes => error,
        Error::Unsupported(what) => Error::Unsupported(format!("{what} ({})", printable::path(path)).into()),
        other => Error::Invalid(format!("{}: {other}", printable::path(path)).into()),
    }
}

/// A directory of the volume that may receive entries.
#[derive(Debug, Clone, Copy)]
struct Directory {
    ino: Ino,
    /// Times to set once the directory is complete, if the source has them.
    times: Option<Times>,
}

struct Filler<'v> {
    volume: &'v mut Engine,
    rooms: Rooms,
    /// Every directory met so far.
    directories: Directories<Directory>,
    /// The directories whose times are set when the fill leaves them.
    open: Vec<DirectoryId>,
    filled: Filled,
    buf: Vec<u8>,
}

impl Filler<'_> {
    fn entry(&mut self, entry: &Entry, source: &mut dyn Source, options: &mut FillOptions<'_>) -> Result<()> {
        self.rooms.xattr_nodes(&entry.meta)?;
        self.report(&entry.path, options);
        if entry.path.is_empty() {
            if !matches!(entry.kind, Kind::Directory) {
                return Err(Error::NotDirectory);
            }
            return if options.root { self.root(entry) } else { Ok(()) };
        }
        let (parent, name) = split(&entry.path);
        self.leave(&self.directories.chain(parent))?;
        let parent = self.directory(parent)?;
        match &entry.kind {
            Kind::Directory => self.make_directory(parent, name, entry)?,
            Kind::HardLink { to } => self.hard_link(parent, name, to)?,
            _ => {
                let ino = self.make_file(parent, name, entry)?;
                self.set_xattrs(ino, &entry.meta)?;
                if let Kind::File { size, data } = &entry.kind {
                    if data.is_some() {
                        // No run covers the holes.
                        self.volume.begin(Caller::ADMIN).truncate(ino, *size)?;
                    }
                    self.content(ino, *size, &entry.path, source, options)?;
                    if options.saved_space == SavedSpace::Released {
                        self.release_saved(ino)?;
                    }
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

    /// Applies the entry of the source's root.
    fn root(&mut self, entry: &Entry) -> Result<()> {
        let root = self.directories.get_mut(DirectoryId::ROOT);
        root.times = Some(times(&entry.meta));
        let ino = root.ino;
        self.set_owner(ino, &entry.meta)?;
        self.set_xattrs(ino, &entry.meta)?;
        // Below the directories that an archive has had before its root.
        if !self.open.contains(&DirectoryId::ROOT) {
            self.open.insert(0, DirectoryId::ROOT);
        }
        Ok(())
    }

    /// Returns the directory at a path and creates its missing components.
    fn directory(&mut self, path: &[u8]) -> Result<DirectoryId> {
        let mut at = DirectoryId::ROOT;
        for name in components(path) {
            at = match self.directories.child(at, name) {
                Some(child) => child,
                None => {
                    // A new directory changes the times of the one that contains it.
                    self.reopen(at);
                    self.implied_directory(at, name)?
                }
            };
        }
        self.reopen(at);
        Ok(at)
    }

    /// Makes the fill set the times of a directory again when it leaves it, if the source has them.
    fn reopen(&mut self, directory: DirectoryId) {
        if self.directories.get(directory).times.is_some() && !self.open.contains(&directory) {
            self.open.push(directory);
        }
    }

    /// Returns a directory that has had no entry: the volume's, or a new one.
    fn implied_directory(&mut self, parent: DirectoryId, name: &[u8]) -> Result<DirectoryId> {
        let dir = self.directories.get(parent).ino;
        let ino = match self.volume.lookup(dir, name) {
            Ok(ino) if self.volume.stat(ino)?.kind == FileType::Directory => ino,
            Ok(_) => return Err(Error::NotDirectory),
            Err(Error::NotFound) => {
                let mode = FileType::Directory.mode_bits() | IMPLIED_PERMISSIONS;
                self.filled.entries += 1;
                self.volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(mode))?
            }
            Err(error) => return Err(error),
        };
        self.directories.insert(parent, name, Directory { ino, times: None })
    }

    fn make_directory(&mut self, parent: DirectoryId, name: &[u8], entry: &Entry) -> Result<()> {
        let dir = self.directories.get(parent).ino;
        let times = times(&entry.meta);
        let new = new_node(FileType::Directory, &entry.meta, times);
        let ino = match self.volume.begin(Caller::ADMIN).create(dir, name, &new) {
            Err(Error::Exists) => {
                let there = self.volume.lookup(dir, name)?;
                if self.volume.stat(there)?.kind == FileType::Directory {
                    self.set_owner(there, &entry.meta)?;
                    self.clear_xattrs(there)?;
                    there
                } else {
                    self.volume.begin(Caller::ADMIN).unlink(dir, name)?;
                    self.volume.begin(Caller::ADMIN).create(dir, name, &new)?
                }
            }
            made => made?,
        };
        self.set_xattrs(ino, &entry.meta)?;
        let made = self.directories.insert(parent, name, Directory { ino, times: Some(times) })?;
        // Its times are set only once, when the fill leaves it.
        if !self.open.contains(&made) {
            self.open.push(made);
        }
        Ok(())
    }

    fn make_file(&mut self, parent: DirectoryId, name: &[u8], entry: &Entry) -> Result<Ino> {
        let dir = self.directories.get(parent).ino;
        match self.try_make_file(dir, name, entry) {
            Err(Error::Exists) => {
                self.make_way(parent, name)?;
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
            Kind::Symlink { target } => self.volume.begin(Caller::ADMIN).symlink(dir, name, target, &new),
            _ => self.volume.begin(Caller::ADMIN).create(dir, name, &new),
        }
    }

    /// Removes the existing entry of this name. A directory must be empty. Later entries do not find it any more, and it is
    /// not open: the fill has left it.
    fn make_way(&mut self, parent: DirectoryId, name: &[u8]) -> Result<()> {
        let dir = self.directories.get(parent).ino;
        let there = self.volume.lookup(dir, name)?;
        match self.volume.begin(Caller::ADMIN).unlink(dir, name) {
            Err(Error::IsDirectory) => self.volume.begin(Caller::ADMIN).remove_dir(dir, name)?,
            done => return done,
        }
        match self.volume.stat(dir)?.flags & flag::CASEFOLD {
            0 => self.directories.remove(parent, name),
            // It may have been met by several spellings of its name.
            _ => self.directories.retain(parent, |child| child.ino != there),
        }
        Ok(())
    }

    fn hard_link(&mut self, parent: DirectoryId, name: &[u8], to: &[u8]) -> Result<()> {
        let dir = self.directories.get(parent).ino;
        let missing =
            || Error::Invalid(format!("hard link to {}, which does not exist", printable::path(to)).into());
        let (to_parent, target) = split(to);
        let target_dir = self.directories.find(to_parent).ok_or_else(missing)?;
        let target_dir = self.directories.get(target_dir).ino;
        let ino = self.volume.lookup(target_dir, target).map_err(|error| match error {
            Error::NotFound => missing(),
            other => other,
        })?;
        let saved = self.volume.stat(ino)?;
        match self.volume.begin(Caller::ADMIN).link(ino, dir, name) {
            Err(Error::Exists) if self.volume.lookup(dir, name)? == ino => return Ok(()),
            Err(Error::Exists) => {
                self.make_way(parent, name)?;
                self.volume.begin(Caller::ADMIN).link(ino, dir, name)?;
            }
            linked => linked?,
        }
        // A link changes the inode's time of change, which the first name has set to the source's.
        self.volume
            .begin(Caller::ADMIN)
            .set_attr(ino, &SetAttr { ctime: Some(saved.ctime), ..SetAttr::default() })
    }

    fn content(
        &mut self,
        ino: Ino,
        size: u64,
        path: &[u8],
        source: &mut dyn Source,
        options: &mut FillOptions<'_>,
    ) -> Result<()> {
        loop {
            // The buffer is moved out so that the source can write to it while `self` is borrowed.
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
        debug_assert!(
            run.offset + run.length as u64 <= size,
            "a source returns at most the bytes of the entry"
        );
        self.volume.begin(Caller::ADMIN).write(ino, run.offset, &buf[..run.length])?;
        Ok(ControlFlow::Continue(run))
    }

    /// Releases the blocks that compression saves in a file, if it is compressed.
    fn release_saved(&mut self, ino: Ino) -> Result<()> {
        if self.volume.stat(ino)?.compression.is_some() {
            self.volume.begin(Caller::ADMIN).release_saved(ino)?;
        }
        Ok(())
    }

    fn set_owner(&mut self, ino: Ino, meta: &Metadata) -> Result<()> {
        let set = SetAttr {
            permissions: Some(meta.permissions),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            ..SetAttr::default()
        };
        self.volume.begin(Caller::ADMIN).set_attr(ino, &set)
    }

    fn set_xattrs(&mut self, ino: Ino, meta: &Metadata) -> Result<()> {
        for xattr in &meta.xattrs {
            self.volume.begin(Caller::ADMIN).set_xattr(ino, &xattr.name, &xattr.value, XattrMode::Set)?;
        }
        Ok(())
    }

    fn clear_xattrs(&mut self, ino: Ino) -> Result<()> {
        for name in self.volume.list_xattrs(ino)? {
            self.volume.begin(Caller::ADMIN).remove_xattr(ino, &name)?;
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
        self.volume.begin(Caller::ADMIN).set_attr(ino, &set)
    }

    /// Sets the times of open directories, the last opened first, up to the first that is on the path of
    /// `next`.
    fn leave(&mut self, next: &[DirectoryId]) -> Result<()> {
        while let Some(open) = self.open.pop() {
            if self.directories.is_on(open, next) {
                self.open.push(open);
                break;
            }
            let directory = *self.directories.get(open);
            if let Some(times) = directory.times {
                self.set_times(directory.ino, times)?;
            }
        }
        Ok(())
    }
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

/// Returns the times of an entry. Times unknown to the source become the time of the content's last change.
fn times(meta: &Metadata) -> Times {
    Times {
        atime: meta.atime.unwrap_or(meta.mtime),
        ctime: meta.ctime.unwrap_or(meta.mtime),
        mtime: meta.mtime,
        crtime: meta.ctime.unwrap_or(meta.mtime),
    }
}
