//! Nodes whose block is lost, or cannot be read.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use block::{Device, Fault, Faulty, Hooked, Verb};
use f2fs::{
    engine::{Caller, NewNode},
    units::Nid,
};
use f2fs_check::{
    Certainty,
    repair::{Planned, Undo, plan},
};

use crate::{
    ROOT, le, repair_of, repaired, support,
    volume::{BLOCK, Damaged, NOW, contents},
};

/// Takes the block of a node away, and its entry in the NAT.
fn lose_node(d: &Damaged, nid: Nid) {
    d.put_node(nid, 0, &[0; BLOCK]);
    d.put_nat(nid, 5, &le(7));
}

#[test]
fn the_blocks_below_a_lost_indirect_node_are_kept() {
    let d = Damaged::new();
    lose_node(&d, d.child(d.ino("/far"), 2));
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn the_blocks_below_lost_indirect_nodes_of_two_levels_are_kept() {
    let d = Damaged::new();
    let top = d.child(d.ino("/far"), 4);
    let below = d
        .block(d.addr(top))
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .find(|nid| *nid != 0);
    lose_node(&d, top);
    lose_node(&d, Nid(below.unwrap()));
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn a_directory_of_blocks_whose_inode_is_lost_comes_back_with_its_names() {
    for ino in [Damaged::new().ino("/many"), ROOT] {
        let d = Damaged::new();
        lose_node(&d, ino.into());
        assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
    }
}

#[test]
fn the_children_of_a_lost_inline_directory_enter_an_empty_one_in_its_place() {
    let d = Damaged::new();
    lose_node(&d, d.ino("/few").into());
    // Its inode carries its other name.
    assert_eq!(repaired(&d), ["\"few/small\""], "the files that are not as before");
}

#[test]
fn the_children_of_a_directory_without_inode_and_name_stay_together_in_lost_and_found() {
    let d = Damaged::new();
    let few = d.ino("/few");
    lose_node(&d, few.into());
    d.put_dentry(ROOT, d.slot(ROOT, "few"), 4, &le(60_000));
    let found: Vec<_> = repaired(&d).into_iter().filter(|path| path.starts_with('+')).collect();
    let expected = ["", "/below", "/other"].map(|end| format!("+\"lost+found/#{}{end}\"", few.0));
    assert_eq!(found, expected);
}

#[test]
fn a_node_that_cannot_be_read_at_first_is_not_lost() {
    let d = Damaged::new();
    let at = u64::from(d.addr(d.ino("/plain").into()).0) << 12;
    let left = AtomicI64::new(3);
    let failing = Hooked::new(d.device.clone(), move |verb, range: Range<u64>| {
        match verb == Verb::Read && range.contains(&at) && left.fetch_sub(1, Ordering::Relaxed) > 0 {
            true => Err(std::io::Error::other("a transient error")),
            false => Ok(()),
        }
    });
    let report = support::report(Arc::new(failing));
    assert!(report.is_clean(), "{}", support::lines(&report));
}

#[test]
fn a_node_that_cannot_be_read_is_a_loss() {
    let d = Damaged::new();
    let node = d.volume().inode(d.ino("/attributes")).unwrap().xattr_nid();
    let at = u64::from(d.addr(node).0) << 12;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + 1 };
    let device: Arc<dyn Device> = Arc::new(Faulty::new(d.device.clone(), vec![fault]));
    let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
    assert_eq!(plan.certainty(), Certainty::Unclear);
    assert!(plan.losses.iter().any(|loss| loss.contains("nodes are lost")), "{:?}", plan.losses);
}

/// Features of volumes of their own.
const FEATURES: &str = "extra_attr,inode_checksum";

/// Loses the inodes of these paths and repairs the volume. Returns the paths that are not as before.
fn repaired_without(d: &Damaged, lost: &[&str]) -> Vec<String> {
    let sound = contents(&d.device);
    for path in lost {
        lose_node(d, d.ino(path).into());
    }
    repair_of(&d.device).apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).unwrap();
    let found = contents(&d.device);
    let differing = sound.iter().filter(|(path, line)| found.get(*path) != Some(line));
    differing.map(|(path, _)| path.clone()).collect()
}

#[test]
fn files_in_nested_lost_directories_keep_their_names_and_content() {
    let d = Damaged::filled(64 << 20, FEATURES, |volume| {
        let mut dir = ROOT;
        // Directories with so many names have blocks.
        for name in ["nest", "deep"] {
            dir = volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(0o040_755))?;
            for n in 0..400 {
                let name = format!("entry {n}");
                volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(0o100_644))?;
            }
        }
        let file = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).write(file, 0, &[5; 7 * BLOCK])?;
        Ok(())
    });
    let lost = ["/nest", "/nest/deep", "/nest/deep/file"];
    assert_eq!(repaired_without(&d, &lost), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn many_lost_files_keep_their_content() {
    const FILES: usize = 80;
    const BLOCKS: usize = 850;
    let d = Damaged::filled(512 << 20, FEATURES, |volume| {
        for n in 0..FILES {
            let name = format!("file {n}");
            let file = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644))?;
            volume.begin(Caller::ADMIN).write(file, 0, &vec![n as u8 + 1; BLOCKS * BLOCK])?;
        }
        Ok(())
    });
    let paths: Vec<String> = (0..FILES).map(|n| format!("/file {n}")).collect();
    let lost: Vec<&str> = paths.iter().map(String::as_str).collect();
    assert_eq!(repaired_without(&d, &lost), Vec::<String>::new(), "the files that are not as before");
}

/// Makes a volume with the feature encrypt and plain files, without any key.
fn with_encryption() -> Damaged {
    Damaged::filled(64 << 20, "extra_attr,inode_checksum,encrypt", |volume| {
        let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755))?;
        for (parent, name) in [(ROOT, b"plain"), (dir, b"below")] {
            let file = volume.begin(Caller::ADMIN).create(parent, name, &NewNode::new(0o100_644))?;
            volume.begin(Caller::ADMIN).write(file, 0, &[5; 7 * BLOCK])?;
        }
        Ok(())
    })
}

#[test]
fn plain_files_on_a_volume_with_encryption_keep_their_content() {
    let lost = ["/plain", "/dir/below"];
    assert_eq!(repaired_without(&with_encryption(), &lost), Vec::<String>::new());
}

#[test]
fn a_plain_directory_on_a_volume_with_encryption_keeps_its_place() {
    assert_eq!(repaired_without(&with_encryption(), &["/dir"]), Vec::<String>::new());
}

#[test]
fn a_lost_file_in_an_encrypted_directory_does_not_come_back_as_a_plain_one() {
    const ADVISE: usize = 2;
    const ENCRYPT: u8 = 4;
    let d = with_encryption();
    d.put_inode(d.ino("/dir"), ADVISE, &[ENCRYPT]);
    lose_node(&d, d.ino("/dir/below").into());
    repair_of(&d.device).apply(&*d.device).unwrap();
    let found = contents(&d.device);
    assert!(found.contains_key("\"plain\"") && !found.contains_key("\"dir/below\""), "{found:?}");
}

#[test]
fn a_wrong_mark_of_inline_data_does_not_take_the_content_of_a_marked_file() {
    const ADVISE: usize = 2;
    const INLINE: usize = 3;
    const ENCRYPT: u8 = 4;
    const DATA: u8 = 2;
    let d = Damaged::filled(64 << 20, "extra_attr,inode_checksum,encrypt", |volume| {
        let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).write(file, 0, &[5; BLOCK]).map(drop)
    });
    let sound = contents(&d.device);
    let ino = d.ino("/file");
    let marks = d.volume().inode(ino).unwrap().head().inline;
    d.put_node(ino.into(), ADVISE, &[ENCRYPT]);
    d.put_inode(ino, INLINE, &[marks | DATA]);
    repair_of(&d.device).apply(&*d.device).unwrap();
    // The mark of encryption goes, too: the file has no context, and its directory no mark.
    assert_eq!(contents(&d.device), sound);
}

#[test]
fn undo_flushes_only_around_superblocks_and_packs() {
    let d = Damaged::new();
    let before = d.device.to_vec();
    for n in 0..300 {
        let ino = d.ino(&format!("/many/entry {n}"));
        d.put_inode(ino, 12, &le(9));
    }
    let damaged = d.device.to_vec();
    assert!(before != damaged);
    let plan = repair_of(&d.device);
    let undo = Undo::of(plan.requests(), &*d.device);
    plan.apply(&*d.device).unwrap();
    let flushes = Arc::new(AtomicI64::new(0));
    let count = flushes.clone();
    let device: Arc<dyn Device> = Arc::new(Hooked::new(d.device.clone(), move |verb, _: Range<u64>| {
        count.fetch_add(i64::from(verb == Verb::Flush), Ordering::Relaxed);
        Ok(())
    }));
    undo.apply(&device).unwrap();
    assert!(d.device.to_vec() == damaged);
    let flushes = flushes.load(Ordering::Relaxed);
    assert!(flushes < 100, "{flushes} flushes");
}

#[test]
fn small_content_that_its_checksum_does_not_confirm_is_said_to_be_doubtful() {
    let doubtful = |losses: &[String]| losses.iter().any(|loss| loss.contains("may be wrong"));
    let d = Damaged::new();
    let small = d.ino("/few/small");
    let inline = d.volume().inode(small).unwrap().layout().inline_range().start;
    d.put_node(small.into(), inline, b"Q");
    assert!(doubtful(&repair_of(&d.device).losses));
    // A mode that comes back brings the checksum back.
    let d = Damaged::new();
    d.put_node(small.into(), 1, &[0xC1]);
    let plan = repair_of(&d.device);
    assert!(!doubtful(&plan.losses), "{:?}", plan.losses);
    plan.apply(&*d.device).unwrap();
    // The content of a directory is confirmed by the hashes of its names.
    let d = Damaged::new();
    d.put_node(d.ino("/few").into(), 40, &[1]);
    assert!(!doubtful(&repair_of(&d.device).losses));
}

#[test]
fn garbage_in_a_block_of_the_nat_loses_no_more_nodes_than_there_were() {
    let d = Damaged::new();
    let (few, small) = (d.ino("/few"), d.ino("/few/small"));
    // The numbers behind those in use, in the same block: nine bytes each.
    let (addr, at) = d.nat_place(few.into());
    assert!(at > 0 && addr != d.journals()[0].0, "the entry is in the table");
    let sound = d.block(addr);
    let free: Vec<usize> = (0..455).filter(|slot| sound[slot * 9..(slot + 1) * 9] == [0; 9]).collect();
    free.iter().for_each(|slot| d.put(addr, slot * 9, &[0x5A; 9]));
    let plan = repair_of(&d.device);
    assert_eq!(plan.losses, Vec::<String>::new(), "{} entries, {few} and {small} are there", free.len());
    assert!(free.len() > 100);
}
