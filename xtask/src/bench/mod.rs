//! `make bench`: what flashkit costs, side by side with a peer in the same run, as ratios.
//!
//! Machines are noisy: only figures of one run are compared with each other. Each line says what is wanted of it.
//! One file a subject.

mod device;
mod engine;
mod mount;
mod tools;

use std::borrow::Cow;

use anyhow::Result;

use crate::workspace::var;

/// One line of the result.
struct Line {
    what: Cow<'static, str>,
    figure: f64,
    unit: Cow<'static, str>,
    wanted: Wanted,
}

/// What a figure is held against.
#[derive(Clone, Copy)]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing: it is there to be known.
    Told,
}

impl Line {
    fn new(what: impl Into<Cow<'static, str>>, figure: f64, unit: &'static str, wanted: Wanted) -> Line {
        Line { what: what.into(), figure, unit: unit.into(), wanted }
    }

    fn print(&self) {
        let (wish, holds) = match self.wanted {
            Wanted::AtLeast(bound) => (format!("(wanted: at least {bound})"), self.figure >= bound),
            Wanted::AtMost(bound) => (format!("(wanted: at most {bound})"), self.figure <= bound),
            Wanted::Told => (String::new(), true),
        };
        let verdict = if holds { "" } else { "   MISSED" };
        println!("{:52} {:>12.2} {:11}  {wish}{verdict}", self.what, self.figure, self.unit);
    }
}

/// Runs all benchmarks and prints their lines.
///
/// # Errors
/// A program fails. A figure that misses what is wanted is no error: it is printed as it is.
pub fn bench() -> Result<()> {
    let dir = tempfile::tempdir_in(var("bench")?)?;
    let mut lines = tools::lines(dir.path())?;
    lines.extend(mount::lines()?);
    lines.extend(engine::lines()?);
    lines.extend(device::lines()?);
    println!();
    for line in &lines {
        line.print();
    }
    Ok(())
}
