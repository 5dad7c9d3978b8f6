//! `rescue`: copies the files of a damaged volume out of it, without its checkpoint, tables or superblock.

mod arrivals;
mod kept_map;
mod listing;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use block::{Device, OpenOptions};
use clap::ValueEnum;
use f2fs::format::BlockSize;
use f2fs_rescue::{Facts, Found, Grade, Masked, Options, Origin, Progress, RemovedFiles, Rescue, Selection};
use f2fs_tree::Owners;
use image::Source;
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::{
    carry::{Carry, Loss, Sparse},
    host,
    notice::notice,
    output::is_one_place,
    progress,
    render::{self, PathRows},
    signature,
    target::{BareImage, open_image},
};
use arrivals::{Arrivals, Counts};
use kept_map::{KeptMap, KnownMap};
use listing::{Manifest, Row};

/// Arguments of `rescue`.
#[derive(clap::Args)]
#[command(after_help = "Every file is graded by the evidence for it:
  whole     everything is there, and the tables of the volume confirm it
  likely    everything is there, and nothing speaks against it
  doubtful  everything is there, but a checksum or a table speaks against it
  partial   a part of the content is lost; it is zeroes in the copy
  empty     all of the content is lost

Names whose directory is lost are in lost+found. The image is never written to. Copy a failing device first
(ddrescue), and rescue from the copy. Contents and names that are encrypted are lost: rescue decrypts nothing, so it takes no
--key.

Examples:
  flashkit rescue card.img rescued/
  flashkit rescue --list card.img
  flashkit rescue --deleted card.img undeleted/
  flashkit rescue --timeline --deleted card.img | mactime -b -
  flashkit rescue --offset 4M disk.img - | tar t")]
pub struct Args {
    #[command(flatten)]
    image: BareImage,
    /// A directory, made if it does not exist; a tar archive named *.tar, *.tar.gz (*.tgz), *.tar.xz (*.txz)
    /// or *.tar.zst (*.tzst), which appears when it is complete; or - for a tar archive on standard output.
    #[arg(required_unless_present_any = ["list", "timeline"], conflicts_with_all = ["list", "timeline"])]
    destination: Option<PathBuf>,
    /// List the files with their grades, and copy nothing.
    #[arg(long)]
    list: bool,
    /// Print the times of all files in the body format of mactime(1) from The Sleuth Kit, and copy nothing.
    #[arg(long, conflicts_with_all = ["list", "json", "manifest"])]
    timeline: bool,
    /// Rescue removed files, at their former places, instead of those that are there; where the device took discards,
    /// their content is gone.
    #[arg(long)]
    deleted: bool,
    /// Rescue the tree of an older checkpoint, as far as it has not been overwritten; `info` prints the
    /// version of the newest.
    #[arg(long, value_name = "VERSION")]
    as_of: Option<u64>,
    /// Keep a map of the parts that were read, in the format of ddrescue. Parts that an existing map calls
    /// bad are not read again. It is saved every ten seconds, and however the scan ends, so that the next call goes
    /// on. A map of another program is only read: it belongs to the whole file or device, and
    /// only the parts that it marks with + count.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Write the list, with the grades, as JSON to a new file; --overwrite replaces an existing one.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Block size, if no superblock has survived; by default it is found.
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Blocks>,
    /// Keep the holes of files in a tar archive (GNU's format 1.0 for pax), as GNU tar and bsdtar read it.
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "auto",
          default_missing_value = "always")]
    sparse: Sparse,
    /// Give everything to the calling user; by default owners are kept if root's rights allow it.
    #[arg(long)]
    no_owners: bool,
    /// Replace existing files in the directory and the file of --manifest, for example after an interruption.
    #[arg(long)]
    overwrite: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print the list, or a summary, as JSON.
    #[arg(long)]
    json: bool,
}

/// A block size on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Blocks {
    #[value(name = "4K")]
    B4K,
    #[value(name = "16K")]
    B16K,
}

/// Rescues the tree, or lists it.
pub fn run(args: &Args) -> Result<()> {
    let image = &args.image.image;
    let name = || image.display().to_string();
    for source in args.image.sources() {
        let written = [&args.destination, &args.map, &args.manifest];
        written.into_iter().flatten().try_for_each(|path| refuse_on_image(source.path(), path))?;
    }
    check_written(args)?;
    let known = args.map.as_deref().map(KnownMap::load).transpose()?.flatten();
    let rescue = rescue(args, known.as_ref()).with_context(name)?;
    if !args.quiet {
        tell_facts(&name(), rescue.facts());
    }
    tell_others(&args.image, rescue.facts());
    if args.timeline {
        return timeline(args, &rescue);
    }
    let Some(destination) = &args.destination else { return list(args, &rescue) };
    let mut manifest = Manifest::create(args.manifest.as_deref())?;
    let mut source = Arrivals::new(&rescue, args.selection(), |found| manifest.add(found));
    let carry = Carry {
        what: "rescuing",
        source: name(),
        destination,
        holes: args.sparse.into(),
        owners: if args.no_owners { Owners::Caller } else { Owners::permitted() },
        overwrite: args.overwrite,
        keep_going: true,
        quiet: args.quiet,
        json: args.json,
    };
    let (done, lost) = carry.run(&mut source)?;
    let counts = source.counts();
    manifest.finish()?;
    let summary = Summary {
        source: name(),
        destination: carry.destination_name(),
        volume: Volume::of(rescue.facts()),
        entries: done.entries,
        content_bytes: done.bytes,
        grades: by_name(&counts),
        lost_inodes: counts.lost,
        losses: done.losses,
        lost,
    };
    if args.json && !carry.is_to_stdout() {
        render::print(&summary, true, |_, _| Ok(()))?;
    } else if !args.quiet {
        summary.tell();
    }
    match summary.losses {
        0 => Ok(()),
        losses => bail!("{} could not be rescued", render::count(losses, "thing")),
    }
}

/// Returns the number of inodes at the destination for each grade.
fn by_name(counts: &Counts) -> BTreeMap<&'static str, u64> {
    let count = |grade: &Grade| counts.grades.get(grade).copied().unwrap_or(0);
    Grade::ALL.iter().map(|grade| (grade.name(), count(grade))).collect()
}

impl Args {
    fn selection(&self) -> Selection {
        if self.deleted { Selection::Removed } else { Selection::Present }
    }
}

/// Opens the devices of the volume, without the parts that a map calls bad.
fn open(args: &Args, known: Option<&KnownMap>) -> Result<Vec<Arc<dyn Device>>> {
    let sources = args.image.sources();
    let images = sources.iter().map(|source| open_image(source, OpenOptions::default()));
    let images = images.collect::<Result<Vec<_>>>()?;
    if args.image.place.range.format.image_format.is_none() {
        sources.iter().zip(&images).try_for_each(|(source, image)| refuse_reordered(source, image))?;
    }
    if let (Some(path), [image, others @ ..]) = (&args.map, images.as_slice()) {
        let path = path.display();
        if !others.is_empty() {
            bail!(
                "{path}: a map belongs to one device, and the volume has several; use rescue without --map"
            );
        }
        if !image.is_raw() || image.file().is_none() {
            bail!("{path}: a map is for a raw image; flashkit convert makes one");
        }
        let is_other = known.is_some_and(|known| known.origin == Origin::Other);
        if !is_other && !image.is_whole_file() {
            bail!(
                "{path}: of a part of an image no map is kept; --map takes the map that another program made of \
                 the whole image"
            );
        }
    }
    let device = |image: &image::Image| match (known, image.file()) {
        (Some(known), Some(file)) => {
            image.device_over(Arc::new(Masked::new(file.clone(), known.map.clone())))
        }
        _ => image.device(),
    };
    Ok(images.iter().map(device).collect())
}

fn rescue(args: &Args, known: Option<&KnownMap>) -> Result<Rescue> {
    let devices = open(args, known)?;
    let block_size = args.block_size.map(|size| match size {
        Blocks::B4K => BlockSize::B4K,
        Blocks::B16K => BlockSize::B16K,
    });
    let device = match devices.as_slice() {
        [device] => device.clone(),
        _ => {
            let joined = f2fs_rescue::join(devices, block_size)?;
            let sources = args.image.sources();
            joined.guessed.iter().for_each(|(n, bytes)| tell_guess(&sources[*n].to_string(), *bytes));
            joined.device
        }
    };
    let options = Options {
        block_size,
        // The device begins at the offset.
        offset_bytes: args.image.place.range.offset.map(|_| 0),
        as_of: args.as_of,
        removed: if args.deleted { RemovedFiles::Collect } else { RemovedFiles::Ignore },
        ..Options::default()
    };
    let kept = args.map.as_deref().map(|path| KeptMap::begin(path, known)).transpose()?.flatten();
    let bar = progress::stages(args.quiet || args.json);
    let mut show = progress::rescuer(&bar);
    let mut tell = |at: Progress<'_>| {
        kept.iter().for_each(|kept| kept.note(at.map, Instant::now()));
        show(at);
    };
    let rescue = f2fs_rescue::rescue(device, &options, &mut tell);
    bar.finish_and_clear();
    let saved = kept.map_or(Ok(()), KeptMap::finish);
    let rescue = rescue?;
    saved.map(|()| rescue)
}

/// Refuses a disk image that keeps the blocks of its disk in an order of its own: nodes would be found in it, and the content of
/// files would be that of other blocks.
fn refuse_reordered(source: &Source, image: &image::Image) -> Result<()> {
    match signature::describe_reordered(&*image.device()) {
        Some(what) => bail!("{source}: {what}; --format raw rescues it as it is"),
        None => Ok(()),
    }
}

/// Warns that the part of a device may be another: then contents of files are wrong.
fn tell_guess(device: &str, bytes: u64) {
    notice!(
        "flashkit: {device}: neither a superblock nor nodes tell its part of the volume; its first {bytes} bytes are taken. \
         If contents are wrong, name fewer: whole zones (mkfs.f2fs -s, -z), of the first device with --offset 0 --length \
         SIZE, of others as a shorter copy"
    );
}

/// Refuses to write two results to one file, or the list over an existing file that nobody asked to replace. Pipes and
/// devices are written to.
fn check_written(args: &Args) -> Result<()> {
    let written: Vec<&PathBuf> =
        [&args.destination, &args.map, &args.manifest].into_iter().flatten().collect();
    for (n, one) in written.iter().enumerate() {
        if let Some(other) = written[..n].iter().find(|other| is_one_place(other, one)) {
            bail!("{} and {} are one file; name different files", other.display(), one.display());
        }
    }
    let Some(manifest) = args.manifest.as_deref().filter(|_| !args.overwrite) else { return Ok(()) };
    match fs::metadata(manifest) {
        Ok(found) if found.is_file() => {
            bail!("{}: the file exists; name another one, or replace it with --overwrite", manifest.display())
        }
        _ => Ok(()),
    }
}

/// Refuses a destination that is the image or lies on it: writing to it would overwrite what is to be rescued.
fn refuse_on_image(image: &Path, destination: &Path) -> Result<()> {
    if host::is_same(image, destination) {
        bail!("{} is the image; choose another file", destination.display());
    }
    let mut folders = destination.ancestors().map(|folder| match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    });
    if folders.find(|folder| folder.exists()).is_some_and(|folder| host::lies_on(folder, image)) {
        bail!(
            "{} lies on {}; choose a destination on another device",
            destination.display(),
            image.display()
        );
    }
    Ok(())
}

/// Prints the facts that explain the result.
fn tell_facts(image: &str, facts: &Facts) {
    let from = match facts.superblock {
        Some(copy) => format!("superblock copy {copy}"),
        None => format!("no superblock; {} at byte {} by the nodes", blocks(facts), facts.start),
    };
    let checkpoint = match facts.checkpoint {
        Some(version) => format!("checkpoint {version}"),
        None => "no checkpoint".into(),
    };
    let versions = render::count(facts.node_versions, "node block");
    notice!("{image}: {from}, {checkpoint}, {versions}");
    if facts.unreadable_blocks > 0 {
        notice!("{image}: {} cannot be read", render::count(facts.unreadable_blocks, "block"));
    }
    if facts.left_out_versions {
        notice!("{image}: too many nodes for the memory; old versions were left out");
    }
    if facts.left_out_nodes {
        notice!(
            "{image}: too many different nodes for the memory; files whose nodes lie further back were left out"
        );
    }
}

/// Warns of other volumes on the device: nothing tells which one is wanted.
fn tell_others(image: &BareImage, facts: &Facts) {
    let base = image.place.range.offset.unwrap_or(0);
    for start in &facts.other_starts {
        let byte = i128::from(*start) + i128::from(base);
        notice!(
            "flashkit: {}: nodes of another volume lie on the device, which begins at byte {byte}; they were left out. \
             Its files come with --offset {byte}, if it begins on the device",
            image.image.display()
        );
    }
}

fn blocks(facts: &Facts) -> String {
    format!("blocks of {}", BinaryBytes(facts.block_size.bytes() as u64))
}

fn list(args: &Args, rescue: &Rescue) -> Result<()> {
    let mut manifest = Manifest::create(args.manifest.as_deref())?;
    let mut lost = 0u64;
    let found = rescue.list(args.selection()).filter_map(|found| readable(found, &mut lost));
    let mut rows = found.filter(|found| found.certainty.is_some()).map(|found| {
        manifest.add(&found);
        Row::of(&found)
    });
    if args.json {
        render::rows(rows.map(Ok), true)?;
    } else {
        render::text(|out| rows.try_for_each(|row| row.text(out)))?;
    }
    manifest.finish()?;
    refuse_lost(lost)
}

/// Prints the times of all inodes, those of removed ones last.
fn timeline(args: &Args, rescue: &Rescue) -> Result<()> {
    let selections: &[Selection] = match args.deleted {
        true => &[Selection::Present, Selection::Removed],
        false => &[Selection::Present],
    };
    let mut lost = 0u64;
    render::text(|out| {
        let found = selections.iter().flat_map(|selection| rescue.list(*selection));
        let mut found = found.filter_map(|found| readable(found, &mut lost));
        found.try_for_each(|found| listing::body_line(&found, out))
    })?;
    refuse_lost(lost)
}

/// An inode that was found. Prints the error and counts it if the inode cannot be rescued.
fn readable(found: f2fs::Result<Found>, lost: &mut u64) -> Option<Found> {
    found
        .inspect_err(|error| {
            *lost += 1;
            notice!("flashkit: {error}");
        })
        .ok()
}

/// Returns an error if something was lost.
fn refuse_lost(lost: u64) -> Result<()> {
    match lost {
        0 => Ok(()),
        lost => bail!("{} cannot be rescued", render::count(lost, "thing")),
    }
}

/// Facts about the volume in their printed form.
#[derive(Serialize)]
struct Volume {
    superblock: Option<u8>,
    start_byte: i64,
    other_starts: Vec<i64>,
    block_size_bytes: u64,
    features: Vec<&'static str>,
    checkpoint: Option<u64>,
    node_versions: u64,
    unreadable_blocks: u64,
    inodes_without_directory: u64,
    names_without_inode: u64,
    inodes_without_version: u64,
}

impl Volume {
    fn of(facts: &Facts) -> Volume {
        Volume {
            superblock: facts.superblock,
            start_byte: facts.start,
            other_starts: facts.other_starts.clone(),
            block_size_bytes: facts.block_size.bytes() as u64,
            features: facts.features.names().collect(),
            checkpoint: facts.checkpoint,
            node_versions: facts.node_versions,
            unreadable_blocks: facts.unreadable_blocks,
            inodes_without_directory: facts.without_directory,
            names_without_inode: facts.names_without_inode,
            inodes_without_version: facts.inodes_without_version,
        }
    }
}

/// Summary of a rescue.
#[derive(Serialize)]
struct Summary {
    source: String,
    destination: String,
    volume: Volume,
    entries: u64,
    content_bytes: u64,
    grades: BTreeMap<&'static str, u64>,
    lost_inodes: u64,
    losses: u64,
    lost: PathRows<Loss>,
}

impl Summary {
    fn tell(&self) {
        notice!(
            "{}: {}, {} of data to {}",
            self.source,
            render::count(self.entries, "entry"),
            BinaryBytes(self.content_bytes),
            self.destination
        );
        let graded = Grade::ALL.iter().filter_map(|grade| self.grades.get_key_value(grade.name()));
        let known = graded.chain([(&"lost", &self.lost_inodes)]).filter(|(_, count)| **count > 0);
        let known: Vec<_> = known.map(|(name, count)| format!("{count} {name}")).collect();
        notice!("{}: {}", self.source, known.join(", "));
    }
}
