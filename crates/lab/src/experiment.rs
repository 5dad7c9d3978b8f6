//! The experiments, each from a newly formatted volume to its last figure.
//!
//! The same code runs each of them on every target, as operations of one vocabulary. Only a *part* is
//! measured. Steps before and between parts are not: remounts like those of iozone's `-U`, and creating files
//! to read.

mod aging;
mod fsync_sizes;
mod latency;
mod own;
mod steady;
mod unit;
mod utilization;
mod workloads;

use flash::latency::Latencies;
use guest::{
    Op, Pattern, Tree, Workload,
    op::Answer,
    pattern::{Access, Order, Sync},
};
use serde::{Deserialize, Serialize};

pub use self::{own::OwnRun, steady::SteadyState, unit::Unit, utilization::levels_percent};
use crate::{
    plan::{Age, Rounds},
    sample::Sample,
    scale::{COPY_BYTES, RECORD_BYTES, Scale},
    systems::{CHIP, FlashWork, MOUNT_POINT, Target},
    vm::{Failure, Totals},
};

const FILE: &str = "/mnt/iozone.tmp";

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Experiment {
    /// 1: writes of 4 KiB to one file, with one fsync at the end (jeong-2012, iozone -e).
    BufferedWrite,
    /// 2: an fsync after each write of 4 KiB (jeong-2012).
    WriteFsync,
    /// 3: mounting a new volume, and a used one after a reboot (jeong-2012).
    Mount,
    /// 4: reads of 4 KiB with cold caches (jeong-2012, iozone -U).
    BufferedRead,
    /// 5: SQLite, a phone, unpacking and compiling kernel sources (requested in jeong-2012's thread).
    Workloads,
    /// 7: copies of an image, an archive and a tree, and the tree's removal (fedorchuk-2014).
    Copy,
    /// 8: durations of writes on a dirty file system, with and without background cleaning (lavinen-2003).
    Latency,
    /// 10: a user's workload, which only a matrix can name.
    Own,
    /// 11: an fsync after each random write of 4 KiB, on files of 1 to 32 MiB.
    FsyncSizes,
    /// 12: random writes of 4 KiB on a file system that is 80 to 97.5 % full (Lee and others, FAST '15).
    Utilization,
}

/// A part of an experiment: one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Name in records.
    pub name: &'static str,
    /// Title in tables.
    pub title: &'static str,
    /// Unit of its figure.
    pub unit: Unit,
}

const fn part(name: &'static str, title: &'static str, unit: Unit) -> Part {
    Part { name, title, unit }
}

/// A measured part and its costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// The part's name.
    pub part: String,
    /// Its figure.
    pub value: f64,
    /// Unit of the figure.
    pub unit: Unit,
    /// Start time on the card's clock, which begins at the last boot.
    pub started_ns: u64,
    /// Duration on the card's clock, until all data was on the card.
    pub duration_ns: u64,
    /// Duration until the last call returned, if that is shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned_ns: Option<u64>,
    /// Records or files; 1 for a mount.
    pub records: u64,
    /// Durations of single writes, or of the units of a workload, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latencies: Option<Latencies>,
    /// Completion time of each of a hundred equal shares of them, from the start of the part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress_ns: Vec<u64>,
    /// Requests that reached the card.
    pub totals: Totals,
    /// Flash operations.
    pub flash: FlashWork,
    /// Costs of the machine, from a separate run in real time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The rounds, if the part was repeated until its rate stood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady: Option<SteadyState>,
    /// Figures of all runs if the part was repeated; `value` is then their median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<Sample>,
    /// Output of the user's program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// Costs of a part besides the card's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Processor time.
    pub cpu_ns: u64,
    /// Growth of the kernel's own memory, without pages of files, since before the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl Phase {
    /// Returns the processor time per record, file or mount, in microseconds.
    pub fn cpu_us_a_record(&self) -> Option<f64> {
        Some(self.cost?.cpu_ns as f64 / 1e3 / self.records.max(1) as f64)
    }

    /// Returns the figure that follows from the sum of the card's time and the processor's, as if neither worked while
    /// the other does.
    pub fn with_cpu(&self) -> Option<f64> {
        Some(self.unit.of(self.records, self.duration_ns + self.cost?.cpu_ns))
    }
}

impl Experiment {
    /// All experiments in the order of their numbers.
    pub const ALL: [Experiment; 9] = [
        Experiment::BufferedWrite,
        Experiment::WriteFsync,
        Experiment::Mount,
        Experiment::BufferedRead,
        Experiment::Workloads,
        Experiment::Copy,
        Experiment::Latency,
        Experiment::FsyncSizes,
        Experiment::Utilization,
    ];

    /// Default experiments of a study.
    pub const USUAL: [Experiment; 5] = [
        Experiment::BufferedWrite,
        Experiment::WriteFsync,
        Experiment::Mount,
        Experiment::BufferedRead,
        Experiment::Copy,
    ];

    /// Number in the list of the original studies.
    pub fn number(self) -> u32 {
        match self {
            Experiment::BufferedWrite => 1,
            Experiment::WriteFsync => 2,
            Experiment::Mount => 3,
            Experiment::BufferedRead => 4,
            Experiment::Workloads => 5,
            Experiment::Copy => 7,
            Experiment::Latency => 8,
            Experiment::Own => 10,
            Experiment::FsyncSizes => 11,
            Experiment::Utilization => 12,
        }
    }

    /// Name in commands and files.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::BufferedWrite => "buffered_write",
            Experiment::WriteFsync => "write_fsync",
            Experiment::Mount => "mount",
            Experiment::BufferedRead => "buffered_read",
            Experiment::Workloads => "workloads",
            Experiment::Copy => "copy",
            Experiment::Latency => "latency",
            Experiment::Own => "own",
            Experiment::FsyncSizes => "fsync_sizes",
            Experiment::Utilization => "utilization",
        }
    }

    /// Title in tables.
    pub fn title(self) -> &'static str {
        match self {
            Experiment::BufferedWrite => "Buffered write, 4 KiB records, the last flush counted",
            Experiment::WriteFsync => "Write and fsync, 4 KiB records",
            Experiment::Mount => "Mount",
            Experiment::BufferedRead => "Read with cold caches, 4 KiB records",
            Experiment::Workloads => "Workloads: SQLite's transactions; the rest until it is on the card",
            Experiment::Copy => "Copying and removing, until it is on the card",
            Experiment::Latency => "Latency of durable 4 KiB writes over a dirty file system, mean",
            Experiment::Own => "A user's workload, until it is on the card",
            Experiment::FsyncSizes => "Random write and fsync, 4 KiB records, by the size of the file",
            Experiment::Utilization => "Random write, 4 KiB records, by the share of the space that is full",
        }
    }

    /// Finds an experiment by name or number.
    pub fn named(name: &str) -> Option<Experiment> {
        Experiment::ALL.into_iter().find(|one| one.name() == name || one.number().to_string() == name)
    }

    /// Its parts, in the order of execution.
    pub fn parts(self) -> &'static [Part] {
        const SEQUENTIAL: &str = "sequential";
        const RANDOM: &str = "random";
        match self {
            Experiment::BufferedWrite => {
                const { &[part(SEQUENTIAL, SEQUENTIAL, Unit::MbPerS), part(RANDOM, RANDOM, Unit::Iops)] }
            }
            Experiment::WriteFsync => {
                const { &[part(SEQUENTIAL, SEQUENTIAL, Unit::KbPerS), part(RANDOM, RANDOM, Unit::Iops)] }
            }
            Experiment::Mount => {
                const {
                    &[
                        part("after_format", "after format", Unit::Ms),
                        part("after_reboot", "after reboot", Unit::Ms),
                    ]
                }
            }
            Experiment::BufferedRead => {
                const { &[part(SEQUENTIAL, SEQUENTIAL, Unit::MbPerS), part(RANDOM, RANDOM, Unit::Iops)] }
            }
            Experiment::Workloads => {
                const {
                    &[
                        part("sqlite_delete", "SQLite, delete", Unit::PerS),
                        part("sqlite_truncate", "SQLite, truncate", Unit::PerS),
                        part("sqlite_persist", "SQLite, persist", Unit::PerS),
                        part("sqlite_wal", "SQLite, WAL", Unit::PerS),
                        part("phone", "phone", Unit::S),
                        part("untar", "untar kernel", Unit::S),
                        part("build", "build kernel", Unit::S),
                    ]
                }
            }
            Experiment::Copy => {
                const {
                    &[
                        part("iso_copy", "copy image", Unit::S),
                        part("archive_copy", "copy archive", Unit::S),
                        part("tree_copy", "copy tree", Unit::S),
                        part("tree_remove", "remove tree", Unit::S),
                    ]
                }
            }
            Experiment::FsyncSizes => fsync_sizes::PARTS,
            Experiment::Utilization => utilization::PARTS,
            Experiment::Latency => {
                const {
                    &[
                        part(SEQUENTIAL, SEQUENTIAL, Unit::Ms),
                        part(RANDOM, RANDOM, Unit::Ms),
                        part("sequential_uncleaned", "sequential, no cleaner", Unit::Ms),
                        part("random_uncleaned", "random, no cleaner", Unit::Ms),
                    ]
                }
            }
            Experiment::Own => const { &[part("run", "run", Unit::S)] },
        }
    }

    /// Returns the parts for a type of file system. Without background cleaning, there are no parts with the
    /// cleaner off.
    pub fn parts_of(self, kind: &str) -> &'static [Part] {
        let parts = self.parts();
        match self {
            Experiment::Latency if latency::Cleaner::of(kind).is_none() => &parts[..2],
            _ => parts,
        }
    }

    /// Returns the fill level at the start, in percent, for a file system of this type, if the experiment
    /// depends on it.
    pub fn full_percent(self, kind: &str) -> Option<u64> {
        (self == Experiment::Latency).then(|| latency::full_percent(kind))
    }

    /// Returns true if it is repeated in real time for its costs. Single writes are timed only on the card's clock, the
    /// costs of an fsync are those of experiment 2, and those of a write those of experiment 1.
    pub fn has_costs(self) -> bool {
        !matches!(self, Experiment::Latency | Experiment::FsyncSizes | Experiment::Utilization)
    }

    /// Runs the experiment on a newly formatted target. Passes each finished part to `done`, so that a later
    /// failure loses none.
    ///
    /// # Errors
    /// The first failure.
    pub fn run(
        self,
        target: &mut dyn Target,
        how: &How<'_>,
        done: &mut dyn FnMut(Phase),
    ) -> Result<(), Failure> {
        let idle_memory = target.kernel_memory()?;
        let parts = self.parts_of(how.mount.0).iter();
        let mut bench = Bench { target, how, parts, done, idle_memory, aged: None };
        let scale = how.scale;
        bench.age()?;
        match self {
            Experiment::BufferedWrite => bench.writes(scale.buffered_bytes, Sync::End),
            Experiment::WriteFsync => bench.writes(scale.fsync_bytes, Sync::Each),
            Experiment::Mount => bench.mounts(scale.fsync_bytes),
            Experiment::BufferedRead => bench.reads(scale.buffered_bytes),
            Experiment::Workloads => bench.workloads(&scale),
            Experiment::Copy => bench.copies(&scale),
            Experiment::Latency => bench.latencies(&scale),
            Experiment::Own => bench.own(),
            Experiment::FsyncSizes => bench.fsync_sizes(),
            Experiment::Utilization => bench.utilization(&scale),
        }?;
        bench.check_aged()
    }
}

/// Settings of an experiment.
#[derive(Debug, Clone, Copy)]
pub struct How<'a> {
    /// Sizes.
    pub scale: Scale,
    /// Aging of the file system before the experiment.
    pub age: Option<Age>,
    /// Seed of random orders and contents.
    pub seed: u64,
    /// The user's workload, for the experiment that runs one.
    pub workload: Option<&'a OwnRun>,
    /// The file system's type and mount options.
    pub mount: (&'a str, &'a str),
    /// Source of the mount.
    pub source: &'a str,
    /// Page size of the card's flash in bytes.
    pub page_bytes: u32,
}

impl How<'_> {
    /// Returns true if written data is durable when the call returns (JFFS2).
    fn is_synchronous(&self) -> bool {
        self.source == CHIP
    }
}

/// A running experiment.
struct Bench<'a> {
    target: &'a mut dyn Target,
    how: &'a How<'a>,
    parts: std::slice::Iter<'static, Part>,
    done: &'a mut dyn FnMut(Phase),
    /// Memory use of the kernel before the mount.
    idle_memory: Option<u64>,
    /// Workload that aged the file system.
    aged: Option<Workload>,
}

impl Bench<'_> {
    fn writes(&mut self, bytes: u64, sync: Sync) -> Result<(), Failure> {
        self.target.run(&self.mount_op())?;
        let seed = self.how.seed;
        self.write_rounds(bytes, &|round| {
            let access = if round == 0 { Access::Create } else { Access::Overwrite };
            file(pattern(access, Order::Sequential, bytes, sync))
        })?;
        self.remount()?;
        self.write_rounds(bytes, &|round| {
            let order = Order::Random { seed: seed.wrapping_add(round) };
            file(pattern(Access::Overwrite, order, bytes, sync))
        })?;
        self.unmount()
    }

    /// Measures writes of the whole file: one round, or as many as the rate needs to stand.
    fn write_rounds(&mut self, bytes: u64, round: &dyn Fn(u64) -> Op) -> Result<(), Failure> {
        let records = bytes / u64::from(RECORD_BYTES);
        match self.how.age.map(|age| age.rounds) {
            Some(Rounds::UntilSteady) => self.measure_until_steady(records, round),
            _ => self.measure(records, &[round(0)]),
        }
    }

    fn mounts(&mut self, bytes: u64) -> Result<(), Failure> {
        self.measure(1, &[self.mount_op()])?;
        // A used volume: one file, written and partly overwritten.
        self.target.run(&file(pattern(Access::Create, Order::Sequential, bytes, Sync::End)))?;
        self.target.run(&file(pattern(
            Access::Overwrite,
            self.random(),
            bytes / 4096 / 4 * 4096,
            Sync::End,
        )))?;
        self.unmount()?;
        self.target.reboot()?;
        self.measure(1, &[self.mount_op()])?;
        self.unmount()
    }

    fn reads(&mut self, bytes: u64) -> Result<(), Failure> {
        self.target.run(&self.mount_op())?;
        self.target.run(&file(pattern(Access::Create, Order::Sequential, bytes, Sync::End)))?;
        for order in [Order::Sequential, self.random()] {
            self.remount()?;
            let read = pattern(Access::Read { overwritten: false }, order, bytes, Sync::Never);
            self.measure(bytes / u64::from(RECORD_BYTES), &[file(read)])?;
        }
        self.unmount()
    }

    fn copies(&mut self, scale: &Scale) -> Result<(), Failure> {
        self.target.run(&self.mount_op())?;
        for (path, bytes) in
            [("/mnt/image.iso", scale.image_bytes), ("/mnt/tree.tar.xz", scale.archive_bytes)]
        {
            let pattern = Pattern {
                access: Access::Create,
                order: Order::Sequential,
                file_bytes: bytes,
                record_bytes: COPY_BYTES as u32,
                sync: Sync::Never,
            };
            self.measure(bytes / COPY_BYTES, &[Op::Pattern { path: path.into(), pattern }, Op::Sync])?;
        }
        let dir = "/mnt/tree";
        let tree = Tree { seed: self.how.seed, files: scale.tree_files, mean_bytes: scale.tree_mean_bytes };
        let plant =
            [Op::Mkdir { path: dir.into(), mode: 0o755 }, Op::Plant { dir: dir.into(), tree }, Op::Sync];
        self.measure(scale.tree_files, &plant)?;
        self.measure(scale.tree_files, &[Op::RemoveTree { dir: dir.into() }, Op::Sync])?;
        self.unmount()
    }

    /// Returns the next part of the experiment.
    fn next_part(&mut self) -> &'static Part {
        self.parts.next().expect("an experiment has as many parts as it measures")
    }

    /// Runs the operations of one part.
    fn measure(&mut self, records: u64, ops: &[Op]) -> Result<(), Failure> {
        let part = self.next_part();
        let phase = self.timed(part, records, ops)?;
        (self.done)(phase);
        Ok(())
    }

    /// Times operations. If the last one is their only sync, records the time before it, too.
    fn timed(&mut self, part: &Part, records: u64, ops: &[Op]) -> Result<Phase, Failure> {
        let before = self.target.counters();
        let mut totals = Totals::default();
        let (mut started_ns, mut duration_ns, mut returned_ns) = (None, 0, None);
        let (mut times, mut said) = (Vec::new(), None);
        let mut cpu_ns = Some(0);
        let has_one_sync = ops.iter().filter(|op| **op == Op::Sync).count() == 1;
        for op in ops {
            if *op == Op::Sync && has_one_sync {
                returned_ns = Some(duration_ns);
            }
            let measured = self.target.run(op)?;
            started_ns.get_or_insert(measured.started_ns);
            duration_ns += measured.duration_ns();
            totals.add(&measured.totals);
            if let Some(Answer::Times(more)) = &measured.answer {
                times.extend_from_slice(more);
            }
            if let Some(Answer::Output { code, stdout, stderr }) = &measured.answer {
                said = Some(own::output(*code, stdout, stderr)?);
            }
            cpu_ns = cpu_ns.zip(measured.cpu_ns).map(|(sum, more)| sum + more);
        }
        let flash = FlashWork::between(&before, &self.target.counters(), self.how.page_bytes);
        let memory = self.target.kernel_memory()?.zip(self.idle_memory);
        let memory_bytes = memory.map(|(now, idle)| now.saturating_sub(idle));
        Ok(Phase {
            part: part.name.to_owned(),
            value: part.unit.of(records, duration_ns),
            unit: part.unit,
            started_ns: started_ns.unwrap_or_default(),
            duration_ns,
            returned_ns,
            records,
            latencies: (!times.is_empty()).then(|| latency::distribution(&times)),
            progress_ns: latency::progress(&times),
            totals,
            flash,
            cost: cpu_ns.map(|cpu_ns| Cost { cpu_ns, memory_bytes }),
            steady: None,
            runs: None,
            said,
        })
    }

    /// Returns the size of the file system and its free space, in bytes.
    fn space(&mut self) -> Result<(u64, u64), Failure> {
        let answer = self.target.run(&Op::Space { dir: MOUNT_POINT.into() })?.answer;
        match answer {
            Some(Answer::Space { total_bytes, free_bytes }) => Ok((total_bytes, free_bytes.min(total_bytes))),
            other => Err(std::io::Error::other(format!(
                "unexpected answer to a request for free space: \
                {other:?}"
            ))
            .into()),
        }
    }

    fn random(&self) -> Order {
        Order::Random { seed: self.how.seed }
    }

    fn mount_op(&self) -> Op {
        self.mount_with("")
    }

    /// Returns the mount operation with an additional option, unless that is empty.
    fn mount_with(&self, option: &str) -> Op {
        let (fs, options) = self.how.mount;
        let options: Vec<&str> = [options, option].into_iter().filter(|it| !it.is_empty()).collect();
        Op::Mount {
            source: self.how.source.into(),
            dir: MOUNT_POINT.into(),
            fs: fs.to_owned(),
            options: options.join(","),
            read_only: false,
        }
    }

    fn unmount(&mut self) -> Result<(), Failure> {
        self.target.run(&Op::Unmount { dir: MOUNT_POINT.into() })?;
        Ok(())
    }

    /// Remounts like iozone's -U: all data is on the card, and the cache is empty.
    fn remount(&mut self) -> Result<(), Failure> {
        self.unmount()?;
        self.target.run(&Op::DropCaches)?;
        self.target.run(&self.mount_op())?;
        Ok(())
    }
}

fn pattern(access: Access, order: Order, file_bytes: u64, sync: Sync) -> Pattern {
    Pattern { access, order, file_bytes, record_bytes: RECORD_BYTES, sync }
}

fn file(pattern: Pattern) -> Op {
    Op::Pattern { path: FILE.into(), pattern }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_find_experiments() {
        for experiment in Experiment::ALL {
            assert_eq!(Experiment::named(experiment.name()), Some(experiment));
            assert_eq!(Experiment::named(&experiment.number().to_string()), Some(experiment));
        }
        assert_eq!(Experiment::named("6"), None);
    }
}
