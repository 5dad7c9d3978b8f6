//! `info`: a volume's properties.

use std::io::{self, Write};

use anyhow::Result;
use f2fs::{
    engine::Engine,
    format::{checkpoint::Flags, sit::SegmentType, superblock::Area},
};
use indicatif::{BinaryBytes, HumanCount};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    render,
    target::{Image, open_read_only},
};

/// Arguments of `info`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit info card.img\n  flashkit info /dev/mmcblk0p2 --json | jq .free_bytes"
)]
pub struct Args {
    #[command(flatten)]
    image: Image,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the properties.
pub fn run(args: &Args) -> Result<()> {
    let volume = open_read_only(&args.image.image, &args.image.further)?;
    render::print(&Info::of(&volume), args.json, Info::text)
}

/// The properties in superblock and checkpoint, and those that follow from them.
#[derive(Serialize)]
struct Info {
    uuid: String,
    label: String,
    features: Vec<&'static str>,
    unknown_feature_bits: u32,
    block_bytes: usize,
    sector_bytes: u32,
    volume_bytes: u64,
    segments: u32,
    segments_per_section: u32,
    sections_per_zone: u32,
    sections: u32,
    areas: Vec<AreaInfo>,
    devices: Vec<DeviceInfo>,
    cold_extensions: Vec<String>,
    hot_extensions: Vec<String>,
    encoding: Option<&'static str>,
    checkpoint_version: u64,
    checkpoint_pack: u8,
    checkpoint_flags: Vec<&'static str>,
    clean: bool,
    asks_for_fsck: bool,
    mounted_seconds: u64,
    user_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    overprovision_segments: u32,
    reserved_segments: u32,
    free_segments: u32,
    nodes: u32,
    inodes: u32,
    orphans: usize,
    logs: Vec<LogInfo>,
    read_only_because: Option<String>,
}

#[derive(Serialize)]
struct AreaInfo {
    name: &'static str,
    start_block: u32,
    segments: u32,
}

#[derive(Serialize)]
struct DeviceInfo {
    path: String,
    segments: u32,
}

#[derive(Serialize)]
struct LogInfo {
    log: String,
    segment: u32,
    next_block: u16,
    ssr: bool,
}

impl Info {
    fn of(volume: &Engine) -> Info {
        let sb = volume.superblock();
        let cp = volume.last_checkpoint();
        let block_bytes = sb.block_size.bytes();
        let bytes = |blocks: u64| blocks * block_bytes as u64;
        let used_blocks = volume.counters().valid_blocks;
        let area = |name, area: Area| AreaInfo { name, start_block: area.start.0, segments: area.segments };
        Info {
            uuid: Uuid::from_bytes(sb.uuid).to_string(),
            label: sb.label.clone(),
            features: sb.features.names().collect(),
            unknown_feature_bits: sb.features.unknown(),
            block_bytes,
            sector_bytes: 1 << sb.log_sector_bytes,
            volume_bytes: sb.volume_bytes(),
            segments: sb.segments,
            segments_per_section: sb.segments_per_section,
            sections_per_zone: sb.sections_per_zone,
            sections: sb.sections,
            areas: vec![
                area("checkpoint", sb.checkpoint),
                area("SIT", sb.sit),
                area("NAT", sb.nat),
                area("SSA", sb.ssa),
                area("main", sb.main),
            ],
            devices: sb
                .devices
                .iter()
                .map(|device| DeviceInfo { path: device.path.clone(), segments: device.segments })
                .collect(),
            cold_extensions: sb.cold_extensions.clone(),
            hot_extensions: sb.hot_extensions.clone(),
            encoding: (sb.encoding == 1).then_some("UTF-8 12.1"),
            checkpoint_version: cp.version.0,
            checkpoint_pack: volume.last_pack(),
            checkpoint_flags: cp.flags.names().collect(),
            clean: cp.flags.has(Flags::UMOUNT),
            asks_for_fsck: volume.asks_for_fsck(),
            mounted_seconds: cp.elapsed_seconds,
            user_bytes: bytes(cp.user_blocks),
            used_bytes: bytes(used_blocks),
            free_bytes: bytes(cp.user_blocks.saturating_sub(used_blocks)),
            overprovision_segments: cp.overprovision_segments,
            reserved_segments: cp.reserved_segments,
            free_segments: cp.free_segments,
            nodes: volume.counters().valid_nodes,
            inodes: volume.counters().valid_inodes,
            orphans: volume.orphans().len(),
            logs: SegmentType::ALL
                .iter()
                .map(|kind| (kind, cp.logs[*kind as usize]))
                .map(|(kind, log)| LogInfo {
                    log: kind.to_string(),
                    segment: log.segment.0,
                    next_block: log.offset,
                    ssr: log.mode.is_ssr(),
                })
                .collect(),
            read_only_because: volume.read_only_reason().map(str::to_owned),
        }
    }

    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.identity(out)?;
        self.sizes(out)?;
        self.places(out)?;
        self.checkpoint(out)?;
        self.open_logs(out)?;
        match &self.read_only_because {
            Some(reason) if self.unknown_feature_bits != 0 => writeln!(out, "read-only       {reason}"),
            _ => Ok(()),
        }
    }

    /// Prints the UUID, the label and the features.
    fn identity(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "UUID            {}", self.uuid)?;
        writeln!(
            out,
            "label           {}",
            if self.label.is_empty() { "none".into() } else { render::name(self.label.as_bytes()) }
        )?;
        writeln!(out, "features        {}", or_none(&self.features))?;
        if self.unknown_feature_bits != 0 {
            writeln!(out, "unknown bits    {:#x}", self.unknown_feature_bits)?;
        }
        Ok(())
    }

    /// Prints sizes and counts.
    fn sizes(&self, out: &mut dyn Write) -> io::Result<()> {
        let size = |bytes: u64| BinaryBytes(bytes).to_string();
        writeln!(
            out,
            "size            {}: {} of {}, blocks of {} bytes, sectors of {}",
            size(self.volume_bytes),
            render::count(self.segments.into(), "segment"),
            size(self.block_bytes as u64 * 512),
            self.block_bytes,
            self.sector_bytes
        )?;
        writeln!(
            out,
            "use             {} of {}, {} free; {}, {}",
            size(self.used_bytes),
            size(self.user_bytes),
            size(self.free_bytes),
            render::count(self.inodes.into(), "inode"),
            render::count(self.nodes.into(), "node")
        )?;
        writeln!(
            out,
            "sections        {}, each {}; {} in a zone",
            HumanCount(self.sections.into()),
            render::count(self.segments_per_section.into(), "segment"),
            render::count(self.sections_per_zone.into(), "section")
        )?;
        writeln!(
            out,
            "overprovision   {}, {} of it reserved for cleaning; {} free",
            render::count(self.overprovision_segments.into(), "segment"),
            HumanCount(self.reserved_segments.into()),
            render::count(self.free_segments.into(), "segment")
        )
    }

    /// Prints the areas, the devices and the encoding of names.
    fn places(&self, out: &mut dyn Write) -> io::Result<()> {
        for area in &self.areas {
            writeln!(
                out,
                "{:15} {} from block {}",
                format!("{} area", area.name),
                render::count(area.segments.into(), "segment"),
                area.start_block
            )?;
        }
        for device in &self.devices {
            writeln!(
                out,
                "device          {}, {}",
                render::name(device.path.as_bytes()),
                render::count(device.segments.into(), "segment")
            )?;
        }
        if let Some(encoding) = self.encoding {
            writeln!(out, "encoding        {encoding}")?;
        }
        Ok(())
    }

    /// Prints the checkpoint and the state of the volume.
    fn checkpoint(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "checkpoint      version {} in pack {}: {}",
            self.checkpoint_version,
            self.checkpoint_pack,
            or_none(&self.checkpoint_flags)
        )?;
        let state = if self.clean { "clean" } else { "not unmounted: shown as after recovery" };
        writeln!(out, "state           {state}; {}", render::count(self.orphans as u64, "orphan"))?;
        if self.asks_for_fsck {
            writeln!(out, "damage          found: flashkit fsck -y repairs it")?;
        }
        Ok(())
    }

    /// Prints the logs.
    fn open_logs(&self, out: &mut dyn Write) -> io::Result<()> {
        for log in &self.logs {
            writeln!(
                out,
                "{:15} segment {}, next block {}{}",
                format!("{} log", log.log),
                log.segment,
                log.next_block,
                if log.ssr { ", SSR" } else { "" }
            )?;
        }
        Ok(())
    }
}

fn or_none(list: &[&str]) -> String {
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}
