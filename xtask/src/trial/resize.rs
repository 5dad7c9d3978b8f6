//! Resizing of volumes that Linux filled, and the same kills of `flashkit resize` and resize.f2fs.
//!
//! *Judges*: Linux reads each volume before, after it was shrunk to the least size, and after it has grown to one
//! and a half times its first size. The manifests must be equal except for the figures of the volume itself.

mod cuts;

use std::{
    fs::{self, File},
    io::Write,
    ops::Range,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use block::{Concat, Device, FileDevice, OpenOptions, Rng};
use f2fs::{
    engine::{self, Caller, Engine, Options},
    resize::{Plan, resize, smallest_bytes},
    units::Time,
};
use guest::{Bytes, Content, Manifest, Op, Scope, differences, op::Answer};
use model::{
    fsck::{fsck_after_cut, fsck_image},
    setup::{load, system},
};

use crate::{
    Disk, Image, Judge, Machine, Vm,
    golden::{self, Golden},
    interrupt,
    judge::vm::copy_sparse,
    trial::engine as own,
    workspace,
};

/// Maximum number of differences reported for a volume.
const DIFFERENCES: usize = 8;
/// Size of the volumes that Linux fills.
const FILLED_BYTES: u64 = 96 << 20;
/// Kinds of the volumes that Linux fills: a name, arguments of mkfs.f2fs, and the share of the space that is used.
const FILLED: [(&str, &[&str], u64); 6] = [
    ("base", &[], 50),
    ("features", &["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum"], 70),
    ("quota", &["-O", "extra_attr,project_quota,quota,lost_found"], 80),
    ("large bitmap", &["-i", "-O", "lost_found"], 90),
    ("sections", &["-s", "2", "-z", "2"], 60),
    ("full", &[], 97),
];
/// Files that Linux removes, writes anew or changes after it has filled a volume.
const CHANGES: u64 = 120;
/// Time in which fsck.f2fs must end, in seconds.
const FSCK_SECONDS: &str = "120";
const ENOSPC: i32 = 28;
/// A fixed time, so that runs repeat.
const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 0 };

pub use cuts::cuts;

/// A volume on one or more files.
struct Volume {
    name: String,
    files: Vec<PathBuf>,
    /// Manifest that Linux read before the resize.
    manifest: Option<Manifest>,
}

impl Volume {
    fn device(&self) -> Result<Arc<dyn Device>> {
        let open = |path: &PathBuf| {
            let how = OpenOptions { write: true, direct: false };
            Ok(Arc::new(FileDevice::open(path, how)?) as Arc<dyn Device>)
        };
        let mut devices = self.files.iter().map(open).collect::<Result<Vec<_>>>()?;
        if devices.len() == 1 {
            return Ok(devices.remove(0));
        }
        let (superblock, _) = engine::read_superblock(&*devices[0], u64::MAX)?;
        let last = devices.last().map_or(0, |device| device.geometry().size_bytes);
        let mut sizes: Vec<u64> = engine::device_bytes(&superblock).collect();
        *sizes.last_mut().context("a volume has a device")? = last;
        Ok(Arc::new(Concat::new(devices.into_iter().zip(sizes).collect())?))
    }

    /// Copies the files of the volume into a new directory.
    fn copy_to(&self, dir: &Path) -> Result<Volume> {
        fs::create_dir_all(dir)?;
        let copy = |path: &PathBuf| {
            let to = dir.join(path.file_name().context("a file has a name")?);
            copy_sparse(path, &to)?;
            Ok(to)
        };
        let files = self.files.iter().map(copy).collect::<Result<_>>()?;
        Ok(Volume { name: self.name.clone(), files, manifest: None })
    }

    /// Resizes the volume to `bytes` bytes on all its devices together. The last file gets its length.
    fn resize(&self, bytes: u64) -> Result<Plan> {
        let last = self.files.last().context("a volume has a device")?;
        let others: u64 = {
            let (superblock, _) = engine::read_superblock(&*self.device()?, u64::MAX)?;
            let sizes: Vec<u64> = engine::device_bytes(&superblock).collect();
            sizes.iter().rev().skip(1).sum()
        };
        let set_length = || File::options().write(true).open(last)?.set_len(bytes - others);
        if fs::metadata(last)?.len() + others < bytes {
            set_length()?;
        }
        let device = self.device()?;
        let mut open = || Engine::open(device.clone(), Options::new(|| NOW));
        let plan = resize(&mut open, bytes, &mut |_| {})?;
        set_length()?;
        Ok(plan)
    }

    fn image(&self) -> Image {
        Image { more: self.files[1..].to_vec(), ..Image::f2fs(&self.files[0]) }
    }
}

/// Use of the golden images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoldenImages {
    /// They are resized as well.
    Included,
    /// Only volumes that Linux fills are resized.
    LeftOut,
}

impl From<bool> for GoldenImages {
    /// Converts the flag `--only-filled`.
    fn from(only_filled: bool) -> GoldenImages {
        if only_filled { GoldenImages::LeftOut } else { GoldenImages::Included }
    }
}

/// Resizes the golden images and `filled` volumes that Linux filled, and compares the manifests that Linux reads before and after.
///
/// # Errors
/// Linux reads something else after a resize, or complains.
pub fn beside_linux(filled: usize, images: GoldenImages, out: &mut impl Write) -> Result<()> {
    let work = tempfile::tempdir()?;
    let mut volumes = match images {
        GoldenImages::Included => golden_volumes(work.path())?,
        GoldenImages::LeftOut => Vec::new(),
    };
    volumes.extend(filled_volumes(work.path(), filled)?);
    let mut resized = Vec::new();
    for (n, volume) in volumes.iter().enumerate() {
        interrupt::check()?;
        let small = volume.copy_to(&work.path().join(format!("{n}-small")))?;
        let mut open = Engine::open(small.device()?, Options::read_only())?;
        let first_bytes = open.superblock().volume_bytes();
        let least = smallest_bytes(&mut open).with_context(|| volume.name.clone())?;
        drop(open);
        let shrunk = small.resize(least).with_context(|| format!("{}, shrunk", volume.name))?;
        let large = small.copy_to(&work.path().join(format!("{n}-large")))?;
        let grown = large.resize(first_bytes * 3 / 2).with_context(|| format!("{}, grown", volume.name))?;
        writeln!(
            out,
            "{}: {} MiB, shrunk to {}, grown to {}; {} and {} blocks moved",
            volume.name,
            first_bytes >> 20,
            shrunk.new_bytes >> 20,
            grown.new_bytes >> 20,
            shrunk.moved_blocks,
            grown.moved_blocks
        )?;
        resized.extend([(n, "shrunk", small), (n, "grown", large)]);
    }
    judge(&volumes, &resized)?;
    writeln!(out, "{} volumes, each shrunk and grown: Linux reads them as before", volumes.len())?;
    Ok(())
}

/// Compares the manifests of Linux before and after.
fn judge(volumes: &[Volume], resized: &[(usize, &str, Volume)]) -> Result<()> {
    let new = volumes.iter().filter(|volume| volume.manifest.is_none());
    let images: Vec<Image> =
        new.chain(resized.iter().map(|(.., volume)| volume)).map(Volume::image).collect();
    let mut verdicts = Judge::verdicts(&images)?.into_iter();
    let mut before = Vec::new();
    for volume in volumes {
        before.push(match &volume.manifest {
            Some(manifest) => manifest.clone(),
            None => verdicts.next().context("a verdict")??.manifest,
        });
    }
    let mut failures = Vec::new();
    for ((n, step, volume), verdict) in resized.iter().zip(verdicts) {
        let name = format!("{}, {step}", volume.name);
        match verdict {
            Err(error) => failures.push(format!("{name}: {error:#}")),
            Ok(verdict) => {
                failures.extend(verdict.complaints().iter().map(|text| format!("{name}: {text}")));
                let after = Manifest { volume: before[*n].volume, ..verdict.manifest };
                let found = differences(&before[*n], &after, Scope::Volume, DIFFERENCES);
                failures.extend(found.iter().map(|line| format!("{name} (before != after): {line}")));
            }
        }
        let judged = fsck_one_device(&volume.files[0]);
        failures.extend(judged.err().map(|error| format!("{name}: {error:#}")));
    }
    match failures.is_empty() {
        true => Ok(()),
        false => bail!("{}", failures.join("\n")),
    }
}

/// Runs fsck.f2fs over a volume on one device. It does not find those of a volume on several: their paths in the
/// superblock are those of the guest.
fn fsck_one_device(image: &Path) -> Result<()> {
    let device = FileDevice::open(image, OpenOptions::default())?;
    let (superblock, _) = engine::read_superblock(&device, u64::MAX)?;
    match superblock.devices.len() {
        0 | 1 => fsck_image(image).map(drop),
        _ => Ok(()),
    }
}

/// The golden images of volumes that were unmounted and can be changed.
fn golden_volumes(dir: &Path) -> Result<Vec<Volume>> {
    let mut volumes = Vec::new();
    for recipe in golden::recipes().filter(|recipe| !recipe.blocks_16k) {
        let (Golden { clean, manifest, .. }, files) = golden::unpack(recipe.name, dir)?;
        let volume = Volume { name: recipe.name.into(), files, manifest: Some(manifest) };
        let opened = Engine::open(volume.device()?, Options::new(|| NOW))?;
        if clean && opened.read_only_reason().is_none() {
            volumes.push(volume);
        }
    }
    Ok(volumes)
}

/// Makes `count` volumes that Linux fills and uses.
fn filled_volumes(dir: &Path, count: usize) -> Result<Vec<Volume>> {
    let mut volumes = Vec::new();
    // One virtual machine has no room for more disks.
    for first in (0..count).step_by(FILLED.len()) {
        interrupt::check()?;
        volumes.extend(fill(dir, first..count.min(first + FILLED.len()))?);
    }
    Ok(volumes)
}

/// Makes the volumes of these numbers in one virtual machine.
fn fill(dir: &Path, numbers: Range<usize>) -> Result<Vec<Volume>> {
    let mut volumes = Vec::new();
    for number in numbers.clone() {
        let (name, arguments, _) = FILLED[number % FILLED.len()];
        let path = dir.join(format!("filled {number}.img"));
        File::create(&path)?.set_len(FILLED_BYTES)?;
        workspace::run(system("mkfs.f2fs").arg("-q").args(arguments).arg(&path))?;
        let name = format!("{name}, {} % full, seed {number}", percent(number));
        volumes.push(Volume { name, files: vec![path], manifest: None });
    }
    let disks: Vec<Disk> = volumes.iter().map(|volume| Disk::writable(&volume.files[0])).collect();
    let mut vm = Vm::boot(Machine::Amd64, &disks)?;
    for (disk, number) in numbers.enumerate() {
        Filling { vm: &mut vm, dir: format!("/mnt/{disk}"), rng: Rng::new(number as u64), files: Vec::new() }
            .run(disk, percent(number))
            .with_context(|| volumes[disk].name.clone())?;
    }
    Ok(volumes)
}

/// The share of the space that is used in a volume of this number, in percent: 50 to 97.
fn percent(number: usize) -> u64 {
    let (.., first) = FILLED[number % FILLED.len()];
    // Each kind meets other shares in the next rounds.
    50 + (first - 50 + 11 * (number / FILLED.len()) as u64) % 48
}

/// A volume that Linux fills.
struct Filling<'a> {
    vm: &'a mut Vm,
    dir: String,
    rng: Rng,
    /// Numbers of the files that exist.
    files: Vec<u64>,
}

impl Filling<'_> {
    fn run(mut self, disk: usize, percent: u64) -> Result<()> {
        let dir = Bytes::from(self.dir.clone());
        self.vm.run(Op::Mount {
            source: format!("/disk/{disk}").into(),
            dir: dir.clone(),
            fs: "f2fs".into(),
            options: String::new(),
            read_only: false,
        })?;
        let all = self.free_bytes()?;
        let mut left = all * percent / 100;
        let mut next = 0;
        while left > 0 {
            let length = self.length(all).min(left);
            self.write(next, 0, length)?;
            self.files.push(next);
            (next, left) = (next + 1, left - length);
        }
        for _ in 0..CHANGES {
            let at = self.rng.below(self.files.len() as u64) as usize;
            if self.rng.chance(0.5) {
                let (file, offset, length) =
                    (self.files[at], self.rng.below(80_000), self.rng.below(24_000) + 1);
                self.write(file, offset, length)?;
                continue;
            }
            let gone = self.files.swap_remove(at);
            self.vm.run(Op::Unlink { path: self.path(gone) })?;
            let length = self.length(all);
            self.write(next, 0, length)?;
            self.files.push(next);
            next += 1;
        }
        self.vm.run(Op::Unmount { dir }).map(drop)
    }

    fn length(&mut self, all: u64) -> u64 {
        if self.rng.chance(0.3) { self.rng.below(3000) + 1 } else { self.rng.below(all / 80) + 1 }
    }

    fn path(&self, file: u64) -> Bytes {
        format!("{}/file {file}", self.dir).into()
    }

    /// Writes a piece of a file, as far as there is space.
    fn write(&mut self, file: u64, offset: u64, length: u64) -> Result<()> {
        let content = Content::Noise { seed: file + offset, length };
        match self.vm.attempt(Op::Write { path: self.path(file), offset, content })? {
            Err(refusal) if refusal.errno != ENOSPC => bail!("{}", refusal.error),
            _ => Ok(()),
        }
    }

    /// Returns the free space of the new volume in bytes.
    fn free_bytes(&mut self) -> Result<u64> {
        match self.vm.run(Op::Space { dir: self.dir.clone().into() })?.answer {
            Some(Answer::Space { free_bytes, .. }) if free_bytes > 0 => Ok(free_bytes),
            other => bail!("the guest answered {other:?}"),
        }
    }
}

/// A resize by both programs.
struct Case {
    name: &'static str,
    mkfs: &'static [&'static str],
    /// First size, and the share of it that files use, in percent.
    bytes: u64,
    percent: u64,
    new_bytes: u64,
}

const MIB: u64 = 1 << 20;
const CASES: [Case; 4] = [
    Case { name: "shrunk", mkfs: &[], bytes: 128 * MIB, percent: 15, new_bytes: 96 * MIB },
    Case {
        name: "shrunk by 0.15 %, of mkfs.f2fs -i",
        mkfs: &["-i"],
        bytes: 4096 * MIB,
        percent: 1,
        new_bytes: 4090 * MIB,
    },
    Case { name: "grown", mkfs: &[], bytes: 96 * MIB, percent: 15, new_bytes: 144 * MIB },
    Case {
        name: "grown, larger metadata areas",
        mkfs: &[],
        bytes: 1000 * MIB,
        percent: 4,
        new_bytes: 1500 * MIB,
    },
];

/// The programs that resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Flashkit,
    ResizeF2fs,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Flashkit => "flashkit resize",
            Program::ResizeF2fs => "resize.f2fs",
        }
    }
}

/// Counts of the volumes after kills.
#[derive(Debug, Default)]
struct Counts {
    kills: u64,
    /// Volumes in which a file is missing or differs.
    not_whole: u64,
    /// The same after `fsck.f2fs -f -y`.
    not_repaired: u64,
}

/// Kills both programs before `kills` of their writes, evenly spread, and prints the number of volumes that are not
/// whole then, and not after a repair by fsck.f2fs either.
///
/// # Errors
/// A program is missing, or `flashkit resize` leaves a volume that is not whole.
pub fn kills(kills: u64, flashkit: Option<PathBuf>, out: &mut impl Write) -> Result<()> {
    let work = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let flashkit = flashkit.map_or_else(super::rescue::built, Ok)?;
    writeln!(
        out,
        "| resize | program | result without a kill | kills | not whole | not whole after fsck.f2fs -f -y |"
    )?;
    writeln!(out, "|---|---|---|---:|---:|---:|")?;
    let mut lost = 0;
    for case in &CASES {
        let image = work.path().join("start.img");
        let files = case.make(&image)?;
        for program in [Program::Flashkit, Program::ResizeF2fs] {
            let trial =
                Trial { case, program, flashkit: &flashkit, start: &image, files: &files, work: work.path() };
            let (result, counts) = trial.run(kills)?;
            if program == Program::Flashkit {
                lost += counts.not_whole;
            }
            let (name, program) = (case.name, program.name());
            let Counts { kills, not_whole, not_repaired } = counts;
            writeln!(out, "| {name} | {program} | {result} | {kills} | {not_whole} | {not_repaired} |")?;
        }
    }
    ensure!(lost == 0, "flashkit resize left {lost} volumes that are not whole");
    Ok(())
}

/// A file that must be there after a resize.
struct WantedFile {
    name: Vec<u8>,
    content: Vec<u8>,
}

impl WantedFile {
    fn is_in(&self, volume: &Engine) -> f2fs::Result<bool> {
        let ino = volume.lookup(volume.superblock().root_ino, &self.name)?;
        let mut content = vec![0; self.content.len() + 1];
        let length = volume.read(ino, 0, &mut content)?;
        Ok(content[..length] == self.content)
    }
}

impl Case {
    /// Makes the volume with its files.
    fn make(&self, image: &Path) -> Result<Vec<WantedFile>> {
        let _ = fs::remove_file(image);
        File::create(image)?.set_len(self.bytes)?;
        workspace::run(system("mkfs.f2fs").arg("-q").args(self.mkfs).arg(image))?;
        let mut volume = own::open(image)?;
        let root = volume.superblock().root_ino;
        let node = engine::NewNode::new(0o100_644);
        let mut rng = Rng::new(self.bytes);
        let mut left = self.bytes * self.percent / 100;
        let mut files: Vec<WantedFile> = Vec::new();
        while left > 0 {
            let number = files.len() as u64;
            let length = (rng.below(self.bytes / 200) + 1).min(left);
            let content: Vec<u8> = (0..length).map(|at| (at / 5 + number * 17) as u8).collect();
            let name = format!("file {number}, {left}").into_bytes();
            let ino = volume.begin(Caller::ADMIN).create(root, &name, &node)?;
            volume.begin(Caller::ADMIN).write(ino, 0, &content)?;
            left -= length;
            files.push(WantedFile { name, content });
            if number % 4 == 3 {
                let gone = files.swap_remove(number as usize - 2);
                volume.begin(Caller::ADMIN).unlink(root, &gone.name)?;
            }
        }
        volume.unmount()?;
        Ok(files)
    }
}

/// One program's resize of one volume, killed at many places.
struct Trial<'a> {
    case: &'a Case,
    program: Program,
    flashkit: &'a Path,
    start: &'a Path,
    files: &'a [WantedFile],
    work: &'a Path,
}

impl Trial<'_> {
    /// Returns the result of a resize that is not killed, and the counts.
    fn run(&self, kills: u64) -> Result<(&'static str, Counts)> {
        let log = self.work.join("strace.log");
        self.resize(&["-o", log.to_str().context("a path of text")?])?;
        let result = self.result()?;
        let writes = fs::read_to_string(&log)?.lines().filter(|line| line.contains("write")).count() as u64;
        let mut counts = Counts::default();
        for n in 0..kills.min(writes) {
            interrupt::check()?;
            let at = 1 + n * writes / kills.min(writes);
            let inject = format!("inject=write,pwrite64,pwritev,writev:signal=KILL:when={at}");
            self.resize(&["-o", "/dev/null", "-e", &inject])?;
            counts.kills += 1;
            counts.not_whole += u64::from(!self.is_whole(&self.image())?);
            // Exit codes of fsck.f2fs say little; the files decide.
            system("timeout").args([FSCK_SECONDS, "fsck.f2fs", "-f", "-y"]).arg(self.image()).output()?;
            counts.not_repaired += u64::from(!self.is_whole(&self.image())?);
        }
        Ok((result, counts))
    }

    fn image(&self) -> PathBuf {
        self.work.join("resized.img")
    }

    /// Makes the copy that is to be resized, with the length that the resize needs.
    fn prepare(&self) -> Result<()> {
        let (image, Case { bytes, new_bytes, .. }) = (self.image(), self.case);
        copy_sparse(self.start, &image)?;
        File::options().write(true).open(&image)?.set_len((*bytes).max(*new_bytes))?;
        Ok(())
    }

    /// Resizes a copy under strace with these options.
    fn resize(&self, strace: &[&str]) -> Result<()> {
        self.prepare()?;
        self.resize_with(&[&["-f", "-e", "trace=write,pwrite64,pwritev,writev"], strace].concat())
    }

    /// Resizes the prepared copy under strace with these options.
    fn resize_with(&self, strace: &[&str]) -> Result<()> {
        let (image, Case { bytes, new_bytes, .. }) = (self.image(), self.case);
        let mut command = system("strace");
        command.args(strace);
        match self.program {
            Program::Flashkit => {
                command.arg(self.flashkit).args(["resize", "-q", "--no-truncate"]).arg(&image);
                command.arg(new_bytes.to_string());
            }
            Program::ResizeF2fs => {
                command.arg("resize.f2fs").args((new_bytes < bytes).then_some("-s"));
                command.args(["-t", &(new_bytes / 512).to_string()]).arg(&image);
            }
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().context("strace")?;
        Ok(())
    }

    /// Returns true if a volume opens and has all files.
    fn is_whole(&self, image: &Path) -> Result<bool> {
        let device = Arc::new(FileDevice::open(image, OpenOptions::default())?);
        let Ok(volume) = Engine::open(device, Options::read_only()) else { return Ok(false) };
        Ok(self.files.iter().all(|file| file.is_in(&volume).unwrap_or(false)))
    }

    /// Describes the volume after a resize that was not killed.
    fn result(&self) -> Result<&'static str> {
        let image = self.image();
        if !self.is_whole(&image)? {
            return Ok("not whole");
        }
        // resize.f2fs leaves one checkpoint pack invalid, which is no damage.
        let is_clean = fsck_after_cut(&load(&image)?).is_ok();
        let blocks = own::open_read_only(&image)?.superblock().blocks;
        Ok(match (blocks * 4096 == self.case.new_bytes, is_clean) {
            (true, true) => "good",
            (true, false) => "new size, damage for fsck.f2fs",
            (false, true) => "old size",
            (false, false) => "old size, damage for fsck.f2fs",
        })
    }
}
