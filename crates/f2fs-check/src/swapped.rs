//! First blocks of directories in the place of each other.
//!
//! The first block of a directory begins with its entry ".". If that of one directory begins with the entry of another one,
//! whose first block begins with that of the first, two writes went to the wrong places, or two addresses. The same holds for
//! a longer circle. The names in such a block belong to the directory that its "." names.

use std::sync::Arc;

use f2fs::{
    Place,
    format::{
        dentry::Dentries,
        inode::{advise, inline},
        node::NodeBlock,
    },
    units::{BlockAddr, Ino},
};

use crate::{
    Certainty, Finding, Fix, Kind,
    checker::{Checker, ODD_MAX},
    directories::Walk,
    names::is_dot,
    reader::read_block,
};

/// Maximum number of directories in a circle.
const CIRCLE_MAX: usize = 16;

/// The directory that the first entry of an area, a ".", names.
fn dot_of(area: &[u8]) -> Option<Ino> {
    let area = Dentries::new(area, Place::Volume);
    let first = area.entries().next()?.ok()?;
    (first.name == b".").then_some(first.ino)
}

impl Checker<'_> {
    /// Returns the first block of a directory and its bytes, if the stored one, whose bytes are given, belongs to another
    /// directory in a circle.
    pub fn swapped_first(&mut self, walk: &Walk, bytes: &[u8]) -> Option<(BlockAddr, Box<[u8]>)> {
        let named = dot_of(bytes).filter(|named| *named != walk.ino && !walk.is_inline)?;
        if let Some(addr) = self.swapped.get(&walk.ino).copied() {
            return Some((addr, read_block(&self.io, addr).ok()?));
        }
        let mut holder = named;
        for _ in 0..CIRCLE_MAX {
            let (_, addr, bytes) = self.first_block(holder)?;
            match dot_of(&bytes)? {
                next if next == walk.ino => {
                    let own = self.note_swapped(walk.ino, named, (holder, addr));
                    return own.map(|()| (addr, bytes));
                }
                next if next == holder => return None,
                next => holder = next,
            }
        }
        None
    }

    /// The first block of a directory in use that is not inline: its inode, the address and the bytes.
    fn first_block(&mut self, dir: Ino) -> Option<(Arc<NodeBlock>, BlockAddr, Box<[u8]>)> {
        self.directories.binary_search_by_key(&dir, |directory| directory.ino).ok()?;
        let inode = self.inode_of(dir).filter(|inode| !inode.has_inline(inline::DENTRY))?;
        let addr = self.address_of(&inode, 0).filter(|addr| self.geometry.in_main(*addr))?;
        Some((inode, addr, read_block(&self.io, addr).ok()?))
    }

    /// Has a directory name its first block, which another one names. Its own begins with the entry "." of `named`.
    fn note_swapped(&mut self, dir: Ino, named: Ino, (holder, addr): (Ino, BlockAddr)) -> Option<()> {
        let (inode, stored, _) = self.first_block(dir).filter(|_| self.swapped.len() < ODD_MAX)?;
        let slot = self.address_slot(&inode, 0)?;
        let known = format!(
            "{stored} begins with the entry \".\" of {named}, and {addr}, the first block of {holder}, with its own"
        );
        let finding = Finding::new(Kind::BlockAddress, Place::File(dir, 0), known)
            .repaired_by(format!("set the address to {addr}"));
        self.report.add(finding.with_certainty(Certainty::Certain));
        self.fix(Fix::Node(slot, addr.0.to_le_bytes().to_vec()));
        self.swapped.insert(dir, addr);
        Some(())
    }

    /// The certainty that a block of a directory is its own, although the entry "." in it names another inode. If that is a
    /// directory, the inodes that the entries name decide.
    pub fn certainty_of_dot(&mut self, walk: &Walk, named: Ino, bytes: &[u8]) -> Certainty {
        let is_directory = self.directories.binary_search_by_key(&named, |directory| directory.ino).is_ok();
        if walk.is_inline || !is_directory {
            return Certainty::Certain;
        }
        let (mut own, mut others) = (0, 0);
        for entry in Dentries::new(bytes, Place::Volume).entries().flatten() {
            let inode = self.inode_of(entry.ino).filter(|_| !is_dot(entry.name));
            let Some(inode) = inode.filter(|inode| !inode.has_advise(advise::LOST_PINO)) else { continue };
            let parent = Ino(inode.head().pino.get());
            own += usize::from(parent == walk.ino);
            others += usize::from(parent == named);
        }
        if own > others { Certainty::Certain } else { Certainty::Unclear }
    }
}
