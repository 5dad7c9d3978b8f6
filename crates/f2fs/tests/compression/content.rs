//! Content of compressed files.

use super::*;

/// Makes random changes to a file and to its copy.
fn change(volume: &mut Engine, ino: Ino, copy: &mut Vec<u8>, rng: &mut Rng, most: u64) {
    let (offset, mask) = (rng.below(most), if rng.chance(0.3) { NOISE } else { SPARSE });
    let length = match rng.below(4) {
        0 => 1 + rng.below(5000),
        1 => BLOCK * (1 + rng.below(4)),
        _ => 1 + rng.below(200_000),
    };
    let offset = if rng.chance(0.5) { offset / BLOCK * BLOCK } else { offset };
    match rng.below(10) {
        0..=5 => {
            let data = content(rng, length as usize, mask);
            volume.begin(Caller::ADMIN).write(ino, offset, &data).unwrap();
            put(copy, offset as usize, &data);
        }
        6..=7 => {
            volume.begin(Caller::ADMIN).truncate(ino, offset).unwrap();
            copy.resize(offset as usize, 0);
        }
        8 => {
            volume.begin(Caller::ADMIN).punch_hole(ino, offset, length).unwrap();
            let end = copy.len().min((offset + length) as usize);
            if (offset as usize) < end {
                copy[offset as usize..end].fill(0);
            }
        }
        _ => {
            let size = if rng.chance(0.5) { FileSize::Stays } else { FileSize::Grows };
            volume.begin(Caller::ADMIN).allocate_range(ino, offset, length, size).unwrap();
            if size == FileSize::Grows {
                copy.resize(copy.len().max((offset + length) as usize), 0);
            }
        }
    }
}

#[test]
fn every_algorithm_is_written_changed_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut rng = Rng::new(3);
    for (n, algorithm) in ALL.into_iter().enumerate() {
        for log_cluster_blocks in [2, 4 + n as u8] {
            support::mkfs(&path, 100 << 20, &FEATURES);
            let settings =
                Compression { algorithm, log_cluster_blocks, checksum: n % 2 == 0, level: n as u8 };
            let mut volume = open(&path, settings, 1 << 20);
            let dir = compressed_dir(&mut volume, b"dir");
            let mut files: Vec<(Ino, Vec<u8>)> = (0..3)
                .map(|n| {
                    let name = format!("file{n}");
                    (
                        volume
                            .begin(Caller::ADMIN)
                            .create(dir, name.as_bytes(), &NewNode::new(FILE))
                            .unwrap(),
                        Vec::new(),
                    )
                })
                .collect();
            let (first, copy) = &mut files[0];
            let data = content(&mut rng, 3_000_000, SPARSE);
            volume.begin(Caller::ADMIN).write(*first, 0, &data).unwrap();
            put(copy, 0, &data);
            assert_eq!(volume.stat(*first).unwrap().compression, Some(settings));
            let whole = 3_000_000 / (BLOCK as usize * (1 << log_cluster_blocks));
            assert_eq!(check_map(&volume, *first), whole, "{settings:?}");
            for step in 0..120 {
                let (ino, copy) = &mut files[rng.below(3) as usize];
                change(&mut volume, *ino, copy, &mut rng, 6_000_000);
                if step % 40 == 39 {
                    volume.unmount().unwrap();
                    drop(volume);
                    support::assert_clean(&path);
                    volume = open(&path, lz4(), 1 << 20);
                }
                if step % 20 == 19 {
                    for (ino, copy) in &files {
                        assert!(read(&volume, *ino) == *copy, "{settings:?}, {ino} after {step}");
                        check_map(&volume, *ino);
                    }
                }
            }
            for (name, (ino, _)) in [b"file0", b"file1", b"file2"].into_iter().zip(&files) {
                assert_eq!(volume.lookup(dir, name).unwrap(), *ino);
                volume.begin(Caller::ADMIN).unlink(dir, name).unwrap();
            }
            volume.begin(Caller::ADMIN).remove_dir(ROOT, b"dir").unwrap();
            volume.unmount().unwrap();
            assert_eq!((volume.counters().valid_inodes, volume.counters().valid_nodes), (1, 1));
            drop(volume);
            support::assert_clean(&path);
        }
    }
}

#[test]
fn small_writes_one_after_the_other_become_whole_clusters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 16 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let ino = volume.begin(Caller::ADMIN).create(dir, b"log", &NewNode::new(FILE)).unwrap();
    let line = b"the same line over and over, as logs are\n";
    for n in 0..4000 {
        volume.begin(Caller::ADMIN).write(ino, n * line.len() as u64, line).unwrap();
        if n % 500 == 0 {
            volume.fsync(ino, SyncScope::Everything).unwrap();
        }
    }
    volume.unmount().unwrap();
    let clusters = 4000 * line.len() / (4 * BLOCK as usize);
    assert_eq!(check_map(&volume, ino), clusters);
    assert_eq!(volume.stat(ino).unwrap().saved_blocks, 3 * clusters as u64);
    drop(volume);
    support::assert_clean(&path);
    let volume = support::open(&path);
    assert!(read(&volume, ino) == line.repeat(4000));
}

/// fsck.f2fs does not judge these volumes, because it takes a hole below an indirect node of a compressed
/// file for a longer one.
#[test]
fn clusters_lie_anywhere_up_to_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let ino = volume.begin(Caller::ADMIN).create(dir, b"far", &NewNode::new(FILE)).unwrap();
    let before = volume.counters();
    let layout = volume.inode(ino).unwrap().layout();
    let (own, direct, children) =
        (layout.addrs() as u64, layout.direct_addrs() as u64, layout.children() as u64);
    let last = layout.reach_blocks();
    let edges = [
        own,
        own + direct,
        own + 2 * direct,
        own + (2 + children) * direct,
        own + (2 + 2 * children) * direct,
    ];
    let data = content(&mut Rng::new(1), 12 * BLOCK as usize, SPARSE);
    for edge in edges.map(|edge| edge - 6).into_iter().chain([last - 12]) {
        volume.begin(Caller::ADMIN).write(ino, edge * BLOCK, &data).unwrap();
    }
    assert!(matches!(
        volume.begin(Caller::ADMIN).write(ino, last * BLOCK - 1, b"xx"),
        Err(Error::FileTooLarge)
    ));
    volume.unmount().unwrap();
    drop(volume);
    let mut volume = support::open(&path);
    for edge in edges.map(|edge| edge - 6).into_iter().chain([last - 12]) {
        let mut bytes = vec![0; data.len()];
        volume.read(ino, edge * BLOCK, &mut bytes).unwrap();
        assert!(bytes == data, "at block {edge}");
    }
    assert_eq!(volume.stat(ino).unwrap().size, last * BLOCK);
    assert!(volume.stat(ino).unwrap().saved_blocks >= 12);
    volume.begin(Caller::ADMIN).truncate(ino, 0).unwrap();
    assert_eq!((volume.counters(), volume.stat(ino).unwrap().saved_blocks), (before, 0));
}

#[test]
fn files_compressed_by_the_kernel_are_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut rng = Rng::new(11);
    for name in golden::names().into_iter().filter(|name| name.starts_with("compress-")) {
        let device = golden::device(&name);
        let bytes = device.geometry().size_bytes;
        let mut all = vec![0; bytes as usize];
        device.read(0, &mut all).unwrap();
        std::fs::write(&path, &all).unwrap();
        let mut volume = open(&path, lz4(), 1 << 20);
        let mut files = Vec::new();
        let mut pending = vec![ROOT];
        while let Some(dir) = pending.pop() {
            for entry in volume.entries(dir, 0).unwrap().map(Result::unwrap) {
                let stat = volume.stat(entry.ino).unwrap();
                match entry.name.as_slice() {
                    b"." | b".." => {}
                    _ if volume.inode(entry.ino).unwrap().is_directory() => pending.push(entry.ino),
                    _ if stat.compression.is_some() && stat.size < 8 << 20 => {
                        check_map(&volume, entry.ino);
                        files.push((entry.ino, read(&volume, entry.ino), stat.released));
                    }
                    _ => {}
                }
            }
        }
        assert!(files.len() > 3, "{name}: {} files", files.len());
        for (ino, copy, released) in &mut files {
            if *released {
                volume.begin(Caller::ADMIN).reserve_saved(*ino).unwrap();
            }
            for _ in 0..6 {
                change(&mut volume, *ino, copy, &mut rng, 600_000);
            }
        }
        for (ino, copy, _) in &files {
            assert!(read(&volume, *ino) == *copy, "{name}: {ino}");
        }
        volume.unmount().unwrap();
        drop(volume);
        support::assert_clean(&path);
        let volume = support::open(&path);
        for (ino, copy, _) in &files {
            assert!(read(&volume, *ino) == *copy, "{name}: {ino}");
            check_map(&volume, *ino);
        }
    }
}

#[test]
fn an_unreadable_cluster_is_not_written_in_part_and_delays_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let dir = compressed_dir(&mut volume, b"dir");
    let ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
    let whole = content(&mut Rng::new(1), 8 * BLOCK as usize, SPARSE);
    volume.begin(Caller::ADMIN).write(ino, 0, &whole).unwrap();
    volume.checkpoint().unwrap();
    let damage = |volume: &Engine, offset: u64| {
        let extent = volume.next_extent(ino, offset).unwrap().unwrap();
        assert_eq!(extent.kind, ExtentKind::Compressed);
        volume.device().write(extent.physical.unwrap(), &[0xFF; BLOCK as usize]).unwrap();
    };
    // The damage happens before a write, and while written data is in memory.
    damage(&volume, 0);
    let refused = volume.begin(Caller::ADMIN).write(ino, BLOCK, &[7; BLOCK as usize]);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).write(ino, 5 * BLOCK, &[7; BLOCK as usize]).unwrap();
    damage(&volume, 4 * BLOCK);
    let other = volume.begin(Caller::ADMIN).create(ROOT, b"other", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(other, 0, b"other").unwrap();
    volume.begin(Caller::ADMIN).link(other, ROOT, b"second").unwrap();
    volume.fsync(other, SyncScope::Everything).unwrap();
    for told in [
        volume.fsync(ino, SyncScope::Everything),
        volume.checkpoint(),
        volume.fsync(ino, SyncScope::Everything),
    ] {
        assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
    }
    // Overwriting the whole cluster works.
    volume.begin(Caller::ADMIN).write(ino, 0, &whole).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let volume = open(&path, lz4(), 1 << 20);
    assert!(read(&volume, ino) == whole && read(&volume, other) == b"other");
}
