//! Defragmentation: the order of the blocks changes and nothing else.

mod support;

#[path = "support/volume.rs"]
mod volume;

use std::sync::Arc;

use block::{MemoryDevice, Overlay, Recording, Survivors, Verb, power_cut, replay};
use f2fs::{
    Error,
    engine::{Caller, Engine, Fragmentation, NewNode, Options, SyncScope},
    units::Ino,
};
use model::{Setup, fsck, manifest::manifest_of, setup::copy};
use support::{
    aging::{FILE, ROOT, age, assert_good, entries, options},
    errors, lines, report,
};
use volume::Damaged;

const BLOCK: u64 = 4096;

/// Writes two files in turns, block by block, so that their blocks alternate in the log.
fn interleaved(volume: &mut Engine, blocks: u64) -> [Ino; 2] {
    let files = [b"one", b"two"]
        .map(|name| volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap());
    for block in 0..blocks {
        for ino in files {
            let content = [(block + u64::from(ino.0)) as u8; BLOCK as usize];
            volume.begin(Caller::ADMIN).write(ino, block * BLOCK, &content).unwrap();
        }
    }
    files
}

fn aged(name: &str, percent: u64) -> (Setup, Arc<MemoryDevice>, [Ino; 2]) {
    let setup = Setup::named(name).unwrap();
    let device = Arc::new(setup.make().unwrap());
    age(device.clone(), options(&setup), percent, 3);
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    let files = interleaved(&mut volume, 700);
    volume.unmount().unwrap();
    drop(volume);
    (setup, device, files)
}

fn fragmentation(device: &Arc<MemoryDevice>, ino: Ino) -> Fragmentation {
    Engine::open(device.clone(), Options::read_only()).unwrap().fragmentation(ino).unwrap()
}

#[test]
fn fragmented_files_get_the_order_that_they_need_and_keep_their_content() {
    for name in ["base", "features", "sections", "compressed"] {
        let (setup, device, files) = aged(name, 20);
        let before = entries(&device);
        let found = fragmentation(&device, files[0]);
        assert!(found.blocks == 700 && found.extents >= 600 && found.is_fragmented(), "{name}: {found:?}");
        let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
        for ino in files {
            assert_eq!(volume.begin(Caller::ADMIN).defragment(ino, 0..u64::MAX).unwrap(), 700);
        }
        volume.unmount().unwrap();
        drop(volume);
        for ino in files {
            let now = fragmentation(&device, ino);
            assert!(now.blocks == 700 && now.extents <= 4, "{name}: {now:?}");
        }
        assert_good(&device, &before, name);
    }
}

#[test]
fn a_file_in_order_needs_no_other_move_wherever_it_begins() {
    let setup = Setup { bytes: 256 << 20, ..Setup::named("base").unwrap() };
    let device = Arc::new(setup.make().unwrap());
    let mut volume = Engine::open(device, options(&setup)).unwrap();
    let create = |volume: &mut Engine, name: String| {
        volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap()
    };
    // Every second segment is in use, so that the log goes on at another place after each.
    for n in 0..80 {
        let ino = create(&mut volume, format!("segment {n}"));
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![n; 512 * BLOCK as usize]).unwrap();
    }
    for n in (0..80).step_by(2) {
        volume.begin(Caller::ADMIN).unlink(ROOT, format!("segment {n}").as_bytes()).unwrap();
    }
    volume.checkpoint().unwrap();
    let other = create(&mut volume, "other".into());
    let (mut begins_inside, mut written) = (0, 0);
    // The log of moved blocks advances by the size of the last file.
    for (n, blocks) in [512, 3, 513, 511, 512, 700].into_iter().enumerate() {
        let ino = create(&mut volume, n.to_string());
        for block in 0..blocks {
            volume.begin(Caller::ADMIN).write(ino, block * BLOCK, &[n as u8; BLOCK as usize]).unwrap();
            volume.begin(Caller::ADMIN).write(other, written * BLOCK, &[7; BLOCK as usize]).unwrap();
            written += 1;
        }
        assert!(volume.fragmentation(ino).unwrap().is_fragmented(), "{blocks}");
        volume.begin(Caller::ADMIN).defragment(ino, 0..u64::MAX).unwrap();
        let now = volume.fragmentation(ino).unwrap();
        assert!(!now.is_fragmented() && now.extents <= 3, "{blocks}: {now:?}");
        begins_inside += u32::from(now.ideal_extents > blocks.div_ceil(512));
    }
    assert!(begins_inside > 0, "no file began in the middle of a section");
    let found = volume.fragmentation(other).unwrap();
    assert!(found.is_fragmented() && found.ideal_extents < 12, "{found:?}");
}

#[test]
fn changes_that_wait_in_memory_are_put_in_order_with_the_rest() {
    let (setup, device, files) = aged("base", 20);
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    for block in [0, 7, 100, 699, 700, 701] {
        volume.begin(Caller::ADMIN).write(files[0], block * BLOCK + 5, &[9; 100]).unwrap();
    }
    assert_eq!(volume.begin(Caller::ADMIN).defragment(files[0], 0..u64::MAX).unwrap(), 702);
    volume.unmount().unwrap();
    let now = volume.fragmentation(files[0]).unwrap();
    assert!(now.blocks == 702 && !now.is_fragmented(), "{now:?}");
}

#[test]
fn an_area_is_emptied_into_the_side_of_the_device_that_is_asked_for() {
    for name in ["base", "sections"] {
        let (setup, device, _) = aged(name, 20);
        let before = entries(&device);
        let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
        let segments = volume.geometry().segments;
        let per_section = volume.geometry().segments_per_section;
        let half = segments / 2 / per_section * per_section;
        let mut halves = [0..half, half..segments];
        let used = halves.clone().map(|half| volume.valid_blocks_in(half).unwrap());
        if used[0] < used[1] {
            halves.reverse();
        }
        let ([from, to], most) = (halves, used[0].max(used[1]));
        assert!(most > 1000, "{name}: {used:?}");
        // To one side, and back.
        // Blocks that are written anew or cleaned on the way leave without a move.
        let moved = volume.move_area(from.clone(), to.clone(), &mut |_| {}).unwrap();
        assert!(moved > most / 2 && moved <= most, "{name}: {moved} of {most}");
        assert_eq!(volume.valid_blocks_in(from.clone()).unwrap(), 0, "{name}");
        volume.unmount().unwrap();
        drop(volume);
        assert_good(&device, &before, name);
        let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
        assert!(volume.move_area(to.clone(), from.clone(), &mut |_| {}).unwrap() > most / 2, "{name}");
        assert_eq!(volume.valid_blocks_in(to.clone()).unwrap(), 0, "{name}");
        volume.unmount().unwrap();
        drop(volume);
        assert_good(&device, &before, name);
        // A place without free segments.
        let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
        let refused = volume.move_area(from, to.start..to.start + per_section, &mut |_| {});
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "{name}: {refused:?}");
        drop(volume);
        assert_good(&device, &before, name);
    }
}

#[test]
fn a_part_of_a_file_is_put_in_order_by_itself() {
    let (setup, device, files) = aged("base", 20);
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    assert_eq!(volume.begin(Caller::ADMIN).defragment(files[0], 100..200).unwrap(), 100);
    volume.unmount().unwrap();
    let before = fragmentation(&device, files[1]);
    let now = fragmentation(&device, files[0]);
    assert!(now.extents + 95 <= before.extents && now.extents >= 550, "{now:?}, {before:?}");
}

#[test]
fn an_address_outside_the_main_area_is_an_error() {
    let d = Damaged::new();
    let (plain, addrs) = (d.ino("/plain"), 396);
    d.put_inode(plain, addrs + 4, &5u32.to_le_bytes());
    let mut volume = Engine::open(d.device.clone(), Options::new(|| volume::NOW)).unwrap();
    let result = volume.begin(Caller::ADMIN).defragment(plain, 0..u64::MAX);
    assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    assert!(volume.fragmentation(plain).is_ok());
}

#[test]
fn a_volume_without_free_sections_is_left_as_it_is() {
    let (setup, device, files) = aged("full", 10);
    age(device.clone(), options(&setup), 97, 8);
    let before = entries(&device);
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    match volume.begin(Caller::ADMIN).defragment(files[0], 0..u64::MAX) {
        Ok(_) | Err(Error::NoSpace { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    volume.unmount().unwrap();
    drop(volume);
    assert_good(&device, &before, "full");
}

/// Findings that a cut may leave: a checkpoint pack that is not finished.
const AFTER_CUT: [&str; 1] = ["pack-invalid"];

#[test]
fn a_power_cut_while_files_move_leaves_them_whole_with_what_fsync_promised() {
    let (setup, start, files) = aged("base", 20);
    let recording = Arc::new(Recording::with_data(Overlay::new(start.clone())));
    let mut volume = Engine::open(recording.clone(), options(&setup)).unwrap();
    // The first fsync of a mount is a checkpoint, the second one is not.
    for block in [5, 6] {
        volume.begin(Caller::ADMIN).write(files[0], block * BLOCK, &[0xF5; 100]).unwrap();
        volume.fsync(files[0], SyncScope::Everything).unwrap();
    }
    let (promised, before) = (recording.trace().len(), manifest_of(&volume).entries);
    volume.begin(Caller::ADMIN).defragment(files[0], 0..u64::MAX).unwrap();
    volume.begin(Caller::ADMIN).defragment(files[1], 0..u64::MAX).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let trace = recording.trace();
    let writes = trace.iter().enumerate().skip(promised).filter(|(_, request)| request.verb == Verb::Write);
    let mut cuts = 0;
    for (at, _) in writes {
        let flushed =
            trace[..=at].iter().rposition(|request| request.verb == Verb::Flush).map_or(0, |last| last + 1);
        for survivors in [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }] {
            let device = Arc::new(copy(&start).unwrap());
            replay(&trace[..flushed], &*device).unwrap();
            let pending = &trace[flushed..=at];
            power_cut(pending, pending.len(), &survivors, &*device).unwrap();
            let what = format!("cut {at} of {}, {survivors:?}", trace.len());
            let found = report(device.clone());
            let unexpected: Vec<&str> =
                errors(&found).into_iter().filter(|kind| !AFTER_CUT.contains(kind)).collect();
            assert!(unexpected.is_empty(), "{what}: {}", lines(&found));
            let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
            assert!(manifest_of(&volume).entries == before, "{what}: the files differ");
            drop(volume);
            fsck::fsck_after_cut(&device).unwrap();
            cuts += 1;
        }
    }
    println!("{cuts} cuts");
    assert!(cuts > 10);
}
