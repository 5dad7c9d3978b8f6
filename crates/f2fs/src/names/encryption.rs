//! Names in encrypted directories: decrypted if the key is at hand, or else in the form that Linux shows without it.

use std::{borrow::Cow, sync::Arc};

use fscrypt::FileCipher;

use super::{
    Names,
    dir::{STRICT, Wanted},
    hidden_name,
};
use crate::{
    Error, Place, Result,
    format::{
        NAME_MAX,
        casefold::fold,
        dentry::Dentry,
        hash::name_hash,
        inode::{advise, flag},
        node::NodeBlock,
    },
};

/// The form in which the names of a directory are shown.
#[derive(Clone)]
pub(super) enum Naming {
    /// As stored.
    Plain,
    /// Decrypted.
    Encrypted(Arc<FileCipher>),
    /// Encoded, because the key is not at hand.
    Hidden,
}

impl Naming {
    /// Returns a name as readers see it; `None` if it cannot be one.
    pub(super) fn shown(&self, entry: &Dentry<'_>) -> Option<Vec<u8>> {
        let is_plain = matches!(entry.name, b"." | b"..");
        let name = match self {
            Naming::Encrypted(cipher) if !is_plain => cipher.decrypt_name(entry.name)?,
            Naming::Hidden if !is_plain => hidden_name::encode(entry.name, entry.hash)?,
            _ => entry.name.to_vec(),
        };
        let is_valid = !name.iter().any(|byte| matches!(byte, b'/' | 0));
        (is_valid && (is_plain || !matches!(&*name, b"." | b".."))).then_some(name)
    }
}

impl Names {
    /// Returns the form in which the names of a directory are shown.
    pub(super) fn naming(&self, dir: &NodeBlock) -> Result<Naming> {
        if !dir.has_advise(advise::ENCRYPT) {
            return Ok(Naming::Plain);
        }
        Ok(self.files.cipher(dir)?.map_or(Naming::Hidden, Naming::Encrypted))
    }

    /// Returns the form in which an encrypted directory is searched for a name other than the dots.
    pub(super) fn wanted_encrypted<'a>(&self, dir: &NodeBlock, name: &'a [u8]) -> Result<Option<Wanted<'a>>> {
        let Naming::Encrypted(cipher) = self.naming(dir)? else {
            // A long name is shown by its start only, so the shown form never needs more than 255 bytes.
            return match hidden_name::hash_of(name) {
                Some(hash) => Ok(Some(Wanted::Hidden { hash, shown: name })),
                None if self.options().keys.is_empty() => Ok(None),
                None => Err(self.files.no_key(dir)),
            };
        };
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if !dir.has_flag(flag::CASEFOLD) {
            let stored = cipher.encrypt_name(name, NAME_MAX);
            return Ok(stored.map(|name| Wanted::Exact { hash: name_hash(&name), name: Cow::Owned(name) }));
        }
        let folded = match fold(name) {
            Some(folded) => folded,
            None if self.superblock().encoding_flags & STRICT != 0 => {
                return Err(Error::Invalid("the name is not valid UTF-8".into()));
            }
            None => name.to_vec(),
        };
        let hash = cipher.name_hash(&folded).ok_or_else(|| {
            let what = "a directory that folds case, with an encryption policy of version 1";
            Error::corrupt(Place::Inode(dir.ino()), what)
        })?;
        Ok(Some(Wanted::Folded { hash, folded, cipher: Some(cipher) }))
    }
}
