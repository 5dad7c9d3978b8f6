//! The figures that started it all, from testdata/reference.

use std::sync::LazyLock;

use crate::{experiment::Experiment, preset::Preset};

const JEONG: &str = include_str!("../../../testdata/reference/jeong-2012.toml");
const FEDORCHUK: &str = include_str!("../../../testdata/reference/fedorchuk-2014.toml");

static TABLES: LazyLock<[toml::Table; 2]> =
    LazyLock::new(|| [JEONG, FEDORCHUK].map(|text| toml::from_str(text).expect("it is part of the program")));

/// A figure that was published.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// The figure, in the part's unit.
    pub value: f64,
    /// Whether it holds at every scale; else it is of the originals' sizes only.
    pub is_rate: bool,
}

/// The figure of a file system in a part of an experiment, on the machine of a preset.
pub fn published(experiment: Experiment, part: &str, preset: Preset, kind: &str) -> Option<Published> {
    let [jeong, fedorchuk] = &*TABLES;
    let value = match experiment {
        Experiment::Copy if preset == Preset::Stick => find(fedorchuk, &["real_seconds", kind, part]),
        Experiment::Copy => None,
        _ => {
            let platform = match preset {
                Preset::Desktop => "desktop",
                Preset::Phone => "galaxy_s3",
                Preset::Stick => return None,
            };
            find(jeong, &["experiment", experiment.name(), platform, kind, part])
        }
    };
    value.map(|value| Published { value, is_rate: experiment != Experiment::Copy })
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
    fn every_part_but_copies_has_a_figure_of_ext4() {
        for experiment in Experiment::ALL.into_iter().filter(|one| *one != Experiment::Copy) {
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
