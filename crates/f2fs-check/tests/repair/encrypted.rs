//! Encrypted directories: their names come back at their places without the key, and the key reads them afterwards.

use std::collections::BTreeMap;

use block::Rng;
use f2fs::{
    CipherMode, EncryptionPolicy, IvScheme, Key, KeyName, Keyring, NONCE_SEED_BYTES, Nonces,
    engine::{Caller, Engine, NewNode, Options, SetAttr},
    format::{
        dir_hash,
        inode::{advise, flag},
    },
    units::{BlockAddr, Ino, Nid},
};

use f2fs_check::{Certainty, repair::Planned};

use crate::{
    ROOT, le, planned, repair_of, support,
    volume::{BLOCK, Damaged, NOW},
};

const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
const PIPE: u16 = 0o010_644;
const SOCKET: u16 = 0o140_644;
const DEVICE: u16 = 0o020_644;
const LINK: u16 = 0o120_777;
const FEATURES: &str = "extra_attr,inode_checksum,encrypt";

fn key() -> Key {
    let counted: Vec<u8> = (0x5A..0x9A).collect();
    Key::new(&counted).expect("a key")
}

fn policy(padding: u8) -> EncryptionPolicy {
    let key = KeyName::Identifier(key().identifier());
    let modes = (CipherMode::Aes256Xts, CipherMode::Aes256Cts);
    EncryptionPolicy::new(key, modes, IvScheme::PerFileKey, padding).expect("a policy")
}

fn options(base: Options) -> Options {
    let mut keys = Keyring::default();
    keys.add(key());
    Options { keys, nonces: Some(Nonces::new([9; NONCE_SEED_BYTES])), ..base }
}

/// Makes a volume with this content, written with the key.
fn filled(features: &str, fill: impl FnOnce(&mut Engine) -> f2fs::Result<()>) -> Damaged {
    let d = Damaged::filled(64 << 20, features, |_| Ok(()));
    let mut volume = Engine::open(d.device.clone(), options(Options::new(|| NOW))).expect("a volume");
    fill(&mut volume).expect("there is space");
    volume.unmount().expect("written");
    drop(volume);
    Damaged::copy_of(&d.device)
}

/// All paths as the key shows them, with kind and content, and size for all but directories.
fn contents(d: &Damaged) -> BTreeMap<String, String> {
    let volume = Engine::open(d.device.clone(), options(Options::read_only())).expect("a volume");
    let entries = model::manifest::manifest_of(&volume).entries.into_iter();
    let line = |entry: &guest::Entry| match entry.kind {
        guest::Kind::Dir => format!("Dir {:?}", entry.errors),
        kind => format!("{kind:?} {} {:?} {:?}", entry.size, entry.sha256, entry.errors),
    };
    entries.map(|entry| (format!("{:?}", entry.path), line(&entry))).collect()
}

/// Repairs a volume. Returns the paths that are not as before, with a plus those that are new, and the text of the findings
/// and losses.
fn differing(d: &Damaged, sound: &BTreeMap<String, String>) -> (Vec<String>, String) {
    let plan = match planned(&d.device) {
        // The damage changed nothing.
        Planned::Clean(_) => return (Vec::new(), String::new()),
        _ => repair_of(&d.device),
    };
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).unwrap();
    let found = contents(d);
    let missing = sound.iter().filter(|(path, line)| found.get(*path) != Some(line));
    let missing = missing.map(|(path, _)| path.clone());
    let new = found.keys().filter(|path| !sound.contains_key(*path)).map(|path| format!("+{path}"));
    let findings = plan.report.findings().iter().map(|finding| format!("{finding}\n"));
    (missing.chain(new).collect(), findings.collect::<String>() + &plan.losses.join("\n"))
}

fn make(volume: &mut Engine, dir: Ino, name: &str, mode: u16) -> f2fs::Result<Ino> {
    volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(mode))
}

fn make_file(volume: &mut Engine, dir: Ino, name: &str) -> f2fs::Result<()> {
    let file = make(volume, dir, name, FILE)?;
    volume.begin(Caller::ADMIN).write(file, 0, format!("{} {name}", dir.0).as_bytes()).map(drop)
}

/// Makes the encrypted directory "secret" with these flags: files, pipes, links and directories, with short and long names.
fn fill(volume: &mut Engine, flags: u32) -> f2fs::Result<()> {
    let secret = make(volume, ROOT, "secret", DIR)?;
    volume.begin(Caller::ADMIN).set_encryption_policy(secret, &policy(4))?;
    if flags != 0 {
        volume
            .begin(Caller::ADMIN)
            .set_attr(secret, &SetAttr { flags: Some(flags), ..SetAttr::default() })?;
    }
    for n in 0..240 {
        make_file(volume, secret, &format!("the file {n:03}"))?;
        match n % 6 {
            0 => make_file(volume, secret, &format!("{n:03} {}", "long ".repeat(n / 6 + 1)))?,
            1 => drop(make(volume, secret, &format!("pipe {n:03}"), PIPE)?),
            2 => {
                let name = format!("link {n:03}");
                let new = NewNode::new(LINK);
                volume.begin(Caller::ADMIN).symlink(secret, name.as_bytes(), b"target", &new)?;
            }
            3 => {
                let below = make(volume, secret, &format!("below {n:03}"), DIR)?;
                make_file(volume, below, "deep")?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The blocks of a directory.
fn blocks(d: &Damaged, dir: Ino) -> Vec<BlockAddr> {
    let size = d.volume().inode(dir).expect("sound").head().size.get();
    let all = (0..size.div_ceil(BLOCK as u64)).map(|block| d.data(dir, block));
    all.filter(|addr| addr.is_real()).collect()
}

/// Expects all names at their places after damage of each block of the directory "secret".
fn expect_all_back(sound: &Damaged) {
    let paths = contents(sound);
    let secret = sound.ino("/secret");
    let blocks = blocks(sound, secret);
    assert!(blocks.len() >= 4, "{} blocks", blocks.len());
    let mut rng = Rng::new(7);
    let random: Vec<u8> = (0..BLOCK).map(|_| rng.below(256) as u8).collect();
    for (n, addr) in blocks.iter().enumerate() {
        for (fill, at) in [(&[0; BLOCK][..], 0), (&random, 0), (&random[..512], 512 * (n % 8))] {
            let d = Damaged::copy_of(&sound.device);
            d.put(*addr, at, fill);
            let (differing, text) = differing(&d, &paths);
            assert!(differing.is_empty(), "block {n}, byte {at}: {differing:#?}\n{text}");
        }
    }
}

#[test]
fn a_damaged_block_of_an_encrypted_directory_takes_no_name() {
    expect_all_back(&filled(FEATURES, |volume| fill(volume, 0)));
}

/// The inodes carry the hashes, which only the key tells.
#[test]
fn a_damaged_block_of_an_encrypted_directory_that_folds_case_takes_no_name() {
    let features = format!("{FEATURES},casefold");
    expect_all_back(&filled(&features, |volume| fill(volume, flag::CASEFOLD)));
}

/// There is no space for the hash behind such a name.
#[test]
fn a_file_whose_hash_nothing_tells_comes_to_lost_and_found() {
    let features = format!("{FEATURES},casefold");
    let long = "n".repeat(255);
    let d = filled(&features, |volume| {
        fill(volume, flag::CASEFOLD)?;
        let secret = volume.lookup(ROOT, b"secret")?;
        make_file(volume, secret, &long)
    });
    let paths = contents(&d);
    let volume = Engine::open(d.device.clone(), options(Options::read_only())).unwrap();
    let secret = d.ino("/secret");
    let found = volume.find_entry(secret, long.as_bytes()).unwrap().expect("it is there");
    d.put(d.data(secret, found.block), 0, &[0; BLOCK]);
    let (differing, text) = differing(&d, &paths);
    let number = format!("+\"lost+found/#{}\"", found.ino.0);
    assert_eq!(differing, [format!("\"secret/{long}\""), "+\"lost+found\"".into(), number], "{text}");
    let volume = Engine::open(d.device.clone(), options(Options::read_only())).unwrap();
    let mut content = vec![0; volume.stat(found.ino).unwrap().size as usize];
    volume.read(found.ino, 0, &mut content).unwrap();
    assert_eq!(content, format!("{} {long}", secret.0).as_bytes());
}

#[test]
fn the_names_of_an_encrypted_directory_whose_hashes_are_damaged_move_to_their_buckets() {
    for flags in [0, flag::CASEFOLD] {
        let features = format!("{FEATURES},casefold");
        let sound = filled(&features, |volume| fill(volume, flags));
        let (paths, secret) = (contents(&sound), sound.ino("/secret"));
        let d = Damaged::copy_of(&sound.device);
        let size = d.volume().inode(secret).unwrap().head().size.get().div_ceil(BLOCK as u64);
        // Two blocks of other buckets in one level.
        let blocks = (0..size).filter(|block| d.data(secret, *block).is_real());
        let placed: Vec<_> = blocks.map(|block| (dir_hash::level_of(block, 0).unwrap(), block)).collect();
        let is_beside =
            |one: (u32, u64)| placed.iter().find(move |(two, _)| two.0 == one.0 && two.1 != one.1);
        let (one, two) =
            placed.iter().find_map(|(at, one)| Some((*one, is_beside(*at)?.1))).expect("a level");
        let (one, two) = (d.data(secret, one), d.data(secret, two));
        let (first, second) = (d.block(one), d.block(two));
        d.put(one, 0, &second);
        d.put(two, 0, &first);
        let (differing, text) = differing(&d, &paths);
        assert!(differing.is_empty(), "{differing:#?}\n{text}");
    }
}

/// The inodes carry the hashes of their names.
#[test]
fn a_wrong_flag_of_case_folding_of_an_encrypted_directory_is_restored() {
    for flags in [0, flag::CASEFOLD] {
        let d = filled("encrypt,casefold", |volume| fill(volume, flags));
        let (paths, secret) = (contents(&d), d.ino("/secret"));
        let wrong = d.volume().inode(secret).unwrap().head().flags.get() ^ flag::CASEFOLD;
        d.put_node(secret.into(), 80, &wrong.to_le_bytes());
        assert_eq!(repair_of(&d.device).certainty(), Certainty::Certain);
        let (differing, text) = differing(&d, &paths);
        assert!(differing.is_empty(), "{differing:#?}\n{text}");
    }
}

/// Makes the encrypted directory "secret" with six files, one of which has a second name.
fn fill_with_link(volume: &mut Engine, linked: &str) -> f2fs::Result<()> {
    let secret = make(volume, ROOT, "secret", DIR)?;
    volume.begin(Caller::ADMIN).set_encryption_policy(secret, &policy(4))?;
    (0..6).try_for_each(|n| make_file(volume, secret, &format!("file {n}")))?;
    let linked = volume.lookup(secret, linked.as_bytes())?;
    volume.begin(Caller::ADMIN).link(linked, secret, b"second name")
}

#[test]
fn files_whose_mark_is_lost_stay_where_they_are() {
    let sound = filled(FEATURES, |volume| fill_with_link(volume, "file 0"));
    let paths = contents(&sound);
    for n in 0..6 {
        let d = Damaged::copy_of(&sound.device);
        d.put_inode(ino_with_key(&d, &format!("/secret/file {n}")), 2, &[0]);
        let (differing, text) = differing(&d, &paths);
        assert!(differing.is_empty(), "file {n}: {differing:?}\n{text}");
    }
}

#[test]
fn a_name_whose_hash_has_a_wrong_bit_stays() {
    let sound = filled(FEATURES, |volume| fill_with_link(volume, "file 1"));
    let (paths, secret) = (contents(&sound), sound.ino("/secret"));
    for name in ["file 1", "second name"] {
        let d = Damaged::copy_of(&sound.device);
        let volume = Engine::open(d.device.clone(), options(Options::read_only())).unwrap();
        let slot = volume.find_entry(secret, name.as_bytes()).unwrap().unwrap().slot;
        let (addr, at) = d.dentry_at(secret, slot);
        d.put(addr, at + 1, &[d.block(addr)[at + 1] ^ 4]);
        d.seal(secret);
        let (differing, text) = differing(&d, &paths);
        assert!(differing.is_empty(), "{name}: {differing:?}\n{text}");
    }
}

#[test]
fn a_file_by_another_policy_does_not_enter_an_encrypted_directory() {
    let d = filled(FEATURES, |volume| {
        for (name, padding) in [("one", 4), ("two", 32)] {
            let dir = make(volume, ROOT, name, DIR)?;
            volume.begin(Caller::ADMIN).set_encryption_policy(dir, &policy(padding))?;
            make_file(volume, dir, "file")?;
        }
        Ok(())
    });
    let volume = Engine::open(d.device.clone(), options(Options::read_only())).unwrap();
    let (one, two) = (d.ino("/one"), d.ino("/two"));
    let file = volume.lookup(one, b"file").unwrap();
    // Its inode says that it is in the other directory.
    d.put_inode(file, 84, &le(two.0));
    let slot = volume.find_entry(one, b"file").unwrap().unwrap().slot;
    let (addr, at) = d.dentry_at(one, slot);
    d.put(addr, at, &[0; 11]);
    d.seal(one);
    let paths = contents(&d);
    let (differing, text) = differing(&d, &paths);
    let number = format!("+\"lost+found/#{}\"", file.0);
    assert_eq!(differing, ["+\"lost+found\"".into(), number], "{text}");
}

/// Takes the block of an inode away, and its entry in the NAT.
fn lose(d: &Damaged, ino: Ino) {
    d.put_node(ino.into(), 0, &[0; BLOCK]);
    d.put_nat(Nid(ino.0), 5, &le(7));
}

/// Makes "plain" with an inode of each kind, and "secret", which is encrypted, with the same.
fn fill_kinds(volume: &mut Engine) -> f2fs::Result<()> {
    for name in ["plain", "secret"] {
        let dir = make(volume, ROOT, name, DIR)?;
        if name == "secret" {
            volume.begin(Caller::ADMIN).set_encryption_policy(dir, &policy(4))?;
        }
        make(volume, dir, "pipe", PIPE)?;
        make(volume, dir, "socket", SOCKET)?;
        make(volume, dir, "device", DEVICE)?;
        volume.begin(Caller::ADMIN).symlink(dir, b"link", b"target", &NewNode::new(LINK))?;
        let below = make(volume, dir, "below", DIR)?;
        make_file(volume, below, "deep")?;
        let many = make(volume, dir, "many", DIR)?;
        for n in 0..300 {
            make_file(volume, many, &format!("file {n}"))?;
        }
        make(volume, dir, "empty", DIR)?;
    }
    Ok(())
}

fn ino_with_key(d: &Damaged, path: &str) -> Ino {
    let volume = Engine::open(d.device.clone(), options(Options::read_only())).unwrap();
    volume.resolve(path.as_bytes(), f2fs::engine::FinalSymlink::NoFollow).expect("a path of the volume")
}

#[test]
fn lost_pipes_sockets_and_directories_come_back_in_plain_directories_beside_encrypted_ones() {
    let sound = filled(FEATURES, fill_kinds);
    let paths = contents(&sound);
    for name in ["pipe", "socket", "below", "many", "empty"] {
        let d = Damaged::copy_of(&sound.device);
        lose(&d, d.ino(&format!("/plain/{name}")));
        let (differing, text) = differing(&d, &paths);
        assert!(differing.is_empty(), "{name}: {differing:?}\n{text}");
    }
}

#[test]
fn a_lost_pipe_comes_back_in_an_encrypted_directory() {
    let sound = filled(FEATURES, fill_kinds);
    let paths = contents(&sound);
    for name in ["pipe", "socket"] {
        let d = Damaged::copy_of(&sound.device);
        lose(&d, ino_with_key(&d, &format!("/secret/{name}")));
        let (differing, text) = differing(&d, &paths);
        assert!(differing.is_empty(), "{name}: {differing:?}\n{text}");
    }
}

#[test]
fn links_devices_and_encrypted_directories_whose_inodes_are_lost_are_told() {
    let sound = filled(FEATURES, fill_kinds);
    let paths = contents(&sound);
    for (path, known, loss) in [
        ("/plain/link", "its target is lost with it", "1 symbolic links and device nodes are lost"),
        ("/plain/device", "its number is lost with it", "1 symbolic links and device nodes are lost"),
        ("/secret/link", "its target is lost with it", "1 symbolic links and device nodes are lost"),
        ("/secret/below", "it was an encrypted directory", "1 encrypted directories are lost"),
        ("/secret/many", "it was an encrypted directory", "1 encrypted directories are lost"),
        ("/secret/empty", "it was an encrypted directory", "1 encrypted directories are lost"),
        // Its own directory is plain.
        ("/secret", "it was an encrypted directory", "1 encrypted directories are lost"),
    ] {
        let d = Damaged::copy_of(&sound.device);
        let ino = ino_with_key(&d, path);
        lose(&d, ino);
        let (differing, text) = differing(&d, &paths);
        assert!(text.contains(known) && text.contains(loss), "{path}: {text}");
        // Nothing else is gone: what an encrypted directory held has numbers for names.
        let prefix = format!("\"{}", &path[1..]);
        let gone: Vec<&String> =
            differing.iter().filter(|path| !path.starts_with('+') && !path.starts_with(&prefix)).collect();
        assert!(gone.is_empty(), "{path}: {gone:?}\n{text}");
        let lines = |paths: &BTreeMap<String, String>| {
            let mut lines: Vec<String> =
                paths.values().filter(|line| line.starts_with("File")).cloned().collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&contents(&d)), lines(&paths), "{path}: the content of files");
        if path == "/secret/many" {
            let folder = format!("+\"lost+found/#{}/#", ino.0);
            assert_eq!(
                differing.iter().filter(|path| path.starts_with(&folder)).count(),
                300,
                "{differing:?}"
            );
        }
    }
}

/// The topmost encrypted directory has a plain name.
#[test]
fn an_encrypted_directory_whose_name_is_damaged_keeps_its_place() {
    let d = filled(FEATURES, fill_kinds);
    let paths = contents(&d);
    let secret = d.ino("/secret");
    assert!(d.volume().inode(secret).unwrap().has_advise(advise::ENCRYPT));
    let slot = d.slot(ROOT, "secret");
    let (addr, at) = d.dentry_at(ROOT, slot);
    d.put(addr, at, &[0; 11]);
    let (differing, text) = differing(&d, &paths);
    assert!(differing.is_empty(), "{differing:?}\n{text}");
}

/// A write that was misdirected put the names of one directory into another one, and the other way round.
#[test]
fn the_names_of_swapped_blocks_of_a_plain_and_an_encrypted_directory_go_home() {
    let sound = filled(FEATURES, |volume| {
        for name in ["plain", "one", "two"] {
            let dir = make(volume, ROOT, name, DIR)?;
            if name != "plain" {
                volume.begin(Caller::ADMIN).set_encryption_policy(dir, &policy(32))?;
            }
            for n in 0..300 {
                make_file(volume, dir, &format!("file {n} of {name}"))?;
            }
        }
        Ok(())
    });
    let paths = contents(&sound);
    let [plain, one, two] = ["/plain", "/one", "/two"].map(|path| blocks(&sound, sound.ino(path)));
    for (first, second) in [(&plain, &one), (&one, &two)] {
        for n in [0, 1] {
            let d = Damaged::copy_of(&sound.device);
            d.put(first[n], 0, &sound.block(second[n]));
            d.put(second[n], 0, &sound.block(first[n]));
            let (differing, text) = differing(&d, &paths);
            assert!(differing.is_empty(), "block {n}: {differing:#?}\n{text}");
        }
    }
}

/// Nothing tells what the blocks of an encrypted file hold. The counts of its inode tell.
#[test]
fn a_mark_of_a_cluster_of_an_encrypted_file_comes_back_by_the_counts_of_its_inode() {
    let sound = filled("extra_attr,encrypt,compression", |volume| {
        let secret = make(volume, ROOT, "secret", DIR)?;
        volume.begin(Caller::ADMIN).set_encryption_policy(secret, &policy(4))?;
        let file = make(volume, secret, "packed", FILE)?;
        let attr = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
        volume.begin(Caller::ADMIN).set_attr(file, &attr)?;
        volume.begin(Caller::ADMIN).write(file, 0, &[9; 16 * BLOCK]).map(drop)
    });
    let paths = contents(&sound);
    let file = ino_with_key(&sound, "/secret/packed");
    let inode = sound.volume().inode(file).unwrap();
    let (addrs, saved) = (inode.layout().addrs_at(), inode.saved_blocks().unwrap());
    let damaged = || {
        let d = Damaged::copy_of(&sound.device);
        d.put_inode(file, addrs, &[0; 4]);
        d
    };
    let (found, text) = differing(&damaged(), &paths);
    assert!(found.is_empty() && text.contains("[cluster]"), "{found:?}\n{text}");
    // The counts do not confirm it.
    let d = damaged();
    d.put_inode(file, 384, &(saved + 1).to_le_bytes());
    let plan = repair_of(&d.device);
    assert!(plan.losses.iter().any(|loss| loss.contains("1 compressed clusters")), "{:?}", plan.losses);
}

#[test]
fn a_context_behind_a_header_of_zeroes_is_not_lost() {
    let sound = filled(FEATURES, |volume| {
        let secret = make(volume, ROOT, "secret", DIR)?;
        volume.begin(Caller::ADMIN).set_encryption_policy(secret, &policy(4))?;
        make_file(volume, secret, "file")
    });
    let paths = contents(&sound);
    let d = Damaged::copy_of(&sound.device);
    for path in ["/secret", "/secret/file"] {
        let ino = ino_with_key(&d, path);
        let range = d.volume().inode(ino).unwrap().layout().inline_xattr_range();
        d.put_inode(ino, range.start, &[0; 4]);
    }
    let (found, text) = differing(&d, &paths);
    assert!(found.is_empty() && text.contains("[xattr-invalid]"), "{found:?}\n{text}");
    assert!(!text.contains("[encryption"), "{text}");
}
