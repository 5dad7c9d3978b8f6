//! Random damage of 1 to 100 blocks on aged volumes of all kinds: a repair is refused, or the next check finds nothing,
//! and undo brings everything back. `REPAIR_SEEDS` sets the number of volumes, `REPAIR_FIRST` the first seed.
//!
//! With `REPAIR_BESIDE`, and if fsck.f2fs is installed, `fsck.f2fs -f -y` repairs a copy of each volume, and the files that
//! both keep are counted. `REPAIR_SHOW` prints the damage and the plans. `REPAIR_KEEP` names a directory for the repaired volumes of one
//! device, which `cargo xtask compare` has Linux read.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    fs::File,
    hash::Hasher,
    os::unix::{fs::FileExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use block::{Device, MemoryDevice, Rng};
use f2fs::units::Time;
use f2fs_check::repair::{Plan, Planned, Undo, plan};
use model::{Generator, Pair, Setup, setup};

mod support;

const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 0 };
/// Volumes that are damaged, unless `REPAIR_SEEDS` tells.
const SEEDS: u64 = 54;
/// Operations before the old copy of a volume, and after it.
const STEPS: usize = 700;
/// Unit of the damage in bytes.
const PAGE: usize = 4096;
/// Seconds that fsck.f2fs gets.
const PATIENCE: &str = "20";

/// A volume after random operations, and the same volume in the middle of them.
struct Aged {
    name: &'static str,
    device: MemoryDevice,
    old: MemoryDevice,
    files: Files,
    /// First byte of the main area.
    main: u64,
}

/// Files by size and hash of their content, with the number of each.
type Files = BTreeMap<(u64, u64), u64>;

fn aged(setup: &Setup) -> Aged {
    let device = Arc::new(setup.make().expect("a volume"));
    let mut pair = Pair::new(setup, device.clone()).expect("the volume opens");
    let mut generator = Generator::new(setup.mixed(11), setup.mix.clone());
    let mut run = |pair: &mut Pair| {
        for _ in 0..STEPS {
            let op = generator.next(&pair.model);
            pair.step(&op).unwrap_or_else(|error| panic!("{}: {op:?}: {error:#}", setup.name));
        }
        pair.step(&guest::Op::Sync).expect("a checkpoint");
    };
    run(&mut pair);
    let old = setup::copy(&device).unwrap();
    run(&mut pair);
    pair.subject.unmount().expect("the volume is unmounted");
    let device = setup::copy(&device).unwrap();
    let files = files_of(Arc::new(setup::copy(&device).unwrap())).expect("a sound volume");
    let size = device.geometry().size_bytes;
    let (superblock, _) = f2fs::engine::read_superblock(&device, size).expect("a superblock");
    let main = f2fs::engine::Geometry::of(&superblock).block(f2fs::units::SegNo(0), 0);
    let main = u64::from(main.0) << superblock.block_size.log();
    Aged { name: setup.name, device, old, files, main }
}

/// The files of a volume that can be read, or `None` if it cannot be opened.
fn files_of(device: Arc<dyn Device>) -> Option<Files> {
    let volume = f2fs::OpenOptions::new().open(device).ok()?;
    let mut files = Files::new();
    for entry in volume.walk("/").ok()?.flatten() {
        if !entry.metadata().is_file() || entry.metadata().len() == 0 {
            continue;
        }
        let Ok(content) = volume.read(entry.path()) else { continue };
        *files.entry((content.len() as u64, hash(&content))).or_default() += 1;
    }
    Some(files)
}

/// The hash of a content. Pages of zeroes are left out, because most of a sparse file is such pages.
fn hash(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (n, page) in content.chunks(PAGE).enumerate() {
        if *page != [0; PAGE][..page.len()] {
            hasher.write_usize(n);
            hasher.write(page);
        }
    }
    hasher.finish()
}

/// The pages of a device that are not all zeroes, by their offset in bytes.
fn pages_of(device: &MemoryDevice) -> Vec<(u64, Vec<u8>)> {
    let read = |at| {
        let mut page = vec![0; PAGE];
        device.read(at, &mut page).unwrap();
        (at, page)
    };
    device.allocated_pages().into_iter().map(read).filter(|(_, page)| **page != [0; PAGE]).collect()
}

/// Number and bytes of the files of `sound` that are among `found`.
fn kept(sound: &Files, found: Option<&Files>) -> (u64, u64) {
    let Some(found) = found else { return (0, 0) };
    let both = sound.iter().map(|(key, count)| (key, (*count).min(found.get(key).copied().unwrap_or(0))));
    both.fold((0, 0), |(files, bytes), ((size, _), count)| (files + count, bytes + count * size))
}

/// Damages random blocks: zeroed, one bit, swapped, stale, torn. Returns the volume, and the highest damaged byte.
fn damage(aged: &Aged, seed: u64) -> (MemoryDevice, u64) {
    let device = setup::copy(&aged.device).unwrap();
    let pages = device.allocated_pages();
    let tables = pages.partition_point(|at| *at < (8 << 20)).max(1);
    let mut rng = Rng::new(seed);
    let mut below = |end: usize| rng.below(end as u64) as usize;
    let most = [1, 3, 10, 100][below(4)];
    let read = |device: &MemoryDevice, at: u64| {
        let mut page = vec![0; PAGE];
        device.read(at, &mut page).unwrap();
        page
    };
    let mut last = 0;
    for _ in 0..1 + below(most) {
        let range = if below(2) == 0 { tables } else { pages.len() };
        let (at, other) = (pages[below(range)], pages[below(pages.len())]);
        let mut page = read(&device, at);
        let how = below(5);
        if number("REPAIR_SHOW").is_some() {
            const HOW: [&str; 5] = ["zeroed", "one bit", "swapped", "stale", "torn"];
            println!("page {}: {}, other page {}", at / PAGE as u64, HOW[how], other / PAGE as u64);
        }
        match how {
            0 => page.fill(0),
            1 => page[below(PAGE)] ^= 1 << below(8),
            2 => {
                let swapped = read(&device, other);
                device.write(other, &page).unwrap();
                last = last.max(other);
                page = swapped;
            }
            3 => page = read(&aged.old, at),
            _ => {
                let sector = below(8) * 512;
                page[sector..sector + 512].copy_from_slice(&read(&aged.old, other)[..512]);
            }
        }
        device.write(at, &page).unwrap();
        last = last.max(at);
    }
    (device, last)
}

/// Sums over the volumes of one kind.
#[derive(Default, Debug, Clone)]
struct Sums {
    volumes: u64,
    clean: u64,
    repaired: u64,
    refused: u64,
    no_volume: u64,
    /// Volumes with damage only before the main area that were repaired, and those of them that kept all files.
    tables: (u64, u64),
    files: u64,
    bytes: u64,
    ours: (u64, u64),
    theirs: (u64, u64),
    their_crashes: u64,
}

/// The results of a run.
#[derive(Default)]
struct Results {
    kinds: BTreeMap<&'static str, Sums>,
    /// Repaired volumes that fsck.f2fs judged, and its findings.
    judged: u64,
    told: Vec<String>,
    /// Volumes of which fsck.f2fs keeps more files, with the numbers.
    they_keep_more: Vec<String>,
    /// Volumes with damage only before the main area that did not keep all files.
    tables_lost: Vec<String>,
    /// Reasons of refusals, with the seeds.
    reasons: BTreeMap<String, Vec<u64>>,
}

impl Results {
    fn total(&self) -> Sums {
        let mut total = Sums::default();
        for sums in self.kinds.values() {
            total.volumes += sums.volumes;
            total.clean += sums.clean;
            total.repaired += sums.repaired;
            total.refused += sums.refused;
            total.no_volume += sums.no_volume;
            total.tables = add(total.tables, sums.tables);
            total.files += sums.files;
            total.bytes += sums.bytes;
            total.ours = add(total.ours, sums.ours);
            total.theirs = add(total.theirs, sums.theirs);
            total.their_crashes += sums.their_crashes;
        }
        total
    }

    /// Prints the sums as a table, and the seeds behind them.
    fn print(&self) {
        println!(
            "| kind | volumes | repaired | refused | not recognized | files | ours keeps | fsck.f2fs keeps | bytes | ours keeps | fsck.f2fs keeps | its crashes and hangs |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
        let all = self.total();
        for (name, sums) in self.kinds.iter().chain([(&"all", &all)]) {
            println!(
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                sums.volumes,
                sums.repaired + sums.clean,
                sums.refused,
                sums.no_volume,
                sums.files,
                sums.ours.0,
                sums.theirs.0,
                sums.bytes,
                sums.ours.1,
                sums.theirs.1,
                sums.their_crashes
            );
        }
        println!(
            "{} of {} volumes with damage only before the main area keep all files",
            all.tables.1, all.tables.0
        );
        println!("not all files: {:#?}\nrefused: {:#?}", self.tables_lost, self.reasons);
        println!("fsck.f2fs keeps more files of: {:#?}", self.they_keep_more);
        println!(
            "fsck.f2fs finds in {} of {} repaired volumes: {:#?}",
            self.told.len(),
            self.judged,
            self.told
        );
    }
}

fn add(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1 + other.1)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Repairs a copy with fsck.f2fs. Returns the files, and true if it crashed or did not end.
fn their_repair(aged: &Aged, damaged: &MemoryDevice) -> (Option<Files>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let paths = store(aged, damaged, dir.path());
    let status = Command::new("timeout")
        .args([PATIENCE, "fsck.f2fs", "-f", "-y"])
        .args(&paths)
        .current_dir(dir.path())
        .output()
        .expect("timeout of coreutils");
    // The codes of timeout(1): it stopped the program, or a signal did. 255 is an error that fsck.f2fs reports.
    let code = status.status.code();
    let crashed = status.status.signal().is_some() || code.is_some_and(|code| (124..192).contains(&code));
    let device = setup::load_parts(&paths).unwrap();
    (files_of(Arc::new(device)), crashed)
}

/// Writes a damaged volume into files, one for each of its devices, which the sound superblock tells.
fn store(aged: &Aged, damaged: &MemoryDevice, dir: &Path) -> Vec<PathBuf> {
    let whole = setup::copy(damaged).unwrap();
    let mut superblocks = [0; 2 * PAGE];
    aged.device.read(0, &mut superblocks).unwrap();
    whole.write(0, &superblocks).unwrap();
    let paths = setup::store_parts(&whole, dir).unwrap();
    damaged.read(0, &mut superblocks).unwrap();
    File::options().write(true).open(&paths[0]).unwrap().write_all_at(&superblocks, 0).unwrap();
    paths
}

#[test]
fn random_damage_is_repaired_or_refused_and_undo_brings_it_back() {
    let fsck = Fsck::of_this_run();
    if fsck == Fsck::Absent {
        println!("fsck.f2fs is missing: it does not judge the repaired volumes");
    }
    // fsck.f2fs 1.15 has no 16K blocks; its files are joined in other ways on two devices.
    let setups =
        Setup::all().into_iter().filter(|setup| fsck != Fsck::Repairs || !setup.name.starts_with("16K"));
    let setups: Vec<Setup> = setups.collect();
    let mut volumes: Vec<Option<Aged>> = setups.iter().map(|_| None).collect();
    let (first, seeds) = (number("REPAIR_FIRST").unwrap_or(0), number("REPAIR_SEEDS").unwrap_or(SEEDS));
    let mut results = Results::default();
    for seed in first..first + seeds {
        let at = (seed % setups.len() as u64) as usize;
        let aged = volumes[at].get_or_insert_with(|| aged(&setups[at]));
        try_seed(aged, seed, fsck, &mut results);
    }
    results.print();
    // docs/TESTING.md tells which of its rules the check lacks.
    let told = results.told.len() as u64;
    assert!(told * 10 <= results.judged, "fsck.f2fs finds in repaired volumes: {:#?}", results.told);
    let all = results.total();
    assert!(all.refused * 4 <= all.volumes, "{} of {} are refused", all.refused, all.volumes);
}

/// Part of fsck.f2fs in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fsck {
    /// It is not installed.
    Absent,
    /// It checks the volumes that we repaired.
    Checks,
    /// It also repairs the same damaged volumes, for a comparison.
    Repairs,
}

impl Fsck {
    fn of_this_run() -> Fsck {
        match Command::new("fsck.f2fs").arg("-V").output() {
            Err(_) => Fsck::Absent,
            Ok(_) if number("REPAIR_BESIDE").is_some() => Fsck::Repairs,
            Ok(_) => Fsck::Checks,
        }
    }
}

/// Damages a volume, repairs it, and adds the result.
fn try_seed(aged: &Aged, seed: u64, fsck: Fsck, results: &mut Results) {
    let (damaged, last) = damage(aged, seed);
    let damaged = Arc::new(damaged);
    let device: Arc<dyn Device> = damaged.clone();
    let theirs = (fsck == Fsck::Repairs).then(|| their_repair(aged, &damaged));
    let sums = results.kinds.entry(aged.name).or_default();
    let all = kept(&aged.files, Some(&aged.files));
    sums.volumes += 1;
    (sums.files, sums.bytes) = add((sums.files, sums.bytes), all);
    let mut is_repaired = false;
    if number("REPAIR_SHOW").is_some() {
        show(&device);
    }
    match plan(&device, NOW, &mut |_| {}) {
        Err(error) => {
            sums.no_volume += 1;
            results.reasons.entry(format!("not recognized: {error}")).or_default().push(seed);
        }
        Ok(Planned::Clean(_)) => sums.clean += 1,
        Ok(Planned::Refused(refusal)) => {
            sums.refused += 1;
            results.reasons.entry(refusal.reason).or_default().push(seed);
        }
        Ok(Planned::Repair(plan)) => {
            try_plan(aged, seed, &damaged, &plan);
            if fsck != Fsck::Absent {
                let told = model::fsck::fsck(&damaged).err();
                results.judged += 1;
                results.told.extend(told.map(|error| format!("{} seed {seed}: {error:#}", aged.name)));
            }
            keep(aged, seed, &damaged);
            sums.repaired += 1;
            is_repaired = true;
        }
    }
    let ours = kept(&aged.files, files_of(device).as_ref());
    sums.ours = add(sums.ours, ours);
    if is_repaired && last < aged.main {
        sums.tables = add(sums.tables, (1, u64::from(ours == all)));
        if ours != all {
            results.tables_lost.push(format!("{} seed {seed}: {} of {} files", aged.name, ours.0, all.0));
        }
    }
    if let Some((found, crashed)) = theirs {
        let theirs = kept(&aged.files, found.as_ref());
        sums.theirs = add(sums.theirs, theirs);
        sums.their_crashes += u64::from(crashed);
        if theirs.0 > ours.0 {
            results.they_keep_more.push(format!("{} seed {seed}: {} and {}", aged.name, ours.0, theirs.0));
        }
    }
}

/// Stores a repaired volume of one device, if that is wanted.
fn keep(aged: &Aged, seed: u64, repaired: &MemoryDevice) {
    let Some(dir) = std::env::var_os("REPAIR_KEEP") else { return };
    if aged.name != "two devices" {
        let path = Path::new(&dir).join(format!("{} {seed}.img", aged.name));
        setup::store(repaired, &path).expect("the volume is stored");
    }
}

/// Prints the plan of a repair.
fn show(device: &Arc<dyn Device>) {
    match plan(device, NOW, &mut |_| {}) {
        Ok(Planned::Repair(plan)) => {
            let findings = plan.report.findings().iter().chain(&plan.uncovered);
            findings.for_each(|finding| println!("{finding}: {}", finding.repair));
            println!("losses: {:#?}", plan.losses);
        }
        Ok(Planned::Refused(refusal)) => {
            println!("{}", refusal.reason);
            refusal.report.findings().iter().for_each(|finding| println!("{finding}: {}", finding.repair));
        }
        Ok(Planned::Clean(_)) => println!("clean"),
        Err(error) => println!("{error}"),
    }
}

/// Performs a repair: the next check finds nothing, and undo brings every byte back. The volume is repaired at the end.
fn try_plan(aged: &Aged, seed: u64, damaged: &Arc<MemoryDevice>, plan: &Plan) {
    let before = pages_of(damaged);
    let undo = Undo::of(plan.requests(), &**damaged);
    plan.apply(&**damaged).unwrap();
    let report = support::report(damaged.clone());
    assert!(report.is_clean(), "{} seed {seed}: {}", aged.name, support::lines(&report));
    let device: Arc<dyn Device> = damaged.clone();
    undo.apply(&device).unwrap();
    assert!(pages_of(damaged) == before, "{} seed {seed}: undo brings every byte back", aged.name);
    plan.apply(&**damaged).unwrap();
}
