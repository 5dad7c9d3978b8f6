//! `card`: modelled flash devices in files.

mod fit;
#[cfg(unix)]
mod serve;

use std::{path::PathBuf, sync::OnceLock};

use anyhow::Result;
use flash::{Condition, Profile, ReplayTiming, verbs};

use crate::{render, size, suggested::Suggested};

/// Arguments of `card`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit card list
  flashkit card new sd.card --profile transcend-16g-desktop
  flashkit card replay requests.fio --profile bergmann-stick
  flashkit card fit measured.txt -o mine.toml")]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

/// Operations on cards.
#[derive(clap::Subcommand)]
enum What {
    /// List the built-in profiles, one per line.
    #[command(after_help = "Examples:
  flashkit card list
  flashkit card list --json | jq -r '.[].name'")]
    List,
    /// Print a profile: a built-in one, one from a file, or a card's.
    #[command(after_help = "Examples:
  flashkit card show transcend-16g-desktop
  flashkit card show sd.card > mine.toml")]
    Show {
        /// Name of a profile, a profile's file, or a card.
        #[arg(value_parser = profiles(), hide_possible_values = true)]
        profile: String,
    },
    /// Make a card.
    #[command(after_help = "Examples:
  flashkit card new sd.card --profile transcend-16g-desktop
  flashkit card new small.card --profile mine.toml --size 256M --preconditioned

The card is two files: FILE holds its data, and FILE.card its profile, mapping and counters.")]
    New {
        /// The file to make.
        file: PathBuf,
        /// Name of a profile, or its file.
        #[arg(short, long, value_parser = profiles(), hide_possible_values = true)]
        profile: String,
        /// Size, instead of the profile's.
        #[arg(long, value_parser = size::parse)]
        size: Option<u64>,
        /// Start as if every address had been written once, as measurements require.
        #[arg(long)]
        preconditioned: bool,
    },
    /// Serve a card over NBD until interrupted.
    #[cfg(unix)]
    Serve(serve::Args),
    /// Replay recorded requests on a new card, and print its counters.
    #[command(after_help = "Examples:
  flashkit card replay requests.fio --profile bergmann-stick
  flashkit card replay requests.blkparse --profile mine.toml --preconditioned --json")]
    Replay {
        /// The requests: lines of JSON, blkparse's text, or a log of fio.
        trace: PathBuf,
        /// Name of a profile, or its file.
        #[arg(short, long, value_parser = profiles(), hide_possible_values = true)]
        profile: String,
        /// Start as if every address had been written once.
        #[arg(long)]
        preconditioned: bool,
        /// Issue each request at its recorded time, not as soon as the previous one is done.
        #[arg(long)]
        keep_times: bool,
    },
    /// Make a profile from measured rates.
    Fit(fit::FitArgs),
    /// Show measured rates beside those of a profile.
    Compare(fit::CompareArgs),
    /// Print a card's counters.
    #[command(after_help = "Examples:
  flashkit card stats sd.card
  flashkit card stats sd.card --json | jq .write_amplification")]
    Stats {
        /// The card.
        file: PathBuf,
    },
}

/// Parses the name of a profile, or a file. The names are suggested.
pub fn profiles() -> Suggested {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    Suggested(|| {
        let names = NAMES.get_or_init(|| Profile::built_in().into_iter().map(|it| it.name).collect());
        names.iter().map(String::as_str).collect()
    })
}

/// Runs the operation.
pub fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::List => {
            let listed = verbs::list();
            render::print(&listed, args.json, |listed, out| {
                listed.iter().try_for_each(|line| writeln!(out, "{line}"))
            })
        }
        What::Show { profile } => {
            let profile = verbs::profile(profile)?;
            render::print(&profile, args.json, |profile, out| {
                write!(out, "{}", profile.to_toml())?;
                match &profile.assumed()[..] {
                    [] => Ok(()),
                    assumed => {
                        writeln!(out, "\n# Assumed, not measured or published: {}.", assumed.join(", "))
                    }
                }
            })
        }
        What::New { file, profile, size, preconditioned } => {
            let how = verbs::NewCard { size_bytes: *size, condition: Condition::from(*preconditioned) };
            Ok(verbs::new(file, verbs::profile(profile)?, how)?)
        }
        #[cfg(unix)]
        What::Serve(args) => serve::run(args),
        What::Replay { trace, profile, preconditioned, keep_times } => {
            let profile = verbs::profile(profile)?;
            let timing = if *keep_times { ReplayTiming::AsRecorded } else { ReplayTiming::BackToBack };
            let stats = verbs::replay(profile, trace, Condition::from(*preconditioned), timing)?;
            render::print(&stats, args.json, |stats, out| write!(out, "{}", stats.to_text()))
        }
        What::Fit(own) => fit::run(own, args.json.into()),
        What::Compare(own) => fit::compare(own, args.json.into()),
        What::Stats { file } => {
            let stats = verbs::stats(file)?;
            render::print(&stats, args.json, |stats, out| write!(out, "{}", stats.to_text()))
        }
    }
}
