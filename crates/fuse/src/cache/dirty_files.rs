//! Dirty files: files with dirty pages in the kernel while space is short.
//!
//! The kernel accepts writes without asking whether there is space for them. There was when they were made.
//! So before another caller takes the remaining space, the kernel writes back the files of earlier writers.

use std::sync::Mutex;

use f2fs::units::Ino;
use rustc_hash::FxHashSet;

/// Files that were written, or were about to be, since their last write-back. The set is not maintained while
/// there is plenty of space.
#[derive(Default)]
pub struct DirtyFiles {
    files: Mutex<Option<FxHashSet<Ino>>>,
}

impl DirtyFiles {
    /// Returns the files to write back before a caller takes space, when space is short. The first call
    /// starts the set with all files open for writing, which `open` returns.
    #[must_use]
    pub fn take(&self, open: impl FnOnce() -> Vec<Ino>) -> Vec<Ino> {
        let mut files = self.files.lock().expect("no code panics while it holds this lock");
        let files = files.get_or_insert_with(|| open().into_iter().collect());
        files.drain().collect()
    }

    /// Returns the files to write back before a caller writes to `ino`, when space is short. The list
    /// includes `ino`.
    #[must_use]
    pub fn take_before_write(&self, ino: Ino, open: impl FnOnce() -> Vec<Ino>) -> Vec<Ino> {
        let mut first = self.take(open);
        if let Some(files) = &mut *self.files.lock().expect("no code panics while it holds this lock") {
            files.insert(ino);
        }
        first.retain(|other| *other != ino);
        first.push(ino);
        first
    }

    /// Returns true if the set is maintained. Then no other files have dirty pages.
    pub fn is_maintained(&self) -> bool {
        self.files.lock().expect("no code panics while it holds this lock").is_some()
    }

    /// Stops maintaining the set, because there is plenty of space.
    pub fn stop(&self) {
        *self.files.lock().expect("no code panics while it holds this lock") = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_other_files_is_written_first_and_once() {
        let dirty = DirtyFiles::default();
        assert!(!dirty.is_maintained());
        let (open, none) = (|| vec![Ino(4), Ino(5)], || unreachable!("it is short already"));
        let mut first = dirty.take_before_write(Ino(5), open);
        assert_eq!(first.pop(), Some(Ino(5)));
        assert_eq!(first, [Ino(4)]);
        assert_eq!(dirty.take_before_write(Ino(5), none), [Ino(5)]);
        assert_eq!(dirty.take_before_write(Ino(6), none), [Ino(5), Ino(6)]);
        assert_eq!(dirty.take(none), [Ino(6)]);
        assert_eq!(dirty.take(none), []);
        assert!(dirty.is_maintained());
        dirty.stop();
        assert_eq!(dirty.take(|| vec![Ino(7)]), [Ino(7)]);
    }
}
