//! The lab's guest on hosts where no kernel with time travel can be built: the judge's stock kernel, which
//! runs in QEMU.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::json;

use crate::{Machine, judge::initramfs, judge::kernel::Kernel, lock::Lock, workspace::var};

/// Puts the kernel and an initial file system with our init in the study's directory for a guest, and returns
/// their paths.
pub fn prepare() -> Result<(PathBuf, PathBuf)> {
    let dir = var("uml")?;
    let _lock = Lock::take(&dir)?;
    let kernel = Kernel::find(Machine::Amd64)?;
    let (image, initial) = (dir.join("vmlinuz"), dir.join("initramfs"));
    put(&kernel.image, &image)?;
    put(&initramfs::build(Machine::Amd64, &kernel)?, &initial)?;
    let note = json!({ "release": kernel.release, "source": "the distribution's, in QEMU" });
    fs::write(image.with_extension("json"), serde_json::to_vec_pretty(&note)?)?;
    Ok((image, initial))
}

/// Copies a file and renames it, so that a running guest keeps its own.
fn put(from: &Path, to: &Path) -> Result<()> {
    let copy = to.with_extension("new");
    fs::copy(from, &copy)?;
    Ok(fs::rename(&copy, to)?)
}
