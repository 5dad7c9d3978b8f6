//! `quota`: usage and limits of users, groups and projects.

use std::{io::Write, path::PathBuf};

use anyhow::{Context, Result};
use clap::ArgGroup;
use f2fs::{
    engine::{Caller, Engine, QuotaLimits},
    format::{
        checkpoint::Flags,
        quota::{QuotaKind, raw::QuotaRecord},
    },
    units::Time,
};
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::{
    notice::notice,
    record,
    render::{self, Format},
    size,
    target::{Further, Image, open_read_only},
};

/// Arguments of `quota`.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  flashkit quota card.img\n  flashkit quota set card.img --user 1000 --blocks 900M:1G --inodes 0:5000"
)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// The image or block device.
    #[arg(required = true)]
    image: Option<PathBuf>,
    #[command(flatten)]
    further: Further,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Set the limits of a user, group or project; other limits stay.
    Set(Set),
}

/// Arguments of `quota set`.
#[derive(clap::Args)]
#[command(
    group = ArgGroup::new("who").required(true),
    group = ArgGroup::new("limit").required(true).multiple(true),
    after_help = "A soft limit may be exceeded for a week, a hard one never; 0 is no limit. Linux enforces \
        limits on mounts with usrquota, grpquota and prjquota.\n\n\
        Examples:\n  flashkit quota set card.img --project 7 --blocks 0:2G\n  flashkit quota set card.img --group 100 --inodes 9000:10000"
)]
struct Set {
    #[command(flatten)]
    image: Image,
    /// A user, by number.
    #[arg(long, value_name = "ID", group = "who")]
    user: Option<u32>,
    /// A group, by number.
    #[arg(long, value_name = "ID", group = "who")]
    group: Option<u32>,
    /// A project, by number.
    #[arg(long, value_name = "ID", group = "who")]
    project: Option<u32>,
    /// Limits of space: sizes such as 64M or 16GiB, or blocks of 1 KiB as with setquota.
    #[arg(long, value_name = "SOFT:HARD", group = "limit", value_parser = space)]
    blocks: Option<Pair>,
    /// Limits of inodes.
    #[arg(long, value_name = "SOFT:HARD", group = "limit", value_parser = count)]
    inodes: Option<Pair>,
}

/// A soft and a hard limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    soft: u64,
    hard: u64,
}

/// Usage and limits of one user, group or project; 0 means no limit.
#[derive(Serialize)]
struct Row {
    kind: &'static str,
    id: u32,
    #[serde(flatten)]
    space: Space,
    inodes: u64,
    inodes_soft: u64,
    inodes_hard: u64,
    /// End of the grace time of a soft limit; null if the limit is not exceeded.
    inodes_until: Option<String>,
}

#[derive(Serialize)]
struct Space {
    bytes: u64,
    bytes_soft: u64,
    bytes_hard: u64,
    bytes_until: Option<String>,
}

/// Prints the report, or sets limits.
pub fn run(args: &Args) -> Result<()> {
    match (&args.what, &args.image) {
        (Some(What::Set(set)), _) => set.run(),
        (None, Some(image)) => {
            let volume = open_read_only(image, &args.further)?;
            report(&volume, args.json.into()).with_context(|| image.display().to_string())
        }
        (None, None) => unreachable!("the image is required"),
    }
}

fn report(volume: &Engine, format: Format) -> Result<()> {
    if QuotaKind::ALL.into_iter().all(|kind| volume.quota_ino(kind).is_none()) {
        notice!("the volume has no quota; mkfs -O quota makes one with quota");
    }
    if volume.last_checkpoint().flags.has(Flags::QUOTA_NEED_FSCK) {
        notice!("the usage may be wrong; flashkit fsck -y repairs it");
    }
    let mut rows = Vec::new();
    for kind in QuotaKind::ALL {
        rows.extend(volume.quota_records(kind)?.into_iter().map(|located| Row::of(kind, &located.record)));
    }
    render::print(&rows, format, |rows, out| table(rows, out))
}

impl Set {
    fn run(&self) -> Result<()> {
        let ids = [self.user, self.group, self.project];
        let mut named = QuotaKind::ALL.into_iter().zip(ids).filter_map(|(kind, id)| Some((kind, id?)));
        let (kind, id) = named.next().expect("one of them is required");
        let set = |volume: &mut Engine| {
            let before = volume.quota_of(kind, id)?;
            let pair = |soft: u64, hard: u64| Pair { soft, hard };
            let blocks =
                self.blocks.unwrap_or(pair(before.block_soft_limit.get(), before.block_hard_limit.get()));
            let inodes =
                self.inodes.unwrap_or(pair(before.inode_soft_limit.get(), before.inode_hard_limit.get()));
            let limits = QuotaLimits {
                space_soft_kib: blocks.soft,
                space_hard_kib: blocks.hard,
                inodes_soft: inodes.soft,
                inodes_hard: inodes.hard,
            };
            volume.begin(Caller::ADMIN).set_quota_limits(kind, id, limits)
        };
        self.image.change(set).with_context(|| format!("{} {id}", kind.name()))
    }
}

impl Row {
    fn of(kind: QuotaKind, record: &QuotaRecord) -> Row {
        let until = |seconds: u64| {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            (seconds != 0).then(|| record::time(Time { seconds, nanoseconds: 0 }))
        };
        Row {
            kind: kind.name(),
            id: record.id.get(),
            space: Space {
                bytes: record.space.get(),
                bytes_soft: record.block_soft_limit.get().saturating_mul(1024),
                bytes_hard: record.block_hard_limit.get().saturating_mul(1024),
                bytes_until: until(record.block_time.get()),
            },
            inodes: record.inodes.get(),
            inodes_soft: record.inode_soft_limit.get(),
            inodes_hard: record.inode_hard_limit.get(),
            inodes_until: until(record.inode_time.get()),
        }
    }
}

fn table(rows: &[Row], out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{:8}{:>10} {:>12} {:>12} {:>12} {:>9} {:>9} {:>9}",
        "kind", "id", "used", "soft", "hard", "inodes", "soft", "hard"
    )?;
    for row in rows {
        let limit = |bytes: u64| if bytes == 0 { "-".into() } else { BinaryBytes(bytes).to_string() };
        let most = |inodes: u64| if inodes == 0 { "-".into() } else { inodes.to_string() };
        writeln!(
            out,
            "{:8}{:>10} {:>12} {:>12} {:>12} {:>9} {:>9} {:>9}",
            row.kind,
            row.id,
            BinaryBytes(row.space.bytes).to_string(),
            limit(row.space.bytes_soft),
            limit(row.space.bytes_hard),
            row.inodes,
            most(row.inodes_soft),
            most(row.inodes_hard)
        )?;
        for (what, until) in [("space", &row.space.bytes_until), ("inodes", &row.inodes_until)] {
            if let Some(until) = until {
                writeln!(
                    out,
                    "        over its soft limit of {what}, which it must not exceed after {until}"
                )?;
            }
        }
    }
    Ok(())
}

/// Parses limits of space in KiB.
fn space(text: &str) -> Result<Pair, String> {
    let kib = |text: &str| match text.parse() {
        Ok(kib) => Ok(kib),
        Err(_) => size::parse(text).map(|bytes| bytes.div_ceil(1024)),
    };
    pair(text, kib)
}

fn count(text: &str) -> Result<Pair, String> {
    pair(text, |text| text.parse().map_err(|_| format!("{text:?} is not a number of inodes")))
}

fn pair(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Pair, String> {
    let (soft, hard) = text.split_once(':').ok_or("a soft and a hard limit are written SOFT:HARD")?;
    Ok(Pair { soft: parse(soft)?, hard: parse(hard)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_space_are_sizes_or_kib() {
        assert_eq!(space("900M:1G"), Ok(Pair { soft: 900 << 10, hard: 1 << 20 }));
        assert_eq!(space("0:4096"), Ok(Pair { soft: 0, hard: 4096 }));
        assert!(space("1G").is_err() && space("1:x").is_err() && count("1K:2").is_err());
        assert_eq!(count("0:7"), Ok(Pair { soft: 0, hard: 7 }));
    }
}
