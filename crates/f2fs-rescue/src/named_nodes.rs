//! Nodes with a damaged footer or an impossible field: the NAT tells which ones they are.

use f2fs::{
    Place,
    format::{FileType, NodeBlock, dentry::Dentries, inode::inline, node::NodeFooter, node_path::NodeKind},
    units::{BlockAddr, Ino, Nid},
};

use crate::{
    evidence::{Evidence, high_half, low_half},
    mended,
    nodes::Nodes,
    pieces::{Piece, pieces},
    raw_node,
    scan::version_of,
    shape::Shape,
    versions::{Version, Versions, fact},
};

/// Impossible fields of an inode: with more, the block was overwritten by something else.
const BAD_FIELDS_MAX: u32 = 2;
/// Minimum ratio of the words of a node that are in use to those that are impossible.
const GOOD_WORDS_MIN: usize = 8;

/// Adds the nodes that lie where the NAT says, and that the scan did not recognise. The versions must be sorted by nid, and are
/// not afterwards. At most `count_max` are added.
pub(crate) fn add(shape: &Shape, evidence: &Evidence, versions: &mut Versions, count_max: usize) {
    let mut found: Vec<Version> = Vec::new();
    let nodes = Nodes { shape, versions };
    // A hostile image may have many inodes without a mode in one large directory.
    let mut budget_blocks = shape.blocks.end - shape.blocks.start;
    evidence.for_each_node(shape, |nid, ino, addr| {
        let is_known = versions.group(nid).any(|at| versions.get(at).addr() == addr);
        if is_known || !shape.contains(addr) || found.len() >= count_max {
            return;
        }
        let Ok(bytes) = shape.io.read_block(addr, Place::Block(addr)) else { return };
        found.extend(match nid == ino.into() {
            true => {
                let kind = named_kind(nodes, ino, &bytes, &mut budget_blocks);
                inode_at((shape, evidence), ino, addr, &bytes, kind)
            }
            false => node_at(shape, evidence, (nid, ino), addr, &bytes),
        });
    });
    found.into_iter().for_each(|version| versions.push(version));
}

/// The version of an inode at the address that the NAT has. `None` if the block looks like another node, or like none.
fn inode_at(
    (shape, evidence): (&Shape, &Evidence),
    ino: Ino,
    addr: BlockAddr,
    bytes: &[u8],
    kind: Option<FileType>,
) -> Option<Version> {
    let footer = NodeFooter::of(bytes);
    let (size, limits) = (shape.block_size(), shape.limits);
    let mended = mended::inode(bytes, ino, shape, kind);
    match footer.nid == ino.into() && footer.ino == ino {
        true if mended.bad_fields > BAD_FIELDS_MAX => return None,
        true => {}
        // Nothing but the NAT tells the number.
        false if raw_node::footer(bytes, size, limits).is_some() => return None,
        false => drop(raw_node::footer(&NodeFooter::with_inode(bytes, ino), size, limits)?),
    }
    NodeBlock::check(shape.lenient, mended.bytes.clone(), ino.into(), ino, addr).ok()?;
    let cp = written_at(evidence, &footer);
    let mut version = version_of(shape, addr, &NodeFooter::of(&mended.bytes), &mended.bytes, cp)?;
    version.add(fact::BAD_SUM);
    Some(version)
}

/// The kind of an inode with an impossible mode, by its entry in its directory. Takes the blocks that it reads from the budget.
fn named_kind(nodes: Nodes<'_>, ino: Ino, bytes: &[u8], budget_blocks: &mut u64) -> Option<FileType> {
    let head = raw_node::head(bytes);
    if FileType::from_mode(head.mode.get()).is_some() || *budget_blocks == 0 {
        return None;
    }
    let dir = nodes.current(Ino(head.pino.get())).ok().filter(|dir| dir.node.is_directory())?;
    let kind_in = |area: &[u8]| {
        let entries = Dentries::new(area, Place::Dir(dir.ino(), 0));
        let mut named = entries.entries().flatten().filter(|entry| entry.ino == ino && entry.name != b"..");
        named.find_map(|entry| entry.kind)
    };
    if dir.node.has_inline(inline::DENTRY) {
        return kind_in(dir.node.inline_area());
    }
    let all = pieces(nodes, &dir).all;
    *budget_blocks = budget_blocks.saturating_sub(1 + all.len() as u64);
    let addrs = all.iter().flat_map(|piece| match piece {
        Piece::Data { addrs, .. } => addrs.clone(),
        Piece::Cluster { .. } | Piece::Lost { .. } => 0..0,
    });
    addrs.map(BlockAddr).find_map(|addr| {
        *budget_blocks = budget_blocks.checked_sub(1)?;
        kind_in(&nodes.shape.io.read_block(addr, Place::Block(addr)).ok()?)
    })
}

/// The version of another node at the address that the NAT has. Its footer must agree, and most of its words must be possible.
fn node_at(
    shape: &Shape,
    evidence: &Evidence,
    (nid, ino): (Nid, Ino),
    addr: BlockAddr,
    bytes: &[u8],
) -> Option<Version> {
    let footer = NodeFooter::of(bytes);
    if footer.nid != nid || footer.ino != ino {
        return None;
    }
    let kind = NodeKind::of(shape.block_size(), footer.offset)?;
    let (bad, used) = raw_node::bad_words(bytes, shape.block_size(), shape.limits, kind)?;
    let is_plausible = bad * GOOD_WORDS_MIN <= used;
    let cp = written_at(evidence, &footer);
    is_plausible
        .then(|| Version::node(nid, ino, footer.offset, addr, cp).with_checksum(high_half(footer.cp_ver)))
}

/// Checkpoint before a node of the newest checkpoint: that of its footer if it is possible.
fn written_at(evidence: &Evidence, footer: &NodeFooter) -> u32 {
    let before = evidence.version().wrapping_sub(1);
    let stored = low_half(footer.cp_ver);
    if (1..before).contains(&stored) { stored } else { before }
}
