//! Addresses of data blocks, in inodes and direct nodes.
//!
//! A wrong address shows at up to four places: the named block has another owner or none, the right block is
//! valid and unused, and the summary of the right block still names the address. So an address that
//! something speaks against is noted as *odd*, and [`verdict`](crate::verdict) decides when all blocks are
//! known.

use f2fs::{
    Place,
    format::{
        FileType,
        inode::{Algorithm, advise, flag, inline},
        node::{NodeBlock, NodeFooter},
        node_path::NodeKind,
        sit::SegmentType,
        superblock::Features,
    },
    units::{BlockAddr, Ino, Nid},
};

use crate::{
    Certainty, Finding, Fix, Kind, Loss, Slot,
    checker::{Checker, ODD_MAX},
    clusters::Shown,
    inodes::{ALGORITHM, EXTENT, FLAGS, may_pass_end},
    segments::Content,
    table::{Entry, fact},
};

/// Evidence against an address.
pub enum Doubt {
    /// It lies outside the main area.
    Outside,
    /// The summary of the named block has this fault.
    Summary(Kind, String),
    /// The named block lies in the segment of a node log, and no summary tells its owner.
    NodeLog,
    /// The SIT does not mark the named block, and no summary tells its owner.
    Unmarked,
    /// The address, or the hole in its place, is older than the original, as far as this is certain.
    Older(Certainty),
}

/// An address that something speaks against.
pub struct Odd {
    /// Inode of the file.
    pub ino: Ino,
    /// Block of the file.
    pub block: u64,
    /// The address.
    pub addr: BlockAddr,
    /// Its place.
    pub slot: Slot,
    /// The evidence.
    pub doubt: Doubt,
    /// Owner of the named block according to its summary.
    pub owner: Nid,
    /// The block that the summaries assign to this place, if it is valid and unused.
    pub original: Option<BlockAddr>,
}

/// The node and file that a range of addresses belongs to.
struct Holder<'a> {
    nid: Nid,
    version: u8,
    ino: Ino,
    inode: Option<&'a NodeBlock>,
    inode_entry: Option<Entry>,
    first_block: u64,
    /// Byte offset of the first address.
    starts_at: usize,
}

impl Holder<'_> {
    /// Place of an address.
    fn slot(&self, index: usize) -> Slot {
        Slot { nid: self.nid, at: self.starts_at + 4 * index }
    }
}

impl Holder<'_> {
    /// Returns the length of the file's clusters, or 1 if it is not compressed.
    fn cluster_blocks(&self) -> usize {
        self.inode.map_or(1, |inode| inode.layout().cluster_blocks())
    }

    /// Addresses that stand for blocks that compression saves.
    fn reserved(&self) -> [BlockAddr; 2] {
        match self.is_released() {
            true => [BlockAddr::NULL, BlockAddr::NEW],
            false => [BlockAddr::NEW; 2],
        }
    }

    /// Returns true if the blocks that compression saves were released.
    fn is_released(&self) -> bool {
        self.inode.is_some_and(|inode| inode.has_inline(inline::COMPRESS_RELEASED))
    }
}

impl Checker<'_> {
    /// Checks a direct node.
    pub fn check_direct(&mut self, nid: Nid, entry: Entry, bytes: &[u8]) {
        let footer = NodeFooter::of(bytes);
        let inode = self.inode_of(footer.ino);
        let layout = inode.as_ref().map(|inode| inode.layout());
        let kind = NodeKind::of(self.geometry.block_size, footer.offset);
        let first = layout.and_then(|layout| kind.and_then(|kind| kind.first_block(&layout)));
        let words = layout.map_or(self.geometry.block_size.node_addrs(), |layout| layout.direct_addrs());
        let addrs: Vec<BlockAddr> = bytes
            .chunks_exact(4)
            .take(words)
            .map(|word| BlockAddr(u32::from_le_bytes(word.try_into().expect("four bytes"))))
            .collect();
        let holder = Holder {
            nid,
            version: self.table.version(entry),
            ino: footer.ino,
            inode: inode.as_deref(),
            inode_entry: self.table.find(footer.ino.into()),
            first_block: first.unwrap_or(0),
            starts_at: 0,
        };
        self.check_all(&holder, &addrs);
        self.check_behind(nid, self.table.addr(entry), bytes, words);
    }

    /// Checks the words of a direct node behind its `words` addresses. A node of a compressed file has addresses of whole
    /// clusters. Blocks in use there tell of a damaged inode.
    fn check_behind(&mut self, nid: Nid, addr: BlockAddr, bytes: &[u8], words: usize) {
        let behind = 4 * words..4 * self.geometry.block_size.node_addrs();
        let found = || bytes[behind.clone()].chunks_exact(4).map(|word| word.try_into().expect("four bytes"));
        let found = || found().map(|word| BlockAddr(u32::from_le_bytes(word)));
        if found().all(|addr| addr == BlockAddr::NULL) || found().any(|addr| self.segments.is_marked(addr)) {
            return;
        }
        let known = format!("there are addresses behind the {words} of whole clusters");
        let finding = Finding::new(Kind::BlockAddress, Place::Node(nid, addr), known);
        self.report.add(finding.repaired_by("clear them"));
        self.fix(Fix::Node(Slot { nid, at: behind.start }, vec![0; behind.len()]));
    }

    /// Checks the addresses in an inode.
    pub fn check_addresses(&mut self, inode: &NodeBlock, nid: Nid, entry: Entry, first: u64, count: usize) {
        let addrs: Vec<BlockAddr> = inode.addrs(0..count).collect();
        let holder = Holder {
            nid,
            version: self.table.version(entry),
            ino: inode.ino(),
            inode: Some(inode),
            inode_entry: Some(entry),
            first_block: first,
            starts_at: inode.layout().addrs_at(),
        };
        self.check_all(&holder, &addrs);
    }

    fn check_all(&mut self, holder: &Holder<'_>, addrs: &[BlockAddr]) {
        let released = holder.is_released();
        let (mut blocks, mut reserved) = (0u32, 0u32);
        for (index, addr) in addrs.iter().enumerate() {
            match *addr {
                BlockAddr::NULL => {}
                BlockAddr::NEW => reserved += 1,
                BlockAddr::COMPRESS => reserved += u32::from(!released),
                addr => {
                    blocks += 1;
                    self.check_address(holder, index, addr);
                }
            }
        }
        self.outdated.reserved_blocks += u64::from(reserved);
        blocks += reserved;
        if let Some(entry) = holder.inode_entry {
            self.table.take_blocks(entry, blocks);
        }
        self.report.sums.blocks += u64::from(blocks);
        if holder.inode.is_some() {
            self.check_size(holder, addrs);
            self.check_clusters(holder, addrs);
            self.check_extent(holder, addrs);
        }
    }

    /// Counts blocks with data past the size of a file, which no call leaves there unless the inode says so.
    fn check_size(&mut self, holder: &Holder<'_>, addrs: &[BlockAddr]) {
        let Some(inode) = holder.inode.filter(|inode| inode.file_type() != FileType::Directory) else {
            return;
        };
        let end = inode.head().size.get().div_ceil(self.geometry.block_size.bytes() as u64);
        let end = end.next_multiple_of(holder.cluster_blocks() as u64);
        let covered = usize::try_from(end.saturating_sub(holder.first_block)).unwrap_or(usize::MAX);
        let past = addrs.get(covered..).unwrap_or(&[]);
        let Some(last) = past.iter().rposition(|addr| addr.is_real()) else { return };
        if !may_pass_end(inode)
            && (self.past_size.len() < ODD_MAX || self.past_size.contains_key(&holder.ino))
        {
            let found = self.past_size.entry(holder.ino).or_default();
            found.blocks += past.iter().filter(|addr| addr.is_real()).count() as u64;
            found.end = found.end.max(holder.first_block + (covered + last) as u64 + 1);
        }
    }

    fn check_address(&mut self, holder: &Holder<'_>, index: usize, addr: BlockAddr) {
        let block = holder.first_block + index as u64;
        let key = (holder.nid, u16::try_from(index).expect("a node has a few thousand addresses"));
        let slot = holder.slot(index);
        let odd = |doubt, owner| Odd { ino: holder.ino, block, addr, slot, doubt, owner, original: None };
        if !self.geometry.in_main(addr) {
            self.note_odd(key, odd(Doubt::Outside, Nid::NULL));
            return;
        }
        if self.segments.claim(addr, Content::Data) {
            self.claimed_again(addr, format!("block {block} of {}", holder.ino), Some(slot));
        }
        let Some(owned) = self.summaries.owner(&self.io, addr) else {
            let doubt = self.doubt_without_summary(addr);
            let is_newest = self.outdated.newest.contains(&holder.nid);
            if let Some(doubt) = doubt.filter(|doubt| !is_newest || !matches!(doubt, Doubt::Unmarked)) {
                self.note_odd(key, odd(doubt, Nid::NULL));
            }
            return;
        };
        let owner = owned.owner;
        self.check_summary_footer(addr, owned.content, Content::Data);
        let doubt = if owner.nid != holder.nid {
            Doubt::Summary(
                Kind::SummaryNid,
                format!("names {}, the block belongs to {}", owner.nid, holder.nid),
            )
        } else if usize::from(owner.offset) != index {
            Doubt::Summary(
                Kind::SummaryOffset,
                format!("names index {}, the node has it at {index}", owner.offset),
            )
        } else if owner.version != holder.version {
            let known = format!("has version {}, the NAT has {}", owner.version, holder.version);
            self.summary_fault(Kind::SummaryVersion, addr, &known);
            return;
        } else {
            return;
        };
        match doubt {
            Doubt::Summary(kind, known) if self.outdated.newest.contains(&holder.nid) => {
                self.summary_fault(kind, addr, &known);
            }
            doubt => self.note_odd(key, odd(doubt, owner.nid)),
        }
    }

    /// Returns the evidence against the address of a block in use whose owner no summary tells.
    fn doubt_without_summary(&self, addr: BlockAddr) -> Option<Doubt> {
        let (segment, _) = self.geometry.position(addr);
        if self.log_in(segment).is_some_and(SegmentType::is_node) {
            return Some(Doubt::NodeLog);
        }
        (!self.segments.is_valid(addr)).then_some(Doubt::Unmarked)
    }

    fn note_odd(&mut self, key: (Nid, u16), odd: Odd) {
        if self.odd.len() < ODD_MAX {
            self.odd.insert(key, odd);
            return;
        }
        match &odd.doubt {
            Doubt::Summary(kind, what) => self.summary_fault(*kind, odd.addr, what),
            // The block that belongs here, if there is one, is freed.
            Doubt::NodeLog | Doubt::Unmarked | Doubt::Older(_) => self.lose(Loss::Block),
            Doubt::Outside => {
                let known = format!("it names {}, outside the main area", odd.addr);
                self.add(Kind::BlockAddress, Place::File(odd.ino, odd.block), known);
                self.fix(Fix::Node(odd.slot, vec![0; 4]));
                self.lose(Loss::Address);
            }
        }
    }

    /// Compares the clusters with the compression in the inode. Returns true if they are of another one: then they stay as
    /// they are.
    fn are_unlike_clusters(&mut self, holder: &Holder<'_>, addrs: &[BlockAddr]) -> bool {
        if self.unlike_clusters.contains(&holder.ino) {
            return true;
        }
        let Some(inode) = holder.inode.filter(|_| self.format.features.has(Features::COMPRESSION)) else {
            return false;
        };
        let rest = holder.reserved();
        let is_usual = |chunk: &&[BlockAddr]| data_of_cluster(chunk, rest).is_some();
        if !addrs.contains(&BlockAddr::COMPRESS) {
            return false;
        }
        if let Some(usual) = addrs.chunks(holder.cluster_blocks()).find(is_usual) {
            // One cluster of each file tells whether its settings are right. Encrypted ones tell nothing.
            let is_tried = holder.nid == holder.ino.into() && !inode.has_advise(advise::ENCRYPT);
            let settings = inode.compression().filter(|_| is_tried);
            let data = data_of_cluster(usual, rest).unwrap_or(0);
            if settings.is_none_or(|own| self.trials.fit(&self.io, &usual[1..=data], own)) {
                if let Some(own) = settings {
                    self.check_checksum_mark(inode, &usual[1..=data], own);
                }
                return false;
            }
        }
        let (at, has_field) = (Place::Inode(holder.ino), inode.layout().addrs_at() > ALGORITHM + 1);
        let stored = inode.bytes().get(ALGORITHM).filter(|_| has_field);
        let stored = stored.and_then(|code| Algorithm::from_code(*code));
        let own = inode.compression().map(|own| (own.algorithm, own.log_cluster_blocks));
        let lenient = [BlockAddr::NULL, BlockAddr::NEW];
        let is_plausible = |chunk: &[BlockAddr]| data_of_cluster(chunk, lenient).is_some();
        match self.trials.shown(&self.io, addrs, stored) {
            Shown::Nothing => return false,
            // Only the addresses are odd.
            Shown::Settings(algorithm, log) if own == Some((algorithm, log)) => return false,
            Shown::Unknown if addrs.chunks(holder.cluster_blocks()).any(is_plausible) => return false,
            Shown::Settings(algorithm, log) if has_field => {
                let known = format!(
                    "its clusters have {} blocks and {}, other than the inode says",
                    1 << log,
                    algorithm.name()
                );
                let finding = Finding::new(Kind::Cluster, at, known)
                    .repaired_by("set the compression of the inode by its clusters");
                self.report.add(finding);
                let flags = inode.head().flags.get() | flag::COMPRESS;
                let nid = Nid::from(holder.ino);
                self.fix(Fix::Node(Slot { nid, at: FLAGS }, flags.to_le_bytes().to_vec()));
                self.fix(Fix::Node(Slot { nid, at: ALGORITHM }, vec![algorithm.code(), log]));
            }
            Shown::Settings(..) | Shown::Unknown => {
                let known =
                    "it has compressed clusters other than the inode says, and none can be decompressed";
                let finding =
                    Finding::new(Kind::Cluster, at, known).repaired_by("none: a person has to decide");
                self.report.add(finding.with_certainty(Certainty::Unclear));
            }
        }
        self.unlike_clusters.insert(holder.ino);
        self.taint(holder.ino);
        self.saved.remove(&holder.ino);
        true
    }

    fn check_clusters(&mut self, holder: &Holder<'_>, addrs: &[BlockAddr]) {
        if self.are_unlike_clusters(holder, addrs) {
            return;
        }
        let cluster = holder.cluster_blocks();
        let rest = holder.reserved();
        let mut saved = 0;
        for (number, chunk) in addrs.chunks(cluster).enumerate() {
            let block = holder.first_block + (number * cluster) as u64;
            if !chunk.contains(&BlockAddr::COMPRESS) {
                if let Some(inode) = holder.inode {
                    self.note_unmarked(inode, holder.slot(number * cluster), block, chunk);
                }
                continue;
            }
            let data = chunk[1..].iter().take_while(|addr| addr.is_real()).count();
            saved += (cluster - data.min(cluster)) as i64;
            if data_of_cluster(chunk, rest).is_none() {
                let known = match cluster {
                    1 => "a compressed cluster in a file that is not compressed".to_owned(),
                    _ => format!(
                        "a compressed cluster with {data} blocks of data, at a wrong place or without its reserved addresses"
                    ),
                };
                self.add(Kind::Cluster, Place::File(holder.ino, block), known);
                let mended = mended(chunk, rest[0]);
                let loses = |(old, new): (&BlockAddr, &BlockAddr)| old != new && !rest.contains(old);
                if chunk.iter().zip(&mended).any(loses) {
                    self.lose(Loss::Cluster);
                }
                let words: Vec<u8> = mended.iter().flat_map(|addr| addr.0.to_le_bytes()).collect();
                self.fix(Fix::Node(holder.slot(number * cluster), words));
                self.taint(holder.ino);
                self.saved.remove(&holder.ino);
            }
        }
        if let Some(left) = self.saved.get_mut(&holder.ino) {
            *left -= saved;
        }
    }

    /// Compares the extent in the inode with addresses. Linux reads by the extent without asking the
    /// addresses.
    fn check_extent(&mut self, holder: &Holder<'_>, addrs: &[BlockAddr]) {
        let Some(inode) = holder.inode else { return };
        let extent = inode.head().extent;
        let (start, length) = (u64::from(extent.fofs.get()), u64::from(extent.len.get()));
        let from = start.max(holder.first_block);
        let to = (start + length).min(holder.first_block + addrs.len() as u64);
        let compared = u32::try_from(to.saturating_sub(from)).unwrap_or(u32::MAX);
        if let Some(left) = self.extents.remove(&holder.ino).filter(|left| *left > compared) {
            self.extents.insert(holder.ino, left - compared);
        }
        let wrong = (from..to).find(|block| {
            let expected = extent.blk.get().wrapping_add((block - start) as u32);
            let addr = addrs[(block - holder.first_block) as usize];
            addr.0 != expected
        });
        let Some(block) = wrong else { return };
        let addr = addrs[(block - holder.first_block) as usize];
        let is_odd = u16::try_from(block - holder.first_block)
            .is_ok_and(|index| self.odd.contains_key(&(holder.nid, index)));
        if is_odd {
            // The address is wrong, not the extent.
            return;
        }
        let entry = holder.inode_entry.filter(|entry| !self.table.has(*entry, fact::TAINTED));
        if entry.is_some() {
            let expected = extent.blk.get().wrapping_add((block - start) as u32);
            let known =
                format!("its extent has block {block} of the file at {expected}, the node at {}", addr.0);
            self.add(Kind::Extent, Place::Inode(holder.ino), known);
            self.fix(Fix::Node(Slot { nid: holder.ino.into(), at: EXTENT }, vec![0; 12]));
        }
    }
}

/// Number of blocks with the data of a compressed cluster: a mark, at least one block, and addresses in `rest`. `None` for
/// anything else.
fn data_of_cluster(chunk: &[BlockAddr], rest: [BlockAddr; 2]) -> Option<usize> {
    let behind = chunk.strip_prefix(&[BlockAddr::COMPRESS])?;
    let data = behind.iter().take_while(|addr| addr.is_real()).count();
    let is_whole = data > 0 && behind[data..].iter().all(|addr| rest.contains(addr));
    is_whole.then_some(data)
}

/// Makes a whole cluster of a damaged one: a mark with data keeps its data, a mark without is cleared. `rest` stands for
/// the blocks that compression saves.
fn mended(chunk: &[BlockAddr], rest: BlockAddr) -> Vec<BlockAddr> {
    let without_marks = |addr: &BlockAddr| if *addr == BlockAddr::COMPRESS { BlockAddr::NULL } else { *addr };
    if chunk.len() == 1 || chunk[0] != BlockAddr::COMPRESS {
        return chunk.iter().map(without_marks).collect();
    }
    let data = chunk[1..].iter().take_while(|addr| addr.is_real()).count();
    if data == 0 {
        return vec![BlockAddr::NULL; chunk.len()];
    }
    let mut whole = chunk[..=data].to_vec();
    whole.resize(chunk.len(), rest);
    whole
}
