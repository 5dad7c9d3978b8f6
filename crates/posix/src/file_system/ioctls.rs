//! Ioctls on files and on the volume.

use f2fs::{
    engine::{SavedBlocks, Seek, SeekPart, SeekTarget},
    format::{FileType, inode::flag},
    units::Ino,
};

use super::{Credentials, FileSystem, OpenFor, Result, rest::Call, to_errno};
use crate::{
    Errno,
    credentials::Capability,
    ioctl::{self, ByteRange, Request},
    volume_lock::Writing,
};

/// Blocks of a file that move between two times at which others may change the volume, and between two turns of readers.
const DEFRAGMENT_BLOCKS: u64 = 1024;
const DEFRAGMENT_SLICE_BLOCKS: u64 = 32;

impl FileSystem {
    /// Executes an ioctl on an open file.
    pub fn ioctl(
        &self,
        caller: Credentials,
        ino: Ino,
        open_for: OpenFor,
        request: &Request,
    ) -> Result<Vec<u8>> {
        self.ioctl_within(&self.begin_call(caller, &|| false)?, ino, open_for, request)
    }

    /// Executes an [ioctl](Self::ioctl) within a call.
    pub fn ioctl_within(
        &self,
        call: &Call<'_>,
        ino: Ino,
        open_for: OpenFor,
        request: &Request,
    ) -> Result<Vec<u8>> {
        let caller = call.caller;
        let stat = self.stat(ino)?;
        let blocks = |blocks: u64| blocks.to_ne_bytes().to_vec();
        let owns = caller.uid == stat.uid || caller.has(Capability::Fowner);
        match *request {
            // Linux lets every reader do so, who could then make the file read-only for its owner.
            Request::ReleaseSaved | Request::ReserveSaved if !owns && open_for == OpenFor::Reading => {
                return Err(Errno::PERM);
            }
            Request::ReleaseSaved => {
                // Data of other writers could not be written afterwards. A front end with a cache writes that of the
                // caller first (`Request::protects`).
                if self.inodes.writers(ino) > u32::from(open_for == OpenFor::Writing) {
                    return Err(Errno::BUSY);
                }
                return self.change_saved(call.lock_to_free()?, ino, SavedBlocks::Released).map(blocks);
            }
            Request::ReserveSaved => {
                return self.change_saved(call.write_lock()?, ino, SavedBlocks::Reserved).map(blocks);
            }
            Request::SetLabel(_) if !caller.has(Capability::SysAdmin) => {
                return Err(Errno::PERM);
            }
            Request::SetLabel(ref text) => return self.set_label(call, text).map(|()| Vec::new()),
            Request::Trim(range) => {
                return self.trim_within(call, range, &|| false).map(|trimmed| range.done(trimmed));
            }
            Request::Defragment(_) | Request::Resize(_) if !caller.has(Capability::SysAdmin) => {
                return Err(Errno::PERM);
            }
            Request::Resize(blocks) => return self.grow(call, blocks).map(|()| Vec::new()),
            Request::Defragment(range) => {
                return self.defragment(call, ino, range).map(|moved| range.done(moved));
            }
            Request::SetCompression { .. } if open_for == OpenFor::Reading => return Err(Errno::BADF),
            Request::SetCompression { algorithm, log_cluster_blocks } => {
                call.write_lock()?
                    .begin()
                    .choose_compression(ino, algorithm, log_cluster_blocks)
                    .map_err(to_errno)?;
                return Ok(Vec::new());
            }
            Request::SetFlags(flags) | Request::SetExtended { flags, .. }
                if flags & !(flag::SHOWN | stat.flags) != 0 =>
            {
                return Err(Errno::OPNOTSUPP);
            }
            Request::GetSaved if stat.compression.is_none() => return Err(Errno::INVAL),
            Request::GetCompression if stat.compression.is_none() => return Err(Errno::NODATA),
            _ => {}
        }
        if let Some(set) = request.change(&stat) {
            let mut volume = call.write_lock()?;
            let flags = volume.stat(ino).map_err(to_errno)?.flags;
            let protects = set.flags.is_some_and(|wanted| (wanted ^ flags) & ioctl::PROTECTING != 0);
            // The kernel checks this only for the generic ioctl numbers, and only since Linux 5.13
            // (`fileattr_set_prepare`).
            if !owns || protects && !caller.has(Capability::LinuxImmutable) {
                return Err(Errno::PERM);
            }
            volume.begin().set_attr(ino, &set).map_err(to_errno)?;
            return Ok(Vec::new());
        }
        let volume = self.read_lock()?;
        Ok(request.answer(&stat, volume.superblock()))
    }

    /// Releases or reserves the saved blocks of a compressed file in parts, between which readers have turns. Returns their
    /// number.
    fn change_saved(&self, mut volume: Writing<'_>, ino: Ino, to: SavedBlocks) -> Result<u64> {
        let mut change = volume.begin().begin_saved_change(ino, to).map_err(to_errno)?;
        loop {
            if let Some(blocks) = volume.begin().saved_part(&mut change).map_err(to_errno)? {
                return Ok(blocks);
            }
            // No upkeep: a checkpoint must not come in between.
            volume.let_readers_in(|| ())?;
        }
    }

    /// Moves the blocks of a range of a regular file into order. Returns the number of bytes that were moved.
    fn defragment(&self, call: &Call<'_>, ino: Ino, range: ByteRange) -> Result<u64> {
        let (stat, block_bytes) = (self.stat(ino)?, self.read_lock()?.superblock().block_size.bytes() as u64);
        if stat.kind != FileType::Regular || (range.start | range.length) % block_bytes != 0 {
            return Err(Errno::INVAL);
        }
        let blocks = stat.size.div_ceil(block_bytes);
        let end = blocks.min(range.start.saturating_add(range.length) / block_bytes);
        let (mut moved, mut at) = (0, range.start / block_bytes);
        while at < end {
            let mut volume = call.write_lock()?;
            let written = volume.begin_write_back(ino);
            self.settle(&mut volume, written).map_err(to_errno)?;
            // Long holes are passed over, in parts, too.
            let mut seek = Seek::new(ino, SeekTarget::Data, at * block_bytes);
            match volume.seek_part(&mut seek).map_err(to_errno)? {
                SeekPart::Found(data) => at = at.max(data / block_bytes),
                SeekPart::Nothing => break,
                SeekPart::Unfinished => {
                    at = seek.at() / block_bytes;
                    continue;
                }
            }
            let turn_end = end.min(at + DEFRAGMENT_BLOCKS);
            while at < turn_end {
                let next = turn_end.min(at + DEFRAGMENT_SLICE_BLOCKS);
                moved += volume.begin().defragment(ino, at..next).map_err(to_errno)?;
                at = next;
                volume.let_readers_in(|| ())?;
            }
        }
        Ok(moved * block_bytes)
    }

    /// Changes the volume's label to the text before the first zero byte.
    fn set_label(&self, call: &Call<'_>, text: &[u8]) -> Result<()> {
        if !self.settings.checkpoints {
            // The label would stay while all other changes are dropped.
            return Err(Errno::OPNOTSUPP);
        }
        let text = text.split(|byte| *byte == 0).next().filter(|label| label.len() < text.len());
        let label = text.and_then(|text| std::str::from_utf8(text).ok()).ok_or(Errno::INVAL)?;
        let mut volume = call.write_lock()?;
        let pending = volume.begin_set_label(label);
        self.settle(&mut volume, pending).map_err(to_errno)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::{Device, MemoryDevice};
    use f2fs::{
        engine::{Engine, Options, SetAttr},
        units::Time,
    };

    use super::*;
    use crate::file_system::{
        Change, WriteMode,
        tests::{format, mounted},
    };

    #[test]
    fn flags_that_no_volume_has_are_refused_in_both_forms() {
        let fs = mounted(format(&Arc::new(MemoryDevice::new(64 << 20)), "extra_attr,project_quota"));
        let caller = Credentials { uid: 0, gid: 0, pid: 0 };
        let ino = fs.create(caller, fs.root().unwrap(), b"file", 0o100_644, 0, None).unwrap().ino;
        // FS_DAX_FL, in both encodings: in `struct fsxattr` it is FS_XFLAG_DAX.
        let mut extended = [0; 28];
        extended[..4].copy_from_slice(&0x8000_u32.to_ne_bytes());
        for (command, data) in [(0x4008_6602, &0x0200_0000_u32.to_ne_bytes()[..]), (0x401C_5820, &extended)] {
            let request = Request::parse(command, data).unwrap();
            assert_eq!(
                fs.ioctl(caller, ino, OpenFor::Writing, &request),
                Err(Errno::OPNOTSUPP),
                "{request:?}"
            );
        }
        extended[..4].copy_from_slice(&0x80_u32.to_ne_bytes());
        let request = Request::parse(0x401C_5820, &extended).unwrap();
        fs.ioctl(caller, ino, OpenFor::Writing, &request).unwrap();
        assert_eq!(fs.stat(ino).unwrap().flags & flag::SHOWN, flag::NODUMP);
        fs.unmount().unwrap();
    }

    #[test]
    fn readers_have_turns_within_long_operations_on_a_compressed_file() {
        const LONG: u64 = 72 << 20;
        let fs = mounted(format(&Arc::new(MemoryDevice::new(256 << 20)), "extra_attr,compression"));
        let (root, caller) = (fs.root().unwrap(), Credentials { uid: 0, gid: 0, pid: 0 });
        let ino = fs.create(caller, root, b"file", 0o100_644, 0, None).unwrap().ino;
        let ask = |command, data: &[u8]| {
            fs.ioctl(caller, ino, OpenFor::Reading, &Request::parse(command, data).unwrap()).unwrap()
        };
        ask(0x4008_6602, &flag::COMPRESS.to_ne_bytes());
        for at in (0..LONG).step_by(1 << 20) {
            fs.write(caller, ino, at, &vec![7; 1 << 20], WriteMode::default()).unwrap();
        }
        let turns = |act: &dyn Fn()| {
            let before = fs.volume.reader_turns();
            act();
            fs.volume.reader_turns() - before
        };
        let sectors = || fs.stat(ino).unwrap().sectors;
        let before = sectors();
        assert!(turns(&|| _ = ask(0x8008_F512, &[])) > 5, "released");
        assert!(sectors() < before / 2, "{before}, {}", sectors());
        assert!(turns(&|| _ = ask(0x8008_F513, &[])) > 5, "reserved");
        assert_eq!(sectors(), before);
        let shorten = Change { size: Some(5000), ..Change::default() };
        assert!(turns(&|| _ = fs.change(caller, ino, &shorten).unwrap()) > 1, "truncated");
        let mut content = [0; 8192];
        assert_eq!(fs.read(ino, 0, &mut content), Ok(5000));
        assert!(content[..5000] == [7; 5000]);
        for at in (0..LONG).step_by(1 << 20) {
            fs.write(caller, ino, at, &vec![8; 1 << 20], WriteMode::default()).unwrap();
        }
        fs.unlink(root, b"file").unwrap();
        let free = || fs.space().unwrap().0.free_blocks;
        let before = free();
        assert!(turns(&|| fs.forget(ino, 1, || {})) > 1, "removed");
        assert!(free() >= before + LONG / 4096);
        fs.unmount().unwrap();
    }

    #[test]
    fn only_owners_and_writers_release_and_reserve_saved_blocks() {
        let fs = mounted(format(&Arc::new(MemoryDevice::new(64 << 20)), "extra_attr,compression"));
        let caller = |uid| Credentials { uid, gid: uid, pid: 0 };
        let root = fs.root().unwrap();
        let set = SetAttr { permissions: Some(0o777), ..SetAttr::default() };
        fs.change(caller(0), root, &Change { set, ..Change::default() }).unwrap();
        let ino = fs.create(caller(1000), root, b"file", 0o100_644, 0, None).unwrap().ino;
        let compressed = Request::parse(0x4008_6602, &flag::COMPRESS.to_ne_bytes()).unwrap();
        fs.ioctl(caller(1000), ino, OpenFor::Writing, &compressed).unwrap();
        fs.close(ino, OpenFor::Writing);
        for request in [Request::ReleaseSaved, Request::ReserveSaved] {
            assert_eq!(
                fs.ioctl(caller(2000), ino, OpenFor::Reading, &request),
                Err(Errno::PERM),
                "{request:?}"
            );
            fs.ioctl(caller(1000), ino, OpenFor::Reading, &request).unwrap();
        }
        fs.unmount().unwrap();
    }

    #[test]
    fn a_range_of_a_file_is_defragmented_for_administrators() {
        let fs = mounted(format(&Arc::new(MemoryDevice::new(64 << 20)), ""));
        let caller = |uid| Credentials { uid, gid: uid, pid: 0 };
        let root = fs.root().unwrap();
        let files = [&b"one"[..], b"two"]
            .map(|name| fs.create(caller(0), root, name, 0o100_644, 0, None).unwrap().ino);
        for block in 0..50 {
            for ino in files {
                fs.write_lock().unwrap().begin().write(ino, block * 4096, &[7; 4096]).unwrap();
            }
        }
        let extents = || fs.read_lock().unwrap().fragmentation(files[0]).unwrap().extents;
        let ask = |uid, ino, start: u64, length: u64| {
            let data = [start.to_ne_bytes(), length.to_ne_bytes()].concat();
            fs.ioctl(caller(uid), ino, OpenFor::Writing, &Request::parse(0xC010_F508, &data).unwrap())
        };
        assert_eq!(ask(1000, files[0], 0, 4096), Err(Errno::PERM));
        assert_eq!(ask(0, files[0], 1, 4096), Err(Errno::INVAL));
        assert_eq!(ask(0, root, 0, 4096), Err(Errno::INVAL));
        assert_eq!(extents(), 50);
        let before = fs.volume.reader_turns();
        let done = ask(0, files[0], 0, 1 << 30).unwrap();
        assert!(fs.volume.reader_turns() - before > 2, "readers have a turn between two slices");
        assert_eq!(done, [0_u64.to_ne_bytes(), (50 * 4096_u64).to_ne_bytes()].concat());
        assert!(extents() <= 2, "{}", extents());
        fs.unmount().unwrap();
    }

    #[test]
    fn readers_have_turns_while_the_pages_of_a_file_are_written_for_its_defragmentation() {
        const PAGES: u64 = 1024;
        let fs = mounted(format(&Arc::new(MemoryDevice::new(64 << 20)), ""));
        let root = Credentials { uid: 0, gid: 0, pid: 0 };
        let ino = fs.create(root, fs.root().unwrap(), b"file", 0o100_644, 0, None).unwrap().ino;
        let write = |byte: u8| {
            for block in 0..PAGES {
                fs.write_lock().unwrap().begin().write(ino, block * 4096, &[byte; 4096]).unwrap();
            }
        };
        write(1);
        fs.sync().unwrap();
        // Overwritten blocks of a small file wait in memory.
        write(2);
        let before = fs.volume.reader_turns();
        let data = [0_u64.to_ne_bytes(), 4096_u64.to_ne_bytes()].concat();
        fs.ioctl(root, ino, OpenFor::Writing, &Request::parse(0xC010_F508, &data).unwrap()).unwrap();
        let turns = fs.volume.reader_turns() - before;
        assert!(turns >= PAGES / 32, "{turns} turns for {PAGES} pages");
        fs.unmount().unwrap();
    }

    #[test]
    fn a_label_is_changed_on_the_device() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let fs = mounted(format(&device, "sb_checksum"));
        let root = fs.root().unwrap();
        let caller = |uid| Credentials { uid, gid: uid, pid: 0 };
        let set = |uid, text: &[u8]| {
            let mut label = [0; 256];
            label[..text.len()].copy_from_slice(text);
            fs.ioctl(caller(uid), root, OpenFor::Reading, &Request::parse(0x4100_9432, &label).unwrap())
        };
        assert_eq!(set(1000, b"x"), Err(Errno::PERM));
        assert_eq!(set(0, &[b'x'; 256]), Err(Errno::INVAL));
        assert_eq!(set(0, b"\xff"), Err(Errno::INVAL));
        set(0, b"longer than the next").unwrap();
        set(0, "Bücher\0\0rest".as_bytes()).unwrap();
        let told = fs.ioctl(caller(1000), root, OpenFor::Reading, &Request::GetLabel).unwrap();
        assert_eq!(told.split(|byte| *byte == 0).next(), Some("Bücher".as_bytes()));
        assert_eq!(
            fs.ioctl(caller(1000), root, OpenFor::Reading, &Request::GetUuid).unwrap()[..],
            [&[16][..], &[7; 16]].concat()
        );
        drop(fs);
        // Both copies of the superblock have the new label.
        for damaged in [0, 1] {
            let volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
            assert_eq!(volume.superblock().label, "Bücher");
            drop(volume);
            device.write(damaged << 12, &[0; 4096]).unwrap();
        }
        assert!(Engine::open(device, Options::new(Time::default)).is_err());
    }
}
