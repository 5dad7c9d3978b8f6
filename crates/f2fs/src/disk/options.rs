//! Options for opening a volume.

use std::{fmt, sync::Arc};

use fscrypt::{Keyring, Nonces};

use crate::{format::inode::Compression, units::Time};

/// Source of the current time. The engine never reads the host's clock.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// Number of logs in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ActiveLogs {
    /// One for data, one for nodes.
    Two,
    /// Directory data and other data; direct nodes of files and other nodes.
    Four,
    /// Hot, warm and cold logs, for data and for nodes each.
    #[default]
    Six,
}

/// Policy of the logs (Linux, mount option `mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Logs append as long as more than the reserve is free, and fill the holes of segments in use after that (SSR). Blocks
    /// of files are updated in place if [`InPlace`] says so.
    #[default]
    Adaptive,
    /// Logs only append. Before each change, cleaning empties sections until the logs have enough free ones. No block is
    /// updated in place, except in pinned files. A log that a volume in adaptive mode has left among holes fills that
    /// segment first. Only roll-forward recovery fills holes, and only if no section is free.
    Lfs,
}

/// Policy for in-place updates (IPU) of file blocks, with [`Mode::Adaptive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum InPlace {
    /// Never: all blocks go to the logs.
    Never,
    /// On fsync, for few blocks, so that no node has to be written for them; or for a long run of adjacent
    /// blocks, which a log would take in no fewer commands.
    #[default]
    Fsync,
    /// For every block that has an address.
    Always,
}

/// Behaviour after a failed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnError {
    /// The volume refuses changes until it is opened again.
    #[default]
    ReadOnly,
    /// The failed blocks are kept in memory, the caller that asked for durability gets the error, and the
    /// next attempt writes them again. The volume refuses changes only if the content of the device is
    /// unknown (after a failed flush or a failed last block of a checkpoint), or if too many blocks wait.
    Continue,
}

/// The names that an fsync makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FsyncNames {
    /// The name of the file, and the names that recovery needs to enter it.
    #[default]
    Own,
    /// In addition every rename before the fsync, so that the whole path to the file is durable (Linux,
    /// `FSYNC_MODE_STRICT`). This costs a checkpoint if anything was renamed since the last one.
    Renamed,
}

/// The caller of the upkeep that is due before a change: writing dirty pages, cleaning, checkpoints that free blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Upkeep {
    /// Every change does it itself.
    #[default]
    ByChange,
    /// The caller does it by [`Engine::begin_upkeep`](crate::engine::Engine::begin_upkeep), before changes that together write no
    /// more than 4 MiB.
    ByCaller,
}

/// Options for opening a volume.
#[derive(Clone)]
pub struct Options {
    /// The clock for timestamps and for the age of segments.
    pub clock: Clock,
    /// Seed of the generation numbers of inodes.
    pub seed: u64,
    /// Memory for caches in bytes: seven sixteenths for nodes, a quarter for dirty pages, an eighth for indexes of
    /// directories, and a sixteenth each for blocks and positions of directories, for the NAT and for the SIT.
    pub cache_bytes: usize,
    /// Number of logs in use.
    pub active_logs: ActiveLogs,
    /// Policy of the logs.
    pub mode: Mode,
    /// Policy for in-place updates. [`Mode::Lfs`] excludes them.
    pub in_place: InPlace,
    /// The names that an fsync makes durable.
    pub fsync_names: FsyncNames,
    /// True to refuse changes and write nothing; an unclean volume is then recovered in memory.
    pub read_only: bool,
    /// True to recover fsynced changes after the last checkpoint (roll-forward).
    pub roll_forward: bool,
    /// True to store small files in their inode.
    pub inline_data: bool,
    /// True to store small directories in their inode.
    pub inline_dentry: bool,
    /// True to reserve room for xattrs in inodes.
    pub inline_xattr: bool,
    /// Compression settings for files that become compressed; each file stores its own.
    pub compression: Compression,
    /// Extensions of new files that are compressed regardless of their directory; `*` matches every name.
    pub compressed_extensions: Vec<String>,
    /// Extensions of new files that are not compressed, even in a compressed directory.
    pub plain_extensions: Vec<String>,
    /// True to queue discards for the blocks that a checkpoint frees; the caller issues
    /// [`Engine::discards`](crate::engine::Engine::discards).
    pub discard: bool,
    /// Behaviour after a failed write.
    pub on_error: OnError,
    /// Minimum size in bytes of a write of new data that goes to the device directly from the caller's
    /// buffer. `None` keeps all data in the pending run of its log, where adjacent blocks are joined to large
    /// commands. A caller that joins writes itself, like a page cache, needs no second copy there.
    pub write_through_bytes: Option<usize>,
    /// True if the caller caches writes and sets the timestamps of a change itself; otherwise the volume sets
    /// them.
    pub cache_has_times: bool,
    /// True to write checkpoints only on request. Until then, dropping the volume discards all changes as a
    /// whole. Blocks freed in the meantime cannot be reused, so that [`Mode::Lfs`] excludes it, as in Linux.
    pub checkpoint_when_asked: bool,
    /// The caller of the upkeep before changes.
    pub upkeep: Upkeep,
    /// Master keys of encrypted files and directories.
    pub keys: Keyring,
    /// Source of the nonces of new encrypted files. Without one, files in encrypted directories cannot be made. Two openings
    /// must not have the same seed: files with the same nonce have the same key.
    pub nonces: Option<Nonces>,
}

impl Options {
    /// Default options with this clock.
    pub fn new(clock: impl Fn() -> Time + Send + Sync + 'static) -> Options {
        Options {
            clock: Arc::new(clock),
            seed: 0,
            cache_bytes: 64 << 20,
            active_logs: ActiveLogs::default(),
            mode: Mode::default(),
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
            write_through_bytes: None,
            cache_has_times: true,
            checkpoint_when_asked: false,
            upkeep: Upkeep::default(),
            keys: Keyring::default(),
            nonces: None,
        }
    }

    /// Default options for read-only use. The clock is constant because nothing is stamped.
    pub fn read_only() -> Options {
        Options { read_only: true, ..Options::new(Time::default) }
    }

    /// The policy for in-place updates that follows from the mode.
    pub(crate) fn in_place(&self) -> InPlace {
        match self.mode {
            Mode::Adaptive => self.in_place,
            Mode::Lfs => InPlace::Never,
        }
    }

    /// Bytes of the node cache, clean and dirty.
    pub(crate) fn node_bytes(&self) -> usize {
        self.cache_bytes / 16 * 7
    }

    /// Bytes of dirty pages, and of dirty nodes, above which they are written back.
    pub(crate) fn dirty_bytes(&self) -> usize {
        self.cache_bytes / 4
    }

    /// Bytes of cached NAT blocks.
    pub(crate) fn nat_bytes(&self) -> usize {
        self.cache_bytes / 16
    }

    /// Bytes of cached blocks of directories.
    pub(crate) fn dir_block_bytes(&self) -> usize {
        self.cache_bytes / 64 * 3
    }

    /// Bytes of positions of names.
    pub(crate) fn hint_bytes(&self) -> usize {
        self.cache_bytes / 64
    }

    /// Bytes of cached SIT blocks.
    pub(crate) fn sit_bytes(&self) -> usize {
        self.cache_bytes / 16
    }

    /// Bytes of the indexes of directory names.
    pub(crate) fn name_bytes(&self) -> usize {
        self.cache_bytes / 32 * 3
    }

    /// Bytes of the records of stray directory names.
    pub(crate) fn stray_bytes(&self) -> usize {
        self.cache_bytes / 32
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("seed", &self.seed)
            .field("cache_bytes", &self.cache_bytes)
            .field("active_logs", &self.active_logs)
            .field("mode", &self.mode)
            .field("in_place", &self.in_place)
            .field("read_only", &self.read_only)
            .field("roll_forward", &self.roll_forward)
            .field("inline", &(self.inline_data, self.inline_dentry, self.inline_xattr))
            .field("discard", &self.discard)
            .finish_non_exhaustive()
    }
}
