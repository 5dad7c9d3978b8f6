//! The state after a remount to read-only, in which nothing is written beside requests.

use std::sync::atomic::Ordering;

use super::{FileSystem, Result, to_errno};
use crate::volume_lock::Writing;

impl FileSystem {
    /// Makes everything durable and leaves the volume on the device as an unmount does, after the front end has become
    /// read-only. From then on no access times are kept, no segments are cleaned, and no blocks are discarded. Later changes
    /// are possible, and end this state. A discard that is under way has ended when this returns.
    ///
    /// A removed file may lose its last user afterwards. It is freed then, and the next tick of
    /// [`IdleWork`](crate::IdleWork) leaves the volume as an unmount does again.
    pub fn rest(&self) -> Result<()> {
        let mut volume = self.sync_lock()?;
        if let Some(nothing_to_do) = self.may_sync(&volume)? {
            return Ok(nothing_to_do);
        }
        // Even after an error: the front end is read-only, and the next tick tries again.
        self.is_resting.store(true, Ordering::Relaxed);
        let discards = volume.discards().clone();
        discards.pause();
        let written = self.write_as_unmounted(&mut volume);
        drop(volume);
        discards.finish_in_flight();
        written
    }

    /// Writes what has changed, as an unmount does. Writes nothing if nothing has changed since the last time.
    pub(super) fn write_as_unmounted(&self, volume: &mut Writing<'_>) -> Result<()> {
        let pending = volume.begin_unmount();
        self.settle(volume, pending).map_err(to_errno)
    }

    /// Returns true from [`rest`](Self::rest) until the next change. The work beside requests then waits: access times,
    /// cleaning in idle times, and discards.
    pub(crate) fn is_resting(&self) -> bool {
        self.is_resting.load(Ordering::Relaxed)
    }

    /// Ends the rest before a change. Readers ask for it all the time, so it is written only if it changes.
    pub(super) fn end_rest(&self) {
        if self.is_resting() {
            self.is_resting.store(false, Ordering::Relaxed);
            self.discards().resume();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc, Mutex, Weak,
            atomic::{AtomicBool, AtomicU64},
            mpsc,
        },
        time::Duration,
    };

    use block::{Hooked, MemoryDevice, Verb};
    use f2fs::{
        engine::{Engine, Options},
        format::checkpoint::Flags,
        units::{Ino, Time},
    };

    use super::*;
    use crate::{
        Atime, BackgroundGc, Credentials, Errno, IdleWork, Settings, WriteMode, file_system::tests::format,
    };

    const USER: Credentials = Credentials { uid: 0, gid: 0, pid: 0 };
    const PUNCH_HOLE_AND_KEEP_SIZE: u32 = 3;

    struct Mounted {
        device: Arc<MemoryDevice>,
        /// Number of writes and discards.
        changes: Arc<AtomicU64>,
        fs: FileSystem,
        root: Ino,
    }

    impl Mounted {
        fn new(bytes: u64) -> Mounted {
            Mounted::hooked(bytes, |_| ())
        }

        /// Mounts a new volume. `hook` is called before each request.
        fn hooked(bytes: u64, hook: impl Fn(Verb) + Send + Sync + 'static) -> Mounted {
            let device = Arc::new(MemoryDevice::new(bytes));
            drop(format(&device, ""));
            let changes = Arc::new(AtomicU64::new(0));
            let count = changes.clone();
            let hooked = Hooked::new(device.clone(), move |verb, _| {
                hook(verb);
                if matches!(verb, Verb::Write | Verb::Discard) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
            let options = Options { discard: true, ..Options::new(Time::default) };
            let volume = Engine::open(Arc::new(hooked), options).unwrap();
            let root = volume.superblock().root_ino;
            let settings = Settings { atime: Atime::Strict, ..Settings::default() };
            Mounted { device, changes, fs: FileSystem::new(volume, Weak::new(), settings), root }
        }

        fn create(&self, name: &[u8]) -> Ino {
            self.fs.create(USER, self.root, name, 0o100_644, 0, None).unwrap().ino
        }

        /// Lets the work beside requests do all that it wants to. Returns the number of writes and discards.
        fn work(&self) -> u64 {
            let before = self.changes.load(Ordering::Relaxed);
            let mut idle = IdleWork::new(&self.fs, Duration::ZERO, BackgroundGc::On);
            for _ in 0..12 {
                idle.tick(&self.fs);
                while self.fs.issue_discards(8) {}
            }
            self.fs.clean_in_idle_time().unwrap();
            self.changes.load(Ordering::Relaxed) - before
        }

        fn is_unmounted_on_device(&self) -> bool {
            let volume = Engine::open(self.device.clone(), Options::read_only()).unwrap();
            volume.last_checkpoint().flags.has(Flags::UMOUNT)
        }
    }

    /// A full volume with a file in which every second run of 64 KiB is a hole. Returns the file and its size in bytes.
    fn fragmented() -> (Mounted, Ino, u64) {
        let mounted = Mounted::new(128 << 20);
        let fs = &mounted.fs;
        let ino = mounted.create(b"file");
        let write = |n: u64| fs.write(USER, ino, n << 20, &vec![1; 1 << 20], WriteMode::default());
        let end = (0..).find(|n| write(*n) == Err(Errno::NOSPC)).unwrap() << 20;
        for hole in (0..end).step_by(128 << 10) {
            fs.allocate(USER, ino, hole, 64 << 10, PUNCH_HOLE_AND_KEEP_SIZE).unwrap();
        }
        (mounted, ino, end)
    }

    #[test]
    fn a_listing_at_rest_writes_nothing() {
        let mounted = Mounted::new(64 << 20);
        let Mounted { fs, root, .. } = &mounted;
        let ino = mounted.create(b"file");
        let read = || {
            fs.list(*root, 0, |_, _| Ok(true)).unwrap();
            fs.open(USER, ino, crate::OpenMode { only_reads: true, ..Default::default() }).unwrap();
            fs.read(ino, 0, &mut [0; 8]).unwrap();
        };
        read();
        assert!(!fs.pending_atimes.is_empty(), "a listing renews the access time");
        fs.rest().unwrap();
        read();
        assert!(fs.pending_atimes.is_empty());
        assert_eq!(mounted.work(), 0);
        fs.sync().unwrap();
        assert!(mounted.is_unmounted_on_device());
        mounted.create(b"new");
        read();
        assert!(!fs.pending_atimes.is_empty(), "a change ends the rest");
        assert!(mounted.work() > 0);
        assert!(!mounted.is_unmounted_on_device());
        fs.unmount().unwrap();
    }

    #[test]
    fn a_fragmented_volume_at_rest_is_not_cleaned_and_nothing_is_discarded() {
        let (mounted, ..) = fragmented();
        let fs = &mounted.fs;
        fs.rest().unwrap();
        assert!(fs.read_lock().unwrap().is_fragmented());
        assert!(!fs.discards().is_empty());
        assert_eq!(mounted.work(), 0);
        assert!(mounted.is_unmounted_on_device());
        mounted.create(b"new");
        assert!(mounted.work() > 0, "a change ends the rest");
        fs.unmount().unwrap();
    }

    #[test]
    fn a_discard_under_way_ends_before_the_volume_is_at_rest() {
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let (may_end, has_ended) = (Mutex::new(may_end), Arc::new(AtomicBool::new(false)));
        let ended = has_ended.clone();
        let mounted = Mounted::hooked(64 << 20, move |verb| {
            if verb == Verb::Discard {
                begun.send(()).unwrap();
                // Without the other end, every discard ends at once.
                let _ = may_end.lock().unwrap().recv();
                ended.store(true, Ordering::SeqCst);
            }
        });
        let Mounted { fs, root, .. } = &mounted;
        let ino = mounted.create(b"file");
        fs.write(USER, ino, 0, &[1; 4 << 20], WriteMode::default()).unwrap();
        fs.sync().unwrap();
        fs.unlink(*root, b"file").unwrap();
        fs.forget(ino, 1, || {});
        fs.sync().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| fs.issue_discards(1));
            has_begun.recv().unwrap();
            let rest = scope.spawn(|| {
                fs.rest().unwrap();
                has_ended.load(Ordering::SeqCst)
            });
            // From here on `rest` can only wait for the discard.
            while !(fs.is_resting() && mounted.is_unmounted_on_device()) {
                std::thread::yield_now();
            }
            drop(end);
            assert!(rest.join().unwrap(), "the volume is at rest while a discard is under way");
        });
        assert!(!fs.issue_discards(1));
        fs.unmount().unwrap();
    }

    /// The last request that gives a removed file back may come after the remount.
    #[test]
    fn a_file_that_is_freed_at_rest_leaves_the_volume_unmounted() {
        let mounted = Mounted::new(64 << 20);
        let Mounted { fs, root, .. } = &mounted;
        let ino = mounted.create(b"file");
        fs.write(USER, ino, 0, &[1; 1 << 20], WriteMode::default()).unwrap();
        fs.unlink(*root, b"file").unwrap();
        fs.rest().unwrap();
        let interval = Duration::from_secs(1 << 20);
        let mut idle = IdleWork::new(fs, interval, BackgroundGc::On);
        fs.forget(ino, 1, || {});
        idle.tick(fs);
        assert!(mounted.is_unmounted_on_device());
        let volume = Engine::open(mounted.device.clone(), Options::read_only()).unwrap();
        assert!(volume.orphans().is_empty(), "it is free on the device");
        assert_eq!(mounted.work(), 0);
        fs.unmount().unwrap();
    }

    #[test]
    fn cleaning_in_idle_times_breaks_off_for_a_writer_that_waits() {
        let (mounted, ino, end) = fragmented();
        let fs = &mounted.fs;
        fs.sync().unwrap();
        let wait_for = |writers| {
            while fs.waiting_writers() < writers {
                std::thread::yield_now();
            }
        };
        let version = || fs.read_lock().unwrap().last_checkpoint().version;
        let before = version();
        std::thread::scope(|scope| {
            let held = fs.quiet_write_lock().unwrap();
            let cleaner = scope.spawn(|| fs.clean_in_idle_time().unwrap());
            wait_for(2);
            let writer = scope.spawn(|| fs.quiet_write_lock().unwrap().last_checkpoint().version);
            wait_for(3);
            drop(held);
            cleaner.join().unwrap();
            assert_eq!(writer.join().unwrap(), before, "no section was emptied before the writer's turn");
        });
        fs.clean_in_idle_time().unwrap();
        assert!(version() != before, "without a writer, one is emptied");
        let mut content = vec![0; 64 << 10];
        for data in (64 << 10..end).step_by(128 << 10) {
            fs.read(ino, data, &mut content).unwrap();
            assert!(content.iter().all(|byte| *byte == 1));
        }
        fs.unmount().unwrap();
        assert!(mounted.is_unmounted_on_device());
    }
}
