//! Reads everything that a volume offers, with a bound on the work.

use std::collections::HashSet;

use f2fs::{
    Error, Result,
    engine::{Engine, FinalSymlink},
    format::{FileType, quota::QuotaKind},
    units::{Ino, Nid, SegNo},
};
use f2fs_tree::{Entry, ExportOptions, Sink, VolumeSource, export};

/// Maximum number of examined directory entries.
const ENTRIES_MAX: usize = 3000;
/// Maximum number of examined inodes.
const INODES_MAX: usize = 400;
/// Maximum number of examined parts of a file.
const EXTENTS_MAX: usize = 12;
/// Maximum number of exported entries.
const EXPORTED_MAX: usize = 300;
/// Maximum number of exported bytes.
const EXPORTED_BYTES: usize = 4 << 20;
/// Bytes read of each part.
const READ_BYTES: usize = 20_000;

/// Counts of read structures and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Survey {
    /// Readable inodes.
    pub inodes: usize,
    /// Readable entries.
    pub entries: usize,
    /// Readable bytes of files.
    pub bytes: u64,
    /// Errors met.
    pub errors: usize,
}

impl Survey {
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors += 1;
                // Every error must have a message.
                assert!(!error.to_string().is_empty());
                None
            }
        }
    }
}

/// Reads everything, within the bounds.
pub fn read_everything(volume: &Engine) -> Survey {
    let mut survey = Survey::default();
    let mut seen = HashSet::new();
    let mut pending = vec![volume.superblock().root_ino];
    let hidden = volume.superblock().quota_inos;
    pending.extend(hidden.iter().filter(|ino| ino.0 != 0));
    pending.extend(volume.orphans().iter().take(50));
    while let Some(ino) = pending.pop() {
        if seen.len() >= INODES_MAX || !seen.insert(ino) {
            continue;
        }
        look(volume, ino, &mut survey, &mut pending);
    }
    // Includes nodes without a directory entry.
    for nid in (0..600).map(Nid) {
        if let Some(entry) = survey.note(volume.nat_entry(nid)) {
            if entry.addr.is_real() && entry.ino.0 == nid.0 && !seen.contains(&entry.ino) {
                look(volume, entry.ino, &mut survey, &mut Vec::new());
            }
        }
    }
    for segment in (0..volume.geometry().segments.min(64)).map(SegNo) {
        survey.note(volume.sit_entry(segment));
    }
    for kind in QuotaKind::ALL {
        survey.note(volume.quota_records(kind));
    }
    let _ = volume.space();
    export_some(volume, &mut survey);
    survey.note(volume.resolve(b"/a/../link/./b", FinalSymlink::Follow));
    survey
}

/// Exports until a bound is reached.
fn export_some(volume: &Engine, survey: &mut Survey) {
    struct Bounded {
        entries: usize,
        bytes: usize,
    }

    impl Sink for Bounded {
        fn entry(&mut self, _: &Entry) -> Result<bool> {
            self.entries += 1;
            if self.entries > EXPORTED_MAX { Err(Error::Quota) } else { Ok(true) }
        }

        fn run(&mut self, _: u64, bytes: &[u8]) -> Result<()> {
            self.bytes += bytes.len();
            if self.bytes > EXPORTED_BYTES { Err(Error::Quota) } else { Ok(()) }
        }

        fn finish(&mut self) -> Result<()> {
            Ok(())
        }

        fn is_broken(&self) -> bool {
            self.entries > EXPORTED_MAX || self.bytes > EXPORTED_BYTES
        }
    }

    let root = volume.superblock().root_ino;
    if let Some(mut source) = survey.note(VolumeSource::new(volume, root, b"")) {
        let mut entries = 0;
        let mut lost = |_: &Error| entries += 1;
        let options = ExportOptions { keep_going: true, lost: Some(&mut lost), ..ExportOptions::default() };
        let _ = export(&mut source, &mut Bounded { entries: 0, bytes: 0 }, options);
    }
}

fn look(volume: &Engine, ino: Ino, survey: &mut Survey, pending: &mut Vec<Ino>) {
    let Some(stat) = survey.note(volume.stat(ino)) else { return };
    survey.inodes += 1;
    let _ = stat.shown_flags();
    survey.note(volume.xattrs(ino));
    if let Some(names) = survey.note(volume.list_xattrs(ino)) {
        for name in names {
            survey.note(volume.get_xattr(ino, &name));
        }
    }
    match stat.kind {
        FileType::Directory => directory(volume, ino, survey, pending),
        FileType::Regular => file(volume, ino, survey),
        FileType::Symlink => {
            survey.note(volume.read_link(ino));
        }
        _ => {}
    }
}

fn directory(volume: &Engine, ino: Ino, survey: &mut Survey, pending: &mut Vec<Ino>) {
    survey.note(volume.is_empty_dir(ino));
    survey.note(volume.lookup(ino, b"no such name"));
    let Some(entries) = survey.note(volume.entries(ino, 0)) else { return };
    let mut last_cookie = 0;
    for (n, entry) in entries.enumerate() {
        let Some(entry) = survey.note(entry) else { continue };
        assert!(entry.next_cookie > last_cookie, "cookies grow");
        last_cookie = entry.next_cookie;
        survey.entries += 1;
        if survey.entries > ENTRIES_MAX {
            return;
        }
        if n < 60 {
            survey.note(volume.lookup(ino, &entry.name));
        }
        if entry.name != b"." && entry.name != b".." {
            pending.push(entry.ino);
        }
    }
}

fn file(volume: &Engine, ino: Ino, survey: &mut Survey) {
    let mut buffer = vec![0; READ_BYTES];
    let mut at = 0;
    for _ in 0..EXTENTS_MAX {
        let Some(Some(extent)) = survey.note(volume.next_extent(ino, at)) else { break };
        assert!(extent.offset >= at && extent.length > 0, "extents go on");
        if let Some(read) = survey.note(volume.read_raw(ino, extent.offset, &mut buffer)) {
            survey.bytes += read as u64;
        }
        at = extent.offset.saturating_add(extent.length);
    }
    for at in [0, 4095, 1 << 22, 1 << 33, u64::MAX - 5] {
        if let Some(read) = survey.note(volume.read(ino, at, &mut buffer[..5000])) {
            survey.bytes += read as u64;
        }
        survey.note(volume.seek_data(ino, at));
        survey.note(volume.seek_hole(ino, at));
    }
}
