//! Linux and our engine on the same sealed files: each checks what the other has sealed, and both have the same digests.

use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use f2fs::{
    Error,
    engine::{Caller, Engine, FinalSymlink, SealedPart},
    format::verity::{HashAlgorithm, Parameters},
    mkfs,
    units::Ino,
};
use guest::{Bytes, Content, Op, Scope, differences, op::Answer};
use model::manifest;
use xtask::{
    Disk, Machine, Vm,
    golden::stage::{At, Stage},
    trial::engine,
};

const DIFFERENCES: usize = 8;
/// Linux's answer to a read of content that does not match.
const EIO: i32 = 5;

/// The files that we seal: name, length, algorithm, salt. Linux 6.1 has blocks of 4096 bytes only.
const OURS: [(&str, u64, HashAlgorithm, &[u8]); 6] = [
    ("empty", 0, HashAlgorithm::Sha256, b""),
    ("small", 100, HashAlgorithm::Sha256, b"salt"),
    ("block", 4096, HashAlgorithm::Sha512, b""),
    ("tree", 1_228_809, HashAlgorithm::Sha256, b""),
    ("salted", 2_100_000, HashAlgorithm::Sha512, b"a salt of 32 bytes, and not more"),
    ("damaged", 40_000, HashAlgorithm::Sha256, b""),
];

/// Length of a file whose sealing ends after the first part of its tree, in bytes.
const UNFINISHED_BYTES: u64 = 9_000_000;

fn resolve(volume: &Engine, name: &str) -> Ino {
    volume.resolve(name.as_bytes(), FinalSymlink::NoFollow).expect("it is there")
}

fn digest_of(volume: &Engine, name: &str) -> String {
    let descriptor = volume.verity(resolve(volume, name)).expect("a descriptor").expect("it is sealed");
    let digits = descriptor.digest().into_iter().map(|byte| format!("{byte:02x}"));
    format!("{}:{}", descriptor.parameters.algorithm.name(), digits.collect::<String>())
}

/// Makes a volume with files that we have sealed, and damages one of them. Returns the digests.
fn seal(path: &Path) -> Vec<String> {
    let features = mkfs::parse_features("verity,extra_attr,inode_checksum").expect("known features");
    let options = mkfs::Options { features, ..mkfs::Options::new([0x5A; 16]) };
    let new = engine::begin(path, 128, &options).expect("a volume");
    let (mut volume, at) = (new.finish().expect("a root directory"), At::root());
    for (seed, (name, length, algorithm, salt)) in (1..).zip(OURS) {
        let content = Content::Noise { seed, length };
        engine::perform_all(&mut volume, &[at.text(name, ""), at.write(name, 0, content)]).expect("a file");
        let parameters = Parameters { algorithm, log_block_bytes: 12, salt: salt.to_vec() };
        let ino = resolve(&volume, name);
        volume.begin(Caller::ADMIN).seal(ino, &parameters, b"").expect("it is sealed");
    }
    engine::perform_all(&mut volume, &[at.prose("by-linux", 300_000)]).expect("a file");
    let content = Content::Noise { seed: 7, length: UNFINISHED_BYTES };
    engine::perform_all(&mut volume, &[at.write("unfinished", 0, content)]).expect("a file");
    let parameters = Parameters { algorithm: HashAlgorithm::Sha256, log_block_bytes: 12, salt: Vec::new() };
    let mut sealing =
        volume.begin_sealing(resolve(&volume, "unfinished"), &parameters, b"").expect("it can be sealed");
    let part = volume.begin(Caller::ADMIN).seal_part(&mut sealing).expect("there is room");
    assert_eq!(part, None, "the tree has several parts");
    let digests = OURS.map(|(name, ..)| digest_of(&volume, name)).to_vec();
    let damaged = volume.inode(resolve(&volume, "damaged")).expect("an inode");
    let place = u64::from(volume.address(&damaged, 3).expect("an address").0) * 4096;
    drop(damaged);
    volume.unmount().expect("a checkpoint");
    drop(volume);
    model::fsck::fsck_image(path).expect("fsck.f2fs finds nothing");
    let image = std::fs::OpenOptions::new().write(true).open(path).expect("the image");
    image.write_all_at(b"damage", place).expect("it is written");
    digests
}

fn measure(vm: &mut Vm, at: &At, name: &str) -> String {
    let outcome = vm.run(Op::Measure { path: at.path(name) }).expect("Linux measures it");
    let Some(Answer::Content(Bytes(told))) = outcome.answer else { panic!("no digest") };
    String::from_utf8(told).expect("text")
}

#[test]
fn linux_checks_what_we_seal_and_has_our_digests() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("sealed.img");
    let digests = seal(&path);
    let mut vm = Vm::boot(Machine::Amd64, &[Disk::writable(&path)]).expect("the machine boots");
    let at = {
        let mut stage = Stage::new(&mut vm, 0, PathBuf::new());
        stage.mount("").expect("Linux mounts our volume");
        stage.at()
    };
    for ((name, ..), digest) in OURS.iter().zip(&digests) {
        assert_eq!(measure(&mut vm, &at, name), *digest, "{name}");
    }
    let read = vm.attempt(Op::Read { path: at.path("damaged") }).expect("the machine runs");
    assert_eq!(read.expect_err("the damage is found").errno, EIO);
    let write = vm.attempt(at.write("tree", 0, Content::Noise { seed: 9, length: 5 })).expect("it runs");
    write.expect_err("a sealed file is not written");
    vm.run(Op::Unlink { path: at.path("damaged") }).expect("it is removed");
    // Linux frees the part of a tree, which would become content.
    let longer = UNFINISHED_BYTES + (1 << 20);
    vm.run(Op::Truncate { path: at.path("unfinished"), size: longer }).expect("it grows");
    vm.run_all([at.fsync("by-linux"), Op::Verity { path: at.path("by-linux") }]).expect("Linux seals it");
    let by_linux = measure(&mut vm, &at, "by-linux");
    let outcome = vm.run(Op::Manifest { dir: "/mnt/0".into() }).expect("Linux reads every other file");
    let theirs = outcome.manifest.expect("a manifest");
    vm.run(Op::Unmount { dir: "/mnt/0".into() }).expect("Linux unmounts");
    drop(vm);
    model::fsck::fsck_image(&path).expect("fsck.f2fs finds nothing");
    let volume = engine::open_read_only(&path).expect("it opens");
    assert_eq!(digest_of(&volume, "by-linux"), by_linux);
    let mut ours = manifest::manifest_of(&volume);
    ours.volume = theirs.volume;
    assert_eq!(differences(&theirs, &ours, Scope::Volume, DIFFERENCES), Vec::<String>::new());
    let mut grown = vec![1; 1 << 20];
    let count = volume.read(resolve(&volume, "unfinished"), UNFINISHED_BYTES, &mut grown).expect("readable");
    assert!(count == 1 << 20 && grown.iter().all(|byte| *byte == 0), "the tree is no content");
    let mut changed = vec![0; 10];
    assert_eq!(volume.read(resolve(&volume, "tree"), 5, &mut changed).expect("it matches"), 10);
    let gone = volume.resolve(b"damaged", FinalSymlink::NoFollow);
    assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
    for name in ["by-linux", "salted", "empty"] {
        let checked = volume.check_sealed(resolve(&volume, name), |part| match part {
            SealedPart::Whole(_) => {}
            SealedPart::Damaged(damaged) => panic!("{name}: {damaged:?}"),
        });
        assert!(checked.expect("no error of keys"), "{name}");
    }
}
