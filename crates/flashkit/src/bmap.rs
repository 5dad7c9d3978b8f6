//! Maps of the blocks of an image that are in use, in the format of bmap-tools, version 2.0.
//!
//! A program that writes an image by its map leaves all other blocks of the card as they are. So the map of a volume
//! has not only the blocks that hold something, but all that are read: the metadata areas, in which zeroes count, and
//! the blocks where the node logs continue, in which recovery looks for nodes that fsync wrote.

use std::{fmt::Write, io, ops::Range, sync::Arc};

use anyhow::{Result, bail};
use block::Device;
use f2fs::{
    engine::{Engine, Options},
    format::{BLOCKS_PER_SEGMENT, bits, checkpoint::Flags, sit::SegmentType},
    units::SegNo,
};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};

use crate::{failure, render};

/// Bytes read at once.
const STEP_BYTES: usize = 1 << 20;
/// The checksum of a map while it is calculated.
const NO_CHECKSUM: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The blocks of an image that are in use.
pub struct UsedBlocks {
    image_bytes: u64,
    block_bytes: u64,
    /// Runs of blocks, ascending and with gaps between them.
    runs: Vec<Range<u64>>,
}

impl UsedBlocks {
    /// Finds the used blocks of a volume.
    ///
    /// # Errors
    /// The volume cannot be read, was not unmounted, is damaged, or has several devices.
    pub fn of(device: Arc<dyn Device>) -> Result<UsedBlocks> {
        let image_bytes = device.geometry().size_bytes;
        let volume = Engine::open(device.clone(), Options { roll_forward: false, ..Options::read_only() })?;
        let (superblock, checkpoint) = (volume.superblock(), volume.last_checkpoint());
        if !checkpoint.flags.has(Flags::UMOUNT) {
            bail!(
                "the volume was not unmounted, so fsynced blocks are in no table; mount and unmount it first"
            );
        }
        // A table that calls a used block free would leave it out.
        if !f2fs_check::check(device, &mut |_| {})?.is_clean() {
            return Err(failure::damaged("a map could leave blocks out"));
        }
        let block_bytes = superblock.block_size.bytes() as u64;
        let mut used = UsedBlocks { image_bytes, block_bytes, runs: Vec::new() };
        let main = superblock.main;
        used.add(0..main.start.0.into());
        let node_logs = SegmentType::ALL.into_iter().filter(|log| log.is_node());
        let next = node_logs.map(|log| checkpoint.logs[log.index()]);
        let next: Vec<_> = next.map(|log| (log.segment, u64::from(log.offset))).collect();
        for number in 0..main.segments {
            let segment = SegNo(number);
            let entry = volume.sit_entry(segment)?;
            let start = u64::from(volume.geometry().block(segment, 0).0);
            for offset in 0..u64::from(BLOCKS_PER_SEGMENT) {
                if bits::msb(&entry.map, offset as usize) || next.contains(&(segment, offset)) {
                    used.add(start + offset..start + offset + 1);
                }
            }
        }
        // Whatever follows the volume in its image.
        used.add(main.end()..image_bytes.div_ceil(block_bytes));
        Ok(used)
    }

    /// Adds a run of blocks that follows all others.
    fn add(&mut self, run: Range<u64>) {
        match self.runs.last_mut() {
            _ if run.is_empty() => {}
            Some(last) if last.end == run.start => last.end = run.end,
            _ => self.runs.push(run),
        }
    }

    /// Number of used blocks.
    fn count(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }

    /// Returns the map, with checksums of the blocks on a device.
    pub fn map(&self, device: &dyn Device, bar: &ProgressBar) -> io::Result<String> {
        let blocks = self.image_bytes.div_ceil(self.block_bytes);
        let mut map = format!(
            "<?xml version=\"1.0\" ?>\n<!-- The blocks of a disk image that have to be written. All others may have any content. -->\n\
             <bmap version=\"2.0\">\n    <ImageSize> {} </ImageSize>\n    <BlockSize> {} </BlockSize>\n    \
             <BlocksCount> {blocks} </BlocksCount>\n    <MappedBlocksCount> {} </MappedBlocksCount>\n    \
             <ChecksumType> sha256 </ChecksumType>\n    <!-- Of this file, with zeroes in place of the checksum. -->\n    \
             <BmapFileChecksum> {NO_CHECKSUM} </BmapFileChecksum>\n    <BlockMap>\n",
            self.image_bytes,
            self.block_bytes,
            self.count(),
        );
        let mut buf = vec![0; STEP_BYTES];
        for run in &self.runs {
            let mut digest = Sha256::new();
            let (mut at, end) =
                (run.start * self.block_bytes, (run.end * self.block_bytes).min(self.image_bytes));
            while at < end {
                let step = &mut buf[..(end - at).min(STEP_BYTES as u64) as usize];
                device.read(at, step)?;
                digest.update(&*step);
                at += step.len() as u64;
                bar.set_position(at);
            }
            let checksum = render::hex(&digest.finalize());
            let blocks = match run.end - run.start {
                1 => run.start.to_string(),
                _ => format!("{}-{}", run.start, run.end - 1),
            };
            writeln!(map, "        <Range chksum=\"{checksum}\"> {blocks} </Range>")
                .map_err(io::Error::other)?;
        }
        map.push_str("    </BlockMap>\n</bmap>\n");
        let checksum = render::hex(&Sha256::digest(&map));
        Ok(map.replacen(NO_CHECKSUM, &checksum, 1))
    }
}
