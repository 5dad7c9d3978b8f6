//! An inode and everything below it, for verbs that work on whole trees.

use std::collections::HashSet;

use anyhow::{Context, Result};
use f2fs::{
    Volume,
    format::FileType,
    tree::{Found, Step, Walk},
    units::Ino,
};

use crate::render;

/// An inode and all below it, each once, parents before children. It holds no volume, so that the caller can change one
/// on the way.
pub struct Below {
    /// The first, until it was given.
    top: Option<Ino>,
    /// The directory whose entry led to the first; none for the root.
    parent: Option<Ino>,
    /// Path of the first, for messages.
    base: Vec<u8>,
    is_recursive: bool,
    walk: Walk,
    /// Inodes that may have further names.
    seen: HashSet<Ino>,
}

impl Below {
    /// The inode at a path and, where `is_recursive`, everything below it. `follow` is whether a symbolic link that the
    /// path ends with is followed.
    pub fn new(volume: &Volume, path: &[u8], follow: bool, is_recursive: bool) -> f2fs::Result<Below> {
        let (top, parent) = volume.resolve_with_parent(path, follow)?;
        let base = path.strip_suffix(b"/").unwrap_or(path).to_vec();
        Ok(Below { top: Some(top), parent, base, is_recursive, walk: Walk::default(), seen: HashSet::new() })
    }

    /// The next inode and its kind. Damage is an error, and so is a directory that is found where it does not belong.
    pub fn next(&mut self, volume: &Volume) -> Result<Option<(Ino, FileType)>> {
        if let Some(top) = self.top.take() {
            let kind = volume.stat(top).with_context(|| self.shown())?.kind;
            if kind == FileType::Directory && self.is_recursive {
                let entered = match self.parent {
                    Some(dir) => {
                        let found = Found { dir, name: Vec::new(), ino: top, kind: Some(kind) };
                        self.walk.enter_own(volume, &found)
                    }
                    None => self.walk.enter_whole(volume, top),
                };
                entered.with_context(|| self.shown())?;
            }
            return Ok(Some((top, kind)));
        }
        while let Some(step) = self.walk.next() {
            let Step::Name(found) = step else { continue };
            let stat = volume.stat(found.ino).with_context(|| self.shown())?;
            if stat.kind == FileType::Directory {
                self.walk.enter_own(volume, &found).with_context(|| self.shown())?;
            } else if stat.links > 1 && !self.seen.insert(found.ino) {
                continue;
            }
            return Ok(Some((found.ino, stat.kind)));
        }
        Ok(None)
    }

    /// Path of the last inode.
    pub fn path(&self) -> Vec<u8> {
        match self.walk.path() {
            b"" if self.base.is_empty() => b"/".to_vec(),
            b"" => self.base.clone(),
            path => [&*self.base, b"/", path].concat(),
        }
    }

    /// The same, for people.
    pub fn shown(&self) -> String {
        render::name(&self.path())
    }
}
