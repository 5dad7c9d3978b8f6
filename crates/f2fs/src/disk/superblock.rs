//! Reading the superblock: either copy, checked or as it is.

use block::Device;
use zerocopy::FromBytes;

use crate::{
    Error, Place, Result,
    format::{
        BlockSize, MAGIC,
        superblock::{self, Superblock},
    },
};

/// Reads the superblock from the first copy, or from the second if the first is damaged, and returns it with
/// the number of the copy. The volume must fit into `size` bytes, the size of the device or of all devices of
/// the volume together.
///
/// # Errors
/// [`Error::NotF2fs`], [`Error::Unsupported`], [`Error::Corrupt`] and [`Error::Io`], each for the first copy, if
/// both cannot be used.
pub fn read_superblock(device: &dyn Device, size: u64) -> Result<(Superblock, u8)> {
    let read = |copy: u8, block_bytes: u64| -> Result<Superblock> {
        let at = Place::Superblock(copy);
        // Read whole sectors: real devices do not read smaller units.
        let skipped = match device.geometry().sector_bytes as usize {
            sector if sector > 0 && superblock::OFFSET % sector == 0 => superblock::OFFSET,
            _ => 0,
        };
        let mut block = vec![0; superblock::OFFSET + superblock::BYTES - skipped];
        let offset = u64::from(copy) * block_bytes + skipped as u64;
        device.read(offset, &mut block).map_err(|source| Error::Io { at, source })?;
        let bytes = block[superblock::OFFSET - skipped..].try_into().expect("3072 bytes follow");
        Superblock::check(bytes, copy, size)
    };
    let has = device.geometry().size_bytes;
    if has < 2 * BlockSize::B4K.bytes() as u64 {
        return Err(Error::NotF2fs(format!("{has} bytes are too few for a volume").into()));
    }
    let first = match read(0, 0) {
        Ok(sb) => return Ok((sb, 0)),
        Err(error) => error,
    };
    for block_size in [BlockSize::B4K, BlockSize::B16K] {
        if let Ok(sb) = read(1, block_size.bytes() as u64) {
            if sb.block_size == block_size {
                return Ok((sb, 1));
            }
        }
    }
    Err(first)
}

/// Reads a superblock copy from the device and checks only its magic number.
///
/// # Errors
/// [`Error::NotF2fs`] without the magic number; [`Error::Io`] if the device fails.
pub fn read_raw_superblock(device: &dyn Device, copy: u8) -> Result<superblock::raw::Superblock> {
    // The position of the second copy depends on the block size, which only a superblock tells.
    let at = Place::Superblock(copy);
    for block_size in [BlockSize::B4K, BlockSize::B16K] {
        let mut block = vec![0; 4096];
        let offset = u64::from(copy) << block_size.log();
        device.read(offset, &mut block).map_err(|source| Error::Io { at, source })?;
        let raw = superblock::raw::Superblock::read_from_bytes(&block[superblock::OFFSET..])
            .expect("3072 bytes follow");
        if raw.magic.get() == MAGIC {
            return Ok(raw);
        }
    }
    Err(Error::NotF2fs(format!("no magic number in superblock copy {copy}").into()))
}
