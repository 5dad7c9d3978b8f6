//! Finds differences between a volume and the model.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use block::{ATOMIC_BYTES, Rng};
use f2fs::{
    engine::{Engine, ExtentKind},
    format::FileType,
    units::{Ino, Nid},
};

use crate::{
    model::{Body, Data, Id, Inode, Model, ROOT},
    subject::Subject,
};

/// Maximum size of a file that is read as a whole.
const WHOLE_BYTES: u64 = 1 << 20;
/// Number of positions examined in larger files, besides those with data.
const PROBES: u64 = 8;

/// Compared facts of inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// True if creation times are recorded.
    pub creation: bool,
}

/// Differences that are allowed, because a power cut may leave either state.
#[derive(Debug, Clone, Default)]
pub struct Leeway {
    /// Inodes whose times do not count.
    pub times: HashSet<Id>,
    /// Inodes of which only the content counts.
    pub attributes: HashSet<Id>,
    /// A file whose sectors may each have this content instead.
    pub sectors: Option<(Id, Data)>,
    /// A file of which an unfinished fsync may have written nodes without their data.
    pub torn: Option<Torn>,
    /// A file of which only the size counts.
    pub content: Option<Id>,
}

/// A file of which an unfinished fsync may have written nodes without their data.
#[derive(Debug, Clone)]
pub struct Torn {
    /// The file.
    pub id: Id,
    /// Its content before the fsync.
    pub old: Data,
    /// True if blocks of the old content were freed since: new data there may be missing.
    pub freed: bool,
}

/// Compares the whole tree, then the counters.
///
/// # Errors
/// The first difference, with its path; or a failed read.
pub fn check(model: &Model, subject: &Subject, facts: Facts) -> Result<()> {
    check_with(model, subject, facts, &Leeway::default())
}

/// Does the work of [`check`] with some leeway.
pub fn check_with(model: &Model, subject: &Subject, facts: Facts, leeway: &Leeway) -> Result<()> {
    let volume = subject.volume();
    let mut walk = Walk { model, volume, facts, leeway, inos: HashMap::new() };
    walk.visit(ROOT, volume.superblock().root_ino, b"/")?;
    for (handle, id) in model.open_files() {
        let ino = subject.opened(*handle).with_context(|| format!("handle {handle} is not open"))?;
        walk.visit(*id, ino, format!("handle {handle}").as_bytes())?;
    }
    ensure!(walk.inos.len() == model.count(), "{} inodes, wanted {}", walk.inos.len(), model.count());
    // Quota files have no name.
    let hidden = volume.superblock().quota_inos.into_iter().filter(|ino| ino.0 != 0);
    let inos: HashSet<Ino> = walk.inos.values().copied().chain(hidden).collect();
    let counters = volume.counters();
    let (counted, there) = (counters.valid_inodes as usize, inos.len());
    ensure!(counted == there, "{counted} inodes are counted, {there} there");
    let mut blocks = 0;
    for ino in inos {
        blocks += volume.inode(ino)?.head().blocks.get();
    }
    let counted = counters.valid_blocks;
    ensure!(counted == blocks, "{counted} blocks are counted, the inodes have {blocks}");
    Ok(())
}

/// The counted nodes must be those in the NAT.
pub fn check_nodes(volume: &Engine) -> Result<()> {
    let counted = volume.counters().valid_nodes;
    let mut nodes = 0;
    for nid in 3..volume.geometry().nids_end().0 {
        nodes += u32::from(!volume.nat_entry(Nid(nid))?.is_free());
    }
    ensure!(counted == nodes, "{counted} nodes are counted, {nodes} there");
    Ok(())
}

struct Walk<'a> {
    model: &'a Model,
    volume: &'a Engine,
    facts: Facts,
    leeway: &'a Leeway,
    /// The volume's inode for each visited inode of the model.
    inos: HashMap<Id, Ino>,
}

impl Walk<'_> {
    fn visit(&mut self, id: Id, ino: Ino, path: &[u8]) -> Result<()> {
        let shown = || guest::Bytes::from(path).to_string();
        match self.inos.insert(id, ino) {
            Some(before) if before == ino => return Ok(()),
            Some(before) => bail!("{}: it is {ino}, but {before} under another name", shown()),
            None => {}
        }
        let inode = self.model.inode(id);
        self.compare(id, inode, ino).with_context(shown)?;
        let Body::Dir(dir) = &inode.body else { return Ok(()) };
        let mut found = BTreeMap::new();
        for entry in self.volume.entries(ino, 0).with_context(shown)? {
            let entry = entry.with_context(shown)?;
            let kind = entry.kind;
            let told = self.volume.stat(entry.ino).with_context(shown)?.kind;
            ensure!(kind == Some(told), "{}: {:?} has {kind:?}, the entry has {told:?}", shown(), entry.name);
            let name = entry.name;
            ensure!(
                found.insert(name.clone(), entry.ino).is_none(),
                "{}: {:?} twice",
                shown(),
                guest::Bytes(name)
            );
        }
        ensure!(found.remove(&b"."[..]) == Some(ino), "{}: the dot", shown());
        let above = found.remove(&b".."[..]);
        ensure!(above == self.inos.get(&dir.parent).copied(), "{}: `.` and `..` are {above:?}", shown());
        for (name, child) in dir.names.values() {
            let below = [path, b"/", name].concat();
            let Some(child_ino) = found.remove(name) else {
                bail!("{}: not there", guest::Bytes(below));
            };
            ensure!(
                self.volume.lookup(ino, name)? == child_ino,
                "{}: the lookup finds another",
                guest::Bytes(below)
            );
            self.visit(*child, child_ino, &below)?;
        }
        match found.keys().next() {
            Some(name) => bail!("{}: must not be there", guest::Bytes([path, b"/", name].concat())),
            None => Ok(()),
        }
    }

    fn compare(&self, id: Id, inode: &Inode, ino: Ino) -> Result<()> {
        let stat = self.volume.stat(ino)?;
        let field = |name: &str, ours: String, wanted: String| {
            ensure!(ours == wanted, "{name} {ours}, wanted {wanted}");
            Ok(())
        };
        field("links", stat.links.to_string(), inode.links.to_string())?;
        if self.leeway.attributes.contains(&id) {
            return self.compare_body(id, inode, ino);
        }
        field("mode", format!("{:o}", stat.mode), format!("{:o}", inode.mode))?;
        field("owner", format!("{:?}", (stat.uid, stat.gid)), format!("{:?}", (inode.uid, inode.gid)))?;
        if !self.leeway.times.contains(&id) {
            field("mtime", format!("{:?}", stat.mtime), format!("{:?}", inode.mtime))?;
            field("ctime", format!("{:?}", stat.ctime), format!("{:?}", inode.ctime))?;
            field("atime", format!("{:?}", stat.atime), format!("{:?}", inode.atime))?;
            if self.facts.creation {
                field("crtime", format!("{:?}", stat.crtime), format!("{:?}", Some(inode.crtime)))?;
            }
        }
        let own = f2fs::format::inode::flag::INDEX;
        field("flags", format!("{:#x}", stat.flags & !own), format!("{:#x}", inode.flags & !own))?;
        let xattrs: BTreeMap<Vec<u8>, Vec<u8>> = self.volume.xattrs(ino)?.into_iter().collect();
        let shown = |xattrs: &BTreeMap<Vec<u8>, Vec<u8>>| {
            let short = xattrs.iter().map(|(name, value)| {
                format!(
                    "{} = {} bytes {:x?}",
                    guest::Bytes(name.clone()),
                    value.len(),
                    value.first_chunk::<4>()
                )
            });
            short.collect::<Vec<_>>().join(", ")
        };
        ensure!(xattrs == inode.xattrs, "xattrs [{}], wanted [{}]", shown(&xattrs), shown(&inode.xattrs));
        self.compare_body(id, inode, ino)
    }

    fn compare_body(&self, id: Id, inode: &Inode, ino: Ino) -> Result<()> {
        let stat = self.volume.stat(ino)?;
        match &inode.body {
            Body::File(data) if self.leeway.content == Some(id) => {
                ensure!(stat.size == data.size, "{} bytes, wanted {}", stat.size, data.size);
                Ok(())
            }
            Body::File(data) => match &self.leeway.sectors {
                Some((mixed, other)) if *mixed == id => self.compare_sectors(data, other, ino),
                _ if self.leeway.torn.as_ref().is_some_and(|torn| torn.id == id) => {
                    self.compare_torn(data, ino)
                }
                _ => self.compare_content(data, ino),
            },
            Body::Symlink(target) => {
                ensure!(stat.size == target.len() as u64, "{} bytes, wanted {}", stat.size, target.len());
                ensure!(self.volume.read_link(ino)? == *target, "the target is another");
                Ok(())
            }
            Body::Special(major, minor) => {
                let is_device = matches!(stat.kind, FileType::CharDevice | FileType::BlockDevice);
                let device = stat.device.filter(|_| is_device).map_or((0, 0), |it| (it.major, it.minor));
                ensure!(device == (*major, *minor), "device {device:?}, wanted {:?}", (major, minor));
                Ok(())
            }
            Body::Dir(_) => Ok(()),
        }
    }

    fn compare_content(&self, data: &Data, ino: Ino) -> Result<()> {
        let block_bytes = self.model.rules().block_bytes;
        let size = self.volume.stat(ino)?.size;
        ensure!(size == data.size, "{size} bytes, wanted {}", data.size);
        let mut at = 0;
        while let Some(extent) = self.volume.next_extent(ino, at)? {
            let end = (extent.offset + extent.length).min(size);
            ensure!(extent.length > 0 && end > at, "an extent of {extent:?} at {at}");
            if extent.kind != ExtentKind::Inline {
                // Block 0 may exist without a write: inline data moved to it.
                let blocks = extent.offset / block_bytes..end.div_ceil(block_bytes);
                if let Some(extra) = blocks.clone().find(|n| *n > 0 && !data.blocks.contains_key(n)) {
                    bail!("block {extra} is allocated but was never written");
                }
            }
            at = end;
        }
        if size <= WHOLE_BYTES {
            return self.compare_range(data, ino, 0, size + 1);
        }
        let mut rng = Rng::new(size);
        let probes: Vec<u64> = (0..PROBES).map(|_| rng.below(size / block_bytes + 1)).collect();
        // Runs of blocks are read together.
        let mut run = 0..0;
        for block in data.blocks.keys().copied().chain(probes) {
            if block == run.end && run.end - run.start < 256 {
                run.end += 1;
                continue;
            }
            self.compare_range(data, ino, run.start * block_bytes, (run.end - run.start) * block_bytes)?;
            run = block..block + 1;
        }
        self.compare_range(data, ino, run.start * block_bytes, (run.end - run.start) * block_bytes)
    }

    /// Checks that each sector has one content or the other, and so does the size.
    fn compare_sectors(&self, one: &Data, other: &Data, ino: Ino) -> Result<()> {
        let size = self.volume.stat(ino)?.size;
        ensure!(
            [one.size, other.size].contains(&size),
            "{size} bytes, wanted {} or {}",
            one.size,
            other.size
        );
        let mut blocks = one.blocks.keys().chain(other.blocks.keys());
        blocks.try_for_each(|block| self.compare_sectors_of(*block, one, other, ino))
    }

    /// Checks that each sector of a block has one content or the other.
    fn compare_sectors_of(&self, block: u64, one: &Data, other: &Data, ino: Ino) -> Result<()> {
        let block_bytes = self.model.rules().block_bytes;
        let mut bytes = vec![0; block_bytes as usize];
        let offset = block * block_bytes;
        let length = self.volume.read(ino, offset, &mut bytes)?;
        let filled = |data: &Data| {
            let mut wanted = data.read(block_bytes, offset, block_bytes);
            wanted.resize(block_bytes as usize, 0);
            wanted
        };
        let (first, second) = (filled(one), filled(other));
        for at in (0..length).step_by(ATOMIC_BYTES) {
            let sector = at..(at + ATOMIC_BYTES).min(length);
            let known =
                bytes[sector.clone()] == first[sector.clone()] || bytes[sector.clone()] == second[sector];
            ensure!(known, "the sector at {} is neither old nor new", offset + at as u64);
        }
        Ok(())
    }

    /// Compares a torn file: each sector of a block that had content has the old content or the new one. If blocks were
    /// freed, only the unchanged part is compared. The last block of a file is rewritten when the size changes, even if its
    /// data does not: zeroes follow the end.
    fn compare_torn(&self, new: &Data, ino: Ino) -> Result<()> {
        let block_bytes = self.model.rules().block_bytes;
        let Torn { old, freed, .. } = self.leeway.torn.as_ref().expect("the file may be torn");
        let size = self.volume.stat(ino)?.size;
        ensure!(size == new.size, "{size} bytes, wanted {}", new.size);
        let ends = [old.size, new.size].map(|size| size / block_bytes);
        for (block, bytes) in &new.blocks {
            let Some(before) = old.blocks.get(block) else { continue };
            let is_end = old.size != new.size && ends.contains(block);
            match before == bytes && !is_end {
                true => self.compare_range(new, ino, block * block_bytes, block_bytes)?,
                // A block of zeroes may be reserved only, and has no content then.
                false if !freed && !is_zero(before) => self.compare_sectors_of(*block, old, new, ino)?,
                false => {}
            }
        }
        Ok(())
    }

    fn compare_range(&self, data: &Data, ino: Ino, offset: u64, length: u64) -> Result<()> {
        let wanted = data.read(self.model.rules().block_bytes, offset, length);
        let mut bytes = vec![0xEE; length as usize];
        let count = self.volume.read(ino, offset, &mut bytes)?;
        bytes.truncate(count);
        ensure!(count == wanted.len(), "{count} bytes at {offset}, wanted {}", wanted.len());
        if let Some(at) = (0..count).find(|at| bytes[*at] != wanted[*at]) {
            bail!("byte {} is {:#x}, wanted {:#x}", offset + at as u64, bytes[at], wanted[at]);
        }
        Ok(())
    }
}

/// Returns true if a block holds zeroes only.
pub(crate) fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}
