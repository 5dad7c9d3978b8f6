//! The vocabulary: operations on a mounted file system, and their answers.

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Content, Entry, Manifest, Overwrites, Pattern, Tree, Workload, examine::Found, workload::Stage,
};

/// Prefix of the agent's messages in the kernel's log about operations that take long.
pub const WATCH: &str = "agent:";

/// One operation. Paths are absolute in the guest; [`Runner`](crate::Runner) can prefix them with a
/// directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names of the fields and the comments of the variants are enough
pub enum Op {
    /// Makes the directory and mounts on it. Options are the file system's, and those of every file system, such as `noatime`.
    Mount { source: Bytes, dir: Bytes, fs: String, options: String, read_only: bool },
    /// Unmounts.
    Unmount { dir: Bytes },
    /// Answers with the manifest of a tree.
    Manifest { dir: Bytes },
    /// Makes a directory.
    Mkdir { path: Bytes, mode: u32 },
    /// Removes an empty directory.
    Rmdir { path: Bytes },
    /// Writes at an offset. Makes the file with mode 0666 if it does not exist.
    Write { path: Bytes, offset: u64, content: Content },
    /// Writes at an offset through a file opened with O_SYNC. Makes the file with mode 0666 if it does not
    /// exist.
    WriteSync { path: Bytes, offset: u64, content: Content },
    /// Sets the size.
    Truncate { path: Bytes, size: u64 },
    /// fallocate(2).
    Allocate { path: Bytes, how: Allocate, offset: u64, length: u64 },
    /// Renames, replacing an existing target.
    Rename { from: Bytes, to: Bytes },
    /// Renames unless the target exists.
    RenameNew { from: Bytes, to: Bytes },
    /// Swaps two names.
    Exchange { from: Bytes, to: Bytes },
    /// Makes a hard link.
    Link { from: Bytes, to: Bytes },
    /// Makes a symbolic link.
    Symlink { target: Bytes, path: Bytes },
    /// Removes a name.
    Unlink { path: Bytes },
    /// Makes a device, FIFO or socket. `mode` includes its type bits.
    Mknod { path: Bytes, mode: u32, major: u32, minor: u32 },
    /// Sets an attribute by its full name.
    SetXattr { path: Bytes, name: Bytes, value: Content },
    /// Removes an attribute.
    RemoveXattr { path: Bytes, name: Bytes },
    /// Sets the permission bits.
    Chmod { path: Bytes, mode: u32 },
    /// Sets the owner, even of a symbolic link.
    Chown { path: Bytes, uid: u32, gid: u32 },
    /// Sets access and modification time (seconds, nanoseconds), even of a symbolic link.
    Times { path: Bytes, atime: (i64, u32), mtime: (i64, u32) },
    /// fsync(2) of a file or directory; `data_only` for fdatasync(2).
    Fsync { path: Bytes, data_only: bool },
    /// sync(2).
    Sync,
    /// Drops clean cached data.
    DropCaches,
    /// Lets time pass, so that timers of the kernel expire.
    Pause { nanoseconds: u64 },
    /// Answers with the stamped files of a tree.
    Examine { dir: Bytes },
    /// Opens a file and keeps it open under a number.
    Open { path: Bytes, handle: u32 },
    /// Opens a new file without a name in a directory (O_TMPFILE), and keeps it open under a number.
    OpenNameless { dir: Bytes, mode: u32, handle: u32 },
    /// Gives a name to an open file (linkat(2)).
    LinkOpen { handle: u32, to: Bytes },
    /// Writes to an open file.
    WriteOpen { handle: u32, offset: u64, content: Content },
    /// fsync(2) of an open file.
    FsyncOpen { handle: u32 },
    /// Closes an open file.
    Close { handle: u32 },
    /// Sets and clears `FS_*_FL` flags.
    Flags { path: Bytes, set: u32, clear: u32 },
    /// Sets the project of a file or directory.
    Project { path: Bytes, id: u32, inherit: bool },
    /// Drops, until the guest ends, the capability to exceed quota limits.
    KeepToLimits,
    /// Makes operations wait for space until the guest ends, because a cleaner is freeing some.
    WaitForRoom,
    /// Sets a file's compression (f2fs): 0 LZO, 1 LZ4, 2 zstd, 3 LZO-RLE.
    Compression { path: Bytes, algorithm: u8, log_cluster: u8 },
    /// Compresses a file now (f2fs, compress_mode=user).
    Compress { path: Bytes },
    /// Releases the blocks saved by compression (f2fs).
    Release { path: Bytes },
    /// Reserves them again (f2fs).
    Reserve { path: Bytes },
    /// Pins a file (f2fs).
    Pin { path: Bytes, pinned: bool },
    /// Begins or commits an atomic write on an open file (f2fs).
    Atomic { handle: u32, commit: bool },
    /// Cleans one section (f2fs).
    Collect { path: Bytes },
    /// Writes a checkpoint (f2fs).
    Checkpoint { path: Bytes },
    /// Enables fs-verity on a file.
    Verity { path: Bytes },
    /// Answers with the fs-verity digest of a sealed file, as `sha256:` and hexadecimal digits.
    Measure { path: Bytes },
    /// Adds an fscrypt key of 64 bytes `byte`, and sets a policy with it on an empty directory.
    Encrypt { dir: Bytes, byte: u8, policy: Policy },
    /// Writes a file of /proc or /sys.
    Tune { path: Bytes, value: Bytes },
    /// Answers with the content of a small file.
    Read { path: Bytes },
    /// Reads or writes a file record by record. Answers with the number of records.
    Pattern { path: Bytes, pattern: Pattern },
    /// Overwrites a file repeatedly. Answers with the duration of each write.
    Overwrite { path: Bytes, overwrites: Overwrites },
    /// Answers with the space of a mounted file system.
    Space { dir: Bytes },
    /// Loads a kernel module with its parameters.
    LoadModule { path: Bytes, parameters: String },
    /// Attaches the flash of a name to UBI, and makes one volume of its whole space.
    UbiAttach { flash: String, volume: String },
    /// Attaches the flash of a name to UBI, with the volumes that are there.
    UbiFind { flash: String },
    /// Detaches the flash of a name from UBI.
    UbiDetach { flash: String },
    /// Writes the content of a file to the start of another, which is made if it does not exist.
    Copy { from: Bytes, to: Bytes },
    /// Stops or continues the kernel threads whose names start with `name`.
    Threads { name: String, go_on: bool },
    /// Connects a device of the kernel's NBD driver to a server, `ADDRESS:PORT`. Answers with its size in
    /// blocks of 512 bytes.
    NbdAttach { server: String, device: Bytes },
    /// Disconnects it.
    NbdDetach { device: Bytes },
    /// Makes a tree, described by a seed, in an existing directory. Answers with the number of files.
    Plant { dir: Bytes, tree: Tree },
    /// Runs a stage of a workload in an existing directory. Answers with the durations of its units, in
    /// nanoseconds.
    Workload { dir: Bytes, workload: Workload, stage: Stage },
    /// Runs a stage of the workload whose steps are in the file `list`, a
    /// [`StepList`](crate::workload::StepList) as JSON, in an existing directory. Answers as a workload does.
    Steps { dir: Bytes, list: Bytes, stage: Stage },
    /// Removes a directory with everything in it.
    RemoveTree { dir: Bytes },
    /// Answers with the memory of all programs of this name.
    Memory { name: String },
    /// Runs a program to its end. Answers with its output.
    Execute { program: Bytes, arguments: Vec<Bytes> },
    /// Terminates a background process and waits for its end.
    End { process: u32 },
}

/// Mode of [`Op::Allocate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocate {
    /// Reserves blocks and extends the file.
    Extend,
    /// Reserves blocks beyond the end of the file without extending it.
    KeepSize,
    /// Makes a hole.
    Punch,
    /// Zeroes a range.
    Zero,
    /// Removes a range from the file.
    Collapse,
    /// Inserts a range into the file.
    Insert,
}

/// One line from the guest. The answer to an operation is any number of `Entry` and then one `Done` or
/// `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The guest is up and accepts operations.
    Ready,
    /// One entry of the requested manifest.
    Entry(Box<Entry>),
    /// The operation succeeded.
    Done {
        /// Result of the operation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<Answer>,
        /// Lines of the kernel's log since the last answer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        log: Vec<Message>,
    },
    /// The kernel refused the operation.
    Failed {
        /// Error number, 0 if the error is not the kernel's.
        errno: i32,
        /// Error message.
        error: String,
        /// Lines of the kernel's log since the last answer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        log: Vec<Message>,
    },
}

/// One message of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Severity: 0 emergency, 3 error, 4 warning, 5 notice, 6 information, 7 debugging.
    pub level: u8,
    /// Its text.
    pub text: String,
}

/// Results of operations that have one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Kernel and volume. The entries precede it.
    Manifest(Manifest),
    /// Content of a file.
    Content(Bytes),
    /// Blocks that were released or reserved.
    Blocks(u64),
    /// Records that were read or written.
    Records(u64),
    /// Durations of single writes, or of the units of a workload, in nanoseconds of the machine's clock.
    Times(Vec<u64>),
    /// Space of a file system.
    Space {
        /// Total size in bytes.
        total_bytes: u64,
        /// Bytes that a user may still write.
        free_bytes: u64,
    },
    /// Stamped files of a tree.
    Examined(Vec<Found>),
    /// Memory of the programs themselves in bytes, without pages of files.
    Memory(u64),
    /// Output of a program.
    Output {
        /// Exit code; 128 plus the signal's number if a signal ended it.
        code: i32,
        /// Standard output.
        stdout: Bytes,
        /// Standard error.
        stderr: Bytes,
    },
}

/// A policy of fscrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Descriptor of the key in a policy of version 1; a policy without one has version 2.
    pub descriptor: Option<[u8; 8]>,
    /// Number of the mode of contents.
    pub contents: u8,
    /// Number of the mode of names.
    pub names: u8,
    /// Padding of names and scheme of vectors.
    pub flags: u8,
}

impl Policy {
    /// Returns the key of [`Op::Encrypt`] for a byte.
    #[must_use]
    pub fn key(&self, byte: u8) -> [u8; 64] {
        // Version 1 derives equal halves from equal blocks, which XTS refuses.
        let step = u8::from(self.descriptor.is_some());
        std::array::from_fn(|n| byte.wrapping_add(step * n as u8))
    }

    /// Returns the policy as the argument of `FS_IOC_SET_ENCRYPTION_POLICY`. `name` is the descriptor or the identifier of
    /// its key.
    #[must_use]
    pub fn argument(&self, name: &[u8]) -> Vec<u8> {
        let modes = [self.contents, self.names, self.flags];
        match self.descriptor {
            Some(_) => [&[0][..], &modes, name].concat(),
            None => [&[2][..], &modes, &[0; 4], name].concat(),
        }
    }
}

impl Policy {
    /// Version 2, AES-256-XTS for contents, AES-256-CTS for names, names padded to 32 bytes.
    pub const USUAL: Policy = Policy { descriptor: None, contents: 1, names: 4, flags: 3 };
}
