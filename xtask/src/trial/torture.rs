//! Long random tests: random sequences compared with the model, with power cuts, or in turns with Linux, for
//! any time. `make test` runs the first seeds.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use model::{
    Case, Setup, Tally, power_cut,
    sequence::{self, LastCheck},
};

use crate::{interrupt, trial::linux_recovery, trial::ping_pong};

/// Operations per sequence compared with the model.
const SEQUENCE: usize = 1500;

/// End of a random test.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Limits {
    /// End after this many seconds
    #[arg(long)]
    pub seconds: Option<u64>,
    /// End after this many operations or power cuts
    #[arg(long)]
    pub steps: Option<u64>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Limits {
    /// Returns true if the limit is reached although not all kinds have run with this seed.
    fn cut_short(&self, started: Instant, done: u64) -> bool {
        self.seconds.is_some_and(|most| started.elapsed() >= Duration::from_secs(most))
            || self.steps.is_some_and(|most| done >= most)
    }

    /// Returns true if this was the last seed. Without limits, one seed is enough.
    fn reached(&self, started: Instant, done: u64) -> bool {
        self.cut_short(started, done) || (self.seconds, self.steps) == (None, None)
    }
}

/// Runs sequences compared with the model on volumes of the kinds `names`, or all.
///
/// # Errors
/// The first difference, as operations for [`replay`]; an unknown name.
pub fn model(limits: Limits, names: &[String], out: &mut impl Write) -> Result<()> {
    let kinds = [Setup::all(), Setup::encrypted()].concat();
    let setups = chosen(names, kinds, |setup| setup.name)?;
    let (started, mut done, mut tally) = (Instant::now(), 0, Tally::default());
    for seed in limits.seed.. {
        for setup in &setups {
            interrupt::check()?;
            match sequence::torture(setup, seed, SEQUENCE) {
                Ok(counted) => tally.add(&counted),
                Err(report) => bail!("{report}"),
            }
            done += SEQUENCE as u64;
            if limits.cut_short(started, done) {
                break;
            }
        }
        let seconds = started.elapsed().as_secs();
        writeln!(
            out,
            "seed {seed}: {done} operations in {seconds} s, no difference, fsck.f2fs finds no fault"
        )?;
        out.flush()?;
        if limits.reached(started, done) {
            break;
        }
    }
    writeln!(out, "{tally}")?;
    Ok(())
}

/// Runs operations, one per line, as printed by a failure.
pub fn replay(name: &str, text: &str) -> Result<()> {
    let kinds = [Setup::all(), Setup::encrypted()].concat();
    let setup = chosen(&[name.to_owned()], kinds, |setup| setup.name)?.remove(0);
    let lines = text.lines().filter(|line| !line.is_empty());
    let ops: Vec<guest::Op> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
    sequence::replay(&setup, &ops, LastCheck::Fsck)
}

/// Cuts the power in sequences of the cases `names`, or all.
///
/// # Errors
/// The first cut that leaves an invalid state; an unknown name.
pub fn power_cuts(limits: Limits, names: &[String], out: &mut impl Write) -> Result<()> {
    let cases = chosen(names, Case::all(), |case| case.name)?;
    let (started, mut done, mut tally) = (Instant::now(), 0, Tally::default());
    for seed in limits.seed.. {
        for case in &cases {
            interrupt::check()?;
            match power_cut::torture(&case.setup, seed, case.steps, case.mode) {
                Ok(tried) => {
                    done += tried.cuts;
                    tally.add(&tried.tally);
                    writeln!(out, "{}: seed {seed}, {tried}, {:?}", case.name, case.mode)?;
                    out.flush()?;
                }
                Err(report) => bail!("{report}"),
            }
            if limits.cut_short(started, done) {
                break;
            }
        }
        if limits.reached(started, done) {
            break;
        }
    }
    writeln!(out, "{tally}")?;
    writeln!(
        out,
        "{done} power cuts in {} s: all promised data was there, nothing was torn",
        started.elapsed().as_secs()
    )?;
    Ok(())
}

/// Cuts the power `cuts` times in one sequence of each of the cases `names`, or of all, and has Linux
/// recover.
///
/// # Errors
/// Linux recovers a different state than the engine; an unknown name.
pub fn recover(seed: u64, cuts: usize, names: &[String], out: &mut impl Write) -> Result<()> {
    let volumes = linux_recovery::recover(&chosen(names, Case::all(), |case| case.name)?, seed, cuts)?;
    writeln!(out, "seed {seed}: Linux recovers {volumes} volumes as we do")?;
    Ok(())
}

/// Plays `rounds` rounds with Linux on volumes of the kinds `names`, or all.
///
/// # Errors
/// The first disagreement; an unknown name.
pub fn ping_pong(rounds: u32, seed: u64, names: &[String], out: &mut impl Write) -> Result<()> {
    let (started, mut turns, mut unclean) = (Instant::now(), 0, 0);
    for setup in chosen(names, Setup::all(), |setup| setup.name)? {
        let context = || format!("{}, seed {seed}", setup.name);
        let tally = ping_pong::play(&setup, seed, rounds).with_context(context)?;
        writeln!(out, "{}: seed {seed}, {rounds} rounds, {tally}", setup.name)?;
        out.flush()?;
        turns += tally.turns;
        unclean += tally.unclean;
    }
    let seconds = started.elapsed().as_secs();
    writeln!(out, "{turns} turns, {unclean} of them with an unclean end, in {seconds} s: no difference")?;
    Ok(())
}

fn chosen<T>(names: &[String], all: Vec<T>, name_of: impl Fn(&T) -> &'static str) -> Result<Vec<T>> {
    let known: Vec<&str> = all.iter().map(&name_of).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("unknown name {name}; choose one of {}", known.join(", "));
    }
    Ok(all.into_iter().filter(|one| names.is_empty() || names.iter().any(|n| n == name_of(one))).collect())
}
