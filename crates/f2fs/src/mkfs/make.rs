//! Makes a volume from a plan.

use std::{collections::BTreeMap, sync::Arc};

use block::Device;

use super::Plan;
use crate::{
    Error, Place, Result,
    engine::{self, Blank, Caller, Engine, NewNode, SetAttr},
    format::{
        FileType,
        inode::flag,
        quota::{self, QuotaKind},
        superblock::{self, Area},
    },
    units::{BlockAddr, Ino},
};

/// Name of the directory for files recovered by fsck.
pub(crate) const LOST_FOUND: &[u8] = b"lost+found";
/// Bytes of zeroes written at once.
const WIPE_BYTES: u64 = 1 << 20;

/// The content of a device before a volume is made on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceContent {
    /// The device is known to read as zeroes, like a new file.
    Zeroes,
    /// The device may hold anything, for example an old volume.
    Unknown,
}

/// An unfinished volume. It has a root and can be filled. Until [`finish`](Self::finish), its device holds no
/// superblock, and so no volume.
pub struct NewVolume {
    volume: Engine,
    device: Arc<dyn Device>,
    plan: Plan,
}

impl NewVolume {
    /// Begins a volume on a device (all devices, concatenated). The previous content of the device is lost.
    ///
    /// # Errors
    /// [`Error::Io`] if the device fails, [`Error::NoSpace`] if there is no space for the root directory.
    pub fn begin(
        device: Arc<dyn Device>,
        plan: &Plan,
        content: DeviceContent,
        options: engine::Options,
    ) -> Result<NewVolume> {
        if content == DeviceContent::Unknown {
            wipe(&*device, plan)?;
        }
        let of_plan = Blank {
            superblock: plan.superblock.clone(),
            user_blocks: plan.user_blocks,
            reserved_segments: plan.set_aside.reserved_segments,
            overprovision_segments: plan.set_aside.overprovision_segments,
            logs: plan.logs.in_order(),
            large_nat_bitmap: plan.large_nat_bitmap,
        };
        let mut volume = Engine::format(device.clone(), &of_plan, options)?;
        let owned = |mode| NewNode { uid: plan.root_owner.0, gid: plan.root_owner.1, ..NewNode::new(mode) };
        volume.begin(Caller::ADMIN).make_root(&owned(0o755))?;
        let root = plan.superblock.root_ino;
        for (kind, ino) in quotas(plan) {
            volume.begin(Caller::ADMIN).make_inode_at(
                ino,
                root,
                &NewNode::new(FileType::Regular.mode_bits() | 0o600),
            )?;
            let flags = Some(flag::IMMUTABLE | flag::NOATIME);
            volume.begin(Caller::ADMIN).set_attr(ino, &SetAttr { flags, ..SetAttr::default() })?;
            // The engine counts usage from the first checkpoint on.
            volume.begin(Caller::ADMIN).fill_inode(ino, &quota::encode(kind, &BTreeMap::new()))?;
        }
        if let Some(ino) = plan.lost_found {
            volume.begin(Caller::ADMIN).make_inode_at(
                ino,
                root,
                &owned(FileType::Directory.mode_bits() | 0o700),
            )?;
            volume.begin(Caller::ADMIN).enter_inode(root, LOST_FOUND, ino)?;
        }
        Ok(NewVolume { volume, device, plan: plan.clone() })
    }

    /// Returns the volume, to be filled.
    pub fn volume(&mut self) -> &mut Engine {
        &mut self.volume
    }

    /// Writes all data in memory, and the superblocks last. After this, the device holds a volume.
    ///
    /// # Errors
    /// [`Error::Io`] if the device fails, [`Error::NoSpace`] if the content does not fit. The device holds no
    /// volume then.
    pub fn finish(mut self) -> Result<Engine> {
        // Two checkpoints make both packs valid, and each of them alone describes the volume.
        self.volume.checkpoint()?;
        self.volume.unmount()?;
        let block_bytes = self.plan.superblock.block_size.bytes();
        let mut block = vec![0; block_bytes];
        block[superblock::OFFSET..][..superblock::BYTES].copy_from_slice(self.plan.superblock_bytes());
        for copy in [1, 0] {
            let at = Place::Superblock(copy);
            let io = |source| Error::Io { at, source };
            self.device.write(u64::from(copy) * block_bytes as u64, &block).map_err(io)?;
            self.device.flush().map_err(io)?;
        }
        Ok(self.volume)
    }
}

/// Makes the quota files of a plan.
fn quotas(plan: &Plan) -> impl Iterator<Item = (QuotaKind, Ino)> {
    QuotaKind::ALL.into_iter().filter_map(|kind| Some((kind, plan.superblock.quota_ino(kind)?)))
}

/// Zeroes the places whose old content could be taken for metadata: everything before the SIT, and the first
/// copies of SIT and NAT.
fn wipe(device: &dyn Device, plan: &Plan) -> Result<()> {
    let sb = &plan.superblock;
    let zeroes = vec![0; WIPE_BYTES as usize];
    let log = sb.block_size.log();
    let zero = |area: Area, blocks: std::ops::Range<u64>| {
        let (mut at, end) = (blocks.start << log, blocks.end << log);
        while at < end {
            let length = (end - at).min(WIPE_BYTES);
            let place = Place::Block(BlockAddr(area.start.0));
            device.write(at, &zeroes[..length as usize]).map_err(|source| Error::Io { at: place, source })?;
            at += length;
        }
        Ok(())
    };
    let segment = u64::from(crate::format::BLOCKS_PER_SEGMENT);
    zero(sb.checkpoint, 0..u64::from(sb.sit.start.0))?;
    let sit = u64::from(sb.sit.start.0);
    zero(sb.sit, sit..sit + sb.sit.blocks() / 2)?;
    for pair in 0..u64::from(sb.nat.segments / 2) {
        let first = u64::from(sb.nat.start.0) + 2 * pair * segment;
        zero(sb.nat, first..first + segment)?;
    }
    Ok(())
}
