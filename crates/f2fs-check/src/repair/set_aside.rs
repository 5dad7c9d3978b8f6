//! A newest pack with an impossible number of segments set aside, which no checkpoint changes: the older pack tells it.

use std::{mem::offset_of, sync::Arc};

use block::{Device, Request};
use f2fs::{
    engine::{Geometry, Io, RawPack},
    format::checkpoint::{Checkpoint, block_crc, newest, raw},
};

use super::transfer::{flush, write_at};
use crate::{Report, superblocks};

/// Bytes of the head with the numbers of segments that are set aside.
const SET_ASIDE: std::ops::Range<usize> =
    offset_of!(raw::Checkpoint, rsvd_segment_count)..offset_of!(raw::Checkpoint, free_segment_count);

/// Returns the requests that make the newest pack usable, if both packs are whole, the older one is usable, and the newest is
/// with the numbers of the older one: at any time it has a whole end.
pub fn requests(device: &Arc<dyn Device>) -> Option<Vec<Request>> {
    let superblock = superblocks::check(device, &mut Report::default()).ok()??;
    let geometry = Geometry::of(&superblock);
    let io = Io::new(device.clone(), superblock.block_size);
    let raws = [0, 1].map(|number| RawPack::read(&io, &geometry, number));
    let heads = [raws[0].whole().ok()?, raws[1].whole().ok()?];
    let number = newest(Some(heads[0].version), Some(heads[1].version))?;
    let newer = usize::from(number);
    let blocks = 0..1 + superblock.cp_payload;
    let older = raws[1 - newer].blocks(blocks.clone()).ok()?;
    let sound = Checkpoint::check(older, &superblock, 1 - number).ok()?;
    let mut head = raws[newer].blocks(blocks).ok()?.to_vec();
    if Checkpoint::check(&head, &superblock, number).is_ok() {
        return None;
    }
    head[SET_ASIDE].copy_from_slice(&older[SET_ASIDE]);
    let size = superblock.block_size.bytes();
    seal(&mut head[..size]);
    let mended = Checkpoint::check(&head, &superblock, number).ok()?;
    if mended.user_blocks != sound.user_blocks {
        return None;
    }
    let start = geometry.pack(number).0;
    let ends = [start + mended.pack_blocks - 1, start];
    let writes = ends
        .into_iter()
        .flat_map(|at| [write_at(u64::from(at) << superblock.block_size.log(), &head[..size]), flush()]);
    Some(writes.collect())
}

/// Sets the checksum of a head.
fn seal(block: &mut [u8]) {
    let at = offset_of!(raw::Checkpoint, checksum_offset);
    let at = u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes")) as usize;
    let sum = block_crc(block, at);
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}
