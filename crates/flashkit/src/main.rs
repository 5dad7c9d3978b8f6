//! The command: parse, open, run one verb, render.
//!
//! *Invariants*: no logic here; stdout is data and stderr is for people; a broken pipe is success; the exit
//! code is 0, 1 for a failure, 2 for a call that makes no sense, and 130
//! after an interrupt.

mod cli;
mod clock;
mod failure;
mod output;
mod progress;
mod record;
mod render;
mod signature;
mod size;
mod source;
mod target;
mod verbs;

use std::{ffi::OsString, io, process::ExitCode};

use clap::Parser;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let run = || {
        let arguments = verbs::mount::helper_call(&arguments).unwrap_or(Ok(arguments))?;
        verbs::run(cli::Cli::parse_from(arguments).verb)
    };
    match run() {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flashkit: {}", failure::text(&error));
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output has gone, as in `flashkit ls ... | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
