//! Names in encrypted directories: decrypted if the key is at hand, or else in the form that Linux shows without it.

use std::{borrow::Cow, sync::Arc};

use fscrypt::FileCipher;

use super::{
    Names,
    dir::{Found, NameHash, Wanted},
    hidden_name,
};
use crate::{
    Error, Place, Result,
    format::{
        NAME_MAX,
        casefold::fold,
        dentry::{Dentries, Dentry},
        hash::name_hash,
        inode::{advise, flag, inline},
        node::NodeBlock,
    },
    units::Ino,
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

    /// Returns the hash by which a search looks for a name of a directory. The hash that is stored with it may differ, and
    /// is returned if that of the name is not known.
    pub(super) fn hash(&self, dir: &NodeBlock, entry: &Dentry<'_>) -> u32 {
        match self {
            Naming::Encrypted(cipher) if !matches!(entry.name, b"." | b"..") => {
                let name = cipher.decrypt_name(entry.name);
                let folded = name.map(|name| fold(&name).unwrap_or(name));
                folded.and_then(|folded| cipher.name_hash(&folded)).unwrap_or(entry.hash)
            }
            _ => NameHash::of(dir).hash(entry.hash, entry.name),
        }
    }
}

impl Names {
    /// Returns the name of an entry as it is stored: encrypted in an encrypted directory, and as it was entered in one that
    /// folds case.
    pub(super) fn stored_name(&self, dir: Ino, found: &Found) -> Result<Vec<u8>> {
        let (inode, at) = (self.directory(dir)?, Place::Dir(dir, found.block));
        let name_in = |area: &[u8]| -> Result<Vec<u8>> {
            let area = Dentries::new(area, at);
            let entry = area.entries_from(found.slot).next().transpose()?;
            Ok(entry.map(|entry| entry.name.to_vec()).unwrap_or_default())
        };
        match inode.has_inline(inline::DENTRY) {
            true => name_in(inode.inline_area()),
            false => {
                self.files.file_block(&inode, found.block)?.map_or(Ok(Vec::new()), |area| name_in(&area))
            }
        }
    }

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
        let folded = self.folded(name)?.unwrap_or_else(|| name.to_vec());
        let hash = cipher.name_hash(&folded).ok_or_else(|| {
            let what = "a directory that folds case, with an encryption policy of version 1";
            Error::corrupt(Place::Inode(dir.ino()), what)
        })?;
        Ok(Some(Wanted::Folded { hash, folded, cipher: Some(cipher) }))
    }
}
