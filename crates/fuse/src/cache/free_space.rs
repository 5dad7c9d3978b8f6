//! The time for which the kernel may accept data without asking for space.
//!
//! With the write-back cache the kernel accepts data without asking, as long as the attributes of the file are
//! valid. So their validity follows from the space that is free besides its dirty pages: within that time the
//! kernel cannot accept more. Close to a full volume no time is short enough, and data has to be written back
//! before more is accepted.

use std::{thread, time::Duration};

use super::dirty_pages::Amounts;

/// Longest validity of the attributes of a file that is being written. Asking before each of many small writes
/// would cost more than the writes.
const VALIDITY_MAX: Duration = Duration::from_millis(10);
/// Longest age of the kernel's report of its dirty pages. Reading one takes longer than creating a file.
const REPORT_AGE_MAX: Duration = Duration::from_millis(5);
/// Bytes that the kernel accepts in a microsecond at most, from all writers together.
const ACCEPTED_BYTES_IN_US: u64 = 4 << 10;

/// Bytes of one large write(2), which the kernel accepts as a whole.
const LARGE_WRITE_BYTES: u64 = 8 << 20;
/// Bytes of dirty pages that the report of the kernel can lack for each processor, and a reserve: each processor
/// keeps the count of up to 125 pages to itself (`calculate_normal_threshold` of Linux's mm/vmstat.c).
const UNREPORTED_BYTES: u64 = 1 << 20;
/// The margin of a machine with many processors, and that of an estimate. It is more than the kernel accepts until
/// the attributes expire.
const MARGIN_BYTES_MAX: u64 = 64 << 20;

/// The state of the free space, besides dirty pages in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeSpace {
    /// The kernel may accept data until this time has passed.
    Enough {
        /// Time after which the kernel has to ask again.
        ask_again_after: Duration,
    },
    /// Data that the kernel accepts might not fit.
    Short,
}

/// The space that stays free besides the dirty pages which the kernel reports.
#[derive(Debug, Clone, Copy)]
pub struct Margin {
    bytes: u64,
}

impl Margin {
    /// Returns the margin for this machine.
    pub fn of_this_machine() -> Margin {
        Margin::for_processors(thread::available_parallelism().map_or(u64::MAX, |count| count.get() as u64))
    }

    fn for_processors(count: u64) -> Margin {
        let unreported = count.saturating_mul(UNREPORTED_BYTES);
        Margin { bytes: LARGE_WRITE_BYTES.saturating_add(unreported).min(MARGIN_BYTES_MAX) }
    }

    /// Judges `free` bytes of space. `dirty` returns the dirty pages in the kernel, by a report that is at most as old
    /// as its argument.
    ///
    /// The share of this mount in them is an estimate, which suffices only where the largest margin is free. Below it,
    /// the dirty pages of all file systems count as ours.
    pub fn judge(self, free: u64, dirty: impl Fn(Duration) -> Amounts) -> FreeSpace {
        if free.saturating_sub(dirty(REPORT_AGE_MAX).probably_ours) >= MARGIN_BYTES_MAX {
            return FreeSpace::Enough { ask_again_after: VALIDITY_MAX };
        }
        let time_to_fill = |report_age| {
            let left = free.saturating_sub(dirty(report_age).of_all).saturating_sub(self.bytes);
            Duration::from_micros(left / ACCEPTED_BYTES_IN_US)
        };
        let mut time = time_to_fill(REPORT_AGE_MAX);
        // The kernel may have accepted data since the report.
        let report_age = REPORT_AGE_MAX.min(time / 3);
        if report_age < REPORT_AGE_MAX {
            time = time_to_fill(report_age);
        }
        match time.saturating_sub(report_age) {
            Duration::ZERO => FreeSpace::Short,
            rest => FreeSpace::Enough { ask_again_after: rest.min(VALIDITY_MAX) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn dirty(bytes: u64) -> Amounts {
        Amounts { probably_ours: bytes, of_all: bytes }
    }

    fn judge(free: u64, bytes: u64) -> FreeSpace {
        Margin::for_processors(2).judge(free, |_| dirty(bytes))
    }

    #[test]
    fn the_kernel_accepts_less_than_what_is_free_until_it_asks_again() {
        for free in (0..100).map(|n| n * MIB) {
            for dirty in (0..100).map(|n| n * MIB) {
                if let FreeSpace::Enough { ask_again_after } = judge(free, dirty) {
                    let accepted = ask_again_after.as_micros() as u64 * ACCEPTED_BYTES_IN_US;
                    let margin = if free - dirty >= MARGIN_BYTES_MAX { 0 } else { 10 * MIB };
                    assert!(dirty + accepted + margin <= free, "{free} {dirty} {ask_again_after:?}");
                }
            }
        }
    }

    #[test]
    fn the_kernel_asks_rarely_if_there_is_plenty_of_space() {
        let rarely = FreeSpace::Enough { ask_again_after: VALIDITY_MAX };
        assert_eq!(judge(u64::MAX, 0), rarely);
        assert_eq!(judge(100 * MIB, 20 * MIB), rarely);
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
        Margin::for_processors(2).judge(13 * MIB, dirty);
        let young = Duration::from_micros(3 * 256) / 3;
        assert_eq!(*ages.borrow(), [REPORT_AGE_MAX, REPORT_AGE_MAX, young]);
    }

    #[test]
    fn dirty_pages_of_others_are_taken_for_ours_only_if_little_space_is_left() {
        let others = |of_all| move |_| Amounts { probably_ours: 0, of_all };
        let margin = Margin::for_processors(2);
        assert_eq!(margin.judge(50 * MIB, others(45 * MIB)), FreeSpace::Short);
        let enough = FreeSpace::Enough { ask_again_after: VALIDITY_MAX };
        assert_eq!(margin.judge(64 * MIB, others(60 * MIB)), enough);
    }

    #[test]
    fn machines_with_many_processors_have_a_larger_margin() {
        let short = |count, free| Margin::for_processors(count).judge(free, |_| dirty(0)) == FreeSpace::Short;
        assert!(short(64, 63 * MIB) && short(u64::MAX, 63 * MIB) && !short(u64::MAX, 64 * MIB));
    }
}
