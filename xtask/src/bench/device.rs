//! Modelled cards: results of `cargo bench -p flashkit-flash`, compared with fio's null engine in the same
//! run, which only counts requests.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{
    Line,
    Wanted::{self, AtLeast, AtMost, Told},
    engine,
};
use crate::step::Step;

/// Expectations for the lines. Other lines are only reported.
const WANTED: [(&str, Wanted); 9] = [
    (SHOWN, AtLeast(1e6)),
    ("survey-class10: 4 KiB writes in sequence", AtLeast(1e6)),
    ("survey-ssd: 4 KiB writes at random", AtLeast(1e6)),
    ("bergmann-stick: 4 KiB writes at random", AtLeast(1e6)),
    ("survey-class4: 4 KiB writes at random", AtLeast(1e6)),
    ("survey-usb-stick: 4 KiB writes at random", AtLeast(1e6)),
    ("survey-class10, full: 4 KiB writes at random", AtLeast(1e6)),
    ("a preconditioned card of 1 TiB, memory", AtMost(1.0)),
    ("the same with 1 GiB written at random, memory", AtMost(256.0)),
];
/// The line that is compared with fio's.
const SHOWN: &str = "survey-class10: 4 KiB writes at random";
const FIO_REQUESTS: &str = "--number_ios=3000000";

/// Runs the benchmarks.
pub fn lines() -> Result<Vec<Line>> {
    let step = Step::begin("modelled cards, and fio's null engine");
    let mut lines = engine::told("flashkit-flash", "device", &WANTED)?;
    let shown = lines
        .iter()
        .find(|line| line.what == SHOWN)
        .context("the output of cargo bench -p flashkit-flash lacks it")?
        .figure;
    let null = fio_null()?;
    step.end();
    lines.push(Line::new("fio, null engine: 4 KiB writes at random", null, "1/s", Told));
    lines.push(Line::new("that of survey-class10, of fio's", shown / null, "times", Told));
    Ok(lines)
}

/// Measures fio's requests per second of a core's time with the null engine.
fn fio_null() -> Result<f64> {
    let arguments =
        ["--name=null", "--ioengine=null", "--size=1T", "--bs=4k", "--rw=randwrite", "--norandommap"];
    let run = Command::new("fio")
        .args(arguments)
        .args([FIO_REQUESTS, "--gtod_reduce=1", "--output-format=json"])
        .output()
        .context("cannot start fio; scripts/setup installs it")?;
    if !run.status.success() {
        bail!("fio: {}\n{}", run.status, String::from_utf8_lossy(&run.stderr));
    }
    let told: serde_json::Value = serde_json::from_slice(&run.stdout).context("fio's JSON")?;
    let job = &told["jobs"][0];
    let figure = |value: &serde_json::Value| value.as_f64().context("the output of fio lacks a figure");
    let cores = (figure(&job["usr_cpu"])? + figure(&job["sys_cpu"])?) / 100.0;
    Ok(figure(&job["write"]["iops"])? / cores.max(0.01))
}
