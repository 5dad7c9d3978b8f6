//! Timestamps that each call updates, of the file and of its directory.

use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags},
    io::Result,
};

use crate::ground::{Ground, dir, file};

/// Before 2001, so that relative access times are renewed.
const OLD: Timestamps = {
    let then = Timespec { tv_sec: 900_000_000, tv_nsec: 5 };
    Timestamps { last_access: then, last_modification: then }
};

type Call = fn() -> Result<()>;

/// Calls with their names in the report.
const CALLS: &[(&str, Call)] = &[
    ("create", || open("d/g", OFlags::CREATE | OFlags::WRONLY).map(drop)),
    ("create an existing file", || open("d/f", OFlags::CREATE | OFlags::WRONLY).map(drop)),
    ("mkdir", || rustix::fs::mkdir("d/g", Mode::from(0o755))),
    ("mknod", || rustix::fs::mknodat(CWD, "d/g", FileType::Fifo, Mode::from(0o644), 0)),
    ("symlink", || rustix::fs::symlink("x", "d/g")),
    ("link", || rustix::fs::link("f", "d/g")),
    ("unlink", || rustix::fs::unlink("d/f")),
    ("rmdir", || rustix::fs::rmdir("d/e")),
    ("rename", || rustix::fs::rename("d/f", "d/g")),
    ("rename out", || rustix::fs::rename("d/f", "g")),
    ("rename over", || rustix::fs::rename("f", "d/f")),
    ("rename a directory out", || rustix::fs::rename("d/e", "g")),
    ("exchange", || rustix::fs::renameat_with(CWD, "f", CWD, "d/f", rustix::fs::RenameFlags::EXCHANGE)),
    ("failed mkdir", || rustix::fs::mkdir("d/f", Mode::from(0o755))),
    ("failed rmdir", || rustix::fs::rmdir("d")),
    ("chmod", || rustix::fs::chmod("f", Mode::from(0o600))),
    ("chmod to the same", || rustix::fs::chmod("f", Mode::from(0o644))),
    ("chown to the same", || rustix::fs::chown("f", Some(rustix::fs::Uid::ROOT), None)),
    ("chown to nothing", || rustix::fs::chown("f", None, None)),
    ("setxattr", || rustix::fs::setxattr("f", "user.a", b"1", XattrFlags::empty())),
    ("getxattr", || rustix::fs::getxattr("f", "user.z", &mut [0_u8; 4][..]).map(drop)),
    ("removexattr", || {
        rustix::fs::setxattr("f", "user.a", b"1", XattrFlags::empty())?;
        std::thread::sleep(std::time::Duration::from_millis(15));
        rustix::fs::removexattr("f", "user.a")
    }),
    ("read", || rustix::io::read(open("f", OFlags::RDONLY)?, &mut [0; 10][..]).map(drop)),
    ("read of nothing", || rustix::io::pread(open("f", OFlags::RDONLY)?, &mut [0; 10][..], 100).map(drop)),
    ("read without atime", || {
        rustix::io::read(open("f", OFlags::RDONLY | OFlags::NOATIME)?, &mut [0; 10][..]).map(drop)
    }),
    ("asking for flags", || rustix::fs::ioctl_getflags(open("f", OFlags::WRONLY)?).map(drop)),
    ("readlink", || rustix::fs::readlink("l", Vec::new()).map(drop)),
    ("list", || rustix::fs::Dir::read_from(open("d", OFlags::RDONLY)?).map(|dir| dir.for_each(drop))),
    ("write", || rustix::io::write(open("f", OFlags::WRONLY)?, b"new").map(drop)),
    ("write of nothing", || rustix::io::write(open("f", OFlags::WRONLY)?, b"").map(drop)),
    ("ftruncate", || rustix::fs::ftruncate(open("f", OFlags::WRONLY)?, 2)),
    ("ftruncate to the same", || rustix::fs::ftruncate(open("f", OFlags::WRONLY)?, 5)),
    ("open truncating", || open("f", OFlags::WRONLY | OFlags::TRUNC).map(drop)),
    ("open and truncate an empty file", || open("g0", OFlags::WRONLY | OFlags::TRUNC).map(drop)),
    ("fallocate", || rustix::fs::fallocate(open("f", OFlags::WRONLY)?, FallocateFlags::empty(), 0, 20)),
    ("fallocate keeping size", || {
        rustix::fs::fallocate(open("f", OFlags::WRONLY)?, FallocateFlags::KEEP_SIZE, 0, 20_000)
    }),
    ("punch", || {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(open("f", OFlags::WRONLY)?, how, 0, 3)
    }),
    ("fsync", || rustix::fs::fsync(open("f", OFlags::WRONLY)?)),
];

pub fn run(ground: &mut Ground) {
    ground.section("times", &[".", "d", "d/f", "d/g", "d/e", "d/l", "f", "g", "l"]);
    each_call(ground);
    open_file(ground);
}

fn open(path: &str, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::open(path, flags, Mode::from(0o644))
}

/// Calls everything on new and on old files.
fn each_call(ground: &mut Ground) {
    for aged in [false, true] {
        for (name, call) in CALLS {
            dir("d", 0o755);
            dir("d/e", 0o755);
            for path in ["f", "d/f"] {
                file(path, b"12345", 0o644);
            }
            file("g0", b"", 0o644);
            rustix::fs::symlink("f", "l").expect("it is new");
            if aged {
                rustix::fs::utimensat(CWD, "f", &OLD, AtFlags::empty()).expect("it is ours");
            }
            ground.step(format!("{name}{}", if aged { " of an old file" } else { "" }), call);
            ground.sweep();
        }
    }
}

/// Calls on a file that stays open.
fn open_file(ground: &mut Ground) {
    file("f", b"12345", 0o644);
    let fd = open("f", OFlags::RDWR).expect("it exists");
    ground.step("write", || rustix::io::pwrite(&fd, b"x", 0));
    ground.step("write again", || rustix::io::pwrite(&fd, b"x", 10));
    ground.step("read", || rustix::io::pread(&fd, &mut [0; 10][..], 0));
    ground.step("truncate up", || rustix::fs::ftruncate(&fd, 100));
    ground.step("truncate down", || rustix::fs::ftruncate(&fd, 10));
    ground.step("chmod", || rustix::fs::fchmod(&fd, Mode::from(0o640)));
    ground.step("utimens", || rustix::fs::futimens(&fd, &OLD));
    ground.step("fsync", || rustix::fs::fsync(&fd));
    ground.step("close", || {
        drop(fd);
        Ok(())
    });
    ground.step("look again", || rustix::fs::stat("f").map(|stat| (stat.st_mtime, stat.st_mtime_nsec)));
    ground.sweep();
}
