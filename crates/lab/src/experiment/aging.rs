//! Aging of a file system before the measurement.

use guest::{
    Op, Workload,
    workload::{Aging, Stage},
};

use super::Bench;
use crate::vm::Failure;

const DIR: &str = "/mnt/aged";

impl Bench<'_> {
    /// Ages the file system if requested, and unmounts it.
    pub(super) fn age(&mut self) -> Result<(), Failure> {
        let Some(age) = self.how.age else { return Ok(()) };
        self.target.run(&self.mount_op())?;
        let (total_bytes, free_bytes) = self.space()?;
        let full_bytes = total_bytes / 100 * u64::from(age.full_percent);
        let workload = Workload::Aging(Aging {
            live_bytes: full_bytes.saturating_sub(total_bytes - free_bytes),
            written_bytes: total_bytes * u64::from(age.times),
            seed: self.how.seed,
        });
        self.target.run(&Op::Mkdir { path: DIR.into(), mode: 0o755 })?;
        self.target.run(&Op::Workload { dir: DIR.into(), workload, stage: Stage::Run })?;
        self.unmount()?;
        self.target.run(&Op::DropCaches)?;
        self.aged = Some(workload);
        Ok(())
    }

    /// Verifies the aged files, which no experiment may have changed.
    pub(super) fn check_aged(&mut self) -> Result<(), Failure> {
        let Some(workload) = self.aged.take() else { return Ok(()) };
        self.target.run(&self.mount_op())?;
        self.target.run(&Op::Workload { dir: DIR.into(), workload, stage: Stage::Check })?;
        self.unmount()
    }
}
