//! The engine on a device in memory: results of `cargo bench -p f2fs`.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{
    Line,
    Wanted::{self, AtLeast, AtMost, Told},
};
use crate::{step::Step, workspace::root};

/// Expectations for the lines. Other lines are only reported.
const WANTED: [(&str, Wanted); 7] = [
    ("sequential write of 1 MiB pieces", AtLeast(2.0)),
    ("small files created, examined and removed", AtLeast(100_000.0)),
    ("random 4 KiB overwrites, all checkpoints counted", AtLeast(400_000.0)),
    ("fsync of a 4 KiB overwrite: blocks written", AtMost(2.0)),
    ("fsync of a 4 KiB overwrite: flushes", AtMost(1.0)),
    ("checkpoint of 20,000 inodes: longest wait of a reader", AtMost(10.0)),
    ("opening a clean 1 TiB volume", AtMost(99.0)),
];

#[derive(Deserialize)]
struct Record {
    what: String,
    figure: f64,
    unit: String,
}

/// Runs the benchmarks.
pub fn lines() -> Result<Vec<Line>> {
    let step = Step::begin("the engine on a device in memory");
    let lines = told("f2fs", "engine", &WANTED)?;
    step.end();
    Ok(lines)
}

/// Runs a benchmark of a package that prints its results as lines of JSON.
pub(super) fn told(package: &str, bench: &str, wanted: &[(&str, Wanted)]) -> Result<Vec<Line>> {
    let run = Command::new("cargo")
        .args(["bench", "--quiet", "-p", package, "--bench", bench])
        .current_dir(root())
        .output()
        .context("cannot start cargo")?;
    if !run.status.success() {
        bail!("cargo bench: {}\n{}", run.status, String::from_utf8_lossy(&run.stderr));
    }
    let text = String::from_utf8(run.stdout)?;
    text.lines().filter(|line| line.starts_with('{')).map(|text| line(text, wanted)).collect()
}

fn line(text: &str, wanted: &[(&str, Wanted)]) -> Result<Line> {
    let told: Record = serde_json::from_str(text).with_context(|| text.to_string())?;
    let wanted = wanted.iter().find(|(what, _)| *what == told.what).map_or(Told, |(_, wanted)| *wanted);
    Ok(Line { what: told.what.into(), figure: told.figure, unit: told.unit.into(), spread: None, wanted })
}
