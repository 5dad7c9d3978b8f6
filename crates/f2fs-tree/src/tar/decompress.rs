//! Compressed archives and images, read. The compression follows from the first bytes.

use std::io::{BufRead, BufReader, Read};

use f2fs::{Error, Result};

/// Buffer size in bytes.
const BUFFER_BYTES: usize = 256 << 10;
/// Memory limit of the xz decoder in KiB. The largest preset needs 65 MiB.
const XZ_MEMORY_KIB: u32 = 128 << 10;

/// A format of compressed data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstd,
    Xz,
    Bzip2,
    Lzip,
}

impl Packing {
    /// Returns the format of a stream by its first bytes. A stream of zstd may begin with a skippable frame (RFC 8878,
    /// section 3.1.2).
    fn of(start: &[u8]) -> Option<Packing> {
        match start {
            [0x1F, 0x8B, 8, ..] => Some(Packing::Gzip),
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Some(Packing::Zstd),
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Some(Packing::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some(Packing::Bzip2),
            [b'L', b'Z', b'I', b'P', ..] => Some(Packing::Lzip),
            _ => None,
        }
    }
}

/// Returns true if a stream with these first bytes, at least six, is compressed. [`decompressed`] then decompresses or
/// refuses it.
pub fn is_compressed(start: &[u8]) -> bool {
    Packing::of(start).is_some()
}

/// Decompresses a stream. Its first bytes tell gzip, zstd, xz and uncompressed data apart. The decoder's
/// memory is bounded; a stream that needs more than 128 MiB fails.
///
/// # Errors
/// [`Error::Unsupported`] for bzip2 and lzip; those of reading the stream.
pub fn decompressed<'a>(stream: impl Read + Send + 'a) -> Result<Box<dyn Read + Send + 'a>> {
    let mut stream = BufReader::with_capacity(BUFFER_BYTES, stream);
    let failed = |source| Error::Host { path: "archive".into(), source };
    let start = stream.fill_buf().map_err(failed)?;
    let unsupported = |format: &str| Error::Unsupported(format!("data compressed with {format}").into());
    Ok(match Packing::of(start) {
        Some(Packing::Gzip) => Box::new(flate2::bufread::MultiGzDecoder::new(stream)),
        #[cfg(unix)]
        Some(Packing::Zstd) => Box::new(zstd::stream::read::Decoder::with_buffer(stream).map_err(failed)?),
        #[cfg(not(unix))]
        Some(Packing::Zstd) => return Err(unsupported("zstd, on this system")),
        Some(Packing::Xz) => {
            // One type for all streams, so that the program has one copy of the decoder.
            let stream: Box<dyn Read + Send + 'a> = Box::new(stream);
            Box::new(lzma_rust2::XzReader::new_mem_limit(stream, true, XZ_MEMORY_KIB))
        }
        Some(Packing::Bzip2) => return Err(unsupported("bzip2")),
        Some(Packing::Lzip) => return Err(unsupported("lzip")),
        None => Box::new(stream),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompressed(bytes).expect("a known format").read_to_end(&mut out).map(|_| out)
    }

    #[test]
    fn each_format_is_recognized_by_its_first_bytes() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
        xz.write_all(&text).unwrap();
        let xz = xz.finish().unwrap();
        // As pzstd writes it.
        let with_frame = [&[0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 1, 2, 3, 4], &zstd[..]].concat();
        assert!(!is_compressed(&text));
        for bytes in [&gzip, &zstd, &xz, &with_frame] {
            assert!(is_compressed(&bytes[..6]));
        }
        for bytes in [&text, &gzip, &zstd, &xz, &with_frame] {
            assert!(read(bytes).unwrap() == text);
            // Concatenated members form one stream.
            let twice = [&bytes[..], &bytes[..]].concat();
            assert!(read(&twice).unwrap() == [&text[..], &text[..]].concat());
        }
        for bytes in [&gzip, &zstd, &xz] {
            assert!(read(&bytes[..bytes.len() / 2]).is_err(), "cut off");
        }
        assert!(read(b"").unwrap().is_empty());
        assert!(decompressed(&b"BZh9"[..]).is_err() && is_compressed(b"BZh91A"));
    }
}
