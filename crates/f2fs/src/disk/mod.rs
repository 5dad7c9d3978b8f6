//! The lowest layer: the device in blocks, where everything lies on it, and the newest checkpoint that it has.
//!
//! *Invariants*: no checkpoint is written and no block is given out here. Once changes are refused after an error, they
//! are refused until the volume is opened again.

mod devices;
mod flusher;
mod geometry;
mod io;
pub(crate) mod journal;
mod options;
pub(crate) mod pack;
mod raw_pack;
mod superblock;
pub(crate) mod superblock_copies;

use std::{borrow::Cow, io::ErrorKind, sync::Arc};

use block::{Device, Overlay};
use fscrypt::{Key, KeyName};

pub use devices::{device_bytes, join};
pub use geometry::Geometry;
pub use io::Io;
pub use options::{ActiveLogs, Clock, FsyncNames, InPlace, Mode, OnError, Options, Upkeep};
pub use raw_pack::RawPack;
pub use superblock::{read_raw_superblock, read_superblock};

use crate::{
    Error, Result,
    format::{checkpoint::Checkpoint, node::NodeFormat, superblock::Superblock},
    units::Time,
};

/// Permitted access to the volume.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    /// Changes are accepted.
    ReadWrite,
    /// Changes are refused, for this reason.
    ReadOnly(Cow<'static, str>),
}

/// The device of an open volume, and the facts that every layer needs.
pub(crate) struct Disk {
    io: Arc<Io>,
    superblock: Superblock,
    geometry: Geometry,
    node_format: NodeFormat,
    options: Options,
    access: Access,
    /// The first failure of a write after which changes are refused.
    write_failure: Option<ErrorKind>,
    /// The newest checkpoint on the device; `pack` is the checkpoint pack that holds it.
    checkpoint: Checkpoint,
    pack: u8,
    /// Time of the clock, in seconds, when the newest checkpoint was written or the volume was opened.
    opened_seconds: i64,
    /// Total time mounted, in seconds, at the start of the current operation.
    mounted_seconds: u64,
}

impl Disk {
    /// The device behind `io`, whose newest checkpoint is in `pack`.
    pub(crate) fn new(
        io: Io,
        superblock: Superblock,
        options: Options,
        access: Access,
        checkpoint: Checkpoint,
        pack: u8,
    ) -> Disk {
        Disk {
            io: Arc::new(io),
            geometry: Geometry::of(&superblock),
            node_format: NodeFormat::of(&superblock),
            superblock,
            access,
            write_failure: None,
            opened_seconds: (options.clock)().seconds,
            mounted_seconds: checkpoint.elapsed_seconds,
            options,
            checkpoint,
            pack,
        }
    }

    /// Access to the device in blocks; a clone can be used without the volume.
    pub(crate) fn io(&self) -> &Arc<Io> {
        &self.io
    }

    /// Lets writes go to memory from now on, and takes changes.
    pub(crate) fn write_to_memory(&mut self) {
        let below: Arc<dyn Device> = self.io.device().clone();
        self.io = Arc::new(Io::new(Arc::new(Overlay::new(below)), self.geometry.block_size));
        self.access = Access::ReadWrite;
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Notes that the superblock on the device has a new label.
    pub(crate) fn set_label(&mut self, label: String) {
        self.superblock.label = label;
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn node_format(&self) -> NodeFormat {
        self.node_format
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Sets who does the upkeep before changes.
    pub(crate) fn set_upkeep(&mut self, upkeep: Upkeep) {
        self.options.upkeep = upkeep;
    }

    /// Adds a key to those at hand.
    pub(crate) fn add_key(&mut self, key: Key) {
        self.options.keys.add(key);
    }

    /// Removes the keys of a name from those at hand. Returns true if there was one.
    pub(crate) fn remove_key(&mut self, name: &KeyName) -> bool {
        self.options.keys.remove(name)
    }

    /// The current time, for timestamps.
    pub(crate) fn time(&self) -> Time {
        (self.options.clock)()
    }

    /// Total time mounted, in seconds, at the start of the current operation.
    pub(crate) fn mounted_seconds(&self) -> u64 {
        self.mounted_seconds
    }

    /// Brings [`mounted_seconds`](Self::mounted_seconds) up to date, before an operation.
    pub(crate) fn advance_time(&mut self) {
        let elapsed = self.time().seconds.saturating_sub(self.opened_seconds).max(0) as u64;
        self.mounted_seconds = self.checkpoint.elapsed_seconds.saturating_add(elapsed);
    }

    /// The newest checkpoint on the device.
    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The pack of the newest checkpoint, 0 or 1.
    pub(crate) fn pack(&self) -> u8 {
        self.pack
    }

    /// Goes on from a checkpoint that was just written to the other pack.
    pub(crate) fn committed(&mut self, next: Checkpoint) {
        self.checkpoint = next;
        self.pack = 1 - self.pack;
        self.opened_seconds = self.time().seconds;
    }

    /// The reason why the volume refuses changes, if it does.
    pub(crate) fn read_only_reason(&self) -> Option<&str> {
        match &self.access {
            Access::ReadWrite => None,
            Access::ReadOnly(reason) => Some(reason),
        }
    }

    /// The kind of the first failure of a write after which changes are refused.
    pub(crate) fn write_failure(&self) -> Option<ErrorKind> {
        self.write_failure
    }

    /// Returns an error if the volume refuses changes.
    pub(crate) fn require_writable(&self) -> Result<()> {
        match &self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly(reason) => Err(Error::ReadOnly(reason.clone())),
        }
    }

    /// Refuses changes from now on.
    pub(crate) fn refuse_changes(&mut self, reason: impl Into<Cow<'static, str>>) {
        self.access = Access::ReadOnly(reason.into());
    }

    /// Makes the volume refuse changes after a failed write: the content of the device is no longer known.
    pub(crate) fn fail_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error @ Error::Io { source, .. }) = &result {
            self.write_failure.get_or_insert(source.kind());
            self.access = Access::ReadOnly(format!("a write failed: {error}").into());
        }
        result
    }

    /// Returns true if an error concerns only the place where it occurred and the volume still accepts
    /// changes, so that other operations may go on.
    pub(crate) fn stays_in_place(&self, error: &Error) -> bool {
        matches!(error, Error::Io { .. } | Error::Corrupt { .. }) && self.read_only_reason().is_none()
    }
}
