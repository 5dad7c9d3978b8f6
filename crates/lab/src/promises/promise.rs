//! Promises as data, and their comparison with a tree after a power cut.

use std::collections::BTreeMap;

use guest::{
    examine::What,
    pager::Recovered,
    stamp::{Run, SECTOR_BYTES, Sector},
};
use serde::{Deserialize, Serialize};

use crate::systems::THROUGH_FUSE;

/// Source of a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// fsync(2) of a file; of its directory, too, if the file is new.
    Fsync,
    /// fdatasync(2) of a file.
    Fdatasync,
    /// sync(2).
    Sync,
    /// A write through a file opened with O_SYNC.
    OSync,
    /// rename(2) over a file, and fsync(2) of the directory.
    Rename,
    /// rename(2) over a file whose new content was synced: the name has the old or the new content.
    RenameAtomic,
    /// link(2), and fsync(2) of the directory.
    Link,
    /// unlink(2), and fsync(2) of the directory.
    Unlink,
    /// mkdir(2), and fsync(2) of the directory above.
    Mkdir,
    /// A transaction of a database with a rollback journal (SQLite: journal_mode=DELETE, synchronous=EXTRA).
    SqliteDelete,
    /// A transaction of a database with a write-ahead log (SQLite: journal_mode=WAL, synchronous=FULL).
    SqliteWal,
    /// Synced sectors remain while others of the file are changed.
    Untouched,
}

impl Kind {
    /// All kinds, in the order of tables.
    pub const ALL: [Kind; 12] = [
        Kind::Fsync,
        Kind::Fdatasync,
        Kind::Sync,
        Kind::OSync,
        Kind::Rename,
        Kind::RenameAtomic,
        Kind::Link,
        Kind::Unlink,
        Kind::Mkdir,
        Kind::SqliteDelete,
        Kind::SqliteWal,
        Kind::Untouched,
    ];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Fsync => "fsync",
            Kind::Fdatasync => "fdatasync",
            Kind::Sync => "sync",
            Kind::OSync => "O_SYNC",
            Kind::Rename => "rename",
            Kind::RenameAtomic => "rename is atomic",
            Kind::Link => "link",
            Kind::Unlink => "unlink",
            Kind::Mkdir => "mkdir",
            Kind::SqliteDelete => "SQLite, delete",
            Kind::SqliteWal => "SQLite, WAL",
            Kind::Untouched => "untouched data",
        }
    }

    /// Returns true if a file system of this type promises it. The FAT has no atomic rename: the old entry is
    /// removed and the new one written in separate sectors. Before Linux 6.18, sync(2) does not reach a FUSE
    /// file system; there the lab syncs each change by itself.
    pub fn is_promised_by(self, file_system: &str) -> bool {
        match self {
            Kind::RenameAtomic => !["vfat", "exfat"].contains(&file_system),
            Kind::Sync => file_system != THROUGH_FUSE,
            _ => true,
        }
    }
}

/// Content of a file: its sectors.
pub type Layout = Vec<Run>;

/// Required state of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Must {
    /// A directory has this name.
    Dir,
    /// Nothing has this name.
    Absent,
    /// A file has one of these contents, whole.
    OneOf(Vec<Layout>),
    /// Each sector of the first content is there, or that of a later one at its place.
    Between(Vec<Layout>),
    /// A database has the state after one of these transactions.
    Database(Vec<Vec<u32>>),
}

/// A promise: from one operation to another, a path has a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// Its source.
    pub kind: Kind,
    /// Path below the mount.
    pub path: String,
    /// It holds from the start of this step of the script, after the step before has returned.
    pub from: usize,
    /// It holds until the start of this step. `None` for the end of the script.
    pub until: Option<usize>,
    /// Group of steps that belong together.
    pub episode: u32,
    /// The required state.
    pub must: Must,
}

/// Kind of a broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The file or its content is not there.
    Lost,
    /// The content is an earlier one.
    Stale,
    /// The content is a mixture, or other data.
    Torn,
    /// A removed name is back.
    Resurrected,
    /// Reading fails.
    Unreadable,
}

impl Fault {
    /// All of them, in the order of tables.
    pub const ALL: [Fault; 5] =
        [Fault::Lost, Fault::Stale, Fault::Torn, Fault::Resurrected, Fault::Unreadable];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Lost => "lost",
            Fault::Stale => "stale",
            Fault::Torn => "torn",
            Fault::Resurrected => "resurrected",
            Fault::Unreadable => "unreadable",
        }
    }
}

/// States that a path had at any time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Contents of a file.
    pub layouts: Vec<Layout>,
    /// States of a database.
    pub versions: Vec<Vec<u32>>,
}

impl Promise {
    /// Compares with a tree after a power cut. Returns the fault and a description of the finding if the
    /// promise is broken.
    pub fn judge(&self, tree: &BTreeMap<String, What>, history: &History) -> Option<(Fault, String)> {
        let found = tree.get(&self.path);
        if let Some(What::Unreadable(why)) = found {
            return Some((Fault::Unreadable, why.clone()));
        }
        match (&self.must, found) {
            (Must::Absent, None) | (Must::Dir, Some(What::Dir)) => None,
            (Must::Absent, Some(found)) => Some((Fault::Resurrected, describe(found))),
            (_, None) => Some((unlisted(&self.path, tree), "there is no such name".into())),
            (Must::OneOf(allowed), Some(What::File { size, runs })) => {
                let is_whole = |layout: &Layout| layout == runs && *size == bytes(layout);
                if allowed.iter().any(is_whole) {
                    return None;
                }
                let fault = match history.layouts.iter().any(is_whole) {
                    true => Fault::Stale,
                    false if has_nothing(runs) => Fault::Lost,
                    false => Fault::Torn,
                };
                Some((fault, describe(&What::File { size: *size, runs: runs.clone() })))
            }
            (Must::Between(states), Some(What::File { size, runs })) => between(states, runs).map(|fault| {
                let fault = if has_nothing(runs) { Fault::Lost } else { fault };
                (fault, describe(&What::File { size: *size, runs: runs.clone() }))
            }),
            (Must::Database(allowed), Some(What::Database(found))) => {
                let fault = match found {
                    Recovered::Pages(versions) if allowed.contains(versions) => return None,
                    Recovered::Pages(versions) if history.versions.contains(versions) => Fault::Stale,
                    Recovered::Pages(_) | Recovered::Corrupt(_) => Fault::Torn,
                    Recovered::Missing => Fault::Lost,
                };
                Some((fault, format!("{found:?}")))
            }
            (_, Some(other)) => Some((Fault::Torn, describe(other))),
        }
    }
}

/// Returns the fault of a name that is missing: a directory above it may be unreadable.
fn unlisted(path: &str, tree: &BTreeMap<String, What>) -> Fault {
    let is_unreadable = |dir: &str| matches!(tree.get(dir), Some(What::Unreadable(_)));
    let above = path.match_indices('/').map(|(at, _)| &path[..at]);
    match above.chain([""]).any(is_unreadable) {
        true => Fault::Unreadable,
        false => Fault::Lost,
    }
}

/// Returns the fault if a sector of the first content has the content of none of the states.
fn between(states: &[Layout], found: &Layout) -> Option<Fault> {
    let (states, found): (Vec<_>, _) = (states.iter().map(|one| sectors(one)).collect(), sectors(found));
    let old = states.first()?;
    let is_right = |n: usize| {
        found.get(n).is_some_and(|one| states.iter().any(|state| state.get(n).is_some_and(|it| it == one)))
    };
    let wrong = (0..old.len()).find(|n| !is_right(*n))?;
    Some(match (found.get(wrong), old[wrong]) {
        (None | Some(Sector::Zero), _) => Fault::Lost,
        (Some(Sector::Of { file, version }), Sector::Of { file: own, version: newer })
            if *file == own && *version < newer =>
        {
            Fault::Stale
        }
        _ => Fault::Torn,
    })
}

/// Returns true if a file is empty or has only zeroes.
fn has_nothing(runs: &[Run]) -> bool {
    runs.iter().all(|run| run.is == Sector::Zero)
}

/// Returns the sectors of a content, one by one.
pub fn sectors(layout: &[Run]) -> Vec<Sector> {
    layout.iter().flat_map(|run| vec![run.is; run.sectors as usize]).collect()
}

/// Returns the content with these sectors.
pub fn layout(sectors: &[Sector]) -> Layout {
    let mut runs: Layout = Vec::new();
    for sector in sectors {
        match runs.last_mut() {
            Some(last) if last.is == *sector => last.sectors += 1,
            _ => runs.push(Run { sectors: 1, is: *sector }),
        }
    }
    runs
}

/// Returns the size of a content in bytes.
fn bytes(layout: &[Run]) -> u64 {
    layout.iter().map(|run| run.sectors).sum::<u64>() * SECTOR_BYTES as u64
}

/// Describes a finding in a few words.
pub fn describe(what: &What) -> String {
    match what {
        What::Dir => "a directory".into(),
        What::Other => "another kind of file".into(),
        What::Unreadable(why) => why.clone(),
        What::Database(state) => format!("{state:?}"),
        What::File { size, runs } => format!("{size} bytes: {}", runs_text(runs)),
    }
}

/// Describes a content in a few words: sectors by file and version.
pub fn runs_text(runs: &[Run]) -> String {
    const MOST: usize = 8;
    let one = |run: &Run| match run.is {
        Sector::Of { file, version } => format!("{} of file {file} v{version}", run.sectors),
        Sector::Displaced { file, version } => {
            format!("{} of file {file} v{version} at another place", run.sectors)
        }
        Sector::Zero => format!("{} zero", run.sectors),
        Sector::Garbage => format!("{} garbage", run.sectors),
    };
    let mut parts: Vec<String> = runs.iter().take(MOST).map(one).collect();
    if runs.len() > MOST {
        parts.push(format!("and {} more runs", runs.len() - MOST));
    }
    if parts.is_empty() { "no sectors".into() } else { format!("sectors {}", parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(version: u32, count: u64) -> Run {
        Run { sectors: count, is: Sector::Of { file: 1, version } }
    }

    fn file(runs: &[Run]) -> What {
        What::File { size: bytes(runs), runs: runs.to_vec() }
    }

    fn fault(must: Must, found: Option<What>) -> Option<Fault> {
        let promise =
            Promise { kind: Kind::Fsync, path: "d/f".into(), from: 0, until: None, episode: 0, must };
        let history = History { layouts: vec![vec![of(1, 3)]], versions: vec![vec![1, 1]] };
        let tree = found.into_iter().map(|what| ("d/f".to_owned(), what)).collect();
        promise.judge(&tree, &history).map(|(fault, _)| fault)
    }

    #[test]
    fn each_fault_is_told_from_the_others() {
        let must = || Must::OneOf(vec![vec![of(2, 3)]]);
        assert_eq!(fault(must(), Some(file(&[of(2, 3)]))), None);
        assert_eq!(fault(must(), Some(file(&[of(1, 3)]))), Some(Fault::Stale));
        assert_eq!(fault(must(), Some(file(&[of(2, 2), of(1, 1)]))), Some(Fault::Torn));
        assert_eq!(fault(must(), Some(file(&[of(2, 2)]))), Some(Fault::Torn));
        assert_eq!(fault(must(), Some(file(&[]))), Some(Fault::Lost));
        assert_eq!(fault(must(), None), Some(Fault::Lost));
        assert_eq!(fault(must(), Some(What::Unreadable("EIO".into()))), Some(Fault::Unreadable));
        assert_eq!(fault(Must::Absent, Some(file(&[of(1, 3)]))), Some(Fault::Resurrected));
        assert_eq!(fault(Must::Dir, Some(What::Dir)), None);
    }

    #[test]
    fn during_a_change_each_sector_is_old_or_new() {
        let must = || Must::Between(vec![vec![of(1, 3)], vec![of(1, 1), of(2, 4)]]);
        for kept in [vec![of(1, 3)], vec![of(1, 2), of(2, 1)], vec![of(1, 1), of(2, 4)]] {
            assert_eq!(fault(must(), Some(file(&kept))), None, "{kept:?}");
        }
        assert_eq!(fault(must(), Some(file(&[of(2, 3)]))), Some(Fault::Torn));
        assert_eq!(fault(must(), Some(file(&[of(1, 2)]))), Some(Fault::Lost));
        assert_eq!(fault(must(), Some(file(&[of(0, 3)]))), Some(Fault::Stale));
    }

    #[test]
    fn a_database_has_the_state_of_a_permitted_transaction() {
        let must = || Must::Database(vec![vec![2, 1]]);
        let state = |versions: &[u32]| Some(What::Database(Recovered::Pages(versions.to_vec())));
        assert_eq!(fault(must(), state(&[2, 1])), None);
        assert_eq!(fault(must(), state(&[1, 1])), Some(Fault::Stale));
        assert_eq!(fault(must(), state(&[1, 2])), Some(Fault::Torn));
        assert_eq!(fault(must(), Some(What::Database(Recovered::Missing))), Some(Fault::Lost));
    }
}
