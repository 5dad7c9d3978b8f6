//! Maps of bits, most significant bit of each byte first, like the SIT's.

use f2fs::format::bits;

/// A map of bits.
#[derive(Debug, Clone, Default)]
pub struct Bitmap(Vec<u8>);

impl Bitmap {
    /// Makes a map of `bits` clear bits.
    pub fn new(bits: u64) -> Bitmap {
        Bitmap(vec![0; usize::try_from(bits.div_ceil(8)).expect("a map fits into memory")])
    }

    /// Returns bit `n`.
    pub fn get(&self, n: usize) -> bool {
        bits::msb(&self.0, n)
    }

    /// Sets bit `n` and returns its old value.
    pub fn set(&mut self, n: usize) -> bool {
        let was = self.get(n);
        bits::set_msb(&mut self.0, n);
        was
    }

    /// Clears bit `n`.
    pub fn clear(&mut self, n: usize) {
        bits::clear_msb(&mut self.0, n);
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, for changes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
