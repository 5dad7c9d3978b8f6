//! The profile of a card that behaves like the probed one.

use std::collections::BTreeMap;

use super::Findings;
use crate::profile::{FatArea, Flash, Host, Layer, Locality, Profile, ProfileError, Times};

/// Assumed size of the write cache. A measurement shows that there is a cache, but not its size.
const CACHE_BYTES: u32 = 512 << 10;
/// Assumed unit of a card that shows none.
const UNIT_BYTES: u64 = 4 << 20;
/// Source of a figure that a profile needs and that no external measurement shows.
const ASSUMED: &str = "assumed: no external measurement shows it";
const MEASURED: &str = "measured by the probe";
const UNCERTAIN: &str = "measured by the probe, uncertain";

impl Findings {
    /// Makes a profile of the measured figures. Other figures are assumed, and their source says so.
    ///
    /// # Errors
    /// The figures contradict each other, or writes were not measured.
    pub fn profile(&self, name: &str) -> Result<Profile, ProfileError> {
        let missing = |figure| ProfileError::Figure { figure, why: "was not measured".into() };
        let page_bytes = self.page_bytes.ok_or(missing("flash.page_bytes"))?.value;
        let limit = self.open_units.ok_or(missing("layer.open_units"))?.value;
        let byte_ns = 1e9 / self.write_bytes_per_s.ok_or(missing("time.program_page_ns"))?;
        let unit_bytes = self.unit_bytes.and_then(|found| found.value);
        let unit_or_usual = unit_bytes.unwrap_or(UNIT_BYTES.max(page_bytes));
        let any_order = self.random_in_unit.is_some_and(|found| found.value);
        let program_page_ns = (byte_ns * page_bytes as f64).max(1.0) as u64;
        // The time of a merge shows the copied amount: the unit, or a part of it.
        let copied_pages = self.merge_ns.map_or(0.0, |ns| ns / program_page_ns as f64);
        let mut block_bytes = unit_or_usual;
        while block_bytes % (2 * page_bytes) == 0
            && copied_pages * 1.4 * (page_bytes as f64) < block_bytes as f64
        {
            block_bytes /= 2;
        }
        let layer = match limit {
            Some(limit) => Layer::Hybrid {
                au_bytes: unit_or_usual as u32,
                open_units: limit as u32,
                open_random: if any_order { limit as u32 } else { 0 },
                small_write_bytes: 0,
                small_write_ns: 0,
            },
            None => {
                block_bytes = unit_or_usual;
                Layer::Page { reserve_blocks: 4 }
            }
        };
        let cached = self.write_cache == Some(true);
        let fat_area = self.fat_area_bytes.and_then(|found| found.value).map(|length| FatArea {
            start_bytes: 0,
            length_bytes: length
                .next_multiple_of(block_bytes)
                .min(self.size_bytes / block_bytes * block_bytes),
            program_page_ns,
        });
        let source = |figure: &str, from: &str| (figure.to_string(), from.to_string());
        let measured =
            |is_certain: Option<bool>| if is_certain == Some(false) { UNCERTAIN } else { MEASURED };
        let layer_is_certain =
            [self.unit_bytes, self.open_units].into_iter().flatten().all(|it| it.is_certain());
        let mut sources = BTreeMap::from([
            source("size_bytes", MEASURED),
            source("host", ASSUMED),
            source("time", MEASURED),
            source("flash.page_bytes", measured(self.page_bytes.map(|it| it.is_certain()))),
            source("flash.block_bytes", "the unit of a merge, measured by the probe"),
            source("flash", ASSUMED),
            source("layer", measured(Some(layer_is_certain))),
            source("locality", ASSUMED),
        ]);
        if fat_area.is_some() {
            sources.extend([source("fat_area", measured(self.fat_area_bytes.map(|it| it.is_certain())))]);
        }
        let profile = Profile {
            name: name.to_string(),
            title: "As measured by the probe".into(),
            size_bytes: self.size_bytes / 512 * 512,
            host: Host {
                max_request_bytes: 512 << 10,
                queue_depth: 1,
                flush: cached,
                discard: cached,
                write_cache_bytes: if cached { CACHE_BYTES } else { 0 },
            },
            time: Times {
                read_command_ns: self.read_command_ns.unwrap_or(0.0) as u64,
                write_command_ns: self.write_command_ns.unwrap_or(0.0) as u64,
                flush_ns: if cached { self.flush_ns.unwrap_or(0.0) as u64 } else { 0 },
                read_bytes_per_s: self.read_bytes_per_s.unwrap_or(0.0) as u64,
                short_write_bytes: self.short_write_bytes as u32,
                short_write_ns: self.short_write_ns as u64,
                program_page_ns,
                ..Times::default()
            },
            flash: Flash {
                page_bytes: page_bytes as u32,
                block_bytes: block_bytes as u32,
                channels: 1,
                spare_blocks: 64 + limit.unwrap_or(0) as u32,
                endurance_erases: 3000,
                bad_blocks: 0,
            },
            layer,
            locality: Locality { unit_bytes: unit_or_usual as u32, ..Locality::default() },
            slc_cache: None,
            fat_area,
            sources,
        };
        profile.check()?;
        Ok(profile)
    }
}
