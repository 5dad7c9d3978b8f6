//! Blocks of NAT and SIT that are zeroes or ones, and nodes that only their footers tell.

use f2fs::{
    format::TableCopy,
    units::{BlockAddr, Ino, Nid, SegNo},
};
use f2fs_check::{Certainty, Kind, repair::Planned};

use crate::{
    FOOTER, closed_node, le, planned, repair_of, repaired, support,
    volume::{BLOCK, Damaged},
};

/// The current blocks of the NAT.
fn nat_blocks(d: &Damaged) -> Vec<BlockAddr> {
    let geometry = d.volume().geometry();
    let current = |index| TableCopy::current(&d.checkpoint().1.nat_bitmap, index);
    (0..geometry.nat_blocks()).map(|index| geometry.nat_block(index, current(index))).collect()
}

/// The current blocks of the SIT.
fn sit_blocks(d: &Damaged) -> Vec<BlockAddr> {
    let geometry = d.volume().geometry();
    let current = |index| TableCopy::current(&d.checkpoint().1.sit_bitmap, index);
    (0..geometry.sit_blocks()).map(|index| geometry.sit_block(index, current(index))).collect()
}

fn fill(d: &Damaged, blocks: &[BlockAddr], byte: u8) {
    blocks.iter().for_each(|addr| d.put(*addr, 0, &[byte; BLOCK]));
}

/// Fills the blocks of NAT and SIT. The journals stay.
fn lose_tables(d: &Damaged, byte: u8) {
    fill(d, &nat_blocks(d), byte);
    fill(d, &sit_blocks(d), byte);
}

#[test]
fn all_nodes_come_back_where_nat_and_sit_are_lost() {
    for byte in [0, 0xFF] {
        let d = Damaged::new();
        lose_tables(&d, byte);
        assert_ne!(repair_of(&d.device).certainty(), Certainty::Certain);
        assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before, {byte}");
    }
}

#[test]
fn nodes_with_the_version_of_the_checkpoint_come_back_where_no_log_goes_on() {
    let d = Damaged::new();
    // So sload.f2fs writes them.
    let version = d.checkpoint().1.node_version().to_le_bytes();
    for n in 0..700 {
        let ino = d.ino(&format!("/many/entry {n}"));
        d.put_node(ino.into(), FOOTER + 12, &version);
        d.seal(ino);
    }
    lose_tables(&d, 0);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn all_nodes_come_back_where_one_block_of_the_nat_and_the_sit_are_lost() {
    let d = Damaged::new();
    let (block, _) = d.nat_place(d.ino("/many/entry 300").into());
    fill(&d, &[block], 0);
    fill(&d, &sit_blocks(&d), 0);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn all_nodes_come_back_where_the_nat_and_a_summary_of_a_log_are_lost() {
    for (log, bytes) in [(0, [0; 7]), (1, [0xFF; 7]), (1, [9, 0, 0, 0, 0, 0, 0]), (2, [0; 7])] {
        let d = Damaged::new();
        fill(&d, &nat_blocks(&d), 0);
        let (number, checkpoint) = d.checkpoint();
        let data = checkpoint.data_summary_blocks(d.volume().geometry().summary) as u32;
        let summary = BlockAddr(d.pack(number).0 + checkpoint.summaries_start + data + log);
        d.put(summary, 0, &bytes.repeat(512));
        assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before, log {log}");
    }
}

/// Puts the inodes of removed files into a free segment, which the SIT does not mark.
fn put_removed(d: &Damaged, count: u32) {
    let (like, _) = closed_node(d);
    let is_free = |segment: &SegNo| d.sit(*segment).valid_blocks == 0 && !d.is_log(*segment);
    let geometry = *d.volume().geometry();
    let free = (0..geometry.segments).map(SegNo).filter(|segment| *segment != like).find(is_free);
    let segment = free.expect("a free segment");
    for n in 0..count {
        let (ino, to) = (Ino(20_000 + n), geometry.block(segment, n as u16));
        d.put(to, 0, &d.block(d.addr(d.ino("/many/entry 9").into())));
        d.put(to, FOOTER, &[le(ino.0), le(ino.0)].concat());
        d.seal_at(ino, to);
        d.put(d.ssa(segment), 7 * n as usize, &[&le(ino.0)[..], &[0; 3]].concat());
    }
}

#[test]
fn a_volume_on_which_nothing_tells_removed_nodes_from_others_is_left_to_a_rescue() {
    let d = Damaged::new();
    put_removed(&d, 3);
    lose_tables(&d, 0);
    let before = d.device.to_vec();
    let Planned::Refused(refusal) = planned(&d.device) else { panic!("the counts fit no choice") };
    assert!(refusal.reason.contains("flashkit rescue"), "{}", refusal.reason);
    assert!(d.device.to_vec() == before);
}

#[test]
fn removed_nodes_stay_removed_while_one_of_the_tables_is_whole() {
    for table in [nat_blocks, sit_blocks] {
        let d = Damaged::new();
        put_removed(&d, 30);
        fill(&d, &table(&d), 0);
        assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
    }
}

/// The nodes that the NAT had lost counted for the older pack, with which all files of the newest one were gone.
#[test]
fn a_lost_block_of_the_nat_does_not_speak_against_a_newest_pack_without_its_head() {
    for byte in [0, 0xFF] {
        let d = Damaged::new();
        let (block, _) = d.nat_place(d.ino("/many/entry 300").into());
        fill(&d, &[block], byte);
        d.put(d.pack(d.checkpoint().0), 200, &[0xEE; 8]);
        assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
    }
}

/// A neighbour of the journal's block in its place has possible entries beside impossible ones. They freed inodes.
#[test]
fn possible_entries_of_a_nat_journal_beside_impossible_ones_give_way_to_the_table() {
    let d = Damaged::new();
    let [(journal, at), _] = d.journals();
    let bytes = d.block(journal);
    let count = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let inos = [300, 301].map(|n| d.ino(&format!("/many/entry {n}")));
    assert!(inos.iter().all(|ino| d.nat_place((*ino).into()).0 != journal), "the table has their entries");
    let other = d.addr(d.ino("/plain").into());
    // The number, the version, the inode and the address: of no node, of another node, and outside of the main area.
    let entries = [(u32::MAX, inos[0].0, other.0), (inos[0].0, inos[0].0, other.0), (inos[1].0, 7, 7)];
    let entries = entries.map(|(nid, ino, addr)| [&le(nid)[..], &[0], &le(ino), &le(addr)].concat()).concat();
    d.put(journal, at + 2 + 13 * usize::from(count), &entries);
    d.put(journal, at, &(count + 3).to_le_bytes());
    let plan = repair_of(&d.device);
    assert_eq!((plan.report.count(Kind::NatJournal), plan.losses.len()), (1, 0), "{:?}", plan.losses);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn erased_blocks_of_the_nat_are_one_finding_each() {
    let d = Damaged::new();
    let used = Nid(d.ino("/compressed").0);
    let blocks: Vec<BlockAddr> = nat_blocks(&d).split_off(1 + used.index() / 455);
    assert!(blocks.len() > 20);
    fill(&d, &blocks, 0xFF);
    let report = support::report(d.device.clone());
    assert_eq!(report.count(Kind::NatAddress), blocks.len() as u64, "{}", support::lines(&report));
    let plan = repair_of(&d.device);
    assert_eq!((plan.losses.len(), plan.certainty()), (0, Certainty::Certain), "{:?}", plan.losses);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn nodes_of_an_erased_sector_of_the_nat_come_back() {
    let d = Damaged::new();
    let (block, at) = d.nat_place(d.ino("/many/entry 300").into());
    d.put(block, at / 512 * 512, &[0xFF; 512]);
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn an_erased_block_of_the_sit_takes_no_space() {
    let d = Damaged::new();
    fill(&d, &sit_blocks(&d), 0xFF);
    // The repair of an inode moves it.
    d.put_inode(d.ino("/plain"), 12, &9u32.to_le_bytes());
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}
