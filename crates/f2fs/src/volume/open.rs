//! Opening of a volume: reads the superblock, the newest checkpoint and its journals, and nothing else before
//! it is needed.

use std::{collections::BTreeSet, sync::Arc};

use block::Device;
use zerocopy::FromBytes;

use super::{
    Access, Counters, Geometry, Io, Options, Volume,
    dir_index::DirIndexes,
    dir_strays::DirStrays,
    discards::Discards,
    log::{Log, Logs},
    nat::Nat,
    node_cache::NodeCache,
    pages::Pages,
    quota::Unsaid,
    sit::Sit,
};
use crate::{
    Error, Place, Result,
    format::{
        BLOCKS_PER_SEGMENT, BlockSize, MAGIC, bits,
        checkpoint::{Checkpoint, Flags, HEAD_BYTES, LogPosition, PackEnd, PackStart, newest},
        nat::NatEntry,
        node::{NodeFooter, NodeFormat},
        orphan,
        sit::{SegmentType, SitEntry},
        summary::{Compact, Journal, Summary},
        superblock::{self, Features, Superblock},
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};

/// Features that this code can write. Volumes with other features open read-only.
const WRITABLE: Features = Features(
    Features::ENCRYPT.0
        | Features::EXTRA_ATTR.0
        | Features::PROJECT_QUOTA.0
        | Features::INODE_CHECKSUM.0
        | Features::FLEXIBLE_INLINE_XATTR.0
        | Features::QUOTA.0
        | Features::INODE_CRTIME.0
        | Features::LOST_FOUND.0
        | Features::VERITY.0
        | Features::SB_CHECKSUM.0
        | Features::CASEFOLD.0
        | Features::COMPRESSION.0,
);

impl Volume {
    /// Opens the volume on a device. The caller concatenates the devices of a multi-device volume first.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Volume> {
        let (superblock, _) = read_superblock(&*device, device.geometry().size_bytes)?;
        let geometry = Geometry::of(&superblock);
        let io = Arc::new(Io::new(device, superblock.block_size));
        let (pack, bytes) = read_newest_pack(&io, &geometry, &superblock, options.read_only)?;
        let head_bytes = superblock.block_size.bytes() * (1 + superblock.cp_payload as usize);
        let checkpoint = Checkpoint::check(&bytes[..head_bytes.min(bytes.len())], &superblock, pack)?;
        let tail = PackTail::parse(&bytes, &geometry, &superblock, pack, &checkpoint)?;
        let logs = SegmentType::ALL
            .map(|kind| Log::new(checkpoint.logs[kind.index()], Summary::empty(kind.is_node())));
        let access = access(&superblock, &checkpoint, &options);
        let opened_seconds = (options.clock)().seconds;
        let mut volume = Volume {
            nat: Nat::new(geometry, &checkpoint, tail.nat_journal, pack, options.nat_bytes())?,
            sit: Sit::new(geometry, &checkpoint, tail.sit_journal, pack, options.sit_bytes())?,
            logs: Logs::new(logs, geometry.block_size.bytes()),
            nodes: NodeCache::new(options.node_bytes() / geometry.block_size.bytes()),
            dirs: DirIndexes::new(options.name_bytes()),
            strays: DirStrays::new(options.stray_bytes()),
            pages: Pages::default(),
            orphans: tail.orphans,
            counters: Counters {
                valid_blocks: checkpoint.valid_blocks,
                valid_nodes: checkpoint.valid_nodes,
                valid_inodes: checkpoint.valid_inodes,
            },
            format: NodeFormat::of(&superblock),
            superblock,
            geometry,
            options,
            discards: Discards::new(io.clone()),
            io,
            access,
            now: checkpoint.elapsed_seconds,
            unsaid: Unsaid::new(checkpoint.flags),
            checkpoint,
            pack,
            opened_seconds,
            leaving: Default::default(),
            held: Default::default(),
            summaries: Default::default(),
            changed: false,
            is_syncing: false,
            opened_segment: true,
            room_sections: None,
            since_fsync_blocks: 0,
            logs_ready: false,
            since_checkpoint: Default::default(),
            synced: Default::default(),
            limited: None,
            privileged: true,
            avoid: Vec::new(),
            unreadable: Vec::new(),
            recovering: None,
            stuck: Default::default(),
            written_before: 0,
        };
        let read_only = volume.options.read_only;
        let writable = volume.superblock.features.0 & !WRITABLE.0 == 0;
        if volume.read_only_reason().is_none() {
            volume.recover()?;
        } else if read_only && writable {
            let chain = volume.options.roll_forward && volume.has_chain()?;
            if chain || !volume.orphans.is_empty() {
                volume.recover_in_memory()?;
            }
        }
        Ok(volume)
    }

    /// Prepares for the first change: reads the summaries of the logs, checks the logs against the SIT, and
    /// counts the used segments. Read-only use skips this.
    pub(super) fn prepare_logs(&mut self) -> Result<()> {
        if self.logs_ready {
            return Ok(());
        }
        let packed = self.read_pack_summaries()?;
        for (kind, summary) in SegmentType::ALL.into_iter().zip(packed.summaries) {
            self.logs.get_mut(kind).summary = summary;
        }
        self.written_before = packed.written_kilobytes;
        let mut empty = 0;
        for kind in SegmentType::ALL {
            let LogPosition { segment: number, offset, fills_holes } = self.logs.get(kind).position();
            let segment = self.sit.segment(&self.io, number)?;
            empty += u32::from(segment.valid_blocks == 0);
            let hole = segment.next_hole(offset);
            let untouched = (offset..BLOCKS_PER_SEGMENT as u16).all(|at| segment.next_hole(at) == Some(at));
            if hole != Some(offset) || (!fills_holes && !untouched) {
                let what = format!("the {kind} log continues at block {offset}, which is in use");
                return Err(Error::corrupt(Place::Sit(number), what));
            }
            if kind.is_node() && !self.checkpoint.has_node_summaries() {
                self.restore_summary(kind)?;
            }
        }
        let total = self.geometry.segments;
        let used = total.checked_sub(self.checkpoint.free_segments + empty).ok_or_else(|| {
            let free = self.checkpoint.free_segments;
            Error::corrupt(Place::Checkpoint(self.pack), format!("free_segment_count {free} of {total}"))
        })?;
        self.sit.set_used(used);
        self.logs_ready = true;
        Ok(())
    }

    /// Rebuilds the summary of a node log's segment from the node footers (Linux,
    /// `f2fs_restore_node_summary`); only packs with the unmount or fastboot flag store it.
    fn restore_summary(&mut self, kind: SegmentType) -> Result<()> {
        let size = self.geometry.block_size.bytes();
        let segment = self.logs.get(kind).segment;
        let (start, at) = (self.geometry.block(segment, 0), Place::Ssa(segment));
        let mut bytes = vec![0; size * BLOCKS_PER_SEGMENT as usize];
        if self.io.read(start, at, &mut bytes).is_err() {
            // Only blocks in use matter. An unreadable one gets no owner, so cleaning leaves it alone.
            let map = self.sit.segment(&self.io, segment)?.map;
            for (block, offset) in bytes.chunks_exact_mut(size).zip(0..) {
                let in_use = bits::msb(&map, offset);
                if in_use && self.io.read(BlockAddr(start.0 + offset as u32), at, block).is_ok() {
                    continue;
                }
                block.fill(0);
                if in_use {
                    // The summary will lack the owner of this block, so fsck has to find it.
                    let unknown = Error::corrupt(at, format!("block {offset} of a log cannot be read"));
                    let _ = self.io.noted::<()>(Err(unknown));
                }
            }
        }
        let summary = &mut self.logs.get_mut(kind).summary;
        for (owner, block) in summary.owners.iter_mut().zip(bytes.chunks_exact(size)) {
            owner.nid = NodeFooter::of(block).nid;
        }
        Ok(())
    }
}

/// Reads the superblock from the first copy, or from the second if the first is damaged, and returns it with
/// the number of the copy. The volume must fit into `size` bytes, the size of the device or of all devices of
/// the volume together.
pub fn read_superblock(device: &dyn Device, size: u64) -> Result<(Superblock, u8)> {
    let read = |copy: u8, block_bytes: u64| -> Result<Superblock> {
        let at = Place::Superblock(copy);
        // Read whole sectors: real devices do not read smaller units.
        let skipped = match device.geometry().sector_bytes as usize {
            sector if sector > 0 && superblock::OFFSET % sector == 0 => superblock::OFFSET,
            _ => 0,
        };
        let mut block = vec![0; superblock::OFFSET + superblock::BYTES - skipped];
        let offset = u64::from(copy) * block_bytes + skipped as u64;
        device.read(offset, &mut block).map_err(|source| Error::Io { at, source })?;
        let bytes = block[superblock::OFFSET - skipped..].try_into().expect("3072 bytes follow");
        Superblock::check(bytes, copy, size)
    };
    let has = device.geometry().size_bytes;
    if has < 2 * BlockSize::B4K.bytes() as u64 {
        return Err(Error::NotF2fs(format!("{has} bytes are too few for a volume").into()));
    }
    let first = match read(0, 0) {
        Ok(sb) => return Ok((sb, 0)),
        Err(error) => error,
    };
    for block_size in [BlockSize::B4K, BlockSize::B16K] {
        if let Ok(sb) = read(1, block_size.bytes() as u64) {
            if sb.block_size == block_size {
                return Ok((sb, 1));
            }
        }
    }
    Err(first)
}

/// Reads a superblock copy from the device and checks only its magic number.
pub fn read_raw_superblock(device: &dyn Device, copy: u8) -> Result<superblock::raw::Superblock> {
    // The position of the second copy depends on the block size, which only a superblock tells.
    let at = Place::Superblock(copy);
    for block_size in [BlockSize::B4K, BlockSize::B16K] {
        let mut block = vec![0; 4096];
        let offset = u64::from(copy) << block_size.log();
        device.read(offset, &mut block).map_err(|source| Error::Io { at, source })?;
        let raw = superblock::raw::Superblock::read_from_bytes(&block[superblock::OFFSET..])
            .expect("3072 bytes follow");
        if raw.magic.get() == MAGIC {
            return Ok(raw);
        }
    }
    Err(Error::NotF2fs(format!("no magic number in superblock copy {copy}").into()))
}

/// Reads the newest valid checkpoint pack up to the end of its journals and returns it with its number. The
/// first sectors of the packs tell which one is newer. The rest takes two requests, since on a card a request
/// costs more than its data: one for the head up to the journals, one for the copy of the head at the end.
///
/// A pack that cannot be read may be the newest. Then only a read-only volume falls back to the other pack:
/// writing from the older one would overwrite blocks of the newest.
fn read_newest_pack(io: &Io, geometry: &Geometry, sb: &Superblock, read_only: bool) -> Result<(u8, Vec<u8>)> {
    let at = Place::Checkpoint;
    let start = |pack: u8| -> Result<PackStart> {
        Ok(PackStart::parse(&io.read_bytes(geometry.pack(pack), at(pack), 0..HEAD_BYTES)?))
    };
    let whole = |pack: u8, start: Result<PackStart>| {
        let start = start?;
        let bytes = io.read_bytes(geometry.pack(pack), at(pack), 0..journals_end(&start, geometry))?;
        let head = PackEnd::check(&bytes, sb.block_size, pack)?;
        if PackStart::parse(&bytes) != start {
            return Err(Error::corrupt(at(pack), "the pack changes while it is read"));
        }
        let copy = BlockAddr(geometry.pack(pack).0 + head.pack_blocks - 1);
        let copy = PackEnd::check(&io.read_block(copy, at(pack))?, sb.block_size, pack)?;
        if !head.matches(&copy) {
            let what =
                format!("the pack begins with version {} and ends with {}", head.version.0, copy.version.0);
            return Err(Error::corrupt(at(pack), what));
        }
        Ok((pack, bytes))
    };
    let starts = [0, 1].map(start);
    let [first, second] = match starts {
        [Err(error), _] | [_, Err(error)] if !read_only => return Err(error),
        starts => starts,
    };
    let version = |start: &Result<PackStart>| start.as_ref().ok().map(|start| start.version);
    let second_is_newer = newest(version(&first), version(&second)) == Some(1);
    let (newer, other) = match second_is_newer {
        true => ((1, second), (0, first)),
        false => ((0, first), (1, second)),
    };
    match whole(newer.0, newer.1) {
        Err(error @ Error::Io { .. }) if !read_only => Err(error),
        Err(error) => whole(other.0, other.1).map_err(|_| error),
        pack => pack,
    }
}

/// The end of a pack's journals, in bytes from its start; implausible values are clamped.
fn journals_end(start: &PackStart, geometry: &Geometry) -> usize {
    let size = geometry.block_size.bytes();
    let end = match start.flags.has(Flags::COMPACT_SUM) {
        true => start.summaries_start as usize * size + 2 * geometry.summary.journal_bytes(),
        false => (start.summaries_start as usize + DATA_SUMMARIES) * size,
    };
    end.clamp(size, size * BLOCKS_PER_SEGMENT as usize)
}

/// Number of data summary blocks in a pack without compact summaries.
const DATA_SUMMARIES: usize = 3;

/// The contents of the first part of a pack besides the checkpoint itself.
struct PackTail {
    nat_journal: Vec<(Nid, NatEntry)>,
    sit_journal: Vec<(SegNo, SitEntry)>,
    orphans: BTreeSet<Ino>,
}

impl PackTail {
    fn parse(
        bytes: &[u8],
        geometry: &Geometry,
        sb: &Superblock,
        pack: u8,
        checkpoint: &Checkpoint,
    ) -> Result<PackTail> {
        let (size, layout) = (sb.block_size.bytes(), geometry.summary);
        let wanted =
            data_summary_blocks(checkpoint, geometry) + 3 * usize::from(checkpoint.has_node_summaries());
        if ((checkpoint.pack_blocks - 1 - checkpoint.summaries_start) as usize) < wanted {
            let what = format!("the pack is too short for the {wanted} blocks of its summaries");
            return Err(Error::corrupt(Place::Checkpoint(pack), what));
        }
        let summaries_at = size * checkpoint.summaries_start as usize;
        let mut orphans = BTreeSet::new();
        if checkpoint.flags.has(Flags::ORPHAN_PRESENT) {
            for block in bytes[size * (1 + sb.cp_payload as usize)..summaries_at].chunks_exact(size) {
                orphans.extend(orphan::parse(block, sb.block_size, pack)?);
            }
        }
        let summaries = &bytes[summaries_at..];
        let (nat, sit) = match checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => summaries.split_at(layout.journal_bytes()),
            false => {
                let journal = |n: usize| Summary::journal_of(&summaries[n * size..], layout);
                (journal(SegmentType::HotData.index()), journal(SegmentType::ColdData.index()))
            }
        };
        Ok(PackTail {
            nat_journal: Journal::parse_nat(nat, layout, pack)?,
            sit_journal: Journal::parse_sit(sit, layout, pack)?,
            orphans,
        })
    }
}

/// Number of summary entries of a log that the compact form stores.
fn summary_entries(checkpoint: &Checkpoint, kind: SegmentType) -> usize {
    match checkpoint.logs[kind.index()] {
        LogPosition { fills_holes: true, .. } => BLOCKS_PER_SEGMENT as usize,
        LogPosition { offset, .. } => usize::from(offset),
    }
}

/// Number of blocks in a pack that hold the data summaries.
fn data_summary_blocks(checkpoint: &Checkpoint, geometry: &Geometry) -> usize {
    let entries = || DATA_LOGS.map(|kind| summary_entries(checkpoint, kind)).iter().sum();
    match checkpoint.flags.has(Flags::COMPACT_SUM) {
        true => geometry.summary.compact_blocks(entries()),
        false => DATA_SUMMARIES,
    }
}

const DATA_LOGS: [SegmentType; 3] = [SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData];

/// The parts of a pack that only changes and cleaning need.
struct PackSummaries {
    /// Summaries of the current segments.
    summaries: [Summary; 6],
    /// KiB written over the volume's life, if the pack stores it; else 0.
    written_kilobytes: u64,
}

impl Volume {
    /// The summary of a log's segment as the newest checkpoint stores it; valid only before the first change.
    pub(super) fn packed_summary(&self, kind: SegmentType) -> Result<Summary> {
        Ok(self.read_pack_summaries()?.summaries[kind.index()].clone())
    }

    fn read_pack_summaries(&self) -> Result<PackSummaries> {
        let (size, layout) = (self.geometry.block_size.bytes(), self.geometry.summary);
        let (checkpoint, at) = (&self.checkpoint, Place::Checkpoint(self.pack));
        let start = BlockAddr(self.geometry.pack(self.pack).0 + checkpoint.summaries_start);
        let blocks = checkpoint.pack_blocks - 1 - checkpoint.summaries_start;
        let mut bytes = vec![0; size * blocks as usize];
        self.io.read(start, at, &mut bytes)?;

        let data_blocks = data_summary_blocks(checkpoint, &self.geometry);
        // The number of blocks was checked when the volume was opened, and holds for every pack that we
        // write.
        let block = |n: usize| &bytes[n * size..(n + 1) * size];
        let data = match checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => {
                let used = DATA_LOGS.map(|kind| summary_entries(checkpoint, kind));
                Compact::parse(&bytes[..data_blocks * size], layout, used).summaries
            }
            false => [0, 1, 2].map(|n| Summary::parse(block(n), layout)),
        };
        let nodes = match checkpoint.has_node_summaries() {
            true => [0, 1, 2].map(|n| Some(block(data_blocks + n))),
            false => [None; 3],
        };
        let written_kilobytes =
            nodes[0].map_or(0, |block| Journal::parse_written(Summary::journal_of(block, layout)));
        let nodes = nodes
            .map(|block| block.map_or_else(|| Summary::empty(true), |block| Summary::parse(block, layout)));
        let mut all = data.into_iter().chain(nodes);
        let summaries = SegmentType::ALL.map(|kind| {
            let mut summary = all.next().expect("three data and three node summaries");
            summary.is_node = kind.is_node();
            summary
        });
        Ok(PackSummaries { summaries, written_kilobytes })
    }
}

/// Determines if a volume can be written.
fn access(sb: &Superblock, checkpoint: &Checkpoint, options: &Options) -> Access {
    let refused = Features(sb.features.0 & !WRITABLE.0);
    let flags = checkpoint.flags;
    if options.read_only {
        Access::ReadOnly("opened read-only".into())
    } else if refused.unknown() != 0 {
        Access::ReadOnly(format!("the volume has the unknown feature bit {:#x}", refused.unknown()).into())
    } else if refused.0 != 0 {
        let names: Vec<&str> = refused.names().collect();
        Access::ReadOnly(format!("volumes with {} are not written", names.join(" and ")).into())
    } else if flags.has(Flags::RESIZEFS) {
        Access::ReadOnly("a resize of the volume was interrupted; finish it with fsck.f2fs -f".into())
    } else if flags.has(Flags::DISABLED) {
        Access::ReadOnly("checkpoints of the volume are disabled".into())
    } else if sb.main.end() > u64::from(BlockAddr::COMPRESS.0) {
        // A block at one of these addresses would look like a reserved block or a compressed cluster.
        Access::ReadOnly("the addresses of the last two of its 2^32 blocks have a special meaning".into())
    } else {
        Access::ReadWrite
    }
}
