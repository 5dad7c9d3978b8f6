//! Loop devices: block devices that the host makes from files.

// The ioctls carry structures that the kernel accesses through a pointer.
#![allow(unsafe_code)]

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{fs::Dev, io::Errno, ioctl};

use super::backing::{self, Identity};

// Linux, include/uapi/linux/loop.h.
const LOOP_GET_STATUS64: ioctl::Opcode = 0x4C05;
const LOOP_CTL_GET_FREE: ioctl::Opcode = 0x4C82;
const LOOP_CONFIGURE: ioctl::Opcode = 0x4C0A;
const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
/// Length in bytes of the name that the kernel shows.
const NAME_BYTES: usize = 64;
/// Maximum number of attempts, since another process may take a free device first.
const TRIES: usize = 16;

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    /// Device, inode, rdevice, offset, size limit: all zero.
    places: [u64; 5],
    /// Number, encryption, key size: all zero.
    numbers: [u32; 3],
    flags: u32,
    name: [u8; NAME_BYTES],
    rest: [u64; 22],
}

const _: () = assert!(size_of::<Config>() == 304);

/// A loop device. The kernel removes it when no process and no mount has it open any more.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Makes a loop device from a file or block device.
    ///
    /// # Errors
    /// Those of the host. Only root may attach loop devices, and some hosts have none.
    pub fn attach(backing: &Path) -> io::Result<LoopDevice> {
        LoopDevice::attach_with(backing, File::options().read(true).write(true), AUTOCLEAR)
    }

    /// Makes a loop device that refuses writes.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach).
    pub fn attach_read_only(backing: &Path) -> io::Result<LoopDevice> {
        LoopDevice::attach_with(backing, File::options().read(true), READ_ONLY | AUTOCLEAR)
    }

    fn attach_with(backing: &Path, options: &OpenOptions, flags: u32) -> io::Result<LoopDevice> {
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        let backing_file = options.open(backing)?;
        let mut name = [0; NAME_BYTES];
        let shown = backing.as_os_str().as_encoded_bytes();
        let length = shown.len().min(NAME_BYTES - 1);
        name[..length].copy_from_slice(&shown[..length]);
        for _ in 0..TRIES {
            // SAFETY: the ioctl takes no argument and returns a number.
            let number = unsafe { ioctl::ioctl(&control, GetFree) }?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let open = options.open(&path)?;
            let config = Config {
                fd: backing_file.as_raw_fd() as u32,
                block_size: 0,
                places: [0; 5],
                numbers: [0; 3],
                flags,
                name,
                rest: [0; 22],
            };
            // SAFETY: the kernel reads 304 bytes, as many as `Config` has, and writes none.
            let request = unsafe { ioctl::Setter::<LOOP_CONFIGURE, Config>::new(config) };
            // SAFETY: as above. A file that is not a loop device refuses the ioctl.
            match unsafe { ioctl::ioctl(&open, request) } {
                Ok(()) => return Ok(LoopDevice { path, _open: open }),
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Returns the device's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The source of the bytes of a loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// The file or block device.
    pub(crate) identity: Identity,
    /// The part that the loop device shows, in bytes.
    pub(crate) range: Range<u64>,
    /// A path that leads to the file, if there is one.
    pub(crate) path: Option<PathBuf>,
}

/// Returns the source of a loop device, whose directory in sysfs is `sys`. `None` for any other device, and
/// for a loop device without a source.
///
/// The kernel reports the inode to a caller that may open the device. For any other caller sysfs reports a
/// path, which is wrong if the file was renamed or belongs to another mount namespace.
pub(crate) fn source(device: Dev, sys: &Path) -> Option<Source> {
    let text = fs::read(sys.join("loop/backing_file")).ok()?;
    let path = PathBuf::from(OsStr::from_bytes(text.strip_suffix(b"\n").unwrap_or(&text)));
    let at_path = backing::identity(&path).ok();
    let name = backing::file_name(&fs::canonicalize(sys).ok()?);
    let told = backing::node(device, &name).and_then(|node| status(&File::open(node).ok()?).ok());
    let identity = told.map(|status| status.identity()).or(at_path)?;
    let offset = backing::count_in(&sys.join("loop/offset")).unwrap_or_default();
    let limit = backing::count_in(&sys.join("loop/sizelimit")).filter(|limit| *limit > 0);
    let range = offset..limit.map_or(u64::MAX, |limit| offset.saturating_add(limit));
    Some(Source { identity, range, path: (at_path == Some(identity)).then_some(path) })
}

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    /// The source: device number of its file system, inode, and its own device number if it is a device.
    device: u64,
    inode: u64,
    own_device: u64,
    rest: [u64; 26],
}

const _: () = assert!(size_of::<Status>() == 232);

impl Status {
    fn identity(&self) -> Identity {
        // A regular file has no number of its own, or the number of its file system's device (Linux,
        // `loop_get_status`).
        match self.own_device == 0 || self.own_device == self.device {
            true => Identity::File { device: self.device, inode: self.inode },
            false => Identity::Device(self.own_device),
        }
    }
}

fn status(open: &File) -> rustix::io::Result<Status> {
    // SAFETY: the kernel writes 232 bytes, the size of `Status`, and any bytes are a valid `Status`.
    let request = unsafe { ioctl::Getter::<LOOP_GET_STATUS64, Status>::new() };
    // SAFETY: as above. A file that is not a loop device refuses the ioctl.
    unsafe { ioctl::ioctl(open, request) }
}

/// The ioctl for the number of a free loop device, which is the call's own result.
struct GetFree;

// SAFETY: the ioctl has no argument and changes no memory of this process.
unsafe impl ioctl::Ioctl for GetFree {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> ioctl::Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        core::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        out: ioctl::IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> rustix::io::Result<Self::Output> {
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::FileDevice;

    #[test]
    fn a_loop_device_is_attached_and_detached() {
        let image = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(image.path(), [7; 8192]).unwrap();
        let device = match LoopDevice::attach_read_only(image.path()) {
            Ok(device) => device,
            Err(error) => return eprintln!("skipped: no loop devices here: {error}"),
        };
        let mut read = Vec::new();
        File::open(device.path()).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, [7; 8192]);
        // Some kernels refuse to open it for writing; others refuse the writes.
        let written =
            File::options().write(true).open(device.path()).and_then(|mut open| open.write_all(&[0]));
        assert!(written.is_err(), "it is for reading");
        let open = |write| FileDevice::open(device.path(), crate::OpenOptions { write, direct: false });
        assert_eq!(open(true).unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        drop(open(false).unwrap());
        let path = device.path().to_path_buf();
        drop(device);
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            File::open(&path).is_ok_and(|mut file| file.read(&mut [0]).is_ok_and(|count| count == 0))
        });
        assert!(gone);
    }
}
