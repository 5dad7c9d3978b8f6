//! An inode of the model, and its content.

use std::{collections::BTreeMap, sync::Arc};

use f2fs::units::Time;

use super::Id;

/// An inode of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Kind and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; for a directory, also its own dot and its children's.
    pub links: u32,
    /// Flags set by a program or inherited from the directory.
    pub flags: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Extended attributes by their full names.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Its content.
    pub body: Body,
}

/// The content of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file.
    File(Data),
    /// A directory.
    Dir(Dir),
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A device, FIFO or socket, with its number.
    Special(u32, u32),
}

/// Names in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    /// The parent directory.
    pub parent: Id,
    /// Names by their key (folded in a casefolded directory): the name and the inode.
    pub names: BTreeMap<Vec<u8>, (Vec<u8>, Id)>,
}

/// Content of a regular file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Data {
    /// Size in bytes.
    pub size: u64,
    /// Written or reserved blocks. All others are holes.
    pub blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    /// True if the blocks saved by compression were released, so that the content cannot change.
    pub released: bool,
}

impl Inode {
    pub(super) fn new(mode: u32, flags: u32, time: Time, body: Body) -> Inode {
        Inode {
            mode,
            uid: 0,
            gid: 0,
            links: 1,
            flags,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            xattrs: BTreeMap::new(),
            body,
        }
    }

    /// Returns the content of a regular file.
    pub fn data(&self) -> Option<&Data> {
        match &self.body {
            Body::File(data) => Some(data),
            _ => None,
        }
    }
}

impl Data {
    /// Returns the bytes of a range, at most up to the end of the file.
    pub fn read(&self, block_bytes: u64, offset: u64, length: u64) -> Vec<u8> {
        let end = (offset + length).min(self.size).max(offset);
        let mut out = vec![0; (end - offset) as usize];
        for (block, bytes) in self.blocks.range(offset / block_bytes..end.div_ceil(block_bytes)) {
            let start = block * block_bytes;
            let (from, to) = (start.max(offset), (start + block_bytes).min(end));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
        out
    }

    pub(super) fn put(&mut self, block_bytes: u64, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let inside = at % block_bytes;
            let length = rest.len().min((block_bytes - inside) as usize);
            let block = self.blocks.entry(at / block_bytes).or_insert_with(|| zeroes(block_bytes));
            Arc::make_mut(block)[inside as usize..inside as usize + length].copy_from_slice(&rest[..length]);
            at += length as u64;
            rest = &rest[length..];
        }
    }

    pub(super) fn reserve(&mut self, block_bytes: u64, from: u64, to: u64) {
        for block in from / block_bytes..to.div_ceil(block_bytes) {
            self.blocks.entry(block).or_insert_with(|| zeroes(block_bytes));
        }
    }

    /// Moves each block to its new position, or removes it. Removes data past the end.
    pub(super) fn shift(&mut self, block_bytes: u64, place: impl Fn(u64) -> Option<u64>) {
        // It may exist without a write: inline data moved to it.
        self.blocks.entry(0).or_insert_with(|| zeroes(block_bytes));
        let end = self.size.div_ceil(block_bytes);
        let old = std::mem::take(&mut self.blocks).into_iter().filter(|(block, _)| *block < end);
        self.blocks = old.filter_map(|(block, bytes)| Some((place(block)?, bytes))).collect();
    }

    /// Zeroes a range. Whole blocks of it become holes.
    pub(super) fn zero(&mut self, block_bytes: u64, from: u64, to: u64) {
        let touched: Vec<u64> = self
            .blocks
            .range(from / block_bytes..to.div_ceil(block_bytes))
            .map(|(block, _)| *block)
            .collect();
        for block in touched {
            let start = block * block_bytes;
            let (first, last) = (from.max(start), to.min(start + block_bytes));
            if last - first == block_bytes {
                self.blocks.remove(&block);
            } else {
                let bytes = Arc::make_mut(self.blocks.get_mut(&block).expect("it was listed"));
                bytes[(first - start) as usize..(last - start) as usize].fill(0);
            }
        }
    }
}

fn zeroes(bytes: u64) -> Arc<Vec<u8>> {
    Arc::new(vec![0; bytes as usize])
}
