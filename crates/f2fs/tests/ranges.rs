//! Ranges that are zeroed, removed from files and inserted.

mod support;

use block::Rng;
use f2fs::{
    Error,
    engine::{Caller, Engine, FileSize, NewNode, SetAttr, SyncScope},
    format::inode::flag,
    units::Ino,
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const BLOCK: u64 = 4096;

fn read(volume: &Engine, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xEE; volume.stat(ino).unwrap().size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn noise(rng: &mut Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.next_u64() as u8).collect()
}

#[test]
fn only_whole_blocks_inside_the_file_are_shifted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &["-O", "extra_attr,compression"]);
    let mut volume = support::open(&path);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let data = noise(&mut Rng::new(1), 10 * BLOCK as usize + 100);
    volume.begin(Caller::ADMIN).write(ino, 0, &data).unwrap();
    let invalid = |result: f2fs::Result<()>| matches!(result, Err(Error::Invalid(_)));
    for (offset, length) in
        [(1, BLOCK), (0, 1), (0, 0), (BLOCK, 10 * BLOCK), (11 * BLOCK, BLOCK), (0, u64::MAX - 4095)]
    {
        assert!(
            invalid(volume.begin(Caller::ADMIN).collapse_range(ino, offset, length)),
            "{offset} {length}"
        );
    }
    for (offset, length) in [(1, BLOCK), (0, 1), (0, 0), (11 * BLOCK, BLOCK)] {
        assert!(invalid(volume.begin(Caller::ADMIN).insert_range(ino, offset, length)), "{offset} {length}");
    }
    let most = volume.inode(ino).unwrap().layout().reach_blocks() * BLOCK;
    assert!(matches!(volume.begin(Caller::ADMIN).insert_range(ino, 0, most), Err(Error::FileTooLarge)));
    assert!(matches!(
        volume.begin(Caller::ADMIN).zero_range(ino, most, 1, FileSize::Grows),
        Err(Error::FileTooLarge)
    ));
    assert!(read(&volume, ino) == data, "a refused operation changes nothing");

    let compressed = volume.begin(Caller::ADMIN).create(ROOT, b"compressed", &NewNode::new(FILE)).unwrap();
    let flags = |flags| SetAttr { flags: Some(flags), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(compressed, &flags(flag::COMPRESS)).unwrap();
    volume.begin(Caller::ADMIN).write(compressed, 0, &[1; 65536]).unwrap();
    assert!(matches!(
        volume.begin(Caller::ADMIN).collapse_range(compressed, 0, BLOCK),
        Err(Error::Unsupported(_))
    ));
    assert!(matches!(
        volume.begin(Caller::ADMIN).insert_range(compressed, 0, BLOCK),
        Err(Error::Unsupported(_))
    ));
    volume.begin(Caller::ADMIN).zero_range(compressed, 5000, 20_000, FileSize::Stays).unwrap();
    assert!(read(&volume, compressed)[5000..25_000].iter().all(|byte| *byte == 0));
    volume.begin(Caller::ADMIN).set_attr(ino, &flags(flag::APPEND)).unwrap();
    for refused in [
        volume.begin(Caller::ADMIN).collapse_range(ino, 0, BLOCK),
        volume.begin(Caller::ADMIN).insert_range(ino, 0, BLOCK),
        volume.begin(Caller::ADMIN).zero_range(ino, 0, BLOCK, FileSize::Stays),
    ] {
        assert!(matches!(refused, Err(Error::NotPermitted)), "{refused:?}");
    }
    assert!(matches!(volume.begin(Caller::ADMIN).collapse_range(ROOT, 0, BLOCK), Err(Error::IsDirectory)));
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn small_files_and_reserved_blocks_are_shifted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = support::open(&path);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"inline", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, b"small").unwrap();
    volume.begin(Caller::ADMIN).insert_range(ino, 0, 2 * BLOCK).unwrap();
    assert_eq!(read(&volume, ino), [vec![0; 2 * BLOCK as usize], b"small".to_vec()].concat());
    assert_eq!(volume.seek_data(ino, 0).unwrap(), Some(2 * BLOCK));
    volume.begin(Caller::ADMIN).collapse_range(ino, BLOCK, BLOCK).unwrap();
    assert_eq!(volume.stat(ino).unwrap().size, BLOCK + 5);

    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"reserved", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).allocate_range(ino, 0, 2000 * BLOCK, FileSize::Grows).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 1500 * BLOCK + 7, b"here").unwrap();
    volume.begin(Caller::ADMIN).allocate_range(ino, 3000 * BLOCK, BLOCK, FileSize::Stays).unwrap();
    let blocks = volume.counters().valid_blocks;
    volume.begin(Caller::ADMIN).insert_range(ino, 700 * BLOCK, 300 * BLOCK).unwrap();
    volume.begin(Caller::ADMIN).collapse_range(ino, 700 * BLOCK, 300 * BLOCK).unwrap();
    // Blocks reserved past the end are gone, with the two nodes for them.
    assert_eq!(volume.counters().valid_blocks, blocks - 3);
    let mut wanted = vec![0; 2000 * BLOCK as usize];
    wanted[1500 * BLOCK as usize + 7..][..4].copy_from_slice(b"here");
    assert!(read(&volume, ino) == wanted);
    // The end of the file is in the range.
    volume.begin(Caller::ADMIN).zero_range(ino, 1500 * BLOCK + 8, 600 * BLOCK, FileSize::Grows).unwrap();
    assert_eq!(volume.stat(ino).unwrap().size, 2100 * BLOCK + 8);
    let mut byte = [0; 2];
    volume.read(ino, 1500 * BLOCK + 7, &mut byte).unwrap();
    assert_eq!(&byte, b"h\0");
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn blocks_reserved_past_the_end_stay_while_the_file_grows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = support::open(&path);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"reserved", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 100]).unwrap();
    volume.begin(Caller::ADMIN).allocate_range(ino, 0, 2000 * BLOCK, FileSize::Stays).unwrap();
    let reserved = volume.counters().valid_blocks;
    volume.begin(Caller::ADMIN).truncate(ino, 5 * BLOCK + 1).unwrap();
    volume.begin(Caller::ADMIN).truncate(ino, 1500 * BLOCK).unwrap();
    assert_eq!(volume.counters().valid_blocks, reserved);
    assert!(read(&volume, ino)[100..].iter().all(|byte| *byte == 0));
    // Truncation to the present size frees them, with the last node.
    volume.begin(Caller::ADMIN).truncate(ino, 1500 * BLOCK).unwrap();
    assert_eq!(volume.counters().valid_blocks, reserved - 501);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn a_file_with_large_holes_is_shifted_as_fast_as_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = support::open(&path);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"far", &NewNode::new(FILE)).unwrap();
    let spots = [0, 1 << 24, (1 << 34) + 5, 3 << 40];
    for spot in spots {
        volume.begin(Caller::ADMIN).write(ino, spot, b"spot").unwrap();
    }
    volume.begin(Caller::ADMIN).insert_range(ino, BLOCK, BLOCK).unwrap();
    volume.begin(Caller::ADMIN).insert_range(ino, BLOCK, 1 << 36).unwrap();
    volume.begin(Caller::ADMIN).collapse_range(ino, 2 * BLOCK, BLOCK).unwrap();
    let at = |spot: u64| if spot < BLOCK { spot } else { spot + (1 << 36) };
    for spot in spots {
        let mut bytes = [0; 4];
        volume.read(ino, at(spot), &mut bytes).unwrap();
        assert_eq!(&bytes, b"spot", "{spot}");
        assert_eq!(volume.seek_data(ino, at(spot)).unwrap(), Some(at(spot)));
    }
    assert_eq!(volume.stat(ino).unwrap().size, at(3 << 40) + 4);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

/// Moved blocks are copied, but need no additional space, even if they are most of the volume.
#[test]
fn a_file_that_fills_the_volume_can_be_shifted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &[]);
    let mut volume = support::open(&path);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let mut rng = Rng::new(7);
    let mut data = Vec::new();
    while volume.free_user_blocks() > 200 {
        let more = noise(&mut rng, 300_000);
        volume.begin(Caller::ADMIN).write(ino, data.len() as u64, &more).unwrap();
        data.extend(more);
    }
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).collapse_range(ino, 8192, 5 * BLOCK).unwrap();
    data.drain(8192..8192 + 5 * BLOCK as usize);
    volume.begin(Caller::ADMIN).insert_range(ino, 40_960, 3 * BLOCK).unwrap();
    data.splice(40_960..40_960, vec![0; 3 * BLOCK as usize]);
    assert!(read(&volume, ino) == data);
    // After a cut, the last checkpoint and the fsynced data are back.
    volume.fsync(ino, SyncScope::Everything).unwrap();
    drop(volume);
    let mut volume = support::open(&path);
    assert!(read(&volume, ino) == data);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}
