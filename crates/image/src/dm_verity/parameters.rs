//! Parameters of a hash tree, and the shape that follows from them.

use std::{io, str::FromStr};

use sha2::{Digest, Sha256, Sha512};

use crate::bytes::invalid;

/// Sizes of a block in bytes: powers of two.
const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=65_536;
/// Maximum size of a salt in bytes, that of the superblock.
pub const SALT_BYTES_MAX: usize = 256;

/// A hash algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// Returns the name in superblocks, descriptors and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    /// Size of a digest in bytes.
    #[must_use]
    pub const fn digest_bytes(self) -> usize {
        match self {
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }
}

impl FromStr for Algorithm {
    type Err = io::Error;

    fn from_str(name: &str) -> io::Result<Algorithm> {
        let known = [Algorithm::Sha256, Algorithm::Sha512];
        known.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| {
            let what = format!("dm-verity: the hash algorithm {name:?}; sha256 and sha512 are supported");
            io::Error::new(io::ErrorKind::Unsupported, what)
        })
    }
}

/// Form of the hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashForm {
    /// Form 0, of Chrome OS: the salt follows the block, and digests follow each other.
    Chromium,
    /// Form 1: the salt precedes the block, and each digest takes a power of two of bytes.
    Usual,
}

impl HashForm {
    /// Returns the form with this number.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if there is none.
    pub fn of(number: u64) -> io::Result<HashForm> {
        match number {
            0 => Ok(HashForm::Chromium),
            1 => Ok(HashForm::Usual),
            other => Err(invalid(format!("dm-verity: hashes of the form {other}"))),
        }
    }

    /// Returns the number of the form.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            HashForm::Chromium => 0,
            HashForm::Usual => 1,
        }
    }
}

/// Parameters of a hash tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Form of the hashes.
    pub form: HashForm,
    /// Hash algorithm.
    pub algorithm: Algorithm,
    /// Size of a block of data in bytes.
    pub data_block_bytes: u32,
    /// Size of a block of the tree in bytes.
    pub hash_block_bytes: u32,
    /// Number of blocks of data.
    pub data_blocks: u64,
    /// First byte of the tree in its file or device.
    pub tree_at: u64,
    /// Salt of each hash.
    pub salt: Vec<u8>,
}

/// Blocks of one level of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// First byte in the file or device of the tree.
    pub at: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Parameters {
    /// Returns the levels of the tree, the one above the data first.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if no data of `data_bytes` bytes with a tree in `tree_bytes` bytes has these
    /// parameters.
    pub fn levels(&self, data_bytes: u64, tree_bytes: u64) -> io::Result<Vec<Level>> {
        let damaged = |what: String| Err(invalid(format!("dm-verity: {what}")));
        for bytes in [self.data_block_bytes, self.hash_block_bytes] {
            if !BLOCK_BYTES.contains(&bytes) || !bytes.is_power_of_two() {
                return damaged(format!("blocks of {bytes} bytes, must be a power of two from 512 to 65536"));
            }
        }
        if self.salt.len() > SALT_BYTES_MAX {
            return damaged(format!("a salt of {} bytes, at most {SALT_BYTES_MAX}", self.salt.len()));
        }
        let (blocks, block_bytes) = (self.data_blocks, u64::from(self.data_block_bytes));
        let is_on_device = blocks.checked_mul(block_bytes).is_some_and(|bytes| bytes <= data_bytes);
        if blocks == 0 || !is_on_device {
            return damaged(format!(
                "{blocks} blocks of {block_bytes} bytes of data in {data_bytes} bytes; is the image cut off?"
            ));
        }
        let hash_block_bytes = u64::from(self.hash_block_bytes);
        if self.tree_at % hash_block_bytes != 0 {
            return damaged(format!("a hash tree at byte {}, between blocks", self.tree_at));
        }
        let mut counts = Vec::new();
        let mut below = blocks;
        while below > 1 {
            below = below.div_ceil(self.fan_out());
            counts.push(below);
        }
        // The highest level is first.
        let mut at = self.tree_at;
        let mut levels = Vec::new();
        for blocks in counts.into_iter().rev() {
            levels.push(Level { at, blocks });
            let end = blocks.checked_mul(hash_block_bytes).and_then(|bytes| at.checked_add(bytes));
            let Some(end) = end.filter(|end| *end <= tree_bytes) else {
                return damaged(format!(
                    "the hash tree at byte {} passes the end at byte {tree_bytes}; is the image cut off?",
                    self.tree_at
                ));
            };
            at = end;
        }
        levels.reverse();
        Ok(levels)
    }

    /// Number of digests in a block of the tree: a power of two, at least 8.
    #[must_use]
    pub fn fan_out(&self) -> u64 {
        let most = self.hash_block_bytes as usize / self.algorithm.digest_bytes();
        1 << most.ilog2()
    }

    /// Returns the bytes of a digest in a block of the tree.
    pub(super) fn place(&self, digest: u64) -> std::ops::Range<usize> {
        let bytes = self.algorithm.digest_bytes();
        let stride = match self.form {
            HashForm::Chromium => bytes,
            HashForm::Usual => self.hash_block_bytes as usize / self.fan_out() as usize,
        };
        let start = (digest % self.fan_out()) as usize * stride;
        start..start + bytes
    }

    /// Returns the hash of a block.
    pub(super) fn hash(&self, block: &[u8]) -> Vec<u8> {
        let parts = match self.form {
            HashForm::Chromium => [block, &self.salt],
            HashForm::Usual => [&self.salt, block],
        };
        match self.algorithm {
            Algorithm::Sha256 => digest::<Sha256>(parts),
            Algorithm::Sha512 => digest::<Sha512>(parts),
        }
    }
}

fn digest<D: Digest>(parts: [&[u8]; 2]) -> Vec<u8> {
    let mut digest = D::new();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Parameters {
        Parameters {
            form: HashForm::Usual,
            algorithm: Algorithm::Sha256,
            data_block_bytes: 4096,
            hash_block_bytes: 4096,
            data_blocks: 128 * 128 + 1,
            tree_at: 8192,
            salt: Vec::new(),
        }
    }

    #[test]
    fn the_highest_level_is_first_in_the_tree() {
        let levels = parameters().levels(u64::MAX, u64::MAX).unwrap();
        let shape: Vec<_> = levels.iter().map(|level| (level.at, level.blocks)).collect();
        assert_eq!(shape, [(8192 + 3 * 4096, 129), (8192 + 4096, 2), (8192, 1)]);
        let one = Parameters { data_blocks: 1, ..parameters() };
        assert_eq!(one.levels(4096, 8192).unwrap(), []);
    }

    #[test]
    fn digests_have_the_places_of_their_form() {
        let usual = Parameters { algorithm: Algorithm::Sha512, hash_block_bytes: 1024, ..parameters() };
        assert_eq!((usual.fan_out(), usual.place(17)), (16, 64..128));
        let odd = Parameters { form: HashForm::Chromium, hash_block_bytes: 512, ..parameters() };
        assert_eq!((odd.fan_out(), odd.place(15)), (16, 480..512));
    }

    #[test]
    fn impossible_parameters_are_refused() {
        type Change = fn(&mut Parameters);
        let all: [(&str, Change); 8] = [
            ("blocks of 3000 bytes", |it| it.data_block_bytes = 3000),
            ("blocks of 0 bytes", |it| it.hash_block_bytes = 0),
            ("blocks of 131072 bytes", |it| it.hash_block_bytes = 1 << 17),
            ("a salt of 257 bytes", |it| it.salt = vec![0; 257]),
            ("0 blocks", |it| it.data_blocks = 0),
            ("18446744073709551615 blocks", |it| it.data_blocks = u64::MAX),
            ("at byte 100, between blocks", |it| it.tree_at = 100),
            ("passes the end", |it| it.tree_at = u64::MAX - 4095),
        ];
        for (told, change) in all {
            let mut parameters = parameters();
            change(&mut parameters);
            let error = parameters.levels(1 << 40, 1 << 40).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        assert!(parameters().levels((128 * 128 + 1) * 4096 - 1, 1 << 40).is_err());
        assert!(parameters().levels(1 << 40, 8192 + 132 * 4096 - 1).is_err());
        parameters().levels(1 << 40, 8192 + 132 * 4096).unwrap();
    }
}
