//! Sealed files (fs-verity): content is checked while it is read, and files that we seal have the digests of other
//! implementations.

use std::{process::Command, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::{
    Error, Place,
    engine::{
        Caller, Engine, FileSize, NewNode, Options, SealedDamage, SealedPart, SealedPlace, SetAttr, SyncScope,
    },
    format::{
        BlockSize,
        inode::{advise, flag},
        verity::{HashAlgorithm, Parameters},
    },
    units::Ino,
};

#[path = "support/golden.rs"]
mod golden;
mod support;

const ROOT: Ino = Ino(3);
const BLOCK: u64 = 4096;

fn volume(features: &[&str]) -> (Arc<dyn Device>, Engine) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
    (device.clone(), support::format_on(device, features, BlockSize::B4K))
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length as u32).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 7).to_le_bytes()).take(length).collect()
}

fn file(volume: &mut Engine, name: &[u8], content: &[u8]) -> Ino {
    let ino = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(0o100_644)).expect("a file");
    for (n, part) in content.chunks(1 << 20).enumerate() {
        volume.begin(Caller::ADMIN).write(ino, (n as u64) << 20, part).expect("room");
    }
    ino
}

fn parameters(algorithm: HashAlgorithm, log_block_bytes: u8, salt: &[u8]) -> Parameters {
    Parameters { algorithm, log_block_bytes, salt: salt.to_vec() }
}

fn usual() -> Parameters {
    parameters(HashAlgorithm::Sha256, 12, b"")
}

fn read(volume: &Engine, ino: Ino) -> f2fs::Result<Vec<u8>> {
    let mut content = vec![0; volume.stat(ino)?.size as usize];
    volume.read(ino, 0, &mut content).map(|_| content)
}

/// The digest by `fsverity digest` of Debian; `None` if it is not installed.
fn of_tool(content: &[u8], parameters: &Parameters) -> Option<String> {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("file");
    std::fs::write(&path, content).expect("a file");
    let salt: String = parameters.salt.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new("fsverity");
    command.args(["digest", "--compact", "--hash-alg", parameters.algorithm.name()]);
    command.args(["--block-size", &parameters.block_bytes().to_string()]);
    if !salt.is_empty() {
        command.args(["--salt", &salt]);
    }
    let run = command.arg(&path).output().ok()?;
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(String::from_utf8(run.stdout).expect("text").trim().to_owned())
}

#[test]
fn files_are_sealed_with_the_digests_of_fsverity() {
    let (device, mut volume) = volume(&["verity"]);
    let mut sealed = Vec::new();
    let cases = [
        (0, usual()),
        (1, usual()),
        (4096, usual()),
        (4097, usual()),
        (600_000, parameters(HashAlgorithm::Sha512, 12, b"some salt")),
        (9_000_001, usual()),
        (300_000, parameters(HashAlgorithm::Sha256, 10, &[7; 32])),
    ];
    let mut compared = 0;
    for (length, parameters) in cases {
        let content = bytes(length);
        let ino = file(&mut volume, format!("{length}").as_bytes(), &content);
        let descriptor = volume.begin(Caller::ADMIN).seal(ino, &parameters, b"").expect("it is sealed");
        let digest: String = descriptor.digest().iter().map(|byte| format!("{byte:02x}")).collect();
        if let Some(told) = of_tool(&content, &parameters) {
            assert_eq!(digest, told, "{length} bytes, {parameters:?}");
            compared += 1;
        }
        sealed.push((ino, content, descriptor));
    }
    println!("{compared} digests compared with fsverity");
    volume.unmount().expect("a checkpoint");
    drop(volume);
    let mut volume = Engine::open(device, Options::new(|| support::NOW)).expect("a volume");
    for (ino, content, descriptor) in &sealed {
        assert!(read(&volume, *ino).expect("it matches its tree") == *content);
        assert_eq!(volume.verity(*ino).expect("a descriptor").as_ref(), Some(descriptor));
        let mut part = [0; 10];
        let length = volume.read(*ino, content.len() as u64 / 2, &mut part).expect("a part");
        assert_eq!(part[..length], content[content.len() / 2..][..length]);
        let written = volume.begin(Caller::ADMIN).write(*ino, 0, b"x");
        assert!(matches!(written, Err(Error::NotPermitted)), "{written:?}");
        let again = volume.begin(Caller::ADMIN).seal(*ino, &usual(), b"");
        assert!(matches!(again, Err(Error::Exists)), "{again:?}");
        assert!(volume.inode(*ino).expect("an inode").has_advise(advise::VERITY));
        assert_eq!(volume.stat(*ino).expect("attributes").size, content.len() as u64);
    }
}

#[test]
fn files_that_linux_sealed_are_checked() {
    let device = golden::device("verity");
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a volume");
    for name in [&b"small"[..], b"block", b"tree"] {
        let ino = volume.lookup(ROOT, name).expect("it is there");
        read(&volume, ino).expect("it matches its tree");
        assert!(volume.verity(ino).expect("a descriptor").is_some());
    }
    let tree = volume.lookup(ROOT, b"tree").expect("it is there");
    let inode = volume.inode(tree).expect("an inode");
    // A block of the content, one of the tree, and the descriptor, in turn.
    let first_of_tree = inode.head().size.get().next_multiple_of(65_536) / BLOCK;
    let damaged = |block: u64, at: u64| {
        let addr = volume.address(&inode, block).expect("an address");
        let offset = u64::from(addr.0) * BLOCK + at;
        let mut byte = [0];
        device.read(offset, &mut byte).expect("memory");
        device.write(offset, &[byte[0] ^ 1]).expect("memory");
        let fresh = Engine::open(device.clone(), Options::read_only()).expect("a volume");
        let outcome = (fresh.read(tree, 7 * BLOCK, &mut [0; 9]), fresh.read(tree, 0, &mut [0; 9]));
        device.write(offset, &byte).expect("memory");
        outcome
    };
    let (hit, other) = damaged(7, 100);
    assert!(matches!(hit, Err(Error::Corrupt { at: Place::File(ino, 7), .. }) if ino == tree), "{hit:?}");
    other.expect("another block is whole");
    let (hit, other) = damaged(first_of_tree, 0);
    assert!(matches!(hit, Err(Error::Corrupt { .. })) && other.is_err(), "the highest block of the tree");
    let last = (first_of_tree..).take_while(|block| volume.address(&inode, *block).unwrap().is_real()).last();
    let (hit, _) = damaged(last.expect("a descriptor"), 16);
    assert!(matches!(hit, Err(Error::Corrupt { .. })), "the root hash: {hit:?}");
    read(&volume, tree).expect("it is whole again");
}

#[test]
fn sealing_is_refused_for_files_that_cannot_be_sealed() {
    let (_device, mut plain) = volume(&[]);
    let ino = file(&mut plain, b"file", b"content");
    let refused = plain.begin(Caller::ADMIN).seal(ino, &usual(), b"");
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    let (_device, mut volume) = volume(&["verity", "extra_attr", "compression"]);
    let ino = file(&mut volume, b"file", b"content");
    let refused = volume.begin(Caller::ADMIN).seal(ino, &parameters(HashAlgorithm::Sha256, 9, b""), b"");
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(volume.begin(Caller::ADMIN).seal(ROOT, &usual(), b"").is_err());
    let empty = file(&mut volume, b"compressed", b"");
    let set = f2fs::engine::SetAttr { flags: Some(flag::COMPRESS), ..Default::default() };
    volume.begin(Caller::ADMIN).set_attr(empty, &set).expect("it is compressed");
    let refused = volume.begin(Caller::ADMIN).seal(empty, &usual(), b"");
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
}

/// Returns the damaged places of a file, after a check that every byte of its content was told once.
fn damage(volume: &Engine, ino: Ino) -> Vec<SealedDamage> {
    let (mut end, mut found) = (0, Vec::new());
    let is_sealed = volume.check_sealed(ino, |part| {
        let content = match part {
            SealedPart::Whole(content) => content,
            SealedPart::Damaged(damaged) => {
                let content = damaged.content.clone();
                found.push(damaged);
                content
            }
        };
        assert_eq!(content.start, end, "in order, and without gaps");
        end = content.end;
    });
    assert!(is_sealed.expect("no error of keys"));
    assert_eq!(end, volume.stat(ino).expect("attributes").size);
    found
}

#[test]
fn a_check_tells_each_damaged_place_once() {
    let (device, mut volume) = volume(&["verity"]);
    // Three levels of blocks of 1 KiB, each with 32 digests.
    let content = bytes(2_500_000);
    let ino = file(&mut volume, b"file", &content);
    let signature = bytes(700);
    let made =
        volume.begin(Caller::ADMIN).seal(ino, &parameters(HashAlgorithm::Sha256, 10, b"salt"), &signature);
    assert_eq!(made.expect("it is sealed").signature, signature);
    let empty = file(&mut volume, b"empty", b"");
    volume.begin(Caller::ADMIN).seal(empty, &usual(), b"").expect("it is sealed");
    let plain = file(&mut volume, b"plain", b"plain");
    volume.unmount().expect("a checkpoint");
    drop(volume);
    let open = || Engine::open(device.clone(), Options::read_only()).expect("a volume");
    let volume = open();
    assert!(damage(&volume, ino).is_empty() && damage(&volume, empty).is_empty());
    assert!(!volume.check_sealed(plain, |_| panic!("nothing is told")).expect("it is readable"));
    assert_eq!(volume.verity(ino).expect("a descriptor").expect("it is sealed").signature, signature);
    let mut tree = vec![0; 1 << 20];
    // 2442 blocks of content, and 77 + 3 + 1 blocks above them.
    assert_eq!(volume.read_verity_tree(ino, 0, &mut tree).expect("a tree"), 81 << 10);
    assert_eq!(volume.read_verity_tree(ino, 80 << 10, &mut tree).expect("its end"), 1 << 10);

    let inode = volume.inode(ino).expect("an inode");
    let at = |offset: u64| {
        let addr = volume.address(&inode, offset / BLOCK).expect("an address");
        u64::from(addr.0) * BLOCK + offset % BLOCK
    };
    let tree = (content.len() as u64).next_multiple_of(65_536);
    let found_after = |offsets: &[u64]| {
        let flip = || {
            for at in offsets.iter().map(|offset| at(*offset)) {
                let mut byte = [0];
                device.read(at, &mut byte).expect("memory");
                device.write(at, &[byte[0] ^ 1]).expect("memory");
            }
        };
        flip();
        let found = damage(&open(), ino);
        flip();
        found.into_iter().map(|damaged| (damaged.place, damaged.content)).collect::<Vec<_>>()
    };
    use SealedPlace::{Content, Descriptor, Tree};
    let size = content.len() as u64;
    assert_eq!(
        found_after(&[5000, 6200, size - 1]),
        [(Content, 4096..5120), (Content, 6144..7168), (Content, 2_499_584..size)]
    );
    // The root, the second block of level 1, and the last block of level 0.
    assert_eq!(found_after(&[tree]), [(Tree { level: 2, block: 0 }, 0..size)]);
    assert_eq!(found_after(&[tree + 2 * 1024]), [(Tree { level: 1, block: 1 }, 1 << 20..2 << 20)]);
    assert_eq!(
        found_after(&[tree + 80 * 1024, size - 1, 0]),
        [(Content, 0..1024), (Tree { level: 0, block: 76 }, 76 << 15..size)]
    );
    assert_eq!(found_after(&[tree + 81 * 1024]), [(Descriptor, 0..size)]);
    // The signature is not part of what is measured.
    assert_eq!(found_after(&[tree + 81 * 1024 + 256]), []);
}

#[test]
fn a_sealing_that_is_given_up_leaves_the_file_as_it_was() {
    let (device, mut volume) = volume(&["verity"]);
    let content = bytes(40 << 20);
    let ino = file(&mut volume, b"file", &content);
    let before = volume.space().free_blocks;
    let mut sealing = volume.begin_sealing(ino, &usual(), b"").expect("it can be sealed");
    for hashed in [4 << 20, 8 << 20] {
        assert!(volume.hash_part(&mut sealing).expect("it is read"));
        assert_eq!(volume.begin(Caller::ADMIN).seal_part(&mut sealing).expect("room"), None);
        assert_eq!(sealing.hashed_bytes(), hashed);
    }
    let append = SetAttr { flags: Some(flag::APPEND), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(ino, &append).expect("a flag");
    let refused = volume.begin(Caller::ADMIN).seal_part(&mut sealing);
    assert!(matches!(refused, Err(Error::NotPermitted)), "{refused:?}");
    let none = SetAttr { flags: Some(0), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(ino, &none).expect("no flag");
    volume.begin(Caller::ADMIN).give_up_sealing(&sealing).expect("it is freed");
    volume.checkpoint().expect("a checkpoint");
    assert_eq!(volume.space().free_blocks, before);
    volume.begin(Caller::ADMIN).write(ino, 5, b"change").expect("it is not sealed");
    let mut parts = 0;
    let mut sealing = volume.begin_sealing(ino, &usual(), b"").expect("it can be sealed");
    while volume.begin(Caller::ADMIN).seal_part(&mut sealing).expect("room").is_none() {
        parts += 1;
    }
    assert!(parts >= 3, "{parts}");
    volume.unmount().expect("a checkpoint");
    let volume = Engine::open(device, Options::read_only()).expect("a volume");
    assert!(damage(&volume, ino).is_empty());
    let long = volume.begin_sealing(ino, &usual(), &bytes(16_129));
    assert!(matches!(long, Err(Error::Invalid(_))), "{long:?}");
}

/// A block of such a tree has the hashes of 128 MiB, which were read and hashed at once.
#[test]
fn a_part_of_a_tree_with_large_blocks_is_hashed_in_several_steps() {
    let (_, mut volume) = volume(&["verity"]);
    let content = bytes((10 << 20) + 5);
    let ino = file(&mut volume, b"file", &content);
    let large = parameters(HashAlgorithm::Sha256, 16, b"");
    let mut sealing = volume.begin_sealing(ino, &large, b"").expect("it can be sealed");
    let mut step = || volume.hash_part(&mut sealing).expect("it is read");
    assert_eq!([step(), step(), step(), step()], [false, false, true, true]);
    assert_eq!(volume.begin(Caller::ADMIN).seal_part(&mut sealing).expect("room"), None);
    assert!(volume.begin(Caller::ADMIN).seal_part(&mut sealing).expect("room").is_some());
    assert!(damage(&volume, ino).is_empty());
    assert_eq!(read(&volume, ino).expect("it is as sealed"), content);
}

/// Begins to seal a new file of this content, and does two parts.
fn sealed_in_part(volume: &mut Engine, content: &[u8]) -> Ino {
    let ino = file(volume, b"file", content);
    volume.checkpoint().expect("a checkpoint");
    let mut sealing = volume.begin_sealing(ino, &usual(), b"").expect("it can be sealed");
    for _ in 0..2 {
        assert_eq!(volume.begin(Caller::ADMIN).seal_part(&mut sealing).expect("room"), None);
    }
    ino
}

/// Roll-forward took the last block of the tree for the end of the file.
#[test]
fn an_fsync_during_a_sealing_keeps_the_size() {
    let (device, mut volume) = volume(&["verity"]);
    let content = bytes(10_000_000);
    let ino = sealed_in_part(&mut volume, &content);
    volume.fsync(ino, SyncScope::Everything).expect("it is durable");
    drop(volume);
    let volume = Engine::open(device, Options::new(|| support::NOW)).expect("a volume");
    assert!(read(&volume, ino).expect("readable") == content);
}

/// The tree became content when the file grew past its last block.
#[test]
fn the_tree_of_an_interrupted_sealing_does_not_become_content() {
    type Grow = fn(&mut Engine, Ino, u64) -> f2fs::Result<()>;
    let ways: [(&str, Grow); 6] = [
        ("truncate", |volume, ino, end| volume.begin(Caller::ADMIN).truncate(ino, end)),
        ("write", |volume, ino, end| volume.begin(Caller::ADMIN).write(ino, end - 1, &[0])),
        ("reserve", |volume, ino, end| {
            volume.begin(Caller::ADMIN).allocate_range(ino, end - 4096, 4096, FileSize::Grows)
        }),
        ("reserve, then grow", |volume, ino, end| {
            volume.begin(Caller::ADMIN).allocate_range(ino, end - 4096, 4096, FileSize::Stays)?;
            volume.begin(Caller::ADMIN).truncate(ino, end)
        }),
        ("reserve in parts", |volume, ino, end| {
            let size = volume.stat(ino)?.size;
            let part = (end - size) / 3 / 4096 * 4096;
            volume.begin(Caller::ADMIN).allocate_range(ino, size, part, FileSize::Stays)?;
            volume.begin(Caller::ADMIN).allocate_range(
                ino,
                size + part,
                end - size - part,
                FileSize::Grows,
            )?;
            assert!(volume.stat(ino)?.sectors * 512 >= end, "a part was freed");
            Ok(())
        }),
        ("insert", |volume, ino, end| {
            let size = volume.stat(ino)?.size;
            let length = (end - size) / 4096 * 4096;
            volume.begin(Caller::ADMIN).insert_range(ino, 0, length)?;
            volume.begin(Caller::ADMIN).collapse_range(ino, 0, length)?;
            volume.begin(Caller::ADMIN).truncate(ino, end)
        }),
    ];
    for (name, grow) in ways {
        let (device, mut first) = volume(&["verity"]);
        let content = bytes(10_000_000);
        let ino = sealed_in_part(&mut first, &content);
        first.checkpoint().expect("a checkpoint");
        drop(first);
        let mut volume = Engine::open(device, Options::new(|| support::NOW)).expect("a volume");
        let end = content.len() as u64 + (1 << 20);
        grow(&mut volume, ino, end).expect("it grows");
        let found = read(&volume, ino).expect("readable");
        assert_eq!(found.len() as u64, end, "{name}");
        assert!(found[..content.len()] == content, "{name}");
        let stray = found[content.len()..].iter().filter(|byte| **byte != 0).count();
        assert_eq!(stray, 0, "{name}");
    }
}

/// The reserved blocks in front of the tree went, although no tree was begun.
#[test]
fn a_sealing_without_room_keeps_what_is_reserved() {
    let (_, mut volume) = volume(&["verity"]);
    let ino = file(&mut volume, b"file", &bytes(10 << 20));
    volume.begin(Caller::ADMIN).allocate_range(ino, 12 << 20, 1 << 20, FileSize::Stays).expect("room");
    let (other, mut end) = (file(&mut volume, b"other", b""), 0);
    for length in [4 << 20, 64 << 10, BLOCK] {
        while volume.begin(Caller::ADMIN).allocate_range(other, end, length, FileSize::Grows).is_ok() {
            end += length;
        }
    }
    let before = volume.stat(ino).expect("a file").sectors;
    let full = volume.begin(Caller::ADMIN).seal(ino, &usual(), b"");
    assert!(matches!(full, Err(Error::NoSpace { .. })), "{full:?}");
    assert_eq!(volume.stat(ino).expect("a file").sectors, before);
}
