//! Resizing: all files are as before, and the volume is clean for our checker and for fsck.f2fs.

mod support;

use std::sync::Arc;

use block::{
    Device, Fault, Faulty, MemoryDevice, Overlay, Recording, Request, Survivors, Verb, power_cut, replay,
};
use f2fs::{
    Error, Result,
    engine::{Caller, Engine, NewNode, Options},
    format::inode::inline,
    resize::{Method, Plan, resize, smallest_bytes},
    units::BlockAddr,
};
use guest::Entry;
use model::{
    Setup, fsck,
    manifest::manifest_of,
    setup::{Maker, copy},
};
use support::{
    aging::{FILE, MIB, ROOT, age, assert_good, entries, options},
    lines, report,
};

/// The same content on a device of another size.
fn with_size(device: &MemoryDevice, bytes: u64) -> Arc<MemoryDevice> {
    let other = MemoryDevice::new(bytes);
    let mut page = vec![0; 4096];
    for offset in device.allocated_pages().into_iter().filter(|offset| *offset < bytes) {
        device.read(offset, &mut page).unwrap();
        other.write(offset, &page).unwrap();
    }
    Arc::new(other)
}

fn resize_to(device: &Arc<dyn Device>, setup: &Setup, bytes: u64) -> Result<Plan> {
    resize(&mut || Engine::open(device.clone(), options(setup)), bytes, &mut |_| {})
}

fn smallest(device: &Arc<MemoryDevice>) -> u64 {
    smallest_bytes(&mut Engine::open(device.clone(), Options::read_only()).unwrap()).unwrap()
}

/// Shrinks a volume to the least size, and grows it to one and a half times its first size.
fn shrink_and_grow(setup: &Setup, percent: u64) {
    let what = format!("{}, {percent} % full", setup.name);
    let device = Arc::new(setup.make().unwrap());
    age(device.clone(), options(setup), percent, percent);
    let files = entries(&device);
    assert_good(&device, &files, &format!("{what}, before"));
    let first_bytes = device.geometry().size_bytes;

    let least = smallest(&device);
    let refused = resize_to(&(device.clone() as Arc<dyn Device>), setup, least - 2 * MIB);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{what}: {refused:?}");
    let plan = resize_to(&(device.clone() as Arc<dyn Device>), setup, least).unwrap();
    assert_eq!(plan.new_bytes, least, "{what}");
    let small = with_size(&device, least);
    assert_good(&small, &files, &format!("{what}, shrunk from {first_bytes} to {least}"));

    for bytes in [first_bytes, first_bytes * 3 / 2] {
        let large = with_size(&small, bytes);
        resize_to(&(large.clone() as Arc<dyn Device>), setup, bytes).unwrap();
        assert_good(&large, &files, &format!("{what}, grown from {least} to {bytes}"));
        // The new space can be used.
        let before = Engine::open(large.clone(), Options::read_only()).unwrap().free_user_blocks();
        let after = Engine::open(small.clone(), Options::read_only()).unwrap().free_user_blocks();
        assert!(before > after, "{what}: {before} free blocks, {after} before");
        age(large.clone(), options(setup), 97, 5);
        fsck::fsck(&large).unwrap_or_else(|error| panic!("{what}, filled again: {error:#}"));
    }
}

#[test]
fn volumes_of_every_kind_keep_their_files_when_they_shrink_and_grow() {
    let setups = Setup::all().into_iter();
    for (setup, percent) in setups.zip([50, 70, 80, 90, 97].into_iter().cycle()) {
        shrink_and_grow(&setup, percent);
    }
}

#[test]
fn metadata_areas_that_must_grow_are_moved() {
    let setup = Setup { bytes: 1000 * MIB, ..Setup::named("base").unwrap() };
    let device = Arc::new(setup.make().unwrap());
    age(device.clone(), options(&setup), 4, 1);
    let files = entries(&device);
    let large = with_size(&device, 1500 * MIB);
    let plan = resize_to(&(large.clone() as Arc<dyn Device>), &setup, 1500 * MIB).unwrap();
    assert_eq!(plan.method, Method::Relocate);
    assert_good(&large, &files, "grown to 1500 MiB");
    // The smallest volume with these files has no room to move its metadata: it grows in place first.
    let least = smallest(&device);
    resize_to(&(device.clone() as Arc<dyn Device>), &setup, least).unwrap();
    let from_least = with_size(&device, 1500 * MIB);
    let plan = resize_to(&(from_least.clone() as Arc<dyn Device>), &setup, 1500 * MIB).unwrap();
    assert_eq!((plan.method, plan.old_bytes), (Method::Relocate, least));
    assert_good(&from_least, &files, "grown from the least size");
    let again = Plan::new(&mut Engine::open(large.clone(), Options::read_only()).unwrap(), 1500 * MIB);
    assert_eq!(again.unwrap().method, Method::Nothing);
}

/// A resize whose requests are known.
struct Trial {
    setup: Setup,
    start: Arc<MemoryDevice>,
    trace: Vec<Request>,
    files: Vec<Entry>,
    /// Segments of the main area that a volume may have after a cut.
    sizes: Vec<u32>,
}

fn main_segments(device: Arc<dyn Device>) -> u32 {
    Engine::open(device, Options::read_only()).unwrap().geometry().segments
}

impl Trial {
    /// Records a resize of `device` to `bytes`.
    fn record(setup: Setup, device: &MemoryDevice, bytes: u64) -> Trial {
        let start = with_size(device, bytes.max(device.geometry().size_bytes));
        let recording = Arc::new(Recording::with_data(Overlay::new(start.clone())));
        let plan = resize_to(&(recording.clone() as Arc<dyn Device>), &setup, bytes).unwrap();
        let trace: Vec<Request> = recording.trace();
        let mut sizes = vec![main_segments(start.clone()), main_segments(recording.clone())];
        if plan.method == Method::Relocate {
            let volume = Engine::open(recording, Options::read_only()).unwrap();
            let sb = volume.superblock();
            let metadata = (sb.main.start.0 - sb.checkpoint.start.0) / 512;
            sizes.push(sb.main.segments - metadata);
            // Before that it grows in place, as far as its summary area suffices.
            let summaries =
                Engine::open(start.clone(), Options::read_only()).unwrap().superblock().ssa.segments;
            sizes.push(512 * summaries);
        }
        let files = entries(&start);
        Trial { setup, start, trace, files, sizes }
    }

    /// Examines the volume after a cut: it has one of the sizes and all files, and becomes clean when it is used.
    fn examine(&self, device: Arc<Overlay<Arc<MemoryDevice>>>, what: &str) {
        let found = f2fs_check::check_as_opened(device.clone(), &mut |_| {}).unwrap();
        assert!(found.is_clean_for_resize(), "{what}: {}", lines(&found));
        let mut volume = Engine::open(device.clone(), options(&self.setup)).unwrap();
        assert!(self.sizes.contains(&volume.geometry().segments), "{what}: {}", volume.geometry().segments);
        assert!(manifest_of(&volume).entries == self.files, "{what}: the files differ");
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"after the cut", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, b"content").unwrap();
        volume.unmount().unwrap();
        volume.begin(Caller::ADMIN).unlink(ROOT, b"after the cut").unwrap();
        volume.unmount().unwrap();
        drop(volume);
        let found = report(device);
        assert!(found.is_clean(), "{what}, after its next use: {}", lines(&found));
    }

    /// Cuts the power after each request, with nothing, everything, or torn parts of the unflushed writes. Returns the
    /// number of cuts.
    fn cut_everywhere(&self) -> u64 {
        let flushed = Arc::new(copy(&self.start).unwrap());
        let (mut last_flush, mut cuts) = (0, 0);
        for at in 0..=self.trace.len() {
            let so_far = &self.trace[last_flush..at];
            if so_far.last().is_some_and(|request| request.verb == Verb::Flush) {
                replay(so_far, &*flushed).unwrap();
                last_flush = at;
            }
            let pending = &self.trace[last_flush..at];
            if !pending.is_empty() && pending.last().is_some_and(|request| request.verb != Verb::Write) {
                continue;
            }
            for survivors in
                [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }].into_iter().skip(
                    // Without a pending write there is one state; with many, "nothing" is the state of an earlier cut.
                    usize::from(pending.len() > 1),
                )
            {
                let device = Arc::new(Overlay::new(flushed.clone()));
                power_cut(pending, pending.len(), &survivors, &*device).unwrap();
                let what = format!("{}: cut {at} of {}, {survivors:?}", self.setup.name, self.trace.len());
                self.examine(device, &what);
                cuts += 1;
            }
        }
        cuts
    }

    /// Lets each write and each flush fail, one in each run. Returns the number of runs.
    fn fail_everywhere(&self, bytes: u64) -> u64 {
        let mut runs = 0;
        for verb in [Verb::Write, Verb::Flush] {
            let count = self.trace.iter().filter(|request| request.verb == verb).count() as u64;
            for nth in 0..count {
                let overlay = Arc::new(Overlay::new(self.start.clone()));
                let faulty = Faulty::new(overlay.clone(), vec![Fault::ErrorAt { verb, nth }]);
                let device: Arc<dyn Device> = Arc::new(faulty);
                let outcome = resize_to(&device, &self.setup, bytes);
                self.examine(overlay, &format!("{}: {verb:?} {nth} failed, {outcome:?}", self.setup.name));
                runs += 1;
            }
        }
        runs
    }
}

/// A small aged volume.
fn small_volume(name: &str, mib: u64, percent: u64) -> (Setup, Arc<MemoryDevice>) {
    let setup = Setup { bytes: mib * MIB, ..Setup::named(name).unwrap() };
    let device = Arc::new(setup.make().unwrap());
    age(device.clone(), options(&setup), percent, 3);
    (setup, device)
}

#[test]
fn a_power_cut_or_a_failed_write_while_a_volume_shrinks_leaves_a_whole_volume() {
    for (name, mib) in [("base", 96), ("lost+found", 96), ("quota", 96)] {
        let (setup, device) = small_volume(name, mib, 40);
        let least = smallest(&device);
        let trial = Trial::record(setup, &device, least);
        println!("{name}: shrunk to {least}, {} cuts", trial.cut_everywhere());
        println!("{name}: {} failures", trial.fail_everywhere(least));
    }
}

#[test]
fn a_power_cut_or_a_failed_write_while_a_volume_grows_leaves_a_whole_volume() {
    for (name, mib) in [("features", 56), ("sections", 120)] {
        let (setup, device) = small_volume(name, mib, 20);
        let bytes = mib * MIB * 3 / 2;
        let trial = Trial::record(setup, &device, bytes);
        println!("{name}: grown to {bytes}, {} cuts", trial.cut_everywhere());
        println!("{name}: {} failures", trial.fail_everywhere(bytes));
    }
}

#[test]
fn a_power_cut_or_a_failed_write_while_metadata_moves_leaves_a_whole_volume() {
    let (setup, device) = small_volume("base", 1000, 1);
    let bytes = 1500 * MIB;
    let trial = Trial::record(setup, &device, bytes);
    assert_eq!(trial.sizes.len(), 4, "the metadata moves twice");
    println!("moved: {} cuts", trial.cut_everywhere());
    println!("moved: {} failures", trial.fail_everywhere(bytes));
}

#[test]
fn a_resize_that_was_cut_between_its_two_switches_is_finished_by_the_next_one() {
    let (setup, device) = small_volume("base", 1000, 1);
    let bytes = 1500 * MIB;
    let trial = Trial::record(setup, &device, bytes);
    let between = trial.sizes[2];
    let found = (0..=trial.trace.len()).rev().find_map(|at| {
        let device = Arc::new(copy(&trial.start).unwrap());
        replay(&trial.trace[..at], &*device).unwrap();
        (main_segments(device.clone()) == between).then_some(device)
    });
    let device = found.expect("there is a state between the switches");
    fsck::fsck_after_cut(&device).unwrap();
    resize_to(&(device.clone() as Arc<dyn Device>), &trial.setup, bytes).unwrap();
    assert_eq!(main_segments(device.clone()), trial.sizes[1]);
    assert_good(&device, &trial.files, "finished");
}

/// Marks a file as pinned, as `F2FS_IOC_SET_PIN_FILE` does.
fn pin(device: &MemoryDevice, addr: BlockAddr) {
    let at = u64::from(addr.0) * 4096 + 3;
    let mut flags = [0];
    device.read(at, &mut flags).unwrap();
    device.write(at, &[flags[0] | inline::PIN]).unwrap();
}

#[test]
fn a_growth_that_is_refused_after_its_first_step_leaves_the_old_size() {
    let setup = Setup { bytes: 1000 * MIB, ..Setup::named("base").unwrap() };
    let device = Arc::new(setup.make().unwrap());
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    // The extension of a hot file: its blocks lie near the start of the main area.
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"pinned.db", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 64 << 10]).unwrap();
    volume.unmount().unwrap();
    let addr = volume.nat_entry(ino.into()).unwrap().addr;
    drop(volume);
    pin(&device, addr);
    // There is room to move the metadata areas only after a growth in place. The pinned file is in the way.
    let small = resize_to(&(device.clone() as Arc<dyn Device>), &setup, 600 * MIB);
    small.unwrap();
    let files = entries(&device);
    let (before, blocks) = (main_segments(device.clone()), blocks(&device));
    let large = with_size(&device, 1500 * MIB);
    let refused = resize_to(&(large.clone() as Arc<dyn Device>), &setup, 1500 * MIB);
    let refused = refused.map(|plan| plan.new_bytes);
    assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("pinned")), "{refused:?}");
    assert_eq!((main_segments(large.clone()), self::blocks(&large)), (before, blocks));
    assert_good(&large, &files, "refused");
}

/// Blocks of a volume, as its superblock has them.
fn blocks(device: &Arc<MemoryDevice>) -> u64 {
    Engine::open(device.clone(), Options::read_only()).unwrap().superblock().blocks
}

#[test]
fn a_size_beyond_the_end_of_the_device_is_refused_even_by_less_than_a_segment() {
    let setup = Setup::named("base").unwrap();
    let device = Arc::new(setup.make().unwrap());
    let whole = with_size(&device, 120 * MIB);
    let refused = resize_to(&(whole.clone() as Arc<dyn Device>), &setup, 120 * MIB + 4096);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    resize_to(&(whole.clone() as Arc<dyn Device>), &setup, 120 * MIB).unwrap();
    assert_eq!(blocks(&whole) * 4096, 120 * MIB);
}

/// A volume on a first device of `first_mib` MiB, and a second one.
fn on_two_devices(first_mib: u64, second_mib: u64) -> (Setup, Arc<MemoryDevice>) {
    let devices = Vec::leak(vec![("first", first_mib), ("second", second_mib)]);
    let setup = Setup {
        bytes: (first_mib + second_mib) * MIB,
        maker: Maker::OwnOn(devices),
        ..Setup::named("two devices").unwrap()
    };
    let device = Arc::new(setup.make().unwrap());
    (setup, device)
}

#[test]
fn a_first_device_without_room_for_the_old_and_the_new_metadata_is_a_reason_to_refuse() {
    let (setup, device) = on_two_devices(40, 900);
    let before = main_segments(device.clone());
    let large = with_size(&device, 1500 * MIB);
    let refused = resize_to(&(large.clone() as Arc<dyn Device>), &setup, 1500 * MIB);
    let refused = refused.map(|plan| plan.new_bytes);
    assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("first device")), "{refused:?}");
    assert_eq!(main_segments(large), before);
}

#[test]
fn metadata_areas_grow_on_the_first_of_several_devices() {
    let (setup, device) = on_two_devices(200, 740);
    age(device.clone(), options(&setup), 4, 1);
    let files = entries(&device);
    let large = with_size(&device, 1500 * MIB);
    let plan = resize_to(&(large.clone() as Arc<dyn Device>), &setup, 1500 * MIB).unwrap();
    assert_eq!(plan.method, Method::Relocate);
    assert_good(&large, &files, "grown on two devices");
}

#[test]
fn the_last_device_of_several_is_not_removed() {
    let (setup, device) = on_two_devices(64, 64);
    let least = smallest(&device);
    assert!(least > 64 * MIB && least < 128 * MIB, "{least}");
    let refused = resize_to(&(device.clone() as Arc<dyn Device>), &setup, least - 2 * MIB);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    resize_to(&(device.clone() as Arc<dyn Device>), &setup, least).unwrap();
    assert_good(&device, &entries(&device), "shrunk on two devices");
}

/// The superblock of a volume on a longer device remains in the first copy, as after a growth whose file was cut.
#[test]
fn a_superblock_that_does_not_fit_the_device_is_replaced_by_the_other_copy() {
    let setup = Setup::named("base").unwrap();
    let device = Arc::new(setup.make().unwrap());
    let large = with_size(&device, 144 * MIB);
    resize_to(&(large.clone() as Arc<dyn Device>), &setup, 144 * MIB).unwrap();
    let mut superblock = [0; 3072];
    large.read(1024, &mut superblock).unwrap();
    device.write(1024, &superblock).unwrap();
    let segments = main_segments(device.clone());
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    assert_eq!(main_segments(device.clone()), segments);
    assert_good(&device, &entries(&device), "with the first superblock of another size");
}
