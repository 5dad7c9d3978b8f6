//! Helpers of the integration tests: images made and judged by f2fs-tools. A missing tool fails the test.

#![allow(dead_code)] // each test file uses its own part

use std::{
    io::ErrorKind,
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use block::{Device, FileDevice, OpenOptions, Rng};
use f2fs::{
    engine::{Caller, Engine, InPlace, NewNode, Options},
    format::BlockSize,
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::{Ino, Time},
};

/// A fixed time, so that runs repeat.
pub const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 123_456_789 };

/// Makes an image of `bytes` bytes with mkfs.f2fs.
pub fn mkfs(path: &Path, bytes: u64, arguments: &[&str]) {
    std::fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("the image can be made");
    let run = tool("mkfs.f2fs").arg("-q").args(arguments).arg(path).output().expect("mkfs.f2fs is installed");
    assert!(run.status.success(), "mkfs.f2fs {arguments:?}: {}", String::from_utf8_lossy(&run.stdout));
}

/// Fails if fsck.f2fs has any finding in an image.
pub fn assert_clean(path: &Path) {
    if let Err(error) = model::fsck::fsck_image(path) {
        panic!("{error:#}");
    }
}

/// Opens the device of an image. A tool started by another test may share its lock for a moment, between fork
/// and exec. On a busy machine that moment is long, so this tries for a minute.
pub fn device(path: &Path) -> Arc<dyn Device> {
    let open = || FileDevice::open(path, OpenOptions { write: true, ..OpenOptions::default() });
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match open() {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < until => {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return Arc::new(opened.expect("the image opens")),
        }
    }
}

/// Opens an image for writing, with the usual options and a fixed clock.
pub fn open(path: &Path) -> Engine {
    Engine::open(device(path), Options::new(|| NOW)).expect("the volume opens")
}

/// Opens an image for reading.
pub fn open_read_only(path: &Path) -> Engine {
    let device = FileDevice::open(path, OpenOptions::default()).expect("the image opens");
    Engine::open(Arc::new(device), Options::read_only()).expect("the volume opens")
}

/// Makes a volume with a root directory in a new image, with our own code.
pub fn format(path: &Path, bytes: u64, features: &[&str]) -> Engine {
    std::fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("the image can be made");
    format_on(device(path), features, BlockSize::B4K)
}

/// Makes a volume with a root directory on a device of zeroes, with our own code.
pub fn format_on(device: Arc<dyn Device>, features: &[&str], block_size: BlockSize) -> Engine {
    let options = mkfs::Options {
        features: mkfs::parse_features(&features.join(",")).expect("known features"),
        block_size,
        ..mkfs::Options::new([0x5A; 16])
    };
    let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
    let plan = Plan::new(&options, &[size]).expect("the size fits");
    let made = NewVolume::begin(device, &plan, DeviceContent::Zeroes, Options::new(|| NOW))
        .expect("there is space for a root");
    made.finish().expect("the volume is written")
}

/// Makes a volume on a device of zeroes with our own code. Its zones have some sections, and nothing is overwritten in place.
pub fn zoned(device: Arc<dyn Device>, sections_per_zone: u32) -> Engine {
    let shape = mkfs::Options { sections_per_zone, ..mkfs::Options::new([7; 16]) };
    let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
    let plan = Plan::new(&shape, &[size]).expect("the size fits");
    let options = Options { in_place: InPlace::Never, ..Options::new(|| NOW) };
    let made = NewVolume::begin(device, &plan, DeviceContent::Zeroes, options);
    made.expect("there is space for a root").finish().expect("the volume is written")
}

/// Makes a volume such as [`zoned`] after long use: new files have replaced random others until all blocks were written
/// several times. It has a file of `blocks` blocks.
pub fn long_used(device: Arc<dyn Device>, sections_per_zone: u32, blocks: usize) -> (Engine, Ino) {
    let mut volume = zoned(device, sections_per_zone);
    let root = volume.superblock().root_ino;
    let create = |volume: &mut Engine, name: &[u8], content: &[u8]| {
        let ino = volume.begin(Caller::ADMIN).create(root, name, &NewNode::new(0o100_644)).expect("a file");
        volume.begin(Caller::ADMIN).write(ino, 0, content).expect("space");
        ino
    };
    let file = create(&mut volume, b"file", &vec![1; blocks * 4096]);
    let (mut rng, mut live, mut written) = (Rng::new(3), Vec::new(), 0);
    let goal = volume.last_checkpoint().user_blocks * 6 / 10;
    while written < 4 * goal {
        let name = format!("f{written}");
        let blocks = 1 + rng.below(300);
        create(&mut volume, name.as_bytes(), &vec![2; blocks as usize * 4096]);
        written += blocks;
        live.push(name);
        while volume.counters().valid_blocks > goal {
            let name = live.swap_remove(rng.below(live.len() as u64) as usize);
            volume.begin(Caller::ADMIN).unlink(root, name.as_bytes()).expect("it is there");
        }
    }
    volume.checkpoint().expect("there is space");
    (volume, file)
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    // The tools lie in directories that are not in ordinary users' PATH.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}
