//! Damage by field and role on aged volumes: one bit of an inode, a footer's field, an older version of a block, swapped
//! blocks, older journals, lost ends of a pack. A repair tells each loss, or is unclear, so that only a person applies it; the
//! next check and fsck.f2fs find nothing.
//!
//! `FIELDS_FIRST` is the first seed, `FIELDS_SEEDS` the number of them, `FIELDS_KIND` the only kind of damage, such as
//! `OldInode`. `FIELDS_SHOW` prints a line for each seed, `FIELDS_PLANS` the plans, too. Kinds and volumes follow from the seed.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use block::{Device, Rng};
use f2fs_check::{
    Certainty, Report,
    repair::{Plan, Planned, plan},
};

mod aged;
mod damage;
#[path = "../support/mod.rs"]
mod support;
mod tree;
#[path = "../support/volume.rs"]
mod volume;

use aged::{Aged, SETUP_COUNT};
use damage::{Done, Kind, Touched, damage};
use tree::{Tree, kept_anywhere, tree_of};
use volume::{Damaged, NOW};

/// Seeds of one run, unless `FIELDS_SEEDS` tells.
const SEEDS: u64 = 240;
/// Damages of one volume.
const DAMAGES: u64 = 10;
/// A share: at most one in so many seeds or files. docs/TESTING.md tells what is known behind each.
const SILENT_SHARE: u64 = 50;
const NO_EVIDENCE_SHARE: u64 = 25;
const FSCK_SHARE: u64 = 50;
const UNTOUCHED_SHARE: u64 = 1000;
const LOST_SHARE: u64 = 10;
/// Time that a repair may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The end of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The check finds nothing.
    Clean,
    /// A repair that is certain or likely.
    Safe,
    /// A repair that tells losses, or is unclear.
    Told,
    /// No repair.
    Refused,
}

/// Sums over the seeds of one kind.
#[derive(Default)]
struct Sums {
    seeds: u64,
    ends: [u64; 4],
    /// Trees that differ although nothing was found, and although the repair is not unclear.
    no_evidence: u64,
    silent: u64,
    /// Files before the damage, those that are under their path after a repair, and those under any path.
    files: u64,
    kept: u64,
    anywhere: u64,
    /// Files that the damage did not touch and that are not as before.
    collateral: u64,
    told_by_fsck: u64,
}

/// The results of a run.
#[derive(Default)]
struct Results {
    kinds: BTreeMap<String, Sums>,
    /// True if fsck.f2fs is installed.
    is_judged: bool,
    pending: u64,
    slowest: Duration,
    silent: Vec<String>,
    no_evidence: Vec<String>,
    collateral: Vec<String>,
    fsck: Vec<String>,
}

impl Results {
    fn total(&self, of: impl Fn(&Sums) -> u64) -> u64 {
        self.kinds.values().map(of).sum()
    }

    /// Fails if more is wrong than is known.
    fn judge(&self) {
        let seeds = self.total(|sums| sums.seeds);
        for (what, count, share) in [
            ("silent", self.total(|sums| sums.silent), SILENT_SHARE),
            ("no evidence", self.total(|sums| sums.no_evidence), NO_EVIDENCE_SHARE),
            ("fsck.f2fs", self.total(|sums| sums.told_by_fsck), FSCK_SHARE),
        ] {
            assert!(count <= seeds.div_ceil(share), "{what}: {count} of {seeds}");
        }
        let files = self.total(|sums| sums.files);
        for (what, count, share) in [
            ("not touched and changed", self.total(|sums| sums.collateral), UNTOUCHED_SHARE),
            ("lost", files - self.total(|sums| sums.anywhere), LOST_SHARE),
        ] {
            assert!(count <= files.div_ceil(share), "{what}: {count} of {files} files");
        }
    }

    fn print(&self) {
        println!(
            "| damage | seeds | clean | safe | told | refused | files | under their path | under any path | not touched and changed | no evidence | silent | fsck.f2fs |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        for (name, sums) in &self.kinds {
            let [clean, safe, told, refused] = sums.ends;
            println!(
                "| {name} | {} | {clean} | {safe} | {told} | {refused} | {} | {} | {} | {} | {} | {} | {} |",
                sums.seeds,
                sums.files,
                sums.kept,
                sums.anywhere,
                sums.collateral,
                sums.no_evidence,
                sums.silent,
                sums.told_by_fsck
            );
        }
        println!(
            "{} volumes with fsyncs after the checkpoint; slowest repair {:?}",
            self.pending, self.slowest
        );
        println!("silent: {:#?}\nno evidence: {:#?}", self.silent, self.no_evidence);
        println!("not touched and changed: {:#?}\nfsck.f2fs: {:#?}", self.collateral, self.fsck);
    }
}

fn has_fsck() -> bool {
    let is_there = model::setup::system("fsck.f2fs").arg("-V").output().is_ok();
    if !is_there {
        println!("fsck.f2fs is missing: it does not judge the repaired volumes");
    }
    is_there
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One damaged volume.
struct Trial<'a> {
    aged: &'a Aged,
    name: String,
    done: Vec<Done>,
}

impl Trial<'_> {
    /// The paths that are not as before, and those of them that the damage did not touch.
    fn changed(&self, found: &Tree) -> (Vec<String>, usize) {
        let differs = |path: &&Vec<u8>| {
            found.get(*path).map(|named| named.content) != Some(self.aged.tree[*path].content)
        };
        let changed: Vec<&Vec<u8>> = self.aged.tree.keys().filter(differs).collect();
        let is_touched = |path: &&&Vec<u8>| {
            let inodes = &self.aged.tree[**path].inodes;
            self.done.iter().any(|done| match &done.touched {
                Touched::All => true,
                Touched::Inodes(touched) => inodes.iter().any(|ino| touched.contains(ino)),
            })
        };
        let touched = changed.iter().filter(is_touched).count();
        let shown = changed.iter().map(|path| String::from_utf8_lossy(path).chars().take(40).collect());
        (shown.collect(), changed.len() - touched)
    }

    /// Tells of a changed tree.
    fn line(&self, changed: &[String]) -> String {
        let what: Vec<&str> = self.done.iter().map(|done| &*done.what).collect();
        let first: Vec<&String> = changed.iter().take(3).collect();
        format!("{}: {}: {} changed, {first:?}", self.name, what.join("; "), changed.len())
    }
}

/// Damages a volume as the seed tells, and repairs it.
fn try_seed(aged: &Aged, seed: u64, only: Option<Kind>, results: &mut Results) {
    let mut rng = Rng::new(seed ^ 0xF1E1D);
    let number = (seed / SETUP_COUNT + seed % SETUP_COUNT * 3) as usize;
    let kind = only.unwrap_or(Kind::ALL[number % Kind::ALL.len()]);
    let d = Damaged::copy_of(&aged.device).at_last_checkpoint();
    let mut kinds = vec![kind];
    if rng.chance(0.25) {
        kinds.push(only.unwrap_or(Kind::ALL[rng.below(Kind::ALL.len() as u64) as usize]));
    }
    let done: Vec<Done> = kinds.iter().filter_map(|kind| damage(aged, &d, *kind, &mut rng)).collect();
    if done.is_empty() {
        return;
    }
    let trial = Trial { aged, name: format!("{} seed {seed}", aged.name), done };
    let sums = results.kinds.entry(format!("{kind:?}")).or_default();
    let device: Arc<dyn Device> = d.device.clone();
    let start = Instant::now();
    let planned = plan(&device, NOW, &mut |_| {});
    results.slowest = results.slowest.max(start.elapsed());
    assert!(start.elapsed() < PATIENCE, "{}: {:?}", trial.name, start.elapsed());
    let (end, report, losses) = match &planned {
        Ok(Planned::Clean(report)) => (End::Clean, Some(report), &[][..]),
        Ok(Planned::Repair(plan)) if plan.certainty() != Certainty::Unclear => {
            (End::Safe, Some(&plan.report), &plan.losses[..])
        }
        Ok(Planned::Repair(plan)) => (End::Told, Some(&plan.report), &plan.losses[..]),
        Ok(Planned::Refused(refusal)) => (End::Refused, Some(&refusal.report), &[][..]),
        Err(_) => (End::Refused, None, &[][..]),
    };
    sums.seeds += 1;
    sums.ends[end as usize] += 1;
    results.pending += u64::from(aged.has_pending);
    sums.files += aged.tree.len() as u64;
    let mut judgement = "";
    if let Ok(Planned::Repair(plan)) = &planned {
        apply(&trial, &d, plan);
        if let Some(error) = results.is_judged.then(|| model::fsck::fsck(&d.device).err()).flatten() {
            sums.told_by_fsck += 1;
            results.fsck.push(format!("{}: {error:#}", trial.line(&[])));
            judgement = " (fsck.f2fs)";
        }
    }
    let found = tree_of(device).unwrap_or_default();
    let (changed, collateral) = trial.changed(&found);
    let kept = aged.tree.len() - changed.len();
    sums.kept += kept as u64;
    sums.anywhere += kept_anywhere(&aged.tree, &found);
    if end != End::Refused && collateral > 0 {
        sums.collateral += collateral as u64;
        results.collateral.push(format!("{collateral} of {}", trial.line(&changed)));
    }
    match end {
        End::Clean if !changed.is_empty() => {
            sums.no_evidence += 1;
            results.no_evidence.push(trial.line(&changed));
        }
        End::Safe if !changed.is_empty() => {
            sums.silent += 1;
            results.silent.push(trial.line(&changed));
        }
        _ => {}
    }
    if is_set("FIELDS_SHOW") {
        println!("{end:?}{judgement} {kept} of {}: {}", aged.tree.len(), trial.line(&changed));
    }
    if is_set("FIELDS_PLANS") {
        show(report, &planned, losses);
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

/// Applies a repair: the next check finds nothing.
fn apply(trial: &Trial<'_>, d: &Damaged, plan: &Plan) {
    plan.apply(&*d.device).expect("in memory");
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}: {}", trial.line(&[]), support::lines(&report));
}

fn show(report: Option<&Report>, planned: &f2fs::Result<Planned>, losses: &[String]) {
    let uncovered = match planned {
        Ok(Planned::Repair(plan)) => &plan.uncovered[..],
        Ok(Planned::Refused(refusal)) => {
            println!("  {}", refusal.reason);
            &[]
        }
        _ => &[],
    };
    for finding in report.into_iter().flat_map(Report::findings).chain(uncovered) {
        println!("  {finding}: {} ({})", finding.repair, finding.certainty);
    }
    losses.iter().for_each(|loss| println!("  loss: {loss}"));
}

#[test]
fn damage_of_fields_is_repaired_with_each_loss_told_or_needs_a_person() {
    let only = std::env::var("FIELDS_KIND").ok().map(|name| Kind::named(&name));
    let (first, seeds) = (number("FIELDS_FIRST").unwrap_or(0), number("FIELDS_SEEDS").unwrap_or(SEEDS));
    let mut volumes: [Option<(u64, Aged)>; SETUP_COUNT as usize] = Default::default();
    let mut results = Results { is_judged: has_fsck(), ..Results::default() };
    for seed in first..first + seeds {
        let (setup, volume) = (seed % SETUP_COUNT, seed / SETUP_COUNT / DAMAGES);
        let slot = &mut volumes[setup as usize];
        if slot.as_ref().is_none_or(|(number, _)| *number != volume) {
            *slot = Some((volume, Aged::new(setup, volume)));
        }
        let (_, aged) = slot.as_ref().expect("it was just made");
        try_seed(aged, seed, only, &mut results);
    }
    results.print();
    results.judge();
}
