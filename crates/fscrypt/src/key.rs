//! Master keys, their names, and the keys that are derived from them.

use std::{fmt, sync::Arc};

use aes::{
    Aes128,
    cipher::{BlockEncrypt, KeyInit},
};
use hkdf::Hkdf;
use sha2::{Digest, Sha512};
use zeroize::Zeroizing;

use crate::{
    Error, Result,
    context::{Context, IvScheme, KeyName, Mode, NONCE_BYTES},
    file::Volume,
};

/// Size of a descriptor in bytes.
pub const DESCRIPTOR_BYTES: usize = 8;
/// Size of an identifier in bytes.
pub const IDENTIFIER_BYTES: usize = 16;
/// Size of the shortest master key in bytes.
pub const KEY_BYTES_MIN: usize = 16;
/// Size of the longest master key in bytes.
pub const KEY_BYTES_MAX: usize = 64;

/// The purpose of a derived key, the first byte behind the prefix of its HKDF info (Linux, `HKDF_CONTEXT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Info {
    Identifier = 1,
    PerFile = 2,
    Direct = 3,
    InoLblk64 = 4,
    DirHash = 5,
    InoLblk32 = 6,
    InodeHash = 7,
}

/// The origin of a descriptor. The order is that in which keys of one descriptor are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DescriptorOrigin {
    /// [Given](Key::with_descriptor) with the key.
    Given,
    /// Derived from the key.
    Derived,
}

/// The names under which policies may refer to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Both,
    DescriptorOnly,
    IdentifierOnly,
}

impl Names {
    /// Returns the names that are left without a name of this kind.
    fn without(self, name: &KeyName) -> Option<Names> {
        match (self, name) {
            (Names::Both, KeyName::Descriptor(_)) => Some(Names::IdentifierOnly),
            (Names::Both, KeyName::Identifier(_)) => Some(Names::DescriptorOnly),
            (Names::DescriptorOnly, KeyName::Identifier(_))
            | (Names::IdentifierOnly, KeyName::Descriptor(_)) => Some(self),
            _ => None,
        }
    }
}

/// A master key. Its bytes are wiped when it is dropped.
#[derive(Clone)]
pub struct Key {
    bytes: Zeroizing<Vec<u8>>,
    descriptor: [u8; DESCRIPTOR_BYTES],
    origin: DescriptorOrigin,
    identifier: [u8; IDENTIFIER_BYTES],
    names: Names,
}

impl Key {
    /// Makes a master key of its bytes.
    ///
    /// # Errors
    /// [`Error::KeyLength`] unless there are 16 to 64 bytes.
    pub fn new(bytes: &[u8]) -> Result<Key> {
        match bytes.len() {
            KEY_BYTES_MIN..=KEY_BYTES_MAX => {}
            length if length > KEY_BYTES_MAX => {
                return Err(Error::KeyLength(format!(
                    "a key of {length} bytes, at most {KEY_BYTES_MAX} are possible; a key that is wrapped by hardware \
                     cannot be used outside of that hardware"
                )));
            }
            length => {
                return Err(Error::KeyLength(format!(
                    "a key of {length} bytes, at least {KEY_BYTES_MIN} are needed"
                )));
            }
        }
        let twice = Sha512::digest(Sha512::digest(bytes));
        let mut key = Key {
            bytes: Zeroizing::new(bytes.to_vec()),
            descriptor: twice[..DESCRIPTOR_BYTES].try_into().expect("a digest is longer"),
            origin: DescriptorOrigin::Derived,
            identifier: [0; IDENTIFIER_BYTES],
            names: Names::Both,
        };
        let mut identifier = [0; IDENTIFIER_BYTES];
        key.expand(Info::Identifier, &[], &mut identifier);
        key.identifier = identifier;
        Ok(key)
    }

    /// Gives the key another descriptor, for policies of version 1 whose maker did not derive it from the key.
    #[must_use]
    pub fn with_descriptor(self, descriptor: [u8; DESCRIPTOR_BYTES]) -> Key {
        Key { descriptor, origin: DescriptorOrigin::Given, ..self }
    }

    /// Limits the use of the key to names of one kind: to policies of version 1, by this descriptor, or to those of version 2,
    /// by its identifier.
    #[must_use]
    pub fn used_by(self, name: &KeyName) -> Key {
        match *name {
            KeyName::Descriptor(descriptor) => {
                Key { names: Names::DescriptorOnly, ..self.with_descriptor(descriptor) }
            }
            KeyName::Identifier(_) => Key { names: Names::IdentifierOnly, ..self },
        }
    }

    /// Returns the name of the key in policies of version 2.
    #[must_use]
    pub fn identifier(&self) -> [u8; IDENTIFIER_BYTES] {
        self.identifier
    }

    /// Returns the name of the key in policies of version 1: the first eight bytes of SHA-512 of SHA-512 of the key,
    /// by convention of `e4crypt`, `fscrypt` and Android, unless it was [given](Self::with_descriptor).
    #[must_use]
    pub fn descriptor(&self) -> [u8; DESCRIPTOR_BYTES] {
        self.descriptor
    }

    /// Returns true if policies may refer to the key by this name.
    #[must_use]
    pub fn has_name(&self, name: &KeyName) -> bool {
        match name {
            KeyName::Descriptor(name) => self.names != Names::IdentifierOnly && self.descriptor == *name,
            KeyName::Identifier(name) => self.names != Names::DescriptorOnly && self.identifier == *name,
        }
    }

    /// Returns the key of a file for a mode.
    pub(crate) fn file_key(
        &self,
        context: &Context,
        mode: Mode,
        volume: &Volume,
    ) -> Result<Zeroizing<Vec<u8>>> {
        let mut key = Zeroizing::new(vec![0; mode.key_bytes()]);
        if let KeyName::Descriptor(_) = context.key {
            let Some(start) = self.bytes.get(..key.len()) else {
                return Err(Error::KeyLength(format!(
                    "a key of {} bytes, its policy needs {}",
                    self.bytes.len(),
                    key.len()
                )));
            };
            key.copy_from_slice(start);
            if context.scheme == IvScheme::PerFileKey {
                derive_v1(&context.nonce, &mut key);
            }
            return Ok(key);
        }
        if self.bytes.len() < mode.strength_bytes() {
            return Err(Error::KeyLength(format!(
                "a key of {} bytes, its policy needs {}",
                self.bytes.len(),
                mode.strength_bytes()
            )));
        }
        let of_volume = || [&[mode.number()], &volume.uuid[..]].concat();
        match context.scheme {
            IvScheme::PerFileKey => self.expand(Info::PerFile, &context.nonce, &mut key),
            IvScheme::DirectKey => self.expand(Info::Direct, &[mode.number()], &mut key),
            IvScheme::InoLblk64 => self.expand(Info::InoLblk64, &of_volume(), &mut key),
            IvScheme::InoLblk32 => self.expand(Info::InoLblk32, &of_volume(), &mut key),
        }
        Ok(key)
    }

    /// Returns the key of the hash of names in a directory that folds case.
    pub(crate) fn dir_hash_key(&self, nonce: &[u8; NONCE_BYTES]) -> Zeroizing<[u8; 16]> {
        let mut key = Zeroizing::new([0; 16]);
        self.expand(Info::DirHash, nonce, &mut *key);
        key
    }

    /// Returns the key of the hash of inode numbers.
    pub(crate) fn inode_hash_key(&self) -> Zeroizing<[u8; 16]> {
        let mut key = Zeroizing::new([0; 16]);
        self.expand(Info::InodeHash, &[], &mut *key);
        key
    }

    fn expand(&self, info: Info, more: &[u8], out: &mut [u8]) {
        let hkdf = Hkdf::<Sha512>::new(None, &self.bytes);
        hkdf.expand_multi_info(&[b"fscrypt\0", &[info as u8], more], out)
            .expect("the longest derived key has 64 bytes, HKDF gives 16320");
    }
}

impl fmt::Debug for Key {
    /// Shows the name of the key, never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("identifier", &KeyName::Identifier(self.identifier).to_string())
            .finish_non_exhaustive()
    }
}

/// Derives the key of a file in policies of version 1: AES-128-ECB of the master key, with the nonce as the key.
fn derive_v1(nonce: &[u8; NONCE_BYTES], key: &mut [u8]) {
    let aes = Aes128::new(nonce.into());
    for block in key.chunks_exact_mut(16) {
        aes.encrypt_block(block.into());
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        (self.identifier, self.descriptor, self.names) == (other.identifier, other.descriptor, other.names)
    }
}

impl Eq for Key {}

/// The known master keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring {
    keys: Vec<Arc<Key>>,
}

impl Keyring {
    /// Adds a key.
    pub fn add(&mut self, key: Key) {
        self.keys.push(Arc::new(key));
    }

    /// Ends the use of keys by this name. Returns true if there was one. A key that has the name of the other version of
    /// policies, too, stays under that one.
    pub fn remove(&mut self, name: &KeyName) -> bool {
        let mut was_there = false;
        self.keys.retain_mut(|key| {
            if !key.has_name(name) {
                return true;
            }
            was_there = true;
            match key.names.without(name) {
                Some(names) => {
                    Arc::make_mut(key).names = names;
                    true
                }
                None => false,
            }
        });
        was_there
    }

    /// Returns true if there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the keys in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter().map(|key| &**key)
    }

    /// Returns the key of this name. Of several keys with one descriptor, it is the first to which the descriptor was
    /// [given](Key::with_descriptor), or else the first.
    #[must_use]
    pub fn find(&self, name: &KeyName) -> Option<&Key> {
        let mut found = self.iter().filter(|key| key.has_name(name));
        match name {
            KeyName::Descriptor(_) => found.min_by_key(|key| key.origin),
            KeyName::Identifier(_) => found.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_names_and_a_length() {
        let key = Key::new(&[0x5A; 64]).expect("a key");
        // The descriptor by coreutils: `printf 'Z%.0s' {1..64} | sha512sum | xxd -r -p | sha512sum`.
        assert_eq!(KeyName::Descriptor(key.descriptor()).to_string(), "37d1a5a45557972c");
        assert!(Key::new(&[0; 15]).is_err() && Key::new(&[0; 65]).is_err());
        assert!(!format!("{key:?}").contains("90, 90"), "{key:?}");
        let mut ring = Keyring::default();
        assert!(ring.is_empty());
        let name = KeyName::Descriptor(*b"by hand.");
        ring.add(Key::new(&[1; 32]).expect("a key").with_descriptor(*b"by hand."));
        ring.add(key);
        assert_eq!(**ring.find(&name).expect("the key").bytes, [1; 32]);
        let identifier = KeyName::Identifier(Key::new(&[0x5A; 64]).expect("a key").identifier());
        assert_eq!(**ring.find(&identifier).expect("the key").bytes, [0x5A; 64]);
        assert!(ring.find(&KeyName::Identifier([0; 16])).is_none());
        assert!(ring.remove(&identifier) && !ring.remove(&identifier));
        assert!(ring.find(&identifier).is_none() && ring.find(&name).is_some());
    }

    #[test]
    fn a_key_with_a_given_descriptor_comes_before_the_key_that_it_is_derived_from() {
        let derived = || Key::new(&[0x5A; 64]).expect("a key");
        let name = KeyName::Descriptor(derived().descriptor());
        let given = |byte| Key::new(&[byte; 64]).expect("a key").with_descriptor(derived().descriptor());
        let first_byte = |keys: Vec<Key>| {
            let mut ring = Keyring::default();
            keys.into_iter().for_each(|key| ring.add(key));
            ring.find(&name).expect("a key").bytes[0]
        };
        assert_eq!(first_byte(vec![derived(), given(1), given(2)]), 1);
        assert_eq!(first_byte(vec![given(1), derived()]), 1);
        assert_eq!(first_byte(vec![derived()]), 0x5A);
    }

    #[test]
    fn a_removal_under_one_name_leaves_the_key_under_the_other() {
        let key = || Key::new(&[0x5A; 64]).expect("a key");
        let names = [KeyName::Identifier(key().identifier()), KeyName::Descriptor(key().descriptor())];
        for (removed, kept) in [(0, 1), (1, 0)].map(|(removed, kept)| (names[removed], names[kept])) {
            let mut ring = Keyring::default();
            ring.add(key());
            assert!(ring.remove(&removed) && !ring.remove(&removed));
            assert!(ring.find(&removed).is_none() && ring.find(&kept).is_some());
            assert!(ring.remove(&kept) && ring.is_empty());
            let only = key().used_by(&kept);
            assert!(only.has_name(&kept) && !only.has_name(&removed));
            ring.add(only);
            assert!(!ring.remove(&removed) && ring.remove(&kept) && ring.is_empty());
        }
        let other = KeyName::Descriptor(*b"by hand.");
        assert!(key().used_by(&other).has_name(&other));
    }

    /// Expected values: HKDF and AES of OpenSSL 3, with the infos of fscrypt.rst.
    #[test]
    fn derived_keys_are_those_of_another_implementation() {
        let key = Key::new(&[0x5A; 64]).expect("a key");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&key.identifier()), "29028e0936eaa81dcfae55bb7e802a83");
        let nonce: [u8; 16] = std::array::from_fn(|n| n as u8 + 1);
        assert_eq!(hex(&*key.dir_hash_key(&nonce)), "958fe97b51997a8f4234595aed11d52c");
        assert_eq!(hex(&*key.inode_hash_key()), "1b4c71d334b251e2fb452351e01eb4ca");
        let volume = Volume { uuid: *b"UUUUUUUUUUUUUUUU", log_block_bytes: 12 };
        let of = |key: &Key, name: KeyName, modes_and_flags: [u8; 3]| {
            let [contents, names, flags] = modes_and_flags;
            let head = match name {
                KeyName::Descriptor(name) => [&[1, contents, names, flags], &name[..]].concat(),
                KeyName::Identifier(name) => [&[2, contents, names, flags, 0, 0, 0, 0], &name[..]].concat(),
            };
            let context = Context::parse(&[&head[..], &nonce].concat()).expect("a context");
            let mode =
                if contents == 9 || flags & 8 != 0 || flags == 0 { context.contents } else { context.names };
            hex(&key.file_key(&context, mode, &volume).expect("a long key"))
        };
        let (v1, v2) = (KeyName::Descriptor([0; 8]), KeyName::Identifier(key.identifier()));
        assert_eq!(
            of(&key, v2, [1, 4, 0]),
            "3be2b05d25831a67939b8d6517d274c7c73c6c50476a17ba1a826b4c4d074642\
             e5f9ac6846a0ef8fad1773db7b2360954cefd48b5a2d92b75e6c8578ce513932"
        );
        assert_eq!(
            of(&key, v2, [1, 4, 8]),
            "b9d7f12bfdc58d0b3fe381a212792eefbaa1e40ab9288e21cfad63b4670261d2\
             5640207c09011984f9a28eab1013ca437cc276db6d067fa2def7a0260904e7b1"
        );
        assert_eq!(
            of(&key, v2, [9, 9, 4]),
            "555aa5bd7b1c8aab7c9f80fc4f4d271ccd92e765e139428356fe7de46610c75a"
        );
        assert_eq!(
            of(&key, v2, [1, 4, 0x10]),
            "64c8ea2ce89f25ad02152c0110e0b59df29f9d781bb0a0dbb0fbb9b2854071f1"
        );
        let counted: Vec<u8> = (0..64).collect();
        let counted = Key::new(&counted).expect("a key");
        assert_eq!(
            of(&counted, v1, [1, 4, 0]),
            "6f0a9fffcb98df4f7425f73d09bbddfb66b4069cb2e53db109808b31d3eedeb5\
             21694811ed1909b821fed14c1c0c9ac991c071af13a36bac6f913c0bbe02eebb"
        );
        assert_eq!(of(&counted, v1, [9, 9, 4]), hex(&counted.bytes[..32]));
        let short = Key::new(&[1; 32]).expect("a key");
        let context = [&[1, 1, 4, 0][..], &[0; 8], &nonce].concat();
        let context = Context::parse(&context).expect("a context");
        assert!(matches!(short.file_key(&context, Mode::Aes256Xts, &volume), Err(Error::KeyLength(_))));
        let shorter = Key::new(&[1; 31]).expect("a key");
        let context = [&[2, 1, 4, 0, 0, 0, 0, 0][..], &shorter.identifier(), &nonce].concat();
        let context = Context::parse(&context).expect("a context");
        assert!(matches!(shorter.file_key(&context, Mode::Aes256Cts, &volume), Err(Error::KeyLength(_))));
        assert!(short.file_key(&context, Mode::Aes256Xts, &volume).is_ok());
    }
}
