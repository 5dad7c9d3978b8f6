//! The command: parse, open, run one verb, render.
//!
//! *Invariants*: no logic here; stdout is data and stderr is for people; a broken pipe is success; the exit
//! code is 0, 1 for a failure, 2 for a call that makes no sense, and 130
//! after an interrupt.

mod cli;
mod clock;
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
            eprintln!("flashkit: {}", text(&error));
            if is_of_full_host(&error) {
                eprintln!(
                    "the disk that holds the image is full, not the volume: make room there and try again"
                );
            }
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, each said once: some errors tell their cause themselves.
fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether the image could not grow: most are sparse files.
fn is_of_full_host(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref() {
        Some(f2fs::Error::Io { source, .. }) => source.kind() == io::ErrorKind::StorageFull,
        _ => false,
    })
}

/// Whether the reader of our output has gone, as in `flashkit ls ... | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_below_is_not_a_full_volume() {
        let at = f2fs::Place::Volume;
        let below = f2fs::Error::Io { at, source: io::ErrorKind::StorageFull.into() };
        let volume = f2fs::Error::NoSpace { needed_blocks: 2, free_blocks: 1 };
        assert!(is_of_full_host(&anyhow::Error::new(below).context("card.img")));
        assert!(!is_of_full_host(&anyhow::Error::new(volume).context("card.img")));
    }
}
