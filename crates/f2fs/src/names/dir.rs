//! Searching directories for names.

use std::{borrow::Cow, ops::Range, sync::Arc};

use fscrypt::FileCipher;

use super::{
    Names,
    dir_blocks::{Repeated, SeenBlocks},
    dir_strays::Strays,
    encryption::Naming,
    hidden_name,
};
use crate::{
    Error, Place, Result,
    files::{FileBlock, Unmapped},
    format::{
        FileType, NAME_MAX,
        casefold::fold,
        dentry::{Dentries, Dentry},
        dir_hash,
        hash::name_hash,
        inode::{advise, flag, inline},
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};

/// Bit of the superblock's encoding flags: names are found by their hash only, without a linear search.
const NO_LINEAR_FALLBACK: u16 = 2;
/// Bit of the superblock's encoding flags: names that are not valid UTF-8 are refused.
const STRICT: u16 = 1;

/// A block of a directory with its number.
type NumberedBlock<'a> = (u64, FileBlock<'a>);

/// An entry and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The inode.
    pub ino: Ino,
    /// File type stored in the entry, if it is a valid one.
    pub kind: Option<FileType>,
    /// Block of the directory; 0 in an inline one.
    pub block: u64,
    /// Slot in the block.
    pub slot: usize,
}

/// A name in the form in which a directory is searched for it.
pub(super) enum Wanted<'a> {
    /// Exactly these bytes.
    Exact { hash: u32, name: Cow<'a, [u8]> },
    /// A name that folds to these bytes; the cipher is that of the names in the directory, if it is encrypted.
    Folded { hash: u32, folded: Vec<u8>, cipher: Option<Arc<FileCipher>> },
    /// An encrypted name whose form without the key is these bytes.
    Hidden { hash: u32, shown: &'a [u8] },
}

/// The parts of an entry that a search compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// The stored hash, then the name.
    HashAndName,
    /// The name only: the stored hash may be wrong.
    Name,
}

impl Wanted<'_> {
    /// The hash that selects the buckets of the entry.
    pub(super) fn hash(&self) -> u32 {
        match self {
            Wanted::Exact { hash, .. } | Wanted::Folded { hash, .. } | Wanted::Hidden { hash, .. } => *hash,
        }
    }

    pub(super) fn is(&self, entry: &Dentry<'_>, comparison: Comparison) -> bool {
        if comparison == Comparison::HashAndName && entry.hash != self.hash() {
            return false;
        }
        match self {
            Wanted::Exact { name, .. } => entry.name == &**name,
            Wanted::Folded { folded, cipher: None, .. } => folds_to(entry.name, folded),
            Wanted::Folded { folded, cipher: Some(cipher), .. } => {
                cipher.decrypt_name(entry.name).is_some_and(|name| folds_to(&name, folded))
            }
            Wanted::Hidden { shown, .. } => {
                hidden_name::encode(entry.name, entry.hash).is_some_and(|own| own == *shown)
            }
        }
    }
}

impl Names {
    /// Returns the inode that a name of a directory refers to.
    pub(crate) fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        Ok(self.find_entry(dir, name)?.ok_or(Error::NotFound)?.ino)
    }

    /// Returns the entry of a directory with this name, if there is one.
    pub(crate) fn find_entry(&self, dir: Ino, name: &[u8]) -> Result<Option<Found>> {
        let inode = self.directory(dir)?;
        let Some(wanted) = self.wanted(&inode, name)? else { return Ok(None) };
        if self.dirs.lacks(dir, wanted.hash()) {
            return Ok(None);
        }
        if let Some(found) = self.hinted(&inode, &wanted) {
            return Ok(Some(found));
        }
        if let Some(found) = self.io().record_corruption(self.search(&inode, &wanted))? {
            self.hints.note(dir, wanted.hash(), found.block, found.slot);
            return Ok(Some(found));
        }
        let has_strays =
            inode.has_flag(flag::CASEFOLD) && self.superblock().encoding_flags & NO_LINEAR_FALLBACK == 0;
        if has_strays { self.find_stray(&inode, &wanted) } else { Ok(None) }
    }

    /// Returns the entry areas of a directory with their block numbers: all blocks except holes, or the inline area.
    pub(crate) fn directory_areas(
        &self,
        dir: Ino,
    ) -> Result<impl Iterator<Item = Result<(u64, Cow<'_, [u8]>)>> + '_> {
        let inode = self.directory(dir)?;
        let is_inline = inode.has_inline(inline::DENTRY);
        let end = inode.head().size.get().div_ceil(1 << self.superblock().block_size.log());
        let (mut next, mut seen) = (0, SeenBlocks::default());
        Ok(std::iter::from_fn(move || {
            if is_inline {
                let first = std::mem::replace(&mut next, 1) == 0;
                return first.then(|| Ok((0, inode.inline_area().to_vec().into())));
            }
            let area = self.next_dir_block(&inode, next..end, &mut seen);
            let area = area.map_err(|unmapped| unmapped.error).transpose()?;
            next = area.as_ref().map_or(end, |(block, _)| block + 1);
            Some(area.map(|(block, bytes)| (block, bytes.to_vec().into())))
        }))
    }

    /// Returns true if a directory has no entries except "." and "..".
    pub(crate) fn is_empty_dir(&self, dir: Ino) -> Result<bool> {
        for entry in self.entries(dir, 0)? {
            let entry = entry?;
            if entry.name != b"." && entry.name != b".." {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the form in which a directory is searched for a name, or `None` if it cannot contain that
    /// name.
    pub(super) fn wanted<'a>(&self, dir: &NodeBlock, name: &'a [u8]) -> Result<Option<Wanted<'a>>> {
        if name.is_empty() {
            return Ok(None);
        }
        let dots = name == b"." || name == b"..";
        if dir.has_advise(advise::ENCRYPT) && !dots {
            return self.wanted_encrypted(dir, name);
        }
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if dir.has_flag(flag::CASEFOLD) && !dots {
            if let Some(folded) = self.folded(name)? {
                return Ok(Some(Wanted::Folded { hash: name_hash(&folded), folded, cipher: None }));
            }
        }
        Ok(Some(Wanted::Exact { hash: name_hash(name), name: Cow::Borrowed(name) }))
    }

    /// Returns the folded form of a name; `None` if it has none and counts as bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has none and the volume admits only valid UTF-8.
    pub(super) fn folded(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match fold(name) {
            None if self.superblock().encoding_flags & STRICT != 0 => {
                Err(Error::Invalid("the name is not valid UTF-8".into()))
            }
            folded => Ok(folded),
        }
    }

    /// Searches the buckets that the hash of a name selects. Damage does not hide intact entries: its error
    /// is returned only if the name is not found elsewhere.
    pub(super) fn search(&self, dir: &NodeBlock, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let ino = dir.ino();
        if dir.has_inline(inline::DENTRY) {
            return find_in(
                &Dentries::new(dir.inline_area(), Place::Dir(ino, 0)),
                wanted,
                Comparison::HashAndName,
                0,
            );
        }
        let end = self.dir_end(dir);
        let mut damage = None;
        for level in 0..self.depth(dir)? {
            let bucket = dir_hash::bucket(level, dir.head().dir_level, wanted.hash());
            if bucket.start >= end {
                break;
            }
            for block in bucket {
                let found = self.files.dir_block(dir, block).and_then(|bytes| match bytes {
                    Some(bytes) => find_in(
                        &Dentries::new(&*bytes, Place::Dir(ino, block)),
                        wanted,
                        Comparison::HashAndName,
                        block,
                    ),
                    None => Ok(None),
                });
                match found {
                    Ok(None) => {}
                    Ok(found) => return Ok(found),
                    Err(error) => damage = damage.or(Some(error)),
                }
            }
        }
        damage.map_or(Ok(None), Err)
    }

    /// Searches a casefolded directory for a name that the search by hash has missed. The first search walks
    /// the whole directory.
    fn find_stray(&self, dir: &NodeBlock, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let ino = dir.ino();
        if dir.has_inline(inline::DENTRY) {
            return find_in(
                &Dentries::new(dir.inline_area(), Place::Dir(ino, 0)),
                wanted,
                Comparison::Name,
                0,
            );
        }
        let Some(blocks) = self.strays.blocks(ino, wanted.hash()) else {
            return self.find_all_strays(dir, wanted);
        };
        for block in blocks {
            let Some(bytes) = self.files.dir_block(dir, block)? else { continue };
            let area = Dentries::new(&*bytes, Place::Dir(ino, block));
            if let Some(found) = find_in(&area, wanted, Comparison::Name, block)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Walks a directory to record its stray names, and returns the entry of `wanted` if it is found. On
    /// damage, or if there are too many, nothing is recorded.
    fn find_all_strays(&self, dir: &NodeBlock, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let (ino, end) = (dir.ino(), self.dir_end(dir));
        let (mut strays, mut found, mut damage, mut next) = (Some(Strays::new()), None, None, 0);
        let (mut seen, naming) = (SeenBlocks::default(), self.naming(dir)?);
        while strays.is_some() || found.is_none() {
            let walked = match self.next_dir_block(dir, next..end, &mut seen) {
                Ok(None) => break,
                Ok(Some((block, bytes))) => {
                    next = block + 1;
                    let area = Dentries::new(&*bytes, Place::Dir(ino, block));
                    let here = if found.is_none() {
                        find_in(&area, wanted, Comparison::Name, block)
                    } else {
                        Ok(None)
                    };
                    here.and_then(|here| {
                        found = found.or(here);
                        let Some(some) = &mut strays else { return Ok(()) };
                        self.add_strays((dir, &naming), &area, block, some)?;
                        strays = strays.take().filter(|strays| self.strays.has_room(strays));
                        Ok(())
                    })
                }
                Err(Unmapped { blocks, error }) => {
                    next = blocks.end;
                    Err(error)
                }
            };
            damage = damage.or(walked.err());
        }
        match (found, damage) {
            (None, Some(damage)) => Err(damage),
            (found, None) => {
                if let Some(strays) = strays {
                    self.strays.learn(ino, strays);
                }
                Ok(found)
            }
            (found, Some(_)) => Ok(found),
        }
    }

    /// Adds the stray names of a block of a directory to `strays`.
    fn add_strays<B: AsRef<[u8]>>(
        &self,
        (dir, naming): (&NodeBlock, &Naming),
        area: &Dentries<B>,
        block: u64,
        strays: &mut Strays,
    ) -> Result<()> {
        for entry in area.entries() {
            let entry = entry?;
            let hash = naming.hash(dir, &entry);
            if hash != entry.hash || !self.leads_to(dir, hash, block)? {
                strays.insert((hash, block));
            }
        }
        Ok(())
    }

    /// Returns true if a search for a hash reads this block of a directory.
    fn leads_to(&self, dir: &NodeBlock, hash: u32, block: u64) -> Result<bool> {
        let dir_level = dir.head().dir_level;
        let Some((level, _)) = dir_hash::level_of(block, dir_level) else { return Ok(false) };
        Ok(level < self.depth(dir)? && dir_hash::bucket(level, dir_level, hash).contains(&block))
    }

    /// The block number after the last block of a directory.
    pub(super) fn dir_end(&self, dir: &NodeBlock) -> u64 {
        dir.head().size.get().div_ceil(1 << self.superblock().block_size.log())
    }

    /// Number of levels of a directory's hash table.
    pub(super) fn depth(&self, dir: &NodeBlock) -> Result<u32> {
        let depth = dir.head().current_depth.get();
        if depth > dir_hash::DEPTH_MAX {
            return Err(Error::corrupt(
                Place::Inode(dir.ino()),
                format!("i_current_depth {depth}, at most 63"),
            ));
        }
        Ok(depth)
    }

    /// Returns an inode that must be a directory.
    pub(super) fn directory(&self, ino: Ino) -> Result<Arc<NodeBlock>> {
        let inode = self.nodes().inode(ino)?;
        if inode.is_directory() { Ok(inode) } else { Err(Error::NotDirectory) }
    }

    /// Returns the first of some blocks of a directory that is not a hole. A block of the device that the walk
    /// has `seen` is damage.
    pub(super) fn next_dir_block(
        &self,
        dir: &NodeBlock,
        blocks: Range<u64>,
        seen: &mut SeenBlocks,
    ) -> Result<Option<NumberedBlock<'_>>, Unmapped> {
        let Range { start: mut block, end } = blocks;
        while block < end {
            let run = self.files.run_or_unmapped(dir, block, end)?;
            if run.addr != BlockAddr::NULL {
                self.enter_block(dir, block, run.addr, seen).map_err(|repeated| match repeated {
                    Repeated::Block(error) => Unmapped { blocks: block..block + 1, error },
                    Repeated::TooOften(error) => Unmapped { blocks: block..end, error },
                })?;
                let bytes = self.files.dir_block(dir, block);
                let bytes = bytes.map_err(|error| Unmapped { blocks: block..block + 1, error })?;
                return Ok(bytes.map(|bytes| (block, bytes)));
            }
            block = run.blocks.end;
        }
        Ok(None)
    }

    /// Adds a block of a directory to those that a walk has seen.
    fn enter_block(
        &self,
        dir: &NodeBlock,
        block: u64,
        addr: BlockAddr,
        seen: &mut SeenBlocks,
    ) -> Result<(), Repeated> {
        let Some(earlier) = seen.enter(addr, block) else { return Ok(()) };
        // Between two parts of a walk, the earlier block can have moved.
        if self.files.run_or_unmapped(dir, earlier, earlier + 1).is_ok_and(|run| run.addr == addr) {
            return Err(seen.repeat(addr, Place::Dir(dir.ino(), block)));
        }
        seen.replace(addr, block);
        Ok(())
    }
}

/// The source of the hash by which a search looks for a name of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameHash {
    /// The name, after it was folded.
    Folded,
    /// The hash that is stored with the name.
    Stored,
}

impl NameHash {
    /// The source for the stored names of a directory. The hash of an encrypted name cannot be computed without the key.
    pub(super) fn of(dir: &NodeBlock) -> NameHash {
        match dir.has_flag(flag::CASEFOLD) && !dir.has_advise(advise::ENCRYPT) {
            true => NameHash::Folded,
            false => NameHash::Stored,
        }
    }

    /// Returns the hash of an existing name, given the hash that is stored with it.
    pub(super) fn hash(self, stored: u32, name: &[u8]) -> u32 {
        match self {
            NameHash::Folded => fold(name).map_or_else(|| name_hash(name), |folded| name_hash(&folded)),
            NameHash::Stored => stored,
        }
    }
}

/// Returns true if a name folds to these bytes.
fn folds_to(name: &[u8], folded: &[u8]) -> bool {
    match fold(name) {
        Some(own) => own == folded,
        None => name == folded,
    }
}

fn find_in<B: AsRef<[u8]>>(
    area: &Dentries<B>,
    wanted: &Wanted<'_>,
    comparison: Comparison,
    block: u64,
) -> Result<Option<Found>> {
    let mut damage = None;
    let entries = match comparison {
        Comparison::HashAndName => area.entries_of_hash(wanted.hash()),
        Comparison::Name => area.entries(),
    };
    for entry in entries {
        match entry {
            Ok(entry) if wanted.is(&entry, comparison) => {
                return Ok(Some(Found { ino: entry.ino, kind: entry.kind, block, slot: entry.slot }));
            }
            Ok(_) => {}
            Err(error) => damage = damage.or(Some(error)),
        }
    }
    damage.map_or(Ok(None), Err)
}
