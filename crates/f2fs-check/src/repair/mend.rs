//! Restoration of inodes whose fields contradict each other.

use f2fs::{
    format::{
        FileType, NAME_MAX,
        inode::{EXTRA_BYTES_MAX, INLINE_XATTR_WORDS, advise, flag, inline, raw::InodeHead},
        node::{NodeFooter, NodeFormat},
        superblock::Features,
    },
    units::{BlockAddr, Ino},
};
use zerocopy::FromBytes;

use crate::reader::parse_node;

/// Byte offsets of the extra attributes and of some of them.
const EXTRA: usize = 360;
const INLINE_XATTR: usize = EXTRA + 2;
const SAVED: usize = EXTRA + 24;
const ALGORITHM: usize = EXTRA + 32;
/// Permissions of an inode whose mode is lost.
const PERMISSIONS: u16 = 0o600;

/// Restores some fields of an inode.
type Step = fn(&mut [u8], NodeFormat, Option<FileType>);

/// Restores the fields of an inode. A directory entry may have given the kind. Returns false if they cannot be
/// restored; the bytes are then undefined.
pub fn mend(bytes: &mut [u8], format: NodeFormat, ino: Ino, kind: Option<FileType>) -> bool {
    let steps: [Step; 5] = [mend_kind, mend_numbers, mend_extra, mend_inline, mend_size];
    for step in steps {
        if is_good(bytes, format, ino) {
            return true;
        }
        step(bytes, format, kind);
    }
    is_good(bytes, format, ino)
}

fn is_good(bytes: &[u8], format: NodeFormat, ino: Ino) -> bool {
    parse_node(format, bytes, ino.into(), BlockAddr::NULL).0.is_ok()
}

fn head(bytes: &mut [u8]) -> &mut InodeHead {
    InodeHead::mut_from_prefix(bytes).expect("a block is longer than an inode's head").0
}

/// Kind of the file: that of its name, else that of its content.
fn mend_kind(bytes: &mut [u8], _: NodeFormat, kind: Option<FileType>) {
    let is_file = NodeFooter::of(bytes).cold;
    let head = head(bytes);
    let mode = head.mode.get();
    let stored = FileType::from_mode(mode);
    if stored.is_some() && (kind.is_none() || kind == stored) {
        return;
    }
    let kind = kind.unwrap_or(if is_file { FileType::Regular } else { FileType::Directory });
    let permissions = if mode & 0o7777 == 0 { PERMISSIONS } else { mode & 0o7777 };
    head.mode.set(kind.mode_bits() | permissions);
}

fn mend_numbers(bytes: &mut [u8], format: NodeFormat, _: Option<FileType>) {
    let ino = NodeFooter::of(bytes).ino;
    let head = head(bytes);
    if head.blocks.get() == 0 || head.blocks.get() > u64::from(u32::MAX) {
        // The next check counts them.
        head.blocks.set(1);
    }
    if head.xattr_nid.get() == ino.0 {
        head.xattr_nid.set(0);
    }
    if head.namelen.get() as usize > NAME_MAX {
        let end = head.name.iter().position(|byte| *byte == 0).unwrap_or(head.name.len());
        head.namelen.set(u32::try_from(end).expect("at most 255"));
    }
    if head.flags.get() & flag::CASEFOLD != 0 && !format.features.has(Features::CASEFOLD) {
        head.flags.set(head.flags.get() & !flag::CASEFOLD);
    }
}

/// Extra attributes: their sizes, and those of compression.
fn mend_extra(bytes: &mut [u8], format: NodeFormat, _: Option<FileType>) {
    let has_extra = format.features.has(Features::EXTRA_ATTR);
    let head = head(bytes);
    head.inline =
        if has_extra { head.inline | inline::EXTRA_ATTR } else { head.inline & !inline::EXTRA_ATTR };
    let (is_compressed, blocks) = (head.flags.get() & flag::COMPRESS != 0, head.blocks.get());
    if !has_extra {
        return;
    }
    let size = u16::from_le_bytes([bytes[EXTRA], bytes[EXTRA + 1]]);
    if usize::from(size) > EXTRA_BYTES_MAX || size % 4 != 0 || size == 0 {
        let whole = u16::try_from(EXTRA_BYTES_MAX).expect("a few dozen bytes");
        bytes[EXTRA..EXTRA + 2].copy_from_slice(&whole.to_le_bytes());
    }
    let words = u16::from_le_bytes([bytes[INLINE_XATTR], bytes[INLINE_XATTR + 1]]);
    let is_possible = words == 0 || (6..=INLINE_XATTR_WORDS as u16 * 4).contains(&words);
    if format.features.has(Features::FLEXIBLE_INLINE_XATTR) && !is_possible {
        let usual = INLINE_XATTR_WORDS as u16;
        bytes[INLINE_XATTR..INLINE_XATTR + 2].copy_from_slice(&usual.to_le_bytes());
    }
    let saved = u64::from_le_bytes(bytes[SAVED..SAVED + 8].try_into().expect("eight bytes"));
    if is_compressed && saved >= blocks {
        bytes[SAVED..SAVED + 8].fill(0);
    }
    let (algorithm, log) = (bytes[ALGORITHM], bytes[ALGORITHM + 1]);
    // The next check compares the clusters with the inode, and sets the compression by them.
    if is_compressed && (algorithm > 3 || !(2..=8).contains(&log)) {
        let flags = self::head(bytes).flags.get() & !flag::COMPRESS;
        self::head(bytes).flags.set(flags);
    }
}

/// Inline content, which must fit the kind. An inode with it has at most one further block, for attributes.
fn mend_inline(bytes: &mut [u8], _: NodeFormat, _: Option<FileType>) {
    let head = head(bytes);
    let kind = FileType::from_mode(head.mode.get());
    if head.blocks.get() > 2 {
        head.inline &= !(inline::DATA | inline::DATA_EXIST | inline::DENTRY);
    }
    if kind != Some(FileType::Directory) {
        head.inline &= !inline::DENTRY;
    }
    if !matches!(kind, Some(FileType::Regular | FileType::Symlink)) {
        head.inline &= !inline::DATA;
    }
    if head.inline & inline::DATA != 0 {
        head.advise &= !(advise::VERITY | advise::ENCRYPT);
        head.flags.set(head.flags.get() & !flag::COMPRESS);
    }
}

/// The size: at most as large as inline content can be, or as the blocks reach.
fn mend_size(bytes: &mut [u8], format: NodeFormat, _: Option<FileType>) {
    let ino = NodeFooter::of(bytes).ino;
    let is_inline = head(bytes).inline & inline::DATA != 0;
    let blocks = head(bytes).blocks.get();
    let size = format.block_size;
    let limit = match is_inline {
        false => blocks << size.log(),
        true => {
            // An inode with a size of 0 can be parsed, which gives its layout.
            head(bytes).size.set(0);
            let (inode, _) = parse_node(format, bytes, ino.into(), BlockAddr::NULL);
            inode.map_or(0, |inode| inode.layout().inline_bytes() as u64)
        }
    };
    head(bytes).size.set(limit);
}
