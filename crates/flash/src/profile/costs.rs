//! Times of whole writes as measured on a card: by order, size, and number of units written in turn.
//!
//! They describe a card of which only rates are known. Between two sizes, the logarithm of the time is linear in
//! that of the size. Below the smallest size the time stays; above the largest it grows with the size.

use serde::{Deserialize, Serialize};

use super::{Profile, ProfileError};

/// Maximum number of sizes, and of numbers of units.
pub(super) const SIZES_MAX: usize = 64;

/// Order of the writes in an allocation unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// From start to end.
    InOrder,
    /// In any other order, until the unit has been written in full.
    OutOfOrder,
}

/// Time of writes of one size in one order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteCost {
    /// Order of the writes.
    pub order: Order,
    /// Size of the write in bytes.
    pub bytes: u32,
    /// Time of the write in nanoseconds if it goes to the unit of the previous write (the first), or if one, two ...
    /// other units were written since the last write to its unit. The last holds for more of them.
    pub ns_by_units: Vec<u64>,
}

impl WriteCost {
    /// Returns the time in nanoseconds if `others` other units were written since the last write to this one.
    fn ns(&self, others: usize) -> f64 {
        self.ns_by_units[others.min(self.ns_by_units.len() - 1)] as f64
    }
}

impl Profile {
    /// Returns the measured time in nanoseconds of a write, if the profile has any. `others` is the number of other
    /// units that were written since the last write to its unit.
    pub fn write_cost_ns(&self, order: Order, bytes: u64, others: usize) -> Option<u64> {
        let of = |order: Order| self.write_costs.iter().filter(move |cost| cost.order == order);
        // A card that was measured in one order only takes the other in the same time.
        let order = if of(order).next().is_some() { order } else { self.write_costs.first()?.order };
        let low = of(order).take_while(|cost| u64::from(cost.bytes) <= bytes).last();
        let high = of(order).find(|cost| u64::from(cost.bytes) > bytes);
        let ns = match (low, high) {
            (Some(low), Some(high)) => {
                let (from, to) = (f64::from(low.bytes).ln(), f64::from(high.bytes).ln());
                let share = ((bytes as f64).ln() - from) / (to - from);
                let (low_ns, high_ns) = (low.ns(others).max(1.0), high.ns(others).max(1.0));
                low_ns * (high_ns / low_ns).powf(share)
            }
            (Some(low), None) => low.ns(others) * bytes as f64 / f64::from(low.bytes),
            (None, Some(high)) => high.ns(others),
            (None, None) => return None,
        };
        Some(ns as u64)
    }

    /// Checks the extra times by size, and the measured times.
    pub(super) fn check_costs(&self) -> Result<(), ProfileError> {
        let fail =
            |figure: &'static str, why: &str| Err(ProfileError::Figure { figure, why: why.to_string() });
        let sizes = &self.time.size_costs;
        if sizes.len() > SIZES_MAX || !sizes.is_sorted_by(|one, next| one.bytes < next.bytes) {
            return fail("time.size_costs", "sizes ascending, at most 64");
        }
        let costs = &self.write_costs;
        if costs.is_empty() {
            return Ok(());
        }
        if self.is_raw() {
            return fail("write_costs", "must be absent for a bare chip");
        }
        let sorted = |order: Order| {
            let of: Vec<u32> =
                costs.iter().filter(|cost| cost.order == order).map(|cost| cost.bytes).collect();
            of.len() <= SIZES_MAX && of.is_sorted_by(|one, next| one < next)
        };
        if !sorted(Order::InOrder) || !sorted(Order::OutOfOrder) {
            return fail("write_costs", "sizes ascending in each order, at most 64");
        }
        if costs.iter().any(|cost| !(1..=SIZES_MAX).contains(&cost.ns_by_units.len()) || cost.bytes < 512) {
            return fail("write_costs", "1 to 64 times for each size, which is at least 512 bytes");
        }
        let unit_bytes = self.locality.unit_bytes;
        if unit_bytes < 4096 || unit_bytes % 512 != 0 {
            return fail(
                "locality.unit_bytes",
                "write_costs need the unit: whole sectors, at least 4096 bytes",
            );
        }
        // The longest write is proportionally longer than the largest measured one.
        let scale = |cost: &WriteCost| u64::from(self.host.max_request_bytes).div_ceil(u64::from(cost.bytes));
        let longest = |cost: &WriteCost| {
            cost.ns_by_units.iter().map(|ns| ns.saturating_mul(scale(cost))).max().unwrap_or(0)
        };
        let largest = |order: Order| costs.iter().rfind(|cost| cost.order == order);
        let too_long = [Order::InOrder, Order::OutOfOrder]
            .into_iter()
            .filter_map(largest)
            .any(|cost| longest(cost) > super::STEP_NS_MAX);
        if too_long {
            return fail("write_costs", "no write may take over 100 s");
        }
        Ok(())
    }
}
