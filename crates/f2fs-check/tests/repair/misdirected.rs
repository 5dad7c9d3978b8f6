//! Nodes whose block a write for another node overwrote.

use f2fs::format::quota::QuotaKind;

use super::*;

/// Copies the block of a node over that of another one.
fn copy(d: &Damaged, from: Nid, to: Nid) {
    d.put_node(to, 0, &d.block(d.addr(from)));
}

/// Repairs a volume and returns it.
fn after(d: &Damaged) -> (f2fs::Volume, Vec<String>) {
    let plan = repair_of(&d.device);
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    (f2fs::OpenOptions::new().open(d.device.clone()).unwrap(), plan.losses)
}

#[test]
fn a_file_whose_inode_another_one_overwrote_keeps_its_content() {
    let d = Damaged::new();
    copy(&d, d.ino("/few/small").into(), d.ino("/plain").into());
    let (volume, losses) = after(&d);
    assert!(volume.read("/plain").unwrap() == [3; 5 * BLOCK], "{losses:?}");
    assert_eq!(volume.read("/few/small").unwrap(), b"small content");
    assert!(losses.iter().any(|line| line.contains("attributes")), "{losses:?}");
}

#[test]
fn a_directory_whose_inode_another_one_overwrote_keeps_its_own_files() {
    let d = Damaged::new();
    copy(&d, d.ino("/few/below").into(), d.ino("/few").into());
    let (volume, losses) = after(&d);
    let names = |path| {
        let entries = volume.read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().to_vec());
        entries.collect::<std::collections::BTreeSet<_>>()
    };
    // The inode of "small" carries its other name.
    assert_eq!(names("/few"), [b"below".to_vec(), b"other".to_vec()].into(), "{losses:?}");
    assert_eq!(names("/few/below"), [].into());
    assert!(!losses.is_empty());
}

#[test]
fn a_quota_file_whose_inode_another_one_overwrote_comes_back_from_its_blocks() {
    let d = Damaged::new();
    let old = d.volume().quota_records(QuotaKind::User).unwrap();
    copy(&d, d.ino("/plain").into(), d.volume().superblock().quota_inos[0].into());
    let (volume, losses) = after(&d);
    assert!(volume.read("/plain").unwrap() == [3; 5 * BLOCK], "{losses:?}");
    let new = Engine::open(d.device.clone(), Options::read_only()).unwrap();
    let new = new.quota_records(QuotaKind::User).unwrap();
    assert_eq!(old.len(), new.len(), "{losses:?}");
}

#[test]
fn a_node_that_another_one_of_its_file_overwrote_gets_its_own_addresses_back() {
    let d = Damaged::new();
    let big = d.ino("/big");
    copy(&d, d.child(big, 1), d.child(big, 0));
    let (volume, losses) = after(&d);
    let content = volume.read("/big").unwrap();
    assert!((0..2000).all(|n| content[n * BLOCK] == (n % 255) as u8), "{losses:?}");
}

#[test]
fn a_file_whose_inode_a_node_of_its_own_overwrote_keeps_its_content() {
    let d = Damaged::new();
    let big = d.ino("/big");
    copy(&d, d.child(big, 0), big.into());
    let (volume, losses) = after(&d);
    let content = volume.read("/big").unwrap();
    assert!((0..2000).all(|n| content[n * BLOCK] == (n % 255) as u8), "{losses:?}");
    assert!(losses.iter().any(|line| line.contains("attributes")), "{losses:?}");
}
