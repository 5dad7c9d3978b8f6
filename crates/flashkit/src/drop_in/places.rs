//! Blocks and their owners, in the lines of fsck.f2fs -M, dump.f2fs -M and dump.f2fs -b (f2fs-tools 1.15 and 1.16).

use std::{ffi::OsStr, io, path::Path};

use anyhow::{Context, Result};
use f2fs::{
    engine::Engine,
    format::{FileType, bits, inode::inline, node::NodeBlock, node_path::NodeKind},
    units::{BlockAddr, Ino},
};

use super::{further::devices, superblock_of};
use crate::{
    descent::{Descent, Visit},
    render,
    target::{Further, Place, open_read_only},
};

/// Prints the path of each regular file, and the places of its blocks. Continues after damage, which is a failure at the end.
pub fn print_maps(device: &OsStr) -> Result<()> {
    let name = || Path::new(device).display().to_string();
    let (superblock, _) = superblock_of(device)?;
    let place = Place { devices: devices(device, &superblock)?, ..Place::default() };
    let volume = open_read_only(Path::new(device), &Further { place, ..Further::default() })?;
    let root = volume.superblock().root_ino;
    let mut descent = Descent::new(&volume, root, b"/", usize::MAX).with_context(name)?;
    while let Some(visit) = descent.next() {
        let Visit::Entered(node) = visit else { continue };
        if node.stat.kind != FileType::Regular {
            continue;
        }
        let path = render::name(&node.path);
        if let Err(error) = print_map(&volume, node.ino, &path) {
            descent.lose(format_args!("{error:#}"));
        }
    }
    descent.finish()
}

/// Prints the places of the blocks of an inode after a text, in one line: runs such as `7680-7684`, and a zero for each block
/// without a place. Nodes that do not exist are left out, as by the tools.
///
/// # Errors
/// A node cannot be read; the line ends there.
pub fn print_map(volume: &Engine, ino: Ino, before: &str) -> Result<()> {
    let inode = volume.inode(ino)?;
    render::text(|out| {
        write!(out, "{before}")?;
        let mapped = map(volume, &inode, out);
        writeln!(out)?;
        mapped.map_err(|error| error.downcast().unwrap_or_else(io::Error::other))
    })
}

fn map(volume: &Engine, inode: &NodeBlock, out: &mut dyn io::Write) -> Result<()> {
    if inode.has_inline(inline::DATA) || inode.has_inline(inline::DENTRY) {
        return Ok(());
    }
    let layout = inode.layout();
    // The tools count a block that begins at the end of the file.
    let blocks = (inode.head().size.get() >> volume.superblock().block_size.log()) + 1;
    let (end, mut next) = (blocks.min(layout.max_blocks()), 0);
    let node_of = |block: u64| match block.checked_sub(layout.addrs() as u64) {
        None => 0..layout.addrs() as u64,
        Some(behind) => {
            let start = block - behind % layout.direct_addrs() as u64;
            start..start + layout.direct_addrs() as u64
        }
    };
    while next < end {
        let run = volume.run(inode, next, end)?;
        next = run.blocks.end;
        let last = run.blocks.end - 1;
        match run.addr.is_real() {
            true => {
                // A run ends with its node; the next one may go on behind it.
                let (first, mut behind) = (run.addr.0, u64::from(run.addr.0) + run.len());
                while next < end {
                    let more = volume.run(inode, next, end)?;
                    if !more.addr.is_real() || u64::from(more.addr.0) != behind {
                        break;
                    }
                    (next, behind) = (more.blocks.end, behind + more.len());
                }
                match behind - u64::from(first) {
                    1 => write!(out, " {first}")?,
                    _ => write!(out, " {first}-{}", behind - 1)?,
                }
            }
            false => {
                let mut block = run.blocks.start;
                while block <= last {
                    let node = node_of(block);
                    let part = block..node.end.min(last + 1);
                    let is_missing = node.start > 0 && part == (node.start..node.end.min(end));
                    if !is_missing || run.addr != BlockAddr::NULL {
                        (part.clone()).try_for_each(|_| write!(out, " 0"))?;
                    }
                    block = part.end;
                }
            }
        }
    }
    Ok(())
}

/// Prints the area of a block, and its owner if it is in use.
///
/// # Errors
/// A table or a node that tells the owner cannot be read.
pub fn print_block(volume: &Engine, addr: u64) -> Result<()> {
    let lines = match area(volume, addr) {
        Some(area) => {
            let superblock = volume.superblock();
            let (start, end) = (superblock.main.start.0, superblock.blocks);
            format!("\n{area}: User data is from {start:#x} to {end:#x}\n\n")
        }
        None => owner(volume, BlockAddr(u32::try_from(addr)?))?,
    };
    render::text(|out| write!(out, "\n== Dump data from block address ==\n\n{lines}"))?;
    Ok(())
}

/// The area of a block outside the main area.
fn area(volume: &Engine, addr: u64) -> Option<&'static str> {
    let superblock = volume.superblock();
    let areas = [
        (&superblock.checkpoint, "FS Reserved Area for SEG #0"),
        (&superblock.sit, "FS Metadata Area"),
        (&superblock.nat, "FS SIT Area"),
        (&superblock.ssa, "FS NAT Area"),
        (&superblock.main, "FS SSA Area"),
    ];
    if addr >= superblock.blocks {
        return Some("Out of address space");
    }
    areas.iter().find(|(area, _)| addr < u64::from(area.start.0)).map(|(_, before)| *before)
}

/// The lines on a block of the main area.
fn owner(volume: &Engine, addr: BlockAddr) -> Result<String> {
    let geometry = volume.geometry();
    let (segment, offset) = geometry.position(addr);
    let at = addr.0;
    if !geometry.in_main(addr) || !bits::msb(&volume.sit_entry(segment)?.map, usize::from(offset)) {
        return Ok(format!("\nblkaddr is not valid\nFS Userdata Area: Obsolete block from {at:#x}\n"));
    }
    let summary = volume.summary(segment)?;
    let owner = summary.owners[usize::from(offset)];
    let node = volume.node(owner.nid)?;
    let ino = node.footer().ino;
    let inode = volume.inode(ino)?;
    let node_at = volume.nat_entry(owner.nid)?.addr.0;
    let inode_at = volume.nat_entry(ino.into())?.addr.0;
    let file = format!(
        " - Inode block       : id = {:#x} from {inode_at:#x}\n - File name         : {}\n - File size         : {} (bytes)\n",
        ino.0,
        render::name(inode.last_name()),
        inode.head().size.get()
    );
    let place = node.footer().offset;
    if summary.is_node {
        let title = format!("FS Userdata Area: Node block from {at:#x}\n");
        return Ok(match node.is_inode() {
            true => title + &file,
            false => format!(
                "{title} - Node block        : id = {:#x} from {node_at:#x}\n{file} - Node offset       : {place:#x}\n",
                owner.nid.0
            ),
        });
    }
    let size = volume.superblock().block_size;
    let kind = NodeKind::of(size, place).with_context(|| format!("{} has node offset {place}", owner.nid))?;
    let first = kind
        .first_block(&inode.layout())
        .with_context(|| format!("{} has no addresses of data", owner.nid))?;
    let block = first + u64::from(owner.offset);
    Ok(format!(
        "FS Userdata Area: Data block from {at:#x}\n - Direct node block : id = {:#x} from {node_at:#x}\n{file} - Data \
         offset       : {block:#x} ({}KB), {} (bytes)\n",
        owner.nid.0,
        size.bytes() >> 10,
        block << size.log()
    ))
}
