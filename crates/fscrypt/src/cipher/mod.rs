//! The ciphers of fscrypt: each turns one message into one of the same length, with an initialization vector.

mod adiantum;
mod cbc;
mod hctr2;

use ::xts_mode::Xts128;
use aes::{Aes128, Aes256, cipher::KeyInit};

use crate::context::Mode;
use adiantum::Adiantum;
use cbc::{AesCts, Essiv};
use hctr2::Hctr2;

/// Size in bytes of the longest initialization vector; shorter ones are its start.
pub(crate) const IV_BYTES: usize = 32;
/// Size in bytes of the shortest message.
pub(crate) const MESSAGE_BYTES_MIN: usize = 16;

const BLOCK_BYTES: usize = 16;

/// An initialization vector.
pub(crate) type Iv = [u8; IV_BYTES];

/// A cipher with its key.
pub(crate) enum Cipher {
    Xts(Box<Xts128<Aes256>>),
    Cts256(Box<AesCts<Aes256>>),
    Essiv(Box<Essiv>),
    Cts128(Box<AesCts<Aes128>>),
    Adiantum(Box<Adiantum>),
    Hctr2(Box<Hctr2>),
}

impl Cipher {
    /// Makes the cipher of a mode. The key has the [size](Mode::key_bytes) that the mode asks for.
    pub(crate) fn new(mode: Mode, key: &[u8]) -> Cipher {
        assert_eq!(key.len(), mode.key_bytes(), "the key was derived for another mode");
        match mode {
            Mode::Aes256Xts => {
                let (data, tweak) = key.split_at(key.len() / 2);
                Cipher::Xts(Box::new(Xts128::new(Aes256::new(data.into()), Aes256::new(tweak.into()))))
            }
            Mode::Aes256Cts => Cipher::Cts256(Box::new(AesCts::new(Aes256::new(key.into())))),
            Mode::Aes128Cbc => Cipher::Essiv(Box::new(Essiv::new(key))),
            Mode::Aes128Cts => Cipher::Cts128(Box::new(AesCts::new(Aes128::new(key.into())))),
            Mode::Adiantum => Cipher::Adiantum(Box::new(Adiantum::new(key))),
            Mode::Aes256Hctr2 => Cipher::Hctr2(Box::new(Hctr2::new(key))),
        }
    }

    /// Encrypts a message of at least [`MESSAGE_BYTES_MIN`] bytes in place; a multiple of 16 for `Essiv`.
    pub(crate) fn encrypt(&self, iv: &Iv, message: &mut [u8]) {
        match self {
            Cipher::Xts(cipher) => cipher.encrypt_sector(message, short(iv)),
            Cipher::Cts256(cipher) => cipher.encrypt(&short(iv), message),
            Cipher::Essiv(cipher) => cipher.encrypt(short(iv), message),
            Cipher::Cts128(cipher) => cipher.encrypt(&short(iv), message),
            Cipher::Adiantum(cipher) => cipher.encrypt(iv, message),
            Cipher::Hctr2(cipher) => cipher.encrypt(iv, message),
        }
    }

    /// Decrypts a message of at least [`MESSAGE_BYTES_MIN`] bytes in place; a multiple of 16 for `Essiv`.
    pub(crate) fn decrypt(&self, iv: &Iv, message: &mut [u8]) {
        match self {
            Cipher::Xts(cipher) => cipher.decrypt_sector(message, short(iv)),
            Cipher::Cts256(cipher) => cipher.decrypt(&short(iv), message),
            Cipher::Essiv(cipher) => cipher.decrypt(short(iv), message),
            Cipher::Cts128(cipher) => cipher.decrypt(&short(iv), message),
            Cipher::Adiantum(cipher) => cipher.decrypt(iv, message),
            Cipher::Hctr2(cipher) => cipher.decrypt(iv, message),
        }
    }
}

/// The vector of a cipher that takes one AES block.
fn short(iv: &Iv) -> [u8; BLOCK_BYTES] {
    iv[..BLOCK_BYTES].try_into().expect("a vector has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A compile-time check: the features of the libraries that wipe the keys are on.
    #[test]
    fn the_keys_of_ciphers_are_wiped_when_they_are_dropped() {
        fn is_wiped<T: zeroize::ZeroizeOnDrop>() {}
        is_wiped::<Aes128>();
        is_wiped::<Aes256>();
        is_wiped::<chacha20::XChaCha12>();
    }

    #[test]
    fn every_cipher_restores_messages_of_every_length() {
        let modes = [Mode::Aes256Xts, Mode::Aes256Cts, Mode::Aes128Cts, Mode::Adiantum, Mode::Aes256Hctr2];
        for mode in modes {
            let key: Vec<u8> = (1..=mode.key_bytes() as u8).collect();
            let cipher = Cipher::new(mode, &key);
            for length in MESSAGE_BYTES_MIN..=255 {
                let message: Vec<u8> = (0..length).map(|n| n as u8).collect();
                let mut stored = message.clone();
                cipher.encrypt(&[9; IV_BYTES], &mut stored);
                assert_ne!(stored, message, "{mode:?}");
                let mut read = stored.clone();
                cipher.decrypt(&[9; IV_BYTES], &mut read);
                assert_eq!(read, message, "{mode:?} of {length} bytes");
                cipher.decrypt(&[8; IV_BYTES], &mut stored);
                assert_ne!(stored, message, "{mode:?} ignores the vector");
            }
        }
    }

    fn hex(digits: &str) -> Vec<u8> {
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    #[test]
    fn every_cipher_gives_the_published_results() {
        let mut seen = std::collections::BTreeMap::new();
        let lines = include_str!("vectors.txt").lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let modes = [
                Mode::Aes256Xts,
                Mode::Aes256Cts,
                Mode::Aes128Cbc,
                Mode::Aes128Cts,
                Mode::Adiantum,
                Mode::Aes256Hctr2,
            ];
            let mode = modes.into_iter().find(|mode| format!("{mode:?}") == words[0]).expect("a mode");
            let iv: Iv = hex(words[2]).try_into().expect("a vector has 32 bytes");
            let (cipher, clear, stored) = (Cipher::new(mode, &hex(words[1])), hex(words[3]), hex(words[4]));
            let mut message = clear.clone();
            cipher.encrypt(&iv, &mut message);
            assert_eq!(message, stored, "{mode:?} of {} bytes", clear.len());
            cipher.decrypt(&iv, &mut message);
            assert_eq!(message, clear, "{mode:?} of {} bytes", clear.len());
            *seen.entry(words[0]).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 6, "{seen:?}");
    }
}
