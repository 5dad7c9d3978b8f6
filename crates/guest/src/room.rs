//! Waiting for room, where somebody makes it.
//!
//! nilfs2 makes room by a program that cleans in the background, and says that there is none until that has come to it.
//! Who writes to it has to try again.

use std::{io, thread, time::Duration};

/// How often it is tried again at most, and after what time.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

/// Does something, and again while there is no room for it, for up to half a minute.
///
/// # Errors
/// That of the last try.
pub fn wait_for<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..TRIES {
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
    fn what_finds_no_room_is_tried_again_and_what_fails_is_not() {
        let mut tries = 0;
        let done = wait_for(|| {
            tries += 1;
            if tries < 3 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(tries) }
        });
        assert_eq!(done.unwrap(), 3);
        let mut tries = 0;
        let failed: io::Result<()> = wait_for(|| {
            tries += 1;
            Err(io::ErrorKind::NotFound.into())
        });
        assert_eq!((failed.unwrap_err().kind(), tries), (io::ErrorKind::NotFound, 1));
    }
}
