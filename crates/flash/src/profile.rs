//! Device profiles: each parameter of the model, with its source.
//!
//! *Invariant*: a [`Profile`] accepted by [`Profile::parse`] or [`Profile::check`] makes a model that never
//! divides by zero and never overflows.

mod costs;
mod resized;

use std::collections::BTreeMap;

pub use costs::{Order, WriteCost};
use serde::{Deserialize, Serialize};

/// A device with its host link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name for commands: lower case, digits, dashes.
    pub name: String,
    /// One-line description.
    pub title: String,
    /// Usable size in bytes.
    pub size_bytes: u64,
    /// The host's side of the link.
    pub host: Host,
    /// Durations of operations.
    pub time: Times,
    /// The flash chips.
    pub flash: Flash,
    /// The translation layer.
    pub layer: Layer,
    /// Address-dependent costs.
    #[serde(default)]
    pub locality: Locality,
    /// A cache of single-bit flash cells, moved to the other blocks in idle time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slc_cache: Option<SlcCache>,
    /// An area with rules of its own, made for the FAT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fat_area: Option<FatArea>,
    /// Times of whole writes as measured, by order and size. If there are any, a write outside the FAT area
    /// takes the time given here instead of those of its command, pages, merges and places. The flash still
    /// counts programs and erases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write_costs: Vec<WriteCost>,
    /// Source of each figure (`time.erase_block_ns`, or a whole table: `host`). A source that begins with
    /// "assumed" marks an assumption.
    pub sources: BTreeMap<String, String>,
}

/// Limits and features of the host and the link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Maximum size of a command in bytes. Larger requests are split.
    pub max_request_bytes: u32,
    /// Maximum number of concurrent commands.
    pub queue_depth: u32,
    /// True if flushes reach the card. Otherwise the host takes every completed write for durable.
    pub flush: bool,
    /// True if discards reach the card.
    pub discard: bool,
    /// Volatile write cache of the card in bytes; 0 if there is none.
    #[serde(default)]
    pub write_cache_bytes: u32,
}

/// Durations in nanoseconds and rates in bytes per second. A rate of 0 stands for a link that costs no time;
/// its share is then in the other figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// Fixed time of a read command, before any data.
    pub read_command_ns: u64,
    /// Fixed time of a write command, before any data.
    pub write_command_ns: u64,
    /// Fixed time of a flush, besides the work that it waits for.
    #[serde(default)]
    pub flush_ns: u64,
    /// Time of a discard.
    #[serde(default)]
    pub discard_ns: u64,
    /// Rate of the link, card to host.
    pub read_bytes_per_s: u64,
    /// Rate of the link, host to card.
    #[serde(default)]
    pub write_bytes_per_s: u64,
    /// Write commands shorter than this cost more at any address, because the card works in larger pieces.
    #[serde(default)]
    pub short_write_bytes: u32,
    /// Extra time of a short write.
    #[serde(default)]
    pub short_write_ns: u64,
    /// Time to read a flash page.
    #[serde(default)]
    pub read_page_ns: u64,
    /// Time to program a flash page.
    pub program_page_ns: u64,
    /// Time to erase a flash block.
    #[serde(default)]
    pub erase_block_ns: u64,
    /// Extra time of a write command by its size, sizes ascending: some cards are slower above 64 KiB. None below
    /// the first size, in proportion between two, and that of the last above it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub size_costs: Vec<SizeCost>,
}

/// Extra time of write commands of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeCost {
    /// Size of the command in bytes.
    pub bytes: u32,
    /// Extra time in nanoseconds.
    pub ns: u64,
}

impl Times {
    /// Returns the extra time in nanoseconds of a write command of this size.
    pub fn size_cost_ns(&self, bytes: u64) -> u64 {
        let above = self.size_costs.partition_point(|cost| u64::from(cost.bytes) <= bytes);
        let Some(low) = above.checked_sub(1).map(|n| self.size_costs[n]) else { return 0 };
        let Some(high) = self.size_costs.get(above) else { return low.ns };
        let share = (bytes - u64::from(low.bytes)) as f64 / f64::from(high.bytes - low.bytes);
        (low.ns as f64 + share * (high.ns as f64 - low.ns as f64)) as u64
    }
}

/// The chips as the layer uses them: a page may be several planes' pages, and a block several blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flash {
    /// Unit of programming.
    pub page_bytes: u32,
    /// Unit of erasing, and of the merges of a log-block layer.
    pub block_bytes: u32,
    /// Number of pages read or programmed in parallel.
    #[serde(default = "one")]
    pub channels: u32,
    /// Blocks beyond those that the size needs.
    pub spare_blocks: u32,
    /// Erases that a block survives.
    pub endurance_erases: u32,
    /// Spare blocks that are bad from the start.
    #[serde(default)]
    pub bad_blocks: u32,
}

/// The translation layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Layer {
    /// Log-block layer of memory cards and sticks: data in blocks, changes in log blocks.
    Hybrid {
        /// The allocation unit, which is open or closed.
        au_bytes: u32,
        /// Maximum number of open allocation units.
        open_units: u32,
        /// Number of open units that may be written out of order; with 0, each only from start to end.
        #[serde(default)]
        open_random: u32,
        /// Writes shorter than this that do not continue the previous command go to a buffer of their own.
        #[serde(default)]
        small_write_bytes: u32,
        /// Cost of such a write besides its page: the upkeep of the buffer.
        #[serde(default)]
        small_write_ns: u64,
        /// Granule of writes out of order: they rewrite each aligned piece of this size that they touch, in
        /// bytes; 0 if they cost only their own pages. The copies take time and are counted, but no blocks.
        #[serde(default, skip_serializing_if = "is_zero")]
        granule_bytes: u32,
        /// Limits of open units for larger writes, sizes ascending. The last one whose size is reached
        /// replaces `open_units`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        open_by_size: Vec<OpenLimit>,
    },
    /// Page-mapped layer of eMMC, UFS, SSDs and good cards: any logical page on any flash page. Garbage
    /// collection takes the blocks with the fewest valid pages.
    Page {
        /// Blocks that garbage collection keeps free.
        reserve_blocks: u32,
    },
    /// A bare NOR chip: any byte can be programmed once after an erase.
    Nor,
    /// A bare NAND chip: whole pages, in order, once after an erase.
    Nand,
}

/// Limit of open units for writes of at least some size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenLimit {
    /// Smallest size of the writes in bytes.
    pub from_bytes: u32,
    /// Maximum number of open units that such a write leaves.
    pub units: u32,
}

/// Address-dependent cost of a command besides its pages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locality {
    /// Unit of the switch cost; 0 if there is no such cost.
    pub unit_bytes: u32,
    /// Cost of a write in another unit than the previous write.
    #[serde(default)]
    pub unit_switch_ns: u64,
    /// Number of write ends that the card remembers.
    #[serde(default)]
    pub streams: u32,
    /// Cost of a write that starts at none of them, nor further on in the unit of the previous write or the
    /// next unit.
    #[serde(default)]
    pub stream_miss_ns: u64,
    /// Cost of a read that crosses from one unit into the next.
    #[serde(default)]
    pub read_crossing_ns: u64,
}

/// An area that the card treats as the place of a FAT: page-mapped, without units and stream misses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FatArea {
    /// First byte of the area.
    pub start_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
    /// Time to program a page there.
    pub program_page_ns: u64,
}

/// Single-bit cells. They are programmed fast, and later their content moves to the others, which takes as
/// long as to read and program it there. While they are full, writes go to the others at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlcCache {
    /// Capacity of the cells.
    pub size_bytes: u64,
    /// Time to program a page there.
    pub program_page_ns: u64,
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(figure: &u32) -> bool {
    *figure == 0
}

/// Error of an invalid profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The text is not TOML, or has unknown or missing figures.
    #[error("{0}")]
    Syntax(Box<toml::de::Error>),
    /// A figure is invalid.
    #[error("{figure}: {why}")]
    Figure {
        /// Name of the figure.
        figure: &'static str,
        /// Description of the error.
        why: String,
    },
    /// No profile has this name.
    #[error("unknown profile {0:?}; `flashkit card list` shows all profiles")]
    Unknown(String),
}

/// Prefix of the source of an assumed figure.
const ASSUMED: &str = "assumed";

/// The profiles that come with the program.
const BUILT_IN: &[&str] = &[
    include_str!("../profiles/transcend-16g-desktop.toml"),
    include_str!("../profiles/transcend-16g-phone.toml"),
    include_str!("../profiles/bergmann-stick.toml"),
    include_str!("../profiles/survey-class4.toml"),
    include_str!("../profiles/survey-toshiba-4g.toml"),
    include_str!("../profiles/survey-class10.toml"),
    include_str!("../profiles/survey-a1.toml"),
    include_str!("../profiles/survey-a2.toml"),
    include_str!("../profiles/survey-usb-stick.toml"),
    include_str!("../profiles/survey-emmc45.toml"),
    include_str!("../profiles/survey-emmc51.toml"),
    include_str!("../profiles/survey-ufs21.toml"),
    include_str!("../profiles/survey-ufs31.toml"),
    include_str!("../profiles/survey-ssd.toml"),
    include_str!("../profiles/nor-2003.toml"),
    include_str!("../profiles/nand-2003.toml"),
];

/// Maximum duration of a step. With the largest request and block, the longest command still ends within the
/// clock's 584 years.
pub(crate) const STEP_NS_MAX: u64 = 100_000_000_000;

/// Returns [`ProfileError::Figure`] from the function unless a figure is as it must be.
macro_rules! require {
    ($holds:expr, $figure:literal, $why:expr $(,)?) => {
        if !$holds {
            return Err(ProfileError::Figure { figure: $figure, why: $why.to_string() });
        }
    };
}

impl Profile {
    /// Parses a profile's file.
    ///
    /// # Errors
    /// [`ProfileError::Syntax`], [`ProfileError::Figure`].
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text).map_err(|e| ProfileError::Syntax(Box::new(e)))?;
        profile.check()?;
        Ok(profile)
    }

    /// Returns the built-in profiles, in the order of their listing.
    pub fn built_in() -> Vec<Profile> {
        BUILT_IN.iter().map(|text| Profile::parse(text).expect("a test reads each of them")).collect()
    }

    /// Returns the built-in profile of this name.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        let found = Profile::built_in().into_iter().find(|profile| profile.name == name);
        found.ok_or_else(|| ProfileError::Unknown(name.to_string()))
    }

    /// Formats the profile as a file.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("every figure has a form in TOML")
    }

    /// Returns the assumed figures, or tables of them.
    pub fn assumed(&self) -> Vec<&str> {
        let assumed = self.sources.iter().filter(|(_, source)| source.starts_with(ASSUMED));
        assumed.map(|(figure, _)| figure.as_str()).collect()
    }

    /// Returns true if the model is a bare chip, without a translation layer.
    pub fn is_raw(&self) -> bool {
        matches!(self.layer, Layer::Nor | Layer::Nand)
    }

    /// Returns the number of blocks that hold the addresses, without the spare ones.
    pub fn data_blocks(&self) -> u32 {
        self.size_bytes.div_ceil(u64::from(self.flash.block_bytes)) as u32
    }

    /// Pages in a block.
    pub fn pages_per_block(&self) -> u32 {
        self.flash.block_bytes / self.flash.page_bytes
    }

    /// Checks that the figures are consistent.
    ///
    /// # Errors
    /// [`ProfileError::Figure`] for the first that is not.
    pub fn check(&self) -> Result<(), ProfileError> {
        let named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        require!(!self.name.is_empty() && self.name.bytes().all(named), "name", "lower case, digits, dashes");
        self.check_flash()?;
        self.check_host()?;
        self.check_layer()?;
        self.check_areas()?;
        self.check_costs()?;
        require!(self.longest_step_ns() <= STEP_NS_MAX, "time", "no step may take over 100 s");
        require!(self.locality.streams <= 1024, "locality.streams", "at most 1024");
        Ok(())
    }

    fn check_flash(&self) -> Result<(), ProfileError> {
        let Flash { page_bytes, block_bytes, channels, spare_blocks, bad_blocks, endurance_erases } =
            self.flash;
        require!(page_bytes.is_power_of_two(), "flash.page_bytes", "must be a power of two");
        let least = if self.is_raw() { 256 } else { 512 };
        require!(
            (least..=1 << 20).contains(&page_bytes),
            "flash.page_bytes",
            "512 (a bare chip: 256) to 1 MiB"
        );
        require!(
            block_bytes != 0 && block_bytes % page_bytes == 0 && block_bytes <= 1 << 30,
            "flash.block_bytes",
            "must be a whole number of pages, up to 1 GiB"
        );
        require!((1..=1024).contains(&channels), "flash.channels", "1 to 1024");
        require!(self.size_bytes != 0 && self.size_bytes % 512 == 0, "size_bytes", "must be whole sectors");
        require!(spare_blocks <= 1 << 20, "flash.spare_blocks", "at most 2^20");
        let blocks = self.size_bytes.div_ceil(u64::from(block_bytes)) + u64::from(spare_blocks);
        // Some numbers of pages have a special meaning.
        require!(
            blocks.saturating_mul(u64::from(block_bytes / page_bytes)) < u64::from(u32::MAX) - 16,
            "size_bytes",
            format!("too many pages of {page_bytes} bytes")
        );
        require!(bad_blocks <= spare_blocks, "flash.bad_blocks", "must not exceed spare_blocks");
        require!(self.pages_per_block() <= 1 << 20, "flash.block_bytes", "at most 2^20 pages");
        require!(endurance_erases >= 1, "flash.endurance_erases", "at least 1");
        Ok(())
    }

    fn check_host(&self) -> Result<(), ProfileError> {
        let Host { max_request_bytes, queue_depth, .. } = self.host;
        require!(
            (512..=64 << 20).contains(&max_request_bytes) && max_request_bytes % 512 == 0,
            "host.max_request_bytes",
            "must be whole sectors, up to 64 MiB"
        );
        require!((1..=65536).contains(&queue_depth), "host.queue_depth", "1 to 65536");
        Ok(())
    }

    fn check_layer(&self) -> Result<(), ProfileError> {
        let block_bytes = self.flash.block_bytes;
        match self.layer {
            Layer::Hybrid { au_bytes, open_units, open_random, granule_bytes, ref open_by_size, .. } => {
                require!(
                    au_bytes != 0 && au_bytes % block_bytes == 0,
                    "layer.au_bytes",
                    "must be a whole number of blocks"
                );
                require!((1..=4096).contains(&open_units), "layer.open_units", "1 to 4096");
                require!(open_random <= open_units, "layer.open_random", "must not exceed open_units");
                require!(
                    granule_bytes % self.flash.page_bytes == 0
                        && (granule_bytes == 0 || block_bytes % granule_bytes == 0),
                    "layer.granule_bytes",
                    "must be whole pages, and a block whole granules"
                );
                require!(
                    open_by_size.iter().all(|limit| (1..=open_units).contains(&limit.units))
                        && open_by_size.is_sorted_by(|one, next| one.from_bytes < next.from_bytes)
                        && open_by_size.len() <= costs::SIZES_MAX,
                    "layer.open_by_size",
                    "sizes ascending, at most 64, each with 1 to open_units units"
                );
                self.check_spare()
            }
            Layer::Page { reserve_blocks } => {
                require!(reserve_blocks >= 1, "layer.reserve_blocks", "at least 1");
                self.check_spare()
            }
            Layer::Nor | Layer::Nand => {
                require!(self.fat_area.is_none(), "fat_area", "must be absent for a bare chip");
                require!(
                    self.size_bytes % u64::from(block_bytes) == 0,
                    "size_bytes",
                    "must be whole blocks for a bare chip"
                );
                Ok(())
            }
        }
    }

    /// Returns the number of good spare blocks that the layer cannot do without.
    fn needed_spare_blocks(&self) -> i64 {
        let fat_blocks = if self.fat_area.is_some() { 4 } else { 0 };
        match self.layer {
            // A log for each open unit, one for a merge, and four for the buffer.
            Layer::Hybrid { open_units, .. } => i64::from(open_units) + 1 + 4 + fat_blocks,
            Layer::Page { reserve_blocks } => i64::from(reserve_blocks) + 2 + fat_blocks,
            Layer::Nor | Layer::Nand => 0,
        }
    }

    /// Checks that there are enough good spare blocks.
    fn check_spare(&self) -> Result<(), ProfileError> {
        let wanted = self.needed_spare_blocks();
        let good = i64::from(self.flash.spare_blocks) - i64::from(self.flash.bad_blocks);
        require!(good >= wanted, "flash.spare_blocks", format!("{good} good ones, but {wanted} are needed"));
        Ok(())
    }

    /// Checks the single-bit cells and the FAT area.
    fn check_areas(&self) -> Result<(), ProfileError> {
        if let Some(slc) = &self.slc_cache {
            require!(!self.is_raw(), "slc_cache", "must be absent for a bare chip");
            require!(
                slc.size_bytes >= u64::from(self.flash.page_bytes),
                "slc_cache.size_bytes",
                "must be at least a page"
            );
        }
        if let Some(fat) = &self.fat_area {
            let block = u64::from(self.flash.block_bytes);
            let end = fat.start_bytes.checked_add(fat.length_bytes);
            require!(
                fat.length_bytes != 0
                    && fat.start_bytes % block == 0
                    && fat.length_bytes % block == 0
                    && fat.length_bytes / block <= 1 << 16
                    && end.is_some_and(|end| end <= self.size_bytes),
                "fat_area",
                "must be whole blocks on the card, at most 65536"
            );
        }
        Ok(())
    }

    /// Returns the longest duration of the profile.
    fn longest_step_ns(&self) -> u64 {
        let small_write_ns = match self.layer {
            Layer::Hybrid { small_write_ns, .. } => small_write_ns,
            _ => 0,
        };
        let steps_ns = [
            small_write_ns,
            self.time.read_command_ns,
            self.time.write_command_ns,
            self.time.flush_ns,
            self.time.discard_ns,
            self.time.read_page_ns,
            self.time.program_page_ns,
            self.time.erase_block_ns,
            self.time.short_write_ns,
            self.locality.unit_switch_ns,
            self.locality.stream_miss_ns,
            self.locality.read_crossing_ns,
            self.fat_area.as_ref().map_or(0, |fat| fat.program_page_ns),
            self.slc_cache.as_ref().map_or(0, |slc| slc.program_page_ns),
        ];
        let size_costs_ns = self.time.size_costs.iter().map(|cost| cost.ns);
        let write_costs_ns = self.write_costs.iter().flat_map(|cost| cost.ns_by_units.iter().copied());
        steps_ns.into_iter().chain(size_costs_ns).chain(write_costs_ns).fold(0, u64::max)
    }
}

#[cfg(test)]
mod tests;
