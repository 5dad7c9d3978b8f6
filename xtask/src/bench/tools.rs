//! The command on whole trees, compared with f2fs-tools, e2fsprogs and cp.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{
    Line,
    Wanted::{AtLeast, AtMost},
    many_files,
};
use crate::{
    step::Step,
    study::filling::{self, our_program},
    study::linux_source::LinuxSource,
    study::measure::Cost,
};

/// Number of runs of short jobs.
const RUNS: usize = 5;
/// Size of the largest volume: a block less than 16 TiB, the maximum size of a file on ext4.
const HUGE: &str = "17592186040320";

/// Runs the benchmarks.
pub fn lines(dir: &Path) -> Result<Vec<Line>> {
    let tree = LinuxSource::tree()?.canonicalize()?;
    filling::build()?;
    // Reads the tree into the page cache, where every later run finds it.
    let step = Step::begin("read the tree");
    guest::Manifest::of_tree(&tree)?;
    step.end();

    let rows = filling::rows(&tree, dir)?;
    println!();
    filling::print(&rows);
    let peak = rows[0].cost.memory_bytes as f64 / f64::from(1 << 20);
    let (opening, opening_memory) = open(dir)?;
    let mut lines = vec![
        Line::new("filling, as fast as mkfs.f2fs + sload.f2fs", rows[1].ratio, "times", AtLeast(8.0)),
        Line::new("filling, as fast as mke2fs -d", rows[2].ratio, "times", AtLeast(2.0)),
        Line::new("filling, peak memory", peak, "MiB", AtMost(256.0)),
        opening,
        opening_memory,
        export(&filling::our_image(dir), &tree)?,
        check(&filling::our_image(dir))?,
    ];
    lines.extend(many_files::lines(dir)?);
    Ok(lines)
}

/// Compares the check of a volume with that of fsck.f2fs. They alternate.
fn check(image: &Path) -> Result<Line> {
    let step = Step::begin(&format!("fsck beside fsck.f2fs ({RUNS} runs each)"));
    let mut ratios = Vec::new();
    for _ in 0..RUNS {
        let theirs = Cost::of(Command::new("fsck.f2fs").args(["-f", "--dry-run"]).arg(image))?;
        let ours = Cost::of(Command::new(our_program()).args(["fsck", "--quiet"]).arg(image))?;
        ratios.push(ours.wall_s / theirs.wall_s);
    }
    step.end();
    Ok(Line::median("fsck of the kernel's tree, time of fsck.f2fs -f", ratios, "times", AtMost(1.0)))
}

/// Measures `info` on an empty volume of 16 TiB in a sparse file, and the memory of a command that opens one
/// of 1 TiB to change it.
fn open(dir: &Path) -> Result<(Line, Line)> {
    let step = Step::begin("open large volumes");
    let image = dir.join("huge.img");
    let make = |size: &str| {
        Cost::of(Command::new(our_program()).args(["mkfs", "-f", "-q", "--size", size]).arg(&image))
    };
    make(HUGE)?;
    let runs: Result<Vec<Cost>> =
        (0..RUNS).map(|_| Cost::of(Command::new(our_program()).arg("info").arg(&image))).collect();
    fs::remove_file(&image)?;
    make("1T")?;
    let inside = format!("{}:/new", image.display());
    let change = Cost::of(Command::new(our_program()).args(["mkdir", &inside]))?;
    fs::remove_file(&image)?;
    step.end();
    let info_ms = Cost::median(runs?).wall_s * 1000.0;
    let memory = change.memory_bytes as f64 / f64::from(1 << 20);
    Ok((
        Line::new("info on an empty volume of 16 TiB", info_ms, "ms", AtMost(50.0)),
        Line::new("mkdir on a volume of 1 TiB, memory of the program", memory, "MiB", AtMost(16.0)),
    ))
}

/// Compares the export of a volume with a copy of its source tree. They alternate and write to a file system
/// in memory, because the time that a well-used disk takes to allocate space for so many files differs
/// fivefold from run to run.
fn export(image: &Path, tree: &Path) -> Result<Line> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let step = Step::begin("export beside cp -r (3 runs each)");
    let (mut ours, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        for (costs, command) in [
            (&mut copies, Command::new("cp").arg("-r").arg(tree)),
            (&mut ours, Command::new(our_program()).args(["export", "--quiet"]).arg(image)),
        ] {
            let copy = dir.path().join("copy");
            costs.push(Cost::of(command.arg(&copy))?);
            fs::remove_dir_all(&copy).with_context(|| copy.display().to_string())?;
        }
    }
    step.end();
    let ratio = Cost::median(ours).wall_s / Cost::median(copies).wall_s;
    Ok(Line::new("export, time of cp -r", ratio, "times", AtMost(1.5)))
}
