//! What `study` and `bench` have in common.

use anyhow::{Context, Result};
use lab::{experiment::Experiment, scale::Scale, stop::Stop};

use clap::builder::TypedValueParser;

pub use crate::interrupt::INTERRUPTED;
use crate::{size, suggested::Suggested};

/// How large everything is.
#[derive(clap::Args)]
pub struct Sizes {
    /// The originals' sizes.
    #[arg(long, conflicts_with = "size")]
    pub full: bool,
    /// Size of the file of buffered writes and reads; everything else in proportion. Originally 1G.
    #[arg(long, default_value = "128M", value_parser = size::parse)]
    pub size: u64,
    /// Another size of the file of writes with fsync. Originally 100M.
    #[arg(long, value_parser = size::parse)]
    pub fsync_size: Option<u64>,
}

impl Sizes {
    /// What that means for each experiment.
    pub fn scale(&self) -> Scale {
        let scale = if self.full { Scale::full() } else { Scale::of_file(self.size) };
        self.fsync_size.map_or(scale, |bytes| scale.with_fsync(bytes))
    }
}

/// Takes the name or number of an experiment.
pub fn experiments() -> impl TypedValueParser<Value = Experiment> {
    Suggested(|| Experiment::ALL.map(Experiment::name).to_vec()).try_map(|name| experiment(&name))
}

/// The experiment of a name or number.
fn experiment(name: &str) -> Result<Experiment, String> {
    Experiment::named(name).ok_or_else(|| {
        let all: Vec<String> =
            Experiment::ALL.iter().map(|one| format!("{} {}", one.number(), one.name())).collect();
        format!("there are {}", all.join(", "))
    })
}

/// A wish to stop that Ctrl-C makes; a second Ctrl-C does not wait for it to be heard.
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
