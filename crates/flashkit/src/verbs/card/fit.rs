//! `card fit` and `card compare`: profiles from measured rates, and beside them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use flash::{
    fit::HoldOut,
    verbs::{self, RowFiles, Trials},
};

use super::profiles;
use crate::{
    progress::{self, Verbosity},
    render::{self, Format},
    size,
};

/// The rows.
#[derive(clap::Args)]
struct Rows {
    /// Files with measured rates: flashbench's output, fio's JSON, iozone's tables, lines of hdparm and dd, logs of
    /// wirenboard/sdcard_benchmark, or CSV (op, order, size, units, depth, rate).
    #[arg(required = true, value_name = "ROWS")]
    rows: Vec<PathBuf>,
    /// Name of the card, if the files have several.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Allocation unit that was written in full (flashbench's --erasesize), instead of that of the files.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    unit: Option<u64>,
}

impl Rows {
    fn files(&self, size_bytes: Option<u64>) -> RowFiles {
        RowFiles { paths: self.rows.clone(), only: self.only.clone(), unit_bytes: self.unit, size_bytes }
    }
}

/// Arguments of `card fit`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit card fit flashbench.txt -o mine.toml
  flashkit card fit fio.json hdparm.txt --size 32GB -o mine.toml
  flashkit card fit cards-measured.txt --only result_28 --hold-out 50% --trials 5

The report names the rows that the model cannot reach, the figures that the rows do not determine, and predictions
for other conditions. DEVICE-MODEL.md of the
installed documents has an example of each format.")]
pub struct FitArgs {
    #[command(flatten)]
    rows: Rows,
    /// The profile's file to write.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Size of the card.
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Judge the fit by rows that it has not seen: a share of them (50% or 0.5), or a number. The profile is
    /// fitted to all rows.
    #[arg(long, value_name = "SHARE|N", value_parser = held_out)]
    hold_out: Option<HoldOut>,
    /// Seed of the choice of the rows that are left out.
    #[arg(long, default_value_t = 1, requires = "hold_out")]
    seed: u64,
    /// Number of judgements, each with the next seed.
    #[arg(long, default_value_t = 1, requires = "hold_out", value_parser = clap::value_parser!(u64).range(1..=1000))]
    trials: u64,
}

/// Arguments of `card compare`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit card compare mine.toml flashbench.txt
  flashkit card compare survey-class10 cards-measured.txt --only result_28 --json")]
pub struct CompareArgs {
    /// Name of a profile, a profile's file, or a card.
    #[arg(value_parser = profiles(), hide_possible_values = true)]
    card: String,
    #[command(flatten)]
    rows: Rows,
}

/// Parses the rows to leave out.
fn held_out(text: &str) -> Result<HoldOut, String> {
    let refused = || format!("{text:?} is neither a share such as 50% or 0.5, nor a number of rows");
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().map_err(|_| refused())?;
        return share(percent / 100.0).ok_or_else(refused);
    }
    if text.contains('.') {
        return text.parse().ok().and_then(share).ok_or_else(refused);
    }
    let count: usize = text.parse().map_err(|_| refused())?;
    if count == 0 { Err(refused()) } else { Ok(HoldOut::Count(count)) }
}

fn share(share: f64) -> Option<HoldOut> {
    (share > 0.0 && share < 1.0).then_some(HoldOut::Share(share))
}

/// Programs that read JSON get no progress.
fn verbosity(format: Format) -> Verbosity {
    Verbosity::from(format == Format::Json)
}

/// Fits a profile.
pub fn run(args: &FitArgs, format: Format) -> Result<()> {
    let trials = args.hold_out.map(|how| Trials { how, seed: args.seed, count: args.trials });
    let bar = progress::steps(1000, verbosity(format));
    let found = verbs::fit(&args.rows.files(args.size), trials, &mut |share| {
        bar.set_position((share * 1000.0) as u64);
    });
    bar.finish_and_clear();
    let (profile, report) = found?;
    if let Some(path) = &args.output {
        std::fs::write(path, profile.to_toml()).with_context(|| path.display().to_string())?;
    }
    render::print(&report, format, |report, out| write!(out, "{}", report.to_text()))
}

/// Compares rows with a profile.
pub fn compare(args: &CompareArgs, format: Format) -> Result<()> {
    let profile = verbs::profile(&args.card)?;
    let bar = progress::steps(1000, verbosity(format));
    let found = verbs::compare_card(&profile, &args.rows.files(None), &mut |share| {
        bar.set_position((share * 1000.0) as u64);
    });
    bar.finish_and_clear();
    render::print(&found?, format, |found, out| write!(out, "{}", found.to_text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_numbers_of_rows_are_told_apart() {
        assert_eq!(held_out("50%"), Ok(HoldOut::Share(0.5)));
        assert_eq!(held_out("0.25"), Ok(HoldOut::Share(0.25)));
        assert_eq!(held_out("20"), Ok(HoldOut::Count(20)));
        for wrong in ["0", "0%", "100%", "1.0", "-1", "half", "NaN.0"] {
            assert!(held_out(wrong).is_err(), "{wrong}");
        }
    }
}
