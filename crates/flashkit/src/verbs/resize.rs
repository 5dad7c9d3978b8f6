//! `resize`: gives a volume another size.

mod mounted;

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use block::{Concat, Device, FileDevice, OpenOptions};
use f2fs::{
    engine::{self, Engine, Options},
    format::superblock::Superblock,
    resize::{self, Method, Plan},
};
use image::{Image, Source};
use serde::Serialize;

use crate::{
    clock, failure,
    interrupt::Outcome,
    progress::{self, Verbosity},
    render::{self, Format},
    size, target,
    unpacked::{Purpose, Unpacked},
};

/// Arguments of `resize`.
#[derive(clap::Args)]
#[command(after_help = "\
A volume that is not mounted is checked first: a damaged one is refused. A refusal, an error or a power cut leaves
it with its old size or its new size, and with all its files. If its metadata areas must grow (--dry-run prints that), a
power cut or an error can also leave a size between the two; the message of the error has it. Run the verb again after a
power cut to complete it, before Linux mounts the volume. A partial segment (2 MiB) at the end is not used, nor is a
partial section or zone.

A volume that `flashkit mount` has mounted grows through its mount, for an administrator: IMAGE is the image or the
directory. Programs can use it meanwhile. To shrink it, or if its metadata areas must grow, unmount it first.

An image file that must grow is extended first; an image file that shrinks is cut after the volume is smaller. Shrink a
partition after its volume, and enlarge it before.

Examples:
  flashkit resize card.img 300M
  flashkit resize card.img --minimize
  flashkit resize /dev/mmcblk0p2              to the size of the partition
  flashkit resize /mnt/card 300M              a mounted volume
  flashkit resize card.img 100M --dry-run     only say what would be done, or why not")]
pub struct Args {
    #[command(flatten)]
    image: target::BareImage,
    /// New size of the device, or of the last one of several [default: its present size].
    #[arg(value_parser = size::parse)]
    size: Option<u64>,
    /// Shrink to the smallest size that holds the content.
    #[arg(short, long, conflicts_with = "size")]
    minimize: bool,
    /// Do not change the length of an image file: refuse a size beyond its end, and do not cut it.
    #[arg(long)]
    no_truncate: bool,
    /// Only say what would be done, or why the size is refused.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Show no progress.
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of a resize.
#[derive(Serialize)]
struct Record {
    old_bytes: u64,
    new_bytes: u64,
    moved_blocks: u64,
    moves_metadata: bool,
    done: bool,
}

/// State of a resize that is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was changed.
    Planned,
    /// The volume has the new size.
    Done,
}

impl Record {
    fn of(plan: &Plan, state: State) -> Record {
        Record {
            old_bytes: plan.old_bytes,
            new_bytes: plan.new_bytes,
            moved_blocks: plan.moved_blocks,
            moves_metadata: plan.method == Method::Relocate,
            done: state == State::Done,
        }
    }
}

/// Access to the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Treatment of the length of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// It becomes that of the volume.
    Follows,
    /// It stays as it is.
    Stays,
}

/// The devices of the volume, and the part of its address space before the last one.
struct Devices {
    sources: Vec<Source>,
    length: Length,
    /// Bytes that each device but the last contributes.
    before: Vec<u64>,
}

impl Devices {
    fn of(args: &Args) -> Result<Devices> {
        let sources = args.image.sources();
        for source in &sources {
            Unpacked::of(source, Purpose::Change)?;
        }
        let first = target::open_device(&sources[0])?;
        let (superblock, _) = engine::read_superblock(&*first, u64::MAX)
            .map_err(|error| target::not_opened(&sources[0], error))?;
        let wanted = superblock.devices.len().max(1);
        if wanted != sources.len() {
            bail!("devices of the volume: {wanted}; given: {} (--device names a further one)", sources.len());
        }
        let mut before: Vec<u64> = engine::device_bytes(&superblock).collect();
        before.pop();
        let length = if args.no_truncate { Length::Stays } else { Length::Follows };
        Ok(Devices { sources, length, before })
    }

    /// Bytes of the address space before the last device.
    fn bytes_before(&self) -> u64 {
        self.before.iter().sum()
    }

    fn open(&self, access: Access) -> Result<Opened<'_>> {
        let how = OpenOptions { write: access == Access::Write, direct: false };
        let images = self.sources.iter().map(|source| target::open_image(source, how));
        Ok(Opened { devices: self, images: images.collect::<Result<_>>()? })
    }
}

/// The open devices of the volume. While they are open for writing, no other program writes to them.
struct Opened<'d> {
    devices: &'d Devices,
    images: Vec<Image>,
}

impl Opened<'_> {
    /// Returns the devices as one, with their present lengths. Of several, the last one contributes whole sectors.
    fn device(&self) -> Result<Arc<dyn Device>> {
        let mut devices: Vec<Arc<dyn Device>> = self.images.iter().map(Image::device).collect();
        if devices.len() == 1 {
            return Ok(devices.remove(0));
        }
        let sector = devices.iter().map(|device| device.geometry().sector_bytes.max(1)).max().unwrap_or(1);
        let last = self.last_bytes() - self.last_bytes() % u64::from(sector);
        let sizes = self.devices.before.iter().copied().chain([last]);
        Ok(Arc::new(Concat::new(devices.into_iter().zip(sizes).collect())?))
    }

    fn superblock(&self) -> Result<Superblock> {
        Ok(engine::read_superblock(&*self.images[0].device(), u64::MAX)?.0)
    }

    fn last(&self) -> (&Source, &Image) {
        self.devices.sources.last().zip(self.images.last()).expect("there is a device")
    }

    /// Size of the last device.
    fn last_bytes(&self) -> u64 {
        self.last().1.device().geometry().size_bytes
    }

    /// Returns the last device if its length can change: it is a whole file as it is, without a container.
    fn variable_file(&self) -> Option<&FileDevice> {
        variable_file(self.last().1, self.devices.length)
    }

    /// Refuses more bytes than the last device has, unless it is a whole file.
    fn require_extensible(&self, bytes: u64) -> Result<()> {
        let has = self.last_bytes();
        if bytes > has && self.variable_file().is_none() {
            // The message begins with the name of the image, which is the first device.
            let last = self.last().0;
            let device = if self.devices.sources.len() == 1 { String::new() } else { format!("{last}: ") };
            return Err(too_small_device(&device, last, has, bytes));
        }
        Ok(())
    }

    /// Extends the file of the last device to `bytes`, if it is shorter.
    fn extend(&self, bytes: u64) -> Result<()> {
        match self.variable_file().filter(|_| bytes > self.last_bytes()) {
            Some(file) => file.set_size(bytes).with_context(|| self.last().0.to_string()),
            None => Ok(()),
        }
    }

    /// Cuts the file of the last device to `bytes`, if it is longer.
    fn cut(&self, bytes: u64) -> Result<()> {
        match self.variable_file().filter(|_| bytes < self.last_bytes()) {
            Some(file) => file.set_size(bytes).with_context(|| self.last().0.to_string()),
            None => Ok(()),
        }
    }
}

/// Returns the file of an image if its length can change: the image is the whole file as it is, without a container.
fn variable_file(image: &Image, length: Length) -> Option<&FileDevice> {
    let file = image.whole_file().filter(|file| !file.is_block_device());
    file.filter(|_| length == Length::Follows).map(|file| &**file)
}

/// Returns the error of a size that is larger than the device, which is not extended. `device` names it if the message does
/// not.
fn too_small_device(device: &str, source: &Source, has: u64, bytes: u64) -> anyhow::Error {
    let advice = match source.is_part() {
        true => "the volume fills its part of the disk; enlarge the partition in its table first",
        false => "enlarge it first: a file with truncate, a qcow2 image with qemu-img resize",
    };
    anyhow!("{device}{has} bytes, not {bytes}; {advice}")
}

/// Resizes a volume.
pub fn run(args: &Args) -> Result<()> {
    let image = args.image.image.display().to_string();
    if let Some(mounted) = mounted::find(args)? {
        let record = mounted::run(args, &mounted).with_context(|| image)?;
        return tell(&record, args.json);
    }
    let devices = Devices::of(args)?;
    let (plan, bytes) = plan(args, &devices).with_context(|| image.clone())?;
    if args.dry_run {
        return tell(&Record::of(&plan, State::Planned), args.json);
    }
    let sizes = match plan.method {
        Method::Relocate => "its old size, its new size or one between",
        Method::InPlace | Method::Nothing => "its old or its new size",
    };
    let outcome = Outcome::new(format!("{image} has {sizes}, and all its files"));
    let plan = carry_out(args, &devices, &plan, bytes).with_context(|| image)?;
    drop(outcome);
    tell(&Record::of(&plan, State::Done), args.json)
}

/// Plans the resize without a change. Returns the plan and the new size of the last device.
fn plan(args: &Args, devices: &Devices) -> Result<(Plan, u64)> {
    let opened = devices.open(Access::Read)?;
    let mut volume = Engine::open(opened.device()?, Options::read_only())?;
    let before = devices.bytes_before();
    let bytes = match (args.size, args.minimize) {
        (Some(bytes), _) => bytes,
        (None, true) => resize::smallest_bytes(&mut volume)?.saturating_sub(before),
        (None, false) => opened.last_bytes(),
    };
    opened.require_extensible(bytes)?;
    let plan = Plan::new(&mut volume, before.saturating_add(bytes))?;
    drop(volume);
    require_sound(&opened, args.quiet.into())?;
    Ok((plan, bytes))
}

/// Refuses a damaged volume: blocks that no table marks as used would be lost.
fn require_sound(opened: &Opened<'_>, verbosity: Verbosity) -> Result<()> {
    let bar = progress::stages(verbosity);
    let report = f2fs_check::check_as_opened(opened.device()?, &mut progress::checker(&bar));
    bar.finish_and_clear();
    match report?.is_clean_for_resize() {
        true => Ok(()),
        false => Err(failure::damaged("a resize could lose files")),
    }
}

/// Resizes the volume and then, under the same claim, sets the length of the file of its last device.
fn carry_out(args: &Args, devices: &Devices, planned: &Plan, bytes: u64) -> Result<Plan> {
    let opened = devices.open(Access::Write)?;
    opened.require_extensible(bytes)?;
    let (old_superblock, old_length) = (opened.superblock()?, opened.last_bytes());
    opened.extend(bytes)?;
    match resize(args, &opened, planned, bytes) {
        Ok(plan) => opened.cut(bytes).map(|()| plan),
        Err(error) => Err(after_failure(&opened, &old_superblock, old_length, error)),
    }
}

fn resize(args: &Args, opened: &Opened<'_>, planned: &Plan, bytes: u64) -> Result<Plan> {
    let device = opened.device()?;
    let block_bytes = opened.superblock()?.block_size.bytes() as u64;
    let bar = progress::bytes("moving", Some(planned.moved_blocks * block_bytes), args.quiet);
    let mut open = || Engine::open(device.clone(), Options::new(clock::now));
    let total = opened.devices.bytes_before() + bytes;
    let resized = resize::resize(&mut open, total, &mut |blocks| bar.set_position(blocks * block_bytes));
    bar.finish_and_clear();
    Ok(resized?)
}

/// Cuts the file of the last device to its old length after a failure, unless the volume needs more. Adds the size of
/// the volume to the error, if it is not the old one.
fn after_failure(
    opened: &Opened<'_>,
    old: &Superblock,
    old_length: u64,
    error: anyhow::Error,
) -> anyhow::Error {
    let Ok(superblock) = opened.superblock() else { return error };
    let (has, had) = (superblock.volume_bytes(), old.volume_bytes());
    if has <= opened.devices.bytes_before() + old_length {
        // The file may keep its new length; the reason of the failure is more important.
        let _ = opened.cut(old_length);
    }
    match has == had {
        true => error,
        false => error.context(format!(
            "the volume has {has} bytes now, {had} before, and all its files; resize it again to either size"
        )),
    }
}

fn tell(record: &Record, format: impl Into<Format>) -> Result<()> {
    render::print(record, format, |record, out| {
        let size = |bytes: u64| indicatif::BinaryBytes(bytes);
        let (old, new) = (size(record.old_bytes), size(record.new_bytes));
        let blocks = render::count(record.moved_blocks, "block");
        let metadata = if record.moves_metadata { ", and the metadata areas grow" } else { "" };
        match (record.done, record.old_bytes == record.new_bytes) {
            (_, true) => writeln!(out, "{old}, as before"),
            (true, false) => writeln!(out, "{old} before, now {new}: {blocks} moved{metadata}"),
            (false, false) => writeln!(out, "{old} now, would be {new}: {blocks} to move{metadata}"),
        }
    })
}
