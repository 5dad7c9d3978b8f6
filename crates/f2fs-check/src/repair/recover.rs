//! Roll-forward before a repair: the nodes that fsyncs wrote after the checkpoint.

use std::{collections::HashSet, sync::Arc};

use block::{Device, Overlay, Recording, Request, Verb};
use f2fs::{
    Place,
    engine::{Engine, Options},
    format::{
        block_size::NODE_FOOTER_BYTES,
        node::{NodeFooter, NodeFormat},
    },
    units::{BlockAddr, Time},
};

use super::{
    corrected::{Corrected, chain, corrected},
    tables::Tables,
};
use crate::{Kind, Loss, Report, reader::parse_node, segments::Segments};

/// The loss if not everything is rolled forward.
const LOST: &str = "the changes of fsyncs after the last checkpoint cannot be rolled forward";
/// The loss if the chain ends before some of its nodes.
const BEHIND: &str = "the changes of fsyncs behind a damaged or missing node of their chain are lost";
/// Byte offsets in a footer.
const FOOTER_VERSION: usize = 12;
const FOOTER_NEXT: usize = 20;

/// The result of roll-forward.
#[derive(Default)]
pub struct Rolled {
    /// Requests that roll the volume forward.
    pub requests: Vec<Request>,
    /// The losses as sentences: nodes that cannot be rolled forward, and blocks of which nothing tells the address.
    pub losses: Vec<String>,
}

/// Rolls the volume forward over an overlay, as a mount does, and returns the requests. The engine works below the
/// [corrections](super::corrected) of the check. A chain that loops is cut first; one that cannot be rolled forward keeps
/// its longest part that can.
pub fn roll_forward(device: &Arc<dyn Device>, report: &Report, segments: &Segments, now: Time) -> Rolled {
    let mut rolled = roll_chain_forward(device, report, segments, now);
    if report.count(Kind::ChainGap) > 0 {
        rolled.losses.push(BEHIND.into());
    }
    rolled
}

fn roll_chain_forward(device: &Arc<dyn Device>, report: &Report, segments: &Segments, now: Time) -> Rolled {
    if report.count(Kind::ChainPending) == 0 && report.count(Kind::ChainLoop) == 0 {
        return Rolled::default();
    }
    let lost = || Rolled { requests: Vec::new(), losses: vec![LOST.into()] };
    let Ok(Corrected { device: start, cleared }) = corrected(device, report, segments) else { return lost() };
    let Ok(tables) = Tables::read(start.clone()) else { return lost() };
    let mut losses = Vec::new();
    if cleared > 0 {
        losses.push(Loss::Address.sentence(cleared));
    }
    let loops = report.count(Kind::ChainLoop) > 0;
    let cut = |overlay: &Overlaid| if loops { cut_loop(overlay, &tables) } else { Some(()) };
    if let Some(requests) = rolled(&start, segments, now, cut) {
        return Rolled { requests, losses };
    }
    let nodes = chain(&tables);
    let of_part = |kept: usize| {
        let at = *nodes.get(kept)?;
        rolled(&start, segments, now, |overlay| cut_before(overlay, &tables, at))
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
    let Some(requests) = best else { return lost() };
    losses.push(format!("{LOST}, from node {} of {} on", kept + 1, nodes.len()));
    Rolled { requests, losses }
}

/// Rolls the volume forward after a change of its chain. `None` if the engine cannot, or would overwrite blocks in use.
fn rolled(
    start: &Arc<dyn Device>,
    segments: &Segments,
    now: Time,
    cut: impl Fn(&Overlaid) -> Option<()>,
) -> Option<Vec<Request>> {
    let overlay = Arc::new(Recording::with_data(Overlay::new(start.clone())));
    cut(&overlay)?;
    let volume = Engine::open(overlay.clone(), Options::new(move || now)).ok()?;
    let is_open = volume.read_only_reason().is_none();
    drop(volume);
    let trace = overlay.take_trace();
    if !is_open || overwrites(start, &trace, segments) {
        return None;
    }
    let is_change = |request: &Request| matches!(request.verb, Verb::Write | Verb::Flush);
    Some(trace.into_iter().filter(is_change).collect())
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
fn cut_before(overlay: &Overlaid, tables: &Tables, at: Place) -> Option<()> {
    let Place::Node(_, addr) = at else { return None };
    let mut block = tables.io.read_block(addr, at).ok()?;
    let at = block.len() - NODE_FOOTER_BYTES + FOOTER_VERSION;
    block[at..at + 8].fill(0);
    overlay.write(u64::from(addr.0) << tables.geometry.block_size.log(), &block).ok()?;
    overlay.flush().ok()
}

/// Ends the chain at the node that leads back.
fn cut_loop(overlay: &Overlaid, tables: &Tables) -> Option<()> {
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
