//! A volume with files of many sizes, to be damaged.

#![allow(dead_code)] // each test file uses its own part

use std::sync::{Arc, OnceLock};

use block::MemoryDevice;
use f2fs::{
    OpenOptions, Volume,
    engine::FinalSymlink,
    mkfs::{self, parse_features},
    units::{BlockAddr, Ino, Nid, Time},
};

/// A time that stands still.
pub const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 5 };
/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Bytes of the volume.
const VOLUME_BYTES: u64 = 256 << 20;
const UUID: [u8; 16] = [0x5A; 16];
/// Files of medium size: more nodes than a segment has blocks, and more data than the tests overwrite.
const FILES: u32 = 1400;
/// Features of the two volumes.
pub const FEATURES: [&str; 2] =
    ["", "extra_attr,inode_checksum,flexible_inline_xattr,inode_crtime,compression,sb_checksum"];

/// Bytes that follow from a seed.
pub fn content(seed: u32, length: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Opens a volume for changes.
pub fn open(device: Arc<MemoryDevice>) -> Volume {
    OpenOptions::new().write().clock(|| NOW).open(device).expect("a sound volume")
}

fn made(features: &str) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let options =
        mkfs::Options { features: parse_features(features).expect("features"), ..mkfs::Options::new(UUID) };
    let volume = OpenOptions::new().clock(|| NOW).make(device.clone(), &options).expect("a volume");
    fill(&volume).expect("there is space");
    volume.close().expect("in memory");
    Arc::into_inner(device).expect("the volume is closed")
}

fn fill(volume: &Volume) -> f2fs::Result<()> {
    volume.write("/small", content(1, 100))?;
    volume.write("/empty", b"")?;
    volume.write("/large", content(2, 9 << 20))?;
    volume.create_file("/sparse")?.write_at(&content(3, 5000), 7 << 20)?;
    volume.symlink("small", "/link")?;
    volume.hard_link("/small", "/second name")?;
    volume.set_xattr("/small", "user.note", "a value")?;
    volume.set_xattr("/small", "user.long", content(4, 3000))?;
    volume.create_dir_all("/a/b/c/d")?;
    volume.write("/a/b/c/d/deep", content(5, 70_000))?;
    for n in 0..FILES {
        let dir = format!("/dir-{}", n % 14);
        volume.create_dir_all(&dir)?;
        volume.write(format!("{dir}/file-{n}"), content(100 + n, 60_000 + n as usize))?;
    }
    Ok(())
}

/// Returns a copy of the sound volume with one of the [`FEATURES`].
pub fn sound(which: usize) -> Arc<MemoryDevice> {
    static SOUND: [OnceLock<MemoryDevice>; 2] = [OnceLock::new(), OnceLock::new()];
    let device = SOUND[which].get_or_init(|| made(FEATURES[which]));
    Arc::new(model::setup::copy(device).expect("memory"))
}

/// All blocks that a file without indirect nodes has: nodes and data.
pub fn blocks_of(volume: &f2fs::engine::Engine, path: &str) -> Vec<BlockAddr> {
    let ino: Ino = volume.resolve(path.as_bytes(), FinalSymlink::NoFollow).expect("it exists");
    let inode = volume.inode(ino).expect("it is sound");
    let nodes = [ino.into(), inode.child(0), inode.child(1), inode.child(2)];
    let nodes = nodes.into_iter().filter(|nid| *nid != Nid::NULL);
    let nodes = nodes.map(|nid| volume.nat_entry(nid).expect("a sound NAT").addr);
    let count = if inode.has_inline(f2fs::format::inode::inline::DATA) {
        0
    } else {
        inode.head().size.get().div_ceil(BLOCK)
    };
    let data = (0..count).map(|block| volume.address(&inode, block).expect("sound nodes"));
    nodes.chain(data.filter(|addr| addr.is_real())).collect()
}
