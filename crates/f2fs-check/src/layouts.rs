//! Layouts of the inodes of a volume, and the choice of one for an inode that is made anew.
//!
//! The size of the inline xattrs decides how many addresses an inode has, and so the place in the file of all blocks behind
//! them. With the feature flexible_inline_xattr, it differs between inodes.

use f2fs::format::{inode::inline, node::NodeBlock, superblock::Features};
use rustc_hash::FxHashMap;

/// Bytes of an inode with the sizes of its extra attributes and of its inline xattrs.
const SIZES: std::ops::Range<usize> = 360..364;
/// Maximum number of layouts that are counted.
const LAYOUTS_MAX: usize = 256;
/// Words of the smallest area of inline xattrs: its header.
const XATTR_WORDS_MIN: u16 = 6;

/// Parts of the layout that several inodes of a volume share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    /// Marks of inline content.
    pub inline: u8,
    /// Sizes of the extra attributes and of the inline xattrs, as stored.
    sizes: [u8; 4],
    /// Number of addresses.
    addrs: u16,
}

impl Layout {
    fn of(inode: &NodeBlock) -> Layout {
        let sizes = inode.bytes()[SIZES].try_into().expect("four bytes");
        let addrs = u16::try_from(inode.layout().addrs()).expect("an inode has a few thousand addresses");
        Layout { inline: inode.head().inline & inline::XATTR, sizes, addrs }
    }

    /// Sets the sizes in an inode of a volume with extra attributes.
    pub fn put(&self, bytes: &mut [u8]) {
        bytes[SIZES].copy_from_slice(&self.sizes);
    }

    /// The layout with a smaller area of inline xattrs, so that there are so many addresses.
    fn with_addrs(self, addrs: u16) -> Option<Layout> {
        let words = u16::from_le_bytes([self.sizes[2], self.sizes[3]]);
        let words = (self.addrs + words).checked_sub(addrs)?;
        let (words, inline) = if words < XATTR_WORDS_MIN { (0, 0) } else { (words, self.inline) };
        let [low, high] = words.to_le_bytes();
        Some(Layout { inline, sizes: [self.sizes[0], self.sizes[1], low, high], addrs })
    }
}

/// The evidence for the layout of a lost inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The places of all blocks that are left agree with it.
    Agrees,
    /// Other layouts of the volume fit as well, and with them the blocks of further nodes have other places.
    Doubtful,
}

/// The nodes that hold the addresses of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holders {
    /// The inode alone.
    Inode,
    /// The inode and further nodes.
    FurtherNodes,
}

/// The layouts of regular files that are neither inline nor compressed, with the number of the files.
#[derive(Debug, Default)]
pub struct Layouts(FxHashMap<Layout, u32>);

impl Layouts {
    /// Counts the layout of an inode.
    pub fn note(&mut self, inode: &NodeBlock) {
        let layout = Layout::of(inode);
        if self.0.len() < LAYOUTS_MAX || self.0.contains_key(&layout) {
            *self.0.entry(layout).or_default() += 1;
        }
    }

    /// The layout of most files.
    pub fn usual(&self) -> Option<Layout> {
        self.most(|_| true)
    }

    fn most(&self, fits: impl Fn(&Layout) -> bool) -> Option<Layout> {
        let found = self.0.iter().filter(|(layout, _)| fits(layout));
        found.max_by_key(|(layout, count)| (**count, **layout)).map(|(layout, _)| *layout)
    }

    /// Chooses the layout of a lost inode. `used` is the number of addresses in it up to the last one that is known. A file
    /// that has further nodes as a rule uses the last address in its inode, too.
    pub fn choose(&self, used: u16, holders: Holders, features: Features) -> (Option<Layout>, Fit) {
        let fits = |layout: &Layout| layout.addrs >= used;
        let usual = self.most(fits);
        if holders == Holders::Inode {
            return (usual, Fit::Agrees);
        }
        if let Some(exact) = self.most(|layout| layout.addrs == used) {
            return (Some(exact), Fit::Agrees);
        }
        let Some(usual) = usual else {
            let is_flexible = features.has(Features::FLEXIBLE_INLINE_XATTR);
            let made = self.usual().filter(|_| is_flexible).and_then(|usual| usual.with_addrs(used));
            return (made, Fit::Doubtful);
        };
        let is_only = !self.0.keys().any(|layout| fits(layout) && layout.addrs != usual.addrs);
        (Some(usual), if is_only { Fit::Agrees } else { Fit::Doubtful })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(addrs: u16) -> Layout {
        let [low, high] = (914 - addrs).to_le_bytes();
        Layout { inline: inline::XATTR, sizes: [36, 0, low, high], addrs }
    }

    #[test]
    fn the_last_address_in_the_inode_tells_the_layout_of_a_file_with_further_nodes() {
        let layouts = Layouts([(layout(864), 9), (layout(800), 2), (layout(700), 5)].into_iter().collect());
        let flexible = Features::FLEXIBLE_INLINE_XATTR;
        for (used, holders, chosen, fit) in [
            (800, Holders::FurtherNodes, 800, Fit::Agrees),
            (700, Holders::FurtherNodes, 700, Fit::Agrees),
            (699, Holders::FurtherNodes, 864, Fit::Doubtful),
            (800, Holders::Inode, 864, Fit::Agrees),
            // Only one layout has so many addresses.
            (810, Holders::FurtherNodes, 864, Fit::Agrees),
            // None has: the area of xattrs is smaller.
            (890, Holders::FurtherNodes, 890, Fit::Doubtful),
            (912, Holders::FurtherNodes, 912, Fit::Doubtful),
        ] {
            let (found, found_fit) = layouts.choose(used, holders, flexible);
            assert_eq!((found.map(|layout| layout.addrs), found_fit), (Some(chosen), fit), "{used}");
        }
        assert_eq!(layouts.choose(890, Holders::FurtherNodes, Features(0)), (None, Fit::Doubtful));
    }
}
