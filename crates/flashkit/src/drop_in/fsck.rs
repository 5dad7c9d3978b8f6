//! fsck.f2fs: checks a volume, and prints its parts.

use std::ffi::OsString;

use anyhow::Result;
use lexopt::{Arg, Parser};

use super::{Call, Done, Tool, no_device};

pub const TOOL: Tool = Tool {
    name: "fsck.f2fs",
    usage: "[options] device
  -l          print the superblock and the checkpoint instead
  -t          print the tree of names instead
  -V          print the version
  --dry-run   only check, as always
  -a -c -C -d -f -g -H -m -O -p -q -S -y --kernel-check --no-kernel-check --debug-cache are accepted and have no effect here;
  damage is reported and not repaired
`flashkit fsck --help` describes the verb that does the work.",
    run,
    // As fsck(8) has them.
    failed: 8,
    misused: 16,
};

/// The options of a call.
#[derive(Debug, Default, PartialEq)]
struct Options {
    device: Option<OsString>,
    work: Work,
}

/// The purpose of a call.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Work {
    #[default]
    Check,
    /// `-l`
    PrintHead,
    /// `-t`
    PrintTree,
    Version,
    Help,
}

fn run(parser: Parser) -> Result<Done> {
    let options = parse(parser)?;
    match options.work {
        Work::Version => Ok(Done::Version),
        Work::Help => Ok(Done::Help),
        work => call(work, options.device.ok_or_else(no_device)?),
    }
}

fn call(work: Work, device: OsString) -> Result<Done> {
    let verb = match work {
        Work::PrintHead => return super::dump::run(Parser::from_args([OsString::from("-d1"), device])),
        Work::PrintTree => "tree",
        _ => "fsck",
    };
    let mut call = Call::new(verb);
    call.places([device]);
    call.run()
}

fn parse(mut parser: Parser) -> Result<Options> {
    let mut options = Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('V') => return Ok(Options { work: Work::Version, ..options }),
            Arg::Short('h') | Arg::Long("help") => return Ok(Options { work: Work::Help, ..options }),
            Arg::Short('l') => options.work = Work::PrintHead,
            Arg::Short('t') => options.work = Work::PrintTree,
            Arg::Short('a' | 'f' | 'H' | 'S' | 'y') => {}
            Arg::Long("dry-run" | "kernel-check" | "no-kernel-check" | "debug-cache") => {}
            Arg::Short('c' | 'C' | 'd' | 'g' | 'm' | 'O' | 'q') => _ = parser.value()?,
            // The level is optional: fsck(8) passes -p alone.
            Arg::Short('p') => skip_level(&mut parser)?,
            Arg::Value(device) if options.device.is_none() => options.device = Some(device),
            unknown => return Err(unknown.unexpected().into()),
        }
    }
    Ok(options)
}

/// Skips the next word if it is a number and not the last word, which is the device.
fn skip_level(parser: &mut Parser) -> Result<()> {
    if parser.optional_value().is_some() {
        return Ok(());
    }
    let mut rest = parser.raw_args()?;
    let is_level = rest.peek().is_some_and(|word| word.as_encoded_bytes().iter().all(u8::is_ascii_digit));
    if is_level && rest.as_slice().len() > 1 {
        rest.next();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_init_systems_and_partition_editors_are_checks() {
        for line in [
            &["-a", "/dev/x"][..],
            &["-p", "/dev/x"],
            &["-p", "1", "/dev/x"],
            &["-p1", "/dev/x"],
            &["-f", "-y", "-a", "/dev/x"],
            &["--dry-run", "/dev/x"],
            &["-g", "android", "-O", "encrypt", "--no-kernel-check", "-d", "1", "/dev/x"],
        ] {
            let expected = Options { device: Some("/dev/x".into()), work: Work::Check };
            assert_eq!(parse(Parser::from_args(line)).unwrap(), expected, "{line:?}");
        }
        assert_eq!(parse(Parser::from_args(["-p", "7"])).unwrap().device, Some("7".into()));
        assert_eq!(parse(Parser::from_args(["-l", "a"])).unwrap().work, Work::PrintHead);
        assert_eq!(parse(Parser::from_args(["-tV"])).unwrap().work, Work::Version);
        assert!(parse(Parser::from_args(["-Q", "a"])).is_err());
    }
}
