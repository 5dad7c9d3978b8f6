//! What tells a volume from the model.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, bail, ensure};
use block::Rng;
use f2fs::{
    Volume,
    format::FileType,
    units::{Ino, Nid},
    volume::ExtentKind,
};

use crate::{
    engine::Engine,
    model::{Body, Data, Id, Inode, Model, ROOT},
};

/// Files up to this size are read as a whole.
const WHOLE_BYTES: u64 = 1 << 20;
/// Places that are looked at in larger files, besides those where something is.
const PROBES: u64 = 8;

/// What of inodes is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Whether creation times are recorded.
    pub creation: bool,
    /// Inodes that are there without a name from the start: quota files.
    pub hidden_inodes: u32,
}

/// Compares the whole tree, then everything that is counted.
///
/// # Errors
/// The first difference, with its path; or what could not be read.
pub fn check(model: &Model, engine: &Engine, facts: Facts) -> Result<()> {
    let volume = engine.volume();
    let mut walk = Walk { model, volume, facts, inos: HashMap::new() };
    walk.visit(ROOT, volume.superblock().root_ino, b"/")?;
    for (handle, id) in model.open_files() {
        let ino = engine.opened(*handle).with_context(|| format!("handle {handle} is not open"))?;
        walk.visit(*id, ino, format!("handle {handle}").as_bytes())?;
    }
    let seen = walk.inos.len() as u32 + facts.hidden_inodes;
    ensure!(
        walk.inos.len() == model.count(),
        "{} inodes were found, wanted {}",
        walk.inos.len(),
        model.count()
    );
    check_counters(volume, seen)
}

/// What the checkpoint counts is what the inodes say together.
fn check_counters(volume: &Volume, inodes: u32) -> Result<()> {
    let counters = volume.counters();
    ensure!(counters.valid_inodes == inodes, "{} inodes are counted, {inodes} there", counters.valid_inodes);
    let (mut nodes, mut blocks) = (0, 0);
    for nid in 3..volume.geometry().nids_end().0 {
        let entry = volume.nat_entry(Nid(nid))?;
        if entry.is_free() {
            continue;
        }
        nodes += 1;
        if entry.ino == Ino(nid) {
            blocks += volume.inode(Ino(nid))?.head().blocks.get();
        }
    }
    ensure!(counters.valid_nodes == nodes, "{} nodes are counted, {nodes} there", counters.valid_nodes);
    let counted = counters.valid_blocks;
    ensure!(counted == blocks, "{counted} blocks are counted, the inodes have {blocks}");
    Ok(())
}

struct Walk<'a> {
    model: &'a Model,
    volume: &'a Volume,
    facts: Facts,
    /// The inode of the volume for each of the model that was seen.
    inos: HashMap<Id, Ino>,
}

impl Walk<'_> {
    fn visit(&mut self, id: Id, ino: Ino, path: &[u8]) -> Result<()> {
        let shown = || guest::Bytes::from(path).to_string();
        match self.inos.insert(id, ino) {
            Some(before) if before == ino => return Ok(()),
            Some(before) => bail!("{}: it is {ino}, under another name it was {before}", shown()),
            None => {}
        }
        let inode = self.model.inode(id);
        self.compare(inode, ino).with_context(shown)?;
        let Body::Dir(dir) = &inode.body else { return Ok(()) };
        let mut found = BTreeMap::new();
        for entry in self.volume.entries(ino, 0).with_context(shown)? {
            let entry = entry.with_context(shown)?;
            let kind = entry.kind;
            let told = self.volume.stat(entry.ino).with_context(shown)?.kind;
            ensure!(kind == Some(told), "{}: {:?} says {kind:?}, is {told:?}", shown(), entry.name);
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
        ensure!(above == self.inos.get(&dir.parent).copied(), "{}: the dots are {above:?}", shown());
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

    fn compare(&self, inode: &Inode, ino: Ino) -> Result<()> {
        let stat = self.volume.stat(ino)?;
        let field = |name: &str, ours: String, wanted: String| {
            ensure!(ours == wanted, "{name} {ours}, wanted {wanted}");
            Ok(())
        };
        field("mode", format!("{:o}", stat.mode), format!("{:o}", inode.mode))?;
        field("owner", format!("{:?}", (stat.uid, stat.gid)), format!("{:?}", (inode.uid, inode.gid)))?;
        field("links", stat.links.to_string(), inode.links.to_string())?;
        field("mtime", format!("{:?}", stat.mtime), format!("{:?}", inode.mtime))?;
        field("ctime", format!("{:?}", stat.ctime), format!("{:?}", inode.ctime))?;
        field("atime", format!("{:?}", stat.atime), format!("{:?}", inode.atime))?;
        if self.facts.creation {
            field("crtime", format!("{:?}", stat.crtime), format!("{:?}", Some(inode.crtime)))?;
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
        match &inode.body {
            Body::File(data) => self.compare_content(data, ino),
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
                // Block 0 may be there without having been written: inline data moved to it.
                let blocks = extent.offset / block_bytes..end.div_ceil(block_bytes);
                if let Some(extra) = blocks.clone().find(|n| *n > 0 && !data.blocks.contains_key(n)) {
                    bail!("block {extra} has a place and was never written");
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
