//! `dmverity`: an image compared with its hash tree.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use block::OpenOptions;
use image::dm_verity::{Damage, Parameters, Verified};
use serde::Serialize;

use crate::{
    progress, render,
    target::{Range, open_image},
};

/// Arguments of `dmverity`.
#[derive(clap::Args)]
#[command(
    after_help = "Each verb that reads takes the same options, and then refuses every block that does not match. The \
root hash must come from a trusted place. IMAGES.md of the installed documents has more.

Examples:
  flashkit dmverity root.img --hash-device root.hashes --root-hash 0123abcd...
  flashkit dmverity disk.img#2 --hash-offset 1G --root-hash $(cat root-hash)
  flashkit dmverity super.img#system_a --root-hash stored --json
  flashkit mount root.img /mnt -o ro --hash-device root.hashes --root-hash 0123abcd..."
)]
pub struct Args {
    /// The image or block device; a partition of it as IMAGE#NUMBER or IMAGE#NAME.
    image: PathBuf,
    #[command(flatten)]
    range: Range,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result of a comparison.
#[derive(Serialize)]
struct Report {
    algorithm: &'static str,
    hash_form: u32,
    data_block_bytes: u32,
    hash_block_bytes: u32,
    data_blocks: u64,
    /// First byte of the tree in its file.
    tree_byte: u64,
    salt: String,
    root_hash: String,
    damaged_blocks: u64,
    damaged: Vec<Damaged>,
    /// True if the list of ranges ends early.
    is_cut: bool,
}

/// A run of blocks that do not match.
#[derive(Serialize)]
struct Damaged {
    from_byte: u64,
    to_byte: u64,
}

/// Compares the image.
pub fn run(args: &Args) -> Result<()> {
    let source = args.range.of(&args.image);
    let name = || source.to_string();
    let image = open_image(&source, OpenOptions::default())?;
    let Some(verified) = image.verified() else {
        bail!(
            "{source}: --root-hash is missing; veritysetup format printed it, and `stored` is that of an AVB descriptor"
        );
    };
    let bytes = block::Device::geometry(verified).size_bytes;
    let bar = progress::bytes("comparing", Some(bytes), args.json);
    let damage = verified.damage(&mut |done| bar.set_position(done)).with_context(name)?;
    bar.finish_and_clear();
    let report = Report::of(verified, damage);
    render::print(&report, args.json, Report::text)?;
    match report.damaged_blocks {
        0 => Ok(()),
        blocks => {
            bail!("{source}: {} of {} do not match", blocks, render::count(report.data_blocks, "block"))
        }
    }
}

impl Report {
    fn of(verified: &Verified, damage: Damage) -> Report {
        let Parameters { form, algorithm, data_block_bytes, hash_block_bytes, data_blocks, tree_at, salt } =
            verified.parameters();
        let damaged = |range: std::ops::Range<u64>| Damaged { from_byte: range.start, to_byte: range.end };
        Report {
            algorithm: algorithm.name(),
            hash_form: form.number(),
            data_block_bytes: *data_block_bytes,
            hash_block_bytes: *hash_block_bytes,
            data_blocks: *data_blocks,
            tree_byte: *tree_at,
            salt: render::hex(salt),
            root_hash: render::hex(verified.root()),
            damaged_blocks: damage.blocks,
            damaged: damage.ranges.into_iter().map(damaged).collect(),
            is_cut: damage.is_cut,
        }
    }

    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Report { algorithm, data_block_bytes, data_blocks, root_hash, .. } = self;
        writeln!(
            out,
            "{algorithm}, {} of {data_block_bytes} bytes, root hash {root_hash}",
            render::count(*data_blocks, "block")
        )?;
        for Damaged { from_byte, to_byte } in &self.damaged {
            writeln!(out, "damaged: bytes {from_byte} to {}", to_byte - 1)?;
        }
        match (self.damaged_blocks, self.is_cut) {
            (0, _) => writeln!(out, "all blocks match"),
            (_, true) => writeln!(out, "damaged: more"),
            (_, false) => Ok(()),
        }
    }
}
