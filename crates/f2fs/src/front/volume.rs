//! An open volume: opening, closing, and the way to its engine.

use std::path::Path;
use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use block::Device;

use super::{
    OpenOptions,
    open_options::{LossHook, NewFiles},
};
use crate::{
    Error, Result,
    engine::{Caller, Engine, Space},
    units::Ino,
};

/// An open volume. The [crate] has an example.
///
/// All methods take `&self`: a volume can be shared by threads, and any number of its files can be open. A path is
/// anything that is bytes (`&str`, `&[u8]`, `Vec<u8>`); it begins at the root directory, with or without a slash. Symbolic
/// links are followed inside the volume, except where a method says otherwise. Nothing asks for rights: the caller does
/// what root may do. Reading changes no access times.
///
/// # Durability
/// Changes are made in memory and in the log of the volume. [`close`](Self::close), [`sync`](Self::sync) and
/// [`File::sync_all`](super::File::sync_all) make them durable; a power cut before that leaves the volume as it was.
/// After a failed write the volume refuses further changes.
///
/// Dropping a changed volume closes it, too. The error of that is told to the hook of [`OpenOptions::on_loss`]. Without a
/// hook, debug builds panic if the drop is the first to fail; release builds lose the changes since the last
/// synchronisation. [`abandon`](Self::abandon) drops these changes on purpose.
#[must_use = "a volume that is dropped cannot return the error of its last write; close it"]
pub struct Volume {
    /// `None` only once the volume has been closed, abandoned or taken apart.
    engine: Option<RwLock<Engine>>,
    /// True if the volume was opened for changes.
    is_writable: bool,
    pub(super) new_files: NewFiles,
    on_loss: Option<LossHook>,
}

impl Volume {
    /// Opens the volume in an image file or on a block device for reading; [`OpenOptions`] opens it for changes.
    ///
    /// A volume that was not unmounted is shown as recovery makes it, and nothing is written to it.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open_path`].
    pub fn open_path(path: impl AsRef<Path>) -> Result<Volume> {
        OpenOptions::new().open_path(path)
    }

    /// Opens the volume on a device for reading.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub fn open(device: Arc<dyn Device>) -> Result<Volume> {
        OpenOptions::new().open(device)
    }

    /// Opens the volume that `bytes` are the image of, for reading.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Volume> {
        OpenOptions::new().open_bytes(bytes)
    }

    pub(super) fn new(engine: Engine, new_files: NewFiles, on_loss: Option<LossHook>) -> Volume {
        let is_writable = engine.read_only_reason().is_none();
        Volume { engine: Some(RwLock::new(engine)), is_writable, new_files, on_loss }
    }

    /// The reason for which the volume refuses changes, if it does: because it was opened for reading, because it cannot be
    /// changed, or since a write has failed.
    ///
    /// # Errors
    /// [`Error::Invalid`] after a panic.
    pub fn read_only_reason(&self) -> Result<Option<String>> {
        Ok(self.engine()?.read_only_reason().map(str::to_owned))
    }

    /// Size and free space, in blocks of [`block_bytes`](Self::block_bytes), and the number of inodes.
    ///
    /// # Errors
    /// [`Error::Invalid`] after a panic.
    pub fn space(&self) -> Result<Space> {
        Ok(self.engine()?.space())
    }

    /// Size of a block in bytes: 4096 or 16384.
    ///
    /// # Errors
    /// [`Error::Invalid`] after a panic.
    pub fn block_bytes(&self) -> Result<usize> {
        Ok(self.engine()?.geometry().block_size.bytes())
    }

    /// Makes all changes durable, as one: writes a checkpoint.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the volume refuses changes, [`Error::Io`] if the device fails, [`Error::NoSpace`],
    /// [`Error::Corrupt`] if damage is in the way.
    pub fn sync(&self) -> Result<()> {
        self.engine_mut()?.checkpoint()
    }

    /// Makes all changes durable and ends the use of the volume, which is marked as unmounted.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync). The changes since the last synchronisation are lost then. A volume that was opened
    /// for reading closes without an error.
    pub fn close(mut self) -> Result<()> {
        self.end().1
    }

    /// Drops all changes that have not been made durable; the volume is as after a power cut.
    pub fn abandon(mut self) {
        self.engine = None;
    }

    /// Takes the volume apart for the interface by inode numbers. Nothing is written, and from here on dropping it loses
    /// changes without a word.
    ///
    /// # Errors
    /// [`Error::Invalid`] after a panic.
    pub fn into_engine(mut self) -> Result<Engine> {
        let engine = self.engine.take().expect("a volume is open until it is taken apart");
        engine.into_inner().map_err(|_| panicked())
    }

    /// The engine, for reading by inode numbers. Changes of the volume wait until the guard is dropped: drop it before the
    /// same thread calls another method, or drops a [`File`](super::File).
    ///
    /// # Errors
    /// [`Error::Invalid`] after a panic: an operation that did not come to its end may have left the volume half changed in
    /// memory. What is on the device is whole.
    pub fn engine(&self) -> Result<impl Deref<Target = Engine> + '_> {
        self.read_lock()
    }

    /// The engine, for changes by inode numbers. All other use of the volume waits until the guard is dropped.
    ///
    /// # Errors
    /// As for [`engine`](Self::engine).
    pub fn engine_mut(&self) -> Result<impl DerefMut<Target = Engine> + '_> {
        self.write_lock()
    }

    fn lock(&self) -> &RwLock<Engine> {
        self.engine.as_ref().expect("a volume is open until it is taken apart")
    }

    fn read_lock(&self) -> Result<RwLockReadGuard<'_, Engine>> {
        self.lock().read().map_err(|_| panicked())
    }

    fn write_lock(&self) -> Result<RwLockWriteGuard<'_, Engine>> {
        self.lock().write().map_err(|_| panicked())
    }

    /// Ends the use of the volume. Also returns true if the caller has been told before that the volume refuses changes.
    fn end(&mut self) -> (bool, Result<()>) {
        let Some(engine) = self.engine.take().filter(|_| self.is_writable) else { return (true, Ok(())) };
        match engine.into_inner().map_err(|_: PoisonError<Engine>| panicked()) {
            Ok(mut engine) => (engine.read_only_reason().is_some(), engine.unmount()),
            Err(error) => (true, Err(error)),
        }
    }
}

/// The error of every operation after one that panicked while it changed the volume.
fn panicked() -> Error {
    Error::Invalid("an operation on the volume panicked; drop the volume and open it again".into())
}

impl Drop for Volume {
    fn drop(&mut self) {
        let (was_told, Err(error)) = self.end() else { return };
        match self.on_loss.take() {
            Some(hook) => hook(&error),
            None => debug_assert!(
                was_told || std::thread::panicking(),
                "a volume was dropped with changes that could not be written; close it: {error}"
            ),
        }
    }
}

impl From<Engine> for Volume {
    fn from(engine: Engine) -> Volume {
        Volume::new(engine, NewFiles::default(), None)
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("is_writable", &self.is_writable).finish_non_exhaustive()
    }
}

/// An inode that stays while it is in use, although it may lose its last name.
#[derive(Debug)]
pub(super) struct Handle<'v> {
    pub(super) volume: &'v Volume,
    pub(super) ino: Ino,
}

impl<'v> Handle<'v> {
    /// Holds an inode; `engine` is that of `volume`, locked.
    pub(super) fn new(volume: &'v Volume, engine: &mut Engine, ino: Ino) -> Handle<'v> {
        engine.hold(ino);
        Handle { volume, ino }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if let Ok(mut engine) = self.volume.write_lock() {
            // An inode that cannot be removed now is an orphan, and the next checkpoint tries again.
            let _ = engine.begin(Caller::ADMIN).release(self.ino);
        }
    }
}
