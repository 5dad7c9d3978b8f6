//! Calls of the command, and damage. Each test program uses some of them.
#![allow(dead_code)]

pub mod place;

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use block::{FileDevice, OpenOptions};
use f2fs::engine::{Engine, FinalSymlink, Options};

/// Calls the command in a directory.
pub fn flashkit(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flashkit")).current_dir(dir).args(arguments).output().expect("it starts")
}

/// Returns the output of a call that must succeed.
pub fn ok(dir: &Path, arguments: &[&str]) -> String {
    let output = flashkit(dir, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the message of a call that must fail with exit code 1 and print nothing else.
pub fn fails(dir: &Path, arguments: &[&str]) -> String {
    let output = flashkit(dir, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

/// Pins a file, as `F2FS_IOC_SET_PIN_FILE` does.
pub fn pin(image: &Path, name: &str) {
    let device = FileDevice::open(image, OpenOptions::default()).expect("it opens");
    let volume = Engine::open(Arc::new(device), Options::read_only()).expect("it is a volume");
    let ino = volume.resolve(name.as_bytes(), FinalSymlink::NoFollow).expect("it exists");
    let flags_at = u64::from(volume.nat_entry(ino.into()).expect("it is whole").addr.0) * 4096 + 3;
    let file = File::options().read(true).write(true).open(image).expect("it opens");
    let mut flags = [0];
    file.read_exact_at(&mut flags, flags_at).expect("it is read");
    file.write_all_at(&[flags[0] | f2fs::format::inode::inline::PIN], flags_at).expect("it is written");
}

/// Damages a large file in the root directory of a volume: the second node of its map becomes invalid.
pub fn damage(image: &Path, name: &str) {
    let device = FileDevice::open(image, OpenOptions::default()).expect("it opens");
    let volume = Engine::open(Arc::new(device), Options::read_only()).expect("it is a volume");
    let ino = volume.resolve(name.as_bytes(), FinalSymlink::NoFollow).expect("it exists");
    let child = volume.inode(ino).expect("it is whole").child(1).0;
    let addr = volume.nat_entry(f2fs::units::Nid(child)).expect("it is whole").addr;
    let file = File::options().write(true).open(image).expect("it opens");
    file.write_all_at(&[0xA5; 4096], u64::from(addr.0) * 4096).expect("it is written");
}

/// Removes the entries "." and ".." of a directory whose entries lie in blocks.
pub fn remove_dots(image: &Path, name: &str) {
    let device = FileDevice::open(image, OpenOptions::default()).expect("it opens");
    let volume = Engine::open(Arc::new(device), Options::read_only()).expect("it is a volume");
    let ino = volume.resolve(name.as_bytes(), FinalSymlink::NoFollow).expect("it exists");
    let extent = volume.next_extent(ino, 0).expect("it is whole").expect("it has a block");
    let first = extent.physical.expect("it lies on the device");
    let file = File::options().read(true).write(true).open(image).expect("it opens");
    let mut used = [0];
    file.read_exact_at(&mut used, first).expect("it is read");
    // They have the slots 0 and 1.
    file.write_all_at(&[used[0] & !3], first).expect("it is written");
}
