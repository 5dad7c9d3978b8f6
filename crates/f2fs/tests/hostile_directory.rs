//! Directories of hostile volumes: a block of the device counts once, however often a directory names it.

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    Error, OpenOptions,
    engine::{Engine, Options},
    format::node::NodeBlock,
    mkfs,
    units::{Ino, Time},
    walk::Walk,
};

const BLOCK: u64 = 4096;
const NAMES: u64 = 700;
const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 0 };

/// A volume with a directory in which every further address is that of block 1.
fn with_repeated_block(dir_blocks: u64) -> (Arc<MemoryDevice>, Ino) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let options = mkfs::Options::new([0x5A; 16]);
    let volume = OpenOptions::new().clock(|| NOW).make(device.clone(), &options).expect("a volume");
    volume.create_dir_all("/dir").expect("there is space");
    (0..NAMES).for_each(|n| volume.write(format!("/dir/{n}"), b"").expect("there is space"));
    let ino = volume.metadata("/dir").expect("it exists").ino();
    volume.close().expect("in memory");
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a sound volume");
    let addr = volume.nat_entry(ino.into()).expect("a sound NAT").addr;
    let mut node = NodeBlock::clone(&volume.inode(ino).expect("it is sound"));
    let (first, sound) = (node.addr(1), node.head().size.get() / BLOCK);
    assert!(first.is_real() && sound < dir_blocks);
    (sound..dir_blocks).for_each(|block| node.set_addr(block as usize, first));
    node.head_mut().size.set(dir_blocks * BLOCK);
    device.write(u64::from(addr.0) * BLOCK, node.bytes()).expect("in memory");
    (device, ino)
}

#[test]
fn a_block_that_a_directory_has_twice_gives_its_names_once() {
    let (device, ino) = with_repeated_block(860);
    let volume = Engine::open(device, Options::read_only()).expect("the damage lies in a directory");
    let (names, damage): (Vec<_>, Vec<_>) =
        volume.entries(ino, 0).expect("a directory").partition(Result::is_ok);
    assert_eq!(names.len() as u64, NAMES + 2, "and two dots");
    assert!(damage.len() > 800, "{}", damage.len());
    assert!(
        damage.iter().flat_map(|it| it.as_ref().err()).all(|error| matches!(error, Error::Corrupt { .. }))
    );
    let mut walk = Walk::default();
    let damage = walk.enter(&volume, ino).expect("a directory");
    assert_eq!(walk.count() as u64, NAMES);
    assert!(damage[0].to_string().contains("twice"), "{}", damage[0]);
}

#[test]
fn a_listing_by_path_gives_each_block_once() {
    let (device, _) = with_repeated_block(860);
    let volume = OpenOptions::new().open(device).expect("the damage lies in a directory");
    let entries = volume.read_dir("/dir").expect("a directory");
    assert_eq!(entries.filter(Result::is_ok).count() as u64, NAMES);
}

/// Readers skip "." and "..". A wrong bit gave a directory such a name, and it was missed by nobody.
#[test]
fn a_name_that_damage_turned_into_a_dot_is_told() {
    for (name, damaged) in [("n", "."), ("nn", "..")] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let options = mkfs::Options::new([0x5A; 16]);
        let volume = OpenOptions::new().clock(|| NOW).make(device.clone(), &options).expect("a volume");
        volume.create_dir_all(format!("/{name}")).expect("there is space");
        volume.write(format!("/{name}/file"), b"content").expect("there is space");
        volume.write("/other", b"content").expect("there is space");
        volume.close().expect("in memory");
        let slot = |name: &str| [name.as_bytes(), &[0; 8][name.len()..]].concat();
        let wanted = slot(name);
        for at in (0..device.geometry().size_bytes).step_by(BLOCK as usize) {
            let mut block = vec![0; BLOCK as usize];
            device.read(at, &mut block).expect("in memory");
            if !block.windows(8).any(|bytes| bytes == slot("other")) {
                continue;
            }
            // The inode of the file has its name as well.
            let Some(place) = block.windows(8).position(|bytes| bytes == wanted) else { continue };
            device.write(at + place as u64, damaged.as_bytes()).expect("in memory");
        }
        let volume = Engine::open(device, Options::read_only()).expect("the damage lies in a directory");
        let root = volume.superblock().root_ino;
        let damage = Walk::default().enter(&volume, root).expect("a directory");
        assert_eq!(damage.len(), 1, "{name}");
        assert!(damage[0].to_string().contains(&format!("\"{damaged}\"")), "{}", damage[0]);
    }
}
