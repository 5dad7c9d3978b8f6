//! Roll-forward recovery of names and extended attributes.

use super::{Names, dir::Wanted, encryption::StoredName};
use crate::{
    Error, Place, Result,
    format::{
        hash::name_hash,
        inode::{advise, flag, inline},
        node::{NodeBlock, XATTR_NODE_OFFSET},
    },
    units::{Ino, Nid},
};

/// Size in bytes of the hash that follows the name in an inode if the directory is encrypted and casefolded.
const HASH_BYTES: usize = 4;

impl Names {
    /// Enters a file under its name and unlinks any other inode of that name.
    pub(crate) fn recover_name(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        let dir = Ino(from.head().pino.get());
        let name = from.last_name().to_vec();
        let parent = self.directory(dir)?;
        if name.is_empty() || parent.head().links.get() == 0 {
            return Err(Error::corrupt(Place::Inode(ino), format!("its name cannot be entered into {dir}")));
        }
        let encrypted = parent.has_advise(advise::ENCRYPT);
        let hash = if encrypted && parent.has_flag(flag::CASEFOLD) {
            let bytes = &from.head().name[name.len()..];
            let hash = bytes.first_chunk::<HASH_BYTES>();
            u32::from_le_bytes(
                *hash.ok_or_else(|| Error::corrupt(Place::Inode(ino), "a name without its hash"))?,
            )
        } else if encrypted {
            name_hash(&name)
        } else {
            self.wanted(&parent, &name)?.expect("the name is not empty").hash()
        };
        let wanted = Wanted::Exact { hash, name: name.as_slice().into() };
        let found = self.search(&parent, &wanted)?;
        drop(parent);
        if let Some(found) = found {
            if found.ino == ino {
                return Ok(());
            }
            self.leave(dir, &found)?;
            let victim_is_dir = self.nodes().inode(found.ino)?.is_directory();
            if victim_is_dir {
                // Linux lets an fsynced file take the name of a directory that has entries in the checkpoint.
                // The inodes of these entries are then lost, in Linux (`recover_dentry`) as here.
                self.add_links(dir, -1)?;
                self.add_links(found.ino, -1)?;
            }
            self.drop_link(found.ino)?;
        }
        let kind = self.nodes().inode(ino)?.file_type();
        self.enter(dir, &StoredName { bytes: name, hash }, ino, kind)?;
        // A read-only volume has no clock.
        if self.options().read_only { Ok(()) } else { self.touch_dir(dir) }
    }

    /// Recovers the extended attributes in an inode.
    pub(crate) fn recover_inline_xattrs(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        let (bit, area) = (from.head().inline & inline::XATTR, from.inline_xattrs().to_vec());
        if from.xattr_nid() == Nid::NULL {
            self.drop_xattr_node(ino)?;
        }
        let inode = self.nodes_mut().inode_mut(ino)?;
        if inode.head().inline & inline::XATTR != bit {
            return Err(Error::corrupt(
                Place::Inode(ino),
                "its space for inline xattrs has appeared or disappeared",
            ));
        }
        let room = inode.inline_xattrs_mut();
        if room.len() != area.len() {
            return Err(Error::corrupt(Place::Inode(ino), "its space for inline xattrs has another size"));
        }
        room.copy_from_slice(&area);
        Ok(())
    }

    /// Recovers the node of extended attributes.
    pub(crate) fn recover_xattr_node(&mut self, ino: Ino, from: &NodeBlock) -> Result<()> {
        self.drop_xattr_node(ino)?;
        let kind = self.nodes().inode(ino)?.file_type();
        let nid = self.nodes_mut().add_child_node(ino, XATTR_NODE_OFFSET, kind)?;
        self.nodes_mut().node_mut(nid)?.payload_mut().copy_from_slice(from.payload());
        self.nodes_mut().inode_mut(ino)?.head_mut().xattr_nid.set(nid.0);
        self.files.add_blocks(ino, 1)
    }

    fn drop_xattr_node(&mut self, ino: Ino) -> Result<()> {
        if let Some(nid) = self.xattr_node(ino)? {
            self.nodes_mut().remove_node(nid)?;
            self.nodes_mut().inode_mut(ino)?.head_mut().xattr_nid.set(0);
            self.files.drop_blocks(ino, 1)?;
        }
        Ok(())
    }
}
