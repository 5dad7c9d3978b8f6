//! Symbolic links and path lookup.

use super::{Names, hidden_name};
use crate::{
    Error, Place, Result,
    format::{FileType, inode::advise},
    units::Ino,
};

/// Maximum number of symbolic links followed in one path lookup, as in Linux.
const FOLLOW_MAX: u32 = 40;

/// The end of a path on the way to a file that is opened or made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathEnd {
    /// The inode that the path leads to.
    Inode(Ino),
    /// The directory and the name under which the file can be made.
    Vacant {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
}

/// Treatment of a symbolic link at the end of a path. Links before the end are always followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalSymlink {
    /// The path leads to the target of the link.
    Follow,
    /// The path leads to the link itself.
    NoFollow,
}

impl Names {
    /// Returns the target of a symbolic link.
    pub(crate) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.nodes().inode(ino)?;
        if inode.file_type() != FileType::Symlink {
            return Err(Error::Invalid("not a symbolic link".into()));
        }
        let bad = |what: String| Error::corrupt(Place::Inode(ino), what);
        let size = inode.head().size.get();
        if size == 0 || size > self.superblock().block_size.bytes() as u64 {
            return Err(bad(format!("a symbolic link of {size} bytes")));
        }
        let mut target = vec![0; size as usize];
        self.files.read_content(&inode, 0, &mut target)?;
        if inode.has_advise(advise::ENCRYPT) {
            // An encrypted target begins with its length in two bytes, which is redundant with the size.
            let (length, rest) = target
                .split_first_chunk()
                .ok_or_else(|| bad("an encrypted symbolic link of 1 byte".into()))?;
            let length = usize::from(u16::from_le_bytes(*length));
            let name = rest.get(..length).filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| bad(format!("an encrypted target of {length} bytes in {size}")))?;
            let shown = match self.files.cipher(&inode)? {
                Some(cipher) => cipher.decrypt_name(name),
                None => hidden_name::encode(name, 0),
            };
            return shown.ok_or_else(|| bad(format!("an encrypted target of {length} bytes")));
        }
        // Linux shows the target only up to the first zero byte.
        let end = target.iter().position(|byte| *byte == 0).unwrap_or(target.len());
        target.truncate(end);
        if target.is_empty() { Err(bad("a symbolic link without target".into())) } else { Ok(target) }
    }

    /// Looks up the inode at a path from the root.
    pub(crate) fn resolve(&self, path: &[u8], link: FinalSymlink) -> Result<Ino> {
        self.resolve_from(self.superblock().root_ino, path, link)
    }

    /// Like [`resolve`](Self::resolve), but starts at a directory.
    pub(crate) fn resolve_from(&self, dir: Ino, path: &[u8], link: FinalSymlink) -> Result<Ino> {
        Ok(self.find(dir, path, link)?.0)
    }

    /// Like [`resolve`](Self::resolve), but also returns the directory whose entry led to the inode; `None` for the
    /// root and after `..`.
    pub(crate) fn resolve_with_parent(&self, path: &[u8], link: FinalSymlink) -> Result<(Ino, Option<Ino>)> {
        self.find(self.superblock().root_ino, path, link)
    }

    /// Resolves the directory that the last name of a path is in, or is to be in, and gives it with that name.
    pub(crate) fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(Ino, &'p [u8])> {
        self.resolve_parent_from(self.superblock().root_ino, path)
    }

    fn resolve_parent_from<'p>(&self, dir: Ino, path: &'p [u8]) -> Result<(Ino, &'p [u8])> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let name = path[..end].rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if name.is_empty() {
            return Err(Error::Invalid("the root directory has no name".into()));
        }
        Ok((self.resolve_from(dir, &path[..end - name.len()], FinalSymlink::Follow)?, name))
    }

    /// Resolves an entry that is to be removed, renamed or linked: gives its directory, its name, its inode and the
    /// kind of that.
    pub(crate) fn resolve_entry<'p>(&self, path: &'p [u8]) -> Result<(Ino, &'p [u8], Ino, FileType)> {
        let (dir, name) = self.resolve_parent(path)?;
        let ino = self.lookup(dir, name)?;
        let kind = self.nodes().inode(ino)?.file_type();
        match path.ends_with(b"/") && kind != FileType::Directory {
            true => Err(Error::NotDirectory),
            false => Ok((dir, name, ino, kind)),
        }
    }

    /// Resolves a path for a file that is made where it is missing, as open(2) with `O_CREAT` does: a symbolic link
    /// whose target is missing leads to the place of the target.
    pub(crate) fn resolve_to_create(&self, path: &[u8]) -> Result<PathEnd> {
        let (mut from, mut path) = (self.superblock().root_ino, path.to_vec());
        for _ in 0..=FOLLOW_MAX {
            match self.resolve_from(from, &path, FinalSymlink::Follow) {
                Ok(ino) => return Ok(PathEnd::Inode(ino)),
                Err(Error::NotFound) if path.ends_with(b"/") => return Err(Error::IsDirectory),
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
            let (dir, name) = self.resolve_parent_from(from, &path)?;
            let Some(link) = self.find_entry(dir, name)? else {
                return Ok(PathEnd::Vacant { dir, name: name.to_vec() });
            };
            (from, path) = (dir, self.read_link(link.ino)?);
        }
        Err(Error::TooManySymlinks)
    }

    fn find(&self, dir: Ino, path: &[u8], link: FinalSymlink) -> Result<(Ino, Option<Ino>)> {
        let root = self.superblock().root_ino;
        let mut at = if path.first() == Some(&b'/') { root } else { dir };
        let mut parent = None;
        // The components still to be walked, last one first.
        let mut rest: Vec<Vec<u8>> = components(path).map(<[u8]>::to_vec).rev().collect();
        let mut followed = 0;
        while let Some(name) = rest.pop() {
            let found = match &*name {
                b"." | b".." if !self.nodes().inode(at)?.is_directory() => return Err(Error::NotDirectory),
                b"." => at,
                b".." if at == root => root,
                name => self.lookup(at, name)?,
            };
            let wanted = link == FinalSymlink::Follow || !rest.is_empty();
            if self.nodes().inode(found)?.file_type() == FileType::Symlink && wanted {
                followed += 1;
                if followed > FOLLOW_MAX {
                    return Err(Error::TooManySymlinks);
                }
                let target = self.read_link(found)?;
                if target.first() == Some(&b'/') {
                    (at, parent) = (root, None);
                }
                rest.extend(components(&target).map(<[u8]>::to_vec).rev());
            } else {
                parent = match &*name {
                    b"." => parent,
                    b".." => None,
                    _ => Some(at),
                };
                at = found;
            }
        }
        Ok((at, parent))
    }
}

/// The components of a path. A trailing slash yields a final `.`: a symbolic link before it is followed, and
/// anything but a directory is refused.
fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.chain(path.ends_with(b"/").then_some(&b"."[..]))
}
