//! Compressed archives, written. The compression follows from the file's name. The counterpart of
//! [`decompressed`](super::decompressed).

use std::io::{self, Write};

use f2fs::{Error, Result};

/// xz preset; the default of xz itself.
const XZ_PRESET: u32 = 6;

/// Compression of a tar archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip.
    Gzip,
    /// xz.
    Xz,
    /// zstd.
    Zstd,
}

impl Compression {
    /// Returns the compression that a file's name implies, or None if the name is not an archive's.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the name is that of an archive that cannot be written.
    pub fn of_name(name: &[u8]) -> Result<Option<Compression>> {
        let name = name.to_ascii_lowercase();
        let ends = |ends: &[&[u8]]| ends.iter().any(|end| name.ends_with(end));
        Ok(if ends(&[b".tar"]) {
            Some(Compression::None)
        } else if ends(&[b".tar.gz", b".tgz"]) {
            Some(Compression::Gzip)
        } else if ends(&[b".tar.xz", b".txz"]) {
            Some(Compression::Xz)
        } else if ends(&[b".tar.zst", b".tzst"]) {
            Some(Compression::Zstd)
        } else if ends(&[
            b".tar.bz2",
            b".tbz",
            b".tbz2",
            b".tar.lz",
            b".tar.lzma",
            b".tlz",
            b".tar.lz4",
            b".tar.lzo",
            b".tar.z",
            b".taz",
            b".zip",
            b".cpio",
        ]) {
            return Err(Error::Unsupported(
                "archives of this kind; .tar, .tar.gz, .tar.xz and .tar.zst are written".into(),
            ));
        } else {
            None
        })
    }

    /// Starts to write to `stream`.
    ///
    /// # Errors
    /// Those of the stream; [`io::ErrorKind::Unsupported`] for zstd on systems other than Unix.
    pub fn begin<W: Write>(self, stream: W) -> io::Result<Compressed<W>> {
        Ok(match self {
            Compression::None => Compressed::Plain(stream),
            Compression::Gzip => {
                Compressed::Gzip(flate2::write::GzEncoder::new(stream, flate2::Compression::default()))
            }
            Compression::Xz => {
                let options = lzma_rust2::XzOptions::with_preset(XZ_PRESET);
                Compressed::Xz(Box::new(lzma_rust2::XzWriter::new(stream, options)?))
            }
            #[cfg(not(unix))]
            Compression::Zstd => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "zstd is not built for this system"));
            }
            #[cfg(unix)]
            Compression::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(stream, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                encoder.include_checksum(true)?;
                Compressed::Zstd(encoder)
            }
        })
    }
}

/// A compressing stream. Its output is complete only after [`finish`](Compressed::finish).
pub enum Compressed<W: Write> {
    /// Not compressed.
    Plain(W),
    /// gzip, without a file name and a time in the header.
    Gzip(flate2::write::GzEncoder<W>),
    /// xz.
    Xz(Box<lzma_rust2::XzWriter<W>>),
    /// zstd, with a checksum.
    #[cfg(unix)]
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> Compressed<W> {
    /// Writes the rest and returns the inner stream.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Compressed::Plain(stream) => Ok(stream),
            Compressed::Gzip(encoder) => encoder.finish(),
            Compressed::Xz(encoder) => encoder.finish(),
            #[cfg(unix)]
            Compressed::Zstd(encoder) => encoder.finish(),
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Compressed::Plain(stream) => stream,
            Compressed::Gzip(encoder) => encoder,
            Compressed::Xz(encoder) => encoder,
            #[cfg(unix)]
            Compressed::Zstd(encoder) => encoder,
        }
    }
}

impl<W: Write> Write for Compressed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::tar::decompressed;

    #[test]
    fn compressed_archives_are_read_back() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for name in ["a.tar", "b.tar.gz", "b.TGZ", "c.tar.xz", "c.txz", "d.tar.zst", "d.tzst"] {
            let how = Compression::of_name(name.as_bytes()).unwrap().unwrap();
            let mut stream = how.begin(Vec::new()).unwrap();
            stream.write_all(&text).unwrap();
            let bytes = stream.finish().unwrap();
            assert_eq!(bytes == text, how == Compression::None);
            let mut back = Vec::new();
            decompressed(&bytes[..]).unwrap().read_to_end(&mut back).unwrap();
            assert!(back == text, "{name}");
        }
        assert_eq!(Compression::of_name(b"photos.gz").unwrap(), None);
        assert!(Compression::of_name(b"a.tar.bz2").unwrap_err().to_string().contains(".tar.xz"));
    }
}
