//! A tree in memory, and its differences from another tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use f2fs::Result;
use f2fs_tree::{Entry, Kind, Loss, Metadata, Sink};

use crate::BLOCK;

pub type Path = Vec<u8>;

/// The part of the tree in a block.
#[derive(Debug, Clone, Default)]
pub struct Holds {
    /// These paths and everything below them.
    pub below: BTreeSet<Path>,
    /// Unexpected names may appear in these directories.
    pub new_names: BTreeSet<Path>,
    /// Blocks of the content of these files.
    pub content: Vec<(Path, Range<u64>)>,
    /// Attributes of these paths, except the named ones.
    pub xattrs: Vec<(Path, BTreeSet<Vec<u8>>)>,
}

impl Holds {
    pub fn add(&mut self, other: &Holds) {
        self.below.extend(other.below.iter().cloned());
        self.new_names.extend(other.new_names.iter().cloned());
        self.content.extend(other.content.iter().cloned());
        self.xattrs.extend(other.xattrs.iter().cloned());
    }

    pub fn has_all_of(&self, path: &[u8]) -> bool {
        ancestors(path).any(|above| self.below.contains(above))
    }

    /// Returns true if the loss of a path may be reported.
    pub fn touches(&self, path: &[u8]) -> bool {
        self.has_all_of(path)
            || self.new_names.contains(path)
            || ancestors(path).skip(1).any(|above| self.new_names.contains(above))
            || self.content.iter().any(|(of, _)| of == path)
            || self.xattrs.iter().any(|(of, _)| of == path)
    }
}

/// Returns a path and the paths of its parent directories.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |path| match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => Some(&path[..slash]),
        None => (!path.is_empty()).then_some(&path[..0]),
    })
}

/// A tree in memory.
#[derive(Default)]
pub struct Tree {
    pub nodes: BTreeMap<Path, Node>,
    last: Path,
}

pub struct Node {
    kind: Kind,
    meta: Metadata,
    /// Blocks that are not all zeroes.
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Sink for Tree {
    fn entry(&mut self, entry: &Entry) -> Result<bool> {
        let kind = match &entry.kind {
            Kind::File { size, .. } => Kind::File { size: *size, data: None },
            kind => kind.clone(),
        };
        let node = Node { kind, meta: entry.meta.clone(), blocks: BTreeMap::new() };
        self.last = entry.path.clone();
        assert!(self.nodes.insert(entry.path.clone(), node).is_none(), "{:?} comes twice", entry.path);
        if let Some(parent) = ancestors(&entry.path).nth(1) {
            assert_eq!(self.nodes.get(parent).map(|node| &node.kind), Some(&Kind::Directory));
        }
        Ok(true)
    }

    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let node = self.nodes.get_mut(&self.last).expect("the last entry");
        let mut at = offset;
        while at < offset + bytes.len() as u64 {
            let end = (at / BLOCK * BLOCK + BLOCK).min(offset + bytes.len() as u64);
            let part = &bytes[(at - offset) as usize..(end - offset) as usize];
            if part.iter().any(|byte| *byte != 0) {
                let block = node.blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
                block[(at % BLOCK) as usize..][..part.len()].copy_from_slice(part);
            }
            at = end;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn losses(&mut self) -> Vec<Loss> {
        Vec::new()
    }
}

impl Tree {
    /// Returns a node; for a hard link, the node of its first name.
    fn get(&self, path: &[u8]) -> Option<&Node> {
        let node = self.nodes.get(path)?;
        match &node.kind {
            Kind::HardLink { to } => self.nodes.get(to),
            _ => Some(node),
        }
    }

    /// Returns the differences of this tree from another that `holds` does not explain.
    pub fn unexplained(&self, after: &Tree, holds: &Holds) -> Vec<String> {
        let mut found = Vec::new();
        for path in self.nodes.keys().filter(|path| !holds.has_all_of(path)) {
            let name = String::from_utf8_lossy(path);
            match (self.get(path), after.get(path)) {
                (Some(was), Some(is)) => {
                    found
                        .extend(node_differences(path, was, is, holds).map(|what| format!("{name}: {what}")));
                }
                _ => found.push(format!("{name}: is missing")),
            }
        }
        for path in after.nodes.keys().filter(|path| !self.nodes.contains_key(*path)) {
            let is_known = holds.has_all_of(path)
                || ancestors(path).any(|own| {
                    let parent = ancestors(own).nth(1);
                    !self.nodes.contains_key(own) && parent.is_some_and(|dir| holds.new_names.contains(dir))
                });
            if !is_known {
                found.push(format!("{}: is new", String::from_utf8_lossy(path)));
            }
        }
        found
    }

    pub fn is_same(&self, after: &Tree) -> bool {
        self.unexplained(after, &Holds::default()).is_empty()
    }
}

fn node_differences<'a>(
    path: &'a [u8],
    was: &'a Node,
    is: &'a Node,
    holds: &'a Holds,
) -> impl Iterator<Item = String> + 'a {
    let kept = holds.xattrs.iter().find(|(of, _)| of == path).map(|(_, kept)| kept);
    let bare = |node: &Node| {
        let mut meta = node.meta.clone();
        meta.xattrs.retain(|xattr| kept.is_none_or(|kept| kept.contains(&xattr.name)));
        meta
    };
    let kind = (was.kind != is.kind).then(|| format!("{:?} was {:?}", is.kind, was.kind));
    let meta = (bare(was) != bare(is)).then(|| format!("{:?} was {:?}", bare(is), bare(was)));
    let numbers: BTreeSet<u64> = was.blocks.keys().chain(is.blocks.keys()).copied().collect();
    let changed = numbers.into_iter().filter(|number| was.blocks.get(number) != is.blocks.get(number));
    let content = changed
        .filter(move |number| !holds.content.iter().any(|(of, range)| of == path && range.contains(number)))
        .map(|number| format!("block {number} differs"));
    kind.into_iter().chain(meta).chain(content)
}
