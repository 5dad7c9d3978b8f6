//! Header of a qcow2 image (QEMU, docs/interop/qcow2.txt).

use std::io;

use super::ImageFile;
use crate::bytes::{invalid, read as read_bytes};

/// First bytes of a qcow2 image.
pub const MAGIC: [u8; 4] = *b"QFI\xFB";
/// Lengths of the headers of versions 2 and 3 in bytes.
const V2_BYTES: usize = 72;
const V3_BYTES: usize = 104;
/// Incompatible features.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const COMPRESSION: u64 = 1 << 3;
/// Header extension with the format of the backing file.
const BACKING_FORMAT: u32 = 0xE279_2ACA;
/// Limits of QEMU: 32 MiB for the L1 table, 8 MiB for the refcount table, 1023 bytes for a name.
const L1_ENTRIES_MAX: u64 = (32 << 20) / 8;
const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
const NAME_BYTES_MAX: u64 = 1023;
/// Place of the offset and the number of clusters of the refcount table.
pub const REFCOUNT_TABLE_AT: u64 = 48;
/// Place of the features that a program clears if it does not know them.
pub const AUTOCLEAR_AT: u64 = 88;

/// Compression of clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Raw deflate.
    Deflate,
    /// zstd.
    Zstd,
}

/// The file that has the content of clusters that the image does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// Name, as the header has it.
    pub name: String,
    /// Format, if the header names it.
    pub format: Option<String>,
}

/// A checked header.
#[derive(Debug, Clone)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Size of a cluster as a power of two: 9 to 21.
    pub cluster_bits: u32,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Place of the L1 table.
    pub l1_at: u64,
    /// Number of its entries.
    pub l1_entries: usize,
    /// Place of the refcount table.
    pub refcount_table_at: u64,
    /// Size of the refcount table in clusters.
    pub refcount_table_clusters: u32,
    /// Size of a refcount in bits, as a power of two.
    pub refcount_order: u32,
    /// Compression of compressed clusters.
    pub compression: Compression,
    /// The backing file.
    pub backing: Option<Backing>,
    /// Features that a writer has to clear.
    pub autoclear: u64,
    /// Reason that forbids changes.
    pub read_only: Option<String>,
}

fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Header {
    /// Size of a cluster in bytes.
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Reads and checks a header.
    pub fn read(file: &dyn ImageFile) -> io::Result<Header> {
        let file_bytes = file.geometry().size_bytes;
        let short = || damaged("it is cut off".into());
        let mut bytes = read_bytes(file, 0, V2_BYTES)?.ok_or_else(short)?;
        let (version, cluster_bits) = (big(&bytes[4..8]) as u32, big(&bytes[20..24]) as u32);
        if !(2..=3).contains(&version) || !(9..=21).contains(&cluster_bits) {
            return Err(damaged(format!("version {version}, clusters of 2^{cluster_bits} bytes")));
        }
        if version == 3 {
            bytes = read_bytes(file, 0, V3_BYTES)?.ok_or_else(short)?;
        }
        bytes.resize(V3_BYTES, 0);
        if big(&bytes[32..36]) != 0 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "qcow2: an encrypted image"));
        }
        let incompatible = incompatible_features(&bytes)?;
        let header_bytes = if version == 2 { V2_BYTES as u64 } else { big(&bytes[100..104]) };
        let cluster_bytes = 1u64 << cluster_bits;
        if version == 3 && !(V3_BYTES as u64..=cluster_bytes).contains(&header_bytes) {
            return Err(damaged(format!("a length of {header_bytes} bytes")));
        }
        let compression = compression(file, incompatible, header_bytes)?;
        let (l1_at, l1_entries) = (big(&bytes[40..48]), big(&bytes[36..40]));
        let (table_at, table_clusters) = (big(&bytes[48..56]), big(&bytes[56..60]));
        let size_bytes = big(&bytes[24..32]);
        let l1_reach = l1_entries.saturating_mul(cluster_bytes / 8).saturating_mul(cluster_bytes);
        let fits = |at: u64, length: u64| {
            at % cluster_bytes == 0 && at.checked_add(length).is_some_and(|end| end <= file_bytes)
        };
        if l1_entries > L1_ENTRIES_MAX || !fits(l1_at, l1_entries * 8) || size_bytes > l1_reach {
            return Err(damaged(format!(
                "a disk of {size_bytes} bytes with an L1 table of {l1_entries} entries at byte {l1_at}"
            )));
        }
        let table_bytes = table_clusters * cluster_bytes;
        if table_bytes > REFCOUNT_TABLE_BYTES_MAX || !fits(table_at, table_bytes) {
            return Err(damaged(format!("a refcount table of {table_clusters} clusters at byte {table_at}")));
        }
        let refcount_order = if version == 2 { 4 } else { big(&bytes[96..100]) as u32 };
        if refcount_order > 6 {
            return Err(damaged(format!("refcounts of 2^{refcount_order} bits")));
        }
        Ok(Header {
            version,
            cluster_bits,
            size_bytes,
            l1_at,
            l1_entries: l1_entries as usize,
            refcount_table_at: table_at,
            refcount_table_clusters: table_clusters as u32,
            refcount_order,
            compression,
            backing: backing(file, &bytes, header_bytes, cluster_bytes)?,
            autoclear: big(&bytes[88..96]),
            read_only: read_only(incompatible, big(&bytes[60..64]), refcount_order).map(str::to_owned),
        })
    }
}

fn damaged(what: String) -> io::Error {
    invalid(format!("qcow2 header: {what}"))
}

/// Returns the incompatible features of a header. Fails if one of them is unknown here.
fn incompatible_features(header: &[u8]) -> io::Result<u64> {
    let incompatible = big(&header[72..80]);
    if incompatible & !(DIRTY | CORRUPT | COMPRESSION) != 0 {
        let what = format!(
            "qcow2: unknown incompatible features {incompatible:#x}, such as an external data file or extended L2 \
             entries; qemu-img convert makes an image without them"
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    Ok(incompatible)
}

/// Returns the reason that forbids changes of an image, if there is one.
fn read_only(incompatible: u64, snapshots: u64, refcount_order: u32) -> Option<&'static str> {
    match snapshots {
        _ if incompatible & CORRUPT != 0 => {
            Some("the image is marked as corrupt; qemu-img check -r all repairs it")
        }
        _ if incompatible & DIRTY != 0 => Some("the image was not closed; qemu-img check -r all repairs it"),
        1.. => Some("the image has snapshots; qemu-img snapshot -d removes them"),
        0 if refcount_order < 3 => Some("the image has refcounts below 8 bits"),
        0 => None,
    }
}

fn compression(file: &dyn ImageFile, incompatible: u64, header_bytes: u64) -> io::Result<Compression> {
    let kind = match incompatible & COMPRESSION != 0 && header_bytes > V3_BYTES as u64 {
        true => read_bytes(file, V3_BYTES as u64, 1)?.unwrap_or_default(),
        false => vec![0],
    };
    match kind[..] {
        [0] => Ok(Compression::Deflate),
        [1] => Ok(Compression::Zstd),
        _ => Err(invalid("qcow2 header: unknown compression")),
    }
}

/// Reads the name of the backing file, and its format from the extensions of the header.
fn backing(
    file: &dyn ImageFile,
    bytes: &[u8],
    header_bytes: u64,
    cluster_bytes: u64,
) -> io::Result<Option<Backing>> {
    let (name_at, name_bytes) = (big(&bytes[8..16]), big(&bytes[16..20]));
    if name_at == 0 {
        return Ok(None);
    }
    let damaged = || {
        invalid(format!("qcow2 header: a backing file with a name of {name_bytes} bytes at byte {name_at}"))
    };
    let end =
        name_at.checked_add(name_bytes).filter(|end| *end <= cluster_bytes && name_bytes <= NAME_BYTES_MAX);
    end.ok_or_else(damaged)?;
    let name = read_bytes(file, name_at, name_bytes as usize)?.ok_or_else(damaged)?;
    let name = String::from_utf8(name).map_err(|_| damaged())?;
    let (mut at, mut format) = (header_bytes, None);
    // An extension: its type, its length, and its data up to a multiple of 8 bytes.
    while at + 8 <= name_at {
        let Some(extension) = read_bytes(file, at, 8)? else { break };
        let (kind, length) = (big(&extension[..4]) as u32, big(&extension[4..8]));
        if kind == 0 {
            break;
        }
        if kind == BACKING_FORMAT && length <= NAME_BYTES_MAX {
            let data = read_bytes(file, at + 8, length as usize)?.ok_or_else(damaged)?;
            format = Some(String::from_utf8_lossy(&data).into_owned());
        }
        at += 8 + length.next_multiple_of(8);
    }
    Ok(Some(Backing { name, format }))
}
