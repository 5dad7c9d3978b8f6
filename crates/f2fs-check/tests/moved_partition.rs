//! Resizing of volumes in partitions whose start is no multiple of a zone, and that were moved afterwards.

mod support;

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    engine::{Engine, Options},
    mkfs::{self, DeviceContent, DeviceSize, NewVolume},
    resize::{Method, Plan, resize, smallest_bytes},
};
use model::Setup;
use support::aging::{MIB, age, assert_good, entries, options};

/// Makes a volume in a partition that begins at a sector, with sections and zones of these sizes.
fn volume(sector: u64, bytes: u64, per_section: u32, per_zone: u32) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    let made = mkfs::Options {
        start_offset_bytes: sector * 512,
        segments_per_section: per_section,
        sections_per_zone: per_zone,
        ..mkfs::Options::new([9; 16])
    };
    let size = DeviceSize { path: String::new(), bytes };
    let plan = mkfs::Plan::new(&made, &[size]).unwrap();
    let new = options(&Setup::named("base").unwrap());
    NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, new).unwrap().finish().unwrap();
    device
}

/// The partition in another place and of another size: the same bytes.
fn moved(device: &MemoryDevice, bytes: u64) -> Arc<MemoryDevice> {
    let other = MemoryDevice::new(bytes);
    let mut page = vec![0; 4096];
    for offset in device.allocated_pages().into_iter().filter(|offset| *offset < bytes) {
        device.read(offset, &mut page).unwrap();
        other.write(offset, &page).unwrap();
    }
    Arc::new(other)
}

fn segment0(device: &Arc<MemoryDevice>) -> u32 {
    Engine::open(device.clone(), Options::read_only()).unwrap().superblock().checkpoint.start.0
}

fn resize_to(device: &Arc<MemoryDevice>, bytes: u64) -> Plan {
    let setup = Setup::named("base").unwrap();
    resize(&mut || Engine::open(device.clone(), options(&setup)), bytes, &mut |_| {}).unwrap()
}

#[test]
fn volumes_of_partitions_that_begin_anywhere_keep_their_alignment_and_files() {
    let setup = Setup::named("base").unwrap();
    // Old tables of DOS, today's first partition, an odd sector; sections and zones of several segments.
    for (sector, per_section, per_zone, wanted) in
        [(63, 1, 1, 504), (2048, 1, 1, 256), (2049, 1, 1, 255), (2048, 2, 2, 1792), (10_240, 1, 4, 768)]
    {
        let what = format!("sector {sector}, {per_section}, {per_zone}");
        let device = volume(sector, 100 * MIB, per_section, per_zone);
        assert_eq!(segment0(&device), wanted, "{what}");
        age(device.clone(), options(&setup), 60, sector);
        let files = entries(&device);
        assert_good(&device, &files, &what);
        let least = smallest_bytes(&mut Engine::open(device.clone(), Options::read_only()).unwrap()).unwrap();
        assert_eq!(resize_to(&device, least).new_bytes, least, "{what}");
        let small = moved(&device, least);
        assert_good(&small, &files, &format!("{what}, shrunk"));
        let large = moved(&small, 150 * MIB);
        let plan = resize_to(&large, 150 * MIB);
        // The last bytes that are no whole zone are not used.
        let zone_bytes = u64::from(per_section * per_zone) * 2 * MIB;
        assert!(
            plan.new_bytes > 150 * MIB - zone_bytes && plan.new_bytes <= 150 * MIB,
            "{what}: {}",
            plan.new_bytes
        );
        assert_good(&large, &files, &format!("{what}, grown"));
        assert_eq!((segment0(&small), segment0(&large)), (wanted, wanted), "{what}");
        age(large.clone(), options(&setup), 95, 3);
        assert_good(&large, &entries(&large), &format!("{what}, used on"));
    }
}

#[test]
fn larger_metadata_areas_begin_where_the_old_ones_did() {
    let setup = Setup::named("base").unwrap();
    let device = volume(63, 1000 * MIB, 1, 1);
    age(device.clone(), options(&setup), 3, 1);
    let files = entries(&device);
    let large = moved(&device, 1500 * MIB);
    assert_eq!(resize_to(&large, 1500 * MIB).method, Method::Relocate);
    assert_eq!(segment0(&large), 504);
    assert_good(&large, &files, "grown to 1500 MiB");
    // Nothing before segment 0 counts as an interrupted resize.
    let again = Plan::new(&mut Engine::open(large, Options::read_only()).unwrap(), 1500 * MIB);
    assert_eq!(again.unwrap().method, Method::Nothing);
}
