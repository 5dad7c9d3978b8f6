//! The examination of a tree of stamped files after a power cut.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::{
    Bytes,
    pager::{self, Recovered},
    stamp::{self, Run},
};

/// Maximum number of bytes that are read of a file. The files of a script are smaller.
const READ_BYTES: u64 = 2 << 20;
/// Maximum depth of directories.
const DEPTH: usize = 8;
/// End of the name of a database.
const DATABASE: &str = ".db";
/// Number of pages of a database.
pub const DATABASE_PAGES: usize = 12;

/// One name that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Path below the examined directory.
    pub path: Bytes,
    /// Its file type and content.
    pub is: What,
}

/// File type and content of a found name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A directory.
    Dir,
    /// A file of stamped sectors.
    File {
        /// Size in bytes.
        size: u64,
        /// Its sectors.
        runs: Vec<Run>,
    },
    /// A database after its recovery.
    Database(Recovered),
    /// Another kind of file.
    Other,
    /// It cannot be read.
    Unreadable(String),
}

/// A tree that can be examined. Paths are relative; that of the root is empty.
pub trait Readable {
    /// Returns the names in a directory, and which of them are directories; neither `.` nor `..`.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&mut self, dir: &str) -> io::Result<Vec<(Bytes, NameType)>>;

    /// Returns the size of a file, and its first bytes, at most `most`.
    ///
    /// # Errors
    /// Those of the file system; [`io::ErrorKind::NotFound`] if there is no such file.
    fn read(&mut self, path: &str, most: u64) -> io::Result<(u64, Vec<u8>)>;
}

/// Type of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameType {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// Another type.
    Other,
}

/// Examines a tree. Names that cannot be read are part of the result.
pub fn examine(tree: &mut dyn Readable) -> Vec<Found> {
    let mut found = Vec::new();
    walk(tree, "", DEPTH, &mut found);
    found
}

fn walk(tree: &mut dyn Readable, dir: &str, depth: usize, found: &mut Vec<Found>) {
    let names = match tree.list(dir) {
        Ok(names) if depth > 0 => names,
        Ok(_) => return found.push(unreadable(dir, "directories are too deep".into())),
        Err(error) => return found.push(unreadable(dir, error.to_string())),
    };
    for (name, kind) in names {
        let path = if dir.is_empty() { name.to_string() } else { format!("{dir}/{name}") };
        if path == "lost+found" {
            continue;
        }
        let is = match kind {
            NameType::Dir => {
                found.push(Found { path: path.as_str().into(), is: What::Dir });
                walk(tree, &path, depth - 1, found);
                continue;
            }
            NameType::Other => What::Other,
            NameType::File if path.ends_with(DATABASE) => database(tree, &path),
            NameType::File => match tree.read(&path, READ_BYTES) {
                Ok((size, content)) => What::File { size, runs: stamp::runs(&content) },
                Err(error) => What::Unreadable(error.to_string()),
            },
        };
        found.push(Found { path: path.as_str().into(), is });
    }
}

/// Recovers a database from its files.
fn database(tree: &mut dyn Readable, path: &str) -> What {
    let mut read = |end: &str| match tree.read(&format!("{path}{end}"), READ_BYTES) {
        Ok((_, content)) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(What::Unreadable(format!("{path}{end}: {error}"))),
    };
    let files = read("").and_then(|file| Ok((file, read("-journal")?, read("-wal")?)));
    match files {
        Ok((file, journal, log)) => {
            What::Database(pager::recover(file, journal.as_deref(), log.as_deref(), DATABASE_PAGES))
        }
        Err(unreadable) => unreadable,
    }
}

fn unreadable(path: &str, why: String) -> Found {
    Found { path: path.into(), is: What::Unreadable(why) }
}

/// A directory of a mounted file system.
#[derive(Debug)]
pub struct MountedTree(pub PathBuf);

impl Readable for MountedTree {
    fn list(&mut self, dir: &str) -> io::Result<Vec<(Bytes, NameType)>> {
        let entries = fs::read_dir(self.0.join(dir))?.map(|entry| {
            let entry = entry?;
            let kind = entry.file_type()?;
            let kind = match (kind.is_dir(), kind.is_file()) {
                (true, _) => NameType::Dir,
                (_, true) => NameType::File,
                _ => NameType::Other,
            };
            Ok((Bytes(entry.file_name().into_encoded_bytes()), kind))
        });
        let mut names: Vec<(Bytes, NameType)> = entries.collect::<io::Result<_>>()?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    fn read(&mut self, path: &str, most: u64) -> io::Result<(u64, Vec<u8>)> {
        let file = File::open(self.0.join(path))?;
        let (size, mut content) = (file.metadata()?.len(), Vec::new());
        file.take(most).read_to_end(&mut content)?;
        Ok((size, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::Sector;

    #[test]
    fn a_tree_is_examined_with_its_databases() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/file"), stamp::sectors(3, 4, 0, 2)).unwrap();
        let pages: Vec<u8> = (1..=12).flat_map(|number| pager::page(5, 1, number)).collect();
        fs::write(at("x.db"), pages).unwrap();
        let found = examine(&mut MountedTree(dir.path().to_owned()));
        let run = Run { sectors: 2, is: Sector::Of { file: 3, version: 4 } };
        let expected = [
            ("d", What::Dir),
            ("d/file", What::File { size: 1024, runs: vec![run] }),
            ("x.db", What::Database(Recovered::Pages(vec![1; 12]))),
        ];
        let expected = expected.map(|(path, is)| Found { path: path.into(), is });
        assert_eq!(found, expected);
    }
}
