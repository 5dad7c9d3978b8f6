//! Damaged checkpoint packs: the newest nodes count, although the other pack has older ones.

mod support;

#[path = "support/volume.rs"]
mod volume;

use std::{mem::offset_of, ops::Range, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::{
    OpenOptions,
    engine::{Caller, Engine, FileSize, FinalSymlink, Options as VolumeOptions},
    format::{TableCopy, checkpoint::raw::Checkpoint, crc::f2fs_crc},
    mkfs,
    units::Time,
};
use f2fs_rescue::{Grade, Options};
use support::{compare, overwrite, rescued, tree_of};
use volume::{BLOCK, FEATURES, NOW, content, open, sound};

/// Distance of the packs.
const PACK_BYTES: u64 = 2 << 20;

/// A volume that was changed after a checkpoint: each checkpoint has its own pack.
fn changed(which: usize) -> Arc<MemoryDevice> {
    let device = sound(which);
    let volume = open(device.clone());
    volume.remove_dir_all("/dir-3").expect("it is there");
    for n in 0..50 {
        volume.write(format!("/dir-5/new-{n}"), content(n, 20_000)).expect("there is space");
        volume.write(format!("/dir-4/file-{}", 14 * n + 4), content(n, 70_000)).expect("there is space");
    }
    volume.rename("/a/b", "/b").expect("it is there");
    volume.close().expect("in memory");
    device
}

/// Bytes of the newest pack.
fn newest_pack(device: &Arc<MemoryDevice>) -> Range<u64> {
    let packs = {
        let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
        u64::from(volume.superblock().checkpoint.start.0) * BLOCK
    };
    let version = |at: u64| {
        let mut bytes = [0; 8];
        device.read(at, &mut bytes).expect("in memory");
        u64::from_le_bytes(bytes)
    };
    let [first, second] = [packs, packs + PACK_BYTES];
    let start = if version(first) > version(second) { first } else { second };
    let mut bytes = [0; 4];
    device
        .read(start + offset_of!(Checkpoint, cp_pack_total_block_count) as u64, &mut bytes)
        .expect("in memory");
    start..start + u64::from(u32::from_le_bytes(bytes)) * BLOCK
}

/// Rescues a changed volume without a part of its newest pack, and expects the whole tree.
fn expect_newest(damage: impl Fn(Range<u64>) -> Range<u64>) -> Grade {
    let mut worst = Grade::Whole;
    for which in 0..FEATURES.len() {
        let device = changed(which);
        let expected = tree_of(device.clone());
        overwrite(&device, damage(newest_pack(&device)), 0);
        let result = rescued(device, &Options::default());
        assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new(), "{:?}", result.losses);
        assert_eq!(result.tree.len(), expected.len(), "removed files are not part of the tree");
        let grades = result.found.iter().filter_map(|found| found.certainty).map(|it| it.grade());
        worst = grades.fold(worst, Grade::max);
    }
    worst
}

#[test]
fn the_newest_pack_counts_without_its_first_block() {
    assert_eq!(expect_newest(|pack| pack.start..pack.start + BLOCK), Grade::Whole);
}

#[test]
fn without_the_end_of_the_newest_pack_newer_nodes_count() {
    assert_eq!(expect_newest(|pack| pack.end - BLOCK..pack.end), Grade::Likely);
}

#[test]
fn without_the_newest_pack_newer_nodes_count() {
    assert_eq!(expect_newest(|pack| pack), Grade::Likely);
}

#[test]
fn a_pack_whose_ends_differ_in_their_length_is_not_used() {
    let device = changed(0);
    let expected = tree_of(device.clone());
    let start = newest_pack(&device).start;
    let mut head = vec![0; BLOCK as usize];
    device.read(start, &mut head).expect("in memory");
    let mut put = |at: usize, value: u32| head[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(offset_of!(Checkpoint, cp_pack_total_block_count), 512);
    put(offset_of!(Checkpoint, cp_pack_start_sum), 400);
    let sum_at = BLOCK as usize - 4;
    let sum = f2fs_crc(&head[..sum_at]);
    head[sum_at..].copy_from_slice(&sum.to_le_bytes());
    device.write(start, &head).expect("in memory");
    let result = rescued(device, &Options::default());
    assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new(), "{:?}", result.losses);
}

/// Parts of the newest pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    HeadAndJournals,
    Journals,
}

#[test]
fn newer_nodes_count_where_the_newest_pack_lost_its_journals() {
    for (which, lost, byte) in [
        (0, Lost::HeadAndJournals, 0),
        (1, Lost::HeadAndJournals, 0),
        (0, Lost::Journals, 0),
        (1, Lost::Journals, 0),
        (0, Lost::Journals, 0xFF),
    ] {
        let device = changed(which);
        // So few changes that the journal has all of them.
        let volume = open(device.clone());
        for n in 0..5 {
            volume.write(format!("/dir-5/new-{n}"), content(n + 100, 30_000)).expect("there is space");
            volume.write(format!("/dir-5/newest-{n}"), content(n + 200, 30_000)).expect("there is space");
        }
        volume.close().expect("in memory");
        let expected = tree_of(device.clone());
        let pack = newest_pack(&device);
        let mut bytes = [0; 4];
        let at = pack.start + offset_of!(Checkpoint, cp_pack_start_sum) as u64;
        device.read(at, &mut bytes).expect("in memory");
        let summaries = pack.start + u64::from(u32::from_le_bytes(bytes)) * BLOCK;
        if lost == Lost::HeadAndJournals {
            overwrite(&device, pack.start..pack.start + BLOCK, 0);
        }
        overwrite(&device, summaries..pack.end - BLOCK, byte);
        let result = rescued(device, &Options::default());
        let (_, missing) = compare(&expected, &result.tree);
        assert_eq!(missing, Vec::<String>::new(), "{which}, {lost:?}, {byte:#x}: {:?}", result.losses);
    }
}

/// The older files were "whole".
#[test]
fn newer_nodes_count_where_a_block_of_the_nat_is_an_older_one() {
    for which in 0..FEATURES.len() {
        let device = changed(which);
        let expected = tree_of(device.clone());
        let blocks = {
            let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
            let (geometry, bitmap) = (*volume.geometry(), volume.last_checkpoint().nat_bitmap.clone());
            let places = |index: u32| {
                let current = TableCopy::current(&bitmap, index);
                [current, current.other()].map(|copy| u64::from(geometry.nat_block(index, copy).0) * BLOCK)
            };
            (0..geometry.nat_blocks()).map(places).collect::<Vec<_>>()
        };
        let mut stale = 0;
        for [current, other] in blocks {
            let mut bytes = [vec![0; BLOCK as usize], vec![0; BLOCK as usize]];
            device.read(current, &mut bytes[0]).expect("in memory");
            device.read(other, &mut bytes[1]).expect("in memory");
            if bytes[0] != bytes[1] && bytes[1].iter().any(|byte| *byte != 0) {
                device.write(current, &bytes[1]).expect("in memory");
                stale += 1;
            }
        }
        assert!(stale > 0, "the test needs blocks with an older copy");
        let result = rescued(device, &Options::default());
        assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new(), "{which}: {:?}", result.losses);
        let grades = result.found.iter().filter_map(|found| found.certainty).map(|it| it.grade());
        assert!(grades.clone().any(|grade| grade != Grade::Whole), "nothing confirms the newer ones");
    }
}

/// The old root was newer by its version.
#[test]
fn without_the_nat_a_volume_counts_and_not_an_older_one_beneath_it() {
    let device = sound(0);
    for n in 0..9 {
        let volume = open(device.clone());
        volume.write(format!("/dir-2/old-{n}"), content(n, 30_000)).expect("there is space");
        volume.close().expect("in memory");
    }
    let options = mkfs::Options::new([0xA5; 16]);
    let volume = OpenOptions::new().clock(|| NOW).make(device.clone(), &options).expect("a volume");
    for n in 0..200 {
        let path = format!("/dir-{}/file-{n}", n % 7);
        volume.create_dir_all(format!("/dir-{}", n % 7)).expect("there is space");
        volume.write(path, content(5000 + n, 20_000)).expect("there is space");
    }
    volume.close().expect("in memory");
    {
        // The checkpoint counts reserved blocks, the SIT does not.
        let mut volume = Engine::open(device.clone(), VolumeOptions::new(|| NOW)).expect("a sound volume");
        let ino = volume.resolve(b"/dir-1/file-1", FinalSymlink::NoFollow).expect("it exists");
        volume.begin(Caller::ADMIN).allocate_range(ino, 0, 1 << 20, FileSize::Stays).expect("room");
        volume.unmount().expect("in memory");
    }
    let expected = tree_of(device.clone());
    let nat = {
        let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
        let nat = volume.superblock().nat;
        u64::from(nat.start.0) * BLOCK..nat.end() * BLOCK
    };
    overwrite(&device, nat, 0);
    let result = rescued(device, &Options::default());
    assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new(), "{:?}", result.losses);
    assert_eq!(result.tree.len(), expected.len(), "files of the older volume are none of this one");
}

/// Both begin with version 1, so the older one has the newer nodes by their versions.
#[test]
fn without_packs_and_tables_a_volume_counts_and_not_an_older_one_beneath_it() {
    const LATER: Time = Time { seconds: NOW.seconds + 1000, nanoseconds: 0 };
    let device = sound(0);
    for n in 0..9 {
        let volume = open(device.clone());
        volume.write(format!("/dir-2/old-{n}"), content(n, 30_000)).expect("there is space");
        volume.close().expect("in memory");
    }
    let options = mkfs::Options::new([0xA5; 16]);
    let volume = OpenOptions::new().clock(|| LATER).make(device.clone(), &options).expect("a volume");
    volume.close().expect("in memory");
    for session in 0..6 {
        let volume = OpenOptions::new().write().clock(|| LATER).open(device.clone()).expect("a sound volume");
        for n in 10 * session..10 * (session + 1) {
            volume.create_dir_all(format!("/dir-{}", n % 7)).expect("there is space");
            volume
                .write(format!("/dir-{}/file-{n}", n % 7), content(5000 + n, 50_000))
                .expect("there is space");
        }
        volume.close().expect("in memory");
    }
    let expected = tree_of(device.clone());
    let (tables, root) = {
        let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
        let sb = volume.superblock();
        (u64::from(sb.checkpoint.start.0) * BLOCK..sb.nat.end() * BLOCK, u64::from(sb.main.start.0) * BLOCK)
    };
    for range in [tables.clone(), 0..tables.end] {
        overwrite(&device, range, 0);
        let result = rescued(device.clone(), &Options::default());
        assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new(), "{:?}", result.losses);
        assert_eq!(result.tree.len(), expected.len(), "files of the older volume are none of this one");
        assert_eq!(result.losses, Vec::<String>::new());
    }
    // Without the root that mkfs made, nothing tells which nodes are the newer ones.
    overwrite(&device, root..root + BLOCK, 0);
    let result = rescued(device, &Options::default());
    assert!(result.losses.iter().any(|loss| loss.contains("several volumes")), "{:?}", result.losses);
    let certainties = result.found.iter().filter_map(|found| found.certainty);
    assert!(
        certainties.clone().count() > 0 && certainties.into_iter().all(|it| it.grade() >= Grade::Doubtful)
    );
}
