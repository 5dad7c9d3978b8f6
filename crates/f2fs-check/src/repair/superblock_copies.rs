//! Repair of the superblocks: each copy becomes that of the copy that counts.

use std::sync::Arc;

use block::{Device, Request};
use f2fs::{
    Error, Place, Result,
    format::{
        BlockSize,
        crc::f2fs_crc,
        superblock::{self, Features, Superblock, raw},
    },
};
use zerocopy::{FromBytes, IntoBytes};

use super::transfer::{flush, write_at};
use crate::{Fix, superblocks};

/// Bytes of the block that holds a copy, of which the rest stays.
const PAGE: usize = BlockSize::B4K.bytes();

/// Returns the requests that make both copies equal, with those of the changes that concern superblocks. Each copy is
/// written and flushed alone, so that one is whole at any time.
///
/// # Errors
/// [`Error::Io`] if a copy cannot be read; [`Error::Corrupt`] if none is usable.
pub fn requests(device: &Arc<dyn Device>, fixes: &[Fix]) -> Result<Vec<Request>> {
    let (good, copy) = f2fs::engine::read_superblock(device, device.geometry().size_bytes)?;
    let block = good.block_size.bytes() as u64;
    let pages = [0, 1].map(|copy: u8| read(device, copy, u64::from(copy) * block));
    let Ok(source) = &pages[usize::from(copy)] else {
        return Err(Error::corrupt(Place::Superblock(copy), "the copy cannot be read again"));
    };
    let mut right: [u8; superblock::BYTES] =
        source[superblock::OFFSET..].try_into().expect("a page ends with the superblock");
    apply(fixes, &mut right, &good);
    let mut requests = Vec::new();
    // The damaged copy first: the good one counts until the other is whole.
    for copy in [1 - copy, copy] {
        let page = pages[usize::from(copy)].as_ref().map_or(vec![0; PAGE], Clone::clone);
        if page[superblock::OFFSET..] != right {
            let whole = [&page[..superblock::OFFSET], &right].concat();
            requests.extend([write_at(u64::from(copy) * block, &whole), flush()]);
        }
    }
    Ok(requests)
}

/// Returns the requests that copy the second superblock over the first.
///
/// # Errors
/// [`Error::Io`] if a copy cannot be read; [`Error::Corrupt`] if the first is not usable.
pub fn second_over_first(device: &Arc<dyn Device>) -> Result<Vec<Request>> {
    let (first, _) = f2fs::engine::read_superblock(device, device.geometry().size_bytes)?;
    let [start, second] =
        [(0, 0), (1, first.block_size.bytes() as u64)].map(|(copy, at)| read(device, copy, at));
    let whole = [&start?[..superblock::OFFSET], &second?[superblock::OFFSET..]].concat();
    Ok(vec![write_at(0, &whole), flush()])
}

/// Returns the requests that make the first copy usable by counting the extensions in its lists.
///
/// # Errors
/// [`Error::Io`] if the copy cannot be read.
pub fn with_counted_extensions(device: &Arc<dyn Device>) -> Result<Vec<Request>> {
    let Some(mended) = superblocks::with_counted_extensions(device) else { return Ok(Vec::new()) };
    let whole = [&read(device, 0, 0)?[..superblock::OFFSET], &mended].concat();
    Ok(vec![write_at(0, &whole), flush()])
}

fn read(device: &Arc<dyn Device>, copy: u8, offset_bytes: u64) -> Result<Vec<u8>> {
    let mut page = vec![0; PAGE];
    let at = Place::Superblock(copy);
    device.read(offset_bytes, &mut page).map_err(|source| Error::Io { at, source })?;
    Ok(page)
}

/// Makes the changes that concern a superblock.
fn apply(fixes: &[Fix], bytes: &mut [u8; superblock::BYTES], good: &Superblock) {
    let raw = raw::Superblock::mut_from_bytes(bytes).expect("the array has the struct's size");
    let before = raw.as_bytes().to_vec();
    if fixes.contains(&Fix::ClearErrors) {
        // Reason 0 is a shutdown that a program asked for, which is no error.
        raw.s_stop_reason[1..].fill(0);
        raw.s_errors.fill(0);
    }
    if fixes.contains(&Fix::ClearQuotaInodes) {
        raw.qf_ino.fill(0.into());
    }
    if raw.as_bytes() != before && good.features.has(Features::SB_CHECKSUM) {
        let end = superblock::BYTES - 4;
        let sum = f2fs_crc(&raw.as_bytes()[..end]);
        raw.crc.set(sum);
    }
}
