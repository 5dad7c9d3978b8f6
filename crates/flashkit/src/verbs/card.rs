//! `card`: modelled flash devices in files.

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
};

use anyhow::{Context, Result};
use block::nbd::Address;
use flash::{TraceFormat, verbs};

use crate::{render, size};

/// Arguments of `card`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit card list
  flashkit card new sd.card --profile transcend-16g-desktop
  flashkit card serve sd.card --nbd unix:/tmp/sd.sock
  flashkit card serve sd.card --nbd 127.0.0.1:10809 --faults plan.toml --trace requests.fio
  flashkit card replay requests.fio --profile bergmann-stick")]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

/// What can be done with cards.
#[derive(clap::Subcommand)]
enum What {
    /// List the built-in profiles, a line each.
    List,
    /// Print a profile: a built-in one, a file, or a card's.
    Show {
        /// Name of a profile, its file, or a card.
        profile: String,
    },
    /// Make a card.
    New {
        /// The file to make.
        file: PathBuf,
        /// Name of a profile, or its file.
        #[arg(short, long)]
        profile: String,
        /// Another size than the profile's.
        #[arg(long, value_parser = size::parse)]
        size: Option<u64>,
        /// As if every address had been written once, which is what measurements want.
        #[arg(long)]
        preconditioned: bool,
    },
    /// Serve a card over NBD until interrupted.
    Serve {
        /// The card.
        file: PathBuf,
        /// Where: unix:PATH or HOST:PORT, on loopback.
        #[arg(long, value_name = "ADDRESS")]
        nbd: Address,
        /// Take as long as the card would, for clients that only know the wall clock.
        #[arg(long)]
        realtime: bool,
        /// What goes wrong, as TOML: seed, power_cut_at, unreadable_bytes, loses_mapping, drops_flushes, jitter,
        /// stall_chance, stall_ns.
        #[arg(long, value_name = "FILE")]
        faults: Option<PathBuf>,
        /// Keep what is asked of the card: as blkparse prints it in FILE.blkparse, as fio logs it in FILE.fio, else
        /// as lines of JSON.
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
    },
    /// Ask a new card what was asked of another, and print what it counts.
    Replay {
        /// The requests: lines of JSON, blkparse's text, or a log of fio's.
        trace: PathBuf,
        /// Name of a profile, or its file.
        #[arg(short, long)]
        profile: String,
        /// As if every address had been written once.
        #[arg(long)]
        preconditioned: bool,
        /// Ask each at its own time, not as soon as the one before is done.
        #[arg(long)]
        keep_times: bool,
    },
    /// Print what a card has counted.
    Stats {
        /// The card.
        file: PathBuf,
    },
}

/// Does it.
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
            let how = verbs::NewCard { size_bytes: *size, preconditioned: *preconditioned };
            Ok(verbs::new(file, verbs::profile(profile)?, how)?)
        }
        What::Serve { file, nbd, realtime, faults, trace } => {
            let (send, interrupted) = mpsc::channel();
            ctrlc::set_handler(move || {
                let _ = send.send(());
            })
            .context("waiting for an interrupt")?;
            let faults = faults.as_deref().map(verbs::fault_plan).transpose()?.unwrap_or_default();
            let how = verbs::Serve { real_time: *realtime, faults, trace: trace.is_some() };
            let serving = verbs::serve(file, nbd, how)?;
            eprintln!("{}: served at {}; Ctrl-C ends it", file.display(), serving.uri());
            let _ = interrupted.recv();
            let card = serving.card().clone();
            if !card.with_model(|model| model.is_powered()) {
                eprintln!("{}: the power was cut, as planned; it is back on", file.display());
            }
            let stopped = serving.stop();
            if let Some(path) = trace {
                let text = card.stop_trace().to_text(format_of(path));
                std::fs::write(path, text).with_context(|| path.display().to_string())?;
            }
            Ok(stopped?)
        }
        What::Replay { trace, profile, preconditioned, keep_times } => {
            let profile = verbs::profile(profile)?;
            let stats = verbs::replay(profile, trace, *preconditioned, *keep_times)?;
            render::print(&stats, args.json, |stats, out| write!(out, "{}", stats.to_text()))
        }
        What::Stats { file } => {
            let stats = verbs::stats(file)?;
            render::print(&stats, args.json, |stats, out| write!(out, "{}", stats.to_text()))
        }
    }
}

/// The form of a trace, by its file's name.
fn format_of(path: &Path) -> TraceFormat {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("blkparse") => TraceFormat::Blkparse,
        Some("fio") => TraceFormat::FioIolog,
        _ => TraceFormat::Json,
    }
}
