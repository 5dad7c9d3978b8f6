//! Compressed archives, read. The compression follows from the first bytes.

use std::io::{BufRead, BufReader, Read};

use f2fs::{Error, Result};

/// Buffer size in bytes.
const BUFFER_BYTES: usize = 256 << 10;
/// Memory limit of the xz decoder in KiB. The largest preset needs 65 MiB.
const XZ_MEMORY_KIB: u32 = 128 << 10;

/// Decompresses a stream. Its first bytes tell gzip, zstd, xz and uncompressed data apart. The decoder's
/// memory is bounded; an archive that needs more than 128 MiB fails.
pub fn decompressed<'a>(stream: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    let mut stream = BufReader::with_capacity(BUFFER_BYTES, stream);
    let failed = |source| Error::Host { path: "archive".into(), source };
    let start = stream.fill_buf().map_err(failed)?;
    Ok(match start {
        [0x1F, 0x8B, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(stream)),
        #[cfg(unix)]
        [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => {
            Box::new(zstd::stream::read::Decoder::with_buffer(stream).map_err(failed)?)
        }
        [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => {
            Box::new(lzma_rust2::XzReader::new_mem_limit(stream, true, XZ_MEMORY_KIB))
        }
        #[cfg(not(unix))]
        [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => {
            return Err(Error::Unsupported("archives compressed with zstd, on this system".into()));
        }
        [b'B', b'Z', b'h', ..] => return Err(Error::Unsupported("archives compressed with bzip2".into())),
        [b'L', b'Z', b'I', b'P', ..] => {
            return Err(Error::Unsupported("archives compressed with lzip".into()));
        }
        _ => Box::new(stream),
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
        for bytes in [&text, &gzip, &zstd, &xz] {
            assert!(read(bytes).unwrap() == text);
            // Concatenated members form one stream.
            let twice = [&bytes[..], &bytes[..]].concat();
            assert!(read(&twice).unwrap() == [&text[..], &text[..]].concat());
        }
        for bytes in [&gzip, &zstd, &xz] {
            assert!(read(&bytes[..bytes.len() / 2]).is_err(), "cut off");
        }
        assert!(read(b"").unwrap().is_empty());
        assert!(decompressed(&b"BZh9"[..]).is_err());
    }
}
