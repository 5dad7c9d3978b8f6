//! Disk images in files, on devices and behind NBD, as [block devices](block::Device).
//!
//! A [`Source`] names an image: a file or device, and the part of it that is meant. [`Image::open`] claims the file and
//! finds the part, through the [`Table`]s on the way.
//!
//! *Invariants*: this crate knows no file system. Bytes of an image are untrusted: damage gives an error with its place,
//! and no table makes the crate allocate or loop without bound.

mod backing;
mod beside;
mod bytes;
pub mod dm_verity;
mod extents;
mod format;
mod image;
mod metadata_key;
mod qcow2;
mod source;
pub mod sparse;
mod table;

pub use beside::file_beside;
pub use extents::{Extent, Extents};
pub use format::Format;
pub use image::Image;
pub use metadata_key::{Decrypted, MetadataKey};
pub use source::{Part, Source, is_uri};
pub use table::{Partition, Table, TableKind};
