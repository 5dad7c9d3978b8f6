//! Space that compression saves.

use super::*;

#[test]
fn released_space_can_be_used_and_reserved_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let plain = volume.begin(Caller::ADMIN).create(ROOT, b"plain", &NewNode::new(FILE)).unwrap();
    let ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    let mut data = content(&mut Rng::new(5), 1_000_000, NOISE);
    data[100_000..900_000].fill(7);
    volume.begin(Caller::ADMIN).write(ino, 0, &data).unwrap();
    let before = volume.counters().valid_blocks;
    let saved = volume.stat(ino).unwrap().saved_blocks;
    assert!(saved > 100, "{saved}");

    assert!(matches!(volume.begin(Caller::ADMIN).release_saved(plain), Err(Error::Invalid(_))));
    assert!(matches!(volume.begin(Caller::ADMIN).reserve_saved(ino), Err(Error::Invalid(_))));
    assert_eq!(volume.begin(Caller::ADMIN).release_saved(ino).unwrap(), saved);
    assert!(matches!(volume.begin(Caller::ADMIN).release_saved(ino), Err(Error::Invalid(_))));
    assert_eq!(volume.counters().valid_blocks, before - saved);
    assert!(volume.stat(ino).unwrap().released);
    assert_eq!(volume.released_blocks(ino).unwrap(), saved);
    check_map(&volume, ino);
    for refused in [
        volume.begin(Caller::ADMIN).write(ino, 0, b"x"),
        volume.begin(Caller::ADMIN).punch_hole(ino, 0, BLOCK),
        volume.begin(Caller::ADMIN).allocate_range(ino, 0, 2_000_000, FileSize::Grows),
    ] {
        assert!(matches!(refused, Err(Error::NotPermitted)), "{refused:?}");
    }
    assert!(matches!(volume.begin(Caller::ADMIN).truncate(ino, 500_000), Err(Error::Invalid(_))));
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);

    let mut volume = open(&path, lz4(), 1 << 20);
    assert!(read(&volume, ino) == data);
    // The file can be truncated between clusters.
    volume.begin(Caller::ADMIN).truncate(ino, 50 * 4 * BLOCK).unwrap();
    data.truncate(50 * 4 * BLOCK as usize);
    check_map(&volume, ino);
    // On a full volume, no block is reserved.
    fill(&mut volume, b"filler");
    let full = volume.counters();
    assert!(matches!(volume.begin(Caller::ADMIN).reserve_saved(ino), Err(Error::NoSpace { .. })));
    assert_eq!(volume.counters(), full);
    assert!(volume.stat(ino).unwrap().released && read(&volume, ino) == data);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"filler").unwrap();
    let reserved = volume.begin(Caller::ADMIN).reserve_saved(ino).unwrap();
    assert_eq!(volume.stat(ino).unwrap().saved_blocks, reserved);
    volume.begin(Caller::ADMIN).write(ino, 333, b"written").unwrap();
    put(&mut data, 333, b"written");
    check_map(&volume, ino);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);

    let mut volume = open(&path, lz4(), 1 << 20);
    assert!(read(&volume, ino) == data);
    volume.begin(Caller::ADMIN).release_saved(ino).unwrap();
    volume.begin(Caller::ADMIN).truncate(ino, 0).unwrap();
    assert!(!volume.stat(ino).unwrap().released);
    volume.begin(Caller::ADMIN).write(ino, 0, &data).unwrap();
    volume.begin(Caller::ADMIN).release_saved(ino).unwrap();
    volume.begin(Caller::ADMIN).unlink(dir, b"file").unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn a_file_can_be_read_while_its_saved_blocks_are_released_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 256 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    let data = content(&mut Rng::new(5), 70 << 20, SPARSE);
    volume.begin(Caller::ADMIN).write(ino, 0, &data).unwrap();
    let saved = volume.stat(ino).unwrap().saved_blocks;
    for to in [SavedBlocks::Released, SavedBlocks::Reserved] {
        let mut change = volume.begin(Caller::ADMIN).begin_saved_change(ino, to).unwrap();
        let mut parts = 1;
        let blocks = loop {
            if let Some(blocks) = volume.begin(Caller::ADMIN).saved_part(&mut change).unwrap() {
                break blocks;
            }
            assert!(read(&volume, ino) == data, "{to:?}, part {parts}");
            parts += 1;
        };
        assert!(parts > 4, "{parts} parts");
        assert_eq!((blocks, volume.stat(ino).unwrap().released), (saved, to == SavedBlocks::Released));
        volume.unmount().unwrap();
        drop(volume);
        support::assert_clean(&path);
        volume = open(&path, lz4(), 1 << 20);
    }
    // A truncation ends its parts between two clusters.
    assert!(!volume.begin(Caller::ADMIN).shorten(ino, 0, 4096).unwrap(), "not a whole number of clusters");
    let mut parts = 0;
    while volume.begin(Caller::ADMIN).shorten(ino, 100_000, 4 << 20).unwrap() {
        parts += 1;
    }
    assert!(parts > 10, "{parts} parts");
    volume.begin(Caller::ADMIN).truncate(ino, 100_000).unwrap();
    assert!(read(&volume, ino) == data[..100_000]);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn cleaning_moves_compressed_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 256 << 10);
    let dir = compressed_dir(&mut volume, b"dir");
    let mut rng = Rng::new(9);
    let mut files = Vec::new();
    for n in 0..60 {
        let ino = volume
            .begin(Caller::ADMIN)
            .create(dir, format!("file{n}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
        let data = content(&mut rng, 150_000, SPARSE);
        volume.begin(Caller::ADMIN).write(ino, 0, &data).unwrap();
        files.push((ino, data));
    }
    for n in (0..60).step_by(3) {
        volume.begin(Caller::ADMIN).unlink(dir, format!("file{n}").as_bytes()).unwrap();
    }
    // Data that is still to be compressed again is found, too.
    for (ino, data) in files.iter_mut().skip(1).step_by(3) {
        volume.begin(Caller::ADMIN).write(*ino, 77_777, b"changed").unwrap();
        put(data, 77_777, b"changed");
    }
    let cleaned = volume.clean(8, Policy::Greedy).unwrap();
    assert!(cleaned.moved_blocks > 100, "{cleaned:?}");
    for (n, (ino, data)) in files.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        assert!(read(&volume, *ino) == *data, "file{n}");
        assert_eq!(check_map(&volume, *ino), 9);
    }
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

/// Returns content that compresses to nine tenths.
fn hardly_compressible(rng: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes = content(rng, length, NOISE);
    bytes[..length / 10].fill(0);
    bytes
}

#[test]
fn a_byte_in_each_large_cluster_of_a_full_volume_can_be_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 192 << 20, &[FEATURES[0], FEATURES[1], "-o", "10"]);
    let settings = Compression { log_cluster_blocks: 8, ..lz4() };
    let mut volume = open(&path, settings, 64 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let mut rng = Rng::new(21);
    let ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    let mut copy = Vec::new();
    let data = hardly_compressible(&mut rng, 1 << 20);
    loop {
        match volume.begin(Caller::ADMIN).write(ino, copy.len() as u64, &data) {
            Ok(()) => copy.extend_from_slice(&data),
            Err(error) => break assert!(matches!(error, Error::NoSpace { .. }), "{error}"),
        }
    }
    let clusters = copy.len() >> 20;
    assert!(clusters > 30 && volume.stat(ino).unwrap().saved_blocks > 20 * clusters as u64);
    let filler = volume.begin(Caller::ADMIN).create(ROOT, b"filler", &NewNode::new(FILE)).unwrap();
    let mut at = 0;
    while volume.begin(Caller::ADMIN).write(filler, at, &[1; 4096]).is_ok() {
        at += 4096;
    }
    volume.checkpoint().unwrap();
    for round in 0..4 {
        for n in 0..clusters {
            let offset = (n << 20) + 5000 * (round + 1);
            volume.begin(Caller::ADMIN).write(ino, offset as u64, &[round as u8; 3]).unwrap();
            put(&mut copy, offset, &[round as u8; 3]);
        }
        volume.fsync(ino, SyncScope::Everything).unwrap();
    }
    assert!(read(&volume, ino) == copy);
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}
