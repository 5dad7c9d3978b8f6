//! Destinations of new content: a file that appears, or is replaced, only when it is complete; or a block
//! device.

use std::{
    fs,
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use block::{Device, FileDevice, OpenOptions, data_ranges, in_use};
use image::{
    Image, Source,
    sparse::{self, WriteError},
};
use indicatif::ProgressBar;
use tempfile::TempPath;

use crate::{
    host, interrupt, signature,
    target::open_device,
    unpacked::{Purpose, Unpacked},
};

/// Bytes of zeroes that test whether a file can be written past the page cache: a multiple of every block
/// size.
const PROBE_BYTES: usize = 16 << 10;

/// Unit of the holes of a new file, in bytes.
pub const HOLE_BYTES: usize = 4096;

/// Bytes of a file scanned at once.
const SCAN_BYTES: usize = 1 << 20;

/// Name prefix of unfinished files.
pub const HIDDEN: &str = ".flashkit-";

/// The existing object under the name of a new volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Nothing is there.
    Nothing,
    /// A regular file of this size.
    File { bytes: u64 },
    /// A block device, a part of an image, or on request a file, of this size. It is written in place.
    InPlace { bytes: u64 },
}

/// The rule for the content of an existing object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldContent {
    /// An object with content is refused.
    Refused,
    /// The content is overwritten.
    Overwritten,
}

impl From<bool> for OldContent {
    /// Converts the flag `-f`.
    fn from(is_forced: bool) -> OldContent {
        if is_forced { OldContent::Overwritten } else { OldContent::Refused }
    }
}

impl Existing {
    /// Examines the existing object, and always refuses one that is mounted or in use. If the old content
    /// counts, refuses a file with nonzero data, and a block device with a known file system, array member or
    /// partition table. A card's other old content means nothing.
    pub fn look(source: &Source, old: impl Into<OldContent>) -> Result<Existing> {
        let (name, path) = (|| source.to_string(), source.path());
        if let Some(why) = source.read_only_reason() {
            bail!("{source}: {why}");
        }
        if source.is_served() {
            return Existing::served(source, old.into());
        }
        if !path.try_exists().with_context(name)? {
            if source.is_part() {
                bail!("{source}: no such file; --offset is for an existing image");
            }
            return Ok(Existing::Nothing);
        }
        if let Some(user) = in_use(path).with_context(name)? {
            bail!("{}: {user}; nothing was written", path.display());
        }
        // A whole file is replaced, whatever its format.
        if source.is_part() {
            Unpacked::of(source, Purpose::Change)?;
        }
        let (device, is_in_place): (Arc<dyn Device>, bool) = match source.is_part() {
            true => (Image::open(source, OpenOptions::default()).with_context(name)?.device(), true),
            false => {
                let file = FileDevice::open(path, OpenOptions::default()).with_context(name)?;
                let is_in_place = file.is_block_device();
                (Arc::new(file), is_in_place)
            }
        };
        let bytes = device.geometry().size_bytes;
        let (existing, carries) = match is_in_place {
            true => (Existing::InPlace { bytes }, signature::find(&device)),
            false => (Existing::File { bytes }, signature::find_in_file(&device)),
        };
        if old.into() == OldContent::Overwritten {
            return Ok(existing);
        }
        if let Some(what) = carries.with_context(name)? {
            bail!("{source}: carries {what}; -f overwrites it");
        }
        if let (Existing::File { .. }, Some(at)) = (existing, first_data(path).with_context(name)?) {
            bail!("{source}: holds data in an unknown format from byte {at} on; -f overwrites it");
        }
        Ok(existing)
    }

    /// Examines an NBD export.
    fn served(source: &Source, old: OldContent) -> Result<Existing> {
        let device = open_device(source)?;
        match signature::find(&device).with_context(|| source.to_string())? {
            Some(what) if old == OldContent::Refused => bail!("{source}: carries {what}; -f overwrites it"),
            _ => Ok(Existing::InPlace { bytes: device.geometry().size_bytes }),
        }
    }
}

/// Returns the offset of the first nonzero byte of a file. Holes are skipped, not read.
fn first_data(path: &Path) -> io::Result<Option<u64>> {
    let mut file = fs::File::open(path)?;
    let size = file.metadata()?.len();
    let mut buf = vec![0; SCAN_BYTES];
    let mut end = 0;
    while end < size {
        let Some(data) = host::next_data(&file, end, size)? else { break };
        let mut at = data.start;
        end = data.end;
        file.seek(SeekFrom::Start(at))?;
        while at < end {
            let wanted = (end - at).min(SCAN_BYTES as u64) as usize;
            let read = file.read(&mut buf[..wanted])?;
            if read == 0 {
                return Ok(None);
            }
            if let Some(within) = buf[..read].iter().position(|byte| *byte != 0) {
                return Ok(Some(at + within as u64));
            }
            at += read as u64;
        }
    }
    Ok(None)
}

/// An unfinished file, on the file system of its final place. It is removed if it is dropped or the process
/// ends before it is finished.
pub struct Fresh {
    kind: FreshKind,
    working: PathBuf,
    path: PathBuf,
}

enum FreshKind {
    /// A file without a name, of which nothing remains however the process ends.
    Unnamed(fs::File),
    /// A named file, if the file system supports no unnamed files.
    Named(TempPath),
}

impl Fresh {
    /// Makes a new, empty file with the permissions of the file that it will replace, if there is one.
    pub fn new(path: &Path) -> Result<Fresh> {
        let name = || path.display().to_string();
        let path = place(path)?;
        path.file_name().with_context(name)?;
        fs::metadata(folder(&path))
            .with_context(|| folder(&path).display().to_string())
            .with_context(name)?;
        let (kind, working) = match host::unnamed_file(folder(&path)) {
            Ok((file, working)) => (FreshKind::Unnamed(file), working),
            Err(_) => {
                let temporary = tempfile::Builder::new()
                    .prefix(HIDDEN)
                    .tempfile_in(folder(&path))
                    .map_err(without_path)
                    .with_context(|| {
                        format!("{}: cannot make a file in {}", path.display(), folder(&path).display())
                    })?
                    .into_temp_path();
                interrupt::remove(&temporary);
                let working = temporary.to_path_buf();
                (FreshKind::Named(temporary), working)
            }
        };
        let old = fs::metadata(&path).ok().map(|old| old.permissions());
        if let Some(permissions) = old.or_else(host::new_file_permissions) {
            fs::set_permissions(&working, permissions).with_context(name)?;
        }
        Ok(Fresh { kind, working, path })
    }

    /// Returns the path of the unfinished file.
    pub fn working(&self) -> &Path {
        &self.working
    }

    /// Gives the file its final name, once its content is durable: after a power cut, the name leads to the old file or to
    /// the whole new one.
    pub fn finish(self) -> Result<()> {
        let name = || self.path.display().to_string();
        let temporary = match self.kind {
            FreshKind::Named(temporary) => {
                let file = fs::File::options().write(true).open(&temporary);
                file.and_then(|file| file.sync_data()).with_context(name)?;
                temporary
            }
            FreshKind::Unnamed(file) => {
                file.sync_data().with_context(name)?;
                // link(2) cannot replace an existing file, but renaming the new link can.
                tempfile::Builder::new()
                    .prefix(HIDDEN)
                    .make_in(folder(&self.path), |link| host::name_file(&file, link))
                    .with_context(name)?
                    .into_temp_path()
            }
        };
        temporary.persist(&self.path).with_context(name)
    }
}

/// Replaces a file by one with new content, in one step, after the content is durable. Unlike [`Fresh`], it registers
/// nothing for an interrupt, so that the handler of an interrupt may call it.
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let name = || path.display().to_string();
    let path = place(path)?;
    let temporary = tempfile::Builder::new().prefix(HIDDEN).tempfile_in(folder(&path));
    let mut file = temporary
        .map_err(without_path)
        .with_context(|| format!("{}: cannot make a file in {}", path.display(), folder(&path).display()))?;
    let old = fs::metadata(&path).ok().map(|old| old.permissions());
    if let Some(permissions) = old.or_else(host::new_file_permissions) {
        fs::set_permissions(file.path(), permissions).with_context(name)?;
    }
    file.write_all(content).and_then(|()| file.as_file().sync_all()).with_context(name)?;
    file.persist(&path).map_err(|error| error.error).with_context(name)?;
    Ok(())
}

/// Removes the generated name from an error of making a temporary file or directory.
pub fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((text, _)) => io::Error::new(error.kind(), text),
        None => error,
    }
}

/// Returns the path of the file that is replaced or made under a name. A symbolic link stays: the file is its target,
/// even if that is missing.
fn place(path: &Path) -> Result<PathBuf> {
    let target = || fs::read_link(path).map(|target| folder(path).join(target));
    let place = fs::canonicalize(path).or_else(|_| target()).unwrap_or_else(|_| path.to_path_buf());
    // Reading a link is always allowed. Only a call that follows it is subject to `fs.protected_symlinks`: in a directory
    // for all users, links of other users are not followed (proc_sys_fs(5)).
    let name = || path.display().to_string();
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && path.is_symlink() => Err(error)
            .context("cannot follow the symbolic link; name its target if you trust it")
            .with_context(name),
        // The name may have become a link, or another one, since its place was read.
        Ok(_) if place.exists() && !host::is_same(path, &place) => {
            bail!("{}: another file took this name meanwhile; try again", path.display())
        }
        _ => Ok(place),
    }
}

/// Returns true if two names lead to one file, also to one that does not exist yet.
pub fn is_one_place(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| {
        let place = place(path).ok()?;
        Some((fs::canonicalize(folder(&place)).ok()?, place.file_name()?.to_owned()))
    };
    host::is_same(one, other) || whole(one).is_some_and(|one| whole(other) == Some(one))
}

/// Returns the directory of a file.
pub fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Format of a new image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The bytes of the volume.
    Raw,
    /// An Android sparse image, in which blocks that were never written have no content.
    Sparse,
}

/// The device of a new volume.
pub struct Output {
    /// Name for messages.
    name: String,
    /// The device.
    pub device: Arc<dyn Device>,
    /// True if the device is known to read as zeroes.
    pub is_blank: bool,
    form: Form,
    /// The unfinished file; None for a device that is written in place.
    file: Option<Fresh>,
    /// The file to be replaced, locked until then, so that no process writes to it meanwhile.
    replaced: Option<FileDevice>,
}

impl Output {
    /// Returns the path of the unfinished file, if there is one.
    pub fn working(&self) -> Option<&Path> {
        self.file.as_ref().map(Fresh::working)
    }

    /// Makes a file of this size, which takes the place of `path` when it is [finished](Output::finish).
    pub fn file(path: &Path, bytes: u64, form: Form) -> Result<Output> {
        let name = || path.display().to_string();
        let options = OpenOptions { write: true, direct: false };
        let replaced = match FileDevice::open(path, options) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.with_context(name)?),
        };
        let file = Fresh::new(path)?;
        let device = new_device(file.working(), bytes).with_context(name)?;
        Ok(Output {
            name: name(),
            device: Arc::new(device),
            is_blank: true,
            form,
            file: Some(file),
            replaced,
        })
    }

    /// Opens a block device, a part of an image, or a file of a volume on several devices, to be written in place.
    /// As for [`Existing::look`], a whole file or device is its bytes, whatever format they have.
    pub fn in_place(source: &Source) -> Result<Output> {
        let options = OpenOptions { write: true, direct: false };
        let device = match source.is_part() || source.is_served() {
            true => Image::open(source, options).map(|image| image.device()),
            false => FileDevice::open(source.path(), options).map(|file| Arc::new(file) as Arc<dyn Device>),
        };
        let name = source.to_string();
        let device = device.with_context(|| name.clone())?;
        Ok(Output { name, device, is_blank: false, form: Form::Raw, file: None, replaced: None })
    }

    /// Returns true if the device is known to read as zeroes, so that zeroes need not be written.
    pub fn is_blank(&self) -> bool {
        self.is_blank
    }

    /// Writes to the device. Blocks of zeroes are left out if it is known to read as zeroes.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let name = || self.name.clone();
        if !self.is_blank {
            return self.device.write(at, bytes).with_context(name);
        }
        let mut blocks = (at..).step_by(HOLE_BYTES).zip(bytes.chunks(HOLE_BYTES));
        blocks.try_for_each(|(at, block)| match block.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => self.device.write(at, block).with_context(name),
        })
    }

    /// Gives the file its final name.
    pub fn finish(self) -> Result<()> {
        let name = || self.name.clone();
        self.device.flush().context("cannot flush").with_context(name)?;
        let _locked = self.replaced.filter(|_| host::REPLACES_OPEN_FILES);
        match (self.file, self.form) {
            (None, _) => Ok(()),
            (Some(file), Form::Raw) => {
                drop(self.device);
                file.finish()
            }
            (Some(raw), Form::Sparse) => {
                let used = data_ranges(&*self.device, 0..self.device.geometry().size_bytes).collect();
                let fresh = Fresh::new(&raw.path)?;
                write_sparse(&*self.device, &self.name, &fresh, used, &ProgressBar::hidden())?;
                drop(self.device);
                fresh.finish()
            }
        }
    }
}

/// Writes the used ranges of a device, `source` in messages, as an Android sparse image to an unfinished file.
pub fn write_sparse(
    device: &dyn Device,
    source: &str,
    fresh: &Fresh,
    used: Vec<Range<u64>>,
    bar: &ProgressBar,
) -> Result<()> {
    let name = || fresh.path.display().to_string();
    let mut file = fs::File::options().write(true).open(fresh.working()).with_context(name)?;
    sparse::write(device, used, &mut file, |done| bar.set_position(done)).map_err(|error| match error {
        WriteError::Source(error) => anyhow::Error::from(error).context(source.to_owned()),
        WriteError::Image(error) => anyhow::Error::from(error).context(name()),
    })
}

/// Opens the device of a new file. An image is written once, from front to back, and is usually larger than
/// the page cache, so bypassing the cache halves the time. If the host cannot do that, the cache is used; also for a
/// size that ends within a block, because only whole blocks can bypass it.
fn new_device(path: &Path, bytes: u64) -> io::Result<FileDevice> {
    let open = |direct| {
        let device = FileDevice::open(path, OpenOptions { write: true, direct })?;
        device.set_size(bytes)?;
        Ok(device)
    };
    // Some file systems open such files and then refuse to write to them.
    let usable =
        |device: &FileDevice| bytes < PROBE_BYTES as u64 || device.write(0, &[0; PROBE_BYTES]).is_ok();
    let direct = (bytes % HOLE_BYTES as u64 == 0).then(|| open(true).ok()).flatten();
    match direct.filter(usable) {
        Some(device) => Ok(device),
        None => open(false),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    #[test]
    #[allow(clippy::print_stderr)] // the reason why a test is skipped
    fn the_target_of_a_link_is_replaced_unless_the_kernel_refuses_to_follow_it() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target, missing) =
            (dir.path().join("link"), dir.path().join("target"), dir.path().join("new"));
        fs::write(&target, "old").unwrap();
        symlink("target", &link).unwrap();
        replace(&link, b"new").unwrap();
        assert!(link.is_symlink() && fs::read(&target).unwrap() == b"new");

        let protects = fs::read_to_string("/proc/sys/fs/protected_symlinks");
        if !protects.is_ok_and(|value| value.trim() == "1") || lchown(&link, Some(65_534), None).is_err() {
            return eprintln!("skipped: fs.protected_symlinks is off, or links cannot be given away");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let refused = |result: Result<()>| {
            let error = format!("{:#}", result.unwrap_err());
            assert!(error.contains("link: cannot follow the symbolic link"), "{error}");
        };
        refused(replace(&link, b"theirs"));
        refused(Fresh::new(&link).and_then(Fresh::finish));
        assert_eq!(fs::read(&target).unwrap(), b"new");
        // Nor is a file made where a link leads to nothing.
        fs::remove_file(&link).unwrap();
        symlink("new", &link).unwrap();
        lchown(&link, Some(65_534), None).unwrap();
        refused(replace(&link, b"theirs"));
        assert!(!missing.exists());
    }
}
