//! Requests that their caller interrupts.
//!
//! *Invariant*: an interrupt and the request that it is about are handled by different threads, in any order. An interrupt
//! that comes first is remembered.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Maximum number of interrupts that are remembered. Most requests cannot be interrupted, and nobody asks for theirs.
const EARLY_MAX: usize = 256;

/// The requests in progress that can be interrupted.
#[derive(Default)]
pub struct Interrupts(Mutex<State>);

#[derive(Default)]
struct State {
    watched: HashMap<u64, Arc<AtomicBool>>,
    early: VecDeque<u64>,
}

/// A request that can be interrupted, until this is dropped.
pub struct Watched<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
    is_interrupted: Arc<AtomicBool>,
}

impl Interrupts {
    /// Watches for interrupts of the request with this number.
    pub fn watch(&self, unique: u64) -> Watched<'_> {
        let mut state = self.lock();
        let is_interrupted = Arc::new(AtomicBool::new(state.early.contains(&unique)));
        state.watched.insert(unique, is_interrupted.clone());
        Watched { interrupts: self, unique, is_interrupted }
    }

    /// The caller of the request with this number has received a signal.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.lock();
        if let Some(watched) = state.watched.get(&unique) {
            return watched.store(true, Ordering::Relaxed);
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched<'_> {
    /// Returns true if the caller wants no more of it.
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.interrupts.lock().watched.remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_reaches_its_request_in_either_order() {
        let interrupts = Interrupts::default();
        let (one, other) = (interrupts.watch(2), interrupts.watch(4));
        interrupts.interrupt(2);
        assert!(one.is_interrupted() && !other.is_interrupted());
        interrupts.interrupt(6);
        assert!(interrupts.watch(6).is_interrupted());
        drop((one, other));
        assert!(interrupts.lock().watched.is_empty());
        (0..1000).for_each(|n| interrupts.interrupt(n));
        assert_eq!(interrupts.lock().early.len(), EARLY_MAX);
    }
}
