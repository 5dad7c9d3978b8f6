//! Undamaged volumes of all kinds have no finding.

use std::sync::Arc;

mod support;

#[path = "../../f2fs/tests/support/golden.rs"]
mod golden;

/// Images that a kernel wrote without keeping the quota files that mkfs had made.
const WITHOUT_QUOTA: [&str; 2] = ["16k-features", "16k-unclean-features"];
/// Picks the operations.
const SEED: u64 = 7;
/// Operations on one volume.
const STEPS: usize = 1500;

#[test]
fn golden_images_of_the_kernel_have_no_error() {
    let mut failures = Vec::new();
    for name in golden::names() {
        let report = support::report(golden::device(&name));
        let expected: &[&str] = if WITHOUT_QUOTA.contains(&&*name) { &["quota-usage"] } else { &[] };
        if support::errors(&report) != expected || report.ended_early.is_some() {
            failures.push(format!("{name}:\n  {}", support::lines(&report)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn volumes_after_random_operations_have_no_error() {
    let mut failures = Vec::new();
    for setup in model::Setup::all() {
        let device = Arc::new(setup.make().expect("a volume"));
        let fresh = support::report(device.clone());
        if !fresh.is_clean() {
            failures.push(format!("{} (new):\n  {}", setup.name, support::lines(&fresh)));
        }
        let aged = aged(&setup, device);
        let report = support::report(aged);
        if !report.is_clean() {
            failures.push(format!("{}:\n  {}", setup.name, support::lines(&report)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs random operations on a volume and unmounts it.
fn aged(setup: &model::Setup, device: Arc<block::MemoryDevice>) -> Arc<block::MemoryDevice> {
    let mut pair = model::Pair::new(setup, device.clone()).expect("the volume opens");
    let mut generator = model::Generator::new(setup.mixed(SEED), setup.mix.clone());
    for _ in 0..STEPS {
        let op = generator.next(&pair.model);
        pair.step(&op).unwrap_or_else(|error| panic!("{}: {op:?}: {error:#}", setup.name));
    }
    pair.subject.unmount().expect("the volume is unmounted");
    device
}
