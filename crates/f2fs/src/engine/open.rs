//! Opening of a volume: reads the superblock, the newest checkpoint and its journals, and nothing else before
//! it is needed.

use std::sync::Arc;

use block::Device;

use super::{Engine, Io, Mode, Options, read_superblock};
use crate::{
    Error, Result,
    disk::{
        Access, Disk, Geometry,
        pack::{PackTail, read_newest_pack},
    },
    files::Files,
    format::{
        checkpoint::{Checkpoint, Flags},
        superblock::{Features, Superblock},
    },
    names::Names,
    nodes::Nodes,
    segments::Segments,
    units::BlockAddr,
};

/// Features that this code can write. Volumes with other features open read-only.
const WRITABLE: Features = Features(
    Features::ENCRYPT.0
        | Features::EXTRA_ATTR.0
        | Features::PROJECT_QUOTA.0
        | Features::INODE_CHECKSUM.0
        | Features::FLEXIBLE_INLINE_XATTR.0
        | Features::QUOTA.0
        | Features::INODE_CRTIME.0
        | Features::LOST_FOUND.0
        | Features::VERITY.0
        | Features::SB_CHECKSUM.0
        | Features::CASEFOLD.0
        | Features::COMPRESSION.0,
);

impl Engine {
    /// Opens the volume on a device. The caller concatenates the devices of a multi-device volume first.
    ///
    /// # Errors
    /// [`Error::NotF2fs`] and [`Error::Unsupported`] for a device without a volume that this crate can open;
    /// [`Error::Corrupt`] and [`Error::Io`] with the place if the superblock, both checkpoints or the recovered files are
    /// damaged or cannot be read; [`Error::Invalid`] for options that exclude each other. A volume that cannot be changed
    /// opens all the same: see [`read_only_reason`](Self::read_only_reason).
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Engine> {
        if options.mode == Mode::Lfs && options.checkpoint_when_asked {
            return Err(Error::Invalid("mode lfs needs checkpoints, which free what logs append to".into()));
        }
        let mut volume = Engine::as_left(device, options)?;
        let read_only = volume.options().read_only;
        let writable = volume.superblock().features.0 & !WRITABLE.0 == 0;
        if volume.read_only_reason().is_none() {
            volume.recover()?;
        } else if read_only && writable {
            let chain = volume.options().roll_forward && volume.has_chain()?;
            if chain || !volume.orphans().is_empty() {
                volume.recover_in_memory()?;
            }
        }
        Ok(volume)
    }

    /// Refuses a volume that would refuse changes if it was opened for them: for a plan that is made without a write.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the reason.
    pub fn require_writable(&self) -> Result<()> {
        let reason = unwritable(self.superblock(), self.last_checkpoint().flags);
        reason.map_or(Ok(()), |reason| Err(Error::ReadOnly(reason.into())))
    }

    /// Reads the superblock and the newest checkpoint, and recovers nothing: inodes without a name stay.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub(super) fn as_left(device: Arc<dyn Device>, options: Options) -> Result<Engine> {
        let (superblock, _) = read_superblock(&*device, device.geometry().size_bytes)?;
        let geometry = Geometry::of(&superblock);
        let io = Io::new(device, superblock.block_size);
        let newest = read_newest_pack(&io, &geometry, &options)?;
        let (pack, bytes) = (newest.number, &newest.bytes);
        let head_bytes = superblock.block_size.bytes() * (1 + superblock.cp_payload as usize);
        let checkpoint = Checkpoint::check(&bytes[..head_bytes.min(bytes.len())], &superblock, pack)?;
        let tail = PackTail::parse(bytes, &geometry, &superblock, pack, &checkpoint)?;
        let access = access(&superblock, &checkpoint, newest.refusal(), &options);
        let disk = Disk::new(io, superblock, options, access, checkpoint, pack);
        let segments = Segments::open(disk, tail.sit_journal)?;
        let names = Names::new(Files::new(Nodes::new(segments, tail.nat_journal)?), tail.orphans);
        Ok(Engine::new(names, newest.headless))
    }
}

/// Determines if a volume can be written.
fn access(
    sb: &Superblock,
    checkpoint: &Checkpoint,
    older_refusal: Option<String>,
    options: &Options,
) -> Access {
    if let Some(reason) = older_refusal {
        Access::ReadOnly(reason.into())
    } else if options.read_only {
        Access::ReadOnly("opened read-only".into())
    } else {
        unwritable(sb, checkpoint.flags).map_or(Access::ReadWrite, |reason| Access::ReadOnly(reason.into()))
    }
}

/// The reason why a volume with this superblock and these flags of its checkpoint is never written.
fn unwritable(sb: &Superblock, flags: Flags) -> Option<String> {
    let refused = Features(sb.features.0 & !WRITABLE.0);
    if refused.unknown() != 0 {
        Some(format!("the volume has the unknown feature bit {:#x}", refused.unknown()))
    } else if refused.0 != 0 {
        let names: Vec<&str> = refused.names().collect();
        Some(format!("volumes with {} are not written", names.join(" and ")))
    } else if flags.has(Flags::RESIZEFS) {
        Some("a resize of the volume was interrupted; finish it with fsck.f2fs -f".into())
    } else if flags.has(Flags::DISABLED) {
        Some("checkpoints of the volume are disabled".into())
    } else if sb.main.end() > u64::from(BlockAddr::COMPRESS.0) {
        // A block at one of these addresses would look like a reserved block or a compressed cluster.
        Some("the addresses of the last two of its 2^32 blocks have a special meaning".into())
    } else {
        None
    }
}
