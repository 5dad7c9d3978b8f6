//! Names of images: a file or device, and the part of it that is meant.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
};

use crate::{dm_verity, format::Format, metadata_key::MetadataKey};

/// Separates the name of a file or device from the name of a partition.
const MARK: u8 = b'#';

/// A part of the disk or part that the name in front of it denotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The partition of this number, name or PARTUUID.
    Partition(String),
    /// A range of bytes, to the end if it has no length.
    Range {
        /// First byte.
        offset_bytes: u64,
        /// Length in bytes.
        length_bytes: Option<u64>,
    },
}

/// The name of an image: `disk.img`, `/dev/sda`, `disk.img#2`, `disk.img#data`; and the format of the file, if the caller
/// knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    parts: Vec<Part>,
    format: Option<Format>,
    backing: Option<PathBuf>,
    hashes: Option<dm_verity::Request>,
    metadata_key: Option<MetadataKey>,
}

impl Source {
    /// Parses a name. An existing file whose own name contains `#` is that file. Otherwise the partitions follow the
    /// longest part in front of a `#` that exists.
    pub fn parse(text: impl AsRef<OsStr>) -> Source {
        let text = text.as_ref();
        let source = |path: PathBuf, parts: Vec<Part>| Source {
            path,
            parts,
            format: None,
            backing: None,
            hashes: None,
            metadata_key: None,
        };
        let whole = || source(text.into(), Vec::new());
        if Path::new(text).exists() {
            return whole();
        }
        let bytes = text.as_encoded_bytes();
        let marks = (0..bytes.len()).rev().filter(|at| bytes[*at] == MARK);
        let mut split = marks.map(|at| (prefix(bytes, at), &bytes[at + 1..]));
        let found = split.find(|(path, _)| path.exists()).or_else(|| split_uri(bytes));
        let Some((path, rest)) = found else { return whole() };
        let parts = rest.split(|byte| *byte == MARK).map(|part| String::from_utf8_lossy(part).into_owned());
        source(path, parts.map(Part::Partition).collect())
    }

    /// Narrows the image to a range of its bytes, to the end if it has no length.
    pub fn range(mut self, offset_bytes: u64, length_bytes: Option<u64>) -> Source {
        self.parts.push(Part::Range { offset_bytes, length_bytes });
        self
    }

    /// Returns the URI of the NBD export, if the name is one and not that of a file. Files that exist take precedence.
    ///
    /// # Errors
    /// [`std::io::ErrorKind::InvalidInput`] if the rest of the URI is wrong.
    #[cfg(unix)]
    pub fn uri(&self) -> std::io::Result<Option<block::nbd::Uri>> {
        let bytes = self.path.as_os_str().as_encoded_bytes();
        if !block::nbd::Uri::is_at(bytes) || self.path.exists() {
            return Ok(None);
        }
        String::from_utf8_lossy(bytes).parse().map(Some)
    }

    /// Returns true if the name is the URI of an NBD export and not that of a file.
    pub fn is_served(&self) -> bool {
        #[cfg(unix)]
        return !matches!(self.uri(), Ok(None));
        #[cfg(not(unix))]
        return false;
    }

    /// Sets the format of the file, whatever its first bytes are.
    #[must_use]
    pub fn with_format(self, format: Format) -> Source {
        Source { format: Some(format), ..self }
    }

    /// Sets the backing file, in place of the one that the image names.
    #[must_use]
    pub fn with_backing(self, path: PathBuf) -> Source {
        Source { backing: Some(path), ..self }
    }

    /// Sets the hash tree of dm-verity by which the image, or the part of it, is checked while it is read. It is then never
    /// written.
    #[must_use]
    pub fn with_hashes(self, hashes: dm_verity::Request) -> Source {
        Source { hashes: Some(hashes), ..self }
    }

    /// Returns the hash tree by which the image is checked, if there is one.
    pub fn hashes(&self) -> Option<&dm_verity::Request> {
        self.hashes.as_ref()
    }

    /// Sets the key with which the image, or the part of it, is decrypted while it is read. It is then never written.
    #[must_use]
    pub fn with_metadata_key(self, key: MetadataKey) -> Source {
        Source { metadata_key: Some(key), ..self }
    }

    /// Returns the key with which the image is decrypted, if there is one.
    pub fn metadata_key(&self) -> Option<&MetadataKey> {
        self.metadata_key.as_ref()
    }

    /// Returns the reason for which the image is only read, if there is one: a hash tree, or metadata encryption.
    pub fn read_only_reason(&self) -> Option<&'static str> {
        match (&self.hashes, &self.metadata_key) {
            (Some(_), _) => Some("an image that is checked by a hash tree (--root-hash) is only read"),
            (_, Some(_)) => Some("an image with metadata encryption (--metadata-key) is only read"),
            (None, None) => None,
        }
    }

    /// Returns the format of the file, if the caller has named it.
    pub fn format(&self) -> Option<Format> {
        self.format
    }

    /// Returns the backing file, if the caller has named it.
    pub fn backing(&self) -> Option<&Path> {
        self.backing.as_deref()
    }

    /// Returns the file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the same part of another file or device, or of the same one by another name.
    pub fn with_path(&self, path: PathBuf) -> Source {
        Source { path, ..self.clone() }
    }

    /// Returns the parts, from the outermost one.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns true if the image is a part of the file or device.
    pub fn is_part(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns the name, which [`parse`](Self::parse) understands. Ranges are left out.
    pub fn name(&self) -> OsString {
        let mut name = self.path.clone().into_os_string();
        for part in &self.parts {
            if let Part::Partition(selector) = part {
                name.push("#");
                name.push(selector);
            }
        }
        name
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Path::new(&self.name()).display())
    }
}

/// Returns true for a text that begins as the URI of an NBD export. On systems without Unix sockets no text does.
#[must_use]
pub fn is_uri(text: &[u8]) -> bool {
    #[cfg(unix)]
    return block::nbd::Uri::is_at(text);
    #[cfg(not(unix))]
    return {
        let _ = text;
        false
    };
}

/// Splits the URI of an export from the partitions behind its first `#`.
fn split_uri(bytes: &[u8]) -> Option<(PathBuf, &[u8])> {
    let at = bytes.iter().position(|byte| *byte == MARK).filter(|_| is_uri(bytes))?;
    Some((prefix(bytes, at), &bytes[at + 1..]))
}

/// Returns the path before a `#`.
fn prefix(bytes: &[u8], at: usize) -> PathBuf {
    #[cfg(unix)]
    return OsString::from(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&bytes[..at])).into();
    #[cfg(not(unix))]
    return String::from_utf8_lossy(&bytes[..at]).into_owned().into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_follow_the_longest_name_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["disk", "a#2", "b", "b#1"] {
            std::fs::write(at(name), "").unwrap();
        }
        let parse = |name: &str| {
            let source = Source::parse(at(name));
            let parts = source.parts().iter().map(|part| match part {
                Part::Partition(selector) => selector.clone(),
                Part::Range { .. } => panic!("a range"),
            });
            let parts: Vec<String> = parts.collect();
            assert_eq!(source.name(), at(name).into_os_string());
            (source.path().file_name().unwrap().to_str().unwrap().to_owned(), parts.join("|"))
        };
        for (name, path, parts) in [
            ("disk", "disk", ""),
            ("disk#2", "disk", "2"),
            ("disk#super#system_a", "disk", "super|system_a"),
            ("a#2", "a#2", ""),
            ("a#2#3", "a#2", "3"),
            ("b#1#x", "b#1", "x"),
            ("b#2", "b", "2"),
            ("none#2", "none#2", ""),
        ] {
            assert_eq!(parse(name), (path.to_owned(), parts.to_owned()), "{name}");
        }
        let range = Source::parse(at("disk#2")).range(512, None);
        assert_eq!(range.parts()[1], Part::Range { offset_bytes: 512, length_bytes: None });
    }
}
