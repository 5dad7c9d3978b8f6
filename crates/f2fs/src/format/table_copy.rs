//! The two copies of each block of the NAT and the SIT.

use super::bits::{clear_msb, msb, set_msb};

/// One of the two copies of a block of the NAT or the SIT. A bit in a version bitmap of the checkpoint selects the current
/// one: a set bit means the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableCopy {
    /// The first copy.
    First,
    /// The second copy.
    Second,
}

impl TableCopy {
    /// Both copies, in the order of their addresses.
    pub const BOTH: [TableCopy; 2] = [TableCopy::First, TableCopy::Second];

    /// The current copy of block `index` of the table that `bitmap` belongs to.
    #[must_use]
    pub fn current(bitmap: &[u8], index: u32) -> TableCopy {
        if msb(bitmap, index as usize) { TableCopy::Second } else { TableCopy::First }
    }

    /// Makes this the current copy of block `index`.
    ///
    /// # Panics
    /// If `bitmap` has no bit for the block: a bug of the caller.
    pub fn select(self, bitmap: &mut [u8], index: u32) {
        match self {
            TableCopy::First => clear_msb(bitmap, index as usize),
            TableCopy::Second => set_msb(bitmap, index as usize),
        }
    }

    /// The other copy, which the next checkpoint writes.
    #[must_use]
    pub fn other(self) -> TableCopy {
        match self {
            TableCopy::First => TableCopy::Second,
            TableCopy::Second => TableCopy::First,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_bit_selects_the_second_copy() {
        let mut bitmap = [0; 2];
        TableCopy::Second.select(&mut bitmap, 9);
        assert_eq!(bitmap, [0, 0x40]);
        assert_eq!(TableCopy::current(&bitmap, 9), TableCopy::Second);
        assert_eq!(TableCopy::current(&bitmap, 8), TableCopy::First);
        TableCopy::current(&bitmap, 9).other().select(&mut bitmap, 9);
        assert_eq!(bitmap, [0, 0]);
    }
}
