//! zstd streams: by the C library on Unix, by a decoder in Rust elsewhere, so that the engine compiles for
//! Windows and for browsers without a C compiler.
//!
//! *Invariant*: Linux can decompress each stream that is written here. Its window must not exceed the cluster,
//! which the encoder in Rust does not ensure; without the C library clusters stay uncompressed.

/// Decompresses a stream into `content`. Returns the number of bytes decompressed.
///
/// # Errors
/// The stream is malformed, or is longer than `content`.
#[cfg(unix)]
pub(super) fn decompress(stream: &[u8], content: &mut [u8]) -> Result<usize, String> {
    ::zstd::bulk::decompress_to_buffer(stream, content).map_err(|error| error.to_string())
}

#[cfg(not(unix))]
pub(super) fn decompress(stream: &[u8], content: &mut [u8]) -> Result<usize, String> {
    ruzstd::decoding::FrameDecoder::new().decode_all(stream, content).map_err(|error| error.to_string())
}

/// Compresses `content`. `None` if this build cannot.
#[cfg(unix)]
pub(super) fn compress(content: &[u8], level: i32) -> Option<Vec<u8>> {
    ::zstd::bulk::compress(content, level).ok()
}

#[cfg(not(unix))]
pub(super) fn compress(_: &[u8], _: i32) -> Option<Vec<u8>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_decoders_give_the_content_or_refuse_a_short_buffer() {
        let content: Vec<u8> = (0..65_536u32).map(|n| ((n * n) >> 8) as u8 & 0x1F).collect();
        let stream = compress(&content, 3).expect("the C library is here");
        let mut short = vec![0; content.len() - 1];
        let mut whole = vec![0; content.len()];
        assert_eq!(decompress(&stream, &mut whole), Ok(content.len()));
        assert!(whole == content && decompress(&stream, &mut short).is_err());
        let mut rust = ruzstd::decoding::FrameDecoder::new();
        whole.fill(0);
        assert_eq!(rust.decode_all(&stream[..], &mut whole).expect("a whole stream"), content.len());
        assert!(whole == content && rust.decode_all(&stream[..], &mut short).is_err());
        for at in 0..stream.len().min(2000) {
            let mut damaged = stream.clone();
            damaged[at] ^= 0x55;
            // The result is any bytes or an error.
            let _ = ruzstd::decoding::FrameDecoder::new().decode_all(&damaged[..], &mut whole);
        }
    }
}
