//! Records of tar's extended headers (POSIX pax): length, keyword and value.

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

/// Maximum length of the name of an owner or group in bytes (Linux, `LOGIN_NAME_MAX`).
const OWNER_BYTES_MAX: usize = 256;

/// Splits an extended header into its records, `LENGTH KEYWORD=VALUE\n`. LENGTH counts the whole record, so a
/// value may contain any byte. Returns None if the records are malformed.
pub fn records(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let blank = bytes.iter().take(20).position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
        let record = bytes.get(blank + 1..length)?;
        let (end, record) = record.split_last()?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        if *end != b'\n' {
            return None;
        }
        records.push((&record[..equals], &record[equals + 1..]));
        bytes = &bytes[length..];
    }
    Some(records)
}

/// Parses a time: seconds with an optional fraction, rounded down to nanoseconds.
pub fn time(value: &[u8]) -> Option<f2fs::units::Time> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let padded = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = padded.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    Some(match whole.starts_with('-') && nanoseconds > 0 {
        true => {
            f2fs::units::Time { seconds: seconds.checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds }
        }
        false => f2fs::units::Time { seconds, nanoseconds },
    })
}

/// Parses a decimal number.
pub fn decimal(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Reads the name of an owner or group: the inner `None` if it is empty, the outer one if it is too long.
pub fn owner(value: &[u8]) -> Option<Option<String>> {
    match value.len() {
        0 => Some(None),
        1..=OWNER_BYTES_MAX => Some(Some(String::from_utf8_lossy(value).into_owned())),
        _ => None,
    }
}

/// Escapes an attribute's name as GNU tar does, because an equals sign would end the keyword: `%` becomes
/// `%25`, `=` becomes `%3D`.
pub fn escaped(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'%' => out.extend(b"%25"),
            b'=' => out.extend(b"%3D"),
            byte => out.push(*byte),
        }
    }
    out
}

/// Undoes [`escaped`]. Any other `%` stands for itself, as star writes it.
pub fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let (byte, used) = match rest.get(..3) {
            Some(b"%25") => (b'%', 3),
            Some(b"%3D") => (b'=', 3),
            _ => (*first, rest.len() - after.len()),
        };
        out.push(byte);
        rest = &rest[used..];
    }
    out
}

/// Undoes the `%XX` escapes of libarchive's keywords.
pub fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

/// Decodes base64, with or without padding. Returns None if the text is not base64.
pub fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&alphabet::STANDARD, config).decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use f2fs::units::Time;

    #[test]
    fn values_may_hold_newlines_equals_signs_and_nuls() {
        let bytes = b"12 a=b=c\nd\0\n5 k=\n";
        let got = records(bytes).unwrap();
        assert_eq!(got, [(&b"a"[..], &b"b=c\nd\0"[..]), (b"k", b"")]);
    }

    #[test]
    fn malformed_records_are_none() {
        for bytes in
            [&b"x"[..], b"5 a=b", b"99 a=b\n", b"0 a=b\n", b"3 a\n", b"7 abcd\n", b"-6 a=b\n", b" a=b\n"]
        {
            assert_eq!(records(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn times_have_nanoseconds_and_may_be_negative() {
        for (text, seconds, nanoseconds) in [
            ("1700000000.123456789", 1_700_000_000, 123_456_789),
            ("12", 12, 0),
            ("12.5", 12, 500_000_000),
            ("0.1234567899", 0, 123_456_789),
            ("-1.25", -2, 750_000_000),
            ("-0.5", -1, 500_000_000),
        ] {
            assert_eq!(time(text.as_bytes()), Some(Time { seconds, nanoseconds }), "{text}");
        }
        assert_eq!(time(b"x"), None);
        assert_eq!(time(b"1.x"), None);
    }

    #[test]
    fn escaping_of_attributes_is_undone() {
        for (name, keyword) in [(&b"user.a=b"[..], &b"user.a%3Db"[..]), (b"user.%3D%", b"user.%253D%25")] {
            assert_eq!((&*escaped(name), &*unescaped(keyword)), (keyword, name));
        }
        assert_eq!(unescaped(b"user.%41%2"), b"user.%41%2");
    }

    #[test]
    fn libarchive_encodings_are_undone() {
        assert_eq!(percent_decoded(b"user.a%3Db%2"), b"user.a=b%2");
        assert_eq!(base64(b"aGVsbG8="), Some(b"hello".into()));
        assert_eq!(base64(b"aGVsbG8"), Some(b"hello".into()));
        assert_eq!(base64(b"a*"), None);
    }
}
