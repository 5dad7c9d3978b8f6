//! Opening of an image, through its formats and tables, down to the bytes that are meant.

use std::{io, ops::Range, path::Path, sync::Arc};

use block::{Device, FileDevice, InUse, OpenOptions};

use crate::{
    bytes::invalid,
    extents::{Extent, Extents},
    qcow2::{self, Qcow2},
    source::{Part, Source},
    sparse::{self, SparseImage},
    table::{Table, TableKind},
};

/// Maximum number of backing files behind each other.
const BACKING_MAX: usize = 16;

/// An open image. The file or device at the bottom is claimed as a whole, whichever part of it is meant.
pub struct Image {
    file: Arc<FileDevice>,
    /// The disk in the file, if the file is not the disk itself.
    decoded: Option<Arc<dyn Device>>,
    /// Parts in parts of the disk, from the outermost one.
    parts: Vec<Vec<Extent>>,
}

impl Image {
    /// Opens an image. The format follows from the first bytes.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`]; [`io::ErrorKind::NotFound`] and [`io::ErrorKind::InvalidData`] if the part does not
    /// exist, or the image or its table is damaged; [`io::ErrorKind::Unsupported`] if the image cannot be changed and
    /// `options` ask for that.
    pub fn open(source: &Source, options: OpenOptions) -> io::Result<Image> {
        let file = Arc::new(FileDevice::open(source.path(), options)?);
        let decoded = decode(&file, source.path())?;
        let mut image = Image { file, decoded, parts: Vec::new() };
        for part in source.parts() {
            let device = image.device();
            let extents = extents_of(&*device, part, options)?;
            // An extent behind the end is an error here rather than at the first access.
            Extents::new(device, extents.iter().copied())?;
            image.parts.push(extents);
        }
        Ok(image)
    }

    /// Returns the file or block device at the bottom.
    pub fn file(&self) -> &Arc<FileDevice> {
        &self.file
    }

    /// Returns true if the image is all of the [file](Self::file), so that offsets are the same in both.
    pub fn is_whole_file(&self) -> bool {
        self.decoded.is_none() && self.parts.is_empty()
    }

    /// Returns true if the file is the disk itself, and not a disk in a format of its own.
    pub fn is_raw(&self) -> bool {
        self.decoded.is_none()
    }

    /// Returns the user that writes to an image opened for reading; see [`FileDevice::writer`].
    pub fn writer(&self) -> Option<&InUse> {
        self.file.writer()
    }

    /// Returns the bytes of the image.
    pub fn device(&self) -> Arc<dyn Device> {
        self.device_over(self.file.clone())
    }

    /// Returns the bytes of the image, with `file` in place of the file at the bottom: a wrapper of the same file. An image
    /// in a format of its own does not use the wrapper.
    pub fn device_over(&self, file: Arc<dyn Device>) -> Arc<dyn Device> {
        let disk = self.decoded.clone().unwrap_or(file);
        self.parts.iter().fold(disk, |device, extents| {
            let part = Extents::new(device, extents.iter().copied());
            Arc::new(part.expect("the extents were checked as the image was opened"))
        })
    }
}

/// Opens the disk in a file whose format is not that of the disk itself.
fn decode(file: &Arc<FileDevice>, path: &Path) -> io::Result<Option<Arc<dyn Device>>> {
    let mut start = [0; 4];
    if !file.geometry().contains(0, start.len() as u64) {
        return Ok(None);
    }
    file.read(0, &mut start)?;
    match start {
        sparse::MAGIC if file.is_writable() => {
            let what = "an Android sparse image cannot be changed in place; flashkit convert makes a raw image of it, and a \
                        sparse one of that";
            Err(io::Error::new(io::ErrorKind::Unsupported, what))
        }
        sparse::MAGIC => Ok(Some(Arc::new(SparseImage::open(file.clone())?))),
        qcow2::MAGIC => Ok(Some(Arc::new(open_qcow2(file.clone(), path, 0)?))),
        _ => Ok(None),
    }
}

fn open_qcow2(file: Arc<FileDevice>, path: &Path, depth: usize) -> io::Result<Qcow2> {
    Qcow2::open(file, |backing| open_backing(backing, path, depth))
}

/// Opens the backing file of the image at `image`. An image may come from anywhere, so the file must lie in the image's
/// directory or below it.
fn open_backing(backing: &qcow2::Backing, image: &Path, depth: usize) -> io::Result<Arc<dyn Device>> {
    let name = &backing.name;
    let refused = |why: String| {
        let what = format!("the backing file {name:?} of {}: {why}", image.display());
        io::Error::new(io::ErrorKind::Unsupported, what)
    };
    if depth >= BACKING_MAX {
        return Err(refused(format!("more than {BACKING_MAX} files behind each other")));
    }
    let image_path = image.canonicalize()?;
    let directory = image_path.parent().unwrap_or(Path::new("/"));
    let path = directory.join(name).canonicalize().map_err(|error| refused(error.to_string()))?;
    if !path.starts_with(directory) {
        return Err(refused(
            "it lies outside of the directory of the image, so it is not opened; qemu-img rebase or convert makes an image \
             without it"
                .into(),
        ));
    }
    if !path.is_file() {
        return Err(refused("it is not a regular file".into()));
    }
    let file = Arc::new(
        FileDevice::open(&path, OpenOptions::default()).map_err(|error| refused(error.to_string()))?,
    );
    open_backing_format(file, backing.format.as_deref(), &path, depth)
        .map_err(|error| io::Error::new(error.kind(), refused(error.to_string())))
}

fn open_backing_format(
    file: Arc<FileDevice>,
    format: Option<&str>,
    path: &Path,
    depth: usize,
) -> io::Result<Arc<dyn Device>> {
    let mut start = [0; 4];
    if file.geometry().contains(0, start.len() as u64) {
        file.read(0, &mut start)?;
    }
    match format {
        Some("raw") => Ok(file),
        Some("qcow2") => Ok(Arc::new(open_qcow2(file, path, depth + 1)?)),
        None if start == qcow2::MAGIC => Ok(Arc::new(open_qcow2(file, path, depth + 1)?)),
        None => Ok(file),
        Some(other) => Err(invalid(format!("unknown format {other:?}"))),
    }
}

/// Returns the bytes of a part of a disk.
fn extents_of(disk: &dyn Device, part: &Part, options: OpenOptions) -> io::Result<Vec<Extent>> {
    match part {
        Part::Partition(selector) => match Table::read(disk)? {
            Some(table) => {
                let partition = table.find(selector)?;
                if options.write && table.kind == TableKind::Mbr && partition.is_extended() {
                    let what = format!(
                        "partition {selector:?} contains the logical partitions, so it is not written"
                    );
                    return Err(io::Error::new(io::ErrorKind::Unsupported, what));
                }
                Ok(partition.extents.clone())
            }
            None => Err(invalid(format!(
                "there are no partitions, so there is no partition {selector:?}: neither GPT nor MBR nor Android super"
            ))),
        },
        Part::Range { offset_bytes, length_bytes } => {
            let range = range(disk, *offset_bytes, *length_bytes)?;
            Ok(vec![Extent { start_bytes: Some(range.start), length_bytes: range.end - range.start }])
        }
    }
}

fn range(disk: &dyn Device, offset: u64, length: Option<u64>) -> io::Result<Range<u64>> {
    let geometry = disk.geometry();
    let sector = u64::from(geometry.sector_bytes.max(1));
    let rest = geometry.size_bytes.saturating_sub(offset);
    let length = length.unwrap_or(rest);
    if length == 0 || length > rest {
        return Err(invalid(format!(
            "the range of {length} bytes at byte {offset} does not lie in the {} bytes of the image",
            geometry.size_bytes
        )));
    }
    if offset % sector != 0 {
        return Err(invalid(format!(
            "the offset {offset} is not a multiple of the sector of {sector} bytes"
        )));
    }
    Ok(offset..offset + length)
}
