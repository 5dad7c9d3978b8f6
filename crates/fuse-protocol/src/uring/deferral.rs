//! Answers that come later than the handler of their request returns.
//!
//! An entry has one request from its receipt to its answer. If the answer waits for the kernel's write-back, then
//! the kernel needs other entries of the same queue for the writes. So the number of answers that a queue waits
//! for is limited, and some entries are left.

use std::sync::{
    Arc, Condvar, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use rustix::io::Errno;

type Answer = Result<Vec<u8>, Errno>;

/// The answers that a queue waits for.
pub struct Deferrals {
    waiting: AtomicUsize,
    most: usize,
}

impl Deferrals {
    /// Creates a count with a limit.
    pub fn new(most: usize) -> Arc<Deferrals> {
        Arc::new(Deferrals { waiting: AtomicUsize::new(0), most })
    }
}

/// The place of one answer that is waited for. It can be used again.
pub struct Slot {
    queue: Arc<Deferrals>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    answer: Option<Answer>,
    is_counted: bool,
}

impl Slot {
    /// Creates the place for answers of a worker of a queue.
    pub fn new(queue: Arc<Deferrals>) -> Arc<Slot> {
        Arc::new(Slot { queue, state: Mutex::default(), arrived: Condvar::new() })
    }

    /// Returns true if the answer may wait for other requests of the mount, and counts it.
    pub fn may_wait(&self) -> bool {
        let counted = self.queue.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            (waiting < self.queue.most).then_some(waiting + 1)
        });
        self.lock().is_counted |= counted.is_ok();
        counted.is_ok()
    }

    /// Puts the answer in.
    pub fn put(&self, answer: Result<&[u8], Errno>) {
        self.lock().answer = Some(answer.map(<[u8]>::to_vec));
        self.arrived.notify_one();
    }

    /// Waits for the answer.
    pub fn wait(&self) -> Answer {
        let state = self.arrived.wait_while(self.lock(), |state| state.answer.is_none());
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.is_counted) {
            self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        state.answer.take().unwrap_or(Err(Errno::IO))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_waits_for_a_limited_number_of_answers() {
        let queue = Deferrals::new(2);
        let slots: Vec<_> = (0..3).map(|_| Slot::new(queue.clone())).collect();
        let may_wait: Vec<bool> = slots.iter().map(|slot| slot.may_wait()).collect();
        assert_eq!(may_wait, [true, true, false]);
        slots[2].put(Err(Errno::AGAIN));
        assert_eq!(slots[2].wait(), Err(Errno::AGAIN));
        assert!(!slots[2].may_wait(), "an answer that was not counted makes no room");
        slots[0].put(Ok(b"later"));
        assert_eq!(slots[0].wait(), Ok(b"later".to_vec()));
        assert!(slots[2].may_wait());
    }
}
