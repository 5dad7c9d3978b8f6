//! The golden images, unpacked, with the blocks of each that are worth patching.

use std::{fs, io::Read, path::Path, sync::Arc};

use anyhow::{Context, Result};
use block::{Device, MemoryDevice};
use f2fs::{
    engine::{Engine, Options, join},
    format::{BlockSize, inode::inline},
    units::{BlockAddr, Ino, Nid},
};

use crate::Shared;

/// Maximum nid searched for nodes.
const NIDS_MAX: u32 = 4000;
/// Maximum number of remembered directory blocks.
const DIR_BLOCKS_MAX: usize = 400;

/// Bytes of an image examined at once.
const PIECE_BYTES: usize = 1 << 16;

/// Block numbers by kind.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    /// The two superblocks.
    pub superblocks: Vec<u64>,
    /// Checkpoint packs.
    pub checkpoints: Vec<u64>,
    /// SIT, NAT and SSA.
    pub tables: Vec<u64>,
    /// Inodes.
    pub inodes: Vec<u64>,
    /// Other nodes.
    pub nodes: Vec<u64>,
    /// Blocks of directories.
    pub directories: Vec<u64>,
    /// Everything that is not all zeroes.
    pub all: Vec<u64>,
}

/// One image.
pub struct Image {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub device: Shared,
    /// Size of its blocks.
    pub block_size: BlockSize,
    /// UUID, for the checksums of inodes.
    pub uuid: [u8; 16],
    /// Positions for patches.
    pub targets: Targets,
}

/// All images.
pub struct Images {
    images: Vec<Image>,
}

impl Images {
    /// Loads the images of a folder whose name starts with `prefix`.
    pub fn load(folder: &Path, prefix: &str) -> Result<Images> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .with_context(|| folder.display().to_string())?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()))
            .filter(|name| name.starts_with(prefix))
            .collect();
        names.sort();
        let images = names.into_iter().map(|name| load(folder, name)).collect::<Result<Vec<_>>>()?;
        anyhow::ensure!(!images.is_empty(), "unknown image in {}", folder.display());
        Ok(Images { images })
    }

    /// Returns the image with this number, modulo the number of images.
    pub fn get(&self, number: usize) -> &Image {
        &self.images[number % self.images.len()]
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Returns true if there are none; [`load`](Self::load) refuses that.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }
}

fn load(folder: &Path, name: String) -> Result<Image> {
    let text = fs::read_to_string(folder.join(format!("{name}.json")))?;
    let json: serde_json::Value = serde_json::from_str(&text).with_context(|| name.clone())?;
    let more = json["devices"].as_array().map_or(0, Vec::len);
    let mut devices: Vec<Shared> = Vec::new();
    for file in
        [format!("{name}.img.zst")].into_iter().chain((1..=more).map(|n| format!("{name}.{n}.img.zst")))
    {
        devices.push(unpack(&folder.join(&file)).with_context(|| file)?);
    }
    let device = join(devices)?;
    let volume = Engine::open(device.clone(), Options::read_only()).with_context(|| name.clone())?;
    let targets = targets(&volume, &device)?;
    let superblock = volume.superblock();
    Ok(Image {
        name,
        block_size: superblock.block_size,
        uuid: superblock.uuid,
        targets,
        device: device.clone(),
    })
}

/// Unpacks an image. Blocks of zeroes take no memory.
fn unpack(path: &Path) -> Result<Shared> {
    let mut decoder = zstd::Decoder::new(fs::File::open(path)?)?;
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut buffer = vec![0; PIECE_BYTES];
    let mut size = 0;
    loop {
        let mut filled = 0;
        while filled < PIECE_BYTES {
            match decoder.read(&mut buffer[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        if filled == 0 {
            break;
        }
        if buffer[..filled].iter().any(|byte| *byte != 0) {
            pieces.push((size, buffer[..filled].to_vec()));
        }
        size += filled as u64;
    }
    let device = MemoryDevice::new(size);
    for (offset, bytes) in &pieces {
        device.write(*offset, bytes)?;
    }
    Ok(Arc::new(device))
}

fn targets(volume: &Engine, device: &Shared) -> Result<Targets> {
    let superblock = volume.superblock();
    let size = superblock.block_size.bytes();
    let mut targets = Targets { superblocks: vec![0, 1], ..Targets::default() };
    let mut piece = vec![0; PIECE_BYTES];
    let per_piece = (PIECE_BYTES / size) as u64;
    for number in 0..device.geometry().size_bytes / size as u64 {
        if number % per_piece == 0 {
            let from = number * size as u64;
            let held = (device.geometry().size_bytes - from).min(PIECE_BYTES as u64) as usize;
            piece.fill(0);
            device.read(from, &mut piece[..held])?;
        }
        let inside = (number % per_piece) as usize * size;
        if piece[inside..inside + size].iter().all(|byte| *byte == 0) {
            continue;
        }
        targets.all.push(number);
        let within = |start: BlockAddr, end: u64| (u64::from(start.0)..end).contains(&number);
        if within(superblock.checkpoint.start, superblock.checkpoint.end()) {
            targets.checkpoints.push(number);
        } else if within(superblock.sit.start, superblock.ssa.end()) {
            targets.tables.push(number);
        }
    }
    for nid in (3..NIDS_MAX.min(volume.geometry().nids_end().0)).map(Nid) {
        let Ok(entry) = volume.nat_entry(nid) else { continue };
        if entry.addr.is_real() {
            let list = if entry.ino.0 == nid.0 { &mut targets.inodes } else { &mut targets.nodes };
            list.push(u64::from(entry.addr.0));
        }
        if entry.ino.0 == nid.0 && targets.directories.len() < DIR_BLOCKS_MAX {
            targets.directories.extend(directory_blocks(volume, entry.ino));
        }
    }
    Ok(targets)
}

fn directory_blocks(volume: &Engine, ino: Ino) -> Vec<u64> {
    let Ok(inode) = volume.inode(ino) else { return Vec::new() };
    if !inode.is_directory() || inode.has_inline(inline::DENTRY) {
        return Vec::new();
    }
    let blocks = (0..16).filter_map(|block| volume.address(&inode, block).ok());
    blocks.filter(|addr| addr.is_real()).map(|addr| u64::from(addr.0)).collect()
}
