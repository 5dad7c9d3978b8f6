//! A user's workload: a job file of fio, a block trace, or a list of steps.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use flash::{Command, Trace};
use guest::workload::{Step, StepList};

use crate::experiment::OwnRun;

/// Name of the file on which a trace is replayed.
const TRACED: &str = "traced";

/// A user's workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnWorkload {
    /// A job file of fio.
    Fio(PathBuf),
    /// Steps.
    Steps(StepList),
}

impl OwnWorkload {
    /// Reads a list of steps.
    ///
    /// # Errors
    /// The text names the invalid line.
    pub fn of_steps(text: &str) -> Result<OwnWorkload, String> {
        StepList::parse(text).map(OwnWorkload::Steps).map_err(|error| error.to_string())
    }

    /// Reads a trace of requests. They become reads and writes of one file at the same offsets, flushes become
    /// fdatasync(2), and discards are left out. The file is written once before.
    ///
    /// # Errors
    /// The text names the invalid line.
    pub fn of_trace(text: &str) -> Result<OwnWorkload, String> {
        let trace = Trace::parse(text).map_err(|error| error.to_string())?;
        let moves = |command| matches!(command, Command::Read | Command::Write);
        let requests = || trace.entries.iter().map(|entry| entry.op).filter(|op| moves(op.command));
        let first = requests().map(|op| op.offset_bytes).min().ok_or("the trace reads and writes nothing")?;
        let end = requests().map(|op| op.offset_bytes + op.length_bytes).max().unwrap_or(first);
        let path = || TRACED.to_owned();
        let preparation =
            vec![Step::Write { path: path(), at: 0, length: end - first }, Step::Fsync { path: path() }];
        let mut steps = Vec::new();
        for entry in &trace.entries {
            let (at, length) = (entry.op.offset_bytes.saturating_sub(first), entry.op.length_bytes);
            match entry.op.command {
                Command::Read => steps.push(Step::Read { path: path(), at, length }),
                Command::Write => {
                    steps.push(Step::Write { path: path(), at, length });
                    if entry.op.fua {
                        steps.push(Step::Fdatasync { path: path() });
                    }
                }
                Command::Flush => steps.push(Step::Fdatasync { path: path() }),
                Command::Discard => continue,
            }
            steps.push(Step::Done);
        }
        Ok(OwnWorkload::Steps(StepList { preparation, steps }))
    }

    /// Writes the files that the workload needs to `list`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn place(&self, list: &Path) -> io::Result<OwnRun> {
        Ok(match self {
            OwnWorkload::Fio(job) => OwnRun::Fio(job.clone()),
            OwnWorkload::Steps(steps) => {
                fs::write(list, serde_json::to_vec(steps)?)?;
                OwnRun::Steps { list: list.to_owned(), units: steps.units() }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_becomes_reads_and_writes_of_a_file() {
        let text = "8,0 0 1 0.000000000 1 D W 2048 + 8 [a]\n8,0 0 2 0.000100000 1 D R 2056 + 16 [a]\n\
                    8,0 0 3 0.000200000 1 D FN [a]\n";
        let OwnWorkload::Steps(list) = OwnWorkload::of_trace(text).unwrap() else { panic!("steps") };
        assert_eq!(list.preparation[0], Step::Write { path: "traced".into(), at: 0, length: 24 * 512 });
        assert_eq!(list.steps[0], Step::Write { path: "traced".into(), at: 0, length: 4096 });
        assert_eq!(list.steps[2], Step::Read { path: "traced".into(), at: 4096, length: 8192 });
        assert_eq!((list.steps[4].clone(), list.units()), (Step::Fdatasync { path: "traced".into() }, 3));
        assert!(OwnWorkload::of_trace("8,0 0 3 0.000200000 1 D FN [a]\n").is_err());
        assert!(OwnWorkload::of_steps("{\"write\": 1}").unwrap_err().starts_with("line 1"));
    }
}
