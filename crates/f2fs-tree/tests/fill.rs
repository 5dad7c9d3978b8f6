//! Volumes filled from trees: judged by fsck.f2fs and by reading them back.

mod support;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    sync::Arc,
};

use block::{Counted, Device, MemoryDevice};
use f2fs::{
    Error,
    engine::{self, Engine, FinalSymlink},
    format::{BlockSize, FileType},
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::{Ino, Time},
};
use f2fs_tree::{
    DirSource, Entry, FillOptions, Filled, Kind, Need, SLACK_BLOCKS, Source, TarSource, Transform, count,
    fill,
};
use support::{
    NOW, assert_clean, device,
    given::{entry, file, given},
    tree::make_tree,
};

const ROOT: Ino = Ino(3);

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn options(features: &str) -> mkfs::Options {
    mkfs::Options { features: mkfs::parse_features(features).unwrap(), ..mkfs::Options::new([0x5A; 16]) }
}

fn plan(options: &mkfs::Options, bytes: u64) -> Plan {
    Plan::new(options, &[DeviceSize { path: String::new(), bytes }]).unwrap()
}

fn volume_options() -> engine::Options {
    engine::Options::new(|| NOW)
}

/// Makes a volume in a new image and fills it.
fn make(image: &Path, plan: &Plan, bytes: u64, source: &mut dyn Source) -> f2fs::Result<(Filled, Engine)> {
    File::create(image).and_then(|file| file.set_len(bytes)).unwrap();
    let mut new = NewVolume::begin(device(image), plan, DeviceContent::Zeroes, volume_options())?;
    let filled = fill(new.volume(), ROOT, source, FillOptions { root: true, ..FillOptions::default() })?;
    Ok((filled, new.finish()?))
}

/// An entry with its data.
type Content = BTreeMap<Vec<u8>, (Entry, Vec<u8>)>;

/// Returns everything that a source has. Holes of sparse files are filled with zeroes.
fn content(source: &mut dyn Source) -> Content {
    let mut all = Content::new();
    let mut buf = vec![0; 1 << 16];
    while let Some(entry) = source.next_entry().unwrap() {
        let size = if let Kind::File { size, .. } = entry.kind { size } else { 0 };
        let mut data = vec![0; size as usize];
        while let Some(run) = source.next_run(&mut buf).unwrap() {
            data[run.offset as usize..][..run.length].copy_from_slice(&buf[..run.length]);
        }
        all.insert(entry.path.clone(), (entry, data));
    }
    all
}

/// Compares a volume with its source, name by name.
fn assert_same(volume: &Engine, expected: &Content, skip: &[&str]) {
    let mut seen = 0;
    let mut inos: BTreeMap<Vec<u8>, Ino> = BTreeMap::new();
    let mut to_do = vec![(Vec::new(), ROOT)];
    while let Some((dir, ino)) = to_do.pop() {
        inos.insert(dir.clone(), ino);
        if volume.stat(ino).unwrap().kind != FileType::Directory {
            continue;
        }
        for item in volume.entries(ino, 0).unwrap() {
            let item = item.unwrap();
            if item.name == b"." || item.name == b".." {
                continue;
            }
            let path = if dir.is_empty() { item.name.clone() } else { [&dir[..], &item.name].join(&b'/') };
            assert_eq!(volume.lookup(ino, &item.name).unwrap(), item.ino);
            to_do.push((path, item.ino));
        }
    }
    for (path, ino) in &inos {
        let shown = String::from_utf8_lossy(path).into_owned();
        if skip.contains(&&shown[..]) {
            continue;
        }
        let (entry, data) = expected.get(path).unwrap_or_else(|| panic!("{shown} is too much"));
        seen += 1;
        let (first, data) = match &entry.kind {
            Kind::HardLink { to } => {
                assert_eq!(inos[to], *ino, "{shown}");
                let (first, data) = &expected[to];
                (first, data)
            }
            _ => (entry, data),
        };
        assert_same_attributes(volume, *ino, first, &shown);
        assert_same_content(volume, *ino, &first.kind, data, &shown);
    }
    assert_eq!(seen, expected.len(), "something is missing");
}

/// Compares owners, times and extended attributes of a file with those of its entry.
fn assert_same_attributes(volume: &Engine, ino: Ino, entry: &Entry, shown: &str) {
    let (stat, meta) = (volume.stat(ino).unwrap(), &entry.meta);
    assert_eq!((stat.uid, stat.gid, stat.mode & 0o7777), (meta.uid, meta.gid, meta.permissions), "{shown}");
    assert_eq!((stat.mtime, Some(stat.ctime)), (meta.mtime, meta.ctime.or(Some(meta.mtime))), "{shown}");
    if !matches!(entry.kind, Kind::Symlink { .. }) {
        // Reading a link on the host changes its time of last access.
        assert_eq!(Some(stat.atime), meta.atime.or(Some(meta.mtime)), "{shown}");
    }
    let mut names = volume.list_xattrs(ino).unwrap();
    names.sort();
    let xattrs: Vec<_> =
        names.iter().map(|name| (name.clone(), volume.get_xattr(ino, name).unwrap())).collect();
    let wanted: Vec<_> = meta.xattrs.iter().map(|x| (x.name.clone(), x.value.clone())).collect();
    assert_eq!(xattrs, wanted, "{shown}");
}

/// Compares the type and the data of a file with those of its entry.
fn assert_same_content(volume: &Engine, ino: Ino, kind: &Kind, data: &[u8], shown: &str) {
    let stat = volume.stat(ino).unwrap();
    match kind {
        Kind::Directory => assert_eq!(stat.kind, FileType::Directory, "{shown}"),
        Kind::File { size, data: runs } => {
            assert_eq!((stat.kind, stat.size), (FileType::Regular, *size), "{shown}");
            let mut read = vec![0; *size as usize];
            assert_eq!(volume.read(ino, 0, &mut read).unwrap(), read.len());
            assert!(read == *data, "{shown}");
            if let Some(runs) = runs {
                let bytes = volume.superblock().block_size.bytes() as u64;
                let stored: u64 = runs.iter().map(|run| run.end.div_ceil(bytes) - run.start / bytes).sum();
                let blocks = stat.sectors * 512 / bytes;
                assert!(blocks <= stored + 3, "{shown}: {blocks} blocks for {stored}");
            }
        }
        Kind::Symlink { target } => assert_eq!(volume.read_link(ino).unwrap(), *target, "{shown}"),
        Kind::CharDevice(number) | Kind::BlockDevice(number) => {
            assert_eq!(stat.device, Some(*number), "{shown}");
        }
        Kind::Fifo => assert_eq!(stat.kind, FileType::Fifo, "{shown}"),
        Kind::Socket => assert_eq!(stat.kind, FileType::Socket, "{shown}"),
        Kind::HardLink { .. } => unreachable!("first names are not links"),
    }
}

#[test]
fn a_tree_of_everything_comes_back_in_every_feature_set() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    let expected = content(&mut DirSource::new(&tree).unwrap());
    for (features, block_size) in [
        ("", BlockSize::B4K),
        ("extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr", BlockSize::B4K),
        ("extra_attr,project_quota,quota,lost_found,verity,encrypt,casefold", BlockSize::B4K),
        ("quota,lost_found", BlockSize::B4K),
        ("extra_attr,compression,inode_checksum", BlockSize::B16K),
    ] {
        let image = dir.path().join("image");
        let options = mkfs::Options { block_size, ..options(features) };
        let bytes = if block_size == BlockSize::B4K { 100 << 20 } else { 400 << 20 };
        let plan = plan(&options, bytes);
        let (filled, volume) = make(&image, &plan, bytes, &mut DirSource::new(&tree).unwrap()).unwrap();
        assert_eq!(filled.entries, expected.len() as u64 - 1, "{features}");
        assert_same(&volume, &expected, &["lost+found"]);
        drop(volume);
        if block_size == BlockSize::B4K {
            assert_clean(&image);
        }
        assert_same(&support::open_read_only(&image), &expected, &["lost+found"]);
    }
}

/// Returns the blocks and nodes taken by a fill, and the need computed before it.
fn taken_and_counted(features: &str, block_size: BlockSize, entries: Vec<Entry>) -> (Need, Need) {
    let options = mkfs::Options { block_size, ..options(features) };
    let bytes = 1u64 << 30;
    let plan = plan(&options, bytes);
    let data = RefCell::new(0);
    let transform = Transform::default();
    let need =
        count(&mut given(entries.clone(), &data), &transform, &plan.superblock, &volume_options()).unwrap();
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
    let mut new = NewVolume::begin(memory, &plan, DeviceContent::Zeroes, volume_options()).unwrap();
    let before = new.volume().counters();
    let filled = fill(new.volume(), ROOT, &mut given(entries, &data), FillOptions::default()).unwrap();
    let after = new.volume().counters();
    let taken = Need {
        entries: filled.entries,
        bytes: filled.bytes,
        // The root itself existed before, with its first block.
        blocks: after.valid_blocks - before.valid_blocks + 2,
        nodes: u64::from(after.valid_nodes - before.valid_nodes) + 1,
        ids: need.ids,
    };
    assert_eq!(*data.borrow(), filled.bytes);
    (taken, need)
}

/// The count is exact for every kind of entry with a rule of its own.
#[test]
fn the_counted_blocks_are_the_used_blocks() {
    let sparse = |path: &str, size: u64, data: &[std::ops::Range<u64>]| {
        entry(path, Kind::File { size, data: Some(data.to_vec()) })
    };
    let mib = 1u64 << 20;
    let xattrs = |path: &str, bytes: usize| {
        let mut file = file(path, 10);
        file.meta.set_xattr(b"user.x", vec![1; bytes]);
        file
    };
    let mut entries = vec![
        file("empty", 0),
        file("one", 1),
        file("inline", 3400),
        file("inline-most", 3488),
        file("inline-over", 3489),
        file("block", 4096),
        file("block-over", 4097),
        file("direct", 873 * 4096),
        file("direct-over", 923 * 4096),
        file("direct-over2", 924 * 4096),
        file("node", 1941 * 4096),
        file("nodes", 12 * mib + 77),
        sparse("all-hole", 20 * mib, &[]),
        sparse("small-hole", 2000, &[]),
        sparse("ends", 900 * mib, &[0..10, 450 * mib..450 * mib + 5000, 900 * mib - 1..900 * mib]),
        sparse("shared", 30 * mib, &[0..512, 1024..1536, 4096..4608, 8191..8193]),
        sparse("double", 20 << 30, &[(18 << 30)..(18 << 30) + 1, (20 << 30) - 4096..20 << 30]),
        xattrs("xattr-inline", 100),
        xattrs("xattr-most", 165),
        xattrs("xattr-over", 175),
        xattrs("xattr-large", 3000),
        entry("link", Kind::Symlink { target: vec![b'x'; 100] }),
        entry("link-long", Kind::Symlink { target: vec![b'x'; 4000] }),
        entry("fifo", Kind::Fifo),
        entry("hard", Kind::HardLink { to: b"one".to_vec() }),
        file("implied/parents/file", 1),
        entry("dir", Kind::Directory),
    ];
    for count in [50, 170, 180, 190, 500] {
        entries.push(entry(format!("dir/{count}"), Kind::Directory));
        entries.extend((0..count).map(|n| entry(format!("dir/{count}/name-{n}"), Kind::Socket)));
    }
    entries.push(entry("dir/long", Kind::Directory));
    entries.extend((0..300).map(|n| file(format!("dir/long/{n:0255}"), 0)));
    for (features, block_size) in [
        ("", BlockSize::B4K),
        ("extra_attr,flexible_inline_xattr,inode_checksum", BlockSize::B4K),
        ("extra_attr", BlockSize::B16K),
    ] {
        let (taken, need) = taken_and_counted(features, block_size, entries.clone());
        assert_eq!(taken, need, "{features} {block_size:?}");
    }
}

#[test]
fn large_directories_are_counted_exactly_and_filled_quickly() {
    let entries: Vec<Entry> =
        (0..100_000).map(|n| entry(format!("name-{n}-{:x}", n * 7919), Kind::Fifo)).collect();
    let (taken, need) = taken_and_counted("", BlockSize::B4K, entries);
    assert_eq!(taken, need);
}

/// The smallest volume holds its content with the requested free space. One zone less is planned as too
/// small.
#[test]
fn the_smallest_volume_holds_its_content() {
    let dir = scratch();
    let image = dir.path().join("image");
    let data = RefCell::new(0);
    for (features, section, count, free_percent) in
        [("", 1, 10, 0.0), ("", 1, 900, 0.0), ("quota", 1, 333, 25.0), ("lost_found", 4, 600, 0.0)]
    {
        let options = mkfs::Options { segments_per_section: section, ..options(features) };
        let entries: Vec<Entry> = (0..count).map(|n| file(format!("file{n}"), 77_777 + n)).collect();
        let bytes = f2fs_tree::smallest_for(
            &mut given(entries.clone(), &data),
            &Transform::default(),
            &options,
            &volume_options(),
            free_percent,
        )
        .unwrap();
        let plan = plan(&options, bytes);
        let (_, volume) = make(&image, &plan, bytes, &mut given(entries, &data)).unwrap();
        let (used, free) = (volume.counters().valid_blocks, volume.free_user_blocks());
        assert!(free as f64 >= used as f64 * free_percent / 100.0, "{free} of {used} blocks");
        // It is not larger than necessary: it has at most two sections more than requested, beyond the engine's
        // slack, or it is the smallest volume possible.
        let slack = 2 * SLACK_BLOCKS + u64::from(section) * 512 * 2;
        let smallest = bytes == Plan::smallest_bytes(&options).unwrap();
        assert!(
            smallest || free <= (used as f64 * free_percent / 100.0) as u64 + slack,
            "{free} blocks free"
        );
        drop(volume);
        assert_clean(&image);
    }
}

#[test]
fn a_lack_of_space_reports_the_need_and_leaves_nothing() {
    let dir = scratch();
    let image = dir.path().join("image");
    let plan = plan(&options(""), 64 << 20);
    let data = RefCell::new(0);
    let entries: Vec<Entry> = (0..100).map(|n| file(format!("file{n}"), 1 << 20)).collect();
    let transform = Transform::default();
    let need =
        count(&mut given(entries.clone(), &data), &transform, &plan.superblock, &volume_options()).unwrap();
    match make(&image, &plan, 64 << 20, &mut given(entries, &data)) {
        Err(Error::NoSpace { needed_bytes, free_bytes }) => {
            assert_eq!(needed_bytes, (need.blocks + SLACK_BLOCKS) * 4096);
            let free_blocks = free_bytes / 4096;
            assert!(free_blocks < plan.user_blocks && free_blocks > plan.user_blocks - 10);
        }
        other => panic!("{:?}", other.map(|(filled, _)| filled)),
    }
    // Without a superblock there is no volume.
    assert_eq!(fs::read(&image).unwrap()[..8192], [0; 8192]);

    // An existing volume stays unchanged without a checkpoint.
    let given_one = || vec![file("before", 5000)];
    let (_, volume) = make(&image, &plan, 64 << 20, &mut given(given_one(), &data)).unwrap();
    drop(volume);
    let options = engine::Options { checkpoint_when_asked: true, ..volume_options() };
    let mut volume = Engine::open(device(&image), options).unwrap();
    // The last part alone would make the engine require more space repeatedly.
    let entries: Vec<Entry> =
        (0..100).flat_map(|n| [file(format!("file{n}"), 1 << 20), file("again", 1 << 20)]).collect();
    let result = fill(&mut volume, ROOT, &mut given(entries, &data), FillOptions::default());
    assert!(matches!(result, Err(Error::NoSpace { .. })));
    drop(volume);
    assert_clean(&image);
    let volume = support::open_read_only(&image);
    let names: Vec<Vec<u8>> = volume.entries(ROOT, 0).unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(names, [&b"."[..], b"..", b"before"]);
}

#[test]
fn an_import_merges_directories_and_replaces_files() {
    let dir = scratch();
    let image = dir.path().join("image");
    let data = RefCell::new(0);
    let plan = plan(&options("extra_attr"), 64 << 20);
    let mut sub = entry("sub", Kind::Directory);
    sub.meta.set_xattr(b"user.old", b"1".to_vec());
    let old = vec![
        sub,
        file("sub/kept", 10),
        file("sub/replaced", 100_000),
        file("sub/becomes-dir", 1),
        entry("sub/empty-dir", Kind::Directory),
        entry("sub/link", Kind::Symlink { target: b"kept".to_vec() }),
        entry("sub/hard", Kind::HardLink { to: b"sub/kept".to_vec() }),
    ];
    drop(make(&image, &plan, 64 << 20, &mut given(old, &data)).unwrap());
    let mut volume = support::open(&image);
    let later = Time { seconds: 2_000_000_000, nanoseconds: 1 };
    let mut sub = entry("sub", Kind::Directory);
    (sub.meta.permissions, sub.meta.mtime) = (0o700, later);
    sub.meta.set_xattr(b"user.new", b"2".to_vec());
    let new = vec![
        sub,
        file("sub/replaced", 10),
        entry("sub/becomes-dir", Kind::Directory),
        file("sub/becomes-dir/x", 1),
        file("sub/empty-dir", 3),
        file("sub/link", 4),
        entry("sub/hard", Kind::HardLink { to: b"sub/link".to_vec() }),
        file("fresh/deep/file", 5000),
    ];
    fill(&mut volume, ROOT, &mut given(new.clone(), &data), FillOptions::default()).unwrap();
    // A repetition has no effect.
    fill(&mut volume, ROOT, &mut given(new, &data), FillOptions::default()).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    assert_clean(&image);
    let volume = support::open_read_only(&image);
    let get = |path: &str| {
        volume.resolve(path.as_bytes(), FinalSymlink::NoFollow).and_then(|ino| volume.stat(ino)).unwrap()
    };
    assert_eq!((get("/sub/kept").size, get("/sub/kept").links), (10, 1));
    assert_eq!(get("/sub/replaced").size, 10);
    assert_eq!(get("/sub/becomes-dir").kind, FileType::Directory);
    assert_eq!(get("/sub/empty-dir").size, 3);
    assert_eq!((get("/sub/link").kind, get("/sub/link").links), (FileType::Regular, 2));
    assert_eq!(get("/sub/hard").ino, get("/sub/link").ino);
    assert_eq!(get("/fresh/deep/file").size, 5000);
    let sub = get("/sub");
    assert_eq!((sub.mode & 0o7777, sub.mtime), (0o700, later));
    assert_eq!(volume.list_xattrs(sub.ino).unwrap(), [b"user.new".to_vec()]);

    // A directory that is not empty stays, and so does everything else.
    drop(volume);
    let mut volume = support::open(&image);
    let error = fill(&mut volume, ROOT, &mut given(vec![file("sub", 1)], &data), FillOptions::default());
    assert_eq!(error.unwrap_err().to_string(), "sub: directory not empty");
}

/// The same input and latest time give the same bytes, at any time and in whatever order the host lists
/// names.
#[test]
fn images_repeat_to_the_byte() {
    let dir = scratch();
    let mut images = Vec::new();
    for order in [false, true] {
        let tree = dir.path().join(format!("tree{order}"));
        fs::create_dir(&tree).unwrap();
        let mut names: Vec<String> = (0..300).map(|n| format!("{:x}", n * 7919)).collect();
        if order {
            names.reverse();
        }
        for name in names {
            fs::write(tree.join(&name), name.repeat(1000)).unwrap();
        }
        let image = dir.path().join(format!("image{order}"));
        let bytes = 64 << 20;
        File::create(&image).and_then(|file| file.set_len(bytes)).unwrap();
        let epoch = Time { seconds: 1_000_000_000, nanoseconds: 0 };
        let plan = plan(&options("extra_attr,inode_crtime"), bytes);
        let options = engine::Options::new(move || epoch);
        let mut new = NewVolume::begin(device(&image), &plan, DeviceContent::Zeroes, options).unwrap();
        let transform = Transform { latest: Some(epoch), ..Transform::default() };
        let options = FillOptions { transform, root: true, ..FillOptions::default() };
        fill(new.volume(), ROOT, &mut DirSource::new(&tree).unwrap(), options).unwrap();
        new.finish().unwrap();
        images.push(fs::read(&image).unwrap());
    }
    assert!(images[0] == images[1]);
}

#[test]
fn old_content_of_a_device_does_not_show_through() {
    let dir = scratch();
    let image = dir.path().join("image");
    let bytes = 64u64 << 20;
    let plan = plan(&options("quota"), bytes);
    fs::write(&image, vec![0xA5; bytes as usize]).unwrap();
    let mut new = NewVolume::begin(device(&image), &plan, DeviceContent::Unknown, volume_options()).unwrap();
    let data = RefCell::new(0);
    fill(new.volume(), ROOT, &mut given(vec![file("x", 5000)], &data), FillOptions::default()).unwrap();
    drop(new.finish().unwrap());
    assert_clean(&image);
}

#[test]
fn links_to_missing_targets_are_errors_with_the_path() {
    let data = RefCell::new(0);
    let plan = plan(&options(""), 64 << 20);
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let mut new = NewVolume::begin(memory, &plan, DeviceContent::Zeroes, volume_options()).unwrap();
    for (kind, part) in [
        (Kind::HardLink { to: b"none".to_vec() }, "a/b: hard link to none"),
        (Kind::HardLink { to: b"no/such".to_vec() }, "a/b: hard link to no/such"),
        (Kind::Symlink { target: vec![b'x'; 4096] }, "a/b: name too long"),
        (Kind::File { size: 1 << 60, data: Some(vec![]) }, "a/b: file too large"),
    ] {
        let result =
            fill(new.volume(), ROOT, &mut given(vec![entry("a/b", kind)], &data), FillOptions::default());
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let mut large = file("large", 1);
    large.meta.set_xattr(b"user.a", vec![1; 5000]);
    let result = fill(new.volume(), ROOT, &mut given(vec![large], &data), FillOptions::default());
    assert!(result.unwrap_err().to_string().contains("large: extended attributes of"));
}

/// A tar stream gives the same volume as the directory that it was made from.
#[test]
fn an_archive_fills_like_its_directory() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    let output = std::process::Command::new("tar")
        .args([
            "--format=posix",
            "--xattrs",
            "--xattrs-include=*",
            "--sparse",
            "--sort=name",
            "--numeric-owner",
        ])
        .args(["-cf", "-", "-C"])
        .arg(&tree)
        .arg(".")
        .output()
        .unwrap();
    let image = dir.path().join("image");
    let plan = plan(&options(""), 100 << 20);
    let (_, volume) = make(&image, &plan, 100 << 20, &mut TarSource::new(&output.stdout[..])).unwrap();
    drop(volume);
    assert_clean(&image);
    let volume = support::open_read_only(&image);
    assert_same(&volume, &content(&mut TarSource::new(&output.stdout[..])), &[]);
}

#[test]
fn filling_a_volume_with_many_names_reads_each_block_of_their_directory_few_times() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    const NAMES: u64 = 15_000;
    for n in 0..NAMES {
        File::create(tree.join(format!("{n:07}"))).unwrap();
    }
    // The cache is so small that directories' blocks are written on the way.
    let small_cache = engine::Options { cache_bytes: 1 << 20, ..volume_options() };
    let device = Arc::new(Counted::new(MemoryDevice::new(128 << 20)));
    let plan = plan(&options(""), 128 << 20);
    let mut new = NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, small_cache).unwrap();
    device.take_counts();
    let mut source = DirSource::new(&tree).unwrap();
    let filled = fill(new.volume(), ROOT, &mut source, FillOptions::default()).unwrap();
    assert_eq!(filled.entries, NAMES);
    let reads = device.counts().reads;
    assert!(reads < NAMES, "{reads} reads for {NAMES} names");
}

#[test]
fn a_directory_keeps_its_time_when_a_later_entry_makes_another_one_in_it() {
    let data = RefCell::new(0);
    let earlier = Time { seconds: 1_000_000_000, nanoseconds: 7 };
    let mut dir = entry("a", Kind::Directory);
    dir.meta.mtime = earlier;
    // An archive that `tar -r` appended to: no entry for a/x.
    let entries = vec![dir, file("a/1", 1), entry("b", Kind::Directory), file("a/x/y", 1)];
    let plan = plan(&options("extra_attr"), 64 << 20);
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let mut new = NewVolume::begin(memory, &plan, DeviceContent::Zeroes, volume_options()).unwrap();
    fill(new.volume(), ROOT, &mut given(entries, &data), FillOptions::default()).unwrap();
    let ino = new.volume().lookup(ROOT, b"a").unwrap();
    assert_eq!(new.volume().stat(ino).unwrap().mtime, earlier);
}
