//! A sink that writes to a directory of Windows.
//!
//! *Invariants*: the root's path is canonical, so Windows interprets no name below it; a name that programs of Windows
//! would interpret is refused all the same ([`name`](super::name)). The directories from the root to the last entry stay
//! open, and nobody can rename or remove a directory that is open so. A directory that is a reparse point (a symbolic
//! link, a junction, a mounted volume) is refused, and a file is created only under a free name. Therefore neither a
//! hostile volume nor another user with write access to the directory can redirect the export outside.
//!
//! Names that differ only in case denote one entry on Windows. The second of them is refused.

use std::{
    fs::{self, File, FileTimes},
    io,
    os::windows::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use f2fs::{Error, Result, printable};

use super::{super::Owners, super::shown, name};
use crate::{
    Entry, Kind, Metadata,
    export::{Loss, Sink},
    path::{check_components, components, is_inside, joined, split},
};

/// FILE_LIST_DIRECTORY, FILE_READ_ATTRIBUTES and FILE_WRITE_ATTRIBUTES (winnt.h).
const DIRECTORY_ACCESS: u32 = 0x0001 | 0x0080 | 0x0100;
/// FILE_SHARE_READ and FILE_SHARE_WRITE, without FILE_SHARE_DELETE.
const SHARE_ALL_BUT_DELETE: u32 = 1 | 2;
/// FILE_FLAG_BACKUP_SEMANTICS, which opens directories, and FILE_FLAG_OPEN_REPARSE_POINT.
const DIRECTORY_FLAGS: u32 = 0x0200_0000 | 0x0020_0000;
/// FILE_ATTRIBUTE_REPARSE_POINT.
const REPARSE_POINT: u32 = 0x400;

/// A sink that fills a directory of the host. See the module.
pub struct DirSink {
    /// Name of the directory, for messages.
    name: Vec<u8>,
    /// The directories from the root to the parent of the last entry.
    stack: Vec<OpenDirectory>,
    /// Path of the directory on top of the stack, relative to the root.
    path: Vec<u8>,
    file: Option<OpenFile>,
    /// True if an existing entry of the same name is removed first.
    overwrite: bool,
    losses: Vec<Loss>,
}

struct OpenDirectory {
    /// Its canonical path.
    at: PathBuf,
    /// Keeps the directory at its place.
    held: File,
    /// Times to set when the sink leaves it.
    times: Option<FileTimes>,
    /// Length of the parent directory's path in bytes.
    parent_path: usize,
}

struct OpenFile {
    file: File,
    path: Vec<u8>,
    size: u64,
    /// End of the last run in bytes.
    end: u64,
    times: Option<FileTimes>,
}

impl DirSink {
    /// Makes a sink that writes to the directory `root`, and creates the directory if it does not exist. Owners have no
    /// meaning on Windows.
    pub fn new(root: &Path, _: Owners) -> Result<DirSink> {
        let name = root.as_os_str().as_encoded_bytes().to_vec();
        let open = || {
            if !root.is_dir() {
                fs::create_dir(root)?;
            }
            let at = fs::canonicalize(root)?;
            let held = hold(&at)?;
            let times = times_of(&held.metadata()?);
            Ok(OpenDirectory { at, held, times, parent_path: 0 })
        };
        let bottom = open().map_err(|source| Error::Host { path: shown(&name, b""), source })?;
        Ok(DirSink {
            name,
            stack: vec![bottom],
            path: Vec::new(),
            file: None,
            overwrite: false,
            losses: Vec::new(),
        })
    }

    /// Makes the sink remove an existing entry whose name is needed. Existing directories are merged with
    /// directories of the tree. An existing directory where the tree has another kind of entry is an error.
    pub fn overwriting(self) -> DirSink {
        DirSink { overwrite: true, ..self }
    }

    fn failed(&self, path: &[u8], source: io::Error) -> Error {
        Error::Host { path: shown(&self.name, path), source }
    }

    fn top(&self) -> &OpenDirectory {
        self.stack.last().expect("the root stays on the stack")
    }

    /// Returns the host's path of a name in the top directory.
    fn place(&self, name: &[u8]) -> io::Result<PathBuf> {
        let name = name::checked(name).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        Ok(self.top().at.join(name))
    }

    /// Puts the directory at `path` on top of the stack.
    fn go_to(&mut self, path: &[u8]) -> Result<()> {
        while !is_inside(path, &self.path) {
            self.leave();
        }
        while self.path.len() < path.len() {
            let from = if self.path.is_empty() { 0 } else { self.path.len() + 1 };
            let name = path[from..].split(|byte| *byte == b'/').next().expect("a split has a first part");
            let at = self.place(name).map_err(|error| self.failed(path, error))?;
            self.enter(at, name, None)?;
        }
        Ok(())
    }

    /// Opens a subdirectory of the top directory and pushes it. Without `times`, it keeps those that it has.
    fn enter(&mut self, at: PathBuf, name: &[u8], times: Option<FileTimes>) -> Result<()> {
        let path = joined(&self.path, name);
        let open = || {
            let held = hold(&at)?;
            refuse_other_spelling(&at)?;
            let had = times_of(&held.metadata()?);
            Ok((held, times.or(had)))
        };
        let (held, times) = open().map_err(|error| self.failed(&path, error))?;
        let parent_path = std::mem::replace(&mut self.path, path).len();
        self.stack.push(OpenDirectory { at, held, times, parent_path });
        Ok(())
    }

    /// Leaves the directory on top of the stack.
    fn leave(&mut self) {
        let top = self.stack.pop().expect("the root stays on the stack");
        let path = self.path.clone();
        self.path.truncate(top.parent_path);
        self.set_times(&top.held, &path, top.times);
    }

    fn directory(&mut self, name: &[u8], entry: &Entry) -> Result<()> {
        let at = self.place(name).map_err(|error| self.failed(&entry.path, error))?;
        match fs::create_dir(&at) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.failed(&entry.path, error));
            }
            _ => {}
        }
        let times = self.times(entry);
        self.enter(at, name, times)
    }

    fn begin_file(&mut self, name: &[u8], entry: &Entry, size: u64) -> Result<()> {
        let failed = |error| self.failed(&entry.path, error);
        let at = self.place(name).map_err(failed)?;
        // A free name: a link of this name is an error and is not followed.
        let create = || File::options().write(true).create_new(true).open(&at);
        let file = self.replacing(&at, create).map_err(failed)?;
        let times = self.times(entry);
        self.file = Some(OpenFile { file, path: entry.path.clone(), size, end: 0, times });
        Ok(())
    }

    /// Creates an entry under a new name. If the name is taken and the sink overwrites, removes the old entry and tries
    /// once more.
    fn replacing<T>(&self, at: &Path, create: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !fs::symlink_metadata(at)?.is_symlink() {
                    refuse_other_spelling(at)?;
                }
                if !self.overwrite {
                    return Err(error);
                }
                fs::remove_file(at)?;
                create()
            }
            created => created,
        }
    }

    fn hard_link(&mut self, name: &[u8], entry: &Entry, to: &[u8]) -> Result<()> {
        check_components(to)?;
        let link = || {
            let mut held = Vec::new();
            let mut from = self.stack[0].at.clone();
            let (dir, first) = split(to);
            for name in components(dir) {
                from.push(name::checked(name).map_err(io::Error::other)?);
                held.push(hold(&from)?);
            }
            from.push(name::checked(first).map_err(io::Error::other)?);
            let at = self.place(name)?;
            self.replacing(&at, || fs::hard_link(&from, &at))
        };
        link().map_err(|error| self.failed(&entry.path, error))
    }

    fn finish_file(&mut self) {
        let Some(OpenFile { file, path, size, end, times }) = self.file.take() else { return };
        if end < size {
            if let Err(error) = file.set_len(size) {
                self.lose(&path, &format!("its size of {size} bytes"), error);
            }
        }
        self.set_times(&file, &path, times);
    }

    fn set_times(&mut self, file: &File, path: &[u8], times: Option<FileTimes>) {
        if let Some(Err(error)) = times.map(|times| file.set_times(times)) {
            self.lose(path, "its times", error);
        }
    }

    /// Returns the times of an entry. Times that Windows cannot express are a loss.
    fn times(&mut self, entry: &Entry) -> Option<FileTimes> {
        let times = times(&entry.meta);
        if times.is_none() {
            self.lose(&entry.path, "its times", io::ErrorKind::InvalidInput.into());
        }
        times
    }

    /// Records the attributes, which Windows does not store.
    fn lose_attributes(&mut self, entry: &Entry) {
        for xattr in &entry.meta.xattrs {
            let what = format!("its attribute {}", printable::name(&xattr.name));
            self.tolerate(&entry.path, &what);
        }
    }

    /// Records the loss of an entry that Windows cannot store. Returns false, as [`Sink::entry`] does for it.
    fn refuse(&mut self, entry: &Entry, what: &str) -> bool {
        self.tolerate(&entry.path, what);
        false
    }

    /// Records a loss that is expected on Windows.
    fn tolerate(&mut self, path: &[u8], what: &str) {
        let why = "directories of Windows do not hold it; a tar archive does";
        self.lose(path, what, io::Error::new(io::ErrorKind::Unsupported, why));
        if let Some(loss) = self.losses.last_mut() {
            loss.is_tolerated = true;
        }
    }

    /// Records the loss of a part of an entry.
    fn lose(&mut self, path: &[u8], what: &str, source: io::Error) {
        let error = Error::Host { path: format!("{}, {what}", shown(&self.name, path)), source };
        self.losses.push(Loss { path: path.to_vec(), error, is_tolerated: false });
    }
}

impl Sink for DirSink {
    fn entry(&mut self, entry: &Entry) -> Result<bool> {
        self.finish_file();
        if entry.path.is_empty() {
            if entry.kind != Kind::Directory {
                return Err(Error::Invalid("the root of a tree must be a directory".into()));
            }
            let times = self.times(entry);
            self.stack[0].times = times.or(self.stack[0].times);
            self.lose_attributes(entry);
            return Ok(true);
        }
        check_components(&entry.path)?;
        let (dir, name) = split(&entry.path);
        self.go_to(dir)?;
        match &entry.kind {
            Kind::Directory => self.directory(name, entry)?,
            Kind::File { size, .. } => self.begin_file(name, entry, *size)?,
            Kind::HardLink { to } => {
                self.hard_link(name, entry, to)?;
                return Ok(true);
            }
            Kind::Symlink { .. } => return Ok(self.refuse(entry, "a symbolic link")),
            Kind::CharDevice(_) | Kind::BlockDevice(_) => return Ok(self.refuse(entry, "a device node")),
            Kind::Fifo => return Ok(self.refuse(entry, "a named pipe")),
            Kind::Socket => return Ok(self.refuse(entry, "a socket")),
        }
        self.lose_attributes(entry);
        Ok(true)
    }

    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let open = self.file.as_mut().expect("runs come after a file's entry");
        let mut done = 0;
        while done < bytes.len() {
            match open.file.seek_write(&bytes[done..], offset + done as u64) {
                Ok(written) => done += written,
                Err(source) => return Err(Error::Host { path: shown(&self.name, &open.path), source }),
            }
        }
        open.end = offset + bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.finish_file();
        while !self.stack.is_empty() {
            self.leave();
        }
        Ok(())
    }

    fn losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }
}

/// Opens a directory and keeps it at its place while it is open. Refuses one that stands for another place.
fn hold(at: &Path) -> io::Result<File> {
    let held = File::options()
        .access_mode(DIRECTORY_ACCESS)
        .share_mode(SHARE_ALL_BUT_DELETE)
        .custom_flags(DIRECTORY_FLAGS)
        .open(at)?;
    let facts = held.metadata()?;
    if facts.file_attributes() & REPARSE_POINT != 0 {
        let what = "a symbolic link or junction, which an export does not follow";
        return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
    }
    if !facts.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(held)
}

/// Refuses an existing entry whose own name is spelled in another way: in other case, or as a short name (`PROGRA~1`).
fn refuse_other_spelling(at: &Path) -> io::Result<()> {
    let own = fs::canonicalize(at)?;
    if own.file_name() == at.file_name() {
        return Ok(());
    }
    let own = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let what =
        format!("Windows takes the name for that of {}, which exists already", printable::message(&own));
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

/// Returns the times of an entry of the tree, if Windows can express them.
fn times(meta: &Metadata) -> Option<FileTimes> {
    let modified = meta.mtime.to_system_time()?;
    let accessed = meta.atime.unwrap_or(meta.mtime).to_system_time()?;
    Some(FileTimes::new().set_modified(modified).set_accessed(accessed))
}

/// Returns the times of an existing directory.
fn times_of(facts: &fs::Metadata) -> Option<FileTimes> {
    Some(FileTimes::new().set_modified(facts.modified().ok()?).set_accessed(facts.accessed().ok()?))
}
