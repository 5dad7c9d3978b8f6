//! Files that the bytes of an image name: only those beside the image are opened.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Returns the path, without symbolic links, of a regular file in the directory of an image or below it. A relative `name`
/// starts in that directory. The name is a byte of the image like all others, and may be hostile.
///
/// # Errors
/// Those of realpath(3); [`io::ErrorKind::PermissionDenied`] for a file elsewhere; [`io::ErrorKind::InvalidInput`] if it is
/// not a regular file.
pub fn file_beside(name: &Path, image: &Path) -> io::Result<PathBuf> {
    let image = image.canonicalize()?;
    let directory = image.parent().unwrap_or(Path::new("/"));
    let path = directory.join(name).canonicalize()?;
    if !path.starts_with(directory) {
        let what = "it lies outside of the directory of the image";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if !path.is_file() {
        let what = format!("{} is not a regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(path)
}
