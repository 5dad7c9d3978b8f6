//! Export of damaged volumes: if one block is damaged, everything arrives except the content of that block.
//!
//! Each case damages one block of a chosen kind, exports with `keep_going` and compares the result with the
//! tree before. The test's own walk through nodes and maps determines the content of each block. Each run
//! covers every kind of block and of damage; `RESCUE_SEEDS` asks for more cases.

mod blocks;
#[path = "../support/mod.rs"]
mod support;
mod tree;
mod volume;

use std::sync::Arc;

use block::{Device, Fault, Faulty, Overlay, Rng, Verb};
use f2fs::{
    Error, Place, Result,
    engine::{Engine, Options},
    format::dentry::Dentries,
    units::{BlockAddr, Ino},
};
use f2fs_tree::{ExportOptions, VolumeSource, export};

use blocks::{BlockKind, Blocks, KINDS};
use tree::{Path, Tree};
use volume::{make, noise};

const ROOT: Ino = Ino(3);
const BLOCK: u64 = 4096;
/// Number of cases of a run: every kind of block with every kind of damage, three times.
const CASES: u64 = 3 * KINDS.len() as u64 * DAMAGES.len() as u64;

/// Further seeds, with cases in which a directory gets another one's block with names of its own.
const FURTHER_SEEDS: [u64; 4] = [246, 311, 1806, 2391];

/// The kinds of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Zeroes,
    Noise,
    BitFlip,
    OtherBlock,
    Unreadable,
}

const DAMAGES: [Damage; 5] =
    [Damage::Zeroes, Damage::Noise, Damage::BitFlip, Damage::OtherBlock, Damage::Unreadable];

/// Returns the device with one block damaged.
fn damaged(
    device: &Arc<dyn Device>,
    addr: BlockAddr,
    damage: Damage,
    others: &[BlockAddr],
    rng: &mut Rng,
) -> Arc<dyn Device> {
    let at = u64::from(addr.0) * BLOCK;
    let mut bytes = vec![0; BLOCK as usize];
    device.read(at, &mut bytes).expect("in memory");
    match damage {
        Damage::Unreadable => {
            let range = at..at + BLOCK;
            return Arc::new(Faulty::new(device.clone(), vec![Fault::ErrorIn { verb: Verb::Read, range }]));
        }
        Damage::Zeroes => bytes.fill(0),
        Damage::Noise => bytes = noise(rng, BLOCK as usize),
        Damage::BitFlip => bytes[rng.below(BLOCK) as usize] ^= 1 << rng.below(8),
        Damage::OtherBlock => {
            let other = others[rng.below(others.len() as u64) as usize];
            device.read(u64::from(other.0) * BLOCK, &mut bytes).expect("in memory");
        }
    }
    let damaged = Overlay::new(device.clone());
    damaged.write(at, &bytes).expect("in memory");
    Arc::new(damaged)
}

/// Exports everything that can be read. Returns the tree and the paths of the losses.
fn rescue(device: Arc<dyn Device>) -> Result<(Tree, Vec<Path>)> {
    let volume = Engine::open(device, Options::read_only())?;
    let mut source = VolumeSource::new(&volume, ROOT, b"")?;
    let (mut tree, mut lost) = (Tree::default(), Vec::new());
    let mut note = |error: &Error| match error {
        Error::Lost { path, .. } => lost.push(path.clone()),
        other => panic!("a loss without a path: {other}"),
    };
    let options = ExportOptions { keep_going: true, lost: Some(&mut note), ..ExportOptions::default() };
    let done = export(&mut source, &mut tree, options)?;
    assert_eq!(done.losses as usize, lost.len());
    Ok((tree, lost))
}

/// Exports the device with each block of directories changed in turn, and expects that the loss is told and that `after`
/// accepts the tree.
fn expect_told(change: impl Fn(&mut [u8]), after: impl Fn(&Tree, &Tree) -> bool) {
    let device = make();
    let blocks = Blocks::of(&Engine::open(device.clone(), Options::read_only()).expect("a good volume"));
    let (before, _) = rescue(device.clone()).expect("a good volume");
    let directory_blocks = &blocks.of_kind[&BlockKind::DirectoryData];
    assert!(directory_blocks.len() > 4, "{}", directory_blocks.len());
    for (addr, _) in directory_blocks {
        let mut bytes = vec![0; BLOCK as usize];
        device.read(u64::from(addr.0) * BLOCK, &mut bytes).expect("in memory");
        change(&mut bytes);
        let changed = Overlay::new(device.clone());
        changed.write(u64::from(addr.0) * BLOCK, &bytes).expect("in memory");
        let (tree, lost) = rescue(Arc::new(changed)).expect("the root is readable");
        assert!(!lost.is_empty() && after(&before, &tree), "{addr}: {lost:?}");
    }
}

#[test]
fn a_name_with_the_hash_of_another_one_is_told_and_exported() {
    /// Byte of the names in a block of 4 KiB with its 214 slots, and bytes of a slot.
    const NAMES: usize = 4096 - 214 * 8;
    let change = |bytes: &mut [u8]| {
        let last = Dentries::new(&*bytes, Place::Volume).entries().flatten().last().expect("a name").slot;
        bytes[NAMES + 8 * last] ^= 1;
    };
    expect_told(change, |before, after| after.nodes.len() == before.nodes.len());
}

#[test]
fn one_damaged_block_loses_only_its_content() {
    let device = make();
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a good volume");
    let blocks = Blocks::of(&volume);
    let (before, lost) = rescue(device.clone()).expect("a good volume");
    assert!(lost.is_empty() && before.nodes.len() > 1400, "{} entries", before.nodes.len());
    let found: Vec<BlockKind> = blocks.of_kind.keys().copied().collect();
    let mut wanted = KINDS.to_vec();
    wanted.sort();
    assert_eq!(found, wanted, "the volume has every kind of block");
    let cases = std::env::var("RESCUE_SEEDS").map_or(CASES, |cases| cases.parse().expect("a number"));
    let (mut failures, mut changed, mut told) = (Vec::new(), 0, 0);
    for seed in (0..cases).chain(FURTHER_SEEDS) {
        let mut rng = Rng::new(seed);
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        let damage = DAMAGES[(seed / KINDS.len() as u64 % DAMAGES.len() as u64) as usize];
        let of_kind = &blocks.of_kind[&kind];
        let (addr, holds) = &of_kind[rng.below(of_kind.len() as u64) as usize];
        let others: Vec<BlockAddr> =
            of_kind.iter().map(|(other, _)| *other).filter(|other| other != addr).collect();
        let name = format!("seed {seed}: {damage:?} in {addr} ({kind:?})");
        match rescue(damaged(&device, *addr, damage, &others, &mut rng)) {
            Err(error) if holds.below.contains(&b""[..]) => drop(error),
            Err(error) => failures.push(format!("{name}: {error}")),
            Ok((after, lost)) => {
                let unexplained = before.unexplained(&after, holds);
                failures.extend(unexplained.into_iter().take(5).map(|what| format!("{name}: {what}")));
                let elsewhere = lost.iter().find(|path| !holds.touches(path));
                failures.extend(elsewhere.map(|path| {
                    format!("{name}: told of {}, which is elsewhere", String::from_utf8_lossy(path))
                }));
                let is_same = before.is_same(&after);
                if damage == Damage::Unreadable && !is_same && lost.is_empty() {
                    failures.push(format!("{name}: the loss is not reported"));
                }
                changed += u64::from(!is_same);
                told += u64::from(!lost.is_empty());
            }
        }
    }
    println!("{cases} damaged volumes: {changed} trees with losses, {told} told of");
    assert!(failures.is_empty(), "{} failures:\n  {}", failures.len(), failures.join("\n  "));
    assert!(changed > cases / 3, "the damage must be felt: {changed} of {cases}");
}
