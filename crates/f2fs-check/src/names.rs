//! Names in directories: their hash, and the form in which they are compared.

use f2fs::{
    format::{
        NAME_MAX,
        casefold::fold,
        hash::name_hash,
        inode::{advise, flag},
        node::NodeBlock,
    },
    printable,
};

/// Minimum length of an encrypted name in bytes.
pub const ENCRYPTED_NAME_MIN: usize = 16;
/// Lengths of encrypted names are multiples of it, apart from the largest one.
const ENCRYPTED_NAME_STEP: usize = 4;

/// Returns true for "." and "..".
pub fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Returns true if a name is none that fscrypt made (Linux, `fscrypt_fname_encrypted_size`): by its length, or because it
/// is text without control characters.
pub fn is_plain(name: &[u8]) -> bool {
    let has_length =
        name.len() >= ENCRYPTED_NAME_MIN && (name.len() % ENCRYPTED_NAME_STEP == 0 || name.len() == NAME_MAX);
    let is_text = || std::str::from_utf8(name).is_ok_and(|text| !text.chars().any(char::is_control));
    !has_length || is_text()
}

/// The hash with which an encrypted directory stores the name that an inode carries. `None` if the inode carries no encrypted
/// name, or if only the key tells the hash: it follows the name where the directory folds case, if there is space for it
/// (Linux, `init_dent_inode`).
pub fn encrypted_hash(naming: Naming, inode: &NodeBlock) -> Option<u32> {
    let name = inode.last_name();
    if !has_encrypted_name(inode) {
        return None;
    }
    match naming {
        Naming::Encrypted => Some(name_hash(name)),
        Naming::EncryptedFolded => {
            let hash = inode.head().name.get(name.len()..)?.first_chunk();
            hash.map(|hash| u32::from_le_bytes(*hash))
        }
        Naming::Plain | Naming::Folded => None,
    }
}

/// Returns true if an inode carries an encrypted name.
pub fn has_encrypted_name(inode: &NodeBlock) -> bool {
    inode.has_advise(advise::ENC_NAME) && !is_plain(inode.last_name())
}

/// Rules by which a directory hashes and compares names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By their bytes.
    Plain,
    /// By their folded form.
    Folded,
    /// By the bytes of the encrypted name.
    Encrypted,
    /// By the folded form of the plain name, which only the key tells.
    EncryptedFolded,
}

impl Naming {
    /// The naming of a directory.
    pub fn of(dir: &NodeBlock) -> Naming {
        match (dir.has_advise(advise::ENCRYPT), dir.has_flag(flag::CASEFOLD)) {
            (false, false) => Naming::Plain,
            (false, true) => Naming::Folded,
            (true, false) => Naming::Encrypted,
            (true, true) => Naming::EncryptedFolded,
        }
    }

    /// The naming of the directory with the other value of its flag.
    pub fn refolded(self) -> Naming {
        match self {
            Naming::Plain => Naming::Folded,
            Naming::Folded => Naming::Plain,
            Naming::Encrypted => Naming::EncryptedFolded,
            Naming::EncryptedFolded => Naming::Encrypted,
        }
    }

    /// Returns true for the namings of encrypted directories.
    pub fn is_encrypted(self) -> bool {
        matches!(self, Naming::Encrypted | Naming::EncryptedFolded)
    }

    /// The hash that a name must have; the stored one if that cannot be told.
    pub fn hash(self, name: &[u8], stored: u32) -> u32 {
        match self {
            Naming::Plain | Naming::Encrypted => name_hash(name),
            Naming::EncryptedFolded => stored,
            Naming::Folded => {
                let plain = name_hash(name);
                let folded = fold(name).map_or(plain, |folded| name_hash(&folded));
                // Versions of Linux fold some characters differently; a lookup finds the name by its bytes.
                if stored == plain && !name.is_ascii() { plain } else { folded }
            }
        }
    }

    /// The form in which names are compared.
    pub fn compared(self, name: &[u8]) -> Vec<u8> {
        match self {
            Naming::Folded => fold(name).unwrap_or_else(|| name.to_vec()),
            _ => name.to_vec(),
        }
    }

    /// Returns true if a name can be one: encrypted names have any bytes.
    pub fn is_possible(self, name: &[u8]) -> bool {
        match self {
            Naming::Plain | Naming::Folded => !name.iter().any(|byte| matches!(byte, b'/' | 0)),
            Naming::Encrypted | Naming::EncryptedFolded => true,
        }
    }

    /// The name as text for people.
    pub fn shown(self, name: &[u8]) -> String {
        format!("\"{}\"", printable::name(name))
    }
}
