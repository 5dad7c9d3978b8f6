//! Experiments 1 to 4: buffered writes, writes with fsync, mounts and cold reads of one file on a card, as
//! jeong-2012 measured them with iozone (`-i 0 -i 1 -i 2 -r 4k -+n -e -U`).
//!
//! One guest does the writes and reads, with a remount before each, and a second one, booted on the card that
//! the first one left, the mount after a reboot.

use std::{io, path::Path};

use block::{FileDevice, Geometry, OpenOptions, vhost_user::Traits};
use flash::{Model, Profile, Trace};
use guest::{
    Op, Pattern,
    pattern::{Access, Order, Sync},
};
use serde::{Deserialize, Serialize};

use crate::{
    format::FileSystem,
    guest::{Card, Failure, Limits, Measured, Setup, Totals, Uml},
};

/// Length of a record in every one of these experiments.
const RECORD_BYTES: u32 = 4096;
/// Picks the random orders.
const SEED: u64 = 2012;
const DISK: &str = "/disk/card";
const MOUNT_POINT: &str = "/mnt";
const FILE: &str = "/mnt/iozone.tmp";
/// The only disk of the guest that is a card.
const QUEUE: &str = "/sys/block/vda/queue";

/// How large, and on what.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The card.
    pub profile: Profile,
    /// The file of the buffered writes and reads; originally 1 GiB.
    pub buffered_bytes: u64,
    /// The file of the writes with fsync; originally 100 MiB.
    pub fsync_bytes: u64,
    /// Dirty data at which the guest begins to write back, and at which a writer has to wait.
    pub dirty_bytes: (u64, u64),
    /// The guest's memory, in MiB.
    pub memory_mib: u32,
    /// Whether every request to the card is remembered.
    pub trace: bool,
}

impl Plan {
    /// The originals' proportions with a file of `buffered_bytes`: a tenth of it for the writes with fsync,
    /// and dirty limits of 7 and 14 % of it, though not below 4 and 8 MiB: nilfs2, which writes whole segments,
    /// would wait for its timer with less.
    pub fn scaled(profile: Profile, buffered_bytes: u64) -> Plan {
        let whole = |bytes: u64| bytes / u64::from(RECORD_BYTES) * u64::from(RECORD_BYTES);
        Plan {
            profile,
            buffered_bytes: whole(buffered_bytes),
            fsync_bytes: whole(buffered_bytes / 10),
            dirty_bytes: ((buffered_bytes / 100 * 7).max(4 << 20), (buffered_bytes / 100 * 14).max(8 << 20)),
            memory_mib: 256 + (buffered_bytes >> 19) as u32,
            trace: false,
        }
    }
}

/// Where the guest's programs lie.
#[derive(Debug, Clone)]
pub struct Programs<'a> {
    /// User-mode Linux with time travel.
    pub kernel: &'a Path,
    /// The guest's init.
    pub agent: &'a Path,
}

/// One part of the experiments and what it took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Which.
    pub part: Part,
    /// When it was begun, on the guest's clock, which is that of the traces.
    pub started_ns: u64,
    /// What it took of the guest's time.
    pub duration_ns: u64,
    /// Records written or read; 1 for a mount.
    pub records: u64,
    /// What reached the card.
    pub totals: Totals,
}

/// The parts, in the order in which they are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Part {
    MountAfterFormat,
    BufferedSequentialWrite,
    SequentialRead,
    RandomRead,
    BufferedRandomWrite,
    SequentialWriteFsync,
    RandomWriteFsync,
    MountAfterReboot,
}

impl Phase {
    /// Records a second.
    pub fn iops(&self) -> f64 {
        self.records as f64 / self.seconds()
    }

    /// Megabytes (10^6) a second.
    pub fn mb_per_s(&self) -> f64 {
        self.iops() * f64::from(RECORD_BYTES) / 1e6
    }

    /// Milliseconds.
    pub fn ms(&self) -> f64 {
        self.seconds() * 1e3
    }

    fn seconds(&self) -> f64 {
        self.duration_ns.max(1) as f64 / 1e9
    }
}

/// What a run gave.
#[derive(Debug, Clone)]
pub struct Run {
    /// The parts, in order.
    pub phases: Vec<Phase>,
    /// Requests to the card of the first and the second guest, where the plan says so.
    pub traces: Vec<Trace>,
}

/// Does all parts on a new volume in the file `image`.
///
/// # Errors
/// The volume cannot be made, or a guest fails.
pub fn run(
    plan: &Plan,
    file_system: &FileSystem,
    programs: &Programs<'_>,
    image: &Path,
) -> Result<Run, Failure> {
    file_system.format(image, plan.profile.size_bytes)?;
    let mut run = Run { phases: Vec::new(), traces: Vec::new() };
    let mut lab = Bench::boot(plan, file_system, programs, image, Model::new(plan.profile.clone(), true))?;

    run.phases.push(lab.mount(Part::MountAfterFormat)?);
    let sizes = (plan.buffered_bytes, plan.fsync_bytes);
    let random = Order::Random { seed: SEED };
    let (sequential, end, each, never) = (Order::Sequential, Sync::End, Sync::Each, Sync::Never);
    for (part, access, order, sync, bytes) in [
        (Part::BufferedSequentialWrite, Access::Create, sequential, end, sizes.0),
        (Part::SequentialRead, Access::Read, sequential, never, sizes.0),
        (Part::RandomRead, Access::Read, random, never, sizes.0),
        (Part::BufferedRandomWrite, Access::Overwrite, random, end, sizes.0),
        (Part::SequentialWriteFsync, Access::Create, sequential, each, sizes.1),
        (Part::RandomWriteFsync, Access::Overwrite, random, each, sizes.1),
    ] {
        if part == Part::SequentialWriteFsync {
            lab.uml.run(&Op::Unlink { path: FILE.into() })?;
        }
        if access != Access::Create {
            lab.remount()?;
        }
        let pattern = Pattern { access, order, file_bytes: bytes, record_bytes: RECORD_BYTES, sync };
        let measured = lab.uml.run(&Op::Pattern { path: FILE.into(), pattern })?;
        run.phases.push(phase(part, &measured, bytes / u64::from(RECORD_BYTES)));
    }
    lab.uml.run(&Op::Unmount { dir: MOUNT_POINT.into() })?;
    run.traces.extend(lab.uml.world().card().trace().cloned());

    // The card stays plugged in while the machine reboots; nothing is under way.
    let state = lab.uml.world().card().model().state().clone();
    drop(lab);
    let model = Model::resume(plan.profile.clone(), state);
    let mut lab = Bench::boot(plan, file_system, programs, image, model)?;
    run.phases.push(lab.mount(Part::MountAfterReboot)?);
    lab.uml.run(&Op::Unmount { dir: MOUNT_POINT.into() })?;
    run.traces.extend(lab.uml.world().card().trace().cloned());
    Ok(run)
}

/// A guest with the card and its settings.
struct Bench<'a> {
    uml: Uml<Model>,
    file_system: &'a FileSystem,
}

impl<'a> Bench<'a> {
    fn boot(
        plan: &Plan,
        file_system: &'a FileSystem,
        programs: &Programs<'_>,
        image: &Path,
        model: Model,
    ) -> Result<Bench<'a>, Failure> {
        let host = plan.profile.host.clone();
        let data = FileDevice::open(image, OpenOptions { write: true, direct: false })?;
        let card = Card::new(model, Box::new(data));
        let setup = Setup {
            kernel: programs.kernel.to_owned(),
            agent: programs.agent.to_owned(),
            memory_mib: plan.memory_mib,
            queue_depth: host.queue_depth,
            traits: traits(&plan.profile),
            limits: Limits::default(),
        };
        let card = if plan.trace { card.traced() } else { card };
        let mut uml = Uml::boot(&setup, card)?;
        let kib = host.max_request_bytes / 1024;
        for (path, value) in [
            (format!("{QUEUE}/max_sectors_kb"), u64::from(kib)),
            ("/proc/sys/vm/dirty_background_bytes".into(), plan.dirty_bytes.0),
            ("/proc/sys/vm/dirty_bytes".into(), plan.dirty_bytes.1),
        ] {
            let value = value.to_string();
            uml.run(&Op::Tune { path: path.as_str().into(), value: value.as_str().into() })?;
        }
        Ok(Bench { uml, file_system })
    }

    fn mount(&mut self, part: Part) -> Result<Phase, Failure> {
        let measured = self.uml.run(&self.mount_op())?;
        Ok(phase(part, &measured, 1))
    }

    /// As iozone's -U does: what was written is on the card, and nothing is in the cache.
    fn remount(&mut self) -> Result<(), Failure> {
        self.uml.run(&Op::Unmount { dir: MOUNT_POINT.into() })?;
        self.uml.run(&Op::DropCaches)?;
        self.uml.run(&self.mount_op())?;
        Ok(())
    }

    fn mount_op(&self) -> Op {
        Op::Mount {
            source: DISK.into(),
            dir: MOUNT_POINT.into(),
            fs: self.file_system.kind.clone(),
            options: self.file_system.mount.clone(),
            read_only: false,
        }
    }
}

/// What a guest sees of a card of this profile.
pub fn traits(profile: &Profile) -> Traits {
    Traits {
        geometry: Geometry { size_bytes: profile.size_bytes, sector_bytes: 512 },
        serial: "card".into(),
        write_cache: profile.host.flush,
        discard: profile.host.discard,
        read_only: false,
    }
}

fn phase(part: Part, measured: &Measured, records: u64) -> Phase {
    let duration_ns = measured.duration_ns();
    Phase { part, started_ns: measured.started_ns, duration_ns, records, totals: measured.totals }
}

/// The figures that were published for a part: by file system, on the desktop.
///
/// # Errors
/// The data file has none.
pub fn published(part: Part, kind: &str) -> io::Result<Option<f64>> {
    published_on("desktop", part, kind)
}

/// The same on `desktop` or `galaxy_s3`.
///
/// # Errors
/// The data file has none.
pub fn published_on(host: &str, part: Part, kind: &str) -> io::Result<Option<f64>> {
    let text = include_str!("../../../testdata/reference/jeong-2012.toml");
    let data: toml::Table = toml::from_str(text).map_err(io::Error::other)?;
    let (experiment, figure) = match part {
        Part::MountAfterFormat => ("mount", "after_format"),
        Part::MountAfterReboot => ("mount", "after_reboot"),
        Part::BufferedSequentialWrite => ("buffered_write", "sequential"),
        Part::BufferedRandomWrite => ("buffered_write", "random"),
        Part::SequentialRead => ("buffered_read", "sequential"),
        Part::RandomRead => ("buffered_read", "random"),
        Part::SequentialWriteFsync => ("write_fsync", "sequential"),
        Part::RandomWriteFsync => ("write_fsync", "random"),
    };
    let below = |value: &toml::Value, key: &str| value.get(key).cloned();
    let value = below(&toml::Value::Table(data), "experiment")
        .and_then(|value| below(&value, experiment))
        .and_then(|value| below(&value, host))
        .and_then(|value| below(&value, kind))
        .and_then(|value| below(&value, figure));
    Ok(value.and_then(|value| value.as_float().or(value.as_integer().map(|n| n as f64))))
}

impl Part {
    /// The parts, in the order in which they are done.
    pub const ALL: [Part; 8] = [
        Part::MountAfterFormat,
        Part::BufferedSequentialWrite,
        Part::SequentialRead,
        Part::RandomRead,
        Part::BufferedRandomWrite,
        Part::SequentialWriteFsync,
        Part::RandomWriteFsync,
        Part::MountAfterReboot,
    ];

    /// The figure of a phase in the unit in which it was published, and the unit.
    pub fn figure(self, phase: &Phase) -> (f64, &'static str) {
        match self {
            Part::MountAfterFormat | Part::MountAfterReboot => (phase.ms(), "ms"),
            Part::BufferedSequentialWrite | Part::SequentialRead => (phase.mb_per_s(), "MB/s"),
            Part::SequentialWriteFsync => (phase.iops() * f64::from(RECORD_BYTES) / 1024.0, "KB/s"),
            Part::RandomRead | Part::BufferedRandomWrite | Part::RandomWriteFsync => (phase.iops(), "IOPS"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_with_their_units_and_the_published_ones_are_there() {
        let phase = |part, duration_ns, records| {
            let totals = Totals::default();
            Phase { part, started_ns: 0, duration_ns, records, totals }
        };
        let written = phase(Part::BufferedSequentialWrite, 1_000_000_000, 2500);
        assert_eq!(written.part.figure(&written), (10.24, "MB/s"));
        let synced = phase(Part::SequentialWriteFsync, 1_000_000_000, 100);
        assert_eq!(synced.part.figure(&synced), (400.0, "KB/s"));
        assert_eq!(published(Part::BufferedRandomWrite, "f2fs").unwrap(), Some(2675.0));
        assert_eq!(published(Part::MountAfterReboot, "nilfs2").unwrap(), Some(1013.0));
        assert_eq!(published(Part::MountAfterReboot, "vfat").unwrap(), None);
    }
}
