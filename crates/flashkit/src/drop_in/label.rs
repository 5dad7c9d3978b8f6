//! f2fslabel: prints or changes the label of a volume.

use std::{ffi::OsString, path::Path, process::ExitCode};

use anyhow::Result;
use lexopt::{Arg, Parser};

use super::{Call, Done, FAILED, MISUSED, Tool, no_device};
use crate::{
    render,
    target::{Further, open_read_only},
};

pub const TOOL: Tool = Tool {
    name: "f2fslabel",
    usage: "[options] device [label]
  -V          print the version
`flashkit label --help` describes the verb that does the work.",
    run,
    failed: FAILED,
    misused: MISUSED,
};

fn run(mut parser: Parser) -> Result<Done> {
    let mut places: Vec<OsString> = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('V') => return Ok(Done::Version),
            Arg::Value(place) if places.len() < 2 => places.push(place),
            unknown => return Err(unknown.unexpected().into()),
        }
    }
    let device = places.first().ok_or_else(no_device)?.clone();
    let is_changed = places.len() > 1;
    if is_changed {
        let mut call = Call::new("label");
        call.flag("--quiet");
        call.places(places);
        if let Done::Refused = call.run()? {
            return Ok(Done::Refused);
        }
    }
    let volume = open_read_only(Path::new(&device), &Further::default())?;
    let label = render::name(volume.superblock().label.as_bytes());
    let words = if is_changed { "is changed to" } else { "=" };
    render::text(|out| writeln!(out, "Info: volume label {words} {label}"))?;
    Ok(Done::Verb(ExitCode::SUCCESS))
}
