//! Encryption by fscrypt: the context of an inode, and its cipher if the key is at hand.
//!
//! Contents of regular files are encrypted in the blocks of the device and in the pending runs of the logs, names in the
//! entries of directories. Dirty pages are clear.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
};

use fscrypt::{Context, FileCipher, Policy, Purpose, Volume};
use rustc_hash::FxHashMap;

use super::Files;
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        inode::advise,
        node::NodeBlock,
        xattr::{ENCRYPTION_NAME, index},
    },
    units::Ino,
};

/// Maximum number of ciphers in memory. Each takes about 2 KiB, and deriving one takes some microseconds.
const CIPHERS_MAX: usize = 1024;

/// Ciphers that were derived before, by inode and stored context.
#[derive(Default)]
pub(super) struct Ciphers(Mutex<FxHashMap<CipherId, Arc<FileCipher>>>);

/// An inode, and its context as stored: an inode number may come back with another context.
type CipherId = (Ino, Vec<u8>);

impl Files {
    /// Returns the cipher of an encrypted inode; `None` if its key is not among those of the options.
    pub(crate) fn cipher(&self, inode: &NodeBlock) -> Result<Option<Arc<FileCipher>>> {
        if self.options().keys.is_empty() {
            return Ok(None);
        }
        let ino = inode.ino();
        let (stored, context) = self.context(inode)?;
        let Some(key) = self.options().keys.find(&context.key) else { return Ok(None) };
        let mut known = self.ciphers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (ino, stored);
        if let Some(cipher) = known.get(&slot) {
            return Ok(Some(cipher.clone()));
        }
        let purpose = match inode.file_type() {
            FileType::Regular => Purpose::Contents,
            _ => Purpose::Names,
        };
        let cipher = FileCipher::new(key, &context, &self.crypto_volume(), ino.0, purpose);
        let cipher = Arc::new(self.located(ino, cipher)?);
        if known.len() >= CIPHERS_MAX {
            known.clear();
        }
        known.insert(slot, cipher.clone());
        Ok(Some(cipher))
    }

    /// Returns the cipher of the content of an inode; `None` if its content is not encrypted.
    ///
    /// # Errors
    /// Those of [`no_key`](Self::no_key) if the key is not among those of the options.
    pub(super) fn content_cipher(&self, inode: &NodeBlock) -> Result<Option<Arc<FileCipher>>> {
        if !inode.has_advise(advise::ENCRYPT) || inode.file_type() != FileType::Regular {
            return Ok(None);
        }
        match self.cipher(inode)? {
            Some(cipher) => Ok(Some(cipher)),
            None => Err(self.no_key(inode)),
        }
    }

    /// Returns the error of an encrypted inode whose key is not among those of the options.
    pub(crate) fn no_key(&self, inode: &NodeBlock) -> Error {
        if self.options().keys.is_empty() {
            return Error::NoKey;
        }
        match self.context(inode) {
            Ok((_, context)) => Error::OtherKey(context.key.to_string()),
            Err(error) => error,
        }
    }

    /// Fails if an inode is encrypted and its key is not among those of the options.
    pub(crate) fn require_key(&self, inode: &NodeBlock) -> Result<()> {
        match inode.has_advise(advise::ENCRYPT) && self.cipher(inode)?.is_none() {
            true => Err(self.no_key(inode)),
            false => Ok(()),
        }
    }

    /// Returns whole blocks of a file, from `block` on, as they are stored: encrypted if the content of the file is.
    ///
    /// # Errors
    /// Those of [`content_cipher`](Self::content_cipher).
    pub(super) fn to_stored<'b>(&self, ino: Ino, block: u64, clear: &'b [u8]) -> Result<Cow<'b, [u8]>> {
        let Some(cipher) = self.content_cipher(&*self.nodes.inode(ino)?)? else { return Ok(clear.into()) };
        let mut stored = clear.to_vec();
        cipher.encrypt_blocks(block, &mut stored);
        Ok(stored.into())
    }

    /// Returns the policy of an inode; `None` if it is not encrypted.
    pub(crate) fn policy(&self, inode: &NodeBlock) -> Result<Option<Policy>> {
        if !inode.has_advise(advise::ENCRYPT) {
            return Ok(None);
        }
        let (stored, _) = self.context(inode)?;
        self.located(inode.ino(), Policy::of_context(&stored)).map(Some)
    }

    /// Fails unless a new context of a directory can be used with the keys at hand.
    pub(crate) fn check_context(&self, dir: Ino, stored: &[u8]) -> Result<()> {
        let context = self.located(dir, Context::parse(stored))?;
        let key = self.options().keys.find(&context.key);
        let key = key.ok_or_else(|| match self.options().keys.is_empty() {
            true => Error::NoKey,
            false => Error::OtherKey(context.key.to_string()),
        })?;
        self.located(dir, FileCipher::new(key, &context, &self.crypto_volume(), dir.0, Purpose::Names))
            .map(drop)
    }

    /// The facts about the volume that keys depend on.
    fn crypto_volume(&self) -> Volume {
        let superblock = self.disk().superblock();
        Volume { uuid: superblock.uuid, log_block_bytes: superblock.block_size.log() }
    }

    /// Forgets ciphers whose keys may no longer be at hand.
    pub(crate) fn forget_ciphers(&mut self) {
        self.ciphers.0.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the encryption context of an inode, as stored and checked.
    pub(crate) fn context(&self, inode: &NodeBlock) -> Result<(Vec<u8>, Context)> {
        let stored = self.nodes.stored_xattr(inode, index::ENCRYPTION, ENCRYPTION_NAME)?;
        let stored = stored.map_or_else(
            || {
                let what = "the inode is encrypted and has no encryption context";
                self.disk().io().record_corruption(Err(Error::corrupt(Place::Xattr(inode.ino()), what)))
            },
            Ok,
        )?;
        let context = self.located(inode.ino(), Context::parse(&stored))?;
        Ok((stored, context))
    }

    /// Gives an error of fscrypt the place where it arose.
    fn located<T>(&self, ino: Ino, result: fscrypt::Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(fscrypt::Error::Invalid(what)) => {
                self.disk().io().record_corruption(Err(Error::corrupt(Place::Xattr(ino), what)))
            }
            Err(fscrypt::Error::Unsupported(what) | fscrypt::Error::KeyLength(what)) => {
                Err(Error::UnusableKey(format!("{ino}: {what}").into()))
            }
        }
    }
}
