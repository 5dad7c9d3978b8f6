//! The hash tree of an image with a footer of Android Verified Boot (AOSP, external/avb, libavb/avb_footer.h,
//! avb_vbmeta_image.h and avb_hashtree_descriptor.h). All numbers are big-endian.
//!
//! The signature of the descriptor is not checked here: the caller knows the root hash, or gives up the proof of its
//! origin.

use std::io;

use block::Device;

use super::parameters::{HashForm, Parameters};
use crate::bytes::{invalid, read as read_bytes};

const FOOTER_MAGIC: &[u8] = b"AVBf";
const FOOTER_BYTES: usize = 64;
const HEADER_MAGIC: &[u8] = b"AVB0";
const HEADER_BYTES: usize = 256;
/// Maximum size of the structure that the footer refers to, in bytes: that of AVB.
const VBMETA_BYTES_MAX: u64 = 64 << 10;
/// Tag of a descriptor of a hash tree, and its size without names, salt and digest.
const HASH_TREE: u64 = 1;
const DESCRIPTOR_BYTES: usize = 180;
/// Size of the head of every descriptor in bytes: its tag, and the number of bytes that follow.
const DESCRIPTOR_HEAD_BYTES: usize = 16;

fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the parameters of the tree and the root hash of its descriptor; `None` if the image has no footer.
pub fn read(device: &dyn Device) -> io::Result<Option<(Parameters, Vec<u8>)>> {
    let Some(footer_at) = device.geometry().size_bytes.checked_sub(FOOTER_BYTES as u64) else {
        return Ok(None);
    };
    let Some(footer) = read_bytes(device, footer_at, FOOTER_BYTES)? else { return Ok(None) };
    if !footer.starts_with(FOOTER_MAGIC) {
        return Ok(None);
    }
    let (at, length) = (big(&footer[20..28]), big(&footer[28..36]));
    let damaged = |what: &str| invalid(format!("AVB metadata at byte {at}: {what}"));
    if !(HEADER_BYTES as u64..=VBMETA_BYTES_MAX).contains(&length) {
        return Err(damaged(&format!("a length of {length} bytes")));
    }
    let bytes = read_bytes(device, at, length as usize)?;
    let bytes = bytes.ok_or_else(|| damaged("behind the end of the image"))?;
    if !bytes.starts_with(HEADER_MAGIC) {
        return Err(damaged("there is none"));
    }
    let mut rest = descriptors(&bytes).ok_or_else(|| damaged("descriptors outside of it"))?;
    while rest.len() >= DESCRIPTOR_HEAD_BYTES {
        let (tag, follow) = (big(&rest[..8]), big(&rest[8..16]));
        let end = usize::try_from(follow).ok().and_then(|follow| follow.checked_add(DESCRIPTOR_HEAD_BYTES));
        let one = end.and_then(|end| rest.get(..end)).ok_or_else(|| damaged("a descriptor outside of it"))?;
        if tag == HASH_TREE {
            let found = hash_tree(one).ok_or_else(|| damaged("a damaged descriptor of a hash tree"))?;
            return found.map(Some);
        }
        rest = &rest[one.len()..];
    }
    Err(damaged("no descriptor of a hash tree"))
}

/// Returns the bytes of all descriptors: in the auxiliary block, which follows the authentication block.
fn descriptors(bytes: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| usize::try_from(big(&bytes[at..at + 8])).ok();
    let (authentication, auxiliary) = (number(12)?, number(20)?);
    let start = HEADER_BYTES.checked_add(authentication)?;
    let auxiliary = bytes.get(start..start.checked_add(auxiliary)?)?;
    let start = number(96)?;
    auxiliary.get(start..start.checked_add(number(104)?)?)
}

/// Decodes a descriptor of a hash tree. Returns `None` if its parts lie outside of it.
fn hash_tree(bytes: &[u8]) -> Option<io::Result<(Parameters, Vec<u8>)>> {
    let head = bytes.get(..DESCRIPTOR_BYTES)?;
    let word = |at: usize| big(&head[at..at + 4]) as u32;
    let name = head[72..104].split(|byte| *byte == 0).next().unwrap_or_default();
    let mut rest = &bytes[DESCRIPTOR_BYTES..];
    let mut part = |length: u32| {
        let (part, others) = rest.split_at_checked(length as usize)?;
        rest = others;
        Some(part)
    };
    part(word(104))?;
    let (salt, root) = (part(word(108))?.to_vec(), part(word(112))?.to_vec());
    let data_block_bytes = word(44);
    let parameters = || {
        Ok(Parameters {
            form: HashForm::of(word(16).into())?,
            algorithm: String::from_utf8_lossy(name).parse()?,
            data_block_bytes,
            hash_block_bytes: word(48),
            data_blocks: big(&head[20..28]) / u64::from(data_block_bytes.max(1)),
            tree_at: big(&head[28..36]),
            salt,
        })
    };
    Some(parameters().map(|parameters| (parameters, root)))
}
