//! The map of a rescue: read before the scan, and kept as ddrescue keeps its mapfile, so that an interrupted scan was not in
//! vain: what could not be read is not tried again.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use f2fs_rescue::{Map, Origin};

use crate::{
    interrupt::{self, Outcome},
    notice::notice,
    output,
};

/// Minimum time between two saves.
const INTERVAL: Duration = Duration::from_secs(10);
/// A save may take one part in so many of the time: a map with many bad parts is long.
const SHARE: u32 = 20;

/// A map of earlier reads.
pub struct KnownMap {
    pub map: Map,
    pub origin: Origin,
}

impl KnownMap {
    /// Reads a map, if there is one.
    pub fn load(path: &Path) -> Result<Option<KnownMap>> {
        match fs::read_to_string(path) {
            Ok(text) => {
                let (map, origin) = Map::parse(&text).with_context(|| path.display().to_string())?;
                Ok(Some(KnownMap { map, origin }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }
}

/// The map of a scan, which is in its file whenever the scan ends: by an error or a signal, too.
pub struct KeptMap {
    kept: Arc<Mutex<Kept>>,
    _outcome: Outcome,
}

/// The state that the scan and the handler of signals share.
struct Kept {
    path: PathBuf,
    /// The map of earlier scans.
    known: Option<Map>,
    /// The parts that this scan has tried.
    read: Map,
    /// True if parts were added since the last save.
    is_changed: bool,
    /// Time of the next save; none before the first part.
    due: Option<Instant>,
}

impl KeptMap {
    /// Begins a map in a file, which is written at once: a file that cannot be written is known before the scan. A map of
    /// another program stays as it is, and is not kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(path: &Path, known: Option<&KnownMap>) -> Result<Option<KeptMap>> {
        if known.is_some_and(|known| known.origin == Origin::Other) {
            return Ok(None);
        }
        let known = known.map(|known| known.map.clone());
        let kept =
            Kept { path: path.to_path_buf(), known, read: Map::default(), is_changed: true, due: None };
        let kept = Arc::new(Mutex::new(kept));
        lock(&kept).save()?;
        let of_signal = kept.clone();
        interrupt::clean_up(move || save_or_tell(&of_signal));
        let name = path.display();
        let outcome =
            Outcome::new(format!("{name} has the parts that were tried; the next call with it goes on"));
        Ok(Some(KeptMap { kept, _outcome: outcome }))
    }

    /// Notes the parts that were tried so far, and saves them if that is due.
    pub fn note(&self, read: &Map, now: Instant) {
        if *read == Map::default() {
            return;
        }
        let mut kept = lock(&self.kept);
        kept.read.follow(read);
        kept.is_changed = true;
        if kept.due.is_none_or(|due| now >= due) {
            // The last save reports an error.
            let begun = Instant::now();
            let _ = kept.save();
            kept.due = Some(now + INTERVAL.max(begun.elapsed() * SHARE));
        }
    }

    /// Saves the map of a scan that has ended.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> Result<()> {
        let mut kept = lock(&self.kept);
        let saved = kept.save();
        // The caller reports an error.
        kept.is_changed = false;
        saved
    }
}

impl Drop for KeptMap {
    fn drop(&mut self) {
        save_or_tell(&self.kept);
    }
}

impl Kept {
    fn save(&mut self) -> Result<()> {
        if self.is_changed {
            let text = match &self.known {
                Some(known) => known.merged(&self.read).to_string(),
                None => self.read.to_string(),
            };
            output::replace(&self.path, text.as_bytes())?;
            self.is_changed = false;
        }
        Ok(())
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn save_or_tell(kept: &Mutex<Kept>) {
    if let Err(error) = lock(kept).save() {
        notice!("flashkit: the map is not saved: {error:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of so many readable bytes.
    fn read(bytes: u64) -> Map {
        Map::parse(&format!("{}0 {bytes} +\n", Map::default())).expect("a map").0
    }

    #[test]
    fn a_killed_scan_leaves_the_parts_of_the_last_interval() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let saved = || KnownMap::load(&path).unwrap().expect("a map").map;
        let kept = KeptMap::begin(&path, None).unwrap().expect("a map of its own");
        assert_eq!(saved(), Map::default());
        let start = Instant::now();
        kept.note(&Map::default(), start);
        kept.note(&read(10), start);
        assert_eq!(saved(), read(10), "the first part is saved at once");
        kept.note(&read(20), start + INTERVAL / 2);
        assert_eq!(saved(), read(10), "between the saves");
        kept.note(&read(30), start + INTERVAL * 1000);
        assert_eq!(saved(), read(30));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the map is there");
    }

    #[test]
    fn an_error_saves_the_map_and_bad_parts_of_earlier_scans_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let known = Map::parse(&format!("{}100 10 -\n", Map::default())).unwrap().0;
        let known = KnownMap { map: known.clone(), origin: Origin::Flashkit };
        let kept = KeptMap::begin(&path, Some(&known)).unwrap().expect("a map of its own");
        let start = Instant::now();
        kept.note(&read(10), start);
        kept.note(&read(20), start);
        drop(kept);
        assert_eq!(KnownMap::load(&path).unwrap().expect("a map").map, known.map.merged(&read(20)));
    }

    #[test]
    fn a_map_that_cannot_be_written_is_known_before_the_scan() {
        let dir = tempfile::tempdir().unwrap();
        assert!(KeptMap::begin(&dir.path().join("none/map"), None).is_err());
    }
}
