//! sload.f2fs, sload_f2fs: puts a directory into a volume.

use std::{ffi::OsString, path::Path, process::ExitCode};

use anyhow::{Context, Result};
use f2fs::{
    engine::{self, Engine},
    mkfs,
};
use f2fs_tree::{Transform, VolumeSource};
use lexopt::{Arg, Parser};

use super::{Call, Done, FAILED, Tool, no_device, number};
use crate::{
    render,
    target::{Further, open_read_only},
};

pub const TOOL: Tool = Tool {
    name: "sload.f2fs",
    usage: "[options] device
  -f DIR      source directory
  -C FILE     Android's fs_config
  -s FILE     SELinux's file_contexts
  -t PATH     mount point: prefix of the paths in these files
  -T SECONDS  time stamps
  -P          keep owners; without it everything belongs to root
  -c          compress files, if the volume has the feature
  -a NAME     algorithm: lzo, lzo-rle, lz4 (default), zstd
  -L NUMBER   blocks in a cluster, as a power of 2
  -i EXT      compress only files with this extension; can be repeated
  -x EXT      do not compress files with this extension; can be repeated
  -r          release the space that compression saves
  -V          print the version
  -d -m -p -S are accepted and have no effect here
`flashkit import --help` describes the verb that does the work.",
    run,
    failed: FAILED,
    // Android's mkf2fsuserimg.sh takes 1 for a success, because the tool's own check ends so after a repair.
    misused: FAILED,
};

/// The options of a call that are not part of the verb's command line yet.
#[derive(Default)]
struct Rest {
    source: Option<OsString>,
    device: Option<OsString>,
    mount_point: Option<OsString>,
    /// True if a file is given that the mount point applies to.
    has_paths: bool,
    /// True after `-P`.
    keeps_owners: bool,
    compression: Compression,
}

/// The options of `-c`.
#[derive(Default)]
struct Compression {
    is_on: bool,
    algorithm: Option<OsString>,
    /// True after an option that needs `-c`.
    is_described: bool,
    only: Vec<OsString>,
    except: Vec<OsString>,
}

/// A parsed command line.
enum Parsed {
    Call(Call, Box<Rest>),
    /// A call for the version or for help.
    Ended(Done),
}

fn run(parser: Parser) -> Result<Done> {
    let (call, device) = match parse(parser)? {
        Parsed::Call(call, rest) => rest.complete(call)?,
        Parsed::Ended(done) => return Ok(done),
    };
    let done = match call {
        Some(call) => call.run()?,
        None => Done::Verb(ExitCode::SUCCESS),
    };
    if matches!(done, Done::Verb(_)) {
        tell_sizes(Path::new(&device))?;
    }
    Ok(done)
}

fn parse(mut parser: Parser) -> Result<Parsed> {
    let (mut call, mut rest) = (Call::new("import"), Rest::default());
    while let Some(argument) = parser.next()? {
        let Arg::Short(letter) = argument else {
            match argument {
                Arg::Value(device) if rest.device.is_none() => rest.device = Some(device),
                unknown => return Err(unknown.unexpected().into()),
            }
            continue;
        };
        let mut value = || parser.value();
        match letter {
            'V' => return Ok(Parsed::Ended(Done::Version)),
            // -d concerns the output of sload.f2fs, and -p files that only Android's build of it reads. A sparse image
            // is known by its content.
            'd' | 'p' => _ = value()?,
            'S' => {}
            'f' => rest.source = Some(value()?),
            'P' => rest.keeps_owners = true,
            't' => rest.mount_point = Some(value()?),
            'C' | 's' => {
                rest.has_paths = true;
                call.value(if letter == 'C' { "--fs-config" } else { "--file-contexts" }, value()?);
            }
            'T' => call.value("--all-times", number::any_base(&value()?).to_string()),
            _ => rest.compression.option(&mut call, letter, &mut parser)?,
        }
    }
    Ok(Parsed::Call(call, Box::new(rest)))
}

impl Compression {
    fn option(&mut self, call: &mut Call, letter: char, parser: &mut Parser) -> Result<()> {
        let mut value = || parser.value();
        self.is_described |= letter != 'c';
        match letter {
            'c' => self.is_on = true,
            'L' => call.value("--compress-log-size", number::whole(&value()?).to_string()),
            'a' => self.algorithm = Some(value()?.to_ascii_lowercase()),
            'i' => self.only.push(value()?),
            'x' => self.except.push(value()?),
            // A cluster is compressed if that saves a block, as in Linux.
            'm' => _ = value()?,
            'r' => call.flag("--compress-release"),
            unknown => return Err(Arg::Short(unknown).unexpected().into()),
        }
        if !self.only.is_empty() && !self.except.is_empty() {
            return Err(lexopt::Error::from("-i and -x cannot be used together").into());
        }
        Ok(())
    }

    fn complete(self, call: &mut Call) -> Result<()> {
        if !self.is_on {
            return match self.is_described {
                true => Err(lexopt::Error::from("options of compression need -c").into()),
                false => Ok(()),
            };
        }
        call.value("--compress", self.algorithm.unwrap_or_else(|| "lz4".into()));
        for (option, extensions) in
            [("--compress-extension", self.only), ("--nocompress-extension", self.except)]
        {
            extensions.into_iter().for_each(|extension| call.more(option, extension));
        }
        Ok(())
    }
}

impl Rest {
    /// Completes the command line of the verb. Without a source there is none. Returns the device, too.
    fn complete(self, mut call: Call) -> Result<(Option<Call>, OsString)> {
        let device = self.device.ok_or_else(no_device)?;
        self.compression.complete(&mut call)?;
        let Some(source) = self.source else { return Ok((None, device)) };
        if !self.keeps_owners {
            call.value("--all-owned-by", "0:0");
        }
        if let Some(mount_point) = self.mount_point.filter(|_| self.has_paths) {
            call.value("--mount-point", mount_point);
        }
        call.places([source, device.clone()]);
        Ok((Some(call), device))
    }
}

/// Prints the line from which Android's mkf2fsuserimg.sh takes the size of a smaller image.
fn tell_sizes(image: &Path) -> Result<()> {
    let volume = open_read_only(image, &Further::default())?;
    let least = smallest_bytes(&volume).with_context(|| image.display().to_string())?;
    let free = volume.free_user_blocks() * volume.superblock().block_size.bytes() as u64;
    let (least, free) = (least.div_ceil(1 << 20), free >> 20);
    render::text(|out| writeln!(out, "[FSCK] Max image size: {least} MB, Free space: {free} MB"))
}

/// Returns the size of the smallest volume with the same content and properties.
fn smallest_bytes(volume: &Engine) -> f2fs::Result<u64> {
    let superblock = volume.superblock();
    let mut options = mkfs::Options::new(superblock.uuid);
    options.features = superblock.features;
    options.block_size = superblock.block_size;
    options.sector_bytes = 1 << superblock.log_sector_bytes;
    options.segments_per_section = superblock.segments_per_section;
    options.sections_per_zone = superblock.sections_per_zone;
    let mut source = VolumeSource::new(volume, superblock.root_ino, b"")?.raw();
    let engine = engine::Options::read_only();
    f2fs_tree::smallest_for(&mut source, &Transform::default(), &options, &engine, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drop_in::words;

    fn translated(line: &[&str]) -> Result<Vec<String>> {
        let Parsed::Call(call, rest) = parse(Parser::from_args(line))? else { panic!("{line:?}") };
        let (call, _) = rest.complete(call)?;
        Ok(words(&call.expect("a source")).into_iter().skip(1).map(str::to_owned).collect())
    }

    #[test]
    fn options_of_sload_f2fs_become_options_of_the_verb() {
        let cases: [(&[&str], &[&str]); 5] = [
            (&["-f", "dir", "a"], &["--all-owned-by=0:0", "--", "dir", "a"]),
            (&["-P", "-t", "/data", "-f", "dir", "a"], &["--", "dir", "a"]),
            (
                &[
                    "-S",
                    "-C",
                    "config",
                    "-fdir",
                    "-p",
                    "out",
                    "-s",
                    "contexts",
                    "-t",
                    "/system",
                    "-T",
                    "1230768000",
                    "a",
                ],
                &[
                    "--fs-config=config",
                    "--file-contexts=contexts",
                    "--all-times=1230768000",
                    "--all-owned-by=0:0",
                    "--mount-point=/system",
                    "--",
                    "dir",
                    "a",
                ],
            ),
            (&["-f", "-dir", "-d", "1", "a", "-P", "-c"], &["--compress=lz4", "--", "-dir", "a"]),
            (
                &["-P", "-c", "-a", "LZ4", "-L", "4", "-x", "apk", "-x", "so", "-r", "-m1", "-fdir", "a"],
                &[
                    "--compress-log-size=4",
                    "--compress-release",
                    "--compress=lz4",
                    "--nocompress-extension=apk",
                    "--nocompress-extension=so",
                    "--",
                    "dir",
                    "a",
                ],
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(translated(line).unwrap(), *expected, "{line:?}");
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_misuse() {
        for line in [
            &["-f", "dir"][..],
            &["-f", "dir", "a", "b"],
            &["-r", "-f", "dir", "a"],
            &["-c", "-i", "so", "-x", "apk", "-f", "dir", "a"],
        ] {
            assert!(translated(line).unwrap_err().is::<lexopt::Error>(), "{line:?}");
        }
    }
}
