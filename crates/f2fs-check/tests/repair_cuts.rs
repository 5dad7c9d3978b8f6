//! A power cut at any write of a repair leaves a volume whose next repair has the same result.

use std::{collections::BTreeSet, sync::Arc};

use block::{Device, MemoryDevice, Survivors, power_cut};
use f2fs::units::{BlockAddr, SegNo};
use f2fs_check::{
    Report, Severity,
    repair::{Plan, Planned, plan},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW};

fn plan_of(device: &Arc<MemoryDevice>) -> Option<Plan> {
    let device: Arc<dyn Device> = device.clone();
    match plan(&device, NOW, &mut |_| {}).expect("an F2FS volume") {
        Planned::Repair(plan) => Some(plan),
        Planned::Clean(_) => None,
        Planned::Refused(refusal) => panic!("{}\n{}", refusal.reason, support::lines(&refusal.report)),
    }
}

fn kinds(report: &Report) -> BTreeSet<&'static str> {
    let errors = report.counts().filter(|(kind, _)| kind.severity() == Severity::Error);
    errors.map(|(kind, _)| kind.name()).collect()
}

/// All files with their content.
fn contents(device: &Arc<MemoryDevice>) -> Vec<String> {
    let volume =
        f2fs::engine::Engine::open(device.clone(), f2fs::engine::Options::read_only()).expect("a volume");
    let entries = model::manifest::manifest_of(&volume).entries.into_iter();
    let mut lines: Vec<String> = entries
        .map(|entry| format!("{:?} {} {:?} {:?}", entry.path, entry.size, entry.sha256, entry.xattrs))
        .collect();
    lines.sort();
    lines
}

/// Cuts the power at every request of the repair of a volume, and judges each state.
fn cut_everywhere(damaged: &Damaged) {
    let old = kinds(&support::report(damaged.device.clone()));
    assert!(!old.is_empty(), "the volume is damaged");
    let repair = plan_of(&damaged.device).expect("a repair");
    let done = Arc::new(model::setup::copy(&damaged.device).unwrap());
    repair.apply(&*done).unwrap();
    let expected = contents(&done);
    let mut sides = [0, 0];
    for at in 0..=repair.requests().len() {
        for survivors in [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }] {
            let device = Arc::new(model::setup::copy(&damaged.device).unwrap());
            power_cut(repair.requests(), at, &survivors, &*device).unwrap();
            let report = support::report(device.clone());
            let found = kinds(&report);
            sides[usize::from(found.is_empty())] += 1;
            // The pack in progress may look damaged; the other one counts.
            let more: Vec<_> = found.difference(&old).filter(|kind| **kind != "pack-invalid").collect();
            assert!(
                more.is_empty(),
                "cut at {at} ({survivors:?}): new findings {more:?}\n{}",
                support::lines(&report)
            );
            if let Some(plan) = plan_of(&device) {
                plan.apply(&*device).unwrap();
            }
            let report = support::report(device.clone());
            assert!(report.is_clean(), "cut at {at} ({survivors:?}): {}", support::lines(&report));
            assert!(contents(&device) == expected, "cut at {at} ({survivors:?}): other files");
        }
    }
    assert!(sides.iter().all(|count| *count > 0), "cuts leave the old and the repaired volume: {sides:?}");
}

fn le(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

#[test]
fn a_cut_repair_of_tables_leaves_the_old_or_the_repaired_volume() {
    let d = Damaged::new();
    d.put_nat(d.ino("/plain").into(), 5, &le(d.addr(d.ino("/few").into()).0));
    d.put_checkpoint(144, &le(d.checkpoint().1.valid_nodes + 1));
    let (segment, _) = d.position(d.data(d.ino("/big"), 0));
    d.put_sit(segment, 2, &[0; 3]);
    let closed = (0..1500).map(|block| d.position(d.data(d.ino("/big"), block)).0);
    let closed: SegNo = closed.into_iter().find(|segment| !d.is_log(*segment)).unwrap();
    d.put(d.ssa(closed), 0, &[0xEE; 700]);
    cut_everywhere(&d);
}

#[test]
fn a_cut_repair_of_nodes_leaves_the_old_or_the_repaired_volume() {
    let d = Damaged::new();
    d.put_inode(d.ino("/plain"), 396 + 4, &le(d.data(d.ino("/big"), 9).0));
    d.put_node(d.child(d.ino("/big"), 0), 4072 + 8, &le(77 << 3 | 1));
    d.put_inode(d.ino("/many"), 72, &le(1));
    d.put_dentry(d.ino("/few"), 1, 4, &le(d.ino("/many").0));
    cut_everywhere(&d);
}

#[test]
fn a_cut_repair_of_names_leaves_the_old_or_the_repaired_volume() {
    let d = Damaged::new();
    // The entries of a block of a directory are lost, and those of two blocks are in wrong buckets.
    let many = d.ino("/many");
    d.put(d.data(many, 0), 64, &[0; BLOCK - 64]);
    let (a, b): (BlockAddr, BlockAddr) = (d.data(many, 2), d.data(many, 4));
    let (first, second) = (d.block(a), d.block(b));
    d.put(a, 0, &second);
    d.put(b, 0, &first);
    cut_everywhere(&d);
}

#[test]
fn a_cut_repair_of_a_damaged_head_leaves_the_old_or_the_repaired_volume() {
    let d = Damaged::new();
    d.put(d.pack(d.checkpoint().0), 200, &[0xEE; 8]);
    d.put_inode(d.ino("/plain"), 12, &le(9));
    cut_everywhere(&d);
}

#[test]
fn a_cut_repair_of_a_pack_of_which_the_head_is_left_leaves_the_old_or_the_repaired_volume() {
    let d = Damaged::new();
    let (number, checkpoint) = d.checkpoint();
    d.put(BlockAddr(d.pack(number).0 + checkpoint.pack_blocks - 1), 0, &[0; BLOCK]);
    d.put(d.pack(1 - number), 0, &[0xEE; 200 * BLOCK]);
    d.put_inode(d.ino("/plain"), 12, &le(9));
    cut_everywhere(&d);
}
