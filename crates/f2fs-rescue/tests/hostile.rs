//! Hostile volumes: the rescue ends, with bounded work and without a panic.

mod support;

#[path = "../../f2fs/tests/support/golden.rs"]
mod golden;
#[path = "support/nodes.rs"]
mod nodes;

use std::sync::Arc;

use block::{Device, Overlay, Rng};
use f2fs::{
    format::NodeBlock,
    units::{BlockAddr, Ino},
};
use f2fs_rescue::{Options, RemovedFiles};
use nodes::{BLOCK, device_of, directory, format};
use support::{rescued, try_rescued};

/// Volumes that are damaged.
const SEEDS: u64 = 60;

/// Rescues a device in all ways.
fn rescue_all(device: &Arc<dyn Device>) -> u64 {
    let removed = Options { removed: RemovedFiles::Collect, ..Options::default() };
    let past = Options { as_of: Some(2), ..Options::default() };
    let mut bytes = 0;
    for options in [Options::default(), removed, past] {
        let Ok(result) = try_rescued(device.clone(), &options) else { continue };
        bytes += result.tree.values().map(|(_, content)| content.len() as u64).sum::<u64>();
    }
    bytes
}

#[test]
fn random_damage_ends_with_a_tree() {
    let names = golden::names();
    let mut rescued = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let mut below = |end: u64| rng.next_u64() % end.max(1);
        let golden = golden::device(&names[below(names.len() as u64) as usize]);
        let device = Overlay::new(golden);
        let blocks = device.geometry().size_bytes / BLOCK;
        for _ in 0..1 + below(60) {
            // Most structures lie in the first part of a volume.
            let near = if below(2) == 0 { blocks.min(20_000) } else { blocks };
            let (block, other) = (below(near) * BLOCK, below(near) * BLOCK);
            let mut bytes = vec![0; BLOCK as usize];
            device.read(block, &mut bytes).expect("in memory");
            match below(4) {
                0 => bytes.fill(0),
                1 => bytes[below(BLOCK) as usize] ^= 1 << below(8),
                2 => device.read(other, &mut bytes).expect("in memory"),
                _ => bytes[below(8) as usize * 512..][..512].fill(0xFF),
            }
            device.write(block, &bytes).expect("in memory");
        }
        if below(3) == 0 {
            device.write(0, &[0; 8192]).expect("in memory");
        }
        rescued += rescue_all(&(Arc::new(device) as Arc<dyn Device>));
    }
    assert!(rescued > 0);
}

#[test]
fn directories_that_contain_each_other_appear_once() {
    let nodes: Vec<_> =
        (10..30).rev().map(|ino| directory(ino, if ino == 29 { 10 } else { ino + 1 }, b"loop")).collect();
    let result = rescued(device_of(&nodes), &Options::default());
    let found = result.found.iter().filter(|found| found.ino.is_some()).count();
    assert_eq!(found, 20, "{:?}", result.tree.keys());
}

#[test]
fn a_very_deep_tree_is_cut_into_parts() {
    let name = [b'n'; 255];
    let count = 3000;
    let mut nodes = vec![directory(3, 3, b"")];
    nodes.extend((10..10 + count).map(|ino| directory(ino, if ino == 10 { 3 } else { ino - 1 }, &name)));
    let result = rescued(device_of(&nodes), &Options::default());
    let longest = result.tree.keys().map(String::len).max();
    assert!(longest < Some(1 << 16), "{longest:?}");
}

#[test]
fn a_block_that_many_files_claim_is_read_once() {
    let files = 200;
    let nodes = (10..10 + files).map(|ino| {
        let mut node = NodeBlock::new_inode(format(), Ino(ino), 0o100_644, 0, 0);
        node.set_last_name(Ino(3), format!("f{ino}").as_bytes());
        node.head_mut().size.set(900 * BLOCK);
        (0..900).for_each(|index| node.set_addr(index, BlockAddr(files + 3)));
        node
    });
    let device = device_of(&nodes.collect::<Vec<_>>());
    let result = rescued(device, &Options::default());
    let kept: u64 = result.found.iter().filter_map(|found| found.certainty).map(|it| it.unproven).sum();
    assert_eq!(kept, 1, "one claim of 180000 wins");
}

#[test]
fn more_nodes_than_the_table_holds_are_left_out() {
    let nodes: Vec<_> = (10..4010).map(|ino| directory(ino, 3, b"d")).collect();
    let options = Options { memory_bytes: 32 << 10, ..Options::default() };
    let result = rescued(device_of(&nodes), &options);
    let facts = result.rescue.facts();
    assert!(facts.node_versions <= 1024 && facts.left_out_versions, "{}", facts.node_versions);
    assert!(facts.left_out_nodes);
}
