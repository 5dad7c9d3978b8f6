//! `make bench`: flashkit's costs as ratios to a peer in the same run.
//!
//! Machines are noisy, so only figures of one run are compared with each other. Each line states the
//! expectation for it. There is one file per subject.

mod device;
mod engine;
mod mount;
mod tools;

use std::borrow::Cow;

use anyhow::Result;

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

/// Runs all benchmarks and prints their lines.
///
/// # Errors
/// A program fails. A figure that misses its expectation is not an error.
pub fn bench() -> Result<()> {
    let dir = tempfile::tempdir_in(var("bench")?)?;
    let mut lines = tools::lines(dir.path())?;
    lines.extend(mount::lines()?);
    interrupt::check()?;
    lines.extend(engine::lines()?);
    interrupt::check()?;
    lines.extend(device::lines()?);
    println!();
    for line in &lines {
        line.print();
    }
    Ok(())
}
