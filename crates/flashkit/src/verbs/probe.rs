//! `probe`: what a card is, and how to format it.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use block::{Device, FileDevice, OpenOptions, in_use};
use flash::{
    Card, CardFile, Clock, Pace, WallClock,
    probe::{Findings, Options, probe},
    verbs,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{render, size};

/// Arguments of `probe`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit probe /dev/mmcblk0
  flashkit probe /dev/sdX --write --html report.html
  flashkit probe bergmann-stick --write")]
pub struct Args {
    /// A block device, a file, a card, or the name of a profile.
    target: String,
    /// Write too, which is what finds erase blocks. Destroys everything on the device.
    #[arg(long)]
    write: bool,
    /// Do not ask before writing.
    #[arg(short, long)]
    yes: bool,
    /// Bytes that may be written.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = size::parse)]
    budget: u64,
    /// Seconds that it may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    time: u64,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a page with plots of what was measured.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Probes.
pub fn run(args: &Args) -> Result<()> {
    let path = Path::new(&args.target);
    let findings = if !path.exists() {
        let card = Card::new(verbs::profile(&args.target)?, true);
        measure(args, &card, &card)?
    } else if CardFile::peek(path).is_ok() {
        let file = CardFile::open(path, Pace::Virtual)?;
        let card = file.card().clone();
        let findings = measure(args, &*card, &*card)?;
        file.close()?;
        findings
    } else {
        if args.write {
            agree(args, path)?;
        }
        let options = OpenOptions { write: args.write, direct: true };
        let device = FileDevice::open(path, options).with_context(|| args.target.clone())?;
        measure(args, &device, &WallClock::start())?
    };
    if let Some(html) = &args.html {
        std::fs::write(html, findings.to_html(&args.target)).with_context(|| html.display().to_string())?;
    }
    render::print(&findings, args.json, |findings, out| write!(out, "{}", findings.to_text()))
}

/// Refuses devices in use, and asks.
fn agree(args: &Args, path: &Path) -> Result<()> {
    if let Some(user) = in_use(path).with_context(|| args.target.clone())? {
        bail!("{}: {user}; nothing was written", args.target);
    }
    if args.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        bail!("{}: --write destroys what is on it; -y agrees to that", args.target);
    }
    eprint!("Everything on {} will be destroyed. Type yes to go on: ", args.target);
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() != "yes" {
        bail!("{}: nothing was written", args.target);
    }
    Ok(())
}

fn measure(args: &Args, device: &dyn Device, clock: &dyn Clock) -> Result<Findings> {
    let bar = if args.json || !io::stderr().is_terminal() {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(1000).with_style(
            ProgressStyle::with_template("{wide_bar} {percent} %  {msg}")
                .expect("the template is a constant"),
        )
    };
    let options = Options {
        write: args.write,
        budget_bytes: args.budget,
        budget_ns: Duration::from_secs(args.time).as_nanos() as u64,
        seed: args.seed,
    };
    let findings = probe(device, clock, options, &mut |what, share| {
        bar.set_position((share * 1000.0) as u64);
        bar.set_message(what.to_owned());
    })
    .with_context(|| args.target.clone())?;
    bar.finish_and_clear();
    Ok(findings)
}
