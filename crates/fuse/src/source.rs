//! The block device of a mount: root's mounts have one, so that umount(2) waits for our last answer.

use std::io;

use block::LoopDevice;
use fuse_protocol::DeviceMount;
use image::Image;

/// Access of a mount to its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceAccess {
    /// The source may be written to.
    Write,
    /// It may only be read.
    Read,
}

/// Mounts with the block device that holds the volume or, for an image file or a part of a device, with a loop device,
/// as mount(8) creates one. We do not read or write that loop device. Returns false if there is no permission to create
/// it.
pub fn attach(image: &Image, access: SourceAccess, mount: &DeviceMount<'_>) -> io::Result<bool> {
    // The kernel has no device for an NBD export of ours.
    let Some(file) = image.file() else { return Ok(false) };
    if file.is_block_device() && image.is_whole_file() {
        let path = file.path().canonicalize()?;
        return file.hand_over(|| mount.mount(&path));
    }
    // The loop device lives as long as the mount uses it, and must allow writes if the mount does.
    let token = match access {
        SourceAccess::Write => LoopDevice::attach(file.path()),
        SourceAccess::Read => LoopDevice::attach_read_only(file.path()),
    };
    Ok(token.is_ok_and(|token| mount.mount(token.path()).is_ok()))
}
