//! Limits of users, groups and projects.

mod support;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use f2fs::{
    Error, Result,
    engine::{
        Caller, Engine, FileSize, NewNode, Options, QuotaLimits, RenameMode, SetAttr, SyncScope, XattrMode,
    },
    format::{checkpoint::Flags, inode::flag, quota::QuotaKind},
    units::{Ino, Time},
};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
const USER: u32 = 1000;
const DAY: i64 = 24 * 3600;

#[derive(Clone, Default)]
struct Clock(Arc<AtomicI64>);

fn open(path: &Path, clock: &Clock) -> Engine {
    let clock = clock.clone();
    let now = move || Time { seconds: 1_700_000_000 + clock.0.load(Ordering::Relaxed), nanoseconds: 0 };
    Engine::open(support::device(path), Options::new(now)).expect("the volume opens")
}

fn make(volume: &mut Engine, dir: Ino, name: &str, mode: u16) -> Result<Ino> {
    volume.begin(Caller::USER).create(
        dir,
        name.as_bytes(),
        &NewNode { uid: USER, gid: USER, ..NewNode::new(mode) },
    )
}

fn over(result: Result<()>) -> bool {
    matches!(result, Err(Error::Quota))
}

fn space(volume: &Engine, kind: QuotaKind, id: u32) -> (u64, u64) {
    let record = volume.quota_of(kind, id).unwrap();
    (record.space.get() / 4096, record.inodes.get())
}

fn hard(space_blocks: u64, inodes: u64) -> QuotaLimits {
    QuotaLimits { space_hard_kib: space_blocks * 4, inodes_hard: inodes, ..QuotaLimits::default() }
}

fn finish(mut volume: Engine, path: &Path) {
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(path);
}

#[test]
fn hard_limits_of_space_are_exact() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota"]);
    for kind in [QuotaKind::User, QuotaKind::Group] {
        let mut volume = open(&path, &Clock::default());
        volume.begin(Caller::USER).set_quota_limits(kind, USER, hard(1000, 0)).unwrap();
        let ino = make(&mut volume, ROOT, "file", FILE).unwrap();
        // 1000 blocks: 999 of data, and the node with the addresses past the inode's.
        assert!(over(volume.begin(Caller::USER).write(ino, 0, &vec![1; 1000 * 4096])));
        assert_eq!(volume.stat(ino).unwrap().size, 0, "nothing of it was done");
        for block in 0..999 {
            volume.begin(Caller::USER).write(ino, block * 4096, &[1; 4096]).unwrap();
        }
        assert!(over(volume.begin(Caller::USER).write(ino, 999 * 4096, b"x")));
        assert_eq!(space(&volume, kind, USER), (1000, 1));
        volume.begin(Caller::USER).write(ino, 5000, &[2; 100_000]).unwrap();
        assert!(over(volume.begin(Caller::USER).allocate_range(ino, 0, 2000 * 4096, FileSize::Stays)));
        assert!(over(volume.begin(Caller::USER).set_xattr(ino, b"user.large", &[3; 3000], XattrMode::Set)));
        volume.begin(Caller::USER).set_xattr(ino, b"user.small", b"3", XattrMode::Set).unwrap();
        // A small file needs no block.
        let small = make(&mut volume, ROOT, "small", FILE).unwrap();
        volume.begin(Caller::USER).write(small, 0, b"small").unwrap();
        assert!(over(volume.begin(Caller::USER).write(small, 4000, b"x")));
        assert!(over(
            volume
                .begin(Caller::USER)
                .symlink(
                    ROOT,
                    b"link",
                    &[b'x'; 4000],
                    &NewNode { uid: USER, gid: USER, ..NewNode::new(0o777) }
                )
                .map(drop)
        ));
        assert!(matches!(volume.lookup(ROOT, b"link"), Err(Error::NotFound)));
        // Freed space can be used again.
        volume.begin(Caller::USER).truncate(ino, 900 * 4096).unwrap();
        volume.begin(Caller::USER).write(small, 4000, b"x").unwrap();
        assert_eq!(space(&volume, kind, USER), (902, 2));
        // Other users may continue, and so may the administrator.
        let other = volume.begin(Caller::USER).create(ROOT, b"other", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::USER).write(other, 0, &vec![1; 2000 * 4096]).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 1500 * 4096]).unwrap();
        assert!(over(volume.begin(Caller::USER).write(ino, 1500 * 4096, b"x")));
        finish(volume, &path);

        // All usage and limits survive a remount and a power cut.
        let mut volume = open(&path, &Clock::default());
        assert!(over(volume.begin(Caller::USER).write(ino, 1500 * 4096, b"x")));
        volume.begin(Caller::USER).truncate(ino, 998 * 4096).unwrap();
        assert!(
            over(volume.begin(Caller::USER).write(ino, 998 * 4096, b"x")),
            "the small file has a block, too"
        );
        volume.begin(Caller::USER).unlink(ROOT, b"small").unwrap();
        volume.begin(Caller::USER).write(ino, 998 * 4096, &[1; 4096]).unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
        drop(volume);
        let mut volume = open(&path, &Clock::default());
        volume.begin(Caller::USER).unlink(ROOT, b"small").ok();
        assert!(over(volume.begin(Caller::USER).write(ino, 999 * 4096, b"x")));
        for name in ["file", "other"] {
            volume.begin(Caller::USER).unlink(ROOT, name.as_bytes()).unwrap();
        }
        assert_eq!(space(&volume, kind, USER), (0, 0));
        volume.begin(Caller::USER).set_quota_limits(kind, USER, QuotaLimits::default()).unwrap();
        finish(volume, &path);
    }
}

#[test]
fn inodes_are_limited_and_directories_charged_to_their_owners() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota"]);
    let mut volume = open(&path, &Clock::default());
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, USER, hard(0, 5)).unwrap();
    for n in 0..5 {
        make(&mut volume, ROOT, &format!("file{n}"), if n == 0 { DIR } else { FILE }).unwrap();
    }
    assert!(over(make(&mut volume, ROOT, "one more", FILE).map(drop)));
    assert!(over(make(&mut volume, ROOT, "one more", DIR).map(drop)));
    let dir = volume.lookup(ROOT, b"file0").unwrap();
    let other = volume.begin(Caller::USER).create(ROOT, b"other", &NewNode::new(FILE)).unwrap();
    // A change of the owner charges the new owner.
    let to = |uid| SetAttr { uid: Some(uid), ..SetAttr::default() };
    assert!(over(volume.begin(Caller::USER).set_attr(other, &to(USER))));
    assert_eq!(volume.stat(other).unwrap().uid, 0);
    volume.begin(Caller::USER).unlink(ROOT, b"file4").unwrap();
    volume.begin(Caller::USER).set_attr(other, &to(USER)).unwrap();
    assert_eq!(space(&volume, QuotaKind::User, USER), (0, 5));
    volume.begin(Caller::USER).set_attr(other, &to(0)).unwrap();

    // Names made by others in a directory take its owner's blocks. At some point there is no space, and all
    // names stay.
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, USER, hard(3, 0)).unwrap();
    let mut names = 0;
    let refused = loop {
        match volume.begin(Caller::USER).link(other, dir, format!("a longer name, number {names}").as_bytes())
        {
            Ok(()) => names += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Quota), "{refused}");
    assert!(names > 100, "{names}");
    let listed = volume.entries(dir, 0).unwrap().count();
    assert_eq!(listed, names + 2);
    assert_eq!(space(&volume, QuotaKind::User, USER).0, 3);
    finish(volume, &path);
}

#[test]
fn soft_limits_hold_after_a_week() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota"]);
    let clock = Clock::default();
    let mut volume = open(&path, &clock);
    let limits =
        QuotaLimits { space_soft_kib: 400, space_hard_kib: 800, inodes_soft: 3, ..QuotaLimits::default() };
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, USER, limits).unwrap();
    let ino = make(&mut volume, ROOT, "file", FILE).unwrap();
    volume.begin(Caller::USER).write(ino, 0, &[1; 100 * 4096]).unwrap();
    assert_eq!(volume.quota_of(QuotaKind::User, USER).unwrap().block_time.get(), 0);
    volume.begin(Caller::USER).write(ino, 100 * 4096, &[1; 10 * 4096]).unwrap();
    let until = volume.quota_of(QuotaKind::User, USER).unwrap().block_time.get();
    assert_eq!(until, 1_700_000_000 + 7 * DAY as u64);
    assert!(over(volume.begin(Caller::USER).write(ino, 110 * 4096, &[1; 100 * 4096])), "the hard limit");
    finish(volume, &path);

    clock.0.store(6 * DAY, Ordering::Relaxed);
    let mut volume = open(&path, &clock);
    volume.begin(Caller::USER).write(ino, 110 * 4096, &[1; 4096]).unwrap();
    clock.0.store(7 * DAY, Ordering::Relaxed);
    assert!(over(volume.begin(Caller::USER).write(ino, 111 * 4096, &[1; 4096])));
    volume.begin(Caller::USER).write(ino, 0, &[1; 4096]).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 111 * 4096, &[1; 4096]).unwrap();
    // Below the limit the grace time ends. It starts anew above the limit.
    volume.begin(Caller::USER).truncate(ino, 90 * 4096).unwrap();
    assert_eq!(volume.quota_of(QuotaKind::User, USER).unwrap().block_time.get(), 0);
    volume.begin(Caller::USER).write(ino, 90 * 4096, &[1; 20 * 4096]).unwrap();
    // The same for inodes.
    for n in 0..4 {
        make(&mut volume, ROOT, &format!("n{n}"), FILE).unwrap();
    }
    clock.0.store(15 * DAY, Ordering::Relaxed);
    assert!(over(make(&mut volume, ROOT, "late", FILE).map(drop)));
    volume.begin(Caller::USER).unlink(ROOT, b"n0").unwrap();
    volume.begin(Caller::USER).unlink(ROOT, b"n1").unwrap();
    make(&mut volume, ROOT, "late", FILE).unwrap();
    finish(volume, &path);
}

#[test]
fn projects_are_limited_inherited_and_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota"]);
    let mut volume = open(&path, &Clock::default());
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::Project, 7, hard(10, 0)).unwrap();
    let project = |volume: &mut Engine, name: &str, id: u32| {
        let dir = volume.begin(Caller::USER).create(ROOT, name.as_bytes(), &NewNode::new(DIR)).unwrap();
        let set = SetAttr { project: Some(id), flags: Some(flag::PROJECT_INHERIT), ..SetAttr::default() };
        volume.begin(Caller::USER).set_attr(dir, &set).unwrap();
        dir
    };
    let (seven, eight) = (project(&mut volume, "seven", 7), project(&mut volume, "eight", 8));
    let ino = make(&mut volume, seven, "file", FILE).unwrap();
    let sub = make(&mut volume, seven, "dir", DIR).unwrap();
    assert_eq!((volume.stat(ino).unwrap().project, volume.stat(sub).unwrap().project), (7, 7));
    volume.begin(Caller::USER).write(ino, 0, &[1; 10 * 4096]).unwrap();
    assert!(over(volume.begin(Caller::USER).write(ino, 10 * 4096, b"x")));
    let foreign = make(&mut volume, eight, "file", FILE).unwrap();
    volume.begin(Caller::USER).write(foreign, 0, &[1; 20 * 4096]).unwrap();
    assert!(over(
        volume.begin(Caller::USER).set_attr(foreign, &SetAttr { project: Some(7), ..SetAttr::default() })
    ));

    let other = |result: Result<()>| matches!(result, Err(Error::OtherProject));
    assert!(other(volume.begin(Caller::USER).link(foreign, seven, b"linked")));
    assert!(other(volume.begin(Caller::USER).rename(eight, b"file", seven, b"moved", RenameMode::Replace)));
    assert!(other(volume.begin(Caller::USER).rename(eight, b"file", seven, b"file", RenameMode::Exchange)));
    assert!(other(volume.begin(Caller::USER).rename(seven, b"dir", eight, b"dir", RenameMode::NoReplace)));
    // Moves out of a project and within it are always possible.
    volume.begin(Caller::USER).rename(seven, b"file", sub, b"inside", RenameMode::Replace).unwrap();
    volume.begin(Caller::USER).rename(eight, b"file", ROOT, b"outside", RenameMode::Replace).unwrap();
    volume.begin(Caller::USER).link(ino, ROOT, b"linked").unwrap();
    assert_eq!(space(&volume, QuotaKind::Project, 7), (10, 3));
    finish(volume, &path);

    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = open(&path, &Clock::default());
    let refused = volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, 1, hard(1, 1));
    assert!(matches!(refused, Err(Error::Unsupported(_))));
    let refused =
        volume.begin(Caller::USER).set_attr(ROOT, &SetAttr { project: Some(7), ..SetAttr::default() });
    assert!(matches!(refused, Err(Error::Unsupported(_))));
    finish(volume, &path);
}

#[test]
fn files_without_a_name_count_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota"]);
    let mut volume = open(&path, &Clock::default());
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, USER, hard(0, 1)).unwrap();
    let new = NewNode { uid: USER, gid: USER, ..NewNode::new(FILE) };
    let ino = volume.begin(Caller::USER).create_nameless(ROOT, &new).unwrap();
    assert!(over(volume.begin(Caller::USER).create_nameless(ROOT, &new).map(drop)));
    volume.begin(Caller::USER).release(ino).unwrap();
    volume.begin(Caller::USER).create_nameless(ROOT, &new).unwrap();
    finish(volume, &path);
}

/// If the inherited access list cannot be stored, a new file leaves no trace.
#[test]
fn a_file_whose_access_list_cannot_be_stored_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,quota"]);
    let options = Options { inline_xattr: false, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(support::device(&path), options).unwrap();
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, 5), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    volume.begin(Caller::ADMIN).set_xattr(ROOT, b"system.posix_acl_default", &list, XattrMode::Set).unwrap();
    volume.begin(Caller::ADMIN).set_quota_limits(QuotaKind::User, USER, hard(1, 0)).unwrap();
    let full = make(&mut volume, ROOT, "full", FILE).unwrap();
    volume.begin(Caller::ADMIN).write(full, 0, &[1; 4096]).unwrap();
    let inodes = volume.counters().valid_inodes;
    let new = |mode| NewNode { uid: USER, gid: USER, ..NewNode::new(mode) };
    assert!(over(volume.begin(Caller::USER).create_for(ROOT, b"file", &new(FILE), 0).map(drop)));
    assert!(over(volume.begin(Caller::USER).create_for(ROOT, b"dir", &new(DIR), 0).map(drop)));
    assert!(over(volume.begin(Caller::USER).create_nameless_for(ROOT, &new(FILE), 0).map(drop)));
    for name in [&b"file"[..], b"dir"] {
        assert!(matches!(volume.lookup(ROOT, name), Err(Error::NotFound)));
    }
    assert_eq!((volume.counters().valid_inodes, volume.orphans().len()), (inodes, 0));
    volume.begin(Caller::ADMIN).create_nameless_for(ROOT, &new(FILE), 0).unwrap();
    finish(volume, &path);
}

/// A call changes everything or nothing: if the owner change is refused, permissions, list and flags stay,
/// too.
#[test]
fn a_refused_owner_changes_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota,compression"]);
    let mut volume = open(&path, &Clock::default());
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, USER, hard(0, 1)).unwrap();
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::Project, 7, hard(0, 1)).unwrap();
    let of = |project| SetAttr { project: Some(project), ..SetAttr::default() };
    let taken = make(&mut volume, ROOT, "taken", FILE).unwrap();
    volume.begin(Caller::USER).set_attr(taken, &of(7)).unwrap();
    let ino = volume.begin(Caller::USER).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 7, 5), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    volume.begin(Caller::USER).set_xattr(ino, b"system.posix_acl_access", &list, XattrMode::Set).unwrap();
    let before = volume.stat(ino).unwrap();
    let refused = [
        SetAttr { uid: Some(USER), permissions: Some(0o600), ..SetAttr::default() },
        SetAttr { uid: Some(USER), permissions: Some(0o600), gid: Some(5), ..SetAttr::default() },
        SetAttr { flags: Some(flag::COMPRESS | flag::NODUMP), ..of(7) },
        SetAttr { flags: Some(flag::COMPRESS), uid: Some(USER), ..SetAttr::default() },
    ];
    for set in refused {
        assert!(over(volume.begin(Caller::USER).set_attr(ino, &set)), "{set:?}");
        assert_eq!(volume.stat(ino).unwrap(), before, "{set:?}");
        assert_eq!(volume.get_xattr(ino, b"system.posix_acl_access").unwrap(), list, "{set:?}");
    }
    volume.begin(Caller::USER).unlink(ROOT, b"taken").unwrap();
    let set = SetAttr { uid: Some(USER), flags: Some(flag::COMPRESS), permissions: Some(0o600), ..of(7) };
    volume.begin(Caller::USER).set_attr(ino, &set).unwrap();
    let stat = volume.stat(ino).unwrap();
    assert_eq!((stat.uid, stat.project, stat.flags), (USER, 7, flag::COMPRESS));
    assert!(stat.compression.is_some());
    assert!(volume.get_xattr(ino, b"system.posix_acl_access").unwrap() != list);
    finish(volume, &path);

    // A project that the volume cannot store changes nothing else either.
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,compression"]);
    let mut volume = open(&path, &Clock::default());
    let ino = volume.begin(Caller::USER).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let before = volume.stat(ino).unwrap();
    let refused = volume.begin(Caller::USER).set_attr(ino, &SetAttr { flags: Some(flag::COMPRESS), ..of(7) });
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    assert_eq!(volume.stat(ino).unwrap(), before);
    finish(volume, &path);
}

/// A user above lowered limits may still rename a file over another and leave a white-out: in the place of
/// the old name, even if it is the only entry of its block.
#[test]
fn a_rename_that_leaves_a_file_is_done_as_a_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota"]);
    let mut volume = open(&path, &Clock::default());
    let dir = make(&mut volume, ROOT, "dir", DIR).unwrap();
    // Two blocks are full of names, and two have a single name each, in the first blocks of the next two
    // buckets.
    for n in 0..1200 {
        make(&mut volume, dir, &format!("name{n}"), FILE).unwrap();
    }
    let mut alone = std::collections::BTreeMap::new();
    for n in 0..1200 {
        let name = format!("name{n}");
        let block = volume.find_entry(dir, name.as_bytes()).unwrap().unwrap().block;
        match block {
            0 | 1 => {}
            2 | 4 if !alone.contains_key(&block) => drop(alone.insert(block, name)),
            _ => volume.begin(Caller::USER).unlink(dir, name.as_bytes()).unwrap(),
        }
    }
    volume.begin(Caller::USER).create(ROOT, b"target", &NewNode::new(FILE)).unwrap();
    let limits = hard(1, 0);
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, USER, limits).unwrap();
    assert!(space(&volume, QuotaKind::User, USER).0 > 1);
    let white_out = NewNode { uid: USER, gid: USER, ..NewNode::new(0o020_000) };
    for (to, mode) in [(&b"target"[..], RenameMode::Replace), (b"target2", RenameMode::NoReplace)] {
        let (_, name) = alone.pop_first().unwrap();
        let ino = volume.lookup(dir, name.as_bytes()).unwrap();
        let inodes = volume.counters().valid_inodes;
        volume
            .begin(Caller::USER)
            .rename_leaving((dir, name.as_bytes()), (ROOT, to), mode, &white_out)
            .unwrap();
        assert_eq!(volume.lookup(ROOT, to).unwrap(), ino);
        let left = volume.lookup(dir, name.as_bytes()).unwrap();
        assert_eq!(volume.stat(left).unwrap().mode, 0o020_000);
        let replaced = u32::from(mode == RenameMode::Replace);
        assert_eq!(volume.counters().valid_inodes, inodes + 1 - replaced);
    }
    // With a limit of inodes, one more inode is refused, and no name moves.
    volume.begin(Caller::USER).set_quota_limits(QuotaKind::User, USER, hard(0, 1)).unwrap();
    let name = "name0";
    let before = (volume.lookup(dir, name.as_bytes()).unwrap(), volume.counters());
    let refused = volume.begin(Caller::USER).rename_leaving(
        (dir, name.as_bytes()),
        (ROOT, b"more"),
        RenameMode::Replace,
        &white_out,
    );
    assert!(over(refused));
    assert_eq!((volume.lookup(dir, name.as_bytes()).unwrap(), volume.counters()), before);
    assert!(matches!(volume.lookup(ROOT, b"more"), Err(Error::NotFound)));
    finish(volume, &path);
}

/// Inodes are changed again after they were written, and removed before and after that. Checkpoints, fsyncs and power cuts
/// come in between.
#[test]
fn usage_stays_exact_while_changed_inodes_leave_memory() {
    const FILES: u64 = 120;
    const USERS: u64 = 3;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota"]);
    let open_small = || {
        let options = Options { cache_bytes: 128 << 10, ..Options::new(|| support::NOW) };
        Engine::open(support::device(&path), options).unwrap()
    };
    let user = |n: u64| USER + (n % USERS) as u32;
    let name = |n: u64| format!("file{n}").into_bytes();
    let mut volume = open_small();
    let mut rng = block::Rng::new(7);
    for round in 0..8 {
        for step in 0..2 * FILES {
            let n = rng.below(FILES);
            let Ok(ino) = volume.lookup(ROOT, &name(n)) else {
                let new = NewNode { uid: user(n), gid: user(n + 1), ..NewNode::new(FILE) };
                volume.begin(Caller::USER).create(ROOT, &name(n), &new).unwrap();
                continue;
            };
            match rng.below(8) {
                0 => volume.begin(Caller::USER).unlink(ROOT, &name(n)).unwrap(),
                1 => {
                    let to = SetAttr { uid: Some(user(rng.below(USERS))), ..SetAttr::default() };
                    volume.begin(Caller::ADMIN).set_attr(ino, &to).unwrap();
                }
                2 => volume.begin(Caller::USER).truncate(ino, rng.below(64 << 10)).unwrap(),
                3 => volume.fsync(ino, SyncScope::Everything).unwrap(),
                4 if step % 4 == 0 => volume.checkpoint().unwrap(),
                _ => {
                    let bytes = vec![1; 1 + rng.below(32 << 10) as usize];
                    volume.begin(Caller::USER).write(ino, rng.below(32 << 10), &bytes).unwrap();
                }
            }
        }
        if round % 2 == 1 {
            // A power cut.
            drop(volume);
            volume = open_small();
        }
        let mut expected = [(0, 0); USERS as usize];
        for ino in (0..FILES).filter_map(|n| volume.lookup(ROOT, &name(n)).ok()) {
            let inode = volume.inode(ino).unwrap();
            let used = &mut expected[(inode.head().uid.get() - USER) as usize];
            *used = (used.0 + inode.head().blocks.get() - 1, used.1 + 1);
        }
        let found = [0, 1, 2].map(|n| space(&volume, QuotaKind::User, USER + n));
        assert_eq!(found, expected, "round {round}");
        volume.checkpoint().unwrap();
        assert!(!volume.last_checkpoint().flags.has(Flags::QUOTA_NEED_FSCK));
    }
    finish(volume, &path);
}

/// A full volume may have no space for the records of new ids. The quota files then stay as they are, and a checkpoint
/// after space is freed writes the changes.
#[test]
fn quota_files_without_space_for_new_records_stay_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 100 << 20, &["-O", "extra_attr,project_quota,quota"]);
    let mut volume = open(&path, &Clock::default());
    let limited = 0..5;
    for id in limited.clone() {
        volume.begin(Caller::ADMIN).set_quota_limits(QuotaKind::User, 5000 + id, hard(1000, 0)).unwrap();
    }
    let files: Vec<Ino> = (0..1500)
        .map(|n| make(&mut volume, ROOT, &format!("file{n}"), FILE).expect("there is space"))
        .collect();
    let fill = make(&mut volume, ROOT, "fill", FILE).unwrap();
    volume.checkpoint().unwrap();
    let mut end = 0;
    for step in [1 << 20, 4096] {
        while volume.begin(Caller::ADMIN).write(fill, end, &vec![1; step]).is_ok() {
            end += step as u64;
        }
    }
    for (n, ino) in (0..).zip(&files) {
        let attr = SetAttr { uid: Some(100_000 + 777 * n), gid: Some(USER + n % 3), ..SetAttr::default() };
        volume.begin(Caller::ADMIN).set_attr(*ino, &attr).unwrap();
    }
    volume.checkpoint().unwrap();
    assert!(volume.last_checkpoint().flags.has(Flags::QUOTA_NEED_FSCK), "the file lacks the new ids");
    let limits = |volume: &Engine| {
        let records = volume.quota_records(QuotaKind::User).unwrap();
        records.iter().filter(|located| located.record.block_hard_limit.get() == 4000).count()
    };
    assert_eq!(limits(&support::open_read_only(&path)), limited.len(), "the file is as it was");
    assert_eq!(space(&volume, QuotaKind::User, 100_777), (0, 1), "usage is exact all the time");

    volume.begin(Caller::ADMIN).truncate(fill, 0).unwrap();
    volume.checkpoint().unwrap();
    assert!(!volume.last_checkpoint().flags.has(Flags::QUOTA_NEED_FSCK), "the file has the new ids");
    assert_eq!((limits(&volume), space(&volume, QuotaKind::User, 100_777)), (limited.len(), (0, 1)));
    finish(volume, &path);
}
