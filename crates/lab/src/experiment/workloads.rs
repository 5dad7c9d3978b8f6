//! Experiment 5: workloads that imitate programs, one after the other on one volume.
//!
//! All files that a workload has left are read at the end, with cold caches, and verified.

use guest::{
    Op, Workload,
    workload::{Journal, KernelBuild, KernelTree, Phone, Stage, Step},
};

use super::Bench;
use crate::{scale::Scale, vm::Failure};

impl Bench<'_> {
    pub(super) fn workloads(&mut self, scale: &Scale) -> Result<(), Failure> {
        self.target.run(&self.mount_op())?;
        let seed = self.how.seed;
        let mut done = Vec::new();
        for journal in Journal::ALL {
            let workload = Workload::Transactions { journal, transactions: scale.transactions, seed };
            let dir = format!("/mnt/sqlite-{}", journal.name());
            self.prepare(&dir, workload)?;
            // Each transaction is durable when it is done, so no sync follows.
            self.measure(units(&workload), &[op(&dir, workload, Stage::Run)])?;
            done.push((dir, workload));
        }
        let phone = Workload::Phone(Phone { actions: scale.phone_actions, seed });
        self.workload("/mnt/phone", phone)?;
        done.push(("/mnt/phone".into(), phone));

        let tree = KernelTree { files: scale.kernel_files };
        self.workload("/mnt/kernel", Workload::Untar(tree))?;
        self.remount()?;
        // The sources were unpacked before.
        let build = Workload::Build(KernelBuild { tree, seed });
        self.measure(units(&build), &[op("/mnt/kernel", build, Stage::Run), Op::Sync])?;
        done.push(("/mnt/kernel".into(), build));

        self.remount()?;
        for (dir, workload) in done {
            self.target.run(&op(&dir, workload, Stage::Check))?;
        }
        self.unmount()
    }

    /// Measures a workload until all its data is on the card.
    fn workload(&mut self, dir: &str, workload: Workload) -> Result<(), Failure> {
        self.prepare(dir, workload)?;
        self.measure(units(&workload), &[op(dir, workload, Stage::Run), Op::Sync])
    }

    fn prepare(&mut self, dir: &str, workload: Workload) -> Result<(), Failure> {
        self.target.run(&Op::Mkdir { path: dir.into(), mode: 0o755 })?;
        self.target.run(&op(dir, workload, Stage::Prepare))?;
        self.target.run(&Op::Sync)?;
        Ok(())
    }
}

fn op(dir: &str, workload: Workload, stage: Stage) -> Op {
    Op::Workload { dir: dir.into(), workload, stage }
}

/// Returns the number of units of a workload.
fn units(workload: &Workload) -> u64 {
    workload.steps().filter(|step| *step == Step::Done).count() as u64
}
