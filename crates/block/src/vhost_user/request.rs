//! One request of the guest, as it lies in the guest's memory (virtio 1.2, 5.2.6).

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use virtio_queue::DescriptorChain;
use vm_memory::GuestMemoryMmap;

use super::{
    config::{SECTOR_BYTES, Traits},
    message::broken,
};
use crate::Verb;

/// Maximum length of a request's data in bytes. The configuration space allows a guest less.
const DATA_BYTES_MAX: usize = 256 << 20;
/// Type, priority, sector.
const HEAD_BYTES: usize = 16;
/// Sector, number of sectors, flags.
const DISCARD_BYTES: usize = 16;

/// Types of requests.
mod kind {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
}

/// Values of the status byte.
mod status {
    pub const OK: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const UNSUPPORTED: u8 = 2;
}

/// An operation for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Kind of operation.
    pub verb: Verb,
    /// Offset in bytes, within the device.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
}

/// A pending request of the guest. It must be returned to [`Disk::answer`](super::Disk::answer).
#[derive(Debug)]
pub struct Request {
    chain: DescriptorChain<Arc<GuestMemoryMmap>>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Device(Ask),
    /// A request answered without the device: a status, and data for the guest.
    Known(u8, Vec<u8>),
}

impl Request {
    /// Reads a request from the guest's memory. A malformed request becomes one that fails.
    pub(super) fn parse(
        chain: DescriptorChain<Arc<GuestMemoryMmap>>,
        traits: &Traits,
    ) -> io::Result<Request> {
        let kind = match ask(&chain, traits) {
            Ok(kind) => kind,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Kind::Known(status::FAILED, Vec::new())
            }
            Err(error) => return Err(error),
        };
        Ok(Request { chain, kind })
    }

    /// Returns the operation for the device, or None if the answer needs no device.
    pub fn ask(&self) -> Option<Ask> {
        match self.kind {
            Kind::Device(ask) => Some(ask),
            Kind::Known(..) => None,
        }
    }

    /// Returns the data of a write, at the length of [`ask`](Self::ask). The guest may have changed the
    /// descriptors in its memory since then.
    ///
    /// # Errors
    /// The request has become shorter, or lies outside the guest's memory.
    pub fn data(&self) -> io::Result<Vec<u8>> {
        let Some(Ask { verb: Verb::Write, length_bytes, .. }) = self.ask() else { return Ok(Vec::new()) };
        let mut reader = self.chain.clone().reader(self.chain.memory()).map_err(invalid_chain)?;
        reader.read_exact(&mut [0; HEAD_BYTES])?;
        // The length was checked when the request was parsed.
        let mut data = vec![0; length_bytes as usize];
        reader.read_exact(&mut data)?;
        Ok(data)
    }

    /// Returns the request's number in the queue.
    pub(super) fn head(&self) -> u16 {
        self.chain.head_index()
    }

    /// Writes the answer to the guest's memory. Returns the number of bytes written.
    pub(super) fn put(&self, result: io::Result<&[u8]>) -> io::Result<u32> {
        let (code, data): (u8, &[u8]) = match (&self.kind, result) {
            (Kind::Known(code, data), _) => (*code, data),
            (Kind::Device(_), Ok(data)) => (status::OK, data),
            (Kind::Device(_), Err(_)) => (status::FAILED, &[]),
        };
        let mut writer = self.chain.clone().writer(self.chain.memory()).map_err(invalid_chain)?;
        let room = writer.available_bytes().checked_sub(1).ok_or_else(|| broken("no space for a status"))?;
        let mut last = writer.split_at(room).map_err(|error| broken(error.to_string()))?;
        let length = data.len().min(room);
        writer.write_all(&data[..length])?;
        last.write_all(&[code])?;
        Ok(length as u32 + 1)
    }
}

fn ask(chain: &DescriptorChain<Arc<GuestMemoryMmap>>, traits: &Traits) -> io::Result<Kind> {
    let mut reader = chain.clone().reader(chain.memory()).map_err(invalid_chain)?;
    let writable = chain.clone().writer(chain.memory()).map_err(invalid_chain)?.available_bytes();
    let room = writable.checked_sub(1).ok_or_else(|| broken("no space for a status"))?;
    let mut head = [0; HEAD_BYTES];
    reader.read_exact(&mut head)?;
    let kind = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
    let sector = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
    let device = |verb, sector: u64, length_bytes: u64| {
        let offset_bytes = sector.checked_mul(SECTOR_BYTES).ok_or_else(past_end)?;
        let whole = length_bytes % u64::from(traits.geometry.sector_bytes) == 0;
        if !whole || !traits.geometry.contains(offset_bytes, length_bytes) {
            return Err(past_end());
        }
        Ok(Kind::Device(Ask { verb, offset_bytes, length_bytes }))
    };
    if reader.available_bytes().max(room) > DATA_BYTES_MAX {
        return Err(broken("a request of more than 256 MiB"));
    }
    match kind {
        kind::READ => device(Verb::Read, sector, room as u64),
        kind::WRITE | kind::DISCARD if traits.read_only => Ok(Kind::Known(status::FAILED, Vec::new())),
        kind::WRITE => device(Verb::Write, sector, reader.available_bytes() as u64),
        kind::FLUSH => device(Verb::Flush, 0, 0),
        kind::DISCARD if traits.discard => {
            let mut range = [0; DISCARD_BYTES];
            reader.read_exact(&mut range)?;
            let sector = u64::from_le_bytes(range[..8].try_into().expect("eight bytes"));
            let sectors = u32::from_le_bytes(range[8..12].try_into().expect("four bytes"));
            device(Verb::Discard, sector, u64::from(sectors) * SECTOR_BYTES)
        }
        kind::GET_ID => Ok(Kind::Known(status::OK, traits.serial_bytes().to_vec())),
        _ => Ok(Kind::Known(status::UNSUPPORTED, Vec::new())),
    }
}

fn past_end() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not whole sectors of the device")
}

fn invalid_chain(error: virtio_queue::Error) -> io::Error {
    broken(error.to_string())
}
