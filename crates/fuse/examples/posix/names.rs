//! Opening, creating, linking, renaming and removing: every type of file with every call, and extreme names.

use rustix::{
    fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timestamps, XattrFlags},
    io::Result,
};

use crate::ground::{Ground, KINDS, dir, file, make};

/// A call on one path.
type Call = (&'static str, fn(&str) -> Result<()>);

pub const CALLS: [Call; 22] = [
    ("stat", |path| rustix::fs::stat(path).map(drop)),
    ("lstat", |path| rustix::fs::lstat(path).map(drop)),
    ("open", |path| open(path, OFlags::RDONLY | OFlags::NONBLOCK)),
    ("create", |path| open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK)),
    ("create new", |path| open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK)),
    ("mkdir", |path| rustix::fs::mkdir(path, Mode::from(0o777))),
    ("mkfifo", |path| rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from(0o666), 0)),
    ("mknod", |path| rustix::fs::mknodat(CWD, path, FileType::RegularFile, Mode::from(0o666), 0)),
    ("symlink", |path| rustix::fs::symlink("x", path)),
    ("link from", |path| rustix::fs::link(path, "linked")),
    ("link to", |path| rustix::fs::link("source", path)),
    ("rename from", |path| rustix::fs::rename(path, "renamed")),
    ("rename to", |path| rustix::fs::rename("source", path)),
    ("unlink", |path| rustix::fs::unlink(path)),
    ("rmdir", |path| rustix::fs::rmdir(path)),
    ("readlink", |path| rustix::fs::readlink(path, Vec::new()).map(drop)),
    ("chmod", |path| rustix::fs::chmod(path, Mode::from(0o640))),
    ("lchown", |path| {
        rustix::fs::chownat(CWD, path, Some(rustix::fs::Uid::from_raw(7)), None, AtFlags::SYMLINK_NOFOLLOW)
    }),
    ("utimens", |path| rustix::fs::utimensat(CWD, path, &now(), AtFlags::empty())),
    ("truncate", |path| truncate(path, 2)),
    ("setxattr", |path| rustix::fs::lsetxattr(path, "user.a", b"1", XattrFlags::empty())),
    ("access", |path| rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)),
];

fn now() -> Timestamps {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

fn open(path: &str, flags: OFlags) -> Result<()> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from(0o666)).map(drop)
}

/// truncate(2), which rustix lacks.
#[allow(unsafe_code)]
fn truncate(path: &str, size: i64) -> Result<()> {
    let path = std::ffi::CString::new(path).expect("no zeroes");
    // SAFETY: the path is a zero-terminated string that outlives the call.
    match unsafe { libc::truncate(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => {
            Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).expect("it has a number"))
        }
    }
}

const WATCHED: [&str; 12] =
    [".", "p", "p/in", "q", "q/in", "source", "target", "tdir", "linked", "renamed", "nowhere", "x"];

pub fn run(ground: &mut Ground) {
    opening(ground);
    calls(ground);
    odd_paths(ground);
    links(ground);
    renames(ground);
    removal(ground);
    making(ground);
}

fn opening(ground: &mut Ground) {
    ground.table("opening", &WATCHED);
    let flags = [
        ("rdonly", OFlags::RDONLY),
        ("wronly", OFlags::WRONLY),
        ("rdwr", OFlags::RDWR),
        ("rdonly directory", OFlags::DIRECTORY),
        ("wronly directory", OFlags::DIRECTORY | OFlags::WRONLY),
        ("rdonly nofollow", OFlags::NOFOLLOW),
        ("wronly nofollow", OFlags::WRONLY | OFlags::NOFOLLOW),
        ("creat", OFlags::WRONLY | OFlags::CREATE),
        ("creat excl", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL),
        ("creat trunc", OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC),
        ("creat nofollow", OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW),
        ("creat rdonly", OFlags::RDONLY | OFlags::CREATE),
        ("creat rdonly excl directory", OFlags::CREATE | OFlags::EXCL | OFlags::DIRECTORY),
        ("creat rdonly directory", OFlags::CREATE | OFlags::DIRECTORY),
        ("trunc", OFlags::WRONLY | OFlags::TRUNC),
        ("trunc rdonly", OFlags::RDONLY | OFlags::TRUNC),
        ("append", OFlags::WRONLY | OFlags::APPEND),
        ("append trunc", OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC),
        ("path", OFlags::PATH),
        ("path nofollow", OFlags::PATH | OFlags::NOFOLLOW),
        ("path directory", OFlags::PATH | OFlags::DIRECTORY),
        ("noatime", OFlags::NOATIME),
        ("sync", OFlags::RDWR | OFlags::SYNC),
        ("tmpfile", OFlags::TMPFILE | OFlags::RDWR),
        ("tmpfile rdonly", OFlags::TMPFILE | OFlags::RDONLY),
        ("rdonly and wronly", OFlags::from_bits_retain(3)),
    ];
    for kind in KINDS.iter().filter(|kind| **kind != "block") {
        for (name, flags) in flags {
            make(kind, "p");
            let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
            ground.step(format!("open {name} {kind}"), || {
                rustix::fs::open("p", flags, Mode::from(0o6741)).map(|fd| {
                    let stat = rustix::fs::fstat(&fd).expect("it is open");
                    (format!("{:o}", stat.st_mode), stat.st_nlink)
                })
            });
            ground.sweep();
        }
    }
}

fn calls(ground: &mut Ground) {
    ground.table("calls", &WATCHED);
    for (name, call) in CALLS {
        for kind in KINDS {
            make(kind, "p");
            file("source", b"source", 0o644);
            ground.step(format!("{name} {kind}"), || call("p"));
            ground.sweep();
        }
    }
}

fn odd_paths(ground: &mut Ground) {
    ground.table("odd paths", &WATCHED);
    let long = |length: usize| "n".repeat(length);
    let deep = |bytes: usize| {
        let path = "./".repeat(bytes / 2);
        format!("{}{}", path, if bytes % 2 == 1 { "x" } else { "" })
    };
    let paths = [
        ("name of 255", long(255)),
        ("name of 256", long(256)),
        ("name of 255 in Cyrillic", "я".repeat(127) + "x"),
        ("name of 256 in Cyrillic", "я".repeat(128)),
        ("path of 4095", deep(4095)),
        ("path of 4096", deep(4096)),
        ("missing parent", "no/x".into()),
        ("file as parent", "plain/x".into()),
        ("file with a slash", "plain/".into()),
        ("missing with a slash", "none/".into()),
        ("directory with a slash", "empty/".into()),
        ("dot", ".".into()),
        ("dot dot", "..".into()),
        ("dot in a directory", "empty/.".into()),
        ("dot dot in a directory", "empty/..".into()),
        ("nothing", "".into()),
        ("loop as parent", "round/x".into()),
        ("dangling as parent", "dangling/x".into()),
        ("link to a directory with a slash", "toempty/".into()),
        ("dangling with a slash", "dangling/".into()),
        ("through a link", "toempty/x".into()),
        ("space and newline", " a\nb ".into()),
        ("bytes that are not UTF-8", "\u{1}x".into()),
    ];
    for (what, path) in paths {
        for (name, call) in CALLS {
            for made in ["plain", "source"] {
                file(made, b"12345", 0o644);
            }
            dir("empty", 0o755);
            for (target, link) in [("round", "round"), ("missing", "dangling"), ("empty", "toempty")] {
                rustix::fs::symlink(target, link).expect("it is new");
            }
            ground.step(format!("{name} {what}"), || call(&path));
            ground.sweep();
        }
    }
    // Chains of symbolic links: Linux follows 40.
    for length in [39, 40, 41] {
        file("l0", b"end", 0o644);
        for number in 1..=length {
            rustix::fs::symlink(format!("l{}", number - 1), format!("l{number}")).expect("it is new");
        }
        ground
            .step(format!("chain of {length}"), || rustix::fs::stat(format!("l{length}")).map(|s| s.st_size));
        ground.sweep();
    }
    for length in [1, 59, 60, 255, 1000, 4095, 4096] {
        let target = "t".repeat(length);
        ground.step(format!("symlink to {length}"), || rustix::fs::symlink(target.as_str(), "p"));
        ground.step("readlink", || rustix::fs::readlink("p", Vec::new()).map(|read| read.as_bytes().len()));
        ground.sweep();
    }
    ground.step("symlink to nothing", || rustix::fs::symlink("", "p"));
    ground.sweep();
}

fn links(ground: &mut Ground) {
    ground.section("links", &WATCHED);
    for from in KINDS {
        for to in ["missing", "file", "dir", "dangling"] {
            for (name, flags) in [("link", AtFlags::empty()), ("link following", AtFlags::SYMLINK_FOLLOW)] {
                make(from, "p");
                make(to, "q");
                ground
                    .step(format!("{name} {from} to {to}"), || rustix::fs::linkat(CWD, "p", CWD, "q", flags));
                ground.sweep();
            }
        }
    }
    file("p", b"1", 0o644);
    ground.step("link to another file system", || rustix::fs::link("p", "/proc/x"));
    ground.step("link from another file system", || rustix::fs::link("/proc/self/status", "q"));
    ground.step("rename to another file system", || rustix::fs::rename("p", "/proc/x"));
    ground.step("link to itself", || rustix::fs::link("p", "p"));
    ground.step("rename to itself", || rustix::fs::rename("p", "p"));
    // Links an open file without a name.
    for flags in [OFlags::empty(), OFlags::EXCL] {
        let made = rustix::fs::open(".", OFlags::TMPFILE | OFlags::RDWR | flags, Mode::from(0o640));
        if let Ok(fd) = &made {
            use std::os::fd::AsRawFd;
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            ground.step(format!("name a file without one {flags:?}"), || {
                rustix::fs::linkat(CWD, path.as_str(), CWD, "q", AtFlags::SYMLINK_FOLLOW)
            });
        }
        ground.step("remove it", || rustix::fs::unlink("q"));
    }
    ground.sweep();
}

fn renames(ground: &mut Ground) {
    ground.table("renames", &WATCHED);
    let kinds = ["missing", "file", "dir", "full", "fifo", "null", "dangling", "todir"];
    for from in kinds {
        for to in kinds {
            for flags in [
                RenameFlags::empty(),
                RenameFlags::NOREPLACE,
                RenameFlags::EXCHANGE,
                RenameFlags::WHITEOUT,
                RenameFlags::NOREPLACE | RenameFlags::EXCHANGE,
            ] {
                if (from, to) == ("todir", "todir") {
                    continue;
                }
                make(from, "p");
                make(to, "q");
                // The device number of a whiteout depends on the file system.
                ground.step(format!("rename {from} to {to} {flags:?}"), || {
                    rustix::fs::renameat_with(CWD, "p", CWD, "q", flags)
                });
                ground.sweep();
            }
        }
    }
    // Renames between directories: link counts, and the times of both.
    for (from, to) in
        [("p/in", "q/in"), ("p/in", "q/new"), ("p", "q/new"), ("p", "p/in/x"), ("p/in", "p"), ("p", "p")]
    {
        for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE] {
            make("full", "p");
            make("full", "q");
            ground.step(format!("rename {from} to {to} {flags:?}"), || {
                rustix::fs::renameat_with(CWD, from, CWD, to, flags)
            });
            ground.say(format!("dot dot of p/in is p: {}", same("p/in/..", "p")));
            ground.say(format!("dot dot of q/in is q: {}", same("q/in/..", "q")));
            ground.sweep();
        }
    }
    file("p", b"1", 0o644);
    rustix::fs::link("p", "q").expect("q is new");
    for flags in [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE] {
        ground.step(format!("rename between two names of a file {flags:?}"), || {
            rustix::fs::renameat_with(CWD, "p", CWD, "q", flags)
        });
    }
    make("full", "x");
    file("x/f", b"1", 0o644);
    ground.step("rename a file into a directory", || rustix::fs::rename("p", "x/f"));
    ground.sweep();
}

fn same(one: &str, other: &str) -> bool {
    let ino = |path: &str| rustix::fs::stat(path).map(|stat| stat.st_ino).ok();
    ino(one).is_some() && ino(one) == ino(other)
}

fn removal(ground: &mut Ground) {
    ground.section("removal", &WATCHED);
    // Removes the working directory.
    dir("p", 0o755);
    let home = std::env::current_dir().expect("it exists");
    std::env::set_current_dir("p").expect("it exists");
    ground.step("rmdir where one is", || rustix::fs::rmdir("../p"));
    for (name, call) in CALLS {
        ground.step(format!("{name} where nothing is left"), || call("n"));
    }
    ground.step("stat of a removed file", || rustix::fs::stat(".").map(|stat| stat.st_nlink));
    ground.step("list a removed directory", || {
        let fd = rustix::fs::open(".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        rustix::fs::Dir::read_from(fd).map(|dir| dir.filter_map(|entry| entry.ok()).count())
    });
    ground.step("the parent of a removed directory", || rustix::fs::stat("..").map(drop));
    std::env::set_current_dir(&home).expect("it exists");
    // Open files stay usable after unlink.
    file("p", b"12345", 0o644);
    let fd = rustix::fs::open("p", OFlags::RDWR, Mode::empty()).expect("it exists");
    ground.step("unlink an open file", || rustix::fs::unlink("p"));
    let facts = |fd: &rustix::fd::OwnedFd| {
        rustix::fs::fstat(fd).map(|stat| (stat.st_nlink, stat.st_size, stat.st_mode))
    };
    ground.step("its facts", || facts(&fd));
    ground.step("write", || rustix::io::pwrite(&fd, b"67890", 5));
    ground.step("truncate", || rustix::fs::ftruncate(&fd, 7));
    ground.step("chmod", || rustix::fs::fchmod(&fd, Mode::from(0o600)));
    ground.step("utimens", || rustix::fs::futimens(&fd, &now()));
    ground.step("setxattr", || rustix::fs::fsetxattr(&fd, "user.a", b"1", XattrFlags::empty()));
    ground.step("fsync", || rustix::fs::fsync(&fd));
    ground.step("facts", || facts(&fd));
    let mut content = [0; 20];
    ground.step("read", || rustix::io::pread(&fd, &mut content, 0).map(|count| content[..count].to_vec()));
    ground.step("name it again", || {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::linkat(CWD, path.as_str(), CWD, "q", AtFlags::SYMLINK_FOLLOW)
    });
    drop(fd);
    // Removing a link updates the ctime.
    file("p", b"1", 0o644);
    rustix::fs::link("p", "q").expect("it is new");
    ground.step("unlink one of two names", || rustix::fs::unlink("q"));
    ground.sweep();
}

fn making(ground: &mut Ground) {
    ground.section("making", &["p", "s", "s/f", "s/d", "s/p", "s/l", "s/x"]);
    for mask in [0, 0o022, 0o077, 0o777] {
        rustix::process::umask(Mode::from(mask));
        for mode in [0o666, 0o777, 0o7777, 0o000, 0o1644, 0o2755] {
            let mode = Mode::from(mode);
            ground.step(format!("create {mode:?} under {mask:o}"), || {
                rustix::fs::open("p", OFlags::CREATE | OFlags::WRONLY, mode).map(drop)
            });
            ground.sweep();
            ground.step(format!("mkdir {mode:?} under {mask:o}"), || rustix::fs::mkdir("p", mode));
            ground.sweep();
            ground.step(format!("mkfifo {mode:?} under {mask:o}"), || {
                rustix::fs::mknodat(CWD, "p", FileType::Fifo, mode, 0)
            });
            ground.sweep();
        }
    }
    rustix::process::umask(Mode::from(0o022));
    for (kind, name) in [
        (FileType::RegularFile, "regular"),
        (FileType::Directory, "directory"),
        (FileType::Symlink, "symlink"),
        (FileType::Socket, "socket"),
        (FileType::CharacterDevice, "character device"),
        (FileType::BlockDevice, "block device"),
    ] {
        for device in [0, rustix::fs::makedev(7, 8), rustix::fs::makedev(4095, 1_048_575)] {
            ground.step(format!("mknod {name} {device:#x}"), || {
                rustix::fs::mknodat(CWD, "p", kind, Mode::from(0o640), device)?;
                rustix::fs::lstat("p").map(|stat| format!("{:#x}", stat.st_rdev))
            });
            ground.sweep();
        }
    }
    // In a set-group-id directory, new files inherit the group, and new directories also the bit.
    dir("s", 0o2777);
    rustix::fs::chown("s", None, Some(rustix::fs::Gid::from_raw(4000))).expect("we are root");
    rustix::fs::chmod("s", Mode::from(0o2777)).expect("we are root");
    let make_all = |mode: u32| {
        rustix::fs::open("s/f", OFlags::CREATE | OFlags::WRONLY, Mode::from(mode)).map(drop)?;
        rustix::fs::mkdir("s/d", Mode::from(mode))?;
        rustix::fs::mknodat(CWD, "s/p", FileType::Fifo, Mode::from(mode), 0)?;
        rustix::fs::symlink("t", "s/l")?;
        rustix::fs::open("s", OFlags::TMPFILE | OFlags::WRONLY, Mode::from(mode))
            .and_then(rustix::fs::fstat)
            .map(|stat| (format!("{:o}", stat.st_mode), stat.st_gid))
    };
    for mode in [0o755, 0o2755, 0o2745] {
        let clear = || {
            ["s/f", "s/d", "s/p", "s/l"]
                .map(|path| std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path)))
        };
        ground.step(format!("make with {mode:o} under a directory of a group"), || make_all(mode));
        let _ = clear();
        for who in [crate::ground::ALICE, crate::ground::CAROL] {
            ground
                .step_as(who, format!("make with {mode:o} under a directory of a group"), || make_all(mode));
            let _ = clear();
        }
    }
    ground.sweep();
}
