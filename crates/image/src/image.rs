//! Opening of an image, through its tables, down to the bytes that are meant.

use std::{io, ops::Range, sync::Arc};

use block::{Device, FileDevice, InUse, OpenOptions};

use crate::{
    bytes::invalid,
    extents::{Extent, Extents},
    source::{Part, Source},
    table::Table,
};

/// An open image. The file or device at the bottom is claimed as a whole, whichever part of it is meant.
pub struct Image {
    file: Arc<FileDevice>,
    view: View,
}

/// The bytes of a file that are the image.
enum View {
    Whole,
    /// Parts in parts, from the outermost one.
    Parts(Vec<Vec<Extent>>),
}

impl Image {
    /// Opens an image.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`]; [`io::ErrorKind::NotFound`] and [`io::ErrorKind::InvalidData`] if the part does not
    /// exist, or the table that should have it is damaged.
    pub fn open(source: &Source, options: OpenOptions) -> io::Result<Image> {
        let file = Arc::new(FileDevice::open(source.path(), options)?);
        let mut image = Image { file, view: View::Whole };
        for part in source.parts() {
            let extents = extents_of(&*image.device(), part)?;
            image.narrow(extents)?;
        }
        Ok(image)
    }

    fn narrow(&mut self, extents: Vec<Extent>) -> io::Result<()> {
        // An extent behind the end is an error here rather than at the first access.
        Extents::new(self.device(), extents.iter().copied())?;
        match &mut self.view {
            View::Parts(parts) => parts.push(extents),
            View::Whole => self.view = View::Parts(vec![extents]),
        }
        Ok(())
    }

    /// Returns the file or block device at the bottom.
    pub fn file(&self) -> &Arc<FileDevice> {
        &self.file
    }

    /// Returns true if the image is all of the [file](Self::file), so that offsets are the same in both.
    pub fn is_whole_file(&self) -> bool {
        matches!(self.view, View::Whole)
    }

    /// Returns the user that writes to an image opened for reading; see [`FileDevice::writer`].
    pub fn writer(&self) -> Option<&InUse> {
        self.file.writer()
    }

    /// Returns the bytes of the image.
    pub fn device(&self) -> Arc<dyn Device> {
        self.device_over(self.file.clone())
    }

    /// Returns the bytes of the image, with `file` in place of the file at the bottom: a wrapper of the same file.
    pub fn device_over(&self, file: Arc<dyn Device>) -> Arc<dyn Device> {
        let View::Parts(parts) = &self.view else { return file };
        parts.iter().fold(file, |device, extents| {
            let part = Extents::new(device, extents.iter().copied());
            Arc::new(part.expect("the extents were checked as the image was opened"))
        })
    }
}

/// Returns the bytes of a part of a disk.
fn extents_of(disk: &dyn Device, part: &Part) -> io::Result<Vec<Extent>> {
    match part {
        Part::Partition(selector) => match Table::read(disk)? {
            Some(table) => Ok(table.find(selector)?.extents.clone()),
            None => Err(invalid(format!(
                "there are no partitions, so there is no partition {selector:?}: neither GPT nor MBR"
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
