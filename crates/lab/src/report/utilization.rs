//! Experiment 12 as curves over the share of the space that is full: throughput, and write amplification.

use std::error::Error;

use super::{
    Figure, Sheet,
    chart::{self, Curve},
};
use crate::{
    experiment::{Experiment, Phase, levels_percent},
    scale::RECORD_BYTES,
};

/// Bytes that the file system wrote to the card for each byte of the program.
pub(super) fn amplification(phase: &Phase) -> f64 {
    phase.totals.written_bytes as f64 / (phase.records.max(1) * u64::from(RECORD_BYTES)) as f64
}

/// Returns true if a sheet has such curves.
pub(super) fn has_curves(sheet: &Sheet) -> bool {
    sheet.experiment == Experiment::Utilization
}

/// Draws the two charts; each has a title and a picture.
pub(super) fn charts(sheet: &Sheet) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let chart = |title: &str, value: &dyn Fn(&Phase) -> f64| -> Result<(String, String), Box<dyn Error>> {
        Ok((title.to_owned(), chart::curves_between(title, &curves(sheet, value), LEVELS)?))
    };
    Ok(vec![
        chart("MB/s over the share of the space that is full, in percent", &|phase| phase.value)?,
        chart("bytes written to the card for each byte of the program, over that share", &amplification)?,
    ])
}

/// The part of the axis on which the levels lie, in percent.
const LEVELS: std::ops::Range<f64> = 78.0..99.0;

/// Returns a curve for each file system. The new volume is no level.
fn curves(sheet: &Sheet, value: &dyn Fn(&Phase) -> f64) -> Vec<Curve> {
    let rows = sheet.rows.iter().enumerate();
    let curves = rows.map(|(n, row)| {
        let point = |(level, figure): (f64, &Option<Figure>)| Some((level, value(&figure.as_ref()?.phase)));
        let levels = levels_percent().into_iter().zip(&row.figures).skip(1);
        Curve { owner: row.owner(n), points: levels.filter_map(point).collect() }
    });
    curves.filter(|curve| !curve.points.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::tests::record, report::sheets};

    #[test]
    fn each_file_system_has_a_point_for_each_level() {
        let mut one = record(Experiment::Utilization, "f2fs", &[9.0, 8.0, 7.0, 6.0, 5.0]);
        for (n, phase) in (1..).zip(&mut one.phases) {
            (phase.records, phase.totals.written_bytes) = (10, n * 40_960);
        }
        let sheet = &sheets(&[one])[0];
        assert!(has_curves(sheet));
        let speeds = curves(sheet, &|phase| phase.value);
        assert_eq!(speeds[0].points, [(80.0, 8.0), (90.0, 7.0), (95.0, 6.0), (97.5, 5.0)]);
        let writes = curves(sheet, &amplification);
        assert_eq!(writes[0].points, [(80.0, 2.0), (90.0, 3.0), (95.0, 4.0), (97.5, 5.0)]);
        assert_eq!(charts(sheet).unwrap().len(), 2);
        let text = crate::report::text(std::slice::from_ref(sheet));
        assert!(text.contains("written for each byte") && text.contains("3.00"), "{text}");
    }
}
