//! Bytes of a device whose offsets and lengths come from that device.

use std::io;

use block::Device;

/// The methods of a [`Device`] that is only read.
macro_rules! never_written {
    () => {
        fn write(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
            Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
        }

        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }

        fn discard(&self, _: u64, _: u64) -> std::io::Result<()> {
            Ok(())
        }

        fn discard_unit(&self) -> Option<block::DiscardUnit> {
            None
        }
    };
}
pub(crate) use never_written;

/// Reads bytes of a device. Returns None if the device ends before.
pub fn read(device: &(impl Device + ?Sized), offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
    if !device.geometry().contains(offset, length as u64) {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    device.read(offset, &mut bytes)?;
    Ok(Some(bytes))
}

/// Decodes a little-endian number of up to 8 bytes.
pub fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// An error for bytes that break the rules of a format.
pub fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
