//! Costs of a mount: the same work through flashkit, the kernel's ext4 on a loop device, and fuse2fs, in one
//! run, on images in memory.
//!
//! *Comparison*: each round gives every peer a new, sparse image, so that written data needs new memory for
//! all of them. Read data was written just before, and the volume is remounted in between. So none of it is
//! in the page cache of a mount, and all of it is in that of the image, which is its memory. From there it
//! comes through a thread of the loop device for ext4, and through a process for the others. Both copy it
//! once into the mount's cache, and the reader copies it once out of that. ext4 fills its cache in large
//! folios. FUSE of Linux 6.18 fills it page by page, at a cost to the reader and the writer.
//!
//! *Evaluation*: the order of the peers changes from round to round. A ratio is taken within a round, and the
//! result is the median of the rounds, with the minimum and the maximum. The work uses all processors, so
//! other programs slow the peers down to different degrees. Therefore the load before the run is reported,
//! too.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};

use super::{Line, Wanted};
use crate::{
    interrupt,
    step::Step,
    study::filling::{build, our_program},
};

/// Size of an image in bytes. It lies in memory, and only written data takes space there.
const IMAGE_BYTES: u64 = 3 << 30;
/// Bytes of sequential and of random reads and writes.
const SEQUENTIAL: &str = "768m";
const RANDOM: &str = "192m";
/// Number of files made, examined and removed, and the bytes in each.
const FILES: usize = 20_000;
const FILE_BYTES: usize = 1000;
/// Number of rounds, which is odd so that there is a median.
const ROUNDS: usize = 5;
/// Maximum load of other programs (over the last minute) at which figures mean much.
const QUIET: f64 = 0.5;

/// The compared file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// Ours.
    Flashkit,
    /// Ours, with writes that bypass the mount's page cache.
    FlashkitDirectWrite,
    /// The kernel's, on a loop device.
    Ext4,
    /// ext4 through FUSE.
    Fuse2fs,
}

/// Measurements with their units; higher is better. Writes include a final sync.
const WORK: [(&str, &str); 4] = [
    ("sequential write", "MiB/s"),
    ("sequential read", "MiB/s"),
    ("random 4 KiB write", "a second"),
    ("create, stat, unlink", "files/s"),
];

/// Speed of each of [`WORK`].
type Speeds = [f64; WORK.len()];

/// Expectations: the file system, its peer, the index in [`WORK`], and the minimum ratio of their speeds.
const WANTED: [(Peer, Peer, usize, f64); 7] = [
    (Peer::Flashkit, Peer::Ext4, 0, 0.8),
    (Peer::Flashkit, Peer::Ext4, 1, 0.8),
    (Peer::FlashkitDirectWrite, Peer::Ext4, 0, 0.8),
    (Peer::FlashkitDirectWrite, Peer::Ext4, 1, 0.8),
    (Peer::Flashkit, Peer::Fuse2fs, 2, 3.0),
    (Peer::Flashkit, Peer::Fuse2fs, 3, 3.0),
    (Peer::Flashkit, Peer::Ext4, 3, 0.6),
];

/// Measures the work through mounts: the speeds of each, and the ratios.
pub(super) fn lines() -> Result<Vec<Line>> {
    if !can_mount(&["fuse2fs", "fio", "mkfs.ext4"]) {
        return Ok(Vec::new());
    }
    build()?;
    let load: f64 = fs::read_to_string("/proc/loadavg")?.split(' ').next().unwrap_or_default().parse()?;
    let mut lines = vec![Line::new("load before mounts are measured", load, "", Wanted::AtMost(QUIET))];

    let mut rounds: [Vec<Speeds>; Peer::ALL.len()] = Default::default();
    for round in 0..ROUNDS {
        for turn in 0..Peer::ALL.len() {
            interrupt::check()?;
            let peer = Peer::ALL[(round + turn) % Peer::ALL.len()];
            let step = Step::begin(&format!("work on a mount of {peer:?}, round {} of {ROUNDS}", round + 1));
            rounds[peer as usize].push(Mounted::new(peer)?.measure()?);
            step.end();
        }
    }
    for peer in Peer::ALL {
        for (n, (what, unit)) in WORK.iter().enumerate() {
            let figures = rounds[peer as usize].iter().map(|speeds| speeds[n]).collect();
            lines.push(Line::median(
                format!("mount of {}: {what}", peer.name()),
                figures,
                unit,
                Wanted::Told,
            ));
        }
    }
    for (ours, peer, n, bound) in WANTED {
        let pairs = rounds[ours as usize].iter().zip(&rounds[peer as usize]);
        let ratios = pairs.map(|(ours, theirs)| ours[n] / theirs[n]).collect();
        let what = format!("{}: {}, beside {}", ours.name(), WORK[n].0, peer.name());
        lines.push(Line::median(what, ratios, "times", Wanted::AtLeast(bound)));
    }
    Ok(lines)
}

/// Returns true if mounts can be measured here with these programs. Otherwise it says why not.
pub(super) fn can_mount(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| {
        let asked = format!("command -v {program}");
        let found = Command::new("sh").args(["-c", &asked]).stdout(Stdio::null()).status();
        !found.is_ok_and(|status| status.success())
    });
    if let Some(program) = missing {
        eprintln!("mounts are not measured: {program} is not installed");
    }
    let may = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !may {
        eprintln!("mounts are not measured: that needs root and /dev/fuse");
    }
    may && missing.is_none()
}

impl Peer {
    const ALL: [Peer; 4] = [Peer::Flashkit, Peer::FlashkitDirectWrite, Peer::Ext4, Peer::Fuse2fs];

    fn name(self) -> &'static str {
        match self {
            Peer::Flashkit => "flashkit",
            Peer::FlashkitDirectWrite => "flashkit -o direct_write",
            Peer::Ext4 => "ext4",
            Peer::Fuse2fs => "fuse2fs",
        }
    }
}

/// A mount that ends when this is dropped.
pub(super) struct Mounted {
    peer: Peer,
    dir: tempfile::TempDir,
}

impl Mounted {
    /// Makes a volume and mounts it.
    pub(super) fn new(peer: Peer) -> Result<Mounted> {
        // /dev/shm is in memory on every Linux.
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let mounted = Mounted { peer, dir };
        File::create(mounted.image())?.set_len(IMAGE_BYTES)?;
        fs::create_dir(mounted.path())?;
        match peer {
            Peer::Flashkit | Peer::FlashkitDirectWrite => {
                run(Command::new(our_program()).args(["mkfs", "-q", "-f"]).arg(mounted.image()))?
            }
            // Initialises everything at once; otherwise the kernel would go on during the measurement.
            _ => run(Command::new("mkfs.ext4")
                .args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
                .arg(mounted.image()))?,
        }
        mounted.mount()?;
        Ok(mounted)
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// The directory that it is mounted on.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn mount(&self) -> Result<()> {
        let mut command = match self.peer {
            Peer::Flashkit | Peer::FlashkitDirectWrite => Command::new(our_program()),
            Peer::Ext4 => Command::new("mount"),
            Peer::Fuse2fs => Command::new("fuse2fs"),
        };
        match self.peer {
            Peer::Flashkit => command.arg("mount"),
            Peer::FlashkitDirectWrite => command.args(["mount", "-o", "direct_write"]),
            Peer::Ext4 => command.args(["-o", "loop"]),
            Peer::Fuse2fs => &mut command,
        };
        run(command.arg(self.image()).arg(self.path()))
    }

    fn unmount(&self) -> Result<()> {
        run(Command::new("umount").arg(self.path()))?;
        // Some processes end a little later. The image's lock shows when.
        let image = File::open(self.image())?;
        rustix::fs::flock(&image, rustix::fs::FlockOperation::LockShared)?;
        Ok(())
    }

    /// Mounts again, so that nothing is in the cache of the mount.
    pub(super) fn remount(&self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    fn measure(&self) -> Result<Speeds> {
        let write_mib_s = self.fio("write", "1m", SEQUENTIAL, "sequential")? / f64::from(1 << 20);
        // Only a new mount has an empty page cache.
        self.remount()?;
        let read_mib_s = self.fio("read", "1m", SEQUENTIAL, "sequential")? / f64::from(1 << 20);
        let random_writes_s = self.fio("randwrite", "4k", RANDOM, "random")? / 4096.0;
        Ok([write_mib_s, read_mib_s, random_writes_s, self.files()?])
    }

    /// Measures the bytes per second of a job, including its sync.
    fn fio(&self, pattern: &str, block: &str, size: &str, file: &str) -> Result<f64> {
        let target = self.path().join(file);
        if pattern == "randwrite" {
            // Overwrites an existing file, as a database does.
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

    /// Measures the small files made, examined and removed per second.
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
                bail!("{}: the file has another length than when it was made", name.display());
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

pub(super) fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let run = command.stdin(Stdio::null()).output().with_context(|| shown.clone())?;
    if !run.status.success() {
        bail!("{shown}: {}", String::from_utf8_lossy(&run.stderr).trim());
    }
    Ok(())
}
