//! Durations of single writes as figures and curves.

use super::{
    Sheet,
    chart::{Curve, Mark},
};
use crate::{
    experiment::{Experiment, Part},
    preset::Preset,
    published,
    scale::RECORD_BYTES,
};

/// Durations of a part's writes on one file system, measured or published.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Name of the file system.
    pub name: String,
    /// The part.
    pub part: Part,
    /// Number of writes.
    pub count: u64,
    /// Kibibytes per second.
    pub kb_per_s: f64,
    /// Mean.
    pub mean_ms: f64,
    /// Median and 99th percentile; unknown for published figures.
    pub p50_ms: Option<f64>,
    #[allow(missing_docs, reason = "the check before ensures it")]
    pub p99_ms: Option<f64>,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Maximum.
    pub max_ms: f64,
    /// True for our own file system.
    pub is_ours: bool,
    /// True for published figures.
    pub is_published: bool,
}

/// Returns the lines of a sheet, part by part; none if the experiment does not time single writes.
pub fn lines(sheet: &Sheet) -> Vec<Line> {
    let mut lines = Vec::new();
    if sheet.experiment != Experiment::Latency {
        return lines;
    }
    for (n, part) in sheet.parts().iter().enumerate() {
        for row in &sheet.rows {
            let Some(phase) = row.figures[n].as_ref().map(|figure| &figure.phase) else { continue };
            let Some(latencies) = &phase.latencies else { continue };
            let quantile = |share| latencies.quantile_ns(share) as f64 / 1e6;
            let seconds = phase.duration_ns.max(1) as f64 / 1e9;
            lines.push(Line {
                name: row.name.clone(),
                part: *part,
                count: phase.records,
                kb_per_s: phase.records as f64 * f64::from(RECORD_BYTES) / 1024.0 / seconds,
                mean_ms: phase.value,
                p50_ms: Some(quantile(0.5)),
                p99_ms: Some(quantile(0.99)),
                p999_ms: quantile(0.999),
                max_ms: latencies.max_ns() as f64 / 1e6,
                is_ours: row.is_ours(),
                is_published: false,
            });
        }
        if sheet.preset == Preset::Nor && !lines.is_empty() {
            lines.extend(published::latencies(part.name).into_iter().map(|of| Line {
                name: format!("  2003, {}", of.day),
                part: *part,
                count: of.count,
                kb_per_s: of.bytes_per_s / 1024.0,
                mean_ms: of.mean_ms,
                p50_ms: None,
                p99_ms: None,
                p999_ms: of.p999_ms,
                max_ms: of.max_s * 1e3,
                is_ours: false,
                is_published: true,
            }));
        }
    }
    lines
}

/// For each file system in a part, the share of its writes that took at least a given number of milliseconds.
pub(super) fn distributions(sheet: &Sheet, n: usize) -> (Vec<Curve>, Vec<Mark>) {
    let curves = sheet.rows.iter().enumerate().filter_map(|(row_number, row)| {
        let latencies = row.figures[n].as_ref()?.phase.latencies.as_ref()?;
        let count = latencies.count().max(1) as f64;
        let mut points = Vec::new();
        let mut left = latencies.count();
        for (ns, writes) in latencies.steps() {
            let ms = (ns as f64 / 1e6).max(LEAST_MS);
            points.push((ms, left as f64 / count));
            left -= writes.min(left);
            if left > 0 {
                points.push((ms, left as f64 / count));
            }
        }
        Some(Curve { owner: row.owner(row_number), points })
    });
    let part = &sheet.parts()[n];
    let of_part = lines(sheet).into_iter().filter(|line| line.is_published && line.part == *part);
    let marks = of_part.flat_map(|line| {
        [Mark { at: (line.p999_ms, 0.001) }, Mark { at: (line.max_ms, 1.0 / line.count.max(1) as f64) }]
    });
    (curves.collect(), marks.collect())
}

/// For each file system in a part, kibibytes per second over the card's time in seconds.
pub(super) fn progress(sheet: &Sheet, n: usize) -> Vec<Curve> {
    let curves = sheet.rows.iter().enumerate().filter_map(|(row_number, row)| {
        let phase = &row.figures[n].as_ref()?.phase;
        let shares = phase.progress_ns.len();
        let bytes = phase.records as f64 * f64::from(RECORD_BYTES) / shares.max(1) as f64;
        let mut points = Vec::new();
        let mut before = 0;
        for end in &phase.progress_ns {
            let kb_per_s = bytes / 1024.0 / (end.saturating_sub(before).max(1) as f64 / 1e9);
            points.push((before as f64 / 1e9, kb_per_s));
            points.push((*end as f64 / 1e9, kb_per_s));
            before = *end;
        }
        (!points.is_empty()).then_some(Curve { owner: row.owner(row_number), points })
    });
    curves.collect()
}

/// Minimum duration on the logarithmic axis. Shorter ones, such as writes into a cache, are drawn here.
const LEAST_MS: f64 = 0.001;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::tests::record, report::sheets};

    fn sheet(preset: Preset, kind: &str) -> Sheet {
        let mut record = record(Experiment::Latency, kind, &[2.0, 3.0]);
        record.cell.preset = preset;
        let phase = &mut record.phases[0];
        let times: Vec<u64> = (1..=1000).map(|n| n * 1_000_000).collect();
        let mut latencies = flash::latency::Latencies::default();
        times.iter().for_each(|ns| latencies.record(*ns));
        (phase.records, phase.latencies, phase.duration_ns) = (1000, Some(latencies), 500_500_000_000);
        phase.progress_ns = vec![1_000_000_000, 3_000_000_000];
        sheets(&[record]).remove(0)
    }

    #[test]
    fn jffs2s_times_stand_beside_the_published_ones() {
        let of_nor = lines(&sheet(Preset::Nor, "jffs2"));
        let names: Vec<&str> = of_nor.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names[..3], ["jffs2", "  2003, Nov 27", "  2003, Jan 23"]);
        assert!((of_nor[0].p999_ms - 999.0).abs() < 10.0 && of_nor[0].is_published != of_nor[1].is_published);
        assert_eq!((of_nor[1].p999_ms, of_nor[1].max_ms, of_nor[1].count), (3200.0, 3400.0, 100_000));
        let of_card = lines(&sheet(Preset::Desktop, "ext4"));
        assert_eq!(of_card.len(), 1);
    }

    #[test]
    fn curves_fall_from_all_writes_to_the_last() {
        let sheet = sheet(Preset::Nor, "jffs2");
        let (curves, marks) = distributions(&sheet, 0);
        let points = &curves[0].points;
        assert_eq!(points[0].1, 1.0);
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1));
        assert!(points.last().is_some_and(|last| last.1 > 0.0 && last.1 < 0.02));
        assert_eq!(marks.len(), 4);
        let rates: Vec<f64> = progress(&sheet, 0)[0].points.iter().map(|point| point.1).collect();
        assert_eq!(rates, [2000.0, 2000.0, 1000.0, 1000.0]);
    }

    /// Somebody else's record may have any numbers.
    #[test]
    fn times_that_do_not_ascend_are_drawn_without_a_panic() {
        let mut one = record(Experiment::Latency, "f2fs", &[2.0, 3.0]);
        one.phases[0].progress_ns = vec![u64::MAX, 3];
        assert!(!progress(&sheets(&[one])[0], 0).is_empty());
    }
}
