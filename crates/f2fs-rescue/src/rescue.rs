//! The rescue as a whole: its options, its steps and its result.

use std::sync::Arc;

use block::Device;
use f2fs::{Error, Result, format::BlockSize, units::Ino};

use crate::{
    Facts, Map, Progress, Selection,
    chain::Chain,
    claims::Claims,
    evidence::{Evidence, LostInodes, low_half},
    judge::{Judge, OtherOwner, Used},
    named_nodes,
    nodes::Nodes,
    removed::Removed,
    scan::{Scan, Scanned},
    shape::Shape,
    summaries::Summaries,
    tree::{self, Builder, Tree},
    versions::{Versions, fact},
    volumes::Earlier,
    walk::{Found, Walk},
};

/// Options of a rescue.
#[derive(Debug, Clone)]
pub struct Options {
    /// Size of a block, if no superblock has survived. By default it is inferred.
    pub block_size: Option<BlockSize>,
    /// Byte of the device at which the volume starts. By default it is inferred.
    pub offset_bytes: Option<u64>,
    /// Version of a checkpoint: only nodes that belong to it and to older ones count.
    pub as_of: Option<u64>,
    /// Search for removed files.
    pub removed: RemovedFiles,
    /// Memory for the table of node versions, in bytes. If it is full, old versions are left out, then further nodes.
    pub memory_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            block_size: None,
            offset_bytes: None,
            as_of: None,
            removed: RemovedFiles::Ignore,
            memory_bytes: 1 << 30,
        }
    }
}

/// Handling of files that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovedFiles {
    /// They are left out.
    Ignore,
    /// They are a tree of their own, [`Selection::Removed`].
    Collect,
}

/// A rescued tree.
pub struct Rescue {
    pub(crate) shape: Shape,
    pub(crate) versions: Versions,
    pub(crate) summaries: Summaries,
    claims: Claims,
    used: Used,
    other_owner: OtherOwner,
    pub(crate) tree: Tree,
    /// Removed files and the owners of their blocks, if they were searched for.
    pub(crate) removed: Option<(Removed, Claims)>,
    /// Inodes of which nothing is left.
    pub(crate) lost_inodes: LostInodes,
    facts: Facts,
}

/// Rebuilds the tree of the volume on a device, and only reads from it. `progress` is called often.
///
/// # Errors
/// [`Error::NotF2fs`] if there is neither a superblock nor a node. Damage and unreadable sectors cost only
/// the files that they hit.
pub fn rescue(
    device: Arc<dyn Device>,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Rescue> {
    let mut shape = Shape::find(&device, options)?;
    let evidence = Evidence::read(&shape);
    let summaries = Summaries::new(&shape, evidence.as_ref());
    let versions_max = (options.memory_bytes / size_of::<crate::versions::Version>()).max(1024);
    let scan = Scan {
        shape: &shape,
        evidence: evidence.as_ref(),
        summaries: &summaries,
        as_of: options.as_of.map(low_half),
        versions_max,
    };
    let mut scanned = scan.run(progress);
    shape.read = std::mem::take(&mut scanned.map);
    if scanned.versions.len() == 0 {
        return Err(Error::NotF2fs("there are no nodes on the device".into()));
    }
    scanned.versions.sort();
    let (mut lost_inodes, mut is_told) = (LostInodes::default(), false);
    let mut used = Used { nodes: scanned.versions.blocks(shape.blocks.end), marked: None };
    // The NAT has the newest state only.
    if let Some(evidence) = evidence.as_ref().filter(|_| options.as_of.is_none()) {
        let left = versions_max.saturating_sub(scanned.versions.len());
        named_nodes::add(&shape, evidence, &mut scanned.versions, left);
        scanned.versions.sort();
        let chain = Chain::read(&shape, evidence, &scanned.marked);
        is_told = evidence.judge(&shape, &mut scanned.versions, &chain);
        // Data that was fsynced after the checkpoint lies in blocks that the SIT calls free.
        used.marked =
            (is_told && scanned.marked.is_empty()).then(|| evidence.marked_blocks(&shape)).flatten();
        scanned.versions.sort();
        is_told |= is_confirmed(&scanned.versions, shape.root());
    }
    let checkpoint = evidence.as_ref().map(Evidence::version);
    if options.as_of.is_none() {
        let earlier = scanned.intervals.judge(&mut scanned.versions, checkpoint);
        scanned.versions.earlier = if is_told { Earlier::Told } else { earlier };
        scanned.versions.sort();
    }
    if let Some(evidence) = evidence.as_ref().filter(|_| options.as_of.is_none()) {
        lost_inodes = evidence.lost_inodes(&shape, &scanned.versions);
    }
    let present = present(&scanned.versions);
    let nodes = Nodes { shape: &shape, versions: &scanned.versions };
    let claims = Claims::collect(nodes, &summaries, &present, options.memory_bytes / 16, progress);
    let other_owner = if options.as_of.is_some() { OtherOwner::Reuse } else { OtherOwner::Doubt };
    let on_blocks = tree::Evidence { summaries: &summaries, claims: &claims, used: &used, other_owner };
    let tree = Builder::new(&shape, on_blocks, &mut scanned.versions, progress).build();
    let removed = (options.removed == RemovedFiles::Collect).then(|| {
        let removed = Removed::collect(&mut scanned.versions, shape.root().0);
        let all = [present, removed.inodes.clone()].concat();
        let nodes = Nodes { shape: &shape, versions: &scanned.versions };
        let claims = Claims::collect(nodes, &summaries, &all, options.memory_bytes / 16, progress);
        (removed, claims)
    });
    let inodes_without_version = lost_inodes.named.len() as u64 + lost_inodes.further;
    let facts = Facts { inodes_without_version, ..facts(&shape, evidence.as_ref(), &scanned, &tree) };
    let versions = scanned.versions;
    Ok(Rescue { shape, versions, summaries, claims, used, other_owner, tree, removed, lost_inodes, facts })
}

/// Returns true if the NAT or the chain of fsyncs names the version of an inode that counts.
fn is_confirmed(versions: &Versions, ino: Ino) -> bool {
    versions.current(ino).is_some_and(|index| versions.get(index).is_confirmed())
}

/// Indices of the inodes that were not removed.
fn present(versions: &Versions) -> Vec<u32> {
    let is_present = |index: &u32| {
        let version = versions.get(*index);
        version.is_inode() && !version.has(fact::FREED | fact::REMOVED)
    };
    versions.groups().map(|group| group.start).filter(is_present).collect()
}

fn facts(shape: &Shape, evidence: Option<&Evidence>, scanned: &Scanned, tree: &Tree) -> Facts {
    let known = shape.known.as_ref();
    Facts {
        superblock: known.map(|(_, copy, _)| *copy),
        start: shape.start,
        other_starts: shape.others.clone(),
        block_size: shape.block_size(),
        features: known.map_or(shape.lenient.features, |(sb, ..)| sb.features),
        checkpoint: evidence.map(|evidence| evidence.checkpoint.version.0),
        newest_version: scanned.newest,
        node_versions: scanned.versions.len() as u64,
        unreadable_blocks: scanned.unreadable_blocks,
        left_out_versions: scanned.is_thinned,
        left_out_nodes: scanned.has_left_out_nodes,
        without_directory: tree.lost.len() as u64,
        names_without_inode: tree.dangling,
        inodes_without_version: 0,
    }
}

impl Rescue {
    /// Facts about the rescue as a whole.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The parts of the device that were read by the scan.
    #[must_use]
    pub fn map(&self) -> &Map {
        &self.shape.read
    }

    /// Lists the rescued inodes, without their content. A name whose inode is lost is an error.
    pub fn list(&self, selection: Selection) -> impl Iterator<Item = Result<Found>> + '_ {
        let mut walk = Walk::new(self, selection);
        std::iter::from_fn(move || Some(walk.next()?.map(|step| step.found)))
    }

    /// The evidence on blocks.
    pub(crate) fn judge(&self, selection: Selection) -> Judge<'_> {
        let claims = match (selection, &self.removed) {
            (Selection::Removed, Some((_, claims))) => claims,
            _ => &self.claims,
        };
        let (summaries, used) = (&self.summaries, &self.used);
        Judge { nodes: self.nodes(), summaries, claims, used, other_owner: self.other_owner }
    }

    /// Returns false for the tree of an older checkpoint.
    pub(crate) fn is_newest(&self) -> bool {
        self.other_owner == OtherOwner::Doubt
    }

    pub(crate) fn nodes(&self) -> Nodes<'_> {
        Nodes { shape: &self.shape, versions: &self.versions }
    }
}
