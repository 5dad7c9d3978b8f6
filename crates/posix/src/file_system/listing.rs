//! Directory listings.

use f2fs::{
    engine::{DirEntry, Engine, Stat},
    units::Ino,
};

use super::{FileSystem, Result, to_errno};

impl FileSystem {
    /// Calls `each` with the entries of a directory from a cookie on, until it returns false. Damage is an error only if
    /// no entry comes before it; so the part of a listing that begins there fails.
    pub fn list(
        &self,
        dir: Ino,
        cookie: u64,
        each: impl FnMut(&Engine, &DirEntry) -> f2fs::Result<bool>,
    ) -> Result<()> {
        self.renew_dir_atime(dir, cookie);
        self.list_from(&*self.read_lock()?, dir, cookie, each)
    }

    /// Calls `each` with the entries of a directory from a cookie on, as long as `fits` returns true
    /// (READDIRPLUS). Each entry comes with the attributes of its inode, or without if these cannot be read.
    /// With attributes, the kernel gets a lookup reference to the inode, except for `.` and `..`.
    pub fn list_with_facts(
        &self,
        dir: Ino,
        cookie: u64,
        mut fits: impl FnMut(&DirEntry) -> bool,
        mut each: impl FnMut(&DirEntry, Option<&Stat>),
    ) -> Result<()> {
        self.renew_dir_atime(dir, cookie);
        let volume = self.read_lock()?;
        let mut entries = Vec::new();
        self.list_from(&volume, dir, cookie, |_, entry| {
            let fits = fits(entry);
            entries.extend(fits.then(|| entry.clone()));
            Ok(fits)
        })?;
        volume.read_inodes_ahead(entries.iter().map(|entry| entry.ino));
        for entry in &entries {
            let stat = self.stat_in(&volume, entry.ino).ok();
            if let Some(stat) = stat.as_ref().filter(|_| !matches!(&entry.name[..], b"." | b"..")) {
                self.add_reference(stat);
            }
            each(entry, stat.as_ref());
        }
        Ok(())
    }

    /// Renews the access time of a directory if that is due. The start of a listing counts as the access: a front end
    /// need not open directories.
    fn renew_dir_atime(&self, dir: Ino, cookie: u64) {
        if self.settings.dir_atime && cookie == 0 {
            self.renew_atime(dir);
        }
    }

    fn list_from(
        &self,
        volume: &Engine,
        dir: Ino,
        cookie: u64,
        mut each: impl FnMut(&Engine, &DirEntry) -> f2fs::Result<bool>,
    ) -> Result<()> {
        let seen = self.listings.take(dir, cookie);
        let mut entries = volume.further_entries(dir, cookie, seen).map_err(to_errno)?;
        let mut next = cookie;
        let end = loop {
            let Some(entry) = entries.next() else { break Ok(()) };
            match entry.and_then(|entry| Ok((each(volume, &entry)?, entry.next_cookie))) {
                Ok((true, behind)) => next = behind,
                Ok((false, _)) => break Ok(()),
                Err(error) if next == cookie => break Err(to_errno(error)),
                Err(_) => break Ok(()),
            }
        };
        self.listings.keep(dir, next, entries.into_seen());
        end
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use block::{Counted, Device, MemoryDevice};
    use f2fs::{
        engine::{NewNode, Options, XattrMode},
        units::Time,
    };

    use super::*;
    use crate::{
        Errno, Settings,
        file_system::{Credentials, GroupIdBit, tests::format},
    };

    const FILES: usize = 400;

    /// Returns a mounted volume with many files on a counting device. The first file has an extended
    /// attribute. The cache holds only a fraction of the inodes.
    fn with_many_files() -> (Arc<Counted<Arc<MemoryDevice>>>, FileSystem, Vec<Ino>) {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let mut volume = format(&device, "");
        let root = volume.superblock().root_ino;
        let create = |n| {
            volume
                .begin(f2fs::engine::Caller::ADMIN)
                .create(root, format!("file{n}").as_bytes(), &NewNode::new(0o100_644))
                .unwrap()
        };
        let inos: Vec<Ino> = (0..FILES).map(create).collect();
        volume
            .begin(f2fs::engine::Caller::ADMIN)
            .set_xattr(inos[0], b"user.note", b"x", XattrMode::Set)
            .unwrap();
        volume.unmount().unwrap();
        drop(volume);
        let counted = Arc::new(Counted::new(device));
        let small = Options { cache_bytes: 512 << 10, ..Options::new(Time::default) };
        let volume = Engine::open(counted.clone(), small).unwrap();
        let fs = FileSystem::new(volume, Weak::new(), Settings::default());
        (counted, fs, inos)
    }

    /// Lists the root directory like the kernel, `at_once` entries at a time.
    fn list_all(fs: &FileSystem, at_once: usize) -> Vec<Ino> {
        let (mut found, mut cookie) = (Vec::new(), 0);
        loop {
            let (mut left, mut last) = (at_once, None);
            let fits = |_: &DirEntry| {
                let fits = left > 0;
                left -= usize::from(fits);
                fits
            };
            fs.list_with_facts(fs.root().unwrap(), cookie, fits, |entry, stat| {
                found.extend(stat.map(|stat| stat.ino));
                last = Some(entry.next_cookie);
            })
            .unwrap();
            match last {
                Some(next) => cookie = next,
                None => return found,
            }
        }
    }

    #[test]
    fn a_listing_reads_neighbouring_inodes_at_once() {
        let (device, fs, inos) = with_many_files();
        let before = device.counts().reads;
        let found = list_all(&fs, 20);
        assert!(inos.iter().all(|ino| found.contains(ino)));
        let reads = device.counts().reads - before;
        assert!(reads < FILES as u64 / 4, "{reads} reads for {FILES} inodes");
    }

    /// Each part of a listing met the block anew.
    #[test]
    fn a_block_that_a_directory_has_often_gives_its_names_once() {
        const BLOCK: u64 = 4096;
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let mut volume = format(&device, "");
        let root = volume.superblock().root_ino;
        for n in 0..FILES {
            let new = NewNode::new(0o100_644);
            let create =
                volume.begin(f2fs::engine::Caller::ADMIN).create(root, format!("file{n}").as_bytes(), &new);
            create.unwrap();
        }
        volume.unmount().unwrap();
        let at = u64::from(volume.nat_entry(root.into()).unwrap().addr.0) * BLOCK;
        let mut inode = f2fs::format::NodeBlock::clone(&volume.inode(root).unwrap());
        drop(volume);
        let (first, sound) = (inode.addr(0), inode.head().size.get() / BLOCK);
        (sound..800).for_each(|block| inode.set_addr(block as usize, first));
        inode.head_mut().size.set(800 * BLOCK);
        device.write(at, inode.bytes()).unwrap();
        let volume = Engine::open(device, Options::new(Time::default)).unwrap();
        let fs = FileSystem::new(volume, Weak::new(), Settings::default());
        let (names, cookie, end) = count_one_by_one(&fs, fs.root().unwrap());
        assert_eq!(end, Err(Errno::UCLEAN));
        assert_eq!(names, FILES + 2, "and two dots");
        for _ in 0..2 {
            assert_eq!(fs.list(fs.root().unwrap(), cookie, |_, _| Ok(true)), Err(Errno::UCLEAN), "it stays");
        }
    }

    /// Reads the directory in parts of one entry, and returns the number of entries and how the listing ends.
    fn count_one_by_one(fs: &FileSystem, dir: Ino) -> (usize, u64, Result<()>) {
        let (mut count, mut cookie) = (0, 0);
        loop {
            let mut last = None;
            let listed = fs.list(dir, cookie, |_, entry| {
                let fits = last.is_none();
                last = last.or(Some(entry.next_cookie));
                Ok(fits)
            });
            match (listed, last) {
                (Ok(()), Some(next)) => (count, cookie) = (count + 1, next),
                (end, _) => break (count, cookie, end),
            }
        }
    }

    /// The names are given, and the end fails, also for a caller whose listing is no longer remembered.
    #[test]
    fn a_listing_without_dots_fails_at_its_end() {
        for (dots, is_marked) in [(0, false), (2, false), (0, true)] {
            let device = Arc::new(MemoryDevice::new(64 << 20));
            let mut volume = format(&device, "");
            let admin = f2fs::engine::Caller::ADMIN;
            let root = volume.superblock().root_ino;
            for n in 0..FILES {
                let name = format!("file{n}");
                volume.begin(admin).create(root, name.as_bytes(), &NewNode::new(0o100_644)).unwrap();
            }
            let other = volume.begin(admin).create(root, b"other", &NewNode::new(0o040_755)).unwrap();
            volume.unmount().unwrap();
            let first = u64::from(volume.inode(root).unwrap().addr(0).0) << 12;
            let marks = (u64::from(volume.nat_entry(root.into()).unwrap().addr.0) << 12) + 3;
            drop(volume);
            let change = |at, to: fn(u8) -> u8| {
                let mut byte = [0];
                device.read(at, &mut byte).unwrap();
                device.write(at, &[to(byte[0])]).unwrap();
            };
            if dots == 0 {
                // Slots 0 and 1.
                change(first, |used| used & !3);
            }
            if is_marked {
                change(marks, |marks| marks | f2fs::format::inode::inline::DOTS);
            }
            let volume = Engine::open(device, Options::new(Time::default)).unwrap();
            let fs = FileSystem::new(volume, Weak::new(), Settings::default());
            let wanted = if dots == 0 && !is_marked { Err(Errno::UCLEAN) } else { Ok(()) };
            let (count, cookie, end) = count_one_by_one(&fs, root);
            assert_eq!((count, end), (FILES + 1 + dots, wanted), "in parts");
            assert_eq!(fs.list(root, cookie, |_, _| Ok(true)), wanted, "it stays");
            assert_eq!(fs.list(root, 0, |_, _| Ok(true)), Ok(()), "the names of a whole listing");
            assert_eq!(fs.list(root, cookie, |_, _| Ok(true)), wanted, "and its end");
            for _ in 0..20 {
                assert_eq!(count_one_by_one(&fs, other).2, Ok(()));
            }
            assert_eq!(fs.list(root, cookie, |_, _| Ok(true)), wanted, "after many listings of others");
        }
    }

    #[test]
    fn absent_attributes_are_reported_without_reading_the_inode() {
        let (device, fs, inos) = with_many_files();
        list_all(&fs, 20);
        let caller = Credentials { uid: 0, gid: 0, pid: 0 };
        let before = device.counts().reads;
        for ino in &inos[1..] {
            assert_eq!(fs.get_xattr(*ino, b"user.note"), Err(Errno::NODATA));
            assert_eq!(fs.list_xattrs(caller, *ino), Ok(Vec::new()));
        }
        assert_eq!(device.counts().reads, before);
        assert_eq!(fs.get_xattr(inos[0], b"user.note"), Ok(b"x".to_vec()), "that one has some");
        assert_eq!(fs.get_xattr(inos[1], b"user."), Err(Errno::INVAL), "no file can have that name");
        fs.set_xattr(caller, inos[1], b"user.note", b"new", XattrMode::Set, GroupIdBit::ByGroup).unwrap();
        assert_eq!(fs.get_xattr(inos[1], b"user.note"), Ok(b"new".to_vec()));
        assert_eq!(fs.list_xattrs(caller, inos[1]), Ok(b"user.note\0".to_vec()));
        fs.unmount().unwrap();
    }
}
