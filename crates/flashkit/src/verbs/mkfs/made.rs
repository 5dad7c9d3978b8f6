//! The summary that `mkfs` prints.

use std::io::{self, Write};

use anyhow::Result;
use f2fs::mkfs::Plan;
use flash::probe::Advice;
use indicatif::BinaryBytes;
use serde::Serialize;
use uuid::Uuid;

use super::Args;
use crate::render;

/// Size of the content of a new volume.
#[derive(Clone, Copy, Default)]
pub struct Filled {
    /// Number of files, directories and other entries.
    pub entries: u64,
    /// Number of bytes in the files.
    pub bytes: u64,
}

/// Summary of a new volume.
#[derive(Serialize)]
pub struct Made {
    image: String,
    uuid: String,
    label: String,
    features: Vec<&'static str>,
    volume_bytes: u64,
    block_bytes: usize,
    segments: u32,
    segments_per_section: u32,
    sections_per_zone: u32,
    overprovision_percent: f64,
    overprovision_segments: u32,
    reserved_segments: u32,
    user_bytes: u64,
    entries: u64,
    content_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    /// Properties of the card that the volume is shaped for.
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<Shaped>,
    written: bool,
}

/// Advice for the card beyond the volume's own geometry.
#[derive(Clone, Serialize)]
struct Shaped {
    alignment_bytes: u64,
    active_logs: u64,
    mount_options: String,
    reasons: Vec<String>,
}

impl Made {
    /// Describes the volume of a plan. Without a number of used blocks the volume was not made.
    pub fn of(
        args: &Args,
        plan: &Plan,
        filled: Filled,
        used_blocks: Option<u64>,
        advice: Option<&Advice>,
    ) -> Made {
        let sb = &plan.superblock;
        let block_bytes = sb.block_size.bytes();
        Made {
            image: args.image.display().to_string(),
            uuid: Uuid::from_bytes(sb.uuid).to_string(),
            label: sb.label.clone(),
            features: sb.features.names().collect(),
            volume_bytes: sb.volume_bytes(),
            block_bytes,
            segments: sb.segments,
            segments_per_section: sb.segments_per_section,
            sections_per_zone: sb.sections_per_zone,
            overprovision_percent: plan.set_aside.percent,
            overprovision_segments: plan.set_aside.overprovision_segments,
            reserved_segments: plan.set_aside.reserved_segments,
            user_bytes: plan.user_blocks * block_bytes as u64,
            entries: filled.entries,
            content_bytes: filled.bytes,
            used_bytes: used_blocks.map(|blocks| blocks * block_bytes as u64),
            card: advice.map(|advice| Shaped {
                alignment_bytes: advice.alignment_bytes,
                active_logs: advice.active_logs,
                mount_options: advice.mount_options.clone(),
                reasons: advice.reasons.clone(),
            }),
            written: used_blocks.is_some(),
        }
    }

    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let verb = if self.written { "made" } else { "would make" };
        writeln!(
            out,
            "{}: {verb} an F2FS volume of {}, {} for users",
            render::name(self.image.as_bytes()),
            BinaryBytes(self.volume_bytes),
            BinaryBytes(self.user_bytes)
        )?;
        let features = if self.features.is_empty() { "none".into() } else { self.features.join(", ") };
        writeln!(out, "  UUID {}, label {:?}, features {features}", self.uuid, self.label)?;
        writeln!(
            out,
            "  {}, {} a section, {} a zone; overprovision {:.2} %: {}, {} reserved",
            render::count(self.segments.into(), "segment"),
            self.segments_per_section,
            render::count(self.sections_per_zone.into(), "section"),
            self.overprovision_percent,
            render::count(self.overprovision_segments.into(), "segment"),
            self.reserved_segments
        )?;
        if let Some(card) = &self.card {
            for reason in &card.reasons {
                writeln!(out, "  {reason}")?;
            }
            let start = BinaryBytes(card.alignment_bytes);
            writeln!(
                out,
                "  for the card: start the volume at a multiple of {start}; flashkit mount -o {}",
                card.mount_options
            )?;
        }
        if self.entries > 0 {
            write!(
                out,
                "  {}, {} of data",
                render::count(self.entries, "entry"),
                BinaryBytes(self.content_bytes)
            )?;
            match self.used_bytes {
                Some(used) => writeln!(out, "; {} in use", BinaryBytes(used))?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }

    /// Prints the summary, unless the caller asked for silence.
    pub fn report(&self, args: &Args) -> Result<()> {
        if args.quiet && !args.json {
            return Ok(());
        }
        render::print(self, args.json, Made::text)
    }
}
