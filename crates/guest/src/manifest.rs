//! The manifest of a tree: everything that a kernel reports about each entry.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Bytes, ioctl};

/// Maximum size of a file whose content is digested as a whole.
pub const WHOLE_BYTES: u64 = 64 << 20;
/// Unit of [`Entry::sparse_sha256`].
const PIECE_BYTES: usize = 4096;

/// A tree at one moment: its entries in the byte order of their paths, and the file system's own counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Release of the kernel that read it.
    pub kernel: String,
    /// The file system's own figures.
    pub volume: Volume,
    /// All entries; the root is `.`.
    pub entries: Vec<Entry>,
}

/// Result of statfs(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Magic number of the file system.
    pub magic: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Size in blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free blocks for ordinary users.
    pub available_blocks: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
    /// Maximum length of a name in bytes.
    pub name_bytes: u64,
}

/// File type of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    #[default]
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// One entry. A key that is absent from the JSON has its default: an empty list, zero, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path below the root, `.` for the root itself.
    pub path: Bytes,
    /// Its file type.
    pub kind: Kind,
    /// Inode number.
    pub ino: u64,
    /// Permission bits with set-uid, set-gid and sticky; four octal digits in JSON.
    #[serde(with = "octal")]
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes that stat(2) counts.
    pub blocks: u64,
    /// Device number of a device: major, minor.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rdev: Option<(u32, u32)>,
    /// Last access: seconds, nanoseconds.
    pub atime: (i64, u32),
    /// Last change of the content.
    pub mtime: (i64, u32),
    /// Last change of the inode.
    pub ctime: (i64, u32),
    /// Creation, if the file system records it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub btime: Option<(i64, u32)>,
    /// `FS_*_FL` flags of files and directories, if the file system has them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub flags: u32,
    /// Project.
    #[serde(default, skip_serializing_if = "is_default")]
    pub project: u32,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "is_default")]
    pub target: Option<Bytes>,
    /// SHA-256 of a regular file's content, in hexadecimal, up to [`WHOLE_BYTES`] of size.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sha256: Option<String>,
    /// For larger (sparse) files instead: SHA-256 over each piece of 4096 bytes that is not all zeroes, its
    /// number (64 bits, little-endian) and then its bytes, the last piece padded with zeroes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sparse_sha256: Option<String>,
    /// Runs of data according to SEEK_DATA and SEEK_HOLE: offset and length. None if that is the whole file,
    /// and for files of f2fs with the compression flag.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data: Option<Vec<(u64, u64)>>,
    /// Blocks saved by compression, for files of f2fs with the compression flag.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compressed_blocks: Option<u64>,
    /// Extended attributes with their full names, ACLs as `system.posix_acl_*`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Failed reads: the system call and the error's name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub errors: Vec<String>,
}

impl Entry {
    /// Copies the content facts of the same file's other name.
    fn take_content(&mut self, first: &Entry) {
        (self.flags, self.project) = (first.flags, first.project);
        self.sha256.clone_from(&first.sha256);
        self.sparse_sha256.clone_from(&first.sparse_sha256);
        self.data.clone_from(&first.data);
        self.compressed_blocks = first.compressed_blocks;
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

mod octal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{mode:04o}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        u32::from_str_radix(&text, 8).map_err(|_| de::Error::custom(format!("no mode: {text}")))
    }
}

impl Manifest {
    /// Makes the manifest of the tree at `root`, including contents.
    pub fn of_tree(root: &Path) -> io::Result<Manifest> {
        let mut manifest = Manifest::head(root)?;
        walk(root, &mut |entry| {
            manifest.entries.push(entry);
            Ok(())
        })?;
        manifest.sort();
        Ok(manifest)
    }

    /// Makes a manifest without entries: kernel and volume.
    pub fn head(root: &Path) -> io::Result<Manifest> {
        let stat = fs::statfs(root)?;
        let volume = Volume {
            magic: stat.f_type as u64,
            block_bytes: stat.f_bsize as u64,
            blocks: stat.f_blocks,
            free_blocks: stat.f_bfree,
            available_blocks: stat.f_bavail,
            files: stat.f_files,
            free_files: stat.f_ffree,
            name_bytes: stat.f_namelen as u64,
        };
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Ok(Manifest { kernel, volume, entries: Vec::new() })
    }

    /// Sorts the entries by the bytes of their paths.
    pub fn sort(&mut self) {
        self.entries.sort_by(|a, b| a.path.cmp(&b.path));
    }

    /// Returns the entry at `path`.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        let path = Bytes::from(path);
        let at = self.entries.binary_search_by(|entry| entry.path.cmp(&path)).ok()?;
        self.entries.get(at)
    }

    /// Parses a manifest from JSON.
    pub fn from_json(text: &str) -> serde_json::Result<Manifest> {
        serde_json::from_slice(text.as_bytes())
    }

    /// Writes the manifest as JSON, one entry per line.
    pub fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "{{\"kernel\":{},", serde_json::to_string(&self.kernel)?)?;
        writeln!(out, "\"volume\":{},", serde_json::to_string(&self.volume)?)?;
        write!(out, "\"entries\":[")?;
        for (n, entry) in self.entries.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(out, "{comma}\n{}", serde_json::to_string(entry)?)?;
        }
        writeln!(out, "\n]}}")
    }
}

/// Examines every entry of the tree at `root` and passes it to `found`, in no particular order. Failed reads
/// are recorded in the entry's `errors`. File systems mounted below are not entered.
///
/// # Errors
/// Only those of `found`, and of a root that cannot be examined.
pub fn walk(root: &Path, found: &mut dyn FnMut(Entry) -> io::Result<()>) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let (top, device) = look(root, ".".into())?;
    let mut pending = vec![top];
    // A file is read once, however many names it has: hundreds of links to some megabytes would take minutes.
    let mut linked: HashMap<_, Entry> = HashMap::new();
    while let Some(mut dir) = pending.pop() {
        let mut names = Vec::new();
        if let Err(errno) = list(root, &dir.path, &mut names) {
            dir.errors.push(failure("readdir", errno));
        }
        for (path, told) in names {
            let (mut entry, on) = match look(root, path.clone()) {
                Ok(seen) => seen,
                Err(errno) => {
                    dir.errors.push(format!("{path}: {}", failure("statx", errno)));
                    continue;
                }
            };
            if told != FileType::Unknown && kind_of(told) != Some(entry.kind) {
                entry.errors.push(format!("readdir returns {told:?}"));
            }
            match entry.kind {
                Kind::Dir if on == device => pending.push(entry),
                Kind::File => {
                    match linked.get(&(on, entry.ino)) {
                        Some(first) => entry.take_content(first),
                        None => read_content(root, &mut entry, &mut buffer),
                    }
                    if entry.nlink > 1 && entry.errors.is_empty() {
                        linked.entry((on, entry.ino)).or_insert_with(|| entry.clone());
                    }
                    found(entry)?;
                }
                _ => found(entry)?,
            }
        }
        found(dir)?;
    }
    Ok(())
}

/// Returns the children of directory `dir` with the kinds from readdir.
fn list(root: &Path, dir: &Bytes, names: &mut Vec<(Bytes, FileType)>) -> Result<(), Errno> {
    let fd = open(root, dir, OFlags::DIRECTORY)?;
    for child in fs::Dir::new(fd)? {
        let child = child?;
        let name = child.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let mut path = if dir.0 == b"." { Vec::new() } else { [&dir.0[..], b"/"].concat() };
        path.extend_from_slice(name);
        names.push((Bytes(path), child.file_type()));
    }
    Ok(())
}

/// Returns the facts of an entry without reading a file's content, and its device.
fn look(root: &Path, path: Bytes) -> Result<(Entry, (u32, u32)), Errno> {
    let full = root.join(path.as_path());
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = fs::statx(fs::CWD, &full, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, mask)?;
    let kind = kind_of(FileType::from_raw_mode(stat.stx_mode.into())).ok_or(Errno::INVAL)?;
    let time = |t: fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
    let mut entry = Entry {
        path,
        kind,
        ino: stat.stx_ino,
        mode: u32::from(stat.stx_mode) & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        nlink: stat.stx_nlink,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        rdev: matches!(kind, Kind::Char | Kind::Block).then_some((stat.stx_rdev_major, stat.stx_rdev_minor)),
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| time(stat.stx_btime)),
        ..Entry::default()
    };
    if let Err(errno) = read_xattrs(&full, &mut entry.xattrs) {
        entry.errors.push(failure("getxattr", errno));
    }
    match kind {
        Kind::Symlink => match fs::readlinkat(fs::CWD, &full, Vec::new()) {
            Ok(target) => entry.target = Some(Bytes(target.into_bytes())),
            Err(errno) => entry.errors.push(failure("readlink", errno)),
        },
        Kind::Dir => {
            if let Ok(fd) = open(root, &entry.path, OFlags::DIRECTORY) {
                read_flags(&fd, &mut entry);
            }
        }
        _ => {}
    }
    Ok((entry, (stat.stx_dev_major, stat.stx_dev_minor)))
}

fn kind_of(told: FileType) -> Option<Kind> {
    Some(match told {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::CharacterDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Unknown => return None,
    })
}

/// Opens an entry for reading, if possible without changing its access time.
fn open(root: &Path, path: &Bytes, extra: OFlags) -> Result<OwnedFd, Errno> {
    let full = root.join(path.as_path());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | extra;
    match fs::open(&full, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => fs::open(&full, flags, Mode::empty()),
        opened => opened,
    }
}

fn read_flags(fd: &OwnedFd, entry: &mut Entry) {
    // A file system without flags or projects reports an error; then there are none.
    entry.flags = ioctl::flags(fd).unwrap_or(0);
    entry.project = ioctl::project(fd).unwrap_or(0);
}

fn read_xattrs(full: &Path, xattrs: &mut BTreeMap<Bytes, Bytes>) -> Result<(), Errno> {
    const LONGEST: usize = 65536; // XATTR_LIST_MAX and XATTR_SIZE_MAX of Linux
    if fs::llistxattr_query(full)? == 0 {
        return Ok(());
    }
    let mut names = vec![0_u8; LONGEST];
    let length = fs::llistxattr(full, &mut names[..])?;
    let mut value = vec![0_u8; LONGEST];
    for name in names[..length].split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let length = fs::lgetxattr(full, name, &mut value[..])?;
        xattrs.insert(name.into(), value[..length].into());
    }
    Ok(())
}

/// Returns flags, data runs and digest of a regular file.
fn read_content(root: &Path, entry: &mut Entry, buffer: &mut [u8]) {
    const FS_COMPR_FL: u32 = 4;
    let fd = match open(root, &entry.path, OFlags::NONBLOCK) {
        Ok(fd) => fd,
        Err(errno) => {
            entry.errors.push(failure("open", errno));
            return;
        }
    };
    read_flags(&fd, entry);
    // Linux 6.1 takes the addresses of compressed clusters for holes.
    let compressed = entry.flags & FS_COMPR_FL != 0;
    if compressed {
        entry.compressed_blocks = ioctl::compressed_blocks(&fd).ok();
    }
    let runs = match data_runs(&fd, entry.size) {
        _ if compressed => vec![(0, entry.size)],
        Ok(runs) => runs,
        Err(errno) => {
            entry.errors.push(failure("lseek", errno));
            return;
        }
    };
    let file = std::fs::File::from(fd);
    let digest = if entry.size <= WHOLE_BYTES {
        digest_whole(&file, entry.size, buffer).map(|digest| entry.sha256 = Some(digest))
    } else {
        digest_pieces(&file, entry.size, &runs, buffer).map(|digest| entry.sparse_sha256 = Some(digest))
    };
    if let Err(error) = digest {
        entry.errors.push(match Errno::from_io_error(&error) {
            Some(errno) => failure("read", errno),
            None => format!("read: {error}"),
        });
    }
    if entry.size > 0 && runs != [(0, entry.size)] {
        entry.data = Some(runs);
    }
}

fn digest_whole(file: &std::fs::File, size: u64, buffer: &mut [u8]) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut at = 0;
    loop {
        match file.read_at(buffer, at)? {
            0 if at == size => return Ok(hexadecimal(hash)),
            0 => return Err(io::Error::other(format!("{at} bytes of {size}"))),
            n => {
                hash.update(&buffer[..n]);
                at += n as u64;
            }
        }
    }
}

/// Reads only the runs of data: holes are zeroes and add no bytes.
fn digest_pieces(
    file: &std::fs::File,
    size: u64,
    runs: &[(u64, u64)],
    buffer: &mut [u8],
) -> io::Result<String> {
    let piece = PIECE_BYTES as u64;
    let mut hash = Sha256::new();
    let mut next = 0;
    for &(start, length) in runs {
        // Runs begin and end at any byte. A piece that two of them touch is read once.
        let mut at = (start / piece * piece).max(next);
        let end = (start + length).next_multiple_of(piece);
        while at < end {
            let want = (end - at).min(buffer.len() as u64) as usize;
            let part = &mut buffer[..want];
            let have = (size - at).min(want as u64) as usize;
            part[have..].fill(0);
            file.read_exact_at(&mut part[..have], at)?;
            for (n, bytes) in part.chunks_exact(PIECE_BYTES).enumerate() {
                if bytes.iter().any(|&byte| byte != 0) {
                    hash.update((at / piece + n as u64).to_le_bytes());
                    hash.update(bytes);
                }
            }
            at += want as u64;
        }
        next = next.max(end);
    }
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Alternates SEEK_DATA and SEEK_HOLE through the file.
fn data_runs(fd: impl AsFd, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match fs::seek(&fd, SeekFrom::Data(at)) {
            // Linux's f2fs searches a whole node of addresses, even beyond the end (f2fs_seek_block).
            Ok(start) if start >= size => break,
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let end = fs::seek(&fd, SeekFrom::Hole(start))?.min(size);
        if end <= start {
            return Err(Errno::INVAL);
        }
        runs.push((start, end - start));
        at = end;
    }
    Ok(runs)
}

/// Describes a failed system call in words that do not depend on the C library.
fn failure(call: &str, errno: Errno) -> String {
    let name = match errno {
        Errno::NOKEY => "ENOKEY",
        Errno::IO => "EIO",
        Errno::PERM => "EPERM",
        Errno::ACCESS => "EACCES",
        Errno::NOENT => "ENOENT",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::UCLEAN => "EUCLEAN",
        Errno::BADMSG => "EBADMSG",
        Errno::INVAL => "EINVAL",
        Errno::NOPKG => "ENOPKG",
        other => return format!("{call}: errno {}", other.raw_os_error()),
    };
    format!("{call}: {name}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_manifest_describes_a_tree_and_survives_json() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        std::fs::create_dir(root.join("d")).expect("mkdir");
        std::fs::write(root.join("d/f"), b"abc").expect("write");
        std::fs::set_permissions(root.join("d/f"), PermissionsExt::from_mode(0o4640)).expect("chmod");
        std::fs::hard_link(root.join("d/f"), root.join("g")).expect("link");
        symlink("nowhere", root.join("s")).expect("symlink");
        let sparse = std::fs::File::create(root.join("sparse")).expect("create");
        sparse.set_len((1 << 40) + 5).expect("truncate");
        sparse.write_all_at(b"end", (1 << 40) + 2).expect("write");

        let manifest = Manifest::of_tree(root).expect("a manifest");
        let paths: Vec<String> = manifest.entries.iter().map(|entry| entry.path.to_string()).collect();
        assert_eq!(paths, [".", "d", "d/f", "g", "s", "sparse"]);
        let link = Entry { path: "d/f".into(), ..manifest.get("g").expect("the link").clone() };
        assert_eq!(manifest.get("d/f"), Some(&link), "another name has the same content");
        let file = manifest.get("d/f").expect("the file");
        assert_eq!((file.kind, file.mode, file.nlink, file.size), (Kind::File, 0o4640, 2, 3));
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(file.sha256.as_deref(), Some(abc));
        assert_eq!(manifest.get("s").and_then(|link| link.target.clone()), Some("nowhere".into()));
        let mut pieces = Sha256::new();
        pieces.update((1_u64 << 28).to_le_bytes());
        pieces.update([&b"\0\0end"[..], &[0; 4091]].concat());
        let sparse = manifest.get("sparse").expect("the sparse file");
        assert_eq!((&sparse.sha256, &sparse.sparse_sha256), (&None, &Some(hexadecimal(pieces))));
        assert!(manifest.entries.iter().all(|entry| entry.errors.is_empty()));

        let mut json = Vec::new();
        manifest.write_json(&mut json).expect("JSON");
        let text = String::from_utf8(json).expect("UTF-8");
        assert_eq!(text.lines().count(), 3 + paths.len() + 1);
        assert_eq!(Manifest::from_json(&text).expect("our own JSON"), manifest);
    }
}
