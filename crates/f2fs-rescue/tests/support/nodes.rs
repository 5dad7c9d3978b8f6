//! Devices that contain nodes only.

#![allow(dead_code)] // each test file uses its own part

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    format::{BlockSize, NodeBlock, inode::inline, node::NodeFormat, superblock::Features},
    units::{BlockAddr, Ino},
};

pub const BLOCK: u64 = 4096;

/// A device that contains only these nodes, from block 1 on. Each is newer than the one before.
pub fn device_of(nodes: &[NodeBlock]) -> Arc<dyn Device> {
    let device = MemoryDevice::new((nodes.len() as u64 + 8) * BLOCK);
    for (node, addr) in nodes.iter().zip(1u32..) {
        let mut node = node.clone();
        let mut footer = node.footer();
        footer.next_addr = BlockAddr(addr + 1);
        footer.cp_ver = addr.into();
        node.set_footer(footer);
        device.write(u64::from(addr) * BLOCK, node.bytes()).expect("in memory");
    }
    Arc::new(device)
}

pub fn format() -> NodeFormat {
    NodeFormat::new(BlockSize::B4K, Features::default(), &[0; 16])
}

/// An empty directory without blocks.
pub fn directory(ino: u32, parent: u32, name: &[u8]) -> NodeBlock {
    let mut node = NodeBlock::new_inode(format(), Ino(ino), 0o040_755, 0, 0);
    node.set_last_name(Ino(parent), name);
    node
}

/// A file with its content in the inode.
pub fn small_file(ino: u32, parent: u32, name: &[u8], content: &[u8]) -> NodeBlock {
    let bits = inline::DATA | inline::DATA_EXIST;
    let mut node = NodeBlock::new_inode(format(), Ino(ino), 0o100_644, bits, 0);
    node.set_last_name(Ino(parent), name);
    node.head_mut().size.set(content.len() as u64);
    node.inline_area_mut()[..content.len()].copy_from_slice(content);
    node
}
