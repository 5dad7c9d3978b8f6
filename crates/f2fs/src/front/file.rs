//! Open files.

use std::io::{self, Read, Seek, SeekFrom, Write};

use super::{Metadata, Volume, volume::Handle};
use crate::{
    Error, Result,
    engine::{Caller, Engine, FinalSymlink, NewNode, PathEnd, SetAttr, SyncScope},
    format::FileType,
    units::{Ino, Time},
};

/// Options that a [`File`] is opened with, after [`std::fs::OpenOptions`].
///
/// ```
/// # use std::sync::Arc;
/// # let options = f2fs::mkfs::Options::new([7; 16]);
/// # let device = Arc::new(f2fs::device::MemoryDevice::new(64 << 20));
/// # let volume = f2fs::OpenOptions::new().clock(std::time::SystemTime::now).make(device, &options)?;
/// use std::io::Write;
///
/// let mut log = f2fs::FileOptions::new().append().create().open(&volume, "/log")?;
/// writeln!(log, "a line")?;
/// # drop(log);
/// # volume.close()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct FileOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    permissions: u16,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions::new()
    }
}

impl FileOptions {
    /// Options that allow nothing yet.
    pub fn new() -> FileOptions {
        FileOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            permissions: 0o666,
        }
    }

    /// The file can be read.
    pub fn read(mut self) -> FileOptions {
        self.read = true;
        self
    }

    /// The file can be written.
    pub fn write(mut self) -> FileOptions {
        self.write = true;
        self
    }

    /// The file can be written at its end only: every write goes there, whatever the position is.
    pub fn append(mut self) -> FileOptions {
        self.append = true;
        self
    }

    /// The file is emptied; needs [`write`](Self::write).
    pub fn truncate(mut self) -> FileOptions {
        self.truncate = true;
        self
    }

    /// The file is made if it is missing; needs [`write`](Self::write) or [`append`](Self::append).
    pub fn create(mut self) -> FileOptions {
        self.create = true;
        self
    }

    /// The file is made, and it is an error if the name is there already, be it that of a symbolic link.
    pub fn create_new(mut self) -> FileOptions {
        self.create_new = true;
        self
    }

    /// Permissions of a file that is made, before the [umask](super::OpenOptions::umask); 0o666 by default.
    pub fn permissions(mut self, permissions: u16) -> FileOptions {
        self.permissions = permissions;
        self
    }

    /// Opens a file of a volume. A symbolic link at the end of the path is followed; where its target is missing, the
    /// target is made.
    ///
    /// # Errors
    /// - [`Error::NotFound`], [`Error::NotDirectory`], [`Error::TooManySymlinks`], [`Error::NameTooLong`] for the path;
    ///   [`Error::Exists`] with [`create_new`](Self::create_new).
    /// - [`Error::IsDirectory`] for a directory, [`Error::Invalid`] for anything else that is no regular file, and for
    ///   options that contradict each other.
    /// - [`Error::ReadOnly`] if the volume refuses changes and the file is to be written, [`Error::NotPermitted`] if the
    ///   file is immutable or can only be appended to.
    /// - [`Error::NoSpace`], [`Error::NoInodes`], [`Error::Quota`] if there is no place for a new file.
    /// - [`Error::Corrupt`] and [`Error::Io`] if something on the way is damaged or cannot be read.
    pub fn open<'v>(&self, volume: &'v Volume, path: impl AsRef<[u8]>) -> Result<File<'v>> {
        let writes = self.write || self.append;
        let is_sense = match (self.truncate, self.create || self.create_new) {
            (true, _) if self.append || !self.write => false,
            (_, true) => writes,
            _ => self.read || writes,
        };
        if !is_sense {
            return Err(Error::Invalid(
                "the options of the file contradict each other: see `FileOptions`".into(),
            ));
        }
        let mut engine = volume.engine_mut()?;
        if let Some(reason) = engine.read_only_reason().filter(|_| writes) {
            return Err(Error::ReadOnly(reason.to_owned().into()));
        }
        let ino = self.find(volume, &mut engine, path.as_ref())?;
        Ok(File { handle: Handle::new(volume, &mut engine, ino), options: self.clone(), position: 0 })
    }

    /// Finds or makes the file.
    fn find(&self, volume: &Volume, engine: &mut Engine, path: &[u8]) -> Result<Ino> {
        let end = match (self.create_new, self.create) {
            (true, _) => new_end(engine, path)?,
            (false, true) => engine.resolve_to_create(path)?,
            (false, false) => PathEnd::Inode(engine.resolve(path, FinalSymlink::Follow)?),
        };
        match end {
            PathEnd::Inode(ino) => {
                match engine.stat(ino)?.kind {
                    FileType::Regular => {}
                    FileType::Directory => return Err(Error::IsDirectory),
                    _ => return Err(Error::Invalid("the file is not a regular file".into())),
                }
                if self.truncate {
                    engine.begin(Caller::ADMIN).truncate(ino, 0)?;
                }
                Ok(ino)
            }
            PathEnd::Vacant { dir, name } => {
                let new = volume.new_files.node(FileType::Regular, self.permissions);
                engine.begin(Caller::ADMIN).create_for(dir, &name, &new, volume.new_files.umask)
            }
        }
    }
}

/// The end of the path of a file that must not be there.
fn new_end(engine: &Engine, path: &[u8]) -> Result<PathEnd> {
    if path.ends_with(b"/") {
        return Err(Error::IsDirectory);
    }
    let (dir, name) = engine.resolve_parent(path)?;
    match engine.find_entry(dir, name)? {
        Some(_) => Err(Error::Exists),
        None => Ok(PathEnd::Vacant { dir, name: name.to_vec() }),
    }
}

/// An open regular file of a [`Volume`]: read and written at a position ([`Read`], [`Write`], [`Seek`]), or anywhere
/// ([`read_at`](Self::read_at), [`write_at`](Self::write_at)).
///
/// The file can lose its name and stays until it is dropped. It borrows its volume, so no file is open when the volume is
/// closed. Written data is durable after [`sync_all`](Self::sync_all), [`Volume::sync`] or [`Volume::close`].
///
/// The implementations of [`Read`], [`Write`] and [`Seek`] return the [`Error`] inside an [`io::Error`].
#[derive(Debug)]
pub struct File<'v> {
    handle: Handle<'v>,
    options: FileOptions,
    /// Position of the next read or write, in bytes.
    position: u64,
}

impl File<'_> {
    /// Facts about the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Io`] if the inode is damaged or cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(self.handle.volume.engine()?.stat(self.handle.ino)?.into())
    }

    /// Reads from `offset` on, in bytes, at most up to the end of the file. Returns the number of bytes, which is less than
    /// the length of `buf` only at the end. The position stays.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if the file is not open for reading, [`Error::NoKey`] if it is encrypted,
    /// [`Error::Corrupt`] and [`Error::Io`] with the place if a part of it is damaged or cannot be read.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if !self.options.read {
            return Err(Error::NotPermitted);
        }
        self.handle.volume.engine()?.read(self.handle.ino, offset, buf)
    }

    /// Writes all of `data` at `offset`, in bytes; the file grows where the data reaches past its end, and a gap reads as
    /// zeroes. A file that is open to append gets the data at its end. The position stays.
    ///
    /// # Errors
    /// - [`Error::NotPermitted`] if the file is not open for writing, is immutable, or can only be appended to.
    /// - [`Error::NoSpace`], [`Error::Quota`], [`Error::FileTooLarge`]; nothing is written then.
    /// - [`Error::ReadOnly`] if the volume refuses changes, since a write has failed.
    /// - [`Error::Corrupt`] and [`Error::Io`] if metadata is damaged, or the device fails.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.put(data, offset).map(drop)
    }

    /// Writes, and gives the offset behind the data.
    fn put(&self, data: &[u8], offset: u64) -> Result<u64> {
        let mut engine = self.engine_to_write()?;
        let offset = match self.options.append {
            true => engine.stat(self.handle.ino)?.size,
            false => offset,
        };
        engine.begin(Caller::ADMIN).write(self.handle.ino, offset, data)?;
        Ok(offset + data.len() as u64)
    }

    /// Sets the size in bytes. What lies behind is gone; what is added reads as zeroes and takes no space.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.engine_to_write()?.begin(Caller::ADMIN).truncate(self.handle.ino, bytes)
    }

    /// Makes the content and the attributes of the file durable, and the name of a new one.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the volume refuses changes, [`Error::Io`] if the device fails, [`Error::NoSpace`],
    /// [`Error::Corrupt`] if damage is in the way.
    pub fn sync_all(&self) -> Result<()> {
        self.handle.volume.engine_mut()?.fsync(self.handle.ino, SyncScope::Everything)
    }

    /// Makes the content of the file durable, and those attributes without which it cannot be read back.
    ///
    /// # Errors
    /// Those of [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> Result<()> {
        self.handle.volume.engine_mut()?.fsync(self.handle.ino, SyncScope::Data)
    }

    /// Changes the permissions: the lowest twelve bits of the mode.
    ///
    /// # Errors
    /// Those of [`Volume::set_permissions`], but for the path.
    pub fn set_permissions(&self, permissions: u16) -> Result<()> {
        let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
        self.handle.volume.engine_mut()?.begin(Caller::ADMIN).set_attr(self.handle.ino, &set)
    }

    /// Changes the time of the last change of the content.
    ///
    /// # Errors
    /// Those of [`Volume::set_permissions`], but for the path.
    pub fn set_modified(&self, time: impl Into<Time>) -> Result<()> {
        let set = SetAttr { mtime: Some(time.into()), ..SetAttr::default() };
        self.handle.volume.engine_mut()?.begin(Caller::ADMIN).set_attr(self.handle.ino, &set)
    }

    fn engine_to_write(&self) -> Result<impl std::ops::DerefMut<Target = Engine> + '_> {
        if !self.options.write && !self.options.append {
            return Err(Error::NotPermitted);
        }
        self.handle.volume.engine_mut()
    }
}

impl Read for File<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(buf, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Write for File<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.position = self.put(data, self.position)?;
        Ok(data.len())
    }

    /// Has no effect: data is not kept back. [`File::sync_all`] makes it durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.len().checked_add_signed(by),
        };
        let outside = || Error::Invalid("the position is outside the range of a file".into());
        self.position = position.ok_or_else(outside)?;
        Ok(self.position)
    }
}

impl super::open_options::NewFiles {
    /// A node that is made, before the umask.
    pub(super) fn node(self, kind: FileType, permissions: u16) -> NewNode {
        let mode = kind.mode_bits() | permissions & 0o7777;
        NewNode { uid: self.uid, gid: self.gid, ..NewNode::new(mode) }
    }
}
