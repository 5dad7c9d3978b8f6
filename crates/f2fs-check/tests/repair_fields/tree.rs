//! The tree of a volume, with the size and a hash of each content.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::Hasher,
    sync::Arc,
};

use block::Device;
use f2fs::{
    engine::{Engine, Options, Stat},
    format::{FileType, inode::flag},
    units::Ino,
};

/// Unit in which contents are read and hashed, in bytes.
const PAGE: u64 = 4096;
/// Bytes of a content that are read at most. No content of the trial has so many.
const CONTENT_MAX: u64 = 128 << 20;

/// A file, directory, link or device as its users see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content {
    kind: u16,
    size: u64,
    /// Hash of the pages that are not zeroes; `None` if the content cannot be read.
    hash: Option<u64>,
}

/// A path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub content: Content,
    /// Inodes of the path, from the root on.
    pub inodes: Vec<Ino>,
}

/// All paths of a volume.
pub type Tree = BTreeMap<Vec<u8>, Named>;

/// Reads a volume as a mount does, with the fsyncs after its checkpoint. Returns `None` if it cannot be opened.
pub fn tree_of(device: Arc<dyn Device>) -> Option<Tree> {
    let volume = Engine::open(device, Options::read_only()).ok()?;
    let root = volume.superblock().root_ino;
    let (mut tree, mut visited) = (Tree::new(), BTreeSet::from([root]));
    let mut pending = vec![(Vec::new(), root, vec![root])];
    while let Some((path, dir, above)) = pending.pop() {
        let Ok(entries) = volume.entries(dir, 0) else { continue };
        for entry in entries.flatten().filter(|entry| !matches!(&entry.name[..], b"." | b"..")) {
            let path = [&path[..], b"/", &entry.name].concat();
            let mut inodes = above.clone();
            inodes.push(entry.ino);
            let stat = volume.stat(entry.ino).ok();
            let content = stat.as_ref().map_or(UNREADABLE, |stat| content_of(&volume, stat));
            if stat.is_some_and(|stat| stat.kind == FileType::Directory) && visited.insert(entry.ino) {
                pending.push((path.clone(), entry.ino, inodes.clone()));
            }
            tree.insert(path, Named { content, inodes });
        }
    }
    Some(tree)
}

/// An inode that cannot be read.
const UNREADABLE: Content = Content { kind: 0, size: 0, hash: None };

fn content_of(volume: &Engine, stat: &Stat) -> Content {
    let (size, hash) = match stat.kind {
        FileType::Directory => (0, Some(0)),
        FileType::Regular => (stat.size, hash_of(volume, stat)),
        FileType::Symlink => (
            stat.size,
            volume.read_link(stat.ino).ok().map(|target| hash_page(DefaultHasher::new(), 0, &target)),
        ),
        _ => {
            let device =
                stat.device.map_or(0, |device| u64::from(device.major) << 32 | u64::from(device.minor));
            (0, Some(device))
        }
    };
    Content { kind: stat.kind.mode_bits(), size, hash }
}

fn hash_page(mut hasher: DefaultHasher, number: u64, page: &[u8]) -> u64 {
    hasher.write_u64(number);
    hasher.write(page);
    hasher.finish()
}

/// The hash of a content. The result does not depend on holes.
fn hash_of(volume: &Engine, stat: &Stat) -> Option<u64> {
    let is_compressed = stat.shown_flags() & flag::COMPRESS != 0;
    let (mut at, mut left, mut sum) = (0, CONTENT_MAX, 0u64);
    let mut page = vec![0; PAGE as usize];
    while at < stat.size {
        let (start, end) = match is_compressed {
            true => (at, stat.size),
            false => {
                let Some(start) = volume.seek_data(stat.ino, at).ok()? else { break };
                (start, volume.seek_hole(stat.ino, start).ok()?.unwrap_or(stat.size))
            }
        };
        for number in start / PAGE..end.div_ceil(PAGE) {
            left = left.checked_sub(PAGE)?;
            let read = volume.read(stat.ino, number * PAGE, &mut page).ok()?;
            if page[..read].iter().any(|byte| *byte != 0) {
                sum = sum.wrapping_add(hash_page(DefaultHasher::new(), number, &page[..read]));
            }
        }
        at = end.max(start + 1);
    }
    Some(sum)
}

/// Number of the contents of `sound` that are among `found`, under any path.
pub fn kept_anywhere(sound: &Tree, found: &Tree) -> u64 {
    let count = |tree: &Tree| {
        let mut counts: BTreeMap<Content, u64> = BTreeMap::new();
        tree.values().for_each(|named| *counts.entry(named.content).or_default() += 1);
        counts
    };
    let found = count(found);
    count(sound)
        .into_iter()
        .map(|(content, count)| count.min(found.get(&content).copied().unwrap_or(0)))
        .sum()
}
