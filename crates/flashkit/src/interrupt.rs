//! Ctrl-C and termination: unfinished files are removed, and a line states the outcome.

use std::{
    fs,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::notice::notice;

/// Exit code after an interrupt, as in shells.
pub const INTERRUPTED: u8 = 130;

/// Work for an interrupt.
struct Pending {
    is_watched: bool,
    unfinished: Vec<Box<dyn Fn() + Send>>,
    outcome: Option<String>,
    undo: Option<Box<dyn Fn() + Send>>,
}

static PENDING: Mutex<Pending> =
    Mutex::new(Pending { is_watched: false, unfinished: Vec::new(), outcome: None, undo: None });

/// Registers an unfinished file for removal on an interrupt.
pub fn remove(path: &Path) {
    let path = path.to_path_buf();
    // The file may already have its final name, or be gone.
    clean_up(move || _ = fs::remove_file(&path));
}

/// Registers an action for an interrupt.
pub fn clean_up(clean_up: impl Fn() + Send + 'static) {
    watched().unfinished.push(Box::new(clean_up));
}

/// The outcome that an interrupt reports while this value exists.
#[must_use]
pub struct Outcome(());

impl Outcome {
    /// Sets the outcome that an interrupt reports.
    pub fn new(text: String) -> Outcome {
        watched().outcome = Some(text);
        Outcome(())
    }

    /// Sets an action that an interrupt performs before it reports the outcome.
    pub fn undo(&self, undo: impl Fn() + Send + 'static) {
        pending().undo = Some(Box::new(undo));
    }

    /// Replaces the reported outcome.
    pub fn change(&self, text: String) {
        pending().outcome = Some(text);
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        let mut pending = pending();
        (pending.outcome, pending.undo) = (None, None);
    }
}

fn pending() -> MutexGuard<'static, Pending> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the state, and installs a handler that ends the process. A verb with a handler of its own ends in
/// an orderly way.
fn watched() -> MutexGuard<'static, Pending> {
    let mut pending = pending();
    if !pending.is_watched {
        pending.is_watched = true;
        let _ = ctrlc::set_handler(end);
    }
    pending
}

fn end() {
    // The lock is held to the end, so that nothing completes meanwhile without being reported.
    let pending = pending();
    pending.unfinished.iter().for_each(|clean_up| clean_up());
    if let Some(undo) = &pending.undo {
        undo();
    }
    if let Some(outcome) = &pending.outcome {
        notice!("flashkit: stopped: {outcome}");
    }
    std::process::exit(INTERRUPTED.into());
}
