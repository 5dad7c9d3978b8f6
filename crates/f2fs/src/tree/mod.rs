//! Trees from outside: directories of the host and tar streams, as one vocabulary of entries.
//!
//! *Invariants*: a [`Source`] gives parents before what is in them, and the first name of a hard link before
//! the others; its paths are clean (no empty, `.` or `..` component, none longer than a name can be). Names
//! are bytes. What is read of a tree is bounded: one directory's names at a time, one run of data.
//!
//! Sources read what there is; [`Transform`] changes owners, modes, labels and times afterwards, so that each
//! works with each. Nothing here spawns threads: reading ahead is left to the host's kernel, which is told
//! what comes next.

mod capability;
mod compress;
mod decompress;
mod dir_sink;
mod dir_source;
mod entry;
mod export;
mod file_contexts;
mod fill;
mod fs_config;
mod need;
mod owner_map;
mod pax;
mod tar_header;
mod tar_sink;
mod tar_source;
mod tar_sparse;
mod transform;
mod volume_source;
mod walk;

pub use compress::{Compressed, Compression};
pub use decompress::decompressed;
pub use dir_sink::{DirSink, make_private};
pub use dir_source::DirSource;
pub use entry::{Entry, HostId, Kind, Metadata, Names, Xattr, show};
pub use export::{ExportOptions, Exported, Loss, Sink, export};
pub use file_contexts::FileContexts;
pub use fill::{FillOptions, Filled, Progress, SLACK_BLOCKS, count, fill};
pub use fs_config::FsConfig;
pub use need::{Need, NeedCounter};
pub use owner_map::OwnerMap;
pub use tar_sink::TarSink;
pub use tar_source::TarSource;
pub use transform::Transform;
pub use volume_source::VolumeSource;
pub use walk::{Found, Step, Walk};

use crate::Result;

/// A run of a file's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// Its length in bytes, at least 1.
    pub length: usize,
}

/// A tree, entry by entry. An [`Error::Lost`](crate::Error::Lost) costs the part of the tree that it names, and the next
/// call goes on behind it; any other error ends the tree.
pub trait Source {
    /// The next entry; None at the end. Data of the entry before that was not asked for is skipped.
    fn next_entry(&mut self) -> Result<Option<Entry>>;

    /// The next run of data of the file that was the last entry, in ascending order, at most as long as `buf`;
    /// None at its end. What lies between runs is a hole.
    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>>;

    /// Learns that the last entry has not been taken: where it was the first name of a hard link, the next name is given
    /// as the first.
    fn refused(&mut self) {}
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        (**self).next_entry()
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        (**self).next_run(buf)
    }

    fn refused(&mut self) {
        (**self).refused();
    }
}
