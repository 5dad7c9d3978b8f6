//! The lock of a mounted volume.
//!
//! *Invariants*: readers share the volume, a writer has it exclusively. Writers enter in the order of their
//! arrival. A writer may [let readers in](Writing::let_readers_in) for a while without giving up its turn:
//! files can be read while the device flushes, and nothing changes meanwhile. Readers do not queue behind
//! waiting writers: while a writer waits for a slow reader, further readers enter. Neither side starves: a
//! writer waits only for the readers that were there when it arrived, and for those that entered until these
//! had left. Readers that waited for a writer enter before the next one.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use f2fs::engine::{self, Engine, Transaction};

use crate::{Errno, file_system::Result};

/// The lock with the volume, until the volume is [taken out](VolumeLock::take).
pub struct VolumeLock {
    gate: Gate,
    /// Never contended: the gate admits only threads that can lock it at once.
    volume: RwLock<Option<Engine>>,
    /// True if a panic made the volume unusable at a time when the thread had unlocked `volume`, which is then not
    /// poisoned.
    is_broken: AtomicBool,
}

impl VolumeLock {
    /// Creates a lock for a volume.
    pub fn new(volume: Engine) -> VolumeLock {
        VolumeLock {
            gate: Gate::default(),
            volume: RwLock::new(Some(volume)),
            is_broken: AtomicBool::new(false),
        }
    }

    /// Locks the volume for reading.
    pub fn read(&self) -> Result<Reading<'_>> {
        let pass = self.gate.enter_reader();
        let volume = self.volume.read().map_err(|_| Errno::IO)?;
        if volume.is_none() || self.is_poisoned() {
            return Err(Errno::IO);
        }
        Ok(Reading { volume, _pass: pass })
    }

    /// Locks the volume for changes on behalf of a caller with these rights.
    pub fn write(&self, rights: engine::Caller) -> Result<Writing<'_>> {
        let turn = self.gate.take_turn();
        let room = turn.enter();
        let volume = self.volume.write().map_err(|_| Errno::IO)?;
        if volume.is_none() || self.is_poisoned() {
            return Err(Errno::IO);
        }
        Ok(Writing { volume: Some(volume), room: Some(room), turn, lock: self, rights })
    }

    /// Returns true if a writer has its turn or waits for it, so that another writer would have to wait.
    pub fn has_writers(&self) -> bool {
        self.gate.has_writers()
    }

    /// Returns the number of times that a writer has let readers in, at the end of its turn or before.
    #[cfg(test)]
    pub fn reader_turns(&self) -> u64 {
        self.gate.lock().left
    }

    /// Returns the number of writers that have their turn or wait for it.
    pub fn writers(&self) -> u64 {
        let state = self.gate.lock();
        state.asked - state.ended
    }

    /// Returns true if a panic interrupted a change, so that part of it is missing.
    pub fn is_poisoned(&self) -> bool {
        self.volume.is_poisoned() || self.is_broken.load(Ordering::Acquire)
    }

    /// Returns true if a new reader need not wait.
    #[cfg(test)]
    pub fn is_open_to_readers(&self) -> bool {
        !self.gate.lock().is_closed()
    }

    /// Runs `work` without a lock. If it panics, the volume counts as [poisoned](Self::is_poisoned).
    pub fn breaking_on_panic<T>(&self, work: impl FnOnce() -> T) -> T {
        let guard = BreaksOnUnwind(&self.is_broken);
        let done = work();
        std::mem::forget(guard);
        done
    }

    /// Takes the volume out for good. All other callers wait until `end` returns. `end` gets `Err` if a panic
    /// interrupted a change or an earlier `end`.
    pub fn take<T>(&self, end: impl FnOnce(Result<Option<Engine>, Option<Engine>>) -> T) -> T {
        let turn = self.gate.take_turn();
        let _room = turn.enter();
        let taken = match self.volume.write() {
            Ok(mut volume) if self.is_broken.load(Ordering::Acquire) => Err(volume.take()),
            Ok(mut volume) => Ok(volume.take()),
            Err(poisoned) => Err(poisoned.into_inner().take()),
        };
        self.breaking_on_panic(|| end(taken))
    }
}

/// A shared lock on the volume.
pub struct Reading<'a> {
    // Dropped before `_pass`, which opens the gate to others.
    volume: RwLockReadGuard<'a, Option<Engine>>,
    _pass: ReaderPass<'a>,
}

/// An exclusive lock on the volume.
pub struct Writing<'a> {
    // Dropped in this order, so that the volume is unlocked before the gate opens.
    volume: Option<RwLockWriteGuard<'a, Option<Engine>>>,
    room: Option<Inside<'a>>,
    turn: Turn<'a>,
    lock: &'a VolumeLock,
    rights: engine::Caller,
}

impl Writing<'_> {
    /// Begins a change with the rights that the volume was locked with.
    pub fn begin(&mut self) -> Transaction<'_> {
        let rights = self.rights;
        Engine::begin(self, rights)
    }

    /// Runs `work` while readers may enter; other writers keep waiting. If `work` panics, the change that
    /// waits for it is never finished, and the volume counts as [poisoned](VolumeLock::is_poisoned).
    pub fn let_readers_in<T>(&mut self, work: impl FnOnce() -> T) -> Result<T> {
        (self.volume, self.room) = (None, None);
        let done = self.lock.breaking_on_panic(work);
        self.room = Some(self.turn.enter());
        self.volume = Some(self.lock.volume.write().map_err(|_| Errno::IO)?);
        Ok(done)
    }
}

/// Sets a flag on drop, that is when a panic unwinds; otherwise it is forgotten.
struct BreaksOnUnwind<'a>(&'a AtomicBool);

impl Drop for BreaksOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

const LOCKED: &str = "it is there while it is locked";

impl Deref for Reading<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.volume.as_ref().expect(LOCKED)
    }
}

impl Deref for Writing<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.volume.as_ref().and_then(|volume| volume.as_ref()).expect(LOCKED)
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        self.volume.as_mut().and_then(|volume| volume.as_mut()).expect(LOCKED)
    }
}

/// Decides which threads may lock the volume.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of threads that wait for a change.
    sleepers: usize,
    /// Number of turns that writers have requested, and number of turns that have ended.
    asked: u64,
    ended: u64,
    writer: Writer,
    /// Number of readers inside, and how many of them entered before the writer began to wait.
    readers: usize,
    earlier: usize,
    /// Number of times a writer has begun to wait. It distinguishes earlier from later readers.
    waits: u64,
    /// Number of times a writer has left; number of readers that wait for the next time; number of readers
    /// that may enter since the last time and have not yet.
    left: u64,
    queued: usize,
    owed: usize,
}

/// State of the writer that has its turn.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// There is none, or it lets readers in.
    #[default]
    Absent,
    /// It waits for readers to leave.
    Waiting,
    Inside,
}

/// A reader inside.
struct ReaderPass<'a> {
    gate: &'a Gate,
    /// Value of `waits` when the reader entered.
    came: u64,
}

/// The turn of one writer.
struct Turn<'a> {
    gate: &'a Gate,
}

/// A writer inside.
struct Inside<'a> {
    gate: &'a Gate,
}

impl Gate {
    fn enter_reader(&self) -> ReaderPass<'_> {
        let mut state = self.lock();
        if state.is_closed() {
            let left = state.left;
            state.queued += 1;
            while state.left == left {
                state = self.wait(state);
            }
            state.owed -= 1;
            if state.owed == 0 {
                // The next writer may be waiting for this.
                self.wake(&state);
            }
        }
        state.readers += 1;
        ReaderPass { gate: self, came: state.waits }
    }

    fn take_turn(&self) -> Turn<'_> {
        let mut state = self.lock();
        let number = state.asked;
        state.asked += 1;
        while state.ended != number {
            state = self.wait(state);
        }
        Turn { gate: self }
    }

    fn has_writers(&self) -> bool {
        let state = self.lock();
        state.asked != state.ended
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.sleepers -= 1;
        state
    }

    /// Wakes the threads that wait for a change. To wake nobody costs a call of the kernel, too.
    fn wake(&self, state: &State) {
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }
}

impl State {
    /// Returns true if new readers have to wait.
    fn is_closed(&self) -> bool {
        match self.writer {
            Writer::Absent => false,
            Writer::Waiting => self.earlier == 0,
            Writer::Inside => true,
        }
    }
}

impl<'a> Turn<'a> {
    fn enter(&self) -> Inside<'a> {
        let gate = self.gate;
        let mut state = gate.lock();
        // Readers that waited for the previous writer enter first.
        while state.owed > 0 {
            state = gate.wait(state);
        }
        state.writer = Writer::Waiting;
        state.earlier = state.readers;
        state.waits += 1;
        while state.readers > 0 {
            state = gate.wait(state);
        }
        state.writer = Writer::Inside;
        Inside { gate }
    }
}

impl Drop for ReaderPass<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.readers -= 1;
        if state.writer == Writer::Waiting && self.came < state.waits {
            state.earlier -= 1;
        }
        if state.writer == Writer::Waiting && state.readers == 0 {
            self.gate.wake(&state);
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.writer = Writer::Absent;
        state.left += 1;
        let queued = std::mem::take(&mut state.queued);
        state.owed += queued;
        // Only readers wait for this. Writers wait for the end of the turn.
        if queued > 0 {
            self.gate.wake(&state);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.ended += 1;
        self.gate.wake(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    use super::*;

    /// Waits for a state; a test that never reaches it hangs.
    fn until(gate: &Gate, is_so: impl Fn(&State) -> bool) {
        while !is_so(&gate.lock()) {
            thread::yield_now();
        }
    }

    #[test]
    fn readers_pass_a_writer_that_waits_for_an_earlier_one() {
        let gate = Arc::new(Gate::default());
        let slow = gate.enter_reader();
        let writer = thread::spawn({
            let gate = gate.clone();
            move || drop(gate.take_turn().enter())
        });
        until(&gate, |state| state.writer == Writer::Waiting);
        // On this thread: if readers had to wait, the test would deadlock here.
        drop(gate.enter_reader());
        let later = gate.enter_reader();
        assert!(!gate.lock().is_closed());
        drop(slow);
        assert!(gate.lock().is_closed(), "the writer waits for no earlier caller");
        drop(later);
        writer.join().unwrap();
        assert!(!gate.has_writers());
    }

    #[test]
    fn readers_that_waited_come_before_the_next_writer() {
        let gate = Arc::new(Gate::default());
        let turn = gate.take_turn();
        let inside = turn.enter();
        let (entered, order) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _pass = gate.enter_reader();
                entered.store(1 + order.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            });
            until(&gate, |state| state.queued == 1);
            drop(inside);
            // The same writer enters again, as after each slice of cleaning.
            let inside = turn.enter();
            assert_eq!(entered.load(Ordering::SeqCst), 1);
            drop(inside);
        });
    }

    #[test]
    fn a_writer_that_lets_readers_in_keeps_its_turn() {
        let gate = Gate::default();
        let turn = gate.take_turn();
        drop(turn.enter());
        drop(gate.enter_reader());
        assert!(gate.has_writers());
        assert_eq!(gate.lock().writer, Writer::Absent);
        drop(turn);
        assert!(!gate.has_writers());
    }

    #[test]
    fn writers_are_alone_and_all_come_in() {
        let (gate, inside, writes) = (Gate::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for thread in 0..8 {
                let (gate, inside, writes) = (&gate, &inside, &writes);
                scope.spawn(move || {
                    for _ in 0..500 {
                        if thread % 4 == 0 {
                            let turn = gate.take_turn();
                            for _ in 0..2 {
                                let _room = turn.enter();
                                assert_eq!(inside.fetch_add(1000, Ordering::SeqCst), 0);
                                inside.fetch_sub(1000, Ordering::SeqCst);
                            }
                            writes.fetch_add(1, Ordering::SeqCst);
                        } else {
                            let _pass = gate.enter_reader();
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < 1000);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(writes.load(Ordering::SeqCst), 1000);
    }
}
