//! Helpers of the rescue's tests: a tree in memory, from an engine's volume or from a rescue.

#![allow(dead_code)] // each test file uses its own part

use std::{collections::BTreeMap, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::{
    Result,
    engine::{Engine, Options},
};
use f2fs_rescue::{Found, RemovedFiles, Rescue, RescueSource, Selection};
use f2fs_tree::{Entry, ExportOptions, Kind, Sink, Source, VolumeSource, export};

/// A tree in memory: each path with its entry and its content.
pub type Tree = BTreeMap<String, (Entry, Vec<u8>)>;

/// A sink into memory.
#[derive(Default)]
struct Memory {
    tree: Tree,
    last: String,
}

impl Sink for Memory {
    fn entry(&mut self, entry: &Entry) -> Result<bool> {
        self.last = String::from_utf8_lossy(&entry.path).into_owned();
        if let Kind::File { size, data: Some(ranges) } = &entry.kind {
            let mut end = 0;
            for range in ranges {
                assert!(end <= range.start && range.start < range.end && range.end <= *size, "{ranges:?}");
                end = range.end;
            }
        }
        let size = match entry.kind {
            Kind::File { size, .. } => size as usize,
            _ => 0,
        };
        // A hostile size is not allocated.
        let content = if size <= 1 << 26 { vec![0; size] } else { Vec::new() };
        let was = self.tree.insert(self.last.clone(), (entry.clone(), content));
        assert!(was.is_none(), "{} twice", self.last);
        Ok(true)
    }

    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (_, content) = self.tree.get_mut(&self.last).expect("runs follow their entry");
        if !content.is_empty() {
            content[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Reads a source into memory, with the reported losses.
pub fn collect(source: &mut dyn Source) -> (Tree, Vec<String>) {
    let mut sink = Memory::default();
    let mut losses = Vec::new();
    let mut lost = |error: &f2fs::Error| losses.push(error.to_string());
    let options = ExportOptions { keep_going: true, lost: Some(&mut lost), progress: None };
    export(source, &mut sink, options).expect("a walk goes on after losses");
    (sink.tree, losses)
}

/// The tree of a sound volume, by the engine.
pub fn tree_of(device: Arc<dyn Device>) -> Tree {
    let volume = Engine::open(device, Options::read_only()).expect("a sound volume");
    let mut source = VolumeSource::new(&volume, volume.superblock().root_ino, b"").expect("a root");
    collect(&mut source).0
}

/// A rescued tree, its losses, and all inodes that were found.
pub struct Rescued {
    pub tree: Tree,
    pub losses: Vec<String>,
    pub found: Vec<Found>,
    pub rescue: Rescue,
}

/// Rescues a device: its removed files, if they are asked for, otherwise its tree.
pub fn rescued(device: Arc<dyn Device>, options: &f2fs_rescue::Options) -> Rescued {
    try_rescued(device, options).expect("there are nodes")
}

/// Rescues a device on which there may be no nodes.
pub fn try_rescued(device: Arc<dyn Device>, options: &f2fs_rescue::Options) -> Result<Rescued> {
    let selection = match options.removed {
        RemovedFiles::Ignore => Selection::Present,
        RemovedFiles::Collect => Selection::Removed,
    };
    let rescue = f2fs_rescue::rescue(device, options, &mut |_| {})?;
    let mut found = Vec::new();
    let (tree, losses) =
        collect(&mut RescueSource::new(&rescue, selection, |inode| found.push(inode.clone())));
    Ok(Rescued { tree, losses, found, rescue })
}

/// Entries of `expected` that `tree` has with the same kind, metadata and content, and the paths of all
/// others.
pub fn compare(expected: &Tree, tree: &Tree) -> (usize, Vec<String>) {
    let is_same = |(path, wanted): &(&String, &(Entry, Vec<u8>))| {
        tree.get(*path).is_some_and(|(entry, content)| {
            let same_kind = match (&entry.kind, &wanted.0.kind) {
                (Kind::File { size, .. }, Kind::File { size: other, .. }) => size == other,
                (kind, other) => kind == other,
            };
            same_kind && entry.meta == wanted.0.meta && *content == wanted.1
        })
    };
    let (same, other): (Vec<_>, Vec<_>) = expected.iter().partition(is_same);
    (same.len(), other.into_iter().map(|(path, _)| path.clone()).collect())
}

/// Overwrites bytes of a device.
pub fn overwrite(device: &MemoryDevice, bytes: std::ops::Range<u64>, value: u8) {
    let mut at = bytes.start;
    while at < bytes.end {
        let length = (bytes.end - at).min(1 << 16) as usize;
        device.write(at, &vec![value; length]).expect("in memory");
        at += length as u64;
    }
}
