//! The exclusive parts of a card: when each becomes free, and how long a command holds it.

use std::ops::Range;

use super::Model;
use crate::{layer::Cost, op::CLOCK_END_NS};

impl Model {
    /// Occupies the controller with a command. Returns the time when it is done.
    pub(super) fn controller(&mut self, start_ns: u64, command_ns: u64, extra_ns: u64) -> u64 {
        let begin_ns = start_ns.max(self.controller_free_ns);
        self.controller_free_ns = begin_ns + command_ns + extra_ns;
        self.state.counters.time_ns.waited(begin_ns - start_ns);
        self.state.counters.time_ns.command += command_ns;
        self.controller_free_ns
    }

    /// Waits until the cache has space for a write.
    pub(super) fn wait_for_cache(&mut self, now_ns: u64, bytes: u64) -> u64 {
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

    /// Occupies all channels with work for the whole card.
    pub(super) fn hold_channels(&mut self, from_ns: u64, for_ns: u64) -> u64 {
        if for_ns == 0 {
            return from_ns;
        }
        let begin_ns = self.channels_free_ns.iter().copied().fold(from_ns, u64::max);
        self.channels_free_ns.fill(begin_ns + for_ns);
        begin_ns + for_ns
    }

    pub(super) fn on_channel(&mut self, page: u64, ready_ns: u64, for_ns: u64) -> u64 {
        let count = self.channels_free_ns.len() as u64;
        let free = &mut self.channels_free_ns[(page % count) as usize];
        *free = ready_ns.max(*free) + for_ns;
        *free
    }

    /// Returns the number of these pages that go to single-bit cells. Those cells were emptied while all
    /// channels were idle.
    pub(super) fn take_slc(&mut self, now_ns: u64, pages: u64) -> u64 {
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

    /// Programs the pages of a command as they arrive. After the FAT area's, the first pages go to single-bit
    /// cells. Returns the time when the last is done.
    pub(super) fn program(
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

    /// Returns the time to program the pages of a command on free channels.
    pub(super) fn own_program_ns(&self, cost: &Cost, slc_pages: u64) -> u64 {
        let channels = self.channels_free_ns.len() as u64;
        let fat_ns = self.profile.fat_area.as_ref().map_or(0, |fat| fat.program_page_ns);
        self.profile.time.read_page_ns * cost.filled_pages
            + fat_ns * cost.fat_pages.div_ceil(channels)
            + self.profile.slc_cache.as_ref().map_or(0, |slc| slc.program_page_ns)
                * slc_pages.div_ceil(channels)
            + self.profile.time.program_page_ns * (cost.pages - cost.fat_pages - slc_pages).div_ceil(channels)
    }

    /// Returns the time of merges and garbage collection.
    pub(super) fn merge_ns(&self, cost: &Cost) -> u64 {
        let time = &self.profile.time;
        let channels = self.channels_free_ns.len() as u64;
        let copies_ns =
            cost.copied_pages.div_ceil(channels).saturating_mul(time.read_page_ns + time.program_page_ns);
        copies_ns.saturating_add(cost.erases.saturating_mul(time.erase_block_ns)).min(CLOCK_END_NS)
    }
}

/// Returns `part` of `whole` of a time, exactly. It runs once per page, so it must be fast.
fn share(ns: u64, part: u64, whole: u64) -> u64 {
    match ns.checked_mul(part) {
        Some(product) => product / whole,
        None => (u128::from(ns) * u128::from(part) / u128::from(whole)) as u64,
    }
}
