//! The power fails after each request of random sequences: what was promised is there, and nothing is torn.
//! `FLASHKIT_CUT_SEEDS` runs more sequences, `FLASHKIT_SEED` others; a seed runs again to the same end.

use f2fs::volume::{ActiveLogs, InPlace};
use model::{Failure, Mode, Record, Settings, Setup, power_cut, sequence};

/// Runs to shrink a failure in.
const SHRINK_RUNS: usize = 150;

fn number(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// A volume of this kind, with short writes and many promises.
fn setup(name: &str, promises: u64, fsync: bool) -> Setup {
    let mut setup = Setup::named(name).expect("a kind of volume");
    setup.mix.write_bytes_max = 16 << 10;
    setup.mix.blocks_max = 300;
    (setup.mix.durable, setup.mix.fsync, setup.mix.fill) = (promises, fsync, false);
    setup
}

fn survive(setup: Setup, mode: Mode, steps: usize) {
    let (first, seeds) = (number("FLASHKIT_SEED", 1), number("FLASHKIT_CUT_SEEDS", 2));
    let mut cuts = 0;
    for seed in first..first + seeds {
        let (record, ops) = match Record::new(&setup, seed, steps) {
            Ok(recorded) => recorded,
            Err(error) => panic!("{}, seed {seed}, without a cut: {error:#}", setup.name),
        };
        match record.cut_everywhere(mode) {
            Ok(count) => cuts += count,
            Err(error) => {
                let whole = format!("{error:#}");
                let failure = sequence::shrink(Failure { ops, error }, SHRINK_RUNS, |ops| {
                    power_cut::run(&setup, ops, mode).err()
                });
                panic!("{}(unshrunk: {whole})", failure.report(&setup, seed));
            }
        }
        let (checkpoints, fsyncs) = record.promises();
        println!(
            "{}: seed {seed}, {} requests, {checkpoints} checkpoints, {fsyncs} fsyncs",
            setup.name,
            record.requests()
        );
    }
    println!("{}: {cuts} power cuts, {mode:?}", setup.name);
}

#[test]
fn checkpoints_survive_in_a_row() {
    survive(setup("base", 8, false), Mode::Linear, 250);
}

#[test]
fn checkpoints_survive_a_cache_that_reorders_and_tears() {
    survive(setup("features", 8, false), Mode::Random(4), 200);
}

#[test]
fn checkpoints_survive_every_choice_of_writes() {
    survive(setup("base", 5, false), Mode::Exhaustive(64), 60);
}

#[test]
fn fsyncs_survive_in_a_row() {
    survive(setup("base", 4, true), Mode::Linear, 250);
}

#[test]
fn fsyncs_survive_a_cache_that_reorders_and_tears() {
    survive(setup("features", 4, true), Mode::Random(4), 200);
}

#[test]
fn fsyncs_survive_every_choice_of_writes() {
    survive(setup("base", 4, true), Mode::Exhaustive(64), 60);
}

#[test]
fn fsyncs_survive_with_other_logs_sections_and_layouts() {
    survive(setup("four logs", 4, true), Mode::Random(2), 120);
    survive(setup("two logs", 4, true), Mode::Random(2), 120);
    survive(setup("sections", 4, true), Mode::Random(2), 120);
    survive(setup("casefold", 4, true), Mode::Random(2), 120);
    survive(setup("16K blocks", 4, true), Mode::Random(2), 120);
    survive(setup("not inline", 4, true), Mode::Random(2), 120);
    survive(setup("small cache", 4, true), Mode::Random(2), 120);
}

#[test]
fn fsyncs_survive_where_nothing_is_written_in_place() {
    let settings = Settings { in_place: InPlace::Never, active_logs: ActiveLogs::Six, ..Settings::default() };
    survive(Setup { settings, ..setup("base", 4, true) }, Mode::Random(3), 200);
}
