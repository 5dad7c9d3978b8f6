//! The life cycle of a mount: open the volume, mount, answer requests, and leave the volume clean.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Weak, atomic::AtomicBool, mpsc},
    thread,
    time::{Duration, Instant},
};

use block::{Device, InUse, ReadPattern};
use f2fs::{
    NONCE_SEED_BYTES, Nonces,
    engine::{Engine, read_superblock},
    format::superblock::Features,
};
use fuse_protocol::{Mounter, ReadyThreads, UnmountMode};
use image::{Image, Source};
use posix::{FileSystem, Settings};
use rustix::param::page_size;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXCPU, SIGXFSZ},
    iterator::Signals,
};

use crate::{
    MountOptions, backend,
    background::Background,
    clock,
    event::{Event, Report},
    mounts,
    options::{Medium, OptionError},
};

/// The file system's part of the types of our mounts.
pub const SUBTYPE: &str = "flashkit";
/// After a signal, time until programs that still use the mount get errors.
const GRACE: Duration = Duration::from_secs(3);
/// Maximum wait for a process that has the device open without mounting it to close it, and the interval of
/// the checks.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Readahead of the kernel in KiB: the length of one request.
const READ_AHEAD_KIB: u64 = 1024;
/// Share of the kernel's dirty limit that this mount may use, in percent. The rest is for our own writes to
/// the image.
const DIRTY_PERCENT_MAX: u64 = 50;
/// Dirty pages of this mount in bytes, as far as a whole percentage allows: enough for programs to go on while the mount
/// writes. Reads and fsyncs of other files wait behind them, and a stream whose write-back begins early is written by
/// two processors.
const DIRTY_BYTES: u64 = 128 << 20;

/// Threads beside those that answer requests: one waits for signals, and one for the end of the session.
const THREADS: usize = 2 + Background::THREADS;

/// An error of the mount as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid mount options.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A device cannot be opened.
    #[error("{}: {source}", path.display())]
    Device {
        /// The file or block device.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The volume cannot be opened or closed.
    #[error("{}: {source}", path.display())]
    Engine {
        /// The image.
        path: PathBuf,
        /// Cause.
        source: f2fs::Error,
    },
    /// The volume was not left clean.
    #[error("{}: {reason}", path.display())]
    Ended {
        /// The image.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// Mounting on the directory failed.
    #[error("cannot mount on {}: {source}", dir.display())]
    Mount {
        /// The mount point.
        dir: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The host refuses a thread or a process without which the mount cannot work.
    #[error(
        "cannot mount on {}: the system gives no further thread or process: {source}; the limit of processes of this user \
         (ulimit -u) or of the container (pids.max) is reached: raise it or end other programs, and try again",
        dir.display()
    )]
    NoThread {
        /// The mount point.
        dir: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The mount could not be taken from its directory at the end.
    #[error(
        "the volume is closed, but {} still shows a mount that nobody answers: {source}; unmount it with umount or \
         fusermount3 -u",
        dir.display()
    )]
    Unmount {
        /// The mount point.
        dir: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The connection to the kernel broke.
    #[error("the connection to the kernel failed: {0}")]
    Session(io::Error),
    /// The process that asked for the mount ended before it was ready, so it was unmounted at once.
    #[error("unmounted again, because the caller did not wait for the mount: {0}")]
    Unheard(io::Error),
}

/// Result of a mount operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A mounted volume that does not answer requests yet.
pub struct Mount {
    fs: Arc<FileSystem>,
    session: backend::Session,
    /// Caught from before the mount exists: an uncaught signal would leave a mount without a process that
    /// answers.
    signals: Signals,
    /// Started before the mount exists, because the host may refuse them.
    threads: ReadyThreads,
    image: PathBuf,
    dir: PathBuf,
    options: MountOptions,
    read_only_reason: Option<String>,
    writer: Option<InUse>,
    asks_for_fsck: bool,
}

/// Reason why the mount ends.
enum End {
    /// The file system was unmounted, or the connection broke.
    Session(io::Result<()>),
    /// A signal asks for the end.
    Signal,
}

impl Mount {
    /// Opens the volume on `sources`, the first of which is the image, and mounts it on a directory.
    pub fn new(sources: &[Source], dir: &Path, options: MountOptions) -> Result<Mount> {
        Mount::wrapping(sources, dir, options, |device| device)
    }

    /// Mounts like [`new`](Self::new), with the volume on what `wrap` makes of its device, such as one that
    /// records or delays requests. Long reads may bypass the wrapper.
    pub fn wrapping(
        sources: &[Source],
        dir: &Path,
        mut options: MountOptions,
        wrap: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>,
    ) -> Result<Mount> {
        let image = sources.first().map(|source| PathBuf::from(source.name())).unwrap_or_default();
        let at = |source| Error::Engine { path: image.clone(), source };
        let mount_error = |source| mount_error(dir, source);
        let dir = dir.canonicalize().map_err(mount_error)?;
        let threads = ReadyThreads::start(THREADS).map_err(mount_error)?;
        survive_file_size_limit().map_err(Error::Session)?;
        let mut protected = None;
        let images = match open_images(sources, &options) {
            // Falls back to read-only, as mount(8) does for in-kernel file systems.
            Err(Error::Device { path, source }) if is_write_protected(&source) => {
                protected = Some(format!("{} is write-protected", path.display()));
                options.read_only = true;
                open_images(sources, &options)?
            }
            opened => opened?,
        };
        let medium = images.first().map_or(Medium::File, Medium::of);
        let nonces =
            images.first().is_some_and(can_encrypt).then(nonces).transpose().map_err(Error::Session)?;
        let volume_options =
            f2fs::engine::Options { nonces, ..options.volume_options(medium, clock::now, seed()) };
        let volume = open_volume(&images, volume_options, wrap).map_err(at)?;
        // Without a readable root directory the mount would be useless.
        volume.stat(volume.superblock().root_ino).map_err(at)?;
        let file = match &images[..] {
            [image] => image.whole_file().map_or_else(Weak::new, Arc::downgrade),
            _ => Weak::new(),
        };
        let writer = images.iter().find_map(|image| image.writer().cloned());
        let read_only_reason = match options.read_only {
            true if volume.headless_checkpoint().is_none() => protected,
            _ => volume.read_only_reason().map(str::to_string),
        };
        let asks_for_fsck = volume.asks_for_fsck();
        options.read_only |= read_only_reason.is_some();
        let fs = Arc::new(FileSystem::new(volume, file, Settings::from(&options)));
        let source = match &options.source_name {
            Some(name) => name.clone(),
            None => absolute(&sources[0]),
        };
        // SIGXCPU announces that the process is about to be killed for exceeding its CPU limit.
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGXCPU]).map_err(Error::Session)?;
        let first = images.first().expect("a volume lies on a device");
        let session = backend::mount(fs.clone(), first, &dir, &options, &source).map_err(mount_error)?;
        // From here on only the volume keeps the files open.
        drop(images);
        Ok(Mount {
            fs,
            session,
            signals,
            threads,
            image,
            dir,
            options,
            read_only_reason,
            writer,
            asks_for_fsck,
        })
    }

    /// Returns true if the volume has known damage that was not repaired.
    pub fn asks_for_fsck(&self) -> bool {
        self.asks_for_fsck
    }

    /// Returns the directory of the mount, as the mount table has it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the major and minor number of the mount's device, if the mount table has it.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.session.device()
    }

    /// Returns true if the volume is not changed.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Returns the reason for a read-only mount that was not requested.
    pub fn read_only_reason(&self) -> Option<&str> {
        self.read_only_reason.as_deref()
    }

    /// Returns the process that writes to the image beside this mount. The mount is then read-only, and may
    /// show stale or half-written data.
    pub fn writer(&self) -> Option<&InUse> {
        self.writer.as_ref()
    }

    /// Answers requests until the file system is unmounted or a signal arrives, and leaves the volume clean.
    /// `ready` is called once requests are answered; if it fails, the mount ends. `report` is called for events
    /// that users should learn of, on any thread.
    pub fn run(
        self,
        ready: impl FnOnce() -> io::Result<()>,
        report: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<()> {
        let report: Arc<Report> = Arc::new(report);
        let Mount { fs, session, signals, threads, image, dir, options, .. } = self;
        let (mounter, device) = (session.mounter(), session.device());
        let (ends, end) = mpsc::channel();
        let handle = signals.handle();
        // Of the threads that wait the host cannot refuse any.
        let started = Background::start(&threads, fs.clone(), &options, image.clone(), report.clone());
        let started = started.and_then(|background| {
            start_session(&threads, signals, session, report, ends)?;
            Ok(background)
        });
        let (mut background, started) = match started {
            Ok(background) => (Some(background), Ok(())),
            Err(error) => (None, Err(mount_error(&dir, error))),
        };
        if let Some(device) = device {
            set_cache_limits(device);
        }
        let heard = started.and_then(|()| ready().map_err(Error::Unheard));
        let first = match heard {
            Ok(()) => end.recv().expect("the session thread sends before it ends"),
            Err(_) => End::Signal,
        };
        let result = match first {
            End::Session(result) => result.map_err(Error::Session),
            End::Signal => {
                // The helper that unmounts may need the place of a thread.
                background.iter_mut().for_each(Background::stop_helpers);
                let unmounted = end_mount(&dir, device, mounter);
                match end.recv_timeout(GRACE) {
                    Ok(End::Session(result)) => result.map_err(Error::Session),
                    // Programs that still use the mount get errors from now on, so the volume can be closed.
                    Ok(End::Signal) | Err(_) => unmounted.map_err(|source| Error::Unmount { dir, source }),
                }
            }
        };
        handle.close();
        let ended = fs.unmount().map_err(|source| Error::Engine { path: image.clone(), source });
        // Dropped after the unmount, so that it reports the errors of the unmount, too.
        drop(background);
        ended?;
        if let Some(reason) = fs.unmount_error() {
            // DESTROY has been answered with EIO before, but `umount` does not pass errors on.
            return Err(Error::Ended { path: image, reason: reason.to_string() });
        }
        heard.and(result)
    }
}

/// Changes the flags of a mounted volume (`mount -o remount`). Flags that the options do not mention stay as
/// they are. Only the kernel applies the new flags; the process that answers continues with its own options.
pub fn remount(dir: &Path, lists: &[String]) -> Result<()> {
    let error = |source| Error::Mount { dir: dir.to_path_buf(), source };
    let seen = dir.canonicalize().map_err(error)?;
    let all = block::mounts().map_err(error)?;
    let types = fuse_protocol::mount_types(SUBTYPE);
    let is_ours = |mount: &&block::Mount| types.contains(&mount.kind);
    let none = || error(io::Error::other("no flashkit volume is mounted there"));
    let mount = mounts::on(&all, &seen).filter(is_ours).ok_or_else(none)?;
    let mut options = MountOptions::default();
    options.apply(&mounts::flags_of(mount))?;
    lists.iter().try_for_each(|list| options.apply(list))?;
    rustix::mount::mount_remount(dir, options.mount_flags(), c"").map_err(|errno| error(errno.into()))?;
    match options.read_only {
        // The kernel does not tell the process that answers. It writes a checkpoint when a directory is fsynced, and as the
        // mount is read-only by now, leaves the volume as an unmount does.
        true => File::open(dir).and_then(|root| root.sync_all()).map_err(error),
        false => Ok(()),
    }
}

/// Returns the error of a mount on a directory.
fn mount_error(dir: &Path, source: io::Error) -> Error {
    let dir = dir.to_path_buf();
    match source.kind() {
        io::ErrorKind::WouldBlock => Error::NoThread { dir, source },
        _ => Error::Mount { dir, source },
    }
}

/// Unmounts, or detaches lazily if the mount is still in use. This covers all places to which it was moved or
/// bind-mounted, but no other mounts on top of it.
fn end_mount(dir: &Path, device: Option<(u32, u32)>, mounter: Mounter) -> io::Result<()> {
    let places = || match (device, block::mounts()) {
        (Some(device), Ok(all)) => mounts::places_of(&all, device),
        _ => vec![dir.to_path_buf()],
    };
    let found = places();
    // Dirty pages must be written back now; they are lost with the connection.
    let _ = fuse_protocol::sync(found.first().map(PathBuf::as_path));
    let unmount = |place: &PathBuf| {
        fuse_protocol::unmount(place, mounter, UnmountMode::Now)
            .or_else(|_| fuse_protocol::unmount(place, mounter, UnmountMode::Lazy))
    };
    let unmounted = found.iter().map(unmount).fold(Ok(()), io::Result::and);
    // Others may have unmounted it meanwhile.
    if places().is_empty() { Ok(()) } else { unmounted }
}

/// Starts to wait for signals and to answer requests.
fn start_session(
    threads: &ReadyThreads,
    mut signals: Signals,
    session: backend::Session,
    report: Arc<Report>,
    ends: mpsc::Sender<End>,
) -> io::Result<()> {
    let on_signal = ends.clone();
    threads.run(move || {
        for _ in signals.forever() {
            let _ = on_signal.send(End::Signal);
        }
        Ok(())
    })?;
    // The receiver may have given up waiting.
    threads.run(move || {
        let _ = ends.send(End::Session(session.run(report)));
        Ok(())
    })?;
    Ok(())
}

/// Opens the images that hold the volume.
fn open_images(sources: &[Source], options: &MountOptions) -> Result<Vec<Image>> {
    let how = block::OpenOptions { write: !options.read_only, direct: options.direct };
    let open = |image: &Source| {
        open_image(image, how).map_err(|source| Error::Device { path: image.name().into(), source })
    };
    sources.iter().map(open).collect()
}

/// Returns the name of an image as the mount table shows it.
fn absolute(source: &Source) -> String {
    let path = source.path().canonicalize().unwrap_or_else(|_| source.path().to_path_buf());
    source.with_path(path).to_string()
}

/// Returns true if a device cannot be opened because it, or this user, may not write to it.
fn is_write_protected(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// Opens an image. Like mount(2), it waits for a process that is about to close the image, even if the
/// image could already be opened for reading.
fn open_image(source: &Source, how: block::OpenOptions) -> io::Result<Image> {
    let until = Instant::now() + CLOSE_TIMEOUT;
    loop {
        let opened = Image::open(source, how);
        let user = match &opened {
            Ok(image) => image.writer(),
            Err(error) => error.get_ref().and_then(|why| why.downcast_ref()),
        };
        if user.is_none_or(InUse::stays) || Instant::now() > until {
            return opened;
        }
        thread::sleep(CLOSE_POLL_INTERVAL);
    }
}

/// Opens the volume on the devices. This reads a few scattered sectors; on a card, readahead of the host
/// behind each of them would take longer.
fn open_volume(
    images: &[Image],
    options: f2fs::engine::Options,
    wrap: impl FnOnce(Arc<dyn Device>) -> Arc<dyn Device>,
) -> f2fs::Result<Engine> {
    let expect = |reads| images.iter().filter_map(Image::file).for_each(|file| file.expect_reads(reads));
    expect(ReadPattern::Scattered);
    let devices = images.iter().map(Image::device).collect();
    let volume = f2fs::engine::join(devices).and_then(|device| Engine::open(wrap(device), options));
    expect(ReadPattern::Usual);
    volume
}

/// Raises the kernel's limits for FUSE: readahead above 128 KiB, and the share of dirty pages above 1 %. It
/// needs root, and matters only for speed.
fn set_cache_limits((major, minor): (u32, u32)) {
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    // A mount with a block device shows the number of that device, and its backing device info has a separate
    // name.
    for (name, value) in
        [("read_ahead_kb", READ_AHEAD_KIB), ("max_ratio", dirty_percent(&vmstat, page_size()))]
    {
        let value = value.to_string();
        if std::fs::write(format!("/sys/class/bdi/{major}:{minor}-fuseblk/{name}"), &value).is_err() {
            let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/{name}"), &value);
        }
    }
}

/// Returns the share of the kernel's dirty limit, in percent, that allows for [`DIRTY_BYTES`]. The limit is a line of
/// /proc/vmstat, in pages.
fn dirty_percent(vmstat: &str, page_bytes: usize) -> u64 {
    let limit = vmstat.lines().find_map(|line| line.strip_prefix("nr_dirty_threshold "));
    let limit = limit.and_then(|pages| pages.trim().parse().ok()).unwrap_or(0_u64);
    let percent = (DIRTY_BYTES * 100).checked_div(limit.saturating_mul(page_bytes as u64));
    percent.unwrap_or(DIRTY_PERCENT_MAX).clamp(1, DIRTY_PERCENT_MAX)
}

/// Makes a write beyond `RLIMIT_FSIZE` fail instead of killing the process, which would lose unsynced data
/// (setrlimit(2)). A handled SIGXFSZ does that; unlike an ignored one, it is not inherited by child
/// processes.
fn survive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Returns true if the volume can have encrypted files.
fn can_encrypt(image: &Image) -> bool {
    read_superblock(&*image.device(), u64::MAX).is_ok_and(|(found, _)| found.features.has(Features::ENCRYPT))
}

/// Returns nonces of a random seed. Early after the start of a machine the system may have no random values yet, and this
/// waits for them.
fn nonces() -> io::Result<Nonces> {
    let mut seed = [0; NONCE_SEED_BYTES];
    getrandom::fill(&mut seed)?;
    Ok(Nonces::new(seed))
}

/// Returns a seed that differs between mounts.
fn seed() -> u64 {
    let time = clock::now();
    time.seconds as u64 ^ u64::from(time.nanoseconds) << 32 ^ u64::from(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_pages_of_a_mount_are_bounded_on_machines_of_all_sizes() {
        let percent =
            |mib: u64| dirty_percent(&format!("nr_dirty 7\nnr_dirty_threshold {}\n", mib * 256), 4096);
        assert_eq!([percent(64), percent(256), percent(4096), percent(100 << 10)], [50, 50, 3, 1]);
        assert_eq!([percent(0), dirty_percent("", 4096)], [50, 50], "an unknown limit");
        assert_eq!(dirty_percent("nr_dirty_threshold 65536\n", 16384), 12, "large pages");
    }
}
