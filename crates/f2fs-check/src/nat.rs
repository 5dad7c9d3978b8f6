//! Reading of the NAT (node address table) into a [`Table`].

use f2fs::{
    Place,
    engine::{Geometry, Io},
    format::{
        BLOCKS_PER_SEGMENT, TableCopy, bits,
        checkpoint::RESERVED_NIDS,
        nat::{self, NatEntry},
    },
    units::{BlockAddr, Nid},
};

use crate::{
    Certainty, Finding, Kind, Progress, Report, Stage,
    packs::Pack,
    reader::read_again,
    segments::is_erased,
    table::{Table, fact},
};

/// Address in the reserved entries.
const RESERVED_ADDR: u32 = 1;

/// The table, and the nodes without a usable address.
pub struct Nodes {
    /// All nodes in use.
    pub table: Table,
    /// Nodes whose address is outside the main area.
    pub lost: Vec<(Nid, BlockAddr)>,
}

/// Reads the current copy of every NAT block, and the journal over them.
pub fn read(
    io: &Io,
    geometry: &Geometry,
    pack: &Pack,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Nodes {
    let mut reading = Reading {
        geometry,
        pack,
        report,
        journal: &pack.nat_journal,
        nodes: Nodes { table: Table::new(geometry.nids_end()), lost: Vec::new() },
    };
    let size = io.block_size().bytes();
    let blocks = geometry.nat_blocks();
    let mut buffer = vec![0; 2 * BLOCKS_PER_SEGMENT as usize * size];
    for start in (0..blocks).step_by(BLOCKS_PER_SEGMENT as usize) {
        progress(Progress {
            stage: Stage::Nat,
            done_bytes: u64::from(start) * size as u64,
            total_bytes: u64::from(blocks) * size as u64,
        });
        let range = start..(start + BLOCKS_PER_SEGMENT).min(blocks);
        let seconds = range.clone().map(|index| TableCopy::current(&pack.checkpoint.nat_bitmap, index));
        let seconds = seconds.filter(|copy| *copy == TableCopy::Second).count();
        // Both copies of a segment of the table lie one after the other.
        let copy = if seconds == range.len() { TableCopy::Second } else { TableCopy::First };
        let first = geometry.nat_block(start, copy);
        let length = if seconds % range.len() == 0 { range.len() } else { buffer.len() / size };
        let bytes = &mut buffer[..length * size];
        let whole = io.read(first, Place::Block(first), bytes).is_ok();
        for index in range {
            let copy = TableCopy::current(&pack.checkpoint.nat_bitmap, index);
            let addr = geometry.nat_block(index, copy);
            let at = (addr.0 - first.0) as usize * size;
            let block = &mut bytes[at..at + size];
            if !whole {
                if let Err(error) = read_again(io, addr, block) {
                    let known = format!("NAT block {index} cannot be read: {error}");
                    reading.report.add(Finding::new(Kind::TableUnreadable, Place::Block(addr), known));
                    block.fill(0);
                }
            }
            reading.block(index, block);
        }
    }
    reading.nodes.table.finish();
    reading.nodes
}

struct Reading<'a> {
    geometry: &'a Geometry,
    pack: &'a Pack,
    report: &'a mut Report,
    /// The rest of the journal, in the order of the nids.
    journal: &'a [(Nid, NatEntry)],
    nodes: Nodes,
}

impl Reading<'_> {
    fn block(&mut self, index: u32, block: &mut [u8]) {
        self.erased(index, block);
        let count = block.len() / nat::ENTRY_BYTES;
        let first = index as usize * count;
        let journaled = self.journal.first().is_some_and(|(nid, _)| nid.index() < first + count);
        self.nat_bits(index, block);
        if is_zero(block) && !journaled {
            return;
        }
        for at in 0..count {
            let Ok(nid) = u32::try_from(first + at).map(Nid) else { return };
            if nid >= self.geometry.nids_end() {
                return;
            }
            let mut entry = nat::entry(block, at);
            while let Some(((journal_nid, newer), rest)) = self.journal.split_first() {
                if *journal_nid > nid {
                    break;
                }
                if *journal_nid == nid {
                    entry = *newer;
                }
                self.journal = rest;
            }
            self.entry(nid, entry);
        }
    }

    /// Clears the erased entries of a block, and reports them together.
    fn erased(&mut self, index: u32, block: &mut [u8]) {
        let count = clear_erased_entries(block);
        let first = index as usize * (block.len() / nat::ENTRY_BYTES);
        if let (1.., Ok(first)) = (count, u32::try_from(first)) {
            let known = format!("{count} entries of NAT block {index}, which begins here, are all ones");
            let finding = Finding::new(Kind::NatAddress, Place::Nat(Nid(first)), known);
            let finding = finding.repaired_by("clear the erased entries");
            self.report.add(finding.with_certainty(Certainty::Certain));
        }
    }

    fn entry(&mut self, nid: Nid, entry: NatEntry) {
        if nid.0 < RESERVED_NIDS {
            self.reserved(nid, entry);
            return;
        }
        if entry.is_free() {
            return;
        }
        let usable = self.geometry.in_main(entry.addr);
        if !usable {
            self.nodes.lost.push((nid, entry.addr));
        }
        self.nodes.table.push(nid, entry, if usable { 0 } else { fact::BROKEN });
    }

    fn reserved(&mut self, nid: Nid, entry: NatEntry) {
        let known = match nid {
            Nid::NULL if entry.is_free() => return,
            Nid::NULL => format!("address {}; must be 0", entry.addr.0),
            _ if entry.addr.0 == RESERVED_ADDR && entry.ino.0 == nid.0 => return,
            _ => format!("address {}, inode {}; must be 1 and {}", entry.addr.0, entry.ino.0, nid.0),
        };
        self.report.add(Finding::new(Kind::NatReserved, Place::Nat(nid), known));
    }

    /// Compares the full and empty maps with a block of the table. Linux takes the nids of a block that is
    /// marked as empty for free.
    fn nat_bits(&mut self, index: u32, block: &[u8]) {
        let Some((full, empty)) = &self.pack.nat_bits else { return };
        let count = block.len() / nat::ENTRY_BYTES;
        let mut used = used_entries(block);
        if index == 0 && nat::entry(block, 0).is_free() {
            // Nid 0 counts as used.
            used += 1;
        }
        let marks = (bits::lsb(full, index as usize), bits::lsb(empty, index as usize));
        let wrong = match marks {
            (false, false) => false,
            (true, false) => used != count,
            (false, true) => used != 0,
            (true, true) => true,
        };
        if wrong {
            let known = format!(
                "NAT block {index} with {used} of {count} entries in use is marked {}",
                match marks {
                    (true, true) => "full and empty",
                    (true, false) => "full",
                    _ => "empty",
                }
            );
            self.report.add(Finding::new(Kind::NatBits, Place::Checkpoint(self.pack.number), known));
        }
    }
}

/// Clears the [erased](is_erased) entries of a block of the table, and returns their number.
pub fn clear_erased_entries(block: &mut [u8]) -> usize {
    let erased = block.chunks_exact_mut(nat::ENTRY_BYTES).filter(|entry| is_erased(entry));
    erased.map(|entry| entry.fill(0)).count()
}

/// Counts the entries of a block of the table that are in use.
fn used_entries(block: &[u8]) -> usize {
    if is_zero(block) {
        return 0;
    }
    (0..block.len() / nat::ENTRY_BYTES).filter(|at| !nat::entry(block, *at).is_free()).count()
}

/// Returns true if a block is all zeroes: all its entries are free.
fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}
