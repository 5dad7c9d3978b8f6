//! Space of a volume, as `statfs` gives it.

use super::Engine;
use crate::format::checkpoint::RESERVED_NIDS;

/// Space of a volume, as in `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Total blocks, from the checkpoint area on.
    pub blocks: u64,
    /// Blocks available to files.
    pub free_blocks: u64,
    /// Total inodes.
    pub inodes: u64,
    /// Inodes that can still be created.
    pub free_inodes: u64,
}

impl Engine {
    /// Space of the volume (Linux, `f2fs_statfs`).
    pub fn space(&self) -> Space {
        let (sb, counters) = (self.superblock(), self.segments().counters());
        let user_blocks = self.last_checkpoint().user_blocks;
        let free_blocks = user_blocks.saturating_sub(counters.valid_blocks);
        let all_nodes = u64::from(sb.nat_blocks()) * sb.block_size.nat_entries() as u64;
        let nodes = all_nodes.saturating_sub(u64::from(RESERVED_NIDS));
        let (inodes, free_inodes) = if nodes > user_blocks {
            (user_blocks, free_blocks)
        } else {
            (nodes, nodes.saturating_sub(u64::from(counters.valid_nodes)).min(free_blocks))
        };
        Space {
            blocks: sb.blocks.saturating_sub(u64::from(sb.checkpoint.start.0)),
            free_blocks,
            inodes,
            free_inodes,
        }
    }
}
