//! The state after a remount to read-only, in which nothing is written beside requests.

use std::sync::atomic::Ordering;

use super::{Credentials, FileSystem, Result, to_errno};
use crate::{Errno, volume_lock::Writing};

/// A call that may be under way while the front end becomes read-only. Linux refuses a remount to read-only during most
/// changes, and while a file is open for writing, but not during an ioctl, whose file may be open for reading only.
///
/// Each part of the call locks the volume by a method of this type. So a call that began before the volume came to
/// [rest](FileSystem::rest) ends with its current part, and does not end the rest.
pub struct Call<'a> {
    fs: &'a FileSystem,
    /// The caller.
    pub(super) caller: Credentials,
    /// Number of times that the volume had come to rest when the call began.
    rests: u64,
}

impl<'a> Call<'a> {
    /// Locks the volume for the next part of the call.
    ///
    /// # Errors
    /// `EROFS` if the volume has come to rest since the call began; those of [`FileSystem::write_lock`].
    pub(super) fn write_lock(&self) -> Result<Writing<'a>> {
        let mut volume = self.lock_unprepared()?;
        self.fs.prepare_change(&mut volume)?;
        Ok(volume)
    }

    /// Locks the volume for the next part of the call, which frees space. That the upkeep finds no space is not an error.
    ///
    /// # Errors
    /// Those of [`write_lock`](Self::write_lock).
    pub(super) fn lock_to_free(&self) -> Result<Writing<'a>> {
        let mut volume = self.lock_unprepared()?;
        self.fs.prepare_to_free(&mut volume)?;
        Ok(volume)
    }

    fn lock_unprepared(&self) -> Result<Writing<'a>> {
        let volume = self.fs.lock_unprepared(self.fs.limits_for(self.caller))?;
        if self.fs.is_resting() && self.fs.rests.load(Ordering::Relaxed) != self.rests {
            return Err(Errno::ROFS);
        }
        self.fs.end_rest();
        Ok(volume)
    }
}

impl FileSystem {
    /// Begins a call, before it waits for anything. If the call changes something, `is_refused` returns true if the front
    /// end is read-only. It is asked after the call has begun: a front end that becomes read-only afterwards comes to
    /// [rest](Self::rest) during the call.
    ///
    /// # Errors
    /// `EROFS` if `is_refused` returns true.
    pub fn begin_call(&self, caller: Credentials, is_refused: &dyn Fn() -> bool) -> Result<Call<'_>> {
        let call = Call { fs: self, caller, rests: self.rests.load(Ordering::Relaxed) };
        if is_refused() { Err(Errno::ROFS) } else { Ok(call) }
    }

    /// Makes everything durable and leaves the volume on the device as an unmount does, after the front end has become
    /// read-only. From then on no access times are kept, no segments are cleaned, and no blocks are discarded. Later changes
    /// are possible, and end this state. A discard that is under way has ended when this returns. An ioctl that is under way
    /// ends with `EROFS` before its next part.
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
        self.rests.fetch_add(1, Ordering::Relaxed);
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
        format::{
            checkpoint::Flags,
            verity::{HashAlgorithm, Parameters},
        },
        units::{Ino, Time},
    };

    use super::*;
    use crate::{
        Atime, BackgroundGc, CallerMemory, Credentials, Errno, IdleWork, Settings, VerityRequest, WriteMode,
        file_system::{OpenFor, OpenMode, tests::format},
        ioctl::{Request, TrimRange},
    };

    const USER: Credentials = Credentials { uid: 0, gid: 0, pid: 0 };
    const EVERYTHING: TrimRange = TrimRange { start: 0, length: u64::MAX, least: 0 };
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
            drop(format(&device, "verity"));
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

        /// Checks that nothing is written or discarded any more, and that the volume is as an unmount leaves it. `changes` is
        /// the number of writes and discards when it came to rest.
        fn assert_rest_since(&self, changes: u64) {
            assert!(self.fs.is_resting());
            assert_eq!(self.changes.load(Ordering::Relaxed), changes);
            assert_eq!(self.work(), 0);
            assert!(self.is_unmounted_on_device());
        }

        /// Comes to rest. Returns the number of writes and discards until then.
        fn rest(&self) -> u64 {
            self.fs.rest().unwrap();
            self.changes.load(Ordering::Relaxed)
        }

        fn wait_for_writers(&self, count: u64) {
            while self.fs.waiting_writers() < count {
                std::thread::yield_now();
            }
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

    /// The mount table is asked, and the mount becomes read-only at once.
    #[test]
    fn a_front_end_that_becomes_read_only_after_it_was_asked_ends_the_call() {
        let mounted = Mounted::new(64 << 20);
        let (fs, root, changes) = (&mounted.fs, mounted.root, &mounted.changes);
        let mut label = [0; 256];
        label[..3].copy_from_slice(b"new");
        let request = Request::parse(0x4100_9432, &label).unwrap();
        mounted.create(b"file");
        let call = fs.begin_call(USER, &|| {
            fs.rest().unwrap();
            false
        });
        let before = changes.load(Ordering::Relaxed);
        let done = call.and_then(|call| fs.ioctl_within(&call, root, OpenFor::Reading, &request));
        assert_eq!((done, changes.load(Ordering::Relaxed)), (Err(Errno::ROFS), before));
        assert_eq!(fs.begin_call(USER, &|| true).map(drop), Err(Errno::ROFS));
        fs.ioctl(USER, root, OpenFor::Reading, &request).unwrap();
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
    fn a_trim_under_way_ends_when_the_volume_comes_to_rest() {
        let mounted = Mounted::new(256 << 20);
        let fs = &mounted.fs;
        let (calls, at_rest) = (AtomicU64::new(0), AtomicU64::new(0));
        // Between two of the first requests.
        let comes_to_rest = || {
            if calls.fetch_add(1, Ordering::Relaxed) == 2 {
                at_rest.store(mounted.rest(), Ordering::Relaxed);
            }
            false
        };
        assert_eq!(fs.trim(USER, EVERYTHING, &comes_to_rest), Err(Errno::ROFS));
        mounted.assert_rest_since(at_rest.into_inner());
        assert!(fs.trim(USER, EVERYTHING, &|| false).unwrap() > 128 << 20, "a later call is a change");
        assert!(!fs.is_resting());
        fs.unmount().unwrap();
    }

    #[test]
    fn a_call_that_waits_while_the_volume_comes_to_rest_changes_nothing() {
        let mounted = Mounted::new(64 << 20);
        let fs = &mounted.fs;
        mounted.create(b"file");
        std::thread::scope(|scope| {
            let held = fs.quiet_write_lock().unwrap();
            let rest = scope.spawn(|| mounted.rest());
            mounted.wait_for_writers(2);
            let trim = scope.spawn(|| fs.trim(USER, EVERYTHING, &|| false));
            mounted.wait_for_writers(3);
            drop(held);
            assert_eq!(trim.join().unwrap(), Err(Errno::ROFS));
            mounted.assert_rest_since(rest.join().unwrap());
        });
        fs.unmount().unwrap();
    }

    #[test]
    fn a_sealing_under_way_ends_when_the_volume_comes_to_rest() {
        let mounted = Mounted::new(256 << 20);
        let fs = &mounted.fs;
        let ino = mounted.create(b"file");
        for offset in (0..40 << 20).step_by(1 << 20) {
            fs.write(USER, ino, offset, &vec![7; 1 << 20], WriteMode::default()).unwrap();
        }
        let seal = |is_interrupted: &dyn Fn() -> bool| {
            let parameters =
                Parameters { algorithm: HashAlgorithm::Sha256, log_block_bytes: 12, salt: Vec::new() };
            let request = VerityRequest::Enable(parameters, Vec::new());
            fs.verity_ioctl(USER, ino, request, CallerMemory { pid: 0, address: 0 }, is_interrupted).map(drop)
        };
        // While it waits for a writer, and while it makes the tree.
        for (is_written, nth) in [(true, 0), (false, 5)] {
            if is_written {
                let mode = OpenMode { open_for: OpenFor::Writing, ..OpenMode::default() };
                fs.open(USER, ino, mode).unwrap();
            }
            mounted.create(format!("{nth}").as_bytes());
            let (calls, at_rest) = (AtomicU64::new(0), AtomicU64::new(0));
            let comes_to_rest = || {
                if calls.fetch_add(1, Ordering::Relaxed) == nth {
                    if is_written {
                        fs.close(ino, OpenFor::Writing);
                    }
                    at_rest.store(mounted.rest(), Ordering::Relaxed);
                }
                false
            };
            assert_eq!(seal(&comes_to_rest), Err(Errno::ROFS), "{nth}");
            mounted.assert_rest_since(at_rest.into_inner());
            assert!(!fs.stat(ino).unwrap().sealed);
        }
        seal(&|| false).unwrap();
        assert!(fs.stat(ino).unwrap().sealed && !fs.is_resting());
        let mut content = [0; 4096];
        fs.read(ino, 39 << 20, &mut content).unwrap();
        assert_eq!(content, [7; 4096]);
        fs.unmount().unwrap();
    }

    #[test]
    fn a_defragmentation_under_way_ends_when_the_volume_comes_to_rest() {
        const BLOCKS: u64 = 3072;
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let (waits, may_go) = (Arc::new(AtomicBool::new(false)), Mutex::new(may_go));
        let wait = waits.clone();
        let mounted = Mounted::hooked(128 << 20, move |verb| {
            if verb == Verb::Write && wait.swap(false, Ordering::SeqCst) {
                begun.send(()).unwrap();
                may_go.lock().unwrap().recv().unwrap();
            }
        });
        let fs = &mounted.fs;
        let files = [mounted.create(b"one"), mounted.create(b"two")];
        for block in 0..BLOCKS {
            for ino in files {
                fs.write(USER, ino, block * 4096, &[7; 4096], WriteMode::default()).unwrap();
            }
        }
        fs.sync().unwrap();
        let defragment = || {
            let range = [0_u64.to_ne_bytes(), (BLOCKS * 4096).to_ne_bytes()].concat();
            fs.ioctl(USER, files[0], OpenFor::Reading, &Request::parse(0xC010_F508, &range).unwrap())
        };
        waits.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let moves = scope.spawn(defragment);
            // Within its first part.
            has_begun.recv().unwrap();
            let rest = scope.spawn(|| mounted.rest());
            mounted.wait_for_writers(2);
            go.send(()).unwrap();
            assert_eq!(moves.join().unwrap(), Err(Errno::ROFS));
            mounted.assert_rest_since(rest.join().unwrap());
        });
        defragment().unwrap();
        fs.unmount().unwrap();
    }

    #[test]
    fn cleaning_in_idle_times_breaks_off_for_a_writer_that_waits() {
        let (mounted, ino, end) = fragmented();
        let fs = &mounted.fs;
        fs.sync().unwrap();
        let version = || fs.read_lock().unwrap().last_checkpoint().version;
        let before = version();
        std::thread::scope(|scope| {
            let held = fs.quiet_write_lock().unwrap();
            let cleaner = scope.spawn(|| fs.clean_in_idle_time().unwrap());
            mounted.wait_for_writers(2);
            let writer = scope.spawn(|| fs.quiet_write_lock().unwrap().last_checkpoint().version);
            mounted.wait_for_writers(3);
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
