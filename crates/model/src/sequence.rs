//! A sequence of operations on a volume and on the model, with checks during it and at its end.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use f2fs::Error;
use guest::Op;
use rustix::io::Errno;

use crate::{
    difference::{check, check_nodes},
    fsck::fsck,
    generator::Generator,
    model::{Id, Model, ROOT},
    setup::Setup,
    subject::{StepClock, Subject, errno, rules},
    tally::{Outcome, Tally},
};

/// Number of operations between comparisons of the tree.
const CHECK_EVERY: usize = 500;
/// Maximum number of runs to shrink a failure.
const SHRINK_RUNS: usize = 400;

/// A volume and its model, side by side.
pub struct Pair {
    setup: Setup,
    /// The volume.
    pub subject: Subject,
    /// The expected state.
    pub model: Model,
    /// Counts of the operations.
    pub tally: Tally,
    clock: StepClock,
    /// The root, and the inodes made by mkfs.
    formatted: Vec<Id>,
}

impl Pair {
    /// Opens an empty volume, and copies its root to the model.
    pub fn new(setup: &Setup, device: Arc<dyn block::Device>) -> Result<Pair> {
        let clock = StepClock::default();
        let mut subject = Subject::open(device, setup.settings, clock.clone())?;
        let rules = rules(&mut subject)?;
        let mut pair = Pair {
            setup: setup.clone(),
            model: Model::new(rules, clock.now()),
            subject,
            tally: Tally::default(),
            clock,
            formatted: vec![ROOT],
        };
        pair.take_over()?;
        Ok(pair)
    }

    /// Makes the model's root, and the inodes of mkfs, equal to the volume's.
    fn take_over(&mut self) -> Result<()> {
        let volume = self.subject.volume();
        let root = volume.superblock().root_ino;
        for entry in volume.entries(root, 0)? {
            let entry = entry?;
            if entry.name == b".." || entry.name == b"." {
                continue;
            }
            let path = guest::Bytes([b"/", &entry.name[..]].concat());
            self.model.apply(&Op::Mkdir { path: path.clone(), mode: 0 }, self.clock.now())?;
            let id = self.model.find(&path.0)?;
            self.model.imitate(id, &volume.stat(entry.ino)?);
            self.formatted.push(id);
        }
        self.model.imitate(ROOT, &volume.stat(root)?);
        Ok(())
    }

    /// Executes an operation on both, and checks that they agree on whether it can be done.
    pub fn step(&mut self, op: &Op) -> Result<()> {
        let now = self.clock.step();
        let done = self.subject.apply(op);
        self.tally.count(op, if done.is_ok() { Outcome::Done } else { Outcome::Refused });
        if let Err(Error::NoSpace { needed_bytes, free_bytes }) = &done {
            let mut trial = self.model.clone();
            if trial.apply(op, now) != Err(Errno::NOSPC) {
                ensure!(
                    needed_bytes > free_bytes,
                    "no space for {needed_bytes} bytes while {free_bytes} are free"
                );
                // The operation has no effect, but open(2) with O_CREAT and write(2) are two calls.
                if let Op::Write { path, .. } = op {
                    let is_there =
                        self.subject.volume().resolve(&path.0, f2fs::engine::FinalSymlink::NoFollow).is_ok();
                    if is_there && self.model.find(&path.0).is_err() {
                        let made = Op::Mknod { path: path.clone(), mode: 0o100_666, major: 0, minor: 0 };
                        self.model.apply(&made, now)?;
                    }
                }
            }
            return Ok(());
        }
        if let (Err(Error::AttributeTooLarge), Op::SetXattr { path, .. }) = (&done, op) {
            if self.model.find(&path.0).is_ok_and(|id| self.formatted.contains(&id)) {
                // The space for attributes depends on the space in the inode, which the formatter chose.
                return Ok(());
            }
        }
        let wanted = self.model.apply(op, now);
        let seen = match &done {
            Ok(()) => Ok(()),
            Err(error) => Err(errno(error).ok_or_else(|| anyhow!("{error}"))?),
        };
        if !same(op, seen, wanted) {
            let shown = done.map_or_else(|error| error.to_string(), |()| "done".into());
            bail!("{shown}, wanted {wanted:?}");
        }
        Ok(())
    }

    /// Compares everything.
    pub fn check(&self) -> Result<()> {
        check(&self.model, &self.subject, self.setup.facts)
    }

    /// Compares, reopens the volume, compares again and unmounts. Returns the counts of the operations.
    pub fn finish(mut self) -> Result<Tally> {
        self.check().context("at the end")?;
        self.step(&Op::Unmount { dir: "/".into() }).context("at the last unmount")?;
        self.check().context("after the last unmount")?;
        check_nodes(self.subject.volume())?;
        self.subject.unmount()?;
        Ok(self.tally)
    }
}

/// Returns true if two results are equivalent to a program. If several errors apply to a call, POSIX does not
/// define which one is reported.
fn same(op: &Op, seen: Result<(), Errno>, wanted: Result<(), Errno>) -> bool {
    let either = |a: &[Errno]| matches!((seen, wanted), (Err(seen), Err(wanted)) if a.contains(&seen) && a.contains(&wanted));
    seen == wanted
        || match op {
            Op::Rename { .. } | Op::RenameNew { .. } | Op::Exchange { .. } => either(&[
                Errno::NOTEMPTY,
                Errno::ISDIR,
                Errno::NOTDIR,
                Errno::INVAL,
                Errno::EXIST,
                Errno::NOENT,
                Errno::NAMETOOLONG,
            ]),
            Op::Link { .. } => either(&[Errno::PERM, Errno::EXIST, Errno::NAMETOOLONG]),
            Op::Symlink { .. } => either(&[Errno::NAMETOOLONG, Errno::EXIST, Errno::NOENT, Errno::NOTDIR]),
            Op::WriteOpen { .. } | Op::FsyncOpen { .. } | Op::LinkOpen { .. } => {
                either(&[Errno::BADF, Errno::NOENT])
            }
            _ => false,
        }
}

/// The result of a failed run.
#[derive(Debug)]
pub struct Failure {
    /// The operations up to and including the failed one.
    pub ops: Vec<Op>,
    /// The first error.
    pub error: anyhow::Error,
}

/// Runs `steps` operations from `seed` on a new volume, which fsck.f2fs judges at the end.
///
/// # Errors
/// A description of the failure, with the shortest sequence found on which [`replay`] fails.
pub fn torture(setup: &Setup, seed: u64, steps: usize) -> std::result::Result<Tally, String> {
    run(setup, seed, steps, LastCheck::Fsck).map_err(|failure| {
        let whole = format!("{:#}", failure.error);
        let by_fsck = |text: &str| text.contains("fsck.f2fs");
        let check = if by_fsck(&whole) { LastCheck::Fsck } else { LastCheck::Model };
        // Without the operation that made a path, others may fail in other ways. Those do not count.
        let same = |error: &anyhow::Error| by_fsck(&format!("{error:#}")) == by_fsck(&whole);
        let failure = shrink(failure, SHRINK_RUNS, |ops| replay(setup, ops, check).err().filter(same));
        format!("{}(unshrunk: {whole})", failure.report(setup, seed))
    })
}

/// The last check of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastCheck {
    /// The volume is compared with the model.
    Model,
    /// fsck.f2fs judges the volume, too.
    Fsck,
}

/// Runs `steps` operations from `seed` on a new volume.
///
/// # Errors
/// The operations up to the first error.
pub fn run(setup: &Setup, seed: u64, steps: usize, check: LastCheck) -> std::result::Result<Tally, Failure> {
    let mut generator = Generator::new(setup.mixed(seed), setup.mix.clone());
    let mut ops = Vec::new();
    let result = run_with(setup, check, |model| {
        if ops.len() == steps {
            return None;
        }
        ops.push(generator.next(model));
        ops.last().cloned()
    });
    result.map_err(|error| Failure { ops, error })
}

/// Runs these operations on a new volume.
///
/// # Errors
/// The first error.
pub fn replay(setup: &Setup, ops: &[Op], check: LastCheck) -> Result<()> {
    let mut ops = ops.iter();
    run_with(setup, check, |_| ops.next().cloned()).map(drop)
}

fn run_with(setup: &Setup, check: LastCheck, mut next: impl FnMut(&Model) -> Option<Op>) -> Result<Tally> {
    let device = Arc::new(setup.make()?);
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| -> Result<Tally> {
        let mut pair = Pair::new(setup, device.clone())?;
        let mut count = 0;
        while let Some(op) = next(&pair.model) {
            count += 1;
            pair.step(&op).with_context(|| format!("operation {count}: {}", shown(&op)))?;
            if count % CHECK_EVERY == 0 || matches!(op, Op::Unmount { .. } | Op::DropCaches) {
                pair.check().with_context(|| format!("after operation {count}: {}", shown(&op)))?;
            }
        }
        pair.finish()
    }));
    let tally = match ran {
        Ok(result) => result?,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            bail!("panic: {}", text.unwrap_or_default());
        }
    };
    if check == LastCheck::Fsck {
        fsck(&device)?;
    }
    Ok(tally)
}

fn shown(op: &Op) -> String {
    serde_json::to_string(op).unwrap_or_default()
}

/// Removes operations from a failing sequence while it still fails, in at most `runs` runs.
pub fn shrink(failure: Failure, runs: usize, fails: impl Fn(&[Op]) -> Option<anyhow::Error>) -> Failure {
    let Failure { mut ops, mut error } = failure;
    let mut left = runs;
    let mut piece = ops.len() / 2;
    while piece > 0 && left > 0 {
        let mut at = 0;
        while at < ops.len() && left > 0 {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + piece).min(ops.len()));
            left -= 1;
            match fails(&fewer) {
                Some(found) => (ops, error) = (fewer, found),
                None => at += piece,
            }
        }
        piece /= 2;
    }
    Failure { ops, error }
}

impl Failure {
    /// Formats the sequence, one operation per line, and the error.
    pub fn report(&self, setup: &Setup, seed: u64) -> String {
        let lines: Vec<String> = self.ops.iter().map(shown).collect();
        format!(
            "{}, seed {seed}: {:#}\n{} operations:\n{}\n",
            setup.name,
            self.error,
            lines.len(),
            lines.join("\n")
        )
    }
}
