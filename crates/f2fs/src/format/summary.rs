//! Segment summaries: the owner of each block of a segment, and the NAT and SIT journals beside them.
//!
//! A summary block holds 7-byte entries (one per block of the segment), a journal and a 5-byte footer. The
//! NAT journal is in the summary of the hot data log's current segment, the SIT journal in the cold data
//! log's. The hot node log's journal area holds the number of kilobytes ever written. Journal entries
//! override the tables. In a checkpoint, the data summaries may have the compact form: both journals, then
//! only the used entries.

use super::{
    BLOCKS_PER_SEGMENT, BlockSize,
    nat::{self, NatEntry},
    sit::{self, SegmentType, SitEntry},
    superblock::Features,
};
use crate::{
    Error, Place, Result,
    units::{Nid, SegNo},
};

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 7;
/// Bytes of the footer.
pub const FOOTER_BYTES: usize = 5;
/// Bytes of a NAT journal entry: nid and NAT entry.
const NAT_JOURNAL_BYTES: usize = 4 + nat::ENTRY_BYTES;
/// Bytes of a SIT journal entry: segment and SIT entry.
const SIT_JOURNAL_BYTES: usize = 4 + sit::ENTRY_BYTES;
/// Meaningful entries: one per block of the segment.
const ENTRIES: usize = BLOCKS_PER_SEGMENT as usize;

/// Owner of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// For a data block, the inode or direct node that maps it. For a node block, the node itself.
    pub nid: Nid,
    /// For a data block, the NAT version of that node when the block was written.
    pub version: u8,
    /// For a data block, the index of its address in that node, counted after the extra attributes.
    pub offset: u16,
}

impl Owner {
    fn parse(bytes: &[u8]) -> Owner {
        Owner {
            nid: Nid(u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))),
            version: bytes[4],
            offset: u16::from_le_bytes([bytes[5], bytes[6]]),
        }
    }

    fn store(self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.nid.0.to_le_bytes());
        bytes[4] = self.version;
        bytes[5..7].copy_from_slice(&self.offset.to_le_bytes());
    }
}

/// Sizes of a summary block. It is as large as a block, or with packed_ssa always 4096 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Size of the blocks that summaries lie in.
    block: BlockSize,
    /// Bytes of a summary block.
    bytes: usize,
}

impl Layout {
    /// The layout of a volume with these features.
    #[must_use]
    pub fn new(block: BlockSize, features: Features) -> Layout {
        let is_packed = features.has(Features::PACKED_SSA);
        Layout { block, bytes: if is_packed { 4096 } else { block.bytes() } }
    }

    /// Bytes of a summary block.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Bytes of all entries; for blocks of 16 KiB there are 2048, of which 512 are used.
    fn entries_bytes(self) -> usize {
        self.bytes / 8 * ENTRY_BYTES
    }

    /// Bytes of a journal, its count included: 507 or 2043.
    #[must_use]
    pub fn journal_bytes(self) -> usize {
        self.bytes - self.entries_bytes() - FOOTER_BYTES
    }

    /// Entries that a NAT journal can hold: 38 or 157.
    #[must_use]
    pub fn nat_journal_entries(self) -> usize {
        (self.journal_bytes() - 2) / NAT_JOURNAL_BYTES
    }

    /// Entries that a SIT journal can hold: 6 or 26.
    #[must_use]
    pub fn sit_journal_entries(self) -> usize {
        (self.journal_bytes() - 2) / SIT_JOURNAL_BYTES
    }

    /// Entries in the first block of the compact form, and in each later one: 439 and 584.
    fn compact_entries(self) -> (usize, usize) {
        let room = self.block.bytes() - FOOTER_BYTES;
        ((room - 2 * self.journal_bytes()) / ENTRY_BYTES, room / ENTRY_BYTES)
    }

    /// Blocks of the compact form for a number of entries. The form is used if this is less than three
    /// (Linux, `f2fs_npages_for_summary_flush`).
    #[must_use]
    pub fn compact_blocks(self, entries: usize) -> usize {
        let (first, later) = self.compact_entries();
        1 + entries.saturating_sub(first).div_ceil(later)
    }
}

/// The summary of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// True if the segment holds nodes.
    pub is_node: bool,
    /// The owner of each of the 512 blocks. Owners of invalid blocks are undefined.
    pub owners: Box<[Owner; ENTRIES]>,
}

impl Summary {
    /// The summary of an empty segment of type `kind`.
    #[must_use]
    pub fn empty(kind: SegmentType) -> Summary {
        Summary { is_node: kind.is_node(), owners: Box::new([Owner::default(); ENTRIES]) }
    }

    /// Reads a summary block. Its journal is read with `Journal::parse_nat` or `Journal::parse_sit`.
    #[must_use]
    pub fn parse(block: &[u8], layout: Layout) -> Summary {
        let is_node = block[layout.bytes - FOOTER_BYTES] == 1;
        let mut summary = Summary { is_node, owners: Box::new([Owner::default(); ENTRIES]) };
        for (owner, bytes) in summary.owners.iter_mut().zip(block.chunks_exact(ENTRY_BYTES)) {
            *owner = Owner::parse(bytes);
        }
        summary
    }

    /// The summary block with an empty journal, or with the given one.
    #[must_use]
    pub fn encode(&self, layout: Layout, journal: Option<&Journal>) -> Vec<u8> {
        let mut block = vec![0; layout.bytes];
        for (owner, bytes) in self.owners.iter().zip(block.chunks_exact_mut(ENTRY_BYTES)) {
            owner.store(bytes);
        }
        if let Some(journal) = journal {
            let at = layout.entries_bytes();
            block[at..at + layout.journal_bytes()].copy_from_slice(&journal.encode(layout));
        }
        block[layout.bytes - FOOTER_BYTES] = u8::from(self.is_node);
        block
    }

    /// The bytes of a summary block's journal.
    #[must_use]
    pub fn journal_of(block: &[u8], layout: Layout) -> &[u8] {
        &block[layout.entries_bytes()..][..layout.journal_bytes()]
    }
}

/// Form of the data logs' summaries in a checkpoint pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataSummaries {
    /// Both journals, then the entries in use.
    Compact,
    /// A summary block for each log.
    Full,
}

/// Content of a journal area. Its kind follows from the log whose summary it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Journal {
    /// NAT entries, in the hot data log.
    Nat(Vec<(Nid, NatEntry)>),
    /// SIT entries, in the cold data log.
    Sit(Vec<(SegNo, SitEntry)>),
    /// Kilobytes written to the volume, ever, in the hot node log.
    Written(u64),
}

impl Journal {
    /// Reads a NAT journal. Its count is limited to the available space.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at checkpoint pack `pack` if the count is larger than the journal.
    pub fn parse_nat(bytes: &[u8], layout: Layout, pack: u8) -> Result<Vec<(Nid, NatEntry)>> {
        let entries = journal_entries(bytes, NAT_JOURNAL_BYTES, layout.nat_journal_entries(), "NAT", pack)?;
        Ok(entries
            .map(|(key, rest)| (Nid(key), NatEntry::parse(rest.try_into().expect("an entry's bytes"))))
            .collect())
    }

    /// Reads a SIT journal. Its count is limited to the available space, and each entry is checked.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at checkpoint pack `pack` if the count is larger than the journal, and at the segment if an
    /// entry is impossible.
    pub fn parse_sit(bytes: &[u8], layout: Layout, pack: u8) -> Result<Vec<(SegNo, SitEntry)>> {
        let entries = journal_entries(bytes, SIT_JOURNAL_BYTES, layout.sit_journal_entries(), "SIT", pack)?;
        entries
            .map(|(key, rest)| {
                let segment = SegNo(key);
                Ok((segment, SitEntry::check(rest.try_into().expect("an entry's bytes"), segment)?))
            })
            .collect()
    }

    /// Reads the kilobytes written.
    #[must_use]
    pub fn parse_written(bytes: &[u8]) -> u64 {
        u64::from_le_bytes(bytes[2..10].try_into().expect("eight bytes"))
    }

    /// Encodes the journal.
    ///
    /// # Panics
    /// If it has more entries than fit: a bug of the caller.
    #[must_use]
    pub fn encode(&self, layout: Layout) -> Vec<u8> {
        let mut bytes = vec![0; layout.journal_bytes()];
        let mut put = |count: usize, room: usize, width: usize, at: &mut dyn FnMut(usize, &mut [u8])| {
            assert!(count <= room, "{count} journal entries, space for {room}");
            bytes[..2].copy_from_slice(&u16::try_from(count).expect("it was just bounded").to_le_bytes());
            for (index, slot) in bytes[2..].chunks_exact_mut(width).take(count).enumerate() {
                at(index, slot);
            }
        };
        match self {
            Journal::Nat(entries) => {
                put(entries.len(), layout.nat_journal_entries(), NAT_JOURNAL_BYTES, &mut |index, slot| {
                    slot[..4].copy_from_slice(&entries[index].0.0.to_le_bytes());
                    slot[4..].copy_from_slice(&entries[index].1.to_bytes());
                });
            }
            Journal::Sit(entries) => {
                put(entries.len(), layout.sit_journal_entries(), SIT_JOURNAL_BYTES, &mut |index, slot| {
                    slot[..4].copy_from_slice(&entries[index].0.0.to_le_bytes());
                    slot[4..].copy_from_slice(&entries[index].1.to_bytes());
                });
            }
            Journal::Written(kilobytes) => bytes[2..10].copy_from_slice(&kilobytes.to_le_bytes()),
        }
        bytes
    }
}

/// Splits a journal into the key and the rest of each entry.
fn journal_entries<'a>(
    bytes: &'a [u8],
    width: usize,
    room: usize,
    name: &str,
    pack: u8,
) -> Result<impl Iterator<Item = (u32, &'a [u8])>> {
    let count = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    if count > room {
        return Err(Error::corrupt(
            Place::Checkpoint(pack),
            format!("{count} entries in the {name} journal, space for {room}"),
        ));
    }
    Ok(bytes[2..]
        .chunks_exact(width)
        .take(count)
        .map(|entry| (u32::from_le_bytes(entry[..4].try_into().expect("four bytes")), &entry[4..])))
}

/// The compact form: the NAT journal, the SIT journal, and the used entries of the three data logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compact {
    /// Bytes of the NAT journal.
    pub nat_journal: Vec<u8>,
    /// Bytes of the SIT journal.
    pub sit_journal: Vec<u8>,
    /// Summaries of the hot, warm and cold data log.
    pub summaries: [Summary; 3],
}

impl Compact {
    /// Reads the compact form from its blocks. There must be [`compact_blocks`](Layout::compact_blocks) of
    /// them for the sum of `used`, the numbers of entries of the hot, warm and cold log.
    #[must_use]
    pub fn parse(blocks: &[u8], layout: Layout, used: [usize; 3]) -> Compact {
        let journal = layout.journal_bytes();
        let mut slots = compact_slots(layout);
        let summaries = used.map(|used| {
            let mut summary = Summary::empty(SegmentType::HotData);
            for (owner, at) in summary.owners.iter_mut().take(used).zip(&mut slots) {
                *owner = Owner::parse(&blocks[at..at + ENTRY_BYTES]);
            }
            summary
        });
        Compact {
            nat_journal: blocks[..journal].to_vec(),
            sit_journal: blocks[journal..2 * journal].to_vec(),
            summaries,
        }
    }
}

/// Writes the compact form: its blocks, one after the other.
#[must_use]
pub fn encode_compact(layout: Layout, nat: &Journal, sit: &Journal, logs: [(&Summary, usize); 3]) -> Vec<u8> {
    let used = logs.iter().map(|(_, used)| used).sum();
    let mut bytes = vec![0; layout.compact_blocks(used) * layout.block.bytes()];
    let journal = layout.journal_bytes();
    bytes[..journal].copy_from_slice(&nat.encode(layout));
    bytes[journal..2 * journal].copy_from_slice(&sit.encode(layout));
    let owners = logs.iter().flat_map(|(summary, used)| &summary.owners[..*used]);
    for (owner, at) in owners.zip(compact_slots(layout)) {
        owner.store(&mut bytes[at..at + ENTRY_BYTES]);
    }
    bytes
}

/// The NAT journal and the SIT journal in the summary blocks of a checkpoint pack, `compact` or one block a log.
pub(crate) fn journals_mut(blocks: &mut [u8], layout: Layout, form: DataSummaries) -> (&mut [u8], &mut [u8]) {
    let journal = layout.journal_bytes();
    match form {
        DataSummaries::Compact => blocks[..2 * journal].split_at_mut(journal),
        DataSummaries::Full => {
            let (hot, rest) = blocks.split_at_mut(layout.block.bytes());
            let cold = &mut rest[layout.block.bytes()..];
            let at = layout.entries_bytes()..layout.entries_bytes() + journal;
            (&mut hot[at.clone()], &mut cold[at])
        }
    }
}

/// Returns the byte offsets of the entries of the compact form. No entry crosses a block, and the last five
/// bytes of each block stay free.
fn compact_slots(layout: Layout) -> impl Iterator<Item = usize> {
    let (first, later) = layout.compact_entries();
    let block = layout.block.bytes();
    let head = 2 * layout.journal_bytes();
    let first = (0..first).map(move |n| head + n * ENTRY_BYTES);
    first.chain((1..).flat_map(move |b| (0..later).map(move |n| b * block + n * ENTRY_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{BlockAddr, Ino};

    const B4K: BlockSize = BlockSize::B4K;

    fn summary(seed: u32) -> Summary {
        let mut summary = Summary::empty(SegmentType::HotData);
        for (n, owner) in summary.owners.iter_mut().enumerate() {
            *owner = Owner { nid: Nid(seed + n as u32), version: seed as u8, offset: n as u16 };
        }
        summary
    }

    #[test]
    fn sizes_match_the_format() {
        for (layout, sizes) in [
            (Layout::new(B4K, Features::default()), [4096, 507, 38, 6, 439, 584]),
            (Layout::new(BlockSize::B16K, Features::default()), [16384, 2043, 157, 26, 1756, 2339]),
            (Layout::new(BlockSize::B16K, Features::PACKED_SSA), [4096, 507, 38, 6, 2195, 2339]),
        ] {
            let (first, later) = layout.compact_entries();
            assert_eq!(
                [
                    layout.bytes(),
                    layout.journal_bytes(),
                    layout.nat_journal_entries(),
                    layout.sit_journal_entries(),
                    first,
                    later
                ],
                sizes
            );
        }
        let layout = Layout::new(B4K, Features::default());
        let blocks = [0, 439, 440, 1023, 1024].map(|entries| layout.compact_blocks(entries));
        assert_eq!(blocks, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn the_full_form_survives_a_round_trip_with_its_journal() {
        for layout in
            [Layout::new(B4K, Features::default()), Layout::new(BlockSize::B16K, Features::default())]
        {
            let entries: Vec<_> = (0..layout.nat_journal_entries() as u32)
                .map(|n| (Nid(n + 4), NatEntry { version: 1, ino: Ino(n), addr: BlockAddr(n) }))
                .collect();
            let mut written = summary(3);
            written.is_node = true;
            let block = written.encode(layout, Some(&Journal::Nat(entries.clone())));
            assert_eq!(block.len(), layout.bytes());
            assert_eq!(Summary::parse(&block, layout), written);
            let journal = Summary::journal_of(&block, layout);
            assert_eq!(Journal::parse_nat(journal, layout, 0).unwrap(), entries);
            assert_eq!(block[layout.bytes() - 5..], [1, 0, 0, 0, 0], "type, and a checksum of zero");
        }
    }

    #[test]
    fn the_sit_journal_and_the_written_kilobytes_survive_a_round_trip() {
        let layout = Layout::new(B4K, Features::default());
        let entries: Vec<_> = (0..6).map(|n| (SegNo(n), SitEntry::EMPTY)).collect();
        let bytes = Journal::Sit(entries.clone()).encode(layout);
        assert_eq!(Journal::parse_sit(&bytes, layout, 0).unwrap(), entries);
        assert_eq!(Journal::parse_written(&Journal::Written(1 << 40).encode(layout)), 1 << 40);
    }

    #[test]
    fn journal_counts_are_bounded() {
        let layout = Layout::new(B4K, Features::default());
        for (count, nat, sit) in
            [(6u16, true, true), (7, true, false), (39, false, false), (65535, false, false)]
        {
            let mut bytes = vec![0; layout.journal_bytes()];
            bytes[..2].copy_from_slice(&count.to_le_bytes());
            assert_eq!(Journal::parse_nat(&bytes, layout, 0).is_ok(), nat);
            assert_eq!(Journal::parse_sit(&bytes, layout, 0).is_ok(), sit);
        }
    }

    #[test]
    fn the_compact_form_survives_a_round_trip() {
        for layout in [
            Layout::new(B4K, Features::default()),
            Layout::new(BlockSize::B16K, Features::default()),
            Layout::new(BlockSize::B16K, Features::PACKED_SSA),
        ] {
            for used in [[0, 0, 0], [512, 3, 0], [100, 400, 512], [511, 511, 1]] {
                let logs = [summary(1), summary(1000), summary(2000)];
                let (nat, sit) = (
                    Journal::Nat(vec![(Nid(9), NatEntry::default())]),
                    Journal::Sit(vec![(SegNo(8), SitEntry::EMPTY)]),
                );
                let bytes = encode_compact(
                    layout,
                    &nat,
                    &sit,
                    [(&logs[0], used[0]), (&logs[1], used[1]), (&logs[2], used[2])],
                );
                let read = Compact::parse(&bytes, layout, used);
                assert_eq!(read.nat_journal, nat.encode(layout));
                assert_eq!(read.sit_journal, sit.encode(layout));
                for log in 0..3 {
                    assert_eq!(read.summaries[log].owners[..used[log]], logs[log].owners[..used[log]]);
                }
            }
        }
        let layout = Layout::new(B4K, Features::default());
        let at: Vec<usize> = compact_slots(layout).skip(438).take(2).collect();
        assert_eq!(at, [1014 + 438 * 7, 4096], "entry 440 begins the second block");
    }
}
