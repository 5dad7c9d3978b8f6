//! Images that are encrypted as a whole, except the contents of encrypted files (Android's metadata encryption).

use std::{fmt, io, sync::Arc};

use block::{Device, Geometry};
use fscrypt::{DEVICE_UNIT_BYTES, DeviceCipher};

use crate::bytes::never_written;

/// Maximum number of bytes that are decrypted at once.
const STEP_BYTES: usize = 1 << 20;

/// The key of an image that is encrypted as a whole. It is wiped from memory with its last copy.
#[derive(Clone)]
pub struct MetadataKey(Arc<DeviceCipher>);

impl MetadataKey {
    /// Makes a key of 64 bytes (AES-256-XTS) or 32 bytes (Adiantum).
    ///
    /// # Errors
    /// [`fscrypt::Error::KeyLength`] for any other length.
    pub fn new(bytes: &[u8]) -> fscrypt::Result<MetadataKey> {
        Ok(MetadataKey(Arc::new(DeviceCipher::new(bytes)?)))
    }
}

impl PartialEq for MetadataKey {
    /// Returns true for copies of one key.
    fn eq(&self, other: &MetadataKey) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MetadataKey {}

impl fmt::Debug for MetadataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetadataKey")
    }
}

/// An image, decrypted while it is read. It is never written: a writer would have to know which blocks are the contents of
/// encrypted files.
pub struct Decrypted {
    stored: Arc<dyn Device>,
    key: MetadataKey,
}

impl Decrypted {
    /// Decrypts a device with a key.
    pub fn new(stored: Arc<dyn Device>, key: MetadataKey) -> Decrypted {
        Decrypted { stored, key }
    }
}

impl Device for Decrypted {
    fn geometry(&self) -> Geometry {
        let geometry = self.stored.geometry();
        // A part of a unit at the end is not encrypted, and not used.
        let size_bytes = geometry.size_bytes / DEVICE_UNIT_BYTES as u64 * DEVICE_UNIT_BYTES as u64;
        Geometry { size_bytes, ..geometry }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        let unit = DEVICE_UNIT_BYTES as u64;
        let (mut at, mut rest, mut units) = (offset_bytes, buf, Vec::new());
        while !rest.is_empty() {
            let first = at / unit;
            let inside = (at % unit) as usize;
            let wanted = (inside + rest.len()).next_multiple_of(DEVICE_UNIT_BYTES).min(STEP_BYTES);
            units.resize(wanted, 0);
            self.stored.read(first * unit, &mut units)?;
            self.key.0.decrypt(first, &mut units);
            let length = rest.len().min(units.len() - inside);
            let (part, later) = rest.split_at_mut(length);
            part.copy_from_slice(&units[inside..inside + length]);
            (at, rest) = (at + length as u64, later);
        }
        Ok(())
    }

    fn read_stored(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        self.stored.read(offset_bytes, buf)
    }

    never_written!();
}

#[cfg(test)]
mod tests {
    use block::MemoryDevice;

    use super::*;

    #[test]
    fn any_range_is_decrypted_and_the_stored_bytes_stay_within_reach() {
        let (size, key) = (3 << 20, [0x17; 64]);
        let clear: Vec<u8> = (0..size).map(|n| (n % 253) as u8).collect();
        let mut bytes = clear.clone();
        DeviceCipher::new(&key).unwrap().encrypt(0, &mut bytes);
        let memory = MemoryDevice::new(size as u64 + 512);
        memory.write(0, &bytes).unwrap();
        let decrypted = Decrypted::new(Arc::new(memory), MetadataKey::new(&key).unwrap());
        assert_eq!(decrypted.geometry().size_bytes, size as u64);
        for (at, length) in
            [(0, size), (1, 4095), (4095, 2), (8192, 4096), (12_300, 2_000_000), (size - 1, 1)]
        {
            let mut read = vec![0; length];
            decrypted.read(at as u64, &mut read).unwrap();
            assert!(read == clear[at..at + length], "{length} bytes at {at}");
            decrypted.read_stored(at as u64, &mut read).unwrap();
            assert!(read == bytes[at..at + length], "{length} bytes at {at}");
        }
        let mut behind = [0; 2];
        let error = decrypted.read(size as u64 - 1, &mut behind).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(decrypted.write(0, &[0; 512]).unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    }
}
