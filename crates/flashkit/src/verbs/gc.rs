//! `gc`: cleaning on demand.

use anyhow::Result;
use f2fs::engine::Policy;
use serde::Serialize;

use crate::{render, target::Image};

/// Arguments of `gc`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit gc card.img --sections 100")]
pub struct Args {
    #[command(flatten)]
    image: Image,
    /// Maximum number of sections to clean.
    #[arg(short, long, default_value_t = u32::MAX, hide_default_value = true)]
    sections: u32,
    /// Policy to choose sections.
    #[arg(long, value_enum, default_value = "cost-benefit")]
    policy: How,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Policies to choose sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum How {
    /// The sections with the fewest valid blocks.
    Greedy,
    /// Sections with few valid blocks that have not changed for long.
    CostBenefit,
    /// Like cost-benefit, among the oldest sections and none of the last week.
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

/// Result of cleaning.
#[derive(Serialize)]
struct Record {
    sections: u32,
    moved_blocks: u64,
}

/// Cleans sections.
pub fn run(args: &Args) -> Result<()> {
    let cleaned = args.image.change(|volume| volume.clean(args.sections, args.policy.into()))?;
    let record = Record { sections: cleaned.sections, moved_blocks: cleaned.moved_blocks };
    render::print(&record, args.json, |record, out| {
        let (sections, blocks) =
            (render::count(record.sections.into(), "section"), render::count(record.moved_blocks, "block"));
        writeln!(out, "{sections} cleaned, {blocks} moved")
    })
}
