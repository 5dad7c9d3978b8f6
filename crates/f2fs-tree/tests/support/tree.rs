//! A tree on the host with one of everything.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::fs::{CWD, FileType, Mode};

/// Returns true if the tests may make device nodes and the like.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a tree with one of everything that the caller's rights allow.
pub fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("dir/sub")).unwrap();
    fs::create_dir(root.join("dir-empty")).unwrap();
    fs::write(root.join("dir/hello"), "hello\n").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::set_permissions(root.join("dir/hello"), PermissionsExt::from_mode(0o4751)).unwrap();
    fs::set_permissions(root.join("dir-empty"), PermissionsExt::from_mode(0o1777)).unwrap();
    fs::hard_link(root.join("dir/hello"), root.join("a-link")).unwrap();
    fs::hard_link(root.join("dir/hello"), root.join("dir/sub/third")).unwrap();
    symlink("dir/hello", root.join("symlink")).unwrap();
    fs::write(root.join("x".repeat(255)), "long name").unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff\xfe")), "bytes").unwrap();
    make_node(&root.join("fifo"), FileType::Fifo, 0o640, 0);
    make_socket(&root.join("socket"));
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    sparse.write_all_at(&[7; 8192], 4 << 20).unwrap();
    sparse.write_all_at(b"end", (20 << 20) - 3).unwrap();
    let mut big = File::create(root.join("dir/big")).unwrap();
    for n in 0..100_000u32 {
        big.write_all(&n.to_le_bytes()).unwrap();
    }
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 1_600_000_000, tv_nsec: 1 },
        last_modification: rustix::fs::Timespec { tv_sec: -77, tv_nsec: 123_456_789 },
    };
    rustix::fs::utimensat(CWD, root.join("dir/big"), &times, rustix::fs::AtFlags::empty()).unwrap();
    set_xattrs(root);
    if is_root() {
        let device = rustix::fs::makedev(300, 70_000);
        make_node(&root.join("chr"), FileType::CharacterDevice, 0o600, device);
        std::os::unix::fs::lchown(root.join("empty"), Some(4_000_000_000), Some(65_537)).unwrap();
    }
}

fn make_node(path: &Path, kind: FileType, permissions: u32, device: u64) {
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(permissions), device).unwrap();
}

/// Makes a socket, if the directory is on the file system of /tmp. A path of a socket must be short, so it is bound
/// there and moved.
fn make_socket(path: &Path) {
    let short = PathBuf::from(format!(
        "/tmp/f2fs-test-{}-{}",
        std::process::id(),
        SOCKETS.fetch_add(1, Ordering::Relaxed)
    ));
    let _ = fs::remove_file(&short);
    drop(UnixListener::bind(&short).unwrap());
    if fs::rename(&short, path).is_err() {
        fs::remove_file(&short).unwrap();
    }
}

fn set_xattrs(root: &Path) {
    for (path, name, value) in [
        ("dir/big", "user.note", &b"a=b\nc\0d"[..]),
        ("dir/big", "user.a", b""),
        ("dir", "user.on-dir", b"yes"),
    ] {
        xattr::set(root.join(path), name, value).unwrap();
    }
    xattr::set(root.join("dir/hello"), "user.large", &[9; 3000]).unwrap();
    if is_root() {
        xattr::set(root.join("symlink"), "trusted.link", b"t").unwrap();
        xattr::set(
            root.join("dir/hello"),
            "security.capability",
            b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        )
        .unwrap();
    }
}

/// Distinguishes the sockets of concurrent tests.
static SOCKETS: AtomicU32 = AtomicU32::new(0);
