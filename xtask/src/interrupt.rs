//! Ctrl-C: work ends at its next step with an error, so that its mounts and files are removed as after any
//! other error. Child processes get the terminal's signal themselves. A second Ctrl-C ends the program at
//! once.

use std::{process, sync::OnceLock};

use anyhow::{Context, Result, ensure};
use lab::stop::Stop;

/// Exit code after an interrupt, as in shells.
pub const CODE: u8 = 130;

static STOP: OnceLock<Stop> = OnceLock::new();

/// Returns the stop request, for work that checks it itself.
pub fn stop() -> Stop {
    STOP.get_or_init(Stop::default).clone()
}

/// Starts to listen for Ctrl-C, SIGTERM and SIGHUP.
pub fn listen() -> Result<()> {
    let stop = stop();
    ctrlc::set_handler(move || {
        if stop.is_wished() {
            process::exit(CODE.into());
        }
        stop.wish();
    })
    .context("waiting for an interrupt")
}

/// Checks for a stop request, between steps of long work.
///
/// # Errors
/// An interrupt has arrived.
pub fn check() -> Result<()> {
    ensure!(!stop().is_wished(), "interrupted");
    Ok(())
}
