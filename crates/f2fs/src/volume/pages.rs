//! Changed blocks of files that wait for an address: directories' blocks and partly written ones.
//!
//! *Invariant*: each page's block is reserved in the file's map ([`BlockAddr::NEW`](crate::units::BlockAddr) or
//! a real address), so that writing it back cannot run out of space.

use std::collections::BTreeMap;

use crate::units::Ino;

/// The pages, in the order of files and blocks, which is the order in which they are written.
#[derive(Default)]
pub struct Pages {
    map: BTreeMap<(Ino, u64), Box<[u8]>>,
}

impl Pages {
    /// A page, if it is here.
    pub fn get(&self, ino: Ino, block: u64) -> Option<&[u8]> {
        self.map.get(&(ino, block)).map(|page| &**page)
    }

    /// A page, to change it.
    pub fn get_mut(&mut self, ino: Ino, block: u64) -> Option<&mut [u8]> {
        self.map.get_mut(&(ino, block)).map(|page| &mut **page)
    }

    /// Adds a page.
    pub fn insert(&mut self, ino: Ino, block: u64, page: Box<[u8]>) -> &mut [u8] {
        let slot = self.map.entry((ino, block)).or_default();
        *slot = page;
        slot
    }

    /// Takes a page out.
    pub fn remove(&mut self, ino: Ino, block: u64) -> Option<Box<[u8]>> {
        self.map.remove(&(ino, block))
    }

    /// Blocks of a file, from `from` up to but not including `to`, that have a page, ascending.
    pub fn blocks_of(&self, ino: Ino, from: u64, to: u64) -> Vec<u64> {
        if from >= to {
            return Vec::new();
        }
        self.map.range((ino, from)..(ino, to)).map(|((_, block), _)| *block).collect()
    }

    /// Whether a file has fewer pages than `most`.
    pub fn has_fewer(&self, ino: Ino, most: usize) -> bool {
        self.map.range((ino, 0)..(ino, u64::MAX)).take(most).count() < most
    }

    /// Drops the pages of a file from `from` up to but not including `to`.
    pub fn discard(&mut self, ino: Ino, from: u64, to: u64) {
        for block in self.blocks_of(ino, from, to) {
            self.map.remove(&(ino, block));
        }
    }

    /// The keys of all pages, ascending.
    pub fn keys(&self) -> Vec<(Ino, u64)> {
        self.map.keys().copied().collect()
    }

    /// Count of pages.
    pub fn len(&self) -> usize {
        self.map.len()
    }
}
