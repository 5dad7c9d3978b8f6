//! Parses the text of mount options.

use std::time::Duration;

use f2fs::{
    engine::{ActiveLogs, InPlace, Mode},
    format::inode::{Algorithm, LOG_CLUSTER_BLOCKS},
};
use posix::{Atime, BackgroundGc, FsyncMode, SelinuxLabels, ShownOwner};

use super::{IoUring, KNOWN, MountOptions, OnError, Reads};

/// Returns the spellings of all options, for messages.
pub(super) fn spellings() -> String {
    KNOWN.map(|(spelling, _)| spelling).join(", ")
}

/// Returns a hint with the option most similar to an unknown one, or an empty string if none is similar.
fn nearest(unknown: &str) -> String {
    // Minimum similarity: two wrong letters in a word of ten.
    const LIKE: f64 = 0.8;
    let name = |option: &str| option.split('=').next().unwrap_or_default().to_string();
    let unknown = name(unknown);
    let all = spellings();
    let known = all.split(", ").filter(|one| !one.ends_with("..."));
    let likeness = |one: &str| strsim::jaro_winkler(&unknown, &name(one));
    match known.max_by(|one, other| likeness(one).total_cmp(&likeness(other))) {
        Some(one) if likeness(one) > LIKE => format!("; did you mean {one}?"),
        _ => String::new(),
    }
}

/// An unknown option, or an invalid value of a known one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The option does not exist.
    #[error("unknown option {0:?}{nearest} (see flashkit mount --help)", nearest = nearest(.0))]
    Unknown(String),
    /// The value is invalid for this option.
    #[error("{value:?} is not a value of the option {name}")]
    Value {
        /// Name of the option.
        name: String,
        /// The invalid value.
        value: String,
    },
    /// Two options exclude each other.
    #[error("{0} cannot be combined with {1}; leave one of them out")]
    Conflict(&'static str, &'static str),
}

impl MountOptions {
    /// Applies a comma-separated list of options, as given to `-o`. Later options override earlier ones.
    pub fn apply(&mut self, list: &str) -> Result<(), OptionError> {
        let mut options = list.split(',').map(str::trim).filter(|option| !option.is_empty());
        options.try_for_each(|one| self.set(one))?;
        // As in Linux. Without checkpoints no section becomes free, and a log that only appends needs free ones.
        match self.mode == Mode::Lfs && !self.checkpoints {
            true => Err(OptionError::Conflict("mode=lfs", "checkpoint=disable")),
            false => Ok(()),
        }
    }

    fn set(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let is_set = self.set_flag(name, value)
            || self.set_resource(name, value)?
            || self.set_engine(name, value)?
            || self.set_compression(name, value)?;
        let is_known = || spellings().split(", ").any(|one| one.split('=').next() == Some(name));
        if is_set || is_ignored(name, value) {
            Ok(())
        } else if is_known() {
            Err(bad_value(name, value))
        } else {
            Err(OptionError::Unknown(option.into()))
        }
    }

    /// Sets an option without a value that can be wrong: those of mount(8), and of the FUSE connection. Returns false if it
    /// is another one.
    fn set_flag(&mut self, name: &str, value: Option<&str>) -> bool {
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("remount", None) => self.remount = true,
            ("dev", None) => self.dev = Some(true),
            ("nodev", None) => self.dev = Some(false),
            ("suid", None) => self.suid = Some(true),
            ("nosuid", None) => self.suid = Some(false),
            ("exec", None) => self.exec = true,
            ("noexec", None) => self.exec = false,
            ("symfollow", None) => self.follow_links = true,
            ("nosymfollow", None) => self.follow_links = false,
            ("sync", None) => self.sync = true,
            ("async", None) => self.sync = false,
            ("dirsync", None) => self.dirsync = true,
            ("noatime", None) => self.atime = Atime::Never,
            ("atime" | "relatime", None) => self.atime = Atime::Relative,
            ("strictatime", None) => self.atime = Atime::Strict,
            ("diratime", None) => self.dir_atime = true,
            ("nodiratime", None) => self.dir_atime = false,
            ("sync_read", None) => self.reads = Some(Reads::Foreground),
            ("async_read", None) => self.reads = Some(Reads::Background),
            ("io_uring", None) => self.io_uring = IoUring::Wanted,
            ("no_io_uring", None) => self.io_uring = IoUring::Never,
            ("allow_other", None) => self.allow_other = true,
            ("seclabel", None) => self.selinux_labels = Some(SelinuxLabels::Used),
            ("noseclabel", None) => self.selinux_labels = Some(SelinuxLabels::Hidden),
            ("fsname", Some(name)) => self.source_name = Some(name.into()),
            _ => return false,
        }
        true
    }

    /// Sets an option on the resources of the mount and the owner of its files. Returns false if it is another one.
    fn set_resource(&mut self, name: &str, value: Option<&str>) -> Result<bool, OptionError> {
        let bad = || bad_value(name, value);
        // Linux reserves the highest number (chown(2)).
        let id = |number: &str| number.parse().ok().filter(|id| *id != u32::MAX).ok_or_else(bad);
        match (name, value) {
            ("uid", Some(number)) => self.owner.uid = Some(id(number)?),
            ("gid", Some(number)) => self.owner.gid = Some(id(number)?),
            ("squash", None) => {
                let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
                self.owner = ShownOwner { uid: Some(uid.as_raw()), gid: Some(gid.as_raw()) };
            }
            ("cache", Some(size)) => self.cache_bytes = parse_size(size).ok_or_else(bad)?,
            ("threads", Some(count)) => {
                self.threads =
                    Some(count.parse().ok().filter(|count| (1..=256).contains(count)).ok_or_else(bad)?);
            }
            ("direct", None) => self.direct = true,
            ("direct_write", None) => self.direct_write = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets an option of the volume and its upkeep. Returns false if it is another one.
    fn set_engine(&mut self, name: &str, value: Option<&str>) -> Result<bool, OptionError> {
        let bad = || bad_value(name, value);
        match (name, value) {
            ("active_logs", Some(count)) => {
                self.active_logs = match count {
                    "2" => ActiveLogs::Two,
                    "4" => ActiveLogs::Four,
                    "6" => ActiveLogs::Six,
                    _ => return Err(bad()),
                };
            }
            ("mode", Some("adaptive")) => self.mode = Mode::Adaptive,
            ("mode", Some("lfs")) => self.mode = Mode::Lfs,
            ("ipu_policy", Some("fsync")) => self.in_place = InPlace::Fsync,
            ("ipu_policy", Some("disable")) => self.in_place = InPlace::Never,
            ("background_gc", Some("on" | "sync")) => self.background_gc = BackgroundGc::On,
            ("background_gc", Some("off")) => self.background_gc = BackgroundGc::Off,
            ("atgc", None) => self.age_threshold = true,
            ("discard", None) => self.discard = Some(true),
            ("nodiscard", None) => self.discard = Some(false),
            ("fsync_mode", Some("posix")) => self.fsync = FsyncMode::Posix,
            ("fsync_mode", Some("strict")) => self.fsync = FsyncMode::Strict,
            ("fsync_mode", Some("nobarrier")) | ("nobarrier", None) => self.fsync = FsyncMode::NoBarrier,
            ("checkpoint", Some("enable")) => self.checkpoints = true,
            ("checkpoint", Some(how)) if how == "disable" || how.starts_with("disable:") => {
                self.checkpoints = false;
            }
            ("checkpoint_interval", Some(seconds)) => {
                let seconds = seconds.parse().ok().filter(|seconds| *seconds > 0).ok_or_else(bad)?;
                self.checkpoint_interval = Duration::from_secs(seconds);
            }
            ("disable_roll_forward", None) => self.roll_forward = false,
            // Linux accepts it only together with `ro`.
            ("norecovery", None) => (self.roll_forward, self.read_only) = (false, true),
            ("errors", Some("remount-ro")) => self.on_error = OnError::ReadOnly,
            ("errors", Some("continue")) => self.on_error = OnError::Continue,
            ("errors", Some("panic")) => self.on_error = OnError::Panic,
            ("inline_data", None) => self.inline_data = true,
            ("noinline_data", None) => self.inline_data = false,
            ("inline_dentry", None) => self.inline_dentry = true,
            ("noinline_dentry", None) => self.inline_dentry = false,
            ("inline_xattr", None) => self.inline_xattr = true,
            ("noinline_xattr", None) => self.inline_xattr = false,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets an option on compressed files. Returns false if it is another one.
    fn set_compression(&mut self, name: &str, value: Option<&str>) -> Result<bool, OptionError> {
        let bad = || bad_value(name, value);
        match (name, value) {
            ("compress_algorithm", Some(how)) => {
                let compression = &mut self.compression;
                (compression.algorithm, compression.level) =
                    Algorithm::parse_with_level(how).ok_or_else(bad)?;
            }
            ("compress_log_size", Some(log)) => {
                let log = log.parse().ok().filter(|log| LOG_CLUSTER_BLOCKS.contains(log)).ok_or_else(bad)?;
                self.compression.log_cluster_blocks = log;
            }
            ("compress_chksum", None) => self.compression.checksum = true,
            ("compress_extension", Some(extension)) => self.compressed_extensions.push(extension.into()),
            // Linux refuses `*` here.
            ("nocompress_extension", Some("*")) => return Err(bad()),
            ("nocompress_extension", Some(extension)) => self.plain_extensions.push(extension.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns true if an option is valid and has no effect.
fn is_ignored(name: &str, value: Option<&str>) -> bool {
    match (name, value) {
        // Options that are always in effect.
        (
            "default_permissions"
            | "acl"
            | "user_xattr"
            | "flush_merge"
            | "checkpoint_merge"
            | "extent_cache"
            | "barrier"
            | "defaults",
            None,
        ) => true,
        // Options that only tune Linux's implementation.
        (
            "gc_merge" | "nogc_merge" | "heap" | "no_heap" | "noflush_merge" | "nocheckpoint_merge"
            | "noextent_cache" | "age_extent_cache" | "data_flush" | "fastboot" | "nat_bits" | "lazytime"
            | "nolazytime" | "silent" | "loud",
            None,
        )
        | ("memory", Some("normal" | "low"))
        | ("alloc_mode", Some("default" | "reuse"))
        | ("discard_unit", Some("block" | "segment" | "section")) => true,
        // Options of fstab for mount(8) itself.
        (
            "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group" | "nofail" | "_netdev",
            None,
        )
        | ("subtype" | "comment", Some(_)) => true,
        // FUSE options in the mount table, which mount(8) passes back on a remount; `user_id` is the mounting user, not an
        // owner of files.
        ("user_id" | "group_id" | "max_read" | "blksize", Some(_)) => true,
        _ => name.starts_with("x-") || name.starts_with("X-"),
    }
}

fn bad_value(name: &str, value: Option<&str>) -> OptionError {
    OptionError::Value { name: name.into(), value: value.unwrap_or_default().into() }
}

/// Parses a size such as 64M, 1GiB (powers of 1024) or 1GB (of 1000), at least 1 MiB.
fn parse_size(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let config = match lower.ends_with('b') && !lower.ends_with("ib") {
        true => parse_size::Config::new().with_decimal(),
        false => parse_size::Config::new().with_binary(),
    };
    let bytes = config.parse_size(text).ok()?;
    usize::try_from(bytes).ok().filter(|bytes| *bytes >= 1 << 20)
}
