//! Refcounts of the clusters of a qcow2 image, and the choice of free clusters.
//!
//! *Invariant*: a changed refcount is in memory until [`Refcounts::write`].

use std::{
    collections::{BTreeMap, HashSet},
    io,
};

use super::{
    ImageFile,
    header::{Header, REFCOUNT_TABLE_AT},
};
use crate::bytes::{invalid, read as read_bytes};

/// Maximum number of unchanged refcount blocks in memory.
const BLOCKS_MAX: usize = 16;

/// Distance behind the end of the file up to which clusters may have refcounts.
const BEHIND_BYTES_MAX: u64 = 64 << 20;

/// The refcounts of an image that is open for changes.
pub struct Refcounts {
    cluster_bytes: u64,
    /// Size of a refcount in bytes.
    entry_bytes: usize,
    /// Place of the table, and the place of each block; 0 for a block that does not exist.
    table_at: u64,
    table: Vec<u64>,
    /// Places of all blocks, which must not be allocated.
    block_places: HashSet<u64>,
    /// Bytes of the L1 table.
    l1: std::ops::Range<u64>,
    /// Entries of the table that changed.
    table_changes: Vec<usize>,
    /// Blocks in memory by their entries in the table, each with true if it changed.
    blocks: BTreeMap<usize, (Vec<u8>, bool)>,
    /// No cluster before this one is free.
    cursor: u64,
    /// Clusters that are free once nothing on the device refers to them.
    pending_frees: Vec<u64>,
    /// True while the table moves, and after an error during the move.
    is_table_unknown: bool,
}

impl Refcounts {
    pub fn read(file: &dyn ImageFile, header: &Header) -> io::Result<Refcounts> {
        let length = u64::from(header.refcount_table_clusters) * header.cluster_bytes();
        let bytes = read_bytes(file, header.refcount_table_at, length as usize)?
            .ok_or_else(|| invalid("qcow2: the refcount table lies behind the end of the file"))?;
        let table = bytes.chunks_exact(8).map(|entry| u64::from_be_bytes(entry.try_into().expect("8 bytes")));
        let table: Vec<u64> = table.collect();
        if table.is_empty() {
            return Err(invalid("qcow2: the image has no refcount table; qemu-img check -r all makes one"));
        }
        Ok(Refcounts {
            cluster_bytes: header.cluster_bytes(),
            entry_bytes: 1 << header.refcount_order.saturating_sub(3),
            table_at: header.refcount_table_at,
            block_places: table.iter().copied().collect(),
            l1: header.l1_at..header.l1_at + 8 * header.l1_entries as u64,
            table,
            table_changes: Vec::new(),
            blocks: BTreeMap::new(),
            cursor: 0,
            pending_frees: Vec::new(),
            is_table_unknown: false,
        })
    }

    fn entries_of_block(&self) -> u64 {
        self.cluster_bytes / self.entry_bytes as u64
    }

    /// Returns the block of an entry of the table, which exists.
    fn block(&mut self, file: &dyn ImageFile, index: usize) -> io::Result<&mut (Vec<u8>, bool)> {
        if !self.blocks.contains_key(&index) {
            let at = self.table[index];
            let bytes = match at % self.cluster_bytes {
                0 => read_bytes(file, at, self.cluster_bytes as usize)?,
                _ => None,
            };
            let bytes = bytes.ok_or_else(|| invalid(format!("qcow2: a refcount block at byte {at}")))?;
            if self.blocks.len() >= BLOCKS_MAX {
                self.blocks.retain(|_, (_, is_changed)| *is_changed);
            }
            self.blocks.insert(index, (bytes, false));
        }
        Ok(self.blocks.get_mut(&index).expect("it was read"))
    }

    /// Returns the entry of the table and the place in the block for a cluster.
    fn place(&self, cluster: u64) -> (usize, std::ops::Range<usize>) {
        let within = (cluster % self.entries_of_block()) as usize * self.entry_bytes;
        ((cluster / self.entries_of_block()) as usize, within..within + self.entry_bytes)
    }

    /// Returns a refcount, or None if no block has it.
    fn get(&mut self, file: &dyn ImageFile, cluster: u64) -> io::Result<Option<u64>> {
        let (index, place) = self.place(cluster);
        if self.table.get(index).is_none_or(|at| *at == 0) {
            return Ok(None);
        }
        let (bytes, _) = self.block(file, index)?;
        Ok(Some(bytes[place].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))))
    }

    fn set(&mut self, file: &dyn ImageFile, cluster: u64, count: u64) -> io::Result<()> {
        let (index, place) = self.place(cluster);
        let (bytes, is_changed) = self.block(file, index)?;
        let length = place.len();
        bytes[place].copy_from_slice(&count.to_be_bytes()[8 - length..]);
        *is_changed = true;
        Ok(())
    }

    /// Takes a free cluster, at the end of the file if there is none. Returns its place.
    pub fn allocate(&mut self, file: &dyn ImageFile) -> io::Result<u64> {
        loop {
            let cluster = self.cursor;
            match self.get(file, cluster)? {
                None => self.make_block(file, cluster)?,
                Some(0) => {
                    self.require_free(cluster)?;
                    self.set(file, cluster, 1)?;
                    self.cursor = cluster + 1;
                    self.cover(file, cluster)?;
                    return Ok(cluster * self.cluster_bytes);
                }
                Some(_) if cluster * self.cluster_bytes > file.geometry().size_bytes + BEHIND_BYTES_MAX => {
                    let at = cluster * self.cluster_bytes;
                    return Err(invalid(format!(
                        "qcow2: the cluster at byte {at}, behind the end of the file, has a refcount"
                    )));
                }
                Some(_) => self.cursor = cluster + 1,
            }
        }
    }

    /// Fails for a cluster of metadata, which has a refcount in every sound image.
    fn require_free(&self, cluster: u64) -> io::Result<()> {
        if !self.is_metadata(cluster) {
            return Ok(());
        }
        let at = cluster * self.cluster_bytes;
        Err(invalid(format!(
            "qcow2: the cluster at byte {at} has metadata and no refcount; qemu-img check -r all repairs that"
        )))
    }

    /// Returns true for the header, the L1 table, the refcount table and its blocks.
    fn is_metadata(&self, cluster: u64) -> bool {
        let at = cluster * self.cluster_bytes;
        let end = at + self.cluster_bytes;
        let table_end = self.table_at + self.table.len() as u64 * 8;
        cluster == 0
            || (at < table_end && self.table_at < end)
            || (at < self.l1.end && self.l1.start < end)
            || self.block_places.contains(&at)
    }

    /// Makes the file long enough for a cluster.
    fn cover(&self, file: &dyn ImageFile, cluster: u64) -> io::Result<()> {
        let end = (cluster + 1) * self.cluster_bytes;
        if file.geometry().size_bytes < end {
            file.set_size(end)?;
        }
        Ok(())
    }

    /// Makes the block that has the refcount of a cluster, in that cluster.
    fn make_block(&mut self, file: &dyn ImageFile, cluster: u64) -> io::Result<()> {
        let (index, _) = self.place(cluster);
        if index >= self.table.len() {
            return self.grow_table(file, cluster);
        }
        self.require_free(cluster)?;
        self.add_block(file, cluster, 1)
    }

    /// Adds a block in a cluster, with refcounts of 1 for it and the clusters that follow it.
    fn add_block(&mut self, file: &dyn ImageFile, cluster: u64, used: u64) -> io::Result<()> {
        let (index, _) = self.place(cluster);
        self.cover(file, cluster + used - 1)?;
        self.table[index] = cluster * self.cluster_bytes;
        self.block_places.insert(self.table[index]);
        self.table_changes.push(index);
        self.blocks.insert(index, (vec![0; self.cluster_bytes as usize], true));
        (cluster..cluster + used).try_for_each(|cluster| self.set(file, cluster, 1))
    }

    /// Makes a larger table behind a new block, whose refcounts cover both.
    ///
    /// After an error it is unknown which table the header has on the device, so that no table may be written any more.
    fn grow_table(&mut self, file: &dyn ImageFile, cluster: u64) -> io::Result<()> {
        let (index, _) = self.place(cluster);
        let entries = self.cluster_bytes / 8;
        let clusters = ((index as u64 + 1) * 3 / 2).div_ceil(entries);
        if cluster % self.entries_of_block() + 1 + clusters > self.entries_of_block() {
            let what =
                "qcow2: the refcount table is full; qemu-img convert makes an image with larger clusters";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        (cluster..=cluster + clusters).try_for_each(|cluster| self.require_free(cluster))?;
        self.is_table_unknown = true;
        self.replace_table(file, cluster, clusters)?;
        self.is_table_unknown = false;
        Ok(())
    }

    /// Puts a new block in a cluster, and a new table of this many clusters behind it.
    fn replace_table(&mut self, file: &dyn ImageFile, cluster: u64, clusters: u64) -> io::Result<()> {
        let old = self.table_at / self.cluster_bytes
            ..(self.table_at + self.table.len() as u64 * 8) / self.cluster_bytes;
        self.table.resize((clusters * self.cluster_bytes / 8) as usize, 0);
        self.add_block(file, cluster, 1 + clusters)?;
        self.table_at = (cluster + 1) * self.cluster_bytes;
        let table: Vec<u8> = self.table.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        file.write(self.table_at, &table)?;
        self.table_changes.clear();
        self.write_blocks(file)?;
        file.flush()?;
        let mut place = self.table_at.to_be_bytes().to_vec();
        place.extend((clusters as u32).to_be_bytes());
        file.write(REFCOUNT_TABLE_AT, &place)?;
        file.flush()?;
        self.pending_frees.extend(old);
        Ok(())
    }

    /// Returns true if the table on the device is unknown after an error.
    pub fn is_table_unknown(&self) -> bool {
        self.is_table_unknown
    }

    /// Gives a cluster up. It is free after [`take_frees`](Self::take_frees) and [`apply_frees`](Self::apply_frees).
    pub fn free(&mut self, cluster: u64) {
        self.pending_frees.push(cluster);
    }

    /// Number of clusters that were given up.
    pub fn pending(&self) -> usize {
        self.pending_frees.len()
    }

    /// Takes the clusters that were given up so far.
    pub fn take_frees(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.pending_frees)
    }

    /// Decrements the refcounts of clusters that were given up. Nothing on the device refers to them any more.
    pub fn apply_frees(&mut self, file: &dyn ImageFile, frees: Vec<u64>) -> io::Result<()> {
        for cluster in frees {
            match self.get(file, cluster)? {
                Some(count @ 1..) => {
                    self.set(file, cluster, count - 1)?;
                    if count == 1 {
                        self.cursor = self.cursor.min(cluster);
                        file.discard(cluster * self.cluster_bytes, self.cluster_bytes)?;
                    }
                }
                _ => {
                    let at = cluster * self.cluster_bytes;
                    return Err(invalid(format!(
                        "qcow2: the cluster at byte {at} is in use, but has no refcount"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Writes all changes. New blocks are durable before the table refers to them: one that is not would say that its own
    /// cluster is free.
    pub fn write(&mut self, file: &dyn ImageFile) -> io::Result<()> {
        self.write_blocks(file)?;
        if self.table_changes.is_empty() {
            return Ok(());
        }
        file.flush()?;
        for index in std::mem::take(&mut self.table_changes) {
            file.write(self.table_at + 8 * index as u64, &self.table[index].to_be_bytes())?;
        }
        Ok(())
    }

    fn write_blocks(&mut self, file: &dyn ImageFile) -> io::Result<()> {
        for (index, (bytes, is_changed)) in &mut self.blocks {
            if *is_changed {
                file.write(self.table[*index], bytes)?;
                *is_changed = false;
            }
        }
        Ok(())
    }
}
