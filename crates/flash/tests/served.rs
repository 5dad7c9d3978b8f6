//! A card in a file, served over NBD to common clients. `scripts/setup` installs them. Without them these
//! tests fail with a message.

// The clients' module belongs to that crate's tests, where it has this name.
extern crate block as flashkit_block;

#[path = "../../block/tests/support/mod.rs"]
mod clients;

use std::{
    fs,
    path::{Path, PathBuf},
};

use block::Device;
use clients::{SIZE, run, sparse_file};
use flashkit_flash::{
    Condition, Profile,
    verbs::{self, NewCard, Serving},
};

fn card(dir: &Path, profile: &str) -> PathBuf {
    let path = dir.join("card");
    let profile = Profile::named(profile).expect("built in");
    let how = NewCard { size_bytes: Some(SIZE), condition: Condition::Preconditioned };
    verbs::new(&path, profile, how).expect("a new card");
    path
}

fn serve(path: &Path, address: &str) -> (Serving, String) {
    let serving =
        verbs::serve(path, &address.parse().expect("an address"), verbs::Serve::default()).expect("listens");
    let uri = serving.uri();
    (serving, uri)
}

#[test]
fn copies_to_a_card_are_read_back_and_stay() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source, back) = (dir.path().join("source"), dir.path().join("back"));
    sparse_file(&source);
    let bytes = fs::read(&source).expect("readable");
    let (source, back_text) = (source.to_str().expect("UTF-8"), back.to_str().expect("UTF-8"));
    // A stick that merges, and an eMMC with a cache, flushes and discards.
    for (profile, address) in [
        ("bergmann-stick", "127.0.0.1:0".to_string()),
        ("survey-emmc51", format!("unix:{}", dir.path().join("s").display())),
    ] {
        let path = card(dir.path(), profile);
        let (serving, uri) = serve(&path, &address);
        run("nbdcopy", &["--connections=4", "--flush", source, &uri]);
        run("nbdcopy", &["--connections=4", &uri, back_text]);
        assert!(fs::read(&back).expect("readable") == bytes, "{profile}");
        serving.stop().expect("put away");
        let (serving, uri) = serve(&path, &address);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
        run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
        let counters = serving.card().with_model(|model| model.counters().clone());
        assert!(counters.host.written_bytes > SIZE / 8 && counters.flash.page_programs > 0);
        serving.stop().expect("put away");
        assert!(fs::read(&path).expect("readable") == bytes, "{profile}");
        fs::remove_file(dir.path().join("card.card")).expect("there");
        fs::remove_file(path).expect("there");
    }
}

#[test]
fn a_card_reports_its_features_and_its_allocated_ranges() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = card(dir.path(), "survey-emmc51");
    let (serving, uri) = serve(&path, "127.0.0.1:0");
    let list = run("nbdinfo", &["--list", &uri]);
    for what in [
        "export-size: 67108864",
        "base:allocation",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_multi_conn: true",
    ] {
        assert!(list.contains(what), "{what}\n{list}");
    }
    let map = || run("nbdinfo", &["--map", &uri]);
    assert_eq!(map().lines().count(), 1, "{}", map());
    assert!(map().contains("hole,zero"), "{}", map());
    serving.card().write(8 << 20, &[7; 1 << 20]).expect("within the card");
    let rows: Vec<Vec<String>> =
        map().lines().map(|line| line.split_whitespace().map(String::from).collect()).collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert_eq!(rows[1][..3], ["8388608", "1048576", "0"], "{rows:?}");
    serving.card().discard(8 << 20, 1 << 20).expect("within the card");
    assert_eq!(map().lines().count(), 1, "{}", map());
    serving.stop().expect("put away");
}

#[test]
fn a_card_takes_many_requests_at_once() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = card(dir.path(), "survey-a2");
    let (serving, uri) = serve(&path, "127.0.0.1:0");
    let mut script: Vec<String> = Vec::new();
    script.extend((0..32).map(|n| format!("aio_write -P {} {}k 64k", n + 1, n * 100)));
    script.push("aio_flush".into());
    script.extend((0..32).map(|n| format!("aio_read -P {} {}k 64k", n + 1, n * 100)));
    script.extend(
        ["aio_flush", "write -f -P 9 0 512", "write -z 100k 64k", "read -P 0 100k 64k", "flush"]
            .map(String::from),
    );
    let mut arguments = vec!["-f", "raw"];
    script.iter().for_each(|line| arguments.extend(["-c", line]));
    arguments.push(&uri);
    let output = run("qemu-io", &arguments);
    assert!(!output.contains("verification failed") && !output.contains("error"), "{output}");
    serving.stop().expect("put away");
}
