//! Changes of encrypted files and directories with the key: they read back as written, nothing clear reaches the device,
//! and roll-forward needs no key.

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    CipherMode, EncryptionPolicy, Error, FileType, IvScheme, Key, KeyName, Keyring, NONCE_SEED_BYTES, Nonces,
    engine::{Caller, Engine, FileSize, FinalSymlink, NewNode, Options, RenameMode, SetAttr, SyncScope},
    format::{
        BlockSize,
        hash::name_hash,
        inode::{Compression, advise, flag},
    },
    units::Ino,
};

mod support;

const ROOT: Ino = Ino(3);
const BLOCK: u64 = 4096;
const FILE: u16 = 0o100_644;
const DIRECTORY: u16 = 0o040_755;
/// Bytes that stand in every name, target and content that must not be on the device.
const CLEAR: &[u8] = b"clear text of 24 bytes!!";

fn key() -> Key {
    let counted: Vec<u8> = (0x5A..0x9A).collect();
    Key::new(&counted).expect("a key")
}

fn descriptor() -> KeyName {
    KeyName::Descriptor(key().descriptor())
}

fn identifier() -> KeyName {
    KeyName::Identifier(key().identifier())
}

/// The policies that Linux has, apart from SM4.
fn policies() -> Vec<EncryptionPolicy> {
    use CipherMode::{Adiantum, Aes128Cbc, Aes128Cts, Aes256Cts, Aes256Hctr2, Aes256Xts};
    use IvScheme::{DirectKey, InoLblk32, InoLblk64, PerFileKey};
    let all = [
        (descriptor(), Aes256Xts, Aes256Cts, PerFileKey, 4),
        (descriptor(), Aes128Cbc, Aes128Cts, PerFileKey, 8),
        (descriptor(), Adiantum, Adiantum, DirectKey, 16),
        (identifier(), Aes256Xts, Aes256Cts, PerFileKey, 32),
        (identifier(), Aes256Xts, Aes256Hctr2, PerFileKey, 4),
        (identifier(), Aes128Cbc, Aes128Cts, PerFileKey, 16),
        (identifier(), Adiantum, Adiantum, PerFileKey, 4),
        (identifier(), Adiantum, Adiantum, DirectKey, 32),
        (identifier(), Aes256Xts, Aes256Cts, InoLblk64, 8),
        (identifier(), Aes256Xts, Aes256Cts, InoLblk32, 4),
    ];
    let policy = |(key, contents, names, scheme, padding)| {
        EncryptionPolicy::new(key, (contents, names), scheme, padding).expect("a policy")
    };
    all.into_iter().map(policy).collect()
}

fn usual() -> EncryptionPolicy {
    policies().remove(3)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    Right,
    None,
}

fn options(keys: Keys) -> Options {
    let mut ring = Keyring::default();
    if keys == Keys::Right {
        ring.add(key());
    }
    Options { keys: ring, nonces: Some(Nonces::new([9; NONCE_SEED_BYTES])), ..Options::new(|| support::NOW) }
}

fn open(device: &Arc<dyn Device>, keys: Keys) -> Engine {
    Engine::open(device.clone(), options(keys)).expect("a volume")
}

/// A new volume with an encrypted directory.
fn encrypted(
    features: &[&str],
    block_size: BlockSize,
    policy: &EncryptionPolicy,
) -> (Arc<dyn Device>, Engine, Ino) {
    let bytes = if block_size == BlockSize::B4K { 64 << 20 } else { 512 << 20 };
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
    let mut volume = support::format_on(device.clone(), features, block_size);
    volume.unmount().expect("a checkpoint");
    drop(volume);
    let mut volume = open(&device, Keys::Right);
    let dir = make(&mut volume, ROOT, b"secret", DIRECTORY);
    volume.begin(Caller::ADMIN).set_encryption_policy(dir, policy).expect("a policy");
    (device, volume, dir)
}

fn make(volume: &mut Engine, dir: Ino, name: &[u8], mode: u16) -> Ino {
    volume.begin(Caller::ADMIN).create(dir, name, &NewNode::new(mode)).expect("a new inode")
}

/// Text of this length, which repeats [`CLEAR`] with a number before each.
fn text(seed: u64, length: usize) -> Vec<u8> {
    let lines = (seed..).flat_map(|n| [format!("{n:8}").as_bytes(), CLEAR].concat());
    lines.take(length).collect()
}

fn content(volume: &Engine, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; volume.stat(ino).expect("attributes").size as usize];
    volume.read(ino, 0, &mut content).expect("readable");
    content
}

/// Fails if a device has clear text.
fn assert_hides(device: &Arc<dyn Device>, of: &str) {
    let mut bytes = vec![0; 1 << 20];
    for start in (0..device.geometry().size_bytes).step_by(bytes.len()) {
        device.read(start, &mut bytes).expect("memory");
        // Text of four bytes and more is also in inline data and names, which begin anywhere.
        let found = bytes.windows(16).position(|window| window == &CLEAR[..16]);
        assert_eq!(found.map(|at| start + at as u64), None, "{of}: clear text");
    }
}

/// Changes of a file that meet every way in which blocks are written, applied to the file and to a copy in memory.
fn change_content(volume: &mut Engine, ino: Ino) -> Vec<u8> {
    let mut wanted: Vec<u8> = Vec::new();
    let write = |volume: &mut Engine, wanted: &mut Vec<u8>, offset: usize, data: Vec<u8>| {
        volume.begin(Caller::ADMIN).write(ino, offset as u64, &data).expect("room");
        wanted.resize(wanted.len().max(offset + data.len()), 0);
        wanted[offset..offset + data.len()].copy_from_slice(&data);
    };
    write(volume, &mut wanted, 0, text(1, 100));
    write(volume, &mut wanted, 100, text(2, 9000));
    // In the pending run, in part and whole.
    write(volume, &mut wanted, 5000, text(3, 50));
    write(volume, &mut wanted, 4096, text(4, 4096));
    write(volume, &mut wanted, 70_000, text(5, 300_000));
    volume.checkpoint().expect("a checkpoint");
    // On the device, in part and whole; then in place, for an fsync.
    write(volume, &mut wanted, 4000, text(6, 200));
    write(volume, &mut wanted, 81_920, text(7, 8192));
    volume.fsync(ino, SyncScope::Everything).expect("an fsync");
    write(volume, &mut wanted, 90_000, text(8, 10));
    write(volume, &mut wanted, 12_288, text(9, 4096));
    volume.fsync(ino, SyncScope::Everything).expect("an fsync");
    let cut = 350_001;
    volume.begin(Caller::ADMIN).truncate(ino, cut).expect("it is cut");
    wanted.truncate(cut as usize);
    volume.begin(Caller::ADMIN).truncate(ino, cut + 10_000).expect("it grows");
    wanted.resize(cut as usize + 10_000, 0);
    volume.begin(Caller::ADMIN).punch_hole(ino, 100_001, 30_000).expect("a hole");
    wanted[100_001..130_001].fill(0);
    volume.begin(Caller::ADMIN).zero_range(ino, 200_001, 5000, FileSize::Stays).expect("zeroes");
    wanted[200_001..205_001].fill(0);
    volume.begin(Caller::ADMIN).allocate_range(ino, 400_000, 50_000, FileSize::Grows).expect("room");
    wanted.resize(450_000, 0);
    write(volume, &mut wanted, 430_000, text(10, 999));
    wanted
}

#[test]
fn files_and_names_of_every_policy_read_back_and_nothing_is_clear_on_the_device() {
    for (n, policy) in policies().iter().enumerate() {
        let size = if n % 5 == 4 { BlockSize::B16K } else { BlockSize::B4K };
        let (device, mut volume, dir) = encrypted(&["encrypt", "extra_attr", "inode_checksum"], size, policy);
        let of = format!("{policy:?}");
        let named = |rest: &str| [CLEAR, rest.as_bytes()].concat();
        let (file, below) =
            (make(&mut volume, dir, &named("file"), FILE), make(&mut volume, dir, &named("dir"), DIRECTORY));
        let wanted = change_content(&mut volume, file);
        let child = make(&mut volume, below, &named("child"), FILE);
        volume.begin(Caller::ADMIN).write(child, 0, &text(1, 40)).expect("room");
        let targets = [named("target"), [CLEAR; 160].concat()];
        for (n, target) in targets.iter().enumerate() {
            let name = named(&n.to_string());
            volume.begin(Caller::ADMIN).symlink(dir, &name, target, &NewNode::new(0o777)).expect("a link");
        }
        let lengths = [24, 31, 32, 33, 64, 255];
        for length in lengths {
            make(&mut volume, below, &named(&"x".repeat(length - 24)), 0o010_600);
        }
        let rename = volume.begin(Caller::ADMIN);
        rename.rename(dir, &named("file"), below, &named("moved"), RenameMode::Replace).expect("it moves");
        volume.unmount().expect("a checkpoint");
        drop(volume);
        assert_hides(&device, &of);

        let volume = open(&device, Keys::Right);
        let at = |path: &[&[u8]]| {
            let path = [&b"secret/"[..], &path.join(&b'/')].concat();
            volume.resolve(&path, FinalSymlink::NoFollow).unwrap_or_else(|error| panic!("{of}: {error}"))
        };
        assert_eq!(at(&[&named("dir"), &named("moved")]), file, "{of}");
        assert!(content(&volume, file) == wanted, "{of}");
        assert_eq!(content(&volume, at(&[&named("dir"), &named("child")])), text(1, 40), "{of}");
        for (n, target) in targets.iter().enumerate() {
            assert_eq!(volume.read_link(at(&[&named(&n.to_string())])).expect("a target"), *target, "{of}");
        }
        let names =
            volume.entries(below, 0).expect("a directory").map(|entry| entry.expect("an entry").name.len());
        assert_eq!(names.filter(|length| lengths.contains(length)).count(), lengths.len(), "{of}");
        assert_eq!(volume.encryption_policy(child).expect("a context").as_ref(), Some(policy), "{of}");
        assert_ne!(volume.encryption_nonce(child).unwrap(), volume.encryption_nonce(file).unwrap(), "{of}");
        drop(volume);
        let volume = open(&device, Keys::None);
        assert!(matches!(volume.read(file, 0, &mut [0; 9]), Err(Error::NoKey)), "{of}");
        let size = volume.stat(file).expect("attributes").size;
        let mut stored = vec![0; size as usize];
        volume.read_raw(file, 0, &mut stored).expect("stored bytes");
        assert_ne!(stored[..4096], wanted[..4096], "{of}");
        assert!(!volume.inode(child).unwrap().has_inline(f2fs::format::inode::inline::DATA), "{of}");
    }
}

#[test]
fn an_fsync_is_recovered_without_the_key() {
    for features in [&["encrypt"][..], &["encrypt", "extra_attr", "casefold"]] {
        let (device, mut volume, dir) = encrypted(features, BlockSize::B4K, &usual());
        if features.contains(&"casefold") {
            let set = SetAttr { flags: Some(flag::CASEFOLD), ..SetAttr::default() };
            volume.begin(Caller::ADMIN).set_attr(dir, &set).expect("it folds case");
        }
        let old = make(&mut volume, dir, b"old", FILE);
        volume.begin(Caller::ADMIN).write(old, 0, &text(1, 9000)).expect("room");
        volume.checkpoint().expect("a checkpoint");
        let version = volume.last_checkpoint().version;
        let new = make(&mut volume, dir, b"New file", FILE);
        volume.begin(Caller::ADMIN).write(new, 0, &text(2, 20_000)).expect("room");
        volume.begin(Caller::ADMIN).write(old, 4000, &text(3, 200)).expect("room");
        volume.fsync(new, SyncScope::Everything).expect("an fsync");
        volume.fsync(old, SyncScope::Everything).expect("an fsync");
        assert_eq!(volume.last_checkpoint().version, version, "the fsyncs are no checkpoints");
        // A power cut.
        drop(volume);
        let mut volume = open(&device, Keys::None);
        assert_eq!(volume.entries(dir, 0).expect("a directory").count(), 4);
        volume.unmount().expect("a checkpoint");
        drop(volume);
        let volume = open(&device, Keys::Right);
        let name: &[u8] = if features.contains(&"casefold") { b"nEW FILE" } else { b"New file" };
        assert_eq!(volume.lookup(dir, name).expect("it was fsynced"), new);
        assert!(content(&volume, new) == text(2, 20_000));
        let mut wanted = text(1, 9000);
        wanted[4000..4200].copy_from_slice(&text(3, 200));
        assert!(content(&volume, old) == wanted);
        assert!(volume.inode(new).unwrap().has_advise(advise::ENC_NAME));
        drop(volume);
        assert_hides(&device, "after recovery");
    }
}

#[test]
fn compressed_files_are_compressed_and_then_encrypted() {
    let (device, mut volume, dir) =
        encrypted(&["encrypt", "extra_attr", "compression"], BlockSize::B4K, &usual());
    let set = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(dir, &set).expect("its files are compressed");
    let file = make(&mut volume, dir, b"file", FILE);
    let wanted = change_content(&mut volume, file);
    volume.unmount().expect("a checkpoint");
    drop(volume);
    assert_hides(&device, "compressed");
    let mut volume = open(&device, Keys::Right);
    assert!(content(&volume, file) == wanted);
    let stat = volume.stat(file).expect("attributes");
    assert!(stat.encrypted && stat.compression.map(|how: Compression| how.algorithm).is_some());
    assert!(stat.saved_blocks > 20, "{}", stat.saved_blocks);
    let released = volume.begin(Caller::ADMIN).release_saved(file).expect("saved blocks");
    assert_eq!(volume.begin(Caller::ADMIN).reserve_saved(file).expect("room"), released);
    assert!(content(&volume, file) == wanted);
}

#[test]
fn names_move_and_link_only_under_one_policy() {
    let (_device, mut volume, dir) = encrypted(&["encrypt"], BlockSize::B4K, &usual());
    let other = make(&mut volume, ROOT, b"other", DIRECTORY);
    volume.begin(Caller::ADMIN).set_encryption_policy(other, &policies()[8]).expect("a policy");
    let (inside, plain) = (make(&mut volume, dir, b"inside", FILE), make(&mut volume, ROOT, b"plain", FILE));
    let pipe = make(&mut volume, ROOT, b"pipe", 0o010_600);
    let other_policy =
        |result: f2fs::Result<()>| assert!(matches!(result, Err(Error::OtherPolicy)), "{result:?}");
    other_policy(volume.begin(Caller::ADMIN).rename(ROOT, b"plain", dir, b"new", RenameMode::Replace));
    other_policy(volume.begin(Caller::ADMIN).rename(dir, b"inside", other, b"new", RenameMode::Replace));
    other_policy(volume.begin(Caller::ADMIN).rename(dir, b"inside", ROOT, b"plain", RenameMode::Exchange));
    other_policy(volume.begin(Caller::ADMIN).link(plain, dir, b"new"));
    other_policy(volume.begin(Caller::ADMIN).link(inside, other, b"new"));
    // Special files are not encrypted, and encrypted files may leave.
    volume.begin(Caller::ADMIN).rename(ROOT, b"pipe", dir, b"pipe", RenameMode::Replace).expect("a pipe");
    volume.begin(Caller::ADMIN).link(inside, dir, b"second").expect("the same policy");
    volume.begin(Caller::ADMIN).link(inside, ROOT, b"outside").expect("no policy");
    assert_eq!(volume.lookup(dir, b"pipe").expect("it moved"), pipe);
    let node = volume.inode(inside).expect("an inode");
    assert!(node.last_name() == b"outside" && !node.has_advise(advise::ENC_NAME));
    drop(node);
    let rename = volume.begin(Caller::ADMIN);
    rename.rename(ROOT, b"outside", dir, b"third", RenameMode::Replace).expect("it comes back");
    let node = volume.inode(inside).expect("an inode");
    assert!(node.last_name().len() == 32 && node.has_advise(advise::ENC_NAME));
    let shifted = volume.begin(Caller::ADMIN).insert_range(inside, 0, BLOCK);
    assert!(matches!(shifted, Err(Error::Unsupported(_))), "{shifted:?}");
}

#[test]
fn only_an_empty_directory_takes_a_policy_and_only_with_the_key() {
    let (device, mut volume, dir) = encrypted(&["encrypt", "casefold"], BlockSize::B4K, &usual());
    let set = |volume: &mut Engine, dir: Ino, policy: &EncryptionPolicy| {
        volume.begin(Caller::ADMIN).set_encryption_policy(dir, policy)
    };
    set(&mut volume, dir, &usual()).expect("it has this policy");
    let changed = set(&mut volume, dir, &policies()[8]);
    assert!(matches!(changed, Err(Error::Exists)), "{changed:?}");
    let full = set(&mut volume, ROOT, &usual());
    assert!(matches!(full, Err(Error::NotEmpty)), "{full:?}");
    let file = make(&mut volume, ROOT, b"file", FILE);
    assert!(matches!(set(&mut volume, file, &usual()), Err(Error::NotDirectory)));
    let folding = make(&mut volume, ROOT, b"folding", DIRECTORY);
    let fold = SetAttr { flags: Some(flag::CASEFOLD), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(folding, &fold).expect("it folds case");
    assert!(matches!(set(&mut volume, folding, &policies()[0]), Err(Error::Invalid(_))));
    set(&mut volume, folding, &usual()).expect("a policy of version 2");
    let first = make(&mut volume, ROOT, b"first", DIRECTORY);
    set(&mut volume, first, &policies()[0]).expect("a policy of version 1");
    let folded = volume.begin(Caller::ADMIN).set_attr(first, &fold);
    assert!(matches!(folded, Err(Error::Invalid(_))), "{folded:?}");
    let name = identifier();
    assert!(volume.begin(Caller::ADMIN).remove_key(&name).expect("written pages"));
    assert!(!volume.begin(Caller::ADMIN).remove_key(&name).expect("nothing to do"));
    let last = make(&mut volume, ROOT, b"last", DIRECTORY);
    // By its descriptor, the key is still at hand.
    assert!(matches!(set(&mut volume, last, &usual()), Err(Error::OtherKey(_))));
    set(&mut volume, last, &policies()[0]).expect("a policy of version 1");
    volume.unmount().expect("a checkpoint");
    drop(volume);
    let mut volume =
        Engine::open(device, Options { nonces: None, ..options(Keys::Right) }).expect("a volume");
    let made = volume.begin(Caller::ADMIN).create(dir, b"new", &NewNode::new(FILE));
    assert!(matches!(made, Err(Error::NoNonces)), "{made:?}");
    make(&mut volume, dir, b"pipe", 0o010_600);
}

#[test]
fn a_removed_key_leaves_nothing_unwritten_and_reads_nothing() {
    let (device, mut volume, dir) = encrypted(&["encrypt"], BlockSize::B4K, &usual());
    let file = make(&mut volume, dir, b"file", FILE);
    volume.begin(Caller::ADMIN).write(file, 0, &text(1, 40_000)).expect("room");
    volume.checkpoint().expect("a checkpoint");
    // A dirty page, which is clear.
    volume.begin(Caller::ADMIN).write(file, 5000, &text(2, 10)).expect("room");
    assert!(volume.begin(Caller::ADMIN).remove_key(&identifier()).expect("written pages"));
    assert!(matches!(volume.read(file, 0, &mut [0; 9]), Err(Error::OtherKey(_))));
    let descriptor = KeyName::Descriptor(key().descriptor());
    assert!(volume.begin(Caller::ADMIN).remove_key(&descriptor).expect("nothing waits"));
    assert!(matches!(volume.read(file, 0, &mut [0; 9]), Err(Error::NoKey)));
    assert!(matches!(volume.begin(Caller::ADMIN).write(file, 0, b"x"), Err(Error::NoKey)));
    volume.checkpoint().expect("nothing waits for the key");
    volume.add_key(key());
    let mut wanted = text(1, 40_000);
    wanted[5000..5010].copy_from_slice(&text(2, 10));
    assert!(content(&volume, file) == wanted);
    volume.unmount().expect("a checkpoint");
    assert_hides(&device, "after the removal of the key");
}

/// The removal of a key wrote all pages at once, while readers waited.
#[test]
fn pages_of_encrypted_files_are_written_with_readers_in_between() {
    const PAGES: u64 = 200;
    let (_, mut volume, dir) = encrypted(&["encrypt"], BlockSize::B4K, &usual());
    let [file, plain] = [(dir, "file"), (ROOT, "plain")].map(|(dir, name)| {
        let ino = make(&mut volume, dir, name.as_bytes(), FILE);
        volume.begin(Caller::ADMIN).write(ino, 0, &text(1, (PAGES * BLOCK) as usize)).expect("room");
        ino
    });
    volume.checkpoint().expect("a checkpoint");
    for page in 0..PAGES {
        volume.begin(Caller::ADMIN).write(file, page * BLOCK, b"new").expect("room");
    }
    volume.begin(Caller::ADMIN).write(plain, 0, b"new").expect("room");
    let mut next = volume.begin_write_encrypted().expect("a slice");
    let mut slices = 1;
    while let Some(pending) = next {
        let mut start = [0; 3];
        volume.read(file, slices * BLOCK, &mut start).expect("a page");
        assert_eq!(&start, b"new");
        assert!(matches!(volume.begin(Caller::ADMIN).remove_key(&identifier()), Err(Error::Invalid(_))));
        next = volume.finish(pending.run()).expect("a slice");
        slices += 1;
    }
    assert!(slices > 5, "{slices}");
    assert!((0..PAGES).all(|page| volume.dirty_page(file, page).is_none()));
    assert!(volume.dirty_page(plain, 0).is_some());
}

#[test]
fn cleaning_moves_encrypted_blocks_with_and_without_the_key() {
    let (device, mut volume, dir) = encrypted(&["encrypt"], BlockSize::B4K, &usual());
    let files: Vec<Ino> = (0..40).map(|n| make(&mut volume, dir, format!("{n}").as_bytes(), FILE)).collect();
    for (n, file) in files.iter().enumerate() {
        volume.begin(Caller::ADMIN).write(*file, 0, &text(n as u64, 100_000)).expect("room");
    }
    for n in (0..40).step_by(3) {
        volume.begin(Caller::ADMIN).unlink(dir, format!("{n}").as_bytes()).expect("it is removed");
    }
    volume.unmount().expect("a checkpoint");
    drop(volume);
    for keys in [Keys::None, Keys::Right] {
        let mut volume = open(&device, keys);
        if keys == Keys::Right {
            volume.begin(Caller::ADMIN).write(files[1], 5, b"dirty").expect("room");
        }
        volume.clean(u32::MAX, f2fs::engine::Policy::Greedy).expect("blocks that move");
        volume.unmount().expect("a checkpoint");
    }
    assert_hides(&device, "after cleaning");
    let volume = open(&device, Keys::Right);
    for (n, file) in files.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        let mut wanted = text(n as u64, 100_000);
        if n == 1 {
            wanted[5..10].copy_from_slice(b"dirty");
        }
        assert!(content(&volume, *file) == wanted, "file {n}");
    }
    assert_eq!(volume.stat(dir).expect("attributes").kind, FileType::Directory);
}

#[test]
fn a_stored_name_enters_its_directory_without_the_key() {
    let (device, mut volume, dir) = encrypted(&["encrypt"], BlockSize::B4K, &usual());
    let file = make(&mut volume, dir, b"file", FILE);
    let plain = make(&mut volume, ROOT, b"plain", FILE);
    let name = volume.inode(file).expect("an inode").last_name().to_vec();
    volume.unmount().expect("a checkpoint");
    drop(volume);
    let mut volume = open(&device, Keys::None);
    let enter = |volume: &mut Engine, name: &[u8], ino| {
        volume.begin(Caller::ADMIN).enter_stored_name(dir, name, name_hash(name), ino)
    };
    enter(&mut volume, &name, file).expect("it has the name");
    assert!(matches!(enter(&mut volume, &name, plain), Err(Error::Exists)));
    assert!(matches!(enter(&mut volume, &[7; 16], plain), Err(Error::OtherPolicy)));
    for length in [0, 256] {
        assert!(matches!(enter(&mut volume, &vec![7; length], file), Err(Error::Invalid(_))));
    }
    let count = |volume: &Engine| volume.entries(dir, 0).expect("a directory").count();
    assert_eq!(count(&volume), 3);
    enter(&mut volume, &[7; 16], file).expect("space");
    assert_eq!(count(&volume), 4);
    assert_eq!(volume.inode(file).expect("an inode").last_name(), [7; 16]);
}
