//! Inodes whose kind, size or marks are damaged, as far as the cases of one finding do not show it.

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options},
    format::{
        superblock::Features,
        xattr::{self, ENCRYPTION_NAME, Entry, index},
    },
    units::{BlockAddr, Ino},
};
use f2fs_check::{
    Certainty, Kind,
    repair::{Plan, Planned, plan},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW};

const ROOT: Ino = Ino(3);

fn planned(device: &Arc<MemoryDevice>) -> Planned {
    let device: Arc<dyn Device> = device.clone();
    plan(&device, NOW, &mut |_| {}).unwrap()
}

fn repair_of(device: &Arc<MemoryDevice>) -> Plan {
    match planned(device) {
        Planned::Repair(plan) => plan,
        Planned::Clean(report) => panic!("nothing to repair: {}", support::lines(&report)),
        Planned::Refused(refusal) => panic!("{}\n{}", refusal.reason, support::lines(&refusal.report)),
    }
}

fn kinds(plan: &Plan) -> Vec<&'static str> {
    plan.report.findings().iter().map(|finding| finding.kind.name()).collect()
}

/// A volume without checksums of inodes and one file. Its inode gets another mode.
fn with_mode(content: &[u8], permissions: u16, mode: u16) -> (Arc<MemoryDevice>, Plan) {
    let device = Arc::new(model::Setup::named("base").unwrap().make().unwrap());
    let mut volume = Engine::open(device.clone(), Options::new(|| NOW)).unwrap();
    let root = volume.superblock().root_ino;
    let file =
        volume.begin(Caller::ADMIN).create(root, b"file", &NewNode::new(0o100_000 | permissions)).unwrap();
    volume.begin(Caller::ADMIN).write(file, 0, content).unwrap();
    volume.unmount().unwrap();
    let addr = volume.nat_entry(file.into()).unwrap().addr;
    device.write(u64::from(addr.0) << 12, &mode.to_le_bytes()).unwrap();
    let plan = repair_of(&device);
    (device, plan)
}

#[test]
fn a_file_that_one_bit_makes_a_link_or_a_socket_becomes_a_file_again() {
    for mode in [0o120_644, 0o140_644] {
        for content in [vec![3; 5 * BLOCK], vec![3; 10], Vec::new()] {
            let case = format!("{mode:o} with {} bytes", content.len());
            let (device, plan) = with_mode(&content, 0o644, mode);
            assert!(kinds(&plan).contains(&"inode-invalid"), "{case}: {:?}", kinds(&plan));
            assert_eq!(plan.losses, Vec::<String>::new(), "{case}");
            plan.apply(&*device).unwrap();
            assert!(support::report(device.clone()).is_clean(), "{case}");
            let volume = f2fs::OpenOptions::new().open(device.clone()).unwrap();
            assert!(volume.metadata("/file").unwrap().is_file(), "{case}");
            assert!(volume.read("/file").unwrap() == content, "{case}");
        }
    }
}

#[test]
fn a_kind_that_the_content_does_not_tell_needs_a_person() {
    // Permissions and size are those of a symbolic link.
    let (_, plan) = with_mode(&[b'a'; 10], 0o777, 0o120_777);
    assert_eq!(kinds(&plan), ["dentry-type"]);
    assert_eq!(plan.certainty(), Certainty::Unclear);
}

#[test]
fn a_root_with_blocks_whose_kind_is_lost_keeps_its_names() {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    for n in 0..300 {
        let name = format!("a rather long name in the root {n}");
        volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644)).unwrap();
    }
    volume.unmount().unwrap();
    let addr = volume.nat_entry(ROOT.into()).unwrap().addr;
    drop(volume);
    d.put(addr, 0, &0o140_755u16.to_le_bytes());
    d.seal_at(ROOT, addr);
    let plan = repair_of(&d.device);
    assert_eq!(plan.losses, Vec::<String>::new());
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
    assert_eq!(volume.read("/plain").unwrap().len(), 5 * BLOCK);
    assert!((0..300).all(|n| volume.metadata(format!("/a rather long name in the root {n}")).is_ok()));
    assert_eq!(volume.read_dir("/lost+found").unwrap().count(), 0);
}

/// Puts an encryption context into a file, and sets or clears the mark.
fn put_context(d: &Damaged, path: &str, mark: u8) {
    let ino = d.ino(path);
    let inode = d.volume().inode(ino).unwrap();
    let range = inode.layout().inline_xattr_range();
    let context = xattr::build([Entry { index: index::ENCRYPTION, name: ENCRYPTION_NAME, value: &[1; 28] }]);
    assert!(context.len() <= range.len());
    d.put_inode(ino, range.start, &context);
    d.put_inode(ino, 2, &[inode.head().advise & !4 | mark]);
}

#[test]
fn a_context_without_the_mark_sets_the_mark() {
    let d = Damaged::new();
    d.add_features(Features::ENCRYPT);
    put_context(&d, "/plain", 0);
    let plan = repair_of(&d.device);
    assert_eq!(kinds(&plan), ["encryption"]);
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
    assert_eq!(volume.inode(d.ino("/plain")).unwrap().head().advise & 4, 4);
}

#[test]
fn an_encrypted_file_on_a_volume_without_the_feature_needs_a_person() {
    let d = Damaged::new();
    put_context(&d, "/plain", 4);
    let Planned::Refused(refusal) = planned(&d.device) else { panic!("a refusal") };
    assert_eq!(refusal.report.count(Kind::Encryption), 1);
    assert!(refusal.report.findings()[0].repair.contains("tune -O encrypt"));
}

#[test]
fn a_directory_with_names_that_may_be_encrypted_keeps_its_mark() {
    let d = Damaged::new();
    d.add_features(Features::ENCRYPT);
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let name = [0xF1, 0x82, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    volume.begin(Caller::ADMIN).create(d.ino("/few"), &name, &NewNode::new(0o100_644)).unwrap();
    volume.unmount().unwrap();
    let few = d.ino("/few");
    let addr = volume.nat_entry(few.into()).unwrap().addr;
    let advise = volume.inode(few).unwrap().head().advise;
    drop(volume);
    d.put(addr, 2, &[advise | 4]);
    d.seal_at(few, addr);
    let Planned::Clean(report) = planned(&d.device) else { panic!("no repair") };
    assert_eq!(report.count(Kind::EncryptionContext), 1, "{}", support::lines(&report));

    // The loss of one context keeps no other damage from being repaired.
    d.put_inode(d.ino("/plain"), 12, &9_u32.to_le_bytes());
    let plan = repair_of(&d.device);
    assert!(kinds(&plan).contains(&"link-count"));
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean() && report.count(Kind::EncryptionContext) == 1, "{}", support::lines(&report));
    let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
    assert_eq!(volume.inode(few).unwrap().head().advise & 4, 4, "the mark stays");
}

#[test]
fn reserved_places_that_get_their_blocks_back_are_not_certain() {
    let certainty = |byte: u8| {
        let d = Damaged::new();
        d.put_inode(d.ino("/big"), 348, &[0; 12]);
        d.put_node(d.child(d.ino("/big"), 0), 512, &[byte; 8]);
        let plan = repair_of(&d.device);
        assert_eq!(kinds(&plan), ["block-address"; 2]);
        plan.certainty()
    };
    assert_eq!((certainty(0), certainty(0xFF)), (Certainty::Certain, Certainty::Likely));
}

/// Both copies of the superblock, one of which gets other features.
fn with_features(copy: u32, cleared: u32, set: u32) -> Damaged {
    let d = Damaged::new();
    let feature = d.volume().superblock().features.0 & !cleared | set;
    d.put_features(copy, feature);
    d
}

#[test]
fn of_superblocks_with_other_features_that_counts_which_the_volume_fits() {
    let (extra_attr, checksum, quota) = (0x8, 0x20, 0x80);
    for copy in [0, 1] {
        for cleared in [extra_attr, checksum, quota, extra_attr | checksum] {
            let case = format!("{cleared:#x} of copy {copy}");
            let d = with_features(copy, cleared, 0);
            let right = d.volume().superblock().features;
            let before = d.block(BlockAddr(1 - copy));
            let plan = repair_of(&d.device);
            assert_eq!(kinds(&plan), ["superblocks-differ"], "{case}");
            plan.apply(&*d.device).unwrap();
            let report = support::report(d.device.clone());
            assert!(report.is_clean(), "{case}: {}", support::lines(&report));
            let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
            assert_eq!(volume.superblock().features, right, "{case}");
            assert!(d.block(BlockAddr(copy))[1024..] == before[1024..], "{case}");
        }
    }
}

#[test]
fn of_superblocks_that_the_volume_fits_alike_a_person_selects() {
    let d = with_features(0, 0, 0x400);
    let plan = repair_of(&d.device);
    assert_eq!((kinds(&plan), plan.certainty()), (vec!["superblocks-differ"], Certainty::Unclear));
}

#[test]
fn a_direct_node_of_ones_gets_its_addresses_back_on_other_volumes() {
    for name in ["base", "features", "quota", "sections", "two logs"] {
        let setup = model::Setup::named(name).unwrap();
        let device = Arc::new(setup.make().unwrap());
        let mut volume = Engine::open(device.clone(), Options::new(|| NOW)).unwrap();
        let root = volume.superblock().root_ino;
        let file = volume.begin(Caller::ADMIN).create(root, b"file", &NewNode::new(0o100_644)).unwrap();
        let content: Vec<u8> = (0..1500 * BLOCK).map(|n| (n / 999) as u8).collect();
        volume.begin(Caller::ADMIN).write(file, 0, &content).unwrap();
        volume.unmount().unwrap();
        let child = volume.inode(file).unwrap().child(0);
        let addr = volume.nat_entry(child).unwrap().addr;
        drop(volume);
        device.write(u64::from(addr.0) << 12, &[0xFF; BLOCK]).unwrap();
        let plan = match planned(&device) {
            Planned::Repair(plan) => plan,
            Planned::Clean(_) => panic!("{name}: clean"),
            Planned::Refused(refusal) => {
                panic!("{name}: {}\n{}", refusal.reason, support::lines(&refusal.report))
            }
        };
        plan.apply(&*device).unwrap();
        let report = support::report(device.clone());
        assert!(report.is_clean(), "{name}: {}", support::lines(&report));
        let volume = f2fs::OpenOptions::new().open(device.clone()).unwrap();
        assert!(volume.read("/file").unwrap() == content, "{name}: {:?}", plan.losses);
    }
}
