//! fscrypt, the file encryption of Linux, in user space: contexts, keys, contents and names.
//!
//! The crate knows no file system. A file system gives the context that it stores with each encrypted inode, and asks
//! the [`FileCipher`] of the inode for blocks of contents, for names, and for the hash of a name:
//!
//! ```
//! use fscrypt::{Context, FileCipher, Key, Keyring, Purpose, Volume};
//!
//! let mut keys = Keyring::default();
//! keys.add(Key::new(&[0x5A; 64])?);
//! # let name = keys.iter().next().unwrap().identifier();
//! # let mut stored = vec![2, 1, 4, 3, 0, 0, 0, 0];
//! # stored.extend_from_slice(&name);
//! # stored.extend_from_slice(&[7; 16]);
//! let context = Context::parse(&stored)?;
//! let key = keys.find(&context.key).expect("the key was added");
//! let volume = Volume { uuid: [0; 16], log_block_bytes: 12 };
//! let cipher = FileCipher::new(key, &context, &volume, 4, Purpose::Names)?;
//! let stored = cipher.encrypt_name(b"secret", 255).expect("it is short");
//! assert_eq!(cipher.decrypt_name(&stored).as_deref(), Some(&b"secret"[..]));
//! # Ok::<(), fscrypt::Error>(())
//! ```
//!
//! The facts are those of Linux's `Documentation/filesystems/fscrypt.rst` and `include/uapi/linux/fscrypt.h`.
//!
//! *Invariants*: no `unsafe`; hostile contexts and names give an error or `None`, never a panic; the crate reads no
//! random values: the seed of the nonces of new files is an argument.

#![forbid(unsafe_code)]

mod cipher;
mod context;
mod device;
mod file;
mod key;
mod nonce;
mod policy;

pub use context::{Context, IvScheme, KeyName, Mode, NONCE_BYTES};
pub use device::{DEVICE_UNIT_BYTES, DeviceCipher};
pub use file::{FileCipher, Purpose, Volume};
pub use key::{DESCRIPTOR_BYTES, IDENTIFIER_BYTES, KEY_BYTES_MAX, KEY_BYTES_MIN, Key, Keyring};
pub use nonce::{NONCE_SEED_BYTES, Nonces};
pub use policy::Policy;

/// The error of a context or a key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are no context of fscrypt.
    #[error("{0}")]
    Invalid(String),
    /// The context asks for something that this crate does not have.
    #[error("{0}")]
    Unsupported(String),
    /// A key has a length that it cannot have.
    #[error("{0}")]
    KeyLength(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
