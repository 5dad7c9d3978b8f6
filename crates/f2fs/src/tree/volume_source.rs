//! A volume, or a part of it, as a source: depth first, names in byte order.
//!
//! Damage does not end the walk: an entry that cannot be read is an error, and the next call goes on behind it.
//! Every directory is entered once, so a volume whose directories form a cycle ends in an error, not in a loop.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use super::{Entry, Kind, Metadata, Run, Source, Xattr};
use crate::{
    Error, Place, Result, Volume,
    format::FileType,
    units::Ino,
    volume::{ExtentKind, Stat},
};

/// A walk of a volume. See the module.
pub struct VolumeSource<'v> {
    volume: &'v Volume,
    /// Whether encrypted files are read as they are stored; else they are [`Error::NoKey`].
    raw: bool,
    /// What is still to come, the next last.
    pending: Vec<Pending>,
    entered: HashSet<Ino>,
    /// First names of inodes that have several.
    links: HashMap<Ino, Vec<u8>>,
    open: Option<OpenFile>,
}

/// A name that is still to come.
struct Pending {
    path: Vec<u8>,
    ino: Ino,
}

/// The file that was the last entry.
struct OpenFile {
    ino: Ino,
    encrypted: bool,
    /// Ranges of data that are still to be given, the next last.
    data: Vec<Range<u64>>,
    /// After an error blocks are read one by one until here, so that as little as possible is lost.
    careful_until: u64,
}

impl<'v> VolumeSource<'v> {
    /// The tree at `root`: of a directory what is in it, its own entry with an empty path; of anything else one
    /// entry under `name`.
    pub fn new(volume: &'v Volume, root: Ino, name: &[u8]) -> Result<VolumeSource<'v>> {
        let path = if volume.inode(root)?.is_directory() { Vec::new() } else { name.to_vec() };
        Ok(VolumeSource {
            volume,
            raw: false,
            pending: vec![Pending { path, ino: root }],
            entered: HashSet::new(),
            links: HashMap::new(),
            open: None,
        })
    }

    /// Reads encrypted files as they are stored.
    pub fn raw(self) -> VolumeSource<'v> {
        VolumeSource { raw: true, ..self }
    }

    fn entry(&mut self, path: Vec<u8>, ino: Ino) -> Result<Entry> {
        let stat = self.volume.stat(ino)?;
        if stat.links > 1 && stat.kind != FileType::Directory {
            if let Some(to) = self.links.get(&ino) {
                return Ok(Entry {
                    path,
                    kind: Kind::HardLink { to: to.clone() },
                    meta: metadata(&stat, Vec::new()),
                });
            }
        }
        let mut xattrs: Vec<Xattr> =
            self.volume.xattrs(ino)?.into_iter().map(|(name, value)| Xattr { name, value }).collect();
        xattrs.sort_by(|a, b| a.name.cmp(&b.name));
        let kind = match stat.kind {
            FileType::Directory => {
                self.enter(&path, ino)?;
                Kind::Directory
            }
            FileType::Regular => self.file(&stat)?,
            FileType::Symlink => Kind::Symlink { target: self.volume.read_link(ino)? },
            FileType::CharDevice => Kind::CharDevice(stat.device.unwrap_or_default()),
            FileType::BlockDevice => Kind::BlockDevice(stat.device.unwrap_or_default()),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        };
        if stat.links > 1 && stat.kind != FileType::Directory {
            self.links.insert(ino, path.clone());
        }
        Ok(Entry { path, kind, meta: metadata(&stat, xattrs) })
    }

    /// Adds what is in a directory to what is to come.
    fn enter(&mut self, path: &[u8], ino: Ino) -> Result<()> {
        if !self.entered.insert(ino) {
            return Err(Error::corrupt(Place::Inode(ino), "the directory has two names"));
        }
        let from = self.pending.len();
        for entry in self.volume.entries(ino, 0)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.pending.truncate(from);
                    return Err(error);
                }
            };
            if entry.name != b"." && entry.name != b".." {
                let path = if path.is_empty() { entry.name } else { [path, b"/", &entry.name].concat() };
                self.pending.push(Pending { path, ino: entry.ino });
            }
        }
        self.pending[from..].sort_unstable_by(|a, b| b.path.cmp(&a.path));
        Ok(())
    }

    fn file(&mut self, stat: &Stat) -> Result<Kind> {
        if stat.encrypted && !self.raw {
            return Err(Error::NoKey);
        }
        let size = stat.size;
        let mut data: Vec<Range<u64>> = Vec::new();
        let mut at = 0;
        while let Some(extent) = self.volume.next_extent(stat.ino, at)? {
            at = extent.offset + extent.length;
            if extent.kind == ExtentKind::Unwritten {
                continue;
            }
            let end = at.min(size);
            match data.last_mut() {
                Some(last) if last.end == extent.offset => last.end = end,
                _ => data.push(extent.offset..end),
            }
        }
        let whole = data.len() == 1 && data[0] == (0..size) || size == 0;
        self.open = Some(OpenFile {
            ino: stat.ino,
            encrypted: stat.encrypted,
            data: data.iter().rev().cloned().collect(),
            careful_until: 0,
        });
        Ok(Kind::File { size, data: (!whole).then_some(data) })
    }
}

impl Source for VolumeSource<'_> {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        self.open = None;
        let Some(Pending { path, ino }) = self.pending.pop() else { return Ok(None) };
        self.entry(path, ino).map(Some)
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        let block = self.volume.superblock().block_size.bytes() as u64;
        let Some(file) = &mut self.open else { return Ok(None) };
        let Some(range) = file.data.last_mut() else { return Ok(None) };
        let offset = range.start;
        let careful = offset < file.careful_until;
        let most = if careful { block - offset % block } else { buf.len() as u64 };
        let length = most.min(buf.len() as u64).min(range.end - range.start) as usize;
        let buf = &mut buf[..length];
        let read = if file.encrypted {
            self.volume.read_raw(file.ino, offset, buf)
        } else {
            self.volume.read(file.ino, offset, buf)
        };
        if read.is_err() && !careful && length as u64 > block {
            file.careful_until = offset + length as u64;
            return self.next_run(buf);
        }
        range.start += length as u64;
        if range.start == range.end {
            file.data.pop();
        }
        let read = read?;
        if read != length {
            // The ranges end with the file, whose size does not change while it is read.
            return Err(Error::corrupt(Place::File(file.ino, offset / block), "the file ends early"));
        }
        Ok(Some(Run { offset, length }))
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
