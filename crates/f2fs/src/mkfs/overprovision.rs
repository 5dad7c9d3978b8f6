//! Share of the main area that is set aside for cleaning.
//!
//! *Reserved* segments are those that cleaning itself needs to make progress; *overprovision* segments, which
//! include them, are hidden from users. Both formulas are those of f2fs-tools after 1.16.0: `get_reserved`,
//! `overprovision_segment_buffer`, `get_best_overprovision`. 1.16.0 itself adds 2 sections where later ones
//! add 6, "to avoid huge GC overheads"; 1.15 reserved about twice as much.

/// Write heads: three temperatures, for data and nodes.
const ACTIVE_LOGS: f64 = 6.0;
/// Additional sections, one for each head.
const BUFFER_SECTIONS: u32 = 6;

/// The share of the main area that is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Overprovision {
    /// The share that leaves users the most space.
    #[default]
    Automatic,
    /// Percentage of the unreserved segments.
    Percent(f64),
}

/// The decision for a main area.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SetAside {
    /// The requested or computed share in percent.
    pub percent: f64,
    /// Segments that only cleaning may use.
    pub reserved_segments: u32,
    /// Segments hidden from users, including the reserved ones.
    pub overprovision_segments: u32,
}

impl SetAside {
    /// Space set aside by a volume that is never written.
    pub const NOTHING: SetAside = SetAside { percent: 0.0, reserved_segments: 0, overprovision_segments: 0 };

    /// Decides for a main area of `main_segments`. None if the area is too small for the requested share or,
    /// without one, for any share to leave users a segment.
    #[must_use]
    pub fn decide(wanted: Overprovision, main_segments: u32, segments_per_section: u32) -> Option<SetAside> {
        let percent = match wanted {
            Overprovision::Automatic => best_percent(main_segments, segments_per_section)?,
            Overprovision::Percent(percent) => percent,
        };
        let reserved = reserved_segments(percent, segments_per_section)?;
        let share = f64::from(main_segments.checked_sub(reserved)?) * percent / 100.0;
        let overprovision = reserved.max(share as u32).checked_add(BUFFER_SECTIONS * segments_per_section)?;
        let (usable, heads) = (main_segments > overprovision, main_segments.checked_sub(ACTIVE_LOGS as u32)?);
        (usable && heads >= reserved).then_some(SetAside {
            percent,
            reserved_segments: reserved,
            overprovision_segments: overprovision,
        })
    }
}

/// Returns the segments that cleaning needs, in whole sections. None if the number is absurd.
fn reserved_segments(percent: f64, segments_per_section: u32) -> Option<u32> {
    let segments = (100.0 / percent + 1.0 + ACTIVE_LOGS) * f64::from(segments_per_section);
    if !(0.0..f64::from(u32::MAX)).contains(&segments) {
        return None;
    }
    (segments as u32).div_ceil(segments_per_section).checked_mul(segments_per_section)
}

/// Finds the share that leaves the most space, in steps of 5 % on small volumes and 0.01 % on others. Sums of
/// steps are inexact, so they are added up as in mkfs.f2fs, which gives the same share to the last bit.
fn best_percent(main_segments: u32, segments_per_section: u32) -> Option<f64> {
    let (first, last, step) = if main_segments < 256 { (10.0, 95.0, 5.0) } else { (0.01, 10.0, 0.01) };
    let buffer = f64::from(BUFFER_SECTIONS) * f64::from(segments_per_section);
    let (mut best, mut most_space) = (None, 0.0);
    let mut candidate = first;
    while candidate <= last {
        let reserved = reserved_segments(candidate, segments_per_section);
        if let Some(reserved) = reserved.filter(|reserved| *reserved < main_segments) {
            let share = f64::from(main_segments - reserved) * candidate / 100.0;
            let space = f64::from(main_segments) - f64::from(reserved).max(share) - buffer;
            if space > most_space {
                (best, most_space) = (Some(candidate), space);
            }
        }
        candidate += step;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_and_share_are_those_of_the_newest_mkfs() {
        // mkfs.f2fs of May 2026 on 100 MiB: "ratio = 30.000%, segments = 16 (GC reserved = 10)".
        let set_aside = SetAside::decide(Overprovision::Automatic, 42, 1).unwrap();
        assert_eq!((set_aside.reserved_segments, set_aside.overprovision_segments), (10, 16));
        assert!((set_aside.percent - 30.0).abs() < 1e-9);
    }

    #[test]
    fn reserves_are_whole_sections() {
        for section in [1, 2, 3, 7, 64] {
            let set_aside =
                SetAside::decide(Overprovision::Percent(7.3), 100_000 / section * section, section);
            assert_eq!(set_aside.unwrap().reserved_segments % section, 0);
        }
    }

    #[test]
    fn too_small_or_absurd_sizes_have_no_plan() {
        assert_eq!(SetAside::decide(Overprovision::Automatic, 14, 1), None);
        assert_eq!(SetAside::decide(Overprovision::Percent(0.0), 1000, 1), None);
        assert_eq!(SetAside::decide(Overprovision::Percent(-3.0), 1000, 1), None);
        assert_eq!(SetAside::decide(Overprovision::Percent(f64::NAN), 1000, 1), None);
        assert_eq!(SetAside::decide(Overprovision::Percent(0.01), 1000, 1), None);
        assert_eq!(SetAside::decide(Overprovision::Percent(99.9), 1000, 200), None);
        assert_eq!(SetAside::decide(Overprovision::Percent(1e-300), 1000, u32::MAX), None);
    }
}
