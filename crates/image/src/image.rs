//! Opening of an image, through its formats and tables, down to the bytes that are meant.

use std::{io, ops::Range, sync::Arc};

use block::{Device, FileDevice, InUse, OpenOptions};

use crate::{
    backing,
    bytes::invalid,
    dm_verity::Verified,
    extents::{Extent, Extents},
    format::Format,
    metadata_key::{Decrypted, MetadataKey},
    source::{Part, Source},
    sparse::SparseImage,
    table::{Table, TableKind},
};

/// An open image. The file or device at the bottom is claimed as a whole, whichever part of it is meant. An NBD export is
/// not: the protocol has no locks.
pub struct Image {
    bottom: Bottom,
    /// The disk in the file, if the file is not the disk itself.
    decoded: Option<Arc<dyn Device>>,
    /// Parts in parts of the disk, from the outermost one.
    parts: Vec<Vec<Extent>>,
    /// The innermost part, checked by a hash tree.
    verified: Option<Verified>,
    /// The key that decrypts it.
    metadata_key: Option<MetadataKey>,
}

/// The bytes below the formats and parts.
enum Bottom {
    File(Arc<FileDevice>),
    /// The export of an NBD server.
    Served(Arc<dyn Device>),
}

impl Image {
    /// Opens an image. The format follows from the first bytes, unless the source names it. A backing file is opened only if
    /// the source names the format or the backing file.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`]; [`io::ErrorKind::NotFound`] and [`io::ErrorKind::InvalidData`] if the part does not
    /// exist, or the image, its table or its hash tree is damaged; [`io::ErrorKind::Unsupported`] if the image cannot be
    /// changed and `options` ask for that, [`io::ErrorKind::ReadOnlyFilesystem`] if that is because of its hash tree
    /// or its metadata encryption.
    pub fn open(source: &Source, options: OpenOptions) -> io::Result<Image> {
        if let Some(what) = source.read_only_reason().filter(|_| options.write) {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, what));
        }
        let (bottom, decoded) = match serve(source, options)? {
            Some(served) => (Bottom::Served(served), None),
            None => {
                let file = Arc::new(FileDevice::open(source.path(), options)?);
                let decoded = decode(&file, source)?;
                (Bottom::File(file), decoded)
            }
        };
        let mut image = Image { bottom, decoded, parts: Vec::new(), verified: None, metadata_key: None };
        for part in source.parts() {
            let device = image.device();
            let extents = extents_of(&*device, part, options)?;
            // An extent behind the end is an error here rather than at the first access.
            Extents::new(device, extents.iter().copied())?;
            image.parts.push(extents);
        }
        image.verified = source.hashes().map(|hashes| Verified::open(image.device(), hashes)).transpose()?;
        image.metadata_key = source.metadata_key().cloned();
        Ok(image)
    }

    /// Returns the image as it is checked by its hash tree, if the source names one.
    pub fn verified(&self) -> Option<&Verified> {
        self.verified.as_ref()
    }

    /// Returns the file or block device at the bottom. `None` for an NBD export.
    pub fn file(&self) -> Option<&Arc<FileDevice>> {
        match &self.bottom {
            Bottom::File(file) => Some(file),
            Bottom::Served(_) => None,
        }
    }

    /// Returns true if the image is all of the [file](Self::file), so that offsets are the same in both.
    pub fn is_whole_file(&self) -> bool {
        self.whole_file().is_some()
    }

    /// Returns the [file](Self::file) if the image is all of it, and may be read there.
    pub fn whole_file(&self) -> Option<&Arc<FileDevice>> {
        self.file().filter(|_| {
            self.is_raw() && self.parts.is_empty() && self.verified.is_none() && self.metadata_key.is_none()
        })
    }

    /// Returns true if the file is the disk itself, and not a disk in a format of its own.
    pub fn is_raw(&self) -> bool {
        self.decoded.is_none()
    }

    /// Returns the user that writes to an image opened for reading; see [`FileDevice::writer`].
    pub fn writer(&self) -> Option<&InUse> {
        self.file()?.writer()
    }

    /// Returns the bytes of the image.
    pub fn device(&self) -> Arc<dyn Device> {
        match &self.bottom {
            Bottom::File(file) => self.device_over(file.clone()),
            Bottom::Served(served) => self.device_over(served.clone()),
        }
    }

    /// Returns the bytes of the image, with `file` in place of the file or export at the bottom: a wrapper of the same
    /// file or export. An image in a format of its own does not use the wrapper.
    pub fn device_over(&self, file: Arc<dyn Device>) -> Arc<dyn Device> {
        let disk = self.decoded.clone().unwrap_or(file);
        let part = self.parts.iter().fold(disk, |device, extents| {
            let part = Extents::new(device, extents.iter().copied());
            Arc::new(part.expect("the extents were checked as the image was opened"))
        });
        let checked = match &self.verified {
            Some(verified) => Arc::new(verified.again_over(part)),
            None => part,
        };
        match &self.metadata_key {
            Some(key) => Arc::new(Decrypted::new(checked, key.clone())),
            None => checked,
        }
    }
}

/// Connects to the NBD export that a source names. Returns None for a file. The disk is the export as it is: the server
/// knows the format of its file.
#[cfg(unix)]
fn serve(source: &Source, options: OpenOptions) -> io::Result<Option<Arc<dyn Device>>> {
    let Some(uri) = source.uri()? else { return Ok(None) };
    if source.format().is_some_and(|format| format != Format::Raw) || source.backing().is_some() {
        let what = "the server of an NBD export decodes its format; --format and --backing are for files";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let client = block::nbd::Client::open(&uri)?;
    if options.write && block::Export::is_read_only(&client) {
        return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the NBD server offers it read-only"));
    }
    Ok(Some(Arc::new(client)))
}

#[cfg(not(unix))]
fn serve(_: &Source, _: OpenOptions) -> io::Result<Option<Arc<dyn Device>>> {
    Ok(None)
}

/// Opens the disk in a file whose format is not that of the disk itself.
fn decode(file: &Arc<FileDevice>, source: &Source) -> io::Result<Option<Arc<dyn Device>>> {
    let format = source.format().map_or_else(|| Format::probe(file), Ok)?;
    if let (Some(backing), Format::Raw | Format::Sparse) = (source.backing(), format) {
        let what = format!("a {format} image has no backing file, so {} is not one", backing.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    match format {
        Format::Sparse if file.is_writable() => {
            let what = "an Android sparse image cannot be changed in place; flashkit convert makes a raw image of it, and a \
                        sparse one of that";
            Err(io::Error::new(io::ErrorKind::Unsupported, what))
        }
        Format::Sparse => Ok(Some(Arc::new(SparseImage::open(file.clone())?))),
        Format::Qcow2 => Ok(Some(Arc::new(backing::open_qcow2(file.clone(), source)?))),
        Format::Raw => Ok(None),
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
                if let Some(conflict) = table.conflict.as_ref().filter(|_| options.write) {
                    let what = format!("partition {selector:?} is not written: {conflict}");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::logical_tests;

    #[test]
    fn a_partition_of_a_super_image_whose_copies_differ_is_read_and_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("super");
        let device = FileDevice::create(&path, 8 << 20).unwrap();
        let write = OpenOptions { write: true, direct: false };
        logical_tests::make(&device, &[("system_a", &[(16, 0, 2048)])]);
        let mut other = vec![0; 65536];
        let (copy_at, backup_at) = (12288, 12288 + 65536);
        device.read(backup_at, &mut other).unwrap();
        logical_tests::make(&device, &[("system_a", &[(16, 0, 4096)])]);
        drop(device);
        let source = Source::parse(dir.path().join("super#system_a"));
        Image::open(&source, write).unwrap();
        FileDevice::open(&path, write).unwrap().write(backup_at, &other).unwrap();
        Image::open(&source, OpenOptions::default()).unwrap();
        let error = Image::open(&source, write).err().unwrap().to_string();
        let told = format!(
            "partition \"system_a\" is not written: the copies of the super partition's metadata at the bytes {copy_at} \
             and {backup_at} differ"
        );
        assert_eq!(error, told);
    }

    #[test]
    fn a_partition_of_a_super_image_whose_slots_differ_is_written_by_the_table_of_the_first_slot() {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(dir.path().join("super"), 8 << 20).unwrap();
        logical_tests::make_two(
            &device,
            &[("system_a", &[(16, 0, 2048)])],
            &[("system_b", &[(16, 0, 4096)])],
        );
        drop(device);
        let write = OpenOptions { write: true, direct: false };
        let open = |name: &str| Image::open(&Source::parse(dir.path().join(name)), write);
        open("super#system_a").unwrap().device().write(0, b"new").unwrap();
        let mut bytes = [0; 3];
        FileDevice::open(dir.path().join("super"), write).unwrap().read(2048 * 512, &mut bytes).unwrap();
        assert_eq!(&bytes, b"new");
        assert!(open("super#system_b").is_err());
    }
}
