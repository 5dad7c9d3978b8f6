//! The lock over a mounted volume.
//!
//! *Invariants*: readers share the volume, a writer has it alone. Writers take turns in the order in which they come, and
//! a writer may let readers in [for a while](Writing::let_readers_in) without giving up its turn: so a device is flushed
//! while files are read, and nothing changes meanwhile. Readers do not queue behind writers who wait: a writer that waits
//! for a slow reader lets others pass until that reader is done. Neither side starves: a writer waits no longer than
//! for the readers that were there when it came, and those that came until these were done; readers that wait for a writer
//! are let in before the next.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use f2fs::Volume;

use crate::{Errno, file_system::Answer};

/// The lock, and the volume until it is [taken out](VolumeLock::take).
pub struct VolumeLock {
    gate: Gate,
    /// Nobody ever waits here: the gate lets in who may lock it.
    volume: RwLock<Option<Volume>>,
    /// A writer panicked while it had let readers in. The lock over the volume, which it did not hold, cannot tell.
    is_broken: AtomicBool,
}

impl VolumeLock {
    /// A lock over a volume.
    pub fn new(volume: Volume) -> VolumeLock {
        VolumeLock {
            gate: Gate::default(),
            volume: RwLock::new(Some(volume)),
            is_broken: AtomicBool::new(false),
        }
    }

    /// Locks the volume to read it.
    pub fn read(&self) -> Answer<Reading<'_>> {
        let pass = self.gate.enter_reader();
        let volume = self.volume.read().map_err(|_| Errno::IO)?;
        if volume.is_none() || self.is_poisoned() {
            return Err(Errno::IO);
        }
        Ok(Reading { volume, _pass: pass })
    }

    /// Locks the volume to change it.
    pub fn write(&self) -> Answer<Writing<'_>> {
        let turn = self.gate.take_turn();
        let room = turn.enter();
        let volume = self.volume.write().map_err(|_| Errno::IO)?;
        if volume.is_none() || self.is_poisoned() {
            return Err(Errno::IO);
        }
        Ok(Writing { volume: Some(volume), room: Some(room), turn, lock: self })
    }

    /// Whether a writer has its turn or waits for it, so that another one would have to wait.
    pub fn has_writers(&self) -> bool {
        self.gate.has_writers()
    }

    /// Returns true if a panic interrupted a change, so that part of it is missing.
    pub fn is_poisoned(&self) -> bool {
        self.volume.is_poisoned() || self.is_broken.load(Ordering::Acquire)
    }

    /// Whether a reader that comes now need not wait.
    #[cfg(test)]
    pub fn is_open_to_readers(&self) -> bool {
        !self.gate.lock().is_closed()
    }

    /// Takes the volume out for good. Everybody else waits until `end` is done with it, which gets `Err` with the volume
    /// where an operation was broken off in the middle, by a panic.
    pub fn take<T>(&self, end: impl FnOnce(Result<Option<Volume>, Option<Volume>>) -> T) -> T {
        let turn = self.gate.take_turn();
        let _room = turn.enter();
        let taken = match self.volume.write() {
            Ok(mut volume) if self.is_broken.load(Ordering::Acquire) => Err(volume.take()),
            Ok(mut volume) => Ok(volume.take()),
            Err(poisoned) => Err(poisoned.into_inner().take()),
        };
        end(taken)
    }
}

/// The volume while it is read.
pub struct Reading<'a> {
    // Before the gate opens to others.
    volume: RwLockReadGuard<'a, Option<Volume>>,
    _pass: ReaderPass<'a>,
}

/// The volume while it is changed.
pub struct Writing<'a> {
    // In this order: nobody finds the gate open and the volume locked.
    volume: Option<RwLockWriteGuard<'a, Option<Volume>>>,
    room: Option<Inside<'a>>,
    turn: Turn<'a>,
    lock: &'a VolumeLock,
}

impl Writing<'_> {
    /// Does some work while readers have the volume; other writers wait as before. If `work` panics, the change that
    /// waits for it is never finished, and the volume counts as [poisoned](VolumeLock::is_poisoned).
    pub fn let_readers_in<T>(&mut self, work: impl FnOnce() -> T) -> Answer<T> {
        (self.volume, self.room) = (None, None);
        let guard = BreaksOnUnwind(&self.lock.is_broken);
        let done = work();
        std::mem::forget(guard);
        self.room = Some(self.turn.enter());
        self.volume = Some(self.lock.volume.write().map_err(|_| Errno::IO)?);
        Ok(done)
    }
}

/// Sets a flag when it is dropped; forgotten unless a panic unwinds.
struct BreaksOnUnwind<'a>(&'a AtomicBool);

impl Drop for BreaksOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

const LOCKED: &str = "it is there while it is locked";

impl Deref for Reading<'_> {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        self.volume.as_ref().expect(LOCKED)
    }
}

impl Deref for Writing<'_> {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        self.volume.as_ref().and_then(|volume| volume.as_ref()).expect(LOCKED)
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut Volume {
        self.volume.as_mut().and_then(|volume| volume.as_mut()).expect(LOCKED)
    }
}

/// Decides who may lock the volume.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Turns that writers have asked for, and turns that have ended.
    asked: u64,
    ended: u64,
    writer: Writer,
    /// Readers inside, and those of them that were there when the writer began to wait.
    readers: usize,
    earlier: usize,
    /// How often a writer has begun to wait: tells later readers from earlier ones.
    waits: u64,
    /// How often a writer has left, readers that wait for that, and those of them that have not come in since.
    left: u64,
    queued: usize,
    owed: usize,
}

/// The writer whose turn it is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// There is none, or it lets readers in.
    #[default]
    Absent,
    /// Waits for readers to leave.
    Waiting,
    Inside,
}

/// The right to read.
struct ReaderPass<'a> {
    gate: &'a Gate,
    /// What `waits` was when it came.
    came: u64,
}

/// The turn of a writer.
struct Turn<'a> {
    gate: &'a Gate,
}

/// A writer that is inside.
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
                // The next writer may be waiting for that.
                self.changed.notify_all();
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

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether readers that come now have to wait.
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
        // Readers that waited for the writer before come first.
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
        let is_waited_for = state.writer == Writer::Waiting && state.readers == 0;
        drop(state);
        if is_waited_for {
            self.gate.changed.notify_all();
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.writer = Writer::Absent;
        state.left += 1;
        state.owed += std::mem::take(&mut state.queued);
        drop(state);
        self.gate.changed.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.gate.lock().ended += 1;
        self.gate.changed.notify_all();
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

    /// Waits until the state is such; a test that never gets there hangs.
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
        // On this thread: it would wait for itself.
        drop(gate.enter_reader());
        let later = gate.enter_reader();
        assert!(!gate.lock().is_closed());
        drop(slow);
        assert!(gate.lock().is_closed(), "the writer waits for nobody who came before it");
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
            // The same writer again, as after each slice of cleaning.
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
