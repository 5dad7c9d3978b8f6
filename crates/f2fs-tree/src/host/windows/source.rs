//! A source that reads a directory of Windows, depth first, with names in byte order. Links and other reparse points
//! that stand for another place are entries of their own and are never followed.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use f2fs::{Error, Result, format::NAME_MAX, units::Time};

use super::super::shown;
use crate::{
    Entry, Exclusion, Kind, Metadata, Run, Source,
    exclude::Role,
    path::{components, joined},
};

/// Permissions of the entries, which have none on Windows.
const DIRECTORY_PERMISSIONS: u16 = 0o755;
const FILE_PERMISSIONS: u16 = 0o644;
/// Permissions of a file with the attribute read-only.
const READ_ONLY_PERMISSIONS: u16 = 0o444;
/// Permissions of a symbolic link, as Linux has them.
const LINK_PERMISSIONS: u16 = 0o777;

/// A walk of a directory. See the module.
pub struct DirSource {
    /// The tree on the host, as its canonical path. Windows does not interpret names in such a path any further.
    root: PathBuf,
    /// The name that the caller has given the tree, for messages.
    name: Vec<u8>,
    /// The directories from the root to the current one.
    stack: Vec<Listing>,
    /// Path of the directory on top of the stack, relative to the root.
    path: Vec<u8>,
    /// The root's own entry, until it is returned.
    first: Option<Entry>,
    /// The last entry, if it is a file with data.
    open: Option<OpenFile>,
    left_out: Vec<PathBuf>,
    exclusion: Arc<Exclusion>,
}

/// The remaining names of a directory, the next one last.
struct Listing {
    names: Vec<String>,
    /// Length of the parent directory's path in bytes.
    parent_path: usize,
}

struct OpenFile {
    file: File,
    path: Vec<u8>,
    offset: u64,
    size: u64,
}

impl DirSource {
    /// Starts a walk of `root`, which must be a directory or a link to one.
    pub fn new(root: &Path) -> Result<DirSource> {
        let name = root.as_os_str().as_encoded_bytes().to_vec();
        let failed = |source| Error::Host { path: shown(&name, b""), source };
        let root = fs::canonicalize(root).map_err(failed)?;
        let facts = fs::metadata(&root).map_err(failed)?;
        if !facts.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        let meta = metadata(&facts, DIRECTORY_PERMISSIONS);
        let first = Entry { path: Vec::new(), kind: Kind::Directory, meta };
        let mut source = DirSource {
            root,
            name,
            stack: Vec::new(),
            path: Vec::new(),
            first: Some(first),
            open: None,
            left_out: Vec::new(),
            exclusion: Arc::default(),
        };
        source.enter(0)?;
        Ok(source)
    }

    /// Skips these files, so that an output file inside the tree does not become a part of itself. A file that does not
    /// exist is skipped nowhere.
    #[must_use]
    pub fn leaving_out(self, files: &[PathBuf]) -> DirSource {
        let left_out = files.iter().filter_map(|file| fs::canonicalize(file).ok()).collect();
        DirSource { left_out, ..self }
    }

    /// Leaves out the entries that match. The directories among them are not read.
    #[must_use]
    pub fn excluding(self, exclusion: Arc<Exclusion>) -> DirSource {
        DirSource { exclusion, ..self }
    }

    fn failed(&self, path: &[u8], source: io::Error) -> Error {
        Error::Host { path: shown(&self.name, path), source }
    }

    /// Returns the host's path of an entry.
    fn at(&self, path: &[u8]) -> PathBuf {
        let names = components(path);
        let names = names.map(|name| std::str::from_utf8(name).expect("names of the host were Unicode"));
        names.fold(self.root.clone(), |at, name| at.join(name))
    }

    /// Reads the names of the directory at `self.path` and pushes it on the stack.
    fn enter(&mut self, parent_path: usize) -> Result<()> {
        let failed = |error| self.failed(&self.path, error);
        let mut names = Vec::new();
        for item in fs::read_dir(self.at(&self.path)).map_err(failed)? {
            let name = item.map_err(failed)?.file_name().into_string();
            let name = name.map_err(|name| {
                let what = format!("the name {name:?} is not Unicode; rename the file");
                failed(io::Error::new(io::ErrorKind::InvalidInput, what))
            })?;
            if name.len() > NAME_MAX {
                let what =
                    format!("the name {name:?} has more than {NAME_MAX} bytes in UTF-8; rename the file");
                return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, what)));
            }
            names.push(name);
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.stack.push(Listing { names, parent_path });
        Ok(())
    }

    /// Returns the entry of a name in the top directory, or None if it is skipped.
    fn entry_of(&mut self, name: &str) -> Result<Option<Entry>> {
        let parent = self.path.len();
        let path = joined(&self.path, name.as_bytes());
        let at = self.at(&path);
        if self.left_out.contains(&at) {
            return Ok(None);
        }
        let facts = fs::symlink_metadata(&at).map_err(|error| self.failed(&path, error))?;
        let role = if facts.is_dir() && !facts.is_symlink() { Role::Directory } else { Role::Leaf };
        if self.exclusion.matches(&path, role) {
            return Ok(None);
        }
        let (kind, permissions) = if facts.is_symlink() {
            let target = fs::read_link(&at).map_err(|error| self.failed(&path, error))?;
            let target = target.to_string_lossy().replace('\\', "/").into_bytes();
            (Kind::Symlink { target }, LINK_PERMISSIONS)
        } else if facts.is_dir() {
            self.path.clone_from(&path);
            self.enter(parent)?;
            (Kind::Directory, DIRECTORY_PERMISSIONS)
        } else {
            let size = facts.len();
            if size > 0 {
                let file = File::open(&at).map_err(|error| self.failed(&path, error))?;
                self.open = Some(OpenFile { file, path: path.clone(), offset: 0, size });
            }
            let is_read_only = facts.permissions().readonly();
            let permissions = if is_read_only { READ_ONLY_PERMISSIONS } else { FILE_PERMISSIONS };
            (Kind::File { size, data: None }, permissions)
        };
        Ok(Some(Entry { path, kind, meta: metadata(&facts, permissions) }))
    }
}

impl Source for DirSource {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        self.open = None;
        if let Some(root) = self.first.take() {
            return Ok(Some(root));
        }
        while let Some(top) = self.stack.last_mut() {
            match top.names.pop() {
                Some(name) => {
                    if let Some(entry) = self.entry_of(&name)? {
                        return Ok(Some(entry));
                    }
                }
                None => {
                    self.path.truncate(top.parent_path);
                    self.stack.pop();
                }
            }
        }
        Ok(None)
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let rest = usize::try_from(open.size - open.offset).unwrap_or(usize::MAX);
        let (wanted, offset) = (buf.len().min(rest), open.offset);
        if wanted == 0 {
            return Ok(None);
        }
        if let Err(error) = open.file.read_exact(&mut buf[..wanted]) {
            let error = match error.kind() {
                // A copy of it would be torn.
                io::ErrorKind::UnexpectedEof => {
                    io::Error::new(error.kind(), "the file became shorter while it was read")
                }
                _ => error,
            };
            return Err(Error::Host { path: shown(&self.name, &open.path), source: error });
        }
        open.offset += wanted as u64;
        Ok(Some(Run { offset, length: wanted }))
    }
}

fn metadata(facts: &fs::Metadata, permissions: u16) -> Metadata {
    // Windows has both times on every file system that it can install on; others give 1601.
    let mtime = facts.modified().map(Time::from).unwrap_or_default();
    Metadata { permissions, mtime, atime: facts.accessed().ok().map(Time::from), ..Metadata::default() }
}
