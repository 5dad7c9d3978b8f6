//! Reading of nodes by their versions.

use std::ops::Range;

use f2fs::{
    Error, Place, Result,
    format::{
        NodeBlock,
        inode::advise,
        node::NodeFooter,
        xattr::{self, index},
    },
    units::{Ino, Nid},
};

use crate::{
    mended,
    shape::Shape,
    versions::{Standing, Version, Versions, fact},
};

/// An inode in one of its versions.
pub(crate) struct Inode {
    pub(crate) node: NodeBlock,
    pub(crate) version: Version,
    /// Nodes of the file were written before this checkpoint, if the number was used again later.
    pub(crate) until: u32,
}

impl Inode {
    pub(crate) fn ino(&self) -> Ino {
        self.node.ino()
    }
}

/// The nodes of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Nodes<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) versions: &'a Versions,
}

impl Nodes<'_> {
    /// Reads an inode, by the index of its version.
    pub(crate) fn inode(&self, index: u32) -> Result<Inode> {
        let version = *self.versions.get(index);
        let until = self.versions.until(&version);
        Ok(Inode { node: self.read(&version)?, version, until })
    }

    /// Returns true if a checksum confirms the fields of an inode.
    pub(crate) fn has_proven_size(&self, inode: &Inode) -> bool {
        self.shape.strict.is_some() && !inode.version.has(fact::BAD_SUM)
    }

    /// Reads the version of an inode that counts.
    pub(crate) fn current(&self, ino: Ino) -> Result<Inode> {
        let index = self.versions.current(ino).ok_or(Error::NotFound)?;
        self.inode(index)
    }

    /// Reads a further node of a file, in its best version.
    pub(crate) fn child(&self, inode: &Inode, nid: Nid, offset: u32) -> Result<(NodeBlock, Standing)> {
        let version = self.versions.find(nid, inode.ino(), offset, inode.until);
        let version =
            version.ok_or_else(|| Error::corrupt(Place::Inode(inode.ino()), format!("{nid} is lost")))?;
        Ok((self.read(&version)?, standing(inode, &version)))
    }

    /// Reads the nodes of a file whose parent is lost, by their offsets: the best version of each.
    pub(crate) fn without_parent(&self, inode: &Inode, offsets: Range<u32>) -> Vec<(NodeBlock, Standing)> {
        let mut found: Vec<(NodeBlock, Standing)> = Vec::new();
        for version in self.versions.nodes_of(inode.ino(), offsets) {
            let is_new = found.last().is_none_or(|(last, _)| last.footer().offset != version.offset());
            if is_new && version.cp <= inode.until {
                found.extend(self.read(version).ok().map(|node| (node, standing(inode, version))));
            }
        }
        found
    }

    fn read(&self, version: &Version) -> Result<NodeBlock> {
        let (nid, ino, addr) = (Nid(version.nid), Ino(version.ino), version.addr());
        let mut bytes = self.shape.io.read_block(addr, Place::Node(nid, addr))?;
        if version.is_inode() && version.has(fact::BAD_SUM) {
            bytes = mended::inode(&bytes, ino, self.shape, version.kind()).bytes;
        }
        if NodeFooter::of(&bytes).offset != version.offset() {
            return Err(Error::corrupt(Place::Node(nid, addr), "the block changes while it is read"));
        }
        let format = match self.shape.strict {
            Some(strict) if !version.has(fact::BAD_SUM) => strict,
            _ => self.shape.lenient,
        };
        let mut node = NodeBlock::check(format, bytes, nid, ino, addr)?;
        if version.is_inode() && !self.shape.may_encrypt() && !may_have_context(&node) {
            node.head_mut().advise &= !(advise::ENCRYPT | advise::ENC_NAME);
        }
        Ok(node)
    }
}

/// Returns true if an inode has an encryption context, or if it may be in a further node. Without one, a volume that
/// encrypts nothing has a wrong bit in the inode.
fn may_have_context(inode: &NodeBlock) -> bool {
    let place = Place::Xattr(inode.ino());
    let is_context = |entry: xattr::Entry<'_>| entry.index == index::ENCRYPTION;
    inode.xattr_nid() != Nid::NULL
        || xattr::entries(inode.inline_xattrs(), place)
            .map_or(true, |entries| entries.flatten().any(is_context))
}

/// Standing of a node of an inode. One of an earlier time does not belong to the inode, unless the inode is of that time, too.
fn standing(inode: &Inode, version: &Version) -> Standing {
    match version.standing() {
        Standing::Unproven if version.is_unmarked() && !inode.version.is_unmarked() => Standing::Outdated,
        standing => standing,
    }
}
