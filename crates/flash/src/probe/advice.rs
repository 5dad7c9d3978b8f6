//! Advice for a file system, derived from the findings: by rules, or by a measurement on a model of the card.
//!
//! *Invariants*: an uncertain answer changes no setting. The advice says so in a sentence and keeps the
//! default. Options for flashkit are none for Linux's f2fs, which places data differently: its lines are its own.

use serde::Serialize;

use super::{Bound, Estimate, Findings};

/// Bytes of an F2FS segment.
pub const SEGMENT_BYTES: u64 = 2 << 20;

/// The advice for Linux's f2fs, which our options made slower where both were measured (docs/METHOD.md).
const KERNEL_DEFAULTS: &str = "Linux's f2fs keeps the defaults of mkfs.f2fs and of its mount: the options above suit flashkit, and made it \
     slower on the cards where it was measured. Others can be compared on this card: flashkit study --card PROFILE \
     --fs f2fs --fs f2fs:OPTIONS.";

/// Policy of in-place updates (IPU), as an option of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IpuPolicy {
    /// By an fsync, where they are cheaper (`ipu_policy=fsync`, the default).
    Fsync,
    /// Never (`ipu_policy=disable`).
    Disable,
}

/// The placement of blocks: options for formatting and mounting, with reasons.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shape {
    /// Segments per section.
    pub segments_per_section: u64,
    /// Sections per zone.
    pub sections_per_zone: u64,
    /// Policy of in-place updates.
    pub ipu_policy: IpuPolicy,
    /// Number of logs that are open at once.
    pub active_logs: u64,
    /// The reasons, in sentences.
    pub reasons: Vec<String>,
}

impl Shape {
    /// Derives the shape from the findings by rules.
    fn by_rules(findings: &Findings) -> Shape {
        let limit = findings.certain_limit();
        let unit = findings.certain_unit();
        // The best options of the study (docs/METHOD.md, "Options that suit a card").
        let shares_units = limit == Some(None);
        let segments = unit.map_or(1, |unit| least_common_multiple(unit, SEGMENT_BYTES) / SEGMENT_BYTES);
        let (segments_per_section, sections_per_zone, group) = match shares_units {
            true => (1, segments, UnitGroup::Zone),
            false => (segments, 1, UnitGroup::Section),
        };
        let ipu_policy = if segments > 1 { IpuPolicy::Disable } else { IpuPolicy::Fsync };
        let (active_logs, logs_reason) = active_logs(findings, limit);
        let mut reasons = vec![match unit {
            Some(unit) => group.reason(unit, segments),
            None => no_unit(findings, limit),
        }];
        if ipu_policy == IpuPolicy::Disable {
            reasons.push("Appending is faster there than overwriting in place: ipu_policy=disable.".into());
        }
        reasons.push(logs_reason);
        Shape { segments_per_section, sections_per_zone, ipu_policy, active_logs, reasons }
    }

    /// Returns the mount options.
    pub fn mount_options(&self) -> String {
        let policy = match self.ipu_policy {
            IpuPolicy::Fsync => "",
            IpuPolicy::Disable => "ipu_policy=disable,",
        };
        format!("{policy}active_logs={}", self.active_logs)
    }
}

/// Options for formatting and mounting, with reasons.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Segments per section: if each log keeps a unit open, one section is a whole number of units.
    pub segments_per_section: u64,
    /// Sections per zone: if logs share a unit, one zone is a whole number of units.
    pub sections_per_zone: u64,
    /// Start of the volume, in bytes.
    pub alignment_bytes: u64,
    /// Number of logs that are open at once.
    pub active_logs: u64,
    /// The type of file system that suits the card.
    pub file_system: String,
    /// `flashkit mkfs ...` for the device.
    pub flashkit_mkfs: String,
    /// Options of flashkit's mount.
    pub mount_options: String,
    /// `mkfs.f2fs ...` for a volume that Linux's f2fs mounts.
    pub mkfs_f2fs: String,
    /// The reason for that line.
    pub mkfs_f2fs_reason: String,
    /// The reasons, in sentences.
    pub reasons: Vec<String>,
}

impl Advice {
    pub(super) fn of(findings: &Findings) -> Advice {
        let unit = findings.certain_unit();
        let shape = findings.measured.clone().unwrap_or_else(|| Shape::by_rules(findings));
        let (file_system, random_reason) = file_system(findings);
        let (discard, discard_reason) = discard(findings);
        let mount_options = shape.mount_options() + discard;
        let Shape { segments_per_section, sections_per_zone, active_logs, mut reasons, .. } = shape;
        reasons.extend(random_reason);
        reasons.extend(front_reason(findings));
        reasons
            .push("Over-provisioning is left to mkfs, which computes the best share for this layout.".into());
        reasons.extend(discard_reason.map(String::from));
        reasons.extend(findings.doubts());
        Advice {
            segments_per_section,
            sections_per_zone,
            alignment_bytes: unit.unwrap_or(SEGMENT_BYTES),
            active_logs,
            file_system: file_system.into(),
            flashkit_mkfs: format!("flashkit mkfs -s {segments_per_section} -z {sections_per_zone} DEVICE"),
            mount_options,
            mkfs_f2fs: "mkfs.f2fs DEVICE".into(),
            mkfs_f2fs_reason: KERNEL_DEFAULTS.into(),
            reasons,
        }
    }
}

/// The group of segments that is made a whole number of units.
enum UnitGroup {
    /// Logs share a unit.
    Zone,
    /// Each log keeps a unit open.
    Section,
}

impl UnitGroup {
    fn reason(&self, unit: u64, segments: u64) -> String {
        let (name, gain) = match self {
            UnitGroup::Zone => (
                "zone",
                "and flashkit puts the data and the nodes of an fsync into one zone, so the card keeps its \
                 unit open",
            ),
            UnitGroup::Section => {
                ("section", "so each log keeps one open, and a cleaned section is erased as a whole")
            }
        };
        format!(
            "The card works in units of {}: a {name} of {} is a whole number of them, {gain}.",
            size(unit),
            size(segments * SEGMENT_BYTES),
        )
    }
}

/// Returns the reason for sections and zones of one segment.
fn no_unit(findings: &Findings, limit: Option<Option<u64>>) -> String {
    let found = match findings.unit_bytes {
        Some(unit) if unit.is_certain() && limit.is_some() => "No unit was found",
        Some(_) => "Unit and open units are not certain",
        None => "Units were not measured",
    };
    format!("{found}: sections and zones of one segment, as by default.")
}

/// Returns the number of logs for a limit of open units, if that is certain, and the reason.
fn active_logs(findings: &Findings, limit: Option<Option<u64>>) -> (u64, String) {
    match limit {
        Some(Some(limit)) => {
            let logs = match limit {
                6.. => 6,
                4..6 => 4,
                _ => 2,
            };
            let much = if limit < 2 { " It keeps fewer than two open, but F2FS needs two logs." } else { "" };
            let units = if limit == 1 { "unit" } else { "units" };
            (logs, format!("It keeps {limit} {units} open, so {logs} logs.{much}"))
        }
        Some(None) => (6, "No limit of open units was found: six logs.".into()),
        None => {
            let why = if findings.open_units.is_some() { "not certain" } else { "not measured" };
            (6, format!("Open units are {why}: six logs, as by default."))
        }
    }
}

/// Returns the file system that suits the card, and the reason if random writes were measured.
fn file_system(findings: &Findings) -> (&'static str, Option<String>) {
    const EITHER: &str = "f2fs or ext4";
    let Some((iops, sequential_ns)) = findings.random_write_iops.zip(findings.write_ns(4096)) else {
        return (EITHER, None);
    };
    let (file_system, gain) = match iops * sequential_ns / 1e9 < 0.5 {
        true => ("f2fs", "A log-structured file system turns random writes into sequential ones."),
        false => (EITHER, "A log-structured file system gains little."),
    };
    let sequential = 1e9 / sequential_ns;
    let reason = format!(
        "Random writes of 4 KiB: {iops:.0} a second; in sequence it would be {sequential:.0}. {gain}"
    );
    (file_system, Some(reason))
}

/// Returns the advice for the area at the front, if there is one.
fn front_reason(findings: &Findings) -> Option<String> {
    let area = findings.fat_area_bytes.filter(|area| area.is_certain() || area.bound == Bound::AtLeast)?;
    Some(format!(
        "The first {} take writes in any order: metadata belongs there, so start the volume at the front of \
         the device if the partition table allows.",
        size(area.value?)
    ))
}

/// Returns the mount option for discards, and the reason.
fn discard(findings: &Findings) -> (&'static str, Option<&'static str>) {
    match findings.write_cache {
        Some(true) => (
            ",discard",
            Some("It has a write cache, like cards with page mapping, which gain from discards."),
        ),
        Some(false) => (
            ",nodiscard",
            Some("It has no write cache, like simple cards, which gain nothing from discards: nodiscard."),
        ),
        None => ("", None),
    }
}

impl Findings {
    /// Returns the placement that the rules derive.
    pub fn shape_by_rules(&self) -> Shape {
        Shape::by_rules(self)
    }

    /// Returns true if unit and open units are certain. Placement depends on both.
    pub fn is_certain_of_units(&self) -> bool {
        self.unit_bytes.is_some_and(|unit| unit.is_certain()) && self.certain_limit().is_some()
    }

    /// Returns the limit of open units, if it is certain.
    fn certain_limit(&self) -> Option<Option<u64>> {
        self.open_units.filter(Estimate::is_certain).map(|estimate| estimate.value)
    }

    /// Returns the unit, if it and the limit of open units are certain.
    fn certain_unit(&self) -> Option<u64> {
        self.unit_bytes.filter(|_| self.is_certain_of_units()).and_then(|estimate| estimate.value)
    }

    /// Returns a sentence for each unreliable answer.
    fn doubts(&self) -> Vec<String> {
        fn doubt<T>(what: &str, found: &Option<Estimate<T>>) -> Option<String> {
            let found = found.as_ref().filter(|found| !found.is_certain())?;
            Some(format!("Uncertain: {what} (confidence {:.0} %).", found.confidence * 100.0))
        }
        let doubts = [
            doubt("unit", &self.unit_bytes),
            doubt("open units", &self.open_units),
            doubt("area at the front", &self.fat_area_bytes),
            doubt("page", &self.page_bytes),
        ];
        doubts.into_iter().flatten().collect()
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

    fn found(unit: Option<u64>, open: Option<u64>, confidence: f64) -> Findings {
        Findings {
            size_bytes: 8 << 30,
            unit_bytes: Some(Estimate::new(unit, 1.0)),
            open_units: Some(Estimate::new(open, confidence)),
            ..Findings::default()
        }
    }

    #[test]
    fn sections_or_zones_are_whole_units_and_whole_segments() {
        for (unit_mib, segments) in [(1, 1), (2, 1), (3, 3), (4, 2), (6, 3), (24, 12)] {
            let shape = |open| {
                let advice = found(Some(unit_mib << 20), open, 1.0).advice();
                assert_eq!(
                    advice.mount_options.starts_with("ipu_policy=disable,"),
                    segments > 1,
                    "{advice:?}"
                );
                let (section, zone) = (advice.segments_per_section, advice.sections_per_zone);
                assert_eq!(advice.flashkit_mkfs, format!("flashkit mkfs -s {section} -z {zone} DEVICE"));
                assert_eq!(advice.mkfs_f2fs, "mkfs.f2fs DEVICE", "measured with flashkit only");
                (section, zone)
            };
            assert_eq!(shape(Some(4)), (segments, 1), "{unit_mib} MiB, some of them open at once");
            assert_eq!(shape(None), (1, segments), "{unit_mib} MiB, no limit");
        }
    }

    #[test]
    fn logs_follow_the_open_units() {
        for (open, logs) in [(Some(1), 2), (Some(2), 2), (Some(5), 4), (Some(9), 6), (None, 6)] {
            assert_eq!(found(None, open, 1.0).advice().active_logs, logs);
        }
    }

    /// A format cannot be undone, so an uncertain answer leaves the default, and the advice says so.
    #[test]
    fn uncertain_answers_give_no_advice() {
        let unsure = Findings {
            fat_area_bytes: Some(Estimate::new(Some(8 << 20), 0.5)),
            ..found(Some(8 << 20), Some(2), 0.9)
        };
        let sure_of_limit =
            Findings { unit_bytes: Some(Estimate::new(Some(8 << 20), 0.3)), ..found(None, Some(2), 1.0) };
        for (findings, logs) in [(unsure, 6), (sure_of_limit, 2), (Findings::default(), 6)] {
            let advice = findings.advice();
            assert_eq!(advice.flashkit_mkfs, "flashkit mkfs -s 1 -z 1 DEVICE");
            assert_eq!(advice.mount_options, format!("active_logs={logs}"));
            assert_eq!((advice.alignment_bytes, &*advice.file_system), (SEGMENT_BYTES, "f2fs or ext4"));
            assert!(!advice.reasons.iter().any(|reason| reason.contains("at the front of")), "{advice:?}");
            let said = ["not certain", "not measured"];
            assert!(said.iter().any(|said| advice.reasons[0].contains(said)), "{advice:?}");
        }
    }
}
