//! The right to a device or image file: to write it alone, or to read it while nobody writes.
//!
//! *Invariant*: a writer has locked the file at the bottom, whatever it is called, and has opened for itself each block
//! device that shows its bytes. The lock refuses a second writer; the kernel refuses to mount any of the devices. A
//! loop device that is made later is not claimed: its writer meets the lock, or finds the users, for which each writer
//! asks before and after it takes the locks.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Dev, FlockOperation, flock},
    io::Errno,
};

use crate::{
    InUse,
    backing::{Backing, Identity, View},
    in_use::{exclusive, open_exclusively, patiently, users},
};

/// How long a writer waits for readers, most of which have ended soon, and how often it looks.
const LETTING_GO: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What a claim is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Read,
    Write,
}

/// A right that lasts until it is dropped. The open file that it is for is locked as well, and unlocked by its owner.
#[derive(Debug)]
pub(crate) struct Claim {
    purpose: Purpose,
    path: PathBuf,
    /// The files below, locked.
    locked: Vec<File>,
    /// The block device itself, opened for us alone.
    alone: Mutex<Option<File>>,
    /// The other block devices that show its bytes, opened for us alone.
    others: Vec<File>,
    writer: Option<InUse>,
}

impl Claim {
    fn new(purpose: Purpose, path: &Path) -> Claim {
        let (path, alone) = (path.to_path_buf(), Mutex::new(None));
        Claim { purpose, path, locked: Vec::new(), alone, others: Vec::new(), writer: None }
    }

    /// Claims an open file for the only writer.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] with an [`InUse`] in it; and those of locking.
    pub(crate) fn to_write(file: &File, path: &Path) -> io::Result<Claim> {
        let identity = Identity::of(&file.metadata()?);
        let backing = Backing::of(identity);
        let known = || users(&backing, &backing.views(), &[]).into_iter();
        // With these nobody waits for a lock.
        if let Some(user) = known().find(InUse::stays) {
            return Err(user.into());
        }
        let mut claim = Claim::new(Purpose::Write, path);
        let own = match claim.take(file, identity, &backing)? {
            Ok(own) => own,
            Err(user) => {
                drop(claim);
                // A shared lock is a reader's, or that of the writer of a part, whose device is held.
                let is_part = |known: &InUse| user == InUse::Reader && matches!(known, InUse::Held { .. });
                let named = known().find(|known| known.stays() || is_part(known));
                return Err(named.unwrap_or(user).into());
            }
        };
        // Those who came before the locks were ours.
        match users(&backing, &backing.views(), &own).into_iter().next() {
            Some(user) => Err(user.into()),
            None => Ok(claim),
        }
    }

    /// Takes the locks and the devices, and says which devices those are; or who has one of them.
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
            // Two parts of a file may have a writer each: the block devices keep these apart.
            let lock = if backing.is_whole() { lock_alone } else { lock_with_others };
            // It may lie where there are no locks, or be ours to read alone.
            if let Some(user) = lock(&file).unwrap_or_default() {
                return Ok(Err(user));
            }
            self.locked.push(file);
        }
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        let (mut own, views) = (Vec::new(), backing.views());
        if let Identity::Device(device) = identity {
            let view = views.iter().find(|view| view.device == device);
            match (open_exclusively(&self.path, true), view) {
                (Ok(alone), _) => *self.alone() = Some(alone),
                (Err(error), Some(view)) if is_busy(&error) => return Ok(Err(held(view))),
                (Err(error), _) => return Err(error),
            }
            own.push(view.map_or(device, |view| view.disk));
        }
        for view in exclusive(&views).filter(|view| identity != Identity::Device(view.device)) {
            if own.contains(&view.disk) {
                continue;
            }
            match view.node().map(|node| open_exclusively(&node, false)) {
                Some(Ok(other)) => {
                    self.others.push(other);
                    own.push(view.device);
                }
                Some(Err(error)) if is_busy(&error) => return Ok(Err(held(view))),
                // Without the right to open it, and where it has no medium or no node, the tables must do.
                Some(Err(_)) | None => {}
            }
        }
        Ok(Ok(own))
    }

    /// Claims an open file for a reader, as far as that can be done: where somebody writes, it says who.
    ///
    /// # Errors
    /// When the file cannot be looked at.
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

    /// The user that writes although this claim is one to read.
    pub(crate) fn writer(&self) -> Option<&InUse> {
        self.writer.as_ref()
    }

    /// The block device, opened for us alone.
    pub(crate) fn alone(&self) -> MutexGuard<'_, Option<File>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the block device over to a mount of ours, which has it for itself from then on; whether that could be done.
    /// If not it is still ours.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] where a writer has lost it to another: nothing must be written any more.
    pub(crate) fn hand_over(&self, mount: impl Fn() -> io::Result<()>) -> io::Result<bool> {
        let mut alone = self.alone();
        if self.purpose == Purpose::Read {
            // With a mount that is there the kernel would share its connection.
            return Ok(open_exclusively(&self.path, false).map(drop).is_ok() && patiently(mount).is_ok());
        }
        *alone = None;
        if patiently(mount).is_ok() {
            return Ok(true);
        }
        *alone = Some(open_exclusively(&self.path, true)?);
        Ok(false)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.locked.iter().for_each(unlock);
    }
}

/// Unlocks a file before it is closed: a process that another thread starts just now has the file open until it is its
/// own program, and would keep the lock.
pub(crate) fn unlock(file: &File) {
    // There is nobody to tell of a failure, and closing unlocks as well.
    let _ = flock(file, FlockOperation::Unlock);
}

/// Opens the files and devices below, to lock them.
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

/// Locks a file for the only writer, or says who has locked it. It waits for readers.
fn lock_alone(file: &File) -> io::Result<Option<InUse>> {
    let until = Instant::now() + LETTING_GO;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {}
            locked => return Ok(locked.map(|()| None)?),
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

/// Locks a file beside others that do the same, or says who has locked it alone.
fn lock_with_others(file: &File) -> io::Result<Option<InUse>> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Ok(Some(InUse::Writer)),
        locked => Ok(locked.map(|()| None)?),
    }
}
