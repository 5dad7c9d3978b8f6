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
    File::create(out.join("file")).expect("a file");
    for name in ["link", "symlink", "file"] {
        let meta = Metadata { permissions: 0o777, ..Metadata::default() };
        let entry = Entry { path: name.into(), kind: Kind::Fifo, meta };
        let error = sink.finish_node(name.as_bytes(), &entry, FileType::Fifo, 0).expect_err("another entry");
        let Error::Host { source, .. } = error else { panic!("{name}: {error}") };
        assert_eq!(Errno::from_io_error(&source), Some(Errno::STALE), "{name}");
    }
    assert_eq!(fs::metadata(&canary).expect("it exists").mode() & 0o7777, 0o400);
}
