//! The structures and constants of Linux's `include/uapi/linux/fuse.h`, in native byte order.
//!
//! Names are those of that header in words; times have their unit as a suffix.
//!
//! *Older kernels* send shorter structures and fewer requests. A field that was appended to a structure after
//! 7.23 (Linux 3.15) is a structure of its own here, which is parsed only if its init flag was negotiated.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol that this module implements.
pub const MAJOR: u32 = 7;
/// Minor version; the kernel uses the smaller one of both sides. Its newest request that we answer is STATX.
pub const MINOR: u32 = 39;
/// Oldest supported minor version (Linux 3.15); earlier ones have other structures.
pub const MINOR_LEAST: u32 = 23;

/// Node number of the root directory (`FUSE_ROOT_ID`).
pub const ROOT_NODE: u64 = 1;

/// Request opcodes.
pub mod opcode {
    /// Looks up a name in a directory.
    pub const LOOKUP: u32 = 1;
    /// Drops lookup references to an inode; it has no answer.
    pub const FORGET: u32 = 2;
    /// Returns the attributes of an inode.
    pub const GETATTR: u32 = 3;
    /// Changes attributes of an inode.
    pub const SETATTR: u32 = 4;
    /// Returns the target of a symbolic link.
    pub const READLINK: u32 = 5;
    /// Creates a symbolic link.
    pub const SYMLINK: u32 = 6;
    /// Creates a file that is not opened.
    pub const MKNOD: u32 = 8;
    /// Creates a directory.
    pub const MKDIR: u32 = 9;
    /// Removes a name of anything but a directory.
    pub const UNLINK: u32 = 10;
    /// Removes an empty directory.
    pub const RMDIR: u32 = 11;
    /// Renames an inode.
    pub const RENAME: u32 = 12;
    /// Adds a name to an inode.
    pub const LINK: u32 = 13;
    /// Opens a file.
    pub const OPEN: u32 = 14;
    /// Reads from a file.
    pub const READ: u32 = 15;
    /// Writes to a file.
    pub const WRITE: u32 = 16;
    /// Returns the space of the file system.
    pub const STATFS: u32 = 17;
    /// Closes a file for good.
    pub const RELEASE: u32 = 18;
    /// Makes a file durable.
    pub const FSYNC: u32 = 20;
    /// Sets an extended attribute.
    pub const SETXATTR: u32 = 21;
    /// Returns the value of an extended attribute.
    pub const GETXATTR: u32 = 22;
    /// Returns the names of all extended attributes.
    pub const LISTXATTR: u32 = 23;
    /// Removes an extended attribute.
    pub const REMOVEXATTR: u32 = 24;
    /// A file descriptor is closed.
    pub const FLUSH: u32 = 25;
    /// Begins the connection and negotiates its flags.
    pub const INIT: u32 = 26;
    /// Opens a directory.
    pub const OPENDIR: u32 = 27;
    /// Lists a directory.
    pub const READDIR: u32 = 28;
    /// Closes a directory for good.
    pub const RELEASEDIR: u32 = 29;
    /// Makes a directory durable.
    pub const FSYNCDIR: u32 = 30;
    /// Creates and opens a file.
    pub const CREATE: u32 = 35;
    /// The process that sent a request was interrupted.
    pub const INTERRUPT: u32 = 36;
    /// Ends the connection. With a block device, umount(2) waits for the answer.
    pub const DESTROY: u32 = 38;
    /// Executes an ioctl.
    pub const IOCTL: u32 = 39;
    /// Drops lookup references to several inodes; it has no answer.
    pub const BATCH_FORGET: u32 = 42;
    /// Reserves or frees a range of a file.
    pub const FALLOCATE: u32 = 43;
    /// Lists a directory with the attributes of its entries.
    pub const READDIRPLUS: u32 = 44;
    /// Renames an inode, with flags.
    pub const RENAME2: u32 = 45;
    /// Finds data or a hole.
    pub const LSEEK: u32 = 46;
    /// Copies between files.
    pub const COPY_FILE_RANGE: u32 = 47;
    /// Makes the file system durable.
    pub const SYNCFS: u32 = 50;
    /// Creates and opens a file without a name.
    pub const TMPFILE: u32 = 51;
    /// Returns the attributes of an inode with its birth time.
    pub const STATX: u32 = 52;
}

/// Init flags: capabilities that are negotiated with INIT.
pub mod init_flags {
    /// Reads may be sent in parallel.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// OPEN truncates; otherwise a SETATTR follows it.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// Lookups of `.` and `..` work, as NFS needs them.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// A write may have more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The file system applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// Directories accept ioctls.
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    /// The file system answers READDIRPLUS.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses between READDIR and READDIRPLUS.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Direct requests may be sent in parallel.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The kernel caches writes.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// Lookups and listings of a directory may be sent in parallel.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel checks access control lists.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// The answer tells the maximum number of pages of a request.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The kernel caches targets of symbolic links.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// The kernel lists directories without opening them once OPENDIR was answered with ENOSYS, and caches the listings.
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// The file system clears the set-user-id and set-group-id bits when it is told to.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has [further arguments](super::SetxattrMoreIn).
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// The init request has [further flags](super::InitMoreIn).
    pub const INIT_EXT: u64 = 1 << 30;
    /// Files with direct I/O can be mapped shared.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests are received and answered through io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of [`SetattrIn::valid`].
pub mod valid {
    /// The mode changes.
    pub const MODE: u32 = 1 << 0;
    /// The owner changes.
    pub const UID: u32 = 1 << 1;
    /// The group changes.
    pub const GID: u32 = 1 << 2;
    /// The size changes.
    pub const SIZE: u32 = 1 << 3;
    /// The access time changes.
    pub const ATIME: u32 = 1 << 4;
    /// The modification time changes.
    pub const MTIME: u32 = 1 << 5;
    /// The file handle is valid.
    pub const HANDLE: u32 = 1 << 6;
    /// The access time becomes the current time.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The modification time becomes the current time.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// The change time changes.
    pub const CTIME: u32 = 1 << 10;
    /// The set-user-id and set-group-id bits are cleared.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits of [`OpenOut::open_flags`].
pub mod opened {
    /// The file bypasses the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Its cached content stays valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The kernel caches the listing of this directory.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// Direct writes may be sent in parallel.
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
/// Bit of [`StatxOut::mask`] for the birth time.
pub const STATX_BTIME: u32 = 0x800;
/// Bits of [`StatxOut::mask`] for all basic attributes.
pub const STATX_BASIC: u32 = 0x7FF;

/// Declares structures that the kernel sends.
macro_rules! incoming {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, FromBytes, Immutable, KnownLayout)]
        pub struct $name { $(#[allow(missing_docs)] pub $field: $kind,)* }
    )*};
}

/// Declares structures that are sent to the kernel.
macro_rules! outgoing {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
        pub struct $name { $(#[allow(missing_docs)] pub $field: $kind,)* }
    )*};
}

incoming! {
    /// Header of every request.
    InHeader {
        length_bytes: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extensions: u16, padding: u16,
    }
    /// Arguments of INIT.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// Follows [`InitIn`] with [`init_flags::INIT_EXT`].
    InitMoreIn { flags2: u32, unused: [u32; 11], }
    /// Arguments of FORGET.
    ForgetIn { lookups: u64, }
    /// Arguments of INTERRUPT: the number of the request that is interrupted.
    InterruptIn { unique: u64, }
    /// Arguments of GETATTR.
    GetattrIn { getattr_flags: u32, padding: u32, handle: u64, }
    /// Arguments of BATCH_FORGET; `count` times [`ForgetOne`] follows.
    BatchForgetIn { count: u32, padding: u32, }
    /// References to one inode that BATCH_FORGET drops.
    ForgetOne { node: u64, lookups: u64, }
    /// Arguments of SETATTR.
    SetattrIn {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atime_nanoseconds: u32, mtime_nanoseconds: u32, ctime_nanoseconds: u32, mode: u32, unused4: u32, uid: u32,
        gid: u32, unused5: u32,
    }
    /// Arguments of MKNOD; the name follows.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// Arguments of MKDIR; the name follows.
    MkdirIn { mode: u32, umask: u32, }
    /// Arguments of RENAME; the old and the new name follow.
    RenameIn { new_dir: u64, }
    /// Arguments of RENAME2; the old and the new name follow.
    Rename2In { new_dir: u64, flags: u32, padding: u32, }
    /// Arguments of LINK; the new name follows.
    LinkIn { old_node: u64, }
    /// Arguments of OPEN and OPENDIR.
    OpenIn { flags: u32, open_flags: u32, }
    /// Arguments of CREATE and TMPFILE; the name follows.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Arguments of RELEASE and RELEASEDIR.
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// Arguments of READ, READDIR and READDIRPLUS.
    ReadIn {
        handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// Arguments of WRITE; the data follows.
    WriteIn {
        handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// Arguments of FSYNC and FSYNCDIR.
    FsyncIn { handle: u64, fsync_flags: u32, padding: u32, }
    /// Arguments of SETXATTR; the name and the value follow.
    SetxattrIn { size: u32, flags: u32, }
    /// Follows [`SetxattrIn`] with [`init_flags::SETXATTR_EXT`].
    SetxattrMoreIn { setxattr_flags: u32, padding: u32, }
    /// Arguments of GETXATTR and LISTXATTR; GETXATTR's name follows.
    GetxattrIn { size: u32, padding: u32, }
    /// Arguments of IOCTL; its data follows.
    IoctlIn { handle: u64, flags: u32, command: u32, argument: u64, in_bytes: u32, out_bytes: u32, }
    /// Arguments of FALLOCATE.
    FallocateIn { handle: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// Arguments of LSEEK.
    LseekIn { handle: u64, offset: u64, whence: u32, padding: u32, }
    /// Arguments of COPY_FILE_RANGE.
    CopyFileRangeIn {
        handle_in: u64, offset_in: u64, node_out: u64, handle_out: u64, offset_out: u64, length: u64, flags: u64,
    }
}

outgoing! {
    /// Header of every answer and notification.
    OutHeader { length_bytes: u32, error: i32, unique: u64, }
    /// Answer to INIT.
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
    /// Answer to LOOKUP and to requests that create an inode.
    EntryOut {
        node: u64, generation: u64, name_valid_s: u64, attr_valid_s: u64, name_valid_ns: u32, attr_valid_ns: u32,
        attr: Attr,
    }
    /// Answer to GETATTR and SETATTR.
    AttrOut { attr_valid_s: u64, attr_valid_ns: u32, padding: u32, attr: Attr, }
    /// Answer to OPEN and OPENDIR; with CREATE and TMPFILE it follows [`EntryOut`].
    OpenOut { handle: u64, open_flags: u32, padding: u32, }
    /// Answer to WRITE and COPY_FILE_RANGE.
    WriteOut { size: u32, padding: u32, }
    /// Answer to STATFS.
    StatfsOut {
        blocks: u64, free: u64, available: u64, inodes: u64, free_inodes: u64, block_bytes: u32, name_bytes: u32,
        fragment_bytes: u32, padding: u32, spare: [u32; 6],
    }
    /// Answer to GETXATTR and LISTXATTR that tells only the length.
    GetxattrOut { size: u32, padding: u32, }
    /// Answer to IOCTL; its data follows.
    IoctlOut { result: i32, flags: u32, in_vectors: u32, out_vectors: u32, }
    /// Answer to LSEEK.
    LseekOut { offset: u64, }
    /// Header of a directory entry; the name follows, padded to 8 bytes.
    Dirent { ino: u64, next: u64, name_bytes: u32, kind: u32, }
    /// A time in [`StatxOut`].
    StatxTime { seconds: i64, nanoseconds: u32, reserved: i32, }
    /// Answer to STATX.
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

/// Command through io_uring that lends an entry to the kernel for its first request.
pub const URING_REGISTER: u32 = 1;
/// Command through io_uring that gives the kernel an answer, and lends it the entry for the next request.
pub const URING_COMMIT_AND_FETCH: u32 = 2;

/// Argument of a command through io_uring (`struct fuse_uring_cmd_req`).
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
pub struct UringCommand {
    /// Zero.
    pub flags: u64,
    /// Number of the request that is answered.
    pub commit_id: u64,
    /// Number of the queue, which is that of a processor.
    pub queue: u16,
    /// Zero.
    pub padding: [u16; 3],
}

/// Description of the payload of a request or answer through io_uring (`struct fuse_uring_ent_in_out`).
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct UringPayload {
    /// Zero.
    pub flags: u64,
    /// Number by which the answer names its request.
    pub commit_id: u64,
    /// Length of the payload in bytes.
    pub payload_bytes: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub reserved: u64,
}

const _: () = {
    assert!(size_of::<InHeader>() == 40 && size_of::<OutHeader>() == 16);
    assert!(size_of::<InitIn>() == 16 && size_of::<InitMoreIn>() == 48 && size_of::<InitOut>() == 64);
    assert!(size_of::<SetxattrIn>() == 8 && size_of::<SetxattrMoreIn>() == 8);
    assert!(size_of::<SetattrIn>() == 88 && size_of::<WriteIn>() == 40 && size_of::<CopyFileRangeIn>() == 56);
    assert!(size_of::<Attr>() == 88 && size_of::<EntryOut>() == 128 && size_of::<AttrOut>() == 104);
    assert!(size_of::<UringCommand>() == 24 && size_of::<UringPayload>() == 32);
    assert!(size_of::<StatfsOut>() == 80 && size_of::<StatxOut>() == 288);
};
