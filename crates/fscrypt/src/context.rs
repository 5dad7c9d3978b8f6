//! The context that an encrypted inode stores: its policy, and the nonce of the file.

use std::fmt;

use crate::{
    Error, Result,
    key::{DESCRIPTOR_BYTES, IDENTIFIER_BYTES},
};

/// Size of the nonce of a file in bytes.
pub const NONCE_BYTES: usize = 16;

const V1_BYTES: usize = 28;
const V2_BYTES: usize = 40;

/// Bits of the flags: the padding of names.
const PADDING: u8 = 0x03;
const DIRECT_KEY: u8 = 0x04;
const IV_INO_LBLK_64: u8 = 0x08;
const IV_INO_LBLK_32: u8 = 0x10;
const IV_SCHEMES: u8 = DIRECT_KEY | IV_INO_LBLK_64 | IV_INO_LBLK_32;

/// Smallest data unit, as a power of two of bytes.
const LOG_DATA_UNIT_MIN: u8 = 9;
/// Largest data unit, that of the largest block.
const LOG_DATA_UNIT_MAX: u8 = 16;

/// An encryption mode, for contents or for names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// AES-256-XTS, for contents.
    Aes256Xts,
    /// AES-256-CBC with ciphertext stealing, for names.
    Aes256Cts,
    /// AES-128-CBC with ESSIV, for contents.
    Aes128Cbc,
    /// AES-128-CBC with ciphertext stealing, for names.
    Aes128Cts,
    /// Adiantum, for both.
    Adiantum,
    /// AES-256-HCTR2, for names.
    Aes256Hctr2,
}

impl Mode {
    /// Returns the number by which contexts name the mode.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Mode::Aes256Xts => 1,
            Mode::Aes256Cts => 4,
            Mode::Aes128Cbc => 5,
            Mode::Aes128Cts => 6,
            Mode::Adiantum => 9,
            Mode::Aes256Hctr2 => 10,
        }
    }

    fn from_number(number: u8) -> Result<Mode> {
        const ALL: [Mode; 6] = [
            Mode::Aes256Xts,
            Mode::Aes256Cts,
            Mode::Aes128Cbc,
            Mode::Aes128Cts,
            Mode::Adiantum,
            Mode::Aes256Hctr2,
        ];
        let known = ALL.into_iter().find(|mode| mode.number() == number);
        known.ok_or_else(|| match number {
            7 | 8 => Error::Unsupported("files encrypted by SM4 cannot be read".into()),
            _ => Error::Unsupported(format!("the encryption mode {number} is unknown")),
        })
    }

    /// Returns the size in bytes of the shortest master key of version 2 that is as strong as the mode (Linux,
    /// `security_strength`).
    pub(crate) fn strength_bytes(self) -> usize {
        match self {
            Mode::Aes128Cbc | Mode::Aes128Cts => 16,
            Mode::Aes256Xts | Mode::Aes256Cts | Mode::Adiantum | Mode::Aes256Hctr2 => 32,
        }
    }

    /// Returns the size of the mode's key in bytes.
    pub(crate) fn key_bytes(self) -> usize {
        match self {
            Mode::Aes256Xts => 64,
            Mode::Aes256Cts | Mode::Adiantum | Mode::Aes256Hctr2 => 32,
            Mode::Aes128Cbc | Mode::Aes128Cts => 16,
        }
    }
}

/// The name by which a policy refers to its master key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyName {
    /// Policies of version 1: eight bytes that the user chose. Nothing ties them to the key.
    Descriptor([u8; DESCRIPTOR_BYTES]),
    /// Policies of version 2: sixteen bytes that are derived from the key.
    Identifier([u8; IDENTIFIER_BYTES]),
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: &[u8] = match self {
            KeyName::Descriptor(bytes) => bytes,
            KeyName::Identifier(bytes) => bytes,
        };
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The way in which keys and initialization vectors of files are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IvScheme {
    /// A key for each file; the vector is the number of the data unit.
    PerFileKey,
    /// One key for all files of a mode; the vector includes the nonce of the file (`DIRECT_KEY`).
    DirectKey,
    /// One key for all files of a mode and volume; the vector includes the inode number (`IV_INO_LBLK_64`).
    InoLblk64,
    /// Like [`InoLblk64`](Self::InoLblk64), but the vector has 32 bits, and the inode number is hashed
    /// (`IV_INO_LBLK_32`).
    InoLblk32,
}

impl IvScheme {
    /// Returns the flag of the scheme in a policy.
    pub(crate) fn flag(self) -> u8 {
        match self {
            IvScheme::PerFileKey => 0,
            IvScheme::DirectKey => DIRECT_KEY,
            IvScheme::InoLblk64 => IV_INO_LBLK_64,
            IvScheme::InoLblk32 => IV_INO_LBLK_32,
        }
    }
}

/// A context, checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Context {
    /// The master key of the policy.
    pub key: KeyName,
    /// The mode of contents.
    pub contents: Mode,
    /// The mode of names and of targets of symbolic links.
    pub names: Mode,
    /// The way in which keys and vectors are made.
    pub scheme: IvScheme,
    /// The padding of names: a power of two of 4 to 32 bytes, as its logarithm less 2.
    padding: u8,
    /// Size of a data unit in bytes as a power of two; 0 for a block.
    log_data_unit_bytes: u8,
    /// The nonce of the file.
    pub nonce: [u8; NONCE_BYTES],
}

impl Context {
    /// Parses a stored context.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes that are no context, [`Error::Unsupported`] for modes and flags that are unknown
    /// or that no policy may combine.
    pub fn parse(bytes: &[u8]) -> Result<Context> {
        let invalid = |what: String| Err(Error::Invalid(what));
        let (key, log_data_unit_bytes, nonce) = match (bytes.first(), bytes.len()) {
            (Some(1), V1_BYTES) => (KeyName::Descriptor(array(&bytes[4..12])), 0, array(&bytes[12..])),
            (Some(2), V2_BYTES) => (KeyName::Identifier(array(&bytes[8..24])), bytes[4], array(&bytes[24..])),
            (Some(version), length) => {
                return invalid(format!("an encryption context of version {version} and {length} bytes"));
            }
            (None, _) => return invalid("an empty encryption context".into()),
        };
        let (contents, names, flags) = (Mode::from_number(bytes[1])?, Mode::from_number(bytes[2])?, bytes[3]);
        let scheme = match flags & !PADDING {
            0 => IvScheme::PerFileKey,
            DIRECT_KEY => IvScheme::DirectKey,
            IV_INO_LBLK_64 => IvScheme::InoLblk64,
            IV_INO_LBLK_32 => IvScheme::InoLblk32,
            other if other & !IV_SCHEMES == 0 => {
                return invalid(format!("an encryption context with the flags {flags:#x}"));
            }
            _ => return Err(Error::Unsupported(format!("the encryption flags {flags:#x} are unknown"))),
        };
        if bytes[0] == 2 && bytes[5..8] != [0; 3] {
            return Err(Error::Unsupported("the encryption context has unknown fields".into()));
        }
        let unit = log_data_unit_bytes;
        if unit != 0 && !(LOG_DATA_UNIT_MIN..=LOG_DATA_UNIT_MAX).contains(&unit) {
            return invalid(format!("an encryption context with data units of 2^{unit} bytes"));
        }
        let padding = flags & PADDING;
        let context = Context { key, contents, names, scheme, padding, log_data_unit_bytes, nonce };
        context.check_modes()?;
        Ok(context)
    }

    /// Refuses combinations that Linux refuses (`fscrypt_supported_policy`).
    fn check_modes(&self) -> Result<()> {
        use Mode::{Adiantum, Aes128Cbc, Aes128Cts, Aes256Cts, Aes256Hctr2, Aes256Xts};
        let is_v2 = matches!(self.key, KeyName::Identifier(_));
        let is_pair = match (self.contents, self.names) {
            (Aes256Xts, Aes256Cts) | (Aes128Cbc, Aes128Cts) | (Adiantum, Adiantum) => true,
            (Aes256Xts, Aes256Hctr2) => is_v2,
            _ => false,
        };
        let fits = match self.scheme {
            IvScheme::PerFileKey => true,
            IvScheme::DirectKey => self.contents == Adiantum,
            IvScheme::InoLblk64 | IvScheme::InoLblk32 => is_v2 && self.contents == Aes256Xts,
        };
        if is_pair && fits {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "no policy has contents by {:?}, names by {:?} and {:?}",
            self.contents, self.names, self.scheme
        )))
    }

    /// Padding of names in bytes.
    pub(crate) fn padding_bytes(&self) -> usize {
        4 << self.padding
    }

    /// Size of a data unit as a power of two, in a volume with blocks of this size.
    pub(crate) fn log_data_unit(&self, log_block_bytes: u32) -> Result<u32> {
        match u32::from(self.log_data_unit_bytes) {
            0 => Ok(log_block_bytes),
            unit if unit <= log_block_bytes => Ok(unit),
            unit => Err(Error::Invalid(format!(
                "data units of 2^{unit} bytes on a volume with blocks of 2^{log_block_bytes}"
            ))),
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the length was checked")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(modes_and_flags: [u8; 3]) -> Vec<u8> {
        let mut bytes = vec![2];
        bytes.extend(modes_and_flags);
        bytes.extend([0; 4]);
        bytes.extend([0xA5; 16]);
        bytes.extend(1..=16);
        bytes
    }

    #[test]
    fn contexts_of_both_versions_and_all_schemes_are_parsed() {
        use IvScheme::{DirectKey, InoLblk32, InoLblk64, PerFileKey};
        let first = [&[1, 1, 4, 2][..], &[0xD0; 8], &[9; 16]].concat();
        let context = Context::parse(&first).expect("a context");
        assert_eq!((context.key, context.nonce), (KeyName::Descriptor([0xD0; 8]), [9; 16]));
        assert_eq!((context.contents, context.names, context.padding), (Mode::Aes256Xts, Mode::Aes256Cts, 2));
        for (modes_and_flags, contents, names, scheme, padding_bytes) in [
            ([1, 4, 3], Mode::Aes256Xts, Mode::Aes256Cts, PerFileKey, 32),
            ([1, 10, 0], Mode::Aes256Xts, Mode::Aes256Hctr2, PerFileKey, 4),
            ([9, 9, 7], Mode::Adiantum, Mode::Adiantum, DirectKey, 32),
            ([5, 6, 1], Mode::Aes128Cbc, Mode::Aes128Cts, PerFileKey, 8),
            ([1, 4, 9], Mode::Aes256Xts, Mode::Aes256Cts, InoLblk64, 8),
            ([1, 4, 0x11], Mode::Aes256Xts, Mode::Aes256Cts, InoLblk32, 8),
        ] {
            let context = Context::parse(&v2(modes_and_flags)).expect("a context");
            assert_eq!(context.key.to_string(), "a5".repeat(16));
            assert_eq!((context.contents, context.names, context.scheme), (contents, names, scheme));
            assert_eq!(
                (context.padding_bytes(), context.nonce[0], context.nonce[15]),
                (padding_bytes, 1, 16)
            );
        }
    }

    #[test]
    fn bytes_that_are_no_context_are_refused() {
        let whole = v2([1, 4, 3]);
        for length in 0..V2_BYTES {
            assert!(matches!(Context::parse(&whole[..length]), Err(Error::Invalid(_))), "{length}");
        }
        for bytes in
            [v2([4, 1, 0]), v2([1, 4, 4]), v2([9, 9, 8]), v2([1, 4, 0x20]), v2([7, 8, 0]), v2([2, 3, 0])]
        {
            assert!(matches!(Context::parse(&bytes), Err(Error::Unsupported(_))), "{bytes:x?}");
        }
        assert!(matches!(Context::parse(&v2([1, 4, 0x18])), Err(Error::Invalid(_))));
        let with = |at: usize, byte: u8| {
            let mut bytes = v2([1, 4, 3]);
            bytes[at] = byte;
            Context::parse(&bytes)
        };
        assert!(
            matches!(with(4, 8), Err(Error::Invalid(_))) && matches!(with(4, 63), Err(Error::Invalid(_)))
        );
        assert!(
            matches!(with(6, 1), Err(Error::Unsupported(_))) && matches!(with(0, 3), Err(Error::Invalid(_)))
        );
        assert_eq!(with(4, 9).expect("a context").log_data_unit(12), Ok(9));
        assert!(with(4, 14).expect("a context").log_data_unit(12).is_err());
    }
}
