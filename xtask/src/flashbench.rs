//! Debian's flashbench in the judge's machine, on modelled devices that are served over NBD and take as long
//! as real ones would, with noise. Its answers are compared with the probe's answers for the same devices,
//! and with the truth.
//!
//! flashbench prints figures for people to read. Here a rule reads them: there are too many units if two of
//! the three smallest sizes are written less than half as fast as with some fewer units. One slow size alone
//! may have met a stall. Before such a result counts, flashbench runs again, and the best rate of each size
//! is used, because other work on the machine only adds time. flashbench is given the unit, which it cannot
//! find by writing.

use std::{
    fmt,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use flash::{
    Condition, FaultPlan, Profile,
    probe::{Findings, Options, probe},
    random_profiles,
    verbs::{self, NewCard, Serve, Serving},
};
use guest::op::Answer;

use crate::{Disk, Machine, Vm, interrupt, step::Step, workspace::var};

/// Seeds of devices: the first of the probe's judged ones that have a detectable unit.
pub const SEEDS: [u64; 10] = [1000, 1001, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010];
/// Maximum number of units tried.
const UNITS_MAX: u64 = 12;
/// Size of the smallest writes in bytes.
const WRITE_BYTES: u64 = 64 << 10;
/// Offset of the first unit: behind every area at the front, and a multiple of every unit.
const OFFSET_BYTES: u64 = 192 << 20;
/// Number of positions read for each boundary.
const READS: u32 = 64;
/// Maximum number of runs for a number of units that looks too large.
const ASKED_MAX: u32 = 3;
/// There are too many units if the rate is below this share of the best rate with fewer units.
const FALL: f64 = 0.5;
/// Below this share there is no second run, because no other work of the machine has such an effect.
const DEEP: f64 = 0.2;
/// Time limit of one run of flashbench: 12 units of 4 MiB in each of 7 sizes, at 0.1 MB/s.
const PATIENCE: Duration = Duration::from_secs(3600);
/// A boundary counts as visible if crossing it costs this share of a read more than crossing a place without
/// one.
const SHOWS: f64 = 0.06;

/// A served device.
struct Subject {
    name: String,
    profile: Profile,
    noise: FaultPlan,
    serving: Serving,
}

/// Answers of flashbench or of the probe.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Said {
    unit_bytes: Option<u64>,
    open_units: Option<u64>,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit_bytes {
            Some(bytes) => write!(f, "{} MiB, ", bytes as f64 / f64::from(1 << 20))?,
            None => write!(f, "none, ")?,
        }
        match self.open_units {
            Some(units) => write!(f, "{units}"),
            None => write!(f, "no limit"),
        }
    }
}

/// Runs flashbench and the probe on the devices of these seeds. Prints a table, each line as soon as it is
/// known.
///
/// # Errors
/// flashbench is missing or fails, or the machine does.
pub fn run(seeds: &[u64], out: &mut impl Write) -> Result<()> {
    let dir = tempfile::tempdir_in(var("flashbench")?)?;
    let subjects = seeds.iter().map(|seed| Subject::serve(*seed, dir.path())).collect::<Result<Vec<_>>>()?;
    let disks: Vec<Disk> = subjects.iter().map(|it| Disk::writable(it.serving.uri())).collect();
    let mut vm = Vm::boot_in_host(Machine::Amd64, &disks)?;
    vm.run(Vm::host_files())?;
    vm.set_patience(PATIENCE);
    writeln!(
        out,
        "| device | unit and open units | the probe | flashbench -O | -a | MB/s, as many | one more | minutes | load |\n\
         |---|---|---|---|---|---:|---:|---:|---:|"
    )?;
    for (disk, subject) in subjects.iter().enumerate() {
        interrupt::check()?;
        let step = Step::begin(&subject.name);
        subject.measure(&mut vm, &format!("/disk/{disk}"), out)?;
        out.flush()?;
        step.end();
    }
    drop(vm);
    subjects.into_iter().try_for_each(|subject| Ok(subject.serving.stop()?))
}

impl Subject {
    /// Serves a full device, like `card serve --realtime --faults`.
    fn serve(seed: u64, dir: &Path) -> Result<Subject> {
        let (profile, noise) = random_profiles::device(seed);
        let path = dir.join(seed.to_string());
        verbs::new(
            &path,
            profile.clone(),
            NewCard { size_bytes: None, condition: Condition::Preconditioned },
        )?;
        let address = format!("unix:{}", dir.join(format!("{seed}.socket")).display()).parse()?;
        let how = Serve { real_time: true, faults: noise.clone(), trace: false };
        let serving = verbs::serve(&path, &address, how)?;
        Ok(Subject { name: seed.to_string(), profile, noise, serving })
    }

    fn measure(&self, vm: &mut Vm, disk: &str, out: &mut impl Write) -> Result<()> {
        let started = Instant::now();
        let truth = Said::of(&Findings::of(&self.profile));
        let unit = truth.unit_bytes.context("flashbench needs the size of a unit")?;
        let card = random_profiles::card(&self.profile, self.noise.clone(), Condition::Fresh);
        let options = Options { write: true, budget_bytes: u64::MAX, budget_ns: u64::MAX / 2, seed: 1 };
        let probed = Said::of(&probe(&card, &card, options, &mut |_, _| {})?);

        let boundary = boundary(&flashbench(vm, &["-a", &format!("--count={READS}"), disk])?)?;
        let mut rates = Vec::new();
        let mut best = [0.0f64; 3];
        let mut limit = None;
        for units in 1..=UNITS_MAX {
            let rates_of = |vm: &mut Vm| {
                let told = flashbench(
                    vm,
                    &[
                        "-O",
                        &format!("--erasesize={unit}"),
                        &format!("--blocksize={WRITE_BYTES}"),
                        &format!("--offset={OFFSET_BYTES}"),
                        &format!("--open-au-nr={units}"),
                        disk,
                    ],
                )?;
                eprint!("{told}");
                smallest_rates(&told)
            };
            let mut now = rates_of(vm)?;
            let mut asked = 1;
            while fell(&now, &best, FALL) && !fell(&now, &best, DEEP) && asked < ASKED_MAX {
                now = better(now, rates_of(vm)?);
                asked += 1;
            }
            rates.push(now);
            if fell(&now, &best, FALL) {
                limit = Some(units - 1);
                break;
            }
            best = better(best, now);
        }
        let said = Said { unit_bytes: boundary, open_units: limit };
        let tell = |n: Option<usize>| {
            let rate = n.and_then(|n| rates.get(n)).map(|[.., rate]| format!("{:.2}", rate / 1e6));
            rate.unwrap_or("-".into())
        };
        let fell = limit.map(|limit| limit as usize);
        writeln!(
            out,
            "| {} | {truth} | {probed} | {} | {} | {} | {} | {:.1} | {} |",
            self.name,
            limit.map_or(format!("none up to {UNITS_MAX}"), |limit| limit.to_string()),
            said.unit_bytes
                .map_or("nothing".into(), |bytes| format!("{} MiB", bytes as f64 / f64::from(1 << 20))),
            tell(fell.map_or(Some(rates.len() - 1), |fell| fell.checked_sub(1))),
            tell(fell),
            started.elapsed().as_secs_f64() / 60.0,
            load()?
        )?;
        Ok(())
    }
}

impl Said {
    fn of(found: &Findings) -> Said {
        Said {
            unit_bytes: found.unit_bytes.and_then(|unit| unit.value),
            open_units: found.open_units.and_then(|units| units.value),
        }
    }
}

/// Returns true if most sizes are written at less than this share of the rate with some fewer units.
fn fell(now: &[f64; 3], best: &[f64; 3], share: f64) -> bool {
    now.iter().zip(best).filter(|(now, best)| **now < share * **best).count() > now.len() / 2
}

/// Returns the better rate of each size.
fn better(one: [f64; 3], two: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|size| one[size].max(two[size]))
}

/// Returns the kernel's averages of the number of runnable programs in the last minutes.
fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split_whitespace().nth(1).context("loadavg has a second figure")?.to_string())
}

/// Runs flashbench in the guest.
fn flashbench(vm: &mut Vm, arguments: &[&str]) -> Result<String> {
    let op = guest::host::program("/usr/bin/flashbench", arguments).context("scripts/setup installs it")?;
    match vm.run(op)?.answer {
        Some(Answer::Output { code: 0, stdout, .. }) => Ok(String::from_utf8(stdout.0)?),
        other => bail!("flashbench {arguments:?}: {other:?}"),
    }
}

/// Parses the last lines of `-O`, bytes per second: `64KiB   4.87M/s`.
fn smallest_rates(told: &str) -> Result<[f64; 3]> {
    let rate = |line: &str| {
        let rate = line.split_whitespace().nth(1).and_then(|rate| rate.strip_suffix("/s"));
        rate.and_then(scaled).with_context(|| format!("unexpected output of flashbench -O: {line:?}"))
    };
    let rates = told.lines().map(rate).collect::<Result<Vec<f64>>>()?;
    rates.last_chunk().copied().with_context(|| format!("unexpected output of flashbench -O: {told:?}"))
}

/// Finds the smallest boundary that is visible, as are all larger ones, in the lines of `-a`, which are
/// separated by tabs: `align 4194304 pre 735µs on 1.08ms post 780µs diff 324µs`.
fn boundary(told: &str) -> Result<Option<u64>> {
    let mut rows = Vec::new();
    for line in told.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["align", bytes, "pre", pre, "on", _, "post", _, "diff", difference] = words[..] else {
            bail!("unexpected output of flashbench -a: {line:?}");
        };
        // It omits the s for negative times.
        let seconds = |text: &str| {
            let told = scaled(text.strip_suffix('s').unwrap_or(text));
            told.with_context(|| format!("unexpected output of flashbench -a: {line:?}"))
        };
        rows.push((bytes.parse::<u64>()?, seconds(pre)?, seconds(difference)?));
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().context("flashbench -a printed nothing")
    };
    let usual = median(rows.iter().map(|(_, pre, _)| *pre).collect())?;
    // Smaller than every unit, larger than every page.
    let low = rows.iter().filter(|(bytes, ..)| (64 << 10..512 << 10).contains(bytes));
    let base = median(low.map(|(.., difference)| *difference).collect())?;
    let shows = rows.iter().take_while(|(.., difference)| difference - base > SHOWS * usual);
    Ok(shows.last().map(|(bytes, ..)| *bytes))
}

/// Parses a number with a suffix: `764K` is 764000, and `1.08m` is 0.00108.
fn scaled(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match &text[digits.len()..] {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "m" => 1e-3,
        "µ" => 1e-6,
        "n" => 1e-9,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_flashbench_is_parsed() {
        let told = "512KiB  45M/s   \n256KiB  44.2M/s \n128KiB  9M/s    \n64KiB   764K/s  \n";
        assert_eq!(smallest_rates(told).expect("rates"), [44.2e6, 9e6, 764e3]);
        assert!(smallest_rates("").is_err() && smallest_rates("64KiB fast").is_err());
        let line = |bytes: u64, difference: &str| {
            format!("align {bytes}\tpre 1.1ms\ton 1.2ms\tpost 1ms\tdiff {difference}\n")
        };
        let seen: String = (0..12)
            .map(|n| line(64 << 20 >> n, if n < 5 { "204µs" } else { ["9µs", "-350n"][n % 2] }))
            .collect();
        assert_eq!(boundary(&seen).expect("lines"), Some(4 << 20));
        let hidden: String = (0..12).map(|n| line(64 << 20 >> n, "12µs")).collect();
        assert_eq!(boundary(&hidden).expect("lines"), None);
        assert!(boundary("align 7 pre").is_err());
    }

    #[test]
    fn a_fall_affects_most_sizes_and_disturbances_are_ignored() {
        let best = [10e6, 8e6, 4e6];
        assert!(fell(&[10e6, 3e6, 1e6], &best, FALL) && fell(&[1e6, 1e6, 4e6], &best, FALL));
        assert!(!fell(&[10e6, 8e6, 1e6], &best, FALL) && !fell(&best, &[0.0; 3], FALL));
        assert!(!fell(&better([1e6, 1e6, 1e6], [2e6, 7e6, 3e6]), &best, FALL));
        assert!(!fell(&[10e6, 3e6, 1e6], &best, DEEP) && fell(&[5e6, 1e6, 0.5e6], &best, DEEP));
    }

    #[test]
    fn every_device_has_a_detectable_unit() {
        for seed in SEEDS {
            let (profile, _) = random_profiles::device(seed);
            let unit = Said::of(&Findings::of(&profile)).unit_bytes.expect("a unit");
            assert_eq!(OFFSET_BYTES % unit, 0);
        }
    }
}
