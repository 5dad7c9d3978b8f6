//! Findings of fsck.f2fs, read from its output, because its exit status reports few of them.

/// Words of lines that report a finding.
const COMPLAINTS: [&str; 6] = ["[ASSERT]", "[FIX]", "Fail]", "Wrong", "Invalid", "Mismatch"];
/// Line at the end of a complete check.
const THROUGH: &str = "[FSCK] other corrupted bugs";

/// Returns the findings in the output of fsck.f2fs, without `excused` lines. An incomplete check is a
/// finding.
pub fn findings(printed: &str, excused: impl Fn(&str) -> bool) -> Vec<&str> {
    let complains = |line: &&str| COMPLAINTS.iter().any(|word| line.contains(word)) && !excused(line);
    let end = (!printed.contains(THROUGH)).then_some("the check did not complete");
    printed.lines().filter(complains).chain(end).collect()
}
