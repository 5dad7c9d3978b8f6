//! A directory of this machine, in real time: whatever file system and device are behind it.

use std::{
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::Path,
    time::Instant,
};

use ::guest::{Op, Runner};
use flash::{Trace, counters::Counters};
use rustix::fs::Advice;
use tempfile::TempDir;

use super::{MOUNT_POINT, Target};
use crate::{
    guest::{Failure, Measured, Totals},
    stop::Stop,
};

/// The kernel's switch that empties its caches.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// A directory of its own in the one that is measured; it is removed when this is dropped. What mounting is
/// elsewhere is nothing here, and unmounting a sync.
pub struct DirectoryTarget {
    dir: TempDir,
    runner: Runner,
    drops_caches: bool,
    started: Instant,
    stop: Stop,
}

impl DirectoryTarget {
    /// Makes a directory in `dir`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(dir: &Path, stop: &Stop) -> io::Result<DirectoryTarget> {
        let dir = tempfile::Builder::new().prefix("flashkit-bench-").tempdir_in(dir)?;
        let top = MOUNT_POINT.strip_prefix('/').expect("it is an absolute path");
        fs::create_dir(dir.path().join(top))?;
        let runner = Runner::new(dir.path());
        let drops_caches = can_drop_caches();
        Ok(DirectoryTarget { dir, runner, drops_caches, started: Instant::now(), stop: stop.clone() })
    }

    fn perform(&mut self, op: &Op) -> io::Result<()> {
        match op {
            Op::Mount { .. } => Ok(()),
            Op::Unmount { .. } | Op::Sync => self.sync(),
            Op::DropCaches => {
                self.sync()?;
                match self.drops_caches {
                    true => fs::write(DROP_CACHES, "3"),
                    false => forget(self.dir.path()),
                }
            }
            other => self.runner.run(other, &mut |_| Ok(())).map(|_| ()),
        }
    }

    /// Only this file system, not the whole machine.
    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.dir.path())?.as_fd())?)
    }
}

impl Target for DirectoryTarget {
    fn run(&mut self, op: &Op) -> Result<Measured, Failure> {
        if self.stop.is_wished() {
            return Err(Failure::Stopped);
        }
        let now_ns = || self.started.elapsed().as_nanos() as u64;
        let started_ns = now_ns();
        let done = self.perform(op);
        let ended_ns = self.started.elapsed().as_nanos() as u64;
        done.map_err(|error| Failure::Refused {
            op: format!("{op:?}"),
            errno: error.raw_os_error().unwrap_or(0),
            error: error.to_string(),
        })?;
        let totals = Totals::default();
        Ok(Measured {
            started_ns,
            ended_ns,
            totals,
            cpu_ns: None,
            answer: None,
            entries: Vec::new(),
            log: Vec::new(),
        })
    }

    fn reboot(&mut self) -> Result<(), Failure> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a directory does not reboot").into())
    }

    /// Nothing is known of the device.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn trace(&self) -> Option<Trace> {
        None
    }
}

/// Whether the kernel lets us empty its caches.
pub fn can_drop_caches() -> bool {
    File::options().write(true).open(DROP_CACHES).is_ok()
}

/// Asks the kernel to forget the content of all files below; it need not, and keeps names and inodes.
fn forget(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            forget(&entry.path())?;
        } else if kind.is_file() {
            rustix::fs::fadvise(File::open(entry.path())?, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}
