//! The 512-byte header of a tar member (ustar, GNU and older ones).

use std::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size in bytes of a header, and the unit of a tar stream.
pub const BLOCK_BYTES: usize = 512;

/// A header as it lies in the stream. A number is octal text, or big-endian binary if its first bit is set. A
/// text ends at a NUL or at the end of its field.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct TarHeader {
    /// Path.
    pub name: [u8; 100],
    /// Permissions.
    pub mode: [u8; 8],
    /// Owner.
    pub uid: [u8; 8],
    /// Group.
    pub gid: [u8; 8],
    /// Bytes of data after the header, padded to whole blocks in the stream.
    pub size: [u8; 12],
    /// Seconds since 1970.
    pub mtime: [u8; 12],
    /// Sum of the header's bytes, with these eight counted as blanks.
    pub checksum: [u8; 8],
    /// Type of the member.
    pub type_flag: u8,
    /// Target of a link.
    pub link_name: [u8; 100],
    /// `ustar\0` and `00`, or `ustar  \0` for GNU.
    pub magic: [u8; 8],
    /// Name of the owner.
    pub user: [u8; 32],
    /// Name of the group.
    pub group: [u8; 32],
    /// Device number, major.
    pub major: [u8; 8],
    /// Device number, minor.
    pub minor: [u8; 8],
    /// ustar: the part of the path before `name`, without the slash between them. GNU: times and the map of a
    /// sparse file.
    pub tail: [u8; 155],
    /// Unused.
    pub padding: [u8; 12],
}

const _: () = assert!(size_of::<TarHeader>() == BLOCK_BYTES);

impl TarHeader {
    /// Returns true if the checksum is right. Some old writers summed signed bytes.
    pub fn checksum_holds(&self, bytes: &[u8; BLOCK_BYTES]) -> bool {
        let field = 148..156;
        let blanked =
            bytes.iter().enumerate().map(|(at, byte)| if field.contains(&at) { b' ' } else { *byte });
        let (unsigned, signed) =
            blanked.fold((0i64, 0i64), |(u, s), byte| (u + i64::from(byte), s + i64::from(byte as i8)));
        number(&self.checksum).is_some_and(|sum| sum == unsigned || sum == signed)
    }

    /// Returns true if the fields after `magic` are ustar's.
    pub fn is_ustar(&self) -> bool {
        self.magic.starts_with(b"ustar\0")
    }

    /// Returns true if the fields after `magic` are GNU's.
    pub fn is_gnu(&self) -> bool {
        self.magic.starts_with(b"ustar ")
    }

    /// Returns the complete path.
    pub fn path(&self) -> Vec<u8> {
        let name = text(&self.name);
        match text(&self.tail) {
            prefix if self.is_ustar() && !prefix.is_empty() => [prefix, name].join(&b'/'),
            _ => name.to_vec(),
        }
    }
}

/// Returns the content of a text field.
pub fn text(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}

/// Parses a numeric field. An empty field is 0. Returns None if it is not a number or does not fit.
pub fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        // A binary field is in two's complement. Its first bit only marks it as binary.
        let negative = first & 0x40 != 0;
        let start = if negative { i64::from(first) | !0xFF } else { i64::from(first & 0x3F) };
        return field[1..].iter().try_fold(start, |sum, byte| Some(sum.checked_mul(256)? | i64::from(*byte)));
    }
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0i64, |sum, digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, value) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"77777777777", Some(0o77777777777)),
            (b"\x80\0\0\0\0\0\0\x01\0\0\0\0", Some(1 << 32)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"12x4", None),
            (b"0000689\0", None),
            (b"", None),
        ] {
            assert_eq!(number(field), value, "{field:?}");
        }
    }
}
