//! Random operations on volumes of every kind, beside a model. `FLASHKIT_STEPS` runs more operations,
//! `FLASHKIT_SEED` others, `FLASHKIT_SETUP` on one kind of volume only; a seed runs again to the same end.
//! `FLASHKIT_REPLAY` names a file with operations that a failure printed, to run those instead.

use model::{Setup, sequence};

/// Operations on one volume.
const SEQUENCE: usize = 1500;
/// Operations of each kind of volume, unless told otherwise.
const STEPS: usize = 1500;
/// Runs to shrink a failure in.
const SHRINK_RUNS: usize = 400;

fn number(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn agree(name: &str) {
    if std::env::var("FLASHKIT_SETUP").is_ok_and(|only| only != name) {
        return;
    }
    let setup = Setup::named(name).expect("a kind of volume");
    if let Ok(path) = std::env::var("FLASHKIT_REPLAY") {
        let text = std::fs::read_to_string(&path).expect("the operations to replay");
        let op = |line: &str| serde_json::from_str(line).expect("an operation");
        let ops: Vec<guest::Op> = text.lines().filter(|line| !line.is_empty()).map(op).collect();
        return sequence::replay(&setup, &ops, true).unwrap_or_else(|error| panic!("{error:#}"));
    }
    let (first, steps) = (number("FLASHKIT_SEED", 1), number("FLASHKIT_STEPS", STEPS as u64) as usize);
    let mut done = 0;
    for seed in first.. {
        if done >= steps {
            break;
        }
        println!("{name}: seed {seed}, {SEQUENCE} operations");
        if let Err(failure) = sequence::run(&setup, seed, SEQUENCE, true) {
            let whole = format!("{:#}", failure.error);
            let judged = whole.contains("fsck.f2fs");
            let failure =
                sequence::shrink(failure, SHRINK_RUNS, |ops| sequence::replay(&setup, ops, judged).err());
            panic!("{}(unshrunk: {whole})", failure.report(&setup, seed));
        }
        done += SEQUENCE;
    }
    println!("{name}: {done} operations, no difference");
}

macro_rules! kinds {
    ($($test:ident = $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                agree($name);
            }
        )*

        #[test]
        fn every_kind_of_volume_is_here() {
            let names: Vec<&str> = Setup::all().iter().map(|setup| setup.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

kinds! {
    base = "base",
    features = "features",
    quota = "quota",
    casefold = "casefold",
    lost_found = "lost+found",
    sections = "sections",
    large_sections = "large sections",
    sixteen = "16K blocks",
    four_logs = "four logs",
    two_logs = "two logs",
    in_place = "in place",
    not_inline = "not inline",
    small_cache = "small cache",
    full = "full",
}
