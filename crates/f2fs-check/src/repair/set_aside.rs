//! A newest pack that is whole and has an impossible number: of segments set aside, which no checkpoint changes, or of the segment
//! of a log. The older pack tells it, or nothing but the next blocks of the log depends on it.

use std::{mem::offset_of, sync::Arc};

use block::{Device, Request};
use f2fs::{
    engine::{Geometry, Io, RawPack},
    format::{
        checkpoint::{Checkpoint, Flags, block_crc, newest, raw},
        superblock::Superblock,
    },
};

use super::{
    log_segments,
    transfer::{flush, write_at},
};
use crate::{Loss, Report, superblocks};

/// Bytes of the head with the numbers of segments that are set aside.
const SET_ASIDE: std::ops::Range<usize> =
    offset_of!(raw::Checkpoint, rsvd_segment_count)..offset_of!(raw::Checkpoint, free_segment_count);

/// A newest pack that becomes usable.
pub struct Mended {
    /// The requests that make it so: at any time it has a whole end.
    pub requests: Vec<Request>,
    /// The repair as text.
    pub repair: &'static str,
    /// The loss that may come with it, unless fsyncs after the checkpoint are there.
    pub loss: Option<Loss>,
}

/// The newest pack, which cannot be used, and the older one.
pub struct Newest<'a> {
    pub superblock: &'a Superblock,
    pub geometry: Geometry,
    pub number: u8,
    /// First blocks of the newest pack.
    pub head: &'a [u8],
    /// The older pack, if it can be used.
    pub older: Option<&'a Checkpoint>,
}

impl Newest<'_> {
    /// The loss by another checksum of the head. The nodes that fsyncs wrote after the checkpoint have the checksum of its head,
    /// so they are a chain only if the head gets that one.
    pub fn loss(&self) -> Option<Loss> {
        let flags = Flags(word_at(self.head, offset_of!(raw::Checkpoint, ckpt_flags)));
        (!flags.has(Flags::UMOUNT)).then_some(Loss::Fsyncs)
    }

    /// The requests that write the head to both ends of the pack, if it is possible.
    pub fn written(&self, mut head: Vec<u8>) -> Option<Vec<Request>> {
        let size = self.superblock.block_size.bytes();
        seal(&mut head[..size]);
        let mended = Checkpoint::check(&head, self.superblock, self.number).ok()?;
        if self.older.is_some_and(|older| older.user_blocks != mended.user_blocks) {
            return None;
        }
        let start = self.geometry.pack(self.number).0;
        let ends = [start + mended.pack_blocks - 1, start];
        let log = self.superblock.block_size.log();
        let writes = ends.into_iter().flat_map(|at| [write_at(u64::from(at) << log, &head[..size]), flush()]);
        Some(writes.collect())
    }
}

/// Returns the newest pack as it becomes usable, if it is whole, and possible with one other number.
pub fn mended(device: &Arc<dyn Device>) -> Option<Mended> {
    let superblock = superblocks::check(device, &mut Report::default()).ok()??;
    let geometry = Geometry::of(&superblock);
    let io = Io::new(device.clone(), superblock.block_size);
    let raws = [0, 1].map(|number| RawPack::read(&io, &geometry, number));
    let versions = raws.each_ref().map(|raw| raw.whole().ok().map(|head| head.version));
    let number = newest(versions[0], versions[1])?;
    let newer = usize::from(number);
    let blocks = 0..1 + superblock.cp_payload;
    let head = raws[newer].blocks(blocks.clone()).ok()?;
    if Checkpoint::check(head, &superblock, number).is_ok() {
        return None;
    }
    let older = versions[1 - newer].and_then(|_| raws[1 - newer].blocks(blocks).ok());
    let sound = older.and_then(|older| Checkpoint::check(older, &superblock, 1 - number).ok());
    let newest = Newest { superblock: &superblock, geometry, number, head, older: sound.as_ref() };
    let set_aside = older.filter(|_| sound.is_some()).and_then(|older| {
        let mut head = head.to_vec();
        head[SET_ASIDE].copy_from_slice(&older[SET_ASIDE]);
        newest.written(head)
    });
    match set_aside {
        Some(requests) => {
            let repair = "take the numbers of segments from the older pack";
            Some(Mended { requests, repair, loss: newest.loss() })
        }
        None => log_segments::mended(device, &newest),
    }
}

/// Sets the checksum of a head.
fn seal(block: &mut [u8]) {
    let at = word_at(block, offset_of!(raw::Checkpoint, checksum_offset)) as usize;
    let sum = block_crc(block, at);
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// The word at a byte of a head.
pub fn word_at(head: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"))
}
