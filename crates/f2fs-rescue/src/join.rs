//! Several devices as one address space, also where no superblock tells their parts.

use std::sync::Arc;

use block::{Concat, Device};
use f2fs::{Error, Place, Result, format::BlockSize};

use crate::inference;

/// The devices of a volume as one.
pub struct Joined {
    /// The address space of the volume.
    pub device: Arc<dyn Device>,
    /// Numbers of the devices whose parts nothing tells, with the bytes that are taken of each.
    pub guessed: Vec<(usize, u64)>,
}

/// Joins the devices of a volume, given in its order. If no superblock is left, the nodes on two neighbours tell the part of
/// the first one. Where there are none, its whole segments are taken; mkfs.f2fs takes whole zones (`f2fs_prepare_super_block`).
///
/// # Errors
/// Those of [`f2fs::engine::join`], except for a superblock that is lost or damaged.
pub fn join(devices: Vec<Arc<dyn Device>>, block_size: Option<BlockSize>) -> Result<Joined> {
    match devices.first() {
        Some(first) if devices.len() > 1 && f2fs::engine::read_superblock(&**first, u64::MAX).is_err() => {
            let (lengths, guessed) = lengths(&devices, block_size);
            let joined = Concat::new(devices.into_iter().zip(lengths).collect());
            let joined = joined.map_err(|source| Error::Io { at: Place::Volume, source })?;
            Ok(Joined { device: Arc::new(joined), guessed })
        }
        _ => Ok(Joined { device: f2fs::engine::join(devices)?, guessed: Vec::new() }),
    }
}

/// The bytes that each device contributes, and those of them that are guessed.
fn lengths(devices: &[Arc<dyn Device>], block_size: Option<BlockSize>) -> (Vec<u64>, Vec<(usize, u64)>) {
    let sizes: Vec<u64> = devices.iter().map(|device| device.geometry().size_bytes).collect();
    let total = sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size));
    let found = devices.iter().map(|device| inference::infer_part(device, block_size, total));
    let found: Vec<_> = found.collect();
    let size = found.iter().flatten().next().map_or(BlockSize::B4K, |part| part.block_size);
    // The byte of the current device at which the volume would begin.
    let mut start = found[0].as_ref().map_or(0, |part| part.start);
    let (mut lengths, mut guessed) = (Vec::new(), Vec::new());
    for (n, has) in sizes.into_iter().enumerate() {
        if n + 1 == devices.len() {
            lengths.push(has - has % size.bytes() as u64);
            break;
        }
        let next = found[n + 1].as_ref().map(|part| part.start);
        let told = next.and_then(|next| u64::try_from(start.checked_sub(next)?).ok());
        let length = told.filter(|told| *told <= has).unwrap_or_else(|| {
            let length = has - has % size.segment_bytes();
            guessed.push((n, length));
            length
        });
        start = start.saturating_sub_unsigned(length);
        lengths.push(length);
    }
    (lengths, guessed)
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;
    use f2fs::{
        format::{
            NodeBlock,
            node::{NodeFooter, NodeFormat},
            superblock::Features,
        },
        units::{BlockAddr, Ino},
    };

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A device of 20 MiB without a superblock, with the inodes of the blocks from `addr` on at its block 600.
    fn device(addr: Option<u32>) -> Arc<dyn Device> {
        let device = MemoryDevice::new(20 * MIB);
        let format = NodeFormat::new(BlockSize::B4K, Features::default(), &[0; 16]);
        for (n, addr) in addr.into_iter().flat_map(|addr| (0..9).map(move |n| (n, addr + n))) {
            let mut inode = NodeBlock::new_inode(format, Ino(10 + n), 0o100_644, 0, 0);
            inode.set_footer(NodeFooter { next_addr: BlockAddr(addr + 1), ..inode.footer() });
            device.write(u64::from(600 + n) * 4096, inode.bytes()).expect("in memory");
        }
        Arc::new(device)
    }

    #[test]
    fn nodes_tell_the_parts_of_the_devices_before_them() {
        let second = 18 * 256;
        let joined = join(vec![device(Some(600)), device(Some(second + 600))], None).expect("two devices");
        assert_eq!((joined.device.geometry().size_bytes, &joined.guessed[..]), (38 * MIB, &[][..]));
        let joined = join(vec![device(Some(600)), device(None), device(None)], None).expect("three devices");
        assert_eq!(joined.device.geometry().size_bytes, 60 * MIB);
        assert_eq!(joined.guessed, [(0, 20 * MIB), (1, 20 * MIB)]);
    }
}
