//! Listings of directories.
//!
//! A cookie is the position of an entry: block number times slots per block, plus the slot. Entries do not
//! move while they exist, not even when an inline directory is converted to blocks, so a cookie stays valid
//! between calls.

use std::{collections::VecDeque, sync::Arc};

use super::{Names, dir_blocks::SeenBlocks, encryption::Naming};
use crate::{
    Error, Place, Result,
    files::Unmapped,
    format::{
        FileType,
        dentry::{Dentries, Dentry},
        hash::name_hash,
        inode::{advise, flag, inline},
        node::NodeBlock,
    },
    units::Ino,
};

/// Entries of one area of a directory, and the cookie behind it.
pub(crate) type NextEntries = (VecDeque<Result<DirEntry>>, u64);

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; in an encrypted directory without its key, the form that Linux shows then.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
    /// File type stored in the entry, if it is a valid one.
    pub kind: Option<FileType>,
    /// Hash that is stored with the name, if the directory neither folds case nor is encrypted. "." and ".." have none.
    pub hash: Option<u32>,
    /// Cookie of the position after this entry.
    pub next_cookie: u64,
}

impl DirEntry {
    /// Returns true if the stored hash is that of another name: the name or the hash is damaged, and a lookup does not find
    /// the name.
    #[must_use]
    pub fn has_other_hash(&self) -> bool {
        self.hash.is_some_and(|hash| hash != name_hash(&self.name))
    }
}

/// Returns the hash that is stored with a name, if it is one of the bytes of the name.
fn plain_hash(dir: &NodeBlock, entry: &Dentry<'_>) -> Option<u32> {
    let is_plain = !dir.has_flag(flag::CASEFOLD) && !dir.has_advise(advise::ENCRYPT);
    (is_plain && !matches!(entry.name, b"." | b"..")).then_some(entry.hash)
}

impl Names {
    /// Returns the entries of a directory in their order on the device, including "." and "..", from a cookie on; 0
    /// is the start.
    pub(crate) fn entries(&self, dir: Ino, cookie: u64) -> Result<DirCursor<'_>> {
        self.further_entries(dir, cookie, SeenBlocks::default())
    }

    /// Returns the entries from a cookie on, in a walk that has met some blocks.
    pub(crate) fn further_entries(
        &self,
        dir: Ino,
        cookie: u64,
        mut seen: SeenBlocks,
    ) -> Result<DirCursor<'_>> {
        let inode = self.directory(dir)?;
        let slots = self.superblock().block_size.dentries() as u64;
        let (block, slot) = (cookie / slots, (cookie % slots) as usize);
        let naming = self.naming(&inode)?;
        let ready = VecDeque::new();
        if cookie == 0 {
            seen.begin(&inode);
        }
        Ok(DirCursor { volume: self, inode, naming, block, slot, seen, ready, ended: false })
    }

    /// The entries of one area, for [`Engine::next_entries`](crate::engine::Engine::next_entries).
    pub(crate) fn next_entries(
        &self,
        dir: Ino,
        cookie: u64,
        seen: &mut SeenBlocks,
    ) -> Result<Option<NextEntries>> {
        let slots = self.superblock().block_size.dentries() as u64;
        let mut cursor = self.further_entries(dir, cookie, std::mem::take(seen))?;
        let has_more = cursor.refill();
        *seen = cursor.seen;
        Ok(has_more.then_some((cursor.ready, cursor.block * slots)))
    }
}

/// Iterator over the entries of a directory; see [`Engine::entries`](crate::engine::Engine::entries). Damage yields an error in place of the
/// entries that are lost, and the iteration continues behind it.
pub struct DirCursor<'a> {
    volume: &'a Names,
    inode: Arc<NodeBlock>,
    naming: Naming,
    /// Position at which reading continues.
    block: u64,
    slot: usize,
    /// Blocks that were read.
    seen: SeenBlocks,
    /// Entries that have been read already.
    ready: VecDeque<Result<DirEntry>>,
    ended: bool,
}

impl DirCursor<'_> {
    /// Ends this part of a walk, and returns the blocks that it has met so far. A part that begins at the end of the
    /// directory tells again that its dots are missing.
    #[must_use]
    pub fn into_seen(mut self) -> SeenBlocks {
        self.seen.tell_again();
        self.seen
    }

    /// Reads the next area with entries. Returns false at the end, after the damage that is known only there.
    fn refill(&mut self) -> bool {
        if self.refill_and_note() {
            return true;
        }
        if self.seen.began_later() {
            self.seek_dots();
        }
        let ended = self.volume.io().record_corruption(self.seen.end(self.inode.ino()));
        let Err(error) = ended else { return false };
        self.ready.push_back(Err(error));
        true
    }

    /// Seeks the dots from the start of the directory on. A sound one has them in its first area.
    fn seek_dots(&mut self) {
        // The inode could be read before.
        let Ok(mut whole) = self.volume.entries(self.inode.ino(), 0) else { return };
        while whole.seen.seeks_dots() && whole.refill_and_note() {
            whole.ready.clear();
        }
        self.seen.take_dots(&whole.seen);
    }

    fn refill_and_note(&mut self) -> bool {
        let has_more = self.refill_from_areas();
        self.ready.iter().for_each(|entry| self.seen.note(entry));
        has_more
    }

    fn refill_from_areas(&mut self) -> bool {
        let (inode, volume) = (self.inode.clone(), self.volume);
        let ino = inode.ino();
        if inode.has_inline(inline::DENTRY) {
            if self.block > 0 {
                return false;
            }
            self.take(&Dentries::new(inode.inline_area(), Place::Dir(ino, 0)), 0);
            self.block = 1;
        } else {
            let end = inode.head().size.get().div_ceil(1 << volume.superblock().block_size.log());
            match volume.next_dir_block(&inode, self.block..end, &mut self.seen) {
                Ok(None) => return false,
                Ok(Some((block, bytes))) => {
                    if block > self.block {
                        self.slot = 0;
                    }
                    self.take(&Dentries::new(&*bytes, Place::Dir(ino, block)), block);
                    self.block = block + 1;
                }
                Err(Unmapped { blocks, error }) => {
                    self.ready.push_back(volume.io().record_corruption(Err(error)));
                    self.block = blocks.end;
                }
            }
        }
        self.slot = 0;
        true
    }

    fn take<B: AsRef<[u8]>>(&mut self, area: &Dentries<B>, block: u64) {
        for entry in area.entries_from(self.slot) {
            let entry = entry.and_then(|entry| {
                let slot = entry.slot;
                let shown = self.shown(entry, block)?;
                let ino = self.inode.ino();
                self.seen.check_dot(&shown, ino, Place::Dir(ino, block), slot)?;
                Ok(shown)
            });
            self.ready.push_back(self.volume.io().record_corruption(entry));
        }
    }

    /// Returns an entry in the form that readers see.
    fn shown(&self, entry: Dentry<'_>, block: u64) -> Result<DirEntry> {
        let slots = self.volume.superblock().block_size.dentries() as u64;
        let at = Place::Dir(self.inode.ino(), block);
        let name = self.naming.shown(&entry).ok_or_else(|| {
            let (slot, length) = (entry.slot, entry.name.len());
            match &self.naming {
                Naming::Plain => Error::corrupt(at, format!("a name with a slash or a NUL in slot {slot}")),
                Naming::Encrypted(cipher) => {
                    let what =
                        format!("in slot {slot}, {length} bytes that the key does not decrypt to a name");
                    match cipher.has_proven_key() {
                        true => Error::corrupt(at, what),
                        false => Error::UnusableKey(format!("{at}: {what}; is it the right key?").into()),
                    }
                }
                Naming::Hidden => {
                    Error::corrupt(at, format!("an encrypted name of {length} bytes in slot {slot}"))
                }
            }
        })?;
        let after = entry.slot + crate::format::dentry::slots_for(entry.name.len());
        let (hash, next_cookie) = (plain_hash(&self.inode, &entry), block * slots + after as u64);
        Ok(DirEntry { name, ino: entry.ino, kind: entry.kind, hash, next_cookie })
    }
}

impl Iterator for DirCursor<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.ended {
            self.ended = !self.refill();
        }
        self.ready.pop_front()
    }
}
