//! Inodes whose footers are damaged: the NAT tells their numbers.

use f2fs::{
    Place,
    format::node::NodeFooter,
    units::{BlockAddr, Ino},
};

use crate::{
    evidence::{Evidence, low_half},
    raw_node,
    scan::version_of,
    shape::Shape,
    versions::{Version, Versions, fact},
};

/// Adds the inodes that lie where the NAT says, and whose footers name no node. The versions must be sorted by nid, and are not
/// afterwards. At most `count_max` are added.
pub(crate) fn add(shape: &Shape, evidence: &Evidence, versions: &mut Versions, count_max: usize) {
    let mut found: Vec<Version> = Vec::new();
    evidence.for_each_inode(shape, |ino, addr| {
        let is_known = versions.group(ino.into()).any(|at| versions.get(at).addr() == addr);
        if !is_known && shape.contains(addr) && found.len() < count_max {
            found.extend(inode_at(shape, evidence, ino, addr));
        }
    });
    found.into_iter().for_each(|version| versions.push(version));
}

/// The version of an inode at the address that the NAT has. `None` if the block looks like another node, or like none.
fn inode_at(shape: &Shape, evidence: &Evidence, ino: Ino, addr: BlockAddr) -> Option<Version> {
    let bytes = shape.io.read_block(addr, Place::Block(addr)).ok()?;
    if raw_node::footer(&bytes, shape.block_size(), shape.limits).is_some() {
        return None;
    }
    let inode = NodeFooter::with_inode(&bytes, ino);
    raw_node::footer(&inode, shape.block_size(), shape.limits)?;
    let before = evidence.version().wrapping_sub(1);
    let stored = low_half(NodeFooter::of(&bytes).cp_ver);
    let cp = if (1..before).contains(&stored) { stored } else { before };
    let mut version = version_of(shape, addr, &NodeFooter::of(&inode), &inode, cp)?;
    version.add(fact::BAD_SUM);
    Some(version)
}
