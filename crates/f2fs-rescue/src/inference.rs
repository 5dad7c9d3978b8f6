//! Inference of a volume's shape from its inodes, where no superblock is left.
//!
//! The footer of a node holds the address that its log was going to write next. That is nearly always the
//! address after the node's own, so the nodes of an image show where its volume starts. Inodes show which
//! features change their layout.

use std::{cmp::Reverse, ops::Range, sync::Arc};

use block::{Device, data_ranges};
use f2fs::{
    format::block_size::INODE_HEAD_BYTES,
    format::{
        BlockSize,
        inode::{EXTRA_BYTES_MAX, EXTRA_BYTES_MIN, LOG_CLUSTER_BLOCKS, flag, inline, raw::ExtraAttributes},
        node::NodeFooter,
        superblock::Features,
    },
};
use rustc_hash::FxHashMap;
use zerocopy::FromBytes;

use crate::raw_node::{self, Limits};

/// Bytes of one sample: a multiple of every block size.
const SAMPLE_BYTES: usize = 1 << 20;
/// Samples of the first pass over the device.
const SAMPLES: u64 = 512;
/// Largest volume: 2^32 blocks of 16 KiB. Bytes behind it are not read, whatever size the image claims.
const VOLUME_BYTES_MAX: u64 = 1 << 46;
/// Inodes that are enough to decide.
const ENOUGH_INODES: u64 = 64;

/// Fewest inodes of another volume that count, and the largest part of all inodes that does not.
const OTHER_INODES_MIN: u64 = 8;
const OTHER_MAX: u64 = 32;
/// Fewest blocks of a volume: it has ten segments and more.
const VOLUME_BLOCKS_MIN: u64 = 10 << 9;
/// Pairs of neighbours from which on nodes are another volume that begins close to this one.
const PAIRS_MIN: u64 = 2;
/// Blocks between the starts of two volumes that a log never skips: partitions begin at whole MiB, and within a segment a log
/// that fills holes skips others.
const ALIGNED_BLOCKS: u64 = 256;
const SEGMENT_BLOCKS: u64 = 512;
/// Starts of volumes that are tried.
const CANDIDATES_MAX: usize = 16;

/// Inferred shape of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inferred {
    pub(crate) block_size: BlockSize,
    /// Byte of the device at which the volume starts; negative if its beginning is missing.
    pub(crate) start: i64,
    /// The features that change the layout of inodes.
    pub(crate) features: Features,
    /// Starts of other volumes whose inodes lie on the device, too, in ascending order.
    pub(crate) others: Vec<i64>,
    /// Starts of volumes that some inodes tell, most inodes first: where a superblock stands, there is one.
    pub(crate) candidates: Vec<i64>,
    /// Bytes of the device that hold the inodes of the volume.
    pub(crate) extent: Range<u64>,
}

/// Infers the shape of the volume on a device. `None` if there are no inodes.
pub(crate) fn infer(device: &Arc<dyn Device>, block_size: Option<BlockSize>) -> Option<Inferred> {
    let volume_bytes = device.geometry().size_bytes;
    // The whole device is read only if the samples do not contain enough inodes.
    infer_by(device, block_size, volume_bytes, u64::MAX).map(Tally::conclude)
}

/// Infers the shape of a volume of `volume_bytes` from samples of one of its devices. `None` if there are no inodes that agree
/// on its start.
pub(crate) fn infer_part(
    device: &Arc<dyn Device>,
    block_size: Option<BlockSize>,
    volume_bytes: u64,
) -> Option<Inferred> {
    let tally = infer_by(device, block_size, volume_bytes, 1)?;
    tally.distance().is_some().then(|| tally.conclude())
}

/// Counts the inodes on a device, in at most so many passes over it.
fn infer_by(
    device: &Arc<dyn Device>,
    block_size: Option<BlockSize>,
    volume_bytes: u64,
    passes: u64,
) -> Option<Tally> {
    let reach_bytes = device.geometry().size_bytes.min(VOLUME_BYTES_MAX);
    let chunks = reach_bytes.div_ceil(SAMPLE_BYTES as u64);
    let step = chunks.div_ceil(SAMPLES).max(1);
    let sizes = block_size.map_or(vec![BlockSize::B4K, BlockSize::B16K], |size| vec![size]);
    let mut tallies: Vec<Tally> = sizes.into_iter().map(Tally::new).collect();
    for first in 0..step.min(passes) {
        for chunk in (first..chunks).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            sample(device, chunk * SAMPLE_BYTES as u64, volume_bytes, &mut tallies);
        }
        if tallies.iter().any(|tally| tally.inodes >= ENOUGH_INODES) {
            break;
        }
    }
    let best = tallies.into_iter().max_by_key(|tally| tally.inodes)?;
    (best.inodes > 0).then_some(best)
}

fn sample(device: &Arc<dyn Device>, at: u64, volume_bytes: u64, tallies: &mut [Tally]) {
    let length = (device.geometry().size_bytes - at).min(SAMPLE_BYTES as u64);
    // A hole has no inodes.
    if data_ranges(device, at..at + length).next().is_none() {
        return;
    }
    let mut bytes = vec![0; usize::try_from(length).expect("a sample fits into memory")];
    if device.read(at, &mut bytes).is_err() {
        return;
    }
    for tally in tallies {
        let size = tally.block_size.bytes();
        let limits = Limits::of_image(volume_bytes / size as u64);
        for (n, block) in bytes.chunks_exact(size).enumerate() {
            if let Some(footer) = raw_node::footer(block, tally.block_size, limits) {
                let position = at / size as u64 + n as u64;
                tally.pair(position, &footer);
                if footer.is_inode() {
                    tally.inode(position, &footer, block);
                }
            }
        }
    }
}

/// Counts of one block size.
struct Tally {
    block_size: BlockSize,
    inodes: u64,
    /// Inodes with extra attributes of a possible size, with a size of inline xattrs, with a time of
    /// creation, with settings of compression.
    extra: u64,
    flexible: u64,
    crtime: u64,
    compressed: u64,
    /// Inodes that vote for a distance between address and position, in blocks.
    votes: FxHashMap<i64, Votes>,
    /// The last node: its position and its distance.
    last: Option<(u64, i64)>,
    /// Neighbours with one distance.
    pairs: FxHashMap<i64, u64>,
}

/// Inodes that vote for a distance.
#[derive(Debug, Clone, Default)]
struct Votes {
    count: u64,
    /// Positions of the first and of the last one.
    first: u64,
    last: u64,
}

/// Distance between address and position that the footer of a node tells. The node at the end of a log's segment tells
/// another one.
fn distance(position: u64, footer: &NodeFooter) -> i64 {
    i64::from(footer.next_addr.0) - 1 - i64::try_from(position).unwrap_or(i64::MAX)
}

impl Tally {
    fn new(block_size: BlockSize) -> Tally {
        let (votes, pairs) = (FxHashMap::default(), FxHashMap::default());
        Tally {
            block_size,
            inodes: 0,
            extra: 0,
            flexible: 0,
            crtime: 0,
            compressed: 0,
            votes,
            last: None,
            pairs,
        }
    }

    /// Counts a node beside the one before it.
    fn pair(&mut self, position: u64, footer: &NodeFooter) {
        let distance = distance(position, footer);
        if self.last == position.checked_sub(1).map(|before| (before, distance)) {
            *self.pairs.entry(distance).or_default() += 1;
        }
        self.last = Some((position, distance));
    }

    fn inode(&mut self, position: u64, footer: &NodeFooter, block: &[u8]) {
        self.inodes += 1;
        if footer.next_addr.is_real() {
            let new = Votes { count: 0, first: position, last: position };
            let votes = self.votes.entry(distance(position, footer)).or_insert(new);
            *votes = Votes {
                count: votes.count + 1,
                first: votes.first.min(position),
                last: votes.last.max(position),
            };
        }
        let head = raw_node::head(block);
        let Ok((extra, _)) = ExtraAttributes::ref_from_prefix(&block[INODE_HEAD_BYTES..]) else { return };
        let bytes = usize::from(extra.extra_isize.get());
        if head.inline & inline::EXTRA_ATTR == 0 || !(EXTRA_BYTES_MIN..=EXTRA_BYTES_MAX).contains(&bytes) {
            return;
        }
        self.extra += 1;
        self.flexible += u64::from(extra.inline_xattr_words.get() != 0);
        self.crtime += u64::from(bytes >= CRTIME_END && extra.crtime.get() != 0);
        let is_compressed = head.flags.get() & flag::COMPRESS != 0
            && bytes == EXTRA_BYTES_MAX
            && LOG_CLUSTER_BLOCKS.contains(&extra.log_cluster_size);
        self.compressed += u64::from(is_compressed);
    }

    fn conclude(self) -> Inferred {
        let mut features = Features::default().with(Features::CASEFOLD);
        // A few blocks may look like inodes by chance or come from another volume.
        if self.extra * 8 >= self.inodes {
            features = features.with(Features::EXTRA_ATTR);
            let found = [
                (self.flexible * 8 >= self.extra, Features::FLEXIBLE_INLINE_XATTR),
                (self.crtime * 2 >= self.extra, Features::INODE_CRTIME),
                (self.compressed > 0, Features::COMPRESSION),
            ];
            features =
                found.iter().filter(|(is_on, _)| *is_on).fold(features, |all, (_, one)| all.with(*one));
        }
        let own = self.distance().unwrap_or(0);
        let votes = self.votes.get(&own).cloned().unwrap_or_default();
        let log = self.block_size.log();
        Inferred {
            block_size: self.block_size,
            start: self.start(own),
            features,
            others: self.others(),
            candidates: self.candidates(),
            extent: votes.first << log..(votes.last + 1) << log,
        }
    }

    /// Starts of volumes that some inodes tell, most inodes first.
    fn candidates(&self) -> Vec<i64> {
        let mut all: Vec<(&i64, &Votes)> = self.votes.iter().collect();
        all.sort_unstable_by_key(|(distance, votes)| (Reverse(votes.count), **distance));
        all.into_iter().take(CANDIDATES_MAX).map(|(distance, _)| self.start(*distance)).collect()
    }

    /// Byte at which a volume with this distance between address and position starts.
    fn start(&self, distance: i64) -> i64 {
        -distance.saturating_mul(1 << self.block_size.log())
    }

    /// Starts of the volumes with enough other inodes. A log that goes on in another segment, or that fills holes, makes a few
    /// inodes vote for another distance, but not the same one often, and a smaller one than a volume has blocks. It does not
    /// make neighbours vote for the same one either, except for neighbours in one segment.
    fn others(&self) -> Vec<i64> {
        let own = self.distance().unwrap_or(0);
        let least = (self.inodes / OTHER_MAX).max(OTHER_INODES_MIN);
        let is_other = |(distance, votes): &(&i64, &Votes)| {
            let apart = distance.abs_diff(own);
            let is_partition = apart >= SEGMENT_BLOCKS || apart % ALIGNED_BLOCKS == 0;
            let pairs = self.pairs.get(*distance).copied().unwrap_or(0);
            match apart >= VOLUME_BLOCKS_MIN {
                true => pairs > 0 || votes.count >= least,
                false => apart > 0 && is_partition && pairs >= PAIRS_MIN,
            }
        };
        let mut others: Vec<i64> =
            self.votes.iter().filter(is_other).map(|(distance, _)| self.start(*distance)).collect();
        others.sort_unstable();
        others
    }

    /// The distance between address and position, in blocks, of most inodes.
    fn distance(&self) -> Option<i64> {
        let winner = self.votes.iter().max_by_key(|(distance, votes)| (votes.count, -distance.abs()));
        winner.filter(|(_, votes)| votes.count * 4 >= self.inodes).map(|(distance, _)| *distance)
    }
}

/// End of the time of creation in the extra attributes.
const CRTIME_END: usize = 24;
