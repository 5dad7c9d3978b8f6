//! Mixed load on an almost full volume, for any time: no error, no lost data, no growth of memory.
//!
//! Every third file is compressed, every fourth belongs to a user with quota limits, and ranges are
//! collapsed, inserted and zeroed.

use std::{
    collections::BTreeMap,
    fmt,
    io::Write,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use block::{FileDevice, OpenOptions, Rng};
use f2fs::{
    Error,
    engine::{
        Caller, Cleaned, Engine, FileSize, NewNode, Options, Policy, QuotaLimits, RenameMode, SetAttr,
        SyncScope, XattrMode,
    },
    format::{inode::flag, quota::QuotaKind},
    units::{Ino, Time},
};
use model::{
    Setup,
    fsck::fsck_image,
    setup::{Maker, store},
};

use crate::interrupt;

/// Size of the volume.
const VOLUME_BYTES: u64 = 512 << 20;
/// Memory for the engine's caches.
const CACHE_BYTES: usize = 2 << 20;
/// Fill level of the volume, in percent of the user space.
const FULL_PERCENT: u64 = 90;
/// Features of the volume.
const FEATURES: &[&str] = &["-O", "extra_attr,inode_checksum,compression,project_quota,quota,lost_found"];
/// Number of directories of the files.
const DIRS: u64 = 6;
/// Maximum number of blocks of a file.
const FILE_BLOCKS: u64 = 400;
/// Owner of the files with limits, and the limits. Some requests of this user are refused.
const USER: u32 = 1000;
const LIMITS: QuotaLimits =
    QuotaLimits { inodes_hard: 120, inodes_soft: 0, space_hard_kib: 64 << 10, space_soft_kib: 0 };
/// Operations between checks of the clock, and turns of background cleaning.
const STRIDE: u64 = 500;
/// Growth of memory in bytes that still counts as noise: memory kept by the allocator, and pages of the
/// program.
const GROWTH_BYTES: u64 = 2 << 20;
/// Operations on the full volume until the engine's caches are filled, however slow the machine is.
const SETTLING: u64 = 150_000;
const BLOCK: usize = 4096;

/// A file, with the content number of each of its blocks; 0 for a hole.
struct File {
    ino: Ino,
    dir: Ino,
    name: Vec<u8>,
    blocks: Vec<u32>,
    compressed: bool,
}

/// Counts of each operation, and of its refusals because the volume was full or the user's quota was reached.
#[derive(Default)]
struct Tally(BTreeMap<&'static str, [u64; 2]>);

struct Soak {
    volume: Engine,
    dirs: Vec<Ino>,
    rng: Rng,
    files: Vec<File>,
    /// Buffer for reads and writes. It is reused, so that growing memory is the engine's.
    bytes: Vec<u8>,
    /// Number of the last written content.
    content: u32,
    /// Number of names given.
    names: u64,
    asked_blocks: u64,
    operations: u64,
    tally: Tally,
    cleaned: Cleaned,
}

/// Runs for `minutes` and reports once per minute.
///
/// # Errors
/// Any error of the volume except a full one, content that differs from the written one, growing memory, or a
/// finding of fsck.f2fs.
pub fn soak(minutes: u64, seed: u64, out: &mut impl Write) -> Result<()> {
    writeln!(out, "seed {seed}, {minutes} minutes")?;
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("volume");
    make(&image)?;
    let mut soak = Soak::new(open(&image)?, seed)?;
    soak.run(Duration::from_secs(60 * minutes), out)?;
    soak.verify()?;
    soak.volume.unmount()?;
    let Soak { volume, files, operations, tally, mut bytes, .. } = soak;
    drop(volume);
    let volume = open(&image)?;
    for file in &files {
        check(&volume, file, &mut bytes)?;
    }
    drop(volume);
    fsck_image(&image)?;
    writeln!(out, "{tally}")?;
    writeln!(out, "{operations} operations, all {} files intact, fsck.f2fs finds no fault", files.len())?;
    Ok(())
}

/// Opens the volume with a small cache. Its clock goes on from a fixed time.
fn open(image: &Path) -> Result<Engine> {
    let started = Instant::now();
    let clock = move || Time { seconds: 1_700_000_000 + started.elapsed().as_secs() as i64, nanoseconds: 0 };
    let options = Options { cache_bytes: CACHE_BYTES, discard: true, ..Options::new(clock) };
    let device = FileDevice::open(image, OpenOptions { write: true, ..OpenOptions::default() })?;
    Ok(Engine::open(Arc::new(device), options)?)
}

impl Soak {
    /// Sets the quota limits and makes the directories.
    fn new(mut volume: Engine, seed: u64) -> Result<Soak> {
        let root = volume.superblock().root_ino;
        volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, USER, LIMITS)?;
        let mut dirs = Vec::new();
        for n in 0..DIRS {
            dirs.push(volume.begin(Caller::USER).create(
                root,
                format!("dir {n}").as_bytes(),
                &NewNode::new(0o040_755),
            )?);
        }
        Ok(Soak {
            volume,
            dirs,
            rng: Rng::new(seed),
            files: Vec::new(),
            bytes: Vec::with_capacity(2 * FILE_BLOCKS as usize * BLOCK),
            content: 0,
            names: 0,
            asked_blocks: 0,
            operations: 0,
            tally: Tally::default(),
            cleaned: Cleaned::default(),
        })
    }

    /// Executes operations until `end`, and reports once per minute. Fails if the memory grows.
    fn run(&mut self, end: Duration, out: &mut impl Write) -> Result<()> {
        let started = Instant::now();
        let (mut told, mut settled) = (Duration::ZERO, None);
        while started.elapsed() < end {
            for _ in 0..STRIDE {
                self.step().with_context(|| format!("operation {}", self.operations))?;
            }
            self.clean()?;
            interrupt::check()?;
            if started.elapsed() - told >= Duration::from_secs(60) || started.elapsed() >= end {
                told = started.elapsed();
                let resident = resident_bytes()?;
                self.tell(told, resident, out)?;
                match settled {
                    None if self.operations > SETTLING => settled = Some(resident),
                    Some(before) => {
                        ensure!(
                            resident < before + GROWTH_BYTES,
                            "memory grew from {before} to {resident} bytes"
                        );
                    }
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        self.operations += 1;
        let full = self.is_full();
        let (what, done) = match self.rng.below(100) {
            _ if self.files.is_empty() => ("create", self.create()),
            0..=24 if !full => ("create", self.create()),
            0..=9 | 25..=29 => ("remove", self.remove()),
            30..=59 => ("overwrite", self.overwrite()),
            60..=64 => ("truncate", self.truncate()),
            65..=67 => ("rename", self.rename()),
            68..=71 => ("punch", self.range(Range::Punch)),
            72..=75 => ("zero", self.range(Range::Zero)),
            76..=78 => ("collapse", self.range(Range::Collapse)),
            79..=81 => ("insert", self.range(Range::Insert)),
            82..=83 => ("attribute", self.attribute()),
            84..=94 => {
                self.read()?;
                ("read", Ok(()))
            }
            95..=97 => ("fsync", self.fsync()),
            98 => ("checkpoint", self.volume.checkpoint()),
            _ => ("overwrite", self.overwrite()),
        };
        let counts = self.tally.0.entry(what).or_default();
        match done {
            Ok(()) => counts[0] += 1,
            // A full volume is not a failure if the operation had no effect.
            Err(Error::NoSpace { needed_bytes, free_bytes }) if needed_bytes > free_bytes => counts[1] += 1,
            Err(Error::Quota) => counts[1] += 1,
            Err(error) => return Err(error).context(what),
        }
        Ok(())
    }

    /// Cleans as in idle times.
    fn clean(&mut self) -> Result<()> {
        let more = self.volume.clean(1, Policy::CostBenefit)?;
        self.cleaned.sections += more.sections;
        self.cleaned.moved_blocks += more.moved_blocks;
        Ok(())
    }

    fn create(&mut self) -> f2fs::Result<()> {
        let (name, dir) = (self.name(), self.dir());
        let owner = if self.names % 4 == 0 { USER } else { 0 };
        let compressed = self.names % 3 == 0;
        let new = NewNode { uid: owner, gid: owner, ..NewNode::new(0o100_644) };
        let ino = self.volume.begin(Caller::USER).create(dir, &name, &new)?;
        if compressed {
            let flags = self.volume.stat(ino)?.flags | flag::COMPRESS;
            self.volume
                .begin(Caller::USER)
                .set_attr(ino, &SetAttr { flags: Some(flags), ..SetAttr::default() })?;
        }
        self.files.push(File { ino, dir, name, blocks: Vec::new(), compressed });
        let length = 1 + self.rng.below(FILE_BLOCKS);
        self.write(self.files.len() - 1, 0, length)
    }

    fn overwrite(&mut self) -> f2fs::Result<()> {
        let at = self.pick();
        let blocks = self.files[at].blocks.len() as u64;
        let start = self.rng.below(blocks.min(FILE_BLOCKS - 32) + 1);
        let length = if self.rng.chance(0.3) { 1 + self.rng.below(32) } else { 1 };
        self.write(at, start, length)
    }

    /// Writes blocks of new content.
    fn write(&mut self, at: usize, start: u64, length: u64) -> f2fs::Result<()> {
        let file = &mut self.files[at];
        let first = self.content + 1;
        self.bytes.clear();
        for n in 0..length as u32 {
            self.bytes.extend_from_slice(&block(first + n));
        }
        self.volume.begin(Caller::USER).write(file.ino, start * BLOCK as u64, &self.bytes)?;
        self.content += length as u32;
        self.asked_blocks += length;
        let end = (start + length) as usize;
        if file.blocks.len() < end {
            file.blocks.resize(end, 0);
        }
        for n in 0..length as u32 {
            file.blocks[start as usize + n as usize] = first + n;
        }
        Ok(())
    }

    fn remove(&mut self) -> f2fs::Result<()> {
        let at = self.pick();
        let file = self.files.swap_remove(at);
        self.volume.begin(Caller::USER).unlink(file.dir, &file.name)
    }

    fn truncate(&mut self) -> f2fs::Result<()> {
        let at = self.pick();
        let file = &mut self.files[at];
        let blocks = self.rng.below(FILE_BLOCKS);
        self.volume.begin(Caller::USER).truncate(file.ino, blocks * BLOCK as u64)?;
        file.blocks.resize(blocks as usize, 0);
        Ok(())
    }

    /// Changes a range of whole blocks by fallocate. Compressed files cannot be shifted.
    fn range(&mut self, how: Range) -> f2fs::Result<()> {
        let at = self.pick();
        let file = &mut self.files[at];
        let blocks = file.blocks.len() as u64;
        let shifts = matches!(how, Range::Collapse | Range::Insert);
        if blocks < 2 || shifts && file.compressed || how == Range::Insert && blocks > FILE_BLOCKS - 16 {
            return Ok(());
        }
        let start = self.rng.below(blocks - 1);
        let length = (1 + self.rng.below(16)).min(blocks - 1 - start);
        let (offset, bytes) = (start * BLOCK as u64, length * BLOCK as u64);
        let (from, to) = (start as usize, (start + length) as usize);
        match how {
            Range::Punch => self.volume.begin(Caller::USER).punch_hole(file.ino, offset, bytes)?,
            Range::Zero => {
                self.volume.begin(Caller::USER).zero_range(file.ino, offset, bytes, FileSize::Grows)?
            }
            Range::Collapse => self.volume.begin(Caller::USER).collapse_range(file.ino, offset, bytes)?,
            Range::Insert => self.volume.begin(Caller::USER).insert_range(file.ino, offset, bytes)?,
        }
        match how {
            Range::Punch | Range::Zero => file.blocks[from..to].fill(0),
            Range::Collapse => drop(file.blocks.drain(from..to)),
            Range::Insert => drop(file.blocks.splice(from..from, vec![0; to - from])),
        }
        Ok(())
    }

    fn rename(&mut self) -> f2fs::Result<()> {
        let (at, name, dir) = (self.pick(), self.name(), self.dir());
        let file = &mut self.files[at];
        self.volume.begin(Caller::USER).rename(file.dir, &file.name, dir, &name, RenameMode::NoReplace)?;
        (file.name, file.dir) = (name, dir);
        Ok(())
    }

    fn attribute(&mut self) -> f2fs::Result<()> {
        let at = self.pick();
        let ino = self.files[at].ino;
        let value = vec![7; self.rng.below(1500) as usize];
        self.volume.begin(Caller::USER).set_xattr(ino, b"user.soak", &value, XattrMode::Set)
    }

    fn fsync(&mut self) -> f2fs::Result<()> {
        let at = self.pick();
        let ino = self.files[at].ino;
        self.volume.fsync(ino, SyncScope::Everything)
    }

    fn read(&mut self) -> Result<()> {
        let at = self.pick();
        check(&self.volume, &self.files[at], &mut self.bytes)
    }

    fn verify(&mut self) -> Result<()> {
        self.files.iter().try_for_each(|file| check(&self.volume, file, &mut self.bytes))
    }

    fn name(&mut self) -> Vec<u8> {
        self.names += 1;
        format!("file {}", self.names).into_bytes()
    }

    fn dir(&mut self) -> Ino {
        self.dirs[self.rng.below(DIRS) as usize]
    }

    fn pick(&mut self) -> usize {
        self.rng.below(self.files.len() as u64) as usize
    }

    fn is_full(&self) -> bool {
        self.used_percent() >= FULL_PERCENT
    }

    fn used_percent(&self) -> u64 {
        let space = self.volume.space();
        100 - space.free_blocks * 100 / space.blocks
    }

    fn tell(&self, after: Duration, resident: u64, out: &mut impl Write) -> Result<()> {
        let written = self.volume.io().written_blocks();
        let amplification = written as f64 / self.asked_blocks.max(1) as f64;
        writeln!(
            out,
            "{:4} s: {} operations, {} files, {} % full, {amplification:.2} blocks written for each asked for, \
             {} sections cleaned, {:.1} MiB resident",
            after.as_secs(),
            self.operations,
            self.files.len(),
            self.used_percent(),
            self.cleaned.sections,
            resident as f64 / f64::from(1 << 20)
        )?;
        out.flush()?;
        Ok(())
    }
}

fn make(image: &Path) -> Result<()> {
    let base = Setup::named("base").expect("a kind of volume");
    let setup = Setup { bytes: VOLUME_BYTES, maker: Maker::Tool(FEATURES), ..base };
    store(&setup.make()?, image)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Range {
    Punch,
    Zero,
    Collapse,
    Insert,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(what, [done, refused]): (&&str, &[u64; 2])| match refused {
            0 => format!("{what} {done}"),
            _ => format!("{what} {done} (full: {refused})"),
        };
        write!(f, "{}", self.0.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// Checks that a file has its written content.
fn check(volume: &Engine, file: &File, bytes: &mut Vec<u8>) -> Result<()> {
    bytes.clear();
    bytes.resize(file.blocks.len() * BLOCK, 0);
    let size = volume.stat(file.ino)?.size;
    ensure!(size == bytes.len() as u64, "{} has {size} bytes, wanted {}", file.ino, bytes.len());
    volume.read(file.ino, 0, bytes)?;
    for (n, (seen, content)) in bytes.chunks_exact(BLOCK).zip(&file.blocks).enumerate() {
        ensure!(*seen == block(*content), "{}: block {n} differs from the written data", file.ino);
    }
    Ok(())
}

/// Returns a block whose content states its number, eight bytes at a time; zeroes for 0. Every second one is
/// incompressible.
fn block(content: u32) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    if content != 0 {
        for (n, word) in bytes.chunks_exact_mut(8).enumerate() {
            let plain = u64::from(content) << 32 | n as u64;
            let said = if content % 2 == 0 { plain } else { Rng::new(plain).next_u64() };
            word.copy_from_slice(&said.to_le_bytes());
        }
    }
    bytes
}

fn resident_bytes() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).context("statm has two numbers")?.parse()?;
    Ok(pages * 4096)
}
