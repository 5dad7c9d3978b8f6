//! Options for opening a volume.

use std::path::{Path, PathBuf};
use std::{fmt, sync::Arc};

use block::FileDevice;
use block::{Device, MemoryDevice};
use fscrypt::{Key, NONCE_SEED_BYTES, Nonces};

use super::Volume;
use crate::engine::join;
use crate::{
    Error, Result,
    engine::{Engine, Options},
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::Time,
};

/// Receives the error of a drop that lost changes.
pub(super) type LossHook = Box<dyn FnOnce(&Error) + Send + Sync>;

/// Permissions that new files and directories do not get, unless the default access control list of their directory says
/// otherwise.
const UMASK: u16 = 0o022;

/// Options that a [`Volume`] is opened or made with: by default for reading only.
///
/// ```no_run
/// use std::time::SystemTime;
///
/// let volume = f2fs::OpenOptions::new().write().clock(SystemTime::now).open_path("card.img")?;
/// # volume.close()?;
/// # Ok::<(), f2fs::Error>(())
/// ```
#[must_use]
pub struct OpenOptions {
    engine: Options,
    write: bool,
    read_only_if_needed: bool,
    has_clock: bool,
    direct: bool,
    beside_writer: bool,
    further: Vec<PathBuf>,
    new_files: NewFiles,
    on_loss: Option<LossHook>,
}

/// Attributes of files and directories that are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewFiles {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) umask: u16,
}

impl Default for NewFiles {
    fn default() -> NewFiles {
        NewFiles { uid: 0, gid: 0, umask: UMASK }
    }
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Options for reading only.
    pub fn new() -> OpenOptions {
        OpenOptions { write: false, has_clock: false, ..OpenOptions::from(Options::new(Time::default)) }
    }

    /// Opens the volume for changes, too. Opening fails if the volume cannot be changed: because of the rights of the
    /// image, another user of it, or the volume itself. A volume that is written needs a [`clock`](Self::clock).
    pub fn write(mut self) -> OpenOptions {
        self.write = true;
        self
    }

    /// With [`write`](Self::write): opens a volume that cannot be changed for reading only, instead of failing.
    /// [`Volume::read_only_reason`] says why. It does not help against another writer of the image.
    pub fn read_only_if_needed(mut self) -> OpenOptions {
        self.read_only_if_needed = true;
        self
    }

    /// The clock that times of files come from, usually [`SystemTime::now`](std::time::SystemTime::now). This crate does
    /// not read the clock of the host by itself, so that a run can be repeated.
    pub fn clock<T: Into<Time>>(mut self, clock: impl Fn() -> T + Send + Sync + 'static) -> OpenOptions {
        self.engine.clock = Arc::new(move || clock().into());
        self.has_clock = true;
        self
    }

    /// Memory for caches, in bytes; 64 MiB by default.
    pub fn cache_bytes(mut self, bytes: usize) -> OpenOptions {
        self.engine.cache_bytes = bytes;
        self
    }

    /// The owner and the group of files and directories that are made, as numbers of the volume; 0 and 0 by default.
    pub fn owner(mut self, uid: u32, gid: u32) -> OpenOptions {
        (self.new_files.uid, self.new_files.gid) = (uid, gid);
        self
    }

    /// The permissions that files and directories are made without; 0o022 by default. Where a directory has a default
    /// access control list, that list limits the permissions instead.
    pub fn umask(mut self, umask: u16) -> OpenOptions {
        self.new_files.umask = umask;
        self
    }

    /// Adds a master key of encrypted files and directories. [`Volume::add_key`] adds one later.
    pub fn key(mut self, key: Key) -> OpenOptions {
        self.engine.keys.add(key);
        self
    }

    /// Random bytes from which the nonces of new encrypted files follow, from the system's source of them. This crate has
    /// none of its own. Each opening needs other ones: files with the same nonce have the same key. Without them, nothing is
    /// made in encrypted directories.
    pub fn nonce_seed(mut self, seed: [u8; NONCE_SEED_BYTES]) -> OpenOptions {
        self.engine.nonces = Some(Nonces::new(seed));
        self
    }

    /// Reads and writes past the page cache of the host (`O_DIRECT`).
    pub fn direct(mut self) -> OpenOptions {
        self.direct = true;
        self
    }

    /// Opens an image for reading although another program writes to it. What is read may then be old or half written, and
    /// may look like damage. Without this, opening such an image fails.
    pub fn beside_writer(mut self) -> OpenOptions {
        self.beside_writer = true;
        self
    }

    /// Adds a further device of a volume on several, in the order of the volume.
    pub fn device(mut self, path: impl AsRef<Path>) -> OpenOptions {
        self.further.push(path.as_ref().to_owned());
        self
    }

    /// Calls `hook` if the volume is dropped and its changes cannot be written then; see [`Volume`].
    pub fn on_loss(mut self, hook: impl FnOnce(&Error) + Send + Sync + 'static) -> OpenOptions {
        self.on_loss = Some(Box::new(hook));
        self
    }

    /// Opens the volume in an image file or on a block device.
    ///
    /// # Errors
    /// [`Error::Host`] with the path if the host refuses, with
    /// [`ResourceBusy`](std::io::ErrorKind::ResourceBusy) if another program uses the image; those of
    /// [`open`](Self::open).
    pub fn open_path(mut self, path: impl AsRef<Path>) -> Result<Volume> {
        let mut paths = vec![path.as_ref().to_owned()];
        paths.append(&mut self.further);
        let device = match self.open_devices(&paths) {
            Err(error) if self.write && self.read_only_if_needed && is_refusal(&error) => {
                self.write = false;
                self.open_devices(&paths)?
            }
            device => device?,
        };
        self.open(device)
    }

    fn open_devices(&self, paths: &[PathBuf]) -> Result<Arc<dyn Device>> {
        let how = block::OpenOptions { write: self.write, direct: self.direct };
        let open = |path: &PathBuf| -> Result<Arc<dyn Device>> {
            let device = FileDevice::open(path, how).map_err(|source| host_error(path, source))?;
            if let Some(writer) = device.writer().filter(|_| !self.beside_writer) {
                let source = std::io::Error::new(std::io::ErrorKind::ResourceBusy, writer.to_string());
                return Err(host_error(path, source));
            }
            Ok(Arc::new(device))
        };
        join(paths.iter().map(open).collect::<Result<_>>()?)
    }

    /// Opens the volume on a device; several devices are [joined](crate::engine::join) before.
    ///
    /// # Errors
    /// - [`Error::NotF2fs`] if there is no volume, [`Error::Unsupported`] if it cannot be opened by this crate.
    /// - [`Error::Corrupt`] and [`Error::Io`] if its superblock or checkpoint is damaged or cannot be read.
    /// - [`Error::ReadOnly`] with [`write`](Self::write), if it cannot be changed.
    /// - [`Error::Invalid`] with [`write`](Self::write), without a [`clock`](Self::clock).
    pub fn open(mut self, device: Arc<dyn Device>) -> Result<Volume> {
        self.require_clock()?;
        self.engine.read_only = !self.write;
        let engine = Engine::open(device, self.engine)?;
        match engine.read_only_reason() {
            Some(reason) if self.write && !self.read_only_if_needed => {
                Err(Error::ReadOnly(reason.to_owned().into()))
            }
            _ => Ok(Volume::new(engine, self.new_files, self.on_loss)),
        }
    }

    /// Opens the volume that `bytes` are the image of. Changes stay in a copy in memory; to keep them,
    /// [`open`](Self::open) a [`MemoryDevice`] of your own.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_bytes(self, bytes: &[u8]) -> Result<Volume> {
        self.open(Arc::new(MemoryDevice::from_bytes(bytes)))
    }

    /// Makes a volume on a device and opens it for changes. The previous content of the device is lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size or options that make no volume, and without a [`clock`](Self::clock); [`Error::Io`]
    /// if the device fails.
    pub fn make(self, device: Arc<dyn Device>, options: &mkfs::Options) -> Result<Volume> {
        self.make_on(device, options, DeviceContent::Unknown)
    }

    /// Makes a new image file of `size_bytes` bytes, a volume in it, and opens it for changes. The file is sparse.
    ///
    /// # Errors
    /// [`Error::Host`] with the path if the file exists or cannot be made; those of [`make`](Self::make), after which no
    /// file stays.
    pub fn make_file(
        self,
        path: impl AsRef<Path>,
        size_bytes: u64,
        options: &mkfs::Options,
    ) -> Result<Volume> {
        let path = path.as_ref();
        let device = FileDevice::create(path, size_bytes).map_err(|source| host_error(path, source))?;
        self.make_on(Arc::new(device), options, DeviceContent::Zeroes).inspect_err(|_| {
            // The file is ours and no volume; the first error is the one to tell.
            let _ = std::fs::remove_file(path);
        })
    }

    fn make_on(
        mut self,
        device: Arc<dyn Device>,
        options: &mkfs::Options,
        content: DeviceContent,
    ) -> Result<Volume> {
        self.write = true;
        self.require_clock()?;
        self.engine.read_only = false;
        let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
        let plan = Plan::new(options, &[size])?;
        let engine = NewVolume::begin(device, &plan, content, self.engine)?.finish()?;
        Ok(Volume::new(engine, self.new_files, self.on_loss))
    }

    fn require_clock(&self) -> Result<()> {
        match self.write && !self.has_clock {
            true => Err(Error::Invalid(
                "opening a volume for writing needs a clock: `OpenOptions::clock(SystemTime::now)`".into(),
            )),
            false => Ok(()),
        }
    }
}

impl From<Options> for OpenOptions {
    /// All options of the engine, its clock among them. The volume is opened for changes unless they say
    /// [`read_only`](Options::read_only).
    fn from(engine: Options) -> OpenOptions {
        OpenOptions {
            write: !engine.read_only,
            engine,
            read_only_if_needed: false,
            has_clock: true,
            direct: false,
            beside_writer: false,
            further: Vec::new(),
            new_files: NewFiles::default(),
            on_loss: None,
        }
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("write", &self.write)
            .field("read_only_if_needed", &self.read_only_if_needed)
            .field("new_files", &self.new_files)
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

fn host_error(path: &Path, source: std::io::Error) -> Error {
    Error::Host { path: path.display().to_string(), source }
}

/// Returns true if the host refuses to open an image for writing, and may let it be read.
fn is_refusal(error: &Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error, Error::Host { source, .. }
        if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
}
