//! F2FS, the flash-friendly file system, in user space: volumes are made, read and changed without a kernel module.
//!
//! A [`Volume`] is used by paths, in the way of [`std::fs`]:
//!
//! ```
//! use std::{io::Write, time::SystemTime};
//!
//! use f2fs::{OpenOptions, Volume, mkfs};
//!
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("card.img");
//! // A new image file of 64 MiB with an empty volume. The UUID is the caller's.
//! let options = mkfs::Options::new(*b"a UUID, 16 bytes");
//! let volume = OpenOptions::new().clock(SystemTime::now).make_file(&image, 64 << 20, &options)?;
//! volume.create_dir_all("/etc/network")?;
//! volume.write("/etc/hostname", "sensor-7\n")?;
//! volume.close()?;
//!
//! // An image that is there, for changes.
//! let volume = OpenOptions::new().write().clock(SystemTime::now).open_path(&image)?;
//! let mut log = volume.create_file("/log")?;
//! writeln!(log, "started")?;
//! log.sync_all()?; // durable now; everything else is when the volume is closed
//! drop(log);
//! volume.close()?;
//!
//! // For reading.
//! let volume = Volume::open_path(&image)?;
//! assert_eq!(volume.read_to_string("/etc/hostname")?, "sensor-7\n");
//! for entry in volume.read_dir("/")? {
//!     let entry = entry?;
//!     println!("{} {}", f2fs::printable::name(entry.file_name()), entry.metadata()?.len());
//! }
//! # volume.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`OpenOptions`] opens or makes a volume: in an image file, on a block device, on a [`device`] of your own, or in
//!   memory.
//! - [`Volume`] has the operations by paths: read, write, list, make, remove, rename, attributes.
//! - [`File`] and [`FileOptions`] are open files, [`ReadDir`] and [`WalkDir`] list directories, [`Metadata`] are the facts about a file.
//! - [`Error`] says what happened, and where on the volume.
//! - [`mkfs`] plans new volumes; [`format`](mod@format) has the structures on the device.
//! - [`engine`] has the [`Engine`](engine::Engine) below, by inode numbers, as a mount needs it; [`Volume::engine`] leads there.
//!
//! *Invariants*: this crate does not print, spawn threads or read the clock, and has no `unsafe`. Bytes from
//! a device are untrusted until a check turns them into a typed value. Hostile bytes cause a located
//! [`Error`], never a panic, a hang or an unbounded allocation.

#![forbid(unsafe_code)]
#![warn(unreachable_pub, clippy::must_use_candidate, clippy::missing_errors_doc)]

mod disk;
pub mod engine;
mod error;
mod files;
pub mod format;
mod front;
mod generations;
pub mod mkfs;
mod names;
mod nodes;
pub mod printable;
pub mod resize;
mod segments;
pub mod tune;
pub mod units;
pub mod walk;

/// Encryption: master keys, policies of directories, and the nonces of new files.
pub use fscrypt::{
    Error as KeyError, IvScheme, KEY_BYTES_MAX, Key, KeyName, Keyring, Mode as CipherMode, NONCE_SEED_BYTES,
    Nonces, Policy as EncryptionPolicy,
};

pub use error::{Error, Place, Result};
pub use format::FileType;
pub use front::{DirEntry, File, FileOptions, Metadata, OpenOptions, ReadDir, Volume, WalkDir, WalkEntry};

/// Devices that a volume can lie on: the trait, and those of the host and in memory.
pub mod device {
    pub use block::{Device, FileDevice, Geometry, MemoryDevice, OpenOptions as FileDeviceOptions};
}
