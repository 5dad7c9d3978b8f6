//! Properties of the disk that the guest reads: feature bits and configuration space (virtio 1.2, 5.2).

use crate::Geometry;

/// Unit of the addresses in requests, in bytes.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Length in bytes of the used part of the configuration space. The rest reads as zeroes.
const CONFIG_BYTES: usize = 60;
/// Maximum number of segments in a request. With head and status they fit a queue of 256 entries.
const SEGMENTS_MAX: u32 = 254;
/// Maximum size of a segment in bytes.
const SEGMENT_BYTES_MAX: u32 = 1 << 20;
/// Maximum length of a discard in sectors. With 1 GiB, a discard of the whole device takes few requests.
const DISCARD_SECTORS_MAX: u32 = 1 << 21;

/// Feature bits.
pub(super) mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const READ_ONLY: u64 = 1 << 5;
    pub const BLOCK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const DISCARD: u64 = 1 << 13;
    pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Properties of a disk beyond its geometry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traits {
    /// Size and sector.
    pub geometry: Geometry,
    /// Name shown to the guest as the serial number, cut off after 20 bytes.
    pub serial: String,
    /// True if the disk has a cache that the guest must flush. Otherwise the guest sends no flushes.
    pub write_cache: bool,
    /// True if the disk accepts discards.
    pub discard: bool,
    /// True if the disk refuses writes.
    pub read_only: bool,
}

impl Traits {
    /// Returns the device's feature bits.
    pub(super) fn features(&self) -> u64 {
        let when = |condition, bits| if condition { bits } else { 0 };
        feature::SIZE_MAX
            | feature::SEG_MAX
            | feature::BLOCK_SIZE
            | feature::INDIRECT_DESCRIPTORS
            | feature::PROTOCOL_FEATURES
            | feature::VERSION_1
            | when(self.write_cache, feature::FLUSH)
            | when(self.discard, feature::DISCARD)
            | when(self.read_only, feature::READ_ONLY)
    }

    /// Returns `length` bytes of the configuration space at `offset`.
    pub(super) fn config(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut space = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.geometry.size_bytes / SECTOR_BYTES).to_le_bytes());
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &self.geometry.sector_bytes.to_le_bytes());
        put(34, &1u16.to_le_bytes()); // number of queues
        if self.discard {
            put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
            put(40, &1u32.to_le_bytes()); // segments in one discard
            let sector = self.geometry.sector_bytes / SECTOR_BYTES as u32;
            put(44, &sector.max(1).to_le_bytes());
        }
        let at = |i: usize| space.get(offset.saturating_add(i)).copied().unwrap_or(0);
        (0..length).map(at).collect()
    }

    /// Returns the serial number in the form of a request's answer.
    pub(super) fn serial_bytes(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        let length = self.serial.len().min(bytes.len());
        bytes[..length].copy_from_slice(&self.serial.as_bytes()[..length]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Traits {
        let geometry = Geometry { size_bytes: 1 << 30, sector_bytes: 4096 };
        Traits { geometry, serial: "card".into(), write_cache: false, discard: false, read_only: false }
    }

    #[test]
    fn the_configuration_space_follows_the_standard() {
        let space = card().config(0, 64);
        assert_eq!(space[..8], (1u64 << 21).to_le_bytes());
        assert_eq!(space[20..24], 4096u32.to_le_bytes());
        assert_eq!(space[36..40], [0; 4]);
        assert_eq!(card().config(20, 4), 4096u32.to_le_bytes());
        assert_eq!(card().config(usize::MAX, 2), [0, 0]);
        let discard = Traits { discard: true, ..card() };
        assert_eq!(discard.config(44, 4), 8u32.to_le_bytes());
    }

    #[test]
    fn a_card_without_a_cache_is_not_flushed() {
        assert_eq!(card().features() & feature::FLUSH, 0);
        assert_ne!(Traits { write_cache: true, ..card() }.features() & feature::FLUSH, 0);
    }
}
