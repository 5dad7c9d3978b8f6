//! Contents of files as a whole.

use super::{File, FileOptions, Volume};
use crate::{Error, Result, units::Bytes};

/// Largest file that is read at once, in bytes. A damaged inode can say any size.
const READ_MAX_BYTES: u64 = 1 << 30;

impl Volume {
    /// Reads the content of a file, which has at most 1 GiB.
    ///
    /// # Errors
    /// Those of [`open_file`](Self::open_file) and [`File::read_at`]; [`Error::Invalid`] for a larger file, which
    /// [`open_file`](Self::open_file) reads in parts.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let file = self.open_file(path)?;
        let size = file.metadata()?.len();
        if size > READ_MAX_BYTES {
            let what = format!(
                "the file has {}, and at most {} are read at once; open it and read parts",
                Bytes(size),
                Bytes(READ_MAX_BYTES)
            );
            return Err(Error::Invalid(what.into()));
        }
        let mut content = vec![0; size as usize];
        // Another thread may have made it shorter meanwhile.
        let count = file.read_at(&mut content, 0)?;
        content.truncate(count);
        Ok(content)
    }

    /// Reads the content of a file as text.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); [`Error::Invalid`] if the content is no UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<[u8]>) -> Result<String> {
        let content = self.read(path)?;
        String::from_utf8(content).map_err(|_| Error::Invalid("the content of the file is not UTF-8".into()))
    }

    /// Gives a file this content. A missing file is made; of a file that is there, the old content goes first.
    ///
    /// # Errors
    /// Those of [`create_file`](Self::create_file) and [`File::write_at`].
    pub fn write(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(path)?.write_at(content.as_ref(), 0)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Those of [`FileOptions::open`].
    pub fn open_file(&self, path: impl AsRef<[u8]>) -> Result<File<'_>> {
        FileOptions::new().read().open(self, path)
    }

    /// Opens a file for writing: makes it if it is missing, and empties it if it is there.
    ///
    /// # Errors
    /// Those of [`FileOptions::open`].
    pub fn create_file(&self, path: impl AsRef<[u8]>) -> Result<File<'_>> {
        FileOptions::new().write().create().truncate().open(self, path)
    }
}
