//! Exclusive use of a cache directory: two runs that build or download the same wait for each other.

use std::{fs::File, path::Path};

use anyhow::{Context, Result};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// A directory that is locked until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Lock {
    _dir: File,
}

impl Lock {
    /// Locks the directory. If another run has it, says so and waits.
    ///
    /// # Errors
    /// It cannot be opened or locked.
    pub fn take(dir: &Path) -> Result<Lock> {
        let shown = || dir.display().to_string();
        let file = File::open(dir).with_context(shown)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                eprintln!("{}: another run works there; waiting for it", dir.display());
                flock(&file, FlockOperation::LockExclusive).with_context(shown)?;
            }
            locked => locked.with_context(shown)?,
        }
        Ok(Lock { _dir: file })
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use super::*;

    #[test]
    fn a_second_run_gets_the_directory_after_the_first_released_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        let probe = File::open(dir.path()).unwrap();
        let taken = || flock(&probe, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
        assert!(taken());
        let (send, order) = channel();
        let (path, second) = (dir.path().to_owned(), send.clone());
        let waits = thread::spawn(move || {
            let lock = Lock::take(&path).unwrap();
            second.send("second").unwrap();
            drop(lock);
        });
        send.send("first").unwrap();
        drop(first);
        waits.join().unwrap();
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["first", "second"]);
        assert!(!taken(), "the lock is free at the end");
    }
}
