//! Reading of blocks in long runs.

use std::sync::Arc;

use f2fs::{
    Error, Place, Result,
    engine::Io,
    format::{
        crc::crc,
        node::{NodeBlock, NodeFooter, NodeFormat},
    },
    units::{BlockAddr, Nid},
};

/// Maximum number of bytes of one request.
const RUN_BYTES: usize = 1 << 20;
/// Attempts to read a block before it counts as unreadable: some errors of a device pass.
const ATTEMPTS: usize = 3;
/// Blocks that a run reads in vain rather than end.
const GAP_BLOCKS: u32 = 16;

/// Reads blocks and hands each to `each`, with its address and the value beside it. `wanted` must be sorted
/// by address. Neighbouring blocks are read together; a block that cannot be read is an error of its own.
pub fn read_runs<T: Copy>(
    io: &Io,
    wanted: impl IntoIterator<Item = (BlockAddr, T)>,
    mut each: impl FnMut(BlockAddr, T, Result<&[u8]>),
) {
    let size = io.block_size().bytes();
    let mut run: Vec<(BlockAddr, T)> = Vec::new();
    let mut buffer = Vec::new();
    for (addr, value) in wanted {
        if let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) {
            let follows = addr >= *last
                && addr.0 - last.0 <= GAP_BLOCKS
                && ((addr.0 - first.0) as usize + 1) * size <= RUN_BYTES;
            if !follows {
                read_run(io, &run, &mut buffer, &mut each);
                run.clear();
            }
        }
        run.push((addr, value));
    }
    read_run(io, &run, &mut buffer, &mut each);
}

fn read_run<T: Copy>(
    io: &Io,
    run: &[(BlockAddr, T)],
    buffer: &mut Vec<u8>,
    each: &mut impl FnMut(BlockAddr, T, Result<&[u8]>),
) {
    let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { return };
    let size = io.block_size().bytes();
    buffer.resize(((last.0 - first.0) as usize + 1) * size, 0);
    let whole = io.read(*first, Place::Block(*first), buffer).is_ok();
    for (addr, value) in run {
        let at = (addr.0 - first.0) as usize * size;
        let block = &mut buffer[at..at + size];
        let result = if whole { Ok(()) } else { read_again(io, *addr, block) };
        each(*addr, *value, result.map(|()| &*block));
    }
}

/// Reads blocks, several times if that fails.
pub fn read_again(io: &Io, addr: BlockAddr, buffer: &mut [u8]) -> Result<()> {
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        result = io.read(addr, Place::Block(addr), buffer);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Reads a block, several times if that fails.
pub fn read_block(io: &Io, addr: BlockAddr) -> Result<Box<[u8]>> {
    let mut block = vec![0; io.block_size().bytes()].into_boxed_slice();
    read_again(io, addr, &mut block).map(|()| block)
}

/// A small cache of blocks, by address: a block goes to the place that its address selects.
pub struct Cache {
    slots: Vec<Option<(BlockAddr, Arc<[u8]>)>>,
}

impl Cache {
    /// Makes a cache of `slots` blocks.
    pub fn new(slots: usize) -> Cache {
        Cache { slots: vec![None; slots] }
    }

    /// Returns a block, from the cache or the device.
    pub fn block(&mut self, io: &Io, addr: BlockAddr) -> Result<Arc<[u8]>> {
        let slots = self.slots.len();
        let slot = &mut self.slots[addr.index() % slots];
        if let Some((cached, bytes)) = slot {
            if *cached == addr {
                return Ok(bytes.clone());
            }
        }
        let bytes: Arc<[u8]> = read_block(io, addr)?.into();
        *slot = Some((addr, bytes.clone()));
        Ok(bytes)
    }
}

/// Makes a node of a block whose footer has the right numbers. A wrong checksum of an inode is replaced in
/// the copy, so that the other rules are checked nevertheless; the second value tells that it was wrong.
pub fn parse_node(
    format: NodeFormat,
    bytes: &[u8],
    nid: Nid,
    addr: BlockAddr,
) -> (Result<NodeBlock, Error>, Option<String>) {
    let ino = NodeFooter::of(bytes).ino;
    match NodeBlock::check(format, bytes.into(), nid, ino, addr) {
        Err(Error::Corrupt { what, .. }) if what.starts_with("inode checksum") => {
            let sealed = sealed(format, bytes);
            (NodeBlock::check(format, sealed, nid, ino, addr), Some(what.into_owned()))
        }
        result => (result, None),
    }
}

/// Byte range of the checksum in an inode.
const CHECKSUM: std::ops::Range<usize> = 368..372;

/// Copies an inode block and sets the checksum by its content.
fn sealed(format: NodeFormat, bytes: &[u8]) -> Box<[u8]> {
    let mut copy: Box<[u8]> = bytes.into();
    copy[CHECKSUM].copy_from_slice(&checksum(format, bytes).to_le_bytes());
    copy
}

fn checksum(format: NodeFormat, bytes: &[u8]) -> u32 {
    /// Byte offset of the generation.
    const GENERATION: usize = 68;
    let seed = crc(format.checksum_seed, &NodeFooter::of(bytes).ino.0.to_le_bytes());
    let seed = crc(seed, &bytes[GENERATION..GENERATION + 4]);
    crc(crc(crc(seed, &bytes[..CHECKSUM.start]), &[0; 4]), &bytes[CHECKSUM.end..])
}

/// Returns an inode block with another bit, and the place of its byte, if that bit makes a wrong checksum right. The
/// difference of two checksums depends on the different bits alone; that of each single bit is another one, and that of more
/// bits is that of a single one in 8 of a million cases.
pub fn with_other_bit(format: NodeFormat, bytes: &[u8]) -> Option<(Box<[u8]>, usize)> {
    let stored = u32::from_le_bytes(bytes[CHECKSUM].try_into().expect("four bytes"));
    let wanted = stored ^ checksum(format, bytes);
    if wanted == 0 {
        return None;
    }
    let mut of_bits: [u32; 8] = std::array::from_fn(|bit| crc(0, &[1 << bit]));
    for at in (0..bytes.len()).rev() {
        if let Some(bit) = of_bits.iter().position(|of_bit| *of_bit == wanted) {
            let mut copy: Box<[u8]> = bytes.into();
            copy[at] ^= 1 << bit;
            // The number and the generation of an inode count twice.
            return (!CHECKSUM.contains(&at) && checksum(format, &copy) == stored).then_some((copy, at));
        }
        of_bits = of_bits.map(|of_bit| crc(of_bit, &[0]));
    }
    None
}
