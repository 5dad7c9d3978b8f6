//! Every golden image is read in the same way as by the kernel that made it.

use f2fs::{
    engine::{Caller, Engine, NewNode, Options},
    format::{BlockSize, checkpoint::Flags},
    units::Time,
};
use guest::{Scope, differences};
use model::manifest;

mod support;

#[path = "support/golden.rs"]
mod golden;

#[test]
fn clean_volumes_read_as_the_kernel_reads_them() {
    let mut failures = Vec::new();
    for name in golden::names() {
        if !golden::is_clean(&name) {
            continue;
        }
        let volume = Engine::open(golden::device(&name), Options::read_only());
        let volume = volume.unwrap_or_else(|error| panic!("{name}: {error}"));
        let ours = manifest::manifest_of(&volume);
        let found = differences(&golden::manifest(&name), &ours, Scope::Volume, 10);
        if !found.is_empty() {
            failures.push(format!("{name} (kernel != ours):\n  {}", found.join("\n  ")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn unclean_volumes_read_as_the_kernel_recovers_them() {
    let mut failures = Vec::new();
    let mut count = 0;
    for name in golden::names() {
        if golden::is_clean(&name) {
            continue;
        }
        count += 1;
        let kernel = golden::manifest(&name);
        for read_only in [true, false] {
            let options = Options { read_only, ..Options::new(Time::default) };
            let volume = Engine::open(golden::device(&name), options);
            let volume = volume.unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut ours = manifest::manifest_of(&volume);
            manifest::excuse_recovered_directories(&kernel, &mut ours);
            let found = differences(&kernel, &ours, Scope::Volume, 10);
            if !found.is_empty() {
                let found = found.join("\n  ");
                failures.push(format!("{name}, read_only {read_only} (kernel != ours):\n  {found}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 10, "unclean images are missing");
}

/// Linux keeps maps of full and empty blocks of the NAT beside the checkpoint. The engine does not, and must
/// not leave the flag that marks them as valid.
#[test]
fn maps_of_the_nat_are_dropped_with_the_first_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut count = 0;
    for name in golden::names().into_iter().filter(|name| golden::is_clean(name)) {
        let device = golden::device(&name);
        let mut volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
        let has_maps = volume.last_checkpoint().flags.has(Flags::NAT_BITS);
        if !has_maps || volume.read_only_reason().is_some() || count == 8 {
            continue;
        }
        count += 1;
        let root = volume.superblock().root_ino;
        volume.begin(Caller::ADMIN).create(root, b"one more", &NewNode::new(0o100_644)).unwrap();
        volume.unmount().unwrap();
        let block_size = volume.superblock().block_size;
        drop(volume);
        let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
        assert!(!volume.last_checkpoint().flags.has(Flags::NAT_BITS), "{name}");
        // The installed fsck.f2fs supports no other block size, and needs all devices of a volume.
        if block_size == BlockSize::B4K && volume.superblock().devices.len() < 2 {
            let mut bytes = vec![0; device.geometry().size_bytes as usize];
            device.read(0, &mut bytes).unwrap();
            std::fs::write(&path, &bytes).unwrap();
            support::assert_clean(&path);
        }
    }
    assert_eq!(count, 8, "images with the maps are missing");
}
