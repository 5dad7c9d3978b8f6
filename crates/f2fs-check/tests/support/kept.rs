//! Content that earlier repairs gave up: inodes in the orphan list, addresses of zeroes, limits of quota files.

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
    let records = volume.quota_records(f2fs::format::quota::QuotaKind::User).unwrap();
    let limit = records.iter().find(|located| located.record.id.get() == 0).unwrap().record.block_hard_limit;
    assert_eq!(limit.get(), 9000);
    let mut info = [0; 1024];
    volume.read(volume.superblock().quota_inos[0], 0, &mut info).unwrap();
    assert_eq!(info[8..12], le(1234));
}
