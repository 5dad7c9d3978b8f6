//! The policy of an encrypted directory: everything in the contexts below it but the nonces.

use crate::{
    Error, Result,
    context::{Context, IvScheme, KeyName, Mode, NONCE_BYTES},
    key::Key,
};

/// Version of the first policies in an argument of an ioctl; a context has 1 there.
const V1_OF_PROGRAMS: u8 = 0;
const V1: u8 = 1;
const V2: u8 = 2;
/// Size in bytes of a policy of version 1 in an argument of an ioctl (`struct fscrypt_policy_v1`).
const V1_BYTES: usize = 12;
/// Size in bytes of a policy of version 2 in an argument of an ioctl (`struct fscrypt_policy_v2`).
const V2_BYTES: usize = 24;

/// A policy that a directory passes on to everything below it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// A context without its nonce.
    head: Vec<u8>,
    key: KeyName,
    scheme: IvScheme,
}

impl Policy {
    /// Makes a policy. `padding_bytes` is the multiple to which names are padded: 4, 8, 16 or 32.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another padding, [`Error::Unsupported`] for modes that no policy combines, or not with this
    /// scheme or this version.
    pub fn new(
        key: KeyName,
        (contents, names): (Mode, Mode),
        scheme: IvScheme,
        padding_bytes: u8,
    ) -> Result<Policy> {
        let padding = match padding_bytes {
            4 => 0,
            8 => 1,
            16 => 2,
            32 => 3,
            other => return Err(Error::Invalid(format!("names padded to {other} bytes"))),
        };
        let rest = [contents.number(), names.number(), scheme.flag() | padding];
        let head = match key {
            KeyName::Descriptor(name) => [&[V1][..], &rest, &name].concat(),
            KeyName::Identifier(name) => [&[V2][..], &rest, &[0; 4], &name].concat(),
        };
        Policy::of_head(head)
    }

    /// Makes the usual policy of a key: version 2, AES-256-XTS and AES-256-CTS, a key for each file, and names that are padded
    /// to 32 bytes. The key needs at least 32 bytes.
    #[must_use]
    pub fn of_key(key: &Key) -> Policy {
        let name = KeyName::Identifier(key.identifier());
        Policy::new(name, (Mode::Aes256Xts, Mode::Aes256Cts), IvScheme::PerFileKey, 32)
            .expect("the modes are combined so")
    }

    /// Parses the policy in an argument of an ioctl: a `struct fscrypt_policy_v1` or `struct fscrypt_policy_v2`, and
    /// whatever follows it.
    ///
    /// # Errors
    /// Those of [`Context::parse`].
    pub fn from_program(bytes: &[u8]) -> Result<Policy> {
        let head = match bytes.first() {
            Some(&V1_OF_PROGRAMS) => bytes.get(..V1_BYTES).map(|policy| [&[V1], &policy[1..]].concat()),
            Some(&V2) => bytes.get(..V2_BYTES).map(<[u8]>::to_vec),
            _ => None,
        };
        Policy::of_head(head.ok_or_else(|| Error::Invalid("an encryption policy of unknown version".into()))?)
    }

    /// Returns the policy as an argument of an ioctl.
    #[must_use]
    pub fn to_program(&self) -> Vec<u8> {
        match self.head[0] {
            V1 => [&[V1_OF_PROGRAMS], &self.head[1..]].concat(),
            _ => self.head.clone(),
        }
    }

    /// Returns the policy of a stored context.
    ///
    /// # Errors
    /// Those of [`Context::parse`].
    pub fn of_context(stored: &[u8]) -> Result<Policy> {
        Context::parse(stored)?;
        Policy::of_head(stored[..stored.len() - NONCE_BYTES].to_vec())
    }

    fn of_head(head: Vec<u8>) -> Result<Policy> {
        let context = Context::parse(&[&head[..], &[0; NONCE_BYTES]].concat())?;
        Ok(Policy { head, key: context.key, scheme: context.scheme })
    }

    /// Returns the context of an inode under this policy, as it is stored. Each inode needs a nonce of its own, of random
    /// bytes.
    #[must_use]
    pub fn context(&self, nonce: &[u8; NONCE_BYTES]) -> Vec<u8> {
        [&self.head[..], nonce].concat()
    }

    /// Returns the name of the master key.
    #[must_use]
    pub fn key(&self) -> KeyName {
        self.key
    }

    /// Returns the way in which keys and initialization vectors are made.
    #[must_use]
    pub fn scheme(&self) -> IvScheme {
        self.scheme
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_keep_everything_but_the_nonce() {
        for key in [KeyName::Descriptor(*b"by hand."), KeyName::Identifier([9; 16])] {
            let modes = (Mode::Aes256Xts, Mode::Aes256Cts);
            let policy = Policy::new(key, modes, IvScheme::PerFileKey, 16).expect("a policy");
            let stored = policy.context(&[7; NONCE_BYTES]);
            let context = Context::parse(&stored).expect("a context");
            assert_eq!((context.key, context.nonce, context.padding_bytes()), (key, [7; NONCE_BYTES], 16));
            assert_eq!(Policy::of_context(&stored), Ok(policy.clone()));
            assert_eq!(Policy::from_program(&policy.to_program()), Ok(policy.clone()));
            assert_ne!(Policy::new(key, modes, IvScheme::PerFileKey, 32), Ok(policy));
        }
    }

    /// Sizes and versions are those of Linux's `include/uapi/linux/fscrypt.h`.
    #[test]
    fn programs_name_version_1_by_zero() {
        let modes = (Mode::Adiantum, Mode::Adiantum);
        let first = Policy::new(KeyName::Descriptor([5; 8]), modes, IvScheme::DirectKey, 4);
        assert_eq!(first.expect("a policy").to_program(), [0, 9, 9, 4, 5, 5, 5, 5, 5, 5, 5, 5]);
        let modes = (Mode::Aes256Xts, Mode::Aes256Hctr2);
        let second = Policy::new(KeyName::Identifier([6; 16]), modes, IvScheme::InoLblk64, 32);
        let bytes = second.expect("a policy").to_program();
        assert_eq!((&bytes[..8], bytes.len()), (&[2, 1, 10, 3 | 8, 0, 0, 0, 0][..], 24));
    }

    #[test]
    fn policies_that_linux_refuses_are_refused() {
        let (first, second) = (KeyName::Descriptor([0; 8]), KeyName::Identifier([0; 16]));
        let xts = (Mode::Aes256Xts, Mode::Aes256Cts);
        for (key, modes, scheme) in [
            (first, (Mode::Aes256Xts, Mode::Aes256Hctr2), IvScheme::PerFileKey),
            (first, xts, IvScheme::InoLblk64),
            (second, xts, IvScheme::DirectKey),
            (second, (Mode::Adiantum, Mode::Adiantum), IvScheme::InoLblk32),
            (second, (Mode::Aes256Xts, Mode::Aes128Cts), IvScheme::PerFileKey),
        ] {
            assert!(Policy::new(key, modes, scheme, 32).is_err(), "{key:?} {modes:?} {scheme:?}");
        }
        assert!(Policy::new(second, xts, IvScheme::PerFileKey, 5).is_err());
        for bytes in [&[][..], &[0; 11], &[1; 28], &[2; 23], &[3; 24]] {
            assert!(Policy::from_program(bytes).is_err(), "{bytes:?}");
        }
    }
}
