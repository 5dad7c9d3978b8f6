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
fn a_wrong_nat_address_of_a_quota_file_costs_nothing() {
    let sound = Damaged::new();
    let quota = sound.volume().superblock().quota_inos[0];
    for other in ["/plain", "/few/small", "/few"] {
        let d = Damaged::new();
        d.put_nat(quota.into(), 5, &d.addr(d.ino(other).into()).0.to_le_bytes());
        let before = sound.volume().quota_records(QuotaKind::User).unwrap();
        let (_, losses) = after(&d);
        assert_eq!(losses, [""; 0], "{other}");
        assert_eq!(contents(&d.device), contents(&sound.device), "{other}");
        let new = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        assert_eq!(new.quota_records(QuotaKind::User).unwrap().len(), before.len(), "{other}");
    }
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

/// Blocks of the file "large", each with its own content.
const LARGE: u64 = 5200;

/// A volume with a file whose indirect node names direct nodes, the last of which has few addresses. Both lie behind them.
fn with_indirect() -> Damaged {
    static SOUND: std::sync::OnceLock<Damaged> = std::sync::OnceLock::new();
    let sound = SOUND.get_or_init(|| {
        Damaged::filled(128 << 20, "extra_attr", |volume| {
            let ino = volume.begin(Caller::ADMIN).create(ROOT, b"large", &NewNode::new(0o100_644))?;
            for n in 0..LARGE {
                if n == LARGE - 1 {
                    volume.checkpoint()?;
                }
                volume.begin(Caller::ADMIN).write(
                    ino,
                    n * BLOCK as u64,
                    &n.to_le_bytes().repeat(BLOCK / 8),
                )?;
            }
            Ok(())
        })
    });
    Damaged::copy_of(&sound.device)
}

/// The children of the indirect node of "large".
fn children(d: &Damaged) -> Vec<Nid> {
    let block = d.block(d.addr(d.child(d.ino("/large"), 2)));
    let words = block.chunks_exact(4).map(|word| Nid(u32::from_le_bytes(word.try_into().unwrap())));
    words.take_while(|nid| *nid != Nid::NULL).collect()
}

/// The first block of "large" with another content than its own.
fn first_wrong(volume: &f2fs::Volume) -> Option<u64> {
    let content = volume.read("/large").unwrap();
    assert_eq!(content.len(), LARGE as usize * BLOCK);
    let words = (0..LARGE).map(|n| (n, &content[n as usize * BLOCK..][..8]));
    words.into_iter().find(|(n, word)| **word != n.to_le_bytes()).map(|(n, _)| n)
}

#[test]
fn a_node_below_an_indirect_one_that_its_neighbour_overwrote_gets_its_own_addresses_back() {
    let (count, from_to) = (children(&with_indirect()).len(), [(0, 1), (1, 0), (2, 0), (0, 2), (2, 1)]);
    assert_eq!(count, 3);
    for (from, to) in from_to {
        let d = with_indirect();
        let nodes = children(&d);
        let parent = d.addr(d.child(d.ino("/large"), 2));
        assert!(d.addr(nodes[0]) < parent && d.addr(nodes[1]) < parent, "the parent is read later");
        copy(&d, nodes[from], nodes[to]);
        let (volume, losses) = after(&d);
        assert_eq!(first_wrong(&volume), None, "{from} over {to}: {losses:?}");
    }
}

/// The footers of the children tell their places.
#[test]
fn an_indirect_node_that_moved_by_a_sector_changes_no_content() {
    for bytes in [512, 1024, 8] {
        let d = with_indirect();
        let parent = d.child(d.ino("/large"), 2);
        let mut block = d.block(d.addr(parent));
        block.rotate_right(bytes);
        block[..bytes].fill(0);
        d.put_node(parent, 0, &block);
        let (volume, losses) = after(&d);
        assert_eq!((first_wrong(&volume), &losses[..]), (None, &[][..]), "moved by {bytes} bytes");
    }
}

/// The places that only one of the nodes has hid that the block is a copy: blocks of the other one were put into holes, and
/// those of the lost one were freed.
#[test]
fn a_node_of_a_sparse_file_that_its_neighbour_overwrote_gets_its_own_addresses_back() {
    let d = Damaged::filled(64 << 20, "extra_attr", |volume| {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"sparse", &NewNode::new(0o100_644))?;
        // Blocks of the first two nodes below the indirect one, at other places in each; and one of a third node.
        for n in (3000..3040).chain(4100..4143).chain([5000]) {
            if n == 5000 {
                volume.checkpoint()?;
            }
            volume.begin(Caller::ADMIN).write(ino, n * BLOCK as u64, &[n as u8; BLOCK])?;
        }
        Ok(())
    });
    let before = contents(&d.device);
    let parent = d.child(d.ino("/sparse"), 2);
    let words = d.block(d.addr(parent));
    let node = |n: usize| Nid(u32::from_le_bytes(words[4 * n..4 * n + 4].try_into().unwrap()));
    assert!(d.addr(node(1)) < d.addr(parent), "the parent is read later");
    copy(&d, node(0), node(1));
    let (_, losses) = after(&d);
    assert_eq!((contents(&d.device), losses), (before, Vec::new()));
}

/// A volume with three directories of several blocks in others.
fn with_directories() -> Damaged {
    Damaged::filled(64 << 20, "extra_attr", |volume| {
        for (n, name) in ["one", "two", "three"].into_iter().enumerate() {
            let dir = NewNode::new(0o040_755);
            let above = volume.begin(Caller::ADMIN).create(ROOT, format!("in {name}").as_bytes(), &dir)?;
            let ino = volume.begin(Caller::ADMIN).create(above, name.as_bytes(), &dir)?;
            for entry in 0..250 + 100 * n {
                let (name, file) = (format!("{name} {entry}"), NewNode::new(0o100_644));
                volume.begin(Caller::ADMIN).create(ino, name.as_bytes(), &file)?;
            }
            volume.begin(Caller::ADMIN).create(ino, b"below", &dir)?;
        }
        Ok(())
    })
}

/// The three directories of [`with_directories`], and their first blocks.
fn first_blocks(d: &Damaged) -> [(Ino, BlockAddr); 3] {
    ["/in one/one", "/in two/two", "/in three/three"].map(|path| (d.ino(path), d.data(d.ino(path), 0)))
}

/// "." was taken for wrong, and the names came to the wrong directories.
#[test]
fn swapped_first_blocks_of_directories_come_back_to_their_directories() {
    let sound = with_directories();
    for count in [2, 3] {
        let (contents_swapped, addresses_swapped) =
            (Damaged::copy_of(&sound.device), Damaged::copy_of(&sound.device));
        let blocks = first_blocks(&sound);
        for (n, (ino, addr)) in blocks.into_iter().take(count).enumerate() {
            let (_, other) = blocks[(n + 1) % count];
            contents_swapped.put(addr, 0, &sound.block(other));
            addresses_swapped.put_node(ino.into(), ADDRS, &other.0.to_le_bytes());
        }
        for d in [contents_swapped, addresses_swapped] {
            let plan = repair_of(&d.device);
            assert_eq!((plan.certainty(), &plan.losses[..]), (Certainty::Certain, &[][..]), "{count}");
            let _ = after(&d);
            assert!(contents(&d.device) == contents(&sound.device), "{count}");
        }
    }
}

#[test]
fn a_first_block_of_another_directory_needs_a_person() {
    let d = with_directories();
    let [(_, one), (_, two), _] = first_blocks(&d);
    d.put(one, 0, &d.block(two));
    assert_eq!(repair_of(&d.device).certainty(), Certainty::Unclear);
}

/// The entries tell that only "." is wrong.
#[test]
fn a_dot_that_names_another_directory_beside_own_names_is_certain() {
    let sound = with_directories();
    let d = Damaged::copy_of(&sound.device);
    let [(_, one), (other, _), _] = first_blocks(&d);
    d.put(one, BLOCK - 214 * 19 + 4, &other.0.to_le_bytes());
    let plan = repair_of(&d.device);
    assert_eq!((plan.certainty(), &plan.losses[..]), (Certainty::Certain, &[][..]));
    let _ = after(&d);
    assert!(contents(&d.device) == contents(&sound.device));
}
