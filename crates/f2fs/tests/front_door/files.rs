//! Open files.

use super::*;

#[test]
fn large_sparse_files_are_written_and_read_by_position() {
    let (volume, device) = make();
    let far = 3u64 << 40;
    let mut file = FileOptions::new().read().write().create_new().open(&volume, "/sparse").unwrap();
    file.write_all(b"front").unwrap();
    file.seek(SeekFrom::Start(far)).unwrap();
    file.write_all(b"back").unwrap();
    assert_eq!(file.seek(SeekFrom::End(-4)).unwrap(), far);
    assert_eq!(file.seek(SeekFrom::Current(-1)).unwrap(), far - 1);
    let mut buf = [9; 8];
    assert_eq!(file.read(&mut buf).unwrap(), 5, "a read ends with the file");
    assert_eq!(&buf[..5], b"\0back");
    assert!(file.seek(SeekFrom::Current(i64::MIN)).is_err());
    assert_eq!(file.read_at(&mut buf, 3).unwrap(), 8);
    assert_eq!(&buf, b"nt\0\0\0\0\0\0");
    file.write_at(b"F", 0).unwrap();
    assert_eq!(file.stream_position().unwrap(), far + 4, "positioned access leaves the position");
    assert!(matches!(volume.read("/sparse"), Err(Error::Invalid(_))), "3 TiB are not read at once");
    assert!(matches!(file.set_len(u64::MAX), Err(Error::FileTooLarge)));
    file.set_len(3).unwrap();
    file.sync_all().unwrap();
    drop(file);
    volume.abandon();
    let volume = Volume::open(device).unwrap();
    assert_eq!(volume.read("/sparse").unwrap(), b"Fro", "the fsync is durable without a close");
}

#[test]
fn content_of_many_megabytes_streams_through_a_file() {
    let (volume, device) = make();
    let content: Vec<u8> = (0..8u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    io::copy(&mut &content[..], &mut volume.create_file("/big").unwrap()).unwrap();
    volume.close().unwrap();
    let volume = Volume::open(device).unwrap();
    assert!(volume.read("/big").unwrap() == content);
    let mut read = Vec::new();
    volume.open_file("/big").unwrap().read_to_end(&mut read).unwrap();
    assert!(read == content);
}

#[test]
fn files_are_opened_as_their_options_say() {
    let (volume, _) = make();
    let open = |options: FileOptions, path: &str| options.open(&volume, path).map(drop);
    let new = FileOptions::new;
    assert!(matches!(open(new(), "/f"), Err(Error::Invalid(_))));
    assert!(matches!(open(new().read().create(), "/f"), Err(Error::Invalid(_))));
    assert!(matches!(open(new().append().truncate(), "/f"), Err(Error::Invalid(_))));
    assert!(matches!(open(new().write(), "/f"), Err(Error::NotFound)));
    assert!(matches!(open(new().write().create(), "/f/"), Err(Error::IsDirectory)));
    open(new().write().create_new().permissions(0o4777), "/f").unwrap();
    assert_eq!(volume.metadata("/f").unwrap().permissions(), 0o4755, "the umask takes the group's write");
    assert!(matches!(open(new().write().create_new(), "/f"), Err(Error::Exists)));
    volume.symlink("nowhere", "/dangling").unwrap();
    assert!(matches!(open(new().write().create_new(), "/dangling"), Err(Error::Exists)));
    assert!(matches!(open(new().read(), "/"), Err(Error::IsDirectory)));

    let file = volume.open_file("/f").unwrap();
    assert!(matches!(file.write_at(b"x", 0), Err(Error::NotPermitted)));
    let mut log = new().append().open(&volume, "/f").unwrap();
    assert!(matches!(log.read_at(&mut [0], 0), Err(Error::NotPermitted)));
    log.write_all(b"1").unwrap();
    volume.write("/f", "other").unwrap();
    log.write_all(b"2").unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"other2");
    drop((file, log));
    volume.close().unwrap();
}

#[test]
fn an_open_file_outlives_its_name() {
    let (volume, device) = make();
    volume.write("/f", "content").unwrap();
    let before = volume.space().unwrap().free_inodes;
    let file = volume.open_file("/f").unwrap();
    volume.remove_file("/f").unwrap();
    assert!(matches!(volume.metadata("/f"), Err(Error::NotFound)));
    let mut buf = [0; 7];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 7);
    assert_eq!(&buf, b"content");
    drop(file);
    assert!(volume.space().unwrap().free_inodes > before, "the inode goes with the last handle");
    volume.close().unwrap();
    assert_eq!(names(&Volume::open(device).unwrap(), "/"), [b""; 0]);
}

#[test]
fn several_threads_share_a_volume() {
    let (volume, device) = make();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let volume = &volume;
            scope.spawn(move || {
                volume.create_dir(format!("/{n}")).unwrap();
                for file in 0..20 {
                    let path = format!("/{n}/{file}");
                    volume.write(&path, &path).unwrap();
                    assert_eq!(volume.read_to_string(&path).unwrap(), path);
                }
            });
        }
    });
    volume.close().unwrap();
    let volume = Volume::open(device).unwrap();
    assert_eq!(volume.walk("/").unwrap().filter(Result::is_ok).count(), 84);
}

#[test]
fn errors_of_streams_hold_the_error_of_the_volume() {
    let (volume, _) = make();
    volume.write("/f", "").unwrap();
    let mut file: File<'_> = volume.open_file("/f").unwrap();
    let error = file.write(b"x").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let inner = error.into_inner().expect("the volume's error");
    assert!(matches!(inner.downcast_ref(), Some(Error::NotPermitted)));
    drop(file);
    volume.close().unwrap();
}
