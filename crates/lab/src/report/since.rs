//! Changes since a kernel: figures of a file system of one kernel beside those of the others in a study.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde::Serialize;

use super::{shown, text::aligned};
use crate::record::Record;

/// A figure of a file system with two kernels, under the same conditions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Since {
    /// Name of the other kernel.
    pub kernel: String,
    /// The file system with its options.
    pub file_system: String,
    /// The cell's name, without its kernel.
    pub cell: String,
    /// The experiment and its part.
    pub part: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// The figure with the first kernel.
    pub before: f64,
    /// The figure with the other kernel.
    pub after: f64,
    /// Ratio of the second figure to the first; above 1 if it is better.
    pub times_as_good: f64,
}

/// Pairs the figures of a kernel with those of every other kernel, by kernel and cell.
pub fn since(records: &[Record], kernel: &str) -> Vec<Since> {
    let without_kernel = |record: &Record| {
        let mut cell = record.cell.clone();
        cell.point.kernel = None;
        cell
    };
    let of_kernel = records.iter().filter(|record| record.cell.point.kernel.as_deref() == Some(kernel));
    let before: BTreeMap<String, &Record> = of_kernel.map(|old| (without_kernel(old).id(), old)).collect();
    let mut pairs = Vec::new();
    for new in records {
        let Some(other) = new.cell.point.kernel.as_deref().filter(|other| *other != kernel) else { continue };
        let cell = without_kernel(new);
        let id = cell.id();
        let Some(old) = before.get(&id).filter(|old| old.is_comparable(new)) else { continue };
        for part in new.cell.parts() {
            let (Some(before), Some(after)) = (old.phase(part.name), new.phase(part.name)) else { continue };
            pairs.push(Since {
                kernel: other.to_owned(),
                file_system: cell.file_system.name(),
                cell: id.clone(),
                part: format!("{}: {}", cell.experiment.name(), part.title),
                unit: part.unit.sign(),
                before: before.value,
                after: after.value,
                times_as_good: part.unit.times_as_good(after.value, before.value),
            });
        }
    }
    pairs.sort_by(|a, b| (&a.kernel, &a.cell).cmp(&(&b.kernel, &b.cell)));
    pairs
}

/// Formats the pairs as a table for each other kernel.
pub fn since_text(pairs: &[Since], kernel: &str) -> String {
    let mut out = String::new();
    for of_kernel in pairs.chunk_by(|a, b| a.kernel == b.kernel) {
        let other = &of_kernel[0].kernel;
        writeln!(out, "Linux {kernel} and Linux {other}").expect("writing to a string cannot fail");
        // With several cards or sizes a part has several lines, which only the cell's name tells apart.
        let parts: BTreeSet<_> = of_kernel.iter().map(|pair| (&pair.file_system, &pair.part)).collect();
        let is_unique = parts.len() == of_kernel.len();
        let head = ["file system", "part", kernel, other, "", "better by"].map(str::to_owned).to_vec();
        let line = |pair: &Since| {
            let name = if is_unique { pair.file_system.clone() } else { pair.cell.clone() };
            let change = format!("{:+.1} %", (pair.times_as_good - 1.0) * 100.0);
            vec![name, pair.part.clone(), shown(pair.before), shown(pair.after), pair.unit.to_owned(), change]
        };
        let table: Vec<Vec<String>> = [head].into_iter().chain(of_kernel.iter().map(line)).collect();
        aligned(&table, &mut out);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Experiment, record::tests::record};

    fn of(kernel: &str, kind: &str, values: &[f64]) -> Record {
        let mut one = record(Experiment::Mount, kind, values);
        one.cell.point.kernel = Some(kernel.into());
        one.versions.guest_kernel = Some(format!("Linux {kernel}"));
        one
    }

    #[test]
    fn each_figure_stands_beside_that_of_the_other_kernel() {
        let records = [
            of("6.1", "ext4", &[2.0, 4.0]),
            of("6.12", "ext4", &[1.0, 5.0]),
            of("6.1", "f2fs", &[3.0, 3.0]),
            of("6.12", "f2fs", &[3.0]),
            of("6.12", "vfat", &[1.0, 1.0]),
            record(Experiment::Mount, "flashkit", &[1.0, 1.0]),
        ];
        let pairs = since(&records, "6.1");
        let seen: Vec<(&str, &str, f64)> =
            pairs.iter().map(|it| (it.file_system.as_str(), it.part.as_str(), it.times_as_good)).collect();
        let (first, second) = ("mount: after format", "mount: after reboot");
        assert_eq!(seen, [("ext4", first, 2.0), ("ext4", second, 0.8), ("f2fs", first, 1.0)]);
        let text = since_text(&pairs, "6.1");
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["Linux", "6.1", "and", "Linux", "6.12"]);
        assert_eq!(rows[2][..], ["ext4", "mount:", "after", "format", "2.00", "1.00", "ms", "+100.0", "%"]);
        assert_eq!(since(&records, "6.6"), []);
    }

    #[test]
    fn cells_of_other_sizes_are_told_apart_and_never_paired() {
        let mut large = of("6.1", "ext4", &[9.0, 9.0]);
        large.cell.point.size_bytes = Some(4 << 20);
        let mut also_large = of("6.12", "ext4", &[3.0, 3.0]);
        also_large.cell.point.size_bytes = Some(4 << 20);
        let records = [large, of("6.1", "ext4", &[2.0, 4.0]), of("6.12", "ext4", &[1.0, 5.0]), also_large];
        let pairs = since(&records, "6.1");
        assert_eq!(pairs.iter().map(|pair| pair.before).collect::<Vec<_>>(), [2.0, 4.0, 9.0, 9.0]);
        assert!(since_text(&pairs, "6.1").contains("mount.ext4.desktop.size-4M"));
    }
}
