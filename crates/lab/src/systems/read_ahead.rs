//! A page cache with readahead, as a kernel has in front of a file system. It makes reads of the engine in
//! this process comparable with those of a mounted file system.
//!
//! The rules are Linux's (`ondemand_readahead`). A sequential reader gets growing windows. A random reader
//! that reaches a page whose predecessors are cached counts as one of several sequential readers. Any other
//! reader gets only the requested page. One page of each window is marked: reading it triggers the next
//! window before that is needed. A kernel does not wait for such a window, so each page has the time at which it is there.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
};

/// Page size.
pub const PAGE_BYTES: usize = 4096;
/// Maximum window in pages: Linux's default (`VM_READAHEAD_PAGES`, 128 KiB), also for cards with shorter or longer
/// requests.
const MOST_AHEAD: u64 = 32;

/// Why pages are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// The reader waits for the first of them.
    Now,
    /// The reader has come to the marked page of the window before.
    Ahead,
}

/// The result of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched {
    /// Number of bytes.
    pub bytes: usize,
    /// Time at which they are there.
    pub ready_ns: u64,
}

/// Fetches whole pages from a byte offset on.
pub type Fetch<'a> = &'a mut dyn FnMut(Demand, u64, &mut [u8]) -> io::Result<Fetched>;

/// Cached pages of one file.
#[derive(Debug, Default)]
pub struct Pages {
    pages: HashMap<u64, Page>,
    /// Time at which all pages of the last read are there.
    ready_ns: u64,
    /// Page numbers in the order of insertion.
    order: VecDeque<u64>,
    most_pages: usize,
    /// Pages that trigger the next window.
    marked: HashSet<u64>,
    /// Length of the last window in pages, and its marked page.
    window: u64,
    last_mark: u64,
    /// The page requested last.
    last: Option<u64>,
}

/// Pages that are fetched together.
#[derive(Debug, Clone, Copy)]
struct Window {
    index: u64,
    count: u64,
    /// The page to mark, if it is one of them.
    marked: u64,
    /// Number of pages of the file.
    end: u64,
}

#[derive(Debug)]
struct Page {
    bytes: Box<[u8]>,
    ready_ns: u64,
}

impl Pages {
    /// Creates an empty cache of `memory_bytes`.
    pub fn new(memory_bytes: u64) -> Pages {
        // A whole window always fits, so that it stays until it is used.
        let most_pages = (memory_bytes as usize / PAGE_BYTES).max(MOST_AHEAD as usize);
        Pages { most_pages, ..Pages::default() }
    }

    /// Returns the time at which all pages of the last read are there.
    pub fn ready_ns(&self) -> u64 {
        self.ready_ns
    }

    /// Fills `buf` from byte `at` of a file of `size` bytes.
    ///
    /// # Errors
    /// Errors of `fetch`, and a range beyond the end of the file.
    pub fn read(&mut self, at: u64, buf: &mut [u8], size: u64, fetch: Fetch<'_>) -> io::Result<()> {
        self.ready_ns = 0;
        if at.checked_add(buf.len() as u64).is_none_or(|end| end > size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < buf.len() {
            let place = at + done as u64;
            let (index, inside) = (place / PAGE_BYTES as u64, place as usize % PAGE_BYTES);
            let end = size.div_ceil(PAGE_BYTES as u64);
            if !self.pages.contains_key(&index) {
                let wanted = ((inside + buf.len() - done).div_ceil(PAGE_BYTES)) as u64;
                let ahead = self.plan(index, wanted);
                self.fetch(Window { index, count: ahead.0, marked: ahead.1, end }, Demand::Now, fetch)?;
            } else if self.marked.remove(&index) {
                let next = (index + 1..=index + MOST_AHEAD).find(|n| !self.pages.contains_key(n));
                if let Some(next) = next.filter(|next| *next < end) {
                    let is_own = self.window > 0 && self.last_mark == index;
                    self.window = Pages::grown(if is_own { self.window } else { next - index + 1 });
                    let window = Window { index: next, count: self.window, marked: next, end };
                    self.fetch(window, Demand::Ahead, fetch)?;
                }
            }
            let page = &self.pages[&index];
            let length = (PAGE_BYTES - inside).min(buf.len() - done);
            buf[done..done + length].copy_from_slice(&page.bytes[inside..inside + length]);
            self.ready_ns = page.ready_ns.max(self.ready_ns);
            done += length;
            self.last = Some(index);
        }
        Ok(())
    }

    /// Drops the pages that a write makes stale.
    pub fn forget(&mut self, at: u64, length: usize) {
        if self.pages.is_empty() {
            return;
        }
        for index in at / PAGE_BYTES as u64..(at + length as u64).div_ceil(PAGE_BYTES as u64) {
            self.pages.remove(&index);
            self.marked.remove(&index);
        }
    }

    /// Fetches the missing pages of a window, and marks a page if it is among them.
    fn fetch(&mut self, window: Window, demand: Demand, fetch: Fetch<'_>) -> io::Result<()> {
        let Window { index, count, marked, end } = window;
        let after = index + count.min(end - index);
        let mut at = index;
        while at < after {
            let run = (at..after).take_while(|n| !self.pages.contains_key(n)).count() as u64;
            if run > 0 {
                let mut bytes = vec![0; run as usize * PAGE_BYTES];
                let fetched = fetch(demand, at * PAGE_BYTES as u64, &mut bytes)?;
                for (n, page) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
                    self.keep(at + n as u64, Page { bytes: page.into(), ready_ns: fetched.ready_ns });
                }
            }
            at += run.max(1);
        }
        if (index..after).contains(&marked) {
            self.marked.insert(marked);
            self.last_mark = marked;
        }
        Ok(())
    }

    /// Returns the length of the window that follows one of this length.
    fn grown(window: u64) -> u64 {
        if window < MOST_AHEAD / 16 { 4 * window } else { (2 * window).min(MOST_AHEAD) }
    }

    /// Returns the number of pages to read if `index` is missing and `wanted` pages are requested, and the
    /// page to mark. The latter is past the window if no page is to be marked.
    fn plan(&mut self, index: u64, wanted: u64) -> (u64, u64) {
        let most = MOST_AHEAD;
        let is_next = match self.last {
            Some(last) => index == last || index == last + 1,
            None => index == 0,
        };
        if is_next {
            self.window = match self.window {
                0 => (4 * wanted.next_power_of_two()).min(most),
                window => Pages::grown(window),
            };
            return (self.window.max(wanted), index + wanted);
        }
        let history =
            (1..=most.min(index)).take_while(|n| self.pages.contains_key(&(index - n))).count() as u64;
        if history <= wanted {
            self.window = 0;
            return (wanted, u64::MAX);
        }
        let history = if history >= index { 2 * history } else { history };
        self.window = (history + wanted).min(most).max(wanted);
        (self.window, index + self.window - 1)
    }

    fn keep(&mut self, index: u64, page: Page) {
        while self.pages.len() >= self.most_pages {
            let Some(oldest) = self.order.pop_front() else { break };
            self.pages.remove(&oldest);
            self.marked.remove(&oldest);
        }
        self.pages.insert(index, page);
        self.order.push_back(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads pages in this order; returns the fetched runs as first page and count.
    fn fetched(order: impl IntoIterator<Item = u64>, pages: &mut Pages) -> Vec<(u64, u64)> {
        let mut seen = Vec::new();
        for index in order {
            let mut byte = [0];
            pages
                .read(index * PAGE_BYTES as u64, &mut byte, 1 << 20, &mut |_, at, buf| {
                    seen.push((at / PAGE_BYTES as u64, (buf.len() / PAGE_BYTES) as u64));
                    buf.fill((at / PAGE_BYTES as u64) as u8);
                    Ok(Fetched { bytes: buf.len(), ready_ns: 0 })
                })
                .unwrap();
        }
        seen
    }

    #[test]
    fn windows_of_a_sequential_reader_grow() {
        let mut pages = Pages::new(1 << 20);
        assert_eq!(fetched(0..64, &mut pages), [(0, 4), (4, 8), (12, 16), (28, 32), (60, 32), (92, 32)]);
    }

    #[test]
    fn a_random_reader_gets_a_single_page_unless_neighbours_are_cached() {
        let mut pages = Pages::new(1 << 20);
        assert_eq!(fetched([9, 50, 51, 20, 52], &mut pages), [(9, 1), (50, 1), (51, 4), (20, 1), (55, 8)]);
        // 50 to 62 are cached: a reader that jumps to the page after them is one of several readers.
        assert_eq!(fetched([63], &mut pages), [(63, 14)]);
    }

    #[test]
    fn memory_is_bounded_and_writes_are_seen() {
        let mut pages = Pages::new(2 * PAGE_BYTES as u64);
        fetched((1..60).map(|n| 4 * n), &mut pages);
        assert_eq!(pages.pages.len(), 32);
        pages.forget(220 * PAGE_BYTES as u64 + 1, 1);
        assert_eq!(fetched([220], &mut pages), [(220, 1)]);
        let mut byte = [0];
        let error = pages
            .read(1 << 20, &mut byte, 1 << 20, &mut |_, _, _| Ok(Fetched { bytes: 0, ready_ns: 0 }))
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// A window that is read ahead is waited for when its first page is needed, and not before.
    #[test]
    fn a_window_that_is_read_ahead_is_there_later() {
        let (mut pages, mut waits) = (Pages::new(1 << 20), Vec::new());
        for index in 0..13 {
            let mut fetch = |demand: Demand, _: u64, buf: &mut [u8]| {
                let ready_ns = if demand == Demand::Ahead { 1000 + index } else { index };
                Ok(Fetched { bytes: buf.len(), ready_ns })
            };
            pages.read(index * PAGE_BYTES as u64, &mut [0], 1 << 20, &mut fetch).unwrap();
            waits.push(pages.ready_ns());
        }
        assert_eq!(waits, [0, 0, 0, 0, 1001, 1001, 1001, 1001, 1001, 1001, 1001, 1001, 1004]);
    }
}
