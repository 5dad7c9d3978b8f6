//! Leads: our file system compared with the best rival, part by part.

use super::Sheet;
use crate::{experiment::Part, systems::OURS};

/// A part with our figure and that of the best rival.
#[derive(Debug, Clone, PartialEq)]
pub struct Lead {
    /// The part.
    pub part: Part,
    /// Our figure; `None` if there is none, or if fsck found errors afterwards.
    pub ours: Option<f64>,
    /// The best rival and its figure.
    pub rival: (String, f64),
    /// Ratio of ours to the best rival's, above 1 if ours is better; 0 without a figure.
    pub times: f64,
}

impl Lead {
    /// Returns true if ours is at least as good as every rival.
    pub fn leads(&self) -> bool {
        self.times >= 1.0
    }
}

/// Compares our file system, with default options, with the best rival in each part of a sheet. The result is
/// empty if ours has no row. Figures of a volume with fsck errors do not count.
pub fn leads(sheet: &Sheet) -> Vec<Lead> {
    let value = |row: &super::Row, n: usize| Some(row.sound_figure(n)?.phase.value);
    let mut leads = Vec::new();
    let Some(own_row) = sheet.rows.iter().find(|row| row.name == OURS) else { return leads };
    for (n, part) in sheet.parts().iter().enumerate() {
        let ours = value(own_row, n);
        let rivals = sheet.rows.iter().filter(|row| !row.is_ours());
        let figures = rivals.filter_map(|row| Some((row.name.clone(), value(row, n)?)));
        let best = figures.reduce(
            |best, next| {
                if part.unit.times_as_good(next.1, best.1) > 1.0 { next } else { best }
            },
        );
        if let Some(rival) = best {
            let times = ours.map_or(0.0, |ours| part.unit.times_as_good(ours, rival.1));
            leads.push(Lead { part: *part, ours, rival, times });
        }
    }
    leads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check::Check, experiment::Experiment, record::tests::record, report::sheets};

    #[test]
    fn the_best_rival_is_the_one_to_beat() {
        let records = [
            record(Experiment::Mount, "flashkit", &[5.0, 30.0]),
            record(Experiment::Mount, "ext4", &[6.0, 20.0]),
            record(Experiment::Mount, "f2fs", &[10.0]),
        ];
        let leads = leads(&sheets(&records)[0]);
        assert!(leads[0].leads() && leads[0].rival == ("ext4".into(), 6.0) && leads[0].times == 1.2);
        assert!(!leads[1].leads() && leads[1].times < 0.67);
    }

    #[test]
    fn a_failed_or_faulty_run_never_leads() {
        let mut faulty = record(Experiment::Mount, "f2fs", &[1.0, 1.0]);
        faulty.check = Check::Faults { program: "fsck.f2fs".into(), said: String::new() };
        let records = [
            record(Experiment::Mount, "flashkit", &[5.0]),
            record(Experiment::Mount, "ext4", &[6.0, 20.0]),
            faulty,
        ];
        let leads = leads(&sheets(&records)[0]);
        assert!(leads[0].leads() && leads[0].rival.0 == "ext4", "{leads:?}");
        assert!(!leads[1].leads() && leads[1].ours.is_none(), "{leads:?}");
    }
}
