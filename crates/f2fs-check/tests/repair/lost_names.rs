//! Lost inodes whose name, place or layout is doubtful, too.

use std::collections::BTreeMap;

use f2fs::{
    engine::{Caller, Engine, NewNode, Options},
    format::superblock::Features,
    units::{Ino, Nid},
};

use f2fs_check::{Certainty, Kind};

use crate::{
    ROOT, le, repair_of, support,
    volume::{BLOCK, Damaged, NOW, contents},
};

const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
/// Byte offset of the number of words of inline xattrs in an inode.
const XATTR_WORDS: usize = 362;

/// Takes the block of an inode away, and its entry in the NAT.
fn lose(d: &Damaged, ino: Ino) {
    d.put_node(ino.into(), 0, &[0; BLOCK]);
    d.put_nat(Nid(ino.0), 5, &le(7));
}

/// Repairs a volume. Returns its paths with their content, and the text of the findings and losses.
fn repaired(d: &Damaged) -> (BTreeMap<String, String>, String) {
    let plan = repair_of(&d.device);
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).unwrap();
    (contents(&d.device), format!("{}\n{}", support::lines(&plan.report), plan.losses.join("\n")))
}

/// Makes a volume with a file in a directory.
fn with_file(features: &str, content: &[u8]) -> Damaged {
    Damaged::filled(64 << 20, features, |volume| {
        let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(DIR))?;
        let file = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE))?;
        volume.begin(Caller::ADMIN).write(file, 0, content).map(drop)
    })
}

/// Bytes that look like ciphertext (xorshift).
fn random(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

const PLAIN: &str = "extra_attr,inode_checksum";
const ENCRYPT: &str = "extra_attr,inode_checksum,encrypt";

#[test]
fn a_lost_file_keeps_its_content_while_its_directory_is_not_readable_yet() {
    let d = with_file(PLAIN, &[5; 7 * BLOCK]);
    let sound = contents(&d.device);
    // Until a repair has restored the kind of the directory, nothing names the file.
    d.put_inode(d.ino("/dir"), 0, &[0, 0]);
    lose(&d, d.ino("/dir/file"));
    let (found, text) = repaired(&d);
    assert_eq!(found.get("\"dir/file\""), sound.get("\"dir/file\""), "{found:?}\n{text}");
}

#[test]
fn a_lost_file_without_a_name_comes_to_lost_and_found() {
    let d = with_file(PLAIN, &[5; 1500 * BLOCK]);
    let sound = contents(&d.device);
    let file = d.ino("/dir/file");
    d.put_dentry(d.ino("/dir"), d.slot(d.ino("/dir"), "file"), 4, &le(60_000));
    lose(&d, file);
    let (found, text) = repaired(&d);
    let name = format!("\"lost+found/#{}\"", file.0);
    assert_eq!(found.get(&name), sound.get("\"dir/file\""), "{found:?}\n{text}");
}

#[test]
fn a_lost_directory_without_a_name_comes_to_lost_and_found_with_its_names() {
    let d = Damaged::filled(64 << 20, PLAIN, |volume| {
        let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(DIR))?;
        for n in 0..400 {
            volume.begin(Caller::ADMIN).create(dir, format!("entry {n}").as_bytes(), &NewNode::new(FILE))?;
        }
        Ok(())
    });
    let dir = d.ino("/dir");
    d.put_dentry(ROOT, d.slot(ROOT, "dir"), 4, &le(60_000));
    lose(&d, dir);
    let (found, text) = repaired(&d);
    for n in 0..400 {
        let path = format!("\"lost+found/#{}/entry {n}\"", dir.0);
        assert!(found.contains_key(&path), "{path}: {found:?}\n{text}");
    }
}

#[test]
fn ciphertext_of_a_lost_file_is_kept_apart_and_named_so() {
    let d = with_file(ENCRYPT, &random(7 * BLOCK));
    let sound = contents(&d.device);
    lose(&d, d.ino("/dir/file"));
    let (found, text) = repaired(&d);
    assert!(!found.contains_key("\"dir/file\""), "it looks like the file: {found:?}");
    assert_eq!(found.get("\"lost+found/file.encrypted\""), sound.get("\"dir/file\""), "{found:?}");
    assert!(text.contains("its encryption context is lost with it"), "{text}");
    assert!(text.contains("the encryption contexts of up to 1 files are lost"), "{text}");
}

#[test]
fn a_lost_file_of_an_encrypted_directory_keeps_its_ciphertext() {
    const ADVISE: usize = 2;
    const MARK: u8 = 4;
    let d = with_file(ENCRYPT, &random(7 * BLOCK));
    let sound = contents(&d.device);
    let file = d.ino("/dir/file");
    d.put_inode(d.ino("/dir"), ADVISE, &[MARK]);
    lose(&d, file);
    let (found, text) = repaired(&d);
    let name = format!("\"lost+found/#{}.encrypted\"", file.0);
    assert_eq!(found.get(&name), sound.get("\"dir/file\""), "{found:?}\n{text}");
}

#[test]
fn compressed_content_on_a_volume_with_encryption_stays_in_its_place() {
    let mut content = random(7 * BLOCK);
    content[..6].copy_from_slice(b"\xFD7zXZ\0");
    let d = with_file(ENCRYPT, &content);
    let sound = contents(&d.device);
    lose(&d, d.ino("/dir/file"));
    assert_eq!(repaired(&d).0.get("\"dir/file\""), sound.get("\"dir/file\""));
}

/// Makes a volume of inodes with inline xattrs of several sizes: "odd" has so many words of them, and `write` writes it. Each
/// block of the file has other content.
fn with_layouts(words: u16, blocks: &[std::ops::Range<u8>]) -> Damaged {
    let d = Damaged::filled(128 << 20, "extra_attr,inode_checksum,flexible_inline_xattr", |volume| {
        for n in 0..6 {
            let name = format!("usual {n}");
            let file = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE))?;
            volume.begin(Caller::ADMIN).write(file, 0, &[n; 2 * BLOCK])?;
        }
        for name in ["odd", "other"] {
            volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE))?;
        }
        Ok(())
    });
    for name in ["/odd", "/other"] {
        d.put_inode(d.ino(name), XATTR_WORDS, &words.to_le_bytes());
    }
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let (odd, other) = (d.ino("/odd"), d.ino("/other"));
    volume.begin(Caller::ADMIN).write(other, 0, &[9; 2 * BLOCK]).unwrap();
    for block in blocks.iter().cloned().flatten().flat_map(|part| (0..16u64).map(move |n| (part, n))) {
        let number = u64::from(block.0) * 16 + block.1;
        let content = number.to_le_bytes().repeat(BLOCK / 8);
        volume.begin(Caller::ADMIN).write(odd, number * BLOCK as u64, &content).unwrap();
    }
    assert!(volume.superblock().features.has(Features::FLEXIBLE_INLINE_XATTR));
    volume.unmount().unwrap();
    drop(volume);
    Damaged::copy_of(&d.device)
}

#[test]
fn a_lost_inode_gets_the_layout_that_its_blocks_tell() {
    // Larger and smaller than the usual area of 50 words.
    for words in [20, 100] {
        let d = with_layouts(words, &[0..60, 60..125]);
        let sound = contents(&d.device);
        lose(&d, d.ino("/odd"));
        let (found, text) = repaired(&d);
        assert_eq!(found.get("\"odd\""), sound.get("\"odd\""), "{words} words: {text}");
        assert!(!text.contains("may be shifted"), "{text}");
    }
}

#[test]
fn a_layout_that_nothing_tells_is_a_doubt_in_the_finding() {
    // The last addresses in the inode are those of a hole.
    let d = with_layouts(100, &[0..10, 80..125]);
    lose(&d, d.ino("/odd"));
    let (found, text) = repaired(&d);
    assert!(found.contains_key("\"odd\""));
    assert!(text.contains("may be shifted"), "{text}");
}

/// Makes files with a second name each in the directory "links".
fn link_files(volume: &mut Engine, count: u32) -> f2fs::Result<()> {
    let [files, links] = [&b"files"[..], b"links"]
        .map(|name| volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(0o040_755)));
    let (files, links) = (files?, links?);
    for n in 0..count {
        let name = format!("file {n:03}");
        let ino = volume.begin(Caller::ADMIN).create(files, name.as_bytes(), &NewNode::new(0o100_644))?;
        volume.begin(Caller::ADMIN).link(ino, links, format!("hard link {n:03}").as_bytes())?;
    }
    Ok(())
}

/// A zeroed block of a directory shows nothing but link counts, which were set without a word.
#[test]
fn names_of_hard_links_in_a_block_of_zeroes_are_a_loss() {
    let d = Damaged::filled(64 << 20, "extra_attr,inode_checksum", |volume| link_files(volume, 300));
    let links = d.ino("/links");
    let before = contents(&d.device);
    d.put(d.data(links, 2), 0, &[0; BLOCK]);
    let lost = before.len() - contents(&d.device).len();
    assert!(lost > 10, "{lost} names in the block");
    let plan = repair_of(&d.device);
    assert_eq!(
        plan.losses,
        [format!(
            "up to {lost} names are lost, because their entries are damaged or cannot be entered again"
        )]
    );
    assert_eq!(plan.certainty(), Certainty::Unclear);
    let counts = plan.report.findings().iter().filter(|finding| finding.kind == Kind::LinkCount);
    assert!(counts.clone().all(|finding| finding.certainty == Certainty::Unclear));
    assert_eq!(counts.count(), lost);
}

/// The paths below a directory, with their slots in a block of it.
fn slots_in(d: &Damaged, dir: &str, block: u64) -> BTreeMap<String, usize> {
    let ino = d.ino(dir);
    let paths = contents(&d.device).into_keys().filter_map(|path| {
        let name = path.trim_matches('"').strip_prefix(&format!("{}/", &dir[1..]))?.to_owned();
        let entry = d.volume().find_entry(ino, name.as_bytes()).unwrap()?;
        (entry.block == block).then_some((path, entry.slot))
    });
    paths.collect()
}

/// The rest of the block was told as lost, although it has the names with their hashes.
#[test]
fn names_of_hard_links_in_a_block_without_its_bitmap_come_back() {
    let d = Damaged::filled(64 << 20, "extra_attr,inode_checksum", |volume| link_files(volume, 300));
    let (links, block) = (d.ino("/links"), 2);
    let slots = slots_in(&d, "/links", block);
    d.put(d.data(links, block), 0, &[0; 512]);
    // The entries of these slots lie in the sector.
    let gone: Vec<&String> =
        slots.iter().filter(|(_, slot)| 30 + 11 * **slot < 512).map(|(path, _)| path).collect();
    assert!(gone.len() > 2 && slots.len() > gone.len() + 5, "{slots:?}");
    let (found, text) = repaired(&d);
    let missing: Vec<&String> = slots.keys().filter(|path| !found.contains_key(*path)).collect();
    assert_eq!(missing, gone, "{text}");
    assert!(text.contains(&format!("up to {} names are lost", gone.len())), "{text}");
}

/// The links came back as underscores, without a word.
#[test]
fn names_of_hard_links_whose_bytes_are_overwritten_are_a_loss() {
    for name in [&b"\0\0\0\0"[..], b"name"] {
        let d = Damaged::filled(64 << 20, "extra_attr,inode_checksum", |volume| link_files(volume, 3));
        // The inodes carry their second names.
        let files = d.ino("/files");
        for n in 0..2 {
            let (addr, at) = d.name_at(files, d.slot(files, &format!("file {n:03}")));
            d.put(addr, at, &[name, &[0; 4]].concat());
        }
        d.seal(files);
        let plan = repair_of(&d.device);
        let losses = "up to 2 names are lost, because their entries are damaged or cannot be entered again";
        assert_eq!((&plan.losses[..], plan.certainty()), (&[losses.to_owned()][..], Certainty::Unclear));
        let (found, text) = repaired(&d);
        assert_eq!(found.len(), 9, "{found:?}\n{text}");
    }
}

/// Such a count is damage of the inode, and costs no name.
#[test]
fn a_count_of_links_in_an_inode_with_a_wrong_checksum_is_no_lost_name() {
    let d = Damaged::filled(64 << 20, "extra_attr,inode_checksum", |volume| link_files(volume, 3));
    d.put_node(d.ino("/files/file 001").into(), 12, &le(7));
    assert_eq!(repair_of(&d.device).losses, Vec::<String>::new());
}
