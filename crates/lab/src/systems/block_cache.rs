//! A cache of blocks read or written since the mount (directories, metadata, data), as a kernel has one.
//! Without it, an engine in this process would read them from the card again.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use block::{Device, Geometry};

use super::read_ahead::PAGE_BYTES;

/// A write-through cache of blocks in front of a device.
///
/// *Invariant*: the blocks are locked while the device is read or written, so the cache never differs from
/// the device.
pub(super) struct BlockCache {
    device: Arc<dyn Device>,
    blocks: Mutex<Blocks>,
}

struct Blocks {
    content: HashMap<u64, Block>,
    /// Numbers and insertion turns of the blocks in the order of insertion, including some that have been
    /// evicted since.
    order: VecDeque<(u64, u64)>,
    turn: u64,
    most: usize,
}

struct Block {
    bytes: Box<[u8]>,
    /// Turn of its insertion.
    turn: u64,
}

impl BlockCache {
    /// Creates an empty cache of at most `memory_bytes`.
    pub fn new(device: Arc<dyn Device>, memory_bytes: u64) -> BlockCache {
        let most = (memory_bytes as usize / PAGE_BYTES).max(1);
        let blocks = Blocks { content: HashMap::new(), order: VecDeque::new(), turn: 0, most };
        BlockCache { device, blocks: Mutex::new(blocks) }
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocks {
    fn keep(&mut self, offset_bytes: u64, bytes: &[u8]) {
        for (number, block) in numbers(offset_bytes, bytes.len() as u64).zip(bytes.chunks_exact(PAGE_BYTES)) {
            if let Some(kept) = self.content.get_mut(&number) {
                kept.bytes.copy_from_slice(block);
                continue;
            }
            while self.content.len() >= self.most {
                let Some(oldest) = self.order.pop_front() else { break };
                if self.is_here(oldest) {
                    self.content.remove(&oldest.0);
                }
            }
            self.turn += 1;
            self.content.insert(number, Block { bytes: block.into(), turn: self.turn });
            self.order.push_back((number, self.turn));
        }
    }

    fn forget(&mut self, offset_bytes: u64, length_bytes: u64) {
        let range = numbers(offset_bytes, length_bytes);
        // The range may be as large as the device.
        if range.end - range.start > self.content.len() as u64 {
            self.content.retain(|number, _| !range.contains(number));
        } else {
            range.for_each(|number| drop(self.content.remove(&number)));
        }
        if self.order.len() > 2 * self.content.len() + PAGE_BYTES {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|one| self.is_here(*one));
            self.order = order;
        }
    }

    /// Returns true if that block was not replaced since that turn.
    fn is_here(&self, (number, turn): (u64, u64)) -> bool {
        self.content.get(&number).is_some_and(|block| block.turn == turn)
    }

    /// Fills `buf` and returns true if all of it is cached.
    fn get(&self, offset_bytes: u64, buf: &mut [u8]) -> bool {
        let numbers = numbers(offset_bytes, buf.len() as u64);
        let found: Option<Vec<&[u8]>> = numbers.map(|n| Some(&*self.content.get(&n)?.bytes)).collect();
        let Some(found) = found else { return false };
        buf.chunks_exact_mut(PAGE_BYTES).zip(found).for_each(|(part, block)| part.copy_from_slice(block));
        true
    }
}

/// Returns true if a range consists of whole blocks.
fn is_whole(offset_bytes: u64, length: usize) -> bool {
    offset_bytes % PAGE_BYTES as u64 == 0 && length % PAGE_BYTES == 0
}

/// Returns the numbers of the blocks that a range touches.
fn numbers(offset_bytes: u64, length_bytes: u64) -> std::ops::Range<u64> {
    let page = PAGE_BYTES as u64;
    offset_bytes / page..(offset_bytes + length_bytes).div_ceil(page)
}

impl Device for BlockCache {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        if !is_whole(offset_bytes, buf.len()) {
            return self.device.read(offset_bytes, buf);
        }
        let mut blocks = self.blocks();
        if !blocks.get(offset_bytes, buf) {
            self.device.read(offset_bytes, buf)?;
            blocks.keep(offset_bytes, buf);
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let mut blocks = self.blocks();
        let written = self.device.write(offset_bytes, buf);
        match written.is_ok() && is_whole(offset_bytes, buf.len()) {
            true => blocks.keep(offset_bytes, buf),
            false => blocks.forget(offset_bytes, buf.len() as u64),
        }
        written
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let mut blocks = self.blocks();
        blocks.forget(offset_bytes, length_bytes);
        self.device.discard(offset_bytes, length_bytes)
    }
}

#[cfg(test)]
mod tests {
    use block::{Counted, MemoryDevice};

    use super::*;

    #[test]
    fn cached_blocks_are_not_read_again_until_the_cache_is_full() {
        let device = Arc::new(Counted::new(MemoryDevice::new(1 << 20)));
        let cache = BlockCache::new(device.clone(), 4 * 4096);
        let read = |at: u64| {
            let mut block = [0; 4096];
            cache.read(at * 4096, &mut block).unwrap();
            block[0]
        };
        cache.write(4096, &[7; 8192]).unwrap();
        assert_eq!((read(1), read(2), device.counts().reads), (7, 7, 0));
        assert_eq!((read(0), read(0), device.counts().reads), (0, 0, 1));
        cache.write(4096, &[8; 512]).unwrap();
        assert_eq!((read(1), device.counts().reads), (8, 2));
        cache.discard(0, 1 << 20).unwrap();
        read(2);
        assert_eq!(device.counts().reads, 3);
        (3..7).for_each(|n| assert_eq!(read(n), 0));
        read(2);
        assert_eq!(device.counts().reads, 8, "it had to go");
    }

    #[test]
    fn a_block_cached_again_is_no_longer_the_oldest() {
        let device = Arc::new(Counted::new(MemoryDevice::new(1 << 20)));
        let cache = BlockCache::new(device.clone(), 2 * 4096);
        cache.write(0, &[1; 4096]).unwrap();
        cache.write(4096, &[2; 4096]).unwrap();
        for _ in 0..10_000 {
            cache.discard(0, 4096).unwrap();
            cache.write(0, &[3; 4096]).unwrap();
        }
        assert!(cache.blocks().order.len() <= PAGE_BYTES + 5);
        cache.write(8192, &[4; 4096]).unwrap();
        let mut block = [0; 4096];
        cache.read(0, &mut block).unwrap();
        assert_eq!((block, device.counts().reads), ([3; 4096], 0));
        cache.read(4096, &mut block).unwrap();
        assert_eq!((block, device.counts().reads), ([2; 4096], 1));
    }
}
