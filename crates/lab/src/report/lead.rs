//! Leads: our file system compared with the best rival, part by part.

use super::Sheet;
use crate::{experiment::Part, systems::OURS};

/// Ratio of two figures up to which they are a tie.
const TIE: f64 = 1.01;

/// Our figure of a part compared with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Better by more than 1 %.
    Ahead,
    /// Within 1 %.
    Tied,
    /// Worse by more than 1 %.
    Behind,
    /// Not comparable: ours has no figure, or fsck found errors afterwards.
    Unmeasured,
}

impl Standing {
    /// Returns the standing of a figure that is this many times as good as another one.
    pub fn of(times: f64) -> Standing {
        match times {
            times if times > TIE => Standing::Ahead,
            times if times * TIE < 1.0 => Standing::Behind,
            _ => Standing::Tied,
        }
    }

    /// Returns the word for tables.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Ahead => "ahead",
            Standing::Tied => "tie",
            Standing::Behind => "behind",
            Standing::Unmeasured => "not measured",
        }
    }
}

/// A part with our figure and that of the best rival.
#[derive(Debug, Clone, PartialEq)]
pub struct Lead {
    /// The part.
    pub part: Part,
    /// Our figure; `None` if there is none, or if fsck found errors afterwards.
    pub ours: Option<f64>,
    /// The best rival and its figure.
    pub rival: (String, f64),
    /// Ratio of ours to the best rival's, above 1 if ours is better.
    pub times: Option<f64>,
}

impl Lead {
    /// Returns the standing of ours beside the best rival.
    pub fn standing(&self) -> Standing {
        self.times.map_or(Standing::Unmeasured, Standing::of)
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
            let times = ours.map(|ours| part.unit.times_as_good(ours, rival.1));
            leads.push(Lead { part: *part, ours, rival, times });
        }
    }
    leads
}

/// Returns a sentence that counts the parts by standing; `None` without a comparison.
pub fn tally(leads: &[Lead]) -> Option<String> {
    let count = |standing| leads.iter().filter(|lead| lead.standing() == standing).count();
    let [ahead, tied, behind, unmeasured] =
        [Standing::Ahead, Standing::Tied, Standing::Behind, Standing::Unmeasured].map(count);
    let parts = ahead + tied + behind;
    let missing =
        if unmeasured > 0 { format!("; {unmeasured} more were not measured") } else { String::new() };
    (parts > 0).then(|| {
        format!(
            "Of {parts} parts flashkit is ahead in {ahead}, tied (within 1 %) in {tied} and behind in \
             {behind}{missing}."
        )
    })
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
        assert_eq!(leads[0].standing(), Standing::Ahead);
        assert!(leads[0].rival == ("ext4".into(), 6.0) && leads[0].times == Some(1.2));
        assert_eq!(leads[1].standing(), Standing::Behind);
    }

    #[test]
    fn figures_within_one_percent_are_tied() {
        for (times, standing) in [
            (1.02, Standing::Ahead),
            (1.009, Standing::Tied),
            (0.996, Standing::Tied),
            (0.98, Standing::Behind),
        ] {
            assert_eq!(Standing::of(times), standing, "{times}");
        }
    }

    #[test]
    fn a_failed_or_faulty_run_is_neither_ahead_nor_behind() {
        let mut faulty = record(Experiment::Mount, "f2fs", &[1.0, 1.0]);
        faulty.check = Check::Faults { program: "fsck.f2fs".into(), said: String::new() };
        let records = [
            record(Experiment::Mount, "flashkit", &[5.0]),
            record(Experiment::Mount, "ext4", &[6.0, 20.0]),
            faulty,
        ];
        let leads = leads(&sheets(&records)[0]);
        assert!(leads[0].standing() == Standing::Ahead && leads[0].rival.0 == "ext4", "{leads:?}");
        assert!(leads[1].standing() == Standing::Unmeasured && leads[1].ours.is_none(), "{leads:?}");
        let told = "Of 1 parts flashkit is ahead in 1, tied (within 1 %) in 0 and behind in 0; 1 more were not measured.";
        assert_eq!(tally(&leads).as_deref(), Some(told));
        assert_eq!(tally(&leads[1..]), None);
    }
}
