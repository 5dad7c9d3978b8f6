//! The front door: volumes by paths.

mod closing;
mod damage;
mod directories;
mod files;
mod keys;
mod opening;
mod paths;

#[path = "../support/mod.rs"]
mod support;

use std::{
    io::{self, Read, Seek, SeekFrom, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use block::{Hooked, Verb};
use f2fs::{
    Error, File, FileOptions, FileType, OpenOptions, Place, Result, Volume,
    device::{Device, FileDevice, FileDeviceOptions, MemoryDevice},
    engine::{Caller, Options},
    mkfs,
    units::Time,
};
use support::NOW;

const SIZE_BYTES: u64 = 64 << 20;

fn options() -> mkfs::Options {
    mkfs::Options::new([0x5A; 16])
}

/// A new volume in memory, and its device.
fn make() -> (Volume, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(SIZE_BYTES));
    let volume = OpenOptions::new().clock(|| NOW).make(device.clone(), &options()).expect("the size fits");
    (volume, device)
}

fn reopen(device: &Arc<MemoryDevice>) -> Volume {
    OpenOptions::new().write().clock(|| NOW).open(device.clone()).expect("the volume opens")
}

/// The names of a directory, sorted.
fn names(volume: &Volume, path: &str) -> Vec<Vec<u8>> {
    let entries = volume.read_dir(path).expect("the directory opens");
    let mut names: Vec<Vec<u8>> =
        entries.map(|entry| entry.expect("the entry is whole").file_name().to_vec()).collect();
    names.sort();
    names
}
