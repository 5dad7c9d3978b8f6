//! What the kernel may have in its cache while space is short.
//!
//! It takes writes without asking whether they fit. They did when they were made: so before somebody takes what is left,
//! it writes back what others have written.

use std::sync::Mutex;

use f2fs::units::Ino;
use rustc_hash::FxHashSet;

/// Files that somebody has written to, or was about to, since they were written back last. Nobody keeps account of them
/// while there is plenty of space.
#[derive(Default)]
pub struct Unwritten {
    files: Mutex<Option<FxHashSet<Ino>>>,
}

impl Unwritten {
    /// Space is short, and somebody takes some: what is to be written back before that. At first that is everything in
    /// `open`, which says what is open for writing.
    #[must_use]
    pub fn take(&self, open: impl FnOnce() -> Vec<Ino>) -> Vec<Ino> {
        let mut files = self.files.lock().expect("nothing panics under this lock");
        let files = files.get_or_insert_with(|| open().into_iter().collect());
        files.drain().collect()
    }

    /// Space is short, and somebody is about to write to a file: what is to be written back before that, this file
    /// included.
    #[must_use]
    pub fn take_before_write(&self, ino: Ino, open: impl FnOnce() -> Vec<Ino>) -> Vec<Ino> {
        let mut first = self.take(open);
        if let Some(files) = &mut *self.files.lock().expect("nothing panics under this lock") {
            files.insert(ino);
        }
        first.retain(|other| *other != ino);
        first.push(ino);
        first
    }

    /// Whether account is kept: then nothing waits but what it says.
    pub fn is_kept(&self) -> bool {
        self.files.lock().expect("nothing panics under this lock").is_some()
    }

    /// There is plenty.
    pub fn forget(&self) {
        *self.files.lock().expect("nothing panics under this lock") = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_goes_first_and_once() {
        let unwritten = Unwritten::default();
        assert!(!unwritten.is_kept());
        let (open, none) = (|| vec![Ino(4), Ino(5)], || unreachable!("it is short already"));
        let mut first = unwritten.take_before_write(Ino(5), open);
        assert_eq!(first.pop(), Some(Ino(5)));
        assert_eq!(first, [Ino(4)]);
        assert_eq!(unwritten.take_before_write(Ino(5), none), [Ino(5)]);
        assert_eq!(unwritten.take_before_write(Ino(6), none), [Ino(5), Ino(6)]);
        assert_eq!(unwritten.take(none), [Ino(6)]);
        assert_eq!(unwritten.take(none), []);
        assert!(unwritten.is_kept());
        unwritten.forget();
        assert_eq!(unwritten.take(|| vec![Ino(7)]), [Ino(7)]);
    }
}
