//! Our own file system in this process, on the modelled card.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use block::{Device, DiscardUnit, Geometry, MemoryDevice, Verb};
use f2fs::{
    engine::{Caller, Engine, FinalSymlink, NewNode, RenameMode, SyncScope},
    format::FileType,
    units::{Ino, Time},
};
use flash::{Card, Clock, Condition, Model, Pace, Profile};
use fuse::{Medium, MountOptions};
use guest::{
    Bytes, Op,
    examine::{self, NameType, Readable},
};

use super::{
    log::{Entry, Log, copy},
    script::Script,
    subject::{Aftermath, Recording, Subject, run_steps},
};
use crate::{
    rivals::FileSystem,
    systems::{
        MOUNT_POINT,
        engine::{format, to_io},
    },
    vm::{EPOCH_NS, Failure},
};

/// The engine with its options.
pub struct EngineSubject {
    card: Profile,
    mkfs: Vec<String>,
    options: MountOptions,
}

impl EngineSubject {
    /// Takes the options of a file system.
    ///
    /// # Errors
    /// An unknown mount option.
    pub fn new(file_system: &FileSystem, card: &Profile) -> Result<EngineSubject, Failure> {
        let mut options = MountOptions::default();
        options
            .apply(&file_system.mount)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        Ok(EngineSubject { card: card.clone(), mkfs: file_system.mkfs.clone(), options })
    }

    fn plug(&self, content: Arc<MemoryDevice>) -> Arc<LoggedCard> {
        let model = Model::new(self.card.clone(), Condition::Preconditioned);
        Arc::new(LoggedCard {
            card: Card::from_parts(model, Box::new(content), Pace::Virtual),
            entries: Mutex::default(),
        })
    }

    fn open(&self, device: &Arc<LoggedCard>) -> Result<Mounted, f2fs::Error> {
        let card = device.clone();
        let clock = move || {
            let now_ns = EPOCH_NS + card.card.now_ns();
            Time { seconds: (now_ns / 1_000_000_000) as i64, nanoseconds: (now_ns % 1_000_000_000) as u32 }
        };
        let volume =
            Engine::open(device.clone(), self.options.volume_options(Medium::BlockDevice, clock, 1))?;
        Ok(Mounted { volume, checkpoint_ns: device.card.now_ns() })
    }
}

impl Subject for EngineSubject {
    fn record(&mut self, script: Script, _seed: u64) -> Result<Recording, Failure> {
        let start = Arc::new(MemoryDevice::new(self.card.size_bytes));
        format(start.clone(), self.card.size_bytes, &self.mkfs)?;
        let device = self.plug(Arc::new(copy(&start)?));
        let interval_ns = self.options.checkpoint_interval.as_nanos() as u64;
        let mut mounted = self.open(&device).map_err(to_io)?;
        let requests = |_: &Mounted| device.lock().len();
        let (before_step, refused) = run_steps(&script, &mut mounted, requests, |mounted, number| {
            let op = &script.steps[number].op;
            if let Op::Pause { nanoseconds } = op {
                device.card.pass_ns(*nanoseconds);
            }
            let now_ns = device.card.now_ns();
            let is_due = now_ns - mounted.checkpoint_ns >= interval_ns;
            if is_due {
                mounted.checkpoint_ns = now_ns;
            }
            let due = if is_due { mounted.volume.checkpoint() } else { Ok(()) };
            let done = due.and_then(|()| mounted.perform(op));
            done.map_err(|error| Failure::Refused {
                op: format!("{op:?}"),
                errno: 0,
                error: error.to_string(),
            })
        })?;
        let entries = std::mem::take(&mut *device.lock());
        // The volume is not unmounted: the power is cut.
        drop(mounted);
        let start = copy(&start)?;
        Ok(Recording { script, start, log: Log { entries }, before_step, refused })
    }

    fn recover(
        &mut self,
        content: Arc<MemoryDevice>,
        _unstable: &[Range<u64>],
    ) -> Result<Aftermath, Failure> {
        let device = self.plug(content);
        let mut aftermath = Aftermath::default();
        let mut mounted = match self.open(&device) {
            Ok(mounted) => mounted,
            Err(error) => {
                aftermath.said.push(error.to_string());
                return Ok(aftermath);
            }
        };
        aftermath.recovered_ns = Some(device.card.now_ns());
        if let Some(reason) = mounted.volume.read_only_reason() {
            aftermath.said.push(format!("read-only: {reason}"));
        }
        aftermath.found = examine::examine(&mut mounted);
        if let Err(error) = mounted.volume.unmount() {
            aftermath.said.push(format!("unmount: {error}"));
        }
        Ok(aftermath)
    }
}

/// An open volume.
struct Mounted {
    volume: Engine,
    checkpoint_ns: u64,
}

impl Mounted {
    fn perform(&mut self, op: &Op) -> Result<(), f2fs::Error> {
        let volume = &mut self.volume;
        match op {
            Op::Pause { .. } => volume.discards().issue().map(drop),
            Op::Sync => volume.checkpoint(),
            Op::Mkdir { path, mode } => create(volume, path, FileType::Directory, *mode as u16).map(drop),
            Op::Write { path, offset, content } => write(volume, path, *offset, &content.to_vec()).map(drop),
            Op::WriteSync { path, offset, content } => {
                let ino = write(volume, path, *offset, &content.to_vec())?;
                volume.fsync(ino, SyncScope::Everything)
            }
            Op::Fsync { path, data_only } => {
                let ino = volume.resolve(below(path), FinalSymlink::NoFollow)?;
                volume.fsync(ino, if *data_only { SyncScope::Data } else { SyncScope::Everything })
            }
            Op::Rename { from, to } => {
                let ((from_dir, from), (to_dir, to)) = (parent(volume, from)?, parent(volume, to)?);
                volume.begin(Caller::ADMIN).rename(from_dir, from, to_dir, to, RenameMode::Replace)
            }
            Op::Link { from, to } => {
                let ino = volume.resolve(below(from), FinalSymlink::NoFollow)?;
                let (dir, name) = parent(volume, to)?;
                volume.begin(Caller::ADMIN).link(ino, dir, name)
            }
            Op::Unlink { path } => {
                let (dir, name) = parent(volume, path)?;
                volume.begin(Caller::ADMIN).unlink(dir, name)
            }
            other => Err(f2fs::Error::Unsupported(format!("{other:?}").into())),
        }
    }
}

fn write(volume: &mut Engine, path: &Bytes, offset: u64, content: &[u8]) -> Result<Ino, f2fs::Error> {
    let ino = match volume.resolve(below(path), FinalSymlink::Follow) {
        Err(f2fs::Error::NotFound) => create(volume, path, FileType::Regular, 0o666)?,
        found => found?,
    };
    volume.begin(Caller::ADMIN).write(ino, offset, content)?;
    Ok(ino)
}

fn create(volume: &mut Engine, path: &Bytes, kind: FileType, mode: u16) -> Result<Ino, f2fs::Error> {
    let (dir, name) = parent(volume, path)?;
    volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(kind.mode_bits() | mode))
}

/// Returns the path below the mount point.
fn below(path: &Bytes) -> &[u8] {
    path.0.strip_prefix(MOUNT_POINT.as_bytes()).unwrap_or(&path.0)
}

/// Returns the directory of a path, and the name in it.
fn parent<'a>(volume: &Engine, path: &'a Bytes) -> Result<(Ino, &'a [u8]), f2fs::Error> {
    let path = below(path);
    let at = path.iter().rposition(|byte| *byte == b'/').ok_or(f2fs::Error::NotFound)?;
    Ok((volume.resolve(&path[..at], FinalSymlink::Follow)?, &path[at + 1..]))
}

impl Readable for Mounted {
    fn list(&mut self, dir: &str) -> io::Result<Vec<(Bytes, NameType)>> {
        let ino = self.volume.resolve(dir.as_bytes(), FinalSymlink::NoFollow).map_err(to_io)?;
        let mut names = Vec::new();
        for entry in self.volume.entries(ino, 0).map_err(to_io)? {
            let entry = entry.map_err(to_io)?;
            let kind = match entry.kind {
                Some(FileType::Directory) => NameType::Dir,
                Some(FileType::Regular) => NameType::File,
                _ => NameType::Other,
            };
            if entry.name != b"."[..] && entry.name != b".."[..] {
                names.push((Bytes(entry.name.to_vec()), kind));
            }
        }
        names.sort_by(|a: &(Bytes, NameType), b| a.0.cmp(&b.0));
        Ok(names)
    }

    fn read(&mut self, path: &str, most: u64) -> io::Result<(u64, Vec<u8>)> {
        let ino = self.volume.resolve(path.as_bytes(), FinalSymlink::NoFollow).map_err(to_io)?;
        let size = self.volume.stat(ino).map_err(to_io)?.size;
        let mut content = vec![0; size.min(most) as usize];
        let read = self.volume.read(ino, 0, &mut content).map_err(to_io)?;
        content.truncate(read);
        Ok((size, content))
    }
}

/// A card that keeps a log of its requests.
struct LoggedCard {
    card: Card,
    entries: Mutex<Vec<Entry>>,
}

impl LoggedCard {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request, one at a time, and keeps it.
    fn serve(
        &self,
        verb: Verb,
        offset_bytes: u64,
        length_bytes: u64,
        data: &[u8],
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut entries = self.lock();
        let at_ns = self.card.now_ns();
        act()?;
        let done_ns = self.card.now_ns();
        entries.push(Entry { verb, offset_bytes, length_bytes, data: data.into(), at_ns, done_ns });
        Ok(())
    }
}

impl Device for LoggedCard {
    fn geometry(&self) -> Geometry {
        self.card.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.card.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let act = || self.card.write(offset_bytes, buf);
        self.serve(Verb::Write, offset_bytes, buf.len() as u64, buf, act)
    }

    fn flush(&self) -> io::Result<()> {
        self.serve(Verb::Flush, 0, 0, &[], || self.card.flush())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let act = || self.card.discard(offset_bytes, length_bytes);
        self.serve(Verb::Discard, offset_bytes, length_bytes, &[], act)
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.card.discard_unit()
    }
}
