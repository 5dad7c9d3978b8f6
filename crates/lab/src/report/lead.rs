//! Leads: our file system compared with the best rival, part by part.

use super::{Row, Sheet};
use crate::{
    experiment::Part,
    systems::{OURS, THROUGH_FUSE},
};

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

/// A comparison of one row of ours with the best rival, at the same terms in all parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// Name of our row.
    pub subject: &'static str,
    /// The terms, for titles and sentences.
    pub terms: &'static str,
    rivals: Rivals,
}

/// The rows that ours is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rivals {
    /// All, with any options.
    All,
    /// Those at the defaults of their mkfs and mount.
    AtDefaults,
}

const ADVISED: &str = "ours with the options that the probe advises";
const AT_DEFAULTS: &str = "all at the defaults of mkfs and mount";

/// The comparisons in the order of their weight. What users mount comes first; the engine in this process is a part of
/// it that nobody mounts.
pub const COMPARISONS: [Comparison; 4] = [
    Comparison { subject: THROUGH_FUSE, terms: ADVISED, rivals: Rivals::All },
    Comparison { subject: OURS, terms: ADVISED, rivals: Rivals::All },
    Comparison { subject: "flashkit-fuse (defaults)", terms: AT_DEFAULTS, rivals: Rivals::AtDefaults },
    Comparison { subject: "flashkit (defaults)", terms: AT_DEFAULTS, rivals: Rivals::AtDefaults },
];

impl Comparison {
    /// Title of its table.
    pub fn title(&self) -> String {
        format!("{} beside the best rival, {}", self.subject, self.terms)
    }

    /// Compares our row with the best rival in each part of a sheet. The result is empty if ours has no row. Figures
    /// of a volume with fsck errors do not count.
    pub fn leads(&self, sheet: &Sheet) -> Vec<Lead> {
        let Some(own_row) = sheet.rows.iter().find(|row| row.name == self.subject) else { return Vec::new() };
        let is_rival = |row: &&Row| !row.is_ours() && (self.rivals == Rivals::All || row.is_at_defaults());
        let rivals: Vec<&Row> = sheet.rows.iter().filter(is_rival).collect();
        let lead = |(n, part): (usize, &Part)| {
            let best = |value: &dyn Fn(&Row) -> Option<f64>| {
                let figures = rivals.iter().filter_map(|row| Some((row.name.clone(), value(row)?)));
                figures.reduce(
                    |best, next| {
                        if part.unit.times_as_good(next.1, best.1) > 1.0 { next } else { best }
                    },
                )
            };
            let device = |row: &Row| Some(row.sound_figure(n)?.phase.value);
            let both = |row: &Row| row.sound_figure(n)?.phase.with_cpu();
            let (ours, rival) = (device(own_row), best(&device)?);
            let with_cpu = both(own_row).zip(best(&both));
            Some(Lead {
                part: *part,
                ours,
                times: ours.map(|ours| part.unit.times_as_good(ours, rival.1)),
                with_cpu: with_cpu.map(|(ours, rival)| WithCpu {
                    times: part.unit.times_as_good(ours, rival.1),
                    ours,
                    rival,
                }),
                rival,
            })
        };
        sheet.parts().iter().enumerate().filter_map(lead).collect()
    }
}

/// Returns the comparison on which a verdict on these sheets rests: the first one of which ours has a row.
pub fn main_comparison<'a>(sheets: impl IntoIterator<Item = &'a Sheet> + Clone) -> Option<Comparison> {
    let has_row = |one: &Comparison| sheets.clone().into_iter().any(|sheet| !one.leads(sheet).is_empty());
    COMPARISONS.into_iter().find(has_row)
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
    /// The same with the processor time added; `None` where it was not measured.
    pub with_cpu: Option<WithCpu>,
}

/// Figures that follow from the sum of the card's time and the processor's.
#[derive(Debug, Clone, PartialEq)]
pub struct WithCpu {
    /// Our figure.
    pub ours: f64,
    /// The best rival by this sum, and its figure.
    pub rival: (String, f64),
    /// Ratio of ours to the best rival's, above 1 if ours is better.
    pub times: f64,
}

impl Lead {
    /// Returns the standing of ours beside the best rival.
    pub fn standing(&self) -> Standing {
        self.times.map_or(Standing::Unmeasured, Standing::of)
    }

    /// Returns the standing with the processor time added.
    pub fn standing_with_cpu(&self) -> Standing {
        self.with_cpu.as_ref().map_or(Standing::Unmeasured, |both| Standing::of(both.times))
    }
}

/// Returns a sentence that counts the parts by standing; `None` without a comparison.
pub fn tally(subject: &str, leads: &[Lead]) -> Option<String> {
    let [ahead, tied, behind, unmeasured] = counts(leads.iter().map(Lead::standing));
    let parts = ahead + tied + behind;
    let missing =
        if unmeasured > 0 { format!("; {unmeasured} more were not measured") } else { String::new() };
    (parts > 0).then(|| {
        format!(
            "Of {parts} parts {subject} is ahead in {ahead}, tied (within 1 %) in {tied} and behind in \
             {behind}{missing}."
        )
    })
}

/// Returns a sentence that counts the parts by standing with the processor time added; `None` if it was not measured.
pub fn tally_with_cpu(leads: &[Lead]) -> Option<String> {
    let [ahead, tied, behind, _] = counts(leads.iter().map(Lead::standing_with_cpu));
    let parts = ahead + tied + behind;
    (parts > 0).then(|| {
        format!(
            "With the processor time of this machine added, it is ahead in {ahead} of {parts}, tied in {tied} and behind \
             in {behind}."
        )
    })
}

/// Counts standings: ahead, tied, behind and unmeasured.
fn counts(standings: impl Iterator<Item = Standing> + Clone) -> [usize; 4] {
    let count = |wanted| standings.clone().filter(|standing| *standing == wanted).count();
    [Standing::Ahead, Standing::Tied, Standing::Behind, Standing::Unmeasured].map(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::Check,
        experiment::{Cost, Experiment},
        record::{Record, tests::record},
        report::sheets,
    };

    /// Compares the engine in this process.
    fn leads(records: &[Record]) -> Vec<Lead> {
        COMPARISONS[1].leads(&sheets(records)[0])
    }

    #[test]
    fn the_best_rival_is_the_one_to_beat() {
        let records = [
            record(Experiment::Mount, "flashkit", &[5.0, 30.0]),
            record(Experiment::Mount, "ext4", &[6.0, 20.0]),
            record(Experiment::Mount, "f2fs", &[10.0]),
        ];
        let leads = leads(&records);
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
        let leads = leads(&records);
        assert!(leads[0].standing() == Standing::Ahead && leads[0].rival.0 == "ext4", "{leads:?}");
        assert!(leads[1].standing() == Standing::Unmeasured && leads[1].ours.is_none(), "{leads:?}");
        let told = "Of 1 parts flashkit is ahead in 1, tied (within 1 %) in 0 and behind in 0; 1 more were not measured.";
        assert_eq!(tally(OURS, &leads).as_deref(), Some(told));
        assert_eq!(tally(OURS, &leads[1..]), None);
    }

    #[test]
    fn the_mount_is_judged_before_the_engine_and_alone_with_its_processor_time() {
        let with_cpu = |mut one: Record, ms: u64| {
            for phase in &mut one.phases {
                phase.duration_ns = (phase.value * 1e6) as u64;
                phase.cost = Some(Cost { cpu_ns: ms * 1_000_000, memory_bytes: None });
            }
            one
        };
        let records = [
            with_cpu(record(Experiment::Mount, "flashkit", &[1.0, 1.0]), 1),
            with_cpu(record(Experiment::Mount, "flashkit-fuse", &[4.0, 5.0]), 100),
            with_cpu(record(Experiment::Mount, "ext4", &[6.0, 5.0]), 3),
            with_cpu(record(Experiment::Mount, "vfat", &[7.0, 4.98]), 1),
        ];
        let sheets = sheets(&records);
        let main = main_comparison(&sheets).unwrap();
        assert_eq!(main.subject, "flashkit-fuse");
        let leads = main.leads(&sheets[0]);
        let standings: Vec<Standing> = leads.iter().map(Lead::standing).collect();
        assert_eq!(standings, [Standing::Ahead, Standing::Tied]);
        let both = leads[0].with_cpu.as_ref().unwrap();
        assert_eq!((both.ours, both.rival.clone()), (104.0, ("vfat".to_owned(), 8.0)));
        let told = tally_with_cpu(&leads).unwrap();
        assert!(told.ends_with("ahead in 0 of 2, tied in 0 and behind in 2."), "{told}");
        assert_eq!(COMPARISONS[1].leads(&sheets[0])[0].ours, Some(1.0));
        assert_eq!(main_comparison(&sheets[..0]), None);
    }

    #[test]
    fn at_the_defaults_of_all_options_of_rivals_do_not_count() {
        let mut defaults = record(Experiment::Mount, "flashkit-fuse", &[5.0, 5.0]);
        defaults.cell.file_system.mount = "defaults".into();
        let mut shaped = record(Experiment::Mount, "f2fs", &[1.0, 1.0]);
        shaped.cell.file_system.mount = "mode=lfs".into();
        let records = [defaults, shaped, record(Experiment::Mount, "f2fs", &[6.0, 6.0])];
        let sheets = sheets(&records);
        let leads = main_comparison(&sheets).unwrap().leads(&sheets[0]);
        assert_eq!(leads[0].rival, ("f2fs".into(), 6.0));
        assert_eq!(leads[0].standing(), Standing::Ahead);
    }
}
