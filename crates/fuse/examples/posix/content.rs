//! Reading, writing, sizes, holes, ranges and limits.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{Advice, FallocateFlags, Mode, OFlags, SeekFrom},
    io::Result,
    process::{Resource, Rlimit},
};

use crate::ground::{ALICE, Ground, file};

const WATCHED: [&str; 3] = ["f", "g", "d"];

pub fn run(ground: &mut Ground) {
    sizes(ground);
    holes(ground);
    ranges(ground);
    copies(ground);
    limits(ground);
    wrong_files(ground);
    mapped(ground);
    durable(ground);
}

fn open(path: &str, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from(0o644)).expect("it exists")
}

/// Returns the bytes of a file; for a long one its length and a checksum.
fn content(path: &str) -> String {
    let bytes = std::fs::read(path).expect("it can be read");
    match bytes.len() {
        0..=40 => format!("{bytes:?}"),
        length => {
            let sum = bytes.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
            format!("{length} bytes {sum:x}")
        }
    }
}

fn sizes(ground: &mut Ground) {
    ground.section("sizes", &WATCHED);
    file("f", b"0123456789", 0o644);
    let fd = open("f", OFlags::RDWR);
    ground.step("write past the end", || rustix::io::pwrite(&fd, b"x", 5000));
    ground.say(content("f"));
    for size in [3, 3, 8191, 0, 1 << 20, 4097, 1] {
        ground.step(format!("truncate to {size}"), || rustix::fs::ftruncate(&fd, size));
        ground.say(content("f"));
    }
    ground.step("write after truncation", || rustix::io::pwrite(&fd, b"y", 4000));
    ground.step("truncate into it", || rustix::fs::ftruncate(&fd, 3000));
    ground.step("and out", || rustix::fs::ftruncate(&fd, 4001));
    ground.say(content("f"));
    ground.step("read past the end", || rustix::io::pread(&fd, &mut [0; 8][..], 4001));
    ground.step("read over the end", || rustix::io::pread(&fd, &mut [0; 8][..], 3999));
    ground.step("negative size", || rustix::fs::ftruncate(&fd, u64::MAX));
    ground.step("seek before the start", || rustix::fs::seek(&fd, SeekFrom::Current(-1)));
    ground.step("seek past the end", || rustix::fs::seek(&fd, SeekFrom::End(100)));
    ground.step("write there", || rustix::io::write(&fd, b"z"));
    let append = open("f", OFlags::RDWR | OFlags::APPEND);
    ground.step("pwrite to the start, appending", || rustix::io::pwrite(&append, b"app", 0));
    ground.step("write, appending", || rustix::io::write(&append, b"app"));
    ground.step("where one is then", || rustix::fs::tell(&append));
    ground.say(content("f"));
    let other = open("f", OFlags::RDWR | OFlags::APPEND);
    ground.step("append by another", || rustix::io::write(&other, b"other"));
    ground.step("append again", || rustix::io::write(&append, b"again"));
    ground.say(content("f"));
    ground.step("write without the right", || rustix::io::write(open("f", OFlags::RDONLY), b"x"));
    ground.step("read without the right", || rustix::io::read(open("f", OFlags::WRONLY), &mut [0; 4][..]));
    ground.step("truncate without the right", || rustix::fs::ftruncate(open("f", OFlags::RDONLY), 4));
    ground.step("by path only", || rustix::io::read(open("f", OFlags::PATH), &mut [0; 4][..]));
    ground.sweep();
}

fn holes(ground: &mut Ground) {
    ground.section("holes", &WATCHED);
    let block = 4096_u64;
    let fd = open("f", OFlags::RDWR | OFlags::CREATE);
    rustix::io::pwrite(&fd, &[1; 4096], 0).expect("there is room");
    rustix::io::pwrite(&fd, &[2; 4096], block * 4).expect("there is room");
    rustix::fs::ftruncate(&fd, block * 10).expect("it is open");
    for synced in [false, true] {
        if synced {
            rustix::fs::fsync(&fd).expect("it is open");
        }
        for at in [
            0,
            1,
            block,
            block + 1,
            block * 4,
            block * 4 + 7,
            block * 5,
            block * 10 - 1,
            block * 10,
            block * 11,
        ] {
            ground.step(format!("data from {at}"), || rustix::fs::seek(&fd, SeekFrom::Data(at)));
            ground.step(format!("hole from {at}"), || rustix::fs::seek(&fd, SeekFrom::Hole(at)));
        }
    }
    let facts = || rustix::fs::fstat(&fd).map(|stat| (stat.st_size, stat.st_blocks));
    ground.step("blocks", facts);
    let empty = open("g", OFlags::RDWR | OFlags::CREATE);
    ground.step("data in nothing", || rustix::fs::seek(&empty, SeekFrom::Data(0)));
    ground.step("hole in nothing", || rustix::fs::seek(&empty, SeekFrom::Hole(0)));
    ground.sweep();
}

fn ranges(ground: &mut Ground) {
    ground.section("ranges", &WATCHED);
    let modes = [
        ("plain", FallocateFlags::empty()),
        ("keep size", FallocateFlags::KEEP_SIZE),
        ("punch", FallocateFlags::PUNCH_HOLE),
        ("punch keep size", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
        ("zero", FallocateFlags::ZERO_RANGE),
        ("zero keep size", FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
        ("unknown", FallocateFlags::from_bits_retain(0x4000)),
    ];
    for (name, mode) in modes {
        for (at, length) in [
            (0, 0),
            (0, 1),
            (100, 5000),
            (4096, 4096),
            (19_000, 5000),
            (40_000, 100),
            (i64::MAX as u64, 1),
            (0, u64::MAX),
        ] {
            let noise: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8 + 1).collect();
            file("f", &noise, 0o644);
            let fd = open("f", OFlags::RDWR);
            ground.step(format!("{name} {length} at {at}"), || rustix::fs::fallocate(&fd, mode, at, length));
            ground.say(content("f"));
        }
    }
    ground.step("on a file for reading", || {
        rustix::fs::fallocate(open("f", OFlags::RDONLY), FallocateFlags::empty(), 0, 10)
    });
    ground.step("advice", || rustix::fs::fadvise(open("f", OFlags::RDONLY), 0, None, Advice::DontNeed));
    ground.sweep();
}

fn copies(ground: &mut Ground) {
    ground.section("copies", &WATCHED);
    let noise: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8 + 1).collect();
    file("f", &noise, 0o644);
    file("g", b"", 0o644);
    let (from, to) = (open("f", OFlags::RDWR), open("g", OFlags::RDWR));
    for (at, into, length) in [(0, 0, 100), (19_990, 50, 100), (20_000, 0, 10), (5, 30_000, 4096), (0, 0, 0)]
    {
        ground.step(format!("copy {length} from {at} to {into}"), || {
            rustix::fs::copy_file_range(&from, Some(&mut { at }), &to, Some(&mut { into }), length)
        });
        ground.say(content("g"));
    }
    ground.step("copy over itself", || {
        rustix::fs::copy_file_range(&from, Some(&mut 0), &from, Some(&mut 10), 100)
    });
    ground.step("copy within", || {
        rustix::fs::copy_file_range(&from, Some(&mut 0), &from, Some(&mut 10_000), 100)
    });
    ground.say(content("f"));
    ground.step("copy to one that appends", || {
        rustix::fs::copy_file_range(&from, None, open("g", OFlags::WRONLY | OFlags::APPEND), None, 10)
    });
    ground.step("copy to one for reading", || {
        rustix::fs::copy_file_range(&from, None, open("g", OFlags::RDONLY), None, 10)
    });
    ground.step("copy from a directory", || {
        rustix::fs::copy_file_range(open(".", OFlags::RDONLY), None, &to, None, 10)
    });
    rustix::fs::seek(&from, SeekFrom::Start(0)).expect("it is open");
    rustix::fs::seek(&to, SeekFrom::Start(0)).expect("it is open");
    ground.step("sendfile", || rustix::fs::sendfile(&to, &from, Some(&mut 7), 1000));
    ground.say(content("g"));
    ground.sweep();
}

fn limits(ground: &mut Ground) {
    ground.section("limits", &WATCHED);
    file("f", b"0123456789", 0o644);
    let fd = open("f", OFlags::RDWR);
    let before = rustix::process::getrlimit(Resource::Fsize);
    let limit = |bytes| {
        rustix::process::setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: before.maximum })
            .expect("it is a soft limit");
    };
    limit(Some(15));
    ground.step("write up to the limit", || rustix::io::pwrite(&fd, b"0123456789", 10));
    ground.step("write at the limit", || rustix::io::pwrite(&fd, b"x", 15));
    ground.step("truncate past the limit", || rustix::fs::ftruncate(&fd, 16));
    ground.step("allocate past the limit", || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 16));
    ground.step("allocate past the limit by another", || {
        crate::ground::acting_as(ALICE, || rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 16))
    });
    limit(before.current);
    ground.step("write after that", || rustix::io::pwrite(&fd, b"x", 15));
    ground.sweep();
}

fn wrong_files(ground: &mut Ground) {
    ground.section("wrong files", &WATCHED);
    rustix::fs::mkdir("d", Mode::from(0o755)).expect("it is new");
    let fd = open("d", OFlags::RDONLY);
    ground.step("read a directory", || rustix::io::read(&fd, &mut [0; 4][..]));
    ground.step("write a directory", || rustix::io::write(&fd, b"x"));
    ground.step("truncate a directory", || rustix::fs::ftruncate(&fd, 4));
    ground.step("allocate a directory", || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 4));
    ground.step("sync a directory", || rustix::fs::fsync(&fd));
    ground.step("sync its data", || rustix::fs::fdatasync(&fd));
    ground.step("lock a directory", || rustix::fs::flock(&fd, rustix::fs::FlockOperation::LockExclusive));
    rustix::fs::mknodat(rustix::fs::CWD, "f", rustix::fs::FileType::Fifo, Mode::from(0o644), 0)
        .expect("it is new");
    let fd = open("f", OFlags::RDWR | OFlags::NONBLOCK);
    ground.step("write a fifo", || rustix::io::write(&fd, b"through"));
    ground.step("read a fifo", || rustix::io::read(&fd, &mut [0; 10][..]));
    ground.step("seek in a fifo", || rustix::fs::seek(&fd, SeekFrom::Start(0)));
    ground.step("truncate a fifo", || rustix::fs::ftruncate(&fd, 0));
    ground.step("sync a fifo", || rustix::fs::fsync(&fd));
    ground.step("allocate a fifo", || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 4));
    ground.step("listen at a socket", || {
        let socket = std::os::unix::net::UnixListener::bind("g").map_err(|_| rustix::io::Errno::IO)?;
        let client = std::os::unix::net::UnixStream::connect("g").map(drop);
        drop(socket);
        client.map_err(|_| rustix::io::Errno::IO)
    });
    ground.step("connect to a socket without a listener", || {
        std::os::unix::net::UnixStream::connect("g")
            .map(drop)
            .map_err(|error| rustix::io::Errno::from_io_error(&error).expect("it has a number"))
    });
    ground.sweep();
}

#[allow(unsafe_code)] // mapping memory is unsafe
fn mapped(ground: &mut Ground) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
    ground.section("mapped", &WATCHED);
    file("f", &[b'.'; 10_000], 0o644);
    let fd = open("f", OFlags::RDWR);
    let map = |protection, flags| {
        // SAFETY: the kernel chooses the address, and no other process changes the file.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 10_000, protection, flags, &fd, 0) }
    };
    let memory =
        map(ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).expect("it can be mapped").cast::<u8>();
    // SAFETY: 10,000 bytes are mapped, and there is no other reference to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory, 10_000) };
    ground.step("store", || {
        bytes[5] = b'a';
        bytes[9_000] = b'b';
        Ok(())
    });
    ground.step("read after store", || rustix::io::pread(&fd, &mut [0; 1][..], 9_000));
    ground.say(content("f"));
    ground.step("write beside it", || rustix::io::pwrite(&fd, b"c", 6));
    ground.say(format!("{:?}", &bytes[..8]));
    // SAFETY: the whole range is mapped.
    ground.step("msync", || unsafe { rustix::mm::msync(memory.cast(), 10_000, MsyncFlags::SYNC) });
    ground.step("store again", || {
        bytes[7] = b'd';
        Ok(())
    });
    // SAFETY: no reference to it is left.
    ground.step("unmap", || unsafe { rustix::mm::munmap(memory.cast(), 10_000) });
    ground.step("fsync", || rustix::fs::fsync(&fd));
    ground.say(content("f"));
    let private =
        map(ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).expect("it can be mapped").cast::<u8>();
    ground.step("store privately", || {
        // SAFETY: it is mapped.
        unsafe { *private = b'z' };
        Ok(())
    });
    // SAFETY: no reference to it is left.
    ground.step("unmap", || unsafe { rustix::mm::munmap(private.cast(), 10_000) });
    ground.say(content("f"));
    ground.sweep();
}

fn durable(ground: &mut Ground) {
    ground.section("durable", &WATCHED);
    file("f", b"12345", 0o644);
    let fd = open("f", OFlags::RDWR);
    let calls: [(&str, &dyn Fn() -> Result<()>); 5] = [
        ("fsync", &|| rustix::fs::fsync(&fd)),
        ("fdatasync", &|| rustix::fs::fdatasync(&fd)),
        ("syncfs", &|| rustix::fs::syncfs(&fd)),
        ("fsync of one for reading", &|| rustix::fs::fsync(open("f", OFlags::RDONLY))),
        ("fsync by path only", &|| rustix::fs::fsync(open("f", OFlags::PATH))),
    ];
    for (name, call) in calls {
        ground.step(name, call);
    }
    for (name, flags) in [
        ("sync", OFlags::SYNC),
        ("dsync", OFlags::from_bits_retain(libc::O_DSYNC as u32)),
        ("direct", OFlags::DIRECT),
    ] {
        let fd = rustix::fs::open("f", OFlags::RDWR | flags, Mode::empty());
        ground.step(format!("open {name}"), || fd.as_ref().map(drop).map_err(|errno| *errno));
        let Ok(fd) = fd else { continue };
        let page = vec![7_u8; 3 * 4096];
        let aligned = page.as_ptr().align_offset(4096);
        ground
            .step(format!("write {name}"), || rustix::io::pwrite(&fd, &page[aligned..aligned + 4096], 4096));
        let mut into = vec![0_u8; 3 * 4096];
        let aligned = into.as_ptr().align_offset(4096);
        ground.step(format!("read {name}"), || rustix::io::pread(&fd, &mut into[aligned..aligned + 8192], 0));
    }
    ground.say(content("f"));
    ground.sweep();
}
