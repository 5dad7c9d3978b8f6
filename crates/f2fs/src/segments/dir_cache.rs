//! Blocks of directories as they are on the device, so that a search for a name reads none of them twice.
//!
//! *Invariant*: a cached block is what the device has at its address. Every write to an address forgets the block: as a
//! block of a pending run it is found there, and later it is read again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Segments;
use crate::{Place, Result, generations::Generations, units::BlockAddr};

/// Minimum number of blocks in a generation, regardless of the memory limit.
const HALF_MIN: usize = 4;

/// The cached blocks. Readers share them.
pub(super) struct DirCache(Mutex<Generations<BlockAddr, Arc<[u8]>>>);

impl DirCache {
    /// Makes an empty cache of about `blocks` blocks.
    pub(super) fn new(blocks: usize) -> DirCache {
        DirCache(Mutex::new(Generations::new((blocks / 2).max(HALF_MIN))))
    }

    /// Forgets `count` blocks from `addr` on.
    pub(super) fn forget(&mut self, addr: BlockAddr, count: usize) {
        let blocks = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !blocks.is_empty() {
            (addr.0..).take(count).for_each(|addr| blocks.remove(BlockAddr(addr)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Generations<BlockAddr, Arc<[u8]>>> {
        // It holds only whole blocks, also after a thread has panicked under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Segments {
    /// Returns a block of a directory that is not in a pending run.
    pub(crate) fn dir_block(&self, addr: BlockAddr, at: Place) -> Result<Arc<[u8]>> {
        if let Some(block) = self.cached_dir_block(addr) {
            return Ok(block);
        }
        let mut bytes = vec![0; self.disk.geometry().block_size.bytes()];
        self.read_blocks(addr, at, &mut bytes)?;
        let block: Arc<[u8]> = bytes.into();
        self.dir_cache.lock().insert(addr, block.clone());
        Ok(block)
    }

    /// Returns a block of a directory if it is cached.
    pub(crate) fn cached_dir_block(&self, addr: BlockAddr) -> Option<Arc<[u8]>> {
        self.dir_cache.lock().get(addr)
    }
}
