//! Common parts of `study` and `bench`.

use anyhow::{Context, Result};
use lab::{experiment::Experiment, scale::Scale, stop::Stop};

use clap::builder::TypedValueParser;

pub use crate::interrupt::INTERRUPTED;
use crate::{size, suggested::Suggested};

/// Sizes of the experiments.
#[derive(clap::Args)]
pub struct Sizes {
    /// Use the original experiments' sizes.
    #[arg(long, conflicts_with = "size")]
    pub full: bool,
    /// Size of the file of buffered writes and reads; everything else is in proportion. Originally 1G.
    #[arg(long, default_value = "128M", value_parser = size::parse)]
    pub size: u64,
    /// Size of the file of writes with fsync, instead of one in proportion. Originally 100M.
    #[arg(long, value_parser = size::parse)]
    pub fsync_size: Option<u64>,
}

impl Sizes {
    /// Returns the sizes for each experiment.
    pub fn scale(&self) -> Scale {
        let scale = if self.full { Scale::full() } else { Scale::of_file(self.size) };
        self.fsync_size.map_or(scale, |bytes| scale.with_fsync(bytes))
    }
}

/// Parses the name or number of an experiment. The names are suggested.
pub fn experiments() -> impl TypedValueParser<Value = Experiment> {
    Suggested(|| Experiment::ALL.map(Experiment::name).to_vec()).try_map(|name| experiment(&name))
}

/// Returns the experiment of a name or number.
pub fn experiment(name: &str) -> Result<Experiment, String> {
    Experiment::named(name).ok_or_else(|| {
        let all: Vec<String> =
            Experiment::ALL.iter().map(|one| format!("{} {}", one.number(), one.name())).collect();
        format!("there are {}", all.join(", "))
    })
}

/// Returns a stop request that Ctrl-C sets. A second Ctrl-C ends the process at once.
pub fn stop_on_interrupt() -> Result<Stop> {
    let stop = Stop::default();
    let wish = stop.clone();
    ctrlc::set_handler(move || {
        if wish.is_wished() {
            std::process::exit(i32::from(INTERRUPTED));
        }
        wish.wish();
    })
    .context("waiting for an interrupt")?;
    Ok(stop)
}
