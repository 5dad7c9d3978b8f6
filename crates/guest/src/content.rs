//! Contents of files, described in a few words so that a job stays small.

use serde::{Deserialize, Serialize};

use crate::{Bytes, stamp};

/// Bytes to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Exactly these bytes.
    Bytes(Bytes),
    /// One byte, repeated.
    Fill {
        /// The byte.
        byte: u8,
        /// Number of bytes.
        length: u64,
    },
    /// Incompressible noise, the same for the same seed.
    Noise {
        /// Seed of the noise.
        seed: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Lines of words with numbers, which compress to about a quarter.
    Prose {
        /// Seed of the words.
        seed: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Sectors of 512 bytes that name their file, version and place.
    Stamped {
        /// Number of the file.
        file: u32,
        /// Version of this write.
        version: u32,
        /// First sector.
        first: u64,
        /// Number of sectors.
        sectors: u64,
    },
}

impl Content {
    /// Returns the bytes themselves.
    pub fn to_vec(&self) -> Vec<u8> {
        match *self {
            Content::Bytes(ref bytes) => bytes.0.clone(),
            Content::Fill { byte, length } => vec![byte; length as usize],
            Content::Noise { seed, length } => {
                let mut out = vec![0; length as usize];
                noise(seed, &mut out);
                out
            }
            Content::Prose { seed, length } => prose(seed, length as usize),
            Content::Stamped { file, version, first, sectors } => {
                stamp::sectors(file, version, first, sectors)
            }
        }
    }
}

/// Fills `out` with noise of this seed.
pub(crate) fn noise(seed: u64, out: &mut [u8]) {
    let mut random = SplitMix(seed);
    for word in out.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
    }
}

fn prose(seed: u64, length: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "block",
        "segment",
        "section",
        "zone",
        "node",
        "data",
        "hot",
        "warm",
        "cold",
        "flash",
        "journal",
        "summary",
        "checkpoint",
        "orphan",
        "bitmap",
        "log",
    ];
    let mut random = SplitMix(seed);
    let mut out = Vec::with_capacity(length + 32);
    while out.len() < length {
        let word = WORDS[(random.next() >> 60) as usize];
        out.extend_from_slice(word.as_bytes());
        if random.next() >> 62 == 0 {
            out.extend_from_slice(format!(" {}\n", out.len()).as_bytes());
        } else {
            out.push(b' ');
        }
    }
    out.truncate(length);
    out
}

/// A source of random numbers, initialised with a seed. Steele, Lea, Flood: "Fast splittable pseudorandom
/// number generators", OOPSLA '14.
pub struct SplitMix(pub u64);

impl SplitMix {
    /// Returns the next number.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_exact_and_seeds_matter() {
        for length in [0, 1, 7, 8, 4096, 10_001] {
            assert_eq!(Content::Noise { seed: 1, length }.to_vec().len() as u64, length);
            assert_eq!(Content::Prose { seed: 1, length }.to_vec().len() as u64, length);
        }
        let noise = |seed| Content::Noise { seed, length: 64 }.to_vec();
        assert_eq!(noise(7), noise(7));
        assert_ne!(noise(7), noise(8));
    }
}
