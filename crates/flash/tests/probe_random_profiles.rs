//! The probe on devices that it was not made for, with random parameters and noise.
//!
//! `cargo test -p flashkit-flash --test probe_random_profiles -- --nocapture` prints the true and the found
//! values.

use flashkit_flash::{
    Condition, FaultPlan, Model, Op, Profile,
    probe::{Bound, Estimate, Findings, Options, probe},
    profile::{FatArea, Layer, Locality, SlcCache},
    random_profiles::{self, device, odd_device, parallel_device},
};

const K: u64 = 1024;
const M: u64 = 1024 * K;

/// Seeds of the judged devices. Others served for the development of the probe.
const JUDGED: std::ops::Range<u64> = 1000..1060;

/// Probes a model of the profile with noise.
fn probed(profile: &Profile, noise: FaultPlan) -> Findings {
    let card = random_profiles::card(profile, noise, Condition::Fresh);
    let options = Options { write: true, budget_bytes: 1 << 40, budget_ns: u64::MAX / 2, seed: 1 };
    probe(&card, &card, options, &mut |_, _| {}).expect("a model does not fail")
}

/// Returns times of the device without its noise: of a read and of a sequential write of this size.
fn times(profile: &Profile, bytes: u64) -> (f64, f64) {
    let mut quiet = profile.clone();
    quiet.host.write_cache_bytes = 0;
    let mut model = Model::new(quiet, Condition::Fresh);
    // A whole number of every unit.
    let start = 11 * 48 * M;
    let read = model.submit(0, Op::read(start, bytes)).expect("within the card");
    // After the start of the sequence, because earlier writes may have to be merged first.
    let mut now = 1 << 40;
    for n in 0..4 {
        now = model.submit(now, Op::write(start + n * bytes, bytes)).expect("within the card").done_ns;
    }
    let last = model.submit(now, Op::write(start + 4 * bytes, bytes)).expect("within the card");
    let flush = if profile.host.flush { profile.time.flush_ns } else { 0 };
    ((read.done_ns - read.start_ns) as f64, (last.done_ns - last.start_ns + flush) as f64)
}

#[derive(Default)]
struct Score {
    right: usize,
    wrong_and_sure: usize,
    asked: usize,
}

/// An answer of the probe beside the true figure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Right,
    RightUnsure,
    WrongUnsure,
    WrongAndSure,
}

impl Answer {
    /// Judges an estimate by its value.
    fn of<T>(estimate: &Estimate<T>, is_right: impl FnOnce(&T) -> bool) -> Answer {
        match (is_right(&estimate.value), estimate.is_certain()) {
            (true, true) => Answer::Right,
            (true, false) => Answer::RightUnsure,
            (false, false) => Answer::WrongUnsure,
            (false, true) => Answer::WrongAndSure,
        }
    }
}

impl Score {
    /// Counts an answer, and returns the word for it in a line.
    fn count(&mut self, answer: Answer) -> &'static str {
        self.asked += 1;
        self.right += usize::from(matches!(answer, Answer::Right | Answer::RightUnsure));
        self.wrong_and_sure += usize::from(answer == Answer::WrongAndSure);
        match answer {
            Answer::Right => "ok",
            Answer::RightUnsure => "ok?",
            Answer::WrongUnsure => "no?",
            Answer::WrongAndSure => "WRONG",
        }
    }
}

#[derive(Default)]
struct Verdict {
    unit: Score,
    limit: Score,
    fat: Score,
    /// The area's length, if there is one.
    length: Score,
    page: Score,
    timing: Score,
}

/// The figures of a device that times can show.
struct Truth {
    unit: Option<u64>,
    limit: Option<u64>,
    takes_any_order: bool,
    /// Length of the area at the front. An area that behaves like the rest counts as none.
    fat: Option<u64>,
    page: u64,
}

impl Truth {
    fn of(profile: &Profile) -> Truth {
        let (unit, limit, takes_any_order) = match profile.layer {
            Layer::Hybrid { au_bytes, open_units, open_random, .. } => {
                (Some(u64::from(au_bytes)), Some(u64::from(open_units)), open_random > 0)
            }
            // Without a limit and without a cost of switching, no time depends on a unit.
            _ if profile.locality.unit_switch_ns == 0 => (None, None, true),
            _ => (Some(u64::from(profile.locality.unit_bytes)), None, true),
        };
        let shows = |fat: &&FatArea| limit.is_some() || fat.program_page_ns != profile.time.program_page_ns;
        let fat = profile.fat_area.as_ref().filter(shows).map(|fat| fat.length_bytes);
        Truth { unit, limit, takes_any_order, fat, page: u64::from(profile.flash.page_bytes) }
    }

    /// Returns true if only an SLC cache shows the area: cells of one bit take none of its data, until they are full.
    fn shows_area_at_times(&self, profile: &Profile) -> bool {
        profile.slc_cache.is_some() && profile.fat_area.is_some() && self.fat.is_none()
    }

    fn to_line(&self, profile: &Profile) -> String {
        format!(
            "au {:?} block {}K open {:?} any {} page {}B x {} fat {:?} cache {} switch {} us:",
            self.unit.map(|unit| unit / M),
            u64::from(profile.flash.block_bytes) / K,
            self.limit,
            self.takes_any_order,
            self.page,
            profile.flash.channels,
            profile.fat_area.as_ref().map(|fat| fat.length_bytes / M),
            profile.host.write_cache_bytes > 0,
            profile.locality.unit_switch_ns / 1000,
        )
    }
}

impl Verdict {
    /// Counts the answers for one device, and returns a line about them.
    fn count(&mut self, profile: &Profile, truth: &Truth, found: &Findings) -> String {
        let unit = found.unit_bytes.expect("within the budget");
        let limit = found.open_units.expect("within the budget");
        let fat = found.fat_area_bytes.expect("within the budget");
        let page = found.page_bytes.expect("within the budget");
        let unit_ok = self.unit.count(Answer::of(&unit, |unit| *unit == truth.unit));
        let limit_ok = self.limit.count(Answer::of(&limit, |limit| *limit == truth.limit));
        let fat_ok = match truth.shows_area_at_times(profile) {
            true => "-",
            false => self.fat.count(Answer::of(&fat, |fat| fat.is_some() == truth.fat.is_some())),
        };
        if let Some(length) = truth.fat {
            let is_near = |found: &Option<u64>| found.is_some_and(|found| found.abs_diff(length) < M);
            self.length.count(Answer::of(&fat, is_near));
        }
        let page_ok = self.page.count(Answer::of(&page, |found| match page.bound {
            Bound::Exact => *found == truth.page,
            Bound::AtLeast => *found <= truth.page,
            Bound::AtMost => *found >= truth.page,
        }));
        let (timing_ok, errors) = self.count_times(profile, found);
        format!(
            "au {:?} {:.2} {unit_ok}, open {:?} {:.2} {limit_ok}, fat {:?} {:.2} {fat_ok}, page {:?} {}K {:.2} {page_ok}, timing{errors} % {timing_ok}; {:.1} GB, {:.0} s",
            unit.value.map(|unit| unit as f64 / M as f64),
            unit.confidence,
            limit.value,
            limit.confidence,
            fat.value.map(|fat| fat / M),
            fat.confidence,
            page.bound,
            page.value / K,
            page.confidence,
            found.written_bytes as f64 / 1e9,
            found.elapsed_ns as f64 / 1e9,
        )
    }

    /// Counts the predicted times of reads and writes, and returns their errors in per cent.
    fn count_times(&mut self, profile: &Profile, found: &Findings) -> (&'static str, String) {
        let mut worst: f64 = 0.0;
        let mut errors = String::new();
        for bytes in [4 * K, 16 * K, 64 * K] {
            let (read, write) = times(profile, bytes);
            let of_read = found.read_ns(bytes).expect("measured") / read - 1.0;
            let of_write = found.write_ns(bytes).expect("measured") / write - 1.0;
            worst = worst.max(of_read.abs()).max(of_write.abs());
            errors += &format!(" {:+.0}/{:+.0}", of_read * 100.0, of_write * 100.0);
        }
        let answer = if worst < 0.15 { Answer::RightUnsure } else { Answer::WrongUnsure };
        (self.timing.count(answer), errors)
    }

    fn print(&self) {
        for (name, score) in [
            ("unit", &self.unit),
            ("open units", &self.limit),
            ("FAT area", &self.fat),
            ("its length", &self.length),
            ("page", &self.page),
            ("timing within 15 %", &self.timing),
        ] {
            println!(
                "{name}: {} of {} right, {} wrong and sure of it",
                score.right, score.asked, score.wrong_and_sure
            );
        }
    }
}

fn judge(seeds: std::ops::Range<u64>, device: fn(u64) -> (Profile, FaultPlan)) -> Verdict {
    let mut verdict = Verdict::default();
    for seed in seeds {
        let (profile, noise) = device(seed);
        let found = probed(&profile, noise);
        let truth = Truth::of(&profile);
        let line = verdict.count(&profile, &truth, &found);
        println!("{seed} {} {line}", truth.to_line(&profile));
        if std::env::var("SERIES").is_ok() {
            for series in &found.series {
                println!(
                    "   {}: {:?}",
                    series.name,
                    series.medians_ns.iter().map(|(at, ns)| (*at, (ns / 1000.0) as i64)).collect::<Vec<_>>()
                );
            }
        }
    }
    verdict.print();
    verdict
}

#[test]
#[ignore = "for work on the probe: other devices than the judged ones"]
fn the_probe_judges_devices_for_practice() {
    judge(1..61, device);
    judge(1..61, odd_device);
    judge(1..61, parallel_device);
    judge(1..61, cached_device);
}

/// `PROBE_SEEDS=FROM..TO` names the seeds.
#[test]
#[ignore = "for a judgement by seeds that nobody has looked at"]
fn no_answer_about_devices_of_given_seeds_is_wrong_and_certain() {
    let seeds = std::env::var("PROBE_SEEDS").expect("PROBE_SEEDS=FROM..TO");
    let (from, to) = seeds.split_once("..").expect("FROM..TO");
    let seeds = from.parse().expect("a number")..to.parse().expect("a number");
    let verdicts = [odd_device, parallel_device, cached_device].map(|device| judge(seeds.clone(), device));
    verdicts.iter().for_each(never_wrong_and_certain);
}

#[test]
fn the_probe_finds_the_properties_of_random_devices() {
    holds(judge(JUDGED, device));
}

#[test]
fn the_probe_finds_the_properties_of_odd_devices() {
    holds(judge(JUDGED, odd_device));
}

/// Several channels look like larger pages, and a page below 4 KiB like one of 4 KiB.
#[test]
fn no_answer_about_parallel_devices_is_wrong_and_certain() {
    never_wrong_and_certain(&judge(JUDGED, parallel_device));
}

/// The cells of one bit are faster until they are full, and empty themselves while the device is idle.
#[test]
fn no_answer_about_devices_with_an_slc_cache_is_wrong_and_certain() {
    never_wrong_and_certain(&judge(JUDGED.start..JUDGED.start + 20, cached_device));
}

/// Makes a parallel device with cells of one bit in front of the others: 64 MiB to 4 GiB, two to four times as fast.
fn cached_device(seed: u64) -> (Profile, FaultPlan) {
    let (mut profile, noise) = parallel_device(seed);
    let size_bytes = [64 * M, 256 * M, 1024 * M, 4096 * M][seed as usize % 4];
    let program_page_ns = profile.time.program_page_ns / (2 + seed / 4 % 3);
    profile.slc_cache = Some(SlcCache { size_bytes, program_page_ns });
    (profile, noise)
}

fn never_wrong_and_certain(verdict: &Verdict) {
    let Verdict { unit, limit, fat, length, page, .. } = verdict;
    for (name, score) in
        [("unit", unit), ("open units", limit), ("FAT area", fat), ("its length", length), ("page", page)]
    {
        assert_eq!(score.wrong_and_sure, 0, "{name}: a wrong answer must be flagged as uncertain");
    }
}

fn holds(Verdict { unit, limit, fat, length, page, timing }: Verdict) {
    for (name, score) in
        [("unit", unit), ("open units", limit), ("FAT area", fat), ("its length", length), ("page", page)]
    {
        assert!(score.right * 100 >= score.asked * 95, "{name}: {} of {}", score.right, score.asked);
        assert_eq!(score.wrong_and_sure, 0, "{name}: a wrong answer must be flagged as uncertain");
    }
    assert_eq!(timing.right, timing.asked);
}

/// Properties without a measurement of their own are found, or marked uncertain.
#[test]
fn properties_off_the_measured_grid_are_not_reported_as_certain() {
    let usual = Profile { size_bytes: 16 << 30, ..Profile::named("survey-class4").expect("built in") };
    let hybrid = |au_mib: u64, limit: u32, random: u32| Layer::Hybrid {
        au_bytes: (au_mib * M) as u32,
        open_units: limit,
        open_random: random,
        small_write_bytes: 0,
        small_write_ns: 0,
        granule_bytes: 0,
        open_by_size: Vec::new(),
    };
    for au_mib in [5, 7, 20, 64] {
        for (limit, random) in [(1, 0), (1, 1), (3, 0), (3, 3), (5, 1)] {
            let mut profile = Profile { layer: hybrid(au_mib, limit, random), ..usual.clone() };
            profile.flash.block_bytes = (au_mib * M) as u32;
            profile.fat_area = None;
            let noise = FaultPlan { seed: au_mib, jitter: 0.05, ..FaultPlan::default() };
            let unit = probed(&profile, noise).unit_bytes.expect("within the budget");
            println!("{au_mib} MiB, {limit} open, {random} in any order: {unit:?}");
            assert!(unit.value == Some(au_mib * M) || !unit.is_certain(), "{au_mib} MiB: {unit:?}");
        }
    }
    let mut wide = Profile { layer: Layer::Page { reserve_blocks: 4 }, fat_area: None, ..usual.clone() };
    wide.locality.unit_bytes = (64 * M) as u32;
    wide.locality.unit_switch_ns = 2_000_000;
    let unit = probed(&wide, FaultPlan { seed: 1, jitter: 0.05, ..FaultPlan::default() }).unit_bytes;
    assert!(unit.is_some_and(|unit| unit.value == Some(48 * M) && unit.bound == Bound::AtLeast), "{unit:?}");
    let mut long = usual.clone();
    let block = u64::from(long.flash.block_bytes);
    long.fat_area = Some(FatArea {
        start_bytes: 0,
        length_bytes: (100 * M).next_multiple_of(block),
        program_page_ns: long.time.program_page_ns,
    });
    let found = probed(&long, FaultPlan::default());
    let area = found.fat_area_bytes.expect("within the budget");
    assert!(area.value == Some(64 * M) && area.bound == Bound::AtLeast && !area.is_certain(), "{area:?}");
    let fitted = found.profile("fitted").expect("all of it was measured");
    assert!(fitted.sources["fat_area"].contains("uncertain") && fitted.sources["time"].ends_with("probe"));
    assert!(found.to_text().contains("64 MiB or more (uncertain"), "{}", found.to_text());
    let (mut coarse, noise) = odd_device(1004);
    for page_kib in [128, 256] {
        coarse.flash.page_bytes = (page_kib * K) as u32;
        let page = probed(&coarse, noise.clone()).page_bytes.expect("within the budget");
        assert!(page.value == 128 * K && !page.is_certain(), "{page:?}");
    }
}

/// To the probe, a card of the found profile equals the original card, and streams beyond the limit cost
/// about as much.
#[test]
fn the_fitted_profile_behaves_like_the_device() {
    let mut alike = 0;
    for seed in 1000..1020 {
        let (profile, noise) = device(seed);
        let found = probed(&profile, noise.clone());
        let fitted = found.profile("fitted").expect("all of it was measured");
        assert_eq!(Profile::parse(&fitted.to_toml()).expect("its own text"), fitted);
        let again = probed(&fitted, FaultPlan { jitter: 0.02, seed, ..FaultPlan::default() });
        let value = |found: &Findings| {
            (found.unit_bytes.and_then(|found| found.value), found.open_units.map(|found| found.value))
        };
        let merges = match (found.merge_ns, again.merge_ns) {
            (Some(one), Some(two)) => (0.4..2.5).contains(&(two / one)),
            (one, two) => one.is_none() == two.is_none(),
        };
        let page = again.page_bytes.map(|found| found.value) == found.page_bytes.map(|found| found.value);
        let near = |one: Option<f64>, two: Option<f64>| match one.zip(two) {
            Some((one, two)) => (one - two).abs() < 0.2 * one.max(two) + 50_000.0,
            None => one == two,
        };
        let places = near(found.unit_switch_ns, again.unit_switch_ns)
            && near(found.stream_miss_ns, again.stream_miss_ns)
            && found.streams == again.streams;
        let same = value(&found) == value(&again) && page && merges && places;
        println!(
            "{seed}: {same} {:?} {:?}, merges {:?} {:?}, switches {:?} {:?}",
            value(&found),
            value(&again),
            found.merge_ns,
            again.merge_ns,
            found.unit_switch_ns,
            again.unit_switch_ns
        );
        alike += usize::from(same);
    }
    assert!(alike >= 18, "{alike} of 20");
}

/// Returns the time of writes of 4 KiB that go on at `streams` places in turn, each place in its own unit.
fn in_turn(profile: &Profile, streams: u64) -> f64 {
    let mut model = Model::new(profile.clone(), Condition::Preconditioned);
    let mut now_ns = 0;
    for round in 0..64 {
        for stream in 0..streams {
            let at = (1 + stream) * 48 * M + round * 4 * K;
            now_ns = model.submit(now_ns, Op::write(at, 4 * K)).expect("within the card").done_ns;
        }
    }
    now_ns as f64
}

/// On the card of jeong-2012, the switch of a unit is most of the time of an fsync.
#[test]
fn a_clone_of_the_desktop_card_keeps_the_costs_of_places() {
    let card = Profile::named("transcend-16g-desktop").expect("built in");
    let found = probed(&card, FaultPlan { seed: 1, jitter: 0.05, ..FaultPlan::default() });
    let clone = found.profile("clone").expect("all of it was measured");
    let Locality { unit_bytes, streams, .. } = clone.locality;
    assert_eq!((unit_bytes, streams), (card.locality.unit_bytes, card.locality.streams), "{found:?}");
    for streams in [1, 2, 6, 8] {
        let ratio = in_turn(&clone, streams) / in_turn(&card, streams);
        println!("{streams} streams: {ratio:.3} times as long");
        assert!((0.95..1.08).contains(&ratio), "{streams} streams: {ratio}");
    }
    let told = found.to_text();
    assert!(told.contains("more beyond 6 streams") && told.contains("unit switch"), "{told}");
}

#[test]
fn nothing_is_written_without_permission_and_a_budget_is_kept() {
    let (profile, noise) = device(3);
    let card = random_profiles::card(&profile, noise, Condition::Preconditioned);
    let found = probe(&card, &card, Options::default(), &mut |_, _| {}).expect("a model does not fail");
    assert_eq!(card.with_model(|model| model.counters().host.writes), 0);
    assert!(found.read_command_ns.is_some() && found.unit_bytes.is_none() && !found.out_of_budget);
    let tight = Options { write: true, budget_bytes: 50 * M, ..Options::default() };
    let found = probe(&card, &card, tight, &mut |_, _| {}).expect("a model does not fail");
    assert!(found.out_of_budget && card.with_model(|model| model.counters().host.written_bytes) <= 50 * M);
    assert!(found.to_text().contains("budget") && found.to_text().contains("not measured"));
}

/// A dying card takes a second for each read. The time budget is kept to the request.
#[test]
fn a_budget_of_time_is_kept_by_every_step() {
    let mut dying = Profile::named("survey-class4").expect("built in");
    dying.time.read_command_ns = 1_000_000_000;
    for seconds in [10, 210, 300] {
        let card = random_profiles::card(&dying, FaultPlan::default(), Condition::Fresh);
        let options = Options { budget_ns: seconds * 1_000_000_000, ..Options::default() };
        let found = probe(&card, &card, options, &mut |_, _| {}).expect("a model does not fail");
        assert!(found.out_of_budget && found.elapsed_ns <= (seconds + 2) * 1_000_000_000, "{found:?}");
    }
}

#[test]
fn a_device_without_delays_gives_plausible_results() {
    let mut quick = Profile::named("survey-ssd").expect("built in");
    quick.time = flashkit_flash::profile::Times::default();
    quick.locality = flashkit_flash::profile::Locality::default();
    quick.slc_cache = None;
    quick.fat_area = None;
    let found = probed(&quick, FaultPlan::default());
    let figures =
        [found.read_command_ns, found.read_bytes_per_s, found.random_read_iops, found.write_command_ns];
    let figures =
        figures.into_iter().chain([found.write_bytes_per_s, found.random_write_iops, found.read_ns(4096)]);
    assert!(figures.flatten().all(f64::is_finite), "{found:?}");
    assert!(!found.to_text().contains("NaN") && !found.to_html("x").contains("NaN"), "{}", found.to_text());
}

#[test]
fn the_probe_agrees_with_bergmann_on_his_stick() {
    let profile = Profile::named("bergmann-stick").expect("built in");
    let found = probed(&profile, FaultPlan { seed: 1, jitter: 0.05, ..FaultPlan::default() });
    assert_eq!(found.open_units.map(|found| found.value), Some(Some(2)));
    assert_eq!(found.unit_bytes.map(|found| found.value), Some(Some(4 * M)));
    assert!(found.fat_area_bytes.is_some_and(|found| found.value.is_some()));
    assert_eq!(found.read_boundary_bytes, None, "reads hide it");
    let rate = found.write_bytes_per_s.expect("measured") / 15.17e6;
    assert!((0.85..1.15).contains(&rate) && found.short_write_bytes == 64 * K, "{rate}");
    let advice = found.advice();
    assert_eq!((advice.active_logs, advice.segments_per_section), (2, 2));
}
