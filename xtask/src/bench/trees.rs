//! Work on trees of small files, and work of two threads beside that of one, through a mount and on the kernel's ext4 on a
//! loop device.
//!
//! *Comparison*: as in [`mount`](super::mount). Trees are listed and searched after a new mount ("cold"), and listed once
//! more ("again"). Each part is one program of the system, which both file systems run.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use block::Rng;

use super::{
    Line, Wanted,
    mount::{Mounted, Peer, can_mount},
};
use crate::{interrupt, step::Step, study::filling::build};

/// Number of directories of the tree, files in each of them, and bytes in each file.
const DIRS: usize = 400;
const FILES: usize = 50;
const FILE_BYTES: usize = 4000;
/// Number of files in one large directory.
const LARGE: usize = 2000;
/// Number of rounds, which is odd so that there is a median.
const ROUNDS: usize = 5;
/// Bytes of a file that a thread reads or overwrites, and number of its accesses.
const SHARED_BYTES: u64 = 64 << 20;
const ACCESSES: u64 = 20_000;
/// Number of files that a thread creates.
const CREATED: usize = 5000;

/// The parts of the work, each with the maximum time beside ext4's.
const PARTS: [(&str, f64); 6] = [
    ("tar -x and sync", 1.5),
    ("ls -lR, cold", 1.5),
    ("ls -lR, again", 1.5),
    ("find -newer, cold", 1.5),
    ("grep -r, cold", 1.5),
    ("rm -rf", 1.5),
];
/// The work of threads, each with the minimum speed of two threads beside one.
const THREADED: [(&str, f64); 3] = [
    ("random reads of 4 KiB", 1.8),
    ("overwrites of different files", 1.6),
    ("creates in different directories", 1.4),
];

/// The work of one thread in its own directory; the number is its seed.
type Work = fn(&Path, u64) -> Result<()>;

/// Measures the work through mounts of both file systems.
pub(super) fn lines() -> Result<Vec<Line>> {
    if !can_mount(&["mkfs.ext4", "tar"]) {
        return Ok(Vec::new());
    }
    build()?;
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let archive = dir.path().join("tree.tar");
    make_archive(dir.path(), &archive)?;
    let (mut seconds, mut gains): ([Vec<_>; 2], [Vec<_>; 2]) = Default::default();
    for round in 0..ROUNDS {
        for turn in 0..2 {
            interrupt::check()?;
            let ours = (round + turn) % 2;
            let peer = [Peer::Flashkit, Peer::Ext4][ours];
            let step = Step::begin(&format!("trees on a mount of {peer:?}, round {} of {ROUNDS}", round + 1));
            let mounted = Mounted::new(peer)?;
            seconds[ours].push(tree_seconds(&mounted, &archive)?);
            gains[ours].push(thread_gains(&mounted)?);
            step.end();
        }
    }
    let mut lines = Vec::new();
    for (n, (what, most)) in PARTS.iter().enumerate() {
        let ratios = seconds[0].iter().zip(&seconds[1]).map(|(ours, theirs)| ours[n] / theirs[n]).collect();
        lines.push(Line::median(format!("{what}: time of ext4"), ratios, "times", Wanted::AtMost(*most)));
    }
    for (n, (what, least)) in THREADED.iter().enumerate() {
        for (peer, name, wanted) in [(0, "flashkit", Wanted::AtLeast(*least)), (1, "ext4", Wanted::Told)] {
            let figures = gains[peer].iter().map(|gains| gains[n]).collect();
            lines.push(Line::median(
                format!("{name}, two threads: {what}, of one"),
                figures,
                "times",
                wanted,
            ));
        }
    }
    Ok(lines)
}

/// Makes a tree of small files and packs it.
fn make_archive(dir: &Path, archive: &Path) -> Result<()> {
    let tree = dir.join("tree");
    for n in 0..DIRS {
        let below = tree.join(format!("group{}/part{n}", n % 20));
        fs::create_dir_all(&below)?;
        for file in 0..FILES {
            fs::write(
                below.join(format!("file {file} of {n}.txt")),
                vec![b'a' + (file % 26) as u8; FILE_BYTES],
            )?;
        }
    }
    let large = tree.join("large");
    fs::create_dir(&large)?;
    for file in 0..LARGE {
        fs::write(large.join(format!("{file:08}")), [b'x'; 100])?;
    }
    timed(Command::new("tar").arg("-cf").arg(archive).arg("-C").arg(&tree).arg("."))?;
    fs::remove_dir_all(tree).context("cannot remove the tree")
}

/// The seconds of each of [`PARTS`].
fn tree_seconds(mounted: &Mounted, archive: &Path) -> Result<[f64; PARTS.len()]> {
    let tree = mounted.path().join("tree");
    fs::create_dir(&tree)?;
    let unpack = timed(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&tree))?
        + timed(Command::new("sync").arg("-f").arg(&tree))?;
    let list = || timed(Command::new("ls").arg("-lR").arg(&tree));
    mounted.remount()?;
    let (cold, again) = (list()?, list()?);
    mounted.remount()?;
    let find = timed(Command::new("find").arg(&tree).arg("-newer").arg(archive))?;
    mounted.remount()?;
    let grep = timed(Command::new("grep").args(["-rc", "abcd"]).arg(&tree))?;
    let remove = timed(Command::new("rm").arg("-rf").arg(&tree))?;
    Ok([unpack, cold, again, find, grep, remove])
}

/// Runs a program without its output and returns its seconds.
fn timed(command: &mut Command) -> Result<f64> {
    let shown = format!("{command:?}");
    let started = Instant::now();
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).status().with_context(|| shown.clone())?;
    // grep reports with 1 that it found nothing.
    ensure!(matches!(status.code(), Some(0 | 1)), "{shown}: {status}");
    Ok(started.elapsed().as_secs_f64())
}

/// The speed of two threads as a multiple of that of one, for each of [`THREADED`].
fn thread_gains(mounted: &Mounted) -> Result<[f64; THREADED.len()]> {
    let dirs = ["one", "two"].map(|name| mounted.path().join(name));
    for dir in &dirs {
        fs::create_dir(dir)?;
        fs::write(dir.join("file"), vec![7; SHARED_BYTES as usize])?;
    }
    let mut gains = [0.0; THREADED.len()];
    for (gain, work) in gains.iter_mut().zip([read as Work, overwrite, create]) {
        // Only a new mount has an empty page cache.
        mounted.remount()?;
        let alone = Instant::now();
        work(&dirs[0], 1)?;
        let alone = alone.elapsed().as_secs_f64();
        mounted.remount()?;
        let both = Instant::now();
        thread::scope(|scope| {
            let other = scope.spawn(|| work(&dirs[1], 2));
            work(&dirs[0], 3)?;
            other.join().expect("the thread does not panic")
        })?;
        *gain = 2.0 * alone / both.elapsed().as_secs_f64();
    }
    Ok(gains)
}

fn read(dir: &Path, seed: u64) -> Result<()> {
    let (file, mut rng, mut buffer) = (File::open(dir.join("file"))?, Rng::new(seed), [0; 4096]);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    for _ in 0..ACCESSES {
        file.read_exact_at(&mut buffer, rng.below(SHARED_BYTES / 4096) * 4096)?;
    }
    Ok(())
}

fn overwrite(dir: &Path, seed: u64) -> Result<()> {
    let (file, mut rng) = (File::options().write(true).open(dir.join("file"))?, Rng::new(seed));
    for _ in 0..ACCESSES {
        file.write_all_at(&[9; 4096], rng.below(SHARED_BYTES / 4096) * 4096)?;
    }
    Ok(file.sync_data()?)
}

fn create(dir: &Path, seed: u64) -> Result<()> {
    for n in 0..CREATED {
        fs::write(dir.join(format!("created {seed} {n}")), [b'x'; 1000])?;
    }
    Ok(())
}
