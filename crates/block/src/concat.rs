//! Several devices as one address space.

use std::{io, ops::Range};

use crate::{Device, DiscardUnit, Geometry};

/// Devices in sequence. Each contributes only its first bytes; the rest of a device is not part of the
/// address space.
pub struct Concat<D> {
    /// The devices with their offsets and contributed bytes.
    parts: Vec<Part<D>>,
    geometry: Geometry,
}

struct Part<D> {
    device: D,
    start_bytes: u64,
    length_bytes: u64,
}

impl<D: Device> Concat<D> {
    /// Joins devices in order, each with the number of bytes that it contributes. The sector of the whole is
    /// the largest of the parts'.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if there is no device, a length is not a multiple of the sector or
    /// exceeds the device, or the sum overflows.
    pub fn new(devices: Vec<(D, u64)>) -> io::Result<Concat<D>> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        if devices.is_empty() {
            return Err(invalid("no device".into()));
        }
        let sector_bytes = devices.iter().map(|(device, _)| device.geometry().sector_bytes).max();
        let mut geometry = Geometry { size_bytes: 0, sector_bytes: sector_bytes.unwrap_or(1).max(1) };
        let mut parts = Vec::new();
        for (device, length_bytes) in devices {
            let has = device.geometry().size_bytes;
            if length_bytes > has || length_bytes % u64::from(geometry.sector_bytes) != 0 {
                return Err(invalid(format!("{length_bytes} bytes of a device of {has}")));
            }
            let start_bytes = geometry.size_bytes;
            geometry.size_bytes = start_bytes
                .checked_add(length_bytes)
                .ok_or_else(|| invalid("the lengths overflow".into()))?;
            parts.push(Part { device, start_bytes, length_bytes });
        }
        Ok(Concat { parts, geometry })
    }

    /// Returns the devices in order.
    pub fn devices(&self) -> impl Iterator<Item = &D> {
        self.parts.iter().map(|part| &part.device)
    }

    /// Returns the offset of device `index` in bytes.
    pub fn start_bytes(&self, index: usize) -> u64 {
        self.parts[index].start_bytes
    }

    /// Calls `f` for each device that the range touches: the device, the offset in it, and the part of the
    /// range as offsets from its start. The range must lie within the address space.
    fn each(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        mut f: impl FnMut(&D, u64, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset_bytes + length_bytes;
        let first = self.parts.partition_point(|part| part.start_bytes + part.length_bytes <= offset_bytes);
        for part in self.parts[first..].iter().take_while(|part| part.start_bytes < end) {
            let from = offset_bytes.max(part.start_bytes);
            let to = end.min(part.start_bytes + part.length_bytes);
            if from < to {
                f(&part.device, from - part.start_bytes, from - offset_bytes, to - offset_bytes)?;
            }
        }
        Ok(())
    }
}

impl<D: Device> Device for Concat<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry.check_read(offset_bytes, buf.len())?;
        self.each(offset_bytes, buf.len() as u64, |device, at, from, to| {
            device.read(at, &mut buf[from as usize..to as usize])
        })
    }

    fn read_stored(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry.check_read(offset_bytes, buf.len())?;
        self.each(offset_bytes, buf.len() as u64, |device, at, from, to| {
            device.read_stored(at, &mut buf[from as usize..to as usize])
        })
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry.check_write(offset_bytes, buf.len())?;
        self.each(offset_bytes, buf.len() as u64, |device, at, from, to| {
            device.write(at, &buf[from as usize..to as usize])
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.parts.iter().try_for_each(|part| part.device.flush())
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if !self.geometry.contains(offset_bytes, length_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.each(offset_bytes, length_bytes, |device, at, from, to| device.discard(at, to - from))
    }

    /// The unit that all parts share. Parts with different units have sectors in common.
    fn discard_unit(&self) -> Option<DiscardUnit> {
        let unit = |part: &Part<D>| {
            let unit = part.device.discard_unit()?;
            let first_bytes = (part.start_bytes + unit.first_bytes) % unit.bytes;
            Some(DiscardUnit { first_bytes, ..unit })
        };
        let mut units = self.parts.iter().filter_map(unit);
        let first = units.next()?;
        let sector = DiscardUnit { bytes: self.geometry.sector_bytes.into(), first_bytes: 0 };
        Some(if units.all(|unit| unit == first) { first } else { sector })
    }

    /// The parts on the first device of the range.
    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        let at = self.parts.partition_point(|part| part.start_bytes + part.length_bytes <= range.start);
        match self.parts.get(at) {
            Some(part) => {
                let end = range.end.min(part.start_bytes + part.length_bytes);
                part.device.allocation(range.start - part.start_bytes..end - part.start_bytes)
            }
            None => vec![(range.end - range.start, false)],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MemoryDevice;

    fn three(sizes: [u64; 3]) -> Concat<MemoryDevice> {
        let part = |size: u64| (MemoryDevice::new(size), size / 4096 * 4096);
        Concat::new(sizes.map(part).into()).expect("whole sectors")
    }

    #[test]
    fn parts_end_at_the_sums_of_the_lengths() {
        let concat = three([8192 + 4095, 100, 4096]);
        assert_eq!(concat.geometry().size_bytes, 12288);
        assert_eq!((0..3).map(|n| concat.start_bytes(n)).collect::<Vec<_>>(), [0, 8192, 8192]);
        concat.write(8190, &[1, 2, 3, 4]).expect("within the space");
        let devices: Vec<_> = concat.devices().collect();
        assert_eq!(devices[0].to_vec()[8189..8194], [0, 1, 2, 0, 0]);
        assert_eq!(devices[2].to_vec()[..3], [3, 4, 0]);
        assert!(devices[1].to_vec().iter().all(|&byte| byte == 0));
        concat.discard(8191, 2).expect("within the space");
        let mut buf = [9; 4];
        concat.read(8190, &mut buf).expect("within the space");
        assert_eq!(buf, [1, 0, 0, 4]);
        assert!(concat.read(12287, &mut buf).is_err());
    }

    #[test]
    fn invalid_input_is_refused() {
        assert!(Concat::<MemoryDevice>::new(vec![]).is_err());
        let coarse = || MemoryDevice::with_geometry(Geometry { size_bytes: 1 << 20, sector_bytes: 4096 });
        assert!(Concat::new(vec![(coarse(), 512)]).is_err());
        assert!(Concat::new(vec![(coarse(), (1 << 20) + 4096)]).is_err());
    }

    proptest! {
        #[test]
        fn the_device_behaves_like_a_vector(
            sizes in [0u64..30000, 0u64..30000, 0u64..30000],
            writes in prop::collection::vec((0usize..90000, 0usize..20000, any::<u8>()), 1..20),
        ) {
            let concat = three(sizes);
            let size = concat.geometry().size_bytes as usize;
            let mut reference = vec![0u8; size];
            for (at, length, byte) in writes {
                let (at, end) = (at.min(size), (at + length).min(size));
                concat.write(at as u64, &vec![byte; end - at])?;
                reference[at..end].fill(byte);
            }
            let mut all = vec![1; size];
            concat.read(0, &mut all)?;
            prop_assert!(all == reference);
        }
    }
}
