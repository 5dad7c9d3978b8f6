//! Permission rules that the kernel leaves to the file system, entirely or in some versions.
//!
//! The kernel itself clears set-group-id bits when permissions change (Linux, `setattr_prepare`), and since
//! Linux 6.0 when an inode is created (`mode_strip_sgid`). Repeating that here changes nothing.

use f2fs::{
    engine::{Engine, SET_GID, Stat},
    format::{
        FileType,
        acl::{Acl, AclEntry, Who},
    },
};

use super::{Credentials, FileSystem, Result, to_errno, xattrs::ACL_ACCESS};
use crate::{Errno, credentials::Capability};

const GROUP_EXECUTE: u16 = 0o010;

/// Returns the mode of a new inode. In a set-group-id directory, only members of its group can create an
/// executable with the set-group-id bit.
pub fn mode_of_new(caller: Credentials, mode: u16, dir: impl FnOnce() -> Result<Stat>) -> Result<u16> {
    let both = SET_GID | GROUP_EXECUTE;
    if mode & both != both || FileType::from_mode(mode) == Some(FileType::Directory) {
        return Ok(mode);
    }
    let dir = dir()?;
    let loses = dir.mode & SET_GID != 0 && !caller.is_in(dir.gid);
    Ok(if loses { mode & !SET_GID } else { mode })
}

/// Returns the permissions that a caller may give to an inode of group `gid`.
pub fn permissions_of(caller: Credentials, gid: u32, permissions: u16) -> u16 {
    let loses = permissions & SET_GID != 0 && caller.is_outside(gid);
    if loses { permissions & !SET_GID } else { permissions }
}

impl FileSystem {
    /// Returns true if a caller may write to an inode, by the rules by which the kernel opens it for writing: the mode, the
    /// access ACL, and the capability that overrides both.
    pub(super) fn may_write(&self, volume: &Engine, caller: Credentials, stat: &Stat) -> Result<bool> {
        let acl = match volume.get_xattr(stat.ino, ACL_ACCESS).map_err(to_errno) {
            Ok(bytes) => Some(Acl::from_system(&bytes).map_err(to_errno)?),
            Err(Errno::NODATA) => None,
            Err(errno) => return Err(errno),
        };
        Ok(lets_write(caller, stat, acl.as_ref()) || caller.has(Capability::DacOverride))
    }
}

/// Returns true if the mode or the access ACL of an inode lets a caller write to it (Linux, `acl_permission_check` and
/// `posix_acl_permission`). The first class that the caller is in decides; of several groups one that permits it is enough.
fn lets_write(caller: Credentials, stat: &Stat, acl: Option<&Acl>) -> bool {
    const WRITE: u16 = 2;
    let [owner, group, other] = [6, 3, 0].map(|shift| stat.mode >> shift & WRITE != 0);
    if caller.uid == stat.uid {
        return owner;
    }
    // The group bits of a mode with an ACL are its mask. Without any of them, the ACL grants nothing.
    let Some(acl) = acl.filter(|_| stat.mode & 0o070 != 0) else {
        return if caller.is_member(stat.gid) { group } else { other };
    };
    let mask =
        acl.entries.iter().find(|entry| entry.who == Who::Mask).map_or(WRITE, |entry| entry.permissions);
    let permits = |entry: &&AclEntry| entry.permissions & mask & WRITE != 0;
    if let Some(entry) = acl.entries.iter().find(|entry| entry.who == Who::User(caller.uid)) {
        return permits(&entry);
    }
    let of_caller = |entry: &&AclEntry| match entry.who {
        Who::OwningGroup => caller.is_member(stat.gid),
        Who::Group(gid) => caller.is_member(gid),
        _ => false,
    };
    let mut groups = acl.entries.iter().filter(of_caller).peekable();
    match groups.peek() {
        Some(_) => groups.any(|entry| permits(&entry)),
        None => other,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        process::{Child, Command, Stdio},
        sync::Arc,
    };

    use block::MemoryDevice;
    use f2fs::{
        engine::{NewNode, SetAttr},
        units::Ino,
    };

    use super::*;
    use crate::{
        OpenFor,
        file_system::{
            Change,
            tests::{format, mounted},
        },
        ioctl::Request,
    };

    /// A process with other credentials than ours.
    struct Process(Child, Credentials);

    impl Process {
        /// Starts the process. Returns `None` if the test lacks permission or setpriv is missing.
        fn start(uid: u32, gid: u32, arguments: &[&str]) -> Option<Process> {
            let child = Command::new("setpriv")
                .args([format!("--reuid={uid}"), format!("--regid={gid}")])
                .args(arguments)
                .args(["--", "cat"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn();
            let Ok(mut child) = child else {
                eprintln!("skipped: setpriv (util-linux) is not installed");
                return None;
            };
            // Once `cat` answers, the process has its credentials.
            let _ = child.stdin.as_mut().expect("it is piped").write_all(b"x");
            let answered = child.stdout.as_mut().expect("it is piped").read_exact(&mut [0]).is_ok();
            if !answered {
                let _ = child.wait();
                eprintln!("skipped: only root can give a process other credentials");
                return None;
            }
            let caller = Credentials { uid, gid, pid: child.id() };
            Some(Process(child, caller))
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    const GROUP: u32 = 3000;
    const NONE: [&str; 3] = ["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];

    /// Returns a mounted volume whose root directory belongs to [`GROUP`] and has the set-group-id bit.
    fn with_shared_root() -> (FileSystem, Ino) {
        let mut volume = format(&Arc::new(MemoryDevice::new(64 << 20)), "");
        let root = volume.superblock().root_ino;
        let set = SetAttr { permissions: Some(0o2777), gid: Some(GROUP), ..SetAttr::default() };
        volume.begin(f2fs::engine::Caller::ADMIN).set_attr(root, &set).unwrap();
        (mounted(volume), root)
    }

    fn permissions(mode: u16) -> u16 {
        mode & 0o7777
    }

    #[test]
    fn a_creator_outside_the_group_of_a_set_group_id_directory_makes_no_program_of_that_group() {
        let (fs, root) = with_shared_root();
        let outside = Credentials { uid: 1000, gid: 1000, pid: 0 };
        let made = |caller, name: &[u8], mode| fs.create(caller, root, name, mode, 0, None).unwrap();
        let program = made(outside, b"program", 0o102_755);
        assert_eq!((permissions(program.mode), program.gid), (0o755, GROUP));
        let nameless = fs.create_nameless(outside, root, 0o102_775, 0, OpenFor::Reading).unwrap();
        assert_eq!(permissions(nameless.mode), 0o775);
        // The umask clears the execute bit afterwards.
        let masked = fs.create(outside, root, b"masked", 0o102_755, 0o077, None).unwrap();
        assert_eq!(permissions(masked.mode), 0o700);
        assert_eq!(
            permissions(made(outside, b"data", 0o102_745).mode),
            0o2745,
            "the group cannot execute it"
        );
        assert_eq!(permissions(made(outside, b"dir", 0o040_755).mode), 0o2755, "directories inherit the bit");
        let member = Credentials { gid: GROUP, ..outside };
        assert_eq!(permissions(made(member, b"member", 0o102_755).mode), 0o2755);
        let root_user = Credentials { uid: 0, gid: 0, pid: 0 };
        assert_eq!(permissions(made(root_user, b"root", 0o102_755).mode), 0o2755);
        fs.unmount().unwrap();
    }

    #[test]
    fn the_first_class_of_a_caller_decides_whether_it_may_write() {
        let mut volume = format(&Arc::new(MemoryDevice::new(64 << 20)), "");
        let root = volume.superblock().root_ino;
        let new = NewNode { uid: 1000, gid: 100, ..NewNode::new(0o100_000) };
        let ino = volume.begin(f2fs::engine::Caller::ADMIN).create(root, b"file", &new).unwrap();
        let fs = mounted(volume);
        let set_mode = |mode| {
            let set = SetAttr { permissions: Some(mode), ..SetAttr::default() };
            fs.change(Credentials { uid: 0, gid: 0, pid: 0 }, ino, &Change { set, ..Change::default() })
                .unwrap();
        };
        let may = |uid, gid| {
            let volume = fs.read_lock().unwrap();
            let stat = fs.stat_in(&volume, ino).unwrap();
            fs.may_write(&volume, Credentials { uid, gid, pid: 0 }, &stat).unwrap()
        };
        // The owner, a member of the group, another user, and root.
        let of_mode = || [may(1000, 7), may(7, 100), may(7, 7), may(0, 0)];
        for (mode, wanted) in [
            (0o200, [true, false, false, true]),
            (0o020, [false, true, false, true]),
            (0o002, [false, false, true, true]),
            (0o444, [false, false, false, true]),
        ] {
            set_mode(mode);
            assert_eq!(of_mode(), wanted, "{mode:o}");
        }
        let set_acl = |text: &str| {
            let acl = Acl::from_text(text).unwrap().to_system();
            let mut volume = fs.write_lock().unwrap();
            volume.begin().set_xattr(ino, ACL_ACCESS, &acl, Default::default()).unwrap();
        };
        // Users 8 and 9, groups 200 and 300.
        set_acl("u::r,u:8:rw,u:9:r,g::r,g:200:rw,g:300:r,m::rw,o::rw");
        let of_acl =
            || [may(8, 7), may(9, 200), may(7, 200), may(7, 300), may(7, 100), may(7, 7), may(1000, 200)];
        assert_eq!(of_acl(), [true, false, true, false, false, true, false]);
        set_acl("u::r,u:8:rw,u:9:r,g::r,g:200:rw,g:300:r,m::r,o::-");
        assert_eq!(of_acl(), [false; 7], "the mask");
        fs.unmount().unwrap();
    }

    #[test]
    fn further_groups_and_capabilities_of_the_process_count() {
        let groups = format!("--groups={GROUP}");
        let Some(member) = Process::start(1000, 1000, &[&groups]) else { return };
        let Some(outside) = Process::start(1000, 1000, &NONE) else { return };
        let Some(bare_root) = Process::start(0, 0, &NONE) else { return };
        let Some(root_user) = Process::start(0, 0, &["--clear-groups"]) else { return };
        let (fs, root) = with_shared_root();
        let cases = [(&member, 0o2755), (&outside, 0o755), (&bare_root, 0o755), (&root_user, 0o2755)];
        for (n, (Process(_, caller), wanted)) in cases.into_iter().enumerate() {
            let name = format!("file{n}").into_bytes();
            let made = fs.create(*caller, root, &name, 0o102_755, 0, None).unwrap();
            assert_eq!(permissions(made.mode), wanted, "made by {caller:?}");
            let set = SetAttr { permissions: Some(0o2711), ..SetAttr::default() };
            let changed = fs.change(*caller, made.ino, &Change { set, ..Change::default() }).unwrap();
            assert_eq!(permissions(changed.mode) & SET_GID, wanted & SET_GID, "changed by {caller:?}");
        }
        fs.unmount().unwrap();
    }

    #[test]
    fn root_without_capabilities_is_a_user_like_any_other() {
        let Some(bare_root) = Process::start(0, 0, &NONE) else { return };
        let Some(root_user) = Process::start(0, 0, &["--clear-groups"]) else { return };
        let mut volume = format(&Arc::new(MemoryDevice::new(64 << 20)), "");
        let root = volume.superblock().root_ino;
        let new = NewNode { uid: 1000, gid: 1000, ..NewNode::new(0o100_644) };
        let ino = volume.begin(f2fs::engine::Caller::ADMIN).create(root, b"file", &new).unwrap();
        volume
            .begin(f2fs::engine::Caller::ADMIN)
            .set_xattr(ino, b"trusted.note", b"x", Default::default())
            .unwrap();
        let fs = mounted(volume);
        let (Process(_, bare), Process(_, full)) = (&bare_root, &root_user);
        let set_flags = |caller: &Credentials, flags: u32| {
            fs.ioctl(
                *caller,
                ino,
                OpenFor::Writing,
                &Request::parse(0x4008_6602, &flags.to_ne_bytes()).unwrap(),
            )
        };
        let (nodump, immutable) = (0x40, 0x10);
        assert_eq!(set_flags(bare, nodump), Err(Errno::PERM), "it does not own the file");
        set_flags(full, nodump | immutable).unwrap();
        assert_eq!(set_flags(bare, nodump), Err(Errno::PERM));
        set_flags(full, 0).unwrap();
        assert_eq!(fs.list_xattrs(*bare, ino).unwrap(), b"");
        assert_eq!(fs.list_xattrs(*full, ino).unwrap(), b"trusted.note\0");
        let label = Request::parse(0x4100_9432, &[0; 256]).unwrap();
        assert_eq!(fs.ioctl(*bare, root, OpenFor::Reading, &label), Err(Errno::PERM));
        fs.ioctl(*full, root, OpenFor::Reading, &label).unwrap();
        fs.unmount().unwrap();
    }

    #[test]
    fn limits_of_quota_hold_for_root_without_capabilities() {
        use f2fs::{engine::QuotaLimits, format::quota::QuotaKind};
        let Some(bare_root) = Process::start(0, 0, &NONE) else { return };
        let Some(root_user) = Process::start(0, 0, &["--clear-groups"]) else { return };
        let mut volume = format(&Arc::new(MemoryDevice::new(64 << 20)), "extra_attr,quota");
        let root = volume.superblock().root_ino;
        let used = volume.quota_of(QuotaKind::User, 0).unwrap().inodes.get();
        let limits = QuotaLimits { inodes_hard: used, ..QuotaLimits::default() };
        volume.begin(f2fs::engine::Caller::ADMIN).set_quota_limits(QuotaKind::User, 0, limits).unwrap();
        let fs = mounted(volume);
        let create =
            |Process(_, caller): &Process| fs.create(*caller, root, b"file", 0o100_644, 0, None).map(drop);
        assert_eq!(create(&bare_root), Err(Errno::DQUOT));
        // In a container, root may lack the capability as well.
        let may_exceed = root_user.1.has(Capability::SysResource);
        let wanted = if may_exceed { Ok(()) } else { Err(Errno::DQUOT) };
        assert_eq!(create(&root_user), wanted);
        fs.unmount().unwrap();
    }
}
