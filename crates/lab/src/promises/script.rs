//! Workloads with promises, from a seed: operations of the one vocabulary, and the promises that they make.

mod database;

use std::collections::BTreeMap;

use block::Rng;
use guest::{
    Content, Op,
    stamp::{SECTOR_BYTES, Sector},
};

use self::database::Database;
use super::promise::{History, Kind, Layout, Must, Promise, layout, sectors};
use crate::systems::MOUNT_POINT;

/// Directories of the script.
const DIRS: [&str; 3] = ["a", "b", "c"];
/// Number of names of files in each directory. Removed names are used again.
const NAMES: u64 = 9;
/// Maximum length of most writes in sectors.
const FEW_SECTORS: u64 = 24;
/// Maximum length of the others.
const MANY_SECTORS: u64 = 200;
/// Maximum length of a file in sectors.
const FILE_SECTORS: u64 = 600;
/// Maximum duration of a pause. Linux writes dirty data after 30 s, and journals commit after 5 s.
const PAUSE_NS: u64 = 12_000_000_000;

/// One step of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The operation, on paths below the mount point.
    pub op: Op,
    /// Group of steps that belong together. If a file system refuses one, the others are left out.
    pub episode: u32,
}

/// A workload and its promises.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// The steps.
    pub steps: Vec<Step>,
    /// Number of first steps that prepare the tree. The power is not cut during them.
    pub prepared: usize,
    /// The promises.
    pub promises: Vec<Promise>,
    /// States that each path had.
    pub histories: BTreeMap<String, History>,
}

impl Script {
    /// Makes a script of `episodes` groups of operations.
    pub fn new(seed: u64, episodes: u32) -> Script {
        let mut writer = Writer {
            rng: Rng::new(seed),
            script: Script::default(),
            files: BTreeMap::new(),
            open: BTreeMap::new(),
            next_file: 1,
            episode: 0,
        };
        let mut databases = writer.prepare();
        for _ in 0..episodes {
            writer.episode += 1;
            writer.episode(&mut databases);
        }
        writer.script
    }

    /// Returns the operations that sync the changes of a group of steps one by one, in place of its sync(2).
    pub fn syncs_instead(&self, sync: usize) -> Vec<Op> {
        let mut paths: Vec<guest::Bytes> = Vec::new();
        let group = self.steps[..sync].iter().filter(|step| step.episode == self.steps[sync].episode);
        for step in group {
            if let Op::Write { path, .. } | Op::Mkdir { path, .. } = &step.op {
                let path = path.to_string();
                for path in [&path[..], dir_of(&path)].map(guest::Bytes::from) {
                    if !paths.contains(&path) {
                        paths.push(path);
                    }
                }
            }
        }
        paths.into_iter().map(|path| Op::Fsync { path, data_only: false }).collect()
    }
}

/// Returns a path in the guest.
fn at(path: &str) -> guest::Bytes {
    format!("{MOUNT_POINT}/{path}").as_str().into()
}

/// Returns the directory of a path; empty for the root.
fn dir_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// A file whose content is promised.
#[derive(Debug, Clone)]
struct File {
    number: u32,
    version: u32,
    content: Layout,
}

struct Writer {
    rng: Rng,
    script: Script,
    files: BTreeMap<String, File>,
    /// Promises without an end, by path.
    open: BTreeMap<String, Vec<usize>>,
    next_file: u32,
    episode: u32,
}

impl Writer {
    fn prepare(&mut self) -> [Database; 2] {
        for dir in DIRS {
            self.step(Op::Mkdir { path: at(dir), mode: 0o755 });
        }
        let databases = [
            Database::new("a/delete.db", Kind::SqliteDelete, self.new_number()),
            Database::new("b/wal.db", Kind::SqliteWal, self.new_number()),
        ];
        databases.iter().for_each(|database| database.create(self));
        self.step(Op::Sync);
        self.script.prepared = self.script.steps.len();
        DIRS.iter().for_each(|dir| self.promise(Kind::Mkdir, dir, Must::Dir));
        databases.iter().for_each(|database| database.promise_current(self));
        databases
    }

    fn episode(&mut self, databases: &mut [Database; 2]) {
        match self.rng.below(100) {
            0..12 => self.create_with_fsync(),
            12..24 => self.change(Kind::Fsync),
            24..36 => self.change(Kind::Fdatasync),
            36..44 => self.change(Kind::OSync),
            44..50 => self.sync(),
            50..60 => self.rename_over(),
            60..66 => self.link(),
            66..74 => self.unlink(),
            74..77 => self.make_dir(),
            77..84 => databases[0].change(self),
            84..91 => databases[1].change(self),
            91..97 => self.write_without_promise(),
            _ => {
                let nanoseconds = self.rng.below(PAUSE_NS);
                self.step(Op::Pause { nanoseconds });
            }
        }
    }

    /// Adds a step.
    fn step(&mut self, op: Op) {
        self.script.steps.push(Step { op, episode: self.episode });
    }

    fn fsync(&mut self, path: &str) {
        self.step(Op::Fsync { path: at(path), data_only: false });
    }

    /// Ends the promises about a path at the next step.
    fn end_promises(&mut self, path: &str) {
        let until = Some(self.script.steps.len());
        for promise in self.open.remove(path).unwrap_or_default() {
            self.script.promises[promise].until = until;
        }
    }

    /// Makes a promise from the next step on. It replaces the path's earlier ones.
    fn promise(&mut self, kind: Kind, path: &str, must: Must) {
        self.end_promises(path);
        let history = self.script.histories.entry(path.to_owned()).or_default();
        match &must {
            Must::OneOf(layouts) => history.layouts.extend(layouts.iter().cloned()),
            Must::Database(states) => history.versions.extend(states.iter().cloned()),
            Must::Dir | Must::Absent | Must::Between(_) => {}
        }
        self.open.entry(path.to_owned()).or_default().push(self.script.promises.len());
        let (path, from) = (path.to_owned(), self.script.steps.len());
        self.script.promises.push(Promise { kind, path, from, until: None, episode: self.episode, must });
    }

    fn promise_content(&mut self, kind: Kind, path: &str) {
        let content = self.files[path].content.clone();
        self.promise(kind, path, Must::OneOf(vec![content]));
    }

    fn new_number(&mut self) -> u32 {
        self.next_file += 1;
        self.next_file - 1
    }

    fn length(&mut self) -> u64 {
        let most = if self.rng.below(8) == 0 { MANY_SECTORS } else { FEW_SECTORS };
        1 + self.rng.below(most)
    }

    /// Returns a name that no file has, if one is free in a random directory.
    fn free_path(&mut self) -> Option<String> {
        let dir = DIRS[self.rng.below(DIRS.len() as u64) as usize];
        let path = format!("{dir}/file-{}", self.rng.below(NAMES));
        (!self.files.contains_key(&path)).then_some(path)
    }

    fn any_file(&mut self) -> Option<String> {
        let which = self.rng.below(self.files.len().max(1) as u64) as usize;
        self.files.keys().nth(which).cloned()
    }

    /// Writes a new file, without a promise.
    fn write_new(&mut self, path: &str) -> File {
        let (number, sectors) = (self.new_number(), self.length());
        let content = Content::Stamped { file: number, version: 1, first: 0, sectors };
        self.end_promises(path);
        self.step(Op::Write { path: at(path), offset: 0, content });
        let content = layout(&vec![Sector::Of { file: number, version: 1 }; sectors as usize]);
        File { number, version: 1, content }
    }

    fn create_with_fsync(&mut self) {
        let Some(path) = self.free_path() else { return self.change(Kind::Fsync) };
        let file = self.write_new(&path);
        self.files.insert(path.clone(), file);
        self.fsync(&path);
        self.fsync(dir_of(&path));
        self.promise_content(Kind::Fsync, &path);
    }

    /// Overwrites a part of a file or appends to it, once or twice, and syncs it. Meanwhile the other sectors
    /// are promised.
    fn change(&mut self, kind: Kind) {
        let Some(path) = self.any_file() else { return self.create_with_fsync() };
        let mut states = vec![self.files[&path].content.clone()];
        for _ in 0..=self.rng.below(2) {
            let write = self.write_range(&path);
            states.push(self.files[&path].content.clone());
            self.promise(Kind::Untouched, &path, Must::Between(states.clone()));
            match (kind, write) {
                (Kind::OSync, Op::Write { path: at, offset, content }) => {
                    self.step(Op::WriteSync { path: at, offset, content });
                    self.promise_content(kind, &path);
                    states = vec![self.files[&path].content.clone()];
                }
                (_, write) => self.step(write),
            }
        }
        if kind != Kind::OSync {
            self.step(Op::Fsync { path: at(&path), data_only: kind == Kind::Fdatasync });
            self.promise_content(kind, &path);
        }
    }

    /// Returns the write of a random range of a file, and notes its new content.
    fn write_range(&mut self, path: &str) -> Op {
        let file = &self.files[path];
        let (number, version, mut content) = (file.number, file.version + 1, sectors(&file.content));
        let first = self.rng.below(content.len() as u64 + 1).min(FILE_SECTORS);
        let sectors = if self.rng.below(2) == 0 { 1 + self.rng.below(3) } else { self.length() };
        let end = (first + sectors) as usize;
        content.resize(content.len().max(end), Sector::Zero);
        content[first as usize..end].fill(Sector::Of { file: number, version });
        self.files.insert(path.to_owned(), File { number, version, content: layout(&content) });
        let content = Content::Stamped { file: number, version, first, sectors };
        Op::Write { path: at(path), offset: first * SECTOR_BYTES as u64, content }
    }

    /// Changes and creates some files, and syncs all of them at once.
    fn sync(&mut self) {
        let mut changed = Vec::new();
        for _ in 0..2 + self.rng.below(3) {
            match (self.free_path(), self.any_file()) {
                (Some(path), _) => {
                    let file = self.write_new(&path);
                    self.files.insert(path.clone(), file);
                    changed.push(path);
                }
                // A file is changed once, so that it has one old and one new content.
                (None, Some(path)) if !changed.contains(&path) => {
                    let old = self.files[&path].content.clone();
                    let write = self.write_range(&path);
                    let new = self.files[&path].content.clone();
                    self.promise(Kind::Untouched, &path, Must::Between(vec![old, new]));
                    self.step(write);
                    changed.push(path);
                }
                _ => {}
            }
        }
        self.step(Op::Sync);
        changed.iter().for_each(|path| self.promise_content(Kind::Sync, path));
    }

    /// Replaces a file by a new one that was synced before.
    fn rename_over(&mut self) {
        let Some(path) = self.any_file() else { return self.create_with_fsync() };
        let temporary = format!("{}/temporary", dir_of(&path));
        let old = self.files[&path].content.clone();
        let file = self.write_new(&temporary);
        self.fsync(&temporary);
        self.promise(Kind::RenameAtomic, &path, Must::OneOf(vec![old, file.content.clone()]));
        self.step(Op::Rename { from: at(&temporary), to: at(&path) });
        self.fsync(dir_of(&path));
        self.files.insert(path.clone(), file);
        self.promise_content(Kind::Rename, &path);
        self.promise(Kind::Rename, &temporary, Must::Absent);
    }

    /// Gives a new file a second name, and removes the first.
    fn link(&mut self) {
        let dir = DIRS[self.rng.below(DIRS.len() as u64) as usize];
        let path = format!("{dir}/first-{}", self.episode);
        let second = format!("{dir}/second-{}", self.episode);
        let file = self.write_new(&path);
        self.step(Op::Link { from: at(&path), to: at(&second) });
        self.fsync(&path);
        self.fsync(dir);
        self.promise(Kind::Link, &path, Must::OneOf(vec![file.content.clone()]));
        self.promise(Kind::Link, &second, Must::OneOf(vec![file.content]));
        if self.rng.below(2) == 0 {
            self.end_promises(&path);
            self.step(Op::Unlink { path: at(&path) });
            self.fsync(dir);
            self.promise(Kind::Unlink, &path, Must::Absent);
        }
    }

    fn unlink(&mut self) {
        let Some(path) = self.any_file() else { return self.create_with_fsync() };
        self.files.remove(&path);
        self.end_promises(&path);
        self.step(Op::Unlink { path: at(&path) });
        self.fsync(dir_of(&path));
        self.promise(Kind::Unlink, &path, Must::Absent);
    }

    fn make_dir(&mut self) {
        let dir = DIRS[self.rng.below(DIRS.len() as u64) as usize];
        let path = format!("{dir}/dir-{}", self.episode);
        self.step(Op::Mkdir { path: at(&path), mode: 0o755 });
        self.fsync(dir);
        self.promise(Kind::Mkdir, &path, Must::Dir);
    }

    /// Writes a file that is never synced by itself.
    fn write_without_promise(&mut self) {
        let dir = DIRS[self.rng.below(DIRS.len() as u64) as usize];
        let path = format!("{dir}/unsynced-{}", self.rng.below(3));
        let (file, sectors, first) = (self.new_number(), self.length(), self.rng.below(FEW_SECTORS));
        let content = Content::Stamped { file, version: 1, first, sectors };
        self.step(Op::Write { path: at(&path), offset: first * SECTOR_BYTES as u64, content });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_script_with_promises_of_all_kinds() {
        let script = Script::new(1, 200);
        assert_eq!(script.steps, Script::new(1, 200).steps);
        assert_ne!(script.steps, Script::new(2, 200).steps);
        for kind in Kind::ALL {
            let count = script.promises.iter().filter(|promise| promise.kind == kind).count();
            assert!(count > 1, "{kind:?}: {count}");
        }
    }

    #[test]
    fn in_place_of_a_sync_each_change_of_its_group_is_synced() {
        let script = Script::new(1, 0);
        let last = script.steps.iter().rposition(|step| step.op == Op::Sync).unwrap();
        let syncs = script.syncs_instead(last);
        for path in ["/mnt", "/mnt/a", "/mnt/c", "/mnt/a/delete.db", "/mnt/b/wal.db"] {
            let path = path.into();
            assert!(syncs.contains(&Op::Fsync { path, data_only: false }), "{syncs:?}");
        }
    }

    #[test]
    fn at_each_step_a_path_has_at_most_one_promise() {
        let script = Script::new(3, 200);
        for step in 0..script.steps.len() {
            let mut paths: Vec<&str> = script
                .promises
                .iter()
                .filter(|it| it.from <= step && it.until.is_none_or(|until| step < until))
                .map(|it| it.path.as_str())
                .collect();
            let all = paths.len();
            paths.sort_unstable();
            paths.dedup();
            assert_eq!(paths.len(), all, "step {step}");
        }
    }
}
