//! Circumstances of a measurement: the facts that differ between two runs of one cell although their figures are
//! equal.
//!
//! *Invariant*: they are in a file of their own beside the record. So the record of a cell on a modelled card is the
//! same, byte for byte, on every machine and at every time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    experiment::Cost,
    record::{Made, Record},
};

/// Date, machine and costs of a measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Circumstances {
    /// Date and command of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Made>,
    /// Kernel and architecture of the host.
    pub host: String,
    /// Wall time of the whole cell, in seconds.
    pub took_s: f64,
    /// Costs of each measured part, from a separate run in real time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub costs: BTreeMap<String, Cost>,
    /// Reason if the run for the costs ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_failure: Option<String>,
}

impl Circumstances {
    /// Takes the circumstances out of a record.
    pub fn take_from(record: &mut Record) -> Circumstances {
        let cost = |phase: &mut crate::experiment::Phase| Some((phase.part.clone(), phase.cost.take()?));
        Circumstances {
            made: record.made.take(),
            host: std::mem::take(&mut record.versions.host),
            took_s: std::mem::take(&mut record.took_s),
            costs: record.phases.iter_mut().filter_map(cost).collect(),
            cost_failure: record.cost_failure.take(),
        }
    }

    /// Puts the circumstances into a record.
    pub fn put_into(mut self, record: &mut Record) {
        record.made = self.made;
        record.versions.host = self.host;
        record.took_s = self.took_s;
        record.cost_failure = self.cost_failure;
        for phase in &mut record.phases {
            phase.cost = self.costs.remove(&phase.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Experiment, record::tests::record};

    #[test]
    fn circumstances_leave_a_record_and_come_back() {
        let mut whole = record(Experiment::Mount, "f2fs", &[1.0, 2.0]);
        whole.made = Some(Made { on: "2026-11-26".into(), by: "flashkit study".into() });
        whole.versions.host = "Linux 6.1".into();
        whole.phases[1].cost = Some(Cost { cpu_ns: 7, memory_bytes: None });
        let mut bare = whole.clone();
        let circumstances = Circumstances::take_from(&mut bare);
        let text = serde_json::to_string(&bare).unwrap();
        for varying in ["2026-11-26", "Linux 6.1", "took_s", "cpu_ns"] {
            assert!(!text.contains(varying), "{varying} is in {text}");
        }
        assert_ne!(bare, whole);
        circumstances.put_into(&mut bare);
        assert_eq!(bare, whole);
    }
}
