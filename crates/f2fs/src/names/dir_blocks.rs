//! The blocks that a walk through a directory has met. A sound directory has each block of the device once;
//! without this rule, one block of a hostile volume could stand for names without bound.

use rustc_hash::FxHashMap;

use super::DirEntry;
use crate::{
    Error, Place, Result,
    format::{inode::inline, node::NodeBlock},
    units::{BlockAddr, Ino},
};

/// Maximum number of addresses that are damage each; then the walk ends.
const REPEATED_MAX: u32 = 4096;

/// Blocks of the device that a walk through a directory has met. A walk in parts hands them from part to part.
#[derive(Debug, Default)]
pub struct SeenBlocks {
    /// Number of the directory's block at each address.
    blocks: FxHashMap<BlockAddr, u64>,
    /// Addresses that were met again.
    repeated: u32,
    dots: Dots,
    /// The inode of the first "..".
    parent: Option<Ino>,
}

/// The entries "." and ".." of a directory, which every directory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Dots {
    /// The walk did not begin at the start.
    #[default]
    Unknown,
    /// They may be missing, or damage that the walk has met may have hidden them.
    NotSought,
    /// The walk began at the start and has met neither.
    Sought,
    Met,
    /// The walk has told at its end that it met neither.
    Told,
}

/// An address that a directory has more than once.
#[derive(Debug)]
pub(super) enum Repeated {
    /// The walk goes on behind it.
    Block(Error),
    /// The walk ends.
    TooOften(Error),
}

impl SeenBlocks {
    /// Notes that the walk begins at the start of a directory.
    pub(super) fn begin(&mut self, dir: &NodeBlock) {
        // Old fsck.f2fs leaves this mark on a directory without dots; the kernel adds them.
        self.dots = if dir.has_inline(inline::DOTS) { Dots::NotSought } else { Dots::Sought };
    }

    /// Returns true if the walk began at the start and has met neither dots nor damage.
    pub(super) fn seeks_dots(&self) -> bool {
        self.dots == Dots::Sought
    }

    /// Returns true if only another walk, from the start, can tell of missing dots.
    pub(super) fn began_later(&self) -> bool {
        self.dots == Dots::Unknown
    }

    /// Takes over from another walk, from the start, that which it knows of the dots.
    pub(super) fn take_dots(&mut self, other: &SeenBlocks) {
        self.dots = other.dots;
    }

    /// Makes the next part of the walk tell of missing dots again, which the reader of this part has not seen.
    pub(super) fn tell_again(&mut self) {
        if self.dots == Dots::Told {
            self.dots = Dots::Sought;
        }
    }

    /// Notes what the walk shows.
    pub(super) fn note(&mut self, entry: &Result<DirEntry>) {
        match entry {
            Ok(entry) if matches!(&*entry.name, b"." | b"..") => self.dots = Dots::Met,
            Err(_) if matches!(self.dots, Dots::Sought | Dots::Unknown) => self.dots = Dots::NotSought,
            _ => {}
        }
    }

    /// Refuses an entry in slot `slot` of a directory that has the name "." or ".." by damage, such as a wrong bit in a
    /// name of one letter: readers skip these names, and the file or directory behind it would be missed by nobody.
    pub(super) fn check_dot(&mut self, entry: &DirEntry, dir: Ino, at: Place, slot: usize) -> Result<()> {
        let wanted = match &*entry.name {
            b"." => dir,
            b".." => *self.parent.get_or_insert(entry.ino),
            _ => return Ok(()),
        };
        match entry.ino == wanted {
            true => Ok(()),
            false => {
                let (name, ino) = (entry.name.escape_ascii(), entry.ino);
                let what = format!("the name \"{name}\" in slot {slot} leads to {ino}, and not to {wanted}");
                Err(Error::corrupt(at, what))
            }
        }
    }

    /// Returns the damage of a directory, known at its end, in which the walk has met neither "." nor "..". A wrong bit
    /// of i_inline makes it look empty: its names are sought in the inode instead of its blocks, or the other way round.
    pub(super) fn end(&mut self, dir: Ino) -> Result<()> {
        if self.dots != Dots::Sought {
            return Ok(());
        }
        self.dots = Dots::Told;
        let what = r#"neither "." nor ".." is there, which every directory has; others may be missing, too"#;
        Err(Error::corrupt(Place::Dir(dir, 0), what))
    }

    /// Adds a block of the directory. Returns the block that was met at its address before, if it is another one. A
    /// block without an address yet is not counted.
    pub(super) fn enter(&mut self, addr: BlockAddr, block: u64) -> Option<u64> {
        if !addr.is_real() {
            return None;
        }
        let first = *self.blocks.entry(addr).or_insert(block);
        (first != block).then_some(first)
    }

    /// Replaces the block at an address that the block before has left.
    pub(super) fn replace(&mut self, addr: BlockAddr, block: u64) {
        self.blocks.insert(addr, block);
    }

    /// Counts an address that the directory has more than once.
    pub(super) fn repeat(&mut self, addr: BlockAddr, place: Place) -> Repeated {
        self.repeated = self.repeated.saturating_add(1);
        match self.repeated < REPEATED_MAX {
            true => Repeated::Block(Error::corrupt(place, format!("the directory has {addr} twice"))),
            false => {
                let what = format!("the directory has {REPEATED_MAX} blocks twice; the rest is left out");
                Repeated::TooOften(Error::corrupt(place, what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ino;

    #[test]
    fn a_block_may_be_met_again_and_another_one_at_its_address_may_not() {
        let mut seen = SeenBlocks::default();
        assert_eq!([seen.enter(BlockAddr(9), 1), seen.enter(BlockAddr(9), 1)], [None, None]);
        assert_eq!(seen.enter(BlockAddr(9), 2), Some(1));
        seen.replace(BlockAddr(9), 2);
        assert_eq!([seen.enter(BlockAddr(9), 2), seen.enter(BlockAddr(9), 1)], [None, Some(2)]);
        assert_eq!([seen.enter(BlockAddr::NEW, 1), seen.enter(BlockAddr::NEW, 2)], [None, None]);
    }

    #[test]
    fn a_walk_ends_after_a_fixed_number_of_repeated_addresses() {
        let mut seen = SeenBlocks::default();
        let place = || Place::Dir(Ino(4), 1);
        for _ in 1..REPEATED_MAX {
            assert!(matches!(seen.repeat(BlockAddr(9), place()), Repeated::Block(_)));
        }
        assert!(matches!(seen.repeat(BlockAddr(9), place()), Repeated::TooOften(_)));
    }
}
