//! The time for which the kernel may accept data without asking for space.
//!
//! With the write-back cache the kernel accepts data without asking, as long as the attributes of the file are
//! valid. So their validity follows from the space that is free besides its dirty pages: within that time the
//! kernel cannot accept more. The kernel counts the validity in ticks of its timer, so in little space it has to ask
//! before each write(2). Close to a full volume that does not suffice, because it does not say how long the write will
//! be: data has to be written back before more is accepted.

use std::{thread, time::Duration};

use rustix::time::{ClockId, clock_getres};

use super::dirty_pages::Amounts;

/// Longest validity of the attributes of a file that is being written. Asking before each of many small writes
/// would cost more than the writes.
const VALIDITY_MAX: Duration = Duration::from_millis(10);
/// Longest age of the kernel's report of its dirty pages. Reading one takes longer than creating a file.
const REPORT_AGE_MAX: Duration = Duration::from_millis(5);
/// The same in little space, where the kernel has to ask for each write(2) or tick.
const YOUNG_REPORT_AGE_MAX: Duration = Duration::from_micros(500);
/// Bytes that the kernel accepts in a microsecond for each processor at most: new pages come at 2.9 GB/s on one that
/// takes 1.3 µs for a write(2) of 4 KiB (2026-11-28).
const ACCEPTED_BYTES_IN_US: u64 = 4 << 10;
/// Bytes that all processors accept in a microsecond at most. Memory sets the limit, where each new page is zeroed,
/// read and written: two channels of DDR5 move 80 GB/s.
const ACCEPTED_BYTES_IN_US_MAX: u64 = 16 << 10;

/// Bytes of one large write(2), which the kernel accepts as a whole.
const LARGE_WRITE_BYTES: u64 = 8 << 20;
/// Bytes of dirty pages that the report of the kernel can lack for each processor, and a reserve: each processor
/// keeps the count of up to 125 pages to itself (`calculate_normal_threshold` of Linux's mm/vmstat.c).
const UNREPORTED_BYTES: u64 = 1 << 20;
/// The margin of a machine with many processors, and that of an estimate.
const MARGIN_BYTES_MAX: u64 = 64 << 20;

/// The state of the free space, besides dirty pages in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeSpace {
    /// The kernel may accept data until this time has passed. Without any it accepts one write(2).
    Enough {
        /// Time after which the kernel has to ask again.
        ask_again_after: Duration,
    },
    /// Data that the kernel accepts might not fit.
    Short,
}

/// The space that stays free besides the dirty pages which the kernel reports, and the pace at which it may be taken.
#[derive(Debug, Clone, Copy)]
pub struct Margin {
    bytes: u64,
    accepted_bytes_in_us: u64,
    /// The tick of the kernel's timer.
    tick: Duration,
}

impl Margin {
    /// Returns the margin for this machine.
    pub fn of_this_machine() -> Margin {
        let processors = thread::available_parallelism().map_or(u64::MAX, |count| count.get() as u64);
        // The coarse clocks advance with the timer's ticks (clock_getres(2)).
        let tick = clock_getres(ClockId::MonotonicCoarse).tv_nsec;
        Margin::new(processors, Duration::from_nanos(tick.max(1) as u64))
    }

    fn new(processors: u64, tick: Duration) -> Margin {
        let unreported = processors.saturating_mul(UNREPORTED_BYTES);
        let accepted = processors.saturating_mul(ACCEPTED_BYTES_IN_US);
        Margin {
            bytes: LARGE_WRITE_BYTES.saturating_add(unreported).min(MARGIN_BYTES_MAX),
            accepted_bytes_in_us: accepted.min(ACCEPTED_BYTES_IN_US_MAX),
            tick,
        }
    }

    /// Judges `free` bytes of space. `dirty` returns the dirty pages in the kernel, by a report that is at most as old
    /// as its argument.
    ///
    /// The share of this mount in them is an estimate, which suffices only where the largest margin is free. Below it,
    /// the dirty pages of all file systems count as ours.
    pub fn judge(self, free: u64, dirty: impl Fn(Duration) -> Amounts) -> FreeSpace {
        let longest = self.validity(Duration::MAX);
        let accepted = self.accepted_in(longest + self.tick * 3 / 2 + REPORT_AGE_MAX);
        let plenty = MARGIN_BYTES_MAX.max(self.bytes + accepted);
        if free.saturating_sub(dirty(REPORT_AGE_MAX).probably_ours) >= plenty {
            return FreeSpace::Enough { ask_again_after: longest };
        }
        let time_to_fill = |report_age| {
            let left = free.saturating_sub(dirty(report_age).of_all).saturating_sub(self.bytes);
            Duration::from_micros(left / self.accepted_bytes_in_us)
        };
        // The kernel may have accepted data since the report.
        let report_age = YOUNG_REPORT_AGE_MAX.min(time_to_fill(REPORT_AGE_MAX) / 3);
        match time_to_fill(report_age).saturating_sub(report_age) {
            Duration::ZERO => FreeSpace::Short,
            rest => FreeSpace::Enough { ask_again_after: self.validity(rest) },
        }
    }

    /// Returns the longest validity that ends within `time`. Linux rounds a validity up to ticks
    /// (`fuse_time_to_jiffies`), begins it with the tick of the answer, and ends it when its last tick is over. So the
    /// result is half a tick less than whole ticks, and one tick more may pass.
    fn validity(self, time: Duration) -> Duration {
        let ticks = |time: Duration| time.as_nanos() / self.tick.as_nanos();
        let most = ticks(VALIDITY_MAX).max(1);
        match ticks(time).saturating_sub(1).min(most) as u32 {
            0 => Duration::ZERO,
            ticks => self.tick * ticks - self.tick / 2,
        }
    }

    fn accepted_in(self, time: Duration) -> u64 {
        (time.as_micros() as u64).saturating_mul(self.accepted_bytes_in_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const TICK: Duration = Duration::from_millis(4);

    fn dirty(bytes: u64) -> Amounts {
        Amounts { probably_ours: bytes, of_all: bytes }
    }

    fn judge(free: u64, bytes: u64) -> FreeSpace {
        Margin::new(2, TICK).judge(free, |_| dirty(bytes))
    }

    #[test]
    fn the_kernel_accepts_less_than_what_is_free_until_it_asks_again() {
        for tick_us in [1000, 3333, 4000, 10_000] {
            let margin = Margin::new(2, Duration::from_micros(tick_us));
            for free in (0..300).step_by(3).map(|n| n * MIB) {
                for reported in (0..300).step_by(3).map(|n| n * MIB) {
                    let state = margin.judge(free, |_| dirty(reported));
                    let FreeSpace::Enough { ask_again_after } = state else { continue };
                    // An answer within a tick is valid for the whole ticks that it names and the one after them.
                    let ticks = (ask_again_after.as_micros() as u64).div_ceil(tick_us);
                    let valid_us = if ticks == 0 { 0 } else { (ticks + 1) * tick_us };
                    let accepted = valid_us * 2 * ACCEPTED_BYTES_IN_US;
                    assert!(reported + accepted + 10 * MIB <= free, "{free} {reported} {ask_again_after:?}");
                }
            }
        }
    }

    #[test]
    fn the_kernel_asks_rarely_if_there_is_plenty_of_space() {
        let rarely = FreeSpace::Enough { ask_again_after: Duration::from_millis(6) };
        assert_eq!(judge(u64::MAX, 0), rarely);
        assert_eq!(judge(200 * MIB, 20 * MIB), rarely);
        let slow_timer = Margin::new(2, Duration::from_millis(10));
        let rarely = FreeSpace::Enough { ask_again_after: Duration::from_millis(5) };
        assert_eq!(slow_timer.judge(u64::MAX, |_| dirty(0)), rarely);
    }

    #[test]
    fn the_kernel_asks_before_each_write_if_a_tick_might_fill_the_space() {
        let each_time = FreeSpace::Enough { ask_again_after: Duration::ZERO };
        assert_eq!(
            (judge(11 * MIB, 0), judge(60 * MIB, 0), judge(90 * MIB, 30 * MIB)),
            (each_time, each_time, each_time)
        );
        assert_ne!(judge(80 * MIB, 0), each_time);
    }

    #[test]
    fn only_the_last_of_the_space_needs_write_back_before_each_write() {
        assert_eq!(judge(10 * MIB, 0), FreeSpace::Short);
        assert_eq!(judge(40 * MIB, 30 * MIB), FreeSpace::Short);
        assert_ne!(judge(11 * MIB, 0), FreeSpace::Short);
    }

    #[test]
    fn a_report_is_younger_if_less_space_is_left() {
        let ages = std::cell::RefCell::new(Vec::new());
        let dirty = |age| {
            ages.borrow_mut().push(age);
            dirty(0)
        };
        Margin::new(2, TICK).judge(13 * MIB, dirty);
        let young = Duration::from_micros(3 * 128) / 3;
        assert_eq!(*ages.borrow(), [REPORT_AGE_MAX, REPORT_AGE_MAX, young]);
    }

    #[test]
    fn dirty_pages_of_others_are_taken_for_ours_only_if_little_space_is_left() {
        let others = |of_all| move |_| Amounts { probably_ours: 0, of_all };
        let margin = Margin::new(2, TICK);
        assert_eq!(margin.judge(50 * MIB, others(45 * MIB)), FreeSpace::Short);
        assert_eq!(margin.judge(200 * MIB, others(196 * MIB)), judge(200 * MIB, 0));
    }

    #[test]
    fn machines_with_many_processors_have_a_larger_margin() {
        let short = |count, free| Margin::new(count, TICK).judge(free, |_| dirty(0)) == FreeSpace::Short;
        assert!(short(64, 63 * MIB) && short(u64::MAX, 63 * MIB) && !short(u64::MAX, 66 * MIB));
    }
}
