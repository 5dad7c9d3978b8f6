//! The event model: takes a request with its arrival time, and returns its completion time.
//!
//! *Invariants*: the same requests at the same times give the same answers on every machine. Time never goes
//! back. A command that waits for no other costs exactly the sum of its parts in [`TimeCounters`]. The model
//! has no data and no clock of its own: those belong to the [`Card`](crate::Card).
//!
//! The time of a command: the controller takes commands one after the other (command, unit switch, stream
//! miss, read crossing). Data then moves over the link, one command at a time, while pages are programmed on
//! the channels as soon as they have arrived. Merges and garbage collection hold all channels. With a write
//! cache, a write completes when the cache has it, and programmed pages free space in the cache.
//!
//! [`TimeCounters`]: crate::counters::TimeCounters

mod command;
mod measured;
mod parts;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    ops::Range,
};

use serde::{Deserialize, Serialize};

use crate::{
    array::Array,
    condition::Condition,
    counters::Counters,
    fault::{FaultPlan, Faults},
    latency::LatenciesByCommand,
    layer::{Cost, Layer},
    op::{Command, Completion, Op, Refusal},
    profile::Profile,
};

/// A card without data: the effect of each request on the flash, and its time.
#[derive(Debug, Clone)]
pub struct Model {
    profile: Profile,
    state: State,
    faults: Faults,
    /// End times of the commands under way.
    under_way: BinaryHeap<Reverse<u64>>,
    /// Times when the controller, the link and the channels become free.
    controller_free_ns: u64,
    link_free_ns: u64,
    channels_free_ns: Vec<u64>,
    /// Bytes in the write cache, with the end times of their programs.
    cache: VecDeque<(u64, u64)>,
    cached_bytes: u64,
    powered: bool,
}

/// State that survives a loss of power.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    array: Array,
    layer: Layer,
    counters: Counters,
    #[serde(default)]
    latencies: LatenciesByCommand,
    /// End of the last write.
    last_end_bytes: u64,
    /// Ends of the last writes, the newest at the end.
    streams: VecDeque<u64>,
    /// Pages in the single-bit cells.
    #[serde(default)]
    slc_pages: u64,
    /// Units written last, the newest at the end, if the profile has measured times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    visits: Vec<measured::Visit>,
}

impl Model {
    /// Makes a card of this profile.
    pub fn new(profile: Profile, condition: Condition) -> Model {
        profile.check().expect("a profile is checked when it is made");
        let state = State {
            array: Array::new(&profile, condition),
            layer: Layer::new(&profile, condition),
            counters: Counters::default(),
            latencies: LatenciesByCommand::default(),
            last_end_bytes: u64::MAX,
            streams: VecDeque::new(),
            slc_pages: 0,
            visits: Vec::new(),
        };
        Model::resume(profile, state)
    }

    /// Makes a card from the state of a used one.
    pub fn resume(profile: Profile, state: State) -> Model {
        let channels = profile.flash.channels as usize;
        Model {
            profile,
            state,
            faults: Faults::new(FaultPlan::default()),
            under_way: BinaryHeap::new(),
            controller_free_ns: 0,
            link_free_ns: 0,
            channels_free_ns: vec![0; channels],
            cache: VecDeque::new(),
            cached_bytes: 0,
            powered: true,
        }
    }

    /// Does the work of `resume` for a state from an untrusted file.
    ///
    /// # Errors
    /// The reason why it cannot be the state of a card of this profile.
    pub fn resume_checked(profile: Profile, state: State, condition: Condition) -> Result<Model, String> {
        state.array.check(&profile, condition)?;
        state.layer.check(&profile, condition, &state.array)?;
        if state.slc_pages > 0 && profile.slc_cache.is_none() {
            return Err("the profile has no one-bit cells".into());
        }
        if state.streams.len() > profile.locality.streams as usize {
            return Err(format!(
                "{} streams are remembered, more than the profile allows",
                state.streams.len()
            ));
        }
        measured::check(&state.visits, &profile)?;
        if state.counters.largest() > u64::MAX >> 1 {
            return Err("a counter is about to overflow".into());
        }
        let host = &state.counters.host;
        if host.reads_by_log2_bytes.keys().chain(host.writes_by_log2_bytes.keys()).any(|log2| *log2 >= 64) {
            return Err("requests of an impossible size are counted".into());
        }
        Ok(Model::resume(profile, state))
    }

    /// Sets the faults from now on.
    pub fn with_faults(mut self, plan: FaultPlan) -> Model {
        plan.check().expect("a plan is checked when it is read");
        self.faults = Faults::new(plan);
        self
    }

    /// The profile of the card.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the persistent state, for a file.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Counters since the card was made.
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }

    /// Latencies of commands since the card was made.
    pub fn latencies(&self) -> &LatenciesByCommand {
        &self.state.latencies
    }

    /// The flash.
    pub fn array(&self) -> &Array {
        &self.state.array
    }

    /// The translation layer.
    pub fn layer(&self) -> &Layer {
        &self.state.layer
    }

    /// Returns the planned faults.
    pub fn fault_plan(&self) -> &FaultPlan {
        &self.faults.plan
    }

    /// Returns true if the power is on.
    pub fn is_powered(&self) -> bool {
        self.powered
    }

    /// Serves one request that the host makes at `now_ns`. Requests must come in the order of their times.
    ///
    /// # Errors
    /// [`Refusal`]. A refused request takes no time.
    pub fn submit(&mut self, now_ns: u64, op: Op) -> Result<Completion, Refusal> {
        if !self.powered {
            return Err(Refusal::PowerOff);
        }
        let end = op.offset_bytes.checked_add(op.length_bytes);
        if end.is_none_or(|end| end > self.profile.size_bytes) {
            return Err(Refusal::PastEnd { offset_bytes: op.offset_bytes, length_bytes: op.length_bytes });
        }
        let start_ns = self.wait_for_slot(now_ns);
        let range = op.offset_bytes..op.end_bytes();
        let done_ns = match op.command {
            Command::Flush => self.one(start_ns, &op, range)?,
            Command::Discard => self.one(start_ns, &op, range)?,
            Command::Read | Command::Write => {
                let most = u64::from(self.profile.host.max_request_bytes);
                let mut done_ns = start_ns;
                let mut from = range.start;
                loop {
                    let to = range.end.min(from + most);
                    done_ns = self.one(done_ns, &op, from..to)?;
                    from = to;
                    if from >= range.end {
                        break done_ns;
                    }
                }
            }
        };
        self.under_way.push(Reverse(done_ns));
        self.state.latencies.of(op.command).record(done_ns - now_ns);
        Ok(Completion { start_ns, done_ns })
    }

    /// Cuts the power and restores it. The channels stop, the cache is lost, and the layer recovers by
    /// closing the open units. The owner of the data decides which cached data is lost.
    ///
    /// # Errors
    /// [`Refusal::WornOut`].
    pub fn power_cycle(&mut self) -> Result<(), Refusal> {
        self.under_way.clear();
        self.cache.clear();
        self.cached_bytes = 0;
        self.controller_free_ns = 0;
        self.link_free_ns = 0;
        self.channels_free_ns.fill(0);
        self.powered = true;
        self.state.last_end_bytes = u64::MAX;
        self.state.streams.clear();
        let mut cost = Cost::default();
        let recovered = self.state.layer.recover(&mut self.state.array, &mut cost);
        self.settle(&cost);
        recovered
    }

    /// Loses the mapping of the data written last, as a defective card does. Returns the ranges of bytes that were there.
    pub fn lose_mapping(&mut self) -> Vec<Range<u64>> {
        let mut cost = Cost::default();
        let State { layer, array, .. } = &mut self.state;
        let lost = layer.lose_mapping(array, &mut cost);
        self.settle(&cost);
        let page_bytes = u64::from(self.profile.flash.page_bytes);
        let bytes = |page: u32| {
            let start = u64::from(page) * page_bytes;
            start..(start + page_bytes).min(self.profile.size_bytes)
        };
        lost.into_iter().map(bytes).collect()
    }

    /// The host has the maximum number of commands under way, so it waits for the first to end.
    fn wait_for_slot(&mut self, now_ns: u64) -> u64 {
        let depth = self.profile.host.queue_depth as usize;
        while self.under_way.peek().is_some_and(|Reverse(done)| *done <= now_ns) {
            self.under_way.pop();
        }
        let mut start_ns = now_ns;
        while self.under_way.len() >= depth {
            let Reverse(done) = self.under_way.pop().expect("the depth is at least 1");
            start_ns = start_ns.max(done);
        }
        start_ns
    }
}

#[cfg(test)]
mod tests;
