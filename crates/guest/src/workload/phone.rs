//! A day of a phone: mostly databases, with an occasional app, photo or installation.
//!
//! The shares were measured on Android 4 on a Galaxy S3 (Jeong and others, "I/O stack optimization for
//! smartphones", USENIX ATC '13: 90 % of the writes are SQLite's, 70 % are synchronous, 75 % are random, 64 %
//! have at most 4 KB) and before on fourteen applications (Lee and Won, "Smart layers and dumb result",
//! EMSOFT '12: more than half synchronous, 60 to 80 % random). The tests here count them, except for the
//! share of random writes, which depends on the layer of the measurement. The journal mode of each app is an
//! assumption: most truncate it, one uses a WAL.

use serde::{Deserialize, Serialize};

use super::{Database, Journal, Step};
use crate::content::SplitMix;

/// A phone's day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phone {
    /// Number of actions, one after the other.
    pub actions: u64,
    /// Seed of the actions and their places.
    pub seed: u64,
}

const KIB: u64 = 1 << 10;
/// An installed app.
const APP_BYTES: u64 = 8 << 20;
const APPS: u64 = 4;
const PHOTO_BYTES: u64 = 2560 * KIB;
/// Maximum number of files in a browser's cache.
const CACHED: u64 = 200;
const DATABASES: [(&str, Journal); 4] = [
    ("data/messages.db", Journal::Truncate),
    ("data/contacts.db", Journal::Truncate),
    ("data/social.db", Journal::Wal),
    ("data/media.db", Journal::Persist),
];

impl Phone {
    /// Returns the steps that make databases and installed apps.
    pub(super) fn preparation(self) -> Box<dyn Iterator<Item = Step>> {
        let mut steps: Vec<Step> =
            ["data", "app", "media", "cache"].map(|dir| Step::MakeDir { path: dir.into() }).into();
        for (path, journal) in DATABASES {
            Database::new(path, journal).create(&mut steps);
        }
        for n in 0..APPS {
            write_whole(&format!("app/{n}.apk"), APP_BYTES, 128 * KIB, &mut steps);
        }
        Box::new(steps.into_iter())
    }

    /// Returns the steps of the day. A unit is an action.
    pub(super) fn steps(self) -> Box<dyn Iterator<Item = Step>> {
        let mut day = Day {
            random: SplitMix(self.seed),
            databases: DATABASES.map(|(path, journal)| Database::new(path, journal)),
            photos: 0,
            cached: 0,
            apps: APPS,
        };
        Box::new((0..=self.actions).flat_map(move |n| {
            let mut steps = Vec::new();
            if n == self.actions {
                day.databases.iter_mut().for_each(|database| database.close(&mut steps));
                return steps;
            }
            day.act(&mut steps);
            steps.push(Step::Done);
            steps
        }))
    }
}

struct Day {
    random: SplitMix,
    databases: [Database; 4],
    photos: u64,
    cached: u64,
    apps: u64,
}

impl Day {
    fn act(&mut self, steps: &mut Vec<Step>) {
        match self.below(1000) {
            0..700 => self.transaction(steps),
            700..850 => self.launch(steps),
            850..930 => self.browse(steps),
            930..985 => self.settings(steps),
            985..998 => self.photo(steps),
            _ => self.install(steps),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next() % end
    }

    fn transaction(&mut self, steps: &mut Vec<Step>) {
        let which = self.below(DATABASES.len() as u64) as usize;
        self.databases[which].change(&mut self.random, steps);
    }

    /// Reads scattered pages of an app.
    fn launch(&mut self, steps: &mut Vec<Step>) {
        let path = format!("app/{}.apk", self.below(self.apps));
        for _ in 0..16 {
            let length = (4 * KIB) << self.below(5);
            let at = self.below((APP_BYTES - length) / (4 * KIB)) * 4 * KIB;
            steps.push(Step::Read { path: path.clone(), at, length });
        }
        steps.push(Step::Close { path });
    }

    /// Stores a web page's parts in the cache, and removes old ones.
    fn browse(&mut self, steps: &mut Vec<Step>) {
        for _ in 0..3 {
            if self.cached >= CACHED {
                steps.push(Step::Remove { path: format!("cache/{}", self.cached - CACHED) });
            }
            let length = (2 + self.below(30)) * KIB;
            write_whole(&format!("cache/{}", self.cached), length, 32 * KIB, steps);
            self.cached += 1;
        }
    }

    /// Writes a file like Android's AtomicFile: a new file is written, synced, and renamed over the old one.
    fn settings(&mut self, steps: &mut Vec<Step>) {
        let path = format!("data/{}.xml", self.below(20));
        let new = format!("{path}.new");
        let length = KIB + self.below(3 * KIB);
        steps.push(Step::Write { path: new.clone(), at: 0, length });
        steps.push(Step::Fsync { path: new.clone() });
        steps.push(Step::Close { path: new.clone() });
        steps.push(Step::Rename { from: new, to: path });
    }

    /// Stores a photo and a thumbnail, and adds them to the gallery's database.
    fn photo(&mut self, steps: &mut Vec<Step>) {
        let photo = format!("media/{}.jpg", self.photos);
        write_synced(&photo, PHOTO_BYTES, 256 * KIB, steps);
        write_whole(&format!("media/{}.thumbnail", self.photos), 20 * KIB, 20 * KIB, steps);
        self.photos += 1;
        self.databases[3].change(&mut self.random, steps);
    }

    /// Installs an app: it is downloaded, synced, and renamed.
    fn install(&mut self, steps: &mut Vec<Step>) {
        let new = "app/new".to_owned();
        write_synced(&new, APP_BYTES, 128 * KIB, steps);
        steps.push(Step::Rename { from: new, to: format!("app/{}.apk", self.apps) });
        self.apps += 1;
        self.settings(steps);
    }
}

fn write_whole(path: &str, bytes: u64, piece_bytes: u64, steps: &mut Vec<Step>) {
    write_pieces(path, bytes, piece_bytes, steps);
    steps.push(Step::Close { path: path.to_owned() });
}

fn write_synced(path: &str, bytes: u64, piece_bytes: u64, steps: &mut Vec<Step>) {
    write_pieces(path, bytes, piece_bytes, steps);
    steps.push(Step::Fsync { path: path.to_owned() });
    steps.push(Step::Close { path: path.to_owned() });
}

fn write_pieces(path: &str, bytes: u64, piece_bytes: u64, steps: &mut Vec<Step>) {
    for n in 0..bytes.div_ceil(piece_bytes) {
        let at = n * piece_bytes;
        steps.push(Step::Write { path: path.to_owned(), at, length: piece_bytes.min(bytes - at) });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Counts shares of a day's writes: those of databases, those of at most 4 KiB, and those synced before
    /// the file is closed.
    fn shares(actions: u64) -> [f64; 3] {
        let mut counts = [0_u64; 3];
        let mut all = 0;
        let mut pending: HashMap<String, u64> = HashMap::new();
        for step in (Phone { actions, seed: 1 }).steps() {
            match step {
                Step::Write { path, length, .. } => {
                    all += 1;
                    counts[0] += u64::from(path.contains(".db"));
                    counts[1] += u64::from(length <= 4 * KIB);
                    *pending.entry(path).or_default() += 1;
                }
                Step::Fsync { path } | Step::Fdatasync { path } => {
                    counts[2] += pending.remove(&path).unwrap_or(0)
                }
                Step::Close { path } => drop(pending.remove(&path)),
                _ => {}
            }
        }
        counts.map(|count| count as f64 / all as f64)
    }

    #[test]
    fn a_day_has_the_shares_that_were_measured() {
        let [databases, small, synchronous] = shares(5000);
        assert!((0.85..0.95).contains(&databases), "of databases: {databases}");
        assert!(small > 0.64, "small: {small}");
        assert!(synchronous > 0.7, "synchronous: {synchronous}");
    }
}
