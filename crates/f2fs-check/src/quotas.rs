//! Quota files, and the usage that they should have.

use std::collections::BTreeMap;

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
use rustc_hash::FxHashMap;
use zerocopy::{FromBytes, FromZeros};

use crate::{Certainty, Finding, Fix, Kind, Loss, checker::Checker};

/// Maximum number of users, groups or projects that are counted.
const IDS_MAX: usize = 1 << 20;
/// Byte offset of the number of blocks in a quota file.
const BLOCKS_AT: usize = 20;

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
                    self.renew_quota(kind, USUAL_GRACES, Vec::new());
                }
            }
        }
    }

    fn check_quota(&mut self, kind: QuotaKind, ino: Ino, inode: &NodeBlock) {
        let at = Place::Inode(ino);
        let records = quota::records(kind, at, |block| self.quota_block(inode, block));
        let records = match records {
            Ok(records) => records,
            Err(error) => {
                let mut finding = Finding::new(Kind::QuotaFile, at, error.to_string());
                let records = self.records_below_header(kind, inode);
                if records.is_none() {
                    finding = finding.with_certainty(Certainty::Unclear);
                    self.lose(Loss::Limits);
                }
                self.report.add(finding);
                let graces = self.graces(inode);
                return self.renew_quota(kind, graces, records.unwrap_or_default());
            }
        };
        if self.quotas.gave_up || self.checkpoint.flags.has(Flags::QUOTA_NEED_FSCK) || !self.lost.is_empty() {
            return;
        }
        let (findings, old) = (self.report.count(Kind::QuotaUsage), records.clone());
        let all = self.quotas.usage[kind.index()].clone();
        let mut usage = std::mem::take(&mut self.quotas.usage[kind.index()]);
        for located in records {
            let record = located.record;
            let used = usage.remove(&record.id.get()).unwrap_or_default();
            let stored = Usage { inodes: record.inodes.get(), bytes: record.space.get() };
            self.compare_usage(kind, at, record.id.get(), stored, used);
        }
        let mut rest: Vec<(u32, Usage)> = usage.into_iter().collect();
        rest.sort_by_key(|(id, _)| *id);
        for (id, used) in rest {
            self.compare_usage(kind, at, id, Usage::default(), used);
        }
        if self.report.count(Kind::QuotaUsage) > findings {
            self.quotas.usage[kind.index()] = all;
            let graces = self.graces(inode);
            self.renew_quota(kind, graces, old);
        }
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
    fn renew_quota(&mut self, kind: QuotaKind, graces: (u32, u32), old: Vec<Located>) {
        if self.quotas.gave_up || !self.lost.is_empty() {
            return;
        }
        let usage = self.quotas.usage[kind.index()].iter();
        let mut records: BTreeMap<u32, QuotaRecord> = usage
            .map(|(id, used)| {
                let mut record = QuotaRecord::new_zeroed();
                record.id.set(*id);
                record.inodes.set(used.inodes);
                record.space.set(used.bytes);
                (*id, record)
            })
            .collect();
        for Located { record: mut limits, .. } in old {
            let id = limits.id.get();
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
