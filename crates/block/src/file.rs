//! Regular files and block devices of the host.

#[cfg(target_os = "linux")]
mod direct;
#[cfg(target_os = "linux")]
mod discard_limits;
#[cfg(target_os = "linux")]
#[path = "file/linux.rs"]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "file/portable.rs"]
mod system;

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use system::Handle;

use crate::{Device, DiscardUnit, Geometry, InUse, allocation};

/// The pattern of the next reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPattern {
    /// The host reads ahead as it finds best.
    Usual,
    /// The reads are scattered, so the host need not read ahead.
    Scattered,
}

/// Options to open a [`FileDevice`].
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Opens for writing as well. A writer holds the bytes exclusively until the device is dropped, whatever
    /// other path leads to them. A second writer, or a writer to a device that is mounted or otherwise [in
    /// use](InUse), gets [`io::ErrorKind::ResourceBusy`]. A reader takes a lock that keeps writers out,
    /// unless there is a writer [already](FileDevice::writer).
    pub write: bool,
    /// Bypasses the host's page cache (`O_DIRECT`), so that a measurement measures the device. Linux only.
    pub direct: bool,
}

/// A regular file or a block device. All access is positional, so threads can share it.
///
/// On systems other than Linux only regular files are devices, discards have no effect, and the claim of a
/// writer is what the system has: `flock` on Unix, a share mode on Windows.
#[derive(Debug)]
pub struct FileDevice {
    handle: Handle,
    path: PathBuf,
    size_bytes: AtomicU64,
    sector_bytes: u32,
    options: OpenOptions,
    /// True after a failed flush. The host reports a lost write only once; the next flush of the same file
    /// succeeds (fsync(2)). Held during a flush.
    flush_failed: Mutex<bool>,
    /// `None` if the host has no discards here.
    discard_unit: Option<DiscardUnit>,
    /// True if the host has refused a discard.
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
        FileDevice::new(Handle::open(path, options)?, path, options)
    }

    /// Creates a sparse file of zeroes, open for writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`], and others of open(2).
    pub fn create(path: impl AsRef<Path>, size_bytes: u64) -> io::Result<FileDevice> {
        let path = path.as_ref();
        let options = OpenOptions { write: true, direct: false };
        let file = Handle::new_file(path)?;
        let made = file
            .set_len(size_bytes)
            .and_then(|()| Handle::adopt(file, path, options))
            .and_then(|handle| FileDevice::new(handle, path, options));
        if made.is_err() {
            // The new file is useless. The caller gets the first error.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn new(handle: Handle, path: &Path, options: OpenOptions) -> io::Result<FileDevice> {
        let geometry = handle.geometry()?;
        let path = path.to_path_buf();
        let discard_unit = handle.discard_unit(geometry)?;
        Ok(FileDevice {
            handle,
            path,
            size_bytes: geometry.size_bytes.into(),
            sector_bytes: geometry.sector_bytes,
            options,
            flush_failed: Mutex::new(false),
            discard_unit,
            refuses_discards: AtomicBool::new(false),
        })
    }

    /// Returns the path that the device was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true for a block device, false for a regular file.
    pub fn is_block_device(&self) -> bool {
        self.handle.is_block_device()
    }

    /// Returns true for an SD card, an eMMC, a USB stick or another removable disk, and for a partition of one.
    pub fn is_card(&self) -> bool {
        self.handle.is_card()
    }

    /// Returns the user that writes to a device opened for reading. Data read may be old or half written.
    pub fn writer(&self) -> Option<&InUse> {
        self.handle.writer()
    }

    /// Returns true if the device was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.options.write
    }

    /// Advises the host about the next reads.
    pub fn expect_reads(&self, reads: ReadPattern) {
        self.handle.expect_reads(reads);
    }

    /// Changes the size of a regular file. New bytes are a hole.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] for a block device; those of ftruncate(2).
    pub fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        if self.is_block_device() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.handle.set_size(size_bytes)?;
        self.size_bytes.store(size_bytes, Ordering::Release);
        Ok(())
    }

    /// Reads the size anew: a block device or a file may have become larger since it was opened. Returns the size in bytes.
    ///
    /// # Errors
    /// Those of ioctl(2) and fstat(2).
    pub fn refresh_size(&self) -> io::Result<u64> {
        let size_bytes = self.handle.geometry()?.size_bytes;
        self.size_bytes.store(size_bytes, Ordering::Release);
        Ok(size_bytes)
    }

    /// Makes a range of a regular file a hole. Returns false if the host cannot do that.
    ///
    /// # Errors
    /// Those of fallocate(2).
    pub(crate) fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<bool> {
        if self.is_block_device() || length_bytes == 0 {
            return Ok(length_bytes == 0);
        }
        self.handle.punch(offset_bytes, length_bytes)
    }

    /// Returns the end of the extent at `offset_bytes`, at most `end_bytes`, and true if the extent is a
    /// hole. If the host cannot tell, the extent is data.
    pub(crate) fn extent(&self, offset_bytes: u64, end_bytes: u64) -> (u64, bool) {
        self.handle.extent(offset_bytes, end_bytes)
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Acquire), sector_bytes: self.sector_bytes }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        self.handle.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry().check_write(offset_bytes, buf.len())?;
        self.handle.write(offset_bytes, buf)
    }

    fn flush(&self) -> io::Result<()> {
        // One flush at a time: of two at once, only one is told of a lost write, which concerns both.
        let mut failed = self.flush_failed.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(io::Error::other("an earlier flush of the device failed"));
        }
        let result = self.handle.flush();
        *failed = result.is_err();
        result
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if !self.geometry().contains(offset_bytes, length_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Only whole sectors can be discarded.
        let sector = u64::from(self.sector_bytes);
        let start = offset_bytes.next_multiple_of(sector);
        let end = (offset_bytes + length_bytes) / sector * sector;
        if start >= end || Device::discard_unit(self).is_none() {
            return Ok(());
        }
        if !self.handle.discard(start, end - start)? {
            self.refuses_discards.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.discard_unit.filter(|_| !self.refuses_discards.load(Ordering::Relaxed))
    }

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        allocation::of_file(self, range)
    }
}

#[cfg(all(test, target_os = "linux"))]
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
    fn a_device_that_cannot_discard_gets_one_request() {
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
