//! The front door: an open volume by paths, after [`std::fs`].
//!
//! *Invariants*: paths are bytes; they begin at the root directory, with or without a slash. Symbolic links are resolved
//! inside the volume, at most 40 on one path, and `..` of the root directory is the root directory. A [`Volume`] holds
//! its engine behind one lock: methods take `&self`, readers run side by side, and nothing that the caller can keep
//! (a [`File`], a [`ReadDir`], a [`DirEntry`]) holds the lock between two calls.

mod attributes;
mod content;
mod file;
mod keys;
mod metadata;
mod names;
mod open_options;
mod read_dir;
mod volume;
mod walk_dir;

pub use file::{File, FileOptions};
pub use metadata::Metadata;
pub use open_options::OpenOptions;
pub use read_dir::{DirEntry, ReadDir};
pub use volume::Volume;
pub use walk_dir::{WalkDir, WalkEntry};
