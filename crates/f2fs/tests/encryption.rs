//! Files and names that Linux encrypted, read with the key.

use std::sync::Arc;

use block::Device;
use f2fs::{
    Error, Key, Keyring, Place,
    engine::{Engine, FinalSymlink, Options},
    format::{dentry::Dentries, inode::inline, node::NodeBlock},
    units::{BlockAddr, Ino, SegNo},
};
use model::manifest;

#[path = "support/golden.rs"]
mod golden;

/// The master key of the golden images.
const KEY: [u8; 64] = [0x5A; 64];

/// The keys of the image `encrypted-modes`. Linux refuses keys of equal halves, so that of the policies of version 1
/// counts up.
fn keys_of_modes() -> Keyring {
    let counted: Vec<u8> = (0x5A..0x9A).collect();
    let key = Key::new(&KEY).expect("a key");
    let counted = Key::new(&counted).expect("a key").with_descriptor(key.descriptor());
    let mut keys = Keyring::default();
    keys.add(key);
    keys.add(counted);
    keys
}

fn open(name: &str, key: &[u8]) -> Engine {
    open_on(golden::device(name), key)
}

fn open_on(device: Arc<dyn Device>, key: &[u8]) -> Engine {
    let mut keys = Keyring::default();
    keys.add(Key::new(key).expect("a key"));
    let options = Options { keys, ..Options::read_only() };
    Engine::open(device, options).expect("a volume")
}

fn offset(addr: BlockAddr) -> u64 {
    u64::from(addr.0) * 4096
}

fn at(volume: &Engine, path: &str) -> Ino {
    volume.resolve(path.as_bytes(), FinalSymlink::NoFollow).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn read(volume: &Engine, path: &str) -> Vec<u8> {
    let ino = at(volume, path);
    let mut content = vec![0; volume.stat(ino).expect("attributes").size as usize];
    let count = volume.read(ino, 0, &mut content).expect("it is readable");
    assert_eq!(count, content.len());
    content
}

fn names(volume: &Engine, path: &str) -> Vec<String> {
    let entries = volume.entries(at(volume, path), 0).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| String::from_utf8(entry.expect("an entry").name).expect("UTF-8")).collect();
    names.sort();
    names
}

#[test]
fn names_contents_and_targets_are_those_that_were_encrypted() {
    for image in ["encrypted", "16k-encrypted"] {
        let volume = open(image, &KEY);
        let long_name = "n".repeat(255);
        let expected = [".", "..", "crowd", "dir", "empty", "fifo", "long", &long_name, "short", "symlink"];
        assert_eq!(names(&volume, "locked"), expected, "{image}");
        assert_eq!(read(&volume, "locked/short"), b"secret\n");
        assert_eq!(read(&volume, "locked/empty"), b"");
        assert_eq!(read(&volume, &format!("locked/{long_name}")), b"a long name");
        assert_eq!(read(&volume, "locked/dir/child"), b"child");
        let link = at(&volume, "locked/symlink");
        assert_eq!(volume.read_link(link).expect("a target"), b"short");
        assert_eq!(volume.stat(link).expect("attributes").size, 5);
        let mut crowd: Vec<String> = (0..250).map(|n| n.to_string()).collect();
        crowd.extend([".".into(), "..".into()]);
        crowd.sort();
        assert_eq!(names(&volume, "locked/crowd"), crowd);
        for n in 0..250 {
            at(&volume, &format!("locked/crowd/{n}"));
        }
        let length = 10 * volume.superblock().block_size.bytes() as u64 + 1;
        let prose = guest::Content::Prose { seed: length, length };
        assert_eq!(read(&volume, "locked/long"), prose.to_vec());
        let long = at(&volume, "locked/long");
        let mut part = [0; 99];
        assert_eq!(volume.read(long, 8100, &mut part).expect("it is readable"), 99);
        assert_eq!(part, prose.to_vec()[8100..8199], "{image}: across blocks");
    }
}

#[test]
fn every_kind_of_policy_is_read_as_linux_wrote_it() {
    let options = Options { keys: keys_of_modes(), ..Options::read_only() };
    let volume = Engine::open(golden::device("encrypted-modes"), options).expect("a volume");
    let directories = names(&volume, "/");
    let directories: Vec<&String> = directories.iter().filter(|name| name.starts_with('v')).collect();
    assert_eq!(directories.len(), 9, "{directories:?}");
    for dir in directories {
        let mut expected: Vec<String> =
            [1, 15, 16, 17, 21, 31, 32, 33, 63, 100, 255].map(|length| "n".repeat(length)).to_vec();
        for name in &expected {
            assert_eq!(read(&volume, &format!("{dir}/{name}")), dir.as_bytes(), "{dir}/{name}");
        }
        expected.extend([".", "..", "below", "compressed", "link", "prose"].map(str::to_owned));
        expected.sort();
        assert_eq!(names(&volume, dir), expected, "{dir}");
        assert_eq!(read(&volume, &format!("{dir}/below/child")), dir.as_bytes());
        let link = volume.read_link(at(&volume, &format!("{dir}/link"))).expect("a target");
        assert_eq!(link, b"a/target/of/some/length", "{dir}");
        for (name, length) in [("prose", 3 * 4096 + 100), ("compressed", 9 * 4096 + 5)] {
            let content = guest::Content::Prose { seed: length, length }.to_vec();
            assert!(read(&volume, &format!("{dir}/{name}")) == content, "{dir}/{name}");
        }
        let compressed = volume.stat(at(&volume, &format!("{dir}/compressed"))).expect("attributes");
        assert!(compressed.compression.is_some() && compressed.saved_blocks > 0, "{dir}: {compressed:?}");
    }
}

#[test]
fn encrypted_names_that_fold_case_are_found_in_any_case() {
    let volume = open("encrypted-casefold", &KEY);
    let all = names(&volume, "both");
    assert!(all.len() > 4, "{all:?}");
    for name in all.iter().filter(|name| !name.starts_with('.')) {
        assert_eq!(read(&volume, &format!("both/{name}")), name.as_bytes());
    }
    let readme = at(&volume, "both/README");
    assert!(["both/readme", "both/ReadMe"].iter().all(|name| at(&volume, name) == readme));
    assert_eq!(at(&volume, "both/STRASSE"), at(&volume, "both/Straße"));
    assert!(matches!(volume.lookup(at(&volume, "both"), b"no such name"), Err(Error::NotFound)));
}

#[test]
fn another_key_is_an_error_that_names_the_right_one() {
    let volume = open("encrypted", &[0x5B; 64]);
    let expected = Key::new(&KEY).expect("a key").identifier();
    let expected: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
    let locked = at(&volume, "locked");
    for error in [
        volume.require_key(locked).expect_err("no key"),
        volume.lookup(locked, b"short").expect_err("no key"),
    ] {
        assert!(matches!(&error, Error::OtherKey(name) if *name == expected), "{error}");
    }
    // Names appear as they do without any key.
    let without = Engine::open(golden::device("encrypted"), Options::read_only()).expect("a volume");
    assert_eq!(names(&volume, "locked"), names(&without, "locked"));
    let entry = volume.entries(locked, 0).expect("a directory").filter_map(Result::ok);
    let mut files = entry.filter(|entry| entry.kind == Some(f2fs::FileType::Regular));
    let file = files.next().expect("a file").ino;
    assert!(matches!(volume.read(file, 0, &mut [0]), Err(Error::OtherKey(_))));
    assert!(volume.read_raw(file, 0, &mut [0]).is_ok());
    manifest::manifest_of(&volume);
}

/// The stored hash of an entry was taken for that of its name, so only the first lookup found it.
#[test]
fn a_name_with_a_wrong_hash_is_found_in_an_encrypted_directory_that_folds_case() {
    let device = golden::device("encrypted-casefold");
    let volume = open_on(device.clone(), &KEY);
    let dir = at(&volume, "both");
    let mut inode = NodeBlock::clone(&volume.inode(dir).expect("it is sound"));
    let mut area = Dentries::new(vec![0; 4096], Place::Volume);
    let addr = match inode.has_inline(inline::DENTRY) {
        true => {
            area.copy_from(&Dentries::new(inode.inline_area().to_vec(), Place::Volume));
            let is_free =
                |segment: &SegNo| volume.sit_entry(*segment).expect("it is sound").valid_blocks == 0;
            let free = (0..volume.geometry().segments).map(SegNo).rfind(is_free).expect("a free segment");
            volume.geometry().block(free, 7)
        }
        false => {
            let mut bytes = vec![0; 4096];
            device.read(offset(inode.addr(0)), &mut bytes).expect("in memory");
            area = Dentries::new(bytes, Place::Volume);
            inode.addr(0)
        }
    };
    let entries = area.entries().map(|entry| entry.expect("it is sound"));
    let hashes: Vec<(usize, u32)> =
        entries.filter(|it| it.name.len() > 2).map(|it| (it.slot, it.hash)).collect();
    assert!(hashes.len() > 4, "{hashes:?}");
    hashes.into_iter().for_each(|(slot, hash)| area.set_hash(slot, hash ^ 0x55));
    device.write(offset(addr), &area.into_inner()).expect("in memory");
    if inode.has_inline(inline::DENTRY) {
        inode.inline_area_mut().fill(0);
        let head = inode.head_mut();
        head.inline &= !inline::DENTRY;
        head.size.set(4096);
        head.current_depth.set(1);
        inode.set_addr(0, addr);
        inode.seal();
        let node = volume.nat_entry(dir.into()).expect("it is sound").addr;
        device.write(offset(node), inode.bytes()).expect("in memory");
    }
    drop(volume);
    let volume = open_on(device, &KEY);
    let all = names(&volume, "both");
    for _ in 0..2 {
        for name in all.iter().filter(|name| !name.starts_with('.')) {
            assert_eq!(read(&volume, &format!("both/{name}")), name.as_bytes());
        }
    }
}

/// Nothing ties a policy of version 1 to its key, so what is no name is no damage.
#[test]
fn the_wrong_key_of_an_old_policy_is_no_damage() {
    let right = Key::new(&KEY).expect("a key").descriptor();
    let mut failed = 0;
    for byte in 0..40 {
        let mut keys = Keyring::default();
        keys.add(Key::new(&[byte; 64]).expect("a key").with_descriptor(right));
        let options = Options { keys, ..Options::read_only() };
        let volume = Engine::open(golden::device("encrypted-modes"), options).expect("a volume");
        for dir in names(&volume, "/").iter().filter(|name| name.starts_with("v1")) {
            for entry in volume.entries(at(&volume, dir), 0).expect("a directory") {
                match entry {
                    Ok(_) => {}
                    Err(Error::UnusableKey(what)) => {
                        assert!(what.contains("is it the right key?"), "{what}");
                        failed += 1;
                    }
                    Err(error) => panic!("{dir}: {error}"),
                }
            }
        }
        assert!(!volume.io().met_damage());
    }
    assert!(failed > 0);
}

/// A key that is too short for the policy ended an export.
#[test]
fn a_short_key_is_an_error_of_the_key() {
    let right = Key::new(&KEY).expect("a key").descriptor();
    let mut keys = Keyring::default();
    keys.add(Key::new(&[0x5A; 16]).expect("a key").with_descriptor(right));
    let options = Options { keys, ..Options::read_only() };
    let volume = Engine::open(golden::device("encrypted-modes"), options).expect("a volume");
    let dirs = names(&volume, "/");
    let errors: Vec<Error> = dirs
        .iter()
        .filter(|name| name.starts_with("v1"))
        .filter_map(|dir| volume.require_key(at(&volume, dir)).err())
        .collect();
    assert!(!errors.is_empty());
    assert!(errors.iter().all(|error| matches!(error, Error::UnusableKey(_))), "{errors:?}");
}

#[test]
fn a_compressed_file_is_read_raw_as_it_is_stored() {
    let device = golden::device("encrypted-modes");
    let options = Options { keys: keys_of_modes(), ..Options::read_only() };
    let volume = Engine::open(device.clone(), options).expect("a volume");
    let without = Engine::open(device.clone(), Options::read_only()).expect("a volume");
    for dir in names(&volume, "/").iter().filter(|name| name.starts_with('v')) {
        let ino = at(&volume, &format!("{dir}/compressed"));
        let size = without.stat(ino).expect("attributes").size as usize;
        let (mut raw, mut block) = (vec![1; size], [0; 4096]);
        assert_eq!(without.read_raw(ino, 0, &mut raw).expect("no key is needed"), size);
        let first = without.inode(ino).expect("it is sound").addr(1);
        device.read(offset(first), &mut block).expect("in memory");
        assert!(raw[..4096] == [0; 4096] && raw[4096..8192] == block, "{dir}");
    }
}
