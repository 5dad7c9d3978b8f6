//! An inode and everything below it, for verbs that work on whole trees.

use std::collections::HashSet;

use anyhow::{Context, Result};
use f2fs::{
    engine::{Engine, FinalSymlink},
    format::FileType,
    units::Ino,
    walk::{Found, Step, Walk},
};

use crate::render;

/// Extent of an operation on a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// One inode.
    Single,
    /// An inode and everything below it.
    Recursive,
}

impl From<bool> for Depth {
    /// Converts the flag `-R`.
    fn from(is_recursive: bool) -> Depth {
        if is_recursive { Depth::Recursive } else { Depth::Single }
    }
}

/// An inode and everything below it, each once, parents before children. It holds no volume, so the caller
/// can change the volume between steps.
pub struct Below {
    /// The first inode, until it is returned.
    top: Option<Ino>,
    /// The directory that contains the first inode's entry; None for the root.
    parent: Option<Ino>,
    /// Path of the first inode, for messages.
    base: Vec<u8>,
    depth: Depth,
    walk: Walk,
    /// Visited inodes with several links.
    seen: HashSet<Ino>,
}

impl Below {
    /// Starts at the inode of a path.
    pub fn new(
        volume: &Engine,
        path: &[u8],
        link: FinalSymlink,
        depth: impl Into<Depth>,
    ) -> f2fs::Result<Below> {
        let (top, parent) = volume.resolve_with_parent(path, link)?;
        let base = path.strip_suffix(b"/").unwrap_or(path).to_vec();
        let depth = depth.into();
        Ok(Below { top: Some(top), parent, base, depth, walk: Walk::default(), seen: HashSet::new() })
    }

    /// Returns the next inode and its kind. Fails on damage, and on a directory whose `..` names another
    /// parent.
    pub fn next(&mut self, volume: &Engine) -> Result<Option<(Ino, FileType)>> {
        if let Some(top) = self.top.take() {
            let kind = volume.stat(top).with_context(|| self.shown())?.kind;
            if kind == FileType::Directory && self.depth == Depth::Recursive {
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

    /// Returns the path of the last inode.
    pub fn path(&self) -> Vec<u8> {
        match self.walk.path() {
            b"" if self.base.is_empty() => b"/".to_vec(),
            b"" => self.base.clone(),
            path => [&*self.base, b"/", path].concat(),
        }
    }

    /// Formats the path of the last inode for messages.
    pub fn shown(&self) -> String {
        render::name(&self.path())
    }
}
