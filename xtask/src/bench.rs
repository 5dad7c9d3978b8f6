//! `make bench`: what flashkit costs, side by side with a peer in the same run, as ratios.
//!
//! Machines are noisy: only figures of one run are compared with each other. Each line says what is wanted of it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::{
    filling::{self, our_program},
    linux_source::LinuxSource,
    measure::Cost,
    step::Step,
    workspace::var,
};

/// Runs of what is short.
const RUNS: usize = 5;
/// Size of the largest volume: a block less than 16 TiB, which is as large as a file on ext4 can be.
const HUGE: &str = "17592186040320";

/// One line of the result.
struct Line {
    what: &'static str,
    figure: f64,
    unit: &'static str,
    /// The bound, and whether the figure must be at least, or at most, so much.
    wanted: (Bound, f64),
}

enum Bound {
    AtLeast,
    AtMost,
}

/// Runs all benchmarks and prints their lines.
///
/// # Errors
/// A program fails. A figure that misses what is wanted is no error: it is printed as it is.
pub fn bench() -> Result<()> {
    let kept = var("bench")?;
    let dir = tempfile::tempdir_in(&kept)?;
    let tree = LinuxSource::tree()?.canonicalize()?;
    filling::build()?;
    // Into the page cache, as every later run finds it.
    let step = Step::begin("read the tree");
    guest::Manifest::of_tree(&tree)?;
    step.end();

    let rows = filling::rows(&tree, dir.path())?;
    println!();
    filling::print(&rows);
    let mut lines = vec![
        Line {
            what: "filling, as fast as mkfs.f2fs + sload.f2fs",
            figure: rows[1].ratio,
            unit: "times",
            wanted: (Bound::AtLeast, 8.0),
        },
        Line {
            what: "filling, as fast as mke2fs -d",
            figure: rows[2].ratio,
            unit: "times",
            wanted: (Bound::AtLeast, 2.0),
        },
        Line {
            what: "filling, peak memory",
            figure: rows[0].cost.memory_bytes as f64 / f64::from(1 << 20),
            unit: "MiB",
            wanted: (Bound::AtMost, 256.0),
        },
    ];
    lines.push(info(dir.path())?);
    lines.push(export(&filling::our_image(dir.path()), &tree, dir.path())?);
    println!();
    for line in &lines {
        let (word, holds) = match line.wanted {
            (Bound::AtLeast, bound) => ("at least", line.figure >= bound),
            (Bound::AtMost, bound) => ("at most", line.figure <= bound),
        };
        let verdict = if holds { "" } else { "   MISSED" };
        println!(
            "{:48} {:>9.2} {:5}  (wanted: {word} {}){verdict}",
            line.what, line.figure, line.unit, line.wanted.1
        );
    }
    Ok(())
}

/// `info` on an empty volume of 16 TiB in a sparse file.
fn info(dir: &Path) -> Result<Line> {
    let step = Step::begin("info on a volume of 16 TiB");
    let image = dir.join("huge.img");
    Cost::of(Command::new(our_program()).args(["mkfs", "-q", "--size", HUGE]).arg(&image))?;
    let runs: Result<Vec<Cost>> =
        (0..RUNS).map(|_| Cost::of(Command::new(our_program()).arg("info").arg(&image))).collect();
    step.end();
    fs::remove_file(&image)?;
    Ok(Line {
        what: "info on an empty volume of 16 TiB",
        figure: Cost::median(runs?).wall_s * 1000.0,
        unit: "ms",
        wanted: (Bound::AtMost, 50.0),
    })
}

/// Exporting a volume beside copying the tree that it was filled from. They take turns.
fn export(image: &Path, tree: &Path, dir: &Path) -> Result<Line> {
    let step = Step::begin("export beside cp -r (3 runs each)");
    let (mut ours, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        for (costs, command) in [
            (&mut copies, Command::new("cp").arg("-r").arg(tree)),
            (&mut ours, Command::new(our_program()).args(["export", "--quiet"]).arg(image)),
        ] {
            let copy = dir.join("copy");
            rustix::fs::sync();
            costs.push(Cost::of(command.arg(&copy))?);
            fs::remove_dir_all(&copy).with_context(|| copy.display().to_string())?;
        }
    }
    step.end();
    Ok(Line {
        what: "export, time of cp -r",
        figure: Cost::median(ours).wall_s / Cost::median(copies).wall_s,
        unit: "times",
        wanted: (Bound::AtMost, 1.5),
    })
}
