//! Footers of the nodes that a repair writes.

use std::sync::Arc;

use block::Device;
use f2fs::engine::{Engine, Options};
use f2fs_check::repair::{Planned, plan};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW};

/// Byte offset of the version in a node.
const VERSION: usize = BLOCK - 12;

#[test]
fn a_repaired_node_has_a_newer_version_than_the_damaged_one() {
    let d = Damaged::new();
    let (plain, version) = (d.ino("/plain"), d.checkpoint().1.node_version());
    d.put_inode(plain, 12, &9u32.to_le_bytes());
    let device: Arc<dyn Device> = d.device.clone();
    let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
    plan.apply(&*device).unwrap();
    let volume = Engine::open(device, Options::read_only()).unwrap();
    let addr = volume.nat_entry(plain.into()).unwrap().addr;
    assert_ne!(addr, d.addr(plain.into()), "the node has a new place");
    assert_eq!(d.block(addr)[VERSION..VERSION + 8], version.to_le_bytes());
    assert!(support::report(d.device.clone()).is_clean());
}
