//! Reads that the device refuses: each operation is whole or has not happened.

use super::*;
use f2fs::engine::Caller;

type Step = fn(&mut Engine) -> Result<()>;

/// All operations of a volume. The cache is emptied before each.
const STEPS: &[Step] = &[
    |volume| {
        let ino =
            volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode { uid: 1000, ..NewNode::new(FILE) })?;
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![2; 1000 * 4096])
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"big")?;
        volume.begin(Caller::ADMIN).write(ino, 1100 * 4096 + 5, &[2; 5])
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"packed")?;
        volume.begin(Caller::ADMIN).write(ino, 5 * 4096 + 5, &[2; 5])
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"held")?;
        volume.begin(Caller::ADMIN).unlink(ROOT, b"held")?;
        volume.hold(ino);
        Ok(())
    },
    |volume| volume.fsync(volume.lookup(ROOT, b"big")?, SyncScope::Everything),
    |volume| volume.begin(Caller::ADMIN).unlink(ROOT, b"gone"),
    |volume| {
        let ino = volume.lookup(ROOT, b"new")?;
        volume.begin(Caller::ADMIN).truncate(ino, 20_000)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.begin(Caller::ADMIN).rename(dir, b"name7", ROOT, b"name7", RenameMode::Replace)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        let ino = volume.lookup(dir, b"name8")?;
        volume.begin(Caller::ADMIN).link(ino, ROOT, b"link")
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"big")?;
        volume.begin(Caller::ADMIN).write(ino, 1150 * 4096 + 5, &[2; 5])
    },
    |volume| {
        // The second call has more to write.
        let ino = volume.lookup(ROOT, b"new")?;
        let end = volume.stat(ino)?.size;
        volume.begin(Caller::ADMIN).write(ino, end, &[2; 50_000])?;
        volume.checkpoint()
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        let new = NewNode { uid: 1000, ..NewNode::new(0o020_000) };
        volume.begin(Caller::ADMIN).rename_leaving(
            (dir, b"name9"),
            (ROOT, b"name9"),
            RenameMode::Replace,
            &new,
        )
    },
    |volume| {
        let set = SetAttr { uid: Some(5), project: Some(7), ..SetAttr::default() };
        let ino = volume.lookup(ROOT, b"big")?;
        volume.begin(Caller::ADMIN).set_attr(ino, &set)
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"other3")?;
        volume.begin(Caller::ADMIN).set_xattr(ino, b"user.long", &[2; 3000], XattrMode::Set)
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"big")?;
        volume.begin(Caller::ADMIN).remove_xattr(ino, b"user.long")
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"big")?;
        volume.begin(Caller::ADMIN).punch_hole(ino, 900 * 4096, 200 * 4096)
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"new")?;
        volume.begin(Caller::ADMIN).write(ino, 50_000, &[3; 50_000])
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"big")?;
        volume.begin(Caller::ADMIN).collapse_range(ino, 4096, 10 * 4096)
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"big")?;
        volume.begin(Caller::ADMIN).insert_range(ino, 4096, 1000 * 4096)
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"big")?;
        volume.begin(Caller::ADMIN).zero_range(ino, 1500 * 4096 + 7, 3000 * 4096, FileSize::Grows)
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"other5")?;
        volume.begin(Caller::ADMIN).allocate_range(ino, 5000, 2000 * 4096, FileSize::Stays)
    },
    |volume| {
        volume.begin(Caller::ADMIN).symlink(ROOT, b"symlink", &[b'x'; 4000], &NewNode::new(0o777)).map(drop)
    },
    |volume| volume.begin(Caller::ADMIN).create(ROOT, b"sub", &NewNode::new(0o040_755)).map(drop),
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.begin(Caller::ADMIN).rename(dir, b"name17", ROOT, b"other6", RenameMode::Exchange)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.begin(Caller::ADMIN).rename(ROOT, b"sub", dir, b"sub", RenameMode::Replace)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.begin(Caller::ADMIN).rename(dir, b"name18", ROOT, b"other7", RenameMode::Replace)
    },
    |volume| {
        let dir = volume.lookup(ROOT, b"dir")?;
        volume.begin(Caller::ADMIN).remove_dir(dir, b"sub")
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"packed")?;
        volume.begin(Caller::ADMIN).release_saved(ino).map(drop)
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"packed")?;
        volume.begin(Caller::ADMIN).reserve_saved(ino).map(drop)
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"packed")?;
        volume.begin(Caller::ADMIN).write(ino, 3 * 4096, &[5; 9 * 4096])
    },
    |volume| {
        let ino = volume.lookup(ROOT, b"packed")?;
        volume.begin(Caller::ADMIN).punch_hole(ino, 5 * 4096, 4096)
    },
    |volume| volume.fsync(volume.lookup(ROOT, b"packed")?, SyncScope::Everything),
    |volume| {
        let ino = volume.lookup(ROOT, b"packed")?;
        volume.begin(Caller::ADMIN).truncate(ino, 7 * 4096 + 9)
    },
    |volume| {
        let new = NewNode { uid: 1000, gid: 1000, ..NewNode::new(FILE) };
        let ino = volume.begin(Caller::ADMIN).create_nameless(ROOT, &new)?;
        let linked = volume.begin(Caller::ADMIN).link(ino, ROOT, b"nameless");
        volume.begin(Caller::ADMIN).release(ino)?;
        linked
    },
    |volume| {
        let limits = QuotaLimits { inodes_hard: 9_000, ..QuotaLimits::default() };
        volume.begin(Caller::ADMIN).set_quota_limits(QuotaKind::Group, 1000, limits)
    },
    |volume| volume.clean(1, Policy::Greedy).map(drop),
    Engine::unmount,
];

/// If any single read fails once, the second call succeeds, and no data is lost.
#[test]
fn a_read_that_fails_once_leaves_no_operation_half_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = crowded(&path);
    let (mut nth, mut failures) = (0, 0);
    let mut bad = Vec::new();
    loop {
        let device = Scratched::new(copy(&image).unwrap());
        let mut volume = open_small(device.clone()).unwrap();
        let held = volume.lookup(ROOT, b"held").unwrap();
        let mut left = Some(nth);
        let mut told = String::from("no error is reported");
        let mut run = |volume: &mut Engine, name: String, step: &dyn Fn(&mut Engine) -> Result<()>| {
            forget(volume);
            *device.until.lock().unwrap() = left;
            let result = step(volume);
            left = device.until.lock().unwrap().take();
            let Err(error) = result else { return };
            failures += 1;
            told = format!("{name}: {error}");
            if !matches!(error, Error::Io { .. }) {
                bad.push(format!("read {nth}, {told}"));
            }
            match step(volume) {
                Ok(()) | Err(Error::Exists | Error::NotFound | Error::NoAttribute) => {}
                Err(error) => bad.push(format!("read {nth}, {told}, again: {error}")),
            }
        };
        for (n, step) in STEPS.iter().enumerate() {
            run(&mut volume, format!("step {n}"), step);
            if n == 10 {
                run(&mut volume, "release".into(), &|volume| volume.begin(Caller::ADMIN).release(held));
            }
        }
        let ended = left.is_some();
        if !volume.orphans().is_empty() {
            bad.push(format!("read {nth}, {told}: {:?}", volume.orphans()));
        }
        let volume_flags = volume.last_checkpoint().flags;
        drop(volume);
        store(&device.inner, &path).unwrap();
        if let Err(error) = model::fsck::fsck_image(&path) {
            bad.push(format!("read {nth}, {told}: {error:#}"));
        }
        if volume_flags.has(Flags::QUOTA_NEED_FSCK) {
            bad.push(format!("read {nth}, {told}: quota"));
        }
        if ended {
            break;
        }
        nth += 1;
    }
    assert!(bad.is_empty(), "{failures} failures of {nth}: {}", bad.join("\n"));
}

/// An orphan that cannot be read does not prevent opening the volume, and is removed once it can be read.
#[test]
fn a_volume_with_an_unreadable_orphan_opens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let ino = volume.lookup(ROOT, b"held").unwrap();
    let node = volume.inode(ino).unwrap().child(0);
    volume.hold(ino);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"held").unwrap();
    volume.checkpoint().unwrap();
    device.set(&[volume.nat_entry(node).unwrap().addr]);
    drop(volume);
    for read_only in [true, false] {
        let options = if read_only { Options::read_only() } else { Options::new(|| NOW) };
        let volume = Engine::open(device.clone(), options).unwrap();
        assert!(volume.orphans().contains(&ino));
    }
    device.set(&[]);
    let mut volume = open_small(device.clone()).unwrap();
    assert!(volume.orphans().is_empty());
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// Data written to a file stays in memory while the node of its block cannot be read. Other files are
/// written.
#[test]
fn a_node_that_cannot_be_read_does_not_stop_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let big = volume.lookup(ROOT, b"big").unwrap();
    let node = volume.inode(big).unwrap().child(0);
    let node = volume.nat_entry(node).unwrap().addr;
    for n in 0..5 {
        volume.begin(Caller::ADMIN).write(big, (1100 + n) * 4096 + 5, &[2; 5]).unwrap();
    }
    forget(&volume);
    device.set(&[node]);
    let new = volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(new, 0, &[3; 5000]).unwrap();
    volume.begin(Caller::ADMIN).link(new, ROOT, b"second").unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    assert!(matches!(volume.fsync(big, SyncScope::Everything), Err(Error::Io { .. })));
    assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })), "not all of it is durable");
    assert!(volume.read_only_reason().is_none());
    let there = Engine::open(Arc::new(copy(&device.inner).unwrap()), Options::read_only()).unwrap();
    let mut found = [0; 5000];
    assert_eq!(there.read(there.lookup(ROOT, b"second").unwrap(), 0, &mut found).unwrap(), 5000);
    assert!(found == [3; 5000]);
    drop(there);
    device.set(&[]);
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
    let volume = support::open_read_only(&path);
    volume.read(big, 1104 * 4096, &mut found[..4096]).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [2; 5]);
}

/// An inode that cannot be read delays no more than any other node.
#[test]
fn an_inode_that_cannot_be_read_does_not_stop_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let big = volume.lookup(ROOT, b"big").unwrap();
    volume.begin(Caller::ADMIN).write(big, 1100 * 4096 + 5, &[2; 5]).unwrap();
    volume.fsync(volume.lookup(ROOT, b"other0").unwrap(), SyncScope::Everything).unwrap();
    volume.begin(Caller::ADMIN).write(big, 1100 * 4096 + 5, &[3; 5]).unwrap();
    forget(&volume);
    device.set(&[volume.nat_entry(big.into()).unwrap().addr]);
    let new = volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).link(new, ROOT, b"second").unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    assert!(matches!(volume.checkpoint(), Err(Error::Io { .. })), "not all of it is durable");
    device.set(&[]);
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
    let mut found = [0; 4096];
    support::open_read_only(&path).read(big, 1100 * 4096, &mut found).unwrap();
    assert!(found[..5] == [1; 5] && found[5..10] == [3; 5]);
}

/// Neither an unreadable quota file nor an unreadable inode prevents other changes.
#[test]
fn unreadable_quota_files_and_inodes_stop_no_other_operation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let quota = volume.quota_ino(QuotaKind::User).unwrap();
    let quota = volume.address(&volume.inode(quota).unwrap(), 0).unwrap();
    device.set(&[quota]);
    let first = volume.begin(Caller::ADMIN).create(ROOT, b"first", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    // This many changed nodes trigger write-back, and an fsync sends all pending runs.
    for name in (0..20).map(|n| format!("other{n}")) {
        let other = volume.lookup(ROOT, name.as_bytes()).unwrap();
        volume.begin(Caller::ADMIN).set_attr(other, &SetAttr { uid: Some(1), ..SetAttr::default() }).unwrap();
    }
    volume.begin(Caller::ADMIN).write(first, 0, &[1]).unwrap();
    volume.fsync(first, SyncScope::Everything).unwrap();
    let changed = volume.lookup(ROOT, b"other0").unwrap();
    forget(&volume);
    device.set(&[quota, volume.nat_entry(changed.into()).unwrap().addr]);
    for n in 0..3 {
        volume.begin(Caller::ADMIN).create(ROOT, format!("new{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
    }
    device.set(&[]);
    volume.unmount().unwrap();
    assert!(!volume.last_checkpoint().flags.has(Flags::QUOTA_NEED_FSCK));
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// Numbers for new inodes come from the readable blocks of the NAT.
#[test]
fn files_are_made_despite_a_bad_sector_in_the_node_table() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    for n in 0..500 {
        volume.begin(Caller::ADMIN).create(ROOT, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    volume.unmount().unwrap();
    let table = TableCopy::BOTH.map(|copy| volume.geometry().nat_block(1, copy));
    drop(volume);
    device.set(&table);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    for n in 500..600 {
        volume.begin(Caller::ADMIN).create(ROOT, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    volume.unmount().unwrap();
}

/// A volume that was not unmounted can be opened although a block beside its logs of nodes cannot be read.
#[test]
fn a_volume_with_a_bad_sector_beside_a_log_opens() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let mut files = (0..10).map(|n| {
        let name = format!("{n}");
        volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap()
    });
    let ino = files.by_ref().last().unwrap();
    drop(files);
    volume.checkpoint().unwrap();
    let node = volume.nat_entry(ino.into()).unwrap().addr;
    drop(volume);
    for bad in [BlockAddr(node.0 + 100), node] {
        device.set(&[bad]);
        let mut volume = open(device.clone(), OnError::ReadOnly);
        let name = format!("beside {bad}");
        volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
    }
}

/// Recovery does not read the summary of a segment that was free, because everything in it is new.
#[test]
fn recovery_reads_no_summary_of_free_segments() {
    let device = Scratched::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 5 << 20]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let geometry = *volume.geometry();
    let addr = volume.address(&volume.inode(ino).unwrap(), 800).unwrap();
    let (segment, _) = geometry.position(addr);
    drop(volume);
    device.set(&[geometry.summary_block(segment).0]);
    let mut volume = open(device.clone(), OnError::ReadOnly);
    assert_eq!(volume.stat(ino).unwrap().size, 5 << 20);
    device.set(&[]);
    let summary = volume.summary(segment).unwrap();
    assert!(!summary.is_node && summary.owners[usize::from(geometry.position(addr).1)].nid.0 > 0);
    volume.unmount().unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// If a block of the segment table cannot be read, names whose blocks lie there stay. Removed names do not
/// return together with one that cannot be removed, and no checkpoint waits for it.
#[test]
fn names_whose_blocks_cannot_be_freed_are_not_changed() {
    const TABLE_SEGMENTS: u32 = 55;
    let device = Scratched::new(MemoryDevice::new(512 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    // A file of this kind shares a log with directories, and moves that log to segments in another block of
    // the segment table.
    let heavy = volume.begin(Caller::ADMIN).create(ROOT, b"heavy.db", &NewNode::new(FILE)).unwrap();
    let mut at = 0;
    let mut fill_past = |volume: &mut Engine, segment: u32| loop {
        volume.begin(Caller::ADMIN).write(heavy, at, &vec![1; 1 << 20]).unwrap();
        at += 1 << 20;
        let addr = volume.address(&volume.inode(heavy).unwrap(), at / 4096 - 1).unwrap();
        if volume.geometry().position(addr).0.0 > segment {
            break;
        }
    };
    fill_past(&mut volume, TABLE_SEGMENTS);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    let name = |n: u32| format!("{n} and so that few of them fit into a block, very many letters more {n}");
    for n in 0..200 {
        volume.begin(Caller::ADMIN).create(dir, name(n).as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    fill_past(&mut volume, 2 * TABLE_SEGMENTS);
    // A file with another log moves that log out of this block of the table, too.
    let cold = volume.begin(Caller::ADMIN).create(ROOT, b"cold.jpg", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(cold, 0, &vec![1; 2 << 20]).unwrap();
    volume.unmount().unwrap();
    let logs = volume.last_checkpoint().logs;
    assert!(logs.iter().all(|log| log.segment.0 / TABLE_SEGMENTS != 1));
    let bad = TableCopy::BOTH.map(|copy| volume.geometry().sit_block(1, copy));
    drop(volume);

    let mut volume = open(device.clone(), OnError::Continue);
    device.set(&bad);
    let mut refused = 0;
    for n in 0..200 {
        match volume.begin(Caller::ADMIN).unlink(dir, name(n).as_bytes()) {
            Ok(()) => {}
            Err(Error::Io { .. }) => refused += 1,
            Err(error) => panic!("{n}: {error}"),
        }
    }
    let left: Vec<Ino> = volume.entries(dir, 0).unwrap().map(|entry| entry.unwrap().ino).skip(2).collect();
    assert_eq!(left.len(), refused);
    left.into_iter().for_each(|ino| assert_eq!(volume.stat(ino).unwrap().links, 1));
    for n in 200..400 {
        match volume.begin(Caller::ADMIN).create(dir, name(n).as_bytes(), &NewNode::new(FILE)) {
            Ok(_) => {}
            Err(Error::Io { .. }) => refused += 1,
            Err(error) => panic!("{n}: {error}"),
        }
    }
    assert!(refused > 0, "some go there");
    volume.checkpoint().unwrap();
    device.set(&[]);
    for n in 0..400 {
        match volume.begin(Caller::ADMIN).unlink(dir, name(n).as_bytes()) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => panic!("{n}: {error}"),
        }
    }
    assert!(volume.is_empty_dir(dir).unwrap());
    volume.unmount().unwrap();
    drop(volume);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// The segment table cannot be read for a moment, just when the log of nodes needs its next segment: the node that has taken
/// the last block names no next one. Here that happens within an fsync, so its marked node is not in the chain.
#[test]
fn an_fsync_is_durable_although_the_log_of_nodes_could_not_go_on_within_it() {
    // Each is in a node of its own.
    const OFFSETS: [u64; 4] = [4 << 20, 8 << 20, 12 << 20, 16 << 20];
    let device = Scratched::new(MemoryDevice::new(256 << 20));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    // The memory holds one block of the segment table.
    let options = || Options { in_place: InPlace::Never, cache_bytes: 64 << 10, ..Options::new(|| NOW) };
    let mut volume = Engine::open(device.clone(), options()).unwrap();
    let create = |volume: &mut Engine, name: &[u8]| {
        volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap()
    };
    let (ino, pad) = (create(&mut volume, b"file"), create(&mut volume, b"pad"));
    let write = |volume: &mut Engine, value: u8| {
        for offset in OFFSETS {
            volume.begin(Caller::ADMIN).write(ino, offset, &[value; 4096]).unwrap();
        }
    };
    write(&mut volume, 1);
    volume.checkpoint().unwrap();
    write(&mut volume, 2);
    volume.fsync(ino, SyncScope::Everything).unwrap();
    // Two blocks are left for the four nodes of the next fsync.
    let mut uid = 0;
    while volume.geometry().position(volume.nat_entry(pad.into()).unwrap().addr).1 != 509 {
        uid += 1;
        let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
        volume.begin(Caller::ADMIN).set_attr(pad, &set).unwrap();
        volume.fsync(pad, SyncScope::Everything).unwrap();
    }
    write(&mut volume, 3);
    // From here on the memory holds the last block of the table.
    volume.valid_blocks_in(0..0).unwrap();
    *device.until.lock().unwrap() = Some(0);
    volume.fsync(ino, SyncScope::Everything).unwrap();
    assert_eq!(*device.failed.lock().unwrap(), 1);
    drop(volume); // without an unmount

    let volume = Engine::open(device, options()).unwrap();
    for offset in OFFSETS {
        let mut found = [0; 4096];
        volume.read(ino, offset, &mut found).unwrap();
        assert!(found == [3; 4096], "{} at {offset}", found[0]);
    }
}
