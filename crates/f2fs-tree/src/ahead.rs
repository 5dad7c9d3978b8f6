//! A source that another thread reads ahead, so that two processors work while a tree is copied.
//!
//! The thread collects entries and data in batches. There are [`BATCHES`] of them, which are used again and again, so the
//! memory is bounded.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use f2fs::{Error, Result};

use crate::{Entry, Kind, Run, Source};

/// Number of batches.
const BATCHES: usize = 4;
/// Bytes of data, names and attributes after which a batch is handed over.
const BATCH_BYTES: usize = 256 << 10;
/// Number of entries, runs and errors after which a batch is handed over.
const BATCH_ITEMS: usize = 128;
/// Maximum length of a run, in bytes.
const RUN_BYTES: usize = 1 << 20;

/// Calls `work` with a source of the same tree that another thread reads ahead. Where the host gives no thread, `work`
/// reads the source itself.
///
/// If `work` returns before the end of the tree, this waits until the source has answered its last call.
pub fn read_ahead<T>(source: &mut (dyn Source + Send), work: impl FnOnce(&mut dyn Source) -> T) -> T {
    let (full, batches) = mpsc::channel();
    let (empty, used) = mpsc::channel();
    let (verdicts, verdict) = mpsc::channel();
    let data_is_wanted = AtomicBool::new(true);
    for _ in 0..BATCHES {
        let _ = empty.send(Batch::default());
    }
    let reader = Reader { full, used, verdict, data_is_wanted: &data_is_wanted };
    let ahead =
        Ahead { batches, empty, verdicts, data_is_wanted: &data_is_wanted, batch: None, pending: false };
    run(source, reader, ahead, work)
}

/// Lets the reader work in another thread while `work` has its result.
fn run<T>(
    source: &mut (dyn Source + Send),
    reader: Reader<'_>,
    ahead: Ahead<'_>,
    work: impl FnOnce(&mut dyn Source) -> T,
) -> T {
    let place = Mutex::new(Some(source));
    let take = || place.lock().unwrap_or_else(PoisonError::into_inner).take();
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("read-ahead".into());
        let started = thread.spawn_scoped(scope, || {
            let reader = reader;
            if let Some(source) = take() {
                reader.read(source);
            }
        });
        match started {
            // Its end tells the reader that the rest of the tree is not needed.
            Ok(_) => work(&mut { ahead }),
            Err(_) => work(take().expect("no thread has taken it")),
        }
    })
}

/// A part of the tree, in the order of the source.
#[derive(Default)]
struct Batch {
    items: VecDeque<Item>,
    /// The data of the runs, one after another.
    data: Vec<u8>,
    /// Number of bytes of `data` that the runs have.
    filled: usize,
    /// Number of bytes of `data` that were taken or skipped.
    taken: usize,
    /// Number of bytes that the entries have on the heap.
    entry_bytes: usize,
}

enum Item {
    Entry(Entry),
    /// The first name of a file that has several. The thread waits for the verdict about it.
    FirstName(Entry),
    /// A run of the last entry. Its bytes follow those of the run before it.
    Run(Run),
    /// An error in place of a run.
    NoRun(Error),
    /// An error in place of an entry.
    NoEntry(Error),
}

/// The sink's decision about the first name of a file.
enum Verdict {
    Taken,
    Refused,
}

/// The end of the work: either the tree has ended, or nobody needs the rest of it.
struct Ended;

/// The side of the thread.
struct Reader<'a> {
    full: Sender<Batch>,
    used: Receiver<Batch>,
    verdict: Receiver<Verdict>,
    data_is_wanted: &'a AtomicBool,
}

impl Reader<'_> {
    fn read(&self, source: &mut dyn Source) {
        let Ok(mut batch) = self.empty_batch() else { return };
        while let Ok(next) = self.entry(source, batch) {
            batch = next;
        }
    }

    /// Reads an entry and its data. Returns the batch that goes on.
    fn entry(&self, source: &mut dyn Source, mut batch: Batch) -> Result<Batch, Ended> {
        let has_data = match source.next_entry() {
            Ok(Some(entry)) => {
                let has_data = matches!(entry.kind, Kind::File { .. });
                let item = if source.is_first_name() { Item::FirstName } else { Item::Entry };
                batch.entry_bytes += entry.heap_bytes();
                batch.items.push_back(item(entry));
                has_data
            }
            Ok(None) => return self.finish(batch),
            Err(error) => return self.error(batch, error, Item::NoEntry),
        };
        if source.is_first_name() {
            batch = self.swap(batch)?;
            if let Verdict::Refused = self.verdict.recv().map_err(|_| Ended)? {
                source.refused();
                return Ok(batch);
            }
        }
        while has_data && self.data_is_wanted.load(Ordering::Relaxed) {
            match source.next_run(batch.room()) {
                Ok(Some(run)) => {
                    batch.filled += run.length;
                    batch.items.push_back(Item::Run(run));
                }
                Ok(None) => break,
                Err(error) => batch = self.error(batch, error, Item::NoRun)?,
            }
            batch = self.swap_if_full(batch)?;
        }
        self.swap_if_full(batch)
    }

    /// Enters an error, which ends the tree unless it is a loss.
    fn error(
        &self,
        mut batch: Batch,
        error: Error,
        item: impl FnOnce(Error) -> Item,
    ) -> Result<Batch, Ended> {
        let is_loss = matches!(error, Error::Lost { .. });
        batch.items.push_back(item(error));
        if is_loss { self.swap_if_full(batch) } else { self.finish(batch) }
    }

    fn finish(&self, batch: Batch) -> Result<Batch, Ended> {
        // If nobody takes it, nobody needs it.
        let _ = self.full.send(batch);
        Err(Ended)
    }

    fn swap_if_full(&self, batch: Batch) -> Result<Batch, Ended> {
        match batch.filled + batch.entry_bytes >= BATCH_BYTES || batch.items.len() >= BATCH_ITEMS {
            true => self.swap(batch),
            false => Ok(batch),
        }
    }

    /// Hands a batch over and returns an empty one.
    fn swap(&self, batch: Batch) -> Result<Batch, Ended> {
        self.full.send(batch).map_err(|_| Ended)?;
        self.empty_batch()
    }

    fn empty_batch(&self) -> Result<Batch, Ended> {
        self.used.recv().map_err(|_| Ended)
    }
}

impl Batch {
    /// Returns space for a run.
    fn room(&mut self) -> &mut [u8] {
        let end = self.filled + RUN_BYTES;
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        &mut self.data[self.filled..end]
    }
}

/// The side of the caller.
struct Ahead<'a> {
    batches: Receiver<Batch>,
    empty: Sender<Batch>,
    verdicts: Sender<Verdict>,
    data_is_wanted: &'a AtomicBool,
    /// The batch that is read.
    batch: Option<Batch>,
    /// True while the thread waits for the verdict about the last entry.
    pending: bool,
}

impl Ahead<'_> {
    /// Returns the batch with the next item, or `None` at the end of the tree.
    fn batch(&mut self) -> Option<&mut Batch> {
        while self.batch.as_ref().is_none_or(|batch| batch.items.is_empty()) {
            if let Some(mut used) = self.batch.take() {
                (used.filled, used.taken, used.entry_bytes) = (0, 0, 0);
                // After its end, the thread needs no batch.
                let _ = self.empty.send(used);
            }
            self.batch = self.batches.recv().ok();
            self.batch.as_ref()?;
        }
        self.batch.as_mut()
    }

    fn decide(&mut self, verdict: Verdict) {
        if std::mem::take(&mut self.pending) {
            let _ = self.verdicts.send(verdict);
        }
    }
}

impl Source for Ahead<'_> {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        self.decide(Verdict::Taken);
        while let Some(batch) = self.batch() {
            match batch.items.pop_front() {
                Some(Item::Entry(entry)) => return Ok(Some(entry)),
                Some(Item::FirstName(entry)) => {
                    self.pending = true;
                    return Ok(Some(entry));
                }
                Some(Item::NoEntry(error)) => return Err(error),
                Some(Item::Run(run)) => batch.taken += run.length,
                // Of data that the caller did not want to read.
                Some(Item::NoRun(error)) if !matches!(error, Error::Lost { .. }) => return Err(error),
                Some(Item::NoRun(_)) | None => {}
            }
        }
        Ok(None)
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        self.decide(Verdict::Taken);
        let Some(batch) = self.batch() else { return Ok(None) };
        match batch.items.pop_front() {
            Some(Item::Run(mut run)) => {
                let length = run.length.min(buf.len());
                buf[..length].copy_from_slice(&batch.data[batch.taken..batch.taken + length]);
                batch.taken += length;
                let part = Run { offset: run.offset, length };
                if length < run.length {
                    run = Run { offset: run.offset + length as u64, length: run.length - length };
                    batch.items.push_front(Item::Run(run));
                }
                Ok(Some(part))
            }
            Some(Item::NoRun(error)) => Err(error),
            Some(other) => {
                batch.items.push_front(other);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn is_first_name(&self) -> bool {
        self.pending
    }

    fn refused(&mut self) {
        self.decide(Verdict::Refused);
    }

    fn skip_data(&mut self) {
        self.data_is_wanted.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::Metadata;

    /// A tree of `left` files: number n has n runs of n bytes each, and a loss after each third run.
    struct Files {
        left: usize,
        number: usize,
        run: usize,
        /// Error instead of the file of this number.
        fails_at: Option<usize>,
        /// Number of runs that were read.
        runs_read: usize,
    }

    impl Files {
        fn new(left: usize) -> Files {
            Files { left, number: 0, run: 0, fails_at: None, runs_read: 0 }
        }
    }

    fn file(number: usize) -> Entry {
        let kind = Kind::File { size: (number * number) as u64, data: None };
        Entry { path: format!("{number}").into_bytes(), kind, meta: Metadata::default() }
    }

    fn lost() -> Error {
        Error::lost(b"part", Error::NotFound)
    }

    impl Source for Files {
        fn next_entry(&mut self) -> Result<Option<Entry>> {
            if self.left == 0 {
                return Ok(None);
            }
            self.left -= 1;
            self.number += 1;
            self.run = 0;
            match self.fails_at {
                Some(number) if number == self.number => Err(Error::NotDirectory),
                _ if self.number % 10 == 0 => Err(lost()),
                _ => Ok(Some(file(self.number))),
            }
        }

        fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
            self.run += 1;
            if self.run > self.number {
                return Ok(None);
            }
            if self.run % 3 == 0 {
                return Err(lost());
            }
            self.runs_read += 1;
            let length = self.number.min(buf.len());
            buf[..length].fill(self.run as u8);
            Ok(Some(Run { offset: (self.run * self.number) as u64, length }))
        }
    }

    /// Reads a tree with a buffer of `room` bytes. Returns a line for each entry and loss, and the bytes of each run.
    fn all(source: &mut dyn Source, room: usize) -> Vec<String> {
        let (mut lines, mut buf) = (Vec::new(), vec![0; room]);
        loop {
            match source.next_entry() {
                Ok(None) => return lines,
                Ok(Some(entry)) => lines.push(format!("{:?}", entry.path)),
                Err(error) => {
                    lines.push(error.to_string());
                    if !matches!(error, Error::Lost { .. }) {
                        return lines;
                    }
                    continue;
                }
            }
            let mut bytes = Vec::new();
            loop {
                match source.next_run(&mut buf) {
                    Ok(None) => break,
                    Ok(Some(run)) => {
                        let at = run.offset..;
                        bytes.extend(at.zip(&buf[..run.length]).map(|(at, byte)| (at, *byte)));
                    }
                    Err(error) => lines.push(error.to_string()),
                }
            }
            lines.push(format!("{bytes:?}"));
        }
    }

    #[test]
    fn a_tree_read_ahead_has_the_same_entries_data_and_losses() {
        for (count, fails_at) in [(0, None), (300, None), (300, Some(217)), (9, Some(1))] {
            let files = || Files { fails_at, ..Files::new(count) };
            let expected = all(&mut files(), 1 << 10);
            for room in [1 << 10, 7] {
                assert_eq!(read_ahead(&mut files(), |source| all(source, room)), expected, "{count} files");
            }
        }
    }

    #[test]
    fn runs_are_as_long_as_the_buffer_at_most_and_may_be_skipped() {
        let mut buf = [0; 5];
        let read: Result<usize> = read_ahead(&mut Files::new(400), |source| {
            let mut first_bytes = 0;
            while let Some(entry) = source.next_entry().or_else(|error| match error {
                Error::Lost { .. } => Ok(Some(file(0))),
                error => Err(error),
            })? {
                if entry != file(0) {
                    first_bytes += source.next_run(&mut buf)?.map_or(0, |run| run.length);
                }
            }
            Ok(first_bytes)
        });
        // The first files are shorter than the buffer; each tenth is lost.
        assert_eq!(read.unwrap(), 1 + 2 + 3 + 4 + 5 * (360 - 4));
    }

    #[test]
    fn the_end_of_the_work_ends_the_reading() {
        let mut endless = Files::new(usize::MAX);
        let first = read_ahead(&mut endless, |source| source.next_entry().unwrap());
        assert_eq!(first, Some(file(1)));
    }

    #[test]
    fn no_data_is_read_after_it_was_declined() {
        let mut files = Files::new(20_000);
        let entries = read_ahead(&mut files, |source| {
            source.next_entry().unwrap();
            source.skip_data();
            let rest = std::iter::from_fn(|| match source.next_entry() {
                Ok(None) => None,
                Ok(Some(_)) => Some(1),
                Err(error) => Some(usize::from(!matches!(error, Error::Lost { .. }))),
            });
            1 + rest.sum::<usize>()
        });
        assert_eq!(entries, 18_000);
        // All batches may have been full before.
        assert!(files.runs_read < 100_000, "{} of 133 million runs", files.runs_read);
    }

    /// Entries with long names of their owners, and the number of those that the caller has not had.
    struct LongNames<'a> {
        left: usize,
        waiting: &'a AtomicUsize,
        most_waiting: &'a AtomicUsize,
    }

    impl Source for LongNames<'_> {
        fn next_entry(&mut self) -> Result<Option<Entry>> {
            let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
            self.left = left;
            let mut entry = file(left);
            entry.meta.names.user = Some("n".repeat(BATCH_BYTES / 2));
            let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_waiting.fetch_max(waiting, Ordering::Relaxed);
            Ok(Some(entry))
        }

        fn next_run(&mut self, _: &mut [u8]) -> Result<Option<Run>> {
            Ok(None)
        }
    }

    /// 128 entries of a batch had no limit of bytes.
    #[test]
    fn a_batch_counts_the_bytes_of_its_entries() {
        let (waiting, most_waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut source = LongNames { left: 200, waiting: &waiting, most_waiting: &most_waiting };
        let count = read_ahead(&mut source, |source| {
            let entries = std::iter::from_fn(|| {
                let entry = source.next_entry().unwrap();
                waiting.fetch_sub(usize::from(entry.is_some()), Ordering::Relaxed);
                entry
            });
            entries.count()
        });
        assert_eq!(count, 200);
        // Two entries fill a batch; the caller may be in the middle of another one.
        let most = most_waiting.load(Ordering::Relaxed);
        assert!(most <= 2 * (BATCHES + 1), "{most} entries were read ahead");
    }

    /// Files with two names each. The second name stands for the first one if that was refused.
    struct Pairs {
        names: std::vec::IntoIter<&'static str>,
        first: Option<&'static str>,
        is_first: bool,
    }

    impl Source for Pairs {
        fn next_entry(&mut self) -> Result<Option<Entry>> {
            let Some(name) = self.names.next() else { return Ok(None) };
            let kind = match self.first.take() {
                Some(first) => {
                    self.is_first = false;
                    Kind::HardLink { to: first.into() }
                }
                None => {
                    self.is_first = true;
                    self.first = Some(name);
                    Kind::Fifo
                }
            };
            Ok(Some(Entry { path: name.into(), kind, meta: Metadata::default() }))
        }

        fn next_run(&mut self, _: &mut [u8]) -> Result<Option<Run>> {
            Ok(None)
        }

        fn refused(&mut self) {
            if std::mem::take(&mut self.is_first) {
                self.first = None;
            }
        }

        fn is_first_name(&self) -> bool {
            self.is_first
        }
    }

    #[test]
    fn the_name_after_a_refused_one_takes_its_place() {
        let names = vec!["a", "b", "bad", "c", "d", "e", "f"];
        let mut pairs = Pairs { names: names.into_iter(), first: None, is_first: false };
        let seen = read_ahead(&mut pairs, |source| {
            let mut seen = Vec::new();
            while let Some(entry) = source.next_entry().unwrap() {
                if entry.path == b"bad" {
                    source.refused();
                    continue;
                }
                seen.push((String::from_utf8(entry.path).unwrap(), matches!(entry.kind, Kind::Fifo)));
            }
            seen
        });
        let seen: Vec<_> = seen.iter().map(|(name, first)| (name.as_str(), *first)).collect();
        let expected = [("a", true), ("b", false), ("c", true), ("d", false), ("e", true), ("f", false)];
        assert_eq!(seen, expected);
    }
}
