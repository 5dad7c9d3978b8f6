//! Creation of inodes.
//!
//! *Invariant*: each operation checks everything that may make it fail, space included, before it changes
//! anything.

use super::{Names, dir::Wanted, dir_write::check_writable, encryption::StoredName};
use crate::{
    Error, Result,
    files::Storage,
    format::{
        FileType, NAME_MAX,
        inode::{DeviceNumber, INLINE_XATTR_WORDS, advise, flag, inline},
        node::NodeBlock,
    },
    units::{Ino, Time},
};

/// Parameters of a new inode.
#[derive(Debug, Clone)]
pub struct NewNode {
    /// File type and permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for a device node.
    pub device: Option<DeviceNumber>,
    /// Timestamps; `None` for the current time.
    pub times: Option<Times>,
}

impl NewNode {
    /// Creates parameters for an inode with this mode, owned by root, with the current time.
    #[must_use]
    pub fn new(mode: u16) -> NewNode {
        NewNode { mode, uid: 0, gid: 0, device: None, times: None }
    }
}

/// The timestamps of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Creation, if the volume stores it.
    pub crtime: Time,
}

impl Times {
    /// Creates timestamps that are all `time`.
    #[must_use]
    pub fn all(time: Time) -> Times {
        Times { atime: time, ctime: time, mtime: time, crtime: time }
    }
}

impl Names {
    /// Creates an inode of any type under a name.
    pub(crate) fn create(&mut self, dir: Ino, name: &[u8], new: &NewNode) -> Result<Ino> {
        let kind = FileType::from_mode(new.mode)
            .ok_or_else(|| Error::Invalid(format!("mode {:#o} has no known file type", new.mode).into()))?;
        self.check_change(dir, name)?;
        if self.find_entry(dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        let parent = self.nodes().inode(dir)?;
        let stored = self.to_stored_name(&parent, name)?;
        let context = self.inherited_context(&parent, kind)?;
        let project = inherited_project(&parent);
        drop(parent);
        let _space = self.reserve_entry(dir, &stored, 2 + u64::from(context.is_some()))?;
        // A directory without inline entries starts with one block.
        let first = u64::from(kind == FileType::Directory && !self.options().inline_dentry);
        self.nodes().admit_new([new.uid, new.gid, project], first)?;
        let ino = Ino(self.nodes_mut().take_nid()?.0);
        let mut node = self.new_inode(ino, dir, name, kind, new)?;
        stored.record(&mut node, &*self.nodes().inode(dir)?);
        self.add_new(node, context.as_deref())?;
        let entered = match kind {
            FileType::Directory => self.fill_new_dir(ino, dir),
            _ => Ok(()),
        };
        if let Err(error) = entered.and_then(|()| self.enter(dir, &stored, ino, kind)) {
            self.evict(ino)?;
            return Err(error);
        }
        self.note_name(dir, name, Some(ino));
        let now = new.times.map_or_else(|| self.disk().time(), |times| times.mtime);
        let parent = self.nodes_mut().inode_mut(dir)?;
        if kind == FileType::Directory {
            let links = parent.head().links.get();
            parent.head_mut().links.set(links.saturating_add(1));
        }
        parent.set_mtime(now);
        parent.set_ctime(now);
        Ok(ino)
    }

    /// Creates a file without a name (`O_TMPFILE`) and holds it.
    pub(crate) fn create_nameless(&mut self, dir: Ino, new: &NewNode) -> Result<Ino> {
        let inode = self.directory(dir)?;
        if inode.has_flag(flag::IMMUTABLE) {
            return Err(Error::NotPermitted);
        }
        self.files.require_key(&inode)?;
        let context = self.inherited_context(&inode, FileType::Regular)?;
        let project = inherited_project(&inode);
        drop(inode);
        self.require_orphans_fit()?;
        let _space = self.segments().reserve(2 + u64::from(context.is_some()))?;
        self.nodes().admit_new([new.uid, new.gid, project], 0)?;
        let ino = Ino(self.nodes_mut().take_nid()?.0);
        let mode = FileType::Regular.mode_bits() | new.mode & 0o7777;
        let mut node = self.new_inode(ino, dir, b"", FileType::Regular, &NewNode { mode, ..new.clone() })?;
        node.head_mut().links.set(0);
        self.add_new(node, context.as_deref())?;
        self.orphans.insert(ino);
        self.hold(ino);
        Ok(ino)
    }

    /// Creates an inode with a given number and without a name, as the root directory and quota files need.
    pub(crate) fn make_inode_at(&mut self, ino: Ino, parent: Ino, new: &NewNode) -> Result<()> {
        let kind = FileType::from_mode(new.mode)
            .ok_or_else(|| Error::Invalid(format!("mode {:#o} has no known file type", new.mode).into()))?;
        if !self.nodes().nat_entry(ino.into())?.is_free() {
            return Err(Error::Exists);
        }
        let _space = self.segments().reserve(2)?;
        let mut node = self.blank_inode(ino, kind, new);
        node.head_mut().pino.set(parent.0);
        self.nodes_mut().add_node(node)?;
        if kind == FileType::Directory {
            self.fill_new_dir(ino, parent)?;
        }
        Ok(())
    }

    /// Enters a name for an inode created by [`make_inode_at`](Self::make_inode_at), such as lost+found.
    pub(crate) fn enter_inode(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.check_change(dir, name)?;
        if self.find_entry(dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        let stored = self.to_stored_name(&*self.nodes().inode(dir)?, name)?;
        self.enter_stored(dir, &stored, ino)
    }

    /// Enters a name in the form in which its directory stores it. An encrypted directory needs no key for that.
    pub(crate) fn enter_stored_name(&mut self, dir: Ino, name: &[u8], hash: u32, ino: Ino) -> Result<()> {
        let parent = self.directory(dir)?;
        check_writable(&parent)?;
        if !(1..=NAME_MAX).contains(&name.len()) {
            return Err(Error::Invalid("a stored name has 1 to 255 bytes".into()));
        }
        let found = self.search(&parent, &Wanted::Exact { hash, name: name.into() })?;
        drop(parent);
        if let Some(found) = found {
            return if found.ino == ino { Ok(()) } else { Err(Error::Exists) };
        }
        self.enter_stored(dir, &StoredName { bytes: name.to_vec(), hash }, ino)
    }

    fn enter_stored(&mut self, dir: Ino, stored: &StoredName, ino: Ino) -> Result<()> {
        self.check_policy(dir, ino)?;
        let _space = self.reserve_entry(dir, stored, 0)?;
        let kind = self.nodes().inode(ino)?.file_type();
        self.enter(dir, stored, ino, kind)?;
        let parent = self.nodes().inode(dir)?;
        stored.record(self.nodes_mut().inode_mut(ino)?, &parent);
        drop(parent);
        if kind == FileType::Directory {
            self.add_links(dir, 1)?;
        }
        Ok(())
    }

    /// Adds the inode block of a new inode, and its encryption context if it gets one. If the context cannot be stored, the
    /// inode is removed.
    pub(super) fn add_new(&mut self, mut node: NodeBlock, context: Option<&[u8]>) -> Result<()> {
        let ino = node.ino();
        let Some(context) = context else { return self.nodes_mut().add_node(node) };
        if node.file_type() == FileType::Regular {
            node.head_mut().inline &= !inline::DATA;
        }
        self.nodes_mut().add_node(node)?;
        if let Err(error) = self.store_context(ino, context) {
            self.evict(ino)?;
            return Err(error);
        }
        Ok(())
    }

    /// Creates the inode block of a new inode that is to be named `name` in `dir`. Its name is not recorded in it.
    pub(super) fn new_inode(
        &mut self,
        ino: Ino,
        dir: Ino,
        name: &[u8],
        kind: FileType,
        new: &NewNode,
    ) -> Result<NodeBlock> {
        let parent = self.nodes().inode(dir)?;
        let flags = Names::inherited_flags(&parent, kind);
        let storage = self.files.inherited_storage(&parent, kind, name);
        let project = inherited_project(&parent);
        drop(parent);
        let mut node = self.blank_inode(ino, kind, new);
        node.head_mut().flags.set(flags);
        node.set_project(project);
        node.set_last_name(dir, b"");
        match storage {
            Some(Storage::Compressed) if node.saved_blocks().is_some() => {
                node.head_mut().inline &= !inline::DATA;
                node.set_compression(Some(self.options().compression));
            }
            Some(Storage::Plain) => node.head_mut().flags.set(flags | flag::NOCOMPRESS),
            _ => {}
        }
        if kind == FileType::Regular {
            node.head_mut().advise |=
                temperature(&self.superblock().cold_extensions, &self.superblock().hot_extensions, name);
        }
        Ok(node)
    }

    /// Creates an inode block with all fields that do not depend on its directory and name.
    pub(super) fn blank_inode(&mut self, ino: Ino, kind: FileType, new: &NewNode) -> NodeBlock {
        let options = &self.options();
        let mut bits = 0;
        match kind {
            FileType::Regular | FileType::Symlink if options.inline_data => bits |= inline::DATA,
            // Linux refuses to mount a volume whose root directory has no blocks (`f2fs_fill_super`).
            FileType::Directory if options.inline_dentry && ino != self.superblock().root_ino => {
                bits |= inline::DENTRY;
            }
            _ => {}
        }
        let words = if options.inline_xattr { INLINE_XATTR_WORDS as u16 } else { 0 };
        if options.inline_xattr {
            bits |= inline::XATTR;
        }
        let mut node = NodeBlock::new_inode(self.disk().node_format(), ino, new.mode, bits, words);
        let times = new.times.unwrap_or_else(|| Times::all((self.options().clock)()));
        let generation = self.generation(ino);
        let head = node.head_mut();
        head.uid.set(new.uid);
        head.gid.set(new.gid);
        head.generation.set(generation);
        node.set_atime(times.atime);
        node.set_ctime(times.ctime);
        node.set_mtime(times.mtime);
        node.set_crtime(times.crtime);
        if let (Some(device), FileType::CharDevice | FileType::BlockDevice) = (new.device, kind) {
            node.set_device_number(device);
        }
        node
    }

    /// The generation number, which distinguishes an inode from earlier ones with the same number. It depends
    /// on the seed only, so that runs are reproducible.
    fn generation(&mut self, ino: Ino) -> u32 {
        let version = self.nodes().nat_entry(ino.into()).map_or(0, |entry| entry.version);
        let mut mixed = self.options().seed ^ u64::from(ino.0) << 8 ^ u64::from(version);
        // SplitMix64's finaliser.
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) as u32
    }
}

/// The project that a directory passes on to new entries.
pub(super) fn inherited_project(dir: &NodeBlock) -> u32 {
    if dir.has_flag(flag::PROJECT_INHERIT) { dir.project().unwrap_or(0) } else { 0 }
}

/// The temperature hint that a file's name gives (Linux, `set_file_temperature`).
fn temperature(cold: &[String], hot: &[String], name: &[u8]) -> u8 {
    let dots = dots(name);
    let has = |list: &[String]| list.iter().any(|extension| has_extension(name, &dots, extension.as_bytes()));
    if has(cold) {
        advise::COLD
    } else if has(hot) {
        advise::HOT
    } else {
        0
    }
}

/// Returns true if a name has an extension that begins with `extension`, in any case and at any dot but a
/// leading one: `a.jpg` and `a.JPEG` match `jp`, `a.mp3.part` matches `mp3`. `dots` are those of the name.
fn has_extension(name: &[u8], dots: &[usize], extension: &[u8]) -> bool {
    let follows = |at: &usize| {
        let end = at + 1 + extension.len();
        name.get(at + 1..end).is_some_and(|there| there.eq_ignore_ascii_case(extension))
    };
    extension == b"*" || dots.iter().any(follows)
}

/// The places of the dots in a name, without a leading one.
fn dots(name: &[u8]) -> Vec<usize> {
    (1..name.len()).filter(|at| name[*at] == b'.').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_found_as_linux_finds_them() {
        let has = |name: &str, extension: &str| {
            has_extension(name.as_bytes(), &dots(name.as_bytes()), extension.as_bytes())
        };
        assert!(has("a.jpg", "jp") && has("a.JPEG", "jp") && has("film.mp4.part", "mp"));
        assert!(!has(".jpg", "jp") && !has("jpg", "jp") && !has("a.png", "jp") && !has("a.jp", "jpg"));
        assert!(has("a.so", "so") && has("x", "*"));
        assert_eq!(temperature(&["mp".into()], &["db".into()], b"x.db"), advise::HOT);
        assert_eq!(temperature(&["mp".into()], &["db".into()], b"x.db.mp3"), advise::COLD);
        assert_eq!(temperature(&["mp".into()], &["db".into()], b"x"), 0);
    }
}
