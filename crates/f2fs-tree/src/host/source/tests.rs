//! Tests of names that other programs give to another object while they are read.

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

/// Makes an object under a path.
type Make<'a> = &'a dyn Fn(&Path);

fn write(path: &Path, content: &str, mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn link_to(target: &str, path: &Path) {
    std::os::unix::fs::symlink(target, path).unwrap();
}

/// Reads a name under which the second object replaces the first after the first look. Returns the walk, too.
fn read_replaced(dir: &Path, first: Make<'_>, second: Make<'_>) -> (DirSource, Entry) {
    let name = dir.join("name");
    let _ = fs::remove_file(&name);
    first(&name);
    let mut source = DirSource::new(dir).unwrap();
    let seen = source.stat_of(c"name", b"name").unwrap();
    second(&dir.join("other"));
    fs::rename(dir.join("other"), &name).unwrap();
    assert!(matches!(source.look_at(c"name", b"name", &seen), Ok(Look::Replaced)));
    assert!(source.open.is_none());
    let entry = source.entry_of(c"name").unwrap().expect("it is not skipped");
    (source, entry)
}

#[test]
fn a_file_that_replaces_another_during_the_look_is_read_with_its_own_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let old: Make<'_> = &|path| write(path, "short", 0o600);
    let (_, entry) = read_replaced(dir.path(), old, &|path| write(path, "a longer one", 0o644));
    assert!(matches!(entry.kind, Kind::File { size: 12, .. }) && entry.meta.permissions == 0o644);
    let (_, entry) = read_replaced(dir.path(), old, &|path| write(path, "", 0o640));
    assert!(matches!(entry.kind, Kind::File { size: 0, .. }) && entry.meta.permissions == 0o640);
    let (_, entry) = read_replaced(dir.path(), &|path| write(path, "", 0o600), old);
    assert!(matches!(entry.kind, Kind::File { size: 5, .. }));
}

#[test]
fn an_object_of_another_type_that_takes_a_name_is_read_as_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let file: Make<'_> = &|path| write(path, "text", 0o600);
    let (_, entry) = read_replaced(dir.path(), file, &|path| link_to("target", path));
    assert!(matches!(entry.kind, Kind::Symlink { target } if target == b"target"));
    let (_, entry) = read_replaced(dir.path(), &|path| link_to("one", path), &|path| link_to("two", path));
    assert!(matches!(entry.kind, Kind::Symlink { target } if target == b"two"));
    fs::remove_file(dir.path().join("name")).unwrap();
    let (_, entry) = read_replaced(dir.path(), &|path| link_to("one", path), file);
    assert!(matches!(entry.kind, Kind::File { size: 4, .. }));
}

#[test]
fn other_names_of_a_replaced_file_do_not_become_links_to_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let old: Make<'_> = &|path| {
        write(path, "short", 0o600);
        fs::hard_link(path, dir.path().join("second")).unwrap();
        fs::hard_link(path, dir.path().join("third")).unwrap();
    };
    let (mut source, _) = read_replaced(dir.path(), old, &|path| write(path, "a longer one", 0o644));
    let second = source.entry_of(c"second").unwrap().unwrap();
    assert!(matches!(second.kind, Kind::File { size: 5, .. }), "{:?}", second.kind);
    let third = source.entry_of(c"third").unwrap().unwrap();
    assert_eq!(third.kind, Kind::HardLink { to: b"second".to_vec() });
}
