//! Directories and attributes.

use super::*;

#[test]
fn directories_can_change_while_they_are_listed() {
    let (volume, _) = make();
    volume.create_dir("/d").unwrap();
    for n in 0..500 {
        volume.write(format!("/d/{n}"), "").unwrap();
    }
    let mut seen = 0;
    for entry in volume.read_dir("/d").unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.file_type().unwrap(), FileType::Regular);
        assert_eq!(entry.metadata().unwrap().ino(), entry.ino());
        volume.remove_file([b"/d/", entry.file_name()].concat()).unwrap();
        assert!(matches!(entry.metadata(), Err(Error::NotFound)));
        seen += 1;
    }
    assert_eq!(seen, 500);
    let listing = volume.read_dir("/d").unwrap();
    volume.remove_dir("/d").unwrap();
    assert_eq!(listing.count(), 0, "a removed directory has no entries");
    volume.close().unwrap();
}

#[test]
fn directories_are_made_and_removed_as_std_fs_does() {
    let (volume, _) = make();
    volume.create_dir_all("/a/b/c/").unwrap();
    volume.write("/a/b/file", "").unwrap();
    volume.symlink("/a", "/link").unwrap();
    volume.symlink("b", "/a/inside").unwrap();
    assert!(matches!(volume.create_dir("/"), Err(Error::Exists)));
    assert!(matches!(volume.create_dir("/a/"), Err(Error::Exists)));
    assert!(matches!(volume.create_dir("/none/x"), Err(Error::NotFound)));
    assert!(matches!(volume.create_dir_all("/a/b/file/x"), Err(Error::Exists)));
    volume.create_dir_all("/link/b/new").unwrap();
    assert!(matches!(volume.remove_dir("/a"), Err(Error::NotEmpty)));
    assert!(matches!(volume.remove_dir("/link"), Err(Error::NotDirectory)));
    assert!(matches!(volume.remove_dir("/"), Err(Error::Invalid(_))));
    assert!(matches!(volume.remove_file("/a"), Err(Error::IsDirectory)));
    assert!(matches!(volume.rename("/a", "/a/b/x"), Err(Error::Invalid(_))));
    assert!(matches!(volume.remove_dir_all("/a/b/file"), Err(Error::NotDirectory)));
    volume.remove_dir_all("/link").unwrap();
    assert!(volume.exists("/a/b").unwrap(), "a link is not followed");
    volume.remove_dir_all("/a").unwrap();
    assert_eq!(names(&volume, "/"), [b""; 0]);
    volume.close().unwrap();
}

#[test]
fn attributes_are_set_by_path() {
    let (volume, device) = make();
    volume.write("/f", "").unwrap();
    volume.symlink("f", "/l").unwrap();
    volume.set_permissions("/l", 0o6751).unwrap();
    volume.set_xattr("/l", "user.note", b"\0value").unwrap();
    volume.set_xattr("/f", "security.capability", [1; 20]).unwrap();
    volume.set_owner("/l", Some(7), None).unwrap();
    volume.set_symlink_owner("/l", None, Some(9)).unwrap();
    let time = Time { seconds: -1, nanoseconds: 5 };
    let file = FileOptions::new().write().open(&volume, "/f").unwrap();
    file.set_modified(time).unwrap();
    drop(file);
    assert!(matches!(volume.set_xattr("/f", "other.x", ""), Err(Error::Unsupported(_))));
    assert!(matches!(volume.get_xattr("/f", "user.none"), Err(Error::NoAttribute)));
    volume.close().unwrap();
    let volume = Volume::open(device).unwrap();
    let (file, link) = (volume.metadata("/l").unwrap(), volume.symlink_metadata("/l").unwrap());
    assert_eq!((file.uid(), file.gid(), file.permissions()), (7, 0, 0o751), "chown(2) takes the set-ID bits");
    assert_eq!((link.uid(), link.gid()), (0, 9));
    assert_eq!(file.modified(), time);
    assert_eq!(volume.list_xattrs("/l").unwrap(), [b"user.note"], "chown(2) takes the capabilities");
    assert_eq!(volume.get_xattr("/f", "user.note").unwrap(), b"\0value");
}

#[test]
fn new_entries_belong_to_the_owner_in_the_options() {
    let device = Arc::new(MemoryDevice::new(SIZE_BYTES));
    let how = OpenOptions::new().clock(|| NOW).owner(10, 20).umask(0o077);
    let volume = how.make(device, &options()).unwrap();
    volume.create_dir("/d").unwrap();
    volume.write("/d/f", "").unwrap();
    volume.symlink("f", "/d/l").unwrap();
    for (path, permissions) in [("/d", 0o700), ("/d/f", 0o600), ("/d/l", 0o777)] {
        let facts = volume.symlink_metadata(path).unwrap();
        assert_eq!((facts.uid(), facts.gid(), facts.permissions()), (10, 20, permissions), "{path}");
        assert_eq!(facts.modified(), NOW);
    }
    volume.close().unwrap();
}
