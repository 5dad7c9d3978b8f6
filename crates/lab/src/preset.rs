//! Machines of the original studies: a card, and the host's limits on requests.

use std::io;

use flash::{Profile, ProfileError};
use serde::{Deserialize, Serialize};

use crate::scale::Scale;

/// A card in a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// jeong-2012: the card in a desktop's USB reader.
    Desktop,
    /// jeong-2012: the same card in a phone.
    Phone,
    /// fedorchuk-2014: a USB stick of 4 GB, which a second copy overflows.
    Stick,
    /// lavinen-2003: raw NOR flash without a controller.
    Nor,
    /// Raw NAND flash of that time.
    Nand,
    /// A desktop with a card that the user names. It is none of the original machines.
    Card,
    /// This machine, with the device that holds a directory. It is none of the original machines.
    Here,
}

impl Preset {
    /// All presets with a modelled device of their own.
    pub const ALL: [Preset; 5] = [Preset::Desktop, Preset::Phone, Preset::Stick, Preset::Nor, Preset::Nand];

    /// Name in commands and files.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Desktop => "desktop",
            Preset::Phone => "phone",
            Preset::Stick => "stick",
            Preset::Nor => "nor",
            Preset::Nand => "nand",
            Preset::Card => "card",
            Preset::Here => "here",
        }
    }

    /// Finds a preset by name.
    pub fn named(name: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Returns the profile of the card.
    ///
    /// # Errors
    /// This preset has no modelled device of its own.
    pub fn profile(self) -> Result<Profile, ProfileError> {
        match self {
            Preset::Desktop => Profile::named("transcend-16g-desktop"),
            Preset::Phone => Profile::named("transcend-16g-phone"),
            Preset::Stick => Profile::named("survey-usb-stick")?.with_size(STICK_BYTES),
            Preset::Nor => Profile::named("nor-2003"),
            Preset::Nand => Profile::named("nand-2003"),
            Preset::Card | Preset::Here => Err(ProfileError::Unknown(self.name().into())),
        }
    }

    /// Returns true if the device is raw flash.
    pub fn is_raw(self) -> bool {
        [Preset::Nor, Preset::Nand].contains(&self)
    }

    /// Returns the guest's limits of dirty data: the amount at which write-back begins, and the amount at
    /// which writers must wait. Both are shares of the buffered file, so that memory and file have the same
    /// ratio at every scale, but at least 8 and 16 MiB: with less, nilfs2 would wait for its timer, because
    /// it writes whole segments.
    pub fn dirty_bytes(self, scale: &Scale) -> (u64, u64) {
        let share = |percent: u64| scale.buffered_bytes / 100 * percent;
        let percent = scale.dirty_percent;
        (share(percent).max(LEAST_DIRTY_BYTES), share(2 * percent).max(2 * LEAST_DIRTY_BYTES))
    }

    /// Returns the guest's memory in MiB: enough that only the remount evicts cached data.
    pub fn memory_mib(self, scale: &Scale) -> u32 {
        256 + (scale.buffered_bytes.max(scale.image_bytes) >> 19) as u32
    }
}

/// Size of the sticks of fedorchuk-2014.
const STICK_BYTES: u64 = 4_000_000_000 / (4 << 20) * (4 << 20);
const LEAST_DIRTY_BYTES: u64 = 8 << 20;

impl std::str::FromStr for Preset {
    type Err = io::Error;

    fn from_str(name: &str) -> io::Result<Preset> {
        Preset::named(name).ok_or_else(|| {
            let all = Preset::ALL.map(Preset::name).join(", ");
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("unknown preset {name:?}; choose one of {all}"),
            )
        })
    }
}
