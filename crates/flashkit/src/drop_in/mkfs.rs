//! mkfs.f2fs, make_f2fs: makes a volume in an existing file or on a block device.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use anyhow::{Context, Result, bail};
use block::Device;
use image::Source;
use lexopt::{Arg, Parser};

use super::{Call, Done, FAILED, MISUSED, Tool, no_device, number};
use crate::{host, notice::notice, target};

/// Longest label in bytes.
const LABEL_BYTES: usize = 512;

pub const TOOL: Tool = Tool {
    name: "mkfs.f2fs",
    usage: "[options] device [sectors]
  -b BYTES    block size: 4096 or 16384
  -c DEVICES  further devices, separated by commas
  -C ENCODING casefolding: utf8[:flags]
  -e LIST     extensions of cold files
  -E LIST     extensions of hot files
  -f          overwrite an existing file system
  -g android  defaults of Android; other names are ignored
  -i          large NAT bitmap
  -l LABEL    label
  -o PERCENT  overprovision; 0 is automatic
  -O FEATURES features, separated by commas
  -q          print nothing but errors
  -R UID:GID  owner of the root directory
  -s NUMBER   segments in a section
  -S BYTES    make an image of this size
  -t 0|1      discard the device first
  -T SECONDS  time stamps
  -U UUID     UUID
  -V          print the version
  -w BYTES    sector size
  -z NUMBER   sections in a zone
  -a -d -H -m -r -v -Z are accepted and have no effect here
`flashkit mkfs --help` describes the verb that does the work.",
    run,
    failed: FAILED,
    misused: MISUSED,
};

/// The options of a call that are not part of the verb's command line yet.
#[derive(Default)]
struct Rest {
    /// The device, and its sectors if they are given.
    places: Vec<OsString>,
    /// Size of an image that need not exist: `-S`.
    image_bytes: Option<u64>,
    /// True after `-r`.
    has_seed: bool,
    /// True after `-m`.
    is_zoned: bool,
}

fn run(parser: Parser) -> Result<Done> {
    let (mut call, rest) = match parse(parser)? {
        Parsed::Call(call, rest) => (call, rest),
        Parsed::Ended(done) => return Ok(done),
    };
    let device = rest.device()?;
    if rest.is_zoned {
        refuse_zones(Path::new(&device))?;
    }
    match (rest.image_bytes, rest.reserved_bytes()) {
        (Some(bytes), _) => call.value("--size", bytes.to_string()),
        (None, Some(reserved)) => {
            let bytes = target::open_device(&Source::parse(&device))?.geometry().size_bytes;
            call.value("--size", bytes.saturating_sub(reserved).to_string());
        }
        (None, None) => {}
    }
    if rest.image_bytes.is_none() {
        call.flag("--in-place");
    }
    call.places(std::iter::once(device).chain(rest.sectors().map(|sectors| sectors.to_string().into())));
    call.run()
}

/// A parsed command line.
enum Parsed {
    Call(Call, Rest),
    /// A call for the version or for help.
    Ended(Done),
}

fn parse(mut parser: Parser) -> Result<Parsed> {
    let (mut call, mut rest) = (Call::new("mkfs"), Rest::default());
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Parsed::Ended(Done::Help)),
            Arg::Short('V') => return Ok(Parsed::Ended(Done::Version)),
            Arg::Short('m') => rest.is_zoned = true,
            Arg::Short('r') => rest.has_seed = true,
            Arg::Short('S') => rest.image_bytes = Some(number::whole(&parser.value()?)),
            Arg::Value(place) => rest.places.push(place),
            Arg::Short(letter) => option(&mut call, letter, &mut parser)?,
            unknown => return Err(unknown.unexpected().into()),
        }
    }
    Ok(Parsed::Call(call, rest))
}

/// Translates an option that the verb has, too, or that has no effect.
fn option(call: &mut Call, letter: char, parser: &mut Parser) -> Result<()> {
    let mut value = || parser.value();
    match letter {
        // 1.16 has no heap allocator; -d and -v concern the output of mkfs.f2fs; -H is advice to the device; -Z is for
        // zoned devices.
        'a' | 'd' | 'Z' => _ = value()?,
        'H' | 'v' => {}
        'b' => call.value("--block-size", number::whole(&value()?).to_string()),
        'c' => call.more("--device", value()?),
        'C' => call.value("--encoding", value()?),
        'e' => extensions(call, "--cold", &value()?),
        'E' => extensions(call, "--hot", &value()?),
        'f' => call.flag("--force"),
        // Unknown names are ignored: systemd calls `-g -f`, and there `-f` is the name.
        'g' if value()? == "android" => {
            call.value("--defaults", "android");
            call.flag("--force");
        }
        'g' => {}
        'i' => call.flag("--large-nat-bitmap"),
        'l' => call.value("--label", label(value()?)?),
        'o' => call.value("--overprovision", number::fraction(&value()?).to_string()),
        'O' => call.more("--features", value()?),
        'q' => call.flag("--quiet"),
        'R' => call.value("--root-owner", value()?),
        's' => call.value("--segments-per-section", number::whole(&value()?).to_string()),
        't' => call.value("--trim", u8::from(number::whole(&value()?) != 0).to_string()),
        'T' => call.value("--timestamp", number::any_base(&value()?).to_string()),
        'U' => call.value("--uuid", value()?),
        'w' => call.value("--sector-size", number::whole(&value()?).to_string()),
        'z' => call.value("--sections-per-zone", number::whole(&value()?).to_string()),
        unknown => return Err(Arg::Short(unknown).unexpected().into()),
    }
    Ok(())
}

/// Adds a list of extensions, separated by commas or blanks, unless it is empty.
fn extensions(call: &mut Call, option: &str, list: &OsStr) {
    let list = list.to_string_lossy();
    let names: Vec<&str> = list.split([',', ' ']).filter(|name| !name.is_empty()).collect();
    if !names.is_empty() {
        call.value(option, names.join(","));
    }
}

fn label(label: OsString) -> Result<OsString> {
    if label.len() > LABEL_BYTES {
        return Err(lexopt::Error::from(format!("the label has more than {LABEL_BYTES} bytes")).into());
    }
    Ok(label)
}

impl Rest {
    /// Returns the number after `-r` in old Android's `-r BYTES DEVICE`: space to leave at the end of the device, for
    /// the footer of its encryption. In f2fs-tools, `-r` has no value.
    fn reserved_bytes(&self) -> Option<u64> {
        let is_number = |text: &OsStr| text.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        match &self.places[..] {
            [reserved, device] if self.has_seed && is_number(reserved) && !is_number(device) => {
                Some(number::whole(reserved))
            }
            _ => None,
        }
    }

    fn device(&self) -> Result<OsString> {
        let place = usize::from(self.reserved_bytes().is_some());
        Ok(self.places.get(place).ok_or_else(no_device)?.clone())
    }

    /// Returns the number of sectors; 0 means all of the device.
    fn sectors(&self) -> Option<u64> {
        let sectors = self.places.get(1).filter(|_| self.reserved_bytes().is_none())?;
        Some(number::whole(sectors)).filter(|sectors| *sectors > 0)
    }
}

/// Refuses a zoned device, which `-m` asks for. Any other device gets an ordinary volume.
fn refuse_zones(path: &Path) -> Result<()> {
    match host::zone_model(path).with_context(|| path.display().to_string())? {
        Some(model) => {
            bail!("{}: a zoned device ({model}); flashkit makes no volumes on zoned devices", path.display())
        }
        None => {
            notice!("mkfs.f2fs: {}: -m has no effect: not a zoned device", path.display());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drop_in::words;

    fn translated(line: &[&str]) -> Vec<String> {
        match parse(Parser::from_args(line)) {
            Ok(Parsed::Call(call, rest)) => {
                let words = words(&call).into_iter().map(str::to_owned);
                let device = rest.device().unwrap().into_string().unwrap();
                words.chain([device]).chain(rest.sectors().map(|sectors| sectors.to_string())).collect()
            }
            _ => panic!("{line:?}"),
        }
    }

    #[test]
    fn options_of_mkfs_f2fs_become_options_of_the_verb() {
        let cases: [(&[&str], &[&str]); 9] = [
            (&["-l", "rootfs", "a"], &["--label=rootfs", "a"]),
            (&["-lrootfs", "-qf", "a", "4096"], &["--label=rootfs", "--quiet", "--force", "a", "4096"]),
            (&["-q", "-g", "-f", "-t", "0", "a"], &["--quiet", "--trim=0", "a"]),
            (&["-g", "android", "-f", "a"], &["--defaults=android", "--force", "a"]),
            (&["-o", "0", "-e", "", "-E", "db, wal", "a"], &["--overprovision=0", "--hot=db,wal", "a"]),
            (&["a", "-O", "extra_attr", "-O", "quota"], &["--features=extra_attr", "--features=quota", "a"]),
            (&["-t", "nodiscard", "-a", "1", "-d1", "-H", "-Z", "1", "-v", "a"], &["--trim=0", "a"]),
            (&["-l", "-x", "-l", "--y", "--", "-a"], &["--label=--y", "-a"]),
            (
                &["-T", "0x10", "-s", "2", "-z4", "a"],
                &["--timestamp=16", "--segments-per-section=2", "--sections-per-zone=4", "a"],
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(translated(line)[1..], *expected, "{line:?}");
        }
    }

    #[test]
    fn a_number_after_r_is_space_for_a_footer_only_before_a_device() {
        let reserved = |line: &[&str]| match parse(Parser::from_args(line)).unwrap() {
            Parsed::Call(_, rest) => (rest.reserved_bytes(), rest.device().unwrap(), rest.sectors()),
            Parsed::Ended(_) => panic!("{line:?}"),
        };
        let device = || OsString::from("/dev/x");
        assert_eq!(reserved(&["-t", "0", "-r", "16384", "/dev/x"]), (Some(16384), device(), None));
        assert_eq!(reserved(&["-r", "/dev/x", "16384"]), (None, device(), Some(16384)));
        assert_eq!(reserved(&["-r", "/dev/x"]), (None, device(), None));
        assert_eq!(reserved(&["/dev/x", "0"]), (None, device(), None));
    }

    #[test]
    fn an_unknown_option_and_a_missing_value_are_misuse() {
        for line in [&["-Q", "a"][..], &["--from", "a"], &["-l"]] {
            let error = parse(Parser::from_args(line)).err().expect("refused");
            assert!(error.is::<lexopt::Error>(), "{line:?}: {error}");
        }
        assert!(Rest::default().device().is_err());
    }
}
