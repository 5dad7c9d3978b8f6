//! Power cuts at every request of random operations.

use super::*;
use f2fs::engine::Caller;

/// One file of the model: its contents over time.
#[derive(Default)]
struct Story {
    /// (number of requests when the content became this, content; `None` if the file is gone)
    versions: Vec<(usize, Option<Vec<u8>>)>,
    /// (number of requests at a promise, number of the promised version)
    promises: Vec<(usize, usize)>,
    /// Ranges of requests during which an fsync of the file ran.
    syncs: Vec<(usize, usize)>,
}

/// Runs random operations on a new volume. Returns the requests that made the volume, and the stories by
/// name. Names are never used twice.
fn run(
    seed: u64,
    steps: usize,
    logs: ActiveLogs,
    device: &Arc<Recording<MemoryDevice>>,
) -> (usize, BTreeMap<String, Story>) {
    let mut rng = Rng::new(seed);
    drop(support::format_on(device.clone(), &["extra_attr", "inode_checksum"], BlockSize::B4K));
    let made = device.trace().len();
    let options = Options { active_logs: logs, in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options).unwrap();
    let mut stories: BTreeMap<String, Story> = BTreeMap::new();
    let mut live: Vec<(String, Ino, Vec<u8>)> = Vec::new();
    for step in 0..steps {
        let at = device.trace().len();
        let pick = if live.is_empty() { 0 } else { rng.below(live.len() as u64) as usize };
        match rng.below(10) {
            0 | 1 => {
                let name = format!("file {step}");
                let ino =
                    volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
                stories.entry(name.clone()).or_default().versions = vec![(0, None), (at, Some(Vec::new()))];
                live.push((name, ino, Vec::new()));
            }
            2..=4 if !live.is_empty() => {
                let (name, ino, content) = &mut live[pick];
                let offset = rng.below(60_000) as usize;
                let data = vec![step as u8; 1 + rng.below(20_000) as usize];
                volume.begin(Caller::ADMIN).write(*ino, offset as u64, &data).unwrap();
                content.resize(content.len().max(offset + data.len()), 0);
                content[offset..offset + data.len()].copy_from_slice(&data);
                stories.get_mut(name).unwrap().versions.push((at, Some(content.clone())));
            }
            5 if !live.is_empty() => {
                let (name, ino, content) = &mut live[pick];
                let size = rng.below(80_000) as usize;
                volume.begin(Caller::ADMIN).truncate(*ino, size as u64).unwrap();
                content.resize(size, 0);
                stories.get_mut(name).unwrap().versions.push((at, Some(content.clone())));
            }
            6 if live.len() > 3 => {
                let (name, ..) = live.remove(pick);
                volume.begin(Caller::ADMIN).unlink(ROOT, name.as_bytes()).unwrap();
                stories.get_mut(&name).unwrap().versions.push((at, None));
            }
            7 | 8 if !live.is_empty() => {
                let (name, ino, _) = &live[pick];
                volume
                    .fsync(*ino, if rng.chance(0.5) { SyncScope::Data } else { SyncScope::Everything })
                    .unwrap();
                let done = device.trace().len();
                let story = stories.get_mut(name).unwrap();
                story.promises.push((done, story.versions.len() - 1));
                story.syncs.push((at, done));
            }
            9 => {
                volume.checkpoint().unwrap();
                let done = device.trace().len();
                for story in stories.values_mut() {
                    story.promises.push((done, story.versions.len() - 1));
                }
            }
            _ => {}
        }
    }
    (made, stories)
}

/// Cuts the power after `at` requests, opens the volume and compares it with the stories.
fn cut(
    trace: &[Request],
    at: usize,
    survivors: &Survivors,
    stories: &BTreeMap<String, Story>,
) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(BYTES));
    power_cut(trace, at, survivors, &*device).unwrap();
    let what = format!("cut after {at} of {} requests, {survivors:?}", trace.len());
    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW))
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    for (name, story) in stories {
        let promised =
            story.promises.iter().filter(|(done, _)| *done <= at).map(|(_, version)| *version).max();
        let found = volume.lookup(ROOT, name.as_bytes()).ok().map(|ino| read(&volume, ino));
        let possible = &story.versions[promised.unwrap_or(0)..];
        let mut possible = possible.iter().filter(|(begun, _)| *begun <= at).map(|(_, content)| content);
        // Data and nodes of an fsync share one flush, so its own file may be torn while it runs.
        let torn = story.syncs.iter().any(|(from, to)| *from < at && at < *to);
        let excused = torn && !matches!(survivors, Survivors::All | Survivors::None);
        let found_is = found.as_ref().map(Vec::len);
        assert!(
            excused || possible.any(|content| *content == found),
            "{what}: {name:?} has {found_is:?} bytes"
        );
    }
    volume.unmount().unwrap();
    device
}

#[test]
fn every_cut_leaves_the_promised_state() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut cuts = 0;
    for (seed, logs) in
        [(1, ActiveLogs::Six), (2, ActiveLogs::Four), (3, ActiveLogs::Two), (4, ActiveLogs::Six)]
    {
        let device = Arc::new(Recording::with_data(MemoryDevice::new(BYTES)));
        let (made, stories) = run(seed, 100, logs, &device);
        let trace = device.take_trace();
        for at in made..=trace.len() {
            for survivors in
                [Survivors::None, Survivors::All, Survivors::Torn { seed: seed * 1000 + at as u64 }]
            {
                let left = cut(&trace, at, &survivors, &stories);
                cuts += 1;
                if cuts % 23 == 0 {
                    std::fs::write(&path, left.to_vec()).unwrap();
                    support::assert_clean(&path);
                }
            }
        }
    }
    assert!(cuts > 400, "{cuts} cuts were tried");
}

/// The attribute's node has no checksum, and may be half written while an fsync is under way.
#[test]
fn a_long_attribute_is_the_old_or_the_new_one() {
    let device = Arc::new(Recording::with_data(MemoryDevice::new(BYTES)));
    let mut volume = support::format_on(device.clone(), &["extra_attr", "inode_checksum"], BlockSize::B4K);
    let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.begin(Caller::ADMIN).set_xattr(ino, b"user.long", &[0; 3000], XattrMode::Set).unwrap();
    volume.checkpoint().unwrap();
    let from = device.trace().len();
    for version in 1..=6 {
        volume
            .begin(Caller::ADMIN)
            .set_xattr(ino, b"user.long", &[version; 3000], XattrMode::Replace)
            .unwrap();
        volume.fsync(ino, [SyncScope::Data, SyncScope::Everything][usize::from(version % 2)]).unwrap();
    }
    drop(volume);
    let trace = device.take_trace();
    let mut versions = BTreeMap::<u8, u32>::new();
    for at in from..=trace.len() {
        for seed in 0..40 {
            let left = Arc::new(MemoryDevice::new(BYTES));
            power_cut(&trace, at, &Survivors::Torn { seed }, &*left).unwrap();
            let volume = Engine::open(left, Options::new(|| support::NOW)).unwrap();
            let found = volume.get_xattr(ino, b"user.long").unwrap();
            let version = found[0];
            assert!(found == [version; 3000], "cut after {at} of {} requests, seed {seed}", trace.len());
            *versions.entry(version).or_default() += 1;
        }
    }
    assert!(versions.len() == 7, "some were never found: {versions:?}");
}

/// The marked node must not be on the device without the new blocks. Otherwise content that an earlier fsync promised
/// would be lost.
#[test]
fn synced_content_survives_the_fsync_that_moves_it() {
    const BLOCKS: usize = 60;
    type Change = fn(&mut Engine, Ino, u8);
    let scattered: Change = |volume, ino, version| {
        for block in (0..BLOCKS).step_by(5) {
            volume.begin(Caller::ADMIN).write(ino, block as u64 * 4096, &[version; 4096]).unwrap();
        }
    };
    let single: Change = |volume, ino, version| {
        volume.begin(Caller::ADMIN).write(ino, 5 * 4096, &[version; 2 * 4096]).unwrap();
    };
    let defragmented: Change = |volume, ino, version| {
        for block in (usize::from(version)..BLOCKS).step_by(5) {
            volume.begin(Caller::ADMIN).write(ino, block as u64 * 4096, &[version; 4096]).unwrap();
        }
        assert!(volume.begin(Caller::ADMIN).defragment(ino, 0..BLOCKS as u64).unwrap() > 0);
    };
    for (what, change, in_place) in [
        ("scattered blocks", scattered, InPlace::Fsync),
        ("a block of a log-structured volume", single, InPlace::Never),
        ("a defragmented file", defragmented, InPlace::Fsync),
    ] {
        let device = Arc::new(Recording::with_data(MemoryDevice::new(BYTES)));
        drop(support::format_on(device.clone(), &["extra_attr", "inode_checksum"], BlockSize::B4K));
        let options = Options { in_place, ..Options::new(|| support::NOW) };
        let mut volume = Engine::open(device.clone(), options).unwrap();
        let ino = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.begin(Caller::ADMIN).write(ino, 0, &[1; BLOCKS * 4096]).unwrap();
        volume.checkpoint().unwrap();
        let mut from = device.trace().len();
        let mut states = vec![(from, read(&volume, ino))];
        for version in 2..5 {
            change(&mut volume, ino, version);
            volume.fsync(ino, SyncScope::Everything).unwrap();
            states.push((device.trace().len(), read(&volume, ino)));
        }
        drop(volume);
        let trace = device.take_trace();
        while from <= trace.len() {
            for seed in 0..60 {
                let left = Arc::new(MemoryDevice::new(BYTES));
                power_cut(&trace, from, &Survivors::Torn { seed }, &*left).unwrap();
                let volume = Engine::open(left, Options::new(|| support::NOW)).unwrap();
                let found = read(&volume, ino);
                let last = states.iter().rposition(|(done, _)| *done <= from).unwrap();
                let permitted = &states[last..states.len().min(last + 2)];
                assert!(
                    permitted.iter().any(|(_, state)| *state == found),
                    "{what}: cut after {from} of {} requests, seed {seed}",
                    trace.len()
                );
            }
            from += 1;
        }
    }
}

#[test]
fn a_cut_during_recovery_means_another_recovery() {
    let device = Arc::new(Recording::with_data(MemoryDevice::new(BYTES)));
    let (_, stories) = run(7, 120, ActiveLogs::Six, &device);
    let trace = device.take_trace();
    // The state after a crash without a last checkpoint, and its recovery, cut at each of its requests.
    let crashed = || {
        let memory = MemoryDevice::new(BYTES);
        power_cut(&trace, trace.len(), &Survivors::All, &memory).unwrap();
        memory
    };
    let recording = Arc::new(Recording::with_data(crashed()));
    drop(Engine::open(recording.clone(), Options::new(|| support::NOW)).unwrap());
    let recovery = recording.take_trace();
    assert!(!recovery.is_empty(), "there was something to recover");
    for at in 0..=recovery.len() {
        for survivors in [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }] {
            let memory = Arc::new(crashed());
            power_cut(&recovery, at, &survivors, &*memory).unwrap();
            let volume =
                Engine::open(memory.clone() as Arc<dyn Device>, Options::new(|| support::NOW)).unwrap();
            for (name, story) in &stories {
                let promised = story.promises.last().map_or(0, |(_, version)| *version);
                let found = volume.lookup(ROOT, name.as_bytes()).ok().map(|ino| read(&volume, ino));
                assert!(
                    story.versions[promised..].iter().any(|(_, content)| *content == found),
                    "{at} {name}"
                );
            }
        }
    }
}
