//! Damaged directories.

use super::*;

/// First byte of the slot numbers' names in a block of a directory (4 KiB), and the size of a name.
const NAMES_AT: u64 = 4096 - 214 * 8;

/// Inode number of the entry in a slot of such a block.
const fn ino_at(slot: u64) -> u64 {
    30 + 11 * slot + 4
}

/// A volume with the directories `/d` and `/d/sub`, `/d/0` to `/d/9`, whose entries lie in blocks; with the number of
/// `/d` and the place of its first block on the device, in bytes.
fn with_directory_block() -> (Arc<MemoryDevice>, u32, u64) {
    let device = Arc::new(MemoryDevice::new(SIZE_BYTES));
    let engine = Options { inline_dentry: false, ..Options::new(|| NOW) };
    let volume = OpenOptions::from(engine).make(device.clone(), &options()).unwrap();
    volume.create_dir_all("/d/sub").unwrap();
    for n in 0..10 {
        volume.write(format!("/d/{n}"), "").unwrap();
    }
    volume.sync().unwrap();
    let dir = volume.metadata("/d").unwrap().ino();
    let extent = volume.engine().unwrap().next_extent(dir, 0).unwrap().expect("it has a block");
    volume.close().unwrap();
    (device, dir.0, extent.physical.expect("it lies on the device"))
}

#[test]
fn damage_of_a_directory_is_reported_with_its_place_and_hides_only_the_damaged_part() {
    let (device, dir, block) = with_directory_block();
    // Slots 0 and 1 are the dots.
    device.write(block + NAMES_AT + 8 * 3, b"/").unwrap();
    let volume = Volume::open(device).unwrap();
    let (whole, damaged): (Vec<_>, Vec<_>) = volume.read_dir("/d").unwrap().partition(Result::is_ok);
    assert_eq!((whole.len(), damaged.len()), (10, 1));
    let error = damaged.into_iter().next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Corrupt { at: Place::Dir(ino, 0), .. } if ino.0 == dir), "{error}");
    let losses: Vec<Error> = volume.walk("/").unwrap().filter_map(Result::err).collect();
    assert!(matches!(&losses[..], [Error::Lost { path, .. }] if path == b"d"), "{losses:?}");
}

#[test]
fn directories_that_contain_one_another_end_walks_and_removals() {
    let (device, dir, block) = with_directory_block();
    device.write(block + ino_at(2), &dir.to_le_bytes()).unwrap();
    let volume = Volume::open(device.clone()).unwrap();
    let (entries, losses): (Vec<_>, Vec<_>) = volume.walk("/").unwrap().partition(Result::is_ok);
    assert_eq!((entries.len(), losses.len()), (12, 1));
    let loss = losses.into_iter().next().unwrap().unwrap_err();
    assert_eq!(loss.to_string(), format!("d/sub: corrupt inode {dir}: the directory contains itself"));
    drop(volume);
    let volume = reopen(&device);
    assert!(matches!(volume.remove_dir_all("/d"), Err(Error::Lost { path, .. }) if path == b"sub"));
    volume.abandon();
}
