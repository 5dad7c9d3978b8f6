//! The same device with another size.
//!
//! *Invariant*: the share of the blocks that garbage collection can use stays that of the device, as far as whole
//! blocks allow. That share decides how much a full card copies for each write.

use super::{Layer, Profile, ProfileError};

impl Profile {
    /// Returns the same device with another size. Its spare and bad blocks are in proportion to the size, apart
    /// from those that the layer itself works with, such as its logs. A cache of single-bit cells keeps its size.
    ///
    /// # Errors
    /// The size does not fit the other figures.
    pub fn with_size(mut self, size_bytes: u64) -> Result<Profile, ProfileError> {
        let before_blocks = u64::from(self.data_blocks());
        self.size_bytes = size_bytes;
        if !self.is_raw() {
            let after_blocks = size_bytes.div_ceil(u64::from(self.flash.block_bytes));
            let in_proportion = |blocks: u32| nearest(u64::from(blocks), after_blocks, before_blocks);
            let (own, shared) = self.spare_blocks_by_use();
            let bad = in_proportion(self.flash.bad_blocks);
            let good = own.saturating_add(in_proportion(shared).max(self.least_shared_blocks()));
            self.flash.bad_blocks = bad;
            self.flash.spare_blocks = good.saturating_add(bad);
        }
        self.check()?;
        Ok(self)
    }

    /// Returns the smallest size, in whole blocks, at which the share of spare blocks is that of the device. On a
    /// smaller card, the fewest blocks that the layer needs are a larger share.
    pub fn smallest_size_bytes(&self) -> u64 {
        let (_, shared) = self.spare_blocks_by_use();
        let least = u64::from(self.least_shared_blocks());
        let blocks = (u64::from(self.data_blocks()) * least).checked_div(u64::from(shared)).unwrap_or(0);
        blocks.max(1) * u64::from(self.flash.block_bytes)
    }

    /// Returns the numbers of good spare blocks that the layer works with, and of those that garbage collection can
    /// use.
    fn spare_blocks_by_use(&self) -> (u32, u32) {
        let good = self.flash.spare_blocks - self.flash.bad_blocks;
        let own = (self.needed_spare_blocks() - i64::from(self.least_shared_blocks())).clamp(0, good.into());
        (own as u32, good - own as u32)
    }

    /// Returns the fewest blocks with which garbage collection works.
    fn least_shared_blocks(&self) -> u32 {
        if matches!(self.layer, Layer::Page { .. }) { 2 } else { 0 }
    }
}

/// Returns `blocks * after / before`, rounded to the nearest.
fn nearest(blocks: u64, after: u64, before: u64) -> u32 {
    let before = u128::from(before.max(1));
    let scaled = (u128::from(blocks) * u128::from(after) + before / 2) / before;
    u32::try_from(scaled).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the share of the blocks that garbage collection can use.
    fn share(profile: &Profile) -> f64 {
        f64::from(profile.spare_blocks_by_use().1) / f64::from(profile.data_blocks())
    }

    #[test]
    fn a_card_of_another_size_keeps_the_share_of_its_spare_blocks() {
        for profile in Profile::built_in() {
            let same = profile.clone().with_size(profile.size_bytes).unwrap();
            assert_eq!(same, profile, "its own size changes nothing");
            // Log blocks merge without the blocks that are left over.
            if !matches!(profile.layer, Layer::Page { .. }) {
                continue;
            }
            let small = profile.smallest_size_bytes().max(128 << 20);
            for bytes in [small, 8 * small, 4 * profile.size_bytes] {
                let other = profile.clone().with_size(bytes).unwrap();
                let (own, other_share) = (share(&profile), share(&other));
                // Half a block of rounding, of at least two.
                assert!(
                    (0.75..1.26).contains(&(other_share / own)),
                    "{}: {other_share} of {own}",
                    other.name
                );
            }
        }
        let desktop = Profile::named("transcend-16g-desktop").unwrap().with_size(512 << 20).unwrap();
        assert_eq!((desktop.data_blocks(), desktop.flash.spare_blocks), (128, 6), "4 in reserve, and 1.6 %");
    }

    #[test]
    fn a_size_beyond_all_cards_is_refused() {
        for profile in Profile::built_in() {
            assert!(profile.with_size(u64::MAX / 512 * 512).is_err());
        }
    }

    #[test]
    fn a_tiny_card_has_the_blocks_that_its_layer_needs() {
        for profile in Profile::built_in().into_iter().filter(|profile| !profile.is_raw()) {
            let bytes =
                profile.fat_area.as_ref().map_or(0, |fat| fat.start_bytes + fat.length_bytes).max(64 << 20);
            let tiny = profile.with_size(bytes).unwrap();
            tiny.check().unwrap();
        }
    }

    #[test]
    fn bad_blocks_are_in_proportion_too() {
        let mut card = Profile::named("survey-class10").unwrap();
        card.flash.bad_blocks = 20;
        let half = card.clone().with_size(card.size_bytes / 2).unwrap();
        assert_eq!(half.flash.bad_blocks, 10);
        assert!((share(&half) / share(&card) - 1.0).abs() < 0.05);
    }
}
