//! Compressed clusters.

use std::io::{self, Read};

use super::{
    ImageFile,
    header::{Compression, Header},
};
use crate::bytes::invalid;

/// Place of a compressed cluster: its first byte and its length, rounded up to a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compressed {
    /// First byte in the file.
    pub at: u64,
    /// Length in bytes, at most.
    pub length: u64,
}

impl Compressed {
    /// Decodes an entry of an L2 table.
    pub fn of(entry: u64, header: &Header) -> Compressed {
        let bits = 62 - (header.cluster_bits - 8);
        let at = entry & ((1 << bits) - 1);
        let sectors = ((entry & ((1 << 62) - 1)) >> bits) + 1;
        Compressed { at, length: sectors * 512 - at % 512 }
    }

    /// Returns the clusters of the file that the data touches.
    pub fn clusters(&self, header: &Header) -> std::ops::RangeInclusive<u64> {
        self.at >> header.cluster_bits..=(self.at + self.length - 1) >> header.cluster_bits
    }

    /// Returns the content of the cluster.
    pub fn read(&self, file: &dyn ImageFile, header: &Header) -> io::Result<Vec<u8>> {
        let damaged = || invalid(format!("qcow2: the compressed cluster at byte {} is damaged", self.at));
        let rest = file.geometry().size_bytes.checked_sub(self.at).ok_or_else(damaged)?;
        // The file may end in the middle of the last sector.
        let mut packed = vec![0; self.length.min(rest) as usize];
        file.read(self.at, &mut packed)?;
        let mut bytes = vec![0; header.cluster_bytes() as usize];
        let done = match header.compression {
            Compression::Deflate => flate2::read::DeflateDecoder::new(&packed[..]).read_exact(&mut bytes),
            Compression::Zstd => unpack_zstd(&packed, &mut bytes),
        };
        done.map_err(|_| damaged())?;
        Ok(bytes)
    }
}

#[cfg(unix)]
fn unpack_zstd(packed: &[u8], bytes: &mut [u8]) -> io::Result<()> {
    zstd::stream::read::Decoder::new(packed)?.single_frame().read_exact(bytes)
}

#[cfg(not(unix))]
fn unpack_zstd(_: &[u8], _: &mut [u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
