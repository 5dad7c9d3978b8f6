//! Our own file system in this process: the engine on the modelled card in virtual time.
//!
//! This target adds only the work of a kernel: it caches pages and blocks, reads ahead, keeps the queue of the card
//! filled, and writes a checkpoint at the mount's interval. Writes go to the engine at once.

use std::{io, path::Path, sync::Arc, time::Instant};

use block::{Device, FileDevice, OpenOptions};
use f2fs::{
    engine::{self, Caller, Engine, FinalSymlink, NewNode, SyncScope},
    format::FileType,
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Overprovision, Plan},
    units::{Ino, Time},
};
use flash::{
    Card, Clock, Condition, Model, Pace, Trace,
    counters::{Counters, HostCounters},
};
use fuse::{Medium, MountOptions};
use guest::{
    Op, Overwrites, Pattern,
    op::Answer,
    pattern::{Access, RecordFile},
    tree::Planter,
    workload::Stage,
};

use super::{
    MOUNT_POINT, Setting, Target,
    block_cache::BlockCache,
    null_target::NullTarget,
    queue::{QueuedCard, has_queue},
    read_ahead::{Demand, Fetched, Pages},
    workloads,
};
use crate::{
    rivals::{MADE_AT, UUID_BYTES},
    stop::Stop,
    vm::{EPOCH_NS, Failure, Measured, Totals},
    wear::Wear,
};

/// Linux errno for a full device.
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;
/// Tick of the clock for timestamps, as in the guest's kernel: 10 ms.
const TICK_NS: u64 = 10_000_000;

/// Maximum size of the block cache, independent of the machine's memory.
const BLOCK_CACHE_BYTES_MAX: u64 = 512 << 20;

/// The device of the volume.
#[derive(Clone)]
pub(super) enum Disk {
    /// The modelled card, with its clock.
    Card(Arc<Card>),
    /// Only the card's data, in real time since this instant: the model's processor time is not a cost of the
    /// file system.
    Data(Arc<FileDevice>, Instant),
}

impl Disk {
    fn device(&self) -> Arc<dyn Device> {
        match self {
            Disk::Card(card) if has_queue(card) => Arc::new(QueuedCard::new(card.clone())),
            Disk::Card(card) => card.clone(),
            Disk::Data(data, _) => data.clone(),
        }
    }

    /// Reads from a file. On a card with a queue, a kernel does not wait for what it reads ahead.
    pub fn fetch(
        &self,
        volume: &Engine,
        ino: Ino,
        demand: Demand,
        at: u64,
        buf: &mut [u8],
    ) -> io::Result<Fetched> {
        match self {
            Disk::Card(card) if demand == Demand::Ahead && has_queue(card) => {
                // A kernel waits for the nodes with the addresses.
                let inode = volume.inode(ino).map_err(to_io)?;
                let block_bytes = volume.superblock().block_size.bytes() as u64;
                for byte in [at, at + (buf.len() as u64).max(1) - 1] {
                    let _loaded = volume.address(&inode, byte / block_bytes);
                }
                let (read, ready_ns) = card.without_waiting(|| volume.read(ino, at, buf));
                Ok(Fetched { bytes: read.map_err(to_io)?, ready_ns })
            }
            _ => Ok(Fetched { bytes: volume.read(ino, at, buf).map_err(to_io)?, ready_ns: self.now_ns() }),
        }
    }

    /// Waits until the card's clock is at least `at_ns`.
    pub fn wait_until_ns(&self, at_ns: u64) {
        if let Disk::Card(card) = self {
            card.wait_until_ns(at_ns);
        }
    }

    pub fn now_ns(&self) -> u64 {
        match self {
            Disk::Card(card) => card.now_ns(),
            Disk::Data(_, started) => started.elapsed().as_nanos() as u64,
        }
    }

    fn counters(&self) -> Counters {
        match self {
            Disk::Card(card) => card.with_model(|model| model.counters().clone()),
            Disk::Data(..) => Counters::default(),
        }
    }
}

/// The engine with its card.
pub struct EngineTarget {
    disk: Disk,
    options: MountOptions,
    memory_bytes: u64,
    dirty_bytes: u64,
    stop: Stop,
    mounted: Option<Mounted>,
}

impl EngineTarget {
    /// Formats the file `image`.
    pub(super) fn start(setting: &Setting, image: &Path) -> Result<EngineTarget, Failure> {
        EngineTarget::on(setting, make(setting, image)?)
    }

    /// Opens the file `image`, which contains a volume.
    pub(super) fn start_on(setting: &Setting, image: &Path) -> Result<EngineTarget, Failure> {
        let data = FileDevice::open(image, OpenOptions { write: true, direct: false })?;
        EngineTarget::on(setting, Arc::new(data))
    }

    fn on(setting: &Setting, data: Arc<FileDevice>) -> Result<EngineTarget, Failure> {
        let profile = &setting.profile;
        let spec = &setting.file_system;
        let mut options = MountOptions::default();
        let memory_bytes = u64::from(setting.preset.memory_mib(&setting.scale)) << 20;
        // A kernel would cache nodes in the page cache, limited only by the memory.
        options.cache_bytes = memory_bytes as usize;
        // The card gets the requests of the engine unchanged: no page cache merges them.
        options.direct = true;
        options.apply(&spec.mount).map_err(|error| invalid(error.to_string()))?;
        let disk = match setting.pace {
            Pace::Virtual => {
                let card = Card::from_parts(
                    Model::new(profile.clone(), Condition::Preconditioned),
                    Box::new(data),
                    Pace::Virtual,
                );
                if setting.traced {
                    card.start_trace();
                }
                Disk::Card(Arc::new(card))
            }
            Pace::RealTime => Disk::Data(data, Instant::now()),
        };
        Ok(EngineTarget {
            disk,
            options,
            memory_bytes,
            dirty_bytes: setting.preset.dirty_bytes(&setting.scale).0,
            stop: setting.stop.clone(),
            mounted: None,
        })
    }

    fn perform(&mut self, op: &Op) -> Result<Option<Answer>, Failure> {
        if let Op::Mount { .. } = op {
            if self.mounted.is_some() {
                return Err(invalid("it is mounted already".into()));
            }
            self.mounted = Some(self.mount().map_err(|error| refused("mount", &error))?);
            return Ok(None);
        }
        if let Op::DropCaches = op {
            return Ok(None); // pages stay while a file is open, and are dropped with the mount
        }
        let Some(mounted) = &mut self.mounted else { return Err(invalid("nothing is mounted".into())) };
        let done = match op {
            Op::Unmount { .. } => {
                let unmounted = mounted.volume.unmount().map_err(to_io);
                self.mounted = None;
                unmounted.map(|()| None)
            }
            Op::Sync => mounted.volume.checkpoint().map_err(to_io).map(|()| None),
            Op::Mkdir { path, mode } => mounted.make_dir_at(&path.0, *mode as u16).map(|()| None),
            Op::Unlink { path } => mounted.unlink(&path.0).map(|()| None),
            Op::Pattern { path, pattern } => {
                mounted.pattern(&path.0, pattern).map(|records| Some(Answer::Records(records)))
            }
            Op::Plant { dir, tree } => {
                let mut planter = EnginePlanter { mounted, dir: dir.0.clone() };
                tree.plant(&mut planter).map(|files| Some(Answer::Records(files)))
            }
            Op::Overwrite { path, overwrites } => {
                mounted.overwrite(&path.0, overwrites).map(|times| Some(Answer::Times(times)))
            }
            Op::Space { .. } => Ok(Some(mounted.space())),
            Op::RemoveTree { dir } => mounted.remove_tree(&dir.0).map(|()| None),
            Op::Workload { dir, workload, stage } => {
                workloads::run(mounted, &dir.0, workload, *stage).map(|times| Some(Answer::Times(times)))
            }
            Op::Steps { dir, list, stage } => {
                workloads::run_list(mounted, &dir.0, list, *stage).map(|times| Some(Answer::Times(times)))
            }
            other => {
                let error = "the engine in this process does not support this operation".to_owned();
                return Err(Failure::Refused { op: format!("{other:?}"), errno: EOPNOTSUPP, error });
            }
        };
        if self.stop.is_wished() {
            return Err(Failure::Stopped);
        }
        done.map_err(|error| refused(&format!("{op:?}"), &error))
    }

    fn mount(&self) -> io::Result<Mounted> {
        let clock = self.disk.clone();
        let options = self.options.volume_options(Medium::File, move || time(clock.now_ns()), 1);
        let device =
            Arc::new(BlockCache::new(self.disk.device(), self.memory_bytes.min(BLOCK_CACHE_BYTES_MAX)));
        let volume = Engine::open(device, options).map_err(to_io)?;
        Ok(Mounted {
            volume,
            memory_bytes: self.memory_bytes,
            dirty_bytes: self.dirty_bytes,
            interval_ns: self.options.checkpoint_interval.as_nanos() as u64,
            checkpoint_ns: self.disk.now_ns(),
            disk: self.disk.clone(),
            stop: self.stop.clone(),
        })
    }
}

impl Target for EngineTarget {
    fn run(&mut self, op: &Op) -> Result<Measured, Failure> {
        let started_ns = self.disk.now_ns();
        let before = self.counters();
        let cpu_ns = thread_cpu_ns();
        let answer = self.perform(op)?;
        let cpu_ns = match self.disk {
            Disk::Card(_) => None,
            Disk::Data(..) => Some((thread_cpu_ns() - cpu_ns).saturating_sub(making_of(op))),
        };
        let totals = totals(&self.counters()).since(&totals(&before));
        let ended_ns = self.disk.now_ns();
        Ok(Measured { started_ns, ended_ns, totals, cpu_ns, answer, entries: Vec::new(), log: Vec::new() })
    }

    fn reboot(&mut self) -> Result<(), Failure> {
        self.mounted = None;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.disk.counters()
    }

    fn wear(&self) -> Option<Wear> {
        match &self.disk {
            Disk::Card(card) => Some(card.with_model(|model| Wear::of_array(model.array()))),
            Disk::Data(..) => None,
        }
    }

    fn trace(&self) -> Option<Trace> {
        match &self.disk {
            Disk::Card(card) => card.trace(),
            Disk::Data(..) => None,
        }
    }
}

/// An open volume, with the state of a kernel's caches.
pub(super) struct Mounted {
    pub volume: Engine,
    pub disk: Disk,
    pub memory_bytes: u64,
    /// Maximum amount of dirty data in bytes.
    pub dirty_bytes: u64,
    interval_ns: u64,
    checkpoint_ns: u64,
    stop: Stop,
}

impl Mounted {
    /// Called between two requests. Fails if a stop was requested, and writes a checkpoint if one is due.
    pub fn tick(&mut self) -> io::Result<()> {
        if self.stop.is_wished() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped"));
        }
        let now_ns = self.disk.now_ns();
        if now_ns - self.checkpoint_ns >= self.interval_ns {
            self.volume.checkpoint().map_err(to_io)?;
            self.checkpoint_ns = now_ns;
        }
        Ok(())
    }

    fn pattern(&mut self, path: &[u8], pattern: &Pattern) -> io::Result<u64> {
        let (dir, name) = self.parent(path)?;
        let found = self.volume.find_entry(dir, &name).map_err(to_io)?.map(|found| found.ino);
        let ino = match (found, pattern.access) {
            (Some(ino), Access::Create) => {
                self.volume.begin(Caller::ADMIN).truncate(ino, 0).map_err(to_io)?;
                ino
            }
            (Some(ino), _) => ino,
            (None, Access::Create) => self.create_file(dir, &name)?,
            (None, _) => return Err(io::ErrorKind::NotFound.into()),
        };
        let pages = Pages::new(self.memory_bytes);
        pattern.run_on(&mut EngineFile { mounted: self, ino, pages })
    }

    fn overwrite(&mut self, path: &[u8], overwrites: &Overwrites) -> io::Result<Vec<u64>> {
        let (dir, name) = self.parent(path)?;
        let ino = self.volume.lookup(dir, &name).map_err(to_io)?;
        let pages = Pages::new(self.memory_bytes);
        let mut file = EngineFile { mounted: self, ino, pages };
        overwrites.run_on(&mut file, &mut |file| file.mounted.disk.now_ns())
    }

    fn space(&self) -> Answer {
        let (space, block) = (self.volume.space(), self.volume.superblock().block_size.bytes() as u64);
        Answer::Space { total_bytes: space.blocks * block, free_bytes: space.free_blocks * block }
    }

    pub fn create_file(&mut self, dir: Ino, name: &[u8]) -> io::Result<Ino> {
        let new = NewNode::new(FileType::Regular.mode_bits() | 0o644);
        self.volume.begin(Caller::ADMIN).create(dir, name, &new).map_err(to_io)
    }

    pub fn make_dir_at(&mut self, path: &[u8], mode: u16) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let new = NewNode::new(FileType::Directory.mode_bits() | mode);
        self.volume.begin(Caller::ADMIN).create(dir, &name, &new).map_err(to_io)?;
        Ok(())
    }

    pub fn unlink(&mut self, path: &[u8]) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.volume.begin(Caller::ADMIN).unlink(dir, &name).map_err(to_io)
    }

    fn remove_tree(&mut self, path: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let dir = self.volume.lookup(parent, &name).map_err(to_io)?;
        self.empty(dir)?;
        self.volume.begin(Caller::ADMIN).remove_dir(parent, &name).map_err(to_io)
    }

    fn empty(&mut self, dir: Ino) -> io::Result<()> {
        let entries: Vec<(Vec<u8>, Ino, bool)> = self
            .volume
            .entries(dir, 0)
            .map_err(to_io)?
            .map(|entry| {
                let entry = entry.map_err(to_io)?;
                let is_dir = entry.kind == Some(FileType::Directory);
                Ok((entry.name.to_vec(), entry.ino, is_dir))
            })
            .collect::<io::Result<_>>()?;
        for (name, ino, is_dir) in entries.into_iter().filter(|(name, ..)| name != b"." && name != b"..") {
            self.tick()?;
            match is_dir {
                true => {
                    self.empty(ino)?;
                    self.volume.begin(Caller::ADMIN).remove_dir(dir, &name).map_err(to_io)?;
                }
                false => self.volume.begin(Caller::ADMIN).unlink(dir, &name).map_err(to_io)?,
            }
        }
        Ok(())
    }

    /// Returns the inode at a path of the mount.
    pub fn resolve(&self, path: &[u8]) -> io::Result<Ino> {
        let below = path.strip_prefix(MOUNT_POINT.as_bytes()).ok_or(io::ErrorKind::NotFound)?;
        self.volume.resolve(below, FinalSymlink::Follow).map_err(to_io)
    }

    /// Returns the parent directory and the name of a path of the mount.
    pub fn parent(&self, path: &[u8]) -> io::Result<(Ino, Vec<u8>)> {
        let below = path.strip_prefix(MOUNT_POINT.as_bytes()).ok_or(io::ErrorKind::NotFound)?;
        let at = below.iter().rposition(|byte| *byte == b'/').ok_or(io::ErrorKind::NotFound)?;
        let dir = self.volume.resolve(&below[..at], FinalSymlink::Follow).map_err(to_io)?;
        Ok((dir, below[at + 1..].to_vec()))
    }
}

/// A file of the engine, with its pages in the page cache.
struct EngineFile<'a> {
    mounted: &'a mut Mounted,
    ino: Ino,
    pages: Pages,
}

impl RecordFile for EngineFile<'_> {
    fn read_record(&mut self, record: &mut [u8], at: u64) -> io::Result<()> {
        self.mounted.tick()?;
        let (volume, ino) = (&self.mounted.volume, self.ino);
        let size = volume.stat(ino).map_err(to_io)?.size;
        let disk = &self.mounted.disk;
        self.pages.read(at, record, size, &mut |demand, at, buf| disk.fetch(volume, ino, demand, at, buf))?;
        disk.wait_until_ns(self.pages.ready_ns());
        Ok(())
    }

    fn write_record(&mut self, record: &[u8], at: u64) -> io::Result<()> {
        self.mounted.tick()?;
        self.pages.forget(at, record.len());
        self.mounted.volume.begin(Caller::ADMIN).write(self.ino, at, record).map_err(to_io)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.mounted.volume.fsync(self.ino, SyncScope::Everything).map_err(to_io)
    }
}

/// Creates file trees in a directory of the engine.
struct EnginePlanter<'a> {
    mounted: &'a mut Mounted,
    dir: Vec<u8>,
}

impl EnginePlanter<'_> {
    fn at(&self, path: &str) -> Vec<u8> {
        [&self.dir[..], b"/", path.as_bytes()].concat()
    }
}

impl Planter for EnginePlanter<'_> {
    fn make_dir(&mut self, path: &str) -> io::Result<()> {
        self.mounted.tick()?;
        self.mounted.make_dir_at(&self.at(path), 0o755)
    }

    fn make_file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.mounted.tick()?;
        let (dir, name) = self.mounted.parent(&self.at(path))?;
        let ino = self.mounted.create_file(dir, &name)?;
        self.mounted.volume.begin(Caller::ADMIN).write(ino, 0, content).map_err(to_io)
    }
}

/// Returns the processor time of this thread so far.
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the processor time for generating the content of records, a tree or a workload, which is not a
/// cost of the file system.
fn making_of(op: &Op) -> u64 {
    let before = thread_cpu_ns();
    let made = match op {
        // A reader generates the same records for comparison.
        Op::Pattern { pattern, .. } => {
            Pattern { access: Access::Create, ..*pattern }.run_on(&mut NullTarget).map(|_| ())
        }
        Op::Plant { tree, .. } => tree.plant(&mut NullTarget).map(|_| ()),
        // Data on the null target cannot be checked, and the cost of checking is not measured.
        Op::Workload { workload, stage, .. } if *stage != Stage::Check => {
            workload.run_on(*stage, &mut NullTarget).map(|_| ())
        }
        Op::Steps { list, stage, .. } if *stage != Stage::Check => {
            workloads::list_at(list).and_then(|list| list.run_on(*stage, &mut NullTarget)).map(|_| ())
        }
        _ => return 0,
    };
    debug_assert!(made.is_ok(), "the null target refuses no operation");
    thread_cpu_ns() - before
}

/// Creates the file `image` with an empty volume.
pub(crate) fn make(setting: &Setting, image: &Path) -> Result<Arc<FileDevice>, Failure> {
    let size_bytes = setting.profile.size_bytes;
    let data = Arc::new(FileDevice::create(image, size_bytes)?);
    format(data.clone(), size_bytes, &setting.file_system.mkfs).map_err(|error| refused("mkfs", &error))?;
    Ok(data)
}

/// Creates an empty volume. Its options are those of mkfs.f2fs.
///
/// # Errors
/// An unknown option; the engine's errors.
pub(crate) fn format(data: Arc<dyn Device>, size_bytes: u64, given: &[String]) -> io::Result<()> {
    let mut options = mkfs::Options::new(UUID_BYTES);
    for pair in given.chunks(2) {
        let [name, value] = pair else { return Err(bad_option(&pair[0])) };
        let number = || value.parse().map_err(|_| bad_option(value));
        match name.as_str() {
            "-s" => options.segments_per_section = number()?,
            "-z" => options.sections_per_zone = number()?,
            "-o" => {
                options.overprovision = Overprovision::Percent(value.parse().map_err(|_| bad_option(value))?);
            }
            other => return Err(bad_option(other)),
        }
    }
    let device = DeviceSize { path: "card".into(), bytes: size_bytes };
    let plan = Plan::new(&options, &[device]).map_err(to_io)?;
    let made_at = Time { seconds: MADE_AT, nanoseconds: 0 };
    let new = NewVolume::begin(data, &plan, DeviceContent::Zeroes, engine::Options::new(move || made_at))
        .map_err(to_io)?;
    new.finish().map_err(to_io)?;
    Ok(())
}

fn bad_option(option: &str) -> io::Error {
    let what = format!("{option}: flashkit accepts -s, -z and -o here, each with a number");
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Converts the card's counters to those of the guest's disks.
pub(super) fn totals(counters: &Counters) -> Totals {
    let HostCounters { reads, read_bytes, writes, written_bytes, flushes, discards, discarded_bytes, .. } =
        counters.host;
    let busy_ns = counters.time_ns.total();
    Totals { reads, read_bytes, writes, written_bytes, flushes, discards, discarded_bytes, busy_ns }
}

/// Converts the card's time to the guest's time of day, which advances in ticks.
fn time(now_ns: u64) -> Time {
    let ns = EPOCH_NS + now_ns / TICK_NS * TICK_NS;
    Time { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as u32 }
}

pub(crate) fn to_io(error: f2fs::Error) -> io::Error {
    match error {
        f2fs::Error::NoSpace { .. } | f2fs::Error::NoInodes => {
            io::Error::new(io::ErrorKind::StorageFull, error.to_string())
        }
        f2fs::Error::NotFound => io::Error::new(io::ErrorKind::NotFound, error.to_string()),
        other => io::Error::other(other.to_string()),
    }
}

fn refused(op: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::Interrupted => Failure::Stopped,
        kind => {
            let errno = if kind == io::ErrorKind::StorageFull { ENOSPC } else { 0 };
            Failure::Refused { op: op.to_owned(), errno, error: error.to_string() }
        }
    }
}

fn invalid(what: String) -> Failure {
    io::Error::new(io::ErrorKind::InvalidInput, what).into()
}
