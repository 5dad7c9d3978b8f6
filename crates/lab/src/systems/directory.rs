//! A directory on this machine, in real time, on whatever file system and device hold it.

use std::{
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::Path,
    time::Instant,
};

use ::guest::{
    Op, Runner,
    pattern::RecordFile,
    tree::{self, Planter},
    workload::{self, Files},
};
use flash::{Trace, counters::Counters};
use rustix::{
    fs::{Advice, AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, unlinkat},
    io::Errno,
    path::Arg,
};
use tempfile::TempDir;

use super::{MOUNT_POINT, Target};
use crate::{
    stop::Stop,
    vm::{Failure, Measured, Totals},
};

/// Kernel interface to drop caches.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// A temporary directory inside the measured one, removed on drop. Mounting has no effect here, and
/// unmounting is a sync.
pub struct DirectoryTarget {
    dir: TempDir,
    runner: Runner,
    drops_caches: bool,
    started: Instant,
    stop: Stop,
}

impl DirectoryTarget {
    /// Creates a temporary directory in `dir`.
    ///
    /// # Errors
    /// It cannot be created.
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
            // Long operations end early if a stop is requested.
            Op::Pattern { path, pattern } => {
                let of = pattern.open(&self.runner.at(path))?;
                pattern.run_on(&mut self.until_stopped(of)).map(|_| ())
            }
            Op::Plant { dir, tree } => {
                tree.plant(&mut self.until_stopped(tree::Dir(self.runner.at(dir)))).map(|_| ())
            }
            Op::Workload { dir, workload, stage } => {
                let mut dir = self.until_stopped(workload::Dir::new(self.runner.at(dir)));
                workload.run_on(*stage, &mut dir).map(|_| ())
            }
            Op::RemoveTree { dir } => {
                let mut wished = self.until_stopped(());
                remove_tree(CWD, self.runner.at(dir), &mut || wished.go_on().map(drop))
            }
            other => self.runner.run(other, &mut |_| Ok(())).map(|_| ()),
        }
    }

    fn until_stopped<T>(&self, of: T) -> UntilStopped<T> {
        UntilStopped { of, stop: self.stop.clone() }
    }

    /// Syncs only this file system, not the whole machine.
    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.dir.path())?.as_fd())?)
    }
}

/// Runs work record by record, or file by file, until a stop is requested. A single system call, such as
/// writing back all dirty data, is not interrupted.
struct UntilStopped<T> {
    of: T,
    stop: Stop,
}

impl<T> UntilStopped<T> {
    /// Returns the inner value, unless a stop was requested.
    fn go_on(&mut self) -> io::Result<&mut T> {
        match self.stop.is_wished() {
            true => Err(io::Error::new(io::ErrorKind::Interrupted, "stopped")),
            false => Ok(&mut self.of),
        }
    }
}

impl RecordFile for UntilStopped<File> {
    fn read_record(&mut self, record: &mut [u8], at: u64) -> io::Result<()> {
        self.go_on()?.read_record(record, at)
    }

    fn write_record(&mut self, record: &[u8], at: u64) -> io::Result<()> {
        self.go_on()?.write_record(record, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.go_on()?.sync()
    }
}

impl Planter for UntilStopped<tree::Dir> {
    fn make_dir(&mut self, path: &str) -> io::Result<()> {
        self.go_on()?.make_dir(path)
    }

    fn make_file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.go_on()?.make_file(path, content)
    }
}

impl Files for UntilStopped<workload::Dir> {
    fn make_dir(&mut self, path: &str) -> io::Result<()> {
        self.go_on()?.make_dir(path)
    }

    fn write(&mut self, path: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.go_on()?.write(path, at, bytes)
    }

    fn read(&mut self, path: &str, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.go_on()?.read(path, at, bytes)
    }

    fn truncate(&mut self, path: &str, size: u64) -> io::Result<()> {
        self.go_on()?.truncate(path, size)
    }

    fn fsync(&mut self, path: &str) -> io::Result<()> {
        self.go_on()?.fsync(path)
    }

    fn fdatasync(&mut self, path: &str) -> io::Result<()> {
        self.go_on()?.fdatasync(path)
    }

    fn close(&mut self, path: &str) -> io::Result<()> {
        self.go_on()?.close(path)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.go_on()?.rename(from, to)
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        self.go_on()?.remove(path)
    }

    fn sync_all(&mut self) -> io::Result<()> {
        self.go_on()?.sync_all()
    }

    fn size(&mut self, path: &str) -> io::Result<u64> {
        self.go_on()?.size(path)
    }

    fn now_ns(&mut self) -> u64 {
        self.of.now_ns()
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
        if self.stop.is_wished() {
            return Err(Failure::Stopped);
        }
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

    /// The device has no counters.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn trace(&self) -> Option<Trace> {
        None
    }
}

/// Returns true if the kernel permits dropping its caches.
pub fn can_drop_caches() -> bool {
    File::options().write(true).open(DROP_CACHES).is_ok()
}

/// WriteReason the kernel to drop the cached content of all files below a directory. The request is advisory, and
/// names and inodes stay cached.
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

/// Removes a directory with its content, by the system calls of [`fs::remove_dir_all`], as long as `go_on`
/// succeeds.
fn remove_tree(
    parent: impl AsFd,
    name: impl Arg,
    go_on: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = name.into_c_str()?;
    let mut dir = Dir::new(openat(&parent, &*name, flags, Mode::empty())?)?;
    while let Some(entry) = dir.next() {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        go_on()?;
        match entry.file_type() {
            FileType::Directory => remove_tree(dir.fd()?, entry.file_name(), go_on)?,
            _ => match unlinkat(dir.fd()?, entry.file_name(), AtFlags::empty()) {
                // Not every file system stores the file type in its directories.
                Err(Errno::ISDIR) => remove_tree(dir.fd()?, entry.file_name(), go_on)?,
                removed => removed?,
            },
        }
    }
    Ok(unlinkat(parent, &*name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::guest::{
        Pattern,
        pattern::{Access, Order, Sync},
    };

    #[test]
    fn a_file_being_written_is_abandoned_on_a_stop() {
        let (dir, stop) = (tempfile::tempdir().unwrap(), Stop::default());
        let mut target = DirectoryTarget::new(dir.path(), &stop).unwrap();
        // About an hour of work on any disk, unless it is stopped; no data is read back.
        let pattern = Pattern {
            access: Access::Create,
            order: Order::Sequential,
            file_bytes: 1 << 40,
            record_bytes: 512,
            sync: Sync::Each,
        };
        let wish = stop.clone();
        let later = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            wish.wish();
        });
        let ended = target.run(&Op::Pattern { path: "/mnt/file".into(), pattern });
        assert!(matches!(ended, Err(Failure::Stopped)), "{ended:?}");
        later.join().unwrap();
        drop(target);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "and nothing is left of it");
    }

    #[test]
    fn a_removal_is_abandoned_on_a_stop() {
        let (dir, stop) = (tempfile::tempdir().unwrap(), Stop::default());
        let mut target = DirectoryTarget::new(dir.path(), &stop).unwrap();
        let top = target.runner.at(&"/mnt/tree".into());
        for sub in ["a", "a/b", "c"] {
            fs::create_dir_all(top.join(sub)).unwrap();
            (0..10).for_each(|n| fs::write(top.join(sub).join(n.to_string()), "").unwrap());
        }
        std::os::unix::fs::symlink("/", top.join("link")).unwrap();
        let left = |dir: &Path| walk(dir).unwrap();
        let before = left(&top);
        assert_eq!(before, 34);
        let mut calls = 0;
        let ended = remove_tree(CWD, &top, &mut || {
            calls += 1;
            if calls > 7 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        });
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert!((before - 7..before).contains(&left(&top)), "{} of {before}", left(&top));
        // Without a stop the whole tree is removed, and the target of a link stays.
        target.run(&Op::RemoveTree { dir: "/mnt/tree".into() }).unwrap();
        assert!(!top.exists() && Path::new("/usr").exists());
        fs::create_dir(&top).unwrap();
        stop.wish();
        let ended = target.run(&Op::RemoveTree { dir: "/mnt/tree".into() });
        assert!(matches!(ended, Err(Failure::Stopped)) && top.exists(), "{ended:?}");
        drop(target);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "and nothing is left of it");
    }

    /// Returns the number of entries below a directory.
    fn walk(dir: &Path) -> io::Result<usize> {
        fs::read_dir(dir)?.try_fold(0, |count, entry| {
            let entry = entry?;
            let below = if entry.file_type()?.is_dir() { walk(&entry.path())? } else { 0 };
            Ok(count + 1 + below)
        })
    }
}
