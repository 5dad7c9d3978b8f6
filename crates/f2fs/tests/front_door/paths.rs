//! Paths and names.

use super::*;

#[test]
fn content_and_names_come_back_after_a_close() {
    let (volume, device) = make();
    volume.create_dir_all("/a/b/c").unwrap();
    volume.create_dir_all("a/b/c").unwrap();
    volume.write("/a/b/c/file", "old and long").unwrap();
    volume.write("/a/b/c/file", "new").unwrap();
    volume.symlink("b/c/file", "/a/link").unwrap();
    volume.hard_link("/a/b/c/file", "/second").unwrap();
    volume.rename("/a/b/c/file", "/a/moved").unwrap();
    volume.close().unwrap();

    let volume = Volume::open(device).unwrap();
    assert_eq!(volume.read("/a/moved").unwrap(), b"new");
    assert_eq!(volume.read_to_string("second").unwrap(), "new");
    assert_eq!(volume.metadata("/second").unwrap().links(), 2);
    assert_eq!(volume.read_link("/a/link").unwrap(), b"b/c/file");
    assert_eq!(names(&volume, "/"), [&b"a"[..], b"second"]);
    assert!(matches!(volume.read("/a/link"), Err(Error::NotFound)));
    assert!(!volume.exists("/a/link").unwrap() && volume.exists("/a/b/c/").unwrap());
    assert!(volume.symlink_metadata("/a/link").unwrap().is_symlink());
}

#[test]
fn a_path_never_leaves_the_volume() {
    let (volume, _) = make();
    volume.create_dir("/dir").unwrap();
    volume.write("/file", "x").unwrap();
    volume.symlink("../../../../file", "/dir/up").unwrap();
    volume.symlink("/../file", "/dir/absolute").unwrap();
    for path in
        ["../../file", "/../file", "/dir/../file", "dir/up", "/dir/absolute", "//./file", "/dir/./../file"]
    {
        assert_eq!(volume.read(path).unwrap(), b"x", "{path}");
    }
    assert!(matches!(volume.read("/file/"), Err(Error::NotDirectory)));
    assert!(matches!(volume.read("/file/../file"), Err(Error::NotDirectory)));
    assert!(matches!(volume.read("/"), Err(Error::IsDirectory)));
    assert!(matches!(volume.read(""), Err(Error::IsDirectory)));
    volume.close().unwrap();
}

#[test]
fn symbolic_links_in_a_circle_end() {
    let (volume, _) = make();
    volume.symlink("b", "/a").unwrap();
    volume.symlink("a", "/b").unwrap();
    volume.symlink("self/x", "/self").unwrap();
    for path in ["/a", "/b", "/self", "/a/file"] {
        assert!(matches!(volume.read(path), Err(Error::TooManySymlinks)), "{path}");
        assert!(matches!(volume.write(path, ""), Err(Error::TooManySymlinks)), "{path}");
    }
    assert_eq!(volume.read_link("/a").unwrap(), b"b");
    for n in 0..40 {
        volume.symlink(format!("l{}", n + 1), format!("/l{n}")).unwrap();
    }
    // The last link leads to nothing: a write makes its target, as open(2) does.
    volume.write("/l0", "end").unwrap();
    assert_eq!(volume.read("/l40").unwrap(), b"end");
    assert_eq!(volume.read("/l0").unwrap(), b"end");
    volume.symlink("l0", "/one_more").unwrap();
    assert!(matches!(volume.read("/one_more"), Err(Error::TooManySymlinks)));
    volume.close().unwrap();
}

#[test]
fn names_are_bytes() {
    let (volume, device) = make();
    let name: &[u8] = b"/\xff\xfe \n\x01\\";
    volume.write(name, "1").unwrap();
    let longest = [b"/", vec![b'n'; 255].as_slice()].concat();
    volume.write(&longest, "2").unwrap();
    assert!(matches!(volume.write([b"/", vec![b'n'; 256].as_slice()].concat(), ""), Err(Error::NameTooLong)));
    assert!(matches!(volume.write(b"/a\0b", ""), Err(Error::Invalid(_))));
    volume.close().unwrap();
    let volume = Volume::open(device).unwrap();
    assert_eq!(names(&volume, "/"), [longest[1..].to_vec(), name[1..].to_vec()]);
    assert_eq!(volume.read(name).unwrap(), b"1");
}
