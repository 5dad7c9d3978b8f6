//! Fsyncs after the last checkpoint that cannot all be rolled forward: those before the damage are kept.

use std::sync::Arc;

use block::Device;
use f2fs::{
    engine::{Caller, Engine, NewNode, Options, SyncScope},
    format::{node::NodeFooter, sit::SegmentType},
    units::{BlockAddr, Ino, SegNo},
};
use f2fs_check::{
    Certainty, Kind,
    repair::{Plan, Planned, plan},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW, contents};

const ROOT: Ino = Ino(3);
const FILES: usize = 9;
/// Byte offset of i_pino.
const PARENT: usize = 84;

fn path(n: usize) -> String {
    format!("fsynced {n}")
}

/// A volume on which files were fsynced after the last checkpoint. Returns their inodes with the addresses of their nodes.
fn fsynced() -> (Damaged, Vec<(Ino, BlockAddr)>) {
    fsynced_after(|_| {})
}

/// A volume that has been changed before the checkpoint, on which files were fsynced after it.
fn fsynced_after(change: impl FnOnce(&mut Engine)) -> (Damaged, Vec<(Ino, BlockAddr)>) {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    change(&mut volume);
    volume.begin(Caller::ADMIN).create(ROOT, b"checkpointed", &NewNode::new(0o100_644)).unwrap();
    volume.checkpoint().unwrap();
    // The log goes on after the checkpoint: the first node follows there.
    let log = volume.last_checkpoint().logs[SegmentType::WarmNode.index()];
    let start = volume.geometry().next_block(log);
    let files = (0..FILES).map(|n| {
        let ino =
            volume.begin(Caller::ADMIN).create(ROOT, path(n).as_bytes(), &NewNode::new(0o100_644)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[n as u8; 3 * BLOCK]).unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
        ino
    });
    let files: Vec<Ino> = files.collect();
    drop(volume);
    let (mut addr, mut nodes) = (start, Vec::new());
    while nodes.len() < FILES {
        let footer = NodeFooter::of(&d.block(addr));
        assert!(files.contains(&footer.ino), "{addr} is not a node of the chain: {footer:?}");
        nodes.push((footer.ino, addr));
        addr = footer.next_addr;
    }
    (d.at_last_checkpoint(), nodes)
}

fn plan_of(d: &Damaged) -> Plan {
    let device: Arc<dyn Device> = d.device.clone();
    match plan(&device, NOW, &mut |_| {}).unwrap() {
        Planned::Repair(plan) => plan,
        Planned::Clean(report) => panic!("nothing to repair: {}", support::lines(&report)),
        Planned::Refused(refusal) => panic!("{}\n{}", refusal.reason, support::lines(&refusal.report)),
    }
}

/// Repairs a volume and returns the files that are there with their content.
fn kept(d: &Damaged) -> (Vec<usize>, Vec<String>) {
    let plan = plan_of(d);
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
    let is_kept = |n: &usize| {
        volume.read(format!("/{}", path(*n))).is_ok_and(|content| content == [*n as u8; 3 * BLOCK])
    };
    ((0..FILES).filter(is_kept).collect(), plan.losses)
}

#[test]
fn fsyncs_before_one_that_cannot_be_rolled_forward_are_kept() {
    for damaged in [1, 5, 8] {
        let (d, nodes) = fsynced();
        let (ino, addr) = nodes[damaged];
        // Its directory is a file.
        d.put(addr, PARENT, &d.ino("/plain").0.to_le_bytes());
        d.seal_at(ino, addr);
        // A wrong count, so that there is something to repair.
        d.put_inode(d.ino("/far"), 12, &9u32.to_le_bytes());
        let (kept, losses) = kept(&d);
        assert_eq!(kept, (0..damaged).collect::<Vec<_>>(), "the files before the damaged one, {losses:?}");
        let loss = format!("from node {} of {FILES} on", damaged + 1);
        assert!(losses.iter().any(|line| line.contains(&loss)), "{losses:?}");
    }
}

/// Repairs a volume on which all fsynced files can be kept. Returns the losses.
fn keeps_all(d: &Damaged, damage: &str) -> Vec<String> {
    let (kept, losses) = kept(d);
    assert_eq!(kept, (0..FILES).collect::<Vec<_>>(), "{damage}: {losses:?}");
    losses
}

#[test]
fn wrong_entries_of_the_sit_cost_no_fsync() {
    let (d, nodes) = fsynced();
    let node = d.position(d.addr(d.ino("/plain").into()));
    let data = d.position(d.data(d.ino("/big"), 9));
    let chain = d.position(nodes[4].1);
    for (segment, offset) in [node, data, chain] {
        let place = (segment, offset % 8);
        let (table, at) = d.sit_place(segment);
        let old = d.block(table);
        let word = u16::from_le_bytes([old[at], old[at + 1]]);
        let byte = at + 2 + usize::from(offset / 8);
        let flipped = old[byte] ^ 0x80 >> (offset % 8);
        for (damage, at, bytes) in [
            ("a flipped bit", byte, vec![flipped]),
            ("a count of 0", at, (word & !0x3FF).to_le_bytes().to_vec()),
            ("a type of the other content", at, (word ^ 4 << 10).to_le_bytes().to_vec()),
            ("no type", at, (word | 7 << 10).to_le_bytes().to_vec()),
        ] {
            let (d, _) = fsynced();
            d.put(table, at, &bytes);
            let losses = keeps_all(&d, damage);
            assert!(losses.is_empty(), "{damage} in the entry of {place:?}: {losses:?}");
        }
    }
}

/// Bytes of the entries of the NAT journal and of the SIT journal.
const JOURNAL_ENTRIES: [usize; 2] = [13, 78];

#[test]
fn entries_of_the_journals_that_are_none_cost_no_fsync() {
    for (journal, width) in JOURNAL_ENTRIES.into_iter().enumerate() {
        for (damage, key) in [("key 0", 0u32), ("a key past the table", u32::MAX), ("a count", 0)] {
            if journal == 1 && damage == "key 0" {
                // There is a segment 0.
                continue;
            }
            let damaged = || {
                let (d, nodes) = fsynced();
                let (block, at) = d.journals()[journal];
                let stored = d.block(block);
                let count = u16::from_le_bytes([stored[at], stored[at + 1]]);
                assert!(count > 0, "the journal has entries");
                match damage {
                    "a count" => d.put(block, at, &(count + 200).to_le_bytes()),
                    _ => d.put(block, at + 2 + usize::from(count - 1) * width, &key.to_le_bytes()),
                }
                (d, nodes)
            };
            // Below a lost entry of the SIT lies an older one, as it does without the fsyncs.
            let (without, nodes) = damaged();
            nodes.iter().for_each(|(_, addr)| without.put(*addr, 0, &[0; BLOCK]));
            let losses = plan_of(&without).losses;
            assert_eq!(keeps_all(&damaged().0, damage), losses, "journal {journal}, {damage}");
        }
    }
}

#[test]
fn an_impossible_address_of_the_root_costs_no_fsync() {
    let (d, _) = fsynced();
    d.put_nat(ROOT.into(), 5, &(u32::MAX - 9).to_le_bytes());
    let losses = keeps_all(&d, "an address outside the main area");
    assert!(losses.is_empty(), "{losses:?}");
}

/// Puts the second address of the file with the number 3 into its node.
fn put_second_address(d: &Damaged, (ino, addr): (Ino, BlockAddr), second: BlockAddr) {
    let node = d.block(addr);
    let is_data = |word: &[u8]| {
        let addr = BlockAddr(u32::from_le_bytes(word.try_into().unwrap()));
        d.volume().geometry().in_main(addr) && d.block(addr) == [3; BLOCK]
    };
    // The extent names the first block, too.
    let first = 360 + 4 * node[360..].chunks_exact(4).position(is_data).expect("the address of its data");
    d.put(addr, first + 4, &second.0.to_le_bytes());
    d.seal_at(ino, addr);
}

/// Roll-forward took the block from its owner, and nothing was told.
#[test]
fn an_address_of_another_files_block_in_the_chain_costs_that_file_nothing() {
    for of_node in [false, true] {
        let (d, nodes) = fsynced();
        let before = contents(&d.device);
        let plain = d.ino("/plain");
        put_second_address(&d, nodes[3], if of_node { d.addr(plain.into()) } else { d.data(plain, 2) });
        let (kept, losses) = kept(&d);
        assert_eq!(kept, (0..FILES).filter(|n| *n != 3).collect::<Vec<_>>(), "{losses:?}");
        assert_eq!(losses, ["up to 1 blocks of files are lost, because nothing tells their addresses"]);
        let (mut after, of_chain) = (contents(&d.device), format!("{:?}", path(3)));
        let mut before = before;
        assert!(before.remove(&of_chain).is_some() && after.remove(&of_chain).is_some());
        assert_eq!(before, after, "{of_node}");
    }
}

/// Without the mark of the block, roll-forward took it.
#[test]
fn an_address_of_another_files_block_without_a_mark_costs_that_file_nothing() {
    let (d, nodes) = fsynced();
    let plain = d.ino("/plain");
    let before = contents(&d.device);
    put_second_address(&d, nodes[3], d.data(plain, 2));
    d.flip_mark(d.data(plain, 2));
    let (kept, losses) = kept(&d);
    assert_eq!(kept, (0..FILES).filter(|n| *n != 3).collect::<Vec<_>>(), "{losses:?}");
    assert_eq!(losses, ["up to 1 blocks of files are lost, because nothing tells their addresses"]);
    let after = contents(&d.device);
    assert_eq!(before["\"plain\""], after["\"plain\""]);
}

/// So do atomic writes of Linux, with the blocks of their temporary file.
#[test]
fn a_block_of_an_orphan_in_the_chain_belongs_to_the_fsynced_file() {
    let mut block = BlockAddr::NULL;
    let (d, nodes) = fsynced_after(|volume| {
        let temporary = volume.begin(Caller::ADMIN).create_nameless(ROOT, &NewNode::new(0o100_644)).unwrap();
        volume.begin(Caller::ADMIN).write(temporary, 0, &[3; BLOCK]).unwrap();
        volume.checkpoint().unwrap();
        block = volume.address(&volume.inode(temporary).unwrap(), 0).unwrap();
    });
    put_second_address(&d, nodes[3], block);
    let report = support::report(d.device.clone());
    assert_eq!(report.count(Kind::ChainAddress), 0, "{}", support::lines(&report));
    d.put_inode(d.ino("/far"), 12, &9u32.to_le_bytes());
    let losses = keeps_all(&d, "a block of an orphan");
    assert!(!losses.iter().any(|loss| loss.contains("blocks")), "{losses:?}");
}

#[test]
fn an_impossible_address_in_the_chain_costs_one_block() {
    let (d, nodes) = fsynced();
    put_second_address(&d, nodes[3], BlockAddr(5));
    let (kept, losses) = kept(&d);
    assert_eq!(kept, (0..FILES).filter(|n| *n != 3).collect::<Vec<_>>(), "{losses:?}");
    assert_eq!(losses, ["up to 1 blocks of files are lost, because nothing tells their addresses"]);
    let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
    let content = volume.read(format!("/{}", path(3))).unwrap();
    assert!(content == [[3; BLOCK], [0; BLOCK], [3; BLOCK]].concat(), "its other blocks are there");
}

#[test]
fn damage_that_roll_forward_brings_is_told() {
    const ADVISE: usize = 2;
    const ENCRYPT: u8 = 4;
    let (d, nodes) = fsynced();
    // A wrong count, so that there is something to repair.
    d.put_inode(d.ino("/far"), 12, &9u32.to_le_bytes());
    // The mark of an encrypted file, in a node of the chain.
    let (ino, addr) = nodes[3];
    d.put(addr, ADVISE, &[d.block(addr)[ADVISE] | ENCRYPT]);
    d.seal_at(ino, addr);
    let told: Vec<Kind> = plan_of(&d).uncovered.iter().map(|finding| finding.kind).collect();
    assert_eq!(told, [Kind::Encryption]);
    keeps_all(&d, "the mark of an encrypted file");
}

#[test]
fn an_address_in_a_segment_that_roll_forward_opens_gives_way_to_the_right_one() {
    let (sound, _) = fsynced();
    let before = contents(&sound.device);
    let geometry = *sound.volume().geometry();
    let is_free = |segment: &SegNo| sound.sit(*segment).valid_blocks == 0 && !sound.is_log(*segment);
    for segment in (0..geometry.segments).map(SegNo).filter(is_free).take(8) {
        let (d, _) = fsynced();
        let node = d.child(d.ino("/big"), 0);
        d.put_node(node, 4 * 20, &geometry.block(segment, 300).0.to_le_bytes());
        assert_eq!(plan_of(&d).certainty(), Certainty::Certain, "{segment}");
        assert_eq!(keeps_all(&d, "an address of a free block"), Vec::<String>::new(), "{segment}");
        assert!(contents(&d.device) == before, "the file with the address is as before, {segment}");
    }
}

/// The last block of the pack that counts.
fn end_of_pack(d: &Damaged) -> BlockAddr {
    let (number, checkpoint) = d.checkpoint();
    BlockAddr(d.pack(number).0 + checkpoint.pack_blocks - 1)
}

#[test]
fn a_damaged_end_of_the_newest_pack_costs_no_fsync() {
    // The end begins with the version of the head: everything before it was durable when it was written.
    for at in [1000, BLOCK - 4] {
        let (d, _) = fsynced();
        let end = end_of_pack(&d);
        d.put(end, at, &[d.block(end)[at] ^ 1]);
        let losses = keeps_all(&d, "a flipped bit");
        assert!(losses.is_empty(), "{losses:?}");
    }
}

/// The checkpoint was taken for an unfinished one, and the check found nothing.
#[test]
fn a_lost_end_of_a_pack_that_fsyncs_follow_costs_no_fsync() {
    let (d, _) = fsynced();
    let sum_at = d.checkpoint().1.checksum_offset as usize;
    let mut older = d.block(end_of_pack(&d));
    older[..8].copy_from_slice(&(d.checkpoint().1.version.0 - 2).to_le_bytes());
    let sum = f2fs::format::crc::f2fs_crc(&older[..sum_at]);
    older[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
    for end in [older, vec![0; BLOCK], vec![0xEE; BLOCK]] {
        let (d, _) = fsynced();
        d.put(end_of_pack(&d), 0, &end);
        assert_eq!(plan_of(&d).certainty(), Certainty::Likely);
        let losses = keeps_all(&d, "the end of the pack");
        assert!(losses.is_empty(), "{losses:?}");
    }
}

#[test]
fn a_newest_checkpoint_that_is_lost_is_said() {
    let (d, _) = fsynced();
    let head = d.pack(d.checkpoint().0);
    d.put(end_of_pack(&d), 1000, &[0xEE]);
    d.put(head, 1000, &[0xEE]);
    let (_, losses) = kept(&d);
    assert!(losses.iter().any(|line| line.contains("changes of the newest checkpoint")), "{losses:?}");
}

#[test]
fn a_volume_with_disabled_checkpoints_has_no_chain() {
    const DISABLED: u32 = 0x1000;
    for (flags, names) in [(0, FILES), (DISABLED, 0)] {
        let (d, nodes) = fsynced();
        let as_left = Options { roll_forward: false, ..Options::read_only() };
        let left = Engine::open(d.device.clone(), as_left).unwrap();
        let (pack, checkpoint) = (left.last_pack(), left.last_checkpoint().clone());
        let (start, sum_at) = (left.geometry().pack(pack), checkpoint.checksum_offset as usize);
        let mut head = d.block(start);
        head[132..136].copy_from_slice(&(checkpoint.flags.0 | flags).to_le_bytes());
        let sum = f2fs::format::crc::f2fs_crc(&head[..sum_at]);
        head[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
        d.put(start, 0, &head);
        d.put(BlockAddr(start.0 + checkpoint.pack_blocks - 1), 0, &head);
        let version = checkpoint.version.0 | u64::from(sum) << 32;
        for (n, (ino, addr)) in nodes.iter().enumerate() {
            d.put(*addr, BLOCK - 12, &version.to_le_bytes());
            if n + 1 == FILES {
                d.put(*addr, BLOCK - 4, &nodes[0].1.0.to_le_bytes());
            }
            d.seal_at(*ino, *addr);
        }
        let report = support::report(d.device.clone());
        let loops = report.count(f2fs_check::Kind::ChainLoop);
        assert_eq!(loops, u64::from(flags == 0), "{}", support::lines(&report));
        assert_eq!(report.is_clean(), flags == DISABLED, "{}", support::lines(&report));
        let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
        let found = (0..FILES).filter(|n| volume.metadata(format!("/{}", path(*n))).is_ok()).count();
        assert_eq!(found, names);
    }
}

#[test]
fn only_nodes_with_the_mark_of_an_fsync_count_as_fsynced() {
    const FLAG: usize = BLOCK - 16;
    const FSYNC: u8 = 2;
    for (marked, expected) in [(FILES, 1), (1, 1), (0, 0)] {
        let (d, nodes) = fsynced();
        for (ino, addr) in &nodes[marked..] {
            d.put(*addr, FLAG, &[d.block(*addr)[FLAG] & !FSYNC]);
            d.seal_at(*ino, *addr);
        }
        let report = support::report(d.device.clone());
        assert_eq!(report.count(Kind::ChainPending), expected, "{}", support::lines(&report));
        let told = format!("fsyncs wrote {marked} nodes");
        assert_eq!(report.findings().iter().any(|finding| finding.known.contains(&told)), marked > 0);
        let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
        let recovered = (0..FILES).filter(|n| volume.read(format!("/{}", path(*n))).is_ok()).count();
        assert_eq!(recovered, marked, "a mount rolls no other file forward");
    }
}

/// The chain ended there without a word.
#[test]
fn fsyncs_behind_a_damaged_node_are_told() {
    for bytes in [&[0; BLOCK][..], &[0xFF; 512]] {
        let (d, nodes) = fsynced();
        d.put(nodes[4].1, 0, bytes);
        let report = support::report(d.device.clone());
        let found = report.findings().iter().find(|finding| finding.kind == Kind::ChainGap);
        let known = &found.expect("the gap is told").known;
        assert!(known.contains("fsyncs wrote 4 nodes to which it does not lead"), "{known}");
        // Another fault makes a repair necessary.
        d.put_inode(d.ino("/far"), 12, &9u32.to_le_bytes());
        let (kept, losses) = kept(&d);
        assert_eq!(kept, [0, 1, 2, 3]);
        assert!(losses.iter().any(|loss| loss.contains("behind a damaged or missing node")), "{losses:?}");
    }
}

/// Nothing told those that the chain left out.
#[test]
fn fsyncs_to_which_the_chain_does_not_lead_are_told() {
    let (d, nodes) = fsynced();
    for (next, left_out) in [(nodes[6].1, 4..6), (d.data(d.ino("/big"), 9), 4..FILES)] {
        let (d, nodes) = fsynced();
        let (ino, addr) = nodes[3];
        d.put(addr, BLOCK - 4, &next.0.to_le_bytes());
        d.seal_at(ino, addr);
        let report = support::report(d.device.clone());
        let found = report.findings().iter().find(|finding| finding.kind == Kind::ChainGap);
        let known = &found.expect("the gap is told").known;
        assert!(known.contains(&format!("fsyncs wrote {} nodes to which", left_out.len())), "{known}");
        // Another fault makes a repair necessary.
        d.put_inode(d.ino("/far"), 12, &9u32.to_le_bytes());
        let (kept, losses) = kept(&d);
        assert_eq!(kept, (0..FILES).filter(|n| !left_out.contains(n)).collect::<Vec<_>>());
        assert!(losses.iter().any(|loss| loss.contains("behind a damaged or missing node")), "{losses:?}");
    }
}

#[test]
fn a_whole_chain_has_no_gap() {
    let (d, _) = fsynced();
    assert_eq!(support::report(d.device.clone()).count(Kind::ChainGap), 0);
}

/// Fsyncs begin at the log of warm nodes.
/// The nodes of the chain have the checksum of the pack, so they are none of a pack with another number.
#[test]
fn a_log_in_the_segment_of_another_log_loses_no_fsync_in_silence() {
    let log_segments = |kind: SegmentType| match kind.is_node() {
        true => 36 + 4 * (kind.index() - 3),
        false => 84 + 4 * kind.index(),
    };
    for (log, other) in [
        (SegmentType::WarmNode, SegmentType::HotNode),
        (SegmentType::WarmNode, SegmentType::ColdNode),
        (SegmentType::WarmNode, SegmentType::WarmData),
        (SegmentType::HotNode, SegmentType::ColdNode),
        (SegmentType::ColdData, SegmentType::HotData),
    ] {
        let (d, _) = fsynced();
        let segment = d.checkpoint().1.logs[other.index()].segment;
        d.put_checkpoint(log_segments(log), &segment.0.to_le_bytes());
        let (kept, losses) = kept(&d);
        let are_told = losses.iter().any(|loss| loss.contains("nothing tells where they begin"));
        assert!(kept.len() == FILES || are_told, "{log}, {other}: {kept:?}, {losses:?}");
    }
}

/// Nothing lies behind the last node, and its loss was not told.
#[test]
fn a_copy_of_a_node_in_the_place_of_the_last_one_is_a_loss() {
    let (d, nodes) = fsynced();
    d.put(nodes[FILES - 1].1, 0, &d.block(nodes[5].1));
    assert_eq!(plan_of(&d).certainty(), Certainty::Unclear);
    let (kept, losses) = kept(&d);
    assert_eq!(kept, (0..FILES - 1).collect::<Vec<_>>());
    assert!(losses.iter().any(|loss| loss.contains("behind a damaged or missing node")), "{losses:?}");
}

/// A node was written to the place of a later one: the chain leads back, and the nodes behind are out of reach.
#[test]
fn fsyncs_behind_a_loop_are_told_and_not_given_up_for_certain() {
    let (d, nodes) = fsynced();
    let misdirected = d.block(nodes[1].1);
    d.device.write(u64::from(nodes[4].1.0) * BLOCK as u64, &misdirected).unwrap();
    let report = support::report(d.device.clone());
    let found = report.findings().iter().find(|finding| finding.kind == Kind::ChainLoop).expect("a loop");
    assert_eq!(found.certainty, Certainty::Unclear, "{}", support::lines(&report));
    let (kept, losses) = kept(&d);
    assert!((0..4).all(|n| kept.contains(&n)), "{kept:?}");
    assert!(losses.iter().any(|loss| loss.contains("behind a damaged or missing node")), "{losses:?}");
}
