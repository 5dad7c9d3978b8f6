//! Stop requests for long work.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// A flag that long work polls. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Requests a stop.
    pub fn wish(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if a stop was requested.
    pub fn is_wished(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
