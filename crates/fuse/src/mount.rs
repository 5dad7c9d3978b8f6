//! The life of a mount: open the volume, mount, answer, and leave the volume clean.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Weak, atomic::AtomicBool, mpsc},
    thread,
    time::{Duration, Instant},
};

use block::{Device, FileDevice, InUse};
use f2fs::Volume;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXCPU, SIGXFSZ},
    iterator::Signals,
};

use crate::{
    FileSystem, MountOptions, Settings, backend,
    background::Background,
    clock,
    connection::{self, Mounter},
    mounts,
    options::OptionError,
};

/// How long programs that still use the mount may go on after a signal.
const GRACE: Duration = Duration::from_secs(3);
/// How long who has a device and is not mounted (any more) may take to let it go, and how often we look.
const LETTING_GO: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What the kernel reads ahead, in KiB: as much as fits one request.
const READ_AHEAD_KIB: u32 = 1024;
/// Share of all that the kernel may keep dirty that it may keep for us; the rest is for what we write ourselves.
const DIRTY_PERCENT: u32 = 50;

/// What can go wrong about a mount as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options are none.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A device does not open.
    #[error("{}: {source}", path.display())]
    Device {
        /// The file or block device.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The volume does not open or close.
    #[error("{}: {source}", path.display())]
    Volume {
        /// The image.
        path: PathBuf,
        /// Why.
        source: f2fs::Error,
    },
    /// It did not end well.
    #[error("{}: {reason}", path.display())]
    Ended {
        /// The image.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The directory cannot be mounted on.
    #[error("cannot mount on {}: {source}", dir.display())]
    Mount {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The connection to the kernel broke.
    #[error("the connection to the kernel failed: {0}")]
    Session(io::Error),
    /// Who asked for the mount did not wait for it, so it ended at once.
    #[error("unmounted again, because nobody waited for the mount: {0}")]
    Unheard(io::Error),
}

/// Shorthand for results of a mount.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A mounted volume that does not answer yet.
pub struct Mount {
    fs: Arc<FileSystem>,
    session: backend::Session,
    /// Caught from before there is a mount: a signal would leave it behind, with nobody who answers.
    signals: Signals,
    image: PathBuf,
    dir: PathBuf,
    options: MountOptions,
    read_only_reason: Option<String>,
    writer: Option<InUse>,
    asks_for_fsck: bool,
}

/// Why answering ends.
enum End {
    /// The file system was unmounted, or the connection broke.
    Session(io::Result<()>),
    /// Somebody wants us to end.
    Signal,
}

impl Mount {
    /// Opens the volume on `devices`, the first of which is the image, and mounts it on a directory.
    pub fn new(devices: &[PathBuf], dir: &Path, mut options: MountOptions) -> Result<Mount> {
        let image = devices.first().cloned().unwrap_or_default();
        let at = |source| Error::Volume { path: image.clone(), source };
        let mount_error = |source| Error::Mount { dir: dir.to_path_buf(), source };
        let dir = dir.canonicalize().map_err(mount_error)?;
        survive_file_size_limit().map_err(Error::Session)?;
        let mut protected = None;
        let files = match open_devices(devices, &options) {
            // As mount(8) does it for file systems of the kernel.
            Err(Error::Device { path, source }) if is_write_protected(&source) => {
                protected = Some(format!("{} is write-protected", path.display()));
                options.read_only = true;
                open_devices(devices, &options)?
            }
            opened => opened?,
        };
        let on_block_device = std::fs::metadata(&image).is_ok_and(|facts| !facts.is_file());
        let volume_options = options.volume_options(on_block_device, clock::now, seed());
        let volume = open_volume(&files, volume_options).map_err(at)?;
        // Without it nothing else could be reached.
        volume.stat(volume.superblock().root_ino).map_err(at)?;
        let file = match &files[..] {
            [file] => Arc::downgrade(file),
            _ => Weak::new(),
        };
        let writer = files.iter().find_map(|file| file.writer().cloned());
        let read_only_reason = match options.read_only {
            true => protected,
            false => volume.read_only_reason().map(str::to_string),
        };
        let asks_for_fsck = volume.asks_for_fsck();
        options.read_only |= read_only_reason.is_some();
        let fs = Arc::new(FileSystem::new(volume, file, Settings::from(&options)));
        let source = match &options.source_name {
            Some(name) => name.clone(),
            None => image.canonicalize().unwrap_or_else(|_| image.clone()).display().to_string(),
        };
        // The last one comes before the kernel kills a process that has used all the time that it may use.
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGXCPU]).map_err(Error::Session)?;
        let first = files.first().expect("a volume lies on a device");
        let session = backend::mount(fs.clone(), first, &dir, &options, &source).map_err(mount_error)?;
        // The files stay open for the volume's sake alone.
        drop(files);
        Ok(Mount { fs, session, signals, image, dir, options, read_only_reason, writer, asks_for_fsck })
    }

    /// Whether damage was met on the volume before, and not repaired since.
    pub fn asks_for_fsck(&self) -> bool {
        self.asks_for_fsck
    }

    /// Why the volume is mounted read-only although nobody asked for that.
    pub fn read_only_reason(&self) -> Option<&str> {
        self.read_only_reason.as_deref()
    }

    /// The user that writes to the image beside this mount, which is read-only then, and may show what is old or half
    /// written.
    pub fn writer(&self) -> Option<&InUse> {
        self.writer.as_ref()
    }

    /// Answers until somebody unmounts it or a signal comes, and leaves the volume clean. `ready` is called once
    /// it answers; where that fails, nobody knows of the mount, and it ends.
    pub fn run(self, ready: impl FnOnce() -> io::Result<()>) -> Result<()> {
        let Mount { fs, session, mut signals, image, dir, options, .. } = self;
        let (mounter, device) = (session.mounter(), session.device());
        let (ends, end) = mpsc::channel();
        let (handle, on_signal) = (signals.handle(), ends.clone());
        thread::spawn(move || {
            for _ in signals.forever() {
                let _ = on_signal.send(End::Signal);
            }
        });
        thread::spawn(move || ends.send(End::Session(session.run())));
        let background = Background::start(fs.clone(), &options, image.clone());
        if let Some(device) = device {
            set_cache_limits(device);
        }
        let heard = ready().map_err(Error::Unheard);

        let first = match heard {
            Ok(()) => end.recv().expect("the session thread sends before it ends"),
            Err(_) => End::Signal,
        };
        let result = match first {
            End::Session(result) => result,
            End::Signal => {
                end_mount(&dir, device, mounter);
                match end.recv_timeout(GRACE) {
                    Ok(End::Session(result)) => result,
                    // Whoever still uses the mount gets errors from now on: the volume is ours again.
                    Ok(End::Signal) | Err(_) => Ok(()),
                }
            }
        };
        handle.close();
        let ended = fs.unmount().map_err(|source| Error::Volume { path: image.clone(), source });
        // It tells of what went wrong in the end, too.
        drop(background);
        ended?;
        if let Some(reason) = fs.complaint() {
            // Who unmounted it was answered before, but cannot tell.
            return Err(Error::Ended { path: image, reason: reason.to_string() });
        }
        heard.and(result.map_err(Error::Session))
    }
}

/// Gives the volume that is mounted on a directory other flags: `mount -o remount`. Those that the lists of options say
/// nothing of stay. The process that answers goes on as it was started; it is the kernel that then lets nobody write, say.
pub fn remount(dir: &Path, lists: &[String]) -> Result<()> {
    let error = |source| Error::Mount { dir: dir.to_path_buf(), source };
    let seen = dir.canonicalize().map_err(error)?;
    let all = block::mounts().map_err(error)?;
    let is_ours = |mount: &&block::Mount| connection::TYPES.contains(&&*mount.kind);
    let none = || error(io::Error::other("no volume of ours is mounted there"));
    let mount = mounts::on(&all, &seen).filter(is_ours).ok_or_else(none)?;
    let mut options = MountOptions::default();
    options.apply(&mounts::flags_of(mount))?;
    lists.iter().try_for_each(|list| options.apply(list))?;
    rustix::mount::mount_remount(dir, options.mount_flags(), c"").map_err(|errno| error(errno.into()))
}

/// Unmounts, or where somebody still uses the mount, takes it out of the tree; wherever it has been moved or bound to
/// meanwhile, but not what others have mounted over it.
fn end_mount(dir: &Path, device: Option<(u32, u32)>, mounter: Mounter) {
    let places = match (device, block::mounts()) {
        (Some(device), Ok(all)) => mounts::places_of(&all, device),
        _ => vec![dir.to_path_buf()],
    };
    // What the kernel still has in its cache comes to us now, for it is lost with the connection.
    let _ = connection::write_back(places.first().map(PathBuf::as_path));
    for place in places {
        if connection::unmount(&place, mounter, false).is_err() {
            let _ = connection::unmount(&place, mounter, true);
        }
    }
}

/// The files and block devices that the volume lies on.
fn open_devices(paths: &[PathBuf], options: &MountOptions) -> Result<Vec<Arc<FileDevice>>> {
    let how = block::OpenOptions { write: !options.read_only, direct: options.direct };
    let open = |path: &PathBuf| {
        let device = open_device(path, how);
        device.map(Arc::new).map_err(|source| Error::Device { path: path.clone(), source })
    };
    paths.iter().map(open).collect()
}

/// Returns true if a device cannot be opened because it, or this user, may not write to it.
fn is_write_protected(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// Opens a device. As mount(2) does, it waits for a user who is about to let it go; also where it could be read
/// meanwhile.
fn open_device(path: &Path, how: block::OpenOptions) -> io::Result<FileDevice> {
    let until = Instant::now() + LETTING_GO;
    loop {
        let opened = FileDevice::open(path, how);
        let user = match &opened {
            Ok(device) => device.writer(),
            Err(error) => error.get_ref().and_then(|why| why.downcast_ref()),
        };
        if user.is_none_or(InUse::stays) || Instant::now() > until {
            return opened;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Opens the volume on them. That takes a few sectors from here and there; what the host would read on behind them takes a
/// card longer.
fn open_volume(files: &[Arc<FileDevice>], options: f2fs::volume::Options) -> f2fs::Result<Volume> {
    files.iter().for_each(|file| file.expect_scattered_reads(true));
    let devices = files.iter().map(|file| file.clone() as Arc<dyn Device>).collect();
    let volume = f2fs::volume::join(devices).and_then(|device| Volume::open(device, options));
    files.iter().for_each(|file| file.expect_scattered_reads(false));
    volume
}

/// Lets the kernel read ahead further than the 128 KiB that it gives FUSE, and keep more of what it may keep dirty than
/// the hundredth that it gives FUSE. Only root may, and it is a matter of speed.
fn set_cache_limits((major, minor): (u32, u32)) {
    // A mount with a block device shows that one's number, and its cache has a name of its own.
    for (name, value) in [("read_ahead_kb", READ_AHEAD_KIB), ("max_ratio", DIRTY_PERCENT)] {
        let value = value.to_string();
        if std::fs::write(format!("/sys/class/bdi/{major}:{minor}-fuseblk/{name}"), &value).is_err() {
            let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/{name}"), &value);
        }
    }
}

/// Lets a write fail that exceeds `RLIMIT_FSIZE`, instead of ending the process and losing what is not synced
/// (setrlimit(2)). A signal that is handled does that, and programs that are started from here do not inherit it.
fn survive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// A seed that differs between mounts.
fn seed() -> u64 {
    let time = clock::now();
    time.seconds as u64 ^ u64::from(time.nanoseconds) << 32 ^ u64::from(std::process::id())
}
