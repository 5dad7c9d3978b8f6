//! The right to use a device or image file: to write it exclusively, or to read it while no process writes.
//!
//! *Invariant*: a writer has locked the file at the bottom, whatever its name, and has exclusively opened
//! each block device that shows its bytes. The lock refuses a second writer. The kernel refuses to mount any
//! of the devices. A loop device made later is not claimed: its writer meets the lock, or finds the users,
//! because each writer looks for users before and after it takes the locks.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Dev, FlockOperation, fcntl_lock, flock},
    io::Errno,
};

use super::{
    backing::{Backing, Identity, View},
    parent_locks::is_locked_by_parent,
    users::{exclusive, open_exclusively, open_exclusively_to_write, patiently, users},
};
use crate::InUse;

/// Maximum time that a writer waits for readers, most of which end soon, and its polling interval.
const LETTING_GO: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Purpose of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Read,
    Write,
}

/// A right that lasts until it is dropped. Its open file is locked as well; the file's owner unlocks it.
#[derive(Debug)]
pub(crate) struct Claim {
    purpose: Purpose,
    path: PathBuf,
    /// The locked files below.
    locked: Vec<File>,
    /// The block device itself, opened exclusively.
    alone: Mutex<Option<File>>,
    /// The other block devices that show its bytes, opened exclusively.
    others: Vec<File>,
    writer: Option<InUse>,
}

impl Claim {
    fn new(purpose: Purpose, path: &Path) -> Claim {
        let (path, alone) = (path.to_path_buf(), Mutex::new(None));
        Claim { purpose, path, locked: Vec::new(), alone, others: Vec::new(), writer: None }
    }

    /// Claims an open file for its only writer.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] with an [`InUse`] inside, and the errors of locking.
    pub(crate) fn to_write(file: &File, path: &Path) -> io::Result<Claim> {
        let identity = Identity::of(&file.metadata()?);
        let backing = Backing::of(identity);
        let known = || users(&backing, &backing.views(), &[]).into_iter();
        // These users stay, so waiting for a lock is pointless.
        if let Some(user) = known().find(InUse::stays) {
            return Err(user.into());
        }
        let mut claim = Claim::new(Purpose::Write, path);
        let own = match claim.take(file, identity, &backing)? {
            Ok(own) => own,
            Err(user) => {
                drop(claim);
                // A shared lock belongs to a reader, or to the writer of a part, who also holds that part's
                // device.
                let is_part = |known: &InUse| user == InUse::Reader && matches!(known, InUse::Held { .. });
                let named = known().find(|known| known.stays() || is_part(known));
                return Err(named.unwrap_or(user).into());
            }
        };
        // These users came before the locks were taken.
        match users(&backing, &backing.views(), &own).into_iter().next() {
            Some(user) => Err(user.into()),
            None => Ok(claim),
        }
    }

    /// Takes the locks and the devices. Returns those devices, or the user that has one of them.
    fn take(
        &mut self,
        file: &File,
        identity: Identity,
        backing: &Backing,
    ) -> io::Result<Result<Vec<Dev>, InUse>> {
        if let Some(user) = lock_alone(file)? {
            return Ok(Err(user));
        }
        for file in below(backing) {
            // Two parts of a file may each have a writer. Their block devices keep the writers apart.
            let lock = if backing.is_whole() { lock_alone } else { lock_with_others };
            // The file may lie on a file system without locks, or be readable only.
            if let Some(user) = lock(&file).unwrap_or_default().or_else(|| record_lock(&file)) {
                return Ok(Err(user));
            }
            self.locked.push(file);
        }
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        let (mut own, views) = (Vec::new(), backing.views());
        if let Identity::Device(device) = identity {
            let view = views.iter().find(|view| view.device == device);
            match (open_exclusively_to_write(&self.path), view) {
                (Ok(alone), _) => *self.alone() = Some(alone),
                (Err(error), Some(view)) if is_busy(&error) => return Ok(Err(held(view))),
                (Err(error), _) => return Err(error),
            }
            own.push(device);
        }
        for view in others(&views, &own) {
            match view.node().map(|node| open_exclusively(&node)) {
                Some(Ok(other)) => {
                    self.others.push(other);
                    own.push(view.device);
                }
                Some(Err(error)) if is_busy(&error) => return Ok(Err(held(view))),
                // Without permission, a medium or a node, only the host's tables can tell.
                Some(Err(_)) | None => {}
            }
        }
        Ok(Ok(own))
    }

    /// Claims an open file for a reader as far as possible. If another user writes, [`writer`](Self::writer)
    /// names it.
    ///
    /// # Errors
    /// The file cannot be examined.
    pub(crate) fn to_read(file: &File, path: &Path) -> io::Result<Claim> {
        let backing = Backing::of(Identity::of(&file.metadata()?));
        let mut claim = Claim::new(Purpose::Read, path);
        claim.locked = below(&backing).collect();
        // Some file systems have no locks.
        let lock = |file| lock_with_others(file).unwrap_or_default();
        let locks: Vec<_> = std::iter::once(file).chain(&claim.locked).map(lock).collect();
        let known = users(&backing, &backing.views(), &[]).into_iter().find(InUse::writes);
        claim.writer = known.or(locks.into_iter().flatten().next());
        Ok(claim)
    }

    /// Returns the user that writes despite this reader's claim.
    pub(crate) fn writer(&self) -> Option<&InUse> {
        self.writer.as_ref()
    }

    /// Returns the block device if it is opened exclusively.
    pub(crate) fn alone(&self) -> MutexGuard<'_, Option<File>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the block device over to this process's own mount, which from then on holds it exclusively.
    /// Returns true on success. Otherwise the device stays claimed here. Readers may share a mounted device, so
    /// `mount` itself must refuse if it got the mount of another process.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if a writer has lost the device to another user. Nothing may be
    /// written any more.
    pub(crate) fn hand_over(&self, mount: impl Fn() -> io::Result<()>) -> io::Result<bool> {
        let mut alone = self.alone();
        if self.purpose == Purpose::Read {
            return Ok(patiently(mount).is_ok());
        }
        *alone = None;
        if patiently(mount).is_ok() {
            return Ok(true);
        }
        *alone = Some(open_exclusively_to_write(&self.path)?);
        Ok(false)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.locked.iter().for_each(unlock);
    }
}

/// Unlocks a file before it is closed. A child process that another thread has forked holds the file open
/// until it calls exec, and would keep the lock.
pub(crate) fn unlock(file: &File) {
    // A failure cannot be reported here, and closing unlocks as well.
    let _ = flock(file, FlockOperation::Unlock);
}

/// Returns the devices to open exclusively besides those in `own`, which are open already. A disk that is open keeps
/// its partitions with it. A partition does not keep other partitions, which may overlap it.
fn others<'a>(views: &'a [View], own: &[Dev]) -> Vec<&'a View> {
    exclusive(views).filter(|view| !view.is_held_by(own)).collect()
}

/// Opens the files and devices below in order to lock them.
fn below(backing: &Backing) -> impl Iterator<Item = File> {
    backing.files.iter().filter_map(|path| {
        // Some file systems lock only files that are open for writing.
        let writable = File::options().read(true).write(true).open(path);
        writable.or_else(|_| File::open(path)).ok()
    })
}

fn held(view: &View) -> InUse {
    InUse::Held { name: view.name.clone(), read_only: view.is_read_only() }
}

/// Locks a file exclusively, or returns the user that has locked it. Waits for readers. The lock of a parent on a block
/// device counts as that of this process.
fn lock_alone(file: &File) -> io::Result<Option<InUse>> {
    let until = Instant::now() + LETTING_GO;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if is_locked_by_parent(file) => return Ok(record_lock(file)),
            Err(Errno::WOULDBLOCK) => {}
            locked => {
                locked?;
                return Ok(record_lock(file).inspect(|_| unlock(file)));
            }
        }
        if let Some(user) = lock_with_others(file)? {
            return Ok(Some(user));
        }
        unlock(file);
        if Instant::now() > until {
            return Ok(Some(InUse::Reader));
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Returns [`InUse::Writer`] if another program has a record lock (fcntl) in the file. QEMU locks single bytes from 100
/// and 200 on for each open image (block/file-posix.c), which flock does not see.
fn record_lock(file: &File) -> Option<InUse> {
    // Locks of the process itself do not conflict. This one ends here, because the process would lose it anyway as soon
    // as it closes any other descriptor of the file. Another program may look at the same moment.
    let lock = || match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::AGAIN | Errno::ACCESS) => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
        // The file may be open for reading only, or lie on a file system without locks.
        Err(_) => Ok(()),
        // A failure cannot be reported here, and closing unlocks as well.
        Ok(()) => fcntl_lock(file, FlockOperation::NonBlockingUnlock).or(Ok(())),
    };
    patiently(lock).is_err().then_some(InUse::Writer)
}

/// Locks a file together with other readers, or returns the writer that has locked it exclusively. The lock of a parent on
/// a block device counts as that of this process.
fn lock_with_others(file: &File) -> io::Result<Option<InUse>> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) if is_locked_by_parent(file) => Ok(None),
        Err(Errno::WOULDBLOCK) => Ok(Some(InUse::Writer)),
        locked => Ok(locked.map(|()| None)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_does_not_keep_the_partitions_that_overlap_it() {
        // Numbers of no device, so that nothing is found in /sys.
        let view = |device, disk| View { name: String::new(), device, disk, is_loop: false };
        let views = [view(901, 900), view(902, 900)];
        let devices = |own: &[Dev]| others(&views, own).iter().map(|view| view.device).collect::<Vec<_>>();
        assert_eq!(devices(&[901]), [902]);
        assert_eq!(devices(&[900]), [0; 0], "the disk keeps both");
        assert_eq!(devices(&[]), [901, 902]);
    }
}
