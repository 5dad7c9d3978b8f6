//! The power fails after each request of random sequences: promised data is present, and no block is torn.
//! `cargo xtask power-cuts` runs more of them, and other seeds.

use std::{
    io::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use model::{Case, power_cut};

/// Seeds of the operations.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

/// Power cuts of all cases so far.
static CUTS: AtomicU64 = AtomicU64::new(0);

fn survive(name: &str) {
    let Case { setup, mode, steps, .. } = Case::named(name).expect("a case");
    for seed in SEEDS {
        let tried = power_cut::torture(&setup, seed, steps, mode).unwrap_or_else(|report| panic!("{report}"));
        let so_far = CUTS.fetch_add(tried.cuts, Ordering::Relaxed) + tried.cuts;
        // Written directly, because the test harness shows output of failures only. The last such line has
        // the total.
        let line = format!("{name}: seed {seed}, {tried}, {mode:?}; {so_far} power cuts so far\n");
        std::io::stderr().write_all(line.as_bytes()).expect("a line is written");
    }
}

macro_rules! cases {
    ($($test:ident = $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                survive($name);
            }
        )*

        #[test]
        fn every_case_has_a_test() {
            let names: Vec<&str> = Case::all().iter().map(|case| case.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

cases! {
    checkpoints_in_a_row = "checkpoints in a row",
    checkpoints_reordered_and_torn = "checkpoints, reordered and torn",
    checkpoints_exhaustively = "checkpoints, every choice of writes",
    fsyncs_in_a_row = "fsyncs in a row",
    fsyncs_reordered_and_torn = "fsyncs, reordered and torn",
    fsyncs_exhaustively = "fsyncs, every choice of writes",
    quota = "quota",
    four_logs = "four logs",
    two_logs = "two logs",
    sections = "sections",
    casefold = "casefold",
    compressed = "compressed",
    sixteen = "16K blocks",
    not_inline = "not inline",
    small_cache = "small cache",
    write_through = "write through",
    nothing_in_place = "nothing in place",
    append_only_full = "append only, full",
}
