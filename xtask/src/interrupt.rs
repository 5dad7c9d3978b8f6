//! Ctrl-C: work ends at its next step, with an error, so that what it mounted and made goes as at any other end. Programs
//! that it started get the terminal's signal themselves. A second Ctrl-C does not wait.

use std::{process, sync::OnceLock};

use anyhow::{Context, Result, ensure};
use lab::stop::Stop;

/// The exit code of a program that an interrupt ended, as shells have it.
pub const CODE: u8 = 130;

static STOP: OnceLock<Stop> = OnceLock::new();

/// The wish to stop, for work that looks at it itself.
pub fn stop() -> Stop {
    STOP.get_or_init(Stop::default).clone()
}

/// Begins to listen; SIGTERM and SIGHUP count too.
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

/// To be asked between steps of long work.
///
/// # Errors
/// Somebody wishes that it ends.
pub fn check() -> Result<()> {
    ensure!(!stop().is_wished(), "interrupted");
    Ok(())
}
