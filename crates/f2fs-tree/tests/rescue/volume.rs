//! A volume that has every kind of block.

use std::sync::Arc;

use block::{Device, MemoryDevice, Rng};
use f2fs::{
    Result,
    engine::{ActiveLogs, Caller, Engine, NewNode, Options, SetAttr, XattrMode},
    format::{
        BlockSize,
        inode::{Algorithm, Compression, DeviceNumber, flag},
    },
    units::Ino,
};

use crate::{BLOCK, ROOT, support};

const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;

/// Returns bytes that are not all zeroes, and differ from block to block.
pub fn noise(rng: &mut Rng, bytes: usize) -> Vec<u8> {
    let mut all: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    all.truncate(bytes);
    all
}

/// Makes a device with a volume that has every kind of block.
pub fn make() -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    let features = [
        "extra_attr",
        "inode_checksum",
        "sb_checksum",
        "compression",
        "flexible_inline_xattr",
        "inode_crtime",
    ];
    support::format_on(device.clone(), &features, BlockSize::B4K).unmount().expect("it is written");
    let compression =
        Compression { algorithm: Algorithm::Lz4, log_cluster_blocks: 2, checksum: true, level: 0 };
    let options =
        Options { compression, active_logs: ActiveLogs::default(), ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options).expect("the volume opens");
    fill(&mut volume).expect("everything fits");
    // Both checkpoints have the same tree.
    volume.checkpoint().expect("it is written");
    volume
        .begin(Caller::ADMIN)
        .set_attr(ROOT, &SetAttr { uid: Some(0), ..SetAttr::default() })
        .expect("nothing changes");
    volume.unmount().expect("it is written");
    device
}

fn fill(volume: &mut Engine) -> Result<()> {
    let mut rng = Rng::new(1);
    make_files(volume, &mut rng)?;
    make_compressed_files(volume, &mut rng)?;
    let innermost = make_dirs(volume, &mut rng)?;
    for (dir, name) in [(ROOT, b"attributes"), (innermost, b"ATTRIBUTES")] {
        make_attributes(volume, dir, name, &mut rng)?;
    }
    volume.begin(Caller::ADMIN).symlink(ROOT, b"long", &[b'x'; 4000], &NewNode::new(0o120_777))?;
    volume.begin(Caller::ADMIN).create(ROOT, b"fifo", &NewNode::new(0o010_600))?;
    let device = Some(DeviceNumber { major: 8, minor: 300 });
    volume.begin(Caller::ADMIN).create(ROOT, b"block", &NewNode { device, ..NewNode::new(0o060_600) })?;
    Ok(())
}

fn make_dir(volume: &mut Engine, dir: Ino, name: &[u8]) -> Result<Ino> {
    volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(DIR))
}

fn make_file(volume: &mut Engine, dir: Ino, name: &[u8], bytes: &[u8]) -> Result<Ino> {
    let ino = volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(FILE))?;
    volume.begin(Caller::ADMIN).write(ino, 0, bytes)?;
    Ok(ino)
}

/// Makes files of all sizes, from inline data to the double indirect node.
fn make_files(volume: &mut Engine, rng: &mut Rng) -> Result<()> {
    make_file(volume, ROOT, b"inline", b"a few bytes")?;
    make_file(volume, ROOT, b"blocks", &noise(rng, 40_000))?;
    let direct = make_file(volume, ROOT, b"direct", &noise(rng, 1200 << 12))?;
    volume.begin(Caller::ADMIN).set_xattr(direct, b"user.inline", b"1", XattrMode::Set)?;
    // Beyond the direct nodes, in both indirect ones and below the double indirect one.
    let far = volume.begin(Caller::ADMIN).create(ROOT, b"far", &NewNode::new(FILE))?;
    for block in [5, 2000, 4000, 6000, 600_000, 1_200_000, 2_090_000, 2_091_500, 4_000_000] {
        volume.begin(Caller::ADMIN).write(far, block * BLOCK, &noise(rng, 9000))?;
    }
    Ok(())
}

fn make_compressed_files(volume: &mut Engine, rng: &mut Rng) -> Result<()> {
    let compressed = make_dir(volume, ROOT, b"compressed")?;
    volume
        .begin(Caller::ADMIN)
        .set_attr(compressed, &SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() })?;
    for n in 0..3u8 {
        let text: Vec<u8> = (0..60_000u32).map(|at| (at / 7 + u32::from(n)) as u8 & 0x1F).collect();
        make_file(volume, compressed, &[b'c', b'0' + n], &text)?;
    }
    make_file(volume, compressed, b"noise", &noise(rng, 30_000)).map(drop)
}

/// Makes directories of blocks, on several levels, with enough inodes for several blocks of the NAT. Returns the
/// innermost one.
fn make_dirs(volume: &mut Engine, rng: &mut Rng) -> Result<Ino> {
    let mut inside = ROOT;
    for level in 0..4u8 {
        inside = make_dir(volume, inside, &[b'd', b'0' + level])?;
        for n in 0..350 {
            let name = format!("name-{level}-{n:04}");
            make_file(volume, inside, name.as_bytes(), format!("{level} {n}").as_bytes())?;
        }
        for n in 0..3 {
            let sub = make_dir(volume, inside, format!("sub{n}").as_bytes())?;
            let own = make_file(volume, sub, b"own", &noise(rng, 5000))?;
            volume.begin(Caller::ADMIN).link(own, ROOT, format!("link-{level}-{n}").as_bytes())?;
            volume.begin(Caller::ADMIN).symlink(sub, b"symlink", b"../name", &NewNode::new(0o120_777))?;
        }
    }
    Ok(inside)
}

/// Makes a directory and a file in it, with attributes in the inodes and in nodes of their own.
fn make_attributes(volume: &mut Engine, dir: Ino, name: &[u8], rng: &mut Rng) -> Result<()> {
    let ino = make_dir(volume, dir, name)?;
    let below = make_file(volume, ino, b"below", b"it")?;
    for ino in [ino, below] {
        for (name, value) in [
            (&b"user.small"[..], b"inline".to_vec()),
            (b"user.large", noise(rng, 1500)),
            (b"user.larger", noise(rng, 1600)),
        ] {
            volume.begin(Caller::ADMIN).set_xattr(ino, name, &value, XattrMode::Set)?;
        }
    }
    Ok(())
}
