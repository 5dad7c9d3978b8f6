//! Experiment 5: workloads that imitate programs, one after the other on one volume.
//!
//! All files that a workload has left are read at the end, with cold caches, and verified.

use guest::{
    Load, Op,
    load::{Journal, KernelBuild, KernelTree, Phone, Stage, Step},
};

use super::Bench;
use crate::{guest::Failure, scale::Scale};

impl Bench<'_> {
    pub(super) fn loads(&mut self, scale: &Scale) -> Result<(), Failure> {
        self.target.run(&self.mount_op())?;
        let seed = self.how.seed;
        let mut done = Vec::new();
        for journal in Journal::ALL {
            let load = Load::Transactions { journal, transactions: scale.transactions, seed };
            let dir = format!("/mnt/sqlite-{}", journal.name());
            self.prepare(&dir, load)?;
            // Each transaction is durable when it is done, so no sync follows.
            self.measure(units(&load), &[op(&dir, load, Stage::Run)])?;
            done.push((dir, load));
        }
        let phone = Load::Phone(Phone { actions: scale.phone_actions, seed });
        self.load("/mnt/phone", phone)?;
        done.push(("/mnt/phone".into(), phone));

        let tree = KernelTree { files: scale.kernel_files };
        self.load("/mnt/kernel", Load::Untar(tree))?;
        self.remount()?;
        // The sources were unpacked before.
        let build = Load::Build(KernelBuild { tree, seed });
        self.measure(units(&build), &[op("/mnt/kernel", build, Stage::Run), Op::Sync])?;
        done.push(("/mnt/kernel".into(), build));

        self.remount()?;
        for (dir, load) in done {
            self.target.run(&op(&dir, load, Stage::Check))?;
        }
        self.unmount()
    }

    /// Measures a workload until all its data is on the card.
    fn load(&mut self, dir: &str, load: Load) -> Result<(), Failure> {
        self.prepare(dir, load)?;
        self.measure(units(&load), &[op(dir, load, Stage::Run), Op::Sync])
    }

    fn prepare(&mut self, dir: &str, load: Load) -> Result<(), Failure> {
        self.target.run(&Op::Mkdir { path: dir.into(), mode: 0o755 })?;
        self.target.run(&op(dir, load, Stage::Prepare))?;
        self.target.run(&Op::Sync)?;
        Ok(())
    }
}

fn op(dir: &str, load: Load, stage: Stage) -> Op {
    Op::Load { dir: dir.into(), load, stage }
}

/// Returns the number of units of a workload.
fn units(load: &Load) -> u64 {
    load.steps().filter(|step| *step == Step::Done).count() as u64
}
