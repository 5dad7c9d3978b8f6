//! Nonces of new files.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use sha2::{Digest, Sha512};
use zeroize::Zeroizing;

use crate::context::NONCE_BYTES;

/// Size of the random seed of nonces in bytes.
pub const NONCE_SEED_BYTES: usize = 32;

/// A source of nonces that differ and cannot be foreseen, as long as its seed is random and secret and no other source has
/// the same one. Clones take turns, so that they give no nonce twice. The seed is wiped when it is dropped.
#[derive(Clone)]
pub struct Nonces {
    seed: Zeroizing<[u8; NONCE_SEED_BYTES]>,
    count: Arc<AtomicU64>,
}

impl Nonces {
    /// Makes a source of a seed of random bytes.
    #[must_use]
    pub fn new(seed: [u8; NONCE_SEED_BYTES]) -> Nonces {
        Nonces { seed: Zeroizing::new(seed), count: Arc::default() }
    }

    /// Returns the next nonce.
    #[must_use]
    pub fn next_nonce(&self) -> [u8; NONCE_BYTES] {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let hash = Sha512::new()
            .chain_update(b"nonce")
            .chain_update(self.seed.as_slice())
            .chain_update(count.to_le_bytes());
        hash.finalize()[..NONCE_BYTES].try_into().expect("a digest is longer")
    }
}

impl fmt::Debug for Nonces {
    /// Shows how many nonces were given, never the seed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nonces").field("count", &self.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_differ_and_follow_from_the_seed() {
        let of = |seed: u8| {
            let nonces = Nonces::new([seed; NONCE_SEED_BYTES]);
            [nonces.next_nonce(), nonces.clone().next_nonce()]
        };
        let [first, second] = of(1);
        assert_ne!(first, second);
        assert_eq!(of(1), [first, second]);
        assert!(!of(2).contains(&first));
        assert_eq!(format!("{:?}", Nonces::new([0x5A; NONCE_SEED_BYTES])), "Nonces { count: 0, .. }");
    }
}
