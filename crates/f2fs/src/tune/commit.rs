//! Carries out a plan. The order of the writes is in docs/DESIGN.md, "Tuning".

use super::{
    Plan, open_writable,
    plan::{Checksums, LostFound},
};
use crate::{
    Error, Place, Result,
    disk::{Io, superblock_copies},
    engine::{Caller, Census, Engine, NewNode},
    format::{
        FileType,
        quota::QuotaKind,
        superblock::{self, Features, raw},
    },
    mkfs::LOST_FOUND,
    resize::close,
    units::Ino,
};

/// Gives the volume the properties of a plan. `volume` is open for changes, and `open` opens it again.
pub(super) fn carry_out(
    open: &mut dyn FnMut() -> Result<Engine>,
    mut volume: Engine,
    plan: &Plan,
) -> Result<()> {
    if plan.lost_found == LostFound::Made {
        make_lost_found(&mut volume)?;
    }
    let mut between = plan.new.clone();
    let mut features = plan.features();
    if let Some(kinds) = &plan.quotas {
        between.qf_ino = numbers(&mut volume, plan, kinds)?.map(|ino| ino.0.into());
        features = features.without(Features::QUOTA);
    }
    if plan.checksums == Checksums::Renewed {
        features = features.without(Features::INODE_CHECKSUM);
    }
    between.feature.set(features.0);
    superblock::seal(&mut between);
    let block_size = volume.geometry().block_size;
    let io = Io::new(close(volume)?, block_size);
    superblock_copies::make_alike(&io, &plan.old)?;
    superblock_copies::write_both(&io, &between)?;
    if let Some(kinds) = &plan.quotas {
        let mut volume = open_writable(open)?;
        // The superblock that was read has no numbers without the feature.
        let inos = between.qf_ino.map(|ino| Ino(ino.get()));
        let census = Census::of(&volume, plan.node_format(&volume), inos, &[])?;
        volume.replace_quota_files(inos, kinds, &census.usage)?;
        close(volume)?;
    }
    if plan.checksums == Checksums::Renewed {
        renew_checksums(&open_writable(open)?, plan)?;
    }
    superblock_copies::write_both(&io, &finished(between, plan))
}

/// The superblock after the last step: it names no quota file that has been removed.
fn finished(between: raw::Superblock, plan: &Plan) -> raw::Superblock {
    let mut last = between;
    for kind in QuotaKind::ALL {
        if plan.quotas.as_ref().is_some_and(|wanted| !wanted.contains(&kind)) {
            last.qf_ino[kind.index()].set(0);
        }
    }
    last.feature.set(plan.features().0);
    superblock::seal(&mut last);
    last
}

/// Makes the directory lost+found, if the root directory has none.
fn make_lost_found(volume: &mut Engine) -> Result<()> {
    let root = volume.superblock().root_ino;
    match volume.find_entry(root, LOST_FOUND)? {
        Some(found) if volume.stat(found.ino)?.kind == FileType::Directory => Ok(()),
        Some(_) => Err(Error::Invalid("/lost+found is not a directory".into())),
        None => {
            let new = NewNode::new(FileType::Directory.mode_bits() | 0o700);
            volume.begin(Caller::ADMIN).create(root, LOST_FOUND, &new).map(drop)
        }
    }
}

/// The inodes of the quota files that exist, or are to be made.
fn numbers(volume: &mut Engine, plan: &Plan, wanted: &[QuotaKind]) -> Result<[Ino; 3]> {
    let mut numbers = plan.old.qf_ino.map(|ino| Ino(ino.get()));
    for kind in QuotaKind::ALL {
        let number = &mut numbers[kind.index()];
        if *number == Ino(0) || !volume.is_quota_file(kind, *number)? {
            *number = if wanted.contains(&kind) { volume.free_ino()? } else { Ino(0) };
        }
    }
    Ok(numbers)
}

/// Writes the checksums of all inodes in their places, which changes one sector of each. The superblock has no checksums of
/// inodes meanwhile, so nobody reads them.
fn renew_checksums(volume: &Engine, plan: &Plan) -> Result<()> {
    let format = plan.node_format(volume);
    volume.for_each_inode(&plan.left_out(), |inode, addr| {
        let mut sealed = inode.in_format(format);
        sealed.seal();
        match sealed.bytes() == inode.bytes() {
            true => Ok(()),
            false => volume.io().write(addr, Place::Node(inode.nid(), addr), sealed.bytes()),
        }
    })?;
    volume.io().flush()
}
