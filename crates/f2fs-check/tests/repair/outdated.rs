//! Inodes whose place has an older version of them.

use f2fs::{
    engine::{Caller, Engine, NewNode},
    units::{BlockAddr, Ino, Nid},
};
use f2fs_check::{Certainty, Kind};

use crate::{
    ROOT,
    directories::{all_paths, faults_after_repair},
    repair_of, support,
    volume::{BLOCK, Damaged},
};

/// Features without and with checksums of inodes.
const FEATURES: [&str; 2] = ["extra_attr", "extra_attr,inode_checksum"];

/// A volume with a file that was written in two parts, with a checkpoint between them.
struct Grown {
    d: Damaged,
    file: Ino,
    /// The inode as it was at the checkpoint.
    older: Vec<u8>,
}

impl Grown {
    /// Makes a file of `first` blocks, which gets the blocks `second`.
    fn new(features: &str, first: u64, second: std::ops::Range<u64>) -> Grown {
        let (mut file, mut older) = (ROOT, BlockAddr::NULL);
        let d = Damaged::filled(64 << 20, features, |volume: &mut Engine| {
            file = volume.begin(Caller::ADMIN).create(ROOT, b"grown", &NewNode::new(0o100_644))?;
            volume.begin(Caller::ADMIN).write(file, 0, &vec![1; first as usize * BLOCK])?;
            volume.checkpoint()?;
            older = volume.nat_entry(file.into())?.addr;
            let bytes = vec![2; (second.end - second.start) as usize * BLOCK];
            volume.begin(Caller::ADMIN).write(file, second.start * BLOCK as u64, &bytes).map(drop)
        });
        let older = d.block(older);
        assert_eq!(older[..4], d.block(d.addr(file.into()))[..4], "it is an inode");
        Grown { d, file, older }
    }

    /// Puts the older inode in the place of the newest one.
    fn put_older(&self) {
        self.d.put_node(self.file.into(), 0, &self.older);
    }
}

#[test]
fn blocks_that_an_older_inode_does_not_name_come_back_and_its_size_is_a_loss() {
    for features in FEATURES {
        // In the inode; there and in a direct node; in a direct node alone.
        for (first, second) in [(10, 10..30), (10, 5..1000), (950, 950..960), (10, 1100..1200)] {
            let g = Grown::new(features, first, second.clone());
            let paths = all_paths(&g.d);
            g.put_older();
            let plan = repair_of(&g.d.device);
            assert_eq!(plan.losses, ["the sizes of up to 1 files are lost: zeroes follow their content"]);
            assert_eq!(plan.certainty(), Certainty::Unclear);
            plan.apply(&*g.d.device).unwrap();
            let report = support::report(g.d.device.clone());
            assert!(report.is_clean(), "{}", support::lines(&report));
            assert_eq!(all_paths(&g.d), paths, "{features}, {first} and {second:?}");
        }
    }
}

#[test]
fn blocks_that_come_back_within_an_older_size_keep_it() {
    let g = Grown::new(FEATURES[0], 1, 10..30);
    let size = 10 * BLOCK as u64 + 17;
    let paths = all_paths(&g.d);
    let mut older = g.older.clone();
    older[16..24].copy_from_slice(&(20 * BLOCK as u64 + size).to_le_bytes());
    g.d.put_node(g.file.into(), 0, &older);
    let _ = paths;
    let plan = repair_of(&g.d.device);
    assert_eq!(plan.losses, Vec::<String>::new());
    plan.apply(&*g.d.device).unwrap();
    let report = support::report(g.d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    let mut content = vec![0; 30 * BLOCK];
    let volume = Engine::open(g.d.device.clone(), f2fs::engine::Options::read_only()).unwrap();
    volume.read(g.file, 0, &mut content).unwrap();
    assert!(content[10 * BLOCK..].iter().all(|byte| *byte == 2));
    assert_eq!(volume.inode(g.file).unwrap().head().size.get(), 20 * BLOCK as u64 + size);
}

/// The checkpoint does not count blocks that a file has given up.
#[test]
fn blocks_that_an_older_map_of_a_segment_marks_stay_out_of_holes_and_are_no_loss() {
    let mut first = Vec::new();
    let mut file = ROOT;
    let d = Damaged::filled(64 << 20, FEATURES[0], |volume: &mut Engine| {
        file = volume.begin(Caller::ADMIN).create(ROOT, b"cut", &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).write(file, 0, &vec![1; 30 * BLOCK])?;
        volume.checkpoint()?;
        let inode = volume.inode(file)?;
        first = (0..30).map(|n| volume.address(&inode, n)).collect::<Result<_, _>>()?;
        volume.begin(Caller::ADMIN).truncate(file, 10 * BLOCK as u64)
    });
    let older = d.block(d.addr(file.into()));
    let g = Grown { d, file, older };
    let paths = all_paths(&g.d);
    first[10..].iter().for_each(|addr| g.d.flip_mark(*addr));
    let plan = repair_of(&g.d.device);
    assert_eq!(plan.losses, Vec::<String>::new());
    assert_eq!(plan.report.count(Kind::BlockAddress), 0, "{}", support::lines(&plan.report));
    assert_eq!(faults_after_repair(&g.d, &paths), Vec::<String>::new());
}

/// Both an old map and an older inode, or other damage: nothing tells which blocks the checkpoint counts.
#[test]
fn blocks_of_holes_that_the_checkpoint_counts_in_part_are_a_loss_with_the_file() {
    let g = Grown::new(FEATURES[0], 10, 10..30);
    let counted = g.d.checkpoint().1.valid_blocks - 5;
    g.put_older();
    g.d.put_checkpoint(16, &counted.to_le_bytes());
    let plan = repair_of(&g.d.device);
    assert!(
        plan.losses.iter().any(|loss| loss.starts_with("up to 15 blocks are freed")),
        "{:?}",
        plan.losses
    );
    let is_told = |finding: &f2fs_check::Finding| {
        finding.at == f2fs::Place::Inode(g.file) && finding.known.contains("20 marked blocks")
    };
    assert!(plan.report.findings().iter().any(is_told), "{}", support::lines(&plan.report));
    assert_eq!(plan.certainty(), Certainty::Unclear);
    plan.apply(&*g.d.device).unwrap();
    assert!(support::report(g.d.device.clone()).is_clean());
}

#[test]
fn blocks_of_a_file_whose_older_inode_holds_its_content_are_a_loss() {
    let mut older = BlockAddr::NULL;
    let mut file = ROOT;
    let features = "extra_attr,flexible_inline_xattr";
    let d = Damaged::filled(64 << 20, features, |volume: &mut Engine| {
        file = volume.begin(Caller::ADMIN).create(ROOT, b"small", &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).write(file, 0, b"small")?;
        volume.checkpoint()?;
        older = volume.nat_entry(file.into())?.addr;
        volume.begin(Caller::ADMIN).write(file, 0, &vec![2; 20 * BLOCK]).map(drop)
    });
    d.put_node(file.into(), 0, &d.block(older));
    let plan = repair_of(&d.device);
    assert!(
        plan.losses.iter().any(|loss| loss.starts_with("up to 20 blocks are freed")),
        "{:?}",
        plan.losses
    );
    plan.apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
}

/// The blocks of the file were freed, and nothing was told.
#[test]
fn a_file_whose_inode_begins_with_the_sector_of_another_one_keeps_its_blocks() {
    for features in FEATURES {
        let (mut file, mut other) = (ROOT, ROOT);
        let d = Damaged::filled(64 << 20, features, |volume: &mut Engine| {
            for (ino, name, blocks) in [(&mut file, "file", 30), (&mut other, "other", 3)] {
                *ino = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644))?;
                volume.begin(Caller::ADMIN).write(*ino, 0, &vec![blocks as u8; blocks * BLOCK])?;
            }
            Ok(())
        });
        let before = all_paths(&d);
        d.put_node(file.into(), 0, &d.block(d.addr(other.into()))[..512]);
        if features.contains("inode_checksum") {
            d.seal(file);
        }
        let plan = repair_of(&d.device);
        assert_eq!(plan.losses, ["the sizes of up to 1 files are lost: zeroes follow their content"]);
        plan.apply(&*d.device).unwrap();
        assert!(support::report(d.device.clone()).is_clean());
        assert_eq!(all_paths(&d), before, "{features}");
    }
}

/// Such nodes come back; the data that a file has given up stays behind its end.
#[test]
fn a_node_of_an_older_nat_gives_its_file_no_other_size() {
    let (mut file, mut entry, mut node) = (ROOT, None, Nid::NULL);
    let d = Damaged::filled(64 << 20, FEATURES[0], |volume: &mut Engine| {
        file = volume.begin(Caller::ADMIN).create(ROOT, b"cut", &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).write(file, 0, &vec![1; 1000 * BLOCK])?;
        volume.checkpoint()?;
        node = volume.inode(file)?.child(0);
        entry = Some(volume.nat_entry(node)?);
        volume.begin(Caller::ADMIN).truncate(file, 10 * BLOCK as u64)
    });
    let before = all_paths(&d);
    d.put_nat(node, 1, &file.0.to_le_bytes());
    d.put_nat(node, 5, &entry.unwrap().addr.0.to_le_bytes());
    repair_of(&d.device).apply(&*d.device).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
    assert_eq!(all_paths(&d), before);
}

/// The sentence about older inodes.
pub const OLDER: &str = "the newest inodes of up to 1 files are lost: sizes, times, permissions and attributes are those of older \
                     ones";

/// Makes a file of `first` blocks, which `change` shortens or empties. Returns it with its older inode.
fn given_up(features: &str, first: u64, change: impl FnOnce(&mut Engine, Ino) -> f2fs::Result<()>) -> Grown {
    let (mut file, mut older) = (ROOT, BlockAddr::NULL);
    let d = Damaged::filled(64 << 20, features, |volume: &mut Engine| {
        file = volume.begin(Caller::ADMIN).create(ROOT, b"given up", &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).write(file, 0, &vec![1; first as usize * BLOCK])?;
        volume.checkpoint()?;
        older = volume.nat_entry(file.into())?.addr;
        change(volume, file)
    });
    let older = d.block(older);
    Grown { d, file, older }
}

/// The blocks came back, as marked ones, and a repair of certain damage alone did that.
#[test]
fn blocks_that_an_older_inode_names_and_its_file_has_given_up_stay_free() {
    for features in FEATURES {
        for (first, left) in [(30, 10), (30, 0), (500, 1)] {
            let cut =
                |volume: &mut Engine, file| volume.begin(Caller::ADMIN).truncate(file, left * BLOCK as u64);
            let g = given_up(features, first, cut);
            let paths = all_paths(&g.d);
            g.put_older();
            let plan = repair_of(&g.d.device);
            assert_eq!(plan.losses, [OLDER], "{features}, {first} and {left}");
            assert_eq!(plan.certainty(), Certainty::Unclear);
            assert_eq!(faults_after_repair(&g.d, &paths), [OLDER], "{features}, {left}");
        }
    }
}

/// The node is told: nothing says that the file has given it up.
#[test]
fn a_node_that_an_older_inode_names_and_its_file_has_given_up_costs_no_block() {
    let cut = |volume: &mut Engine, file| volume.begin(Caller::ADMIN).truncate(file, BLOCK as u64);
    let g = given_up(FEATURES[0], 1000, cut);
    let paths = all_paths(&g.d);
    g.put_older();
    let node = "up to 1 nodes are lost, with the blocks of files that they name";
    assert_eq!(faults_after_repair(&g.d, &paths), [node, OLDER]);
}

#[test]
fn blocks_that_a_file_has_replaced_and_then_given_up_stay_free() {
    for features in FEATURES {
        let g = given_up(features, 30, |volume, file| {
            volume.begin(Caller::ADMIN).write(file, 0, &[2; 30 * BLOCK])?;
            volume.checkpoint()?;
            volume.begin(Caller::ADMIN).truncate(file, 10 * BLOCK as u64)
        });
        let paths = all_paths(&g.d);
        g.put_older();
        assert_eq!(faults_after_repair(&g.d, &paths), [OLDER], "{features}");
    }
}

#[test]
fn blocks_of_an_older_inode_that_belong_to_another_file_by_now_are_not_copied() {
    let g = given_up(FEATURES[0], 30, |volume, file| {
        volume.begin(Caller::ADMIN).truncate(file, 10 * BLOCK as u64)?;
        let other = volume.begin(Caller::ADMIN).create(ROOT, b"other", &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).write(other, 0, &[3; 5 * BLOCK])
    });
    let paths = all_paths(&g.d);
    // The next blocks of the log are those of the other file.
    let other = g.d.data(g.d.ino("/other"), 0);
    let mut older = g.older.clone();
    let at = g.d.volume().inode(g.file).unwrap().layout().addrs_at() + 4 * 10;
    (0..5).for_each(|n| older[at + 4 * n..][..4].copy_from_slice(&(other.0 + n as u32).to_le_bytes()));
    g.d.put_node(g.file.into(), 0, &older);
    assert_eq!(faults_after_repair(&g.d, &paths), [OLDER]);
}

#[test]
fn blocks_that_an_older_node_of_addresses_names_and_its_file_has_given_up_stay_free() {
    let (mut file, mut older, mut node) = (ROOT, BlockAddr::NULL, Nid::NULL);
    let d = Damaged::filled(64 << 20, FEATURES[0], |volume: &mut Engine| {
        file = volume.begin(Caller::ADMIN).create(ROOT, b"punched", &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).write(file, 0, &vec![1; 1000 * BLOCK])?;
        volume.checkpoint()?;
        node = volume.inode(file)?.child(0);
        older = volume.nat_entry(node)?.addr;
        volume.begin(Caller::ADMIN).punch_hole(file, 950 * BLOCK as u64, 20 * BLOCK as u64)
    });
    let paths = all_paths(&d);
    d.put_node(node, 0, &d.block(older));
    let plan = repair_of(&d.device);
    assert_eq!((&plan.losses[..], plan.certainty()), (&[][..], Certainty::Likely));
    assert_eq!(faults_after_repair(&d, &paths), Vec::<String>::new());
}

/// Both agree with each other; only the checkpoint counts other blocks.
#[test]
fn blocks_that_both_an_older_inode_and_an_older_map_have_may_be_a_loss() {
    let cut = |volume: &mut Engine, file| volume.begin(Caller::ADMIN).truncate(file, 10 * BLOCK as u64);
    let g = given_up(FEATURES[0], 30, cut);
    let mut first = Vec::new();
    g.put_older();
    let at = g.d.volume().inode(g.file).unwrap().layout().addrs_at();
    for n in 10..30 {
        let word = &g.older[at + 4 * n..][..4];
        first.push(BlockAddr(u32::from_le_bytes(word.try_into().unwrap())));
    }
    first.iter().for_each(|addr| g.d.flip_mark(*addr));
    let plan = repair_of(&g.d.device);
    let is_told = |loss: &String| loss.starts_with("up to 20 blocks of files may be older content");
    assert!(plan.losses.iter().any(is_told), "{:?}", plan.losses);
    assert_eq!(plan.certainty(), Certainty::Unclear);
    // The other way round, the file has got blocks that neither has.
    let g = Grown::new(FEATURES[0], 10, 10..30);
    let later: Vec<BlockAddr> = (10..30).map(|n| g.d.data(g.file, n)).collect();
    g.put_older();
    later.iter().for_each(|addr| g.d.flip_mark(*addr));
    let plan = repair_of(&g.d.device);
    let is_told = |loss: &String| loss.starts_with("up to 20 blocks of files are lost");
    assert!(plan.losses.iter().any(is_told), "{:?}", plan.losses);
}

/// Its block came back, its size did not, and nothing was told.
#[test]
fn an_older_inode_whose_newest_block_comes_back_is_a_loss() {
    let g = given_up(FEATURES[0], 1, |volume, file| volume.begin(Caller::ADMIN).write(file, 0, &[2; BLOCK]));
    let newest = g.d.data(g.file, 0);
    let mut older = g.older.clone();
    older[16..24].copy_from_slice(&100u64.to_le_bytes());
    g.d.put_node(g.file.into(), 0, &older);
    let plan = repair_of(&g.d.device);
    assert_eq!((&plan.losses[..], plan.certainty()), (&[OLDER.to_owned()][..], Certainty::Unclear));
    plan.apply(&*g.d.device).unwrap();
    assert!(support::report(g.d.device.clone()).is_clean());
    let volume = Engine::open(g.d.device.clone(), f2fs::engine::Options::read_only()).unwrap();
    assert_eq!(volume.address(&volume.inode(g.file).unwrap(), 0).unwrap(), newest);
}
