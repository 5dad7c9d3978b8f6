//! Facts about a rescue as a whole.

use f2fs::format::{BlockSize, superblock::Features};

/// Facts about a rescue as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Copy of the superblock that was used, 0 or 1; `None` if the geometry was inferred from the nodes.
    pub superblock: Option<u8>,
    /// Byte of the device at which the volume starts; negative if its beginning is missing.
    pub start: i64,
    /// Bytes of the device at which other volumes start, by their nodes. Their nodes were left out.
    pub other_starts: Vec<i64>,
    /// Size of a block.
    pub block_size: BlockSize,
    /// Features of the volume; without a superblock those that change the layout of inodes.
    pub features: Features,
    /// Version of the newest readable checkpoint.
    pub checkpoint: Option<u64>,
    /// Newest version of a checkpoint in a node, lower half.
    pub newest_version: u32,
    /// Node blocks on the device, in all versions.
    pub node_versions: u64,
    /// Blocks that could not be read during the scan.
    pub unreadable_blocks: u64,
    /// True if the device has more nodes than fit into memory; old versions were left out.
    pub left_out_versions: bool,
    /// True if the device has more different nodes than fit into memory: nodes in its further part were left out, and
    /// with them whole files.
    pub left_out_nodes: bool,
    /// Inodes whose directory is lost.
    pub without_directory: u64,
    /// Names in directories whose inodes are lost.
    pub names_without_inode: u64,
    /// Inodes that the NAT has or the checkpoint counts, and of which no version is left.
    pub inodes_without_version: u64,
}
