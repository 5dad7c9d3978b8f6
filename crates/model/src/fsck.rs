//! fsck.f2fs as a judge: an image with any finding is not a good image.

use std::{os::unix::fs::FileExt, path::Path};

use anyhow::{Context, Result, bail, ensure};
use block::MemoryDevice;

use crate::setup::{store, store_parts, system};

/// Message about a checkpoint pack whose first block is torn, or all zeroes (then the offset of its checksum
/// is wrong, too).
const UNFINISHED_PACK: &str = "Invalid CP CRC";

/// Runs fsck.f2fs over a device without changing it.
///
/// # Errors
/// It has a finding. The image is then kept in `FLASHKIT_KEEP`.
pub fn fsck(device: &MemoryDevice) -> Result<()> {
    judge(device, |_| false)
}

/// Runs fsck.f2fs after a power cut, which may have interrupted a checkpoint. fsck.f2fs reads both packs,
/// reports that the unfinished one is invalid, and uses the other. It does not count that as a finding.
pub fn fsck_after_cut(device: &MemoryDevice) -> Result<()> {
    judge(device, |line| line.contains(UNFINISHED_PACK))
}

/// Runs fsck.f2fs over an image without changing it, and returns its output. The default version does not
/// support 16K blocks and is skipped for them, unless `FLASHKIT_FSCK` names one that does.
///
/// # Errors
/// fsck.f2fs finds an error.
pub fn fsck_image(image: &Path) -> Result<String> {
    run(image, |_| false)
}

fn judge(device: &MemoryDevice, excused: impl Fn(&str) -> bool) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let files = store_parts(device, dir.path())?;
    let result = run(&files[0], excused);
    if let (Err(_), Some(kept)) = (&result, std::env::var_os("FLASHKIT_KEEP")) {
        store(device, Path::new(&kept))?;
    }
    result.map(drop)
}

fn run(image: &Path, excused: impl Fn(&str) -> bool) -> Result<String> {
    let mut log_block_bytes = [0; 4];
    std::fs::File::open(image)?.read_exact_at(&mut log_block_bytes, 1024 + 16)?;
    let named = std::env::var_os("FLASHKIT_FSCK");
    if u32::from_le_bytes(log_block_bytes) != 12 && named.is_none() {
        return Ok(String::new());
    }
    let mut command = system(named.unwrap_or_else(|| "fsck.f2fs".into()));
    // Without -f: with it, fsck.f2fs repairs wrong quota on the way without counting that as a finding, and
    // reports a wrong type for the segments of the repaired quota. It runs in the image's directory, because
    // the superblock has the paths of further devices, which in our volumes are relative.
    let dir = image.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    let name = image.file_name().context("an image is a file")?;
    let run = command.current_dir(dir).arg("--dry-run").arg(name).output().context("fsck.f2fs")?;
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let mut told = guest::fsck::findings(&text, excused);
    if !run.status.success() || !told.is_empty() {
        told.truncate(20);
        bail!("fsck.f2fs ({:?}) finds in {}:\n{}", run.status.code(), image.display(), told.join("\n"));
    }
    // The engine records damage that it meets in the checkpoint, see `Io::record_corruption`; there is none here.
    let state = text.lines().find(|line| line.contains("checkpoint state")).unwrap_or_default();
    ensure!(!state.split_whitespace().any(|flag| flag == "fsck"), "{}: {state}", image.display());
    Ok(text)
}
