//! fs-verity: the descriptor of a sealed file, and the shape of its Merkle tree (Linux,
//! `Documentation/filesystems/fsverity.rst`). F2FS stores the tree and then the descriptor past the end of the file, from
//! the next multiple of 64 KiB on, and the place of the descriptor in an extended attribute.

use std::ops::Range;

use sha2::{Digest, Sha256, Sha512};

/// Stored name of the attribute with the place of the descriptor; its index is
/// [`VERITY`](super::xattr::index::VERITY).
pub const ATTRIBUTE: &[u8] = b"v";
/// Size of a descriptor without a signature, in bytes.
pub const DESCRIPTOR_BYTES: usize = 256;
/// Size of the longest salt in bytes.
pub const SALT_BYTES_MAX: usize = 32;
/// Size of the longest descriptor with its signature in bytes (Linux, `FS_VERITY_MAX_DESCRIPTOR_SIZE`).
pub const STORED_BYTES_MAX: usize = 16_384;
/// Size of the longest signature in bytes (Linux, `FS_VERITY_MAX_SIGNATURE_SIZE`).
pub const SIGNATURE_BYTES_MAX: usize = STORED_BYTES_MAX - DESCRIPTOR_BYTES;

/// Alignment of the tree in the file, in bytes.
const TREE_ALIGNMENT: u64 = 65_536;
const LOCATION_BYTES: usize = 16;
const VERSION: u8 = 1;
/// Smallest and largest block of a tree, as a power of two of bytes.
const LOG_BLOCK: std::ops::RangeInclusive<u8> = 10..=16;
/// Maximum number of levels of a tree (Linux, `FS_VERITY_MAX_LEVELS`).
const LEVELS_MAX: usize = 8;

const LOG_BLOCK_AT: usize = 2;
const SALT_LENGTH_AT: usize = 3;
const SIGNATURE_LENGTH_AT: usize = 4;
const DATA_BYTES_AT: usize = 8;
const ROOT_HASH_AT: usize = 16;
const SALT_AT: usize = 80;
const RESERVED_AT: usize = 112;

/// A hash algorithm of fs-verity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl HashAlgorithm {
    /// Returns the algorithm with this number, if it is known.
    #[must_use]
    pub fn from_code(code: u8) -> Option<HashAlgorithm> {
        match code {
            1 => Some(HashAlgorithm::Sha256),
            2 => Some(HashAlgorithm::Sha512),
            _ => None,
        }
    }

    /// Returns the algorithm that the tool `fsverity` gives this name, if it is known.
    #[must_use]
    pub fn from_name(name: &str) -> Option<HashAlgorithm> {
        [HashAlgorithm::Sha256, HashAlgorithm::Sha512].into_iter().find(|known| known.name() == name)
    }

    /// Returns the number by which descriptors name the algorithm.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            HashAlgorithm::Sha256 => 1,
            HashAlgorithm::Sha512 => 2,
        }
    }

    /// Returns the name that the tool `fsverity` uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Sha512 => "sha512",
        }
    }

    /// Size of a digest in bytes.
    #[must_use]
    pub fn digest_bytes(self) -> usize {
        match self {
            HashAlgorithm::Sha256 => 32,
            HashAlgorithm::Sha512 => 64,
        }
    }

    /// Size in bytes of the blocks that the algorithm works on; a salt is filled up to it.
    fn input_bytes(self) -> usize {
        2 * self.digest_bytes()
    }

    fn hash(self, parts: [&[u8]; 2]) -> Vec<u8> {
        match self {
            HashAlgorithm::Sha256 => {
                Sha256::new().chain_update(parts[0]).chain_update(parts[1]).finalize().to_vec()
            }
            HashAlgorithm::Sha512 => {
                Sha512::new().chain_update(parts[0]).chain_update(parts[1]).finalize().to_vec()
            }
        }
    }
}

/// The parameters of a Merkle tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// The hash algorithm.
    pub algorithm: HashAlgorithm,
    /// Size of a block of data and of the tree in bytes, as a power of two.
    pub log_block_bytes: u8,
    /// The salt, at most [`SALT_BYTES_MAX`] bytes.
    pub salt: Vec<u8>,
}

impl Parameters {
    /// Checks parameters of a program.
    ///
    /// # Errors
    /// The reason if no tree has them.
    pub fn check(&self) -> Result<(), String> {
        if !LOG_BLOCK.contains(&self.log_block_bytes) {
            return Err(format!("blocks of 2^{} bytes, must be 1 KiB to 64 KiB", self.log_block_bytes));
        }
        if self.salt.len() > SALT_BYTES_MAX {
            return Err(format!(
                "a salt of {} bytes, at most {SALT_BYTES_MAX} are possible",
                self.salt.len()
            ));
        }
        Ok(())
    }

    /// Size of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        1 << self.log_block_bytes
    }

    /// Returns the hash of a block.
    #[must_use]
    pub fn hash(&self, block: &[u8]) -> Vec<u8> {
        let mut salt = self.salt.clone();
        salt.resize(salt.len().next_multiple_of(self.algorithm.input_bytes()), 0);
        self.algorithm.hash([&salt, block])
    }
}

/// The shape of a Merkle tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of each level, the one above the data first.
    levels: Vec<u64>,
    log_block_bytes: u8,
    /// Digests in a block.
    arity: u64,
}

impl Shape {
    /// Returns the shape for a file; `None` if it has too many levels.
    #[must_use]
    pub fn new(parameters: &Parameters, data_bytes: u64) -> Option<Shape> {
        let arity = (parameters.block_bytes() / parameters.algorithm.digest_bytes()) as u64;
        let (mut levels, mut blocks) = (Vec::new(), data_bytes.div_ceil(parameters.block_bytes() as u64));
        while blocks > 1 {
            blocks = blocks.div_ceil(arity);
            levels.push(blocks);
        }
        let log_block_bytes = parameters.log_block_bytes;
        (levels.len() <= LEVELS_MAX).then_some(Shape { levels, log_block_bytes, arity })
    }

    /// Number of levels above the data.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Number of blocks in a level.
    #[must_use]
    pub fn blocks(&self, level: usize) -> u64 {
        self.levels[level]
    }

    /// Digests in a block.
    #[must_use]
    pub fn arity(&self) -> u64 {
        self.arity
    }

    /// Offset of a block in the tree, in bytes: the highest level is first.
    #[must_use]
    pub fn offset(&self, level: usize, block: u64) -> u64 {
        let above: u64 = self.levels[level + 1..].iter().sum();
        (above + block) << self.log_block_bytes
    }

    /// Size of the tree in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.levels.iter().sum::<u64>() << self.log_block_bytes
    }

    /// Returns the range of the content that a block of the tree covers, in bytes. The last range may reach beyond the end
    /// of the file.
    #[must_use]
    pub fn content(&self, level: usize, block: u64) -> Range<u64> {
        let covered =
            (0..=level).fold(1 << self.log_block_bytes, |bytes: u64, _| bytes.saturating_mul(self.arity));
        let start = block.saturating_mul(covered);
        start..start.saturating_add(covered)
    }
}

/// A descriptor, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The parameters of the tree.
    pub parameters: Parameters,
    /// Size of the file in bytes.
    pub data_bytes: u64,
    /// Hash of the highest block; zeroes for an empty file.
    pub root_hash: Vec<u8>,
    /// Signature of the digest, at most [`SIGNATURE_BYTES_MAX`] bytes; empty without one. It is not checked here.
    pub signature: Vec<u8>,
}

impl Descriptor {
    /// Parses a descriptor and the signature that may follow it.
    ///
    /// # Errors
    /// The reason if it is none.
    pub fn parse(bytes: &[u8]) -> Result<Descriptor, String> {
        let head = bytes.get(..DESCRIPTOR_BYTES);
        let head = head.ok_or_else(|| format!("a verity descriptor of {} bytes", bytes.len()))?;
        if head[0] != VERSION || head[RESERVED_AT..].iter().any(|byte| *byte != 0) {
            return Err(format!("a verity descriptor of version {} or with unknown fields", head[0]));
        }
        let algorithm = HashAlgorithm::from_code(head[1])
            .ok_or_else(|| format!("a verity descriptor with the hash algorithm {}", head[1]))?;
        let salt = head[SALT_AT..RESERVED_AT].get(..usize::from(head[SALT_LENGTH_AT]));
        let salt = salt.ok_or_else(|| format!("a verity salt of {} bytes", head[SALT_LENGTH_AT]))?.to_vec();
        let parameters = Parameters { algorithm, log_block_bytes: head[LOG_BLOCK_AT], salt };
        parameters.check()?;
        let data_bytes = u64::from_le_bytes(*head[DATA_BYTES_AT..].first_chunk().expect("8 bytes"));
        let root_hash = head[ROOT_HASH_AT..][..algorithm.digest_bytes()].to_vec();
        let length = u32::from_le_bytes(*head[SIGNATURE_LENGTH_AT..].first_chunk().expect("4 bytes"));
        let signature = bytes[DESCRIPTOR_BYTES..].get(..length as usize);
        let signature = signature.ok_or_else(|| format!("a verity signature of {length} bytes"))?.to_vec();
        Ok(Descriptor { parameters, data_bytes, root_hash, signature })
    }

    /// Encodes the descriptor with its signature, as it is stored.
    #[must_use]
    pub fn to_stored(&self) -> Vec<u8> {
        let mut bytes = self.to_bytes().to_vec();
        let length = u32::try_from(self.signature.len()).expect("a signature has at most 16128 bytes");
        bytes[SIGNATURE_LENGTH_AT..DATA_BYTES_AT].copy_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    /// Encodes the descriptor, without a signature.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; DESCRIPTOR_BYTES] {
        let Parameters { algorithm, log_block_bytes, salt } = &self.parameters;
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..SIGNATURE_LENGTH_AT].copy_from_slice(&[
            VERSION,
            algorithm.code(),
            *log_block_bytes,
            u8::try_from(salt.len()).expect("a salt has at most 32 bytes"),
        ]);
        bytes[DATA_BYTES_AT..ROOT_HASH_AT].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[ROOT_HASH_AT..][..self.root_hash.len()].copy_from_slice(&self.root_hash);
        bytes[SALT_AT..][..salt.len()].copy_from_slice(salt);
        bytes
    }

    /// Returns the digest of the file: the hash of the descriptor without its signature.
    #[must_use]
    pub fn digest(&self) -> Vec<u8> {
        self.parameters.algorithm.hash([&[], &self.to_bytes()])
    }
}

/// The place of a descriptor in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Its offset in bytes, past the end of the file.
    pub offset: u64,
    /// Its size with the signature, in bytes.
    pub bytes: u32,
}

impl Location {
    /// Parses the value of the attribute.
    ///
    /// # Errors
    /// The reason if it is no place.
    pub fn parse(value: &[u8]) -> Result<Location, String> {
        let word = |at: usize| u32::from_le_bytes(*value[at..].first_chunk().expect("4 bytes"));
        if value.len() != LOCATION_BYTES || word(0) != u32::from(VERSION) {
            return Err(format!("the place of a verity descriptor in {} bytes", value.len()));
        }
        let offset = u64::from_le_bytes(*value[8..].first_chunk().expect("8 bytes"));
        Ok(Location { offset, bytes: word(4) })
    }

    /// Encodes the value of the attribute.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = [u32::from(VERSION).to_le_bytes(), self.bytes.to_le_bytes()];
        [&words.concat()[..], &self.offset.to_le_bytes()].concat()
    }
}

/// Returns the offset of the Merkle tree in a file of this size, in bytes; `None` if it is beyond all files.
#[must_use]
pub fn tree_offset(data_bytes: u64) -> Option<u64> {
    data_bytes.checked_next_multiple_of(TREE_ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(algorithm: HashAlgorithm, log_block_bytes: u8, salt: &[u8]) -> Parameters {
        Parameters { algorithm, log_block_bytes, salt: salt.to_vec() }
    }

    #[test]
    fn trees_have_the_shape_of_linux() {
        let usual = parameters(HashAlgorithm::Sha256, 12, b"");
        let of = |bytes| Shape::new(&usual, bytes).expect("few levels").levels;
        assert_eq!((of(0), of(4096), of(4097)), (vec![], vec![], vec![1]));
        assert_eq!((of(128 * 4096), of(128 * 4096 + 1)), (vec![1], vec![2, 1]));
        let shape = Shape::new(&usual, 128 * 4096 + 1).expect("few levels");
        assert_eq!(
            [shape.offset(1, 0), shape.offset(0, 0), shape.offset(0, 1), shape.bytes()],
            [0, 4096, 8192, 12288]
        );
        assert_eq!((shape.content(0, 1), shape.content(1, 0)), (524_288..1_048_576, 0..67_108_864));
        assert!(Shape::new(&parameters(HashAlgorithm::Sha512, 10, b""), u64::MAX).is_none());
    }

    #[test]
    fn descriptors_survive_a_round_trip_and_hostile_ones_are_refused() {
        let descriptor = Descriptor {
            parameters: parameters(HashAlgorithm::Sha512, 10, &[7; 32]),
            data_bytes: 12345,
            root_hash: vec![9; 64],
            signature: Vec::new(),
        };
        let bytes = descriptor.to_bytes();
        assert_eq!(Descriptor::parse(&bytes).as_ref(), Ok(&descriptor));
        let signed = Descriptor { signature: vec![5; 300], ..descriptor.clone() };
        let stored = signed.to_stored();
        assert_eq!((stored.len(), Descriptor::parse(&stored).as_ref()), (556, Ok(&signed)));
        assert_eq!(signed.digest(), descriptor.digest(), "the signature is that of the digest");
        assert!(Descriptor::parse(&stored[..555]).is_err(), "a signature that is cut off");
        for (at, byte) in [(0, 2), (1, 3), (2, 9), (2, 17), (3, 33), (112, 1), (255, 1)] {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert!(Descriptor::parse(&wrong).is_err(), "byte {at}");
        }
        assert!(Descriptor::parse(&bytes[..255]).is_err());
        let location = Location { offset: 65_536, bytes: 256 };
        assert_eq!(Location::parse(&location.to_bytes()), Ok(location));
        assert!(Location::parse(&[1; 15]).is_err() && Location::parse(&[2; 16]).is_err());
    }
}
