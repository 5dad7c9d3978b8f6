//! Many paths in little memory.

/// Paths that share their directories: each directory is stored once if the paths come in the order of a walk. So the memory
/// is linear in the number of names, however deep they are.
#[derive(Debug, Default)]
pub struct PathTree {
    /// The names of all nodes, one after the other.
    names: Vec<u8>,
    nodes: Vec<Node>,
    /// The nodes on the last path, the first component first.
    last: Vec<usize>,
}

/// A component of a path.
#[derive(Debug)]
struct Node {
    /// The directory; `None` for the first component.
    parent: Option<usize>,
    /// End of the name in `names`. It starts at the end of the node before.
    end: usize,
}

/// A path of a [`PathTree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathId(usize);

impl PathTree {
    /// Stores a path, whose components are separated by `/`.
    pub fn insert(&mut self, path: &[u8]) -> PathId {
        let mut names = path.split(|byte| *byte == b'/').peekable();
        let mut shared = 0;
        while let (Some(name), Some(node)) = (names.peek(), self.last.get(shared)) {
            if self.name(*node) != *name {
                break;
            }
            shared += 1;
            names.next();
        }
        self.last.truncate(shared);
        for name in names {
            self.names.extend_from_slice(name);
            self.nodes.push(Node { parent: self.last.last().copied(), end: self.names.len() });
            self.last.push(self.nodes.len() - 1);
        }
        PathId(*self.last.last().expect("a path has a component, which may be empty"))
    }

    /// Returns a stored path.
    ///
    /// # Panics
    /// If `id` is of another tree: a bug of the caller.
    #[must_use]
    pub fn path(&self, id: PathId) -> Vec<u8> {
        let parent = |node: &usize| self.nodes[*node].parent;
        let mut names: Vec<&[u8]> =
            std::iter::successors(Some(id.0), parent).map(|node| self.name(node)).collect();
        names.reverse();
        names.join(&b'/')
    }

    /// Returns the memory of all paths in bytes, without spare capacity.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.names.len() + size_of_val(&*self.nodes) + size_of_val(&*self.last)
    }

    fn name(&self, node: usize) -> &[u8] {
        let start = node.checked_sub(1).map_or(0, |before| self.nodes[before].end);
        &self.names[start..self.nodes[node].end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back_as_they_were() {
        let paths: [&[u8]; 10] =
            [b"", b"/", b"/a", b"/a/b", b"/a/b/c\xff", b"/a/bc", b"a", b"a//b", b"a/", b"/a/b"];
        let mut tree = PathTree::default();
        let ids = paths.map(|path| tree.insert(path));
        assert_eq!(ids.map(|id| tree.path(id)), paths.map(<[u8]>::to_vec));
        assert_eq!(tree.insert(b"/a/b"), ids[9], "the last path is stored once");
    }

    /// Full paths of these files have 512 MB.
    #[test]
    fn a_directory_is_stored_once_however_many_files_it_has() {
        const LEVELS: usize = 1000;
        const FILES: usize = 2000;
        let mut tree = PathTree::default();
        let mut path = Vec::new();
        for _ in 0..LEVELS {
            path.extend([b'd'; 255]);
            tree.insert(&path);
            path.push(b'/');
        }
        let dir = path.len();
        let mut ids = Vec::new();
        for n in 0..FILES {
            path.truncate(dir);
            path.extend(n.to_string().as_bytes());
            ids.push(tree.insert(&path));
        }
        assert!(tree.bytes() < LEVELS * 300 + FILES * 40, "{} bytes", tree.bytes());
        assert_eq!(tree.path(ids[FILES - 1]), path);
    }
}
