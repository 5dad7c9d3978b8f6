//! Formats of image files.

use std::{fmt, io, str::FromStr};

use block::Device;

use crate::{qcow2, sparse};

/// Format of an image file: the way in which it holds a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The bytes of the disk.
    Raw,
    /// Android's sparse image.
    Sparse,
    /// QEMU's qcow2.
    Qcow2,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 3] = [Format::Raw, Format::Sparse, Format::Qcow2];

    /// Returns the name that [`FromStr`] understands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Sparse => "sparse",
            Format::Qcow2 => "qcow2",
        }
    }

    /// Recognizes the format of a file by its first bytes. A file without any of the known signatures is raw.
    ///
    /// # Errors
    /// Those of the device.
    pub fn probe(file: &dyn Device) -> io::Result<Format> {
        let mut start = [0; 4];
        if !file.geometry().contains(0, start.len() as u64) {
            return Ok(Format::Raw);
        }
        file.read(0, &mut start)?;
        Ok(match start {
            sparse::MAGIC => Format::Sparse,
            qcow2::MAGIC => Format::Qcow2,
            _ => Format::Raw,
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Format, String> {
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            format!("unknown format {name:?}; known formats are {}", Format::ALL.map(Format::name).join(", "))
        })
    }
}
