//! The public operations on encryption.

use fscrypt::{Key, KeyName, NONCE_BYTES, Policy};

use super::{
    Engine,
    pending::PendingSync,
    transaction::Transaction,
    write_dirty::{AfterDirtyWrite, Scope},
};
use crate::{Result, format::inode::advise, units::Ino};

impl Engine {
    /// Fails if a file or directory is encrypted and its key is not among those of the
    /// [options](super::Options::keys).
    ///
    /// # Errors
    /// [`Error::NoKey`](crate::Error::NoKey) if there are no keys, [`Error::OtherKey`](crate::Error::OtherKey) if there
    /// are others, [`Error::UnusableKey`](crate::Error::UnusableKey) if the key cannot decrypt it; those of
    /// [reading](Engine#errors).
    pub fn require_key(&self, ino: Ino) -> Result<()> {
        self.files().require_key(&*self.nodes().inode(ino)?)
    }

    /// Returns the encryption policy of an inode; `None` if it is not encrypted.
    ///
    /// # Errors
    /// [`Error::UnusableKey`](crate::Error::UnusableKey) for a policy that is not supported; those of
    /// [reading](Engine#errors).
    pub fn encryption_policy(&self, ino: Ino) -> Result<Option<Policy>> {
        self.files().policy(&*self.nodes().inode(ino)?)
    }

    /// Returns the nonce of an encrypted inode; `None` if it is not encrypted.
    ///
    /// # Errors
    /// Those of [`encryption_policy`](Self::encryption_policy).
    pub fn encryption_nonce(&self, ino: Ino) -> Result<Option<[u8; NONCE_BYTES]>> {
        let inode = self.nodes().inode(ino)?;
        match inode.has_advise(advise::ENCRYPT) {
            true => Ok(Some(self.files().context(&inode)?.1.nonce)),
            false => Ok(None),
        }
    }

    /// Returns true if the key of a name is at hand.
    #[must_use]
    pub fn has_key(&self, name: &KeyName) -> bool {
        self.options().keys.find(name).is_some()
    }

    /// Adds a key to those at hand, until the volume is closed.
    pub fn add_key(&mut self, key: Key) {
        self.disk_mut().add_key(key);
    }

    /// Begins to write the dirty pages of encrypted files, in slices between which readers get a turn. Afterwards
    /// [`remove_key`](Transaction::remove_key) has little to write.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors).
    pub fn begin_write_encrypted(&mut self) -> Result<Option<PendingSync>> {
        // A volume that takes no changes has nothing to write.
        if self.read_only_reason().is_some() {
            return Ok(None);
        }
        self.start()?;
        self.write_dirty_then(Scope::EncryptedPages, AfterDirtyWrite::End)
    }
}

impl Transaction<'_> {
    /// Makes an empty directory encrypted: everything that is made in it is encrypted under the policy.
    ///
    /// # Errors
    /// [`Error::NoKey`](crate::Error::NoKey) or [`Error::OtherKey`](crate::Error::OtherKey) if the key of the policy is not
    /// at hand, [`Error::UnusableKey`](crate::Error::UnusableKey) if it is too short;
    /// [`Error::NotEmpty`](crate::Error::NotEmpty); [`Error::Exists`](crate::Error::Exists) for a directory with another
    /// policy; [`Error::NotDirectory`](crate::Error::NotDirectory); [`Error::Unsupported`](crate::Error::Unsupported) on a
    /// volume without the feature; [`Error::NotPermitted`](crate::Error::NotPermitted) for the root of a volume with
    /// lost+found, and for an immutable directory; [`Error::Invalid`](crate::Error::Invalid) for a policy of version 1 of a
    /// directory that folds case; [`Error::NoNonces`](crate::Error::NoNonces);
    /// [`Error::NoSpace`](crate::Error::NoSpace); those of [every change](Engine#errors).
    pub fn set_encryption_policy(mut self, dir: Ino, policy: &Policy) -> Result<()> {
        self.step()?.names().set_policy(dir, policy)
    }

    /// Removes the keys of a name from those at hand, after everything that waits to be encrypted with them has been. Returns
    /// false if there was none.
    ///
    /// # Errors
    /// Those of [every change](Engine#errors). The keys stay then.
    pub fn remove_key(mut self, name: &KeyName) -> Result<bool> {
        if !self.engine().has_key(name) {
            return Ok(false);
        }
        // A volume that takes no changes has nothing to write.
        if self.engine().read_only_reason().is_none() {
            self.step()?.files().write_encrypted_pages()?;
        }
        Ok(self.forget_key(name))
    }
}
