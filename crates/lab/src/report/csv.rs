//! Figures as comma-separated values, one line per part.

use std::fmt::Write as _;

use crate::record::Record;

/// Formats all figures of all records.
pub fn csv(records: &[Record]) -> String {
    let mut out = String::from(
        "experiment,file_system,preset,profile,clock,seed,part,value,unit,duration_ns,returned_ns,records,reads,\
         read_bytes,writes,written_bytes,flushes,busy_ns,programmed_bytes,block_erases,cpu_ns,memory_bytes,\
         age,full_percent,merge_ns,rounds,steady\n",
    );
    for record in records {
        for phase in &record.phases {
            let (totals, flash) = (&phase.totals, &phase.flash);
            writeln!(
                out,
                "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
                record.cell.experiment.name(),
                quoted(&record.cell.subject()),
                record.cell.preset.name(),
                quoted(&record.profile.0),
                quoted(&record.clock),
                record.seed,
                quoted(&phase.part),
                phase.value,
                phase.unit.sign(),
                phase.duration_ns,
                phase.returned_ns.map_or(String::new(), |ns| ns.to_string()),
                phase.records,
                totals.reads,
                totals.read_bytes,
                totals.writes,
                totals.written_bytes,
                totals.flushes,
                totals.busy_ns,
                flash.programmed_bytes,
                flash.block_erases,
                phase.cost.map_or(String::new(), |cost| cost.cpu_ns.to_string()),
                phase
                    .cost
                    .and_then(|cost| cost.memory_bytes)
                    .map_or(String::new(), |bytes| bytes.to_string()),
                record.age.map_or(String::new(), |age| age.to_string()),
                record.full_percent.map_or(String::new(), |percent| percent.to_string()),
                flash.time_ns.get("merge").copied().unwrap_or(0),
                phase.steady.as_ref().map_or(String::new(), |it| it.figures.len().to_string()),
                phase.steady.as_ref().map_or(String::new(), |it| it.is_reached.to_string()),
            )
            .expect("writing to a string cannot fail");
        }
    }
    out
}

/// Formats the wear maps of all records, one line per piece with erases.
pub fn wear_csv(records: &[Record]) -> String {
    let mut out = String::from("experiment,file_system,preset,profile,seed,first_block,blocks,erases\n");
    for record in records {
        let Some(wear) = &record.wear else { continue };
        for (first, erases) in (0..).step_by(wear.piece_blocks.max(1) as usize).zip(&wear.erases) {
            if *erases > 0 {
                writeln!(
                    out,
                    "{},{},{},{},{},{first},{},{erases}",
                    record.cell.experiment.name(),
                    quoted(&record.cell.subject()),
                    record.cell.preset.name(),
                    quoted(&record.profile.0),
                    record.seed,
                    wear.piece_blocks.min(wear.blocks.saturating_sub(first)),
                )
                .expect("writing to a string cannot fail");
            }
        }
    }
    out
}

/// Quotes a value according to RFC 4180. A spreadsheet takes the sign at the start of a formula for text if an apostrophe stands in
/// front of it.
fn quoted(value: &str) -> String {
    let apostrophe = if value.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    match value.contains([',', '"', '\n', '\r']) {
        true => format!("\"{apostrophe}{}\"", value.replace('"', "\"\"")),
        false => format!("{apostrophe}{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Experiment, record::tests::record, wear::Wear};

    #[test]
    fn each_part_has_a_line_and_commas_are_quoted() {
        let mut one = record(Experiment::Mount, "f2fs", &[1.5, 2.0]);
        one.cell.file_system.mount = "a,b".into();
        let text = csv(&[one]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[1].starts_with("mount,\"f2fs (a,b)\",desktop,card,device,1,after_format,1.5,ms,"),
            "{}",
            lines[1]
        );
        assert_eq!(lines[0].split(',').count(), 27);
        assert!(
            lines[1].ends_with(",,,0,,"),
            "neither aged nor full, without merges or rounds: {}",
            lines[1]
        );
    }

    /// A spreadsheet would compute a formula in somebody else's record.
    #[test]
    fn names_are_quoted_and_are_no_formulas() {
        let mut one = record(Experiment::Mount, "f2fs", &[1.5]);
        one.profile.0 = "x,y\r=1".into();
        one.clock = "=1+1".into();
        one.phases[0].part = "@cmd".into();
        let text = csv(&[one]);
        let line = text.split_once('\n').expect("a head").1;
        assert!(line.starts_with("mount,f2fs,desktop,\"x,y\r=1\",'=1+1,1,'@cmd,1.5,"), "{line}");
    }

    #[test]
    fn each_erased_piece_has_a_line() {
        let mut one = record(Experiment::Mount, "f2fs", &[1.5, 2.0]);
        one.wear = Some(Wear::of_blocks(&[0, 3, 4]));
        let text = wear_csv(&[one]);
        assert!(
            text.ends_with("\nmount,f2fs,desktop,card,1,1,1,3\nmount,f2fs,desktop,card,1,2,1,4\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3);
    }

    /// Somebody else's record may have any numbers.
    #[test]
    fn impossible_wear_is_told_without_a_panic() {
        let mut one = record(Experiment::Mount, "f2fs", &[1.5, 2.0]);
        let wear = Wear { piece_blocks: 0, blocks: 0, erases: vec![u64::MAX; 2], most: 0 };
        assert_eq!(wear.total(), u64::MAX);
        one.wear = Some(wear);
        assert_eq!(wear_csv(&[one]).lines().count(), 3);
    }
}
