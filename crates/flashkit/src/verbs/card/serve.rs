//! `card serve`: a card as an NBD server.

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
};

use anyhow::{Context, Result};
use block::nbd::Address;
use flash::{TraceFormat, verbs};

use crate::notice::notice;

/// Arguments of `card serve`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit card serve sd.card --nbd unix:/tmp/sd.sock
  nbdcopy image.img 'nbd+unix:///?socket=/tmp/sd.sock'
  flashkit card serve sd.card --nbd 127.0.0.1:10809 --faults plan.toml --trace requests.fio")]
pub struct Args {
    /// The card.
    file: PathBuf,
    /// Address of the server: unix:PATH, or HOST:PORT on loopback.
    #[arg(long, value_name = "ADDRESS")]
    nbd: Address,
    /// Take as long as the card would, for clients that only know the wall clock.
    #[arg(long)]
    realtime: bool,
    /// Faults to inject, as TOML: seed, power_cut_at, unreadable_bytes, loses_mapping, drops_flushes,
    /// jitter, stall_chance, stall_ns.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Record the requests: FILE.blkparse as blkparse prints them, FILE.fio as fio logs them, any other
    /// name as lines of JSON.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Serves the card until an interrupt.
pub fn run(args: &Args) -> Result<()> {
    let (send, interrupted) = mpsc::channel();
    ctrlc::set_handler(move || {
        let _ = send.send(());
    })
    .context("waiting for an interrupt")?;
    let file = &args.file;
    let faults = args.faults.as_deref().map(verbs::fault_plan).transpose()?.unwrap_or_default();
    let how = verbs::Serve { real_time: args.realtime, faults, trace: args.trace.is_some() };
    let serving = verbs::serve(file, &args.nbd, how)?;
    notice!("{}: served at {}; Ctrl-C ends it", file.display(), serving.uri());
    let _ = interrupted.recv();
    let card = serving.card().clone();
    if !card.with_model(|model| model.is_powered()) {
        notice!("{}: the power was cut as planned, and is on again", file.display());
    }
    let stopped = serving.stop();
    if let Some(path) = &args.trace {
        let text = card.stop_trace().to_text(format_of(path));
        std::fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(stopped?)
}

/// Returns the format of a trace, according to its file's name.
fn format_of(path: &Path) -> TraceFormat {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("blkparse") => TraceFormat::Blkparse,
        Some("fio") => TraceFormat::FioIolog,
        _ => TraceFormat::Json,
    }
}
