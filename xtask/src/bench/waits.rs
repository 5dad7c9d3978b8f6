//! Waits of readers: the time that an open and a cold read of a small file take while other work goes on in the same
//! mount.
//!
//! *Removal*: a process removes many small files from a mount with discard, on a loop device over a file in memory,
//! beside the kernel's ext4 on another one. *Flush*: a process syncs a file and a directory in turn, on a device of
//! which each flush takes seconds. A directory costs a checkpoint, which flushes twice.
//!
//! *Evaluation*: one reader opens one file after another, reads it, and drops it from the page cache, so that the next
//! round reads it from the device again. It pauses for a moment between two files and leaves a processor to the others.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use block::LoopDevice;
use rustix::fs::{Advice, fadvise};

use super::{
    Line, Wanted,
    mount::{can_mount, run},
};
use crate::{
    interrupt,
    step::Step,
    study::filling::{build, our_program},
    workspace::root,
};

/// Size of an image in bytes. It lies in memory, and only written data takes space there.
const IMAGE_BYTES: u64 = 4 << 30;
/// Number of files that are removed, and the bytes in each.
const REMOVED: usize = 100_000;
const REMOVED_BYTES: usize = 4000;
/// Number of files that are read in turn, and the bytes in each.
const READ: usize = 8000;
const READ_BYTES: usize = 8000;
/// Pause between two reads.
const PAUSE: Duration = Duration::from_micros(500);
/// Time for which reading goes on after the removal: discards follow the next checkpoints.
const AFTERWARDS: Duration = Duration::from_secs(10);
/// Duration of a slow flush, and of the measurement beside such flushes.
const FLUSH: Duration = Duration::from_secs(3);
const FLUSHING: Duration = Duration::from_secs(40);
/// Maximum wait for one read in a thousand, in milliseconds.
const WANTED_MS: f64 = 50.0;

/// Measures the waits of readers.
pub(super) fn lines() -> Result<Vec<Line>> {
    if !can_mount(&["mkfs.ext4"]) {
        return Ok(Vec::new());
    }
    build()?;
    let mut lines = Vec::new();
    for (kind, name) in [(Kind::Flashkit, "flashkit"), (Kind::Ext4, "ext4")] {
        interrupt::check()?;
        let step = Step::begin(&format!("readers of {name} while {REMOVED} files are removed"));
        let volume = Volume::new(kind)?;
        let waits = volume.while_mounted(|dir| waits_during(dir, || remove(dir)))?;
        step.end();
        lines.extend(waits.lines(&format!("{name}: wait of a reader, removal"), kind));
    }
    interrupt::check()?;
    let step = Step::begin(&format!("readers while flushes take {} s each", FLUSH.as_secs()));
    let volume = Volume::new(Kind::SlowFlush)?;
    let waits = volume.while_mounted(|dir| waits_during(dir, || sync_for(dir, FLUSHING)))?;
    step.end();
    lines.extend(waits.lines("flashkit: wait of a reader, flush of 3 s", Kind::SlowFlush));
    Ok(lines)
}

/// Durations of reads in milliseconds, sorted.
struct Waits(Vec<f64>);

impl Waits {
    fn lines(&self, what: &str, kind: Kind) -> Vec<Line> {
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
        let wanted = if kind == Kind::Ext4 { Wanted::Told } else { Wanted::AtMost(WANTED_MS) };
        vec![
            Line::new(format!("{what}: reads"), self.0.len() as f64, "", Wanted::Told),
            Line::new(format!("{what}: p99"), at(0.99), "ms", Wanted::Told),
            Line::new(format!("{what}: p99.9"), at(0.999), "ms", wanted),
            Line::new(format!("{what}: longest"), at(1.0), "ms", Wanted::Told),
        ]
    }
}

/// Reads files until `work` is done.
fn waits_during(dir: &Path, work: impl FnOnce() -> Result<()> + Send) -> Result<Waits> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let done = work();
            is_done.store(true, Ordering::Relaxed);
            done
        });
        let mut waits = Vec::new();
        let mut buffer = vec![0; READ_BYTES + 1];
        for n in (0..READ).cycle() {
            if is_done.load(Ordering::Relaxed) {
                break;
            }
            let path = dir.join(format!("read/{n}"));
            let started = Instant::now();
            let mut file = File::open(&path)?;
            let count = file.read(&mut buffer)?;
            waits.push(started.elapsed().as_secs_f64() * 1000.0);
            ensure!(buffer[..count] == content(n), "{}: other content than was written", path.display());
            fadvise(&file, 0, None, Advice::DontNeed)?;
            thread::sleep(PAUSE);
        }
        worker.join().expect("the worker does not panic")?;
        waits.sort_by(f64::total_cmp);
        Ok(Waits(waits))
    })
}

fn remove(dir: &Path) -> Result<()> {
    for n in 0..REMOVED {
        fs::remove_file(dir.join(format!("removed/{n}")))?;
    }
    // Blocks are discarded once a checkpoint has freed them.
    File::open(dir.join("removed"))?.sync_all()?;
    thread::sleep(AFTERWARDS);
    Ok(())
}

fn sync_for(dir: &Path, time: Duration) -> Result<()> {
    let started = Instant::now();
    let synced = dir.join("synced");
    fs::create_dir(&synced)?;
    let file = File::create(dir.join("file"))?;
    for n in 0_u64.. {
        if started.elapsed() >= time {
            break;
        }
        file.write_all_at(&n.to_le_bytes().repeat(512), n * 4096)?;
        file.sync_data()?;
        File::create(synced.join(n.to_string()))?;
        File::open(&synced)?.sync_all()?;
    }
    Ok(())
}

fn content(n: usize) -> Vec<u8> {
    n.to_le_bytes().repeat(READ_BYTES / size_of::<usize>())
}

/// The measured systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flashkit,
    /// Ours, on a device with slow flushes.
    SlowFlush,
    /// The kernel's.
    Ext4,
}

/// A volume with files, on a loop device.
struct Volume {
    kind: Kind,
    device: LoopDevice,
    dir: tempfile::TempDir,
}

impl Volume {
    fn new(kind: Kind) -> Result<Volume> {
        // /dev/shm is in memory on every Linux.
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let image = dir.path().join("image");
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        fs::create_dir(dir.path().join("mnt"))?;
        let device = LoopDevice::attach(&image).context("cannot make a loop device")?;
        match kind {
            Kind::Ext4 => run(Command::new("mkfs.ext4")
                .args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
                .arg(device.path()))?,
            _ => run(Command::new(our_program()).args(["mkfs", "-q", "-f"]).arg(device.path()))?,
        }
        let volume = Volume { kind, device, dir };
        // A mount of its own, so that nothing is in the cache of the measured one.
        volume.mounted(Kind::Flashkit, fill)?;
        Ok(volume)
    }

    fn while_mounted<T>(&self, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.mounted(self.kind, work)
    }

    fn mounted<T>(&self, kind: Kind, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let dir = self.dir.path().join("mnt");
        let child = match (self.kind, kind) {
            (_, Kind::SlowFlush) => Some(slow_mount(self.device.path(), &dir)?),
            (Kind::Ext4, _) => {
                run(Command::new("mount").args(["-o", "discard"]).arg(self.device.path()).arg(&dir))?;
                None
            }
            _ => {
                run(Command::new(our_program())
                    .args(["mount", "-o", "discard"])
                    .arg(self.device.path())
                    .arg(&dir))?;
                None
            }
        };
        let worked = work(&dir);
        run(Command::new("umount").arg(&dir))?;
        if let Some(mut child) = child {
            ensure!(child.wait()?.success(), "the mount with slow flushes failed");
        }
        worked
    }
}

/// Mounts in a process that delays each flush.
fn slow_mount(device: &Path, dir: &Path) -> Result<Child> {
    let built = ["build", "--quiet", "--release", "-p", "flashkit-fuse", "--example", "mount"];
    run(Command::new("cargo").args(built).current_dir(root()))?;
    let program: PathBuf = root().join("target/release/examples/mount");
    let mut child = Command::new(&program)
        .args([device, dir])
        .args(["discard".to_string(), FLUSH.as_millis().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| program.display().to_string())?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it was piped")).read_line(&mut line)?;
    ensure!(line == "ready\n", "the mount with slow flushes did not start");
    Ok(child)
}

fn fill(dir: &Path) -> Result<()> {
    for name in ["removed", "read"] {
        fs::create_dir(dir.join(name))?;
    }
    for n in 0..READ {
        fs::write(dir.join(format!("read/{n}")), content(n))?;
    }
    for n in 0..REMOVED {
        fs::write(dir.join(format!("removed/{n}")), [b'x'; REMOVED_BYTES])?;
    }
    Ok(())
}
