use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

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
