//! Volumes after random operations, with copies of them at earlier checkpoints.

use std::{collections::BTreeMap, sync::Arc};

use block::{MemoryDevice, Rng};
use f2fs::{
    engine::Engine,
    format::{FileType, node::NodeFooter, sit::SegmentType},
    units::{BlockAddr, Ino, Nid},
};
use guest::{Bytes, Content, Op};
use model::{Generator, Pair, Setup, setup};

use crate::{
    tree::{Tree, tree_of},
    volume::{Damaged, made},
};

/// Names of the kinds of volumes, their sizes in MiB, segments of a section, and features.
const SETUPS: [(&str, u64, u32, &str); 6] = [
    ("base", 64, 1, ""),
    ("features", 64, 1, "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum"),
    ("quota", 64, 1, "extra_attr,project_quota,quota,lost_found"),
    ("casefold", 64, 1, "extra_attr,casefold"),
    ("compressed", 64, 1, "extra_attr,compression,inode_checksum"),
    ("sections", 128, 2, ""),
];
/// Number of the kinds of volumes.
pub const SETUP_COUNT: u64 = SETUPS.len() as u64;
/// Maximum number of checkpoints before the one that counts.
const EARLIER_MAX: u64 = 4;

/// The use of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The inode of anything but a directory.
    File,
    /// The inode of a directory.
    Directory,
    /// A node of addresses or of other nodes.
    Map,
    /// A node of extended attributes.
    Xattrs,
}

/// A node on a device.
#[derive(Debug, Clone)]
pub struct Node {
    pub addr: BlockAddr,
    pub ino: Ino,
    pub role: Role,
    /// True if an fsync wrote it after the checkpoint.
    pub is_pending: bool,
}

/// A volume at a checkpoint.
pub struct Earlier {
    pub volume: Damaged,
    pub nodes: BTreeMap<Nid, Node>,
}

/// A volume that is to be damaged.
pub struct Aged {
    pub name: &'static str,
    pub device: MemoryDevice,
    pub earlier: Vec<Earlier>,
    /// Nodes of the last checkpoint, and those of the fsyncs after it.
    pub nodes: Vec<(Nid, Node)>,
    pub has_pending: bool,
    pub tree: Tree,
}

impl Aged {
    /// Makes the volume of this number.
    pub fn new(setup: u64, number: u64) -> Aged {
        let (name, mib, segments_per_section, features) = SETUPS[setup as usize];
        let mut setup = Setup::named(name).expect("a kind of volume");
        setup.mix.blocks_max = mib * 256 / 8;
        // Checkpoints come at times of the trial's own.
        setup.mix.remount = false;
        setup.mix.durable = 15;
        let mut rng = Rng::new(setup.mixed(number) ^ 0xA6ED);
        // The checkpoints of mkfs.f2fs begin with a random version.
        let device = Arc::new(made(mib << 20, segments_per_section, features, |_| Ok(())));
        let mut pair = Pair::new(&setup, device.clone()).expect("the volume opens");
        let mut generator = Generator::new(setup.mixed(number), setup.mix.clone());
        let mut run = |pair: &mut Pair, count: u64| {
            let mut done = 0;
            while done < count {
                let op = generator.next(&pair.model);
                if !matches!(op, Op::Checkpoint { .. } | Op::Unmount { .. }) {
                    pair.step(&op).unwrap_or_else(|error| panic!("{name}: {op:?}: {error:#}"));
                    done += 1;
                }
            }
        };
        let mut earlier = Vec::new();
        for _ in 0..1 + rng.below(EARLIER_MAX) {
            run(&mut pair, 60 + rng.below(200));
            pair.step(&Op::Sync).expect("a checkpoint");
            let volume = Damaged::copy_of(&device).at_last_checkpoint();
            let nodes = nodes_of(volume.volume()).collect();
            earlier.push(Earlier { volume, nodes });
        }
        run(&mut pair, 40 + rng.below(150));
        pair.step(&Op::Sync).expect("a checkpoint");
        if rng.chance(0.6) {
            run(&mut pair, 10 + rng.below(40));
            fsync(&mut pair, &mut rng);
        } else if rng.chance(0.5) {
            pair.subject.unmount().expect("the volume is unmounted");
        }
        let device = setup::copy(&device).expect("memory");
        let sound = Damaged::copy_of(&device).at_last_checkpoint();
        let mut nodes: Vec<(Nid, Node)> = nodes_of(sound.volume()).collect();
        let pending = pending_of(&sound);
        let has_pending = !pending.is_empty();
        nodes.extend(pending);
        let tree = tree_of(sound.device.clone()).expect("a sound volume");
        Aged { name, device, earlier, nodes, has_pending, tree }
    }
}

/// Writes to some files twice, and fsyncs them.
fn fsync(pair: &mut Pair, rng: &mut Rng) {
    let volume = pair.subject.volume();
    let entries = volume.entries(volume.superblock().root_ino, 0).expect("a directory").flatten();
    let files = entries.filter(|entry| {
        volume.stat(entry.ino).is_ok_and(|stat| stat.kind == FileType::Regular && stat.links == 1)
    });
    let mut paths: Vec<Bytes> = files.map(|entry| Bytes([b"/", &entry.name[..]].concat())).collect();
    rng.shuffle(&mut paths);
    paths.truncate(2 + rng.below(6) as usize);
    // The first fsync of a file may be a checkpoint.
    for path in paths.iter().chain(&paths) {
        let content = Content::Noise { seed: rng.next_u64(), length: 1 + rng.below(60_000) };
        let write = Op::Write { path: path.clone(), offset: rng.below(40_000), content };
        for op in [write, Op::Fsync { path: path.clone(), data_only: false }] {
            pair.step(&op).unwrap_or_else(|error| panic!("{op:?}: {error:#}"));
        }
    }
}

fn role_of(block: &[u8], footer: NodeFooter) -> Role {
    let kind = FileType::from_mode(u16::from_le_bytes([block[0], block[1]]));
    match footer {
        _ if footer.offset == f2fs::format::node::XATTR_NODE_OFFSET => Role::Xattrs,
        _ if footer.offset > 0 => Role::Map,
        _ if kind == Some(FileType::Directory) => Role::Directory,
        _ => Role::File,
    }
}

/// All nodes of a checkpoint.
fn nodes_of(volume: &Engine) -> impl Iterator<Item = (Nid, Node)> + '_ {
    let geometry = volume.geometry();
    (volume.superblock().root_ino.0..geometry.nids_end().0).map(Nid).filter_map(move |nid| {
        let entry = volume.nat_entry(nid).ok().filter(|entry| geometry.in_main(entry.addr))?;
        let node = volume.node(nid).ok()?;
        let role = role_of(node.bytes(), node.footer());
        Some((nid, Node { addr: entry.addr, ino: entry.ino, role, is_pending: false }))
    })
}

/// The nodes that fsyncs wrote after the checkpoint, in their order.
fn pending_of(sound: &Damaged) -> Vec<(Nid, Node)> {
    let geometry = sound.volume().geometry();
    let checkpoint = sound.checkpoint().1;
    let mut addr = geometry.next_block(checkpoint.logs[SegmentType::WarmNode.index()]);
    let mut nodes = Vec::new();
    while geometry.in_main(addr) && nodes.len() < 10_000 {
        let block = sound.block(addr);
        let footer = NodeFooter::of(&block);
        if !checkpoint.is_written_after(footer.cp_ver) {
            break;
        }
        let role = role_of(&block, footer);
        nodes.push((footer.nid, Node { addr, ino: footer.ino, role, is_pending: true }));
        addr = footer.next_addr;
    }
    nodes
}
