//! Differences between two manifests, as lines of text.

use std::{collections::BTreeMap, fmt::Debug};

use crate::{Bytes, Entry, Kind, Manifest};

/// The compared properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All properties of two reads of the same volume, including the volume's own figures.
    Volume,
    /// The properties that a copy in another file system can have. Excluded are inode numbers (but not which
    /// names share one), blocks, ctime, btime, flags, data runs, links from outside of the tree, and sizes and
    /// link counts of directories.
    /// Files that f2fs and its tools put into a fresh root (`lost+found`) are skipped.
    Copy,
}

/// Returns the differences from `left` to `right`; empty if there are none. Each line names the path, the
/// field and both values. After `most` of them, a last line counts the rest.
pub fn differences(left: &Manifest, right: &Manifest, scope: Scope, most: usize) -> Vec<String> {
    let mut found = Findings { lines: Vec::new(), total: 0, most };
    if scope == Scope::Volume && left.volume != right.volume {
        found.add(|| format!("volume: {:?} != {:?}", left.volume, right.volume));
    }
    let index = |manifest: &Manifest| -> BTreeMap<Bytes, Entry> {
        let entries = manifest.entries.iter().filter(|entry| counts(entry, scope));
        entries.map(|entry| (entry.path.clone(), entry.clone())).collect()
    };
    let (mut ours, mut theirs) = (index(left), index(right));
    if scope == Scope::Copy {
        forget_links_from_outside(&mut ours);
        forget_links_from_outside(&mut theirs);
    }
    for (path, a) in &ours {
        match theirs.get(path) {
            Some(b) => compare(a, b, scope, &mut found),
            None => found.add(|| format!("{path}: only on the left")),
        }
    }
    for path in theirs.keys().filter(|path| !ours.contains_key(*path)) {
        found.add(|| format!("{path}: only on the right"));
    }
    if scope == Scope::Copy {
        compare_links(&ours, &theirs, &mut found);
    }
    found.finish()
}

struct Findings {
    lines: Vec<String>,
    total: usize,
    most: usize,
}

impl Findings {
    fn add(&mut self, line: impl FnOnce() -> String) {
        self.total += 1;
        if self.lines.len() < self.most {
            self.lines.push(line());
        }
    }

    fn field<T: PartialEq + Debug>(&mut self, path: &Bytes, name: &str, a: &T, b: &T) {
        if a != b {
            self.add(|| format!("{path}: {name} {a:?} != {b:?}"));
        }
    }

    fn finish(mut self) -> Vec<String> {
        let rest = self.total - self.lines.len();
        if rest > 0 {
            self.lines.push(format!("and {rest} more differences"));
        }
        self.lines
    }
}

fn counts(entry: &Entry, scope: Scope) -> bool {
    scope == Scope::Volume || entry.path != Bytes::from("lost+found")
}

/// Reduces the link count of each file to its names in the tree: a copy of the tree has no others.
fn forget_links_from_outside(entries: &mut BTreeMap<Bytes, Entry>) {
    let mut names: BTreeMap<u64, u32> = BTreeMap::new();
    for entry in entries.values() {
        *names.entry(entry.ino).or_default() += 1;
    }
    for entry in entries.values_mut().filter(|entry| entry.kind != Kind::Dir) {
        entry.nlink = entry.nlink.min(names[&entry.ino]);
    }
}

fn compare(a: &Entry, b: &Entry, scope: Scope, found: &mut Findings) {
    let path = &a.path;
    if a.kind != b.kind {
        found.add(|| format!("{path}: {:?} != {:?}", a.kind, b.kind));
        return;
    }
    found.field(path, "mode", &format_args!("{:04o}", a.mode).to_string(), &format!("{:04o}", b.mode));
    found.field(path, "owner", &(a.uid, a.gid), &(b.uid, b.gid));
    found.field(path, "device", &a.rdev, &b.rdev);
    found.field(path, "mtime", &a.mtime, &b.mtime);
    found.field(path, "target", &a.target, &b.target);
    found.field(path, "sha256", &a.sha256, &b.sha256);
    found.field(path, "sparse_sha256", &a.sparse_sha256, &b.sparse_sha256);
    found.field(path, "xattrs", &a.xattrs, &b.xattrs);
    found.field(path, "errors", &a.errors, &b.errors);
    let whole = scope == Scope::Volume;
    if whole || a.kind != Kind::Dir {
        found.field(path, "size", &a.size, &b.size);
        found.field(path, "nlink", &a.nlink, &b.nlink);
    }
    if whole {
        found.field(path, "ino", &a.ino, &b.ino);
        found.field(path, "blocks", &a.blocks, &b.blocks);
        found.field(path, "atime", &a.atime, &b.atime);
        found.field(path, "ctime", &a.ctime, &b.ctime);
        found.field(path, "btime", &a.btime, &b.btime);
        found.field(path, "flags", &format!("{:#x}", a.flags), &format!("{:#x}", b.flags));
        found.field(path, "project", &a.project, &b.project);
        found.field(path, "data", &a.data, &b.data);
        found.field(path, "compressed blocks", &a.compressed_blocks, &b.compressed_blocks);
    }
}

/// Names that share an inode on one side must share one on the other: the first name of each entry's inode,
/// in the order of paths, must be the same.
fn compare_links(left: &BTreeMap<Bytes, Entry>, right: &BTreeMap<Bytes, Entry>, found: &mut Findings) {
    let firsts = |side: &BTreeMap<Bytes, Entry>| -> BTreeMap<Bytes, Bytes> {
        let mut first_of_ino = BTreeMap::new();
        let linked = side.values().filter(|entry| entry.kind != Kind::Dir);
        linked
            .map(|entry| {
                let first = first_of_ino.entry(entry.ino).or_insert_with(|| entry.path.clone());
                (entry.path.clone(), first.clone())
            })
            .collect()
    };
    let (a, b) = (firsts(left), firsts(right));
    for (path, first) in &a {
        if let Some(other) = b.get(path) {
            found.field(path, "linked to", first, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, ino: u64) -> Entry {
        let json = format!(
            r#"{{"path":"{path}","kind":"file","ino":{ino},"mode":"0644","uid":0,"gid":0,"nlink":2,
            "size":1,"blocks":8,"atime":[0,0],"mtime":[1,2],"ctime":[3,4]}}"#
        );
        serde_json::from_str(&json).expect("an entry")
    }

    fn tree(entries: Vec<Entry>) -> Manifest {
        Manifest { entries, ..Manifest::default() }
    }

    #[test]
    fn copies_may_differ_in_metadata_that_no_copy_keeps() {
        let left = tree(vec![entry("a", 4), entry("b", 4)]);
        let right = tree(vec![entry("a", 9), entry("b", 9), entry("lost+found", 10)]);
        assert_eq!(differences(&left, &right, Scope::Copy, 10), [""; 0]);
        assert_eq!(differences(&left, &right, Scope::Volume, 10).len(), 3);
    }

    #[test]
    fn links_from_outside_of_a_tree_do_not_count() {
        let left = tree(vec![entry("a", 4), entry("b", 5)]);
        let mut right = left.clone();
        right.entries[0].nlink = 1;
        assert_eq!(differences(&left, &right, Scope::Copy, 10), [""; 0]);
        assert_eq!(differences(&left, &right, Scope::Volume, 10).len(), 1);
        right.entries[1].nlink = 0;
        assert_eq!(differences(&left, &right, Scope::Copy, 10), ["b: nlink 1 != 0"]);
    }

    #[test]
    fn each_difference_is_named() {
        let left = tree(vec![entry("a", 4), entry("b", 4), entry("c", 5), entry("only", 6)]);
        let mut right = left.clone();
        right.entries[1].ino = 9;
        right.entries[2].mode = 0o755;
        right.entries.pop();
        let lines = differences(&left, &right, Scope::Copy, 10);
        assert_eq!(
            lines,
            [
                "a: nlink 2 != 1",
                "b: nlink 2 != 1",
                "c: mode \"0644\" != \"0755\"",
                "only: only on the left",
                "b: linked to \"a\" != \"b\""
            ]
        );
        assert_eq!(differences(&left, &right, Scope::Copy, 1)[1], "and 4 more differences");
    }
}
