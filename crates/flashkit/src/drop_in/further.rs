//! Further devices of a volume, which have their paths in the superblock.
//!
//! *Invariant*: the paths are bytes of the image and may be hostile. Beside an image file they lead to regular files in the
//! directory of the image, and beside a block device to block devices. They are never URIs or partitions of other images.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf, absolute},
};

use anyhow::{Context, Result, anyhow};
use block::{FileDevice, OpenOptions};
use f2fs::format::superblock::{Superblock, VolumeDevice};
use image::{Source, file_beside};

use super::Call;
use crate::render;

/// Adds the further devices of the volume on `first` to a call.
pub fn add_devices(call: &mut Call, first: &OsStr, superblock: &Superblock) -> Result<()> {
    for path in devices(first, superblock)? {
        call.more("--device", path);
    }
    Ok(())
}

/// Returns the further devices of the volume on `first`.
pub fn devices(first: &OsStr, superblock: &Superblock) -> Result<Vec<PathBuf>> {
    let first = Source::parse(first);
    let path = |device: &VolumeDevice| {
        trusted(&first, Path::new(&device.path)).with_context(|| {
            let name = render::name(device.path.as_bytes());
            format!("{first}: further device {name}, as its superblock names it; flashkit --device FILE names it otherwise")
        })
    };
    superblock.devices.iter().skip(1).map(path).collect()
}

/// Returns the path, without symbolic links, of a further device that may be opened beside `first`.
fn trusted(first: &Source, path: &Path) -> Result<PathBuf> {
    if first.is_served() {
        return Err(anyhow!("beside an NBD export no file or device is opened"));
    }
    let is_block_device =
        |path: &Path| FileDevice::open(path, OpenOptions::default()).map(|device| device.is_block_device());
    if !is_block_device(first.path())? {
        // As mkfs.f2fs stores it, a relative path starts in the working directory.
        return Ok(file_beside(&absolute(path)?, first.path())?);
    }
    let path = path.canonicalize()?;
    match is_block_device(&path)? {
        true => Ok(path),
        false => Err(anyhow!("beside a block device only block devices are opened")),
    }
}
