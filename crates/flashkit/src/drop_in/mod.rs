//! Names under which scripts call the tools of f2fs-tools. Under such a name the program takes the options of
//! that tool, of f2fs-tools 1.15 and newer, and has its exit codes.
//!
//! *Invariant*: a tool is a translation. Its command line becomes the command line of a verb, which does the work.

mod defrag;
mod dump;
mod fsck;
mod further;
mod label;
mod mkfs;
mod number;
mod places;
mod resize;
mod sload;

use std::{
    env::consts::EXE_SUFFIX,
    ffi::{OsStr, OsString},
    path::Path,
    process::ExitCode,
};

use anyhow::Result;
use f2fs::{engine, format::superblock::Superblock};
use image::Source;
use lexopt::Parser;

use crate::{
    cli::Cli,
    notice::notice,
    render,
    target::{not_opened, open_device},
    verbs,
};

/// Version of f2fs-tools whose options the tools have. Callers compare it with the least version that they
/// support (libblockdev: 1.11.0 for checks, 1.12.0 for shrinking).
const LIKE_VERSION: &str = "1.16.0";

/// Exit code of f2fs-tools for a failure: -1 of a C program.
const FAILED: u8 = 255;
/// Exit code of f2fs-tools for an invalid command line.
const MISUSED: u8 = 1;

/// A tool of f2fs-tools.
pub struct Tool {
    /// Its name in f2fs-tools.
    name: &'static str,
    /// Usage, without the name of the tool.
    usage: &'static str,
    /// Translates the options and does the work.
    run: fn(Parser) -> Result<Done>,
    /// Exit code of a failure.
    failed: u8,
    /// Exit code of an invalid command line.
    misused: u8,
}

/// The end of a call that did not fail.
enum Done {
    /// The verb ended with this exit code.
    Verb(ExitCode),
    /// The arguments of the verb are invalid; the message is printed.
    Refused,
    /// The caller asked for the version.
    Version,
    /// The caller asked for help.
    Help,
}

const TOOLS: [Tool; 7] =
    [mkfs::TOOL, sload::TOOL, fsck::TOOL, resize::TOOL, defrag::TOOL, dump::TOOL, label::TOOL];

/// Returns the tool that the program's own name denotes. Android writes `_` for the dot, and `make_f2fs` for
/// mkfs.f2fs.
pub fn tool(arguments: &[OsString]) -> Option<&'static Tool> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    let name = name.strip_suffix(EXE_SUFFIX).unwrap_or(name);
    let name = match name {
        "make_f2fs" => "mkfs.f2fs".into(),
        other => other.replace("_f2fs", ".f2fs"),
    };
    TOOLS.iter().find(|tool| tool.name == name)
}

impl Tool {
    /// Runs the tool with the arguments after its name.
    pub fn run(&self, arguments: &[OsString]) -> Result<ExitCode> {
        match (self.run)(Parser::from_args(arguments)) {
            Ok(Done::Verb(code)) => Ok(code),
            Ok(Done::Refused) => Ok(ExitCode::from(self.misused)),
            Ok(Done::Version) => {
                let own = env!("CARGO_PKG_VERSION");
                render::text(|out| writeln!(out, "{} {LIKE_VERSION} (flashkit {own})", self.name))?;
                Ok(ExitCode::SUCCESS)
            }
            // As in f2fs-tools, help is not a success.
            Ok(Done::Help) => {
                render::text(|out| writeln!(out, "Usage: {} {}", self.name, self.usage))?;
                Ok(ExitCode::from(self.misused))
            }
            Err(error) => match error.downcast::<lexopt::Error>() {
                Ok(misuse) => {
                    notice!("{}: {misuse}\nUsage: {} {}", self.name, self.name, self.usage);
                    Ok(ExitCode::from(self.misused))
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Returns the exit code of a failure.
    pub fn failed(&self) -> ExitCode {
        ExitCode::from(self.failed)
    }
}

/// The command line of a verb under construction.
struct Call(Vec<OsString>);

impl Call {
    fn new(verb: &str) -> Call {
        Call(vec!["flashkit".into(), verb.into()])
    }

    /// Sets an option without a value.
    fn flag(&mut self, option: &str) {
        self.0.retain(|word| word != option);
        self.0.push(option.into());
    }

    /// Sets an option with a value. The last of several values counts, as with getopt(3).
    fn value(&mut self, option: &str, value: impl Into<OsString>) {
        let prefix = format!("{option}=");
        self.0.retain(|word| !word.as_encoded_bytes().starts_with(prefix.as_bytes()));
        self.more(option, value);
    }

    /// Adds a value of an option that can be repeated. Both are one word, because a value may begin with a dash.
    fn more(&mut self, option: &str, value: impl Into<OsString>) {
        let mut word = OsString::from(option);
        word.push("=");
        word.push(value.into());
        self.0.push(word);
    }

    /// Adds the arguments after the options.
    fn places(&mut self, places: impl IntoIterator<Item = OsString>) {
        self.0.push("--".into());
        self.0.extend(places);
    }

    /// Runs the verb.
    fn run(self) -> Result<Done> {
        match Cli::of(self.0) {
            Ok(cli) => Ok(Done::Verb(verbs::run(cli.verb)?)),
            Err(told) => {
                // Standard error may be closed, and then nothing can be reported.
                let _ = told.print();
                Ok(Done::Refused)
            }
        }
    }
}

/// Returns the superblock of a volume by its first device, and the sizes of its devices in bytes.
fn superblock_of(device: &OsStr) -> Result<(Superblock, Vec<u64>)> {
    let source = Source::parse(device);
    let (superblock, _) = engine::read_superblock(&*open_device(&source)?, u64::MAX)
        .map_err(|error| not_opened(&source, error))?;
    let sizes = engine::device_bytes(&superblock).collect();
    Ok((superblock, sizes))
}

/// Returns the error of a missing device.
fn no_device() -> anyhow::Error {
    lexopt::Error::from("Device not specified").into()
}

/// Translates the options of a call for a test. Returns the words of the verb's command line.
#[cfg(test)]
fn words(call: &Call) -> Vec<&str> {
    call.0[1..].iter().map(|word| word.to_str().expect("text")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_known_by_the_names_of_linux_and_android() {
        let name = |path: &str| tool(&[OsString::from(path)]).map(|tool| tool.name);
        assert_eq!(name("/usr/sbin/mkfs.f2fs"), Some("mkfs.f2fs"));
        assert_eq!(name("make_f2fs"), Some("mkfs.f2fs"));
        assert_eq!(name("out/host/sload_f2fs"), Some("sload.f2fs"));
        assert_eq!(name("/sbin/resize.f2fs"), Some("resize.f2fs"));
        assert_eq!(name("flashkit"), None);
        assert_eq!(tool(&[]).map(|tool| tool.name), None);
    }
}
