//! Waiting for free space while a cleaner frees some.
//!
//! nilfs2 frees space with a program that cleans in the background, and reports a full volume until that
//! program has freed some. A writer has to try again. Only on nilfs2 may an fsync without space be repeated:
//! nilfs2 builds its segment anew, while other file systems report a lost write once and then report success.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// Maximum number of tries, and the pause between them.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

/// True if a cleaner is freeing space here.
static IS_MADE: AtomicBool = AtomicBool::new(false);

/// From now on, repeats every operation that finds no space.
pub fn is_made() {
    IS_MADE.store(true, Ordering::Relaxed);
}

/// Runs `act`. While a cleaner frees space, repeats it for up to half a minute if it finds no space.
///
/// # Errors
/// That of the last try.
pub fn wait_for<T>(act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    try_often(act, if IS_MADE.load(Ordering::Relaxed) { TRIES } else { 0 })
}

fn try_often<T>(mut act: impl FnMut() -> io::Result<T>, tries: u32) -> io::Result<T> {
    for _ in 0..tries {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => thread::sleep(PAUSE),
            done => return done,
        }
    }
    act()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_operations_without_space_are_tried_again() {
        let mut tries = 0;
        let mut full_twice = || {
            tries += 1;
            if tries < 3 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(tries) }
        };
        let refused = wait_for(&mut full_twice);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::StorageFull, "no space is freed");
        assert_eq!(try_often(full_twice, TRIES).unwrap(), 3);
        let mut tries = 0;
        let not_found = || {
            tries += 1;
            Err(io::ErrorKind::NotFound.into())
        };
        let failed: io::Result<()> = try_often(not_found, TRIES);
        assert_eq!((failed.unwrap_err().kind(), tries), (io::ErrorKind::NotFound, 1));
    }
}
