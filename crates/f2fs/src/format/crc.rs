//! The checksum of F2FS: reflected CRC-32 (polynomial 0xEDB88320) without inversion before or after, so that
//! checksums chain by passing one as the next one's initial value.

/// Checksum of `bytes`, continuing from `initial`.
#[must_use]
pub fn crc(initial: u32, bytes: &[u8]) -> u32 {
    // crc32fast inverts its state on the way in and out; both inversions are undone here.
    let mut hasher = crc32fast::Hasher::new_with_initial(!initial);
    hasher.update(bytes);
    !hasher.finalize()
}

/// Checksum of superblocks, checkpoints and compressed clusters: the initial value is the file system's magic.
#[must_use]
pub fn f2fs_crc(bytes: &[u8]) -> u32 {
    crc(super::MAGIC, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed bit by bit, as defined.
    fn slow(mut state: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            state ^= u32::from(*byte);
            for _ in 0..8 {
                state = (state >> 1) ^ if state & 1 == 1 { 0xEDB8_8320 } else { 0 };
            }
        }
        state
    }

    #[test]
    fn the_checksum_is_the_uninverted_crc_and_chains() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(f2fs_crc(&bytes), slow(0xF2F5_2010, &bytes));
        assert_eq!(crc(crc(7, &bytes[..100]), &bytes[100..]), crc(7, &bytes));
        assert_ne!(f2fs_crc(&bytes), crc32fast::hash(&bytes));
    }
}
