//! Recovery of volumes that are full or nearly so.

use super::*;
use f2fs::engine::Caller;

#[test]
fn filling_holes_overwrites_no_fsynced_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    // The volume is so small that holes are filled from the start.
    support::mkfs(&path, BYTES, &[]);
    let options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(support::device(&path), options()).unwrap();
    let mut names: Vec<String> = Vec::new();
    loop {
        let name = format!("filler {}", names.len());
        let made = volume
            .begin(Caller::ADMIN)
            .create(ROOT, name.as_bytes(), &NewNode::new(FILE))
            .and_then(|ino| volume.begin(Caller::ADMIN).write(ino, 0, &[9; 12_000]));
        if made.is_err() {
            break;
        }
        names.push(name);
    }
    for name in names.iter().step_by(3) {
        volume.begin(Caller::ADMIN).unlink(ROOT, name.as_bytes()).unwrap();
    }
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.begin(Caller::ADMIN).write(file, 0, &[1; 40_000]).unwrap();
    volume.fsync(file, SyncScope::Everything).unwrap();
    let version = volume.last_checkpoint().version;
    // Each round replaces the data of the previous one, and none of it is fsynced.
    let other = volume.begin(Caller::ADMIN).create(ROOT, b"other", &NewNode::new(FILE)).unwrap();
    let mut rounds = 0;
    while volume.last_checkpoint().version == version {
        volume.begin(Caller::ADMIN).write(file, 0, &[2; 40_000]).unwrap();
        volume.begin(Caller::ADMIN).write(other, 0, &[3; 400_000]).unwrap();
        volume.begin(Caller::ADMIN).truncate(other, 0).unwrap();
        // The device as it would be after a power cut now.
        let memory = MemoryDevice::from_bytes(&std::fs::read(&path).unwrap());
        let after = Engine::open(Arc::new(memory), Options::read_only()).unwrap();
        let content = read(&after, after.lookup(ROOT, b"file").unwrap());
        let whole =
            content == [1; 40_000] || (content == [2; 40_000] && after.last_checkpoint().version != version);
        assert!(whole, "after {rounds} rounds the file has bytes {:?}", &content[..4]);
        rounds += 1;
        assert!(rounds < 200, "holes run out");
    }
    // Their number depends on the space that the formatter leaves.
    assert!(rounds > 1, "{rounds}");
}

/// On a full volume a new name replaces a removed one. Recovery enters it while the other still exists, so
/// the directory has to grow. The resulting checkpoint once had more blocks than the volume, and could not be
/// opened.
#[test]
fn a_full_volume_recovers_a_name_for_which_its_directory_has_to_grow() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    let mut names = 0;
    while volume.inode(dir).unwrap().has_inline(inline::DENTRY) {
        volume.begin(Caller::ADMIN).create(dir, format!("{names}").as_bytes(), &NewNode::new(FILE)).unwrap();
        names += 1;
    }
    for n in (0..names).rev() {
        volume.begin(Caller::ADMIN).unlink(dir, format!("{n}").as_bytes()).unwrap();
    }
    volume.begin(Caller::ADMIN).remove_dir(ROOT, b"dir").unwrap();
    let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    for n in 0..names - 1 {
        volume.begin(Caller::ADMIN).create(dir, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    let full = volume.begin(Caller::ADMIN).create(ROOT, b"full", &NewNode::new(FILE)).unwrap();
    let mut size = 0;
    while volume.begin(Caller::ADMIN).write(full, size, &[7; 4096]).is_ok() {
        size += 4096;
    }
    volume.begin(Caller::ADMIN).truncate(full, size - 4096).unwrap();
    volume.checkpoint().unwrap();
    assert!(volume.inode(dir).unwrap().has_inline(inline::DENTRY));

    volume.begin(Caller::ADMIN).unlink(dir, b"0").unwrap();
    let new = volume.begin(Caller::ADMIN).create(dir, b"new", &NewNode::new(FILE)).unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    drop(volume); // without an unmount
    for _ in 0..2 {
        let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
        assert_eq!(volume.lookup(dir, b"new").unwrap(), new);
        volume.unmount().unwrap();
    }
}

/// Makes a volume with fsyncs of a file and of new ones until no segment is free, without a checkpoint.
/// Returns the promised content of the file's blocks, and the number of new files.
fn full_of_fsyncs(device: Arc<dyn Device>, blocks: u64, new_each: u64) -> (Ino, Vec<u8>, u64) {
    let mut volume = support::format_on(device.clone(), &["extra_attr", "quota"], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; blocks as usize * 4096]).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let usual = Options::new(|| support::NOW);
    let options = Options { checkpoint_when_asked: true, in_place: InPlace::Never, ..usual };
    let mut volume = Engine::open(device, options).unwrap();
    let (mut promised, mut new) = (vec![1; blocks as usize], 0);
    let mut rng = Rng::new(7);
    for n in 0u64.. {
        let (block, mark) = (rng.below(blocks), (n % 250) as u8 + 2);
        if volume
            .begin(Caller::ADMIN)
            .write(ino, block * 4096, &[mark; 4096])
            .and_then(|()| volume.fsync(ino, SyncScope::Data))
            .is_err()
        {
            break;
        }
        promised[block as usize] = mark;
        if n % new_each == 0 {
            let name = format!("new{new}");
            let made = volume
                .begin(Caller::ADMIN)
                .create(ROOT, name.as_bytes(), &NewNode::new(FILE))
                .and_then(|ino| {
                    volume.begin(Caller::ADMIN).write(ino, 0, &[9; 4096])?;
                    volume.fsync(ino, SyncScope::Everything)
                });
            if made.is_err() {
                break;
            }
            new += 1;
        }
    }
    (ino, promised, new)
}

/// Without a free segment, recovery writes to blocks that it does not need itself.
#[test]
fn recovery_writes_only_outside_the_chain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for (blocks, new_each) in [(3000, u64::MAX), (700, 40), (2500, 9)] {
        let device = Arc::new(MemoryDevice::new(BYTES));
        let (ino, promised, new) = full_of_fsyncs(device.clone(), blocks, new_each);
        let check = |volume: &Engine, what: &str| {
            let mut found = [0; 4096];
            let wrong = (0..).zip(&promised).filter(|(block, mark)| {
                volume.read(ino, block * 4096, &mut found).unwrap();
                found != [**mark; 4096]
            });
            // The data of the fsync that found no space may be present.
            assert!(wrong.count() < 2, "{what}");
            for n in 0..new {
                let ino = volume.lookup(ROOT, format!("new{n}").as_bytes()).unwrap();
                assert_eq!(volume.read(ino, 0, &mut found).unwrap(), 4096, "{what}");
                assert!(found == [9; 4096], "{what}");
            }
        };
        check(&Engine::open(device.clone(), Options::read_only()).unwrap(), "shown");
        let recording = Arc::new(Recording::with_data(copy(&device).unwrap()));
        let mut volume = Engine::open(recording.clone(), Options::new(|| support::NOW)).unwrap();
        let mut trace = recording.take_trace();
        trace.retain(|request| request.verb != Verb::Read);
        check(&volume, "recovered");
        volume.begin(Caller::ADMIN).write(ino, 0, &[promised[0]; 4096]).unwrap();
        volume.unmount().unwrap();
        store(recording.inner(), &path).unwrap();
        support::assert_clean(&path);
        for at in 0..=trace.len() {
            let survivors = match at % 3 {
                0 => Survivors::All,
                1 => Survivors::None,
                _ => Survivors::Torn { seed: at as u64 },
            };
            let cut = copy(&device).unwrap();
            power_cut(&trace, at, &survivors, &cut).unwrap();
            let volume = Engine::open(Arc::new(cut), Options::new(|| support::NOW)).unwrap();
            check(&volume, &format!("{blocks} blocks, cut {at} of {}, {survivors:?}", trace.len()));
        }
    }
}
