//! qcow2 images with backing files (QEMU, docs/interop/qcow2.txt), read and written.
//!
//! *Invariants*: an entry on the device refers only to data and tables that are durable, so a crash leaks clusters at most.
//! Memory is bounded: the L1 and the refcount table have QEMU's limits, and L2 tables are evicted. Neither readers nor
//! writers wait while the file is flushed, unless too many changes wait for a flush.

mod compressed;
mod header;
mod refcounts;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use block::{Device, DiscardUnit, FileDevice, Geometry};
use compressed::Compressed;
use header::{AUTOCLEAR_AT, Header};
pub use header::{Backing, MAGIC};
use refcounts::Refcounts;

use crate::bytes::{invalid, read as read_bytes};

/// Bits of an entry in the L1 and L2 tables.
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
const PLACE: u64 = 0x00FF_FFFF_FFFF_FE00;
/// Bits without a meaning in an entry of the L1 table, and in one of an L2 table that is not compressed.
const L1_RESERVED: u64 = !(COPIED | PLACE);
const L2_RESERVED: u64 = !(COPIED | COMPRESSED | PLACE | ZERO);
/// Memory for L2 tables in bytes.
const L2_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of clusters given up between two flushes of the tables.
const PENDING_MAX: usize = 4096;

/// The file that holds an image.
pub trait ImageFile: Device {
    /// Returns true if the file was opened for changes.
    fn is_writable(&self) -> bool;
    /// Changes the size of the file. New bytes are zeroes.
    fn set_size(&self, size_bytes: u64) -> io::Result<()>;
}

impl ImageFile for FileDevice {
    fn is_writable(&self) -> bool {
        FileDevice::is_writable(self)
    }

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        FileDevice::set_size(self, size_bytes)
    }
}

/// The disk in a qcow2 image.
pub struct Qcow2 {
    file: Arc<dyn ImageFile>,
    header: Header,
    backing: Option<Arc<dyn Device>>,
    /// Held by one flush at a time, before `writer`.
    flushing: Mutex<()>,
    /// Held by one writer at a time, before `tables`.
    writer: Mutex<Option<Writer>>,
    tables: Mutex<Tables>,
    /// The compressed cluster that was read last.
    unpacked: Mutex<Option<(Compressed, Arc<Vec<u8>>)>>,
}

/// The state of an image that is open for changes.
struct Writer {
    refcounts: Refcounts,
    has_cleared: bool,
    /// True after a flush that failed: the tables on the device may lack changes that memory no longer marks as
    /// changes.
    has_failed: bool,
    /// True during a flush, and after one that has panicked.
    is_flushing: bool,
}

/// The changes of tables that a flush makes durable.
struct Flush {
    /// L2 tables by their entries in the L1 table.
    l2: Vec<(usize, ChangedTable)>,
    /// Entries of the L1 table with their values.
    l1: Vec<(usize, u64)>,
    /// Clusters to which nothing on the device refers afterwards.
    frees: Vec<u64>,
}

struct ChangedTable {
    /// Place in the file.
    at: u64,
    bytes: Vec<u8>,
    version: u64,
}

struct Tables {
    l1: Vec<u64>,
    l1_changes: BTreeSet<usize>,
    /// L2 tables by their entries in the L1 table.
    l2: HashMap<usize, L2>,
    /// Number of uses so far.
    clock: u64,
}

struct L2 {
    entries: Vec<u64>,
    is_changed: bool,
    /// Number of changes.
    version: u64,
    used: u64,
}

/// The meaning of an entry in an L2 table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mapping {
    /// The cluster is that of the backing file.
    Hole,
    /// Zeroes, and the cluster that is reserved for them.
    Zero(Option<u64>),
    /// A cluster of the file, and true if it may be overwritten.
    Data(u64, bool),
    Packed(Compressed),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Qcow2 {
    /// Opens an image. `open_backing` opens its backing file. An image that must not be changed fails if `write` is set.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with the place of damage, [`io::ErrorKind::Unsupported`] for features that are not
    /// supported, errors of the file.
    pub fn open(
        file: Arc<dyn ImageFile>,
        open_backing: impl FnOnce(&Backing) -> io::Result<Arc<dyn Device>>,
    ) -> io::Result<Qcow2> {
        let header = Header::read(&*file)?;
        let writer = match (&header.read_only, file.is_writable()) {
            (_, false) => None,
            (Some(reason), true) => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("qcow2: no changes: {reason}"),
                ));
            }
            (None, true) => Some(Writer {
                refcounts: Refcounts::read(&*file, &header)?,
                has_cleared: header.autoclear == 0,
                has_failed: false,
                is_flushing: false,
            }),
        };
        let l1 = read_bytes(&*file, header.l1_at, header.l1_entries * 8)?.unwrap_or_default();
        let l1 = l1.chunks_exact(8).map(|entry| u64::from_be_bytes(entry.try_into().expect("8 bytes")));
        let l1: Vec<u64> = l1.collect();
        if writer.is_some() {
            check_l1(&l1)?;
        }
        let backing = header.backing.as_ref().map(open_backing).transpose()?;
        let tables = Tables { l1, l1_changes: BTreeSet::new(), l2: HashMap::new(), clock: 0 };
        let (writer, tables, unpacked) = (Mutex::new(writer), Mutex::new(tables), Mutex::new(None));
        Ok(Qcow2 { file, header, backing, flushing: Mutex::new(()), writer, tables, unpacked })
    }

    /// Number of entries in an L2 table.
    fn l2_entries(&self) -> u64 {
        self.header.cluster_bytes() / 8
    }

    /// Returns the L2 table of an entry in the L1 table, if there is one.
    fn l2<'a>(&self, tables: &'a mut Tables, index: usize) -> io::Result<Option<&'a mut L2>> {
        let entry = *tables.l1.get(index).ok_or_else(|| invalid("qcow2: the L1 table is too short"))?;
        if entry & L1_RESERVED != 0 {
            return Err(invalid(format!(
                "qcow2: entry {index} of the L1 table, {entry:#x}, has reserved bits"
            )));
        }
        let at = entry & PLACE;
        if at == 0 {
            return Ok(None);
        }
        tables.clock += 1;
        if !tables.l2.contains_key(&index) {
            let bytes = match at % self.header.cluster_bytes() {
                0 => read_bytes(&*self.file, at, self.header.cluster_bytes() as usize)?,
                _ => None,
            };
            let bytes = bytes.ok_or_else(|| {
                invalid(format!("qcow2: an L2 table at byte {at}, outside of the file or between clusters"))
            })?;
            let entries =
                bytes.chunks_exact(8).map(|entry| u64::from_be_bytes(entry.try_into().expect("8 bytes")));
            tables.make_space(self.tables_max());
            tables
                .l2
                .insert(index, L2 { entries: entries.collect(), is_changed: false, version: 0, used: 0 });
        }
        let clock = tables.clock;
        let l2 = tables.l2.get_mut(&index).expect("it was read");
        l2.used = clock;
        Ok(Some(l2))
    }

    fn tables_max(&self) -> usize {
        (L2_BYTES_MAX / self.header.cluster_bytes()).max(4) as usize
    }

    /// Returns the entry in the L1 table and the entry in the L2 table of a cluster.
    fn place(&self, cluster: u64) -> (usize, usize) {
        ((cluster / self.l2_entries()) as usize, (cluster % self.l2_entries()) as usize)
    }

    /// Returns true if the L1 table has an entry for a cluster.
    fn has_entry(&self, cluster: u64) -> bool {
        let (index, _) = self.place(cluster);
        lock(&self.tables).l1.get(index).is_none_or(|entry| *entry & !COPIED != 0)
    }

    fn mapping(&self, tables: &mut Tables, cluster: u64) -> io::Result<Mapping> {
        let (l1_index, l2_index) = self.place(cluster);
        let Some(l2) = self.l2(tables, l1_index)? else { return Ok(Mapping::Hole) };
        let entry = l2.entries[l2_index];
        if entry & COMPRESSED != 0 {
            return Ok(Mapping::Packed(Compressed::of(entry, &self.header)));
        }
        if entry & L2_RESERVED != 0 {
            return Err(invalid(format!(
                "qcow2: the entry of cluster {cluster}, {entry:#x}, has reserved bits"
            )));
        }
        let at = entry & PLACE;
        if at % self.header.cluster_bytes() != 0 {
            return Err(invalid(format!("qcow2: cluster {cluster} lies at byte {at}, between clusters")));
        }
        Ok(match at {
            _ if self.header.version > 2 && entry & ZERO != 0 => Mapping::Zero((at != 0).then_some(at)),
            0 => Mapping::Hole,
            at => Mapping::Data(at, entry & COPIED != 0),
        })
    }

    /// Reads a part of a cluster.
    fn read_mapped(&self, mapping: Mapping, cluster: u64, within: usize, buf: &mut [u8]) -> io::Result<()> {
        match mapping {
            Mapping::Zero(_) => buf.fill(0),
            Mapping::Data(at, _) => {
                let end = self.file.geometry().size_bytes;
                if at >= end {
                    return Err(behind_the_file(cluster, at, end));
                }
                // The file may end in the middle of the last cluster.
                let held = end.saturating_sub(at + within as u64).min(buf.len() as u64) as usize;
                if held > 0 {
                    self.file.read(at + within as u64, &mut buf[..held])?;
                }
                buf[held..].fill(0);
            }
            Mapping::Packed(packed) => {
                let bytes = self.unpack(packed)?;
                buf.copy_from_slice(&bytes[within..within + buf.len()]);
            }
            Mapping::Hole => {
                let at = cluster * self.header.cluster_bytes() + within as u64;
                let size = self.backing.as_ref().map_or(0, |backing| backing.geometry().size_bytes);
                let held = size.saturating_sub(at).min(buf.len() as u64) as usize;
                if let Some(backing) = self.backing.as_ref().filter(|_| held > 0) {
                    backing.read(at, &mut buf[..held])?;
                }
                buf[held..].fill(0);
            }
        }
        Ok(())
    }

    fn unpack(&self, packed: Compressed) -> io::Result<Arc<Vec<u8>>> {
        if let Some((_, bytes)) = lock(&self.unpacked).as_ref().filter(|(other, _)| *other == packed) {
            return Ok(bytes.clone());
        }
        let bytes = Arc::new(packed.read(&*self.file, &self.header)?);
        *lock(&self.unpacked) = Some((packed, bytes.clone()));
        Ok(bytes)
    }

    /// Writes a part of a cluster: in place if only this image has it, otherwise to a new cluster.
    fn write_cluster(&self, writer: &mut Writer, cluster: u64, within: usize, buf: &[u8]) -> io::Result<()> {
        let mapping = self.mapping(&mut lock(&self.tables), cluster)?;
        if let Mapping::Data(at, true) = mapping {
            let file_bytes = self.file.geometry().size_bytes;
            if at >= file_bytes {
                return Err(behind_the_file(cluster, at, file_bytes));
            }
            // The file may end in the middle of the last cluster.
            let end = at + self.header.cluster_bytes();
            if file_bytes < end {
                self.file.set_size(end)?;
            }
            return self.file.write(at + within as u64, buf);
        }
        let bytes;
        let content = match buf.len() as u64 == self.header.cluster_bytes() {
            true => buf,
            false => {
                let mut old = vec![0; self.header.cluster_bytes() as usize];
                self.read_mapped(mapping, cluster, 0, &mut old)?;
                old[within..within + buf.len()].copy_from_slice(buf);
                bytes = old;
                &bytes
            }
        };
        let at = writer.refcounts.allocate(&*self.file)?;
        self.file.write(at, content)?;
        self.remap(writer, cluster, mapping, at | COPIED)
    }

    /// Changes the entry of a cluster and gives up the data that it had.
    fn remap(&self, writer: &mut Writer, cluster: u64, old: Mapping, entry: u64) -> io::Result<()> {
        let (l1_index, l2_index) = self.place(cluster);
        let tables = &mut *lock(&self.tables);
        match tables.l1[l1_index] {
            hole if hole & PLACE == 0 => {
                let at = writer.refcounts.allocate(&*self.file)?;
                tables.l1[l1_index] = at | COPIED;
                tables.l1_changes.insert(l1_index);
                tables.make_space(self.tables_max());
                let entries = vec![0; self.l2_entries() as usize];
                let used = tables.clock;
                tables.l2.insert(l1_index, L2 { entries, is_changed: true, version: 0, used });
            }
            shared if shared & COPIED == 0 => {
                let at = shared & PLACE;
                return Err(invalid(format!(
                    "qcow2: the L2 table at byte {at} is shared; qemu-img check says more"
                )));
            }
            _ => {}
        }
        let l2 = self.l2(tables, l1_index)?.expect("it was made");
        l2.entries[l2_index] = entry;
        (l2.is_changed, l2.version) = (true, l2.version + 1);
        let bits = self.header.cluster_bits;
        match old {
            Mapping::Hole | Mapping::Zero(None) => {}
            Mapping::Data(at, _) | Mapping::Zero(Some(at)) => writer.refcounts.free(at >> bits),
            Mapping::Packed(packed) => {
                packed.clusters(&self.header).for_each(|cluster| writer.refcounts.free(cluster))
            }
        }
        Ok(())
    }

    /// Calls `change` for each cluster of a range, with the part of the range in it as offsets from its start.
    fn change(
        &self,
        offset: u64,
        length: u64,
        mut change: impl FnMut(&mut Writer, u64, usize, std::ops::Range<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let cluster_bytes = self.header.cluster_bytes();
        let mut done = 0;
        while done < length {
            let at = offset + done;
            let within = at % cluster_bytes;
            let part = (cluster_bytes - within).min(length - done);
            let are_many = {
                let mut writer = lock(&self.writer);
                let writer = writer.as_mut().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
                writer.check()?;
                if !writer.has_cleared {
                    self.file.write(AUTOCLEAR_AT, &[0; 8])?;
                    writer.has_cleared = true;
                }
                change(writer, at / cluster_bytes, within as usize, done..done + part)?;
                lock(&self.tables).changed() >= self.tables_max() / 2
                    || writer.refcounts.pending() > PENDING_MAX
            };
            done += part;
            if are_many {
                self.flush_all()?;
            }
        }
        Ok(())
    }

    /// Flushes everything that was written before, unless a flush has failed before. Others may read and write meanwhile.
    fn flush_all(&self) -> io::Result<()> {
        let _flushing = lock(&self.flushing);
        let flushed =
            self.begin_flush().and_then(|flush| flush.map_or(Ok(()), |flush| self.flush_in_order(flush)));
        if let Some(writer) = lock(&self.writer).as_mut() {
            writer.has_failed |= flushed.is_err();
            writer.is_flushing = false;
        }
        flushed
    }

    /// Takes the changes of tables that refer to what was written so far. `None` for an image that is not open for changes.
    fn begin_flush(&self) -> io::Result<Option<Flush>> {
        let mut writer = lock(&self.writer);
        let Some(writer) = writer.as_mut() else { return Ok(None) };
        writer.check()?;
        if std::mem::replace(&mut writer.is_flushing, true) {
            return Err(io::Error::other("qcow2: an earlier flush was broken off"));
        }
        writer.refcounts.write(&*self.file)?;
        let tables = &mut *lock(&self.tables);
        let changed = tables.l2.iter().filter(|(_, l2)| l2.is_changed);
        let l2 = changed.map(|(index, l2)| {
            let bytes = l2.entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
            (*index, ChangedTable { at: tables.l1[*index] & PLACE, bytes, version: l2.version })
        });
        let l2 = l2.collect();
        let l1 = std::mem::take(&mut tables.l1_changes).into_iter();
        let l1 = l1.map(|index| (index, tables.l1[index])).collect();
        Ok(Some(Flush { l2, l1, frees: writer.refcounts.take_frees() }))
    }

    /// Makes data durable, then the tables that refer to it, then frees the clusters to which nothing refers any more.
    fn flush_in_order(&self, flush: Flush) -> io::Result<()> {
        let Flush { l2, l1, frees } = flush;
        self.file.flush()?;
        for (_, table) in &l2 {
            self.file.write(table.at, &table.bytes)?;
        }
        // Until here they are changed, so that they stay in memory.
        for (index, table) in &l2 {
            let tables = &mut *lock(&self.tables);
            if let Some(l2) = tables.l2.get_mut(index).filter(|l2| l2.version == table.version) {
                l2.is_changed = false;
            }
        }
        if !l1.is_empty() {
            self.file.flush()?;
            for (index, entry) in l1 {
                self.file.write(self.header.l1_at + 8 * index as u64, &entry.to_be_bytes())?;
            }
        }
        if !l2.is_empty() {
            self.file.flush()?;
        }
        let mut writer = lock(&self.writer);
        let Some(writer) = writer.as_mut() else { return Ok(()) };
        writer.refcounts.apply_frees(&*self.file, frees)?;
        writer.refcounts.write(&*self.file)
    }

    /// Gives up a whole cluster. It reads as zeroes afterwards.
    fn discard_cluster(&self, writer: &mut Writer, cluster: u64) -> io::Result<()> {
        let mapping = self.mapping(&mut lock(&self.tables), cluster)?;
        match (mapping, &self.backing) {
            (Mapping::Hole | Mapping::Zero(None), _) => Ok(()),
            (_, None) => self.remap(writer, cluster, mapping, 0),
            // A cluster of zeroes hides that of the backing file.
            (_, Some(_)) if self.header.version > 2 => self.remap(writer, cluster, mapping, ZERO),
            (_, Some(_)) => Ok(()),
        }
    }
}

/// Error of a cluster that the file does not have. A write there would make a file of any size.
fn behind_the_file(cluster: u64, at: u64, end: u64) -> io::Error {
    invalid(format!("qcow2: cluster {cluster} lies at byte {at}, behind the end of the file at {end}"))
}

/// Refuses an L1 table in which two entries have one L2 table: a change of one part of the disk would change another.
fn check_l1(l1: &[u64]) -> io::Result<()> {
    let mut places = HashSet::new();
    for at in l1.iter().map(|entry| entry & PLACE).filter(|at| *at != 0) {
        if !places.insert(at) {
            return Err(invalid(format!(
                "qcow2: two entries of the L1 table refer to byte {at}; qemu-img check says more"
            )));
        }
    }
    Ok(())
}

impl Writer {
    fn check(&self) -> io::Result<()> {
        match self.has_failed || self.refcounts.is_table_unknown() {
            false => Ok(()),
            true => Err(io::Error::other(
                "qcow2: an earlier write of tables failed; the image takes no more changes",
            )),
        }
    }
}

impl Tables {
    fn changed(&self) -> usize {
        self.l2.values().filter(|l2| l2.is_changed).count()
    }

    /// Evicts the table that was used least recently and has no changes, if there are too many.
    fn make_space(&mut self, most: usize) {
        if self.l2.len() < most {
            return;
        }
        let unchanged = self.l2.iter().filter(|(_, l2)| !l2.is_changed);
        if let Some(oldest) = unchanged.min_by_key(|(_, l2)| l2.used).map(|(index, _)| *index) {
            self.l2.remove(&oldest);
        }
    }
}

impl Device for Qcow2 {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.header.size_bytes, sector_bytes: block::ATOMIC_BYTES as u32 }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        let cluster_bytes = self.header.cluster_bytes();
        let mut done = 0;
        while done < buf.len() {
            let at = offset_bytes + done as u64;
            let within = (at % cluster_bytes) as usize;
            let part = (cluster_bytes as usize - within).min(buf.len() - done);
            let mapping = self.mapping(&mut lock(&self.tables), at / cluster_bytes)?;
            self.read_mapped(mapping, at / cluster_bytes, within, &mut buf[done..done + part])?;
            done += part;
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry().check_write(offset_bytes, buf.len())?;
        self.change(offset_bytes, buf.len() as u64, |writer, cluster, within, part| {
            self.write_cluster(writer, cluster, within, &buf[part.start as usize..part.end as usize])
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.flush_all()
    }

    /// Gives up the whole clusters of the range. A part of the disk without an L2 table takes one step, so that the work is
    /// bounded whatever size the header claims.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if !self.geometry().contains(offset_bytes, length_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let cluster_bytes = self.header.cluster_bytes();
        let start = offset_bytes.next_multiple_of(cluster_bytes);
        let end = (offset_bytes + length_bytes) / cluster_bytes * cluster_bytes;
        if start >= end {
            return Ok(());
        }
        if lock(&self.writer).is_none() {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let table_reach_bytes = self.l2_entries() * cluster_bytes;
        let mut at = start;
        while at < end {
            let stop = (at / table_reach_bytes + 1).saturating_mul(table_reach_bytes).min(end);
            if self.has_entry(at / cluster_bytes) {
                self.change(at, stop - at, |writer, cluster, _, _| self.discard_cluster(writer, cluster))?;
            }
            at = stop;
        }
        Ok(())
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        Some(DiscardUnit { bytes: self.header.cluster_bytes(), first_bytes: 0 })
    }
}
