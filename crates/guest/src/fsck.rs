//! Findings of fsck.f2fs, from its output: its exit status reports few of them.

/// Words of its lines that tell of a finding.
const COMPLAINTS: [&str; 6] = ["[ASSERT]", "[FIX]", "Fail]", "Wrong", "Invalid", "Mismatch"];
/// Line that it prints at the end of a complete check.
const THROUGH: &str = "[FSCK] other corrupted bugs";

/// The findings in the output of fsck.f2fs, without lines that are `excused`. An incomplete check is a
/// finding.
pub fn findings(printed: &str, excused: impl Fn(&str) -> bool) -> Vec<&str> {
    let complains = |line: &&str| COMPLAINTS.iter().any(|word| line.contains(word)) && !excused(line);
    let end = (!printed.contains(THROUGH)).then_some("it did not come to its end");
    printed.lines().filter(complains).chain(end).collect()
}
