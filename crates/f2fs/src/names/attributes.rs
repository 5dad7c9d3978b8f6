//! Changes of an inode's attributes and extended attributes.

use super::Names;
use crate::{
    Error, Place, Result,
    files::Storage,
    format::{
        acl::Acl,
        inode::{advise, flag},
        node::{NodeBlock, XATTR_NODE_OFFSET},
        verity::{self, Location},
        xattr::{self, Entry, index},
    },
    units::{Ino, Nid, Time},
};

/// Changes of an inode; a field that is `None` stays as it is. The caller checks permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits, without the file type.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the content.
    pub mtime: Option<Time>,
    /// Last change of the inode; the current time if it is not given.
    pub ctime: Option<Time>,
    /// Creation.
    pub crtime: Option<Time>,
    /// Flags that `chattr` may change.
    pub flags: Option<u32>,
    /// Project.
    pub project: Option<u32>,
}

/// Required state of an extended attribute before it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// It may exist or not.
    #[default]
    Set,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
    /// Both flags at once. This always fails, with the same error as in Linux (`__f2fs_setxattr`).
    CreateAndReplace,
}

/// Flags that callers may change. The others follow from the state of the inode (Linux,
/// `F2FS_SETTABLE_FS_FL`).
const SETTABLE: u32 = flag::COMPRESS
    | flag::NOCOMPRESS
    | flag::SYNC
    | flag::IMMUTABLE
    | flag::APPEND
    | flag::NODUMP
    | flag::NOATIME
    | flag::DIRSYNC
    | flag::PROJECT_INHERIT
    | flag::CASEFOLD;

impl Names {
    /// Changes attributes of an inode: all that are given, or none.
    pub(crate) fn set_attr(&mut self, ino: Ino, set: &SetAttr) -> Result<()> {
        let now = self.disk().time();
        if set.project.is_some_and(|project| project != 0) && self.nodes().inode(ino)?.project().is_none() {
            return Err(Error::Unsupported("project ids without the feature project_quota".into()));
        }
        let storage = match set.flags {
            Some(flags) => self.check_flags(ino, flags)?,
            None => None,
        };
        let xattrs = match set.permissions {
            Some(permissions) => self.limited_acl(ino, permissions)?,
            None => None,
        };
        let owner = [set.uid, set.gid, set.project];
        // The last step that may refuse the change.
        self.nodes().admit_owner(ino, owner)?;
        if let Some(stream) = xattrs {
            self.store_xattrs(ino, &stream)?;
        }
        if let Some(storage) = storage {
            self.files.set_storage(ino, storage)?;
        }
        self.nodes_mut().charge_owner(ino, owner)?;
        if set.flags.is_some() {
            // The next fsync becomes a checkpoint: recovery must find the directory as it was when names were
            // entered.
            self.nodes_mut().since_checkpoint_mut().note_renamed([ino]);
        }
        let inode = self.nodes_mut().inode_mut(ino)?;
        let head = inode.head_mut();
        if let Some(permissions) = set.permissions {
            let kind = head.mode.get() & !0o7777;
            head.mode.set(kind | permissions & 0o7777);
        }
        if let Some(uid) = set.uid {
            head.uid.set(uid);
        }
        if let Some(gid) = set.gid {
            head.gid.set(gid);
        }
        if let Some(flags) = set.flags {
            let kept = head.flags.get() & !SETTABLE;
            head.flags.set(kept | flags & SETTABLE);
        }
        if let Some(atime) = set.atime {
            inode.set_atime(atime);
        }
        if let Some(mtime) = set.mtime {
            inode.set_mtime(mtime);
        }
        if let Some(crtime) = set.crtime {
            inode.set_crtime(crtime);
        }
        if let Some(project) = set.project {
            inode.set_project(project);
        }
        inode.set_ctime(set.ctime.unwrap_or(now));
        Ok(())
    }

    /// Sets an extended attribute by its full name, such as `user.note`.
    pub(crate) fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let (index, short) = xattr::split_name(name)
            .ok_or_else(|| Error::Unsupported("extended attributes of this name space".into()))?;
        if name.len() > xattr::NAME_MAX {
            // It could be stored, but Linux could not read it back: `XATTR_NAME_MAX` counts the prefix.
            return Err(Error::NameTooLong);
        }
        match index {
            index::ACL_ACCESS => self.set_access_acl(ino, &Acl::from_system(value)?, mode),
            index::ACL_DEFAULT if !self.nodes().inode(ino)?.is_directory() => Err(Error::NotPermitted),
            index::ACL_DEFAULT => {
                let value = Acl::from_system(value)?.to_disk();
                self.change_xattr(ino, index, short, Some(&value), mode)
            }
            _ => self.change_xattr(ino, index, short, Some(value), mode),
        }
    }

    /// Removes an extended attribute.
    pub(crate) fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        let (index, short) = xattr::split_name(name).ok_or(Error::NoAttribute)?;
        self.change_xattr(ino, index, short, None, XattrMode::Replace)
    }

    /// Sets or removes an attribute in its stored form.
    pub(crate) fn change_xattr(
        &mut self,
        ino: Ino,
        index: u8,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        match self.changed_xattrs(ino, index, name, value, mode)? {
            Some(stream) => self.store_xattrs(ino, &stream),
            None => Ok(()),
        }
    }

    /// Records that a file is sealed, and the place of its verity descriptor.
    pub(crate) fn store_verity(&mut self, ino: Ino, place: &Location) -> Result<()> {
        self.change_xattr(ino, index::VERITY, verity::ATTRIBUTE, Some(&place.to_bytes()), XattrMode::Set)?;
        // Recovery would bring the file back without its tree.
        self.nodes_mut().since_checkpoint_mut().note_renamed([ino]);
        let head = self.nodes_mut().inode_mut(ino)?.head_mut();
        head.advise = head.advise & !advise::PAST_END | advise::VERITY;
        Ok(())
    }

    /// Returns the stream of all attributes after one is set or removed, or `None` if nothing changes. Fails
    /// if the change is not permitted or there is no room for it.
    pub(super) fn changed_xattrs(
        &self,
        ino: Ino,
        index: u8,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<Option<Vec<u8>>> {
        let inode = self.nodes().inode(ino)?;
        if inode.has_flag(flag::IMMUTABLE | flag::APPEND) {
            return Err(Error::NotPermitted);
        }
        let old = self.nodes().xattr_stream(&inode)?;
        let (room, had_node) = (xattr_room(&inode), inode.xattr_nid() != Nid::NULL);
        let inline_room = inode.inline_xattrs().len();
        drop(inode);
        let entries = xattr::entries(&old, Place::Xattr(ino))?.collect::<Result<Vec<Entry<'_>>>>()?;
        let is_it = |entry: &Entry<'_>| entry.index == index && entry.name == name;
        let same = entries.iter().find(|entry| is_it(entry));
        let added = value.map(|value| Entry { index, name, value });
        // A value that can never fit is refused first, as in Linux (`__f2fs_setxattr`).
        if value.is_some_and(|value| xattr::HEADER_BYTES + xattr::ENTRY_HEAD_BYTES + value.len() > room) {
            return Err(Error::AttributeTooLarge);
        }
        match (same, mode) {
            (Some(_), XattrMode::Create | XattrMode::CreateAndReplace) => return Err(Error::Exists),
            (None, XattrMode::Replace | XattrMode::CreateAndReplace) => return Err(Error::NoAttribute),
            _ if same.map(|entry| entry.value) == value && value.is_some() => return Ok(None),
            _ => {}
        }
        let kept = entries.iter().filter(|entry| !is_it(entry)).copied();
        let stream = xattr::build(kept.chain(added));
        if stream.len() > room {
            return Err(Error::AttributeTooLarge);
        }
        if stream.len() > inline_room && !had_node {
            self.segments().require_space(1)?;
            self.nodes().admit(ino, 1)?;
        }
        Ok(Some(stream))
    }

    /// Stores the stream of attributes: inline as far as it fits, and the rest in the xattr node.
    fn store_xattrs(&mut self, ino: Ino, stream: &[u8]) -> Result<()> {
        let inode = self.nodes().inode(ino)?;
        let (mut nid, kind) = (inode.xattr_nid(), inode.file_type());
        let inline_room = inode.inline_xattrs().len();
        drop(inode);
        let (first, rest) = stream.split_at(stream.len().min(inline_room));
        if rest.is_empty() && nid != Nid::NULL {
            self.nodes_mut().remove_node(nid)?;
            self.nodes_mut().inode_mut(ino)?.head_mut().xattr_nid.set(0);
            self.files.drop_blocks(ino, 1)?;
        } else if !rest.is_empty() {
            if nid == Nid::NULL {
                let _space = self.segments().reserve(1)?;
                nid = self.nodes_mut().add_child_node(ino, XATTR_NODE_OFFSET, kind)?;
                self.nodes_mut().inode_mut(ino)?.head_mut().xattr_nid.set(nid.0);
                self.files.add_blocks(ino, 1)?;
            }
            let payload = self.nodes_mut().node_mut(nid)?.payload_mut();
            payload[..rest.len()].copy_from_slice(rest);
            payload[rest.len()..].fill(0);
        }
        let now = self.disk().time();
        let inode = self.nodes_mut().inode_mut(ino)?;
        let area = inode.inline_xattrs_mut();
        area[..first.len()].copy_from_slice(first);
        area[first.len()..].fill(0);
        inode.set_ctime(now);
        Ok(())
    }

    /// Refuses flags that an inode cannot have. Returns the storage of its content if that changes.
    fn check_flags(&self, ino: Ino, flags: u32) -> Result<Option<Storage>> {
        let inode = self.nodes().inode(ino)?;
        self.files.check_compression_flags(&inode, flags)?;
        let changed = inode.head().flags.get() ^ flags;
        if changed & flag::CASEFOLD != 0 {
            let possible =
                self.disk().node_format().features.has(crate::format::superblock::Features::CASEFOLD)
                    && inode.is_directory();
            if !possible {
                return Err(Error::NotPermitted);
            }
            if !self.is_empty_dir(ino)? {
                return Err(Error::NotEmpty);
            }
            if flags & flag::CASEFOLD != 0 {
                self.check_folding(&inode)?;
            }
        }
        let storage = if flags & flag::COMPRESS != 0 { Storage::Compressed } else { Storage::Plain };
        Ok((changed & flag::COMPRESS != 0).then_some(storage))
    }
}

/// Maximum size of the attributes of an inode in bytes, header included. A word of zeroes after the last
/// attribute always fits (Linux, `MIN_OFFSET`).
fn xattr_room(inode: &NodeBlock) -> usize {
    inode.inline_xattrs().len() + inode.format().block_size.bytes()
        - crate::format::block_size::NODE_FOOTER_BYTES
        - size_of::<u32>()
}
