//! Profiles from fits.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fit, FitError};
use crate::{
    profile::{Flash, Host, Layer, Locality, Order, Profile, Times, WriteCost},
    rows::{Key, Measured, Operation, UNITS_MAX, simulate},
};

/// Size of a card in bytes if the rows do not have it.
const SIZE_BYTES: u64 = 8 << 30;
/// Largest request in bytes that the rows leave open: that of an SD or eMMC host.
const REQUEST_BYTES: u64 = 512 << 10;
/// Page in bytes: the rows do not show it.
const PAGE_BYTES: u32 = 16 << 10;
/// Share of a cost that the last round may change, as a logarithm.
const SETTLED: f64 = 0.005;
/// Rounds of the correction by the model.
const ROUNDS: usize = 6;
/// A pattern with more writes a unit needs no correction: the first one weighs little.
const PIECES_MAX: u64 = 64;
/// Longest time of a write in nanoseconds.
const LONGEST_NS: f64 = 5e10;

const FITTED: &str = "fitted to the measured rates";
const ASSUMED: &str = "assumed: the rows do not show it";

/// Makes a profile of a fit.
///
/// # Errors
/// [`FitError::Profile`], [`FitError::Refusal`]: the rows are contradictory beyond any card.
pub fn export(fit: &Fit, measured: &Measured) -> Result<Profile, FitError> {
    let mut profile = skeleton(fit, measured);
    let columns = columns(measured);
    let has_writes = measured.rows.iter().any(|row| row.key.op == Operation::Write);
    if has_writes {
        for order in [Order::InOrder, Order::OutOfOrder] {
            for bytes in sizes(measured) {
                let ns_by_units =
                    columns.iter().map(|units| cell_ns(fit, order, bytes, *units) as u64).collect();
                profile.write_costs.push(WriteCost { order, bytes: bytes as u32, ns_by_units });
            }
        }
    }
    profile.check()?;
    correct(&mut profile, fit, measured.unit_bytes, &columns)?;
    profile.check()?;
    Ok(profile)
}

/// Returns the predicted time in nanoseconds of one cell of the table.
fn cell_ns(fit: &Fit, order: Order, bytes: u64, units: Option<u32>) -> f64 {
    // Sequences have no large area: the most units stand for it.
    let units = if order == Order::InOrder { units.or(Some(UNITS_MAX.min(16))) } else { units };
    let key = Key { op: Operation::Write, order, bytes, units, depth: 1 };
    fit.predict(&key).map_or(1.0, |predicted| predicted.ns).clamp(1000.0, LONGEST_NS)
}

/// Returns the numbers of units of the table's columns. None stands for a large area.
fn columns(measured: &Measured) -> Vec<Option<u32>> {
    let writes = || measured.rows.iter().filter(|row| row.key.op == Operation::Write);
    let most = writes().filter_map(|row| row.key.units).max().unwrap_or(1).max(2);
    let area = writes().any(|row| row.key.units.is_none());
    (1..=most).map(Some).chain(area.then_some(None)).collect()
}

/// Returns the sizes of the table in bytes: powers of two, and the measured ones.
fn sizes(measured: &Measured) -> BTreeSet<u64> {
    let own: BTreeSet<u64> =
        measured.rows.iter().filter(|row| row.key.op == Operation::Write).map(|row| row.key.bytes).collect();
    let least = own.first().copied().unwrap_or(4096).min(4096);
    let most = own.last().copied().unwrap_or(0).max(measured.unit_bytes.min(4 << 20));
    let powers = (9..=26).map(|log2| 1u64 << log2).filter(|bytes| (least..=most).contains(bytes));
    own.iter().copied().chain(powers).collect()
}

/// Corrects the table until the model takes the predicted times: the first write to each unit of a pattern differs
/// from the others.
fn correct(
    profile: &mut Profile,
    fit: &Fit,
    unit_bytes: u64,
    columns: &[Option<u32>],
) -> Result<(), FitError> {
    for _ in 0..ROUNDS {
        let before = profile.clone();
        let mut largest: f64 = 0.0;
        for cost in &mut profile.write_costs {
            let bytes = u64::from(cost.bytes);
            if bytes > unit_bytes || unit_bytes / bytes > PIECES_MAX || unit_bytes % bytes != 0 {
                continue;
            }
            for (ns, units) in cost.ns_by_units.iter_mut().zip(columns).filter(|(_, it)| it.is_some()) {
                let key = Key { op: Operation::Write, order: cost.order, bytes, units: *units, depth: 1 };
                let wanted_ns = cell_ns(fit, cost.order, bytes, *units);
                let model_ns = bytes as f64 / simulate::rate(&before, &key, unit_bytes)? * 1e9;
                let step = (wanted_ns / model_ns).clamp(0.2, 5.0);
                *ns = (*ns as f64 * step).clamp(1000.0, LONGEST_NS) as u64;
                largest = largest.max(step.ln().abs());
            }
        }
        if largest < SETTLED {
            break;
        }
    }
    Ok(())
}

/// Returns a profile without the times of writes.
fn skeleton(fit: &Fit, measured: &Measured) -> Profile {
    let unit_bytes = measured.unit_bytes;
    let least_bytes = 64 * unit_bytes + (128 << 20);
    let size_bytes = measured.size_bytes.unwrap_or(SIZE_BYTES).max(least_bytes) / 512 * 512;
    let max_request_bytes = measured.rows.iter().map(|row| row.key.bytes).max().unwrap_or(0);
    let depth = measured.rows.iter().map(|row| row.key.depth).max().unwrap_or(1);
    let slowest = |row: &&crate::rows::Row| row.key.op == Operation::Write;
    let program_ns = measured.rows.iter().filter(slowest).map(|row| row.request_ns()).fold(0.0, f64::max);
    let reads = fit.reads;
    let serial = reads.filter(|reads| reads.serial_ns < reads.command_ns);
    let read_page_ns = serial.map_or(0.0, |reads| reads.command_ns - reads.serial_ns);
    Profile {
        name: name(&measured.name),
        title: format!("Fitted to the measured rates of {}", measured.name),
        size_bytes,
        host: Host {
            max_request_bytes: max_request_bytes.max(REQUEST_BYTES) as u32,
            queue_depth: depth,
            flush: false,
            discard: false,
            write_cache_bytes: 0,
        },
        time: Times {
            read_command_ns: reads.map_or(0.0, |reads| reads.serial_ns) as u64,
            read_bytes_per_s: reads
                .filter(|reads| reads.byte_ns > 0.0)
                .map_or(0.0, |reads| 1e9 / reads.byte_ns) as u64,
            read_page_ns: read_page_ns as u64,
            program_page_ns: if program_ns > 0.0 { 1000 } else { 0 },
            ..Times::default()
        },
        flash: Flash {
            page_bytes: PAGE_BYTES,
            block_bytes: unit_bytes.next_multiple_of(u64::from(PAGE_BYTES)) as u32,
            channels: if serial.is_some() { depth.clamp(1, 64) } else { 1 },
            spare_blocks: 64,
            endurance_erases: 3000,
            bad_blocks: 0,
        },
        layer: Layer::Page { reserve_blocks: 4 },
        locality: Locality {
            unit_bytes: unit_bytes as u32,
            read_crossing_ns: crossing_ns(&measured.crossings, unit_bytes) as u64,
            ..Locality::default()
        },
        write_costs: Vec::new(),
        slc_cache: None,
        fat_area: None,
        sources: sources(fit, measured),
    }
}

/// Returns the cost in nanoseconds of a read across the unit: beyond that across smaller boundaries.
fn crossing_ns(crossings: &[(u64, f64)], unit_bytes: u64) -> f64 {
    let mean = |from: u64, to: u64| {
        let found: Vec<f64> =
            crossings.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, ns)| *ns).collect();
        found.iter().sum::<f64>() / found.len().max(1) as f64
    };
    (mean(unit_bytes, u64::MAX) - mean(64 << 10, unit_bytes)).max(0.0)
}

/// Returns a name of lower case, digits and dashes.
fn name(card: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = card.chars().map(plain).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "card".into() } else { name.into() }
}

fn sources(fit: &Fit, measured: &Measured) -> BTreeMap<String, String> {
    let found = |is_found: bool| if is_found { FITTED } else { ASSUMED };
    let given = |is_given: bool| if is_given { "given with the measured rates" } else { ASSUMED };
    let reads = found(fit.reads.is_some());
    let has_writes = measured.rows.iter().any(|row| row.key.op == Operation::Write);
    let mut sources = vec![
        ("size_bytes", given(measured.size_bytes.is_some())),
        ("host.max_request_bytes", "the largest measured request, or 512 KiB"),
        ("host.queue_depth", "the largest measured depth"),
        ("host", ASSUMED),
        ("time.read_command_ns", reads),
        ("time.read_bytes_per_s", reads),
        ("time.read_page_ns", reads),
        ("time", ASSUMED),
        ("flash", ASSUMED),
        ("layer", "assumed: write_costs have its effects"),
        ("locality.unit_bytes", "the unit of the measured patterns"),
        ("locality.read_crossing_ns", found(!measured.crossings.is_empty())),
        ("locality", "assumed: write_costs have its effects"),
    ];
    if has_writes {
        sources.push(("write_costs", FITTED));
    }
    sources.into_iter().map(|(figure, from)| (figure.to_string(), from.to_string())).collect()
}
