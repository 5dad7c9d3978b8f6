//! Writing the changes of usage to the quota files, in slices between which readers get a turn.
//!
//! *Invariants*: the quota files contain the usage at the last checkpoint. As long as a change is not in its file,
//! checkpoints ask for fsck. Nothing changes between two slices, because a [`PendingSync`] is outstanding. A reader then gets
//! the records of a file that is half written from memory (`Engine::quota_in_write`).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    vec::IntoIter,
};

use rustc_hash::FxHashSet;
use zerocopy::IntoBytes;

use super::{
    Engine,
    checkpoint::Reason,
    pending::{PendingSync, Then, Work},
    quota::QuotaFile,
    write_dirty::{AfterDirtyWrite, SLICE_BLOCKS, Scope},
};
use crate::{
    Error, Place, Result,
    format::{
        FileType,
        inode::{advise, inline},
        quota::{self, BLOCK_BYTES, Located, QuotaKind, RecordSearch, raw::QuotaRecord},
    },
    nodes::{apply, blank, set_times},
    units::{BlockAddr, Ino},
};

/// A quota file that is being read. Reading can pause between any two blocks.
pub(super) struct QuotaReader {
    kind: QuotaKind,
    ino: Ino,
    graces: (u32, u32),
    search: Option<RecordSearch>,
    blocks: BTreeMap<u64, Box<[u8]>>,
    /// Addresses of these blocks.
    addrs: FxHashSet<BlockAddr>,
}

impl QuotaReader {
    /// Begins to read a quota file.
    pub(super) fn new(engine: &Engine, kind: QuotaKind, ino: Ino) -> Result<QuotaReader> {
        let (inode, at) = (engine.inode(ino)?, Place::Inode(ino));
        if inode.file_type() != FileType::Regular {
            return Err(Error::corrupt(at, "the quota file is not a regular file"));
        }
        if inode.has_advise(advise::ENCRYPT) || inode.compression().is_some() {
            return Err(Error::corrupt(at, "the quota file is encrypted or compressed"));
        }
        let mut reader = QuotaReader {
            kind,
            ino,
            graces: (0, 0),
            search: None,
            blocks: BTreeMap::new(),
            addrs: FxHashSet::default(),
        };
        let first = reader.part(engine, 0)?;
        let info = quota::info(&first, kind, at)?;
        reader.graces = (info.block_grace.get(), info.inode_grace.get());
        reader.search = Some(RecordSearch::new(&first, kind, at)?);
        Ok(reader)
    }

    /// Reads at most `count` blocks of the device. Returns true if more may be left.
    pub(super) fn read_some(&mut self, engine: &Engine, count: usize) -> Result<bool> {
        let Some(mut search) = self.search.take() else { return Ok(false) };
        let end = self.blocks.len().saturating_add(count);
        let mut is_left = true;
        while is_left && self.blocks.len() < end {
            is_left = search.read_next(|part| self.part(engine, part))?;
        }
        self.search = Some(search);
        Ok(is_left)
    }

    /// Returns the file, when all is read.
    pub(super) fn into_file(self) -> QuotaFile {
        let QuotaReader { kind, ino, graces, search, blocks, .. } = self;
        let found = search.map(RecordSearch::into_records).unwrap_or_default();
        let records = found.into_iter().map(|located| (located.record.id.get(), located)).collect();
        QuotaFile { kind, ino, graces, records, blocks }
    }

    /// Returns a block of the format, which may be a part of a block of the volume.
    fn part(&mut self, engine: &Engine, part: u32) -> Result<[u8; BLOCK_BYTES]> {
        let (inode, at, size) =
            (engine.inode(self.ino)?, Place::Inode(self.ino), engine.geometry().block_size);
        let start = u64::from(part) * BLOCK_BYTES as u64;
        if start + BLOCK_BYTES as u64 > inode.head().size.get() {
            return Err(Error::corrupt(at, "the quota file is too short"));
        }
        let block = match self.blocks.entry(start >> size.log()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let block = *unknown.key();
                // Otherwise one block of the device, or a hole, could take memory without bound.
                match engine.quota_address(&inode, block)? {
                    Some(BlockAddr::NULL) => return Ok([0; BLOCK_BYTES]),
                    Some(addr) if addr.is_real() && !self.addrs.insert(addr) => {
                        return Err(Error::corrupt(at, format!("the quota file has {addr} twice")));
                    }
                    _ => {}
                }
                let mut bytes = vec![0; size.bytes()].into_boxed_slice();
                engine.files().read_content(&inode, block << size.log(), &mut bytes)?;
                unknown.insert(bytes)
            }
        };
        let inside = start as usize & (size.bytes() - 1);
        Ok(*block[inside..].first_chunk().expect("blocks hold whole parts"))
    }
}

/// The write of a quota file.
pub(super) enum Store {
    /// These blocks are overwritten.
    Blocks(Ino, VecDeque<(u64, Box<[u8]>)>),
    /// The whole content is written, from the offset on, and gets this size.
    Content { ino: Ino, content: Vec<u8>, offset: usize, size: u64 },
}

/// A write of all quota files for a checkpoint. It can pause between any two blocks.
pub(super) struct QuotaSync {
    kinds: IntoIter<QuotaKind>,
    step: Option<FileStep>,
    /// The checkpoint, and the step that follows it.
    reason: Reason,
    then: Then,
}

/// The step that the file of a kind is at.
enum FileStep {
    Read(QuotaReader),
    Write(Store),
}

impl Engine {
    /// Updates the quota files, and continues with the checkpoint. An unreadable file is retried at the next checkpoint; a
    /// damaged or partly written one is left to fsck. Neither makes the checkpoint fail (Linux, `f2fs_quota_sync`).
    pub(super) fn write_quotas_then(&mut self, reason: Reason, then: Then) -> Result<Option<PendingSync>> {
        self.nodes_mut().settle_charges();
        let kinds = QuotaKind::ALL.to_vec().into_iter();
        self.go_on_with_quotas(Box::new(QuotaSync { kinds, step: None, reason, then }))
    }

    /// Continues with the next slice of a write of the quota files, and after the last one with the checkpoint.
    pub(super) fn go_on_with_quotas(&mut self, mut sync: Box<QuotaSync>) -> Result<Option<PendingSync>> {
        loop {
            let Some(step) = sync.step.take() else {
                let Some(kind) = sync.kinds.next() else {
                    let next = AfterDirtyWrite::Checkpoint(sync.reason, sync.then);
                    return self.write_dirty_then(Scope::Everything, next);
                };
                sync.step = self.begin_quota(kind)?;
                continue;
            };
            match self.quota_slice(step)? {
                Slice::Paused(step) => {
                    sync.step = Some(step);
                    return Ok(Some(self.pending(Work::Yield, Then::WriteQuotas(sync))));
                }
                Slice::Next(step) => sync.step = Some(step),
                Slice::Done => {}
            }
        }
    }

    /// Begins to read the quota file of a kind, if its usage has changed.
    fn begin_quota(&mut self, kind: QuotaKind) -> Result<Option<FileStep>> {
        let Some(ino) = self.quota_ino(kind).filter(|_| self.nodes().quota().has_settled_usage(kind)) else {
            self.nodes_mut().quota_mut().take_usage(kind);
            return Ok(None);
        };
        match QuotaReader::new(self, kind, ino) {
            Ok(reader) => Ok(Some(FileStep::Read(reader))),
            Err(error) => self.give_up_unchanged(kind, error).map(|()| None),
        }
    }

    fn quota_slice(&mut self, step: FileStep) -> Result<Slice> {
        let slice = self.quota_step(step);
        if !matches!(slice, Ok(Slice::Paused(_) | Slice::Next(_))) {
            self.quota_in_write = None;
        }
        slice
    }

    fn quota_step(&mut self, step: FileStep) -> Result<Slice> {
        match step {
            FileStep::Read(mut reader) => {
                let kind = reader.kind;
                match reader.read_some(self, SLICE_BLOCKS as usize) {
                    Ok(true) => Ok(Slice::Paused(FileStep::Read(reader))),
                    Ok(false) => match self.begin_update(reader.into_file()) {
                        Ok(store) => Ok(Slice::Next(FileStep::Write(store))),
                        Err(error) => self.give_up_unchanged(kind, error).map(|()| Slice::Done),
                    },
                    Err(error) => self.give_up_unchanged(kind, error).map(|()| Slice::Done),
                }
            }
            FileStep::Write(mut store) => match self.store_some(&mut store, SLICE_BLOCKS as usize) {
                Ok(true) => Ok(Slice::Paused(FileStep::Write(store))),
                Ok(false) => Ok(Slice::Done),
                Err(error) => self.give_up_quota(error).map(|()| Slice::Done),
            },
        }
    }

    /// Ends the update of a file of which nothing was written. The changes stay for the next checkpoint if the device has
    /// failed, or has no space for the records of new ids.
    fn give_up_unchanged(&mut self, kind: QuotaKind, error: Error) -> Result<()> {
        if matches!(error, Error::Io { .. } | Error::NoSpace { .. }) {
            return Ok(());
        }
        self.nodes_mut().quota_mut().take_usage(kind);
        self.give_up_quota(error)
    }

    /// Ends the update of a file that is wrong from now on. Returns the error if it concerns more than that file.
    fn give_up_quota(&mut self, error: Error) -> Result<()> {
        self.nodes_mut().quota_mut().mark_wrong();
        match matches!(error, Error::NoSpace { .. }) || self.disk().stays_in_place(&error) {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Begins to write the changes of usage to a quota file. After an error nothing has changed.
    fn begin_update(&mut self, mut file: QuotaFile) -> Result<Store> {
        let (kind, now, quota) = (file.kind, self.nodes().quota_now(), self.nodes().quota());
        let changes = quota.settled_usage(kind);
        for (id, change) in changes {
            let located =
                file.records.entry(*id).or_insert_with(|| Located { offset: 0, record: blank(*id) });
            let record = &mut located.record;
            apply(record, Some(change));
            set_times(record, file.graces, now);
            if let Some(limited) = quota.enforced(kind, *id) {
                // The grace time started when the limit was exceeded.
                (record.block_time, record.inode_time) = (limited.block_time, limited.inode_time);
            }
        }
        let changed: Vec<u32> = changes.keys().copied().collect();
        let records = file.records.clone();
        let store = self.begin_store(file, &changed)?;
        let quota = self.nodes_mut().quota_mut();
        for id in quota.take_usage(kind).into_keys() {
            if let Some(limited) = quota.enforced_mut(kind, id) {
                // The usage of both records is the same unless the file was wrong; then the file's value counts for both.
                *limited = records[&id].record;
            }
        }
        self.quota_in_write = Some((kind, records));
        Ok(store)
    }

    /// Begins to write a quota file, if there is space for it. The records of `changed` are overwritten in place unless
    /// records were added or removed.
    pub(super) fn begin_store(&self, mut file: QuotaFile, changed: &[u32]) -> Result<Store> {
        let (ino, size) = (file.ino, self.geometry().block_size);
        let stays = |record: &QuotaRecord| *record != blank(record.id.get());
        // A new record has no offset yet; offset 0, the start of the file, holds no record.
        if !file.records.values().all(|located| located.offset != 0 && stays(&located.record)) {
            let kept = file.records.into_values().map(|located| located.record).filter(stays);
            let mut content = quota::encode_records(file.kind, file.graces, kept);
            let end = content.len() as u64;
            let inode = self.inode(ino)?;
            let is_inline = inode.has_inline(inline::DATA);
            if !is_inline || content.len() > inode.layout().inline_bytes() {
                self.files().require_space(ino, 0, end)?;
            }
            if !is_inline {
                content.resize(content.len().next_multiple_of(size.bytes()), 0);
            }
            return Ok(Store::Content { ino, content, offset: 0, size: end });
        }
        let mut blocks = BTreeSet::new();
        for Located { offset, record } in changed.iter().filter_map(|id| file.records.get(id)) {
            let (block, inside) = (offset >> size.log(), *offset as usize & (size.bytes() - 1));
            let bytes = file.blocks.get_mut(&block).expect("a record was read from its block");
            bytes[inside..inside + size_of::<QuotaRecord>()].copy_from_slice(record.as_bytes());
            blocks.insert(block);
        }
        let bytes_of = |block| file.blocks.remove(&block).map(|bytes| (block, bytes));
        Ok(Store::Blocks(ino, blocks.into_iter().filter_map(bytes_of).collect()))
    }

    /// Writes at most `count` blocks of a quota file. Returns true if some are left. Nothing is read here, so a read error
    /// cannot leave the file half written.
    pub(super) fn store_some(&mut self, store: &mut Store, count: usize) -> Result<bool> {
        match store {
            Store::Blocks(ino, blocks) => {
                for _ in 0..count {
                    let Some((block, bytes)) = blocks.pop_front() else { return Ok(false) };
                    self.files_mut().overwrite_block(*ino, block, &bytes)?;
                }
                Ok(!blocks.is_empty())
            }
            Store::Content { ino, content, offset, size } => {
                let bytes = count.saturating_mul(self.geometry().block_size.bytes());
                let end = offset.saturating_add(bytes).min(content.len());
                self.files_mut().write_content(*ino, *offset as u64, &content[*offset..end])?;
                *offset = end;
                if end < content.len() {
                    return Ok(true);
                }
                self.files_mut().set_size(*ino, *size)?;
                Ok(false)
            }
        }
    }
}

/// Result of a slice of the work on a quota file.
enum Slice {
    /// Readers get a turn.
    Paused(FileStep),
    /// The next step can begin at once.
    Next(FileStep),
    /// The file is done.
    Done,
}
