//! A test whether the blocks of a file may be ciphertext, by their bytes alone.
//!
//! An encrypted file that was renamed into a plain directory has a plain name (Linux, `fscrypt_prepare_rename`). If its inode
//! is lost, nothing but its content tells that it was encrypted.

/// Number of values of a byte.
const VALUES: usize = 256;
/// Bounds of the chi-squared statistic of bytes that are equally likely, with 255 degrees of freedom: mean 255, standard
/// deviation 22.6. One block of ciphertext in 10^9 lies outside.
const CHI_SQUARED: std::ops::Range<f64> = 110.0..400.0;
/// First bytes of files whose content is as even as ciphertext, because it is compressed.
const MAGICS: [&[u8]; 12] = [
    b"\x1F\x8B\x08",
    b"\xFD7zXZ\0",
    b"\x28\xB5\x2F\xFD",
    b"\x04\x22\x4D\x18",
    b"BZh",
    b"PK\x03\x04",
    b"7z\xBC\xAF\x27\x1C",
    b"Rar!\x1A\x07",
    b"\xFF\xD8\xFF",
    b"\x89PNG",
    b"RIFF",
    b"OggS",
];
/// Second word of a file of the ISO base media format (MP4, HEIF).
const MEDIA: &[u8] = b"ftyp";

/// Returns true if a block may be ciphertext: each value of a byte is as frequent as in random bytes.
pub fn may_be_ciphertext(block: &[u8]) -> bool {
    let mut counts = [0u32; VALUES];
    block.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let expected = block.len() as f64 / VALUES as f64;
    let squares = counts.iter().map(|count| (f64::from(*count) - expected).powi(2));
    CHI_SQUARED.contains(&(squares.sum::<f64>() / expected))
}

/// Returns true if the first block of a file begins like one of a known compressed format.
pub fn begins_like_compressed(first: &[u8]) -> bool {
    MAGICS.iter().any(|magic| first.starts_with(magic)) || first.get(4..8) == Some(MEDIA)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a generator (xorshift).
    fn random(mut state: u64, bytes: usize) -> Vec<u8> {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..bytes).map(|_| next()).collect()
    }

    #[test]
    fn random_blocks_may_be_ciphertext_and_content_with_structure_may_not() {
        for seed in 1..=500u64 {
            for bytes in [4096, 16384] {
                assert!(
                    may_be_ciphertext(&random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), bytes)),
                    "{seed}"
                );
            }
        }
        let counted: Vec<u8> = (0..4096u32).map(|n| n as u8).collect();
        let text = b"The quick brown fox jumps over the lazy dog. ".repeat(92);
        let mut headed = random(7, 4096);
        headed[..600].fill(0);
        for block in [&counted[..], &text[..4096], &[0; 4096], &headed] {
            assert!(!may_be_ciphertext(block));
        }
    }

    #[test]
    fn compressed_formats_are_known_by_their_first_bytes() {
        assert!(begins_like_compressed(b"\xFD7zXZ\0\0\x04"));
        assert!(begins_like_compressed(b"\0\0\0\x20ftypheic"));
        assert!(!begins_like_compressed(&random(7, 4096)));
    }
}
