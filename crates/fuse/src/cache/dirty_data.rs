//! The data that the kernel has accepted while space is short: which files have it, and how much it is.
//!
//! The kernel accepts writes without asking whether there is space for them, and does not tell how much it has
//! accepted. But it counts the bytes of the pages that each process makes dirty ([`Facts::dirtied`]). So accepted data may
//! stay in the kernel's cache as long as there is certainly space for it. Otherwise the kernel writes it back before
//! another change takes the space.

use std::{
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use f2fs::units::Ino;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{NO_VALIDITY, VALIDITY_WRITING};

/// Space that is left for a write that the kernel is about to accept, in bytes.
const NEXT_WRITE_BYTES: u64 = 1 << 20;
/// Space that is left for the first write to a file while others have accepted data, in bytes. A program that
/// writes everything at once shows no earlier write by which to judge it.
const FIRST_WRITE_BYTES: u64 = 16 << 20;
/// Blocks that an accepted page may take: its own, and a node if it lies apart from others.
const BLOCKS_PER_PAGE: u64 = 2;
/// Smallest size of a page in bytes.
const PAGE_BYTES: u64 = 4096;
/// Space left from which on a process need not ask before each write, and the time in which it need not. The
/// kernel rounds this time up to its clock tick, of at most 10 ms.
const UNASKED: [(u64, Duration); 2] = [(64 << 20, VALIDITY_WRITING), (32 << 20, Duration::from_millis(1))];
/// Upper bound for the rounding of the kernel.
const TICKS: Duration = Duration::from_millis(20);
/// Number of processes whose writes are counted. With more, data is written back before each write.
const PROCESSES_MAX: usize = 8;

/// A process that is about to write to a file.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    /// The process, 0 if it is unknown.
    pub pid: u32,
    /// The file.
    pub ino: Ino,
    /// True if data of the file could not be written back since it was opened.
    pub has_failed: bool,
}

/// The facts by which accepted data is judged.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The time.
    pub now: Instant,
    /// Free space of the volume in bytes.
    pub free_bytes: u64,
    /// Size of its blocks in bytes.
    pub block_bytes: u32,
    /// The bytes of pages that a process has made dirty, on all file systems, if they are known.
    pub dirtied: &'a dyn Fn(u32) -> Option<u64>,
}

/// A write-back that has to end before a change is made.
#[derive(Debug, PartialEq, Eq)]
pub struct WriteBackFirst {
    /// The files that the kernel writes back.
    pub files: Vec<Ino>,
    /// The [tracking](Tracked) that waits for its end.
    tracking: Option<u64>,
}

impl WriteBackFirst {
    /// A write-back of one file, while nothing is tracked.
    pub fn of(ino: Ino) -> WriteBackFirst {
        WriteBackFirst { files: vec![ino], tracking: None }
    }
}

/// The accepted data. It is not tracked while there is plenty of space.
#[derive(Default)]
pub struct DirtyData(Mutex<Data>);

#[derive(Default)]
struct Data {
    tracked: Option<Tracked>,
    /// Number of times that the tracking has started.
    starts: u64,
}

#[derive(Default)]
struct Tracked {
    /// Files that may have dirty pages, and the time until which programs may write to them without asking.
    files: FxHashMap<Ino, Option<Instant>>,
    /// Files that have been written since they were opened.
    begun: FxHashSet<Ino>,
    /// Processes that write, and the bytes that each had made dirty when it was last looked at.
    processes: FxHashMap<u32, u64>,
    /// Bytes accepted since the last write-back began; `None` if that is unknown.
    accepted: Option<u64>,
    /// Until when programs may write that have not asked since the tracking began.
    unsure_until: Option<Instant>,
    /// Number of write-backs that have not ended.
    write_backs: u32,
}

impl DirtyData {
    /// Returns true if the data is tracked. Then no other files have dirty pages.
    pub fn is_tracked(&self) -> bool {
        self.lock().tracked.is_some()
    }

    /// Ends the tracking, because there is plenty of space.
    pub fn stop(&self) {
        self.lock().tracked = None;
    }

    /// Called before a process writes to a file, when space is short. Returns the time for which it may write
    /// without asking again, or otherwise the write-back that has to end first, with this file as the last one. The
    /// first call starts the tracking with all files open for writing, which `open` returns.
    pub fn admit(
        &self,
        writer: Writer,
        facts: Facts<'_>,
        open: impl FnOnce() -> Vec<Ino>,
    ) -> Result<Duration, WriteBackFirst> {
        let mut data = self.lock();
        let tracking = data.start(facts.now, open);
        let tracked = data.tracked.get_or_insert_default();
        if let Some(unasked) = tracked.admit(writer, facts) {
            return Ok(unasked);
        }
        let mut files = tracked.take(facts.now);
        files.retain(|ino| *ino != writer.ino);
        files.push(writer.ino);
        tracked.files.entry(writer.ino).or_default();
        if !tracked.processes.contains_key(&writer.pid) {
            // Its next write will not be counted.
            tracked.accepted = None;
        }
        Err(WriteBackFirst { files, tracking })
    }

    /// Like [`admit`](Self::admit), for a process that has created a file and may be about to write to it. It has
    /// to ask again if something has to be written back before.
    pub fn admit_creator(
        &self,
        writer: Writer,
        facts: Facts<'_>,
        open: impl FnOnce() -> Vec<Ino>,
    ) -> Duration {
        let mut data = self.lock();
        data.start(facts.now, open);
        data.tracked.get_or_insert_default().admit(writer, facts).unwrap_or(NO_VALIDITY)
    }

    /// Notes that the kernel has written back data of a file by itself.
    pub fn wrote(&self, ino: Ino, bytes: u64) {
        if let Some(tracked) = &mut self.lock().tracked {
            tracked.wrote(ino, bytes);
        }
    }

    /// Called before a change other than a cached write takes `bytes`, when space is short. Returns the write-back
    /// that has to end first, if one is needed. The first call starts the tracking, as that of
    /// [`admit`](Self::admit) does.
    pub fn before_taking(
        &self,
        bytes: u64,
        facts: Facts<'_>,
        open: impl FnOnce() -> Vec<Ino>,
    ) -> Option<WriteBackFirst> {
        let mut data = self.lock();
        let tracking = data.start(facts.now, open);
        let tracked = data.tracked.get_or_insert_default();
        tracked.count(None, facts);
        let needed = bytes.saturating_add(NEXT_WRITE_BYTES / 2);
        let fits = tracked.left(facts).is_some_and(|left| left >= needed);
        let is_needed = !fits && !tracked.is_clean();
        is_needed.then(|| WriteBackFirst { files: tracked.take(facts.now), tracking })
    }

    /// Notes that a write-back has ended.
    pub fn written_back(&self, first: &WriteBackFirst) {
        let mut data = self.lock();
        if first.tracking == Some(data.starts) {
            if let Some(tracked) = &mut data.tracked {
                tracked.write_backs -= 1;
            }
        }
    }

    /// Notes that a file was closed by its last writer. The kernel has written it back before.
    pub fn close(&self, ino: Ino) {
        if let Some(tracked) = &mut self.lock().tracked {
            tracked.files.remove(&ino);
            tracked.begun.remove(&ino);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Data> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

impl Data {
    /// Starts the tracking unless it has started. Returns its number.
    fn start(&mut self, now: Instant, open: impl FnOnce() -> Vec<Ino>) -> Option<u64> {
        if self.tracked.is_none() {
            self.starts += 1;
            self.tracked = Some(Tracked::start(open(), now));
        }
        Some(self.starts)
    }
}

impl Tracked {
    /// Starts with files open for writing. Their writers may still write without asking, because space was not short
    /// when they last asked.
    fn start(open: Vec<Ino>, now: Instant) -> Tracked {
        let until = Some(now + VALIDITY_WRITING + TICKS);
        Tracked {
            begun: open.iter().copied().collect(),
            unsure_until: until.filter(|_| !open.is_empty()),
            files: open.into_iter().map(|ino| (ino, until)).collect(),
            ..Tracked::default()
        }
    }

    /// Returns true if no file has dirty pages.
    fn is_clean(&self) -> bool {
        self.files.is_empty() && self.write_backs == 0
    }

    /// Adds the bytes that the known processes, and `new`, have made dirty since the last count.
    fn count(&mut self, new: Option<u32>, facts: Facts<'_>) {
        if self.is_clean() {
            self.accepted = Some(0);
            self.processes.clear();
        }
        let accepted = &mut self.accepted;
        self.processes.retain(|pid, before| {
            let now = (facts.dirtied)(*pid);
            // The last writes of a process that has ended are unknown.
            *accepted =
                accepted.zip(now).map(|(bytes, now)| bytes.saturating_add(now.saturating_sub(*before)));
            *before = now.unwrap_or_default();
            now.is_some()
        });
        if let Some(pid) = new.filter(|pid| !self.processes.contains_key(pid)) {
            match (facts.dirtied)(pid).filter(|_| self.processes.len() < PROCESSES_MAX) {
                Some(bytes) => _ = self.processes.insert(pid, bytes),
                None => self.accepted = None,
            }
        }
    }

    /// Returns the space that is left besides the accepted data, if there is any and it is known.
    fn left(&self, facts: Facts<'_>) -> Option<u64> {
        let is_sure = self.write_backs == 0 && self.unsure_until.is_none_or(|until| facts.now >= until);
        let accepted = self.accepted.filter(|_| is_sure)?;
        let most = BLOCKS_PER_PAGE * u64::from(facts.block_bytes).div_ceil(PAGE_BYTES);
        facts.free_bytes.checked_sub(accepted.saturating_mul(most))
    }

    /// Returns the time for which a process may write without asking again, if accepted data fits besides.
    fn admit(&mut self, writer: Writer, facts: Facts<'_>) -> Option<Duration> {
        self.count(Some(writer.pid), facts);
        let left = self.left(facts);
        let is_first = self.begun.insert(writer.ino);
        let has_others = self.files.keys().any(|ino| *ino != writer.ino);
        let needed = if is_first && has_others { FIRST_WRITE_BYTES } else { NEXT_WRITE_BYTES };
        if writer.has_failed || left.is_none_or(|left| left < needed) && !self.is_clean() {
            return None;
        }
        let unasked = UNASKED.iter().find(|(least, _)| left.is_some_and(|left| left >= *least));
        let unasked = unasked.map(|(_, time)| *time);
        self.files.insert(writer.ino, unasked.map(|time| facts.now + time + TICKS));
        Some(unasked.unwrap_or(NO_VALIDITY))
    }

    /// Data that has reached the volume needs no more space. During a write-back the amount counts from its
    /// beginning.
    fn wrote(&mut self, ino: Ino, bytes: u64) {
        if self.write_backs == 0 && self.files.contains_key(&ino) {
            let whole_pages = bytes / PAGE_BYTES * PAGE_BYTES;
            self.accepted = self.accepted.map(|accepted| accepted.saturating_sub(whole_pages));
        }
    }

    /// Begins a write-back. Returns the files.
    fn take(&mut self, now: Instant) -> Vec<Ino> {
        let files = self.files.keys().copied().collect();
        self.files.retain(|_, until| until.is_some_and(|until| until > now));
        (self.accepted, self.write_backs) = (Some(0), self.write_backs + 1);
        files
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Processes, a volume and a clock.
    struct Scene {
        data: DirtyData,
        now: Cell<Instant>,
        free_bytes: Cell<u64>,
        dirtied: std::cell::RefCell<BTreeMap<u32, u64>>,
    }

    impl Scene {
        fn new(free_bytes: u64) -> Scene {
            let dirtied = (1..=20).map(|pid| (pid, 7 * MIB)).collect::<BTreeMap<_, _>>().into();
            let now = Cell::new(Instant::now());
            Scene { data: DirtyData::default(), now, free_bytes: Cell::new(free_bytes), dirtied }
        }

        fn with<T>(&self, act: impl FnOnce(Facts<'_>) -> T) -> T {
            let dirtied = |pid| self.dirtied.borrow().get(&pid).copied();
            let (now, free_bytes) = (self.now.get(), self.free_bytes.get());
            act(Facts { now, free_bytes, block_bytes: 4096, dirtied: &dirtied })
        }

        fn asks(&self, pid: u32, ino: u32) -> Result<Duration, WriteBackFirst> {
            let writer = Writer { pid, ino: Ino(ino), has_failed: false };
            self.with(|facts| self.data.admit(writer, facts, Vec::new))
        }

        fn takes(&self, bytes: u64) -> Option<WriteBackFirst> {
            self.with(|facts| self.data.before_taking(bytes, facts, Vec::new))
        }

        /// The kernel accepts a write.
        fn writes(&self, pid: u32, bytes: u64) {
            *self.dirtied.borrow_mut().get_mut(&pid).unwrap() += bytes;
        }

        /// The kernel writes back what has been accepted.
        fn ends(&self, first: &WriteBackFirst, bytes: u64) {
            self.free_bytes.set(self.free_bytes.get() - bytes);
            self.data.written_back(first);
        }
    }

    fn files(first: &WriteBackFirst) -> Vec<u32> {
        let mut files: Vec<u32> = first.files.iter().map(|ino| ino.0).collect();
        files.sort_unstable();
        files
    }

    #[test]
    fn data_stays_in_the_cache_while_it_certainly_fits() {
        let scene = Scene::new(20 * MIB);
        for _ in 0..9 {
            assert_eq!(scene.asks(1, 4), Ok(NO_VALIDITY));
            scene.writes(1, MIB);
        }
        assert_eq!(scene.asks(1, 4), Ok(NO_VALIDITY), "9 MiB and their nodes take at most 18");
        scene.writes(1, MIB);
        let first = scene.asks(1, 4).unwrap_err();
        assert_eq!(files(&first), [4]);
        assert_eq!(files(&scene.asks(1, 4).unwrap_err()), [4], "the data still needs its space");
        scene.ends(&first, 10 * MIB);
        let barrier = scene.asks(1, 4).unwrap_err();
        scene.ends(&barrier, 0);
        scene.ends(&barrier, 0);
        assert_eq!(scene.asks(1, 4), Ok(NO_VALIDITY), "10 MiB are left");
    }

    #[test]
    fn a_change_does_not_take_the_space_of_accepted_data() {
        let scene = Scene::new(20 * MIB);
        assert_eq!(scene.takes(19 * MIB), None, "nothing is accepted");
        scene.asks(1, 4).unwrap();
        scene.writes(1, 4 * MIB);
        assert_eq!(scene.takes(11 * MIB), None);
        let first = scene.takes(12 * MIB).unwrap();
        assert_eq!(files(&first), [4]);
        assert!(scene.takes(4096).is_some(), "it waits for the end of the write-back");
    }

    #[test]
    fn a_first_write_waits_for_the_data_of_others_when_little_is_left() {
        let scene = Scene::new(17 * MIB);
        scene.asks(1, 4).unwrap();
        scene.writes(1, 4096);
        scene.asks(2, 5).unwrap();
        scene.writes(2, MIB);
        let first = scene.asks(3, 6).unwrap_err();
        assert_eq!(files(&first), [4, 5, 6]);
        assert_eq!(first.files.last(), Some(&Ino(6)));
        scene.ends(&first, 2 * MIB);
        scene.asks(3, 6).unwrap();
    }

    #[test]
    fn data_that_the_kernel_has_written_back_does_not_count() {
        let scene = Scene::new(20 * MIB);
        scene.asks(1, 4).unwrap();
        for _ in 0..8 {
            scene.writes(1, 2 * MIB);
            scene.asks(1, 4).unwrap();
            scene.data.wrote(Ino(4), 2 * MIB);
            scene.data.wrote(Ino(99), 2 * MIB);
            scene.free_bytes.set(scene.free_bytes.get() - 2 * MIB);
        }
        scene.writes(1, 2 * MIB);
        assert!(scene.asks(1, 4).is_err());
    }

    #[test]
    fn a_closed_file_has_no_accepted_data() {
        let scene = Scene::new(4 * MIB);
        for ino in 4..100 {
            scene.asks(1, ino).unwrap();
            scene.writes(1, MIB);
            scene.data.close(Ino(ino));
            assert_eq!(scene.takes(3 * MIB), None);
        }
    }

    #[test]
    fn an_unknown_amount_is_written_back_before_each_write() {
        let scene = Scene::new(40 * MIB);
        scene.asks(99, 4).unwrap();
        for _ in 0..3 {
            let first = scene.asks(99, 4).unwrap_err();
            assert_eq!(files(&first), [4]);
            scene.ends(&first, 4096);
        }
        // A process that ends.
        scene.asks(1, 5).unwrap_err();
        scene.dirtied.borrow_mut().remove(&1);
        assert!(scene.takes(4096).is_some());
    }

    #[test]
    fn a_file_that_failed_is_written_back_before_each_write() {
        let scene = Scene::new(40 * MIB);
        let writer = Writer { pid: 1, ino: Ino(4), has_failed: true };
        let asks = || scene.with(|facts| scene.data.admit(writer, facts, Vec::new));
        assert_eq!((files(&asks().unwrap_err()), files(&asks().unwrap_err())), (vec![4], vec![4]));
    }

    #[test]
    fn writers_that_asked_before_the_tracking_are_waited_for() {
        let scene = Scene::new(200 * MIB);
        let open = || vec![Ino(4), Ino(5)];
        let writer = Writer { pid: 1, ino: Ino(4), has_failed: false };
        let asks = || scene.with(|facts| scene.data.admit(writer, facts, open));
        for _ in 0..3 {
            let first = asks().unwrap_err();
            assert_eq!(files(&first), [4, 5], "the writer of 5 need not ask yet");
            scene.ends(&first, 0);
        }
        scene.now.set(scene.now.get() + Duration::from_secs(1));
        assert_eq!(asks(), Ok(VALIDITY_WRITING));
    }

    #[test]
    fn a_write_back_of_an_earlier_tracking_does_not_end_a_later_one() {
        let scene = Scene::new(4 * MIB);
        let begin = || {
            scene.asks(1, 4).unwrap();
            scene.writes(1, 2 * MIB);
            scene.takes(4096).unwrap()
        };
        let early = begin();
        scene.data.stop();
        begin();
        scene.ends(&early, 0);
        assert!(scene.takes(4096).is_some(), "the later one is still under way");
    }
}
