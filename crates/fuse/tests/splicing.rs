//! Spliced reads return the same bytes as copied ones.

mod support;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::atomic::{AtomicBool, Ordering},
};

use support::{Bench, with_aligned};

const BLOCK: usize = 4096;

/// Returns bytes that depend on their offset.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 8).wrapping_mul(0x9E37_79B9).to_le_bytes()[at % 8]).collect()
}

#[test]
fn long_reads_return_the_written_data() {
    needs_fuse!();
    let mut bench = Bench::mounted(128);
    let content = pattern(5_000_003);
    fs::write(bench.path("plain"), &content).unwrap();
    let mut sparse = content.clone();
    sparse[1 << 20..(1 << 20) + 3 * BLOCK].fill(0);
    sparse[3_000_000..3_600_000].fill(0);
    let file = File::create(bench.path("sparse")).unwrap();
    file.write_all_at(&content[..1 << 20], 0).unwrap();
    file.write_all_at(&content[(1 << 20) + 3 * BLOCK..3_000_000], (1 << 20) + 3 * BLOCK as u64).unwrap();
    file.write_all_at(&content[3_600_000..], 3_600_000).unwrap();
    drop(file);
    // Every second block is written later, so adjacent blocks of the file are not adjacent on the device.
    let file = File::create(bench.path("scattered")).unwrap();
    for start in [0, BLOCK] {
        for at in (start..content.len()).step_by(2 * BLOCK) {
            file.write_all_at(&content[at..content.len().min(at + BLOCK)], at as u64).unwrap();
        }
        file.sync_all().unwrap();
    }
    drop(file);
    for options in ["", "ro", "direct", "direct_write"] {
        let check = |name: &str, wanted: &[u8]| {
            assert!(fs::read(bench.path(name)).unwrap() == wanted, "{name}, {options:?}");
            let file = File::open(bench.path(name)).unwrap();
            for (offset, length) in [(4_999_000, 100_000), (777_777, 1_500_000), (5_000_003, 70_000)] {
                let mut some = vec![1; length];
                let count = file.read_at(&mut some, offset as u64).unwrap();
                let end = wanted.len().min(offset + length);
                assert!(some[..count] == wanted[offset..end], "{name} from {offset}, {options:?}");
            }
        };
        check("plain", &content);
        check("sparse", &sparse);
        check("scattered", &content);
        bench.unmount_clean();
        bench.mount(options);
    }
    bench.unmount();
}

#[test]
fn a_read_never_returns_a_block_half_changed() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let blocks = 512;
    let open = || {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(direct)
            .open(bench.path("file"))
            .unwrap()
    };
    let stamp = |bytes: &mut [u8], number: u32| {
        bytes.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    };
    let write = |file: &File, block: u64, number: u32| {
        with_aligned(BLOCK, |bytes| {
            stamp(bytes, number);
            file.write_all_at(bytes, block * BLOCK as u64).unwrap();
        });
    };
    let file = open();
    (0..blocks).for_each(|block| write(&file, block, 0));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let file = open();
            let mut last = vec![0; blocks as usize];
            let mut check = |all: &[u8]| {
                for (block, bytes) in all.chunks_exact(BLOCK).enumerate() {
                    let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                    assert!(bytes.chunks_exact(4).all(|word| word == &bytes[..4]), "block {block} is torn");
                    assert!(number >= last[block], "block {block} is older than it was");
                    last[block] = number;
                }
            };
            with_aligned(blocks as usize * BLOCK, |room| {
                let mut reads = 0;
                while !ends.load(Ordering::Relaxed) || reads < 5 {
                    file.read_exact_at(room, 0).unwrap();
                    check(room);
                    reads += 1;
                }
            });
        });
        // Freed blocks are reused after a checkpoint.
        for number in 1..6000 {
            write(&file, u64::from(number).wrapping_mul(7919) % blocks, number);
            if number % 500 == 0 {
                rustix::fs::syncfs(&file).unwrap();
                file.sync_all().unwrap();
            }
        }
        ends.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    drop(file);
    bench.unmount_clean();
}
