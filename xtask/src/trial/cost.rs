//! Write costs on the device: our engine compared with Linux's f2fs, on one volume.

use std::io::Write;

use anyhow::{Context, Result};
use guest::pattern::{Access, Sync};
use lab::{
    cost::{Cell, Costs, Traffic},
    scale::Scale,
    systems::{Machine, Programs},
};

use crate::{interrupt, study::uml_kernel};

/// Prints the table: for each cell whose name contains all of the words, our row and Linux's below it.
///
/// # Errors
/// There is no kernel for the lab's guest, or a cell fails.
pub fn cost(
    buffered_bytes: u64,
    volume_bytes: u64,
    seed: u64,
    words: &[String],
    out: &mut impl Write,
) -> Result<()> {
    let kernel = uml_kernel::build(&uml_kernel::Options::default())?;
    let agent = uml_kernel::with_agent(&kernel)?;
    let scale = Scale::of_file(buffered_bytes);
    let costs = Costs {
        scale,
        volume_bytes,
        seed,
        programs: Programs { machine: Machine::Virtual, kernel, agent, flashkit: None },
        stop: interrupt::stop(),
    };
    let work = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    writeln!(out, "| cell | | asked | data | node | meta | ratio | writes | flushes | discards |")?;
    writeln!(out, "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")?;
    let mut worse = Vec::new();
    for cell in costs.cells() {
        let name = name(&cell);
        if words.iter().any(|word| !name.contains(word.as_str())) {
            continue;
        }
        interrupt::check()?;
        let [ours, linux] = costs.both(&cell, work.path()).with_context(|| name.clone())?;
        line(out, &name, "ours", &ours)?;
        line(out, "", "Linux", &linux)?;
        if ours.written_blocks() > linux.written_blocks() {
            worse.push(format!("{name}: {} blocks, Linux {}", ours.written_blocks(), linux.written_blocks()));
        }
        if ours.requests() > linux.requests() {
            worse.push(format!("{name}: {} requests, Linux {}", ours.requests(), linux.requests()));
        }
    }
    writeln!(out, "\nworse in {} places", worse.len())?;
    worse.iter().try_for_each(|one| writeln!(out, "- {one}"))?;
    Ok(())
}

fn line(out: &mut impl Write, cell: &str, who: &str, cost: &Traffic) -> Result<()> {
    writeln!(
        out,
        "| {cell} | {who} | {} | {} | {} | {} | {:.4} | {} | {} | {} |",
        cost.asked_blocks,
        cost.data_blocks,
        cost.node_blocks,
        cost.meta_blocks,
        cost.amplification(),
        cost.writes,
        cost.flushes,
        cost.discards
    )?;
    Ok(())
}

fn name(cell: &Cell) -> String {
    let pattern = &cell.pattern;
    let mode = if cell.options.is_empty() { "default" } else { cell.options };
    let order = if pattern.access == Access::Create { "sequential" } else { "random" };
    let sync = if pattern.sync == Sync::Each { "fsync'd" } else { "buffered" };
    format!("{mode}, {order}, {sync}, {} KiB", pattern.record_bytes / 1024)
}
