//! Mounts of volumes that Linux wrote: everything must look as it does on Linux.

mod support;

use std::{
    fs,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use f2fs::engine::{Engine, Options};
use support::Bench;

/// Unpacks a golden image.
fn golden(name: &str) -> Bench {
    let bench = Bench::empty();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/golden/{name}.img.zst"));
    let packed = fs::File::open(&packed).expect("the golden image exists");
    let mut image = fs::File::create(bench.image()).expect("the image can be made");
    zstd::stream::copy_decode(packed, &mut image).expect("the golden image unpacks");
    bench
}

fn everything_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut rest = vec![dir.to_path_buf()];
    while let Some(dir) = rest.pop() {
        for entry in fs::read_dir(&dir).expect("the directory can be read") {
            let entry = entry.expect("the entry can be read");
            if entry.file_type().expect("it has a kind").is_dir() {
                rest.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn every_kind_of_entry_is_shown() {
    needs_fuse!();
    let mut bench = golden("base");
    let before = fs::read(bench.image()).unwrap();
    bench.mount("ro");
    let stat = |name: &str| fs::symlink_metadata(bench.path(name)).expect(name);
    assert!(stat("fifo").file_type().is_fifo());
    assert!(stat("block-new").file_type().is_block_device());
    assert_eq!(stat("block-new").rdev(), rustix::fs::makedev(259, 300));
    assert_eq!(stat("char-new").rdev(), rustix::fs::makedev(300, 70_000));
    assert_eq!(stat("linked").ino(), stat("linked-2").ino());
    assert_eq!(stat("linked").nlink(), 3);
    assert_eq!(stat("").ino(), 3, "the root has the number that the volume gives it");
    assert_eq!(stat("levels").size(), 45_365_686_286);
    let all = everything_below(&bench.path(""));
    assert!(all.len() > 400, "{} entries", all.len());
    assert!(fs::write(bench.path("new"), "x").is_err(), "it is mounted read-only");
    bench.unmount();
    assert!(fs::read(bench.image()).unwrap() == before, "a read-only mount writes nothing");
}

#[test]
fn seeking_finds_data_and_holes() {
    needs_fuse!();
    let mut bench = golden("base");
    bench.mount("ro");
    let file = fs::File::open(bench.path("holes")).unwrap();
    let (mut at, mut data) = (0, 0);
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).unwrap();
        assert!(start >= at && end > start);
        (at, data) = (end, data + end - start);
    }
    let size = file.metadata().unwrap().len();
    assert!(data > 0 && data < size, "{data} of {size} bytes are data");
    drop(file);
    bench.unmount();
}

#[test]
fn a_second_writer_is_refused_and_readers_are_not() {
    needs_fuse!();
    let mut first = Bench::mounted(64);
    let mut second = Bench::empty();
    fs::remove_file(second.image()).ok();
    std::os::unix::fs::symlink(first.image(), second.image()).unwrap();
    let refused = second.try_mount("").expect_err("the image has a writer");
    assert!(refused.contains("mounted at") || refused.contains("another program is writing"), "{refused}");
    first.unmount();
    second.mount("");
    second.unmount();
}

#[test]
fn wrong_images_and_options_are_refused_with_a_reason() {
    needs_fuse!();
    let mut bench = Bench::empty();
    fs::write(bench.image(), vec![7; 1 << 20]).unwrap();
    let refused = bench.try_mount("").expect_err("it is not a volume");
    assert!(refused.to_lowercase().contains("f2fs"), "{refused}");
    let refused = bench.try_mount("quiet").expect_err("the option does not exist");
    assert!(refused.contains("quiet") && refused.contains("--help"), "{refused}");
}

#[test]
fn a_damaged_inode_hides_no_other() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    bench.shell("mkdir dir; for name in a b c d; do echo $name > dir/$name; done");
    bench.unmount();
    let image = block::FileDevice::open(bench.image(), block::OpenOptions::default()).unwrap();
    let volume = Engine::open(Arc::new(image), Options::read_only()).unwrap();
    let dir = volume.lookup(volume.superblock().root_ino, b"dir").unwrap();
    let damaged = ["b", "c"].map(|name| volume.lookup(dir, name.as_bytes()).unwrap());
    let blocks = damaged.map(|ino| volume.nat_entry(ino.into()).unwrap().addr);
    drop(volume);
    let image = fs::File::options().write(true).open(bench.image()).unwrap();
    for block in blocks {
        image.write_all_at(&[0xA5; 4096], u64::from(block.0) * 4096).unwrap();
    }
    drop(image);

    bench.mount("");
    // The stat(2) of an entry makes the kernel request the following entries with their attributes
    // (READDIRPLUS).
    let facts =
        |entry: fs::DirEntry| (entry.file_name(), entry.metadata().map_err(|error| error.raw_os_error()));
    let mut found: Vec<_> =
        fs::read_dir(bench.path("dir")).unwrap().map(|entry| facts(entry.unwrap())).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert!(found.iter().map(|(name, _)| name).eq(["a", "b", "c", "d"].iter()), "{found:?}");
    let damaged = Some(Some(rustix::io::Errno::UCLEAN.raw_os_error()));
    let errors: Vec<_> = found.into_iter().map(|(_, facts)| facts.err()).collect();
    assert_eq!(errors, [None, damaged, damaged, None]);
    assert_eq!(fs::read_to_string(bench.path("dir/d")).unwrap(), "d\n");
    bench.shell("rm dir/a dir/d");
    assert_eq!(fs::read_dir(bench.path("dir")).unwrap().count(), 2);
    bench.unmount();
}

#[test]
fn names_missed_before_a_directory_is_casefolded_are_found_after_it() {
    needs_fuse!();
    let mut bench = Bench::new(64, &["-O", "casefold", "-C", "utf8"]);
    bench.mount("");
    bench.shell(
        "mkdir new emptied; echo x > emptied/file
         for name in new/Name emptied/Name; do ! stat $name 2> /dev/null; done
         rm emptied/file; chattr +F new emptied
         for dir in new emptied; do echo found > $dir/nAME; test \"$(cat $dir/Name)\" = found; done",
    );
    bench.unmount_clean();
}

#[test]
fn casefolded_names_are_found_in_each_spelling() {
    needs_fuse!();
    let mut bench = golden("casefold");
    bench.mount("ro");
    let mut checked = 0;
    for path in everything_below(&bench.path("")) {
        let folded =
            fs::symlink_metadata(path.parent().unwrap()).is_ok_and(|_| is_casefolded(path.parent().unwrap()));
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| name.is_ascii())
        else {
            continue;
        };
        let other = path.with_file_name(name.to_uppercase());
        if folded && other != path {
            assert_eq!(
                fs::symlink_metadata(&other).unwrap().ino(),
                fs::symlink_metadata(&path).unwrap().ino(),
                "{other:?}"
            );
            checked += 1;
        }
    }
    assert!(checked > 0, "the image has casefolded directories");
    bench.unmount();
}

fn is_casefolded(dir: &Path) -> bool {
    let dir = fs::File::open(dir).unwrap();
    rustix::fs::ioctl_getflags(&dir).is_ok_and(|flags| flags.bits() & 0x4000_0000 != 0)
}
