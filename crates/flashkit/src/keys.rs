//! Master keys of encrypted files and directories, as the command line names them.

// Only mounts, which Windows does not have, need all of it.
#![cfg_attr(windows, allow(dead_code))]

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Read,
    path::Path,
};

use anyhow::{Context, Result, bail};
use f2fs::{Key, Keyring, NONCE_SEED_BYTES, Nonces};
use image::MetadataKey;
use zeroize::Zeroizing;

use crate::render;

/// Hexadecimal digits of a descriptor.
const DESCRIPTOR_DIGITS: usize = 16;
/// Hexadecimal digits of the shortest and the longest key.
const KEY_DIGITS: std::ops::RangeInclusive<usize> = 32..=128;
/// Bytes of the longest line of [`to_lines`].
const LINE_BYTES_MAX: usize = DESCRIPTOR_DIGITS + 1 + *KEY_DIGITS.end() + 1;
/// Bytes of the most lines that [`from_lines`] reads: those of more than a thousand keys.
const LINES_BYTES_MAX: usize = 1 << 18;
/// Bytes that are read of a key file; more are no key.
const FILE_BYTES_MAX: u64 = 4096;

/// The share of hexadecimal digits, in percent, and the length of a name from which on it may be a mistyped key.
const MISTYPED_PERCENT: usize = 75;
const MISTYPED_LENGTH: usize = 16;

/// A key as it was read, and the descriptor that was given with it.
pub struct Given {
    descriptor: Option<[u8; 8]>,
    bytes: Zeroizing<Vec<u8>>,
}

impl Given {
    fn key(&self) -> Result<Key> {
        let key = Key::new(&self.bytes)?;
        Ok(match self.descriptor {
            Some(descriptor) => key.with_descriptor(descriptor),
            None => key,
        })
    }
}

/// Reads the keys that `--key` names.
pub fn keyring(names: &[OsString]) -> Result<Keyring> {
    ring(&given(names)?)
}

/// Returns the nonces of new encrypted files, from a random seed of the system. Early after the start of a machine this waits
/// for one.
pub fn nonces() -> Result<Nonces> {
    let mut seed = [0; NONCE_SEED_BYTES];
    getrandom::fill(&mut seed).context("random values of the system")?;
    Ok(Nonces::new(seed))
}

/// Reads the keys that `--key` names, each once: a pipe gives it only once.
pub fn given(names: &[OsString]) -> Result<Vec<Given>> {
    names.iter().map(|name| read_named(name)).collect()
}

fn read_named(name: &OsStr) -> Result<Given> {
    read(name).with_context(|| shown(name))
}

fn read(name: &OsStr) -> Result<Given> {
    let (start, rest) = split(name);
    let given = Given { descriptor: start.and_then(descriptor), bytes: plain_key(rest)? };
    given.key()?;
    Ok(given)
}

/// Reads a key of metadata encryption from a file.
pub fn metadata_key(file: &Path) -> Result<MetadataKey> {
    Ok(MetadataKey::new(&file_key(file)?)?)
}

/// Makes a keyring of keys.
pub fn ring(given: &[Given]) -> Result<Keyring> {
    let mut ring = Keyring::default();
    for given in given {
        ring.add(given.key()?);
    }
    Ok(ring)
}

/// Writes keys for [`from_lines`], so that they need not stand on a command line, which other users see.
pub fn to_lines(given: &[Given]) -> Zeroizing<String> {
    // Long enough, so that no part stays where a shorter one was.
    let mut lines = Zeroizing::new(String::with_capacity(given.len() * LINE_BYTES_MAX));
    for Given { descriptor, bytes } in given {
        *lines += &descriptor.map(|descriptor| render::hex(&descriptor) + ":").unwrap_or_default();
        *lines += &Zeroizing::new(render::hex(bytes));
        *lines += "\n";
    }
    lines
}

/// Reads keys that [`to_lines`] has written.
pub fn from_lines(lines: impl Read) -> Result<Vec<Given>> {
    // Long enough, so that no part stays where a shorter one was.
    let mut text = Zeroizing::new(String::with_capacity(LINES_BYTES_MAX));
    lines
        .take(LINES_BYTES_MAX as u64)
        .read_to_string(&mut text)
        .context("the keys of the calling process")?;
    text.lines().map(|line| read_named(line.as_ref())).collect()
}

/// Returns the name of a key for messages. A key on the command line is not repeated, nor what may be a mistyped one.
fn shown(name: &OsStr) -> String {
    let rest = split(name).1.as_encoded_bytes();
    let digits = rest.iter().filter(|byte| byte.is_ascii_hexdigit()).count();
    let is_mistyped = rest.len() >= MISTYPED_LENGTH
        && !rest.contains(&b'/')
        && 100 * digits >= MISTYPED_PERCENT * rest.len();
    if is_mistyped { "--key".into() } else { name.to_string_lossy().into_owned() }
}

/// Splits the descriptor from the name of a key, if there is one, with the colon behind it.
fn split(name: &OsStr) -> (Option<&str>, &OsStr) {
    let parts = name.to_str().and_then(|name| name.split_at_checked(DESCRIPTOR_DIGITS + 1));
    match parts.filter(|(start, _)| descriptor(start).is_some()) {
        Some((start, rest)) => (Some(start), OsStr::new(rest)),
        None => (None, name),
    }
}

/// The descriptor that hexadecimal digits and a colon stand for.
fn descriptor(start: &str) -> Option<[u8; 8]> {
    render::from_hex(start.strip_suffix(':')?.as_bytes())?.try_into().ok()
}

/// Reads the bytes of a key, without a descriptor.
fn plain_key(name: &OsStr) -> Result<Zeroizing<Vec<u8>>> {
    if let Some(bytes) = digits(name.as_encoded_bytes()) {
        return Ok(bytes);
    }
    file_key(Path::new(name))
}

/// Reads a key, or its digits, from a file.
fn file_key(file: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    File::open(file)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        bail!("not a key: the file has more than {FILE_BYTES_MAX} bytes");
    }
    Ok(digits(bytes.trim_ascii()).unwrap_or(bytes))
}

/// The bytes that a key stands for, if it is one in hexadecimal digits.
fn digits(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    KEY_DIGITS.contains(&text.len()).then(|| render::from_hex(text)).flatten().map(Zeroizing::new)
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
            assert_eq!(read(&name).unwrap().key().unwrap().identifier(), same);
        }
        let mut named = OsString::from("0011223344556677:");
        named.push(file("raw", &[0x5A; 64]));
        let named_again = named.clone();
        let named = read(&named).unwrap().key().unwrap();
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
            assert!(read(&bad).is_err(), "{bad:?}");
        }
        let told = format!("{:#}", keyring(&["5a".repeat(8).into(), "5b".repeat(16).into()]).unwrap_err());
        assert!(!told.contains("5b5b"), "{told}");
        let keys = given(&["5a".repeat(64).into(), named_again]).unwrap();
        let again = from_lines(to_lines(&keys).as_bytes()).unwrap();
        let same =
            |one: &Given, other: &Given| one.descriptor == other.descriptor && one.bytes == other.bytes;
        assert!(again.len() == 2 && keys.iter().zip(&again).all(|(one, other)| same(one, other)));
        let wrapped = format!("{:#}", keyring(&[file("long", &[1; 80])]).unwrap_err());
        assert!(wrapped.contains("wrapped by hardware"), "{wrapped}");
    }
}
