//! Master keys of encrypted files and directories, as the command line names them.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Read,
    path::Path,
};

use anyhow::{Context, Result, bail};
use f2fs::{Key, Keyring};

/// Hexadecimal digits of a descriptor.
const DESCRIPTOR_DIGITS: usize = 16;
/// Hexadecimal digits of the shortest and the longest key.
const KEY_DIGITS: std::ops::RangeInclusive<usize> = 32..=128;
/// Bytes that are read of a key file; more are no key.
const FILE_BYTES_MAX: u64 = 4096;

/// Reads the keys that `--key` names.
pub fn keyring(names: &[OsString]) -> Result<Keyring> {
    let mut ring = Keyring::default();
    for name in names {
        // A key on the command line is not repeated in a message.
        let shown = if is_digits(split(name).1) { "--key".into() } else { name.to_string_lossy() };
        ring.add(key(name).with_context(|| shown.into_owned())?);
    }
    Ok(ring)
}

/// Splits the descriptor from the name of a key, if there is one, with the colon behind it.
pub fn split(name: &OsStr) -> (Option<&str>, &OsStr) {
    let parts = name.to_str().and_then(|name| name.split_at_checked(DESCRIPTOR_DIGITS + 1));
    match parts.filter(|(start, _)| descriptor(start).is_some()) {
        Some((start, rest)) => (Some(start), OsStr::new(rest)),
        None => (None, name),
    }
}

/// The descriptor that hexadecimal digits and a colon stand for.
fn descriptor(start: &str) -> Option<[u8; 8]> {
    hex(start.strip_suffix(':')?.as_bytes())?.try_into().ok()
}

/// Returns true if the name of a key, without a descriptor, is the key itself in hexadecimal digits.
pub fn is_digits(name: &OsStr) -> bool {
    digits(name.as_encoded_bytes()).is_some()
}

fn key(name: &OsStr) -> Result<Key> {
    let (start, name) = split(name);
    let key = plain_key(name)?;
    Ok(match start.and_then(descriptor) {
        Some(descriptor) => key.with_descriptor(descriptor),
        None => key,
    })
}

fn plain_key(name: &OsStr) -> Result<Key> {
    if let Some(bytes) = digits(name.as_encoded_bytes()) {
        return Ok(Key::new(&bytes)?);
    }
    let mut bytes = Vec::new();
    File::open(Path::new(name))?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        bail!("not a key: the file has more than {FILE_BYTES_MAX} bytes");
    }
    let key = digits(bytes.trim_ascii()).unwrap_or(bytes);
    Ok(Key::new(&key)?)
}

/// The bytes that a key stands for, if it is one in hexadecimal digits.
fn digits(text: &[u8]) -> Option<Vec<u8>> {
    hex(text).filter(|_| KEY_DIGITS.contains(&text.len()))
}

fn hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    text.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_file_of_bytes_or_digits_or_the_digits() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path.into_os_string()
        };
        let same = Key::new(&[0x5A; 64]).unwrap().identifier();
        for name in [
            "5a".repeat(64).into(),
            file("raw", &[0x5A; 64]),
            file("hex", ("5A".repeat(64) + "\n").as_bytes()),
        ] {
            assert_eq!(key(&name).unwrap().identifier(), same);
        }
        let mut named = OsString::from("0011223344556677:");
        named.push(file("raw", &[0x5A; 64]));
        let named = key(&named).unwrap();
        assert_eq!(
            (named.descriptor(), named.identifier()),
            ([0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77], same)
        );
        for bad in [
            "5a".repeat(8).into(),
            "".into(),
            file("short", b"12"),
            file("long", &[1; 65]),
            file("huge", &[1; 5000]),
        ] {
            assert!(key(&bad).is_err(), "{bad:?}");
        }
        let told = format!("{:#}", keyring(&["5a".repeat(8).into(), "5b".repeat(16).into()]).unwrap_err());
        assert!(!told.contains("5b5b"), "{told}");
        let wrapped = format!("{:#}", keyring(&[file("long", &[1; 80])]).unwrap_err());
        assert!(wrapped.contains("wrapped by hardware"), "{wrapped}");
    }
}
