//! Faults of a card, from a plan and a seed.

use std::ops::Range;

use block::Rng;
use serde::{Deserialize, Serialize};

use crate::profile::STEP_NS_MAX;

/// A plan of faults. The default is a card without faults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultPlan {
    /// Seed of every choice below.
    pub seed: u64,
    /// The power is cut during this command (from 0).
    pub power_cut_at: Option<u64>,
    /// Reads fail if they touch one of these ranges of bytes.
    pub unreadable_bytes: Vec<Range<u64>>,
    /// A power cut loses the mapping of open logs and of the block in progress. The card comes back without
    /// the data that was written last, flushed or not.
    pub loses_mapping: bool,
    /// The card answers flushes and ignores them.
    pub drops_flushes: bool,
    /// Each command takes longer by up to this share of its time, evenly distributed.
    pub jitter: f64,
    /// Share of the commands that stall for the card's own reasons.
    pub stall_chance: f64,
    /// Duration of such a stall: between 0.5 and 1.5 times this.
    pub stall_ns: u64,
}

impl FaultPlan {
    /// Checks the figures, because a plan may come from an untrusted file.
    ///
    /// # Errors
    /// The first figure out of range, with its range.
    pub fn check(&self) -> Result<(), String> {
        let range = 0.0..=1.0;
        match self {
            plan if !range.contains(&plan.jitter) => Err("jitter: from 0 to 1".into()),
            plan if !range.contains(&plan.stall_chance) => Err("stall_chance: from 0 to 1".into()),
            plan if plan.stall_ns > STEP_NS_MAX => Err("stall_ns: no stall may take over 100 s".into()),
            _ => Ok(()),
        }
    }
}

/// A plan during its execution.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    pub plan: FaultPlan,
    rng: Rng,
    pub commands: u64,
}

impl Faults {
    pub fn new(plan: FaultPlan) -> Faults {
        let rng = Rng::new(plan.seed);
        Faults { plan, rng, commands: 0 }
    }

    /// Counts a command. Returns true if the power is cut during it.
    pub fn cuts_now(&mut self) -> bool {
        self.commands += 1;
        self.plan.power_cut_at == Some(self.commands - 1)
    }

    /// Returns the time that a command of this length loses to noise and stalls.
    pub fn delay_ns(&mut self, service_ns: u64) -> u64 {
        let mut delay = 0;
        if self.plan.jitter > 0.0 {
            delay += (service_ns as f64 * self.plan.jitter * self.rng.unit()) as u64;
        }
        if self.plan.stall_chance > 0.0 && self.rng.chance(self.plan.stall_chance) {
            delay += self.plan.stall_ns / 2 + self.rng.below(self.plan.stall_ns.max(1));
        }
        delay
    }

    pub fn is_unreadable(&self, range: &Range<u64>) -> bool {
        let touches = |bad: &Range<u64>| bad.start < range.end && range.start < bad.end;
        self.plan.unreadable_bytes.iter().any(touches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_plans_are_refused() {
        for text in [
            "jitter = 1e300",
            "jitter = -1.0",
            "jitter = nan",
            "stall_chance = 7.0",
            "stall_chance = -0.5",
            "stall_ns = 9000000000000000000",
        ] {
            let plan: FaultPlan = toml::from_str(text).expect("TOML");
            let figure = text.split(' ').next().expect("a name");
            assert!(plan.check().is_err_and(|why| why.starts_with(figure)), "{text}");
        }
        let plan =
            FaultPlan { jitter: 1.0, stall_chance: 1.0, stall_ns: STEP_NS_MAX, ..FaultPlan::default() };
        assert_eq!(plan.check(), Ok(()));
    }
}
