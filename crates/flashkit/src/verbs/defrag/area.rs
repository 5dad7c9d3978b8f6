//! Moves of an area of the device, without regard to files.

use std::ops::Range;

use anyhow::{Context, Result, bail};
use f2fs::engine::Geometry;
use serde::Serialize;

use super::Args;
use crate::{mounted::Mounted, progress, render};
use f2fs::units::BlockAddr;
use image::Source;

/// The wanted move, in addresses of blocks.
#[derive(Debug, Clone, clap::Args)]
pub struct Area {
    /// Move all blocks of this area instead, FIRST..END in addresses of blocks, extended to whole sections; the files do not
    /// matter.
    #[arg(long, value_name = "FIRST..END", value_parser = range, requires = "to", conflicts_with_all = ["moves", "all"])]
    area: Option<Range<u32>>,
    /// Place of the blocks of --area: free segments that begin at this address or behind it.
    #[arg(long, value_name = "BLOCK", value_parser = address, group = "to")]
    behind: Option<u32>,
    /// Place of the blocks of --area: free segments that end at this address or before it.
    #[arg(long, value_name = "BLOCK", value_parser = address, group = "to")]
    before: Option<u32>,
}

/// Result of a move.
#[derive(Serialize)]
struct Record {
    moved_blocks: u64,
}

/// Parses an address, which after `0x` is hexadecimal.
fn address(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{text:?}: {error}"))
}

/// Parses two addresses with two dots between them.
fn range(text: &str) -> Result<Range<u32>, String> {
    let (first, end) = text.split_once("..").ok_or("the form is FIRST..END")?;
    let range = address(first)?..address(end)?;
    if range.is_empty() { Err(format!("{text:?} is empty")) } else { Ok(range) }
}

impl Area {
    /// Returns true if a move is wanted.
    pub fn is_given(&self) -> bool {
        self.area.is_some()
    }

    /// Returns the segments to be emptied, and those that take the blocks.
    fn segments(&self, geometry: &Geometry) -> Result<(Range<u32>, Range<u32>)> {
        let blocks = self.area.clone().context("an area is given")?;
        let main = geometry.block(f2fs::units::SegNo(0), 0).0;
        let segment_blocks = f2fs::format::BLOCKS_PER_SEGMENT;
        let end = main + geometry.segments * segment_blocks;
        if !geometry.in_main(BlockAddr(blocks.start)) || blocks.end > end {
            bail!(
                "{:#x}..{:#x}: the main area is {main:#x}..{end:#x}; flashkit info --json prints the areas",
                blocks.start,
                blocks.end
            );
        }
        let section_blocks = geometry.segments_per_section * segment_blocks;
        let first_of = |section: u32| section * geometry.segments_per_section;
        let from = (blocks.start - main) / segment_blocks..(blocks.end - main).div_ceil(segment_blocks);
        let place = self.behind.or(self.before).context("a place is given")?;
        let Some(place) = place.checked_sub(main).filter(|at| *at <= end - main) else {
            bail!("{place:#x}: the main area is {main:#x}..{end:#x}");
        };
        let to = match self.behind {
            Some(_) => first_of(place.div_ceil(section_blocks))..geometry.segments,
            None => 0..first_of(place / section_blocks),
        };
        Ok((from, to))
    }
}

/// Moves the blocks.
pub fn run(args: &Args) -> Result<()> {
    let source = Source::parse(&args.target.image);
    if args.target.path != b"/" {
        bail!("{}: --area moves blocks of all files; name the image alone", args.target);
    }
    if let Some(mounted) = Mounted::of_image(&source)? {
        bail!("{source}: mounted at {}; umount it first", mounted.at.display());
    }
    let mut moved_blocks = 0;
    args.target.change(&args.further, |volume| {
        let (from, to) = args.area.segments(volume.geometry())?;
        let bar = progress::bytes("moving", None, false);
        let block_bytes = volume.superblock().block_size.bytes() as u64;
        let moved = volume.move_area(from, to, &mut |blocks| bar.set_position(blocks * block_bytes));
        bar.finish_and_clear();
        moved_blocks = moved?;
        Ok(())
    })?;
    render::print(&Record { moved_blocks }, args.json, |record, out| {
        writeln!(out, "{} moved", render::count(record.moved_blocks, "block"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_decimal_or_hexadecimal() {
        assert_eq!(range("0x1000..0x1200"), Ok(4096..4608));
        assert_eq!(range("10..20"), Ok(10..20));
        for wrong in ["", "10", "10..", "20..10", "x..y", "0x..1", "-1..5", "1..99999999999"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
