//! Where something new is made: a file that appears, or is replaced, only when it is complete; or a block device.

use std::{
    fs, io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use block::{Device, FileDevice, OpenOptions, in_use};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, seek},
    io::Errno,
};
use tempfile::TempPath;

use crate::{interrupt, signature};

/// Zeroes that are written to find out whether a file can be written past the page cache: a block of any size.
const PROBE_BYTES: usize = 16 << 10;

/// Bytes of a file that are looked at together.
const SCAN_BYTES: usize = 1 << 20;

/// How the names of files begin that are not complete.
pub const HIDDEN: &str = ".flashkit-";

/// What the name of a new volume stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Nothing is there.
    Nothing,
    /// A regular file of this size.
    File { bytes: u64 },
    /// A block device of this size.
    BlockDevice { bytes: u64 },
}

impl Existing {
    /// Looks at what is there, and always refuses what is mounted or in use. Without `force`, refuses a file that is not
    /// all zeroes, and a block device that carries a known file system, array member or partition table: other old
    /// content of a card says nothing.
    pub fn look(path: &Path, force: bool) -> Result<Existing> {
        let name = || path.display().to_string();
        if !path.try_exists().with_context(name)? {
            return Ok(Existing::Nothing);
        }
        if let Some(user) = in_use(path).with_context(name)? {
            bail!("{}: {user}; nothing was written", path.display());
        }
        let device = FileDevice::open(path, OpenOptions::default()).with_context(name)?;
        let bytes = device.geometry().size_bytes;
        let (existing, carries) = match device.is_block_device() {
            true => (Existing::BlockDevice { bytes }, signature::find(&device)),
            false => (Existing::File { bytes }, signature::find_in_file(&device)),
        };
        if force {
            return Ok(existing);
        }
        if let Some(what) = carries.with_context(name)? {
            bail!("{}: carries {what}; -f overwrites it", path.display());
        }
        if let (Existing::File { .. }, Some(at)) = (existing, first_data(path).with_context(name)?) {
            bail!("{}: holds data of no known format, from byte {at} on; -f overwrites it", path.display());
        }
        Ok(existing)
    }
}

/// The first byte of a file that is not zero. Holes are passed over, not read.
fn first_data(path: &Path) -> io::Result<Option<u64>> {
    let file = fs::File::open(path)?;
    let size = file.metadata()?.len();
    let mut buf = vec![0; SCAN_BYTES];
    let mut at = 0;
    while at < size {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            // The file system does not tell holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(&file, SeekFrom::Hole(at)).ok().filter(|hole| *hole > at).unwrap_or(size);
        while at < end {
            let wanted = (end - at).min(SCAN_BYTES as u64) as usize;
            let read = file.read_at(&mut buf[..wanted], at)?;
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

/// A file under construction, on the file system of the place that it takes in the end. Dropped before, it is gone;
/// it is, too, where the process ends before.
pub struct Fresh {
    kind: FreshKind,
    working: PathBuf,
    path: PathBuf,
}

enum FreshKind {
    /// Without a name, so that nothing is left of it whatever ends the process.
    Unnamed(fs::File),
    /// Where the file system has no such files.
    Named(TempPath),
}

impl Fresh {
    /// A new, empty file. A file that is replaced hands on its permissions.
    pub fn new(path: &Path) -> Result<Fresh> {
        let name = || path.display().to_string();
        // A symbolic link stays; what it points to is replaced, or made where nothing is there.
        let target = || fs::read_link(path).map(|target| folder(path).join(target));
        let path = fs::canonicalize(path).or_else(|_| target()).unwrap_or_else(|_| path.to_path_buf());
        path.file_name().with_context(name)?;
        fs::metadata(folder(&path))
            .with_context(|| folder(&path).display().to_string())
            .with_context(name)?;
        let (kind, working) = match unnamed(folder(&path)) {
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
        let permissions = match fs::metadata(&path) {
            Ok(old) => old.permissions(),
            Err(_) => std::os::unix::fs::PermissionsExt::from_mode(0o666 & !umask()),
        };
        fs::set_permissions(&working, permissions).with_context(name)?;
        Ok(Fresh { kind, working, path })
    }

    /// Where it is until it is complete.
    pub fn working(&self) -> &Path {
        &self.working
    }

    /// Gives it its name.
    pub fn finish(self) -> Result<()> {
        let name = || self.path.display().to_string();
        let temporary = match self.kind {
            FreshKind::Named(temporary) => temporary,
            // A link does not replace what is there; renaming it does.
            FreshKind::Unnamed(file) => tempfile::Builder::new()
                .prefix(HIDDEN)
                .make_in(folder(&self.path), |link| {
                    Ok(rustix::fs::linkat(CWD, reached_by(&file), CWD, link, AtFlags::SYMLINK_FOLLOW)?)
                })
                .with_context(name)?
                .into_temp_path(),
        };
        temporary.persist(&self.path).with_context(name)
    }
}

/// An error of making a temporary file or directory without the name, which nobody has chosen.
pub fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((text, _)) => io::Error::new(error.kind(), text),
        None => error,
    }
}

/// A file without a name in this directory, and the path that it is reached by.
fn unnamed(folder: &Path) -> io::Result<(fs::File, PathBuf)> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?);
    let working = reached_by(&file);
    // Without /proc it could neither be opened again nor get a name.
    fs::metadata(&working)?;
    Ok((file, working))
}

/// The path of an open file that may have no name.
fn reached_by(file: &fs::File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The directory that a file is in.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A device that a volume is being made on.
pub struct Output {
    /// The device.
    pub device: Arc<FileDevice>,
    /// Whether it is known to read as zeroes.
    pub is_blank: bool,
    /// The file under construction; none for a block device.
    file: Option<Fresh>,
    /// The file that it replaces, locked until then: nobody writes to what is about to go.
    _replaced: Option<FileDevice>,
}

impl Output {
    /// The file under construction, where there is one.
    pub fn working(&self) -> Option<&Path> {
        self.file.as_ref().map(Fresh::working)
    }

    /// A new file of this size in the place of `path` once it is [finished](Output::finish).
    pub fn file(path: &Path, bytes: u64) -> Result<Output> {
        let name = || path.display().to_string();
        let options = OpenOptions { write: true, direct: false };
        let replaced = match FileDevice::open(path, options) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.with_context(name)?),
        };
        let file = Fresh::new(path)?;
        let device = new_device(file.working(), bytes).with_context(name)?;
        Ok(Output { device: Arc::new(device), is_blank: true, file: Some(file), _replaced: replaced })
    }

    /// A block device, or a file that is part of a volume on several: written where it is.
    pub fn in_place(path: &Path) -> Result<Output> {
        let options = OpenOptions { write: true, direct: false };
        let device = FileDevice::open(path, options).with_context(|| path.display().to_string())?;
        Ok(Output { device: Arc::new(device), is_blank: false, file: None, _replaced: None })
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<()> {
        self.device.flush().context("flushing")?;
        self.file.map_or(Ok(()), Fresh::finish)
    }
}

/// The device of a new file. An image is written once, from front to back, and mostly past what the page cache
/// holds: writing it past the cache takes half the time. Where the host cannot do that, the cache does.
fn new_device(path: &Path, bytes: u64) -> io::Result<FileDevice> {
    let open = |direct| {
        let mut device = FileDevice::open(path, OpenOptions { write: true, direct })?;
        device.set_size(bytes)?;
        Ok(device)
    };
    // Some file systems open such files and refuse to write to them.
    let usable =
        |device: &FileDevice| bytes < PROBE_BYTES as u64 || device.write(0, &[0; PROBE_BYTES]).is_ok();
    match open(true).ok().filter(usable) {
        Some(device) => Ok(device),
        None => open(false),
    }
}

/// The mask that new files are made with.
fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}
