//! Linux and our engine on the same volumes: each reads the other's writes correctly.
//!
//! Each test boots the judge's kernel once and gives it many volumes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use block::{Device, FileDevice, OpenOptions};
use f2fs::{
    engine::{Caller, Engine, Options, QuotaLimits},
    format::{
        BlockSize,
        inode::{Algorithm, Compression},
        quota::QuotaKind,
    },
    mkfs::{self, Overprovision, Plan},
    tune::{Changes, FeatureChanges, tune},
    units::Time,
};
use guest::{
    Content, Manifest, Op, Scope, differences,
    op::{Allocate, Answer},
};
use model::{Case, manifest};
use xtask::{
    Disk, Image, Judge, Machine, Vm,
    golden::{self, stage::At, tree, unclean},
    judge::initramfs,
    trial::engine,
    trial::linux_recovery::{self, Ours},
};

const DIFFERENCES: usize = 8;
/// Seed of the operations before power cuts.
const SEED: u64 = 1;
/// Power cuts per sequence.
const CUTS: usize = 12;

/// Feature sets of the volumes.
const FEATURES: [&str; 15] = [
    "",
    "extra_attr",
    "extra_attr,inode_checksum",
    "extra_attr,flexible_inline_xattr",
    "extra_attr,inode_crtime",
    "extra_attr,project_quota",
    "extra_attr,compression",
    "quota",
    "lost_found",
    "sb_checksum",
    "encrypt",
    "verity",
    "casefold",
    "extra_attr,inode_checksum,flexible_inline_xattr,inode_crtime,sb_checksum,lost_found",
    EVERYTHING,
];
const EVERYTHING: &str = "encrypt,extra_attr,project_quota,inode_checksum,flexible_inline_xattr,quota,\
    inode_crtime,lost_found,verity,sb_checksum,casefold,compression";

/// All trees, each in its own directory.
fn trees(block_size: BlockSize) -> Vec<Op> {
    let at = At::root().with_block(block_size.bytes() as u64);
    let tree = |name: &str, ops: fn(&At) -> Vec<Op>| [vec![at.mkdir(name)], ops(&at.below(name))].concat();
    [
        tree("little", tree::little),
        tree("kinds", tree::kinds),
        tree("metadata", tree::metadata),
        tree("contents", tree::contents),
        tree("attributes", tree::attributes),
        tree("names", tree::names),
        tree("crowd", tree::crowd),
    ]
    .concat()
}

fn read(path: &Path) -> Manifest {
    manifest::manifest_of(&engine::open_read_only(path).expect("the volume opens"))
}

/// Writes all trees to a new volume and reads them back.
fn write(dir: &Path, features: &str, block_size: BlockSize) -> Ours {
    let options = mkfs::Options {
        features: mkfs::parse_features(features).expect("known features"),
        block_size,
        ..mkfs::Options::new([0x5A; 16])
    };
    write_with(dir, &format!("{block_size:?} {features}"), &options)
}

fn write_with(dir: &Path, name: &str, options: &mkfs::Options) -> Ours {
    let mib = if options.block_size == BlockSize::B4K { 256 } else { 1024 };
    write_sized(dir, name, mib, options, &trees(options.block_size))
}

/// Executes `ops` on a new volume of `mib` MiB and reads it back.
fn write_sized(dir: &Path, name: &str, mib: u64, options: &mkfs::Options, ops: &[Op]) -> Ours {
    let path = dir.join(format!("{name}.img"));
    let machine = match options.block_size {
        BlockSize::B4K => Machine::Amd64,
        BlockSize::B16K => Machine::Arm64With16K,
    };
    let written = engine::begin(&path, mib, options).and_then(|mut new| {
        let skipped = engine::perform_all(new.volume(), ops)?;
        assert_eq!(skipped, 0, "{name}");
        Ok(new.finish()?)
    });
    drop(written.unwrap_or_else(|error| panic!("{name}: {error}")));
    let image = Image { machine, sector_bytes: options.sector_bytes, ..Image::f2fs(&path) };
    Ours { name: name.to_owned(), manifest: read(&path), image }
}

/// Fails unless Linux and the engine read the same in each volume.
fn compare(volumes: &[Ours]) {
    linux_recovery::agree(volumes).unwrap_or_else(|error| panic!("{error:#}"));
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn linux_reads_volumes_that_we_write() {
    let dir = scratch();
    let volumes: Vec<Ours> =
        FEATURES.iter().map(|features| write(dir.path(), features, BlockSize::B4K)).collect();
    compare(&volumes);
}

#[test]
fn linux_reads_our_blocks_of_16k() {
    if !initramfs::can_build(Machine::Arm64With16K) {
        return;
    }
    let dir = scratch();
    let volumes: Vec<Ours> =
        FEATURES.iter().map(|features| write(dir.path(), features, BlockSize::B16K)).collect();
    compare(&volumes);
}

#[test]
fn linux_reads_volumes_whose_properties_have_changed() {
    let dir = scratch();
    let sets = ["", "extra_attr,inode_checksum", EVERYTHING];
    let mut volumes: Vec<Ours> =
        sets.iter().map(|features| write(dir.path(), features, BlockSize::B4K)).collect();
    let lists =
        ["encrypt,verity,casefold,sb_checksum", "^inode_checksum,compression,project_quota", "^sb_checksum"];
    for (ours, list) in volumes.iter_mut().zip(lists) {
        let changes = Changes {
            uuid: Some([0xC3; 16]),
            features: FeatureChanges::parse(list).expect("known features"),
            quotas: Some(vec![QuotaKind::User, QuotaKind::Group]),
            ..Changes::default()
        };
        let how = OpenOptions { write: true, direct: false };
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&ours.image.path, how).expect("it opens"));
        let mut open = || Engine::open(device.clone(), Options::new(Time::default));
        tune(&mut open, &changes).unwrap_or_else(|error| panic!("{}: {error}", ours.name));
        drop(device);
        // The counts of the volume differ by its quota files.
        let tuned = read(&ours.image.path);
        assert!(tuned.entries == ours.manifest.entries, "{}: the files differ", ours.name);
        ours.manifest = tuned;
    }
    compare(&volumes);
}

#[test]
fn we_read_changes_of_linux_on_our_volumes() {
    let dir = scratch();
    let sets = ["", "extra_attr", EVERYTHING];
    let sizes = [(BlockSize::B4K, Machine::Amd64), (BlockSize::B16K, Machine::Arm64With16K)];
    for (block_size, _) in sizes.into_iter().filter(|(_, machine)| initramfs::can_build(*machine)) {
        let mut volumes: Vec<Ours> =
            sets.iter().map(|features| write(dir.path(), features, block_size)).collect();
        let disks: Vec<Disk> = volumes.iter().map(|ours| Disk::writable(&ours.image.path)).collect();
        let mut vm = Vm::boot(volumes[0].image.machine, &disks).expect("the machine boots");
        for n in 0..volumes.len() {
            let mut stage = golden::stage::Stage::new(&mut vm, n, PathBuf::new());
            stage.mount("").expect("Linux mounts our volume");
            let at = stage.at().with_block(block_size.bytes() as u64);
            let more = [vec![at.mkdir("linux")], tree::contents(&at.below("linux"))].concat();
            stage.run(more).expect("Linux writes");
            let changes = [
                at.unlink("little/blocks"),
                at.truncate("contents/direct", 5000),
                at.prose("contents/size-100", 20_000),
                at.user("attributes/x-many", "user.more", "more"),
                at.rename("names/d-hashed", "linux/moved"),
                at.text("crowd/crowd/new", "new"),
            ];
            stage.run(changes).expect("Linux changes our files");
            stage.unmount().expect("Linux unmounts");
        }
        drop(vm);
        for ours in &mut volumes {
            ours.manifest = read(&ours.image.path);
        }
        compare(&volumes);
    }
}

/// Compression settings, in turn: each algorithm, small and large clusters, with and without checksums.
fn compressions() -> [Compression; 6] {
    let of = |algorithm, log_cluster_blocks, checksum, level| Compression {
        algorithm,
        log_cluster_blocks,
        checksum,
        level,
    };
    [
        of(Algorithm::Lzo, 2, false, 0),
        of(Algorithm::LzoRle, 3, true, 0),
        of(Algorithm::Lz4, 2, true, 0),
        of(Algorithm::Lz4, 8, false, 0),
        of(Algorithm::Zstd, 4, true, 6),
        of(Algorithm::Zstd, 2, false, 0),
    ]
}

/// Makes volumes with compressed files.
fn write_compressed(dir: &Path, block_size: BlockSize) -> Vec<Ours> {
    let machine = match block_size {
        BlockSize::B4K => Machine::Amd64,
        BlockSize::B16K => Machine::Arm64With16K,
    };
    let features = mkfs::parse_features("extra_attr,compression,inode_checksum").expect("known features");
    let options = mkfs::Options { features, block_size, ..mkfs::Options::new([0x5A; 16]) };
    let mut volumes = Vec::new();
    for compression in compressions() {
        let name = format!("{block_size:?} {compression:?}");
        let path = dir.join(format!("{block_size:?}{}.img", volumes.len()));
        let at = At::root().with_block(block_size.bytes() as u64);
        let c = at.below("c");
        let ops = [
            tree::compressed(&at),
            vec![
                c.write("mixed", 8 * at.block() + 99, Content::Prose { seed: 5, length: 9 * at.block() }),
                c.truncate("cluster", 5 * at.block() + 1),
                c.truncate("odd", 90 * at.block()),
                c.allocate("dir/heir", Allocate::Punch, 3 * at.block() + 5, 9 * at.block()),
                c.write("dir/new", 100, Content::Prose { seed: 6, length: 500 * at.block() }),
                c.unlink("zeroes"),
            ],
        ];
        let mib = if block_size == BlockSize::B4K { 128 } else { 512 };
        let written = engine::begin_compressed(&path, mib, &options, compression).and_then(|mut new| {
            let skipped = engine::perform_all(new.volume(), &ops.concat())?;
            assert_eq!(skipped, 0, "{name}");
            Ok(new.finish()?)
        });
        drop(written.unwrap_or_else(|error| panic!("{name}: {error}")));
        let image = Image { machine, ..Image::f2fs(&path) };
        volumes.push(Ours { name, manifest: read(&path), image });
    }
    for ours in &volumes {
        let saved: u64 = ours.manifest.entries.iter().filter_map(|entry| entry.compressed_blocks).sum();
        assert!(saved > 100, "{}: {saved} blocks", ours.name);
    }
    volumes
}

#[test]
fn linux_reads_and_changes_files_that_we_compress() {
    let dir = scratch();
    let sizes = [(BlockSize::B4K, Machine::Amd64), (BlockSize::B16K, Machine::Arm64With16K)];
    for (block_size, machine) in sizes.into_iter().filter(|(_, machine)| initramfs::can_build(*machine)) {
        let mut volumes = write_compressed(dir.path(), block_size);
        compare(&volumes);
        let disks: Vec<Disk> = volumes.iter().map(|ours| Disk::writable(&ours.image.path)).collect();
        let mut vm = Vm::boot(machine, &disks).expect("the machine boots");
        for (n, ours) in volumes.iter().enumerate() {
            let mut stage = golden::stage::Stage::new(&mut vm, n, PathBuf::new());
            stage.mount("compress_algorithm=lz4").expect("Linux mounts our volume");
            let at = stage.at().with_block(block_size.bytes() as u64);
            let c = at.below("c");
            let changes = [
                c.write("mixed", 20 * at.block() + 5, Content::Noise { seed: 7, length: 9 * at.block() }),
                c.write("dir/new", 33 * at.block() + 5, Content::Prose { seed: 8, length: 64 * at.block() }),
                c.truncate("overwritten", 13 * at.block() + 1),
                c.prose("far", 400 * at.block()),
                c.unlink("holes"),
            ];
            stage.run(changes).expect("Linux changes files that we compressed");
            let saves = |name: &str| {
                let entries = &ours.manifest.entries;
                let entry = entries.iter().find(|entry| entry.path.0 == format!("c/{name}").into_bytes());
                entry.is_some_and(|entry| entry.compressed_blocks > Some(0))
            };
            // Some kernels refuse it if no block is saved.
            if saves("reserved") {
                let turned =
                    [Op::Reserve { path: c.path("released") }, Op::Release { path: c.path("reserved") }];
                stage.run(turned).expect("Linux reserves space that we released");
            }
            stage.unmount().expect("Linux unmounts");
        }
        drop(vm);
        for ours in &mut volumes {
            ours.manifest = read(&ours.image.path);
        }
        compare(&volumes);
    }
}

#[test]
fn linux_reads_our_changes_to_files_that_it_compressed() {
    let dir = scratch();
    let mut volumes = Vec::new();
    for name in ["lzo", "lzo-rle", "lz4", "lz4hc", "zstd"].map(|name| format!("compress-{name}")) {
        let (_, files) = golden::unpack(&name, dir.path()).expect("a golden image");
        let mut volume = engine::open(&files[0]).expect("the volume opens");
        let at = At::root();
        let c = at.below("c");
        let ops = [
            c.write("mixed", 20 * at.block() + 5, Content::Prose { seed: 7, length: 9 * at.block() }),
            c.truncate("overwritten", 13 * at.block() + 1),
            c.write("odd", 3 * at.block(), Content::Noise { seed: 8, length: 20 * at.block() }),
            c.prose("far", 400 * at.block()),
            c.prose("dir/ours", 99 * at.block() + 9),
            Op::Reserve { path: c.path("released") },
            Op::Release { path: c.path("reserved") },
            c.unlink("holes"),
        ];
        let skipped =
            engine::perform_all(&mut volume, &ops).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(skipped, 0);
        volume.unmount().unwrap_or_else(|error| panic!("{name}: {error}"));
        drop(volume);
        volumes.push(Ours { name, manifest: read(&files[0]), image: Image::f2fs(&files[0]) });
    }
    compare(&volumes);
}

#[test]
fn linux_reads_our_geometries() {
    let dir = scratch();
    let plain = || mkfs::Options::new([0x5A; 16]);
    let smallest = Plan::smallest_bytes(&plain()).expect("a size").div_ceil(1 << 20);
    let features = |names| mkfs::parse_features(names).expect("known features");
    let cases: [(&str, u64, mkfs::Options); 8] = [
        ("smallest", smallest, plain()),
        ("sections", 1024, mkfs::Options { segments_per_section: 4, sections_per_zone: 2, ..plain() }),
        (
            "half overprovisioned",
            256,
            mkfs::Options { overprovision: Overprovision::Percent(50.0), ..plain() },
        ),
        ("large NAT bitmap", 256, mkfs::Options { large_nat_bitmap: true, ..plain() }),
        ("64 GiB, large NAT bitmap", 64 << 10, mkfs::Options { large_nat_bitmap: true, ..plain() }),
        ("4 TiB, bitmaps in payload blocks", 4 << 20, plain()),
        ("sectors of 4096", 256, mkfs::Options { sector_bytes: 4096, ..plain() }),
        ("read-only", 256, mkfs::Options { features: features("ro"), ..plain() }),
    ];
    let ops = tree::little(&At::root());
    let volumes: Vec<Ours> =
        cases.iter().map(|(name, mib, options)| write_sized(dir.path(), name, *mib, options, &ops)).collect();
    compare(&volumes);
}

#[test]
fn linux_reads_our_volume_on_two_devices() {
    let dir = scratch();
    let paths = ["first.img", "second.img"].map(|name| dir.path().join(name));
    let files = [(&*paths[0], "/first.img", 128), (&*paths[1], "/second.img", 200)];
    let mut new = engine::begin_on(&files, &mkfs::Options::new([0x5A; 16])).expect("a volume");
    engine::perform_all(new.volume(), &trees(BlockSize::B4K)).expect("supported by us");
    // More than the first device holds.
    let content = guest::Content::Noise { seed: 1, length: 150 << 20 };
    let large = Op::Write { path: "/large".into(), offset: 0, content };
    engine::perform_all(new.volume(), &[large]).expect("room on the second device");
    let ours = manifest::manifest_of(&new.finish().expect("both devices take it"));
    let image = Image { more: vec![paths[1].clone()], ..Image::f2fs(&paths[0]) };
    let seen = Judge::manifests(&[image]).expect("Linux mounts it").remove(0);
    assert_eq!(differences(&seen, &ours, Scope::Volume, DIFFERENCES), Vec::<String>::new());
}

/// After power cuts that follow the engine's fsyncs, Linux recovers the same state.
#[test]
fn linux_recovers_our_fsyncs() {
    let dir = scratch();
    let mut volumes = Vec::new();
    for (name, sequence) in unclean::SEQUENCES {
        for features in ["", "extra_attr,inode_checksum,flexible_inline_xattr,inode_crtime"] {
            let at = At::root();
            let path = dir.path().join(format!("{name} {features}.img"));
            let options = mkfs::Options {
                features: mkfs::parse_features(features).expect("known features"),
                ..mkfs::Options::new([0x5A; 16])
            };
            let synced = engine::begin(&path, 128, &options).and_then(|new| {
                let mut volume = new.finish()?;
                engine::perform_all(&mut volume, &unclean::old(&at))?;
                engine::perform_all(&mut volume, &sequence(&at))?;
                Ok(()) // dropped without an unmount
            });
            synced.unwrap_or_else(|error| panic!("{name}: {error}"));
            let image = Image { read_only: false, ..Image::f2fs(&path) };
            volumes.push(Ours { name: format!("{name} {features}"), manifest: read(&path), image });
        }
    }
    compare(&volumes);
}

/// After power cuts anywhere in sequences of all operations, Linux recovers the same state.
#[test]
fn linux_recovers_the_same_state_as_we_do_after_power_cuts() {
    let names = ["fsyncs in a row", "fsyncs, reordered and torn", "quota", "casefold"];
    let cases: Vec<Case> = names.iter().map(|name| Case::named(name).expect("a case")).collect();
    let volumes = linux_recovery::recover(&cases, SEED, CUTS).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{volumes} power cuts");
}

#[test]
fn linux_reads_our_changes_on_its_own_volumes() {
    let dir = scratch();
    let mut volumes = Vec::new();
    for name in
        ["base", "extra-attr", "no-inline", "flexible-xattr", "fragmented", "large-nat", "sections", "tools"]
    {
        let (_, files) = golden::unpack(name, dir.path()).expect("a golden image");
        let mut volume = engine::open(&files[0]).expect("the volume opens");
        let at = At::root();
        let mut ops = vec![at.mkdir("ours")];
        ops.extend(tree::little(&at.below("ours")));
        ops.extend(tree::attributes(&at.below("ours")));
        ops.extend([at.rename("ours/blocks", "renamed"), at.unlink("ours/block")]);
        engine::perform_all(&mut volume, &ops).unwrap_or_else(|error| panic!("{name}: {error}"));
        volume.unmount().unwrap_or_else(|error| panic!("{name}: {error}"));
        drop(volume);
        let image = Image::f2fs(&files[0]);
        volumes.push(Ours { name: name.into(), manifest: read(&files[0]), image });
    }
    compare(&volumes);
}

/// Number of EDQUOT and EXDEV on the judge's machine.
const OVER_QUOTA: i32 = 122;
const OTHER_PROJECT: i32 = 18;

#[test]
fn linux_sees_our_projects_and_enforces_our_limits() {
    let dir = scratch();
    let at = At::root();
    let options = mkfs::Options {
        features: mkfs::parse_features("extra_attr,project_quota,quota").expect("known features"),
        ..mkfs::Options::new([0x5A; 16])
    };
    let ops = [
        at.mkdir("project"),
        Op::Project { path: at.path("project"), id: 42, inherit: true },
        at.prose("project/heir", 10_000),
        at.text("other", "of a project with a large number"),
        at.project("other", 4_000_000_000),
        at.text("user", "1000's"),
        at.chown("user", 1000, 0),
        at.text("more", "soon 1000's"),
        at.text("too many", "never 1000's"),
        at.text("group", "500's"),
        at.chown("group", 0, 500),
    ];
    let ours = write_sized(dir.path(), "limits", 128, &options, &ops);
    let path = ours.image.path.clone();
    let project =
        |name: &[u8]| ours.manifest.entries.iter().find(|it| it.path.0 == name).map(|it| it.project);
    assert_eq!((project(b"project/heir"), project(b"other")), (Some(42), Some(4_000_000_000)));
    let limits = limits();
    let mut volume = engine::open(&path).expect("it opens");
    for (kind, id, limit) in limits {
        volume.begin(Caller::ADMIN).set_quota_limits(kind, id, limit).expect("limits can be set");
    }
    volume.unmount().expect("it closes");
    drop(volume);
    compare(&[ours]);

    write_up_to_limits_on_linux(&path);
    model::fsck::fsck_image(&path).unwrap();
    let volume = engine::open_read_only(&path).expect("it opens");
    for (kind, id, limit) in limits {
        let now = volume.quota_of(kind, id).expect("the quota is there");
        let used_kib = now.space.get().div_ceil(1024);
        assert_eq!(now.block_hard_limit.get(), limit.space_hard_kib, "{kind:?}");
        assert!(
            (limit.space_hard_kib / 2..=limit.space_hard_kib).contains(&used_kib),
            "{kind:?}: {used_kib}"
        );
    }
}

/// Limits of a user, a group and a project.
fn limits() -> [(QuotaKind, u32, QuotaLimits); 3] {
    let space = |space_hard_kib| QuotaLimits { space_hard_kib, ..QuotaLimits::default() };
    [
        (QuotaKind::User, 1000, QuotaLimits { inodes_hard: 2, ..space(1024) }),
        (QuotaKind::Group, 500, space(256)),
        (QuotaKind::Project, 42, space(4096)),
    ]
}

/// Linux changes the volume within its limits, and refuses changes beyond them.
fn write_up_to_limits_on_linux(path: &Path) {
    let mut vm = Vm::boot(Machine::Amd64, &[Disk::writable(path)]).expect("the machine boots");
    let mut stage = golden::stage::Stage::new(&mut vm, 0, PathBuf::new());
    // Without these options Linux counts usage but refuses no write.
    stage.mount("usrquota,grpquota,prjquota").expect("Linux mounts it");
    let at = stage.at();
    let allowed = [
        Op::KeepToLimits,
        at.noise("user", 900 << 10),
        at.chown("more", 1000, 0),
        at.noise("group", 200 << 10),
    ];
    stage.run(allowed).expect("that is within the limits");
    let space = vm.run(Op::Space { dir: at.path("project") }).expect("Linux answers").answer;
    let Some(Answer::Space { total_bytes, .. }) = space else { panic!("{space:?}") };
    assert_eq!(total_bytes, 4 << 20, "the room of a project is its limit");
    for (op, errno) in [
        (at.noise("user", 2 << 20), OVER_QUOTA),
        (at.chown("too many", 1000, 0), OVER_QUOTA),
        (at.noise("group", 400 << 10), OVER_QUOTA),
        (at.noise("project/heir", 8 << 20), OVER_QUOTA),
        (at.rename("other", "project/other"), OTHER_PROJECT),
    ] {
        let refused = vm.attempt(op.clone()).expect("the guest answers").err().map(|refusal| refusal.errno);
        assert_eq!(refused, Some(errno), "{op:?}");
    }
    golden::stage::Stage::new(&mut vm, 0, PathBuf::new()).unmount().expect("Linux unmounts");
}
