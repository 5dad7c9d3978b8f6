//! Dirty pages: new content that is neither in a log nor on the device. Other blocks go to their log at once.
//!
//! These blocks wait as pages: blocks on the device that are overwritten in part; overwritten blocks that an
//! fsync may update in place; blocks of compressed clusters that are written in part; blocks of clusters that
//! become plain; directory blocks on the device that change.
//!
//! *Invariant*: the block of each page is reserved in the file's map
//! ([`BlockAddr::NEW`](crate::units::BlockAddr) or a real address), so that writing it back cannot run out of
//! space.

use std::collections::BTreeMap;

use super::Files;
use crate::units::Ino;

/// The dirty pages, ordered by file and block, which is also the order of write-back.
#[derive(Default)]
pub(super) struct Pages {
    map: BTreeMap<(Ino, u64), Page>,
    /// Clusters of compressed files that have dirty pages, by file and first block.
    clusters: BTreeMap<(Ino, u64), Cluster>,
    /// Number of blocks in those clusters that are not dirty pages.
    beside: usize,
}

/// A dirty page.
pub(crate) struct Page {
    /// Its content.
    pub bytes: Box<[u8]>,
    /// True if every checkpoint must write it to be consistent.
    pub is_needed: bool,
}

/// A cluster of a compressed file, which is written as a whole if any of its pages is dirty.
struct Cluster {
    blocks: usize,
    pages: usize,
}

impl Pages {
    /// Returns a page if it is dirty.
    pub(super) fn get(&self, ino: Ino, block: u64) -> Option<&[u8]> {
        self.map.get(&(ino, block)).map(|page| &*page.bytes)
    }

    /// A dirty page, to change it.
    pub(super) fn get_mut(&mut self, ino: Ino, block: u64) -> Option<&mut [u8]> {
        self.map.get_mut(&(ino, block)).map(|page| &mut *page.bytes)
    }

    /// Adds a page.
    pub(super) fn insert(&mut self, ino: Ino, block: u64, page: Page) {
        self.map.insert((ino, block), page);
    }

    /// Returns true if every checkpoint must write this page to be consistent.
    pub(super) fn is_needed(&self, ino: Ino, block: u64) -> bool {
        self.map.get(&(ino, block)).is_some_and(|page| page.is_needed)
    }

    /// Adds a page of a compressed file with clusters of `blocks` blocks.
    pub(super) fn insert_in_cluster(&mut self, ino: Ino, block: u64, page: Page, blocks: usize) {
        if self.map.insert((ino, block), page).is_none() {
            let start = block - block % blocks as u64;
            let cluster = self.clusters.entry((ino, start)).or_insert(Cluster { blocks, pages: 0 });
            self.beside += if cluster.pages == 0 { blocks - 1 } else { 0 };
            self.beside -= usize::from(cluster.pages > 0);
            cluster.pages += 1;
        }
    }

    /// Removes a page and returns it.
    pub(super) fn remove(&mut self, ino: Ino, block: u64) -> Option<Page> {
        let page = self.map.remove(&(ino, block))?;
        let before = self.clusters.range_mut(..=(ino, block)).next_back();
        let own = before.filter(|((of, start), cluster)| *of == ino && block < start + cluster.blocks as u64);
        if let Some((&key, cluster)) = own {
            cluster.pages -= 1;
            self.beside += 1;
            if cluster.pages == 0 {
                self.beside -= cluster.blocks;
                self.clusters.remove(&key);
            }
        }
        Some(page)
    }

    /// The blocks of a file in `from..to` that have a dirty page, ascending.
    pub(super) fn blocks_of(&self, ino: Ino, from: u64, to: u64) -> Vec<u64> {
        if from >= to {
            return Vec::new();
        }
        self.map.range((ino, from)..(ino, to)).map(|((_, block), _)| *block).collect()
    }

    /// Returns true if a file has fewer than `most` dirty pages.
    pub(super) fn has_fewer(&self, ino: Ino, most: usize) -> bool {
        self.map.range((ino, 0)..(ino, u64::MAX)).take(most).count() < most
    }

    /// Drops the pages of a file in `from..to`.
    pub(super) fn discard(&mut self, ino: Ino, from: u64, to: u64) {
        for block in self.blocks_of(ino, from, to) {
            self.remove(ino, block);
        }
    }

    /// The keys of all pages, ascending.
    pub(super) fn keys(&self) -> Vec<(Ino, u64)> {
        self.map.keys().copied().collect()
    }

    /// Returns true if there are no dirty pages.
    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Number of dirty pages.
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Upper bound of the blocks that writing all pages takes; a page of a compressed file counts as its
    /// whole cluster.
    pub(super) fn blocks_to_write(&self) -> usize {
        self.map.len() + self.beside
    }
}

impl Files {
    /// Adds a page.
    pub(crate) fn insert_page(&mut self, ino: Ino, block: u64, page: Page) {
        self.pages.insert(ino, block, page);
        self.report_pages();
    }

    /// Adds a page of a compressed file with clusters of `blocks` blocks.
    pub(super) fn insert_page_in_cluster(&mut self, ino: Ino, block: u64, page: Page, blocks: usize) {
        self.pages.insert_in_cluster(ino, block, page, blocks);
        self.report_pages();
    }

    /// Removes a page and returns it.
    pub(super) fn remove_page(&mut self, ino: Ino, block: u64) -> Option<Page> {
        let page = self.pages.remove(ino, block);
        self.report_pages();
        page
    }

    /// Drops the pages of a file in `from..to`.
    pub(crate) fn discard_pages(&mut self, ino: Ino, from: u64, to: u64) {
        self.pages.discard(ino, from, to);
        self.report_pages();
    }

    /// Tells the segment manager how many blocks wait for a place.
    fn report_pages(&mut self) {
        let blocks = self.pages.blocks_to_write();
        self.segments_mut().set_waiting_pages(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dirty_page_marks_its_whole_cluster() {
        let (mut pages, page) = (Pages::default(), || Page { bytes: Box::from([0]), is_needed: false });
        pages.insert(Ino(4), 40, page());
        for block in [16, 19, 19, 31, 32] {
            pages.insert_in_cluster(Ino(5), block, page(), 16);
        }
        assert_eq!((pages.len(), pages.blocks_to_write()), (5, 33));
        pages.insert_in_cluster(Ino(6), 3, page(), 4);
        pages.discard(Ino(5), 17, 33);
        assert_eq!((pages.len(), pages.blocks_to_write()), (3, 21));
        assert!(pages.remove(Ino(5), 17).is_none() && pages.remove(Ino(5), 16).is_some());
        pages.discard(Ino(6), 0, u64::MAX);
        assert_eq!((pages.len(), pages.blocks_to_write(), pages.clusters.len()), (1, 1, 0));
    }
}
