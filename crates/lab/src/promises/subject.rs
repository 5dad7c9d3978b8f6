//! File systems under test: they run a script on a card that keeps a log, and recover its state after a cut.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use block::MemoryDevice;
use guest::{Op, examine::Found};

use super::{log::Log, script::Script};
use crate::vm::Failure;

/// A script that was run, with the requests that reached the card.
pub struct Recording {
    /// The script.
    pub script: Script,
    /// Content of the card at the start of the log.
    pub start: MemoryDevice,
    /// The requests.
    pub log: Log,
    /// Number of requests before each step, and at the end of the last one.
    pub before_step: Vec<usize>,
    /// Episodes with a step that the file system does not support.
    pub refused: BTreeSet<u32>,
}

/// State of a volume after a cut and its recovery.
#[derive(Debug, Clone, Default)]
pub struct Aftermath {
    /// Duration of the mount on the card's clock; `None` if the volume could not be mounted.
    pub recovered_ns: Option<u64>,
    /// The tree.
    pub found: Vec<Found>,
    /// Errors of the mount, of the unmount, and of the kernel in between.
    pub said: Vec<String>,
    /// True if the kernel died.
    pub has_died: bool,
}

/// A file system under test.
pub trait Subject {
    /// Makes a volume, mounts it and runs a script.
    ///
    /// # Errors
    /// The file system refuses a step other than a link, or the machine fails.
    fn record(&mut self, script: Script, seed: u64) -> Result<Recording, Failure>;

    /// Mounts the volume on a card with this content, examines its tree and unmounts it. The bits of the `unstable`
    /// ranges change after a first mount that uses the volume, where they were not erased.
    ///
    /// # Errors
    /// The machine cannot be started again, or a stop was requested. A volume that cannot be mounted is no
    /// error.
    fn recover(&mut self, device: Arc<MemoryDevice>, unstable: &[Range<u64>]) -> Result<Aftermath, Failure>;
}

/// Runs the steps of a script. `run` executes the step of a number; `requests` counts the requests so far.
/// Returns the number of requests before each step and at the end, and the refused episodes.
pub(super) fn run_steps<T>(
    script: &Script,
    target: &mut T,
    requests: impl Fn(&T) -> usize,
    run: impl Fn(&mut T, usize) -> Result<(), Failure>,
) -> Result<(Vec<usize>, BTreeSet<u32>), Failure> {
    let (mut before_step, mut refused) = (Vec::new(), BTreeSet::new());
    for (number, step) in script.steps.iter().enumerate() {
        before_step.push(requests(target));
        if refused.contains(&step.episode) {
            continue;
        }
        match (run(target, number), &step.op) {
            (Ok(()), _) => {}
            (Err(Failure::Refused { .. }), Op::Link { .. }) => _ = refused.insert(step.episode),
            (Err(failure), _) => return Err(failure),
        }
    }
    before_step.push(requests(target));
    Ok((before_step, refused))
}
