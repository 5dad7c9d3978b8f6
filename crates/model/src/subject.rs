//! A volume in continuous use, with files kept open and with reopenings in between.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use anyhow::Context;
use block::Device;
use f2fs::{
    Error, Key, Keyring, NONCE_SEED_BYTES, Nonces, Result,
    engine::{ActiveLogs, Caller, Engine, FinalSymlink, InPlace, Mode, NewNode, Options, SyncScope},
    format::node::NodeBlock,
    units::{Ino, Time},
};
use guest::Op;
use rustix::io::Errno;

use crate::perform::{parent, perform};

/// Bytes of a stored encryption context of version 2, with its head and name, and the padding.
const CONTEXT_BYTES: usize = 48;

/// Time in seconds at which the clock of every run starts.
const EPOCH: i64 = 1_700_000_000;

/// Options for each opening of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Number of active logs.
    pub active_logs: ActiveLogs,
    /// Policy of the logs.
    pub mode: Mode,
    /// Policy for in-place updates.
    pub in_place: InPlace,
    /// Memory for caches in bytes.
    pub cache_bytes: usize,
    /// True if inodes hold small files, directories and attributes inline.
    pub inline: bool,
    /// True if freed blocks are discarded.
    pub discard: bool,
    /// True if new blocks of files bypass the logs' buffers.
    pub write_through: bool,
    /// The encryption of the volume.
    pub encryption: Encryption,
}

/// The encryption of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    /// Nothing is encrypted.
    #[default]
    Nothing,
    /// The root directory is, with the key of [`keys`], and so is everything in it.
    Root,
}

/// Returns the master key of encrypted volumes.
pub fn keys() -> Keyring {
    let mut keys = Keyring::default();
    keys.add(Key::new(&[0x5A; 64]).expect("64 bytes are a key"));
    keys
}

impl Settings {
    /// Returns true if no block of a file is updated in place, unless it is pinned.
    pub fn never_in_place(&self) -> bool {
        self.mode == Mode::Lfs || self.in_place == InPlace::Never
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            active_logs: ActiveLogs::Six,
            mode: Mode::default(),
            in_place: InPlace::default(),
            cache_bytes: 1 << 20,
            inline: true,
            discard: true,
            write_through: false,
            encryption: Encryption::Nothing,
        }
    }
}

/// A clock that advances only on request.
#[derive(Debug, Clone, Default)]
pub struct StepClock(Arc<AtomicI64>);

impl StepClock {
    /// Returns the time.
    pub fn now(&self) -> Time {
        let steps = self.0.load(Ordering::Relaxed);
        Time { seconds: EPOCH + steps / 7, nanoseconds: (steps % 7 * 100_000_001) as u32 }
    }

    /// Advances by one step.
    pub fn step(&self) -> Time {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.now()
    }
}

/// The engine that is compared with the model: a volume driven by operations.
pub struct Subject {
    device: Arc<dyn Device>,
    settings: Settings,
    clock: StepClock,
    volume: Engine,
    open: HashMap<u32, Ino>,
}

impl Subject {
    /// Opens the volume on a device.
    pub fn open(device: Arc<dyn Device>, settings: Settings, clock: StepClock) -> anyhow::Result<Subject> {
        let volume = open(&device, settings, &clock)?;
        Ok(Subject { device, settings, clock, volume, open: HashMap::new() })
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Engine {
        &self.volume
    }

    /// Returns the inode that is open under a handle.
    pub fn opened(&self, handle: u32) -> Option<Ino> {
        self.open.get(&handle).copied()
    }

    /// Unmounts the volume.
    pub fn unmount(mut self) -> Result<()> {
        self.close_all()?;
        self.volume.unmount()
    }

    /// Applies an operation. [`Op::Unmount`] unmounts and reopens the volume. [`Op::DropCaches`] writes a
    /// checkpoint and reopens it, so that the caches are empty.
    ///
    /// Issues one pending discard after each operation, so that later operations meet the remaining ones.
    pub fn apply(&mut self, op: &Op) -> Result<()> {
        let done = self.perform(op);
        self.volume.discards().issue()?;
        done
    }

    fn perform(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Open { path, handle } => {
                let ino = self.volume.resolve(&path.0, FinalSymlink::Follow)?;
                self.volume.read(ino, 0, &mut [])?;
                self.close(*handle)?;
                self.volume.hold(ino);
                self.open.insert(*handle, ino);
                Ok(())
            }
            Op::OpenNameless { dir, mode, handle } => {
                let dir = self.volume.resolve(&dir.0, FinalSymlink::Follow)?;
                let ino = self
                    .volume
                    .begin(Caller::ADMIN)
                    .create_nameless(dir, &NewNode::new((mode & 0o7777) as u16))?;
                self.close(*handle)?;
                self.open.insert(*handle, ino);
                Ok(())
            }
            Op::LinkOpen { handle, to } => {
                let ino = *self.open.get(handle).ok_or(Error::NotFound)?;
                let (dir, name) = parent(&self.volume, to)?;
                self.volume.begin(Caller::ADMIN).link(ino, dir, name)
            }
            Op::WriteOpen { handle, offset, content } => {
                let ino = self.open.get(handle).ok_or(Error::NotFound)?;
                self.volume.begin(Caller::ADMIN).write(*ino, *offset, &content.to_vec())
            }
            Op::Close { handle } => self.close(*handle),
            Op::FsyncOpen { handle } => {
                let ino = self.open.get(handle).ok_or(Error::NotFound)?;
                self.volume.fsync(*ino, SyncScope::Everything)
            }
            Op::Unmount { .. } => {
                self.close_all()?;
                self.volume.unmount()?;
                self.reopen()
            }
            Op::DropCaches => {
                self.close_all()?;
                self.volume.checkpoint()?;
                self.reopen()
            }
            op => perform(&mut self.volume, op),
        }
    }

    fn close(&mut self, handle: u32) -> Result<()> {
        match self.open.remove(&handle) {
            Some(ino) => self.volume.begin(Caller::ADMIN).release(ino),
            None => Ok(()),
        }
    }

    fn close_all(&mut self) -> Result<()> {
        let handles: Vec<u32> = self.open.keys().copied().collect();
        handles.into_iter().try_for_each(|handle| self.close(handle))
    }

    fn reopen(&mut self) -> Result<()> {
        self.volume = open(&self.device, self.settings, &self.clock)?;
        Ok(())
    }
}

fn open(device: &Arc<dyn Device>, settings: Settings, clock: &StepClock) -> Result<Engine> {
    let clock = clock.clone();
    let keys = match settings.encryption {
        Encryption::Root => keys(),
        Encryption::Nothing => Keyring::default(),
    };
    let nonces = Some(nonces(clock.now()));
    let options = Options {
        keys,
        nonces,
        cache_bytes: settings.cache_bytes,
        active_logs: settings.active_logs,
        mode: settings.mode,
        in_place: settings.in_place,
        inline_data: settings.inline,
        inline_dentry: settings.inline,
        inline_xattr: settings.inline,
        discard: settings.discard,
        write_through_bytes: settings.write_through.then_some(1),
        ..Options::new(move || clock.now())
    };
    let volume = Engine::open(device.clone(), options)?;
    match volume.read_only_reason() {
        Some(reason) => Err(Error::ReadOnly(reason.to_owned().into())),
        None => Ok(volume),
    }
}

/// Returns nonces that differ between times.
fn nonces(time: Time) -> Nonces {
    let mut seed = [0; NONCE_SEED_BYTES];
    seed[..8].copy_from_slice(&time.seconds.to_le_bytes());
    seed[8..12].copy_from_slice(&time.nanoseconds.to_le_bytes());
    Nonces::new(seed)
}

/// Returns the errno that a program sees for an error; `None` for errors that no correct volume gives.
pub fn errno(error: &Error) -> Option<Errno> {
    Some(match error {
        Error::NoSpace { .. } | Error::NoInodes => Errno::NOSPC,
        Error::Quota => Errno::DQUOT,
        Error::Invalid(_) => Errno::INVAL,
        Error::OtherProject | Error::OtherPolicy => Errno::XDEV,
        Error::NotFound => Errno::NOENT,
        Error::NoAttribute => Errno::NODATA,
        Error::AttributeTooLarge => Errno::TOOBIG,
        Error::Exists => Errno::EXIST,
        Error::NotDirectory => Errno::NOTDIR,
        Error::TooManySymlinks => Errno::LOOP,
        Error::IsDirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::FileTooLarge => Errno::FBIG,
        Error::TooManyLinks => Errno::MLINK,
        Error::NotPermitted => Errno::PERM,
        Error::Unsupported(_) => Errno::OPNOTSUPP,
        _ => return None,
    })
}

/// Measures the limits of a volume on a temporary file.
pub fn rules(subject: &mut Subject) -> anyhow::Result<crate::model::Rules> {
    const PROBE: &[u8] = b"probe";
    let settings = subject.settings;
    let volume = &mut subject.volume;
    let root = volume.superblock().root_ino;
    let ino =
        volume.begin(Caller::ADMIN).create(root, PROBE, &NewNode::new(0o100_600)).context("a first file")?;
    let block = volume.superblock().block_size.bytes();
    let node = volume.inode(ino)?;
    let bytes_max = |node: &NodeBlock| node.layout().reach_blocks() * block as u64;
    let mut compressed = (*node).clone();
    if node.saved_blocks().is_some() {
        compressed.set_compression(Some(volume.options().compression));
    }
    let rules = crate::model::Rules {
        block_bytes: block as u64,
        file_bytes_max: bytes_max(&node),
        compressed_bytes_max: bytes_max(&compressed),
        context_bytes: match settings.encryption {
            Encryption::Root => CONTEXT_BYTES,
            Encryption::Nothing => 0,
        },
        xattr_bytes_max: node.inline_xattrs().len() + block - f2fs::format::block_size::NODE_FOOTER_BYTES,
    };
    drop(node);
    volume.begin(Caller::ADMIN).unlink(root, PROBE)?;
    Ok(rules)
}
