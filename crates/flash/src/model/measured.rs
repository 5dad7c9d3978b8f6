//! Writes whose time was measured as a whole (`write_costs` of the profile).
//!
//! The time depends on the size, on the order of the writes in their unit, and on the number of other units that
//! were written since the last write to it. A unit that is written anew counts only the incomplete ones among
//! these, because complete units are closed at no cost.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Model;
use crate::{
    op::Op,
    profile::{Order, Profile},
};

/// Number of units that are remembered.
const VISITS_MAX: usize = 64;

/// A unit written lately.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Visit {
    unit: u64,
    /// End of the last write, in bytes from the start of the unit.
    next: u64,
    /// Bytes written since it was written anew.
    written: u64,
    /// True if they were not written from start to end.
    out_of_order: bool,
}

/// Checks visits from an untrusted file.
pub(super) fn check(visits: &[Visit], profile: &Profile) -> Result<(), String> {
    let unit_bytes = u64::from(profile.locality.unit_bytes);
    let is_valid = |visit: &Visit| {
        unit_bytes > 0
            && visit.unit <= profile.size_bytes / unit_bytes
            && visit.next <= unit_bytes
            && visit.written <= 2 * unit_bytes
    };
    if visits.len() > VISITS_MAX || !visits.iter().all(is_valid) {
        return Err("the list of units written last is invalid".into());
    }
    Ok(())
}

impl Model {
    /// Serves a write whose time was measured as a whole.
    pub(super) fn write_as_measured(&mut self, start_ns: u64, op: &Op, range: &Range<u64>) -> u64 {
        let bytes = range.end - range.start;
        let (order, others) = self.visit(range);
        let cost_ns = |order, others| self.profile.write_cost_ns(order, bytes, others).unwrap_or(0);
        let own_ns = cost_ns(order, others);
        let plain_ns = cost_ns(Order::InOrder, 0).min(own_ns);
        let ready_ns = self.controller(start_ns, 0, 0);
        let cached = self.profile.host.write_cache_bytes > 0;
        let accepted_ns = self.wait_for_cache(ready_ns, bytes);
        let done_ns = self.hold_channels(accepted_ns, own_ns);
        let ends_in_cache = cached && !op.fua;
        if cached {
            self.cache.push_back((done_ns, bytes));
            self.cached_bytes += bytes;
        }
        if !cached {
            self.controller_free_ns = done_ns;
        }
        let time = &mut self.state.counters.time_ns;
        if ends_in_cache {
            time.waited(accepted_ns - ready_ns);
            return accepted_ns;
        }
        time.waited(done_ns - ready_ns - own_ns);
        time.page_program += plain_ns;
        match order {
            Order::InOrder => time.unit_switch += own_ns - plain_ns,
            Order::OutOfOrder => time.merge += own_ns - plain_ns,
        }
        done_ns
    }

    /// Remembers the units of a write. Returns its order, and the number of other units since the last write.
    fn visit(&mut self, range: &Range<u64>) -> (Order, usize) {
        let unit_bytes = u64::from(self.profile.locality.unit_bytes);
        let mut first = None;
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min((start / unit_bytes + 1) * unit_bytes);
            let found = self.visit_unit(start / unit_bytes, start % unit_bytes, end - start);
            first.get_or_insert(found);
            start = end;
        }
        first.unwrap_or((Order::InOrder, 0))
    }

    fn visit_unit(&mut self, unit: u64, at: u64, bytes: u64) -> (Order, usize) {
        let unit_bytes = u64::from(self.profile.locality.unit_bytes);
        let visits = &mut self.state.visits;
        let incomplete = |visits: &[Visit]| visits.iter().filter(|visit| visit.written < unit_bytes).count();
        let found = visits.iter().position(|visit| visit.unit == unit);
        let whole = bytes == unit_bytes;
        let others = match found {
            Some(n) if whole || visits[n].written < unit_bytes => visits.len() - 1 - n,
            Some(n) => incomplete(&visits[n + 1..]),
            None => incomplete(visits),
        };
        let before = found.map(|n| visits.remove(n));
        let anew = before.as_ref().is_none_or(|visit| visit.written >= unit_bytes || whole);
        let mut visit = before.unwrap_or(Visit { unit, next: 0, written: 0, out_of_order: false });
        let order = if anew {
            // A unit that was written out of order is first put in order.
            let in_order = if whole { !visit.out_of_order } else { at == 0 };
            visit.written = 0;
            visit.out_of_order = !whole && !in_order;
            in_order
        } else {
            visit.out_of_order |= at != visit.next;
            !visit.out_of_order
        };
        visit.next = at + bytes;
        visit.written = (visit.written + bytes).min(unit_bytes);
        if visits.len() >= VISITS_MAX {
            visits.remove(0);
        }
        visits.push(visit);
        (if order { Order::InOrder } else { Order::OutOfOrder }, others)
    }
}
