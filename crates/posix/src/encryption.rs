//! The ioctls of fscrypt (Linux, `include/uapi/linux/fscrypt.h`): keys of a mounted volume, and policies.

use f2fs::{EncryptionPolicy, Key, KeyName};
use zeroize::Zeroizing;

use crate::{CallerMemory, Errno};

/// `FS_IOC_SET_ENCRYPTION_POLICY`, which is declared as if it returned its argument.
const SET_POLICY: u32 = 0x800C_6613;
/// `FS_IOC_GET_ENCRYPTION_POLICY`, which is declared as if it took what it returns.
const GET_POLICY: u32 = 0x400C_6615;
/// `FS_IOC_GET_ENCRYPTION_POLICY_EX`, declared with the first byte of the policy only.
const GET_POLICY_EX: u32 = 0xC009_6616;
const ADD_KEY: u32 = 0xC050_6617;
const REMOVE_KEY: u32 = 0xC040_6618;
const REMOVE_KEY_ALL_USERS: u32 = 0xC040_6619;
const GET_KEY_STATUS: u32 = 0xC080_661A;
const GET_NONCE: u32 = 0x8010_661B;

/// Bytes of `struct fscrypt_key_specifier`, with which the arguments on keys begin.
const SPECIFIER_BYTES: usize = 40;
/// Offset of the name in it.
const NAME_AT: usize = 8;
const BY_DESCRIPTOR: u32 = 1;
const BY_IDENTIFIER: u32 = 2;
/// Offset of the bytes of the key behind `struct fscrypt_add_key_arg`.
const RAW_AT: usize = 80;
/// Bytes of the longest policy (`struct fscrypt_policy_v2`).
const POLICY_BYTES_MAX: usize = 24;
/// Bytes of a policy of version 1.
const POLICY_V1_BYTES: usize = 12;
/// Offset of the policy in `struct fscrypt_get_policy_ex_arg`.
const POLICY_AT: u64 = 8;
/// Offset of the answer in `struct fscrypt_get_key_status_arg`.
const STATUS_AT: usize = 64;
/// Bytes of that argument.
const STATUS_BYTES: usize = 128;
/// Bytes of `struct fscrypt_remove_key_arg`.
const REMOVE_BYTES: usize = 64;

/// A parsed request.
#[derive(Debug)]
pub enum EncryptionRequest {
    /// Adds a key to those at hand.
    AddKey(Box<Key>, KeyName),
    /// Gives up the claim of the caller, or of all users, to a key.
    RemoveKey(KeyName, Claims),
    /// Asks for the state of a key.
    KeyStatus(KeyName),
    /// Makes an empty directory encrypted.
    SetPolicy(EncryptionPolicy),
    /// Asks for a policy of version 1.
    GetPolicy,
    /// Asks for a policy of any version, with room for so many bytes.
    GetPolicyEx(u64),
    /// Asks for the nonce of a file.
    GetNonce,
}

/// The claims that a removal of a key gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claims {
    /// That of the caller.
    Own,
    /// Those of all users.
    All,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyStatus {
    /// True if the key is at hand.
    pub is_present: bool,
    /// True if the caller has added it.
    pub is_own: bool,
    /// Number of users who have added it.
    pub users: u32,
}

/// The result of a removal of a key: what keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Nothing: the key is gone.
    Done,
    /// Files under it are open for writing.
    FilesBusy,
    /// Other users have added it, too.
    OtherUsers,
}

impl EncryptionRequest {
    /// Parses an ioctl number with its data and the memory of its caller. Returns `None` for another request.
    ///
    /// # Errors
    /// `EINVAL` for an impossible argument, `EOPNOTSUPP` for a key in the kernel's keyring or in hardware; those of
    /// [`CallerMemory::read`].
    pub fn parse(
        command: u32,
        data: &[u8],
        memory: CallerMemory,
    ) -> Result<Option<EncryptionRequest>, Errno> {
        use EncryptionRequest as Asked;
        Ok(Some(match command {
            ADD_KEY => add_key(data, memory)?,
            REMOVE_KEY => Asked::RemoveKey(key_name(data)?, Claims::Own),
            REMOVE_KEY_ALL_USERS => Asked::RemoveKey(key_name(data)?, Claims::All),
            GET_KEY_STATUS => Asked::KeyStatus(key_name(data)?),
            SET_POLICY => Asked::SetPolicy(policy(memory)?),
            GET_POLICY => Asked::GetPolicy,
            GET_POLICY_EX => {
                let room = data.first_chunk().ok_or(Errno::INVAL)?;
                Asked::GetPolicyEx(u64::from_ne_bytes(*room))
            }
            GET_NONCE => Asked::GetNonce,
            _ => return Ok(None),
        }))
    }

    /// Returns true if an ioctl with this number has a part of its argument in the memory of its caller.
    pub fn accesses_memory(command: u32) -> bool {
        matches!(command, ADD_KEY | SET_POLICY | GET_POLICY | GET_POLICY_EX)
    }

    /// Returns true if the request changes the volume.
    pub fn changes(&self) -> bool {
        matches!(self, EncryptionRequest::SetPolicy(_))
    }
}

fn word(data: &[u8], at: usize) -> Result<u32, Errno> {
    let bytes = data.get(at..at + 4).ok_or(Errno::INVAL)?;
    Ok(u32::from_ne_bytes(bytes.try_into().expect("4 bytes")))
}

/// Parses a `struct fscrypt_key_specifier`.
fn key_name(data: &[u8]) -> Result<KeyName, Errno> {
    let specifier = data.get(..SPECIFIER_BYTES).ok_or(Errno::INVAL)?;
    if word(specifier, 4)? != 0 {
        return Err(Errno::INVAL);
    }
    let name = &specifier[NAME_AT..];
    match word(specifier, 0)? {
        BY_DESCRIPTOR => Ok(KeyName::Descriptor(*name.first_chunk().expect("32 bytes"))),
        BY_IDENTIFIER => Ok(KeyName::Identifier(*name.first_chunk().expect("32 bytes"))),
        _ => Err(Errno::INVAL),
    }
}

fn add_key(data: &[u8], memory: CallerMemory) -> Result<EncryptionRequest, Errno> {
    let name = key_name(data)?;
    let (bytes, keyring_id) = (word(data, SPECIFIER_BYTES)?, word(data, SPECIFIER_BYTES + 4)?);
    let rest = data.get(SPECIFIER_BYTES + 8..RAW_AT).ok_or(Errno::INVAL)?;
    if keyring_id != 0 || rest.iter().any(|byte| *byte != 0) {
        // The kernel's keyring gives no keys to programs.
        return Err(Errno::OPNOTSUPP);
    }
    if bytes as usize > f2fs::KEY_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    let raw = Zeroizing::new(memory.read(RAW_AT as u64, bytes as usize)?);
    let key = Key::new(&raw).map_err(|_| Errno::INVAL)?;
    let name = match name {
        KeyName::Descriptor(_) => name,
        // The caller learns it from the answer.
        KeyName::Identifier(_) => KeyName::Identifier(key.identifier()),
    };
    // As in Linux, the key is not used by its other name.
    Ok(EncryptionRequest::AddKey(Box::new(key.used_by(&name)), name))
}

/// Reads the policy that the kernel does not send.
fn policy(memory: CallerMemory) -> Result<EncryptionPolicy, Errno> {
    let version = memory.read(0, 1)?[0];
    let bytes = if version == 0 { POLICY_V1_BYTES } else { POLICY_BYTES_MAX };
    EncryptionPolicy::from_program(&memory.read(0, bytes)?).map_err(|_| Errno::INVAL)
}

/// Encodes the answer to [`EncryptionRequest::AddKey`]: the argument without the key.
pub(crate) fn added(name: &KeyName) -> Vec<u8> {
    let mut bytes = specifier(name);
    bytes.resize(RAW_AT, 0);
    bytes
}

/// Encodes the answer to [`EncryptionRequest::RemoveKey`].
pub(crate) fn removed(name: &KeyName, removal: Removal) -> Vec<u8> {
    let flags: u32 = match removal {
        Removal::Done => 0,
        Removal::FilesBusy => 1,
        Removal::OtherUsers => 2,
    };
    let mut bytes = specifier(name);
    bytes.extend(flags.to_ne_bytes());
    bytes.resize(REMOVE_BYTES, 0);
    bytes
}

/// Encodes the answer to [`EncryptionRequest::KeyStatus`].
pub(crate) fn status(name: &KeyName, status: KeyStatus) -> Vec<u8> {
    let state: u32 = if status.is_present { 2 } else { 1 };
    let mut bytes = specifier(name);
    bytes.resize(STATUS_AT, 0);
    for word in [state, u32::from(status.is_own), status.users] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.resize(STATUS_BYTES, 0);
    bytes
}

/// Gives a policy of version 1 to the caller, whom the kernel gives nothing.
pub(crate) fn give_policy(policy: &EncryptionPolicy, memory: CallerMemory) -> Result<Vec<u8>, Errno> {
    match policy.key() {
        KeyName::Descriptor(_) => memory.write(0, &policy.to_program()).map(|()| Vec::new()),
        KeyName::Identifier(_) => Err(Errno::INVAL),
    }
}

/// Gives a policy to the caller, whom the kernel gives the size and the first byte.
pub(crate) fn give_policy_ex(
    policy: &EncryptionPolicy,
    room: u64,
    memory: CallerMemory,
) -> Result<Vec<u8>, Errno> {
    let bytes = policy.to_program();
    if room < bytes.len() as u64 {
        return Err(Errno::OVERFLOW);
    }
    memory.write(POLICY_AT, &bytes)?;
    Ok([&(bytes.len() as u64).to_ne_bytes()[..], &bytes[..1]].concat())
}

fn specifier(name: &KeyName) -> Vec<u8> {
    let (by, name): (u32, &[u8]) = match name {
        KeyName::Descriptor(name) => (BY_DESCRIPTOR, name),
        KeyName::Identifier(name) => (BY_IDENTIFIER, name),
    };
    let mut bytes = [&by.to_ne_bytes()[..], &[0; 4], name].concat();
    bytes.resize(SPECIFIER_BYTES, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(argument: &[u8]) -> CallerMemory {
        CallerMemory { pid: std::process::id(), address: argument.as_ptr() as u64 }
    }

    #[test]
    fn a_key_is_read_behind_the_argument_and_named_by_its_bytes() {
        let key = Key::new(&[7; 64]).expect("a key");
        let mut argument = specifier(&KeyName::Identifier([0; 16]));
        argument.extend(64_u32.to_ne_bytes());
        argument.resize(RAW_AT, 0);
        argument.extend([7; 64]);
        let asked = EncryptionRequest::parse(ADD_KEY, &argument[..RAW_AT], memory(&argument));
        let Ok(Some(EncryptionRequest::AddKey(added, name))) = asked else { panic!("{asked:?}") };
        assert_eq!((added.identifier(), name), (key.identifier(), KeyName::Identifier(key.identifier())));
        for (at, errno) in [(40, Errno::INVAL), (44, Errno::OPNOTSUPP), (4, Errno::INVAL), (0, Errno::INVAL)]
        {
            let mut wrong = argument.clone();
            wrong[at] = 0x45;
            let asked = EncryptionRequest::parse(ADD_KEY, &wrong[..RAW_AT], memory(&wrong));
            assert_eq!(asked.map(drop), Err(errno), "byte {at}");
        }
    }

    #[test]
    fn policies_are_read_and_given_in_the_memory_of_the_caller() {
        let argument = [&[2, 1, 4, 3, 0, 0, 0, 0][..], &[9; 16]].concat();
        let asked = EncryptionRequest::parse(SET_POLICY, &[], memory(&argument));
        let Ok(Some(EncryptionRequest::SetPolicy(policy))) = asked else { panic!("{asked:?}") };
        assert_eq!(policy.key(), KeyName::Identifier([9; 16]));
        let answer = vec![0; 8 + POLICY_BYTES_MAX];
        let told = give_policy_ex(&policy, 24, memory(&answer)).expect("room");
        assert_eq!((&told[..], &answer[8..]), (&[24, 0, 0, 0, 0, 0, 0, 0, 2][..], &argument[..]));
        assert_eq!(give_policy_ex(&policy, 23, memory(&answer)), Err(Errno::OVERFLOW));
        assert_eq!(give_policy(&policy, memory(&answer)), Err(Errno::INVAL));
    }

    #[test]
    fn answers_have_the_sizes_of_linux() {
        let name = KeyName::Descriptor([5; 8]);
        let told = status(&name, KeyStatus { is_present: true, is_own: true, users: 3 });
        assert_eq!((told.len(), &told[64..76]), (128, &[2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0][..]));
        let told = removed(&name, Removal::FilesBusy);
        assert_eq!((told.len(), told[40], &told[8..16]), (64, 1, &[5; 8][..]));
        assert_eq!(added(&name).len(), 80);
    }
}
