//! The cipher of a device that is encrypted as a whole (Android's metadata encryption, the target `default-key` of
//! device-mapper).

use crate::{
    Error, Result,
    cipher::{Cipher, IV_BYTES, Iv},
    context::Mode,
};

/// Bytes that are encrypted together: a block of the device.
pub const DEVICE_UNIT_BYTES: usize = 4096;

/// The cipher of a device. Each unit of [`DEVICE_UNIT_BYTES`] bytes has its number on the device as the initialization
/// vector, as dm-crypt's `plain64` with `sector_size:4096 iv_large_sectors`.
pub struct DeviceCipher(Cipher);

impl DeviceCipher {
    /// Makes the cipher of a key: AES-256-XTS for one of 64 bytes, Adiantum for one of 32.
    ///
    /// # Errors
    /// [`Error::KeyLength`] for any other length.
    pub fn new(key: &[u8]) -> Result<DeviceCipher> {
        let mode = [Mode::Aes256Xts, Mode::Adiantum].into_iter().find(|mode| mode.key_bytes() == key.len());
        let wrong = || {
            let length = key.len();
            Error::KeyLength(format!(
                "a key of metadata encryption has 64 bytes (AES-256-XTS) or 32 (Adiantum), and this one has {length}"
            ))
        };
        Ok(DeviceCipher(Cipher::new(mode.ok_or_else(wrong)?, key)))
    }

    /// Decrypts whole units in place, the first of which has the number `unit`.
    ///
    /// # Panics
    /// If `bytes` ends inside a unit.
    pub fn decrypt(&self, unit: u64, bytes: &mut [u8]) {
        self.each(unit, bytes, Cipher::decrypt);
    }

    /// Encrypts whole units in place, the first of which has the number `unit`.
    ///
    /// # Panics
    /// If `bytes` ends inside a unit.
    pub fn encrypt(&self, unit: u64, bytes: &mut [u8]) {
        self.each(unit, bytes, Cipher::encrypt);
    }

    fn each(&self, unit: u64, bytes: &mut [u8], apply: impl Fn(&Cipher, &Iv, &mut [u8])) {
        assert_eq!(bytes.len() % DEVICE_UNIT_BYTES, 0, "a device is encrypted in whole units");
        for (number, bytes) in (unit..).zip(bytes.chunks_exact_mut(DEVICE_UNIT_BYTES)) {
            let mut iv = [0; IV_BYTES];
            iv[..8].copy_from_slice(&number.to_le_bytes());
            apply(&self.0, &iv, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_depend_on_their_number_and_on_no_other_unit() {
        for length in [32, 64] {
            let cipher = DeviceCipher::new(&vec![0x5A; length]).unwrap();
            let clear: Vec<u8> = (0..3 * DEVICE_UNIT_BYTES).map(|n| (n % 251) as u8).collect();
            let mut stored = clear.clone();
            cipher.encrypt(7, &mut stored);
            let mut second = stored[DEVICE_UNIT_BYTES..2 * DEVICE_UNIT_BYTES].to_vec();
            cipher.decrypt(8, &mut second);
            assert!(second == clear[DEVICE_UNIT_BYTES..2 * DEVICE_UNIT_BYTES]);
            cipher.decrypt(7, &mut stored);
            assert!(stored == clear);
            cipher.decrypt(8, &mut stored);
            assert!(stored != clear);
        }
    }

    #[test]
    fn keys_of_other_lengths_are_refused() {
        for length in [0, 16, 48, 65, 80] {
            let told = DeviceCipher::new(&vec![1; length]).err().expect("it is refused").to_string();
            assert!(told.contains(&format!("this one has {length}")), "{told}");
        }
    }
}
