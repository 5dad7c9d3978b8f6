//! The event model: a request and the time it comes in, the time it is done out.
//!
//! *Invariants*: the same requests at the same times give the same answers, on every machine; time never goes
//! back; a command that waits for none costs exactly the sum of its parts in [`TimeCounters`]. The model has
//! no data and no clock of its own: those are the [`Card`](crate::Card)'s.
//!
//! How a command's time comes about. The controller takes commands one after the other (command, unit switch,
//! stream miss, read crossing). Data then moves over the link, one command at a time, while pages are
//! programmed on the channels as soon as they have arrived. Merges and garbage collection hold all channels.
//! With a write cache a write is done when the cache has it; the cache gives room as pages are programmed.
//!
//! [`TimeCounters`]: crate::counters::TimeCounters

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    ops::Range,
};

use serde::{Deserialize, Serialize};

use crate::{
    array::Array,
    counters::Counters,
    fault::{FaultPlan, Faults},
    latency::LatenciesByCommand,
    layer::{Cost, Layer},
    op::{CLOCK_END_NS, Command, Completion, Op, Refusal},
    profile::{self, Profile},
};

const SECOND_NS: u128 = 1_000_000_000;

/// A card without data: what each request does to the flash, and how long it takes.
#[derive(Debug, Clone)]
pub struct Model {
    profile: Profile,
    state: State,
    faults: Faults,
    /// When the commands under way are done.
    under_way: BinaryHeap<Reverse<u64>>,
    /// When the controller, the link and the channels are free.
    controller_free_ns: u64,
    link_free_ns: u64,
    channels_free_ns: Vec<u64>,
    /// Bytes in the write cache and when their programs are done.
    cache: VecDeque<(u64, u64)>,
    cached_bytes: u64,
    powered: bool,
}

/// What survives when the card is unplugged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    array: Array,
    layer: Layer,
    counters: Counters,
    #[serde(default)]
    latencies: LatenciesByCommand,
    /// Where the last write ended.
    last_end_bytes: u64,
    /// Ends of the last writes, the newest at the end.
    streams: VecDeque<u64>,
    /// Pages in the cells of one bit.
    #[serde(default)]
    slc_pages: u64,
}

impl Model {
    /// A card of this profile, fresh from the factory, or with every address written once.
    pub fn new(profile: Profile, preconditioned: bool) -> Model {
        profile.check().expect("a profile is checked when it is made");
        let state = State {
            array: Array::new(&profile, preconditioned),
            layer: Layer::new(&profile, preconditioned),
            counters: Counters::default(),
            latencies: LatenciesByCommand::default(),
            last_end_bytes: u64::MAX,
            streams: VecDeque::new(),
            slc_pages: 0,
        };
        Model::resume(profile, state)
    }

    /// A card that was used before.
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

    /// The same for a state from a file that anybody may have written.
    ///
    /// # Errors
    /// What in it cannot be the state of a card of this profile.
    pub fn resume_checked(profile: Profile, state: State, preconditioned: bool) -> Result<Model, String> {
        state.array.check(&profile, preconditioned)?;
        state.layer.check(&profile, preconditioned, &state.array)?;
        if state.slc_pages > 0 && profile.slc_cache.is_none() {
            return Err("there are no cells of one bit".into());
        }
        if state.streams.len() > profile.locality.streams as usize {
            return Err(format!("{} streams are remembered", state.streams.len()));
        }
        if state.counters.largest() > u64::MAX >> 1 {
            return Err("a counter is about to overflow".into());
        }
        let host = &state.counters.host;
        if host.reads_by_log2_bytes.keys().chain(host.writes_by_log2_bytes.keys()).any(|log2| *log2 >= 64) {
            return Err("requests of no size are counted".into());
        }
        Ok(Model::resume(profile, state))
    }

    /// The same card with faults from here on.
    pub fn with_faults(mut self, plan: FaultPlan) -> Model {
        plan.check().expect("a plan is checked when it is read");
        self.faults = Faults::new(plan);
        self
    }

    /// What the card is.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What survives, to be kept in a file.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What was counted since the card was made.
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }

    /// How long commands took since the card was made.
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

    /// The faults that are planned.
    pub fn fault_plan(&self) -> &FaultPlan {
        &self.faults.plan
    }

    /// Whether the power is on.
    pub fn is_powered(&self) -> bool {
        self.powered
    }

    /// Serves one request that the host makes at `now_ns`. Requests come in the order of their times.
    ///
    /// # Errors
    /// [`Refusal`]; a refused request takes no time.
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

    /// The power goes and comes back. The channels stop, the cache is lost, and the layer recovers: open
    /// units are closed. Which cached data is lost is for the one who holds the data to say.
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

    /// The mapping of what was written last is lost, as the plan says. The ranges of bytes that were there.
    pub(crate) fn lose_mapping(&mut self) -> Vec<Range<u64>> {
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

    /// The host has as many commands under way as it may: it waits for the first to be done.
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

    /// One command of at most the host's largest size.
    fn one(&mut self, start_ns: u64, op: &Op, range: Range<u64>) -> Result<u64, Refusal> {
        let busy_ns = self.channels_free_ns.iter().copied().fold(self.controller_free_ns, u64::max);
        if start_ns.max(busy_ns).max(self.link_free_ns) > CLOCK_END_NS {
            return Err(Refusal::ClockEnd);
        }
        if self.faults.cuts_now() {
            self.powered = false;
            return Err(Refusal::PowerOff);
        }
        let done_ns = match op.command {
            Command::Read => self.read(start_ns, &range)?,
            Command::Write => self.write(start_ns, &range, op.fua)?,
            Command::Flush => self.flush(start_ns),
            Command::Discard => self.discard(start_ns, &range)?,
        };
        self.state.counters.count_command(op.command, &range);
        let stall_ns = self.faults.delay_ns(done_ns - start_ns);
        if stall_ns > 0 {
            self.state.counters.time_ns.stall += stall_ns;
            self.controller_free_ns = self.controller_free_ns.max(done_ns + stall_ns);
        }
        Ok(done_ns + stall_ns)
    }

    fn read(&mut self, start_ns: u64, range: &Range<u64>) -> Result<u64, Refusal> {
        if self.faults.is_unreadable(range) {
            return Err(Refusal::Medium { offset_bytes: range.start });
        }
        let unit = u64::from(self.profile.locality.unit_bytes);
        let crosses = unit > 0 && !range.is_empty() && range.start / unit != (range.end - 1) / unit;
        let crossing_ns = if crosses { self.profile.locality.read_crossing_ns } else { 0 };
        let times = &self.profile.time;
        let ready_ns = self.controller(start_ns, times.read_command_ns, crossing_ns);
        let page_bytes = u64::from(self.profile.flash.page_bytes);
        let pages = range.end.div_ceil(page_bytes) - range.start / page_bytes;
        self.state.array.read(pages as u32);
        // Pages are read side by side from the channel of their address on.
        let read_page_ns = self.profile.time.read_page_ns;
        let read_ns = match read_page_ns {
            0 => ready_ns,
            _ => {
                let first = range.start / page_bytes;
                (first..first + pages)
                    .map(|page| self.on_channel(page, ready_ns, read_page_ns))
                    .max()
                    .unwrap_or(ready_ns)
            }
        };
        let transfer_ns = transfer_ns(range.end - range.start, self.profile.time.read_bytes_per_s);
        let link_ns = read_ns.max(self.link_free_ns);
        let done_ns = link_ns + transfer_ns;
        if transfer_ns > 0 {
            self.link_free_ns = done_ns;
        }
        let alone_ns = read_page_ns * pages.div_ceil(self.channels_free_ns.len() as u64);
        let time = &mut self.state.counters.time_ns;
        time.read_crossing += crossing_ns;
        time.page_read += (read_ns - ready_ns).min(alone_ns);
        time.waited((read_ns - ready_ns).saturating_sub(alone_ns) + (link_ns - read_ns));
        time.transfer += transfer_ns;
        self.settle(&Cost::default());
        Ok(done_ns)
    }

    fn write(&mut self, start_ns: u64, range: &Range<u64>, fua: bool) -> Result<u64, Refusal> {
        let mut cost = Cost::default();
        let continues = range.start == self.state.last_end_bytes;
        let State { layer, array, .. } = &mut self.state;
        let written = layer.write(array, range.clone(), continues, &mut cost);
        let (switch_ns, miss_ns) = self.locate(range);
        self.settle(&cost);
        written?;
        let bytes = range.end - range.start;
        let times = &self.profile.time;
        let short = bytes < u64::from(times.short_write_bytes) && cost.fat_pages == 0;
        let command_ns = times.write_command_ns + if short { times.short_write_ns } else { 0 };
        let ready_ns = self.controller(start_ns, command_ns, switch_ns + miss_ns);
        let link_ns = ready_ns.max(self.link_free_ns);
        let transfer_ns = transfer_ns(bytes, self.profile.time.write_bytes_per_s);
        let accepted_ns = self.wait_for_cache(link_ns + transfer_ns, bytes);
        if transfer_ns > 0 {
            self.link_free_ns = link_ns + transfer_ns;
        }
        let small_ns = match self.profile.layer {
            profile::Layer::Hybrid { small_write_ns, .. } => small_write_ns * cost.small_writes,
            _ => 0,
        };
        let merge_ns = self.merge_ns(&cost);
        let cached = self.profile.host.write_cache_bytes > 0;
        let begin_ns = if cached { accepted_ns } else { link_ns };
        let slc_pages = self.take_slc(begin_ns, cost.pages - cost.fat_pages);
        let free_ns = self.hold_channels(begin_ns, merge_ns + small_ns);
        let arriving_ns = if cached { 0 } else { transfer_ns };
        let programmed_ns = self.program(&cost, slc_pages, free_ns, arriving_ns, range);
        let done_ns = if cached && !fua { accepted_ns } else { programmed_ns.max(accepted_ns) };
        if cached {
            self.cache.push_back((programmed_ns, bytes));
            self.cached_bytes += bytes;
        }
        let page_ns = self.own_program_ns(&cost, slc_pages);
        let time = &mut self.state.counters.time_ns;
        time.unit_switch += switch_ns;
        time.stream_miss += miss_ns;
        if cached && !fua {
            time.transfer += transfer_ns;
            time.waited(done_ns - ready_ns - transfer_ns);
        } else {
            // What is left when the named parts are taken off is the wait for what others hold.
            let mut left = done_ns - ready_ns;
            let mut part = |ns: u64| {
                let ns = ns.min(left);
                left -= ns;
                ns
            };
            time.merge += part(merge_ns);
            time.small_write += part(small_ns);
            time.page_program += part(page_ns);
            time.transfer += part(transfer_ns);
            time.waited(left);
        }
        Ok(done_ns)
    }

    fn flush(&mut self, start_ns: u64) -> u64 {
        if !self.profile.host.flush || self.faults.plan.drops_flushes {
            return start_ns;
        }
        let mut ready_ns = start_ns.max(self.controller_free_ns);
        if self.profile.host.write_cache_bytes > 0 {
            ready_ns = self.cache.iter().map(|(done, _)| *done).fold(ready_ns, u64::max);
            self.cache.clear();
            self.cached_bytes = 0;
        }
        let flush_ns = self.profile.time.flush_ns;
        self.controller_free_ns = ready_ns + flush_ns;
        self.state.counters.time_ns.waited(ready_ns - start_ns);
        self.state.counters.time_ns.flush += flush_ns;
        ready_ns + flush_ns
    }

    fn discard(&mut self, start_ns: u64, range: &Range<u64>) -> Result<u64, Refusal> {
        if !self.profile.host.discard && !self.profile.is_raw() {
            return Ok(start_ns);
        }
        let mut cost = Cost::default();
        let State { layer, array, .. } = &mut self.state;
        let discarded = layer.discard(array, range.clone(), &mut cost);
        self.settle(&cost);
        discarded?;
        let ready_ns = start_ns.max(self.controller_free_ns);
        // A bare chip's host waits for the erases; a card does them when it likes.
        let erases = if self.profile.is_raw() { cost.erases } else { 0 };
        let own_ns = self.profile.time.discard_ns + erases * self.profile.time.erase_block_ns;
        self.controller_free_ns = ready_ns + own_ns;
        self.state.counters.time_ns.waited(ready_ns - start_ns);
        self.state.counters.time_ns.discard += own_ns;
        Ok(ready_ns + own_ns)
    }

    /// The controller takes a command: when it is through with it.
    fn controller(&mut self, start_ns: u64, command_ns: u64, extra_ns: u64) -> u64 {
        let begin_ns = start_ns.max(self.controller_free_ns);
        self.controller_free_ns = begin_ns + command_ns + extra_ns;
        self.state.counters.time_ns.waited(begin_ns - start_ns);
        self.state.counters.time_ns.command += command_ns;
        self.controller_free_ns
    }

    /// What a write costs because of where it is: a unit switch, and a stream miss.
    fn locate(&mut self, range: &Range<u64>) -> (u64, u64) {
        let locality = &self.profile.locality;
        let state = &mut self.state;
        let last_end = std::mem::replace(&mut state.last_end_bytes, range.end);
        let page = u64::from(self.profile.flash.page_bytes);
        state.counters.host.unaligned_writes += u64::from(range.start % page != 0 || range.end % page != 0);
        state.counters.host.continuing_writes += u64::from(range.start == last_end);
        let in_fat = self.profile.fat_area.as_ref().is_some_and(|fat| {
            fat.start_bytes <= range.start && range.end <= fat.start_bytes + fat.length_bytes
        });
        if locality.unit_bytes == 0 || in_fat {
            return (0, 0);
        }
        let unit_bytes = u64::from(locality.unit_bytes);
        let unit = range.start / unit_bytes;
        let last_unit = last_end.checked_sub(1).filter(|_| last_end != u64::MAX).map(|end| end / unit_bytes);
        let known = state.streams.iter().position(|end| *end == range.start);
        let same = last_unit == Some(unit);
        let ascends = (same && range.start >= last_end) || last_unit.is_some_and(|last| unit == last + 1);
        let mut misses = false;
        // An ascending gap moves the stream that ended there.
        let moved = match known {
            Some(at) => Some(at),
            None if ascends => state.streams.iter().position(|end| *end == last_end),
            None => {
                misses = true;
                None
            }
        };
        if let Some(at) = moved {
            state.streams.remove(at);
        } else if state.streams.len() >= locality.streams as usize {
            state.streams.pop_front();
        }
        if locality.streams > 0 {
            state.streams.push_back(range.end);
        }
        // Going on at a unit's start, or upwards with a gap, costs no switch.
        let switches = !same && range.start % unit_bytes != 0 && !(ascends && known.is_none());
        state.counters.layer.unit_switches += u64::from(switches);
        state.counters.layer.stream_misses += u64::from(misses);
        (if switches { locality.unit_switch_ns } else { 0 }, if misses { locality.stream_miss_ns } else { 0 })
    }

    /// Waits until the cache has room for a write.
    fn wait_for_cache(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let room = u64::from(self.profile.host.write_cache_bytes);
        let mut at_ns = now_ns;
        while let Some((done, held)) = self.cache.front().copied() {
            if done > at_ns && self.cached_bytes + bytes <= room {
                break;
            }
            at_ns = at_ns.max(done);
            self.cached_bytes -= held;
            self.cache.pop_front();
        }
        at_ns
    }

    /// All channels are busy with something for the whole card.
    fn hold_channels(&mut self, from_ns: u64, for_ns: u64) -> u64 {
        if for_ns == 0 {
            return from_ns;
        }
        let begin_ns = self.channels_free_ns.iter().copied().fold(from_ns, u64::max);
        self.channels_free_ns.fill(begin_ns + for_ns);
        begin_ns + for_ns
    }

    fn on_channel(&mut self, page: u64, ready_ns: u64, for_ns: u64) -> u64 {
        let count = self.channels_free_ns.len() as u64;
        let free = &mut self.channels_free_ns[(page % count) as usize];
        *free = ready_ns.max(*free) + for_ns;
        *free
    }

    /// How many of these pages go to cells of one bit. Those were emptied while all channels had nothing to do.
    fn take_slc(&mut self, now_ns: u64, pages: u64) -> u64 {
        let Some(slc) = &self.profile.slc_cache else { return 0 };
        let times = &self.profile.time;
        let channels = self.channels_free_ns.len() as u64;
        let idle_ns = now_ns.saturating_sub(self.channels_free_ns.iter().copied().fold(0, u64::max));
        let step_ns = (times.read_page_ns + times.program_page_ns).max(1);
        let moved = (idle_ns / step_ns).saturating_mul(channels).min(self.state.slc_pages);
        self.state.slc_pages -= moved;
        self.state.counters.layer.slc_moved_pages += moved;
        self.state.counters.flash.page_reads += moved;
        self.state.counters.flash.page_programs += moved;
        let room = slc.size_bytes / u64::from(self.profile.flash.page_bytes);
        let taken = pages.min(room.saturating_sub(self.state.slc_pages));
        self.state.slc_pages += taken;
        self.state.counters.layer.slc_pages += taken;
        taken
    }

    /// Programs the pages of a command as they arrive, the first after the FAT area's in cells of one bit; when the
    /// last is done.
    fn program(
        &mut self,
        cost: &Cost,
        slc_pages: u64,
        from_ns: u64,
        transfer_ns: u64,
        range: &Range<u64>,
    ) -> u64 {
        if cost.pages == 0 {
            return from_ns + transfer_ns;
        }
        let fat_ns = self.profile.fat_area.as_ref().map_or(0, |fat| fat.program_page_ns);
        let program_ns = self.profile.time.program_page_ns;
        let slc_ns = self.profile.slc_cache.as_ref().map_or(0, |slc| slc.program_page_ns);
        let fill_ns = self.profile.time.read_page_ns * cost.filled_pages;
        let first = range.start / u64::from(self.profile.flash.page_bytes);
        let mut done_ns = from_ns;
        for n in 0..cost.pages {
            let arrived_ns = from_ns + fill_ns + share(transfer_ns, n + 1, cost.pages);
            let page_ns = match n {
                n if n < cost.fat_pages => fat_ns,
                n if n < cost.fat_pages + slc_pages => slc_ns,
                _ => program_ns,
            };
            done_ns = done_ns.max(self.on_channel(first + n, arrived_ns, page_ns));
        }
        done_ns
    }

    /// How long the pages of a command take on channels that are free.
    fn own_program_ns(&self, cost: &Cost, slc_pages: u64) -> u64 {
        let channels = self.channels_free_ns.len() as u64;
        let fat_ns = self.profile.fat_area.as_ref().map_or(0, |fat| fat.program_page_ns);
        self.profile.time.read_page_ns * cost.filled_pages
            + fat_ns * cost.fat_pages.div_ceil(channels)
            + self.profile.slc_cache.as_ref().map_or(0, |slc| slc.program_page_ns)
                * slc_pages.div_ceil(channels)
            + self.profile.time.program_page_ns * (cost.pages - cost.fat_pages - slc_pages).div_ceil(channels)
    }

    /// How long merges and garbage collection take.
    fn merge_ns(&self, cost: &Cost) -> u64 {
        let time = &self.profile.time;
        let channels = self.channels_free_ns.len() as u64;
        let copies_ns =
            cost.copied_pages.div_ceil(channels).saturating_mul(time.read_page_ns + time.program_page_ns);
        copies_ns.saturating_add(cost.erases.saturating_mul(time.erase_block_ns)).min(CLOCK_END_NS)
    }

    /// Moves what the array and the layer did into the counters.
    fn settle(&mut self, cost: &Cost) {
        let work = self.state.array.take_work();
        let flash = &mut self.state.counters.flash;
        flash.page_programs += work.programs;
        flash.page_reads += work.reads;
        flash.block_erases += work.erases;
        self.state.counters.count_cost(cost);
    }
}

/// `part` of `whole` of a time. A page's share of what the link takes is asked for each page: exact, and quick.
fn share(ns: u64, part: u64, whole: u64) -> u64 {
    match ns.checked_mul(part) {
        Some(product) => product / whole,
        None => (u128::from(ns) * u128::from(part) / u128::from(whole)) as u64,
    }
}

/// Time on a link; a rate of 0 is a link that costs none.
fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    match bytes_per_s {
        0 => 0,
        rate => (u128::from(bytes) * SECOND_NS / u128::from(rate)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        array::{BlockNo, NOTHING},
        profile::{FatArea, Flash, Host, Layer as Kind, Locality, SlcCache, Times},
    };

    const US: u64 = 1000;

    /// 8 MiB of 4 KiB pages in blocks of 64 KiB.
    fn profile(layer: Kind) -> Profile {
        Profile {
            name: "test".into(),
            title: "test".into(),
            size_bytes: 8 << 20,
            host: Host {
                max_request_bytes: 128 << 10,
                queue_depth: 1,
                flush: true,
                discard: true,
                write_cache_bytes: 0,
            },
            time: Times {
                read_command_ns: 100 * US,
                write_command_ns: 200 * US,
                flush_ns: 50 * US,
                discard_ns: 10 * US,
                read_bytes_per_s: 1_000_000_000,
                write_bytes_per_s: 0,
                read_page_ns: 30 * US,
                program_page_ns: 300 * US,
                erase_block_ns: 2000 * US,
                ..Times::default()
            },
            flash: Flash {
                page_bytes: 4096,
                block_bytes: 64 << 10,
                channels: 1,
                spare_blocks: 16,
                endurance_erases: 1_000_000,
                bad_blocks: 1,
            },
            layer,
            locality: Locality::default(),
            slc_cache: None,
            fat_area: None,
            sources: Default::default(),
        }
    }

    /// The longest steps that a profile may have, and one that is near its end already.
    #[test]
    fn the_clock_ends_before_it_overflows() {
        for layer in [hybrid(2, 0), hybrid(3, 3), Kind::Page { reserve_blocks: 4 }] {
            let mut slow = profile(layer);
            let longest = crate::profile::STEP_NS_MAX;
            slow.host.queue_depth = 64;
            slow.time.program_page_ns = longest;
            slow.time.read_page_ns = longest;
            slow.time.erase_block_ns = longest;
            slow.time.write_bytes_per_s = 1;
            let plan =
                FaultPlan { jitter: 1.0, stall_chance: 0.5, stall_ns: longest, ..FaultPlan::default() };
            let mut model = Model::new(slow, true).with_faults(plan);
            let mut now = CLOCK_END_NS - (1 << 57);
            let mut refused = false;
            for n in 0..3000u64 {
                match model.submit(now, Op::write(n * 37 % 60 * (128 << 10), 128 << 10)) {
                    Ok(done) => now = now.max(done.start_ns),
                    Err(refusal) => {
                        refused = refusal == Refusal::ClockEnd;
                        break;
                    }
                }
            }
            assert!(refused || now < CLOCK_END_NS);
            let error = model.submit(u64::MAX, Op::read(0, 4096)).unwrap_err();
            assert_eq!(error, Refusal::ClockEnd);
            model.counters().time_ns.total();
        }
    }

    fn hybrid(open_units: u32, open_random: u32) -> Kind {
        Kind::Hybrid { au_bytes: 256 << 10, open_units, open_random, small_write_bytes: 0, small_write_ns: 0 }
    }

    fn run(model: &mut Model, ops: impl IntoIterator<Item = Op>) -> u64 {
        let mut now = 0;
        for op in ops {
            now = model.submit(now, op).expect("a valid request").done_ns;
        }
        now
    }

    /// Time of `op` as the next request.
    fn cost(model: &mut Model, op: Op) -> u64 {
        let now =
            model.controller_free_ns.max(model.channels_free_ns[0]).max(model.link_free_ns) + 1_000_000_000;
        let done = model.submit(now, op).expect("a valid request").done_ns;
        done - now
    }

    #[test]
    fn a_request_costs_the_sum_of_its_parts() {
        let mut model = Model::new(profile(hybrid(2, 0)), false);
        assert_eq!(cost(&mut model, Op::write(0, 8192)), (200 + 2 * 300) * US);
        assert_eq!(cost(&mut model, Op::read(0, 8192)), (100 + 2 * 30) * US + 8192);
        assert_eq!(cost(&mut model, Op::read(4095, 2)), (100 + 2 * 30) * US + 2);
        assert_eq!(cost(&mut model, Op::flush()), 50 * US);
        assert_eq!(model.counters().time_ns.total(), (800 + 160 + 160 + 50) * US + 8194);
    }

    #[test]
    fn requests_are_split_at_the_largest_command() {
        let mut model = Model::new(profile(hybrid(2, 0)), false);
        assert_eq!(cost(&mut model, Op::write(0, 256 << 10)), (2 * 200 + 64 * 300) * US);
        assert_eq!(model.counters().host.writes, 2);
    }

    #[test]
    fn an_open_unit_too_many_costs_merges() {
        let write = |au: u64, n: u64| Op::write(au * (256 << 10) + n * 4096, 4096);
        for (units, slow) in [(2, false), (3, true)] {
            let mut model = Model::new(profile(hybrid(2, 0)), true);
            let ops = (0..16).flat_map(|n| (0..units).map(move |au| write(au, n)));
            run(&mut model, ops);
            let layer = &model.counters().layer;
            assert_eq!(layer.partial_merges > 0, slow, "{units} units: {layer:?}");
            assert_eq!(layer.full_merges, 0);
            assert_eq!(model.layer().open_units().len(), 2);
        }
    }

    #[test]
    fn full_blocks_are_switched_without_a_copy() {
        let mut model = Model::new(profile(hybrid(2, 0)), true);
        run(&mut model, (0..128).map(|n| Op::write(n * 4096, 4096)));
        let layer = &model.counters().layer;
        assert_eq!((layer.switch_merges, layer.copied_pages), (8, 0));
        assert_eq!(model.counters().flash.block_erases, 8);
        assert_eq!(model.counters().write_amplification(4096), Some(1.0));
    }

    #[test]
    fn random_order_is_merged_in_full_or_bit_by_bit() {
        let shuffled = || {
            let mut order: Vec<u64> = (0..16).collect();
            block::Rng::new(3).shuffle(&mut order);
            order.into_iter().map(|n| Op::write(n * 4096, 4096))
        };
        let mut capable = Model::new(profile(hybrid(2, 1)), true);
        run(&mut capable, shuffled().chain([Op::write(0, 4096)]));
        assert_eq!(capable.counters().layer.full_merges, 1);
        assert_eq!(capable.counters().layer.copied_pages, 16);
        let mut linear = Model::new(profile(hybrid(2, 0)), true);
        run(&mut linear, shuffled());
        assert!(linear.counters().layer.copied_pages > 64, "{:?}", linear.counters().layer);
    }

    #[test]
    fn the_locality_terms_follow_their_rules() {
        let mut card = profile(Kind::Page { reserve_blocks: 2 });
        card.locality = Locality {
            unit_bytes: 1 << 20,
            unit_switch_ns: 5 * US,
            streams: 2,
            stream_miss_ns: 7 * US,
            read_crossing_ns: 3 * US,
        };
        let mut model = Model::new(card, false);
        let mut extra = |offset: u64| cost(&mut model, Op::write(offset, 4096)) - 500 * US;
        const M: u64 = 1 << 20;
        assert_eq!(extra(M), 7 * US, "unknown place; a unit's start is no switch");
        assert_eq!(extra(M + 4096), 0, "continues");
        assert_eq!(extra(M + 3 * 4096), 0, "ascends");
        assert_eq!(extra(M), 7 * US, "goes back");
        assert_eq!(extra(2 * M + 4096), 0, "the next unit");
        assert_eq!(extra(5 * M + 4096), 12 * US, "far away");
        assert_eq!(extra(2 * M + 2 * 4096), 5 * US, "remembered, in another unit");
        assert_eq!(extra(7 * M), 7 * US, "far away, pushes the oldest stream out");
        assert_eq!(extra(5 * M + 2 * 4096), 12 * US, "no longer remembered");
        assert_eq!(cost(&mut model, Op::read(M - 1, 2)), (160 + 3) * US + 2);
    }

    #[test]
    fn a_cache_hides_programs_until_it_is_full_or_flushed() {
        let mut card = profile(Kind::Page { reserve_blocks: 2 });
        card.host.write_cache_bytes = 16384;
        card.time.write_command_ns = 10 * US;
        let mut model = Model::new(card, false);
        let mut now = 0;
        let mut took = Vec::new();
        for n in 0..6 {
            let done = model.submit(now, Op::write(n * 4096, 4096)).expect("valid").done_ns;
            took.push((done - now) / US);
            now = done;
        }
        assert_eq!(took, [10, 10, 10, 10, 270, 300]);
        let flushed = model.submit(now, Op::flush()).expect("valid").done_ns;
        assert_eq!((flushed - now) / US, 4 * 300 + 50);
        let fua = Op { fua: true, ..Op::write(0, 4096) };
        assert_eq!(model.submit(flushed, fua).expect("valid").done_ns - flushed, 310 * US);
    }

    #[test]
    fn cells_of_one_bit_are_fast_until_they_are_full_and_again_after_a_rest() {
        let mut card = profile(Kind::Page { reserve_blocks: 2 });
        card.slc_cache = Some(SlcCache { size_bytes: 16 << 10, program_page_ns: 50 * US });
        let mut model = Model::new(card, false);
        let mut now = 0;
        let mut took = |rest_ns: u64, pages: u64| {
            now += rest_ns;
            let done = model.submit(now, Op::write(0, pages * 4096)).expect("valid").done_ns;
            (std::mem::replace(&mut now, done), done)
        };
        let mut us = |rest_ns, pages| {
            let (from, to) = took(rest_ns, pages);
            (to - from) / US
        };
        assert_eq!(us(0, 3), 200 + 3 * 50);
        // One finds room, the second goes to the others.
        assert_eq!(us(0, 2), 200 + 50 + 300);
        assert_eq!(us(0, 1), 200 + 300);
        // A rest in which two are moved, each read and programmed.
        assert_eq!(us(2 * 330 * US, 3), 200 + 2 * 50 + 300);
        let counters = model.counters();
        assert_eq!((counters.layer.slc_pages, counters.layer.slc_moved_pages), (6, 2));
        assert_eq!(counters.flash.page_programs, 9 + 2);
        assert_eq!(counters.time_ns.total(), (350 + 550 + 500 + 600) * US);
    }

    #[test]
    fn channels_and_queue_work_side_by_side() {
        let mut card = profile(Kind::Page { reserve_blocks: 2 });
        card.flash.channels = 4;
        card.host.queue_depth = 4;
        card.time.read_command_ns = 5 * US;
        let mut model = Model::new(card, false);
        let done: Vec<u64> =
            (0..8).map(|n| model.submit(0, Op::read(n * 4096, 4096)).expect("valid").done_ns / US).collect();
        assert_eq!(done, [39, 44, 49, 54, 78, 83, 88, 93]);
        assert_eq!(cost(&mut model, Op::write(0, 16384)), 500 * US);
    }

    #[test]
    fn a_bare_chip_programs_once_in_order_after_an_erase() {
        let mut card = profile(Kind::Nand);
        let mut nand = Model::new(card.clone(), false);
        let now = run(&mut nand, [Op::write(0, 4096), Op::write(8192, 4096)]);
        assert_eq!(nand.submit(now, Op::write(4096, 4096)), Err(Refusal::NotErased { offset_bytes: 4096 }));
        assert_eq!(nand.submit(now, Op::write(0, 512)), Err(Refusal::Unaligned { page_bytes: 4096 }));
        assert_eq!(cost(&mut nand, Op::discard(0, 64 << 10)), 2010 * US);
        run(&mut nand, [Op::write(4096, 4096)]);
        card.layer = Kind::Nor;
        let mut nor = Model::new(card, false);
        let now = run(&mut nor, [Op::write(8192, 4096), Op::write(4096, 4096)]);
        assert_eq!(nor.submit(now, Op::write(8192, 4096)), Err(Refusal::NotErased { offset_bytes: 8192 }));
        assert_eq!(nor.counters().flash.page_programs, 2);
    }

    #[test]
    fn blocks_wear_out_and_then_the_card_only_reads() {
        let mut card = profile(Kind::Page { reserve_blocks: 2 });
        card.flash.endurance_erases = 3;
        let mut model = Model::new(card, false);
        let mut rng = block::Rng::new(1);
        let mut now = 0;
        let refusal = loop {
            match model.submit(now, Op::write(rng.below(1024) * 4096, 4096)) {
                Ok(completion) => now = completion.done_ns,
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refusal, Refusal::WornOut);
        let array = model.array();
        assert!(
            array.retired_blocks() > 10,
            "{} {} {:?}",
            array.retired_blocks(),
            array.free_blocks(),
            array.wear()
        );
        assert!(model.submit(now, Op::read(0, 4096)).is_ok());
    }

    #[test]
    fn what_is_beyond_the_end_is_refused() {
        let mut model = Model::new(profile(hybrid(2, 0)), false);
        for op in [Op::read(8 << 20, 1), Op::write(u64::MAX, 2), Op::discard(0, (8 << 20) + 1)] {
            assert!(matches!(model.submit(0, op), Err(Refusal::PastEnd { .. })));
        }
    }

    fn profiles() -> Vec<Profile> {
        let small = Kind::Hybrid {
            au_bytes: 128 << 10,
            open_units: 3,
            open_random: 1,
            small_write_bytes: 8192,
            small_write_ns: 5 * US,
        };
        let mut all: Vec<Profile> =
            [hybrid(1, 0), hybrid(3, 0), hybrid(3, 3), hybrid(4, 1), small, Kind::Page { reserve_blocks: 2 }]
                .map(profile)
                .into();
        let fat = |card: &Profile, start: u64| {
            let fat = FatArea { start_bytes: start, length_bytes: 1 << 20, program_page_ns: 100 * US };
            Profile { fat_area: Some(fat), ..card.clone() }
        };
        all.push(fat(&all[2], 0));
        all.push(fat(&all[5], 1 << 20));
        let slc = SlcCache { size_bytes: 64 << 10, program_page_ns: 50 * US };
        all.push(Profile { slc_cache: Some(slc), ..all[7].clone() });
        all
    }

    prop_compose! {
        fn any_op()(
            kind in 0u32..20, at in 0u64..16000, length in 1u64..200, place in 0u64..8, fine in any::<bool>()
        ) -> Op {
            let unit = if fine { 512 } else { 4096 };
            // Most requests are near each other, so that logs fill and units compete.
            let at = (at >> place) * 512 / unit * unit;
            let length = (length * unit / 8).max(512) / 512 * 512;
            let length = length.min((8 << 20) - at);
            match kind {
                0 => Op::flush(),
                1 => Op::discard(at, length),
                2 => Op::discard(at, (256 << 10).min((8 << 20) - at)),
                3..6 => Op::read(at, length),
                _ => Op::write(at, length),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// What was written has a place that was programmed for it; no two pages share one; no block is lost
        /// or held twice; time never goes back; the parts of the time add up; the same again is the same.
        #[test]
        fn invariants_hold(
            which in 0..9usize, full in any::<bool>(), ops in prop::collection::vec(any_op(), 1..400)
        ) {
            let card = profiles().swap_remove(which);
            let mut model = Model::new(card.clone(), full);
            let mut twin = Model::new(card.clone(), full);
            let mut written: HashMap<u32, bool> = HashMap::new();
            let mut now = 0;
            for op in &ops {
                let done = model.submit(now, *op).expect("a valid request").done_ns;
                prop_assert!(done >= now);
                prop_assert_eq!(twin.submit(now, *op).expect("a valid request").done_ns, done);
                now = done;
                if op.command == Command::Write {
                    for page in op.offset_bytes / 4096..op.end_bytes().div_ceil(4096) {
                        written.insert(page as u32, true);
                    }
                }
                if op.command == Command::Discard {
                    for page in op.offset_bytes / 4096..op.end_bytes().div_ceil(4096) {
                        written.remove(&(page as u32));
                    }
                }
            }
            let mut places: HashMap<(BlockNo, u32), u32> = HashMap::new();
            for page in 0..2048 {
                let place = model.layer().location(model.array(), page);
                prop_assert!(place.is_some() || !written.contains_key(&page), "page {} is lost", page);
                if let Some((block, at)) = place {
                    prop_assert_eq!(model.array().tag(block, at), page);
                    prop_assert_eq!(places.insert((block, at), page), None);
                    prop_assert_ne!(page, NOTHING);
                }
            }
            let held = model.layer().held_blocks();
            let total = card.data_blocks() + card.flash.spare_blocks - card.flash.bad_blocks;
            prop_assert_eq!(held + model.array().free_blocks(), total);
            prop_assert_eq!(model.counters().time_ns.total(), now);
            let counters = model.counters();
            let host = &counters.host;
            for counts in [&host.writes_by_log2_bytes, &host.writes_by_log2_alignment] {
                prop_assert_eq!(counts.values().sum::<u64>(), host.writes);
            }
            let wear = model.array().wear();
            prop_assert_eq!(wear.iter().map(|(erases, blocks)| u64::from(*erases) * blocks).sum::<u64>(), counters.flash.block_erases);
        }

        /// With many commands under way and a cache, answers may overtake, but no time goes back.
        #[test]
        fn a_queue_keeps_time(ops in prop::collection::vec((any_op(), 0u64..1_000_000), 1..200)) {
            let mut card = profile(Kind::Page { reserve_blocks: 2 });
            card.flash.channels = 4;
            card.host.queue_depth = 8;
            card.host.write_cache_bytes = 1 << 20;
            let mut model = Model::new(card, true);
            let mut now = 0;
            let mut under_way: Vec<u64> = Vec::new();
            for (op, pause) in ops {
                now += pause;
                let Completion { start_ns, done_ns } = model.submit(now, op).expect("a valid request");
                prop_assert!(now <= start_ns && start_ns <= done_ns);
                under_way.push(done_ns);
                let busy = under_way.iter().filter(|done| **done > start_ns).count();
                prop_assert!(busy <= 8, "{} commands under way", busy);
            }
        }
    }
}
