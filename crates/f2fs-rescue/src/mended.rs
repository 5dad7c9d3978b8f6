//! Inodes with fields that no inode has: what the rest of the inode tells, counts.

use f2fs::{
    format::{
        BlockSize, FileType, NAME_MAX, NodeBlock,
        block_size::INODE_HEAD_BYTES,
        inode::{
            EXTRA_BYTES_MAX, advise, flag, inline,
            raw::{ExtraAttributes, InodeHead},
        },
        node::{NodeFooter, NodeFormat},
        superblock::Features,
    },
    units::{BlockAddr, Ino},
};
use zerocopy::FromBytes;

use crate::{
    raw_node::{self, SECOND_NS},
    shape::Shape,
};

/// End of the checksum in the extra attributes: smaller ones have none, so that nothing would speak against them.
const CHECKSUM_END: usize = 12;

/// Bytes of an inode that the NAT names.
pub(crate) struct Mended {
    pub(crate) bytes: Box<[u8]>,
    /// Number of fields of the inode that were impossible.
    pub(crate) bad_fields: u32,
}

/// Gives the bytes of an inode its number, and possible values to impossible fields: those that its checksum tells, otherwise
/// likely ones. `kind` is that of the entry that names the inode, or of its version.
pub(crate) fn inode(bytes: &[u8], ino: Ino, shape: &Shape, kind: Option<FileType>) -> Mended {
    let mut bytes = NodeFooter::with_inode(bytes, ino);
    let sound = |bytes: &[u8], format| is_sound(bytes, ino, format);
    if shape.strict.is_some_and(|strict| !sound(&bytes, strict)) {
        if let Some(bytes) = shape.corrected(&bytes, ino) {
            return Mended { bytes, bad_fields: 1 };
        }
    }
    let mut bad_fields = mode(&mut bytes, kind);
    bad_fields += times(&mut bytes) + numbers(&mut bytes, ino, shape);
    if !shape.strict.is_some_and(|strict| sound(&bytes, strict)) {
        let all = || layouts(&bytes, shape.lenient);
        let proven = shape.strict.and_then(|strict| all().find(|layout| sound(layout, strict)));
        let is_possible = sound(&bytes, shape.lenient);
        let other = proven.or_else(|| all().find(|layout| !is_possible && sound(layout, shape.lenient)));
        if let Some(other) = other {
            bytes = other;
            bad_fields += 1;
        }
    }
    Mended { bytes, bad_fields }
}

fn is_sound(bytes: &[u8], ino: Ino, format: NodeFormat) -> bool {
    NodeBlock::check(format, bytes.into(), ino.into(), ino, BlockAddr::NULL).is_ok()
}

fn head_mut(bytes: &mut [u8]) -> &mut InodeHead {
    InodeHead::mut_from_prefix(bytes).expect("a block is longer than the head").0
}

/// Gives an impossible mode the kind that is known, and permissions for the owner alone. Returns the number of bad fields.
fn mode(bytes: &mut [u8], kind: Option<FileType>) -> u32 {
    let head = head_mut(bytes);
    if FileType::from_mode(head.mode.get()).is_some() {
        return 0;
    }
    if let Some(kind) = kind {
        let permissions = if kind == FileType::Directory { 0o700 } else { 0o600 };
        head.mode.set(kind.mode_bits() | permissions);
    }
    1
}

/// Sets impossible parts of times to zero, and returns their number.
fn times(bytes: &mut [u8]) -> u32 {
    let head = head_mut(bytes);
    let parts = [&mut head.atime_nsec, &mut head.ctime_nsec, &mut head.mtime_nsec];
    let bad = parts.into_iter().filter(|part| part.get() >= SECOND_NS);
    bad.map(|part| part.set(0)).count().try_into().expect("there are three")
}

/// Corrects numbers that are too large, most likely by a high bit, and returns how many fields were impossible.
fn numbers(bytes: &mut [u8], ino: Ino, shape: &Shape) -> u32 {
    let (size_max, limits) = (size_max(shape.block_size()), shape.limits);
    let head = head_mut(bytes);
    let mut bad = 0;
    if !(1..=u64::from(u32::MAX)).contains(&head.blocks.get()) {
        head.blocks.set((head.blocks.get() & u64::from(u32::MAX)).max(1));
        bad += 1;
    }
    if head.size.get() > size_max {
        let low = head.size.get() & (size_max.next_power_of_two() - 1);
        // Blocks past the end of an empty file tell its size.
        head.size.set(if low <= size_max { low } else { 0 });
        bad += 1;
    }
    if head.namelen.get() as usize > NAME_MAX {
        head.namelen.set(head.namelen.get() & NAME_MAX as u32);
        bad += 1;
    }
    let name = &head.name[..head.namelen.get() as usize];
    bad += u32::from(head.advise & advise::ENC_NAME == 0 && name.contains(&0));
    bad += u32::from(head.pino.get() >= limits.nids_end);
    bad += u32::from(head.xattr_nid.get() >= limits.nids_end);
    if head.xattr_nid.get() == ino.0 {
        head.xattr_nid.set(0);
        bad += 1;
    }
    let is_directory = FileType::from_mode(head.mode.get()) == Some(FileType::Directory);
    if head.inline & inline::DENTRY != 0 && !is_directory {
        head.inline &= !inline::DENTRY;
        bad += 1;
    }
    if head.inline & inline::DATA != 0 && head.advise & advise::ENCRYPT != 0 && !shape.may_encrypt() {
        head.advise &= !advise::ENCRYPT;
        bad += 1;
    }
    if head.flags.get() & flag::CASEFOLD != 0 && !shape.lenient.features.has(Features::CASEFOLD) {
        head.flags.set(head.flags.get() & !flag::CASEFOLD);
        bad += 1;
    }
    bad
}

/// Largest size of a file in bytes.
fn size_max(size: BlockSize) -> u64 {
    size.max_file_blocks() << size.log()
}

/// The inode with other layouts: its blocks instead of inline data if it counts any, and other sizes of its extra attributes.
fn layouts(bytes: &[u8], format: NodeFormat) -> impl Iterator<Item = Box<[u8]>> + '_ {
    let head = raw_node::head(bytes);
    let has_blocks = head.blocks.get() > 1 + u64::from(head.xattr_nid.get() != 0);
    let in_blocks = (head.inline & inline::DATA != 0 && has_blocks).then(|| {
        let mut copy: Box<[u8]> = bytes.into();
        head_mut(&mut copy).inline &= !inline::DATA;
        copy
    });
    let has_extra = format.features.has(Features::EXTRA_ATTR);
    let sizes = (CHECKSUM_END..=EXTRA_BYTES_MAX).rev().step_by(4).filter(move |_| has_extra);
    let with_extra = sizes.map(|size| {
        let mut copy: Box<[u8]> = bytes.into();
        head_mut(&mut copy).inline |= inline::EXTRA_ATTR;
        let (extra, _) =
            ExtraAttributes::mut_from_prefix(&mut copy[INODE_HEAD_BYTES..]).expect("a block is longer");
        extra.extra_isize.set(u16::try_from(size).expect("a few dozen bytes"));
        copy
    });
    in_blocks.into_iter().chain(with_extra)
}
