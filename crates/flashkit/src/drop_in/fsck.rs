//! fsck.f2fs: checks and repairs a volume, and prints its parts.

use std::{
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use anyhow::Result;
use block::{InUse, in_use};
use image::Source;
use lexopt::{Arg, Parser};

use super::{Call, Done, Tool, further::add_devices, no_device, places::print_maps, superblock_of};
use crate::notice::notice;

pub const TOOL: Tool = Tool {
    name: "fsck.f2fs",
    usage: "[options] device
  -a -p [LEVEL]  repair if every part of the repair is certain
  -f -y          repair everything that can be repaired
  --dry-run      print the findings and the plan of a repair, and write nothing; this wins over the others
  -l             print the superblock and the checkpoint instead
  -t             print the tree of names instead
  -M             print the path of each regular file and the places of its blocks instead
  -V             print the version
  -g android is -a; -c -C -d -H -m -O -q -S --kernel-check --no-kernel-check --debug-cache are accepted and have no
  effect here. Without -a, -p, -f and -y, damage is reported and not repaired, and no question is asked.
  A volume that is mounted read-only is checked, and not repaired.
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
    policy: Policy,
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
    /// `-M`
    PrintMaps,
    Version,
    Help,
}

/// Repairs that a call allows. Of several, the greatest counts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Policy {
    /// None, without an option.
    #[default]
    Check,
    /// `-a`, `-p`: those in which everything is certain.
    Safe,
    /// `-f`, `-y`: every one.
    All,
    /// `--dry-run`: none, and the plan is printed.
    Plan,
}

impl Policy {
    /// Returns the option of the verb.
    fn option(self) -> Option<&'static str> {
        match self {
            Policy::Check => None,
            Policy::Safe => Some("-p"),
            Policy::All => Some("-y"),
            Policy::Plan => Some("-n"),
        }
    }
}

fn run(parser: Parser) -> Result<Done> {
    let options = parse(parser)?;
    let device = || options.device.clone().ok_or_else(no_device);
    match options.work {
        Work::Version => Ok(Done::Version),
        Work::Help => Ok(Done::Help),
        Work::PrintHead => super::dump::run(Parser::from_args([OsString::from("-d1"), device()?])),
        Work::PrintTree => call("tree", Policy::Check, device()?)?.run(),
        Work::PrintMaps => {
            print_maps(&device()?)?;
            Ok(Done::Verb(ExitCode::SUCCESS))
        }
        Work::Check => {
            let device = device()?;
            let policy = match mounted_read_only(&device) {
                Some(user) if matches!(options.policy, Policy::Safe | Policy::All) => {
                    notice!("fsck.f2fs: {}: {user}: it is checked, and not repaired", Source::parse(&device));
                    Policy::Check
                }
                _ => options.policy,
            };
            call("fsck", policy, device)?.run()
        }
    }
}

fn call(verb: &str, policy: Policy, device: OsString) -> Result<Call> {
    let mut call = Call::new(verb);
    policy.option().into_iter().for_each(|option| call.flag(option));
    // The verb reports a device that has no superblock.
    if let Ok((superblock, _)) = superblock_of(&device) {
        add_devices(&mut call, &device, &superblock)?;
    }
    call.places([device]);
    Ok(call)
}

/// Returns the mount of a device if it writes nothing, as that of the root directory when the system starts.
fn mounted_read_only(device: &OsStr) -> Option<InUse> {
    let user = in_use(Source::parse(device).path()).ok().flatten()?;
    matches!(user, InUse::Mounted { read_only: true, .. }).then_some(user)
}

fn parse(mut parser: Parser) -> Result<Options> {
    let mut options = Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('V') => return Ok(Options { work: Work::Version, ..options }),
            Arg::Short('h') | Arg::Long("help") => return Ok(Options { work: Work::Help, ..options }),
            Arg::Short('l') => options.work = Work::PrintHead,
            Arg::Short('t') => options.work = Work::PrintTree,
            Arg::Short('M') => options.work = Work::PrintMaps,
            Arg::Short('a') => options.allow(Policy::Safe),
            Arg::Short('f' | 'y') => options.allow(Policy::All),
            Arg::Long("dry-run") => options.allow(Policy::Plan),
            Arg::Short('p') => {
                options.allow(Policy::Safe);
                // The level is optional: fsck(8) passes -p alone.
                skip_level(&mut parser)?;
            }
            // The set of defaults for Android has -a.
            Arg::Short('g') => {
                if parser.value()? == "android" {
                    options.allow(Policy::Safe);
                }
            }
            Arg::Short('H' | 'S') => {}
            Arg::Long("kernel-check" | "no-kernel-check" | "debug-cache") => {}
            Arg::Short('c' | 'C' | 'd' | 'm' | 'O' | 'q') => _ = parser.value()?,
            Arg::Value(device) if options.device.is_none() => options.device = Some(device),
            unknown => return Err(unknown.unexpected().into()),
        }
    }
    Ok(options)
}

impl Options {
    fn allow(&mut self, policy: Policy) {
        self.policy = self.policy.max(policy);
    }
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
    fn the_calls_of_init_systems_and_partition_editors_allow_repairs() {
        let lines: [(&[&str], Policy); 11] = [
            // systemd-fsck, fsck(8), libblockdev
            (&["-a", "/dev/x"], Policy::Safe),
            (&["-p", "/dev/x"], Policy::Safe),
            (&["-p", "1", "/dev/x"], Policy::Safe),
            (&["-p1", "/dev/x"], Policy::Safe),
            (&["--dry-run", "/dev/x"], Policy::Plan),
            // GParted
            (&["-f", "-y", "-a", "/dev/x"], Policy::All),
            (&["-f", "-a", "/dev/x"], Policy::All),
            // Android, scripts
            (&["-g", "android", "-O", "encrypt", "--no-kernel-check", "-d", "1", "/dev/x"], Policy::Safe),
            (&["-g", "other", "-c", "9", "-m", "16", "-C", "utf8", "-q", "1", "-S", "/dev/x"], Policy::Check),
            (&["-y", "--dry-run", "-f", "/dev/x"], Policy::Plan),
            (&["/dev/x"], Policy::Check),
        ];
        for (line, policy) in lines {
            let expected = Options { device: Some("/dev/x".into()), work: Work::Check, policy };
            assert_eq!(parse(Parser::from_args(line)).unwrap(), expected, "{line:?}");
        }
        assert_eq!(parse(Parser::from_args(["-p", "7"])).unwrap().device, Some("7".into()));
        assert_eq!(parse(Parser::from_args(["-l", "a"])).unwrap().work, Work::PrintHead);
        assert_eq!(parse(Parser::from_args(["-tV"])).unwrap().work, Work::Version);
        assert!(parse(Parser::from_args(["-Q", "a"])).is_err());
    }
}
