//! Everything below a directory.

use std::collections::VecDeque;

use super::{Metadata, Volume};
use crate::{
    Error, Result,
    engine::FinalSymlink,
    format::FileType,
    units::Ino,
    walk::{Step, Walk},
};

/// Everything below a directory, a directory before its contents and names in byte order; made by [`Volume::walk`].
///
/// The walk ends on every volume: each directory is entered once. A part that cannot be read is an [`Error::Lost`] with its
/// path, and the walk goes on after it.
pub struct WalkDir<'v> {
    volume: &'v Volume,
    walk: Walk,
    /// The directory that is entered next, if any: the start, or the last step.
    entering: Option<Ino>,
    /// Losses that have not been given yet.
    losses: VecDeque<Error>,
}

impl Volume {
    /// Walks through everything below a directory. Symbolic links are given and not followed.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], and those of [`metadata`](Self::metadata). Damage below is told by the iteration.
    pub fn walk(&self, path: impl AsRef<[u8]>) -> Result<WalkDir<'_>> {
        let engine = self.engine()?;
        let start = engine.resolve(path.as_ref(), FinalSymlink::Follow)?;
        match engine.stat(start)?.kind {
            FileType::Directory => {}
            _ => return Err(Error::NotDirectory),
        }
        Ok(WalkDir { volume: self, walk: Walk::default(), entering: Some(start), losses: VecDeque::new() })
    }
}

impl<'v> WalkDir<'v> {
    fn enter(&mut self, dir: Ino) {
        let walk = &mut self.walk;
        let damage = match self.volume.engine().and_then(|engine| walk.enter(&engine, dir)) {
            Ok(damage) => damage,
            Err(error) => vec![error],
        };
        let path = self.walk.path();
        self.losses.extend(damage.into_iter().map(|error| Error::lost(path, error)));
    }

    /// A name as an entry; a directory is entered with the next step.
    fn entry(&mut self, ino: Ino) -> Result<WalkEntry<'v>> {
        let stat = self.volume.engine()?.stat(ino).map_err(|error| Error::lost(self.walk.path(), error))?;
        self.entering = (stat.kind == FileType::Directory).then_some(ino);
        Ok(WalkEntry { volume: self.volume, path: self.walk.path().to_vec(), metadata: stat.into() })
    }
}

impl<'v> Iterator for WalkDir<'v> {
    type Item = Result<WalkEntry<'v>>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(dir) = self.entering.take() {
            self.enter(dir);
        }
        if let Some(loss) = self.losses.pop_front() {
            return Some(Err(loss));
        }
        loop {
            if let Step::Name(found) = self.walk.next()? {
                return Some(self.entry(found.ino));
            }
        }
    }
}

/// A file or directory that a [`WalkDir`] has come to.
#[derive(Debug, Clone)]
pub struct WalkEntry<'v> {
    volume: &'v Volume,
    path: Vec<u8>,
    metadata: Metadata,
}

impl WalkEntry<'_> {
    /// The path from the start of the walk, without a slash before it.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The last name of the path.
    #[must_use]
    pub fn file_name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// The kind of the file; of a symbolic link, the link's own.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.metadata.file_type()
    }

    /// Facts about the file; of a symbolic link, the link's own.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The target of a symbolic link, as it is stored.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything but a symbolic link; [`Error::Corrupt`] and [`Error::Io`] with the place.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        self.volume.engine()?.read_link(self.metadata.ino())
    }
}
