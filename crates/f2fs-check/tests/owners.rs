//! Names and blocks go back to their owners, although the structure that named them is damaged.

use std::{collections::BTreeSet, sync::Arc};

use block::{Device, Fault, Faulty, MemoryDevice, Verb};
use f2fs::{
    OpenOptions,
    engine::{Caller, Engine, NewNode, Options},
    format::crc::f2fs_crc,
    units::{BlockAddr, Nid, SegNo},
};
use f2fs_check::{
    Certainty, Kind, check, check_as_opened,
    repair::{Plan, Planned, plan},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW, contents};

/// Byte offset of the inode in an entry of a directory.
const DENTRY_INO: usize = 4;

/// Plans the repair of what a device shows, and makes it on the volume.
fn repaired(device: Arc<dyn Device>, target: &Arc<MemoryDevice>) -> Plan {
    let plan = match plan(&device, NOW, &mut |_| {}).expect("an F2FS volume") {
        Planned::Repair(plan) => plan,
        Planned::Clean(report) => panic!("nothing to repair: {}", support::lines(&report)),
        Planned::Refused(refusal) => panic!("{}: {}", refusal.reason, support::lines(&refusal.report)),
    };
    plan.apply(&**target).unwrap();
    let report = support::report(target.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    if let Err(error) = model::fsck::fsck(target) {
        panic!("fsck.f2fs: {error:#}");
    }
    plan
}

fn le(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

#[test]
fn a_name_that_leads_to_another_file_leads_to_its_own_again() {
    let d = Damaged::new();
    let few = d.ino("/few");
    // The other file comes before or behind the nameless one in the order of the numbers.
    for (name, other) in [("other", "/plain"), ("other", "/big"), ("other", "/few/small")] {
        let d = Damaged::new();
        d.put_dentry(few, d.slot(few, name), DENTRY_INO, &le(d.ino(other).0));
        let report = support::report(d.device.clone());
        assert_eq!(support::errors(&report), ["dentry-inode"], "{}", support::lines(&report));
        repaired(d.device.clone(), &d.device);
        assert_eq!(contents(&d.device), contents(&Damaged::new().device), "{name} named {other}");
    }
}

#[test]
fn a_hard_link_that_an_inode_counts_stays_where_it_is() {
    let d = Damaged::new();
    let few = d.ino("/few");
    let plain = d.ino("/plain");
    d.put_dentry(few, d.slot(few, "other"), DENTRY_INO, &le(plain.0));
    d.put_inode(plain, 12, &le(2));
    repaired(d.device.clone(), &d.device);
    let found = contents(&d.device);
    assert_eq!(found["\"few/other\""], found["\"plain\""]);
    assert!(found.contains_key("\"lost+found/other\""), "{:?}", found.keys());
}

#[test]
fn a_directory_whose_name_leads_to_its_sibling_gets_its_name_back() {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let few = d.ino("/few");
    let made = ["first", "second", "third"].map(|name| {
        let dir = NewNode::new(0o040_755);
        let ino = volume.begin(Caller::ADMIN).create(few, name.as_bytes(), &dir).unwrap();
        volume.begin(Caller::ADMIN).create(ino, b"inside", &NewNode::new(0o100_644)).unwrap();
        ino
    });
    volume.unmount().unwrap();
    let addr = volume.nat_entry(few.into()).unwrap().addr;
    drop(volume);
    let sound = contents(&d.device);
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0)] {
        let damaged = Arc::new(model::setup::copy(&d.device).unwrap());
        let mut block = vec![0; BLOCK];
        let at = u64::from(addr.0) * BLOCK as u64;
        damaged.read(at, &mut block).unwrap();
        // The entry follows from its inode and the length of its name.
        let entry = [&le(made[from].0)[..], &(["first", "second", "third"][from].len() as u16).to_le_bytes()]
            .concat();
        let place = block.windows(6).position(|bytes| bytes == entry).expect("an inline directory");
        block[place..place + 4].copy_from_slice(&le(made[to].0));
        damaged.write(at, &block).unwrap();
        d.seal_on(&*damaged, few, addr);
        repaired(damaged.clone(), &damaged);
        assert_eq!(contents(&damaged), sound, "{from} named {to}");
    }
}

/// A device on which the block of a node cannot be read.
fn with_unreadable(d: &Damaged, nid: Nid) -> Arc<dyn Device> {
    let at = u64::from(d.addr(nid).0) * BLOCK as u64;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + BLOCK as u64 };
    Arc::new(Faulty::new(d.device.clone(), vec![fault]))
}

#[test]
fn a_node_of_addresses_that_cannot_be_read_comes_back_from_the_summaries() {
    let d = Damaged::new();
    let plan = repaired(with_unreadable(&d, d.child(d.ino("/big"), 0)), &d.device);
    assert_eq!(contents(&d.device), contents(&Damaged::new().device));
    assert_eq!((plan.certainty(), &plan.losses[..]), (Certainty::Likely, &[][..]));
}

#[test]
fn a_file_whose_inode_cannot_be_read_keeps_its_name_and_its_content() {
    for path in ["/plain", "/big", "/far"] {
        let d = Damaged::new();
        let plan = repaired(with_unreadable(&d, d.ino(path).into()), &d.device);
        // Their sizes are whole blocks.
        assert_eq!(contents(&d.device), contents(&Damaged::new().device), "{path}");
        assert_eq!(plan.certainty(), Certainty::Unclear, "{path}");
        assert!(plan.losses.iter().any(|loss| loss.contains("owners, times")), "{path}: {:?}", plan.losses);
    }
}

#[test]
fn blocks_of_a_lost_node_of_which_no_summary_tells_are_a_loss() {
    let d = Damaged::new();
    let big = d.ino("/big");
    // The summaries of all closed segments of the file are blank.
    let blocks = (923..1900).map(|block| d.position(d.data(big, block)).0);
    let segments: BTreeSet<SegNo> = blocks.filter(|segment| !d.is_log(*segment)).collect();
    segments.iter().for_each(|segment| d.put(d.ssa(*segment), 0, &[0; BLOCK - 5]));
    let device = with_unreadable(&d, d.child(big, 0));
    let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
    assert!(
        !segments.is_empty() && plan.losses.iter().any(|loss| loss.contains("nothing tells")),
        "{:?}",
        plan.losses
    );
}

#[test]
fn a_node_of_addresses_whose_block_and_number_are_lost_comes_back_from_the_summaries() {
    let d = Damaged::new();
    let nid = d.child(d.ino("/big"), 0);
    d.put_node(nid, 0, &[0; BLOCK]);
    d.put_nat(nid, 5, &le(7));
    repaired(d.device.clone(), &d.device);
    assert_eq!(contents(&d.device), contents(&Damaged::new().device));
}

#[test]
fn clusters_whose_node_has_lost_its_addresses_are_still_compressed() {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let ino = d.ino("/compressed");
    let content: Vec<u8> = (0..1400 * BLOCK).map(|n| (n / 900) as u8).collect();
    volume.begin(Caller::ADMIN).write(ino, 0, &content).unwrap();
    volume.unmount().unwrap();
    let nid = volume.inode(ino).unwrap().child(0);
    let addr = volume.nat_entry(nid).unwrap().addr;
    drop(volume);
    d.put(addr, 0, &[0; BLOCK - 24]);
    repaired(d.device.clone(), &d.device);
    let volume = OpenOptions::new().open(d.device.clone()).unwrap();
    assert!(volume.read("/compressed").unwrap() == content);
}

#[test]
fn a_volume_that_fits_its_second_superblock_is_not_clean_for_a_resize() {
    let d = Damaged::new();
    // The UUID is the seed of the checksums of all inodes.
    d.put(BlockAddr(0), 1024 + 108, &[1]);
    let sum = f2fs_crc(&d.block(BlockAddr(0))[1024..1024 + 3068]);
    d.put(BlockAddr(0), 1024 + 3068, &le(sum));
    let best = check(d.device.clone(), &mut |_| {}).unwrap();
    assert_eq!(support::errors(&best), ["superblocks-differ"]);
    let opened = check_as_opened(d.device.clone(), &mut |_| {}).unwrap();
    assert!(opened.count(Kind::InodeChecksum) > 0 && !opened.is_clean_for_resize());
}
