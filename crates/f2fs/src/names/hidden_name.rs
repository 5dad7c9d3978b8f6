//! Encoding of encrypted file names for display without the key.
//!
//! An encrypted name can hold any bytes. It is shown as base64url of the hash and the name. A name longer
//! than 149 bytes is shown by its first 149 bytes and the SHA-256 of the rest. The result is a valid file
//! name, is unique in its directory, and leads back to the entry. (Linux, `fscrypt_nokey_name`.)

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

/// Minimum length of an encrypted name in bytes.
const SHORTEST: usize = 16;
/// Bytes of a name that are shown in full; the rest is replaced by its hash.
const SHOWN: usize = 149;
const HASH_BYTES: usize = 8;

/// Encodes an encrypted name with the hash from its directory entry; `None` if it is too short to be one.
pub(super) fn encode(name: &[u8], hash: u32) -> Option<Vec<u8>> {
    if name.len() < SHORTEST {
        return None;
    }
    let mut shown = u64::from(hash).to_le_bytes().to_vec();
    let (start, rest) = name.split_at(name.len().min(SHOWN));
    shown.extend_from_slice(start);
    if !rest.is_empty() {
        shown.extend_from_slice(&Sha256::digest(rest));
    }
    Some(URL_SAFE_NO_PAD.encode(shown).into_bytes())
}

/// The hash of the directory entry that a shown name encodes; `None` if it is not an encoded name.
pub(super) fn hash_of(shown: &[u8]) -> Option<u32> {
    let bytes = URL_SAFE_NO_PAD.decode(shown).ok()?;
    let hash = bytes.first_chunk::<HASH_BYTES>()?;
    u32::try_from(u64::from_le_bytes(*hash)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_are_valid_and_lead_back_to_the_entry() {
        for length in [16, 32, 149, 150, 255] {
            let name: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let shown = encode(&name, 0xDEAD_BEEF).expect("long enough");
            assert!(
                shown.len() <= 252 && shown.iter().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(b))
            );
            assert_eq!(hash_of(&shown), Some(0xDEAD_BEEF));
            let mut other = name.clone();
            other[length - 1] ^= 1;
            assert_ne!(encode(&other, 0xDEAD_BEEF).unwrap(), shown);
        }
        assert_eq!(encode(&[0; 15], 1), None);
        assert_eq!(encode(&[0; 16], 1).unwrap(), b"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(hash_of(b"README"), None);
        assert_eq!(hash_of(b"not/base64"), None);
    }
}
