//! Sealed files (fs-verity): content is checked while it is read, and files that we seal have the digests of other
//! implementations.

use std::{process::Command, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::{
    Error, Place,
    engine::{Caller, Engine, NewNode, Options},
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
        let descriptor = volume.begin(Caller::ADMIN).seal(ino, &parameters).expect("it is sealed");
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
        let again = volume.begin(Caller::ADMIN).seal(*ino, &usual());
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
    let refused = plain.begin(Caller::ADMIN).seal(ino, &usual());
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    let (_device, mut volume) = volume(&["verity", "extra_attr", "compression"]);
    let ino = file(&mut volume, b"file", b"content");
    let refused = volume.begin(Caller::ADMIN).seal(ino, &parameters(HashAlgorithm::Sha256, 9, b""));
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(volume.begin(Caller::ADMIN).seal(ROOT, &usual()).is_err());
    let empty = file(&mut volume, b"compressed", b"");
    let set = f2fs::engine::SetAttr { flags: Some(flag::COMPRESS), ..Default::default() };
    volume.begin(Caller::ADMIN).set_attr(empty, &set).expect("it is compressed");
    let refused = volume.begin(Caller::ADMIN).seal(empty, &usual());
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
}
