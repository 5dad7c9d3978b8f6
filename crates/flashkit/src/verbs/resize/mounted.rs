//! Growing of a volume through its mount.

use std::io;

use anyhow::{Result, anyhow, bail};
use block::{Device, OpenOptions};
use f2fs::{
    engine::{Engine, Options},
    resize::{Method, Plan},
};
use image::Image;

use super::{Args, Length, Record};
use crate::{
    host,
    mounted::{Driver, Mounted},
    target,
};

/// Returns the mount of the volume, if it is mounted for changes.
pub fn find(args: &Args) -> Result<Option<Mounted>> {
    let source = args.image.sources().swap_remove(0);
    if !source.is_part() && source.path().is_dir() {
        let found = Mounted::of_path(source.path())?;
        let Some((mounted, _)) = found.filter(|(_, inside)| inside.as_os_str().is_empty()) else {
            bail!("{source}: a directory, and no F2FS volume is mounted at it");
        };
        return Ok(Some(mounted));
    }
    Mounted::of_image(&source)
}

/// Refuses everything but growing.
fn require_growth(args: &Args, mounted: &Mounted, old_bytes: u64, new_bytes: u64) -> Result<()> {
    let at = mounted.at.display();
    if args.minimize || new_bytes < old_bytes {
        bail!("mounted at {at}: a mounted volume only grows; umount {at} to shrink it");
    }
    if mounted.driver == Driver::Linux {
        bail!("mounted at {at} by Linux, which does not grow a mounted volume; umount {at} first");
    }
    if !args.image.place.devices.is_empty() {
        bail!("mounted at {at}: a mounted volume on several devices does not grow; umount {at} first");
    }
    Ok(())
}

/// Lets the volume grow.
pub fn run(args: &Args, mounted: &Mounted) -> Result<Record> {
    let superblock = mounted.superblock()?;
    let block_bytes = superblock.block_size.bytes() as u64;
    if superblock.devices.len() > 1 {
        bail!(
            "mounted: a mounted volume on several devices does not grow; umount {} first",
            mounted.at.display()
        );
    }
    let image = target::open_unwarned(&mounted.source, OpenOptions::default())?;
    let device_bytes = image.device().geometry().size_bytes;
    let bytes = args.size.unwrap_or(device_bytes);
    let old_bytes = superblock.volume_bytes();
    require_growth(args, mounted, old_bytes, bytes)?;
    let length = if args.no_truncate { Length::Stays } else { Length::Follows };
    if bytes > device_bytes && super::variable_file(&image, length).is_none() {
        return Err(super::too_small_device("", &mounted.source, device_bytes, bytes));
    }
    if args.dry_run {
        require_same_metadata_areas(mounted, &image, bytes)?;
    } else {
        host::resize_mounted(&mounted.at, bytes / block_bytes).map_err(|error| explain(mounted, error))?;
    }
    let new_bytes = match args.dry_run {
        true => bytes / block_bytes * block_bytes,
        false => mounted.superblock()?.volume_bytes(),
    };
    Ok(Record { old_bytes, new_bytes, moved_blocks: 0, moves_metadata: false, done: !args.dry_run })
}

/// Refuses a size for which the mount would refuse to grow, because the metadata areas must grow, too.
fn require_same_metadata_areas(mounted: &Mounted, image: &Image, bytes: u64) -> Result<()> {
    mounted.sync()?;
    let mut volume = Engine::open(image.device(), Options::read_only())?;
    match Plan::new(&mut volume, bytes)?.method {
        Method::Relocate => Err(explain(mounted, io::ErrorKind::Unsupported.into())),
        _ => Ok(()),
    }
}

/// Explains the answer of the mount.
fn explain(mounted: &Mounted, error: io::Error) -> anyhow::Error {
    let at = mounted.at.display();
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => "only an administrator (CAP_SYS_ADMIN) may do this".into(),
        io::ErrorKind::Unsupported => format!(
            "for this size the metadata areas must grow, or the mount writes no checkpoints; umount {at} first"
        ),
        io::ErrorKind::InvalidInput => "the mount refuses this size".into(),
        io::ErrorKind::ReadOnlyFilesystem => "the mount refuses changes".into(),
        _ if error.raw_os_error() == Some(host::DAMAGED) => {
            format!("the volume is damaged; umount {at} and run flashkit fsck {}", mounted.source)
        }
        _ => return anyhow::Error::new(error).context(format!("mounted at {at}")),
    };
    anyhow!("mounted at {at}: {advice}")
}
