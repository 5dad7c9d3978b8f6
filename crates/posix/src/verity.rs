//! The ioctls of fs-verity (Linux, `include/uapi/linux/fsverity.h`).

use std::borrow::Cow;

use f2fs::format::verity::{HashAlgorithm, Parameters, SALT_BYTES_MAX, SIGNATURE_BYTES_MAX};

use crate::{CallerMemory, Errno};

const ENABLE: u32 = 0x4080_6685;
/// `FS_IOC_MEASURE_VERITY`, declared with the part of its argument before the digest.
const MEASURE: u32 = 0xC004_6686;
const READ_METADATA: u32 = 0xC028_6687;

/// Bytes of `struct fsverity_enable_arg`.
const ENABLE_BYTES: usize = 128;
/// Bytes of `struct fsverity_digest` before the digest.
const DIGEST_AT: usize = 4;
/// Bytes of `struct fsverity_read_metadata_arg`.
const READ_BYTES: usize = 40;
/// Version of the argument of `FS_IOC_ENABLE_VERITY`.
const VERSION: u32 = 1;

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerityRequest {
    /// Seals the file: parameters of its Merkle tree, and the signature of its digest or nothing.
    Enable(Parameters, Vec<u8>),
    /// Asks for the digest.
    Measure {
        /// Bytes that the caller has for the digest.
        room_bytes: usize,
        /// The way of the digest to the caller.
        by: AnswerBy,
    },
    /// Copies metadata into the memory of the caller.
    ReadMetadata(MetadataRange),
}

/// The way of an answer to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerBy {
    /// The kernel takes it as a whole, since Linux 6.10.
    Kernel,
    /// The kernel takes its start; the rest is written to the memory of the caller.
    Memory,
}

/// A range of the metadata of a sealed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataRange {
    /// The metadata.
    pub of: Metadata,
    /// Start of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u64,
    /// Address of the caller's buffer.
    pub buffer: u64,
}

/// Metadata of a sealed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metadata {
    /// The Merkle tree.
    Tree,
    /// The descriptor without its signature.
    Descriptor,
    /// The signature.
    Signature,
}

/// The answer to a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerityAnswer {
    /// Result of the ioctl.
    pub result: i32,
    /// Bytes that the kernel gives to the caller.
    pub bytes: Vec<u8>,
}

impl VerityRequest {
    /// Parses an ioctl number with its data and the memory of its caller. Returns `None` for another request.
    ///
    /// # Errors
    /// As in Linux: `EINVAL` for an impossible argument, `EMSGSIZE` for a salt or signature that is too long, `ENOPKG` for
    /// an unknown hash algorithm; those of [`CallerMemory::read`].
    pub fn parse(command: u32, data: &[u8], memory: CallerMemory) -> Result<Option<VerityRequest>, Errno> {
        Ok(Some(match command {
            ENABLE => enable(data, memory)?,
            MEASURE => {
                let room_bytes = room_bytes(data)?;
                let by =
                    if data.len() >= DIGEST_AT + room_bytes { AnswerBy::Kernel } else { AnswerBy::Memory };
                VerityRequest::Measure { room_bytes, by }
            }
            READ_METADATA => read_metadata(data)?,
            _ => return Ok(None),
        }))
    }

    /// Returns true if this is an ioctl of fs-verity that has a part of its argument in the memory of its caller. Since
    /// Linux 6.10 the kernel sends all of it, except the buffer for metadata.
    pub fn accesses_memory(command: u32, data: &[u8]) -> bool {
        let word = |at| long(data, at).is_ok_and(|word: [u8; 4]| u32::from_ne_bytes(word) != 0);
        match command {
            ENABLE => data.len() <= ENABLE_BYTES && (word(12) || word(24)),
            MEASURE => room_bytes(data).is_ok_and(|room_bytes| data.len() < DIGEST_AT + room_bytes),
            READ_METADATA => true,
            _ => false,
        }
    }

    /// Returns true if the request changes the volume.
    pub fn changes(&self) -> bool {
        matches!(self, VerityRequest::Enable(..))
    }
}

/// Returns the bytes that the caller has for a digest.
fn room_bytes(data: &[u8]) -> Result<usize, Errno> {
    long(data, 2).map(|room| u16::from_ne_bytes(room).into())
}

/// The bytes of a number.
fn long<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], Errno> {
    data.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Errno::INVAL)
}

/// Parses a `struct fsverity_enable_arg`.
fn enable(data: &[u8], memory: CallerMemory) -> Result<VerityRequest, Errno> {
    let argument = data.get(..ENABLE_BYTES).ok_or(Errno::INVAL)?;
    let word = |at| long(argument, at).map(u32::from_ne_bytes);
    let address = |at| long(argument, at).map(u64::from_ne_bytes);
    let [version, algorithm, block_bytes, salt_bytes] = [word(0)?, word(4)?, word(8)?, word(12)?];
    let signature_bytes = word(24)?;
    if version != VERSION || word(28)? != 0 || argument[40..].iter().any(|byte| *byte != 0) {
        return Err(Errno::INVAL);
    }
    if !block_bytes.is_power_of_two() {
        return Err(Errno::INVAL);
    }
    let (salt_bytes, signature_bytes) = (salt_bytes as usize, signature_bytes as usize);
    if salt_bytes > SALT_BYTES_MAX || signature_bytes > SIGNATURE_BYTES_MAX {
        return Err(Errno::MSGSIZE);
    }
    // Since Linux 6.10, salt and signature follow the argument.
    let sent = &data[ENABLE_BYTES..];
    let part = |at: usize, bytes: usize, address: u64| -> Result<Cow<'_, [u8]>, Errno> {
        match sent.is_empty() {
            true if bytes > 0 => memory.read_at(address, bytes).map(Cow::Owned),
            true => Ok(Cow::Borrowed(&[])),
            false => sent.get(at..at + bytes).map(Cow::Borrowed).ok_or(Errno::INVAL),
        }
    };
    let salt = part(0, salt_bytes, address(16)?)?.into_owned();
    let signature = part(salt_bytes, signature_bytes, address(32)?)?.into_owned();
    let algorithm = u8::try_from(algorithm).ok().and_then(HashAlgorithm::from_code).ok_or(Errno::NOPKG)?;
    let log_block_bytes = block_bytes.ilog2() as u8;
    Ok(VerityRequest::Enable(Parameters { algorithm, log_block_bytes, salt }, signature))
}

/// Parses a `struct fsverity_read_metadata_arg`.
fn read_metadata(data: &[u8]) -> Result<VerityRequest, Errno> {
    let argument = data.get(..READ_BYTES).ok_or(Errno::INVAL)?;
    let number = |at| long(argument, at).map(u64::from_ne_bytes);
    let [of, offset, length, buffer, reserved] =
        [number(0)?, number(8)?, number(16)?, number(24)?, number(32)?];
    if reserved != 0 || offset.checked_add(length).is_none() {
        return Err(Errno::INVAL);
    }
    let of = match of {
        1 => Metadata::Tree,
        2 => Metadata::Descriptor,
        3 => Metadata::Signature,
        _ => return Err(Errno::INVAL),
    };
    Ok(VerityRequest::ReadMetadata(MetadataRange { of, offset, length, buffer }))
}

/// Gives a digest to the caller, who has `room_bytes` bytes for it.
pub(crate) fn give_digest(
    algorithm: HashAlgorithm,
    digest: &[u8],
    room_bytes: usize,
    by: AnswerBy,
    memory: CallerMemory,
) -> Result<VerityAnswer, Errno> {
    if room_bytes < digest.len() {
        return Err(Errno::OVERFLOW);
    }
    let head = [u16::from(algorithm.code()), digest.len() as u16].map(u16::to_ne_bytes).concat();
    let bytes = match by {
        AnswerBy::Kernel => [&head, digest].concat(),
        AnswerBy::Memory => memory.write(DIGEST_AT as u64, digest).map(|()| head)?,
    };
    Ok(VerityAnswer { result: 0, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(argument: &[u8]) -> CallerMemory {
        CallerMemory { pid: std::process::id(), address: argument.as_ptr() as u64 }
    }

    fn argument(words: [u32; 4], salt: &[u8], signature: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend((salt.as_ptr() as u64).to_ne_bytes());
        bytes.extend([signature.len() as u32, 0].map(u32::to_ne_bytes).concat());
        bytes.extend((signature.as_ptr() as u64).to_ne_bytes());
        bytes.resize(ENABLE_BYTES, 0);
        bytes
    }

    #[test]
    fn salt_and_signature_follow_the_argument_or_stand_in_the_memory_of_the_caller() {
        let (salt, signature) = (*b"some salt", *b"some signature");
        let alone = argument([1, 2, 1024, 9], &salt, &signature);
        let sent = [&alone[..], &salt, &signature].concat();
        let parameters =
            Parameters { algorithm: HashAlgorithm::Sha512, log_block_bytes: 10, salt: salt.to_vec() };
        let wanted = Ok(Some(VerityRequest::Enable(parameters, signature.to_vec())));
        let nowhere = CallerMemory { pid: 0, address: 0 };
        assert_eq!(VerityRequest::parse(ENABLE, &sent, nowhere), wanted);
        assert_eq!(VerityRequest::parse(ENABLE, &alone, memory(&alone)), wanted);
        assert!(VerityRequest::accesses_memory(ENABLE, &alone));
        assert!(!VerityRequest::accesses_memory(ENABLE, &sent));
        let bare = argument([1, 1, 4096, 0], b"", b"");
        assert!(!VerityRequest::accesses_memory(ENABLE, &bare));
        assert!(VerityRequest::parse(ENABLE, &bare, nowhere).is_ok());
        let cases = [
            (0, 2, Errno::INVAL),
            (4, 3, Errno::NOPKG),
            (8, 5, Errno::INVAL),
            (12, 33, Errno::MSGSIZE),
            (26, 1, Errno::MSGSIZE),
            (28, 1, Errno::INVAL),
            (127, 1, Errno::INVAL),
        ];
        for (at, byte, errno) in cases {
            let mut wrong = sent.clone();
            wrong[at] = byte;
            assert_eq!(VerityRequest::parse(ENABLE, &wrong, nowhere), Err(errno), "byte {at}");
        }
        let cut = VerityRequest::parse(ENABLE, &sent[..sent.len() - 1], nowhere);
        assert_eq!(cut, Err(Errno::INVAL), "a part is missing");
    }

    #[test]
    fn digests_go_through_the_kernel_or_to_the_memory_of_the_caller() {
        let room = [&[0, 0][..], &32_u16.to_ne_bytes(), &[0; 32]].concat();
        let digest = [7; 32];
        let measure = |data: &[u8]| match VerityRequest::parse(MEASURE, data, memory(&room)) {
            Ok(Some(VerityRequest::Measure { room_bytes, by })) => {
                give_digest(HashAlgorithm::Sha256, &digest, room_bytes, by, memory(&room))
            }
            other => panic!("{other:?}"),
        };
        let whole = measure(&room).expect("room").bytes;
        assert_eq!(
            (&whole[..4], &whole[4..]),
            ([1_u16, 32].map(u16::to_ne_bytes).concat().as_slice(), &digest[..])
        );
        assert_eq!(room[4..], [0; 32], "nothing was written yet");
        assert!(VerityRequest::accesses_memory(MEASURE, &room[..4]));
        assert!(VerityRequest::accesses_memory(MEASURE, &room[..room.len() - 1]));
        assert!(!VerityRequest::accesses_memory(MEASURE, &room));
        assert_eq!(measure(&room[..4]).expect("room").bytes, whole[..4]);
        assert_eq!(room[4..], digest);
        let little = [&[0, 0][..], &31_u16.to_ne_bytes()].concat();
        assert_eq!(measure(&little), Err(Errno::OVERFLOW));
    }

    #[test]
    fn impossible_ranges_of_metadata_are_refused() {
        let argument = |words: [u64; 5]| words.map(u64::to_ne_bytes).concat();
        let nowhere = CallerMemory { pid: 0, address: 0 };
        let parse = |words| VerityRequest::parse(READ_METADATA, &argument(words), nowhere);
        let range = MetadataRange { of: Metadata::Tree, offset: 5, length: 6, buffer: 7 };
        assert_eq!(parse([1, 5, 6, 7, 0]), Ok(Some(VerityRequest::ReadMetadata(range))));
        for words in [[4, 0, 1, 7, 0], [1, 0, 1, 7, 1], [1, u64::MAX, 1, 7, 0]] {
            assert_eq!(parse(words), Err(Errno::INVAL), "{words:?}");
        }
    }
}
