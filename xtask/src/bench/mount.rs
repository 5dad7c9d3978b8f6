//! What a mount costs: the same work through flashkit, the kernel's ext4 on a loop device, and fuse2fs, one after the
//! other in one run, on images in memory.
//!
//! What is read was not in any mount's page cache, and comes from the image in memory: through a thread of the loop
//! device for ext4, through a process for the others. Both copy it once into the mount's cache, and the reader once out
//! of it. ext4 fills its cache in large folios, FUSE of Linux 6.18 page by page, which the reader pays for.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};

use super::{Line, Wanted};
use crate::{
    filling::{build, our_program},
    step::Step,
};

/// Size of an image; it lies in memory, and only what is written takes room there.
const IMAGE_BYTES: u64 = 3 << 30;
/// What is written and read in sequence, and at random.
const SEQUENTIAL: &str = "768m";
const RANDOM: &str = "192m";
/// Files that are made, looked at and removed, and the bytes in each.
const FILES: usize = 20_000;
const FILE_BYTES: usize = 1000;
/// Rounds; the best of each counts, for what disturbs a run makes it slower.
const ROUNDS: usize = 3;

/// Whose file system it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// Ours.
    Flashkit,
    /// The kernel's, on a loop device.
    Ext4,
    /// ext4 through FUSE.
    Fuse2fs,
}

/// What was measured: higher is better.
#[derive(Debug, Clone, Copy, Default)]
struct Speed {
    /// Sequential writing, MiB a second, synced at the end.
    write_mib_s: f64,
    /// Sequential reading of what is not in the page cache, MiB a second.
    read_mib_s: f64,
    /// Random writes of 4 KiB a second, synced at the end.
    random_writes_s: f64,
    /// Files made, looked at and removed a second.
    files_s: f64,
}

impl Speed {
    fn best(self, other: Speed) -> Speed {
        Speed {
            write_mib_s: self.write_mib_s.max(other.write_mib_s),
            read_mib_s: self.read_mib_s.max(other.read_mib_s),
            random_writes_s: self.random_writes_s.max(other.random_writes_s),
            files_s: self.files_s.max(other.files_s),
        }
    }
}

/// Work through mounts: what each does, and the ratios.
pub(super) fn lines() -> Result<Vec<Line>> {
    let missing = ["fuse2fs", "fio", "mkfs.ext4"].into_iter().find(|program| {
        let asked = format!("command -v {program}");
        let found = Command::new("sh").args(["-c", &asked]).stdout(Stdio::null()).status();
        !found.is_ok_and(|status| status.success())
    });
    if let Some(program) = missing {
        eprintln!("mounts are not measured: {program} is not installed");
        return Ok(Vec::new());
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("mounts are not measured: that takes root and /dev/fuse");
        return Ok(Vec::new());
    }
    build()?;
    let mut speeds = [Peer::Flashkit, Peer::Ext4, Peer::Fuse2fs].map(|peer| (peer, Speed::default()));
    for round in 1..=ROUNDS {
        for (peer, speed) in &mut speeds {
            let step = Step::begin(&format!("work on a mount of {peer:?}, round {round} of {ROUNDS}"));
            *speed = speed.best(Mounted::new(*peer)?.measure()?);
            step.end();
        }
    }
    let [(_, ours), (_, ext4), (_, fuse2fs)] = speeds;
    let mut lines = Vec::new();
    for (name, speed) in [("flashkit", ours), ("ext4", ext4), ("fuse2fs", fuse2fs)] {
        let mut tell = |what: &str, figure, unit| {
            lines.push(Line::new(format!("mount of {name}: {what}"), figure, unit, Wanted::Told));
        };
        tell("sequential write", speed.write_mib_s, "MiB/s");
        tell("sequential read", speed.read_mib_s, "MiB/s");
        tell("random 4 KiB write", speed.random_writes_s, "a second");
        tell("create, stat, unlink", speed.files_s, "files/s");
    }
    let mut ratio = |what: &'static str, ours: f64, theirs: f64, bound| {
        lines.push(Line::new(what, ours / theirs, "times", Wanted::AtLeast(bound)));
    };
    ratio("mount: sequential write, beside ext4", ours.write_mib_s, ext4.write_mib_s, 0.8);
    ratio("mount: sequential read, beside ext4", ours.read_mib_s, ext4.read_mib_s, 0.8);
    ratio("mount: random 4 KiB write, beside fuse2fs", ours.random_writes_s, fuse2fs.random_writes_s, 3.0);
    ratio("mount: create, stat, unlink, beside fuse2fs", ours.files_s, fuse2fs.files_s, 3.0);
    Ok(lines)
}

/// One mount; it ends when this is dropped.
struct Mounted {
    peer: Peer,
    dir: tempfile::TempDir,
}

impl Mounted {
    fn new(peer: Peer) -> Result<Mounted> {
        // The one place that is memory on every Linux.
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let mounted = Mounted { peer, dir };
        File::create(mounted.image())?.set_len(IMAGE_BYTES)?;
        fs::create_dir(mounted.path())?;
        match peer {
            Peer::Flashkit => {
                run(Command::new(our_program()).args(["mkfs", "-q", "-f"]).arg(mounted.image()))?
            }
            _ => run(Command::new("mkfs.ext4").arg("-q").arg(mounted.image()))?,
        }
        mounted.mount()?;
        Ok(mounted)
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn mount(&self) -> Result<()> {
        let mut command = match self.peer {
            Peer::Flashkit => Command::new(our_program()),
            Peer::Ext4 => Command::new("mount"),
            Peer::Fuse2fs => Command::new("fuse2fs"),
        };
        match self.peer {
            Peer::Flashkit => command.arg("mount"),
            Peer::Ext4 => command.args(["-o", "loop"]),
            Peer::Fuse2fs => &mut command,
        };
        run(command.arg(self.image()).arg(self.path()))
    }

    fn unmount(&self) -> Result<()> {
        run(Command::new("umount").arg(self.path()))?;
        // Some end a little later; its lock tells.
        let image = File::open(self.image())?;
        rustix::fs::flock(&image, rustix::fs::FlockOperation::LockShared)?;
        Ok(())
    }

    fn measure(&self) -> Result<Speed> {
        let write_mib_s = self.fio("write", "1m", SEQUENTIAL, "sequential")? / f64::from(1 << 20);
        let random_writes_s = self.fio("randwrite", "4k", RANDOM, "random")? / 4096.0;
        let files_s = self.files()?;
        // Only what is mounted anew has nothing in the page cache.
        self.unmount()?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        self.mount()?;
        let read_mib_s = self.fio("read", "1m", SEQUENTIAL, "sequential")? / f64::from(1 << 20);
        Ok(Speed { write_mib_s, read_mib_s, random_writes_s, files_s })
    }

    /// Bytes a second of a job, its sync included.
    fn fio(&self, pattern: &str, block: &str, size: &str, file: &str) -> Result<f64> {
        let target = self.path().join(file);
        if pattern == "randwrite" {
            // Overwriting what is there, as a database does.
            self.fio("write", "1m", size, file)?;
        }
        let mut command = Command::new("fio");
        command
            .args(["--name=job", "--ioengine=psync", "--end_fsync=1", "--invalidate=0", "--randseed=1"])
            .args(["--fallocate=none", "--output-format=json"])
            .args([format!("--rw={pattern}"), format!("--bs={block}"), format!("--size={size}")])
            .arg(format!("--filename={}", target.display()));
        let started = Instant::now();
        let run = command.output().context("fio")?;
        if !run.status.success() {
            bail!("fio {pattern}: {}", String::from_utf8_lossy(&run.stderr));
        }
        let wall_ms = started.elapsed().as_secs_f64() * 1000.0;
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).context("fio's report")?;
        let side = &report["jobs"][0][if pattern == "read" { "read" } else { "write" }];
        let bytes = side["io_bytes"].as_f64().context("fio's bytes")?;
        let job_ms = report["jobs"][0]["job_runtime"].as_f64().unwrap_or(wall_ms);
        Ok(bytes / (job_ms / 1000.0))
    }

    /// Small files made, looked at and removed, a second.
    fn files(&self) -> Result<f64> {
        let dir = self.path().join("files");
        fs::create_dir(&dir)?;
        let content = vec![b'x'; FILE_BYTES];
        let started = Instant::now();
        let names: Vec<PathBuf> = (0..FILES).map(|number| dir.join(format!("file{number:05}"))).collect();
        for name in &names {
            fs::write(name, &content)?;
        }
        for name in &names {
            if fs::metadata(name)?.len() != FILE_BYTES as u64 {
                bail!("{}: not as long as it was made", name.display());
            }
        }
        for name in &names {
            fs::remove_file(name)?;
        }
        let speed = FILES as f64 / started.elapsed().as_secs_f64();
        fs::remove_dir(&dir)?;
        Ok(speed)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}");
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let run = command.stdin(Stdio::null()).output().with_context(|| shown.clone())?;
    if !run.status.success() {
        bail!("{shown}: {}", String::from_utf8_lossy(&run.stderr).trim());
    }
    Ok(())
}
