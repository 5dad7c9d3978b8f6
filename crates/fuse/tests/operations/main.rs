//! Every operation through the mount, as specified by POSIX and the manual pages; fsck.f2fs checks the
//! result.

mod attributes;
mod space;

#[path = "../support/mod.rs"]
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
