//! The published figures of the original studies, from testdata/reference.

use std::sync::LazyLock;

use crate::{experiment::Experiment, preset::Preset};

const JEONG: &str = include_str!("../../../testdata/reference/jeong-2012.toml");
const FEDORCHUK: &str = include_str!("../../../testdata/reference/fedorchuk-2014.toml");
const LAVINEN: &str = include_str!("../../../testdata/reference/lavinen-2003.toml");

static TABLES: LazyLock<[toml::Table; 3]> = LazyLock::new(|| {
    [JEONG, FEDORCHUK, LAVINEN].map(|text| toml::from_str(text).expect("it is part of the program"))
});

/// A published figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// The figure, in the part's unit.
    pub value: f64,
    /// True if the figure is valid at every scale, false if only at the original sizes.
    pub is_rate: bool,
}

/// Returns the published figure of a file system for a part of an experiment, on the machine of a preset.
pub fn published(experiment: Experiment, part: &str, preset: Preset, kind: &str) -> Option<Published> {
    let [jeong, fedorchuk, _] = &*TABLES;
    let value = match experiment {
        Experiment::Copy if preset == Preset::Stick => find(fedorchuk, &["real_seconds", kind, part]),
        Experiment::Copy => None,
        Experiment::Latency => {
            let (preset, kind) = (preset == Preset::Nor, kind == "jffs2");
            latencies(part).into_iter().next().filter(|_| preset && kind).map(|row| row.mean_ms)
        }
        _ => {
            let platform = match preset {
                Preset::Desktop => "desktop",
                Preset::Phone => "galaxy_s3",
                Preset::Stick | Preset::Nor | Preset::Nand | Preset::Card | Preset::Here => return None,
            };
            find(jeong, &["experiment", experiment.name(), platform, kind, part])
        }
    };
    value.map(|value| Published { value, is_rate: experiment != Experiment::Copy })
}

/// Published durations of JFFS2's writes.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedLatencies {
    /// Date of the tested JFFS2.
    pub day: &'static str,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Mean duration.
    pub mean_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Maximum.
    pub max_s: f64,
    /// Number of writes.
    pub count: u64,
}

/// Returns the figures of lavinen-2003 for a part of the experiment.
pub fn latencies(part: &str) -> Vec<PublishedLatencies> {
    let [_, _, lavinen] = &*TABLES;
    let rows = lavinen.get("rows").and_then(toml::Value::as_table);
    let name = part.replace("uncleaned", "no_gcd");
    let row = |(day, prefix): (&'static str, &str)| {
        let values = rows?.get(&format!("{prefix}_{name}"))?.as_array()?;
        let value = |n: usize| {
            let value: &toml::Value = values.get(n)?;
            value.as_float().or(value.as_integer().map(|n| n as f64))
        };
        Some(PublishedLatencies {
            day,
            bytes_per_s: value(0)?,
            mean_ms: value(2)?,
            p999_ms: value(3)?,
            max_s: value(4)?,
            count: value(5)? as u64,
        })
    };
    [("Nov 27", "nov27"), ("Jan 23", "jan23")].into_iter().filter_map(row).collect()
}

fn find(table: &toml::Table, path: &[&str]) -> Option<f64> {
    let (last, dirs) = path.split_last()?;
    let table = dirs.iter().try_fold(table, |at, name| at.get(*name)?.as_table())?;
    let value = table.get(*last)?;
    value.as_float().or(value.as_integer().map(|n| n as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_originals_figures_are_found() {
        let value =
            |experiment, part, preset, kind| published(experiment, part, preset, kind).map(|it| it.value);
        let (desktop, phone) = (Preset::Desktop, Preset::Phone);
        assert_eq!(value(Experiment::BufferedWrite, "random", desktop, "f2fs"), Some(2675.0));
        assert_eq!(value(Experiment::WriteFsync, "random", phone, "vfat"), Some(373.0));
        assert_eq!(value(Experiment::Mount, "after_reboot", desktop, "nilfs2"), Some(1013.0));
        assert_eq!(value(Experiment::Mount, "after_reboot", desktop, "vfat"), None);
        assert_eq!(value(Experiment::Copy, "tree_remove", Preset::Stick, "f2fs"), Some(0.22));
        assert_eq!(value(Experiment::Copy, "tree_remove", desktop, "f2fs"), None);
    }

    #[test]
    fn the_times_of_2003_are_found() {
        let rows = latencies("sequential_uncleaned");
        let figures: Vec<(f64, f64, u64)> =
            rows.iter().map(|row| (row.p999_ms, row.max_s, row.count)).collect();
        assert_eq!(figures, [(3100.0, 3.1, 10_000), (1200.0, 7.4, 1_000_000)]);
        assert_eq!((latencies("random").len(), latencies("random_uncleaned").len()), (2, 0));
        let mean = published(Experiment::Latency, "random", Preset::Nor, "jffs2").unwrap().value;
        assert_eq!(mean, 102.0);
        assert!(published(Experiment::Latency, "random", Preset::Desktop, "f2fs").is_none());
    }

    #[test]
    fn every_part_but_copies_has_a_figure_of_ext4() {
        for experiment in Experiment::USUAL.into_iter().filter(|one| *one != Experiment::Copy) {
            for part in experiment.parts() {
                for preset in [Preset::Desktop, Preset::Phone] {
                    assert!(
                        published(experiment, part.name, preset, "ext4").is_some(),
                        "{experiment:?} {part:?}"
                    );
                }
            }
        }
    }
}
