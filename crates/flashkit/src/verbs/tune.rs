//! `tune`: shows and changes the properties of a volume.

use std::io::Write;

use anyhow::{Context, Result};
use block::OpenOptions;
use f2fs::{
    engine::{self, Engine, Options},
    format::{quota::QuotaKind, superblock::Superblock},
    mkfs::Encoding,
    tune::{self, Changes, ExtensionChange, FeatureChanges, Plan},
};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    clock,
    interrupt::Outcome,
    notice::notice,
    render,
    suggested::Suggested,
    target::{BareImage, Further, open_image, open_read_only},
};

/// Arguments of `tune`.
#[derive(clap::Args)]
#[command(after_help = "\
Without changes, the properties are shown. `flashkit label` changes the label, `flashkit resize` the size.

The volume must not be mounted. An error or a power cut leaves its old or its new properties, and all its files. If quota
files or the checksums of all inodes change, a power cut can also leave these features off, which `flashkit tune IMAGE`
shows; switch them on again by --quota KINDS or -O inode_checksum.

Features that can be switched: encrypt, verity, casefold and compression (off only if no file uses them), project_quota,
inode_checksum, inode_crtime, lost_found, sb_checksum. compression goes on only if every file has room for its
attributes. --quota switches quota. All others are part of the layout.

Examples:
  flashkit tune card.img
  flashkit tune card.img -U random
  flashkit tune /dev/mmcblk0p2 -O sb_checksum,^inode_crtime
  flashkit tune card.img -e ^gz -E sqlite      gz is not cold any more, sqlite is hot
  flashkit tune card.img --quota user,group    with the present usage
  flashkit tune card.img --quota none --dry-run")]
pub struct Args {
    #[command(flatten)]
    image: BareImage,
    /// New UUID: random, clear (all zeroes), or a UUID.
    #[arg(short = 'U', long, value_name = "UUID", value_parser = uuid)]
    uuid: Option<Uuid>,
    /// Features to switch on, or off with ^ before the name, separated by commas; repeat for more.
    #[arg(short = 'O', long, value_name = "FEATURES", value_parser = Suggested(features), hide_possible_values = true)]
    features: Vec<String>,
    /// Encoding of names for -O casefold: utf8, with the flags strict and hashonly as in utf8:strict.
    #[arg(short = 'C', long, value_name = "ENCODING")]
    encoding: Option<String>,
    /// File name extension of cold files to add, or to remove with ^ before it; repeat or separate by commas.
    #[arg(short = 'e', long, value_name = "EXTENSION", value_delimiter = ',')]
    cold: Vec<String>,
    /// File name extension of hot files to add, or to remove with ^ before it; repeat or separate by commas.
    #[arg(short = 'E', long, value_name = "EXTENSION", value_delimiter = ',')]
    hot: Vec<String>,
    /// Quotas that the volume has afterwards, separated by commas, or none.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_enum)]
    quota: Vec<Quota>,
    /// Only say what would be changed, or why not.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Kinds of quota, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Quota {
    /// By owner.
    User,
    /// By group.
    Group,
    /// By project.
    Project,
    /// No quota of any kind.
    None,
}

/// The properties of a volume.
#[derive(Serialize)]
struct Properties {
    uuid: String,
    label: String,
    features: Vec<&'static str>,
    encoding: Option<String>,
    cold_extensions: Vec<String>,
    hot_extensions: Vec<String>,
    quota: Vec<&'static str>,
}

/// Result of a change.
#[derive(Serialize)]
struct Record {
    changes: Vec<Change>,
    done: bool,
}

/// A property that changes.
#[derive(Serialize)]
struct Change {
    what: &'static str,
    old: String,
    new: String,
}

impl From<tune::Change> for Change {
    fn from(change: tune::Change) -> Change {
        let tune::Change { what, old, new } = change;
        Change { what, old, new }
    }
}

/// Shows or changes the properties.
pub fn run(args: &Args) -> Result<()> {
    let image = args.image.image.display().to_string();
    let Some(changes) = changes(args)? else {
        let properties = Properties::of(read(args)?.superblock());
        return render::print(&properties, args.json, Properties::text);
    };
    let plan = match args.dry_run {
        true => Plan::new(&read(args)?, &changes).with_context(|| image.clone())?,
        false => change(args, &changes).with_context(|| image.clone())?,
    };
    for (kind, ino) in &plan.damaged_quotas {
        notice!(
            "flashkit: {image}: the {} quota file, inode {ino}, is damaged and stays so; fsck -y repairs it",
            kind.name()
        );
    }
    let changes = plan.changes.into_iter().map(Change::from).collect();
    let record = Record { changes, done: !args.dry_run };
    render::print(&record, args.json, Record::text)
}

/// Opens the volume for reading.
fn read(args: &Args) -> Result<Engine> {
    let further = Further { place: args.image.place.clone(), keys: Vec::new() };
    open_read_only(&args.image.image, &further)
}

/// Changes the volume under one claim of its devices.
fn change(args: &Args, changes: &Changes) -> Result<Plan> {
    let how = OpenOptions { write: true, direct: false };
    let sources = args.image.sources();
    let images = sources.iter().map(|source| open_image(source, how)).collect::<Result<Vec<_>>>()?;
    let device = engine::join(images.iter().map(image::Image::device).collect())?;
    let outcome = Outcome::new(format!(
        "{}: all files are there; quotas or inode_checksum may be off, and --quota or -O switches them on again",
        args.image.image.display()
    ));
    let mut open = || Engine::open(device.clone(), Options::new(clock::now));
    let plan = tune::tune(&mut open, changes)?;
    drop(outcome);
    Ok(plan)
}

/// The wanted changes; `None` if there are none.
fn changes(args: &Args) -> Result<Option<Changes>> {
    let lists = [&args.features, &args.cold, &args.hot];
    if args.uuid.is_none()
        && args.encoding.is_none()
        && args.quota.is_empty()
        && lists.iter().all(|list| list.is_empty())
    {
        return Ok(None);
    }
    let extensions = |list: &[String]| list.iter().map(|text| ExtensionChange::parse(text)).collect();
    let encoding = args.encoding.as_deref().map(Encoding::parse).transpose()?;
    Ok(Some(Changes {
        uuid: args.uuid.map(Uuid::into_bytes),
        features: FeatureChanges::parse(&args.features.join(","))?,
        encoding,
        cold: extensions(&args.cold),
        hot: extensions(&args.hot),
        quotas: quotas(&args.quota)?,
    }))
}

/// The quotas that the volume is to have, if the call names them.
fn quotas(named: &[Quota]) -> Result<Option<Vec<QuotaKind>>> {
    let kind = |quota: &Quota| match quota {
        Quota::User => Some(QuotaKind::User),
        Quota::Group => Some(QuotaKind::Group),
        Quota::Project => Some(QuotaKind::Project),
        Quota::None => None,
    };
    let kinds: Vec<QuotaKind> = named.iter().filter_map(kind).collect();
    if named.contains(&Quota::None) && !kinds.is_empty() {
        anyhow::bail!("--quota: none cannot be combined with others");
    }
    Ok((!named.is_empty()).then_some(kinds))
}

/// Parses `random`, `clear`, or a UUID.
fn uuid(text: &str) -> Result<Uuid, String> {
    match text {
        "random" => Ok(Uuid::new_v4()),
        "clear" => Ok(Uuid::nil()),
        other => Uuid::parse_str(other).map_err(|error| format!("{error}; or random, or clear")),
    }
}

/// Names of the features that can be switched.
fn features() -> Vec<&'static str> {
    tune::switchable().names().collect()
}

impl Properties {
    fn of(sb: &Superblock) -> Properties {
        let kinds = QuotaKind::ALL.into_iter().filter(|kind| sb.quota_ino(*kind).is_some());
        Properties {
            uuid: Uuid::from_bytes(sb.uuid).to_string(),
            label: sb.label.clone(),
            features: sb.features.names().collect(),
            encoding: Encoding::of(sb).map(|encoding| encoding.to_string()),
            cold_extensions: sb.cold_extensions.clone(),
            hot_extensions: sb.hot_extensions.clone(),
            quota: kinds.map(QuotaKind::name).collect(),
        }
    }

    fn text(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let list = |words: &[String]| render::name(words.join(", ").as_bytes()).to_string();
        writeln!(out, "UUID             {}", self.uuid)?;
        writeln!(out, "label            {}", render::name(self.label.as_bytes()))?;
        writeln!(out, "features         {}", self.features.join(", "))?;
        if let Some(encoding) = &self.encoding {
            writeln!(out, "encoding         {encoding}")?;
        }
        writeln!(out, "cold extensions  {}", list(&self.cold_extensions))?;
        writeln!(out, "hot extensions   {}", list(&self.hot_extensions))?;
        writeln!(
            out,
            "quota            {}",
            if self.quota.is_empty() { "none".into() } else { self.quota.join(", ") }
        )
    }
}

impl Record {
    fn text(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.changes.is_empty() {
            return writeln!(out, "nothing to change");
        }
        let would = if self.done { "" } else { "would change " };
        let shown = |text: &str| match text {
            "" => "none".into(),
            text => render::name(text.as_bytes()).to_string(),
        };
        for Change { what, old, new } in &self.changes {
            writeln!(out, "{would}{what}: {} -> {}", shown(old), shown(new))?;
        }
        Ok(())
    }
}
