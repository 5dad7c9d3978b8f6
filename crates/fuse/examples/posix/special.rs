//! Extended attributes, flags, locks, listings and file system statistics.

use std::{collections::BTreeSet, fs::File, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, CWD, Dir, FlockOperation, IFlags, Mode, OFlags, StatxFlags, XattrFlags},
    io::{Errno, Result},
};

use crate::{
    ground::{ALICE, Ground, KINDS, dir, file, make},
    names::CALLS,
};

const WATCHED: [&str; 8] = [".", "p", "p/in", "p/x", "source", "linked", "renamed", "target"];

pub fn run(ground: &mut Ground) {
    attributes(ground);
    flags(ground);
    locks(ground);
    listings(ground);
    whole(ground);
}

fn open(path: &str, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from(0o644)).expect("it exists")
}

fn attributes(ground: &mut Ground) {
    ground.section("attributes", &["f", "p"]);
    let get = |name: &str, room: usize| {
        let mut value = vec![0_u8; room];
        rustix::fs::getxattr("f", name, &mut value[..]).map(|count| value[..count].to_vec())
    };
    let names = || {
        let mut list = [0_u8; 4000];
        let count = rustix::fs::listxattr("f", &mut list[..])?;
        let text = String::from_utf8_lossy(&list[..count]).into_owned();
        Ok(text.split_terminator('\0').map(str::to_string).collect::<BTreeSet<_>>())
    };
    file("f", b"1", 0o644);
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr("f", name, value, flags);
    ground.step("get an absent attribute", || get("user.a", 10));
    ground.step("replace an absent attribute", || set("user.a", b"1", XattrFlags::REPLACE));
    ground.step("create", || set("user.a", b"first", XattrFlags::CREATE));
    ground.step("create again", || set("user.a", b"second", XattrFlags::CREATE));
    ground.step("replace", || set("user.a", b"second", XattrFlags::REPLACE));
    ground.step("get", || get("user.a", 10));
    ground.step("get into little room", || get("user.a", 3));
    ground.step("ask for its length", || rustix::fs::getxattr_query("f", "user.a"));
    ground.step("empty value", || set("user.empty", b"", XattrFlags::empty()));
    ground.step("get the empty value", || get("user.empty", 10));
    ground.step("other case", || get("user.A", 10));
    ground.step("names", names);
    ground.step("names into little room", || rustix::fs::listxattr("f", &mut [0_u8; 3][..]));
    ground.step("length of names", || rustix::fs::listxattr_query("f"));
    for length in [249, 250, 251] {
        let name = format!("user.{}", "n".repeat(length));
        ground.step(format!("name of 5 and {length}"), || set(&name, b"1", XattrFlags::empty()));
        ground.step("remove it", || rustix::fs::removexattr("f", name.as_str()));
    }
    for name in ["user.", "user", "", "trusted.a", "security.a", "system.a", "other.a", "USER.a"] {
        ground.step(format!("set {name}"), || set(name, b"1", XattrFlags::empty()));
        ground.step(format!("get {name}"), || get(name, 10));
        ground.step(format!("remove {name}"), || rustix::fs::removexattr("f", name));
    }
    for length in [100, 1000, 3000, 65_537] {
        let value = vec![b'v'; length];
        ground.step(format!("value of {length}"), || set("user.big", &value, XattrFlags::empty()));
        ground.step("its length", || rustix::fs::getxattr_query("f", "user.big"));
    }
    ground.step("bad flags", || set("user.b", b"1", XattrFlags::from_bits_retain(8)));
    ground.step("remove", || rustix::fs::removexattr("f", "user.a"));
    ground.step("remove again", || rustix::fs::removexattr("f", "user.a"));
    let for_reading = open("f", OFlags::RDONLY);
    ground.step("set by a file for reading", || {
        rustix::fs::fsetxattr(&for_reading, "user.r", b"1", XattrFlags::empty())
    });
    for kind in KINDS {
        for name in ["user.a", "trusted.a", "security.a"] {
            make(kind, "p");
            let set = || rustix::fs::lsetxattr("p", name, b"1", XattrFlags::empty());
            ground.step(format!("set {name} on {kind}"), set);
            ground.step(format!("get {name} on {kind}"), || rustix::fs::lgetxattr_query("p", name));
            ground.step(format!("names on {kind}"), || rustix::fs::llistxattr_query("p"));
            ground.step_as(ALICE, format!("set {name} on {kind}"), set);
            ground.step(format!("remove {name} on {kind}"), || rustix::fs::lremovexattr("p", name));
            ground.sweep();
        }
    }
    // In a sticky directory only the owner may set attributes.
    dir("p", 0o1777);
    ground.step_as(ALICE, "set on a sticky directory", || {
        rustix::fs::setxattr("p", "user.a", b"1", XattrFlags::empty())
    });
    ground.sweep();
}

/// Sets a flag and keeps those that the file system sets by itself.
fn add(fd: &OwnedFd, flag: IFlags) -> Result<()> {
    rustix::fs::ioctl_setflags(fd, rustix::fs::ioctl_getflags(fd)? | flag)
}

fn clear(fd: &OwnedFd) {
    let flags = rustix::fs::ioctl_getflags(fd).expect("it has flags");
    rustix::fs::ioctl_setflags(fd, flags.difference(IFlags::IMMUTABLE | IFlags::APPEND))
        .expect("we are root");
}

fn flags(ground: &mut Ground) {
    ground.section("flags", &WATCHED);
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        if calls_on_flagged(ground, flag).is_none() {
            return;
        }
        open_flagged_file(ground, flag);
    }
}

/// Calls everything on files and directories with a flag, and in such directories. Returns `None` if the file system
/// has no flags.
fn calls_on_flagged(ground: &mut Ground, flag: IFlags) -> Option<()> {
    let places = [("file", "p"), ("dir", "p"), ("dir", "p/x"), ("full", "p"), ("full", "p/in")];
    for (kind, path) in places {
        for (name, call) in CALLS {
            file("source", b"12345", 0o644);
            make(kind, "p");
            let fd = open("p", OFlags::RDONLY);
            if let Err(errno) = add(&fd, flag) {
                ground.say(format!("no flags: {errno}"));
                ground.sweep();
                return None;
            }
            ground.step(format!("{name} {path} of {flag:?} {kind}"), || call(path));
            clear(&fd);
            drop(fd);
            ground.sweep();
        }
    }
    Some(())
}

/// Calls on a file that was opened before it got a flag.
fn open_flagged_file(ground: &mut Ground, flag: IFlags) {
    file("p", b"12345", 0o666);
    let writer = open("p", OFlags::RDWR);
    let fd = open("p", OFlags::RDONLY);
    add(&fd, flag).expect("we are root");
    ground.step(format!("flags {flag:?}"), || {
        rustix::fs::ioctl_getflags(&fd).map(|flags| flags & (IFlags::IMMUTABLE | IFlags::APPEND))
    });
    for (name, flags) in [
        ("write", OFlags::WRONLY),
        ("append", OFlags::WRONLY | OFlags::APPEND),
        ("truncate", OFlags::WRONLY | OFlags::TRUNC),
        ("noatime", OFlags::NOATIME),
        ("append truncate", OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC),
    ] {
        ground.step(format!("open for {name} of {flag:?}"), || {
            rustix::fs::open("p", flags, Mode::empty()).map(drop)
        });
    }
    ground.step(format!("truncate an open file of {flag:?}"), || rustix::fs::ftruncate(&writer, 2));
    ground.step(format!("punch an open file of {flag:?}"), || {
        let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&writer, how, 0, 2)
    });
    ground.step(format!("allocate in an open file of {flag:?}"), || {
        rustix::fs::fallocate(&writer, rustix::fs::FallocateFlags::empty(), 0, 20)
    });
    ground.step(format!("chmod an open file of {flag:?}"), || rustix::fs::fchmod(&writer, Mode::from(0o600)));
    set_times_of_flagged(ground, &writer, flag);
    clear(&fd);
    ground.step_as(ALICE, format!("set {flag:?}"), || add(&fd, flag));
    ground.step_as(ALICE, "set nodump", || add(&fd, IFlags::NODUMP));
    ground.step("set nodump", || add(&fd, IFlags::NODUMP));
    drop((fd, writer));
    ground.sweep();
}

fn set_times_of_flagged(ground: &mut Ground, writer: &OwnedFd, flag: IFlags) {
    ground.step(format!("times now of {flag:?}"), || {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        rustix::fs::futimens(writer, &rustix::fs::Timestamps { last_access: now, last_modification: now })
    });
    let (now, omit) = (rustix::fs::UTIME_NOW, rustix::fs::UTIME_OMIT);
    for (name, access, change) in
        [("none", omit, omit), ("atime", now, omit), ("mtime", omit, now), ("mtime given", omit, 5)]
    {
        let time = |tv_nsec| rustix::fs::Timespec { tv_sec: 900_000_000, tv_nsec };
        let times = rustix::fs::Timestamps { last_access: time(access), last_modification: time(change) };
        ground
            .step(format!("set {name} of an open file of {flag:?}"), || rustix::fs::futimens(writer, &times));
    }
}

fn locks(ground: &mut Ground) {
    ground.section("locks", &["f"]);
    file("f", b"12345", 0o644);
    let (one, other) = (open("f", OFlags::RDWR), open("f", OFlags::RDWR));
    for (name, first, second) in [
        ("exclusive, exclusive", FlockOperation::LockExclusive, FlockOperation::NonBlockingLockExclusive),
        ("exclusive, shared", FlockOperation::LockExclusive, FlockOperation::NonBlockingLockShared),
        ("shared, shared", FlockOperation::LockShared, FlockOperation::NonBlockingLockShared),
        ("shared, exclusive", FlockOperation::LockShared, FlockOperation::NonBlockingLockExclusive),
    ] {
        ground.step(format!("flock {name}"), || {
            rustix::fs::flock(&one, first)?;
            let second = rustix::fs::flock(&other, second);
            rustix::fs::flock(&one, FlockOperation::Unlock)?;
            rustix::fs::flock(&other, FlockOperation::Unlock)?;
            second
        });
        ground.step(format!("lockf {name}"), || {
            rustix::fs::fcntl_lock(&one, first)?;
            rustix::fs::fcntl_lock(&other, second)?;
            rustix::fs::fcntl_lock(&one, FlockOperation::Unlock)
        });
    }
    ground.step("lockf exclusive on a file for reading", || {
        rustix::fs::fcntl_lock(open("f", OFlags::RDONLY), FlockOperation::NonBlockingLockExclusive)
    });
    let script = "
import fcntl, os, struct
f = os.open('f', os.O_RDWR)
def lock(fd, command, kind, start, length):
    try:
        fcntl.fcntl(fd, command, struct.pack('hhqqi4x', kind, 0, start, length, 0))
        return 'ok'
    except OSError as error:
        return os.strerror(error.errno)
F_OFD_SETLK = 37
said = [lock(f, fcntl.F_SETLK, fcntl.F_WRLCK, 10, 10)]
if os.fork() == 0:
    g = os.open('f', os.O_RDWR)
    said = [lock(g, fcntl.F_SETLK, kind, at, 5) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK) for at in (0, 8, 15, 20)]
    asked = struct.unpack('hhqqi4x', fcntl.fcntl(g, fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)))
    print(*said, asked[0], asked[2], asked[3], asked[4] == os.getppid(), sep=', ', flush=True)
    os._exit(0)
os.wait()
g = os.open('f', os.O_RDWR)
said.append(lock(g, F_OFD_SETLK, fcntl.F_WRLCK, 100, 10))
said.append(lock(f, F_OFD_SETLK, fcntl.F_RDLCK, 105, 1))
os.close(g)
said.append(lock(f, F_OFD_SETLK, fcntl.F_RDLCK, 105, 1))
print(*said, sep=', ')
";
    let run = std::process::Command::new("python3").args(["-c", script]).output();
    if let Ok(run) = run {
        ground.say(String::from_utf8_lossy(&run.stdout));
        ground.say(String::from_utf8_lossy(&run.stderr));
    }
    ground.sweep();
}

fn listings(ground: &mut Ground) {
    ground.section("listings", &[]);
    positions(ground);
    changes_while_listing(ground);
    ground.step("types", kinds_listed);
    ground.sweep();
}

/// Reads at most `most` entries of a listing: the names and the positions behind them.
fn list(dir: &mut Dir, most: usize) -> Result<Vec<(Vec<u8>, i64)>> {
    let mut found = Vec::new();
    while found.len() < most {
        let Some(entry) = dir.read() else { break };
        let entry = entry?;
        found.push((entry.file_name().to_bytes().to_vec(), entry.offset()));
    }
    Ok(found)
}

/// Begins a listing of the directory `d`.
fn listing() -> Result<Dir> {
    Dir::read_from(open("d", OFlags::RDONLY))
}

/// Listings from the start, from the start again, and from positions in between.
fn positions(ground: &mut Ground) {
    dir("d", 0o755);
    for number in 0..500 {
        File::create(format!("d/name {number}")).expect("it is new");
    }
    let names =
        |found: &[(Vec<u8>, i64)]| found.iter().map(|one| one.0.clone()).collect::<BTreeSet<_>>().len();
    ground.step("all", || {
        let found = list(&mut listing()?, usize::MAX)?;
        Ok((found.len(), names(&found)))
    });
    ground.step("rewind", || {
        let mut dir = listing()?;
        list(&mut dir, 100)?;
        dir.rewind();
        list(&mut dir, usize::MAX).map(|found| (found.len(), names(&found)))
    });
    ground.step("seek to where one was", || {
        let mut dir = listing()?;
        let all = list(&mut dir, usize::MAX)?;
        let mut wrong = 0;
        for at in [0, 1, 2, 100, 499] {
            dir.seek(all[at].1).map_err(|_| Errno::IO)?;
            let next = list(&mut dir, 1)?;
            wrong += usize::from(next.first().map(|one| &one.0) != all.get(at + 1).map(|one| &one.0));
        }
        Ok(wrong)
    });
}

/// Listings of a directory that loses and gets names meanwhile.
fn changes_while_listing(ground: &mut Ground) {
    ground.step("removing while listing", || {
        let mut dir = listing()?;
        let mut seen = BTreeSet::new();
        while let Some((name, _)) = list(&mut dir, 1)?.pop() {
            if name != b"." && name != b".." {
                rustix::fs::unlinkat(open("d", OFlags::RDONLY), name.as_slice(), AtFlags::empty())?;
                seen.insert(name);
            }
        }
        Ok(seen.len())
    });
    ground.step("rmdir then", || rustix::fs::rmdir("d"));
    dir("d", 0o755);
    for number in 0..100 {
        File::create(format!("d/stays {number}")).expect("it is new");
    }
    ground.step("making and removing others while listing", || {
        let mut dir = listing()?;
        let mut seen = BTreeSet::new();
        let mut count = 0;
        while let Some((name, _)) = list(&mut dir, 1)?.pop() {
            if name.starts_with(b"stays") && !seen.insert(name) {
                return Ok("twice");
            }
            count += 1;
            if count < 200 {
                File::create(format!("d/comes {count}")).map_err(|_| Errno::IO)?;
                if count % 2 == 0 {
                    rustix::fs::unlink(format!("d/comes {count}"))?;
                }
            }
        }
        Ok(if seen.len() == 100 { "each once" } else { "some are missing" })
    });
}

/// Makes a file of each kind. Returns the kinds in a listing, and whether its inode numbers are those of `stat`.
fn kinds_listed() -> Result<BTreeSet<(String, String, bool)>> {
    for kind in ["file", "dir", "fifo", "socket", "null", "dangling"] {
        make(kind, &format!("d/kind {kind}"));
    }
    let mut kinds = BTreeSet::new();
    for entry in listing()? {
        let entry = entry?;
        if entry.file_name().to_bytes().starts_with(b"kind") {
            let stat =
                rustix::fs::statat(open("d", OFlags::RDONLY), entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            kinds.insert((
                format!("{:?}", entry.file_name()),
                format!("{:?}", entry.file_type()),
                stat.st_ino == entry.ino(),
            ));
        }
    }
    Ok(kinds)
}

fn whole(ground: &mut Ground) {
    ground.section("whole", &["f"]);
    file("f", b"1", 0o644);
    ground.step("name length, block size", || {
        rustix::fs::statvfs("f").map(|facts| {
            (facts.f_namemax, facts.f_frsize, facts.f_bsize, facts.f_bfree > 0, facts.f_ffree > 0)
        })
    });
    ground.step("birth", || {
        let stat =
            rustix::fs::statx(CWD, "f", AtFlags::empty(), StatxFlags::BTIME | StatxFlags::BASIC_STATS)?;
        let has = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok((has, has && (stat.stx_btime.tv_sec - stat.stx_mtime.tv_sec).abs() < 5, stat.stx_blksize))
    });
    rustix::fs::chmod("f", Mode::from(0o600)).expect("it is ours");
    std::thread::sleep(std::time::Duration::from_millis(20));
    ground.step("birth stays", || {
        let stat =
            rustix::fs::statx(CWD, "f", AtFlags::empty(), StatxFlags::BTIME | StatxFlags::BASIC_STATS)?;
        Ok((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) < (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec))
    });
    ground.sweep();
}
