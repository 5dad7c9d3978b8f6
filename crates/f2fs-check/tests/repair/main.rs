//! Each kind of damage is repaired: the next check finds nothing, fsck.f2fs neither, every file that the damage did not
//! touch is as before, and undo brings the damaged volume back.

use std::{collections::BTreeMap, sync::Arc};

use block::{Counted, Device, Fault, Faulty, MemoryDevice, Survivors, Verb, power_cut};
use f2fs::{
    engine::{Caller, Engine, FinalSymlink, NewNode, Options},
    format::{BLOCKS_PER_SEGMENT, dir_hash, inode::flag, node::NodeFooter, sit::SegmentType},
    units::{BlockAddr, Ino, Nid, SegNo},
};
use f2fs_check::{
    Certainty, Report,
    repair::{Plan, Planned, Undo, UndoError, plan},
};

mod addresses;
mod case_folding;
mod directories;
mod displaced;
mod encrypted;
#[path = "../support/kept.rs"]
mod kept;
mod layouts;
mod lost;
mod lost_names;
mod lost_tables;
mod misdirected;
mod outdated;
mod rolled_forward;
mod sectors;
mod superblocks;
#[path = "../support/mod.rs"]
mod support;
mod unmounted;
#[path = "../support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW, contents};

/// Kinds that a person has to resolve.
const REFUSED: [&str; 2] = ["feature-unknown", "resize-unfinished"];

/// Plans a repair.
fn planned(device: &Arc<MemoryDevice>) -> Planned {
    let device: Arc<dyn Device> = device.clone();
    plan(&device, NOW, &mut |_| {}).expect("an F2FS volume")
}

fn repair_of(device: &Arc<MemoryDevice>) -> Plan {
    match planned(device) {
        Planned::Repair(plan) => plan,
        Planned::Clean(report) => panic!("nothing to repair: {}", support::lines(&report)),
        Planned::Refused(refusal) => panic!("{}\n{}", refusal.reason, support::lines(&refusal.report)),
    }
}

/// Repairs a damaged volume and judges the result. Returns the paths that are not as before.
fn repaired(damaged: &Damaged) -> Vec<String> {
    let before = damaged.device.to_vec();
    let plan = repair_of(&damaged.device);
    let undo = Undo::of(plan.requests(), &*damaged.device);
    assert!(damaged.device.to_vec() == before, "a plan writes nothing");
    plan.apply(&*damaged.device).unwrap();
    let report: Report = support::report(damaged.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    if let Err(error) = model::fsck::fsck(&damaged.device) {
        panic!("fsck.f2fs: {error:#}");
    }
    let (sound, found) = (contents(&Damaged::new().device), contents(&damaged.device));
    let mut stored = Vec::new();
    undo.store(&mut stored).unwrap();
    let device: Arc<dyn Device> = damaged.device.clone();
    Undo::load(&mut &stored[..]).unwrap().apply(&device).unwrap();
    assert!(damaged.device.to_vec() == before, "undo brings every byte back");
    let mut differing: Vec<String> = sound
        .iter()
        .filter(|(path, line)| found.get(*path) != Some(line))
        .map(|(path, _)| path.clone())
        .collect();
    differing.extend(found.keys().filter(|path| !sound.contains_key(*path)).map(|path| format!("+{path}")));
    differing
}

macro_rules! damage {
    ($($test:ident => [$($kind:literal),*]: |$damaged:ident| $damage:block)*) => {$(
        #[test]
        fn $test() {
            let $damaged = Damaged::new();
            $damage
            let kinds: Vec<&str> = vec![$($kind),*];
            if kinds.is_empty() {
                assert!(matches!(planned(&$damaged.device), Planned::Clean(_)));
            } else if kinds.iter().any(|kind| REFUSED.contains(kind)) {
                let before = $damaged.device.to_vec();
                assert!(matches!(planned(&$damaged.device), Planned::Refused(_)));
                assert!($damaged.device.to_vec() == before);
            } else {
                let differing = repaired(&$damaged);
                assert_eq!(differing, lost_by(stringify!($test)), "the files that are not as before");
            }
        }
    )*};
}

include!("../support/cases.rs");
include!("../support/inode_cases.rs");

#[test]
fn a_block_of_a_file_that_a_directory_names_keeps_its_content() {
    let d = Damaged::new();
    d.put_inode(d.ino("/many"), ADDRS + 8, &le(d.data(d.ino("/big"), 9).0));
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn a_size_that_the_blocks_do_not_confirm_is_lost_and_said() {
    let d = Damaged::new();
    // The file has holes.
    d.put_inode(d.ino("/far"), 16, &(1u64 << 50).to_le_bytes());
    let losses = repair_of(&d.device).losses;
    assert!(losses.iter().any(|line| line.contains("sizes of up to 1 files are lost")), "{losses:?}");
}

#[test]
fn a_damaged_head_of_the_newest_pack_comes_back_from_the_end_of_the_pack() {
    let d = Damaged::new();
    // The files of this volume are those of the newest checkpoint; the older one has fewer.
    let newest = d.pack(d.checkpoint().0);
    d.put(newest, 200, &[0xEE; 8]);
    assert_eq!(repair_of(&d.device).certainty(), Certainty::Certain);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn an_old_head_of_the_newest_pack_gives_way_to_the_end_of_the_pack() {
    let d = Damaged::new();
    let (number, checkpoint) = d.checkpoint();
    d.put_head(number, 0, &(checkpoint.version.0 - 2).to_le_bytes());
    assert_eq!(repair_of(&d.device).certainty(), Certainty::Certain);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

/// A volume whose newest pack has lost its head and its journals, with its content before that. The newest checkpoint has files
/// that only its journal and the log of their nodes tell. Returns the last blocks of the logs of nodes, too.
fn without_head_and_journals() -> (Damaged, BTreeMap<String, String>, Vec<BlockAddr>) {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    for n in 0..20 {
        let name = format!("late {n}");
        let ino =
            volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[n; 3 * BLOCK]).unwrap();
    }
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).write(d.ino("/plain"), 0, b"newest").unwrap();
    volume.unmount().unwrap();
    let (pack, checkpoint) = (d.pack(volume.last_pack()), volume.last_checkpoint());
    let before = contents(&d.device);
    d.put(pack, 0, &[0; BLOCK]);
    for block in checkpoint.summaries_start..checkpoint.pack_blocks - 1 {
        d.put(BlockAddr(pack.0 + block), 0, &[0; BLOCK]);
    }
    let logs = checkpoint.logs[SegmentType::HotNode.index()..].iter().filter(|log| log.offset > 0);
    let last = logs.map(|log| volume.geometry().block(log.segment, log.offset - 1)).collect();
    (d, before, last)
}

#[test]
fn a_damaged_head_over_lost_journals_comes_back_with_what_the_logs_tell() {
    let (d, before, _) = without_head_and_journals();
    let plan = repair_of(&d.device);
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    assert!(contents(&d.device) == before, "{:?}", plan.losses);
}

#[test]
fn a_damaged_head_over_lost_journals_gives_way_to_the_older_pack() {
    let (d, before, last) = without_head_and_journals();
    // The logs do not lead to the places where they go on.
    for addr in last {
        d.put(addr, BLOCK - 4, &[0; 4]);
        if NodeFooter::of(&d.block(addr)).is_inode() {
            d.seal_at(NodeFooter::of(&d.block(addr)).ino, addr);
        }
    }
    let plan = repair_of(&d.device);
    assert_eq!(plan.certainty(), Certainty::Unclear, "the newest changes are lost");
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    let mut after = contents(&d.device);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    after.retain(|path, line| before.get(path) != Some(line));
    assert_eq!(
        after.into_keys().collect::<Vec<_>>(),
        ["\"plain\""],
        "the file of the lost checkpoint is older"
    );
}

#[test]
fn a_volume_with_an_unfinished_resize_is_refused_with_the_command_that_finishes_it() {
    let d = Damaged::new();
    d.put_checkpoint(132, &le(d.checkpoint().1.flags.0 | 0x4000));
    let Planned::Refused(refusal) = planned(&d.device) else { panic!("a refusal") };
    assert!(refusal.reason.contains("fsck.f2fs -f"), "{}", refusal.reason);
}

/// Nothing wrote a checkpoint for the superblock, and fsck.f2fs told the checksum of the older pack.
#[test]
fn a_damaged_older_pack_beside_a_damaged_superblock_is_overwritten() {
    let d = Damaged::new();
    d.put(BlockAddr(0), 1024, &[0; 4]);
    d.put(d.pack(1 - d.checkpoint().0), 200, &[0xEE; 8]);
    assert_eq!(repair_of(&d.device).certainty(), Certainty::Certain);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn superblocks_that_differ_in_the_label_need_no_person() {
    let certainty = |at| {
        let d = Damaged::new();
        put_superblock(&d, 1, at, b"x");
        repair_of(&d.device).certainty()
    };
    let (label, uuid) = (124, 108);
    assert_eq!((certainty(label), certainty(uuid)), (Certainty::Certain, Certainty::Likely));
}

#[test]
fn newer_nodes_of_a_segment_without_summary_are_not_replaced_by_old_ones_that_an_old_table_marks() {
    let d = Damaged::new();
    let (segment, _) = closed_node(&d);
    let inos = (0..700).map(|n| d.ino(&format!("/many/entry {n}")));
    let inos: Vec<Ino> = inos.filter(|ino| d.position(d.addr((*ino).into())).0 == segment).take(9).collect();
    let is_free = |segment: &SegNo| d.sit(*segment).valid_blocks == 0 && !d.is_log(*segment);
    let geometry = *d.volume().geometry();
    let old = (0..geometry.segments).map(SegNo).find(is_free).expect("a free segment");
    d.put_sit(old, 0, &(4u16 << 10).to_le_bytes());
    d.put(d.ssa(old), BLOCK - 5, &[1]);
    for (n, ino) in (0..).zip(inos) {
        let to = geometry.block(old, n);
        d.move_block(d.addr(ino.into()), to, &[&le(ino.0)[..], &[0; 3]].concat());
        // The old version has other permissions, and was written before.
        d.put(to, 0, &0o100_000u16.to_le_bytes());
        d.put(to, FOOTER + 12, &[0; 8]);
    }
    d.put(d.ssa(segment), 0, &[0; BLOCK - 5]);
    let modes = || {
        let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        (0..700).all(|n| {
            let ino = volume.resolve(format!("/many/entry {n}").as_bytes(), FinalSymlink::NoFollow).unwrap();
            volume.inode(ino).unwrap().head().mode.get() == 0o100_644
        })
    };
    repair_of(&d.device).apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    assert!(modes(), "the newer version counts");
}

#[test]
fn a_volume_of_two_damaged_heads_comes_back_from_the_newer_end() {
    let d = Damaged::new();
    for pack in [0, 1] {
        d.put(d.pack(pack), 0, &[0; BLOCK]);
    }
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

/// Marks blocks of a free segment as valid old copies of the first blocks of a closed one, whose summary becomes blank.
fn put_old_copies_beside_a_blank_summary(d: &Damaged, copies: usize) {
    let (segment, _) = closed(d, "/big");
    let owners = d.block(d.ssa(segment))[..7 * copies].to_vec();
    let is_free = |segment: &SegNo| d.sit(*segment).valid_blocks == 0 && !d.is_log(*segment);
    let old = (0..d.volume().geometry().segments).map(SegNo).find(is_free).expect("a free segment");
    let kind = d.sit(segment).kind as u16;
    d.put_sit(old, 0, &(kind << 10 | copies as u16).to_le_bytes());
    d.put_sit(old, 2, &vec![0xFF; copies / 8]);
    let first = d.volume().geometry().block(old, 0);
    for n in 0..copies as u32 {
        d.put(BlockAddr(first.0 + n), 0, &[0xAA; BLOCK]);
    }
    d.put(d.ssa(old), 0, &owners);
    d.put(d.ssa(segment), 0, &[0; BLOCK]);
}

#[test]
fn old_copies_of_blocks_do_not_replace_those_of_a_segment_with_a_blank_summary() {
    let d = Damaged::new();
    put_old_copies_beside_a_blank_summary(&d, 16);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn old_copies_of_blocks_do_not_replace_those_that_an_old_table_of_segments_does_not_mark() {
    let d = Damaged::new();
    put_old_copies_beside_a_blank_summary(&d, 16);
    // The summary is old, too: its owners are in use, and do not have these blocks.
    let (segment, _) = closed(&d, "/big");
    let owner = [&le(d.ino("/plain").0)[..], &[0; 3]].concat();
    d.put(d.ssa(segment), 0, &owner.repeat(16));
    d.put_sit(closed_node(&d).0, 2, &[0; 4]);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn a_removed_node_that_an_old_table_of_segments_marks_does_not_come_back() {
    let d = Damaged::new();
    let is_free = |segment: &SegNo| d.sit(*segment).valid_blocks == 0 && !d.is_log(*segment);
    let geometry = *d.volume().geometry();
    let old = (0..geometry.segments).map(SegNo).find(is_free).expect("a free segment");
    d.put_sit(old, 0, &(4u16 << 10).to_le_bytes());
    d.put(d.ssa(old), BLOCK - 5, &[1]);
    // Old copies of nodes that the NAT has elsewhere, and the inode of a removed file.
    for n in 0..9u16 {
        let nid = Nid::from(d.ino(&format!("/many/entry {n}")));
        let to = geometry.block(old, n);
        d.move_block(d.addr(nid), to, &[&le(nid.0)[..], &[0; 3]].concat());
        d.put(to, FOOTER + 12, &[0; 8]);
    }
    let removed = geometry.block(old, 9);
    d.move_block(d.addr(d.ino("/many/entry 9").into()), removed, &[&le(50_000)[..], &[0; 3]].concat());
    d.put(removed, FOOTER, &[le(50_000), le(50_000)].concat());
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn an_inode_that_foreign_content_overwrote_is_lost_and_not_mended() {
    let d = Damaged::new();
    let other = d.addr(d.ino("/few/other").into());
    d.put(other, 0, &[0xA5; BLOCK]);
    let plan = repair_of(&d.device);
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    let (mut sound, found) = (contents(&Damaged::new().device), contents(&d.device));
    sound.remove("\"few/other\"").expect("the file was there");
    assert_eq!(found, sound);
}

/// Leaves only the head of the newest pack.
fn keep_one_head(d: &Damaged) {
    let (number, checkpoint) = d.checkpoint();
    let copy = BlockAddr(d.pack(number).0 + checkpoint.pack_blocks - 1);
    d.put(copy, 0, &[0; BLOCK]);
    for block in 0..BLOCKS_PER_SEGMENT {
        d.put(BlockAddr(d.pack(1 - number).0 + block), 0, &[0; BLOCK]);
    }
}

#[test]
fn a_volume_of_which_one_head_of_a_pack_is_left_comes_back() {
    let d = Damaged::new();
    keep_one_head(&d);
    assert_eq!(repair_of(&d.device).certainty(), Certainty::Unclear);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn a_superblock_copy_that_cannot_be_read_is_written_again() {
    for copy in [0, 1] {
        let d = Damaged::new();
        let sound = d.device.to_vec();
        let at = copy * BLOCK as u64;
        let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + BLOCK as u64 };
        let device: Arc<dyn Device> = Arc::new(Faulty::new(d.device.clone(), vec![fault]));
        let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
        d.put(BlockAddr(copy as u32), 0, &[0xEE; BLOCK]);
        plan.apply(&*d.device).unwrap();
        assert!(support::report(d.device.clone()).is_clean());
        assert_eq!(d.device.to_vec().len(), sound.len());
        assert!(d.device.to_vec()[at as usize + 1024..] == sound[at as usize + 1024..], "copy {copy}");
    }
}

#[test]
fn an_unfinished_pack_does_not_replace_a_complete_one_whose_end_is_lost() {
    let d = Damaged::new();
    let (pack, newest) = d.checkpoint();
    // A power cut after the head of the next checkpoint: the end of an older one is still in its place.
    d.put_head(1 - pack, 0, &(newest.version.0 + 1).to_le_bytes());
    d.put(BlockAddr(d.pack(pack).0 + newest.pack_blocks - 1), 0, &[0; BLOCK]);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn an_orphan_list_that_names_files_removes_none_of_them_when_fsyncs_are_rolled_forward() {
    let d = Damaged::new();
    put_orphan(&d, d.ino("/plain").0, 1);
    chain(&d, &[1, 2]);
    let plan = repair_of(&d.device);
    plan.apply(&*d.device).unwrap();
    let (sound, found) = (contents(&Damaged::new().device), contents(&d.device));
    assert_eq!(found.get("\"plain\""), sound.get("\"plain\""));
}

#[test]
fn an_orphan_with_links_whose_name_is_lost_is_attached_and_not_removed() {
    let d = Damaged::new();
    let few = d.ino("/few");
    put_orphan(&d, d.ino("/few/other").0, 1);
    d.put_dentry(few, d.slot(few, "other"), 0, &[0; 11]);
    let found = || contents(&d.device);
    let sound = found();
    repair_of(&d.device).apply(&*d.device).unwrap();
    assert!(found().contains_key("\"few/other\""), "{:?}", found().keys());
    assert_eq!(found().len(), sound.len() + 1);
}

/// Linux leaves such inodes when a creation fails for want of space.
#[test]
fn an_orphan_that_never_had_a_name_is_no_damage() {
    let d = Damaged::new();
    let few = d.ino("/few");
    let ino = d.ino("/few/other");
    put_orphan(&d, ino.0, 1);
    d.put_dentry(few, d.slot(few, "other"), 0, &[0; 11]);
    assert_eq!(support::report(d.device.clone()).count(f2fs_check::Kind::OrphanLinks), 1);
    d.put_inode(ino, 88, &le(0));
    assert_eq!(support::report(d.device.clone()).count(f2fs_check::Kind::OrphanLinks), 0);
}

#[test]
fn a_file_that_a_damaged_superblock_calls_a_quota_file_is_left_alone() {
    let d = Damaged::new();
    for copy in [0, 1] {
        put_superblock(&d, copy, 2745 + 8, &le(d.ino("/plain").0));
    }
    let Planned::Refused(refusal) = planned(&d.device) else { panic!("a refusal") };
    assert_eq!(refusal.report.count(f2fs_check::Kind::QuotaInode), 1);
    assert_eq!(refusal.report.count(f2fs_check::Kind::DentryInode), 0, "its name stays");
}

#[test]
fn many_names_of_one_directory_are_removed_in_one_pass() {
    let d = Damaged::new();
    let (many, below) = (d.ino("/many"), d.ino("/few/below"));
    let entries = |n: usize| d.volume().find_entry(many, format!("entry {n}").as_bytes()).unwrap().unwrap();
    for n in 0..700 {
        let entry = entries(n);
        let block = d.data(many, entry.block);
        d.put(block, 30 + entry.slot * 11 + 4, &le(below.0));
        d.put(block, 30 + entry.slot * 11 + 10, &[2]);
    }
    let counted = Arc::new(Counted::new(d.device.clone()));
    let report = support::report(counted.clone());
    assert_eq!(report.count(f2fs_check::Kind::DirSecondName), 700);
    // One pass over a directory of a few dozen blocks; a pass for each name would read thousands.
    let reads = counted.counts().reads;
    assert!(reads < 3000, "{reads} reads");
    repair_of(&d.device);
}

#[test]
fn undo_does_not_take_a_later_fsync_back() {
    let d = Damaged::new();
    d.put_inode(d.ino("/plain"), 12, &le(9));
    let plan = repair_of(&d.device);
    let undo = Undo::of(plan.requests(), &*d.device);
    plan.apply(&*d.device).unwrap();
    let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
    let log = volume.last_checkpoint().logs[4];
    let version = volume.last_checkpoint().node_version();
    let addr = volume.geometry().block(log.segment, log.offset);
    d.put(addr, FOOTER + 12, &version.to_le_bytes());
    let synced = d.device.to_vec();
    let device: Arc<dyn Device> = d.device.clone();
    let refused = undo.apply(&device).unwrap_err();
    assert!(matches!(refused, UndoError::Fsynced(at) if at == u64::from(addr.0) << 12), "{refused}");
    assert!(d.device.to_vec() == synced, "nothing is written");
}

#[test]
fn undo_puts_zeroes_where_a_sector_cannot_be_read_before_the_repair() {
    let d = Damaged::new();
    d.put_inode(d.ino("/plain"), 12, &le(9));
    let plan = repair_of(&d.device);
    let first = plan.requests().iter().find(|request| request.verb == Verb::Write).unwrap().offset_bytes;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: first..first + 1 };
    let undo = Undo::of(plan.requests(), &Faulty::new(d.device.clone(), vec![fault]));
    assert_eq!(undo.unreadable_bytes(), 512);
    let mut before = d.device.to_vec();
    before[first as usize..][..512].fill(0);
    plan.apply(&*d.device).unwrap();
    let device: Arc<dyn Device> = d.device.clone();
    undo.apply(&device).unwrap();
    assert!(d.device.to_vec() == before, "all other bytes are back");
}

#[test]
fn a_small_file_that_is_marked_as_inline_keeps_its_content() {
    let d = Damaged::new();
    d.put_inode(d.ino("/plain"), 16, &100u64.to_le_bytes());
    mark_as_inline(&d, "/plain");
    repair_of(&d.device).apply(&*d.device).unwrap();
    let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
    assert_eq!(volume.read("/plain").unwrap(), [3; 100]);
}

#[test]
fn names_in_wrong_buckets_of_an_immutable_directory_stay_there() {
    let d = Damaged::new();
    let many = d.ino("/many");
    d.put_inode(many, 80, &le(d.volume().inode(many).unwrap().head().flags.get() | flag::IMMUTABLE));
    let (a, b) = (d.data(many, 2), d.data(many, 4));
    let (first, second) = (d.block(a), d.block(b));
    d.put(a, 0, &second);
    d.put(b, 0, &first);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn undo_brings_an_interrupted_repair_back() {
    let d = Damaged::new();
    // One write restores the head, roll-forward goes to the other pack, and the last writes replace the head.
    chain(&d, &[1, 2]);
    d.put(d.pack(d.checkpoint().0), 200, &[0xEE; 8]);
    d.put_inode(d.ino("/plain"), 12, &le(9));
    let (plan, before) = (repair_of(&d.device), d.device.to_vec());
    let mut stored = Vec::new();
    Undo::of(plan.requests(), &*d.device).store(&mut stored).unwrap();
    for at in 0..=plan.requests().len() {
        for survivors in [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }] {
            let device = Arc::new(model::setup::copy(&d.device).unwrap());
            power_cut(plan.requests(), at, &survivors, &*device).unwrap();
            let cut: Arc<dyn Device> = device.clone();
            let undo = Undo::load(&mut &stored[..]).unwrap();
            undo.apply(&cut).unwrap_or_else(|error| panic!("cut at {at} ({survivors:?}): {error}"));
            assert!(device.to_vec() == before, "cut at {at} ({survivors:?}): every byte is back");
        }
    }
}

#[test]
fn a_repair_without_a_free_block_is_refused_with_its_findings() {
    let d = Damaged::new();
    d.put_inode(d.ino("/plain"), 12, &le(9));
    for segment in (0..d.volume().geometry().segments).map(SegNo) {
        d.put_sit(segment, 2, &[0xFF; 64]);
    }
    let Planned::Refused(refusal) = planned(&d.device) else { panic!("a refusal") };
    assert!(refusal.report.count(f2fs_check::Kind::LinkCount) > 0);
    assert!(refusal.reason.contains("no space"), "{}", refusal.reason);
}

#[test]
fn a_name_with_a_wrong_hash_needs_a_person_unless_the_inode_carries_it() {
    let certainty = |path: &str, damage: &dyn Fn(&Damaged, Ino, usize)| {
        let d = Damaged::new();
        let few = d.ino("/few");
        damage(&d, few, d.slot(few, path));
        repair_of(&d.device).certainty()
    };
    let hash = |d: &Damaged, few: Ino, slot: usize| d.put_dentry(few, slot, 0, &[1, 2, 3]);
    let name = |d: &Damaged, few: Ino, slot: usize| {
        let (addr, at) = d.name_at(few, slot);
        d.put(addr, at, b"x");
        d.seal(few);
    };
    assert_eq!(certainty("other", &hash), Certainty::Certain);
    assert_eq!(certainty("other", &name), Certainty::Certain, "the inode has the right name");
    // The inode carries its other name.
    assert_eq!(certainty("small", &name), Certainty::Unclear);
}

/// Paths that a damage changes although it is repaired; with a plus those that are new.
fn lost_by(test: &str) -> Vec<String> {
    let paths: &[&str] = match test {
        // The nodes of the chain are empty, and fsyncs count.
        "a_chain_that_loops" | "a_chain_with_a_wrong_address" => &["\"big\""],
        "a_dentry_without_a_name" => &["\"few/small\""],
        // Every name of "few" outside of it is gone.
        "a_directory_below_itself" => &[
            "\"few\"",
            "\"few/below\"",
            "\"few/other\"",
            "\"few/small\"",
            "+\"lost+found/few\"",
            "+\"lost+found/few/below\"",
            "+\"lost+found/few/other\"",
            "+\"lost+found/few/small\"",
        ],
        // It has another size.
        "a_mark_of_inline_data_on_a_small_file_with_a_block" => &["\"plain\""],
        "a_doubled_name_in_a_wrong_bucket" => &["\"many/entry 269\"", "+\"many/entry 100~1\""],
        // Nothing else names the quota files.
        "quota_inodes_without_the_feature" => {
            &["+\"lost+found/#4\"", "+\"lost+found/#5\"", "+\"lost+found/#6\""]
        }
        "a_name_with_a_slash" => &["\"few/small\"", "+\"few/s_all\""],
        // The size is lost; the content gets the largest one.
        "an_inode_whose_inline_data_does_not_fit" => &["\"few/small\"", "\"small too\""],
        _ => &[],
    };
    paths.iter().map(|path| (*path).to_owned()).collect()
}
