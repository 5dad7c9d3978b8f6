//! Files: where their blocks are, reading and writing them, and dirty pages.
//!
//! *Invariants*: each dirty page has a block reserved for it. Nothing here begins a transaction: before a call that
//! changes a file, the caller has made sure that the volume takes changes.

mod clean;
mod compress;
mod defragment;
mod encryption;
mod extents;
mod in_place;
mod map;
mod map_write;
mod new_blocks;
mod pages;
mod ranges;
mod read;
mod recovery;
mod reserve;
mod saved_blocks;
mod size;
mod verity;
mod verity_check;
mod write;
mod write_back;

use rustc_hash::FxHashSet;

pub(crate) use compress::Storage;
pub use defragment::Fragmentation;
pub use extents::{Extent, ExtentKind, Hidden, Seek, SeekPart, SeekTarget};
pub(crate) use map::Unmapped;
pub use map::{Cluster, Run};
pub(crate) use map_write::Slot;
pub(crate) use read::FileBlock;
pub(crate) use recovery::{clear_content, has_map};
pub use reserve::SpaceCheck;
pub use saved_blocks::{SavedBlocks, SavedChange};
pub use size::FileSize;
pub use verity_check::{SealedDamage, SealedPart, SealedPlace};
pub(crate) use write::{pieces, write_pieces};
pub(crate) use write_back::PagesOfFile;

use encryption::Ciphers;
pub(crate) use pages::Page;
use pages::Pages;
use verity::CheckedBlocks;

use crate::{
    disk::{Disk, Geometry, Options},
    nodes::Nodes,
    segments::Segments,
    units::Ino,
};

/// Maximum number of files that are remembered as synced.
const SYNCED_MAX: usize = 4096;

/// The files of a volume.
pub(crate) struct Files {
    nodes: Nodes,
    pages: Pages,
    /// Files that were fsynced: blocks of them that are overwritten are likely to be overwritten again.
    synced: FxHashSet<Ino>,
    ciphers: Ciphers,
    /// Checked blocks of the trees of sealed files.
    checked: CheckedBlocks,
}

impl Files {
    pub(crate) fn new(nodes: Nodes) -> Files {
        Files {
            nodes,
            pages: Pages::default(),
            synced: FxHashSet::default(),
            ciphers: Ciphers::default(),
            checked: CheckedBlocks::default(),
        }
    }

    fn disk(&self) -> &Disk {
        self.segments().disk()
    }

    fn geometry(&self) -> &Geometry {
        self.disk().geometry()
    }

    fn options(&self) -> &Options {
        self.disk().options()
    }

    fn segments(&self) -> &Segments {
        self.nodes.segments()
    }

    fn segments_mut(&mut self) -> &mut Segments {
        self.nodes.segments_mut()
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn nodes_mut(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    /// A dirty page of a file. It overrides the block that the file's map points to.
    pub(crate) fn dirty_page(&self, ino: Ino, block: u64) -> Option<&[u8]> {
        self.pages.get(ino, block)
    }

    /// A dirty page of a file, to change it.
    pub(crate) fn dirty_page_mut(&mut self, ino: Ino, block: u64) -> Option<&mut [u8]> {
        self.pages.get_mut(ino, block)
    }

    /// Returns true if a file has a dirty page.
    pub(crate) fn has_dirty_pages(&self, ino: Ino) -> bool {
        !self.pages.has_fewer(ino, 1)
    }

    /// Count of dirty pages.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Records that a file is fsynced.
    pub(crate) fn note_synced(&mut self, ino: Ino) {
        if self.synced.len() >= SYNCED_MAX {
            self.synced.clear();
        }
        self.synced.insert(ino);
    }
}
