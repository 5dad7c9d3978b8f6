//! resize.f2fs: gives a volume another size.

use std::ffi::{OsStr, OsString};

use anyhow::{Context, Result, bail};
use image::Source;
use lexopt::{Arg, Parser};

use super::{Call, Done, FAILED, MISUSED, Tool, further::add_devices, no_device, number, superblock_of};
use crate::target::sector_bytes;

pub const TOOL: Tool = Tool {
    name: "resize.f2fs",
    usage: "[options] device
  -t SECTORS  new size in sectors of the device; the size of the device by default
  -s          safe resize, which is needed to shrink; metadata may move with or without it
  -V          print the version
  -o 0        choose the overprovision automatically, as always
  -d -f -F -H -i are accepted and have no effect here
The length of an image file stays as it is. `flashkit resize --help` describes the verb that does the work.",
    run,
    failed: FAILED,
    misused: MISUSED,
};

/// The options of a call.
#[derive(Debug, Default, PartialEq)]
struct Options {
    device: Option<OsString>,
    /// New size in sectors; 0 means the size of the device.
    sectors: u64,
    direction: Direction,
}

/// Directions that a call allows.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Direction {
    #[default]
    Grow,
    /// `-s`
    Both,
}

fn run(parser: Parser) -> Result<Done> {
    let Some(options) = parse(parser)? else { return Ok(Done::Version) };
    let device = options.device.clone().ok_or_else(no_device)?;
    let (superblock, sizes) = superblock_of(&device)?;
    let mut call = Call::new("resize");
    call.flag("--no-truncate");
    add_devices(&mut call, &device, &superblock)?;
    let mut places = vec![device.clone()];
    if let Some(bytes) = new_bytes(&device, options.sectors)? {
        let old_bytes = superblock.volume_bytes();
        if bytes < old_bytes && options.direction == Direction::Grow {
            bail!(
                "{}: {bytes} bytes are less than the {old_bytes} of the volume; -s shrinks it",
                Source::parse(&device)
            );
        }
        let before: u64 = sizes.iter().rev().skip(1).sum();
        places.push(bytes.saturating_sub(before).to_string().into());
    }
    call.places(places);
    call.run()
}

/// Returns the size in bytes of a number of sectors of a device.
fn new_bytes(device: &OsStr, sectors: u64) -> Result<Option<u64>> {
    if sectors == 0 {
        return Ok(None);
    }
    let name = || Source::parse(device).to_string();
    let sector_bytes = sector_bytes(Source::parse(device).path()).with_context(name)?;
    let bytes = sectors.checked_mul(sector_bytes.into());
    bytes.map(Some).with_context(|| format!("{}: {sectors} sectors are too many", name()))
}

/// Parses a call. Returns `None` for one that asks for the version.
fn parse(mut parser: Parser) -> Result<Option<Options>> {
    let mut options = Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('V') => return Ok(None),
            Arg::Short('s') => options.direction = Direction::Both,
            Arg::Short('t') => options.sectors = number::any_base(&parser.value()?),
            Arg::Short('o') => require_automatic(&parser.value()?)?,
            Arg::Short('d') => _ = parser.value()?,
            // A larger node bitmap and hints for writes change nothing in the result, and a resize asks no question.
            Arg::Short('f' | 'F' | 'H' | 'i') => {}
            Arg::Value(device) if options.device.is_none() => options.device = Some(device),
            unknown => return Err(unknown.unexpected().into()),
        }
    }
    Ok(Some(options))
}

/// Refuses a percentage of overprovision, except 0, which means the automatic one.
fn require_automatic(percentage: &OsStr) -> Result<()> {
    match number::fraction(percentage) {
        0.0 => Ok(()),
        _ => Err(lexopt::Error::from("-o: only the automatic overprovision (0) is supported").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> (u64, Direction) {
        let options = parse(Parser::from_args(line)).unwrap().unwrap();
        assert_eq!(options.device, Some("/dev/x".into()), "{line:?}");
        (options.sectors, options.direction)
    }

    #[test]
    fn the_calls_of_partition_editors_have_a_size_and_a_direction() {
        // GParted, libblockdev, and other options of the tool
        assert_eq!(parsed(&["-t", "409600", "/dev/x"]), (409_600, Direction::Grow));
        assert_eq!(parsed(&["/dev/x"]), (0, Direction::Grow));
        assert_eq!(parsed(&["-s", "-t", "163840", "/dev/x"]), (163_840, Direction::Both));
        assert_eq!(parsed(&["/dev/x", "-t", "0x10"]), (16, Direction::Grow));
        assert_eq!(parsed(&["-d", "1", "-i", "-H", "-F", "-o", "0", "-st7", "/dev/x"]), (7, Direction::Both));
        assert_eq!(parse(Parser::from_args(["-sV"])).unwrap(), None);
        for line in [&["-Q", "/dev/x"][..], &["-o", "5", "/dev/x"], &["/dev/x", "/dev/y"], &["-t"]] {
            assert!(parse(Parser::from_args(line)).unwrap_err().is::<lexopt::Error>(), "{line:?}");
        }
    }
}
