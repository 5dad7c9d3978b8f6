//! `card fit` and `card compare`: profiles from measured rates, and beside them.

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    fit::{Fit, FitError, FitReport, HoldOut, RowReport, compare, export, hold_out, report, table},
    profile::Profile,
    rows::{self, Measured},
};

/// The rows to use.
#[derive(Debug, Clone, Default)]
pub struct RowFiles {
    /// The files.
    pub paths: Vec<PathBuf>,
    /// Name of the card, if the files have several.
    pub only: Option<String>,
    /// The allocation unit in bytes, instead of that of the files.
    pub unit_bytes: Option<u64>,
    /// Size of the card in bytes, instead of that of the files.
    pub size_bytes: Option<u64>,
}

impl RowFiles {
    /// Reads the rows.
    ///
    /// # Errors
    /// [`FitError::Rows`].
    pub fn read(&self) -> Result<Measured, FitError> {
        let mut measured = rows::read(&self.paths, self.only.as_deref(), self.unit_bytes)?;
        measured.size_bytes = self.size_bytes.or(measured.size_bytes);
        Ok(measured)
    }
}

/// Judgement of a fit by rows that are left out.
#[derive(Debug, Clone, Copy)]
pub struct Trials {
    /// The rows to leave out.
    pub how: HoldOut,
    /// Seed of the first trial. Each other one has the next.
    pub seed: u64,
    /// Number of trials.
    pub count: u64,
}

/// `card fit ROWS...`. Returns a profile fitted to all rows, and its report. `progress` is called with the share done.
///
/// # Errors
/// [`FitError`].
pub fn fit(
    files: &RowFiles,
    trials: Option<Trials>,
    progress: &mut dyn FnMut(f64),
) -> Result<(Profile, FitReport), FitError> {
    let measured = files.read()?;
    let steps = 1.0 + trials.map_or(0.0, |trials| trials.count as f64);
    let fit = Fit::new(&measured, &mut |share| progress(share * 0.5 / steps))?;
    let profile = export(&fit, &measured)?;
    let mut report = report(&fit, &profile, &measured)?;
    progress(1.0 / steps);
    for n in 0..trials.map_or(0, |trials| trials.count) {
        let Some(Trials { how, seed, .. }) = trials else { continue };
        report.trials.push(hold_out(&measured, how, seed.wrapping_add(n))?);
        progress((n + 2) as f64 / steps);
    }
    Ok((profile, report))
}

/// Rows of a card beside a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Name of the profile.
    pub profile: String,
    /// Name of the measured card.
    pub card: String,
    /// The rows.
    pub rows: Vec<RowReport>,
    /// Share of the rows within 20 %, 0 to 1.
    pub share_within_20_percent: f64,
    /// Median of the relative errors without their signs.
    pub median_error: f64,
}

impl Comparison {
    /// Formats the rows as a table.
    pub fn to_text(&self) -> String {
        table(&self.rows)
    }
}

/// `card compare CARD ROWS...`. `progress` is called with the share done.
///
/// # Errors
/// [`FitError`]; the card refuses a request.
pub fn compare_card(
    profile: &Profile,
    files: &RowFiles,
    progress: &mut dyn FnMut(f64),
) -> Result<Comparison, FitError> {
    let measured = files.read()?;
    let rows = compare(profile, &measured, progress)?;
    let mut errors: Vec<f64> = rows.iter().map(|row| row.error.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let near = errors.iter().filter(|error| **error <= 0.2).count();
    Ok(Comparison {
        profile: profile.name.clone(),
        card: measured.name,
        share_within_20_percent: near as f64 / errors.len().max(1) as f64,
        median_error: errors.get(errors.len() / 2).copied().unwrap_or(0.0),
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(files: &RowFiles, trials: Option<Trials>) -> (Profile, FitReport) {
        fit(files, trials, &mut |_| ()).expect("a fit")
    }

    #[test]
    fn a_profile_is_fitted_to_logs_judged_and_compared_with_them() {
        let logs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/reference/cards-measured.txt");
        let mut files = RowFiles { paths: vec![logs.into()], ..RowFiles::default() };
        let several = fit(&files, None, &mut |_| ()).expect_err("several cards");
        assert!(several.to_string().contains("--only"), "{several}");
        files.only = Some("result_28".into());
        let mut shares = Vec::new();
        let trials = Trials { how: HoldOut::Share(0.5), seed: 3, count: 2 };
        let (profile, report) = fit(&files, Some(trials), &mut |share| shares.push(share)).expect("a fit");
        assert!(shares.is_sorted() && shares.last() == Some(&1.0), "{shares:?}");
        assert_eq!(report.trials.iter().map(|trial| trial.seed).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(report.trials[0].rows.len(), 35);
        let text = report.to_text();
        for part in ["70 rows fitted", "held out, seed 3", "limit of open units", "the times of reads"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let compared = compare_card(&profile, &files, &mut |_| ()).expect("large enough");
        assert!(compared.share_within_20_percent > 0.9, "{}", compared.to_text());
        assert!(compared.to_text().contains("70 rows"));
        let json = serde_json::to_string(&compared).expect("figures");
        assert!(json.contains("\"order\":\"in_order\""), "{json}");
    }

    #[test]
    fn figures_that_rows_do_not_determine_are_told() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("pi.csv");
        let rows =
            "op,order,size,rate\nread,seq,512K,43.9MB/s\nwrite,seq,512K,21.3MB/s\nread,random,4K,10.8MB/s\n";
        std::fs::write(&path, rows).expect("writable");
        let mut files = RowFiles { paths: vec![path.clone()], ..RowFiles::default() };
        let (profile, report) = fitted(&files, None);
        let text = report.to_text();
        assert!(text.contains("other rates do not determine them"), "{text}");
        assert!(text.contains("no row writes several units in turn"), "{text}");
        assert!(text.contains("the rate of writes apart"), "{text}");
        let compared = compare_card(&profile, &files, &mut |_| ()).expect("large enough");
        assert!(compared.share_within_20_percent > 0.99, "{}", compared.to_text());
        files.size_bytes = Some(32_000_000_000);
        let (profile, report) = fitted(&files, None);
        assert!(
            report.to_text().contains("predicted from the random reads and the size"),
            "{}",
            report.to_text()
        );
        assert_eq!(profile.size_bytes, 32_000_000_000);
        // Random writes of 4 KiB as of the 15 cards: about 3 MB/s.
        let four = crate::profile::Order::OutOfOrder;
        let ns = profile.write_cost_ns(four, 4096, 16).expect("a table") as f64;
        assert!((2.0..4.0).contains(&(4096.0 / ns * 1e3)), "{ns}");
        let trials = Trials { how: HoldOut::Count(2), seed: 1, count: 1 };
        assert!(matches!(fit(&files, Some(trials), &mut |_| ()), Err(FitError::TooFew { .. })));
        std::fs::write(&path, rows.replace("21.3MB/s", "fast")).expect("writable");
        let wrong = fit(&files, None, &mut |_| ()).expect_err("no rate").to_string();
        assert!(wrong.ends_with("pi.csv:3: \"fast\" is no rate"), "{wrong}");
    }
}
