//! The rescued tree as a source for [`f2fs_tree::export`].

use std::collections::VecDeque;

use f2fs::{
    Error, Place, Result,
    format::{FileType, inode::advise},
    units::{BlockAddr, Nid},
};
use f2fs_tree::{Entry, Kind, Metadata, PathId, PathTree, Run, Source, Xattr};
use rustc_hash::FxHashMap;

use crate::{
    Certainty, Selection,
    content::Content,
    nodes::Inode,
    pieces::{self, Piece},
    rescue::Rescue,
    walk::{Found, Step, Walk},
};

/// Callback for each rescued inode.
type Observer<'a> = Box<dyn FnMut(&Found) + 'a>;

/// A source of the rescued tree. Parts that are lost are [`Error::Lost`], and the export continues after
/// them.
pub struct RescueSource<'a> {
    rescue: &'a Rescue,
    selection: Selection,
    walk: Walk<'a>,
    observer: Observer<'a>,
    /// First paths of inodes with several names, by the addresses of the inodes' versions: a number may have
    /// had several inodes.
    links: FxHashMap<BlockAddr, PathId>,
    paths: PathTree,
    losses: VecDeque<Error>,
    ready: Option<Entry>,
    open: Option<OpenFile>,
    /// Inode version of the last entry, if the entry is the first name of several.
    first_of: Option<BlockAddr>,
    /// Number of bytes of data that further files may have: at first those of the volume. It bounds the size of the output if
    /// an inode has more names than it counts.
    budget_bytes: u64,
}

/// The last entry, which is a file.
struct OpenFile {
    path: Vec<u8>,
    inode: Inode,
    /// Remaining pieces, the next one last.
    pieces: Vec<Piece>,
    /// Content of a file in its inode, until it is returned.
    inline: Option<Vec<u8>>,
    /// Content of a cluster: its offset in the file, its bytes, and how many were returned.
    cluster: Option<(u64, Vec<u8>, usize)>,
}

impl<'a> RescueSource<'a> {
    /// Makes a source of a whole tree. `observer` gets every rescued inode before its entry is returned.
    pub fn new(
        rescue: &'a Rescue,
        selection: Selection,
        observer: impl FnMut(&Found) + 'a,
    ) -> RescueSource<'a> {
        RescueSource {
            rescue,
            selection,
            walk: Walk::new(rescue, selection),
            observer: Box::new(observer),
            links: FxHashMap::default(),
            paths: PathTree::default(),
            losses: VecDeque::new(),
            ready: None,
            open: None,
            first_of: None,
            budget_bytes: (rescue.shape.blocks.end - rescue.shape.blocks.start)
                * rescue.shape.block_size().bytes() as u64,
        }
    }

    /// Prepares the next entry or a loss. Returns false at the end.
    fn advance(&mut self) -> bool {
        match self.walk.next() {
            None => return false,
            Some(Err(error)) => self.losses.push_back(error),
            Some(Ok(step)) => {
                (self.observer)(&step.found);
                let path = step.found.path.clone();
                match self.entry(step) {
                    Ok((kind, meta)) => self.ready = Some(Entry { path, kind, meta }),
                    Err(error) => self.losses.push_back(Error::lost(&path, error)),
                }
            }
        }
        true
    }

    fn entry(&mut self, step: Step) -> Result<(Kind, Metadata)> {
        let found = step.found;
        let Some((inode, pieces)) = step.inode else {
            return Ok((Kind::Directory, metadata(&found, Vec::new())));
        };
        let version = inode.version.addr();
        let is_shared = found.links > 1 && found.kind != FileType::Directory;
        if let Some(first) = self.links.get(&version).filter(|_| is_shared) {
            let to = self.paths.path(*first);
            return Ok((Kind::HardLink { to }, metadata(&found, Vec::new())));
        }
        let pieces = pieces.unwrap_or_else(|| pieces::pieces(self.rescue.nodes(), &inode).all);
        let content = Content { judge: self.rescue.judge(self.selection), inode: &inode };
        let (xattrs, damage) = content.xattrs();
        let device = inode.node.device_number().unwrap_or_default();
        let kind = match found.kind {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink { target: content.target(&pieces)? },
            FileType::CharDevice => Kind::CharDevice(device),
            FileType::BlockDevice => Kind::BlockDevice(device),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::Regular => self.file(&found, inode, pieces)?,
        };
        let contradictions = found.certainty.map(|certainty| contradictions(&certainty, &found));
        let damage = damage.into_iter().chain(contradictions.into_iter().flatten());
        self.losses.extend(damage.map(|error| Error::lost(&found.path, error)));
        if is_shared {
            self.links.insert(version, self.paths.insert(&found.path));
            self.first_of = Some(version);
        }
        Ok((kind, metadata(&found, xattrs)))
    }

    fn file(&mut self, found: &Found, inode: Inode, mut pieces: Vec<Piece>) -> Result<Kind> {
        if inode.node.has_advise(advise::ENCRYPT) {
            return Err(Error::NoKey);
        }
        let log = self.rescue.shape.block_size().log();
        // Each of these blocks has one owner among the rescued inodes.
        let own = found.certainty.map_or(0, |it| it.agreeing + it.unproven + it.contradicted);
        let stored_bytes = own.saturating_mul(self.rescue.shape.block_size().bytes() as u64);
        self.budget_bytes = self.budget_bytes.checked_sub(stored_bytes).ok_or_else(|| {
            let what = "with it, the files have more data than the volume has blocks, so the inode has more names than it counts";
            Error::corrupt(Place::Inode(inode.ino()), what)
        })?;
        let content = Content { judge: self.rescue.judge(self.selection), inode: &inode };
        let inline = content.inline().filter(|bytes| !bytes.is_empty()).map(<[u8]>::to_vec);
        let cluster = inode.node.layout().cluster_blocks() as u64;
        let ranges = pieces.iter().filter_map(|piece| match piece {
            Piece::Data { block, addrs, .. } => Some((*block, addrs.len() as u64)),
            Piece::Cluster { block, .. } => Some((*block, cluster)),
            Piece::Lost { .. } => None,
        });
        let bytes = ranges.map(|(block, count)| block << log..((block + count) << log).min(found.size));
        let data: Vec<_> = inline.iter().map(|bytes| 0..bytes.len() as u64).chain(bytes).collect();
        pieces.reverse();
        self.open = Some(OpenFile { path: found.path.clone(), inode, pieces, inline, cluster: None });
        Ok(Kind::File { size: found.size, data: Some(merged(data)) })
    }
}

/// Errors for content whose amount the inode and its nodes tell differently.
fn contradictions(certainty: &Certainty, found: &Found) -> Vec<Error> {
    let place = Place::Inode(found.ino.unwrap_or_default());
    let mut errors = Vec::new();
    if certainty.uncharted > 0 {
        let what = format!(
            "{} of the blocks that it counts are in no node; they are missing from the content, where they may be holes",
            certainty.uncharted
        );
        errors.push(Error::corrupt(place, what));
    }
    if certainty.has_bad_size {
        let what = format!(
            "its size is smaller than the blocks that it has; the content is given up to the end of the last one, byte {}",
            found.size
        );
        errors.push(Error::corrupt(place, what));
    }
    errors
}

/// Merges ranges that follow each other.
fn merged(ranges: Vec<std::ops::Range<u64>>) -> Vec<std::ops::Range<u64>> {
    let mut all: Vec<std::ops::Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    }
    all
}

impl Source for RescueSource<'_> {
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
        let Some(file) = &mut self.open else { return Ok(None) };
        file.next_run(self.rescue, self.selection, buf)
    }

    fn refused(&mut self) {
        if let Some(version) = self.first_of.take() {
            self.links.remove(&version);
        }
    }

    fn is_first_name(&self) -> bool {
        self.first_of.is_some()
    }
}

impl OpenFile {
    fn next_run(&mut self, rescue: &Rescue, selection: Selection, buf: &mut [u8]) -> Result<Option<Run>> {
        let log = rescue.shape.block_size().log();
        let size = self.inode.node.head().size.get();
        if let Some(inline) = self.inline.take() {
            let length = inline.len().min(buf.len());
            buf[..length].copy_from_slice(&inline[..length]);
            return Ok(Some(Run { offset: 0, length }));
        }
        if let Some(run) = self.cluster_run(size, buf) {
            return Ok(Some(run));
        }
        let content = Content { judge: rescue.judge(selection), inode: &self.inode };
        match self.pieces.pop() {
            None => Ok(None),
            Some(Piece::Lost { blocks }) => {
                let place = Place::File(self.inode.ino(), blocks.start);
                let error = Error::corrupt(place, "the node with its address is lost");
                Err(self.lost(blocks.start << log..(blocks.end << log).min(size), error))
            }
            Some(Piece::Cluster { block, addrs, nid, index }) => {
                let cluster = self.inode.node.layout().cluster_blocks() as u64;
                match content.read_cluster(block, &addrs, nid, index) {
                    Ok(bytes) => {
                        self.cluster = Some((block << log, bytes, 0));
                        Ok(self.cluster_run(size, buf))
                    }
                    Err(error) => Err(self.lost(block << log..((block + cluster) << log).min(size), error)),
                }
            }
            Some(Piece::Data { block, addrs, nid, index }) => {
                let read = content.read_run(block, addrs.clone(), nid, index, buf);
                let count = *read.as_ref().unwrap_or(&1);
                self.put_back(block, addrs, nid, index, count);
                let offset = block << log;
                let end = ((block + count as u64) << log).min(size);
                match read {
                    Ok(_) => Ok(Some(Run { offset, length: (end - offset) as usize })),
                    Err(error) => Err(self.lost(offset..end, error)),
                }
            }
        }
    }

    /// Keeps the rest of a piece, after its first `count` blocks.
    fn put_back(&mut self, block: u64, addrs: std::ops::Range<u32>, nid: Nid, index: u16, count: usize) {
        let start = addrs.start + count as u32;
        if start < addrs.end {
            let (block, index) = (block + count as u64, index + count as u16);
            self.pieces.push(Piece::Data { block, addrs: start..addrs.end, nid, index });
        }
    }

    /// Returns the next part of the current cluster.
    fn cluster_run(&mut self, size: u64, buf: &mut [u8]) -> Option<Run> {
        let (offset, bytes, done) = self.cluster.as_mut()?;
        let start = *offset + *done as u64;
        let left =
            (bytes.len() - *done).min(usize::try_from(size.saturating_sub(start)).unwrap_or(usize::MAX));
        let length = left.min(buf.len());
        if length == 0 {
            self.cluster = None;
            return None;
        }
        buf[..length].copy_from_slice(&bytes[*done..*done + length]);
        *done += length;
        Some(Run { offset: start, length })
    }

    fn lost(&self, bytes: std::ops::Range<u64>, error: Error) -> Error {
        Error::Lost { path: self.path.clone(), bytes: Some(bytes), source: Box::new(error) }
    }
}

fn metadata(found: &Found, xattrs: Vec<Xattr>) -> Metadata {
    Metadata {
        permissions: found.mode & 0o7777,
        uid: found.uid,
        gid: found.gid,
        mtime: found.mtime,
        atime: Some(found.atime),
        ctime: Some(found.ctime),
        xattrs,
        names: Default::default(),
        host: None,
    }
}
