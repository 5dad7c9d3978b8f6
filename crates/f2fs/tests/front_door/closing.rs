//! Closing of volumes, and drops without it.

use super::*;

/// Makes a volume on a device that refuses writes and flushes once the returned switch is on.
fn with_switch() -> (Volume, Arc<dyn Device>, Arc<AtomicBool>) {
    let refuses = Arc::new(AtomicBool::new(false));
    let switch = refuses.clone();
    let device = Hooked::new(MemoryDevice::new(SIZE_BYTES), move |verb, _| {
        match matches!(verb, Verb::Write | Verb::Flush) && refuses.load(Ordering::SeqCst) {
            true => Err(io::Error::other("worn out")),
            false => Ok(()),
        }
    });
    let device: Arc<dyn Device> = Arc::new(device);
    let volume = OpenOptions::new().clock(|| NOW).make(device.clone(), &options()).unwrap();
    (volume, device, switch)
}

#[test]
fn dropping_a_changed_volume_writes_the_changes() {
    let (volume, device) = make();
    volume.write("/f", "x").unwrap();
    drop(volume);
    let volume = reopen(&device);
    assert_eq!(volume.read("/f").unwrap(), b"x");
    volume.write("/f", "y").unwrap();
    volume.abandon();
    assert_eq!(Volume::open(device).unwrap().read("/f").unwrap(), b"x", "an abandoned change is gone");
}

#[test]
fn a_drop_that_loses_changes_calls_the_hook() {
    let (volume, device, switch) = with_switch();
    volume.close().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let volume = OpenOptions::new()
        .write()
        .clock(|| NOW)
        .on_loss(move |error| hear.lock().unwrap().push(error.to_string()))
        .open(device)
        .unwrap();
    volume.write("/f", "x").unwrap();
    switch.store(true, Ordering::SeqCst);
    drop(volume);
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].contains("worn out"), "{told:?}");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a volume was dropped with changes that could not be written")]
fn a_drop_that_is_the_first_to_lose_changes_panics_in_debug_builds() {
    let (volume, _, switch) = with_switch();
    volume.write("/f", "x").unwrap();
    switch.store(true, Ordering::SeqCst);
    drop(volume);
}

#[test]
fn closing_after_a_failed_write_reports_lost_changes() {
    let (volume, device, switch) = with_switch();
    volume.write("/before", "x").unwrap();
    volume.sync().unwrap();
    volume.write("/after", "y").unwrap();
    switch.store(true, Ordering::SeqCst);
    assert!(matches!(volume.sync(), Err(Error::Io { .. })));
    assert!(matches!(volume.write("/more", "z"), Err(Error::ReadOnly(_))));
    assert_eq!(volume.read("/after").unwrap(), b"y", "reads continue");
    let error = volume.close().unwrap_err();
    assert!(matches!(&error, Error::ReadOnly(reason) if reason.contains("worn out")), "{error}");

    let volume = Volume::open(device).unwrap();
    assert_eq!(names(&volume, "/"), [b"before"]);
    // A caller that was told before may drop the volume.
    let (volume, _, switch) = with_switch();
    volume.write("/f", "x").unwrap();
    switch.store(true, Ordering::SeqCst);
    assert!(volume.sync().is_err());
    drop(volume);
}

#[test]
fn a_panic_in_an_operation_ends_the_use_of_the_volume() {
    let (volume, device) = make();
    volume.write("/f", "x").unwrap();
    volume.sync().unwrap();
    volume.write("/f", "half").unwrap();
    let panicked = std::thread::scope(|scope| {
        let run = || {
            let _engine = volume.engine_mut().unwrap();
            panic!("in the middle of a change");
        };
        scope.spawn(run).join().is_err()
    });
    assert!(panicked);
    assert!(matches!(volume.read("/f"), Err(Error::Invalid(_))));
    assert!(matches!(volume.close(), Err(Error::Invalid(_))));
    assert_eq!(Volume::open(device).unwrap().read("/f").unwrap(), b"x", "the device is whole");
}
