//! `mkfs`: makes a new volume, empty or filled. The short flags are those of mkfs.f2fs.

mod made;

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, anyhow, bail};
use block::{Behind, Concat, Device};
use f2fs::{
    engine::{self, Engine},
    format::{BlockSize, superblock::Features},
    mkfs::{self, DeviceContent, DeviceSize, Encoding, NewVolume, Overprovision, Plan},
    units::Time,
};
use f2fs_tree::{FillOptions, Transform};
use flash::{
    probe::{self, Advice},
    verbs,
};
use image::Source;
use uuid::Uuid;

use made::{Filled, Made};

use super::advised::Purpose;
use crate::{
    compress::Compress,
    exclude::Exclude,
    host,
    interrupt::Outcome,
    output::{Existing, Form, Output},
    progress, size,
    source::{Changes, Content, Reads, epoch},
    suggested::Suggested,
    target::{Range, sector_bytes},
};

/// Maximum number of bytes queued for writing while the source is read.
const WAITING_BYTES: usize = 16 << 20;

/// Arguments of `mkfs`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit mkfs card.img --size 512M -l DATA
  flashkit mkfs root.img --from rootfs/ --minimize --all-owned-by 0:0
  flashkit mkfs root.img --size 2G --from base.tar.zst --from overlay/ --exclude .git
  tar c tree | flashkit mkfs root.img --size 2G --from -
  flashkit mkfs disk.img#2 -l DATA
  flashkit mkfs /dev/mmcblk0p2 -O extra_attr,inode_checksum,sb_checksum -s 2
  flashkit mkfs sd.img --size 1900M --card bergmann-stick
  flashkit mkfs sd.img --size 1900M --card survey-class4 --for databases
  flashkit mkfs /dev/mmcblk0p2 --probe")]
pub struct Args {
    /// The image file, made if it does not exist, the block device, or a partition of either as IMAGE#NUMBER or IMAGE#NAME,
    /// which is written in place.
    image: PathBuf,
    /// Sectors to use, as with mkfs.f2fs; all by default.
    #[arg(value_name = "SECTORS", conflicts_with = "size")]
    sectors: Option<u64>,
    /// Size of the volume: 64M and 64MiB in powers of 1024, 64MB in powers of 1000. An image file is made or resized to it.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Fill the volume from a directory, a tar archive (plain, gz, xz, zst), or - for a tar archive on
    /// standard input; repeat to lay further ones over it. The image itself is skipped if it lies in a directory.
    #[arg(long, value_name = "SOURCE")]
    from: Vec<PathBuf>,
    /// Make the image file as small as the content allows.
    #[arg(long, requires = "from", conflicts_with_all = ["size", "sectors"])]
    minimize: bool,
    /// Make an Android sparse image, in which unused blocks have no content. It cannot be changed in place; flashkit convert
    /// makes a raw image of it.
    #[arg(long)]
    sparse: bool,
    /// Free space that --minimize leaves, in percent of the content's space.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, requires = "minimize")]
    free: f64,
    /// Shape the volume for a card: the name of a profile, its file, or a card's file. -s and -z take
    /// precedence.
    #[arg(long, value_name = "PROFILE|FILE", conflicts_with = "probe", value_parser = super::card::profiles(), hide_possible_values = true)]
    card: Option<String>,
    /// First probe the device by writing to it, and shape the volume for it as far as the findings are
    /// certain.
    #[arg(long)]
    probe: bool,
    /// Overwrite a file that holds data or has to become shorter, and a device that carries a file system, an array member
    /// or a partition table.
    #[arg(short, long)]
    force: bool,
    /// Write into the existing file. By default a new file replaces it once it is complete, so that an interrupt
    /// leaves the old one.
    #[arg(long, conflicts_with = "minimize")]
    in_place: bool,
    /// Print the result without writing anything.
    #[arg(long)]
    dry_run: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print a summary as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    range: Range,
    #[command(flatten)]
    purpose: Purpose,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    exclude: Exclude,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    compress: Compress,
}

/// Properties of the new volume.
#[derive(clap::Args)]
#[command(next_help_heading = "Properties of the volume")]
struct Shape {
    /// Label.
    #[arg(short, long, value_name = "LABEL", default_value = "")]
    label: String,
    /// UUID; random by default.
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Features by name, separated by commas; repeat for more.
    #[arg(short = 'O', long, value_name = "FEATURES", value_parser = Suggested(all_features), hide_possible_values = true)]
    features: Vec<String>,
    /// Segments per section.
    #[arg(short = 's', long, value_name = "SEGMENTS", value_parser = clap::value_parser!(u32).range(1..))]
    segments_per_section: Option<u32>,
    /// Sections per zone.
    #[arg(short = 'z', long, value_name = "SECTIONS", value_parser = clap::value_parser!(u32).range(1..))]
    sections_per_zone: Option<u32>,
    /// Space reserved for cleaning, in percent; 0 is the default, which leaves users the most.
    #[arg(short, long, value_name = "PERCENT")]
    overprovision: Option<f64>,
    /// Make a large NAT bitmap, for many nodes.
    #[arg(short = 'i', long)]
    large_nat_bitmap: bool,
    /// Sector size in bytes.
    #[arg(short = 'w', long, value_name = "BYTES")]
    sector_size: Option<u32>,
    /// Block size: 4K or 16K.
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "4K", value_parser = block_size)]
    block_size: BlockSize,
    /// Extensions of cold files beyond the built-in ones, separated by commas.
    #[arg(short = 'e', long, value_name = "EXTENSIONS", value_delimiter = ',')]
    cold: Vec<String>,
    /// Extensions of hot files beyond the built-in ones, separated by commas.
    #[arg(short = 'E', long, value_name = "EXTENSIONS", value_delimiter = ',')]
    hot: Vec<String>,
    /// Encoding of names for case-insensitive directories, with flags: utf8, utf8:strict.
    #[arg(short = 'C', long, value_name = "ENCODING", num_args = 0..=1, default_missing_value = "utf8")]
    encoding: Option<String>,
    /// Defaults of a platform: android.
    #[arg(short = 'g', long, value_name = "PLATFORM", value_parser = ["android"])]
    defaults: Option<String>,
    /// Further devices of the volume, separated by commas; repeat for more.
    #[arg(short = 'c', long = "device", value_name = "DEVICES", value_delimiter = ',')]
    devices: Vec<PathBuf>,
    /// Discard a block device first: 0 (no) or 1 (yes).
    #[arg(short = 't', long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    trim: u8,
    /// Time of everything without a time of its own, in seconds since 1970; SOURCE_DATE_EPOCH by default, or
    /// now.
    #[arg(short = 'T', long, value_name = "SECONDS")]
    timestamp: Option<i64>,
}

fn all_features() -> Vec<&'static str> {
    Features(u32::MAX).names().collect()
}

/// Makes the volume.
pub fn run(args: &Args) -> Result<()> {
    let name = || args.image.display().to_string();
    let existing = match Existing::look(&args.range.of(&args.image), args.force)? {
        Existing::File { bytes } if args.in_place => Existing::InPlace { bytes },
        other => other,
    };
    let time = time(args)?;
    let advice = advice(args, existing)?;
    let options = args.shape.options(args, time, advice.as_ref())?;
    let transform = args.changes.read()?;
    let content = content(args, &transform)?;
    let sizes = sizes(args, existing, &options, content.as_ref(), &transform, time)?;
    let plan = Plan::new(&options, &sizes).with_context(name)?;
    if args.dry_run {
        let filled =
            content.as_ref().map(|content| count(args, content, &transform, &plan, time)).transpose()?;
        return Made::of(args, &plan, filled.unwrap_or_default(), None, advice.as_ref()).report(args);
    }

    let outcome = Outcome::new(match existing {
        Existing::InPlace { .. } => {
            format!("{}: the volume on it is incomplete; run mkfs again", args.image.display())
        }
        _ => format!("{}: nothing was changed", args.image.display()),
    });
    let outputs = outputs(args, existing, &sizes)?;
    let content = content.map(|content| content.leaving_out(outputs.iter().filter_map(Output::working)));
    let device: Arc<dyn Device> = match &outputs[..] {
        [only] => only.device.clone(),
        several => {
            let parts = several.iter().map(|output| output.device.clone() as Arc<dyn Device>);
            Arc::new(
                Concat::new(parts.zip(engine::device_bytes(&plan.superblock)).collect())
                    .with_context(name)?,
            )
        }
    };
    let is_blank = outputs.iter().all(|output| output.is_blank);
    if args.shape.trim == 1 && !is_blank {
        discard(&outputs, &sizes)?;
    }
    // On one thread, reading the source and writing the image would alternate; on two they overlap.
    let device = Arc::new(Behind::new(device, WAITING_BYTES));
    let before = if is_blank { DeviceContent::Zeroes } else { DeviceContent::Unknown };
    let mut new = NewVolume::begin(device, &plan, before, engine_options(args, time)).with_context(name)?;
    let filled = match &content {
        Some(content) => fill(args, new.volume(), content, transform, existing)?,
        None => Filled::default(),
    };
    let volume = new.finish().with_context(name)?;
    let used_blocks = volume.counters().valid_blocks;
    drop(volume);
    drop(outcome);
    for output in outputs {
        output.finish()?;
    }
    Made::of(args, &plan, filled, Some(used_blocks), advice.as_ref()).report(args)
}

/// Counts the content, as a volume of this plan would hold it.
fn count(args: &Args, content: &Content, transform: &Transform, plan: &Plan, time: Time) -> Result<Filled> {
    let mut source = content.open()?;
    let need = f2fs_tree::count(&mut *source, transform, &plan.superblock, &engine_options(args, time));
    let need = need.map_err(|error| content.explain(error, &args.image, Into::into))?;
    Ok(Filled { entries: need.entries, bytes: need.bytes })
}

/// Fills the volume with the content.
fn fill(
    args: &Args,
    volume: &mut Engine,
    content: &Content,
    transform: Transform,
    existing: Existing,
) -> Result<Filled> {
    let bar = progress::bytes("filling", None, args.quiet || args.json);
    let mut source = content.open()?;
    let root = volume.superblock().root_ino;
    let mut tell = progress::teller(&bar);
    let saved_space = args.compress.saved_space();
    let how = FillOptions { transform, root: true, saved_space, progress: Some(&mut tell) };
    let done = f2fs_tree::read_ahead(&mut *source, |source| f2fs_tree::fill(volume, root, source, how))
        .map_err(|error| content.explain(error, &args.image, |error| too_small(error, args, existing)))?;
    bar.finish_and_clear();
    Ok(Filled { entries: done.entries, bytes: done.bytes })
}

/// Finds the content of the volume, if it is to have any.
fn content(args: &Args, transform: &Transform) -> Result<Option<Content>> {
    if args.from.is_empty() {
        args.changes.refuse_without_source()?;
        args.compress.refuse_without_source()?;
        args.exclude.refuse_without_source()?;
        return Ok(None);
    }
    let into = std::iter::once(&args.image).chain(&args.shape.devices);
    let content = Content::find(&args.from, &args.exclude, transform.owners.as_ref())?;
    let reads = if args.minimize || args.dry_run { Reads::Twice } else { Reads::Once };
    content.leaving_out(into.map(PathBuf::as_path)).prepared(reads).map(Some)
}

/// Discards the bytes of the volume on each of its devices. Bytes behind the volume stay as they are.
fn discard(outputs: &[Output], sizes: &[DeviceSize]) -> Result<()> {
    for (output, size) in outputs.iter().zip(sizes) {
        let bytes = size.bytes.min(output.device.geometry().size_bytes);
        output.device.discard(0, bytes).with_context(|| size.path.clone())?;
    }
    Ok(())
}

/// Adds advice to the error of a volume that is too small for its content.
fn too_small(error: f2fs::Error, args: &Args, existing: Existing) -> anyhow::Error {
    if !matches!(error, f2fs::Error::NoSpace { .. } | f2fs::Error::NoInodes) {
        return error.into();
    }
    let larger = match existing {
        Existing::InPlace { .. } => "a larger device holds it",
        _ => "a larger --size holds it, and --minimize finds the smallest",
    };
    match args.shape.overprovision.filter(|percent| *percent != 0.0) {
        Some(percent) => {
            anyhow!("{error}; {larger}; an overprovision below -o {percent} leaves more space for users")
        }
        None => anyhow!("{error}; {larger}"),
    }
}

/// Returns the advice for the volume's card, if one is named or to be probed.
fn advice(args: &Args, existing: Existing) -> Result<Option<Advice>> {
    let verbosity = (args.quiet || args.json).into();
    if let Some(card) = &args.card {
        let findings = args.purpose.advise_for(&verbs::profile(card)?, verbosity)?;
        return Ok(Some(findings.advice()));
    }
    if !args.probe {
        if args.purpose.is_given() {
            bail!("--for needs --card or --probe: it chooses among shapes for a card");
        }
        return Ok(None);
    }
    if args.dry_run {
        bail!("--probe writes to the device and cannot be used with --dry-run; flashkit probe reads it only");
    }
    args.image.to_str().context("--probe needs a name in UTF-8")?;
    let source = args.range.of(&args.image);
    match existing {
        Existing::Nothing => bail!("{source}: no such file or device to probe"),
        Existing::File { .. } | Existing::InPlace { .. } => {
            let options = probe::Options { write: true, ..probe::Options::default() };
            Ok(Some(super::probe::look(&source, options, &args.purpose, verbosity)?.advice()))
        }
    }
}

/// Returns the time of everything that has none of its own.
fn time(args: &Args) -> Result<Time> {
    if let Some(seconds) = args.shape.timestamp {
        return Ok(Time { seconds, nanoseconds: 0 });
    }
    Ok(epoch()?.unwrap_or_else(crate::clock::now))
}

/// Returns the engine's options. One time for everything makes the image reproducible.
fn engine_options(args: &Args, time: Time) -> engine::Options {
    let mut options = engine::Options::new(move || time);
    args.compress.apply(&mut options);
    options
}

impl Shape {
    fn options(&self, args: &Args, time: Time, advice: Option<&Advice>) -> Result<mkfs::Options> {
        let reproducible = self.timestamp.is_some() || epoch()?.is_some();
        let uuid = self.uuid.unwrap_or_else(|| match reproducible {
            // A name-based UUID: the same call makes the same volume.
            true => Uuid::new_v5(
                &Uuid::NAMESPACE_OID,
                format!("flashkit {} {}", time.seconds, self.label).as_bytes(),
            ),
            false => Uuid::new_v4(),
        });
        let mut options = mkfs::Options::new(*uuid.as_bytes());
        options.label = self.label.clone();
        let features = mkfs::parse_features(&self.features.join(","))?;
        options.features = features.with(args.compress.features());
        options.block_size = self.block_size;
        let advised = |of: fn(&Advice) -> u64| advice.map_or(Ok(1), |advice| u32::try_from(of(advice)));
        options.segments_per_section =
            self.segments_per_section.map_or_else(|| advised(|advice| advice.segments_per_section), Ok)?;
        options.sections_per_zone =
            self.sections_per_zone.map_or_else(|| advised(|advice| advice.sections_per_zone), Ok)?;
        options.overprovision = match self.overprovision {
            // As in mkfs.f2fs, 0 means the default.
            None | Some(0.0) => Overprovision::Automatic,
            Some(percent) => Overprovision::Percent(percent),
        };
        options.cold_extensions = self.cold.clone();
        options.hot_extensions = self.hot.clone();
        options.large_nat_bitmap = self.large_nat_bitmap;
        if let Some(encoding) = &self.encoding {
            options.encoding = Encoding::parse(encoding)?;
            options.features = options.features.with(Features::CASEFOLD);
        }
        // As in mkfs.f2fs, the caller may write to the volume.
        options.root_owner = host::caller();
        if self.defaults.is_some() {
            options = options.android();
        }
        if let Some(owner) = args.changes.root_owner.or(args.changes.all_owned_by) {
            options.root_owner = owner;
        }
        if let Some(bytes) = self.sector_size {
            options.sector_bytes = bytes;
        }
        Ok(options)
    }
}

/// Returns the length of a number of sectors: those of -w, or those of the device, as with mkfs.f2fs.
fn bytes_of(sectors: u64, args: &Args) -> Result<u64> {
    let name = || args.image.display().to_string();
    let sector_bytes = match args.shape.sector_size {
        Some(bytes) => bytes,
        None => sector_bytes(args.range.of(&args.image).path()).with_context(name)?,
    };
    let bytes = sectors.checked_mul(sector_bytes.into());
    bytes.with_context(|| format!("{}: {sectors} sectors of {sector_bytes} bytes are too many", name()))
}

/// Returns the devices of the volume, each with its size in bytes.
fn sizes(
    args: &Args,
    existing: Existing,
    options: &mkfs::Options,
    content: Option<&Content>,
    transform: &Transform,
    time: Time,
) -> Result<Vec<DeviceSize>> {
    let wanted = match (args.size, args.sectors) {
        (None, Some(sectors)) => Some(bytes_of(sectors, args)?),
        (size, _) => size,
    };
    let first = match (existing, wanted) {
        (Existing::InPlace { bytes }, Some(wanted)) if wanted > bytes => {
            bail!("{}: has {bytes} bytes, but {wanted} were requested", args.image.display())
        }
        (Existing::InPlace { .. }, None) if args.minimize => {
            bail!("{}: --minimize is for image files", args.image.display())
        }
        (_, Some(wanted)) => wanted,
        (_, None) if args.minimize => {
            let content = content.expect("--minimize requires --from");
            let mut source = content.open()?;
            let smallest = f2fs_tree::smallest_for(
                &mut *source,
                transform,
                options,
                &engine_options(args, time),
                args.free,
            );
            smallest.map_err(|error| content.explain(error, &args.image, Into::into))?
        }
        (Existing::InPlace { bytes } | Existing::File { bytes }, None) => bytes,
        (Existing::Nothing, None) => bail!(
            "{}: no such file; --size makes one, and --minimize one that just fits its content",
            args.image.display()
        ),
    };
    if let (Existing::File { bytes }, false) = (existing, args.force) {
        if first < bytes {
            bail!(
                "{}: has {bytes} bytes and the volume {first}; -f truncates the file",
                args.image.display()
            );
        }
    }
    let mut sizes = vec![DeviceSize { path: args.image.display().to_string(), bytes: first }];
    for path in &args.shape.devices {
        match Existing::look(&Source::parse(path), args.force)? {
            Existing::File { bytes } | Existing::InPlace { bytes } => {
                sizes.push(DeviceSize { path: path.display().to_string(), bytes });
            }
            Existing::Nothing => bail!("{}: no such file or device", path.display()),
        }
    }
    Ok(sizes)
}

fn outputs(args: &Args, existing: Existing, sizes: &[DeviceSize]) -> Result<Vec<Output>> {
    let first = match existing {
        Existing::InPlace { .. } if args.sparse => {
            bail!("{}: --sparse is for image files", args.image.display())
        }
        Existing::InPlace { .. } => Output::in_place(&args.range.of(&args.image))?,
        Existing::File { .. } | Existing::Nothing => {
            let form = if args.sparse { Form::Sparse } else { Form::Raw };
            Output::file(&args.image, sizes[0].bytes, form)?
        }
    };
    let mut outputs = vec![first];
    for path in &args.shape.devices {
        outputs.push(Output::in_place(&Source::parse(path))?);
    }
    Ok(outputs)
}

/// Parses `4K` or `16K`, or the same in bytes.
fn block_size(text: &str) -> Result<BlockSize, String> {
    match size::parse(text)? {
        4096 => Ok(BlockSize::B4K),
        16384 => Ok(BlockSize::B16K),
        _ => Err("the block size is 4K or 16K".into()),
    }
}
