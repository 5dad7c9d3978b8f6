//! The verdict on one block of a file.

use f2fs::units::{BlockAddr, Nid};

use crate::{
    bitmap::Bitmap,
    claims::Claims,
    nodes::{Inode, Nodes},
    summaries::{Owned, Summaries},
    versions::fact,
};

/// Meaning of a summary that names another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherOwner {
    /// The summary may be damaged: a file that is there keeps its block.
    Doubt,
    /// The block belongs to its last writer: the file is a past one.
    Reuse,
}

/// Verdict on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The summary names the file.
    Agreeing,
    /// Its summary cannot be read.
    Unproven,
    /// The summary names another owner, which does not have it; or no summary tells, and it is a node or free by the SIT.
    Contradicted,
    /// Another file has reused it.
    Reused,
    /// It is past the end of the image.
    Missing,
    /// It cannot be read.
    Unreadable,
}

/// The use of blocks of which no summary tells the owner.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// Blocks that hold a node in one of its versions.
    pub(crate) nodes: Bitmap,
    /// Blocks that a whole SIT of the newest checkpoint marks, if nothing was written after it.
    pub(crate) marked: Option<Bitmap>,
}

impl Used {
    /// Returns true for a block that no content of this inode is in.
    fn speaks_against(&self, addr: BlockAddr, inode: &Inode) -> bool {
        let is_free = self.marked.as_ref().is_some_and(|marked| !marked.has(addr));
        self.nodes.has(addr) || is_free && inode.version.is_confirmed()
    }
}

/// The evidence on blocks.
#[derive(Clone, Copy)]
pub(crate) struct Judge<'a> {
    pub(crate) nodes: Nodes<'a>,
    pub(crate) summaries: &'a Summaries,
    pub(crate) claims: &'a Claims,
    pub(crate) used: &'a Used,
    pub(crate) other_owner: OtherOwner,
}

impl Judge<'_> {
    /// Judges a block that address `index` of node `nid` of an inode names.
    pub(crate) fn verdict(&self, inode: &Inode, addr: BlockAddr, nid: Nid, index: u16) -> Verdict {
        let is_past = self.other_owner == OtherOwner::Reuse || inode.version.has(fact::REMOVED | fact::FREED);
        if !self.nodes.shape.contains(addr) {
            return Verdict::Missing;
        }
        if self.claims.is_of_another(inode, addr, nid, index) {
            return Verdict::Reused;
        }
        if self.nodes.shape.is_unreadable(addr) {
            return Verdict::Unreadable;
        }
        match self.summaries.owner(self.nodes.shape, addr) {
            None if self.used.speaks_against(addr, inode) => Verdict::Contradicted,
            None => Verdict::Unproven,
            Some(Owned::Data(owner)) if owner.nid == nid && owner.offset == index => Verdict::Agreeing,
            Some(_) if is_past => Verdict::Reused,
            Some(_) => Verdict::Contradicted,
        }
    }
}
