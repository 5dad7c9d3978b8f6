//! A volume is exported completely: as a directory, as a tar stream, and through GNU tar.

use std::{fs, io::Write, os::unix::fs::MetadataExt, path::Path, process::Command, sync::Arc};

use block::{Device, Overlay};
use f2fs::{
    Error,
    engine::{Engine, FinalSymlink, Options},
    format::FileType,
};
use f2fs_tree::{
    DirSink, DirSource, Entry, ExportOptions, Exported, Holes, Kind, Metadata, Owners, Sink, Source, TarSink,
    TarSource, VolumeSource, export,
};
use guest::{Manifest, Scope, differences};

#[path = "../../f2fs/tests/support/golden.rs"]
mod golden;

/// Images that together contain everything that a tree can have.
const IMAGES: [&str; 8] =
    ["base", "extra-attr", "flexible-xattr", "compress-all", "casefold", "verity", "fragmented", "read-only"];

fn open(name: &str) -> Engine {
    Engine::open(golden::device(name), Options::read_only()).expect("a good volume")
}

fn source(volume: &Engine) -> VolumeSource<'_> {
    VolumeSource::new(volume, volume.superblock().root_ino, b"").expect("a root")
}

/// Returns every entry with its data, in order.
fn everything(source: &mut dyn Source) -> Vec<(Entry, Vec<u8>)> {
    let mut all = Vec::new();
    let mut buf = vec![0; 70_000];
    while let Some(mut entry) = source.next_entry().expect("readable") {
        entry.meta.host = None;
        let size = match entry.kind {
            Kind::File { size, .. } if size < 64 << 20 => size,
            _ => 0,
        };
        let mut bytes = vec![0; size as usize];
        while let Some(run) = source.next_run(&mut buf).expect("readable") {
            if size > 0 {
                bytes[run.offset as usize..][..run.length].copy_from_slice(&buf[..run.length]);
            }
        }
        all.push((entry, bytes));
    }
    all
}

/// Makes a directory on a file system with xattrs, which a temporary file system may lack.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Compares a directory with the kernel's manifest of the image. Entries that only root can make are expected
/// only of root.
fn compare(name: &str, dir: &Path) {
    let mut wanted = golden::manifest(name);
    let mut found = Manifest::of_tree(dir).expect("a directory");
    forgive_far_times(&mut wanted, &found);
    if !is_root() {
        for entry in wanted.entries.iter_mut().chain(&mut found.entries) {
            (entry.uid, entry.gid, entry.mode) = (0, 0, entry.mode & 0o1777);
            entry.xattrs.retain(|name, _| name.0.starts_with(b"user."));
            if entry.mode & 0o400 == 0 {
                (entry.sha256, entry.errors) = (None, Vec::new());
            }
        }
        wanted.entries.retain(|entry| !matches!(entry.kind, guest::Kind::Char | guest::Kind::Block));
    }
    // Holes are a property of the volume. Copies need only have the content.
    let found = differences(&wanted, &found, Scope::Copy, 20);
    assert!(found.is_empty(), "{name}:\n  {}", found.join("\n  "));
}

/// Many hosts cannot store times after the year 2446.
fn forgive_far_times(wanted: &mut Manifest, found: &Manifest) {
    for entry in wanted.entries.iter_mut().filter(|entry| entry.mtime.0 > (1 << 34) - (1 << 31)) {
        let same = found.entries.iter().find(|other| other.path == entry.path);
        entry.mtime = same.map_or(entry.mtime, |other| other.mtime);
    }
}

#[test]
fn an_export_to_a_directory_keeps_everything() {
    for name in IMAGES {
        let dir = scratch();
        let volume = open(name);
        let mut sink = DirSink::new(&dir.path().join("out"), Owners::permitted()).expect("a directory");
        let done = export(&mut source(&volume), &mut sink, ExportOptions::default()).expect("exports");
        assert!(!is_root() || done.losses == 0, "{name}: {done:?}");
        compare(name, &dir.path().join("out"));
    }
}

#[test]
fn a_tar_stream_gives_back_every_entry() {
    for name in IMAGES {
        let volume = open(name);
        let wanted = everything(&mut source(&volume));
        for holes in [Holes::Filled, Holes::Kept] {
            let sparse = holes == Holes::Kept;
            if !sparse && golden::manifest(name).entries.iter().any(|entry| entry.size > 1 << 30) {
                // Without holes, its sparse files would fill a disk.
                continue;
            }
            let mut sink = TarSink::new(Vec::new(), holes);
            let done = export(&mut source(&volume), &mut sink, ExportOptions::default()).expect("exports");
            let stream = sink.into_inner();
            assert_eq!(stream.len() % 10_240, 0);
            let found = everything(&mut TarSource::new(&*stream));
            let wanted: Vec<_> = wanted.iter().filter(|(entry, _)| entry.kind != Kind::Socket).collect();
            assert_eq!(found.len() as u64, done.entries, "{name}");
            assert_eq!(everything(&mut source(&volume)).len() - found.len(), done.losses as usize);
            assert_eq!(found.len(), wanted.len());
            for ((found, bytes), (wanted, wanted_bytes)) in found.iter().zip(wanted) {
                assert!(bytes == wanted_bytes, "{name}: content of {wanted:?}");
                let mut wanted = wanted.clone();
                match &mut wanted.kind {
                    Kind::File { data, .. } if !sparse => *data = None,
                    Kind::HardLink { .. } => {
                        // Another name of a file does not repeat the facts of the first one.
                        (wanted.meta.atime, wanted.meta.ctime) = (None, None);
                        wanted.meta.xattrs.clear();
                    }
                    _ => {}
                }
                assert_eq!(*found, wanted, "{name}");
            }
        }
    }
}

#[test]
fn gnu_tar_unpacks_our_archives() {
    for (name, holes) in
        [("base", Holes::Kept), ("flexible-xattr", Holes::Filled), ("compress-all", Holes::Filled)]
    {
        let dir = scratch();
        let archive = dir.path().join("archive.tar");
        let volume = open(name);
        let file = std::io::BufWriter::new(fs::File::create(&archive).expect("a file"));
        let mut sink = TarSink::new(file, holes);
        let options = ExportOptions::default();
        let done = export(&mut source(&volume), &mut sink, options).expect("exports");
        sink.into_inner().flush().expect("written");
        let out = dir.path().join("out");
        fs::create_dir(&out).expect("a directory");
        let run = Command::new("tar")
            .args(["--xattrs", "--xattrs-include=*", "--acls", "--warning=no-timestamp", "-xpf"])
            .arg(&archive)
            .current_dir(&out)
            .output()
            .expect("tar is installed");
        if !is_root() {
            // It unpacks less and reports that.
            continue;
        }
        let text = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && text.is_empty(), "tar: {text}");
        let mut wanted = golden::manifest(name);
        let sockets = wanted.entries.iter().filter(|entry| entry.kind == guest::Kind::Socket).count();
        assert_eq!(sockets as u64, done.losses);
        wanted.entries.retain(|entry| entry.kind != guest::Kind::Socket);
        let found = Manifest::of_tree(&out).expect("a directory");
        forgive_far_times(&mut wanted, &found);
        let found = differences(&wanted, &found, Scope::Copy, 20);
        assert!(found.is_empty(), "{name}:\n  {}", found.join("\n  "));
    }
}

#[test]
fn holes_stay_holes() {
    let dir = scratch();
    let volume = open("base");
    let mut sink = DirSink::new(dir.path(), Owners::permitted()).expect("a directory");
    let done = export(&mut source(&volume), &mut sink, ExportOptions::default()).expect("exports");
    let total: u64 = golden::manifest("base").entries.iter().map(|entry| entry.size).sum();
    assert!(total > 1 << 32, "the image has huge sparse files");
    assert!(done.bytes < 64 << 20, "{done:?}");
    let copy = DirSource::new(dir.path()).expect("a directory");
    let mut tar = TarSink::new(Vec::new(), Holes::Kept);
    let mut copy: Box<dyn Source> = Box::new(copy);
    export(&mut copy, &mut tar, ExportOptions::default()).expect("exports");
    assert!(tar.into_inner().len() < 64 << 20);
}

#[test]
fn a_part_of_a_volume_can_be_exported() {
    let volume = open("base");
    let file = volume.resolve(b"x-dir/heir", FinalSymlink::NoFollow).expect("it exists");
    let mut one = VolumeSource::new(&volume, file, b"copy").expect("a source");
    let all = everything(&mut one);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].0.path, b"copy");
    let dir = volume.resolve(b"x-dir", FinalSymlink::NoFollow).expect("it exists");
    let all = everything(&mut VolumeSource::new(&volume, dir, b"ignored").expect("a source"));
    let paths: Vec<_> =
        all.iter().map(|(entry, _)| String::from_utf8_lossy(&entry.path).into_owned()).collect();
    assert_eq!(paths, ["", "heir", "heir-dir"]);
}

#[test]
fn encrypted_entries_are_reported_and_the_rest_is_exported() {
    let volume = open("encrypted");
    let dir = scratch();
    let mut sink = DirSink::new(dir.path(), Owners::permitted()).expect("a directory");
    let mut lost_paths = Vec::new();
    let mut lost = |error: &Error| {
        let Error::Lost { path, source, .. } = error else { panic!("{error}") };
        assert!(matches!(**source, Error::NoKey), "{error}");
        lost_paths.push(path.clone());
    };
    let options = ExportOptions { lost: Some(&mut lost), ..ExportOptions::default() };
    let done = export(&mut source(&volume), &mut sink, options).expect("goes on");
    assert_eq!((done.entries, done.losses), (2, 1), "the root and one file");
    assert_eq!(lost_paths, [b"locked"]);
    assert_eq!(fs::read(dir.path().join("plain")).expect("it is there"), b"open to all\n");
    let mut raw = TarSink::new(Vec::new(), Holes::Filled);
    export(&mut source(&volume).raw(), &mut raw, ExportOptions::default()).expect("raw needs no key");
}

#[test]
fn damage_loses_only_the_damaged_parts() {
    let volume = open("base");
    let victim = volume.resolve(b"punched", FinalSymlink::NoFollow).expect("it exists");
    let inode = volume.inode(victim).expect("readable");
    // An address far outside, in the middle of a file.
    let at = volume.nat_entry(victim.into()).expect("in use").addr;
    let offset = u64::from(at.0) * 4096 + inode.layout().addrs_at() as u64 + 4 * 10;
    let device = Arc::new(Overlay::new(golden::device("base")));
    device.write(offset, &0x00F0_0000u32.to_le_bytes()).expect("in memory");
    let volume = Engine::open(device, Options::read_only()).expect("a good volume");
    let whole = everything(&mut source(&open("base")));
    let mut tar = TarSink::new(Vec::new(), Holes::Kept);
    assert!(export(&mut source(&volume), &mut tar, ExportOptions::default()).is_err());
    let mut lost = Vec::new();
    let mut note = |error: &Error| lost.push(error.to_string());
    let mut tar = TarSink::new(Vec::new(), Holes::Kept);
    let options = ExportOptions { keep_going: true, lost: Some(&mut note), ..ExportOptions::default() };
    let Exported { losses, .. } = export(&mut source(&volume), &mut tar, options).expect("goes on");
    let sockets = whole.iter().filter(|(entry, _)| entry.kind == Kind::Socket).count() as u64;
    assert_eq!(losses, sockets + 1, "{lost:?}");
    let told = "punched, bytes 40960 to 45055: corrupt file";
    assert!(
        lost.iter().any(|what| what.starts_with(told) && what.contains("not in the main area")),
        "{lost:?}"
    );
    let found = everything(&mut TarSource::new(&*tar.into_inner()));
    let content = |all: &[(Entry, Vec<u8>)]| {
        all.iter().find(|(entry, _)| entry.path == b"punched").map(|(_, bytes)| bytes.clone()).expect("there")
    };
    let (good, got) = (content(&whole), content(&found));
    assert!(good.len() == got.len() && good != got);
    let differing = good.chunks(4096).zip(got.chunks(4096)).filter(|(a, b)| a != b).count();
    assert_eq!(differing, 1, "one block is lost, and no more");
}

#[test]
fn directories_in_a_cycle_are_an_error() {
    let volume = open("base");
    let root = volume.superblock().root_ino;
    let entry = volume
        .entries(root, 0)
        .expect("a directory")
        .map(|entry| entry.expect("sound"))
        .find(|entry| entry.kind == Some(FileType::Directory) && entry.name == b"x-dir")
        .expect("it exists");
    let found = volume.find_entry(entry.ino, b"heir-dir").expect("sound").expect("it exists");
    // The entry is inline: it becomes another name of its own parent.
    let inode = volume.inode(entry.ino).expect("sound");
    let at = volume.nat_entry(entry.ino.into()).expect("in use").addr;
    let area = inode.layout().inline_range();
    let slots = f2fs::format::dentry::Dentries::new(inode.inline_area(), f2fs::Place::Volume).slots();
    let dentries = area.len() - slots * (11 + 8);
    let offset = u64::from(at.0) * 4096 + (area.start + dentries + found.slot * 11 + 4) as u64;
    let device = Arc::new(Overlay::new(golden::device("base")));
    device.write(offset, &entry.ino.0.to_le_bytes()).expect("in memory");
    let volume = Engine::open(device, Options::read_only()).expect("a good volume");
    assert_eq!(volume.lookup(entry.ino, b"heir-dir").ok(), Some(entry.ino));
    let mut tar = TarSink::new(Vec::new(), Holes::Kept);
    let error = export(&mut source(&volume), &mut tar, ExportOptions::default()).expect_err("a cycle");
    assert!(error.to_string().starts_with("x-dir/heir-dir: corrupt"), "{error}");
    assert!(error.to_string().contains("the directory has two names"), "{error}");
}

#[test]
fn a_sink_creates_only_new_entries_and_follows_no_link() {
    let dir = scratch();
    let (out, outside) = (dir.path().join("out"), dir.path().join("outside"));
    fs::create_dir_all(&out).expect("a directory");
    fs::create_dir_all(&outside).expect("a directory");
    std::os::unix::fs::symlink(&outside, out.join("x-dir")).expect("a link");
    let volume = open("base");
    let mut sink = DirSink::new(&out, Owners::permitted()).expect("a directory");
    assert!(export(&mut source(&volume), &mut sink, ExportOptions::default()).is_err());
    assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0);
}

#[test]
fn an_entry_stays_until_its_replacement_is_complete() {
    let dir = scratch();
    let root = dir.path();
    let read = |name: &str| fs::read(root.join(name)).unwrap();
    fs::write(root.join("a"), "old").unwrap();
    fs::hard_link(root.join("a"), root.join("b")).unwrap();
    std::os::unix::fs::symlink("a", root.join("s")).unwrap();
    let begun = |sink: &mut DirSink| {
        let meta = Metadata { permissions: 0o640, ..Metadata::default() };
        let kind = Kind::File { size: 3, data: None };
        sink.entry(&Entry { path: b"a".to_vec(), kind, meta }).unwrap();
        sink.run(0, b"new").unwrap();
    };
    let sink = || DirSink::new(root, Owners::Caller).unwrap().overwriting();

    let mut dropped = sink();
    begun(&mut dropped);
    assert_eq!(read("a"), b"old");
    drop(dropped);
    let mut given_up = sink();
    begun(&mut given_up);
    given_up.replacement().give_up();
    assert_eq!((read("a"), fs::read_dir(root).unwrap().count()), (b"old".to_vec(), 3));
    drop(given_up);

    let mut done = sink();
    begun(&mut done);
    let link = |path: &str, kind| Entry { path: path.into(), kind, meta: Metadata::default() };
    for entry in [
        link("b", Kind::HardLink { to: b"a".to_vec() }),
        // Both names already denote one file.
        link("b", Kind::HardLink { to: b"a".to_vec() }),
        link("s", Kind::Symlink { target: b"b".to_vec() }),
    ] {
        done.entry(&entry).unwrap();
    }
    done.finish().unwrap();
    assert_eq!((read("a"), read("b")), (b"new".to_vec(), b"new".to_vec()));
    assert_eq!(fs::read_link(root.join("s")).unwrap(), Path::new("b"));
    assert_eq!(fs::metadata(root.join("a")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::read_dir(root).unwrap().count(), 3, "no temporary name is left");
}

#[test]
fn names_of_attributes_survive_gnu_tar_in_both_directions() {
    let dir = scratch();
    let tar = |arguments: &[&str]| {
        let run = Command::new("tar").arg("--xattrs").args(arguments).current_dir(dir.path()).output();
        let run = run.expect("tar is installed");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    };
    let names = ["user.a", "user.a=b", "user.p%c", "user.q%3D"];
    fs::create_dir(dir.path().join("tree")).expect("a directory");
    fs::write(dir.path().join("tree/file"), "content").expect("a file");
    for name in names {
        xattr::set(dir.path().join("tree/file"), name, name.as_bytes()).expect("the host has attributes");
    }
    let mut sink = TarSink::new(Vec::new(), Holes::Filled);
    let mut tree = DirSource::new(&dir.path().join("tree")).expect("a directory");
    export(&mut tree, &mut sink, ExportOptions::default()).expect("exports");
    fs::write(dir.path().join("ours.tar"), sink.into_inner()).expect("written");
    fs::create_dir(dir.path().join("out")).expect("a directory");
    tar(&["-xf", "ours.tar", "-C", "out"]);
    for name in names {
        let value = xattr::get(dir.path().join("out/file"), name).expect("readable");
        assert_eq!(value.as_deref(), Some(name.as_bytes()), "{name}");
    }
    tar(&["-cf", "theirs.tar", "-C", "tree", "file"]);
    for archive in ["ours.tar", "theirs.tar"] {
        let archive = fs::read(dir.path().join(archive)).expect("readable");
        let entries = everything(&mut TarSource::new(&*archive));
        let (file, _) = entries.iter().find(|(entry, _)| entry.path == b"file").expect("it exists");
        let found: Vec<_> = file.meta.xattrs.iter().map(|xattr| (&*xattr.name, &*xattr.value)).collect();
        assert_eq!(found, names.map(|name| (name.as_bytes(), name.as_bytes())));
    }
}
