//! From bytes to patches.
//!
//! Each patch takes a few bytes of the case: its position, its kind, and its data. Most positions are in
//! metadata, and many in important fields of it. Afterwards checksums are recomputed, except if the case says
//! otherwise, so that the code behind the checksums sees the patches.

use block::{Device, Overlay};
use f2fs::format::{
    crc::{crc, f2fs_crc},
    superblock,
};

use crate::{Shared, images::Image};

/// Bits of a case's second byte. If all are set, the volume is changed instead of read. (The other bits
/// select the treatment of checksums.)
pub const CHANGE: u8 = 0x30;
/// Maximum number of patches of a case.
const PATCHES_MAX: usize = 24;

/// Offsets of an inode's fields.
const INODE_FIELDS: &[usize] = &[
    0, 2, 3, 4, 12, 16, 20, 24, 32, 56, 72, 76, 80, 84, 88, 92, 347, 348, 352, 356, 360, 362, 364, 368, 372,
    384, 392, 393, 394, 396, 400, 404, 408, 430, 560, 3848, 3852, 3856, 3876, 3878, 3880, 4052, 4056, 4060,
    4064, 4068, 4072, 4076, 4080, 4084,
];
/// Offsets of a checkpoint's fields.
const CHECKPOINT_FIELDS: &[usize] = &[
    0, 8, 16, 24, 28, 32, 36, 40, 44, 68, 70, 72, 84, 88, 92, 116, 118, 120, 132, 136, 140, 144, 148, 152,
    156, 160, 164, 168, 176, 180, 192, 193, 196, 256, 320,
];
/// Offsets in a directory's block: the bitmap, the first dentries, the first names.
const DENTRY_FIELDS: &[usize] =
    &[0, 1, 26, 30, 34, 38, 40, 41, 45, 49, 51, 52, 56, 60, 62, 63, 67, 71, 73, 2384, 2392, 2400, 2408];
/// Offsets in tables and summaries: first entries, and the journals at their end.
const TABLE_FIELDS: &[usize] = &[
    0, 1, 5, 9, 10, 14, 28, 32, 33, 37, 66, 74, 76, 507, 509, 513, 3584, 3586, 3590, 3591, 3595, 3596, 4091,
];

/// Typical edge values.
const VALUES: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    36,
    63,
    64,
    255,
    256,
    512,
    1018,
    4096,
    0xFFFF,
    0x7FFF_FFFF,
    0xFFFF_FFFE,
    0xFFFF_FFFF,
    0x1_0000_0000,
    0x7FFF_FFFF_FFFF_FFFF,
    0xFFFF_FFFF_FFFF_FFFF,
];

/// Reads the case's bytes one after the other, and zeroes after their end.
struct Choices<'a> {
    rest: &'a [u8],
}

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        usize::from(*first)
    }

    fn word(&mut self) -> usize {
        self.byte() | self.byte() << 8
    }

    fn pick<'t, T>(&mut self, from: &'t [T]) -> Option<&'t T> {
        let at = self.word();
        if from.is_empty() { None } else { Some(&from[at % from.len()]) }
    }
}

/// Overlays the patches encoded in `bytes`.
pub fn patch(image: &Image, bytes: &[u8], device: &Overlay<Shared>) {
    let mut choices = Choices { rest: bytes };
    let style = choices.byte();
    for _ in 0..PATCHES_MAX {
        if choices.rest.is_empty() {
            break;
        }
        one(image, &mut choices, device, style);
    }
}

/// Overlays one patch.
fn one(image: &Image, choices: &mut Choices<'_>, device: &Overlay<Shared>, style: usize) {
    let targets = &image.targets;
    let (list, fields): (&[u64], &[usize]) = match choices.byte() % 16 {
        0 => (&targets.superblocks, &[]),
        1 | 2 => (&targets.checkpoints, CHECKPOINT_FIELDS),
        3 | 4 => (&targets.tables, TABLE_FIELDS),
        5..=9 => (&targets.inodes, INODE_FIELDS),
        10 | 11 => (&targets.nodes, &[0, 1, 4, 24, 28, 4072, 4076, 4080]),
        12 | 13 => (&targets.directories, DENTRY_FIELDS),
        _ => (&targets.all, &[0, 4, 24, 28]),
    };
    let Some(number) = choices.pick(list).copied() else { return };
    let size = image.block_size.bytes();
    let mut block = vec![0; size];
    read(device, number, &mut block);
    let kind = choices.byte();
    let at = if kind & 0x80 != 0 && !fields.is_empty() {
        *choices.pick(fields).expect("the list is not empty")
    } else {
        choices.word() % size
    };
    let patched = Patched { image, device, list, number };
    patched.change(kind & 0x0F, at, &mut block, choices);
    if style & 7 != 7 {
        seal(image, number, &mut block);
    }
    write(device, number, &block);
    if targets.checkpoints.contains(&number) && style & 8 == 0 {
        mirror(image, number, &block, device);
    }
}

/// The block that is patched, and the list that it was picked from.
struct Patched<'a> {
    image: &'a Image,
    device: &'a Overlay<Shared>,
    list: &'a [u64],
    number: u64,
}

impl Patched<'_> {
    /// Changes the block at `at` in one of sixteen ways.
    fn change(&self, kind: usize, at: usize, block: &mut [u8], choices: &mut Choices<'_>) {
        match kind {
            0 | 1 => block[at] = choices.byte() as u8,
            2 => block[at] ^= 1 << (choices.byte() % 8),
            3 => put(block, at, &(choices.word() as u16).to_le_bytes()),
            4 => put(block, at, &((choices.word() | choices.word() << 16) as u32).to_le_bytes()),
            5 | 6 => {
                let value = *choices.pick(VALUES).expect("there are values");
                let width = 1 << (choices.byte() % 4);
                put(block, at, &value.to_le_bytes()[..width]);
            }
            7 => {
                let length = choices.word() % 256;
                let end = (at + length).min(block.len());
                block[at..end].fill(if choices.byte() & 1 == 0 { 0 } else { 0xFF });
            }
            8 | 9 => {
                // An address or number that is valid elsewhere.
                let good = choices.pick(&self.image.targets.all).copied().unwrap_or(0) as u32;
                put(block, at, &good.to_le_bytes());
            }
            10 | 11 => {
                let other = choices.pick(self.list).copied().unwrap_or(self.number);
                let mut bytes = vec![0; block.len()];
                read(self.device, other, &mut bytes);
                let value = get_u32(&bytes, at);
                put(block, at, &value.to_le_bytes());
            }
            12 => {
                let other = choices.pick(&self.image.targets.all).copied().unwrap_or(self.number);
                read(self.device, other, block);
            }
            13 => block.fill(0),
            14 => {
                let nid = choices.word() as u32;
                put(block, at, &nid.to_le_bytes());
            }
            _ => {
                let old = get_u32(block, at);
                let step = choices.byte() as u32 + 1;
                put(
                    block,
                    at,
                    &(if step % 2 == 0 { old.wrapping_add(step / 2) } else { old.wrapping_sub(step) })
                        .to_le_bytes(),
                );
            }
        }
    }
}

/// Recomputes a block's checksums.
fn seal(image: &Image, number: u64, block: &mut [u8]) {
    if number < 2 {
        let bytes: &mut [u8] = &mut block[superblock::OFFSET..superblock::OFFSET + superblock::BYTES];
        let sum = f2fs_crc(&bytes[..superblock::BYTES - 4]);
        if get_u32(bytes, 32) != 0 {
            put(bytes, superblock::BYTES - 4, &sum.to_le_bytes());
        }
    } else if image.targets.checkpoints.contains(&number) {
        let at = get_u32(block, 164) as usize;
        if (192..=block.len() - 4).contains(&at) {
            let sum = f2fs_crc(&block[..at]);
            let sum = if at + 4 < block.len() { crc(sum, &block[at + 4..]) } else { sum };
            put(block, at, &sum.to_le_bytes());
        }
    } else if image.targets.inodes.contains(&number) {
        let end = block.len();
        let seed = crc(crc(u32::MAX, &image.uuid), &block[end - 20..end - 16]);
        let seed = crc(seed, &block[68..72]);
        let sum = crc(crc(crc(seed, &block[..368]), &[0; 4]), &block[372..]);
        // Only inodes with all attributes have a checksum; on others these bytes are an address.
        if block[3] & 0x20 != 0 && block[360] >= 12 {
            put(block, 368, &sum.to_le_bytes());
        }
    }
}

/// Copies the first block of a pack over its last one or the reverse, because a pack counts only if they
/// agree.
fn mirror(image: &Image, number: u64, block: &[u8], device: &Overlay<Shared>) {
    let starts =
        image.targets.checkpoints.iter().filter(|start| (*start - image.targets.checkpoints[0]) % 512 == 0);
    for start in starts {
        let mut head = vec![0; block.len()];
        read(device, *start, &mut head);
        let last = start + u64::from(get_u32(&head, 136)).clamp(1, 512) - 1;
        if number == *start {
            write(device, last, block);
        } else if number == last {
            write(device, *start, block);
        }
    }
}

fn read(device: &Overlay<Shared>, number: u64, block: &mut [u8]) {
    // A read past the end leaves zeroes.
    let _ = device.read(number * block.len() as u64, block);
}

fn write(device: &Overlay<Shared>, number: u64, block: &[u8]) {
    let _ = device.write(number * block.len() as u64, block);
}

/// Reads a number from a block, as if zeroes followed the block.
fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    for (to, from) in word.iter_mut().zip(&bytes[at.min(bytes.len())..]) {
        *to = *from;
    }
    u32::from_le_bytes(word)
}

/// Writes bytes into a block, up to its end.
fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in bytes[at..].iter_mut().zip(value) {
        *to = *from;
    }
}
