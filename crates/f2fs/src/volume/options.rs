//! How a volume is opened.

use std::fmt;

use crate::{format::inode::Compression, units::Time};

/// Tells the time. The engine never asks the host.
pub type Clock = Box<dyn Fn() -> Time + Send + Sync>;

/// How many of the six logs are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ActiveLogs {
    /// One for data, one for nodes.
    Two,
    /// Directory data and other data; direct nodes of files and other nodes.
    Four,
    /// Hot, warm and cold, of data and of nodes.
    #[default]
    Six,
}

/// When a block of a file is written where it already is, instead of to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum InPlace {
    /// Never: everything goes to the logs.
    Never,
    /// When an fsync writes few blocks, so that no node has to be written for them; or many neighbours, which a log
    /// would take in no fewer commands.
    #[default]
    Fsync,
    /// Whenever the block has an address.
    Always,
}

/// What follows a write that the device refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnError {
    /// The volume refuses changes until it is opened again.
    #[default]
    ReadOnly,
    /// What could not be written is kept, who asked for it to be durable is told, and it is written with the next
    /// attempt. Only where nobody can know any more what the device has (a flush failed, or the last block of a
    /// checkpoint), or where too much waits, the volume refuses changes all the same.
    Continue,
}

/// The names that an fsync makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FsyncNames {
    /// The name of the file, and those without which recovery cannot enter it.
    #[default]
    Own,
    /// In addition every rename before the fsync, so that the whole path to the file is durable (Linux,
    /// `FSYNC_MODE_STRICT`). It costs a checkpoint where something was renamed since the last one.
    Renamed,
}

/// How a volume is opened.
pub struct Options {
    /// The time, for timestamps and for the age of segments.
    pub clock: Clock,
    /// Seed of everything that is random: generations of inodes.
    pub seed: u64,
    /// Memory for caches, in bytes: half of it for nodes, a quarter for dirty pages, an eighth for what is remembered
    /// of directories, and a sixteenth each for the NAT and the SIT.
    pub cache_bytes: usize,
    /// Logs to write to.
    pub active_logs: ActiveLogs,
    /// When to overwrite in place.
    pub in_place: InPlace,
    /// The names that an fsync makes durable.
    pub fsync_names: FsyncNames,
    /// Refuse changes, and write nothing: an unclean volume is recovered in memory.
    pub read_only: bool,
    /// Bring back what was fsynced after the last checkpoint.
    pub roll_forward: bool,
    /// Small files live in their inode.
    pub inline_data: bool,
    /// Small directories live in their inode.
    pub inline_dentry: bool,
    /// Inodes keep room for xattrs.
    pub inline_xattr: bool,
    /// How files are compressed that become so: the settings stay with the file.
    pub compression: Compression,
    /// Extensions of new files that are compressed, whatever their directory says; `*` is every name.
    pub compressed_extensions: Vec<String>,
    /// Extensions of new files that are not, even in a directory that says so.
    pub plain_extensions: Vec<String>,
    /// Queue what a checkpoint frees; the caller issues [`Volume::discards`](super::Volume::discards).
    pub discard: bool,
    /// What follows a write that the device refuses.
    pub on_error: OnError,
    /// New data of a file of so many bytes leaves at once, from where it is; `None`: all waits in its log for neighbours,
    /// which makes large commands of a good size. What gathers neighbours itself, as a page cache does, needs none.
    pub straight_bytes: Option<usize>,
    /// Who writes what a cache had sets the times of the change as well; else the volume does.
    pub cache_has_times: bool,
    /// Write checkpoints only when asked to: until then everything that was done can be dropped as a whole, by
    /// dropping the volume. What is freed meanwhile cannot be used again.
    pub checkpoint_when_asked: bool,
}

impl Options {
    /// The usual options, with this clock.
    pub fn new(clock: impl Fn() -> Time + Send + Sync + 'static) -> Options {
        Options {
            clock: Box::new(clock),
            seed: 0,
            cache_bytes: 64 << 20,
            active_logs: ActiveLogs::default(),
            in_place: InPlace::default(),
            fsync_names: FsyncNames::default(),
            read_only: false,
            roll_forward: true,
            inline_data: true,
            inline_dentry: true,
            inline_xattr: true,
            compression: Compression::default(),
            compressed_extensions: Vec::new(),
            plain_extensions: Vec::new(),
            discard: false,
            on_error: OnError::default(),
            straight_bytes: None,
            cache_has_times: true,
            checkpoint_when_asked: false,
        }
    }

    /// The usual options for reading only. The clock stands still, for nothing is stamped.
    pub fn read_only() -> Options {
        Options { read_only: true, ..Options::new(Time::default) }
    }

    /// Bytes of blocks of nodes, clean and dirty.
    pub(super) fn node_bytes(&self) -> usize {
        self.cache_bytes / 2
    }

    /// Bytes of dirty pages, and of dirty nodes, from which on they are written.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.cache_bytes / 4
    }

    /// Bytes of blocks of the NAT.
    pub(super) fn nat_bytes(&self) -> usize {
        self.cache_bytes / 16
    }

    /// Bytes of blocks of the SIT.
    pub(super) fn sit_bytes(&self) -> usize {
        self.cache_bytes / 16
    }

    /// Bytes of what is remembered about the names of directories.
    pub(super) fn name_bytes(&self) -> usize {
        self.cache_bytes / 32 * 3
    }

    /// Bytes of what is remembered about stray names of directories.
    pub(super) fn stray_bytes(&self) -> usize {
        self.cache_bytes / 32
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("seed", &self.seed)
            .field("cache_bytes", &self.cache_bytes)
            .field("active_logs", &self.active_logs)
            .field("in_place", &self.in_place)
            .field("read_only", &self.read_only)
            .field("roll_forward", &self.roll_forward)
            .field("inline", &(self.inline_data, self.inline_dentry, self.inline_xattr))
            .field("discard", &self.discard)
            .finish_non_exhaustive()
    }
}
