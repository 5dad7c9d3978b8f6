//! Volumes that are mounted: they are changed through their mount.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use block::{InUse, OpenOptions};
use f2fs::{engine, format::superblock::Superblock};
use image::Source;

use crate::{host, target};

/// The driver of a mount.
// Nothing is mounted on other systems.
#[cfg_attr(not(unix), allow(dead_code))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// `flashkit mount`.
    Flashkit,
    /// Linux's own f2fs.
    Linux,
}

/// The mount that a path lies on.
#[derive(Debug, Clone)]
pub struct MountOf {
    /// Directory of the mount.
    pub at: PathBuf,
    /// Name of the image or device.
    pub source: PathBuf,
    /// The driver.
    pub driver: Driver,
}

/// A volume that is mounted for changes.
#[derive(Debug, Clone)]
pub struct Mounted {
    /// Directory of the mount.
    pub at: PathBuf,
    /// The image or device.
    pub source: Source,
    /// The driver.
    pub driver: Driver,
}

impl Mounted {
    /// Finds the mount of an image. Returns `None` for an image that is not mounted, or only for reading.
    ///
    /// # Errors
    /// The image, or another part of its file, is mounted, and the two cannot be told apart.
    pub fn of_image(source: &Source) -> Result<Option<Mounted>> {
        if source.is_served() {
            return Ok(None);
        }
        let Ok(Some(InUse::Mounted { at, read_only: false })) = block::in_use(source.path()) else {
            return Ok(None);
        };
        let Some(mount) = host::mount_of(&at)? else { return Ok(None) };
        let mounted = Mounted { at, source: source.clone(), driver: mount.driver };
        match mounted.is_the_volume()? {
            true => Ok(Some(mounted)),
            false => bail!("{source}: another volume of this file is mounted at {}", mounted.at.display()),
        }
    }

    /// Finds the mount that a directory, or a file that is no volume itself, lies on. Also returns the path inside the volume.
    ///
    /// # Errors
    /// The image of the mount is not found.
    pub fn of_path(path: &Path) -> Result<Option<(Mounted, PathBuf)>> {
        let is_file = match std::fs::metadata(path) {
            Ok(facts) if facts.is_dir() => false,
            Ok(facts) if facts.is_file() => true,
            _ => return Ok(None),
        };
        if is_file && superblock(&Source::parse(path)).is_ok() {
            return Ok(None);
        }
        let name = || path.display().to_string();
        let Some(mount) = host::mount_of(path).with_context(name)? else { return Ok(None) };
        let path = path.canonicalize().with_context(name)?;
        let inside = path.strip_prefix(&mount.at).map(Path::to_path_buf).unwrap_or_default();
        let mounted = Mounted { at: mount.at, source: Source::parse(mount.source), driver: mount.driver };
        // The name of a loop device does not tell which part of its file is mounted.
        match superblock(&mounted.source).is_ok() && mounted.is_the_volume()? {
            true => Ok(Some((mounted, inside))),
            false => bail!("{}: the image of this mount is not found; name the image itself", name()),
        }
    }

    /// Returns true if the image holds the volume of the mount, by its UUID.
    fn is_the_volume(&self) -> Result<bool> {
        let told = host::mounted_uuid(&self.at).with_context(|| self.at.display().to_string())?;
        match told {
            Some(uuid) => Ok(superblock(&self.source).is_ok_and(|found| found.uuid == uuid)),
            // Linux tells the UUID since version 6.9. The volume of a whole file or device is the only one.
            None => Ok(!self.source.is_part()),
        }
    }

    /// Returns the volume's superblock on its first device, as it is at the moment.
    pub fn superblock(&self) -> Result<Superblock> {
        superblock(&self.source)
    }

    /// Writes what the mount has in memory to the device.
    pub fn sync(&self) -> io::Result<()> {
        host::sync_mount(&self.at)
    }
}

/// Reads a superblock, without a warning that another process writes.
fn superblock(source: &Source) -> Result<Superblock> {
    let device = target::open_unwarned(source, OpenOptions::default())?.device();
    let found = engine::read_superblock(&*device, u64::MAX);
    Ok(found.map_err(|error| target::not_opened(source, error))?.0)
}
