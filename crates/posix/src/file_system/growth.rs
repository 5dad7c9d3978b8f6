//! Growing of the mounted volume.

use std::sync::PoisonError;

use f2fs::resize;

use super::{FileSystem, Result, rest::Call, to_errno};
use crate::{Errno, errno, volume_lock::Writing};

impl FileSystem {
    /// Lets the volume grow to `blocks` blocks, and its file before, if that is shorter. Readers can enter during all device
    /// work.
    pub(super) fn grow(&self, call: &Call<'_>, blocks: u64) -> Result<()> {
        if !self.settings.checkpoints {
            return Err(Errno::OPNOTSUPP);
        }
        let mut volume = call.write_lock()?;
        let bytes = blocks.checked_mul(volume.superblock().block_size.bytes() as u64);
        let bytes = bytes.filter(|bytes| *bytes <= i64::MAX as u64).ok_or(Errno::FBIG)?;
        let file = self.image.upgrade();
        let old_bytes = file.as_ref().map(|file| file.refresh_size()).transpose();
        let old_bytes = old_bytes.map_err(|error| errno::of_device(&error))?;
        let extended =
            file.filter(|file| !file.is_block_device() && old_bytes.is_some_and(|old| old < bytes));
        if let Some(file) = &extended {
            file.set_size(bytes).map_err(|error| errno::of_device(&error))?;
        }
        let growth = self.begin_growth(&mut volume, bytes);
        let (Some(file), Some(old_bytes), Ok(None) | Err(_)) = (extended, old_bytes, &growth) else {
            return self.finish_growth(&mut volume, growth?);
        };
        // Nothing was written for the new size. The file may keep it; the reason of the refusal is more important.
        let _ = file.set_size(old_bytes);
        growth.map(drop)
    }

    /// Leaves the volume as an unmount does, and begins its growth.
    fn begin_growth(&self, volume: &mut Writing<'_>, bytes: u64) -> Result<Option<resize::Growth>> {
        // The long part: everything that waits in memory.
        let pending = volume.begin_unmount();
        self.settle(volume, pending).map_err(to_errno)?;
        resize::begin_growth(volume, bytes).map_err(to_errno)
    }

    fn finish_growth(&self, volume: &mut Writing<'_>, growth: Option<resize::Growth>) -> Result<()> {
        let Some(growth) = growth else { return Ok(()) };
        let discards = self.discards();
        let grown = volume.let_readers_in(|| {
            let grown = growth.run();
            // The volume goes on with another queue. Readers need not wait for a discard that is under way.
            discards.stop();
            grown
        })?;
        let finished = resize::finish_growth(volume, grown);
        *self.discards.lock().unwrap_or_else(PoisonError::into_inner) = volume.discards().clone();
        finished.map(drop).map_err(to_errno)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        ops::Range,
        sync::{
            Arc, Mutex, Weak,
            atomic::{AtomicU64, AtomicUsize, Ordering},
            mpsc,
        },
        thread,
    };

    use block::{Device, Fault, Faulty, FileDevice, Hooked, MemoryDevice, OpenOptions, Verb};
    use f2fs::{
        engine::{Engine, Options},
        units::{Ino, Time},
    };

    use super::*;
    use crate::{
        file_system::{
            OpenFor, OpenMode, Settings, WriteMode,
            tests::format,
            watched::{BYTES, ROOT_USER, create, mounted_on},
        },
        ioctl::{Request, TrimRange},
    };

    const MIB: u64 = 1 << 20;

    /// Asks for a size in bytes, as a process of this user.
    fn ask(fs: &FileSystem, uid: u32, bytes: u64) -> Result<Vec<u8>> {
        let request = Request::parse(0x4008_F510, &(bytes / 4096).to_ne_bytes()).unwrap();
        fs.ioctl(crate::Credentials { uid, gid: uid, pid: 0 }, fs.root().unwrap(), OpenFor::Reading, &request)
    }

    fn free(fs: &FileSystem) -> u64 {
        fs.read_lock().unwrap().free_user_blocks()
    }

    fn content(fs: &FileSystem, ino: Ino) -> Vec<u8> {
        let mut content = vec![0; 100_000];
        let length = fs.read(ino, 0, &mut content).unwrap();
        content.truncate(length);
        content
    }

    #[test]
    fn readers_have_the_volume_while_it_grows_and_open_files_stay_open() {
        let (device, fs) = mounted_on(BYTES * 3 / 2, Settings::default());
        let (root, gone) = (fs.root().unwrap(), create(&fs, b"gone"));
        fs.write(ROOT_USER, gone, 0, &[5; 70_000], WriteMode::default()).unwrap();
        fs.unlink(root, b"gone").unwrap();
        assert_eq!(ask(&fs, 1000, BYTES * 3 / 2), Err(Errno::PERM));
        device.take();
        let before = free(&fs);
        ask(&fs, 0, BYTES * 3 / 2).unwrap();
        // Those of the unmount and of two packs, and of the superblocks.
        assert!(device.take().0 >= 6);
        assert!(free(&fs) > before + 12_000, "{before}, {}", free(&fs));
        assert_eq!(content(&fs, gone), [5; 70_000], "a removed file that is open");
        fs.write(ROOT_USER, gone, 70_000, &[6; 10], WriteMode::default()).unwrap();
        let grown = free(&fs);
        fs.forget(gone, 1, || {});
        assert!(free(&fs) > grown + 15, "it is removed when it is closed");
        let new = create(&fs, b"new");
        fs.write(ROOT_USER, new, 0, &vec![1; BYTES as usize], WriteMode::default()).unwrap();
        fs.open(ROOT_USER, new, OpenMode { only_reads: true, ..OpenMode::default() }).unwrap();
        ask(&fs, 0, BYTES * 3 / 2).unwrap();
        fs.unmount().unwrap();
    }

    /// A volume of 64 MiB in a file, mounted.
    fn on_file(file: &tempfile::NamedTempFile) -> (Arc<FileDevice>, FileSystem) {
        let small = Arc::new(MemoryDevice::new(64 * MIB));
        drop(format(&small, ""));
        let mut bytes = vec![0; 64 << 20];
        small.read(0, &mut bytes).unwrap();
        fs::write(file.path(), bytes).unwrap();
        let how = OpenOptions { write: true, direct: false };
        let device = Arc::new(FileDevice::open(file.path(), how).unwrap());
        let volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
        let image = Arc::downgrade(&device);
        (device, FileSystem::new(volume, image, Settings::default()))
    }

    /// Returns a device of 96 MiB whose first 64 MiB are a volume.
    fn on_larger_device() -> Arc<MemoryDevice> {
        let device = Arc::new(MemoryDevice::new(96 * MIB));
        let small = Arc::new(MemoryDevice::new(64 * MIB));
        drop(format(&small, ""));
        let mut bytes = vec![0; 64 << 20];
        small.read(0, &mut bytes).unwrap();
        device.write(0, &bytes).unwrap();
        device
    }

    /// The queue of discards ends with the old size. Without a turn in between, readers would wait for the device.
    #[test]
    fn readers_have_the_volume_while_a_growth_waits_for_a_discard() {
        let inner = on_larger_device();
        let ((begun, has_begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
        let (ends, flushes) = (Mutex::new(ends), Arc::new(AtomicUsize::new(0)));
        let counted = flushes.clone();
        let device = Hooked::new(inner, move |verb, _| {
            match verb {
                Verb::Discard => {
                    begun.send(()).unwrap();
                    ends.lock().unwrap().recv().unwrap();
                }
                Verb::Flush => _ = counted.fetch_add(1, Ordering::SeqCst),
                _ => {}
            }
            Ok(())
        });
        let options = Options { discard: true, ..Options::new(Time::default) };
        let volume = Engine::open(Arc::new(device), options).unwrap();
        let fs = FileSystem::new(volume, Weak::new(), Settings::default());
        let (root, ino) = (fs.root().unwrap(), create(&fs, b"file"));
        fs.write(ROOT_USER, ino, 0, &vec![1; 4 << 20], WriteMode::default()).unwrap();
        fs.sync().unwrap();
        fs.unlink(root, b"file").unwrap();
        fs.forget(ino, 1, || {});
        fs.sync().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| fs.issue_discards(1));
            has_begun.recv().unwrap();
            let before = flushes.load(Ordering::SeqCst);
            let growth = scope.spawn(|| ask(&fs, 0, 96 * MIB));
            // The last one is that of the superblock.
            while flushes.load(Ordering::SeqCst) < before + 8 {
                thread::yield_now();
            }
            for _ in 0..1000 {
                assert!(fs.stat(root).is_ok());
                thread::yield_now();
            }
            assert!(!growth.is_finished(), "a discard is under way");
            end.send(()).unwrap();
            growth.join().unwrap().unwrap();
        });
        fs.unmount().unwrap();
    }

    /// The growth drops the queue of the trim: what had been queued was counted and not discarded.
    #[test]
    fn a_trim_beside_a_growth_discards_all_that_it_reports() {
        let discarded = Arc::new(AtomicU64::new(0));
        let counted = discarded.clone();
        let device = Hooked::new(on_larger_device(), move |verb, range: Range<u64>| {
            if verb == Verb::Discard {
                counted.fetch_add(range.end - range.start, Ordering::SeqCst);
            }
            Ok(())
        });
        let volume = Engine::open(Arc::new(device), Options::new(Time::default)).unwrap();
        let fs = FileSystem::new(volume, Weak::new(), Settings::default());
        let calls = AtomicU64::new(0);
        // After the first request of the second step, of which others wait in the queue.
        let grows = || {
            if calls.fetch_add(1, Ordering::SeqCst) == 1 {
                ask(&fs, 0, 96 * MIB).unwrap();
                discarded.store(0, Ordering::SeqCst);
            }
            false
        };
        let range = TrimRange { start: 0, length: u64::MAX, least: 0 };
        let trimmed = fs.trim(ROOT_USER, range, &grows).unwrap();
        assert!(trimmed > 64 * MIB, "{trimmed}: the new size counts");
        assert_eq!(discarded.load(Ordering::SeqCst), trimmed);
        fs.unmount().unwrap();
    }

    #[test]
    fn the_file_of_a_volume_is_extended_and_a_refusal_leaves_it_as_it_was() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (device, fs) = on_file(&file);
        let length = || file.as_file().metadata().unwrap().len();
        for (bytes, errno) in [
            (32 * MIB, Errno::INVAL),
            (u64::MAX, Errno::FBIG),
            // Larger metadata areas.
            (3 << 30, Errno::OPNOTSUPP),
        ] {
            assert_eq!(ask(&fs, 0, bytes), Err(errno), "{bytes}");
            assert_eq!(length(), 64 * MIB, "{bytes}");
        }
        ask(&fs, 0, 64 * MIB).unwrap();
        ask(&fs, 0, 96 * MIB).unwrap();
        assert_eq!((length(), device.geometry().size_bytes), (96 * MIB, 96 * MIB));
        // The file was extended by another program.
        file.as_file().set_len(128 * MIB).unwrap();
        ask(&fs, 0, 128 * MIB).unwrap();
        let new = create(&fs, b"new");
        fs.write(ROOT_USER, new, 0, &vec![1; 60 << 20], WriteMode::default()).unwrap();
        fs.unmount().unwrap();
        drop((fs, device));
        assert_eq!(length(), 128 * MIB);
        let volume = Engine::open(
            Arc::new(FileDevice::open(file.path(), OpenOptions::default()).unwrap()),
            Options::read_only(),
        );
        let volume = volume.unwrap();
        assert_eq!(volume.superblock().volume_bytes(), 128 * MIB);
        let new = volume.lookup(volume.superblock().root_ino, b"new").unwrap();
        assert_eq!(volume.stat(new).unwrap().size, 60 << 20);
    }

    #[test]
    fn a_volume_whose_tables_could_not_be_changed_can_be_read_and_refuses_changes() {
        for (verb, nth) in [(Verb::Write, 1), (Verb::Flush, 2), (Verb::Flush, 4)] {
            let device = on_larger_device();
            let faulty = Arc::new(Faulty::new(device.clone(), vec![Fault::ErrorAt { verb, nth }]));
            let volume = Engine::open(faulty, Options::new(Time::default)).unwrap();
            let fs = FileSystem::new(volume, Weak::new(), Settings::default());
            assert_eq!(ask(&fs, 0, 96 * MIB), Err(Errno::IO), "{verb:?} {nth}");
            assert!(fs.failure().is_some(), "{verb:?} {nth}");
            assert!(fs.stat(fs.root().unwrap()).is_ok(), "{verb:?} {nth}");
            let made = fs.create(ROOT_USER, fs.root().unwrap(), b"new", 0o100_644, 0, None);
            assert_eq!(made.map(|made| made.ino), Err(Errno::ROFS), "{verb:?} {nth}");
            drop(fs);
            let volume = Engine::open(device, Options::new(Time::default)).unwrap();
            assert!(volume.read_only_reason().is_none());
        }
    }
}
