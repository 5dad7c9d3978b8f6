//! The on-disk format: a pure translation between bytes and checked values.
//!
//! Conventions of every file here:
//! - A fixed structure is a `#[repr(C)]` zerocopy struct in little-endian field types (alignment 1, so any
//!   byte slice can be viewed); each field has a doc comment with its unit; a const assertion under the struct
//!   pins its size and the important offsets.
//! - A structure that varies with the block size is a view over a slice that takes a [`BlockSize`].
//! - Raw values are not trusted. If a structure has rules, a `check` makes the trusted type, and only that
//!   reaches the engine.
//! - These modules do no I/O.
//! - No cast loses bits silently: a value that must fit is converted with a check.

#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub mod acl;
pub mod bits;
pub mod block_size;
pub mod casefold;
pub mod checkpoint;
pub mod cluster;
pub mod crc;
pub mod dentry;
pub mod dir_hash;
mod file_type;
pub mod hash;
pub mod inode;
mod lzo;
pub mod nat;
pub mod node;
pub mod node_path;
pub mod orphan;
pub mod quota;
pub mod sit;
pub mod summary;
pub mod superblock;
mod table_copy;
pub mod verity;
pub mod xattr;
mod zstd;

pub use block_size::BlockSize;
pub use file_type::FileType;
pub use node::NodeBlock;
pub use table_copy::TableCopy;

/// Blocks in a segment, fixed by the format: the kernel refuses any other `log_blocks_per_seg` than 9.
pub const BLOCKS_PER_SEGMENT: u32 = 512;
/// log2 of [`BLOCKS_PER_SEGMENT`].
pub const LOG_BLOCKS_PER_SEGMENT: u32 = 9;
/// The magic number of F2FS, in the superblock and as initial value of most checksums.
pub const MAGIC: u32 = 0xF2F5_2010;
/// Longest file name in bytes.
pub const NAME_MAX: usize = 255;
