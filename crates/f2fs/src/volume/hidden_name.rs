//! Names that are encrypted, as they are shown without the key.
//!
//! An encrypted name is any bytes; it is shown as base64url of a hash and the bytes themselves, of long names
//! the first 149 bytes and the SHA-256 of the rest, so that it is a name, unique in its directory, and leads
//! back to the entry. (Linux, `fscrypt_nokey_name`.)

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

/// The shortest that a cipher makes of a name.
const SHORTEST: usize = 16;
/// Bytes of a name that are shown; of the rest only the hash is.
const SHOWN: usize = 149;
const HASH_BYTES: usize = 8;

/// How an encrypted name with this hash in its directory entry is shown; `None` for bytes that no cipher made.
pub fn encode(name: &[u8], hash: u32) -> Option<Vec<u8>> {
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

/// The hash that a shown name says its entry has; `None` for what is no shown name.
pub fn hash_of(shown: &[u8]) -> Option<u32> {
    let bytes = URL_SAFE_NO_PAD.decode(shown).ok()?;
    let hash = bytes.first_chunk::<HASH_BYTES>()?;
    u32::try_from(u64::from_le_bytes(*hash)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_are_names_and_lead_back() {
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
