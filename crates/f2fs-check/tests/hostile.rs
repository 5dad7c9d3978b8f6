//! Random damage: the check ends with a report, whatever the volume contains.

use block::{Device, Rng};
use f2fs::units::BlockAddr;

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged};

/// Volumes that are damaged.
const SEEDS: u64 = 300;

#[test]
fn random_damage_ends_with_a_report() {
    let sound = Damaged::new();
    // Metadata and nodes; blocks of data do not concern the check.
    let limit = sound.volume().geometry().block(f2fs::units::SegNo(8), 0).0;
    let pages = sound.device.allocated_pages().into_iter().map(|at| (at / BLOCK as u64) as u32);
    let blocks: Vec<u32> = pages.filter(|block| *block < limit).collect();
    let mut found = 0;
    for seed in 0..SEEDS {
        let damaged = Damaged::new();
        let mut rng = Rng::new(seed);
        let mut below = |end: usize| (rng.next_u64() % end as u64) as usize;
        for _ in 0..1 + below(20) {
            let (block, other) =
                (BlockAddr(blocks[below(blocks.len())]), BlockAddr(blocks[below(blocks.len())]));
            let mut bytes = damaged.block(block);
            match below(5) {
                0 => bytes.fill(0),
                1 => bytes[below(BLOCK)] ^= 1 << below(8),
                2 => {
                    damaged.put(other, 0, &bytes);
                    bytes = sound.block(other);
                }
                3 => bytes = damaged.block(other),
                _ => {
                    let at = below(8) * 512;
                    bytes[at..at + 512].fill(0xFF);
                }
            }
            damaged.put(block, 0, &bytes);
        }
        if let Ok(report) = f2fs_check::check(damaged.device.clone(), &mut |_| {}) {
            found += u64::from(!report.is_clean());
        }
        assert!(damaged.device.geometry().size_bytes > 0);
    }
    assert!(found > SEEDS / 2, "{found} of {SEEDS} damaged volumes have a finding");
}
