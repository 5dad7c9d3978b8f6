//! Wear: erase counts by location of the flash.

use flash::array::Array;
use serde::{Deserialize, Serialize};

/// Maximum number of pieces in a map.
const PIECES: u32 = 1024;

/// A wear map: erase counts of pieces of adjacent blocks. The card decides where data goes; on raw flash the
/// file system does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wear {
    /// Number of blocks.
    pub blocks: u32,
    /// Blocks per piece; the last one may have fewer.
    pub piece_blocks: u32,
    /// Total erase count of each piece.
    pub erases: Vec<u64>,
    /// Maximum erase count of a block.
    pub most: u32,
}

impl Wear {
    /// Returns the map of a modelled card.
    pub fn of_array(array: &Array) -> Wear {
        Wear::new(array.block_count(), array.erases().map(|(block, erases)| (block.0, erases)))
    }

    /// Returns the map of raw flash from the erase counts of its blocks.
    pub fn of_blocks(erases: &[u32]) -> Wear {
        Wear::new(erases.len() as u32, (0..).zip(erases.iter().copied()))
    }

    fn new(blocks: u32, of_blocks: impl Iterator<Item = (u32, u32)>) -> Wear {
        let piece_blocks = blocks.div_ceil(PIECES).max(1);
        let mut wear =
            Wear { blocks, piece_blocks, erases: vec![0; blocks.div_ceil(piece_blocks) as usize], most: 0 };
        for (block, erases) in of_blocks {
            wear.erases[(block / piece_blocks) as usize] += u64::from(erases);
            wear.most = wear.most.max(erases);
        }
        wear
    }

    /// Returns the sum of all erase counts.
    pub fn total(&self) -> u64 {
        self.erases.iter().fold(0, |sum, erases| sum.saturating_add(*erases))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_erase_is_counted_in_its_piece() {
        let mut erases = vec![0; 2500];
        (erases[0], erases[2], erases[3], erases[2499]) = (1, 5, 7, 2);
        let wear = Wear::of_blocks(&erases);
        assert_eq!((wear.piece_blocks, wear.erases.len(), wear.most), (3, 834, 7));
        assert_eq!((wear.erases[0], wear.erases[1], wear.erases[833], wear.total()), (6, 7, 2, 15));
        assert_eq!(Wear::of_blocks(&[]).total(), 0);
    }
}
