//! Helpers of the checker's tests.

#![allow(dead_code)] // each test file uses its own part

pub mod aging;

use std::sync::Arc;

use block::Device;
use f2fs_check::{Report, Severity, check};

/// Checks a device.
pub fn report(device: Arc<dyn Device>) -> Report {
    check(device, &mut |_| {}).expect("an F2FS volume")
}

/// The names of the kinds of all errors, sorted.
pub fn errors(report: &Report) -> Vec<&'static str> {
    let kinds = report.counts().map(|(kind, _)| kind);
    let mut names: Vec<_> =
        kinds.filter(|kind| kind.severity() == Severity::Error).map(|kind| kind.name()).collect();
    names.sort_unstable();
    names
}

/// All findings as lines, for a failed test.
pub fn lines(report: &Report) -> String {
    let lines: Vec<String> = report.findings().iter().take(12).map(ToString::to_string).collect();
    format!("{}\n  {:?}\n  {:?}", lines.join("\n  "), report.sums, report.ended_early)
}
