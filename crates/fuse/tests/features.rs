//! Optional features through the mount: compression, quota limits, large blocks, remounts and `direct_write`.

mod support;

use std::{
    fs::{self, File, OpenOptions},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use f2fs::{
    engine::{Caller, Engine, NewNode, Options, QuotaLimits, SetAttr},
    format::{BlockSize, checkpoint::Flags, quota::QuotaKind},
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::Time,
};
use guest::ioctl;
use rustix::{
    fs::FallocateFlags,
    io::Errno,
    mm::{MapFlags, ProtFlags},
};
use support::{Bench, TRIES};

const COMPRESSED: &[&str] = &["-O", "extra_attr,compression,inode_checksum"];

#[test]
fn files_are_compressed_released_and_reserved() {
    needs_fuse!();
    let mut bench = Bench::new(128, COMPRESSED);
    bench.mount(
        "allow_other,compress_algorithm=zstd:3,compress_log_size=3,compress_chksum,compress_extension=log",
    );
    bench.shell("mkdir dir && chattr +c dir && lsattr -d dir | grep -q c");
    let text = b"a line that comes again and again\n".repeat(30_000);
    for name in ["dir/file", "by.log", "plain"] {
        fs::write(bench.path(name), &text).unwrap();
        File::open(bench.path(name)).unwrap().sync_all().unwrap();
    }
    let saved = |name: &str| ioctl::compressed_blocks(File::open(bench.path(name)).unwrap());
    let clusters = text.len() as u64 / (8 * 4096);
    assert_eq!(saved("dir/file"), Ok(7 * clusters));
    assert_eq!(saved("by.log"), Ok(7 * clusters));
    assert_eq!(saved("plain"), Err(Errno::INVAL));

    let file = bench.path("dir/file");
    let blocks = || fs::metadata(&file).unwrap().blocks() / 8;
    let before = blocks();
    {
        let writer = OpenOptions::new().write(true).open(&file).unwrap();
        assert_eq!(ioctl::release_compressed_blocks(File::open(&file).unwrap()), Err(Errno::BUSY));
        assert_eq!(ioctl::set_compression(&writer, 1, 2), Err(Errno::FBIG));
        drop(writer);
    }
    // RELEASE is asynchronous: the kernel sends it some time after close(2).
    let release = || ioctl::release_compressed_blocks(File::open(&file).unwrap());
    let released = (0..TRIES).find_map(|_| match release() {
        Err(Errno::BUSY) => {
            std::thread::sleep(std::time::Duration::from_millis(10));
            None
        }
        result => Some(result),
    });
    assert_eq!(released, Some(Ok(7 * clusters)));
    assert!(fs::read(&file).unwrap() == text);
    bench.unmount_clean();

    bench.mount("allow_other");
    assert_eq!(blocks(), before - 7 * clusters);
    let writer = OpenOptions::new().append(true).open(&file).unwrap();
    assert_refused(writer.write_all_at(b"x", 0));
    assert_eq!(writer.metadata().unwrap().len(), text.len() as u64);
    drop(writer);
    assert_eq!(ioctl::reserve_compressed_blocks(File::open(&file).unwrap()), Ok(7 * clusters));
    let writer = OpenOptions::new().write(true).open(&file).unwrap();
    writer.write_all_at(b"X", 100_000).unwrap();
    rustix::fs::fallocate(&writer, FallocateFlags::ZERO_RANGE, 200_000, 50_000).unwrap();
    writer.sync_all().unwrap();
    drop(writer);
    bench.unmount_clean();

    bench.mount("ro");
    let mut wanted = text.clone();
    wanted[100_000] = b'X';
    wanted[200_000..250_000].fill(0);
    assert!(fs::read(&file).unwrap() == wanted);
    assert!(fs::read(bench.path("by.log")).unwrap() == text);
    bench.unmount();
}

#[track_caller]
fn assert_refused(written: std::io::Result<()>) {
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn data_written_before_a_release_is_kept_and_later_writes_fail_at_once() {
    needs_fuse!();
    let mut bench = Bench::new(128, COMPRESSED);
    let text = b"a line that comes again and again\n".repeat(10_000);
    for options in ["compress_extension=log", "compress_extension=log,direct_write"] {
        bench.mount(options);
        let name = bench.path("by.log");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&name).unwrap();
        file.write_all_at(&text, 0).unwrap();
        file.write_all_at(b"written", 100).unwrap();
        file.write_all_at(&[b'w'; 4000], text.len() as u64).unwrap();
        let mut wanted = [&text[..], &[b'w'; 4000]].concat();
        wanted[100..107].copy_from_slice(b"written");
        assert!(ioctl::release_compressed_blocks(&file).unwrap() > 0);
        for _ in 0..3 {
            assert_refused(file.write_all_at(b"more", 0));
            assert_refused(file.write_all_at(b"more", wanted.len() as u64));
        }
        // The kernel sends the same request before a write as before these.
        let mut content = vec![0; wanted.len() + 1];
        let count = file.read_at(&mut content, 0).unwrap();
        assert!(content[..count] == wanted, "{options}");
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)), Ok(wanted.len() as u64));
        file.sync_all().unwrap();
        bench.shell("! sh -c 'echo zzz >> by.log' 2> /dev/null");
        ioctl::reserve_compressed_blocks(&file).unwrap();
        file.write_all_at(b"W", 100).unwrap();
        drop(file);
        bench.unmount_clean();

        bench.mount("ro");
        wanted[100] = b'W';
        assert!(fs::read(&name).unwrap() == wanted, "{options}");
        bench.unmount();
    }
}

#[test]
fn a_file_that_becomes_immutable_refuses_writes_of_programs_that_have_it_open() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root makes files immutable");
    }
    let mut bench = Bench::new(64, &["-O", "extra_attr"]);
    for options in ["", "direct_write"] {
        bench.mount(options);
        let name = bench.path("file");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&name).unwrap();
        file.write_all_at(b"before", 0).unwrap();
        bench.shell("chattr +i file");
        assert_refused(file.write_all_at(b"after!", 0));
        assert_refused(file.write_all_at(b"after!", 6));
        let mut content = [0; 10];
        assert_eq!(file.read_at(&mut content, 0).unwrap(), 6);
        file.sync_all().unwrap();
        bench.shell("chattr -i file");
        file.write_all_at(b" and after", 6).unwrap();
        drop(file);
        bench.unmount_clean();
        bench.mount("ro");
        assert_eq!(fs::read(&name).unwrap(), b"before and after", "{options}");
        bench.unmount();
    }
}

#[test]
fn files_report_the_size_of_large_blocks() {
    needs_fuse!();
    let mut bench = Bench::empty();
    let (path, bytes) = (bench.image(), 512 << 20);
    File::create(&path).and_then(|file| file.set_len(bytes)).unwrap();
    let new = mkfs::Options { block_size: BlockSize::B16K, ..mkfs::Options::new([7; 16]) };
    let size = DeviceSize { path: path.display().to_string(), bytes };
    let plan = Plan::new(&new, &[size]).unwrap();
    let device = Arc::new(
        block::FileDevice::open(&path, block::OpenOptions { write: true, ..Default::default() }).unwrap(),
    );
    NewVolume::begin(device, &plan, DeviceContent::Zeroes, Options::new(Time::default))
        .unwrap()
        .finish()
        .unwrap();

    bench.mount("");
    let file = File::create(bench.path("holes")).unwrap();
    // Programs that search for holes rely on it: no hole is smaller than a block.
    file.write_all_at(b"x", 10 * 16_384).unwrap();
    file.sync_all().unwrap();
    let start = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(1)).unwrap();
    assert_eq!((start, file.metadata().unwrap().blksize()), (10 * 16_384, 16_384));
    assert_eq!(fs::metadata(bench.path("")).unwrap().blksize(), 16_384);
    drop(file);
    bench.unmount();
}

#[test]
fn the_table_of_mounts_shows_the_mode_of_access_times() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: fusermount3 does not take such options");
    }
    let mut bench = Bench::new(64, &[]);
    let dir = bench.path("").canonicalize().unwrap();
    for (options, shown) in
        [("strictatime", "rw"), ("noatime", "rw,noatime"), ("atime,nodiratime", "rw,nodiratime,relatime")]
    {
        bench.mount(options);
        let mounts = block::mounts().unwrap();
        assert_eq!(mounts.iter().rev().find(|mount| mount.dir == dir).unwrap().options, shown);
        bench.unmount();
    }
}

#[test]
fn a_remount_keeps_options_that_it_does_not_name() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root remounts");
    }
    let mut bench = Bench::new(64, &[]);
    bench.mount("nosuid,nodev,noexec,nosymfollow,strictatime");
    let dir = bench.path("").canonicalize().unwrap();
    let shown = || {
        let mounts = block::mounts().unwrap();
        mounts.into_iter().rev().find(|mount| mount.dir == dir).unwrap().options
    };
    let remount = |options: &str| flashkit_fuse::remount(&dir, &["remount".to_string(), options.to_string()]);
    remount("ro").unwrap();
    assert_eq!(shown(), "ro,nosuid,nodev,noexec,nosymfollow");
    remount("rw,exec,noatime").unwrap();
    assert_eq!(shown(), "rw,nosuid,nodev,noatime,nosymfollow");
    remount("relatime,symfollow").unwrap();
    assert_eq!(shown(), "rw,nosuid,nodev,relatime");
    // A mount of another file system on top is refused.
    bench.shell("mount -t tmpfs -o nosuid tmpfs .");
    let refused = remount("ro").unwrap_err().to_string();
    let theirs = shown();
    assert!(Command::new("umount").arg(&dir).status().unwrap().success());
    assert!(refused.contains("no flashkit volume") && theirs.contains("nosuid"), "{refused}; {theirs}");
    bench.unmount_clean();
}

#[test]
fn a_remount_as_read_only_leaves_the_volume_as_an_unmount_does() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root remounts");
    }
    let mut bench = Bench::new(64, &[]);
    bench.mount("checkpoint_interval=3600");
    fs::write(bench.path("file"), b"kept").unwrap();
    // The file is open for writing until the kernel has sent RELEASE.
    (0..TRIES)
        .find(|_| {
            std::thread::sleep(Duration::from_millis(10));
            flashkit_fuse::remount(&bench.path(""), &["ro".to_string()]).is_ok()
        })
        .expect("it can be made read-only");
    // The image as it is, while the mount goes on.
    let image = Arc::new(block::MemoryDevice::from_bytes(&fs::read(bench.image()).unwrap()));
    let volume = Engine::open(image, Options::read_only()).unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::UMOUNT));
    let ino = volume.lookup(volume.superblock().root_ino, b"file").unwrap();
    assert_eq!(volume.stat(ino).unwrap().size, 4);
    drop(volume);
    flashkit_fuse::remount(&bench.path(""), &["rw".to_string()]).unwrap();
    fs::write(bench.path("other"), b"later").unwrap();
    bench.unmount_clean();
}

#[test]
fn a_mount_that_has_become_read_only_takes_no_requests_that_write() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: a mount is made read-only by root");
    }
    let mut bench = Bench::new(128, COMPRESSED);
    bench.mount("allow_other,discard,compress_extension=log");
    fs::write(bench.path("by.log"), b"again and again ".repeat(10_000)).unwrap();
    let remount = |options: &str| flashkit_fuse::remount(&bench.path(""), &[options.to_string()]);
    // The file is open for writing until the kernel has sent RELEASE.
    (0..TRIES)
        .find(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            remount("ro").is_ok()
        })
        .expect("it can be made read-only");
    let file = File::open(bench.path("by.log")).unwrap();
    let (release, reserve) =
        (ioctl::release_compressed_blocks(&file), ioctl::reserve_compressed_blocks(&file));
    assert_eq!((release, reserve), (Err(Errno::ROFS), Err(Errno::ROFS)));
    assert!(ioctl::compressed_blocks(&file).is_ok(), "requests continue");
    let said = bench.shell("fstrim . 2>&1 || true; chattr +i by.log 2>&1 || true");
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    remount("rw").unwrap();
    assert!(ioctl::release_compressed_blocks(&file).is_ok());
    bench.shell("fstrim .");
    drop(file);
    bench.unmount_clean();
}

#[test]
fn direct_write_leaves_only_read_data_in_the_cache_of_the_mount() {
    needs_fuse!();
    let mut bench = Bench::new(128, &["-O", "extra_attr"]);
    for (options, written) in [("", 256), ("direct_write", 0)] {
        bench.mount(options);
        let file = File::create(bench.path("file")).unwrap();
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        // Blocks of dirty pages are not counted.
        assert_eq!(file.metadata().unwrap().blocks() >= 2048, written == 0, "{options:?}");
        let reader = File::open(bench.path("file")).unwrap();
        assert_eq!(pages_in_cache(&reader), written, "{options:?}");
        let mut content = vec![0; 1 << 20];
        reader.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(pages_in_cache(&reader), 256, "{options:?}");
        // An open reader sees later writes.
        file.write_all_at(&[8; 100], 5000).unwrap();
        content[5000..5100].fill(8);
        let mut again = vec![0; 1 << 20];
        reader.read_exact_at(&mut again, 0).unwrap();
        assert!(again == content, "{options:?}");
        drop((file, reader));
        bench.shell("cp /bin/true . && ./true && cmp true /bin/true");
        bench.unmount_clean();
    }
}

/// Returns the number of a file's pages in the page cache.
#[allow(unsafe_code)] // mapping memory is unsafe
fn pages_in_cache(file: &File) -> usize {
    let bytes = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0; bytes.div_ceil(4096)];
    // SAFETY: the kernel chooses the address, the memory is never accessed, and `pages` has a byte for each
    // page.
    unsafe {
        let memory =
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0)
                .unwrap();
        assert_eq!(libc::mincore(memory, bytes, pages.as_mut_ptr()), 0);
        rustix::mm::munmap(memory, bytes).unwrap();
    }
    pages.iter().filter(|page| *page & 1 != 0).count()
}

#[test]
fn direct_write_has_the_same_side_effects_as_a_write() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root gives a program capabilities");
    }
    let mut bench = Bench::new(128, &["-O", "extra_attr"]);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    // cap_net_raw+ep, as setcap(8) writes it.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for options in ["", "direct_write"] {
        bench.mount(options);
        let path = bench.path("file");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        file.set_modified(long_ago).unwrap();
        xattr::set(&path, "security.capability", &capability).unwrap();
        file.write_all_at(b"x", 5000).unwrap();
        assert_ne!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago, "{options:?}");
        assert_eq!(xattr::get(&path, "security.capability").unwrap(), None, "{options:?}");
        drop(file);
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        bench.unmount_clean();
        bench.mount(options);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified, "{options:?}");
        bench.unmount_clean();
    }
}

#[test]
fn synchronous_writes_past_the_cache_are_kept() {
    needs_fuse!();
    let mut bench = Bench::new(128, &["-O", "extra_attr"]);
    for (name, options, flags) in [
        ("dsync", "direct_write", libc::O_DSYNC),
        ("sync", "direct_write", libc::O_SYNC),
        ("all", "direct_write,sync", 0),
    ] {
        bench.mount(options);
        let open = |flags: i32| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).custom_flags(flags);
            options.open(bench.path(name)).unwrap()
        };
        open(0).sync_all().unwrap();
        open(flags).write_all_at(b"kept", 0).unwrap();
        bench.crash();
        bench.mount("");
        assert_eq!(fs::read(bench.path(name)).unwrap(), b"kept", "{name}");
        bench.unmount_clean();
    }
}

#[test]
fn data_written_by_a_mapping_does_not_return_after_a_truncation() {
    needs_fuse!();
    let mut bench = Bench::new(128, &["-O", "extra_attr"]);
    for options in ["", support::direct_write()] {
        // Many threads, so that many writes are in flight when the truncation comes.
        bench.mount(&format!("threads=16,{options}"));
        let path = bench.path("file");
        for round in 0..40 {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = file.unwrap();
            file.set_len(16 << 20).unwrap();
            // The truncation runs before the unmapping, which waits for the pages to be written back.
            let truncated = while_written_back_from_mapping(&file, || File::create(&path).unwrap());
            drop(file);
            truncated.sync_all().unwrap();
            assert_eq!(truncated.metadata().unwrap().len(), 0, "{options:?}, round {round}");
        }
        bench.unmount_clean();
    }
}

/// Runs `act` while the dirty pages of a shared mapping of the file are being written back.
#[allow(unsafe_code)] // mapping memory is unsafe
fn while_written_back_from_mapping<R>(file: &File, act: impl FnOnce() -> R) -> R {
    let bytes = file.metadata().unwrap().len() as usize;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, the file is as long as the mapping when the memory is written,
    // and the memory is not accessed afterwards.
    unsafe {
        let memory =
            rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0).unwrap();
        memory.cast::<u8>().write_bytes(7, bytes);
        // Starts the write-back without waiting for it.
        assert_eq!(libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE), 0);
        let done = act();
        rustix::mm::munmap(memory, bytes).unwrap();
        done
    }
}

/// The capability to exceed quota limits (linux/capability.h).
const CAP_SYS_RESOURCE: u32 = 24;

#[test]
fn limits_of_quota_hold_for_users() {
    needs_fuse!();
    let mut bench = Bench::new(128, &["-O", "extra_attr,project_quota,quota"]);
    let device = block::FileDevice::open(
        bench.image(),
        block::OpenOptions { write: true, ..block::OpenOptions::default() },
    );
    let mut volume = Engine::open(Arc::new(device.unwrap()), Options::new(Time::default)).unwrap();
    let limits = QuotaLimits { space_hard_kib: 1000, inodes_hard: 4, ..QuotaLimits::default() };
    volume.begin(Caller::ADMIN).set_quota_limits(QuotaKind::User, 2000, limits).unwrap();
    let root = volume.superblock().root_ino;
    let dir = volume
        .begin(Caller::ADMIN)
        .create(root, b"dir", &NewNode { uid: 2000, ..NewNode::new(0o040_755) })
        .unwrap();
    volume.begin(Caller::ADMIN).set_attr(dir, &SetAttr { uid: Some(2000), ..SetAttr::default() }).unwrap();
    volume.unmount().unwrap();
    drop(volume);

    bench.mount("allow_other");
    let user = "setpriv --reuid 2000 --regid 2000 --clear-groups";
    bench.shell(&format!("{user} dd if=/dev/zero of=dir/fits bs=4k count=200 conv=fsync status=none"));
    let said = bench.shell(&format!(
        "{user} dd if=/dev/zero of=dir/large bs=4k count=300 conv=fsync status=none 2>&1 || true"
    ));
    assert!(said.contains("quota"), "{said}");
    bench.shell("rm dir/large");
    let said = bench.shell(&format!("{user} touch dir/a dir/b dir/c 2>&1 || true"));
    assert!(said.contains("quota") && !said.contains("dir/b"), "{said}");
    // The limits do not apply to other users.
    bench.shell("dd if=/dev/zero of=others bs=4k count=1000 status=none && touch x y z");
    if !support::has_capability(CAP_SYS_RESOURCE) {
        eprintln!("root lacks CAP_SYS_RESOURCE here: that an administrator may exceed limits is not tried");
        return bench.unmount_clean();
    }
    // Nor to the administrator.
    bench.shell("touch dir/mine && chown 2000 dir/mine");
    let more = "dd if=/dev/zero of=dir/fits bs=4k seek=200 conv=notrunc,fsync status=none";
    bench.shell(&format!("cat dir/fits > /dev/null; {more} count=100"));
    let said = bench.shell(&format!("{user} {more} count=200 2>&1 || true"));
    assert!(said.contains("quota"), "the file is as long as the administrator made it: {said}");
    bench.shell("fallocate -l 4M dir/fits");
    let (from, to) = (File::open(bench.path("others")).unwrap(), bench.path("dir/fits"));
    let to = OpenOptions::new().write(true).open(to).unwrap();
    let copied =
        rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut (4 << 20)), 1 << 20).unwrap();
    assert!(copied > 0);
    drop((from, to));
    let large = "0".repeat(3000);
    bench.shell(&format!("setfattr -n user.large -v {large} dir/fits; ln dir/fits dir/linked"));
    let said = bench.shell(&format!("{user} fallocate -l 6M dir/fits 2>&1 || true"));
    assert!(said.contains("quota"), "{said}");
    bench.unmount_clean();
}
