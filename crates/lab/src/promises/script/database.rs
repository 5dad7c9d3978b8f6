//! Transactions of a database, with the calls of SQLite's pager in two journal modes.
//!
//! The calls are those of [`guest::workload::Database`]. With the rollback journal, the directory is synced
//! after the journal was removed, as SQLite does with `synchronous=EXTRA`: before that, the transaction may be
//! rolled back.

use guest::{
    Content, Op,
    examine::DATABASE_PAGES,
    pager::{self, Commit},
};

use super::{Writer, at, dir_of};
use crate::promises::promise::{Kind, Must};

/// Maximum number of pages that a transaction changes.
const CHANGED_PAGES: u64 = 4;
/// Number of pages in the log that triggers a checkpoint. SQLite's default of 1000 would never be reached.
const LOG_PAGES: usize = 24;

/// A database, and the state of its files.
pub(super) struct Database {
    path: String,
    kind: Kind,
    file: u32,
    transaction: u32,
    /// Version of each page.
    versions: Vec<u32>,
    /// Pages in the log, the oldest first.
    log: Vec<u32>,
    log_exists: bool,
    /// Number of the log's present contents, and the sum of its frames.
    salt: u32,
    sum: u32,
}

impl Database {
    pub fn new(path: &str, kind: Kind, file: u32) -> Database {
        Database {
            path: path.to_owned(),
            kind,
            file,
            transaction: 1,
            versions: vec![1; DATABASE_PAGES],
            log: Vec::new(),
            log_exists: false,
            salt: 0,
            sum: 0,
        }
    }

    /// Makes the database page by page.
    pub fn create(&self, writer: &mut Writer) {
        (1..=DATABASE_PAGES as u32).for_each(|page| writer.step(self.write_page(page)));
        writer.step(sync(&self.path));
    }

    /// Promises the state of the last transaction.
    pub fn promise_current(&self, writer: &mut Writer) {
        writer.promise(self.kind, &self.path, Must::Database(vec![self.versions.clone()]));
    }

    /// Performs a transaction. Until it is durable, the state before it or after it is promised.
    pub fn change(&mut self, writer: &mut Writer) {
        let mut pages: Vec<u32> = vec![1];
        for _ in 0..1 + writer.rng.below(CHANGED_PAGES) {
            let page = 2 + writer.rng.below(DATABASE_PAGES as u64 - 1) as u32;
            if !pages.contains(&page) {
                pages.push(page);
            }
        }
        let before = self.versions.clone();
        self.transaction += 1;
        pages.iter().for_each(|page| self.versions[*page as usize - 1] = self.transaction);
        writer.promise(self.kind, &self.path, Must::Database(vec![before.clone(), self.versions.clone()]));
        match self.kind {
            Kind::SqliteWal => self.append(&pages, writer),
            _ => self.roll(&before, &pages, writer),
        }
        self.promise_current(writer);
        if self.log.len() >= LOG_PAGES {
            self.bring_home(writer);
        }
    }

    /// Commits with a rollback journal.
    fn roll(&self, before: &[u32], pages: &[u32], writer: &mut Writer) {
        let journal = self.beside("-journal");
        let mut at_byte = 0;
        let mut append = |bytes: &[u8], writer: &mut Writer| {
            writer.step(write(&journal, at_byte, bytes));
            at_byte += bytes.len() as u64;
        };
        append(&pager::journal_header(), writer);
        for page in pages {
            let old = pager::page(self.file, before[*page as usize - 1], *page);
            append(&pager::journal_record(*page, &old), writer);
        }
        writer.step(sync(&journal));
        writer.step(sync(dir_of(&self.path)));
        // Their number is written after them.
        writer.step(write(&journal, 0, &pager::journal_start(pages.len() as u32)));
        writer.step(sync(&journal));
        pages.iter().for_each(|page| writer.step(self.write_page(*page)));
        writer.step(sync(&self.path));
        writer.step(Op::Unlink { path: at(&journal) });
        writer.step(sync(dir_of(&self.path)));
    }

    /// Commits with a write-ahead log.
    fn append(&mut self, pages: &[u32], writer: &mut Writer) {
        let log = self.beside("-wal");
        if self.log.is_empty() {
            self.salt += 1;
            self.sum = self.salt;
            writer.step(write(&log, 0, &pager::log_header(self.salt)));
            writer.step(sync(&log));
        }
        if !self.log_exists {
            writer.step(sync(dir_of(&self.path)));
            self.log_exists = true;
        }
        for (n, page) in pages.iter().enumerate() {
            let commit = if n + 1 == pages.len() { Commit::Yes } else { Commit::No };
            let content = pager::page(self.file, self.versions[*page as usize - 1], *page);
            let (frame, sum) = pager::log_frame(*page, commit, self.salt, self.sum, &content);
            self.sum = sum;
            let at_byte = pager::LOG_HEADER_BYTES + self.log.len() * pager::LOG_FRAME_BYTES;
            writer.step(write(&log, at_byte as u64, &frame));
            self.log.push(*page);
        }
        writer.step(sync(&log));
    }

    /// Copies the log's pages to the database.
    fn bring_home(&mut self, writer: &mut Writer) {
        writer.step(sync(&self.beside("-wal")));
        let mut pages = std::mem::take(&mut self.log);
        pages.sort_unstable();
        pages.dedup();
        pages.iter().for_each(|page| writer.step(self.write_page(*page)));
        writer.step(sync(&self.path));
    }

    fn write_page(&self, page: u32) -> Op {
        let first = u64::from(page - 1) * pager::PAGE_SECTORS;
        let version = self.versions[page as usize - 1];
        let content = Content::Stamped { file: self.file, version, first, sectors: pager::PAGE_SECTORS };
        Op::Write { path: at(&self.path), offset: u64::from(page - 1) * pager::PAGE_BYTES as u64, content }
    }

    fn beside(&self, end: &str) -> String {
        format!("{}{end}", self.path)
    }
}

fn write(path: &str, offset: u64, bytes: &[u8]) -> Op {
    Op::Write { path: at(path), offset, content: Content::Bytes(bytes.to_vec().into()) }
}

/// SQLite syncs only the content (fdatasync).
fn sync(path: &str) -> Op {
    Op::Fsync { path: at(path), data_only: true }
}
