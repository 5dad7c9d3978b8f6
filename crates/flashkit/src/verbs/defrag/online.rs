//! Moves through the mount of a volume.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use f2fs::format::FileType;
use f2fs_tree::PathTree;

use super::{Args, each};
use crate::{host, mounted::Mounted, target::Target};

/// Moves the blocks of the fragmented files in a mounted volume. Directories stay as they are: F2FS has no request for them.
/// Returns the number of moved blocks.
pub fn defragment(args: &Args, target: &Target, mounted: &Mounted) -> Result<u64> {
    let (volume, _) = target.find(&args.further)?;
    let (mut paths, mut files) = (PathTree::default(), Vec::new());
    each(target, &volume, |kind, path, found| {
        if kind == FileType::Regular && found.is_fragmented() {
            files.push(paths.insert(&path));
        }
    })?;
    let block_bytes = volume.superblock().block_size.bytes() as u64;
    drop(volume);
    let mut moved = 0;
    for path in files.into_iter().map(|file| paths.path(file)) {
        let name = host::name_of(path.strip_prefix(b"/").unwrap_or(&path))?;
        moved += defragment_file(&mounted.at.join(name), block_bytes)?;
    }
    Ok(moved)
}

/// Moves the blocks of a file, and makes the moves durable. Returns the number of moved blocks.
fn defragment_file(path: &Path, block_bytes: u64) -> Result<u64> {
    let name = || path.display().to_string();
    // The file may have been replaced by a symbolic link, a pipe or a device since it was read.
    if !fs::symlink_metadata(path).with_context(name)?.is_file() {
        return Ok(0);
    }
    let file = fs::File::open(path).with_context(name)?;
    let length = file.metadata().with_context(name)?.len().next_multiple_of(block_bytes);
    let moved_bytes = host::defragment(&file, length).with_context(name)?;
    file.sync_all().with_context(name)?;
    Ok(moved_bytes / block_bytes)
}
