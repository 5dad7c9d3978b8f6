//! The geometry of a volume, from a superblock or by inference.

use std::{cell::OnceCell, ops::Range, sync::Arc};

use block::Device;
use f2fs::{
    Error, Result,
    engine::{Geometry, Io, read_superblock},
    format::{
        BlockSize, NodeBlock,
        node::{NodeFooter, NodeFormat},
        superblock::{Features, Superblock},
    },
    units::{BlockAddr, Ino},
};

use crate::{
    Map,
    checksum::Bits,
    inference::{self, Inferred},
    raw_node::Limits,
    rescue::Options,
    view::View,
};

/// Inode of the root directory on every volume.
const ROOT: Ino = Ino(3);
/// Bytes of the largest volume that Linux mounts: 16 TiB.
const VOLUME_BYTES_MAX: u64 = 16 << 40;

/// Place and layout of a volume.
pub(crate) struct Shape {
    /// The blocks of the volume, by their addresses.
    pub(crate) io: Io,
    /// Layout of nodes, without the feature inode_checksum: the checksum is judged separately.
    pub(crate) lenient: NodeFormat,
    /// The layout with the checksum, if the volume has checksums and the UUID is known.
    pub(crate) strict: Option<NodeFormat>,
    /// The superblock with the number of its copy, and its geometry.
    pub(crate) known: Option<(Superblock, u8, Geometry)>,
    /// Numbers that no node exceeds.
    pub(crate) limits: Limits,
    /// Blocks that may be nodes or data and lie on the device.
    pub(crate) blocks: Range<u64>,
    /// Byte of the device at which the volume starts.
    pub(crate) start: i64,
    /// Bytes of the device at which other volumes start, as far as their inodes were seen.
    pub(crate) others: Vec<i64>,
    /// The parts of the device that the scan has read; empty before.
    pub(crate) read: Map,
    /// Changes of an inode's checksum, made when an inode has a wrong one.
    bits: OnceCell<Bits>,
}

impl Shape {
    /// Finds the volume on a device.
    ///
    /// # Errors
    /// [`Error::NotF2fs`] if there is neither a superblock nor an inode.
    pub(crate) fn find(device: &Arc<dyn Device>, options: &Options) -> Result<Shape> {
        let given = i64::try_from(options.offset_bytes.unwrap_or(0))
            .map_err(|_| Error::Invalid("the offset is larger than a device".into()))?;
        if let Some(shape) = Shape::of_superblock(device, given) {
            return Ok(shape);
        }
        let size = options.block_size;
        let inferred = inference::infer(device, size).ok_or_else(|| {
            Error::NotF2fs("neither superblock has survived, and there are no inodes".into())
        })?;
        // The second copy of a superblock may be there although the first block is missing.
        let has_superblock = |start: &i64| Shape::of_superblock(device, *start).is_some();
        let standing: Vec<i64> = inferred.candidates.iter().copied().filter(has_superblock).collect();
        let start = match options.offset_bytes {
            Some(_) => given,
            None => standing
                .iter()
                .find(|start| !is_nested(**start, &inferred))
                .copied()
                .unwrap_or(inferred.start),
        };
        let mut others = [&inferred.others[..], &standing, &[inferred.start]].concat();
        others.retain(|other| *other != start);
        others.sort_unstable();
        others.dedup();
        let inferred = Inferred { start, others: others.clone(), ..inferred };
        let shape = Shape::of_superblock(device, start);
        Ok(Shape { others, ..shape.unwrap_or_else(|| Shape::of_inodes(device, inferred)) })
    }

    fn of_superblock(device: &Arc<dyn Device>, start: i64) -> Option<Shape> {
        let view = Arc::new(View::new(device.clone(), start));
        let (sb, copy) = read_superblock(&*view, VOLUME_BYTES_MAX).ok()?;
        let geometry = Geometry::of(&sb);
        let format = NodeFormat::of(&sb);
        let without = Features(sb.features.0 & !Features::INODE_CHECKSUM.0);
        let limits = Limits { nids_end: geometry.nids_end().0, blocks_end: sb.main.end() };
        let main = u64::from(sb.main.start.0)..sb.main.end();
        let has_checksums = sb.features.has(Features::INODE_CHECKSUM);
        Some(Shape {
            blocks: on_device(&view, sb.block_size, main),
            io: Io::new(view, sb.block_size),
            lenient: NodeFormat { features: without, ..format },
            strict: has_checksums.then_some(format),
            known: Some((sb, copy, geometry)),
            limits,
            start,
            others: Vec::new(),
            read: Map::default(),
            bits: OnceCell::new(),
        })
    }

    fn of_inodes(device: &Arc<dyn Device>, inferred: Inferred) -> Shape {
        let Inferred { block_size, start, features, others, .. } = inferred;
        let view = Arc::new(View::new(device.clone(), start));
        let blocks = view.geometry().size_bytes.div_ceil(block_size.bytes() as u64);
        let limits = Limits::of_image(blocks);
        Shape {
            blocks: on_device(&view, block_size, 1..limits.blocks_end),
            io: Io::new(view, block_size),
            lenient: NodeFormat::new(block_size, features, &[0; 16]),
            strict: None,
            known: None,
            limits,
            start,
            others,
            read: Map::default(),
            bits: OnceCell::new(),
        }
    }

    /// Returns true if the block behind which a node was written shows that the node belongs to another volume. A superblock
    /// tells the blocks of the volume; then no node does.
    pub(crate) fn is_of_another(&self, addr: BlockAddr, footer: &NodeFooter) -> bool {
        // Where the node would lie in a volume that starts at `other`.
        let log = self.block_size().log();
        let distance = i64::from(footer.next_addr.0) - 1 - i64::from(addr.0);
        let is_from = |other: &i64| (self.start - other) >> log == distance;
        self.known.is_none() && distance != 0 && self.others.iter().any(is_from)
    }

    /// Returns an inode with a wrong checksum with the one field that makes it right, if there is such a field.
    pub(crate) fn corrected(&self, bytes: &[u8], ino: Ino) -> Option<Box<[u8]>> {
        let strict = self.strict?;
        let bits = self.bits.get_or_init(|| Bits::new(self.block_size()));
        let corrected = bits.corrected(bytes, ino, strict)?;
        let is_sound = NodeBlock::check(strict, corrected.clone(), ino.into(), ino, BlockAddr::NULL).is_ok();
        is_sound.then_some(corrected)
    }

    /// Returns false if a superblock tells that nothing on the volume is encrypted.
    pub(crate) fn may_encrypt(&self) -> bool {
        self.known.as_ref().is_none_or(|(sb, ..)| sb.features.has(Features::ENCRYPT))
    }

    /// Inode of the root directory.
    pub(crate) fn root(&self) -> Ino {
        self.known.as_ref().map_or(ROOT, |(sb, ..)| sb.root_ino)
    }

    /// Size of a block.
    pub(crate) fn block_size(&self) -> BlockSize {
        self.lenient.block_size
    }

    /// Bytes of the device that hold a run of blocks.
    pub(crate) fn bytes(&self, first: BlockAddr, length_bytes: u64) -> Range<u64> {
        let start = u64::from(first.0) << self.block_size().log();
        let start = start.saturating_add_signed(self.start);
        start..start.saturating_add(length_bytes)
    }

    /// Returns true if the scan could not read a block.
    pub(crate) fn is_unreadable(&self, addr: BlockAddr) -> bool {
        self.read.is_bad(&self.bytes(addr, self.block_size().bytes() as u64))
    }

    /// Returns true if a block may hold data and lies on the device.
    pub(crate) fn contains(&self, addr: BlockAddr) -> bool {
        self.blocks.contains(&u64::from(addr.0))
    }
}

/// Returns true if a volume that begins at `start` lies between the inodes of the inferred one: it is an image in a file.
fn is_nested(start: i64, inferred: &Inferred) -> bool {
    let is_between = u64::try_from(start).is_ok_and(|start| inferred.extent.contains(&start));
    start > inferred.start && is_between
}

/// The blocks of a range that lie on the device as a whole.
fn on_device(view: &View, size: BlockSize, blocks: Range<u64>) -> Range<u64> {
    let end = (view.geometry().size_bytes >> size.log()).min(blocks.end).min(u64::from(u32::MAX - 1));
    let first = view.first_byte().div_ceil(size.bytes() as u64).max(blocks.start);
    first..end.max(first)
}
