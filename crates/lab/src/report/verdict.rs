//! The verdict in words: the best file system for this card, and the figures that support it.

use std::collections::BTreeMap;

use super::{
    COMPARISONS, Comparison, Lead, Row, Sheet, Standing, YARDSTICK, main_comparison, shown, tally,
    tally_with_cpu,
};
use crate::{
    preset::Preset,
    systems::{OURS, THROUGH_FUSE},
};

/// A verdict on one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Name of the machine.
    pub machine: String,
    /// Sentences.
    pub sentences: Vec<String>,
}

/// Returns the verdicts on all cards of these sheets. A measurement of a directory has none, because other
/// file systems were not measured on its device.
pub fn verdicts(sheets: &[Sheet]) -> Vec<Verdict> {
    let mut groups: Vec<Vec<&Sheet>> = Vec::new();
    for sheet in sheets.iter().filter(|sheet| sheet.preset != Preset::Here) {
        let told = |one: &Sheet| (one.machine.clone(), one.seed, one.scale, one.age);
        match groups.iter_mut().find(|group| told(group[0]) == told(sheet)) {
            Some(group) => group.push(sheet),
            None => groups.push(vec![sheet]),
        }
    }
    groups.iter().filter_map(|group| verdict(group)).collect()
}

/// A file system over all parts.
#[derive(Debug, Clone, PartialEq)]
struct Overall {
    name: String,
    /// Geometric mean of its speed relative to ext4.
    mean: f64,
    /// Number of parts in which no rival is better by more than 1 %.
    firsts: usize,
}

impl Overall {
    /// Returns the mean in words.
    fn pace(&self) -> String {
        match Standing::of(self.mean) {
            Standing::Tied => "as fast as ext4".into(),
            _ => format!("{:.2} times as fast as ext4", self.mean),
        }
    }
}

/// Returns the verdict on sheets of one machine with the same settings.
fn verdict(sheets: &[&Sheet]) -> Option<Verdict> {
    let (overall, parts) = overall(sheets);
    let best = overall.first()?;
    let card = &sheets[0].profile;
    let suited = sheets.iter().flat_map(|sheet| &sheet.rows).find(|row| row.name == best.name);
    let options = suited.and_then(|row| row.suited.as_ref()).map_or(String::new(), |it| format!(" ({it})"));
    let (name, pace) = (&best.name, best.pace());
    let mut sentences = vec![match best.firsts == parts {
        true => format!(
            "On this card ({card}) use {name}{options}: no other file system is faster in any of {parts} parts, and \
             over all of them it is {pace} (geometric mean)."
        ),
        false => format!(
            "On this card ({card}) no file system is the fastest in all of {parts} parts, so the choice depends on \
             those that matter. {name}{options} is the fastest over all of them, {pace} (geometric mean), and no \
             other file system is faster in {} of them.",
            best.firsts
        ),
    }];
    let is_ours = |name: &str| name.starts_with(OURS);
    if is_ours(&best.name) {
        if let Some(next) = overall.iter().find(|one| !is_ours(&one.name)) {
            let pace = if next.name == YARDSTICK { String::new() } else { format!(", {}", next.pace()) };
            sentences.push(format!("Of the kernel's file systems {} comes next{pace}.", next.name));
        }
    }
    if let Some(comparison) = main_comparison(sheets.iter().copied()) {
        sentences.extend(standing(&comparison, sheets));
    }
    let failed: Vec<String> = sheets
        .iter()
        .flat_map(|sheet| sheet.rows.iter().filter(|row| row.failure.is_some()).map(move |row| (sheet, row)))
        .map(|(sheet, row)| format!("{} in {}", row.name, sheet.experiment.name()))
        .collect();
    if !failed.is_empty() {
        sentences.push(format!("Not measured to the end: {}.", failed.join(", ")));
    }
    Some(Verdict { machine: sheets[0].machine.clone(), sentences })
}

/// Returns the sentences on ours beside the best rivals: the table that they rest on, the parts in which ours is behind,
/// the processor time, and the engine without a mount.
fn standing(comparison: &Comparison, sheets: &[&Sheet]) -> Vec<String> {
    let of = |comparison: &Comparison| -> Vec<(&Sheet, Lead)> {
        sheets
            .iter()
            .flat_map(|sheet| comparison.leads(sheet).into_iter().map(|lead| (*sheet, lead)))
            .collect()
    };
    let only =
        |leads: &[(&Sheet, Lead)]| -> Vec<Lead> { leads.iter().map(|(_, lead)| lead.clone()).collect() };
    let found = of(comparison);
    let mut sentences =
        vec![format!("This rests on the card's time in the table \"{}\".", comparison.title())];
    let behind: Vec<String> = found
        .iter()
        .filter(|(_, lead)| lead.standing() == Standing::Behind)
        .map(|(sheet, lead)| {
            let experiment = sheet.experiment.name();
            let (rival, figure) = &lead.rival;
            let sign = lead.part.unit.sign();
            let (ours, figure) = (lead.ours.map_or("none".into(), shown), shown(*figure));
            let name = match experiment.starts_with("copy") {
                true => lead.part.title.to_owned(),
                false => format!("{} {}", experiment.replace('_', " "), lead.part.title),
            };
            format!("{name} ({ours} {sign} beside {figure} of {rival})")
        })
        .collect();
    if !behind.is_empty() {
        sentences.push(format!("Our file system is behind in {}.", behind.join(", ")));
    }
    sentences.extend(tally_with_cpu(&only(&found)));
    if comparison.subject == THROUGH_FUSE {
        let engine = COMPARISONS.iter().find(|one| one.subject == OURS);
        let counted = engine
            .and_then(|engine| tally("the engine in this process, which nobody mounts,", &only(&of(engine))));
        sentences.extend(counted);
    }
    sentences
}

/// Returns the file systems that have a figure in every part of ext4, the best first, and the number of these
/// parts. The rows of ours are one program, so none is a rival of another. Where our file system was mounted, the engine
/// in this process does not count, and ours at the defaults never does: they are compared in tables of their own.
fn overall(sheets: &[&Sheet]) -> (Vec<Overall>, usize) {
    let mut ratios: BTreeMap<String, Vec<(f64, bool)>> = BTreeMap::new();
    let mut parts = 0;
    let is_mounted = sheets.iter().any(|sheet| sheet.rows.iter().any(|row| row.name == THROUGH_FUSE));
    let counts = |row: &&Row| {
        let is_engine = is_mounted && row.kind == OURS;
        let is_at_defaults = row.is_ours() && row.name.ends_with("(defaults)");
        !(is_engine || is_at_defaults)
    };
    for sheet in sheets {
        for (n, part) in sheet.parts().iter().enumerate() {
            let speed = |row: &Row| Some(part.unit.times_as_good(row.sound_figure(n)?.to_ext4?, 1.0));
            let best_but = |row: &Row| {
                let rivals = sheet.rows.iter().filter(counts);
                let rivals = rivals.filter(|other| !(row.is_ours() && other.is_ours()));
                rivals.filter_map(speed).fold(0.0, f64::max)
            };
            parts += usize::from(sheet.rows.iter().any(|row| speed(row).is_some()));
            for row in sheet.rows.iter().filter(counts) {
                if let Some(speed) = speed(row) {
                    let is_first = Standing::of(speed / best_but(row)) != Standing::Behind;
                    ratios.entry(row.name.clone()).or_default().push((speed, is_first));
                }
            }
        }
    }
    let whole = ratios.into_iter().filter(|(_, of)| of.len() == parts && parts > 0);
    let mut overall: Vec<Overall> = whole
        .map(|(name, of)| Overall {
            name,
            mean: (of.iter().map(|(speed, _)| speed.ln()).sum::<f64>() / of.len() as f64).exp(),
            firsts: of.iter().filter(|(_, first)| *first).count(),
        })
        .collect();
    overall.sort_by(|a, b| b.mean.total_cmp(&a.mean));
    (overall, parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Experiment, record::tests::record, report::sheets};

    #[test]
    fn the_best_file_system_is_named_with_its_weak_parts() {
        let records = [
            record(Experiment::Mount, "flashkit", &[2.0, 40.0]),
            record(Experiment::Mount, "ext4", &[20.0, 20.0]),
            record(Experiment::Mount, "f2fs", &[10.0, 20.0]),
            record(Experiment::Mount, "nilfs2", &[1.0]),
        ];
        let verdicts = verdicts(&sheets(&records));
        let text = verdicts[0].sentences.join("\n");
        assert!(text.contains("flashkit is the fastest over all of them, 2.24 times as fast"), "{text}");
        assert!(
            text.contains("faster in 0 of them") && !text.contains("use flashkit"),
            "it has losses: {text}"
        );
        assert!(text.contains("f2fs comes next, 1.41 times"), "{text}");
        assert!(text.contains("behind in mount after format (2.00 ms beside 1.00 of nilfs2)"), "{text}");
        assert!(text.contains("Not measured to the end: nilfs2 in mount."), "{text}");
    }

    #[test]
    fn only_a_file_system_without_losses_is_recommended() {
        let mut at_defaults = record(Experiment::Mount, "flashkit", &[1.0, 1.0]);
        at_defaults.cell.file_system.mount = "defaults".into();
        let records = [
            record(Experiment::Mount, "flashkit", &[2.0, 20.1]),
            at_defaults,
            record(Experiment::Mount, "ext4", &[20.0, 20.0]),
        ];
        let verdicts = verdicts(&sheets(&records));
        let text = verdicts[0].sentences.join("\n");
        assert!(text.contains("use flashkit: no other file system is faster in any of 2 parts"), "{text}");
        assert!(text.contains("Of the kernel's file systems ext4 comes next."), "{text}");
        assert!(!text.contains("behind in mount"), "20.1 and 20.0 are a tie: {text}");
    }

    #[test]
    fn the_verdict_is_about_the_mount_and_names_its_table() {
        let records = [
            record(Experiment::Mount, "flashkit", &[2.0, 2.0]),
            record(Experiment::Mount, "flashkit-fuse", &[30.0, 30.0]),
            record(Experiment::Mount, "ext4", &[20.0, 20.0]),
        ];
        let text = verdicts(&sheets(&records))[0].sentences.join("\n");
        assert!(text.contains("use ext4"), "{text}");
        assert!(text.contains("in the table \"flashkit-fuse beside the best rival, "), "{text}");
        assert!(text.contains("behind in mount after format (30.0 ms beside 20.0 of ext4)"), "{text}");
        assert!(
            text.contains("2 parts the engine in this process, which nobody mounts, is ahead in 2"),
            "{text}"
        );
    }
}
