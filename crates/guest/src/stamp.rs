//! Stamped content: each sector of 512 bytes names its file, its version and its place, and has a checksum.
//!
//! A file that survived a power cut shows in each of its sectors which write it comes from.

use serde::{Deserialize, Serialize};

use crate::content::SplitMix;

/// Bytes of a sector, the unit that a power cut never tears.
pub const SECTOR_BYTES: usize = 512;
/// First bytes of each stamped sector.
const MAGIC: [u8; 8] = *b"stamped\n";

/// Content of a sector at its place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sector {
    /// The whole sector was written by this version of this file, for this place.
    Of {
        /// Number of the file.
        file: u32,
        /// Version of the write.
        version: u32,
    },
    /// The whole sector was written by this version of this file, for another place.
    Displaced {
        /// Number of the file.
        file: u32,
        /// Version of the write.
        version: u32,
    },
    /// Zeroes.
    Zero,
    /// Other bytes.
    Garbage,
}

/// Returns the bytes of sector `index` of a file in a version.
pub fn sector(file: u32, version: u32, index: u64) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&file.to_le_bytes());
    bytes[12..16].copy_from_slice(&version.to_le_bytes());
    bytes[16..24].copy_from_slice(&index.to_le_bytes());
    let mut random = SplitMix(u64::from(file) << 40 ^ u64::from(version) << 20 ^ index);
    for word in bytes[24..].chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    bytes
}

/// Returns `sectors` sectors from sector `first` on.
pub fn sectors(file: u32, version: u32, first: u64, sectors: u64) -> Vec<u8> {
    (first..first + sectors).flat_map(|index| sector(file, version, index)).collect()
}

/// Recognises a sector that was read at the place `index` of a file. The end of the file may cut it short.
pub fn recognise(bytes: &[u8], index: u64) -> Sector {
    if bytes.iter().all(|byte| *byte == 0) {
        return Sector::Zero;
    }
    let Ok(whole) = <&[u8; SECTOR_BYTES]>::try_from(bytes) else { return Sector::Garbage };
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| whole[at + n]));
    let (file, version) = (number(8), number(12));
    let place = u64::from_le_bytes(std::array::from_fn(|n| whole[16 + n]));
    match *whole == sector(file, version, place) {
        true if place == index => Sector::Of { file, version },
        true => Sector::Displaced { file, version },
        false => Sector::Garbage,
    }
}

/// Adjacent sectors with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Number of sectors.
    pub sectors: u64,
    /// Their content.
    pub is: Sector,
}

/// Returns the content of a file, sector by sector.
pub fn runs(content: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, bytes) in content.chunks(SECTOR_BYTES).enumerate() {
        let is = recognise(bytes, index as u64);
        match runs.last_mut() {
            Some(last) if last.is == is => last.sectors += 1,
            _ => runs.push(Run { sectors: 1, is }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_recognised_only_whole_and_unchanged() {
        let mut bytes = sector(7, 3, 5);
        assert_eq!(recognise(&bytes, 5), Sector::Of { file: 7, version: 3 });
        assert_eq!(recognise(&bytes, 6), Sector::Displaced { file: 7, version: 3 });
        assert_eq!(recognise(&bytes[..511], 5), Sector::Garbage);
        bytes[400] ^= 1;
        assert_eq!(recognise(&bytes, 5), Sector::Garbage);
        assert_eq!(recognise(&[0; 512], 5), Sector::Zero);
    }

    #[test]
    fn a_file_is_read_as_runs_of_versions() {
        let content = [sectors(1, 1, 0, 3), sectors(1, 2, 3, 2), vec![0; 512]].concat();
        let is = |version| Sector::Of { file: 1, version };
        let expected = [(3, is(1)), (2, is(2)), (1, Sector::Zero)];
        assert_eq!(runs(&content), expected.map(|(sectors, is)| Run { sectors, is }));
    }
}
