//! Directories that a later entry of the same source replaces.

mod support;

use std::{cell::RefCell, sync::Arc};

use block::MemoryDevice;
use f2fs::{
    engine::{Caller, Engine, FinalSymlink, NewNode, Options, SetAttr},
    format::inode::flag,
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::Ino,
};
use f2fs_tree::{Entry, FillOptions, Filled, Kind, fill};
use support::{
    NOW,
    given::{entry, file, given},
};

const ROOT: Ino = Ino(3);
const BYTES: u64 = 64 << 20;

/// Fills a new volume. The directory that `folds` names is there before, and folds case.
fn fill_new(features: &str, folds: Option<&[u8]>, entries: Vec<Entry>) -> (f2fs::Result<Filled>, Engine) {
    let features = mkfs::parse_features(features).unwrap();
    let options = mkfs::Options { features, ..mkfs::Options::new([0x5A; 16]) };
    let plan = Plan::new(&options, &[DeviceSize { path: String::new(), bytes: BYTES }]).unwrap();
    let memory = Arc::new(MemoryDevice::new(BYTES));
    let new = NewVolume::begin(memory, &plan, DeviceContent::Zeroes, Options::new(|| NOW));
    let mut volume = new.unwrap().finish().unwrap();
    if let Some(name) = folds {
        let dir = volume.begin(Caller::ADMIN).create(ROOT, name, &NewNode::new(0o040_755)).unwrap();
        let folding = SetAttr { flags: Some(flag::CASEFOLD), ..SetAttr::default() };
        volume.begin(Caller::ADMIN).set_attr(dir, &folding).unwrap();
    }
    let filled = fill(&mut volume, ROOT, &mut given(entries, &RefCell::new(0)), FillOptions::default());
    (filled, volume)
}

/// The fill went on in the inode of the directory, which was freed.
#[test]
fn an_entry_below_a_directory_that_was_replaced_is_refused() {
    let replaced = |with: Kind, then: Entry| {
        let entries = vec![entry("d", Kind::Directory), file("f", 1), entry("d", with), then];
        fill_new("extra_attr", None, entries).0.unwrap_err().to_string()
    };
    let link = || Kind::Symlink { target: b".".to_vec() };
    assert_eq!(replaced(Kind::Fifo, file("d/x", 1)), "d/x: not a directory");
    assert_eq!(replaced(link(), file("d/x", 1)), "d/x: not a directory");
    assert_eq!(replaced(Kind::HardLink { to: b"f".to_vec() }, file("d/e/x", 1)), "d/e/x: not a directory");
    let to = Kind::HardLink { to: b"d/x".to_vec() };
    assert_eq!(replaced(link(), entry("h", to)), "h: hard link to d/x, which does not exist");

    // A directory in its place is another one.
    let entries =
        vec![entry("d/e", Kind::Directory), file("d/e", 1), entry("d/e", Kind::Directory), file("d/e/x", 1)];
    let (filled, volume) = fill_new("extra_attr", None, entries);
    filled.unwrap();
    volume.resolve(b"/d/e/x", FinalSymlink::NoFollow).unwrap();
}

#[test]
fn a_directory_that_was_replaced_is_forgotten_under_each_spelling() {
    let entries =
        vec![entry("c/D", Kind::Directory), entry("c/E", Kind::Directory), file("c/d", 1), file("c/D/x", 1)];
    let (filled, volume) = fill_new("casefold", Some(b"c"), entries);
    assert_eq!(filled.unwrap_err().to_string(), "c/D/x: not a directory");
    volume.resolve(b"/c/e", FinalSymlink::NoFollow).unwrap();
}

/// The number of a directory that was replaced belongs to another directory once the search for free numbers comes round. An
/// entry went there.
#[test]
fn no_entry_goes_to_the_directory_that_has_the_number_of_a_replaced_one() {
    const FIRST: Ino = Ino(4);
    let (_, volume) = fill_new("extra_attr", None, vec![]);
    let numbers = volume.geometry().nids_end().0 - FIRST.0;
    let mut entries = vec![entry("d", Kind::Directory), file("d", 0)];
    while entries.len() < numbers as usize {
        entries.extend([entry("e", Kind::Directory), file("e", 0)]);
    }
    entries.extend([entry("e", Kind::Directory), file("d/x", 1)]);
    let (filled, volume) = fill_new("extra_attr", None, entries);
    assert_eq!(volume.lookup(ROOT, b"e").unwrap(), FIRST);
    assert_eq!(filled.unwrap_err().to_string(), "d/x: not a directory");
    assert!(volume.resolve(b"/e/x", FinalSymlink::NoFollow).is_err());
}
