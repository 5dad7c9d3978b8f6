//! Every golden image is read as the kernel that made it reads it.

use f2fs::{Volume, units::Time, volume::Options};
use guest::{Scope, differences};
use model::manifest;

#[path = "support/golden.rs"]
mod golden;

#[test]
fn clean_volumes_read_as_the_kernel_reads_them() {
    let mut failures = Vec::new();
    for name in golden::names() {
        if !golden::is_clean(&name) {
            continue;
        }
        let volume = Volume::open(golden::device(&name), Options::read_only());
        let volume = volume.unwrap_or_else(|error| panic!("{name}: {error}"));
        let ours = manifest::manifest_of(&volume);
        let found = differences(&golden::manifest(&name), &ours, Scope::Volume, 10);
        if !found.is_empty() {
            failures.push(format!("{name} (kernel != ours):\n  {}", found.join("\n  ")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn unclean_volumes_read_as_the_kernel_recovers_them() {
    let mut failures = Vec::new();
    let mut count = 0;
    for name in golden::names() {
        if golden::is_clean(&name) {
            continue;
        }
        count += 1;
        let kernel = golden::manifest(&name);
        for read_only in [true, false] {
            let options = Options { read_only, ..Options::new(Time::default) };
            let volume = Volume::open(golden::device(&name), options);
            let volume = volume.unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut ours = manifest::manifest_of(&volume);
            manifest::excuse_recovered_directories(&kernel, &mut ours);
            let found = differences(&kernel, &ours, Scope::Volume, 10);
            if !found.is_empty() {
                let found = found.join("\n  ");
                failures.push(format!("{name}, read_only {read_only} (kernel != ours):\n  {found}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 10, "unclean images are missing");
}
