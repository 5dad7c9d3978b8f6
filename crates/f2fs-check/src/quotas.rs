//! Quota files, and the usage that they should have.

use std::collections::{BTreeMap, BTreeSet};

use f2fs::{
    Error, Place, Result,
    format::{
        checkpoint::Flags,
        inode::inline,
        node::NodeBlock,
        quota::{
            self, BLOCK_BYTES, Located, QuotaKind, USUAL_GRACES, Usage,
            raw::{QuotaInfo, QuotaRecord},
        },
        superblock::{Features, Superblock},
    },
    printable,
    units::{BlockAddr, Ino},
};
use rustc_hash::{FxHashMap, FxHashSet};
use zerocopy::{FromBytes, FromZeros};

use crate::{Certainty, Finding, Fix, Kind, Loss, checker::Checker};

/// Maximum number of users, groups or projects that are counted.
const IDS_MAX: usize = 1 << 20;
/// Maximum number of blocks of a quota file that are searched for records that its tree lost.
const SEARCHED_MAX: u64 = 1 << 16;
/// Byte offset of the number of blocks in a quota file.
const BLOCKS_AT: usize = 20;

/// The records of a quota file by their ids.
type Records = BTreeMap<u32, QuotaRecord>;

/// Usage by user, group and project.
pub struct Quotas {
    block_bytes: u64,
    is_on: bool,
    usage: [FxHashMap<u32, Usage>; 3],
    /// True if the usage cannot be told: an inode is unreadable, or there are too many ids.
    gave_up: bool,
}

impl Quotas {
    /// Begins to count.
    pub fn new(sb: &Superblock) -> Quotas {
        Quotas {
            block_bytes: sb.block_size.bytes() as u64,
            is_on: sb.features.has(Features::QUOTA),
            usage: Default::default(),
            gave_up: false,
        }
    }

    /// Adds an inode to the usage of its owners.
    pub fn charge(&mut self, inode: &NodeBlock) {
        if !self.is_on || self.gave_up {
            return;
        }
        let head = inode.head();
        let ids = [head.uid.get(), head.gid.get(), inode.project().unwrap_or(0)];
        for (usage, id) in self.usage.iter_mut().zip(ids) {
            let used = usage.entry(id).or_default();
            used.inodes += 1;
            used.bytes = used.bytes.wrapping_add(head.blocks.get().saturating_sub(1) * self.block_bytes);
            self.gave_up |= usage.len() > IDS_MAX;
        }
    }

    /// Stops counting: the usage cannot be told.
    pub fn give_up(&mut self) {
        self.gave_up = true;
    }
}

/// The tree of a quota file.
#[derive(Debug, Default)]
struct Tree {
    /// The leaf of each id that it names.
    leaves: BTreeMap<u32, u32>,
    /// Its blocks, leaves included.
    blocks: FxHashSet<u32>,
}

impl Tree {
    /// Returns true if it leads from the id of a record to the record's block.
    fn names(&self, located: &Located) -> bool {
        let block = (located.offset / BLOCK_BYTES as u64) as u32;
        self.leaves.get(&located.record.id.get()) == Some(&block)
    }
}

/// The usage that a record has.
fn usage_of(record: &QuotaRecord) -> Usage {
    Usage { inodes: record.inodes.get(), bytes: record.space.get() }
}

/// The records by their ids. One that the tree does not name gives way to one that it names.
fn in_order(mut records: Vec<Located>, tree: &Tree) -> Records {
    records.sort_by_key(|located| tree.names(located));
    records.into_iter().map(|located| (located.record.id.get(), located.record)).collect()
}

impl Checker<'_> {
    /// Checks the quota files.
    pub fn check_quotas(&mut self) {
        if !self.quotas.is_on {
            return;
        }
        for kind in QuotaKind::ALL {
            let Some(ino) = self.superblock.quota_ino(kind) else { continue };
            match self.inode_of(ino) {
                Some(inode) if !inode.last_name().is_empty() => {
                    let known = format!(
                        "the superblock names it for {} quota, it is \"{}\" in inode {}",
                        kind.name(),
                        printable::name(inode.last_name()),
                        inode.head().pino.get()
                    );
                    let finding = Finding::new(Kind::QuotaInode, Place::Inode(ino), known);
                    let finding = finding.repaired_by("none: a person has to decide");
                    self.report.add(finding.with_certainty(Certainty::Unclear));
                }
                Some(inode) => self.check_quota(kind, ino, &inode),
                None => {
                    let known =
                        format!("the superblock names it for {} quota, it cannot be used", kind.name());
                    self.add(Kind::QuotaInode, Place::Inode(ino), known);
                    self.renew_quota(kind, USUAL_GRACES, Records::new());
                }
            }
        }
    }

    fn check_quota(&mut self, kind: QuotaKind, ino: Ino, inode: &NodeBlock) {
        let at = Place::Inode(ino);
        let records = match quota::records(kind, at, |block| self.quota_block(inode, block)) {
            Ok(records) => records,
            Err(error) => return self.renew_without_tree(kind, inode, error),
        };
        if self.quotas.gave_up || self.checkpoint.flags.has(Flags::QUOTA_NEED_FSCK) || !self.lost.is_empty() {
            return;
        }
        let tree = self.quota_tree(inode);
        let missing = self.missing_records(kind, &records, &tree);
        let mut records = in_order(records, &tree);
        if !missing.is_empty() {
            self.restore_records(kind, inode, &mut records, (&missing, &tree));
        }
        let findings = self.report.count(Kind::QuotaUsage);
        let usage = self.quotas.usage[kind.index()].clone();
        for (id, record) in &records {
            self.compare_usage(kind, at, *id, usage_of(record), usage.get(id).copied().unwrap_or_default());
        }
        let is_new = |id: &u32| !records.contains_key(id) && missing.binary_search(id).is_err();
        let mut rest: Vec<(u32, Usage)> = usage.into_iter().filter(|(id, _)| is_new(id)).collect();
        rest.sort_by_key(|(id, _)| *id);
        for (id, used) in rest {
            self.compare_usage(kind, at, id, Usage::default(), used);
        }
        if self.report.count(Kind::QuotaUsage) > findings || !missing.is_empty() {
            let graces = self.graces(inode);
            self.renew_quota(kind, graces, records);
        }
    }

    /// Reports a quota file whose tree is damaged, and has it made anew with the records that are found.
    fn renew_without_tree(&mut self, kind: QuotaKind, inode: &NodeBlock, error: Error) {
        let mut finding = Finding::new(Kind::QuotaFile, Place::Inode(inode.ino()), error.to_string());
        let records = match self.records_below_header(kind, inode) {
            Some(records) => {
                records.into_iter().map(|located| (located.record.id.get(), located.record)).collect()
            }
            None => {
                finding = finding.with_certainty(Certainty::Unclear);
                self.lose(Loss::Limits);
                self.records_outside(inode, &Tree::default())
            }
        };
        self.report.add(finding);
        let graces = self.graces(inode);
        self.renew_quota(kind, graces, records);
    }

    /// Reads the tree of a quota file, whose blocks are known to be in it once.
    fn quota_tree(&mut self, inode: &NodeBlock) -> Tree {
        let mut tree = Tree::default();
        let mut open = vec![(quota::ROOT, quota::LEVELS, 0u32)];
        while let Some((block, levels, id)) = open.pop() {
            tree.blocks.insert(block);
            if levels == 0 {
                tree.leaves.insert(id, block);
                continue;
            }
            let Ok(bytes) = self.quota_block(inode, block) else { continue };
            for (byte, child) in (0..).zip(bytes.chunks_exact(4)) {
                let child = u32::from_le_bytes(child.try_into().expect("four bytes were cut"));
                if child != 0 {
                    open.push((child, levels - 1, id << 8 | byte));
                }
            }
        }
        tree
    }

    /// The ids without a record at the place in the tree: those that the tree names, and those with usage, because Linux
    /// makes the record before it charges usage. But if a record has a wrong usage, a kernel without quota wrote the volume, and
    /// usage tells nothing.
    fn missing_records(&self, kind: QuotaKind, records: &[Located], tree: &Tree) -> Vec<u32> {
        let usage = &self.quotas.usage[kind.index()];
        let named = || records.iter().filter(|located| tree.names(located)).map(|located| located.record);
        let found: FxHashSet<u32> = named().map(|record| record.id.get()).collect();
        let is_kept = named()
            .all(|record| usage.get(&record.id.get()).copied().unwrap_or_default() == usage_of(&record));
        let used = usage.iter().filter(|(_, used)| is_kept && **used != Usage::default()).map(|(id, _)| *id);
        let all: BTreeSet<u32> = tree.leaves.keys().copied().chain(used).collect();
        all.into_iter().filter(|id| !found.contains(id)).collect()
    }

    /// Reports that a quota file has lost records, and adds those that other blocks of the file have.
    fn restore_records(
        &mut self,
        kind: QuotaKind,
        inode: &NodeBlock,
        records: &mut Records,
        (missing, tree): (&[u32], &Tree),
    ) {
        for (id, record) in self.records_outside(inode, tree) {
            records.entry(id).or_insert(record);
        }
        let lost = missing.iter().filter(|id| !records.contains_key(id)).count();
        let known = format!(
            "its tree leads to no record of {} of the ids with usage or a place in the tree, the first is {} {}; {lost} have no \
             record elsewhere",
            missing.len(),
            kind.name(),
            missing[0]
        );
        let certainty = if lost > 0 { Certainty::Unclear } else { Certainty::Likely };
        let finding = Finding::new(Kind::QuotaFile, Place::Inode(inode.ino()), known);
        self.report.add(finding.with_certainty(certainty));
        if lost > 0 {
            self.lose(Loss::Limits);
        }
    }

    /// The records in whole leaves of a quota file to which its tree does not lead.
    fn records_outside(&mut self, inode: &NodeBlock, tree: &Tree) -> Records {
        let blocks = (inode.head().size.get() / BLOCK_BYTES as u64).min(SEARCHED_MAX) as u32;
        let mut records = Records::new();
        for number in (quota::ROOT..blocks).filter(|number| !tree.blocks.contains(number)) {
            let Ok(block) = self.quota_block(inode, number) else { continue };
            for Located { record, .. } in quota::whole_leaf(number, &block).unwrap_or_default() {
                records.entry(record.id.get()).or_insert(record);
            }
        }
        records
    }

    /// The records of a quota file whose first block has a damaged start. `None` if there are none.
    fn records_below_header(&mut self, kind: QuotaKind, inode: &NodeBlock) -> Option<Vec<Located>> {
        let empty = quota::encode_records(kind, USUAL_GRACES, []);
        let blocks = u32::try_from(inode.head().size.get() / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
        let records = quota::records(kind, Place::Inode(inode.ino()), |number| {
            let mut block = self.quota_block(inode, number)?;
            if number == 0 {
                block.copy_from_slice(&empty[..BLOCK_BYTES]);
                block[BLOCKS_AT..BLOCKS_AT + 4].copy_from_slice(&blocks.to_le_bytes());
            }
            Ok(block)
        });
        records.ok().filter(|records| !records.is_empty())
    }

    /// The grace times in a quota file, of space and inodes; the usual ones if it has none.
    fn graces(&mut self, inode: &NodeBlock) -> (u32, u32) {
        let Ok(block) = self.quota_block(inode, 0) else { return USUAL_GRACES };
        let (info, _) = QuotaInfo::read_from_prefix(&block[..]).expect("a block is longer than the info");
        match (info.block_grace.get(), info.inode_grace.get()) {
            (0, _) | (_, 0) => USUAL_GRACES,
            graces => graces,
        }
    }

    /// Replaces the records of a quota file by the usage that was found. Limits in the old records stay.
    fn renew_quota(&mut self, kind: QuotaKind, graces: (u32, u32), old: Records) {
        if self.quotas.gave_up || !self.lost.is_empty() {
            return;
        }
        let usage = self.quotas.usage[kind.index()].iter();
        let mut records: Records = usage
            .map(|(id, used)| {
                let mut record = QuotaRecord::new_zeroed();
                record.id.set(*id);
                record.inodes.set(used.inodes);
                record.space.set(used.bytes);
                (*id, record)
            })
            .collect();
        for (id, mut limits) in old {
            let used = self.quotas.usage[kind.index()].get(&id).copied().unwrap_or_default();
            limits.inodes.set(used.inodes);
            limits.space.set(used.bytes);
            records.insert(id, limits);
        }
        let content = quota::encode_records(kind, graces, records.into_values());
        self.fix(Fix::Quota { kind, content });
    }

    fn compare_usage(&mut self, kind: QuotaKind, at: Place, id: u32, stored: Usage, used: Usage) {
        if stored != used {
            let known = format!(
                "{} {id} has {} inodes and {} bytes, the file says {} and {}",
                kind.name(),
                used.inodes,
                used.bytes,
                stored.inodes,
                stored.bytes
            );
            self.add(Kind::QuotaUsage, at, known);
        }
    }

    fn quota_block(&mut self, inode: &NodeBlock, number: u32) -> Result<[u8; BLOCK_BYTES]> {
        let at = Place::Inode(inode.ino());
        let offset = u64::from(number) * BLOCK_BYTES as u64;
        let block_bytes = self.geometry.block_size.bytes() as u64;
        let within = (offset % block_bytes) as usize;
        if inode.has_inline(inline::DATA) {
            let range = usize::try_from(offset).map(|start| start..start + BLOCK_BYTES);
            let block = range.ok().and_then(|range| inode.inline_area().get(range)?.try_into().ok());
            return block
                .ok_or_else(|| Error::corrupt(at, format!("block {number} is past the inline data")));
        }
        let addr = self.address_of(inode, offset / block_bytes);
        match addr {
            Some(BlockAddr::NULL | BlockAddr::NEW) => Ok([0; BLOCK_BYTES]),
            Some(addr) if self.geometry.in_main(addr) => {
                let block = self.cache.block(&self.io, addr)?;
                Ok(block[within..within + BLOCK_BYTES].try_into().expect("a block of the file"))
            }
            _ => Err(Error::corrupt(at, format!("block {number} of the quota file is not on the volume"))),
        }
    }
}
