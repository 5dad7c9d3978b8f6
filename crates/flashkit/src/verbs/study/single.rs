//! One cell for a workflow engine, and the list of cells that such an engine reads.
//!
//! *Invariant*: a cell writes its own files and no others, so that any number of cells run at once on any number of
//! machines.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use lab::{
    expected::Expected,
    matrix::Matrix,
    plan::{Cell, Plan},
    record::{Record, Records},
    report,
    stop::Stop,
    study::{self, Attempt},
    vm::is_shortage,
};
use serde::Serialize;

use super::super::lab_run;
use crate::{notice::notice, render};

/// Exit code if another attempt may succeed: EX_TEMPFAIL of sysexits.h.
const TRY_AGAIN: u8 = 75;

/// A cell in the list.
#[derive(Serialize)]
struct Listed {
    /// Name of the cell.
    id: String,
    /// Command that runs it, as arguments.
    command: Vec<String>,
    /// Files that it reads.
    inputs: Vec<String>,
    /// File that it writes, in the directory of the study.
    record: String,
    expected_memory_bytes: u64,
    expected_seconds: f64,
}

/// Prints the cells of a plan.
pub fn list(plan: &Plan, matrix: Option<&Matrix>, format: render::Format) -> Result<()> {
    match format {
        render::Format::Text => {
            render::text(|out| plan.cells.iter().try_for_each(|cell| writeln!(out, "{}", cell.id())))
        }
        render::Format::Json => {
            let cells: Vec<Listed> = plan.cells.iter().map(|cell| listed(plan, cell, matrix)).collect();
            render::print(&cells, true, |_, _| Ok(()))
        }
    }
}

fn listed(plan: &Plan, cell: &Cell, matrix: Option<&Matrix>) -> Listed {
    let Expected { memory_bytes, seconds } = Expected::of(plan, cell);
    let text = |path: &Path| path.display().to_string();
    let mut inputs: Vec<String> = matrix.iter().flat_map(|it| &it.inputs).map(|path| text(path)).collect();
    if cell.file_system.kind != lab::systems::OURS {
        let programs = plan.programs_of(cell).into_iter();
        inputs.extend(programs.flat_map(|it| [text(&it.kernel), text(&it.agent)]));
    }
    Listed {
        id: cell.id(),
        command: command(std::env::args_os().map(|word| word.to_string_lossy().into_owned()), &cell.id()),
        inputs,
        record: Records::name(cell, plan.age_of(cell)),
        expected_memory_bytes: memory_bytes,
        expected_seconds: seconds,
    }
}

/// Returns the command line that runs one cell of the plan that this command line lists.
fn command(mut words: impl Iterator<Item = String>, id: &str) -> Vec<String> {
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--list" | "--json" => {}
            "--cell" => drop(words.next()),
            _ if word.starts_with("--cell=") => {}
            _ => kept.push(word),
        }
    }
    kept.into_iter().chain(["--cell".to_owned(), id.to_owned()]).collect()
}

/// Runs the only cell of a plan, unless its record exists, and prints its tables. The exit code is 0 once the record
/// exists, even if it states a failure of the file system: that is a result.
pub fn run(plan: &Plan, cell: &Cell, output: &Path) -> Result<ExitCode> {
    match attempt(plan, cell, output) {
        Err(error) if error.chain().any(is_passing) => {
            crate::failure::tell(&error);
            Ok(ExitCode::from(TRY_AGAIN))
        }
        other => other,
    }
}

fn attempt(plan: &Plan, cell: &Cell, output: &Path) -> Result<ExitCode> {
    let keep = || format!("{}: cannot store results", output.display());
    let records = Records::open(output).with_context(keep)?;
    let stop = lab_run::stop_on_interrupt()?;
    let id = cell.id();
    if study::is_done(plan, cell, &records, &Stop::default())? {
        notice!("{id}: its record exists");
    } else {
        match study::attempt(plan, cell, &stop).with_context(|| id.clone())? {
            Attempt::Ended(record) => {
                if let Some(failure) = &record.failure {
                    notice!("{id}: ended early: {failure}");
                }
                records.put(&record).with_context(keep)?;
            }
            Attempt::Transient(record) => {
                let failure = record.failure.unwrap_or_default();
                notice!("{id}: no record was written, and another attempt may succeed: {failure}");
                return Ok(ExitCode::from(TRY_AGAIN));
            }
            Attempt::Stopped => {
                notice!("{id}: stopped, and no record was written; the same call begins again");
                return Ok(ExitCode::from(TRY_AGAIN));
            }
        }
    }
    let record: Vec<Record> = records.get(cell, plan.age_of(cell)).into_iter().collect();
    render::text(|out| write!(out, "{}", report::text(&report::sheets(&record))))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns true for an error that may pass by itself.
fn is_passing(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<std::io::Error>().is_some_and(is_shortage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_a_cell_is_that_of_the_list() {
        let list = ["flashkit", "study", "--matrix", "m.toml", "--list", "--json"];
        for words in
            [&list[..], &[&list[..], &["--cell", "other"]].concat(), &[&list[..], &["--cell=x"]].concat()]
        {
            let words = words.iter().map(|word| (*word).to_owned());
            let command = command(words, "mount.flashkit.desktop");
            assert_eq!(
                command,
                ["flashkit", "study", "--matrix", "m.toml", "--cell", "mount.flashkit.desktop"]
            );
        }
    }
}
