//! Backing files of qcow2 images, and the consent that they need.
//!
//! *Invariant*: bytes of an image alone never cause another file to be opened. A guest can write a qcow2 header to the
//! start of a raw image; its backing file would then be read as a part of the guest's disk (CVE-2008-2004).

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use block::{Device, FileDevice, OpenOptions};

use crate::{
    beside::file_beside,
    format::Format,
    qcow2::{Backing, Qcow2},
    source::Source,
};

/// Maximum number of backing files behind each other.
const BACKING_MAX: usize = 16;

/// The caller's consent to open the backing file that an image names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Consent {
    /// Only the first bytes say that the image is qcow2.
    None,
    /// The caller, or an image that already has the consent, says that the image is qcow2.
    InDirectory,
    /// The caller names the backing file.
    File(PathBuf),
}

/// Opens the disk in a qcow2 image, with the backing files that the source allows.
pub fn open_qcow2(file: Arc<FileDevice>, source: &Source) -> io::Result<Qcow2> {
    let consent = match (source.backing(), source.format()) {
        (Some(path), _) => Consent::File(path.to_path_buf()),
        (None, Some(Format::Qcow2)) => Consent::InDirectory,
        (None, _) => Consent::None,
    };
    open_at_depth(file, source.path(), &consent, 0)
}

fn open_at_depth(file: Arc<FileDevice>, path: &Path, consent: &Consent, depth: usize) -> io::Result<Qcow2> {
    Qcow2::open(file, |backing| open(backing, path, consent, depth))
}

/// Opens the backing file of the image at `image`.
fn open(backing: &Backing, image: &Path, consent: &Consent, depth: usize) -> io::Result<Arc<dyn Device>> {
    let name = &backing.name;
    let refused = |why: String| {
        let what = format!("the backing file {name:?} of {}: {why}", image.display());
        io::Error::new(io::ErrorKind::Unsupported, what)
    };
    if depth >= BACKING_MAX {
        return Err(refused(format!("more than {BACKING_MAX} files behind each other")));
    }
    let format = backing_format(backing, consent).map_err(refused)?;
    let path = match consent {
        Consent::File(path) => path.clone(),
        Consent::None | Consent::InDirectory => path_in_directory(name, image).map_err(refused)?,
    };
    if !path.is_file() {
        return Err(refused(format!("{} is not a regular file", path.display())));
    }
    let file = Arc::new(
        FileDevice::open(&path, OpenOptions::default()).map_err(|error| refused(error.to_string()))?,
    );
    match format {
        Format::Qcow2 => {
            let opened = open_at_depth(file, &path, &Consent::InDirectory, depth + 1);
            Ok(Arc::new(opened.map_err(|error| io::Error::new(error.kind(), refused(error.to_string())))?))
        }
        Format::Raw | Format::Sparse => Ok(file),
    }
}

/// Returns the format of the backing file, which the header names, if there is consent to open it at all.
fn backing_format(backing: &Backing, consent: &Consent) -> Result<Format, String> {
    if *consent == Consent::None {
        return Err("it is not opened unasked, because a guest that writes to a raw image can name any file there; \
                    --format qcow2 opens it, --backing FILE opens another one, --format raw shows the bytes of the image"
            .into());
    }
    match backing.format.as_deref() {
        Some("raw") => Ok(Format::Raw),
        Some("qcow2") => Ok(Format::Qcow2),
        Some(other) => Err(format!("unknown format {other:?}")),
        None => Err(
            "the image does not name the format of that file; qemu-img rebase -u -b FILE -F FORMAT names it"
                .into(),
        ),
    }
}

/// Returns the path of a backing file beside the image. The image may come from anywhere.
fn path_in_directory(name: &str, image: &Path) -> Result<PathBuf, String> {
    file_beside(Path::new(name), image).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => format!(
            "{error}; --backing FILE opens it nevertheless, and qemu-img convert makes an image without it"
        ),
        _ => error.to_string(),
    })
}
