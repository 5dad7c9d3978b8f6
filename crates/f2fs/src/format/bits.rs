//! The two bit orders of F2FS.
//!
//! Version bitmaps of NAT and SIT and the SIT's valid map count from the most significant bit of each byte;
//! dentry bitmaps and the nat_bits maps count from the least significant.

/// Bit `n`, most significant bit of each byte first. Bits past the end are clear.
#[must_use]
pub fn msb(map: &[u8], n: usize) -> bool {
    map.get(n / 8).is_some_and(|byte| byte & (0x80 >> (n % 8)) != 0)
}

/// Sets bit `n`, most significant bit of each byte first.
///
/// # Panics
/// If `n` is past the end of `map`: a bug of the caller.
pub fn set_msb(map: &mut [u8], n: usize) {
    map[n / 8] |= 0x80 >> (n % 8);
}

/// Clears bit `n`, most significant bit of each byte first.
///
/// # Panics
/// If `n` is past the end of `map`: a bug of the caller.
pub fn clear_msb(map: &mut [u8], n: usize) {
    map[n / 8] &= !(0x80 >> (n % 8));
}

/// Bit `n`, least significant bit of each byte first. Bits past the end are clear.
#[must_use]
pub fn lsb(map: &[u8], n: usize) -> bool {
    map.get(n / 8).is_some_and(|byte| byte & (1 << (n % 8)) != 0)
}

/// Sets bit `n`, least significant bit of each byte first.
///
/// # Panics
/// If `n` is past the end of `map`: a bug of the caller.
pub fn set_lsb(map: &mut [u8], n: usize) {
    map[n / 8] |= 1 << (n % 8);
}

/// Clears bit `n`, least significant bit of each byte first.
///
/// # Panics
/// If `n` is past the end of `map`: a bug of the caller.
pub fn clear_lsb(map: &mut [u8], n: usize) {
    map[n / 8] &= !(1 << (n % 8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_orders_mirror_each_other_within_a_byte() {
        let mut map = [0u8; 2];
        set_msb(&mut map, 0);
        set_lsb(&mut map, 9);
        assert_eq!(map, [0x80, 0x02]);
        assert!(msb(&map, 0) && msb(&map, 14) && lsb(&map, 7) && lsb(&map, 9));
        clear_msb(&mut map, 0);
        assert_eq!(map, [0x00, 0x02]);
        clear_lsb(&mut map, 9);
        assert_eq!(map, [0x00, 0x00]);
        assert!(!msb(&map, 99) && !lsb(&map, 99));
    }
}
