//! Regular files and block devices of the host.

// `BLKDISCARD` and `BLKROGET` have no safe wrappers; this is the only module that needs them.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{Advice, FallocateFlags, OFlags},
    io::Errno,
    ioctl,
};

use crate::{
    ATOMIC_BYTES, Device, DiscardUnit, Geometry, InUse,
    backing::{self, Identity},
    claim::{Claim, unlock},
};

/// Alignment in bytes of buffers and requests that bypass the page cache. No sector is larger.
const DIRECT_BYTES: usize = 4096;

/// Number of such buffers kept for reuse, and the size in bytes of the largest one kept.
const BOUNCES_MAX: usize = 4;
const BOUNCE_BYTES_MAX: usize = 4 << 20;

/// Options to open a [`FileDevice`].
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Opens for writing as well. A writer holds the bytes exclusively until the device is dropped, whatever
    /// other path leads to them. A second writer, or a writer to a device that is mounted or otherwise [in
    /// use](InUse), gets [`io::ErrorKind::ResourceBusy`]. A reader takes a lock that keeps writers out,
    /// unless there is a writer [already](FileDevice::writer).
    pub write: bool,
    /// Bypasses the host's page cache (`O_DIRECT`), so that a measurement measures the device.
    pub direct: bool,
}

/// A regular file or a block device. All access is positional, so threads can share it.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    geometry: Geometry,
    is_block_device: bool,
    options: OpenOptions,
    claim: Claim,
    /// Aligned buffers for requests that bypass the page cache, kept for reuse.
    bounces: Mutex<Vec<Bounce>>,
    /// True after a failed flush. The host reports a lost write only once; the next flush of the same file
    /// succeeds (fsync(2)).
    flush_failed: AtomicBool,
    discard_unit: DiscardUnit,
    /// True if the host has no discards here, or has refused one.
    refuses_discards: AtomicBool,
}

impl FileDevice {
    /// Opens an existing file or block device.
    ///
    /// # Errors
    /// Those of open(2); [`io::ErrorKind::ResourceBusy`] if another writer has it;
    /// [`io::ErrorKind::ReadOnlyFilesystem`] if it is opened for writing and is a write-protected block
    /// device; [`io::ErrorKind::InvalidInput`] if it is neither a file nor a block device.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<FileDevice> {
        let path = path.as_ref();
        // The kind is checked by name first: opening a FIFO would block, and opening a tape would move it.
        let kind = std::fs::metadata(path)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = "neither a regular file nor a block device";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut flags = OFlags::CLOEXEC;
        if options.direct {
            flags |= OFlags::DIRECT;
        }
        if options.write && kind.is_block_device() {
            // Some drivers and kernels allow opening a write-protected device for writing, and then fail the
            // writes.
            if is_write_protected(&File::open(path)?)? {
                return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "it is write-protected"));
            }
        }
        let file =
            File::options().read(true).write(options.write).custom_flags(flags.bits() as i32).open(path)?;
        FileDevice::adopt(file, path, options)
    }

    /// Creates a sparse file of zeroes, open for writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`], and others of open(2).
    pub fn create(path: impl AsRef<Path>, size_bytes: u64) -> io::Result<FileDevice> {
        let path = path.as_ref();
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        let made = file
            .set_len(size_bytes)
            .and_then(|()| FileDevice::adopt(file, path, OpenOptions { write: true, direct: false }));
        if made.is_err() {
            // The new file is useless. The caller gets the first error.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn adopt(file: File, path: &Path, options: OpenOptions) -> io::Result<FileDevice> {
        let is_block_device = file.metadata()?.file_type().is_block_device();
        let claim = match options.write {
            true => Claim::to_write(&file, path),
            false => Claim::to_read(&file, path),
        };
        let claim = claim.inspect_err(|_| unlock(&file))?;
        // The end of a block device is its size (lseek(2)), as with a file.
        let size_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        let sector_bytes =
            if is_block_device { rustix::fs::ioctl_blksszget(&file)? } else { ATOMIC_BYTES as u32 };
        let geometry = Geometry { size_bytes, sector_bytes };
        let limits = DiscardLimits::of(&file)?;
        Ok(FileDevice {
            file,
            path: path.to_path_buf(),
            geometry,
            is_block_device,
            options,
            claim,
            bounces: Mutex::default(),
            flush_failed: AtomicBool::new(false),
            discard_unit: limits.unit(geometry),
            refuses_discards: AtomicBool::new(limits.most_bytes == Some(0)),
        })
    }

    /// Returns the path that the device was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true for a block device, false for a regular file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Returns the user that writes to a device opened for reading. Data read may be old or half written.
    pub fn writer(&self) -> Option<&InUse> {
        self.claim.writer()
    }

    /// Hands a block device over to a mount, which from then on holds it exclusively. The device can still be
    /// read and written here. Returns true if `mount`, which may be called several times, succeeded.
    /// Otherwise the device stays claimed here.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if a writer has lost the device to another user. Nothing may be
    /// written any more.
    pub fn hand_over(&self, mount: impl Fn() -> io::Result<()>) -> io::Result<bool> {
        self.claim.hand_over(mount)
    }

    /// Returns true if the device was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.options.write
    }

    /// Returns the open file to callers that transfer bytes without looking at them. This bypasses the
    /// device's checks and allows reads only. `None` if the device bypasses the page cache, which imposes its
    /// own rules.
    pub fn file_to_read(&self) -> Option<BorrowedFd<'_>> {
        (!self.options.direct).then(|| self.file.as_fd())
    }

    /// Advises the host that the next reads are scattered, so that it does not read ahead, or that they no
    /// longer are.
    pub fn expect_scattered_reads(&self, scattered: bool) {
        let advice = if scattered { Advice::Random } else { Advice::Normal };
        // This only affects speed, and some files accept no advice.
        let _ = rustix::fs::fadvise(&self.file, 0, None, advice);
    }

    /// Changes the size of a regular file. New bytes are a hole.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] for a block device; those of ftruncate(2).
    pub fn set_size(&mut self, size_bytes: u64) -> io::Result<()> {
        if self.is_block_device {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.file.set_len(size_bytes)?;
        self.geometry.size_bytes = size_bytes;
        Ok(())
    }

    /// Makes a range of a regular file a hole. Returns false if the host cannot do that.
    ///
    /// # Errors
    /// Those of fallocate(2).
    pub(crate) fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<bool> {
        if self.is_block_device || length_bytes == 0 {
            return Ok(length_bytes == 0);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset_bytes, length_bytes) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the end of the extent at `offset_bytes`, at most `end_bytes`, and true if the extent is a
    /// hole. If the host cannot tell, the extent is data.
    pub(crate) fn extent(&self, offset_bytes: u64, end_bytes: u64) -> (u64, bool) {
        use rustix::fs::{SeekFrom, seek};
        match seek(&self.file, SeekFrom::Data(offset_bytes)) {
            Ok(data) if data > offset_bytes => (data.min(end_bytes), true),
            Ok(_) => match seek(&self.file, SeekFrom::Hole(offset_bytes)) {
                Ok(hole) if hole > offset_bytes => (hole.min(end_bytes), false),
                _ => (end_bytes, false),
            },
            Err(Errno::NXIO) => (end_bytes, true),
            Err(_) => (end_bytes, false),
        }
    }

    /// Returns the smallest aligned range that contains a direct request and ends within the device.
    fn widen(&self, offset_bytes: u64, length: usize) -> (u64, usize) {
        let align = DIRECT_BYTES as u64;
        let start = offset_bytes / align * align;
        let end = (offset_bytes + length as u64).next_multiple_of(align);
        (start, (end - start) as usize)
    }

    fn read_direct(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let (start, length) = self.widen(offset_bytes, buf.len());
        let mut bounce = self.bounce(length);
        let wanted = (offset_bytes - start) as usize + buf.len();
        let mut done = 0;
        while done < wanted {
            match self.file.read_at(&mut bounce.bytes()[done..length], start + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        buf.copy_from_slice(&bounce.bytes()[(offset_bytes - start) as usize..wanted]);
        self.give_back(bounce);
        Ok(())
    }

    fn write_direct(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let sector = u64::from(self.geometry.sector_bytes);
        if offset_bytes % sector != 0 || buf.len() as u64 % sector != 0 {
            let what = "a direct write must be of whole sectors";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut bounce = self.bounce(buf.len());
        bounce.bytes()[..buf.len()].copy_from_slice(buf);
        let written = self.file.write_all_at(&bounce.bytes()[..buf.len()], offset_bytes);
        self.give_back(bounce);
        written
    }

    /// Returns an aligned buffer of at least `length` bytes.
    fn bounce(&self, length: usize) -> Bounce {
        let kept = self.bounces.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.filter(|bounce| bounce.length >= length).unwrap_or_else(|| Bounce::new(length))
    }

    fn give_back(&self, bounce: Bounce) {
        let mut bounces = self.bounces.lock().unwrap_or_else(PoisonError::into_inner);
        if bounce.length <= BOUNCE_BYTES_MAX && bounces.len() < BOUNCES_MAX {
            bounces.push(bounce);
        }
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry.check_read(offset_bytes, buf.len())?;
        match self.options.direct {
            true => self.read_direct(offset_bytes, buf),
            false => self.file.read_exact_at(buf, offset_bytes),
        }
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry.check_write(offset_bytes, buf.len())?;
        match self.options.direct {
            true => self.write_direct(offset_bytes, buf),
            false => self.file.write_all_at(buf, offset_bytes),
        }
    }

    fn flush(&self) -> io::Result<()> {
        if self.flush_failed.load(Ordering::Acquire) {
            return Err(io::Error::other("it failed to keep what was written to it before"));
        }
        let result = self.file.sync_data();
        if result.is_err() {
            self.flush_failed.store(true, Ordering::Release);
        }
        result
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if !self.geometry.contains(offset_bytes, length_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Only whole sectors can be discarded.
        let sector = u64::from(self.geometry.sector_bytes);
        let start = offset_bytes.next_multiple_of(sector);
        let end = (offset_bytes + length_bytes) / sector * sector;
        if start >= end {
            return Ok(());
        }
        let done = match self.is_block_device {
            // The kernel also drops the range from its cache if the caller holds the device exclusively.
            true => block_discard(self.claim.alone().as_ref().unwrap_or(&self.file), start, end - start),
            false => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, start, end - start)
            }
        };
        match done {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            // A part of the range is dirty in the cache of a mounted device.
            Err(Errno::BUSY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        (!self.refuses_discards.load(Ordering::Relaxed)).then_some(self.discard_unit)
    }
}

/// Limits of discards as sysfs has them (Linux, Documentation/ABI/stable/sysfs-block).
#[derive(Debug, Default)]
struct DiscardLimits {
    /// Size of a unit and offset of the first one, in bytes.
    unit_bytes: Option<u64>,
    first_bytes: Option<u64>,
    /// Maximum size of a discard in bytes; 0 if the device has none.
    most_bytes: Option<u64>,
}

impl DiscardLimits {
    /// The limits of a block device. A regular file has none that we know of.
    fn of(file: &File) -> io::Result<DiscardLimits> {
        match Identity::of(&file.metadata()?) {
            Identity::Device(device) => Ok(DiscardLimits::in_dir(&backing::sys(device))),
            Identity::File { .. } => Ok(DiscardLimits::default()),
        }
    }

    fn in_dir(sys: &Path) -> DiscardLimits {
        // The queue of a partition is that of its disk.
        let queues = [sys.join("queue"), sys.join("../queue")];
        let in_queue = |name: &str| queues.iter().find_map(|queue| backing::count_in(&queue.join(name)));
        DiscardLimits {
            unit_bytes: in_queue("discard_granularity"),
            first_bytes: backing::count_in(&sys.join("discard_alignment")),
            most_bytes: in_queue("discard_max_bytes"),
        }
    }

    fn unit(&self, geometry: Geometry) -> DiscardUnit {
        let bytes = self.unit_bytes.unwrap_or_default().max(geometry.sector_bytes.into());
        DiscardUnit { bytes, first_bytes: self.first_bytes.unwrap_or_default() % bytes }
    }
}

fn block_discard(file: &File, start: u64, length: u64) -> Result<(), Errno> {
    // Linux, include/uapi/linux/fs.h: BLKDISCARD is _IO(0x12, 119) and takes the start and length in bytes.
    const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);
    // SAFETY: the opcode reads two u64 from the pointer and writes nothing, which is what `Setter` promises.
    let request = unsafe { ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([start, length]) };
    // SAFETY: if the file is not a block device, the kernel refuses the opcode without touching the pointer.
    unsafe { ioctl::ioctl(file, request) }
}

/// Returns true if a block device is write-protected, such as a card with its switch set.
fn is_write_protected(file: &File) -> rustix::io::Result<bool> {
    // Linux, include/uapi/linux/fs.h: BLKROGET is _IO(0x12, 94) and gives an int.
    const BLKROGET: ioctl::Opcode = ioctl::opcode::none(0x12, 94);
    // SAFETY: the opcode writes one int to the pointer, which is what `Getter` promises.
    let request = unsafe { ioctl::Getter::<BLKROGET, i32>::new() };
    // SAFETY: if the file is not a block device, the kernel refuses the opcode without touching the pointer.
    unsafe { ioctl::ioctl(file, request) }.map(|answer| answer != 0)
}

/// A buffer aligned for direct I/O.
#[derive(Debug)]
struct Bounce {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Bounce {
    fn new(length: usize) -> Bounce {
        let bytes = vec![0u8; length + DIRECT_BYTES];
        let start = bytes.as_ptr().align_offset(DIRECT_BYTES);
        Bounce { bytes, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const WRITE: OpenOptions = OpenOptions { write: true, direct: false };

    fn scratch(size: u64) -> (tempfile::TempDir, PathBuf, FileDevice) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, size).expect("a new file");
        (dir, path, device)
    }

    #[test]
    fn a_new_file_is_sparse_and_keeps_written_data() {
        let (_dir, path, device) = scratch(1 << 40);
        device.write((1 << 40) - 3, b"end").expect("within the file");
        device.flush().expect("flushed");
        let mut buf = [1; 4];
        device.read((1 << 40) - 4, &mut buf).expect("within the file");
        assert_eq!(&buf, b"\0end");
        assert!(std::fs::metadata(&path).expect("there").blocks() * 512 < 1 << 20);
        assert_eq!(device.geometry(), Geometry { size_bytes: 1 << 40, sector_bytes: 512 });
        assert_eq!(device.read(1 << 40, &mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(device.write(1 << 40, &buf).unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn a_second_writer_is_refused_and_a_reader_is_not() {
        let (_dir, path, device) = scratch(4096);
        assert_eq!(FileDevice::open(&path, WRITE).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        let reader = FileDevice::open(&path, OpenOptions::default()).expect("readers are free");
        assert!(reader.write(0, b"x").is_err() && !reader.is_writable());
        drop(device);
        FileDevice::open(&path, WRITE).expect("the lock went with its holder");
        assert_eq!(FileDevice::create(&path, 1).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_discard_punches_whole_sectors() {
        let (_dir, path, device) = scratch(1 << 20);
        device.write(0, &vec![7; 1 << 20]).expect("within the file");
        device.flush().expect("flushed");
        let before = std::fs::metadata(&path).expect("there").blocks();
        device.discard(100, (1 << 20) - 200).expect("within the file");
        assert!(std::fs::metadata(&path).expect("there").blocks() < before);
        let mut bytes = vec![1; 1 << 20];
        device.read(0, &mut bytes).expect("within the file");
        assert!(bytes[..512].iter().all(|&byte| byte == 7) && bytes[1 << 19] == 0);
        assert!(device.discard(0, (1 << 20) + 1).is_err());
    }

    #[test]
    fn direct_access_sees_the_same_bytes() {
        // A file system in memory may refuse O_DIRECT, so the file lies beside the crate's sources.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a temporary directory");
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 10_000).expect("a new file");
        device.write(0, &(0..10_000).map(|n| n as u8).collect::<Vec<_>>()).expect("within the file");
        drop(device);
        let direct = match FileDevice::open(&path, OpenOptions { write: true, direct: true }) {
            Ok(direct) => direct,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => panic!("{error}"),
        };
        let mut buf = [0; 5000];
        direct.read(4999, &mut buf).expect("any range can be read");
        assert!(buf.iter().enumerate().all(|(n, &byte)| byte == (n + 4999) as u8));
        assert_eq!(direct.write(1, &[0; 512]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        direct.write(4096, &[9; 4096]).expect("whole sectors");
        direct.read(4095, &mut buf[..2]).expect("within the file");
        assert_eq!(buf[..2], [4095u16 as u8, 9]);
    }

    #[test]
    fn a_file_that_is_not_a_device_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for path in [dir.path(), Path::new("/dev/null")] {
            let error = FileDevice::open(path, OpenOptions::default()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn the_unit_of_discards_is_that_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("part");
        let write = |name: &str, value: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value).unwrap();
        };
        write("queue/discard_granularity", "4194304\n");
        write("queue/discard_max_bytes", "0\n");
        write("part/discard_alignment", "3145728\n");
        let geometry = Geometry { size_bytes: 1 << 30, sector_bytes: 512 };
        let limits = DiscardLimits::in_dir(&part);
        let unit = DiscardUnit { bytes: 4 << 20, first_bytes: 3 << 20 };
        assert_eq!((limits.unit(geometry), limits.most_bytes), (unit, Some(0)));
        let unit = DiscardUnit { bytes: 512, first_bytes: 0 };
        assert_eq!(DiscardLimits::default().unit(geometry), unit);
    }

    #[test]
    fn a_device_that_cannot_discard_is_asked_once() {
        let (_dir, _, device) = scratch(1 << 20);
        assert_eq!(device.discard_unit(), Some(DiscardUnit { bytes: 512, first_bytes: 0 }));
        // The kernel refuses to punch holes through a descriptor for reading: EBADF, were it asked.
        let reader = FileDevice::open(device.path(), OpenOptions::default()).unwrap();
        assert!(reader.discard(0, 4096).is_err());
        reader.refuses_discards.store(true, Ordering::Relaxed);
        reader.discard(0, 4096).unwrap();
        assert_eq!(reader.discard_unit(), None);
    }
}
