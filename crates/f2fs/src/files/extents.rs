//! Extents and holes of a file.

use std::ops::Range;

use super::{
    Files,
    map::{Cluster, PART_ADDRS, RUN_ADDRS, Run, Unmapped},
};
use crate::{
    Error, Result,
    format::{inode::inline, node::NodeBlock},
    units::{BlockAddr, Ino},
};

/// Kind of content in a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Data in blocks of the device.
    Data,
    /// Reserved blocks that were never written.
    Unwritten,
    /// Data in the inode.
    Inline,
    /// A compressed cluster.
    Compressed,
}

/// A part of a file that is not a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Start in the file, in bytes.
    pub offset: u64,
    /// Length in the file, in bytes; may reach past the file's end.
    pub length: u64,
    /// Start on the device, in bytes; `None` if the extent has no place of its own there.
    pub physical: Option<u64>,
    /// Kind of content.
    pub kind: ExtentKind,
}

/// A part of a file whose place on the device is unknown, because a node above it cannot be read.
#[derive(Debug)]
pub struct Hidden {
    /// Range in the file, in bytes; not empty. Its end may be past the end of the file.
    pub bytes: Range<u64>,
    /// The error that hides this part.
    pub error: Error,
}

/// Target of a search in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// Data (`SEEK_DATA`). Reserved blocks are not data.
    Data,
    /// A hole (`SEEK_HOLE`). Reserved blocks are not holes, as in Linux. The end of the file counts as a hole.
    Hole,
}

/// A search for data or a hole in a file, which is done in parts.
#[derive(Debug)]
pub struct Seek {
    ino: Ino,
    target: SeekTarget,
    /// Byte at which the search began, and the next byte to examine.
    from: u64,
    at: u64,
}

impl Seek {
    /// A search from byte `from` of a file on.
    #[must_use]
    pub fn new(ino: Ino, target: SeekTarget, from: u64) -> Seek {
        Seek { ino, target, from, at: from }
    }

    /// Next byte to examine. There is no target between the start of the search and this byte.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }
}

/// Result of one part of a [`Seek`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekPart {
    /// The target begins at this byte.
    Found(u64),
    /// There is no target before the end of the file, or the search began past the end.
    Nothing,
    /// The search continues with another part.
    Unfinished,
}

/// A hole or an extent, as far as one node tells.
struct Stretch {
    /// Its end in the file, in bytes.
    end: u64,
    /// The extent; `None` for a hole.
    extent: Option<Extent>,
}

impl Files {
    /// Returns the first extent of a file at or after `offset`, or `None` if only a hole or the end of the file
    /// follows.
    pub(crate) fn next_extent(&self, ino: Ino, offset: u64) -> Result<Option<Extent>> {
        self.next_extent_or_hidden(ino, offset).map_err(|hidden| hidden.error)
    }

    /// Like [`next_extent`](Self::next_extent); the error states the bytes that it hides, so that the caller can
    /// continue behind them.
    pub(crate) fn next_extent_or_hidden(&self, ino: Ino, offset: u64) -> Result<Option<Extent>, Hidden> {
        let log = self.disk().superblock().block_size.log();
        let hidden = |Unmapped { blocks, error }| Hidden {
            bytes: offset.max(blocks.start << log)..blocks.end << log,
            error,
        };
        let inode = self.nodes.inode(ino).map_err(|error| Hidden { bytes: offset..u64::MAX, error })?;
        let size = inode.head().size.get();
        let mut at = offset;
        while at < size {
            let stretch = self.stretch(&inode, at).map_err(hidden)?;
            if stretch.extent.is_some() {
                return Ok(stretch.extent);
            }
            at = stretch.end;
        }
        Ok(None)
    }

    /// Returns the hole or extent that begins at byte `at`, which is before the end of the file.
    fn stretch(&self, inode: &NodeBlock, at: u64) -> Result<Stretch, Unmapped> {
        let (log, size) = (self.disk().superblock().block_size.log(), inode.head().size.get());
        let extent = |end: u64, physical: Option<u64>, kind: ExtentKind| Stretch {
            end,
            extent: Some(Extent { offset: at, length: end - at, physical, kind }),
        };
        if inode.has_inline(inline::DATA) {
            return Ok(extent(size, None, ExtentKind::Inline));
        }
        let block = at >> log;
        if let Cluster::Compressed { blocks, addrs } = self.cluster_or_unmapped(inode, block)? {
            let physical = addrs.first().map(|addr| u64::from(addr.0) << log);
            return Ok(extent(blocks.end << log, physical, ExtentKind::Compressed));
        }
        let Run { blocks, addr } = self.run_or_unmapped(inode, block, size.div_ceil(1 << log))?;
        let end = blocks.end << log;
        Ok(match addr {
            BlockAddr::NULL => Stretch { end, extent: None },
            addr if addr.is_real() => {
                let inside = at - (blocks.start << log);
                extent(end, Some((u64::from(addr.0) << log) + inside), ExtentKind::Data)
            }
            _ => extent(end, None, ExtentKind::Unwritten),
        })
    }

    /// Returns the offset of the first target at or after `offset`, or `None` if there is none.
    pub(crate) fn seek(&self, ino: Ino, target: SeekTarget, offset: u64) -> Result<Option<u64>> {
        let mut seek = Seek::new(ino, target, offset);
        loop {
            match self.seek_part(&mut seek)? {
                SeekPart::Found(at) => return Ok(Some(at)),
                SeekPart::Nothing => return Ok(None),
                SeekPart::Unfinished => {}
            }
        }
    }

    /// Does the next part of a search. Examines about [`PART_ADDRS`] addresses.
    pub(crate) fn seek_part(&self, seek: &mut Seek) -> Result<SeekPart> {
        let inode = self.nodes.inode(seek.ino)?;
        let (log, size) = (self.disk().superblock().block_size.log(), inode.head().size.get());
        if seek.from >= size {
            return Ok(SeekPart::Nothing);
        }
        let mut examined = 0;
        while seek.at < size {
            if examined >= PART_ADDRS {
                return Ok(SeekPart::Unfinished);
            }
            let stretch = self.stretch(&inode, seek.at).map_err(|unmapped| unmapped.error)?;
            let found = match (seek.target, stretch.extent) {
                (SeekTarget::Hole, None) => Some(seek.at),
                (SeekTarget::Hole, Some(_)) | (SeekTarget::Data, None) => None,
                (SeekTarget::Data, Some(extent)) if extent.kind == ExtentKind::Unwritten => {
                    self.written_page(seek.ino, extent)
                }
                (SeekTarget::Data, Some(_)) => Some(seek.at),
            };
            if let Some(at) = found {
                return Ok(SeekPart::Found(at));
            }
            examined += ((stretch.end - seek.at) >> log).clamp(1, RUN_ADDRS);
            seek.at = stretch.end;
        }
        Ok(match seek.target {
            SeekTarget::Data => SeekPart::Nothing,
            SeekTarget::Hole => SeekPart::Found(size),
        })
    }

    /// Returns the offset of the first byte of a reserved extent that a dirty page holds data for.
    fn written_page(&self, ino: Ino, extent: Extent) -> Option<u64> {
        let log = self.disk().superblock().block_size.log();
        let end = (extent.offset + extent.length) >> log;
        let block = *self.pages.blocks_of(ino, extent.offset >> log, end).first()?;
        Some((block << log).max(extent.offset))
    }
}
