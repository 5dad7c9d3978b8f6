//! Damaged volumes: every file that the damage did not touch is rescued.

mod support;

#[path = "support/nodes.rs"]
mod nodes;
#[path = "support/volume.rs"]
mod volume;

use std::{
    collections::BTreeSet,
    mem::offset_of,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use block::{Device, Hooked, MemoryDevice, Verb};
use f2fs::{
    FileOptions,
    engine::{Caller, Engine, FinalSymlink, NewNode, Options as VolumeOptions, SetAttr},
    format::inode::{advise, flag, raw::InodeHead},
    units::Ino,
};
use f2fs_rescue::{Grade, Options, RescueSource, Selection};
use f2fs_tree::Kind;
use nodes::small_file;
use support::{Rescued, Tree, collect, compare, overwrite, rescued, tree_of};
use volume::{BLOCK, FEATURES, NOW, blocks_of, content, open, sound};

/// Bytes of the areas of a volume.
struct Areas {
    superblocks: Range<u64>,
    packs: Range<u64>,
    nat: Range<u64>,
    metadata: Range<u64>,
}

fn areas(device: &Arc<MemoryDevice>) -> Areas {
    let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
    let sb = volume.superblock();
    let bytes = |area: f2fs::format::superblock::Area| u64::from(area.start.0) * BLOCK..area.end() * BLOCK;
    Areas {
        superblocks: 0..2 * BLOCK,
        packs: bytes(sb.checkpoint),
        nat: bytes(sb.nat),
        metadata: 0..u64::from(sb.main.start.0) * BLOCK,
    }
}

/// Rescues a volume without some of its bytes, and expects the whole tree.
fn expect_all(damage: impl Fn(&Areas) -> Vec<Range<u64>>) {
    for (which, features) in FEATURES.iter().enumerate() {
        let device = sound(which);
        let expected = tree_of(device.clone());
        for range in damage(&areas(&device)) {
            overwrite(&device, range, 0);
        }
        let result = rescued(device, &Options::default());
        let (same, missing) = compare(&expected, &result.tree);
        assert!(missing.is_empty(), "{features:?}: {missing:?}, {:?}", result.losses);
        assert_eq!((same, result.losses.len()), (result.tree.len(), 0), "{:?}", result.losses);
        let worst = result.found.iter().filter_map(|found| found.certainty).map(|it| it.grade()).max();
        assert!(worst <= Some(Grade::Likely), "{worst:?}");
    }
}

#[test]
fn a_sound_volume_is_whole() {
    let device = sound(1);
    let expected = tree_of(device.clone());
    let result = rescued(device, &Options::default());
    assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new());
    let grades = result.found.iter().filter_map(|found| found.certainty).map(|it| it.grade());
    assert!(grades.clone().all(|grade| grade == Grade::Whole), "{:?}", result.found[0].certainty);
}

#[test]
fn without_both_packs_every_file_is_there() {
    expect_all(|areas| vec![areas.packs.clone()]);
}

#[test]
fn without_the_nat_every_file_is_there() {
    expect_all(|areas| vec![areas.nat.clone()]);
}

#[test]
fn without_the_superblocks_every_file_is_there() {
    expect_all(|areas| vec![areas.superblocks.clone()]);
}

#[test]
fn without_all_metadata_every_file_is_there() {
    expect_all(|areas| vec![areas.metadata.clone()]);
}

#[test]
fn without_every_tenth_block_of_metadata_every_file_is_there() {
    for first in [0, 1, 5] {
        expect_all(|areas| {
            let blocks = areas.metadata.clone().step_by(BLOCK as usize).skip(first).step_by(10);
            blocks.map(|at| at..at + BLOCK).collect()
        });
    }
}

#[test]
fn files_of_a_directory_block_that_is_zero_are_not_removed() {
    const FILES: u32 = 700;
    let device = sound(0);
    let volume = open(device.clone());
    volume.create_dir_all("/many").expect("there is space");
    (0..FILES).for_each(|n| volume.write(format!("/many/{n}"), content(n, 10)).expect("there is space"));
    volume.close().expect("in memory");
    let expected = tree_of(device.clone());
    let blocks = {
        let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
        directory_blocks(&volume, "/many")
    };
    assert!(blocks.len() > 3, "{blocks:?}");
    let packs_and_nat = [areas(&device).packs, areas(&device).nat];
    packs_and_nat.into_iter().for_each(|area| overwrite(&device, area, 0));
    // One block, and of another the sector with the bitmap of its entries.
    for (block, bytes) in [(blocks[0], BLOCK), (blocks[2], 512)] {
        overwrite(&device, block * BLOCK..block * BLOCK + bytes, 0);
    }
    let result = rescued(device, &Options::default());
    assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new());
}

#[test]
fn an_image_in_a_file_keeps_its_nodes_without_summaries() {
    let device = sound(0);
    let image: Vec<u8> =
        (20_000..20_040).flat_map(|ino| small_file(ino, 3, b"inner", b"content").bytes().to_vec()).collect();
    let volume = open(device.clone());
    volume.write("/image", image).expect("there is space");
    // The pack has the summaries of the segments that the logs write to.
    volume.write("/further", content(7, 8 << 20)).expect("there is space");
    volume.close().expect("in memory");
    let expected = tree_of(device.clone());
    let ssa = {
        let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
        let area = volume.superblock().ssa;
        u64::from(area.start.0) * BLOCK..area.end() * BLOCK
    };
    overwrite(&device, ssa, 0);
    let result = rescued(device, &Options::default());
    assert_eq!(compare(&expected, &result.tree).1, Vec::<String>::new(), "{:?}", result.losses);
}

/// Returns the addresses of a directory's blocks.
fn directory_blocks(volume: &Engine, path: &str) -> Vec<u64> {
    let ino = volume.resolve(path.as_bytes(), FinalSymlink::NoFollow).expect("it exists");
    let inode = volume.inode(ino).expect("it is sound");
    let blocks = inode.head().size.get().div_ceil(BLOCK);
    let addrs = (0..blocks).map(|block| volume.address(&inode, block).expect("sound nodes"));
    addrs.filter(|addr| addr.is_real()).map(|addr| addr.0.into()).collect()
}

/// Returns the files of a tree that have no block in the damaged range, and how many of them were rescued
/// with the right name and the right bytes, wherever they are.
fn untouched(
    which: usize,
    expected: &Tree,
    result: &Rescued,
    is_damaged: impl Fn(u64) -> bool,
) -> (usize, usize) {
    let volume = Engine::open(sound(which), VolumeOptions::read_only()).expect("a sound volume");
    let last = |path: &str| path.rsplit('/').next().expect("a name").to_owned();
    let rescued: std::collections::HashSet<(String, &[u8])> =
        result.tree.iter().map(|(path, (_, content))| (last(path), content.as_slice())).collect();
    let files = expected.iter().filter(|(_, (entry, _))| matches!(entry.kind, Kind::File { .. }));
    let safe = files.filter(|(path, _)| {
        blocks_of(&volume, path).iter().all(|addr| !is_damaged(u64::from(addr.0) * BLOCK))
    });
    let safe: Vec<_> = safe.collect();
    let found =
        safe.iter().filter(|(path, (_, content))| rescued.contains(&(last(path), content.as_slice())));
    (safe.len(), found.count())
}

/// Block of a file of the sound volume: its inode, or one of its content.
fn first_block(which: usize, path: &str, number: usize) -> u64 {
    let volume = Engine::open(sound(which), VolumeOptions::read_only()).expect("a sound volume");
    blocks_of(&volume, path)[number].0.into()
}

#[test]
fn with_the_front_overwritten_the_files_behind_are_there() {
    for which in 0..FEATURES.len() {
        let device = sound(which);
        let expected = tree_of(device.clone());
        // All metadata, and the nodes of the first half of the files.
        let end = first_block(which, "/dir-0/file-700", 0) * BLOCK;
        overwrite(&device, 0..end, 0xA5);
        let result = rescued(device, &Options::default());
        let (safe, found) = untouched(which, &expected, &result, |at| at < end);
        println!("{found} of {safe} files");
        assert!(safe > 100 && found == safe, "{found} of {safe}");
        assert_eq!(result.rescue.facts().superblock, None);
    }
}

#[test]
fn a_truncated_image_has_the_files_before_its_end() {
    let device = sound(1);
    let expected = tree_of(device.clone());
    let end = first_block(1, "/dir-0/file-700", 1) * BLOCK;
    let mut bytes = vec![0; end as usize];
    device.read(0, &mut bytes).expect("in memory");
    let result = rescued(Arc::new(MemoryDevice::from_bytes(&bytes)), &Options::default());
    let (safe, found) = untouched(1, &expected, &result, |at| at >= end);
    println!("{found} of {safe} files");
    assert!(safe > 100 && found == safe, "{found} of {safe}");
}

/// Returns true if the sector at a byte cannot be read.
fn is_bad(at: u64) -> bool {
    at > 4 << 20 && at / BLOCK % 40 == 7
}

#[test]
fn unreadable_sectors_cost_only_the_files_that_they_hit() {
    let device = sound(0);
    let expected = tree_of(device.clone());
    let bad = Hooked::new(device, |verb, range: Range<u64>| match verb {
        Verb::Read if range.step_by(512).any(is_bad) => Err(std::io::Error::other("a bad sector")),
        Verb::Read | Verb::Flush => Ok(()),
        Verb::Write | Verb::Discard => panic!("a rescue changes the device"),
    });
    let result = rescued(Arc::new(bad), &Options::default());
    let (safe, found) = untouched(0, &expected, &result, is_bad);
    println!("{found} of {safe} files");
    assert!(safe > 100 && found == safe, "{found} of {safe}");
    assert!(result.rescue.facts().unreadable_blocks > 0 && !result.losses.is_empty());
}

/// Copies all files of a rescue from a device with bad sectors, either from the scan on or only afterwards. Returns the number
/// of failed reads in the copy, and the bad blocks that they hit first.
fn failed_reads_in_the_copy(are_bad_from: BadFrom) -> (u64, usize) {
    let (is_on, failed) = (Arc::new(AtomicBool::new(are_bad_from == BadFrom::Scan)), Arc::default());
    let hit: Arc<Mutex<BTreeSet<u64>>> = Arc::default();
    let (switch, count, blocks): (_, Arc<AtomicU64>, _) = (is_on.clone(), Arc::clone(&failed), hit.clone());
    let device = sound(0);
    // The scan reads the main area.
    let main = areas(&device).metadata.end;
    let bad = Hooked::new(device, move |_, range: Range<u64>| {
        let first = range.step_by(512).find(|at| *at >= main && is_bad(*at));
        match first.filter(|_| switch.load(Ordering::Relaxed)) {
            Some(at) => {
                count.fetch_add(1, Ordering::Relaxed);
                blocks.lock().unwrap().insert(at / BLOCK);
                Err(std::io::Error::other("a bad sector"))
            }
            None => Ok(()),
        }
    });
    let rescue = f2fs_rescue::rescue(Arc::new(bad), &Options::default(), &mut |_| {}).unwrap();
    is_on.store(true, Ordering::Relaxed);
    failed.store(0, Ordering::Relaxed);
    hit.lock().unwrap().clear();
    let (_, losses) = collect(&mut RescueSource::new(&rescue, Selection::Present, |_| {}));
    assert!(!losses.is_empty());
    let hit = hit.lock().unwrap().len();
    (failed.load(Ordering::Relaxed), hit)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BadFrom {
    Scan,
    Copy,
}

#[test]
fn blocks_that_the_scan_could_not_read_are_not_tried_again() {
    assert_eq!(failed_reads_in_the_copy(BadFrom::Scan), (0, 0));
}

#[test]
fn a_block_that_cannot_be_read_costs_few_failed_reads() {
    let (failed, blocks) = failed_reads_in_the_copy(BadFrom::Copy);
    // The run before it and the block itself, and the run from it on and the block again.
    assert!(blocks > 10 && failed <= 4 * blocks as u64, "{failed} failed reads of {blocks} blocks");
}

#[test]
fn a_volume_behind_a_partition_table_is_found_by_its_nodes() {
    let device = sound(1);
    let expected = tree_of(device.clone());
    overwrite(&device, 0..8 << 20, 0);
    let start = 1 << 20;
    let size = device.geometry().size_bytes;
    let disk = MemoryDevice::new(size + start);
    let mut page = vec![0; BLOCK as usize];
    for offset in device.allocated_pages() {
        device.read(offset, &mut page).expect("in memory");
        disk.write(offset + start, &page).expect("in memory");
    }
    let result = rescued(Arc::new(disk), &Options::default());
    assert_eq!(result.rescue.facts().start, start as i64);
    let (safe, found) = untouched(1, &expected, &result, |at| at < 8 << 20);
    assert!(safe > 100 && found == safe, "{found} of {safe}");
}

#[test]
fn a_compressed_file_may_be_longer_in_its_nodes_than_in_its_inode() {
    const FILE_BLOCKS: u64 = 1200;
    let device = sound(1);
    let ino = {
        let mut volume = Engine::open(device.clone(), VolumeOptions::new(|| NOW)).expect("a sound volume");
        let ino = volume
            .begin(Caller::ADMIN)
            .create(Ino(3), b"packed", &NewNode::new(0o100_644))
            .expect("there is space");
        let set = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
        volume.begin(Caller::ADMIN).set_attr(ino, &set).expect("the volume has compression");
        volume
            .begin(Caller::ADMIN)
            .write(ino, 0, &vec![b'x'; (FILE_BLOCKS * BLOCK) as usize])
            .expect("there is space");
        volume.checkpoint().expect("in memory");
        ino
    };
    let addr = {
        let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
        volume.nat_entry(ino.into()).expect("a sound NAT").addr
    };
    let inode = u64::from(addr.0) * BLOCK;
    let at = inode + offset_of!(InodeHead, size) as u64;
    // The mark explains the blocks past the end.
    device.write(inode + offset_of!(InodeHead, advise) as u64, &[advise::TRUNC]).expect("in memory");
    for blocks in [0, 1, 2, 4, 5, 900, 919, 920, 921, 925, 1024] {
        for bytes in [blocks * BLOCK, blocks * BLOCK + 1] {
            device.write(at, &bytes.to_le_bytes()).expect("in memory");
            let result = rescued(device.clone(), &Options::default());
            let (_, content) = &result.tree["packed"];
            assert_eq!(content.len() as u64, bytes);
            assert!(content.iter().all(|byte| *byte == b'x'), "{bytes} bytes");
        }
    }
}

#[test]
fn a_file_that_an_older_node_maps_is_not_given_as_whole() {
    let device = sound(0);
    let volume = open(device.clone());
    volume.write("/late", content(50, 8 << 20)).expect("there is space");
    volume.close().expect("in memory");
    let volume = open(device.clone());
    // Blocks that the first direct node maps go to new places, and the node with them.
    for block in [1000, 1100, 1200] {
        let file = FileOptions::new().write().open(&volume, "/late").expect("it is there");
        file.write_at(&content(51, BLOCK as usize), block * BLOCK).expect("there is space");
    }
    volume.close().expect("in memory");
    let expected = tree_of(device.clone());
    let node = {
        let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
        u64::from(blocks_of(&volume, "/late")[1].0) * BLOCK
    };
    overwrite(&device, node..node + BLOCK, 0);
    let result = rescued(device, &Options::default());
    assert!(result.tree["late"].1 != expected["late"].1, "the newest blocks are lost");
    let late = result.found.iter().find(|found| found.path == b"late").expect("it is there");
    let certainty = late.certainty.expect("it is judged");
    assert_eq!((certainty.grade(), certainty.outdated_nodes), (Grade::Doubtful, 1), "{certainty}");
}

#[test]
fn without_the_nat_block_of_a_node_its_file_is_not_given_as_whole() {
    let device = sound(0);
    let nat = areas(&device).nat;
    let (inode, node) = {
        let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
        let ino = volume.resolve(b"/large", FinalSymlink::NoFollow).expect("it exists");
        (ino.0, volume.inode(ino).expect("it is sound").child(0).0)
    };
    // An entry of zeroes, in both copies: the number has never been used.
    let entries = BLOCK / 9;
    assert!(inode != node);
    for segment in [0, 1] {
        let at =
            nat.start + (segment * 512 + u64::from(node) / entries) * BLOCK + u64::from(node) % entries * 9;
        overwrite(&device, at..at + 9, 0);
    }
    let result = rescued(device, &Options::default());
    let large = result.found.iter().find(|found| found.path == b"large").expect("it is there");
    let certainty = large.certainty.expect("it is judged");
    assert_eq!((certainty.grade(), certainty.unproven_nodes), (Grade::Likely, 1), "{certainty}");
}

/// An inode that counted one name was copied under each of its names. Each name judged each block again, too.
#[test]
fn names_that_an_inode_does_not_count_do_not_multiply_its_content() {
    let device = sound(0);
    let large = {
        let mut volume = Engine::open(device.clone(), VolumeOptions::new(|| NOW)).expect("a sound volume");
        let ino = volume.resolve(b"/large", FinalSymlink::NoFollow).expect("it exists");
        for n in 0..60 {
            volume.begin(Caller::ADMIN).link(ino, Ino(3), format!("name {n}").as_bytes()).expect("room");
        }
        volume.unmount().expect("in memory");
        volume.nat_entry(ino.into()).expect("a sound NAT").addr
    };
    let names = |rescued: &Rescued| {
        let copies = rescued
            .tree
            .values()
            .filter(|(entry, content)| matches!(entry.kind, Kind::File { .. }) && content.len() == 9 << 20);
        (copies.count() as u64, rescued.found.iter().filter(|found| found.size == 9 << 20).count())
    };
    assert_eq!(names(&rescued(device.clone(), &Options::default())), (1, 61), "one, and hard links to it");
    let at = u64::from(large.0) * BLOCK + offset_of!(InodeHead, links) as u64;
    device.write(at, &1_u32.to_le_bytes()).expect("in memory");
    let result = rescued(device.clone(), &Options::default());
    let (copies, found) = names(&result);
    let most = device.geometry().size_bytes / (9 << 20);
    assert!((1..=most).contains(&copies) && found == 61, "{copies} copies, {found} names");
    let told = result.losses.iter().filter(|loss| loss.contains("more names than it counts")).count();
    assert_eq!(told as u64, 61 - copies);
}

/// Blocks of all inodes of the volume except those of some paths.
fn inode_blocks_but(device: &Arc<MemoryDevice>, kept: &[&str]) -> Vec<u64> {
    let volume = Engine::open(device.clone(), VolumeOptions::read_only()).expect("a sound volume");
    let kept = kept.iter().map(|path| u64::from(blocks_of(&volume, path)[0].0));
    let kept: BTreeSet<u64> = kept.collect();
    let expected = tree_of(device.clone());
    let all = expected.keys().map(|path| u64::from(blocks_of(&volume, &format!("/{path}"))[0].0));
    all.collect::<BTreeSet<_>>().difference(&kept).copied().collect()
}

#[test]
fn inodes_that_are_lost_with_their_directories_are_losses() {
    for nat in [Nat::Whole, Nat::Lost] {
        let device = sound(0);
        let lost = inode_blocks_but(&device, &["/", "/small", "/empty"]);
        for block in &lost {
            overwrite(&device, block * BLOCK..(block + 1) * BLOCK, 0);
        }
        if nat == Nat::Lost {
            overwrite(&device, areas(&device).nat, 0);
        }
        let result = rescued(device, &Options::default());
        assert_eq!(result.rescue.facts().inodes_without_version, lost.len() as u64, "{nat:?}");
        match nat {
            Nat::Whole => assert_eq!(result.losses.len(), lost.len(), "{:?}", &result.losses[..4]),
            Nat::Lost => assert!(result.losses.iter().any(|loss| loss.contains("the checkpoint counts"))),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nat {
    Whole,
    Lost,
}

#[test]
fn two_volumes_on_one_device_are_not_mixed() {
    const LOST: u64 = 8 << 20;
    let (first, second) = (sound(1), sound(0));
    let volume = open(second.clone());
    for n in 0..300 {
        volume
            .write(format!("/dir-3/file-{}", 14 * n + 3), content(9000 + n, 50_000))
            .expect("there is space");
    }
    volume.close().expect("in memory");
    let (bytes, start) = (first.geometry().size_bytes, 1 << 20);
    let disk = Arc::new(MemoryDevice::new(start + 2 * bytes));
    let mut page = vec![0; BLOCK as usize];
    for (volume, at) in [(&first, start), (&second, start + bytes)] {
        for offset in volume.allocated_pages() {
            volume.read(offset, &mut page).expect("in memory");
            disk.write(offset + at, &page).expect("in memory");
        }
    }
    overwrite(&disk, start..start + LOST, 0);
    let expected = tree_of(first.clone());
    let result = rescued(disk.clone(), &Options::default());
    let facts = result.rescue.facts();
    let starts = [start as i64, (start + bytes) as i64];
    assert!(starts.contains(&facts.start), "{}", facts.start);
    assert_eq!(facts.other_starts, starts.into_iter().filter(|at| *at != facts.start).collect::<Vec<_>>());
    let result = rescued(disk, &Options { offset_bytes: Some(start), ..Options::default() });
    assert_eq!(result.rescue.facts().other_starts, [starts[1]]);
    let (safe, found) = untouched(1, &expected, &result, |at| at < LOST);
    assert!(safe > 100 && found == safe, "{found} of {safe}");
    assert!(result.tree.len() <= expected.len() + 5, "{} of {}", result.tree.len(), expected.len());
}
