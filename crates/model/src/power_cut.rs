//! Power cuts: a sequence is recorded, and then the power fails at each of its requests.
//!
//! *The oracle*: a cut leaves the newest finished checkpoint, or the one in progress. In addition, each file
//! that was fsynced since then has the state of its last finished fsync, or of the one in progress. No other
//! change is present. A directory that was fsynced has the names of that time. A directory that gets a name
//! back may have other times, and so may an inode that loses a name. A block that was being written in place
//! may be torn between sectors. New content may be missing while its fsync is going on, as on Linux: its nodes may be there
//! without it. Content that was durable before is the old or the new one, unless it was freed in between. A torn node of addresses cannot be detected, because it has no checksum: the file that
//! was being fsynced may then have any content.
//!
//! *Cuts after cuts*: if the power fails again while the volume is opened, the next opening finds the same
//! state. Data fsynced after the opening survives a cut that loses all unflushed writes, together with the
//! state found before.

use std::{collections::HashSet, fmt, sync::Arc};

use anyhow::{Context, Result, anyhow, bail};
use block::{
    ATOMIC_BYTES, Device, MemoryDevice, Overlay, Recording, Request, Rng, Survivors, Verb, power_cut, replay,
    unflushed_writes,
};
use f2fs::{Error, engine::FinalSymlink, format::node::NodeFooter, units::Ino};
use guest::{Bytes, Content, Op};

use crate::{
    difference::{Leeway, Torn, check_with, is_zero},
    fsck::fsck_after_cut,
    generator::Generator,
    model::{Body, Data, Id, Inode, Model, ROOT},
    sequence::{Failure, Pair, shrink},
    setup::{Setup, copy},
    subject::{StepClock, Subject, errno},
    tally::Tally,
};

/// The kind of power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// After each request, once with all writes, and once without the unflushed ones.
    Linear,
    /// After each request this many times, with unflushed writes lost, kept or torn at random.
    Random(u64),
    /// After each request, with every choice of the unflushed writes, up to this many choices.
    Exhaustive(u64),
}

/// One in this many cuts is also judged by fsck.f2fs.
const JUDGED_EVERY: u64 = 97;
/// After one in this many cuts, the volume is cut again while it is opened, then used, and cut once more.
/// After the others it is unmounted.
const CUT_AGAIN_EVERY: usize = 3;
/// Prefix of every failure of a cut.
const CUT: &str = "cut after request";
/// Maximum number of runs to shrink a failure.
const SHRINK_RUNS: usize = 150;

/// The durable states of a recorded sequence, each with the time when it became durable.
pub struct Record {
    setup: Setup,
    start: MemoryDevice,
    trace: Vec<Request>,
    /// Checkpoints. The first is the start.
    commits: Vec<Commit>,
    fsyncs: Vec<Fsync>,
    /// Files of which blocks were freed since their content was last made durable.
    freed: HashSet<Id>,
    tally: Tally,
}

/// A checkpoint, written by the requests from `begun` (included) to `done` (excluded).
struct Commit {
    begun: usize,
    done: usize,
    state: Model,
}

/// An fsync without a checkpoint.
struct Fsync {
    begun: usize,
    done: usize,
    id: Id,
    file: Inode,
    name: (Id, Vec<u8>),
    data_only: bool,
    /// True if blocks of the content that was durable before were freed.
    freed: bool,
    ino: Ino,
    /// Version in the footers of nodes written at that time.
    node_version: u64,
}

/// The end of the use of a volume after a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Unmount,
    /// The power is cut again.
    Cut,
}

impl Record {
    /// Records `steps` random operations from `seed`, including operations that close the device.
    pub fn new(setup: &Setup, seed: u64, steps: usize) -> Result<(Record, Vec<Op>)> {
        let mut generator = Generator::new(setup.mixed(seed), setup.mix.clone());
        let mut ops = Vec::new();
        let record = Record::of(setup, |model| {
            if ops.len() == steps {
                return None;
            }
            ops.push(generator.next(model));
            ops.last().cloned()
        })?;
        Ok((record, ops))
    }

    /// Records these operations.
    pub fn of(setup: &Setup, mut next: impl FnMut(&Model) -> Option<Op>) -> Result<Record> {
        let device = Arc::new(Recording::with_data(setup.make()?));
        let mut pair = Pair::new(setup, device.clone())?;
        pair.step(&Op::Sync)?;
        device.take_trace();
        let start = copy(device.inner())?;
        let first = Commit { begun: 0, done: 0, state: pair.model.at_rest() };
        let mut record = Record {
            setup: setup.clone(),
            start,
            trace: Vec::new(),
            commits: vec![first],
            fsyncs: Vec::new(),
            freed: HashSet::new(),
            tally: Tally::default(),
        };
        while let Some(op) = next(&pair.model) {
            record.step(&mut pair, &op, &device)?;
        }
        record.tally = pair.tally;
        Ok(record)
    }

    fn step(&mut self, pair: &mut Pair, op: &Op, device: &Recording<MemoryDevice>) -> Result<()> {
        let before = pair.model.at_rest();
        let version = pair.subject.volume().last_checkpoint().version;
        let begun = self.trace.len();
        pair.step(op).with_context(|| format!("{op:?}"))?;
        self.trace.extend(changes(device.take_trace()));
        let done = self.trace.len();
        self.freed.extend(files_with_freed_blocks(&before, &pair.model));
        let is_commit = pair.subject.volume().last_checkpoint().version != version;
        if is_commit {
            self.freed.clear();
            self.commits.push(Commit { begun, done, state: before });
            if self.setup.settings.never_in_place() {
                return Ok(());
            }
            // An fsync may have overwritten in place before its checkpoint counts.
        }
        let (id, data_only) = match op {
            Op::Fsync { path, data_only } => (pair.model.find(&path.0).ok(), *data_only),
            Op::FsyncOpen { handle } => (pair.model.open_files().get(handle).copied(), false),
            _ => return Ok(()),
        };
        let Some(id) = id else { return Ok(()) };
        if let Body::Dir(_) = pair.model.inode(id).body {
            return if is_commit { Ok(()) } else { self.check_names(&pair.model, id) };
        }
        let file = pair.model.inode(id).clone();
        let name = pair.model.name_of(id);
        let volume = pair.subject.volume();
        if let (Some(name), true) = (name, file.data().is_some()) {
            let ino = match op {
                Op::Fsync { path, .. } => volume.resolve(&path.0, FinalSymlink::Follow)?,
                Op::FsyncOpen { handle } => pair.subject.opened(*handle).context("it is open")?,
                _ => unreachable!("it is an fsync"),
            };
            let node_version = volume.last_checkpoint().node_version();
            let freed = self.freed.remove(&id);
            self.fsyncs.push(Fsync { begun, done, id, file, name, data_only, freed, ino, node_version });
        }
        Ok(())
    }

    /// Checks that a directory that was fsynced without a checkpoint would return with exactly its names.
    fn check_names(&self, model: &Model, dir: Id) -> Result<()> {
        let commit = self.commits.last().expect("the first is the start");
        let mut state = (commit.state.clone(), Leeway::default());
        let since = self.fsyncs.iter().filter(|fsync| fsync.begun >= commit.done);
        since.for_each(|fsync| fsync.bring_back(&mut state));
        let found = state.0.inodes().find(|(id, _)| *id == dir).map(|(_, inode)| &inode.body);
        match (found, &model.inode(dir).body) {
            (Some(Body::Dir(found)), Body::Dir(promised)) if found.names == promised.names => Ok(()),
            (found, promised) => {
                Err(anyhow!("{CUT} of an fsync of a directory: {found:?} would come back of {promised:?}"))
            }
        }
    }

    /// Cuts the power at every request. Returns the number of cuts, and the number of further cuts after
    /// those.
    ///
    /// # Errors
    /// The first cut that leaves an invalid state.
    pub fn cut_everywhere(&self, mode: Mode) -> Result<(u64, u64)> {
        let flushed = Arc::new(copy(&self.start)?);
        let (mut last_flush, mut count, mut further) = (0, 0, 0);
        for at in 0..=self.trace.len() {
            let so_far = &self.trace[last_flush..at];
            if so_far.last().is_some_and(|request| request.verb == Verb::Flush) {
                replay(so_far, &*flushed)?;
                last_flush = at;
            }
            let pending = &self.trace[last_flush..at];
            for survivors in choices(mode, unflushed_writes(pending, pending.len()).len(), at as u64) {
                count += 1;
                let cut = if count % JUDGED_EVERY == 0 { Self::cut_judged } else { Self::cut };
                further += cut(self, &flushed, pending, at, &survivors)
                    .with_context(|| format!("{CUT} {at} of {}, {survivors:?}", self.trace.len()))?;
            }
        }
        Ok((count, further))
    }

    /// Makes one cut. Returns the number of further cuts.
    fn cut(
        &self,
        flushed: &Arc<MemoryDevice>,
        pending: &[Request],
        at: usize,
        survivors: &Survivors,
    ) -> Result<u64> {
        let device = Overlay::new(flushed.clone());
        power_cut(pending, pending.len(), survivors, &device)?;
        let end = if at % CUT_AGAIN_EVERY == 0 { End::Cut } else { End::Unmount };
        self.examine(Arc::new(device), pending, at, end)
    }

    /// Makes one cut, after which fsck.f2fs judges the volume.
    fn cut_judged(
        &self,
        flushed: &Arc<MemoryDevice>,
        pending: &[Request],
        at: usize,
        survivors: &Survivors,
    ) -> Result<u64> {
        let device = Arc::new(copy(flushed)?);
        power_cut(pending, pending.len(), survivors, &*device)?;
        self.examine(device.clone(), pending, at, End::Unmount)?;
        fsck_after_cut(&device)?;
        Ok(0)
    }

    /// Opens the volume after a cut, compares it with the valid states, and opens it once more after this
    /// end. Returns the number of further cuts.
    fn examine(&self, device: Arc<dyn Device>, pending: &[Request], at: usize, end: End) -> Result<u64> {
        let candidates = self.candidates(&*device, pending, at)?;
        let facts = self.setup.facts;
        let since = Arc::new(Recording::with_data(Overlay::new(device.clone())));
        let opened: Arc<dyn Device> = if end == End::Cut { since.clone() } else { device };
        let mut subject = Subject::open(opened, self.setup.settings, StepClock::default())?;
        let mut differences = Vec::new();
        for (model, leeway) in &candidates {
            if let Err(difference) = check_with(model, &subject, facts, leeway) {
                differences.push(format!("{difference:#}"));
                continue;
            }
            let mut further = 0;
            if end == End::Cut {
                self.cut_opening((model, leeway), &since, at as u64)
                    .context("cut again while it was opened")?;
                further += 1;
                let after = self.cut_after((model, leeway), &mut subject, &since, at as u64);
                if after.context("cut again after it was used")? {
                    return Ok(further + 1);
                }
            }
            subject.apply(&Op::Unmount { dir: "/".into() })?;
            check_with(model, &subject, facts, leeway).context("after recovery and a remount")?;
            return Ok(further);
        }
        let many = candidates.len();
        Err(anyhow!("the state is none of the {many} permitted ones: {}", differences.join("; ")))
    }

    /// Cuts the power at some request after the opening of a volume began. The next opening must find the
    /// same state.
    fn cut_opening(
        &self,
        found: (&Model, &Leeway),
        since: &Recording<Overlay<Arc<dyn Device>>>,
        seed: u64,
    ) -> Result<()> {
        let trace = changes(since.trace());
        let mut rng = Rng::new(seed);
        let at = (rng.next_u64() % (trace.len() as u64 + 1)) as usize;
        let survivors = Survivors::Torn { seed: rng.next_u64() };
        self.open_again(found, since, &trace[..at], &survivors)
            .with_context(|| format!("after {at} of {} requests, {survivors:?}", trace.len()))
    }

    /// Continues after a cut: overwrites and fsyncs one file, then cuts the power and loses everything
    /// unflushed. That file must have its new content, and everything else must be unchanged. Returns true if
    /// there was a file.
    fn cut_after(
        &self,
        (found, leeway): (&Model, &Leeway),
        subject: &mut Subject,
        since: &Recording<Overlay<Arc<dyn Device>>>,
        seed: u64,
    ) -> Result<bool> {
        let mut model = found.clone();
        let is_whole = |id: &Id| leeway.content != Some(*id);
        let names = model.inodes().filter(|(id, inode)| inode.data().is_some() && is_whole(id));
        let in_root = names.filter_map(|(id, _)| model.name_of(id).filter(|(dir, _)| *dir == ROOT));
        let Some(name) = in_root.map(|(_, name)| name).min() else { return Ok(false) };
        let path = Bytes([b"/", &name[..]].concat());
        // Whole sectors: while a file is overwritten, each sector is either all old or all new.
        let content = Content::Noise { seed, length: 18 * ATOMIC_BYTES as u64 };
        let write = Op::Write { path: path.clone(), offset: 0, content };
        match (subject.apply(&write), model.apply(&write, StepClock::default().now())) {
            (Ok(()), Ok(())) => {}
            // No write was made.
            (Err(Error::NoSpace { .. }), _) => return Ok(false),
            (Err(error), Err(wanted)) if errno(&error) == Some(wanted) => return Ok(false),
            (done, wanted) => bail!("writing to {path:?}: {done:?}, wanted {wanted:?}"),
        }
        match subject.apply(&Op::Fsync { path, data_only: false }) {
            Ok(()) => {}
            Err(Error::NoSpace { .. }) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        self.open_again((&model, leeway), since, &changes(since.trace()), &Survivors::None)?;
        Ok(true)
    }

    /// Opens the device after the surviving requests of `trace`, and compares it.
    fn open_again(
        &self,
        (model, leeway): (&Model, &Leeway),
        since: &Recording<Overlay<Arc<dyn Device>>>,
        trace: &[Request],
        survivors: &Survivors,
    ) -> Result<()> {
        let device = Overlay::new(since.inner().base().clone());
        power_cut(trace, trace.len(), survivors, &device)?;
        let subject = Subject::open(Arc::new(device), self.setup.settings, StepClock::default())?;
        check_with(model, &subject, self.setup.facts, leeway)
    }

    /// Returns the states that a cut may leave.
    fn candidates(
        &self,
        device: &dyn Device,
        pending: &[Request],
        at: usize,
    ) -> Result<Vec<(Model, Leeway)>> {
        let last = self.commits.iter().rposition(|commit| commit.done <= at).expect("the first is the start");
        let commit = &self.commits[last];
        let since = self.fsyncs.iter().filter(|fsync| fsync.begun >= commit.done && fsync.begun < at);
        let (done, going): (Vec<&Fsync>, Vec<&Fsync>) = since.partition(|fsync| fsync.done <= at);
        let mut state = (commit.state.clone(), Leeway::default());
        done.iter().for_each(|fsync| fsync.bring_back(&mut state));
        let mut candidates = vec![state.clone()];
        for fsync in going {
            let old = state.0.inodes().find(|(id, _)| *id == fsync.id);
            let mut next = state.clone();
            fsync.bring_back(&mut next);
            candidates.push(next.clone());
            if fsync.has_torn_addresses(device, pending, state.0.rules().block_bytes)? {
                let mut any = next.clone();
                any.1.content = Some(fsync.id);
                candidates.push(any);
            }
            let content = old.and_then(|(_, old)| old.data().cloned()).unwrap_or_default();
            next.1.torn = Some(Torn { id: fsync.id, old: content, freed: fsync.freed });
            candidates.push(next);
            if let (Some((id, old)), true) = (old, !self.setup.settings.never_in_place()) {
                let other = |inode: &Inode| inode.data().cloned().expect("a regular file");
                let mut mixed = state.clone();
                mixed.1.attributes.insert(id);
                mixed.1.sectors = Some((id, other(&fsync.file)));
                debug_assert!(old.data().is_some());
                candidates.push(mixed);
            }
        }
        if let Some(next) = self.commits.get(last + 1).filter(|next| next.begun < at) {
            candidates.push((next.state.clone(), Leeway::default()));
        }
        Ok(candidates)
    }

    /// Makes the device after a cut that follows the first `at` requests.
    pub fn cut_at(&self, at: usize, survivors: &Survivors) -> Result<MemoryDevice> {
        let device = copy(&self.start)?;
        power_cut(&self.trace, at, survivors, &device)?;
        Ok(device)
    }

    /// Returns the number of requests that change the device.
    pub fn requests(&self) -> usize {
        self.trace.len()
    }

    /// Returns the numbers of checkpoints, and of fsyncs without one.
    pub fn promises(&self) -> (usize, usize) {
        (self.commits.len() - 1, self.fsyncs.len())
    }

    /// Returns the counts of the operations.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}

impl Fsync {
    /// Returns true if the device has a node of the file's addresses that passes for the written one and
    /// differs from it.
    fn has_torn_addresses(&self, device: &dyn Device, pending: &[Request], block_bytes: u64) -> Result<bool> {
        for request in pending.iter().filter(|request| request.verb == Verb::Write) {
            let data = request.data.as_deref().context("it was recorded with data")?;
            for (n, written) in data.chunks_exact(block_bytes as usize).enumerate() {
                let footer = NodeFooter::of(written);
                let is_node = footer.cp_ver == self.node_version && footer.ino == self.ino;
                if !is_node || footer.nid == self.ino.into() {
                    continue;
                }
                let mut there = vec![0; written.len()];
                device.read(request.offset_bytes + n as u64 * block_bytes, &mut there)?;
                if there != written && NodeFooter::of(&there) == footer {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn bring_back(&self, (model, leeway): &mut (Model, Leeway)) {
        let mut file = self.file.clone();
        file.links = 1;
        leeway.times.extend(model.bring_back(self.id, &file, &self.name));
        // fdatasync(2) promises only the metadata that reading the data needs.
        match self.data_only {
            true => leeway.attributes.insert(self.id),
            false => leeway.attributes.remove(&self.id),
        };
    }
}

/// Returns the files that have lost blocks, or the content of blocks, by an operation.
fn files_with_freed_blocks(before: &Model, after: &Model) -> Vec<Id> {
    let old = before.inodes().filter_map(|(id, inode)| Some((id, inode.data()?)));
    let has_freed = |id: Id, old: &Data| {
        let new = after.inodes().find(|(other, _)| *other == id).and_then(|(_, inode)| inode.data());
        new.is_some_and(|new| {
            let is_freed = |(block, bytes): (&u64, &Arc<Vec<u8>>)| match new.blocks.get(block) {
                Some(now) => !Arc::ptr_eq(bytes, now) && is_zero(now) && !is_zero(bytes),
                None => true,
            };
            new.size < old.size || old.blocks.iter().any(is_freed)
        })
    };
    old.filter(|(id, data)| has_freed(*id, data)).map(|(id, _)| id).collect()
}

/// Keeps only the requests that change a device.
fn changes(trace: Vec<Request>) -> Vec<Request> {
    trace.into_iter().filter(|request| request.verb != Verb::Read).collect()
}

/// Returns the surviving `unflushed` writes of each cut at one request.
fn choices(mode: Mode, unflushed: usize, at: u64) -> Vec<Survivors> {
    if unflushed == 0 {
        return vec![Survivors::None];
    }
    match mode {
        Mode::Linear => vec![Survivors::None, Survivors::All],
        Mode::Random(times) => (0..times).map(|n| Survivors::Torn { seed: at << 16 | n }).collect(),
        Mode::Exhaustive(most) if unflushed < 63 && 1 << unflushed <= most => {
            (0..1 << unflushed).map(Survivors::Mask).collect()
        }
        Mode::Exhaustive(most) => {
            let mut rng = Rng::new(at);
            let some = (0..most - 2).map(|_| Survivors::Mask(rng.next_u64()));
            some.chain([Survivors::None, Survivors::All]).collect()
        }
    }
}

/// Records `steps` operations from `seed` and cuts the power everywhere.
///
/// # Errors
/// A cut that leaves an invalid state: a description, with the shortest sequence found.
pub fn torture(setup: &Setup, seed: u64, steps: usize, mode: Mode) -> std::result::Result<Cuts, String> {
    let (record, ops) = Record::new(setup, seed, steps)
        .map_err(|error| format!("{}, seed {seed}, without a cut: {error:#}", setup.name))?;
    let (cuts, further) = record.cut_everywhere(mode).map_err(|error| {
        let whole = format!("{error:#}");
        // Without the operation that made a path, others may fail by themselves. That does not count.
        let same = |error: &anyhow::Error| format!("{error:#}").contains(CUT);
        let failure =
            shrink(Failure { ops, error }, SHRINK_RUNS, |ops| run(setup, ops, mode).err().filter(same));
        format!("{}(unshrunk: {whole})", failure.report(setup, seed))
    })?;
    let (checkpoints, fsyncs) = record.promises();
    Ok(Cuts { cuts, further, requests: record.requests(), checkpoints, fsyncs, tally: record.tally })
}

/// Numbers of cuts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cuts {
    /// Power cuts.
    pub cuts: u64,
    /// Power cuts after one of those.
    pub further: u64,
    /// Requests that change the device, after each of which the power was cut.
    pub requests: usize,
    /// Checkpoints among them.
    pub checkpoints: usize,
    /// Fsyncs without a checkpoint.
    pub fsyncs: usize,
    /// Counts of the sequence's operations.
    pub tally: Tally,
}

impl fmt::Display for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} power cuts, {} more after those, at {} requests of {} checkpoints and {} fsyncs",
            self.cuts, self.further, self.requests, self.checkpoints, self.fsyncs
        )
    }
}

/// Records a sequence and cuts the power everywhere.
fn run(setup: &Setup, ops: &[Op], mode: Mode) -> Result<(u64, u64)> {
    let mut ops = ops.iter();
    Record::of(setup, |_| ops.next().cloned())?.cut_everywhere(mode)
}
