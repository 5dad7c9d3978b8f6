//! Damaged volumes: damage is left alone, and harms nothing else.

use super::*;
use f2fs::engine::Caller;

/// A file of a damaged volume claims a block of the superblock. An overwrite in place must not write there.
#[test]
fn blocks_outside_the_main_area_are_never_overwritten_in_place() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 20_000]).unwrap();
    volume.unmount().unwrap();
    let addrs = u64::from(volume.nat_entry(ino.into()).unwrap().addr.0) * 4096 + 360;
    drop(volume);
    device.write(addrs + 4, &1_u32.to_le_bytes()).unwrap();
    let mut superblock = [0; 4096];
    device.read(4096, &mut superblock).unwrap();

    let mut volume = Engine::open(device.clone(), Options::new(Time::default)).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let written = volume
        .begin(Caller::ADMIN)
        .write(ino, 4096, &[2; 4096])
        .and_then(|()| volume.fsync(ino, SyncScope::Everything));
    assert!(matches!(written, Err(Error::Corrupt { .. })), "{written:?}");
    let mut now = [0; 4096];
    device.read(4096, &mut now).unwrap();
    assert!(now == superblock);
}

/// Damage on the device: a block, an offset in it, and the new bytes.
type Damage = (BlockAddr, usize, Vec<u8>);

/// Chooses the damage to a file.
type Damager<'a> = &'a dyn Fn(&Engine, Ino) -> Damage;

/// Unlinks an open file, cuts the power, and changes one of the file's nodes on the device.
fn damaged_orphan(damage: impl FnOnce(&Engine, Ino) -> Damage) -> (Arc<MemoryDevice>, Ino) {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"gone", &NewNode::new(FILE)).unwrap();
    // Large enough for blocks below the inode and below two more nodes.
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 8 << 20]).unwrap();
    volume.begin(Caller::ADMIN).set_xattr(ino, b"user.large", &[2; 3000], XattrMode::Set).unwrap();
    let other = volume.begin(Caller::ADMIN).create(ROOT, b"other", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(other, 0, &[3; 100_000]).unwrap();
    volume.begin(Caller::ADMIN).set_xattr(other, b"user.large", &[4; 3000], XattrMode::Set).unwrap();
    volume.hold(ino);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"gone").unwrap();
    volume.checkpoint().unwrap();
    let (addr, at, bytes) = damage(&volume, ino);
    drop(volume);
    device.write(u64::from(addr.0) * 4096 + at as u64, &bytes).unwrap();
    (device, ino)
}

/// Its blocks were freed one by one up to the damage without being counted. The node that it named as its own
/// xattr node was freed with it.
#[test]
fn a_damaged_orphan_harms_no_other_file() {
    let node = |volume: &Engine, nid: Nid| volume.nat_entry(nid).unwrap().addr;
    let far = 0x7FFF_FFFF_u32.to_le_bytes().to_vec();
    // Offsets of a node's addresses, and of the inode's xattr nid.
    let (in_inode, xattr_nid) = (360, 76);
    let cases: [(&str, Damager<'_>); 4] = [
        ("an address in the inode", &|volume, ino| (node(volume, ino.into()), in_inode + 40, far.clone())),
        ("an address in a node", &|volume, ino| {
            let child = Nid(volume.inode(ino).unwrap().child(1).0);
            (node(volume, child), 40, far.clone())
        }),
        ("a node", &|volume, ino| {
            let child = Nid(volume.inode(ino).unwrap().child(1).0);
            (node(volume, child), 0, vec![0xA5; 4096])
        }),
        ("another's attributes", &|volume, ino| {
            let other = volume.lookup(ROOT, b"other").unwrap();
            let nid = volume.inode(other).unwrap().xattr_nid();
            (node(volume, ino.into()), xattr_nid, nid.0.to_le_bytes().to_vec())
        }),
    ];
    for (case, damage) in cases {
        let (device, ino) = damaged_orphan(damage);
        for round in 0..3 {
            let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
            assert!(volume.orphans().contains(&ino), "{case}: its remains are lost");
            let valid = volume.counters().valid_blocks;
            assert_eq!(valid, blocks_in_use(&volume), "{case}, round {round}");
            let name = format!("new{round}");
            let new = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
            volume.begin(Caller::ADMIN).write(new, 0, &vec![round; 3 << 20]).unwrap();
            let other = volume.lookup(ROOT, b"other").unwrap();
            assert_eq!(volume.get_xattr(other, b"user.large").unwrap(), [4; 3000], "{case}");
            let mut content = vec![0; 100_000];
            assert_eq!(volume.read(other, 0, &mut content).unwrap(), content.len());
            assert!(content.iter().all(|byte| *byte == 3), "{case}");
            volume.unmount().unwrap();
        }
    }
}

/// Linux leaves such inodes when a creation fails for want of space. They stayed for good, and counted as damage.
#[test]
fn an_orphan_that_never_had_a_name_is_removed_whatever_its_links() {
    let (links, name_length) = (12, 88);
    for (length, is_removed) in [(0_u32, true), (4, false)] {
        let mut place = BlockAddr(0);
        let (device, ino) = damaged_orphan(|volume, ino| {
            place = volume.nat_entry(ino.into()).unwrap().addr;
            (place, links, vec![1, 0, 0, 0])
        });
        device.write(u64::from(place.0) * 4096 + name_length, &length.to_le_bytes()).unwrap();
        let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
        let other = volume.lookup(ROOT, b"other").unwrap();
        volume.begin(Caller::ADMIN).write(other, 0, b"x").unwrap();
        assert_eq!(volume.orphans().contains(&ino), !is_removed, "{length}");
        assert_eq!(volume.counters().valid_blocks, blocks_in_use(&volume));
    }
}

/// The name was gone, the error said that it was not, and the inode was lost.
#[test]
fn a_damaged_file_that_loses_its_name_becomes_an_orphan() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    for name in [&b"removed"[..], b"replaced", b"new"] {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 8 << 20]).unwrap();
    }
    volume.unmount().unwrap();
    let damaged = [&b"removed"[..], b"replaced"].map(|name| {
        let ino = volume.lookup(ROOT, name).unwrap();
        let child = Nid(volume.inode(ino).unwrap().child(1).0);
        let addr = volume.nat_entry(child).unwrap().addr;
        device.write(u64::from(addr.0) * 4096, &[0xA5; 4096]).unwrap();
        ino
    });
    drop(volume);
    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    volume.begin(Caller::ADMIN).unlink(ROOT, b"removed").unwrap();
    volume.begin(Caller::ADMIN).rename(ROOT, b"new", ROOT, b"replaced", RenameMode::Replace).unwrap();
    assert!(damaged.iter().all(|ino| volume.orphans().contains(ino)));
    assert_eq!(volume.counters().valid_blocks, blocks_in_use(&volume));
    volume.unmount().unwrap();
}

/// A damaged volume accepted changes without a message. Now damaged structures are left alone, and the
/// checkpoint requests fsck.f2fs once damage has been met, as on Linux.
#[test]
fn damage_is_left_alone_and_requests_fsck() {
    const MIB: u64 = 1 << 20;
    let base = Arc::new(MemoryDevice::new(384 * MIB));
    let mut volume = support::format_on(base.clone(), &[], BlockSize::B4K);
    let big = volume.begin(Caller::ADMIN).create(ROOT, b"big", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(big, 0, &vec![1; 260 * MIB as usize]).unwrap();
    let mut last = big;
    for n in 0..500 {
        last = volume
            .begin(Caller::ADMIN)
            .create(ROOT, format!("file{n}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
    }
    volume.unmount().unwrap();
    let geometry = *volume.geometry();
    let (node, per_nat, per_sit) = (volume.nat_entry(last.into()).unwrap().addr, 455, 55);
    drop(volume);
    assert!(last.0 > per_nat && geometry.segments > 2 * per_sit);

    let both = |block: fn(&f2fs::engine::Geometry, u32, TableCopy) -> BlockAddr| {
        TableCopy::BOTH.map(|copy| block(&geometry, 1, copy)).to_vec()
    };
    type Act = fn(&mut Engine, Ino, Ino) -> f2fs::Result<()>;
    let damaged: [(&str, Vec<BlockAddr>, Act); 3] = [
        ("SIT", both(|geometry, index, copy| geometry.sit_block(index, copy)), |volume, big, _| {
            volume.begin(Caller::ADMIN).truncate(big, 0)
        }),
        ("NAT", both(|geometry, index, copy| geometry.nat_block(index, copy)), |volume, _, last| {
            for n in 0..400 {
                volume.begin(Caller::ADMIN).create(
                    ROOT,
                    format!("new{n}").as_bytes(),
                    &NewNode::new(FILE),
                )?;
            }
            volume.stat(last).map(drop)
        }),
        ("node", vec![node], |volume, _, last| volume.stat(last).map(drop)),
    ];
    for (what, blocks, act) in damaged {
        let device = Arc::new(copy(&base).unwrap());
        for addr in &blocks {
            device.write(u64::from(addr.0) * 4096, &[0xA5; 4096]).unwrap();
        }
        let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
        volume.begin(Caller::ADMIN).create(ROOT, b"before", &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        // The search for a free number starts after the last one, so it has already met that block.
        let met = volume.last_checkpoint().flags.has(Flags::FSCK);
        assert_eq!(met, what == "NAT", "{what}: not before it is met");
        let refused = act(&mut volume, big, last);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{what}: {refused:?}");
        volume.begin(Caller::ADMIN).create(ROOT, b"after", &NewNode::new(FILE)).unwrap();
        volume.unmount().unwrap();
        assert!(volume.last_checkpoint().flags.has(Flags::FSCK), "{what}");
        drop(volume);
        for addr in &blocks {
            let mut block = [0; 4096];
            device.read(u64::from(addr.0) * 4096, &mut block).unwrap();
            assert!(block == [0xA5; 4096], "{what}: it was written to");
        }
        let mut volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
        volume.begin(Caller::ADMIN).create(ROOT, b"again", &NewNode::new(FILE)).unwrap();
        volume.unmount().unwrap();
        assert!(volume.last_checkpoint().flags.has(Flags::FSCK), "{what}: until fsck.f2fs takes it back");
    }
}

/// The flag of a device alias has no meaning on a volume without that feature.
#[test]
fn an_alias_of_a_device_without_the_feature_is_a_file() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[5; 20_000]).unwrap();
    volume.unmount().unwrap();
    let inode = u64::from(volume.nat_entry(ino.into()).unwrap().addr.0) * 4096;
    drop(volume);
    let alias = [4096_u32, 100, 1].map(u32::to_le_bytes).concat();
    device.write_part(inode + FLAGS_AT, &0x8000_0000_u32.to_le_bytes());
    device.write_part(inode + EXTENT_AT, &alias);

    let mut volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    let mut bytes = vec![0; 20_000];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), 20_000);
    assert!(bytes == [5; 20_000]);
    let before = volume.space().free_blocks;
    volume.begin(Caller::ADMIN).unlink(ROOT, b"file").unwrap();
    assert!(volume.space().free_blocks >= before + 5, "its blocks are free");
}

/// A device alias has its addresses in its extent. A mark of a cluster there has no node.
#[test]
fn an_alias_of_a_device_has_blocks_of_the_main_area_only() {
    const FEATURES_AT: u64 = 2180;
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &["extra_attr", "compression"], BlockSize::B4K);
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(file, 0, &[5; 20_000]).unwrap();
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    for n in 0..300 {
        volume.begin(Caller::ADMIN).create(dir, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    let packed = volume.begin(Caller::ADMIN).create(ROOT, b"packed", &NewNode::new(FILE)).unwrap();
    let compress = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(packed, &compress).unwrap();
    volume.begin(Caller::ADMIN).write(packed, 0, &[5; 65_536]).unwrap();
    assert!(volume.begin(Caller::ADMIN).release_saved(packed).unwrap() > 0);
    volume.unmount().unwrap();
    let first = volume.address(&volume.inode(file).unwrap(), 0).unwrap().0;
    let (features, end) = (volume.superblock().features.0, volume.superblock().main.end() as u32);
    let at = |ino: Ino| u64::from(volume.nat_entry(ino.into()).unwrap().addr.0) * 4096;
    let inodes = [(file, at(file), 0), (dir, at(dir), 0), (packed, at(packed), flag::COMPRESS)];
    drop(volume);
    for (_, at, flags) in inodes {
        device.write_part(at + FLAGS_AT, &(flags | flag::DEVICE_ALIAS).to_le_bytes());
    }
    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    let reserved = volume.begin(Caller::ADMIN).reserve_saved(packed);
    assert!(matches!(reserved, Err(Error::NotPermitted)), "{reserved:?}");
    drop(volume);
    for copy in [1024, 5120] {
        device.write_part(copy + FEATURES_AT, &(features | 0x8000).to_le_bytes());
    }
    // Beyond the addresses of its nodes.
    device.write_part(inodes[2].1 + SIZE_AT, &(9000_u64 * 4096).to_le_bytes());
    let with = |[fofs, addr, blocks]: [u32; 3]| {
        let alias = [fofs, addr, blocks].map(u32::to_le_bytes).concat();
        for (_, at, _) in inodes {
            device.write_part(at + EXTENT_AT, &alias);
        }
        Engine::open(device.clone(), Options::read_only()).unwrap()
    };
    let mark = BlockAddr::COMPRESS.0;
    for extent in
        [[4096, mark, 4], [0, mark, 1], [0, u32::MAX, 1], [0, 1, 1], [0, end - 1, 2], [0, first, !0]]
    {
        let volume = with(extent);
        let error = volume.read(file, 0, &mut [0; 100]).unwrap_err().to_string();
        assert!(error.contains(&format!("corrupt {file}")) && error.contains("main area"), "{error}");
        // The rest of the file is hidden, also from the middle of a cluster on: readers continue behind it.
        let hidden = volume.next_extent_or_hidden(packed, 4096).unwrap_err();
        assert_eq!(hidden.bytes, 4096..9000 * 4096);
        let error = volume.released_blocks(packed).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
    let volume = with([1, first, 2]);
    let mut bytes = [9; 20_000];
    assert_eq!(volume.read(file, 0, &mut bytes).unwrap(), 20_000);
    assert!(
        bytes.iter().enumerate().all(|(n, byte)| *byte == if (4096..12_288).contains(&n) { 5 } else { 0 })
    );
    assert!(matches!(volume.lookup(dir, b"7"), Err(Error::Corrupt { .. })), "a directory");
    assert!(matches!(volume.released_blocks(packed), Err(Error::Corrupt { .. })), "a compressed file");
}

/// A stale file handle may contain any number. A request for it is not damage.
#[test]
fn looking_up_a_number_that_is_not_an_inode_is_not_damage() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device, &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 8 << 20, &[1; 4096]).unwrap();
    let direct = Ino(ino.0 + 1);
    assert_eq!(volume.nat_entry(direct.into()).unwrap().ino, ino);
    for (number, is) in [(ROOT, true), (ino, true), (direct, false), (Ino(0), false), (Ino(u32::MAX), false)]
    {
        assert_eq!(volume.is_inode(number).unwrap(), is, "{number}");
    }
    volume.unmount().unwrap();
    assert!(!volume.last_checkpoint().flags.has(Flags::FSCK));
}

/// A block that the segment table marks as invalid can be rewritten like a valid one, so its file does not
/// prevent a checkpoint.
#[test]
fn a_damaged_segment_table_stops_no_checkpoint() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 20 * 4096]).unwrap();
    for n in 0..20 {
        let other = volume
            .begin(Caller::ADMIN)
            .create(ROOT, format!("other{n}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
        volume.begin(Caller::ADMIN).write(other, 0, &vec![1; 600 * 4096]).unwrap();
    }
    volume.unmount().unwrap();
    let geometry = *volume.geometry();
    let damaged =
        [volume.nat_entry(ino.into()).unwrap().addr, volume.address(&volume.inode(ino).unwrap(), 5).unwrap()];
    drop(volume);
    unmark(&device, &geometry, &damaged);
    let options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options()).unwrap();
    for addr in damaged {
        let (segment, offset) = geometry.position(addr);
        let entry = volume.sit_entry(segment).unwrap();
        assert!(entry.map[usize::from(offset / 8)] & (0x80 >> (offset % 8)) == 0);
    }
    let free = volume.free_user_blocks();
    volume.begin(Caller::ADMIN).write(ino, 5 * 4096, &[2; 4096]).unwrap();
    volume.begin(Caller::ADMIN).link(ino, ROOT, b"second").unwrap();
    let other = volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
    volume.fsync(other, SyncScope::Everything).unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(volume.free_user_blocks(), free - 1);
    volume.unmount().unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::FSCK));
    drop(volume);
    let volume = Engine::open(device, options()).unwrap();
    let mut found = [0; 4096];
    volume.read(volume.lookup(ROOT, b"second").unwrap(), 5 * 4096, &mut found).unwrap();
    assert!(found == [2; 4096]);
}

/// Makes the segment table mark blocks as invalid.
fn unmark(device: &MemoryDevice, geometry: &Geometry, damaged: &[BlockAddr]) {
    // Layout of an entry: the number of valid blocks, and their map.
    const ENTRY_BYTES: u64 = 74;
    for addr in damaged {
        let (segment, offset) = geometry.position(*addr);
        for copy in TableCopy::BOTH {
            let table = u64::from(geometry.sit_block(0, copy).0) * 4096;
            let at = table + u64::from(segment.0) * ENTRY_BYTES;
            let mut entry = [0; ENTRY_BYTES as usize];
            device.read(at, &mut entry).unwrap();
            let (byte, bit) = (2 + usize::from(offset / 8), 0x80 >> (offset % 8));
            // In one of the copies, the block may not have been marked yet.
            if entry[byte] & bit != 0 {
                entry[byte] &= !bit;
                let counted = u16::from_le_bytes([entry[0], entry[1]]) - 1;
                entry[..2].copy_from_slice(&counted.to_le_bytes());
                device.write(at, &entry).unwrap();
            }
        }
    }
}

/// A damaged segment table does not lose the content of a compressed cluster that is opened or rewritten.
#[test]
fn a_damaged_segment_table_takes_no_cluster_away() {
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let features = ["extra_attr", "compression"];
    let mut volume = support::format_on(device.clone(), &features, BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let compressed = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(ino, &compressed).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 12 * 4096]).unwrap();
    for n in 0..20 {
        let other = volume
            .begin(Caller::ADMIN)
            .create(ROOT, format!("other{n}").as_bytes(), &NewNode::new(FILE))
            .unwrap();
        volume.begin(Caller::ADMIN).write(other, 0, &vec![1; 600 * 4096]).unwrap();
    }
    volume.unmount().unwrap();
    let geometry = *volume.geometry();
    // The first address of each cluster marks it as compressed.
    let damaged = [1, 5].map(|block| volume.address(&volume.inode(ino).unwrap(), block).unwrap());
    drop(volume);
    unmark(&device, &geometry, &damaged);
    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    volume.begin(Caller::ADMIN).punch_hole(ino, 2 * 4096, 4096).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 6 * 4096, &[2; 4096]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    volume.unmount().unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::FSCK));
    drop(volume);
    let volume = Engine::open(device, Options::read_only()).unwrap();
    let mut found = [0; 12 * 4096];
    volume.read(ino, 0, &mut found).unwrap();
    for (n, block) in found.chunks(4096).enumerate() {
        let wanted = [1, 0, 2][usize::from(n == 2) + 2 * usize::from(n == 6)];
        assert!(block.iter().all(|byte| *byte == wanted), "block {n}");
    }
}
