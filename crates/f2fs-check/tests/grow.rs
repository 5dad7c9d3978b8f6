//! Growing of an open volume: all files are as before, and the volume can be used on.

mod support;

use std::sync::Arc;

use block::{Device, Fault, Faulty, MemoryDevice, Overlay, Recording, Survivors, Verb, power_cut, replay};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options},
    resize::grow,
};
use model::{Setup, manifest::manifest_of, setup::copy};
use support::{
    aging::{FILE, MIB, ROOT, age, assert_good, entries, options},
    errors, lines, report,
};

/// An aged volume of 96 MiB on a device of 144 MiB.
fn volume(name: &str) -> (Setup, Arc<MemoryDevice>) {
    let setup = Setup { bytes: 96 * MIB, ..Setup::named(name).unwrap() };
    let small = setup.make().unwrap();
    let device = Arc::new(MemoryDevice::new(144 * MIB));
    let mut page = vec![0; 4096];
    for offset in small.allocated_pages() {
        small.read(offset, &mut page).unwrap();
        device.write(offset, &page).unwrap();
    }
    age(device.clone(), options(&setup), 40, 3);
    (setup, device)
}

fn write(volume: &mut Engine, name: &[u8]) {
    let ino = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[7; 50_000]).unwrap();
}

#[test]
fn an_open_volume_grows_and_is_used_on() {
    for name in ["base", "features", "quota"] {
        let (setup, device) = volume(name);
        let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
        write(&mut volume, b"before");
        let held = volume.lookup(ROOT, b"before").unwrap();
        volume.hold(held);
        let (files, free) = (manifest_of(&volume).entries, volume.free_user_blocks());
        let plan = grow(&mut volume, 144 * MIB).unwrap().unwrap();
        assert_eq!((plan.old_bytes, plan.new_bytes), (96 * MIB, 144 * MIB), "{name}");
        assert!(volume.free_user_blocks() > free + 8000, "{name}: {free}, {}", volume.free_user_blocks());
        assert!(manifest_of(&volume).entries == files, "{name}: the files differ");
        assert!(grow(&mut volume, 144 * MIB).unwrap().is_none(), "{name}: it has the size");
        // A held inode outlives its name.
        volume.begin(Caller::ADMIN).unlink(ROOT, b"before").unwrap();
        assert!(volume.orphans().contains(&held), "{name}");
        volume.begin(Caller::ADMIN).release(held).unwrap();
        write(&mut volume, b"after");
        volume.unmount().unwrap();
        drop(volume);
        age(device.clone(), options(&setup), 90, 5);
        assert_good(&device, &entries(&device), name);
    }
}

#[test]
fn a_removed_file_that_is_held_can_be_used_until_it_is_released() {
    let (setup, device) = volume("base");
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    write(&mut volume, b"gone");
    let held = volume.lookup(ROOT, b"gone").unwrap();
    volume.hold(held);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"gone").unwrap();
    grow(&mut volume, 144 * MIB).unwrap().unwrap();
    let mut content = vec![0; 50_000];
    assert_eq!(volume.read(held, 0, &mut content).unwrap(), 50_000);
    assert_eq!(content, [7; 50_000]);
    volume.begin(Caller::ADMIN).write(held, 50_000, &[8; 50_000]).unwrap();
    volume.checkpoint().unwrap();
    let free = volume.free_user_blocks();
    volume.begin(Caller::ADMIN).release(held).unwrap();
    assert!(volume.orphans().is_empty() && volume.free_user_blocks() >= free + 24);
    volume.unmount().unwrap();
    drop(volume);
    assert_good(&device, &entries(&device), "held");
}

#[test]
fn what_a_mounted_volume_cannot_do_is_refused_without_a_change() {
    let (setup, device) = volume("base");
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    for (bytes, part) in
        [(80 * MIB, "cannot shrink"), (200 * MIB, "the device has"), (3 << 30, "metadata areas must move")]
    {
        let why = grow(&mut volume, bytes).unwrap_err().to_string();
        assert!(why.contains(part), "{bytes}: {why}");
    }
    write(&mut volume, b"after");
    volume.unmount().unwrap();
    assert_eq!(
        volume.geometry().segments,
        Engine::open(device.clone(), Options::read_only()).unwrap().geometry().segments
    );
    drop(volume);
    assert_good(&device, &entries(&device), "refused");
}

/// Findings that a cut may leave until the next change of the volume, as with a resize of a closed volume.
const AFTER_CUT: [&str; 5] =
    ["count-free", "pack-invalid", "superblock-magic", "superblock-checksum", "superblocks-differ"];

/// Examines a volume after a cut: it has one of two sizes and all files, and becomes clean when it is used.
fn examine(device: Arc<dyn Device>, setup: &Setup, files: &[guest::Entry], sizes: [u32; 2], what: &str) {
    let found = report(device.clone());
    let unexpected: Vec<&str> = errors(&found).into_iter().filter(|kind| !AFTER_CUT.contains(kind)).collect();
    assert!(unexpected.is_empty(), "{what}: {unexpected:?} {}", lines(&found));
    let mut volume = Engine::open(device.clone(), options(setup)).unwrap();
    assert!(sizes.contains(&volume.geometry().segments), "{what}: {}", volume.geometry().segments);
    assert!(manifest_of(&volume).entries == files, "{what}: the files differ");
    write(&mut volume, b"next");
    volume.unmount().unwrap();
    volume.begin(Caller::ADMIN).unlink(ROOT, b"next").unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let found = report(device);
    assert!(found.is_clean(), "{what}, after its next use: {}", lines(&found));
}

#[test]
fn a_power_cut_or_a_failed_write_while_an_open_volume_grows_leaves_the_old_or_the_new_size() {
    let (setup, start) = volume("features");
    let files = entries(&start);
    let recording = Arc::new(Recording::with_data(Overlay::new(start.clone())));
    let mut volume = Engine::open(recording.clone(), options(&setup)).unwrap();
    let old = volume.geometry().segments;
    grow(&mut volume, 144 * MIB).unwrap();
    let sizes = [old, volume.geometry().segments];
    drop(volume);
    let trace = recording.trace();
    let mut cuts = 0;
    for (at, _) in trace.iter().enumerate().filter(|(_, request)| request.verb == Verb::Write) {
        let flushed =
            trace[..=at].iter().rposition(|request| request.verb == Verb::Flush).map_or(0, |last| last + 1);
        for survivors in [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }] {
            let device = Arc::new(copy(&start).unwrap());
            replay(&trace[..flushed], &*device).unwrap();
            let pending = &trace[flushed..=at];
            power_cut(pending, pending.len(), &survivors, &*device).unwrap();
            examine(device, &setup, &files, sizes, &format!("cut {at} of {}, {survivors:?}", trace.len()));
            cuts += 1;
        }
    }
    for verb in [Verb::Write, Verb::Flush] {
        let count = trace.iter().filter(|request| request.verb == verb).count() as u64;
        for nth in 0..count {
            let overlay = Arc::new(Overlay::new(start.clone()));
            let faulty = Arc::new(Faulty::new(overlay.clone(), vec![Fault::ErrorAt { verb, nth }]));
            let mut volume = Engine::open(faulty, options(&setup)).unwrap();
            let outcome = grow(&mut volume, 144 * MIB).map(|plan| plan.map(|plan| plan.new_bytes));
            drop(volume);
            examine(overlay, &setup, &files, sizes, &format!("{verb:?} {nth} failed, {outcome:?}"));
            cuts += 1;
        }
    }
    println!("{cuts} cuts and failures");
    assert!(cuts > 20);
}
