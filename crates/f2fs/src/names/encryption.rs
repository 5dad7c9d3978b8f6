//! Names in encrypted directories: decrypted if the key is at hand, or else in the form that Linux shows without it.

use std::{borrow::Cow, sync::Arc};

use fscrypt::{FileCipher, KeyName, Policy};

use super::{
    Names, XattrMode,
    dir::{Found, NameHash, Wanted},
    hidden_name,
};
use crate::{
    Error, Place, Result,
    format::{
        FileType, NAME_MAX,
        casefold::fold,
        dentry::{Dentries, Dentry},
        hash::name_hash,
        inode::{advise, flag, inline},
        node::NodeBlock,
        superblock::Features,
        xattr::{ENCRYPTION_NAME, index},
    },
    units::Ino,
};

/// Bytes in a symbolic link beside an encrypted target: its length, and room for a NUL (Linux, `fscrypt_prepare_symlink`).
const TARGET_OVERHEAD_BYTES: usize = 3;

/// A name in the form in which its directory stores it.
pub(super) struct StoredName {
    /// Its bytes: encrypted in an encrypted directory.
    pub(super) bytes: Vec<u8>,
    /// The hash that a search for it looks for.
    pub(super) hash: u32,
}

impl StoredName {
    /// Records the name in its inode, as roll-forward needs it: without the key, it cannot compute the hash of a name that
    /// is encrypted and folded (Linux, `init_dent_inode`).
    pub(super) fn record(&self, inode: &mut NodeBlock, dir: &NodeBlock) {
        inode.set_last_name(dir.ino(), &self.bytes);
        let is_encrypted = dir.has_advise(advise::ENCRYPT);
        let head = inode.head_mut();
        head.advise &= !(advise::LOST_PINO | advise::ENC_NAME);
        if !is_encrypted {
            return;
        }
        head.advise |= advise::ENC_NAME;
        if dir.has_flag(flag::CASEFOLD) {
            let hash = self.hash.to_le_bytes();
            match head.name.get_mut(self.bytes.len()..self.bytes.len() + hash.len()) {
                Some(rest) => rest.copy_from_slice(&hash),
                None => head.advise |= advise::LOST_PINO,
            }
        }
    }
}

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
            false => self.files.dir_block(&inode, found.block)?.map_or(Ok(Vec::new()), |area| name_in(&area)),
        }
    }

    /// Returns the form in which a directory stores a new name.
    pub(super) fn to_stored_name(&self, dir: &NodeBlock, name: &[u8]) -> Result<StoredName> {
        let naming = self.naming(dir)?;
        if let Naming::Hidden = naming {
            return Err(self.files.no_key(dir));
        }
        let hash = self.wanted(dir, name)?.ok_or(Error::NameTooLong)?.hash();
        let bytes = match naming {
            Naming::Encrypted(cipher) => cipher.encrypt_name(name, NAME_MAX).ok_or(Error::NameTooLong)?,
            _ => name.to_vec(),
        };
        Ok(StoredName { bytes, hash })
    }

    /// Returns the encryption context that a new inode gets in a directory, if any: everything but special files is
    /// encrypted in an encrypted directory.
    pub(super) fn inherited_context(&self, dir: &NodeBlock, kind: FileType) -> Result<Option<Vec<u8>>> {
        match self.files.policy(dir)?.filter(|_| is_encryptable(kind)) {
            Some(policy) => self.new_context(&policy).map(Some),
            None => Ok(None),
        }
    }

    fn new_context(&self, policy: &Policy) -> Result<Vec<u8>> {
        let nonces = self.options().nonces.as_ref().ok_or(Error::NoNonces)?;
        Ok(policy.context(&nonces.next_nonce()))
    }

    /// Stores the encryption context of an inode.
    pub(super) fn store_context(&mut self, ino: Ino, context: &[u8]) -> Result<()> {
        let ctime = self.nodes().inode(ino)?.ctime();
        self.change_xattr(ino, index::ENCRYPTION, ENCRYPTION_NAME, Some(context), XattrMode::Create)?;
        let inode = self.nodes_mut().inode_mut(ino)?;
        inode.head_mut().advise |= advise::ENCRYPT;
        inode.set_ctime(ctime);
        Ok(())
    }

    /// Fails if a target is too long for a new symbolic link in a directory.
    pub(crate) fn check_target(&self, dir: Ino, target: &[u8]) -> Result<()> {
        let is_encrypted = self.directory(dir)?.has_advise(advise::ENCRYPT);
        match is_encrypted && target.len() > self.target_bytes_max() {
            true => Err(Error::NameTooLong),
            false => Ok(()),
        }
    }

    /// Maximum size of an encrypted target in bytes.
    fn target_bytes_max(&self) -> usize {
        self.superblock().block_size.bytes() - TARGET_OVERHEAD_BYTES
    }

    /// Returns the content of a new symbolic link: the target, encrypted if the link is.
    pub(crate) fn stored_target<'t>(&self, ino: Ino, target: &'t [u8]) -> Result<Cow<'t, [u8]>> {
        let inode = self.nodes().inode(ino)?;
        if !inode.has_advise(advise::ENCRYPT) {
            return Ok(target.into());
        }
        let cipher = self.files.cipher(&inode)?.ok_or_else(|| self.files.no_key(&inode))?;
        let stored = cipher.encrypt_name(target, self.target_bytes_max()).ok_or(Error::NameTooLong)?;
        let length = u16::try_from(stored.len()).map_err(|_| Error::NameTooLong)?;
        Ok([&length.to_le_bytes()[..], &stored].concat().into())
    }

    /// Fails if an encrypted directory does not take an inode, because it has another policy or none (Linux,
    /// `fscrypt_has_permitted_context`).
    pub(super) fn check_policy(&self, dir: Ino, ino: Ino) -> Result<()> {
        let Some(policy) = self.files.policy(&*self.nodes().inode(dir)?)? else { return Ok(()) };
        let inode = self.nodes().inode(ino)?;
        match is_encryptable(inode.file_type()) && self.files.policy(&inode)? != Some(policy) {
            true => Err(Error::OtherPolicy),
            false => Ok(()),
        }
    }

    /// Fails if the names of a directory cannot be folded because of its encryption (Linux, `fscrypt_prepare_setflags`).
    pub(super) fn check_folding(&self, dir: &NodeBlock) -> Result<()> {
        self.files.require_key(dir)?;
        self.files.policy(dir)?.map_or(Ok(()), |policy| check_folding(&policy))
    }

    /// Makes an empty directory encrypted (Linux, `fscrypt_ioctl_set_policy`).
    pub(crate) fn set_policy(&mut self, dir: Ino, policy: &Policy) -> Result<()> {
        let inode = self.directory(dir)?;
        match self.files.policy(&inode)? {
            Some(there) if there == *policy => return Ok(()),
            Some(_) => return Err(Error::Exists),
            None => {}
        }
        if !self.superblock().features.has(Features::ENCRYPT) {
            let what = "encryption without the feature; flashkit tune -O encrypt adds it";
            return Err(Error::Unsupported(what.into()));
        }
        if inode.head().links.get() == 0 {
            return Err(Error::NotFound);
        }
        let has_lost_found = self.superblock().features.has(Features::LOST_FOUND);
        if inode.has_flag(flag::IMMUTABLE) || has_lost_found && dir == self.superblock().root_ino {
            return Err(Error::NotPermitted);
        }
        if inode.has_flag(flag::CASEFOLD) {
            check_folding(policy)?;
        }
        if !self.is_empty_dir(dir)? {
            return Err(Error::NotEmpty);
        }
        drop(inode);
        let context = self.new_context(policy)?;
        self.files.check_context(dir, &context)?;
        let _space = self.segments().reserve(2)?;
        self.store_context(dir, &context)?;
        // Recovery must find the directory as it was when names were entered.
        self.nodes_mut().since_checkpoint_mut().note_renamed([dir]);
        let now = self.disk().time();
        self.nodes_mut().inode_mut(dir)?.set_ctime(now);
        Ok(())
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

/// Fails if names of directories under a policy cannot be folded: their hashes need a key that version 1 has not.
fn check_folding(policy: &Policy) -> Result<()> {
    match policy.key() {
        KeyName::Descriptor(_) => {
            Err(Error::Invalid("a directory that folds case needs an encryption policy of version 2".into()))
        }
        KeyName::Identifier(_) => Ok(()),
    }
}

/// Returns true for the types of files that an encrypted directory has encrypted.
fn is_encryptable(kind: FileType) -> bool {
    matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
}
