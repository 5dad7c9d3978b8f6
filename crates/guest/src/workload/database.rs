//! SQLite's file operations: the calls of its pager, one by one.
//!
//! The table is `t(id INTEGER PRIMARY KEY, v BLOB NOT NULL)` with rows of 200 bytes, in pages of 4096 bytes.
//! A transaction inserts a row at the end or updates one somewhere. The dirty pages follow from the row's
//! number, and the calls for them from the journal mode, with the default `synchronous=FULL`. The test beside
//! this crate runs sqlite3 itself and compares call by call.
//!
//! SQLite's reads are left out, because its own cache serves them, and so is the index of the WAL, which is
//! written through a mapping.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Step;
use crate::content::SplitMix;

/// Journal mode of a transaction (SQLite's journal_mode).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Journal {
    /// The rollback journal is removed.
    Delete,
    /// The journal is truncated to 0 bytes.
    Truncate,
    /// The journal's header is overwritten.
    Persist,
    /// Pages are appended to a log, and copied to the database at checkpoints.
    Wal,
}

impl Journal {
    /// All modes.
    pub const ALL: [Journal; 4] = [Journal::Delete, Journal::Truncate, Journal::Persist, Journal::Wal];

    /// Returns SQLite's name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            Journal::Delete => "delete",
            Journal::Truncate => "truncate",
            Journal::Persist => "persist",
            Journal::Wal => "wal",
        }
    }
}

const PAGE_BYTES: u64 = 4096;
/// Bytes of a row's value.
pub const VALUE_BYTES: u64 = 200;
/// Number of the first row, so large that all numbers take three bytes.
pub const FIRST_ROW: u64 = 20_000;
/// Number of rows in a new table.
pub const ROWS: u64 = 2000;
/// Bytes of a row in a leaf: length of the record, number, head of the record, value, and the cell's pointer.
const CELL_BYTES: u64 = 2 + 3 + 4 + VALUE_BYTES + 2;
/// Bytes of a leaf without its head.
const ROWS_A_LEAF: u64 = (PAGE_BYTES - 8) / CELL_BYTES;
/// Maximum number of leaves below the root: child, number and pointer of each but the last.
const MOST_LEAVES: u64 = (PAGE_BYTES - 12) / 9;
/// Pages before the leaves: head of the file, root of the table.
const FIRST_LEAF: u64 = 3;
/// Number of pages in the log that triggers a checkpoint of the WAL (SQLITE_DEFAULT_WAL_AUTOCHECKPOINT).
const LOG_PAGES: u64 = 1000;

/// A database, and the state of its files.
#[derive(Debug, Clone)]
pub struct Database {
    path: String,
    /// The database's directory.
    dir: String,
    journal: Journal,
    rows: u64,
    log: Log,
}

#[derive(Debug, Clone, Default)]
struct Log {
    /// True if the log was opened.
    is_open: bool,
    /// Number of pages in the log.
    pages: u64,
    /// Database pages in the log.
    dirty: BTreeSet<u64>,
}

impl Database {
    /// Describes a database of [`ROWS`] rows in the file `path`.
    pub fn new(path: &str, journal: Journal) -> Database {
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
        Database { path: path.to_owned(), dir, journal, rows: ROWS, log: Log::default() }
    }

    /// Makes the database page by page, as a table that was filled at once.
    pub fn create(&self, steps: &mut Vec<Step>) {
        for page in 1..=self.pages() {
            steps.push(self.write_page(page));
        }
        steps.push(sync(&self.path));
    }

    /// Performs a transaction that inserts a row at the end or updates one somewhere. Once the table has this
    /// model's maximum size, all transactions are updates.
    pub fn change(&mut self, random: &mut SplitMix, steps: &mut Vec<Step>) -> Change {
        let (kind, row) = (random.next() >> 63, random.next());
        let change = match kind == 0 && self.rows < MOST_LEAVES * ROWS_A_LEAF {
            true => Change::Insert(FIRST_ROW + self.rows),
            false => Change::Update(FIRST_ROW + row % self.rows),
        };
        let leaf = |row: u64| FIRST_LEAF + (row - FIRST_ROW) / ROWS_A_LEAF;
        // A new page has no previous content. Its parent and the file's head refer to it.
        let (before, dirty) = match change {
            Change::Insert(row) if (row - FIRST_ROW) % ROWS_A_LEAF == 0 => {
                (vec![2, 1], vec![1, 2, leaf(row)])
            }
            Change::Insert(row) | Change::Update(row) => (vec![leaf(row), 1], vec![1, leaf(row)]),
        };
        if let Change::Insert(_) = change {
            self.rows += 1;
        }
        match self.journal {
            Journal::Wal => self.append(&dirty, steps),
            _ => self.roll(&before, &dirty, steps),
        }
        change
    }

    /// Closes the database.
    pub fn close(&mut self, steps: &mut Vec<Step>) {
        if self.log.is_open {
            self.bring_home(steps);
            steps.push(Step::Remove { path: self.beside("-shm") });
            steps.push(Step::Remove { path: self.beside("-wal") });
            self.log = Log::default();
        }
        steps.push(Step::Close { path: self.path.clone() });
    }

    /// Commits with a rollback journal: writes the old pages and syncs them, writes the new pages and syncs
    /// them, then invalidates the journal.
    fn roll(&self, before: &[u64], dirty: &[u64], steps: &mut Vec<Step>) {
        let journal = self.beside("-journal");
        let write = |at, length| Step::Write { path: journal.clone(), at, length };
        steps.push(write(0, 512));
        let mut at = 512;
        for _ in before {
            // Number, page, checksum.
            steps.extend([write(at, 4), write(at + 4, PAGE_BYTES), write(at + 4 + PAGE_BYTES, 4)]);
            at += PAGE_BYTES + 8;
        }
        steps.extend([sync(&journal), sync(&self.dir)]);
        // Their number is written after them.
        steps.extend([write(0, 12), sync(&journal)]);
        steps.extend(dirty.iter().map(|page| self.write_page(*page)));
        steps.push(sync(&self.path));
        match self.journal {
            Journal::Truncate => {
                steps.extend([Step::Truncate { path: journal.clone(), size: 0 }, sync(&journal)]);
            }
            Journal::Persist => steps.extend([write(0, 28), sync(&journal)]),
            Journal::Delete | Journal::Wal => {}
        }
        steps.push(Step::Close { path: journal.clone() });
        if self.journal == Journal::Delete {
            steps.push(Step::Remove { path: journal });
        }
    }

    /// Commits with a write-ahead log.
    fn append(&mut self, dirty: &[u64], steps: &mut Vec<Step>) {
        let log = self.beside("-wal");
        let write = |at, length| Step::Write { path: log.clone(), at, length };
        if !self.log.is_open {
            let index = self.beside("-shm");
            steps.push(Step::Truncate { path: log.clone(), size: 0 });
            steps.push(Step::Truncate { path: index.clone(), size: 3 });
            let ends =
                (1..=8).map(|n| Step::Write { path: index.clone(), at: n * PAGE_BYTES - 1, length: 1 });
            steps.extend(ends);
        }
        if self.log.pages == 0 {
            steps.extend([write(0, 32), sync(&log)]);
        }
        if !self.log.is_open {
            steps.push(sync(&self.dir));
            self.log.is_open = true;
        }
        // The head of the file changes, and so is in the log, only if the file grows.
        let dirty = if dirty.len() == 2 { &dirty[1..] } else { dirty };
        for page in dirty {
            let at = 32 + self.log.pages * (PAGE_BYTES + 24);
            steps.extend([write(at, 24), write(at + 24, PAGE_BYTES)]);
            self.log.pages += 1;
            self.log.dirty.insert(*page);
        }
        steps.push(sync(&log));
        if self.log.pages >= LOG_PAGES {
            self.bring_home(steps);
        }
    }

    /// Copies the log's pages to the database.
    fn bring_home(&mut self, steps: &mut Vec<Step>) {
        steps.push(sync(&self.beside("-wal")));
        let dirty = std::mem::take(&mut self.log.dirty);
        steps.extend(dirty.into_iter().map(|page| self.write_page(page)));
        steps.push(Step::Truncate { path: self.path.clone(), size: self.pages() * PAGE_BYTES });
        steps.push(sync(&self.path));
        self.log.pages = 0;
    }

    fn pages(&self) -> u64 {
        FIRST_LEAF - 1 + self.rows.div_ceil(ROWS_A_LEAF)
    }

    fn write_page(&self, page: u64) -> Step {
        Step::Write { path: self.path.clone(), at: (page - 1) * PAGE_BYTES, length: PAGE_BYTES }
    }

    fn beside(&self, end: &str) -> String {
        format!("{}{end}", self.path)
    }
}

/// The change made by a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Inserts a row with this number.
    Insert(u64),
    /// Updates the row with this number.
    Update(u64),
}

/// SQLite syncs only the content (fdatasync).
fn sync(path: &str) -> Step {
    Step::Fdatasync { path: path.to_owned() }
}
