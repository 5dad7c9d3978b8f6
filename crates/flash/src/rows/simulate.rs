//! The rate of a model under the conditions of a row.
//!
//! Writes to units follow the pattern of flashbench's `--open-au`: the units are written in turn, each in full. They
//! are written twice, and the second time counts, because flashbench returns to units that its larger sizes have
//! written. Whole units at random follow smaller writes at random, as in flashbench.

use std::{cmp::Reverse, collections::BinaryHeap};

use block::Rng;

use super::{Key, Operation};
use crate::{
    condition::Condition,
    model::Model,
    op::{Op, Refusal},
    profile::{Order, Profile},
};

/// Position of the first unit: beyond the area of a FAT.
const OFFSET_BYTES: u64 = 64 << 20;
/// Size of a large area.
const AREA_BYTES: u64 = 256 << 20;
/// Number of requests in a large area, and of sequential reads.
const REQUESTS: u64 = 2000;

/// Returns the rate in bytes per second of a new card of this profile, full of data. `unit_bytes` is the unit that is
/// written in full.
///
/// # Errors
/// The card refuses a request: it is too small, or worn out.
pub fn rate(profile: &Profile, key: &Key, unit_bytes: u64) -> Result<f64, Refusal> {
    let condition = if profile.is_raw() { Condition::Fresh } else { Condition::Preconditioned };
    let mut model = Model::new(profile.clone(), condition);
    let requests = requests(profile.size_bytes, key, unit_bytes);
    let mut now_ns = 0;
    if key.op == Operation::Write {
        let first = if is_whole_at_random(key, unit_bytes) {
            let piece = Key { bytes: (unit_bytes / 16).max(512), ..*key };
            self::requests(profile.size_bytes, &piece, unit_bytes)
        } else {
            requests.clone()
        };
        now_ns = run(&mut model, &first, 1, now_ns)?;
    }
    let start_ns = now_ns;
    let end_ns = run(&mut model, &requests, key.depth, now_ns)?;
    let bytes: u64 = requests.iter().map(|op| op.length_bytes).sum();
    Ok(bytes as f64 / ((end_ns - start_ns).max(1) as f64 / 1e9))
}

fn is_whole_at_random(key: &Key, unit_bytes: u64) -> bool {
    key.order == Order::OutOfOrder && key.units.is_some() && key.bytes >= unit_bytes
}

/// Returns the requests of a pattern.
fn requests(size_bytes: u64, key: &Key, unit_bytes: u64) -> Vec<Op> {
    let op = |at: u64| match key.op {
        Operation::Read => Op::read(at, key.bytes),
        Operation::Write => Op::write(at, key.bytes),
    };
    let offset = if size_bytes >= 4 * OFFSET_BYTES { OFFSET_BYTES } else { 0 };
    let area = AREA_BYTES.min(size_bytes - offset) / key.bytes * key.bytes;
    match (key.op, key.units) {
        (Operation::Write, Some(units)) if key.bytes <= unit_bytes => {
            let mut order: Vec<u64> = (0..unit_bytes / key.bytes).collect();
            if key.order == Order::OutOfOrder {
                Rng::new(key.bytes).shuffle(&mut order);
            }
            let at = |piece: u64, unit: u32| offset + u64::from(unit) * unit_bytes + piece * key.bytes;
            order.into_iter().flat_map(|piece| (0..units).map(move |unit| op(at(piece, unit)))).collect()
        }
        _ if key.order == Order::InOrder => {
            (0..REQUESTS.min(area / key.bytes)).map(|n| op(offset + n * key.bytes)).collect()
        }
        _ => {
            let mut rng = Rng::new(key.bytes);
            let places = (area / key.bytes).max(1);
            (0..REQUESTS).map(|_| op(offset + rng.below(places) * key.bytes)).collect()
        }
    }
}

/// Makes requests, `depth` at once. Returns the time when the last is done.
fn run(model: &mut Model, requests: &[Op], depth: u32, start_ns: u64) -> Result<u64, Refusal> {
    let mut now_ns = start_ns;
    let mut last_ns = start_ns;
    let mut under_way = BinaryHeap::new();
    for op in requests {
        if under_way.len() >= depth as usize {
            let Reverse(done_ns) = under_way.pop().expect("the depth is at least 1");
            now_ns = now_ns.max(done_ns);
        }
        let done_ns = model.submit(now_ns, *op)?.done_ns;
        last_ns = last_ns.max(done_ns);
        under_way.push(Reverse(done_ns));
    }
    Ok(last_ns)
}
