//! The public operations on encryption.

use super::Engine;
use crate::{Result, units::Ino};

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
}
