//! Commands: their effect and their total time.

use std::ops::Range;

use super::{Model, State};
use crate::{
    layer::{Access, Cost},
    op::{CLOCK_END_NS, Command, Op, Refusal},
    profile,
};

const SECOND_NS: u128 = 1_000_000_000;

impl Model {
    /// Serves one command, which is at most the host's largest size.
    pub(super) fn one(&mut self, start_ns: u64, op: &Op, range: Range<u64>) -> Result<u64, Refusal> {
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
            Command::Write => self.write(start_ns, op, &range)?,
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
        // Channels read pages in parallel, from the channel of their address on.
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

    fn write(&mut self, start_ns: u64, op: &Op, range: &Range<u64>) -> Result<u64, Refusal> {
        let mut cost = Cost::default();
        let access = match range.start == self.state.last_end_bytes {
            true => Access::Sequential,
            false => Access::Random,
        };
        let State { layer, array, .. } = &mut self.state;
        let written = layer.write(array, range.clone(), access, &mut cost);
        let (switch_ns, miss_ns) = self.locate(range);
        self.settle(&cost);
        written?;
        let bytes = range.end - range.start;
        if !self.profile.write_costs.is_empty() && cost.fat_pages == 0 {
            return Ok(self.write_as_measured(start_ns, op, range));
        }
        let times = &self.profile.time;
        let short = bytes < u64::from(times.short_write_bytes) && cost.fat_pages == 0;
        let short_ns = if short { times.short_write_ns } else { 0 };
        let command_ns = times.write_command_ns + short_ns + times.size_cost_ns(bytes);
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
        let ends_in_cache = cached && !op.fua;
        let done_ns = if ends_in_cache { accepted_ns } else { programmed_ns.max(accepted_ns) };
        if cached {
            self.cache.push_back((programmed_ns, bytes));
            self.cached_bytes += bytes;
        }
        let page_ns = self.own_program_ns(&cost, slc_pages);
        let time = &mut self.state.counters.time_ns;
        time.unit_switch += switch_ns;
        time.stream_miss += miss_ns;
        if ends_in_cache {
            time.transfer += transfer_ns;
            time.waited(done_ns - ready_ns - transfer_ns);
        } else {
            // The rest, beyond the named parts, is time spent waiting for other commands.
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
        // The host of a bare chip waits for erases. A card performs them in its own time.
        let erases = if self.profile.is_raw() { cost.erases } else { 0 };
        let own_ns = self.profile.time.discard_ns + erases * self.profile.time.erase_block_ns;
        self.controller_free_ns = ready_ns + own_ns;
        self.state.counters.time_ns.waited(ready_ns - start_ns);
        self.state.counters.time_ns.discard += own_ns;
        Ok(ready_ns + own_ns)
    }

    /// Returns the address-dependent cost of a write: a unit switch, and a stream miss.
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
        // An ascending gap advances the stream that ended there.
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
        // Continuing at a unit's start, or upwards with a gap, costs no switch.
        let switches = !same && range.start % unit_bytes != 0 && !(ascends && known.is_none());
        state.counters.layer.unit_switches += u64::from(switches);
        state.counters.layer.stream_misses += u64::from(misses);
        (if switches { locality.unit_switch_ns } else { 0 }, if misses { locality.stream_miss_ns } else { 0 })
    }

    /// Adds the operations of the array and the layer to the counters.
    pub(super) fn settle(&mut self, cost: &Cost) {
        let work = self.state.array.take_work();
        let flash = &mut self.state.counters.flash;
        flash.page_programs += work.programs;
        flash.page_reads += work.reads;
        flash.block_erases += work.erases;
        self.state.counters.count_cost(cost);
    }
}

/// Returns the time on a link. A rate of 0 means that the link takes no time.
fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    match bytes_per_s {
        0 => 0,
        rate => (u128::from(bytes) * SECOND_NS / u128::from(rate)) as u64,
    }
}
