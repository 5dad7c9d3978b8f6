//! Experiment 10: a user's workload, on a new volume.

use std::{io, path::PathBuf};

use guest::{Bytes, Op, workload::Stage};

use super::Bench;
use crate::{
    fio,
    systems::OURS,
    vm::{Failure, host_file},
};

/// Directory of a list of steps.
const DIR: &str = "/mnt/own";

/// A user's workload, ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnRun {
    /// A job file of fio.
    Fio(PathBuf),
    /// A list of steps.
    Steps {
        /// File with the steps, a [`guest::workload::StepList`] as JSON.
        list: PathBuf,
        /// Number of its measured units.
        units: u64,
    },
}

impl Bench<'_> {
    pub(super) fn own(&mut self) -> Result<(), Failure> {
        let workload = self.how.workload.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the plan does not have the workload of this cell")
        })?;
        self.target.run(&self.mount_op())?;
        match workload {
            OwnRun::Fio(job) => {
                fio::see_host(self.target)?;
                let job = host_file(job)?;
                self.measure(1, &[fio::op(&[&job])?, Op::Sync])?;
            }
            OwnRun::Steps { list, units } => {
                // An engine in this process sees the host's files anyway.
                if self.how.mount.0 != OURS {
                    fio::see_host(self.target)?;
                }
                let list = host_file(list)?;
                let op = |stage| Op::Steps { dir: DIR.into(), list: list.as_str().into(), stage };
                self.target.run(&Op::Mkdir { path: DIR.into(), mode: 0o755 })?;
                self.target.run(&op(Stage::Prepare))?;
                self.target.run(&Op::Sync)?;
                self.measure(*units, &[op(Stage::Run), Op::Sync])?;
                self.remount()?;
                self.target.run(&op(Stage::Check))?;
            }
        }
        self.unmount()
    }
}

/// Returns the output of a user's program.
pub(super) fn output(code: i32, stdout: &Bytes, stderr: &Bytes) -> Result<String, Failure> {
    let said = String::from_utf8_lossy(&[&stdout.0[..], &stderr.0[..]].concat()).into_owned();
    match code {
        0 => Ok(said),
        code => {
            let error = format!("the program ended with {code}\n{said}");
            Err(Failure::Refused { op: "execute".into(), errno: 0, error })
        }
    }
}
