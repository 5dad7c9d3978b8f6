//! The FUSE wire protocol: the structures of Linux's `include/uapi/linux/fuse.h`, in native byte order.
//!
//! *Older kernels* send shorter structures and fewer requests. A field that was appended to a structure after
//! 7.23 (Linux 3.15) is a structure of its own here, which is parsed only if its init flag was negotiated.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol that this module implements.
pub const MAJOR: u32 = 7;
/// Minor version; the kernel uses the smaller one of both sides. Its newest request that we answer is STATX.
pub const MINOR: u32 = 39;
/// Oldest supported minor version (Linux 3.15); earlier ones have other structures.
pub const MINOR_LEAST: u32 = 23;

/// Request opcodes.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Init flags: capabilities that are negotiated with INIT.
pub mod init_flags {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Bits of [`SetattrIn::valid`].
pub mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits of [`OpenOut::open_flags`].
pub mod opened {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bit of [`OpenIn::open_flags`] and [`CreateIn::open_flags`]: truncation clears the set-user-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// Bit of [`GetattrIn::getattr_flags`]: the file handle is valid.
pub const GETATTR_HANDLE: u32 = 1;
/// Bit of [`WriteIn::write_flags`]: a write-back from the page cache; the writing process is unknown.
pub const WRITE_CACHE: u32 = 1;
/// Bit of [`ReadIn::read_flags`] and [`WriteIn::write_flags`]: the lock owner is valid. The kernel sets it
/// for exactly those reads and writes that bypass the page cache.
pub const LOCK_OWNER: u32 = 1 << 1;
/// Bit of [`WriteIn::write_flags`]: the write clears the set-user-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Bit of [`WriteIn::flags`]: the content is durable when the write returns (`O_DSYNC` in Linux,
/// `include/uapi/asm-generic/fcntl.h`; rustix defines it as `O_SYNC`). The kernel sets it on synchronous
/// mounts, too.
pub const O_DSYNC: u32 = 0x1000;
/// Bit of [`SetxattrMoreIn::setxattr_flags`]: the ACL clears the set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Bit of [`FsyncIn::fsync_flags`]: only the content (fdatasync(2)).
pub const FSYNC_DATA: u32 = 1;
/// Bit of [`Statx::mask`] for the birth time, followed by the bits of all basic attributes.
pub const STATX_BTIME: u32 = 0x800;
pub const STATX_BASIC: u32 = 0x7FF;

/// Declares structures that the kernel sends.
macro_rules! incoming {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
        #[allow(dead_code)] // some fields are never read
        pub struct $name { $(pub $field: $kind,)* }
    )*};
}

/// Declares structures that are sent to the kernel.
macro_rules! outgoing {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
        pub struct $name { $(pub $field: $kind,)* }
    )*};
}

incoming! {
    /// Header of every request.
    InHeader {
        length_bytes: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extensions: u16, padding: u16,
    }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// Follows [`InitIn`] with [`init_flags::INIT_EXT`].
    InitMoreIn { flags2: u32, unused: [u32; 11], }
    ForgetIn { lookups: u64, }
    /// The number of the request that is interrupted.
    InterruptIn { unique: u64, }
    GetattrIn { getattr_flags: u32, padding: u32, handle: u64, }
    BatchForgetIn { count: u32, padding: u32, }
    ForgetOne { node: u64, lookups: u64, }
    SetattrIn {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atime_nanoseconds: u32, mtime_nanoseconds: u32, ctime_nanoseconds: u32, mode: u32, unused4: u32, uid: u32,
        gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { new_dir: u64, }
    Rename2In { new_dir: u64, flags: u32, padding: u32, }
    LinkIn { old_node: u64, }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    ReadIn {
        handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn {
        handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    FsyncIn { handle: u64, fsync_flags: u32, padding: u32, }
    SetxattrIn { size: u32, flags: u32, }
    /// Follows [`SetxattrIn`] with [`init_flags::SETXATTR_EXT`].
    SetxattrMoreIn { setxattr_flags: u32, padding: u32, }
    GetxattrIn { size: u32, padding: u32, }
    IoctlIn { handle: u64, flags: u32, command: u32, argument: u64, in_bytes: u32, out_bytes: u32, }
    FallocateIn { handle: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { handle: u64, offset: u64, whence: u32, padding: u32, }
    CopyFileRangeIn {
        handle_in: u64, offset_in: u64, node_out: u64, handle_out: u64, offset_out: u64, length: u64, flags: u64,
    }
}

outgoing! {
    /// Header of every answer and notification.
    OutHeader { length_bytes: u32, error: i32, unique: u64, }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_granularity_ns: u32, max_pages: u16, map_alignment: u16, flags2: u32,
        unused: [u32; 7],
    }
    /// Attributes of an inode.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atime_nanoseconds: u32,
        mtime_nanoseconds: u32, ctime_nanoseconds: u32, mode: u32, links: u32, uid: u32, gid: u32, rdev: u32,
        block_bytes: u32, flags: u32,
    }
    EntryOut {
        node: u64, generation: u64, name_valid_s: u64, attr_valid_s: u64, name_valid_ns: u32, attr_valid_ns: u32,
        attr: Attr,
    }
    AttrOut { attr_valid_s: u64, attr_valid_ns: u32, padding: u32, attr: Attr, }
    OpenOut { handle: u64, open_flags: u32, padding: u32, }
    WriteOut { size: u32, padding: u32, }
    StatfsOut {
        blocks: u64, free: u64, available: u64, inodes: u64, free_inodes: u64, block_bytes: u32, name_bytes: u32,
        fragment_bytes: u32, padding: u32, spare: [u32; 6],
    }
    GetxattrOut { size: u32, padding: u32, }
    IoctlOut { result: i32, flags: u32, in_vectors: u32, out_vectors: u32, }
    LseekOut { offset: u64, }
    /// Header of a directory entry; the name follows, padded to 8 bytes.
    Dirent { ino: u64, next: u64, name_bytes: u32, kind: u32, }
    StatxTime { seconds: i64, nanoseconds: u32, reserved: i32, }
    StatxOut {
        attr_valid_s: u64, attr_valid_ns: u32, flags: u32, spare: [u64; 2], mask: u32, block_bytes: u32,
        attributes: u64, links: u32, uid: u32, gid: u32, mode: u16, padding: u16, ino: u64, size: u64,
        blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime, ctime: StatxTime,
        mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Inode invalidation (`FUSE_NOTIFY_INVAL_INODE`): cached data or attributes of an inode are stale.
    InvalidateInode { ino: u64, offset: i64, length: i64, }
}

/// Notification code of [`InvalidateInode`].
pub const INVALIDATE_INODE: i32 = 2;

const _: () = {
    assert!(size_of::<InHeader>() == 40 && size_of::<OutHeader>() == 16);
    assert!(size_of::<InitIn>() == 16 && size_of::<InitMoreIn>() == 48 && size_of::<InitOut>() == 64);
    assert!(size_of::<SetxattrIn>() == 8 && size_of::<SetxattrMoreIn>() == 8);
    assert!(size_of::<SetattrIn>() == 88 && size_of::<WriteIn>() == 40 && size_of::<CopyFileRangeIn>() == 56);
    assert!(size_of::<Attr>() == 88 && size_of::<EntryOut>() == 128 && size_of::<AttrOut>() == 104);
    assert!(size_of::<StatfsOut>() == 80 && size_of::<StatxOut>() == 288);
};

/// Parser of a request's arguments, which follow its header. Too short arguments give EINVAL.
pub struct Arguments<'a>(pub &'a [u8]);

impl<'a> Arguments<'a> {
    /// Parses the next structure.
    pub fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = rest;
        Ok(value)
    }

    /// Parses the next zero-terminated name.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    /// Takes the next `count` bytes.
    pub fn bytes(&mut self, count: u32) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(count as usize).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// The payload of an answer; its buffer is reused.
pub struct Output {
    bytes: Vec<u8>,
    used: usize,
}

impl Output {
    /// Creates a buffer for `room` bytes.
    pub fn new(room: usize) -> Output {
        Output { bytes: vec![0; room], used: 0 }
    }

    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Appends a structure.
    pub fn put(&mut self, value: &(impl IntoBytes + Immutable)) {
        self.extend(value.as_bytes());
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[self.used..end].copy_from_slice(bytes);
        self.used = end;
    }

    /// Lets `fill` write to a buffer of `most` bytes, and appends as many bytes as `fill` returns.
    pub fn fill<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let end = self.used + most;
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.used += fill(&mut self.bytes[self.used..end])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_taken_in_order_and_short_ones_refused() {
        let bytes = [&7_u64.to_ne_bytes()[..], b"one\0two\0", b"abc"].concat();
        let mut arguments = Arguments(&bytes);
        assert_eq!(arguments.take::<ForgetIn>().unwrap().lookups, 7);
        assert_eq!((arguments.name(), arguments.name()), (Ok(&b"one"[..]), Ok(&b"two"[..])));
        assert_eq!(arguments.name(), Err(Errno::INVAL), "the zero is missing");
        assert_eq!(arguments.bytes(4), Err(Errno::INVAL));
        assert_eq!(arguments.bytes(3), Ok(&b"abc"[..]));
        assert!(arguments.take::<InHeader>().is_err());
    }

    #[test]
    fn output_grows_and_is_used_again() {
        let mut output = Output::new(4);
        output.put(&GetxattrOut { size: 5, padding: 0 });
        output
            .fill(3, |room| {
                room[0] = 9;
                Ok::<_, ()>(1)
            })
            .unwrap();
        assert_eq!(output.bytes(), [&5_u32.to_ne_bytes()[..], &[0; 4], &[9]].concat());
        output.clear();
        assert_eq!(output.bytes(), [0_u8; 0]);
    }
}
