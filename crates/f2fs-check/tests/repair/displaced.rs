//! Addresses that went back to an older block of their place, whose summary still names it.

use f2fs::{
    engine::{Caller, Engine, NewNode},
    units::{BlockAddr, Ino},
};
use f2fs_check::Certainty;

use crate::{
    ROOT,
    directories::{all_paths, faults_after_repair},
    outdated::OLDER,
    repair_of, support,
    volume::{BLOCK, Damaged},
};

/// Blocks of the file "rewritten": some of them have their addresses in the inode, others in a direct node.
const BLOCKS: u64 = 1000;
/// Features without and with checksums of inodes.
const FEATURES: [&str; 2] = ["extra_attr", "extra_attr,inode_checksum"];

/// A volume with a file that was written twice, and the blocks of its first content.
struct Rewritten {
    d: Damaged,
    file: Ino,
    /// The older block of each place.
    older: Vec<BlockAddr>,
    /// The older block of the inode.
    older_inode: BlockAddr,
}

impl Rewritten {
    fn new(features: &str) -> Rewritten {
        let (mut older, mut older_inode, mut file) = (Vec::new(), BlockAddr::NULL, ROOT);
        let d = Damaged::filled(64 << 20, features, |volume: &mut Engine| {
            file = volume.begin(Caller::ADMIN).create(ROOT, b"rewritten", &NewNode::new(0o100_644))?;
            volume.begin(Caller::ADMIN).write(file, 0, &vec![1; BLOCKS as usize * BLOCK])?;
            volume.checkpoint()?;
            let inode = volume.inode(file)?;
            older = (0..BLOCKS).map(|n| volume.address(&inode, n)).collect::<Result<_, _>>()?;
            older_inode = volume.nat_entry(file.into())?.addr;
            volume.begin(Caller::ADMIN).write(file, 0, &vec![2; BLOCKS as usize * BLOCK]).map(drop)
        });
        let is_older = |addr: BlockAddr| {
            let (segment, offset) = d.position(addr);
            d.block(addr)[0] == 1 && d.sit(segment).map[usize::from(offset) / 8] & 0x80 >> (offset % 8) == 0
        };
        assert!([3, 950].into_iter().all(|n| is_older(older[n])), "the older blocks are free, and whole");
        Rewritten { d, file, older, older_inode }
    }

    /// Byte offset of an address in the inode.
    fn at(&self, index: usize) -> usize {
        self.d.volume().inode(self.file).unwrap().layout().addrs_at() + 4 * index
    }
}

#[test]
fn an_address_of_an_older_block_gives_way_to_the_marked_one() {
    for features in FEATURES {
        let r = Rewritten::new(features);
        let paths = all_paths(&r.d);
        r.d.put_node(r.file.into(), r.at(3), &r.older[3].0.to_le_bytes());
        // Without a checksum, the whole inode may be older.
        let losses = if features == FEATURES[0] { vec![OLDER] } else { Vec::new() };
        assert_eq!(faults_after_repair(&r.d, &paths), losses, "in the inode, {features}");
        let r = Rewritten::new(features);
        let node = r.d.child(r.file, 0);
        let word = r.d.data(r.file, 950).0.to_le_bytes();
        let index = r.d.block(r.d.addr(node)).chunks(4).position(|other| other == word).unwrap();
        r.d.put_node(node, 4 * index, &r.older[950].0.to_le_bytes());
        assert_eq!(faults_after_repair(&r.d, &paths), Vec::<String>::new(), "in a node, {features}");
    }
}

#[test]
fn an_address_of_an_older_block_of_the_inode_gives_way_to_the_marked_block() {
    for features in FEATURES {
        let r = Rewritten::new(features);
        let paths = all_paths(&r.d);
        r.d.put_node(r.file.into(), r.at(0), &r.older_inode.0.to_le_bytes());
        assert_eq!(faults_after_repair(&r.d, &paths), Vec::<String>::new(), "{features}");
    }
}

#[test]
fn an_older_block_that_the_checksum_of_the_inode_confirms_stays_and_is_a_loss() {
    let r = Rewritten::new(FEATURES[1]);
    r.d.put_inode(r.file, r.at(3), &r.older[3].0.to_le_bytes());
    let losses = repair_of(&r.d.device).losses;
    assert!(losses.iter().any(|loss| loss.starts_with("up to 1 blocks are freed")), "{losses:?}");
}

#[test]
fn an_address_stays_where_the_marks_are_older_than_its_node() {
    let r = Rewritten::new(FEATURES[0]);
    let paths = all_paths(&r.d);
    let inode = r.d.addr(r.file.into());
    [r.older[3], r.d.data(r.file, 3), r.older_inode, inode].into_iter().for_each(|addr| r.d.flip_mark(addr));
    let plan = repair_of(&r.d.device);
    assert_eq!(plan.certainty(), Certainty::Unclear, "{}", support::lines(&plan.report));
    plan.apply(&*r.d.device).unwrap();
    assert!(support::report(r.d.device.clone()).is_clean());
    assert_eq!(all_paths(&r.d), paths);
}

#[test]
fn addresses_stay_where_an_older_block_of_the_sit_marks_their_node_by_chance() {
    let r = Rewritten::new(FEATURES[0]);
    let paths = all_paths(&r.d);
    for n in [3, 4, 950] {
        [r.older[n], r.d.data(r.file, n as u64)].into_iter().for_each(|addr| r.d.flip_mark(addr));
    }
    let plan = repair_of(&r.d.device);
    assert_eq!(plan.certainty(), Certainty::Unclear, "{}", support::lines(&plan.report));
    plan.apply(&*r.d.device).unwrap();
    assert!(support::report(r.d.device.clone()).is_clean());
    assert_eq!(all_paths(&r.d), paths);
}

/// They were told as losses.
#[test]
fn blocks_of_many_files_that_an_older_block_of_the_sit_marks_are_no_loss() {
    let names: Vec<String> = (0..5).map(|n| format!("rewritten {n}")).collect();
    let mut older = Vec::new();
    let d = Damaged::filled(64 << 20, FEATURES[0], |volume: &mut Engine| {
        let mut files = Vec::new();
        for name in &names {
            let ino = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644))?;
            volume.begin(Caller::ADMIN).write(ino, 0, &[1; 4 * BLOCK])?;
            files.push(ino);
        }
        volume.checkpoint()?;
        for ino in files {
            let inode = volume.inode(ino)?;
            older.push((ino, volume.address(&inode, 0)?));
            volume.begin(Caller::ADMIN).write(ino, 0, &[2; 4 * BLOCK])?;
        }
        Ok(())
    });
    let r = Rewritten { d, file: ROOT, older: Vec::new(), older_inode: BlockAddr::NULL };
    let paths = all_paths(&r.d);
    for (ino, addr) in &older {
        [*addr, r.d.data(*ino, 0)].into_iter().for_each(|addr| r.d.flip_mark(addr));
    }
    assert_eq!(faults_after_repair(&r.d, &paths), Vec::<String>::new());
}
