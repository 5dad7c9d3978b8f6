//! Ctrl-C and termination: what is under construction goes, and a line says what stays.

use std::{
    fs,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::notice::notice;

/// Exit code after an interrupt, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// What an interrupt finds.
struct Pending {
    is_watched: bool,
    unfinished: Vec<Box<dyn Fn() + Send>>,
    outcome: Option<String>,
    undo: Option<Box<dyn Fn() + Send>>,
}

static PENDING: Mutex<Pending> =
    Mutex::new(Pending { is_watched: false, unfinished: Vec::new(), outcome: None, undo: None });

/// Removes a file under construction if an interrupt comes.
pub fn remove(path: &Path) {
    let path = path.to_path_buf();
    // It may have its name already, or be gone.
    clean_up(move || _ = fs::remove_file(&path));
}

/// Does this if an interrupt comes.
pub fn clean_up(clean_up: impl Fn() + Send + 'static) {
    watched().unfinished.push(Box::new(clean_up));
}

/// The outcome that an interrupt tells, as long as this value lives.
#[must_use]
pub struct Outcome(());

impl Outcome {
    /// From now on an interrupt tells this.
    pub fn new(text: String) -> Outcome {
        watched().outcome = Some(text);
        Outcome(())
    }

    /// From now on an interrupt does this before it tells the outcome.
    pub fn undo(&self, undo: impl Fn() + Send + 'static) {
        pending().undo = Some(Box::new(undo));
    }

    /// From now on an interrupt tells this instead.
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

/// The state, with a handler that ends the process. A verb that has a handler of its own ends in good order.
fn watched() -> MutexGuard<'static, Pending> {
    let mut pending = pending();
    if !pending.is_watched {
        pending.is_watched = true;
        let _ = ctrlc::set_handler(end);
    }
    pending
}

fn end() {
    // Held to the end: nothing becomes complete meanwhile without an outcome that says so.
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
