//! Changes of properties: all files are as before, and the volume is clean for our checker and for fsck.f2fs.

mod support;

use std::{mem::offset_of, sync::Arc};

use block::{
    Device, Fault, Faulty, MemoryDevice, Overlay, Recording, Request, Survivors, Verb, power_cut, replay,
};
use f2fs::{
    Error, Result,
    engine::{Caller, Engine, FinalSymlink, NewNode, Options, QuotaLimits, SetAttr},
    format::{
        inode::flag,
        quota::QuotaKind,
        superblock::{Features, raw},
    },
    tune::{Changes, ExtensionChange, FeatureChanges, Plan, tune},
    units::Ino,
};
use guest::Entry;
use model::{Setup, fsck, manifest::manifest_of, setup::copy};
use support::{
    aging::{FILE, ROOT, age, assert_good, entries, options},
    errors, lines, report,
};

const UUID: [u8; 16] = [0xA7; 16];

fn tune_to(device: &Arc<dyn Device>, setup: &Setup, changes: &Changes) -> Result<Plan> {
    tune(&mut || Engine::open(device.clone(), options(setup)), changes)
}

fn features(list: &str) -> Changes {
    Changes { features: FeatureChanges::parse(list).unwrap(), ..Changes::default() }
}

fn quotas(kinds: &[QuotaKind]) -> Changes {
    Changes { quotas: Some(kinds.to_vec()), ..Changes::default() }
}

/// A small aged volume with files of several users.
fn volume(name: &str) -> (Setup, Arc<MemoryDevice>) {
    let setup = Setup::named(name).unwrap();
    let device = Arc::new(setup.make().unwrap());
    age(device.clone(), options(&setup), 20, 3);
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    for (uid, name) in [(1000, b"first"), (1001, b"other")] {
        let new = NewNode { uid, gid: 2 * uid, ..NewNode::new(FILE) };
        let ino = volume.begin(Caller::ADMIN).create(ROOT, name, &new).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[uid as u8; 20_000]).unwrap();
    }
    volume.unmount().unwrap();
    (setup, device)
}

fn open(device: &Arc<MemoryDevice>) -> Engine {
    Engine::open(device.clone(), Options::read_only()).unwrap()
}

/// Tunes a volume and fails unless it is good and the same call finds nothing more to do.
fn tuned(setup: &Setup, device: &Arc<MemoryDevice>, changes: &Changes) -> Plan {
    let files = entries(device);
    let plan = tune_to(&(device.clone() as Arc<dyn Device>), setup, changes).unwrap();
    assert_good(device, &files, &format!("{}: {:?}", setup.name, plan.changes));
    plan
}

fn refusal(device: &Arc<MemoryDevice>, changes: &Changes) -> String {
    match Plan::new(&open(device), changes) {
        Err(error @ (Error::Invalid(_) | Error::Unsupported(_))) => error.to_string(),
        other => panic!("{:?}", other.map(|plan| plan.changes)),
    }
}

#[test]
fn the_uuid_features_and_extensions_of_a_volume_change() {
    let (setup, device) = volume("features");
    let mut changes = features("verity,casefold,encrypt,lost_found,^sb_checksum,^inode_crtime,compression");
    changes.uuid = Some(UUID);
    changes.cold = vec![ExtensionChange::Remove("gz".into()), ExtensionChange::Add("log".into())];
    changes.hot = vec![ExtensionChange::Add("sqlite".into())];
    // lost+found is a new entry of the root directory, so the files differ by it.
    let plan = tune_to(&(device.clone() as Arc<dyn Device>), &setup, &changes).unwrap();
    let changed: Vec<&str> = plan.changes.iter().map(|change| change.what).collect();
    assert_eq!(changed, ["uuid", "features", "cold_extensions", "hot_extensions"]);
    assert_good(&device, &entries(&device), "tuned");
    let volume = open(&device);
    let sb = volume.superblock();
    assert_eq!((sb.uuid, sb.encoding), (UUID, 1));
    assert!(sb.features.has(Features::VERITY) && sb.features.has(Features::INODE_CHECKSUM));
    assert!(!sb.features.has(Features::SB_CHECKSUM) && !sb.features.has(Features::INODE_CRTIME));
    assert!(sb.cold_extensions.contains(&"log".into()) && !sb.cold_extensions.contains(&"gz".into()));
    assert!(sb.hot_extensions.contains(&"sqlite".into()));
    assert!(volume.lookup(ROOT, b"lost+found").is_ok());
    drop(volume);
    assert!(tuned(&setup, &device, &features("sb_checksum,^encrypt")).changes[0].new.contains("sb_checksum"));
    assert!(tuned(&setup, &device, &features("sb_checksum")).changes.is_empty());
}

#[test]
fn checksums_of_inodes_are_right_after_they_are_switched_on_and_after_a_new_uuid() {
    let (setup, device) = volume("features");
    tuned(&setup, &device, &features("^inode_checksum"));
    // Without the feature, inodes are written that have no checksum.
    age(device.clone(), options(&setup), 30, 9);
    tuned(&setup, &device, &features("inode_checksum"));
    tuned(&setup, &device, &Changes { uuid: Some(UUID), ..Changes::default() });
}

#[test]
fn quotas_are_made_with_the_present_usage_and_removed_again() {
    for name in ["base", "features", "16K blocks"] {
        let (setup, device) = volume(name);
        let blocks = open(&device).counters().valid_blocks;
        let kinds = [QuotaKind::User, QuotaKind::Group];
        tuned(&setup, &device, &quotas(&kinds));
        let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
        let used = volume.quota_of(QuotaKind::User, 1000).unwrap();
        assert!(used.inodes.get() == 1 && used.space.get() >= 20_000, "{used:?}");
        assert_eq!(volume.quota_of(QuotaKind::Group, 2002).unwrap().inodes.get(), 1);
        let limits = QuotaLimits { inodes_hard: 77, ..QuotaLimits::default() };
        volume.begin(Caller::ADMIN).set_quota_limits(QuotaKind::User, 1000, limits).unwrap();
        volume.unmount().unwrap();
        drop(volume);
        // One kind less: the other one keeps its limits.
        tuned(&setup, &device, &quotas(&kinds[..1]));
        let volume = open(&device);
        assert_eq!(volume.quota_of(QuotaKind::User, 1000).unwrap().inode_hard_limit.get(), 77);
        assert_eq!(volume.quota_ino(QuotaKind::Group), None);
        drop(volume);
        tuned(&setup, &device, &quotas(&[]));
        let volume = open(&device);
        assert!(!volume.superblock().features.has(Features::QUOTA));
        assert_eq!(
            (volume.superblock().quota_inos.map(|ino| ino.0), volume.counters().valid_blocks),
            ([0; 3], blocks)
        );
    }
}

/// Changes one byte of the inode of a file.
fn damage_inode(device: &Arc<MemoryDevice>, ino: Ino) {
    let volume = open(device);
    let addr = volume.nat_entry(ino.into()).unwrap().addr;
    let offset = u64::from(addr.0) << volume.geometry().block_size.log();
    drop(volume);
    let mut block = vec![0; 4096];
    device.read(offset, &mut block).unwrap();
    block[100] ^= 0x55;
    device.write(offset, &block).unwrap();
}

#[test]
fn a_damaged_quota_file_stops_only_changes_of_quotas() {
    let (setup, device) = volume("features");
    tuned(&setup, &device, &quotas(&[QuotaKind::User, QuotaKind::Group]));
    let ino = open(&device).quota_ino(QuotaKind::Group).unwrap();
    damage_inode(&device, ino);
    let device_of_all: Arc<dyn Device> = device.clone();
    let refused = tune_to(&device_of_all, &setup, &quotas(&[QuotaKind::User])).unwrap_err().to_string();
    let wanted = format!("the group quota file, inode {ino}, is damaged");
    assert!(refused.contains(&wanted), "{refused}");
    // The checksums of all inodes depend on the UUID.
    let changes = Changes { uuid: Some(UUID), ..Changes::default() };
    let plan = tune_to(&device_of_all, &setup, &changes).unwrap();
    assert_eq!(plan.damaged_quotas, [(QuotaKind::Group, ino)]);
    let volume = open(&device);
    assert_eq!(volume.superblock().uuid, UUID);
    assert!(matches!(volume.inode(ino).map(drop), Err(Error::Corrupt { .. })), "it is still damaged");
    let mut content = [0; 1];
    volume.read(volume.resolve(b"/first", FinalSymlink::Follow).unwrap(), 0, &mut content).unwrap();
    assert_eq!(content, [1000_u32 as u8]);
}

#[test]
fn project_quota_counts_the_projects_of_the_present_files() {
    let (setup, device) = volume("quota");
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    let ino = volume.lookup(ROOT, b"first").unwrap();
    let set = SetAttr { project: Some(7), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(ino, &set).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let mut off = quotas(&[]);
    off.features = FeatureChanges::parse("^project_quota").unwrap();
    let files = entries(&device);
    // Without the feature nobody sees the projects, but they stay in the inodes.
    tune_to(&(device.clone() as Arc<dyn Device>), &setup, &off).unwrap();
    assert_good(&device, &entries(&device), "without projects");
    tune_to(&(device.clone() as Arc<dyn Device>), &setup, &quotas(&[QuotaKind::Project])).unwrap();
    assert_good(&device, &files, "with projects again");
    let volume = open(&device);
    assert!(volume.superblock().features.has(Features::PROJECT_QUOTA));
    assert_eq!(volume.quota_of(QuotaKind::Project, 7).unwrap().inodes.get(), 1);
}

#[test]
fn what_the_layout_or_the_present_files_do_not_permit_is_refused_with_the_reason() {
    let (_, device) = volume("base");
    for (list, part) in [
        ("extra_attr", "layout of every inode"),
        ("ro", "only a new volume"),
        ("quota", "by the quotas"),
        ("inode_checksum", "needs feature extra_attr"),
    ] {
        let refused = refusal(&device, &features(list));
        assert!(refused.contains(part), "{list}: {refused}");
    }
    let absent = Changes { cold: vec![ExtensionChange::Remove("nope".into())], ..Changes::default() };
    assert!(refusal(&device, &absent).contains("not in the list"));
    let many = (0..40).map(|n| ExtensionChange::Add(format!("x{n}"))).collect();
    assert!(refusal(&device, &Changes { hot: many, ..Changes::default() }).contains("at most 64"));

    let (setup, device) = volume("casefold");
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"folded", &NewNode::new(0o040_755)).unwrap();
    let set = SetAttr { flags: Some(flag::CASEFOLD), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(dir, &set).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    assert!(refusal(&device, &features("^casefold")).contains("1 inodes fold case"));
    let (_, device) = self::volume("quota");
    assert!(refusal(&device, &features("^project_quota")).contains("quota of projects"));
}

#[test]
fn compression_is_not_switched_on_where_files_are_marked_without_it() {
    let (setup, device) = volume("compressed");
    let mut volume = Engine::open(device.clone(), options(&setup)).unwrap();
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"marked", &NewNode::new(0o100_644)).unwrap();
    let set = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(file, &set).unwrap();
    volume.unmount().unwrap();
    assert!(volume.superblock().features.has(Features::COMPRESSION));
    drop(volume);
    // `feature` of both superblocks.
    for copy in 0..2 {
        let offset = copy * 4096 + 1024 + 2180;
        let mut sector = [0; 512];
        let (start, at) = (offset / 512 * 512, (offset % 512) as usize);
        device.read(start, &mut sector).unwrap();
        let features = u32::from_le_bytes(sector[at..at + 4].try_into().unwrap());
        sector[at..at + 4].copy_from_slice(&(features & !Features::COMPRESSION.0).to_le_bytes());
        device.write(start, &sector).unwrap();
    }
    assert!(!open(&device).superblock().features.has(Features::COMPRESSION));
    let refused = refusal(&device, &features("compression"));
    assert!(refused.contains("files are marked as compressed without it"), "{refused}");
}

/// Findings that a cut may leave until the change is repeated: an unfinished checkpoint pack or superblock, superblocks
/// that differ, and quota files without their feature.
const AFTER_CUT: [&str; 6] = [
    "pack-invalid",
    "superblock-magic",
    "superblock-checksum",
    "superblocks-differ",
    "quota-feature",
    "inode-unreached",
];

/// A change whose requests are known.
struct Trial {
    setup: Setup,
    start: Arc<MemoryDevice>,
    trace: Vec<Request>,
    files: Vec<Entry>,
    changes: Changes,
}

impl Trial {
    fn record(name: &str, changes: Changes) -> Trial {
        let (setup, start) = volume(name);
        let recording = Arc::new(Recording::with_data(Overlay::new(start.clone())));
        tune_to(&(recording.clone() as Arc<dyn Device>), &setup, &changes).unwrap();
        let (trace, files) = (recording.trace(), entries(&start));
        Trial { setup, start, trace, files, changes }
    }

    /// Examines the volume after a cut: it has all files and no damage, and is good after the change is repeated.
    fn examine(&self, device: Arc<Overlay<Arc<MemoryDevice>>>, what: &str) {
        let found = report(device.clone());
        let unexpected: Vec<&str> =
            errors(&found).into_iter().filter(|kind| !AFTER_CUT.contains(kind)).collect();
        assert!(unexpected.is_empty(), "{what}: {unexpected:?} {}", lines(&found));
        let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
        assert!(manifest_of(&volume).entries == self.files, "{what}: the files differ");
        drop(volume);
        tune_to(&(device.clone() as Arc<dyn Device>), &self.setup, &self.changes).unwrap();
        let found = report(device.clone());
        assert!(found.is_clean(), "{what}, repeated: {}", lines(&found));
        let again = Plan::new(&Engine::open(device, Options::read_only()).unwrap(), &self.changes).unwrap();
        assert!(again.changes.is_empty(), "{what}: {:?}", again.changes);
    }

    /// Cuts the power after each request, with nothing, everything, or torn parts of the unflushed writes. Returns the
    /// number of cuts.
    fn cut_everywhere(&self) -> u64 {
        let flushed = Arc::new(copy(&self.start).unwrap());
        let (mut last_flush, mut cuts) = (0, 0);
        for at in 0..=self.trace.len() {
            let so_far = &self.trace[last_flush..at];
            if so_far.last().is_some_and(|request| request.verb == Verb::Flush) {
                replay(so_far, &*flushed).unwrap();
                last_flush = at;
            }
            let pending = &self.trace[last_flush..at];
            // A read changes nothing, and without a pending write there is one state.
            if pending.last().is_some_and(|request| request.verb != Verb::Write) {
                continue;
            }
            let survivors = [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }];
            for survivors in survivors.into_iter().take(if pending.is_empty() { 1 } else { 3 }) {
                let device = Arc::new(Overlay::new(flushed.clone()));
                power_cut(pending, pending.len(), &survivors, &*device).unwrap();
                let what = format!("{}: cut {at} of {}, {survivors:?}", self.setup.name, self.trace.len());
                self.examine(device, &what);
                cuts += 1;
            }
        }
        cuts
    }

    /// Lets each write and each flush fail, one in each run. Returns the number of runs.
    fn fail_everywhere(&self) -> u64 {
        let mut runs = 0;
        for verb in [Verb::Write, Verb::Flush] {
            let count = self.trace.iter().filter(|request| request.verb == verb).count() as u64;
            for nth in 0..count {
                let overlay = Arc::new(Overlay::new(self.start.clone()));
                let device: Arc<dyn Device> =
                    Arc::new(Faulty::new(overlay.clone(), vec![Fault::ErrorAt { verb, nth }]));
                let outcome = tune_to(&device, &self.setup, &self.changes).map(|plan| plan.changes);
                self.examine(overlay, &format!("{}: {verb:?} {nth} failed, {outcome:?}", self.setup.name));
                runs += 1;
            }
        }
        runs
    }
}

#[test]
fn a_power_cut_or_a_failed_write_leaves_all_files_and_the_change_can_be_repeated() {
    let superblock =
        Changes { uuid: Some(UUID), hot: vec![ExtensionChange::Add("log".into())], ..features("verity") };
    let all = Changes { uuid: Some(UUID), ..quotas(&QuotaKind::ALL) };
    for (name, changes) in [
        ("base", superblock),
        // Torn between the checksum of the superblock and its other sectors.
        ("compressed", Changes { uuid: Some(UUID), ..features("sb_checksum") }),
        ("base", quotas(&[QuotaKind::User, QuotaKind::Group])),
        ("quota", quotas(&[QuotaKind::Group])),
        ("features", all),
    ] {
        let trial = Trial::record(name, changes);
        println!("{name}: {} cuts", trial.cut_everywhere());
        println!("{name}: {} failures", trial.fail_everywhere());
    }
}

/// fsck.f2fs reads the number of a quota file even without the feature.
#[test]
fn between_two_superblocks_fsck_f2fs_finds_at_most_a_quota_file_that_is_not_there() {
    for (name, changes) in [("base", quotas(&[QuotaKind::User])), ("quota", quotas(&[]))] {
        let trial = Trial::record(name, changes);
        let flushes = trial.trace.iter().enumerate().filter(|(_, request)| request.verb == Verb::Flush);
        for (at, _) in flushes {
            let device = copy(&trial.start).unwrap();
            replay(&trial.trace[..=at], &device).unwrap();
            let Err(found) = fsck::fsck_after_cut(&device) else { continue };
            let found = format!("{found:#}");
            let is_number =
                |line: &str| line.contains("sanity_check_nid") || line.contains("fsck_chk_quota_node");
            let mut asserted = found.lines().filter(|line| line.starts_with("[ASSERT]"));
            assert!(asserted.all(is_number), "{name}, after request {at}: {found}");
        }
    }
}

/// Changes both superblocks from a byte on.
fn put_superblocks(device: &MemoryDevice, at: u64, bytes: &[u8]) {
    for copy in [0, 4096] {
        device.write(copy + 1024 + at, bytes).unwrap();
    }
}

#[test]
fn extensions_that_are_not_utf_8_stay_and_their_lists_cannot_be_changed() {
    let (setup, device) = volume("base");
    let list = offset_of!(raw::Superblock, extension_list) as u64;
    put_superblocks(&device, list, &[0xFF, 0xFE, b'x', 0, 0, 0, 0, 0]);
    let changes = Changes { cold: vec![ExtensionChange::Add("log".into())], ..Changes::default() };
    assert!(refusal(&device, &changes).contains("not UTF-8"), "{}", refusal(&device, &changes));
    tuned(&setup, &device, &Changes { uuid: Some(UUID), ..Changes::default() });
    let mut stored = [0; 4];
    device.read(1024 + list, &mut stored).unwrap();
    assert_eq!(stored, [0xFF, 0xFE, b'x', 0]);
}

#[test]
fn a_file_that_is_no_quota_file_is_not_made_one_by_its_number_in_the_superblock() {
    let (setup, device) = volume("base");
    let ino = open(&device).lookup(ROOT, b"first").unwrap();
    let addr = open(&device).nat_entry(ino.into()).unwrap().addr;
    // It has lost its name.
    device.write((u64::from(addr.0) << 12) + 88, &[0; 4]).unwrap();
    put_superblocks(&device, offset_of!(raw::Superblock, qf_ino) as u64, &ino.0.to_le_bytes());
    let wanted = quotas(&[QuotaKind::User]);
    tune_to(&(device.clone() as Arc<dyn Device>), &setup, &wanted).unwrap();
    let volume = open(&device);
    assert_ne!(volume.superblock().quota_inos[0], ino);
    let mut content = [0; 20_000];
    assert_eq!(volume.read(ino, 0, &mut content).unwrap(), content.len());
    assert!(content == [1000u32 as u8; 20_000]);
}
