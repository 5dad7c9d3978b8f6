//! Linux and our engine on the same encrypted volumes: each reads with the key what the other has encrypted.

use std::path::{Path, PathBuf};

use f2fs::{
    Key, Keyring,
    format::inode::{Algorithm, Compression},
    mkfs,
};
use guest::{Content, Kind, Manifest, Op, Scope, differences};
use model::manifest;
use xtask::{
    Disk, Machine, Vm,
    golden::{
        recipes::{POLICIES, encrypted_directory},
        stage::{At, Stage},
    },
    trial::engine,
};

const DIFFERENCES: usize = 8;

/// Byte of the keys of encrypted directories.
const KEY_BYTE: u8 = 0x5A;
/// Name of a directory whose names are encrypted and fold case.
const FOLDED: &str = "folded";

/// The keys of the directories that [`encrypted_ops`] makes.
fn keys() -> Keyring {
    let mut ring = Keyring::default();
    for (_, policy) in POLICIES {
        let key = Key::new(&policy.key(KEY_BYTE)).expect("64 bytes are a key");
        ring.add(match policy.descriptor {
            Some(descriptor) => key.with_descriptor(descriptor),
            None => key,
        });
    }
    ring
}

/// Makes a directory for each policy, and one that folds case.
fn encrypted_ops(at: &At) -> Vec<Op> {
    const CASEFOLD: u32 = 0x4000_0000;
    let mut ops: Vec<Op> =
        POLICIES.iter().flat_map(|(name, policy)| encrypted_directory(at, name, *policy)).collect();
    let folded = at.below(FOLDED);
    let encrypt = Op::Encrypt { dir: at.path(FOLDED), byte: KEY_BYTE, policy: guest::op::Policy::USUAL };
    ops.extend([at.mkdir(FOLDED), encrypt, at.flags(FOLDED, CASEFOLD, 0)]);
    ops.extend(["Readme", "straße", "ÅNGSTRÖM"].map(|name| folded.text(name, name)));
    ops
}

/// Changes in each of these directories. `new` begins the names of new entries.
fn encrypted_changes(at: &At, new: &str) -> Vec<Op> {
    let length = if new == "ours" { 100 } else { 63 };
    let mut ops = Vec::new();
    for (name, _) in POLICIES {
        let dir = at.below(name);
        ops.extend([
            dir.write("prose", 5000, Content::Noise { seed: 1, length: 3000 }),
            dir.write("prose", 8 * at.block(), Content::Prose { seed: 2, length: 9 * at.block() + 1 }),
            dir.truncate("prose", 15 * at.block() + 7),
            dir.write("compressed", 6 * at.block() + 9, Content::Prose { seed: 3, length: 12 * at.block() }),
            dir.prose(new, 2 * at.block() + 5),
            dir.symlink("t".repeat(300), format!("{new} link")),
            dir.rename(&"n".repeat(length), &format!("{new} renamed")),
            dir.mkdir(format!("{new} dir")),
            dir.rename("below/child", &format!("{new} dir/child")),
            dir.text("below/child", new),
            dir.link("prose", &format!("{new} dir/second")),
            dir.unlink(&"n".repeat(17)),
            dir.text("n".repeat(17), new),
        ]);
    }
    let folded = at.below(FOLDED);
    ops.extend([
        folded.text("README", new),
        folded.rename(if new == "ours" { "ångström" } else { "STRASSE" }, new),
        folded.text("More", new),
    ]);
    ops
}

/// Gives Linux the keys. It fails if Linux sees another policy than was set.
fn unlock(at: &At) -> Vec<Op> {
    let op = |(name, policy): &(&str, guest::op::Policy)| Op::Encrypt {
        dir: at.path(name),
        byte: KEY_BYTE,
        policy: *policy,
    };
    POLICIES.iter().map(op).collect()
}

/// The manifest of a mounted disk as Linux reads it.
fn manifest_by(vm: &mut Vm, disk: usize) -> Manifest {
    let outcome = vm.run(Op::Manifest { dir: format!("/mnt/{disk}").into() }).expect("Linux reads it");
    outcome.manifest.expect("a manifest")
}

/// Makes a volume whose directories we have encrypted, with changes that are written or only fsynced.
fn write_encrypted(path: &Path, end: End) {
    let features = "encrypt,extra_attr,inode_checksum,compression,casefold";
    let options = mkfs::Options {
        features: mkfs::parse_features(features).expect("known features"),
        ..mkfs::Options::new([0x5A; 16])
    };
    let compression =
        Compression { algorithm: Algorithm::Lz4, log_cluster_blocks: 2, checksum: true, level: 0 };
    let new = engine::begin_compressed(path, 256, &options, compression).expect("a volume");
    let (mut volume, at) = (new.finish().expect("a root directory"), At::root());
    engine::perform_all(&mut volume, &encrypted_ops(&at)).expect("we encrypt");
    if end == End::Unmounted {
        engine::perform_all(&mut volume, &encrypted_changes(&at, "ours")).expect("we change");
        return volume.unmount().expect("a checkpoint");
    }
    volume.checkpoint().expect("a checkpoint");
    for (name, _) in POLICIES {
        let of = at.below(name);
        let fsyncs = [
            of.prose("synced", 9 * at.block() + 9),
            of.fsync("synced"),
            of.write("prose", 4000, Content::Noise { seed: 4, length: 500 }),
            of.fsync("prose"),
        ];
        engine::perform_all(&mut volume, &fsyncs).expect("fsyncs");
    }
}

/// The end of a volume's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Unmounted,
    PowerCut,
}

#[test]
fn linux_reads_and_changes_what_we_encrypt() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = ["clean.img", "unclean.img"].map(|name| dir.path().join(name));
    write_encrypted(&paths[0], End::Unmounted);
    write_encrypted(&paths[1], End::PowerCut);
    let ours = paths
        .each_ref()
        .map(|path| manifest::manifest_of(&engine::open_with_keys(path, keys()).expect("it opens")));
    let mut vm = Vm::boot(Machine::Amd64, &paths.each_ref().map(Disk::writable)).expect("the machine boots");
    let mut seen = Vec::new();
    for n in 0..paths.len() {
        let at = {
            let mut stage = Stage::new(&mut vm, n, PathBuf::new());
            stage.mount("compress_algorithm=lz4,compress_log_size=2").expect("Linux mounts our volume");
            let at = stage.at();
            stage.run(unlock(&at)).expect("Linux has the same policies");
            at
        };
        let first = manifest_by(&mut vm, n);
        vm.run_all(encrypted_changes(&at, "linux")).expect("Linux changes it");
        vm.run(Op::Sync).expect("Linux writes");
        seen.push((first, manifest_by(&mut vm, n)));
        vm.run(Op::Unmount { dir: format!("/mnt/{n}").into() }).expect("Linux unmounts");
    }
    drop(vm);
    for ((path, mut ours), (first, changed)) in paths.iter().zip(ours).zip(seen) {
        let name = path.display();
        if path.ends_with("unclean.img") {
            manifest::excuse_recovered_directories(&first, &mut ours);
        }
        assert_eq!(differences(&first, &ours, Scope::Volume, DIFFERENCES), Vec::<String>::new(), "{name}");
        let mut now = manifest::manifest_of(&engine::open_with_keys(path, keys()).expect("it opens"));
        // Blocks that the unmount has freed.
        now.volume = changed.volume;
        // The manifest reads the links that Linux has just made, which sets their access times.
        for (entry, seen) in now.entries.iter_mut().zip(&changed.entries) {
            if entry.path == seen.path && entry.kind == Kind::Symlink {
                entry.atime = seen.atime;
            }
        }
        assert_eq!(differences(&changed, &now, Scope::Volume, DIFFERENCES), Vec::<String>::new(), "{name}");
        model::fsck::fsck_image(path).expect("fsck.f2fs finds nothing");
        let secrets = first.entries.iter().filter(|entry| entry.path.0.ends_with(b"/prose")).count();
        assert_eq!(secrets, POLICIES.len(), "{name}");
    }
}
