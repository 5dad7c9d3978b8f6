//! Durability and background work: sync, checkpoints, cleaning, discards, and unmount.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use f2fs::{
    engine::{Discards, Engine, PendingSync, SyncScope, Upkeep},
    format::inode::flag,
    units::{Ino, SegNo},
};

use super::{Credentials, End, FileSystem, Result, rest::Call, to_errno};
use crate::{Errno, FsyncMode, credentials::Capability, ioctl::TrimRange, volume_lock::Writing};

/// Maximum time for pending discards at unmount (Linux, `DEF_UMOUNT_DISCARD_TIMEOUT`).
const LAST_DISCARDS: Duration = Duration::from_secs(5);

/// Maximum size of a range that is allocated or freed at once, in bytes.
pub(super) const PART_BYTES: u64 = 64 << 20;

impl FileSystem {
    /// Completes the pending steps of an operation. During each of them readers may enter, but no other writer.
    pub(super) fn settle(
        &self,
        volume: &mut Writing<'_>,
        pending: f2fs::Result<Option<PendingSync>>,
    ) -> f2fs::Result<()> {
        let mut next = pending?;
        while let Some(pending) = next {
            let broken_off = |_| f2fs::Error::Invalid(self.broken_off().into());
            let outcome = volume.let_readers_in(|| pending.run()).map_err(broken_off)?;
            next = volume.finish(outcome)?;
        }
        Ok(())
    }

    /// Locks the volume to write changes out. The only upkeep is that before each pending access time, and its
    /// errors are dropped: they could concern other files.
    pub(super) fn sync_lock(&self) -> Result<Writing<'_>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut volume = self.quiet_write_lock()?;
        self.apply_pending_atimes(&mut volume);
        Ok(volume)
    }

    /// Makes a file durable. Concurrent calls share the last flush of the device, during which the volume is not locked.
    pub fn fsync(&self, ino: Ino, scope: SyncScope) -> Result<()> {
        let mut volume = self.sync_lock()?;
        if let Some(nothing_to_do) = self.may_sync(&volume)? {
            return Ok(nothing_to_do);
        }
        let barriers = self.settings.fsync != FsyncMode::NoBarrier;
        let mut next = volume.begin_fsync(ino, scope).map_err(to_errno)?;
        while let Some(pending) = next {
            if pending.is_only_flush() {
                if !barriers {
                    return Ok(());
                }
                drop(volume);
                let outcome = self.volume.breaking_on_panic(|| pending.run());
                return match outcome.is_ok() {
                    true => Ok(()),
                    false => self.quiet_write_lock()?.flushed(outcome).map_err(to_errno),
                };
            }
            let run = if barriers { PendingSync::run } else { PendingSync::run_without_barrier };
            let outcome = volume.let_readers_in(|| run(pending))?;
            next = volume.finish(outcome).map_err(to_errno)?;
        }
        Ok(())
    }

    /// Makes everything durable. A volume at [rest](Self::rest) stays as an unmount leaves it.
    pub fn sync(&self) -> Result<()> {
        let mut volume = self.sync_lock()?;
        match self.may_sync(&volume)? {
            Some(nothing_to_do) => Ok(nothing_to_do),
            None if self.is_resting() => self.write_as_unmounted(&mut volume),
            None => self.write_checkpoint(&mut volume).map_err(to_errno),
        }
    }

    fn write_checkpoint(&self, volume: &mut Writing<'_>) -> f2fs::Result<()> {
        let pending = volume.begin_checkpoint();
        self.settle(volume, pending)
    }

    /// Called after names in `dirs` changed. Makes the change durable if the mount or one of the directories
    /// is synchronous.
    pub(super) fn sync_names(
        &self,
        volume: &mut Writing<'_>,
        dirs: impl IntoIterator<Item = Ino>,
    ) -> Result<()> {
        let is_synchronous =
            |dir: Ino| volume.inode(dir).is_ok_and(|inode| inode.has_flag(flag::SYNC | flag::DIRSYNC));
        let wanted = self.settings.dirsync || dirs.into_iter().any(is_synchronous);
        if !wanted || self.may_sync(volume)?.is_some() {
            return Ok(());
        }
        let before = volume.last_checkpoint().version;
        match self.write_checkpoint(volume) {
            // The names are durable. A failed write of a file's data is reported when that file is synced.
            Err(_) if volume.last_checkpoint().version != before => Ok(()),
            done => done.map_err(to_errno),
        }
    }

    /// Returns `None` if there may be something to make durable, and `Some` if there cannot be. Fails if
    /// earlier changes may be lost.
    pub(super) fn may_sync(&self, volume: &Engine) -> Result<Option<()>> {
        match volume.read_only_reason() {
            _ if self.settings.read_only || !self.settings.checkpoints => Ok(Some(())),
            Some(_) => Err(Errno::IO),
            None => Ok(None),
        }
    }

    /// Cleans one section if that is worthwhile; called in idle times. It does not count as a request. It breaks off if
    /// another writer waits for the volume.
    pub fn clean_in_idle_time(&self) -> Result<()> {
        if !self.settings.checkpoints {
            return Ok(());
        }
        let mut volume = self.quiet_write_lock()?;
        if self.is_resting() || volume.read_only_reason().is_some() || !volume.is_fragmented() {
            return Ok(());
        }
        let mut next = volume.begin_clean_a_little(self.settings.cleaning).map_err(to_errno)?;
        while let Some(pending) = next {
            let outcome = volume.let_readers_in(|| pending.run())?;
            // One of the writers is this one.
            next = match self.volume.writers() > 1 {
                true => volume.finish_without_cleaning(outcome),
                false => volume.finish(outcome),
            }
            .map_err(to_errno)?;
        }
        Ok(())
    }

    /// Issues up to `requests` pending discards without locking the volume. Returns true if there are more. At
    /// [rest](Self::rest) they wait for the next change or the unmount.
    pub fn issue_discards(&self, requests: u32) -> bool {
        !self.is_resting() && self.issue_some(requests)
    }

    fn issue_some(&self, requests: u32) -> bool {
        // After an error of the device the others are not issued for now; no caller waits for them.
        (0..requests).all(|_| self.discards().issue().is_ok_and(|blocks| blocks > 0))
            && !self.discards().is_empty()
    }

    /// Discards free blocks and returns the number of bytes. A request for a part of the volume covers all of
    /// it, which is harmless for free blocks. Other operations proceed while the device works. Between any two
    /// requests it ends with EINTR if `is_interrupted` says so.
    pub fn trim(
        &self,
        caller: Credentials,
        range: TrimRange,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<u64> {
        self.trim_within(&self.begin_call(caller, &|| false)?, range, is_interrupted)
    }

    /// [Discards free blocks](Self::trim) within a call.
    pub fn trim_within(
        &self,
        call: &Call<'_>,
        range: TrimRange,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<u64> {
        if !call.caller.has(Capability::SysAdmin) {
            return Err(Errno::PERM);
        }
        if !self.settings.checkpoints {
            // Blocks that the last checkpoint needs must stay, and only a new checkpoint could tell them from
            // free ones.
            return Err(Errno::OPNOTSUPP);
        }
        let mut volume = call.write_lock()?;
        let block_size = volume.geometry().block_size;
        let volume_bytes = volume.superblock().volume_bytes();
        // As in Linux (`f2fs_trim_fs`).
        if range.start >= volume_bytes || range.length < block_size.bytes() as u64 {
            return Err(Errno::INVAL);
        }
        let least_blocks = u32::try_from(range.least >> block_size.log()).unwrap_or(u32::MAX);
        let pending = volume.begin_trim();
        self.settle(&mut volume, pending).map_err(to_errno)?;
        drop(volume);
        let trimmed = loop {
            if let Some(blocks) = self.trim_all(call, least_blocks, is_interrupted)? {
                break blocks;
            }
        };
        Ok((trimmed << block_size.log()).min(range.length))
    }

    /// Discards all free blocks in runs of at least `least_blocks`, and returns their number. Returns `None` if the volume has
    /// grown meanwhile: its queue of discards was then dropped, and another one has taken its place.
    fn trim_all(
        &self,
        call: &Call<'_>,
        least_blocks: u32,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<u64>> {
        let discards = self.discards();
        let failed = discards.failed();
        let (mut trimmed, mut from) = (0, Some(SegNo(0)));
        while let Some(segment) = from {
            issue_all(&discards, is_interrupted)?;
            let mut volume = call.write_lock()?;
            if !Arc::ptr_eq(volume.discards(), &discards) {
                return Ok(None);
            }
            let (blocks, next) = volume.trim_from(segment, least_blocks).map_err(to_errno)?;
            (trimmed, from) = (trimmed + blocks, next);
        }
        issue_all(&discards, is_interrupted)?;
        if discards.is_paused() && !discards.is_empty() {
            // The volume has come to rest.
            return Err(Errno::ROFS);
        }
        if discards.failed() != failed {
            // The background thread had issued one.
            return Err(Errno::IO);
        }
        let is_same = Arc::ptr_eq(self.read_lock()?.discards(), &discards);
        Ok(is_same.then_some(trimmed))
    }

    /// Frees an inode that nobody uses any more, a large file in parts between which readers have the volume.
    /// A failed upkeep, which could concern other files, does not keep the inode on the volume.
    pub(super) fn release(&self, ino: Ino) -> Result<()> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut volume = self.quiet_write_lock()?;
        let mut prepared = self.prepare_change(&mut volume);
        while prepared.is_ok() && volume.begin().shrink_nameless(ino, PART_BYTES).unwrap_or(false) {
            prepared = self.between_parts(&mut volume);
        }
        volume.begin().release(ino).map_err(to_errno)
    }

    /// Between two parts of a long operation: readers have a turn, and the volume for the upkeep that is due.
    pub(super) fn between_parts(&self, volume: &mut Writing<'_>) -> Result<()> {
        volume.let_readers_in(|| ())?;
        let upkeep = volume.begin_upkeep();
        self.settle(volume, upkeep).map_err(to_errno)
    }

    /// As [`between_parts`](Self::between_parts), in an operation that frees space: that the upkeep finds none does not
    /// end it.
    pub(super) fn between_freed_parts(&self, volume: &mut Writing<'_>) -> Result<()> {
        match self.between_parts(volume) {
            Err(Errno::NOSPC) => Ok(()),
            done => done,
        }
    }

    /// Ends the mount: frees unlinked inodes, makes everything durable, marks the volume as cleanly
    /// unmounted, and closes its devices. A second call does nothing.
    pub fn unmount(&self) -> Result<(), f2fs::Error> {
        self.volume.take(|taken| match taken {
            Ok(volume) => volume.map_or(Ok(()), |volume| self.close_volume(volume)),
            // A change was interrupted halfway. The last checkpoint and the fsyncs since then are consistent,
            // so nothing more is written.
            Err(broken) => {
                self.discards().stop();
                drop(broken);
                Err(f2fs::Error::Invalid(self.broken_off().into()))
            }
        })
    }

    fn close_volume(&self, mut volume: Engine) -> Result<(), f2fs::Error> {
        let ended = if volume.read_only_reason().is_some() { Ok(()) } else { self.leave_clean(&mut volume) };
        self.discards().resume();
        let until = Instant::now() + LAST_DISCARDS;
        while volume.read_only_reason().is_none() && Instant::now() < until && self.issue_some(1) {}
        // From here on only the volume uses the device.
        self.discards().stop();
        let met_damage = volume.io().met_damage();
        let unmount_error = match &ended {
            Err(error) => Some(error.to_string()),
            Ok(()) if volume.read_only_reason().is_some() && !self.settings.read_only => {
                Some("could not be unmounted cleanly; the next mount recovers all synced changes".into())
            }
            Ok(()) => {
                self.fault().map(|fault| format!("a request failed because of an internal error: {fault}"))
            }
        };
        let failure = match (volume.read_only_reason(), &ended) {
            (Some(reason), _) => Some(reason.to_string()),
            // Damage is reported separately, and everything undamaged has become durable.
            (None, Err(error)) if !met_damage => Some(error.to_string()),
            _ => None,
        };
        // It is set only once, because the volume is closed only once.
        let _ = self.end.set(End { met_damage, failure, unmount_error });
        ended
    }

    fn leave_clean(&self, volume: &mut Engine) -> Result<(), f2fs::Error> {
        let mut ended = Ok(());
        volume.set_upkeep(Upkeep::ByChange);
        while let Some((ino, atime)) = self.pending_atimes.take_one() {
            // A volume without space for it is left clean all the same.
            let _ = super::atimes::set_atime(volume, ino, atime);
        }
        // A request that has taken an inode from `inodes` may come too late to release it.
        for ino in self.inodes.drain().into_iter().chain(volume.orphans().clone()) {
            // A damaged inode stays on the volume; everything else becomes durable.
            ended = ended.and(volume.begin(f2fs::engine::Caller::ADMIN).release(ino));
        }
        if self.settings.checkpoints { ended.and(volume.unmount()) } else { ended }
    }
}

/// Issues all discards that wait.
fn issue_all(discards: &Discards, is_interrupted: &dyn Fn() -> bool) -> Result<()> {
    while discards.issue().map_err(to_errno)? > 0 {
        if is_interrupted() {
            return Err(Errno::INTR);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use f2fs::{
        engine::{Options, SetAttr, XattrMode},
        units::Time,
    };

    use super::*;
    use crate::{
        Settings,
        file_system::{
            Change, GroupIdBit, OpenFor, OpenMode, WriteMode,
            watched::{BYTES, ROOT_USER, create, mounted},
        },
        ioctl::Request,
    };

    #[test]
    fn readers_have_the_volume_while_the_device_is_flushed() {
        let (device, fs) = mounted(Settings::default());
        let root = fs.root().unwrap();
        create(&fs, b"one");
        fs.sync().unwrap();
        assert_eq!(device.take(), (2, 0), "a checkpoint");
        create(&fs, b"two");
        fs.fsync(root, SyncScope::Everything).unwrap();
        assert_eq!(device.take(), (2, 0), "a checkpoint for a directory");
        let ino = create(&fs, b"three");
        fs.set_xattr(ROOT_USER, ino, b"user.large", &[1; 2000], XattrMode::Set, GroupIdBit::ByGroup).unwrap();
        fs.fsync(ino, SyncScope::Everything).unwrap();
        assert_eq!(device.take(), (2, 0), "attributes, and then the mark");
        let mut label = [0; 256];
        label[..3].copy_from_slice(b"new");
        fs.ioctl(ROOT_USER, root, OpenFor::Reading, &Request::parse(0x4100_9432, &label).unwrap()).unwrap();
        assert_eq!(device.take(), (2, 0), "two superblocks");
        assert_eq!(fs.read_lock().unwrap().superblock().label, "new");

        let (device, fs) = mounted(Settings { dirsync: true, ..Settings::default() });
        create(&fs, b"one");
        assert_eq!(device.take(), (2, 0), "a synchronous directory");
    }

    #[test]
    fn readers_have_the_volume_while_a_checkpoint_makes_room_for_a_writer() {
        let (device, fs) = mounted(Settings::default());
        let root = fs.root().unwrap();
        // More than fits in the caches, and less than the volume holds.
        const KEPT: u32 = 20;
        let name = |round: u32| round.to_string().into_bytes();
        for round in 0..300 {
            let ino = create(&fs, &name(round));
            fs.write(ROOT_USER, ino, 0, &vec![1; 1 << 20], WriteMode::default()).unwrap();
            fs.forget(ino, 1, || {});
            if round >= KEPT {
                fs.unlink(root, &name(round - KEPT)).unwrap();
            }
        }
        let (flushes, _) = device.take();
        assert!(flushes > 2, "{flushes} flushes for three times the capacity of the volume");
    }

    /// An fsync applies pending access times, and does due upkeep before each of them. Meanwhile
    /// readers see the pending time.
    #[test]
    fn readers_have_the_volume_during_the_upkeep_before_a_late_access_time() {
        let (device, fs) = mounted(Settings::default());
        let root = fs.root().unwrap();
        let other = fs.lookup(root, b"other").unwrap().ino;
        const KEPT: u32 = 20;
        let name = |round: u32| round.to_string().into_bytes();
        let mut flushes = 0;
        for round in 0..300 {
            let ino = create(&fs, &name(round));
            if round >= KEPT {
                fs.unlink(root, &name(round - KEPT)).unwrap();
            }
            fs.write(ROOT_USER, ino, 0, &vec![1; 1 << 20], WriteMode::default()).unwrap();
            device.take();
            fs.pending_atimes.add(other, Time { seconds: round.into(), nanoseconds: 0 });
            device.least_atime.store(round.into(), Ordering::Relaxed);
            fs.fsync(ino, SyncScope::Everything).unwrap();
            flushes = flushes.max(device.take().0);
            fs.forget(ino, 1, || {});
            assert_eq!(fs.stat(other).unwrap().atime.seconds, i64::from(round));
        }
        assert!(flushes > 2, "the upkeep was never due when a file was synced");
    }

    #[test]
    fn readers_leave_their_access_time_to_the_next_writer() {
        let (device, fs) = mounted(Settings { atime: crate::Atime::Strict, ..Settings::default() });
        let root = fs.root().unwrap();
        let other = fs.lookup(root, b"other").unwrap().ino;
        // While the volume is locked for reading here, a reader that tried to change it would deadlock.
        let reading = fs.read_lock().unwrap();
        fs.open(ROOT_USER, other, OpenMode { only_reads: true, ..OpenMode::default() }).unwrap();
        fs.read(other, 0, &mut [0; 8]).unwrap();
        drop(reading);
        assert!(!fs.pending_atimes.is_empty());
        fs.apply_pending_atimes_in_background().unwrap();
        assert!(fs.pending_atimes.is_empty());
        // A time set by a caller replaces the pending time of an earlier read.
        fs.pending_atimes.add(other, Time { seconds: 5, nanoseconds: 0 });
        let atime = Some(Time { seconds: 7, nanoseconds: 0 });
        let set = SetAttr { atime, ..SetAttr::default() };
        assert_eq!(
            fs.change(ROOT_USER, other, &Change { set, ..Change::default() }).unwrap().atime.seconds,
            7
        );
        fs.pending_atimes.add(other, Time { seconds: 9, nanoseconds: 0 });
        fs.unmount().unwrap();
        let volume = Engine::open(device, Options::new(Time::default)).unwrap();
        assert_eq!(volume.stat(other).unwrap().atime.seconds, 9);
    }

    /// Between the pieces in which the volume writes, a checkpoint is often due on a volume that is nearly full.
    #[test]
    fn readers_have_the_volume_while_a_checkpoint_makes_room_within_a_long_write() {
        let (device, fs) = mounted(Settings::default());
        let ino = create(&fs, b"file");
        // Each lies in two pieces of 4 MiB, and segments end within both.
        for round in 0..2000 {
            let offset = (round % 20 + 1) * (4 << 20) - (900 << 10);
            fs.write(ROOT_USER, ino, offset, &vec![1; 1000 << 10], WriteMode::default()).unwrap();
        }
        let (flushes, _) = device.take();
        assert!(flushes > 20, "{flushes} flushes for 20 times the capacity of the volume");
    }

    #[test]
    fn readers_have_a_turn_within_long_operations() {
        let (_, fs) = mounted(Settings::default());
        let root = fs.root().unwrap();
        let ino = create(&fs, b"large");
        let turns = |act: &dyn Fn()| {
            let before = fs.volume.reader_turns();
            act();
            fs.volume.reader_turns() - before
        };
        const LONG: u64 = PART_BYTES + (4 << 20);
        const PUNCH_HOLE: u32 = 3;
        const ZERO_RANGE: u32 = 0x10;
        let allocate = |mode| turns(&|| fs.allocate(ROOT_USER, ino, 4096, LONG, mode).unwrap());
        assert!(allocate(0) > 1);
        let sectors = || fs.stat(ino).unwrap().sectors;
        assert_eq!(fs.stat(ino).unwrap().size, 4096 + LONG);
        assert!(sectors() >= LONG / 512);
        assert!(allocate(ZERO_RANGE) > 1);
        assert!(allocate(PUNCH_HOLE) > 1);
        assert!(sectors() < LONG / 512 / 100, "only nodes are left");
        assert!(allocate(0) > 1);
        let shorten = Change { size: Some(8192), ..Change::default() };
        assert!(turns(&|| _ = fs.change(ROOT_USER, ino, &shorten).unwrap()) > 1);
        assert_eq!((fs.stat(ino).unwrap().size, sectors() < LONG / 512 / 100), (8192, true));
        assert!(allocate(0) > 1);
        let allocated = sectors();
        // All of it, or nothing.
        assert_eq!(fs.allocate(ROOT_USER, ino, 0, 2 * BYTES, 0), Err(Errno::NOSPC));
        assert_eq!(sectors(), allocated);
        let free = fs.space().unwrap().0.free_blocks;
        fs.unlink(root, b"large").unwrap();
        assert!(turns(&|| fs.forget(ino, 1, || {})) > 1);
        assert!(fs.space().unwrap().0.free_blocks >= free + LONG / 4096);
        fs.unmount().unwrap();
    }

    #[test]
    fn readers_have_a_turn_within_the_fsync_of_many_pages() {
        // The data is flushed before the nodes.
        fsync_many(FsyncMode::Posix, 2);
        fsync_many(FsyncMode::NoBarrier, 0);
    }

    fn fsync_many(fsync: FsyncMode, flushes: usize) {
        const PAGES: u64 = 128;
        let (device, fs) = mounted(Settings { fsync, ..Settings::default() });
        let ino = create(&fs, b"file");
        fs.write(ROOT_USER, ino, 0, &vec![1; PAGES as usize * 8192], WriteMode::default()).unwrap();
        fs.sync().unwrap();
        // Every second block, so that no two of them are written at once.
        for page in 0..PAGES {
            fs.write(ROOT_USER, ino, page * 8192, b"new", WriteMode::default()).unwrap();
        }
        device.take();
        let before = fs.volume.reader_turns();
        fs.fsync(ino, SyncScope::Everything).unwrap();
        let turns = fs.volume.reader_turns() - before;
        assert!(turns >= 4, "{turns} turns for {PAGES} pages");
        assert_eq!(device.take().0, flushes, "{fsync:?}");
        fs.fsync(ino, SyncScope::Everything).unwrap();
        let mut content = [0; 4];
        for page in 0..PAGES {
            fs.read(ino, page * 8192, &mut content).unwrap();
            assert_eq!(&content, b"new\x01");
        }
    }

    #[test]
    fn a_trim_ends_when_it_is_interrupted_and_readers_have_the_volume() {
        let (device, fs) = mounted(Settings::default());
        let range = TrimRange { start: 0, length: u64::MAX, least: 0 };
        let asked = std::cell::Cell::new(0);
        let after_two = || {
            asked.set(asked.get() + 1);
            asked.get() == 2
        };
        assert_eq!(fs.trim(ROOT_USER, range, &after_two), Err(Errno::INTR));
        assert_eq!(device.take().1, 2, "discards before the interrupt");
        assert!(fs.trim(ROOT_USER, range, &|| false).unwrap() > BYTES / 4);
    }

    #[test]
    fn a_trim_fails_if_the_background_thread_issued_one_of_its_requests_in_vain() {
        let (device, fs) = mounted(Settings::default());
        let range = TrimRange { start: 0, length: u64::MAX, least: 0 };
        let is_first = AtomicBool::new(true);
        let in_between = || {
            if is_first.swap(false, Ordering::Relaxed) {
                device.fails.store(true, Ordering::Relaxed);
                fs.issue_discards(1);
                assert!(!device.fails.load(Ordering::Relaxed), "a request was queued");
            }
            false
        };
        assert_eq!(fs.trim(ROOT_USER, range, &in_between), Err(Errno::IO));
        assert!(fs.trim(ROOT_USER, range, &|| false).is_ok());
    }

    #[test]
    fn readers_have_a_turn_among_many_pending_access_times() {
        let (_, fs) = mounted(Settings::default());
        let files: Vec<Ino> = (0..200u32).map(|n| create(&fs, n.to_string().as_bytes())).collect();
        for ino in &files {
            fs.pending_atimes.add(*ino, Time { seconds: 9, nanoseconds: 0 });
        }
        let before = fs.volume.reader_turns();
        fs.apply_pending_atimes_in_background().unwrap();
        assert!(fs.volume.reader_turns() - before > 5);
        assert!(fs.pending_atimes.is_empty());
        assert!(files.iter().all(|ino| fs.stat(*ino).unwrap().atime.seconds == 9));
    }

    #[test]
    fn readers_have_the_volume_while_the_device_discards() {
        let (device, fs) = mounted(Settings::default());
        let root = fs.root().unwrap();
        let ino = create(&fs, b"large");
        fs.write(ROOT_USER, ino, 0, &vec![1; 4 << 20], WriteMode::default()).unwrap();
        fs.sync().unwrap();
        fs.unlink(root, b"large").unwrap();
        fs.forget(ino, 1, || {});
        fs.sync().unwrap();
        assert_eq!(device.take(), (4, 0), "discards wait until they are issued");
        while fs.issue_discards(1) {}
        let (_, discards) = device.take();
        assert!((1..4).contains(&discards), "{discards} discards for 4 MiB");
        let mut range = [0; 24];
        range[8..16].fill(0xFF);
        let trimmed = fs
            .ioctl(ROOT_USER, root, OpenFor::Reading, &Request::parse(0xC018_5879, &range).unwrap())
            .unwrap();
        assert!(u64::from_ne_bytes(trimmed[8..16].try_into().unwrap()) > BYTES / 4);
        assert!(device.take().1 > 0);
        fs.unmount().unwrap();
    }
}
