//! Agreement with fsck.f2fs: on damaged volumes both find something, or neither.

use f2fs::units::BlockAddr;
use f2fs_check::Kind;

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged};

/// Volumes that are damaged.
const SEEDS: u64 = 60;

#[test]
fn damage_that_fsck_f2fs_finds_is_found() {
    let sound = Damaged::new();
    model::fsck::fsck(&sound.device).expect("fsck.f2fs finds nothing on the sound volume");
    let limit = sound.volume().geometry().block(f2fs::units::SegNo(8), 0).0;
    let pages = sound.device.allocated_pages().into_iter().map(|at| (at / BLOCK as u64) as u32);
    let blocks: Vec<u32> = pages.filter(|block| *block < limit).collect();
    let main = sound.volume().geometry().block(f2fs::units::SegNo(0), 0).0;
    let tables: Vec<u32> = blocks.iter().copied().filter(|block| *block < main).collect();
    let (mut missed, mut ours_alone, mut both) = (Vec::new(), Vec::new(), 0);
    let mut neither = 0;
    for seed in 0..SEEDS {
        let damaged = Damaged::new();
        let mut rng = block::Rng::new(1000 + seed);
        // Most blocks are inodes with a checksum, so the tables get a share of their own.
        let from = if seed % 4 == 0 { &blocks } else { &tables };
        let addr = BlockAddr(from[rng.below(from.len() as u64) as usize]);
        let mut bytes = damaged.block(addr);
        let at = rng.below(BLOCK as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        damaged.put(addr, 0, &bytes);
        let report = support::report(damaged.device.clone());
        // Both only mention an older pack that is damaged.
        let theirs = match report.count(Kind::PackUnfinished) {
            0 => model::fsck::fsck(&damaged.device),
            _ => model::fsck::fsck_after_cut(&damaged.device),
        };
        match (report.is_clean(), theirs) {
            (true, Err(error)) => missed.push(format!("{seed}: byte {at} of {addr}: {error:#}")),
            (false, Ok(())) => {
                ours_alone.push(format!("{seed}: byte {at} of {addr}: {}", support::lines(&report)))
            }
            (false, Err(_)) => both += 1,
            (true, Ok(())) => neither += 1,
        }
    }
    println!(
        "both find damage in {both} volumes, neither in {neither}; only ours in:\n{}",
        ours_alone.join("\n")
    );
    assert!(missed.is_empty(), "only fsck.f2fs finds:\n{}", missed.join("\n"));
}
