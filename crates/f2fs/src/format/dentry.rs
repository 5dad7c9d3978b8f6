//! Directory entries: the area of a directory block, or the one inside an inode.
//!
//! An area is a bitmap, some reserved bytes, an array of dentries and an array of 8-byte name slots. Slot `i`
//! of the bitmap, the dentries and the names belong together. A name takes as many consecutive slots as it
//! needs; only the first has a valid dentry. The same division of the bytes holds for blocks of both sizes
//! and for inline areas of any size, with different offsets of the parts. So entries move between areas part
//! by part, never as bytes.
//!
//! [`Dentries`] is a view over the bytes, borrowed or owned; a mutable view is also the writer.

use zerocopy::FromBytes;

use super::{
    FileType, NAME_MAX,
    bits::{clear_lsb, lsb, set_lsb},
    block_size::{DENTRY_BYTES, NAME_SLOT_BYTES},
};
use crate::{Error, Place, Result, units::Ino};

/// Raw bytes.
pub mod raw {
    use std::mem::size_of;

    use zerocopy::{
        FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
        little_endian::{U16, U32},
    };

    /// One entry of a directory, without its name.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    pub struct Dentry {
        /// Hash of the name; 0 for "." and "..".
        pub hash: U32,
        /// Inode that the name stands for.
        pub ino: U32,
        /// Bytes of the name; 0 in slots that only continue one.
        pub name_len: U16,
        /// Kind of the file: 1 regular, 2 directory, 3 character device, 4 block device, 5 fifo, 6 socket,
        /// 7 symlink.
        pub file_type: u8,
    }

    const _: () = assert!(size_of::<Dentry>() == crate::format::block_size::DENTRY_BYTES);
}

/// Number of slots that a name of this many bytes takes.
#[must_use]
pub const fn slots_for(name_bytes: usize) -> usize {
    name_bytes.div_ceil(NAME_SLOT_BYTES)
}

/// Division of an area into its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    slots: usize,
    bitmap_bytes: usize,
    dentries_at: usize,
    names_at: usize,
}

impl Division {
    /// Divides an area of this many bytes. It has as many slots as fit, with a bit each. The remaining bytes
    /// are reserved, between bitmap and dentries.
    const fn of(bytes: usize) -> Division {
        let slot_bytes = DENTRY_BYTES + NAME_SLOT_BYTES;
        let slots = 8 * bytes / (8 * slot_bytes + 1);
        let names_at = bytes - slots * NAME_SLOT_BYTES;
        let dentries_at = names_at - slots * DENTRY_BYTES;
        Division { slots, bitmap_bytes: slots.div_ceil(8), dentries_at, names_at }
    }
}

/// State of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotUse {
    /// The slot belongs to an entry.
    Used,
    /// The slot can be taken.
    Free,
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dentry<'a> {
    /// Its first slot.
    pub slot: usize,
    /// Hash as stored.
    pub hash: u32,
    /// Inode as stored.
    pub ino: Ino,
    /// Kind of the file as stored; `None` if the code is invalid.
    pub kind: Option<FileType>,
    /// The name, 1 to 255 bytes; encrypted in an encrypted directory.
    pub name: &'a [u8],
}

/// The area of a directory block or inline directory.
#[derive(Debug, Clone)]
pub struct Dentries<B> {
    bytes: B,
    division: Division,
    at: Place,
}

impl<B: AsRef<[u8]>> Dentries<B> {
    /// A view of an area: a whole directory block, or [`NodeBlock::inline_area`](super::NodeBlock::inline_area).
    /// `at` is for errors.
    pub fn new(bytes: B, at: Place) -> Dentries<B> {
        let division = Division::of(bytes.as_ref().len());
        Dentries { bytes, division, at }
    }

    /// The bytes of the area.
    pub fn into_inner(self) -> B {
        self.bytes
    }

    /// Slots of the area.
    pub fn slots(&self) -> usize {
        self.division.slots
    }

    /// Returns true if a slot is in use.
    pub fn is_used(&self, slot: usize) -> bool {
        slot < self.division.slots && lsb(self.bitmap(), slot)
    }

    /// The dentry of a slot, in use or not.
    ///
    /// # Panics
    /// If there is no such slot: a bug of the caller.
    pub fn raw(&self, slot: usize) -> &raw::Dentry {
        assert!(slot < self.division.slots, "slot {slot} of {}", self.division.slots);
        let from = self.division.dentries_at + slot * DENTRY_BYTES;
        raw::Dentry::ref_from_bytes(&self.bytes.as_ref()[from..from + DENTRY_BYTES])
            .expect("the slice has the struct's size")
    }

    /// Iterates over the entries from `slot` on, in order. A name longer than 255 bytes or past the last slot
    /// is an error, and the iteration continues in the next slot. A used slot without a name is skipped, as
    /// in Linux.
    pub fn entries_from(&self, slot: usize) -> Entries<'_, B> {
        Entries { area: self, slot, hash: None }
    }

    /// Iterates over the entries with this hash, and over the damage that [`entries`](Self::entries) reports.
    pub fn entries_of_hash(&self, hash: u32) -> Entries<'_, B> {
        Entries { area: self, slot: 0, hash: Some(hash) }
    }

    /// Returns the entry in a slot, if the slot is in use and has an intact entry.
    pub fn entry_at(&self, slot: usize) -> Option<Dentry<'_>> {
        if self.is_used(slot) { self.entry(slot).ok().flatten() } else { None }
    }

    /// All entries; see [`entries_from`](Self::entries_from).
    pub fn entries(&self) -> Entries<'_, B> {
        self.entries_from(0)
    }

    /// Returns the entry with this hash and name.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the place of the area if an entry before it is damaged.
    pub fn find(&self, hash: u32, name: &[u8]) -> Result<Option<Dentry<'_>>> {
        for entry in self.entries() {
            let entry = entry?;
            if entry.hash == hash && entry.name == name {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Returns the first of `count` consecutive free slots, if there are any.
    pub fn room_for(&self, count: usize) -> Option<usize> {
        let (bitmap, mut run, mut slot) = (self.bitmap(), 0, 0);
        while slot < self.division.slots {
            if slot % 8 == 0 && bitmap[slot / 8] == u8::MAX {
                (run, slot) = (0, slot + 8);
                continue;
            }
            run = if lsb(bitmap, slot) { 0 } else { run + 1 };
            slot += 1;
            if run >= count {
                return Some(slot - count);
            }
        }
        None
    }

    /// Returns the number of free slots, consecutive or not.
    pub fn free_slots(&self) -> usize {
        (0..self.division.slots).filter(|slot| !lsb(self.bitmap(), *slot)).count()
    }

    /// Returns true if no slot from `slot` on is in use. With 0, the block can be freed. With 2 in the first
    /// block of a directory, the block is empty except for "." and "..".
    pub fn is_empty_from(&self, slot: usize) -> bool {
        (slot..self.division.slots).all(|slot| !lsb(self.bitmap(), slot))
    }

    /// Returns the entry in a used slot, or `Ok(None)` if the slot has no name.
    fn entry(&self, slot: usize) -> Result<Option<Dentry<'_>>> {
        let raw = self.raw(slot);
        let length = usize::from(raw.name_len.get());
        if length == 0 {
            return Ok(None);
        }
        if length > NAME_MAX || slot + slots_for(length) > self.division.slots {
            return Err(Error::corrupt(
                self.at,
                format!("a name of {length} bytes in slot {slot} of {}", self.division.slots),
            ));
        }
        let from = self.division.names_at + slot * NAME_SLOT_BYTES;
        Ok(Some(Dentry {
            slot,
            hash: raw.hash.get(),
            ino: Ino(raw.ino.get()),
            kind: FileType::from_dentry_code(raw.file_type),
            name: &self.bytes.as_ref()[from..from + length],
        }))
    }

    /// The dentries of all slots.
    fn raws(&self) -> &[raw::Dentry] {
        <[raw::Dentry]>::ref_from_bytes(
            &self.bytes.as_ref()[self.division.dentries_at..self.division.names_at],
        )
        .expect("the slice has whole structs")
    }

    fn bitmap(&self) -> &[u8] {
        &self.bytes.as_ref()[..self.division.bitmap_bytes]
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Dentries<B> {
    /// Enters a name into slots found by [`room_for`](Self::room_for).
    ///
    /// # Panics
    /// If the slots do not exist or are not free, or the name is not 1 to 255 bytes long: a bug of the
    /// caller.
    pub fn insert(&mut self, slot: usize, hash: u32, ino: Ino, kind: FileType, name: &[u8]) {
        assert!((1..=NAME_MAX).contains(&name.len()), "a name of {} bytes", name.len());
        let count = slots_for(name.len());
        for used in slot..slot + count {
            assert!(used < self.division.slots && !self.is_used(used), "slot {used} is not free");
        }
        for used in slot..slot + count {
            self.mark_used(used);
            // No reader may take a continued slot for an entry.
            self.raw_mut(used).name_len.set(0);
        }
        *self.raw_mut(slot) = raw::Dentry {
            hash: hash.into(),
            ino: ino.0.into(),
            name_len: u16::try_from(name.len()).expect("it was just bounded").into(),
            file_type: kind.dentry_code(),
        };
        let from = self.division.names_at + slot * NAME_SLOT_BYTES;
        self.bytes.as_mut()[from..from + name.len()].copy_from_slice(name);
    }

    /// Redirects an entry to another inode.
    ///
    /// # Panics
    /// If there is no such slot: a bug of the caller.
    pub fn set_target(&mut self, slot: usize, ino: Ino, kind: FileType) {
        let raw = self.raw_mut(slot);
        raw.ino.set(ino.0);
        raw.file_type = kind.dentry_code();
    }

    /// Frees the slots of the entry at `slot`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the place of the area if the entry is damaged; nothing is freed.
    pub fn remove(&mut self, slot: usize) -> Result<()> {
        let count = self.entry(slot)?.map_or(1, |entry| slots_for(entry.name.len()));
        for freed in slot..slot + count {
            self.mark_free(freed);
        }
        Ok(())
    }

    /// Marks a slot as used or free, whatever it contains: for repairs of damaged entries.
    ///
    /// # Panics
    /// If there is no such slot: a bug of the caller.
    pub fn set_use(&mut self, slot: usize, used: SlotUse) {
        assert!(slot < self.division.slots, "slot {slot} of {}", self.division.slots);
        match used {
            SlotUse::Used => self.mark_used(slot),
            SlotUse::Free => self.mark_free(slot),
        }
    }

    /// Sets the hash of an entry.
    ///
    /// # Panics
    /// If there is no such slot: a bug of the caller.
    pub fn set_hash(&mut self, slot: usize, hash: u32) {
        self.raw_mut(slot).hash.set(hash);
    }

    /// Replaces the name of an entry by one of the same length.
    ///
    /// # Panics
    /// If the entry has a name of another length: a bug of the caller.
    pub fn set_name(&mut self, slot: usize, name: &[u8]) {
        assert_eq!(usize::from(self.raw(slot).name_len.get()), name.len(), "the length stays");
        let from = self.division.names_at + slot * NAME_SLOT_BYTES;
        self.bytes.as_mut()[from..from + name.len()].copy_from_slice(name);
    }

    /// Enters "." and ".." into an empty area: slots 0 and 1.
    pub fn insert_dots(&mut self, own: Ino, parent: Ino) {
        self.insert(0, 0, own, FileType::Directory, b".");
        self.insert(1, 0, parent, FileType::Directory, b"..");
    }

    /// Takes over the entries of another, smaller area, slot by slot: an inline directory becomes a block.
    ///
    /// # Panics
    /// If this area has fewer slots: a bug of the caller.
    pub fn copy_from<C: AsRef<[u8]>>(&mut self, other: &Dentries<C>) {
        let (to, from) = (self.division, other.division);
        assert!(from.slots <= to.slots, "{} slots do not fit into {}", from.slots, to.slots);
        for slot in 0..to.slots {
            match other.is_used(slot) {
                true => self.mark_used(slot),
                false => self.mark_free(slot),
            }
        }
        let (bytes, source) = (self.bytes.as_mut(), other.bytes.as_ref());
        let dentries = from.slots * DENTRY_BYTES;
        bytes[to.dentries_at..to.dentries_at + dentries]
            .copy_from_slice(&source[from.dentries_at..from.dentries_at + dentries]);
        let names = from.slots * NAME_SLOT_BYTES;
        bytes[to.names_at..to.names_at + names]
            .copy_from_slice(&source[from.names_at..from.names_at + names]);
    }

    fn mark_used(&mut self, slot: usize) {
        let bitmap = self.division.bitmap_bytes;
        set_lsb(&mut self.bytes.as_mut()[..bitmap], slot);
    }

    fn mark_free(&mut self, slot: usize) {
        let bitmap = self.division.bitmap_bytes;
        clear_lsb(&mut self.bytes.as_mut()[..bitmap], slot);
    }

    fn raw_mut(&mut self, slot: usize) -> &mut raw::Dentry {
        assert!(slot < self.division.slots, "slot {slot} of {}", self.division.slots);
        let from = self.division.dentries_at + slot * DENTRY_BYTES;
        raw::Dentry::mut_from_bytes(&mut self.bytes.as_mut()[from..from + DENTRY_BYTES])
            .expect("the slice has the struct's size")
    }
}

/// Iterator over the entries of an area; see [`Dentries::entries_from`].
#[derive(Debug)]
pub struct Entries<'a, B> {
    area: &'a Dentries<B>,
    slot: usize,
    /// The only hash that is wanted.
    hash: Option<u32>,
}

impl<'a, B: AsRef<[u8]>> Iterator for Entries<'a, B> {
    type Item = Result<Dentry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (slots, bitmap, raws) = (self.area.slots(), self.area.bitmap(), self.area.raws());
        while let Some(raw) = raws.get(self.slot) {
            if !lsb(bitmap, self.slot) {
                self.slot += 1;
                continue;
            }
            let length = usize::from(raw.name_len.get());
            let is_intact = (1..=NAME_MAX).contains(&length) && self.slot + slots_for(length) <= slots;
            if is_intact && self.hash.is_some_and(|wanted| wanted != raw.hash.get()) {
                self.slot += slots_for(length);
                continue;
            }
            match self.area.entry(self.slot) {
                Ok(Some(entry)) => {
                    self.slot += slots_for(entry.name.len());
                    return Some(Ok(entry));
                }
                Ok(None) => self.slot += 1,
                Err(error) => {
                    self.slot += 1;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{super::BlockSize, *};

    const AT: Place = Place::Dir(Ino(9), 0);

    fn area(bytes: usize) -> Dentries<Vec<u8>> {
        Dentries::new(vec![0; bytes], AT)
    }

    fn names<B: AsRef<[u8]>>(area: &Dentries<B>) -> Vec<(usize, Vec<u8>)> {
        area.entries().map(|entry| entry.map(|e| (e.slot, e.name.to_vec())).expect("sound")).collect()
    }

    #[test]
    fn areas_are_divided_as_the_format_defines() {
        let reserved = |d: Division| d.dentries_at - d.bitmap_bytes;
        for (bytes, slots, bitmap, spare) in [
            (BlockSize::B4K.bytes(), 214, 27, 3),
            (BlockSize::B16K.bytes(), 856, 107, 13),
            (3488, 182, 23, 7),
            (3452, 180, 23, 9),
            (4 * (3995 - 50 - 1), 824, 103, 17),
            (40, 2, 1, 1),
            (0, 0, 0, 0),
        ] {
            let division = Division::of(bytes);
            assert_eq!((division.slots, division.bitmap_bytes, reserved(division)), (slots, bitmap, spare));
            assert_eq!(division.names_at + slots * 8, bytes);
        }
    }

    #[test]
    fn the_fields_are_at_the_offsets_of_the_format() {
        let mut area = area(3488);
        area.insert_dots(Ino(9), Ino(3));
        area.insert(2, 0x6D0E_A4C1, Ino(4), FileType::Symlink, b"a name");
        let bytes = area.into_inner();
        assert_eq!(bytes[0], 0b111, "the bitmap counts from the least significant bit");
        assert_eq!(bytes[30..41], [0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 2], "entry 0 lies after 23 + 7 bytes");
        assert_eq!(bytes[52..63], [0xC1, 0xA4, 0x0E, 0x6D, 4, 0, 0, 0, 6, 0, 7]);
        assert_eq!(&bytes[30 + 182 * 11 + 16..][..6], b"a name");
    }

    #[test]
    fn names_take_slots_of_eight_bytes_and_give_them_back() {
        let mut area = area(4096);
        area.insert_dots(Ino(9), Ino(3));
        let long = [b'x'; 255];
        let slot = area.room_for(slots_for(255)).expect("an empty block has space");
        area.insert(slot, 7, Ino(10), FileType::Regular, &long);
        area.insert(area.room_for(1).expect("room"), 8, Ino(11), FileType::Fifo, b"12345678");
        area.insert(area.room_for(2).expect("room"), 9, Ino(12), FileType::Socket, b"123456789");
        assert_eq!(
            names(&area),
            [
                (0, b".".to_vec()),
                (1, b"..".to_vec()),
                (2, long.to_vec()),
                (34, b"12345678".to_vec()),
                (35, b"123456789".to_vec())
            ]
        );
        assert_eq!(area.free_slots(), 214 - 37);
        assert_eq!(
            area.find(8, b"12345678").unwrap().map(|e| (e.ino, e.kind)),
            Some((Ino(11), Some(FileType::Fifo)))
        );
        assert_eq!(area.find(9, b"12345678").unwrap(), None, "the hash counts too");
        area.remove(2).unwrap();
        assert_eq!(area.room_for(32), Some(2));
        assert_eq!(area.room_for(33), Some(37));
        assert_eq!(area.room_for(214), None);
        area.set_target(34, Ino(77), FileType::Regular);
        assert_eq!(area.find(8, b"12345678").unwrap().map(|e| e.ino), Some(Ino(77)));
        assert!(!area.is_empty_from(2));
        area.remove(34).unwrap();
        area.remove(35).unwrap();
        assert!(area.is_empty_from(2) && !area.is_empty_from(0));
    }

    #[test]
    fn an_area_fills_to_its_last_slot() {
        let mut area = area(3488);
        let mut count = 0;
        while let Some(slot) = area.room_for(1) {
            area.insert(slot, count, Ino(count), FileType::Regular, &count.to_le_bytes());
            count += 1;
        }
        assert_eq!((count, area.free_slots(), names(&area).len()), (182, 0, 182));
    }

    #[test]
    fn inline_entries_move_into_a_block_part_by_part() {
        let mut inline = area(3452);
        inline.insert_dots(Ino(9), Ino(3));
        inline.insert(5, 1, Ino(4), FileType::Regular, b"first after a gap");
        inline.insert(179, 2, Ino(5), FileType::Regular, b"last");
        let mut block = area(4096);
        block.insert(200, 3, Ino(6), FileType::Regular, b"gone");
        block.copy_from(&inline);
        assert_eq!(names(&block), names(&inline));
        assert_eq!(block.find(2, b"last").unwrap().map(|e| e.ino), Some(Ino(5)));
    }

    #[test]
    fn hostile_lengths_are_errors_and_end_the_iteration() {
        for (slot, length) in [(2, 256), (2, 0xFFFF), (213, 9), (190, 255)] {
            let mut area = area(4096);
            area.insert_dots(Ino(9), Ino(3));
            area.insert(slot, 1, Ino(4), FileType::Regular, b"name");
            area.raw_mut(slot).name_len.set(length);
            let got: Vec<_> = area.entries().collect();
            assert_eq!(got.len(), 3);
            assert!(
                got[2]
                    .as_ref()
                    .unwrap_err()
                    .to_string()
                    .starts_with("corrupt directory 9, block 0: a name of")
            );
            assert!(area.find(1, b"name").is_err());
            assert!(area.remove(slot).is_err());
        }
        let mut area = area(4096);
        area.insert(3, 1, Ino(4), FileType::Regular, b"name");
        area.raw_mut(3).name_len.set(0);
        assert_eq!(area.entries().count(), 0);
        area.remove(3).unwrap();
        assert!(area.is_empty_from(0));
    }

    #[test]
    fn any_bytes_can_be_walked() {
        for fill in [0x00u8, 0xFF, 0xA5] {
            for bytes in [0, 39, 40, 3488, 4096, 16384] {
                let area = Dentries::new(vec![fill; bytes], AT);
                assert!(area.entries().count() <= area.slots() + 1);
                let _ = area.room_for(3);
            }
        }
    }
}
