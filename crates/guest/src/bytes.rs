//! Bytes that are mostly text: file names, link targets, attribute values.

use std::{
    ffi::OsStr,
    fmt::{self, Write as _},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A byte string. In JSON it is a string: valid UTF-8 stands for itself, except that a backslash, control
/// characters and every byte that is not UTF-8 are written `\xNN` (two lower-case hexadecimal digits).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Returns the bytes as a path.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Parses the written form; `None` if a backslash does not start `\xNN`.
    pub fn parse(text: &str) -> Option<Bytes> {
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            out.extend_from_slice(&rest.as_bytes()[..at]);
            let digits = rest[at..].strip_prefix("\\x")?.get(..2)?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[at + 4..];
        }
        out.extend_from_slice(rest.as_bytes());
        Some(Bytes(out))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c == '\\' || c.is_control() {
                    let mut buf = [0; 4];
                    c.encode_utf8(&mut buf).bytes().try_for_each(|b| write!(f, "\\x{b:02x}"))?;
                } else {
                    f.write_char(c)?;
                }
            }
            chunk.invalid().iter().try_for_each(|b| write!(f, "\\x{b:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Bytes {
        Bytes(text.as_bytes().to_vec())
    }
}

impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        Bytes(text.into_bytes())
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        Bytes(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(bytes)
    }
}

impl From<&Path> for Bytes {
    fn from(path: &Path) -> Bytes {
        Bytes(path.as_os_str().as_bytes().to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        Bytes::parse(&text).ok_or_else(|| de::Error::custom(format!("not an escaped byte string: {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).chain("grün\\x41".bytes()).collect();
        let written = Bytes(all.clone()).to_string();
        assert_eq!(Bytes::parse(&written), Some(Bytes(all)));
        assert_eq!(Bytes::from("grün \\ \n").to_string(), "grün \\x5c \\x0a");
    }

    #[test]
    fn bad_escapes_are_refused() {
        for text in ["\\", "\\x", "\\x4", "\\y41", "\\xgg", "\\xé"] {
            assert_eq!(Bytes::parse(text), None, "{text}");
        }
    }
}
