//! The options that our file system gets on a card: those that the rules of the probe derive after it has measured the
//! card. The card's true figures are not used. A cell is often a process of its own, so it does not compare shapes as the
//! verb does for a user: that takes twenty times as long as a small cell.

use std::{
    collections::HashMap,
    io,
    sync::{Mutex, PoisonError},
};

use flash::{
    Condition, FaultPlan, Profile,
    probe::{self, Advice, Findings},
    random_profiles,
};

use crate::rivals::FileSystem;

/// Advice by the text of the profile. A probe takes seconds, and a study has many cells on one card.
static PROBED: Mutex<Option<HashMap<String, Advice>>> = Mutex::new(None);

/// Returns the file system with the options that the probe advises for the card, unless options were given. The
/// profile is that of the whole card, also if an experiment cuts it: users probe what they bought.
///
/// # Errors
/// The probe fails, which a modelled card in order does not cause.
pub fn suited(spec: &FileSystem, profile: &Profile) -> io::Result<FileSystem> {
    if !spec.is_ours() || !spec.is_plain() || profile.is_raw() {
        return Ok(spec.clone());
    }
    let advice = advice(profile)?;
    let (section, zone) = (advice.segments_per_section.to_string(), advice.sections_per_zone.to_string());
    Ok(spec.clone().made(&["-s", &section, "-z", &zone]).mounted(&advice.mount_options))
}

/// Probes a clone of the card, which is full of data, with the budget that `probe --write` has by default.
///
/// # Errors
/// As [`suited`].
pub fn advice(profile: &Profile) -> io::Result<Advice> {
    // The lock is held meanwhile, so that cells that start together probe once.
    let mut probed = PROBED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = probed.get_or_insert_default();
    let text = profile.to_toml();
    if let Some(advice) = known.get(&text) {
        return Ok(advice.clone());
    }
    let advice = findings(profile)?.advice();
    known.insert(text, advice.clone());
    Ok(advice)
}

fn findings(profile: &Profile) -> io::Result<Findings> {
    let card = random_profiles::card(profile, FaultPlan::default(), Condition::Preconditioned);
    let options = probe::Options { write: true, ..probe::Options::default() };
    probe::probe(&card, &card, options, &mut |_, _| {})
}

#[cfg(test)]
mod tests {
    use flash::probe::Shape;

    use super::*;
    use crate::systems::{OURS, THROUGH_FUSE};

    #[test]
    fn our_file_system_gets_what_the_probe_finds_unless_options_are_given() {
        let card = Profile::named("survey-class10").unwrap();
        let advice = advice(&card).unwrap();
        for kind in [OURS, THROUGH_FUSE] {
            let chosen = suited(&FileSystem::new(kind), &card).unwrap();
            assert_eq!(chosen.mount, advice.mount_options);
            assert_eq!(chosen.mkfs[3], advice.sections_per_zone.to_string());
        }
        for text in ["flashkit:defaults", "flashkit::-s 2", "f2fs"] {
            let given = FileSystem::parse(text);
            assert_eq!(suited(&given, &card).unwrap(), given);
        }
    }

    /// The probe may be unsure, but then its rules keep mkfs's defaults.
    #[test]
    fn the_rules_of_the_probe_find_the_shape_of_the_true_figures_or_none() {
        for name in ["transcend-16g-desktop", "survey-class10", "survey-usb-stick", "survey-class4"] {
            let card = Profile::named(name).unwrap();
            let (found, known) =
                (findings(&card).unwrap().shape_by_rules(), Findings::of(&card).shape_by_rules());
            let shape = |shape: &Shape| (shape.segments_per_section, shape.sections_per_zone);
            assert!([shape(&known), (1, 1)].contains(&shape(&found)), "{name}: {found:?}");
        }
    }
}
