//! A closed volume: its newest checkpoint, and its tables as that checkpoint has them.

use std::{collections::BTreeMap, sync::Arc};

use block::Device;

use crate::{
    Error, Place, Result,
    disk::{
        Geometry, Io, Options,
        pack::{PackTail, read_newest_pack},
        read_raw_superblock, read_superblock,
    },
    format::{
        TableCopy,
        checkpoint::Checkpoint,
        nat::{self, NatEntry},
        sit::{self, SitEntry},
        superblock::{Superblock, raw},
    },
    units::{Nid, SegNo, Time},
};

/// The newest checkpoint of a volume that nothing changes, with all that its pack holds.
pub(super) struct Snapshot {
    pub(super) io: Io,
    pub(super) raw: raw::Superblock,
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    pub(super) checkpoint: Checkpoint,
    pub(super) pack: u8,
    /// Blocks of the pack after the payload and before the copy of the head: orphans and summaries.
    pub(super) body: Vec<u8>,
    pub(super) nat_journal: BTreeMap<Nid, NatEntry>,
    pub(super) sit_journal: BTreeMap<SegNo, SitEntry>,
}

impl Snapshot {
    /// Reads the newest checkpoint.
    pub(super) fn read(device: Arc<dyn Device>) -> Result<Snapshot> {
        let (superblock, copy) = read_superblock(&*device, device.geometry().size_bytes)?;
        let raw = read_raw_superblock(&*device, copy)?;
        let geometry = Geometry::of(&superblock);
        let io = Io::new(device, superblock.block_size);
        let newest = read_newest_pack(&io, &geometry, &Options::new(Time::default))?;
        if let Some(reason) = newest.refusal() {
            return Err(Error::ReadOnly(reason.into()));
        }
        let (pack, bytes) = (newest.number, newest.bytes);
        let block_bytes = superblock.block_size.bytes();
        let head_blocks = 1 + superblock.cp_payload as usize;
        let head = &bytes[..(block_bytes * head_blocks).min(bytes.len())];
        let checkpoint = Checkpoint::check(head, &superblock, pack)?;
        let tail = PackTail::parse(&bytes, &geometry, &superblock, pack, &checkpoint)?;
        let mut whole = vec![0; block_bytes * checkpoint.pack_blocks as usize];
        io.read(geometry.pack(pack), Place::Checkpoint(pack), &mut whole)?;
        let body = whole[block_bytes * head_blocks..whole.len() - block_bytes].to_vec();
        Ok(Snapshot {
            io,
            raw,
            superblock,
            geometry,
            checkpoint,
            pack,
            body,
            nat_journal: tail.nat_journal.into_iter().collect(),
            sit_journal: tail.sit_journal.into_iter().collect(),
        })
    }

    /// A block of the NAT with the entries of the journal.
    pub(super) fn nat_block(&self, index: u32) -> Result<Vec<u8>> {
        let per_block = self.superblock.block_size.nat_entries() as u32;
        let first = Nid(index * per_block);
        let copy = TableCopy::current(&self.checkpoint.nat_bitmap, index);
        let addr = self.geometry.nat_block(index, copy);
        let mut block = self.io.read_block(addr, Place::Nat(first))?.into_vec();
        for (nid, entry) in self.nat_journal.range(first..Nid(first.0 + per_block)) {
            nat::set_entry(&mut block, (nid.0 - first.0) as usize, *entry);
        }
        Ok(block)
    }

    /// A block of the SIT with the entries of the journal.
    fn sit_block(&self, index: u32) -> Result<Vec<u8>> {
        let per_block = self.superblock.block_size.sit_entries() as u32;
        let first = SegNo(index * per_block);
        let copy = TableCopy::current(&self.checkpoint.sit_bitmap, index);
        let addr = self.geometry.sit_block(index, copy);
        let mut block = self.io.read_block(addr, Place::Sit(first))?.into_vec();
        for (number, entry) in self.sit_journal.range(first..SegNo(first.0 + per_block)) {
            sit::set_entry(&mut block, (number.0 - first.0) as usize, entry);
        }
        Ok(block)
    }
}

/// Reader of SIT entries in ascending order.
pub(super) struct SitEntries<'a> {
    snapshot: &'a Snapshot,
    block: Option<(u32, Vec<u8>)>,
}

impl<'a> SitEntries<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> SitEntries<'a> {
        SitEntries { snapshot, block: None }
    }

    /// The entry of a segment; an empty one if the volume does not have the segment.
    pub(super) fn get(&mut self, number: Option<SegNo>) -> Result<SitEntry> {
        let Some(number) = number.filter(|number| number.0 < self.snapshot.geometry.segments) else {
            return Ok(SitEntry::EMPTY);
        };
        let (index, at) = sit::position(number, self.snapshot.superblock.block_size);
        if self.block.as_ref().is_none_or(|(known, _)| *known != index) {
            self.block = Some((index, self.snapshot.sit_block(index)?));
        }
        let (_, block) = self.block.as_ref().expect("it was just read");
        sit::entry(block, at, number)
    }
}
