//! Queue of free blocks that have not been discarded on the device yet.
//!
//! *Invariants*: every queued block is free, and the newest checkpoint on the device does not need it. Before
//! a log writes to a segment, the segment is [claimed](Discards::claim): none of its blocks is queued any
//! more, and no discard of it is in flight. Discards are issued without access to the volume, so no lock on
//! the volume is held meanwhile.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use block::DiscardUnit;

use crate::{Error, Result, disk::Io, format::BLOCKS_PER_SEGMENT, units::BlockAddr};

/// Minimum size of a discard after a checkpoint, in blocks: aligned pieces of this size that are completely
/// free (Linux, `DEFAULT_DISCARD_GRANULARITY`). Smaller pieces stay in the segment table until their
/// neighbours are free.
pub(super) const UNIT_BLOCKS: u32 = 16;
/// Maximum size of one request, in blocks: 8 MiB with blocks of 4 KiB. It bounds the time for which a log may
/// have to wait for a segment.
const REQUEST_BLOCKS: u32 = 2048;
/// Maximum number of queued runs, about 1 MiB of memory. Runs beyond that are left to [`Engine::trim`].
///
/// [`Engine::trim`]: crate::engine::Engine::trim
const RUNS_MAX: usize = 32 << 10;
/// After so many runs without room, those are dropped from the queue that no request would cover.
const LEFT_OUT_MAX: usize = RUNS_MAX / 8;
/// With so many failures in a row the device is not asked again.
const FAILURES_MAX: u32 = 3;

/// The discard queue of one volume. It can be shared with a thread that issues the requests.
pub struct Discards {
    state: Mutex<State>,
    /// Notified when a request has ended.
    ended: Condvar,
}

struct State {
    /// `None` once the queue is stopped, and if the device cannot discard.
    io: Option<Arc<Io>>,
    unit: Unit,
    /// True while no request is issued.
    is_paused: bool,
    /// Requests that failed since one succeeded.
    failures: u32,
    /// Requests that failed.
    failed: u64,
    /// Length of each run by its first block. Runs neither overlap nor touch.
    runs: BTreeMap<u32, u32>,
    /// Runs that found no room in the queue.
    left_out: usize,
    /// Requests in flight.
    under_way: Vec<Range<u32>>,
    /// First block from which the next request is taken: requests go upwards and wrap around.
    next: u32,
}

/// Unit of the device's discards in blocks: aligned pieces of `blocks`, the first of which begins at `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unit {
    blocks: u32,
    first: u32,
}

impl Unit {
    fn of(unit: DiscardUnit, block_bytes: u64) -> Unit {
        let in_blocks = |bytes: u64| u32::try_from(bytes.div_ceil(block_bytes)).unwrap_or(u32::MAX);
        let blocks = in_blocks(unit.bytes).max(1);
        Unit { blocks, first: in_blocks(unit.first_bytes) % blocks }
    }

    /// The whole units of a run; empty if there is none.
    fn within(self, run: &Range<u32>) -> Range<u32> {
        let units = |block: u64, round: u64| {
            let before = u64::from(self.blocks - self.first) % u64::from(self.blocks);
            let whole = (block + before + round) / u64::from(self.blocks) * u64::from(self.blocks);
            whole.saturating_sub(before)
        };
        let start = units(run.start.into(), u64::from(self.blocks) - 1);
        let end = units(run.end.into(), 0).max(start);
        // A run that ends before its first unit would have one past the largest address.
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(start), Ok(end)) => start..end,
            _ => run.end..run.end,
        }
    }
}

impl Discards {
    pub(super) fn new(io: Arc<Io>) -> Arc<Discards> {
        let unit = io.device().discard_unit();
        let unit = unit.map(|unit| Unit::of(unit, io.block_size().bytes() as u64));
        let state = State {
            io: unit.map(|_| io),
            unit: unit.unwrap_or(Unit { blocks: 1, first: 0 }),
            is_paused: false,
            failures: 0,
            failed: 0,
            left_out: 0,
            runs: BTreeMap::new(),
            under_way: Vec::new(),
            next: 0,
        };
        Arc::new(Discards { state: Mutex::new(state), ended: Condvar::new() })
    }

    /// Returns true if no more requests will be issued, because the device cannot discard or the queue was [stopped](Self::stop).
    pub fn is_stopped(&self) -> bool {
        self.lock().io.is_none()
    }

    /// Lets the device be asked again although it has failed too often.
    pub(super) fn try_again(&self) {
        self.lock().failures = 0;
    }

    /// Waits for the requests that are in flight, and returns the number of requests that have failed since the volume
    /// was opened. If a trim finds another number at its end than at its beginning, another thread may have issued
    /// some of its requests in vain.
    pub fn failed(&self) -> u64 {
        self.wait_for_in_flight().failed
    }

    /// Issues no requests until [`resume`](Self::resume). Blocks stay queued, and more may be added. Those in flight are not
    /// waited for: see [`finish_in_flight`](Self::finish_in_flight).
    pub fn pause(&self) {
        self.lock().is_paused = true;
    }

    /// Lets requests be issued again.
    pub fn resume(&self) {
        self.lock().is_paused = false;
    }

    /// Returns true between [`pause`](Self::pause) and [`resume`](Self::resume).
    pub fn is_paused(&self) -> bool {
        self.lock().is_paused
    }

    /// Waits for the requests that are in flight now.
    pub fn finish_in_flight(&self) {
        drop(self.wait_for_in_flight());
    }

    fn wait_for_in_flight(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let in_flight = state.under_way.clone();
        while state.under_way.iter().any(|run| in_flight.contains(run)) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Size of a unit that the device discards, in blocks; at most one segment.
    pub(super) fn unit_blocks(&self) -> u32 {
        self.lock().unit.blocks.min(BLOCKS_PER_SEGMENT)
    }

    /// Returns true if no block is queued.
    pub fn is_empty(&self) -> bool {
        self.lock().runs.is_empty()
    }

    /// Number of queued blocks.
    pub fn blocks(&self) -> u64 {
        self.lock().runs.values().map(|length| u64::from(*length)).sum()
    }

    /// Issues one discard of up to 2048 consecutive blocks, or of one unit of the device if that is larger. Returns their
    /// number, or 0 if no whole unit is queued or the queue is [paused](Self::pause).
    ///
    /// # Errors
    /// The error of the device. The queue is then emptied. A device that says that it cannot discard is not asked again.
    /// One that failed three times in a row is asked again by a [trim](crate::engine::Engine::trim) only.
    pub fn issue(&self) -> Result<u32> {
        let mut state = self.lock();
        let Some(io) = state.io.clone().filter(|_| !state.is_paused) else { return Ok(0) };
        let Some(run) = state.take_next() else { return Ok(0) };
        state.under_way.push(run.clone());
        drop(state);
        let in_flight = InFlight { discards: self, run: run.clone() };
        let result = io.discard(BlockAddr(run.start), run.end - run.start);
        let cannot = io.device().discard_unit().is_none() || is_refusal(&result);
        drop(io);
        let mut state = self.lock();
        state.failures = if result.is_ok() { 0 } else { state.failures + 1 };
        if result.is_err() {
            state.failed += 1;
            state.runs.clear();
        }
        if cannot {
            state.stop();
        }
        drop(state);
        drop(in_flight);
        result.map(|()| run.end - run.start)
    }

    /// Stops the queue: drops all queued blocks and waits for the requests in flight. The device is not used
    /// afterwards.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stop();
        while !state.under_way.is_empty() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Queues free blocks, unless the queue is [stopped](Self::is_stopped).
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

    /// Removes blocks that are about to be used from the queue. Returns false if a request is in flight for any of them.
    pub(super) fn try_claim(&self, addr: BlockAddr, blocks: u32) -> bool {
        let wanted = addr.0..addr.0 + blocks;
        let mut state = self.lock();
        let is_free = !state.under_way.iter().any(|run| meet(run, &wanted));
        if is_free {
            state.remove(&wanted);
        }
        is_free
    }

    /// Returns the block ranges of the requests in flight.
    pub(super) fn under_way(&self) -> Vec<Range<u32>> {
        self.lock().under_way.clone()
    }

    /// Waits until one of the requests in flight has ended. Returns at once if there is none.
    pub(super) fn wait(&self) {
        let mut state = self.lock();
        let Some(first) = state.under_way.first().cloned() else { return };
        while state.under_way.contains(&first) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight. It ends when this is dropped, also by a panic of the device's code: a log may wait for it.
struct InFlight<'a> {
    discards: &'a Discards,
    run: Range<u32>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.discards.lock();
        // Another thread may have a request for the same blocks in flight: only one of the two ends here.
        if let Some(at) = state.under_way.iter().position(|other| *other == self.run) {
            state.under_way.swap_remove(at);
        }
        drop(state);
        self.discards.ended.notify_all();
    }
}

impl State {
    fn stop(&mut self) {
        self.io = None;
        self.runs.clear();
    }

    fn add(&mut self, new: Range<u32>) {
        if self.io.is_none() || self.failures >= FAILURES_MAX {
            return;
        }
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
        if self.runs.len() >= RUNS_MAX && self.left_out % LEFT_OUT_MAX == 0 {
            // Runs that hold no whole unit of the device may wait for ever.
            let unit = self.unit;
            self.runs.retain(|start, length| !unit.within(&(*start..*start + *length)).is_empty());
        }
        match self.runs.len() < RUNS_MAX {
            true => _ = self.runs.insert(start, end - start),
            false => self.left_out += 1,
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

    /// Takes out the next run of whole units. Smaller ones wait for their neighbours.
    fn take_next(&mut self) -> Option<Range<u32>> {
        let unit = self.unit;
        let whole = |(start, length): (&u32, &u32)| {
            let run = unit.within(&(*start..*start + *length));
            (!run.is_empty()).then_some(run)
        };
        let next = self.runs.range(self.next..).find_map(whole);
        let whole = next.or_else(|| self.runs.range(..self.next).find_map(whole))?;
        let most = (REQUEST_BLOCKS / unit.blocks).max(1).saturating_mul(unit.blocks);
        let run = whole.start..whole.end.min(whole.start.saturating_add(most));
        self.remove(&run);
        self.next = run.end;
        Some(run)
    }
}

/// Returns true if the device says that it has no discards.
fn is_refusal(result: &Result<()>) -> bool {
    matches!(result, Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::Unsupported)
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
    fn requests_consist_of_whole_units_of_the_device() {
        let mut rng = Rng::new(2);
        for _ in 0..2000 {
            let blocks = 1 + rng.below(40) as u32;
            let unit = Unit { blocks, first: rng.below(blocks.into()) as u32 };
            let start = rng.below(200) as u32;
            let run = start..start + rng.below(200) as u32;
            let starts = |block: &u32| block % unit.blocks == unit.first;
            let expected: Vec<u32> =
                run.clone().filter(starts).filter(|at| at + unit.blocks <= run.end).collect();
            let within = unit.within(&run);
            assert_eq!(
                within.clone().step_by(blocks as usize).collect::<Vec<_>>(),
                expected,
                "{unit:?} {run:?}"
            );
            assert_eq!(within.len() % blocks as usize, 0);
        }
        let queue = queue();
        queue.lock().unit = Unit { blocks: 1024, first: 256 };
        queue.add(BlockAddr(0), 1000);
        assert!(queue.lock().take_next().is_none(), "no whole unit is free");
        queue.add(BlockAddr(1000), 6000);
        let runs: Vec<Range<u32>> = std::iter::from_fn(|| queue.lock().take_next()).collect();
        assert_eq!(runs, [256..2304, 2304..4352, 4352..6400]);
        assert_eq!(queue.blocks(), 256 + 600, "the ends wait");
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
        queue.lock().unit.blocks = 16;
        (0..2 * LEFT_OUT_MAX as u32).for_each(|n| queue.add(BlockAddr(4 * RUNS_MAX as u32 + 32 * n), 16));
        assert!(queue.lock().take_next().is_some(), "runs of whole units find room");
    }

    #[test]
    fn a_request_ends_alone_although_another_has_the_same_blocks() {
        let queue = queue();
        let request = || {
            queue.lock().under_way.push(0..16);
            InFlight { discards: &queue, run: 0..16 }
        };
        let (first, second) = (request(), request());
        drop(first);
        assert!(!queue.try_claim(BlockAddr(8), 1), "the second request may still discard the block");
        drop(second);
        assert!(queue.try_claim(BlockAddr(8), 1));
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
