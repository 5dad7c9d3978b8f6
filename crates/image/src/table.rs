//! Tables of partitions: GPT, MBR, and Android's logical partitions.
//!
//! *Invariant*: any table is read in bounded time and memory. A partition that passes the end of the device is listed, and
//! opening it fails.

mod gpt;
mod logical;
mod mbr;
#[cfg(test)]
pub(crate) use logical::tests as logical_tests;

use std::{fmt, io};

use block::Device;

use crate::extents::Extent;

/// Maximum number of partitions in a message.
const SHOWN_MAX: usize = 32;

/// Format of a table of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// The table of UEFI, with sectors of this many bytes.
    Gpt {
        /// Unit of its addresses in bytes.
        sector_bytes: u32,
    },
    /// The table of PC BIOS, with logical partitions.
    Mbr,
    /// Logical partitions of Android's super partition.
    Super,
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableKind::Gpt { .. } => "GPT",
            TableKind::Mbr => "MBR",
            TableKind::Super => "Android super",
        })
    }
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Number, from 1, as Linux counts: logical partitions of an MBR start at 5.
    pub number: u32,
    /// Name in the table, if the format has names.
    pub name: Option<String>,
    /// Identity of the partition that Linux calls PARTUUID.
    pub id: Option<String>,
    /// Type: a GUID, a byte such as `0x83`, or the access to a logical partition.
    pub type_id: String,
    /// The bytes of the partition on its disk.
    pub extents: Vec<Extent>,
}

impl Partition {
    /// Returns true for the partition of an MBR that contains the logical ones.
    pub(crate) fn is_extended(&self) -> bool {
        mbr::EXTENDED.iter().any(|kind| self.type_id == mbr::type_name(*kind))
    }

    /// Returns the first byte on the disk, unless the partition has none there.
    pub fn start_bytes(&self) -> Option<u64> {
        self.extents.iter().find_map(|extent| extent.start_bytes)
    }

    /// Returns the length in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.length_bytes))
    }
}

/// The partitions of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Format.
    pub kind: TableKind,
    /// Partitions in the order of their numbers.
    pub partitions: Vec<Partition>,
    /// Copies of the table that contradict each other, in words. Either copy may be the valid one, so a write to a
    /// partition of one may hit a partition of the other.
    pub conflict: Option<String>,
}

impl Table {
    /// Reads the table of a disk. Returns `None` if there is none.
    ///
    /// As in Linux, a GPT counts only if the MBR in front of it has a partition of the type 0xEE, or is empty.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with the place of damage in the table; errors of the device.
    pub fn read(device: &dyn Device) -> io::Result<Option<Table>> {
        if let Some(table) = logical::read(device)? {
            return Ok(Some(table));
        }
        let mbr = mbr::Sector::read(device)?;
        let is_mbr = mbr.as_ref().is_some_and(|mbr| !mbr.is_protective());
        match mbr {
            Some(mbr) if is_mbr => mbr.table(device).map(Some),
            _ => gpt::read(device),
        }
    }

    /// Returns the partition of this number, PARTUUID or name.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none, [`io::ErrorKind::InvalidInput`] if several have the name. The message
    /// lists the candidates.
    pub fn find(&self, selector: &str) -> io::Result<&Partition> {
        let has_id = |partition: &&Partition| {
            partition.id.as_ref().is_some_and(|id| id.eq_ignore_ascii_case(selector))
        };
        let has_name = |partition: &&Partition| partition.name.as_deref() == Some(selector);
        if let Ok(number) = selector.parse::<u32>() {
            let found = self.partitions.iter().find(|partition| partition.number == number);
            return found.ok_or_else(|| self.has_none(selector));
        }
        if let Some(found) = self.partitions.iter().find(has_id) {
            return Ok(found);
        }
        let named: Vec<&Partition> = self.partitions.iter().filter(has_name).collect();
        match named[..] {
            [] => Err(self.has_none(selector)),
            [found] => Ok(found),
            _ => {
                let numbers: Vec<_> = named.iter().map(|partition| partition.number.to_string()).collect();
                let what = format!(
                    "the partitions {} all have the name {selector:?}; give a number",
                    list(&numbers)
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, what))
            }
        }
    }

    fn has_none(&self, selector: &str) -> io::Error {
        let shown = |partition: &Partition| match &partition.name {
            Some(name) if !name.is_empty() => format!("{} ({name})", partition.number),
            _ => partition.number.to_string(),
        };
        let known: Vec<String> = self.partitions.iter().map(shown).collect();
        let what = format!("no partition {selector:?}; the {} table has {}", self.kind, list(&known));
        io::Error::new(io::ErrorKind::NotFound, what)
    }
}

/// Lists partitions in a message.
fn list(partitions: &[String]) -> String {
    match partitions.len() {
        0 => "none".to_owned(),
        1..=SHOWN_MAX => partitions.join(", "),
        all => format!("{} and {} more", partitions[..SHOWN_MAX].join(", "), all - SHOWN_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_list_a_limited_number_of_partitions() {
        let partition = |number| Partition {
            number,
            name: Some("data".into()),
            id: None,
            type_id: String::new(),
            extents: Vec::new(),
        };
        let table =
            Table { kind: TableKind::Mbr, partitions: (1..=1000).map(partition).collect(), conflict: None };
        for selector in ["data", "none"] {
            let error = table.find(selector).unwrap_err().to_string();
            assert!(error.contains(" and 968 more") && error.len() < 1000, "{error}");
        }
    }
}
