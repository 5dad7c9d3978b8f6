//! Roll-forward before a repair: the nodes that fsyncs wrote after the checkpoint.

use std::{collections::HashSet, sync::Arc};

use block::{Device, Overlay, Recording, Request, Verb};
use f2fs::{
    Place, Result,
    engine::{Engine, Io, Options},
    format::{
        block_size::NODE_FOOTER_BYTES,
        node::{NodeFooter, NodeFormat},
        orphan,
    },
    units::{BlockAddr, Ino, Time},
};

use super::tables::Tables;
use crate::{Fix, Kind, Report, reader::parse_node, segments::Segments};

/// The loss if not everything is rolled forward.
const LOST: &str = "the changes of fsyncs after the last checkpoint cannot be rolled forward";
/// Byte offsets in a footer.
const FOOTER_VERSION: usize = 12;
const FOOTER_NEXT: usize = 20;

/// Maximum number of nodes of a chain that is cut where it cannot be rolled forward.
const NODES_MAX: usize = 1 << 20;

/// The result of roll-forward.
#[derive(Default)]
pub struct Rolled {
    /// Requests that roll the volume forward.
    pub requests: Vec<Request>,
    /// The loss as a sentence, if not all nodes can be rolled forward.
    pub loss: Option<String>,
}

/// Rolls the volume forward over an overlay, as a mount does, and returns the requests. A chain that loops, or that
/// has a node with an impossible address, is cut first; one that cannot be rolled forward keeps its longest part that can.
/// The engine removes the orphans, too: wrong entries of their list, which may name files in use, are taken out below the
/// overlay first.
pub fn roll_forward(device: &Arc<dyn Device>, report: &Report, segments: &Segments, now: Time) -> Rolled {
    let has = |kind| report.count(kind) > 0;
    if !has(Kind::ChainPending) {
        return Rolled::default();
    }
    let lost = || Rolled { requests: Vec::new(), loss: Some(LOST.into()) };
    let Ok(cleaned) = without_wrong_orphans(device, report) else { return lost() };
    let wrong = report.findings().iter().find(|finding| finding.kind == Kind::ChainAddress);
    let cut = |overlay: &Overlaid| match (wrong, has(Kind::ChainLoop)) {
        (Some(finding), _) => cut_before(overlay, device, finding.at),
        (None, true) => cut_loop(overlay, device),
        (None, false) => Some(()),
    };
    if let Some(requests) = rolled(device, &cleaned, segments, now, cut) {
        return Rolled { requests, loss: None };
    }
    let Some(nodes) = chain(device) else { return lost() };
    let of_part = |kept: usize| {
        let at = *nodes.get(kept)?;
        rolled(device, &cleaned, segments, now, |overlay| cut_before(overlay, device, at))
    };
    // The first nodes can be rolled forward, and some node after them cannot.
    let (mut kept, mut end, mut best) = (0, nodes.len(), None);
    while end - kept > 1 {
        let middle = kept + (end - kept) / 2;
        match of_part(middle) {
            Some(requests) => (kept, best) = (middle, Some(requests)),
            None => end = middle,
        }
    }
    match best {
        Some(requests) => {
            let loss = format!("{LOST}, from node {} of {} on", kept + 1, nodes.len());
            Rolled { requests, loss: Some(loss) }
        }
        None => lost(),
    }
}

/// Rolls the volume forward after a change of its chain. `None` if the engine cannot, or would overwrite blocks in use.
fn rolled(
    device: &Arc<dyn Device>,
    cleaned: &Arc<dyn Device>,
    segments: &Segments,
    now: Time,
    cut: impl Fn(&Overlaid) -> Option<()>,
) -> Option<Vec<Request>> {
    let overlay = Arc::new(Recording::with_data(Overlay::new(cleaned.clone())));
    cut(&overlay)?;
    let volume = Engine::open(overlay.clone(), Options::new(move || now)).ok()?;
    let is_open = volume.read_only_reason().is_none();
    drop(volume);
    let trace = overlay.take_trace();
    if !is_open || overwrites(device, &trace, segments) {
        return None;
    }
    let is_change = |request: &Request| matches!(request.verb, Verb::Write | Verb::Flush);
    Some(trace.into_iter().filter(is_change).collect())
}

/// The nodes of the chain in their order, up to one that was visited before.
fn chain(device: &Arc<dyn Device>) -> Option<Vec<Place>> {
    let tables = Tables::read(device.clone()).ok()?;
    let (mut addr, mut seen, mut nodes) = (tables.chain_start(), HashSet::new(), Vec::new());
    while tables.geometry.in_main(addr) && seen.insert(addr) && nodes.len() < NODES_MAX {
        let Ok(block) = tables.io.read_block(addr, Place::Block(addr)) else { break };
        let footer = NodeFooter::of(&block);
        if !tables.pack.checkpoint.is_written_after(footer.cp_ver) {
            break;
        }
        nodes.push(Place::Node(footer.nid, addr));
        addr = footer.next_addr;
    }
    Some(nodes)
}

/// The device with an orphan list that has no wrong entries, according to the check. The pack on the device stays: the
/// checkpoint after roll-forward has a list of its own.
fn without_wrong_orphans(device: &Arc<dyn Device>, report: &Report) -> Result<Arc<dyn Device>> {
    let wrong: HashSet<u32> = report.fixes().iter().filter_map(wrong_orphan).collect();
    if wrong.is_empty() && report.count(Kind::OrphanBlock) == 0 {
        return Ok(device.clone());
    }
    let tables = Tables::read(device.clone())?;
    let orphans = tables.pack.orphans.iter().copied();
    let orphans: Vec<Ino> = orphans.filter(|ino| !wrong.contains(&ino.0)).collect();
    let size = tables.geometry.block_size;
    let first = 1 + tables.superblock.cp_payload;
    let count = tables.pack.checkpoint.summaries_start.saturating_sub(first) as usize;
    let mut list = orphan::encode(&orphans, size);
    list.resize(count * size.bytes(), 0);
    let start = BlockAddr(tables.geometry.pack(tables.pack.number).0 + first);
    let overlay: Arc<dyn Device> = Arc::new(Overlay::new(device.clone()));
    Io::new(overlay.clone(), size).write(start, Place::Checkpoint(tables.pack.number), &list)?;
    Ok(overlay)
}

fn wrong_orphan(fix: &Fix) -> Option<u32> {
    match fix {
        Fix::NoOrphan(ino) => Some(ino.0),
        _ => None,
    }
}

/// Returns true if a request overwrites a block that a node names: the table of segments was wrong.
fn overwrites(device: &Arc<dyn Device>, trace: &[Request], segments: &Segments) -> bool {
    let Ok(tables) = Tables::read(device.clone()) else { return true };
    let log = tables.geometry.block_size.log();
    let writes = trace.iter().filter(|request| request.verb == Verb::Write && request.length_bytes > 0);
    let mut blocks = writes.flat_map(|request| {
        request.offset_bytes >> log..=(request.offset_bytes + request.length_bytes - 1) >> log
    });
    blocks.any(|block| {
        let addr = BlockAddr(u32::try_from(block).unwrap_or(u32::MAX));
        tables.geometry.in_main(addr) && segments.is_claimed(addr)
    })
}

type Overlaid = Arc<Recording<Overlay<Arc<dyn Device>>>>;

/// Ends the chain before a node. The checkpoint does not use the node's block.
fn cut_before(overlay: &Overlaid, device: &Arc<dyn Device>, at: Place) -> Option<()> {
    let Place::Node(_, addr) = at else { return None };
    let tables = Tables::read(device.clone()).ok()?;
    let mut block = tables.io.read_block(addr, at).ok()?;
    let at = block.len() - NODE_FOOTER_BYTES + FOOTER_VERSION;
    block[at..at + 8].fill(0);
    overlay.write(u64::from(addr.0) << tables.geometry.block_size.log(), &block).ok()?;
    overlay.flush().ok()
}

/// Ends the chain at the node that leads back.
fn cut_loop(overlay: &Overlaid, device: &Arc<dyn Device>) -> Option<()> {
    let tables = Tables::read(device.clone()).ok()?;
    let mut addr = tables.chain_start();
    let mut seen = HashSet::new();
    loop {
        seen.insert(addr);
        let mut block = tables.io.read_block(addr, Place::Block(addr)).ok()?;
        let footer = NodeFooter::of(&block);
        let next = footer.next_addr;
        if !tables.geometry.in_main(next) {
            return None;
        }
        if seen.contains(&next) {
            let at = block.len() - NODE_FOOTER_BYTES + FOOTER_NEXT;
            block[at..].fill(0);
            let (node, _) = parse_node(NodeFormat::of(&tables.superblock), &block, footer.nid, addr);
            let bytes = node.as_ref().map_or(&block[..], |node| node.bytes());
            overlay.write(u64::from(addr.0) << tables.geometry.block_size.log(), bytes).ok()?;
            return overlay.flush().ok();
        }
        addr = next;
    }
}
