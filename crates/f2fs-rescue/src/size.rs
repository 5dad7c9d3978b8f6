//! Evidence in the content of a file against the size in its inode, where no checksum confirms it.
//!
//! A writer clears the rest of the last block behind the end of a file. So bytes there tell that the file is longer, and a last
//! block whose bytes end where the size with one bit less ends, that it is shorter. Pipes, sockets and devices have no size.

use f2fs::{
    Place,
    format::{
        FileType,
        inode::{advise, inline},
    },
    units::BlockAddr,
};

use crate::{
    nodes::{Inode, Nodes},
    pieces::{Piece, Pieces},
};

/// Returns true if the content of a file speaks against its size.
pub(crate) fn is_doubtful(nodes: Nodes<'_>, inode: &Inode, pieces: &Pieces) -> bool {
    let node = &inode.node;
    let size = node.head().size.get();
    let has_content = matches!(node.file_type(), FileType::Regular | FileType::Symlink);
    let is_stored_otherwise =
        node.has_advise(advise::ENCRYPT | advise::VERITY) || node.layout().cluster_blocks() > 1;
    if is_stored_otherwise || nodes.has_proven_size(inode) {
        return false;
    }
    if !has_content {
        return size > 0 && node.file_type() != FileType::Directory;
    }
    if node.has_inline(inline::DATA) {
        let end = usize::try_from(size).unwrap_or(usize::MAX);
        return node.inline_area().get(end..).is_none_or(has_bytes);
    }
    let block_bytes = nodes.shape.block_size().bytes() as u64;
    let Some(last) = last_block(nodes, pieces) else { return false };
    let (start, end) = ((pieces.mapped_end - 1) * block_bytes, pieces.mapped_end * block_bytes);
    let ends_at =
        |size: u64| (start + 1..=end).contains(&size) && !has_bytes(&last[(size - start) as usize..]);
    match (start..end).contains(&size) {
        true => !ends_at(size),
        // A hole at the end, or a bit too much. Without one, the end is nothing special for a full block.
        false => {
            size > end
                && (0..63).any(|bit| {
                    let shorter = size & !(1 << bit);
                    shorter != size && shorter % block_bytes != 0 && ends_at(shorter)
                })
        }
    }
}

/// The last block of a file that was found.
fn last_block(nodes: Nodes<'_>, pieces: &Pieces) -> Option<Box<[u8]>> {
    let Some(Piece::Data { block, addrs, .. }) = pieces.all.last() else { return None };
    let addr = BlockAddr(addrs.end.checked_sub(1)?);
    let is_last = block + u64::from(addrs.end - addrs.start) == pieces.mapped_end;
    let is_readable = nodes.shape.contains(addr) && !nodes.shape.is_unreadable(addr);
    let read = |addr| nodes.shape.io.read_block(addr, Place::Block(addr)).ok();
    (is_last && is_readable).then_some(addr).and_then(read)
}

fn has_bytes(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| *byte != 0)
}
