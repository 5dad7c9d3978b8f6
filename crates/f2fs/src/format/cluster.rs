//! Compressed clusters: a header, then the compressed stream of a whole cluster.
//!
//! A cluster is stored compressed only if that saves at least one block. Its content is always the whole
//! cluster, with zeroes past the end of the file. (Linux, `f2fs_compress_pages`, `f2fs_decompress_cluster`.)

use zerocopy::{FromBytes, IntoBytes};

use super::{
    crc::f2fs_crc,
    inode::{Algorithm, Compression},
    lzo, zstd,
};
use crate::{Error, Place, Result};

/// Raw bytes.
pub mod raw {
    use std::mem::size_of;

    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U32};

    /// Start of a compressed cluster.
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(C)]
    pub struct ClusterHeader {
        /// Bytes of the stream that follows.
        pub length: U32,
        /// Checksum of the stream, if the file's settings ask for one.
        pub checksum: U32,
        /// Zero.
        pub reserved: [U32; 4],
    }

    const _: () = assert!(size_of::<ClusterHeader>() == 24);
}

const HEADER_BYTES: usize = size_of::<raw::ClusterHeader>();

/// Decompresses a cluster from its blocks `stored` into `content`, which must hold the whole cluster.
///
/// # Errors
/// [`Error::Corrupt`] at `at` if the stream is impossible, has another length, or has a wrong checksum.
pub fn decode(settings: &Compression, stored: &[u8], content: &mut [u8], at: Place) -> Result<()> {
    let bad = |what: String| Error::corrupt(at, what);
    let Ok((header, rest)) = raw::ClusterHeader::read_from_prefix(stored) else {
        return Err(bad("a compressed cluster without blocks".into()));
    };
    let length = header.length.get() as usize;
    let stream = rest
        .get(..length)
        .ok_or_else(|| bad(format!("a compressed stream of {length} bytes in {}", stored.len())))?;
    if settings.checksum {
        let (expected, computed) = (header.checksum.get(), f2fs_crc(stream));
        if expected != computed {
            return Err(bad(format!("cluster checksum {expected:#010x}, computed {computed:#010x}")));
        }
    }
    let wanted = content.len();
    let name = settings.algorithm.name();
    let got = match settings.algorithm {
        Algorithm::Lzo | Algorithm::LzoRle => {
            lzo::decompress(stream, content).map_err(|error| bad(format!("{name}: {error}")))?
        }
        Algorithm::Lz4 => lz4_flex::block::decompress_into(stream, content)
            .map_err(|error| bad(format!("{name}: {error}")))?,
        Algorithm::Zstd => {
            zstd::decompress(stream, content).map_err(|error| bad(format!("{name}: {error}")))?
        }
    };
    if got == wanted { Ok(()) } else { Err(bad(format!("{name}: {got} bytes instead of {wanted}"))) }
}

/// Compresses a whole cluster into whole blocks of `block_bytes`. `None` if that saves no block.
///
/// Both LZO algorithms are written as plain LZO, which readers of either accept. LZ4 has no levels here:
/// Linux's levels are LZ4HC, whose streams are also LZ4.
#[must_use]
pub(crate) fn encode(settings: &Compression, content: &[u8], block_bytes: usize) -> Option<Vec<u8>> {
    let stream = match settings.algorithm {
        Algorithm::Lzo | Algorithm::LzoRle => lzo::compress(content),
        Algorithm::Lz4 => lz4_flex::block::compress(content),
        // Linux's usual level (`F2FS_ZSTD_DEFAULT_CLEVEL`).
        Algorithm::Zstd => zstd::compress(content, i32::from(settings.level.max(1)))?,
    };
    if HEADER_BYTES + stream.len() > content.len().checked_sub(block_bytes)? {
        return None;
    }
    let header = raw::ClusterHeader {
        length: u32::try_from(stream.len()).expect("a cluster is a megabyte at most").into(),
        checksum: if settings.checksum { f2fs_crc(&stream) } else { 0 }.into(),
        reserved: Default::default(),
    };
    let mut stored = header.as_bytes().to_vec();
    stored.extend_from_slice(&stream);
    stored.resize(stored.len().next_multiple_of(block_bytes), 0);
    Some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ino;

    const AT: Place = Place::File(Ino(9), 4);
    const ALL: [Algorithm; 4] = [Algorithm::Lzo, Algorithm::Lz4, Algorithm::Zstd, Algorithm::LzoRle];

    fn settings(algorithm: Algorithm) -> Compression {
        Compression { algorithm, log_cluster_blocks: 2, checksum: true, level: 0 }
    }

    fn content() -> Vec<u8> {
        (0..16384u32).map(|n| ((n * n) >> 8) as u8 & 0x1F).collect()
    }

    #[test]
    fn clusters_survive_a_round_trip() {
        for algorithm in ALL {
            for content in [content(), vec![0; 16384]] {
                let stored = encode(&settings(algorithm), &content, 4096).expect("saves a block");
                assert!(stored.len() <= 3 * 4096 && stored.len() % 4096 == 0);
                let mut back = vec![0xEE; content.len()];
                decode(&settings(algorithm), &stored, &mut back, AT).unwrap();
                assert_eq!(back, content);
            }
        }
    }

    #[test]
    fn a_cluster_that_saves_no_block_stays_plain() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(16384)
        .collect();
        for algorithm in ALL {
            assert!(encode(&settings(algorithm), &noise, 4096).is_none(), "{}", algorithm.name());
        }
    }

    #[test]
    fn damage_is_an_error_with_its_place() {
        for algorithm in ALL {
            let stored = encode(&settings(algorithm), &content(), 4096).expect("saves a block");
            let complaint = |stored: &[u8], checksum: bool, length: usize| {
                let settings = Compression { checksum, ..settings(algorithm) };
                decode(&settings, stored, &mut vec![0; length], AT).expect_err("must be refused").to_string()
            };
            let mut long = stored.clone();
            long[2] = 0xFF;
            assert!(
                complaint(&long, true, 16384).starts_with("corrupt file 9, block 4: a compressed stream of")
            );
            let mut flipped = stored.clone();
            flipped[40] ^= 1;
            assert!(complaint(&flipped, true, 16384).contains("cluster checksum"));
            complaint(&stored, true, 16383);
            complaint(&stored, true, 16385);
            complaint(&[], true, 16384);
            // Without a checksum, damage may go unnoticed, but must do no harm.
            for at in 24..stored.len().min(600) {
                let mut flipped = stored.clone();
                flipped[at] ^= 0x55;
                let _ = decode(
                    &Compression { checksum: false, ..settings(algorithm) },
                    &flipped,
                    &mut [0; 16384],
                    AT,
                );
            }
        }
    }
}
