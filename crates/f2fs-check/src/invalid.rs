//! Inodes whose fields contradict each other: mended field by field, or taken for lost.
//!
//! One wrong field leaves the others right, and they tell what it was. Where a sector was overwritten, most fields at the
//! front of an inode are impossible; then its kind, size and layout are made up, and blocks behind them would be freed. The
//! blocks that name the inode tell more. So an inode is mended if it still looks like itself and, when it is mended, has all
//! blocks and nodes that name it. Any other one counts as lost, and [`remake`](crate::remake) makes it anew.

use f2fs::{
    Error, Place,
    format::{
        FileType, NAME_MAX,
        inode::{EXTRA_BYTES_MAX, inline, raw::InodeHead},
        node::{NodeBlock, NodeFooter},
        superblock::Features,
    },
    units::{BlockAddr, Ino, Nid},
};
use zerocopy::FromBytes;

use crate::{
    Finding, Fix, Kind, Loss, Slot,
    areas::begins_with_dot,
    checker::{Checker, ODD_MAX},
    inodes::{EXTRA, INLINE, LINKS, has_map, may_pass_end},
    mend::{self, Mended},
    reader::parse_node,
    remake::Remains,
    table::{Entry, fact},
};

/// Impossible fields that one wrong word can bring at most: kind and extra attributes share the first one.
const IMPOSSIBLE_MAX: usize = 2;
/// Nanoseconds of a second.
const SECOND: u32 = 1_000_000_000;

impl Checker<'_> {
    /// Notes an inode whose fields contradict each other. Its blocks cannot be told.
    pub fn invalid_inode(&mut self, entry: Entry, at: Place, bytes: &[u8], error: &Error) {
        let known = match error {
            Error::Corrupt { what, .. } => what.to_string(),
            error => error.to_string(),
        };
        let finding = Finding::new(Kind::InodeInvalid, at, known);
        if self.invalid.len() < ODD_MAX {
            self.invalid.insert(NodeFooter::of(bytes).ino, finding);
        } else {
            self.report.add(finding);
        }
        self.table.note(entry, fact::INVALID | fact::TAINTED);
        self.quotas.give_up();
        if let Some(kind) = FileType::from_mode(u16::from_le_bytes([bytes[0], bytes[1]])) {
            self.table.set_kind(entry, kind);
        }
        let links = u32::from_le_bytes(bytes[LINKS..LINKS + 4].try_into().expect("four bytes"));
        self.table.take_links(entry, 0u32.wrapping_sub(links));
    }

    /// Has the fields of an invalid inode restored, or takes the inode for lost, by what is left of it.
    pub fn conclude_invalid(&mut self, ino: Ino, remains: Option<&Remains>) {
        let Some(entry) = self.table.find(ino.into()) else { return };
        if let (Some(mut finding), Some(remains)) = (self.invalid.remove(&ino), remains) {
            let block = self.cache.block(&self.io, self.table.addr(entry));
            let bytes = block.map(|bytes| NodeFooter::with_inode(&bytes, ino));
            if bytes.as_ref().is_ok_and(|bytes| !self.can_be_mended(ino, bytes, remains)) {
                let known = "; other fields are impossible, too, or it lacks blocks that name it";
                let overwritten = Finding { known: format!("{}{known}", finding.known), ..finding.clone() };
                match self.lost_inodes.add(ino.into(), overwritten) {
                    Ok(()) => {
                        self.table.note(entry, fact::BROKEN);
                        return;
                    }
                    Err(other) => finding = other,
                }
            }
            self.report.add(finding);
            if let Ok(bytes) = bytes {
                if let Some(flags) = self.without_wrong_inline(ino.into(), &bytes) {
                    self.fix(Fix::Node(Slot { nid: ino.into(), at: INLINE }, vec![flags]));
                }
                if bytes[..2] == [0; 2] {
                    self.lose(Loss::Attributes);
                }
            }
        }
        let kind = self.named_kind(ino);
        self.fix(Fix::Mend(ino, kind));
    }

    /// The marks of an inode whose fields contradict each other, without those of inline content, if its first address names
    /// a block whose summary names the inode. Other marks, as that of encryption, are right then.
    fn without_wrong_inline(&mut self, nid: Nid, bytes: &[u8]) -> Option<u8> {
        let (stored, marks) = (bytes[INLINE], inline::DATA | inline::DENTRY);
        let extra = match stored & inline::EXTRA_ATTR {
            0 => 0,
            _ => usize::from(u16::from_le_bytes([bytes[EXTRA], bytes[EXTRA + 1]])),
        };
        let is_wrong = stored & marks != 0 && self.own_first_block(nid, bytes, EXTRA + extra).is_some();
        is_wrong.then_some(stored & !(marks | inline::DATA_EXIST))
    }

    /// Returns true if an inode looks like itself, and has what is left of it when its fields are restored.
    fn can_be_mended(&mut self, ino: Ino, bytes: &[u8], remains: &Remains) -> bool {
        if !self.has_own_name(ino, bytes) && self.impossible_fields(ino, bytes) > IMPOSSIBLE_MAX {
            return false;
        }
        let mut mended: Box<[u8]> = bytes.into();
        if let Some(flags) = self.without_wrong_inline(ino.into(), bytes) {
            mended[INLINE] = flags;
        }
        if mend::mend(&mut mended, self.format, ino, self.named_kind(ino)) == Mended::Lost {
            return false;
        }
        let (inode, _) = parse_node(self.format, &mended, ino.into(), BlockAddr::NULL);
        inode.is_ok_and(|inode| self.has_remains(&inode, remains))
    }

    /// Returns true if an inode carries the name and the directory of the entry that names it.
    fn has_own_name(&self, ino: Ino, bytes: &[u8]) -> bool {
        let head = head(bytes);
        let Some(named) = self.named.get(&ino) else { return false };
        let own = head.name.get(..head.namelen.get() as usize);
        own.is_some() && own == named.name.as_deref() && named.dir.is_none_or(|dir| dir.0 == head.pino.get())
    }

    /// Counts the fields of an inode that cannot be right, whatever the others are.
    fn impossible_fields(&self, ino: Ino, bytes: &[u8]) -> usize {
        let head = head(bytes);
        let entry_of = |nid: u32| self.table.find(Nid(nid)).map(|entry| self.table.ino(entry));
        let entry = self.table.find(ino.into());
        let is_nameless =
            ino == self.superblock.root_ino || entry.is_some_and(|entry| self.table.has(entry, fact::HIDDEN));
        let kind = FileType::from_mode(head.mode.get());
        let extra = u16::from_le_bytes([bytes[EXTRA], bytes[EXTRA + 1]]);
        let has_extra = head.inline & inline::EXTRA_ATTR != 0;
        let is_extra = (1..=EXTRA_BYTES_MAX).contains(&usize::from(extra)) && extra % 4 == 0;
        let (namelen, pino, xattrs) = (head.namelen.get() as usize, head.pino.get(), head.xattr_nid.get());
        let times = [head.atime_nsec, head.ctime_nsec, head.mtime_nsec];
        let impossible = [
            kind.is_none() || self.named_kind(ino).is_some_and(|named| Some(named) != kind),
            !(1..=self.volume_blocks()).contains(&head.blocks.get()),
            head.links.get() == 0,
            namelen > NAME_MAX || !is_nameless && namelen == 0,
            !is_nameless && entry_of(pino) != Some(Ino(pino)),
            xattrs != 0 && entry_of(xattrs) != Some(ino),
            times.iter().any(|nanoseconds| nanoseconds.get() >= SECOND),
            has_extra != self.format.features.has(Features::EXTRA_ATTR) || has_extra && !is_extra,
        ];
        impossible.into_iter().filter(|is_impossible| *is_impossible).count()
    }

    /// Returns true if an inode has all blocks and nodes that are left of it. One of which nothing is left has its own
    /// entries, if it is a directory, and names no block of which nothing tells.
    fn has_remains(&mut self, inode: &NodeBlock, remains: &Remains) -> bool {
        let is_directory = inode.is_directory();
        if remains.is_empty() {
            let addrs = if has_map(inode) { inode.layout().addrs() } else { 0 };
            let mut real = inode.addrs(0..addrs).filter(|addr| addr.is_real());
            return match (is_directory, inode.has_inline(inline::DENTRY)) {
                (true, true) => begins_with_dot(inode.inline_area(), inode.ino()),
                (true, false) => self.begins_as_directory(inode),
                (false, _) => real.all(|addr| self.segments.is_marked(addr)),
            };
        }
        if !has_map(inode) {
            return false;
        }
        let layout = inode.layout();
        let has_addr = |(index, addr): (&u16, &Option<BlockAddr>)| {
            let index = usize::from(*index);
            index < layout.addrs() && addr.is_none_or(|addr| inode.addr(index) == addr)
        };
        let children = self.children(remains);
        let has_children = children.iter().all(|(place, nid)| inode.child(*place) == *nid);
        if !has_children || !remains.addrs.iter().all(has_addr) {
            return false;
        }
        let size_blocks = inode.head().size.get().div_ceil(self.geometry.block_size.bytes() as u64);
        let covered = size_blocks.next_multiple_of(layout.cluster_blocks() as u64);
        is_directory || may_pass_end(inode) || self.end_of(remains, &layout) <= covered
    }
}

fn head(bytes: &[u8]) -> &InodeHead {
    InodeHead::ref_from_prefix(bytes).expect("a block is longer than an inode's head").0
}
