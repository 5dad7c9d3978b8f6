//! A workload that a user lists step by step.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use super::{Files, Stage, Step, run_stage};

/// Line that ends the preparation in a list of steps.
const PREPARED: &str = "\"prepared\"";
/// Maximum length of a read or write, and of a file, in bytes.
const BYTES_MAX: u64 = 1 << 40;

/// Steps, in the order of execution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepList {
    /// Steps before the measurement.
    pub preparation: Vec<Step>,
    /// The measured steps.
    pub steps: Vec<Step>,
}

/// Error in a list of steps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct StepListError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Description of the error.
    pub what: String,
}

impl StepList {
    /// Parses a list: one step as JSON per line, such as `{"write": {"path": "a", "at": 0, "length": 4096}}`,
    /// `{"fsync": {"path": "a"}}` or `"sync_all"`. The line `"prepared"` ends the preparation. Empty lines, and
    /// lines that begin with `#`, are skipped.
    ///
    /// # Errors
    /// [`StepListError`] names the first invalid line.
    pub fn parse(text: &str) -> Result<StepList, StepListError> {
        let mut list = StepList::default();
        for (n, line) in text.lines().enumerate() {
            let fail = |what: String| StepListError { line: n + 1, what };
            match line.trim() {
                "" => {}
                comment if comment.starts_with('#') => {}
                PREPARED if list.preparation.is_empty() => {
                    list.preparation = std::mem::take(&mut list.steps);
                }
                PREPARED => return Err(fail("the preparation has ended already".into())),
                json => {
                    let step: Step =
                        serde_json::from_slice(json.as_bytes()).map_err(|error| fail(error.to_string()))?;
                    check(&step).map_err(fail)?;
                    list.steps.push(step);
                }
            }
        }
        match list.steps.is_empty() {
            true => {
                Err(StepListError { line: text.lines().count().max(1), what: "there are no steps".into() })
            }
            false => Ok(list),
        }
    }

    /// Reads a list that was written as one JSON value.
    ///
    /// # Errors
    /// The file cannot be read, or has another form.
    pub fn read(path: &Path) -> io::Result<StepList> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// Returns the number of measured units: those that end with `"done"`, or else the steps.
    pub fn units(&self) -> u64 {
        let done = self.steps.iter().filter(|step| **step == Step::Done).count();
        if done > 0 { done as u64 } else { self.steps.len() as u64 }
    }

    /// Runs a stage, as [`Workload::run_on`](super::Workload::run_on) does.
    ///
    /// # Errors
    /// Those of the files, and [`io::ErrorKind::InvalidData`] if they hold other data than was written.
    pub fn run_on(&self, stage: Stage, files: &mut dyn Files) -> io::Result<Vec<u64>> {
        run_stage(stage, self.preparation.iter().cloned(), self.steps.iter().cloned(), files)
    }
}

/// Checks that a step stays in its directory, and that its sizes are possible.
fn check(step: &Step) -> Result<(), String> {
    let (paths, end): (Vec<&String>, u64) = match step {
        Step::Write { path, at, length } | Step::Read { path, at, length } => {
            (vec![path], at.saturating_add(*length))
        }
        Step::Truncate { path, size } => (vec![path], *size),
        Step::Rename { from, to } => (vec![from, to], 0),
        Step::MakeDir { path }
        | Step::Fsync { path }
        | Step::Fdatasync { path }
        | Step::Close { path }
        | Step::Remove { path } => (vec![path], 0),
        Step::SyncAll | Step::Done => (Vec::new(), 0),
    };
    let leaves = |path: &&&String| path.starts_with('/') || path.split('/').any(|part| part == "..");
    if let Some(path) = paths.iter().find(leaves) {
        return Err(format!("{path}: a path must stay below the workload's directory"));
    }
    if end > BYTES_MAX {
        return Err(format!("the step reaches byte {end}, and the limit is {BYTES_MAX}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Dir;

    const LIST: &str = "# a log\n{\"write\": {\"path\": \"base\", \"at\": 0, \"length\": 9000}}\n\"prepared\"\n\n\
        {\"write\": {\"path\": \"log\", \"at\": 0, \"length\": 4096}}\n{\"fsync\": {\"path\": \"log\"}}\n\"done\"\n\
        {\"read\": {\"path\": \"base\", \"at\": 100, \"length\": 50}}\n{\"rename\": {\"from\": \"log\", \"to\": \"old\"}}\n";

    #[test]
    fn a_list_is_read_run_and_checked() {
        let list = StepList::parse(LIST).unwrap();
        assert_eq!((list.preparation.len(), list.steps.len(), list.units()), (1, 5, 1));
        let dir = tempfile::tempdir().unwrap();
        let run = |stage| list.run_on(stage, &mut Dir::new(dir.path().to_owned()));
        run(Stage::Prepare).unwrap();
        assert_eq!(run(Stage::Run).unwrap().len(), 1);
        run(Stage::Check).unwrap();
        std::fs::write(dir.path().join("old"), [0; 4096]).unwrap();
        assert_eq!(run(Stage::Check).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn an_invalid_line_is_named() {
        let line = |text: &str| StepList::parse(text).unwrap_err().line;
        assert_eq!(line("\"done\"\n{\"wirte\": {}}"), 2);
        assert_eq!(line("{\"fsync\": {\"path\": \"../a\"}}"), 1);
        assert_eq!(line("\"done\"\n{\"truncate\": {\"path\": \"a\", \"size\": 9000000000000000000}}"), 2);
        assert_eq!(line("# nothing"), 1);
        assert_eq!(line("\"done\"\n\"prepared\"\n\"done\"\n\"prepared\""), 4);
    }
}
