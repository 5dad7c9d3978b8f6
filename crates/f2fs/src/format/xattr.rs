//! Extended attributes: one stream of entries, in the inode and, if it is longer, in one more node.
//!
//! The inline area and the node's payload, one after the other, hold a header of 24 bytes and entries, each
//! padded to 4 bytes, up to a word of zeroes or the end. An area that has never held an attribute is all
//! zeroes. Entries behind a header of zeroes count, as in Linux, which writes the header with the next change. (Linux,
//! `read_all_xattrs`, `list_for_each_xattr`.)

use crate::{Error, Place, Result};

/// First word of the header.
pub const MAGIC: u32 = 0xF2F5_2011;
/// Bytes of the header: magic, reference count (1), four unused words.
pub const HEADER_BYTES: usize = 24;
/// Bytes of an entry before its name: index, length of the name, length of the value.
pub const ENTRY_HEAD_BYTES: usize = 4;
/// Maximum length of a name in bytes, without the prefix that the index stands for.
pub const NAME_MAX: usize = 255;

/// Stored name of the context of an encrypted inode, with the index [`ENCRYPTION`](index::ENCRYPTION).
pub const ENCRYPTION_NAME: &[u8] = b"c";

/// Name space of an entry, by its index.
pub mod index {
    /// `user.*`
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`, in the form of [`acl`](crate::format::acl)
    pub const ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`, in the form of [`acl`](crate::format::acl)
    pub const ACL_DEFAULT: u8 = 3;
    /// `trusted.*`
    pub const TRUSTED: u8 = 4;
    /// `security.*`
    pub const SECURITY: u8 = 6;
    /// The context of an encrypted inode, name `c`; not shown.
    pub const ENCRYPTION: u8 = 9;
    /// The descriptor's position in a sealed file, name `v`; not shown.
    pub const VERITY: u8 = 11;
}

/// Prefixes of the names that programs see, by index. The ACLs' names are whole.
const PREFIXES: [(u8, &[u8]); 5] = [
    (index::USER, b"user."),
    (index::TRUSTED, b"trusted."),
    (index::SECURITY, b"security."),
    (index::ACL_ACCESS, b"system.posix_acl_access"),
    (index::ACL_DEFAULT, b"system.posix_acl_default"),
];

/// One attribute as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name space of the name, see [`index`].
    pub index: u8,
    /// Name without the prefix; empty for ACLs.
    pub name: &'a [u8],
    /// Value.
    pub value: &'a [u8],
}

impl Entry<'_> {
    /// Returns the full name as programs see it. `None` for entries hidden from programs: encryption context,
    /// verity, unknown indexes, and invalid names (an empty one after a prefix, or one with a zero byte).
    #[must_use]
    pub fn full_name(&self) -> Option<Vec<u8>> {
        let (_, prefix) = PREFIXES.iter().find(|(index, _)| *index == self.index)?;
        let whole = !prefix.ends_with(b".");
        if whole != self.name.is_empty() || self.name.contains(&0) {
            return None;
        }
        Some([*prefix, self.name].concat())
    }

    /// Bytes that the entry takes in the stream.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        (ENTRY_HEAD_BYTES + self.name.len() + self.value.len()).next_multiple_of(4)
    }
}

/// Returns the index and the stored name of a name that programs use. `None` if F2FS cannot store it.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|(index, prefix)| {
        let name = full.strip_prefix(*prefix)?;
        let whole = !prefix.ends_with(b".");
        (whole == name.is_empty() && name.len() <= NAME_MAX && !name.contains(&0)).then_some((*index, name))
    })
}

/// Iterates over the entries of a stream, in order. An entry that reaches past the end is an error and ends
/// the iteration.
///
/// # Errors
/// [`Error::Corrupt`] at `at` if the header of the stream is wrong.
pub fn entries(stream: &[u8], at: Place) -> Result<Entries<'_>> {
    let magic = stream.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    match magic {
        MAGIC | 0 if stream.len() >= HEADER_BYTES => Ok(Entries { rest: &stream[HEADER_BYTES..], at }),
        0 => Ok(Entries { rest: &[], at }),
        _ => Err(Error::corrupt(at, format!("header {magic:#010x} in {} bytes", stream.len()))),
    }
}

/// Returns the header of a stream.
#[must_use]
pub fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..8].copy_from_slice(&1u32.to_le_bytes());
    header
}

/// Encodes a stream of entries: header and entries, without the zeroes after them. Empty if there are no
/// entries.
///
/// # Panics
/// If a name or value is too long for its length field: a bug of the caller, which must check anyway that the
/// stream fits.
pub fn build<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Vec<u8> {
    let mut stream = Vec::new();
    for entry in entries {
        if stream.is_empty() {
            stream.extend_from_slice(&header());
        }
        let name_bytes = u8::try_from(entry.name.len()).expect("the caller bounds names");
        let value_bytes = u16::try_from(entry.value.len()).expect("the caller bounds values");
        let end = stream.len() + entry.stored_bytes();
        stream.extend_from_slice(&[entry.index, name_bytes]);
        stream.extend_from_slice(&value_bytes.to_le_bytes());
        stream.extend_from_slice(entry.name);
        stream.extend_from_slice(entry.value);
        stream.resize(end, 0);
    }
    stream
}

/// Iterator over the entries of a stream; see [`entries`].
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    rest: &'a [u8],
    at: Place,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (head, body) = self.rest.split_first_chunk::<ENTRY_HEAD_BYTES>()?;
        let [index, name_bytes, low, high] = *head;
        if *head == [0; ENTRY_HEAD_BYTES] {
            self.rest = &[];
            return None;
        }
        let (name_bytes, value_bytes) =
            (usize::from(name_bytes), usize::from(u16::from_le_bytes([low, high])));
        if name_bytes + value_bytes > body.len() {
            let left = self.rest.len();
            self.rest = &[];
            return Some(Err(Error::corrupt(
                self.at,
                format!(
                    "an entry with a name of {name_bytes} and a value of {value_bytes} bytes in the last {left}"
                ),
            )));
        }
        let entry =
            Entry { index, name: &body[..name_bytes], value: &body[name_bytes..name_bytes + value_bytes] };
        self.rest = self.rest.get(entry.stored_bytes()..).unwrap_or(&[]);
        Some(Ok(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ino;

    const AT: Place = Place::Xattr(Ino(9));

    fn all(stream: &[u8]) -> Result<Vec<Entry<'_>>> {
        entries(stream, AT)?.collect()
    }

    #[test]
    fn a_stream_has_the_bytes_of_the_format_and_survives_a_round_trip() {
        let written = [
            Entry { index: index::USER, name: b"foo", value: b"value of it" },
            Entry { index: index::ACL_ACCESS, name: b"", value: &[1, 0, 0, 0] },
            Entry { index: index::SECURITY, name: b"selinux", value: b"" },
        ];
        let mut stream = build(written);
        assert_eq!(stream[..8], [0x11, 0x20, 0xF5, 0xF2, 1, 0, 0, 0]);
        assert_eq!(&stream[24..31], b"\x01\x03\x0B\x00foo");
        assert_eq!(stream.len(), 24 + 20 + 8 + 12);
        assert_eq!(all(&stream).unwrap(), written, "a stream may fill its place to the end");
        stream.resize(4096, 0);
        assert_eq!(all(&stream).unwrap(), written);
        assert_eq!(build([]), b"");
        assert_eq!(all(&[]).unwrap(), []);
        assert_eq!(all(&[0; 200]).unwrap(), []);
        stream[..HEADER_BYTES].fill(0);
        assert_eq!(all(&stream).unwrap(), written, "the entries count without the header");
    }

    #[test]
    fn names_have_prefixes() {
        let full = |index, name: &'static [u8]| Entry { index, name, value: b"" }.full_name();
        assert_eq!(full(1, b"a").unwrap(), b"user.a");
        assert_eq!(full(6, b"capability").unwrap(), b"security.capability");
        assert_eq!(full(3, b"").unwrap(), b"system.posix_acl_default");
        for (index, name) in
            [(9, &b"c"[..]), (11, b"v"), (2, b"x"), (1, b""), (1, b"a\0b"), (7, b"x"), (0, b"x")]
        {
            assert_eq!(full(index, name), None);
        }
        for name in [&b"user.a"[..], b"trusted.overlay.opaque", b"security.x", b"system.posix_acl_access"] {
            let (index, rest) = split_name(name).expect("has a place");
            assert_eq!(Entry { index, name: rest, value: b"" }.full_name().unwrap(), name);
        }
        for name in [&b"user."[..], b"system.posix_acl_accessx", b"system.advise", b"os2.x", b"user.a\0b"] {
            assert_eq!(split_name(name), None);
        }
    }

    #[test]
    fn hostile_streams_are_errors() {
        let good = build([Entry { index: 1, name: b"foo", value: b"value" }]);
        let mut long_value = good.clone();
        long_value[26] = 9;
        assert!(all(&long_value).unwrap_err().to_string().contains("a value of 9 bytes in the last 12"));
        let mut long_name = good.clone();
        long_name[25] = 255;
        assert!(all(&long_name).is_err());
        let mut magic = good.clone();
        magic[0] = 0;
        assert!(all(&magic).unwrap_err().to_string().contains("header 0xf2f52000"));
        assert!(all(&good[..20]).is_err(), "the magic number without room for the header");
        assert!(all(&[0xFF; 4096]).is_err());
        assert_eq!(all(&good[..26]).unwrap(), [], "less than an entry's head is left");
    }
}
