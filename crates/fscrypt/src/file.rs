//! The cipher of one inode: its contents, or the names in it.

use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use zeroize::Zeroizing;

use crate::{
    Result,
    cipher::{Cipher, IV_BYTES, Iv, MESSAGE_BYTES_MIN},
    context::{Context, IvScheme, KeyName},
    key::Key,
};

/// The facts about a volume that keys and vectors depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Volume {
    /// The UUID of the volume.
    pub uuid: [u8; 16],
    /// Size of a block in bytes, as a power of two.
    pub log_block_bytes: u32,
}

/// The use of a cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The contents of a regular file.
    Contents,
    /// The names in a directory, or the target of a symbolic link.
    Names,
}

/// The cipher of one inode.
pub struct FileCipher {
    cipher: Cipher,
    scheme: IvScheme,
    nonce: [u8; 16],
    /// The inode number, or its hash.
    ino: u64,
    padding_bytes: usize,
    log_data_unit: u32,
    log_block_bytes: u32,
    has_proven_key: bool,
    /// The key of the hash of names; policies of version 1 have none.
    dir_hash_key: Option<Zeroizing<[u8; 16]>>,
}

impl FileCipher {
    /// Makes the cipher of an inode with this context. The key is that which the context names.
    ///
    /// # Errors
    /// [`Error::KeyLength`](crate::Error::KeyLength) if the key is too short for the policy,
    /// [`Error::Invalid`](crate::Error::Invalid) if its data units are larger than blocks.
    pub fn new(
        key: &Key,
        context: &Context,
        volume: &Volume,
        ino: u32,
        purpose: Purpose,
    ) -> Result<FileCipher> {
        let mode = match purpose {
            Purpose::Contents => context.contents,
            Purpose::Names => context.names,
        };
        let is_v2 = matches!(context.key, KeyName::Identifier(_));
        let ino = match context.scheme {
            IvScheme::InoLblk32 => {
                siphash(&key.inode_hash_key(), &u64::from(ino).to_le_bytes()) & u64::from(u32::MAX)
            }
            _ => u64::from(ino),
        };
        Ok(FileCipher {
            cipher: Cipher::new(mode, &key.file_key(context, mode, volume)?),
            scheme: context.scheme,
            nonce: context.nonce,
            ino,
            padding_bytes: context.padding_bytes(),
            log_data_unit: context.log_data_unit(volume.log_block_bytes)?,
            log_block_bytes: volume.log_block_bytes,
            has_proven_key: is_v2,
            dir_hash_key: (is_v2 && purpose == Purpose::Names).then(|| key.dir_hash_key(&context.nonce)),
        })
    }

    /// Returns true if the key is certainly that of the policy. Nothing ties a policy of version 1 to its key.
    #[must_use]
    pub fn has_proven_key(&self) -> bool {
        self.has_proven_key
    }

    /// Encrypts whole blocks of the file in place; `block` is the number of the first one.
    pub fn encrypt_blocks(&self, block: u64, bytes: &mut [u8]) {
        for (iv, unit) in self.units(block, bytes) {
            self.cipher.encrypt(&iv, unit);
        }
    }

    /// Decrypts whole blocks of the file in place; `block` is the number of the first one.
    pub fn decrypt_blocks(&self, block: u64, bytes: &mut [u8]) {
        for (iv, unit) in self.units(block, bytes) {
            self.cipher.decrypt(&iv, unit);
        }
    }

    /// The data units of blocks, with their vectors.
    fn units<'b>(&self, block: u64, bytes: &'b mut [u8]) -> impl Iterator<Item = (Iv, &'b mut [u8])> {
        debug_assert_eq!(bytes.len() % (1 << self.log_block_bytes), 0, "whole blocks");
        let first = block << (self.log_block_bytes - self.log_data_unit);
        (first..).map(|index| self.iv(index)).zip(bytes.chunks_exact_mut(1 << self.log_data_unit))
    }

    /// Encrypts a name, or the target of a symbolic link. Returns `None` for an empty one, and for one whose encrypted
    /// form is longer than `most` bytes.
    #[must_use]
    pub fn encrypt_name(&self, name: &[u8], most: usize) -> Option<Vec<u8>> {
        let padded = name.len().max(MESSAGE_BYTES_MIN).next_multiple_of(self.padding_bytes).min(most);
        if name.is_empty() || name.len() > most || padded < MESSAGE_BYTES_MIN {
            return None;
        }
        let mut stored = name.to_vec();
        stored.resize(padded, 0);
        self.cipher.encrypt(&self.iv(0), &mut stored);
        Some(stored)
    }

    /// Decrypts a name, or the target of a symbolic link. Returns `None` if the bytes are too short for an encrypted one,
    /// and if an empty name is in them.
    #[must_use]
    pub fn decrypt_name(&self, stored: &[u8]) -> Option<Vec<u8>> {
        if stored.len() < MESSAGE_BYTES_MIN {
            return None;
        }
        let mut name = stored.to_vec();
        self.cipher.decrypt(&self.iv(0), &mut name);
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        (!name.is_empty()).then_some(name)
    }

    /// Returns the hash of a name in an encrypted directory that folds case; the name is folded, not encrypted. `None`
    /// for policies of version 1, which no such directory has.
    #[must_use]
    pub fn name_hash(&self, folded: &[u8]) -> Option<u32> {
        // Linux keeps the lower half.
        self.dir_hash_key.as_deref().map(|key| siphash(key, folded) as u32)
    }

    /// The vector of a data unit; names have that of unit 0.
    fn iv(&self, index: u64) -> Iv {
        let mut iv = [0; IV_BYTES];
        let number = match self.scheme {
            IvScheme::PerFileKey => index,
            IvScheme::DirectKey => {
                iv[8..8 + self.nonce.len()].copy_from_slice(&self.nonce);
                index
            }
            IvScheme::InoLblk64 => index | self.ino << 32,
            IvScheme::InoLblk32 => self.ino.wrapping_add(index) & u64::from(u32::MAX),
        };
        iv[..8].copy_from_slice(&number.to_le_bytes());
        iv
    }
}

fn siphash(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];

    fn cipher(modes_and_flags: [u8; 3], ino: u32, purpose: Purpose) -> FileCipher {
        let key = Key::new(&[0x5A; 64]).expect("a key");
        let [contents, names, flags] = modes_and_flags;
        let head = [2, contents, names, flags, 0, 0, 0, 0];
        let stored = [&head[..], &key.identifier(), &[3; 16]].concat();
        let context = Context::parse(&stored).expect("a context");
        let volume = Volume { uuid: UUID, log_block_bytes: 12 };
        FileCipher::new(&key, &context, &volume, ino, purpose).expect("a cipher")
    }

    #[test]
    fn vectors_depend_on_block_inode_and_nonce_as_the_scheme_says() {
        let start =
            |cipher: &FileCipher, index| u64::from_le_bytes(cipher.iv(index)[..8].try_into().expect("8"));
        let per_file = cipher([1, 4, 0], 5, Purpose::Contents);
        assert_eq!((start(&per_file, 9), &per_file.iv(9)[8..]), (9, &[0; 24][..]));
        let direct = cipher([9, 9, 4], 5, Purpose::Contents);
        assert_eq!((start(&direct, 9), &direct.iv(9)[8..24]), (9, &[3; 16][..]));
        assert_eq!(start(&cipher([1, 4, 8], 5, Purpose::Names), 0), 5 << 32);
        assert_eq!(start(&cipher([1, 4, 8], 5, Purpose::Contents), 9), 5 << 32 | 9);
        let hashed = cipher([1, 4, 0x10], 5, Purpose::Contents);
        assert!(hashed.ino <= u64::from(u32::MAX) && hashed.ino != 5);
        assert_eq!(start(&hashed, u64::from(u32::MAX) - hashed.ino + 3), 2, "it wraps at 32 bits");
    }

    #[test]
    fn names_are_padded_and_hostile_ones_are_refused() {
        for (flags, lengths) in [(0, [16, 16, 20]), (1, [16, 16, 24]), (2, [16, 16, 32]), (3, [32, 32, 32])] {
            let cipher = cipher([1, 4, flags], 5, Purpose::Names);
            let stored =
                |length: usize| cipher.encrypt_name(&vec![b'x'; length], 255).expect("it fits").len();
            assert_eq!([stored(1), stored(16), stored(17)], lengths, "padding {flags}");
            assert_eq!(stored(254), 255.min(254_usize.next_multiple_of(4 << flags)));
            assert_eq!(stored(255), 255);
            assert!(cipher.encrypt_name(b"", 255).is_none() && cipher.encrypt_name(&[1; 256], 255).is_none());
            let mut nothing = vec![0; 32];
            cipher.cipher.encrypt(&cipher.iv(0), &mut nothing);
            assert_eq!(cipher.decrypt_name(&nothing), None, "an empty name");
            for length in 0..=300 {
                let name = cipher.decrypt_name(&vec![0xAB; length]);
                assert!(length >= 16 || name.is_none());
            }
        }
    }

    #[test]
    fn each_block_has_its_own_data_units() {
        let key = Key::new(&[1; 32]).expect("a key");
        let of = |log: u8| {
            let head = [2, 1, 4, 0, log, 0, 0, 0];
            let stored = [&head[..], &key.identifier(), &[3; 16]].concat();
            let context = Context::parse(&stored).expect("a context");
            let volume = Volume { uuid: UUID, log_block_bytes: 12 };
            FileCipher::new(&key, &context, &volume, 5, Purpose::Contents).expect("a cipher")
        };
        let (whole, units) = (of(0), of(9));
        let mut blocks = vec![0; 2 * 4096];
        units.encrypt_blocks(1, &mut blocks);
        let mut unit = vec![0; 512];
        units.cipher.encrypt(&units.iv(8 + 9), &mut unit);
        assert_eq!(unit, blocks[9 * 512..10 * 512]);
        let mut second = vec![0; 4096];
        units.encrypt_blocks(2, &mut second);
        assert_eq!(second, blocks[4096..]);
        units.decrypt_blocks(1, &mut blocks);
        assert!(blocks.iter().all(|byte| *byte == 0));
        whole.encrypt_blocks(1, &mut blocks);
        assert_ne!(second, blocks[4096..]);
    }
}
