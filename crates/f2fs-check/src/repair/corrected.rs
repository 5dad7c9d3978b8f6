//! The state that roll-forward begins with: the device, under the corrections that the check knows.
//!
//! The engine refuses a volume with a wrong entry in NAT or SIT, or with an address outside the main area in the chain of
//! fsynced nodes. None of them is a reason to lose the fsyncs. The corrections lie in an overlay, which serves the engine
//! only: the entries on the device stay as they are until the repair computes the tables anew.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use block::{Device, Overlay};
use f2fs::{
    Error, Place, Result,
    engine::Io,
    format::{
        BLOCKS_PER_SEGMENT,
        checkpoint::Flags,
        nat::{self, NatEntry},
        node::{NodeBlock, NodeFooter, NodeFormat},
        orphan,
        sit::{self, MAP_BYTES, SegmentType, SitEntry},
        summary::FOOTER_BYTES,
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};

use super::{space::index, tables::Tables};
use crate::{
    Fix, Kind, Report,
    bitmap::Bitmap,
    chain::named_count,
    segments::{Content, Contents, Segments},
};

/// Maximum number of nodes of a chain that are followed.
const NODES_MAX: usize = 1 << 20;
/// Maximum number of nodes of a chain in which addresses are cleared.
const CLEARED_MAX: usize = 1 << 14;

/// A state for roll-forward.
pub struct Corrected {
    /// The device with the corrections.
    pub device: Arc<dyn Device>,
    /// Number of addresses of fsynced blocks that are cleared, because they lie outside the main area, or belong to other
    /// files.
    pub cleared: u64,
}

/// Puts corrections over a device: an orphan list without wrong entries, the entries of NAT and SIT according to the check,
/// and a chain of fsynced nodes without addresses outside the main area or of other files' blocks.
///
/// # Errors
/// [`Error::Corrupt`] without usable tables, or if the chain has more wrong nodes than are followed.
pub fn corrected(device: &Arc<dyn Device>, report: &Report, segments: &Segments) -> Result<Corrected> {
    let tables = Tables::read(device.clone())?;
    let overlay: Arc<dyn Device> = Arc::new(Overlay::new(device.clone()));
    let io = Io::new(overlay.clone(), tables.geometry.block_size);
    let correction = Correction { tables, io, report };
    correction.orphans()?;
    correction.nat()?;
    let (named, cleared) = correction.chain()?;
    correction.sit(segments, &named)?;
    Ok(Corrected { device: overlay, cleared })
}

/// The nodes of the chain in their order, up to one that was visited before.
pub fn chain(tables: &Tables) -> Vec<Place> {
    let (mut addr, mut seen, mut nodes) = (tables.chain_start(), HashSet::new(), Vec::new());
    while tables.geometry.in_main(addr) && seen.insert(addr) && nodes.len() < NODES_MAX {
        let Ok(block) = tables.io.read_block(addr, Place::Block(addr)) else { break };
        let footer = NodeFooter::of(&block);
        if !tables.pack.checkpoint.is_written_after(footer.cp_ver) {
            break;
        }
        nodes.push(Place::Node(footer.nid, addr));
        addr = footer.next_addr;
    }
    nodes
}

struct Correction<'a> {
    /// The tables of the device.
    tables: Tables,
    /// Access to the overlay.
    io: Io,
    /// The result of the check.
    report: &'a Report,
}

impl Correction<'_> {
    /// Takes wrong entries out of the list of orphans, which may name files in use. The pack on the device stays: the
    /// checkpoint after roll-forward has a list of its own.
    fn orphans(&self) -> Result<()> {
        let report = self.report;
        let wrong: HashSet<u32> = report.fixes().iter().filter_map(wrong_orphan).collect();
        if wrong.is_empty() && report.count(Kind::OrphanBlock) == 0 {
            return Ok(());
        }
        let tables = &self.tables;
        let orphans = tables.pack.orphans.iter().copied();
        let orphans: Vec<Ino> = orphans.filter(|ino| !wrong.contains(&ino.0)).collect();
        let size = tables.geometry.block_size;
        let first = 1 + tables.superblock.cp_payload;
        let count = tables.pack.checkpoint.summaries_start.saturating_sub(first) as usize;
        let mut list = orphan::encode(&orphans, size);
        list.resize(count * size.bytes(), 0);
        let start = BlockAddr(tables.geometry.pack(tables.pack.number).0 + first);
        self.io.write(start, Place::Checkpoint(tables.pack.number), &list)
    }

    /// Sets the entries of the NAT that the check restores, in the journal or else in the table.
    fn nat(&self) -> Result<()> {
        let fixes = self.report.fixes();
        let size = self.tables.geometry.block_size;
        let entry = |fix: &Fix| match *fix {
            Fix::Nat { nid, ino, addr } => {
                let version = self.tables.nat_entry(nid).version;
                Some((nid.0, NatEntry { version, ino, addr }.to_bytes().to_vec()))
            }
            _ => None,
        };
        let mut entries: BTreeMap<u32, Vec<u8>> = fixes.iter().filter_map(entry).collect();
        let [journal, _] = self.journals();
        let journaled = self.tables.pack.nat_journal.iter();
        let journaled = journaled.map(|(nid, entry)| (nid.0, entry.to_bytes().to_vec()));
        self.put_journal(journal, journaled, &mut entries)?;
        let place = |nid: u32| nat::position(Nid(nid), size);
        let addr = |index| self.tables.geometry.nat_block(index, self.tables.nat_copy(index));
        let stored = |index| self.tables.nat_block(index);
        self.put_in_table(&entries, place, addr, stored)
    }

    /// Sets the entries of the SIT that are wrong. Blocks that are marked and that nothing names stay marked: a repair
    /// decides on them later. If a node of the chain names them, in `named`, they are not in use before it.
    fn sit(&self, segments: &Segments, named: &Bitmap) -> Result<()> {
        let mut entries = BTreeMap::new();
        for segment in segments.all() {
            if let Some(entry) = self.sit_entry(segments, segment, named) {
                entries.insert(segment.0, entry.to_bytes().to_vec());
            }
        }
        let [_, journal] = self.journals();
        let journaled = self.tables.pack.sit_journal.iter();
        let journaled = journaled.map(|(segment, bytes)| (segment.0, bytes.to_vec()));
        self.put_journal(journal, journaled, &mut entries)?;
        let place = |segment: u32| sit::position(SegNo(segment), self.tables.geometry.block_size);
        let addr = |index| self.tables.geometry.sit_block(index, self.tables.sit_copy(index));
        let stored = |index| self.tables.sit_block(index);
        self.put_in_table(&entries, place, addr, stored)
    }

    /// The right entry of a segment; `None` if the stored one is right.
    fn sit_entry(&self, segments: &Segments, segment: SegNo, named: &Bitmap) -> Option<SitEntry> {
        let (valid, claimed) = segments.maps(segment);
        let at = segment.index() * MAP_BYTES;
        let named = &named.bytes()[at..at + MAP_BYTES];
        let mut map = [0; MAP_BYTES];
        for (n, byte) in map.iter_mut().enumerate() {
            *byte = claimed[n] | valid[n] & !named[n];
        }
        let valid_blocks = map.iter().map(|byte| byte.count_ones() as u16).sum();
        let stored = segments.kind(segment);
        let logs = &self.tables.pack.checkpoint.logs;
        let log = SegmentType::ALL.into_iter().find(|kind| logs[kind.index()].segment == segment);
        let usual = log.or(stored).unwrap_or(SitEntry::EMPTY.kind);
        let kind = match segments.content(segment) {
            Some(Content::Node) if !usual.is_node() => SegmentType::WarmNode,
            Some(Content::Data) if usual.is_node() => SegmentType::WarmData,
            _ => usual,
        };
        let is_right = stored == Some(kind) && segments.count(segment) == valid_blocks && valid == map;
        let (index, slot) = sit::position(segment, self.tables.geometry.block_size);
        let mtime = || {
            let block = self.tables.sit_block(index);
            let bytes = block.as_deref().map(|block| &block[slot * sit::ENTRY_BYTES..][..sit::ENTRY_BYTES]);
            self.tables.segment_time(segment, bytes.unwrap_or_default())
        };
        (!is_right).then(|| SitEntry { kind, valid_blocks, map, mtime: mtime() })
    }

    /// Walks through the chain, and clears addresses outside the main area and of other files' blocks. Returns the blocks that
    /// are in use after the chain: its nodes, and those that they name, with the number of cleared addresses.
    fn chain(&self) -> Result<(Bitmap, u64)> {
        let geometry = self.tables.geometry;
        let mut named = Bitmap::new(u64::from(geometry.segments) * u64::from(BLOCKS_PER_SEGMENT));
        let (mut cleared, mut changed) = (0, 0);
        for at in chain(&self.tables) {
            let Place::Node(nid, addr) = at else { continue };
            let bytes = self.tables.io.read_block(addr, at)?;
            let ino = NodeFooter::of(&bytes).ino;
            let format = NodeFormat::of(&self.tables.superblock);
            let Ok(mut node) = NodeBlock::check(format, bytes, nid, ino, addr) else { break };
            named.set(index(&geometry, addr));
            let mut wrong = 0;
            for n in 0..named_count(geometry.block_size, &node) {
                let to = node.addr(n);
                if geometry.in_main(to) && !self.report.is_foreign(addr, n) {
                    named.set(index(&geometry, to));
                } else if to.is_real() {
                    node.set_addr(n, BlockAddr::NULL);
                    wrong += 1;
                }
            }
            if wrong > 0 {
                if changed == CLEARED_MAX {
                    return Err(Error::corrupt(at, "the chain has too many nodes with wrong addresses"));
                }
                (cleared, changed) = (cleared + wrong, changed + 1);
                node.seal();
                self.io.write(addr, at, node.bytes())?;
            }
        }
        Ok((named, cleared))
    }

    /// Places of the NAT journal and of the SIT journal: block, and offset in bytes.
    fn journals(&self) -> [(BlockAddr, usize); 2] {
        let (geometry, pack) = (&self.tables.geometry, &self.tables.pack);
        let first = geometry.pack(pack.number).0 + pack.checkpoint.summaries_start;
        let journal = geometry.summary.journal_bytes();
        match pack.checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => [(BlockAddr(first), 0), (BlockAddr(first), journal)],
            false => {
                let at = geometry.summary.bytes() - FOOTER_BYTES - journal;
                let block = |log: SegmentType| BlockAddr(first + log.index() as u32);
                [(block(SegmentType::HotData), at), (block(SegmentType::ColdData), at)]
            }
        }
    }

    /// Writes a journal anew, without entries that are none: an impossible key or count is refused by the engine, with all
    /// other entries. Takes those of `entries` that the journal has into it. `stored` are its usable entries, of which the
    /// last one of a key counts.
    fn put_journal(
        &self,
        (addr, at): (BlockAddr, usize),
        stored: impl Iterator<Item = (u32, Vec<u8>)>,
        entries: &mut BTreeMap<u32, Vec<u8>>,
    ) -> Result<()> {
        let mut journal: BTreeMap<u32, Vec<u8>> = stored.collect();
        for (key, bytes) in &mut journal {
            if let Some(right) = entries.remove(key) {
                *bytes = right;
            }
        }
        let count = u16::try_from(journal.len()).expect("a journal has at most a few hundred entries");
        let mut new = count.to_le_bytes().to_vec();
        for (key, bytes) in journal {
            new.extend_from_slice(&key.to_le_bytes());
            new.extend_from_slice(&bytes);
        }
        new.resize(self.tables.geometry.summary.journal_bytes(), 0);
        let place = Place::Checkpoint(self.tables.pack.number);
        let mut block = self.io.read_block(addr, place)?;
        let area = &mut block[at..at + new.len()];
        if area == new {
            return Ok(());
        }
        area.copy_from_slice(&new);
        self.io.write(addr, place, &block)
    }

    /// Sets entries in the current copies of the blocks of a table. A block that cannot be read has no others.
    fn put_in_table(
        &self,
        entries: &BTreeMap<u32, Vec<u8>>,
        place: impl Fn(u32) -> (u32, usize),
        addr: impl Fn(u32) -> BlockAddr,
        stored: impl Fn(u32) -> Option<Box<[u8]>>,
    ) -> Result<()> {
        let mut open: Option<(u32, Box<[u8]>)> = None;
        let write = |(index, block): (u32, Box<[u8]>)| {
            let addr = addr(index);
            self.io.write(addr, Place::Block(addr), &block)
        };
        for (key, bytes) in entries {
            let (index, slot) = place(*key);
            if open.as_ref().is_none_or(|(open, _)| *open != index) {
                open.take().map_or(Ok(()), &write)?;
                let blank = || vec![0; self.tables.geometry.block_size.bytes()].into_boxed_slice();
                open = Some((index, stored(index).unwrap_or_else(blank)));
            }
            if let Some((_, block)) = &mut open {
                block[slot * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        open.map_or(Ok(()), &write)
    }
}

fn wrong_orphan(fix: &Fix) -> Option<u32> {
    match fix {
        Fix::NoOrphan(ino) => Some(ino.0),
        _ => None,
    }
}
