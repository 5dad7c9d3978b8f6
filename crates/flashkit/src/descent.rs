//! A walk of a volume's tree that reports damage and continues after it.

use std::fmt;

use anyhow::{Result, bail};
use f2fs::{
    engine::{Engine, Stat},
    format::FileType,
    units::Ino,
    walk::{Step, Walk},
};

use crate::{notice::notice, render};

/// A name of the tree.
#[derive(Debug)]
pub struct Node {
    /// Path from the root of the volume, with a leading slash.
    pub path: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// The facts of the inode.
    pub stat: Stat,
    /// Number of directories between the start and this name, the start included.
    pub depth: usize,
}

impl Node {
    /// Returns true if it is a directory.
    pub fn is_directory(&self) -> bool {
        self.stat.kind == FileType::Directory
    }
}

/// One step of a [`Descent`].
#[derive(Debug)]
pub enum Visit {
    /// A name, before everything below it.
    Entered(Node),
    /// A directory, after everything below it; its depth.
    Left(usize),
}

/// The tree below a directory or of another file, the names of each directory in byte order.
pub struct Descent<'v> {
    volume: &'v Engine,
    /// Path of the start without a slash at its end.
    base: Vec<u8>,
    /// Names below more directories than this are not visited.
    depth_max: usize,
    walk: Walk,
    start: Option<Node>,
    /// The directory to enter next.
    next: Option<Ino>,
    /// Depths of directories that were left, the next one last.
    left: Vec<usize>,
    /// True once the walk below the start has ended.
    is_over: bool,
    losses: u64,
}

impl<'v> Descent<'v> {
    /// Starts at an inode, which has this path.
    ///
    /// # Errors
    /// The inode of the start cannot be read.
    pub fn new(volume: &'v Engine, start: Ino, path: &[u8], depth_max: usize) -> f2fs::Result<Descent<'v>> {
        let stat = volume.stat(start)?;
        let base = path.strip_suffix(b"/").unwrap_or(path).to_vec();
        let path = if base.is_empty() { b"/".to_vec() } else { base.clone() };
        Ok(Descent {
            volume,
            base,
            depth_max,
            walk: Walk::default(),
            start: Some(Node { path, ino: start, stat, depth: 0 }),
            next: None,
            left: Vec::new(),
            is_over: false,
            losses: 0,
        })
    }

    /// Ends the walk.
    ///
    /// # Errors
    /// Parts of the tree could not be read. Each has been reported.
    pub fn finish(self) -> Result<()> {
        match self.losses {
            0 => Ok(()),
            losses => bail!("{} could not be read", render::count(losses, "thing")),
        }
    }

    /// Reports damage at the last step of the walk.
    pub fn lose(&mut self, error: impl fmt::Display) {
        self.losses += 1;
        notice!("flashkit: {}: {error}", render::name(&self.path()));
    }

    fn path(&self) -> Vec<u8> {
        match self.walk.path() {
            b"" if self.base.is_empty() => b"/".to_vec(),
            b"" => self.base.clone(),
            path => [&*self.base, b"/", path].concat(),
        }
    }

    fn visit(&mut self, node: Node) -> Visit {
        if node.is_directory() {
            match node.depth < self.depth_max {
                true => self.next = Some(node.ino),
                false => self.left.push(node.depth),
            }
        }
        Visit::Entered(node)
    }

    /// Enters the directory of the last step.
    fn enter(&mut self, dir: Ino) {
        let depth = self.walk.lasts().count();
        match self.walk.enter(self.volume, dir) {
            Ok(damage) => damage.into_iter().for_each(|error| self.lose(error)),
            Err(error) => {
                self.lose(error);
                self.left.push(depth);
            }
        }
    }
}

impl Iterator for Descent<'_> {
    type Item = Visit;

    fn next(&mut self) -> Option<Visit> {
        if let Some(start) = self.start.take() {
            self.is_over = !start.is_directory();
            return Some(self.visit(start));
        }
        if let Some(dir) = self.next.take() {
            self.enter(dir);
        }
        loop {
            if let Some(depth) = self.left.pop() {
                self.is_over |= depth == 0;
                return Some(Visit::Left(depth));
            }
            match self.walk.next() {
                Some(Step::Name(found)) => match self.volume.stat(found.ino) {
                    Ok(stat) => {
                        let depth = self.walk.lasts().count();
                        let node = Node { path: self.path(), ino: found.ino, stat, depth };
                        return Some(self.visit(node));
                    }
                    Err(error) => self.lose(error),
                },
                Some(Step::Left(_)) => return Some(Visit::Left(self.walk.lasts().count())),
                // The walk does not report the end of its start.
                None if self.is_over => return None,
                None => self.left.push(0),
            }
        }
    }
}
