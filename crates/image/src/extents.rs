//! Ranges of a device as a device.

use std::{io, ops::Range};

use block::{Device, DiscardUnit, Geometry};

/// A run of bytes of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset on the device that holds the partition. `None` if the run lies nowhere and reads as zeroes.
    pub start_bytes: Option<u64>,
    /// Length in bytes.
    pub length_bytes: u64,
}

/// Extents of a device in sequence, as one address space.
pub struct Extents<D> {
    inner: D,
    /// Each extent with its offset in the address space. None is empty.
    parts: Vec<(u64, Extent)>,
    geometry: Geometry,
}

/// A range of bytes: the offset on the inner device, if there is one, and the part of a request as offsets from its start.
struct Piece {
    source: Option<u64>,
    from: usize,
    to: usize,
}

impl<D: Device> Extents<D> {
    /// Joins extents of a device.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if an extent passes the end of the device, or the lengths overflow.
    pub fn new(inner: D, extents: impl IntoIterator<Item = Extent>) -> io::Result<Extents<D>> {
        let below = inner.geometry();
        let (mut parts, mut size_bytes) = (Vec::new(), 0u64);
        for extent in extents.into_iter().filter(|extent| extent.length_bytes > 0) {
            if let Some(start) =
                extent.start_bytes.filter(|start| !below.contains(*start, extent.length_bytes))
            {
                return Err(passes_the_end(start, extent.length_bytes, below.size_bytes));
            }
            parts.push((size_bytes, extent));
            size_bytes = size_bytes.checked_add(extent.length_bytes).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "the lengths of the extents overflow")
            })?;
        }
        Ok(Extents { inner, parts, geometry: Geometry { size_bytes, ..below } })
    }

    /// Takes one range of a device.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn range(inner: D, start_bytes: u64, length_bytes: u64) -> io::Result<Extents<D>> {
        Extents::new(inner, [Extent { start_bytes: Some(start_bytes), length_bytes }])
    }

    /// Splits a range that lies in the address space at the ends of the extents.
    fn pieces(&self, offset_bytes: u64, length_bytes: u64) -> impl Iterator<Item = (Piece, u64)> {
        let end = offset_bytes + length_bytes;
        let first = self.parts.partition_point(|(at, part)| at + part.length_bytes <= offset_bytes);
        let touched = self.parts[first..].iter().take_while(move |(at, _)| *at < end);
        touched.map(move |(at, part)| {
            let (from, to) = (offset_bytes.max(*at), end.min(at + part.length_bytes));
            let source = part.start_bytes.map(|start| start + (from - at));
            let piece =
                Piece { source, from: (from - offset_bytes) as usize, to: (to - offset_bytes) as usize };
            (piece, to - from)
        })
    }
}

fn passes_the_end(start: u64, length: u64, size: u64) -> io::Error {
    let what =
        format!("{length} bytes at byte {start} pass the end of the image at {size}; is the image cut off?");
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<D: Device> Device for Extents<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry.check_read(offset_bytes, buf.len())?;
        for (piece, _) in self.pieces(offset_bytes, buf.len() as u64) {
            let part = &mut buf[piece.from..piece.to];
            match piece.source {
                Some(source) => self.inner.read(source, part)?,
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry.check_write(offset_bytes, buf.len())?;
        for (piece, _) in self.pieces(offset_bytes, buf.len() as u64) {
            let part = &buf[piece.from..piece.to];
            match piece.source {
                Some(source) => self.inner.write(source, part)?,
                None if part.iter().all(|byte| *byte == 0) => {}
                None => {
                    let at = offset_bytes + piece.from as u64;
                    let what = format!(
                        "byte {at} of the partition lies in an extent of zeroes, which cannot be written"
                    );
                    return Err(io::Error::new(io::ErrorKind::Unsupported, what));
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if !self.geometry.contains(offset_bytes, length_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (piece, length) in self.pieces(offset_bytes, length_bytes) {
            if let Some(source) = piece.source {
                self.inner.discard(source, length)?;
            }
        }
        Ok(())
    }

    /// The unit of the inner device, shifted, if there is one extent; otherwise a sector.
    fn discard_unit(&self) -> Option<DiscardUnit> {
        let unit = self.inner.discard_unit()?;
        match &self.parts[..] {
            [(_, Extent { start_bytes: Some(start), .. })] => {
                let first_bytes = (unit.first_bytes + unit.bytes - start % unit.bytes) % unit.bytes;
                Some(DiscardUnit { first_bytes, ..unit })
            }
            _ => Some(DiscardUnit { bytes: self.geometry.sector_bytes.max(1).into(), first_bytes: 0 }),
        }
    }

    /// The parts in the first extent of the range.
    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        match self.pieces(range.start, range.end - range.start).next() {
            Some((Piece { source: Some(at), .. }, length)) => self.inner.allocation(at..at + length),
            Some((_, length)) => vec![(length, true)],
            None => vec![(range.end - range.start, false)],
        }
    }
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;

    use super::*;

    fn extent(start_bytes: Option<u64>, length_bytes: u64) -> Extent {
        Extent { start_bytes, length_bytes }
    }

    #[test]
    fn extents_follow_each_other_and_nothing_else_is_written() {
        let below = MemoryDevice::from_bytes(&[9; 100]);
        let parts = [extent(Some(50), 10), extent(None, 5), extent(Some(10), 20)];
        let extents = Extents::new(&below, parts).unwrap();
        assert_eq!(extents.geometry().size_bytes, 35);
        extents.write(8, &[1, 2, 0, 0, 0, 0, 0, 3]).unwrap();
        let mut buf = [7; 10];
        extents.read(7, &mut buf).unwrap();
        assert_eq!(buf, [9, 1, 2, 0, 0, 0, 0, 0, 3, 9]);
        let bytes = below.to_vec();
        assert_eq!((bytes[58], bytes[59], bytes[60], bytes[9], bytes[10]), (1, 2, 9, 9, 3));
        assert_eq!(bytes.iter().filter(|byte| **byte != 9).count(), 3);
        assert_eq!(extents.write(12, &[1]).unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(extents.write(30, &[1; 6]).unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert_eq!(extents.read(35, &mut buf[..1]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn extents_outside_of_the_device_are_refused() {
        let below = MemoryDevice::new(100);
        assert!(Extents::range(&below, 90, 11).is_err());
        assert!(Extents::range(&below, u64::MAX, 2).is_err());
        assert!(Extents::range(&below, 90, 10).is_ok());
        assert!(Extents::new(&below, [extent(None, u64::MAX), extent(None, 1)]).is_err());
    }

    #[test]
    fn the_unit_of_discards_moves_with_the_start() {
        struct Coarse(MemoryDevice);
        impl Device for Coarse {
            fn geometry(&self) -> Geometry {
                self.0.geometry()
            }
            fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
                self.0.read(offset_bytes, buf)
            }
            fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
                self.0.write(offset_bytes, buf)
            }
            fn flush(&self) -> io::Result<()> {
                Ok(())
            }
            fn discard(&self, _: u64, _: u64) -> io::Result<()> {
                Ok(())
            }
            fn discard_unit(&self) -> Option<DiscardUnit> {
                Some(DiscardUnit { bytes: 4096, first_bytes: 1024 })
            }
        }
        let below = Coarse(MemoryDevice::new(1 << 20));
        for (start, first_bytes) in [(0, 1024), (1024, 0), (4096, 1024), (4608, 512), (2048, 3072)] {
            let unit = Extents::range(&below, start, 65536).unwrap().discard_unit();
            assert_eq!(unit, Some(DiscardUnit { bytes: 4096, first_bytes }), "{start}");
        }
    }
}
