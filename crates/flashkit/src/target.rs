//! What a verb works on: `IMAGE` or `IMAGE:PATH`.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use block::{Device, FileDevice, OpenOptions};
use f2fs::{
    format::FileType,
    units::{Ino, Time},
    volume::{Options, Volume},
};

use crate::clock;

/// An image (or block device), and a path inside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The file or block device.
    pub image: PathBuf,
    /// Path inside the volume, `/` where none was given.
    pub path: String,
}

impl FromStr for Target {
    type Err = std::convert::Infallible;

    /// The path starts after the first colon whose left side is an existing file; a file whose own name
    /// holds a colon is therefore found too.
    fn from_str(text: &str) -> Result<Target, Self::Err> {
        let whole = || Target { image: text.into(), path: "/".into() };
        if Path::new(text).exists() {
            return Ok(whole());
        }
        let split = |(at, _): (usize, &str)| (&text[..at], &text[at + 1..]);
        let mut candidates = text.match_indices(':').map(split);
        let first = candidates.clone().next();
        Ok(match candidates.find(|(image, _)| Path::new(image).exists()).or(first) {
            Some((image, path)) => {
                Target { image: image.into(), path: format!("/{}", path.trim_matches('/')) }
            }
            None => whole(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.image.display(), self.path)
    }
}

/// The image that a verb works on as a whole.
#[derive(clap::Args, Debug, Clone)]
pub struct Image {
    /// The image or block device.
    pub image: PathBuf,
    #[command(flatten)]
    pub further: Further,
}

/// The further devices of a volume on several.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Further {
    /// A further device of a volume on several; repeat in the volume's order.
    #[arg(long = "device", value_name = "FILE")]
    pub devices: Vec<PathBuf>,
}

/// Where a file under `name` goes that is put at `path`: into it where that is a directory, else in its place.
pub fn destination(volume: &Volume, at: &Target, name: &[u8]) -> Result<(Ino, Vec<u8>)> {
    match volume.resolve(at.path.as_bytes(), true) {
        Ok(ino) if volume.stat(ino)?.kind == FileType::Directory => Ok((ino, name.to_vec())),
        Ok(_) | Err(f2fs::Error::NotFound) => {
            let (dir, name) = at.parent(volume)?;
            Ok((dir, name.to_vec()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Opens a file or block device for reading only.
pub fn open_device(path: &Path) -> Result<FileDevice> {
    FileDevice::open(path, OpenOptions::default()).with_context(|| path.display().to_string())
}

/// Opens a volume for reading only. One that was not unmounted is shown as recovery makes it; nothing is
/// written to it.
pub fn open_read_only(image: &Path, further: &Further) -> Result<Volume> {
    open(image, further, OpenOptions::default(), Options::read_only())
}

/// Opens a volume for changes that are stamped with `clock`.
pub fn open_writable(
    image: &Path,
    further: &Further,
    clock: impl Fn() -> Time + Send + Sync + 'static,
) -> Result<Volume> {
    open_with(image, further, Options::new(clock))
}

/// Opens a volume for changes of which nothing is lasting before a checkpoint is asked for.
pub fn open_for_all_or_nothing(
    image: &Path,
    further: &Further,
    clock: impl Fn() -> Time + Send + Sync + 'static,
) -> Result<Volume> {
    open_with(image, further, Options { checkpoint_when_asked: true, ..Options::new(clock) })
}

fn open_with(image: &Path, further: &Further, options: Options) -> Result<Volume> {
    if let Some(user) = block::in_use(image).with_context(|| image.display().to_string())? {
        bail!("{}: {user}", image.display());
    }
    let volume = open(image, further, OpenOptions { write: true, direct: false }, options)?;
    if let Some(reason) = volume.read_only_reason() {
        bail!("{}: {reason}", image.display());
    }
    Ok(volume)
}

fn open(image: &Path, further: &Further, how: OpenOptions, options: Options) -> Result<Volume> {
    let devices = std::iter::once(image)
        .chain(further.devices.iter().map(PathBuf::as_path))
        .map(|path| -> Result<Arc<dyn Device>> {
            Ok(Arc::new(FileDevice::open(path, how).with_context(|| path.display().to_string())?))
        })
        .collect::<Result<Vec<_>>>()?;
    let device = f2fs::volume::join(devices).with_context(|| image.display().to_string())?;
    Volume::open(device, options).with_context(|| image.display().to_string())
}

impl Image {
    /// Changes the volume: what `change` did is on the device when this returns. Where it fails nothing of it is,
    /// unless the volume was so full that room had to be made meanwhile, which takes a checkpoint.
    pub fn change<R>(&self, change: impl FnOnce(&mut Volume) -> f2fs::Result<R>) -> Result<R> {
        let name = || self.image.display().to_string();
        change_volume(&self.image, &self.further, |volume| change(volume).with_context(name))
    }
}

fn change_volume<R>(
    image: &Path,
    further: &Further,
    change: impl FnOnce(&mut Volume) -> Result<R>,
) -> Result<R> {
    let mut volume = open_writable(image, further, clock::now)?;
    // An error drops the volume with everything that no checkpoint has made durable.
    let result = change(&mut volume)?;
    volume.unmount().with_context(|| image.display().to_string())?;
    Ok(result)
}

impl Target {
    /// Changes the volume as [`Image::change`] does.
    pub fn change<R>(&self, further: &Further, change: impl FnOnce(&mut Volume) -> Result<R>) -> Result<R> {
        change_volume(&self.image, further, |volume| change(volume).with_context(|| self.to_string()))
    }

    /// The directory that the path's last part is in, and that part.
    pub fn parent(&self, volume: &Volume) -> Result<(Ino, &[u8])> {
        let (dir, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        if name.is_empty() {
            bail!("the root directory has no name");
        }
        Ok((volume.resolve(format!("/{dir}").as_bytes(), true)?, name.as_bytes()))
    }

    /// Refuses a second path of another image.
    pub fn same_image(&self, other: &Target) -> Result<()> {
        if self.image != other.image {
            bail!("{self} and {other}: both paths must be in one image");
        }
        Ok(())
    }

    /// Opens the volume for reading only and finds the path. The last part of the path is not followed where
    /// it is a symbolic link.
    pub fn find(&self, further: &Further) -> Result<(Volume, Ino)> {
        self.open_at(further, false)
    }

    /// As [`find`](Self::find), and follows a symbolic link.
    pub fn find_content(&self, further: &Further) -> Result<(Volume, Ino)> {
        self.open_at(further, true)
    }

    fn open_at(&self, further: &Further, follow: bool) -> Result<(Volume, Ino)> {
        let volume = open_read_only(&self.image, further)?;
        let ino = volume.resolve(self.path.as_bytes(), follow).with_context(|| self.to_string())?;
        Ok((volume, ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_starts_after_the_colon_that_follows_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("card.img");
        let odd = folder.path().join("a:b.img");
        std::fs::write(&plain, "").unwrap();
        std::fs::write(&odd, "").unwrap();
        let parse = |text: String| text.parse::<Target>().unwrap();
        let plain_text = plain.display();
        let odd_text = odd.display();
        assert_eq!(parse(format!("{plain_text}")), Target { image: plain.clone(), path: "/".into() });
        assert_eq!(
            parse(format!("{plain_text}:/etc/x:y")),
            Target { image: plain.clone(), path: "/etc/x:y".into() }
        );
        assert_eq!(parse(format!("{plain_text}:etc/")), Target { image: plain.clone(), path: "/etc".into() });
        assert_eq!(parse(format!("{odd_text}:/c")), Target { image: odd.clone(), path: "/c".into() });
        assert_eq!(parse("none.img:/c".into()), Target { image: "none.img".into(), path: "/c".into() });
    }
}
