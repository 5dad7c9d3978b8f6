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
        let stripe_bytes = self.stripe_bytes.ok_or(missing("flash.channels"))?;
        let limit = self.open_units.ok_or(missing("layer.open_units"))?.value;
        let byte_ns = 1e9 / self.write_bytes_per_s.ok_or(missing("time.program_page_ns"))?;
        let unit_bytes =
            self.unit_bytes.and_then(|found| found.value).unwrap_or(UNIT_BYTES.max(stripe_bytes));
        let program_page_ns = (byte_ns * stripe_bytes as f64).max(1.0) as u64;
        let (layer, block_bytes) = match limit {
            Some(limit) => {
                let layer = Layer::Hybrid {
                    au_bytes: unit_bytes as u32,
                    open_units: limit as u32,
                    open_random: if self.takes_any_order() { limit as u32 } else { 0 },
                    small_write_bytes: 0,
                    small_write_ns: 0,
                    granule_bytes: 0,
                    open_by_size: Vec::new(),
                };
                (layer, self.merged_bytes(unit_bytes, stripe_bytes, program_page_ns))
            }
            None => (Layer::Page { reserve_blocks: 4 }, unit_bytes),
        };
        let profile = Profile {
            name: name.to_string(),
            title: "As measured by the probe".into(),
            size_bytes: self.size_bytes / 512 * 512,
            host: self.host(),
            time: self.times(program_page_ns),
            flash: Flash {
                page_bytes: page_bytes as u32,
                block_bytes: block_bytes as u32,
                channels: (stripe_bytes / page_bytes) as u32,
                spare_blocks: 64 + limit.unwrap_or(0) as u32,
                endurance_erases: 3000,
                bad_blocks: 0,
            },
            layer,
            locality: self.locality(unit_bytes),
            write_costs: Vec::new(),
            slc_cache: None,
            fat_area: self.fat_area(block_bytes, program_page_ns),
            sources: self.sources(),
        };
        profile.check()?;
        Ok(profile)
    }

    /// Returns the size in bytes of the block that a merge copies, which the time of a merge shows: the unit,
    /// or a part of it.
    fn merged_bytes(&self, unit_bytes: u64, stripe_bytes: u64, program_page_ns: u64) -> u64 {
        let copied_stripes = self.merge_ns.map_or(0.0, |ns| ns / program_page_ns as f64);
        let mut block_bytes = unit_bytes;
        while block_bytes % (2 * stripe_bytes) == 0
            && copied_stripes * 1.4 * (stripe_bytes as f64) < block_bytes as f64
        {
            block_bytes /= 2;
        }
        block_bytes
    }

    fn has_cache(&self) -> bool {
        self.write_cache == Some(true)
    }

    fn host(&self) -> Host {
        Host {
            max_request_bytes: 512 << 10,
            queue_depth: 1,
            flush: self.has_cache(),
            discard: self.has_cache(),
            write_cache_bytes: if self.has_cache() { CACHE_BYTES } else { 0 },
        }
    }

    fn times(&self, program_page_ns: u64) -> Times {
        Times {
            read_command_ns: self.read_command_ns.unwrap_or(0.0) as u64,
            write_command_ns: self.write_command_ns.unwrap_or(0.0) as u64,
            flush_ns: if self.has_cache() { self.flush_ns.unwrap_or(0.0) as u64 } else { 0 },
            read_bytes_per_s: self.read_bytes_per_s.unwrap_or(0.0) as u64,
            short_write_bytes: self.short_write_bytes as u32,
            short_write_ns: self.short_write_ns as u64,
            program_page_ns,
            ..Times::default()
        }
    }

    fn locality(&self, unit_bytes: u64) -> Locality {
        Locality {
            unit_bytes: unit_bytes as u32,
            unit_switch_ns: self.unit_switch_ns.unwrap_or(0.0) as u64,
            streams: self.streams.unwrap_or(0) as u32,
            stream_miss_ns: self.stream_miss_ns.filter(|_| self.streams.is_some()).unwrap_or(0.0) as u64,
            read_crossing_ns: 0,
        }
    }

    /// Returns the area at the front, in whole blocks, if one was found.
    fn fat_area(&self, block_bytes: u64, program_page_ns: u64) -> Option<FatArea> {
        let length_bytes = self.fat_area_bytes?.value?.next_multiple_of(block_bytes);
        let whole_bytes = self.size_bytes / block_bytes * block_bytes;
        Some(FatArea { start_bytes: 0, length_bytes: length_bytes.min(whole_bytes), program_page_ns })
    }

    /// Returns the source of each figure.
    fn sources(&self) -> BTreeMap<String, String> {
        let measured =
            |is_certain: Option<bool>| if is_certain == Some(false) { UNCERTAIN } else { MEASURED };
        let found = |cost_ns: Option<f64>| if cost_ns.is_some() { MEASURED } else { ASSUMED };
        let layer_is_certain =
            [self.unit_bytes, self.open_units].into_iter().flatten().all(|it| it.is_certain());
        let mut sources = vec![
            ("size_bytes", MEASURED),
            ("host", ASSUMED),
            ("time", MEASURED),
            ("flash.page_bytes", measured(self.page_bytes.map(|it| it.is_certain()))),
            ("flash.channels", measured(self.page_bytes.map(|it| it.is_certain()))),
            ("flash.block_bytes", "the unit of a merge, measured by the probe"),
            ("flash", ASSUMED),
            ("layer", measured(Some(layer_is_certain))),
            ("locality.unit_bytes", measured(self.unit_bytes.map(|it| it.is_certain()))),
            ("locality.unit_switch_ns", found(self.unit_switch_ns)),
            ("locality.streams", found(self.stream_miss_ns)),
            ("locality.stream_miss_ns", found(self.stream_miss_ns)),
            ("locality.read_crossing_ns", ASSUMED),
        ];
        if let Some(found) = self.fat_area_bytes.filter(|found| found.value.is_some()) {
            sources.push(("fat_area", measured(Some(found.is_certain()))));
        }
        sources.into_iter().map(|(figure, from)| (figure.to_string(), from.to_string())).collect()
    }
}
