//! Symbolic links, and paths.

use super::{Volume, hidden_name};
use crate::{
    Error, Place, Result,
    format::{FileType, inode::advise},
    units::Ino,
};

/// Links that are followed on one path, as Linux does.
const FOLLOW_MAX: u32 = 40;

impl Volume {
    /// The target of a symbolic link. Without the key an encrypted target is shown as Linux shows it, encoded.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.file_type() != FileType::Symlink {
            return Err(Error::Invalid("not a symbolic link".into()));
        }
        let bad = |what: String| Error::corrupt(Place::Inode(ino), what);
        let size = inode.head().size.get();
        if size == 0 || size > self.superblock().block_size.bytes() as u64 {
            return Err(bad(format!("a symbolic link of {size} bytes")));
        }
        let mut target = vec![0; size as usize];
        self.read_content(&inode, 0, &mut target)?;
        if inode.has_advise(advise::ENCRYPT) {
            // A length of two bytes comes first, and is redundant with the size.
            let (length, rest) =
                target.split_first_chunk().ok_or_else(|| bad("an encrypted link of 1 byte".into()))?;
            let length = usize::from(u16::from_le_bytes(*length));
            let name = rest.get(..length).filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| bad(format!("an encrypted target of {length} bytes in {size}")))?;
            return hidden_name::encode(name, 0)
                .ok_or_else(|| bad(format!("an encrypted target of {length} bytes")));
        }
        // Linux shows the target up to a zero, should there be one.
        let end = target.iter().position(|byte| *byte == 0).unwrap_or(target.len());
        target.truncate(end);
        if target.is_empty() { Err(bad("a symbolic link without target".into())) } else { Ok(target) }
    }

    /// The inode at a path, from the root. `follow` is whether a symbolic link at its end is followed; those on
    /// the way always are, within the volume.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Ino> {
        self.resolve_from(self.superblock().root_ino, path, follow)
    }

    /// As [`resolve`](Self::resolve), from a directory. A path that starts with a slash starts at the root.
    pub fn resolve_from(&self, dir: Ino, path: &[u8], follow: bool) -> Result<Ino> {
        Ok(self.find(dir, path, follow)?.0)
    }

    /// As [`resolve`](Self::resolve); with the directory whose entry led there, which is none for the root and behind
    /// `..`.
    pub fn resolve_with_parent(&self, path: &[u8], follow: bool) -> Result<(Ino, Option<Ino>)> {
        self.find(self.superblock().root_ino, path, follow)
    }

    fn find(&self, dir: Ino, path: &[u8], follow: bool) -> Result<(Ino, Option<Ino>)> {
        let root = self.superblock().root_ino;
        let mut at = if path.first() == Some(&b'/') { root } else { dir };
        let mut parent = None;
        // What is still to be walked, last component first.
        let mut rest: Vec<Vec<u8>> = components(path).map(<[u8]>::to_vec).rev().collect();
        let mut followed = 0;
        while let Some(name) = rest.pop() {
            let found = match &*name {
                b"." | b".." if !self.inode(at)?.is_directory() => return Err(Error::NotDirectory),
                b"." => at,
                b".." if at == root => root,
                name => self.lookup(at, name)?,
            };
            let wanted = follow || !rest.is_empty();
            if self.inode(found)?.file_type() == FileType::Symlink && wanted {
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

/// The names of a path. A slash at its end stands for the directory itself, as a dot does: so a link before it is followed,
/// and what is no directory is refused.
fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.chain(path.ends_with(b"/").then_some(&b"."[..]))
}
