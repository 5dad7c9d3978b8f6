//! Wrong marks and sizes in inodes, which lay out their content otherwise than it is: all content and attributes come back.

use std::sync::Arc;

use block::{MemoryDevice, Rng};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options, XattrMode},
    format::{
        inode::{INLINE_XATTR_WORDS, inline},
        superblock::Features,
    },
};

use f2fs_check::{Certainty, Kind};

use crate::{
    Planned, ROOT, planned, repair_of, support,
    volume::{BLOCK, Damaged, NOW},
};

const INLINE: usize = 3;
const EXTRA: usize = 360;
const XATTR_WORDS: usize = 362;

/// Makes files whose addresses fill further nodes ("big", "long", "edge"), the inode ("ten"), and inline ones ("small",
/// "link"), with attributes and without, and a directory ("dir").
fn fill(volume: &mut Engine) -> f2fs::Result<()> {
    let file = NewNode::new(0o100_644);
    let (long, edge) = (("long", 1300 * BLOCK - 9), ("edge", 900 * BLOCK));
    for (name, bytes) in
        [("big", 1200 * BLOCK), ("ten", 10 * BLOCK), ("small", 500), ("plain", 10 * BLOCK), long, edge]
    {
        let ino = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &file)?;
        let content: Vec<u8> = (0..bytes).map(|n| (n / 100 % 251) as u8 + 1).collect();
        volume.begin(Caller::ADMIN).write(ino, 0, &content)?;
        if matches!(name, "big" | "ten" | "small") {
            volume.begin(Caller::ADMIN).set_xattr(ino, b"user.name", name.as_bytes(), XattrMode::Set)?;
        }
    }
    let target = [b'x'; 300];
    volume.begin(Caller::ADMIN).symlink(ROOT, b"link", &target, &NewNode::new(0o120_777))?;
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755))?;
    volume.begin(Caller::ADMIN).set_xattr(dir, b"user.dir", b"value", XattrMode::Set)?;
    volume.begin(Caller::ADMIN).create(ROOT, b"pipe", &NewNode::new(0o010_640))?;
    volume.begin(Caller::ADMIN).create(dir, b"inside", &file).map(drop)
}

fn sound(features: &str) -> Damaged {
    Damaged::filled(128 << 20, features, fill)
}

/// All that Linux shows of a volume.
fn all(device: &Arc<MemoryDevice>) -> Vec<String> {
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a volume");
    let mut lines: Vec<_> =
        model::manifest::manifest_of(&volume).entries.iter().map(|entry| format!("{entry:?}")).collect();
    lines.sort();
    lines
}

/// Changes bits in a byte of an inode, whose checksum stays right, and expects all to come back without a loss.
fn assert_restored(features: &str, path: &str, at: usize, bits: u8) {
    assert_restored_on(sound(features), path, at, bits);
}

fn assert_restored_on(d: Damaged, path: &str, at: usize, bits: u8) {
    let features = d.volume().superblock().features;
    let before = all(&d.device);
    let ino = d.ino(path);
    let byte = d.block(d.addr(ino.into()))[at] ^ bits;
    d.put_node(ino.into(), at, &[byte]);
    if features.has(Features::INODE_CHECKSUM) {
        d.seal(ino);
    }
    let case = format!("{features:?} {path}: byte {at} is {byte:#x}");
    let plan = repair_of(&d.device);
    assert_eq!(plan.losses, [""; 0], "{case}");
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{case}: {}", support::lines(&report));
    assert_eq!(all(&d.device), before, "{case}");
}

#[test]
fn a_wrong_size_of_extra_attributes_moves_no_block() {
    for features in ["extra_attr", "extra_attr,inode_checksum,flexible_inline_xattr"] {
        for path in ["/big", "/ten", "/plain"] {
            for bits in [0x04, 0x20] {
                assert_restored(features, path, EXTRA, bits);
            }
        }
    }
}

#[test]
fn a_lost_mark_of_extra_attributes_moves_no_content() {
    for path in ["/big", "/ten", "/small", "/link"] {
        assert_restored("extra_attr", path, INLINE, inline::EXTRA_ATTR);
    }
}

#[test]
fn a_lost_mark_of_inline_xattrs_hides_none() {
    for features in ["", "extra_attr", "extra_attr,flexible_inline_xattr"] {
        for path in ["/big", "/ten", "/small", "/dir"] {
            assert_restored(features, path, INLINE, inline::XATTR);
        }
    }
}

#[test]
fn a_lost_mark_of_empty_inline_xattrs_moves_no_block() {
    for features in ["", "extra_attr", "extra_attr,inode_checksum"] {
        for path in ["/long", "/edge"] {
            assert_restored(features, path, INLINE, inline::XATTR);
        }
    }
}

#[test]
fn a_wrong_size_of_extra_attributes_moves_no_inline_content() {
    for features in ["extra_attr", "extra_attr,inode_crtime"] {
        for path in ["/small", "/link", "/dir"] {
            // From 36 bytes to 12, 20, 4, 24 and 32.
            for bits in [0x28, 0x30, 0x20, 0x3C, 0x04] {
                assert_restored(features, path, EXTRA, bits);
            }
        }
    }
}

/// The word may be part of the extra attributes.
#[test]
fn a_word_before_inline_content_is_cleared_for_certain_only_at_its_usual_place() {
    for (extra, certainty) in [(36, Certainty::Certain), (12, Certainty::Unclear)] {
        let d = sound("extra_attr,inode_crtime");
        let ino = d.ino("/small");
        d.put_node(ino.into(), EXTRA, &[extra]);
        d.put_node(ino.into(), EXTRA + 36, &[1]);
        let plan = repair_of(&d.device);
        let told = support::lines(&plan.report);
        let found = plan.report.findings().iter().find(|finding| finding.kind == Kind::InlineReserved);
        assert_eq!(found.map(|finding| finding.certainty), Some(certainty), "{told}");
        assert_eq!(plan.certainty(), certainty, "{told}");
    }
}

#[test]
fn a_wrong_size_of_inline_xattrs_hides_none_and_moves_no_block() {
    for path in ["/big", "/ten", "/small"] {
        for bits in [0x01, 0x02, 0x04, 0x10] {
            assert_restored("extra_attr,flexible_inline_xattr", path, XATTR_WORDS, bits);
        }
    }
}

#[test]
fn a_size_of_inline_xattrs_that_is_zero_loses_no_file() {
    for path in ["/big", "/ten", "/small", "/plain", "/link", "/pipe", "/dir", "/"] {
        for features in
            ["extra_attr,flexible_inline_xattr", "extra_attr,inode_checksum,flexible_inline_xattr"]
        {
            assert_restored(features, path, XATTR_WORDS, INLINE_XATTR_WORDS as u8);
        }
    }
}

/// The addresses and names of such inodes take the place of the xattrs.
#[test]
fn a_mark_of_inline_xattrs_in_an_inode_without_space_for_them_moves_no_content() {
    let flexible = without_space_for_xattrs("extra_attr,flexible_inline_xattr");
    for path in ["/big", "/ten", "/plain", "/link", "/pipe", "/dir"] {
        assert_restored_on(Damaged::copy_of(&flexible.device), path, INLINE, inline::XATTR);
    }
    let fixed = without_space_for_xattrs("extra_attr");
    for path in ["/long", "/edge"] {
        assert_restored_on(Damaged::copy_of(&fixed.device), path, INLINE, inline::XATTR);
    }
}

fn without_space_for_xattrs(features: &str) -> Damaged {
    let sound = Damaged::filled(128 << 20, features, |_| Ok(()));
    let options = Options { inline_xattr: false, ..Options::new(|| NOW) };
    let mut volume = Engine::open(sound.device.clone(), options).unwrap();
    fill(&mut volume).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    Damaged::copy_of(&sound.device)
}

#[test]
fn a_lost_mark_of_inline_data_loses_no_content() {
    for features in ["", "extra_attr,inode_checksum"] {
        for path in ["/small", "/link"] {
            assert_restored(features, path, INLINE, inline::DATA);
            assert_restored(features, path, INLINE, inline::DATA | inline::DATA_EXIST);
        }
    }
}

/// The checksum tells which bit it was.
#[test]
fn a_wrong_bit_of_an_inode_with_a_checksum_is_corrected() {
    let sound = sound("extra_attr,inode_checksum,flexible_inline_xattr");
    let before = all(&sound.device);
    let mut rng = Rng::new(11);
    for path in ["/big", "/small", "/link", "/dir", "/"] {
        let ino = sound.ino(path);
        let addr = sound.addr(ino.into());
        let right = sound.block(addr);
        // The head, the marks and sizes of the layout, and any other byte but those of the checksum and of the generation.
        let any: Vec<usize> = (0..12).map(|_| rng.below(BLOCK as u64 - 24) as usize).collect();
        for at in [0, 2, INLINE, 16, 24, 80, EXTRA, XATTR_WORDS].into_iter().chain(any) {
            if (68..72).contains(&at) || (368..372).contains(&at) {
                continue;
            }
            let d = Damaged::copy_of(&sound.device);
            let bit = rng.below(8);
            d.put(addr, at, &[right[at] ^ 1 << bit]);
            let case = format!("{path}: bit {bit} of byte {at}");
            let plan = repair_of(&d.device);
            assert_eq!(plan.losses, [""; 0], "{case}: {}", support::lines(&plan.report));
            plan.apply(&*d.device).unwrap();
            assert!(matches!(planned(&d.device), Planned::Clean(_)), "{case}");
            assert_eq!(all(&d.device), before, "{case}");
        }
    }
}
