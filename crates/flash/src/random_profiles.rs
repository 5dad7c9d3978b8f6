//! Random devices by seed, with the noise of real ones, to judge the probe. No code was tuned for any of
//! them.

use std::io;

use block::{Device, Export, Geometry, Rng};

use crate::{
    card::{Card, Pace},
    condition::Condition,
    fault::FaultPlan,
    model::Model,
    profile::{FatArea, Flash, Host, Layer, Locality, Profile, Times},
};

const K: u64 = 1024;
const M: u64 = 1024 * K;

/// Possible figures of a device.
struct Choices {
    large_units_mib: &'static [u64],
    small_units_mib: &'static [u64],
    pages_kib: &'static [u64],
    areas_mib: &'static [u64],
}

/// Figures found in the surveys.
const USUAL: Choices = Choices {
    large_units_mib: &[2, 4, 4, 4, 8, 8, 16, 12],
    small_units_mib: &[1, 2, 4, 4],
    pages_kib: &[4, 8, 8, 16, 16, 16, 32],
    areas_mib: &[0, 0, 4, 8, 16],
};

/// Figures that are larger, or not powers of two.
const ODD: Choices = Choices {
    large_units_mib: &[3, 6, 6, 12, 24, 4],
    small_units_mib: &[1, 2, 3, 6],
    pages_kib: &[8, 16, 32, 64, 64],
    areas_mib: &[0, 0, 5, 10, 20, 40],
};

/// Makes a card with parameters drawn from the ranges of the surveys, and a plan of disturbances for its
/// measurements.
pub fn device(seed: u64) -> (Profile, FaultPlan) {
    made(seed, &USUAL)
}

/// Makes a card with large pages, units of three times a power of two, and areas at the front of any length.
pub fn odd_device(seed: u64) -> (Profile, FaultPlan) {
    made(seed, &ODD)
}

/// Makes an odd device with pages of 512 bytes to 64 KiB on one to eight channels, queues, and jitter of up to 15 %.
pub fn parallel_device(seed: u64) -> (Profile, FaultPlan) {
    let (mut profile, mut noise) = odd_device(seed);
    let mut rng = Rng::new(seed ^ PARALLEL);
    let mut pick = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
    let stripe_bytes = u64::from(profile.flash.page_bytes);
    profile.flash.page_bytes = 512 << pick(&[0, 1, 2, 3, 4, 5, 6, 7]);
    profile.flash.channels = pick(&[1, 1, 2, 3, 4, 5, 6, 7, 8]) as u32;
    profile.host.queue_depth = pick(&[1, 2, 8, 32]) as u32;
    noise.jitter = pick(&[0, 5, 10, 15]) as f64 / 100.0;
    // The rate stays as it was drawn.
    let pages_bytes = u64::from(profile.flash.page_bytes) * u64::from(profile.flash.channels);
    let page_ns = |ns: u64| (ns * pages_bytes / stripe_bytes).max(1000);
    profile.time.program_page_ns = page_ns(profile.time.program_page_ns);
    if let Some(fat) = &mut profile.fat_area {
        fat.program_page_ns = page_ns(fat.program_page_ns);
    }
    (profile, noise)
}

/// Distinguishes the draws of a parallel device from those of the odd one.
const PARALLEL: u64 = 0x5eed << 32;

fn made(seed: u64, choices: &Choices) -> (Profile, FaultPlan) {
    let drawn = Drawn::new(seed, choices);
    let noise = FaultPlan { seed, ..drawn.noise.clone() };
    (drawn.into_profile(seed), noise)
}

/// The figures drawn for one device.
struct Drawn {
    size_bytes: u64,
    host: Host,
    time: Times,
    page_bytes: u64,
    block_bytes: u64,
    layer: Layer,
    locality: Locality,
    fat_area: Option<FatArea>,
    noise: FaultPlan,
}

impl Drawn {
    /// Draws the figures. Their order decides the device that a seed gives.
    fn new(seed: u64, choices: &Choices) -> Drawn {
        let mut rng = Rng::new(seed);
        let mut pick = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        let size_bytes = pick(&[2, 4, 8, 16, 32]) * 1000 * 1000 * 1000 / (64 * M) * (64 * M);
        let large = size_bytes > 6_000_000_000;
        let au_bytes = pick(if large { choices.large_units_mib } else { choices.small_units_mib }) * M;
        let limited = pick(&[0, 1, 1, 1, 1, 1, 1, 1]) == 1;
        let any_order = pick(&[0, 1]) == 1;
        // Some cards merge whole units, some pieces of them.
        let pieces = pick(&[1, 1, 4, 16]).min(au_bytes / (256 * K));
        let open_units = pick(&[1, 2, 2, 3, 3, 4, 5, 6, 8, 10]);
        let open_random = if any_order { pick(&[1, open_units, open_units]) } else { 0 };
        let page_bytes = pick(choices.pages_kib) * K;
        let fat_mib = pick(choices.areas_mib);
        let page_ns = page_bytes * 1_000_000_000 / (pick(&[5, 8, 10, 12, 15, 20, 30, 40]) * 1_000_000);
        let mut time = Times {
            write_command_ns: pick(&[100, 200, 400, 700, 1000]) * 1000,
            read_command_ns: pick(&[200, 300, 400, 700, 1000]) * 1000,
            read_bytes_per_s: pick(&[15, 17, 20, 40, 80]) * 1_000_000,
            read_page_ns: 50_000,
            program_page_ns: page_ns,
            erase_block_ns: 2_000_000,
            ..Times::default()
        };
        let locality = Locality {
            unit_bytes: au_bytes as u32,
            unit_switch_ns: pick(&[0, 0, 0, 300, 1000]) * 1000,
            read_crossing_ns: pick(&[0, 50, 200]) * 1000,
            ..Locality::default()
        };
        let small_us = pick(&[0, 0, 5000, 20000]);
        let max_request_bytes = (pick(&[120, 512, 1024]) * K) as u32;
        let cached = pick(&[0, 0, 0, 0, 0, 0, 1]) == 1;
        time.flush_ns = if cached { 1_000_000 } else { 0 };
        let fat_area = FatArea {
            start_bytes: 0,
            length_bytes: (fat_mib * M).next_multiple_of(au_bytes),
            program_page_ns: page_ns * pick(&[1, 1, 2]),
        };
        let noise = FaultPlan {
            jitter: pick(&[2, 5, 10]) as f64 / 100.0,
            stall_chance: pick(&[0, 2, 10]) as f64 / 1000.0,
            stall_ns: pick(&[5, 20, 100]) * 1_000_000,
            ..FaultPlan::default()
        };
        let hybrid = Layer::Hybrid {
            au_bytes: au_bytes as u32,
            open_units: open_units as u32,
            open_random: open_random.min(open_units) as u32,
            small_write_bytes: if small_us > 0 { 8 * K as u32 } else { 0 },
            small_write_ns: small_us * 1000,
            granule_bytes: 0,
            open_by_size: Vec::new(),
        };
        Drawn {
            size_bytes,
            host: Host {
                max_request_bytes,
                queue_depth: 1,
                flush: cached,
                discard: false,
                write_cache_bytes: if cached { 512 * K as u32 } else { 0 },
            },
            time,
            page_bytes,
            block_bytes: if limited { au_bytes / pieces } else { au_bytes },
            layer: if limited { hybrid } else { Layer::Page { reserve_blocks: 4 } },
            locality,
            fat_area: (fat_mib > 0).then_some(fat_area),
            noise,
        }
    }

    fn into_profile(self, seed: u64) -> Profile {
        Profile {
            name: format!("random-{seed}"),
            title: "made by seed".into(),
            size_bytes: self.size_bytes,
            host: self.host,
            time: self.time,
            flash: Flash {
                page_bytes: self.page_bytes as u32,
                block_bytes: self.block_bytes as u32,
                channels: 1,
                spare_blocks: 64,
                endurance_erases: 100_000,
                bad_blocks: 0,
            },
            layer: self.layer,
            locality: self.locality,
            write_costs: Vec::new(),
            slc_cache: None,
            fat_area: self.fat_area,
            sources: Default::default(),
        }
    }
}

/// Makes a fresh card in virtual time. It keeps no data, because only its times matter.
pub fn card(profile: &Profile, noise: FaultPlan, condition: Condition) -> Card {
    let model = Model::new(profile.clone(), condition).with_faults(noise);
    let data = NoData(Geometry { size_bytes: profile.size_bytes, sector_bytes: 512 });
    Card::from_parts(model, Box::new(data), Pace::Virtual)
}

struct NoData(Geometry);

impl Device for NoData {
    fn geometry(&self) -> Geometry {
        self.0
    }
    fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

impl Export for NoData {}
