//! Encodings that several answers share: directory entries, device numbers, extended attributes.

use rustix::io::Errno;

use crate::{
    abi::{Dirent, GetxattrOut, SETXATTR_ACL_KILL_SGID, SetxattrIn, SetxattrMoreIn},
    message::{Arguments, Output},
};

/// Returns the length of one encoded directory entry in bytes, including its padding.
#[must_use]
pub fn dirent_bytes(name: &[u8]) -> usize {
    (size_of::<Dirent>() + name.len()).next_multiple_of(8)
}

/// Appends a directory entry. `next` is the offset at which the listing continues after it; `kind` has the type
/// bits of a mode, shifted to the right by 12 (readdir(3)), or is 0 if the type is unknown.
pub fn put_dirent(output: &mut Output, ino: u64, next: u64, kind: u32, name: &[u8]) {
    output.put(&Dirent { ino, next, name_bytes: name.len() as u32, kind });
    output.extend(name);
    let padding = dirent_bytes(name) - size_of::<Dirent>() - name.len();
    output.extend(&[0; 8][..padding]);
}

/// Appends a value or a list of extended attributes, or only its length if the caller's buffer has `room` 0.
///
/// # Errors
/// ERANGE if it does not fit the buffer.
pub fn put_xattr(output: &mut Output, bytes: &[u8], room: u32) -> Result<(), Errno> {
    match room {
        0 => output.put(&GetxattrOut { size: bytes.len() as u32, padding: 0 }),
        room if bytes.len() <= room as usize => output.extend(bytes),
        _ => return Err(Errno::RANGE),
    }
    Ok(())
}

/// Splits a device number of the protocol, which has 32 bits (`new_decode_dev`), into major and minor number.
#[must_use]
pub fn decode_device(number: u32) -> (u32, u32) {
    (number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xF_FF00)
}

/// Makes a device number of the protocol (`new_encode_dev`). Higher bits are lost.
#[must_use]
pub fn encode_device((major, minor): (u32, u32)) -> u32 {
    minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12
}

/// Arguments of SETXATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// Name of the attribute.
    pub name: &'a [u8],
    /// Its new value.
    pub value: &'a [u8],
    /// Flags of setxattr(2).
    pub flags: u32,
    /// True if setting the ACL clears the set-group-id bit; `None` if the kernel does not say.
    pub clears_set_group_id: Option<bool>,
}

/// Form of the arguments of SETXATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattrForm {
    /// Only [`SetxattrIn`].
    Plain,
    /// [`SetxattrMoreIn`] follows it, with [`SETXATTR_EXT`](crate::abi::init_flags::SETXATTR_EXT).
    Extended,
}

impl<'a> SetXattr<'a> {
    /// Parses the arguments of SETXATTR.
    ///
    /// # Errors
    /// EINVAL if they are too short.
    pub fn parse(arguments: &mut Arguments<'a>, form: SetXattrForm) -> Result<SetXattr<'a>, Errno> {
        let SetxattrIn { size, flags } = arguments.take()?;
        let clears_set_group_id = match form {
            SetXattrForm::Plain => None,
            SetXattrForm::Extended => {
                let SetxattrMoreIn { setxattr_flags, .. } = arguments.take()?;
                Some(setxattr_flags & SETXATTR_ACL_KILL_SGID != 0)
            }
        };
        let (name, value) = (arguments.name()?, arguments.bytes(size)?);
        Ok(SetXattr { name, value, flags, clears_set_group_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_encoding_and_decoding() {
        for device in [(0, 0), (8, 1), (259, 70_000), (4095, (1 << 20) - 1)] {
            assert_eq!(decode_device(encode_device(device)), device);
        }
        assert_eq!(encode_device((8, 1)), 0x801);
    }

    #[test]
    fn directory_entries_are_padded_to_8_bytes() {
        for name in [&b"a"[..], b"12345678", b"a name that is longer"] {
            let mut output = Output::new(0);
            put_dirent(&mut output, 5, 9, 4, name);
            assert_eq!(output.bytes().len(), dirent_bytes(name));
            assert_eq!(output.bytes()[20], 4, "DT_DIR");
        }
    }

    #[test]
    fn both_forms_of_setxattr_are_parsed() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let rest = b"user.comment\0abc";
        let plain = [&words(&[3, 1])[..], rest].concat();
        let extended = [&words(&[3, 1, 1, 0])[..], rest].concat();
        let forms = [(plain, SetXattrForm::Plain, None), (extended, SetXattrForm::Extended, Some(true))];
        for (bytes, form, clears_set_group_id) in forms {
            let parsed = SetXattr::parse(&mut Arguments(&bytes), form).unwrap();
            let wanted = SetXattr { name: b"user.comment", value: b"abc", flags: 1, clears_set_group_id };
            assert_eq!(parsed, wanted);
        }
    }
}
