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
use crate::{Finding, Fix, Kind, Report, reader::parse_node, segments::Segments};

/// The loss if nothing is rolled forward.
const LOST: &str = "the changes of fsyncs after the last checkpoint cannot be rolled forward";
/// Byte offsets in a footer.
const FOOTER_VERSION: usize = 12;
const FOOTER_NEXT: usize = 20;

/// The result of roll-forward.
pub enum Rolled {
    /// There was nothing to roll forward.
    None,
    /// These requests roll the volume forward.
    Forward(Vec<Request>),
    /// The nodes cannot be rolled forward; a sentence states the loss.
    Lost(String),
}

/// Rolls the volume forward over an overlay, as a mount does, and returns the requests. A chain that loops, or that
/// has a node with an impossible address, is cut first. The engine removes the orphans, too: wrong entries of their
/// list, which may name files in use, are taken out below the overlay first.
pub fn roll_forward(device: &Arc<dyn Device>, report: &Report, segments: &Segments, now: Time) -> Rolled {
    let has = |kind| report.count(kind) > 0;
    if !has(Kind::ChainPending) {
        return Rolled::None;
    }
    let Ok(cleaned) = without_wrong_orphans(device, report) else { return Rolled::Lost(LOST.into()) };
    let overlay = Arc::new(Recording::with_data(Overlay::new(cleaned)));
    let wrong = report.findings().iter().find(|finding| finding.kind == Kind::ChainAddress);
    let cut = match (wrong, has(Kind::ChainLoop)) {
        (Some(finding), _) => cut_before(&overlay, device, finding),
        (None, true) => cut_loop(&overlay, device),
        (None, false) => Some(()),
    };
    let opened = cut.and_then(|()| Engine::open(overlay.clone(), Options::new(move || now)).ok());
    let is_open = opened.is_some_and(|volume| volume.read_only_reason().is_none());
    let trace = overlay.take_trace();
    if !is_open || overwrites(device, &trace, segments) {
        return Rolled::Lost(LOST.into());
    }
    Rolled::Forward(
        trace.into_iter().filter(|request| matches!(request.verb, Verb::Write | Verb::Flush)).collect(),
    )
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

/// Ends the chain before a node with an impossible address. The checkpoint does not use the node's block.
fn cut_before(overlay: &Overlaid, device: &Arc<dyn Device>, finding: &Finding) -> Option<()> {
    let Place::Node(_, addr) = finding.at else { return None };
    let tables = Tables::read(device.clone()).ok()?;
    let mut block = tables.io.read_block(addr, finding.at).ok()?;
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
