//! Queue of free blocks that have not been discarded on the device yet.
//!
//! *Invariants*: every queued block is free, and the newest checkpoint on the device does not need it. Before
//! a log writes to a segment, the segment is [claimed](Discards::claim): none of its blocks is queued any
//! more, and no discard of it is in flight. Discards are issued without access to the volume, so no lock on
//! the volume is held meanwhile.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::Io;
use crate::{Result, units::BlockAddr};

/// Minimum size of a discard after a checkpoint, in blocks: aligned pieces of this size that are completely
/// free (Linux, `DEFAULT_DISCARD_GRANULARITY`). Smaller pieces stay in the segment table until their
/// neighbours are free.
pub(super) const UNIT_BLOCKS: u32 = 16;
/// Maximum size of one request, in blocks: 8 MiB with blocks of 4 KiB. It bounds the time for which a log may
/// have to wait for a segment.
const REQUEST_BLOCKS: u32 = 2048;
/// Maximum number of queued runs, about 1 MiB of memory. Runs beyond that are left to [`Volume::trim`].
///
/// [`Volume::trim`]: super::Volume::trim
const RUNS_MAX: usize = 32 << 10;

/// The discard queue of one volume. It can be shared with a thread that issues the requests.
pub struct Discards {
    state: Mutex<State>,
    /// Notified when a request has ended.
    ended: Condvar,
}

struct State {
    /// `None` once the queue is closed.
    io: Option<Arc<Io>>,
    /// Length of each run by its first block. Runs neither overlap nor touch.
    runs: BTreeMap<u32, u32>,
    /// Requests in flight.
    under_way: Vec<Range<u32>>,
    /// First block from which the next request is taken: requests go upwards and wrap around.
    next: u32,
}

impl Discards {
    pub(super) fn new(io: Arc<Io>) -> Arc<Discards> {
        let state = State { io: Some(io), runs: BTreeMap::new(), under_way: Vec::new(), next: 0 };
        Arc::new(Discards { state: Mutex::new(state), ended: Condvar::new() })
    }

    /// Returns true if no block is queued.
    pub fn is_empty(&self) -> bool {
        self.lock().runs.is_empty()
    }

    /// Number of queued blocks.
    pub fn blocks(&self) -> u64 {
        self.lock().runs.values().map(|length| u64::from(*length)).sum()
    }

    /// Issues one discard of up to 2048 consecutive blocks. Returns their number, or 0 if no block is queued.
    ///
    /// # Errors
    /// The error of the device. The queue is then emptied, because a device that refuses one request is not
    /// asked again.
    pub fn issue(&self) -> Result<u32> {
        let mut state = self.lock();
        let Some((io, run)) = state.io.clone().zip(state.take_next()) else { return Ok(0) };
        state.under_way.push(run.clone());
        drop(state);
        let result = io.discard(BlockAddr(run.start), run.end - run.start);
        drop(io);
        let mut state = self.lock();
        state.under_way.retain(|other| *other != run);
        if result.is_err() {
            state.runs.clear();
        }
        drop(state);
        self.ended.notify_all();
        result.map(|()| run.end - run.start)
    }

    /// Closes the queue: drops all queued blocks and waits for the requests in flight. The device is not used
    /// afterwards.
    pub fn close(&self) {
        let mut state = self.lock();
        state.io = None;
        state.runs.clear();
        while !state.under_way.is_empty() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Queues free blocks.
    pub(super) fn add(&self, addr: BlockAddr, blocks: u32) {
        self.lock().add(addr.0..addr.0 + blocks);
    }

    /// Removes blocks that are about to be used from the queue, and waits for requests in flight for any of
    /// them.
    pub(super) fn claim(&self, addr: BlockAddr, blocks: u32) {
        let wanted = addr.0..addr.0 + blocks;
        let mut state = self.lock();
        state.remove(&wanted);
        while state.under_way.iter().any(|run| meet(run, &wanted)) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the block ranges of the requests in flight.
    pub(super) fn under_way(&self) -> Vec<Range<u32>> {
        self.lock().under_way.clone()
    }

    /// Waits until a request in flight has ended. Returns false if there was none.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.lock();
        let Some(first) = state.under_way.first().cloned() else { return false };
        while state.under_way.contains(&first) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, new: Range<u32>) {
        let (mut start, mut end) = (new.start, new.end);
        if let Some((before, length)) =
            self.runs.range(..start).next_back().map(|(at, length)| (*at, *length))
        {
            if before + length >= start {
                (start, end) = (before, end.max(before + length));
            }
        }
        while let Some((at, length)) = self.runs.range(start..=end).next().map(|(at, length)| (*at, *length))
        {
            self.runs.remove(&at);
            end = end.max(at + length);
        }
        if self.runs.len() < RUNS_MAX {
            self.runs.insert(start, end - start);
        }
    }

    fn remove(&mut self, gone: &Range<u32>) {
        let before = self.runs.range(..gone.start).next_back().map(|(at, length)| *at..at + length);
        if let Some(run) = before.filter(|run| run.end > gone.start) {
            self.runs.insert(run.start, gone.start - run.start);
            if run.end > gone.end {
                self.runs.insert(gone.end, run.end - gone.end);
            }
        }
        while let Some((at, length)) = self.runs.range(gone.clone()).next().map(|(at, length)| (*at, *length))
        {
            self.runs.remove(&at);
            if at + length > gone.end {
                self.runs.insert(gone.end, at + length - gone.end);
            }
        }
    }

    fn take_next(&mut self) -> Option<Range<u32>> {
        let next = self.runs.range(self.next..).next().or_else(|| self.runs.iter().next());
        let (start, length) = next.map(|(start, length)| (*start, *length))?;
        let run = start..start + length.min(REQUEST_BLOCKS);
        self.remove(&run);
        self.next = run.end;
        Some(run)
    }
}

fn meet(one: &Range<u32>, other: &Range<u32>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use block::{MemoryDevice, Rng};

    use super::*;
    use crate::format::BlockSize;

    fn queue() -> Arc<Discards> {
        Discards::new(Arc::new(Io::new(Arc::new(MemoryDevice::new(1 << 20)), BlockSize::B4K)))
    }

    #[test]
    fn runs_equal_a_set_of_blocks() {
        let queue = queue();
        let (mut rng, mut model) = (Rng::new(1), BTreeSet::new());
        for _ in 0..20_000 {
            let (addr, blocks) = (rng.below(200) as u32, 1 + rng.below(20) as u32);
            match rng.chance(0.6) {
                true => {
                    queue.add(BlockAddr(addr), blocks);
                    model.extend(addr..addr + blocks);
                }
                false => {
                    queue.claim(BlockAddr(addr), blocks);
                    model.retain(|block| !(addr..addr + blocks).contains(block));
                }
            }
            let state = queue.lock();
            let blocks: Vec<u32> = state.runs.iter().flat_map(|(at, length)| *at..at + length).collect();
            assert!(blocks.iter().eq(&model));
            let apart = |pair: &[(&u32, &u32)]| pair[0].0 + pair[0].1 < *pair[1].0;
            assert!(state.runs.iter().collect::<Vec<_>>().windows(2).all(apart), "neighbours are one run");
        }
    }

    #[test]
    fn requests_are_bounded_and_go_round() {
        let queue = queue();
        queue.lock().next = 50;
        queue.add(BlockAddr(0), 10);
        queue.add(BlockAddr(100), 20);
        let starts: Vec<u32> = (0..2).map(|_| queue.lock().take_next().unwrap().start).collect();
        assert_eq!(starts, [100, 0]);
        queue.add(BlockAddr(0), REQUEST_BLOCKS + 1);
        let lengths: Vec<u32> =
            (0..2).map(|_| queue.lock().take_next().unwrap()).map(|run| run.end - run.start).collect();
        assert_eq!(lengths, [REQUEST_BLOCKS, 1]);
        assert!(queue.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let queue = queue();
        (0..2 * RUNS_MAX as u32).for_each(|n| queue.add(BlockAddr(2 * n), 1));
        assert_eq!(queue.lock().runs.len(), RUNS_MAX);
    }

    #[test]
    fn a_claim_waits_for_the_request_under_way_and_for_no_other() {
        let queue = queue();
        queue.lock().under_way.push(0..16);
        queue.claim(BlockAddr(16), 100);
        let waiting = thread::spawn({
            let queue = queue.clone();
            move || queue.claim(BlockAddr(8), 1)
        });
        assert!(!waiting.is_finished() || queue.lock().under_way.is_empty());
        queue.lock().under_way.clear();
        queue.ended.notify_all();
        waiting.join().unwrap();
    }
}
