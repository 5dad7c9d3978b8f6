//! Creation of a new, empty volume, which exists only in memory until its first checkpoint.
//!
//! The root directory and everything after it are written by the same code as in any other volume.

use std::{collections::BTreeSet, sync::Arc};

use block::Device;

use super::{ActiveLogs, Engine, Geometry, Io, NewNode, Options, Transaction};
use crate::{
    Place, Result,
    disk::{Access, Disk},
    files::Files,
    format::{
        FileType, TableCopy,
        checkpoint::{Checkpoint, Flags, HEAD_BYTES, LogPosition},
        nat::{self, NatEntry},
        sit::SegmentType,
        superblock::{Features, Superblock},
    },
    names::Names,
    nodes::Nodes,
    segments::Segments,
    units::{BlockAddr, CheckpointVer, Ino, Nid, SegNo},
};

/// Parameters of a new volume besides its superblock.
#[derive(Debug, Clone)]
pub struct Blank {
    /// The superblock; the caller writes both copies.
    pub superblock: Superblock,
    /// Blocks available to users.
    pub user_blocks: u64,
    /// Segments reserved for cleaning.
    pub reserved_segments: u32,
    /// Segments of overprovision, reserved ones included.
    pub overprovision_segments: u32,
    /// First segment of each log, indexed by [`SegmentType`].
    pub logs: [SegNo; 6],
    /// True if the NAT and SIT bitmaps have the large layout (`CP_LARGE_NAT_BITMAP_FLAG`).
    pub large_nat_bitmap: bool,
}

impl Engine {
    /// Creates an empty volume in memory, without inodes and without a checkpoint on the device. The metadata
    /// areas of the device must read as zeroes. Call [`make_root`](Transaction::make_root) next; the first
    /// [`checkpoint`](Self::checkpoint) makes the volume exist on the device.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the superblock that is given is impossible;
    /// [`Error::Io`](crate::Error::Io) if the device fails.
    pub fn format(device: Arc<dyn Device>, blank: &Blank, mut options: Options) -> Result<Engine> {
        let superblock = blank.superblock.clone();
        let mut kinds = &SegmentType::ALL[..];
        if superblock.features.has(Features::RO) {
            // A read-only volume has two logs; the positions of the others are ignored (Linux,
            // `f2fs_sb_has_readonly`).
            options.active_logs = ActiveLogs::Two;
            kinds = &[SegmentType::HotData, SegmentType::HotNode];
        }
        let geometry = Geometry::of(&superblock);
        let io = Io::new(device, superblock.block_size);
        let checkpoint = empty_checkpoint(blank, &superblock);
        let positions = blank.logs.map(|segment| LogPosition { segment, ..LogPosition::default() });
        let size = superblock.block_size;
        // The first checkpoint goes to the first pack.
        let disk = Disk::new(io, superblock, options, Access::ReadWrite, checkpoint, 1);
        let segments = Segments::blank(disk, positions, kinds)?;
        // The node inode and the meta inode have NAT entries but no blocks (Linux,
        // `f2fs_build_node_manager`).
        let mut first = vec![0; size.bytes()];
        for ino in [1, 2] {
            nat::set_entry(
                &mut first,
                ino as usize,
                NatEntry { version: 0, ino: Ino(ino), addr: BlockAddr(1) },
            );
        }
        segments.disk().io().write(geometry.nat_block(0, TableCopy::First), Place::Nat(Nid(1)), &first)?;
        let names = Names::new(Files::new(Nodes::new(segments, Vec::new())?), BTreeSet::new());
        Ok(Engine::new(names, None))
    }
}

impl Transaction<'_> {
    /// Creates the root directory.
    ///
    /// # Errors
    /// Those of [`make_inode_at`](Self::make_inode_at).
    pub fn make_root(self, new: &NewNode) -> Result<()> {
        let root = self.engine().superblock().root_ino;
        self.make_inode_at(
            root,
            root,
            &NewNode { mode: FileType::Directory.mode_bits() | new.mode & 0o7777, ..new.clone() },
        )
    }

    /// Creates an inode with a given number and without a name, as the root directory and quota files need. A
    /// directory gets its `.` and `..`; `..` points to `parent`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a mode of no known type,
    /// [`Error::Exists`](crate::Error::Exists) if the number is in use, [`Error::NoSpace`](crate::Error::NoSpace);
    /// those of [every change](Engine#errors).
    pub fn make_inode_at(mut self, ino: Ino, parent: Ino, new: &NewNode) -> Result<()> {
        self.step()?.names().make_inode_at(ino, parent, new)
    }

    /// Enters a name for an inode created by [`make_inode_at`](Self::make_inode_at), such as lost+found.
    ///
    /// # Errors
    /// Those of [`create`](Self::create) for the name.
    pub fn enter_inode(mut self, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.step()?.names().enter_inode(dir, name, ino)
    }

    /// Enters a name for an inode without one, in the form in which the directory stores it: a repair knows the bytes of an
    /// encrypted name, and not the key. `hash` is that of the name's directory entry. An entry that the inode has there stays.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) unless the name has 1 to 255 bytes,
    /// [`Error::Exists`](crate::Error::Exists) if the directory has an entry with these bytes for another inode,
    /// [`Error::OtherPolicy`](crate::Error::OtherPolicy) if the directory is encrypted and the inode not by its policy; those
    /// of [`create`](Self::create) for the directory.
    pub fn enter_stored_name(mut self, dir: Ino, name: &[u8], hash: u32, ino: Ino) -> Result<()> {
        self.step()?.names().enter_stored_name(dir, name, hash, ino)
    }

    /// Writes the content of an inode from its start, whatever its flags, as quota files need. Inline
    /// directories are not allowed.
    ///
    /// # Errors
    /// [`Error::NoKey`](crate::Error::NoKey) for an encrypted inode; [`Error::NoSpace`](crate::Error::NoSpace); those of
    /// [every change](Engine#errors).
    pub fn fill_inode(mut self, ino: Ino, content: &[u8]) -> Result<()> {
        let mut step = self.step()?;
        let inode = step.engine().inode(ino)?;
        step.files().require_key(&inode)?;
        drop(inode);
        step.files().write_content(ino, 0, content)
    }
}

/// The checkpoint that precedes the first one.
fn empty_checkpoint(blank: &Blank, superblock: &Superblock) -> Checkpoint {
    let flags = if blank.large_nat_bitmap { Flags::LARGE_NAT_BITMAP } else { Flags::default() };
    let checksum_offset = match blank.large_nat_bitmap {
        true => HEAD_BYTES as u32,
        false => superblock.block_size.bytes() as u32 - 4,
    };
    Checkpoint {
        version: CheckpointVer(0),
        user_blocks: blank.user_blocks,
        valid_blocks: 0,
        reserved_segments: blank.reserved_segments,
        overprovision_segments: blank.overprovision_segments,
        free_segments: superblock.main.segments,
        logs: Default::default(),
        flags,
        pack_blocks: 0,
        summaries_start: 0,
        valid_nodes: 0,
        valid_inodes: 0,
        next_free_nid: Nid(superblock.root_ino.0 + 1),
        elapsed_seconds: 0,
        sit_bitmap: vec![0; superblock.sit_blocks() as usize / 8],
        nat_bitmap: vec![0; superblock.nat_blocks() as usize / 8],
        checksum_offset,
        crc: 0,
    }
}
