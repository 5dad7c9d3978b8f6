//! Experiment 5: loads as programs make them, one after the other on one volume.
//!
//! All that a load has left is read again in the end, with cold caches, and compared.

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
            // Each is durable when it is done.
            self.measure(units(&load), &[op(&dir, load, Stage::Run)])?;
            done.push((dir, load));
        }
        let phone = Load::Phone(Phone { actions: scale.phone_actions, seed });
        self.load("/mnt/phone", phone)?;
        done.push(("/mnt/phone".into(), phone));

        let tree = KernelTree { files: scale.kernel_files };
        self.load("/mnt/kernel", Load::Untar(tree))?;
        self.remount()?;
        // Its sources are there.
        let build = Load::Build(KernelBuild { tree, seed });
        self.measure(units(&build), &[op("/mnt/kernel", build, Stage::Run), Op::Sync])?;
        done.push(("/mnt/kernel".into(), build));

        self.remount()?;
        for (dir, load) in done {
            self.target.run(&op(&dir, load, Stage::Check))?;
        }
        self.unmount()
    }

    /// A load until everything is on the card.
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

/// Number of units of a load.
fn units(load: &Load) -> u64 {
    load.steps().filter(|step| *step == Step::Done).count() as u64
}
