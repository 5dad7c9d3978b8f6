//! Every golden image is read as the kernel that made it reads it.

use std::{fs, path::PathBuf, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::{
    Volume,
    volume::{Options, join},
};
use guest::{Manifest, Scope, differences};

#[path = "support/manifest.rs"]
mod manifest;

/// What is known of an image, as far as this test needs it; `testdata/README.md` describes the file.
struct Golden {
    clean: bool,
    devices: usize,
    manifest: Manifest,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden")
}

fn golden(name: &str) -> Golden {
    let text = fs::read_to_string(folder().join(format!("{name}.json"))).expect("readable");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    Golden {
        clean: json["clean"].as_bool().expect("whether it is clean"),
        devices: json["devices"].as_array().expect("the further devices").len(),
        manifest: serde_json::from_value(json["manifest"].take()).expect("a manifest"),
    }
}

fn device(name: &str, devices: usize) -> Arc<dyn Device> {
    let unpack = |file: String| -> Arc<dyn Device> {
        let packed = fs::File::open(folder().join(file)).expect("readable");
        let mut bytes = Vec::new();
        zstd::stream::copy_decode(packed, &mut bytes).expect("a zstd stream");
        Arc::new(MemoryDevice::from_bytes(&bytes))
    };
    let mut all = vec![unpack(format!("{name}.img.zst"))];
    all.extend((1..=devices).map(|n| unpack(format!("{name}.{n}.img.zst"))));
    join(all).expect("devices that go together")
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .expect("the golden images")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("plain names"))
        .filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() > 30, "golden images are missing: {names:?}");
    names
}

#[test]
fn clean_volumes_read_as_the_kernel_reads_them() {
    let mut failures = Vec::new();
    for name in names() {
        let golden = golden(&name);
        if !golden.clean {
            continue;
        }
        let volume = Volume::open(device(&name, golden.devices), Options::read_only());
        let volume = volume.unwrap_or_else(|error| panic!("{name}: {error}"));
        let ours = manifest::manifest_of(&volume);
        let found = differences(&golden.manifest, &ours, Scope::Volume, 10);
        if !found.is_empty() {
            failures.push(format!("{name} (kernel != ours):\n  {}", found.join("\n  ")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
