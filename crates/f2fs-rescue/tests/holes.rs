//! Holes of an image: they are not read.

mod support;

#[path = "support/nodes.rs"]
mod nodes;

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use block::{Device, Geometry, MemoryDevice};
use f2fs_rescue::{Map, Masked, Options, Status};
use nodes::{BLOCK, device_of, directory, small_file};
use support::rescued;

/// A device that counts the bytes that are read.
struct Counts {
    inner: MemoryDevice,
    read_bytes: AtomicU64,
}

impl Device for Counts {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write(offset_bytes, buf)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)
    }

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        self.inner.allocation(range)
    }
}

/// Copies a few nodes to the start of a large device.
fn large(bytes: u64) -> MemoryDevice {
    let device = MemoryDevice::new(bytes);
    let nodes = [directory(3, 3, b""), small_file(10, 3, b"small", b"content")];
    let few = device_of(&nodes);
    for block in 0..=nodes.len() as u64 {
        let mut copied = [0; BLOCK as usize];
        few.read(block * BLOCK, &mut copied).expect("in memory");
        device.write(block * BLOCK, &copied).expect("in memory");
    }
    device
}

#[test]
fn holes_are_not_read_and_count_as_read_in_the_map() {
    let bytes = 4 << 30;
    let device = Arc::new(Counts { inner: large(bytes), read_bytes: AtomicU64::new(0) });
    let result = rescued(device.clone(), &Options::default());
    assert!(result.found.iter().any(|found| found.path.ends_with(b"small")));
    let read = device.read_bytes.load(Ordering::Relaxed);
    assert!(read < 16 << 20, "{read} bytes");
    assert_eq!(result.rescue.map().bytes(Status::Read), bytes - BLOCK, "all but the superblock");
}

#[test]
fn a_hole_that_the_map_of_a_copy_calls_bad_stays_unreadable() {
    let (map, _) = Map::parse("0 ? 1\n0 0x100000 +\n0x100000 0x2000 -\n0x102000 0xFEFE000 +").expect("a map");
    let result = rescued(Arc::new(Masked::new(large(256 << 20), map)), &Options::default());
    assert_eq!(result.rescue.facts().unreadable_blocks, 2);
}
