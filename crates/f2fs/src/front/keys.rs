//! Encryption and seals by paths.

use fscrypt::{Key, KeyName, Policy};

use super::Volume;
use crate::{
    Result,
    engine::{Caller, FinalSymlink},
    format::verity::{Descriptor, Parameters},
};

impl Volume {
    /// Adds a master key to those at hand, until the volume is closed or the key is [removed](Self::remove_key). From here on
    /// names under it are shown, and files read and written.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) after a panic.
    pub fn add_key(&self, key: Key) -> Result<()> {
        self.engine_mut()?.add_key(key);
        Ok(())
    }

    /// Removes a key by one of its names, after everything that waits to be encrypted with it has been. The key is wiped from
    /// memory, unless it is at hand under its other name, too. Files that are open under it can no longer be read or
    /// written. Returns false if there was no such key.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) and [`Error::NoSpace`](crate::Error::NoSpace) if what waits cannot be written. The key
    /// stays then.
    pub fn remove_key(&self, name: &KeyName) -> Result<bool> {
        self.engine_mut()?.begin(Caller::ADMIN).remove_key(name)
    }

    /// Makes an empty directory encrypted: everything that is made in it from then on is encrypted under the policy. The
    /// volume needs the feature `encrypt`, the key of the policy, and [random bytes](super::OpenOptions::nonce_seed) for
    /// nonces.
    ///
    /// ```
    /// # use std::time::SystemTime;
    /// use f2fs::{EncryptionPolicy, Error, Key, OpenOptions, Volume, mkfs};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("card.img");
    /// # fn random<const N: usize>() -> [u8; N] { [0x5A; N] }
    /// let features = mkfs::parse_features("encrypt")?;
    /// let options = mkfs::Options { features, ..mkfs::Options::new(*b"a UUID, 16 bytes") };
    /// let master = random::<64>();
    /// let key = Key::new(&master)?;
    /// let policy = EncryptionPolicy::of_key(&key);
    /// let volume = OpenOptions::new()
    ///     .clock(SystemTime::now)
    ///     .key(key)
    ///     .nonce_seed(random())
    ///     .make_file(&image, 64 << 20, &options)?;
    /// volume.create_dir("/private")?;
    /// volume.set_encryption_policy("/private", &policy)?;
    /// volume.write("/private/letter", "dear diary\n")?;
    /// volume.close()?;
    ///
    /// let volume = Volume::open_path(&image)?;
    /// assert!(matches!(volume.read("/private/letter"), Err(Error::NotFound)));
    /// volume.add_key(Key::new(&master)?)?;
    /// assert_eq!(volume.read_to_string("/private/letter")?, "dear diary\n");
    /// # volume.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoKey`](crate::Error::NoKey) and [`Error::OtherKey`](crate::Error::OtherKey) if the key is not at hand,
    /// [`Error::UnusableKey`](crate::Error::UnusableKey) if it is too short for the policy;
    /// [`Error::NoNonces`](crate::Error::NoNonces) without random bytes; [`Error::NotEmpty`](crate::Error::NotEmpty);
    /// [`Error::Exists`](crate::Error::Exists) for a directory with another policy;
    /// [`Error::Unsupported`](crate::Error::Unsupported) on a volume without the feature; those of
    /// [`set_permissions`](Self::set_permissions).
    pub fn set_encryption_policy(&self, path: impl AsRef<[u8]>, policy: &Policy) -> Result<()> {
        let mut engine = self.engine_mut()?;
        let dir = engine.resolve(path.as_ref(), FinalSymlink::Follow)?;
        engine.begin(Caller::ADMIN).set_encryption_policy(dir, policy)
    }

    /// The policy under which a file or directory is encrypted, if it is. It names the key, which need not be at hand.
    ///
    /// # Errors
    /// [`Error::UnusableKey`](crate::Error::UnusableKey) for a policy that is not supported; those of
    /// [`metadata`](Self::metadata).
    pub fn encryption_policy(&self, path: impl AsRef<[u8]>) -> Result<Option<Policy>> {
        let engine = self.engine()?;
        engine.encryption_policy(engine.resolve(path.as_ref(), FinalSymlink::Follow)?)
    }

    /// Seals a file with fs-verity: it can no longer be changed, and its content is checked when it is read. `signature` is
    /// that of the digest, or empty. Returns the descriptor, which has the digest.
    ///
    /// # Errors
    /// [`Error::Exists`](crate::Error::Exists) for a sealed file; [`Error::Invalid`](crate::Error::Invalid) for impossible
    /// parameters, and for anything but a regular file; [`Error::Unsupported`](crate::Error::Unsupported) on a volume
    /// without the feature `verity`, and for a compressed file; those of [`set_permissions`](Self::set_permissions).
    pub fn seal(
        &self,
        path: impl AsRef<[u8]>,
        parameters: &Parameters,
        signature: &[u8],
    ) -> Result<Descriptor> {
        let mut engine = self.engine_mut()?;
        let ino = engine.resolve(path.as_ref(), FinalSymlink::Follow)?;
        engine.begin(Caller::ADMIN).seal(ino, parameters, signature)
    }

    /// The fs-verity descriptor of a sealed file, which has its digest; `None` if the file is not sealed.
    ///
    /// # Errors
    /// [`Error::NoKey`](crate::Error::NoKey) for an encrypted file without its key; those of [`metadata`](Self::metadata).
    pub fn verity(&self, path: impl AsRef<[u8]>) -> Result<Option<Descriptor>> {
        let engine = self.engine()?;
        engine.verity(engine.resolve(path.as_ref(), FinalSymlink::Follow)?)
    }
}
