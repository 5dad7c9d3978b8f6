//! A volume somewhere on a device, for reading only.

use std::{io, ops::Range, sync::Arc};

use block::{Device, Geometry};

/// The bytes of a device, counted from the start of the volume. The volume may start after the start of the
/// device, as in the image of a whole disk, or before it, if the beginning is missing.
pub(crate) struct View {
    device: Arc<dyn Device>,
    /// Byte of the device at which the volume starts.
    start: i64,
}

impl View {
    /// Makes a view of a device whose volume starts at byte `start`.
    pub(crate) fn new(device: Arc<dyn Device>, start: i64) -> View {
        View { device, start }
    }

    /// First byte of the volume that is on the device.
    pub(crate) fn first_byte(&self) -> u64 {
        u64::try_from(-i128::from(self.start)).unwrap_or(0)
    }

    fn at(&self, offset_bytes: u64) -> io::Result<u64> {
        let at = i128::from(offset_bytes) + i128::from(self.start);
        u64::try_from(at)
            .map_err(|_| io::Error::new(io::ErrorKind::UnexpectedEof, "before the start of the image"))
    }

    fn refuse() -> io::Error {
        io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a rescue does not write to the image")
    }
}

impl Device for View {
    fn geometry(&self) -> Geometry {
        let own = self.device.geometry();
        let size = i128::from(own.size_bytes) - i128::from(self.start);
        Geometry { size_bytes: u64::try_from(size).unwrap_or(0), ..own }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read(self.at(offset_bytes)?, buf)
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(View::refuse())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(View::refuse())
    }

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        let length = range.end - range.start;
        self.at(range.start).map_or(vec![(length, false)], |at| self.device.allocation(at..at + length))
    }
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;

    use super::*;

    fn device() -> Arc<dyn Device> {
        let device = MemoryDevice::new(8192);
        device.write(4096, &[7; 512]).expect("in memory");
        Arc::new(device)
    }

    #[test]
    fn offsets_count_from_the_start_of_the_volume() {
        let mut byte = [0; 1];
        let later = View::new(device(), 4096);
        later.read(0, &mut byte).expect("on the device");
        assert_eq!((byte, later.geometry().size_bytes, later.first_byte()), ([7], 4096, 0));
        let earlier = View::new(device(), -4096);
        earlier.read(8192, &mut byte).expect("on the device");
        assert_eq!((byte, earlier.geometry().size_bytes, earlier.first_byte()), ([7], 12288, 4096));
        assert!(earlier.read(0, &mut byte).is_err(), "the beginning is missing");
    }

    #[test]
    fn a_view_refuses_every_write() {
        let view = View::new(device(), 0);
        assert!(view.write(0, &[1]).is_err() && view.discard(0, 4096).is_err());
    }
}
