//! Opening of volumes.

use super::*;

#[test]
fn a_volume_opened_for_reading_refuses_changes() {
    let (volume, device) = make();
    volume.write("/f", "x").unwrap();
    volume.close().unwrap();
    let before = device.to_vec();
    let volume = Volume::open(device.clone()).unwrap();
    assert!(volume.read_only_reason().unwrap().is_some());
    assert!(matches!(volume.write("/f", "y"), Err(Error::ReadOnly(_))));
    assert!(matches!(volume.create_dir("/d"), Err(Error::ReadOnly(_))));
    assert!(matches!(FileOptions::new().write().open(&volume, "/f"), Err(Error::ReadOnly(_))));
    assert!(matches!(volume.sync(), Err(Error::ReadOnly(_))));
    volume.close().expect("nothing is lost");
    assert!(device.to_vec() == before);
    let volume = Volume::from_bytes(&before).unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"x");
}

#[test]
fn opening_for_writing_fails_if_the_volume_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    support::mkfs(&path, SIZE_BYTES, &["-O", "ro"]);
    let write = || OpenOptions::new().write().clock(|| NOW);
    let error = write().open_path(&path).unwrap_err();
    assert!(matches!(&error, Error::ReadOnly(reason) if reason.contains("ro")), "{error}");
    let volume = write().read_only_if_needed().open_path(&path).unwrap();
    assert!(volume.read_only_reason().unwrap().is_some());
    volume.close().unwrap();

    assert!(matches!(OpenOptions::new().write().open_path(&path), Err(Error::Invalid(_))), "no clock");
    let missing = Volume::open_path(folder.path().join("none")).unwrap_err();
    assert!(matches!(&missing, Error::Host { path, .. } if path.ends_with("none")), "{missing}");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    assert!(matches!(Volume::open_path(&path), Err(Error::NotF2fs(_))));
}

#[test]
fn an_image_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let write = || OpenOptions::new().write().clock(|| NOW);
    let volume = write().make_file(&path, SIZE_BYTES, &options()).unwrap();
    let is_busy = |result: Result<Volume>| matches!(result, Err(Error::Host { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy);
    assert!(is_busy(write().open_path(&path)));
    assert!(is_busy(write().read_only_if_needed().open_path(&path)));
    assert!(is_busy(Volume::open_path(&path)), "a reader beside a writer has to ask for it");
    OpenOptions::new().beside_writer().open_path(&path).unwrap().close().unwrap();
    let again = OpenOptions::new().clock(|| NOW).make_file(&path, SIZE_BYTES, &options());
    assert!(matches!(again, Err(Error::Host { .. })), "an existing file is not replaced");
    volume.write("/f", "").unwrap();
    volume.close().unwrap();
    write().open_path(&path).unwrap().close().unwrap();
    support::assert_clean(&path);

    let small = folder.path().join("small");
    let refused = OpenOptions::new().clock(|| NOW).make_file(&small, 1 << 20, &options());
    assert!(matches!(refused, Err(Error::Invalid(_))));
    assert!(!small.exists(), "a file that became no volume is removed");
}

#[test]
fn devices_of_the_host_can_be_opened_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(SIZE_BYTES)).unwrap();
    let device = FileDevice::open(&path, FileDeviceOptions { write: true, direct: false }).unwrap();
    let volume = OpenOptions::new().clock(|| NOW).make(Arc::new(device), &options()).unwrap();
    volume.write("/f", "x").unwrap();
    volume.close().unwrap();
    support::assert_clean(&path);
}

#[test]
fn the_engine_is_reachable_from_the_front_door() {
    let (volume, device) = make();
    volume.write("/f", "x").unwrap();
    let ino = volume.metadata("/f").unwrap().ino();
    volume.engine_mut().unwrap().begin(Caller::ADMIN).write(ino, 1, b"y").unwrap();
    assert_eq!(volume.engine().unwrap().stat(ino).unwrap().size, 2);
    let mut engine = volume.into_engine().unwrap();
    engine.unmount().unwrap();
    let volume = Volume::from(engine);
    assert_eq!(volume.read("/f").unwrap(), b"xy");
    volume.close().unwrap();
    drop(device);
}
