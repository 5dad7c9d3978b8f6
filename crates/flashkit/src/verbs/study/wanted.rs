//! The experiments that a command line names.

use clap::builder::TypedValueParser;
use lab::{experiment::Experiment, promises};

use super::super::lab_run;
use crate::suggested::Suggested;

/// A named experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// One that measures time.
    Timed(Experiment),
    /// Power cuts.
    PowerCuts,
}

/// Parses the name or number of an experiment. The names are suggested.
pub fn experiments() -> impl TypedValueParser<Value = Wanted> {
    let names = || Experiment::ALL.into_iter().map(Experiment::name).chain([promises::NAME]).collect();
    Suggested(names).try_map(|name| match name == promises::NAME || name == promises::NUMBER.to_string() {
        true => Ok(Wanted::PowerCuts),
        false => lab_run::experiment(&name).map(Wanted::Timed),
    })
}
