//! Inodes whose marks or sizes lay out their content otherwise than it is: one wrong bit moves all blocks of a file, or hides
//! its attributes.
//!
//! The content tells the right ones. Summaries name the index of each address, so the first address of an inode is known by
//! any of them; xattrs begin with a magic number; an inode without blocks has no addresses; a file has no blocks past its end;
//! zeroes follow inline content.

use f2fs::{
    Place,
    format::{
        FileType,
        inode::{EXTRA_BYTES_MAX, EXTRA_BYTES_MIN, INLINE_XATTR_WORDS, inline},
        node::NodeBlock,
        superblock::Features,
        xattr,
    },
    units::{BlockAddr, Nid},
};

use crate::{
    Finding, Fix, Kind, Slot,
    areas::begins_with_dot,
    checker::Checker,
    inodes::{EXTRA, INLINE, address_at, has_map, may_pass_end},
    reader::parse_node,
};

/// Byte offset of i_inline_xattr_size.
const XATTR_WORDS: usize = 362;
/// Addresses that have to agree on another place of all addresses, if the sizes of extra attributes do not decide.
const WITNESSES: usize = 3;

/// Bytes of an inode as they were before the damage.
struct Restored {
    known: String,
    repair: &'static str,
    at: usize,
    bytes: Vec<u8>,
}

impl Checker<'_> {
    /// Returns true if a mark or a size of an inode contradicts its content. Has it restored; the next check reads the rest.
    pub fn has_wrong_layout(&mut self, inode: &NodeBlock, at: Place) -> bool {
        let restored = self
            .with_extra_of_addresses(inode)
            .or_else(|| self.with_unmarked_extra(inode))
            .or_else(|| self.with_extra_of_content(inode))
            .or_else(|| self.with_hidden_xattrs(inode))
            .or_else(|| self.with_unmarked_xattr_space(inode))
            .or_else(|| self.with_xattrs_over_addresses(inode))
            .or_else(|| self.with_unmarked_data(inode));
        let Some(Restored { known, repair, at: byte, bytes }) = restored else { return false };
        self.report.add(Finding::new(Kind::InodeInvalid, at, known).repaired_by(repair));
        self.fix(Fix::Node(Slot { nid: inode.nid(), at: byte }, bytes));
        true
    }

    /// Restores the size of the extra attributes by the addresses behind them.
    fn with_extra_of_addresses(&mut self, inode: &NodeBlock) -> Option<Restored> {
        let layout = inode.layout();
        if !has_map(inode) || !self.format.features.has(Features::EXTRA_ATTR) {
            return None;
        }
        let stored = layout.addrs_at();
        let first = inode.addrs(0..layout.addrs()).position(|addr| self.geometry.in_main(addr))?;
        // Most inodes end here.
        if self.start_by(inode, stored + 4 * first) == Some(stored) {
            return None;
        }
        let mut witnesses = 0;
        let mut start = None;
        for at in (EXTRA..layout.inline_xattr_range().start).step_by(4) {
            let Some(told) = self.start_by(inode, at) else { continue };
            if told == stored || start.is_some_and(|start| start != told) {
                return None;
            }
            (start, witnesses) = (Some(told), witnesses + 1);
        }
        let extra = start?.checked_sub(EXTRA)?;
        let (is_usual, was_usual) = (self.is_usual_extra(extra), self.is_usual_extra(stored - EXTRA));
        let is_size = (EXTRA_BYTES_MIN..=EXTRA_BYTES_MAX).contains(&extra) && extra % 4 == 0;
        if !is_size || !is_usual || was_usual && witnesses < WITNESSES {
            return None;
        }
        let known = format!("its addresses begin at byte {stored}; their summaries say {}", EXTRA + extra);
        if !inode.has_inline(inline::EXTRA_ATTR) && has_extra(inode, extra) {
            return Some(Restored::marked(inode, known, inline::EXTRA_ATTR));
        }
        let bytes = (extra as u16).to_le_bytes().to_vec();
        Some(Restored { known, repair: "set the size of the extra attributes", at: EXTRA, bytes })
    }

    /// The byte of an inode at which its addresses begin, if the word at a byte is one of them by its summary.
    fn start_by(&mut self, inode: &NodeBlock, at: usize) -> Option<usize> {
        let (_, index) = self.own_address(inode.nid(), inode.bytes(), at)?;
        at.checked_sub(4 * index)
    }

    /// Returns true if extra attributes of this size are those of Linux, or of the root directory.
    pub fn is_usual_extra(&mut self, bytes: usize) -> bool {
        bytes == EXTRA_BYTES_MAX || self.extra_of_root() == Some(bytes)
    }

    /// Size of the extra attributes of the root directory.
    fn extra_of_root(&mut self) -> Option<usize> {
        self.inode_of(self.superblock.root_ino).map(|root| root.layout().addrs_at() - EXTRA)
    }

    /// Restores the mark of extra attributes where their size takes the place of the address before inline content, or of an
    /// address outside the main area.
    fn with_unmarked_extra(&mut self, inode: &NodeBlock) -> Option<Restored> {
        let lacks = self.format.features.has(Features::EXTRA_ATTR) && !inode.has_inline(inline::EXTRA_ATTR);
        let size = (address_at(inode.bytes(), EXTRA).0 & 0xFFFF) as usize;
        if !lacks || size == 0 || self.geometry.in_main(address_at(inode.bytes(), EXTRA)) {
            return None;
        }
        let known =
            format!("it has no extra attributes by its marks, and {size} bytes of them by their size");
        self.is_usual_extra(size).then(|| Restored::marked(inode, known, inline::EXTRA_ATTR))
    }

    /// Restores an unusual size of the extra attributes where inline content begins at its place only by a usual one.
    fn with_extra_of_content(&mut self, inode: &NodeBlock) -> Option<Restored> {
        let is_inline =
            inode.has_inline(inline::DATA | inline::DENTRY) && inode.has_inline(inline::EXTRA_ATTR);
        // Most inodes end here.
        if !is_inline || has_content_in_place(inode) {
            return None;
        }
        let stored = inode.layout().addrs_at() - EXTRA;
        if self.is_usual_extra(stored) {
            return None;
        }
        let of_root = self.extra_of_root();
        let fits = |extra: &usize| {
            let mut bytes = inode.bytes().to_vec();
            bytes[EXTRA..EXTRA + 2].copy_from_slice(&(*extra as u16).to_le_bytes());
            let (other, _) = parse_node(self.format, &bytes, inode.nid(), BlockAddr::NULL);
            *extra > 0 && other.is_ok_and(|other| has_content_in_place(&other))
        };
        let extra = of_root.into_iter().chain([EXTRA_BYTES_MAX]).find(fits)?;
        let known = format!("it has {stored} bytes of extra attributes; by its content it has {extra}");
        let bytes = (extra as u16).to_le_bytes().to_vec();
        Some(Restored { known, repair: "set the size of the extra attributes", at: EXTRA, bytes })
    }

    /// Restores the mark of inline xattrs where they are empty. Without it, the space for them holds addresses, so that all
    /// blocks behind them are so many blocks further on, and the last one as far past the end.
    fn with_unmarked_xattr_space(&mut self, inode: &NodeBlock) -> Option<Restored> {
        let is_candidate = has_map(inode)
            && !inode.has_inline(inline::XATTR)
            && !self.format.features.has(Features::FLEXIBLE_INLINE_XATTR)
            && inode.layout().cluster_blocks() == 1
            && (0..5).any(|child| inode.child(child) != Nid::NULL)
            && !may_pass_end(inode);
        let (addrs, words) = (inode.layout().addrs(), INLINE_XATTR_WORDS);
        if !is_candidate || inode.addrs(addrs - words..addrs).any(|addr| addr != BlockAddr::NULL) {
            return None;
        }
        let blocks = inode.head().size.get().div_ceil(self.geometry.block_size.bytes() as u64);
        let end = blocks.checked_add(words as u64)?;
        let last = self.address_of(inode, end.checked_sub(1)?)?;
        let is_last = self.address_of(inode, end).is_none_or(|addr| addr == BlockAddr::NULL);
        if blocks <= (addrs - words) as u64 || !self.geometry.in_main(last) || !is_last {
            return None;
        }
        let known = format!(
            "it ends {words} blocks past i_size, and its last {words} addresses in the inode, the space of xattrs, are empty"
        );
        Some(Restored::marked(inode, known, inline::XATTR))
    }

    /// Clears the mark of inline xattrs where addresses are in their place.
    fn with_xattrs_over_addresses(&mut self, inode: &NodeBlock) -> Option<Restored> {
        let is_candidate = has_map(inode)
            && inode.has_inline(inline::XATTR)
            && !self.format.features.has(Features::FLEXIBLE_INLINE_XATTR);
        if !is_candidate || inode.inline_xattrs().starts_with(&xattr::MAGIC.to_le_bytes()) {
            return None;
        }
        let stored = inode.layout().addrs_at();
        let mut words = inode.layout().inline_xattr_range().step_by(4);
        let at = words.find(|at| self.start_by(inode, *at) == Some(stored))?;
        let known =
            format!("it has inline xattrs by its marks, and an address of its own at byte {at} of them");
        let bytes = vec![inode.head().inline & !inline::XATTR];
        Some(Restored { known, repair: "clear the mark", at: INLINE, bytes })
    }

    /// Restores the mark or the size of the area of inline xattrs where xattrs lie at its usual place.
    fn with_hidden_xattrs(&mut self, inode: &NodeBlock) -> Option<Restored> {
        let is_flexible = self.format.features.has(Features::FLEXIBLE_INLINE_XATTR);
        let end = self.geometry.block_size.inode_nids_at();
        let usual = end - 4 * INLINE_XATTR_WORDS;
        let stored = inode.layout().inline_xattr_range().start;
        let is_marked = inode.has_inline(inline::XATTR);
        let is_free = |from: usize| match inode.has_inline(inline::DATA) {
            // Content may contain anything.
            true => inode.layout().inline_range().start as u64 + inode.head().size.get() <= from as u64,
            false => {
                from >= stored || has_map(inode) && !self.geometry.in_main(address_at(inode.bytes(), from))
            }
        };
        let has_xattrs =
            |from: usize| from < end && is_free(from) && begins_with_xattrs(&inode.bytes()[from..end]);
        if is_marked && (!is_flexible || begins_with_xattrs(inode.inline_xattrs())) {
            return None;
        }
        if !is_marked {
            let place = if is_flexible { stored } else { usual };
            let known = format!("xattrs begin at byte {place}, and it has none by its marks");
            return has_xattrs(place).then(|| Restored::marked(inode, known, inline::XATTR));
        }
        let known = format!("xattrs begin at byte {usual}, and at {stored} by their size");
        let bytes = (INLINE_XATTR_WORDS as u16).to_le_bytes().to_vec();
        has_xattrs(usual).then_some(Restored {
            known,
            repair: "set the size of the inline xattrs",
            at: XATTR_WORDS,
            bytes,
        })
    }

    /// Restores the mark of inline data in a file that has no blocks by i_blocks, where content of its size takes the place of
    /// addresses.
    fn with_unmarked_data(&mut self, inode: &NodeBlock) -> Option<Restored> {
        let head = inode.head();
        let nodes = 1 + u64::from(inode.xattr_nid() != Nid::NULL);
        let is_file = matches!(inode.file_type(), FileType::Regular | FileType::Symlink);
        let area = inode.inline_area();
        let size = usize::try_from(head.size.get()).ok().filter(|size| (1..=area.len()).contains(size))?;
        let (content, rest) = area.split_at(size);
        let fits = is_file
            && has_map(inode)
            && head.blocks.get() == nodes
            && inode.addrs(0..1).all(|addr| addr == BlockAddr::NULL)
            && content.iter().any(|byte| *byte != 0)
            && rest.iter().all(|byte| *byte == 0)
            && (0..5).all(|child| inode.child(child) == Nid::NULL);
        let mut words = (EXTRA..inode.layout().inline_range().end).step_by(4);
        if !fits || words.any(|at| self.start_by(inode, at).is_some()) {
            return None;
        }
        let known = format!("it has no blocks, and content of {size} bytes in the place of addresses");
        Some(Restored::marked(inode, known, inline::DATA | inline::DATA_EXIST))
    }
}

impl Restored {
    fn marked(inode: &NodeBlock, known: String, marks: u8) -> Restored {
        let bytes = vec![inode.head().inline | marks];
        Restored { known, repair: "set the mark", at: INLINE, bytes }
    }
}

/// Returns true if an inode has extra attributes of this size, whatever its marks are.
fn has_extra(inode: &NodeBlock, size: usize) -> bool {
    inode.bytes()[EXTRA..EXTRA + 2] == (size as u16).to_le_bytes()
}

/// Returns true if the address before inline content is empty, and the content begins as a directory or ends with the file.
fn has_content_in_place(inode: &NodeBlock) -> bool {
    let area = inode.inline_area();
    if address_at(inode.bytes(), inode.layout().addrs_at()) != BlockAddr::NULL {
        return false;
    }
    if inode.has_inline(inline::DENTRY) {
        return begins_with_dot(area, inode.ino());
    }
    let size = usize::try_from(inode.head().size.get()).unwrap_or(usize::MAX);
    area.get(size..).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

/// Returns true if an area has the header of xattrs and an entry.
fn begins_with_xattrs(area: &[u8]) -> bool {
    let entries = xattr::entries(area, Place::Volume);
    // Without its header, an area would begin anywhere.
    area.starts_with(&xattr::MAGIC.to_le_bytes())
        && entries.is_ok_and(|mut entries| entries.next().is_some_and(|first| first.is_ok()))
}
