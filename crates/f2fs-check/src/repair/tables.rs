//! The tables of one state of a volume: its superblock, the checkpoint that counts, and the blocks of NAT and SIT.

use std::sync::Arc;

use block::Device;
use f2fs::{
    Error, Place, Result,
    engine::{Geometry, Io},
    format::{
        TableCopy,
        nat::{self, NatEntry},
        sit::{ENTRY_BYTES, SegmentType, SitEntry},
        superblock::Superblock,
    },
    units::{BlockAddr, Nid, SegNo},
};

use crate::{
    Report,
    packs::{self, Pack},
    segments::is_erased,
    superblocks,
};

/// The tables of one state of a volume.
pub struct Tables {
    /// Access to the state.
    pub io: Arc<Io>,
    /// The superblock that counts.
    pub superblock: Superblock,
    /// The areas of the volume.
    pub geometry: Geometry,
    /// The pack that counts.
    pub pack: Pack,
}

impl Tables {
    /// Reads the tables of a state.
    ///
    /// # Errors
    /// [`Error::Corrupt`] without a usable superblock or pack.
    pub fn read(device: Arc<dyn Device>) -> Result<Tables> {
        let mut report = Report::default();
        let superblock = superblocks::check(&device, &mut report)?
            .ok_or_else(|| Error::corrupt(Place::Superblock(0), "no superblock is usable"))?;
        let geometry = Geometry::of(&superblock);
        let io = Arc::new(Io::new(device, superblock.block_size));
        let pack = packs::check(&io, &geometry, &superblock, &mut report)
            .ok_or_else(|| Error::corrupt(Place::Checkpoint(0), "no checkpoint pack is usable"))?;
        Ok(Tables { io, superblock, geometry, pack })
    }

    /// The block at which the chain of fsynced nodes begins.
    pub fn chain_start(&self) -> BlockAddr {
        self.geometry.next_block(self.pack.checkpoint.logs[SegmentType::WarmNode.index()])
    }

    /// The current copy of a NAT block; `None` if it cannot be read.
    pub fn nat_block(&self, index: u32) -> Option<Box<[u8]>> {
        let addr = self.geometry.nat_block(index, self.nat_copy(index));
        self.io.read_block(addr, Place::Block(addr)).ok()
    }

    /// The copy of a NAT block that counts.
    pub fn nat_copy(&self, index: u32) -> TableCopy {
        TableCopy::current(&self.pack.checkpoint.nat_bitmap, index)
    }

    /// The NAT entry of a node, with the journal.
    pub fn nat_entry(&self, nid: Nid) -> NatEntry {
        let journaled = self.pack.nat_journal.binary_search_by_key(&nid, |(nid, _)| *nid);
        if let Ok(at) = journaled {
            return self.pack.nat_journal[at].1;
        }
        let (index, slot) = nat::position(nid, self.geometry.block_size);
        match index < self.geometry.nat_blocks() {
            true => {
                let start = slot * nat::ENTRY_BYTES;
                let block = self.nat_block(index);
                let block = block.filter(|block| !is_erased(&block[start..start + nat::ENTRY_BYTES]));
                block.map_or(NatEntry::default(), |block| nat::entry(&block, slot))
            }
            false => NatEntry::default(),
        }
    }

    /// The copy of a SIT block that counts.
    pub fn sit_copy(&self, index: u32) -> TableCopy {
        TableCopy::current(&self.pack.checkpoint.sit_bitmap, index)
    }

    /// The current copy of a SIT block; `None` if it cannot be read.
    pub fn sit_block(&self, index: u32) -> Option<Box<[u8]>> {
        let addr = self.geometry.sit_block(index, self.sit_copy(index));
        self.io.read_block(addr, Place::Block(addr)).ok()
    }

    /// Time of a segment's last change, according to its SIT entry in a block or to the journal.
    pub fn segment_time(&self, segment: SegNo, stored: &[u8]) -> u64 {
        let journaled = self.pack.sit_journal.iter().find(|(number, _)| *number == segment);
        let bytes = journaled.map_or(stored, |(_, bytes)| &bytes[..]);
        let at = ENTRY_BYTES - 8;
        bytes
            .get(at..ENTRY_BYTES)
            .filter(|_| !is_erased(bytes))
            .map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// Type of a segment in its SIT entry; that of an empty segment if it is none.
    pub fn segment_type(&self, segment: SegNo, stored: &[u8]) -> SegmentType {
        let journaled = self.pack.sit_journal.iter().find(|(number, _)| *number == segment);
        let bytes = journaled.map_or(stored, |(_, bytes)| &bytes[..]);
        let word = bytes.get(..2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        let kind = SegmentType::ALL.get(usize::from(word >> 10)).copied();
        kind.unwrap_or(SitEntry::EMPTY.kind)
    }
}
