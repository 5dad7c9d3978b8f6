//! The command: parse, open, run one verb, render.
//!
//! *Invariants*: this file has no logic. stdout is data and stderr is for people. A closed stdout counts as
//! success; a closed stderr is ignored. The exit code is 0, 1 for a failure, 2 for invalid usage, and 130
//! after an interrupt; `fsck` and `verity check` have those of fsck(8), and under the name of a tool of f2fs-tools the
//! codes are that tool's.

// The standard macros panic if the output is closed. `render` and `notice` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod below;
mod bmap;
mod carry;
mod cli;
mod clock;
mod compress;
#[cfg(unix)]
mod daemon;
mod descent;
mod drop_in;
mod exclude;
mod failure;
mod fake_root;
mod host;
mod image_format;
mod interrupt;
mod keys;
mod manual;
mod mounted;
mod notice;
mod output;
mod progress;
mod record;
mod render;
mod signature;
mod size;
mod source;
mod suggested;
mod target;
mod unpacked;
mod verbs;
#[cfg(unix)]
mod watcher;

use std::{ffi::OsString, io::Write, process::ExitCode};

use anyhow::Result;
use drop_in::Tool;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let tool = drop_in::tool(&arguments);
    let done = match tool {
        Some(tool) => tool.run(&arguments[1..]),
        None => run(arguments),
    };
    match done {
        Ok(code) => code,
        Err(error) if render::has_no_reader(&error) => ExitCode::SUCCESS,
        Err(error) => {
            failure::tell(&error);
            tool.map_or(ExitCode::FAILURE, Tool::failed)
        }
    }
}

/// Runs the verb that the arguments name.
fn run(arguments: Vec<OsString>) -> Result<ExitCode> {
    let usage = verbs::fsck::usage_code(&arguments).or_else(|| verbs::verity::usage_code(&arguments));
    #[cfg(unix)]
    let arguments = verbs::mount::helper_call(&arguments).unwrap_or(Ok(arguments))?;
    match cli::Cli::of(arguments) {
        Ok(cli) => verbs::run(cli.verb),
        Err(told) => help(&told, usage),
    }
}

/// Prints help, the version, or a usage error. `usage` is the verb's own exit code for one.
fn help(told: &clap::Error, usage: Option<u8>) -> Result<ExitCode> {
    let printed = told.print();
    if !told.use_stderr() {
        printed.and_then(|()| std::io::stdout().flush()).map_err(render::of_stdout)?;
    }
    let code = told.exit_code() as u8;
    Ok(ExitCode::from(if told.use_stderr() { usage.unwrap_or(code) } else { code }))
}
