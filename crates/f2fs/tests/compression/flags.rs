//! Choice of files and of algorithms.

use super::*;

#[test]
fn compression_is_inherited_and_chosen_by_extension() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let options = Options {
        compressed_extensions: vec!["so".into()],
        plain_extensions: vec!["zip".into()],
        ..Options::new(|| NOW)
    };
    let mut volume = Engine::open(support::device(&path), options).unwrap();
    let dir = compressed_dir(&mut volume, b"dir");
    let sub = volume.begin(Caller::ADMIN).create(dir, b"sub", &NewNode::new(DIR)).unwrap();
    let never = volume.begin(Caller::ADMIN).create(dir, b"never", &NewNode::new(DIR)).unwrap();
    with_flags(&mut volume, never, flag::NOCOMPRESS).unwrap();
    let mut is = |dir: Ino, name: &str, mode: u16| {
        let ino = volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(mode)).unwrap();
        let stat = volume.stat(ino).unwrap();
        (stat.compression.is_some(), stat.flags & (flag::COMPRESS | flag::NOCOMPRESS))
    };
    assert_eq!(is(sub, "a", FILE), (true, flag::COMPRESS));
    assert_eq!(is(sub, "a.zip", FILE), (false, 0));
    // The name has a hot extension of mkfs.f2fs's list.
    assert_eq!(is(sub, "a.db", FILE), (false, 0));
    assert_eq!(is(sub, "fifo", 0o010_600), (false, 0));
    assert_eq!(is(ROOT, "a.so", FILE), (true, flag::COMPRESS));
    assert_eq!(is(ROOT, "a", FILE), (false, 0));
    assert_eq!(is(never, "a", FILE), (false, flag::NOCOMPRESS));
    assert_eq!(is(never, "a.so", FILE), (true, flag::COMPRESS));
    assert_eq!(is(never, "dir", DIR), (false, flag::NOCOMPRESS));
    let nameless = volume.begin(Caller::ADMIN).create_nameless(dir, &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).link(nameless, dir, b"a").unwrap();
    assert!(volume.stat(nameless).unwrap().compression.is_none(), "its name was not looked up before");
    volume.begin(Caller::ADMIN).release(nameless).unwrap();
    volume.begin(Caller::ADMIN).symlink(dir, b"link", b"a", &NewNode::new(0o777)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

#[test]
fn flags_change_only_while_there_is_nothing_to_convert() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    support::mkfs(&path, 64 << 20, &FEATURES);
    let mut volume = open(&path, lz4(), 1 << 20);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    let invalid = |result: f2fs::Result<()>| matches!(result, Err(Error::Invalid(_)));
    assert!(invalid(with_flags(&mut volume, ino, flag::COMPRESS | flag::NOCOMPRESS)));
    with_flags(&mut volume, ino, flag::COMPRESS).unwrap();
    volume.begin(Caller::ADMIN).choose_compression(ino, Algorithm::Zstd, 3).unwrap();
    assert!(invalid(volume.begin(Caller::ADMIN).choose_compression(ino, Algorithm::Zstd, 9)));
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 100_000]).unwrap();
    assert!(invalid(with_flags(&mut volume, ino, 0)));
    assert!(matches!(
        volume.begin(Caller::ADMIN).choose_compression(ino, Algorithm::Lz4, 2),
        Err(Error::FileTooLarge)
    ));
    assert_eq!(check_map(&volume, ino), 3);
    volume.begin(Caller::ADMIN).truncate(ino, 0).unwrap();
    with_flags(&mut volume, ino, 0).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &[1; 100_000]).unwrap();
    assert!(invalid(with_flags(&mut volume, ino, flag::COMPRESS)));
    let small = volume.begin(Caller::ADMIN).create(ROOT, b"small", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(small, 0, b"inline").unwrap();
    assert!(invalid(with_flags(&mut volume, small, flag::COMPRESS)));
    assert_eq!(read(&volume, small), b"inline");
    volume.fsync(ino, SyncScope::Everything).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);

    support::mkfs(&path, 64 << 20, &[]);
    let mut volume = open(&path, lz4(), 1 << 20);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    assert!(matches!(with_flags(&mut volume, ino, flag::COMPRESS), Err(Error::Unsupported(_))));
}
