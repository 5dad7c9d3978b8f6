//! fsck.f2fs as a judge: an image on which it has anything to say is not a good image.

use std::{os::unix::fs::FileExt, path::Path};

use anyhow::{Context, Result, bail, ensure};
use block::MemoryDevice;

use crate::setup::{store, store_parts, system};

/// Message for a checkpoint pack whose first block is all zeroes (then the offset of its checksum is wrong,
/// too) or torn.
const UNFINISHED_PACK: &str = "Invalid CP CRC";

/// Runs fsck.f2fs over a device without changing it.
///
/// # Errors
/// It finds anything; then the image is kept where `FLASHKIT_KEEP` says.
pub fn fsck(device: &MemoryDevice) -> Result<()> {
    judge(device, |_| false)
}

/// The same after a power cut, which may have caught a checkpoint half-way: fsck.f2fs looks at both packs, says of the
/// unfinished one that it is none, and takes the other. It does not count that as a finding.
pub fn fsck_after_cut(device: &MemoryDevice) -> Result<()> {
    judge(device, |line| line.contains(UNFINISHED_PACK))
}

/// Runs fsck.f2fs over an image without changing it, and returns its output. The default version does not
/// know 16K blocks and is skipped for them, unless `FLASHKIT_FSCK` names one that does.
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
    // Without -f: with it, fsck.f2fs mends wrong quota as it goes, and does not count that as a finding; and takes
    // the segments that it mends it in for segments of a wrong type.
    // It is run where the image is: further devices of a volume have paths in its superblock, ours without a directory.
    let dir = image.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    let name = image.file_name().context("an image is a file")?;
    let run = command.current_dir(dir).arg("--dry-run").arg(name).output().context("fsck.f2fs")?;
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let mut told = guest::fsck::findings(&text, excused);
    if !run.status.success() || !told.is_empty() {
        told.truncate(20);
        bail!("fsck.f2fs ({:?}) finds in {}:\n{}", run.status.code(), image.display(), told.join("\n"));
    }
    // The engine records damage that it meets in the checkpoint, see `Io::noted`; there is none here.
    let state = text.lines().find(|line| line.contains("checkpoint state")).unwrap_or_default();
    ensure!(!state.split_whitespace().any(|flag| flag == "fsck"), "{}: {state}", image.display());
    Ok(text)
}
