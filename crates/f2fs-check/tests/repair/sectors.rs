//! Parts of nodes that were overwritten: sectors of 512 bytes, and footers.

use std::collections::BTreeMap;

use block::Rng;
use f2fs::format::{node::NodeFooter, superblock::Features};

use super::*;

/// Bytes of a sector.
const SECTOR: usize = 512;
/// Bytes of a footer.
const FOOTER_BYTES: usize = BLOCK - FOOTER;

/// Paths with mode, owner, links, size, content and attributes.
fn listed(d: &Damaged) -> BTreeMap<String, String> {
    let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
    let entries = model::manifest::manifest_of(&volume).entries.into_iter();
    let line = |entry: &guest::Entry| {
        format!(
            "{:o} {} {} {} {:?} {:?}",
            entry.mode, entry.uid, entry.nlink, entry.size, entry.sha256, entry.xattrs
        )
    };
    entries.map(|entry| (format!("{:?}", entry.path), line(&entry))).collect()
}

#[test]
fn a_footer_of_zeroes_or_ones_loses_nothing() {
    let sound = Damaged::new();
    let attributes = sound.volume().inode(sound.ino("/attributes")).unwrap().xattr_nid();
    let inodes = [
        "/plain",
        "/big",
        "/far",
        "/many",
        "/few",
        "/few/small",
        "/few/other",
        "/link",
        "/attributes",
        "/compressed",
    ];
    let inodes = inodes.map(|path| (path, Nid::from(sound.ino(path))));
    let nodes = [
        ("the xattr node", attributes),
        ("a direct node", sound.child(sound.ino("/big"), 0)),
        ("an indirect node", sound.child(sound.ino("/far"), 2)),
    ];
    let all: Vec<(&str, Nid)> = inodes.into_iter().chain(nodes).collect();
    for byte in [0, 0xFF] {
        let d = Damaged::new();
        all.iter().for_each(|(_, nid)| d.put_node(*nid, FOOTER, &[byte; FOOTER_BYTES]));
        let mut plan = repair_of(&d.device);
        // With the footer, attributes beside it may be lost.
        plan.losses.retain(|loss| byte != 0 || !loss.contains("extended attributes"));
        assert_eq!(plan.losses, Vec::<String>::new(), "{byte:#x}");
        plan.apply(&*d.device).unwrap();
        let report = support::report(d.device.clone());
        assert!(report.is_clean(), "{byte:#x}: {}", support::lines(&report));
        model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
        assert_eq!(listed(&d), listed(&sound), "{byte:#x}");
        let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        for (name, nid) in &all {
            let found = NodeFooter::of(&d.block(volume.nat_entry(*nid).unwrap().addr));
            let right = NodeFooter::of(&sound.block(sound.addr(*nid)));
            // The mark decides on the log, and Linux rolls only that of cold nodes forward.
            assert_eq!(found.cold, right.cold, "{name}, {byte:#x}");
        }
    }
}

/// Zeroes were taken for the attributes of the file.
#[test]
fn a_blank_node_of_attributes_is_lost_and_said() {
    for byte in [0, 0xFF] {
        let d = Damaged::new();
        let attributes = d.volume().inode(d.ino("/attributes")).unwrap().xattr_nid();
        d.put_node(attributes, 0, &[byte; BLOCK]);
        let plan = repair_of(&d.device);
        let is_said = plan.losses.iter().any(|loss| loss.contains("extended attributes"));
        assert!(is_said, "{byte:#x}: {:?}", plan.losses);
        plan.apply(&*d.device).unwrap();
        let report = support::report(d.device.clone());
        assert!(report.is_clean(), "{byte:#x}: {}", support::lines(&report));
    }
}

/// Linux reads such attributes, too.
#[test]
fn attributes_behind_a_header_of_zeroes_stay() {
    let sound = Damaged::new();
    for zeroes in [4, 24] {
        let d = Damaged::new();
        for path in ["/few/small", "/attributes"] {
            let ino = d.ino(path);
            let range = d.volume().inode(ino).unwrap().layout().inline_xattr_range();
            d.put_inode(ino, range.start, &vec![0; zeroes]);
        }
        assert_eq!(listed(&d), listed(&sound), "they are read without the header");
        let plan = repair_of(&d.device);
        assert_eq!(support::errors(&plan.report), ["xattr-invalid"], "{}", support::lines(&plan.report));
        assert_eq!(plan.losses, Vec::<String>::new());
        plan.apply(&*d.device).unwrap();
        assert!(support::report(d.device.clone()).is_clean());
        assert_eq!(listed(&d), listed(&sound));
    }
}

#[test]
fn attributes_that_are_lost_with_their_sector_or_their_seal_are_a_loss() {
    let tells = |d: &Damaged, count: usize| {
        let plan = repair_of(&d.device);
        let expected = format!("the extended attributes of up to {count} inodes");
        assert!(plan.losses.iter().any(|loss| loss.starts_with(&expected)), "{:?}", plan.losses);
        plan.apply(&*d.device).unwrap();
        let report = support::report(d.device.clone());
        assert!(report.is_clean(), "{}", support::lines(&report));
    };
    let d = Damaged::new();
    d.put_node(d.ino("/few/small").into(), BLOCK - SECTOR, &[0; SECTOR]);
    tells(&d, 1);
    let d = Damaged::new();
    d.add_features(Features::VERITY);
    mark_as_sealed(&d, "/big");
    mark_as_sealed(&d, "/far");
    tells(&d, 2);
    // The rest of a long value lies in the xattr node.
    let d = Damaged::new();
    d.put_node(d.ino("/attributes").into(), BLOCK - SECTOR, &[0; SECTOR]);
    tells(&d, 1);
}

/// Two words of such a node belong to no cluster. The repair counted them, and the check did not.
#[test]
fn ones_in_a_node_of_a_compressed_file_lose_nothing() {
    let d = Damaged::filled(128 << 20, "extra_attr,compression", |volume| {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"packed", &NewNode::new(0o100_644))?;
        let set = f2fs::engine::SetAttr { flags: Some(flag::COMPRESS), ..Default::default() };
        volume.begin(Caller::ADMIN).set_attr(ino, &set)?;
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![b'x'; 9 << 20])
    });
    let node = d.child(d.ino("/packed"), 0);
    let before = contents(&d.device);
    d.put_node(node, BLOCK - SECTOR, &[0xFF; SECTOR]);
    let plan = repair_of(&d.device);
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
    assert_eq!(contents(&d.device), before);
}

/// Content that overwrites a sector.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    Zeroes,
    Ones,
    Noise,
}

impl Pattern {
    fn bytes(self, seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        match self {
            Pattern::Zeroes => vec![0; SECTOR],
            Pattern::Ones => vec![0xFF; SECTOR],
            Pattern::Noise => (0..SECTOR).map(|_| rng.below(256) as u8).collect(),
        }
    }
}

/// Repairs a volume. Returns its paths with their content.
fn contents_after(d: &Damaged, case: &str) -> (BTreeMap<String, String>, Vec<String>) {
    let losses = match planned(&d.device) {
        // The sector has these bytes.
        Planned::Clean(_) => Vec::new(),
        Planned::Refused(refusal) => {
            panic!("{case}: {}: {}", refusal.reason, support::lines(&refusal.report))
        }
        Planned::Repair(plan) => {
            plan.apply(&*d.device).unwrap();
            plan.losses
        }
    };
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{case}: {}", support::lines(&report));
    if let Err(error) = model::fsck::fsck(&d.device) {
        panic!("{case}: fsck.f2fs: {error:#}");
    }
    (contents(&d.device), losses)
}

/// Overwrites each sector of these inodes in turn: that costs no more than the loss of the whole inodes, and is said.
fn a_sector_costs_no_more_than_the_block(
    sound: &Damaged,
    inodes: &[Ino],
    sectors: std::ops::Range<usize>,
    patterns: &[Pattern],
) {
    let copy = || Damaged::copy_of(&sound.device);
    let before = contents(&sound.device);
    let d = copy();
    inodes.iter().for_each(|ino| d.put_node((*ino).into(), 0, &[0; BLOCK]));
    let (mut kept, _) = contents_after(&d, "whole blocks");
    kept.retain(|path, line| before.get(path) == Some(line));
    for sector in sectors {
        for pattern in patterns {
            let case = format!("{pattern:?} in sector {sector}");
            let d = copy();
            for ino in inodes {
                d.put_node(
                    (*ino).into(),
                    sector * SECTOR,
                    &pattern.bytes(u64::from(ino.0) << 8 | sector as u64),
                );
            }
            let (found, losses) = contents_after(&d, &case);
            let less: Vec<&String> = kept
                .iter()
                .filter(|(path, line)| found.get(*path) != Some(line))
                .map(|(path, _)| path)
                .collect();
            assert!(less.is_empty(), "{case}: {less:?}: {losses:?}");
            let is_whole = before.iter().all(|(path, line)| found.get(path) == Some(line));
            assert!(is_whole || !losses.is_empty(), "{case}: the loss is not said");
            for (path, line) in listed(&d) {
                let mode = u32::from_str_radix(line.split(' ').next().unwrap(), 8).unwrap();
                assert_eq!(mode & 0o6000, 0, "{case}: {path} has set-id bits");
            }
        }
    }
}

#[test]
fn sectors_of_inodes_of_files_and_directories_cost_no_more_than_their_blocks() {
    let d = Damaged::new();
    let paths = ["/plain", "/big", "/far", "/many", "/link", "/compressed", "/attributes", "/few/small"];
    let inodes = paths.map(|path| d.ino(path));
    a_sector_costs_no_more_than_the_block(&d, &inodes, 0..1, &[Pattern::Ones]);
    a_sector_costs_no_more_than_the_block(&d, &inodes, 0..8, &[Pattern::Zeroes, Pattern::Noise]);
}

#[test]
fn the_first_sector_of_an_inline_directory_costs_no_more_than_its_block() {
    let d = Damaged::new();
    let all = [Pattern::Zeroes, Pattern::Ones, Pattern::Noise];
    a_sector_costs_no_more_than_the_block(&d, &[d.ino("/few")], 0..1, &all);
}

#[test]
fn sectors_of_the_root_cost_no_more_than_its_block() {
    let d = Damaged::new();
    a_sector_costs_no_more_than_the_block(&d, &[ROOT], 0..1, &[Pattern::Ones]);
    a_sector_costs_no_more_than_the_block(&d, &[ROOT], 0..8, &[Pattern::Zeroes, Pattern::Noise]);
}

#[test]
fn sectors_of_inodes_without_checksums_cost_no_more_than_their_blocks() {
    let d = Damaged::filled(64 << 20, "", |volume| {
        let file = NewNode::new(0o100_644);
        let plain = volume.begin(Caller::ADMIN).create(ROOT, b"plain", &file)?;
        volume.begin(Caller::ADMIN).write(plain, 0, &[3; 40 * BLOCK])?;
        let big = volume.begin(Caller::ADMIN).create(ROOT, b"big", &file)?;
        volume.begin(Caller::ADMIN).write(big, 0, &[4; 1500 * BLOCK])?;
        for (dir, names) in [(&b"many"[..], 400), (&b"few"[..], 80)] {
            let dir = volume.begin(Caller::ADMIN).create(ROOT, dir, &NewNode::new(0o040_755))?;
            for n in 0..names {
                let ino = volume.begin(Caller::ADMIN).create(dir, format!("entry {n}").as_bytes(), &file)?;
                volume.begin(Caller::ADMIN).write(ino, 0, &[n as u8; 99])?;
            }
        }
        Ok(())
    });
    let inodes = ["/plain", "/big", "/many", "/few", "/many/entry 7"].map(|path| d.ino(path));
    a_sector_costs_no_more_than_the_block(&d, &inodes, 0..8, &[Pattern::Zeroes, Pattern::Noise]);
}
