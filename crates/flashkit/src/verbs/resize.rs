//! `resize`: gives a volume another size.

use std::{fs, sync::Arc};

use anyhow::{Context, Result, bail};
use block::{Concat, Device, OpenOptions};
use f2fs::{
    engine::{self, Engine, Options},
    resize::{self, Method, Plan},
};
use image::Source;
use serde::Serialize;

use crate::{clock, interrupt::Outcome, progress, render, size, target};

/// Arguments of `resize`.
#[derive(clap::Args)]
#[command(after_help = "\
The volume must not be mounted. A power cut or an error at any moment leaves it with its old size or its new size, and
with all its files; run the verb again to complete it. A partial segment (2 MiB) at the end is not used, nor is a partial
section or zone.

An image file that must grow is extended first; an image file that shrinks is cut after the volume is smaller. Shrink a
partition after its volume, and enlarge it before.

Examples:
  flashkit resize card.img 300M
  flashkit resize card.img --minimize
  flashkit resize /dev/mmcblk0p2              to the size of the partition
  flashkit resize card.img 100M --dry-run     only say what would be done, or why not")]
pub struct Args {
    #[command(flatten)]
    image: target::Image,
    /// New size of the device, or of the last one of several [default: its present size].
    #[arg(value_parser = size::parse)]
    size: Option<u64>,
    /// Shrink to the smallest size that holds the content.
    #[arg(short, long, conflicts_with = "size")]
    minimize: bool,
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

/// The devices of the volume, and the part of its address space before the last one.
struct Devices {
    sources: Vec<Source>,
    /// Bytes that each device but the last contributes.
    before: Vec<u64>,
}

impl Devices {
    fn of(args: &Args) -> Result<Devices> {
        let sources = args.image.further.sources(&args.image.image);
        let first = target::open_device(&sources[0])?;
        let (superblock, _) = engine::read_superblock(&*first, u64::MAX)
            .map_err(|error| target::with_content(&sources[0], error.into()))
            .with_context(|| sources[0].to_string())?;
        let wanted = superblock.devices.len().max(1);
        if wanted != sources.len() {
            bail!("devices of the volume: {wanted}; given: {} (--device names a further one)", sources.len());
        }
        let mut before: Vec<u64> = engine::device_bytes(&superblock).collect();
        before.pop();
        Ok(Devices { sources, before })
    }

    fn last(&self) -> &Source {
        self.sources.last().expect("there is a device")
    }

    /// Bytes of the address space before the last device.
    fn bytes_before(&self) -> u64 {
        self.before.iter().sum()
    }

    fn device(&self, access: Access) -> Result<Arc<dyn Device>> {
        let how = OpenOptions { write: access == Access::Write, direct: false };
        let open = |source: &Source| Ok(target::open_image(source, how)?.device());
        let mut devices = self.sources.iter().map(open).collect::<Result<Vec<_>>>()?;
        if devices.len() == 1 {
            return Ok(devices.remove(0));
        }
        let last = devices.last().map_or(0, |device| device.geometry().size_bytes);
        let sizes = self.before.iter().copied().chain([last]);
        Ok(Arc::new(Concat::new(devices.into_iter().zip(sizes).collect())?))
    }

    /// Size of the last device.
    fn last_bytes(&self) -> Result<u64> {
        Ok(target::open_device(self.last())?.geometry().size_bytes)
    }

    /// Returns true if the last device is a whole file as it is, without a container. Its length can change.
    fn last_is_file(&self) -> Result<bool> {
        let image = target::open_image(self.last(), OpenOptions { write: false, direct: false })?;
        Ok(image.is_whole_file() && fs::metadata(self.last().path())?.is_file())
    }

    /// Sets the length of the file of the last device.
    fn set_last_bytes(&self, bytes: u64) -> Result<()> {
        let set = || fs::OpenOptions::new().write(true).open(self.last().path())?.set_len(bytes);
        set().with_context(|| self.last().to_string())
    }

    /// Refuses more bytes than the last device has, unless it is a whole file.
    fn require_extensible(&self, bytes: u64) -> Result<()> {
        let has = self.last_bytes()?;
        if bytes > has && !self.last_is_file()? {
            bail!(
                "{}: {has} bytes, not {bytes}; enlarge it first: a qcow2 image with qemu-img resize, a partition in its table",
                self.last()
            );
        }
        Ok(())
    }

    /// Extends the file of the last device to `bytes`, if it is shorter.
    fn extend_last(&self, bytes: u64) -> Result<()> {
        self.require_extensible(bytes)?;
        if bytes > self.last_bytes()? {
            self.set_last_bytes(bytes)?;
        }
        Ok(())
    }

    /// Cuts the last device to `bytes`, if it is a longer whole file.
    fn cut_last(&self, bytes: u64) -> Result<()> {
        if bytes < self.last_bytes()? && self.last_is_file()? {
            self.set_last_bytes(bytes)?;
        }
        Ok(())
    }
}

/// Resizes a volume.
pub fn run(args: &Args) -> Result<()> {
    let image = args.image.image.display().to_string();
    let devices = Devices::of(args)?;
    let (plan, bytes) = plan(args, &devices).with_context(|| image.clone())?;
    if args.dry_run {
        return tell(&Record::of(&plan, State::Planned), args.json);
    }
    let outcome = Outcome::new(format!("{image} has its old or its new size, and all its files"));
    let plan = carry_out(args, &devices, &plan, bytes).with_context(|| image)?;
    drop(outcome);
    tell(&Record::of(&plan, State::Done), args.json)
}

/// Plans the resize without a change. Returns the plan and the new size of the last device.
fn plan(args: &Args, devices: &Devices) -> Result<(Plan, u64)> {
    let mut volume = Engine::open(devices.device(Access::Read)?, Options::read_only())?;
    let before = devices.bytes_before();
    let bytes = match (args.size, args.minimize) {
        (Some(bytes), _) => bytes,
        (None, true) => resize::smallest_bytes(&mut volume)?.saturating_sub(before),
        (None, false) => devices.last_bytes()?,
    };
    devices.require_extensible(bytes)?;
    Ok((Plan::new(&mut volume, before.saturating_add(bytes))?, bytes))
}

fn carry_out(args: &Args, devices: &Devices, planned: &Plan, bytes: u64) -> Result<Plan> {
    // Refuses a volume that is in use before its file becomes longer.
    drop(devices.device(Access::Write)?);
    devices.extend_last(bytes)?;
    let block_bytes = {
        let volume = Engine::open(devices.device(Access::Read)?, Options::read_only())?;
        volume.superblock().block_size.bytes() as u64
    };
    let bar = progress::bytes("moving", Some(planned.moved_blocks * block_bytes), args.quiet);
    let device = devices.device(Access::Write)?;
    let mut open = || Engine::open(device.clone(), Options::new(clock::now));
    let total = devices.bytes_before() + bytes;
    let plan = resize::resize(&mut open, total, &mut |blocks| bar.set_position(blocks * block_bytes))?;
    bar.finish_and_clear();
    drop(device);
    devices.cut_last(bytes)?;
    Ok(plan)
}

fn tell(record: &Record, json: bool) -> Result<()> {
    render::print(record, json, |record, out| {
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
