//! `make bench`: flashkit's costs as ratios to a peer in the same run.
//!
//! Machines are noisy, so only figures of one run are compared with each other. Each line states the
//! expectation for it. There is one file per subject.

mod device;
mod engine;
mod many_files;
mod mount;
mod tools;
mod trees;
mod waits;

use std::borrow::Cow;

use anyhow::Result;
use clap::ValueEnum;

use crate::{interrupt, workspace::var};

/// One line of the result.
struct Line {
    what: Cow<'static, str>,
    figure: f64,
    unit: Cow<'static, str>,
    /// Minimum and maximum of several runs, if the figure is their median.
    spread: Option<(f64, f64)>,
    wanted: Wanted,
}

/// Expectation for a figure.
#[derive(Clone, Copy)]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    /// No expectation: the figure is only reported.
    Told,
}

impl Line {
    fn new(what: impl Into<Cow<'static, str>>, figure: f64, unit: &'static str, wanted: Wanted) -> Line {
        Line { what: what.into(), figure, unit: unit.into(), spread: None, wanted }
    }

    /// Makes a line with the median of several runs, and their spread.
    fn median(
        what: impl Into<Cow<'static, str>>,
        mut figures: Vec<f64>,
        unit: &'static str,
        wanted: Wanted,
    ) -> Line {
        figures.sort_by(f64::total_cmp);
        let spread = Some((figures[0], figures[figures.len() - 1]));
        Line { spread, ..Line::new(what, figures[figures.len() / 2], unit, wanted) }
    }

    fn print(&self) {
        let (wish, holds) = match self.wanted {
            Wanted::AtLeast(bound) => (format!("(wanted: at least {bound})"), self.figure >= bound),
            Wanted::AtMost(bound) => (format!("(wanted: at most {bound})"), self.figure <= bound),
            Wanted::Told => (String::new(), true),
        };
        let verdict = if holds { "" } else { "   MISSED" };
        let spread = self.spread.map_or(String::new(), |(least, most)| format!("{least:.2} to {most:.2}"));
        println!("{:52} {:>12.2} {:11} {spread:24} {wish}{verdict}", self.what, self.figure, self.unit);
    }
}

/// Subjects of benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// The command on whole trees.
    Tools,
    /// Costs of a mount.
    Mounts,
    /// Trees of small files in a mount, and two threads beside one.
    Trees,
    /// Waits of readers in a mount.
    Waits,
    /// The engine in process.
    Engine,
    /// Modelled cards.
    Devices,
}

/// Runs all benchmarks, or those of one subject, and prints their lines.
///
/// # Errors
/// A program fails. A figure that misses its expectation is not an error.
pub fn bench(only: Option<Subject>) -> Result<()> {
    let dir = tempfile::tempdir_in(var("bench")?)?;
    let mut lines = Vec::new();
    for subject in
        Subject::value_variants().iter().filter(|subject| only.is_none_or(|only| only == **subject))
    {
        interrupt::check()?;
        lines.extend(match subject {
            Subject::Tools => tools::lines(dir.path())?,
            Subject::Mounts => mount::lines()?,
            Subject::Trees => trees::lines()?,
            Subject::Waits => waits::lines()?,
            Subject::Engine => engine::lines()?,
            Subject::Devices => device::lines()?,
        });
    }
    println!();
    for line in &lines {
        line.print();
    }
    Ok(())
}
