//! The mount options (`-o`). Names are those of Linux's f2fs and of mount(8) if the meaning is the same.

mod parse;

use std::{path::Path, time::Duration};

use f2fs::{
    Keyring,
    engine::{self, ActiveLogs, FsyncNames, InPlace, Mode, Options, Policy},
    format::inode::Compression,
    units::Time,
};
use image::Image;
use posix::{Atime, BackgroundGc, FsyncMode, SelinuxLabels, Settings, ShownOwner};
use rustix::mount::MountFlags;

pub use parse::OptionError;

/// Minimum length of new data that is written through to the image if the host has a page cache, which merges
/// adjacent writes. Copying it to a buffer would cost more than the requests that this saves.
const WRITE_THROUGH_BYTES: usize = 256 << 10;

/// Reaction to a failed metadata write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The volume refuses changes from then on.
    #[default]
    ReadOnly,
    /// The data is kept in memory and written again later, as long as that is safe.
    Continue,
    /// The process should abort, which ends the mount at once; see [`Event::MustAbort`](crate::Event).
    Panic,
}

/// Use of io_uring for the exchange of requests with the kernel. Without it, requests come through `/dev/fuse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoUring {
    /// If the kernel offers it.
    #[default]
    IfOffered,
    /// If the kernel offers it; [`Event::NoIoUring`](crate::Event) tells the reason if it cannot be used.
    Wanted,
    /// Never.
    Never,
}

/// The queue of the kernel in which reads of files wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// That of background requests: reads go side by side, and behind all write-back that is under way.
    Background,
    /// That of requests for which a process waits: a read overtakes write-back, and a stream has one read at a time.
    Foreground,
}

/// The kind of file that holds a volume. It determines the defaults of `discard` and `sync_read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// An SD card, an eMMC or a removable disk.
    Card,
    /// Another block device.
    BlockDevice,
    /// A regular file.
    File,
}

impl Medium {
    /// Returns the medium of an image.
    pub(crate) fn of(image: &Image) -> Medium {
        match image.file() {
            Some(file) if file.is_card() => Medium::Card,
            Some(file) if file.is_block_device() => Medium::BlockDevice,
            _ => Medium::File,
        }
    }
}

/// The options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The volume is not changed.
    pub read_only: bool,
    /// Only the flags of an existing mount are changed.
    pub remount: bool,
    /// Users other than the mounting one may access the mount.
    pub allow_other: bool,
    /// The owner that files have on the mount.
    pub owner: ShownOwner,
    /// Device nodes are usable. With `None`, they are unless files are shown with another owner: that owner would get the
    /// devices of this machine.
    pub dev: Option<bool>,
    /// Set-user-id and set-group-id bits take effect. With `None`, they do unless files are shown with another owner: a
    /// program of any user would run as that one.
    pub suid: Option<bool>,
    /// Programs can be executed.
    pub exec: bool,
    /// Symbolic links are followed.
    pub follow_links: bool,
    /// Every write is synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// When reading updates access times.
    pub atime: Atime,
    /// Reading a directory updates its access time, too.
    pub dir_atime: bool,
    /// Guarantees of fsync.
    pub fsync: FsyncMode,
    /// When segments are cleaned although space is not needed.
    pub background_gc: BackgroundGc,
    /// Background cleaning only moves data unchanged for a week.
    pub age_threshold: bool,
    /// Reaction to a failed metadata write.
    pub on_error: OnError,
    /// Checkpoints are written.
    pub checkpoints: bool,
    /// Time between checkpoints while there are changes.
    pub checkpoint_interval: Duration,
    /// Number of active logs.
    pub active_logs: ActiveLogs,
    /// Policy of the logs.
    pub mode: Mode,
    /// When blocks are overwritten in place.
    pub in_place: InPlace,
    /// Segments freed by a checkpoint are discarded. With `None`, only on block devices, as in Linux.
    pub discard: Option<bool>,
    /// Files fsynced after the last checkpoint are recovered.
    pub roll_forward: bool,
    /// Small files are stored in their inode.
    pub inline_data: bool,
    /// Small directories are stored in their inode.
    pub inline_dentry: bool,
    /// New inodes reserve space for extended attributes.
    pub inline_xattr: bool,
    /// Settings for files that become compressed.
    pub compression: Compression,
    /// Name extensions of new files to compress.
    pub compressed_extensions: Vec<String>,
    /// Name extensions of new files not to compress, even in compressed directories.
    pub plain_extensions: Vec<String>,
    /// Memory for caches, in bytes.
    pub cache_bytes: usize,
    /// Number of worker threads. With `None`, it depends on the number of processors.
    pub threads: Option<usize>,
    /// The image is accessed with O_DIRECT, bypassing the host's page cache.
    pub direct: bool,
    /// Files open for writing bypass the page cache of the mount.
    pub direct_write: bool,
    /// The queue in which reads wait. With `None`, it depends on the medium.
    pub reads: Option<Reads>,
    /// Use of io_uring for the exchange of requests with the kernel.
    pub io_uring: IoUring,
    /// Labels of SELinux. With `None`, it depends on whether the host has SELinux.
    pub selinux_labels: Option<SelinuxLabels>,
    /// Source in the mount table. With `None`, it is the image.
    pub source_name: Option<String>,
    /// Master keys of encrypted files and directories; not an option of `-o`.
    pub keys: Keyring,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            remount: false,
            allow_other: false,
            owner: ShownOwner::default(),
            dev: None,
            suid: None,
            exec: true,
            follow_links: true,
            sync: false,
            dirsync: false,
            atime: Atime::default(),
            dir_atime: true,
            fsync: FsyncMode::default(),
            background_gc: BackgroundGc::default(),
            age_threshold: false,
            on_error: OnError::default(),
            checkpoints: true,
            checkpoint_interval: Duration::from_secs(60),
            active_logs: ActiveLogs::default(),
            mode: Mode::default(),
            in_place: InPlace::default(),
            discard: None,
            roll_forward: true,
            inline_data: true,
            inline_dentry: true,
            inline_xattr: true,
            compression: Compression::default(),
            compressed_extensions: Vec::new(),
            plain_extensions: Vec::new(),
            cache_bytes: 64 << 20,
            threads: None,
            direct: false,
            direct_write: false,
            reads: None,
            io_uring: IoUring::default(),
            selinux_labels: None,
            source_name: None,
            keys: Keyring::default(),
        }
    }
}

/// Spelling and description of all options.
pub const KNOWN: [(&str, &str); 43] = [
    ("ro, rw", "ro: write nothing; an unclean volume is recovered in memory"),
    ("remount", "Change the flags of an existing mount: ro, dev, suid, exec, sync and access times"),
    ("dev, nodev, suid, nosuid, exec, noexec, symfollow, nosymfollow", "As in mount(8)"),
    ("sync, async", "sync: each write is on the device when it returns"),
    ("dirsync", "Changes of directories are on the device when they return"),
    ("relatime, atime, noatime, strictatime", "How reading updates access times [relatime]"),
    ("diratime, nodiratime", "Update access times of directories, or not [diratime]"),
    ("allow_other", "Allow other users; permissions apply to all"),
    (
        "uid=N, gid=N",
        "Show all files as owned by this user, this group; the volume keeps its owners, and a new file gets those of \
         its directory. Implies nodev and nosuid, unless dev or suid is given",
    ),
    ("squash", "uid= and gid= of the mounting user: access to everything in an image of that user"),
    ("fsname=NAME", "Source shown in the table of mounts, instead of the image"),
    ("active_logs=2|4|6", "Number of active logs; fewer suit cards with few open units [6]"),
    (
        "mode=adaptive|lfs",
        "lfs: only append, never overwrite in place or fill holes, and clean segments instead [adaptive]",
    ),
    ("ipu_policy=fsync|disable", "Overwrite in place if that is better for an fsync, or never [fsync]"),
    ("background_gc=on|off", "Clean segments after 5 seconds without a request [on]"),
    ("atgc", "Clean in idle time only sections unchanged for a week"),
    ("discard, nodiscard", "Discard blocks that checkpoints free [discard on block devices]"),
    (
        "fsync_mode=posix|strict|nobarrier",
        "strict: fsync also makes all renames before it durable; nobarrier: no flush [posix]",
    ),
    ("nobarrier", "fsync_mode=nobarrier"),
    ("checkpoint=enable|disable", "disable: all changes are dropped when the mount ends [enable]"),
    ("checkpoint_interval=SECONDS", "Time between checkpoints of a changed volume [60]"),
    (
        "disable_roll_forward",
        "Drop fsyncs after the last checkpoint, if the volume was not unmounted cleanly",
    ),
    ("norecovery", "The same, and ro"),
    (
        "errors=continue|remount-ro|panic",
        "If metadata cannot be written: keep it and retry, refuse changes, or end [remount-ro]",
    ),
    ("inline_data, noinline_data", "Store small files in their inode, or not [inline_data]"),
    ("inline_dentry, noinline_dentry", "Store small directories in their inode, or not [inline_dentry]"),
    ("inline_xattr, noinline_xattr", "Reserve space for attributes in inodes, or not [inline_xattr]"),
    ("compress_algorithm=lzo|lzo-rle|lz4|zstd[:LEVEL]", "Algorithm for newly compressed files [lz4]"),
    ("compress_log_size=2..8", "Blocks in a compressed cluster, as a power of 2 [2]"),
    (
        "compress_extension=EXTENSION",
        "Compress new files with this extension, or all with *; can be repeated",
    ),
    ("nocompress_extension=EXTENSION", "Do not compress new files with this extension; can be repeated"),
    ("compress_chksum", "Store checksums of compressed clusters"),
    ("cache=SIZE", "Memory for nodes, dirty pages, tables and directories [64M]"),
    ("threads=N", "Threads that answer requests of /dev/fuse [two for each processor]"),
    ("direct", "Access the image without the page cache of the host"),
    (
        "direct_write",
        "Write past the page cache of the mount, which then caches only files that are open for reading alone. \
         Long writes become faster, short ones slower; shared mappings of files open for writing then need \
         Linux 6.6",
    ),
    (
        "sync_read, async_read",
        "sync_read: a read overtakes the write-back of other files, which can take seconds after many random writes; \
         streams have one read at a time, which is slower on fast media [sync_read on SD cards, eMMC and removable \
         disks, else async_read]",
    ),
    (
        "io_uring, no_io_uring",
        "Exchange requests with the kernel through io_uring, and say so if it cannot be used; or through /dev/fuse. \
         [io_uring where the kernel offers it: Linux 6.14 with Y in /sys/module/fuse/parameters/enable_uring]",
    ),
    (
        "seclabel, noseclabel",
        "noseclabel: no labels of SELinux; those of the volume stay. seclabel: a file without a label has none yet. By \
         default labels are shown, and on a host without SELinux ls -l asks once for those that are missing",
    ),
    ("default_permissions, acl, user_xattr", "Always on"),
    ("flush_merge, checkpoint_merge, extent_cache", "Always on"),
    ("defaults, auto, noauto, user, nofail, _netdev, x-...", "For other programs; ignored"),
    // `lazytime` is accepted because Linux lists it in /proc/mounts, and lines of fstab have it. Access times
    // wait in memory with any option; see `posix::FileSystem`.
    (
        "gc_merge, heap, lazytime, memory=, alloc_mode=, ...",
        "Options of f2fs in Linux without a meaning here: accepted and ignored",
    ),
];

impl MountOptions {
    /// Returns the flags for mount(2).
    pub fn mount_flags(&self) -> MountFlags {
        let has_own_owners = self.owner == ShownOwner::default();
        let flags = [
            (self.read_only, MountFlags::RDONLY),
            (!self.dev.unwrap_or(has_own_owners), MountFlags::NODEV),
            (!self.suid.unwrap_or(has_own_owners), MountFlags::NOSUID),
            (!self.exec, MountFlags::NOEXEC),
            (!self.follow_links, MountFlags::NOSYMFOLLOW),
            (self.sync, MountFlags::SYNCHRONOUS),
            (self.dirsync, MountFlags::DIRSYNC),
            (self.atime == Atime::Never, MountFlags::NOATIME),
            // Set explicitly, because a remount without any atime flag keeps the current ones.
            (self.atime == Atime::Relative, MountFlags::RELATIME),
            (self.atime == Atime::Strict, MountFlags::STRICTATIME),
            (!self.dir_atime, MountFlags::NODIRATIME),
        ];
        flags.into_iter().filter(|(set, _)| *set).fold(MountFlags::empty(), |all, (_, flag)| all | flag)
    }

    /// Returns the queue in which reads wait. A card is slow: all that the kernel may have to write back takes it
    /// seconds, and a pause between two reads of a stream takes less than a tenth of the time of a read.
    pub(crate) fn reads_on(&self, medium: Medium) -> Reads {
        self.reads.unwrap_or(match medium {
            Medium::Card => Reads::Foreground,
            Medium::BlockDevice | Medium::File => Reads::Background,
        })
    }

    /// Returns the engine's options for opening the volume.
    pub fn volume_options(
        &self,
        medium: Medium,
        clock: impl Fn() -> Time + Send + Sync + 'static,
        seed: u64,
    ) -> Options {
        Options {
            seed,
            cache_bytes: self.cache_bytes,
            active_logs: self.active_logs,
            mode: self.mode,
            in_place: self.in_place,
            fsync_names: match self.fsync {
                FsyncMode::Strict => FsyncNames::Renamed,
                FsyncMode::Posix | FsyncMode::NoBarrier => FsyncNames::Own,
            },
            read_only: self.read_only,
            roll_forward: self.roll_forward,
            inline_data: self.inline_data,
            inline_dentry: self.inline_dentry,
            inline_xattr: self.inline_xattr,
            keys: self.keys.clone(),
            compression: self.compression,
            compressed_extensions: self.compressed_extensions.clone(),
            plain_extensions: self.plain_extensions.clone(),
            discard: self.discard.unwrap_or(medium != Medium::File),
            write_through_bytes: (!self.direct).then_some(WRITE_THROUGH_BYTES),
            // The kernel maintains times only for writes through its cache.
            cache_has_times: !self.direct_write,
            checkpoint_when_asked: !self.checkpoints,
            on_error: match self.on_error {
                OnError::Continue => engine::OnError::Continue,
                OnError::ReadOnly | OnError::Panic => engine::OnError::ReadOnly,
            },
            ..Options::new(clock)
        }
    }
}

impl From<&MountOptions> for Settings {
    fn from(options: &MountOptions) -> Settings {
        Settings {
            atime: options.atime,
            dir_atime: options.dir_atime,
            fsync: options.fsync,
            dirsync: options.dirsync || options.sync,
            checkpoints: options.checkpoints,
            read_only: options.read_only,
            owner: options.owner,
            selinux_labels: options.selinux_labels.unwrap_or_else(labels_of_host),
            cleaning: if options.age_threshold { Policy::AgeThreshold } else { Policy::CostBenefit },
        }
    }
}

/// Returns the use of labels that follows from the host: its kernel makes this directory if SELinux is on.
fn labels_of_host() -> SelinuxLabels {
    match Path::new("/sys/fs/selinux").exists() {
        true => SelinuxLabels::Used,
        false => SelinuxLabels::Unused,
    }
}

#[cfg(test)]
mod tests {
    use f2fs::format::inode::Algorithm;

    use super::{parse::spellings, *};

    fn parsed(list: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        options.apply(list).map(|()| options)
    }

    #[test]
    fn options_are_set_and_the_last_one_wins() {
        let options = parsed(
            "ro,rw,active_logs=4,mode=lfs,ipu_policy=disable,noinline_data,nodiscard,fsync_mode=strict,checkpoint=enable,\
             checkpoint_interval=5,noatime,errors=panic,cache=16M,threads=3,direct_write,allow_other,background_gc=off",
        )
        .unwrap();
        let wanted = MountOptions {
            allow_other: true,
            active_logs: ActiveLogs::Four,
            mode: Mode::Lfs,
            in_place: InPlace::Never,
            inline_data: false,
            discard: Some(false),
            fsync: FsyncMode::Strict,
            checkpoint_interval: Duration::from_secs(5),
            atime: Atime::Never,
            on_error: OnError::Panic,
            cache_bytes: 16 << 20,
            threads: Some(3),
            direct_write: true,
            background_gc: BackgroundGc::Off,
            ..MountOptions::default()
        };
        assert_eq!(options, wanted);
    }

    #[test]
    fn reads_overtake_write_back_on_cards_and_where_they_are_told_to() {
        let reads = |list, medium| parsed(list).unwrap().reads_on(medium);
        let all = [Medium::Card, Medium::BlockDevice, Medium::File];
        let usual = [Reads::Foreground, Reads::Background, Reads::Background];
        assert_eq!(all.map(|medium| reads("", medium)), usual);
        assert_eq!(all.map(|medium| reads("sync_read", medium)), [Reads::Foreground; 3]);
        assert_eq!(all.map(|medium| reads("sync_read,async_read", medium)), [Reads::Background; 3]);
    }

    #[test]
    fn logs_that_only_append_need_checkpoints() {
        assert!(!parsed("checkpoint=disable:10%").unwrap().checkpoints);
        for list in ["mode=lfs,checkpoint=disable", "checkpoint=disable:10%,mode=lfs"] {
            let error = parsed(list).unwrap_err().to_string();
            assert_eq!(error, "mode=lfs cannot be combined with checkpoint=disable; leave one of them out");
        }
        let options = parsed("mode=lfs,checkpoint=disable,checkpoint=enable").unwrap();
        assert_eq!((options.mode, options.checkpoints), (Mode::Lfs, true));
    }

    #[test]
    fn files_have_the_owner_of_the_options() {
        let owner = |list: &str| parsed(list).map(|options| (options.owner.uid, options.owner.gid));
        assert_eq!(owner("ro"), Ok((None, None)));
        assert_eq!(owner("uid=5"), Ok((Some(5), None)));
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(owner("squash"), Ok((Some(uid), Some(gid))));
        assert_eq!(owner("squash,gid=6"), Ok((Some(uid), Some(6))));
        for list in ["uid=root", "uid=-1", "gid=4294967295", "uid", "squash=1"] {
            assert!(matches!(parsed(list), Err(OptionError::Value { .. })), "{list}");
        }
    }

    /// A device node of root's would belong to the shown user, and a program of any user would run as that one.
    #[test]
    fn a_shown_owner_gets_neither_devices_nor_set_id_programs_unless_asked() {
        let flags = |list: &str| {
            let flags = parsed(list).unwrap().mount_flags();
            (flags.contains(MountFlags::NODEV), flags.contains(MountFlags::NOSUID))
        };
        assert_eq!(flags("allow_other"), (false, false));
        for list in ["uid=5", "gid=6,allow_other", "squash"] {
            assert_eq!(flags(list), (true, true), "{list}");
        }
        assert_eq!(flags("uid=5,dev"), (false, true));
        assert_eq!(flags("suid,dev,squash"), (false, false));
    }

    #[test]
    fn an_unknown_option_is_reported_with_the_nearest_one() {
        let told = |option: &str| MountOptions::default().apply(option).unwrap_err().to_string();
        let wanted = r#"unknown option "noatim"; did you mean noatime? (see flashkit mount --help)"#;
        assert_eq!(told("noatim"), wanted);
        assert!(told("active_log=4").contains("did you mean active_logs=2|4|6?"), "{}", told("active_log=4"));
        assert_eq!(told("quiet"), r#"unknown option "quiet" (see flashkit mount --help)"#);
    }

    #[test]
    fn every_option_in_the_help_is_accepted() {
        let spelled = spellings();
        for spelling in spelled.split(", ").filter(|spelling| !spelling.ends_with("...")) {
            let (name, values) = spelling.split_once('=').unwrap_or((spelling, ""));
            let values = match name {
                "memory" => "normal",
                "alloc_mode" => "default",
                "compress_log_size" => "2|8",
                "compress_algorithm" => "lzo|lzo-rle|lz4|zstd|zstd:22",
                _ => values,
            };
            for value in values.split('|') {
                let value = match value {
                    "" => String::new(),
                    "SECONDS" | "N" => "=7".into(),
                    "SIZE" => "=64M".into(),
                    value => format!("={value}"),
                };
                parsed(&format!("{name}{value}")).unwrap();
            }
        }
    }

    #[test]
    fn compression_is_chosen_as_linux_does() {
        let options =
            parsed("compress_algorithm=zstd:6,compress_log_size=4,compress_chksum,compress_extension=so")
                .unwrap();
        let compression =
            Compression { algorithm: Algorithm::Zstd, log_cluster_blocks: 4, checksum: true, level: 6 };
        assert_eq!(options.compression, compression);
        assert_eq!(options.compressed_extensions, ["so"]);
    }

    #[test]
    fn options_of_fstab_for_other_programs_are_ignored() {
        assert_eq!(parsed("defaults,noauto,user,x-systemd.automount,_netdev,,"), Ok(MountOptions::default()));
        assert!(parsed("norecovery").unwrap().read_only);
        // A line of Linux's /proc/mounts is accepted unchanged.
        let linux = "rw,lazytime,relatime,background_gc=on,nogc_merge,discard,discard_unit=block,user_xattr,\
                     inline_xattr,acl,inline_data,inline_dentry,flush_merge,barrier,extent_cache,mode=adaptive,\
                     active_logs=6,alloc_mode=default,checkpoint_merge,fsync_mode=posix,memory=normal,errors=continue";
        let wanted =
            MountOptions { discard: Some(true), on_error: OnError::Continue, ..MountOptions::default() };
        assert_eq!(parsed(linux), Ok(wanted));
    }

    #[test]
    fn sizes_are_in_powers_of_1024_except_with_b_alone() {
        let cache = |text: &str| parsed(&format!("cache={text}")).unwrap().cache_bytes;
        assert_eq!([cache("2M"), cache("2MiB"), cache("2MB")], [2 << 20, 2 << 20, 2_000_000]);
    }

    #[test]
    fn unknown_options_and_values_have_different_errors() {
        let unknown = parsed("quiet").unwrap_err();
        assert_eq!(unknown, OptionError::Unknown("quiet".into()));
        assert!(unknown.to_string().contains("flashkit mount --help"), "{unknown}");
        for bad in [
            "active_logs=3",
            "active_logs",
            "ro=1",
            "mode=fast",
            "cache=1",
            "threads=0",
            "checkpoint_interval=0",
            "compress_algorithm=gzip",
            "compress_algorithm=lzo:1",
            "compress_algorithm=zstd:23",
            "compress_log_size=9",
            "nocompress_extension=*",
        ] {
            assert!(matches!(parsed(bad), Err(OptionError::Value { .. })), "{bad}");
        }
    }
}
