//! The owner that a mount shows instead of the owners on the volume.
//!
//! *Invariants*: the kernel, and so every check of permissions, sees only the shown owner. The owners on the volume do
//! not change. A new inode has those of its directory on the volume.

use f2fs::{
    engine::{Engine, SetAttr, Stat},
    units::Ino,
};

use super::{Credentials, Result, to_errno};
use crate::Errno;

/// The owner and the group of all files on a mount. With `None`, each has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShownOwner {
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

impl ShownOwner {
    /// Returns the attributes of an inode as the mount shows them.
    pub(super) fn on(self, stat: Stat) -> Stat {
        Stat { uid: self.uid.unwrap_or(stat.uid), gid: self.gid.unwrap_or(stat.gid), ..stat }
    }

    /// Returns the owner and group of a new inode.
    pub(super) fn of_new(self, volume: &Engine, caller: Credentials, dir: Ino) -> Result<(u32, u32)> {
        if self == ShownOwner::default() {
            return Ok((caller.uid, caller.gid));
        }
        let dir = volume.stat(dir).map_err(to_errno)?;
        Ok((self.uid.map_or(caller.uid, |_| dir.uid), self.gid.map_or(caller.gid, |_| dir.gid)))
    }

    /// Returns a change of attributes without the shown owner. Another one is refused, as on file systems without
    /// owners (Linux, `fat_setattr`).
    pub(super) fn admit(self, set: SetAttr) -> Result<SetAttr> {
        let kept = |shown: Option<u32>, wanted: Option<u32>| match (shown, wanted) {
            (Some(shown), Some(wanted)) if shown != wanted => Err(Errno::PERM),
            (Some(_), _) => Ok(None),
            (None, wanted) => Ok(wanted),
        };
        Ok(SetAttr { uid: kept(self.uid, set.uid)?, gid: kept(self.gid, set.gid)?, ..set })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use block::MemoryDevice;
    use f2fs::engine::{NewNode, Options};

    use super::*;
    use crate::{Change, FileSystem, OpenFor, Settings, file_system::tests::format, ioctl::Request};

    const USER: Credentials = Credentials { uid: 1000, gid: 100, pid: 0 };

    /// Returns a mounted volume that shows everything as `USER`'s, with a directory of 7:8 and a set-user-id program of
    /// 0:0 in it; and the device.
    fn mounted() -> (FileSystem, Arc<MemoryDevice>, Ino, Ino) {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let mut volume = format(&device, "");
        let root = volume.superblock().root_ino;
        let mut create = |dir, name: &[u8], new| {
            volume.begin(f2fs::engine::Caller::ADMIN).create(dir, name, &new).unwrap()
        };
        let dir = create(root, b"dir", NewNode { uid: 7, gid: 8, ..NewNode::new(0o040_755) });
        let program = create(dir, b"program", NewNode::new(0o104_755));
        let owner = ShownOwner { uid: Some(USER.uid), gid: Some(USER.gid) };
        let settings = Settings { owner, ..Settings::default() };
        (FileSystem::new(volume, Weak::new(), settings), device, dir, program)
    }

    /// Returns the owner on the volume.
    fn stored(device: &Arc<MemoryDevice>, ino: Ino) -> (u32, u32) {
        let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
        let stat = volume.stat(ino).unwrap();
        (stat.uid, stat.gid)
    }

    #[test]
    fn every_answer_shows_the_owner_and_new_inodes_have_that_of_their_directory() {
        let (fs, device, dir, program) = mounted();
        let shown = |stat: &Stat| assert_eq!((stat.uid, stat.gid), (USER.uid, USER.gid));
        shown(&fs.stat(dir).unwrap());
        shown(&fs.lookup(dir, b"program").unwrap());
        shown(&fs.link(USER, program, dir, b"other").unwrap());
        fs.list_with_facts(dir, 0, |_| true, |_, stat| shown(stat.unwrap())).unwrap();
        let made = [
            fs.create(USER, dir, b"file", 0o100_644, 0, None).unwrap(),
            fs.symlink(USER, dir, b"symlink", b"file").unwrap(),
            fs.create_nameless(USER, dir, 0o100_644, 0, crate::OpenFor::Reading).unwrap(),
        ];
        made.iter().for_each(shown);
        fs.link(USER, made[2].ino, dir, b"named").unwrap();
        fs.unmount().unwrap();
        for stat in made {
            assert_eq!(stored(&device, stat.ino), (7, 8));
        }
        assert_eq!(stored(&device, program), (0, 0));
    }

    #[test]
    fn the_owner_may_change_modes_and_flags_and_not_the_owner() {
        let (fs, device, dir, program) = mounted();
        let change = |ino, set| fs.change(USER, ino, &Change { set, ..Change::default() });
        let mode = SetAttr { permissions: Some(0o2711), ..SetAttr::default() };
        assert_eq!(change(dir, mode).unwrap().mode & 0o7777, 0o2711, "the user is in the shown group");
        let nodump = Request::parse(0x4008_6602, &0x40u32.to_ne_bytes()).unwrap();
        fs.ioctl(USER, program, OpenFor::Writing, &nodump).unwrap();
        let owner = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
        for refused in [owner(Some(0), None), owner(None, Some(8)), owner(Some(USER.uid), Some(0))] {
            assert_eq!(change(program, refused).map(drop), Err(Errno::PERM));
        }
        assert_eq!(fs.stat(program).unwrap().mode & 0o7777, 0o4755);
        // As on other file systems, chown(2) clears the bit although nothing else changes.
        let same = change(program, owner(Some(USER.uid), Some(USER.gid))).unwrap();
        assert_eq!((same.uid, same.mode & 0o7777), (USER.uid, 0o755));
        fs.unmount().unwrap();
        assert_eq!(stored(&device, program), (0, 0));
    }
}
