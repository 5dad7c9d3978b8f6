//! A tree of many small files, described by a seed, like a copy of a ports tree or of sources.
//!
//! Directories hold a few files each and are nested three deep. Sizes of files are distributed as in such
//! trees: the median is half of the mean, and a few are ten times as large.

use std::{fs, io, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    content::{Content, SplitMix},
    room,
};

/// Names per directory of directories.
const FAN_OUT: u64 = 24;
/// Files per directory of files.
const FILES_PER_DIR: u64 = 5;

/// The tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Seed of sizes and contents.
    pub seed: u64,
    /// Number of files.
    pub files: u64,
    /// Mean size of a file.
    pub mean_bytes: u64,
}

/// The destination of a tree: a directory of a mounted file system, or an engine in this process. Paths are
/// relative and their parents exist.
pub trait Planter {
    /// Makes a directory.
    fn make_dir(&mut self, path: &str) -> io::Result<()>;
    /// Makes a file.
    fn make_file(&mut self, path: &str, content: &[u8]) -> io::Result<()>;
}

/// A directory of a mounted file system as the destination.
#[derive(Debug)]
pub struct Dir(pub PathBuf);

impl Planter for Dir {
    fn make_dir(&mut self, path: &str) -> io::Result<()> {
        room::wait_for(|| fs::create_dir(self.0.join(path)))
    }

    fn make_file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        room::wait_for(|| fs::write(self.0.join(path), content))
    }
}

impl Tree {
    /// Makes the tree. Returns the number of files.
    ///
    /// # Errors
    /// The planter's.
    pub fn plant(&self, planter: &mut dyn Planter) -> io::Result<u64> {
        let mut random = SplitMix(self.seed);
        for n in 0..self.files {
            let leaf = n / FILES_PER_DIR;
            let (top, middle) = (leaf / FAN_OUT / FAN_OUT, leaf / FAN_OUT % FAN_OUT);
            if n % FILES_PER_DIR == 0 {
                let first = leaf % FAN_OUT == 0;
                if first && middle == 0 {
                    planter.make_dir(&format!("{top}"))?;
                }
                if first {
                    planter.make_dir(&format!("{top}/{middle}"))?;
                }
                planter.make_dir(&format!("{top}/{middle}/{leaf}"))?;
            }
            let content = Content::Prose { seed: n, length: self.size(&mut random) }.to_vec();
            planter.make_file(&format!("{top}/{middle}/{leaf}/file-{n}.ebuild"), &content)?;
        }
        Ok(self.files)
    }

    /// Returns a size. Of eight files, seven have up to 1.2 times the mean, and one up to 7.6 times.
    fn size(&self, random: &mut SplitMix) -> u64 {
        let mean = self.mean_bytes.max(1);
        let (kind, within) = (random.next() >> 61, random.next());
        let most = if kind == 0 { mean * 76 / 10 } else { mean * 12 / 10 };
        1 + within % most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counter {
        dirs: Vec<String>,
        files: u64,
        bytes: u64,
    }

    impl Planter for Counter {
        fn make_dir(&mut self, path: &str) -> io::Result<()> {
            let parent = path.rsplit_once('/').map(|(parent, _)| parent.to_owned());
            assert!(parent.is_none_or(|parent| self.dirs.contains(&parent)), "{path}");
            self.dirs.push(path.to_owned());
            Ok(())
        }

        fn make_file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
            let parent = path.rsplit_once('/').expect("no file is at the top").0;
            assert!(self.dirs.iter().any(|dir| dir == parent), "{path}");
            self.files += 1;
            self.bytes += content.len() as u64;
            Ok(())
        }
    }

    #[test]
    fn a_tree_has_its_stated_files_and_about_its_stated_bytes() {
        let tree = Tree { seed: 7, files: 5000, mean_bytes: 2000 };
        let mut seen = Counter::default();
        assert_eq!(tree.plant(&mut seen).unwrap(), 5000);
        assert_eq!((seen.files, seen.dirs.len()), (5000, 1000 + 42 + 2));
        assert!((9_000_000..11_000_000).contains(&seen.bytes), "{}", seen.bytes);
    }

    #[test]
    fn the_same_tree_is_planted_in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree { seed: 7, files: 12, mean_bytes: 100 };
        tree.plant(&mut Dir(dir.path().to_owned())).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("0/0/2")).unwrap().count(), 2);
    }
}
