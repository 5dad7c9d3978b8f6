//! What `study` and `bench` have in common.

use anyhow::{Context, Result};
use lab::{experiment::Experiment, stop::Stop};

/// Exit code after Ctrl-C, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// The experiment of a name or number.
pub fn experiment(name: &str) -> Result<Experiment, String> {
    Experiment::named(name).ok_or_else(|| {
        let all: Vec<String> =
            Experiment::ALL.iter().map(|one| format!("{} {}", one.number(), one.name())).collect();
        format!("there are {}", all.join(", "))
    })
}

/// A wish to stop that Ctrl-C makes; a second Ctrl-C does not wait for it to be heard.
pub fn stop_on_interrupt() -> Result<Stop> {
    let stop = Stop::default();
    let wish = stop.clone();
    ctrlc::set_handler(move || {
        if wish.is_wished() {
            std::process::exit(i32::from(INTERRUPTED));
        }
        wish.wish();
    })
    .context("waiting for an interrupt")?;
    Ok(stop)
}
