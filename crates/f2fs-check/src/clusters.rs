//! Compression of a file as its clusters show it, for an inode whose own fields are damaged.

use std::ops::Range;

use f2fs::{
    Place,
    engine::Io,
    format::{
        cluster,
        inode::{Algorithm, Compression, LOG_CLUSTER_BLOCKS},
        node::NodeBlock,
    },
    units::BlockAddr,
};

use crate::{Finding, Fix, Kind, Slot, checker::Checker};

/// Marks that are tried: the cluster behind the first one may be damaged itself.
const MARKS_MAX: usize = 4;
/// Algorithms by how common they are. The decoder of LZO takes LZO-RLE, too.
const ALGORITHMS: [Algorithm; 4] = [Algorithm::Lz4, Algorithm::Zstd, Algorithm::LzoRle, Algorithm::Lzo];

/// Trials of one check. Files without a trial are taken as their inodes say.
const TRIALS_MAX: u32 = 1 << 16;

/// Bytes of a cluster's header with its checksum.
const CHECKSUM: Range<usize> = 4..8;
/// Byte offset of i_compress_flag.
const COMPRESS_FLAG: usize = 394;
/// Bit of i_compress_flag: the clusters have checksums.
const HAS_CHECKSUMS: u8 = 1;

/// Compression that the clusters of a file show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// A cluster can be decompressed with this algorithm and this log2 of its blocks.
    Settings(Algorithm, u8),
    /// Marks have data behind them, which cannot be decompressed.
    Unknown,
    /// No mark has data behind it.
    Nothing,
}

/// Clusters of a file whose marks are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmarked {
    /// The compression of the file.
    pub settings: Compression,
    /// Indices of the addresses in which the marks belong.
    pub marks: Vec<usize>,
}

/// Trials to decompress a cluster, of which a check makes a limited number: each reads blocks of data.
pub struct Trials {
    left: u32,
}

impl Default for Trials {
    fn default() -> Trials {
        Trials { left: TRIALS_MAX }
    }
}

impl Trials {
    /// Returns true if the stored blocks of a cluster decompress to a whole cluster, or if no trial is left.
    pub fn fit(&mut self, io: &Io, stored: &[BlockAddr], settings: Compression) -> bool {
        self.left == 0 || self.decodes(io, stored, settings)
    }

    /// Examines the clusters among addresses that begin at the start of a cluster. Of several algorithms that fit, the
    /// `stored` one is right.
    pub fn shown(&mut self, io: &Io, addrs: &[BlockAddr], stored: Option<Algorithm>) -> Shown {
        let marks = addrs.iter().enumerate().filter(|(_, addr)| **addr == BlockAddr::COMPRESS);
        let mut shown = Shown::Nothing;
        for (at, _) in marks.take(MARKS_MAX) {
            let data = addrs[at + 1..].iter().take_while(|addr| addr.is_real()).count();
            for log in LOG_CLUSTER_BLOCKS {
                let blocks = 1usize << log;
                let is_whole = at % blocks == 0
                    && (1..blocks).contains(&data)
                    && addrs.get(at + 1 + data..at + blocks).is_some_and(|rest| rest.iter().all(is_reserved));
                if !is_whole {
                    continue;
                }
                shown = Shown::Unknown;
                let found = stored.into_iter().chain(ALGORITHMS).find(|algorithm| {
                    let settings = Compression {
                        algorithm: *algorithm,
                        log_cluster_blocks: log,
                        ..Compression::default()
                    };
                    self.decodes(io, &addrs[at + 1..=at + data], settings)
                });
                if let Some(algorithm) = found {
                    return Shown::Settings(algorithm, log);
                }
            }
        }
        shown
    }

    /// Finds clusters among addresses without marks, which begin at the start of a cluster: an empty place, blocks, and only
    /// empty places after them. They count if they decompress. `None` if the first ones do not.
    pub fn unmarked(&mut self, io: &Io, addrs: &[BlockAddr]) -> Option<Unmarked> {
        let settings = LOG_CLUSTER_BLOCKS.flat_map(|log| {
            ALGORITHMS.map(|algorithm| Compression {
                algorithm,
                log_cluster_blocks: log,
                ..Compression::default()
            })
        });
        let settings = settings.into_iter().find(|settings| {
            let mut shapes = shapes(addrs, 1 << settings.log_cluster_blocks).take(MARKS_MAX);
            shapes.any(|(at, data)| self.decodes(io, &addrs[at + 1..=at + data], *settings))
        })?;
        let shapes = shapes(addrs, 1 << settings.log_cluster_blocks);
        let marks = shapes.filter(|(at, data)| self.decodes(io, &addrs[at + 1..=at + data], settings));
        Some(Unmarked { settings, marks: marks.map(|(at, _)| at).collect() })
    }

    /// Returns true if a trial is left and the stored blocks of a cluster decompress to exactly a whole cluster.
    pub fn decodes(&mut self, io: &Io, stored: &[BlockAddr], settings: Compression) -> bool {
        self.decodes_as(io, stored, Compression { checksum: false, ..settings })
    }

    /// Returns true if the stored blocks of a cluster decompress, and have no checksum: their header has zeroes in its place.
    pub fn lacks_checksum(&mut self, io: &Io, stored: &[BlockAddr], settings: Compression) -> bool {
        let header = stored.first().and_then(|addr| io.read_block(*addr, Place::Block(*addr)).ok());
        let is_zero = header.is_some_and(|header| header[CHECKSUM].iter().all(|byte| *byte == 0));
        is_zero
            && !self.decodes_as(io, stored, Compression { checksum: true, ..settings })
            && self.decodes(io, stored, settings)
    }

    /// Returns true if a trial is left and the stored blocks of a cluster decompress with these settings.
    fn decodes_as(&mut self, io: &Io, stored: &[BlockAddr], settings: Compression) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        let size = io.block_size().bytes();
        let settings = Compression { level: 0, ..settings };
        let blocks = stored.iter().map(|addr| io.read_block(*addr, Place::Block(*addr)));
        let Ok(blocks) = blocks.collect::<Result<Vec<_>, _>>() else { return false };
        let mut content = vec![0; size << settings.log_cluster_blocks];
        cluster::decode(&settings, &blocks.concat(), &mut content, Place::Volume).is_ok()
    }
}

impl Checker<'_> {
    /// Has the mark that clusters have checksums cleared, if a cluster decompresses and has none: with it, no cluster of the file
    /// can be read.
    pub fn check_checksum_mark(&mut self, inode: &NodeBlock, stored: &[BlockAddr], own: Compression) {
        if !own.checksum || !self.trials.lacks_checksum(&self.io, stored, own) {
            return;
        }
        let known = "it is marked as a file whose clusters have checksums; they have none";
        let finding = Finding::new(Kind::Cluster, Place::Inode(inode.ino()), known);
        self.report.add(finding.repaired_by("clear the mark"));
        let flags = inode.bytes()[COMPRESS_FLAG] & !HAS_CHECKSUMS;
        self.fix(Fix::Node(Slot { nid: inode.nid(), at: COMPRESS_FLAG }, vec![flags]));
    }
}

/// Clusters of `blocks` addresses that begin with an empty place, and have blocks and then only empty places behind it: the
/// index of their first address, and the number of blocks.
pub fn shapes(addrs: &[BlockAddr], blocks: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    addrs.chunks(blocks).enumerate().filter_map(move |(number, chunk)| {
        let data = chunk[1..].iter().take_while(|addr| addr.is_real()).count();
        let rest = &chunk[1 + data..];
        let is_cluster =
            chunk[0] == BlockAddr::NULL && data > 0 && rest.iter().all(|addr| *addr == BlockAddr::NULL);
        is_cluster.then_some((number * blocks, data))
    })
}

/// Returns true for an address that stands for a block that compression saves, whether it was released or not.
fn is_reserved(addr: &BlockAddr) -> bool {
    [BlockAddr::NULL, BlockAddr::NEW].contains(addr)
}
