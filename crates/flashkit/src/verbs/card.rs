//! `card`: modelled flash devices in files.

use std::{path::PathBuf, sync::mpsc};

use anyhow::{Context, Result};
use block::nbd::Address;
use flash::verbs;

use crate::{render, size};

/// Arguments of `card`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit card list
  flashkit card new sd.card --profile transcend-16g-desktop
  flashkit card serve sd.card --nbd unix:/tmp/sd.sock")]
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
            render::print(&profile, args.json, |profile, out| write!(out, "{}", profile.to_toml()))
        }
        What::New { file, profile, size, preconditioned } => {
            let how = verbs::NewCard { size_bytes: *size, preconditioned: *preconditioned };
            Ok(verbs::new(file, verbs::profile(profile)?, how)?)
        }
        What::Serve { file, nbd, realtime } => {
            let (send, interrupted) = mpsc::channel();
            ctrlc::set_handler(move || {
                let _ = send.send(());
            })
            .context("waiting for an interrupt")?;
            let serving = verbs::serve(file, nbd, *realtime)?;
            eprintln!("{}: served at {}; Ctrl-C ends it", file.display(), serving.uri());
            let _ = interrupted.recv();
            Ok(serving.stop()?)
        }
        What::Stats { file } => {
            let stats = verbs::stats(file)?;
            render::print(&stats, args.json, |stats, out| write!(out, "{}", stats.to_text()))
        }
    }
}
