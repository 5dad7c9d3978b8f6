//! Options of mkfs.

use std::fmt;

use crate::{
    Error, Result,
    format::{
        BlockSize,
        superblock::{self, Features, Superblock},
    },
};

use super::Overprovision;

/// Encoding for comparisons of names in casefolded directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Encoding {
    /// True if names that are not UTF-8 are refused; otherwise they are compared as bytes.
    pub strict: bool,
    /// True if lookups rely on the hash and never search a whole directory.
    pub hash_only: bool,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [(self.strict, "strict"), (self.hash_only, "hashonly")];
        let names: Vec<&str> = flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect();
        f.write_str("utf8")?;
        if names.is_empty() { Ok(()) } else { write!(f, ":{}", names.join(",")) }
    }
}

impl Encoding {
    /// `s_encoding` of the superblock.
    pub(crate) const UTF8_12_1: u16 = 1;

    /// Parses an encoding in the form of mkfs.f2fs's `-C`: `utf8`, then flags after a colon, as in
    /// `utf8:strict,hashonly`. A `no` before a flag clears it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown encoding or flag.
    pub fn parse(text: &str) -> Result<Encoding> {
        let (name, flags) = text.split_once(':').unwrap_or((text, ""));
        if name != "utf8" {
            return Err(Error::Invalid(format!("unknown encoding {name:?}; supported: utf8").into()));
        }
        let mut encoding = Encoding::default();
        for flag in flags.split([',', ':']).filter(|flag| !flag.is_empty()) {
            match flag {
                "strict" => encoding.strict = true,
                "nostrict" => encoding.strict = false,
                "hashonly" => encoding.hash_only = true,
                "nohashonly" => encoding.hash_only = false,
                _ => {
                    return Err(Error::Invalid(
                        format!("unknown encoding flag {flag:?}; supported: strict and hashonly").into(),
                    ));
                }
            }
        }
        Ok(encoding)
    }

    /// The encoding of a volume, if it has one.
    #[must_use]
    pub fn of(superblock: &Superblock) -> Option<Encoding> {
        let (flags, is_utf8) = (superblock.encoding_flags, superblock.encoding == Encoding::UTF8_12_1);
        is_utf8.then_some(Encoding { strict: flags & 1 != 0, hash_only: flags & 2 != 0 })
    }

    /// `s_encoding_flags` of the superblock.
    pub(crate) fn flags(self) -> u16 {
        u16::from(self.strict) | u16::from(self.hash_only) << 1
    }
}

/// Parses a list of features in the form of mkfs.f2fs's `-O`, separated by commas or blanks.
///
/// # Errors
/// [`Error::Invalid`] for an unknown name, [`Error::Unsupported`] for a feature that cannot be made.
pub fn parse_features(list: &str) -> Result<Features> {
    let names = list.split([',', ' ']).filter(|name| !name.is_empty());
    names.into_iter().try_fold(Features::default(), |set, name| {
        let known = Features::NAMED.iter().find(|(_, known)| *known == name);
        match known {
            Some((feature, _)) if makeable().has(*feature) => Ok(set.with(*feature)),
            Some(_) => Err(Error::Unsupported(format!("making a volume with feature {name}").into())),
            None => {
                let names: Vec<&str> = makeable().names().collect();
                Err(Error::Invalid(
                    format!("unknown feature {name:?}; supported: {}", names.join(", ")).into(),
                ))
            }
        }
    })
}

/// Features that a new volume can have. Zoned devices and device aliases are not supported here, and no
/// program ever sets atomic_write.
fn makeable() -> Features {
    let not = [Features::BLKZONED, Features::ATOMIC_WRITE, Features::DEVICE_ALIAS];
    Features::NAMED
        .iter()
        .filter(|(feature, _)| !not.contains(feature))
        .fold(Features::default(), |set, (feature, _)| set.with(*feature))
}

/// All options of a new volume except its size. [`Options::new`] has the defaults of mkfs.f2fs.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// UUID. The caller chooses it, because this crate has no random source.
    pub uuid: [u8; 16],
    /// Label, at most 512 UTF-16 units.
    pub label: String,
    /// Features. A feature required by another one is checked, not added, except that `project_quota` adds
    /// `quota`, as in mkfs.f2fs.
    pub features: Features,
    /// Size of a block.
    pub block_size: BlockSize,
    /// Sector of the device in bytes: a power of two from 512 to the block size.
    pub sector_bytes: u32,
    /// Segments in a section, the unit of cleaning.
    pub segments_per_section: u32,
    /// Sections in a zone, the unit in which logs start apart from each other.
    pub sections_per_zone: u32,
    /// Space set aside for cleaning.
    pub overprovision: Overprovision,
    /// Offset of the volume on its disk, in bytes: zones are aligned on the disk, not in the partition.
    pub start_offset_bytes: u64,
    /// Extensions of cold files, in addition to the built-in ones.
    pub cold_extensions: Vec<String>,
    /// Extensions of hot files, in addition to the built-in ones.
    pub hot_extensions: Vec<String>,
    /// True if the size of the volume determines the size of the NAT (a fifth of the largest usable one),
    /// rather than the first block of a checkpoint: `-i`.
    pub large_nat_bitmap: bool,
    /// Encoding of names, for casefolding.
    pub encoding: Encoding,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
}

impl Options {
    /// The defaults, for a volume with this UUID.
    #[must_use]
    pub fn new(uuid: [u8; 16]) -> Options {
        Options {
            uuid,
            label: String::new(),
            features: Features::default(),
            block_size: BlockSize::B4K,
            sector_bytes: 512,
            segments_per_section: 1,
            sections_per_zone: 1,
            overprovision: Overprovision::Automatic,
            start_offset_bytes: 0,
            cold_extensions: Vec::new(),
            hot_extensions: Vec::new(),
            large_nat_bitmap: false,
            encoding: Encoding::default(),
            root_owner: (0, 0),
        }
    }

    /// Adds the options of mkfs.f2fs's `-g android`: features of Android's data partition, unless the volume
    /// is read-only, and a root directory owned by root.
    pub fn android(mut self) -> Options {
        self.root_owner = (0, 0);
        if !self.features.has(Features::RO) {
            self.features = [
                Features::ENCRYPT,
                Features::EXTRA_ATTR,
                Features::PROJECT_QUOTA,
                Features::QUOTA,
                Features::VERITY,
            ]
            .into_iter()
            .fold(self.features, Features::with);
        }
        self
    }

    /// Returns the size of a zone in bytes: volumes grow by whole zones.
    ///
    /// # Panics
    /// If the number of segments in a zone overflows `u32`. Options of which a [`Plan`](super::Plan) was made do
    /// not.
    #[must_use]
    pub fn zone_bytes(&self) -> u64 {
        u64::from(self.segments_per_zone()) * self.block_size.segment_bytes()
    }

    /// Segments in a zone. Checked before use: a product that does not fit is refused.
    pub(super) fn segments_per_zone(&self) -> u32 {
        self.segments_per_section * self.sections_per_zone
    }

    /// Refuses options that are invalid at any size. Returns the features, including those added.
    pub(super) fn check(&self) -> Result<Features> {
        let invalid = |what: String| Err(Error::Invalid(what.into()));
        let features = match self.features {
            set if set.has(Features::PROJECT_QUOTA) => set.with(Features::QUOTA),
            set => set,
        };
        let refused = Features(features.0 & !makeable().0);
        if refused != Features::default() {
            return Err(Error::Unsupported(
                format!("making a volume with feature bits {:#x}", refused.0).into(),
            ));
        }
        features.require_extra_attr()?;
        if features.has(Features::PACKED_SSA) && self.block_size == BlockSize::B4K {
            return invalid("feature packed_ssa needs blocks larger than 4 KiB".into());
        }
        superblock::check_label(&self.label)?;
        let sector = self.sector_bytes;
        if !sector.is_power_of_two() || !(512..=self.block_size.bytes() as u32).contains(&sector) {
            return invalid(format!(
                "sectors of {sector} bytes; a power of two from 512 to {} is needed",
                self.block_size.bytes()
            ));
        }
        if self.segments_per_section == 0 || self.sections_per_zone == 0 {
            return invalid("a section needs 1 segment or more, and a zone 1 section or more".into());
        }
        let zone = self.segments_per_section.checked_mul(self.sections_per_zone);
        if !zone.is_some_and(|segments| (1..=1 << 23).contains(&segments)) {
            return invalid(format!(
                "{} segments in a section and {} sections in a zone are too many",
                self.segments_per_section, self.sections_per_zone
            ));
        }
        if let Overprovision::Percent(percent) = self.overprovision {
            if !(percent > 0.0 && percent < 100.0) {
                return invalid(format!("overprovision of {percent} %, must be above 0 and below 100"));
            }
        }
        if self.start_offset_bytes % 512 != 0 || self.start_offset_bytes > 1 << 62 {
            return invalid(format!("start at byte {}, must be a multiple of 512", self.start_offset_bytes));
        }
        Ok(features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_as_mkfs_f2fs_names_them() {
        let set = parse_features("extra_attr,inode_checksum lost_found,").unwrap();
        assert_eq!(set.0, 0x8 | 0x20 | 0x200);
        assert_eq!(parse_features("").unwrap(), Features::default());
        for (list, part) in
            [("extra_atr", "unknown feature"), ("blkzoned", "not supported"), ("ro,x", "\"x\"")]
        {
            let error = parse_features(list).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn android_adds_its_features() {
        assert_eq!(Options::new([0; 16]).android().features.0, 0x499);
        let mut ro = Options::new([0; 16]);
        ro.features = Features::RO;
        assert_eq!(ro.android().features, Features::RO);
    }

    #[test]
    fn project_quota_brings_quota_and_needs_extra_attr() {
        let mut options = Options::new([0; 16]);
        options.features = Features::PROJECT_QUOTA;
        assert!(options.check().unwrap_err().to_string().contains("project_quota needs feature extra_attr"));
        options.features = options.features.with(Features::EXTRA_ATTR);
        assert!(options.check().unwrap().has(Features::QUOTA));
    }

    #[test]
    fn invalid_input_is_refused() {
        type Spoil = fn(&mut Options);
        let refused: [(&str, Spoil); 10] = [
            ("sectors of 100", |o| o.sector_bytes = 100),
            ("sectors of 8192", |o| o.sector_bytes = 8192),
            ("1 segment or more", |o| o.segments_per_section = 0),
            ("1 section or more", |o| o.sections_per_zone = 0),
            ("sections in a zone", |o| (o.segments_per_section, o.sections_per_zone) = (1 << 16, 1 << 16)),
            ("must be above 0", |o| o.overprovision = Overprovision::Percent(f64::NAN)),
            ("must be a multiple of 512", |o| o.start_offset_bytes = 7),
            ("label of 513", |o| o.label = "x".repeat(513)),
            ("no NUL", |o| o.label = "a\0b".into()),
            ("packed_ssa", |o| o.features = Features::PACKED_SSA),
        ];
        for (part, spoil) in refused {
            let mut options = Options::new([0; 16]);
            spoil(&mut options);
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn encodings_are_parsed_as_mkfs_f2fs_parses_them() {
        assert_eq!(Encoding::parse("utf8").unwrap().flags(), 0);
        assert_eq!(Encoding::parse("utf8:strict").unwrap().flags(), 1);
        assert_eq!(Encoding::parse("utf8:strict,hashonly,nostrict").unwrap().flags(), 2);
        assert!(Encoding::parse("latin1").is_err() && Encoding::parse("utf8:loose").is_err());
    }
}
