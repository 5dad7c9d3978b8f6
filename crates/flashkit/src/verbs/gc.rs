//! `gc`: cleaning on demand.

use anyhow::Result;
use f2fs::volume::Policy;
use serde::Serialize;

use crate::{render, target::Image};

/// Arguments of `gc`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit gc card.img --sections 100")]
pub struct Args {
    #[command(flatten)]
    image: Image,
    /// Sections to clean at most.
    #[arg(short, long, default_value_t = u32::MAX, hide_default_value = true)]
    sections: u32,
    /// How sections are chosen.
    #[arg(long, value_enum, default_value = "cost-benefit")]
    policy: How,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How sections are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum How {
    /// Those with the least to move.
    Greedy,
    /// Little to move that has not changed for long.
    CostBenefit,
    /// The same among the oldest, and none of the last week.
    AgeThreshold,
}

impl From<How> for Policy {
    fn from(how: How) -> Policy {
        match how {
            How::Greedy => Policy::Greedy,
            How::CostBenefit => Policy::CostBenefit,
            How::AgeThreshold => Policy::AgeThreshold,
        }
    }
}

/// What was done.
#[derive(Serialize)]
struct Record {
    sections: u32,
    moved_blocks: u64,
}

/// Cleans.
pub fn run(args: &Args) -> Result<()> {
    let cleaned = args.image.change(|volume| volume.clean(args.sections, args.policy.into()))?;
    let record = Record { sections: cleaned.sections, moved_blocks: cleaned.moved_blocks };
    render::print(&record, args.json, |record, out| {
        let (sections, blocks) =
            (render::count(record.sections.into(), "section"), render::count(record.moved_blocks, "block"));
        writeln!(out, "{sections} cleaned, {blocks} moved")
    })
}
