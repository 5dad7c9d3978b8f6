//! Every operation through the mount, as specified by POSIX and the manual pages; fsck.f2fs checks the
//! result.

mod support;

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    process::Command,
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, CWD, FallocateFlags, FileType, Mode, RenameFlags, SeekFrom as Seeking, Timespec, Timestamps,
    },
    io::Errno,
};
use support::{Bench, TRIES};

/// Unmounts, checks and mounts again, so that the test then reads from the image.
fn through_the_image(bench: &mut Bench) {
    bench.unmount_clean();
    bench.mount("allow_other");
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn content_survives_writing_growing_and_truncating() {
    needs_fuse!();
    let mut bench = Bench::mounted(256);
    let mut wanted = noise(5 << 20, 1);
    let path = bench.path("file");
    fs::write(&path, &wanted).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    for (offset, length) in
        [(0, 1), (4095, 2), (1 << 20, 4096), (wanted.len() - 1, 10_000), (123_457, 65_536)]
    {
        let part = noise(length, offset as u64);
        file.write_all_at(&part, offset as u64).unwrap();
        wanted.resize(wanted.len().max(offset + length), 0);
        wanted[offset..offset + length].copy_from_slice(&part);
    }
    assert!(fs::read(&path).unwrap() == wanted);
    for size in [4 << 20, (4 << 20) - 5, 3_000_000, 6_000_000, 100, 0, 10] {
        file.set_len(size).unwrap();
        wanted.resize(size as usize, 0);
        assert_eq!(file.metadata().unwrap().len(), size);
    }
    assert!(fs::read(&path).unwrap() == wanted);
    let huge = 3_900_000_000_000;
    file.write_all_at(b"far", huge).unwrap();
    drop(file);
    through_the_image(&mut bench);
    let mut file = File::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), huge + 3);
    assert!(file.metadata().unwrap().blocks() < 100, "the rest is a hole");
    file.seek(SeekFrom::Start(huge)).unwrap();
    let mut far = String::new();
    file.read_to_string(&mut far).unwrap();
    assert_eq!(far, "far");
    let beyond = OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 62);
    assert_eq!(beyond.unwrap_err().raw_os_error(), Some(Errno::FBIG.raw_os_error()));
    drop(file);
    bench.unmount_clean();
}

#[test]
fn names_are_made_linked_renamed_and_removed() {
    needs_fuse!();
    let mut bench = Bench::mounted(128);
    let at = |name: &str| bench.path(name);
    fs::create_dir(at("d")).unwrap();
    assert_eq!(fs::metadata(at("")).unwrap().nlink(), 3);
    fs::write(at("a"), "a").unwrap();
    fs::hard_link(at("a"), at("d/b")).unwrap();
    assert_eq!(fs::metadata(at("a")).unwrap().nlink(), 2);
    symlink("../a", at("d/s")).unwrap();
    assert_eq!(fs::read_link(at("d/s")).unwrap().to_str(), Some("../a"));
    assert_eq!(fs::read(at("d/s")).unwrap(), b"a");
    assert_eq!(fs::symlink_metadata(at("d/s")).unwrap().len(), 4);
    for (kind, name) in
        [(FileType::Fifo, "fifo"), (FileType::Socket, "socket"), (FileType::CharacterDevice, "char")]
    {
        let device = rustix::fs::makedev(300, 70_001);
        rustix::fs::mknodat(CWD, at(name), kind, Mode::from(0o640), device).unwrap();
        let stat = fs::symlink_metadata(at(name)).unwrap();
        assert_eq!(FileType::from_raw_mode(stat.mode()), kind);
        if kind == FileType::CharacterDevice {
            assert_eq!(stat.rdev(), device);
        }
    }
    assert_eq!(fs::remove_dir(at("d")).unwrap_err().raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    let long = "n".repeat(255);
    fs::write(at(&long), "x").unwrap();
    let too_long = fs::write(at(&format!("{long}n")), "x").unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));

    let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
    assert_eq!(rename("a", "d/b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("d", "e", RenameFlags::NOREPLACE).unwrap();
    rename("e", &long, RenameFlags::EXCHANGE).unwrap();
    assert!(fs::metadata(at(&long)).unwrap().is_dir() && fs::metadata(at("e")).unwrap().is_file());
    assert_eq!(fs::rename(at(&long), at(&format!("{long}/x"))).unwrap_err().raw_os_error(), Some(22));
    // Both are names of one inode: rename(2) does nothing, and both stay.
    fs::rename(at("a"), at(&format!("{long}/b"))).unwrap();
    assert_eq!(fs::metadata(at("a")).unwrap().nlink(), 2);
    fs::rename(at("e"), at("a")).unwrap();
    assert_eq!(fs::read(at("a")).unwrap(), b"x");
    fs::create_dir(at("empty")).unwrap();
    fs::rename(at(&long), at("empty")).unwrap();
    assert_eq!(fs::metadata(at("")).unwrap().nlink(), 3);
    through_the_image(&mut bench);
    assert_eq!(fs::read(bench.path("empty/b")).unwrap(), b"a");
    assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 5);
    fs::remove_dir_all(bench.path("empty")).unwrap();
    bench.unmount_clean();
}

#[test]
fn removed_files_stay_while_they_are_open() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let path = bench.path("gone");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&noise(1 << 20, 3)).unwrap();
    let victim = bench.path("victim");
    fs::write(&victim, "still here").unwrap();
    let mut replaced = File::open(&victim).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(bench.path("new"), "new").unwrap();
    fs::rename(bench.path("new"), &victim).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.sync_all().unwrap();
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut content).unwrap();
    assert!(content == noise(1 << 20, 3));
    let mut old = String::new();
    replaced.read_to_string(&mut old).unwrap();
    assert_eq!((old.as_str(), fs::read_to_string(&victim).unwrap().as_str()), ("still here", "new"));
    let used = |bench: &Bench| {
        let facts = rustix::fs::statvfs(bench.path("")).unwrap();
        facts.f_blocks - facts.f_bfree
    };
    let before = used(&bench);
    drop((file, replaced));
    // FORGET is asynchronous.
    let freed = (0..TRIES).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        used(&bench) + 256 <= before
    });
    assert!(freed, "the space comes back");
    bench.unmount_clean();
}

#[test]
fn times_owners_and_modes_are_kept() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let path = bench.path("file");
    fs::write(&path, "x").unwrap();
    std::os::unix::fs::chown(&path, Some(1234), Some(70_000)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o4751)).unwrap();
    let times = |access: (i64, i64), change: (i64, i64)| Timestamps {
        last_access: Timespec { tv_sec: access.0, tv_nsec: access.1 as _ },
        last_modification: Timespec { tv_sec: change.0, tv_nsec: change.1 as _ },
    };
    rustix::fs::utimensat(CWD, &path, &times((-5, 999_999_999), (4_000_000_000, 1)), AtFlags::empty())
        .unwrap();
    symlink("file", bench.path("link")).unwrap();
    rustix::fs::utimensat(CWD, bench.path("link"), &times((7, 8), (9, 10)), AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
    through_the_image(&mut bench);
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (1234, 70_000, 0o4751));
    assert_eq!((stat.atime(), stat.atime_nsec()), (-5, 999_999_999));
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (4_000_000_000, 1));
    let link = fs::symlink_metadata(bench.path("link")).unwrap();
    assert_eq!((link.atime(), link.mtime(), link.mtime_nsec()), (7, 9, 10));

    // A change of owner clears the set-user-id bit, for root, too (Linux).
    std::os::unix::fs::chown(&path, Some(1), None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o751);
    // So does a write by a user without the capability to keep it.
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    bench.shell("setpriv --reuid 2000 --regid 2000 --clear-groups sh -c 'echo more >> file'");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    bench.shell("setpriv --reuid 2000 --regid 2000 --clear-groups truncate -s 1 file");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(&path, "later").unwrap();
    let after = fs::metadata(&path).unwrap();
    assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    bench.unmount_clean();
}

#[test]
fn rights_are_checked() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench.shell(
        "chmod 755 .; mkdir private shared sticky; chmod 700 private; chmod 2777 shared; chmod 1777 sticky
         chgrp 4000 shared; echo secret > file; chmod 600 file; echo mine > sticky/root",
    );
    let other = |script: &str| {
        let run = Command::new("setpriv")
            .args(["--reuid", "2000", "--regid", "2000", "--clear-groups", "bash", "-c", script])
            .current_dir(bench.path(""))
            .output()
            .unwrap();
        run.status.success()
    };
    assert!(!other("cat file") && !other("ls private") && !other("touch new") && !other("rm -f sticky/root"));
    assert!(!other("chmod 777 file") && !other("chown 2000 file"));
    assert!(other("umask 022; mkdir shared/dir && echo x > shared/dir/f && chmod 640 shared/dir/f"));
    let dir = fs::metadata(bench.path("shared/dir")).unwrap();
    assert_eq!((dir.uid(), dir.gid(), dir.mode() & 0o7777), (2000, 4000, 0o2755), "the group is inherited");
    let file = fs::metadata(bench.path("shared/dir/f")).unwrap();
    assert_eq!((file.gid(), file.mode() & 0o7777), (4000, 0o640));
    bench.unmount_clean();
}

#[test]
fn extended_attributes_and_access_lists_are_kept() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let path = bench.path("file");
    fs::write(&path, "x").unwrap();
    let big = noise(3000, 5);
    xattr::set(&path, "user.small", b"1").unwrap();
    xattr::set(&path, "user.big", &big).unwrap();
    xattr::set(&path, "user.empty", b"").unwrap();
    xattr::set(&path, "trusted.t", b"t").unwrap();
    xattr::set(&path, "security.s", b"s").unwrap();
    assert_eq!(
        xattr::remove(&path, "user.none").unwrap_err().raw_os_error(),
        Some(Errno::NODATA.raw_os_error())
    );
    let too_big = xattr::set(&path, "user.huge", &noise(8000, 1)).unwrap_err();
    assert_eq!(too_big.raw_os_error(), Some(Errno::TOOBIG.raw_os_error()));
    bench.shell(
        "mkdir dir; setfacl -m u:2000:rwx,g:3000:r-x,m::rwx dir; setfacl -d -m u:2000:rwx,o::--- dir
         umask 077; touch dir/file; mkdir dir/sub; setfacl -m u:5000:rw file; chmod 640 file",
    );
    through_the_image(&mut bench);
    assert_eq!(xattr::get(&path, "user.big").unwrap().as_deref(), Some(&big[..]));
    assert_eq!(xattr::get(&path, "user.empty").unwrap().as_deref(), Some(&b""[..]));
    let mut names: Vec<_> = xattr::list(&path).unwrap().map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(
        names,
        ["security.s", "system.posix_acl_access", "trusted.t", "user.big", "user.empty", "user.small"]
    );
    let acl = |name: &str| bench.shell(&format!("getfacl -cpnE {name}"));
    assert_eq!(acl("file"), "user::rw-\nuser:5000:rw-\ngroup::r--\nmask::r--\nother::---\n\n");
    // A default ACL overrides the umask.
    assert_eq!(acl("dir/file"), "user::rw-\nuser:2000:rwx\ngroup::r-x\nmask::rw-\nother::---\n\n");
    let default = "default:user::rwx\ndefault:user:2000:rwx\ndefault:group::r-x\ndefault:mask::rwx\ndefault:other::---\n\n";
    assert_eq!(
        acl("dir/sub"),
        format!("user::rwx\nuser:2000:rwx\ngroup::r-x\nmask::rwx\nother::---\n{default}")
    );
    // The kernel enforces the ACLs.
    bench
        .shell("setpriv --reuid 2000 --regid 2000 --clear-groups sh -c 'echo x > dir/file; touch dir/sub/y'");
    let refused = bench.shell("setpriv --reuid 2001 --regid 2001 --clear-groups cat dir/file 2>&1 || true");
    assert!(refused.contains("Permission denied"), "{refused}");
    bench.shell("setfacl -b file; getfacl -cp file | grep -vq mask; rm -r dir");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    bench.unmount_clean();
}

#[test]
fn inode_flags_have_their_effect() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench.shell("echo one > fixed; echo one > log; mkdir dir; chattr +i fixed; chattr +a log; chattr +i dir");
    through_the_image(&mut bench);
    let fails = |script: &str| {
        bench.shell(&format!("if ({script}) 2>/dev/null; then echo done; else echo refused; fi"))
    };
    for script in [
        "echo two > fixed",
        "echo two >> fixed",
        "rm -f fixed",
        "mv fixed moved",
        "ln fixed link",
        "chmod 777 fixed",
        "truncate -s 0 fixed",
        "setfattr -n user.a -v b fixed",
        "touch -d 2001-01-01 fixed",
        "touch dir/new",
        "echo two > log",
        "rm -f log",
        "truncate -s 0 log",
        // F2FS has no such flag.
        "chattr +j log",
    ] {
        assert_eq!(fails(script), "refused\n", "{script}");
    }
    // An exchange would remove a name from an append-only directory.
    bench.shell("mkdir logs; echo new > file; echo old > logs/file; chattr +a logs");
    let (outside, inside) = (bench.path("file"), bench.path("logs/file"));
    for (from, to) in [(&outside, &inside), (&inside, &outside)] {
        let exchanged = rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE);
        assert_eq!(exchanged, Err(Errno::PERM), "{from:?}");
    }
    bench.shell("chattr -a logs; rm -r logs");
    bench.shell("echo two >> log; test \"$(cat log)\" = $'one\\ntwo'");
    assert!(bench.shell("lsattr fixed log").contains("----i"));
    bench.shell("chattr -i fixed dir; chattr -a log; rm -r fixed log dir");
    bench.unmount_clean();
}

#[test]
fn times_of_protected_files_stay_as_on_linux() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench
        .shell("echo x > plain; echo x > fixed; echo x > log; mkdir dir; chattr +i fixed dir; chattr +a log");
    let nanoseconds = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let (now, omit) = (nanoseconds(rustix::fs::UTIME_NOW), nanoseconds(rustix::fs::UTIME_OMIT));
    let given = Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
    let set = |bench: &Bench, name: &str, atime, mtime| {
        let times = Timestamps { last_access: atime, last_modification: mtime };
        rustix::fs::utimensat(CWD, bench.path(name), &times, AtFlags::empty())
    };
    for _ in 0..2 {
        through_the_image(&mut bench);
        for (atime, mtime) in [
            (given, given),
            (given, now),
            (now, given),
            (given, omit),
            (omit, given),
            (now, omit),
            (omit, now),
        ] {
            for name in ["fixed", "log", "dir"] {
                assert_eq!(set(&bench, name, atime, mtime), Err(Errno::PERM), "{name}: {atime:?} {mtime:?}");
            }
            set(&bench, "plain", atime, mtime).unwrap();
        }
        // An append-only file accepts only both times set to the current time.
        assert_eq!(set(&bench, "fixed", now, now), Err(Errno::PERM));
        assert_eq!(set(&bench, "dir", now, now), Err(Errno::PERM));
        set(&bench, "log", now, now).unwrap();
        set(&bench, "plain", now, now).unwrap();
    }
    // Times that the kernel writes back are not explicit times of a caller.
    bench.shell("echo more >> log; sync log; chattr -i fixed; ln fixed linked; chattr +i fixed; sync fixed");
    bench.shell("chattr -i fixed dir; chattr -a log");
    bench.unmount_clean();
}

#[test]
fn an_access_changes_the_time_even_if_the_kernel_has_everything_cached() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let path = bench.path("file");
    let accessed = || fs::metadata(&path).unwrap().accessed().unwrap();
    // After this the content is in the page cache, and after the second stat(2) so are the attributes.
    fs::write(&path, "content").unwrap();
    let (written, known) = (accessed(), accessed());
    assert_eq!(written, known);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(fs::read(&path).unwrap(), b"content");
    let first = accessed();
    assert!(first > written, "{first:?}");
    // The access time is later than the last change now, and stays for a day.
    std::thread::sleep(Duration::from_millis(20));
    fs::read(&path).unwrap();
    assert_eq!(accessed(), first);
    bench.unmount_clean();
}

#[test]
fn times_stay_as_they_were_while_the_kernel_had_the_file() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    // Some of them are created in one clock tick and written back in the next.
    let names: Vec<String> = (0..200).map(|n| format!("file{n}")).collect();
    let times = |bench: &Bench| -> Vec<_> {
        let facts = names.iter().map(|name| fs::metadata(bench.path(name)).unwrap());
        facts.map(|facts| (facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec())).collect()
    };
    for name in &names {
        fs::write(bench.path(name), "content").unwrap();
    }
    let shown = times(&bench);
    through_the_image(&mut bench);
    assert_eq!(times(&bench), shown);
    bench.unmount_clean();
}

#[test]
fn attributes_that_do_not_fit_fail_as_on_linux() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let file = bench.path("file");
    fs::write(&file, "x").unwrap();
    let set = |name: &str, bytes: usize| {
        let done = xattr::set(&file, name, &vec![b'x'; bytes]);
        done.map_err(|error| error.raw_os_error().unwrap_or_default())
    };
    let [too_large, range, no_space] = [Errno::TOOBIG, Errno::RANGE, Errno::NOSPC].map(Errno::raw_os_error);
    for bytes in [5000, 65_536, 65_537] {
        assert_eq!(set("user.large", bytes), Err(too_large), "{bytes}");
    }
    assert_eq!(set(&format!("user.{}", "n".repeat(251)), 1), Err(range));
    set("user.large", 3000).unwrap();
    assert_eq!(set("user.more", 2000), Err(too_large));
    bench.shell("touch other; dd if=/dev/zero of=fill bs=1M conv=fsync status=none 2>/dev/null || true");
    bench.shell("dd if=/dev/zero of=rest bs=4k conv=fsync status=none 2>/dev/null || true");
    let full = (0..64).find_map(|n| {
        fs::write(bench.path(&format!("small{n}")), "x").err().map(|error| error.raw_os_error().unwrap())
    });
    assert_eq!(full, Some(no_space));
    let other = bench.path("other");
    let refused = (0..16).find_map(|n| xattr::set(&other, format!("user.{n}"), &[b'x'; 1000]).err());
    assert_eq!(refused.unwrap().raw_os_error(), Some(no_space));
    // A full volume still allows renames, also over an existing name.
    bench.shell("mv file moved; mv other moved; ln moved linked; test ! -e other; rm fill");
    bench.unmount_clean();
}

#[test]
fn writes_accepted_before_a_flag_is_set_are_kept() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench.shell(
        "touch log; chattr +a log; for n in 1 2 3; do echo $n >> log; done
         exec 3> fixed; echo before >&3; chattr +i fixed; exec 3>&-
         exec 4>> open; echo one >&4; chattr +a open; echo two >> open; echo three >&4; exec 4>&-
         echo before > anywhere; sync anywhere; exec 5<> anywhere; chattr +a anywhere; printf after >&5; exec 5>&-",
    );
    // Several requests, none of which begins where the previous one ended.
    let large = noise(3 << 20, 13);
    bench.shell("touch large; chattr +a large");
    for chunk in large.chunks(700_001) {
        let mut file = OpenOptions::new().append(true).open(bench.path("large")).unwrap();
        file.write_all(chunk).unwrap();
        file.sync_all().unwrap();
    }
    through_the_image(&mut bench);
    let content = |name: &str| fs::read_to_string(bench.path(name)).unwrap();
    assert_eq!(content("log"), "1\n2\n3\n");
    assert_eq!(content("fixed"), "before\n");
    assert_eq!(content("open"), "one\ntwo\nthree\n");
    assert_eq!(content("anywhere"), "aftere\n", "an open file is still usable");
    assert!(fs::read(bench.path("large")).unwrap() == large);

    // A program with an append-only file open for appending can clear O_APPEND; the kernel allows it.
    let mut file = OpenOptions::new().append(true).open(bench.path("log")).unwrap();
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty()).unwrap();
    file.write_all_at(b"forged", 0).unwrap();
    file.sync_all().unwrap_err();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"4\n").unwrap();
    drop(file);
    through_the_image(&mut bench);
    assert_eq!(fs::read_to_string(bench.path("log")).unwrap(), "1\n2\n3\n4\n");
    bench.unmount_clean();
}

#[test]
fn flags_are_changed_by_owners_and_administrators() {
    needs_fuse!("python3");
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: acting as another user needs root");
    }
    let mut bench = Bench::mounted(64);
    bench.shell("chmod 755 .; echo x > roots; chmod 666 roots; echo x > own; chown 2000 own");
    let ask = "
import fcntl, os, struct, sys
name, (user, number, flags) = sys.argv[1], (int(arg, 0) for arg in sys.argv[2:])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
try:
    fcntl.ioctl(os.open(name, os.O_RDONLY), number, struct.pack('II', flags, 0))
    print('done')
except PermissionError:
    print('refused')
";
    fs::write(bench.beside("flags.py"), ask).unwrap();
    let ask = |arguments: String| bench.shell(&format!("python3 ../flags.py {arguments}"));
    // The ioctl number of 32-bit programs, which the kernel passes on unchanged, and the usual one.
    for number in ["0x40046602", "0x40086602"] {
        for (name, flags, said) in [
            ("roots", "0x40", "refused\n"), // no dump
            ("roots", "0x10", "refused\n"), // immutable
            ("own", "0x10", "refused\n"),
            ("own", "0x20", "refused\n"), // append-only
            ("own", "0x40", "done\n"),
        ] {
            assert_eq!(ask(format!("{name} 2000 {number} {flags}")), said, "{number} {name} {flags}");
        }
        assert_eq!(ask(format!("own 0 {number} 0x50")), "done\n");
        assert_eq!(ask(format!("own 2000 {number} 0x40")), "refused\n");
        assert_eq!(ask(format!("own 0 {number} 0")), "done\n");
    }
    bench.unmount_clean();
}

#[test]
fn handles_find_existing_files_and_report_removed_ones() {
    needs_fuse!("python3");
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: opening by handle needs root");
    }
    let mut bench = Bench::mounted(64);
    let by_handle = "
import ctypes, errno, os, time
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('kind', ctypes.c_int), ('data', ctypes.c_char * 128)]
mount = os.open('.', os.O_RDONLY)
def handle(name):
    found, mount_id = Handle(128), ctypes.c_int()
    assert libc.name_to_handle_at(-100, name.encode(), ctypes.byref(found), ctypes.byref(mount_id), 0) == 0
    return found
def opened(handle):
    fd = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), 'open_by_handle_at')
    return os.fdopen(fd)
open('kept', 'w').write('kept')
open('gone', 'w').write('gone')
kept, gone = handle('kept'), handle('gone')
assert opened(kept).read() == 'kept' and opened(gone).read() == 'gone'
os.unlink('gone')
# The kernel releases it later.
for attempt in range(500):
    try:
        opened(gone).close()
    except OSError as error:
        print(errno.errorcode[error.errno])
        break
    time.sleep(0.01)
";
    fs::write(bench.beside("handle.py"), by_handle).unwrap();
    assert_eq!(bench.shell("python3 ../handle.py"), "ESTALE\n");
    bench.unmount_clean();
}

#[test]
fn ranges_are_allocated_punched_zeroed_and_found() {
    needs_fuse!();
    let mut bench = Bench::mounted(128);
    let path = bench.path("file");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut wanted = noise(1 << 20, 7);
    file.write_all_at(&wanted, 0).unwrap();
    let change = |flags, offset, length| rustix::fs::fallocate(&file, flags, offset, length);
    change(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 5000, 300_000).unwrap();
    wanted[5000..305_000].fill(0);
    change(FallocateFlags::ZERO_RANGE, 500_001, 100_000).unwrap();
    wanted[500_001..600_001].fill(0);
    change(FallocateFlags::empty(), 1 << 20, 100_000).unwrap();
    wanted.resize((1 << 20) + 100_000, 0);
    change(FallocateFlags::KEEP_SIZE, 4 << 20, 1 << 20).unwrap();
    assert_eq!(
        change(FallocateFlags::COLLAPSE_RANGE, 0, 4096),
        Err(Errno::OPNOTSUPP),
        "FUSE has no such request"
    );
    assert!(fs::read(&path).unwrap() == wanted);
    assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
    // The file is open for writing; data written just before must be found.
    file.write_all_at(b"data", 3 << 20).unwrap();
    wanted.resize((3 << 20) + 4, 0);
    wanted[3 << 20..].copy_from_slice(b"data");
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(Seeking::Data(2 << 20)), Ok(3 << 20));
    assert_eq!(seek(Seeking::Hole(8192)), Ok(8192));
    assert_eq!(seek(Seeking::Data(8192)), Ok(303_104));
    assert_eq!(seek(Seeking::Hole(3 << 20)), Ok((3 << 20) + 4));
    assert_eq!(seek(Seeking::Data((3 << 20) + 4)), Err(Errno::NXIO));
    drop(file);
    through_the_image(&mut bench);
    assert!(fs::read(&path).unwrap() == wanted);
    bench.unmount_clean();
}

#[test]
fn ranges_are_copied_within_the_volume() {
    needs_fuse!();
    let mut bench = Bench::mounted(128);
    let wanted = noise(3 << 20, 9);
    fs::write(bench.path("from"), &wanted).unwrap();
    let from = File::open(bench.path("from")).unwrap();
    let to = File::create(bench.path("to")).unwrap();
    let (mut at, mut written) = (100, 0);
    loop {
        match rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut written), 1 << 21).unwrap() {
            0 => break,
            count => assert!(count <= 1 << 21),
        }
    }
    assert!(fs::read(bench.path("to")).unwrap() == wanted[100..]);
    // A hole in a file whose end is still in the page cache.
    let growing =
        File::options().read(true).write(true).create_new(true).open(bench.path("growing")).unwrap();
    growing.write_all_at(b"end", 1 << 20).unwrap();
    let (mut at, mut written) = (0, 0);
    let count = rustix::fs::copy_file_range(&growing, Some(&mut at), &to, Some(&mut written), 1 << 16);
    assert!(count.unwrap() > 0, "the file does not end there");
    drop((from, to, growing));
    bench.unmount_clean();
}

#[test]
fn big_directories_are_listed_whole() {
    needs_fuse!();
    let mut bench = Bench::mounted(256);
    let dir = bench.path("dir");
    fs::create_dir(&dir).unwrap();
    for number in 0..5000 {
        File::create(dir.join(format!("a name that is not short {number:05}"))).unwrap();
    }
    let listed = |dir: &std::path::Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names.dedup();
        names.len()
    };
    assert_eq!(listed(&dir), 5000);
    // Entries that are not removed while listing are all listed (readdir(3)).
    for (number, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        if number % 2 == 0 {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
    assert_eq!(listed(&dir), 2500);
    through_the_image(&mut bench);
    assert_eq!(listed(&dir), 2500);
    fs::remove_dir_all(&dir).unwrap();
    bench.unmount_clean();
}

#[test]
fn direct_and_mapped_access_agree() {
    needs_fuse!();
    let mut bench = Bench::mounted(128);
    bench.shell(
        "dd if=/dev/urandom of=a bs=1M count=8 oflag=direct status=none; cp a b; cmp a b
         dd if=a of=c bs=64k iflag=direct oflag=direct status=none; cmp a c
         dd if=/dev/zero of=a bs=4k seek=17 count=3 conv=notrunc oflag=direct status=none
         dd if=/dev/zero of=b bs=4k seek=17 count=3 conv=notrunc status=none; cmp a b",
    );
    let mapping = "
import mmap, os
with open('m', 'w+b') as f:
    f.truncate(1 << 20)
    m = mmap.mmap(f.fileno(), 1 << 20)
    for at in range(0, 1 << 20, 8192):
        m[at:at + 4] = at.to_bytes(4, 'little')
    assert os.pread(f.fileno(), 4, 8192 * 5) == (8192 * 5).to_bytes(4, 'little')
    m.flush()
    m[9:12] = b'end'
    m.close()
with open('m', 'rb') as f:
    assert f.read(12)[9:] == b'end'
";
    fs::write(bench.beside("map.py"), mapping).unwrap();
    bench.shell("python3 ../map.py");
    let before: Vec<u8> = fs::read(bench.path("m")).unwrap();
    through_the_image(&mut bench);
    assert!(fs::read(bench.path("m")).unwrap() == before);
    bench.shell("cmp a b");
    bench.unmount_clean();
}

#[test]
fn locks_work_between_processes() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench.shell(
        "touch l; flock -n l -c 'if flock -n l true; then exit 1; fi'; flock -n l true
         python3 - <<'END'
import fcntl, os
f = open('l', 'r+')
fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)
if os.fork() == 0:
    g = open('l', 'r+')
    try:
        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 7)
        os._exit(1)
    except OSError:
        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 40)
        os._exit(0)
assert os.wait()[1] == 0
END",
    );
    bench.unmount_clean();
}

#[test]
fn free_blocks_are_trimmed() {
    needs_fuse!();
    let mut bench = Bench::mounted(128);
    fs::write(bench.path("file"), noise(20 << 20, 3)).unwrap();
    File::open(bench.path("file")).unwrap().sync_all().unwrap();
    fs::remove_file(bench.path("file")).unwrap();
    let stored = || fs::metadata(bench.image()).unwrap().blocks() * 512;
    let before = stored();
    let said = bench.shell("fstrim -v .");
    assert!(said.contains("trimmed"), "{said}");
    assert!(stored() + (16 << 20) < before, "{before} bytes became {}", stored());
    if rustix::process::geteuid().is_root() {
        bench.shell("! setpriv --reuid 65534 --clear-groups fstrim . 2> /dev/null");
    }
    bench.unmount_clean();
}

#[test]
fn filling_the_volume_fails_without_a_sync() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    fs::write(bench.path("old"), "looked at, so that the kernel knows all of it").unwrap();
    fs::metadata(bench.path("old")).unwrap();
    for name in ["new", "old"] {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(bench.path(name)).unwrap();
        let chunk = noise(256 << 10, 7);
        let mut written = 0;
        let error = loop {
            if let Err(error) = file.write_all_at(&chunk, written) {
                break error;
            }
            written += chunk.len() as u64;
            assert!(written < 64 << 20, "64 MiB hold less than 64 MiB");
        };
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        let stored = written - chunk.len() as u64;
        assert!(file.sync_all().is_err(), "the last write is lost");
        assert!(file.sync_all().is_ok(), "and the loss was reported");
        assert!(file.metadata().is_ok());
        drop(file);
        bench.unmount_clean();
        bench.mount("");
        let kept = fs::read(bench.path(name)).unwrap();
        assert!(kept.len() as u64 >= stored, "only the last write is lost");
        assert!(kept.chunks(chunk.len()).take((stored >> 18) as usize).all(|part| part == chunk));
        fs::remove_file(bench.path(name)).unwrap();
        File::open(bench.path("")).unwrap().sync_all().unwrap();
    }
    bench.unmount();
}

#[test]
fn data_accepted_while_there_was_space_is_kept() {
    needs_fuse!();
    // Space is short from the beginning (64 MiB), or becomes short (256 MiB).
    for mebibytes in [64, 256] {
        for by_allocation in [false, true] {
            let mut bench = Bench::mounted(mebibytes);
            let early: Vec<File> =
                (0..3).map(|n| File::create(bench.path(&format!("early{n}"))).unwrap()).collect();
            let text = noise(300_000, 5);
            for file in &early {
                file.write_all_at(&text, 0).unwrap();
            }
            let filler = File::create(bench.path("filler")).unwrap();
            let chunk = noise(256 << 10, 7);
            let fills = |offset| match by_allocation {
                true => rustix::fs::fallocate(
                    &filler,
                    rustix::fs::FallocateFlags::empty(),
                    offset,
                    chunk.len() as u64,
                )
                .is_ok(),
                false => filler.write_all_at(&chunk, offset).is_ok(),
            };
            let mut offset = 0;
            while fills(offset) {
                offset += chunk.len() as u64;
                assert!(offset < mebibytes << 20, "{mebibytes} {by_allocation}: it holds less than its size");
            }
            for file in early {
                file.sync_all().unwrap();
            }
            drop(filler);
            bench.unmount_clean();
            bench.mount("");
            for n in 0..3 {
                assert!(fs::read(bench.path(&format!("early{n}"))).unwrap() == text);
            }
            bench.unmount();
        }
    }
}

#[test]
fn writing_past_the_largest_file_fails() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let file = File::create(bench.path("file")).unwrap();
    let far = 5 << 40;
    // The kernel accepts the write into its page cache; fsync(2) returns the error.
    file.write_all_at(b"x", far).unwrap();
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::FBIG.raw_os_error()));
    assert!(file.set_len(far).is_err());
    drop(file);
    bench.unmount_clean();
}

#[test]
fn a_full_volume_reports_no_space_and_stays_intact() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let chunk = noise(1 << 20, 11);
    let mut kept = 0;
    let error = loop {
        let file = File::create(bench.path(&format!("f{kept}"))).unwrap();
        if let Err(error) = file.write_all_at(&chunk, 0).and_then(|()| file.sync_all()) {
            break error;
        }
        kept += 1;
        assert!(kept < 64, "64 MiB hold less than 64 MiB");
    };
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    for number in 0..kept {
        assert!(fs::read(bench.path(&format!("f{number}"))).unwrap() == chunk);
    }
    fs::remove_file(bench.path("f0")).unwrap();
    fs::remove_file(bench.path("f1")).unwrap();
    File::open(bench.path("")).unwrap().sync_all().unwrap();
    let last = OpenOptions::new().write(true).create_new(true).mode(0o600).open(bench.path("last")).unwrap();
    last.write_all_at(&chunk, 0).unwrap();
    last.sync_all().unwrap();
    drop(last);
    bench.unmount_clean();
    bench.mount("");
    assert!(fs::read(bench.path("last")).unwrap() == chunk);
    bench.unmount();
}
