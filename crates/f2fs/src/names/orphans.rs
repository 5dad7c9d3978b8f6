//! Inodes without a name: those that are held, and those that are removed.

use std::collections::BTreeSet;

use super::Names;
use crate::{
    Error, Place, Result,
    files::has_map,
    format::orphan,
    units::{Ino, Nid},
};

impl Names {
    /// Undoes one [`hold`](Self::hold). Returns true if the inode has no name, and is to be removed now.
    pub(crate) fn release(&mut self, ino: Ino) -> bool {
        let Some(count) = self.held.get_mut(&ino) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.held.remove(&ino);
        let is_evicted = self.orphans.contains(&ino) && self.disk().read_only_reason().is_none();
        if is_evicted {
            self.pending_evictions.insert(ino);
        }
        is_evicted
    }

    /// Removes an inode that [`release`](Self::release) was told of, unless a checkpoint has removed it already.
    pub(crate) fn evict_released(&mut self, ino: Ino) -> Result<()> {
        if self.pending_evictions.contains(&ino) { self.try_evict(ino) } else { Ok(()) }
    }

    /// Inodes without a name that are still in use, or could not be removed yet.
    pub(crate) fn orphans(&self) -> &BTreeSet<Ino> {
        &self.orphans
    }

    /// Returns true if an inode has no name and is held once.
    pub(crate) fn is_held_once(&self, ino: Ino) -> bool {
        self.orphans.contains(&ino) && self.held.get(&ino) == Some(&1)
    }

    /// Removes an inode that the checkpoint has as an orphan.
    pub(crate) fn remove_orphan(&mut self, ino: Ino) -> Result<()> {
        self.require_nameless(ino)?;
        self.evict(ino)
    }

    /// Returns an error for an inode that only damage can have entered into the orphan list. Linux would remove it.
    ///
    /// Links without a name are no damage: Linux makes an orphan of an inode whose creation failed, and its node may have
    /// reached the device before, with the links of a complete inode (`f2fs_handle_failed_inode`).
    fn require_nameless(&self, ino: Ino) -> Result<()> {
        let inode = self.nodes().inode(ino)?;
        let links = if inode.last_name().is_empty() { 0 } else { inode.head().links.get() };
        if links > 0 || ino == self.superblock().root_ino || self.superblock().is_quota_ino(ino) {
            let what = format!("the orphan list names it, and it is in use: i_links {links}");
            return Err(Error::corrupt(Place::Inode(ino), what));
        }
        Ok(())
    }

    /// Holds the inodes that are held in another open volume on the same device, and keeps those without a name that could not
    /// be removed yet.
    pub(crate) fn hold_like(&mut self, other: &Names) {
        self.held.clone_from(&other.held);
        self.pending_evictions.clone_from(&other.pending_evictions);
    }

    /// Holds an inode, for example while it is open, so that it outlives its last name.
    pub(crate) fn hold(&mut self, ino: Ino) {
        self.pending_evictions.remove(&ino);
        *self.held.entry(ino).or_default() += 1;
    }

    /// Removes an orphan inode that is no longer in use. If that fails, it stays an orphan: a damaged one
    /// waits for fsck, any other is retried before the next checkpoint.
    pub(super) fn try_evict(&mut self, ino: Ino) -> Result<()> {
        let result = self.remove_orphan(ino);
        let is_waiting = result.as_ref().is_err_and(|error| !matches!(error, Error::Corrupt { .. }));
        match is_waiting && self.orphans.contains(&ino) {
            true => self.pending_evictions.insert(ino),
            false => self.pending_evictions.remove(&ino),
        };
        self.io().record_corruption(result)
    }

    /// Retries, before a checkpoint, to remove the inodes that could not be removed earlier.
    pub(crate) fn retry_evictions(&mut self) -> Result<()> {
        for ino in self.pending_evictions.clone() {
            match self.try_evict(ino) {
                Err(error) if !self.disk().stays_in_place(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The xattr node of an inode that is to be removed; it must belong to the inode.
    pub(super) fn xattr_node(&self, ino: Ino) -> Result<Option<Nid>> {
        let nid = self.nodes().inode(ino)?.xattr_nid();
        if nid == Nid::NULL {
            return Ok(None);
        }
        let owner = self.nodes().nat_entry(nid)?.ino;
        if owner != ino || nid == ino.into() {
            let what = format!("its xattr node {nid} belongs to {owner}");
            return Err(Error::corrupt(Place::Xattr(ino), what));
        }
        Ok(Some(nid))
    }

    /// Removes an inode with all its blocks and nodes. A damaged inode keeps the parts that cannot be removed
    /// and becomes an orphan.
    pub(super) fn evict(&mut self, ino: Ino) -> Result<()> {
        if self.require_orphans_fit().is_ok() {
            self.orphans.insert(ino);
        }
        let has_map = has_map(&*self.nodes().inode(ino)?);
        self.files.discard_pages(ino, 0, u64::MAX);
        if has_map {
            self.files.free_from(ino, 0)?;
        }
        if let Some(xattr_nid) = self.xattr_node(ino)? {
            self.nodes_mut().remove_node(xattr_nid)?;
            self.nodes_mut().inode_mut(ino)?.head_mut().xattr_nid.set(Nid::NULL.0);
        }
        self.nodes_mut().remove_node(ino.into())?;
        self.orphans.remove(&ino);
        self.forget_names(ino);
        Ok(())
    }

    /// Returns an error if removing the last name of `ino` would make one orphan more than the checkpoint has
    /// room for.
    pub(super) fn require_orphan_room(&self, ino: Ino) -> Result<()> {
        if self.held.contains_key(&ino) { self.require_orphans_fit() } else { Ok(()) }
    }

    /// Returns an error if the checkpoint has no room for one more orphan.
    pub(super) fn require_orphans_fit(&self) -> Result<()> {
        if self.orphans.len() >= orphan::most(self.superblock().cp_payload, self.geometry().block_size) {
            return Err(Error::no_space(self.geometry().block_size, 1, 0));
        }
        Ok(())
    }
}
