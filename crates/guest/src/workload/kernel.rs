//! A kernel's sources: unpacked, and compiled.
//!
//! Depths of directories and sizes of files are those of a real tree (`testdata/workloads/linux-6.1.txt`),
//! from every fourth of its directories. Names are numbers. A larger tree consists of several of these, a
//! smaller one of some of its directories.

use serde::{Deserialize, Serialize};

use super::Step;
use crate::content::SplitMix;

const LIST: &str = include_str!("../../../../testdata/workloads/linux-6.1.txt");
/// One in this many sources is compiled: a common configuration has about 3000 of 32000.
const COMPILED: u64 = 10;
/// Number of headers that a source includes, directly or indirectly.
const HEADERS: u64 = 40;
/// Size of the file with the command and dependencies that the kernel's build writes beside each object.
const COMMAND_BYTES: u64 = 5000;
/// Size of an object's entry in its directory's archive, which is a thin archive without content.
const MEMBER_BYTES: u64 = 100;

/// A tree of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelTree {
    /// Approximate number of files. Linux 6.1 has 78579.
    pub files: u64,
}

/// Compilation of a tree, by one processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelBuild {
    /// The compiled tree.
    pub tree: KernelTree,
    /// Seed for the choice of headers.
    pub seed: u64,
}

/// A directory with its files.
struct Dir {
    path: String,
    files: Vec<File>,
}

#[derive(Debug, Clone)]
struct File {
    path: String,
    bytes: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Source,
    Header,
    Other,
}

impl KernelTree {
    /// Returns the steps that unpack the tree from an archive. A unit is a file.
    pub(super) fn steps(self) -> Box<dyn Iterator<Item = Step>> {
        Box::new(self.dirs().into_iter().flat_map(|dir| {
            let mut steps = vec![Step::MakeDir { path: dir.path }];
            for File { path, bytes, .. } in dir.files {
                steps.push(match bytes {
                    0 => Step::Truncate { path: path.clone(), size: 0 },
                    _ => Step::Write { path: path.clone(), at: 0, length: bytes },
                });
                steps.extend([Step::Close { path }, Step::Done]);
            }
            steps
        }))
    }

    /// All directories, parents first.
    fn dirs(self) -> Vec<Dir> {
        let lines: Vec<&str> = LIST.lines().filter(|line| !line.starts_with('#')).collect();
        let of_list: u64 = lines.iter().map(|line| line.split(' ').count() as u64 - 1).sum();
        let mut dirs = Vec::new();
        let mut left = self.files;
        while left > 0 {
            let part = left.min(of_list);
            // A part takes as many lines as its share, spread over all of them.
            let is_taken = |n: u64| (n + 1) * part / of_list > n * part / of_list || part == of_list;
            let taken = lines.iter().zip(0..).filter(|(_, n)| is_taken(*n));
            let top = format!("linux-{}", left.div_ceil(of_list));
            dirs.push(Dir { path: top.clone(), files: Vec::new() });
            // Possible parents of the next directory, by depth.
            let mut above = vec![top];
            for (line, n) in taken {
                let mut words = line.split(' ');
                let depth: usize =
                    words.next().and_then(|word| word.parse().ok()).expect("the list has depths");
                above.truncate(depth.max(1));
                let path = format!("{}/d{n}", above.last().expect("the top stays"));
                let files = words.zip(0..).map(|(word, n)| file(&path, word, n)).collect();
                above.push(path.clone());
                dirs.push(Dir { path, files });
            }
            left -= part;
        }
        dirs
    }
}

fn file(dir: &str, word: &str, n: u32) -> File {
    let (digits, kind, end) = match (word.strip_suffix('c'), word.strip_suffix('h')) {
        (Some(digits), _) => (digits, Kind::Source, ".c"),
        (_, Some(digits)) => (digits, Kind::Header, ".h"),
        _ => (word, Kind::Other, ""),
    };
    let bytes = digits.parse().expect("the list has sizes");
    File { path: format!("{dir}/file-{n}{end}"), bytes, kind }
}

impl KernelBuild {
    /// Returns the steps of the compilation. A unit is an object; the final program is another.
    pub(super) fn steps(self) -> Box<dyn Iterator<Item = Step>> {
        let dirs = self.tree.dirs();
        let headers: Vec<File> =
            dirs.iter().flat_map(|dir| &dir.files).filter(|it| it.kind == Kind::Header).cloned().collect();
        let mut random = SplitMix(self.seed);
        let mut sources = 0;
        let mut objects: Vec<(String, u64)> = Vec::new();
        let mut steps = Vec::new();
        for dir in dirs {
            let before = objects.len() as u64;
            for source in dir.files.iter().filter(|file| file.kind == Kind::Source && file.bytes > 0) {
                sources += 1;
                if sources % COMPILED == 0 {
                    compile(source, &headers, &mut random, &mut objects, &mut steps);
                }
            }
            let members = objects.len() as u64 - before;
            if members > 0 {
                let path = format!("{}/built-in.a", dir.path);
                steps.push(Step::Write { path: path.clone(), at: 0, length: members * MEMBER_BYTES });
                steps.push(Step::Close { path });
            }
        }
        let mut at = 0;
        for (path, bytes) in objects {
            steps.push(Step::Read { path: path.clone(), at: 0, length: bytes });
            steps.push(Step::Close { path });
            steps.push(Step::Write { path: "vmlinux".into(), at, length: bytes });
            at += bytes;
        }
        steps.extend([Step::Close { path: "vmlinux".into() }, Step::Done]);
        Box::new(steps.into_iter())
    }
}

/// Reads a source and its headers, and writes an object as large as the source, and its command.
fn compile(
    source: &File,
    headers: &[File],
    random: &mut SplitMix,
    objects: &mut Vec<(String, u64)>,
    steps: &mut Vec<Step>,
) {
    let read = |file: &File, steps: &mut Vec<Step>| {
        if file.bytes > 0 {
            steps.push(Step::Read { path: file.path.clone(), at: 0, length: file.bytes });
            steps.push(Step::Close { path: file.path.clone() });
        }
    };
    read(source, steps);
    for _ in 0..HEADERS.min(headers.len() as u64) {
        // A few headers are in nearly every source: the square makes low numbers likely.
        let share = (random.next() >> 40) as f64 / f64::from(1 << 24);
        read(&headers[(share * share * headers.len() as f64) as usize], steps);
    }
    let object = format!("{}.o", source.path);
    for (path, length) in [(object.clone(), source.bytes), (format!("{object}.cmd"), COMMAND_BYTES)] {
        steps.push(Step::Write { path: path.clone(), at: 0, length });
        steps.push(Step::Close { path });
    }
    objects.push((object, source.bytes));
    steps.push(Step::Done);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of files and of their bytes.
    fn size(files: u64) -> (usize, u64) {
        let dirs = KernelTree { files }.dirs();
        let files: Vec<u64> = dirs.iter().flat_map(|dir| &dir.files).map(|file| file.bytes).collect();
        (files.len(), files.iter().sum())
    }

    #[test]
    fn a_tree_is_like_linux_at_every_size() {
        // Linux 6.1: 78579 files of 1298681992 bytes.
        for (files, share) in [(78_579, 1.0), (9822, 0.125)] {
            let (count, bytes) = size(files);
            let (count, bytes) = (count as f64 / (78_579.0 * share), bytes as f64 / (1.2987e9 * share));
            assert!((0.9..1.1).contains(&count), "{files}: {count}");
            assert!((0.8..1.2).contains(&bytes), "{files}: {bytes}");
        }
    }

    #[test]
    fn directories_are_made_before_their_content() {
        let dirs = KernelTree { files: 30_000 }.dirs();
        let paths: std::collections::HashSet<&str> = dirs.iter().map(|dir| &*dir.path).collect();
        assert_eq!(paths.len(), dirs.len(), "no path twice");
        let mut seen = std::collections::HashSet::new();
        for dir in &dirs {
            let parent = dir.path.rsplit_once('/').map(|(parent, _)| parent);
            assert!(parent.is_none_or(|parent| seen.contains(parent)), "{}", dir.path);
            seen.insert(&*dir.path);
        }
        assert!(dirs.iter().any(|dir| dir.path.matches('/').count() >= 5), "as deep as the real one");
    }
}
