//! Damage after a power cut: the newest checkpoint is not that of an unmount, and has no summaries of the node logs.

use f2fs::format::checkpoint::Flags;

use super::*;

/// Number of files in the directory "new".
const FILES: u32 = 90;
/// Bytes of an entry of the NAT.
const NAT_ENTRY: usize = 9;

fn new(n: u32) -> String {
    format!("/new/file {n}")
}

/// Makes files whose nodes lie in the current segment of their log, and a checkpoint, and cuts the power.
fn cut() -> Damaged {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode::new(0o040_755)).unwrap();
    for n in 0..FILES {
        let name = format!("file {n}");
        let ino = volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(0o100_644)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![n as u8 + 1; BLOCK * (n as usize % 3)]).unwrap();
    }
    volume.checkpoint().unwrap();
    drop(volume);
    let d = d.at_last_checkpoint();
    assert!(!d.checkpoint().1.flags.has(Flags::UMOUNT));
    let (segment, _) = d.position(d.addr(d.ino(&new(FILES - 1)).into()));
    assert!(d.is_log(segment), "the nodes lie in the segment of a log");
    d
}

/// Repairs a volume: everything is as before.
fn loses_nothing(d: &Damaged, sound: &std::collections::BTreeMap<String, String>) {
    let plan = repair_of(&d.device);
    assert_eq!(plan.losses, Vec::<String>::new());
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    let found = contents(&d.device);
    let lost: Vec<&String> =
        sound.iter().filter(|(path, line)| found.get(*path) != Some(line)).map(|(path, _)| path).collect();
    assert!(lost.is_empty() && found.len() == sound.len(), "{lost:?}");
}

#[test]
fn an_address_of_a_block_in_a_node_log_gives_way_to_the_right_one() {
    let of_log = |d: &Damaged, kind: SegmentType, offset| {
        let log = d.checkpoint().1.logs[kind.index()];
        d.volume().geometry().block(log.segment, log.offset + offset)
    };
    let logs = SegmentType::ALL.into_iter().filter(|kind| kind.is_node());
    let mut wrong: Vec<BlockAddr> = logs.map(|kind| of_log(&cut(), kind, 9)).collect();
    // A node is there.
    wrong.push(cut().addr(cut().ino(&new(7)).into()));
    for to in wrong {
        let d = cut();
        let sound = contents(&d.device);
        let node = d.child(d.ino("/big"), 0);
        d.put_node(node, 4 * 20, &le(to.0));
        assert_eq!(repair_of(&d.device).certainty(), Certainty::Certain, "{to}");
        loses_nothing(&d, &sound);
    }
}

#[test]
fn an_address_that_neither_a_summary_nor_the_sit_confirms_needs_a_person() {
    let d = cut();
    let sound = contents(&d.device);
    let geometry = *d.volume().geometry();
    let is_free = |segment: &SegNo| d.sit(*segment).valid_blocks == 0 && !d.is_log(*segment);
    let free = (0..geometry.segments).map(SegNo).rfind(is_free).expect("a free segment");
    d.put_node(d.child(d.ino("/big"), 0), 4 * 20, &le(geometry.block(free, 9).0));
    let at = u64::from(d.ssa(free).0) * BLOCK as u64;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + BLOCK as u64 };
    let device: Arc<dyn Device> = Arc::new(Faulty::new(d.device.clone(), vec![fault]));
    let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
    assert_eq!(plan.certainty(), Certainty::Unclear);
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    assert!(contents(&d.device) == sound, "the block that the summary assigns to the place is back");
}

#[test]
fn a_file_whose_nat_entry_is_zero_stays() {
    let d = cut();
    let sound = contents(&d.device);
    d.put_nat(d.ino(&new(FILES - 1)).into(), 0, &[0; NAT_ENTRY]);
    loses_nothing(&d, &sound);
}

#[test]
fn files_whose_block_of_the_nat_is_zero_stay() {
    let d = cut();
    let sound = contents(&d.device);
    let (block, _) = d.nat_place(d.ino(&new(FILES - 1)).into());
    let of_block = (0..FILES).filter(|n| d.nat_place(d.ino(&new(*n)).into()).0 == block).count();
    assert!(of_block > 30, "the block has the entries of {of_block} files");
    d.put(block, 0, &[0; BLOCK]);
    loses_nothing(&d, &sound);
}

#[test]
fn a_file_whose_footer_has_one_wrong_bit_stays() {
    let d = cut();
    let sound = contents(&d.device);
    for (n, bit) in [(3, 2), (4, 17), (5, 30)] {
        let ino = d.ino(&new(n));
        d.put_node(ino.into(), FOOTER, &le(ino.0 ^ 1 << bit));
    }
    loses_nothing(&d, &sound);
}

#[test]
fn files_whose_nat_journal_is_zero_are_said_to_be_lost() {
    for end in [At::Checkpoint, At::Unmount] {
        let d = journaled(end);
        let [(journal, at), _] = d.journals();
        assert_ne!(d.block(journal)[at..at + 2], [0; 2], "the journal has entries");
        let sound = contents(&d.device);
        // The block has the journal of the SIT, too, and the last node does not lead to where its log goes on: nothing else is
        // left that names the nodes.
        let log = d.checkpoint().1.logs[SegmentType::WarmNode.index()];
        let last = d.volume().geometry().block(log.segment, log.offset - 1);
        d.put(last, BLOCK - 4, &[0; 4]);
        d.seal_at(NodeFooter::of(&d.block(last)).ino, last);
        d.put(journal, 0, &[0; BLOCK]);
        let plan = repair_of(&d.device);
        plan.apply(&*d.device).unwrap();
        let report = support::report(d.device.clone());
        assert!(report.is_clean(), "{}", support::lines(&report));
        let found = contents(&d.device);
        let lost = sound.iter().filter(|(path, line)| found.get(*path) != Some(line)).count();
        let loss = format!("up to {lost} nodes are lost");
        assert!(
            lost > 0 && plan.losses.iter().any(|line| line.contains(&loss)),
            "{end:?}: {:?}",
            plan.losses
        );
    }
}

/// Nothing named them.
#[test]
fn files_whose_nat_and_sit_journals_are_zero_stay() {
    for end in [At::Checkpoint, At::Unmount] {
        let d = journaled(end);
        let sound = contents(&d.device);
        d.put(d.journals()[0].0, 0, &[0; BLOCK]);
        loses_nothing(&d, &sound);
    }
}

/// Journals have no checksum. Those of the checkpoint before fit each other: the check found nothing, and the files had their
/// older content.
#[test]
fn older_journals_bring_no_older_content_back() {
    for end in [At::Checkpoint, At::Unmount] {
        let d = journaled_with_new_content(end);
        let sound = contents(&d.device);
        let (number, checkpoint) = d.checkpoint();
        let older = BlockAddr(d.pack(1 - number).0 + checkpoint.summaries_start);
        assert!(checkpoint.flags.has(Flags::COMPACT_SUM), "both journals lie in one block");
        d.put(d.journals()[0].0, 0, &d.block(older));
        let plan = repair_of(&d.device);
        assert_eq!(plan.certainty(), Certainty::Likely, "{:?}", plan.losses);
        loses_nothing(&d, &sound);
    }
}

/// The earlier pack was longer, and its end is still there: the pack looked whole and old, and the newest checkpoint was lost.
#[test]
fn the_head_of_an_earlier_longer_pack_gives_way_to_the_end_of_the_newest() {
    let d = journaled(At::Checkpoint);
    let sound = contents(&d.device);
    let (number, checkpoint) = d.checkpoint();
    let (start, longer, sum_at) =
        (d.pack(number), checkpoint.pack_blocks + 3, checkpoint.checksum_offset as usize);
    let mut head = d.block(start);
    head[..8].copy_from_slice(&(checkpoint.version.0 - 2).to_le_bytes());
    let at = std::mem::offset_of!(f2fs::format::checkpoint::raw::Checkpoint, cp_pack_total_block_count);
    head[at..at + 4].copy_from_slice(&le(longer));
    let sum = f2fs::format::crc::f2fs_crc(&head[..sum_at]);
    head[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
    d.put(start, 0, &head);
    d.put(BlockAddr(start.0 + longer - 1), 0, &head);
    loses_nothing(&d, &sound);
}

/// The end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Checkpoint,
    Unmount,
}

/// Makes a few files whose entries of the NAT lie in the journal of the newest checkpoint alone.
fn journaled(end: At) -> Damaged {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    for n in 0..9 {
        let name = format!("late {n}");
        let ino =
            volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[n; 3 * BLOCK]).unwrap();
    }
    match end {
        At::Checkpoint => volume.checkpoint().unwrap(),
        At::Unmount => volume.unmount().unwrap(),
    }
    drop(volume);
    d.at_last_checkpoint()
}

/// Like [`journaled`], and the files "plain" and "big" have new content.
fn journaled_with_new_content(end: At) -> Damaged {
    let d = journaled(end);
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    volume.begin(Caller::ADMIN).write(d.ino("/plain"), 0, &[77; 5 * BLOCK]).unwrap();
    volume.begin(Caller::ADMIN).write(d.ino("/big"), 1000 * BLOCK as u64, &[77; BLOCK]).unwrap();
    match end {
        At::Checkpoint => volume.checkpoint().unwrap(),
        At::Unmount => volume.unmount().unwrap(),
    }
    drop(volume);
    Damaged::copy_of(&d.device).at_last_checkpoint()
}

/// The newest content of "plain" and "big" was gone, and so were the files that only the journal has.
#[test]
fn a_wrong_number_in_an_entry_of_the_nat_journal_takes_no_file() {
    for end in [At::Checkpoint, At::Unmount] {
        let sound = journaled_with_new_content(end);
        let nodes =
            [sound.ino("/plain").into(), sound.ino("/late 3").into(), sound.child(sound.ino("/big"), 0)];
        let numbers = [Nid::from(sound.ino("/few/other")), Nid(20_000)];
        for (node, number) in nodes.into_iter().flat_map(|node| numbers.map(|number| (node, number))) {
            let d = Damaged::copy_of(&sound.device).at_last_checkpoint();
            let (block, at) = d.nat_place(node);
            assert_eq!(block, d.journals()[0].0, "the journal has the entry of {node}");
            d.put(block, at - 4, &le(number.0));
            loses_nothing(&d, &contents(&sound.device));
        }
    }
}
