//! The golden images; `testdata/README.md` describes the files.

#![allow(dead_code)] // each test file uses its own part

use std::{fs, path::PathBuf, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::engine::join;
use guest::Manifest;

/// Folder of the images.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden")
}

fn json(name: &str) -> serde_json::Value {
    let text = fs::read_to_string(folder().join(format!("{name}.json"))).expect("readable");
    serde_json::from_str(&text).expect("JSON")
}

/// All names.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .expect("the golden images")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("plain names"))
        .filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() > 30, "golden images are missing: {names:?}");
    names
}

/// Returns true if an image was unmounted.
pub fn is_clean(name: &str) -> bool {
    json(name)["clean"].as_bool().expect("whether it is clean")
}

/// Returns the kernel's manifest of an image.
pub fn manifest(name: &str) -> Manifest {
    serde_json::from_value(json(name)["manifest"].take()).expect("a manifest")
}

/// Returns an image in memory, with its devices joined.
pub fn device(name: &str) -> Arc<dyn Device> {
    let unpack = |file: String| -> Arc<dyn Device> {
        let packed = fs::File::open(folder().join(file)).expect("readable");
        let mut bytes = Vec::new();
        zstd::stream::copy_decode(packed, &mut bytes).expect("a zstd stream");
        Arc::new(MemoryDevice::from_bytes(&bytes))
    };
    let more = json(name)["devices"].as_array().expect("the further devices").len();
    let first = [format!("{name}.img.zst")].into_iter();
    let all = first.chain((1..=more).map(|n| format!("{name}.{n}.img.zst"))).map(unpack).collect();
    join(all).expect("devices that go together")
}
