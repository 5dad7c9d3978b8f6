//! Removed files, and the trees of older checkpoints.

mod support;

#[path = "support/nodes.rs"]
mod nodes;
#[path = "support/volume.rs"]
mod volume;

use std::sync::Arc;

use block::MemoryDevice;
use f2fs::engine::{Engine, Options as EngineOptions};
use f2fs_rescue::{Choice, Grade, Options, RemovedFiles};
use f2fs_tree::Kind;
use nodes::{device_of, directory, small_file};
use support::{Tree, compare, overwrite, rescued, tree_of};
use volume::{BLOCK, FEATURES, content, open, sound};

fn removed() -> Options {
    Options { removed: RemovedFiles::Collect, ..Options::default() }
}

/// The part of a tree below some paths.
fn below(tree: &Tree, roots: &[&str]) -> Tree {
    let is_below =
        |path: &str| roots.iter().any(|root| path == *root || path.starts_with(&format!("{root}/")));
    tree.iter()
        .filter(|(path, _)| is_below(path))
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect()
}

/// Removes a directory and a large file, and returns the device with what was removed.
fn with_removals(which: usize) -> (Arc<MemoryDevice>, Tree) {
    let device = sound(which);
    let before = tree_of(device.clone());
    let volume = open(device.clone());
    volume.remove_dir_all("/dir-3").expect("it is there");
    volume.remove_file("/large").expect("it is there");
    volume.close().expect("in memory");
    (device, below(&before, &["dir-3", "large"]))
}

/// Files of a tree.
fn files(tree: &Tree) -> usize {
    tree.values().filter(|(entry, _)| matches!(entry.kind, Kind::File { .. })).count()
}

#[test]
fn what_was_removed_comes_back_at_its_place() {
    for which in 0..FEATURES.len() {
        let (device, expected) = with_removals(which);
        let present = tree_of(device.clone());
        let result = rescued(device.clone(), &removed());
        let (same, missing) = compare(&expected, &result.tree);
        println!("{same} of {} removed entries, {} files", expected.len(), files(&expected));
        // The directory itself has lost its size and times when it was emptied.
        assert!(missing.iter().all(|path| path == "dir-3"), "{missing:?}");
        let others = result.tree.keys().filter(|path| !path.is_empty() && !expected.contains_key(*path));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new(), "nothing else was removed");
        let large = result.found.iter().find(|found| found.path == b"large").expect("it is there");
        assert_eq!(large.certainty.map(|certainty| certainty.choice), Some(Choice::Removed));
        let newest = rescued(device, &Options::default());
        assert_eq!(compare(&present, &newest.tree).1, Vec::<String>::new());
        assert_eq!(newest.tree.len(), present.len(), "removed files are not part of the tree");
    }
}

#[test]
fn removed_files_are_told_from_the_others_without_the_nat() {
    let (device, expected) = with_removals(1);
    let present = tree_of(device.clone());
    let volume = Engine::open(device.clone(), EngineOptions::read_only()).expect("a sound volume");
    let nat = volume.superblock().nat;
    overwrite(&device, u64::from(nat.start.0) * BLOCK..nat.end() * BLOCK, 0);
    let result = rescued(device.clone(), &removed());
    let (same, missing) = compare(&expected, &result.tree);
    assert!(missing.iter().all(|path| path == "dir-3"), "{same}: {missing:?}");
    let newest = rescued(device, &Options::default());
    assert_eq!(compare(&present, &newest.tree).1, Vec::<String>::new());
    let extra: Vec<_> = newest.tree.keys().filter(|path| !present.contains_key(*path)).collect();
    assert!(extra.is_empty(), "{extra:?}");
}

#[test]
fn reused_blocks_are_never_given_as_whole() {
    let (device, expected) = with_removals(0);
    let volume = open(device.clone());
    // Several times, so that every segment is used again.
    for round in 0..3 {
        let write = |n: u32| volume.write(format!("/new-{n}"), content(9000 * round + n, 60_000));
        let full = (0..).find(|n| write(*n).is_err()).expect("the volume is finite");
        // The last one may be there without content.
        let _ = volume.remove_file(format!("/new-{full}"));
        (0..full).for_each(|n| volume.remove_file(format!("/new-{n}")).expect("it is there"));
    }
    volume.close().expect("in memory");
    let result = rescued(device, &removed());
    let (mut right, mut told) = (0, 0);
    for found in &result.found {
        let path = String::from_utf8_lossy(&found.path).into_owned();
        let Some((_, wanted)) = expected.get(&path) else { continue };
        let same = result.tree.get(&path).is_some_and(|(_, content)| content == wanted);
        let grade = found.certainty.expect("it is judged").grade();
        right += usize::from(same);
        told += usize::from(grade >= Grade::Partial);
        assert!(same || grade >= Grade::Partial, "{path}: {}", found.certainty.expect("it is judged"));
    }
    println!("{right} right, {told} told as damaged, of {}", expected.len());
    assert!(right < expected.len(), "blocks were reused");
}

#[test]
fn the_tree_of_an_older_checkpoint_is_there() {
    let device = sound(1);
    let before = tree_of(device.clone());
    let version = {
        let volume = Engine::open(device.clone(), EngineOptions::read_only()).expect("a sound volume");
        volume.last_checkpoint().version.0
    };
    let volume = open(device.clone());
    volume.remove_dir_all("/dir-5").expect("it is there");
    volume.write("/small", "changed").expect("there is space");
    volume.rename("/a/b", "/b").expect("it is there");
    volume.write("/later", "new").expect("there is space");
    volume.close().expect("in memory");
    let options = Options { as_of: Some(version), ..Options::default() };
    let result = rescued(device.clone(), &options);
    let (same, missing) = compare(&before, &result.tree);
    assert!(missing.is_empty(), "{same}: {missing:?}");
    assert!(!result.tree.contains_key("later"));
    let newest = rescued(device, &Options::default());
    assert!(newest.tree.contains_key("later") && !newest.tree.contains_key("dir-5"));
}

#[test]
fn removed_files_of_one_number_are_no_links_to_each_other() {
    let generation = |number: u32, name: &[u8], content: &[u8]| {
        let mut node = small_file(9, 3, name, content);
        node.head_mut().links.set(2);
        node.head_mut().generation.set(number);
        node
    };
    let nodes = [generation(1, b"a", b"first"), generation(2, b"b", b"second"), directory(3, 3, b"")];
    let result = rescued(device_of(&nodes), &removed());
    let content = |path: &str| result.tree.get(path).map(|(_, content)| content.as_slice());
    assert_eq!((content("a"), content("b")), (Some(&b"first"[..]), Some(&b"second"[..])));
}

#[test]
fn a_removed_directory_whose_number_is_in_use_keeps_its_name() {
    let mut old = directory(9, 3, b"old");
    old.head_mut().generation.set(1);
    let mut new = directory(9, 3, b"new");
    new.head_mut().generation.set(2);
    let nodes = [old, new, small_file(10, 9, b"file", b"content"), directory(3, 3, b"")];
    let result = rescued(device_of(&nodes), &removed());
    let paths: Vec<&str> = result.tree.keys().map(String::as_str).collect();
    assert!(paths.contains(&"old") && paths.contains(&"new"), "{paths:?}");
    assert_eq!(paths.iter().filter(|path| path.ends_with("/file")).count(), 1, "{paths:?}");
}

/// All generations of removed files together have more blocks than the volume, but each block has one owner.
#[test]
fn the_last_of_many_generations_comes_back() {
    const BYTES: usize = 40 << 20;
    let device = sound(0);
    for generation in 0..8 {
        let volume = open(device.clone());
        volume.write("/again", content(90 + generation, BYTES)).expect("there is space");
        volume.sync().expect("in memory");
        volume.remove_file("/again").expect("it is there");
        volume.close().expect("in memory");
    }
    let result = rescued(device, &removed());
    let wrong = result.losses.iter().find(|loss| loss.contains("more names than it counts"));
    assert_eq!(wrong, None);
    let last = content(97, BYTES);
    assert!(result.tree.values().any(|(_, content)| *content == last), "{:?}", result.losses);
}
