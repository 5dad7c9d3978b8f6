//! How long work is told to end.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// A wish that whoever works looks at now and then. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Wishes that the work ends.
    pub fn wish(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether that was wished.
    pub fn is_wished(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
