//! What the findings mean for a file system.

use serde::Serialize;

use super::{Findings, SURE};

/// Bytes of an F2FS segment.
const SEGMENT_BYTES: u64 = 2 << 20;

/// How to format and mount, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Segments in a section: where each log keeps a unit open, one section is a whole number of units.
    pub segments_per_section: u64,
    /// Sections in a zone: where logs share a unit, one zone is a whole number of units.
    pub sections_per_zone: u64,
    /// Where the volume should start, in bytes.
    pub alignment_bytes: u64,
    /// Logs that are open at once.
    pub active_logs: u64,
    /// Percent of the volume to keep free, where the default is too little.
    pub overprovision_percent: Option<u64>,
    /// The file system that suits the card.
    pub file_system: String,
    /// `flashkit mkfs ...` for the device.
    pub flashkit_mkfs: String,
    /// `mkfs.f2fs ...` for the device.
    pub mkfs_f2fs: String,
    /// Options of the mount.
    pub mount_options: String,
    /// The reasons, in sentences.
    pub reasons: Vec<String>,
}

impl Advice {
    pub(super) fn of(findings: &Findings) -> Advice {
        let mut reasons = Vec::new();
        let unit = findings.unit_bytes.and_then(|estimate| estimate.value);
        // What the study found to be the best (docs/METHOD.md, "Options that suit a card").
        let shares_units = matches!(findings.open_units.map(|estimate| estimate.value), Some(None));
        let segments = unit.map_or(1, |unit| least_common_multiple(unit, SEGMENT_BYTES) / SEGMENT_BYTES);
        let (segments_per_section, sections_per_zone) =
            if shares_units { (1, segments) } else { (segments, 1) };
        reasons.push(match unit {
            None => {
                let found = match findings.unit_bytes.is_some() {
                    true => "No unit was found",
                    false => "Units were not measured",
                };
                format!("{found}: sections and zones of one segment, as by default.")
            }
            Some(unit) => format!(
                "The card works in units of {}: a {} of {} is a whole number of them, {}.",
                size(unit),
                if shares_units { "zone" } else { "section" },
                size(segments * SEGMENT_BYTES),
                match shares_units {
                    true => "and flashkit lets the data and the nodes of an fsync share it, so the card stays there",
                    false => "so each log keeps one open, and what is cleaned together is erased together",
                }
            ),
        });
        let is_appending = segments > 1;
        if is_appending {
            reasons.push("To append is quicker there than to overwrite in place: mode=lfs.".into());
        }
        let active_logs = match findings.open_units.map(|estimate| estimate.value) {
            Some(Some(limit)) => {
                let logs = if limit >= 6 {
                    6
                } else if limit >= 4 {
                    4
                } else {
                    2
                };
                let much = if limit < 2 {
                    " Even two are more than it keeps open, but F2FS has no fewer."
                } else {
                    ""
                };
                reasons.push(format!("It keeps {limit} units open, so {logs} logs.{much}"));
                logs
            }
            Some(None) => {
                reasons.push("No limit of open units was met: six logs.".into());
                6
            }
            None => {
                reasons.push("Open units were not measured: six logs, as by default.".into());
                6
            }
        };
        let random = findings.random_write_iops.zip(findings.write_ns(4096));
        let slow_random = random.is_some_and(|(iops, sequential_ns)| iops * sequential_ns / 1e9 < 0.5);
        let file_system = if slow_random || random.is_none() { "f2fs" } else { "f2fs or ext4" };
        if let Some((iops, sequential_ns)) = random {
            reasons.push(format!(
                "Random writes of 4 KiB: {iops:.0} a second; in sequence it would be {:.0}. {}",
                1e9 / sequential_ns,
                match slow_random {
                    true => "A log-structured file system turns one into the other.",
                    false => "There is little that a log can gain.",
                }
            ));
        }
        if let Some(fat) = findings.fat_area_bytes.and_then(|estimate| estimate.value) {
            reasons.push(format!(
                "The first {} take writes in any order: metadata belongs there, so start the volume at the \
                 front of the device where the partition table allows.",
                size(fat)
            ));
        }
        let uncertain = [
            ("unit", findings.unit_bytes.map(|estimate| estimate.confidence)),
            ("open units", findings.open_units.map(|estimate| estimate.confidence)),
            ("area at the front", findings.fat_area_bytes.map(|estimate| estimate.confidence)),
            ("page", findings.page_bytes.map(|estimate| estimate.confidence)),
        ];
        for (what, confidence) in uncertain {
            if let Some(confidence) = confidence.filter(|confidence| *confidence < SURE) {
                reasons.push(format!("Uncertain: {what} (confidence {:.0} %).", confidence * 100.0));
            }
        }
        // Cleaning copies whole sections; with few of them the default reserve is too small a share.
        let sections = findings.size_bytes / (segments_per_section * SEGMENT_BYTES);
        let overprovision_percent = (sections < 512 && sections > 0).then_some(10);
        let flags = format!("-s {segments_per_section} -z {sections_per_zone}");
        let over = overprovision_percent.map_or(String::new(), |percent| format!(" -o {percent}"));
        let discard = if findings.write_cache == Some(true) { "discard" } else { "nodiscard" };
        Advice {
            segments_per_section,
            sections_per_zone,
            alignment_bytes: unit.unwrap_or(SEGMENT_BYTES),
            active_logs,
            overprovision_percent,
            file_system: file_system.into(),
            flashkit_mkfs: format!("flashkit mkfs {flags}{over} DEVICE"),
            mkfs_f2fs: format!("mkfs.f2fs {flags}{over} DEVICE"),
            mount_options: format!(
                "{}active_logs={active_logs},{discard}",
                if is_appending { "mode=lfs," } else { "" }
            ),
            reasons,
        }
    }
}

fn least_common_multiple(one: u64, two: u64) -> u64 {
    let (mut a, mut b) = (one, two);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    one / a * two
}

/// A size for people.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..=1023 => format!("{bytes} bytes"),
        bytes if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if bytes % 1024 == 0 && bytes < 16 << 20 => format!("{} KiB", bytes >> 10),
        bytes if bytes < 1 << 20 => format!("{bytes} bytes"),
        bytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Estimate;

    fn found(unit: Option<u64>, open: Option<u64>) -> Findings {
        Findings {
            size_bytes: 8 << 30,
            unit_bytes: Some(Estimate::new(unit, 1.0)),
            open_units: Some(Estimate::new(open, 0.5)),
            ..Findings::default()
        }
    }

    #[test]
    fn sections_or_zones_are_whole_units_and_whole_segments() {
        for (unit_mib, segments) in [(1, 1), (2, 1), (3, 3), (4, 2), (6, 3), (24, 12)] {
            let shape = |open| {
                let advice = found(Some(unit_mib << 20), open).advice();
                assert_eq!(advice.mount_options.starts_with("mode=lfs,"), segments > 1, "{advice:?}");
                let over = if advice.segments_per_section > 8 { " -o 10" } else { "" };
                let (section, zone) = (advice.segments_per_section, advice.sections_per_zone);
                assert_eq!(advice.mkfs_f2fs, format!("mkfs.f2fs -s {section} -z {zone}{over} DEVICE"));
                (section, zone)
            };
            assert_eq!(shape(Some(4)), (segments, 1), "{unit_mib} MiB, some of them open at once");
            assert_eq!(shape(None), (1, segments), "{unit_mib} MiB, no limit");
        }
    }

    #[test]
    fn logs_follow_the_open_units_and_doubt_is_said() {
        for (open, logs) in [(Some(1), 2), (Some(2), 2), (Some(5), 4), (Some(9), 6), (None, 6)] {
            let advice = found(None, open).advice();
            assert_eq!(advice.active_logs, logs);
            assert!(advice.reasons.iter().any(|reason| reason.contains("Uncertain: open units")));
        }
    }
}
