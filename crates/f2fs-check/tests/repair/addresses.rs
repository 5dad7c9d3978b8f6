//! Addresses and whole nodes that other content overwrote: no file gets blocks of another one, and none loses its own.

use f2fs::{
    engine::{Caller, Engine, NewNode},
    format::BLOCKS_PER_SEGMENT,
    units::{BlockAddr, Ino, SegNo},
};
use f2fs_check::Certainty;

use crate::{
    ROOT,
    directories::{all_paths, faults_after_repair},
    repair_of, support,
    volume::{BLOCK, Damaged},
};

const FEATURES: &str = "extra_attr,inode_checksum";
/// Addresses in a sector of a node.
const WORDS: usize = 128;
/// Byte offset of valid_block_count in the head of a pack.
const VALID_BLOCKS: usize = 16;
/// Byte offset of the extent in an inode.
const EXTENT: usize = 348;
/// Byte offset of i_blocks in an inode.
const BLOCKS: usize = 24;
/// An address outside the main area.
const OUTSIDE: u32 = 0x5A5A_5A5A;

/// Makes a file with holes ("holes") and one without ("plain").
fn fill(volume: &mut Engine) -> f2fs::Result<()> {
    let file = NewNode::new(0o100_644);
    let holes = volume.begin(Caller::ADMIN).create(ROOT, b"holes", &file)?;
    for block in [0, 1000, 1800] {
        volume.begin(Caller::ADMIN).write(holes, block * BLOCK as u64, &[7; BLOCK])?;
    }
    let plain = volume.begin(Caller::ADMIN).create(ROOT, b"plain", &file)?;
    // The segment of both is full.
    volume.begin(Caller::ADMIN).write(plain, 0, &vec![3; 600 * BLOCK]).map(drop)
}

fn sound() -> Damaged {
    Damaged::filled(64 << 20, FEATURES, fill)
}

/// Puts words into the node of addresses of the file with holes.
fn put_words(d: &Damaged, first: usize, words: impl Iterator<Item = u32>) {
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    d.put_node(d.child(d.ino("/holes"), 0), 4 * first, &bytes);
}

fn addrs_of_plain(d: &Damaged) -> impl Iterator<Item = u32> {
    let plain = d.ino("/plain");
    (0..).map(move |n| d.data(plain, n % 50).0)
}

#[test]
fn a_block_that_many_addresses_name_is_copied_for_each() {
    let d = sound();
    let paths = all_paths(&d);
    let first = addrs_of_plain(&d).next().unwrap();
    put_words(&d, 500, [first; 40].into_iter());
    // The file has other blocks there.
    let holes = d.ino("/holes");
    let blocks = d.volume().inode(holes).unwrap().head().blocks.get() + 40;
    d.put_inode(holes, BLOCKS, &blocks.to_le_bytes());
    d.put_checkpoint(VALID_BLOCKS, &(d.checkpoint().1.valid_blocks + 40).to_le_bytes());
    let copies = "up to 40 blocks of files become copies of other files' blocks";
    assert_eq!(faults_after_repair(&d, &paths), ["\"holes\"", copies], "the only file that is not as before");
}

/// Repairs a volume whose holes became addresses: they are holes again, and nothing is lost.
fn holes_come_back(damage: impl FnOnce(&Damaged)) {
    let d = sound();
    let paths = all_paths(&d);
    damage(&d);
    let plan = repair_of(&d.device);
    assert_ne!(plan.certainty(), Certainty::Unclear, "{}", support::lines(&plan.report));
    assert_eq!(faults_after_repair(&d, &paths), Vec::<String>::new());
}

#[test]
fn holes_that_became_addresses_of_another_files_blocks_are_holes_again() {
    holes_come_back(|d| put_words(d, 500, addrs_of_plain(d).take(1)));
    holes_come_back(|d| put_words(d, 500, addrs_of_plain(d).take(40)));
    // The checksum is right with the address, or without it.
    let place = |d: &Damaged| d.volume().inode(d.ino("/holes")).unwrap().layout().addrs_at() + 4 * 5;
    let addr = |d: &Damaged| addrs_of_plain(d).next().unwrap().to_le_bytes();
    holes_come_back(|d| d.put_inode(d.ino("/holes"), place(d), &addr(d)));
    holes_come_back(|d| d.put_node(d.ino("/holes").into(), place(d), &addr(d)));
}

#[test]
fn a_hole_that_became_the_address_of_a_free_block_is_a_hole_again() {
    holes_come_back(|d| {
        let log = d.checkpoint().1.logs[1];
        let free = d.volume().geometry().block(log.segment, BLOCKS_PER_SEGMENT as u16 - 1);
        put_words(d, 500, [free.0].into_iter());
    });
}

#[test]
fn a_sector_of_addresses_that_other_content_overwrote_is_cleared() {
    let d = sound();
    let paths = all_paths(&d);
    let words: Vec<u32> = (0..WORDS as u32 - 40).map(|n| OUTSIDE + n).collect();
    let others = addrs_of_plain(&d).take(40);
    put_words(&d, 4 * WORDS, words.into_iter().chain(others));
    assert_eq!(faults_after_repair(&d, &paths), Vec::<String>::new());
}

#[test]
fn other_content_in_place_of_a_node_gives_way_to_the_addresses_that_summaries_tell() {
    let d = sound();
    let paths = all_paths(&d);
    let blocks = |d: &Damaged, ino: Ino| d.volume().inode(ino).unwrap().head().blocks.get();
    let holes = d.ino("/holes");
    let before = blocks(&d, holes);
    put_words(&d, 0, (0..BLOCK as u32 / 4).map(|n| if n % 3 == 0 { BlockAddr::NEW.0 } else { OUTSIDE }));
    assert_eq!(faults_after_repair(&d, &paths), Vec::<String>::new());
    assert_eq!(blocks(&Damaged::copy_of(&d.device), holes), before, "the file reserves no block anew");
}

#[test]
fn cleared_addresses_of_holes_are_no_losses() {
    let d = sound();
    put_words(&d, 500, [OUTSIDE, 7, 8, 9].into_iter());
    assert_eq!(repair_of(&d.device).losses, Vec::<String>::new());
}

#[test]
fn a_cleared_address_of_a_block_is_a_loss() {
    let d = sound();
    let holes = d.ino("/holes");
    let addr = d.data(holes, 1000);
    // Neither the SIT nor the summary tells the block.
    let (segment, offset) = d.position(addr);
    let node = d.block(d.addr(d.child(holes, 0)));
    let index = node.chunks(4).position(|word| word == addr.0.to_le_bytes()).unwrap();
    put_words(&d, index, [OUTSIDE].into_iter());
    d.put(d.ssa(segment), 7 * usize::from(offset), &[0; 7]);
    let losses = repair_of(&d.device).losses;
    assert!(losses.iter().any(|loss| loss.starts_with("up to 1 blocks of files are lost")), "{losses:?}");
}

#[test]
fn a_reserved_place_stays_while_a_damaged_entry_of_the_sit_marks_its_old_block() {
    let d = sound();
    let plain = d.ino("/plain");
    let (segment, offset) = d.position(d.data(plain, 3));
    let (block, at) = d.sit_place(segment);
    let entry = d.block(block)[at..at + 66].to_vec();
    let (byte, bit) = (2 + usize::from(offset) / 8, 0x80 >> (offset % 8));
    let count = u16::from_le_bytes([entry[0], entry[1]]) - 1;
    d.put_sit(segment, 0, &count.to_le_bytes());
    d.put_sit(segment, byte, &[entry[byte] ^ bit]);
    let addrs_at = d.volume().inode(plain).unwrap().layout().addrs_at();
    d.put_inode(plain, EXTENT, &[0; 12]);
    d.put_inode(plain, addrs_at + 4 * 3, &BlockAddr::NEW.0.to_le_bytes());
    assert!(support::report(d.device.clone()).is_clean());
    let paths = all_paths(&d);
    // The entry marks the block again, and does not count it.
    d.put_sit(segment, byte, &[entry[byte]]);
    assert_eq!(faults_after_repair(&d, &paths), Vec::<String>::new());
}

#[test]
fn an_address_stays_while_a_damaged_entry_of_the_sit_marks_an_old_block_of_its_place() {
    let d = Damaged::new();
    let (segment, offset) = d.position(d.data(d.ino("/plain"), 0));
    let geometry = *d.volume().geometry();
    let is_free = |segment: &SegNo| d.sit(*segment).valid_blocks == 0 && !d.is_log(*segment);
    let free = (0..geometry.segments).map(SegNo).find(is_free).expect("a free segment");
    d.move_data(free);
    d.put(geometry.block(free, 0), 0, &[9; BLOCK]);
    assert!(support::report(d.device.clone()).is_clean());
    let paths = all_paths(&d);
    // The summary of the new block is damaged, and the entry marks the old one, without counting it.
    d.put(d.ssa(free), 0, &60_000u32.to_le_bytes());
    let (block, at) = d.sit_place(segment);
    let byte = 2 + usize::from(offset) / 8;
    d.put_sit(segment, byte, &[d.block(block)[at + byte] | 0x80 >> (offset % 8)]);
    assert_eq!(faults_after_repair(&d, &paths), Vec::<String>::new());
}

/// Neither the addresses nor the SIT tell of the blocks; i_blocks does.
#[test]
fn addresses_that_are_gone_without_a_trace_are_a_loss() {
    let d = sound();
    let plain = d.ino("/plain");
    let (first, lost) = (100, 50);
    let inode = d.volume().inode(plain).unwrap();
    for block in first..first + lost {
        let (segment, offset) = d.position(d.data(plain, block));
        let (addr, at) = d.sit_place(segment);
        // The map of valid blocks follows two bytes of the entry; its first bit is the highest.
        let map = at + 2 + usize::from(offset / 8);
        let byte = d.block(addr)[map] & !(0x80 >> (offset % 8));
        d.put(addr, map, &[byte]);
    }
    let at = inode.layout().addrs_at() + 4 * first as usize;
    d.put_inode(plain, at, &vec![0; 4 * lost as usize]);
    let plan = repair_of(&d.device);
    assert_eq!(plan.certainty(), Certainty::Unclear, "{}", support::lines(&plan.report));
    assert!(plan.losses.iter().any(|loss| loss.contains("50 blocks of files are lost")), "{:?}", plan.losses);
}
