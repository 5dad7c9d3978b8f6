use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

use rustix::fs::XattrFlags;

use super::*;

#[test]
fn an_entry_that_took_the_name_of_a_new_node_is_not_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (canary, out) = (dir.path().join("canary"), dir.path().join("out"));
    host::mknodat(host::CWD, &canary, FileType::Fifo, Mode::RUSR, 0).expect("a fifo");
    let mut sink = DirSink::new(&out, Owners::Caller).expect("a directory");
    fs::hard_link(&canary, out.join("link")).expect("a second name");
    symlink(&canary, out.join("symlink")).expect("a link");
    fs::File::create(out.join("file")).expect("a file");
    for name in ["link", "symlink", "file"] {
        let meta = Metadata { permissions: 0o777, ..Metadata::default() };
        let entry = Entry { path: name.into(), kind: Kind::Fifo, meta };
        let error = sink.finish_node(name.as_bytes(), &entry, FileType::Fifo, 0).expect_err("another entry");
        let Error::Host { source, .. } = error else { panic!("{name}: {error}") };
        assert_eq!(Errno::from_io_error(&source), Some(Errno::STALE), "{name}");
    }
    assert_eq!(fs::metadata(&canary).expect("it exists").mode() & 0o7777, 0o400);
}

/// Owner 2^32 - 1 means no change to chown(2): the program stayed root's, with its set-user-id bit.
#[test]
fn an_owner_that_chown_takes_for_no_change_is_a_loss_and_costs_the_set_id_bits() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut sink = DirSink::new(dir.path(), Owners::Entry).expect("a directory");
    let empty = || Kind::File { size: 0, data: None };
    let entries =
        [("user", empty(), u32::MAX, 0), ("group", empty(), 0, u32::MAX), ("fifo", Kind::Fifo, u32::MAX, 0)];
    let names = entries.each_ref().map(|entry| entry.0);
    for (name, kind, uid, gid) in entries {
        let meta = Metadata { permissions: 0o6755, uid, gid, ..Metadata::default() };
        sink.entry(&Entry { path: name.into(), kind, meta }).expect("an entry");
    }
    sink.finish().expect("their metadata");
    let losses: Vec<String> = sink.losses().iter().map(|loss| loss.error.to_string()).collect();
    for name in names {
        let mode = fs::metadata(dir.path().join(name)).expect("it exists").mode();
        assert_eq!(mode & 0o7777, 0o755, "{name}");
        assert!(losses.iter().any(|loss| loss.contains(name) && loss.contains("its owner")), "{losses:?}");
    }
}

/// Entry of an ACL that lets the user 4711 read and write, as xattr(7) has it.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 6, 4711), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 5, u32::MAX)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// ACLs of the destination let others read private files of the volume.
#[test]
fn entries_get_no_acl_of_the_destination() {
    let root = tempfile::tempdir().expect("a directory");
    let dir = root.path().join("out");
    fs::create_dir(&dir).expect("a new directory");
    const DEFAULT: &str = "system.posix_acl_default";
    const ACCESS: &str = "system.posix_acl_access";
    if host::setxattr(&dir, DEFAULT, &acl(), XattrFlags::empty()).is_err() {
        return eprintln!("skipped: the file system of temporary files has no ACLs");
    }
    for merged in ["merged", "merged/below"] {
        fs::create_dir(dir.join(merged)).expect("a new directory");
    }
    fs::write(dir.join("old"), "old").expect("a new file");
    let has =
        |name: &str, attribute: &str| host::getxattr(dir.join(name), attribute, &mut [0_u8; 512]).is_ok();
    assert!(has("merged/below", DEFAULT) && has("old", ACCESS), "the destination has none");
    let mut sink = DirSink::new(&dir, Owners::Caller).expect("a directory").overwriting();
    let file = || Kind::File { size: 0, data: None };
    let with = |permissions, xattrs: &[&str]| {
        let xattr = |name: &&str| crate::Xattr { name: name.as_bytes().into(), value: acl() };
        Metadata { permissions, xattrs: xattrs.iter().map(xattr).collect(), ..Metadata::default() }
    };
    let entries = [
        ("dir", Kind::Directory, with(0o750, &[])),
        ("dir/file", file(), with(0o640, &[])),
        ("fifo", Kind::Fifo, with(0o640, &[])),
        ("kept", Kind::Directory, with(0o755, &[DEFAULT])),
        ("kept/file", file(), with(0o640, &[])),
        ("link", Kind::Symlink { target: b"old".to_vec() }, with(0o777, &[])),
        ("merged", Kind::Directory, with(0o750, &[])),
        ("merged/below", Kind::Directory, with(0o750, &[])),
        ("merged/below/file", file(), with(0o640, &[])),
        ("old", file(), with(0o640, &[])),
        ("own", file(), with(0o675, &[ACCESS])),
    ];
    let names = entries.each_ref().map(|(name, _, meta)| (*name, meta.permissions));
    for (name, kind, meta) in entries {
        sink.entry(&Entry { path: name.into(), kind, meta }).expect("an entry");
    }
    sink.finish().expect("their metadata");
    assert_eq!(sink.losses().len(), 0);
    for (name, permissions) in names {
        assert_eq!((has(name, DEFAULT), has(name, ACCESS)), (name == "kept", name == "own"), "{name}");
        let mode = fs::symlink_metadata(dir.join(name)).expect("it exists").mode();
        assert_eq!(mode & 0o7777, u32::from(permissions), "{name}");
    }
    // The directory itself is no entry here.
    assert!(has("", DEFAULT));
}
