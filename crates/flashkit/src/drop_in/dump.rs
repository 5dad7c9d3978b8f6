//! dump.f2fs: prints the superblock and the checkpoint, in the lines that GParted and libblockdev read, or a part of
//! the volume by a verb.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, Result};
use f2fs::{
    engine::read_raw_superblock,
    format::{
        checkpoint::Checkpoint,
        sit::SegmentType,
        superblock::{self, raw},
    },
    units::Ino,
};
use image::Source;
use lexopt::{Arg, Parser};

use super::{Call, Done, FAILED, MISUSED, Tool, no_device, number, places};
use crate::{
    render,
    target::{Further, open_device, open_read_only, with_content},
};

pub const TOOL: Tool = Tool {
    name: "dump.f2fs",
    usage: "[options] device
  -d NUMBER   1 and more: print the superblock and the checkpoint
  -i INODE    print an inode
  -M          print the places of the blocks of the inode of -i instead; without -i, of the root directory
  -b BLOCK    print the area of a block and its owner
  -n FROM~TO  print entries of the NAT
  -s FROM~TO  print entries of the SIT
  -a FROM~TO  print summaries of segments
  -r          copy all files into the directory of -o
  -o DIR      directory for -r; lost_found by default
  -P          keep owners with -r
  -V          print the version
  -f -L -S -y are accepted and have no effect here
`flashkit dump --help` and `flashkit export --help` describe the verbs that do the work.",
    run,
    failed: FAILED,
    misused: MISUSED,
};

/// Directory for copied files (f2fs-tools).
const COPIES: &str = "lost_found";
/// The requested parts of a volume.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    device: Option<OsString>,
    level: u64,
    inode: Option<u64>,
    shows_map: bool,
    block: Option<u64>,
    /// Ranges of entries, each with the names of the structure and of its numbers in the verb.
    ranges: Vec<(&'static str, &'static str, Range)>,
    copies_tree: bool,
    copies_to: Option<OsString>,
    keeps_owners: bool,
}

/// Numbers from the first up to the last one; without a last one, all.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    first: u64,
    last: Option<u64>,
}

/// A parsed command line.
enum Parsed {
    Wanted(Wanted),
    /// A call for the version or for help.
    Ended(Done),
}

/// Runs the tool.
pub fn run(parser: Parser) -> Result<Done> {
    let wanted = match parse(parser)? {
        Parsed::Wanted(wanted) => wanted,
        Parsed::Ended(done) => return Ok(done),
    };
    let device = wanted.device.clone().ok_or_else(no_device)?;
    if wanted.shows_map {
        let volume = open_read_only(Path::new(&device), &Further::default())?;
        let ino = wanted.inode.map_or(Ok(volume.superblock().root_ino), |ino| u32::try_from(ino).map(Ino));
        places::print_map(&volume, ino?, "").with_context(|| Path::new(&device).display().to_string())?;
        return Ok(Done::Verb(ExitCode::SUCCESS));
    }
    let segments = print_head(Path::new(&device), wanted.level)
        .map_err(|error| with_content(&Source::parse(&device), error))?;
    for call in wanted.calls(&device, segments) {
        if let Done::Refused = call.run()? {
            return Ok(Done::Refused);
        }
    }
    if let Some(block) = wanted.block {
        let volume = open_read_only(Path::new(&device), &Further::default())?;
        places::print_block(&volume, block).with_context(|| Path::new(&device).display().to_string())?;
    }
    Ok(Done::Verb(ExitCode::SUCCESS))
}

fn parse(mut parser: Parser) -> Result<Parsed> {
    let mut wanted = Wanted::default();
    while let Some(argument) = parser.next()? {
        let letter = match argument {
            Arg::Short(letter) => letter,
            Arg::Value(device) if wanted.device.is_none() => {
                wanted.device = Some(device);
                continue;
            }
            unknown => return Err(unknown.unexpected().into()),
        };
        let mut value = || parser.value();
        match letter {
            'V' => return Ok(Parsed::Ended(Done::Version)),
            'd' => wanted.level = number::whole(&value()?),
            'i' => wanted.inode = Some(number::any_base(&value()?)),
            'M' => wanted.shows_map = true,
            'b' => wanted.block = Some(number::any_base(&value()?)),
            'n' => wanted.ranges.push(("nat", "--nid", range(&value()?))),
            's' => wanted.ranges.push(("sit", "--segment", range(&value()?))),
            'a' => wanted.ranges.push(("ssa", "--segment", range(&value()?))),
            'r' => wanted.copies_tree = true,
            'o' => wanted.copies_to = Some(value()?),
            'P' => wanted.keeps_owners = true,
            // An export asks no questions and always keeps symbolic links; a sparse image is known by its content.
            'f' | 'L' | 'S' | 'y' => {}
            unknown => return Err(Arg::Short(unknown).unexpected().into()),
        }
    }
    Ok(Parsed::Wanted(wanted))
}

/// Parses `FROM~TO`. A last number of -1 means all.
fn range(text: &OsStr) -> Range {
    let text = text.to_string_lossy();
    let (first, last) = text.split_once('~').unwrap_or((&text, "-1"));
    let last = (!last.starts_with('-')).then(|| number::whole(OsStr::new(last)));
    Range { first: number::whole(OsStr::new(first)), last }
}

impl Wanted {
    /// Returns the command lines of the verbs for a volume with so many segments.
    fn calls<'w>(&'w self, device: &'w OsStr, segments: u32) -> impl Iterator<Item = Call> + 'w {
        let ranges = self.ranges.iter().flat_map(move |(structure, option, range)| {
            let is_whole = *range == Range { first: 0, last: None } && *structure != "ssa";
            let end = range.last.unwrap_or(u64::from(segments).saturating_sub(1));
            let whole = is_whole.then(|| dump(device, structure, None));
            let numbers = (!is_whole).then_some(range.first..=end).into_iter().flatten();
            whole
                .into_iter()
                .chain(numbers.map(move |number| dump(device, structure, Some((option, number)))))
        });
        let inode = self.inode.map(|inode| dump(device, "inode", Some(("--ino", inode))));
        ranges.chain(inode).chain(self.copies_tree.then(|| self.export(device)))
    }

    fn export(&self, device: &OsStr) -> Call {
        let mut call = Call::new("export");
        call.flag("--overwrite");
        if !self.keeps_owners {
            call.flag("--no-owners");
        }
        call.places([device.to_owned(), self.copies_to.clone().unwrap_or_else(|| COPIES.into())]);
        call
    }
}

/// Returns the command line that prints a structure, or the entry with this number.
fn dump(device: &OsStr, structure: &str, entry: Option<(&str, u64)>) -> Call {
    let mut call = Call::new("dump");
    call.flag(structure);
    if let Some((option, number)) = entry {
        call.value(option, number.to_string());
    }
    call.places([device.to_owned()]);
    call
}

/// Prints what dump.f2fs prints of every volume. Returns the number of segments of the main area.
fn print_head(image: &Path, level: u64) -> Result<u32> {
    let name = || image.display().to_string();
    let volume = open_read_only(image, &Further::default())?;
    let raw = read_raw_superblock(&*open_device(&Source::parse(image))?, 0).with_context(name)?;
    let checkpoint = volume.last_checkpoint();
    // The first copy, which is printed as it is, may be damaged; the volume has checked one of the copies.
    let superblock = volume.superblock();
    let (block_log, sector_log) = (superblock.block_size.log(), superblock.log_sector_bytes);
    let sectors = superblock.blocks << (block_log - sector_log);
    let features = superblock.features;
    render::text(|out| {
        writeln!(out, "Info: Debug level = {level}")?;
        writeln!(out, "Info: sector size = {}", 1u32 << sector_log)?;
        writeln!(
            out,
            "Info: superblock features = {:X} :  {}",
            features.0,
            features.names().collect::<Vec<_>>().join(" ")
        )?;
        if level > 0 {
            print_superblock(out, &raw)?;
        }
        writeln!(out, "Info: Segments per section = {}", superblock.segments_per_section)?;
        writeln!(out, "Info: Sections per zone = {}", superblock.sections_per_zone)?;
        let megabytes = superblock.blocks << block_log >> 20;
        writeln!(out, "Info: total FS sectors = {sectors} ({megabytes} MB)")?;
        writeln!(out, "Info: CKPT version = {:x}", checkpoint.version.0)?;
        if level > 0 {
            print_checkpoint(out, checkpoint)?;
        }
        let flags = checkpoint.flags.names().collect::<Vec<_>>().join(" ");
        writeln!(out, "Info: checkpoint state = {:x} :  {flags}", checkpoint.flags.0)?;
        writeln!(out, "\nDone.")
    })?;
    Ok(volume.geometry().segments)
}

fn title(out: &mut dyn Write, title: &str) -> io::Result<()> {
    let line = "-".repeat(56);
    writeln!(out, "\n+{line}+\n| {title:54} |\n+{line}+")
}

/// Prints a field: `segment_count                 \t\t[0x      31 : 49]`.
fn field(out: &mut dyn Write, name: &str, value: impl fmt::LowerHex + fmt::Display) -> io::Result<()> {
    writeln!(out, "{name:30}\t\t[0x{value:8x} : {value}]")
}

fn print_superblock(out: &mut dyn Write, raw: &raw::Superblock) -> io::Result<()> {
    title(out, "Super block")?;
    field(out, "magic", raw.magic.get())?;
    field(out, "major_ver", raw.major_version.get())?;
    let label = superblock::label_of(raw);
    writeln!(out, "{:30}\t\t[{}]", "volum_name", render::name(label.as_bytes()))?;
    field(out, "minor_ver", raw.minor_version.get())?;
    for (name, value) in [
        ("log_sectorsize", raw.log_sector_bytes.get()),
        ("log_sectors_per_block", raw.log_sectors_per_block.get()),
        ("log_blocksize", raw.log_block_bytes.get()),
        ("log_blocks_per_seg", raw.log_blocks_per_segment.get()),
        ("segs_per_sec", raw.segments_per_section.get()),
        ("secs_per_zone", raw.sections_per_zone.get()),
        ("checksum_offset", raw.checksum_offset.get()),
    ] {
        field(out, name, value)?;
    }
    field(out, "block_count", raw.block_count.get())?;
    for (name, value) in [
        ("section_count", raw.section_count.get()),
        ("segment_count", raw.segment_count.get()),
        ("segment_count_ckpt", raw.segment_count_ckpt.get()),
        ("segment_count_sit", raw.segment_count_sit.get()),
        ("segment_count_nat", raw.segment_count_nat.get()),
        ("segment_count_ssa", raw.segment_count_ssa.get()),
        ("segment_count_main", raw.segment_count_main.get()),
        ("segment0_blkaddr", raw.segment0_blkaddr.get()),
        ("cp_blkaddr", raw.cp_blkaddr.get()),
        ("sit_blkaddr", raw.sit_blkaddr.get()),
        ("nat_blkaddr", raw.nat_blkaddr.get()),
        ("ssa_blkaddr", raw.ssa_blkaddr.get()),
        ("main_blkaddr", raw.main_blkaddr.get()),
        ("root_ino", raw.root_ino.get()),
        ("node_ino", raw.node_ino.get()),
        ("meta_ino", raw.meta_ino.get()),
        ("cp_payload", raw.cp_payload.get()),
        ("crc", raw.crc.get()),
    ] {
        field(out, name, value)?;
    }
    let version = raw.version.split(|byte| *byte == 0).next().unwrap_or_default();
    writeln!(out, "{:30}{}", "version", render::name(version))
}

fn print_checkpoint(out: &mut dyn Write, checkpoint: &Checkpoint) -> io::Result<()> {
    title(out, "Checkpoint")?;
    field(out, "checkpoint_ver", checkpoint.version.0)?;
    field(out, "user_block_count", checkpoint.user_blocks)?;
    field(out, "valid_block_count", checkpoint.valid_blocks)?;
    field(out, "rsvd_segment_count", checkpoint.reserved_segments)?;
    field(out, "overprov_segment_count", checkpoint.overprovision_segments)?;
    field(out, "free_segment_count", checkpoint.free_segments)?;
    let logs = |kinds: [SegmentType; 3]| kinds.map(|kind| checkpoint.logs[kind as usize]);
    let nodes = logs([SegmentType::HotNode, SegmentType::WarmNode, SegmentType::ColdNode]);
    let data = logs([SegmentType::HotData, SegmentType::WarmData, SegmentType::ColdData]);
    for (name, short, logs) in [("NODE", "node", nodes), ("DATA", "data", data)] {
        for (heat, log) in ["HOT", "WARM", "COLD"].iter().zip(logs) {
            field(out, &format!("alloc_type[CURSEG_{heat}_{name}]"), u8::from(log.mode.is_ssr()))?;
        }
        for (n, log) in logs.iter().enumerate() {
            field(out, &format!("cur_{short}_segno[{n}]"), log.segment.0)?;
        }
        for (n, log) in logs.iter().enumerate() {
            field(out, &format!("cur_{short}_blkoff[{n}]"), log.offset)?;
        }
    }
    field(out, "ckpt_flags", checkpoint.flags.0)?;
    field(out, "cp_pack_total_block_count", checkpoint.pack_blocks)?;
    field(out, "cp_pack_start_sum", checkpoint.summaries_start)?;
    field(out, "valid_node_count", checkpoint.valid_nodes)?;
    field(out, "valid_inode_count", checkpoint.valid_inodes)?;
    field(out, "next_free_nid", checkpoint.next_free_nid.0)?;
    field(out, "sit_ver_bitmap_bytesize", checkpoint.sit_bitmap.len())?;
    field(out, "nat_ver_bitmap_bytesize", checkpoint.nat_bitmap.len())?;
    field(out, "checksum_offset", checkpoint.checksum_offset)?;
    field(out, "elapsed_time", checkpoint.elapsed_seconds)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drop_in::words;

    fn calls(line: &[&str]) -> Vec<String> {
        match parse(Parser::from_args(line)) {
            Ok(Parsed::Wanted(wanted)) => {
                let device = wanted.device.clone().unwrap();
                wanted.calls(&device, 3).map(|call| words(&call).join(" ")).collect()
            }
            _ => panic!("{line:?}"),
        }
    }

    #[test]
    fn parts_of_a_volume_are_the_work_of_verbs() {
        assert!(calls(&["-d", "1", "a"]).is_empty());
        assert_eq!(calls(&["-i", "0x10", "a"]), ["dump inode --ino=16 -- a"]);
        assert_eq!(
            calls(&["-s0~-1", "-n", "3~4", "a"]),
            ["dump sit -- a", "dump nat --nid=3 -- a", "dump nat --nid=4 -- a"]
        );
        assert_eq!(calls(&["-a", "1~-1", "a"]), ["dump ssa --segment=1 -- a", "dump ssa --segment=2 -- a"]);
        assert_eq!(calls(&["-f", "-r", "-o", "out", "a"]), ["export --overwrite --no-owners -- a out"]);
        assert_eq!(calls(&["-rPL", "a"]), ["export --overwrite -- a lost_found"]);
    }

    #[test]
    fn a_field_has_the_form_that_callers_search() {
        let mut line = Vec::new();
        field(&mut line, "segment_count", 49u32).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), "segment_count                 \t\t[0x      31 : 49]\n");
    }
}
