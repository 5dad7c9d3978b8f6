//! Quota files: a radix tree over ids with limits and usage (the kernel's "vfsv1" format).
//!
//! A file is an array of blocks of 1 KiB. Block 0 has a header and [`raw::QuotaInfo`]. Block 1 is the root of
//! a tree of four levels. Each block of the tree has 256 block numbers, and each level covers one byte of the
//! id, most significant first. The numbers in the last level refer to the leaf blocks, which hold up to 14
//! records. (Linux, `fs/quota`.)

use std::collections::{BTreeMap, HashSet};

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::{Error, Place, Result};

/// Bytes of a block of the file.
pub const BLOCK_BYTES: usize = 1024;
/// Block of the tree's root.
pub const ROOT: u32 = 1;
/// Levels of the tree above the leaves.
pub const LEVELS: u32 = 4;
const VERSION: u32 = 1;
/// Bytes before the records of a leaf.
const LEAF_HEAD_BYTES: usize = 16;
/// Records of a leaf.
const LEAF_RECORDS: usize = (BLOCK_BYTES - LEAF_HEAD_BYTES) / size_of::<raw::QuotaRecord>();

/// Raw bytes.
pub mod raw {
    use std::mem::size_of;

    use zerocopy::{
        FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
        little_endian::{U32, U64},
    };

    /// Start of a quota file.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    pub struct QuotaInfo {
        /// Kind of quota: users 0xD9C01F11, groups 0xD9C01927, projects 0xD9C03F14.
        pub magic: U32,
        /// Version of the format: 1.
        pub version: U32,
        /// Seconds for which usage may be over the soft limit of space.
        pub block_grace: U32,
        /// Seconds for which usage may be over the soft limit of inodes.
        pub inode_grace: U32,
        /// Flags.
        pub flags: U32,
        /// Blocks of the file.
        pub blocks: U32,
        /// First block of the list of free blocks, or 0.
        pub free_block: U32,
        /// First block of the list of leaves with free slots, or 0.
        pub free_entry: U32,
    }

    /// Usage and limits of one id, in a leaf block.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    pub struct QuotaRecord {
        /// User, group or project.
        pub id: U32,
        /// Not used.
        pub pad: U32,
        /// Inodes at most, or 0.
        pub inode_hard_limit: U64,
        /// Inodes that may be exceeded for a time, or 0.
        pub inode_soft_limit: U64,
        /// Inodes in use.
        pub inodes: U64,
        /// Space at most, in KiB, or 0.
        pub block_hard_limit: U64,
        /// Space that may be exceeded for a time, in KiB, or 0.
        pub block_soft_limit: U64,
        /// Space in use, in bytes.
        pub space: U64,
        /// When the time over the soft limit of space ends, seconds.
        pub block_time: U64,
        /// When the time over the soft limit of inodes ends, seconds.
        pub inode_time: U64,
    }

    const _: () = assert!(size_of::<QuotaInfo>() == 32 && size_of::<QuotaRecord>() == 72);
}

/// Kind of quota: the kind of id that usage is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaKind {
    /// By owner.
    User,
    /// By group.
    Group,
    /// By project id.
    Project,
}

impl QuotaKind {
    /// All kinds, in the order of the superblock's inode numbers.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// Place in the order of the superblock's inode numbers.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        }
    }

    /// First word of the kind's files.
    #[must_use]
    pub const fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xD9C0_1F11,
            QuotaKind::Group => 0xD9C0_1927,
            QuotaKind::Project => 0xD9C0_3F14,
        }
    }
}

/// Usage of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Inodes.
    pub inodes: u64,
    /// Space in bytes: all blocks except the inodes' own.
    pub bytes: u64,
}

/// A used record and its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Byte offset of the record in the file.
    pub offset: u64,
    /// The record.
    pub record: raw::QuotaRecord,
}

/// The start of a quota file, checked.
///
/// # Errors
/// [`Error::Corrupt`] at `at` if the magic number or the version is wrong.
pub fn info(block: &[u8; BLOCK_BYTES], kind: QuotaKind, at: Place) -> Result<raw::QuotaInfo> {
    let (info, _) = raw::QuotaInfo::read_from_prefix(block).expect("a block is longer than the info");
    if info.magic.get() != kind.magic() || info.version.get() != VERSION {
        return Err(Error::corrupt(
            at,
            format!("quota file with magic {:#010x}, version {}", info.magic.get(), info.version.get()),
        ));
    }
    Ok(info)
}

/// Returns all records of a quota file, in the tree's order of ids. `read` gets the number of a block of the
/// file. Numbers are below the info's count, and each block is read once.
///
/// # Errors
/// Those of [`info`] for the first block; [`Error::Corrupt`] at `at` if a block of the tree lies outside the file, or
/// is in the tree twice; the errors of `read`.
pub fn records(
    kind: QuotaKind,
    at: Place,
    mut read: impl FnMut(u32) -> Result<[u8; BLOCK_BYTES]>,
) -> Result<Vec<Located>> {
    let mut search = RecordSearch::new(&read(0)?, kind, at)?;
    while search.read_next(&mut read)? {}
    Ok(search.into_records())
}

/// Grace times of the soft limits of space and inodes in a new quota file, in seconds: a week each, as of mkfs.f2fs.
pub const USUAL_GRACES: (u32, u32) = (7 * 24 * 3600, 7 * 24 * 3600);

/// Encodes a quota file without limits, for ids and their usage. Its first blocks are those of mkfs.f2fs: the
/// tree down to the first leaf.
#[must_use]
pub fn encode(kind: QuotaKind, usage: &BTreeMap<u32, Usage>) -> Vec<u8> {
    let records = usage.iter().map(|(id, used)| {
        let mut record = raw::QuotaRecord::new_zeroed();
        record.id.set(*id);
        record.inodes.set(used.inodes);
        record.space.set(used.bytes);
        record
    });
    encode_records(kind, USUAL_GRACES, records)
}

/// Encodes a quota file of these records, which must be in the order of their ids. The times, in seconds, are
/// the grace times of the soft limits of space and inodes.
pub fn encode_records(
    kind: QuotaKind,
    graces: (u32, u32),
    records: impl IntoIterator<Item = raw::QuotaRecord>,
) -> Vec<u8> {
    let number_of = |block: usize| u32::try_from(block).expect("a quota file of less than 4 TiB");
    let mut file = vec![[0; BLOCK_BYTES]; ROOT as usize + 1];
    let (mut leaf, mut count) = (0, 0);
    for (number, record) in records.into_iter().enumerate() {
        count = number + 1;
        // Descends the tree and adds blocks where the path ends.
        let (mut at, slot) = (ROOT as usize, number % LEAF_RECORDS);
        for level in 0..LEVELS {
            let child = 4 * usize::from(record.id.get().to_be_bytes()[level as usize]);
            let place = child..child + 4;
            let mut next =
                u32::from_le_bytes(file[at][place.clone()].try_into().expect("four bytes were cut"));
            if next == 0 {
                let leaf_is_there = level + 1 == LEVELS && slot > 0;
                next = if leaf_is_there { leaf } else { number_of(file.len()) };
                if !leaf_is_there {
                    file.push([0; BLOCK_BYTES]);
                }
                file[at][place].copy_from_slice(&next.to_le_bytes());
            }
            at = next as usize;
        }
        leaf = number_of(at);
        let start = LEAF_HEAD_BYTES + slot * size_of::<raw::QuotaRecord>();
        file[at][start..start + size_of::<raw::QuotaRecord>()].copy_from_slice(record.as_bytes());
        let records = u16::try_from(slot + 1).expect("a leaf has few records");
        file[at][8..10].copy_from_slice(&records.to_le_bytes());
    }
    let info = raw::QuotaInfo {
        magic: kind.magic().into(),
        version: VERSION.into(),
        block_grace: graces.0.into(),
        inode_grace: graces.1.into(),
        flags: 0.into(),
        blocks: number_of(file.len()).into(),
        free_block: 0.into(),
        free_entry: if count % LEAF_RECORDS == 0 { 0 } else { leaf }.into(),
    };
    file[0][..size_of::<raw::QuotaInfo>()].copy_from_slice(info.as_bytes());
    file.concat()
}

/// A search for all records of a quota file, which can pause between any two blocks.
pub struct RecordSearch {
    at: Place,
    blocks: u32,
    seen: HashSet<u32>,
    records: Vec<Located>,
    /// Blocks that are still to be read, the next one last, with the number of levels below each: at most the children of
    /// one block of each level.
    open: Vec<(u32, u32)>,
}

impl RecordSearch {
    /// Begins a search in a quota file with this first block.
    ///
    /// # Errors
    /// Those of [`info`].
    pub fn new(first: &[u8; BLOCK_BYTES], kind: QuotaKind, at: Place) -> Result<RecordSearch> {
        let blocks = info(first, kind, at)?.blocks.get();
        Ok(RecordSearch { at, blocks, seen: HashSet::new(), records: Vec::new(), open: vec![(ROOT, LEVELS)] })
    }

    /// Reads the next block. Returns false if none was left.
    ///
    /// # Errors
    /// Those of [`records`].
    pub fn read_next(&mut self, read: impl FnOnce(u32) -> Result<[u8; BLOCK_BYTES]>) -> Result<bool> {
        let Some((block, levels)) = self.open.pop() else { return Ok(false) };
        if block >= self.blocks {
            return Err(Error::corrupt(self.at, format!("quota block {block} of {}", self.blocks)));
        }
        match (self.seen.insert(block), levels) {
            (true, 0) => self.records.extend(leaf_records(block, &read(block)?)),
            // The ids of one leaf may differ in their last byte. Then several numbers refer to the leaf.
            (false, 0) => {}
            (true, _) => {
                let bytes = read(block)?;
                let children = bytes.chunks_exact(4).rev();
                let numbers =
                    children.map(|child| u32::from_le_bytes(child.try_into().expect("four bytes were cut")));
                self.open.extend(numbers.filter(|child| *child != 0).map(|child| (child, levels - 1)));
            }
            (false, _) => {
                return Err(Error::corrupt(self.at, format!("quota block {block} is in the tree twice")));
            }
        }
        Ok(true)
    }

    /// Returns the records that were found, in the tree's order of ids.
    #[must_use]
    pub fn into_records(self) -> Vec<Located> {
        self.records
    }
}

/// Returns the records in a leaf block, with their places.
#[must_use]
pub fn leaf_records(block: u32, bytes: &[u8; BLOCK_BYTES]) -> Vec<Located> {
    let start = u64::from(block) * BLOCK_BYTES as u64 + LEAF_HEAD_BYTES as u64;
    let size = size_of::<raw::QuotaRecord>();
    let slots = bytes[LEAF_HEAD_BYTES..].chunks_exact(size).enumerate();
    // A slot of zeroes is free. A time of 1 distinguishes the record of id 0 without usage and limits.
    let used = slots.filter(|(_, slot)| slot.iter().any(|byte| *byte != 0));
    let located = used.map(|(index, slot)| {
        let record = raw::QuotaRecord::read_from_bytes(slot).expect("the slot has the struct's size");
        Located { offset: start + (index * size) as u64, record }
    });
    located.collect()
}

/// Returns the records in a block that no tree names, if it is a leaf as a whole: its head counts them, and reserved bytes
/// are zero. A free block counts none.
#[must_use]
pub fn whole_leaf(block: u32, bytes: &[u8; BLOCK_BYTES]) -> Option<Vec<Located>> {
    let (count, reserved) = (u16::from_le_bytes([bytes[8], bytes[9]]), &bytes[10..LEAF_HEAD_BYTES]);
    let records = leaf_records(block, bytes);
    let is_whole = count > 0
        && records.len() == usize::from(count)
        && reserved.iter().all(|byte| *byte == 0)
        && records.iter().all(|located| located.record.pad.get() == 0);
    is_whole.then_some(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ino;

    const AT: Place = Place::Inode(Ino(4));

    /// A file as mkfs makes it: root's record in block 5, below blocks 1 to 4.
    fn file() -> Vec<[u8; BLOCK_BYTES]> {
        let mut blocks = vec![[0; BLOCK_BYTES]; 6];
        for (at, word) in [0xD9C0_1F11, 1, 604_800, 604_800, 0, 6, 0, 5u32].into_iter().enumerate() {
            blocks[0][4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        for block in 1..5u8 {
            blocks[usize::from(block)][0] = block + 1;
        }
        let root =
            raw::QuotaRecord { inodes: 2.into(), space: 8192.into(), ..raw::QuotaRecord::new_zeroed() };
        blocks[5][8] = 1;
        blocks[5][16..88].copy_from_slice(root.as_bytes());
        blocks
    }

    fn read(blocks: &[[u8; BLOCK_BYTES]]) -> Result<Vec<Located>> {
        let mut reads = 0;
        records(QuotaKind::User, AT, |block| {
            reads += 1;
            assert!(reads <= blocks.len(), "each block is read once");
            Ok(blocks[block as usize])
        })
    }

    #[test]
    fn encoded_records_are_found_again() {
        let used = |n: u32| Usage { inodes: u64::from(n) + 1, bytes: u64::from(n) << 12 };
        for ids in
            [vec![0], vec![0, 1000], (0..300).map(|n| n * 77).collect(), vec![0, 255, 256, 65_536, u32::MAX]]
        {
            let usage: BTreeMap<u32, Usage> = ids.iter().map(|id| (*id, used(*id))).collect();
            let bytes = encode(QuotaKind::Group, &usage);
            let block = |n: u32| Ok(bytes[n as usize * BLOCK_BYTES..][..BLOCK_BYTES].try_into().unwrap());
            let found = records(QuotaKind::Group, AT, block).unwrap();
            let found: BTreeMap<u32, Usage> = found
                .iter()
                .map(|found| found.record)
                .map(|r| (r.id.get(), Usage { inodes: r.inodes.get(), bytes: r.space.get() }))
                .collect();
            assert_eq!(found, usage);
        }
        assert_eq!(encode(QuotaKind::User, &BTreeMap::from([(0, used(0))])).len(), 6 * BLOCK_BYTES);
    }

    #[test]
    fn records_are_found_in_their_blocks() {
        let mut blocks = file();
        blocks[4][4 * 200] = 5;
        let second = raw::QuotaRecord { id: 200.into(), inodes: 1.into(), ..raw::QuotaRecord::new_zeroed() };
        blocks[5][88..160].copy_from_slice(second.as_bytes());
        let found = read(&blocks).unwrap();
        let facts: Vec<_> = found
            .iter()
            .map(|l| (l.offset, l.record.id.get(), l.record.inodes.get(), l.record.space.get()))
            .collect();
        assert_eq!(facts, [(5136, 0, 2, 8192), (5208, 200, 1, 0)]);
    }

    #[test]
    fn hostile_trees_are_errors() {
        let damaged = |damage: fn(&mut Vec<[u8; BLOCK_BYTES]>)| {
            let mut blocks = file();
            damage(&mut blocks);
            read(&blocks).unwrap_err().to_string()
        };
        assert!(damaged(|blocks| blocks[0][0] = 0).contains("magic 0xd9c01f00"));
        assert!(damaged(|blocks| blocks[0][4] = 2).contains("version 2"));
        assert!(damaged(|blocks| blocks[2][0] = 1).contains("block 1 is in the tree twice"));
        assert!(damaged(|blocks| blocks[3][7] = 1).contains("quota block"));
        assert!(damaged(|blocks| blocks[0][20] = 5).contains("quota block 5 of 5"));
    }
}
