//! Changes of a mounted volume as a whole: growing, and defragmentation. Linux's fsck.f2fs judges the result.

mod support;

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use support::{fails, ok};

const MIB: u64 = 1 << 20;

/// A directory with an image `v.img`, mounted at `mnt`.
struct Bench(tempfile::TempDir);

impl Bench {
    /// Makes and mounts a volume of 64 MiB. Returns `None` if this machine cannot mount, and prints the reason.
    fn mounted() -> Option<Bench> {
        let bench = Bench::unmounted()?;
        ok(bench.dir(), &["mkfs", "-q", "v.img", "--size", "64M"]);
        ok(bench.dir(), &["mount", "v.img", "mnt"]);
        Some(bench)
    }

    fn unmounted() -> Option<Bench> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: this needs root and /dev/fuse");
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("mnt")).unwrap();
        Some(Bench(root))
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir().join("mnt").join(name)
    }

    /// Size of the mounted file system in bytes, as df(1) prints it.
    fn size(&self) -> u64 {
        let facts = rustix::fs::statvfs(self.path("")).unwrap();
        facts.f_blocks * facts.f_frsize
    }

    fn unmount(&self) {
        let done = Command::new("umount").arg(self.path("")).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Unmounts the volume. Fails unless it is clean then.
    fn unmount_clean(&self) {
        self.unmount();
        let judged = model::fsck::fsck_image(&self.dir().join("v.img"));
        assert!(judged.is_ok(), "{judged:?}");
        assert!(ok(self.dir(), &["fsck", "-q", "v.img"]).contains("clean"));
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The test failed. Nothing of it may stay behind; usually there is nothing.
        let _ = Command::new("umount").arg("-l").arg(self.path("")).output();
    }
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = block::Rng::new(seed);
    (0..bytes).map(|_| rng.below(256) as u8).collect()
}

#[test]
fn a_mounted_volume_grows_while_programs_use_it() {
    let Some(bench) = Bench::mounted() else { return };
    let (dir, before) = (bench.dir(), noise(1, 5 << 20));
    fs::write(bench.path("before"), &before).unwrap();
    // Open files, one of them without a name.
    let mut reader = File::open(bench.path("before")).unwrap();
    let mut gone = File::options().create_new(true).read(true).write(true).open(bench.path("gone")).unwrap();
    gone.write_all(b"still there").unwrap();
    fs::remove_file(bench.path("gone")).unwrap();
    let first = bench.size();
    let printed = ok(dir, &["resize", "v.img", "96M", "--json"]);
    let record: Value = serde_json::from_str(&printed).unwrap();
    let told = [&record["old_bytes"], &record["new_bytes"], &record["done"]];
    assert_eq!(told, [&Value::from(64 * MIB), &Value::from(96 * MIB), &Value::from(true)]);
    assert_eq!(bench.size(), first + 32 * MIB);
    assert_eq!(fs::metadata(dir.join("v.img")).unwrap().len(), 96 * MIB);
    // By its mount, with the size of the file, which another program has extended.
    File::options().write(true).open(dir.join("v.img")).unwrap().set_len(128 * MIB).unwrap();
    let printed = ok(dir, &["resize", "mnt"]);
    assert!(printed.contains("96.00 MiB before, now 128.00 MiB"), "{printed}");
    assert_eq!(bench.size(), first + 64 * MIB);
    assert!(ok(dir, &["resize", "mnt", "128M"]).contains("as before"));
    let mut content = Vec::new();
    reader.read_to_end(&mut content).unwrap();
    assert!(content == before);
    // More than the volume had room for.
    let after = noise(2, 60 << 20);
    let mut file = File::create(bench.path("after")).unwrap();
    file.write_all(&after).unwrap();
    // An error of write-back is reported by fsync(2) only.
    file.sync_all().unwrap();
    gone.write_all_at(b"and can be written", 11).unwrap();
    let mut text = [0; 29];
    gone.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"still thereand can be written");
    drop((reader, gone, file));
    bench.unmount_clean();
    assert!(ok(dir, &["info", "v.img"]).contains("128.00 MiB"));
    ok(dir, &["cp", "v.img:/before", "v.img:/after", "."]);
    assert!(fs::read(dir.join("before")).unwrap() == before && fs::read(dir.join("after")).unwrap() == after);
}

#[test]
fn a_mounted_volume_refuses_what_it_cannot_become_and_stays_as_it_is() {
    let Some(bench) = Bench::mounted() else { return };
    let dir = bench.dir();
    fs::create_dir(bench.path("sub")).unwrap();
    let first = bench.size();
    for (arguments, reason) in [
        (&["v.img", "32M"][..], "a mounted volume only grows"),
        (&["mnt", "--minimize"], "a mounted volume only grows"),
        (&["v.img", "3G"], "the metadata areas must grow"),
        (&["v.img", "96M", "--no-truncate"], "enlarge it first"),
        (&["mnt/sub", "96M"], "no F2FS volume is mounted at it"),
        (&[".", "96M"], "no F2FS volume is mounted at it"),
    ] {
        let error = fails(dir, &[&["resize"][..], arguments].concat());
        assert!(error.contains(reason), "{arguments:?}: {error}");
        assert_eq!(bench.size(), first, "{arguments:?}");
        assert_eq!(fs::metadata(dir.join("v.img")).unwrap().len(), 64 * MIB, "{arguments:?}");
    }
    let error = fails(dir, &["resize", "-n", "v.img", "3G"]);
    assert!(error.contains("the metadata areas must grow"), "{error}");
    let printed = ok(dir, &["resize", "-n", "v.img", "96M"]);
    assert!(printed.contains("would be 96.00 MiB") && bench.size() == first, "{printed}");
    // Other users may not.
    let program = env!("CARGO_BIN_EXE_flashkit");
    let mut other = Command::new("setpriv");
    other.args(["--inh-caps=-all", "--bounding-set=-sys_admin", program, "resize", "v.img", "96M"]);
    let refused = other.current_dir(dir).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("only an administrator"), "{error}");
    bench.unmount_clean();
}

#[test]
fn a_partition_bounds_the_growth_of_its_volume() {
    let Some(bench) = Bench::unmounted() else { return };
    let dir = bench.dir();
    File::create(dir.join("v.img")).unwrap().set_len(200 * MIB).unwrap();
    let table = "label: dos\nstart=2048, size=131072\nstart=133120, size=204800\n";
    let mut sfdisk = Command::new("sfdisk");
    let mut child = match sfdisk.arg("-q").arg(dir.join("v.img")).stdin(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return eprintln!("skipped: sfdisk: {error}"),
    };
    child.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    // The volume of the first partition leaves a part of it unused.
    for (part, size) in [("v.img#1", "56M"), ("v.img#2", "100M")] {
        ok(dir, &["mkfs", "-q", part]);
        ok(dir, &["resize", "-q", "--no-truncate", part, size]);
    }
    let error = fails(dir, &["resize", "-q", "v.img#1", "72M"]);
    assert!(
        error.contains("67108864 bytes, not 75497472") && error.contains("enlarge the partition"),
        "{error}"
    );
    ok(dir, &["mount", "v.img#1", "mnt"]);
    let first = bench.size();
    let error = fails(dir, &["resize", "v.img#1", "72M"]);
    assert!(
        error.contains("67108864 bytes, not 75497472") && error.contains("enlarge the partition"),
        "{error}"
    );
    // The other volume of the file is another one.
    let error = fails(dir, &["resize", "v.img#2", "80M"]);
    assert!(error.contains("another volume of this file is mounted"), "{error}");
    ok(dir, &["resize", "v.img#1"]);
    assert_eq!(bench.size(), first + 8 * MIB);
    bench.unmount();
    assert!(ok(dir, &["fsck", "-q", "v.img#1"]).contains("clean"));
    assert_eq!(fs::metadata(dir.join("v.img")).unwrap().len(), 200 * MIB);
}

#[test]
fn files_of_a_mounted_volume_are_put_in_order() {
    let Some(bench) = Bench::mounted() else { return };
    let dir = bench.dir();
    fs::create_dir(bench.path("data")).unwrap();
    let files = ["data/one", "data/two"].map(|name| File::create(bench.path(name)).unwrap());
    for block in 0..40 {
        for (n, file) in files.iter().enumerate() {
            file.write_all_at(&[n as u8 + 1; 4096], block * 4096).unwrap();
            file.sync_data().unwrap();
        }
    }
    let report = |arguments: &[&str]| -> Value {
        serde_json::from_str(&ok(dir, &[&["defrag", "--json"][..], arguments].concat())).unwrap()
    };
    let extents = |report: &Value, path: &str| {
        let files = report["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["path"] == path);
        file.unwrap_or_else(|| panic!("{path}: {report}"))["extents"].as_u64().unwrap()
    };
    let before = report(&["mnt", "--all"]);
    assert!(extents(&before, "/data/one") > 10 && extents(&before, "/data/two") > 10, "{before}");
    let one = report(&["mnt/data/one", "--all", "-y"]);
    assert_eq!(one["moved_blocks"], 40, "{one}");
    assert!(extents(&one, "/data/one") <= 2, "{one}");
    // By the name of the image.
    let two = report(&["v.img:/data", "--all", "-y"]);
    assert_eq!(two["moved_blocks"], 40, "{two}");
    assert!(extents(&two, "/data/two") <= 2, "{two}");
    for (n, name) in ["data/one", "data/two"].iter().enumerate() {
        assert!(fs::read(bench.path(name)).unwrap() == vec![n as u8 + 1; 40 * 4096]);
    }
    drop(files);
    bench.unmount_clean();
}
