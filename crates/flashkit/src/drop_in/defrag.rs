//! defrag.f2fs: moves the blocks of an area of the device elsewhere, without regard to files.

use std::ffi::OsString;

use anyhow::{Result, bail};
use f2fs::format::BLOCKS_PER_SEGMENT;
use image::Source;
use lexopt::{Arg, Parser};

use super::{Call, Done, FAILED, MISUSED, Tool, further::add_devices, no_device, number, superblock_of};

pub const TOOL: Tool = Tool {
    name: "defrag.f2fs",
    usage: "[options] device
  -s BLOCK    first block of the area; the start of the main area by default
  -l NUMBER   its length in blocks; 512 by default
  -t BLOCK    where the blocks go: free segments at this address or behind it; behind the area by default
  -i          the blocks go to free segments before that address; before the area by default
  -V          print the version
  -d -S are accepted and have no effect here
Areas are extended to whole sections. `flashkit defrag --help` describes the verb that does the work, and the one that puts
the blocks of files in order.",
    run,
    failed: FAILED,
    misused: MISUSED,
};

/// The options of a call. Numbers are 0 if they are not given.
#[derive(Debug, Default, PartialEq)]
struct Options {
    device: Option<OsString>,
    start: u64,
    length: u64,
    target: u64,
    direction: Direction,
}

/// Directions of a move.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Direction {
    #[default]
    Right,
    /// `-i`
    Left,
}

fn run(parser: Parser) -> Result<Done> {
    let Some(options) = parse(parser)? else { return Ok(Done::Version) };
    let device = options.device.clone().ok_or_else(no_device)?;
    let (superblock, _) = superblock_of(&device)?;
    let mut call = Call::new("defrag");
    add_devices(&mut call, &device, &superblock)?;
    let main = u64::from(superblock.main.start.0)..superblock.main.end();
    let Some([area, place]) = options.area(main.clone()) else {
        let (start, length, target) = (options.start, options.length, options.target);
        bail!(
            "{}: {length:#x} blocks from {start:#x} to {target:#x}: the main area is {:#x}..{:#x}, and the target must lie outside \
             the area",
            Source::parse(&device),
            main.start,
            main.end
        );
    };
    call.value("--area", area);
    call.value(if options.direction == Direction::Left { "--before" } else { "--behind" }, place);
    call.places([device]);
    call.run()
}

impl Options {
    /// Returns the area and its target as the verb takes them, with the defaults of the tool. `None` if they are out of range.
    fn area(&self, main: std::ops::Range<u64>) -> Option<[String; 2]> {
        let start = self.start.max(main.start);
        let length = if self.length == 0 { BLOCKS_PER_SEGMENT.into() } else { self.length };
        let end = start.checked_add(length)?.min(main.end);
        let target = match (self.target, self.direction) {
            (0, Direction::Right) => end,
            (0, Direction::Left) => start.checked_sub(1)?,
            (target, _) => target,
        };
        let is_valid =
            start < end && (main.start..=main.end).contains(&target) && !(start..end).contains(&target);
        // The tool names the last block that a move to the left may take.
        let place = if self.direction == Direction::Left { target + 1 } else { target };
        is_valid.then(|| [format!("{start:#x}..{end:#x}"), format!("{place:#x}")])
    }
}

/// Parses a call. Returns `None` for one that asks for the version.
fn parse(mut parser: Parser) -> Result<Option<Options>> {
    let mut options = Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('V') => return Ok(None),
            Arg::Short('s') => options.start = number::any_base(&parser.value()?),
            Arg::Short('l') => options.length = number::any_base(&parser.value()?),
            Arg::Short('t') => options.target = number::any_base(&parser.value()?),
            Arg::Short('i') => options.direction = Direction::Left,
            Arg::Short('d') => _ = parser.value()?,
            Arg::Short('S') => {}
            Arg::Value(device) if options.device.is_none() => options.device = Some(device),
            unknown => return Err(unknown.unexpected().into()),
        }
    }
    Ok(Some(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(line: &[&str]) -> Option<[String; 2]> {
        parse(Parser::from_args(line)).unwrap().unwrap().area(0x1000..0x4000)
    }

    #[test]
    fn areas_have_the_defaults_of_the_tool() {
        let found = |line: &[&str]| area(line).unwrap().join(" ");
        assert_eq!(found(&["/dev/x"]), "0x1000..0x1200 0x1200");
        assert_eq!(
            found(&["-s", "0x2000", "-l", "0x100", "-t", "0x3000", "/dev/x"]),
            "0x2000..0x2100 0x3000"
        );
        assert_eq!(found(&["-s0x2000", "-i", "/dev/x"]), "0x2000..0x2200 0x2000");
        assert_eq!(found(&["-s", "8192", "-t", "4607", "-i", "/dev/x"]), "0x2000..0x2200 0x1200");
        assert_eq!(
            found(&["-s", "0x3f00", "-l", "0x1000", "-t", "0x2000", "/dev/x"]),
            "0x3f00..0x4000 0x2000"
        );
        for line in [&["-t", "0x1010"][..], &["-s", "0x5000"], &["-t", "0x9000"], &["-t", "1"], &["-i"]] {
            assert_eq!(area(line), None, "{line:?}");
        }
        assert_eq!(parse(Parser::from_args(["-iV"])).unwrap(), None);
        assert!(parse(Parser::from_args(["-Q"])).unwrap_err().is::<lexopt::Error>());
    }
}
