//! The superblock that veritysetup writes (cryptsetup, "DMVerity: on-disk superblock").

use std::io;

use block::Device;

use super::parameters::{HashForm, Parameters, SALT_BYTES_MAX};
use crate::bytes::{invalid, little, read as read_bytes};

const MAGIC: &[u8] = b"verity\0\0";
const VERSION: u64 = 1;
const BYTES: usize = 512;
const SALT_AT: usize = 88;

/// Reads the superblock at a byte of the file or device with the tree, which follows it at the next block.
pub fn read(device: &dyn Device, at: u64) -> io::Result<Parameters> {
    let damaged = |what: String| invalid(format!("dm-verity superblock at byte {at}: {what}"));
    let bytes = read_bytes(device, at, BYTES)?.ok_or_else(|| damaged("behind the end of the file".into()))?;
    if !bytes.starts_with(MAGIC) {
        return Err(damaged("there is none; --hash-offset gives its place".into()));
    }
    let version = little(&bytes[8..12]);
    if version != VERSION {
        return Err(damaged(format!("unknown version {version}")));
    }
    let name = bytes[32..64].split(|byte| *byte == 0).next().unwrap_or_default();
    let salt_bytes = little(&bytes[80..82]) as usize;
    let salt = bytes.get(SALT_AT..SALT_AT + salt_bytes).filter(|_| salt_bytes <= SALT_BYTES_MAX);
    let salt = salt.ok_or_else(|| damaged(format!("a salt of {salt_bytes} bytes")))?.to_vec();
    let hash_block_bytes = little(&bytes[68..72]) as u32;
    let tree_at = at.checked_add(BYTES as u64);
    let tree_at = tree_at.and_then(|at| at.checked_next_multiple_of(hash_block_bytes.into()));
    Ok(Parameters {
        form: HashForm::of(little(&bytes[12..16]))?,
        algorithm: String::from_utf8_lossy(name).parse()?,
        data_block_bytes: little(&bytes[64..68]) as u32,
        hash_block_bytes,
        data_blocks: little(&bytes[72..80]),
        tree_at: tree_at.ok_or_else(|| damaged(format!("blocks of {hash_block_bytes} bytes")))?,
        salt,
    })
}
