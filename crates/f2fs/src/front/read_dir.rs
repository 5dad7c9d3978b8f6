//! The entries of a directory.

use std::collections::VecDeque;

use super::{Metadata, Volume, volume::Handle};
use crate::{Result, engine, engine::FinalSymlink, format::FileType, units::Ino};

/// The entries of a directory, without `.` and `..`, in the order of the directory; made by [`Volume::read_dir`].
///
/// Damage is an error in the place of the entries that it costs; the iteration goes on behind it. The directory can change
/// meanwhile: an entry that stays is given once.
#[derive(Debug)]
pub struct ReadDir<'v> {
    handle: Handle<'v>,
    /// Entries that have been read and not given.
    ready: VecDeque<Result<engine::DirEntry>>,
    /// Position of the next entry to read; `None` at the end.
    cookie: Option<u64>,
    /// Blocks that have been read.
    seen: engine::SeenBlocks,
}

impl Volume {
    /// Lists a directory.
    ///
    /// # Errors
    /// [`Error::NotDirectory`](crate::Error::NotDirectory), and those of [`metadata`](Self::metadata). Damage of the
    /// directory's content is told by the iteration.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<ReadDir<'_>> {
        let mut engine = self.engine_mut()?;
        let ino = engine.resolve(path.as_ref(), FinalSymlink::Follow)?;
        // Refuses what is no directory.
        engine.entries(ino, 0)?;
        let handle = Handle::new(self, &mut engine, ino);
        Ok(ReadDir { handle, ready: VecDeque::new(), cookie: Some(0), seen: engine::SeenBlocks::default() })
    }
}

impl<'v> Iterator for ReadDir<'v> {
    type Item = Result<DirEntry<'v>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.ready.pop_front() {
                Some(Ok(entry)) if matches!(&*entry.name, b"." | b"..") => {}
                Some(Ok(entry)) => return Some(Ok(DirEntry { volume: self.handle.volume, entry })),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    let cookie = self.cookie.take()?;
                    let (volume, ino, seen) = (self.handle.volume, self.handle.ino, &mut self.seen);
                    let next = volume.engine().and_then(|engine| engine.next_entries(ino, cookie, seen));
                    match next {
                        Ok(None) => return None,
                        Ok(Some((entries, after))) => (self.ready, self.cookie) = (entries, Some(after)),
                        Err(error) => return Some(Err(error)),
                    }
                }
            }
        }
    }
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub struct DirEntry<'v> {
    volume: &'v Volume,
    entry: engine::DirEntry,
}

impl DirEntry<'_> {
    /// The name, which may be any bytes but a slash and zero. [`printable::name`](crate::printable::name) makes text of it
    /// for people. In an encrypted directory without its key it is the form that Linux shows then.
    #[must_use]
    pub fn file_name(&self) -> &[u8] {
        &self.entry.name
    }

    /// Number of the inode.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.entry.ino
    }

    /// The kind of the file; of a symbolic link, the link's own.
    ///
    /// # Errors
    /// Those of [`metadata`](Self::metadata), if the entry does not say the kind.
    pub fn file_type(&self) -> Result<FileType> {
        self.entry.kind.map_or_else(|| Ok(self.metadata()?.file_type()), Ok)
    }

    /// Facts about the file; of a symbolic link, the link's own.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) and [`Error::Io`](crate::Error::Io) if the inode is damaged or cannot be
    /// read; [`Error::NotFound`](crate::Error::NotFound) if it was removed since the directory was read.
    pub fn metadata(&self) -> Result<Metadata> {
        let engine = self.volume.engine()?;
        match engine.stat(self.entry.ino) {
            Err(_) if !engine.is_inode(self.entry.ino)? => Err(crate::Error::NotFound),
            stat => Ok(stat?.into()),
        }
    }
}
