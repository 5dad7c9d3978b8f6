//! Time to fill a volume from a tree, compared with other tools.
//!
//! *Method*: the tree is read once before any measurement, so that every tool finds it in the page cache.
//! Each run makes a new image of the same size, and the disk is synced between runs, not within them. Times
//! are wall time. The result is the median run.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use lab::programs;
use serde::Serialize;

use crate::{
    step::Step,
    study::measure::Cost,
    workspace::{root, run},
};

/// Size of the images in MiB. The kernel's sources take 1.6 GiB of it.
pub const IMAGE_MIB: u64 = 2048;
/// Number of runs of each tool.
const RUNS: usize = 3;

/// One tool's row.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The tool.
    pub tool: &'static str,
    /// Time and memory.
    pub cost: Cost,
    /// Space of the image on the host's disk in bytes.
    pub image_bytes: u64,
    /// Wall time as a multiple of ours.
    pub ratio: f64,
}

/// A tool that makes an image of a tree.
struct Tool {
    name: &'static str,
    runs: usize,
    make: fn(&Path, &Path) -> Result<Cost>,
}

const TOOLS: [Tool; 3] = [
    Tool { name: "flashkit mkfs --from", runs: RUNS, make: flashkit },
    // It takes half a minute, and its times vary little.
    Tool { name: "mkfs.f2fs + sload.f2fs", runs: 1, make: sload },
    Tool { name: "mke2fs -d", runs: RUNS, make: mke2fs },
];

/// Builds the measured command together with xtask, as `make study` does. Built alone, the common crates
/// would be built again with different features.
pub fn build() -> Result<()> {
    let step = Step::begin("build flashkit (release)");
    let packages = ["-p", "flashkit", "-p", "xtask"];
    run(Command::new("cargo").args(["build", "--quiet", "--release"]).args(packages).current_dir(root()))?;
    step.end();
    Ok(())
}

/// Returns the path of the measured command.
pub fn our_program() -> PathBuf {
    root().join("target/release/flashkit")
}

/// Returns the image that our runs leave in `dir`.
pub fn our_image(dir: &Path) -> PathBuf {
    dir.join("0.img")
}

/// Lets each tool fill images in `dir` from a tree. Ours is the first row.
///
/// # Errors
/// A tool fails.
pub fn rows(tree: &Path, dir: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (n, tool) in TOOLS.iter().enumerate() {
        let step = Step::begin(&format!("{} (runs: {})", tool.name, tool.runs));
        let image = dir.join(format!("{n}.img"));
        let mut costs = Vec::new();
        for _ in 0..tool.runs {
            let _ = fs::remove_file(&image);
            rustix::fs::sync();
            costs.push((tool.make)(tree, &image).context(tool.name)?);
        }
        let image_bytes = fs::metadata(&image)?.blocks() * 512;
        rows.push(Row { tool: tool.name, cost: Cost::median(costs), image_bytes, ratio: 0.0 });
        step.end();
    }
    let ours = rows[0].cost.wall_s;
    for row in &mut rows {
        row.ratio = row.cost.wall_s / ours;
    }
    Ok(rows)
}

/// Prints the table.
pub fn print(rows: &[Row]) {
    println!(
        "{:24} {:>8} {:>8} {:>11} {:>11} {:>10}",
        "", "wall s", "cpu s", "memory MiB", "image MiB", "x our time"
    );
    for row in rows {
        println!(
            "{:24} {:>8.2} {:>8.2} {:>11.1} {:>11.0} {:>10.2}",
            row.tool,
            row.cost.wall_s,
            row.cost.cpu_s,
            mib(row.cost.memory_bytes),
            mib(row.image_bytes),
            row.ratio
        );
    }
}

fn flashkit(tree: &Path, image: &Path) -> Result<Cost> {
    Cost::of(
        Command::new(our_program())
            .arg("mkfs")
            .arg(image)
            .args(["--quiet", "--size", &format!("{IMAGE_MIB}M"), "--from"])
            .arg(tree),
    )
}

fn sload(tree: &Path, image: &Path) -> Result<Cost> {
    fs::File::create(image)?.set_len(IMAGE_MIB << 20)?;
    let made = Cost::of(programs::command("mkfs.f2fs").arg("-q").arg(image))?;
    let loaded = Cost::of(programs::command("sload.f2fs").arg("-P").arg("-f").arg(tree).arg(image))?;
    Ok(made.then(loaded))
}

fn mke2fs(tree: &Path, image: &Path) -> Result<Cost> {
    let size = format!("{IMAGE_MIB}M");
    Cost::of(programs::command("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(tree).arg(image).arg(size))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
