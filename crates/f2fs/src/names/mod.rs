//! Names: directories, creation, removal and renaming, attributes, and inodes without a name.
//!
//! *Invariants*: each operation checks everything that may make it fail, space included, before it changes anything.
//! Nothing here begins a transaction: the caller has made sure that the volume takes changes.

mod acl;
mod attributes;
mod create;
mod dir;
mod dir_blocks;
mod dir_index;
mod dir_strays;
mod dir_write;
mod encryption;
mod hidden_name;
mod hints;
mod listing;
mod orphans;
mod paths;
mod recovery;
mod rename;
mod stat;
mod unlink;
mod xattr;

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

pub use attributes::{SetAttr, XattrMode};
pub use create::{NewNode, Times};
pub use dir::Found;
pub use dir_blocks::SeenBlocks;
pub(crate) use dir_write::ENTRY_BLOCKS;
pub(crate) use listing::NextEntries;
pub use listing::{DirCursor, DirEntry};
pub use paths::{FinalSymlink, PathEnd};
pub use rename::RenameMode;
pub use stat::{SET_GID, Stat, without_privilege};
pub(crate) use xattr::Xattrs;

use create::inherited_project;
use dir_index::DirIndexes;
use dir_strays::DirStrays;
use hints::NameHints;

use crate::{
    disk::{Disk, Geometry, Io, Options},
    files::Files,
    format::superblock::Superblock,
    nodes::Nodes,
    segments::Segments,
    units::Ino,
};

/// The names of a volume.
pub(crate) struct Names {
    files: Files,
    dirs: DirIndexes,
    strays: DirStrays,
    hints: NameHints,
    /// Inodes without a name that are still in use.
    orphans: BTreeSet<Ino>,
    /// Those of them that are no longer in use, but could not be removed yet.
    pending_evictions: BTreeSet<Ino>,
    /// Inodes that stay although they may lose their last name, and how often they are held.
    held: FxHashMap<Ino, u32>,
}

impl Names {
    /// The names of a volume whose newest checkpoint has these orphans.
    pub(crate) fn new(files: Files, orphans: BTreeSet<Ino>) -> Names {
        let options = files.nodes().segments().disk().options();
        Names {
            dirs: DirIndexes::new(options.name_bytes()),
            strays: DirStrays::new(options.stray_bytes()),
            hints: NameHints::new(options.hint_bytes()),
            files,
            orphans,
            pending_evictions: BTreeSet::new(),
            held: FxHashMap::default(),
        }
    }

    fn disk(&self) -> &Disk {
        self.segments().disk()
    }

    fn io(&self) -> &Io {
        self.disk().io()
    }

    fn geometry(&self) -> &Geometry {
        self.disk().geometry()
    }

    fn superblock(&self) -> &Superblock {
        self.disk().superblock()
    }

    fn options(&self) -> &Options {
        self.disk().options()
    }

    fn segments(&self) -> &Segments {
        self.nodes().segments()
    }

    fn segments_mut(&mut self) -> &mut Segments {
        self.nodes_mut().segments_mut()
    }

    fn nodes(&self) -> &Nodes {
        self.files.nodes()
    }

    fn nodes_mut(&mut self) -> &mut Nodes {
        self.files.nodes_mut()
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn files_mut(&mut self) -> &mut Files {
        &mut self.files
    }
}
