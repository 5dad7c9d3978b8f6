//! Properties of a modelled card that are known without a measurement.

use super::{Estimate, Findings};
use crate::profile::{Layer, Locality, Profile};

impl Findings {
    /// Returns the findings that a probe of a card of this profile should have.
    pub fn of(profile: &Profile) -> Findings {
        let known = |value| Some(Estimate::new(value, 1.0));
        let (unit, limit, any_order) = match profile.layer {
            Layer::Hybrid { au_bytes, open_units, open_random, .. } => {
                (Some(u64::from(au_bytes)), Some(u64::from(open_units)), open_random > 0)
            }
            // Without a limit of open units, the unit is visible only if switching it has a cost.
            Layer::Page { .. } if profile.locality.unit_switch_ns > 0 => {
                (Some(u64::from(profile.locality.unit_bytes)), None, true)
            }
            Layer::Page { .. } => (None, None, true),
            // The host erases, so a unit is a block of the chip.
            Layer::Nor | Layer::Nand => (Some(u64::from(profile.flash.block_bytes)), None, false),
        };
        let Locality { unit_switch_ns, streams, stream_miss_ns, .. } = profile.locality;
        let rate = |bytes_per_s: u64| (bytes_per_s > 0).then_some(bytes_per_s as f64);
        Findings {
            size_bytes: profile.size_bytes,
            read_command_ns: Some(profile.time.read_command_ns as f64),
            read_bytes_per_s: rate(profile.time.read_bytes_per_s),
            write_cache: Some(profile.host.write_cache_bytes > 0),
            page_bytes: Some(Estimate::new(u64::from(profile.flash.page_bytes), 1.0)),
            stripe_bytes: Some(u64::from(profile.flash.page_bytes) * u64::from(profile.flash.channels)),
            open_units: known(limit),
            random_in_unit: Some(Estimate::new(any_order, 1.0)),
            unit_bytes: known(unit),
            fat_area_bytes: known(profile.fat_area.as_ref().map(|fat| fat.length_bytes)),
            unit_switch_ns: Some(unit_switch_ns as f64),
            streams: (stream_miss_ns > 0).then_some(u64::from(streams)),
            stream_miss_ns: Some(stream_miss_ns as f64),
            ..Findings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_from_known_properties() {
        let of = |name: &str| Findings::of(&Profile::named(name).expect("built in")).advice();
        let stick = of("bergmann-stick");
        assert_eq!((stick.segments_per_section, stick.active_logs, stick.alignment_bytes), (2, 2, 4 << 20));
        assert!(stick.mount_options.contains("active_logs=2"));
        let card = of("transcend-16g-desktop");
        assert_eq!((card.sections_per_zone, card.active_logs), (2, 6));
        let ssd = of("survey-ssd");
        assert_eq!((ssd.segments_per_section, ssd.active_logs), (1, 6));
        assert!(ssd.mount_options.contains(",discard"));
        assert_eq!(of("survey-class4").active_logs, 2);
    }
}
