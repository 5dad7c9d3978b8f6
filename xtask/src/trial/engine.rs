//! Our own engine as a counterpart of the guest: makes volumes in files, and executes the guest's operations
//! on them.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context;
use block::{Concat, Device, FileDevice, OpenOptions};
use f2fs::{
    Error, Keyring, NONCE_SEED_BYTES, Nonces,
    engine::{Engine, Options, device_bytes},
    format::inode::Compression,
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::Time,
};
use guest::Op;
use model::perform::perform;

/// A fixed time, so that runs repeat.
const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 123_456_789 };

/// The options for opening a volume. Each time, nonces have another seed.
fn usual() -> Options {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let mut seed = [0; NONCE_SEED_BYTES];
    seed[..8].copy_from_slice(&OPENED.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    Options { nonces: Some(Nonces::new(seed)), ..Options::new(|| NOW) }
}

/// Begins a volume in a new file of `mib` MiB.
pub fn begin(path: &Path, mib: u64, options: &mkfs::Options) -> anyhow::Result<NewVolume> {
    begin_with(path, mib, options, usual())
}

/// Does the work of [`begin`], and compresses the files that are to be compressed.
pub fn begin_compressed(
    path: &Path,
    mib: u64,
    options: &mkfs::Options,
    compression: Compression,
) -> anyhow::Result<NewVolume> {
    begin_with(path, mib, options, Options { compression, ..usual() })
}

fn begin_with(path: &Path, mib: u64, options: &mkfs::Options, open: Options) -> anyhow::Result<NewVolume> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(path, mib << 20)?);
    let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
    let plan = Plan::new(options, &[size])?;
    Ok(NewVolume::begin(device, &plan, DeviceContent::Zeroes, open)?)
}

/// Begins a volume on several new files, each with its path in the superblock and its size in MiB.
pub fn begin_on(files: &[(&Path, &str, u64)], options: &mkfs::Options) -> anyhow::Result<NewVolume> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for (path, _, mib) in files {
        devices.push(Arc::new(FileDevice::create(path, mib << 20)?));
    }
    let sizes = files.iter().map(|(_, name, mib)| DeviceSize { path: (*name).into(), bytes: mib << 20 });
    let plan = Plan::new(options, &sizes.collect::<Vec<_>>())?;
    let parts = devices.into_iter().zip(device_bytes(&plan.superblock));
    let device = Arc::new(Concat::new(parts.collect())?);
    Ok(NewVolume::begin(device, &plan, DeviceContent::Zeroes, usual())?)
}

/// Opens a volume in one file for writing.
pub fn open(path: &Path) -> anyhow::Result<Engine> {
    let device = FileDevice::open(path, OpenOptions { write: true, direct: false })?;
    Engine::open(Arc::new(device), usual()).with_context(|| path.display().to_string())
}

/// Opens a volume in one file for reading.
pub fn open_read_only(path: &Path) -> anyhow::Result<Engine> {
    let device = FileDevice::open(path, OpenOptions::default())?;
    Engine::open(Arc::new(device), Options::read_only()).with_context(|| path.display().to_string())
}

/// Opens a volume in one file for reading, with keys.
pub fn open_with_keys(path: &Path, keys: Keyring) -> anyhow::Result<Engine> {
    let device = FileDevice::open(path, OpenOptions::default())?;
    let options = Options { keys, ..Options::read_only() };
    Engine::open(Arc::new(device), options).with_context(|| path.display().to_string())
}

/// Executes all of `ops` that the engine supports. Returns the number of unsupported ones.
///
/// # Errors
/// The first operation that fails otherwise.
pub fn perform_all(volume: &mut Engine, ops: &[Op]) -> anyhow::Result<usize> {
    let mut skipped = 0;
    for op in ops {
        match perform(volume, op) {
            Ok(()) => {}
            Err(Error::Unsupported(_)) => skipped += 1,
            Err(error) => anyhow::bail!("{op:?}: {error}"),
        }
    }
    Ok(skipped)
}
