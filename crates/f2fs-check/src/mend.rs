//! Restoration of inodes whose fields contradict each other.

use f2fs::{
    format::{
        FileType, NAME_MAX,
        inode::{EXTRA_BYTES_MAX, INLINE_XATTR_WORDS, advise, flag, inline, raw::InodeHead},
        node::{NodeBlock, NodeFooter, NodeFormat},
        node_path::NodePath,
        superblock::Features,
        xattr,
    },
    units::{BlockAddr, Ino, Nid},
};
use zerocopy::FromBytes;

use crate::{
    areas::begins_with_dot,
    inodes::{ALGORITHM, EXTRA},
    reader::parse_node,
};

/// Byte offsets of some extra attributes.
const INLINE_XATTR: usize = EXTRA + 2;
const SAVED: usize = EXTRA + 24;
/// Permissions of an inode whose mode is lost.
const PERMISSIONS: u16 = 0o600;
/// Permissions of a directory whose mode is lost.
const DIRECTORY_PERMISSIONS: u16 = 0o700;
/// Bits of a mode that an inode keeps whose kind was damaged: all but the set-id bits.
const PERMISSIONS_MASK: u16 = 0o1777;

/// Restores some fields of an inode.
type Step = fn(&mut [u8], NodeFormat, Option<FileType>);

/// The result of mending an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mended {
    /// Its fields agree.
    Whole,
    /// Its fields agree, and its size is the largest possible one.
    WithoutSize,
    /// They cannot be restored; the bytes are undefined.
    Lost,
}

/// Restores the fields of an inode. A directory entry may have given the kind.
pub fn mend(bytes: &mut [u8], format: NodeFormat, ino: Ino, kind: Option<FileType>) -> Mended {
    let steps: [Step; 4] = [mend_kind, mend_numbers, mend_extra, mend_inline];
    for step in steps {
        if is_good(bytes, format, ino) {
            return Mended::Whole;
        }
        step(bytes, format, kind);
    }
    if is_good(bytes, format, ino) {
        return Mended::Whole;
    }
    let mended = mend_size(bytes, format);
    if is_good(bytes, format, ino) { mended } else { Mended::Lost }
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
    // Whatever damaged the kind may have set the others.
    let permissions = match (mode & PERMISSIONS_MASK, kind) {
        (0, FileType::Directory) => DIRECTORY_PERMISSIONS,
        (0, _) => PERMISSIONS,
        (permissions, _) => permissions,
    };
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
    if format.features.has(Features::FLEXIBLE_INLINE_XATTR) {
        mend_xattr_words(bytes, format);
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

/// Size of the inline xattrs. An inode without any has a size of 0; if it is marked to have some, either is wrong.
fn mend_xattr_words(bytes: &mut [u8], format: NodeFormat) {
    let words = u16::from_le_bytes([bytes[INLINE_XATTR], bytes[INLINE_XATTR + 1]]);
    let is_marked = head(bytes).inline & inline::XATTR != 0;
    if words == 0 && !is_marked || (6..=INLINE_XATTR_WORDS as u16 * 4).contains(&words) {
        return;
    }
    if words == 0 && !has_usual_xattrs(bytes, format) {
        head(bytes).inline &= !inline::XATTR;
        return;
    }
    put_xattr_words(bytes, INLINE_XATTR_WORDS as u16);
}

fn put_xattr_words(bytes: &mut [u8], words: u16) {
    bytes[INLINE_XATTR..INLINE_XATTR + 2].copy_from_slice(&words.to_le_bytes());
}

/// Returns true if the usual area of inline xattrs has some, or is empty, so that it has no content. The names in an inline
/// directory have another place with each size of the area.
fn has_usual_xattrs(bytes: &mut [u8], format: NodeFormat) -> bool {
    let end = format.block_size.inode_nids_at();
    let area = &bytes[end - 4 * INLINE_XATTR_WORDS..end];
    if area.starts_with(&xattr::MAGIC.to_le_bytes()) {
        return true;
    }
    // Further xattrs follow those in the inode.
    let is_empty = area.iter().all(|byte| *byte == 0) && head(bytes).xattr_nid.get() == 0;
    if !is_empty || head(bytes).inline & inline::DENTRY == 0 {
        return is_empty;
    }
    let mut copy = bytes.to_vec();
    put_xattr_words(&mut copy, INLINE_XATTR_WORDS as u16);
    let ino = NodeFooter::of(bytes).ino;
    let (inode, _) = parse_node(format, &copy, ino.into(), BlockAddr::NULL);
    inode.is_ok_and(|inode| begins_with_dot(inode.inline_area(), ino))
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

/// The size. If its lower half ends in the last block of the file, only the upper half was damaged. Otherwise it becomes as
/// large as inline content can be, or as the blocks reach.
fn mend_size(bytes: &mut [u8], format: NodeFormat) -> Mended {
    let ino = NodeFooter::of(bytes).ino;
    let low = head(bytes).size.get() & u64::from(u32::MAX);
    // An inode with a size of 0 can be parsed, which gives its layout.
    head(bytes).size.set(0);
    let (inode, _) = parse_node(format, bytes, ino.into(), BlockAddr::NULL);
    let Ok(inode) = inode else { return Mended::Lost };
    let (is_exact, limit) = match inode.has_inline(inline::DATA) {
        true => {
            let area = inode.inline_area();
            let used = area.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            ((used as u64..=area.len() as u64).contains(&low), area.len() as u64)
        }
        false => (ends_in_last_block(&inode, low), inode.head().blocks.get() << format.block_size.log()),
    };
    head(bytes).size.set(if is_exact { low } else { limit });
    if is_exact { Mended::Whole } else { Mended::WithoutSize }
}

/// Returns true if a file of this size without holes has the blocks that i_blocks counts.
fn ends_in_last_block(inode: &NodeBlock, size_bytes: u64) -> bool {
    let blocks = size_bytes.div_ceil(inode.bytes().len() as u64);
    let Some(last) = blocks.checked_sub(1) else { return false };
    let Some(path) = NodePath::of(&inode.layout(), last) else { return false };
    // The offset of a node is its number among those of the file.
    let nodes = path.steps().last().map_or(0, |step| u64::from(step.offset));
    let xattrs = u64::from(inode.xattr_nid() != Nid::NULL);
    inode.head().blocks.get() == 1 + nodes + xattrs + blocks
}
