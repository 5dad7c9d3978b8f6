//! The blocks of NAT and SIT that differ between two states, each for the copy that the old state does not use.

use std::collections::BTreeSet;

use f2fs::{
    format::{
        checkpoint::LogPosition,
        nat::{self, NatEntry},
        sit::{self, ENTRY_BYTES, SegmentType, SitEntry},
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};

use super::{census::Census, tables::Tables};
use crate::{
    nat::clear_erased_entries,
    segments::{Content, Contents},
};

/// Receives a block and its address.
type Writer<'a> = dyn FnMut(BlockAddr, Vec<u8>) + 'a;

/// Nids whose entries are reserved: the node inode and the meta inode.
const RESERVED: [u32; 2] = [1, 2];

/// Writes the blocks of the NAT among `candidates` that differ, and returns the map of the current copies.
pub fn nat(old: &Tables, new: &Tables, candidates: &BTreeSet<u32>, write: &mut Writer<'_>) -> Vec<u8> {
    let geometry = new.geometry;
    let per_block = geometry.block_size.nat_entries();
    let mut bitmap = old.pack.checkpoint.nat_bitmap.clone();
    for index in candidates.iter().copied().filter(|index| *index < geometry.nat_blocks()) {
        let stored = old.nat_block(index);
        let blank = || vec![0; geometry.block_size.bytes()].into_boxed_slice();
        let mut block = new.nat_block(index).unwrap_or_else(blank);
        clear_erased_entries(&mut block);
        let first = index as usize * per_block;
        for slot in 0..per_block {
            let Ok(nid) = u32::try_from(first + slot).map(Nid) else { break };
            if let Ok(at) = new.pack.nat_journal.binary_search_by_key(&nid, |(nid, _)| *nid) {
                nat::set_entry(&mut block, slot, new.pack.nat_journal[at].1);
            }
            if nid == Nid::NULL {
                nat::set_entry(&mut block, slot, NatEntry { version: 0, ino: Ino(0), addr: BlockAddr::NULL });
            }
            if RESERVED.contains(&nid.0) {
                let version = nat::entry(&block, slot).version;
                let reserved = NatEntry { version, ino: Ino(nid.0), addr: BlockAddr(1) };
                nat::set_entry(&mut block, slot, reserved);
            }
        }
        if stored.as_deref() != Some(&*block) {
            let copy = old.nat_copy(index).other();
            write(geometry.nat_block(index, copy), block.into_vec());
            copy.select(&mut bitmap, index);
        }
    }
    bitmap
}

/// Writes the blocks of the SIT that differ, and returns the map of the current copies.
pub fn sit(
    [old, new]: [&Tables; 2],
    census: &Census,
    logs: &[LogPosition; 6],
    write: &mut Writer<'_>,
) -> Vec<u8> {
    let geometry = new.geometry;
    let per_block = geometry.block_size.sit_entries();
    let mut bitmap = old.pack.checkpoint.sit_bitmap.clone();
    for index in 0..geometry.sit_blocks() {
        let stored = old.sit_block(index);
        let mut block = match &stored {
            Some(bytes) => bytes.to_vec(),
            None => vec![0; geometry.block_size.bytes()],
        };
        for slot in 0..per_block {
            let segment = SegNo((index as usize * per_block + slot) as u32);
            if segment.0 >= geometry.segments {
                break;
            }
            let bytes = block[slot * ENTRY_BYTES..][..ENTRY_BYTES].to_vec();
            let log = SegmentType::ALL.into_iter().find(|kind| logs[kind.index()].segment == segment);
            let entry = SitEntry {
                kind: log.unwrap_or_else(|| kind_of(new, census, segment, &bytes)),
                valid_blocks: census.map(segment).iter().map(|byte| byte.count_ones() as u16).sum(),
                map: census.map(segment).try_into().expect("a segment's map"),
                mtime: old.segment_time(segment, &bytes),
            };
            sit::set_entry(&mut block, slot, &entry);
        }
        if stored.as_deref() != Some(&block[..]) {
            let copy = old.sit_copy(index).other();
            write(geometry.sit_block(index, copy), block);
            copy.select(&mut bitmap, index);
        }
    }
    bitmap
}

/// Type of a segment that belongs to no log: that of the new state, unless the segment has blocks of the other sort.
fn kind_of(new: &Tables, census: &Census, segment: SegNo, stored: &[u8]) -> SegmentType {
    let (index, slot) = sit::position(segment, new.geometry.block_size);
    let bytes = new.sit_block(index).map(|block| block[slot * ENTRY_BYTES..][..ENTRY_BYTES].to_vec());
    let kind = new.segment_type(segment, bytes.as_deref().unwrap_or(stored));
    match census.typed_content(segment) {
        Some(Content::Node) if !kind.is_node() => SegmentType::WarmNode,
        Some(Content::Data) if kind.is_node() => SegmentType::WarmData,
        _ => kind,
    }
}
