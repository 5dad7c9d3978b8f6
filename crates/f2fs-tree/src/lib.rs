//! Trees outside a volume, such as directories of the host and tar streams, as one vocabulary of entries.
//!
//! *Invariants*: a [`Source`] gives a directory before its contents, and the first name of a hard link before
//! the others. Its paths have no empty, `.` or `..` component, and no component longer than the longest name.
//! Names are bytes. The part of a tree held in memory is bounded: the names of one directory at a time, and
//! one run of data; [`read_ahead`] adds a few batches.
//!
//! Sources report a tree unchanged. [`Transform`] changes owners, modes, labels and times afterwards, so
//! every source works with every change. The host's kernel reads ahead, on advice from the source, and [`read_ahead`] reads
//! a source in a thread of its own.

#![forbid(unsafe_code)]

mod ahead;
mod directories;
mod entry;
mod exclude;
mod export;
mod fill;
#[cfg(any(target_os = "linux", windows))]
mod host;
mod need;
mod overlay;
mod path;
mod path_tree;
mod smallest;
mod tar;
mod transform;
mod volume_source;

pub use ahead::read_ahead;
pub use entry::{Entry, HostId, Kind, Metadata, Names, Xattr};
pub use exclude::Exclusion;
pub use export::{ExportOptions, Exported, Loss, Sink, export};
pub use fill::{FillOptions, Filled, Progress, SLACK_BLOCKS, SavedSpace, count, fill};
#[cfg(any(target_os = "linux", windows))]
pub use host::{DirSink, DirSource, Owners};
#[cfg(target_os = "linux")]
pub use host::{Replacement, make_private};
pub use need::{Need, NeedCounter};
pub use overlay::{Layer, Overlay};
pub use path_tree::{PathId, PathTree};
pub use smallest::smallest_for;
pub use tar::{Compressed, Compression, Holes, TarSink, TarSource, decompressed, is_compressed};
pub use transform::{FileContexts, FsConfig, OwnerMap, Transform};
pub use volume_source::VolumeSource;

use f2fs::Result;

/// A run of a file's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes, at least 1.
    pub length: usize,
}

/// A tree, entry by entry. An [`Error::Lost`](f2fs::Error::Lost) costs only the part of the tree that it
/// names, and the next call continues after that part. Any other error ends the tree.
pub trait Source {
    /// Returns the next entry, or None at the end. Skips the previous entry's data that the caller did not
    /// read.
    fn next_entry(&mut self) -> Result<Option<Entry>>;

    /// Returns the next run of data of the last entry, which is a file, or None at its end. Runs come in
    /// ascending order and are at most as long as `buf`. The bytes between runs are holes.
    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>>;

    /// Tells the source that the sink refused the last entry. If that was the first name of a hard link, the
    /// next name takes its place.
    fn refused(&mut self) {}

    /// Returns true if the last entry is the first name of a file that may have several, so that
    /// [`refused`](Self::refused) has an effect.
    fn is_first_name(&self) -> bool {
        false
    }

    /// Tells the source that its caller reads no data from now on. A source that reads ahead then leaves it out.
    fn skip_data(&mut self) {}
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

    fn is_first_name(&self) -> bool {
        (**self).is_first_name()
    }

    fn skip_data(&mut self) {
        (**self).skip_data();
    }
}
