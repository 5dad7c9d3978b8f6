//! State after a power cut: everything that fsync or a checkpoint promised, and no torn block.

mod support;

use std::{collections::BTreeMap, sync::Arc};

use block::{Device, MemoryDevice, Recording, Request, Rng, Survivors, Verb, power_cut};
use f2fs::{
    engine::{
        ActiveLogs, Engine, InPlace, NewNode, Options, Policy, RenameMode, SetAttr, SyncScope, XattrMode,
    },
    format::{
        BlockSize,
        inode::{flag, inline},
        sit::SegmentType,
    },
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::{BlockAddr, Ino, Nid},
};
use model::setup::{copy, store};

const ROOT: Ino = Ino(3);
const FILE: u16 = 0o100_644;
const BYTES: u64 = 64 << 20;

fn read(volume: &Engine, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; volume.stat(ino).unwrap().size as usize];
    volume.read(ino, 0, &mut bytes).unwrap();
    bytes
}

/// Opens an image again as after a crash. Also checks that reading alone shows the same.
fn reopen(path: &std::path::Path) -> Engine {
    let before = std::fs::read(path).unwrap();
    let shown = support::open_read_only(path);
    let seen: Vec<_> = shown.entries(ROOT, 0).unwrap().map(|entry| entry.unwrap().name).collect();
    drop(shown);
    assert!(std::fs::read(path).unwrap() == before, "opening for reading has written");
    let volume = support::open(path);
    let names: Vec<_> = volume.entries(ROOT, 0).unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(names, seen);
    volume
}

#[test]
fn fsynced_changes_come_back_and_others_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut volume = support::format(&path, BYTES, &["extra_attr", "inode_checksum"]);
    let old = volume.create(ROOT, b"old", &NewNode::new(FILE)).unwrap();
    volume.write(old, 0, &[1; 20_000]).unwrap();
    let shrinks = volume.create(ROOT, b"shrinks", &NewNode::new(FILE)).unwrap();
    volume.write(shrinks, 0, &[2; 5_000_000]).unwrap();
    let victim = volume.create(ROOT, b"victim", &NewNode::new(FILE)).unwrap();
    volume.set_xattr(old, b"user.a", &[7; 3000], XattrMode::Set).unwrap();
    volume.checkpoint().unwrap();

    volume.write(old, 4096, &[3; 4096]).unwrap();
    volume.remove_xattr(old, b"user.a").unwrap();
    volume.fsync(old, SyncScope::Everything).unwrap();
    // The two fsyncs before removed nodes, so they were checkpoints. From here on no checkpoint follows.
    volume.truncate(shrinks, 100_000).unwrap();
    volume.fsync(shrinks, SyncScope::Everything).unwrap();
    volume.write(old, 8192, &[4; 4096]).unwrap();
    let new = volume.create(ROOT, b"new", &NewNode::new(FILE)).unwrap();
    volume.write(new, 10, &[5; 5_000_000]).unwrap();
    volume.set_xattr(new, b"user.b", &[8; 3500], XattrMode::Set).unwrap();
    volume.fsync(new, SyncScope::Data).unwrap();
    volume.write(new, 0, &[6; 10]).unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    let small = volume.create(ROOT, b"small", &NewNode::new(FILE)).unwrap();
    volume.write(small, 0, b"inline").unwrap();
    volume.fsync(small, SyncScope::Everything).unwrap();
    volume.unlink(ROOT, b"victim").unwrap();
    let heir = volume.create(ROOT, b"victim", &NewNode::new(FILE)).unwrap();
    volume.write(heir, 0, &[9; 9000]).unwrap();
    volume.fsync(heir, SyncScope::Everything).unwrap();
    volume.create(ROOT, b"never synced", &NewNode::new(FILE)).unwrap();
    drop(volume);

    let mut volume = reopen(&path);
    let content = read(&volume, old);
    assert!(
        content[..4096] == [1; 4096] && content[4096..8192] == [3; 4096] && content[8192..] == [1; 11_808]
    );
    assert!(volume.list_xattrs(old).unwrap().is_empty());
    assert!(read(&volume, shrinks) == [2; 100_000]);
    let content = read(&volume, new);
    assert!(content[..10] == [6; 10] && content[10..] == [5; 5_000_000]);
    assert_eq!(volume.get_xattr(new, b"user.b").unwrap(), [8; 3500]);
    assert_eq!(read(&volume, small), b"inline");
    assert_eq!(volume.lookup(ROOT, b"victim").unwrap(), heir);
    assert!(heir != victim && read(&volume, heir) == [9; 9000]);
    assert!(volume.lookup(ROOT, b"never synced").is_err());
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

/// An overwrite in place is one write. An overwrite in a new place is two: the block, and the node with its
/// address.
#[test]
fn an_fsynced_overwrite_costs_two_writes_and_a_flush_at_most() {
    use block::Verb::{Flush, Write};
    for (in_place, costs) in [
        (InPlace::Fsync, &[(Write, 4096), (Flush, 0)][..]),
        (InPlace::Never, &[(Write, 4096), (Write, 4096), (Flush, 0)]),
    ] {
        let device = Arc::new(Recording::without_data(MemoryDevice::new(BYTES)));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
        volume.write(ino, 0, &[1; 1 << 20]).unwrap();
        volume.checkpoint().unwrap();
        drop(volume);
        let options = Options { in_place, ..Options::new(|| support::NOW) };
        let mut volume = Engine::open(device.clone(), options).unwrap();
        for n in 0..2 {
            device.take_trace();
            volume.write(ino, 40_960, &[2 + n; 4096]).unwrap();
            volume.fsync(ino, SyncScope::Everything).unwrap();
            let writes = |request: &Request| request.verb != Verb::Read;
            let verbs: Vec<_> = device.take_trace().into_iter().filter(writes).collect();
            let verbs: Vec<_> = verbs.iter().map(|request| (request.verb, request.length_bytes)).collect();
            assert_eq!(verbs, costs);
        }
    }
}

/// A file that was overwritten as a whole, in any order, is overwritten in place when it is synced, with the
/// largest possible commands. Single blocks go to the log.
#[test]
fn neighbours_wait_for_their_fsync_and_are_overwritten_together() {
    const BLOCKS: u64 = 1000;
    let device = Arc::new(Recording::without_data(MemoryDevice::new(BYTES)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &vec![1; BLOCKS as usize * 4096]).unwrap();
    volume.checkpoint().unwrap();
    let first = volume.address(&volume.inode(ino).unwrap(), 0).unwrap();
    device.take_trace();
    for n in 0..BLOCKS {
        let at = n * 617 % BLOCKS;
        volume.write(ino, at * 4096, &[at as u8; 4096]).unwrap();
    }
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let writes = |trace: Vec<Request>| -> Vec<u64> {
        let writes = trace.into_iter().filter(|request| request.verb == Verb::Write);
        writes.map(|request| request.length_bytes / 4096).collect()
    };
    let lengths = writes(device.take_trace());
    assert!(lengths.iter().sum::<u64>() <= BLOCKS + 1 && lengths.len() <= 6, "{lengths:?}");
    assert_eq!(volume.address(&volume.inode(ino).unwrap(), 0).unwrap(), first);
    for n in 0..BLOCKS / 2 {
        volume.write(ino, 2 * n * 4096, &[7; 4096]).unwrap();
    }
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let lengths = writes(device.take_trace());
    assert!(lengths.len() <= 6, "{lengths:?}");
    assert_ne!(volume.address(&volume.inode(ino).unwrap(), 0).unwrap(), first);
    let content = read(&volume, ino);
    let wanted = |n: usize| if n % 2 == 0 { 7 } else { n as u8 };
    assert!(content.chunks(4096).enumerate().all(|(n, block)| block == [wanted(n); 4096]));
}

/// A database repeatedly makes its journal, syncs it and the directory, and removes it. Recovery finds the
/// name of a new file in its inode, so only the removal needs a checkpoint. An unchanged file needs no write.
#[test]
fn an_fsynced_directory_needs_no_checkpoint_for_the_names_of_fsynced_files() {
    let device = Arc::new(Recording::with_data(MemoryDevice::new(BYTES)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let dir = volume.create(ROOT, b"data", &NewNode::new(0o040_755)).unwrap();
    volume.create(dir, b"journal", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    let start = copy(device.inner()).unwrap();
    device.take_trace();
    let mut trace = Vec::new();
    // Returns the number of writes of the directory's fsync, after which the power fails.
    let mut sync = |volume: &mut Engine, scope: SyncScope| {
        trace.extend(device.take_trace());
        volume.fsync(dir, scope).unwrap();
        let own = device.take_trace();
        let writes = own.iter().filter(|request| request.verb == Verb::Write).count();
        trace.extend(own);
        let left = copy(&start).unwrap();
        power_cut(&trace, trace.len(), &Survivors::None, &left).unwrap();
        let left = Engine::open(Arc::new(left), Options::new(|| support::NOW)).unwrap();
        let names = |volume: &Engine| -> Vec<_> {
            volume.entries(dir, 0).unwrap().map(|entry| entry.unwrap()).map(|e| (e.name, e.ino)).collect()
        };
        assert_eq!(names(&left), names(volume));
        writes
    };
    assert_eq!(sync(&mut volume, SyncScope::Everything), 0, "nothing has changed");
    for n in 0..3 {
        volume.unlink(dir, b"journal").unwrap();
        let journal = volume.create(dir, b"journal", &NewNode::new(FILE)).unwrap();
        volume.write(journal, 0, &[n; 9000]).unwrap();
        volume.fsync(journal, SyncScope::Data).unwrap();
        assert_eq!(sync(&mut volume, SyncScope::Data), 0, "the name is in the inode");
    }
    volume.unlink(dir, b"journal").unwrap();
    assert!(sync(&mut volume, SyncScope::Data) > 2, "it would come back");
    assert_eq!(sync(&mut volume, SyncScope::Data), 0);
    let other = volume.create(dir, b"other", &NewNode::new(FILE)).unwrap();
    assert!(sync(&mut volume, SyncScope::Data) > 2, "it was not synced");
    volume.link(other, dir, b"another").unwrap();
    assert!(sync(&mut volume, SyncScope::Data) > 2, "an inode has one name for recovery");
    volume.rename(dir, b"other", dir, b"moved", RenameMode::Replace).unwrap();
    assert!(sync(&mut volume, SyncScope::Data) > 2, "recovery does not take names away");
    let new = volume.create(dir, b"new", &NewNode::new(FILE)).unwrap();
    volume.fsync(new, SyncScope::Data).unwrap();
    assert!(sync(&mut volume, SyncScope::Everything) > 2, "recovery does not know the directory's times");
    volume.fsync(other, SyncScope::Everything).unwrap();
    let checkpoint = volume.last_checkpoint().version;
    volume.write(new, 0, b"changed").unwrap();
    volume.fsync(other, SyncScope::Everything).unwrap();
    assert_eq!(volume.last_checkpoint().version, checkpoint, "two names, but it did not change");
}

/// If whole blocks are appended within one tick of the clock, recovery finds the size without the inode.
#[test]
fn an_fsynced_append_costs_two_writes_and_a_flush_and_its_size_comes_back() {
    const START: u64 = 930; // the inode has no room for more addresses
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    for block in 0..START {
        volume.write(ino, block * 4096, &[block as u8; 4096]).unwrap();
    }
    volume.checkpoint().unwrap();
    drop(volume);

    let recording = Arc::new(Recording::with_data(device));
    let mut volume = Engine::open(recording.clone(), Options::new(|| support::NOW)).unwrap();
    recording.take_trace();
    let before = copy(recording.inner()).unwrap();
    let mut trace = Vec::new();
    // (number of requests at the promise, size)
    let mut promises = vec![(0, START * 4096)];
    use Verb::{Flush, Read, Write};
    let mut append = |volume: &mut Engine, at: u64, length: usize, wanted: &[(Verb, u64)]| {
        let content: Vec<u8> = (at..at + length as u64).map(|at| (at >> 12) as u8).collect();
        volume.write(ino, at, &content).unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
        let new = recording.take_trace().into_iter().filter(|request| request.verb != Read);
        let new: Vec<_> = new.collect();
        let verbs: Vec<_> = new.iter().map(|request| (request.verb, request.length_bytes)).collect();
        assert_eq!(verbs, wanted);
        trace.extend(new);
        promises.push((trace.len(), at + length as u64));
    };
    for block in START..START + 5 {
        append(&mut volume, block * 4096, 4096, &[(Write, 4096), (Write, 4096), (Flush, 0)]);
    }
    // With half a block, only the inode states the file's end. Filling the block adds no new one.
    let half = (START + 5) * 4096;
    append(&mut volume, half, 2048, &[(Write, 4096), (Write, 8192), (Flush, 0)]);
    append(&mut volume, half + 2048, 2048, &[(Write, 4096), (Write, 4096), (Flush, 0)]);
    append(&mut volume, half + 4096, 6 * 4096, &[(Write, 24_576), (Write, 4096), (Flush, 0)]);
    volume.truncate(ino, half).unwrap();
    append(&mut volume, half, 4096, &[(Write, 4096), (Write, 8192), (Flush, 0)]);
    drop(volume);

    for at in 0..=trace.len() {
        for survivors in [Survivors::All, Survivors::None] {
            let cut = copy(&before).unwrap();
            power_cut(&trace, at, &survivors, &cut).unwrap();
            let volume = Engine::open(Arc::new(cut), Options::new(|| support::NOW)).unwrap();
            let size = volume.stat(ino).unwrap().size;
            let last = promises.iter().rposition(|(requests, _)| *requests <= at).unwrap();
            let sizes: Vec<u64> = promises[last..].iter().take(2).map(|promise| promise.1).collect();
            assert!(sizes.contains(&size), "cut {at}: {size}, not one of {sizes:?}");
            let content = read(&volume, ino);
            assert!(content.iter().enumerate().all(|(at, byte)| *byte == (at >> 12) as u8), "cut {at}");
        }
    }
}

/// After the first fsync of a file, its overwritten blocks stay in place, and adjacent blocks are one write.
#[test]
fn neighbours_that_an_fsync_overwrites_in_place_are_one_write() {
    let device = Arc::new(Recording::without_data(MemoryDevice::new(BYTES)));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &[1; 1 << 20]).unwrap();
    volume.checkpoint().unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    device.take_trace();
    volume.write(ino, 40_960, &[2; 16_384]).unwrap();
    volume.write(ino, 20 * 4096, &[3; 4096]).unwrap();
    volume.write(ino, 22 * 4096 + 5, &[4; 4096]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    let trace = device.take_trace();
    let verbs: Vec<_> = trace.iter().map(|request| (request.verb, request.length_bytes)).collect();
    use block::Verb::{Flush, Read, Write};
    assert_eq!(
        verbs,
        [(Read, 4096), (Read, 4096), (Write, 16_384), (Write, 4096), (Write, 8192), (Flush, 0)]
    );
    let mut content = vec![0; 1 << 20];
    volume.read(ino, 0, &mut content).unwrap();
    let wanted: Vec<u8> = (0..1 << 20)
        .map(|at| match at {
            40_960..57_344 => 2,
            81_920..86_016 => 3,
            90_117..94_213 => 4,
            _ => 1,
        })
        .collect();
    assert!(content == wanted);
}

#[test]
fn a_rename_is_not_undone_by_a_new_file_of_the_old_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut volume = support::format(&path, BYTES, &[]);
    let first = volume.create(ROOT, b"log", &NewNode::new(FILE)).unwrap();
    volume.write(first, 0, b"first").unwrap();
    volume.checkpoint().unwrap();
    volume.rename(ROOT, b"log", ROOT, b"log.1", RenameMode::Replace).unwrap();
    let second = volume.create(ROOT, b"log", &NewNode::new(FILE)).unwrap();
    volume.write(second, 0, b"second").unwrap();
    volume.fsync(second, SyncScope::Everything).unwrap();
    drop(volume);
    let mut volume = reopen(&path);
    assert_eq!(read(&volume, volume.lookup(ROOT, b"log").unwrap()), b"second");
    assert_eq!(read(&volume, volume.lookup(ROOT, b"log.1").unwrap()), b"first");
    volume.unmount().unwrap();
    support::assert_clean(&path);
}

#[test]
fn orphans_are_removed_when_the_volume_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut volume = support::format(&path, BYTES, &[]);
    for n in 0..5 {
        let name = format!("file{n}");
        let ino = volume.create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
        volume.write(ino, 0, &[1; 50_000]).unwrap();
        volume.hold(ino);
        volume.unlink(ROOT, name.as_bytes()).unwrap();
    }
    volume.checkpoint().unwrap();
    assert_eq!(volume.orphans().len(), 5);
    drop(volume);
    let mut volume = support::open(&path);
    assert_eq!((volume.orphans().len(), volume.counters().valid_inodes), (0, 1));
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

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
                let ino = volume.create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
                stories.entry(name.clone()).or_default().versions = vec![(0, None), (at, Some(Vec::new()))];
                live.push((name, ino, Vec::new()));
            }
            2..=4 if !live.is_empty() => {
                let (name, ino, content) = &mut live[pick];
                let offset = rng.below(60_000) as usize;
                let data = vec![step as u8; 1 + rng.below(20_000) as usize];
                volume.write(*ino, offset as u64, &data).unwrap();
                content.resize(content.len().max(offset + data.len()), 0);
                content[offset..offset + data.len()].copy_from_slice(&data);
                stories.get_mut(name).unwrap().versions.push((at, Some(content.clone())));
            }
            5 if !live.is_empty() => {
                let (name, ino, content) = &mut live[pick];
                let size = rng.below(80_000) as usize;
                volume.truncate(*ino, size as u64).unwrap();
                content.resize(size, 0);
                stories.get_mut(name).unwrap().versions.push((at, Some(content.clone())));
            }
            6 if live.len() > 3 => {
                let (name, ..) = live.remove(pick);
                volume.unlink(ROOT, name.as_bytes()).unwrap();
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
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.set_xattr(ino, b"user.long", &[0; 3000], XattrMode::Set).unwrap();
    volume.checkpoint().unwrap();
    let from = device.trace().len();
    for version in 1..=6 {
        volume.set_xattr(ino, b"user.long", &[version; 3000], XattrMode::Replace).unwrap();
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

/// If two fsyncs share a flush, or one fsync has several nodes, any part may have reached the device. The
/// state found by the next session stays, together with the fsyncs of that session before the power fails
/// again.
#[test]
fn a_chain_never_continues_into_that_of_an_earlier_session() {
    const NAMES: [&[u8]; 3] = [b"one", b"two", b"three"];
    let options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let open = |device: Arc<dyn Device>| Engine::open(device, options()).unwrap();
    let contents = |volume: &Engine| NAMES.map(|name| read(volume, volume.lookup(ROOT, name).unwrap()));
    let image = {
        let device = Arc::new(MemoryDevice::new(BYTES));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        for name in NAMES {
            let ino = volume.create(ROOT, name, &NewNode::new(FILE)).unwrap();
            // The file is long enough to have a node of addresses besides the inode.
            volume.write(ino, 0, &[1; 4_000_000]).unwrap();
        }
        volume.unmount().unwrap();
        device.to_vec()
    };
    let device = Arc::new(Recording::with_data(MemoryDevice::from_bytes(&image)));
    let mut volume = open(device.clone());
    for name in &NAMES[..2] {
        let ino = volume.lookup(ROOT, name).unwrap();
        volume.write(ino, 0, &[2; 4096]).unwrap();
        volume.write(ino, 3_900_000, &[2; 4096]).unwrap();
        // Runs all of the fsync except the final flush.
        let mut pending = volume.begin_fsync(ino, SyncScope::Everything).unwrap();
        while let Some(sync) = pending.filter(|sync| !sync.is_only_flush()) {
            pending = volume.finish(sync.run()).unwrap();
        }
    }
    let trace = device.take_trace();
    drop(volume);
    let mut cuts = 0;
    for at in 1..=trace.len() {
        let unflushed = block::unflushed_writes(&trace, at).len();
        for mask in 0..1 << unflushed.min(10) {
            let memory = Arc::new(MemoryDevice::from_bytes(&image));
            power_cut(&trace, at, &Survivors::Mask(mask), &*memory).unwrap();
            let mut volume = open(memory.clone());
            let found = contents(&volume);
            let three = volume.lookup(ROOT, NAMES[2]).unwrap();
            volume.write(three, 4096, &[3; 4096]).unwrap();
            // This fsync writes as many nodes as the first one did before.
            volume.write(three, 3_900_000, &[3; 4096]).unwrap();
            volume.fsync(three, SyncScope::Everything).unwrap();
            drop(volume);
            let after = contents(&open(memory));
            let what = format!("{at} of {} requests, survivors {mask:b}", trace.len());
            assert!(after[..2] == found[..2], "{what}: unchanged data differs");
            assert!(after[2][4096..8192] == [3; 4096], "{what}: an fsync is lost");
            cuts += 1;
        }
    }
    assert!(cuts > 20, "{cuts} cuts were tried");
}

/// Blocks written by fsync are recovered or ignored, but never overwritten.
#[test]
fn opening_without_roll_forward_is_read_only() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.write(ino, 0, &[1; 9000]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    drop(volume);
    let options = |read_only| Options { roll_forward: false, read_only, ..Options::new(|| support::NOW) };
    let refused = Engine::open(device.clone(), options(false)).err().unwrap();
    assert!(matches!(refused, f2fs::Error::Invalid(_)), "{refused}");
    assert!(read(&Engine::open(device.clone(), options(true)).unwrap(), ino).is_empty());
    let mut volume = Engine::open(device.clone(), Options::new(|| support::NOW)).unwrap();
    assert!(read(&volume, ino) == [1; 9000]);
    volume.unmount().unwrap();
    Engine::open(device, options(false)).unwrap();
}

/// A file whose name was removed while another link stayed survives a new file of that name.
#[test]
fn a_link_keeps_a_file_whose_name_is_taken_again() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let old = volume.create(ROOT, b"name", &NewNode::new(FILE)).unwrap();
    volume.write(old, 0, b"old").unwrap();
    volume.checkpoint().unwrap();
    volume.link(old, ROOT, b"other").unwrap();
    volume.unlink(ROOT, b"name").unwrap();
    let new = volume.create(ROOT, b"name", &NewNode::new(FILE)).unwrap();
    volume.write(new, 0, b"new").unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    let read_name = |name: &[u8]| read(&volume, volume.lookup(ROOT, name).unwrap());
    assert_eq!((read_name(b"name"), read_name(b"other")), (b"new".to_vec(), b"old".to_vec()));
}

#[test]
fn recovery_leaves_no_two_names_that_fold_alike() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &["casefold"], BlockSize::B4K);
    let dir = volume.create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    volume.set_attr(dir, &SetAttr { flags: Some(flag::CASEFOLD), ..SetAttr::default() }).unwrap();
    volume.create(dir, b"name", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.unlink(dir, b"name").unwrap();
    let new = volume.create(dir, b"NAME", &NewNode::new(FILE)).unwrap();
    volume.fsync(new, SyncScope::Everything).unwrap();
    drop(volume);
    let volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    let names: Vec<_> = volume.entries(dir, 0).unwrap().map(|entry| entry.unwrap().name).collect();
    assert!(names.iter().any(|name| name == b"NAME") && !names.iter().any(|name| name == b"name"));
}

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
            .create(ROOT, name.as_bytes(), &NewNode::new(FILE))
            .and_then(|ino| volume.write(ino, 0, &[9; 12_000]));
        if made.is_err() {
            break;
        }
        names.push(name);
    }
    for name in names.iter().step_by(3) {
        volume.unlink(ROOT, name.as_bytes()).unwrap();
    }
    let file = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    volume.write(file, 0, &[1; 40_000]).unwrap();
    volume.fsync(file, SyncScope::Everything).unwrap();
    let version = volume.last_checkpoint().version;
    // Each round replaces the data of the previous one, and none of it is fsynced.
    let other = volume.create(ROOT, b"other", &NewNode::new(FILE)).unwrap();
    let mut rounds = 0;
    while volume.last_checkpoint().version == version {
        volume.write(file, 0, &[2; 40_000]).unwrap();
        volume.write(other, 0, &[3; 400_000]).unwrap();
        volume.truncate(other, 0).unwrap();
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

/// If a zone has two sections, the writes of an fsync lie in one zone. The data log follows the node log to a
/// new zone, and the chain of nodes that recovery follows stays whole.
#[test]
fn fsyncs_stay_in_a_zone_and_come_back() {
    const RECORDS: u64 = 2500;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(256 << 20)).unwrap();
    let options = mkfs::Options { sections_per_zone: 2, ..mkfs::Options::new([7; 16]) };
    let size = DeviceSize { path: String::new(), bytes: 256 << 20 };
    let plan = Plan::new(&options, &[size]).unwrap();
    let volume_options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let new =
        NewVolume::begin(support::device(&path), &plan, DeviceContent::Zeroes, volume_options()).unwrap();
    let mut volume = new.finish().unwrap();
    let file = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.checkpoint().unwrap();
    let record = |n: u64| [(n % 251) as u8; 4096];
    let mut together = 0;
    for n in 0..RECORDS {
        volume.write(file, n * 4096, &record(n)).unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
        if n % 100 == 99 {
            volume.checkpoint().unwrap();
            let logs = volume.last_checkpoint().logs;
            let zone = |kind: SegmentType| logs[kind.index()].segment.0 / 2;
            together += usize::from(zone(SegmentType::WarmData) == zone(SegmentType::WarmNode));
        }
    }
    assert!(together >= 24, "in one zone at {together} of 25 looks");
    for n in 0..1000 {
        volume.write(file, n * 4096, &record(n + 1)).unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
    }
    drop(volume);

    let mut volume = support::open(&path);
    let content = read(&volume, file);
    assert_eq!(content.len() as u64, RECORDS * 4096);
    for (n, block) in content.chunks_exact(4096).enumerate() {
        let wanted = if n < 1000 { record(n as u64 + 1) } else { record(n as u64) };
        assert!(block == wanted, "record {n}");
    }
    volume.unmount().unwrap();
    drop(volume);
    support::assert_clean(&path);
}

/// A database writes more data than nodes. If the data log has to leave the zone, the node log follows, and
/// the chain continues in the new place.
#[test]
fn nodes_follow_data_into_its_zone_and_are_found_there() {
    const RECORDS: u64 = 900;
    let device = Arc::new(Recording::without_data(MemoryDevice::new(256 << 20)));
    let options = mkfs::Options { sections_per_zone: 2, ..mkfs::Options::new([7; 16]) };
    let plan = Plan::new(&options, &[DeviceSize { path: String::new(), bytes: 256 << 20 }]).unwrap();
    let volume_options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let mut volume = NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, volume_options())
        .unwrap()
        .finish()
        .unwrap();
    let file = volume.create(ROOT, b"a.db", &NewNode::new(FILE)).unwrap();
    volume.write(file, 0, &[0; 40 * 4096]).unwrap();
    volume.checkpoint().unwrap();
    let geometry = *volume.geometry();
    let mut wanted = vec![0; 40 * 4096];
    let (mut apart, mut zones) = (0, Vec::<u32>::new());
    for n in 0..RECORDS {
        let (at, record) = (n as usize * 7 % 38 * 4096, [(n % 251) as u8 + 1; 3 * 4096]);
        device.take_trace();
        volume.write(file, at as u64, &record).unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
        wanted[at..at + record.len()].copy_from_slice(&record);
        let writes = device.take_trace().into_iter().filter(|request| request.verb == Verb::Write);
        let mut of_fsync: Vec<u32> = writes
            .map(|request| geometry.position(BlockAddr((request.offset_bytes / 4096) as u32)).0.0 / 2)
            .collect();
        of_fsync.dedup();
        apart += usize::from(of_fsync.len() > 1);
        zones.extend(of_fsync.last().copied());
        if n % 10 == 9 {
            let left = Engine::open(device.clone(), Options::read_only()).unwrap();
            assert!(read(&left, file) == wanted, "after {n} fsyncs without a checkpoint");
        }
    }
    zones.dedup();
    assert!(zones.len() >= 4, "nodes were in {zones:?}");
    assert!(apart <= zones.len() * 2, "{apart} fsyncs wrote to two zones");
}

/// Makes a volume with zones of two sections after long use, in which no zone is wholly free. It has a file
/// of `blocks` blocks.
fn aged_volume(device: Arc<dyn Device>, bytes: u64, blocks: usize) -> (Engine, Ino) {
    let options = mkfs::Options { sections_per_zone: 2, ..mkfs::Options::new([7; 16]) };
    let plan = Plan::new(&options, &[DeviceSize { path: String::new(), bytes }]).unwrap();
    let volume_options = Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let mut volume =
        NewVolume::begin(device, &plan, DeviceContent::Zeroes, volume_options).unwrap().finish().unwrap();
    let file = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(file, 0, &vec![1; blocks * 4096]).unwrap();
    // New files replace random others until all blocks were written several times.
    let (mut rng, mut live) = (Rng::new(3), Vec::new());
    let goal = volume.last_checkpoint().user_blocks * 6 / 10;
    let mut written = 0;
    while written < 4 * goal {
        let name = format!("f{written}");
        let ino = volume.create(ROOT, name.as_bytes(), &NewNode::new(FILE)).unwrap();
        let blocks = 1 + rng.below(300);
        volume.write(ino, 0, &vec![2; blocks as usize * 4096]).unwrap();
        written += blocks;
        live.push(name);
        while volume.counters().valid_blocks > goal {
            let name = live.swap_remove(rng.below(live.len() as u64) as usize);
            volume.unlink(ROOT, name.as_bytes()).unwrap();
        }
    }
    volume.checkpoint().unwrap();
    let last = volume.last_checkpoint();
    assert!(last.free_segments <= 2 * last.reserved_segments, "{} free segments", last.free_segments);
    (volume, file)
}

/// On an aged volume, too, the data and the nodes of an fsync lie in one zone.
#[test]
fn fsyncs_find_a_zone_on_an_aged_volume() {
    const RECORDS: u64 = 1500;
    const BLOCKS: usize = 600;
    let device = Arc::new(Recording::without_data(MemoryDevice::new(256 << 20)));
    let (mut volume, file) = aged_volume(device.clone(), 256 << 20, BLOCKS);
    let geometry = *volume.geometry();
    let (mut rng, mut apart, mut zones) = (Rng::new(4), 0, Vec::<u32>::new());
    for n in 0..RECORDS {
        device.take_trace();
        volume.write(file, rng.below(BLOCKS as u64) * 4096, &[(n % 251) as u8; 4096]).unwrap();
        volume.fsync(file, SyncScope::Everything).unwrap();
        let writes = device.take_trace().into_iter().filter(|request| request.verb == Verb::Write);
        let addrs = writes.map(|request| BlockAddr((request.offset_bytes / 4096) as u32));
        let in_main = addrs.filter(|addr| geometry.in_main(*addr));
        let mut of_fsync: Vec<u32> = in_main.map(|addr| geometry.position(addr).0.0 / 2).collect();
        of_fsync.dedup();
        apart += usize::from(of_fsync.len() > 1);
        zones.extend(of_fsync.last().copied());
    }
    zones.dedup();
    assert!(zones.len() >= 3, "nodes were in {zones:?}");
    assert!(apart <= 30, "{apart} of {RECORDS} fsyncs wrote to two zones");
}

/// Wherever the power fails there, fsynced data is found in the logs' new places. `AGED_CUTS` sets the number
/// of cuts.
#[test]
fn fsyncs_on_an_aged_volume_survive_cuts() {
    const BLOCKS: usize = 300;
    const BYTES: u64 = 112 << 20;
    let cuts = std::env::var("AGED_CUTS").map_or(24, |cuts| cuts.parse().unwrap());
    let base = Arc::new(MemoryDevice::new(BYTES));
    let (mut volume, file) = aged_volume(base.clone(), BYTES, BLOCKS);
    volume.unmount().unwrap();
    drop(volume);

    let device = Arc::new(Recording::with_data(copy(&base).unwrap()));
    let options = || Options { in_place: InPlace::Never, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options()).unwrap();
    let geometry = *volume.geometry();
    let zone = |addr: BlockAddr| geometry.position(addr).0.0 / 2;
    let (mut rng, mut zones) = (Rng::new(5), Vec::new());
    let mut records: Vec<(usize, u8, usize)> = Vec::new();
    for n in 0..700usize {
        let (block, byte) = (rng.below(BLOCKS as u64) as usize, (n % 251) as u8);
        volume.write(file, block as u64 * 4096, &[byte; 4096]).unwrap();
        volume.fsync(file, [SyncScope::Data, SyncScope::Everything][n % 2]).unwrap();
        records.push((block, byte, device.trace().len()));
        // Other files are written, too, but not synced.
        let name = |n: usize| format!("other{n}").into_bytes();
        if n % 20 == 0 {
            let other = volume.create(ROOT, &name(n), &NewNode::new(FILE)).unwrap();
            volume.write(other, 0, &vec![3; rng.below(60) as usize * 4096]).unwrap();
        }
        match n % 100 {
            50 => volume.unlink(ROOT, &name(n / 20 * 20)).unwrap(),
            99 => drop(volume.clean(1, Policy::Greedy).unwrap()),
            _ => {}
        }
        zones.push(zone(volume.nat_entry(file.into()).unwrap().addr));
    }
    drop(volume);
    zones.dedup();
    assert!(zones.len() > 3, "nodes were in {zones:?}");

    let trace = device.take_trace();
    let dir = tempfile::tempdir().unwrap();
    for n in 0..cuts {
        let at = rng.below(trace.len() as u64) as usize;
        let survivors = match n % 3 {
            0 => Survivors::None,
            1 => Survivors::All,
            _ => Survivors::Mask(rng.next_u64()),
        };
        let left = Arc::new(copy(&base).unwrap());
        power_cut(&trace, at, &survivors, &*left).unwrap();
        let mut volume = Engine::open(left.clone(), options()).unwrap();
        let content = read(&volume, file);
        let mut wanted = vec![1; BLOCKS];
        let promised = records.partition_point(|(_, _, end)| *end <= at);
        records[..promised].iter().for_each(|(block, byte, _)| wanted[*block] = *byte);
        // The node of the fsync that was under way may be present without the data.
        let under_way = records.get(promised).map(|(block, ..)| *block);
        for (block, byte) in wanted.iter().enumerate().filter(|(block, _)| Some(*block) != under_way) {
            let found = &content[block * 4096..][..4096];
            assert!(found.iter().all(|one| one == byte), "cut at {at}, {survivors:?}: block {block}");
        }
        if n % 8 == 0 {
            volume.unmount().unwrap();
            drop(volume);
            let path = dir.path().join("image");
            store(&left, &path).unwrap();
            support::assert_clean(&path);
        }
    }
}

/// A link followed by an unlink is a rename: after fsync the file has its new name.
#[test]
fn a_file_that_was_linked_elsewhere_and_unlinked_is_durable_under_its_new_name() {
    for checkpointed in [true, false] {
        let device = Arc::new(MemoryDevice::new(BYTES));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        let [from, to] =
            [&b"from"[..], b"to"].map(|name| volume.create(ROOT, name, &NewNode::new(0o040_755)).unwrap());
        volume.checkpoint().unwrap();
        let ino = volume.create(from, b"old", &NewNode::new(FILE)).unwrap();
        volume.write(ino, 0, &[1; 9000]).unwrap();
        match checkpointed {
            true => volume.checkpoint().unwrap(),
            false => volume.fsync(ino, SyncScope::Everything).unwrap(),
        }
        volume.link(ino, to, b"new").unwrap();
        volume.unlink(from, b"old").unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
        drop(volume); // without an unmount

        let volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
        assert_eq!(volume.lookup(to, b"new").unwrap(), ino);
        assert!(volume.lookup(from, b"old").is_err());
        assert!(read(&volume, ino) == [1; 9000]);
    }
}

/// On a full volume a new name replaces a removed one. Recovery enters it while the other still exists, so
/// the directory has to grow. The resulting checkpoint once had more blocks than the volume, and could not be
/// opened.
#[test]
fn a_full_volume_recovers_a_name_for_which_its_directory_has_to_grow() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let dir = volume.create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    let mut names = 0;
    while volume.inode(dir).unwrap().has_inline(inline::DENTRY) {
        volume.create(dir, format!("{names}").as_bytes(), &NewNode::new(FILE)).unwrap();
        names += 1;
    }
    for n in (0..names).rev() {
        volume.unlink(dir, format!("{n}").as_bytes()).unwrap();
    }
    volume.remove_dir(ROOT, b"dir").unwrap();
    let dir = volume.create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    for n in 0..names - 1 {
        volume.create(dir, format!("{n}").as_bytes(), &NewNode::new(FILE)).unwrap();
    }
    let full = volume.create(ROOT, b"full", &NewNode::new(FILE)).unwrap();
    let mut size = 0;
    while volume.write(full, size, &[7; 4096]).is_ok() {
        size += 4096;
    }
    volume.truncate(full, size - 4096).unwrap();
    volume.checkpoint().unwrap();
    assert!(volume.inode(dir).unwrap().has_inline(inline::DENTRY));

    volume.unlink(dir, b"0").unwrap();
    let new = volume.create(dir, b"new", &NewNode::new(FILE)).unwrap();
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
    let ino = volume.create(ROOT, b"file", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &vec![1; blocks as usize * 4096]).unwrap();
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
            .write(ino, block * 4096, &[mark; 4096])
            .and_then(|()| volume.fsync(ino, SyncScope::Data))
            .is_err()
        {
            break;
        }
        promised[block as usize] = mark;
        if n % new_each == 0 {
            let name = format!("new{new}");
            let made = volume.create(ROOT, name.as_bytes(), &NewNode::new(FILE)).and_then(|ino| {
                volume.write(ino, 0, &[9; 4096])?;
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
        volume.write(ino, 0, &[promised[0]; 4096]).unwrap();
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

/// Blocks that an fsync overwrites in place may end right before a run of another log. They must not be
/// delayed together with that run.
#[test]
fn overwrites_before_a_run_of_directories_are_durable() {
    let device = Arc::new(MemoryDevice::new(BYTES));
    drop(support::format_on(device.clone(), &[], BlockSize::B4K));
    let options = Options { cache_bytes: 1 << 20, ..Options::new(|| support::NOW) };
    let mut volume = Engine::open(device.clone(), options).unwrap();
    let dir = volume.create(ROOT, b"dir", &NewNode::new(0o040_755)).unwrap();
    // The file has a log of its own, right before the segment that the directories reach.
    let ino = volume.create(ROOT, b"file.db", &NewNode::new(FILE)).unwrap();
    volume.write(ino, 0, &[1; 4096]).unwrap();
    volume.checkpoint().unwrap();
    let mut made = Vec::new();
    let begins = |volume: &Engine, dir: &Ino| {
        let addr = volume.nat_entry(Nid::from(*dir)).unwrap().addr;
        Some(addr).filter(|addr| addr.is_real() && volume.geometry().position(*addr).1 == 0)
    };
    let first = loop {
        made.push(
            volume.create(dir, format!("{}", made.len()).as_bytes(), &NewNode::new(0o040_755)).unwrap(),
        );
        assert!(made.len() < 1000, "the log of the directories opens no segment");
        if let Some(first) = made.iter().find_map(|dir| begins(&volume, dir)) {
            break first;
        }
    };
    let mut last = 0;
    let is_before = |volume: &Engine, at: u64| {
        let place = volume.next_extent(ino, at).unwrap().unwrap().physical.unwrap();
        place / 4096 + 1 == u64::from(first.0)
    };
    while !is_before(&volume, last) {
        last += 4096;
        assert!(last < 512 * 4096, "the file comes to lie elsewhere");
        volume.write(ino, last, &[1; 4096]).unwrap();
    }
    volume.fsync(ino, SyncScope::Everything).unwrap();
    volume.write(ino, last, &[2; 4096]).unwrap();
    volume.fsync(ino, SyncScope::Everything).unwrap();
    assert!(is_before(&volume, last), "it is overwritten in place");
    drop(volume);

    let volume = Engine::open(device, Options::new(|| support::NOW)).unwrap();
    assert!(read(&volume, ino).ends_with(&[2; 4096]));
}
