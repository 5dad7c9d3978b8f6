//! `partitions`: the partitions of a disk, and their content.

use std::io::{self, Write};

use anyhow::{Context, Result, bail};
use image::{Extents, Partition, Table, TableKind};
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::{
    render, signature,
    target::{Range, open_device},
};

/// Arguments of `partitions`.
#[derive(clap::Args)]
#[command(after_help = "Each verb takes a partition as IMAGE#NUMBER, IMAGE#NAME or IMAGE#PARTUUID.

Examples:
  flashkit partitions sd.img
  flashkit partitions /dev/mmcblk0 --json | jq '.partitions[] | select(.content == \"F2FS\").number'
  flashkit ls sd.img#2:/etc")]
pub struct Args {
    /// The disk: an image or block device.
    image: std::path::PathBuf,
    #[command(flatten)]
    range: Range,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A disk with a table of partitions.
#[derive(Serialize)]
struct Disk {
    table: String,
    /// Unit of the table's addresses, if the table has one of its own.
    sector_bytes: Option<u32>,
    partitions: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    number: u32,
    name: Option<String>,
    id: Option<String>,
    #[serde(rename = "type")]
    type_id: String,
    /// First byte on the disk; null if it has none there.
    start_bytes: Option<u64>,
    size_bytes: u64,
    /// Content by its signature; null if that is unknown.
    content: Option<&'static str>,
}

/// Prints the partitions.
pub fn run(args: &Args) -> Result<()> {
    let source = args.range.of(&args.image);
    let name = || source.to_string();
    let device = open_device(&source)?;
    let Some(table) = Table::read(&*device).with_context(name)? else {
        match signature::describe(&*device, &source).with_context(name)? {
            Some(what) => bail!("{source}: no table of partitions: {what}"),
            None => bail!("{source}: no table of partitions"),
        }
    };
    let row = |partition: &Partition| {
        // A partition behind the end of an image that was cut off has no content.
        let extents = Extents::new(&*device, partition.extents.iter().copied());
        let content = extents.ok().map(|extents| signature::find(&extents)).transpose();
        Ok(Row {
            number: partition.number,
            name: partition.name.clone(),
            id: partition.id.clone(),
            type_id: partition.type_id.clone(),
            start_bytes: partition.start_bytes(),
            size_bytes: partition.size_bytes(),
            content: content.with_context(|| format!("{source}#{}", partition.number))?.flatten(),
        })
    };
    let partitions = table.partitions.iter().map(row).collect::<Result<_>>()?;
    let sector_bytes = match table.kind {
        TableKind::Gpt { sector_bytes } => Some(sector_bytes),
        TableKind::Mbr | TableKind::Super => None,
    };
    let disk = Disk { table: table.kind.to_string(), sector_bytes, partitions };
    render::print(&disk, args.json, Disk::text)
}

impl Disk {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.sector_bytes {
            Some(bytes) => writeln!(out, "{}, sectors of {bytes} bytes", self.table)?,
            None => writeln!(out, "{}", self.table)?,
        }
        writeln!(out, "{:>3} {:>15} {:>12}  {:<20} content", "#", "first byte", "size", "name")?;
        for row in &self.partitions {
            let start = row.start_bytes.map(|byte| byte.to_string()).unwrap_or_default();
            let name = render::name(row.name.as_deref().unwrap_or_default().as_bytes());
            let size = BinaryBytes(row.size_bytes).to_string();
            let content = row.content.unwrap_or("unknown");
            writeln!(out, "{:>3} {start:>15} {size:>12}  {name:<20} {content}", row.number)?;
        }
        Ok(())
    }
}
