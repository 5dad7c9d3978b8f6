//! `probe`: a card's properties and how to format it.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use block::{Device, Export, OpenOptions, in_use};
use flash::{
    Card, CardFile, Clock, Condition, Pace, Profile, WallClock,
    probe::{Findings, Options, probe},
    verbs,
};
use image::{Image, Source};

use super::advised::Purpose;
use crate::{
    failure,
    host::{Address, Client},
    interrupt::Outcome,
    progress::{self, Verbosity},
    render, size,
};

/// Arguments of `probe`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit probe /dev/mmcblk0
  flashkit probe /dev/sdX --write --html report.html
  flashkit probe /dev/sdX --write --for databases
  flashkit probe bergmann-stick --write
  flashkit probe unix:/tmp/sd.sock --write -y   # of card serve --realtime")]
pub struct Args {
    /// A block device, a file, a partition of one (FILE#2), a card, a profile or its file, or an NBD server (unix:PATH, HOST:PORT or its
    /// URI).
    target: String,
    /// Write as well, which finds erase blocks. Destroys everything on the device.
    #[arg(long)]
    write: bool,
    /// Do not ask before writing.
    #[arg(short, long)]
    yes: bool,
    /// Maximum number of bytes to write.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = size::parse)]
    budget: u64,
    /// Time limit in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    time: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a page with plots of the measurements.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the profile of a card with the same behaviour, for card new.
    #[arg(long, value_name = "FILE", requires = "write")]
    profile: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    purpose: Purpose,
}

/// Probes the card.
pub fn run(args: &Args) -> Result<()> {
    let subject = Subject::find(&args.target)?;
    if args.write {
        subject.agree(args)?;
    }
    let options = Options {
        write: args.write,
        budget_bytes: args.budget,
        budget_ns: Duration::from_secs(args.time).as_nanos() as u64,
        seed: args.seed,
    };
    let verbosity = args.json.into();
    let findings = args.purpose.advise(subject.look(&args.target, options, verbosity)?, verbosity)?;
    if let Some(path) = &args.profile {
        let profile = findings.profile("probed").with_context(|| args.target.clone())?;
        std::fs::write(path, profile.to_toml()).with_context(|| path.display().to_string())?;
    }
    if let Some(html) = &args.html {
        std::fs::write(html, findings.to_html(&args.target)).with_context(|| html.display().to_string())?;
    }
    render::print(&findings, args.json, |findings, out| write!(out, "{}", findings.to_text()))
}

/// Probes the subject that a source names: of a part of an image only the part. The findings have the best shape for a
/// purpose.
pub fn look(source: &Source, options: Options, purpose: &Purpose, verbosity: Verbosity) -> Result<Findings> {
    let target = source.to_string();
    let subject = match source.is_part() {
        true => Subject::Device(source.clone()),
        false => Subject::find(&target)?,
    };
    purpose.advise(subject.look(&target, options, verbosity)?, verbosity)
}

/// The subject of a probe.
enum Subject {
    /// An empty modelled card in memory, discarded afterwards.
    Profile(Box<Profile>),
    /// A modelled card in a file.
    Card(PathBuf),
    /// The device of an NBD server.
    Served(Address),
    /// A block device, a file, or a part of one.
    Device(Source),
}

impl Subject {
    /// Existing files take precedence over names: a file may be called like a profile.
    fn find(target: &str) -> Result<Subject> {
        let (source, path) = (Source::parse(target), Path::new(target));
        if source.is_part() {
            return Ok(Subject::Device(source));
        }
        if path.try_exists().with_context(|| target.to_owned())? {
            if CardFile::is_at(path) {
                return Ok(Subject::Card(path.to_path_buf()));
            }
            let profile = if path.is_file() { verbs::profile_in(path).ok() } else { None };
            let device = || Subject::Device(source);
            return Ok(profile.map_or_else(device, |profile| Subject::Profile(Box::new(profile))));
        }
        if let Ok(profile) = Profile::named(target) {
            return Ok(Subject::Profile(Box::new(profile)));
        }
        match target.parse() {
            Ok(address) => Ok(Subject::Served(address)),
            Err(_) => bail!(
                "{target}: no such file or device, no profile (flashkit card list shows those), and no NBD \
                 address (unix:PATH, HOST:PORT on this machine)"
            ),
        }
    }

    fn look(&self, target: &str, options: Options, verbosity: Verbosity) -> Result<Findings> {
        let _outcome = Outcome::new(match (self, options.write) {
            (Subject::Profile(_), _) | (_, false) => format!("{target}: nothing was written"),
            (_, true) => format!("{target}: a part of its content is lost"),
        });
        match self {
            Subject::Profile(profile) => {
                let card = Card::new(Profile::clone(profile), Condition::Preconditioned);
                measure(target, options, verbosity, &card, &card)
            }
            Subject::Card(path) => {
                let file = CardFile::open(path, Pace::Virtual)?;
                let card = file.card().clone();
                let findings = measure(target, options, verbosity, &*card, &*card)?;
                file.close()?;
                Ok(findings)
            }
            Subject::Served(address) => {
                let device = Client::connect(address).with_context(|| target.to_owned())?;
                // Its answers come at the speed of this machine, so all findings would be about that.
                if device.description().is_some_and(|text| text.ends_with(flash::VIRTUAL_CLOCK)) {
                    bail!(
                        "{target}: a modelled card with a virtual clock, so its requests take no time here; \
                         serve it with card serve --realtime, or probe its file"
                    );
                }
                measure(target, options, verbosity, &device, &WallClock::start())
            }
            Subject::Device(source) => {
                let image = Image::open(source, OpenOptions { write: options.write, direct: true });
                let device = image.with_context(|| target.to_owned())?.device();
                measure(target, options, verbosity, &*device, &WallClock::start())
            }
        }
    }

    /// Refuses a subject that is in use, and asks before anything is destroyed.
    fn agree(&self, args: &Args) -> Result<()> {
        let file = match self {
            Subject::Profile(_) => return Ok(()),
            Subject::Served(_) => None,
            Subject::Card(path) => Some(path.as_path()),
            Subject::Device(source) => Some(source.path()),
        };
        if let Some(path) = file {
            if let Some(user) = in_use(path).with_context(|| args.target.clone())? {
                bail!("{}: {user}; nothing was written", args.target);
            }
        }
        if args.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            bail!("{}: --write destroys its content; confirm with -y", args.target);
        }
        let question = format!("Everything on {} will be destroyed. Type yes to continue: ", args.target);
        io::stderr().write_all(failure::plain(&question).as_bytes())?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if answer.trim() != "yes" {
            bail!("{}: nothing was written", args.target);
        }
        Ok(())
    }
}

fn measure(
    target: &str,
    options: Options,
    verbosity: Verbosity,
    device: &dyn Device,
    clock: &dyn Clock,
) -> Result<Findings> {
    let bar = progress::steps(1000, verbosity);
    let findings = probe(device, clock, options, &mut |what, share| {
        bar.set_position((share * 1000.0) as u64);
        bar.set_message(what.to_owned());
    })
    .with_context(|| target.to_owned())?;
    bar.finish_and_clear();
    Ok(findings)
}
