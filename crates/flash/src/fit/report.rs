//! Reports of fits: the figures that the rows determine, and those that they do not.

use std::{collections::BTreeSet, fmt::Write as _};

use serde::Serialize;

use super::{COVERAGE, Fit, FitError, Structure, Trial};
use crate::{
    profile::{Order, Profile},
    rows::{Key, Measured, Operation, simulate, size_text},
};

/// A row is out of the model's reach beyond this relative error.
const REACH: f64 = 0.2;
/// A figure is undetermined if its interval is wider than this factor to each side.
const WIDE: f64 = 1.5;
/// A limit is undetermined if its share of the weight is less than this.
const SURE: f64 = 0.8;
/// Number of lines of a list in text.
const LINES: usize = 8;

/// A row beside the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowReport {
    /// Conditions.
    #[serde(flatten)]
    pub key: Key,
    /// Measured rate in bytes per second.
    pub measured_bytes_per_s: f64,
    /// Rate of the model in bytes per second.
    pub model_bytes_per_s: f64,
    /// Model over measured, less 1.
    pub error: f64,
    /// Line of the file, from 1.
    pub line: usize,
}

/// A prediction under conditions that no row has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellReport {
    /// Conditions.
    #[serde(flatten)]
    pub key: Key,
    /// Predicted rate in bytes per second.
    pub bytes_per_s: f64,
    /// Lower end of the interval.
    pub from_bytes_per_s: f64,
    /// Upper end of the interval.
    pub to_bytes_per_s: f64,
}

/// A limit of open units with its share of the weight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitReport {
    /// The limit; None if there is none.
    pub open_units: Option<u32>,
    /// Its share of the weight, 0 to 1.
    pub share: f64,
}

/// The report of a fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitReport {
    /// Name of the card.
    pub card: String,
    /// Number of fitted rows.
    pub rows: usize,
    /// Median relative error of the rows, each predicted from all others; None without writes.
    pub left_out_median_error: Option<f64>,
    /// The kind of translation layer with the least of these errors.
    pub structure: Option<Structure>,
    /// Limits of open units, the likeliest first.
    pub limits: Vec<LimitReport>,
    /// Rows that the model misses by more than a fifth.
    pub out_of_reach: Vec<RowReport>,
    /// Figures that the rows do not determine.
    pub undetermined: Vec<String>,
    /// Predictions for the sizes and numbers of units of the rows under conditions that no row has.
    pub predictions: Vec<CellReport>,
    /// Judgements by rows that were left out.
    pub trials: Vec<Trial>,
}

/// Compares every row with the model.
///
/// # Errors
/// [`FitError::Refusal`].
pub fn compare(
    profile: &Profile,
    measured: &Measured,
    progress: &mut dyn FnMut(f64),
) -> Result<Vec<RowReport>, FitError> {
    let mut rows = Vec::new();
    for (n, row) in measured.rows.iter().enumerate() {
        let model = simulate::rate(profile, &row.key, measured.unit_bytes)?;
        rows.push(RowReport {
            key: row.key,
            measured_bytes_per_s: row.bytes_per_s,
            model_bytes_per_s: model,
            error: model / row.bytes_per_s - 1.0,
            line: row.line,
        });
        progress((n + 1) as f64 / measured.rows.len() as f64);
    }
    Ok(rows)
}

/// Makes the report of a fit and its profile.
///
/// # Errors
/// [`FitError::Refusal`].
pub fn report(fit: &Fit, profile: &Profile, measured: &Measured) -> Result<FitReport, FitError> {
    let rows = compare(profile, measured, &mut |_| ())?;
    let limits: Vec<LimitReport> =
        fit.limits().into_iter().map(|(open_units, share)| LimitReport { open_units, share }).collect();
    let predictions = predictions(fit, measured);
    Ok(FitReport {
        card: measured.name.clone(),
        rows: measured.rows.len(),
        left_out_median_error: fit.left_out_error(),
        structure: fit.structures().next().map(|(_, structure)| structure),
        undetermined: undetermined(fit, measured, &limits, &predictions),
        limits,
        out_of_reach: rows.into_iter().filter(|row| row.error.abs() > REACH).collect(),
        predictions,
        trials: Vec::new(),
    })
}

/// Predicts all combinations of the rows' sizes, orders and numbers of units that no row has.
fn predictions(fit: &Fit, measured: &Measured) -> Vec<CellReport> {
    let writes = || measured.rows.iter().map(|row| row.key).filter(|key| key.op == Operation::Write);
    let sizes: BTreeSet<u64> = writes().map(|key| key.bytes).collect();
    let units: BTreeSet<Option<u32>> = writes().map(|key| key.units).collect();
    let have: BTreeSet<Key> = writes().map(|key| Key { depth: 1, ..key }).collect();
    let mut all = Vec::new();
    for order in [Order::InOrder, Order::OutOfOrder] {
        for bytes in &sizes {
            for units in &units {
                let key = Key { op: Operation::Write, order, bytes: *bytes, units: *units, depth: 1 };
                let is_impossible = match units {
                    None => order == Order::InOrder,
                    Some(units) => *units > 1 && *bytes > measured.unit_bytes,
                };
                if is_impossible || have.contains(&key) {
                    continue;
                }
                let Some(predicted) = fit.predict(&key) else { continue };
                let rate = |ns: f64| *bytes as f64 / ns * 1e9;
                all.push(CellReport {
                    key,
                    bytes_per_s: rate(predicted.ns),
                    from_bytes_per_s: rate(predicted.to_ns),
                    to_bytes_per_s: rate(predicted.from_ns),
                });
            }
        }
    }
    all
}

fn undetermined(
    fit: &Fit,
    measured: &Measured,
    limits: &[LimitReport],
    predictions: &[CellReport],
) -> Vec<String> {
    let has = |op: Operation, order: Option<Order>| {
        measured.rows.iter().any(|row| row.key.op == op && order.is_none_or(|it| row.key.order == it))
    };
    let mut all = Vec::new();
    if !has(Operation::Write, None) {
        all.push("the times of writes: no row has any".to_string());
    } else if !has(Operation::Write, Some(Order::OutOfOrder)) {
        all.push(match fit.random_writes {
            Some(_) => format!(
                "writes at random: no row has any; predicted from the random reads and the size of the card as 15 \
                 other cards behave, to a factor of {:.1}",
                super::unmeasured::factor()
            ),
            None => "writes at random: no row has any, and other rates do not determine them (random reads of \
                     4 KiB and the size of the card, --size, give a hint)"
                .to_string(),
        });
    }
    let mut sizes =
        measured.rows.iter().filter(|row| row.key.op == Operation::Write).map(|row| row.key.bytes);
    let first = sizes.next();
    if first.is_some() && sizes.all(|bytes| Some(bytes) == first) {
        all.push("the command time and the rate of writes apart: rows of one size only".into());
    }
    let in_turn = |key: &Key| key.op == Operation::Write && key.units.is_none_or(|units| units > 1);
    let several = measured.rows.iter().any(|row| in_turn(&row.key));
    match limits.first() {
        _ if !several => all.push("the limit of open units: no row writes several units in turn".into()),
        Some(best) if best.share < SURE => {
            all.push(format!("the limit of open units: {}", limits_text(limits)))
        }
        _ => {}
    }
    let wide: Vec<&CellReport> = predictions
        .iter()
        .filter(|cell| (cell.to_bytes_per_s / cell.from_bytes_per_s).sqrt() > WIDE)
        .collect();
    if !wide.is_empty() {
        let mut text = format!("write_costs of {} conditions, to a factor of {WIDE}: ", wide.len());
        let names: Vec<String> = wide.iter().take(LINES).map(|cell| cell.key.to_string()).collect();
        text += &names.join("; ");
        text += if wide.len() > LINES { "; ..." } else { "" };
        all.push(text);
    }
    match &fit.reads {
        None => all.push("the times of reads: no row has any".into()),
        Some(reads) if !reads.has_sizes => {
            all.push("the command time and the rate of reads apart: rows of one size only".into());
        }
        _ => {}
    }
    all.push("spare blocks, endurance, erase time, caches, the area of a FAT: no rate shows them".into());
    all
}

fn limits_text(limits: &[LimitReport]) -> String {
    let one = |limit: &LimitReport| {
        let name = limit.open_units.map_or("none".into(), |units| units.to_string());
        format!("{name} ({:.0} %)", limit.share * 100.0)
    };
    limits.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn rate_text(bytes_per_s: f64) -> String {
    format!("{:.0} KB/s", bytes_per_s / 1024.0)
}

impl FitReport {
    /// Formats the report as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}: {} rows fitted\n", self.card, self.rows);
        let mut line = |line: String| writeln!(text, "{line}").expect("writing to a string cannot fail");
        if let Some(error) = self.left_out_median_error {
            line(format!("each row predicted from all others: median error {:.1} %", error * 100.0));
        }
        if !self.limits.is_empty() {
            line(format!("limit of open units: {}", limits_text(&self.limits)));
        }
        if let Some(structure) = &self.structure {
            line(format!("kind of layer: {}", structure_text(structure)));
        }
        for trial in &self.trials {
            line(format!("held out, {}", trial.to_text()));
            if let Some(worst) = trial.worst() {
                line(format!(
                    "  worst: {}: {} measured, {} by the model",
                    worst.key,
                    rate_text(worst.measured_bytes_per_s),
                    rate_text(worst.model_bytes_per_s)
                ));
            }
        }
        line(format!("out of the model's reach (more than 20 % off): {} rows", self.out_of_reach.len()));
        for row in self.out_of_reach.iter().take(LINES) {
            line(format!(
                "  line {}: {}: {} measured, {} by the model",
                row.line,
                row.key,
                rate_text(row.measured_bytes_per_s),
                rate_text(row.model_bytes_per_s)
            ));
        }
        line("not determined by the rows:".into());
        for figure in &self.undetermined {
            line(format!("  {figure}"));
        }
        if !self.predictions.is_empty() {
            line(format!("predicted, with intervals of {:.0} %:", COVERAGE * 100.0));
        }
        for cell in &self.predictions {
            line(format!(
                "  {}: {} ({:.0} to {:.0})",
                cell.key,
                rate_text(cell.bytes_per_s),
                cell.from_bytes_per_s / 1024.0,
                cell.to_bytes_per_s / 1024.0
            ));
        }
        text
    }
}

fn structure_text(structure: &Structure) -> String {
    let mut parts = vec![match structure.open_units {
        Some(units) => format!("{units} open units"),
        None => "any number of open units".into(),
    }];
    if structure.small_write_bytes > 0 {
        let any = if structure.buffer_takes_any { " of any number of units" } else { "" };
        parts.push(format!("a buffer for writes below {}{any}", size_text(structure.small_write_bytes)));
    }
    if structure.granule_below_bytes > 0 {
        parts.push(format!("granules for random writes below {}", size_text(structure.granule_below_bytes)));
    }
    if structure.page_bytes > 4096 {
        parts.push(format!("pages of {}", size_text(structure.page_bytes)));
    }
    parts.join(", ")
}

/// Formats rows beside the model as a table.
pub fn table(rows: &[RowReport]) -> String {
    let mut text = format!("{:<44} {:>12} {:>12} {:>8}\n", "row", "measured", "model", "error");
    for row in rows {
        let (measured, model) = (rate_text(row.measured_bytes_per_s), rate_text(row.model_bytes_per_s));
        let error = format!("{:+.0} %", row.error * 100.0);
        writeln!(text, "{:<44} {measured:>12} {model:>12} {error:>8}", row.key.to_string())
            .expect("writing to a string cannot fail");
    }
    text + &summary(rows) + "\n"
}

/// Formats the errors of rows in one line.
fn summary(rows: &[RowReport]) -> String {
    let mut errors: Vec<f64> = rows.iter().map(|row| row.error.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let near = errors.iter().filter(|error| **error <= REACH).count();
    let median = errors.get(errors.len() / 2).copied().unwrap_or(0.0);
    format!(
        "{} rows: {:.0} % within 20 %, median error {:.1} %",
        rows.len(),
        near as f64 / rows.len().max(1) as f64 * 100.0,
        median * 100.0
    )
}
