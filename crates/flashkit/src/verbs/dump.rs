//! `dump`: on-disk structures, under the names used by the kernel and f2fs-tools.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, bail};
use f2fs::{
    Place,
    engine::{Engine, read_raw_superblock},
    format::{
        FileType,
        dentry::Dentries,
        inode::inline,
        node::NodeBlock,
        sit::SegmentType,
        summary::Summary,
        superblock::{self, raw},
    },
    units::{BlockAddr, Ino, Nid, SegNo},
};
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    record::time,
    render::{self, Format, Name, keyed},
    target::{Further, Image, Target, open_device, open_read_only},
};

/// Arguments of `dump`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  flashkit dump superblock card.img\n  flashkit dump nat card.img --nid 3\n  flashkit dump map card.img:/var/log/syslog --json"
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

/// The structures.
#[derive(clap::Subcommand)]
enum What {
    /// The superblock, field by field, as it lies on the device.
    #[command(after_help = "Examples:
  flashkit dump superblock card.img
  flashkit dump superblock card.img --second --json | jq .feature_names")]
    Superblock {
        #[command(flatten)]
        image: Image,
        /// The second copy.
        #[arg(long)]
        second: bool,
    },
    /// The newest checkpoint.
    #[command(after_help = "Example:\n  flashkit dump checkpoint card.img --json | jq .ckpt_flags")]
    Checkpoint {
        #[command(flatten)]
        image: Image,
    },
    /// The NAT: inode and address of each node; only used nodes, or the requested one.
    #[command(after_help = "Examples:\n  flashkit dump nat card.img\n  flashkit dump nat card.img --nid 3")]
    Nat {
        #[command(flatten)]
        image: Image,
        /// Only this node.
        #[arg(long)]
        nid: Option<u32>,
    },
    /// The SIT: kind, valid blocks and time of segments; only used segments, or the requested one.
    #[command(
        after_help = "Examples:\n  flashkit dump sit card.img\n  flashkit dump sit card.img --segment 7"
    )]
    Sit {
        #[command(flatten)]
        image: Image,
        /// Only this segment, with its map.
        #[arg(long)]
        segment: Option<u32>,
    },
    /// A segment's summary: the node that owns each of its valid blocks.
    #[command(after_help = "Example:\n  flashkit dump ssa card.img --segment 7")]
    Ssa {
        #[command(flatten)]
        image: Image,
        /// The segment.
        #[arg(long)]
        segment: u32,
    },
    /// A node block of any kind.
    #[command(after_help = "Example:\n  flashkit dump node card.img --nid 3")]
    Node {
        #[command(flatten)]
        image: Image,
        /// The node.
        #[arg(long)]
        nid: u32,
    },
    /// An inode block, field by field.
    #[command(
        after_help = "Examples:\n  flashkit dump inode card.img:/etc/hosts\n  flashkit dump inode card.img --ino 3 --json"
    )]
    Inode {
        /// The image, and a path inside it.
        #[arg(value_name = "IMAGE[:PATH]")]
        target: Target,
        #[command(flatten)]
        further: Further,
        /// The inode number, instead of a path.
        #[arg(long)]
        ino: Option<u32>,
    },
    /// The entries of a directory with block, slot and hash.
    #[command(after_help = "Example:\n  flashkit dump dir card.img:/etc")]
    Dir {
        /// The image, and the path of a directory inside it.
        #[arg(value_name = "IMAGE[:PATH]")]
        target: Target,
        #[command(flatten)]
        further: Further,
    },
    /// The map of a file: the addresses of its blocks.
    #[command(after_help = "Example:\n  flashkit dump map card.img:/var/log/syslog --json")]
    Map {
        /// The image, and the path of a file inside it.
        #[arg(value_name = "IMAGE:PATH")]
        target: Target,
        #[command(flatten)]
        further: Further,
    },
}

/// Prints the structure.
pub fn run(args: &Args) -> Result<()> {
    let format = Format::from(args.json);
    let open = |image: &Image| open_read_only(&image.image, &image.further);
    let name = |path: &PathBuf| path.display().to_string();
    match &args.what {
        What::Superblock { image, second } => {
            let device = open_device(&image.further.place.range.of(&image.image))?;
            let copy = u8::from(*second);
            let raw = read_raw_superblock(&device, copy).with_context(|| name(&image.image))?;
            render::fields(&superblock_fields(&raw), format)
        }
        What::Checkpoint { image } => render::fields(&checkpoint_fields(&open(image)?), format),
        What::Nat { image, nid } => {
            let volume = open(image)?;
            nid.map_or(Ok(()), |nid| check_range(&volume, Nid(nid))).with_context(|| name(&image.image))?;
            render::rows(nat_rows(&volume, nid.map(Nid)), format).with_context(|| name(&image.image))
        }
        What::Sit { image, segment } => {
            let volume = open(image)?;
            sit(&volume, segment.map(SegNo), format).with_context(|| name(&image.image))
        }
        What::Ssa { image, segment } => {
            let volume = open(image)?;
            ssa(&volume, SegNo(*segment), format).with_context(|| name(&image.image))
        }
        What::Node { image, nid } => {
            let volume = open(image)?;
            let node = node(&volume, Nid(*nid)).with_context(|| name(&image.image))?;
            render::fields(&node_fields(&node), format)
        }
        What::Inode { target, further, ino } => {
            let node = match ino {
                Some(ino) => {
                    let volume = open_read_only(&target.image, further)?;
                    node(&volume, Nid(*ino)).and_then(|_| Ok(volume.inode(Ino(*ino))?))
                }
                None => {
                    let (volume, ino) = target.find(further)?;
                    volume.inode(ino).map_err(Into::into)
                }
            };
            render::fields(&inode_fields(&*node.with_context(|| target.to_string())?), format)
        }
        What::Dir { target, further } => dir(target, further, format),
        What::Map { target, further } => map(target, further, format),
    }
}

/// Makes an object of the named fields of a struct of little-endian numbers.
macro_rules! numbers {
    ($from:expr; $($field:ident),* $(,)?) => {{
        let from = $from;
        let mut fields = serde_json::Map::new();
        $(fields.insert(stringify!($field).to_owned(), json!(from.$field.get()));)*
        fields
    }};
}

fn superblock_fields(raw: &raw::Superblock) -> Value {
    let mut fields = numbers!(raw;
        magic, major_version, minor_version, log_sector_bytes, log_sectors_per_block, log_block_bytes,
        log_blocks_per_segment, segments_per_section, sections_per_zone, checksum_offset, block_count,
        section_count, segment_count, segment_count_ckpt, segment_count_sit, segment_count_nat,
        segment_count_ssa, segment_count_main, segment0_blkaddr, cp_blkaddr, sit_blkaddr, nat_blkaddr,
        ssa_blkaddr, main_blkaddr, root_ino, node_ino, meta_ino, extension_count, cp_payload, feature,
        s_encoding, s_encoding_flags, crc,
    );
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    };
    let count = raw.extension_count.get() as usize + usize::from(raw.hot_ext_count);
    fields.extend([
        ("uuid".into(), json!(Uuid::from_bytes(raw.uuid).to_string())),
        ("volume_name".into(), json!(superblock::label_of(raw))),
        ("feature_names".into(), json!(superblock::Features(raw.feature.get()).names().collect::<Vec<_>>())),
        ("extension_list".into(), raw.extension_list.iter().take(count).map(|e| text(e)).collect()),
        ("hot_ext_count".into(), json!(raw.hot_ext_count)),
        ("version".into(), json!(text(&raw.version))),
        ("init_version".into(), json!(text(&raw.init_version))),
        ("encryption_level".into(), json!(raw.encryption_level)),
        ("encrypt_pw_salt".into(), json!(render::hex(&raw.encrypt_pw_salt))),
        (
            "devs".into(),
            raw.devs
                .iter()
                .filter(|device| device.path[0] != 0)
                .map(|device| json!({"path": text(&device.path), "total_segments": device.total_segments.get()}))
                .collect(),
        ),
        ("qf_ino".into(), raw.qf_ino.iter().map(|ino| ino.get()).collect()),
        ("s_stop_reason".into(), json!(render::hex(&raw.s_stop_reason))),
        ("s_errors".into(), json!(render::hex(&raw.s_errors))),
    ]);
    Value::Object(fields)
}

fn checkpoint_fields(volume: &Engine) -> Value {
    let cp = volume.last_checkpoint();
    let logs: serde_json::Map<String, Value> = SegmentType::ALL
        .iter()
        .map(|kind| {
            let log = cp.logs[*kind as usize];
            let value = json!({
                "segment": log.segment.0, "next_block": log.offset, "ssr": log.mode.is_ssr()
            });
            (kind.to_string(), value)
        })
        .collect();
    json!({
        "pack": volume.last_pack(),
        "checkpoint_ver": cp.version.0,
        "ckpt_flags": cp.flags.0,
        "flag_names": cp.flags.names().collect::<Vec<_>>(),
        "user_block_count": cp.user_blocks,
        "valid_block_count": cp.valid_blocks,
        "rsvd_segment_count": cp.reserved_segments,
        "overprov_segment_count": cp.overprovision_segments,
        "free_segment_count": cp.free_segments,
        "cp_pack_total_block_count": cp.pack_blocks,
        "cp_pack_start_sum": cp.summaries_start,
        "valid_node_count": cp.valid_nodes,
        "valid_inode_count": cp.valid_inodes,
        "next_free_nid": cp.next_free_nid.0,
        "elapsed_time": cp.elapsed_seconds,
        "checksum_offset": cp.checksum_offset,
        "checksum": cp.crc,
        "sit_ver_bitmap": render::hex(&cp.sit_bitmap),
        "nat_ver_bitmap": render::hex(&cp.nat_bitmap),
        "orphans": volume.orphans().iter().map(|ino| ino.0).collect::<Vec<_>>(),
        "logs": logs,
    })
}

/// Refuses a number that no node of this volume can have.
fn check_range(volume: &Engine, nid: Nid) -> Result<()> {
    let end = volume.geometry().nids_end().0;
    if nid.0 >= end {
        bail!("node {} is out of range; numbers of nodes are below {end}", nid.0);
    }
    Ok(())
}

/// Returns a node that is in use.
fn node(volume: &Engine, nid: Nid) -> Result<Arc<NodeBlock>> {
    check_range(volume, nid)?;
    if !volume.nat_entry(nid)?.addr.is_real() {
        bail!("{nid} is not in use");
    }
    Ok(volume.node(nid)?)
}

/// A NAT entry.
#[derive(Serialize)]
struct NatRow {
    nid: u32,
    ino: u32,
    block: u32,
    version: u8,
}

fn nat_rows(volume: &Engine, only: Option<Nid>) -> impl Iterator<Item = Result<NatRow>> + '_ {
    let range = match only {
        Some(nid) => nid.0..nid.0.saturating_add(1),
        None => 1..volume.geometry().nids_end().0,
    };
    range.filter_map(move |nid| match volume.nat_entry(Nid(nid)) {
        Ok(entry) if only.is_none() && entry.addr == BlockAddr::NULL => None,
        Ok(entry) => Some(Ok(NatRow { nid, ino: entry.ino.0, block: entry.addr.0, version: entry.version })),
        Err(error) => Some(Err(error.into())),
    })
}

/// A SIT entry.
#[derive(Serialize)]
struct SitRow {
    segment: u32,
    kind: String,
    valid_blocks: u16,
    modified_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_map: Option<String>,
}

fn sit(volume: &Engine, only: Option<SegNo>, format: Format) -> Result<()> {
    let range = match only {
        Some(segment) => segment.0..segment.0.saturating_add(1),
        None => 0..volume.geometry().segments,
    };
    let rows = range.filter_map(|segment| match volume.sit_entry(SegNo(segment)) {
        Ok(entry) if only.is_none() && entry.valid_blocks == 0 => None,
        Ok(entry) => Some(Ok(SitRow {
            segment,
            kind: entry.kind.to_string(),
            valid_blocks: entry.valid_blocks,
            modified_seconds: entry.mtime,
            valid_map: only.map(|_| render::hex(&entry.map)),
        })),
        Err(error) => Some(Err(error.into())),
    });
    render::rows(rows, format)
}

/// The owner of a block.
#[derive(Serialize)]
struct OwnerRow {
    block: u32,
    nid: u32,
    version: u8,
    offset: u16,
}

fn ssa(volume: &Engine, segment: SegNo, format: Format) -> Result<()> {
    let entry = volume.sit_entry(segment)?;
    let geometry = volume.geometry();
    let summary: Summary = volume.summary(segment)?;
    let valid = |n: &usize| f2fs::format::bits::msb(&entry.map, *n);
    let rows = (0..summary.owners.len()).filter(valid).map(|n| {
        let owner = summary.owners[n];
        let block = geometry.block(segment, n as u16).0;
        Ok(OwnerRow { block, nid: owner.nid.0, version: owner.version, offset: owner.offset })
    });
    render::rows(rows, format)
}

fn footer_fields(node: &NodeBlock) -> Value {
    let footer = node.footer();
    json!({
        "nid": footer.nid.0,
        "ino": footer.ino.0,
        "cold": footer.cold,
        "fsync": footer.fsync,
        "dentry": footer.dentry,
        "offset": footer.offset,
        "cp_ver": footer.cp_ver,
        "next_blkaddr": footer.next_addr.0,
    })
}

fn node_fields(node: &NodeBlock) -> Value {
    if node.is_inode() {
        return inode_fields(node);
    }
    let numbers: Vec<u32> = (0..node.addr_count()).map(|n| node.addr(n).0).collect();
    json!({"footer": footer_fields(node), "words": numbers})
}

fn inode_fields(node: &NodeBlock) -> Value {
    let head = node.head();
    let layout = node.layout();
    // Octal, like the permissions in `ls`, but with the file type, as on the volume.
    let mut fields: serde_json::Map<_, _> =
        [("mode".to_owned(), json!(format!("{:07o}", head.mode.get())))].into_iter().collect();
    fields.extend(numbers!(head;
        uid, gid, links, size, blocks, generation, current_depth, xattr_nid, flags, pino, namelen,
    ));
    let kept = node.layout().addrs();
    // Up to the last address in use. An inode with inline content has none.
    let has_content = node.has_inline(inline::DATA) || node.has_inline(inline::DENTRY);
    let mut addresses: Vec<u32> = (0..kept).map(|n| node.addr(n).0).collect();
    let used = addresses.iter().rposition(|addr| *addr != 0).map_or(0, |last| last + 1);
    addresses.truncate(if has_content { 0 } else { used });
    fields.extend([
        ("advise".into(), json!(head.advise)),
        ("inline".into(), json!(head.inline)),
        ("atime".into(), json!(time(node.atime()))),
        ("ctime".into(), json!(time(node.ctime()))),
        ("mtime".into(), json!(time(node.mtime()))),
        ("crtime".into(), json!(node.crtime().map(time))),
    ]);
    fields.extend(Name(node.last_name().to_vec()).fields("name"));
    fields.extend([
        ("dir_level".into(), json!(head.dir_level)),
        ("ext_fofs".into(), json!(head.extent.fofs.get())),
        ("ext_blkaddr".into(), json!(head.extent.blk.get())),
        ("ext_len".into(), json!(head.extent.len.get())),
        ("addresses_at".into(), json!(layout.addrs_at())),
        ("project".into(), json!(node.project())),
        ("addresses".into(), json!(addresses)),
        ("node_ids".into(), (0..5).map(|n| node.child(n).0).collect()),
        ("footer".into(), footer_fields(node)),
    ]);
    Value::Object(fields)
}

/// An entry of a directory, with its location.
#[derive(Serialize)]
struct DirRow {
    block: u64,
    slot: usize,
    hash: String,
    ino: u32,
    kind: &'static str,
    #[serde(flatten, serialize_with = "keyed::name")]
    name: Name,
}

fn dir(target: &Target, further: &Further, format: Format) -> Result<()> {
    let (volume, ino) = target.find(further)?;
    let inode = volume.inode(ino).with_context(|| target.to_string())?;
    if !inode.is_directory() {
        bail!("{target}: not a directory");
    }
    let blocks = volume.directory_areas(ino).with_context(|| target.to_string())?;
    let rows = blocks.flat_map(|block| match block {
        Ok((block, bytes)) => dir_rows(ino, block, &bytes),
        Err(error) => vec![Err(error.into())],
    });
    render::rows(rows, format).with_context(|| target.to_string())
}

fn dir_rows(ino: Ino, block: u64, bytes: &[u8]) -> Vec<Result<DirRow>> {
    Dentries::new(bytes, Place::Dir(ino, block))
        .entries()
        .map(|entry| {
            let entry = entry?;
            Ok(DirRow {
                block,
                slot: entry.slot,
                hash: format!("{:08x}", entry.hash),
                ino: entry.ino.0,
                kind: entry.kind.map_or("unknown", FileType::name),
                name: Name(entry.name.to_vec()),
            })
        })
        .collect()
}

/// Consecutive blocks of a file.
#[derive(Serialize)]
struct RunRow {
    file_block: u64,
    blocks: u64,
    at: String,
}

fn map(target: &Target, further: &Further, format: Format) -> Result<()> {
    let (volume, ino) = target.find(further)?;
    let inode = volume.inode(ino).with_context(|| target.to_string())?;
    let size = volume.superblock().block_size.bytes() as u64;
    let end = inode.head().size.get().div_ceil(size).min(inode.layout().max_blocks());
    let mut next = 0;
    let rows = std::iter::from_fn(|| {
        if next >= end {
            return None;
        }
        let run = match volume.run(&inode, next, end) {
            Ok(run) => run,
            Err(error) => {
                next = end;
                return Some(Err(error.into()));
            }
        };
        next = run.blocks.end;
        let at = match run.addr {
            BlockAddr::NULL => "hole".to_owned(),
            BlockAddr::NEW => "reserved".to_owned(),
            BlockAddr::COMPRESS => "compressed cluster".to_owned(),
            addr => addr.0.to_string(),
        };
        Some(Ok(RunRow { file_block: run.blocks.start, blocks: run.len(), at }))
    });
    if inode.has_inline(inline::DATA) || inode.has_inline(inline::DENTRY) {
        let row = RunRow { file_block: 0, blocks: 0, at: "inline, in the inode".into() };
        return render::rows(std::iter::once(Ok(row)), format);
    }
    render::rows(rows, format).with_context(|| target.to_string())
}
