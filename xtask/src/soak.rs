//! Mixed load on an almost full volume, for as long as one likes: no error, nothing lost, no growth of memory.

use std::{
    io::Write,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use block::{FileDevice, OpenOptions, Rng};
use f2fs::{
    Error, Volume,
    units::{Ino, Time},
    volume::{Cleaned, NewNode, Options, Policy, RenameMode},
};
use model::{Setup, fsck::fsck_image, setup::store};

/// Size of the volume.
const VOLUME_BYTES: u64 = 512 << 20;
/// Memory for the engine's caches.
const CACHE_BYTES: usize = 2 << 20;
/// How full the volume is kept, in percent of what users can have.
const FULL_PERCENT: u64 = 90;
/// Blocks of a file, at most.
const FILE_BLOCKS: u64 = 400;
/// Operations between looks at the clock, and turns of background cleaning.
const STRIDE: u64 = 500;
/// Growth of memory since the volume became full that is still noise, in bytes.
const GROWTH_BYTES: u64 = 2 << 20;
const BLOCK: usize = 4096;

/// A file, and which content each of its blocks has; 0 for a hole.
struct File {
    ino: Ino,
    name: Vec<u8>,
    blocks: Vec<u32>,
}

struct Soak {
    volume: Volume,
    root: Ino,
    rng: Rng,
    files: Vec<File>,
    /// The content that was written last.
    content: u32,
    /// Names that were given.
    names: u64,
    asked_blocks: u64,
    operations: u64,
    cleaned: Cleaned,
}

/// Runs for `minutes` and tells of it once a minute.
///
/// # Errors
/// Any error of the volume but that it is full, content that is not what was written, memory that grows, or a
/// finding of fsck.f2fs.
pub fn soak(minutes: u64, seed: u64, out: &mut impl Write) -> Result<()> {
    writeln!(out, "seed {seed}, {minutes} minutes")?;
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("volume");
    make(&image)?;
    let open = || {
        let started = Instant::now();
        let clock =
            move || Time { seconds: 1_700_000_000 + started.elapsed().as_secs() as i64, nanoseconds: 0 };
        let options = Options { cache_bytes: CACHE_BYTES, discard: true, ..Options::new(clock) };
        let device = FileDevice::open(&image, OpenOptions { write: true, ..OpenOptions::default() })?;
        anyhow::Ok(Volume::open(Arc::new(device), options)?)
    };
    let volume = open()?;
    let root = volume.superblock().root_ino;
    let mut soak = Soak {
        volume,
        root,
        rng: Rng::new(seed),
        files: Vec::new(),
        content: 0,
        names: 0,
        asked_blocks: 0,
        operations: 0,
        cleaned: Cleaned::default(),
    };
    let started = Instant::now();
    let end = Duration::from_secs(60 * minutes);
    let (mut told, mut settled) = (Duration::ZERO, None);
    while started.elapsed() < end {
        for _ in 0..STRIDE {
            soak.step().with_context(|| format!("operation {}", soak.operations))?;
        }
        soak.clean()?;
        if started.elapsed() - told >= Duration::from_secs(60) || started.elapsed() >= end {
            told = started.elapsed();
            let resident = resident_bytes()?;
            soak.tell(told, resident, out)?;
            match settled {
                // Until then the engine has not seen all that it caches.
                None if soak.is_full() => settled = Some(resident),
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
    soak.verify()?;
    soak.volume.unmount()?;
    let Soak { volume, files, operations, .. } = soak;
    drop(volume);
    let volume = open()?;
    for file in &files {
        check(&volume, file)?;
    }
    drop(volume);
    fsck_image(&image)?;
    writeln!(
        out,
        "{operations} operations, {} files as they were written, fsck.f2fs finds nothing",
        files.len()
    )?;
    Ok(())
}

impl Soak {
    fn step(&mut self) -> Result<()> {
        self.operations += 1;
        let full = self.is_full();
        match self.rng.below(100) {
            _ if self.files.is_empty() => self.create(),
            0..=24 if !full => self.create(),
            0..=9 | 25..=29 => self.remove(),
            30..=69 => self.overwrite(),
            70..=74 => self.truncate(),
            75..=79 => self.rename(),
            80..=84 => self.punch(),
            85..=94 => {
                let at = self.pick();
                check(&self.volume, &self.files[at])
            }
            95..=97 => {
                let ino = self.files[self.rng.below(self.files.len() as u64) as usize].ino;
                Ok(self.volume.fsync(ino, false)?)
            }
            98 => Ok(self.volume.checkpoint()?),
            _ => self.overwrite(),
        }
    }

    /// As in idle times.
    fn clean(&mut self) -> Result<()> {
        let more = self.volume.clean(1, Policy::CostBenefit)?;
        self.cleaned.sections += more.sections;
        self.cleaned.moved_blocks += more.moved_blocks;
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        self.names += 1;
        let name = format!("file {}", self.names).into_bytes();
        let ino = self.volume.create(self.root, &name, &NewNode::new(0o100_644))?;
        self.files.push(File { ino, name, blocks: Vec::new() });
        let length = 1 + self.rng.below(FILE_BLOCKS);
        self.write(self.files.len() - 1, 0, length)
    }

    fn overwrite(&mut self) -> Result<()> {
        let at = self.pick();
        let blocks = self.files[at].blocks.len() as u64;
        let start = self.rng.below(blocks.min(FILE_BLOCKS - 32) + 1);
        let length = if self.rng.chance(0.3) { 1 + self.rng.below(32) } else { 1 };
        self.write(at, start, length)
    }

    /// Writes blocks of new content.
    fn write(&mut self, at: usize, start: u64, length: u64) -> Result<()> {
        let file = &mut self.files[at];
        let mut data = Vec::with_capacity(length as usize * BLOCK);
        let first = self.content + 1;
        for n in 0..length as u32 {
            data.extend_from_slice(&block(first + n));
        }
        match self.volume.write(file.ino, start * BLOCK as u64, &data) {
            Ok(()) => {}
            // Being full is no fault, as long as nothing was done.
            Err(Error::NoSpace { needed_blocks, free_blocks }) if needed_blocks > free_blocks => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
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

    fn remove(&mut self) -> Result<()> {
        let at = self.pick();
        let file = self.files.swap_remove(at);
        Ok(self.volume.unlink(self.root, &file.name)?)
    }

    fn truncate(&mut self) -> Result<()> {
        let at = self.pick();
        let file = &mut self.files[at];
        let blocks = self.rng.below(FILE_BLOCKS);
        self.volume.truncate(file.ino, blocks * BLOCK as u64)?;
        file.blocks.resize(blocks as usize, 0);
        Ok(())
    }

    fn punch(&mut self) -> Result<()> {
        let at = self.pick();
        let file = &mut self.files[at];
        let start = self.rng.below(file.blocks.len() as u64 + 1);
        let length = 1 + self.rng.below(16);
        self.volume.punch_hole(file.ino, start * BLOCK as u64, length * BLOCK as u64)?;
        let end = file.blocks.len().min((start + length) as usize);
        file.blocks[start as usize..end.max(start as usize)].fill(0);
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let at = self.pick();
        self.names += 1;
        let file = &mut self.files[at];
        let name = format!("file {}", self.names).into_bytes();
        self.volume.rename(self.root, &file.name, self.root, &name, RenameMode::NoReplace)?;
        file.name = name;
        Ok(())
    }

    fn verify(&self) -> Result<()> {
        self.files.iter().try_for_each(|file| check(&self.volume, file))
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
    let setup = Setup { bytes: VOLUME_BYTES, ..Setup::named("base").expect("a kind of volume") };
    store(&setup.make()?, image)
}

/// A file holds what was written to it.
fn check(volume: &Volume, file: &File) -> Result<()> {
    let mut bytes = vec![0; file.blocks.len() * BLOCK];
    let size = volume.stat(file.ino)?.size;
    ensure!(size == bytes.len() as u64, "{} has {size} bytes, wanted {}", file.ino, bytes.len());
    volume.read(file.ino, 0, &mut bytes)?;
    for (n, (seen, content)) in bytes.chunks_exact(BLOCK).zip(&file.blocks).enumerate() {
        ensure!(*seen == block(*content), "{}: block {n} is not what was written", file.ino);
    }
    Ok(())
}

/// A block that says which it is, eight bytes at a time; zeroes for 0.
fn block(content: u32) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    if content != 0 {
        for (n, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(u64::from(content) << 32 | n as u64).to_le_bytes());
        }
    }
    bytes
}

fn resident_bytes() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).context("statm has two numbers")?.parse()?;
    Ok(pages * 4096)
}
