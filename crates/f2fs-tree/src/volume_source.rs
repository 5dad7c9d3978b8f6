//! A source that reads a volume or a part of it, depth first, with names in byte order.
//!
//! Damage does not end the walk. Each part that cannot be read is an [`Error::Lost`] with its path, and the
//! next call continues after it. [`Walk`] guarantees that the walk ends.
//!
//! A damaged entry may lead to a directory whose real name is elsewhere and intact. Therefore a directory
//! whose `..` names another parent is deferred to the end. It is returned there only if nothing else has led
//! to it.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::Arc,
};

use f2fs::{
    Error, Place, Result,
    engine::{Engine, ExtentKind, Hidden, Stat},
    format::{FileType, LOG_BLOCKS_PER_SEGMENT, superblock::Superblock},
    units::Ino,
    walk::{Found, Step, Walk},
};

use crate::{Entry, Exclusion, Kind, Metadata, Run, Source, Xattr, exclude::Role, path::joined};

/// A source that reads a volume. See the module.
pub struct VolumeSource<'v> {
    volume: &'v Engine,
    /// True if encrypted files are read as they are stored. If false, encrypted files and directories without a key are
    /// lost, with [`Error::NoKey`], [`Error::OtherKey`] or [`Error::UnusableKey`].
    raw: bool,
    exclusion: Arc<Exclusion>,
    /// The root with its path, until it is returned.
    root: Option<(Ino, Vec<u8>)>,
    walk: Walk,
    /// Directories whose `..` names another parent.
    strays: Vec<Found>,
    /// First names of inodes with several links, each with its directory.
    links: HashMap<Ino, (Ino, Box<[u8]>)>,
    /// Losses to report before the next entry.
    losses: VecDeque<Error>,
    ready: Option<Entry>,
    open: Option<OpenFile>,
    /// Inode of the last entry, if the entry is the first name of several.
    first_of: Option<Ino>,
    /// Number of bytes of data that further files may have: at first those of the main area. A sound volume has no more,
    /// because each block belongs to one file. It bounds the size of the output if files share blocks, or if an inode
    /// has more names than it counts.
    budget_bytes: u64,
}

/// The last entry, which is a file.
struct OpenFile {
    ino: Ino,
    path: Vec<u8>,
    /// True if the content is read as it is stored.
    is_raw: bool,
    /// Remaining pieces, the next one last.
    pieces: Vec<Piece>,
    is_compressed: bool,
    /// End of the range that is read block by block or cluster by cluster after an error, to lose as little
    /// as possible.
    careful_until: u64,
}

/// A part of a file that is not a hole.
enum Piece {
    Data(Range<u64>),
    Hidden(Hidden),
}

impl<'v> VolumeSource<'v> {
    /// Starts at `root`. A directory gives its own entry with an empty path and all its contents; any other
    /// file gives one entry called `name`.
    pub fn new(volume: &'v Engine, root: Ino, name: &[u8]) -> Result<VolumeSource<'v>> {
        let path = if volume.inode(root)?.is_directory() { Vec::new() } else { name.to_vec() };
        Ok(VolumeSource {
            volume,
            raw: false,
            exclusion: Arc::default(),
            root: Some((root, path)),
            walk: Walk::default(),
            strays: Vec::new(),
            links: HashMap::new(),
            losses: VecDeque::new(),
            ready: None,
            open: None,
            first_of: None,
            budget_bytes: main_bytes(volume.superblock()),
        })
    }

    /// Makes the source read encrypted files as they are stored.
    pub fn raw(self) -> VolumeSource<'v> {
        VolumeSource { raw: true, ..self }
    }

    /// Leaves out the entries that match, with any damage to them. The directories among them are not read.
    #[must_use]
    pub fn excluding(self, exclusion: Arc<Exclusion>) -> VolumeSource<'v> {
        VolumeSource { exclusion, ..self }
    }

    /// Prepares the next entry or a loss. Returns `false` at the end.
    fn advance(&mut self) -> bool {
        if let Some((ino, path)) = self.root.take() {
            let found = Found { dir: ino, name: Vec::new(), ino, kind: None };
            self.take(path, &found);
            return true;
        }
        while let Some(step) = self.walk.next() {
            let Step::Name(found) = step else { continue };
            if self.is_excluded(&found) {
                continue;
            }
            if self.is_stray(&found) {
                self.walk.remember();
                self.strays.push(found);
                continue;
            }
            self.take(self.walk.path().to_vec(), &found);
            return true;
        }
        let Some(stray) = self.strays.pop() else { return false };
        self.walk.go_to(&stray);
        self.take(self.walk.path().to_vec(), &stray);
        true
    }

    /// Returns true if a pattern leaves out the last step of the walk.
    fn is_excluded(&self, found: &Found) -> bool {
        if self.exclusion.is_empty() {
            return false;
        }
        let kind = self.volume.inode(found.ino).map_or(found.kind, |inode| Some(inode.file_type()));
        let role = if kind == Some(FileType::Directory) { Role::Directory } else { Role::Leaf };
        self.exclusion.matches(self.walk.path(), role)
    }

    /// Returns true if a name leads to a directory whose `..` names another parent.
    fn is_stray(&self, found: &Found) -> bool {
        let Ok(inode) = self.volume.inode(found.ino) else { return false };
        // Old kernels do not keep the inode's parent field up to date.
        inode.is_directory()
            && inode.head().pino.get() != found.dir.0
            && self.volume.lookup(found.ino, b"..").is_ok_and(|parent| parent != found.dir)
    }

    fn take(&mut self, path: Vec<u8>, found: &Found) {
        match self.entry(&path, found) {
            Ok((kind, meta)) => self.ready = Some(Entry { path, kind, meta }),
            Err(error) => self.losses.push_back(Error::lost(&path, error)),
        }
    }

    fn entry(&mut self, path: &[u8], found: &Found) -> Result<(Kind, Metadata)> {
        let ino = found.ino;
        let stat = self.volume.stat(ino).map_err(|error| match found.kind {
            Some(FileType::Directory) => nameless(error),
            _ => error,
        })?;
        let is_shared = stat.links > 1 && stat.kind != FileType::Directory;
        if let Some((dir, name)) = self.links.get(&ino).filter(|_| is_shared) {
            let to = self.walk.path_of(*dir, name);
            return Ok((Kind::HardLink { to }, metadata(&stat, Vec::new())));
        }
        if stat.encrypted && !self.raw {
            self.volume.require_key(ino)?;
        }
        let (xattrs, damage) = self.volume.readable_xattrs(ino)?;
        let mut xattrs: Vec<Xattr> = xattrs.into_iter().map(|(name, value)| Xattr { name, value }).collect();
        xattrs.sort_by(|a, b| a.name.cmp(&b.name));
        let kind = match stat.kind {
            FileType::Directory => {
                self.enter(path, ino)?;
                Kind::Directory
            }
            FileType::Regular => self.file(path, &stat)?,
            FileType::Symlink => Kind::Symlink { target: self.volume.read_link(ino)? },
            FileType::CharDevice => Kind::CharDevice(stat.device.unwrap_or_default()),
            FileType::BlockDevice => Kind::BlockDevice(stat.device.unwrap_or_default()),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        };
        self.losses.extend(damage.into_iter().map(|error| Error::lost(path, error)));
        if is_shared {
            self.walk.remember();
            self.links.insert(ino, (found.dir, found.name.as_slice().into()));
            self.first_of = Some(ino);
        }
        Ok((kind, metadata(&stat, xattrs)))
    }

    fn enter(&mut self, path: &[u8], ino: Ino) -> Result<()> {
        for error in self.walk.enter(self.volume, ino)? {
            self.losses.push_back(match error {
                // The loss of a name in the directory.
                Error::Lost { path: name, bytes, source } => {
                    let path = joined(path, &name);
                    Error::Lost { path, bytes, source }
                }
                error => Error::lost(path, error),
            });
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8], stat: &Stat) -> Result<Kind> {
        let (pieces, stored_bytes) = self.pieces(stat);
        self.budget_bytes = self.budget_bytes.checked_sub(stored_bytes).ok_or_else(|| {
            let what =
                "with it, the files have more data than the volume has blocks, so some of them share blocks";
            Error::corrupt(Place::Inode(stat.ino), what)
        })?;
        let data: Vec<Range<u64>> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Data(range) => Some(range.clone()),
                Piece::Hidden(_) => None,
            })
            .collect();
        let whole = data.len() == 1 && data[0] == (0..stat.size) || stat.size == 0;
        self.open = Some(OpenFile {
            ino: stat.ino,
            path: path.to_vec(),
            is_raw: self.raw,
            pieces: pieces.into_iter().rev().collect(),
            is_compressed: stat.compression.is_some(),
            careful_until: 0,
        });
        Ok(Kind::File { size: stat.size, data: (!whole).then_some(data) })
    }

    /// Returns the parts of a file that are not holes, in order, and the least number of bytes that a volume stores
    /// for them. Adjacent data is one piece.
    fn pieces(&self, stat: &Stat) -> (Vec<Piece>, u64) {
        let mut pieces: Vec<Piece> = Vec::new();
        let log_cluster_blocks = stat.compression.map_or(0, |compression| compression.log_cluster_blocks);
        let (mut at, mut stored_bytes) = (0, 0);
        while at < stat.size {
            match self.volume.next_extent_or_hidden(stat.ino, at) {
                Ok(None) => break,
                Ok(Some(extent)) => {
                    at = extent.offset + extent.length;
                    let range = extent.offset..at.min(stat.size);
                    stored_bytes += match extent.kind {
                        ExtentKind::Data | ExtentKind::Inline => range.end - range.start,
                        ExtentKind::Compressed => extent.length >> log_cluster_blocks,
                        ExtentKind::Unwritten => 0,
                    };
                    match pieces.last_mut() {
                        _ if extent.kind == ExtentKind::Unwritten => {}
                        Some(Piece::Data(last)) if last.end == range.start => last.end = range.end,
                        _ => pieces.push(Piece::Data(range)),
                    }
                }
                Err(mut hidden) => {
                    at = hidden.bytes.end;
                    hidden.bytes.end = at.min(stat.size);
                    match pieces.last_mut() {
                        Some(Piece::Hidden(last)) if last.bytes.end == hidden.bytes.start => {
                            last.bytes.end = hidden.bytes.end;
                        }
                        _ => pieces.push(Piece::Hidden(hidden)),
                    }
                }
            }
        }
        (pieces, stored_bytes)
    }
}

/// Returns the number of bytes in the main area, which has the data of all files.
fn main_bytes(sb: &Superblock) -> u64 {
    (u64::from(sb.main.segments) << LOG_BLOCKS_PER_SEGMENT) * sb.block_size.bytes() as u64
}

impl Source for VolumeSource<'_> {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        if self.ready.is_none() {
            (self.open, self.first_of) = (None, None);
        }
        loop {
            if let Some(error) = self.losses.pop_front() {
                return Err(error);
            }
            if let Some(entry) = self.ready.take() {
                return Ok(Some(entry));
            }
            if !self.advance() {
                return Ok(None);
            }
        }
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        let block = self.volume.superblock().block_size.bytes() as u64;
        let Some(file) = &mut self.open else { return Ok(None) };
        loop {
            let range = match file.pieces.pop() {
                None => return Ok(None),
                Some(Piece::Hidden(Hidden { bytes, error })) => return Err(file.lost(bytes, error)),
                Some(Piece::Data(range)) => range,
            };
            let offset = range.start;
            let careful = offset < file.careful_until;
            let most = match careful {
                true => file.smallest(self.volume, offset).unwrap_or(block - offset % block),
                false => buf.len() as u64,
            };
            let length = most.min(buf.len() as u64).min(range.end - range.start) as usize;
            let part = &mut buf[..length];
            let read = if file.is_raw {
                self.volume.read_raw(file.ino, offset, part)
            } else {
                self.volume.read(file.ino, offset, part)
            };
            if read.is_err() && !careful && length as u64 > block {
                file.careful_until = offset + length as u64;
                file.pieces.push(Piece::Data(range));
                continue;
            }
            let end = offset + length as u64;
            if end < range.end {
                file.pieces.push(Piece::Data(end..range.end));
            }
            return match read {
                Ok(read) if read == length => Ok(Some(Run { offset, length })),
                // The ranges lie inside the file, whose size stays the same during the read. A short read is
                // damage.
                Ok(_) => {
                    let at = Place::File(file.ino, offset / block);
                    Err(file.lost(offset..end, Error::corrupt(at, "the file is shorter than its size")))
                }
                Err(error) => Err(file.lost(offset..end, error)),
            };
        }
    }

    fn refused(&mut self) {
        if let Some(ino) = self.first_of.take() {
            self.links.remove(&ino);
        }
    }

    fn is_first_name(&self) -> bool {
        self.first_of.is_some()
    }
}

impl OpenFile {
    /// Returns the length of the compressed cluster that begins at `offset`, if there is one. Its bytes can
    /// only be read together.
    fn smallest(&self, volume: &Engine, offset: u64) -> Option<u64> {
        let extent = self.is_compressed.then(|| volume.next_extent(self.ino, offset).ok()?).flatten()?;
        (extent.kind == ExtentKind::Compressed && extent.offset == offset).then_some(extent.length)
    }

    fn lost(&self, bytes: Range<u64>, error: Error) -> Error {
        Error::Lost { path: self.path.clone(), bytes: Some(bytes), source: Box::new(error) }
    }
}

/// Rewords the error of an unreadable directory, which costs everything in it.
fn nameless(error: Error) -> Error {
    match error {
        Error::Corrupt { at, what } => {
            Error::Corrupt { at, what: format!("{what}; the names in this directory are lost").into() }
        }
        error => error,
    }
}

fn metadata(stat: &Stat, xattrs: Vec<Xattr>) -> Metadata {
    Metadata {
        permissions: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        mtime: stat.mtime,
        atime: Some(stat.atime),
        ctime: Some(stat.ctime),
        xattrs,
        names: Default::default(),
        host: None,
    }
}
