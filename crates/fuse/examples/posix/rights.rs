//! Permissions of users, and the calls that clear privileges.

use rustix::{
    fs::{
        Access, AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
        Uid, XattrFlags,
    },
    io::Result,
};

use crate::{
    ground::{ALICE, BOB, CAROL, Ground, Who, dir, file, own},
    names::CALLS,
};

const WATCHED: [&str; 8] = ["d", "d/f", "d/e", "d/source", "f", "linked", "renamed", "source"];

pub fn run(ground: &mut Ground) {
    directories(ground);
    sticky(ground);
    files(ground);
    owners(ground);
    modes(ground);
    times(ground);
    privilege(ground);
    lists(ground);
}

fn open(path: &str, flags: OFlags) -> Result<()> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from(0o666)).map(drop)
}

/// All permissions of a directory for owner, group and others.
fn directories(ground: &mut Ground) {
    ground.table("rights of directories", &WATCHED);
    for bits in 0..8 {
        for (who, mode) in [(ALICE, bits << 6), (BOB, bits << 3), (CAROL, bits)] {
            for (name, call) in CALLS {
                dir("d", 0o777);
                file("d/f", b"12345", 0o666);
                for path in ["source", "d/source"] {
                    file(path, b"12345", 0o666);
                    own(path, who);
                }
                own("d/f", who);
                own("d", ALICE);
                rustix::fs::chmod("d", Mode::from(mode)).expect("we are root");
                ground.step_as(who, format!("{name} in {mode:03o}"), || call("d/f"));
                ground.sweep();
            }
        }
    }
}

fn sticky(ground: &mut Ground) {
    ground.table("sticky", &WATCHED);
    for owner in [ALICE, BOB] {
        for of_dir in [ALICE, BOB, CAROL] {
            for kind in ["f", "e"] {
                for (what, call) in [
                    (
                        "remove",
                        (|path| rustix::fs::unlink(path).or_else(|_| rustix::fs::rmdir(path)))
                            as fn(&str) -> Result<()>,
                    ),
                    ("rename from", |path| rustix::fs::rename(path, "renamed")),
                    ("rename to", |path| rustix::fs::rename("source", path)),
                    ("rename over a directory", |path| rustix::fs::rename("sourced", path)),
                    ("exchange", |path| {
                        rustix::fs::renameat_with(CWD, "source", CWD, path, rustix::fs::RenameFlags::EXCHANGE)
                    }),
                    ("create over", |path| open(path, OFlags::WRONLY | OFlags::CREATE)),
                    ("link", |path| rustix::fs::link(path, "linked")),
                ] {
                    dir("d", 0o777);
                    file("d/f", b"1", 0o666);
                    dir("d/e", 0o777);
                    file("source", b"2", 0o666);
                    dir("sourced", 0o777);
                    own(&format!("d/{kind}"), owner);
                    own("source", BOB);
                    own("sourced", BOB);
                    own("d", of_dir);
                    rustix::fs::chmod("d", Mode::from(0o1777)).expect("we are root");
                    let what = format!("{what} {kind} of {} in sticky of {}", owner.0, of_dir.0);
                    ground.step_as(BOB, what, || call(&format!("d/{kind}")));
                    ground.sweep();
                }
            }
        }
    }
}

fn files(ground: &mut Ground) {
    ground.table("rights of files", &WATCHED);
    for bits in 0..8 {
        for (who, mode) in [(ALICE, bits << 6), (BOB, bits << 3), (CAROL, bits)] {
            for (name, flags) in [
                ("read", OFlags::RDONLY),
                ("write", OFlags::WRONLY),
                ("both", OFlags::RDWR),
                ("truncate", OFlags::RDONLY | OFlags::TRUNC),
                ("noatime", OFlags::NOATIME),
            ] {
                file("f", b"1", 0o666);
                own("f", ALICE);
                rustix::fs::chmod("f", Mode::from(mode)).expect("we are root");
                ground.step_as(who, format!("open for {name} of {mode:03o}"), || open("f", flags));
            }
            for access in [Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK] {
                ground.step_as(who, format!("access {access:?} of {mode:03o}"), || {
                    rustix::fs::access("f", access)
                });
            }
            for name in ["user.a", "trusted.a", "security.a", "system.a", "plain", "user."] {
                ground.step_as(who, format!("set {name} of {mode:03o}"), || {
                    rustix::fs::setxattr("f", name, b"1", XattrFlags::empty())
                });
                ground.step_as(who, format!("get {name} of {mode:03o}"), || {
                    let mut value = [0_u8; 9];
                    rustix::fs::getxattr("f", name, &mut value[..])
                });
                ground.step_as(who, format!("list of {mode:03o}"), || {
                    let mut list = [0_u8; 100];
                    rustix::fs::listxattr("f", &mut list[..])
                });
                ground.step_as(who, format!("remove {name} of {mode:03o}"), || {
                    rustix::fs::removexattr("f", name)
                });
            }
            ground.sweep();
        }
    }
    file("f", b"1", 0o644);
    rustix::fs::setxattr("f", "trusted.t", b"1", XattrFlags::empty()).expect("we are root");
    rustix::fs::setxattr("f", "user.u", b"1", XattrFlags::empty()).expect("we are root");
    for who in [ALICE, Who(0, 0, &[])] {
        ground.step_as(who, "list trusted attributes", || {
            let mut list = [0_u8; 100];
            let count = rustix::fs::listxattr("f", &mut list[..])?;
            Ok(String::from_utf8_lossy(&list[..count]).into_owned())
        });
        ground.step_as(who, "get trusted attributes", || {
            let mut value = [0_u8; 9];
            rustix::fs::getxattr("f", "trusted.t", &mut value[..])
        });
    }
    ground.sweep();
}

fn owners(ground: &mut Ground) {
    ground.table("owners", &WATCHED);
    let chown = |path: &str, uid: Option<u32>, gid: Option<u32>| {
        rustix::fs::chownat(
            CWD,
            path,
            uid.map(Uid::from_raw),
            gid.map(Gid::from_raw),
            AtFlags::SYMLINK_NOFOLLOW,
        )
    };
    let root = Who(0, 0, &[]);
    for mode in [0o644, 0o755, 0o6755, 0o6744, 0o2755, 0o2745, 0o4711, 0o7777] {
        for kind in ["file", "dir", "fifo"] {
            for who in [root, CAROL, BOB] {
                for (uid, gid) in [
                    (None, None),
                    (Some(CAROL.0), None),
                    (None, Some(CAROL.1)),
                    (None, Some(4000)),
                    (None, Some(9)),
                    (Some(CAROL.0), Some(4001)),
                    (Some(9), Some(9)),
                ] {
                    crate::ground::make(kind, "f");
                    own("f", CAROL);
                    rustix::fs::chmod("f", Mode::from(mode)).expect("we are root");
                    ground.step_as(who, format!("chown {kind} {mode:o} to {uid:?} {gid:?}"), || {
                        chown("f", uid, gid)
                    });
                    ground.sweep();
                }
            }
        }
    }
    rustix::fs::symlink("x", "f").expect("it is new");
    ground.step("chown of a link", || chown("f", Some(5), Some(6)));
    ground.step_as(ALICE, "chown of a link", || chown("f", Some(ALICE.0), None));
    ground.sweep();
}

fn modes(ground: &mut Ground) {
    ground.table("modes", &WATCHED);
    for (group, mode) in [
        (CAROL.1, 0o2755),
        (4000, 0o2755),
        (9, 0o2755),
        (9, 0o4755),
        (9, 0o1777),
        (9, 0o7777),
        (4000, 0o6777),
    ] {
        for kind in ["file", "dir"] {
            for who in [Who(0, 0, &[]), CAROL, BOB] {
                crate::ground::make(kind, "f");
                rustix::fs::chown("f", Some(Uid::from_raw(CAROL.0)), Some(Gid::from_raw(group)))
                    .expect("we are root");
                ground.step_as(who, format!("chmod {kind} of {group} to {mode:o}"), || {
                    rustix::fs::chmod("f", Mode::from(mode))
                });
                ground.sweep();
            }
        }
    }
    rustix::fs::symlink("x", "f").expect("it is new");
    ground.step("chmod of a link", || {
        rustix::fs::chmodat(CWD, "f", Mode::from(0o600), AtFlags::SYMLINK_NOFOLLOW)
    });
    ground.sweep();
}

fn times(ground: &mut Ground) {
    ground.table("setting times", &WATCHED);
    let special = |access: (i64, i64), change: (i64, i64)| Timestamps {
        last_access: Timespec { tv_sec: access.0, tv_nsec: access.1 as _ },
        last_modification: Timespec { tv_sec: change.0, tv_nsec: change.1 as _ },
    };
    let (now, omit) = (UTIME_NOW, UTIME_OMIT);
    for mode in [0o644, 0o666, 0o444] {
        for who in [Who(0, 0, &[]), CAROL, BOB] {
            for (name, times) in [
                ("now", special((0, now), (0, now))),
                ("omit", special((0, omit), (0, omit))),
                ("atime now", special((0, now), (0, omit))),
                ("mtime now", special((0, omit), (0, now))),
                ("both kinds", special((1, 2), (0, now))),
                ("given", special((1, 2), (3, 4))),
                ("atime given", special((1_000_000_000, 999_999_999), (0, omit))),
                ("mtime given", special((0, omit), (4_000_000_000, 1))),
                ("invalid", special((0, 1_000_000_000), (0, 0))),
                ("before 1970", special((-1, 5), (-100_000, 999_999_999))),
            ] {
                file("f", b"1", mode);
                own("f", CAROL);
                ground.step_as(who, format!("utimens {name} of {mode:o}"), || {
                    rustix::fs::utimensat(CWD, "f", &times, AtFlags::SYMLINK_NOFOLLOW)?;
                    let stat = rustix::fs::lstat("f")?;
                    let shown = |seconds: i64, nanoseconds| {
                        (!(1_700_000_000..=3_900_000_000).contains(&seconds))
                            .then_some((seconds, nanoseconds))
                    };
                    Ok((shown(stat.st_atime, stat.st_atime_nsec), shown(stat.st_mtime, stat.st_mtime_nsec)))
                });
                ground.sweep();
            }
        }
    }
    rustix::fs::symlink("x", "f").expect("it is new");
    ground.step("utimens of a link", || {
        rustix::fs::utimensat(CWD, "f", &special((5, 6), (7, 8)), AtFlags::SYMLINK_NOFOLLOW)
    });
    ground.step("utimens through a dangling link", || {
        rustix::fs::utimensat(CWD, "f", &special((5, 6), (7, 8)), AtFlags::empty())
    });
    ground.sweep();
}

/// Calls that clear the set-user-id and set-group-id bits.
fn privilege(ground: &mut Ground) {
    ground.section("privilege", &WATCHED);
    let fd = |flags| rustix::fs::open("f", flags, Mode::empty());
    let changes: [(&str, &(dyn Fn() -> Result<()> + Sync)); 9] = [
        ("write", &|| rustix::io::pwrite(&fd(OFlags::RDWR)?, b"new", 1).map(drop)),
        ("write of nothing", &|| rustix::io::pwrite(&fd(OFlags::RDWR)?, b"", 1).map(drop)),
        ("append", &|| rustix::io::write(&fd(OFlags::WRONLY | OFlags::APPEND)?, b"new").map(drop)),
        ("ftruncate", &|| rustix::fs::ftruncate(&fd(OFlags::RDWR)?, 2)),
        ("ftruncate to the same", &|| rustix::fs::ftruncate(&fd(OFlags::RDWR)?, 5)),
        ("open truncating", &|| fd(OFlags::RDWR | OFlags::TRUNC).map(drop)),
        ("fallocate", &|| rustix::fs::fallocate(&fd(OFlags::RDWR)?, FallocateFlags::empty(), 0, 100)),
        ("punch", &|| {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&fd(OFlags::RDWR)?, how, 0, 2)
        }),
        ("copy_file_range", &|| {
            let from = rustix::fs::open("source", OFlags::RDONLY, Mode::empty())?;
            rustix::fs::copy_file_range(from, None, fd(OFlags::RDWR)?, None, 3).map(drop)
        }),
    ];
    for mode in [0o6777, 0o6767, 0o2777, 0o2767, 0o4777, 0o7777, 0o777] {
        for who in [Who(0, 0, &[]), CAROL, ALICE] {
            for (what, change) in changes {
                file("source", b"12345", 0o644);
                file("f", b"12345", 0o666);
                own("f", CAROL);
                rustix::fs::chmod("f", Mode::from(mode)).expect("we are root");
                ground.step_as(who, format!("{what} of {mode:o}"), change);
                ground.sweep();
            }
        }
    }
    // File capabilities are removed by the same calls.
    let capability = [1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0_u8];
    for who in [Who(0, 0, &[]), ALICE] {
        for (what, change) in changes {
            file("source", b"12345", 0o644);
            file("f", b"12345", 0o777);
            rustix::fs::setxattr("f", "security.capability", &capability, XattrFlags::empty())
                .expect("we are root");
            ground.step_as(who, format!("{what} of a file with capabilities"), change);
            ground.step("the capabilities", || {
                let mut value = [0_u8; 30];
                rustix::fs::getxattr("f", "security.capability", &mut value[..])
            });
            ground.sweep();
        }
    }
}

/// Names of the attributes that hold access control lists.
const ACCESS_LIST: &str = "system.posix_acl_access";
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// An access control list in the kernel's format, version 2: entries of tag, permissions and ID
/// (posix_acl_xattr.h).
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permission, name) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permission.to_le_bytes());
        bytes.extend(name.to_le_bytes());
    }
    bytes
}

/// ID of entries that concern no user or group of a name.
const NO_ID: u32 = u32::MAX;

/// The list of a file with the permission bits 755.
fn plain_list() -> Vec<u8> {
    list(&[(1, 7, NO_ID), (4, 5, NO_ID), (0x20, 5, NO_ID)])
}

/// A list that lets Carol read and write.
fn list_for_carol() -> Vec<u8> {
    list(&[(1, 6, NO_ID), (2, 6, CAROL.0), (4, 4, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)])
}

fn set_list(path: &str, name: &str, value: &[u8]) -> Result<()> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

fn get_list(path: &str, name: &str) -> Result<Vec<u8>> {
    let mut value = [0_u8; 200];
    let count = rustix::fs::getxattr(path, name, &mut value[..])?;
    Ok(value[..count].to_vec())
}

/// Access control lists.
fn lists(ground: &mut Ground) {
    ground.section("lists", &["d", "d/f", "d/e", "f"]);
    set_lists(ground);
    use_list(ground);
    for mask in [0o022, 0o077] {
        inherit_list(ground, mask);
    }
}

/// Sets valid and broken lists on files of each kind.
fn set_lists(ground: &mut Ground) {
    let broken = list(&[(1, 7, NO_ID), (1, 7, NO_ID)]);
    for (name, value) in
        [("plain", plain_list()), ("for carol", list_for_carol()), ("broken", broken), ("empty", Vec::new())]
    {
        for kind in ["file", "dir", "fifo", "dangling"] {
            for attribute in [ACCESS_LIST, DEFAULT_LIST] {
                crate::ground::make(kind, "f");
                ground.step(format!("{name} on {kind} as {attribute}"), || {
                    rustix::fs::lsetxattr("f", attribute, &value, XattrFlags::empty())
                });
                ground.step("get the attribute", || get_list("f", attribute));
                ground.step("chmod", || rustix::fs::chmod("f", Mode::from(0o721)));
                ground.step("get the attribute after chmod", || get_list("f", attribute));
                ground.step("remove", || rustix::fs::lremovexattr("f", attribute));
                ground.step("remove again", || rustix::fs::lremovexattr("f", attribute));
                ground.sweep();
            }
        }
    }
}

/// Opens files by a list, and changes it with and without the right to do so.
fn use_list(ground: &mut Ground) {
    file("f", b"1", 0o600);
    set_list("f", ACCESS_LIST, &list_for_carol()).expect("we are root");
    for who in [ALICE, BOB, CAROL] {
        ground.step_as(who, "open by list", || open("f", OFlags::RDWR));
        ground.step_as(who, "set a list", || set_list("f", ACCESS_LIST, &plain_list()));
        ground.step_as(who, "read a list", || get_list("f", ACCESS_LIST).map(|value| value.len()));
    }
    own("f", CAROL);
    rustix::fs::chmod("f", Mode::from(0o2755)).expect("we are root");
    rustix::fs::chown("f", None, Some(Gid::from_raw(9))).expect("we are root");
    rustix::fs::chmod("f", Mode::from(0o2755)).expect("we are root");
    ground.step_as(CAROL, "set a list on a file of a strange group", || {
        set_list("f", ACCESS_LIST, &plain_list())
    });
}

/// Makes files in a directory with a default list.
fn inherit_list(ground: &mut Ground, mask: u32) {
    dir("d", 0o755);
    let inherited = list(&[
        (1, 7, NO_ID),
        (2, 7, CAROL.0),
        (4, 5, NO_ID),
        (8, 3, 4000),
        (0x10, 7, NO_ID),
        (0x20, 1, NO_ID),
    ]);
    set_list("d", DEFAULT_LIST, &inherited).expect("we are root");
    rustix::process::umask(Mode::from(mask));
    ground.step("create under a list", || {
        rustix::fs::open("d/f", OFlags::CREATE | OFlags::WRONLY, Mode::from(0o666)).map(drop)
    });
    ground.step("its list", || get_list("d/f", ACCESS_LIST));
    ground.step("mkdir under a list", || rustix::fs::mkdir("d/e", Mode::from(0o777)));
    ground.step("its list", || get_list("d/e", ACCESS_LIST));
    ground.step("its default", || get_list("d/e", DEFAULT_LIST));
    ground.step("mkfifo under a list", || {
        rustix::fs::mknodat(CWD, "d/p", rustix::fs::FileType::Fifo, Mode::from(0o664), 0)
    });
    ground.step("its list", || get_list("d/p", ACCESS_LIST));
    ground.step("tmpfile under a list", || {
        rustix::fs::open("d", OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o666))
            .and_then(rustix::fs::fstat)
            .map(|stat| format!("{:o}", stat.st_mode))
    });
    ground.step_as(CAROL, "create under a list", || open("d/g", OFlags::CREATE | OFlags::WRONLY));
    rustix::process::umask(Mode::from(0o022));
    set_list("d", DEFAULT_LIST, &plain_list()).expect("we are root");
    ground.step("mkdir under a plain list", || rustix::fs::mkdir("d/h", Mode::from(0o777)));
    ground.step("its list", || get_list("d/h", ACCESS_LIST));
    ground.step("its default", || get_list("d/h", DEFAULT_LIST));
    ground.sweep();
}
