//! One volume that Linux and our engine write in turns, with clean and unclean ends on both sides.
//!
//! After each turn both read it: Linux in the judge's machine, and the engine. Their manifests must be equal,
//! and fsck.f2fs must find nothing. The operations are random. The model only tells the generator the state
//! of the volume, and whether an operation can be done.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use block::MemoryDevice;
use f2fs::{
    engine::{Engine, Options},
    units::Time,
};
use guest::{Bytes, Manifest, Op, Scope, differences, op::Allocate};
use model::{
    Generator, HANDLES, Model, Setup, StepClock, Subject,
    fsck::fsck,
    manifest::{excuse_recovered_directories, manifest_of},
    setup::{Maker, copy, load_parts, parts, store_parts},
};
use rustix::io::Errno;

use crate::{
    interrupt,
    judge::kernel::Machine,
    judge::kernel_log::complaints,
    judge::link_devices,
    judge::vm::{Disk, Vm},
};

/// Number of operations per turn.
const OPS: usize = 120;
/// Maximum number of reported differences.
const DIFFERENCES: usize = 8;
/// Mount point of the volume.
const PLACE: &str = "/mnt/0";
/// Linux's mount options. The judge's own reads must leave no trace.
const OPTIONS: &str = "noatime,background_gc=off";
/// Size from which on Linux is not asked to insert or collapse a range. It moves the following data in pieces
/// as long as the range, including holes, and so takes hours to insert one block before terabytes of holes
/// (Linux, `f2fs_insert_range`).
const FAR_BYTES: u64 = 1 << 30;

/// Linux 6.1 also uses the last word of the space for attributes, which older versions and the engine keep
/// zero (Linux, `MIN_OFFSET`).
const LAST_WORD: usize = size_of::<u32>();

/// Counts of a game.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Turns, of Linux and of the engine together.
    pub turns: u32,
    /// Turns that ended without an unmount.
    pub unclean: u32,
    /// Operations.
    pub operations: u64,
    /// Linux's slowest operation, with its time.
    pub slowest: (Duration, String),
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} turns, {} of them with an unclean end, {} operations; the longest operation of Linux: {:.1} s for {}",
            self.turns,
            self.unclean,
            self.operations,
            self.slowest.0.as_secs_f64(),
            self.slowest.1
        )
    }
}

/// Plays `rounds` rounds, of one turn each of Linux and of the engine, on a volume of the kind `setup`.
///
/// # Errors
/// The first disagreement.
pub fn play(setup: &Setup, seed: u64, rounds: u32) -> Result<Tally> {
    let dir = tempfile::tempdir()?;
    let start = setup.make()?;
    let disks = store_parts(&start, dir.path())?;
    let names: Vec<String> = parts(&start)?.into_iter().map(|(name, _)| name).collect();
    let cut = names.iter().map(|name| dir.path().join(format!("{name} after a cut"))).collect();
    let machine = match setup.maker {
        Maker::Own16K(_) => Machine::Arm64With16K,
        Maker::Tool(_) | Maker::OwnOn(_) | Maker::Encrypted(..) => Machine::Amd64,
    };
    let writable: Vec<Disk> = disks.iter().map(Disk::writable).collect();
    let mut vm = Vm::boot(machine, &writable)?;
    if names.len() > 1 {
        let names: Vec<Bytes> = names.iter().map(|name| format!("/{name}").as_str().into()).collect();
        vm.run_all(link_devices(&names, 0))?;
    }
    let mut mix = setup.mix.clone();
    // Each side opens and closes the volume by itself.
    (mix.remount, mix.fill, mix.write_bytes_max, mix.blocks_max) = (false, false, 16 << 10, 1500);
    let device = Arc::new(start);
    let mut game = Game {
        setup,
        vm,
        disks,
        cut,
        generator: Generator::new(setup.mixed(seed), mix),
        model: model_of(setup, &device, 0)?,
        clock: StepClock::default(),
        device,
        tally: Tally::default(),
    };
    for round in 0..rounds {
        // Over four rounds, each side ends cleanly and uncleanly after both kinds of end of the other.
        let (theirs, ours) = (End::of(round), End::of(round / 2));
        game.linux(theirs).with_context(|| format!("round {round}: Linux, {theirs:?}"))?;
        game.ours(ours).with_context(|| format!("round {round}: ours, {ours:?}"))?;
    }
    Ok(game.tally)
}

/// End of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The volume is unmounted.
    Clean,
    /// The power is cut, or the engine is dropped.
    Unclean,
}

impl End {
    /// Returns the two ends in turn.
    fn of(n: u32) -> End {
        if n % 2 == 0 { End::Clean } else { End::Unclean }
    }
}

struct Game<'a> {
    setup: &'a Setup,
    vm: Vm,
    /// The machine's files of the volume's devices, and the files that a cut leaves.
    disks: Vec<PathBuf>,
    cut: Vec<PathBuf>,
    generator: Generator,
    model: Model,
    clock: StepClock,
    /// The volume's current state.
    device: Arc<MemoryDevice>,
    tally: Tally,
}

impl Game<'_> {
    /// Linux writes.
    fn linux(&mut self, end: End) -> Result<()> {
        self.model = model_of(self.setup, &self.device, LAST_WORD)?;
        self.mount()?;
        for _ in 0..OPS {
            interrupt::check()?;
            let op = self.next_op();
            let before = self.model.clone();
            let wanted = self.model.apply(&op, self.clock.step());
            let done = self.timed(&op, |vm| vm.attempt(below(&op, PLACE)))?;
            let seen = done.map(drop).map_err(|refusal| Errno::from_raw_os_error(refusal.errno));
            self.agree(&op, seen, wanted, before)?;
        }
        let close = (0..HANDLES).map(|handle| Op::Close { handle });
        if end == End::Unclean {
            self.vm.cut(0, &self.cut)?;
            self.vm.run_all(close)?;
            self.unmount()?;
            self.device = Arc::new(load_parts(&self.cut)?);
            return self.finish(end);
        }
        self.vm.run_all(close.chain([Op::Sync]))?;
        let told = self.manifest()?;
        self.unmount()?;
        self.device = Arc::new(load_parts(&self.disks)?);
        self.compare(&told, End::Clean)?;
        self.finish(end)
    }

    /// Returns the next operation that both sides support. In Linux the root is a mount point, whose name is
    /// in another file system.
    fn next_op(&mut self) -> Op {
        loop {
            match self.generator.next(&self.model) {
                Op::Rename { from, to } | Op::RenameNew { from, to } | Op::Exchange { from, to }
                    if [&from, &to].contains(&&Bytes::from("/")) => {}
                Op::Allocate { path, how: Allocate::Collapse | Allocate::Insert, .. }
                    if self.model.size_of(&path.0).is_some_and(|size| size > FAR_BYTES) => {}
                // Linux does that only to files that are not open for writing.
                Op::Release { path } | Op::Reserve { path } if self.model.is_open(&path.0) => {}
                // Linux 6.1 makes no holes in compressed files.
                Op::Allocate { path, how: Allocate::Punch | Allocate::Zero, .. }
                    if self.model.is_compressed(&path.0) => {}
                // Unlike the engine, Linux does not refuse to give such a file blocks while its unneeded
                // blocks are released.
                Op::Allocate { path, .. } if self.model.is_released(&path.0) => {}
                op => return op,
            }
        }
    }

    /// We write.
    fn ours(&mut self, end: End) -> Result<()> {
        let device = Arc::new(copy(&self.device)?);
        let mut subject = Subject::open(device.clone(), self.setup.settings, self.clock.clone())?;
        for _ in 0..OPS {
            let op = self.next_op();
            let now = self.clock.step();
            let done = subject.apply(&op);
            let seen = match done {
                Ok(()) => Ok(()),
                Err(error) => {
                    let errno = model::subject::errno(&error);
                    Err(errno.with_context(|| format!("{op:?}: {error}"))?)
                }
            };
            let before = self.model.clone();
            let wanted = self.model.apply(&op, now);
            self.agree(&op, seen, wanted, before)?;
        }
        match end {
            End::Clean => subject.unmount()?,
            End::Unclean => drop(subject),
        }
        self.device = device;
        self.finish(end)
    }

    /// Compares the manifests of both sides, then updates the model from the volume.
    fn finish(&mut self, end: End) -> Result<()> {
        self.mount()?;
        let told = self.manifest()?;
        self.unmount()?;
        self.compare(&told, end)?;
        // The volume must be clean after Linux's recovery, and after the engine's.
        fsck(&load_parts(&self.disks)?).context("after Linux")?;
        let recovered = copy(&self.device)?;
        let shared = Arc::new(recovered);
        let volume = Engine::open(shared.clone(), Options::new(Time::default))?;
        drop(volume);
        fsck(&shared).context("after us")?;
        self.model = model_of(self.setup, &self.device, 0)?;
        self.tally.turns += 1;
        self.tally.unclean += u32::from(end == End::Unclean);
        Ok(())
    }

    /// Compares Linux's manifest with ours, after a turn with this end.
    fn compare(&self, linux: &Manifest, end: End) -> Result<()> {
        let volume = Engine::open(self.device.clone(), Options::read_only())?;
        let mut ours = manifest_of(&volume);
        if end == End::Unclean {
            excuse_recovered_directories(linux, &mut ours);
        }
        let found = differences(linux, &ours, Scope::Volume, DIFFERENCES);
        ensure!(found.is_empty(), "Linux != ours:\n{}", found.join("\n"));
        Ok(())
    }

    /// Gives the current volume to Linux.
    fn mount(&mut self) -> Result<()> {
        store_parts(&self.device, self.disks[0].parent().context("a directory")?)?;
        let options = format!("{OPTIONS},{}", self.setup.linux).trim_end_matches(',').to_owned();
        let op = Op::Mount {
            source: "/disk/0".into(),
            dir: PLACE.into(),
            fs: "f2fs".into(),
            options,
            read_only: false,
        };
        let outcome = self.timed(&op, |vm| vm.run(op.clone()))?;
        let bad = complaints(&outcome.log);
        ensure!(bad.is_empty(), "the kernel logged errors:\n{}", bad.join("\n"));
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        let op = Op::Unmount { dir: PLACE.into() };
        self.timed(&op, |vm| vm.run(op.clone())).map(drop)
    }

    /// Reads Linux's manifest of the volume.
    fn manifest(&mut self) -> Result<Manifest> {
        let op = Op::Manifest { dir: PLACE.into() };
        self.timed(&op, |vm| vm.run(op.clone()))?.manifest.context("a manifest")
    }

    /// Has Linux execute an operation, and records the time if it is the slowest.
    fn timed<T>(&mut self, op: &Op, act: impl FnOnce(&mut Vm) -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let done = act(&mut self.vm)?;
        if started.elapsed() > self.tally.slowest.0 {
            self.tally.slowest = (started.elapsed(), serde_json::to_string(op)?);
        }
        Ok(done)
    }

    /// Checks that both sides agree on whether an operation can be done. If it cannot, for several reasons,
    /// their errors may differ.
    fn agree(
        &mut self,
        op: &Op,
        seen: Result<(), Errno>,
        wanted: Result<(), Errno>,
        before: Model,
    ) -> Result<()> {
        self.tally.operations += 1;
        let is_full = [Err(Errno::NOSPC), Err(Errno::TOOBIG)].contains(&seen);
        if matches!(op, Op::SetXattr { .. }) && is_full {
            // The space for attributes depends on the space in the inode, which the inode's creator chose.
            self.model = before;
            return Ok(());
        }
        if seen.is_ok() != wanted.is_ok() && !matches!(op, Op::Collect { .. }) {
            bail!("{op:?}: {seen:?}, wanted {wanted:?}");
        }
        Ok(())
    }
}

/// Makes a model of the volume for the generator: names and sizes, not contents. `more_bytes` is the
/// additional space for attributes on the side whose turn it is, compared with the engine.
fn model_of(setup: &Setup, device: &Arc<MemoryDevice>, more_bytes: usize) -> Result<Model> {
    let mut subject = Subject::open(Arc::new(copy(device)?), setup.settings, StepClock::default())?;
    let mut rules = model::subject::rules(&mut subject)?;
    rules.xattr_bytes_max += more_bytes;
    Model::of_volume(subject.volume(), rules).map_err(Into::into)
}

/// Returns the operation with its paths below `dir`.
fn below(op: &Op, dir: &str) -> Op {
    let mut op = op.clone();
    let put = |path: &mut Bytes| *path = Bytes([dir.as_bytes(), &path.0].concat());
    match &mut op {
        Op::Mkdir { path, .. }
        | Op::Rmdir { path }
        | Op::Write { path, .. }
        | Op::Truncate { path, .. }
        | Op::Allocate { path, .. }
        | Op::Symlink { path, .. }
        | Op::Unlink { path }
        | Op::Mknod { path, .. }
        | Op::SetXattr { path, .. }
        | Op::RemoveXattr { path, .. }
        | Op::Chmod { path, .. }
        | Op::Chown { path, .. }
        | Op::Times { path, .. }
        | Op::Fsync { path, .. }
        | Op::Flags { path, .. }
        | Op::Release { path }
        | Op::Reserve { path }
        | Op::Open { path, .. }
        | Op::OpenNameless { dir: path, .. }
        | Op::LinkOpen { to: path, .. }
        | Op::Collect { path }
        | Op::Checkpoint { path } => put(path),
        Op::Rename { from, to }
        | Op::RenameNew { from, to }
        | Op::Exchange { from, to }
        | Op::Link { from, to } => {
            put(from);
            put(to);
        }
        _ => {}
    }
    op
}
