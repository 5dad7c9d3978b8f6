//! The directories of a tree, found by their paths. Each stores its own name only, so a deep path costs as
//! much memory as it has bytes.

use std::collections::HashMap;

use f2fs::{Error, Result, walk::DEPTH_MAX};

use crate::path::components;

/// A directory of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DirectoryId(usize);

impl DirectoryId {
    /// The root of the tree.
    pub(crate) const ROOT: DirectoryId = DirectoryId(0);
}

/// Directories with a value each.
#[derive(Debug)]
pub(crate) struct Directories<T>(Vec<Node<T>>);

#[derive(Debug)]
struct Node<T> {
    value: T,
    /// Number of directories above it.
    depth: usize,
    children: HashMap<Box<[u8]>, usize>,
}

impl<T> Directories<T> {
    /// Makes a tree of the root alone.
    pub(crate) fn new(root: T) -> Directories<T> {
        Directories(vec![Node { value: root, depth: 0, children: HashMap::new() }])
    }

    /// Finds the directory `name` in a directory.
    pub(crate) fn child(&self, parent: DirectoryId, name: &[u8]) -> Option<DirectoryId> {
        self.0[parent.0].children.get(name).copied().map(DirectoryId)
    }

    /// Finds the directory at a path.
    pub(crate) fn find(&self, path: &[u8]) -> Option<DirectoryId> {
        components(path).try_fold(DirectoryId::ROOT, |parent, name| self.child(parent, name))
    }

    /// Returns the directories on a path, from the root as far as they exist.
    pub(crate) fn chain(&self, path: &[u8]) -> Vec<DirectoryId> {
        let mut chain = vec![DirectoryId::ROOT];
        for name in components(path) {
            let last = *chain.last().expect("it begins with the root");
            let Some(child) = self.child(last, name) else { break };
            chain.push(child);
        }
        chain
    }

    /// Returns true if a directory is one of the [`chain`](Self::chain).
    pub(crate) fn is_on(&self, directory: DirectoryId, chain: &[DirectoryId]) -> bool {
        chain.get(self.0[directory.0].depth) == Some(&directory)
    }

    /// Enters the directory `name` into a directory, or gives an existing one a new value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it would lie too deep.
    pub(crate) fn insert(&mut self, parent: DirectoryId, name: &[u8], value: T) -> Result<DirectoryId> {
        if let Some(there) = self.child(parent, name) {
            self.0[there.0].value = value;
            return Ok(there);
        }
        let depth = self.0[parent.0].depth + 1;
        if depth > DEPTH_MAX {
            return Err(Error::Invalid(format!("more than {DEPTH_MAX} nested directories").into()));
        }
        let new = self.0.len();
        self.0.push(Node { value, depth, children: HashMap::new() });
        self.0[parent.0].children.insert(name.into(), new);
        Ok(DirectoryId(new))
    }

    /// Takes the directory `name` out of a directory, and with it everything below.
    pub(crate) fn remove(&mut self, parent: DirectoryId, name: &[u8]) {
        self.0[parent.0].children.remove(name);
    }

    /// Takes those directories out of a directory whose value is not to be kept. Looks at each.
    pub(crate) fn retain(&mut self, parent: DirectoryId, keep: impl Fn(&T) -> bool) {
        let mut children = std::mem::take(&mut self.0[parent.0].children);
        children.retain(|_, child| keep(&self.0[*child].value));
        self.0[parent.0].children = children;
    }

    pub(crate) fn get(&self, directory: DirectoryId) -> &T {
        &self.0[directory.0].value
    }

    pub(crate) fn get_mut(&mut self, directory: DirectoryId) -> &mut T {
        &mut self.0[directory.0].value
    }

    /// All values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|node| &node.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_found_by_their_paths() {
        let mut all = Directories::new(0);
        let a = all.insert(DirectoryId::ROOT, b"a", 1).unwrap();
        let b = all.insert(a, b"b", 2).unwrap();
        assert_eq!(
            (all.find(b""), all.find(b"a/b"), all.find(b"b")),
            (Some(DirectoryId::ROOT), Some(b), None)
        );
        assert_eq!(all.insert(a, b"b", 3).unwrap(), b);
        assert_eq!(all.values().copied().collect::<Vec<_>>(), [0, 1, 3]);
        let chain = all.chain(b"a/c/b");
        assert_eq!(chain, [DirectoryId::ROOT, a]);
        assert!(all.is_on(a, &chain) && !all.is_on(b, &chain));
    }

    #[test]
    fn a_directory_is_taken_out_with_everything_below() {
        let mut all = Directories::new(0);
        let a = all.insert(DirectoryId::ROOT, b"a", 1).unwrap();
        all.insert(a, b"b", 2).unwrap();
        all.remove(DirectoryId::ROOT, b"a");
        assert_eq!((all.find(b"a"), all.find(b"a/b")), (None, None));
        let again = all.insert(DirectoryId::ROOT, b"a", 3).unwrap();
        assert!(again != a && all.child(again, b"b").is_none());
        all.insert(DirectoryId::ROOT, b"A", 3).unwrap();
        let c = all.insert(DirectoryId::ROOT, b"c", 4).unwrap();
        all.retain(DirectoryId::ROOT, |value| *value != 3);
        assert_eq!((all.find(b"a"), all.find(b"A"), all.find(b"c")), (None, None, Some(c)));
    }

    #[test]
    fn the_depth_is_limited() {
        let mut all = Directories::new(());
        let mut last = DirectoryId::ROOT;
        for _ in 0..DEPTH_MAX {
            last = all.insert(last, b"d", ()).unwrap();
        }
        assert!(matches!(all.insert(last, b"d", ()), Err(Error::Invalid(_))));
    }
}
