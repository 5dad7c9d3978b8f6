//! Durability, and what goes on without a request: syncing, checkpoints, cleaning, discards, and the end.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use f2fs::{
    Volume,
    format::inode::flag,
    units::{Ino, SegNo},
    volume::PendingSync,
};

use super::{Answer, End, FileSystem, to_errno};
use crate::{Errno, FsyncMode, ioctl::TrimRange, volume_lock::Writing};

/// How long the end of a mount goes on telling the device what is free (Linux, `DEF_UMOUNT_DISCARD_TIMEOUT`).
const LAST_DISCARDS: Duration = Duration::from_secs(5);

impl FileSystem {
    /// Does what is left of an operation. Readers have the volume while the device works, and no other writer.
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

    /// The volume, to write what has changed: no upkeep, of which the errors would be those of other files.
    fn sync_lock(&self) -> Answer<Writing<'_>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut volume = self.quiet_write_lock()?;
        if volume.read_only_reason().is_none() {
            self.late_atimes.apply(&mut volume);
        }
        Ok(volume)
    }

    /// Makes a file durable. One flush of the device serves all who wait for one, and nobody else waits for it.
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Answer<()> {
        let mut volume = self.sync_lock()?;
        if let Some(nothing_to_do) = self.may_sync(&volume)? {
            return Ok(nothing_to_do);
        }
        let mut next = volume.begin_fsync(ino, data_only).map_err(to_errno)?;
        while let Some(pending) = next {
            if pending.is_only_flush() {
                if self.settings.fsync == FsyncMode::NoBarrier {
                    return Ok(());
                }
                let device = volume.device().clone();
                drop(volume);
                return match self.flusher.flush(&*device) {
                    Ok(()) => Ok(()),
                    failed => self.quiet_write_lock()?.flushed(failed).map_err(to_errno),
                };
            }
            let outcome = volume.let_readers_in(|| pending.run())?;
            next = volume.finish(outcome).map_err(to_errno)?;
        }
        Ok(())
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Answer<()> {
        let mut volume = self.sync_lock()?;
        match self.may_sync(&volume)? {
            Some(nothing_to_do) => Ok(nothing_to_do),
            None => self.write_checkpoint(&mut volume).map_err(to_errno),
        }
    }

    fn write_checkpoint(&self, volume: &mut Writing<'_>) -> f2fs::Result<()> {
        let pending = volume.begin_checkpoint();
        self.settle(volume, pending)
    }

    /// After a change of names in directories: makes it durable where the mount or a flag of one of them asks for that.
    pub(super) fn sync_names(
        &self,
        volume: &mut Writing<'_>,
        dirs: impl IntoIterator<Item = Ino>,
    ) -> Answer<()> {
        let is_synchronous =
            |dir: Ino| volume.inode(dir).is_ok_and(|inode| inode.has_flag(flag::SYNC | flag::DIRSYNC));
        let wanted = self.settings.dirsync || dirs.into_iter().any(is_synchronous);
        if !wanted || self.may_sync(volume)?.is_some() {
            return Ok(());
        }
        let before = volume.last_checkpoint().version;
        match self.write_checkpoint(volume) {
            // The names are durable. What could not be written of a file is told to who syncs that one.
            Err(_) if volume.last_checkpoint().version != before => Ok(()),
            done => done.map_err(to_errno),
        }
    }

    /// Whether there may be something to make durable; `Some` where there cannot, and an error where what was
    /// written may be lost.
    fn may_sync(&self, volume: &Volume) -> Answer<Option<()>> {
        match volume.read_only_reason() {
            _ if self.settings.read_only || !self.settings.checkpoints => Ok(Some(())),
            Some(_) => Err(Errno::IO),
            None => Ok(None),
        }
    }

    /// What is done in idle times: one section is cleaned, where that is worthwhile. No request, so it does not
    /// count as one.
    pub fn clean_in_idle_time(&self) -> Answer<()> {
        if !self.settings.checkpoints {
            return Ok(());
        }
        let mut volume = self.quiet_write_lock()?;
        if volume.read_only_reason().is_none() && volume.is_fragmented() {
            let pending = volume.begin_clean_a_little(self.settings.cleaning);
            self.settle(&mut volume, pending).map_err(to_errno)?;
        }
        Ok(())
    }

    /// Tells the device of up to so many runs of blocks that are free; whether there are more. The volume is not locked
    /// meanwhile.
    pub fn issue_discards(&self, requests: u32) -> bool {
        // A device that refuses one is not asked for the others, and nobody waits for it.
        (0..requests).all(|_| self.discards.issue().is_ok_and(|blocks| blocks > 0))
            && !self.discards.is_empty()
    }

    /// Tells the device what is free, and says how many bytes that were. What a part of the volume is asked for is done
    /// for all of it: nobody misses free blocks. Others have the volume while the device works.
    pub(super) fn trim(&self, range: TrimRange) -> Answer<u64> {
        if !self.settings.checkpoints {
            // What the last checkpoint needs must stay, and only another one would tell it from what is free.
            return Err(Errno::OPNOTSUPP);
        }
        let mut volume = self.write_lock()?;
        let block_size = volume.geometry().block_size;
        let volume_bytes = volume.superblock().blocks << block_size.log();
        // As Linux has it (`f2fs_trim_fs`).
        if range.start >= volume_bytes || range.length < block_size.bytes() as u64 {
            return Err(Errno::INVAL);
        }
        let least_blocks = u32::try_from(range.least >> block_size.log()).unwrap_or(u32::MAX);
        let pending = volume.begin_trim();
        self.settle(&mut volume, pending).map_err(to_errno)?;
        drop(volume);
        let (mut trimmed, mut from) = (0, Some(SegNo(0)));
        while let Some(segment) = from {
            while self.discards.issue().map_err(to_errno)? > 0 {}
            let (blocks, next) = self.write_lock()?.trim_from(segment, least_blocks).map_err(to_errno)?;
            (trimmed, from) = (trimmed + blocks, next);
        }
        while self.discards.issue().map_err(to_errno)? > 0 {}
        Ok((trimmed << block_size.log()).min(range.length))
    }

    /// Ends it all: unlinked inodes go, everything becomes durable, the volume is marked as cleanly unmounted, and
    /// its devices are closed. Nothing is left to do the second time.
    pub fn unmount(&self) -> Result<(), f2fs::Error> {
        self.volume.take(|taken| match taken {
            Ok(volume) => volume.map_or(Ok(()), |volume| self.close_volume(volume)),
            // Something was done by half: what the last checkpoint and the fsyncs since then say is whole.
            Err(broken) => {
                self.discards.close();
                drop(broken);
                Err(f2fs::Error::Invalid(self.broken_off().into()))
            }
        })
    }

    fn close_volume(&self, mut volume: Volume) -> Result<(), f2fs::Error> {
        let ended = if volume.read_only_reason().is_some() { Ok(()) } else { self.leave_clean(&mut volume) };
        let until = Instant::now() + LAST_DISCARDS;
        while volume.read_only_reason().is_none() && Instant::now() < until && self.issue_discards(1) {}
        // From here on nobody but the volume has the device.
        self.discards.close();
        let met_damage = volume.io().met_damage();
        let complaint = match &ended {
            Err(error) => Some(error.to_string()),
            Ok(()) if volume.read_only_reason().is_some() && !self.settings.read_only => {
                Some("could not be left clean; the next mount brings back what was synced".into())
            }
            Ok(()) => {
                self.fault().map(|fault| format!("a request failed by a fault of this program: {fault}"))
            }
        };
        let failure = match (volume.read_only_reason(), &ended) {
            (Some(reason), _) => Some(reason.to_string()),
            // Damage is told as such, and what is not damaged has become durable.
            (None, Err(error)) if !met_damage => Some(error.to_string()),
            _ => None,
        };
        // It ends once.
        let _ = self.end.set(End { met_damage, failure, complaint });
        ended
    }

    fn leave_clean(&self, volume: &mut Volume) -> Result<(), f2fs::Error> {
        let mut ended = Ok(());
        for ino in self.inodes.drain() {
            // One that is damaged stays where it is, and everything else becomes durable all the same.
            ended = ended.and(volume.release(ino));
        }
        if self.settings.checkpoints { ended.and(volume.unmount()) } else { ended }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex, OnceLock, Weak},
    };

    use block::{Device, Geometry, MemoryDevice, Verb};
    use f2fs::{
        mkfs::{self, DeviceSize, NewVolume, Plan},
        units::Time,
        volume::{NewNode, Options, XattrMode},
    };

    use super::*;
    use crate::{
        MountOptions, Settings,
        file_system::{Caller, OpenMode, WriteMode},
        ioctl::Request,
    };

    const BYTES: u64 = 128 << 20;
    const ROOT_USER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

    /// A device that opens and reads a file of the volume on it during each flush and each discard, if the volume is open
    /// to readers, and remembers whether it was.
    struct Watched {
        inner: MemoryDevice,
        fs: OnceLock<Weak<FileSystem>>,
        seen: Mutex<Vec<(Verb, bool)>>,
    }

    impl Watched {
        fn watch(&self, verb: Verb) {
            let Some(fs) = self.fs.get().and_then(Weak::upgrade) else { return };
            let is_open = fs.volume.is_open_to_readers();
            if is_open {
                let ino = fs.lookup(fs.root().unwrap(), b"other").unwrap().ino;
                fs.open(ROOT_USER, ino, OpenMode { only_reads: true, ..OpenMode::default() }).unwrap();
                let mut content = [0; 8];
                assert_eq!(fs.read(ino, 0, &mut content), Ok(5));
                assert_eq!(&content[..5], b"other");
            }
            self.seen.lock().unwrap().push((verb, is_open));
        }

        /// Flushes and discards since the last call, all of which readers had the volume in.
        fn take(&self) -> (usize, usize) {
            let seen = std::mem::take(&mut *self.seen.lock().unwrap());
            assert!(seen.iter().all(|(_, is_open)| *is_open), "readers had to wait: {seen:?}");
            let count = |verb| seen.iter().filter(|(seen, _)| *seen == verb).count();
            (count(Verb::Flush), count(Verb::Discard))
        }
    }

    impl Device for Watched {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }
        fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
            self.inner.read(offset_bytes, buf)
        }
        fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
            self.inner.write(offset_bytes, buf)
        }
        fn flush(&self) -> io::Result<()> {
            self.watch(Verb::Flush);
            self.inner.flush()
        }
        fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
            self.watch(Verb::Discard);
            self.inner.discard(offset_bytes, length_bytes)
        }
    }

    fn mounted(options: &MountOptions) -> (Arc<Watched>, Arc<FileSystem>) {
        let (fs, seen) = (OnceLock::new(), Mutex::default());
        let device = Arc::new(Watched { inner: MemoryDevice::new(BYTES), fs, seen });
        let size = DeviceSize { path: String::new(), bytes: BYTES };
        let plan = Plan::new(&mkfs::Options::new([7; 16]), &[size]).unwrap();
        let usual = || Options { discard: true, ..Options::new(Time::default) };
        let mut volume = NewVolume::begin(device.clone(), &plan, true, usual()).unwrap().finish().unwrap();
        let root = volume.superblock().root_ino;
        let ino = volume.create(root, b"other", &NewNode::new(0o100_644)).unwrap();
        volume.write(ino, 0, b"other").unwrap();
        volume.unmount().unwrap();
        drop(volume);
        let volume = Volume::open(device.clone(), usual()).unwrap();
        let fs = Arc::new(FileSystem::new(volume, Weak::new(), Settings::from(options)));
        assert!(device.fs.set(Arc::downgrade(&fs)).is_ok());
        (device, fs)
    }

    fn create(fs: &FileSystem, name: &[u8]) -> Ino {
        fs.create(ROOT_USER, fs.root().unwrap(), name, 0o100_644, 0, None).unwrap().ino
    }

    #[test]
    fn readers_have_the_volume_while_the_device_is_flushed() {
        let (device, fs) = mounted(&MountOptions::default());
        let root = fs.root().unwrap();
        create(&fs, b"one");
        fs.sync().unwrap();
        assert_eq!(device.take(), (2, 0), "a checkpoint");
        create(&fs, b"two");
        fs.fsync(root, false).unwrap();
        assert_eq!(device.take(), (2, 0), "a checkpoint for a directory");
        let ino = create(&fs, b"three");
        fs.set_xattr(ROOT_USER, ino, b"user.large", &[1; 2000], XattrMode::Set, None).unwrap();
        fs.fsync(ino, false).unwrap();
        assert_eq!(device.take(), (2, 0), "attributes, and then the mark");
        let mut label = [0; 256];
        label[..3].copy_from_slice(b"new");
        fs.ioctl(ROOT_USER, root, false, &Request::parse(0x4100_9432, &label).unwrap()).unwrap();
        assert_eq!(device.take(), (2, 0), "two superblocks");
        assert_eq!(fs.read_lock().unwrap().superblock().label, "new");

        let (device, fs) = mounted(&MountOptions { dirsync: true, ..MountOptions::default() });
        create(&fs, b"one");
        assert_eq!(device.take(), (2, 0), "a synchronous directory");
    }

    #[test]
    fn readers_have_the_volume_while_a_checkpoint_makes_room_for_a_writer() {
        let (device, fs) = mounted(&MountOptions::default());
        let root = fs.root().unwrap();
        // More than waits in memory, and less than the volume has room for.
        const KEPT: u32 = 20;
        let name = |round: u32| round.to_string().into_bytes();
        for round in 0..300 {
            let ino = create(&fs, &name(round));
            fs.write(ROOT_USER, ino, 0, &vec![1; 1 << 20], WriteMode::default()).unwrap();
            fs.forget(ino, 1);
            if round >= KEPT {
                fs.unlink(root, &name(round - KEPT)).unwrap();
            }
        }
        let (flushes, _) = device.take();
        assert!(flushes > 2, "{flushes} flushes for three times as much as the volume has room for");
    }

    #[test]
    fn readers_have_the_volume_while_the_device_discards() {
        let (device, fs) = mounted(&MountOptions::default());
        let root = fs.root().unwrap();
        let ino = create(&fs, b"large");
        fs.write(ROOT_USER, ino, 0, &vec![1; 4 << 20], WriteMode::default()).unwrap();
        fs.sync().unwrap();
        fs.unlink(root, b"large").unwrap();
        fs.forget(ino, 1);
        fs.sync().unwrap();
        assert_eq!(device.take(), (4, 0), "discards wait until they are issued");
        while fs.issue_discards(1) {}
        let (_, discards) = device.take();
        assert!((1..4).contains(&discards), "{discards} discards for 4 MiB");
        let mut range = [0; 24];
        range[8..16].fill(0xFF);
        let trimmed =
            fs.ioctl(ROOT_USER, root, false, &Request::parse(0xC018_5879, &range).unwrap()).unwrap();
        assert!(u64::from_ne_bytes(trimmed[8..16].try_into().unwrap()) > BYTES / 4);
        assert!(device.take().1 > 0);
        fs.unmount().unwrap();
    }
}
