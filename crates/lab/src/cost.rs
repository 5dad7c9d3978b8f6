//! Write costs of file systems: the number of blocks that reach the device per block that a program writes,
//! and the number of requests. No clock is involved.
//!
//! Both our engine and Linux's f2fs work on copies of one volume made by mkfs.f2fs, on one device model.
//! Counting ends after the unmount, when no data is left in memory.

use std::{fs, io, path::Path};

use f2fs::{
    engine::{Engine, Geometry, Options},
    format::sit::SegmentType,
    units::BlockAddr,
};
use flash::{Command, Pace, Profile, Trace};
use guest::{
    Op, Pattern,
    pattern::{Access, Order, Sync},
};
use serde::Serialize;

use crate::{
    preset::Preset,
    rivals::FileSystem,
    scale::Scale,
    stop::Stop,
    systems::{DISK, MOUNT_POINT, OURS, Programs, Setting, Target},
    vm::Failure,
};

/// Type of Linux's file system, as mount(2) knows it.
pub const LINUX: &str = "f2fs";
const FILE: &str = "/mnt/file";
const BLOCK_BYTES: u64 = 4096;
/// An eMMC: requests of up to 512 KiB, flushes and discards.
const DEVICE: &str = "survey-emmc51";

/// A write pattern on a volume with certain mount options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Mount options for both file systems.
    pub options: &'static str,
    /// The write pattern.
    pub pattern: Pattern,
}

/// Cost of a cell: blocks and requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Blocks that the program wrote.
    pub asked_blocks: u64,
    /// Written blocks of files and directories.
    pub data_blocks: u64,
    /// Written node blocks.
    pub node_blocks: u64,
    /// Written blocks of checkpoints, NAT, SIT and SSA.
    pub meta_blocks: u64,
    /// Write requests. A request longer than the device's maximum counts as several.
    pub writes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Discard requests.
    pub discards: u64,
}

impl Traffic {
    /// Returns the number of all written blocks.
    pub fn written_blocks(&self) -> u64 {
        self.data_blocks + self.node_blocks + self.meta_blocks
    }

    /// Returns the write amplification: written blocks per block that the program wrote.
    pub fn amplification(&self) -> f64 {
        self.written_blocks() as f64 / self.asked_blocks.max(1) as f64
    }

    /// Returns the number of all requests that change the device.
    pub fn requests(&self) -> u64 {
        self.writes + self.flushes + self.discards
    }
}

/// Sizes and device limits of the comparison.
#[derive(Debug, Clone)]
pub struct Costs {
    /// Sizes of the files.
    pub scale: Scale,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// Seed of random orders.
    pub seed: u64,
    /// The guest's programs.
    pub programs: Programs,
    /// Stop request.
    pub stop: Stop,
}

impl Costs {
    /// Returns the cells: experiments 1 and 2 with records of 4 KiB and 16 KiB, in both modes of F2FS.
    pub fn cells(&self) -> Vec<Cell> {
        let random = Order::Random { seed: self.seed };
        let mut cells = Vec::new();
        for options in ["", "mode=lfs"] {
            for (sync, file_bytes) in
                [(Sync::End, self.scale.buffered_bytes), (Sync::Each, self.scale.fsync_bytes)]
            {
                for (access, order) in [(Access::Create, Order::Sequential), (Access::Overwrite, random)] {
                    for record_bytes in [4096, 16384] {
                        let file_bytes = file_bytes / u64::from(record_bytes) * u64::from(record_bytes);
                        let pattern = Pattern { access, order, file_bytes, record_bytes, sync };
                        cells.push(Cell { options, pattern });
                    }
                }
            }
        }
        cells
    }

    /// Measures a cell with our engine and then with Linux, on copies of one volume in `work`.
    ///
    /// # Errors
    /// The first failure.
    pub fn both(&self, cell: &Cell, work: &Path) -> Result<[Traffic; 2], Failure> {
        let made = work.join("made");
        FileSystem::new(LINUX).format(&made, self.volume_bytes)?;
        let mut costs = [Traffic::default(); 2];
        for (kind, cost) in [OURS, LINUX].into_iter().zip(&mut costs) {
            let image = work.join(kind);
            copy_sparse(&made, &image)?;
            *cost = self.cost(cell, kind, &image)?;
            fs::remove_file(&image)?;
        }
        fs::remove_file(&made)?;
        Ok(costs)
    }

    fn cost(&self, cell: &Cell, kind: &str, image: &Path) -> Result<Traffic, Failure> {
        let profile = Profile::named(DEVICE).and_then(|device| device.with_size(self.volume_bytes));
        let setting = Setting {
            file_system: FileSystem::new(kind).mounted(cell.options),
            preset: Preset::Desktop,
            profile: profile.map_err(io::Error::other)?,
            scale: self.scale,
            programs: Some(self.programs.clone()),
            pace: Pace::Virtual,
            traced: true,
            cleaned: false,
            seed: self.seed,
            stop: self.stop.clone(),
        };
        let most_bytes = u64::from(setting.profile.host.max_request_bytes);
        let mut target = setting.start_on(image)?;
        let pattern = cell.pattern;
        if pattern.access == Access::Overwrite {
            let create =
                Pattern { access: Access::Create, order: Order::Sequential, sync: Sync::End, ..pattern };
            run(&mut *target, &setting, create)?;
        }
        let since_ns = run(&mut *target, &setting, pattern)?;
        let trace = target.trace().expect("it was asked for");
        drop(target);
        let asked_blocks = pattern.file_bytes / BLOCK_BYTES;
        Ok(Traffic { asked_blocks, ..count(&trace, since_ns, image, most_bytes)? })
    }
}

/// Mounts, writes a pattern and unmounts. Returns the time at which writing began.
fn run(target: &mut dyn Target, setting: &Setting, pattern: Pattern) -> Result<u64, Failure> {
    target.run(&Op::Mount {
        source: DISK.into(),
        dir: MOUNT_POINT.into(),
        fs: setting.file_system.kind.clone(),
        options: setting.file_system.mount.clone(),
        read_only: false,
    })?;
    let written = target.run(&Op::Pattern { path: FILE.into(), pattern })?;
    target.run(&Op::Unmount { dir: MOUNT_POINT.into() })?;
    target.run(&Op::DropCaches)?;
    Ok(written.started_ns)
}

/// Counts the requests after `since_ns`. The volume in `image` determines the type of each block.
fn count(trace: &Trace, since_ns: u64, image: &Path, most_bytes: u64) -> Result<Traffic, Failure> {
    let device = block::FileDevice::open(image, block::OpenOptions { write: false, direct: false })?;
    let volume = Engine::open(std::sync::Arc::new(device), Options::read_only())
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut cost = Traffic::default();
    for entry in trace.entries.iter().filter(|entry| entry.at_ns >= since_ns) {
        match entry.op.command {
            Command::Read => {}
            Command::Flush => cost.flushes += 1,
            Command::Discard => cost.discards += 1,
            Command::Write => {
                cost.writes += entry.op.length_bytes.div_ceil(most_bytes);
                let blocks = entry.op.offset_bytes / BLOCK_BYTES..entry.op.end_bytes() / BLOCK_BYTES;
                for block in blocks {
                    match area(&volume, volume.geometry(), BlockAddr(block as u32))? {
                        None => cost.meta_blocks += 1,
                        Some(kind) if kind.is_node() => cost.node_blocks += 1,
                        Some(_) => cost.data_blocks += 1,
                    }
                }
            }
        }
    }
    Ok(cost)
}

fn area(volume: &Engine, geometry: &Geometry, addr: BlockAddr) -> Result<Option<SegmentType>, Failure> {
    if !geometry.in_main(addr) {
        return Ok(None);
    }
    let entry = volume.sit_entry(geometry.position(addr).0);
    Ok(Some(entry.map_err(|error| io::Error::other(error.to_string()))?.kind))
}

fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    let status = std::process::Command::new("cp").arg("--sparse=always").arg(from).arg(to).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("cp: {status}"))) }
}
