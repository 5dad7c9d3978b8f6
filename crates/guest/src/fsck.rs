//! What fsck.f2fs says of a volume, read: its exit status tells few of its findings.

/// Words of its lines that tell of a finding.
const COMPLAINTS: [&str; 6] = ["[ASSERT]", "[FIX]", "Fail]", "Wrong", "Invalid", "Mismatch"];
/// What it says when it has come to its end.
const THROUGH: &str = "[FSCK] other corrupted bugs";

/// The findings in what fsck.f2fs printed, without lines that are `excused`; that it did not come to its end is one.
pub fn findings(printed: &str, excused: impl Fn(&str) -> bool) -> Vec<&str> {
    let complains = |line: &&str| COMPLAINTS.iter().any(|word| line.contains(word)) && !excused(line);
    let end = (!printed.contains(THROUGH)).then_some("it did not come to its end");
    printed.lines().filter(complains).chain(end).collect()
}
