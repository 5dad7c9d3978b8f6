//! Fsyncs after the last checkpoint that cannot all be rolled forward: those before the damage are kept.

use std::sync::Arc;

use block::Device;
use f2fs::{
    engine::{Caller, Engine, NewNode, Options, SyncScope},
    format::{node::NodeFooter, sit::SegmentType},
    units::{BlockAddr, Ino},
};
use f2fs_check::repair::{Planned, plan};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW};

const ROOT: Ino = Ino(3);
const FILES: usize = 9;
/// Byte offset of i_pino.
const PARENT: usize = 84;

fn path(n: usize) -> String {
    format!("fsynced {n}")
}

/// A volume on which files were fsynced after the last checkpoint. Returns their inodes with the addresses of their nodes.
fn fsynced() -> (Damaged, Vec<(Ino, BlockAddr)>) {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    volume.begin(Caller::ADMIN).create(ROOT, b"checkpointed", &NewNode::new(0o100_644)).unwrap();
    volume.checkpoint().unwrap();
    // The log goes on after the checkpoint: the first node follows there.
    let log = volume.last_checkpoint().logs[SegmentType::WarmNode.index()];
    let start = volume.geometry().next_block(log);
    let files = (0..FILES).map(|n| {
        let ino =
            volume.begin(Caller::ADMIN).create(ROOT, path(n).as_bytes(), &NewNode::new(0o100_644)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[n as u8; 3 * BLOCK]).unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
        ino
    });
    let files: Vec<Ino> = files.collect();
    drop(volume);
    let (mut addr, mut nodes) = (start, Vec::new());
    while nodes.len() < FILES {
        let footer = NodeFooter::of(&d.block(addr));
        assert!(files.contains(&footer.ino), "{addr} is not a node of the chain: {footer:?}");
        nodes.push((footer.ino, addr));
        addr = footer.next_addr;
    }
    (d, nodes)
}

/// Repairs a volume and returns the files that are there with their content.
fn kept(d: &Damaged) -> (Vec<usize>, Vec<String>) {
    let device: Arc<dyn Device> = d.device.clone();
    let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
    let is_kept = |n: &usize| {
        volume.read(format!("/{}", path(*n))).is_ok_and(|content| content == [*n as u8; 3 * BLOCK])
    };
    ((0..FILES).filter(is_kept).collect(), plan.losses)
}

#[test]
fn fsyncs_before_one_that_cannot_be_rolled_forward_are_kept() {
    for damaged in [1, 5, 8] {
        let (d, nodes) = fsynced();
        let (ino, addr) = nodes[damaged];
        // Its directory is a file.
        d.put(addr, PARENT, &d.ino("/plain").0.to_le_bytes());
        d.seal_at(ino, addr);
        // A wrong count, so that there is something to repair.
        d.put_inode(d.ino("/far"), 12, &9u32.to_le_bytes());
        let (kept, losses) = kept(&d);
        assert_eq!(kept, (0..damaged).collect::<Vec<_>>(), "the files before the damaged one, {losses:?}");
        let loss = format!("from node {} of {FILES} on", damaged + 1);
        assert!(losses.iter().any(|line| line.contains(&loss)), "{losses:?}");
    }
}

#[test]
fn a_volume_with_disabled_checkpoints_has_no_chain() {
    const DISABLED: u32 = 0x1000;
    for (flags, names) in [(0, FILES), (DISABLED, 0)] {
        let (d, nodes) = fsynced();
        let as_left = Options { roll_forward: false, ..Options::read_only() };
        let left = Engine::open(d.device.clone(), as_left).unwrap();
        let (pack, checkpoint) = (left.last_pack(), left.last_checkpoint().clone());
        let (start, sum_at) = (left.geometry().pack(pack), checkpoint.checksum_offset as usize);
        let mut head = d.block(start);
        head[132..136].copy_from_slice(&(checkpoint.flags.0 | flags).to_le_bytes());
        let sum = f2fs::format::crc::f2fs_crc(&head[..sum_at]);
        head[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
        d.put(start, 0, &head);
        d.put(BlockAddr(start.0 + checkpoint.pack_blocks - 1), 0, &head);
        let version = checkpoint.version.0 | u64::from(sum) << 32;
        for (n, (ino, addr)) in nodes.iter().enumerate() {
            d.put(*addr, BLOCK - 12, &version.to_le_bytes());
            if n + 1 == FILES {
                d.put(*addr, BLOCK - 4, &nodes[0].1.0.to_le_bytes());
            }
            d.seal_at(*ino, *addr);
        }
        let report = support::report(d.device.clone());
        let loops = report.count(f2fs_check::Kind::ChainLoop);
        assert_eq!(loops, u64::from(flags == 0), "{}", support::lines(&report));
        assert_eq!(report.is_clean(), flags == DISABLED, "{}", support::lines(&report));
        let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
        let found = (0..FILES).filter(|n| volume.metadata(format!("/{}", path(*n))).is_ok()).count();
        assert_eq!(found, names);
    }
}
