//! Content that earlier repairs gave up: inodes in the orphan list, addresses of zeroes, limits of quota files.

use f2fs::format::quota::QuotaKind;

use super::*;

#[test]
fn a_write_to_a_volume_whose_orphan_list_names_inodes_in_use_removes_none_of_them() {
    let sound = Damaged::new();
    let quota = sound.volume().superblock().quota_inos[0];
    for ino in [ROOT, quota, sound.ino("/plain")] {
        let d = Damaged::new();
        put_orphan(&d, ino.0, 1);
        let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
        volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode::new(0o100_644)).unwrap();
        volume.unmount().unwrap();
        repair_of(&d.device).apply(&*d.device).unwrap();
        let mut found = contents(&d.device);
        assert!(found.remove("\"new\"").is_some(), "{ino}");
        assert_eq!(found, contents(&sound.device), "{ino}");
    }
}

#[test]
fn a_direct_node_of_zeroes_or_ones_gets_its_addresses_back() {
    for byte in [0, 0xFF] {
        let d = Damaged::new();
        d.put_node(d.child(d.ino("/big"), 0), 0, &[byte; BLOCK]);
        assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
    }
}

#[test]
fn blocks_that_are_freed_although_a_file_may_miss_them_are_a_loss() {
    let d = Damaged::new();
    let plain = d.ino("/plain");
    let blocks = d.volume().inode(plain).unwrap().head().blocks.get();
    // Two places without an address, and i_blocks misses one block.
    d.put_inode(plain, 348, &[0; 12]);
    d.put_inode(plain, 24, &(blocks - 1).to_le_bytes());
    d.put_inode(plain, ADDRS, &[0; 8]);
    let plan = repair_of(&d.device);
    assert!(plan.losses.iter().any(|loss| loss.contains("blocks are freed")), "{:?}", plan.losses);
}

#[test]
fn a_quota_file_without_its_header_keeps_its_limits_and_grace_times() {
    let d = Damaged::new();
    let (addr, at) = quota_place(&d)[0];
    d.put(addr, at + 32, &9000u64.to_le_bytes());
    let header = d.data(d.volume().superblock().quota_inos[0], 0);
    d.put(header, 0, &[0; 4]);
    d.put(header, 8, &le(1234));
    let plan = repair_of(&d.device);
    assert_eq!((plan.certainty(), &plan.losses[..]), (Certainty::Certain, &[][..]));
    plan.apply(&*d.device).unwrap();
    let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
    let records = volume.quota_records(QuotaKind::User).unwrap();
    let limit = records.iter().find(|located| located.record.id.get() == 0).unwrap().record.block_hard_limit;
    assert_eq!(limit.get(), 9000);
    let mut info = [0; 1024];
    volume.read(volume.superblock().quota_inos[0], 0, &mut info).unwrap();
    assert_eq!(info[8..12], le(1234));
}

/// Sets a limit for the second user. Returns the quota file, and the place of the record.
fn with_limit(d: &Damaged) -> (Ino, BlockAddr, usize) {
    let quota = d.volume().superblock().quota_inos[0];
    let records = d.volume().quota_records(QuotaKind::User).unwrap();
    let record = records.iter().find(|located| located.record.id.get() == 1000).expect("it has a file");
    let at = (d.data(quota, record.offset / BLOCK as u64), record.offset as usize % BLOCK);
    d.put(at.0, at.1 + 32, &9000u64.to_le_bytes());
    (quota, at.0, at.1)
}

fn with_two_users() -> Damaged {
    Damaged::filled(64 << 20, "extra_attr,quota", |volume| {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"theirs", &NewNode::new(0o100_644))?;
        let owner = f2fs::engine::SetAttr { uid: Some(1000), ..Default::default() };
        volume.begin(Caller::ADMIN).set_attr(ino, &owner)?;
        volume.begin(Caller::ADMIN).write(ino, 0, &[1; 5 * BLOCK])
    })
}

/// The repair counted the usage anew, and said nothing of the limits.
#[test]
fn limits_in_lost_records_of_a_quota_file_are_a_loss() {
    for bytes in [512, 1024] {
        let d = with_two_users();
        let (_, leaf, at) = with_limit(&d);
        d.put(leaf, at / 1024 * 1024, &vec![0; bytes]);
        let plan = repair_of(&d.device);
        assert_eq!(plan.losses, ["limits in up to 1 quota files are lost"]);
        assert_eq!(plan.report.count(f2fs_check::Kind::QuotaFile), 1);
        assert_eq!(plan.certainty(), Certainty::Unclear);
        plan.apply(&*d.device).unwrap();
        let report = support::report(d.device.clone());
        assert!(report.is_clean(), "{}", support::lines(&report));
    }
}

#[test]
fn limits_below_a_lost_block_of_the_tree_of_a_quota_file_stay() {
    for block in 1..5 {
        let d = with_two_users();
        let (quota, ..) = with_limit(&d);
        d.put(d.data(quota, block * 1024 / BLOCK as u64), block as usize * 1024 % BLOCK, &[0; 1024]);
        let plan = repair_of(&d.device);
        assert_eq!((plan.certainty(), &plan.losses[..]), (Certainty::Likely, &[][..]), "block {block}");
        plan.apply(&*d.device).unwrap();
        let report = support::report(d.device.clone());
        assert!(report.is_clean(), "{}", support::lines(&report));
        let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        let records = volume.quota_records(QuotaKind::User).unwrap();
        let record = records.iter().find(|located| located.record.id.get() == 1000).unwrap().record;
        assert_eq!((record.block_hard_limit.get(), record.inodes.get()), (9000, 1), "block {block}");
    }
}

/// The inode got a new checksum, and nothing was told.
#[test]
fn fields_of_an_inode_that_only_its_checksum_confirms_may_be_a_loss() {
    let told = |plan: &Plan| plan.losses.iter().filter(|loss| loss.contains("permissions")).count();
    // Permissions and owner; the checksum itself.
    for (at, bytes) in [(0, &[0x07, 0x80][..]), (4, &[1, 2, 3, 4]), (368, &[1, 2, 3, 4])] {
        let d = Damaged::new();
        d.put_node(d.ino("/plain").into(), at, bytes);
        let plan = repair_of(&d.device);
        assert_eq!((told(&plan), plan.certainty()), (1, Certainty::Unclear), "byte {at}");
    }
    // Its blocks tell i_blocks, and the checksum is right with it.
    let d = Damaged::new();
    d.put_node(d.ino("/plain").into(), 24, &le(77));
    assert_eq!(told(&repair_of(&d.device)), 0);
}
